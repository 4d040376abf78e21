/* All data is sent through mailboxes in shared memory, one per pair of ranks of a communicator; a collective
 * is a set of transfers, and reductions are computed after them.
 *
 * On a stream of the tests' device operations are asynchronous; on the CPU, which has no streams, they run in
 * the call and wait for the peers, like NCCL's calls that connect or find a stream full. */
#include "tests/support/fake_nccl.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_assert.h"
#include "base/config/rk_config.h"
#include "base/rk_dtype.h"
#include "base/rk_env.h"
#include "base/rk_status.h"
#include "engine/comm/rk_nccl.h"
#include "tests/support/graph_device.h"

#define MAX_RANKS     8
#define MAX_CHANNELS  600 /* maximum number of communicators of a test binary */
#define MAILBOX_BYTES (32 << 10)

struct mailbox {
    atomic_int filled_bytes; /* 0: empty */
    char data[MAILBOX_BYTES];
};

/* Shared by the ranks of one communicator. */
struct channel {
    atomic_int num_joined, num_splits; /* ranks that have joined; calls of comm_split over all of them */
    struct mailbox mailboxes[MAX_RANKS][MAX_RANKS]; /* [from][to] */
};

/* The channel that a split gave to a color. */
struct child {
    int parent, split, color, channel;
};

struct arena {
    struct rk_fake_nccl_faults faults;
    atomic_int num_channels;
    pthread_mutex_t lock; /* guards the fields below */
    int num_children;
    struct child children[MAX_CHANNELS];
    struct channel channels[MAX_CHANNELS];
};

struct rk_nccl_comm {
    int channel, rank, size; /* size 0: as many as have joined */
    int num_splits;
    bool is_blocking;
    atomic_bool is_aborted;
    atomic_int num_ops; /* on streams that have not completed them, and in existing graphs */
    /* A split in progress. */
    rk_nccl_comm_t *child_out, child;
};

static struct arena *arena;

static struct channel *channel_of(const struct rk_nccl_comm *comm)
{
    return &arena->channels[comm->channel];
}

static int new_channel(void)
{
    int index = atomic_fetch_add(&arena->num_channels, 1);

    RK_ASSERT(index < MAX_CHANNELS);
    return index;
}

static bool is_hit(const atomic_int *fault, const struct rk_nccl_comm *comm)
{
    return atomic_load(fault) == comm->rank + 1;
}

/* --- communicators --- */

static rk_nccl_result_t get_version(int *version)
{
    *version = RK_NCCL_MIN_VERSION;
    return RK_NCCL_SUCCESS;
}

static rk_nccl_result_t get_unique_id(rk_nccl_id_t *id)
{
    int index = new_channel();

    memset(id, 0, sizeof(*id));
    memcpy(id->bytes, &index, sizeof(index));
    return RK_NCCL_SUCCESS;
}

static rk_nccl_comm_t comm_new(int channel, int size, int rank, const struct rk_nccl_config *config)
{
    rk_nccl_comm_t comm = rk_calloc(1, sizeof(*comm));

    RK_ASSERT(config->magic == RK_NCCL_CONFIG_MAGIC);
    RK_ASSERT(size <= MAX_RANKS);
    comm->channel = channel;
    comm->size = size;
    comm->rank = rank;
    comm->is_blocking = config->blocking != 0;
    atomic_fetch_add(&channel_of(comm)->num_joined, 1);
    return comm;
}

static rk_nccl_result_t comm_init_rank_config(rk_nccl_comm_t *comm, int num_ranks, rk_nccl_id_t id, int rank,
                                              struct rk_nccl_config *config)
{
    int channel;

    RK_ASSERT(config->blocking == 0); /* connecting a blocking communicator could not be aborted */
    memcpy(&channel, id.bytes, sizeof(channel));
    if (atomic_load(&arena->faults.slow_rank) == rank + 1)
        nanosleep(&(struct timespec){.tv_sec = 3}, NULL);
    *comm = comm_new(channel, num_ranks, rank, config);
    return is_hit(&arena->faults.init_rank, *comm) ? RK_NCCL_SYSTEM_ERROR : RK_NCCL_IN_PROGRESS;
}

