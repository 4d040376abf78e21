/* Gradients of 16 bits that are accumulated in F32, each shard on the rank that updates it. The reference is
 * accumulation in F32 on every rank. Every rank is a separate process. */
#include "tests/support/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "engine/optim/trainer.h"
#include "tests/support/device.h"
#include "tests/support/models.h"
#include "tests/support/ranks.h"

/* One key-value head: with tp=2 its gradient has a summand on each rank. */
#define CONFIG                                                                                              \
    "{\"model_type\": \"qwen3\", \"hidden_size\": 32, \"intermediate_size\": 48, \"num_hidden_layers\": 2," \
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 1, \"vocab_size\": 67, \"head_dim\": 8,"         \
    " \"max_position_embeddings\": 64, \"initializer_range\": 0.15}"
#define NUM_TOKENS      20
#define NUM_REPEATS     64
#define BUCKET_ELEMENTS 4096 /* several */
#define TIMEOUT_S       60

struct layout_case {
    const char *label;
    int32_t tp, dp;
};

static const struct layout_case cases[] = {{"dp=2", 1, 2}, {"tp=2 dp=2", 2, 2}, {"dp=4", 1, 4}};

static struct rk_status *loss_fn(void *user, const struct rk_head_arrays *outputs,
                                 const struct rk_head_arrays *grads)
{
    (void)outputs;
    for (int32_t t = 0; t < *(const int64_t *)user; t++)
        grads->of[RK_HEAD_LOG_PROBS][t] = -1.0 / (t + 2);
    return NULL;
}

/* Replicas have different tokens; the last one has none in every third micro-batch. */
static struct rk_status *micro_batch(struct rk_model *model, int32_t index, bool is_last)
{
    int32_t dp_rank = model->core->params.coords.axis[RK_AXIS_DP];
    bool is_empty = index % 3 == 2 && dp_rank == model->trainer->shards.of[RK_GRAD_DENSE].num_shards - 1;
    int32_t shift = index + 13 * dp_rank;
    int32_t tokens[NUM_TOKENS], positions[NUM_TOKENS], labels[NUM_TOKENS];
    const int32_t cu_seqlens[] = {0, is_empty ? 0 : NUM_TOKENS};
    const struct rk_packed packed = {.num_seqs = is_empty ? 0 : 1,
                                     .num_tokens = is_empty ? 0 : NUM_TOKENS,
                                     .max_seqlen = is_empty ? 0 : NUM_TOKENS,
                                     .tokens = tokens,
                                     .positions = positions,
                                     .cu_seqlens = cu_seqlens,
                                     .labels = labels};

    for (int32_t t = 0; t < NUM_TOKENS; t++) {
        tokens[t] = (5 * t + 3 + 7 * shift) % 67;
        positions[t] = t;
        labels[t] = (11 * t + 1 + shift) % 67;
    }
    return rk_trainer_micro_batch(rk_model_trainer(model),
                                  &(struct rk_train_micro){.packed = &packed,
                                                           .temperature = 1,
                                                           .outputs = RK_HEAD_BIT(RK_HEAD_LOG_PROBS),
                                                           .is_last = is_last,
                                                           .loss_fn = loss_fn,
                                                           .user = (void *)&packed.num_tokens});
}

static struct rk_status *open_model(struct rk_test_model *test, const struct layout_case *row,
                                    struct rk_comm_world *world, bool adds_in_shards)
{
    struct rk_optim_config optim = rk_test_adamw(1e-2, 0.1, 1.0);

    optim.bucket_elements = BUCKET_ELEMENTS;
    optim.adds_in_shards = adds_in_shards;
    RK_TRY(
        rk_test_model_open(test, &(struct rk_test_model_spec){
                                     .config = CONFIG,
                                     .seed = 3,
                                     .dtype = RK_DTYPE_BF16,
                                     .tp = row->tp,
                                     .dp = row->dp,
                                     .world = world,
                                     .stream = world ? rk_test_rank_stream(rk_comm_world_rank(world)) : NULL,
                                 }));
    return rk_test_enable_training(test->model, &optim);
}

