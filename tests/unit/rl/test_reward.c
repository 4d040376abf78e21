/* Rewards: configurations that are refused, items without a score, and the rewards digits, exact and regex on
 * hand-scored answers. verl's rewards are tested in test_reward_verl.c, those with workers in
 * test_reward_workers.c. */
#include "rl/rk_reward.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "tests/support/test.h"

static struct rk_status *open_reward(struct rk_reward **out, const char *config_text)
{
    struct rk_json *config = NULL;
    struct rk_status *st;

    assert_ok(rk_json_parse(&config, config_text, strlen(config_text), "test", 0));
    st = rk_reward_create(out, config, rk_test_temp_dir());
    rk_json_free(config);
    return st;
}

static struct rk_reward_item item_of(const char *solution, const char *truth)
{
    return (struct rk_reward_item){.data_source = "",
                                   .prompt = "",
                                   .solution_str = solution,
                                   .solution_bytes = strlen(solution),
                                   .ground_truth = truth};
}

static const struct {
    const char *answer, *truth;
    double score;
} digit_cases[] = {
    {"7,9", "7,9", 1.0},
    {"", "7", 0.0},
    {"7", "7", 1.0},
    {"8", "7", (1.0 + 0.5 * 2 / 3) / 2},
    {"9", "7", (1.0 + 0.5 / 3) / 2},
    {"0", "7", 0.5},
    {"9", "0", (1.0 + 0.5 * 2 / 3) / 2},
    {",", "7", 0.5},
    {"7,", "7,9", 2.0 / 4},
    {"7,9,1", "7,9", 3.0 / 6},
    {"abc", "7,9", 0.25},
};

static void test_digits_hand_scored_answers_match(void **state)
{
    struct rk_reward *reward = NULL;

    (void)state;
    assert_ok(open_reward(&reward, "{\"name\": \"digits\"}"));
    for (size_t i = 0; i < RK_ARRAY_LEN(digit_cases); i++) {
        struct rk_reward_item item = item_of(digit_cases[i].answer, digit_cases[i].truth);
        struct rk_reward_result result;

        assert_ok(rk_reward_score(reward, &item, 1, &result, NULL));
        assert_below(digit_cases[i].answer, fabs(result.score - digit_cases[i].score), 1e-12);
        assert_int_equal(result.outcome, RK_REWARD_SCORED);
        rk_reward_results_fini(&result, 1);
    }
    rk_reward_destroy(reward);
}

static void test_digits_item_without_truth_is_refused(void **state)
{
    struct rk_reward_item item = item_of("", "");
    struct rk_reward_result result;
    struct rk_reward *reward = NULL;

    (void)state;
    assert_ok(open_reward(&reward, "{\"name\": \"digits\"}"));
    assert_fails(rk_reward_score(reward, &item, 1, &result, NULL), RK_INVALID_ARGUMENT,
                 "item 0: reward_model.ground_truth");
    rk_reward_destroy(reward);
}

static const struct {
    const char *label, *config, *answer, *truth;
    double score;
} scored[] = {
    {"exact", "{'name': 'exact'}", "  42\n", "42", 1.0},
    {"exact, wrong", "{'name': 'exact'}", "The answer is 42", "42", 0.0},
    {"exact, points", "{'name': 'exact', 'score': 2, 'format_score': -1}", "41", "42", -1.0},
    {"exact, right points", "{'name': 'exact', 'score': 2, 'format_score': -1}", "42", "42", 2.0},
    {"qa_em with plain truth", "{'name': 'exact', 'method': 'qa_em'}", "<answer>The Beatles!</answer>",
     "beatles", 1.0},
    {"qa_em with a list", "{'name': 'exact', 'method': 'qa_em'}",
     "<answer>A</answer> <answer> Paris, France </answer>", "{\"target\": [\"paris france\", \"x\"]}", 1.0},
    {"qa_em without tags", "{'name': 'exact', 'method': 'qa_em'}", "Paris", "Paris", 0.0},
    {"regex, group", "{'name': 'regex', 'pattern': 'Answer: *([0-9]+)'}", "Answer: 3\nAnswer: 42.", "42",
     1.0},
    {"regex, whole match", "{'name': 'regex', 'pattern': '[A-D]$'}", "I choose C", "C", 1.0},
    {"regex, no match", "{'name': 'regex', 'pattern': '[A-D]$', 'format_score': 0.5}", "none", "C", 0.0},
    {"regex, wrong", "{'name': 'regex', 'pattern': '[A-D]$', 'format_score': 0.5}", "B", "C", 0.5},
    {"regex, empty matches", "{'name': 'regex', 'pattern': 'x*'}", "a\u00e9", "-", 0.0},
    {"regex, unset group", "{'name': 'regex', 'pattern': '(a)|b'}", "a b", "a", 1.0},
};

/* 'x' stands for "x" in the configurations above. rk_free it. */
static char *quoted(const char *text)
{
    char *copy = rk_strdup(text);

    for (char *c = copy; *c; c++)
        *c = *c == '\'' ? '"' : *c;
    return copy;
}

