/* Policy losses on packed sequences: published values, gradients, and what must not change them. */
#include "tests/support/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_rng.h"
#include "engine/rk_loss.h"

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
    struct rk_loss_metrics metrics;
};

static struct rk_loss_config make_config(void)
{
    return (struct rk_loss_config){
        .ops = rk_loss_find("vanilla"),
        .agg_mode = RK_AGG_TOKEN_MEAN,
        .clip_ratio_low = 0.2,
        .clip_ratio_high = 0.2,
        .clip_ratio_c = 3.0,
        .kl_type = RK_KL_K3,
    };
}

/* The set of ratios and advantages that the published values are given for; ratio 9 is masked. */
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

static struct result run(struct fixture *f, const struct rk_loss_config *config)
{
    struct result r = {0};
    int32_t num_tokens = f->cu_seqlens[f->num_seqs];
    struct rk_loss_in in = {
        .num_tokens = num_tokens,
        .num_seqs = f->num_seqs,
        .cu_seqlens = f->cu_seqlens,
        .mask = f->mask,
        .weight = f->weight,
        .token_weight = f->token_weight,
        .log_probs = f->log_probs,
        .entropy = f->entropy,
        .old_log_probs = f->old_log_probs,
        .advantages = f->advantages,
        .ref_log_prob = config->use_kl_loss ? f->ref_log_prob : NULL,
        .rollout_is_weights = f->has_is_weights ? f->is_weights : NULL,
    };
    struct rk_loss_out out = {.dlog_probs = r.dlog_probs, .dentropy = r.dentropy};

    rk_loss_weights(f->weight, config->agg_mode, f->mask, f->cu_seqlens, f->num_seqs, &f->global);
    rk_loss_weights(f->token_weight, RK_AGG_TOKEN_MEAN, f->mask, f->cu_seqlens, f->num_seqs, &f->global);
    rk_loss_forward_backward(&out, &in, config);
    r.metrics = out.metrics;
    return r;
}

static double total(const struct result *r, const struct rk_loss_config *config)
{
    return r->metrics.pg_loss + config->kl_loss_coef * r->metrics.kl_loss -
           config->entropy_coeff * r->metrics.entropy_loss;
}

/* Goal: loss and gradient of single tokens, each alone in a batch, have the published values. */
static void test_vanilla_single_token_has_published_values(void **state)
{
    static const double losses[8] = {-1.2, -0.5, -1.1, -6.0, 3.0, 0.8, 1.5, 1.0};
    static const double grads[8] = {0.0, -0.5, -1.1, 0.0, 0.0, 0.0, 1.5, 1.0};
    struct rk_loss_config config = make_config();
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
        r = run(&f, &config);
        assert_below(label, fabs(r.metrics.pg_loss - losses[t]), RK_TOL_F64);
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
        struct rk_loss_config config = make_config();
        struct fixture f = make_worked();
        struct result r;

        config.agg_mode = cases[i].mode;
        config.clip_ratio_high = cases[i].clip_high;
        f.has_is_weights = cases[i].is_weights[0] > 0.0;
        memcpy(f.is_weights, cases[i].is_weights, sizeof(cases[i].is_weights));
        r = run(&f, &config);
        assert_below(cases[i].label, fabs(r.metrics.pg_loss - cases[i].expected), RK_TOL_SIX_DECIMALS);
        assert_below(cases[i].label, fabs(r.metrics.pg_clipfrac - 2.0 / 7.0), RK_TOL_F64);
        assert_below(cases[i].label, fabs(r.metrics.pg_clipfrac_lower - 1.0 / 7.0), RK_TOL_F64);
        assert_below(cases[i].label, fabs(r.metrics.ppo_kl - -0.129463), RK_TOL_SIX_DECIMALS);
    }
}

/* Goal: policy, entropy and KL terms add up with their coefficients: .5 - .01 * .8 + .001 * .2. */
static void test_total_worked_example_adds_terms(void **state)
{
    struct rk_loss_config config = make_config();
    struct fixture f = make_worked();
    struct result r;

    (void)state;
    config.entropy_coeff = 0.01;
    config.use_kl_loss = true;
    config.kl_loss_coef = 0.001;
    config.kl_type = RK_KL_K1;
    for (int t = 0; t < 8; t++) {
        f.entropy[t] = 0.8;
        f.ref_log_prob[t] = f.log_probs[t] - 0.2;
    }
    r = run(&f, &config);
    assert_below("total", fabs(total(&r, &config) - 0.4922), RK_TOL_F64);
    assert_below("entropy", fabs(r.metrics.entropy_loss - 0.8), RK_TOL_F64);
    assert_below("kl", fabs(r.metrics.kl_loss - 0.2), RK_TOL_F64);
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
    struct rk_loss_config config = make_config();
    struct fixture f = {.num_seqs = 2, .cu_seqlens = {0, 3, 5}, .global = {5, 2, 0}};
    struct result r;

    (void)state;
    for (int t = 0; t < 5; t++) {
        f.mask[t] = 1;
        f.log_probs[t] = f.old_log_probs[t] = -0.3 * (t + 1);
        f.advantages[t] = t < 3 ? advantage : -advantage;
    }
    r = run(&f, &config);
    assert_below("token-mean", fabs(r.metrics.pg_loss - -0.141421), RK_TOL_SIX_DECIMALS);
    for (int t = 0; t < 5; t++)
        assert_below("token-mean gradient", fabs(r.dlog_probs[t] + f.advantages[t] / 5.0), RK_TOL_F64);

    config.agg_mode = RK_AGG_SEQ_MEAN_TOKEN_MEAN;
    r = run(&f, &config);
    assert_below("seq-mean-token-mean", fabs(r.metrics.pg_loss), RK_TOL_F64);
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

static struct rk_loss_config make_full_config(rk_loss_agg_mode_t mode, rk_kl_type_t kl_type)
{
    struct rk_loss_config config = make_config();

    config.agg_mode = mode;
    config.kl_type = kl_type;
    config.use_kl_loss = true;
    config.kl_loss_coef = 0.3;
    config.entropy_coeff = 0.05;
    return config;
}

/* Compares the gradients at token t with central differences of the whole loss. */
static void check_gradients(const struct rk_loss_config *config, struct fixture *f, const struct result *at,
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
        low = run(f, config);
        *inputs[k] = saved + h;
        high = run(f, config);
        *inputs[k] = saved;
        difference = (total(&high, config) - total(&low, config)) / (2.0 * h);
        snprintf(label, sizeof(label), "mode %d, kl %d, token %d, input %d", (int)config->agg_mode,
                 (int)config->kl_type, t, k);
        assert_below(label, fabs(difference - grads[k]) / fmax(fabs(grads[k]), 1.0), RK_TOL_GRADIENT_F64);
    }
}

