/* Private to the attention files: the launchers that those of attn.h select from (attn.cu). Each returns the
 * launch error, or cudaErrorNotSupported for an unsupported head_dim. */
#ifndef RK_CUDA_ATTN_INTERNAL_CUH
#define RK_CUDA_ATTN_INTERNAL_CUH

#include "kernels/cuda/attention/attn.h"

/* --- host code common to all --- */

/* A head_dim as a type: attn_for_head_dim() calls launch(attn_dim<64>()) for 64. */
template <int DIM> struct attn_dim {
    static constexpr int value = DIM;
};

template <int... DIMS, typename Launch> cudaError_t attn_for_head_dim(int head_dim, Launch launch)
{
    cudaError_t err = cudaErrorNotSupported;

    (void)((head_dim == DIMS && (err = launch(attn_dim<DIMS>()), true)) || ...);
    return err;
}

/* Head sizes that the mma.sync kernels support, and those of the wgmma kernels. */
template <typename Launch> cudaError_t attn_for_mma(int head_dim, Launch launch)
{
    return attn_for_head_dim<32, 64, 80, 96, 128, 256>(head_dim, launch);
}

/* Widths of queries and keys, and of values and results. */
struct attn_widths {
    int head_dim, v_head_dim;
};

template <int HD, int VD> struct attn_dims {
    static constexpr int head_dim = HD, v_head_dim = VD;
};

template <typename... Dims, typename Launch> cudaError_t attn_for_dims(attn_widths widths, Launch launch)
{
    cudaError_t err = cudaErrorNotSupported;

    (void)((widths.head_dim == Dims::head_dim && widths.v_head_dim == Dims::v_head_dim &&
            (err = launch(Dims()), true)) ||
           ...);
    return err;
}

template <typename Launch> cudaError_t attn_for_wgmma(attn_widths widths, Launch launch)
{
    return attn_for_dims<attn_dims<64, 64>, attn_dims<128, 128>, attn_dims<192, 128>>(widths, launch);
}

/* A flag as a type: launch(attn_flag<true>()) for calls with k_begin. */
template <bool FLAG> struct attn_flag {
    static constexpr bool value = FLAG;
};

template <typename Launch> cudaError_t attn_for_keys(const rk_cuda_attn_args &args, Launch launch)
{
    return args.k_lens ? launch(attn_flag<true>()) : launch(attn_flag<false>());
}

/* Launch parameters of a kernel. */
struct attn_grid {
    cudaStream_t stream;
    dim3 blocks;
    int threads, smem;     /* smem: dynamic shared memory, in bytes */
    bool is_early = false; /* may start before the previous kernel has ended: it calls rk_wait_for_stream() */
};

template <typename... Params, typename... Args>
cudaError_t attn_launch(void (*kernel)(Params...), const attn_grid &grid, const Args &...args)
{
    cudaError_t err = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, grid.smem);
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute = {};

    if (err != cudaSuccess)
        return err;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = grid.blocks;
    config.blockDim = dim3((unsigned)grid.threads);
    config.dynamicSmemBytes = (size_t)grid.smem;
    config.stream = grid.stream;
    config.attrs = &attribute;
    config.numAttrs = grid.is_early ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

/* --- the launchers --- */

/* attn_fwd.cu: mma.sync */
cudaError_t rk_attn_fwd_mma(cudaStream_t stream, const rk_cuda_attn_args *args);
cudaError_t rk_attn_paged_mma(cudaStream_t stream, const rk_cuda_attn_paged_args *args);
int rk_attn_fwd_mma_shared_bytes(int head_dim); /* 0: head_dim is not supported */
/* attn_decode.cu: mma.sync, few queries per sequence, keys split over thread blocks. If it does not fit, use
 * the former. */
bool rk_attn_decode_fits(const rk_cuda_attn_paged_args *args);
cudaError_t rk_attn_decode(cudaStream_t stream, const rk_cuda_attn_paged_args *args);
size_t rk_attn_decode_workspace_bytes(const rk_cuda_attn_paged_args *args);
/* attn_decode_sm90.cu: the same with TMA, compute capability 9.0 */
cudaError_t rk_attn_decode_tma(cudaStream_t stream, const rk_cuda_attn_paged_args *args);
/* attn_latent.cu: mma.sync, latents that are keys and values of all heads */
bool rk_attn_latent_takes(const rk_cuda_attn_paged_args *args);
cudaError_t rk_attn_latent(cudaStream_t stream, const rk_cuda_attn_paged_args *args);
size_t rk_attn_latent_workspace_bytes(const rk_cuda_attn_paged_args *args);
/* Maximum of calls with up to these numbers of tokens and sequences. */
size_t rk_attn_latent_max_workspace_bytes(const rk_cuda_attn_paged_args *args);
/* attn_bwd.cu: mma.sync */
cudaError_t rk_attn_bwd_mma(cudaStream_t stream, const rk_cuda_attn_bwd_args *args);
int rk_attn_bwd_mma_shared_bytes(int head_dim); /* 0: head_dim is not supported */
/* attn_fwd_sm90.cu, attn_bwd_sm90.cu: wgmma and TMA, compute capability 9.0 */
cudaError_t rk_attn_fwd_wgmma(cudaStream_t stream, const rk_cuda_attn_args *args);
cudaError_t rk_attn_paged_wgmma(cudaStream_t stream, const rk_cuda_attn_paged_args *args);
cudaError_t rk_attn_bwd_wgmma(cudaStream_t stream, const rk_cuda_attn_bwd_args *args);
/* attn_simple.cu: all widths of attn.h; F32, F16, BF16 */
cudaError_t rk_attn_fwd_simple(cudaStream_t stream, const rk_cuda_attn_args *args);
cudaError_t rk_attn_bwd_simple(cudaStream_t stream, const rk_cuda_attn_bwd_args *args);
cudaError_t rk_attn_paged_simple(cudaStream_t stream, const rk_cuda_attn_paged_args *args);

/* attn_bwd_prepare.cu: kernels before and after the main kernels of both tensor-core backward passes. The
 * workspace has delta, followed by the parts of dk and dv. */
struct attn_bwd_plan {
    int num_parts; /* the query heads of a kv head are split into this number of parts, each summed
                    * separately */
    float *delta;  /* [num_heads, num_tokens]: sum over v_head_dim of dout * out */
    /* [num_parts][num_keys, num_kv_heads, head_dim or v_head_dim] when num_parts > 1; dv follows dk */
    float *dk, *dv;
};

attn_bwd_plan rk_attn_bwd_make_plan(const rk_cuda_attn_bwd_args *args);
/* With k_begin some keys may be in no segment: zeroes dk and dv. Otherwise a no-op. */
cudaError_t rk_attn_bwd_zero_keys(cudaStream_t stream, const rk_cuda_attn_bwd_args *args);
/* Computes delta, and zeroes as above, the parts if there are several. */
cudaError_t rk_attn_bwd_prepare(cudaStream_t stream, const rk_cuda_attn_bwd_args *args,
                                const attn_bwd_plan *plan);
/* Sums the parts into dk and dv; no-op for one part. */
cudaError_t rk_attn_bwd_reduce(cudaStream_t stream, const rk_cuda_attn_bwd_args *args,
                               const attn_bwd_plan *plan);

#endif
