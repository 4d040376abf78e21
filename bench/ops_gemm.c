/* The GEMMs of a linear layer. dims: M (tokens), N, K of Y[M, N] = X[M, K] W[N, K]^T. */
#include "bench/op_bench.h"

#include <math.h>

#include "base/rk_alloc.h"
#include "base/rk_rng.h"
#include "kernels/rk_kernels.h"

#define LOGNORMAL_SIGMA 0.8
#define LOGNORMAL_SEED  16

#define DIM_NAMES     \
    {                 \
        "M", "N", "K" \
    }

static void declare(struct bench_tensors *tensors, const int64_t *dims)
{
    bench_add(tensors, bench_bf16(dims[0], dims[1])); /* Y */
    bench_add(tensors, bench_bf16(dims[0], dims[2])); /* X */
    bench_add(tensors, bench_bf16(dims[1], dims[2])); /* W */
}

static void declare_dw(struct bench_tensors *tensors, const int64_t *dims)
{
    declare(tensors, dims);
    bench_add(tensors, rk_tensor_2d(NULL, RK_DTYPE_F32, dims[1], dims[2]));
}

static struct bench_cost cost(const int64_t *dims)
{
    double m = (double)dims[0], n = (double)dims[1], k = (double)dims[2];

    return (struct bench_cost){.flops = 2 * m * n * k, .bytes = 2 * (m * n + m * k + n * k), .items = m};
}

/* dW is read and written in f32; Y is written in bf16. */
static struct bench_cost cost_dw(const int64_t *dims)
{
    struct bench_cost sum = cost(dims);

    sum.bytes += 6 * (double)dims[1] * (double)dims[2];
    return sum;
}

static struct rk_status *run(const struct bench_op_call *call)
{
    return rk_gemm(call->stream, &(struct rk_gemm_args){.c = call->t[0],
                                                        .a = call->t[1],
                                                        .b = call->t[2],
                                                        .trans_b = true,
                                                        .strict = call->is_strict,
                                                        .alpha = 1});
}

static struct rk_status *run_dx(const struct bench_op_call *call)
{
    return rk_gemm(call->stream,
                   &(struct rk_gemm_args){.c = call->t[1], .a = call->t[0], .b = call->t[2], .alpha = 1});
}

static struct rk_status *run_dw(const struct bench_op_call *call)
{
    return rk_gemm(
        call->stream,
        &(struct rk_gemm_args){
            .c = call->t[3], .a = call->t[0], .b = call->t[1], .trans_a = true, .alpha = 1, .beta = 1});
}

const struct bench_op bench_op_gemm = {.dim_names = DIM_NAMES, .declare = declare, .run = run, .cost = cost};
const struct bench_op bench_op_gemm_dx = {
    .dim_names = DIM_NAMES, .declare = declare, .run = run_dx, .cost = cost};
const struct bench_op bench_op_gemm_dw = {
    .dim_names = DIM_NAMES, .declare = declare_dw, .run = run_dw, .cost = cost_dw};

/* --- grouped GEMM. dims: G groups of M rows, N, K --- */

#define GROUPED_DIM_NAMES  \
    {                      \
        "G", "M", "N", "K" \
    }

static rk_tensor_t matrices(rk_dtype_t dtype, const int64_t *dims)
{
    return rk_tensor_3d(NULL, dtype, dims[0], dims[2], dims[3]);
}

static void declare_grouped(struct bench_tensors *tensors, const int64_t *dims)
{
    bench_add(tensors, bench_bf16(dims[0] * dims[1], dims[2])); /* Y */
    bench_add(tensors, bench_bf16(dims[0] * dims[1], dims[3])); /* X */
    bench_add(tensors, matrices(RK_DTYPE_BF16, dims));
    bench_add_ints(tensors, bench_i32(dims[0] + 1), (struct bench_fill){.kind = BENCH_RAMP, .step = dims[1]});
}

static void declare_grouped_dw(struct bench_tensors *tensors, const int64_t *dims)
{
    declare_grouped(tensors, dims);
    tensors->t[2].dtype = RK_DTYPE_F32;
}

/* Replaces the offsets: the logarithms of the groups' sizes are normally distributed. Of 128 groups the
 * largest is 6.1 times the mean. */
static struct rk_status *prepare_lognormal(const struct bench_op_call *call)
{
    int64_t num_groups = call->dims[0], num_rows = num_groups * call->dims[1];
    int32_t *offsets = rk_calloc((size_t)num_groups + 1, sizeof(*offsets));
    double total = 0, sum = 0;
    struct rk_status *st;

