/* Losses against verl's and TRL's own functions in float64 (golden/losses, made by
 * golden/gen/make_losses.py). */
#include "tests/support/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/format/rk_safetensors.h"
#include "base/rk_str.h"
#include "tests/support/losses.h"

/* Columns of the inputs' config, in the script's order. */
enum {
    AGG_MODE,
    NUM_TOKENS,
    NUM_SEQUENCES,
    SCALE,
    HAS_IS_WEIGHTS,
    CLIP_RATIO_LOW,
    CLIP_RATIO_HIGH,
    CLIP_RATIO_C,
    TAU_POS,
    TAU_NEG,
    CLIP_COV_RATIO,
    CLIP_COV_LB,
    CLIP_COV_UB,
    KL_COV_RATIO,
    PPO_KL_COEF,
    DRO_BETA,
    CLIPRANGE_VALUE,
    KL_TYPE,
    LOSS_MAX_CLAMP,
    USE_POLICY_GRADIENT,
    NUM_CONFIG
};

#define DISTILL "distillation.distillation_loss."
#define FIXTURE "golden/losses/"

/* --- the cases --- */
struct inputs {
    int64_t num_cases, num_config;
    double *rows, *lengths, *mask, *config;
    double *log_probs, *old, *advantages, *is_weights, *ref;
};

static struct inputs inputs, pairs;

/* Offsets of a case in the tensors by rows and by tokens. */
struct place {
    int64_t row, token;
};

static struct rk_test_batch take_case(const struct inputs *all, int64_t i, const struct place *place)
{
    const double *config = all->config + i * all->num_config;
    struct rk_test_batch batch = {.num_seqs = (int32_t)all->rows[i], .mode = RK_AGG_TOKEN_SUM};
    int64_t n;

    for (int32_t row = 0; row < batch.num_seqs; row++)
        batch.cu_seqlens[row + 1] = batch.cu_seqlens[row] + (int32_t)all->lengths[place->row + row];
    n = batch.cu_seqlens[batch.num_seqs];
    assert_true(n <= RK_TEST_LOSS_TOKENS);
    for (int64_t t = 0; t < n; t++) {
        int64_t at = place->token + t;

        batch.mask[t] = all->mask[at] != 0.0;
        batch.outputs[RK_HEAD_LOG_PROBS][t] = all->log_probs[at];
        batch.columns[RK_LOSS_REF_LOG_PROB][t] = batch.columns[RK_LOSS_TEACHER_LOG_PROBS][t] = all->ref[at];
        if (!all->old)
            continue;
        batch.outputs[RK_HEAD_VALUES][t] = all->log_probs[at];
        batch.columns[RK_LOSS_OLD_LOG_PROBS][t] = batch.columns[RK_LOSS_VALUES][t] = all->old[at];
        batch.columns[RK_LOSS_ADVANTAGES][t] = batch.columns[RK_LOSS_RETURNS][t] = all->advantages[at];
        batch.columns[RK_LOSS_WEIGHTS][t] = all->advantages[at];
        batch.columns[RK_LOSS_ROLLOUT_IS_WEIGHTS][t] = all->is_weights[at];
    }
    batch.absent = RK_LOSS_BIT(RK_LOSS_SEQUENCE_RATIO_MASK);
    batch.global.num_sequences = batch.num_seqs;
    if (!all->old)
        return batch;
    batch.mode = (rk_loss_agg_mode_t)config[AGG_MODE];
    batch.global = (struct rk_loss_denominators){config[NUM_TOKENS], config[NUM_SEQUENCES], config[SCALE]};
    if (config[HAS_IS_WEIGHTS] == 0.0)
        batch.absent |= RK_LOSS_BIT(RK_LOSS_ROLLOUT_IS_WEIGHTS);
    return batch;
}

/* Puts NaN at the tokens outside the mask, which the losses must not read. */
static void poison(struct rk_test_batch *batch)
{
    for (int32_t t = 0; t < batch->cu_seqlens[batch->num_seqs]; t++) {
        if (batch->mask[t])
            continue;
        for (int i = 0; i < RK_HEAD_OUTPUT_COUNT; i++)
            batch->outputs[i][t] = NAN;
        for (int i = 0; i < RK_LOSS_COLUMN_COUNT; i++)
            batch->columns[i][t] = NAN;
    }
}