static int child_channel(int parent, int split, int color)
{
    int found = -1;

    RK_ASSERT(pthread_mutex_lock(&arena->lock) == 0);
    for (int i = 0; i < arena->num_children && found < 0; i++) {
        const struct child *child = &arena->children[i];

        if (child->parent == parent && child->split == split && child->color == color)
            found = child->channel;
    }
    if (found < 0) {
        found = new_channel();
        RK_ASSERT(arena->num_children < MAX_CHANNELS);
        arena->children[arena->num_children++] = (struct child){parent, split, color, found};
    }
    RK_ASSERT(pthread_mutex_unlock(&arena->lock) == 0);
    return found;
}

static rk_nccl_result_t comm_split(rk_nccl_comm_t comm, int color, int key, rk_nccl_comm_t *child,
                                   struct rk_nccl_config *config)
{
    comm->child = NULL;
    if (color != RK_NCCL_NO_COLOR)
        comm->child = comm_new(child_channel(comm->channel, comm->num_splits, color), 0, key, config);
    comm->child_out = child;
    comm->num_splits++;
    atomic_fetch_add(&channel_of(comm)->num_splits, 1);
    return RK_NCCL_SUCCESS; /* although it has only begun: as in NCCL */
}

static rk_nccl_result_t comm_get_async_error(rk_nccl_comm_t comm, rk_nccl_result_t *error)
{
    struct channel *channel = channel_of(comm);

    *error = RK_NCCL_SUCCESS;
    if (comm->is_blocking) {
        if (is_hit(&arena->faults.async_rank, comm))
            *error = RK_NCCL_REMOTE_ERROR;
        return RK_NCCL_SUCCESS;
    }
    if (atomic_load(&channel->num_joined) < comm->size ||
        atomic_load(&channel->num_splits) < comm->size * comm->num_splits ||
        atomic_load(&arena->faults.is_never_ready)) {
        *error = RK_NCCL_IN_PROGRESS;
        return RK_NCCL_SUCCESS;
    }
    if (comm->child_out) {
        if (comm->child)
            comm->child->size = atomic_load(&channel_of(comm->child)->num_joined);
        *comm->child_out = comm->child;
        comm->child_out = NULL;
        comm->child = NULL;
    }
    return RK_NCCL_SUCCESS;
}

static _Thread_local int group_depth;
static _Thread_local RK_ARRAY(rk_nccl_comm_t) aborted; /* in the open group of calls */

/* Waits until streams have completed their operations and graphs are destroyed. Does not wait for calls: the
 * caller's threads must not use a communicator that they release. */
static void release_aborted(void)
{
    for (int64_t i = 0; i < aborted.count; i++) {
        rk_nccl_comm_t comm = aborted.items[i];

        while (atomic_load(&comm->num_ops) > 0 || is_hit(&arena->faults.abort_rank, comm))
            nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
        rk_free(comm);
    }
    rk_array_fini(&aborted);
}

static rk_nccl_result_t comm_abort(rk_nccl_comm_t comm)
{
    atomic_store(&comm->is_aborted, true);
    if (comm->child_out) /* also the child of an unfinished split, which the caller must abort */
        *comm->child_out = comm->child;
    rk_array_append(&aborted, comm);
    if (group_depth == 0)
        release_aborted();
    return RK_NCCL_SUCCESS;
}

static const char *get_error_string(rk_nccl_result_t result)
{
    return result == RK_NCCL_REMOTE_ERROR ? "fake remote error" : "fake error";
}

static const char *get_last_error(rk_nccl_comm_t comm)
{
    (void)comm;
    return "fake detail";
}

/* --- transfers --- */

struct transfer {
    rk_nccl_comm_t comm;
    char *data; /* not written if it is a send */
    size_t bytes, done_bytes;
    int peer;
    bool is_send;
};

