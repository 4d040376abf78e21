/* The digits example learns with other algorithms, and with layers of experts or latent attention, too: one
 * of them per process (RK_TEST_ALGORITHM). Release binaries only; each takes 3 to 10 minutes on two cores. */
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/proc/cli_fixture.h"

#define EXAMPLES        RK_TEST_SOURCE_DIR "/examples/digits/"
#define RUN_TIMEOUT_MS  900000
#define REWARD_RISE_MIN 0.4 /* mean of the last 10 steps over that of the first 3 */
#define STEPS                                                                          \
    "trainer.total_training_steps=80" /* as in grpo.json; the others would continue to \
                                       * rise */
#define ARGS_MAX 16
#define TP       "actor_rollout_ref.actor.megatron.tensor_model_parallel_size="

/* For advantages that are not divided by a deviation: the example's entropy bonus would dominate them. */
#define LESS_ENTROPY "actor_rollout_ref.actor.entropy_coeff=0.04"

struct algorithm {
    const char *name;
    int devices_min;
    const char *job;
    const char *changes[4];
};

static const struct algorithm algorithms[] = {
    {"ppo", 1, EXAMPLES "ppo.json", {0}},
    {"dapo", 1, EXAMPLES "dapo.json", {0}},
    {"rloo", 1, EXAMPLES "grpo.json", {"algorithm.adv_estimator=rloo", LESS_ENTROPY}},
    {"reinforce_plus_plus", 1, EXAMPLES "grpo.json", {"algorithm.adv_estimator=reinforce_plus_plus"}},
    {"gspo", 1, EXAMPLES "grpo.json", {"actor_rollout_ref.actor.policy_loss.loss_mode=gspo"}},
    {"dr_grpo",
     1,
     EXAMPLES "grpo.json",
     {"algorithm.norm_adv_by_std_in_grpo=false",
      "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm", LESS_ENTROPY}},
    {"moe", 1, EXAMPLES "moe.json", {0}},
    {"moe_ep",
     2,
     EXAMPLES "moe.json",
     {TP "1", "actor_rollout_ref.actor.megatron.expert_model_parallel_size=2"}},
    {"moe_ep_rollout",
     2,
     EXAMPLES "moe.json",
     {TP "1", "actor_rollout_ref.actor.megatron.expert_model_parallel_size=2",
      "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
      "actor_rollout_ref.rollout.expert_parallel_size=2"}},
    {"mla", 1, EXAMPLES "mla.json", {0}},
};

static void learn(const struct algorithm *algorithm, const char *seed)
{
    char *dir = new_run_dir(), *key = rk_format("actor_rollout_ref.actor.megatron.seed=%s", seed);
    int num_daemons = count_devices(4);
    char *local = rk_format("%d", num_daemons), *tp = rk_format(TP "%d", num_daemons > 1 ? 2 : 1);
    const char *args[ARGS_MAX] = {"run", algorithm->job, "--local", local, "--quiet", "--run-dir", dir, key,
                                  tp,    cli_device(),   STEPS};
    struct outcome outcome;
    struct rk_json *summary;
    double first, last;
    size_t count = 0;

    while (args[count])
        count++;
    for (size_t i = 0; i < RK_ARRAY_LEN(algorithm->changes) && algorithm->changes[i]; i++)
        args[count++] = algorithm->changes[i];
    outcome = finish_rankctl(start_rankctl(args), RUN_TIMEOUT_MS);
    assert_exit(&outcome, 0);
    summary = read_json(dir, "summary.json");
    first = metric(summary, "reward_first_3");
    last = metric(summary, "reward_last_10");
    print_message("%s, seed %s: %.3f -> %.3f in %.0f s\n", algorithm->name, seed, first, last,
                  metric(summary, "seconds"));
    assert_true(last - first >= REWARD_RISE_MIN);
    rk_json_free(summary);
    outcome_fini(&outcome);
    rk_free(tp);
    rk_free(local);
    rk_free(key);
    rk_free(dir);
}

static const struct algorithm *find_algorithm(void)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(algorithms); i++) {
        if (strcmp(RK_TEST_ALGORITHM, algorithms[i].name) == 0)
            return &algorithms[i];
    }
    return NULL;
}

/* Goal: three seeds raise the reward. */
static void test_learn_algorithm_raises_the_reward(void **state)
{
    static const char *const seeds[] = {"42", "7", "1234"};

    (void)state;
    assert_non_null(find_algorithm());
    for (size_t i = 0; i < RK_ARRAY_LEN(seeds); i++)
        learn(find_algorithm(), seeds[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_learn_algorithm_raises_the_reward),
    };
    const struct algorithm *algorithm = find_algorithm();

    skip_without_devices(algorithm ? algorithm->devices_min : 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
