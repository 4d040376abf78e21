/* The host as a device: memory from the heap, streams that execute calls immediately. */
#include "kernels/device_internal.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_host_memory.h"
#include "kernels/cpu/cpu_internal.h"

#include <cblas.h>
#include <omp.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Alignment that rk_device_alloc guarantees; also a multiple of any cache line and vector register. */
#define ALIGNMENT 256

static struct rk_status *cpu_open(void **out, int index, const struct rk_device_config *config)
{
    struct rk_cpu_device *dev;

    if (index != 0)
        return RK_FAIL(RK_NOT_FOUND, "cpu:%d does not exist, the host is one device: cpu", index);
    dev = rk_calloc(1, sizeof(*dev));
    dev->num_threads = config->num_threads > 0 ? config->num_threads : omp_get_num_procs();
    openblas_set_num_threads(1); /* gemm.c divides the work */
    *out = dev;
    return NULL;
}

static void cpu_close(void *handle)
{
    struct rk_cpu_device *dev = handle;

    rk_free(dev->scratch);
    rk_free(dev);
}

static struct rk_status *cpu_get_info(void *handle, struct rk_device_info *out)
{
    (void)handle;
    *out = (struct rk_device_info){.name = "cpu", .model = "cpu"};
    if (gethostname(out->uuid, sizeof(out->uuid) - 1) != 0)
        snprintf(out->uuid, sizeof(out->uuid), "localhost");
    out->memory_total_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    rk_host_memory_domain("", out->memory_domain);
    return NULL;
}

_Static_assert(RK_DEVICE_DOMAIN_BYTES >= RK_HOST_MEMORY_DOMAIN_BYTES, "the name of the host's memory fits");

/* Original address of an allocation; stored before the aligned address. */
struct heap_block {
    void *raw;
    size_t bytes;
};

static struct rk_status *cpu_alloc(void *handle, void **out, size_t bytes)
{
    struct rk_cpu_device *dev = handle;
    struct heap_block block;
    char *aligned;

    if (!rk_add_size(bytes, ALIGNMENT + sizeof(block), &block.bytes))
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "%zu bytes exceed the address space", bytes);
    RK_TRY(rk_try_alloc(&block.raw, block.bytes, "device memory"));
    aligned = (char *)rk_round_up((uintptr_t)block.raw + sizeof(block), ALIGNMENT);
    memcpy(aligned - sizeof(block), &block, sizeof(block));
    dev->allocated_bytes += block.bytes;
    *out = aligned;
    return NULL;
}

static void cpu_free(void *handle, void *ptr)
{
    struct rk_cpu_device *dev = handle;
    struct heap_block block;

    memcpy(&block, (char *)ptr - sizeof(block), sizeof(block));
    dev->allocated_bytes -= block.bytes;
    rk_free(block.raw);
}

/* The host counts pages that were allocated and never written as free; they are not available. */
static struct rk_status *cpu_get_free(void *handle, uint64_t *out_bytes)
{
    const struct rk_cpu_device *dev = handle;
    uint64_t free_bytes = rk_host_free_bytes(""), touched = rk_host_resident_bytes("");
    uint64_t untouched = dev->allocated_bytes - RK_MIN(touched, dev->allocated_bytes);

    *out_bytes = free_bytes - RK_MIN(untouched, free_bytes);
    return NULL;
}

/* --- ranges: pages without access (PROT_NONE) until they are committed --- */

static struct rk_status *no_pages(const char *call, size_t bytes)
{
    return RK_FAIL(RK_RESOURCE_EXHAUSTED, "%s of %zu bytes: %s", call, bytes, strerror(errno));
}

static struct rk_status *cpu_range_reserve(void *handle, void **out, size_t bytes)
{
    size_t wide = bytes + RK_RANGE_GRANULE;
    char *raw = mmap(NULL, wide, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char *aligned;

    (void)handle;
    if (raw == MAP_FAILED)
        return no_pages("mmap", wide);
    aligned = (char *)rk_round_up((uintptr_t)raw, RK_RANGE_GRANULE);
    if (aligned > raw)
        (void)munmap(raw, (size_t)(aligned - raw));
    if (aligned + bytes < raw + wide)
        (void)munmap(aligned + bytes, (size_t)(raw + wide - (aligned + bytes)));
    *out = aligned;
    return NULL;
}

static struct rk_status *cpu_range_commit(void *handle, void *range, size_t bytes)
{
    struct rk_cpu_device *dev = handle;

