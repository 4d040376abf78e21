/* The learning-rate schedule and the reading of optimizer options. */
#include "tests/support/test.h"

#include <math.h>
#include <string.h>

#include "base/rk_json.h"
#include "engine/rk_train.h"

/* Goal: every style has the published values at the corners of the schedule. */
static void test_lr_at_worked_values(void **state)
{
    static const int64_t steps[] = {0, 5, 10, 55, 100, 101};
    static const struct {
        const char *label;
        rk_lr_style_t style;
        double expected[RK_ARRAY_LEN(steps)];
    } cases[] = {
        {"constant", RK_LR_CONSTANT, {0, 0.5, 1, 1, 1, 1}},
        {"linear", RK_LR_LINEAR, {0, 0.5, 1, 0.55, 0.1, 0.1}},
        {"cosine", RK_LR_COSINE, {0, 0.5, 1, 0.55, 0.1, 0.1}},
        {"inverse square root", RK_LR_INVERSE_SQRT, {0, 0.5, 1, 0.426401, 0.316228, 0.1}},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_optim_config config = {
            .lr = 1.0,
            .min_lr = 0.1,
            .lr_decay_style = cases[i].style,
            .lr_warmup_steps = 10,
            .lr_decay_steps = 100,
        };

        for (size_t k = 0; k < RK_ARRAY_LEN(steps); k++)
            assert_below(cases[i].label, fabs(rk_lr_at(&config, steps[k]) - cases[i].expected[k]),
                         RK_TOL_SIX_DECIMALS);
    }
}

static void test_lr_at_without_warmup_starts_at_peak(void **state)
{
    struct rk_optim_config config = {.lr = 2.0, .lr_decay_style = RK_LR_LINEAR, .lr_decay_steps = 4};

    (void)state;
    assert_true(rk_lr_at(&config, 0) == 2.0);
    assert_true(rk_lr_at(&config, 1) == 1.5);
    assert_true(rk_lr_at(&config, 4) == 0.0);
    assert_true(rk_lr_at(&config, 1000) == 0.0);
}

static const char defaults[] =
    "{\"optim.lr\": 1e-6, \"optim.optimizer\": \"adam\", \"optim.betas\": [0.9, 0.999], \"optim.eps\": 1e-8,"
    " \"optim.weight_decay\": 0.01, \"optim.clip_grad\": 1.0, \"optim.lr_decay_style\": \"constant\","
    " \"optim.lr_warmup_steps\": -1, \"optim.lr_warmup_steps_ratio\": 0.0, \"optim.lr_warmup_init\": 0.0,"
    " \"optim.lr_decay_steps\": null, \"optim.min_lr\": 0.0, \"optim.total_training_steps\": -1}";

/* The defaults with the members of `changes`, a JSON object. */
static struct rk_json *make_options(const char *changes)
{
    struct rk_json *options, *json;

    assert_ok(rk_json_parse(&options, defaults, strlen(defaults), "options", 0));
    assert_ok(rk_json_parse(&json, changes, strlen(changes), "changes", 0));
    for (void *it = rk_json_iter(json); it; it = rk_json_iter_next(json, it))
        rk_json_set(options, rk_json_iter_key(it), rk_json_retain(rk_json_iter_value(it)));
    rk_json_free(json);
    return options;
}

static void test_optim_config_read_defaults(void **state)
{
    struct rk_json *options = make_options("{}");
    struct rk_optim_config config;

    (void)state;
    assert_ok(rk_optim_config_read(&config, options));
    assert_non_null(config.ops);
    assert_true(config.lr == 1e-6 && config.betas[0] == 0.9 && config.betas[1] == 0.999 &&
                config.eps == 1e-8);
    assert_true(config.weight_decay == 0.01 && config.clip_grad == 1.0);
    assert_int_equal(config.lr_decay_style, RK_LR_CONSTANT);
    assert_true(rk_lr_at(&config, 0) == 1e-6 && rk_lr_at(&config, 1000000) == 1e-6);
    rk_json_free(options);
}

