/* Log-probs of several ids per position, their gradients, and the most likely ids, on layouts of the
 * vocabulary.
 *
 * The reference of log-probs and of the most likely ids is the softmax of rk_model_logits in f64. The
 * reference of the gradient is the label's path, which other tests cover: one pass per id, with this id as
 * the label. */
#include "tests/support/test.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_rng.h"
#include "engine/model/model.h"
#include "tests/support/device.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/models.h"
#include "tests/support/ranks.h"

#define NUM_TOKENS    23
#define VOCAB_SIZE    131 /* prime; 33 columns on each of 4 ranks, the last with padding */
#define NUM_IDS_MAX   VOCAB_SIZE
#define ELEMENTS_MAX  100000
#define TEMPERATURE   0.8
#define CHUNK_TOKENS  7 /* does not divide the labels */
#define RUN_TIMEOUT_S 120

static const char config[] =
    "{\"model_type\": \"llama\", \"hidden_size\": 32, \"intermediate_size\": 64, \"num_hidden_layers\": 2,"
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 4, \"vocab_size\": 131,"
    " \"max_position_embeddings\": 64, \"initializer_range\": 0.3, \"tie_word_embeddings\": false}";

struct ids_case {
    const char *label;
    int32_t tp, num_ids;
    rk_numerics_t numerics;
    rk_dtype_t dtype;
};

static const struct ids_case cases[] = {
    {"f32 one id", 1, 1, RK_NUMERICS_FAST, RK_DTYPE_F32},
    {"f32 tp=2", 2, 5, RK_NUMERICS_FAST, RK_DTYPE_F32},
    {"f32 strict tp=2", 2, 5, RK_NUMERICS_STRICT, RK_DTYPE_F32},
    {"f32 tp=4, more ids than columns", 4, 40, RK_NUMERICS_FAST, RK_DTYPE_F32},
    {"f32 whole vocabulary", 1, VOCAB_SIZE, RK_NUMERICS_FAST, RK_DTYPE_F32},
    {"f32 strict tp=4, whole vocabulary", 4, VOCAB_SIZE, RK_NUMERICS_STRICT, RK_DTYPE_F32},
    {"bf16 tp=2", 2, 5, RK_NUMERICS_FAST, RK_DTYPE_BF16},
    {"f64", 1, 5, RK_NUMERICS_FAST, RK_DTYPE_F64},
    {"f64 tp=2", 2, 5, RK_NUMERICS_FAST, RK_DTYPE_F64},
    {"f64 tp=4, whole vocabulary", 4, VOCAB_SIZE, RK_NUMERICS_FAST, RK_DTYPE_F64},
};

/* Three sequences; prompts and last tokens have no label. */
static const int32_t cu_seqlens[] = {0, 9, 10, NUM_TOKENS};

struct batch {
    struct rk_packed packed;
    int32_t tokens[NUM_TOKENS], positions[NUM_TOKENS], labels[NUM_TOKENS];
    int32_t num_ids, ids[NUM_TOKENS * NUM_IDS_MAX];
    double dlog_probs[NUM_TOKENS * NUM_IDS_MAX];
};

static void make_batch(struct batch *batch, int32_t num_ids)
{
    struct rk_rng rng;

    *batch = (struct batch){.num_ids = num_ids};
    rk_rng_init(&rng, rk_test_seed(), 0);
    for (int s = 0; s < 3; s++) {
        for (int32_t t = cu_seqlens[s]; t < cu_seqlens[s + 1]; t++) {
            batch->tokens[t] = (int32_t)rk_rng_next_below(&rng, VOCAB_SIZE);
            batch->positions[t] = t - cu_seqlens[s];
            batch->labels[t] = t > cu_seqlens[s] && t + 1 < cu_seqlens[s + 1]
                                   ? (int32_t)rk_rng_next_below(&rng, VOCAB_SIZE)
                                   : RK_LABEL_NONE;
        }
    }
    /* Some positions hold no id, and ids may repeat. */
    for (int32_t i = 0; i < NUM_TOKENS * num_ids; i++) {
        batch->ids[i] =
            num_ids == VOCAB_SIZE ? i % num_ids : (int32_t)rk_rng_next_below(&rng, VOCAB_SIZE + 9);
        if (batch->ids[i] >= VOCAB_SIZE)
            batch->ids[i] = -1;
        batch->dlog_probs[i] = rk_rng_next_normal(&rng);
    }
    batch->packed = (struct rk_packed){.num_seqs = 3,
                                       .num_tokens = NUM_TOKENS,
                                       .max_seqlen = 13,
                                       .tokens = batch->tokens,
                                       .positions = batch->positions,
                                       .cu_seqlens = cu_seqlens,
                                       .labels = batch->labels};
}

