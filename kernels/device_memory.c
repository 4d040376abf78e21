/* Memory of a device: the list of live allocations, so that a leak is reported with its name, the bytes in
 * use, and the bytes left. */
#include "kernels/rk_device.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_log.h"
#include "kernels/device_internal.h"

#include <string.h>

typedef enum memory_kind { MEMORY_DEVICE, MEMORY_HOST, MEMORY_RANGE } memory_kind_t;

/* One live allocation; the list is newest first, because short-lived memory is freed first. */
struct rk_allocation {
    struct rk_allocation *next;
    void *ptr;
    size_t bytes;
    memory_kind_t kind;
    bool is_committed; /* of a range */
    char what[48];     /* for messages: truncated copy of the caller's name */
};

static void count_returned(struct rk_device *device, size_t bytes)
{
    RK_ASSERT(device->stats.allocated_bytes >= bytes);
    device->stats.allocated_bytes -= bytes;
}

static struct rk_status *release(struct rk_device *device, struct rk_allocation *range)
{
    if (!range->is_committed)
        return NULL;
    RK_TRY(device->ops->range_release(device->handle, range->ptr, range->bytes));
    range->is_committed = false;
    count_returned(device, range->bytes);
    return NULL;
}

static void free_range(struct rk_device *device, struct rk_allocation *range)
{
    struct rk_status *st = release(device, range);

    if (!st)
        device->ops->range_free(device->handle, range->ptr, range->bytes);
    else
        RK_WARN("address range not released device=%s what=\"%s\" bytes=%zu error=\"%s\"", device->info.name,
                range->what, range->bytes, rk_status_message(st));
    rk_status_free(st);
}

static void free_memory(struct rk_device *device, struct rk_allocation *alloc)
{
    switch (alloc->kind) {
    case MEMORY_DEVICE:
        count_returned(device, alloc->bytes);
        device->ops->free(device->handle, alloc->ptr);
        break;
    case MEMORY_HOST:
        device->stats.host_bytes -= alloc->bytes;
        device->ops->host_free(device->handle, alloc->ptr);
        break;
    case MEMORY_RANGE:
        free_range(device, alloc);
        break;
    }
    rk_free(alloc);
}

void rk_device_memory_close(struct rk_device *device)
{
    while (device->live) {
        struct rk_allocation *alloc = device->live;

        device->live = alloc->next;
        RK_ERROR("device memory leaked device=%s what=\"%s\" bytes=%zu", device->info.name, alloc->what,
                 alloc->bytes);
        free_memory(device, alloc);
    }
}

/* Bytes left below the limit, which includes the operators' memory. */
static uint64_t get_room(const struct rk_device *device, uint64_t limit_bytes)
{
    struct rk_device_stats stats = rk_device_get_stats(device);
    uint64_t taken = stats.allocated_bytes + stats.own_bytes;

    return taken < limit_bytes ? limit_bytes - taken : 0;
}

/* Free memory according to the backend, which accounts for other processes. */
static uint64_t free_below(const struct rk_device *device, uint64_t limit_bytes)
{
    uint64_t below_limit = get_room(device, limit_bytes), left = below_limit;

    if (device->ops->get_free) {
        struct rk_status *st = device->ops->get_free(device->handle, &left);

        RK_IGNORE(st, "the limit is a sufficient estimate");
    }
    return RK_MIN(left, below_limit);
}

uint64_t rk_device_free_bytes(const struct rk_device *device)
{
    return free_below(device, device->limit_bytes);
}

uint64_t rk_device_shared_free_bytes(const struct rk_device *device)
{
    return free_below(device, device->info.memory_total_bytes);
}

static void remember(struct rk_device *device, void *ptr, size_t bytes, memory_kind_t kind, const char *what)
{
    struct rk_allocation *alloc = rk_calloc(1, sizeof(*alloc));

    alloc->ptr = ptr;
    alloc->bytes = bytes;
    alloc->kind = kind;
    strncpy(alloc->what, what, sizeof(alloc->what) - 1);
    alloc->next = device->live;
    device->live = alloc;
    device->stats.num_allocations++;
}

/* The entry of the list that points to the allocation. */
static struct rk_allocation **find(struct rk_device *device, const void *ptr, bool is_host)
{
    struct rk_allocation **link = &device->live;

    while (*link && ((*link)->ptr != ptr || ((*link)->kind == MEMORY_HOST) != is_host))
        link = &(*link)->next;
    RK_ASSERT(*link); /* the pointer is not from this device, or was freed before */
    return link;
}

