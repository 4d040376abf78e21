/* Training steps, log-prob and value passes. dims: sequences, tokens of each. */
#include "bench/training.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/rk_assert.h"

#define NUM_WARM  3
#define NUM_TIMED 8

static struct rk_status *time_training(double *seconds, struct bench_ctx *ctx, const struct bench_case *bench,
                                       const struct bench_instance_desc *desc)
{
    return bench_time_training(seconds, ctx, bench, desc, NUM_WARM, NUM_TIMED);
}

static const struct bench_model *shape_of(const struct bench_ctx *ctx, const struct bench_case *bench)
{
    return bench_shape(ctx, bench->model);
}

static void describe(struct bench_result *result, struct bench_ctx *ctx, const struct bench_case *bench,
                     const char *more)
{
    const int64_t *dims = bench_dims(ctx, bench);

    snprintf(result->shape, sizeof(result->shape), "%s %lldx%lld tokens bf16%s", shape_of(ctx, bench)->name,
             (long long)dims[0], (long long)dims[1], more);
}

/* The output projection's part of the cost of a forward pass. */
static double head_flops(const struct bench_model *model, int64_t num_tokens)
{
    return 2 * (double)num_tokens * (double)model->vocab_size * (double)model->hidden_size;
}

static struct rk_status *run_training(struct bench_ctx *ctx, const struct bench_case *bench,
                                      struct bench_result *result, const struct bench_instance_desc *desc)
{
    const int64_t *dims = bench_dims(ctx, bench);
    struct bench_cost cost = bench_cost_train(shape_of(ctx, bench), dims[0], dims[1]);
    double seconds;

    if (desc->head)
        cost.flops -= 3 * head_flops(shape_of(ctx, bench), dims[0] * dims[1]);
    RK_TRY(time_training(&seconds, ctx, bench, desc));
    bench_set_rate(result, ctx, bench, seconds, cost);
    snprintf(result->note, sizeof(result->note), "%.1f ms, %.1f TFLOP/s, %.1f%% of 989", seconds * 1e3,
             cost.flops / seconds * 1e-12, 100 * cost.flops / seconds / BENCH_DATASHEET_H200);
    return NULL;
}

struct rk_status *bench_run_train(struct bench_ctx *ctx, const struct bench_case *bench,
                                  struct bench_result *result)
{
    describe(result, ctx, bench, ", f32 masters, AdamW");
    return run_training(ctx, bench, result,
                        &(struct bench_instance_desc){.model = bench->model,
                                                      .is_strict = bench->is_strict,
                                                      .training = BENCH_WITH_OPTIMIZER});
}

/* A critic: no output projection in either direction. */
struct rk_status *bench_run_train_value(struct bench_ctx *ctx, const struct bench_case *bench,
                                        struct bench_result *result)
{
    describe(result, ctx, bench, ", f32 masters, AdamW");
    return run_training(ctx, bench, result,
                        &(struct bench_instance_desc){
                            .model = bench->model, .head = "value", .training = BENCH_WITH_OPTIMIZER});
}

/* A step of preference learning: the reference's log-probs, and a step of the policy. */
struct rk_status *bench_run_dpo(struct bench_ctx *ctx, const struct bench_case *bench,
                                struct bench_result *result)
{
    const int64_t *dims = bench_dims(ctx, bench);
    struct bench_instance_desc desc = {.model = bench->model, .training = BENCH_WITH_OPTIMIZER};
    struct bench_instance_desc frozen = {.model = bench->model, .num_tokens = dims[0] * dims[1]};
    struct bench_cost cost = bench_cost_train(shape_of(ctx, bench), dims[0], dims[1]);
    struct bench_instance reference;
    struct bench_training training;
    double seconds = 0;
    struct rk_status *st = bench_instance_open(&reference, ctx, &frozen);