/* --- one rank --- */

struct run {
    const struct ids_case *row;
    const struct batch *batch;
    struct rk_test_rendezvous *rendezvous;
};

static double tolerance_of(const struct ids_case *row)
{
    return row->dtype == RK_DTYPE_F64    ? RK_TOL_F64_SUM
           : row->dtype == RK_DTYPE_BF16 ? RK_TOL_BF16_MODEL
                                         : RK_TOL_F32_SUM;
}

/* log_softmax of all logits, [NUM_TOKENS, VOCAB_SIZE]. */
static struct rk_status *make_log_softmax(struct rk_model *model, const struct rk_packed *packed, double *out)
{
    RK_TRY(rk_model_logits(model, packed, out));
    for (int t = 0; t < NUM_TOKENS; t++) {
        double *row = out + t * VOCAB_SIZE, largest = -INFINITY, sum = 0.0;

        for (int j = 0; j < VOCAB_SIZE; j++) {
            row[j] *= (double)(float)(1.0 / TEMPERATURE);
            largest = fmax(largest, row[j]);
        }
        for (int j = 0; j < VOCAB_SIZE; j++)
            sum += exp(row[j] - largest);
        for (int j = 0; j < VOCAB_SIZE; j++)
            row[j] -= largest + log(sum);
    }
    return NULL;
}

static bool is_near(double actual, double expected, double tolerance)
{
    return fabs(actual - expected) <= tolerance * fmax(1.0, fabs(expected));
}

/* Checks the ids against the largest values of `expected`; values may differ by rounding from the sorted
 * ones.
 */
static int check_top(const struct ids_case *row, const int32_t *ids, const double *log_probs,
                     const double *expected)
{
    bool is_seen[VOCAB_SIZE] = {false};

    for (int32_t k = 0; k < row->num_ids; k++) {
        int32_t num_larger = 0;

        RK_RANK_CHECK(ids[k] >= 0 && ids[k] < VOCAB_SIZE, "%s: id %d", row->label, ids[k]);
        RK_RANK_CHECK(!is_seen[ids[k]], "%s: id %d twice", row->label, ids[k]);
        is_seen[ids[k]] = true;
        RK_RANK_CHECK(is_near(log_probs[k], expected[ids[k]], tolerance_of(row)), "%s: log-prob %g, not %g",
                      row->label, log_probs[k], expected[ids[k]]);
        if (k > 0)
            RK_RANK_CHECK(log_probs[k] < log_probs[k - 1] ||
                              (log_probs[k] == log_probs[k - 1] && ids[k] > ids[k - 1]),
                          "%s: id %d behind %d", row->label, ids[k], ids[k - 1]);
        for (int32_t j = 0; j < VOCAB_SIZE; j++)
            num_larger += expected[j] > expected[ids[k]] + 2.0 * tolerance_of(row);
        RK_RANK_CHECK(num_larger <= k, "%s: %d ids are more likely than number %d", row->label, num_larger,
                      k);
    }
    return 0;
}

static int check_forward(struct rk_model *model, const struct run *run)
{
    const struct batch *batch = run->batch;
    int32_t num_ids = batch->num_ids, top_ids[NUM_TOKENS * NUM_IDS_MAX];
    double *expected = rk_calloc(NUM_TOKENS * VOCAB_SIZE, sizeof(*expected));
    double labels[NUM_TOKENS], log_probs[NUM_TOKENS * NUM_IDS_MAX], top[NUM_TOKENS * NUM_IDS_MAX];
    double labels_alone[NUM_TOKENS];
    struct rk_head_arrays arrays = {
        .of = {[RK_HEAD_LOG_PROBS] = labels},
        .ids = {num_ids, batch->ids, log_probs, top_ids, top},
    };

    RK_RANK_OK(make_log_softmax(model, &batch->packed, expected));
    RK_RANK_OK(rk_model_forward(model, &batch->packed, TEMPERATURE, NULL, &arrays));
    for (int t = 0; t < NUM_TOKENS; t++) {
        bool has_label = batch->labels[t] != RK_LABEL_NONE;

        for (int32_t k = 0; k < num_ids; k++) {
            int32_t id = batch->ids[t * num_ids + k];
            double want = has_label && id >= 0 ? expected[t * VOCAB_SIZE + id] : 0.0;

            RK_RANK_CHECK(is_near(log_probs[t * num_ids + k], want, tolerance_of(run->row)),
                          "%s: token %d, id %d: %g, expected %g", run->row->label, t, id,
                          log_probs[t * num_ids + k], want);
        }
        if (has_label &&
            check_top(run->row, top_ids + t * num_ids, top + t * num_ids, expected + t * VOCAB_SIZE))
            return 1;
        if (!has_label)
            RK_RANK_CHECK(top_ids[t * num_ids] == -1 && top[t * num_ids] == 0.0, "%s: token %d has no label",
                          run->row->label, t);
    }
    arrays = (struct rk_head_arrays){.of = {[RK_HEAD_LOG_PROBS] = labels_alone}};
    RK_RANK_OK(rk_model_forward(model, &batch->packed, TEMPERATURE, NULL, &arrays));
    RK_RANK_CHECK(memcmp(labels, labels_alone, sizeof(labels)) == 0, "%s: ids change the label's log-prob",
                  run->row->label);
    rk_free(expected);
    return 0;
}

