/* Stages of a pipeline: schedules that are cancelled in the middle, and operations that stages refuse. Every
 * rank is a separate process.
 *
 * Cancelling: one rank's hook requests a stop from the n-th query on, for all n of the schedule: all ranks
 * must return CANCELLED, and none may wait for another one. A step after that has the bits of a model that
 * was never cancelled. */
#include "tests/support/test.h"

#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "engine/optim/trainer.h"
#include "tests/support/device.h"
#include "tests/support/models.h"
#include "tests/support/ranks.h"

#define CONFIG                                                                                              \
    "{\"model_type\": \"qwen3\", \"hidden_size\": 16, \"intermediate_size\": 24, \"num_hidden_layers\": 4," \
    " \"num_attention_heads\": 2, \"num_key_value_heads\": 2, \"vocab_size\": 31, \"head_dim\": 8,"         \
    " \"max_position_embeddings\": 64, \"initializer_range\": 0.15}"
#define NUM_TOKENS 12
#define NUM_MICRO  4
#define TIMEOUT_S  120
/* Small, so that there are several buckets and sums over replicas begin in the last backward steps. */
#define BUCKET_ELEMENTS 256

struct layout_case {
    const char *label;
    int32_t tp, cp, dp, pp, vpp;
};

static const struct layout_case cases[] = {
    {"pp=2", 1, 1, 1, 2, 1},      {"pp=2 vpp=2", 1, 1, 1, 2, 2}, {"tp=2 pp=2", 2, 1, 1, 2, 1},
    {"dp=2 pp=2", 1, 1, 2, 2, 1}, {"cp=2 pp=2", 1, 2, 1, 2, 1},  {"dp=2 pp=2 vpp=2", 1, 1, 2, 2, 2},
};

/* The micro-batches of a step, and whether this rank requests a stop while they run. */
struct batch {
    int32_t tokens[NUM_TOKENS], positions[NUM_TOKENS], labels[NUM_TOKENS], cu_seqlens[2];
    struct rk_packed packed;
    struct rk_engine_hooks hooks;
    int64_t num_asked, asked_max; /* a stop is requested from the asked_max-th query on; -1: never */
    double log_probs[NUM_TOKENS];
    struct rk_head_arrays out;
};

static bool is_cancelled(void *user)
{
    struct batch *batch = user;

    return ++batch->num_asked >= batch->asked_max && batch->asked_max >= 0;
}

static void batch_init(struct batch *batch, int64_t asked_max)
{
    *batch = (struct batch){.asked_max = asked_max, .cu_seqlens = {0, NUM_TOKENS}};
    batch->hooks = (struct rk_engine_hooks){.user = batch, .is_cancelled = is_cancelled};
    batch->out.of[RK_HEAD_LOG_PROBS] = batch->log_probs;
    batch->packed = (struct rk_packed){.num_seqs = 1,
                                       .num_tokens = NUM_TOKENS,
                                       .max_seqlen = NUM_TOKENS,
                                       .tokens = batch->tokens,
                                       .positions = batch->positions,
                                       .cu_seqlens = batch->cu_seqlens,
                                       .labels = batch->labels};
}

static void fill(struct batch *batch, int64_t i)
{
    for (int32_t t = 0; t < NUM_TOKENS; t++) {
        batch->tokens[t] = (int32_t)(5 * t + 3 + 7 * i) % 31;
        batch->positions[t] = t;
        batch->labels[t] = (int32_t)(11 * t + 1 + i) % 31;
    }
}

static struct rk_status *loss_fn(void *user, const struct rk_head_arrays *outputs,
                                 const struct rk_head_arrays *grads)
{
    (void)user;
    (void)outputs;
    for (int32_t t = 0; t < NUM_TOKENS; t++)
        grads->of[RK_HEAD_LOG_PROBS][t] = -1.0 / (t + 2);
    return NULL;
}

static struct rk_status *bind_train(void *user, int64_t i, struct rk_train_micro *micro)
{
    struct batch *batch = user;

    fill(batch, i);
    *micro = (struct rk_train_micro){.packed = &batch->packed,
                                     .temperature = 1,
                                     .outputs = RK_HEAD_BIT(RK_HEAD_LOG_PROBS),
                                     .loss_fn = loss_fn,
                                     .hooks = &batch->hooks};
    return NULL;
}

static struct rk_status *bind_forward(void *user, int64_t i, struct rk_forward_micro *micro)
{
    struct batch *batch = user;

    fill(batch, i);
    *micro = (struct rk_forward_micro){
        .packed = &batch->packed, .temperature = 1, .hooks = &batch->hooks, .out = &batch->out};
    return NULL;
}

/* *num_asked: the number of queries on this rank. */
static struct rk_status *train(struct rk_model *model, int64_t asked_max, int64_t *num_asked)
{
    struct batch batch;
    struct rk_status *st;

    batch_init(&batch, asked_max);
    RK_TRY(rk_trainer_begin(rk_model_trainer(model)));
    st = rk_trainer_micro_batches(
        rk_model_trainer(model),
        &(struct rk_train_work){.count = NUM_MICRO, .is_last = true, .bind = bind_train, .user = &batch});
    *num_asked = batch.num_asked;
    return st;
}

static struct rk_status *forward(struct rk_model *model, int64_t asked_max, int64_t *num_asked)
{
    struct batch batch;
    struct rk_status *st;

