/* Endpoints and worlds, the part common to all backends: checks the configuration, keeps the first error, and
 * records the operation of the engine thread for other threads.
 *
 * Every error (of an operation or a connection, or an abort requested by a thread) goes to
 * rk_comm_world_fail(). It keeps the first one and sends it to the peers; later ones are dropped.
 */
#include "engine/comm/comm.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_log.h"

#define CONNECT_TIMEOUT_MS    120000
#define PROGRESS_TIMEOUT_MS   5000
#define COLLECTIVE_TIMEOUT_MS 600000

struct rk_comm_endpoint {
    const struct rk_comm_ops *ops;
    void *impl;
    char address[RK_COMM_ADDRESS_BYTES];
    bool has_id;
    uint8_t id[RK_COMM_ID_BYTES];
};

/* --- endpoints --- */

struct rk_status *rk_comm_endpoint_open(struct rk_comm_endpoint **out,
                                        const struct rk_comm_endpoint_config *config)
{
    struct rk_comm_endpoint_config known = {0};
    struct rk_comm_endpoint *endpoint;
    const struct rk_comm_ops *ops;
    struct rk_status *st;

    RK_ASSERT(out);
    RK_ASSERT(config);
    *out = NULL;
    memcpy(&known, config, RK_MIN(config->struct_size, sizeof(known)));
    if (!known.backend)
        return RK_FAIL(RK_INVALID_ARGUMENT, "name of the collective backend is missing");
    RK_TRY(rk_comm_find_backend(&ops, known.backend));

    endpoint = rk_calloc(1, sizeof(*endpoint));
    endpoint->ops = ops;
    RK_TRY_GOTO(st, ops->endpoint_open(&endpoint->impl, &known, endpoint->address), out);
    if (known.make_id) {
        RK_TRY_GOTO(st, ops->make_id(endpoint->id), out);
        endpoint->has_id = true;
    }
    *out = endpoint;
    return NULL;

out:
    rk_comm_endpoint_close(endpoint);
    return st;
}

/* Releases everything but the backend's part. */
static void endpoint_free(struct rk_comm_endpoint *endpoint)
{
    explicit_bzero(endpoint->id, sizeof(endpoint->id));
    rk_free(endpoint);
}

void rk_comm_endpoint_close(struct rk_comm_endpoint *endpoint)
{
    if (!endpoint)
        return;
    if (endpoint->impl)
        endpoint->ops->endpoint_close(endpoint->impl);
    endpoint_free(endpoint);
}

const char *rk_comm_endpoint_address(const struct rk_comm_endpoint *endpoint)
{
    return endpoint->address;
}

const uint8_t *rk_comm_endpoint_id(const struct rk_comm_endpoint *endpoint)
{
    return endpoint->has_id ? endpoint->id : NULL;
}

/* --- worlds --- */

/* Returns errors instead of asserting: the configuration comes from the driver. */
static struct rk_status *check_world_config(const struct rk_comm_ops *ops,
                                            const struct rk_comm_world_config *config)
{
    struct rk_device_info info;

    if (config->world_size < 1 || config->world_size > RK_MESH_MAX_RANKS)
        return RK_FAIL(RK_INVALID_ARGUMENT, "world_size=%d, expected 1 to %d", config->world_size,
                       RK_MESH_MAX_RANKS);
    if (config->rank < 0 || config->rank >= config->world_size)
        return RK_FAIL(RK_INVALID_ARGUMENT, "rank=%d, expected 0 to %d", config->rank,
                       config->world_size - 1);
    if (!config->id)
        return RK_FAIL(RK_INVALID_ARGUMENT, "the id of the world is missing");
    if (config->connect_timeout_ms < 0 || config->progress_timeout_ms < 0 ||
        config->collective_timeout_ms < 0)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "connect_timeout_ms=%" PRId64 " progress_timeout_ms=%" PRId64
                       " collective_timeout_ms=%" PRId64 ", expected 0 (default) or more",
                       config->connect_timeout_ms, config->progress_timeout_ms,
                       config->collective_timeout_ms);
    if (!config->device || config->world_size == 1 || (ops->caps & RK_COMM_CAP_DEVICE_MEMORY))
        return NULL; /* a world of one rank moves no data */
    info = rk_device_get_info(config->device);
    if (strcmp(rk_device_collectives(config->device), ops->name) != 0)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "collectives '%s' support host memory only, expected device 'cpu', device is '%s'",
                       ops->name, info.name);
    return NULL;
}

static void world_free(struct rk_comm_world *world)
{
    if (world->is_lost)
        return;
    rk_status_free(world->error);
    pthread_mutex_destroy(&world->error_lock);
    pthread_mutex_destroy(&world->activity_lock);
    rk_free(world);
}

static struct rk_comm_world *world_new(const struct rk_comm_ops *ops, int32_t rank, int32_t world_size)
{
    struct rk_comm_world *world = rk_calloc(1, sizeof(*world));

    world->ops = ops;
    world->rank = rank;
    world->size = world_size;
    RK_ASSERT(pthread_mutex_init(&world->error_lock, NULL) == 0);
    RK_ASSERT(pthread_mutex_init(&world->activity_lock, NULL) == 0);
    return world;
}

struct rk_comm_world *rk_comm_world_create_dry(int32_t rank, int32_t world_size)
{
    RK_ASSERT(rank >= 0);
    RK_ASSERT(rank < world_size);
    return world_new(&rk_comm_dry_ops, rank, world_size);
}

