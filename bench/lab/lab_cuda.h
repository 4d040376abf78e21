/* Common code of programs that call kernels without the engine. */
#ifndef RK_BENCH_LAB_CUDA_H
#define RK_BENCH_LAB_CUDA_H

#include "bench/lab/lab.h"

#include <string.h>

#include "base/rk_rng.h"
#include "kernels/cuda/gemm/gemm_small.h"

static inline void must(cudaError_t error)
{
    check(rk_cuda_status(error, "cuda"));
}

/* Normal numbers in bf16, the same on every call. */
static inline void fill_bf16(uint16_t *out, int count, float scale)
{
    struct rk_rng rng;

    rk_rng_init(&rng, 7, 1);
    for (int i = 0; i < count; i++) {
        float value = (float)rk_rng_next_normal(&rng) * scale;
        uint32_t bits;

        memcpy(&bits, &value, sizeof(bits));
        out[i] = (uint16_t)(bits >> 16);
    }
}

/* Opens the first GPU. */
static inline void open_device(struct rk_cuda_device **dev, struct rk_cuda_stream **stream)
{
    const struct rk_device_config config = {.struct_size = sizeof(config), .name = "cuda:0"};
    void *handle;

    check(rk_cuda_device_ops.open(&handle, 0, &config));
    *dev = handle;
    check(rk_cuda_device_ops.stream_create(*dev, &handle, "bench"));
    *stream = handle;
}

#endif
