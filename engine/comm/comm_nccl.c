/* Creation and destruction of NCCL worlds and groups (see comm_nccl_internal.h). */
#include "engine/comm/comm_nccl_internal.h"

#include <inttypes.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/config/rk_config.h"
#include "base/rk_env.h"
#include "base/rk_log.h"
#include "base/rk_random.h"
#include "base/rk_str.h"
#include "base/rk_time.h"

#define NS_PER_MS 1000000
#define POLL_MS   1
/* How long a failed call waits for the peer network to name the lost rank. */
#define NAMING_MS 1000
/* How long destroying a world waits for its own operations, and then for the peers to leave. */
#define GOODBYE_MS 1000
/* Size of the warm-up operation, which makes NCCL connect a new group: it uses the algorithm of all large
 * operations. */
#define WARM_UP_BYTES ((size_t)4 << 20)

/* --- endpoints: those of the peer network --- */

static struct rk_status *endpoint_open(void **out, const struct rk_comm_endpoint_config *config,
                                       char address[RK_COMM_ADDRESS_BYTES])
{
    struct rk_comm_endpoint_config net_config = {.struct_size = sizeof(net_config),
                                                 .backend = "cpu",
                                                 .listen_host = config->listen_host,
                                                 .tls = config->tls};
    struct rk_comm_endpoint *endpoint;

    *out = NULL;
    RK_TRY(rk_comm_endpoint_open(&endpoint, &net_config));
    strncpy(address, rk_comm_endpoint_address(endpoint), RK_COMM_ADDRESS_BYTES - 1);
    *out = endpoint;
    return NULL;
}

static void endpoint_close(void *endpoint)
{
    rk_comm_endpoint_close(endpoint);
}

/* The secret of the peer network. NCCL's own id is created when all ranks have connected; a world of one rank
 * needs none. */
static struct rk_status *make_id(uint8_t id[RK_COMM_ID_BYTES])
{
    return rk_random_bytes(id, RK_COMM_ID_BYTES);
}

/* --- waiting for NCCL --- */

struct rk_status *rk_nccl_failure(struct rk_nccl_world *nccl, rk_nccl_result_t result, const char *call)
{
    int64_t deadline_ns = rk_time_now_ns() + NAMING_MS * NS_PER_MS;
    struct rk_status *st = rk_comm_world_error(nccl->world);
    const char *detail;

    while (!st && rk_time_now_ns() < deadline_ns) {
        rk_time_sleep_ms(POLL_MS);
        st = rk_comm_world_error(nccl->world);
    }
    if (st)
        return st;
    detail = nccl->api->get_last_error(NULL); /* error text of this process */
    return RK_FAIL(RK_INTERNAL, "NCCL: %s: %s (%s)", call, nccl->api->get_error_string(result),
                   detail ? detail : "no detail");
}

/* NCCL does not report which rank it waits for; a rank without recent heartbeats is the likely one. */
static struct rk_status *timed_out(const struct rk_nccl_world *nccl, const char *call)
{
    int64_t now_ns = rk_time_now_ns();
    struct rk_str silent = {0};
    struct rk_status *st;
    int num_silent = 0;

    for (int32_t r = 0; r < nccl->world->size; r++) {
        int64_t seen_ns = RK_MAX(rk_comm_control_seen_ns(nccl->control, r), nccl->started_ns);

        if (r != nccl->world->rank && now_ns - seen_ns > nccl->progress_ns)
            rk_str_appendf(&silent, "%s%d", num_silent++ ? ", " : "", r);
    }
    st = RK_FAIL_REASON(RK_DEADLINE_EXCEEDED, "WATCHDOG", "%s did not end within %" PRId64 " ms: %s%s%s",
                        call, nccl->connect_ns / NS_PER_MS,
                        num_silent == 0   ? "NCCL waits for an unknown rank"
                        : num_silent == 1 ? "rank "
                                          : "ranks ",
                        num_silent ? rk_str_text(&silent) : "", num_silent ? " went silent" : "");
    rk_str_fini(&silent);
    return st;
}

/* The state of a non-blocking communicator, or the error that ends the wait. */
static struct rk_status *poll_ready(struct rk_nccl_world *nccl, rk_nccl_result_t *state)
{
    rk_nccl_result_t result = RK_NCCL_SUCCESS;

