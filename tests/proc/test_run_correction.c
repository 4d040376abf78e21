/* Rollout correction and the source of old_log_probs in whole runs. */
#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/proc/cli_fixture.h"

#define ACTOR   "actor_rollout_ref.actor."
#define ROLLOUT "actor_rollout_ref.rollout."
#define CORR    "algorithm.rollout_correction."
#define CHECK   "training/old_log_prob_check_max_diff"
#define STEPS   "trainer.total_training_steps=2"
#define MODEL   "hf/model.safetensors"

/* Runs the tiny job with numerics=strict; returns its directory (rk_free it). */
static char *run_strict(const char *local, const char *const *changes)
{
    const char *args[24] = {"run", TINY_JOB, "--local", local, "--run-dir", NULL, TINY, "numerics=strict"};
    char *dir = new_run_dir();
    struct outcome outcome;
    size_t num_args = 6;

    args[5] = dir;
    while (args[num_args])
        num_args++;
    for (; *changes; changes++)
        args[num_args++] = *changes;
    assert_true(num_args < RK_ARRAY_LEN(args));
    outcome = run_rankctl(args);
    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    return dir;
}

/* Goal: with numerics=strict the rollout's log-probs equal the policy's: a run that uses them ends with the
 * same weights as a run that recomputes them, bit for bit, with tp 2 if there are two devices; the check, the
 * entropy and the metrics of rollout correction exist, weights are 1 and nothing is rejected. */
static void test_run_that_takes_rollout_log_probs_equals_one_that_computes_them(void **state)
{
    bool has_two = has_devices(2);
    const char *local = has_two ? "2" : "1";
    const char *tp = has_two ? ACTOR "megatron.tensor_model_parallel_size=2"
                             : ACTOR "megatron.tensor_model_parallel_size=1";
    char *taken =
        run_strict(local, (const char *const[]){STEPS, tp, CORR "preset=decoupled_seq_is_rs", NULL});
    char *computed =
        run_strict(local, (const char *const[]){STEPS, tp, ACTOR "old_log_prob=recompute", NULL});

    (void)state;
    assert_same_file(taken, computed, MODEL);
    for (int64_t step = 1; step <= 2; step++) {
        struct rk_json *metrics = read_metrics(taken, step), *others = read_metrics(computed, step);

        assert_true(metric(metrics, CHECK) == 0.0);
        assert_true(metric(others, CHECK) == 0.0);
        assert_true(metric(metrics, "rollout_corr/rollout_is_max") == 1.0);
        assert_true(metric(metrics, "rollout_corr/rollout_is_min") == 1.0);
        assert_true(metric(metrics, "rollout_corr/rollout_rs_masked_fraction") == 0.0);
        assert_true(metric(metrics, "rollout_corr/kl") == 0.0);
        assert_true(metric(others, "rollout_corr/kl") == 0.0);
        assert_null(rk_json_find(others, "rollout_corr/rollout_is_mean"));
        assert_true(metric(metrics, "actor/pg_loss") == metric(others, "actor/pg_loss"));
        /* Two mini-batches: the second one is measured after the first update. */
        assert_below("actor/entropy",
                     fabs(metric(metrics, "actor/entropy") - metric(others, "actor/entropy")), 0.05);
        rk_json_free(metrics);
        rk_json_free(others);
    }
    rk_free(taken);
    rk_free(computed);
}

static const char *const one_rank[] = {ACTOR "megatron.tensor_model_parallel_size=1",
                                       "trainer.total_training_steps=1", ACTOR "ppo_mini_batch_size=4", NULL};

static char *run_one_rank(const char *const *more)
{
    const char *changes[12] = {0};
    size_t count = 0;

    for (const char *const *change = one_rank; *change; change++)
        changes[count++] = *change;
    for (; *more; more++)
        changes[count++] = *more;
    assert_true(count < RK_ARRAY_LEN(changes));
    return run_strict("1", changes);
}

/* Goal: three ways to the same weights, over two epochs: log-probs from the rollout, recomputed, and used by
 * bypass mode, whose ppo_clip is the same loss. The entropy of the first pass of update_actor is that of
 * compute_log_prob while there is one mini-batch; bypass mode has neither entropy nor check. */
