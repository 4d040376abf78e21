/* Writes the shard of a save: thread C from the copy in host memory, or, without memory for one, the engine
 * thread from the device. */
#include "engine/ckpt/saver_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_fault.h"

#define WRITE_BYTES ((size_t)8 << 20)

struct shard_writer {
    struct rk_saver *saver;
    struct rk_st_writer *file;
    struct rk_stream *stream; /* NULL: read from the snapshot */
    char *staging;            /* [WRITE_BYTES] when read from the device */
    const char *from;         /* next byte of the snapshot */
    const struct rk_engine_hooks *hooks;
};

static struct rk_status *check_stop(const struct shard_writer *writer)
{
    const struct rk_saver *saver = writer->saver;
    const struct rk_engine_hooks *hooks = writer->hooks;
    bool is_cancelled = atomic_load(&saver->is_cancelled);

    if (hooks && hooks->on_progress)
        hooks->on_progress(hooks->user, RK_SAVER_PHASE, atomic_load(&saver->done_bytes), saver->pieces.bytes);
    if (hooks && hooks->is_cancelled)
        is_cancelled = is_cancelled || hooks->is_cancelled(hooks->user);
    return is_cancelled ? RK_FAIL(RK_CANCELLED, "cancelled") : NULL;
}

/* Bytes from `begin` on of run `run`; *out is valid until the next call. */
static struct rk_status *get_bytes(struct shard_writer *writer, const struct rk_state_buffer *buffer,
                                   const struct rk_state_run *run, size_t begin, size_t bytes,
                                   const char **out)
{
    size_t source = (size_t)run->source * rk_dtype_bytes(buffer->dtype) + begin;

    *out = writer->from;
    if (!writer->stream) {
        writer->from += bytes;
        return NULL;
    }
    *out = writer->staging;
    RK_TRY(rk_stream_copy(writer->stream, writer->staging, (const char *)buffer->data + source, bytes,
                          RK_COPY_D2H));
    return rk_stream_sync(writer->stream);
}

static struct rk_status *write_piece(struct shard_writer *writer, int64_t entry)
{
    struct rk_saver *saver = writer->saver;
    const struct rk_state_piece *piece = &saver->pieces.pieces.items[entry];
    const struct rk_state_buffer *buffer = &piece->buffer;
    uint64_t written = 0;

    for (int64_t r = 0; r < piece->num_runs; r++) {
        const struct rk_state_run *run = &saver->pieces.runs.items[piece->first_run + r];
        size_t total = (size_t)run->count * rk_dtype_bytes(buffer->dtype);

        for (size_t begin = 0; begin < total; begin += RK_MIN(WRITE_BYTES, total - begin)) {
            size_t bytes = RK_MIN(WRITE_BYTES, total - begin);
            const char *data;

            RK_TRY(check_stop(writer));
            RK_TRY(get_bytes(writer, buffer, run, begin, bytes, &data));
            RK_TRY(rk_st_writer_write(writer->file, entry, written, data, bytes));
            written += bytes;
            atomic_fetch_add(&saver->done_bytes, bytes);
        }
    }
    return NULL;
}

static struct rk_status *write_shard(struct shard_writer *writer)
{
    struct rk_saver *saver = writer->saver;
    struct rk_status *st;

    if (RK_FAULT("ckpt.save"))
        return RK_FAIL(RK_INTERNAL, "fault point ckpt.save");
    RK_TRY_GOTO(st, rk_state_open_shard(&writer->file, &saver->pieces, saver->model, saver->shard_path), out);
    rk_st_writer_sum(writer->file);
    for (int64_t i = 0; i < saver->pieces.pieces.count; i++)
        RK_TRY_GOTO(st, write_piece(writer, i), out);
    RK_TRY_GOTO(st, rk_st_writer_commit(writer->file), out);
    RK_ASSERT(rk_st_writer_get_sum(writer->file, &saver->file_bytes, &saver->file_crc));

out:
    rk_st_writer_destroy(writer->file);
    return st;
}

void *rk_saver_writer_main(void *user)
{
    struct rk_saver *saver = user;
    struct shard_writer writer = {.saver = saver, .from = saver->snapshot.data};

    saver->status = write_shard(&writer);
    atomic_store(&saver->is_finished, true);
    return NULL;
}

struct rk_status *rk_saver_write_from_device(struct rk_saver *saver, const struct rk_engine_hooks *hooks)
{
    struct shard_writer writer = {.saver = saver, .stream = saver->model->core->stream, .hooks = hooks};
    void *staging;

    RK_TRY(rk_try_alloc(&staging, WRITE_BYTES, "checkpoint blocks"));
    writer.staging = staging;
    saver->status = write_shard(&writer);
    rk_free(staging);
    atomic_store(&saver->is_finished, true);
    return NULL;
}

/* Touches a byte of every page, so that the kernel allocates it. */
void *rk_saver_toucher_main(void *user)
{
    struct rk_saver *saver = user;
    const size_t page_bytes = 4096;

    for (size_t at = 0; at < saver->snapshot.capacity && !atomic_load(&saver->is_cancelled); at += page_bytes)
        ((volatile char *)saver->snapshot.data)[at] = 0;
    return NULL;
}