static _Thread_local RK_ARRAY(struct transfer) queue;
static _Thread_local void *queue_stream; /* of the tests' device: queued operations go to it; NULL: run them
                                          * now */

/* Whether an earlier transfer between the same ranks in the same direction is not done. */
static bool must_wait(int64_t i)
{
    for (int64_t j = 0; j < i; j++) {
        const struct transfer *other = &queue.items[j], *mine = &queue.items[i];

        if (other->comm == mine->comm && other->peer == mine->peer && other->is_send == mine->is_send &&
            other->done_bytes < other->bytes)
            return true;
    }
    return false;
}

/* Whether data was moved. */
static bool advance(struct transfer *transfer)
{
    struct channel *channel = channel_of(transfer->comm);
    int me = transfer->comm->rank, bytes;
    struct mailbox *box =
        transfer->is_send ? &channel->mailboxes[me][transfer->peer] : &channel->mailboxes[transfer->peer][me];

    bytes = atomic_load(&box->filled_bytes);
    if (transfer->is_send == (bytes > 0))
        return false;
    if (transfer->is_send) {
        bytes = (int)RK_MIN(transfer->bytes - transfer->done_bytes, (size_t)MAILBOX_BYTES);
        memcpy(box->data, transfer->data + transfer->done_bytes, (size_t)bytes);
    } else {
        RK_ASSERT((size_t)bytes <= transfer->bytes - transfer->done_bytes);
        memcpy(transfer->data + transfer->done_bytes, box->data, (size_t)bytes);
    }
    atomic_store(&box->filled_bytes, transfer->is_send ? bytes : 0);
    transfer->done_bytes += (size_t)bytes;
    return true;
}

static rk_nccl_result_t run_queue(void)
{
    int64_t num_left;
    rk_nccl_result_t result = RK_NCCL_SUCCESS;

    do {
        bool has_moved = false;

        num_left = 0;
        for (int64_t i = 0; i < queue.count; i++) {
            struct transfer *transfer = &queue.items[i];

            if (atomic_load(&transfer->comm->is_aborted))
                result = RK_NCCL_INTERNAL_ERROR;
            if (transfer->done_bytes == transfer->bytes)
                continue;
            num_left++;
            if (!must_wait(i))
                has_moved = advance(transfer) || has_moved;
        }
        if (!has_moved && num_left > 0)
            nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    } while (num_left > 0 && result == RK_NCCL_SUCCESS);
    rk_array_fini(&queue);
    return result;
}

/* Arguments of a task of the tests' device: the transfers of one group of calls. */
struct transfers {
    struct transfer *items;
    int64_t count;
};

static struct rk_status *run_transfers(struct rk_stream *stream, const void *args)
{
    const struct transfers *transfers = args;

    (void)stream;
    for (int64_t i = 0; i < transfers->count; i++)
        rk_array_append(&queue, transfers->items[i]);
    (void)run_queue();
    return NULL;
}

static void release_transfers(const void *args)
{
    const struct transfers *transfers = args;

    for (int64_t i = 0; i < transfers->count; i++)
        atomic_fetch_sub(&transfers->items[i].comm->num_ops, 1);
    rk_free(transfers->items);
}

/* Runs them in the call, or later on their stream. */
static rk_nccl_result_t run_or_append_queue(void)
{
    struct transfers transfers = {queue.items, queue.count};

    if (!queue_stream)
        return run_queue();
    queue.items = NULL;
    rk_array_fini(&queue);
    for (int64_t i = 0; i < transfers.count; i++)
        atomic_fetch_add(&transfers.items[i].comm->num_ops, 1);
    RK_ASSERT(rk_test_graphs_append(queue_stream, &(struct rk_test_task){.run = run_transfers,
                                                                         .release = release_transfers,
                                                                         .args = &transfers,
                                                                         .args_bytes = sizeof(transfers)}));
    queue_stream = NULL;
    return RK_NCCL_SUCCESS;
}

static rk_nccl_result_t group_start(void)
{
    group_depth++;
    return RK_NCCL_SUCCESS;
}