    describe(result, ctx, bench, ", f32 masters, AdamW");
    cost.flops += bench_cost_forward(shape_of(ctx, bench), dims[0], dims[1]).flops;
    if (!st)
        st = bench_training_open(&training, ctx, dims, &desc);
    if (!st) {
        training.frozen = &reference;
        st = bench_time(&seconds, NUM_WARM, NUM_TIMED, bench_training_run, &training);
        bench_training_close(&training);
    }
    bench_instance_close(&reference);
    if (!st)
        bench_set_rate(result, ctx, bench, seconds, cost);
    return st;
}

struct rk_status *bench_run_fwd_bwd(struct bench_ctx *ctx, const struct bench_case *bench,
                                    struct bench_result *result)
{
    describe(result, ctx, bench, ", full recompute, no step");
    return run_training(ctx, bench, result,
                        &(struct bench_instance_desc){
                            .model = bench->model, .recomputes = true, .training = BENCH_GRADIENTS_ONLY});
}

struct rk_status *bench_run_fwd_bwd_kept(struct bench_ctx *ctx, const struct bench_case *bench,
                                         struct bench_result *result)
{
    describe(result, ctx, bench, ", no step");
    return run_training(ctx, bench, result,
                        &(struct bench_instance_desc){.model = bench->model,
                                                      .is_strict = bench->is_strict,
                                                      .training = BENCH_GRADIENTS_ONLY});
}

/* Lower bound of memory without activations: parameters, gradients, masters and two moments. */
struct rk_status *bench_run_peak_memory(struct bench_ctx *ctx, const struct bench_case *bench,
                                        struct bench_result *result)
{
    struct bench_instance_desc desc = {.model = bench->model, .training = BENCH_WITH_OPTIMIZER};
    const double gib = 1 << 30;
    struct rk_device_stats stats;
    struct rk_status *st;
    struct bench_training training;
    double seconds;

    describe(result, ctx, bench, ", f32 masters");
    rk_device_reset_peak(ctx->device);
    st = bench_training_open(&training, ctx, bench_dims(ctx, bench), &desc);
    if (!st)
        st = bench_time(&seconds, 0, 2, bench_training_run, &training);
    stats = rk_device_get_stats(ctx->device);
    bench_training_close(&training);
    result->measured = (double)(stats.peak_bytes + stats.own_bytes) / gib;
    result->bound = bench_num_params(shape_of(ctx, bench)) * (2 + 4 + 4 + 8) / gib;
    return st;
}

/* Sets the overhead in percent, from the seconds of both variants. */
static void set_overhead(struct bench_result *result, double fast, double strict)
{
    result->measured = 100 * (strict / fast - 1);
    snprintf(result->note, sizeof(result->note), "fast %.3f ms, strict %.3f ms", fast * 1e3, strict * 1e3);
}

static struct rk_status *compare_strict(struct bench_ctx *ctx, const struct bench_case *bench,
                                        struct bench_result *result, struct bench_instance_desc desc)
{
    double fast, strict;

    RK_TRY(time_training(&fast, ctx, bench, &desc));
    desc.is_strict = true;
    RK_TRY(time_training(&strict, ctx, bench, &desc));
    set_overhead(result, fast, strict);
    return NULL;
}

struct rk_status *bench_run_strict_train(struct bench_ctx *ctx, const struct bench_case *bench,
                                         struct bench_result *result)
{
    describe(result, ctx, bench, ", step");
    return compare_strict(ctx, bench, result,
                          (struct bench_instance_desc){
                              .model = bench->model, .tp = ctx->num_ranks, .training = BENCH_WITH_OPTIMIZER});
}

struct rk_status *bench_run_strict_fwd_bwd(struct bench_ctx *ctx, const struct bench_case *bench,
                                           struct bench_result *result)
{
    describe(result, ctx, bench, ", no step");
    return compare_strict(
        ctx, bench, result,
        (struct bench_instance_desc){.model = bench->model, .training = BENCH_GRADIENTS_ONLY});
}

/* --- log-probs --- */

