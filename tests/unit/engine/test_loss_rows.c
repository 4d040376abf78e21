/* Every row of the loss table: published values, gradients, invariances, and its keys. */
#include "tests/support/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_rng.h"
#include "tests/support/losses.h"

static struct rk_test_loss open_loss(rk_objective_kind_t kind, const char *name, const char *options)
{
    const struct rk_loss *row =
        strcmp(name, "distill") == 0 ? rk_test_distill_row("k3") : rk_loss_find(kind, name);
    struct rk_test_loss loss;

    if (!row)
        fail_msg("no loss %s", name);
    assert_ok(rk_test_loss_read(&loss, row, options));
    return loss;
}

/* --- published values --- */

/* The ratios and advantages of the published values; ratio 9 is masked. */
static struct rk_test_batch make_worked(void)
{
    static const double ratios[8] = {1.5, 0.5, 1.1, 9.0, 4.0, 0.5, 1.5, 1.0};
    static const double advantages[8] = {1, 1, 1, 5, -1, -1, -1, -1};
    struct rk_test_batch batch = {
        .num_seqs = 2,
        .cu_seqlens = {0, 4, 8},
        .global = {7, 2, 4},
        .absent = RK_LOSS_BIT(RK_LOSS_ROLLOUT_IS_WEIGHTS),
    };

    for (int t = 0; t < 8; t++) {
        double old = t < 4 ? -1.0 : -2.0;

        batch.mask[t] = t != 3;
        batch.columns[RK_LOSS_OLD_LOG_PROBS][t] = old;
        batch.outputs[RK_HEAD_LOG_PROBS][t] = old + log(ratios[t]);
        batch.columns[RK_LOSS_ADVANTAGES][t] = advantages[t];
    }
    return batch;
}

#define NONE NAN /* the row has no such metric */

/* Goal: the losses and metrics of the worked set have the published values. */
static void test_policy_rows_worked_set_has_published_values(void **state)
{
    static const struct {
        const char *name, *options;
        double loss, clipfrac, clipfrac_lower, ppo_kl;
    } cases[] = {
        {"vanilla", "{}", 0.5, 2.0 / 7.0, 1.0 / 7.0, -0.129463},
        {"vanilla", "{\"clip_ratio_high\": 0.28}", 0.488571, 2.0 / 7.0, 1.0 / 7.0, -0.129463},
        {"gspo", "{}", 0.189093, 0.0, 0.0, -0.129463},
        {"sapo", "{}", 0.154256, 0.0, 0.0, -0.129463},
        {"gpg", "{}", -0.529859, NONE, NONE, NONE},
        {"cispo", "{}", -0.534470, 5.0 / 7.0, 0.0, -0.129463},
        {"dppo_tv", "{}", -0.692280, 0.0, 1.0 / 7.0, -0.129463},
        {"dppo_tv", "{\"clip_ratio_c\": 20}", -0.779952, 0.0, 0.0, -0.129463},
        {"dppo_tv", "{\"clip_ratio\": 0.05}", -0.627312, 2.0 / 7.0, 1.0 / 7.0, -0.129463},
        {"dppo_tv", "{\"clip_ratio\": 0.05, \"clip_ratio_c\": 20}", -0.714985, 2.0 / 7.0, 0.0, -0.129463},
        {"dppo_kl", "{}", -0.692280, 0.0, 1.0 / 7.0, -0.129463},
        {"dppo_kl", "{\"clip_ratio\": 0.05}", -0.819680, 1.0 / 7.0, 1.0 / 7.0, -0.129463},
        {"dppo_kl", "{\"clip_ratio\": 0.05, \"clip_ratio_c\": 20}", -0.907352, 1.0 / 7.0, 0.0, -0.129463},
        {"dro", "{\"policy_loss.dro_beta\": 1}", -0.299816, NONE, NONE, -0.129463},
        {"dro", "{\"policy_loss.dro_beta\": 0.1}", -0.506855, NONE, NONE, -0.129463},
        {"kl_cov", "{\"policy_loss.ppo_kl_coef\": 1}", 0.656164, NONE, NONE, 0.525547},
        {"kl_cov", "{\"policy_loss.ppo_kl_coef\": 1, \"policy_loss.kl_cov_ratio\": 0.3}", 0.714087, NONE,
         NONE, 0.525547},
        {"geo_mean", "{}", 0.306475, NONE, NONE, -0.129463},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        static const char *const names[] = {"pg_loss", "pg_clipfrac", "pg_clipfrac_lower", "ppo_kl"};
        const double expected[] = {cases[i].loss, cases[i].clipfrac, cases[i].clipfrac_lower,
                                   cases[i].ppo_kl};
        struct rk_test_loss loss = open_loss(RK_OBJECTIVE_POLICY, cases[i].name, cases[i].options);
        struct rk_test_batch batch = make_worked();
        struct rk_test_loss_result result = rk_test_loss_run(&loss, &batch);

        for (size_t k = 0; k < RK_ARRAY_LEN(names); k++) {
            char label[96];

            snprintf(label, sizeof(label), "%s %s %s", cases[i].name, cases[i].options, names[k]);
            if (!isnan(expected[k]))
                assert_below(label, fabs(rk_test_loss_metric(&loss, &result, names[k]) - expected[k]),
                             RK_TOL_SIX_DECIMALS);
        }
    }
}

