/* Policy losses on packed sequences: published values, gradients, and invariances. */
#include "tests/support/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_json.h"
#include "base/rk_rng.h"
#include "engine/rk_loss.h"
#include "tests/support/losses.h"

#define MAX_TOKENS 64

/* One micro-batch with all its columns. */
struct fixture {
    int32_t cu_seqlens[MAX_TOKENS + 1], num_seqs;
    uint8_t mask[MAX_TOKENS];
    double weight[MAX_TOKENS], token_weight[MAX_TOKENS];
    double log_probs[MAX_TOKENS], entropy[MAX_TOKENS], old_log_probs[MAX_TOKENS], advantages[MAX_TOKENS];
    double ref_log_prob[MAX_TOKENS], is_weights[MAX_TOKENS];
    bool has_is_weights;
    struct rk_loss_denominators global;
};

struct result {
    double dlog_probs[MAX_TOKENS], dentropy[MAX_TOKENS];
    double loss, pg_loss, pg_clipfrac, pg_clipfrac_lower, ppo_kl, kl_loss, entropy_loss, distill_loss;
};

/* The options of update_actor that a test sets. */
struct settings {
    rk_loss_agg_mode_t agg_mode;
    double clip_high, entropy_coeff, kl_coef;
    double distill_coef; /* 0: no teacher */
    bool use_kl_loss;
    const char *kl_type;
};

static struct settings make_settings(void)
{
    return (struct settings){.agg_mode = RK_AGG_TOKEN_MEAN, .clip_high = 0.2, .kl_type = "k3"};
}

static struct rk_objective make_objective(const struct settings *settings)
{
    static const char defaults[] = "{\"policy_loss.loss_mode\": \"vanilla\", \"loss_scale_factor\": null,"
                                   " \"clip_ratio\": 0.2, \"clip_ratio_low\": null, \"clip_ratio_c\": 3.0}";
    struct rk_objective objective;
    struct rk_json *options;

    assert_ok(rk_json_parse(&options, defaults, strlen(defaults), "options", 0));
    rk_json_set(options, "loss_agg_mode", rk_json_new_string(rk_loss_agg_mode_name(settings->agg_mode)));
    rk_json_set(options, "clip_ratio_high", rk_json_new_real(settings->clip_high));
    rk_json_set(options, "entropy_coeff", rk_json_new_real(settings->entropy_coeff));
    rk_json_set(options, "calculate_entropy", rk_json_new_bool(false));
    rk_json_set(options, "use_kl_loss", rk_json_new_bool(settings->use_kl_loss));
    rk_json_set(options, "kl_loss_coef", rk_json_new_real(settings->kl_coef));
    rk_json_set(options, "kl_loss_type", rk_json_new_string(settings->kl_type));
    rk_json_set(options, "distillation.enabled", rk_json_new_bool(settings->distill_coef > 0.0));
    rk_json_set(options, RK_KNOB_DISTILL "distillation_loss_coef", rk_json_new_real(settings->distill_coef));
    rk_json_set(options, RK_KNOB_DISTILL "loss_mode", rk_json_new_string("mse"));
    rk_test_policy_options(options);
    assert_ok(rk_objective_read(&objective, RK_OBJECTIVE_POLICY, options));
    rk_json_free(options);
    return objective;
}

/* 0 when no term has it. */
static double find_metric(const struct rk_objective *objective, const char *name)
{
    for (int32_t i = 0; i < objective->num_terms; i++) {
        const struct rk_loss_term *term = &objective->terms[i];

        for (int32_t k = 0; k < term->loss->ops->num_metrics; k++) {
            if (strcmp(term->loss->ops->metrics[k].name, name) == 0)
                return term->metrics[k];
        }
    }
    return 0.0;
}

