/* The launchers of attn.h: which kernel a call takes. The choice depends on dtype, shape and chip only, and
 * among kernels of one definition (attn.h) it changes no bits. */
#include "kernels/cuda/attn.h"

#include "kernels/cuda/attn_common.cuh"
#include "kernels/cuda/attn_internal.cuh"

namespace
{

bool has_tensor_kernel(rk_dtype_t dtype, int head_dim)
{
    return dtype == RK_DTYPE_BF16 && (head_dim == 32 || head_dim == 64 || head_dim == 80 || head_dim == 96 ||
                                      head_dim == 128 || head_dim == 256);
}

bool has_wgmma_kernel(const rk_cuda_attn_device &device, int head_dim)
{
    return device.compute_capability == 90 && (head_dim == 64 || head_dim == 128);
}

bool fwd_is_aligned(const rk_cuda_attn_args *args)
{
    return attn_is_aligned(args->q, args->q_stride) && attn_is_aligned(args->k, args->k_stride) &&
           attn_is_aligned(args->v, args->v_stride) && attn_is_aligned(args->out, args->out_stride);
}

} // namespace

cudaError_t rk_cuda_attn_fwd(cudaStream_t stream, const struct rk_cuda_attn_args *args)
{
    if (args->head_dim > 256)
        return cudaErrorNotSupported;
    if (args->num_tokens == 0)
        return cudaSuccess;
    if (!has_tensor_kernel(args->dtype, args->head_dim))
        return rk_attn_fwd_simple(stream, args);
    if (!fwd_is_aligned(args))
        return cudaErrorMisalignedAddress;
    if (has_wgmma_kernel(args->device, args->head_dim))
        return rk_attn_fwd_wgmma(stream, args);
    return rk_attn_fwd_mma(stream, args);
}

cudaError_t rk_cuda_attn_bwd(cudaStream_t stream, const struct rk_cuda_attn_bwd_args *args)
{
    if (args->fwd.head_dim > 256)
        return cudaErrorNotSupported;
    if (args->fwd.num_tokens == 0)
        return cudaSuccess;
    if (!has_tensor_kernel(args->fwd.dtype, args->fwd.head_dim))
        return rk_attn_bwd_simple(stream, args);
    if (!fwd_is_aligned(&args->fwd) || !attn_is_aligned(args->dout, args->dout_stride) ||
        !attn_is_aligned(args->dq, args->dq_stride) || !attn_is_aligned(args->dk, args->dk_stride) ||
        !attn_is_aligned(args->dv, args->dv_stride))
        return cudaErrorMisalignedAddress;
    if (has_wgmma_kernel(args->fwd.device, args->fwd.head_dim))
        return rk_attn_bwd_wgmma(stream, args);
    return rk_attn_bwd_mma(stream, args);
}

/* A tile of decode holds 16 query rows of a kv head, one of prefill 128 of a head: beyond a few tiles a
 * sequence, prefill's reads the keys less often. */
static bool is_decode(const rk_cuda_attn_paged_args *args)
{
    int group = args->num_heads / args->num_kv_heads;

    return (int64_t)args->num_tokens * group <= (int64_t)64 * args->num_seqs && rk_attn_decode_fits(args);
}

/* Whether Hopper's copy engine can fetch a key block as so many cache blocks. */
static bool can_copy_cache(const rk_cuda_attn_paged_args *args)
{
    return has_wgmma_kernel(args->device, args->head_dim) && args->block_size >= 8 &&
           ATTN_KEY_BLOCK % args->block_size == 0;
}

cudaError_t rk_cuda_attn_paged(cudaStream_t stream, const struct rk_cuda_attn_paged_args *args)
{
    if (args->head_dim > 256)
        return cudaErrorNotSupported;
    if (args->num_tokens == 0)
        return cudaSuccess;
    if (!has_tensor_kernel(args->dtype, args->head_dim))
        return rk_attn_paged_simple(stream, args);
    if (!attn_is_aligned(args->q, args->q_stride) || !attn_is_aligned(args->out, args->out_stride) ||
        !attn_is_aligned(args->k_cache, args->cache_block_stride) ||
        !attn_is_aligned(args->v_cache, args->cache_block_stride))
        return cudaErrorMisalignedAddress;
    if (can_copy_cache(args))
        return is_decode(args) ? rk_attn_decode_tma(stream, args) : rk_attn_paged_wgmma(stream, args);
    return is_decode(args) ? rk_attn_decode(stream, args) : rk_attn_paged_mma(stream, args);
}

size_t rk_cuda_attn_paged_workspace_bytes(const struct rk_cuda_attn_paged_args *args)
{
    return has_tensor_kernel(args->dtype, args->head_dim) && is_decode(args)
               ? rk_attn_decode_workspace_bytes(args)
               : 0;
}
