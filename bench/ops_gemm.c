/* The products of a linear layer. dims: M (tokens), N, K of Y[M, N] = X[M, K] W[N, K]^T. */
#include "bench/op_bench.h"

#include "kernels/rk_kernels.h"

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

/* dW is read and written in f32, where Y is written in bf16. */
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
