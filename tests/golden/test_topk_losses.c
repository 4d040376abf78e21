/* Distillation over the teacher's top-k against verl's and TRL's own functions in float64
 * (golden/topk_losses, made by golden/gen/make_topk_losses.py), gradients with respect to the student's
 * logits; and against finite differences. */
#include "tests/support/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_rng.h"
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
    LOSS_MAX_CLAMP,
    USE_POLICY_GRADIENT,
    TOPK,
    VOCAB_SIZE,
    BETA,
    LOG_PROB_MIN_CLAMP,
    RENORMALIZE_TOPK,
    NUM_CONFIG
};

#define DISTILL   "distillation.distillation_loss."
#define FIXTURE   "golden/topk_losses/"
#define VOCAB_MAX 16

static const char *const modes[] = {"forward_kl_topk", "reverse_kl_topk", "jsd_topk"};

enum { ROWS, LENGTHS, MASK, CONFIG, LOGITS, IDS, TEACHER, LABELS, OLD, IS_WEIGHTS, NUM_INPUTS };

static const char *const input_names[NUM_INPUTS] = {
    [ROWS] = "rows",
    [LENGTHS] = "lengths",
    [MASK] = "mask",
    [CONFIG] = "config",
    [LOGITS] = "logits",
    [IDS] = "ids",
    [TEACHER] = "teacher_log_probs",
    [LABELS] = "labels",
    [OLD] = "old",
    [IS_WEIGHTS] = "is_weights",
};

static double *inputs[NUM_INPUTS];
static int64_t num_cases;

/* --- one micro-batch: the head's outputs for the student's logits, and the batch of the row --- */

struct micro {
    int64_t num_tokens, vocab_size, num_ids;
    double logits[RK_TEST_LOSS_TOKENS * VOCAB_MAX], log_softmax[RK_TEST_LOSS_TOKENS * VOCAB_MAX];
    int32_t labels[RK_TEST_LOSS_TOKENS];
    int32_t ids[RK_TEST_LOSS_TOKENS * VOCAB_MAX], top_ids[RK_TEST_LOSS_TOKENS * VOCAB_MAX];
    double log_probs[RK_TEST_LOSS_TOKENS * VOCAB_MAX], teacher[RK_TEST_LOSS_TOKENS * VOCAB_MAX];
    double id_grads[RK_TEST_LOSS_TOKENS * VOCAB_MAX];
    struct rk_test_batch batch;
};

static void log_softmax(const double *logits, double *out, int64_t count)
{
    double largest = -INFINITY, sum = 0.0;

    for (int64_t j = 0; j < count; j++)
        largest = fmax(largest, logits[j]);
    for (int64_t j = 0; j < count; j++)
        sum += exp(logits[j] - largest);
    for (int64_t j = 0; j < count; j++)
        out[j] = logits[j] - largest - log(sum);
}

static void find_top(const double *log_probs, int64_t vocab_size, int32_t *out, int64_t count)
{
    for (int64_t k = 0; k < count; k++) {
        int32_t best = -1;

        for (int32_t j = 0; j < vocab_size; j++) {
            bool is_taken = false;

            for (int64_t i = 0; i < k; i++)
                is_taken = is_taken || out[i] == j;
            if (!is_taken && (best < 0 || log_probs[j] > log_probs[best]))
                best = j;
        }
        out[k] = best;
    }
}