static char *make_options(const double *c)
{
    return rk_format("{\"clip_ratio_low\": %.17g, \"clip_ratio_high\": %.17g, \"clip_ratio_c\": %.17g,"
                     " \"tau_pos\": %.17g, \"tau_neg\": %.17g, \"policy_loss.clip_cov_ratio\": %.17g,"
                     " \"policy_loss.clip_cov_lb\": %.17g, \"policy_loss.clip_cov_ub\": %.17g,"
                     " \"policy_loss.kl_cov_ratio\": %.17g, \"policy_loss.ppo_kl_coef\": %.17g,"
                     " \"policy_loss.dro_beta\": %.17g, \"cliprange_value\": %.17g, \"beta\": %.17g,"
                     " \"clip_low_threshold\": %.17g, \"clip_high_threshold\": %.17g}",
                     c[CLIP_RATIO_LOW], c[CLIP_RATIO_HIGH], c[CLIP_RATIO_C], c[TAU_POS], c[TAU_NEG],
                     c[CLIP_COV_RATIO], c[CLIP_COV_LB], c[CLIP_COV_UB], c[KL_COV_RATIO], c[PPO_KL_COEF],
                     c[DRO_BETA], c[CLIPRANGE_VALUE], c[DRO_BETA], 1.0 - c[CLIP_RATIO_LOW],
                     1.0 + c[CLIP_RATIO_HIGH]);
}

static char *make_distill_options(const double *c)
{
    static const char *const types[] = {"k1", "abs", "k2", "k3"};
    char *clamp = c[LOSS_MAX_CLAMP] > 0.0 ? rk_format("%.17g", c[LOSS_MAX_CLAMP]) : rk_format("null");
    char *options = rk_format("{\"distillation.enabled\": true, \"" DISTILL "loss_mode\": \"%s\","
                              " \"" DISTILL "use_policy_gradient\": %s, \"" DISTILL "loss_max_clamp\": %s,"
                              " \"" DISTILL "clip_ratio_low\": %.17g, \"" DISTILL "clip_ratio_high\": %.17g}",
                              types[(int)c[KL_TYPE]], c[USE_POLICY_GRADIENT] != 0.0 ? "true" : "false", clamp,
                              c[CLIP_RATIO_LOW], c[CLIP_RATIO_HIGH]);

    rk_free(clamp);
    return options;
}

/* --- expected results --- */
struct golden {
    const char *name; /* of the fixture's tensors */
    const struct rk_st_file *file;
    double *loss, *grad;
    double *metrics[RK_LOSS_METRICS_MAX]; /* by metric of the row; NULL: not in the fixture */
};

static double *find_tensor(const struct golden *golden, const char *metric)
{
    const char *slash = strchr(metric, '/');
    char *name = rk_format("%s.%s", golden->name, slash ? slash + 1 : metric);
    double *values = rk_st_find(golden->file, name) ? rk_test_fixture_tensor(golden->file, name, NULL) : NULL;

    rk_free(name);
    return values;
}

static struct golden open_golden(const struct rk_st_file *file, const char *name, const struct rk_loss *row)
{
    struct golden golden = {.name = name, .file = file};

    golden.loss = find_tensor(&golden, "loss");
    golden.grad = find_tensor(&golden, "grad");
    assert_non_null(golden.loss);
    assert_non_null(golden.grad);
    for (int32_t i = 1; i < row->ops->num_metrics; i++)
        golden.metrics[i] = find_tensor(&golden, row->ops->metrics[i].name);
    return golden;
}

static void close_golden(struct golden *golden)
{
    rk_free(golden->loss);
    rk_free(golden->grad);
    for (int i = 0; i < RK_LOSS_METRICS_MAX; i++)
        rk_free(golden->metrics[i]);
}

/* Relative to the expected number and to the case's largest, because of cancellation in f64. */
static void assert_near(const char *label, double actual, double expected, double largest)
{
    assert_below(label, fabs(actual - expected), RK_TOL_LOSS_GOLDEN * fabs(expected) + RK_TOL_F64 * largest);
}

static double largest_of(const double *values, int64_t count)
{
    double largest = 0.0;

    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, fabs(values[i]));
    return largest;
}

static void check_case(const struct rk_test_loss *loss, const struct rk_test_batch *batch,
                       const struct golden *golden, int64_t i, int64_t token)
{
    struct rk_test_loss_result result = rk_test_loss_run(loss, batch);
    int head = loss->ops->outputs == RK_HEAD_BIT(RK_HEAD_VALUES) ? RK_HEAD_VALUES : RK_HEAD_LOG_PROBS;
    int64_t num_tokens = batch->cu_seqlens[batch->num_seqs], counted = 0;
    double largest = fmax(1.0, largest_of(golden->grad + token, num_tokens));
    char label[96];

    for (int64_t t = 0; t < num_tokens; t++) {
        snprintf(label, sizeof(label), "%s, case %d, token %d", golden->name, (int)i, (int)t);
        assert_near(label, result.grads[head][t], golden->grad[token + t], largest);
        counted += batch->mask[t];
    }
    snprintf(label, sizeof(label), "%s, case %d", golden->name, (int)i);
    assert_near(label, result.metrics[0], golden->loss[i], fmax(largest, fabs(golden->loss[i])));
    for (int32_t k = 1; k < loss->ops->num_metrics; k++) {
        double expected = golden->metrics[k] ? golden->metrics[k][i] : 0.0;

        snprintf(label, sizeof(label), "%s, case %d, %s", golden->name, (int)i, loss->ops->metrics[k].name);
        if (loss->ops->metrics[k].reduce == RK_LOSS_SUM) /* verl's means are over the tokens here */
            expected *= (double)counted / batch->global.num_tokens;
        if (golden->metrics[k] && counted > 0)
            assert_near(label, result.metrics[k], expected, 1.0);
    }
}

