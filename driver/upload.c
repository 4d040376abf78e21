/* Batches that are sent to the daemons. A chunk of the batch is turned into messages once; every rank that
 * gets it is sent the same messages, whose data slices refer to the columns in place.
 *
 * gRPC may hold those slices a little longer than the call, and releases them on any thread. So an upload
 * counts the references (an atomic), and the driver frees it on its own thread when the count is 0.
 */
#include "driver/driver_internal.h"

#include <grpc/byte_buffer.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_time.h"

static void release(void *user)
{
    atomic_fetch_sub(&((struct rk_upload *)user)->num_held, 1);
}

static int64_t count_messages(const struct rk_batch_spec *spec, size_t chunk_bytes)
{
    int64_t count = 0;

    for (int64_t i = 0; i < spec->num_tensors; i++)
        count += (int64_t)((spec->tensors[i].byte_size + chunk_bytes - 1) / chunk_bytes);
    return count;
}

static void encode(struct rk_upload *upload, const struct rk_column *const *columns, size_t chunk_bytes)
{
    int64_t next = 0;

    upload->messages = rk_calloc((size_t)upload->num_messages, sizeof(grpc_byte_buffer *));
    for (int64_t i = 0; i < upload->spec.num_tensors; i++) {
        const uint8_t *bytes = rk_column_values(columns[i]);
        uint64_t total = upload->spec.tensors[i].byte_size;

        for (uint64_t at = 0; at < total; at += chunk_bytes) {
            struct rk_tensor_chunk chunk = {.tensor = (uint32_t)i, .offset = at};
            size_t part = (size_t)RK_MIN((uint64_t)chunk_bytes, total - at);

            atomic_fetch_add(&upload->num_held, 1);
            upload->messages[next++] = rk_stream_encode_chunk(&chunk, bytes + at, part, release, upload);
        }
    }
    RK_ASSERT(next == upload->num_messages);
}

struct rk_status *rk_upload_create(struct rk_upload **out, struct rk_driver *driver,
                                   const struct rk_batch *chunk)
{
    struct rk_upload *upload = rk_calloc(1, sizeof(*upload));
    const struct rk_column **columns;
    struct rk_status *st;

    *out = NULL;
    upload->arena = rk_arena_create(4096, 0);
    atomic_init(&upload->num_held, 1); /* until rk_upload_end */
    RK_TRY_GOTO(st, rk_batch_clone(&upload->chunk, chunk), fail);
    RK_TRY_GOTO(st, rk_batch_describe(&upload->spec, &columns, upload->arena, upload->chunk, NULL), fail);
    upload->num_messages = count_messages(&upload->spec, driver->chunk_bytes);
    encode(upload, columns, driver->chunk_bytes);
    upload->next = driver->uploads;
    driver->uploads = upload;
    *out = upload;
    return NULL;
fail:
    rk_batch_destroy(upload->chunk);
    rk_arena_destroy(upload->arena);
    rk_free(upload);
    return st;
}

void rk_upload_end(struct rk_upload *upload)
{
    for (int64_t i = 0; upload->messages && i < upload->num_messages; i++)
        grpc_byte_buffer_destroy(upload->messages[i]);
    rk_free(upload->messages);
    upload->messages = NULL;
    release(upload); /* the last access: the driver's thread may free it now */
}

void rk_upload_reap(struct rk_driver *driver, bool wait)
{
    struct rk_upload **link = &driver->uploads;

    while (*link) {
        struct rk_upload *upload = *link;

        if (atomic_load(&upload->num_held) > 0) {
            if (wait)
                rk_time_sleep_ms(1); /* the connections are closed: gRPC releases them soon */
            else
                link = &upload->next;
            continue;
        }
        *link = upload->next;
        rk_batch_destroy(upload->chunk);
        rk_arena_destroy(upload->arena);
        rk_free(upload);
    }
}
