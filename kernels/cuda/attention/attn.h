/* Attention on CUDA: launchers over raw pointers. Twins of kernels/cpu/attn_*.c.
 *
 * All kernels here implement the following definition, which makes the result of a query bit-identical in
 * packed attention, chunked prefill and decode, independent of the rest of the call (BF16 with a tensor-core
 * head_dim):
 *   - the keys of a sequence fall into blocks of 128 at positions 0, 128, ..., visited in ascending order,
 *     and the blocks into splits of 512;
 *   - scores and outputs are ascending chains of k16 tensor-core steps in f32, the chain of an output
 *     running through a split and being rescaled at each block whose maximum is higher;
 *   - a split starts from nothing, and is merged into the total of the splits before it, in ascending
 *     order;
 *   - probabilities are rounded to bf16 for the product with the values; their sum is taken before, per
 *     block in four quarters of 32 keys.
 * A block or split that a query does not attend to does not change its result, so a kernel may process or
 * skip it. NaN in one sequence does not affect others. Other dtypes and head sizes, and GPUs without enough
 * shared memory, use attn_simple.cu, one warp per query, which has these properties by construction.
 *
 * head_dim is the width of queries and keys, v_head_dim that of values and results. Tensor cores take equal
 * ones: 32, 64, 80, 96, 128, 256 in BF16 (with 99 KiB a block, as 8.6 and 8.9 have, up to 96), and on 9.0,
 * 192 with 128, over a cache with blocks of 8 to 128 tokens, a power of two. For these, pointers must be
 * aligned to 16 bytes and strides be multiples of 8 elements. Otherwise: F32, F16 and BF16 up to the widths
 * below; on GPUs with 171 KiB of shared memory a block, BF16 over a cache of latents (576, the first 512 of
 * them the values of all heads) takes attn_latent.cu, whose bits are not those of a packed call.
 *
 * Launchers enqueue on `stream`, never synchronise, allocate nothing, can be captured in a graph, and
 * return the launch error. Sizes and dtypes have been checked by kernels/checks_*.c; values in integer
 * tensors are not checked. cudaErrorNotSupported: dtype or head_dim outside the list above;
 * cudaErrorMisalignedAddress.
 *
 * Keys of their own (k_begin): the kernels use positions in a sequence whose last ones are the segment's
 * queries, and key blocks begin at k_begin, so the result of a query is bit-identical to that in the whole
 * sequence. */
#ifndef RK_CUDA_ATTN_H
#define RK_CUDA_ATTN_H

#include <cuda_runtime_api.h>

#include "base/rk_dtype.h"

RK_BEGIN_DECLS

/* Number of ints at the beginning of the workspace of rk_cuda_attn_paged that are zero between calls. */
#define ATTN_NUM_COUNTERS (1 << 16)

/* Maximum widths: forward and paged, of queries and keys and of values; backward, of all. */
#define ATTN_MAX_HEAD_DIM     576
#define ATTN_MAX_V_HEAD_DIM   512
#define ATTN_MAX_BWD_HEAD_DIM 256

struct rk_cuda_attn_device {
    int32_t num_sms;
    int32_t max_shared_bytes; /* of a block */
    bool has_sm90a;           /* sm_90a code runs on this GPU */
};

/* rk_attn_varlen_args. Row t, head h of a tensor starts stride * t + WIDTH * h elements after its base, where
 * WIDTH is head_dim (q, k) or v_head_dim (v, out). */
struct rk_cuda_attn_args {
    struct rk_cuda_attn_device device;
    rk_dtype_t dtype;
    int32_t num_tokens, num_seqs, num_heads, num_kv_heads, head_dim, v_head_dim;
    int32_t num_keys; /* rows of k and v */
    int32_t window;   /* 0: none */
    float scale;      /* > 0 */
    const int32_t *cu_seqlens;
    const int32_t *k_begin, *k_lens; /* both NULL: keys are the rows of the queries */
    const void *q, *k, *v;
    int64_t q_stride, k_stride, v_stride;
    void *out;
    int64_t out_stride;
    float *lse; /* [num_heads, num_tokens]; NULL: not written */
};

/* rk_attn_varlen_bwd_args; fwd.out and fwd.lse are inputs. */
struct rk_cuda_attn_bwd_args {
    struct rk_cuda_attn_args fwd;
    const void *dout;
    int64_t dout_stride;
    void *dq, *dk, *dv;
    int64_t dq_stride, dk_stride, dv_stride;
    void *workspace; /* rk_cuda_attn_bwd_workspace_bytes(), aligned to 256; contents are not kept between
                      * calls */
};

/* rk_attn_paged_args. */
struct rk_cuda_attn_paged_args {
    struct rk_cuda_attn_device device;
    rk_dtype_t dtype;
    int32_t num_tokens, num_seqs, num_heads, num_kv_heads, head_dim, v_head_dim;
    int32_t window;
    bool past_is_settled;
    float scale;
    int32_t num_blocks, block_size;
    int32_t max_blocks;  /* columns of block_table */
    const void *k_cache; /* [num_blocks, num_kv_heads, block_size, head_dim] */
    const void *v_cache; /* [num_blocks, num_kv_heads, block_size, v_head_dim] */
    /* Elements from one row of dimension 0 to the next, and from one value row of a head to the next: with
     * unequal widths values may be stored in k_cache's rows. With equal widths k_cache and v_cache have the
     * same layout. */
    int64_t cache_block_stride, v_cache_block_stride;
    int32_t v_row_stride;
    const int32_t *block_table, *cu_q, *seq_lens;
    int64_t block_table_stride;
    const void *q;
    void *out;
    int64_t q_stride, out_stride;
    /* rk_cuda_attn_paged_workspace_bytes(), aligned to 256, zeroed before its first use. Every call resets
     * the counters to zero for the next one, of any shape; other users of the memory must do so too. One
     * stream at a time. */
    void *workspace;
};

cudaError_t rk_cuda_attn_fwd(cudaStream_t stream, const struct rk_cuda_attn_args *args);
cudaError_t rk_cuda_attn_bwd(cudaStream_t stream, const struct rk_cuda_attn_bwd_args *args);
size_t rk_cuda_attn_bwd_workspace_bytes(const struct rk_cuda_attn_bwd_args *args);
cudaError_t rk_cuda_attn_paged(cudaStream_t stream, const struct rk_cuda_attn_paged_args *args);
size_t rk_cuda_attn_paged_workspace_bytes(const struct rk_cuda_attn_paged_args *args);
/* Maximum workspace of a call with up to these numbers of tokens and sequences. */
size_t rk_cuda_attn_paged_max_workspace_bytes(const struct rk_cuda_attn_paged_args *args);

RK_END_DECLS

#endif
