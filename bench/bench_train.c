/* Training steps and log-prob passes. dims: sequences, tokens of each. */
#include "bench/models.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/rk_assert.h"

#define NUM_WARM       3
#define NUM_TIMED      8
#define DATASHEET_H200 989e12 /* bf16 FLOP/s: what model FLOPs utilisation (MFU) is usually given of */

struct training {
    struct bench_instance instance;
    struct bench_batch batch;
    double token_weight;
    bool steps; /* the optimizer too */
};

/* The mean of the negative log-probs. */
static struct rk_status *loss(void *user, const struct rk_head_arrays *outputs,
                              const struct rk_head_arrays *grads)
{
    double *dlog_probs = grads->of[RK_HEAD_LOG_PROBS];
    const struct training *training = user;

    (void)outputs;
    for (int64_t t = 0; t < training->batch.packed.num_tokens; t++)
        dlog_probs[t] = -training->token_weight;
    return NULL;
}

static struct rk_status *train_once(void *user)
{
    struct training *training = user;
    struct rk_model *model = training->instance.model;
    struct rk_train_micro micro = {.packed = &training->batch.packed,
                                   .temperature = 1,
                                   .outputs = RK_HEAD_BIT(RK_HEAD_LOG_PROBS),
                                   .loss_fn = loss,
                                   .user = training,
                                   .is_last = training->steps};
    struct rk_step_stats stats;

    RK_TRY(rk_train_begin(model));
    RK_TRY(rk_train_micro_batch(model, &micro));
    return training->steps ? rk_train_step(model, &stats) : NULL;
}

static void training_close(struct training *training)
{
    bench_instance_close(&training->instance);
    bench_batch_fini(&training->batch);
}

static struct rk_status *training_open(struct training *training, struct bench_ctx *ctx, const int64_t *dims,
                                       const struct bench_instance_desc *desc)
{
    struct bench_instance_desc full = *desc;

    full.num_tokens = dims[0] * dims[1];
    *training = (struct training){.steps = desc->training == BENCH_WITH_OPTIMIZER,
                                  .token_weight = 1 / (double)(dims[0] * (dims[1] - 1))};
    RK_TRY(bench_instance_open(&training->instance, ctx, &full));
    bench_batch_init(&training->batch, (int32_t)dims[0], (int32_t)dims[1],
                     training->instance.shape.vocab_size);
    return NULL;
}

/* One more run, with the operators of rank 0 printed. */
static struct rk_status *print_profile(struct bench_ctx *ctx, const struct bench_case *bench,
                                       struct rk_status *(*run)(void *user), void *user)
{
    if (!ctx->options->profiles)
        return NULL;
    bench_profile_clear();
    RK_TRY(run(user));
    RK_TRY(rk_stream_sync(ctx->stream));
    return ctx->rank == 0 ? bench_profile_print(bench->name, &ctx->ceilings) : NULL;
}

/* Seconds of a step on a model made for it. */
static struct rk_status *time_training(double *seconds, struct bench_ctx *ctx, const struct bench_case *bench,
                                       const struct bench_instance_desc *desc)
{
    struct training training;
    struct rk_status *st = training_open(&training, ctx, bench_dims(ctx, bench), desc);

    if (!st)
        st = bench_time(seconds, NUM_WARM, NUM_TIMED, train_once, &training);
    if (!st)
        st = print_profile(ctx, bench, train_once, &training);
    training_close(&training);
    return st;
}

static const struct bench_model *shape_of(const struct bench_ctx *ctx, const struct bench_case *bench)
{
    return ctx->options->is_tiny ? &bench_model_tiny : bench->model;
}

static void describe(struct bench_result *result, struct bench_ctx *ctx, const struct bench_case *bench,
                     const char *more)
{
    const int64_t *dims = bench_dims(ctx, bench);

    snprintf(result->shape, sizeof(result->shape), "%s %lldx%lld tokens bf16%s", shape_of(ctx, bench)->name,
             (long long)dims[0], (long long)dims[1], more);
}

static struct rk_status *run_training(struct bench_ctx *ctx, const struct bench_case *bench,
                                      struct bench_result *result, const struct bench_instance_desc *desc)
{
    const int64_t *dims = bench_dims(ctx, bench);
    struct bench_cost cost = bench_cost_train(shape_of(ctx, bench), dims[0], dims[1]);
    double seconds;