static void test_run_three_sources_of_old_log_probs_agree(void **state)
{
    static const char epochs[] = ACTOR "ppo_epochs=2", no_bonus[] = ACTOR "entropy_coeff=0";
    char *taken = run_one_rank((const char *const[]){epochs, no_bonus, NULL});
    char *computed =
        run_one_rank((const char *const[]){epochs, no_bonus, ACTOR "old_log_prob=recompute", NULL});
    char *bypass = run_one_rank((const char *const[]){epochs, no_bonus, CORR "preset=bypass_ppo_clip", NULL});
    struct rk_json *metrics = read_metrics(taken, 1), *others = read_metrics(computed, 1);
    struct rk_json *bypassed = read_metrics(bypass, 1);
    double expected = metric(others, "actor/entropy");

    (void)state;
    assert_same_file(taken, computed, MODEL);
    assert_same_file(taken, bypass, MODEL);
    assert_below("actor/entropy", fabs(metric(metrics, "actor/entropy") - expected),
                 RK_TOL_F32_SUM * expected);
    assert_true(metric(metrics, "actor/entropy_loss") != metric(metrics, "actor/entropy"));
    assert_null(rk_json_find(others, "actor/entropy_loss"));
    assert_true(metric(bypassed, "actor/pg_loss") == metric(metrics, "actor/pg_loss"));
    assert_true(metric(bypassed, "actor/pg_clipfrac") == metric(metrics, "actor/pg_clipfrac"));
    assert_true(metric(bypassed, "rollout_corr/training_ppl") > 1.0);
    assert_null(rk_json_find(bypassed, CHECK));
    assert_null(rk_json_find(bypassed, "actor/entropy"));
    assert_null(rk_json_find(bypassed, "rollout_corr/rollout_is_mean"));
    rk_json_free(metrics);
    rk_json_free(others);
    rk_json_free(bypassed);
    rk_free(taken);
    rk_free(computed);
    rk_free(bypass);
}

/* Goal: top-k makes the two policies differ: log-probs are recomputed, and weights and rejection take
 * effect. */
static void test_run_with_top_k_is_corrected(void **state)
{
    char *dir = run_one_rank((const char *const[]){
        ROLLOUT "top_k=3", CORR "rollout_is=token", CORR "rollout_is_threshold=0.05_0.6",
        CORR "rollout_rs=token_k1", CORR "rollout_rs_threshold=0.1_1.65", NULL});
    struct rk_json *metrics = read_metrics(dir, 1);
    double masked = metric(metrics, "rollout_corr/rollout_rs_masked_fraction");

    (void)state;
    assert_true(metric(metrics, CHECK) > 0.1);
    assert_true(masked > 0.0 && masked < 1.0);
    assert_true(metric(metrics, "rollout_corr/rollout_is_max") <= 0.6);
    assert_true(metric(metrics, "rollout_corr/kl") > 0.1);
    assert_true(metric(metrics, "actor/grad_norm") > 0.0);
    rk_json_free(metrics);
    rk_free(dir);
}

static void test_run_bypass_reinforce_weighs(void **state)
{
    char *dir =
        run_one_rank((const char *const[]){ROLLOUT "top_k=3", CORR "preset=bypass_pg_geo_rs_token_tis",
                                           CORR "rollout_rs_threshold=0.2_1.7", NULL});
    struct rk_json *metrics = read_metrics(dir, 1);
    double masked = metric(metrics, "rollout_corr/rollout_rs_masked_fraction");

    (void)state;
    assert_true(metric(metrics, "rollout_corr/rollout_is_mean") < 0.9);
    assert_true(masked > 0.0 && masked < 1.0);
    assert_true(metric(metrics, "actor/grad_norm") > 0.0);
    assert_null(rk_json_find(metrics, "actor/pg_clipfrac"));
    rk_json_free(metrics);
    rk_free(dir);
}

/* Goal: a step in which all is rejected changes no weights, and the run continues. */
static void test_run_that_rejects_all_keeps_the_weights(void **state)
{
    char *dir = run_one_rank(
        (const char *const[]){CORR "rollout_rs=token_k1", CORR "rollout_rs_threshold=5_6", NULL});
    struct rk_json *metrics = read_metrics(dir, 1);

    (void)state;
    assert_true(metric(metrics, "rollout_corr/rollout_rs_masked_fraction") == 1.0);
    assert_null(rk_json_find(metrics, "actor/grad_norm"));
    rk_json_free(metrics);
    rk_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run_that_takes_rollout_log_probs_equals_one_that_computes_them),
        cmocka_unit_test(test_run_three_sources_of_old_log_probs_agree),
        cmocka_unit_test(test_run_with_top_k_is_corrected),
        cmocka_unit_test(test_run_bypass_reinforce_weighs),
        cmocka_unit_test(test_run_that_rejects_all_keeps_the_weights),
    };

    skip_without_devices(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
