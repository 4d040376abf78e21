/* The table of device backends: "cpu" is built in, plug-ins add theirs. Not thread-safe, like the devices. */
#include "kernels/device_internal.h"

#include "base/rk_assert.h"
#include "base/rk_str.h"
#include "kernels/rk_kernels.h"

#include <limits.h>
#include <string.h>

/* Upper bound on backends in one process. */
#define MAX_BACKENDS 8

static const struct rk_device_ops *backends[MAX_BACKENDS] = {&rk_cpu_device_ops};
static int num_backends = 1;

static const struct rk_device_ops *find_by_name(const char *name, size_t name_bytes)
{
    for (int i = 0; i < num_backends; i++) {
        if (strlen(backends[i]->name) == name_bytes && memcmp(backends[i]->name, name, name_bytes) == 0)
            return backends[i];
    }
    return NULL;
}

static struct rk_status *unknown_backend(const char *device_name)
{
    struct rk_str known = {0};
    struct rk_status *st;

    for (int i = 0; i < num_backends; i++)
        rk_str_appendf(&known, "%s%s", i ? ", " : "", backends[i]->name);
    st = RK_FAIL(RK_NOT_FOUND, "device '%s': no such backend, expected one of: %s", device_name,
                 rk_str_text(&known));
    rk_str_fini(&known);
    return st;
}

struct rk_status *rk_device_ops_find(const struct rk_device_ops **out, int *index, const char *device_name)
{
    const char *colon = strchr(device_name, ':');
    size_t name_bytes = colon ? (size_t)(colon - device_name) : strlen(device_name);
    int64_t number = 0;

    *out = NULL;
    *index = 0;
    if (colon && (!rk_parse_i64(colon + 1, &number) || number < 0 || number > INT_MAX))
        return RK_FAIL(RK_INVALID_ARGUMENT, "device '%s': expected NAME or NAME:INDEX", device_name);
    *out = find_by_name(device_name, name_bytes);
    if (!*out)
        return unknown_backend(device_name);
    *index = (int)number;
    return NULL;
}

/* The first required entry that is NULL in a backend's table, or NULL. */
static const char *missing_entry(const struct rk_device_ops *ops)
{
#define REQUIRE(table, entry) \
    if (!(table)->entry)      \
        return #entry;
    REQUIRE(ops, collectives)
    REQUIRE(ops, kernels)
    REQUIRE(ops, open)
    REQUIRE(ops, close)
    REQUIRE(ops, get_info)
    REQUIRE(ops, alloc)
    REQUIRE(ops, free)
    REQUIRE(ops, host_alloc)
    REQUIRE(ops, host_free)
    REQUIRE(ops, stream_create)
    REQUIRE(ops, stream_destroy)
    REQUIRE(ops, copy)
    REQUIRE(ops, zero)
    REQUIRE(ops, stream_sync)
#define X(op, args_type) REQUIRE(ops->kernels, op)
    RK_KERNEL_TABLE(X)
#undef X
#undef REQUIRE
    return NULL;
}

struct rk_status *rk_device_register(const struct rk_device_ops *ops)
{
    const char *missing;

    RK_ASSERT(ops);
    RK_ASSERT(ops->name);
    if (ops->abi != RK_DEVICE_ABI)
        return RK_FAIL(RK_FAILED_PRECONDITION, "device backend '%s' has abi=%u, expected %d", ops->name,
                       ops->abi, RK_DEVICE_ABI);
    if (ops->kernels && ops->kernels->abi != RK_KERNEL_ABI)
        return RK_FAIL(RK_FAILED_PRECONDITION, "kernels of device backend '%s' have abi=%u, expected %d",
                       ops->name, ops->kernels->abi, RK_KERNEL_ABI);
    missing = missing_entry(ops);
    if (missing)
        return RK_FAIL(RK_FAILED_PRECONDITION, "device backend '%s' lacks the required entry '%s'", ops->name,
                       missing);
    if (find_by_name(ops->name, strlen(ops->name)))
        return RK_FAIL(RK_ALREADY_EXISTS, "device backend '%s' is registered already", ops->name);
    if (num_backends == MAX_BACKENDS)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "device backend '%s': too many backends, expected at most %d",
                       ops->name, MAX_BACKENDS);
    backends[num_backends++] = ops;
    return NULL;
}