/* Goal: warm-up and decay come from their own keys, else from the ratio and the length of the run. */
static void test_optim_config_read_steps_are_resolved(void **state)
{
    static const struct {
        const char *changes;
        int64_t warmup, decay;
    } cases[] = {
        {"{\"optim.total_training_steps\": 200, \"optim.lr_warmup_steps_ratio\": 0.1}", 20, 200},
        {"{\"optim.total_training_steps\": 200, \"optim.lr_warmup_steps\": 7}", 7, 200},
        {"{\"optim.total_training_steps\": 200, \"optim.lr_warmup_steps\": 7,"
         " \"optim.lr_warmup_steps_ratio\": 0.5}",
         7, 200},
        {"{\"optim.total_training_steps\": 200, \"optim.lr_decay_steps\": 50,"
         " \"optim.lr_warmup_steps_ratio\": 0.1}",
         5, 50},
        {"{\"optim.lr_warmup_steps\": 3}", 3, 0},
        {"{\"optim.lr_decay_style\": \"cosine\", \"optim.lr_decay_steps\": 9}", 0, 9},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_json *options = make_options(cases[i].changes);
        struct rk_optim_config config;

        assert_ok(rk_optim_config_read(&config, options));
        assert_int_equal(config.lr_warmup_steps, cases[i].warmup);
        assert_int_equal(config.lr_decay_steps, cases[i].decay);
        rk_json_free(options);
    }
}

static void test_optim_config_read_styles(void **state)
{
    static const struct {
        const char *name;
        rk_lr_style_t style;
    } cases[] = {
        {"constant", RK_LR_CONSTANT},
        {"linear", RK_LR_LINEAR},
        {"cosine", RK_LR_COSINE},
        {"inverse_square_root", RK_LR_INVERSE_SQRT},
        {"inverse-square-root", RK_LR_INVERSE_SQRT},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_json *options = make_options("{\"optim.total_training_steps\": 10}");
        struct rk_optim_config config;

        rk_json_set(options, "optim.lr_decay_style", rk_json_new_string(cases[i].name));
        assert_ok(rk_optim_config_read(&config, options));
        assert_int_equal(config.lr_decay_style, cases[i].style);
        rk_json_free(options);
    }
}

static void test_optim_config_read_bad_value_names_key(void **state)
{
    static const struct {
        const char *changes, *key;
    } cases[] = {
        {"{\"optim.lr\": -1}", "optim.lr"},
        {"{\"optim.lr\": \"fast\"}", "optim.lr"},
        {"{\"optim.optimizer\": \"sgd\"}", "optim.optimizer"},
        {"{\"optim.betas\": [0.9]}", "optim.betas"},
        {"{\"optim.betas\": [0.9, 1.0]}", "optim.betas"},
        {"{\"optim.betas\": [\"a\", 0.9]}", "optim.betas"},
        {"{\"optim.betas\": 0.9}", "optim.betas"},
        {"{\"optim.eps\": -1e-8}", "optim.eps"},
        {"{\"optim.weight_decay\": -0.1}", "optim.weight_decay"},
        {"{\"optim.clip_grad\": -1}", "optim.clip_grad"},
        {"{\"optim.lr_decay_style\": \"exponential\"}", "optim.lr_decay_style"},
        {"{\"optim.lr_decay_style\": \"linear\"}", "optim.total_training_steps"},
        {"{\"optim.lr_warmup_steps_ratio\": 0.1}", "optim.total_training_steps"},
        {"{\"optim.lr_warmup_steps_ratio\": 1.0}", "optim.lr_warmup_steps_ratio"},
        {"{\"optim.lr_warmup_steps\": 10, \"optim.total_training_steps\": 10}", "optim.lr_warmup_steps"},
        {"{\"optim.lr_warmup_steps\": 1.5}", "optim.lr_warmup_steps"},
        {"{\"optim.lr_decay_steps\": 0}", "optim.lr_decay_steps"},
        {"{\"optim.min_lr\": 1.0}", "optim.min_lr"},
        {"{\"optim.lr_warmup_init\": 1.0}", "optim.lr_warmup_init"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_json *options = make_options(cases[i].changes);
        struct rk_optim_config config;

        assert_fails(rk_optim_config_read(&config, options), RK_INVALID_ARGUMENT, cases[i].key);
        rk_json_free(options);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lr_at_worked_values),
        cmocka_unit_test(test_lr_at_without_warmup_starts_at_peak),
        cmocka_unit_test(test_optim_config_read_defaults),
        cmocka_unit_test(test_optim_config_read_steps_are_resolved),
        cmocka_unit_test(test_optim_config_read_styles),
        cmocka_unit_test(test_optim_config_read_bad_value_names_key),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
