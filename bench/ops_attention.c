/* Attention. dims of the packed form: sequences, tokens of each, query heads, key-value heads, head_dim of
 * queries and keys, and that of values where it differs; causal; only the unmasked half of the FLOPs counts.
 */
#include "bench/op_bench.h"

#include <math.h>

#include "kernels/rk_kernels.h"

#define DIM_NAMES                                      \
    {                                                  \
        "seqs", "len", "heads", "kv_heads", "head_dim" \
    }
#define DIM_NAMES_MLA                                                \
    {                                                                \
        "seqs", "len", "heads", "kv_heads", "head_dim", "v_head_dim" \
    }
#define BLOCK_TOKENS 16 /* of the paged cache */

enum { OUT, LSE, Q, K, V, CU_SEQLENS, DQ, DK, DV, DOUT };

static int64_t v_head_dim(const int64_t *dims)
{
    return dims[5] ? dims[5] : dims[4];
}

static rk_tensor_t heads_of(const int64_t *dims, int64_t heads, int64_t width)
{
    return rk_tensor_3d(NULL, RK_DTYPE_BF16, dims[0] * dims[1], heads, width);
}

static void declare_fwd(struct bench_tensors *tensors, const int64_t *dims)
{
    bench_add(tensors, heads_of(dims, dims[2], v_head_dim(dims)));
    bench_add(tensors, rk_tensor_2d(NULL, RK_DTYPE_F32, dims[2], dims[0] * dims[1]));
    bench_add(tensors, heads_of(dims, dims[2], dims[4]));
    bench_add(tensors, heads_of(dims, dims[3], dims[4]));
    bench_add(tensors, heads_of(dims, dims[3], v_head_dim(dims)));
    bench_add_ints(tensors, bench_i32(dims[0] + 1), (struct bench_fill){.kind = BENCH_RAMP, .step = dims[1]});
}

static void declare_bwd(struct bench_tensors *tensors, const int64_t *dims)
{
    declare_fwd(tensors, dims);
    bench_add(tensors, heads_of(dims, dims[2], dims[4]));
    bench_add(tensors, heads_of(dims, dims[3], dims[4]));
    bench_add(tensors, heads_of(dims, dims[3], v_head_dim(dims)));
    bench_add(tensors, heads_of(dims, dims[2], v_head_dim(dims)));
}

/* Multiplications of the forward pass, without the mask. */
static double products(const int64_t *dims)
{
    return (double)(dims[0] * dims[1]) * (double)(dims[1] * dims[2]) * (double)(dims[4] + v_head_dim(dims));
}

static double row_bytes(const int64_t *dims)
{
    return (double)(dims[0] * dims[1]) * (double)((dims[2] + dims[3]) * (dims[4] + v_head_dim(dims)));
}

static struct bench_cost cost_fwd(const int64_t *dims)
{
    return (struct bench_cost){
        .flops = products(dims), .bytes = 2 * row_bytes(dims), .items = (double)(dims[0] * dims[1])};
}

static struct bench_cost cost_bwd(const int64_t *dims)
{
    return (struct bench_cost){
        .flops = 2.5 * products(dims), .bytes = 4 * row_bytes(dims), .items = (double)(dims[0] * dims[1])};
}

static struct rk_attn_varlen_args fwd_args(const struct bench_op_call *call)
{
    return (struct rk_attn_varlen_args){.out = call->t[OUT],
                                        .lse = call->t[LSE],
                                        .q = call->t[Q],
                                        .k = call->t[K],
                                        .v = call->t[V],
                                        .cu_seqlens = call->t[CU_SEQLENS],
                                        .max_seqlen = (int32_t)call->dims[1],
                                        .scale = (float)(1 / sqrt((double)call->dims[4]))};
}

static struct rk_status *run_fwd(const struct bench_op_call *call)
{
    struct rk_attn_varlen_args args = fwd_args(call);

    return rk_attn_varlen_fwd(call->stream, &args);
}

static struct rk_status *run_bwd(const struct bench_op_call *call)
{
    return rk_attn_varlen_bwd(call->stream, &(struct rk_attn_varlen_bwd_args){.fwd = fwd_args(call),
                                                                              .dq = call->t[DQ],
                                                                              .dk = call->t[DK],
                                                                              .dv = call->t[DV],
                                                                              .dout = call->t[DOUT]});
}

const struct bench_op bench_op_attn_fwd = {
    .dim_names = DIM_NAMES, .declare = declare_fwd, .run = run_fwd, .cost = cost_fwd};
const struct bench_op bench_op_attn_bwd = {
    .dim_names = DIM_NAMES, .declare = declare_bwd, .prepare = run_fwd, .run = run_bwd, .cost = cost_bwd};