static rk_nccl_result_t group_end(void)
{
    rk_nccl_result_t result;

    RK_ASSERT(group_depth > 0);
    if (--group_depth > 0)
        return RK_NCCL_SUCCESS;
    result = run_or_append_queue();
    release_aborted();
    return result;
}

static rk_nccl_result_t add(rk_nccl_comm_t comm, void *data, size_t bytes, int peer, bool is_send,
                            void *stream)
{
    struct transfer transfer = {.comm = comm, .data = data, .bytes = bytes, .peer = peer, .is_send = is_send};

    if (is_hit(&arena->faults.call_rank, comm))
        return RK_NCCL_SYSTEM_ERROR;
    RK_ASSERT(peer >= 0);
    RK_ASSERT(peer < comm->size);
    RK_ASSERT(queue.count == 0 || stream == queue_stream);
    queue_stream = stream;
    rk_array_append(&queue, transfer);
    return group_depth > 0 ? RK_NCCL_SUCCESS : run_or_append_queue();
}

static rk_dtype_t dtype_of(rk_nccl_dtype_t dtype)
{
    static const rk_dtype_t dtypes[] = {
        [RK_NCCL_U8] = RK_DTYPE_U8,     [RK_NCCL_I32] = RK_DTYPE_I32, [RK_NCCL_I64] = RK_DTYPE_I64,
        [RK_NCCL_F16] = RK_DTYPE_F16,   [RK_NCCL_F32] = RK_DTYPE_F32, [RK_NCCL_F64] = RK_DTYPE_F64,
        [RK_NCCL_BF16] = RK_DTYPE_BF16,
    };

    return dtypes[dtype];
}

static rk_nccl_result_t fake_send(const void *data, size_t count, rk_nccl_dtype_t dtype, int peer,
                                  rk_nccl_comm_t comm, void *stream)
{
    void *bytes;

    memcpy(&bytes, &data, sizeof(bytes)); /* a send does not write */
    return add(comm, bytes, count * rk_dtype_bytes(dtype_of(dtype)), peer, true, stream);
}

static rk_nccl_result_t fake_recv(void *data, size_t count, rk_nccl_dtype_t dtype, int peer,
                                  rk_nccl_comm_t comm, void *stream)
{
    return add(comm, data, count * rk_dtype_bytes(dtype_of(dtype)), peer, false, stream);
}

/* --- collectives --- */

#define BLOCK_ELEMENTS 1024

/* f32 additions of narrower types are exact in f64; storing them rounds once. */
static void fold_real(char *acc, const char *x, rk_dtype_t dtype, rk_nccl_reduce_t op, int64_t count)
{
    double a[BLOCK_ELEMENTS], b[BLOCK_ELEMENTS];

    rk_load_f64(a, acc, dtype, count);
    rk_load_f64(b, x, dtype, count);
    for (int64_t i = 0; i < count; i++) {
        if (op == RK_NCCL_SUM)
            a[i] = dtype == RK_DTYPE_F64 ? a[i] + b[i] : (double)((float)a[i] + (float)b[i]);
        else
            a[i] = (op == RK_NCCL_MAX) == (b[i] > a[i]) ? b[i] : a[i];
    }
    rk_store_f64(acc, dtype, a, count);
}

#define FOLD_INT(T)                                                                                          \
    for (int64_t i = 0; i < count; i++) {                                                                    \
        T *a = (T *)acc + i, b = ((const T *)x)[i];                                                          \
                                                                                                             \
        *a = op == RK_NCCL_SUM ? (T)((uint64_t)*a + (uint64_t)b) : (op == RK_NCCL_MAX) == (b > *a) ? b : *a; \
    }

