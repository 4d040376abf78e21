/* The launchers of attn.h: select the kernel of a call. The choice depends only on dtype, shape and GPU, and
 * kernels of one definition (attn.h) give bit-identical results. */
#include "kernels/cuda/attention/attn.h"

#include "kernels/cuda/attention/attn_common.cuh"
#include "kernels/cuda/attention/attn_internal.cuh"

namespace
{

/* Query rows of a sequence, on average, up to which the decode kernels run. */
constexpr int DECODE_ROWS_PER_SEQ = 64;

bool has_wgmma_kernel(const rk_cuda_attn_device &device, int head_dim, int v_head_dim)
{
    bool is_equal = head_dim == v_head_dim && (head_dim == 64 || head_dim == 128);

    return device.has_sm90a && (is_equal || (head_dim == 192 && v_head_dim == 128));
}

/* Both passes use the tensor kernel, or neither: forward and backward share the definition of the arithmetic.
 */
bool has_tensor_kernel(const rk_cuda_attn_device &device, rk_dtype_t dtype, int head_dim, int v_head_dim)
{
    int fwd_bytes = rk_attn_fwd_mma_shared_bytes(head_dim),
        bwd_bytes = rk_attn_bwd_mma_shared_bytes(head_dim);

    if (dtype != RK_DTYPE_BF16 || head_dim != v_head_dim)
        return dtype == RK_DTYPE_BF16 && has_wgmma_kernel(device, head_dim, v_head_dim);
    return fwd_bytes > 0 && RK_MAX(fwd_bytes, bwd_bytes) <= device.max_shared_bytes;
}

/* Over a cache. EQUAL: both widths are equal, with kernels for decoding and for prefill. */
enum paged_kind { PAGED_SIMPLE, PAGED_EQUAL, PAGED_WIDE_KEYS, PAGED_LATENT };

paged_kind kind_of(const rk_cuda_attn_paged_args *args)
{
    if (rk_attn_latent_takes(args))
        return PAGED_LATENT;
    if (!has_tensor_kernel(args->device, args->dtype, args->head_dim, args->v_head_dim))
        return PAGED_SIMPLE;
    if (args->head_dim == args->v_head_dim)
        return PAGED_EQUAL;
    return args->v_row_stride == args->v_head_dim ? PAGED_WIDE_KEYS : PAGED_SIMPLE;
}

bool fwd_is_aligned(const rk_cuda_attn_args *args)
{
    return attn_is_aligned(args->q, args->q_stride) && attn_is_aligned(args->k, args->k_stride) &&
           attn_is_aligned(args->v, args->v_stride) && attn_is_aligned(args->out, args->out_stride);
}

} // namespace

cudaError_t rk_cuda_attn_fwd(cudaStream_t stream, const struct rk_cuda_attn_args *args)
{
    if (args->head_dim > ATTN_MAX_HEAD_DIM || args->v_head_dim > ATTN_MAX_V_HEAD_DIM)
        return cudaErrorNotSupported;
    if (args->num_tokens == 0 || args->num_keys == 0)
        return cudaSuccess;
    if (!has_tensor_kernel(args->device, args->dtype, args->head_dim, args->v_head_dim))
        return rk_attn_fwd_simple(stream, args);
    if (!fwd_is_aligned(args))
        return cudaErrorMisalignedAddress;
    if (has_wgmma_kernel(args->device, args->head_dim, args->v_head_dim))
        return rk_attn_fwd_wgmma(stream, args);
    return rk_attn_fwd_mma(stream, args);
}

cudaError_t rk_cuda_attn_bwd(cudaStream_t stream, const struct rk_cuda_attn_bwd_args *args)
{
    if (args->fwd.head_dim > ATTN_MAX_BWD_HEAD_DIM || args->fwd.v_head_dim > ATTN_MAX_BWD_HEAD_DIM)
        return cudaErrorNotSupported;
    if (args->fwd.num_tokens == 0 || args->fwd.num_keys == 0)
        return rk_attn_bwd_zero_keys(stream, args);
    if (!has_tensor_kernel(args->fwd.device, args->fwd.dtype, args->fwd.head_dim, args->fwd.v_head_dim))
        return rk_attn_bwd_simple(stream, args);
    if (!fwd_is_aligned(&args->fwd) || !attn_is_aligned(args->dout, args->dout_stride) ||
        !attn_is_aligned(args->dq, args->dq_stride) || !attn_is_aligned(args->dk, args->dk_stride) ||
        !attn_is_aligned(args->dv, args->dv_stride))
        return cudaErrorMisalignedAddress;
    if (has_wgmma_kernel(args->fwd.device, args->fwd.head_dim, args->fwd.v_head_dim))
        return rk_attn_bwd_wgmma(stream, args);
    return rk_attn_bwd_mma(stream, args);
}

