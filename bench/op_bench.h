/* Private to bench/: benchmarks of single operators. A row declares the tensors of an operator, its call and
 * its cost; op_bench.c allocates the tensors and measures. */
#ifndef RK_OP_BENCH_H
#define RK_OP_BENCH_H

#include "bench/bench.h"

#define BENCH_MAX_TENSORS 12

/* Initial contents of a tensor. */
typedef enum bench_fill_kind {
    BENCH_NORMAL, /* N(0, 1), or zeros for integers */
    BENCH_BELOW,  /* random integers below `modulus` */
    BENCH_RAMP,   /* base + step * i, modulo `modulus` unless it is 0 */
} bench_fill_kind_t;

struct bench_fill {
    bench_fill_kind_t kind;
    int64_t base, step, modulus;
};

struct bench_tensors {
    rk_tensor_t t[BENCH_MAX_TENSORS];
    struct bench_fill fills[BENCH_MAX_TENSORS];
    int count;
};

struct bench_op_call {
    struct rk_stream *stream;
    const rk_tensor_t *t;
    const int64_t *dims;
    bool is_strict;
};

struct bench_op {
    const char *dim_names[BENCH_MAX_DIMS]; /* names in the shape column: "M=8192 N=1536" */
    void (*declare)(struct bench_tensors *tensors, const int64_t *dims);
    /* called once for each set of tensors before timing; may be NULL */
    struct rk_status *(*prepare)(const struct bench_op_call *call);
    struct rk_status *(*run)(const struct bench_op_call *call);
    struct bench_cost (*cost)(const int64_t *dims);
};

/* Adds a tensor without memory; declare() adds them in the order in which run() reads them. */
void bench_add(struct bench_tensors *tensors, rk_tensor_t t);
void bench_add_ints(struct bench_tensors *tensors, rk_tensor_t t, struct bench_fill fill);

static inline rk_tensor_t bench_bf16(int64_t rows, int64_t cols)
{
    return rk_tensor_2d(NULL, RK_DTYPE_BF16, rows, cols);
}

static inline rk_tensor_t bench_f32(int64_t count)
{
    return rk_tensor_1d(NULL, RK_DTYPE_F32, count);
}

static inline rk_tensor_t bench_i32(int64_t count)
{
    return rk_tensor_1d(NULL, RK_DTYPE_I32, count);
}

extern const struct bench_op bench_op_gemm, bench_op_gemm_dx, bench_op_gemm_dw, bench_op_grouped_gemm,
    bench_op_grouped_gemm_dx, bench_op_grouped_gemm_wgrad, bench_op_grouped_gemm_lognormal,
    bench_op_grouped_gemm_dx_lognormal, bench_op_grouped_gemm_wgrad_lognormal,
    bench_op_grouped_gemm_wgrad_bf16, bench_op_grouped_gemm_wgrad_add;
extern const struct bench_op bench_op_attn_fwd, bench_op_attn_bwd, bench_op_attn_paged;
extern const struct bench_op bench_op_attn_mla_fwd, bench_op_attn_mla_bwd;
extern const struct bench_op bench_op_rmsnorm_fwd, bench_op_rmsnorm_bwd, bench_op_head_norm_fwd,
    bench_op_head_norm_bwd, bench_op_bias_bwd, bench_op_project_fwd, bench_op_project_bwd, bench_op_rope,
    bench_op_swiglu_fwd, bench_op_swiglu_bwd, bench_op_embed_fwd, bench_op_embed_bwd, bench_op_gather_rows,
    bench_op_kv_write, bench_op_vocab_stats, bench_op_vocab_stats_bwd, bench_op_vocab_squares, bench_op_top_k,
    bench_op_sample, bench_op_cast, bench_op_sum_squares, bench_op_adamw;

#endif
