/* The reading of objectives from options. */
#include "tests/support/test.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_json.h"
#include "base/rk_str.h"
#include "engine/rk_loss.h"
#include "tests/support/losses.h"

#define DISTILL "distillation.distillation_loss."

static const char some[] = "{\"temperature\": 1.0, \"policy_loss.dro_beta\": 0.05}";

static struct rk_json *make_options(const char *key, const char *value)
{
    struct rk_json *options, *json;

    assert_ok(rk_json_parse(&options, some, strlen(some), "options", 0));
    if (key) {
        char *text = rk_format("[%s]", value);

        assert_ok(rk_json_parse(&json, text, strlen(text), "value", 0));
        rk_json_set(options, key, rk_json_retain(rk_json_at(json, 0)));
        rk_json_free(json);
        rk_free(text);
    }
    rk_test_policy_options(options);
    return options;
}

/* The value of a number in the configuration of a term's row. */
static double config_number(const struct rk_loss_term *term, const char *key)
{
    for (int64_t i = 0; i < term->loss->ops->num_knobs; i++) {
        const struct rk_knob *knob = &term->loss->ops->knobs[i];

        if (strcmp(knob->key.path, key) == 0 && knob->type == RK_KNOB_REAL)
            return term->config[knob->offset / sizeof(double)];
    }
    fail_msg("no number %s", key);
    return NAN;
}

static void test_objective_read_defaults(void **state)
{
    struct rk_json *options = make_options(NULL, NULL);
    struct rk_objective objective;

    (void)state;
    assert_ok(rk_objective_read(&objective, RK_OBJECTIVE_POLICY, options));
    assert_int_equal(objective.num_terms, 1);
    assert_string_equal(objective.terms[0].loss->name, "vanilla");
    assert_int_equal(objective.agg_mode, RK_AGG_TOKEN_MEAN);
    assert_true(config_number(&objective.terms[0], "clip_ratio_low") == 0.2);
    assert_true(config_number(&objective.terms[0], "clip_ratio_high") == 0.2);
    assert_true(config_number(&objective.terms[0], "clip_ratio_c") == 3.0);
    assert_true(objective.loss_scale_factor == 0.0);
    assert_int_equal(objective.outputs, RK_HEAD_BIT(RK_HEAD_LOG_PROBS));
    assert_int_equal(objective.columns, RK_LOSS_BIT(RK_LOSS_OLD_LOG_PROBS) | RK_LOSS_BIT(RK_LOSS_ADVANTAGES));
    rk_json_free(options);
}

static void test_objective_read_overrides(void **state)
{
    struct rk_json *options = make_options("clip_ratio_high", "0.28");
    struct rk_objective objective;

    (void)state;
    rk_json_set(options, "loss_agg_mode", rk_json_new_string("seq-mean-token-sum-norm"));
    rk_json_set(options, "loss_scale_factor", rk_json_new_int(512));
    rk_json_set(options, "kl_loss_type", rk_json_new_string("k3+"));
    rk_json_set(options, "use_kl_loss", rk_json_new_bool(true));
    rk_json_set(options, "entropy_coeff", rk_json_new_real(0.01));
    assert_ok(rk_objective_read(&objective, RK_OBJECTIVE_POLICY, options));
    assert_int_equal(objective.agg_mode, RK_AGG_SEQ_MEAN_TOKEN_SUM_NORM);
    assert_true(config_number(&objective.terms[0], "clip_ratio_low") == 0.2);
    assert_true(config_number(&objective.terms[0], "clip_ratio_high") == 0.28);
    assert_true(objective.loss_scale_factor == 512.0);
    assert_int_equal(objective.num_terms, 3);
    assert_string_equal(objective.terms[1].loss->name, "kl");
    assert_string_equal(objective.terms[2].loss->name, "entropy");
    assert_true(objective.columns & RK_LOSS_BIT(RK_LOSS_REF_LOG_PROB));
    assert_true(objective.outputs & RK_HEAD_BIT(RK_HEAD_ENTROPY));
    rk_json_free(options);
}

