/* PPO in whole runs: a critic with its own batches, layout and checkpoints. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/proc/cli_fixture.h"

#define ACTOR "actor_rollout_ref.actor."
#define TP    "megatron.tensor_model_parallel_size="
#define CP    "megatron.context_parallel_size="

/* Changes of the tiny job for PPO. */
static const char *const keys[] = {"algorithm.adv_estimator=gae",
                                   "algorithm.gamma=0.99",
                                   "algorithm.lam=0.95",
                                   "critic.optim.lr=1e-4",
                                   "trainer.total_training_steps=2",
                                   "critic.ppo_mini_batch_size=1",
                                   "critic.ppo_epochs=2",
                                   "critic.shuffle=true",
                                   "trainer.critic_warmup=2",
                                   NULL};

static struct outcome run_in(const char *dir, const char *num_daemons, const char *const *more)
{
    return run_tiny_job(dir, num_daemons, keys, more);
}

static char *run_new(const char *num_daemons, const char *const *more)
{
    return run_new_tiny_job(num_daemons, keys, more);
}

static const char *const critic_metrics[] = {
    "critic/vf_loss",      "critic/vf_clipfrac",   "critic/vpred_mean",       "critic/values/mean",
    "critic/values/max",   "critic/grad_norm",     "critic/vf_explained_var", "critic/score/mean",
    "critic/returns/mean", "critic/advantages/max"};

static void assert_same_critic(const struct rk_json *metrics, const struct rk_json *expected)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(critic_metrics); i++) {
        double value = metric(expected, critic_metrics[i]);

        assert_below(critic_metrics[i], fabs(metric(metrics, critic_metrics[i]) - value),
                     RK_TOL_F32_SUM * fmax(1.0, fabs(value)));
    }
}

/* Goal: the critic learns from the first step, the actor from the second (critic_warmup); neither the layout
 * of the actor nor that of the critic changes what they learn. The critic's mini-batches are smaller than the
 * actor's, so they would differ if they were derived from the actor's layout. */
static void test_ppo_every_layout_gives_the_result_of_one_rank(void **state)
{
    static const char *const one_rank[] = {ACTOR TP "1", NULL};
    static const char *const layouts[][4] = {{ACTOR TP "2", NULL},
                                             {ACTOR TP "1", "critic." TP "2", NULL},
                                             {ACTOR TP "2", "critic." TP "1", NULL},
                                             {ACTOR TP "1", ACTOR CP "2", "critic." TP "1", NULL}};
    int count = count_devices(4);
    char *num_daemons, *expected_dir;

    (void)state;
    if (count < 2)
        rk_test_skip("needs 2 GPUs");
    num_daemons = rk_format("%d", count);
    expected_dir = run_new("1", one_rank);
    for (size_t i = 0; i < RK_ARRAY_LEN(layouts); i++) {
        char *dir = run_new(num_daemons, layouts[i]);

        print_message("%s\n", layouts[i][0]);
        for (int64_t step = 1; step <= 2; step++) {
            struct rk_json *metrics = read_metrics(dir, step), *expected = read_metrics(expected_dir, step);

            assert_same_critic(metrics, expected);
            assert_true(metric(metrics, "critic/lr") == 1e-4);
            assert_true(metric(metrics, "timing_s/values") > 0.0);
            assert_true(metric(metrics, "timing_s/update_critic") > 0.0);
            assert_int_equal(rk_json_find(metrics, "actor/pg_loss") != NULL, step >= 2);
            assert_int_equal(rk_json_find(metrics, "timing_s/update_actor") != NULL, step >= 2);
            rk_json_free(expected);
            rk_json_free(metrics);
        }
        rk_free(dir);
    }
    rk_free(expected_dir);
    rk_free(num_daemons);
}

