/* Copies from the device to host memory at link bandwidth: through a ring of pinned blocks, which threads
 * copy to pageable memory. Pinning all of the memory would take longer than the copy. */
#include "engine/ckpt/state_internal.h"

#include <string.h>
#include <sys/mman.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_fault.h"
#include "base/rk_host_memory.h"
#include "base/rk_log.h"

/* Large enough for full link bandwidth, small enough to stay in cache until it is copied on. */
#define SLOT_BYTES ((size_t)16 << 20)
#define NUM_SLOTS  8
/* Slots that the device fills while threads empty the others. */
#define NUM_FILLING 4
/* One part in SPARE_SHARE of free memory stays free for other processes. */
#define SPARE_SHARE 10

void rk_snapshot_fini(struct rk_snapshot *snapshot)
{
    if (snapshot->data)
        munmap(snapshot->data, snapshot->capacity);
    if (snapshot->device)
        rk_device_host_free(snapshot->device, snapshot->pinned);
    *snapshot = (struct rk_snapshot){0};
}

uint64_t rk_snapshot_bytes(const struct rk_snapshot *snapshot)
{
    return snapshot->capacity + (snapshot->pinned ? NUM_SLOTS * SLOT_BYTES : 0);
}

bool rk_snapshot_reserve(struct rk_snapshot *snapshot, uint64_t bytes, int32_t num_neighbours)
{
    uint64_t available = rk_host_free_bytes("");
    void *data;

    RK_ASSERT(num_neighbours >= 1);
    if (RK_FAULT("ckpt.snapshot"))
        return false;
    if (bytes <= snapshot->capacity)
        return true;
    if (snapshot->data)
        munmap(snapshot->data, snapshot->capacity);
    snapshot->data = NULL;
    snapshot->capacity = 0;
    if (bytes > (available - available / SPARE_SHARE) / (uint64_t)num_neighbours)
        return false;
    data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED)
        return false;
    (void)madvise(data, bytes, MADV_HUGEPAGE); /* fewer page faults, if the kernel supports huge pages */
    snapshot->data = data;
    snapshot->capacity = bytes;
    return true;
}

/* --- the ring --- */

struct slot {
    struct rk_pool_task task;
    struct rk_event *is_filled;
    const char *pinned;
    char *to;
    size_t bytes;
    bool is_used;
};

struct ring {
    struct rk_stream *stream;
    struct rk_pool *pool;
    struct slot slots[NUM_SLOTS];
    int64_t num_filled, num_emptied; /* slots passed to the device and to the pool */
};

static void empty_slot(void *user)
{
    struct slot *slot = user;

    memcpy(slot->to, slot->pinned, slot->bytes);
}

static struct rk_status *ring_open(struct ring *ring, struct rk_snapshot *snapshot, struct rk_stream *stream)
{
    struct rk_device *device = rk_stream_device(stream);

    ring->stream = stream;
    if (!snapshot->pinned) {
        RK_TRY(rk_device_host_alloc(device, &snapshot->pinned, NUM_SLOTS * SLOT_BYTES, "checkpoint copies"));
        snapshot->device = device;
    }
    for (int i = 0; i < NUM_SLOTS; i++) {
        struct slot *slot = &ring->slots[i];

        slot->task = (struct rk_pool_task){.run = empty_slot, .user = slot};
        slot->pinned = (const char *)snapshot->pinned + (size_t)i * SLOT_BYTES;
        RK_TRY(rk_event_create(&slot->is_filled, device));
    }
    return rk_pool_create(&ring->pool);
}

/* Passes the oldest slot to the pool once the device has filled it. */
static struct rk_status *hand_on(struct ring *ring)
{
    struct slot *slot = &ring->slots[ring->num_emptied++ % NUM_SLOTS];

    RK_TRY(rk_event_sync(slot->is_filled));
    slot->is_used = true;
    rk_pool_submit(ring->pool, &slot->task);
    return NULL;
}

static struct rk_status *ring_copy(struct ring *ring, char *to, const char *from, size_t bytes)
{
    struct slot *slot = &ring->slots[ring->num_filled % NUM_SLOTS];

    RK_ASSERT(bytes <= SLOT_BYTES);
    if (slot->is_used)
        rk_pool_wait(ring->pool, &slot->task);
    slot->is_used = false;
    slot->to = to;
    slot->bytes = bytes;
    RK_TRY(rk_stream_copy(ring->stream, (char *)slot->pinned, from, bytes, RK_COPY_D2H));
    RK_TRY(rk_event_record(slot->is_filled, ring->stream));
    ring->num_filled++;
    return ring->num_filled - ring->num_emptied > NUM_FILLING ? hand_on(ring) : NULL;
}

/* Waits for all copies; after an error, at least until the device no longer writes to the slots. */
static struct rk_status *ring_close(struct ring *ring, struct rk_status *st)
{
    while (!st && ring->num_emptied < ring->num_filled)
        st = hand_on(ring);
    st = rk_status_first(st, rk_stream_sync(ring->stream));
    rk_pool_destroy(ring->pool);
    for (int i = 0; i < NUM_SLOTS; i++)
        rk_event_destroy(ring->slots[i].is_filled);
    return st;
}

/* --- pieces --- */

static struct rk_status *copy_bytes(struct ring *ring, char *to, const char *from, size_t bytes)
{
    if (!ring->pool) /* device memory is host memory */
        return rk_stream_copy(ring->stream, to, from, bytes, RK_COPY_D2H);
    for (size_t done = 0; done < bytes; done += RK_MIN(SLOT_BYTES, bytes - done))
        RK_TRY(ring_copy(ring, to + done, from + done, RK_MIN(SLOT_BYTES, bytes - done)));
    return NULL;
}

static struct rk_status *copy_pieces(struct ring *ring, char *to, const struct rk_state_pieces *pieces)
{
    for (int64_t i = 0; i < pieces->pieces.count; i++) {
        const struct rk_state_piece *piece = &pieces->pieces.items[i];
        const struct rk_state_buffer *buffer = &piece->buffer;
        size_t elem_bytes = rk_dtype_bytes(buffer->dtype);

        for (int64_t r = 0; r < piece->num_runs; r++) {
            const struct rk_state_run *run = &pieces->runs.items[piece->first_run + r];
            size_t bytes = (size_t)run->count * elem_bytes;

            RK_TRY(
                copy_bytes(ring, to, (const char *)buffer->data + (size_t)run->source * elem_bytes, bytes));
            to += bytes;
        }
    }
    return NULL;
}

struct rk_status *rk_snapshot_take(struct rk_snapshot *snapshot, const struct rk_model *model,
                                   const struct rk_state_pieces *pieces)
{
    struct rk_stream *stream = model->core->stream;
    struct ring ring = {.stream = stream};
    struct rk_status *st = NULL;

    RK_ASSERT(pieces->bytes <= snapshot->capacity);
    if (rk_device_is_async(rk_stream_device(stream)))
        st = ring_open(&ring, snapshot, stream);
    if (!st)
        st = copy_pieces(&ring, snapshot->data, pieces);
    return ring_close(&ring, st);
}
