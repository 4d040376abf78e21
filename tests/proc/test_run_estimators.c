/* Whole runs with each advantage estimator: selected by one key of the job. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/proc/cli_fixture.h"

/* Scores the responses to a prompt 0, 1, 2, ..., in order of arrival. Responses that the variable SKIP
 * selects have no score. */
static const char answers[] =
    "read -r hello && echo '{\"hello\": 2}'\n"
    "while read -r line; do\n"
    "    id=${line#*'\"id\":'}; id=${id%%,*}\n"
    "    [ $id = 0 ] && echo '{\"id\": 0, \"score\": 0}' && continue\n" /* the trial before the run */
    "    prompt=${line#*'\"prompt\":'}; prompt=${prompt%%'\"solution_str\"'*}\n"
    "    sum=$(printf %s \"$prompt\" | cksum); sum=${sum%% *}\n"
    "    eval \"n=$((count_$sum + 0)); count_$sum=$((count_$sum + 1))\"\n"
    "    [ $n = \"$SKIP\" ] && echo '{\"id\": '$id', \"skip\": true}' && continue\n"
    "    echo '{\"id\": '$id', \"score\": '$n', \"first\": '$n', \"second\": '$((n / 2))'}'\n"
    "done\n";

/* One step of the tiny job on `size` tensor-parallel ranks, with scores 0, 1, 2, 3 in every group; returns
 * its metrics. */
static struct rk_json *run_step_on(const char *size, const char *estimator, const char *change)
{
    char *path = rk_test_temp_path("answers.sh"), *dir = new_run_dir();
    char *reward =
        rk_format("reward={\"name\": \"command\", \"command\": [\"sh\", \"%s\"], \"num_workers\": 1}", path);
    char *choice = rk_format("algorithm.adv_estimator=%s", estimator);
    char *tp = rk_format("actor_rollout_ref.actor.megatron.tensor_model_parallel_size=%s", size);
    const char *const args[] = {"run",  TINY_JOB,  "--local",
                                size,   "--quiet", "--run-dir",
                                dir,    TINY,      "trainer.total_training_steps=1",
                                tp,     choice,    reward,
                                change, NULL};
    struct outcome outcome;
    struct rk_json *metrics;

    rk_test_write_file(path, answers, sizeof(answers) - 1);
    outcome = run_rankctl(args);
    assert_exit(&outcome, 0);
    metrics = read_metrics(dir, 1);
    outcome_fini(&outcome);
    rk_free(tp);
    rk_free(choice);
    rk_free(reward);
    rk_free(dir);
    rk_free(path);
    return metrics;
}

static struct rk_json *run_step(const char *estimator, const char *change)
{
    return run_step_on("1", estimator, change);
}

static void assert_metric(const char *label, const struct rk_json *metrics, const char *name, double expected)
{
    char *text = rk_format("%s: %s", label, name);

    assert_below(text, fabs(metric(metrics, name) - expected), RK_TOL_F32_SUM);
    rk_free(text);
}

/* Goal: the update's advantages are those of the estimator for every group's scores 0, 1, 2, 3. */
static void test_run_outcome_estimator_gives_its_advantages(void **state)
{
    static const struct {
        const char *name, *change;
        double min, max;
    } cases[] = {
        {"grpo_vectorized", NULL, -1.161894, 1.161894}, /* 1.5 / sqrt(5 / 3) */
        {"grpo_vectorized", "algorithm.norm_adv_by_std_in_grpo=false", -1.5, 1.5},
        {"grpo_passk", NULL, 0, .774596},
        {"rloo", NULL, -2, 2},
        {"rloo_vectorized", NULL, -2, 2},
        {"gpg", NULL, -2, 2}, /* 16 responses, 12 of them with a score: 4 / 3 */
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_json *metrics = run_step(cases[i].name, cases[i].change);

        assert_metric(cases[i].name, metrics, "critic/score/mean", 1.5);
        assert_metric(cases[i].name, metrics, "critic/advantages/min", cases[i].min);
        assert_metric(cases[i].name, metrics, "critic/advantages/max", cases[i].max);
        assert_metric(cases[i].name, metrics, "critic/returns/max", cases[i].max);
        assert_null(rk_json_find(metrics, "variance_proxy/expected_w"));
        assert_true(metric(metrics, "actor/grad_norm") > 0.0);
        rk_json_free(metrics);
    }
}

/* Goal: the mean over the tokens of the batch is 0 if an estimator whitens; the maximum return of
 * reinforce_plus_plus is the maximum score. */
static void test_run_whitening_estimator_has_mean_zero(void **state)
{
    struct rk_json *metrics = run_step("reinforce_plus_plus", "algorithm.gamma=0.5");

    (void)state;
    assert_metric("reinforce_plus_plus", metrics, "critic/advantages/mean", 0.0);
    assert_metric("reinforce_plus_plus", metrics, "critic/returns/max", 3.0);
    assert_metric("reinforce_plus_plus", metrics, "critic/returns/min", 0.0);
    rk_json_free(metrics);
    metrics = run_step("reinforce_plus_plus_baseline", NULL);
    assert_metric("reinforce_plus_plus_baseline", metrics, "critic/advantages/mean", 0.0);
    assert_true(metric(metrics, "critic/advantages/max") > 0.5);
    rk_json_free(metrics);
    metrics = run_step("opo", NULL);
    assert_metric("opo", metrics, "critic/score/mean", 1.5);
    assert_below("opo", fabs(metric(metrics, "critic/advantages/max") - 1.5), 1.5);
    rk_json_free(metrics);
}