/* The sums of this rank's shard after micro-batches first to first + count - 1, the first of them `repeats`
 * times; rk_free it. */
static struct rk_status *sum_grads(struct rk_model *model, int32_t count, int32_t repeats, double **out,
                                   int64_t *num_elements)
{
    const struct rk_trainer *trainer = model->trainer;
    const struct rk_trainer_group *group = &trainer->groups[RK_GRAD_DENSE];
    float *host = rk_calloc((size_t)trainer->shard_count, sizeof(*host));
    int64_t total = 0;

    RK_TRY(rk_trainer_begin(rk_model_trainer(model)));
    for (int32_t i = 0; i < count * repeats; i++)
        RK_TRY(micro_batch(model, i / repeats, i == count * repeats - 1));
    RK_TRY(rk_trainer_zero_stale(rk_model_trainer(model)));
    RK_TRY(rk_trainer_reduce(rk_model_trainer(model)));
    for (int64_t s = 0; s < group->segments.count; s++) {
        rk_tensor_t grads = rk_trainer_segment_grads(trainer, &group->segments.items[s]);

        RK_ASSERT(grads.dtype == RK_DTYPE_F32);
        RK_TRY(rk_stream_copy(model->core->stream, host + total, grads.data, rk_tensor_bytes(grads),
                              RK_COPY_D2H));
        total += rk_tensor_num_elements(grads);
    }
    RK_TRY(rk_stream_sync(model->core->stream));
    *out = rk_calloc((size_t)total, sizeof(**out));
    *num_elements = total;
    for (int64_t i = 0; i < total; i++)
        (*out)[i] = host[i];
    rk_free(host);
    return NULL;
}

/* Goal: the sums equal those in F32 except for the rounding of each summand. */
static int compare_sums(struct rk_model *whole, struct rk_model *shards)
{
    double *expected, *actual, error;
    int64_t num_expected, num_actual;

    for (int32_t count = 1; count <= 3; count += 2) {
        RK_RANK_OK(sum_grads(whole, count, 1, &expected, &num_expected));
        RK_RANK_OK(sum_grads(shards, count, 1, &actual, &num_actual));
        RK_RANK_CHECK(num_actual == num_expected, "%lld elements", (long long)num_actual);
        error = rk_test_error_by_max(actual, expected, num_actual);
        RK_RANK_CHECK(error <= RK_TOL_BF16_PRODUCT, "%d micro-batches: error %g", count, error);
        RK_RANK_CHECK(error > 0, "nothing was rounded");
        rk_free(expected);
        rk_free(actual);
    }
    return 0;
}

/* Goal: the sum itself has F32's precision: 64 repetitions of a micro-batch give 64 times its gradient,
 * whereas a sum in 16 bits would have an error of the order of 0.001. */
static int check_precision(struct rk_model *shards)
{
    double *once = NULL, *often = NULL, error;
    int64_t num_elements = 0;

    RK_RANK_OK(sum_grads(shards, 1, 1, &once, &num_elements));
    RK_RANK_OK(sum_grads(shards, 1, NUM_REPEATS, &often, &num_elements));
    for (int64_t i = 0; i < num_elements; i++)
        once[i] *= NUM_REPEATS;
    error = rk_test_error_by_max(often, once, num_elements);
    RK_RANK_CHECK(error <= RK_TOL_F32_SUM, "error %g", error);
    rk_free(once);
    rk_free(often);
    return 0;
}

/* Goal: steps use the sums and give the same results as with F32. A step without micro-batches has no
 * sums. */