/* The ratios and advantages of the published values; ratio 9 is masked. */
static struct fixture make_worked(void)
{
    static const double ratios[8] = {1.5, 0.5, 1.1, 9.0, 4.0, 0.5, 1.5, 1.0};
    static const double advantages[8] = {1, 1, 1, 5, -1, -1, -1, -1};
    static const uint8_t mask[8] = {1, 1, 1, 0, 1, 1, 1, 1};
    struct fixture f = {.num_seqs = 2, .cu_seqlens = {0, 4, 8}, .global = {7, 2, 4}};

    for (int t = 0; t < 8; t++) {
        f.old_log_probs[t] = t < 4 ? -1.0 : -2.0;
        f.log_probs[t] = f.old_log_probs[t] + log(ratios[t]);
        f.advantages[t] = advantages[t];
        f.mask[t] = mask[t];
    }
    return f;
}

static struct result run(struct fixture *f, const struct settings *settings)
{
    struct rk_objective objective = make_objective(settings);
    struct result r = {0};
    const struct rk_head_arrays grads = {.of = {r.dlog_probs, r.dentropy}};
    struct rk_loss_in in = {
        .num_tokens = f->cu_seqlens[f->num_seqs],
        .num_seqs = f->num_seqs,
        .cu_seqlens = f->cu_seqlens,
        .mask = f->mask,
        .weight = f->weight,
        .token_weight = f->token_weight,
        .outputs = {[RK_HEAD_LOG_PROBS] = f->log_probs, [RK_HEAD_ENTROPY] = f->entropy},
        .columns = {[RK_LOSS_OLD_LOG_PROBS] = f->old_log_probs,
                    [RK_LOSS_ADVANTAGES] = f->advantages,
                    [RK_LOSS_REF_LOG_PROB] = settings->use_kl_loss ? f->ref_log_prob : NULL,
                    [RK_LOSS_TEACHER_LOG_PROBS] = settings->distill_coef > 0.0 ? f->ref_log_prob : NULL,
                    [RK_LOSS_ROLLOUT_IS_WEIGHTS] = f->has_is_weights ? f->is_weights : NULL},
    };

    rk_loss_weights(f->weight, settings->agg_mode, f->mask, f->cu_seqlens, f->num_seqs, &f->global);
    rk_loss_weights(f->token_weight, RK_AGG_TOKEN_MEAN, f->mask, f->cu_seqlens, f->num_seqs, &f->global);
    rk_objective_run(&objective, &in, &grads);
    r.loss = rk_objective_loss(&objective);
    r.pg_loss = find_metric(&objective, "pg_loss");
    r.pg_clipfrac = find_metric(&objective, "pg_clipfrac");
    r.pg_clipfrac_lower = find_metric(&objective, "pg_clipfrac_lower");
    r.ppo_kl = find_metric(&objective, "ppo_kl");
    r.kl_loss = find_metric(&objective, "kl_loss");
    r.entropy_loss = find_metric(&objective, "entropy_loss");
    r.distill_loss = find_metric(&objective, "distillation/loss");
    return r;
}

/* Goal: loss and gradient of single tokens, each alone in a batch, have the published values. */
static void test_vanilla_single_token_has_published_values(void **state)
{
    static const double losses[8] = {-1.2, -0.5, -1.1, -6.0, 3.0, 0.8, 1.5, 1.0};
    static const double grads[8] = {0.0, -0.5, -1.1, 0.0, 0.0, 0.0, 1.5, 1.0};
    struct settings settings = make_settings();
    struct fixture all = make_worked();

    (void)state;
    for (int t = 0; t < 8; t++) {
        struct fixture f = {.num_seqs = 1, .cu_seqlens = {0, 1}, .global = {1, 1, 1}, .mask = {1}};
        struct result r;
        char label[32];

        snprintf(label, sizeof(label), "token %d", t);
        f.old_log_probs[0] = all.old_log_probs[t];
        f.log_probs[0] = all.log_probs[t];
        f.advantages[0] = all.advantages[t];
        r = run(&f, &settings);
        assert_below(label, fabs(r.pg_loss - losses[t]), RK_TOL_F64);
        assert_below(label, fabs(r.dlog_probs[0] - grads[t]), RK_TOL_F64);
    }
}