static void fold(void *acc, const void *x, rk_dtype_t dtype, rk_nccl_reduce_t op, int64_t count)
{
    if (dtype == RK_DTYPE_I64) {
        FOLD_INT(int64_t)
    } else if (dtype == RK_DTYPE_I32) {
        FOLD_INT(int32_t)
    } else if (dtype == RK_DTYPE_U8) {
        FOLD_INT(uint8_t)
    } else {
        for (int64_t i = 0; i < count; i += BLOCK_ELEMENTS) {
            size_t offset = (size_t)i * rk_dtype_bytes(dtype);

            fold_real((char *)acc + offset, (const char *)x + offset, dtype, op,
                      RK_MIN(count - i, BLOCK_ELEMENTS));
        }
    }
}

/* Sets parts[r] to the data that rank r sends: from `in`, `stride` elements further for each receiver. */
static rk_nccl_result_t exchange(rk_nccl_comm_t comm, char *parts, const void *in, size_t count,
                                 size_t stride, rk_nccl_dtype_t dtype)
{
    size_t elem_bytes = rk_dtype_bytes(dtype_of(dtype));
    rk_nccl_result_t result = RK_NCCL_SUCCESS, ended;

    (void)group_start();
    for (int r = 0; r < comm->size && result == RK_NCCL_SUCCESS; r++) {
        result = fake_send((const char *)in + (size_t)r * stride * elem_bytes, count, dtype, r, comm, NULL);
        if (result == RK_NCCL_SUCCESS)
            result = fake_recv(parts + (size_t)r * count * elem_bytes, count, dtype, r, comm, NULL);
    }
    ended = group_end();
    return result == RK_NCCL_SUCCESS ? ended : result;
}

/* From the last rank to the first, intentionally not in rank order. */
static rk_nccl_result_t reduce(rk_nccl_comm_t comm, void *out, const void *in, size_t count, size_t stride,
                               rk_nccl_dtype_t dtype, rk_nccl_reduce_t op)
{
    size_t bytes = count * rk_dtype_bytes(dtype_of(dtype));
    char *parts = rk_malloc((size_t)comm->size * bytes), *acc = parts + (size_t)(comm->size - 1) * bytes;
    rk_nccl_result_t result = exchange(comm, parts, in, count, stride, dtype);

    if (result == RK_NCCL_SUCCESS) {
        for (int r = comm->size - 2; r >= 0; r--)
            fold(acc, parts + (size_t)r * bytes, dtype_of(dtype), op, (int64_t)count);
        memcpy(out, acc, bytes);
    }
    rk_free(parts);
    return result;
}

static rk_nccl_result_t broadcast(rk_nccl_comm_t comm, void *out, const void *in, size_t count,
                                  rk_nccl_dtype_t dtype, int root)
{
    rk_nccl_result_t result = RK_NCCL_SUCCESS, ended;

    (void)group_start();
    for (int r = 0; r < comm->size && comm->rank == root && result == RK_NCCL_SUCCESS; r++)
        result = r == root ? result : fake_send(in, count, dtype, r, comm, NULL);
    if (comm->rank != root)
        result = fake_recv(out, count, dtype, root, comm, NULL);
    ended = group_end();
    return result == RK_NCCL_SUCCESS ? ended : result;
}

/* A collective, which may be deferred. */
struct collective {
    enum { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST } kind;
    rk_nccl_comm_t comm;
    const void *in;
    void *out;
    size_t count;
    rk_nccl_dtype_t dtype;
    rk_nccl_reduce_t op;
    int root;
};

static rk_nccl_result_t run(const struct collective *c)
{
    switch (c->kind) {
    case ALL_REDUCE:
        return reduce(c->comm, c->out, c->in, c->count, 0, c->dtype, c->op);
    case REDUCE_SCATTER:
        return reduce(c->comm, c->out, c->in, c->count, c->count, c->dtype, c->op);
    case ALL_GATHER:
        return exchange(c->comm, c->out, c->in, c->count, 0, c->dtype);
    default:
        return broadcast(c->comm, c->out, c->in, c->count, c->dtype, c->root);
    }
}

/* A failure on a stream is not returned by the stream: the world reports it. */
static struct rk_status *run_later(struct rk_stream *stream, const void *args)
{
    (void)stream;
    (void)run(args);
    return NULL;
}