/* Goal: gspo's published values with exchanged advantages, and its narrow clip. */
static void test_gspo_exchanged_advantages_has_published_values(void **state)
{
    static const struct {
        const char *options;
        double loss, clipfrac;
    } cases[] = {
        {"{}", -0.131056, 4.0 / 7.0},
        {"{\"clip_ratio_low\": 3e-4, \"clip_ratio_high\": 4e-4}", -0.000350, 1.0},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_test_loss loss = open_loss(RK_OBJECTIVE_POLICY, "gspo", cases[i].options);
        struct rk_test_batch batch = make_worked();
        struct rk_test_loss_result result;

        for (int t = 0; t < 8; t++)
            batch.columns[RK_LOSS_ADVANTAGES][t] = t < 4 ? -1.0 : 1.0;
        result = rk_test_loss_run(&loss, &batch);
        assert_below("loss", fabs(result.metrics[0] - cases[i].loss), RK_TOL_SIX_DECIMALS);
        assert_below("clipfrac", fabs(rk_test_loss_metric(&loss, &result, "pg_clipfrac") - cases[i].clipfrac),
                     RK_TOL_F64);
    }
}

/* Goal: gradients by token, before aggregation, of dro, and of a batch without any clip. */
static void test_dro_worked_set_has_published_gradient(void **state)
{
    static const double expected[8] = {-0.594535, -1.693147, -0.904690, 0, 2.386294, 0.306853, 1.405465, 1};
    struct rk_test_loss loss = open_loss(RK_OBJECTIVE_POLICY, "dro", "{\"policy_loss.dro_beta\": 1}");
    struct rk_test_batch batch = make_worked();
    struct rk_test_loss_result result;

    (void)state;
    batch.mode = RK_AGG_TOKEN_SUM;
    result = rk_test_loss_run(&loss, &batch);
    for (int t = 0; t < 8; t++)
        assert_below("gradient", fabs(result.grads[RK_HEAD_LOG_PROBS][t] - expected[t]), RK_TOL_SIX_DECIMALS);
}

/* Goal: clip_cov sets loss and gradient of one of the three candidates of the worked set to zero: always the
 * same one, also if the rows are permuted. */
static void test_clip_cov_worked_set_drops_one_candidate(void **state)
{
    static const bool is_candidate[8] = {false, false, true, false, false, true, true, false};
    struct rk_test_loss loss = open_loss(RK_OBJECTIVE_POLICY, "clip_cov", "{\"policy_loss.clip_cov_lb\": 0}");
    struct rk_test_loss vanilla = open_loss(RK_OBJECTIVE_POLICY, "vanilla", "{\"clip_ratio_c\": 1e6}");
    struct rk_test_batch batch = make_worked(), turned = batch;
    struct rk_test_loss_result result = rk_test_loss_run(&loss, &batch), other;
    struct rk_test_loss_result plain = rk_test_loss_run(&vanilla, &batch);
    int num_dropped = 0;

    (void)state;
    for (int t = 0; t < 8; t++) {
        int to = (t + 4) % 8;

        turned.mask[to] = batch.mask[t];
        turned.outputs[RK_HEAD_LOG_PROBS][to] = batch.outputs[RK_HEAD_LOG_PROBS][t];
        for (int k = 0; k < RK_LOSS_COLUMN_COUNT; k++)
            turned.columns[k][to] = batch.columns[k][t];
    }
    other = rk_test_loss_run(&loss, &turned);
    for (int t = 0; t < 8; t++) {
        double grad = result.grads[RK_HEAD_LOG_PROBS][t];

        assert_true(grad == other.grads[RK_HEAD_LOG_PROBS][(t + 4) % 8]);
        if (grad == plain.grads[RK_HEAD_LOG_PROBS][t])
            continue;
        assert_true(is_candidate[t] && grad == 0.0);
        num_dropped++;
    }
    assert_int_equal(num_dropped, 1);
    assert_below("clipfrac", fabs(rk_test_loss_metric(&loss, &result, "pg_clipfrac") - 1.0 / 7.0),
                 RK_TOL_F64);
}

