/* Address ranges of a GPU: CUDA's virtual memory management, a driver API, whose functions are looked up at
 * run time like the rest of the driver. */
#include "kernels/cuda/cuda_internal.h"

#include <cuda.h>
#include <string.h>

#include "base/rk_alloc.h"

/* Version of these signatures: unchanged since CUDA 10.2. */
#define DRIVER_VERSION 10020

#define DRIVER_CALLS(X)    \
    X(cuMemAddressReserve) \
    X(cuMemAddressFree)    \
    X(cuMemCreate)         \
    X(cuMemRelease)        \
    X(cuMemMap)            \
    X(cuMemUnmap)          \
    X(cuMemSetAccess)      \
    X(cuMemGetAllocationGranularity)

struct rk_cuda_vmm {
#define X(name) __typeof__(&name) name;
    DRIVER_CALLS(X)
#undef X
};

static struct rk_status *driver_status(CUresult result, const char *call)
{
    if (result == CUDA_SUCCESS)
        return NULL;
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return rk_cuda_no_memory();
    return RK_FAIL(RK_INTERNAL, "%s: driver error %d", call, (int)result);
}

#define DRIVER(vmm, name, ...) RK_TRY(driver_status((vmm)->name(__VA_ARGS__), #name))

static struct rk_status *find_call(void *out, size_t bytes, const char *name)
{
    enum cudaDriverEntryPointQueryResult found;
    void *entry = NULL;

    RK_CUDA(cudaGetDriverEntryPointByVersion(name, &entry, DRIVER_VERSION, cudaEnableDefault, &found));
    if (!entry || found != cudaDriverEntryPointSuccess)
        return RK_FAIL(RK_UNIMPLEMENTED, "the NVIDIA driver has no function %s; update it", name);
    memcpy(out, &entry, bytes);
    return NULL;
}

static CUmemAllocationProp properties_of(const struct rk_cuda_device *dev)
{
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = dev->index},
    };
}

static struct rk_status *check_granule(const struct rk_cuda_device *dev, const struct rk_cuda_vmm *vmm)
{
    CUmemAllocationProp prop = properties_of(dev);
    size_t granule;

    DRIVER(vmm, cuMemGetAllocationGranularity, &granule, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (RK_RANGE_GRANULE % granule != 0)
        return RK_FAIL(RK_UNIMPLEMENTED,
                       "the GPU maps memory in pieces of %zu bytes, expected a divisor of %zu", granule,
                       RK_RANGE_GRANULE);
    return NULL;
}

static struct rk_status *fill_vmm(const struct rk_cuda_device *dev, struct rk_cuda_vmm *vmm)
{
#define X(name) RK_TRY(find_call(&vmm->name, sizeof(vmm->name), #name));
    DRIVER_CALLS(X)
#undef X
    return check_granule(dev, vmm);
}

static struct rk_status *open_vmm(struct rk_cuda_device *dev)
{
    struct rk_cuda_vmm *vmm;
    struct rk_status *st;

    if (dev->vmm)
        return NULL;
    vmm = rk_calloc(1, sizeof(*vmm));
    st = fill_vmm(dev, vmm);
    if (st)
        rk_free(vmm);
    else
        dev->vmm = vmm;
    return st;
}

struct rk_status *rk_cuda_range_reserve(void *handle, void **out, size_t bytes)
{
    struct rk_cuda_device *dev = handle;
    CUdeviceptr address;

    RK_TRY(open_vmm(dev));
    DRIVER(dev->vmm, cuMemAddressReserve, &address, bytes, RK_RANGE_GRANULE, 0, 0);
    *out = (void *)(uintptr_t)address;
    return NULL;
}

/* The mapping keeps the memory alive: the handle is not needed afterwards. */
static struct rk_status *map(const struct rk_cuda_device *dev, CUdeviceptr address, size_t bytes)
{
    const struct rk_cuda_vmm *vmm = dev->vmm;
    CUmemAllocationProp prop = properties_of(dev);
    CUmemGenericAllocationHandle memory;
    CUresult result;

    DRIVER(vmm, cuMemCreate, &memory, bytes, &prop, 0);
    result = vmm->cuMemMap(address, bytes, 0, memory, 0);
    RK_TRY(driver_status(vmm->cuMemRelease(memory), "cuMemRelease"));
    return driver_status(result, "cuMemMap");
}

static struct rk_status *make_usable(const struct rk_cuda_device *dev, CUdeviceptr address, size_t bytes)
{
    CUmemAccessDesc access = {.location = properties_of(dev).location,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

    DRIVER(dev->vmm, cuMemSetAccess, address, bytes, &access, 1);
    return rk_cuda_zero_now((void *)(uintptr_t)address, bytes);
}

struct rk_status *rk_cuda_range_commit(void *handle, void *range, size_t bytes)
{
    const struct rk_cuda_device *dev = handle;
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)range;
    struct rk_status *st;

    RK_TRY(map(dev, address, bytes));
    st = make_usable(dev, address, bytes);
    if (st)
        (void)dev->vmm->cuMemUnmap(address, bytes);
    return st;
}

struct rk_status *rk_cuda_range_release(void *handle, void *range, size_t bytes)
{
    const struct rk_cuda_device *dev = handle;

    DRIVER(dev->vmm, cuMemUnmap, (CUdeviceptr)(uintptr_t)range, bytes);
    return NULL;
}

void rk_cuda_range_free(void *handle, void *range, size_t bytes)
{
    const struct rk_cuda_device *dev = handle;

    (void)dev->vmm->cuMemAddressFree((CUdeviceptr)(uintptr_t)range, bytes);
}