/* --- gradients --- */

static struct rk_status *ids_loss(void *user, const struct rk_head_arrays *outputs,
                                  const struct rk_head_arrays *grads)
{
    const struct batch *batch = user;

    (void)outputs;
    for (int t = 0; t < NUM_TOKENS; t++) {
        for (int32_t k = 0; k < batch->num_ids; k++) {
            int32_t i = t * batch->num_ids + k;

            if (batch->labels[t] != RK_LABEL_NONE && batch->ids[i] >= 0)
                grads->ids.log_probs[i] = batch->dlog_probs[i];
        }
    }
    return NULL;
}

struct one_id {
    const struct batch *batch;
    int32_t k;
};

static struct rk_status *label_loss(void *user, const struct rk_head_arrays *outputs,
                                    const struct rk_head_arrays *grads)
{
    const struct one_id *one = user;

    (void)outputs;
    for (int t = 0; t < NUM_TOKENS; t++) {
        int32_t i = t * one->batch->num_ids + one->k;

        if (one->batch->labels[t] != RK_LABEL_NONE && one->batch->ids[i] >= 0)
            grads->of[RK_HEAD_LOG_PROBS][t] = one->batch->dlog_probs[i];
    }
    return NULL;
}

static struct rk_status *gather_grads(struct rk_model *model, double *out, int64_t *count)
{
    *count = 0;
    for (int64_t i = 0; i < rk_model_num_params(model); i++) {
        const struct rk_param *param = rk_model_param_at(model, i);

        RK_TRY(rk_trainer_gather_grad(rk_model_trainer(model), i, out + *count));
        *count += param->shape[0] * param->shape[1];
    }
    return NULL;
}

static struct rk_status *run_ids(struct rk_model *model, const struct batch *batch)
{
    struct rk_train_micro micro = {.packed = &batch->packed,
                                   .temperature = TEMPERATURE,
                                   .outputs = RK_HEAD_BIT(RK_HEAD_LOG_PROBS),
                                   .num_ids = batch->num_ids,
                                   .ids = batch->ids,
                                   .loss_fn = ids_loss,
                                   .user = (void *)batch};

    RK_TRY(rk_trainer_begin(rk_model_trainer(model)));
    return rk_trainer_micro_batch(rk_model_trainer(model), &micro);
}

/* Runs one micro-batch per id, with the id as the label. */
static struct rk_status *run_labels(struct rk_model *model, const struct batch *batch)
{
    int32_t labels[NUM_TOKENS];
    struct rk_packed packed = batch->packed;
    struct one_id one = {.batch = batch};
    const struct rk_train_micro micro = {.packed = &packed,
                                         .temperature = TEMPERATURE,
                                         .outputs = RK_HEAD_BIT(RK_HEAD_LOG_PROBS),
                                         .loss_fn = label_loss,
                                         .user = &one};

    packed.labels = labels;
    RK_TRY(rk_trainer_begin(rk_model_trainer(model)));
    for (one.k = 0; one.k < batch->num_ids; one.k++) {
        for (int t = 0; t < NUM_TOKENS; t++)
            labels[t] = batch->labels[t] == RK_LABEL_NONE ? RK_LABEL_NONE
                                                          : RK_MAX(batch->ids[t * batch->num_ids + one.k], 0);
        RK_TRY(rk_trainer_micro_batch(rk_model_trainer(model), &micro));
    }
    return NULL;
}