/* Goal: the value loss's published numbers. */
static void test_value_worked_example_has_published_values(void **state)
{
    static const double values[3] = {1.0, 0.2, 0.9}, returns[3] = {1.0, 1.0, 0.5}, grads[3] = {0, -0.8, 0.4};
    struct rk_test_loss loss = open_loss(RK_OBJECTIVE_VALUE, "value", "{}");
    struct rk_test_batch batch = {
        .num_seqs = 1, .cu_seqlens = {0, 3}, .global = {3, 1, 3}, .mask = {1, 1, 1}};
    struct rk_test_loss_result result;

    (void)state;
    for (int t = 0; t < 3; t++) {
        batch.outputs[RK_HEAD_VALUES][t] = values[t];
        batch.columns[RK_LOSS_VALUES][t] = 0.2;
        batch.columns[RK_LOSS_RETURNS][t] = returns[t];
    }
    result = rk_test_loss_run(&loss, &batch);
    assert_below("loss", fabs(rk_test_loss_metric(&loss, &result, "vf_loss") - 0.148333),
                 RK_TOL_SIX_DECIMALS);
    assert_below("clipfrac", fabs(rk_test_loss_metric(&loss, &result, "vf_clipfrac") - 1.0 / 3.0),
                 RK_TOL_F64);
    assert_below("mean", fabs(rk_test_loss_metric(&loss, &result, "vpred_mean") - 0.7), RK_TOL_F64);
    for (int t = 0; t < 3; t++)
        assert_below("gradient", fabs(result.grads[RK_HEAD_VALUES][t] - grads[t] / 3.0), RK_TOL_F64);
}

/* Goal: two replicas with sums 3 and 4 over 8 tokens have SFT loss 7/8 together. */
static void test_sft_worked_example_sums_over_replicas(void **state)
{
    struct rk_test_loss loss = open_loss(RK_OBJECTIVE_SFT, "sft", "{}");
    double sum = 0.0;

    (void)state;
    for (int replica = 0; replica < 2; replica++) {
        struct rk_test_batch batch = {.num_seqs = 1, .cu_seqlens = {0, 4}, .global = {8, 2, 4}};
        struct rk_test_loss_result result;

        for (int t = 0; t < 4; t++) {
            batch.mask[t] = 1;
            batch.outputs[RK_HEAD_LOG_PROBS][t] = -0.25 * (3 + replica);
        }
        result = rk_test_loss_run(&loss, &batch);
        sum += result.metrics[0];
        assert_true(result.grads[RK_HEAD_LOG_PROBS][0] == -1.0 / 8.0);
    }
    assert_below("loss", fabs(sum - 7.0 / 8.0), RK_TOL_F64);
}

/* A pair with sums -10 and -12 over 4 tokens, -15 and -14 over 5. */
static struct rk_test_batch make_pair(void)
{
    struct rk_test_batch batch = {.num_seqs = 2, .cu_seqlens = {0, 4, 9}, .global = {9, 2, 5}};

    for (int t = 0; t < 9; t++) {
        batch.mask[t] = 1;
        batch.outputs[RK_HEAD_LOG_PROBS][t] = t < 4 ? -10.0 / 4.0 : -15.0 / 5.0;
        batch.columns[RK_LOSS_REF_LOG_PROB][t] = t < 4 ? -12.0 / 4.0 : -14.0 / 5.0;
    }
    return batch;
}

/* Goal: the published loss of every loss_type. */
static void test_dpo_worked_pair_has_published_values(void **state)
{
    static const struct {
        const char *options;
        double loss;
    } cases[] = {
        {"{}", 0.554355},
        {"{\"label_smoothing\": 0.1}", 0.584355},
        {"{\"loss_type\": \"robust\", \"label_smoothing\": 0.1}", 0.516855},
        {"{\"loss_type\": \"hinge\"}", 0.7},
        {"{\"loss_type\": \"ipo\"}", 18.49},
        {"{\"loss_type\": \"ipo_sum\"}", 4.0},
        {"{\"loss_type\": \"sigmoid_norm\"}", 0.658760},
        {"{\"loss_type\": \"exo_pair\", \"label_smoothing\": 0.1}", 0.358383},
        {"{\"loss_type\": \"apo_zero\"}", 0.925187},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_test_loss loss = open_loss(RK_OBJECTIVE_DPO, "dpo", cases[i].options);
        struct rk_test_batch batch = make_pair();
        struct rk_test_loss_result result = rk_test_loss_run(&loss, &batch);

        assert_below(cases[i].options, fabs(result.metrics[0] - cases[i].loss), RK_TOL_SIX_DECIMALS);
        if (i == 0)
            assert_below("slope", fabs(result.grads[RK_HEAD_LOG_PROBS][0] - -0.042556), RK_TOL_SIX_DECIMALS);
    }
}