struct rk_status *rk_comm_world_create(struct rk_comm_world **out, struct rk_comm_endpoint *endpoint,
                                       const struct rk_comm_world_config *config)
{
    struct rk_comm_world_config known = {0};
    struct rk_comm_world *world;
    struct rk_status *st;
    void *impl;

    RK_ASSERT(out);
    RK_ASSERT(endpoint);
    RK_ASSERT(config);
    *out = NULL;
    memcpy(&known, config, RK_MIN(config->struct_size, sizeof(known)));
    st = check_world_config(endpoint->ops, &known);
    if (st) {
        rk_comm_endpoint_close(endpoint);
        return st;
    }
    known.connect_timeout_ms = known.connect_timeout_ms ? known.connect_timeout_ms : CONNECT_TIMEOUT_MS;
    known.progress_timeout_ms = known.progress_timeout_ms ? known.progress_timeout_ms : PROGRESS_TIMEOUT_MS;
    known.collective_timeout_ms =
        known.collective_timeout_ms ? known.collective_timeout_ms : COLLECTIVE_TIMEOUT_MS;

    world = world_new(endpoint->ops, known.rank, known.world_size);
    impl = endpoint->impl;
    endpoint_free(endpoint);
    st = world->ops->world_create(world, impl, &known);
    if (st) {
        world_free(world);
        return RK_WRAP(st, "rank %d of %d", known.rank, known.world_size);
    }
    *out = world;
    return NULL;
}

void rk_comm_world_destroy(struct rk_comm_world *world)
{
    if (!world)
        return;
    RK_ASSERT(!world->groups);
    RK_ASSERT(!world->shared);
    world->ops->world_destroy(world);
    world_free(world);
}

int32_t rk_comm_world_rank(const struct rk_comm_world *world)
{
    return world->rank;
}

int32_t rk_comm_world_size(const struct rk_comm_world *world)
{
    return world->size;
}

void rk_comm_world_fail(struct rk_comm_world *world, struct rk_status *error)
{
    bool is_first;

    RK_ASSERT(error);
    RK_ASSERT(pthread_mutex_lock(&world->error_lock) == 0);
    is_first = !world->error;
    if (is_first)
        world->error = error;
    RK_ASSERT(pthread_mutex_unlock(&world->error_lock) == 0);
    if (!is_first) {
        rk_status_free(error);
        return;
    }
    atomic_store(&world->has_failed, true);
    RK_WARN("aborting all collectives: %s", rk_status_message(error));
    world->ops->world_abort(world, error);
}

struct rk_status *rk_comm_world_error(struct rk_comm_world *world)
{
    struct rk_status *copy;

    RK_ASSERT(pthread_mutex_lock(&world->error_lock) == 0);
    copy = world->error ? rk_status_clone(world->error) : NULL;
    RK_ASSERT(pthread_mutex_unlock(&world->error_lock) == 0);
    return copy;
}

static struct rk_status *aborted(const struct rk_comm_world *world, const char *reason)
{
    struct rk_comm_activity activity;

    rk_comm_world_activity(world, &activity);
    return RK_FAIL_REASON(RK_ABORTED, "COMM_ABORTED", "rank %d aborted%s%s: %s", world->rank,
                          activity.in_operation ? " during " : "", activity.in_operation ? activity.name : "",
                          reason);
}

void rk_comm_world_abort(struct rk_comm_world *world, const char *reason)
{
    rk_comm_world_fail(world, aborted(world, reason));
}

void rk_comm_world_give_up(struct rk_comm_world *world, const char *reason)
{
    rk_comm_world_fail(world, rk_status_blame(aborted(world, reason), world->rank));
}

struct rk_status *rk_comm_world_check(struct rk_comm_world *world)
{
    if (!atomic_load(&world->has_failed) && world->ops->world_poll)
        world->ops->world_poll(world);
    return rk_comm_world_error(world);
}

void rk_comm_world_activity(const struct rk_comm_world *world, struct rk_comm_activity *out)
{
    /* The lock is not part of the logical value, so a const world can be locked. */
    pthread_mutex_t *lock = (pthread_mutex_t *)&world->activity_lock;

    RK_ASSERT(pthread_mutex_lock(lock) == 0);
    *out = (struct rk_comm_activity){
        .seq = world->activity_seq, .in_operation = world->in_operation, .started_ns = world->started_ns};
    if (world->activity_seq > 0)
        rk_comm_doing_text(&world->doing, world->doing_group, out->name);
    RK_ASSERT(pthread_mutex_unlock(lock) == 0);
    if (world->ops->world_activity)
        world->ops->world_activity(world, out);
}

_Static_assert(RK_COMM_STATS_ROWS == RK_COMM_OP_COUNT, "one row per operation");

void rk_comm_world_stats(const struct rk_comm_world *world, struct rk_comm_stats *out)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&world->activity_lock; /* as in rk_comm_world_activity */

    RK_ASSERT(pthread_mutex_lock(lock) == 0);
    out->has_times = !world->ops->world_activity;
    for (int op = 0; op < RK_COMM_OP_COUNT; op++) {
        out->rows[op].name = rk_comm_op_name((rk_comm_op_t)op);
        out->rows[op].count = world->op_counts[op];
        out->rows[op].bytes = world->op_bytes[op];
        out->rows[op].ns = world->op_ns[op];
    }
    RK_ASSERT(pthread_mutex_unlock(lock) == 0);
}

const char *rk_comm_world_group_name(const struct rk_comm_world *world, uint32_t tag,
                                     char buf[RK_COMM_NAME_BYTES])
{
    snprintf(buf, RK_COMM_NAME_BYTES, "#%" PRIu32, tag);
    for (const struct rk_comm_group *group = world->groups; group; group = group->next) {
        if (group->tag == tag)
            snprintf(buf, RK_COMM_NAME_BYTES, "%s", group->name);
    }
    return buf;
}