    batch_init(&batch, asked_max);
    st = rk_model_forward_all(
        model, &(struct rk_forward_work){.count = NUM_MICRO, .bind = bind_forward, .user = &batch});
    *num_asked = batch.num_asked;
    return st;
}

typedef struct rk_status *(*run_fn_t)(struct rk_model *model, int64_t asked_max, int64_t *num_asked);

/* Cancels on every rank in turn, at every query. */
static int cancel_everywhere(struct rk_model *model, struct rk_comm_world *world, run_fn_t run)
{
    int32_t rank = rk_comm_world_rank(world);
    int64_t num_asked, most = 0;

    RK_RANK_OK(run(model, -1, &most));
    RK_RANK_CHECK(most >= NUM_MICRO, "asked %lld times", (long long)most);
    for (int32_t r = 0; r < rk_comm_world_size(world); r++) {
        for (int64_t n = 1; n <= most; n++) {
            struct rk_status *st = run(model, r == rank ? n : -1, &num_asked);

            if (rk_test_rank_check_error(st, RK_CANCELLED, "", "cancelled"))
                return 1;
        }
    }
    return 0;
}

static struct rk_status *open_model(struct rk_test_model *test, const struct layout_case *row,
                                    struct rk_comm_world *world)
{
    struct rk_optim_config optim = rk_test_adamw(1e-2, 0.1, 1.0);

    optim.bucket_elements = BUCKET_ELEMENTS;
    RK_TRY(rk_test_model_open(test, &(struct rk_test_model_spec){
                                        .config = CONFIG,
                                        .seed = 3,
                                        .dtype = RK_DTYPE_F32,
                                        .tp = row->tp,
                                        .cp = row->cp,
                                        .dp = row->dp,
                                        .pp = row->pp,
                                        .vpp = row->vpp,
                                        .world = world,
                                        .stream = rk_test_rank_stream(rk_comm_world_rank(world)),
                                    }));
    return rk_test_enable_training(test->model, &optim);
}

static int compare_weights(const struct rk_model *a, const struct rk_model *b)
{
    size_t bytes = (size_t)a->core->params.num_elements * rk_dtype_bytes(a->core->dtype);
    char *left = rk_calloc(2, bytes), *right = left + bytes;

    RK_RANK_OK(rk_stream_copy(a->core->stream, left, a->core->values, bytes, RK_COPY_D2H));
    RK_RANK_OK(rk_stream_copy(b->core->stream, right, b->core->values, bytes, RK_COPY_D2H));
    RK_RANK_OK(rk_stream_sync(a->core->stream));
    RK_RANK_OK(rk_stream_sync(b->core->stream));
    RK_RANK_CHECK(memcmp(left, right, bytes) == 0, "the weights differ");
    rk_free(left);
    return 0;
}

static int run_rank(struct rk_comm_world *world, void *user)
{
    const struct layout_case *row = user;
    struct rk_test_model straight, cancelled;
    struct rk_step_stats stats;
    int64_t num_asked;

    RK_RANK_OK(open_model(&straight, row, world));
    RK_RANK_OK(open_model(&cancelled, row, world));
    if (cancel_everywhere(cancelled.model, world, train) ||
        cancel_everywhere(cancelled.model, world, forward))
        return 1;
    for (int step = 0; step < 2; step++) {
        RK_RANK_OK(train(straight.model, -1, &num_asked));
        RK_RANK_OK(rk_trainer_step(rk_model_trainer(straight.model), &stats));
        RK_RANK_OK(train(cancelled.model, -1, &num_asked));
        RK_RANK_OK(rk_trainer_step(rk_model_trainer(cancelled.model), &stats));
    }
    if (compare_weights(straight.model, cancelled.model))
        return 1;
    rk_test_model_close(&straight);
    rk_test_model_close(&cancelled);
    return 0;
}

static void test_cancel_in_a_schedule_ends_all_ranks_and_leaves_the_model_usable(void **state)
{
    (void)state;
    for (size_t c = 0; c < RK_ARRAY_LEN(cases); c++)
        rk_test_run_case(cases[c].label, cases[c].tp * cases[c].cp * cases[c].dp * cases[c].pp, run_rank,
                         &cases[c], TIMEOUT_S);
}

/* Goal: operations that need a whole model are refused with a message that names the alternative. */
static int refuse_rank(struct rk_comm_world *world, void *user)
{
    static double logits[NUM_TOKENS * 31];
    struct rk_test_model test;
    struct batch batch;

    RK_RANK_OK(open_model(&test, user, world));
    batch_init(&batch, -1);
    fill(&batch, 0);
    if (rk_test_rank_check_error(rk_model_logits(test.model, &batch.packed, logits), RK_FAILED_PRECONDITION,
                                 "", "logits: the model is one of 2 pipeline stages, expected pp=1"))
        return 1;
    rk_test_model_close(&test);
    return 0;
}

static void test_logits_of_a_stage_are_refused(void **state)
{
    (void)state;
    rk_test_run_case(cases[0].label, 2, refuse_rank, &cases[0], TIMEOUT_S);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cancel_in_a_schedule_ends_all_ranks_and_leaves_the_model_usable),
        cmocka_unit_test(test_logits_of_a_stage_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