    for (int64_t g = 0; g < num_groups; g++)
        total += exp(LOGNORMAL_SIGMA * rk_rng_normal(LOGNORMAL_SEED, 0, (uint64_t)g));
    for (int64_t g = 0; g < num_groups; g++) {
        sum += exp(LOGNORMAL_SIGMA * rk_rng_normal(LOGNORMAL_SEED, 0, (uint64_t)g));
        offsets[g + 1] = (int32_t)lround((double)num_rows * sum / total);
    }
    st = rk_stream_copy(call->stream, call->t[3].data, offsets, rk_tensor_bytes(call->t[3]), RK_COPY_H2D);
    if (!st)
        st = rk_stream_sync(call->stream);
    rk_free(offsets);
    return st;
}

static struct bench_cost cost_grouped(const int64_t *dims)
{
    double rows = (double)dims[0] * (double)dims[1], n = (double)dims[2], k = (double)dims[3];

    return (struct bench_cost){.flops = 2 * rows * n * k,
                               .bytes = 2 * (rows * n + rows * k + (double)dims[0] * n * k),
                               .items = rows};
}

static struct bench_cost cost_grouped_dw(const int64_t *dims)
{
    struct bench_cost sum = cost_grouped(dims);

    sum.bytes += 2 * (double)dims[0] * (double)dims[2] * (double)dims[3];
    return sum;
}

static struct bench_cost cost_grouped_dw_add(const int64_t *dims)
{
    struct bench_cost sum = cost_grouped_dw(dims);

    sum.bytes += 4 * (double)dims[0] * (double)dims[2] * (double)dims[3];
    return sum;
}

static struct rk_status *run_grouped(const struct bench_op_call *call)
{
    return rk_grouped_gemm(call->stream, &(struct rk_grouped_gemm_args){.y = call->t[0],
                                                                        .x = call->t[1],
                                                                        .w = call->t[2],
                                                                        .offsets = call->t[3],
                                                                        .trans_w = true,
                                                                        .strict = call->is_strict});
}

static struct rk_status *run_grouped_dx(const struct bench_op_call *call)
{
    return rk_grouped_gemm(call->stream, &(struct rk_grouped_gemm_args){.y = call->t[1],
                                                                        .x = call->t[0],
                                                                        .w = call->t[2],
                                                                        .offsets = call->t[3],
                                                                        .strict = call->is_strict});
}

static struct rk_status *add_grouped_dw(const struct bench_op_call *call, bool overwrites)
{
    return rk_grouped_gemm_wgrad(call->stream,
                                 &(struct rk_grouped_gemm_wgrad_args){.dw = call->t[2],
                                                                      .dy = call->t[0],
                                                                      .x = call->t[1],
                                                                      .offsets = call->t[3],
                                                                      .overwrites_dw = overwrites,
                                                                      .strict = call->is_strict});
}

static struct rk_status *run_grouped_dw(const struct bench_op_call *call)
{
    return add_grouped_dw(call, true);
}

static struct rk_status *run_grouped_dw_add(const struct bench_op_call *call)
{
    return add_grouped_dw(call, false);
}

const struct bench_op bench_op_grouped_gemm = {
    .dim_names = GROUPED_DIM_NAMES, .declare = declare_grouped, .run = run_grouped, .cost = cost_grouped};
const struct bench_op bench_op_grouped_gemm_dx = {
    .dim_names = GROUPED_DIM_NAMES, .declare = declare_grouped, .run = run_grouped_dx, .cost = cost_grouped};
const struct bench_op bench_op_grouped_gemm_wgrad = {.dim_names = GROUPED_DIM_NAMES,
                                                     .declare = declare_grouped_dw,
                                                     .run = run_grouped_dw,
                                                     .cost = cost_grouped_dw};
const struct bench_op bench_op_grouped_gemm_lognormal = {.dim_names = GROUPED_DIM_NAMES,
                                                         .declare = declare_grouped,
                                                         .prepare = prepare_lognormal,
                                                         .run = run_grouped,
                                                         .cost = cost_grouped};
const struct bench_op bench_op_grouped_gemm_dx_lognormal = {.dim_names = GROUPED_DIM_NAMES,
                                                            .declare = declare_grouped,
                                                            .prepare = prepare_lognormal,
                                                            .run = run_grouped_dx,
                                                            .cost = cost_grouped};
const struct bench_op bench_op_grouped_gemm_wgrad_lognormal = {.dim_names = GROUPED_DIM_NAMES,
                                                               .declare = declare_grouped_dw,
                                                               .prepare = prepare_lognormal,
                                                               .run = run_grouped_dw,
                                                               .cost = cost_grouped_dw};
/* The gradient in bf16. */
const struct bench_op bench_op_grouped_gemm_wgrad_bf16 = {
    .dim_names = GROUPED_DIM_NAMES, .declare = declare_grouped, .run = run_grouped_dw, .cost = cost_grouped};
/* The gradient is added to an existing one. */
const struct bench_op bench_op_grouped_gemm_wgrad_add = {.dim_names = GROUPED_DIM_NAMES,
                                                         .declare = declare_grouped_dw,
                                                         .run = run_grouped_dw_add,
                                                         .cost = cost_grouped_dw_add};