static struct rk_status *forward_once(void *user)
{
    struct bench_training *training = user;
    struct rk_head_arrays out = {0};

    out.of[training->output] = training->batch.log_probs;
    if (training->output == RK_HEAD_LOG_PROBS)
        out.of[RK_HEAD_ENTROPY] = training->batch.entropy;
    return rk_model_forward(training->instance.model, &training->batch.packed, 1, NULL, &out);
}

static struct rk_status *run_forward(struct bench_ctx *ctx, const struct bench_case *bench,
                                     struct bench_result *result, const char *head)
{
    const int64_t *dims = bench_dims(ctx, bench);
    struct bench_cost cost = bench_cost_forward(shape_of(ctx, bench), dims[0], dims[1]);
    struct bench_instance_desc desc = {.model = bench->model, .is_strict = bench->is_strict, .head = head};
    struct bench_training training;
    struct rk_status *st = bench_training_open(&training, ctx, dims, &desc);
    double seconds = 0;

    if (head)
        cost.flops -= head_flops(shape_of(ctx, bench), dims[0] * dims[1]);
    describe(result, ctx, bench, head ? "" : bench->is_strict ? ", entropy, strict" : ", entropy");
    if (!st)
        st = bench_time(&seconds, NUM_WARM, NUM_TIMED, forward_once, &training);
    if (!st)
        st = bench_print_profile(ctx, bench, forward_once, &training);
    bench_training_close(&training);
    if (st)
        return st;
    bench_set_rate(result, ctx, bench, seconds, cost);
    snprintf(result->note, sizeof(result->note), "%.1f ms, %.1f TFLOP/s", seconds * 1e3,
             cost.flops / seconds * 1e-12);
    return NULL;
}

struct rk_status *bench_run_log_prob(struct bench_ctx *ctx, const struct bench_case *bench,
                                     struct bench_result *result)
{
    return run_forward(ctx, bench, result, NULL);
}

struct rk_status *bench_run_values(struct bench_ctx *ctx, const struct bench_case *bench,
                                   struct bench_result *result)
{
    return run_forward(ctx, bench, result, "value");
}

/* --- several ranks --- */

struct rk_status *bench_run_dp_scaling(struct bench_ctx *ctx, const struct bench_case *bench,
                                       struct bench_result *result)
{
    struct bench_instance_desc desc = {.model = bench->model, .training = BENCH_WITH_OPTIMIZER};
    double alone, together;

    describe(result, ctx, bench, " a rank, step");
    RK_TRY(time_training(&alone, ctx, bench, &desc)); /* each rank runs independently */
    desc.dp = ctx->num_ranks;
    RK_TRY(time_training(&together, ctx, bench, &desc));
    result->measured = ctx->num_ranks * alone / together;
    result->bound = ctx->num_ranks;
    snprintf(result->note, sizeof(result->note), "1 rank %.1f ms, dp=%d %.1f ms", alone * 1e3, ctx->num_ranks,
             together * 1e3);
    return NULL;
}

struct rk_status *bench_run_tp_speedup(struct bench_ctx *ctx, const struct bench_case *bench,
                                       struct bench_result *result)
{
    struct bench_instance_desc desc = {
        .model = bench->model, .recomputes = true, .training = BENCH_GRADIENTS_ONLY};
    double alone, together, whole;

    describe(result, ctx, bench, ", full recompute, no step");
    RK_TRY(time_training(&alone, ctx, bench, &desc));
    desc.tp = ctx->num_ranks;
    RK_TRY(time_training(&together, ctx, bench, &desc));
    desc.is_whole = true;
    RK_TRY(time_training(&whole, ctx, bench, &desc));
    result->measured = alone / together;
    result->bound = ctx->num_ranks;
    snprintf(result->note, sizeof(result->note), "1 rank %.1f ms, tp=%d %.1f ms, whole rows %.1f ms",
             alone * 1e3, ctx->num_ranks, together * 1e3, whole * 1e3);
    return NULL;
}