/* Goal: the metrics of a pair; a pair with an empty side and a sequence without partner add nothing. */
static void test_dpo_metrics_and_padding(void **state)
{
    static const struct {
        const char *name;
        double value;
    } cases[] = {
        {"rewards/chosen", 0.2},   {"rewards/rejected", -0.1}, {"rewards/margins", 0.3},
        {"rewards/accuracies", 1}, {"logps/chosen", -10.0},    {"logps/rejected", -15.0},
    };
    struct rk_test_loss loss = open_loss(RK_OBJECTIVE_DPO, "dpo", "{}");
    struct rk_test_batch batch = make_pair();
    struct rk_test_loss_result alone = rk_test_loss_run(&loss, &batch), result;

    (void)state;
    batch.num_seqs = 5;
    batch.cu_seqlens[3] = batch.cu_seqlens[4] = 11;
    batch.cu_seqlens[5] = 13;
    result = rk_test_loss_run(&loss, &batch);
    assert_memory_equal(&result, &alone, sizeof(result));
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++)
        assert_below(cases[i].name, fabs(rk_test_loss_metric(&loss, &result, cases[i].name) - cases[i].value),
                     RK_TOL_F64);
}

/* Goal: the sums' published values and gradients. */
static void test_sums_worked_example_has_published_values(void **state)
{
    static const struct {
        const char *name, *options;
        double loss, grads[4];
    } cases[] = {
        {"cross_entropy", "{}", 0.2, {0, -1, 0.5, -2}},
        {"importance_sampling", "{}", -17.784636, {-1.105171, 0.670320, 0.824361, -18.174145}},
        {"ppo", "{}", -0.680810, {-1.105171, 0, 0.824361, 0}},
        {"cispo", "{}", -1.366456, {-1.105171, 0.670320, 0.824361, -4}},
        {"dro", "{\"beta\": 0.05}", -1.17925, {-0.995, 0.98, 0.525, -0.855}},
        {"gspo", "{}", -0.525636, {-1.051271, 1.051271, 0.525636, -1.051271}},
    };
    static const double log_probs[4] = {-0.5, -1, -2, -0.1}, old[4] = {-0.6, -0.6, -2.5, -3};
    static const double advantages[4] = {1, -1, -0.5, 1}, weights[4] = {0, 1, -0.5, 2};
    static const double in_ratio[4] = {0, 1, 1, 0};
    struct rk_test_batch batch = {.num_seqs = 1,
                                  .cu_seqlens = {0, 4},
                                  .mask = {1, 1, 1, 1},
                                  .mode = RK_AGG_TOKEN_SUM,
                                  .global = {1, 1, 1}};

    (void)state;
    memcpy(batch.outputs[RK_HEAD_LOG_PROBS], log_probs, sizeof(log_probs));
    memcpy(batch.columns[RK_LOSS_OLD_LOG_PROBS], old, sizeof(old));
    memcpy(batch.columns[RK_LOSS_ADVANTAGES], advantages, sizeof(advantages));
    memcpy(batch.columns[RK_LOSS_WEIGHTS], weights, sizeof(weights));
    memcpy(batch.columns[RK_LOSS_SEQUENCE_RATIO_MASK], in_ratio, sizeof(in_ratio));
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_test_loss loss = open_loss(RK_OBJECTIVE_SUM, cases[i].name, cases[i].options);
        struct rk_test_loss_result result = rk_test_loss_run(&loss, &batch);

        assert_below(cases[i].name, fabs(result.metrics[0] - cases[i].loss), RK_TOL_SIX_DECIMALS);
        for (int t = 0; t < 4; t++)
            assert_below(cases[i].name, fabs(result.grads[RK_HEAD_LOG_PROBS][t] - cases[i].grads[t]),
                         RK_TOL_SIX_DECIMALS);
    }
}

/* Goal: distillation with the published estimates, weighted in addition to the policy loss and unweighted
 * alone. */
