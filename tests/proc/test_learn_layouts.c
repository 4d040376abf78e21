/* The digits job with four layers learns on every layout as on one rank: the first step has the same numbers,
 * and after 60 steps the reward is as high. In between the curves differ like those of two seeds, because the
 * rounding of a logit may change a token.
 *
 * RK_TEST_DAEMONS: selects the layouts with that many daemons (default 4). RK_TEST_DEVICE=cuda: on as many
 * GPUs. */
#include "base/rk_alloc.h"
#include "base/config/rk_config.h"
#include "base/rk_env.h"
#include "base/rk_str.h"
#include "tests/proc/cli_fixture.h"
#include "tests/proc/layouts.h"

#define RUN_TIMEOUT_MS  1800000
#define DAEMONS_DEFAULT 4
#define ARGS_MAX        24
#define STEPS           60

/* Reward of the last 10 of 60 steps; the job begins at 0.09. One rank and all layouts exceed it by 0.05 or
 * more; the final rewards differ because of tokens that differ. */
#define LAST_REWARD_MIN 0.85

static int64_t num_daemons(void)
{
    const char *text = rk_env("RK_TEST_DAEMONS");
    int64_t count = DAEMONS_DEFAULT;

    if (text && (!rk_parse_i64(text, &count) || count < 2))
        fail_msg("RK_TEST_DAEMONS=%s, expected a number from 2 on", text);
    return count;
}

/* A whole run in directory `dir`. */
static void learn(const struct layout *layout, const char *dir)
{
    char *steps = rk_format("trainer.total_training_steps=%d", STEPS);
    const char *args[ARGS_MAX] = {"run",
                                  TINY_JOB,
                                  "--local",
                                  layout_local(layout),
                                  "--quiet",
                                  "--run-dir",
                                  dir,
                                  LAYOUT_MODEL,
                                  LAYOUT_ACTOR "ppo_max_token_len_per_gpu=1024",
                                  cli_device(),
                                  steps};
    struct outcome outcome;
    struct rk_json *summary;
    double last;

    append_args(args, ARGS_MAX, layout->keys);
    outcome = finish_rankctl(start_rankctl(args), RUN_TIMEOUT_MS);
    assert_exit(&outcome, 0);
    summary = read_json(dir, "summary.json");
    last = metric(summary, "reward_last_10");
    print_message("%s: %.4f -> %.4f in %.0f s\n", layout->label, metric(summary, "reward_first_3"), last,
                  metric(summary, "seconds"));
    assert_true(last >= LAST_REWARD_MIN);
    rk_json_free(summary);
    outcome_fini(&outcome);
    rk_free(steps);
}

static void test_learn_layouts_reach_the_reward_of_one_rank(void **state)
{
    int64_t count, num_run = 0;
    const struct layout *rows = layouts(&count);
    char *expected_dir = new_run_dir();

    (void)state;
    learn(&rows[0], expected_dir);
    for (int64_t i = 1; i < count; i++) {
        char *dir;

        if (rows[i].num_daemons != num_daemons() || !rk_test_in_part())
            continue;
        dir = new_run_dir();
        learn(&rows[i], dir);
        layout_assert_step(dir, expected_dir, 1);
        rk_free(dir);
        num_run++;
    }
    if (num_run == 0)
        fail_msg("no layout has RK_TEST_DAEMONS=%d daemons", (int)num_daemons());
    rk_free(expected_dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_learn_layouts_reach_the_reward_of_one_rank),
    };

    skip_without_devices((int)num_daemons());
    return cmocka_run_group_tests(tests, NULL, NULL);
}