    if (mprotect(range, bytes, PROT_READ | PROT_WRITE) != 0)
        return no_pages("mprotect", bytes);
    dev->allocated_bytes += bytes;
    return NULL;
}

/* The next commit returns zeroed pages. */
static struct rk_status *cpu_range_release(void *handle, void *range, size_t bytes)
{
    struct rk_cpu_device *dev = handle;

    if (madvise(range, bytes, MADV_DONTNEED) != 0 || mprotect(range, bytes, PROT_NONE) != 0)
        return no_pages("madvise", bytes);
    dev->allocated_bytes -= bytes;
    return NULL;
}

static void cpu_range_free(void *handle, void *range, size_t bytes)
{
    (void)handle;
    (void)munmap(range, bytes);
}

/* Streams have no state: every call is complete when it returns. The handle is the device's, only to be
 * non-NULL. */
static struct rk_status *cpu_stream_create(void *handle, void **out, const char *name)
{
    (void)name;
    *out = handle;
    return NULL;
}

static void cpu_stream_destroy(void *handle, void *stream)
{
    (void)handle;
    (void)stream;
}

static struct rk_status *cpu_copy(void *handle, void *stream, void *dst, const void *src, size_t bytes,
                                  rk_copy_kind_t kind)
{
    (void)handle;
    (void)stream;
    (void)kind;
    memmove(dst, src, bytes);
    return NULL;
}

static struct rk_status *cpu_zero(void *handle, void *stream, void *dst, size_t bytes)
{
    (void)handle;
    (void)stream;
    memset(dst, 0, bytes);
    return NULL;
}

static struct rk_status *cpu_stream_sync(void *handle, void *stream)
{
    (void)handle;
    (void)stream;
    return NULL;
}

struct rk_status *rk_cpu_scratch_reserve(struct rk_cpu_device *dev, int64_t count)
{
    size_t bytes;
    void *grown;

    RK_ASSERT(count >= 0);
    count = RK_MAX(count, 1); /* so that the pointer is not NULL */
    if (count <= dev->scratch_per_thread)
        return NULL;
    if (!rk_mul_size((size_t)count, sizeof(double), &bytes) ||
        !rk_mul_size(bytes, (size_t)dev->num_threads, &bytes))
        return RK_FAIL_REASON(RK_RESOURCE_EXHAUSTED, "DEVICE_OOM",
                              "kernel scratch of %lld elements for %d threads", (long long)count,
                              dev->num_threads);
    RK_TRY(rk_try_alloc(&grown, bytes, "kernel scratch"));
    rk_free(dev->scratch);
    dev->scratch = grown;
    dev->scratch_per_thread = count;
    dev->num_allocations++;
    return NULL;
}

double *rk_cpu_scratch(const struct rk_cpu_device *dev)
{
    return dev->scratch + omp_get_thread_num() * dev->scratch_per_thread;
}

/* About 50 microseconds of one thread: to wake threads that sleep takes 10 to 20. */
#define PARALLEL_WORK 32768.0

int rk_cpu_num_threads(const struct rk_cpu_device *dev, double work)
{
    return work >= PARALLEL_WORK ? dev->num_threads : 1;
}

static void cpu_get_own(const void *handle, uint64_t *out_bytes, uint64_t *out_num_allocations)
{
    const struct rk_cpu_device *dev = handle;

    *out_bytes = (uint64_t)dev->num_threads * (uint64_t)dev->scratch_per_thread * sizeof(double);
    *out_num_allocations = dev->num_allocations;
}

const struct rk_device_ops rk_cpu_device_ops = {
    .name = "cpu",
    .abi = RK_DEVICE_ABI,
    .collectives = "cpu",
    .kernels = &rk_cpu_kernel_ops,
    .open = cpu_open,
    .close = cpu_close,
    .get_info = cpu_get_info,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .host_alloc = cpu_alloc,
    .host_free = cpu_free,
    .stream_create = cpu_stream_create,
    .stream_destroy = cpu_stream_destroy,
    .copy = cpu_copy,
    .zero = cpu_zero,
    .stream_sync = cpu_stream_sync,
    .get_free = cpu_get_free,
    .get_own = cpu_get_own,
    .range_reserve = cpu_range_reserve,
    .range_commit = cpu_range_commit,
    .range_release = cpu_range_release,
    .range_free = cpu_range_free,
};