/* Goal: the aggregated losses and metrics of the whole set have the published values. */
static void test_vanilla_worked_set_has_published_values(void **state)
{
    static const struct {
        const char *label;
        rk_loss_agg_mode_t mode;
        double clip_high;
        double is_weights[8];
        double expected;
    } cases[] = {
        {"token-mean", RK_AGG_TOKEN_MEAN, 0.2, {0}, 0.5},
        {"seq-mean-token-sum", RK_AGG_SEQ_MEAN_TOKEN_SUM, 0.2, {0}, 1.75},
        {"seq-mean-token-mean", RK_AGG_SEQ_MEAN_TOKEN_MEAN, 0.2, {0}, 0.320833},
        {"seq-mean-token-sum-norm", RK_AGG_SEQ_MEAN_TOKEN_SUM_NORM, 0.2, {0}, 0.4375},
        {"token-sum", RK_AGG_TOKEN_SUM, 0.2, {0}, 3.5},
        {"clip higher", RK_AGG_TOKEN_MEAN, 0.28, {0}, 0.488571},
        {"importance weights", RK_AGG_TOKEN_MEAN, 0.2, {1, 0.5, 2, 0, 1, 1, 1, 1}, 0.378571},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct settings settings = make_settings();
        struct fixture f = make_worked();
        struct result r;

        settings.agg_mode = cases[i].mode;
        settings.clip_high = cases[i].clip_high;
        f.has_is_weights = cases[i].is_weights[0] > 0.0;
        memcpy(f.is_weights, cases[i].is_weights, sizeof(cases[i].is_weights));
        r = run(&f, &settings);
        assert_below(cases[i].label, fabs(r.pg_loss - cases[i].expected), RK_TOL_SIX_DECIMALS);
        assert_below(cases[i].label, fabs(r.pg_clipfrac - 2.0 / 7.0), RK_TOL_F64);
        assert_below(cases[i].label, fabs(r.pg_clipfrac_lower - 1.0 / 7.0), RK_TOL_F64);
        assert_below(cases[i].label, fabs(r.ppo_kl - -0.129463), RK_TOL_SIX_DECIMALS);
    }
}

/* Goal: the terms add up with their coefficients: .5 - .01 * .8 + .001 * .2, and .1 * .2^2 / 2 of a teacher.
 */
static void test_total_worked_example_adds_terms(void **state)
{
    struct settings settings = make_settings();
    struct fixture f = make_worked();
    struct result r;

    (void)state;
    settings.entropy_coeff = 0.01;
    settings.use_kl_loss = true;
    settings.kl_coef = 0.001;
    settings.kl_type = "k1";
    for (int t = 0; t < 8; t++) {
        f.entropy[t] = 0.8;
        f.ref_log_prob[t] = f.log_probs[t] - 0.2;
    }
    r = run(&f, &settings);
    assert_below("total", fabs(r.loss - 0.4922), RK_TOL_F64);
    assert_below("entropy", fabs(r.entropy_loss - 0.8), RK_TOL_F64);
    assert_below("kl", fabs(r.kl_loss - 0.2), RK_TOL_F64);
    settings.distill_coef = 0.1;
    r = run(&f, &settings);
    assert_below("total with a teacher", fabs(r.loss - 0.4942), RK_TOL_F64);
    assert_below("distillation", fabs(r.distill_loss - 0.02), RK_TOL_F64);
}

/* Goal: with global denominators the sum over two replicas is the loss of the whole mini-batch, in every
 * mode. */