static void test_distill_worked_example_has_published_values(void **state)
{
    static const char *const rewards[] = {"true", "false"};
    static const double log_probs[3] = {-1, -2, -0.5}, teacher[3] = {-1.2, -1.5, -0.5};
    static const double grads[3] = {0.181269, -0.648721, 0};
    struct rk_test_batch batch = {.num_seqs = 1,
                                  .cu_seqlens = {0, 3},
                                  .mask = {1, 1, 1},
                                  .mode = RK_AGG_TOKEN_SUM,
                                  .global = {3, 1, 1}};

    (void)state;
    memcpy(batch.outputs[RK_HEAD_LOG_PROBS], log_probs, sizeof(log_probs));
    memcpy(batch.columns[RK_LOSS_OLD_LOG_PROBS], log_probs, sizeof(log_probs));
    memcpy(batch.columns[RK_LOSS_TEACHER_LOG_PROBS], teacher, sizeof(teacher));
    for (int i = 0; i < 2; i++) {
        char options[256];
        struct rk_test_loss loss;
        struct rk_test_loss_result result;

        snprintf(options, sizeof(options),
                 "{\"distillation.enabled\": true, \"distillation.distillation_loss.use_task_rewards\": %s,"
                 " \"distillation.distillation_loss.distillation_loss_coef\": 2}",
                 rewards[i]);
        loss = open_loss(RK_OBJECTIVE_POLICY, "distill", options);
        result = rk_test_loss_run(&loss, &batch);
        assert_below("loss", fabs(result.metrics[0] - (0.018731 + 0.148721)), RK_TOL_SIX_DECIMALS);
        assert_below("min", fabs(rk_test_loss_metric(&loss, &result, "distillation/loss_min")), RK_TOL_F64);
        assert_below("max", fabs(rk_test_loss_metric(&loss, &result, "distillation/loss_max") - 0.148721),
                     RK_TOL_SIX_DECIMALS);
        for (int t = 0; t < 3; t++)
            assert_below("gradient", fabs(result.grads[RK_HEAD_LOG_PROBS][t] - (2 - i) * grads[t]),
                         2.0 * RK_TOL_SIX_DECIMALS);
    }
}

/* --- properties of every row --- */

static const struct row {
    rk_objective_kind_t kind;
    const char *name, *options;
    bool has_constants; /* the ratio is a constant: the derivative is taken with old log-probs changing
                         * together with the new ones */
    bool is_of_micro_batch;
} rows[] = {
    {RK_OBJECTIVE_POLICY, "vanilla", "{}", false, false},
    {RK_OBJECTIVE_POLICY, "gspo", "{}", false, false},
    {RK_OBJECTIVE_POLICY, "sapo", "{}", false, false},
    {RK_OBJECTIVE_POLICY, "gpg", "{}", false, false},
    {RK_OBJECTIVE_POLICY, "cispo", "{}", true, false},
    {RK_OBJECTIVE_POLICY, "dppo_tv", "{}", true, false},
    {RK_OBJECTIVE_POLICY, "dppo_kl", "{}", true, false},
    {RK_OBJECTIVE_POLICY, "dro", "{\"policy_loss.dro_beta\": 0.3}", false, false},
    {RK_OBJECTIVE_POLICY, "clip_cov",
     "{\"policy_loss.clip_cov_ratio\": 0.2, \"policy_loss.clip_cov_lb\": 0.01}", false, true},
    {RK_OBJECTIVE_POLICY, "kl_cov", "{\"policy_loss.kl_cov_ratio\": 0.3}", false, true},
    {RK_OBJECTIVE_POLICY, "geo_mean", "{}", false, false},
    {RK_OBJECTIVE_POLICY, "distill", "{\"distillation.enabled\": true}", false, false},
    {RK_OBJECTIVE_POLICY, "distill",
     "{\"distillation.enabled\": true, \"distillation.distillation_loss.loss_mode\": \"k2\","
     " \"distillation.distillation_loss.loss_max_clamp\": 2}",
     false, false},
    {RK_OBJECTIVE_VALUE, "value", "{}", false, false},
    {RK_OBJECTIVE_SFT, "sft", "{}", false, false},
    {RK_OBJECTIVE_DPO, "dpo", "{}", false, false},
    {RK_OBJECTIVE_DPO, "dpo", "{\"loss_type\": \"robust\", \"label_smoothing\": 0.2}", false, false},
    {RK_OBJECTIVE_DPO, "dpo", "{\"loss_type\": \"ipo\"}", false, false},
    {RK_OBJECTIVE_DPO, "dpo", "{\"loss_type\": \"apo_down\"}", false, false},
    {RK_OBJECTIVE_DPO, "dpo", "{\"loss_type\": \"nca_pair\"}", false, false},
    {RK_OBJECTIVE_SUM, "cross_entropy", "{}", false, false},
    {RK_OBJECTIVE_SUM, "importance_sampling", "{}", false, false},
    {RK_OBJECTIVE_SUM, "ppo", "{}", false, false},
    {RK_OBJECTIVE_SUM, "cispo", "{}", true, false},
    {RK_OBJECTIVE_SUM, "dro", "{\"beta\": 0.3}", false, false},
    {RK_OBJECTIVE_SUM, "gspo", "{}", false, false},
};