    RK_ASSERT(pthread_mutex_lock(&nccl->call_lock) == 0);
    *state = RK_NCCL_IN_PROGRESS;
    if (!atomic_load(&nccl->is_down))
        result = nccl->api->comm_get_async_error(nccl->comm, state);
    RK_ASSERT(pthread_mutex_unlock(&nccl->call_lock) == 0);
    RK_TRY(rk_comm_world_error(nccl->world));
    if (result != RK_NCCL_SUCCESS)
        *state = result;
    return NULL;
}

/* Waits until the world's communicator has finished the call. Unless `result` is an error, the state counts
 * and not the result: a split that has only begun returns SUCCESS. `call` is for messages. */
static struct rk_status *wait_ready(struct rk_nccl_world *nccl, rk_nccl_result_t result, const char *call)
{
    int64_t deadline_ns = rk_time_now_ns() + nccl->connect_ns;
    rk_nccl_result_t state = result == RK_NCCL_SUCCESS ? RK_NCCL_IN_PROGRESS : result;

    while (state == RK_NCCL_IN_PROGRESS) {
        if (nccl->should_stop && nccl->should_stop(nccl->user))
            return RK_FAIL_REASON(RK_ABORTED, "COMM_ABORTED", "%s aborted: this rank was asked to stop",
                                  call);
        if (rk_time_now_ns() > deadline_ns)
            return timed_out(nccl, call);
        RK_TRY(poll_ready(nccl, &state));
        if (state == RK_NCCL_IN_PROGRESS)
            rk_time_sleep_ms(POLL_MS);
    }
    return state == RK_NCCL_SUCCESS ? NULL : rk_nccl_failure(nccl, state, call);
}

/* --- worlds --- */

/* Sends rank 0's NCCL id to all ranks over the peer network. */
static struct rk_status *share_id(struct rk_nccl_world *nccl, rk_nccl_id_t *id)
{
    int32_t size = nccl->world->size, *ranks = rk_calloc((size_t)size, sizeof(*ranks));
    struct rk_comm_group *all = NULL;
    rk_nccl_result_t result;
    struct rk_status *st;

    for (int32_t r = 0; r < size; r++)
        ranks[r] = r;
    RK_TRY_GOTO(st, rk_comm_group_create(&all, nccl->control, "world", ranks, size), out);
    if (nccl->world->rank == 0) {
        result = nccl->api->get_unique_id(id);
        if (result != RK_NCCL_SUCCESS)
            RK_TRY_GOTO(st, rk_nccl_failure(nccl, result, "ncclGetUniqueId"), out);
    }
    st = rk_comm_broadcast(all, NULL, rk_tensor_1d(id, RK_DTYPE_U8, sizeof(*id)), 0);

out:
    rk_comm_group_destroy(all);
    rk_free(ranks);
    return st;
}

static struct rk_status *join(struct rk_nccl_world *nccl)
{
    struct rk_nccl_config config = RK_NCCL_CONFIG_INITIALIZER;
    rk_nccl_result_t result;
    rk_nccl_id_t id = {{0}};

    RK_TRY(share_id(nccl, &id));
    config.blocking = 0;
    RK_ASSERT(pthread_mutex_lock(&nccl->call_lock) == 0);
    result = atomic_load(&nccl->is_down) ? RK_NCCL_INVALID_USAGE
                                         : nccl->api->comm_init_rank_config(&nccl->comm, nccl->world->size,
                                                                            id, nccl->world->rank, &config);
    RK_ASSERT(pthread_mutex_unlock(&nccl->call_lock) == 0);
    return wait_ready(nccl, result, "ncclCommInitRankConfig");
}

/* A stream may have ended because a peer aborted: the peer network is asked before the result is used. */
static struct rk_status *check_device(void *user)
{
    return rk_comm_world_check(user);
}

static void world_poll(struct rk_comm_world *world)
{
    struct rk_nccl_world *nccl = world->impl;

    if (nccl && nccl->control)
        rk_nccl_guard_poll(nccl);
}

static void world_activity(const struct rk_comm_world *world, struct rk_comm_activity *inout)
{
    rk_nccl_activity(world->impl, inout);
}