static void test_loss_weights_two_replicas_sum_to_published_values(void **state)
{
    static const double losses[2][8] = {{1, 2, 0, 0}, {3, 3, 3, 3, 1, 1, 0, 0}};
    static const uint8_t masks[2][8] = {{1, 1, 0, 0}, {1, 1, 1, 1, 1, 1, 0, 0}};
    static const int32_t cu_seqlens[2][3] = {{0, 4}, {0, 4, 8}};
    static const struct rk_loss_denominators global = {.num_tokens = 8, .num_sequences = 3, .scale = 4};
    static const struct {
        const char *label;
        rk_loss_agg_mode_t mode;
        double expected;
    } cases[] = {
        {"token-mean", RK_AGG_TOKEN_MEAN, 17.0 / 8.0},
        {"seq-mean-token-sum", RK_AGG_SEQ_MEAN_TOKEN_SUM, 17.0 / 3.0},
        {"seq-mean-token-mean", RK_AGG_SEQ_MEAN_TOKEN_MEAN, 5.5 / 3.0},
        {"seq-mean-token-sum-norm", RK_AGG_SEQ_MEAN_TOKEN_SUM_NORM, 17.0 / 12.0},
        {"token-sum", RK_AGG_TOKEN_SUM, 17.0},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        double sum = 0.0;

        for (int replica = 0; replica < 2; replica++) {
            double weight[8] = {0};

            rk_loss_weights(weight, cases[i].mode, masks[replica], cu_seqlens[replica], replica + 1, &global);
            for (int t = 0; t < 8; t++)
                sum += weight[t] * losses[replica][t];
        }
        assert_below(cases[i].label, fabs(sum - cases[i].expected), RK_TOL_F64);
    }
}

/* Goal: a GRPO step computed by hand: two rows of one group, lengths 3 and 2, rewards 1 and 0, ratio 1. */
static void test_vanilla_grpo_by_hand_has_loss_and_gradient(void **state)
{
    const double advantage = 0.707106;
    struct settings settings = make_settings();
    struct fixture f = {.num_seqs = 2, .cu_seqlens = {0, 3, 5}, .global = {5, 2, 0}};
    struct result r;

    (void)state;
    for (int t = 0; t < 5; t++) {
        f.mask[t] = 1;
        f.log_probs[t] = f.old_log_probs[t] = -0.3 * (t + 1);
        f.advantages[t] = t < 3 ? advantage : -advantage;
    }
    r = run(&f, &settings);
    assert_below("token-mean", fabs(r.pg_loss - -0.141421), RK_TOL_SIX_DECIMALS);
    for (int t = 0; t < 5; t++)
        assert_below("token-mean gradient", fabs(r.dlog_probs[t] + f.advantages[t] / 5.0), RK_TOL_F64);

    settings.agg_mode = RK_AGG_SEQ_MEAN_TOKEN_MEAN;
    r = run(&f, &settings);
    assert_below("seq-mean-token-mean", fabs(r.pg_loss), RK_TOL_F64);
    for (int t = 0; t < 5; t++)
        assert_below("seq-mean-token-mean gradient",
                     fabs(r.dlog_probs[t] + f.advantages[t] / (2.0 * (t < 3 ? 3 : 2))), RK_TOL_F64);
}

/* Random tokens on both sides of every clip, and some beyond the clamp of the exponent; one sequence is
 * masked out. */
static struct fixture make_random(uint64_t seed)
{
    static const double log_ratios[] = {-25.0, -1.0, -0.3, -0.1, 0.0, 0.1, 0.25, 0.9, 1.5, 25.0};
    struct fixture f = {.num_seqs = 4, .cu_seqlens = {0, 11, 24, 29, 40}, .global = {0, 4, 16}};
    struct rk_rng rng;

    rk_rng_init(&rng, seed, 7);
    for (int t = 0; t < 40; t++) {
        int64_t pick = rk_rng_next_below(&rng, (int64_t)RK_ARRAY_LEN(log_ratios));

        f.mask[t] = rk_rng_next_below(&rng, 4) != 0 && !(t >= 24 && t < 29);
        f.global.num_tokens += f.mask[t];
        f.old_log_probs[t] = -0.1 - 3.0 * rk_rng_next_uniform(&rng);
        f.log_probs[t] = f.old_log_probs[t] + log_ratios[pick] + 0.01 * rk_rng_next_uniform(&rng);
        f.ref_log_prob[t] = f.log_probs[t] - rk_rng_next_normal(&rng) - (t % 13 == 0 ? 6.0 : 0.0);
        f.advantages[t] = rk_rng_next_normal(&rng);
        f.entropy[t] = rk_rng_next_uniform(&rng);
        f.is_weights[t] = 2.0 * rk_rng_next_uniform(&rng);
    }
    f.has_is_weights = true;
    return f;
}