static int check_gradients(struct rk_model *model, const struct run *run)
{
    double *actual = rk_calloc(ELEMENTS_MAX, sizeof(*actual));
    double *expected = rk_calloc(ELEMENTS_MAX, sizeof(*expected));
    double error;
    int64_t count;

    RK_RANK_OK(run_ids(model, run->batch));
    RK_RANK_OK(gather_grads(model, actual, &count));
    RK_RANK_OK(run_labels(model, run->batch));
    RK_RANK_OK(gather_grads(model, expected, &count));
    error = rk_test_error_by_max(actual, expected, count);
    RK_RANK_CHECK(error < tolerance_of(run->row), "%s: gradients differ by %g", run->row->label, error);
    rk_free(actual);
    rk_free(expected);
    return 0;
}

static int run_rank(int32_t rank, int32_t num_ranks, void *user)
{
    const struct run *run = user;
    struct rk_optim_config optim = rk_test_adamw(1e-3, 0.0, 0.0);
    struct rk_test_model_spec spec = {.config = config,
                                      .seed = 7,
                                      .dtype = run->row->dtype,
                                      .numerics = run->row->numerics,
                                      .tp = run->row->tp,
                                      .dp = 1,
                                      .stream = rk_test_rank_stream(rank)};
    struct rk_test_model test;

    if (num_ranks > 1)
        RK_RANK_OK(rk_test_world_create(&spec.world, run->rendezvous, rank, num_ranks, "unix", NULL));
    RK_RANK_OK(rk_test_model_open(&test, &spec));
    test.model->core->head.chunk_tokens = CHUNK_TOKENS;
    RK_RANK_OK(rk_test_enable_training(test.model, &optim));
    if (check_forward(test.model, run) || check_gradients(test.model, run))
        return 1;
    rk_test_model_close(&test);
    rk_comm_world_destroy(spec.world);
    return 0;
}

static bool is_run(const struct ids_case *row)
{
    if (row->dtype == RK_DTYPE_F64 && rk_test_device_dtype() != RK_DTYPE_F64)
        return false;
    return row->tp <= rk_test_device_max_ranks();
}

/* Goal: log-probs, gradients and the most likely ids are right on every layout. Method: the table above. */
static void test_head_ids_on_layouts_equal_references(void **state)
{
    struct batch *batch = rk_calloc(1, sizeof(*batch));

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct run run = {.row = &cases[i], .batch = batch};

        if (!is_run(&cases[i]))
            continue;
        make_batch(batch, cases[i].num_ids);
        run.rendezvous = rk_test_rendezvous_create();
        print_message("  %s\n", cases[i].label);
        if (rk_test_run_ranks(cases[i].tp, run_rank, &run, RUN_TIMEOUT_S) != 0)
            fail_msg("%s: ranks failed", cases[i].label);
        rk_test_rendezvous_destroy(run.rendezvous);
    }
    rk_free(batch);
}

static int run_bad_id(int32_t rank, int32_t num_ranks, void *user)
{
    const struct run *run = user;
    struct rk_test_model_spec spec = {.config = config,
                                      .seed = 7,
                                      .dtype = RK_DTYPE_F32,
                                      .tp = 1,
                                      .dp = 1,
                                      .stream = rk_test_rank_stream(rank)};
    double log_probs[NUM_TOKENS];
    struct rk_test_model test;
    struct rk_status *st;

    (void)num_ranks;
    RK_RANK_OK(rk_test_model_open(&test, &spec));
    st = rk_model_forward(test.model, &run->batch->packed, TEMPERATURE, NULL,
                          &(struct rk_head_arrays){.ids = {1, run->batch->ids, log_probs, NULL, NULL}});
    RK_RANK_CHECK(rk_status_code(st) == RK_OUT_OF_RANGE, "%s", rk_status_message(st));
    RK_RANK_CHECK(strstr(rk_status_message(st), "131") && strstr(rk_status_message(st), "130"), "%s",
                  rk_status_message(st));
    rk_status_free(st);
    rk_test_model_close(&test);
    return 0;
}

/* Goal: an id outside the vocabulary is named. */
static void test_head_ids_beyond_the_vocabulary_are_refused(void **state)
{
    struct batch *batch = rk_calloc(1, sizeof(*batch));
    struct run run = {.row = &cases[0], .batch = batch};

    (void)state;
    make_batch(batch, 1);
    for (int t = 0; t < NUM_TOKENS; t++)
        batch->ids[t] = VOCAB_SIZE;
    assert_int_equal(rk_test_run_ranks(1, run_bad_id, &run, RUN_TIMEOUT_S), 0);
    rk_free(batch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_head_ids_on_layouts_equal_references),
        cmocka_unit_test(test_head_ids_beyond_the_vocabulary_are_refused),
    };

    rk_fake_nccl_setup();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
