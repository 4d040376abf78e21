/* Rollout correction in job files: presets, settings that contradict them, and the source of
 * old_log_probs. */
#include <string.h>

#include "base/rk_alloc.h"
#include "rl/rk_job.h"
#include "tests/support/test.h"
#include "tests/unit/rl/minimal_job.h"

#define CORR    "algorithm.rollout_correction."
#define ACTOR   "actor_rollout_ref.actor."
#define ROLLOUT "actor_rollout_ref.rollout."
#define MESH    ACTOR "megatron."
#define TP2     MESH "tensor_model_parallel_size=2"
#define MAX     6

static struct rk_config *load(const char *const changes[MAX])
{
    static const char *const base[] = {"data.train_files=[\"train.jsonl\"]"};

    return test_job(base, RK_ARRAY_LEN(base), changes, MAX);
}

/* --- presets --- */

static void assert_text(const char *got, const struct rk_json *want)
{
    char *text;

    if (rk_json_is_null(want)) {
        assert_null(got);
        return;
    }
    text = rk_json_type(want) == RK_JSON_STRING ? rk_strdup(rk_json_as_string(want, ""))
                                                : rk_json_dump(want, 0, false);
    assert_non_null(got);
    assert_string_equal(got, text);
    rk_free(text);
}

/* Goal: a preset sets the same keys as verl's constructor of that name. */
static void test_presets_are_verls(void **state)
{
    char *path = rk_test_fixture_path("golden/rollout_correction/presets.json");
    struct rk_json *presets;

    (void)state;
    assert_ok(rk_json_parse_file(&presets, path, 1 << 20, 0));
    for (void *it = rk_json_iter(presets); it; it = rk_json_iter_next(presets, it)) {
        const struct rk_json *want = rk_json_iter_value(it);
        char *flag = rk_format(CORR "preset=%s", rk_json_iter_key(it));
        struct rk_config *job = load((const char *const[MAX]){flag});
        struct rk_rollout_correction_keys keys = rk_job_rollout_correction_keys(job);
        struct rk_rollout_correction config = rk_job_rollout_correction(job);
        bool is_reinforce = strcmp(rk_json_as_string(rk_json_find(want, "loss_type"), ""), "reinforce") == 0;

        print_message("%s\n", flag);
        assert_text(keys.rollout_is, rk_json_find(want, "rollout_is"));
        if (keys.rollout_is)
            assert_text(keys.rollout_is_threshold, rk_json_find(want, "rollout_is_threshold"));
        assert_text(keys.rollout_rs, rk_json_find(want, "rollout_rs"));
        assert_text(keys.rollout_rs_threshold, rk_json_find(want, "rollout_rs_threshold"));
        assert_int_equal(config.bypass_mode, rk_json_as_bool(rk_json_find(want, "bypass_mode"), false));
        assert_int_equal(config.loss_type, is_reinforce ? RK_BYPASS_REINFORCE : RK_BYPASS_PPO_CLIP);
        assert_false(config.is_batch_normalize);
        rk_config_destroy(job);
        rk_free(flag);
    }
    assert_int_equal(rk_json_count(presets), 19);
    rk_json_free(presets);
    rk_free(path);
}

static void test_thresholds_beside_a_preset_win(void **state)
{
    static const char *const changes[MAX] = {
        CORR "preset=decoupled_seq_is_rs", CORR "rollout_is_threshold=3", CORR "rollout_rs_threshold=0.1_1.5",
        CORR "rollout_is_batch_normalize=true", CORR "rollout_is=sequence"};
    struct rk_config *job = load(changes);
    struct rk_rollout_correction config = rk_job_rollout_correction(job);

    (void)state;
    assert_true(config.is_upper == 3.0);
    assert_true(config.is_batch_normalize);
    assert_int_equal(config.num_rules, 1);
    assert_int_equal(config.rules[0].option, RK_ROLLOUT_RS_SEQ_SUM_K1);
    rk_config_destroy(job);
}

/* --- refusals --- */

struct refused_case {
    const char *changes[MAX], *message;
};