static struct rk_test_loss open_row(const struct row *row)
{
    return open_loss(row->kind, row->name, row->options);
}

static int head_of(const struct rk_test_loss *loss)
{
    return loss->ops->outputs == RK_HEAD_BIT(RK_HEAD_VALUES) ? RK_HEAD_VALUES : RK_HEAD_LOG_PROBS;
}

/* Tokens on both sides of every clip and far from its edges, some beyond the clamp of the exponent; the third
 * pair of sequences is masked out. Advantages and importance weights are one number per sequence, so that
 * gspo's gradient by token is the derivative of its loss. */
static struct rk_test_batch make_random(uint64_t seed, rk_loss_agg_mode_t mode)
{
    static const double log_ratios[] = {-25.0, -1.0, -0.3, -0.1, 0.02, 0.1, 0.25, 0.9, 1.5, 25.0};
    static const int32_t cu_seqlens[] = {0, 11, 24, 29, 32, 40, 47};
    struct rk_test_batch batch = {.num_seqs = 6, .mode = mode, .global = {0, 6, 16}};
    struct rk_rng rng;

    memcpy(batch.cu_seqlens, cu_seqlens, sizeof(cu_seqlens));
    rk_rng_init(&rng, seed, 7);
    for (int32_t i = 0; i < batch.num_seqs; i++) {
        double advantage = rk_rng_next_normal(&rng), weight = 2.0 * rk_rng_next_uniform(&rng);

        for (int32_t t = cu_seqlens[i]; t < cu_seqlens[i + 1]; t++) {
            double ratio = log_ratios[rk_rng_next_below(&rng, (int64_t)RK_ARRAY_LEN(log_ratios))];
            double old = -0.1 - 3.0 * rk_rng_next_uniform(&rng), noise = rk_rng_next_uniform(&rng);

            batch.mask[t] = t == cu_seqlens[i] || rk_rng_next_below(&rng, 4) != 0;
            batch.mask[t] = batch.mask[t] && i != 2 && i != 3;
            batch.global.num_tokens += batch.mask[t];
            batch.columns[RK_LOSS_OLD_LOG_PROBS][t] = old;
            batch.outputs[RK_HEAD_LOG_PROBS][t] = old + ratio + 0.01 * noise;
            batch.columns[RK_LOSS_REF_LOG_PROB][t] = old + rk_rng_next_normal(&rng);
            batch.columns[RK_LOSS_TEACHER_LOG_PROBS][t] = batch.columns[RK_LOSS_REF_LOG_PROB][t];
            batch.columns[RK_LOSS_ADVANTAGES][t] = advantage;
            batch.columns[RK_LOSS_ROLLOUT_IS_WEIGHTS][t] = weight;
            batch.columns[RK_LOSS_WEIGHTS][t] = rk_rng_next_normal(&rng);
            batch.columns[RK_LOSS_SEQUENCE_RATIO_MASK][t] = 1.0;
            batch.outputs[RK_HEAD_VALUES][t] = rk_rng_next_normal(&rng);
            batch.columns[RK_LOSS_VALUES][t] = batch.outputs[RK_HEAD_VALUES][t] + (ratio + 0.01 * noise);
            batch.columns[RK_LOSS_RETURNS][t] = rk_rng_next_normal(&rng);
        }
    }
    return batch;
}

static double loss_at(const struct row *row, const struct rk_test_loss *loss, struct rk_test_batch batch,
                      int t, double h)
{
    batch.outputs[head_of(loss)][t] += h;
    if (row->has_constants)
        batch.columns[RK_LOSS_OLD_LOG_PROBS][t] += h;
    return rk_test_loss_run(loss, &batch).metrics[0];
}

/* Limits one token's part of a sum: far larger terms would hide the difference by rounding. */
static void keep_small(struct rk_test_batch *batch, int t)
{
    for (int s = 0; s < batch->cu_seqlens[batch->num_seqs]; s++) {
        double *log_prob = &batch->outputs[RK_HEAD_LOG_PROBS][s];

        if (s != t && *log_prob - batch->columns[RK_LOSS_OLD_LOG_PROBS][s] > 10.0)
            *log_prob -= 25.0;
    }
}