static void forget(struct rk_device *device, void *ptr, bool is_host)
{
    struct rk_allocation **link = find(device, ptr, is_host);
    struct rk_allocation *alloc = *link;

    *link = alloc->next;
    free_memory(device, alloc);
}

/* `detail` is the backend's message, which accounts for other processes on the device; "" when it was not
 * called. */
static struct rk_status *out_of_memory(const struct rk_device *device, size_t bytes, const char *what,
                                       const char *detail)
{
    return RK_FAIL_REASON(RK_RESOURCE_EXHAUSTED, "DEVICE_OOM",
                          "%s: %zu bytes requested on device '%s', %llu free of %llu%s%s", what, bytes,
                          device->info.name, (unsigned long long)rk_device_free_bytes(device),
                          (unsigned long long)device->limit_bytes, *detail ? ": " : "", detail);
}

/* Allocates memory at `*out`, or, for a range, commits its memory. */
static struct rk_status *take(struct rk_device *device, void **out, size_t bytes, memory_kind_t kind,
                              const char *what)
{
    const struct rk_device_ops *ops = device->ops;
    struct rk_device_stats *stats = &device->stats;
    struct rk_status *st, *oom;

    if (bytes > get_room(device, device->limit_bytes))
        return out_of_memory(device, bytes, what, "");
    st = kind == MEMORY_RANGE ? ops->range_commit(device->handle, *out, bytes)
                              : ops->alloc(device->handle, out, bytes);
    if (rk_status_code(st) == RK_RESOURCE_EXHAUSTED) {
        oom = out_of_memory(device, bytes, what, rk_status_message(st));
        rk_status_free(st);
        return oom;
    }
    if (st)
        return RK_WRAP(st, "%s: allocating %zu bytes on device '%s'", what, bytes, device->info.name);
    stats->allocated_bytes += bytes;
    stats->peak_bytes = RK_MAX(stats->peak_bytes, stats->allocated_bytes);
    return NULL;
}

struct rk_status *rk_device_alloc(struct rk_device *device, void **out, size_t bytes, const char *what)
{
    RK_ASSERT(what);
    *out = NULL;
    RK_TRY(take(device, out, bytes, MEMORY_DEVICE, what));
    remember(device, *out, bytes, MEMORY_DEVICE, what);
    return NULL;
}

struct rk_status *rk_device_reserve(struct rk_device *device, void **out, size_t bytes, const char *what)
{
    struct rk_status *st;

    RK_ASSERT(what);
    *out = NULL;
    if (!device->ops->range_reserve)
        return RK_FAIL(RK_UNIMPLEMENTED, "device '%s' has no address ranges", device->info.name);
    if (bytes > SIZE_MAX - RK_RANGE_GRANULE)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "%s: %zu bytes exceed the address space", what, bytes);
    bytes = rk_round_up(RK_MAX(bytes, (size_t)1), RK_RANGE_GRANULE);
    st = device->ops->range_reserve(device->handle, out, bytes);
    if (st)
        return RK_WRAP(st, "%s: reserving %zu bytes of addresses on device '%s'", what, bytes,
                       device->info.name);
    remember(device, *out, bytes, MEMORY_RANGE, what);
    return NULL;
}

static struct rk_allocation *find_range(struct rk_device *device, const void *range)
{
    struct rk_allocation *alloc = *find(device, range, false);

    RK_ASSERT(alloc->kind == MEMORY_RANGE);
    return alloc;
}

struct rk_status *rk_device_commit(struct rk_device *device, void *range)
{
    struct rk_allocation *alloc = find_range(device, range);

    if (alloc->is_committed)
        return NULL;
    RK_TRY(take(device, &range, alloc->bytes, MEMORY_RANGE, alloc->what));
    alloc->is_committed = true;
    return NULL;
}

struct rk_status *rk_device_release(struct rk_device *device, void *range)
{
    return release(device, find_range(device, range));
}

void rk_device_free(struct rk_device *device, void *ptr)
{
    if (ptr)
        forget(device, ptr, false);
}

struct rk_status *rk_device_host_alloc(struct rk_device *device, void **out, size_t bytes, const char *what)
{
    struct rk_status *st;

    RK_ASSERT(what);
    *out = NULL;
    st = device->ops->host_alloc(device->handle, out, bytes);
    if (st)
        return RK_WRAP(st, "%s: host memory of device '%s'", what, device->info.name);
    device->stats.host_bytes += bytes;
    remember(device, *out, bytes, MEMORY_HOST, what);
    return NULL;
}

void rk_device_host_free(struct rk_device *device, void *ptr)
{
    if (ptr)
        forget(device, ptr, true);
}