/* The head's outputs for the logits; NaN, and ids out of range, where the mask is 0. */
static void run_head(struct micro *micro)
{
    struct rk_test_batch *batch = &micro->batch;

    for (int64_t t = 0; t < micro->num_tokens; t++) {
        double *row = micro->log_softmax + t * micro->vocab_size;

        log_softmax(micro->logits + t * micro->vocab_size, row, micro->vocab_size);
        find_top(row, micro->vocab_size, micro->top_ids + t * micro->num_ids, micro->num_ids);
        batch->outputs[RK_HEAD_LOG_PROBS][t] = batch->mask[t] ? row[micro->labels[t]] : NAN;
        for (int64_t k = t * micro->num_ids; k < (t + 1) * micro->num_ids; k++)
            micro->log_probs[k] = batch->mask[t] ? row[micro->ids[k]] : NAN;
    }
    batch->ids = (struct rk_loss_ids){.num_ids = micro->num_ids,
                                      .ids = micro->ids,
                                      .teacher_log_probs = micro->teacher,
                                      .log_probs = micro->log_probs,
                                      .top_ids = micro->top_ids};
    batch->id_grads = micro->id_grads;
    memset(micro->id_grads, 0, sizeof(micro->id_grads));
}

/* The gradient of the loss with respect to the logits of token t. */
static void logit_grads(const struct micro *micro, const struct rk_test_loss_result *result, int64_t t,
                        double *out)
{
    const double *row = micro->log_softmax + t * micro->vocab_size;
    double dense = result->grads[RK_HEAD_LOG_PROBS][t];

    for (int64_t k = 0; k < micro->num_ids; k++)
        dense += micro->id_grads[t * micro->num_ids + k];
    for (int64_t j = 0; j < micro->vocab_size; j++)
        out[j] = -dense * exp(row[j]);
    out[micro->labels[t]] += result->grads[RK_HEAD_LOG_PROBS][t];
    for (int64_t k = 0; k < micro->num_ids; k++)
        out[micro->ids[t * micro->num_ids + k]] += micro->id_grads[t * micro->num_ids + k];
}

/* Offsets of a case in the tensors by rows, tokens, logits and ids. */
struct place {
    int64_t row, token, logit, id;
};

static void take_case(struct micro *micro, int64_t i, const struct place *place)
{
    const double *config = inputs[CONFIG] + i * NUM_CONFIG;
    struct rk_test_batch *batch = &micro->batch;

    *micro = (struct micro){.vocab_size = (int64_t)config[VOCAB_SIZE], .num_ids = (int64_t)config[TOPK]};
    batch->num_seqs = (int32_t)inputs[ROWS][i];
    for (int32_t row = 0; row < batch->num_seqs; row++)
        batch->cu_seqlens[row + 1] = batch->cu_seqlens[row] + (int32_t)inputs[LENGTHS][place->row + row];
    micro->num_tokens = batch->cu_seqlens[batch->num_seqs];
    assert_true(micro->num_tokens <= RK_TEST_LOSS_TOKENS);
    assert_true(micro->vocab_size <= VOCAB_MAX);
    for (int64_t t = 0; t < micro->num_tokens; t++) {
        batch->mask[t] = inputs[MASK][place->token + t] != 0.0;
        batch->columns[RK_LOSS_OLD_LOG_PROBS][t] = inputs[OLD][place->token + t];
        batch->columns[RK_LOSS_ROLLOUT_IS_WEIGHTS][t] = inputs[IS_WEIGHTS][place->token + t];
        micro->labels[t] = (int32_t)inputs[LABELS][place->token + t];
    }
    memcpy(micro->logits, inputs[LOGITS] + place->logit,
           (size_t)(micro->num_tokens * micro->vocab_size) * sizeof(double));
    for (int64_t k = 0; k < micro->num_tokens * micro->num_ids; k++) {
        micro->ids[k] = (int32_t)inputs[IDS][place->id + k];
        micro->teacher[k] = batch->mask[k / micro->num_ids] ? inputs[TEACHER][place->id + k] : NAN;
    }
    batch->mode = (rk_loss_agg_mode_t)config[AGG_MODE];
    batch->global = (struct rk_loss_denominators){config[NUM_TOKENS], config[NUM_SEQUENCES], config[SCALE]};
    batch->absent = config[HAS_IS_WEIGHTS] == 0.0 ? RK_LOSS_BIT(RK_LOSS_ROLLOUT_IS_WEIGHTS) : 0;
    run_head(micro);
}

