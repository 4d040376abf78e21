/* Operators over flat memory (dims: elements) and over the vocabulary (dims: rows, columns; sampling also
 * top_k and top_p in thousandths). */
#include "bench/op_bench.h"

#include "base/rk_assert.h"
#include "kernels/rk_kernels.h"

/* --- flat --- */

static void declare_cast(struct bench_tensors *tensors, const int64_t *dims)
{
    bench_add(tensors, rk_tensor_1d(NULL, RK_DTYPE_BF16, dims[0]));
    bench_add(tensors, bench_f32(dims[0]));
}

static struct rk_status *run_cast(const struct bench_op_call *call)
{
    return rk_axpby(call->stream, &(struct rk_axpby_args){.y = call->t[0], .x = call->t[1], .alpha = 1});
}

static struct bench_cost cost_cast(const int64_t *dims)
{
    return (struct bench_cost){.bytes = 6 * (double)dims[0], .items = (double)dims[0]};
}

const struct bench_op bench_op_cast = {
    .dim_names = {"elements"}, .declare = declare_cast, .run = run_cast, .cost = cost_cast};

static void declare_sum_squares(struct bench_tensors *tensors, const int64_t *dims)
{
    bench_add(tensors, bench_f32(dims[0]));
    bench_add(tensors, rk_tensor_1d(NULL, RK_DTYPE_F64, 2));
}

static struct rk_status *run_sum_squares(const struct bench_op_call *call)
{
    return rk_sum_squares(call->stream, &(struct rk_sum_squares_args){.out = call->t[1], .x = call->t[0]});
}

static struct bench_cost cost_sum_squares(const int64_t *dims)
{
    return (struct bench_cost){.bytes = 4 * (double)dims[0], .items = (double)dims[0]};
}

const struct bench_op bench_op_sum_squares = {.dim_names = {"elements"},
                                              .declare = declare_sum_squares,
                                              .run = run_sum_squares,
                                              .cost = cost_sum_squares};

static void declare_adamw(struct bench_tensors *tensors, const int64_t *dims)
{
    bench_add(tensors, rk_tensor_1d(NULL, RK_DTYPE_BF16, dims[0]));
    for (int i = 0; i < 4; i++)
        bench_add(tensors, bench_f32(dims[0]));
}

/* Learning rate 0: random second moments may be negative. */
static struct rk_status *run_adamw(const struct bench_op_call *call)
{
    return rk_adamw(call->stream, &(struct rk_adamw_args){.param = call->t[0],
                                                          .master = call->t[1],
                                                          .m = call->t[2],
                                                          .v = call->t[3],
                                                          .grad = call->t[4],
                                                          .beta1 = 0.9,
                                                          .beta2 = 0.95,
                                                          .eps = 1e-8,
                                                          .weight_decay = 0.1,
                                                          .correction1 = 0.1,
                                                          .correction2 = 0.05,
                                                          .grad_scale = 1});
}

/* 16 bytes of state read and 12 written, 2 of the parameter. */
static struct bench_cost cost_adamw(const int64_t *dims)
{
    return (struct bench_cost){.bytes = 30 * (double)dims[0], .items = (double)dims[0]};
}

const struct bench_op bench_op_adamw = {
    .dim_names = {"elements"}, .declare = declare_adamw, .run = run_adamw, .cost = cost_adamw};

/* --- vocabulary --- */

enum { LOGITS, STATS, LABELS, UPSTREAM, SQUARES };

static void declare_stats(struct bench_tensors *tensors, const int64_t *dims)
{
    bench_add(tensors, bench_bf16(dims[0], dims[1]));
    bench_add(tensors, rk_tensor_2d(NULL, RK_DTYPE_F64, dims[0], 4));
    bench_add_ints(tensors, bench_i32(dims[0]), (struct bench_fill){.kind = BENCH_BELOW, .modulus = dims[1]});
    bench_add(tensors, bench_f32(dims[0]));
    bench_add(tensors, rk_tensor_1d(NULL, RK_DTYPE_F64, dims[0]));
}

static struct rk_status *run_stats(const struct bench_op_call *call)
{
    return rk_vocab_stats(call->stream, &(struct rk_vocab_stats_args){.stats = call->t[STATS],
                                                                      .logits = call->t[LOGITS],
                                                                      .labels = call->t[LABELS],
                                                                      .num_valid = call->dims[1],
                                                                      .inv_temperature = 1});
}

/* With the sum of squared probabilities. */
static struct rk_status *run_squares(const struct bench_op_call *call)
{
    return rk_vocab_stats(call->stream, &(struct rk_vocab_stats_args){.stats = call->t[STATS],
                                                                      .squares = call->t[SQUARES],
                                                                      .logits = call->t[LOGITS],
                                                                      .labels = call->t[LABELS],
                                                                      .num_valid = call->dims[1],
                                                                      .inv_temperature = 1});
}