/* A decode tile has 16 query rows of a kv head, a prefill tile 128 rows of a head: with more than a few tiles
 * per sequence, prefill reads the keys fewer times. */
static int fewest_seqs_to_decode(const rk_cuda_attn_paged_args *args)
{
    int64_t num_rows = (int64_t)args->num_tokens * (args->num_heads / args->num_kv_heads);

    return (int)((num_rows + DECODE_ROWS_PER_SEQ - 1) / DECODE_ROWS_PER_SEQ);
}

static bool is_decode(const rk_cuda_attn_paged_args *args)
{
    return args->num_seqs >= fewest_seqs_to_decode(args) && rk_attn_decode_fits(args);
}

/* Whether Hopper's TMA can copy a key block as that many cache blocks. */
static bool can_copy_cache(const rk_cuda_attn_paged_args *args)
{
    return has_wgmma_kernel(args->device, args->head_dim, args->v_head_dim) && args->block_size >= 8 &&
           ATTN_KEY_BLOCK % args->block_size == 0;
}

static cudaError_t run_equal(cudaStream_t stream, const rk_cuda_attn_paged_args *args)
{
    if (can_copy_cache(args))
        return is_decode(args) ? rk_attn_decode_tma(stream, args) : rk_attn_paged_wgmma(stream, args);
    return is_decode(args) ? rk_attn_decode(stream, args) : rk_attn_paged_mma(stream, args);
}

cudaError_t rk_cuda_attn_paged(cudaStream_t stream, const struct rk_cuda_attn_paged_args *args)
{
    paged_kind kind = kind_of(args);

    if (args->head_dim > ATTN_MAX_HEAD_DIM || args->v_head_dim > ATTN_MAX_V_HEAD_DIM)
        return cudaErrorNotSupported;
    if (args->num_tokens == 0)
        return cudaSuccess;
    if (kind == PAGED_SIMPLE)
        return rk_attn_paged_simple(stream, args);
    if (!attn_is_aligned(args->q, args->q_stride) || !attn_is_aligned(args->out, args->out_stride) ||
        !attn_is_aligned(args->k_cache, args->cache_block_stride) ||
        !attn_is_aligned(args->v_cache, args->v_cache_block_stride))
        return cudaErrorMisalignedAddress;
    if (kind == PAGED_LATENT)
        return rk_attn_latent(stream, args);
    if (kind == PAGED_EQUAL)
        return run_equal(stream, args);
    return can_copy_cache(args) ? rk_attn_paged_wgmma(stream, args) : cudaErrorNotSupported;
}

size_t rk_cuda_attn_paged_workspace_bytes(const struct rk_cuda_attn_paged_args *args)
{
    paged_kind kind = kind_of(args);

    if (kind == PAGED_LATENT)
        return rk_attn_latent_workspace_bytes(args);
    return kind == PAGED_EQUAL && is_decode(args) ? rk_attn_decode_workspace_bytes(args) : 0;
}

size_t rk_cuda_attn_paged_max_workspace_bytes(const struct rk_cuda_attn_paged_args *args)
{
    rk_cuda_attn_paged_args step = *args;
    size_t bytes = 0;

    if (kind_of(args) == PAGED_LATENT)
        return rk_attn_latent_max_workspace_bytes(args);
    /* The workspace grows with the number of tokens: searches down from the largest, with the fewest
     * sequences for which the call is a decode step. */
    for (; step.num_tokens > 0 && bytes == 0; step.num_tokens--) {
        step.num_seqs = fewest_seqs_to_decode(&step);
        if (step.num_seqs <= args->num_seqs)
            bytes = rk_cuda_attn_paged_workspace_bytes(&step);
    }
    return bytes;
}
