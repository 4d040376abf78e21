/* Decoding: all sequences run together; every step samples one token of each. dims: sequences, context length
 * in the middle of the timed steps, steps. Several ranks use tp. Steps are timed by the engine's hook after
 * each step: the last ones before a sequence ends, when all prompts have been prefilled. */
#include "bench/models.h"

#include <stdio.h>

#include "base/rk_alloc.h"
#include "base/rk_rng.h"
#include "base/rk_time.h"

/* Steps before the timed ones: more than prefill needs. */
#define STEPS_WARM     48
#define BATCHED_TOKENS 8192

struct decoding {
    struct bench_instance instance;
    struct rk_rollout_request *requests;
    struct rk_rollout_result *results;
    int32_t *tokens; /* prompts, followed by responses */
    float *log_probs;
    int64_t num_seqs, num_steps;
    int32_t prompt_len;
    int64_t *step_ns; /* end times of the last steps: a ring of num_steps + 1 */
    int64_t num_ended;
};

static void note_step(void *user, const char *phase, uint64_t done, uint64_t total)
{
    struct decoding *decoding = user;

    (void)phase;
    (void)total;
    if (done > 0)
        return;
    decoding->step_ns[decoding->num_ended++ % (decoding->num_steps + 1)] = rk_time_now_ns();
}

static void fill_requests(struct decoding *decoding)
{
    int32_t max_tokens = (int32_t)(decoding->num_steps + STEPS_WARM);
    int32_t *responses = decoding->tokens + decoding->num_seqs * decoding->prompt_len;
    struct rk_rng rng;

    rk_rng_init(&rng, 5, 1);
    for (int64_t i = 0; i < decoding->num_seqs * decoding->prompt_len; i++)
        decoding->tokens[i] = (int32_t)rk_rng_next_below(&rng, decoding->instance.shape.vocab_size);
    for (int64_t i = 0; i < decoding->num_seqs; i++) {
        decoding->requests[i] =
            (struct rk_rollout_request){.prompt = decoding->tokens + i * decoding->prompt_len,
                                        .prompt_len = decoding->prompt_len,
                                        .max_tokens = max_tokens,
                                        .temperature = 1,
                                        .top_p = 1,
                                        .seed = 3,
                                        .stream = (uint64_t)i};
        decoding->results[i] = (struct rk_rollout_result){.tokens = responses + i * max_tokens,
                                                          .log_probs = decoding->log_probs + i * max_tokens};
    }
}

static void decoding_close(struct decoding *decoding)
{
    bench_instance_close(&decoding->instance);
    rk_free(decoding->requests);
    rk_free(decoding->results);
    rk_free(decoding->tokens);
    rk_free(decoding->log_probs);
    rk_free(decoding->step_ns);
}

static struct rk_status *decoding_open(struct decoding *decoding, struct bench_ctx *ctx,
                                       const struct bench_case *bench, bool is_strict)
{
    const int64_t *dims = bench_dims(ctx, bench);
    int64_t response_len = dims[2] + STEPS_WARM, prompt_len = dims[1] - STEPS_WARM - dims[2] / 2;
    struct rk_rollout_config config = {.max_num_seqs = (int32_t)dims[0],
                                       .max_num_batched_tokens = BATCHED_TOKENS,
                                       .max_model_len = prompt_len + response_len};

    *decoding =
        (struct decoding){.num_seqs = dims[0], .num_steps = dims[2], .prompt_len = (int32_t)prompt_len};
    RK_TRY(bench_instance_open(
        &decoding->instance, ctx,
        &(struct bench_instance_desc){
            .model = bench->model, .tp = ctx->num_ranks, .is_strict = is_strict, .rollout = &config}));
    decoding->requests = rk_calloc((size_t)dims[0], sizeof(*decoding->requests));
    decoding->results = rk_calloc((size_t)dims[0], sizeof(*decoding->results));
    decoding->tokens = rk_calloc((size_t)(dims[0] * (prompt_len + response_len)), sizeof(int32_t));
    decoding->log_probs = rk_calloc((size_t)(dims[0] * response_len), sizeof(float));
    decoding->step_ns = rk_calloc((size_t)dims[2] + 1, sizeof(int64_t));
    fill_requests(decoding);
    return NULL;
}