static struct rk_status *create_on_device(struct rk_nccl_world *nccl)
{
    RK_TRY(rk_device_alloc(nccl->device, &nccl->barrier, sizeof(int32_t), "barrier of the collectives"));
    for (int i = 0; i < RK_NCCL_PENDING_MAX; i++)
        RK_TRY(rk_event_create(&nccl->pending[i].event, nccl->device));
    return NULL;
}

static void destroy_on_device(struct rk_nccl_world *nccl)
{
    for (int i = 0; i < RK_NCCL_PENDING_MAX; i++)
        rk_event_destroy(nccl->pending[i].event);
    rk_device_free(nccl->device, nccl->barrier);
}

static struct rk_nccl_world *world_new(struct rk_comm_world *world, const struct rk_comm_world_config *config)
{
    struct rk_nccl_world *nccl = rk_calloc(1, sizeof(*nccl));
    pthread_condattr_t attr;

    nccl->world = world;
    nccl->device = config->device;
    nccl->connect_ns = config->connect_timeout_ms * NS_PER_MS;
    nccl->progress_ns = config->progress_timeout_ms * NS_PER_MS;
    nccl->collective_ns = config->collective_timeout_ms * NS_PER_MS;
    nccl->should_stop = config->should_stop;
    nccl->user = config->user;
    nccl->left_ns = rk_calloc((size_t)world->size, sizeof(*nccl->left_ns));
    RK_ASSERT(pthread_mutex_init(&nccl->call_lock, NULL) == 0);
    RK_ASSERT(pthread_mutex_init(&nccl->pending_lock, NULL) == 0);
    RK_ASSERT(pthread_mutex_init(&nccl->guard_lock, NULL) == 0);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    RK_ASSERT(pthread_cond_init(&nccl->wakes_guard, &attr) == 0);
    pthread_condattr_destroy(&attr);
    return nccl;
}

/* Call after the guard has ended and the communicators are released. */
static void world_free(struct rk_nccl_world *nccl)
{
    struct rk_nccl_group *group = atomic_load(&nccl->groups);

    while (group) {
        struct rk_nccl_group *next = group->next;

        rk_device_free(nccl->device, group->scratch);
        rk_free(group);
        group = next;
    }
    destroy_on_device(nccl);
    rk_comm_world_destroy(nccl->control);
    pthread_cond_destroy(&nccl->wakes_guard);
    pthread_mutex_destroy(&nccl->guard_lock);
    pthread_mutex_destroy(&nccl->pending_lock);
    pthread_mutex_destroy(&nccl->call_lock);
    rk_free(nccl->left_ns);
    rk_free(nccl);
}

/* The guard destroys the communicators, so that this thread does not block when they cannot end. */
static void take_down(struct rk_nccl_world *nccl)
{
    bool has_ended = true;

    if (nccl->has_guard) {
        rk_nccl_guard_abort(nccl);
        has_ended = rk_nccl_guard_stop(nccl);
    } else {
        rk_nccl_abort_comms(nccl);
    }
    if (has_ended) {
        world_free(nccl);
        return;
    }
    nccl->world->is_lost = true;
    RK_ERROR("NCCL abort did not end in time; its resources leak until the process exits");
}

/* NCCL's environment variables override the configuration of a call. */
static struct rk_status *check_environment(void)
{
    const char *blocking = rk_env("NCCL_COMM_BLOCKING");

    if (!blocking)
        return NULL;
    return RK_FAIL(RK_FAILED_PRECONDITION,
                   "NCCL_COMM_BLOCKING=%s is set, expected it to be unset: a world needs a non-blocking "
                   "communicator, and groups need blocking ones; remove it from the environment",
                   blocking);
}