static void test_exact_and_regex_hand_scored_answers_match(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(scored); i++) {
        struct rk_reward_item item = item_of(scored[i].answer, scored[i].truth);
        char *config = quoted(scored[i].config);
        struct rk_reward_result result;
        struct rk_reward *reward;

        print_message("  %s\n", scored[i].label);
        assert_ok(open_reward(&reward, config));
        assert_ok(rk_reward_score(reward, &item, 1, &result, NULL));
        assert_true(result.score == scored[i].score);
        rk_reward_results_fini(&result, 1);
        rk_reward_destroy(reward);
        rk_free(config);
    }
}

/* Goal: a pattern with unbounded matching time fails its item with a message. */
static void test_regex_endless_pattern_fails_the_item(void **state)
{
    struct rk_reward_item item = item_of("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!", "x");
    struct rk_reward_result result;
    struct rk_reward *reward;

    (void)state;
    assert_ok(
        open_reward(&reward, "{\"name\": \"regex\", \"pattern\": \"^(a+)+$\", \"max_failed_ratio\": 1.0}"));
    assert_ok(rk_reward_score(reward, &item, 1, &result, NULL));
    assert_int_equal(result.outcome, RK_REWARD_ERROR);
    assert_true(result.is_dropped);
    assert_non_null(strstr(result.message, "reward.pattern"));
    rk_reward_results_fini(&result, 1);
    rk_reward_destroy(reward);
}

static const struct {
    const char *data_source, *truth;
    rk_code_t code;
    const char *message;
} sources[] = {
    {"openai/gsm8k", "72", RK_OK, NULL},
    {"lighteval/MATH", "1/2", RK_OK, NULL},
    {"aime_2024", "7", RK_OK, NULL},
    {"searchR1_nq", "{\"target\": [\"x\"]}", RK_OK, NULL},
    {"openai/gsm8k", "", RK_INVALID_ARGUMENT, "reward_model.ground_truth is missing"},
    {"searchR1_nq", "{\"target\": 7}", RK_INVALID_ARGUMENT, "reward_model.ground_truth.target"},
    {"codecontests", "{}", RK_UNIMPLEMENTED, "'codecontests'"},
    {"my/data", "7", RK_INVALID_ARGUMENT, "'my/data' selects no reward"},
    {"OpenAI/gsm8k", "7", RK_INVALID_ARGUMENT, "'OpenAI/gsm8k'"},
};

static void test_auto_data_source_selects_the_row_or_is_refused(void **state)
{
    struct rk_reward *reward;

    (void)state;
    assert_ok(open_reward(&reward, "{\"name\": \"auto\"}"));
    for (size_t i = 0; i < RK_ARRAY_LEN(sources); i++) {
        struct rk_reward_item item = item_of("", sources[i].truth);

        item.data_source = sources[i].data_source;
        print_message("  %s\n", sources[i].data_source);
        if (sources[i].code == RK_OK)
            assert_ok(rk_reward_check(reward, &item));
        else
            assert_fails(rk_reward_check(reward, &item), sources[i].code, sources[i].message);
    }
    rk_reward_destroy(reward);
}

static void test_auto_scores_by_the_data_source(void **state)
{
    static const struct {
        const char *data_source, *answer, *truth;
        double score;
    } cases[] = {
        {"openai/gsm8k", "#### 72", "72", 1.0},
        {"lighteval/MATH", "\\boxed{0.5}", "\\frac12", 1.0},
        {"math_dapo", "Answer: 8", "7", -1.0},
        {"searchR1_nq", "<answer>X</answer>", "{\"target\": \"x\"}", 1.0},
    };
    struct rk_reward_item items[RK_ARRAY_LEN(cases)];
    struct rk_reward_result results[RK_ARRAY_LEN(cases)];
    struct rk_reward *reward;

    (void)state;
    assert_ok(open_reward(&reward, "{\"name\": \"auto\"}"));
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        items[i] = item_of(cases[i].answer, cases[i].truth);
        items[i].data_source = cases[i].data_source;
    }
    assert_ok(rk_reward_score(reward, items, RK_ARRAY_LEN(cases), results, NULL));
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++)
        assert_true(results[i].score == cases[i].score);
    rk_reward_results_fini(results, RK_ARRAY_LEN(cases));
    rk_reward_destroy(reward);
}

static bool always(void *user)
{
    (void)user;
    return true;
}

static void test_score_cancelled_watch_ends_the_call(void **state)
{
    struct rk_reward_item item = item_of("7", "7");
    struct rk_reward_watch watch = {.is_cancelled = always};
    struct rk_reward_result result;
    struct rk_reward *reward;

    (void)state;
    assert_ok(open_reward(&reward, "{\"name\": \"digits\"}"));
    assert_code(rk_reward_score(reward, &item, 1, &result, &watch), RK_CANCELLED);
    rk_reward_results_fini(&result, 1);
    rk_reward_destroy(reward);
}