/* Goal: actor and critic with experts, which the ranks of one role or of both divide. */
static void test_ppo_with_experts_gives_the_result_of_one_rank(void **state)
{
#define MODEL "actor_rollout_ref.model.hf_config_path=" RK_TEST_SOURCE_DIR "/examples/digits/config-moe.json"
#define EP    "megatron.expert_model_parallel_size="
    static const char *const layouts[][5] = {{MODEL, ACTOR TP "1", ACTOR EP "2", NULL},
                                             {MODEL, ACTOR TP "1", ACTOR EP "1", "critic." EP "2", NULL}};
    char *expected_dir;

    (void)state;
    if (count_devices(2) < 2)
        rk_test_skip("needs 2 GPUs");
    expected_dir = run_new("1", (const char *const[]){MODEL, ACTOR TP "1", NULL});
    for (size_t i = 0; i < RK_ARRAY_LEN(layouts); i++) {
        char *dir = run_new("2", layouts[i]);

        for (int64_t step = 1; step <= 2; step++) {
            struct rk_json *metrics = read_metrics(dir, step), *expected = read_metrics(expected_dir, step);

            assert_same_critic(metrics, expected);
            if (step == 2)
                assert_below("actor/grad_norm",
                             fabs(metric(metrics, "actor/grad_norm") - metric(expected, "actor/grad_norm")),
                             RK_TOL_F32_SUM * fmax(1.0, metric(expected, "actor/grad_norm")));
            rk_json_free(expected);
            rk_json_free(metrics);
        }
        rk_free(dir);
    }
    rk_free(expected_dir);
}

#define DENSE_CRITIC "critic.model.path=../../tests/golden/ppo/critic"

/* Goal: a critic without experts is refused with an ep of its own. */
static void test_ppo_critic_without_experts_is_refused_with_ep(void **state)
{
    static const char *const own[] = {MODEL, DENSE_CRITIC, ACTOR TP "1", "critic." EP "2", NULL};
    char *dir = new_run_dir();
    struct outcome outcome = run_in(dir, "2", own);

    (void)state;
    assert_exit(&outcome, 2);
    assert_text("stderr", outcome.err, "critic." EP "2 of role critic: expected 1");
    assert_int_equal(access(dir, F_OK), -1);
    outcome_fini(&outcome);
    rk_free(dir);
}

/* Goal: it takes no notice of the ep that it has from the actor. */
static void test_ppo_critic_without_experts_ignores_ep_of_the_actor(void **state)
{
    char *expected_dir, *dir;

    (void)state;
    if (count_devices(2) < 2)
        rk_test_skip("needs 2 GPUs");
    expected_dir = run_new("1", (const char *const[]){MODEL, DENSE_CRITIC, ACTOR TP "1", NULL});
    dir = run_new("2", (const char *const[]){MODEL, DENSE_CRITIC, ACTOR TP "1", ACTOR EP "2", NULL});
    for (int64_t step = 1; step <= 2; step++) {
        struct rk_json *metrics = read_metrics(dir, step), *expected = read_metrics(expected_dir, step);

        assert_same_critic(metrics, expected);
        rk_json_free(expected);
        rk_json_free(metrics);
    }
    rk_free(dir);
    rk_free(expected_dir);
}

/* Goal: the critic is part of checkpoints. A run resumes with both bit for bit, and a checkpoint without the
 * critic's part is not used. */
