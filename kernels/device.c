/* The wrapper around a device backend: opening, closing and properties. Live objects are counted in
 * device_memory.c, device_stream.c, device_event.c and device_graph.c. Backends see only valid calls. */
#include "kernels/rk_device.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_log.h"
#include "kernels/device_internal.h"

#include <string.h>
#include <unistd.h>

/* Before the device is opened: the process that holds it may use all of its memory, and an out-of-memory
 * error would not name that process. */
static struct rk_status *lock(struct rk_device *device, int index)
{
    char uuid[RK_DEVICE_UUID_BYTES];

    if (!device->ops->get_uuid)
        return NULL;
    RK_TRY(device->ops->get_uuid(index, uuid));
    return rk_device_lock_take(&device->lock_fd, uuid);
}

static void unlock(struct rk_device *device)
{
    if (device->lock_fd >= 0)
        close(device->lock_fd);
}

struct rk_status *rk_device_open(struct rk_device **out, const struct rk_device_config *config)
{
    struct rk_device_config known = {0};
    const struct rk_device_ops *ops;
    struct rk_device *device;
    struct rk_status *st = NULL;
    int index;

    RK_ASSERT(out);
    RK_ASSERT(config);
    *out = NULL;
    memcpy(&known, config, RK_MIN(config->struct_size, sizeof(known)));
    if (!known.name)
        return RK_FAIL(RK_INVALID_ARGUMENT, "device name is missing, expected NAME or NAME:INDEX");
    if (known.num_threads < 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "device '%s': num_threads=%d, expected 0 (all cores) or more",
                       known.name, known.num_threads);
    RK_TRY(rk_device_ops_find(&ops, &index, known.name));

    device = rk_calloc(1, sizeof(*device));
    device->ops = ops;
    device->lock_fd = -1;
    if (known.is_exclusive)
        RK_TRY_GOTO(st, lock(device, index), fail);
    RK_TRY_GOTO(st, ops->open(&device->handle, index, &known), fail);
    RK_TRY_GOTO(st, ops->get_info(device->handle, &device->info), fail);
    device->limit_bytes = device->info.memory_total_bytes;
    if (known.memory_limit_bytes > 0)
        device->limit_bytes = RK_MIN(device->limit_bytes, known.memory_limit_bytes);
    *out = device;
    return NULL;

fail:
    if (device->handle)
        ops->close(device->handle);
    unlock(device);
    rk_free(device);
    return RK_WRAP(st, "opening device '%s'", known.name);
}

struct rk_status *rk_device_open_dry(struct rk_device **out, const struct rk_device *like)
{
    struct rk_device *device = rk_calloc(1, sizeof(*device));

    device->ops = &rk_dry_device_ops;
    device->lock_fd = -1;
    device->handle =
        like ? rk_dry_device_create(like->ops->kernels, like->handle) : rk_dry_device_create(NULL, NULL);
    *out = device;
    RK_TRY(device->ops->get_info(device->handle, &device->info));
    device->limit_bytes = device->info.memory_total_bytes;
    return NULL;
}

bool rk_device_is_dry(const struct rk_device *device)
{
    return device->ops == &rk_dry_device_ops;
}

struct rk_workspace rk_device_dry_workspace(const struct rk_device *dry)
{
    RK_ASSERT(dry->ops == &rk_dry_device_ops);
    return rk_dry_device_workspace(dry->handle);
}

void rk_device_close(struct rk_device *device)
{
    bool leaked;

    if (!device)
        return;
    leaked = device->live || device->num_streams || device->num_events || device->num_graphs;
    if (device->num_streams || device->num_events || device->num_graphs)
        RK_ERROR("device closed with live objects device=%s streams=%lld events=%lld graphs=%lld",
                 device->info.name, (long long)device->num_streams, (long long)device->num_events,
                 (long long)device->num_graphs);
    rk_device_memory_close(device);
    RK_DCHECK(!leaked);
    device->ops->close(device->handle);
    unlock(device);
    rk_free(device);
}

struct rk_device_info rk_device_get_info(const struct rk_device *device)
{
    return device->info;
}

struct rk_device_stats rk_device_get_stats(const struct rk_device *device)
{
    struct rk_device_stats stats = device->stats;
    uint64_t num_own = 0;

    if (device->ops->get_own)
        device->ops->get_own(device->handle, &stats.own_bytes, &num_own);
    stats.num_allocations += num_own;
    return stats;
}

const char *rk_device_collectives(const struct rk_device *device)
{
    return device->ops->collectives;
}

void rk_device_set_watch(struct rk_device *device, struct rk_status *(*fn)(void *user), void *user)
{
    device->watch = fn;
    device->watch_user = user;
}

void rk_device_reset_peak(struct rk_device *device)
{
    device->stats.peak_bytes = device->stats.allocated_bytes;
}

bool rk_device_is_async(const struct rk_device *device)
{
    return device->ops->event_create != NULL;
}

struct rk_status *rk_device_check(struct rk_device *device)
{
    return device->ops->check ? device->ops->check(device->handle) : NULL;
}

void *rk_device_handle(const struct rk_device *device)
{
    return device->handle;
}

void rk_device_set_trace(struct rk_device *device, struct rk_trace *trace)
{
    device->trace = trace;
}

struct rk_trace *rk_device_trace(const struct rk_device *device)
{
    return device->trace;
}

struct rk_status *rk_device_use(struct rk_device *device)
{
    return device->ops->use ? device->ops->use(device->handle) : NULL;
}