static const struct refused_case refused_cases[] = {
    {{CORR "preset=decoupled_is"}, "preset: expected one of decoupled_token_is, decoupled_seq_is, "},
    {{CORR "preset=decoupled_is"}, "got \"decoupled_is\""},
    {{CORR "preset=decoupled_token_is", CORR "rollout_is=sequence"},
     CORR "rollout_is=sequence contradicts " CORR "preset=decoupled_token_is, which has token"},
    {{CORR "preset=decoupled_token_is", CORR "rollout_rs=token_k1", CORR "rollout_rs_threshold=2"},
     CORR "rollout_rs=token_k1 contradicts " CORR "preset=decoupled_token_is, which has none"},
    {{CORR "preset=bypass_pg_is", CORR "loss_type=ppo_clip"},
     CORR "loss_type=ppo_clip contradicts " CORR "preset=bypass_pg_is, which has reinforce"},
    {{CORR "preset=bypass_ppo_clip", CORR "bypass_mode=false"},
     CORR "bypass_mode=false contradicts " CORR "preset=bypass_ppo_clip, which has true"},
    {{CORR "rollout_is=token", CORR "rollout_is_threshold=true"}, "got \"true\""},
    {{CORR "rollout_is=token", CORR "rollout_is_threshold=-2"},
     CORR "rollout_is_threshold: expected a number above 0, or LOWER_UPPER"},
    {{CORR "rollout_is=token", CORR "rollout_is_threshold=2_1"}, "got \"2_1\""},
    {{CORR "rollout_rs=token_k9", CORR "rollout_rs_threshold=2"},
     CORR "rollout_rs: expected some of token_k1, "},
    {{CORR "rollout_rs=token_k2"}, CORR "rollout_rs_threshold: expected one threshold"},
    {{CORR "bypass_mode=true", ACTOR "policy_loss.loss_mode=gspo"},
     "policy_loss.loss_mode=gspo contradicts " CORR "bypass_mode=true"},
    {{ACTOR "policy_loss.loss_mode=bypass_mode"}, "loss_mode=bypass_mode needs " CORR "bypass_mode=true"},
    {{CORR "preset=bypass_pg_is", CORR "rollout_is_batch_normalize=true"},
     CORR "rollout_is_batch_normalize: expected false with bypass_mode"},
    {{CORR "bypass_mode=true", ACTOR "old_log_prob=recompute"},
     ACTOR "old_log_prob=recompute contradicts " CORR "bypass_mode=true"},
    {{"algorithm.adv_estimator=optimal_token_baseline", ACTOR "old_log_prob=rollout"},
     "adv_estimator=optimal_token_baseline needs sum_pi_squared of the pass"},
    {{ACTOR "calculate_sum_pi_squared=true", ACTOR "old_log_prob=rollout"},
     ACTOR "calculate_sum_pi_squared=true needs sum_pi_squared of the pass"},
    {{"numerics=strict", ACTOR "old_log_prob=rollout", ROLLOUT "top_k=5"},
     ACTOR "old_log_prob=rollout contradicts " ROLLOUT "top_k=5"},
    {{"numerics=strict", ACTOR "old_log_prob=rollout", TP2, ROLLOUT "expert_parallel_size=2"},
     ACTOR "old_log_prob=rollout contradicts " ROLLOUT "expert_parallel_size=2 with " MESH
           "expert_tensor_parallel_size=2"},
    {{"numerics=strict", ACTOR "old_log_prob=rollout", TP2, MESH "expert_tensor_parallel_size=1"},
     MESH "expert_tensor_parallel_size=1 (expected null"},
};

static void test_contradictions_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(refused_cases); i++) {
        struct rk_config *job = load(refused_cases[i].changes);
        struct rk_str problems = {0};

        print_message("%s\n", refused_cases[i].message);
        rk_job_rollout_correction_check(job, 1, &problems);
        rk_job_old_log_prob_check(job, 1, &problems);
        assert_non_null(strstr(rk_str_text(&problems), refused_cases[i].message));
        rk_str_fini(&problems);
        rk_config_destroy(job);
    }
}

static void test_wrong_values_are_refused_by_the_key(void **state)
{
    static const char *const flags[] = {CORR "rollout_is=row", CORR "bypass_mode=1", CORR "loss_type=dpo",
                                        ACTOR "old_log_prob=always"};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(flags); i++) {
        const char *const overrides[] = {"data.train_files=[\"train.jsonl\"]", flags[i]};
        char *key = rk_strndup(flags[i], strcspn(flags[i], "="));
        struct rk_config *job;

        assert_fails(rk_job_load(&job, NULL, overrides, 2), RK_INVALID_ARGUMENT, key);
        rk_free(key);
    }
}

/* --- old_log_probs --- */

struct source_case {
    const char *changes[MAX];
    bool is_rollouts;
};

static const struct source_case source_cases[] = {
    {{NULL}, false}, /* numerics=fast */
    {{"numerics=strict"}, true},
    {{"numerics=strict", ACTOR "old_log_prob=recompute"}, false},
    {{"numerics=strict", "algorithm.adv_estimator=optimal_token_baseline"}, false},
    {{ACTOR "old_log_prob=rollout"}, true},
    {{"numerics=strict", ACTOR "megatron.router_replay.mode=R2"}, false},
    {{"numerics=strict", ROLLOUT "top_k=5"}, false},
    {{"numerics=strict", ROLLOUT "top_p=0.9"}, false},
    {{"numerics=strict", ROLLOUT "temperature=0.7"}, true},
    {{"numerics=strict", ROLLOUT "do_sample=false"}, true}, /* greedy log-probs use temperature 1 */
    {{"numerics=strict", ROLLOUT "do_sample=false", ROLLOUT "temperature=0.7"}, false},
    {{"numerics=strict", ROLLOUT "tensor_model_parallel_size=2"}, false},
    /* Experts whole in both, on any number of ranks, or in equal parts. */
    {{"numerics=strict", MESH "expert_model_parallel_size=2"}, true},
    {{"numerics=strict", TP2, MESH "expert_tensor_parallel_size=2"}, true},
    {{"numerics=strict", TP2, MESH "expert_tensor_parallel_size=1"}, false},
    {{"numerics=strict", TP2, MESH "expert_tensor_parallel_size=1", ROLLOUT "expert_parallel_size=2"}, true},
    {{"numerics=strict", TP2, MESH "expert_tensor_parallel_size=1", MESH "expert_model_parallel_size=4",
      ROLLOUT "expert_parallel_size=2"},
     true},
    {{"numerics=strict", TP2, ROLLOUT "expert_parallel_size=2"}, false},
    {{CORR "bypass_mode=true"}, true},
    {{CORR "preset=bypass_pg_is", ROLLOUT "top_k=5"}, true},
};

static void test_old_log_probs_are_the_rollouts_where_they_are_exact(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(source_cases); i++) {
        struct rk_config *job = load(source_cases[i].changes);

        print_message("case %zu\n", i);
        assert_int_equal(rk_job_takes_rollout_log_probs(job, rk_config_string(job, "numerics")),
                         source_cases[i].is_rollouts);
        rk_config_destroy(job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_presets_are_verls),
        cmocka_unit_test(test_thresholds_beside_a_preset_win),
        cmocka_unit_test(test_contradictions_are_refused),
        cmocka_unit_test(test_wrong_values_are_refused_by_the_key),
        cmocka_unit_test(test_old_log_probs_are_the_rollouts_where_they_are_exact),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
