/* Rewards: the digits row on hand-scored answers, the command row with real programs. */
#include "driver-cli/rk_reward.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "base/rk_time.h"
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
    item.prompt = "0,1:9,1";
    assert_ok(open_reward(&reward, "{\"name\": \"digits\"}"));
    assert_fails(rk_reward_score(reward, &item, 1, &result, NULL), RK_INVALID_ARGUMENT,
                 "item 0, prompt '0,1:9,1': reward_model.ground_truth");
    rk_reward_destroy(reward);
}

static const struct {
    const char *label, *config;
    rk_code_t code;
    const char *message;
} bad_configs[] = {
    {"unknown", "{\"name\": \"gsm9k\"}", RK_NOT_FOUND, "digits, command"},
    {"no name", "{}", RK_INVALID_ARGUMENT, "reward.name"},
    {"unknown key", "{\"name\": \"digits\", \"scale\": 2}", RK_INVALID_ARGUMENT, "reward.scale"},
    {"unknown key of a command", "{\"name\": \"command\", \"command\": [\"cat\"], \"timout\": \"5s\"}",
     RK_INVALID_ARGUMENT, "reward.timout"},
    {"no program", "{\"name\": \"command\"}", RK_INVALID_ARGUMENT, "reward.command"},
    {"not words", "{\"name\": \"command\", \"command\": [1]}", RK_INVALID_ARGUMENT, "reward.command[0]"},
    {"timeout that overflows",
     "{\"name\": \"command\", \"command\": [\"cat\"], \"timeout\": \"2562047788h\"}", RK_INVALID_ARGUMENT,
     "reward.timeout"},
    {"bad timeout", "{\"name\": \"command\", \"command\": [\"cat\"], \"timeout\": \"5\"}",
     RK_INVALID_ARGUMENT, "\"5\""},
    {"missing program", "{\"name\": \"command\", \"command\": [\"/nonexistent/scorer\"]}", RK_NOT_FOUND,
     "/nonexistent/scorer"},
};

static void test_create_bad_config_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(bad_configs); i++) {
        struct rk_reward *reward = NULL;

        print_message("  %s\n", bad_configs[i].label);
        assert_fails(open_reward(&reward, bad_configs[i].config), bad_configs[i].code,
                     bad_configs[i].message);
        assert_null(reward);
    }
}

/* A scorer in awk: the length of the ground truth's line as score shows that lines arrive whole. */
#define SCORER(body) \
    "{\"name\": \"command\", \"timeout\": \"2s\", \"command\": [\"sh\", \"-c\", \"" body "\"]}"

static void test_command_program_answers_each_item(void **state)
{
    enum { COUNT = 200 };
    struct rk_reward_item items[COUNT];
    struct rk_reward_result results[COUNT];
    struct rk_reward *reward = NULL;

    (void)state;
    assert_ok(open_reward(
        &reward, SCORER("n=0; while read -r line; do n=$((n+1)); echo '{\\\"score\\\": '$n'}'; done")));
    for (int i = 0; i < COUNT; i++) {
        items[i] = item_of("s", "g");
        items[i].prompt = "p\n\"q\"";
    }
    assert_ok(rk_reward_score(reward, items, COUNT, results, NULL));
    for (int i = 0; i < COUNT; i++)
        assert_true(results[i].score == i + 1);
    rk_reward_destroy(reward);
}

/* Goal: names relative to the job are found wherever rankctl is started; `dir` is relative to the job, too.
 */
static void test_command_runs_in_the_jobs_directory(void **state)
{
    static const char script[] = "#!/bin/sh\nwhile read -r line; do cat score; done\n";
    static const struct {
        const char *config, *file;
    } cases[] = {
        {"{\"name\": \"command\", \"command\": [\"./score.sh\"]}", "score"},
        {"{\"name\": \"command\", \"command\": [\"../score.sh\"], \"dir\": \"below\"}", "below/score"},
    };
    struct rk_reward_item item = item_of("", "");
    char *path = rk_test_temp_path("score.sh"), *below = rk_test_temp_path("below");

    (void)state;
    rk_test_write_file(path, script, sizeof(script) - 1);
    assert_int_equal(chmod(path, 0700), 0);
    assert_int_equal(mkdir(below, 0700), 0);
    assert_int_equal(chdir("/"), 0);
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char *answer = rk_format("{\"score\": %zu}\n", i + 1), *file = rk_test_temp_path(cases[i].file);
        struct rk_reward *reward = NULL;
        struct rk_reward_result result;

        rk_test_write_file(file, answer, strlen(answer));
        assert_ok(open_reward(&reward, cases[i].config));
        assert_ok(rk_reward_score(reward, &item, 1, &result, NULL));
        assert_true(result.score == (double)(i + 1));
        rk_reward_destroy(reward);
        rk_free(answer);
        rk_free(file);
    }
    rk_free(below);
    rk_free(path);
}

static const struct {
    const char *label, *config;
    rk_code_t code;
    const char *message;
} bad_programs[] = {
    {"ends", SCORER("read -r l; exit 3"), RK_ABORTED, "ended with exit code 3"},
    {"is killed", SCORER("read -r l; kill -9 $$"), RK_ABORTED, "killed by signal 9"},
    {"closes its output", SCORER("read -r l; exec >/dev/null </dev/null; sleep 3"), RK_ABORTED,
     "closed its output"},
    {"garbage", SCORER("while read -r l; do echo hello; done"), RK_INVALID_ARGUMENT, "item 0"},
    {"no score", SCORER("while read -r l; do echo '{}'; done"), RK_INVALID_ARGUMENT, "score"},
    {"silent", SCORER("read -r l; exec sleep 60"), RK_DEADLINE_EXCEEDED, "2000 ms"},
    {"endless line", SCORER("cat /dev/zero"), RK_RESOURCE_EXHAUSTED, "longer"},
};

static void test_command_bad_program_is_named(void **state)
{
    struct rk_reward_item item = item_of("", "");

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(bad_programs); i++) {
        struct rk_reward *reward = NULL;
        struct rk_reward_result result;

        print_message("  %s\n", bad_programs[i].label);
        assert_ok(open_reward(&reward, bad_programs[i].config));
        assert_fails(rk_reward_score(reward, &item, 1, &result, NULL), bad_programs[i].code,
                     bad_programs[i].message);
        rk_reward_destroy(reward);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_digits_hand_scored_answers_match),
        cmocka_unit_test(test_digits_item_without_truth_is_refused),
        cmocka_unit_test(test_create_bad_config_is_refused),
        cmocka_unit_test(test_command_program_answers_each_item),
        cmocka_unit_test(test_command_runs_in_the_jobs_directory),
        cmocka_unit_test(test_command_bad_program_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