static struct rk_status *world_create(struct rk_comm_world *world, void *endpoint,
                                      const struct rk_comm_world_config *config)
{
    struct rk_comm_world_config net_config = *config;
    struct rk_nccl_world *nccl;
    struct rk_status *st;

    if (!config->device) {
        rk_comm_endpoint_close(endpoint);
        return RK_FAIL(RK_INVALID_ARGUMENT, "collectives 'nccl' need a device, device is missing");
    }
    nccl = world_new(world, config);
    net_config.struct_size = sizeof(net_config);
    net_config.device = NULL; /* the peer network sends host memory */
    world->impl = nccl;
    RK_TRY_GOTO(st, rk_comm_world_create(&nccl->control, endpoint, &net_config), out);
    if (world->size == 1)
        return NULL;
    RK_TRY_GOTO(st, check_environment(), out);
    RK_TRY_GOTO(st, rk_nccl_api_get(&nccl->api), out);
    RK_TRY_GOTO(st, create_on_device(nccl), out);
    RK_TRY_GOTO(st, rk_nccl_guard_start(nccl), out);
    RK_TRY_GOTO(st, join(nccl), out);
    rk_device_set_watch(nccl->device, check_device, world);
    return NULL;

out:
    if (nccl->control) /* sends the reason to the peers */
        rk_comm_world_fail(nccl->control, rk_status_clone(st));
    take_down(nccl);
    return st;
}

/* An NCCL operation ends on a rank as soon as its own part is done, while peers may still read its buffers.
 * So the ranks of a healthy world leave together: a rank that is done announces it and waits up to GOODBYE_MS
 * for the others. */
static void say_goodbye(struct rk_nccl_world *nccl)
{
    int64_t deadline_ns = rk_time_now_ns() + GOODBYE_MS * NS_PER_MS;
    bool is_alone = false;

    while (!rk_nccl_pending_is_empty(nccl) && rk_time_now_ns() < deadline_ns)
        rk_time_sleep_ms(POLL_MS);
    rk_comm_control_leave(nccl->control);
    deadline_ns = rk_time_now_ns() + GOODBYE_MS * NS_PER_MS;
    while (!is_alone && rk_time_now_ns() < deadline_ns && !atomic_load(&nccl->world->has_failed)) {
        is_alone = true;
        for (int32_t r = 0; r < nccl->world->size; r++)
            is_alone = is_alone && (r == nccl->world->rank || rk_comm_control_has_left(nccl->control, r));
        if (!is_alone)
            rk_time_sleep_ms(POLL_MS);
    }
}

static void world_destroy(struct rk_comm_world *world)
{
    struct rk_nccl_world *nccl = world->impl;

    if (nccl->has_guard) {
        rk_device_set_watch(nccl->device, NULL, NULL);
        if (!atomic_load(&world->has_failed))
            say_goodbye(nccl);
    }
    take_down(nccl);
}

static void world_abort(struct rk_comm_world *world, const struct rk_status *error)
{
    struct rk_nccl_world *nccl = world->impl;

    rk_comm_world_fail(nccl->control, rk_status_clone(error));
    rk_nccl_guard_abort(nccl);
}

/* --- groups --- */

/* Collective over the world. Makes nccl->child, NULL for NO_COLOR. */
static struct rk_status *split(struct rk_nccl_world *nccl, int color, int key)
{
    struct rk_nccl_config config = RK_NCCL_CONFIG_INITIALIZER;
    rk_nccl_result_t result = RK_NCCL_INVALID_USAGE;

    config.blocking = 1;
    config.split_share = 0; /* operations of several groups are in flight together */
    RK_ASSERT(pthread_mutex_lock(&nccl->call_lock) == 0);
    if (!atomic_load(&nccl->is_down))
        result = nccl->api->comm_split(nccl->comm, color, key, &nccl->child, &config);
    RK_ASSERT(pthread_mutex_unlock(&nccl->call_lock) == 0);
    return wait_ready(nccl, result, "ncclCommSplit");
}

/* NCCL connects a communicator when an algorithm, chosen by size, is first used. At creation all members are
 * present; in the middle of a step the connect would wait for the slowest rank and allocate memory. */
static struct rk_status *warm_up(struct rk_comm_group *group)
{
    static const int64_t counts[] = {1, 1 << 14, WARM_UP_BYTES / sizeof(float)};
    struct rk_nccl_world *nccl = group->world->impl;
    int64_t part = counts[RK_ARRAY_LEN(counts) - 1] / group->size;
    struct rk_stream *stream = NULL;
    void *data = NULL;
    rk_tensor_t all, mine;
    struct rk_status *st;