/* --- against the fixture --- */

static void open_loss(struct rk_test_loss *loss, const char *mode, const double *c)
{
    bool is_forward = strcmp(mode, modes[0]) == 0;
    char *clamp = c[LOSS_MAX_CLAMP] > 0.0 ? rk_format("%.17g", c[LOSS_MAX_CLAMP]) : rk_format("null");
    char *low = c[LOG_PROB_MIN_CLAMP] < 0.0 ? rk_format("%.17g", c[LOG_PROB_MIN_CLAMP]) : rk_format("null");
    char *options = rk_format(
        "{\"distillation.enabled\": true, \"" DISTILL "loss_mode\": \"%s\", \"" DISTILL "topk\": %d,"
        " \"" DISTILL "use_policy_gradient\": %s, \"" DISTILL "loss_max_clamp\": %s, \"" DISTILL
        "log_prob_min_clamp\": %s, \"" DISTILL "beta\": %.17g, \"" DISTILL "renormalize_topk\": %s,"
        " \"" DISTILL "clip_ratio_low\": %.17g, \"" DISTILL "clip_ratio_high\": %.17g}",
        mode, (int)c[TOPK], c[USE_POLICY_GRADIENT] != 0.0 ? "true" : "false", clamp, low, c[BETA],
        is_forward && c[RENORMALIZE_TOPK] != 0.0 ? "true" : "false", c[CLIP_RATIO_LOW], c[CLIP_RATIO_HIGH]);

    assert_ok(rk_test_loss_read(loss, rk_test_distill_row(mode), options));
    rk_free(options);
    rk_free(low);
    rk_free(clamp);
}

/* Relative to the expected number and to the largest, because of cancellation in f64. */
static void assert_near(const char *label, double actual, double expected, double largest)
{
    assert_below(label, fabs(actual - expected), RK_TOL_LOSS_GOLDEN * fabs(expected) + RK_TOL_F64 * largest);
}

static double find_expected(const struct rk_st_file *file, const char *mode, const char *name, int64_t i)
{
    char *tensor = rk_format("%s.%s", mode, name);
    double *values, value;

    values = rk_test_fixture_tensor(file, tensor, NULL);
    value = values[i];
    rk_free(values);
    rk_free(tensor);
    return value;
}

/* verl's means are over the tokens of the case. Only the metrics of forward KL exist in verl; with a clamp or
 * renormalize_topk, its masses and overlap are computed from the modified inputs. */
static void check_metrics(const struct rk_st_file *file, const char *mode, int64_t i,
                          const struct rk_test_loss *loss, const struct rk_test_loss_result *result,
                          const struct rk_test_batch *batch)
{
    static const char *const names[] = {"loss_min",         "loss_max",
                                        "student_mass",     "student_mass_min",
                                        "student_mass_max", "teacher_mass",
                                        "teacher_mass_min", "teacher_mass_max",
                                        "overlap_ratio",    "overlap_token_advantage"};
    int64_t counted = 0;

    for (int32_t t = 0; t < batch->cu_seqlens[batch->num_seqs]; t++)
        counted += batch->mask[t];
    for (size_t k = 0; counted > 0 && k < RK_ARRAY_LEN(names); k++) {
        char *name = rk_format("distillation/%s", names[k]), label[96];
        bool is_mean = !rk_str_has_suffix(name, "_min") && !rk_str_has_suffix(name, "_max");
        double expected = find_expected(file, mode, names[k], i);

        snprintf(label, sizeof(label), "%s, case %d, %s", mode, (int)i, names[k]);
        if (is_mean)
            expected *= (double)counted / batch->global.num_tokens;
        assert_near(label, rk_test_loss_metric(loss, result, name), expected, 1.0);
        rk_free(name);
    }
}