/* Goal: the gradient of every row is the derivative of its loss, in every mode. */
static void test_rows_gradient_equals_central_difference(void **state)
{
    const double h = 1e-6;

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        struct rk_test_loss loss = open_row(&rows[i]);

        for (int mode = 0; mode < RK_AGG_COUNT; mode++) {
            for (int t = 0; t < 47; t++) {
                struct rk_test_batch batch = make_random(rk_test_seed(), (rk_loss_agg_mode_t)mode);
                double grad, difference, scale;
                char label[96];

                keep_small(&batch, t);
                grad = rk_test_loss_run(&loss, &batch).grads[head_of(&loss)][t];
                scale = fmax(fabs(grad), fmax(1.0, 1e-3 * fabs(loss_at(&rows[i], &loss, batch, t, 0.0))));
                difference =
                    (loss_at(&rows[i], &loss, batch, t, h) - loss_at(&rows[i], &loss, batch, t, -h)) /
                    (2.0 * h);
                snprintf(label, sizeof(label), "%s %s, mode %d, token %d", rows[i].name, rows[i].options,
                         mode, t);
                assert_below(label, fabs(difference - grad) / scale, RK_TOL_GRADIENT_F64);
            }
        }
    }
}

/* Goal: NaN and infinity outside the mask change no bit of any row. */
static void test_rows_nan_outside_mask_is_harmless(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        struct rk_test_loss loss = open_row(&rows[i]);
        struct rk_test_batch clean = make_random(rk_test_seed(), RK_AGG_SEQ_MEAN_TOKEN_SUM), dirty = clean;
        struct rk_test_loss_result expected = rk_test_loss_run(&loss, &clean), actual;

        for (int t = 0; t < 47; t++) {
            if (clean.mask[t])
                continue;
            for (int k = 0; k < RK_HEAD_OUTPUT_COUNT; k++)
                dirty.outputs[k][t] = NAN;
            for (int k = 0; k < RK_LOSS_COLUMN_COUNT; k++)
                dirty.columns[k][t] = k % 2 ? NAN : INFINITY;
        }
        actual = rk_test_loss_run(&loss, &dirty);
        assert_memory_equal(&actual, &expected, sizeof(actual));
    }
}

/* Goal: NaN in a token under the mask makes the loss of every row NaN. */
static void test_rows_nan_inside_mask_gives_nan(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        struct rk_test_loss loss = open_row(&rows[i]);
        struct rk_test_batch batch = make_random(rk_test_seed(), RK_AGG_TOKEN_MEAN);

        assert_true(batch.mask[0]);
        batch.outputs[head_of(&loss)][0] = NAN;
        if (!isnan(rk_test_loss_run(&loss, &batch).metrics[0]))
            fail_msg("%s hides a NaN", rows[i].name);
    }
}

/* Goal: splitting into micro-batches of whole pairs changes no gradient bit, except in rows that declare it,
 * and metrics only by the order of summation. */
static void test_rows_split_into_micro_batches_is_invariant(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        for (int mode = 0; mode < RK_AGG_COUNT && !rows[i].is_of_micro_batch; mode++) {
            struct rk_test_loss loss = open_row(&rows[i]);
            struct rk_test_batch all = make_random(rk_test_seed(), (rk_loss_agg_mode_t)mode);
            struct rk_test_loss_result whole = rk_test_loss_run(&loss, &all);
            double sums[RK_LOSS_METRICS_MAX] = {0};

            for (int32_t first = 0; first < 6; first += 2) {
                struct rk_test_batch part = rk_test_batch_take(&all, first, 2);
                struct rk_test_loss_result result = rk_test_loss_run(&loss, &part);

                assert_memory_equal(result.grads[head_of(&loss)],
                                    whole.grads[head_of(&loss)] + all.cu_seqlens[first],
                                    (size_t)part.cu_seqlens[2] * sizeof(double));
                for (int32_t k = 0; k < loss.ops->num_metrics; k++)
                    sums[k] += result.metrics[k];
            }
            for (int32_t k = 0; k < loss.ops->num_metrics; k++)
                if (loss.ops->metrics[k].reduce == RK_LOSS_SUM)
                    assert_below(loss.ops->metrics[k].name, fabs(sums[k] - whole.metrics[k]),
                                 RK_TOL_F64 * fmax(1.0, fabs(whole.metrics[k])));
        }
    }
}

