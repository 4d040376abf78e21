/* How long a scorer of 20 ms takes with 8 workers: a program, and a Python function over the shim. The
 * argument is the number of answers: 512 in the suite, 8192 under the label long, which must arrive within 25
 * s (20.48 s of sleep per worker). */
#include "rl/rk_reward.h"

#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "base/rk_time.h"
#include "tests/support/test.h"

#define NUM_WORKERS 8
#define SCORER_MS   20
#define ALL_ANSWERS 8192
#define ALL_MS      25000

static int64_t num_answers = 512;

/* The time limit for all answers; for fewer answers, on a machine under other load, half of the time of a
 * single worker. */
static double bound_ms(void)
{
    return num_answers == ALL_ANSWERS ? ALL_MS : (double)num_answers * SCORER_MS / 2.0;
}

static void check_speed(const char *label, const char *config_text, const char *solution)
{
    struct rk_reward_item *items = rk_calloc((size_t)num_answers, sizeof(*items));
    struct rk_reward_result *results = rk_calloc((size_t)num_answers, sizeof(*results));
    struct rk_json *config;
    struct rk_reward *reward;
    int64_t began_ns;
    double took_ms;

    assert_ok(rk_json_parse(&config, config_text, strlen(config_text), "test", 0));
    assert_ok(rk_reward_create(&reward, config, rk_test_temp_dir()));
    for (int64_t i = 0; i < num_answers; i++)
        items[i] = (struct rk_reward_item){.data_source = "",
                                           .prompt = "",
                                           .solution_str = solution,
                                           .solution_bytes = strlen(solution),
                                           .ground_truth = ""};
    began_ns = rk_time_now_ns();
    assert_ok(rk_reward_score(reward, items, num_answers, results, NULL));
    took_ms = (double)(rk_time_now_ns() - began_ns) / 1e6;
    for (int64_t i = 0; i < num_answers; i++)
        assert_true(results[i].score == SCORER_MS);
    print_message("%s: %lld answers of %d ms by %d workers in %.2f s\n", label, (long long)num_answers,
                  SCORER_MS, NUM_WORKERS, took_ms / 1e3);
    assert_below(label, took_ms, bound_ms());
    rk_reward_results_fini(results, num_answers);
    rk_reward_destroy(reward);
    rk_json_free(config);
    rk_free(results);
    rk_free(items);
}

static void test_reward_speed_of_a_program(void **state)
{
    (void)state;
    check_speed("program",
                "{\"name\": \"command\", \"num_workers\": 8, \"command\": [\"" RK_TEST_BINARY_DIR
                "/tests/reward_worker\"]}",
                "sleep:20");
}

static void test_reward_speed_of_a_python_function(void **state)
{
    static const char code[] = "import time\n"
                               "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
                               "    time.sleep(0.02)\n"
                               "    return 20\n";
    char *path = rk_test_temp_path("score.py");

    (void)state;
    rk_test_write_file(path, code, sizeof(code) - 1);
    check_speed(
        "Python function",
        "{\"name\": \"python\", \"num_workers\": 8, \"custom_reward_function\": {\"path\": \"score.py\"}}",
        "x");
    rk_free(path);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reward_speed_of_a_program),
        cmocka_unit_test(test_reward_speed_of_a_python_function),
    };

    if (argc > 1)
        num_answers = strtol(argv[1], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