    RK_TRY(rk_device_alloc(nccl->device, &data, WARM_UP_BYTES, "warm-up of the collectives"));
    RK_TRY_GOTO(st, rk_stream_create(&stream, nccl->device, "warm-up"), out);
    for (size_t i = 0; i < RK_ARRAY_LEN(counts); i++)
        RK_TRY_GOTO(
            st, rk_nccl_all_reduce(group, stream, rk_tensor_1d(data, RK_DTYPE_F32, counts[i]), RK_REDUCE_SUM),
            out);
    all = rk_tensor_1d(data, RK_DTYPE_F32, part * group->size);
    mine = rk_tensor_1d((float *)data + part * group->rank, RK_DTYPE_F32, part);
    RK_TRY_GOTO(st, rk_nccl_reduce_scatter(group, stream, mine, all, RK_REDUCE_SUM), out);
    RK_TRY_GOTO(st, rk_nccl_all_gather(group, stream, all, mine), out);
    RK_TRY_GOTO(st, rk_nccl_broadcast(group, stream, mine, 0), out);
    st = rk_stream_sync(stream);

out:
    rk_stream_destroy(stream);
    rk_device_free(nccl->device, data);
    return st;
}

/* Moves the child into a group, unless the world has been aborted meanwhile: then it is aborted too. */
static struct rk_nccl_group *adopt(struct rk_nccl_world *nccl)
{
    struct rk_nccl_group *impl = rk_calloc(1, sizeof(*impl));

    RK_ASSERT(pthread_mutex_lock(&nccl->call_lock) == 0);
    if (!atomic_load(&nccl->is_down)) {
        impl->comm = nccl->child;
        nccl->child = NULL;
    }
    impl->next = atomic_load(&nccl->groups);
    atomic_store(&nccl->groups, impl);
    RK_ASSERT(pthread_mutex_unlock(&nccl->call_lock) == 0);
    return impl;
}

static struct rk_status *group_create(struct rk_comm_group *group)
{
    struct rk_nccl_world *nccl = group->world->impl;
    uint64_t free_bytes = rk_device_free_bytes(nccl->device);

    if (nccl->world->size == 1)
        return NULL;
    if (group->size == 1)
        return split(nccl, RK_NCCL_NO_COLOR, 0);
    /* The first member's rank is the color: members share it, and no other group has it. */
    RK_TRY(split(nccl, group->world_ranks[0], group->rank));
    group->impl = adopt(nccl);
    RK_TRY(warm_up(group));
    RK_INFO("communicator made group=%s ranks=%d device_bytes=%" PRId64, group->name, group->size,
            (int64_t)(free_bytes - rk_device_free_bytes(nccl->device)));
    return NULL;
}

/* A rank outside of all groups takes part in the split. */
static struct rk_status *group_skip(struct rk_comm_world *world)
{
    return split(world->impl, RK_NCCL_NO_COLOR, 0);
}

static void group_destroy(struct rk_comm_group *group)
{
    rk_nccl_pending_drop(group->world->impl, group);
}

const struct rk_comm_ops rk_comm_nccl_ops = {
    .name = "nccl",
    .abi = RK_COMM_ABI,
    .caps = RK_COMM_CAP_DEVICE_MEMORY,
    .endpoint_open = endpoint_open,
    .endpoint_close = endpoint_close,
    .make_id = make_id,
    .world_create = world_create,
    .world_destroy = world_destroy,
    .world_abort = world_abort,
    .world_poll = world_poll,
    .world_activity = world_activity,
    .group_create = group_create,
    .group_skip = group_skip,
    .group_destroy = group_destroy,
    .reserve_ordered_sum = rk_nccl_reserve_ordered_sum,
    .ordered_sum_bytes = rk_nccl_ordered_sum_bytes,
    .all_reduce = rk_nccl_all_reduce,
    .all_gather = rk_nccl_all_gather,
    .reduce_scatter = rk_nccl_reduce_scatter,
    .broadcast = rk_nccl_broadcast,
    .all_to_all = rk_nccl_all_to_all,
    .batch = rk_nccl_batch,
    .barrier = rk_nccl_barrier,
    .graph_launch = rk_nccl_graph_launch,
};