/* Goal: a batch without tokens under the mask adds 0, in every row. */
static void test_rows_empty_mask_gives_zero(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        struct rk_test_loss loss = open_row(&rows[i]);
        struct rk_test_batch batch = make_random(rk_test_seed(), RK_AGG_SEQ_MEAN_TOKEN_MEAN);
        struct rk_test_loss_result result, zero = {0};

        memset(batch.mask, 0, sizeof(batch.mask));
        batch.global.num_tokens = batch.global.num_sequences = 0;
        result = rk_test_loss_run(&loss, &batch);
        for (int32_t k = 0; k < loss.ops->num_metrics; k++) {
            if (loss.ops->metrics[k].reduce == RK_LOSS_SUM)
                continue;
            assert_true(isinf(result.metrics[k]));
            result.metrics[k] = 0.0;
        }
        assert_memory_equal(&result, &zero, sizeof(result));
    }
}

/* Goal: an invalid value of any key of a row is refused with the key's name. */
static void test_rows_bad_key_is_named(void **state)
{
    static const struct {
        rk_objective_kind_t kind;
        const char *name, *options, *key;
    } cases[] = {
        {RK_OBJECTIVE_POLICY, "sapo", "{\"tau_pos\": 0}", "tau_pos"},
        {RK_OBJECTIVE_POLICY, "sapo", "{\"tau_neg\": \"warm\"}", "tau_neg"},
        {RK_OBJECTIVE_POLICY, "dro", "{}", "policy_loss.dro_beta"},
        {RK_OBJECTIVE_POLICY, "dro", "{\"policy_loss.dro_beta\": 0}", "policy_loss.dro_beta"},
        {RK_OBJECTIVE_POLICY, "clip_cov", "{\"policy_loss.clip_cov_ratio\": 0}",
         "policy_loss.clip_cov_ratio"},
        {RK_OBJECTIVE_POLICY, "clip_cov", "{\"policy_loss.clip_cov_lb\": 5}", "policy_loss.clip_cov_lb"},
        {RK_OBJECTIVE_POLICY, "clip_cov", "{\"policy_loss.clip_cov_ub\": null}", "policy_loss.clip_cov_ub"},
        {RK_OBJECTIVE_POLICY, "kl_cov", "{\"policy_loss.kl_cov_ratio\": 1.5}", "policy_loss.kl_cov_ratio"},
        {RK_OBJECTIVE_POLICY, "kl_cov", "{\"policy_loss.ppo_kl_coef\": -1}", "policy_loss.ppo_kl_coef"},
        {RK_OBJECTIVE_VALUE, "value", "{\"cliprange_value\": -0.5}", "cliprange_value"},
        {RK_OBJECTIVE_DPO, "dpo", "{\"loss_type\": \"aot\"}", "loss_type"},
        {RK_OBJECTIVE_DPO, "dpo", "{\"beta\": 0}", "beta"},
        {RK_OBJECTIVE_DPO, "dpo", "{\"label_smoothing\": 0.5}", "label_smoothing"},
        {RK_OBJECTIVE_DPO, "dpo", "{\"loss_type\": \"exo_pair\"}", "label_smoothing"},
        {RK_OBJECTIVE_SUM, "ppo", "{\"clip_low_threshold\": 1.5}", "clip_low_threshold"},
        {RK_OBJECTIVE_SUM, "cispo", "{\"clip_high_threshold\": -1}", "clip_high_threshold"},
        {RK_OBJECTIVE_SUM, "dro", "{}", "beta"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_test_loss loss;

        assert_fails(rk_test_loss_read(&loss, rk_loss_find(cases[i].kind, cases[i].name), cases[i].options),
                     RK_INVALID_ARGUMENT, cases[i].key);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_policy_rows_worked_set_has_published_values),
        cmocka_unit_test(test_gspo_exchanged_advantages_has_published_values),
        cmocka_unit_test(test_dro_worked_set_has_published_gradient),
        cmocka_unit_test(test_clip_cov_worked_set_drops_one_candidate),
        cmocka_unit_test(test_value_worked_example_has_published_values),
        cmocka_unit_test(test_sft_worked_example_sums_over_replicas),
        cmocka_unit_test(test_dpo_worked_pair_has_published_values),
        cmocka_unit_test(test_dpo_metrics_and_padding),
        cmocka_unit_test(test_sums_worked_example_has_published_values),
        cmocka_unit_test(test_distill_worked_example_has_published_values),
        cmocka_unit_test(test_rows_gradient_equals_central_difference),
        cmocka_unit_test(test_rows_nan_outside_mask_is_harmless),
        cmocka_unit_test(test_rows_nan_inside_mask_gives_nan),
        cmocka_unit_test(test_rows_split_into_micro_batches_is_invariant),
        cmocka_unit_test(test_rows_empty_mask_gives_zero),
        cmocka_unit_test(test_rows_bad_key_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