static struct settings make_full_settings(rk_loss_agg_mode_t mode, const char *kl_type)
{
    struct settings settings = make_settings();

    settings.agg_mode = mode;
    settings.kl_type = kl_type;
    settings.use_kl_loss = true;
    settings.kl_coef = 0.3;
    settings.entropy_coeff = 0.05;
    settings.distill_coef = 0.4;
    return settings;
}

/* Compares the gradients at token t with central differences of the whole loss. */
static void check_gradients(const struct settings *settings, struct fixture *f, const struct result *at,
                            int t)
{
    const double h = 1e-6;
    double *const inputs[2] = {&f->log_probs[t], &f->entropy[t]};
    const double grads[2] = {at->dlog_probs[t], at->dentropy[t]};
    char label[96];

    for (int k = 0; k < 2; k++) {
        double saved = *inputs[k], difference;
        struct result low, high;

        *inputs[k] = saved - h;
        low = run(f, settings);
        *inputs[k] = saved + h;
        high = run(f, settings);
        *inputs[k] = saved;
        difference = (high.loss - low.loss) / (2.0 * h);
        snprintf(label, sizeof(label), "mode %d, kl %s, token %d, input %d", (int)settings->agg_mode,
                 settings->kl_type, t, k);
        assert_below(label, fabs(difference - grads[k]) / fmax(fabs(grads[k]), 1.0), RK_TOL_GRADIENT_F64);
    }
}

/* Goal: gradients with respect to log-prob and entropy equal central differences of the loss, for every mode
 * and estimator. */
static void test_loss_gradient_equals_central_difference(void **state)
{
    static const char *const kl_types[] = {"k1", "abs", "k2", "k3"};

    (void)state;
    for (int mode = 0; mode < RK_AGG_COUNT; mode++) {
        for (size_t kl = 0; kl < RK_ARRAY_LEN(kl_types); kl++) {
            struct settings settings = make_full_settings((rk_loss_agg_mode_t)mode, kl_types[kl]);
            struct fixture f = make_random(rk_test_seed());
            struct result at = run(&f, &settings);

            for (int t = 0; t < f.cu_seqlens[f.num_seqs]; t++)
                check_gradients(&settings, &f, &at, t);
        }
    }
}

/* Goal: an entry outside the mask is never read: NaN and infinity there change no bit, in every mode. */
static void test_loss_nan_outside_mask_is_harmless(void **state)
{
    (void)state;
    for (int mode = 0; mode < RK_AGG_COUNT; mode++) {
        struct settings settings = make_full_settings((rk_loss_agg_mode_t)mode, "k3");
        struct fixture clean = make_random(rk_test_seed()), dirty = clean;
        struct result expected = run(&clean, &settings), actual;

        for (int t = 0; t < 40; t++) {
            if (clean.mask[t])
                continue;
            dirty.log_probs[t] = dirty.ref_log_prob[t] = dirty.entropy[t] = NAN;
            dirty.old_log_probs[t] = dirty.is_weights[t] = INFINITY;
            dirty.advantages[t] = -INFINITY;
        }
        actual = run(&dirty, &settings);
        assert_memory_equal(&actual, &expected, sizeof(actual));
    }
}

/* Goal: NaN inside the mask is not hidden by a clamp: loss and gradient are NaN. */
static void test_loss_nan_inside_mask_gives_nan(void **state)
{
    struct settings settings = make_full_settings(RK_AGG_TOKEN_MEAN, "k3");
    struct fixture f = make_worked();
    struct result r;

    (void)state;
    f.log_probs[1] = NAN;
    r = run(&f, &settings);
    assert_true(isnan(r.pg_loss));
    assert_true(isnan(r.kl_loss));
    assert_true(isnan(r.dlog_probs[1]));
}