static void check_case(const struct rk_st_file *file, const char *mode, int64_t i, const struct place *place,
                       const double *expected_grads)
{
    struct micro *micro = rk_calloc(1, sizeof(*micro));
    double grads[VOCAB_MAX], loss_expected = find_expected(file, mode, "loss", i);
    struct rk_test_loss_result result;
    struct rk_test_loss loss;
    char label[96];

    take_case(micro, i, place);
    open_loss(&loss, mode, inputs[CONFIG] + i * NUM_CONFIG);
    result = rk_test_loss_run(&loss, &micro->batch);
    snprintf(label, sizeof(label), "%s, case %d", mode, (int)i);
    assert_near(label, rk_test_loss_metric(&loss, &result, "distillation/loss"), loss_expected,
                fmax(1.0, fabs(loss_expected)));
    for (int64_t t = 0; t < micro->num_tokens; t++) {
        logit_grads(micro, &result, t, grads);
        for (int64_t j = 0; j < micro->vocab_size; j++) {
            snprintf(label, sizeof(label), "%s, case %d, token %d, logit %d", mode, (int)i, (int)t, (int)j);
            /* The fixture has f32; the term of one id may be much larger than the sum after cancellation. */
            assert_below(label, fabs(grads[j] - expected_grads[place->logit + t * micro->vocab_size + j]),
                         RK_TOL_LOSS_GOLDEN * fabs(grads[j]) + RK_TOL_F64_SUM);
        }
    }
    check_metrics(file, mode, i, &loss, &result, &micro->batch);
    rk_free(micro);
}

/* Goal: loss, gradient and metrics of every mode equal those of verl's and TRL's functions. */
static void test_topk_losses_equal_verl_and_trl(void **state)
{
    struct rk_st_file *file = rk_test_fixture_open(FIXTURE "outputs.safetensors");

    (void)state;
    for (size_t m = 0; m < RK_ARRAY_LEN(modes); m++) {
        char *name = rk_format("%s.grad", modes[m]);
        double *grads = rk_test_fixture_tensor(file, name, NULL);
        struct place place = {0};

        for (int64_t i = 0; i < num_cases; i++) {
            const double *config = inputs[CONFIG] + i * NUM_CONFIG;
            int64_t num_tokens = 0;

            check_case(file, modes[m], i, &place, grads);
            for (int64_t row = 0; row < (int64_t)inputs[ROWS][i]; row++)
                num_tokens += (int64_t)inputs[LENGTHS][place.row + row];
            place.row += (int64_t)inputs[ROWS][i];
            place.token += num_tokens;
            place.logit += num_tokens * (int64_t)config[VOCAB_SIZE];
            place.id += num_tokens * (int64_t)config[TOPK];
        }
        rk_free(grads);
        rk_free(name);
    }
    rk_st_close(file);
}

/* --- against central differences, and published values --- */

static void make_micro(struct micro *micro, uint64_t seed, int64_t vocab_size, int64_t num_ids)
{
    struct rk_rng rng;

    rk_rng_init(&rng, seed, 11);
    *micro = (struct micro){.num_tokens = 6, .vocab_size = vocab_size, .num_ids = num_ids};
    micro->batch.num_seqs = 2;
    micro->batch.cu_seqlens[1] = 2;
    micro->batch.cu_seqlens[2] = 6;
    micro->batch.global = (struct rk_loss_denominators){5, 2, 6};
    micro->batch.absent = RK_LOSS_BIT(RK_LOSS_ROLLOUT_IS_WEIGHTS);
    for (int64_t t = 0; t < micro->num_tokens; t++) {
        double teacher[VOCAB_MAX], log_probs[VOCAB_MAX];

        micro->batch.mask[t] = t != 3;
        micro->labels[t] = (int32_t)rk_rng_next_below(&rng, vocab_size);
        for (int64_t j = 0; j < vocab_size; j++) {
            micro->logits[t * vocab_size + j] = 2.0 * rk_rng_next_normal(&rng);
            teacher[j] = 2.0 * rk_rng_next_normal(&rng);
        }
        log_softmax(teacher, log_probs, vocab_size);
        find_top(log_probs, vocab_size, micro->ids + t * num_ids, num_ids);
        for (int64_t k = 0; k < num_ids; k++)
            micro->teacher[t * num_ids + k] = log_probs[micro->ids[t * num_ids + k]];
    }
    run_head(micro);
}