static void check_loss(const struct rk_st_file *file, const char *name, const struct rk_loss *row,
                       rk_loss_agg_mode_t mode)
{
    struct golden golden;
    struct place place = {0};

    assert_non_null(row);
    golden = open_golden(file, name, row);
    for (int64_t i = 0; i < inputs.num_cases; i++) {
        const double *config = inputs.config + i * inputs.num_config;
        char *options = strcmp(name, "distill") == 0 ? make_distill_options(config) : make_options(config);
        struct rk_test_batch batch = take_case(&inputs, i, &place);
        struct rk_test_loss loss;

        if (mode != RK_AGG_COUNT)
            batch.mode = mode;
        poison(&batch);
        assert_ok(rk_test_loss_read(&loss, row, options));
        check_case(&loss, &batch, &golden, i, place.token);
        place.row += batch.num_seqs;
        place.token += batch.cu_seqlens[batch.num_seqs];
        rk_free(options);
    }
    close_golden(&golden);
}

/* Goal: loss, gradient and metrics of every policy loss equal those of verl's function. */
static void test_policy_losses_equal_verl(void **state)
{
    static const char *const names[] = {"vanilla", "gspo", "sapo",     "gpg",    "cispo",   "dppo_tv",
                                        "dppo_kl", "dro",  "clip_cov", "kl_cov", "geo_mean"};
    struct rk_st_file *file = rk_test_fixture_open(FIXTURE "policy.safetensors");

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(names); i++)
        check_loss(file, names[i], rk_loss_find(RK_OBJECTIVE_POLICY, names[i]), RK_AGG_COUNT);
    rk_st_close(file);
}

/* Goal: the same for the value loss and the SFT loss. */
static void test_value_and_sft_loss_equal_verl(void **state)
{
    struct rk_st_file *file = rk_test_fixture_open(FIXTURE "other.safetensors");

    (void)state;
    check_loss(file, "value", rk_loss_find(RK_OBJECTIVE_VALUE, "value"), RK_AGG_COUNT);
    check_loss(file, "sft", rk_loss_find(RK_OBJECTIVE_SFT, "sft"), RK_AGG_TOKEN_MEAN);
    rk_st_close(file);
}

/* Goal: the same for distillation on the sampled tokens, as a loss and as an advantage. */
static void test_distillation_loss_equals_verl(void **state)
{
    struct rk_st_file *file = rk_test_fixture_open(FIXTURE "other.safetensors");

    (void)state;
    check_loss(file, "distill", rk_test_distill_row("k3"), RK_AGG_COUNT);
    rk_st_close(file);
}

/* Goal: the sums equal autograd of their definitions. */
static void test_sums_equal_their_definitions(void **state)
{
    static const char *const names[] = {"cross_entropy", "importance_sampling", "ppo", "cispo", "dro",
                                        "gspo"};
    struct rk_st_file *file = rk_test_fixture_open(FIXTURE "other.safetensors");

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(names); i++) {
        char *name = rk_format("sum_%s", names[i]);

        check_loss(file, name, rk_loss_find(RK_OBJECTIVE_SUM, names[i]), RK_AGG_TOKEN_SUM);
        rk_free(name);
    }
    rk_st_close(file);
}

/* --- pairs --- */
static void check_pairs(const struct rk_test_loss *loss, const struct rk_test_batch *batch,
                        const struct golden *golden, int64_t i, int64_t row)
{
    struct rk_test_loss_result result = rk_test_loss_run(loss, batch);
    double largest = fmax(1.0, largest_of(golden->grad + row, batch->num_seqs));
    char label[96];

    snprintf(label, sizeof(label), "%s, case %d", golden->name, (int)i);
    assert_near(label, result.metrics[0], golden->loss[i], fmax(largest, fabs(golden->loss[i])));
    for (int32_t s = 0; s < batch->num_seqs; s++) {
        int32_t begin = batch->cu_seqlens[s], end = batch->cu_seqlens[s + 1];

        for (int32_t t = begin; t < end; t++)
            assert_near(label, result.grads[RK_HEAD_LOG_PROBS][t],
                        batch->mask[t] ? golden->grad[row + s] : 0.0, largest);
    }
}

