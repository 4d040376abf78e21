/* Training steps of a model with random weights. */
#include "bench/training.h"

/* The mean of the negative log-probs, or of values: a loss of a single output of the head. */
static struct rk_status *loss(void *user, const struct rk_head_arrays *outputs,
                              const struct rk_head_arrays *grads)
{
    const struct bench_training *training = user;
    double *grad = grads->of[training->output];

    (void)outputs;
    for (int64_t t = 0; t < training->batch.packed.num_tokens; t++)
        grad[t] = -training->token_weight;
    return NULL;
}

static struct rk_status *bind(void *user, int64_t i, struct rk_train_micro *micro)
{
    struct bench_training *training = user;

    (void)i;
    *micro = (struct rk_train_micro){.packed = &training->batch.packed,
                                     .temperature = 1,
                                     .outputs = RK_HEAD_BIT(training->output),
                                     .loss_fn = loss,
                                     .user = training};
    return NULL;
}

static struct rk_status *on_step(void *user, struct rk_pipeline_step step, bool is_done)
{
    struct bench_training *training = user;

    return training->on_step ? training->on_step(training->on_step_user, step, is_done) : NULL;
}

struct rk_status *bench_training_run(void *user)
{
    struct bench_training *training = user;
    struct rk_trainer *trainer = training->instance.trainer;
    struct rk_train_work work = {.count = training->num_micros,
                                 .is_last = training->steps,
                                 .bind = bind,
                                 .on_step = on_step,
                                 .user = training};
    struct rk_step_stats stats;

    if (training->frozen)
        RK_TRY(rk_model_forward(training->frozen->model, &training->batch.packed, 1, NULL,
                                &(struct rk_head_arrays){.of = {training->batch.log_probs}}));
    RK_TRY(rk_trainer_begin(trainer));
    RK_TRY(rk_trainer_micro_batches(trainer, &work));
    return training->steps ? rk_trainer_step(trainer, &stats) : NULL;
}

void bench_training_close(struct bench_training *training)
{
    bench_instance_close(&training->instance);
    bench_batch_fini(&training->batch);
}

struct rk_status *bench_training_open(struct bench_training *training, struct bench_ctx *ctx,
                                      const int64_t *dims, const struct bench_instance_desc *desc)
{
    struct bench_instance_desc full = *desc;
    int64_t num_micros = desc->num_micros > 0 ? desc->num_micros : 1;

    full.num_tokens = dims[0] * dims[1];
    *training = (struct bench_training){.num_micros = num_micros,
                                        .steps = desc->training == BENCH_WITH_OPTIMIZER,
                                        .output = desc->head ? RK_HEAD_VALUES : RK_HEAD_LOG_PROBS,
                                        .token_weight = 1 / (double)(num_micros * dims[0] * (dims[1] - 1))};
    RK_TRY(bench_instance_open(&training->instance, ctx, &full));
    bench_batch_init(&training->batch, (int32_t)dims[0], (int32_t)dims[1],
                     training->instance.shape.vocab_size);
    return NULL;
}

struct rk_status *bench_print_profile(struct bench_ctx *ctx, const struct bench_case *bench,
                                      struct rk_status *(*run)(void *user), void *user)
{
    if (!ctx->options->profiles)
        return NULL;
    bench_profile_clear();
    RK_TRY(run(user));
    RK_TRY(rk_stream_sync(ctx->stream));
    return ctx->rank == 0 ? bench_profile_print(bench->name, &ctx->ceilings) : NULL;
}

struct rk_status *bench_time_training(double *seconds, struct bench_ctx *ctx, const struct bench_case *bench,
                                      const struct bench_instance_desc *desc, int num_warm, int num_timed)
{
    struct bench_training training;
    struct rk_status *st = bench_training_open(&training, ctx, bench_dims(ctx, bench), desc);

    if (!st)
        st = bench_time(seconds, num_warm, num_timed, bench_training_run, &training);
    if (!st)
        st = bench_print_profile(ctx, bench, bench_training_run, &training);
    bench_training_close(&training);
    return st;
}