static struct rk_status *run_stats_bwd(const struct bench_op_call *call)
{
    return rk_vocab_stats_bwd(call->stream, &(struct rk_vocab_stats_bwd_args){.dlogits = call->t[LOGITS],
                                                                              .logits = call->t[LOGITS],
                                                                              .stats = call->t[STATS],
                                                                              .dlog_probs = call->t[UPSTREAM],
                                                                              .dentropy = call->t[UPSTREAM],
                                                                              .labels = call->t[LABELS],
                                                                              .num_valid = call->dims[1],
                                                                              .inv_temperature = 1});
}

static struct bench_cost cost_stats(const int64_t *dims)
{
    return (struct bench_cost){.bytes = 2 * (double)dims[0] * (double)dims[1], .items = (double)dims[0]};
}

static struct bench_cost cost_stats_bwd(const int64_t *dims)
{
    return (struct bench_cost){.bytes = 4 * (double)dims[0] * (double)dims[1], .items = (double)dims[0]};
}

const struct bench_op bench_op_vocab_stats = {
    .dim_names = {"tokens", "vocab"}, .declare = declare_stats, .run = run_stats, .cost = cost_stats};
const struct bench_op bench_op_vocab_stats_bwd = {.dim_names = {"tokens", "vocab"},
                                                  .declare = declare_stats,
                                                  .prepare = run_stats,
                                                  .run = run_stats_bwd,
                                                  .cost = cost_stats_bwd};

const struct bench_op bench_op_vocab_squares = {
    .dim_names = {"tokens", "vocab"}, .declare = declare_stats, .run = run_squares, .cost = cost_stats_bwd};

/* --- largest logits: dims rows, columns, k --- */

static void declare_top_k(struct bench_tensors *tensors, const int64_t *dims)
{
    bench_add(tensors, bench_bf16(dims[0], dims[1]));
    bench_add(tensors, rk_tensor_2d(NULL, RK_DTYPE_F32, dims[0], dims[2]));
    bench_add(tensors, rk_tensor_2d(NULL, RK_DTYPE_I32, dims[0], dims[2]));
}

static struct rk_status *run_top_k(const struct bench_op_call *call)
{
    return rk_top_k(call->stream, &(struct rk_top_k_args){.values = call->t[1],
                                                          .ids = call->t[2],
                                                          .logits = call->t[0],
                                                          .num_valid = call->dims[1]});
}

const struct bench_op bench_op_top_k = {
    .dim_names = {"tokens", "vocab", "k"}, .declare = declare_top_k, .run = run_top_k, .cost = cost_stats};

enum { SAMPLE_LOGITS, TOKENS, LOG_PROBS, PARAMS };

#define MAX_SAMPLES 256
#define PARAM_INTS  ((int64_t)(sizeof(struct rk_sample_params) / sizeof(int32_t)))

static void declare_sample(struct bench_tensors *tensors, const int64_t *dims)
{
    bench_add(tensors, bench_bf16(dims[0], dims[1]));
    bench_add(tensors, bench_i32(dims[0]));
    bench_add(tensors, bench_f32(dims[0]));
    bench_add(tensors, bench_i32(dims[0] * PARAM_INTS));
}

static struct rk_status *prepare_sample(const struct bench_op_call *call)
{
    struct rk_sample_params params[MAX_SAMPLES] = {{0}};
    int64_t rows = call->dims[0];

    RK_ASSERT(rows <= MAX_SAMPLES);
    for (int64_t r = 0; r < rows; r++)
        params[r] = (struct rk_sample_params){.temperature = 1,
                                              .top_k = (int32_t)call->dims[2],
                                              .top_p = (float)call->dims[3] / 1000,
                                              .position = (int32_t)r,
                                              .seed = 1,
                                              .stream = 2};
    RK_TRY(rk_stream_copy(call->stream, call->t[PARAMS].data, params, (size_t)rows * sizeof(*params),
                          RK_COPY_H2D));
    return rk_stream_sync(call->stream);
}

static struct rk_status *run_sample(const struct bench_op_call *call)
{
    return rk_sample(call->stream, &(struct rk_sample_args){.tokens = call->t[TOKENS],
                                                            .log_probs = call->t[LOG_PROBS],
                                                            .logits = call->t[SAMPLE_LOGITS],
                                                            .vocab_size = call->dims[1],
                                                            .params = call->t[PARAMS].data});
}

const struct bench_op bench_op_sample = {.dim_names = {"seqs", "vocab", "top_k", "top_p_permille"},
                                         .declare = declare_sample,
                                         .prepare = prepare_sample,
                                         .run = run_sample,
                                         .cost = cost_stats};
