/* The device of dry runs: allocations are addresses without memory; operators only record the workspace that
 * they would need, and reject arguments that the backend would reject. Host memory is real, because code
 * writes and reads it. */
#include "kernels/device_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "kernels/rk_kernels.h"

/* Alignment that rk_device_alloc guarantees. */
#define ALIGNMENT 256
/* First address. No process can map memory there, so an access faults. */
#define FIRST_ADDRESS ((uintptr_t)1 << 56)
/* More than any device has, and far from overflow. */
#define MEMORY_BYTES ((uint64_t)1 << 55)

struct rk_dry_device {
    const struct rk_workspace_ops *workspace_ops; /* NULL: unknown */
    const struct rk_limit_ops *limit_ops;         /* NULL: unknown */
    const void *like;                             /* a device handle for them */
    struct rk_workspace workspace;                /* maximum so far */
    uintptr_t next;                               /* address of the next allocation */
};

void *rk_dry_device_create(const struct rk_kernel_ops *kernels, const void *like)
{
    struct rk_dry_device *dev = rk_calloc(1, sizeof(*dev));

    dev->workspace_ops = kernels ? kernels->workspace : NULL;
    dev->limit_ops = kernels ? kernels->limits : NULL;
    dev->like = like;
    dev->next = FIRST_ADDRESS;
    return dev;
}

struct rk_workspace rk_dry_device_workspace(const void *handle)
{
    return ((const struct rk_dry_device *)handle)->workspace;
}

static void note(struct rk_dry_device *dev, struct rk_workspace need)
{
    dev->workspace.scratch_bytes = RK_MAX(dev->workspace.scratch_bytes, need.scratch_bytes);
    dev->workspace.kept_bytes = RK_MAX(dev->workspace.kept_bytes, need.kept_bytes);
}

#define X(op, args_type)                                                                        \
    static struct rk_status *dry_##op(void *handle, void *stream, const struct args_type *args) \
    {                                                                                           \
        struct rk_dry_device *dev = handle;                                                     \
                                                                                                \
        (void)stream;                                                                           \
        if (dev->limit_ops && dev->limit_ops->op)                                               \
            RK_TRY(dev->limit_ops->op(dev->like, args));                                        \
        if (dev->workspace_ops && dev->workspace_ops->op)                                       \
            note(dev, dev->workspace_ops->op(dev->like, args));                                 \
        return NULL;                                                                            \
    }
RK_KERNEL_TABLE(X)
#undef X

static void dry_close(void *handle)
{
    rk_free(handle);
}

static struct rk_status *dry_get_info(void *handle, struct rk_device_info *out)
{
    (void)handle;
    *out = (struct rk_device_info){.name = "plan", .uuid = "plan", .memory_total_bytes = MEMORY_BYTES};
    return NULL;
}

static struct rk_status *dry_alloc(void *handle, void **out, size_t bytes)
{
    struct rk_dry_device *dev = handle;

    RK_ASSERT(bytes <= MEMORY_BYTES); /* guaranteed by the wrapper's limit */
    *out = (void *)dev->next;
    dev->next += rk_round_up(RK_MAX(bytes, (size_t)1), ALIGNMENT);
    return NULL;
}

static void dry_free(void *handle, void *ptr)
{
    (void)handle;
    (void)ptr;
}

static struct rk_status *dry_range_reserve(void *handle, void **out, size_t bytes)
{
    struct rk_dry_device *dev = handle;

    dev->next = rk_round_up(dev->next, RK_RANGE_GRANULE);
    return dry_alloc(handle, out, bytes);
}

static struct rk_status *dry_range_change(void *handle, void *range, size_t bytes)
{
    (void)handle;
    (void)range;
    (void)bytes;
    return NULL;
}

static void dry_range_free(void *handle, void *range, size_t bytes)
{
    (void)handle;
    (void)range;
    (void)bytes;
}

static struct rk_status *dry_host_alloc(void *handle, void **out, size_t bytes)
{
    (void)handle;
    return rk_try_alloc(out, RK_MAX(bytes, (size_t)1), "host memory of a dry run");
}

static void dry_host_free(void *handle, void *ptr)
{
    (void)handle;
    rk_free(ptr);
}

static struct rk_status *dry_stream_create(void *handle, void **out, const char *name)
{
    (void)name;
    *out = handle; /* streams have no state */
    return NULL;
}

static void dry_stream_destroy(void *handle, void *stream)
{
    (void)handle;
    (void)stream;
}

/* Copies from device memory give zeros. */
static struct rk_status *dry_copy(void *handle, void *stream, void *dst, const void *src, size_t bytes,
                                  rk_copy_kind_t kind)
{
    (void)handle;
    (void)stream;
    (void)src;
    if (kind == RK_COPY_D2H)
        memset(dst, 0, bytes);
    return NULL;
}

static struct rk_status *dry_zero(void *handle, void *stream, void *dst, size_t bytes)
{
    (void)handle;
    (void)stream;
    (void)dst;
    (void)bytes;
    return NULL;
}

static struct rk_status *dry_stream_sync(void *handle, void *stream)
{
    (void)handle;
    (void)stream;
    return NULL;
}

static const struct rk_kernel_ops dry_kernel_ops = {.name = "plan",
                                                    .abi = RK_KERNEL_ABI,
#define X(op, args_type) .op = dry_##op,
                                                    RK_KERNEL_TABLE(X)
#undef X
};

/* Without `open`: no name selects it; rk_device_open_dry creates the handle. */
const struct rk_device_ops rk_dry_device_ops = {
    .name = "plan",
    .abi = RK_DEVICE_ABI,
    .kernels = &dry_kernel_ops,
    .close = dry_close,
    .get_info = dry_get_info,
    .alloc = dry_alloc,
    .free = dry_free,
    .host_alloc = dry_host_alloc,
    .host_free = dry_host_free,
    .stream_create = dry_stream_create,
    .stream_destroy = dry_stream_destroy,
    .copy = dry_copy,
    .zero = dry_zero,
    .stream_sync = dry_stream_sync,
    .range_reserve = dry_range_reserve,
    .range_commit = dry_range_change,
    .range_release = dry_range_change,
    .range_free = dry_range_free,
};
