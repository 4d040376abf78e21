/* The table of collective backends: "cpu" is built in, plug-ins add theirs. Engine thread only. */
#include "engine/comm/comm.h"

#include <string.h>

#include "base/rk_assert.h"
#include "base/rk_str.h"

/* Upper bound on backends in one process. */
#define MAX_BACKENDS 8

static const struct rk_comm_ops *backends[MAX_BACKENDS] = {&rk_comm_cpu_ops};
static int num_backends = 1;

static const struct rk_comm_ops *find_by_name(const char *name)
{
    for (int i = 0; i < num_backends; i++) {
        if (strcmp(backends[i]->name, name) == 0)
            return backends[i];
    }
    return NULL;
}

struct rk_status *rk_comm_find_backend(const struct rk_comm_ops **out, const char *name)
{
    struct rk_str known = {0};
    struct rk_status *st;

    *out = find_by_name(name);
    if (*out)
        return NULL;
    for (int i = 0; i < num_backends; i++)
        rk_str_appendf(&known, "%s%s", i ? ", " : "", backends[i]->name);
    st = RK_FAIL(RK_NOT_FOUND, "collectives '%s': no such backend, expected one of: %s", name,
                 rk_str_text(&known));
    rk_str_fini(&known);
    return st;
}

/* The first required entry that is NULL in a backend's table, or NULL. */
static const char *missing_entry(const struct rk_comm_ops *ops)
{
#define REQUIRE(entry) \
    if (!ops->entry)   \
        return #entry;
    REQUIRE(endpoint_open)
    REQUIRE(endpoint_close)
    REQUIRE(make_id)
    REQUIRE(world_create)
    REQUIRE(world_destroy)
    REQUIRE(world_abort)
    REQUIRE(all_reduce)
    REQUIRE(all_gather)
    REQUIRE(reduce_scatter)
    REQUIRE(broadcast)
    REQUIRE(all_to_all)
    REQUIRE(batch)
    REQUIRE(barrier)
#undef REQUIRE
    return NULL;
}

struct rk_status *rk_comm_register(const struct rk_comm_ops *ops)
{
    const char *missing;

    RK_ASSERT(ops);
    RK_ASSERT(ops->name);
    if (ops->abi != RK_COMM_ABI)
        return RK_FAIL(RK_FAILED_PRECONDITION, "collectives '%s' have abi=%u, expected %d", ops->name,
                       ops->abi, RK_COMM_ABI);
    missing = missing_entry(ops);
    if (missing)
        return RK_FAIL(RK_FAILED_PRECONDITION, "collectives '%s' lack the required entry '%s'", ops->name,
                       missing);
    if (find_by_name(ops->name))
        return RK_FAIL(RK_ALREADY_EXISTS, "collectives '%s' are registered already", ops->name);
    if (num_backends == MAX_BACKENDS)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "collectives '%s': too many backends, expected at most %d",
                       ops->name, MAX_BACKENDS);
    backends[num_backends++] = ops;
    return NULL;
}