/* The sequences [first, first + count) of `all` as a separate micro-batch. */
static struct fixture take_sequences(const struct fixture *all, int first, int count)
{
    struct fixture f = *all;
    int32_t begin = all->cu_seqlens[first], n = all->cu_seqlens[first + count] - begin;

    f.num_seqs = count;
    for (int i = 0; i <= count; i++)
        f.cu_seqlens[i] = all->cu_seqlens[first + i] - begin;
    memmove(f.mask, f.mask + begin, (size_t)n);
    memmove(f.log_probs, f.log_probs + begin, (size_t)n * sizeof(double));
    memmove(f.old_log_probs, f.old_log_probs + begin, (size_t)n * sizeof(double));
    memmove(f.ref_log_prob, f.ref_log_prob + begin, (size_t)n * sizeof(double));
    memmove(f.advantages, f.advantages + begin, (size_t)n * sizeof(double));
    memmove(f.entropy, f.entropy + begin, (size_t)n * sizeof(double));
    memmove(f.is_weights, f.is_weights + begin, (size_t)n * sizeof(double));
    return f;
}

/* Goal: splitting into micro-batches changes no gradient bit, and the loss only by the order of summation. */
static void test_loss_split_into_micro_batches_is_invariant(void **state)
{
    (void)state;
    for (int mode = 0; mode < RK_AGG_COUNT; mode++) {
        for (int num_micro = 2; num_micro <= 4; num_micro *= 2) {
            struct settings settings = make_full_settings((rk_loss_agg_mode_t)mode, "k2");
            struct fixture all = make_random(rk_test_seed());
            struct result whole = run(&all, &settings);
            double sum = 0.0, clipfrac = 0.0;

            for (int m = 0; m < num_micro; m++) {
                int count = 4 / num_micro, first = m * count;
                struct fixture f = take_sequences(&all, first, count);
                struct result part = run(&f, &settings);
                size_t bytes = (size_t)f.cu_seqlens[count] * sizeof(double);

                sum += part.loss;
                clipfrac += part.pg_clipfrac;
                assert_memory_equal(part.dlog_probs, whole.dlog_probs + all.cu_seqlens[first], bytes);
                assert_memory_equal(part.dentropy, whole.dentropy + all.cu_seqlens[first], bytes);
            }
            assert_below("loss", fabs(sum / whole.loss - 1.0), RK_TOL_F64);
            assert_below("clipfrac", fabs(clipfrac - whole.pg_clipfrac), RK_TOL_F64);
        }
    }
}

/* Goal: a batch without tokens under the mask has loss 0 and gradient 0, not 0/0. */
static void test_loss_empty_mask_gives_zero(void **state)
{
    (void)state;
    for (int mode = 0; mode < RK_AGG_COUNT; mode++) {
        struct settings settings = make_full_settings((rk_loss_agg_mode_t)mode, "k3");
        struct fixture f = make_worked();
        struct result r, zero = {0};

        memset(f.mask, 0, sizeof(f.mask));
        f.global.num_tokens = f.global.num_sequences = 0;
        r = run(&f, &settings);
        assert_memory_equal(&r, &zero, sizeof(r));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vanilla_single_token_has_published_values),
        cmocka_unit_test(test_vanilla_worked_set_has_published_values),
        cmocka_unit_test(test_total_worked_example_adds_terms),
        cmocka_unit_test(test_loss_weights_two_replicas_sum_to_published_values),
        cmocka_unit_test(test_vanilla_grpo_by_hand_has_loss_and_gradient),
        cmocka_unit_test(test_loss_gradient_equals_central_difference),
        cmocka_unit_test(test_loss_nan_outside_mask_is_harmless),
        cmocka_unit_test(test_loss_nan_inside_mask_gives_nan),
        cmocka_unit_test(test_loss_split_into_micro_batches_is_invariant),
        cmocka_unit_test(test_loss_empty_mask_gives_zero),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