static double loss_at(const struct rk_test_loss *loss, const struct micro *at, int64_t logit, double h)
{
    struct micro *micro = rk_malloc(sizeof(*micro));
    struct rk_test_loss_result result;

    *micro = *at;
    micro->logits[logit] += h;
    run_head(micro);
    result = rk_test_loss_run(loss, &micro->batch);
    rk_free(micro);
    return rk_test_loss_metric(loss, &result, "distillation/loss");
}

/* Goal: gradients with respect to the logits are the derivatives of the loss. */
static void test_topk_gradients_equal_differences(void **state)
{
    const double h = 1e-5;
    double config[NUM_CONFIG] = {[CLIP_RATIO_LOW] = 0.2, [CLIP_RATIO_HIGH] = 0.2, [BETA] = 0.3};

    (void)state;
    for (size_t m = 0; m < RK_ARRAY_LEN(modes); m++) {
        for (int k = 1; k <= 9; k += 4) {
            struct micro *micro = rk_malloc(sizeof(*micro));
            double grads[VOCAB_MAX];
            struct rk_test_loss_result result;
            struct rk_test_loss loss;

            config[TOPK] = k;
            make_micro(micro, rk_test_seed() + (uint64_t)k, 9, k);
            open_loss(&loss, modes[m], config);
            result = rk_test_loss_run(&loss, &micro->batch);
            for (int64_t t = 0; t < micro->num_tokens; t++) {
                logit_grads(micro, &result, t, grads);
                for (int64_t j = 0; j < micro->vocab_size; j++) {
                    int64_t at = t * micro->vocab_size + j;
                    double slope = (loss_at(&loss, micro, at, h) - loss_at(&loss, micro, at, -h)) / (2.0 * h);

                    assert_below(modes[m], fabs(grads[j] - slope),
                                 RK_TOL_GRADIENT_F64 * fmax(fabs(slope), RK_TOL_FLOOR));
                }
            }
            rk_free(micro);
        }
    }
}

/* Goal: S = softmax [1, 2, 3] and T = softmax [0, 2, 1] have their published divergences, and gradients for K
 * = 2 of 3. */
static void test_topk_worked_example_has_published_values(void **state)
{
    static const struct {
        const char *mode, *more;
        int num_ids;
        double loss;
    } cases[] = {
        {"forward_kl_topk", "", 3, 0.420512},
        {"reverse_kl_topk", "", 3, 0.420512},
        {"jsd_topk", "", 3, 0.100956},
        {"forward_kl_topk", "", 2, 0.420512},
        {"forward_kl_topk", ", \"" DISTILL "renormalize_topk\": true", 2, 0.556461},
    };
    static const double published[] = {0.081925, -0.442546, 0.360620}; /* of the fourth */

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char *options = rk_format("{\"distillation.enabled\": true, \"" DISTILL
                                  "loss_mode\": \"%s\", \"" DISTILL "topk\": %d%s}",
                                  cases[i].mode, cases[i].num_ids, cases[i].more);
        struct micro *micro = rk_calloc(1, sizeof(*micro));
        double teacher[3], grads[3];
        struct rk_test_loss_result result;
        struct rk_test_loss loss;

        *micro = (struct micro){.num_tokens = 1, .vocab_size = 3, .num_ids = cases[i].num_ids};
        micro->batch =
            (struct rk_test_batch){.num_seqs = 1, .cu_seqlens = {0, 1}, .mask = {1}, .global = {1, 1, 1}};
        memcpy(micro->logits, (double[]){1, 2, 3}, 3 * sizeof(double));
        log_softmax((double[]){0, 2, 1}, teacher, 3);
        find_top(teacher, 3, micro->ids, micro->num_ids);
        for (int64_t k = 0; k < micro->num_ids; k++)
            micro->teacher[k] = teacher[micro->ids[k]];
        run_head(micro);
        assert_ok(rk_test_loss_read(&loss, rk_test_distill_row(cases[i].mode), options));
        result = rk_test_loss_run(&loss, &micro->batch);
        assert_below(cases[i].mode, fabs(result.metrics[0] - cases[i].loss), RK_TOL_SIX_DECIMALS);
        logit_grads(micro, &result, 0, grads);
        for (int j = 0; i == 3 && j < 3; j++)
            assert_below("gradient", fabs(grads[j] - published[j]), RK_TOL_SIX_DECIMALS);
        rk_free(micro);
        rk_free(options);
    }
}