/* Goal: gradients by log-prob and entropy equal central differences of the loss, for every mode and
 * estimator. */
static void test_loss_gradient_equals_central_difference(void **state)
{
    (void)state;
    for (int mode = 0; mode < RK_AGG_COUNT; mode++) {
        for (int kl = 0; kl < RK_KL_COUNT; kl++) {
            struct rk_loss_config config = make_full_config((rk_loss_agg_mode_t)mode, (rk_kl_type_t)kl);
            struct fixture f = make_random(rk_test_seed());
            struct result at = run(&f, &config);

            for (int t = 0; t < f.cu_seqlens[f.num_seqs]; t++)
                check_gradients(&config, &f, &at, t);
        }
    }
}

/* Goal: an entry outside the mask is never read: NaN and infinity there change no bit, in every mode. */
static void test_loss_nan_outside_mask_is_harmless(void **state)
{
    (void)state;
    for (int mode = 0; mode < RK_AGG_COUNT; mode++) {
        struct rk_loss_config config = make_full_config((rk_loss_agg_mode_t)mode, RK_KL_K3);
        struct fixture clean = make_random(rk_test_seed()), dirty = clean;
        struct result expected = run(&clean, &config), actual;

        for (int t = 0; t < 40; t++) {
            if (clean.mask[t])
                continue;
            dirty.log_probs[t] = dirty.ref_log_prob[t] = dirty.entropy[t] = NAN;
            dirty.old_log_probs[t] = dirty.is_weights[t] = INFINITY;
            dirty.advantages[t] = -INFINITY;
        }
        actual = run(&dirty, &config);
        assert_memory_equal(&actual, &expected, sizeof(actual));
    }
}

/* Goal: NaN inside the mask is not swallowed by a clamp: it shows in loss and gradient. */
static void test_loss_nan_inside_mask_shows(void **state)
{
    struct rk_loss_config config = make_full_config(RK_AGG_TOKEN_MEAN, RK_KL_K3);
    struct fixture f = make_worked();
    struct result r;

    (void)state;
    f.log_probs[1] = NAN;
    r = run(&f, &config);
    assert_true(isnan(r.metrics.pg_loss));
    assert_true(isnan(r.metrics.kl_loss));
    assert_true(isnan(r.dlog_probs[1]));
}

/* The sequences [first, first + count) of `all` as a micro-batch of their own. */
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

/* Goal: splitting into micro-batches changes no gradient bit, and the loss only by the order of its sum. */
static void test_loss_split_into_micro_batches_is_invariant(void **state)
{
    (void)state;
    for (int mode = 0; mode < RK_AGG_COUNT; mode++) {
        for (int num_micro = 2; num_micro <= 4; num_micro *= 2) {
            struct rk_loss_config config = make_full_config((rk_loss_agg_mode_t)mode, RK_KL_K2);
            struct fixture all = make_random(rk_test_seed());
            struct result whole = run(&all, &config);
            double sum = 0.0, clipfrac = 0.0;

            for (int m = 0; m < num_micro; m++) {
                int count = 4 / num_micro, first = m * count;
                struct fixture f = take_sequences(&all, first, count);
                struct result part = run(&f, &config);
                size_t bytes = (size_t)f.cu_seqlens[count] * sizeof(double);

                sum += total(&part, &config);
                clipfrac += part.metrics.pg_clipfrac;
                assert_memory_equal(part.dlog_probs, whole.dlog_probs + all.cu_seqlens[first], bytes);
                assert_memory_equal(part.dentropy, whole.dentropy + all.cu_seqlens[first], bytes);
            }
            assert_below("loss", fabs(sum / total(&whole, &config) - 1.0), RK_TOL_F64);
            assert_below("clipfrac", fabs(clipfrac - whole.metrics.pg_clipfrac), RK_TOL_F64);
        }
    }
}

/* Goal: a batch in which nothing counts has loss 0 and gradient 0, not 0/0. */
static void test_loss_empty_mask_gives_zero(void **state)
{
    (void)state;
    for (int mode = 0; mode < RK_AGG_COUNT; mode++) {
        struct rk_loss_config config = make_full_config((rk_loss_agg_mode_t)mode, RK_KL_K3);
        struct fixture f = make_worked();
        struct result r, zero = {0};

        memset(f.mask, 0, sizeof(f.mask));
        f.global.num_tokens = f.global.num_sequences = 0;
        r = run(&f, &config);
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
        cmocka_unit_test(test_loss_nan_inside_mask_shows),
        cmocka_unit_test(test_loss_split_into_micro_batches_is_invariant),
        cmocka_unit_test(test_loss_empty_mask_gives_zero),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