static int compare_steps(struct rk_model *whole, struct rk_model *shards)
{
    struct rk_step_stats expected, actual;

    for (int32_t step = 0; step < 3; step++) {
        RK_RANK_OK(rk_trainer_begin(rk_model_trainer(whole)));
        RK_RANK_OK(rk_trainer_begin(rk_model_trainer(shards)));
        for (int32_t m = 0; m < 2; m++) {
            RK_RANK_OK(micro_batch(whole, 2 * step + m, m == 1));
            RK_RANK_OK(micro_batch(shards, 2 * step + m, m == 1));
        }
        RK_RANK_OK(rk_trainer_step(rk_model_trainer(whole), &expected));
        RK_RANK_OK(rk_trainer_step(rk_model_trainer(shards), &actual));
        RK_RANK_CHECK(fabs(actual.grad_norm - expected.grad_norm) <= RK_TOL_BF16_MODEL * expected.grad_norm,
                      "step %d: norm %g, expected %g", step, actual.grad_norm, expected.grad_norm);
    }
    RK_RANK_OK(rk_trainer_begin(rk_model_trainer(shards)));
    RK_RANK_OK(rk_trainer_step(rk_model_trainer(shards), &actual));
    RK_RANK_CHECK(actual.grad_norm == 0, "norm %g without a micro-batch", actual.grad_norm);
    return 0;
}

/* Goal: the memory is 2 bytes per element, 4 per element of the shard, and one bucket, instead of 4 bytes per
 * element. */
static int compare_memory(const struct rk_model *whole, const struct rk_model *shards)
{
    uint64_t count = (uint64_t)whole->trainer->num_elements, shard = (uint64_t)whole->trainer->shard_count;
    uint64_t bucket = (uint64_t)whole->trainer->groups[RK_GRAD_DENSE].buckets.items[0].count;
    uint64_t of_whole = rk_model_get_memory(whole).grad_bytes,
             of_shards = rk_model_get_memory(shards).grad_bytes;

    RK_RANK_CHECK(of_whole == 4 * count, "%llu bytes", (unsigned long long)of_whole);
    RK_RANK_CHECK(of_shards == 2 * count + rk_round_up(4 * shard, 256) + 2 * bucket, "%llu bytes",
                  (unsigned long long)of_shards);
    RK_RANK_CHECK(rk_model_get_memory(whole).optimizer_bytes == rk_model_get_memory(shards).optimizer_bytes,
                  "other states");
    return 0;
}

static int run_rank(struct rk_comm_world *world, void *user)
{
    const struct layout_case *row = user;
    struct rk_test_model whole, shards;
    int64_t num_compared;

    RK_RANK_OK(open_model(&whole, row, world, false));
    RK_RANK_OK(open_model(&shards, row, world, true));
    if (compare_memory(whole.model, shards.model) || compare_sums(whole.model, shards.model) ||
        check_precision(shards.model) || compare_steps(whole.model, shards.model))
        return 1;
    RK_RANK_OK(rk_model_verify_replicas(shards.model, NULL, &num_compared));
    rk_test_model_close(&whole);
    rk_test_model_close(&shards);
    return 0;
}

static void test_sums_in_shards_are_those_in_f32(void **state)
{
    (void)state;
    for (size_t c = 0; c < RK_ARRAY_LEN(cases); c++)
        rk_test_run_case(cases[c].label, cases[c].tp * cases[c].dp, run_rank, &cases[c], TIMEOUT_S);
}

/* Goal: with one replica gradients stay in F32: the same bits. */
static void test_one_replica_keeps_f32(void **state)
{
    static const struct layout_case alone = {"alone", 1, 1};
    struct rk_test_model whole, shards;
    int64_t num_expected, num_actual;
    double *expected = NULL, *actual = NULL;

    (void)state;
    assert_ok(open_model(&whole, &alone, NULL, false));
    assert_ok(open_model(&shards, &alone, NULL, true));
    assert_ok(sum_grads(whole.model, 2, 1, &expected, &num_expected));
    assert_ok(sum_grads(shards.model, 2, 1, &actual, &num_actual));
    assert_int_equal(num_actual, num_expected);
    assert_memory_equal(actual, expected, (size_t)num_actual * sizeof(*actual));
    assert_int_equal(rk_model_get_memory(shards.model).grad_bytes,
                     rk_model_get_memory(whole.model).grad_bytes);
    rk_free(expected);
    rk_free(actual);
    rk_test_model_close(&whole);
    rk_test_model_close(&shards);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        /* First, since it forks. */
        cmocka_unit_test(test_sums_in_shards_are_those_in_f32),
        cmocka_unit_test(test_one_replica_keeps_f32),
    };

    return cmocka_run_group_tests_name("shard_grads", tests, NULL, NULL);
}