/* Goal: an id of -1 means none: the same as a smaller K, except for the overlap's denominator. */
static void test_topk_places_without_an_id_do_not_count(void **state)
{
    double config[NUM_CONFIG] = {[CLIP_RATIO_LOW] = 0.2, [CLIP_RATIO_HIGH] = 0.2, [BETA] = 0.3, [TOPK] = 5};

    (void)state;
    for (size_t m = 0; m < RK_ARRAY_LEN(modes); m++) {
        struct micro *micro = rk_malloc(sizeof(*micro));
        struct rk_test_loss_result results[2];
        struct rk_test_loss loss;

        make_micro(micro, rk_test_seed(), 9, 4);
        open_loss(&loss, modes[m], config);
        results[0] = rk_test_loss_run(&loss, &micro->batch);
        for (int64_t t = micro->num_tokens - 1; t >= 0; t--) {
            for (int64_t k = 4; k >= 0; k--) {
                micro->ids[t * 5 + k] = k == 2 ? -1 : micro->ids[t * 4 + (k > 2 ? k - 1 : k)];
                micro->teacher[t * 5 + k] = k == 2 ? NAN : micro->teacher[t * 4 + (k > 2 ? k - 1 : k)];
            }
        }
        micro->num_ids = 5;
        for (int64_t i = 0; i < 5 * micro->num_tokens; i++)
            micro->log_probs[i] =
                micro->ids[i] < 0 ? NAN : micro->log_softmax[i / 5 * micro->vocab_size + micro->ids[i]];
        micro->batch.ids.num_ids = 5;
        memset(micro->id_grads, 0, sizeof(micro->id_grads));
        results[1] = rk_test_loss_run(&loss, &micro->batch);
        assert_below(modes[m],
                     fabs(rk_test_loss_metric(&loss, &results[1], "distillation/loss") -
                          rk_test_loss_metric(&loss, &results[0], "distillation/loss")),
                     RK_TOL_F64);
        for (int64_t t = 0; t < micro->num_tokens; t++)
            assert_true(micro->id_grads[t * 5 + 2] == 0.0);
        rk_free(micro);
    }
}

static int load(void **state)
{
    struct rk_st_file *file = rk_test_fixture_open(FIXTURE "inputs.safetensors");
    int64_t n;

    (void)state;
    for (int i = 0; i < NUM_INPUTS; i++)
        inputs[i] = rk_test_fixture_tensor(file, input_names[i], i == ROWS ? &num_cases : &n);
    rk_free(rk_test_fixture_tensor(file, "config", &n));
    assert_int_equal(n, num_cases * NUM_CONFIG);
    assert_true(num_cases >= 200);
    rk_st_close(file);
    return 0;
}

static int unload(void **state)
{
    (void)state;
    for (int i = 0; i < NUM_INPUTS; i++)
        rk_free(inputs[i]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_topk_losses_equal_verl_and_trl),
        cmocka_unit_test(test_topk_gradients_equal_differences),
        cmocka_unit_test(test_topk_worked_example_has_published_values),
        cmocka_unit_test(test_topk_places_without_an_id_do_not_count),
    };

    return cmocka_run_group_tests(tests, load, unload);
}