static void release(const void *args)
{
    atomic_fetch_sub(&((const struct collective *)args)->comm->num_ops, 1);
}

static rk_nccl_result_t run_or_append(const struct collective *c, void *stream)
{
    const struct rk_test_task task = {
        .run = run_later, .release = release, .args = c, .args_bytes = sizeof(*c)};

    if (is_hit(&arena->faults.call_rank, c->comm))
        return RK_NCCL_SYSTEM_ERROR;
    if (!stream)
        return run(c);
    atomic_fetch_add(&c->comm->num_ops, 1);
    RK_ASSERT(rk_test_graphs_append(stream, &task));
    return RK_NCCL_SUCCESS;
}

static rk_nccl_result_t fake_all_reduce(const void *in, void *out, size_t count, rk_nccl_dtype_t dtype,
                                        rk_nccl_reduce_t op, rk_nccl_comm_t comm, void *stream)
{
    const struct collective c = {
        .kind = ALL_REDUCE, .comm = comm, .in = in, .out = out, .count = count, .dtype = dtype, .op = op};

    return run_or_append(&c, stream);
}

static rk_nccl_result_t fake_reduce_scatter(const void *in, void *out, size_t count, rk_nccl_dtype_t dtype,
                                            rk_nccl_reduce_t op, rk_nccl_comm_t comm, void *stream)
{
    const struct collective c = {
        .kind = REDUCE_SCATTER, .comm = comm, .in = in, .out = out, .count = count, .dtype = dtype, .op = op};

    return run_or_append(&c, stream);
}

static rk_nccl_result_t fake_all_gather(const void *in, void *out, size_t count, rk_nccl_dtype_t dtype,
                                        rk_nccl_comm_t comm, void *stream)
{
    const struct collective c = {
        .kind = ALL_GATHER, .comm = comm, .in = in, .out = out, .count = count, .dtype = dtype};

    return run_or_append(&c, stream);
}

static rk_nccl_result_t fake_broadcast(const void *in, void *out, size_t count, rk_nccl_dtype_t dtype,
                                       int root, rk_nccl_comm_t comm, void *stream)
{
    const struct collective c = {
        .kind = BROADCAST, .comm = comm, .in = in, .out = out, .count = count, .dtype = dtype, .root = root};

    return run_or_append(&c, stream);
}

/* --- the library --- */

struct rk_status *rk_nccl_api_get(const struct rk_nccl_api **out)
{
    static const struct rk_nccl_api api = {
        .get_version = get_version,
        .get_unique_id = get_unique_id,
        .comm_init_rank_config = comm_init_rank_config,
        .comm_split = comm_split,
        .comm_get_async_error = comm_get_async_error,
        .comm_abort = comm_abort,
        .get_error_string = get_error_string,
        .get_last_error = get_last_error,
        .group_start = group_start,
        .group_end = group_end,
        .all_reduce = fake_all_reduce,
        .all_gather = fake_all_gather,
        .reduce_scatter = fake_reduce_scatter,
        .broadcast = fake_broadcast,
        .send = fake_send,
        .recv = fake_recv,
    };

    *out = NULL;
    if (atomic_load(&arena->faults.missing_pid) == getpid())
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "NCCL_MISSING", "the fake library does not load");
    *out = &api;
    return NULL;
}

struct rk_fake_nccl_faults *rk_fake_nccl_faults(void)
{
    return arena ? &arena->faults : NULL;
}

void rk_fake_nccl_setup(void)
{
    const char *comm = rk_env("RK_TEST_COMM");
    pthread_mutexattr_t attr;
    struct rk_status *st;

    if (!comm || strcmp(comm, "nccl") != 0)
        return;
    arena =
        mmap(NULL, sizeof(*arena), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    RK_ASSERT(arena != MAP_FAILED);
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    RK_ASSERT(pthread_mutex_init(&arena->lock, &attr) == 0);
    pthread_mutexattr_destroy(&attr);
    st = rk_comm_register(&rk_comm_nccl_ops);
    RK_ASSERT(!st);
}