const struct bench_op bench_op_attn_mla_fwd = {
    .dim_names = DIM_NAMES_MLA, .declare = declare_fwd, .run = run_fwd, .cost = cost_fwd};
const struct bench_op bench_op_attn_mla_bwd = {
    .dim_names = DIM_NAMES_MLA, .declare = declare_bwd, .prepare = run_fwd, .run = run_bwd, .cost = cost_bwd};

/* One new token per sequence over `len` keys in a paged cache. */
enum { PAGED_OUT, PAGED_Q, K_CACHE, V_CACHE, BLOCK_TABLE, CU_Q, SEQ_LENS };

static void declare_paged(struct bench_tensors *tensors, const int64_t *dims)
{
    int64_t blocks = (dims[1] + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    rk_tensor_t cache =
        rk_tensor_4d(NULL, RK_DTYPE_BF16, 1 + dims[0] * blocks, dims[3], BLOCK_TOKENS, dims[4]);

    bench_add(tensors, rk_tensor_3d(NULL, RK_DTYPE_BF16, dims[0], dims[2], dims[4]));
    bench_add(tensors, rk_tensor_3d(NULL, RK_DTYPE_BF16, dims[0], dims[2], dims[4]));
    bench_add(tensors, cache);
    bench_add(tensors, cache);
    bench_add_ints(tensors, rk_tensor_2d(NULL, RK_DTYPE_I32, dims[0], blocks),
                   (struct bench_fill){.kind = BENCH_RAMP, .base = 1, .step = 1});
    bench_add_ints(tensors, bench_i32(dims[0] + 1), (struct bench_fill){.kind = BENCH_RAMP, .step = 1});
    bench_add_ints(tensors, bench_i32(dims[0]), (struct bench_fill){.kind = BENCH_RAMP, .base = dims[1]});
}

static struct bench_cost cost_paged(const int64_t *dims)
{
    double keys = (double)dims[0] * (double)dims[1];

    return (struct bench_cost){.flops = 4 * keys * (double)(dims[2] * dims[4]),
                               .bytes = 4 * keys * (double)(dims[3] * dims[4]),
                               .items = (double)dims[0]};
}

static struct rk_status *run_paged(const struct bench_op_call *call)
{
    return rk_attn_paged(call->stream,
                         &(struct rk_attn_paged_args){.out = call->t[PAGED_OUT],
                                                      .q = call->t[PAGED_Q],
                                                      .k_cache = call->t[K_CACHE],
                                                      .v_cache = call->t[V_CACHE],
                                                      .block_table = call->t[BLOCK_TABLE],
                                                      .cu_q = call->t[CU_Q],
                                                      .seq_lens = call->t[SEQ_LENS],
                                                      .scale = (float)(1 / sqrt((double)call->dims[4]))});
}

const struct bench_op bench_op_attn_paged = {
    .dim_names = DIM_NAMES, .declare = declare_paged, .run = run_paged, .cost = cost_paged};

/* Writes keys and values of new tokens to the cache. dims: tokens, key-value heads, head_dim. */
static void declare_write(struct bench_tensors *tensors, const int64_t *dims)
{
    int64_t blocks = (dims[0] + BLOCK_TOKENS - 1) / BLOCK_TOKENS;

    for (int i = 0; i < 2; i++)
        bench_add(tensors, rk_tensor_4d(NULL, RK_DTYPE_BF16, blocks, dims[1], BLOCK_TOKENS, dims[2]));
    for (int i = 0; i < 2; i++)
        bench_add(tensors, rk_tensor_3d(NULL, RK_DTYPE_BF16, dims[0], dims[1], dims[2]));
    bench_add_ints(tensors, bench_i32(dims[0]), (struct bench_fill){.kind = BENCH_RAMP, .step = 1});
}

static struct rk_status *run_write(const struct bench_op_call *call)
{
    return rk_kv_write(call->stream, &(struct rk_kv_write_args){.k_cache = call->t[0],
                                                                .v_cache = call->t[1],
                                                                .k = call->t[2],
                                                                .v = call->t[3],
                                                                .slot_mapping = call->t[4]});
}

static struct bench_cost cost_write(const int64_t *dims)
{
    return (struct bench_cost){.bytes = 8 * (double)dims[0] * (double)(dims[1] * dims[2]),
                               .items = (double)dims[0]};
}

const struct bench_op bench_op_kv_write = {.dim_names = {"tokens", "kv_heads", "head_dim"},
                                           .declare = declare_write,
                                           .run = run_write,
                                           .cost = cost_write};