static void test_ppo_run_goes_on_bit_for_bit(void **state)
{
    static const char *const whole[] = {ACTOR TP "1", "trainer.total_training_steps=3", NULL};
    static const char *const half[] = {ACTOR TP "1", "trainer.save_freq=2", NULL};
    static const char *const rest[] = {ACTOR TP "1", "trainer.total_training_steps=3", "trainer.save_freq=2",
                                       NULL};
    char *straight = run_new("1", whole), *dir = run_new("1", half), *part, *moved, *path;
    struct outcome outcome = run_in(dir, "1", rest);

    (void)state;
    assert_exit(&outcome, 0);
    assert_text("stderr", outcome.err, "resuming from ");
    outcome_fini(&outcome);
    for (int64_t step = 1; step <= 3; step++) {
        struct rk_json *metrics = read_metrics(dir, step), *expected = read_metrics(straight, step);

        assert_same_step(metrics, expected, step);
        rk_json_free(expected);
        rk_json_free(metrics);
    }
    assert_same_file(dir, straight, "hf/model.safetensors");
    part = rk_path_join(dir, "checkpoints/global_step_3/critic");
    moved = rk_format("%s.moved", part);
    path = rk_format("trainer.resume_from_path=%s/checkpoints/global_step_3", dir);
    assert_int_equal(rename(part, moved), 0);
    outcome = run_in(dir, "1",
                     (const char *const[]){ACTOR TP "1", "trainer.total_training_steps=4",
                                           "trainer.resume_mode=resume_path", path, NULL});
    assert_exit(&outcome, 2);
    assert_text("stderr", outcome.err, "trainer.resume_from_path: ");
    assert_text("stderr", outcome.err, "global_step_3/critic");
    outcome_fini(&outcome);
    rk_free(path);
    rk_free(moved);
    rk_free(part);
    rk_free(straight);
    rk_free(dir);
}

/* Goal: a critic with an estimator that does not use its values trains and does not affect the actor. */
static void test_ppo_critic_does_not_change_grpo(void **state)
{
    static const char *const with[] = {ACTOR TP "1", "algorithm.adv_estimator=grpo", "critic.enable=true",
                                       "trainer.critic_warmup=0", NULL};
    static const char *const without[] = {ACTOR TP "1", "algorithm.adv_estimator=grpo", "critic.enable=false",
                                          "trainer.critic_warmup=0", NULL};
    char *dir = run_new("1", with), *plain = run_new("1", without);
    struct rk_json *metrics = read_metrics(dir, 2);

    (void)state;
    assert_true(metric(metrics, "critic/vf_loss") > 0.0);
    rk_json_free(metrics);
    assert_same_file(dir, plain, "hf/model.safetensors");
    rk_free(plain);
    rk_free(dir);
}

static int64_t plan_int(const struct rk_json *plan, int64_t role, const char *path)
{
    const struct rk_json *roles = rk_json_find(rk_json_at(rk_json_find(plan, "ranks"), 0), "roles");
    const struct rk_json *value = rk_json_find_path(rk_json_at(roles, role), path);

    assert_non_null(value);
    return rk_json_as_int(value, -1);
}

/* Actor, reference and critic, in this order: each adds only the memory that it needs beyond the earlier
 * ones. */
static void assert_counted_once(const char *dir)
{
    struct rk_json *plan = read_json(dir, "memory_plan.json");

    assert_true(plan_int(plan, 0, "away") > plan_int(plan, 1, "away"));
    assert_true(plan_int(plan, 1, "away") > 0);
    assert_int_equal(plan_int(plan, 2, "away"), plan_int(plan, 0, "away"));
    assert_true(plan_int(plan, 0, "added") >= plan_int(plan, 0, "planned.total"));
    for (int64_t role = 1; role <= 2; role++)
        assert_in_range(plan_int(plan, role, "added"), 0,
                        plan_int(plan, role, "planned.total") - plan_int(plan, role, "away"));
    rk_json_free(plan);
}

/* Goal: a run with offloaded roles and compared replicas is bit-identical to one without offload; its plan
 * counts the memory of one role at a time. */
