/* Common code of both directions of the norm. */
#ifndef RK_RMSNORM_CUH
#define RK_RMSNORM_CUH

#include "kernels/cuda/cuda_common.cuh"

struct norm_shape {
    int64_t num_rows, hidden_size;
    bool aligned; /* all rows of all tensors */
};

/* Number of threads for a row of that many packs, `per_thread` each. */
static inline int norm_threads(int64_t hidden_size, int per_thread)
{
    int64_t packs = rk_ceil_div(hidden_size, RK_TILE_PACK);

    return (int)(rk_ceil_div(rk_ceil_div(packs, per_thread), 32) * 32);
}

static inline bool norm_is_wide(int64_t hidden_size)
{
    return norm_threads(hidden_size, 1) > RK_TILE_NORM_THREADS_MAX;
}

static inline struct rk_status *norm_check(const char *op, struct norm_shape shape)
{
    if (norm_threads(shape.hidden_size, RK_TILE_NORM_PACKS_MAX) > RK_TILE_NORM_THREADS_MAX)
        return RK_FAIL(RK_UNIMPLEMENTED, "%s: hidden_size=%lld, this backend supports at most %d", op,
                       (long long)shape.hidden_size,
                       RK_TILE_NORM_THREADS_MAX * RK_TILE_NORM_PACKS_MAX * RK_TILE_PACK);
    return rk_check_grid(op, shape.num_rows);
}

#endif