/* Mean seconds of the last steps of a generation. */
static struct rk_status *time_steps(double *seconds, struct decoding *decoding)
{
    struct rk_engine_hooks hooks = {.user = decoding, .on_progress = note_step};
    int64_t ring = decoding->num_steps + 1;

    decoding->num_ended = 0;
    RK_TRY(rk_rollout_generate(decoding->instance.rollout, decoding->requests, decoding->num_seqs,
                               decoding->results, &hooks));
    if (decoding->num_ended < ring)
        return RK_FAIL(RK_INTERNAL, "the engine reported %lld steps, expected at least %lld",
                       (long long)decoding->num_ended, (long long)ring);
    *seconds = (double)(decoding->step_ns[(decoding->num_ended - 1) % ring] -
                        decoding->step_ns[decoding->num_ended % ring]) *
               1e-9 / (double)decoding->num_steps;
    return NULL;
}

static struct rk_status *measure(double *seconds, struct bench_ctx *ctx, const struct bench_case *bench,
                                 bool is_strict)
{
    struct decoding decoding;
    struct rk_status *st = decoding_open(&decoding, ctx, bench, is_strict);

    if (!st)
        st = time_steps(seconds, &decoding); /* warm-up: records graphs and tunes GEMMs */
    if (!st && ctx->options->profiles)
        bench_profile_clear();
    if (!st)
        st = time_steps(seconds, &decoding);
    if (!st && ctx->options->profiles)
        st = bench_profile_print(bench->name, &ctx->ceilings);
    decoding_close(&decoding);
    return st;
}

static void describe(struct bench_result *result, struct bench_ctx *ctx, const struct bench_case *bench)
{
    const int64_t *dims = bench_dims(ctx, bench);

    snprintf(result->shape, sizeof(result->shape), "%s %lld seqs, context %lld, sampling, bf16%s",
             bench_shape(ctx, bench->model)->name, (long long)dims[0], (long long)dims[1],
             bench->is_strict ? " strict" : "");
}

/* Cost of one rank: weights and keys are split over all ranks. */
static struct bench_cost cost_of_rank(const struct bench_ctx *ctx, const struct bench_case *bench)
{
    const int64_t *dims = bench_dims(ctx, bench);
    struct bench_cost cost = bench_cost_decode(bench_shape(ctx, bench->model), dims[0], dims[1]);

    cost.flops /= ctx->num_ranks;
    cost.bytes /= ctx->num_ranks;
    return cost;
}

struct rk_status *bench_run_decode(struct bench_ctx *ctx, const struct bench_case *bench,
                                   struct bench_result *result)
{
    double seconds;

    describe(result, ctx, bench);
    RK_TRY(measure(&seconds, ctx, bench, bench->is_strict));
    bench_set_rate(result, ctx, bench, seconds, cost_of_rank(ctx, bench));
    snprintf(result->note, sizeof(result->note), "%.3f ms a step", seconds * 1e3);
    return NULL;
}

struct rk_status *bench_run_strict_decode(struct bench_ctx *ctx, const struct bench_case *bench,
                                          struct bench_result *result)
{
    double fast, strict;

    describe(result, ctx, bench);
    RK_TRY(measure(&fast, ctx, bench, false));
    RK_TRY(measure(&strict, ctx, bench, true));
    result->measured = 100 * (strict / fast - 1);
    snprintf(result->note, sizeof(result->note), "fast %.3f ms, strict %.3f ms per step", fast * 1e3,
             strict * 1e3);
    return NULL;
}