/* Goal: an entropy whose coefficient is 0 is computed and not differentiated. */
static void test_objective_read_entropy_that_is_only_measured(void **state)
{
    uint32_t log_probs = RK_HEAD_BIT(RK_HEAD_LOG_PROBS), entropy = RK_HEAD_BIT(RK_HEAD_ENTROPY);
    struct rk_json *options = make_options("calculate_entropy", "true");
    struct rk_objective objective;

    (void)state;
    assert_ok(rk_objective_read(&objective, RK_OBJECTIVE_POLICY, options));
    assert_int_equal(objective.outputs, log_probs | entropy);
    assert_int_equal(objective.differentiated, log_probs);
    rk_json_set(options, "entropy_coeff", rk_json_new_real(0.01));
    assert_ok(rk_objective_read(&objective, RK_OBJECTIVE_POLICY, options));
    assert_int_equal(objective.differentiated, log_probs | entropy);
    rk_json_free(options);
}

static void test_objective_read_bad_value_names_key(void **state)
{
    static const struct {
        const char *key, *value;
    } cases[] = {
        {"policy_loss.loss_mode", "\"clip-cov\""},
        {"policy_loss.loss_mode", "7"},
        {"loss_agg_mode", "\"token_mean\""},
        {"clip_ratio", "\"high\""},
        {"clip_ratio", "-0.1"},
        {"clip_ratio_low", "-0.1"},
        {"clip_ratio_high", "-1"},
        {"clip_ratio_c", "1.0"},
        {"clip_ratio_c", "null"},
        {"loss_scale_factor", "0"},
        {"loss_scale_factor", "-2.5"},
        {"use_kl_loss", "1"},
        {"kl_loss_type", "\"k5\""},
        {"entropy_coeff", "[]"},
        {"distillation.enabled", "1"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_json *options = make_options(cases[i].key, cases[i].value);
        struct rk_objective objective;

        assert_fails(rk_objective_read(&objective, RK_OBJECTIVE_POLICY, options), RK_INVALID_ARGUMENT,
                     cases[i].key);
        rk_json_free(options);
    }
}

/* Goal: distillation is a term beside the policy loss, or the only one; an invalid key of it is named. */
static void test_objective_read_distillation(void **state)
{
    static const struct {
        const char *key, *value;
    } bad[] = {
        {DISTILL "loss_mode", "\"k1\""}, /* without use_policy_gradient */
        {DISTILL "loss_mode", "\"full_kl_topk\""},
        {DISTILL "topk", "0"},
        {DISTILL "topk", "1025"},
        {DISTILL "topk", "null"},
        {DISTILL "beta", "1.5"},
        {DISTILL "log_prob_min_clamp", "0.5"},
        {DISTILL "renormalize_topk", "true"}, /* with an estimator */
        {DISTILL "use_task_rewards", "0"},
        {DISTILL "distillation_loss_coef", "-1"},
        {DISTILL "loss_max_clamp", "0"},
        {DISTILL "use_policy_gradient", "null"},
        {DISTILL "clip_ratio", "-0.1"},
        {DISTILL "clip_ratio_low", "-2"},
        {DISTILL "clip_ratio_high", "\"x\""},
    };
    struct rk_json *options = make_options("distillation.enabled", "true");
    struct rk_objective objective;

    (void)state;
    rk_json_set(options, "use_kl_loss", rk_json_new_bool(true));
    assert_ok(rk_objective_read(&objective, RK_OBJECTIVE_POLICY, options));
    assert_int_equal(objective.num_terms, 3);
    assert_string_equal(objective.terms[2].loss->name, "distill");
    assert_true(objective.columns & RK_LOSS_BIT(RK_LOSS_TEACHER_LOG_PROBS));
    rk_json_set(options, DISTILL "use_task_rewards", rk_json_new_bool(false));
    assert_ok(rk_objective_read(&objective, RK_OBJECTIVE_POLICY, options));
    assert_int_equal(objective.num_terms, 1);
    assert_string_equal(objective.terms[0].loss->name, "distill");
    assert_false(objective.columns & RK_LOSS_BIT(RK_LOSS_REF_LOG_PROB));
    assert_int_equal(objective.num_ids, 0);
    rk_json_free(options);

    for (size_t i = 0; i < RK_ARRAY_LEN(bad); i++) {
        options = make_options(bad[i].key, bad[i].value);
        rk_json_set(options, "distillation.enabled", rk_json_new_bool(true));
        assert_fails(rk_objective_read(&objective, RK_OBJECTIVE_POLICY, options), RK_INVALID_ARGUMENT,
                     bad[i].key);
        rk_json_free(options);
    }
}

/* Goal: a divergence over the teacher's top-k requests k ids and not the sampled token's log-prob, with other
 * terms and alone. */
static void test_objective_read_distillation_over_topk(void **state)
{
    static const char *const modes[] = {"forward_kl_topk", "reverse_kl_topk", "jsd_topk"};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(modes); i++) {
        struct rk_json *options = make_options("distillation.enabled", "true");
        struct rk_objective objective;

        rk_json_set(options, DISTILL "loss_mode", rk_json_new_string(modes[i]));
        rk_json_set(options, DISTILL "topk", rk_json_new_int(7));
        rk_json_set(options, "use_kl_loss", rk_json_new_bool(true));
        rk_json_set(options, "entropy_coeff", rk_json_new_real(0.1));
        assert_ok(rk_objective_read(&objective, RK_OBJECTIVE_POLICY, options));
        assert_int_equal(objective.num_terms, 4);
        assert_string_equal(objective.terms[3].loss->name, "distill_topk");
        assert_int_equal(objective.num_ids, 7);
        assert_false(objective.columns & RK_LOSS_BIT(RK_LOSS_TEACHER_LOG_PROBS));
        rk_json_set(options, DISTILL "use_task_rewards", rk_json_new_bool(false));
        assert_ok(rk_objective_read(&objective, RK_OBJECTIVE_POLICY, options));
        assert_int_equal(objective.num_terms, 1);
        assert_int_equal(objective.num_ids, 7);
        rk_json_set(options, DISTILL "renormalize_topk", rk_json_new_bool(true));
        if (i == 0)
            assert_ok(rk_objective_read(&objective, RK_OBJECTIVE_POLICY, options));
        else
            assert_fails(rk_objective_read(&objective, RK_OBJECTIVE_POLICY, options), RK_INVALID_ARGUMENT,
                         "renormalize_topk=true");
        rk_json_free(options);
    }
}

/* Goal: every choice in the table of options is implemented. */
static void test_objective_read_takes_every_choice(void **state)
{
    static const struct {
        const char *key, *choices;
    } knobs[] = {
#define KNOB(a, b, c, field, key, type, def, min, max, choices, ...) {key, choices},
        RK_POLICY_LOSS_KNOBS(KNOB, , , )
#undef KNOB
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(knobs); i++) {
        for (const char *p = knobs[i].choices; p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL) {
            char *value = rk_format("\"%.*s\"", (int)strcspn(p, "|"), p);
            struct rk_json *options = make_options(knobs[i].key, value);
            struct rk_objective objective;

            assert_ok(rk_objective_read(&objective, RK_OBJECTIVE_POLICY, options));
            rk_json_free(options);
            rk_free(value);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_objective_read_defaults),
        cmocka_unit_test(test_objective_read_overrides),
        cmocka_unit_test(test_objective_read_entropy_that_is_only_measured),
        cmocka_unit_test(test_objective_read_bad_value_names_key),
        cmocka_unit_test(test_objective_read_distillation),
        cmocka_unit_test(test_objective_read_distillation_over_topk),
        cmocka_unit_test(test_objective_read_takes_every_choice),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