static void check_offload(const char *cp)
{
    const char *const stays[] = {
        ACTOR TP "1", cp, "trainer.critic_warmup=0", ACTOR "use_kl_loss=true", "trainer.save_freq=1", NULL};
    const char *const leaves[] = {ACTOR TP "1",
                                  cp,
                                  "trainer.critic_warmup=0",
                                  ACTOR "use_kl_loss=true",
                                  "trainer.save_freq=1",
                                  ACTOR "megatron.param_offload=true", /* the reference's, too */
                                  ACTOR "megatron.grad_offload=true",
                                  ACTOR "megatron.optimizer_offload=true",
                                  "critic.megatron.param_offload=true",
                                  "critic.megatron.grad_offload=true",
                                  "critic.megatron.optimizer_offload=true",
                                  "trainer.verify_replicas=1",
                                  NULL};
    int count = count_devices(2);
    char *num_daemons = rk_format("%d", count);
    char *expected_dir = run_new(num_daemons, stays), *dir = run_new(num_daemons, leaves);

    for (int64_t step = 1; step <= 2; step++) {
        struct rk_json *metrics = read_metrics(dir, step), *expected = read_metrics(expected_dir, step);

        assert_same_step(metrics, expected, step);
        assert_true(metric(metrics, "actor/onload_seconds") > 0.0);
        assert_true((metric(metrics, "actor/verified_copies") > 0.0) == (count > 1));
        assert_true((metric(metrics, "critic/verified_copies") > 0.0) == (count > 1));
        rk_json_free(expected);
        rk_json_free(metrics);
    }
    assert_same_file(dir, expected_dir, "hf/model.safetensors");
    assert_counted_once(dir);
    rk_free(expected_dir);
    rk_free(dir);
    rk_free(num_daemons);
}

static void test_ppo_offload_and_verify_change_nothing(void **state)
{
    (void)state;
    check_offload(ACTOR CP "1");
    if (count_devices(2) > 1)
        check_offload(ACTOR CP "2");
    else
        rk_test_skip_part("cp 2 needs 2 GPUs");
}

/* Goal: the critic's directory may have any path: relative to the job and behind a symbolic link. */
static void test_ppo_critic_directory_is_found(void **state)
{
    char *target = rk_test_fixture_path("golden/ppo/critic"), *link = rk_test_temp_path("critic-link");
    char *linked = rk_format("critic.model.path=%s", link);
    const char *const paths[] = {"critic.model.path=../../tests/golden/ppo/critic", linked};

    (void)state;
    assert_int_equal(symlink(target, link), 0);
    for (size_t i = 0; i < RK_ARRAY_LEN(paths); i++) {
        const char *const more[] = {ACTOR TP "1", paths[i], "trainer.total_training_steps=1", NULL};

        print_message("%s\n", paths[i]);
        rk_free(run_new("1", more));
    }
    rk_free(linked);
    rk_free(link);
    rk_free(target);
}

/* Goal: a missing model is an error before a daemon is started. */
static void test_ppo_missing_models_are_refused(void **state)
{
    static const char missing[] = "/nonexistent/model";
    static const struct {
        const char *key, *enable;
    } cases[] = {
        {"critic.model.path", "critic.enable=true"},
        {"distillation.teacher.model.path", "distillation.enabled=true"},
        {"reward.reward_model.model_path", "reward.reward_model.enable=true"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char *dir = new_run_dir(), *path = rk_format("%s=%s", cases[i].key, missing);
        struct outcome outcome =
            run_in(dir, "1", (const char *const[]){ACTOR TP "1", cases[i].enable, path, NULL});

        assert_exit(&outcome, 2);
        assert_text("stderr", outcome.err, cases[i].key);
        assert_text("stderr", outcome.err, missing);
        assert_int_equal(access(dir, F_OK), -1);
        outcome_fini(&outcome);
        rk_free(path);
        rk_free(dir);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ppo_every_layout_gives_the_result_of_one_rank),
        cmocka_unit_test(test_ppo_with_experts_gives_the_result_of_one_rank),
        cmocka_unit_test(test_ppo_critic_without_experts_is_refused_with_ep),
        cmocka_unit_test(test_ppo_critic_without_experts_ignores_ep_of_the_actor),
        cmocka_unit_test(test_ppo_run_goes_on_bit_for_bit),
        cmocka_unit_test(test_ppo_critic_does_not_change_grpo),
        cmocka_unit_test(test_ppo_offload_and_verify_change_nothing),
        cmocka_unit_test(test_ppo_critic_directory_is_found),
        cmocka_unit_test(test_ppo_missing_models_are_refused),
    };

    skip_without_devices(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