/* Goal: the greedy response, which is scored after the four others, is the baseline. */
static void test_run_remax_compares_with_a_greedy_response(void **state)
{
    struct rk_json *metrics = run_step("remax", NULL);

    (void)state;
    assert_metric("remax", metrics, "critic/score/mean", 1.5);
    assert_metric("remax", metrics, "critic/returns/max", 3.0);
    assert_metric("remax", metrics, "critic/advantages/min", -4.0);
    assert_metric("remax", metrics, "critic/advantages/max", -1.0);
    assert_metric("remax", metrics, "reward/dropped_baselines", 0.0);
    assert_true(metric(metrics, "timing_s/gen_max") > 0.0);
    assert_true(metric(metrics, "actor/grad_norm") > 0.0);
    rk_json_free(metrics);
}

/* Goal: a prompt whose greedy response has no score is not trained on; the run continues. */
static void test_run_remax_without_baselines_updates_nothing(void **state)
{
    struct rk_json *metrics;

    (void)state;
    setenv("SKIP", "4", 1);
    metrics = run_step("remax", NULL);
    unsetenv("SKIP");
    assert_metric("remax", metrics, "reward/dropped_baselines", 4.0);
    assert_null(rk_json_find(metrics, "actor/grad_norm"));
    rk_json_free(metrics);
}

/* Goal: both token baselines run, on two ranks that share the vocabulary as on one; in a response without
 * masked tokens in the middle a token's index is its column. */
static void test_run_token_baselines_agree_on_any_layout(void **state)
{
    struct rk_json *expected = run_step("optimal_token_baseline", NULL);
    struct rk_json *metrics = run_step_on("2", "tir_optimal_token_baseline", NULL);
    static const char *const names[] = {"critic/advantages/mean", "critic/advantages/min",
                                        "critic/advantages/max", "variance_proxy/proxy2_total_power",
                                        "variance_proxy/expected_w"};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(names); i++)
        assert_metric("two ranks", metrics, names[i], metric(expected, names[i]));
    assert_metric("baseline", expected, "critic/returns/max", 3.0);
    assert_true(metric(expected, "critic/advantages/min") < -1.0);
    assert_true(metric(expected, "critic/advantages/max") > 1.0);
    assert_true(metric(expected, "variance_proxy/expected_w") > 0.0);
    assert_metric("signal", expected, "variance_proxy/proxy1_signal_strength",
                  metric(expected, "actor/grad_norm") * metric(expected, "actor/grad_norm"));
    rk_json_free(metrics);
    rk_json_free(expected);
}

/* Goal: the metrics of the gradient's variance do not need a token baseline estimator. */
static void test_run_sum_pi_squared_is_measured_when_asked_for(void **state)
{
    struct rk_json *metrics = run_step("grpo", "actor_rollout_ref.actor.calculate_sum_pi_squared=true");

    (void)state;
    assert_true(metric(metrics, "variance_proxy/proxy2_total_power") > 0.0);
    assert_true(metric(metrics, "variance_proxy/expected_a_squared") > 0.0);
    rk_json_free(metrics);
}

static void test_run_gdpo_reads_additional_rewards(void **state)
{
    struct rk_json *metrics = run_step("gdpo", "algorithm.gdpo_reward_keys=[\"first\",\"second\"]");

    (void)state;
    assert_metric("gdpo", metrics, "gdpo/first/mean", 1.5);
    assert_metric("gdpo", metrics, "gdpo/first/std", 1.118034);
    assert_metric("gdpo", metrics, "gdpo/first/max", 3.0);
    assert_metric("gdpo", metrics, "gdpo/second/mean", 0.5);
    assert_metric("gdpo", metrics, "gdpo/second/min", 0.0);
    assert_metric("gdpo", metrics, "critic/advantages/mean", 0.0);
    rk_json_free(metrics);
}

static void test_run_gdpo_key_that_the_reward_lacks_is_named(void **state)
{
    char *dir = new_run_dir();
    struct outcome outcome = run_rankctl((const char *const[]){
        "run", TINY_JOB, "--local=1", "--run-dir", dir, TINY,
        "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=1", "algorithm.adv_estimator=gdpo",
        "algorithm.gdpo_reward_keys=[\"acc\",\"style\"]", NULL});

    (void)state;
    assert_exit(&outcome, 2);
    assert_text("stderr", outcome.err, "'style'");
    outcome_fini(&outcome);
    rk_free(dir);
}

/* Goal: missing requirements of an estimator are errors before a daemon is started. */
static void test_run_estimator_without_its_inputs_is_refused(void **state)
{
    char *dir = new_run_dir();
    struct outcome outcome = run_rankctl(
        (const char *const[]){"run", TINY_JOB, "--local=1", "--run-dir", dir, TINY,
                              "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=1",
                              "algorithm.adv_estimator=grpo_passk", "actor_rollout_ref.rollout.n=1", NULL});

    (void)state;
    assert_exit(&outcome, 2);
    assert_text("stderr", outcome.err, "algorithm.adv_estimator=grpo_passk");
    assert_text("stderr", outcome.err, "rollout.n of 2 or more, got 1");
    outcome_fini(&outcome);
    rk_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run_outcome_estimator_gives_its_advantages),
        cmocka_unit_test(test_run_whitening_estimator_has_mean_zero),
        cmocka_unit_test(test_run_remax_compares_with_a_greedy_response),
        cmocka_unit_test(test_run_remax_without_baselines_updates_nothing),
        cmocka_unit_test(test_run_token_baselines_agree_on_any_layout),
        cmocka_unit_test(test_run_sum_pi_squared_is_measured_when_asked_for),
        cmocka_unit_test(test_run_gdpo_reads_additional_rewards),
        cmocka_unit_test(test_run_gdpo_key_that_the_reward_lacks_is_named),
        cmocka_unit_test(test_run_estimator_without_its_inputs_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
