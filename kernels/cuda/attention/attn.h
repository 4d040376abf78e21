/* Attention on CUDA: launchers over raw pointers. Twins of kernels/cpu/attn_*.c.
 *
 * The definition that every kernel here shares, and by which packed attention, chunked prefill and decode
 * give a query the same bits, whatever else is in the call (BF16 with a tensor-core head_dim):
 *   - the keys of a sequence fall into blocks of 128 at positions 0, 128, ..., visited in ascending order,
 *     and the blocks into splits of 512;
 *   - scores and outputs are ascending chains of k16 tensor-core steps in f32, the chain of an output
 *     running through a split and being rescaled at each block whose maximum is higher;
 *   - a split starts from nothing, and is merged into the total of the splits before it, in ascending
 *     order;
 *   - probabilities are rounded to bf16 for the product with the values; their sum is taken before, per
 *     block in four quarters of 32 keys.
 * A block or split that a query does not see leaves its bits as they are, so a kernel may visit or skip it.
 * NaN in one sequence does not reach another. Other dtypes and head sizes, and GPUs that lack the shared
 * memory for one, take attn_simple.cu, one warp a query, which has these properties by construction.
 *
 * head_dim is the width of queries and keys, v_head_dim that of values and results. Tensor cores take equal
 * ones: 32, 64, 80, 96, 128, 256 in BF16 (with 99 KiB a block, as 8.6 and 8.9 have, up to
 * 96); for these, pointers must be aligned to 16
 * bytes and strides be multiples of 8 elements. Otherwise: F32, F16 and BF16 up to the widths below.
 *
 * Launchers enqueue on `stream`, never synchronise, allocate nothing, can be captured in a graph, and
 * return the launch error. Sizes and dtypes have been checked by kernels/checks_*.c; what lies in integer
 * tensors is trusted. cudaErrorNotSupported: dtype or head_dim outside the list above;
 * cudaErrorMisalignedAddress.
 *
 * Keys of their own (k_begin): the kernels work in positions of the sequence whose last ones are the
 * segment's queries, and key blocks begin at k_begin, so a query has the bits that it has in the whole
 * sequence. */
#ifndef RK_CUDA_ATTN_H
#define RK_CUDA_ATTN_H

#include <cuda_runtime_api.h>

#include "base/rk_dtype.h"

RK_BEGIN_DECLS

/* Ints at the beginning of the workspace of rk_cuda_attn_paged that are zero between calls. */
#define ATTN_NUM_COUNTERS (1 << 16)

/* The widest heads: forward and paged, of queries and keys and of values; backward, of all. */
#define ATTN_MAX_HEAD_DIM     576
#define ATTN_MAX_V_HEAD_DIM   512
#define ATTN_MAX_BWD_HEAD_DIM 256

struct rk_cuda_attn_device {
    int32_t num_sms;
    int32_t max_shared_bytes; /* of a block */
    bool has_sm90a;           /* code with Hopper's own instructions runs on it */
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
    float *lse; /* [num_heads, num_tokens]; NULL: not wanted */
};

/* rk_attn_varlen_bwd_args; fwd.out and fwd.lse are inputs. */
struct rk_cuda_attn_bwd_args {
    struct rk_cuda_attn_args fwd;
    const void *dout;
    int64_t dout_stride;
    void *dq, *dk, *dv;
    int64_t dq_stride, dk_stride, dv_stride;
    void *workspace; /* rk_cuda_attn_bwd_workspace_bytes(), aligned to 256; nothing is kept in it */
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
    int32_t max_blocks;  /* of block_table's rows */
    const void *k_cache; /* [num_blocks, num_kv_heads, block_size, head_dim] */
    const void *v_cache; /* [num_blocks, num_kv_heads, block_size, v_head_dim] */
    /* From a row of dimension 0 to the next, and from one value of a head to the next: with unequal widths
     * values may lie in k_cache's rows. With equal ones k_cache and v_cache are laid out alike. */
    int64_t cache_block_stride, v_cache_block_stride;
    int32_t v_row_stride;
    const int32_t *block_table, *cu_q, *seq_lens;
    int64_t block_table_stride;
    const void *q;
    void *out;
    int64_t q_stride, out_stride;
    /* rk_cuda_attn_paged_workspace_bytes(), aligned to 256, zero before its first use. A call leaves zero
     * the counters that the next one, of whatever shape, needs; so must everybody else who uses it between
     * calls. One stream at a time. */
    void *workspace;
};

cudaError_t rk_cuda_attn_fwd(cudaStream_t stream, const struct rk_cuda_attn_args *args);
cudaError_t rk_cuda_attn_bwd(cudaStream_t stream, const struct rk_cuda_attn_bwd_args *args);
size_t rk_cuda_attn_bwd_workspace_bytes(const struct rk_cuda_attn_bwd_args *args);
cudaError_t rk_cuda_attn_paged(cudaStream_t stream, const struct rk_cuda_attn_paged_args *args);
size_t rk_cuda_attn_paged_workspace_bytes(const struct rk_cuda_attn_paged_args *args);
/* The most that a call with at most these numbers of tokens and of sequences takes. */
size_t rk_cuda_attn_paged_max_workspace_bytes(const struct rk_cuda_attn_paged_args *args);

RK_END_DECLS

#endif