    RK_TRY(time_training(&seconds, ctx, bench, desc));
    bench_set_rate(result, ctx, bench, seconds, cost);
    snprintf(result->note, sizeof(result->note), "%.1f ms, %.1f TFLOP/s, %.1f%% of 989", seconds * 1e3,
             cost.flops / seconds * 1e-12, 100 * cost.flops / seconds / DATASHEET_H200);
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

struct rk_status *bench_run_fwd_bwd(struct bench_ctx *ctx, const struct bench_case *bench,
                                    struct bench_result *result)
{
    describe(result, ctx, bench, ", full recompute, no step");
    return run_training(ctx, bench, result,
                        &(struct bench_instance_desc){
                            .model = bench->model, .recomputes = true, .training = BENCH_GRADIENTS_ONLY});
}

/* What a step without activations must hold: parameters, gradients, masters and two moments. */
struct rk_status *bench_run_peak_memory(struct bench_ctx *ctx, const struct bench_case *bench,
                                        struct bench_result *result)
{
    struct bench_instance_desc desc = {.model = bench->model, .training = BENCH_WITH_OPTIMIZER};
    const double gib = 1 << 30;
    struct rk_device_stats stats;
    struct rk_status *st;
    struct training training;
    double seconds;

    describe(result, ctx, bench, ", f32 masters");
    rk_device_reset_peak(ctx->device);
    st = training_open(&training, ctx, bench_dims(ctx, bench), &desc);
    if (!st)
        st = bench_time(&seconds, 0, 2, train_once, &training);
    stats = rk_device_get_stats(ctx->device);
    training_close(&training);
    result->measured = (double)(stats.peak_bytes + stats.own_bytes) / gib;
    result->bound = bench_num_params(shape_of(ctx, bench)) * (2 + 4 + 4 + 8) / gib;
    return st;
}

/* In percent, from seconds of the same thing both ways. */
static void set_overhead(struct bench_result *result, double fast, double strict)
{
    result->measured = 100 * (strict / fast - 1);
    snprintf(result->note, sizeof(result->note), "fast %.3f ms, strict %.3f ms", fast * 1e3, strict * 1e3);
}

struct rk_status *bench_run_strict_train(struct bench_ctx *ctx, const struct bench_case *bench,
                                         struct bench_result *result)
{
    struct bench_instance_desc desc = {
        .model = bench->model, .tp = ctx->num_ranks, .training = BENCH_WITH_OPTIMIZER};
    double fast, strict;

    describe(result, ctx, bench, ", step");
    RK_TRY(time_training(&fast, ctx, bench, &desc));
    desc.is_strict = true;
    RK_TRY(time_training(&strict, ctx, bench, &desc));
    set_overhead(result, fast, strict);
    return NULL;
}

/* --- log-probs --- */

static struct rk_status *log_prob_once(void *user)
{
    struct training *training = user;

    return rk_model_forward(training->instance.model, &training->batch.packed, 1, NULL,
                            &(struct rk_head_arrays){{training->batch.log_probs, training->batch.entropy}});
}

struct rk_status *bench_run_log_prob(struct bench_ctx *ctx, const struct bench_case *bench,
                                     struct bench_result *result)
{
    const int64_t *dims = bench_dims(ctx, bench);
    struct bench_cost cost = bench_cost_forward(shape_of(ctx, bench), dims[0], dims[1]);
    struct bench_instance_desc desc = {.model = bench->model, .is_strict = bench->is_strict};
    struct training training;
    struct rk_status *st = training_open(&training, ctx, dims, &desc);
    double seconds = 0;

    describe(result, ctx, bench, bench->is_strict ? ", entropy, strict" : ", entropy");
    if (!st)
        st = bench_time(&seconds, NUM_WARM, NUM_TIMED, log_prob_once, &training);
    if (!st)
        st = print_profile(ctx, bench, log_prob_once, &training);
    training_close(&training);
    if (st)
        return st;
    bench_set_rate(result, ctx, bench, seconds, cost);
    snprintf(result->note, sizeof(result->note), "%.1f ms, %.1f TFLOP/s", seconds * 1e3,
             cost.flops / seconds * 1e-12);
    return NULL;
}

/* --- several ranks --- */

struct rk_status *bench_run_dp_scaling(struct bench_ctx *ctx, const struct bench_case *bench,
                                       struct bench_result *result)
{
    struct bench_instance_desc desc = {.model = bench->model, .training = BENCH_WITH_OPTIMIZER};
    double alone, together;

    describe(result, ctx, bench, " a rank, step");
    RK_TRY(time_training(&alone, ctx, bench, &desc)); /* every rank for itself */
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
    double alone, together;

    describe(result, ctx, bench, ", full recompute, no step");
    RK_TRY(time_training(&alone, ctx, bench, &desc));
    desc.tp = ctx->num_ranks;
    RK_TRY(time_training(&together, ctx, bench, &desc));
    result->measured = alone / together;
    result->bound = ctx->num_ranks;
    snprintf(result->note, sizeof(result->note), "1 rank %.1f ms, tp=%d %.1f ms", alone * 1e3, ctx->num_ranks,
             together * 1e3);
    return NULL;
}