static const struct {
    const char *label, *config;
    rk_code_t code;
    const char *message;
} bad_configs[] = {
    {"unknown", "{'name': 'gsm9k'}", RK_NOT_FOUND, "digits, command"},
    {"no name", "{}", RK_INVALID_ARGUMENT, "reward.name"},
    {"unknown key", "{'name': 'digits', 'scale': 2}", RK_INVALID_ARGUMENT, "reward.scale"},
    {"key of another row", "{'name': 'math', 'method': 'strict'}", RK_INVALID_ARGUMENT, "reward.method"},
    {"function of another row", "{'name': 'digits', 'custom_reward_function': {'path': 'x.py'}}",
     RK_INVALID_ARGUMENT, "reward.custom_reward_function"},
    {"unknown key of a command", "{'name': 'command', 'command': ['cat'], 'timout': '5s'}",
     RK_INVALID_ARGUMENT, "reward.timout"},
    {"on_error", "{'name': 'digits', 'on_error': 'skip'}", RK_INVALID_ARGUMENT, "drop, zero, fail"},
    {"max_failed_ratio", "{'name': 'digits', 'max_failed_ratio': 1.5}", RK_INVALID_ARGUMENT,
     "reward.max_failed_ratio"},
    {"method", "{'name': 'gsm8k', 'method': 'loose'}", RK_INVALID_ARGUMENT, "strict, flexible"},
    {"score", "{'name': 'gsm8k', 'score': 'x'}", RK_INVALID_ARGUMENT, "reward.score"},
    {"format_score", "{'name': 'exact', 'format_score': []}", RK_INVALID_ARGUMENT, "reward.format_score"},
    {"strict_box_verify", "{'name': 'math_dapo', 'strict_box_verify': 1}", RK_INVALID_ARGUMENT,
     "reward.strict_box_verify"},
    {"no pattern", "{'name': 'regex'}", RK_INVALID_ARGUMENT, "reward.pattern"},
    {"bad pattern", "{'name': 'regex', 'pattern': 'a(b'}", RK_INVALID_ARGUMENT, "at byte 3 of 'a(b'"},
    {"no program", "{'name': 'command'}", RK_INVALID_ARGUMENT, "reward.command"},
    {"not words", "{'name': 'command', 'command': [1]}", RK_INVALID_ARGUMENT, "reward.command[0]"},
    {"num_workers", "{'name': 'command', 'command': ['cat'], 'num_workers': 0}", RK_INVALID_ARGUMENT,
     "reward.num_workers"},
    {"batch_size", "{'name': 'command', 'command': ['cat'], 'batch_size': 0}", RK_INVALID_ARGUMENT,
     "reward.batch_size"},
    {"timeout that overflows", "{'name': 'command', 'command': ['cat'], 'timeout': '2562047788h'}",
     RK_INVALID_ARGUMENT, "reward.timeout"},
    {"bad timeout", "{'name': 'command', 'command': ['cat'], 'timeout': '5'}", RK_INVALID_ARGUMENT, "\"5\""},
    {"bad start_timeout", "{'name': 'command', 'command': ['cat'], 'start_timeout': '0s'}",
     RK_INVALID_ARGUMENT, "reward.start_timeout"},
    {"missing program", "{'name': 'command', 'command': ['/nonexistent/scorer']}", RK_NOT_FOUND,
     "/nonexistent/scorer"},
    {"missing directory", "{'name': 'command', 'command': ['cat'], 'dir': '/nonexistent'}", RK_NOT_FOUND,
     "/nonexistent"},
    {"no function", "{'name': 'python'}", RK_INVALID_ARGUMENT, "reward.custom_reward_function.path"},
    {"function without file", "{'name': 'python', 'custom_reward_function': {'name': 'f'}}",
     RK_INVALID_ARGUMENT, "reward.custom_reward_function.path"},
    {"unknown key of a function", "{'name': 'python', 'custom_reward_function': {'path': 'x', 'args': 1}}",
     RK_INVALID_ARGUMENT, "reward.custom_reward_function.args"},
    {"style", "{'name': 'python', 'style': 'ray', 'custom_reward_function': {'path': 'x'}}",
     RK_INVALID_ARGUMENT, "verl, verl_batch, trl"},
    {"missing interpreter",
     "{'name': 'python', 'python': '/nonexistent/python', 'custom_reward_function': {'path': 'x'}}",
     RK_NOT_FOUND, "/nonexistent/python"},
};

static void test_create_bad_config_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(bad_configs); i++) {
        char *config = quoted(bad_configs[i].config);
        struct rk_reward *reward = NULL;

        print_message("  %s\n", bad_configs[i].label);
        assert_fails(open_reward(&reward, config), bad_configs[i].code, bad_configs[i].message);
        assert_null(reward);
        rk_free(config);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_digits_hand_scored_answers_match),
        cmocka_unit_test(test_digits_item_without_truth_is_refused),
        cmocka_unit_test(test_exact_and_regex_hand_scored_answers_match),
        cmocka_unit_test(test_regex_endless_pattern_fails_the_item),
        cmocka_unit_test(test_auto_data_source_selects_the_row_or_is_refused),
        cmocka_unit_test(test_auto_scores_by_the_data_source),
        cmocka_unit_test(test_score_cancelled_watch_ends_the_call),
        cmocka_unit_test(test_create_bad_config_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