/* Goal: every loss of pairs, and its gradient, equals that of TRL's function. */
static void test_preference_losses_equal_trl(void **state)
{
    static const char *const names[] = {"sigmoid",  "robust",       "hinge",    "ipo",
                                        "ipo_sum",  "sigmoid_norm", "exo_pair", "apo_zero",
                                        "apo_down", "nca_pair",     "sppo_hard"};
    const struct rk_loss *row = rk_loss_find(RK_OBJECTIVE_DPO, "dpo");
    struct rk_st_file *file = rk_test_fixture_open(FIXTURE "pairs.safetensors");

    (void)state;
    assert_non_null(row);
    for (size_t k = 0; k < RK_ARRAY_LEN(names); k++) {
        struct golden golden = open_golden(file, names[k], row);
        struct place place = {0};

        for (int64_t i = 0; i < pairs.num_cases; i++) {
            const double *config = pairs.config + i * pairs.num_config;
            double smoothing = config[1] == 0.0 && strcmp(names[k], "exo_pair") == 0 ? 1e-3 : config[1];
            char *options = rk_format("{\"loss_type\": \"%s\", \"beta\": %.17g, \"label_smoothing\": %.17g}",
                                      names[k], config[0], smoothing);
            struct rk_test_batch batch = take_case(&pairs, i, &place);
            struct rk_test_loss loss;

            poison(&batch);
            assert_ok(rk_test_loss_read(&loss, row, options));
            check_pairs(&loss, &batch, &golden, i, place.row);
            place.row += batch.num_seqs;
            place.token += batch.cu_seqlens[batch.num_seqs];
            rk_free(options);
        }
        close_golden(&golden);
    }
    rk_st_close(file);
}

static int load(void **state)
{
    struct rk_st_file *file = rk_test_fixture_open(FIXTURE "inputs.safetensors"),
                      *pair_file = rk_test_fixture_open(FIXTURE "pairs.safetensors");
    int64_t n;

    (void)state;
    inputs.rows = rk_test_fixture_tensor(file, "rows", &inputs.num_cases);
    inputs.lengths = rk_test_fixture_tensor(file, "lengths", NULL);
    inputs.mask = rk_test_fixture_tensor(file, "mask", NULL);
    inputs.config = rk_test_fixture_tensor(file, "config", &n);
    inputs.num_config = n / inputs.num_cases;
    assert_int_equal(inputs.num_config, NUM_CONFIG);
    assert_true(inputs.num_cases >= 200);
    inputs.log_probs = rk_test_fixture_tensor(file, "log_probs", NULL);
    inputs.old = rk_test_fixture_tensor(file, "old_log_probs", NULL);
    inputs.advantages = rk_test_fixture_tensor(file, "advantages", NULL);
    inputs.is_weights = rk_test_fixture_tensor(file, "is_weights", NULL);
    inputs.ref = rk_test_fixture_tensor(file, "ref", NULL);
    rk_st_close(file);

    pairs.rows = rk_test_fixture_tensor(pair_file, "rows", &pairs.num_cases);
    pairs.lengths = rk_test_fixture_tensor(pair_file, "lengths", NULL);
    pairs.mask = rk_test_fixture_tensor(pair_file, "mask", NULL);
    pairs.config = rk_test_fixture_tensor(pair_file, "config", &n);
    pairs.num_config = n / pairs.num_cases;
    pairs.log_probs = rk_test_fixture_tensor(pair_file, "log_probs", NULL);
    pairs.ref = rk_test_fixture_tensor(pair_file, "ref", NULL);
    rk_st_close(pair_file);
    return 0;
}

static int unload(void **state)
{
    struct inputs *const both[] = {&inputs, &pairs};

    (void)state;
    for (int i = 0; i < 2; i++) {
        double *const tensors[] = {both[i]->rows,       both[i]->lengths,    both[i]->mask,
                                   both[i]->config,     both[i]->old,        both[i]->ref,
                                   both[i]->advantages, both[i]->is_weights, both[i]->log_probs};

        for (size_t k = 0; k < RK_ARRAY_LEN(tensors); k++)
            rk_free(tensors[k]);
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_policy_losses_equal_verl),
        cmocka_unit_test(test_value_and_sft_loss_equal_verl),
        cmocka_unit_test(test_distillation_loss_equals_verl),
        cmocka_unit_test(test_sums_equal_their_definitions),
        cmocka_unit_test(test_preference_losses_equal_trl),
    };

    return cmocka_run_group_tests(tests, load, unload);
}
