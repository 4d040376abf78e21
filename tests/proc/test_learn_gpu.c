/* Goal: the example learns on 1, 2 and 4 GPUs as it does on the CPU. Sampled tokens are functions of counters
 * and logits, so in the first steps equal weights give equal responses, except where the rounding of a logit
 * decides; later the curves differ like those of two seeds, and end at the same level. */
#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/proc/cli_fixture.h"

#define RUN_TIMEOUT_MS 240000
#define PPO_JOB        RK_TEST_SOURCE_DIR "/examples/digits/ppo.json"
#define TP             "actor_rollout_ref.actor.megatron.tensor_model_parallel_size="

/* In the first steps (seen: equal rewards for 11 steps, gradient norms within 1e-6): of the 1440 responses of
 * a step two may differ, each by the whole score; the norms are those of three fp32 updates. */
#define NUM_EQUAL_STEPS     5
#define REWARD_TOLERANCE    (2.0 / 1440.0)
#define GRAD_NORM_TOLERANCE 1e-3

#define REWARD_RISE_MIN 0.4 /* as in test_learn.c */
/* Difference between the rewards of the last 10 steps; seeds on the CPU differ by at most 0.04. */
#define LAST_REWARD_TOLERANCE 0.05

struct curve {
    double rewards[NUM_EQUAL_STEPS], grad_norms[NUM_EQUAL_STEPS];
    double first_3, last_10, seconds;
};

static void read_steps(struct curve *curve, const char *dir)
{
    for (int i = 0; i < NUM_EQUAL_STEPS; i++) {
        struct rk_json *metrics = read_metrics(dir, i + 1);

        curve->rewards[i] = metric(metrics, "critic/rewards/mean");
        curve->grad_norms[i] = metric(metrics, "actor/grad_norm");
        rk_json_free(metrics);
    }
}

/* Runs the job; returns its directory. */
static char *run_job(const char *job, const char *device, const char *num_daemons, const char *tp)
{
    char *dir = new_run_dir();
    const char *args[] = {"run", job, "--local", num_daemons, "--quiet", "--run-dir", dir, device, tp, NULL};
    struct outcome outcome = finish_rankctl(start_rankctl(args), RUN_TIMEOUT_MS);

    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    return dir;
}

static void read_summary(struct curve *curve, const char *dir)
{
    struct rk_json *summary = read_json(dir, "summary.json");

    curve->first_3 = metric(summary, "reward_first_3");
    curve->last_10 = metric(summary, "reward_last_10");
    curve->seconds = metric(summary, "seconds");
    print_message("reward %.3f -> %.3f in %.1f s\n", curve->first_3, curve->last_10, curve->seconds);
    rk_json_free(summary);
}

static struct curve learn(const char *device, const char *num_daemons, const char *tp)
{
    char *dir = run_job(TINY_JOB, device, num_daemons, tp);
    struct curve curve;

    read_steps(&curve, dir);
    print_message("%s --local %s: reward %.5f ... %.5f, grad norm %.6f ... %.6f in %d steps\n", device,
                  num_daemons, curve.rewards[0], curve.rewards[NUM_EQUAL_STEPS - 1], curve.grad_norms[0],
                  curve.grad_norms[NUM_EQUAL_STEPS - 1], NUM_EQUAL_STEPS);
    read_summary(&curve, dir);
    rk_free(dir);
    return curve;
}

static void assert_agrees(const struct curve *curve, const struct curve *cpu)
{
    for (int i = 0; i < NUM_EQUAL_STEPS; i++) {
        assert_true(fabs(curve->rewards[i] - cpu->rewards[i]) <= REWARD_TOLERANCE);
        assert_true(fabs(curve->grad_norms[i] / cpu->grad_norms[i] - 1.0) <= GRAD_NORM_TOLERANCE);
    }
    assert_true(curve->last_10 - curve->first_3 >= REWARD_RISE_MIN);
    assert_true(fabs(curve->last_10 - cpu->last_10) <= LAST_REWARD_TOLERANCE);
}

static const struct {
    int count;
    const char *num_daemons, *tp;
} rows[] = {{1, "1", TP "1"}, {2, "2", TP "2"}, {4, "4", TP "2"}};

static bool fits(int num_gpus)
{
    bool has = has_devices(num_gpus);

    if (!has)
        rk_test_skip_part("on %d and more GPUs: this machine has fewer", num_gpus);
    return has;
}

static void test_learn_on_gpus_agrees_with_the_cpu(void **state)
{
    struct curve cpu = learn("device=cpu", "4", TP "2");

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(rows) && fits(rows[i].count); i++) {
        struct curve curve = learn("device=cuda", rows[i].num_daemons, rows[i].tp);

        assert_agrees(&curve, &cpu);
    }
}

/* Goal: the same with a critic. */
static void test_learn_ppo_on_gpus_raises_the_reward(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(rows) && fits(rows[i].count); i++) {
        char *dir = run_job(PPO_JOB, "device=cuda", rows[i].num_daemons, rows[i].tp);
        struct curve curve;

        read_summary(&curve, dir);
        assert_true(curve.last_10 - curve.first_3 >= REWARD_RISE_MIN);
        rk_free(dir);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_learn_on_gpus_agrees_with_the_cpu),
        cmocka_unit_test(test_learn_ppo_on_gpus_raises_the_reward),
    };

    skip_without_devices(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
