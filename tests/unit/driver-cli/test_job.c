/* Job files: verl's names, refusals that name line and key, rules between keys. */
#include "driver-cli/driver/job_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "proto/rk_methods.h"
#include "tests/support/test.h"

/* The smallest job that satisfies every rule on 4 daemons. */
static const char *const minimal[] = {
    "data.train_files=[\"train.jsonl\"]",
    "data.train_batch_size=8",
    "data.max_prompt_length=8",
    "data.max_response_length=8",
    "actor_rollout_ref.model.hf_config_path=config.json",
    "actor_rollout_ref.model.tokenizer_path=tokenizer.json",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
    "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2",
    "actor_rollout_ref.rollout.n=2",
    "reward.name=digits",
    "reward.reward_kwargs.max_resp_len=8",
};

static struct rk_config *load_minimal(const char *const *more, int64_t num_more)
{
    const char *overrides[RK_ARRAY_LEN(minimal) + 8];
    struct rk_config *job;

    memcpy(overrides, minimal, sizeof(minimal));
    for (int64_t i = 0; i < num_more; i++)
        overrides[RK_ARRAY_LEN(minimal) + (size_t)i] = more[i];
    assert_ok(rk_job_load(&job, NULL, overrides, (int64_t)RK_ARRAY_LEN(minimal) + num_more));
    return job;
}

/* --- loading --- */

struct bad_file {
    const char *label, *text, *message;
};

static const struct bad_file bad_files[] = {
    {"unknown key, with its line and the right one",
     "{\n \"data\": {\n  \"train_files\": [\"a\"],\n  \"train_batchsize\": 8\n }\n}",
     "job.json:4: data.train_batchsize"},
    {"suggestion", "{\"data\": {\"train_files\": [\"a\"], \"train_batchsize\": 8}}", "train_batch_size"},
    {"wrong type", "{\"data\": {\"train_files\": [\"a\"], \"train_batch_size\": \"eight\"}}",
     "data.train_batch_size"},
    {"out of range", "{\"data\": {\"train_files\": [\"a\"], \"train_batch_size\": 0}}",
     "data.train_batch_size"},
    {"unknown choice", "{\"data\": {\"train_files\": [\"a\"], \"truncation\": \"cut\"}}", "data.truncation"},
    {"unknown KL of the loss",
     "{\"data\": {\"train_files\": [\"a\"]}, \"actor_rollout_ref\": {\"actor\": {\"kl_loss_type\": "
     "\"full\"}}}",
     "actor_rollout_ref.actor.kl_loss_type"},
    {"unknown KL of the reward",
     "{\"data\": {\"train_files\": [\"a\"]}, \"algorithm\": {\"kl_penalty\": \"full\"}}",
     "algorithm.kl_penalty"},
    {"unknown algorithm", "{\"data\": {\"train_files\": [\"a\"]}, \"algorithm\": {\"type\": \"ppo\"}}",
     "algorithm.type: expected one of rl"},
    {"unknown algorithm in short", "{\"data\": {\"train_files\": [\"a\"]}, \"algorithm\": \"ppo\"}",
     "algorithm: expected {}|rl"},
    {"lower clip ratio that no ratio reaches",
     "{\"data\": {\"train_files\": [\"a\"]}, \"actor_rollout_ref\": {\"actor\": {\"clip_ratio_low\": 1.5}}}",
     "actor_rollout_ref.actor.clip_ratio_low"},
    {"dual clip at its limit",
     "{\"data\": {\"train_files\": [\"a\"]}, \"actor_rollout_ref\": {\"actor\": {\"clip_ratio_c\": 1.0}}}",
     "actor_rollout_ref.actor.clip_ratio_c: expected above 1"},
    {"unknown aggregation",
     "{\"data\": {\"train_files\": [\"a\"]}, \"actor_rollout_ref\": {\"actor\": {\"loss_agg_mode\": "
     "\"sum\"}}}",
     "actor_rollout_ref.actor.loss_agg_mode: expected one of token-mean|token-sum|"},
    {"epsilon below zero",
     "{\"data\": {\"train_files\": [\"a\"]}, \"actor_rollout_ref\": {\"actor\": {\"optim\": {\"eps\": -1}}}}",
     "actor_rollout_ref.actor.optim.eps: expected 0 to 1, got -1"},
    {"temperature that training cannot divide by",
     "{\"data\": {\"train_files\": [\"a\"]}, \"actor_rollout_ref\": {\"rollout\": {\"temperature\": 0}}}",
     "actor_rollout_ref.rollout.temperature"},
    {"top_p that keeps nothing",
     "{\"data\": {\"train_files\": [\"a\"]}, \"actor_rollout_ref\": {\"rollout\": {\"top_p\": 0}}}",
     "actor_rollout_ref.rollout.top_p"},
    {"required key missing", "{\"data\": {}}", "data.train_files"},
    {"parallel size that this version lacks",
     "{\"data\": {\"train_files\": [\"a\"]}, "
     "\"actor_rollout_ref\": {\"actor\": {\"megatron\": {\"expert_model_parallel_size\": 2}}}}",
     "actor_rollout_ref.actor.megatron.expert_model_parallel_size"},
    {"dtype that the engine lacks",
     "{\"data\": {\"train_files\": [\"a\"]}, "
     "\"actor_rollout_ref\": {\"actor\": {\"megatron\": {\"dtype\": \"float16\"}}}}",
     "actor_rollout_ref.actor.megatron.dtype: expected one of float32|bfloat16"},
    {"engine of another product",
     "{\"data\": {\"train_files\": [\"a\"]}, \"actor_rollout_ref\": {\"rollout\": {\"name\": \"mystery\"}}}",
     "actor_rollout_ref.rollout.name"},
    {"dumps that go nowhere",
     "{\"data\": {\"train_files\": [\"a\"]}, \"trainer\": {\"rollout_data_dir\": 7}}",
     "trainer.rollout_data_dir"},
    {"dumps of validations that go nowhere",
     "{\"data\": {\"train_files\": [\"a\"]}, \"trainer\": {\"validation_data_dir\": []}}",
     "trainer.validation_data_dir"},
    {"not JSON", "{\"data\": ", "job.json"},
};

static void test_job_load_bad_files_are_refused_naming_the_key(void **state)
{
    char *path = rk_test_temp_path("job.json");

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(bad_files); i++) {
        struct rk_config *job;

        print_message("%s\n", bad_files[i].label);
        rk_test_write_file(path, bad_files[i].text, strlen(bad_files[i].text));
        assert_fails(rk_job_load(&job, path, NULL, 0), RK_INVALID_ARGUMENT, bad_files[i].message);
        assert_null(job);
    }
    rk_free(path);
}

static void test_job_load_missing_file_is_not_found(void **state)
{
    struct rk_config *job;

    (void)state;
    assert_fails(rk_job_load(&job, "/does/not/exist.json", NULL, 0), RK_NOT_FOUND, "/does/not/exist.json");
}

/* Goal: verl's defaults, and flags over the file. */
static void test_job_load_defaults_are_verls(void **state)
{
    struct rk_config *job = load_minimal((const char *const[]){"algorithm.kl_ctrl.kl_coef=0.5"}, 1);

    (void)state;
    assert_true(rk_config_real(job, RK_JOB_ACTOR "clip_ratio") == 0.2);
    assert_true(rk_config_real(job, RK_JOB_ACTOR "clip_ratio_c") == 3.0);
    assert_true(rk_config_real(job, RK_JOB_ACTOR "optim.lr") == 1e-6);
    assert_int_equal(rk_config_int(job, RK_JOB_ACTOR "ppo_max_token_len_per_gpu"), 16384);
    assert_string_equal(rk_config_string(job, RK_JOB_ACTOR "loss_agg_mode"), "token-mean");
    assert_int_equal(rk_config_int(job, RK_JOB_ROLLOUT "top_k"), -1);
    assert_true(rk_config_bool(job, "trainer.balance_batch"));
    assert_true(rk_config_real(job, "algorithm.kl_ctrl.kl_coef") == 0.5);
    assert_string_equal(rk_config_string(job, "reward.name"), "digits");
    rk_config_destroy(job);
}

static const struct {
    const char *changes[3]; /* NULL-terminated */
    const char *name, *path;
} reward_cases[] = {
    {{"~reward.name"}, "auto", NULL},
    {{"reward.name=math"}, "math", NULL},
    {{"~reward.name", "reward.custom_reward_function.path=f.py"}, "python", "f.py"},
    {{"~reward.name", "custom_reward_function.path=f.py"}, "python", "f.py"},
    {{"reward.name=python", "custom_reward_function.path=f.py"}, "python", "f.py"},
    {{"~reward.name", "reward.custom_reward_function.name=compute_score"}, "auto", NULL},
};

/* Goal: verl's keys select the function, and without any the score goes by data_source, as in verl. */
static void test_job_reward_verls_keys_select_the_row(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(reward_cases); i++) {
        int64_t count = reward_cases[i].changes[1] ? 2 : 1;
        struct rk_config *job = load_minimal(reward_cases[i].changes, count);
        struct rk_json *reward = rk_job_reward(job);
        const char *path = rk_json_as_string(rk_json_find_path(reward, "custom_reward_function.path"), NULL);

        assert_string_equal(rk_json_as_string(rk_json_find(reward, "name"), ""), reward_cases[i].name);
        assert_string_equal(path ? path : "-", reward_cases[i].path ? reward_cases[i].path : "-");
        rk_json_free(reward);
        rk_config_destroy(job);
    }
}

/* Goal: a job that is copied elsewhere finds its reward. */
static void test_job_make_absolute_resolves_the_paths_of_the_reward(void **state)
{
    static const struct {
        const char *change, *key, *absolute;
    } cases[] = {
        {"reward.custom_reward_function.path=f.py", "reward.custom_reward_function.path", "/job/f.py"},
        {"custom_reward_function.path=file://f.py", "custom_reward_function.path", "/job/f.py"},
        {"custom_reward_function.path=pkg://a.b", "custom_reward_function.path", "pkg://a.b"},
        {"reward.python=python3.11", "reward.python", "python3.11"},
        {"reward.python=venv/bin/python", "reward.python", "/job/venv/bin/python"},
        {"reward.name=command", "reward.dir", "/job"},
        {"reward.token_file=token", "reward.token_file", "/job/token"},
        {"reward.dir=scorers", "reward.dir", "/job/scorers"},
        {"reward.reward_model.model_path=rm", "reward.reward_model.model_path", "/job/rm"},
        {"reward.reward_model.tokenizer_path=t.json", "reward.reward_model.tokenizer_path", "/job/t.json"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_config *job = load_minimal(&cases[i].change, 1);
        struct rk_json *tree = rk_job_make_absolute(job, "/job");

        assert_string_equal(rk_json_as_string(rk_json_find_path(tree, cases[i].key), ""), cases[i].absolute);
        rk_json_free(tree);
        rk_config_destroy(job);
    }
}

/* Goal: the dtype follows what the daemons run on, unless the job says it; its `device` has no part in it. */
static void test_job_dtype_follows_the_devices(void **state)
{
    struct rk_config *open = load_minimal((const char *const[]){"device=cuda"}, 1);
    struct rk_config *set = load_minimal((const char *const[]){RK_JOB_ACTOR "megatron.dtype=float32"}, 1);

    (void)state;
    assert_string_equal(rk_job_dtype(open, "cpu"), "float32");
    assert_string_equal(rk_job_dtype(open, "cuda"), "bfloat16");
    assert_string_equal(rk_job_dtype(set, "cuda"), "float32");
    rk_config_destroy(open);
    rk_config_destroy(set);
}

/* --- rules --- */

struct rule_case {
    const char *rule; /* the only one that objects */
    const char *changes[5];
    int32_t world_size;
    const char *message; /* NULL: no rule objects */
};

#define ACTOR        "actor_rollout_ref.actor."
#define ROLLOUT      "actor_rollout_ref.rollout."
#define REF          "actor_rollout_ref.ref."
#define CRITIC       "critic."
#define DISTILL      "distillation.distillation_loss."
#define TEACHER      "distillation.teacher."
#define TEACHER_ON   "distillation.enabled=true", TEACHER "model.path=teacher"
#define REWARD_MODEL "reward.reward_model."
#define REWARD_ON    REWARD_MODEL "enable=true", REWARD_MODEL "model_path=rm"
#define RECOMPUTE    ACTOR "megatron.override_transformer_config.recompute_"
#define OVERLONG     "reward.reward_kwargs.overlong_buffer_cfg."
#define GDPO         "algorithm.adv_estimator=gdpo"
#define KL_ADAPTIVE  "algorithm.kl_ctrl.type=adaptive"
#define GDPO_KEYS    "algorithm.gdpo_reward_keys="
#define GDPO_WEIGHTS "algorithm.gdpo_reward_weights="

static const struct rule_case rule_cases[] = {
    {"none", {0}, 4, NULL},
    {"none", {"trainer.nnodes=2", "trainer.n_gpus_per_node=2"}, 4, NULL},
    {"none", {ACTOR "use_dynamic_bsz=true", "~" ACTOR "ppo_micro_batch_size_per_gpu"}, 4, NULL},
    {"none", {ACTOR "use_kl_loss=true", REF "megatron.tensor_model_parallel_size=4"}, 4, NULL},
    {"world", {0}, 3, "tensor_model_parallel_size=2 does not divide the 3 daemons"},
    {"world",
     {ACTOR "use_kl_loss=true", REF "megatron.tensor_model_parallel_size=3"},
     4,
     "ref.megatron.tensor_model_parallel_size=3 does not divide the 4 daemons"},
    {"none", {ACTOR "use_kl_loss=true", ACTOR "megatron.ranks=0-1", REF "megatron.ranks=2-3"}, 4, NULL},
    {"pipeline", {ACTOR "megatron.virtual_pipeline_model_parallel_size=2"}, 4, "=2: expected null"},
    {"axes of this version", {RK_JOB_ACTOR RK_JOB_PP "=2"}, 4, "=2: this version runs 1"},
    {"nodes",
     {"trainer.nnodes=2", "trainer.n_gpus_per_node=4"},
     4,
     "trainer.nnodes=2 x trainer.n_gpus_per_node=4 is not the group's 4 daemons"},
    {"none", {"trainer.nnodes=2"}, 4, NULL},
    {"nodes", {"trainer.nnodes=8"}, 4, "trainer.nnodes=8 does not divide the group's 4 daemons"},
    {"none", {RECOMPUTE "granularity=full", RECOMPUTE "num_layers=2"}, 4, NULL},
    {"recompute", {RECOMPUTE "num_layers=5"}, 4, "recompute_num_layers has no effect without"},
    {"recompute", {RECOMPUTE "method=uniform"}, 4, "recompute_method has no effect without"},
    {"world",
     {ROLLOUT "tensor_model_parallel_size=3"},
     4,
     "rollout.tensor_model_parallel_size=3 does not divide the 4 daemons"},
    {"train batch",
     {"algorithm.use_kl_in_reward=true", REF "megatron.tensor_model_parallel_size=1",
      "data.train_batch_size=4", ROLLOUT "n=1", ACTOR "ppo_micro_batch_size_per_gpu=1"},
     8,
     "does not divide by the 8 data-parallel replicas of the ref"},
    {"mini-batch",
     {ACTOR "ppo_mini_batch_size=3", ACTOR "ppo_micro_batch_size_per_gpu=3"},
     4,
     "ppo_mini_batch_size=3 does not divide data.train_batch_size=8"},
    {"mini-batch",
     {ACTOR "ppo_mini_batch_size=16"},
     4,
     "ppo_mini_batch_size=16 does not divide data.train_batch_size=8"},
    {"mini-batch",
     {ROLLOUT "n=1", ACTOR "ppo_mini_batch_size=1", ACTOR "ppo_micro_batch_size_per_gpu=1"},
     4,
     "ppo_mini_batch_size=1 x rollout.n=1 does not divide by the 2 data-parallel replicas"},
    {"update micro-batch",
     {ACTOR "ppo_micro_batch_size_per_gpu=3"},
     4,
     "does not divide the 4 rows of a mini-batch"},
    {"update micro-batch",
     {ACTOR "use_dynamic_bsz=true", ACTOR "ppo_max_token_len_per_gpu=15",
      ROLLOUT "log_prob_max_token_len_per_gpu=16"},
     4,
     "15 tokens a micro-batch are fewer than data.max_prompt_length + data.max_response_length = 16"},
    {"update micro-batch",
     {"~" ACTOR "ppo_micro_batch_size_per_gpu", ROLLOUT "log_prob_micro_batch_size_per_gpu=1"},
     4,
     "set ppo_micro_batch_size_per_gpu, or use_dynamic_bsz"},
    {"log-prob micro-batch",
     {ROLLOUT "log_prob_use_dynamic_bsz=true", ROLLOUT "log_prob_max_token_len_per_gpu=8"},
     4,
     "actor_rollout_ref.rollout: 8 tokens a micro-batch"},
    {"log-prob micro-batch",
     {ACTOR "use_kl_loss=true", REF "log_prob_use_dynamic_bsz=true", REF "log_prob_max_token_len_per_gpu=8"},
     4,
     "actor_rollout_ref.ref: 8 tokens a micro-batch"},
    {"model length", {ROLLOUT "max_model_len=15"}, 4, "max_model_len=15 is less than"},
    {"model", {"~actor_rollout_ref.model.hf_config_path"}, 4, "set actor_rollout_ref.model.path"},
    {"model", {"~actor_rollout_ref.model.tokenizer_path"}, 4, "set actor_rollout_ref.model.tokenizer_path"},
    {"none", {"algorithm.adv_estimator=grpo_passk"}, 4, NULL},
    {"none", {"algorithm.adv_estimator=rloo", ROLLOUT "n=1", ACTOR "ppo_mini_batch_size=8"}, 4, NULL},
    {"estimator",
     {"algorithm.adv_estimator=ppo"},
     4,
     "algorithm.adv_estimator=ppo is unknown; known: gae, grpo, "},
    {"none", {"algorithm.adv_estimator=remax"}, 4, NULL},
    {"none", {"algorithm.adv_estimator=tir_optimal_token_baseline"}, 4, NULL},
    {"none",
     {"algorithm.adv_estimator=gae", "trainer.critic_warmup=2", CRITIC "ppo_mini_batch_size=8"},
     4,
     NULL},
    {"critic",
     {"algorithm.adv_estimator=gae", CRITIC "enable=false"},
     4,
     "algorithm.adv_estimator=gae needs the values of a critic"},
    {"critic", {"trainer.critic_warmup=2"}, 4, "trainer.critic_warmup needs a critic"},
    {"world",
     {CRITIC "enable=true", CRITIC "megatron.tensor_model_parallel_size=3"},
     4,
     "critic.megatron.tensor_model_parallel_size=3 does not divide the 4 daemons"},
    {"mini-batch",
     {CRITIC "enable=true", CRITIC "ppo_mini_batch_size=3", CRITIC "ppo_micro_batch_size_per_gpu=3"},
     4,
     "critic.ppo_mini_batch_size=3 does not divide data.train_batch_size=8"},
    {"update micro-batch",
     {CRITIC "enable=true", CRITIC "ppo_micro_batch_size_per_gpu=3"},
     4,
     "critic.ppo_micro_batch_size_per_gpu=3 does not divide the 4 rows"},
    {"log-prob micro-batch",
     {CRITIC "enable=true", CRITIC "use_dynamic_bsz=true", CRITIC "forward_max_token_len_per_gpu=8"},
     4,
     "critic: compute_values: 8 tokens a micro-batch"},
    {"none", {TEACHER_ON, ACTOR "use_kl_loss=true", ACTOR "entropy_coeff=0.1"}, 4, NULL},
    {"none",
     {TEACHER_ON, DISTILL "use_task_rewards=false", TEACHER "megatron.tensor_model_parallel_size=4"},
     4,
     NULL},
    {"none", {TEACHER_ON, DISTILL "loss_mode=k1", DISTILL "use_policy_gradient=true"}, 4, NULL},
    {"distillation", {"distillation.enabled=true"}, 4, "set distillation.teacher.model.path"},
    {"distillation",
     {TEACHER_ON, DISTILL "loss_mode=kl"},
     4,
     "distillation_loss.loss_mode=kl needs distillation.distillation_loss.use_policy_gradient=true"},
    {"distillation",
     {TEACHER_ON, DISTILL "use_task_rewards=false", ACTOR "use_kl_loss=true"},
     4,
     "actor.use_kl_loss=true: no effect with distillation.distillation_loss.use_task_rewards=false"},
    {"distillation",
     {TEACHER_ON, DISTILL "use_task_rewards=false", "algorithm.use_kl_in_reward=true"},
     4,
     "algorithm.use_kl_in_reward=true: no effect"},
    {"distillation",
     {TEACHER_ON, DISTILL "use_task_rewards=false", ACTOR "entropy_coeff=-0.1"},
     4,
     "actor.entropy_coeff=-0.1: no effect"},
    {"world",
     {TEACHER_ON, TEACHER "megatron.tensor_model_parallel_size=3"},
     4,
     "distillation.teacher.megatron.tensor_model_parallel_size=3 does not divide the 4 daemons"},
    {"log-prob micro-batch",
     {TEACHER_ON, TEACHER "log_prob_use_dynamic_bsz=true", TEACHER "log_prob_max_token_len_per_gpu=8"},
     4,
     "distillation.teacher: 8 tokens a micro-batch"},
    {"none", {REWARD_ON, REWARD_MODEL "megatron.tensor_model_parallel_size=4"}, 4, NULL},
    {"world",
     {REWARD_ON, REWARD_MODEL "megatron.tensor_model_parallel_size=3"},
     4,
     "reward.reward_model.megatron.tensor_model_parallel_size=3 does not divide the 4 daemons"},
    {"reward model", {REWARD_MODEL "enable=true"}, 4, "set reward.reward_model.model_path"},
    {"reward model",
     {REWARD_ON, REWARD_MODEL "use_dynamic_bsz=true", REWARD_MODEL "forward_max_token_len_per_gpu=15"},
     4,
     "forward_max_token_len_per_gpu: 15 tokens a micro-batch are fewer than the 16 of the longest text"},
    {"reward model",
     {REWARD_ON, REWARD_MODEL "use_dynamic_bsz=true", REWARD_MODEL "forward_max_token_len_per_gpu=16",
      REWARD_MODEL "max_length=17"},
     4,
     "16 tokens a micro-batch are fewer than the 17 of the longest text"},
    {"betas", {CRITIC "optim.betas=[0.9]"}, 4, "critic.optim.betas: expected two numbers"},
    {"recompute",
     {CRITIC "megatron.override_transformer_config.recompute_method=uniform"},
     4,
     "recompute_method has no effect without"},
    {"estimator",
     {"algorithm.adv_estimator=grpo_passk", ROLLOUT "n=1", ACTOR "ppo_mini_batch_size=8"},
     4,
     "actor_rollout_ref.rollout.n of 2 or more, got 1"},
    {"none", {GDPO, GDPO_KEYS "[\"format\",\"acc\"]", GDPO_WEIGHTS "[1,0.5]"}, 4, NULL},
    {"gdpo", {GDPO}, 4, "needs algorithm.gdpo_reward_keys"},
    {"gdpo", {GDPO, GDPO_KEYS "[]"}, 4, "needs algorithm.gdpo_reward_keys"},
    {"gdpo", {GDPO, GDPO_KEYS "[\"acc\",3]"}, 4, "gdpo_reward_keys: item 1: expected a name"},
    {"gdpo", {GDPO, GDPO_KEYS "[\"acc\",\"f\",\"acc\"]"}, 4, "gdpo_reward_keys: 'acc' stands there twice"},
    {"gdpo",
     {GDPO, GDPO_KEYS "[\"acc\"]", GDPO_WEIGHTS "[1,2]"},
     4,
     "gdpo_reward_weights: 2 weights for the 1 keys"},
    {"gdpo",
     {GDPO, GDPO_KEYS "[\"acc\"]", GDPO_WEIGHTS "[\"1\"]"},
     4,
     "gdpo_reward_weights: item 0: expected a number"},
    {"gdpo",
     {GDPO_KEYS "[\"acc\"]"},
     4,
     "gdpo_reward_keys has no effect without algorithm.adv_estimator=gdpo"},
    {"gdpo", {GDPO_WEIGHTS "[1]"}, 4, "gdpo_reward_weights has no effect without"},
    {"gdpo",
     {GDPO, GDPO_KEYS "[\"acc\"]", "algorithm.use_kl_in_reward=true"},
     4,
     "algorithm.use_kl_in_reward has no effect with"},
    {"policy loss",
     {ACTOR "policy_loss.loss_mode=dro"},
     4,
     "set actor_rollout_ref.actor.policy_loss.dro_beta"},
    {"policy loss",
     {ACTOR "policy_loss.loss_mode=clip_cov", ACTOR "policy_loss.clip_cov_lb=5"},
     4,
     "policy_loss.clip_cov_lb=5: expected less than clip_cov_ub=5"},
    {"none", {KL_ADAPTIVE, "algorithm.use_kl_in_reward=true"}, 4, NULL},
    {"none", {"algorithm.kl_ctrl.horizon=1", "algorithm.kl_ctrl.kl_coef=0"}, 4, NULL},
    {"kl controller", {KL_ADAPTIVE}, 4, "has no effect without algorithm.use_kl_in_reward"},
    {"kl controller",
     {KL_ADAPTIVE, "algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.kl_coef=0"},
     4,
     "algorithm.kl_ctrl.kl_coef: expected above 0, got 0"},
    {"kl controller",
     {KL_ADAPTIVE, "algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.horizon=3"},
     4,
     "algorithm.kl_ctrl.horizon=3: expected more than a fifth of the "},
    {"rollout correction",
     {"algorithm.rollout_correction.rollout_rs=token_k1"},
     4,
     "rollout_rs_threshold: expected one threshold"},
    {"old log-prob",
     {"numerics=strict", ACTOR "old_log_prob=rollout", ROLLOUT "top_p=0.9"},
     4,
     "old_log_prob=rollout contradicts actor_rollout_ref.rollout.top_p=0.9"},
    {"examples", {"data.max_length=5"}, 4, "data.max_length has no effect with algorithm.type=rl"},
    {"examples",
     {"algorithm.type=dpo", "algorithm.dpo.loss_type=exo_pair"},
     4,
     "algorithm.dpo.label_smoothing: loss_type exo_pair needs a number above 0, got 0"},
    {"betas", {ACTOR "optim.betas=[0.9]"}, 4, "optim.betas: expected two numbers"},
    {"betas", {ACTOR "optim.betas=[0.9,1]"}, 4, "optim.betas: expected two numbers"},
    {"betas", {ACTOR "optim.betas=[\"a\",0.9]"}, 4, "optim.betas: expected two numbers"},
    {"none",
     {"algorithm.filter_groups.enable=true", "algorithm.filter_groups.metric=acc",
      "reward_model.reward_manager=dapo", OVERLONG "enable=true", OVERLONG "len=4"},
     4,
     NULL},
    {"filter_groups",
     {"algorithm.filter_groups.enable=true"},
     4,
     "algorithm.filter_groups.enable needs algorithm.filter_groups.metric"},
    {"reward", {OVERLONG "enable=true", OVERLONG "len=4"}, 4, "needs reward.reward_manager.name=dapo"},
    {"reward",
     {"reward.reward_manager.name=dapo", OVERLONG "enable=true"},
     4,
     "overlong_buffer_cfg.len: expected 1 to reward.reward_kwargs.max_resp_len, got 0 and 8"},
    {"reward",
     {"reward.reward_manager.name=dapo", OVERLONG "enable=true", OVERLONG "len=9"},
     4,
     "got 9 and 8"},
    {"reward",
     {"custom_reward_function.path=a.py", "reward.custom_reward_function.path=b.py"},
     4,
     "are the same key"},
    {"checkpoints",
     {ACTOR "checkpoint.save_contents=[\"model\",\"weights\"]"},
     4,
     "save_contents: item 1: expected model, optimizer, extra or hf_model"},
    {"checkpoints",
     {ACTOR "checkpoint.save_contents=[\"optimizer\"]"},
     4,
     "expected a list with model in it"},
    {"checkpoints",
     {ACTOR "checkpoint.load_contents=[\"model\",\"hf_model\"]"},
     4,
     "load_contents: hf_model is not loaded"},
    {"checkpoints", {"trainer.resume_mode=resume_path"}, 4, "expected trainer.resume_from_path="},
    {"checkpoints",
     {"trainer.resume_mode=resume_path", "trainer.resume_from_path=/a/step_3"},
     4,
     "global_step_<N>, got /a/step_3"},
    {"checkpoints", {"trainer.resume_from_path=/a/global_step_3"}, 4, "has no effect without"},
    {"checkpoints", {"trainer.del_local_ckpt_after_load=true"}, 4, "trainer.max_actor_ckpt_to_keep removes"},
    {"profile", {"trainer.profile_steps=[0]"}, 4, "item 0: expected an integer from 1"},
    {"profile", {"trainer.profile_ranks=[0, 4]"}, 4, "item 1: expected an integer from 0 to 3"},
    {"validation", {"trainer.test_freq=1"}, 4, "trainer.test_freq needs data.val_files"},
    {"validation", {"trainer.val_only=true"}, 4, "trainer.val_only=true needs data.val_files"},
    {"validation", {"trainer.validation_data_dir=d"}, 4, "trainer.validation_data_dir needs data.val_files"},
    {"validation",
     {"data.val_files=[\"v\"]", "trainer.val_only=true", "trainer.val_before_train=false"},
     4,
     "trainer.val_only=true needs trainer.val_before_train=true"},
    {"val_kwargs",
     {"actor_rollout_ref.rollout.val_kwargs.temperature=1e-6"},
     4,
     "val_kwargs.temperature=1e-06: expected 0"},
    {"val_kwargs",
     {"actor_rollout_ref.rollout.val_kwargs.do_sample=true"},
     4,
     "do_sample=true needs val_kwargs.temperature above 0"},
    {"logger", {"trainer.logger=[\"wandb\"]"}, 4, "trainer.logger: wandb is not supported; use tensorboard"},
    {"logger", {"trainer.logger=[\"consle\"]"}, 4, "consle is unknown; known: console, file, tensorboard"},
    {"logger", {"trainer.logger=[\"file\", 7]"}, 4, "trainer.logger: item 1: expected a string"},
};

static int64_t count_changes(const struct rule_case *test)
{
    int64_t count = 0;

    while (count < 5 && test->changes[count])
        count++;
    return count;
}

/* Goal: each rule objects to its own violation, and no other does. */
static void test_job_rules_object_to_their_own_violation_only(void **state)
{
    int64_t num_rules;
    const struct rk_job_rule *rules = rk_job_rules(&num_rules);

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(rule_cases); i++) {
        struct rk_config *job = load_minimal(rule_cases[i].changes, count_changes(&rule_cases[i]));

        print_message("%s: %s\n", rule_cases[i].rule, rule_cases[i].message ? rule_cases[i].message : "fine");
        for (int64_t r = 0; r < num_rules; r++) {
            struct rk_str problems = {0};

            rules[r].check(job, rule_cases[i].world_size, &problems);
            if (rule_cases[i].message && strcmp(rules[r].name, rule_cases[i].rule) == 0)
                assert_non_null(strstr(rk_str_text(&problems), rule_cases[i].message));
            else
                assert_string_equal(rk_str_text(&problems), "");
            rk_str_fini(&problems);
        }
        rk_config_destroy(job);
    }
}

static void test_job_rules_each_has_a_case(void **state)
{
    int64_t num_rules;
    const struct rk_job_rule *rules = rk_job_rules(&num_rules);

    (void)state;
    for (int64_t r = 0; r < num_rules; r++) {
        bool is_covered = false;

        for (size_t i = 0; i < RK_ARRAY_LEN(rule_cases); i++)
            is_covered |= strcmp(rule_cases[i].rule, rules[r].name) == 0;
        if (!is_covered)
            fail_msg("rule '%s' has no case", rules[r].name);
    }
}

/* Of jobs that train on examples; message NULL: no rule objects. */
static const struct {
    const char *changes[4];
    const char *message;
} example_cases[] = {
    {{"algorithm=sft"}, NULL},
    {{"algorithm=dpo", "algorithm.dpo.loss_type=ipo"}, NULL},
    {{"algorithm=sft", TEACHER_ON}, "distillation.enabled: algorithm.type=sft has no teacher"},
    {{"algorithm=sft", REWARD_ON}, "reward.reward_model.enable: algorithm.type=sft has no reward model"},
    {{"algorithm=sft", "data.max_length=512", "data.truncation=right",
      ROLLOUT "log_prob_use_dynamic_bsz=true"},
     NULL},
    {{"algorithm=sft", "data.train_batch_size=3"},
     "data.train_batch_size=3 x sequences of a row=1 does not divide by the 2 data-parallel replicas of the "
     "actor"},
    {{"algorithm=sft", ACTOR "ppo_micro_batch_size_per_gpu=3"}, "does not divide the 4 rows"},
    {{"algorithm=dpo", ACTOR "ppo_micro_batch_size_per_gpu=1"}, "ppo_micro_batch_size_per_gpu=1 would split"},
    {{"algorithm=dpo", "data.train_batch_size=1"}, "data-parallel replicas of the actor"},
    {{"algorithm=sft", ACTOR "use_dynamic_bsz=true", ACTOR "ppo_max_token_len_per_gpu=1023"},
     "1023 tokens a micro-batch are fewer than data.max_length = 1024"},
    {{"algorithm=dpo", ACTOR "use_dynamic_bsz=true", ACTOR "ppo_max_token_len_per_gpu=2047"},
     "2047 tokens a micro-batch are fewer than the pair's 2 x data.max_length = 2048"},
    {{"algorithm=sft", "data.truncation=middle"}, "data.truncation=middle"},
    {{"algorithm=sft", "data.max_prompt_length=8"}, "data.max_prompt_length has no effect"},
    {{"algorithm=sft", ACTOR "ppo_mini_batch_size=8"}, "ppo_mini_batch_size has no effect"},
    {{"algorithm=dpo", ROLLOUT "n=2"}, "rollout.n has no effect with algorithm.type=dpo"},
    {{"algorithm=dpo", ROLLOUT "temperature=0.7"}, "temperature=0.7: algorithm.type=dpo trains at 1"},
    {{"algorithm=sft", "reward.name=digits"}, "reward.name has no effect with algorithm.type=sft"},
    {{"algorithm=sft", "trainer.test_freq=1"}, "trainer.test_freq needs data.val_files"},
};

static void test_job_rules_of_examples(void **state)
{
    static const char *const base[] = {"data.train_files=[\"a\"]",
                                       "actor_rollout_ref.model.hf_config_path=c",
                                       "actor_rollout_ref.model.tokenizer_path=t",
                                       "data.train_batch_size=8",
                                       ACTOR "ppo_micro_batch_size_per_gpu=2",
                                       ACTOR "megatron.tensor_model_parallel_size=2"};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(example_cases); i++) {
        const char *overrides[RK_ARRAY_LEN(base) + 4];
        int64_t count = RK_ARRAY_LEN(base);
        struct rk_config *job;

        memcpy(overrides, base, sizeof(base));
        for (int k = 0; k < 4 && example_cases[i].changes[k]; k++)
            overrides[count++] = example_cases[i].changes[k];
        print_message("%s, %s\n", example_cases[i].changes[0], example_cases[i].changes[1]);
        assert_ok(rk_job_load(&job, NULL, overrides, count));
        if (example_cases[i].message)
            assert_fails(rk_job_check(job, 4), RK_INVALID_ARGUMENT, example_cases[i].message);
        else
            assert_ok(rk_job_check(job, 4));
        rk_config_destroy(job);
    }
}

/* Goal: what verl's SFT trainer has below data is the actor's here. */
static void test_job_load_takes_the_keys_of_verl_for_sft(void **state)
{
    const char *const more[] = {"algorithm=sft", "data.use_dynamic_bsz=true",
                                "data.max_token_len_per_gpu=8192", "data.pad_mode=no_padding",
                                "data.tools_key=tools"};
    struct rk_config *job = load_minimal(more, RK_ARRAY_LEN(more));

    (void)state;
    assert_true(rk_config_bool(job, ACTOR "use_dynamic_bsz"));
    assert_int_equal(rk_config_int(job, ACTOR "ppo_max_token_len_per_gpu"), 8192);
    rk_config_destroy(job);
}

/* Goal: the short form goes with the section's other members, whichever comes first. */
static void test_job_load_algorithm_in_short_keeps_its_section(void **state)
{
    static const char *const orders[][2] = {{"algorithm=dpo", "algorithm.dpo.beta=0.25"},
                                            {"algorithm.dpo.beta=0.25", "algorithm=dpo"}};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(orders); i++) {
        struct rk_config *job = load_minimal(orders[i], 2);

        assert_string_equal(rk_config_string(job, "algorithm.type"), "dpo");
        assert_true(rk_config_real(job, "algorithm.dpo.beta") == 0.25);
        rk_config_destroy(job);
    }
}

static void test_job_check_reports_all_problems_together(void **state)
{
    const char *const changes[] = {ACTOR "optim.betas=[2]", "custom_reward_function.path=a",
                                   "reward.custom_reward_function.path=b"};
    struct rk_config *job = load_minimal(changes, RK_ARRAY_LEN(changes));
    struct rk_status *st = rk_job_check(job, 3);

    (void)state;
    assert_int_equal(rk_status_code(st), RK_INVALID_ARGUMENT);
    assert_non_null(strstr(rk_status_message(st), "optim.betas"));
    assert_non_null(strstr(rk_status_message(st), "are the same key"));
    assert_non_null(strstr(rk_status_message(st), "3 daemons"));
    rk_status_free(st);
    rk_config_destroy(job);
}

/* Goal: what rollout and ref leave open is the actor's. */
static void test_job_log_prob_micro_inherits_from_the_actor(void **state)
{
    const char *const changes[] = {REF "log_prob_micro_batch_size_per_gpu=7",
                                   REF "log_prob_use_dynamic_bsz=true"};
    struct rk_config *job = load_minimal(changes, RK_ARRAY_LEN(changes));
    struct rk_job_micro rollout = rk_job_log_prob_micro(job, RK_JOB_ROLLOUT);
    struct rk_job_micro ref = rk_job_log_prob_micro(job, RK_JOB_REF);

    (void)state;
    assert_int_equal(rollout.micro_batch_rows, 2);
    assert_false(rollout.use_dynamic_bsz);
    assert_int_equal(ref.micro_batch_rows, 7);
    assert_true(ref.use_dynamic_bsz);
    assert_int_equal(ref.max_token_len, 16384);
    rk_config_destroy(job);
}

/* Goal: the daemons reserve for the largest micro-batch that the plan can cut, and not for an empty promise.
 */
static void test_job_micro_tokens_are_the_most_that_come(void **state)
{
    static const struct {
        struct rk_job_micro micro;
        int32_t cp;
        int64_t tokens;
    } rows[] = {
        {{.micro_batch_rows = 2, .max_token_len = 16384}, 1, 2 * 16},
        {{.micro_batch_rows = 100, .max_token_len = 16384}, 1, 16 * 16}, /* 8 prompts, 2 samples each */
        {{.use_dynamic_bsz = true, .max_token_len = 100}, 1, 100},
        {{.use_dynamic_bsz = true, .max_token_len = 16384}, 1, 16 * 16},
        {{.micro_batch_rows = 2, .max_token_len = 16384}, 3, 11}, /* ranks share a micro-batch */
    };
    struct rk_config *job = load_minimal(NULL, 0);

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++)
        assert_int_equal(rk_job_micro_tokens(job, &rows[i].micro, rows[i].cp), rows[i].tokens);
    rk_config_destroy(job);
}

/* Goal: values that a key cannot have are refused with its name. */
static void test_job_load_values_out_of_range_name_their_key(void **state)
{
    static const char *const values[] = {
        "data.val_batch_size=0",
        "actor_rollout_ref.rollout.val_kwargs.n=0",
        "actor_rollout_ref.rollout.val_kwargs.temperature=-1",
        "actor_rollout_ref.rollout.val_kwargs.top_k=-2",
        "actor_rollout_ref.rollout.val_kwargs.top_p=1.5",
        "actor_rollout_ref.rollout.val_kwargs.do_sample=7",
        "actor_rollout_ref.rollout.val_kwargs.seed=7",
        "trainer.test_freq=-2",
        "trainer.critic_warmup=-1",
        "critic.enable=maybe",
        DISTILL "loss_mode=full_kl_topk",
        DISTILL "loss_max_clamp=0",
        TEACHER "megatron.tensor_model_parallel_size=0",
        "critic.ppo_mini_batch_size=0",
        "critic.cliprange_value=-1",
        "critic.optim.lr=-1",
        "critic.loss_agg_mode=sum",
        "critic.megatron.pipeline_model_parallel_size=0",
        "algorithm.filter_groups.max_num_gen_batches=-1",
        "algorithm.filter_groups.max_inflight_gen_batches=0",
        "reward.reward_manager.name=prime",
        "reward.reward_kwargs.max_resp_len=0",
        "reward.reward_kwargs.overlong_buffer_cfg.len=0",
        "reward.reward_kwargs.overlong_buffer_cfg.penalty_factor=-1",
        "data.max_length=1",
        "data.pad_mode=left",
        "data.tools_key=functions",
        "data.ignore_input_ids_mismatch=maybe",
        "algorithm.dpo.beta=0",
        "algorithm.dpo.loss_type=simpo",
        "algorithm.dpo.label_smoothing=0.5",
        "trainer.val_before_train=sometimes",
        "trainer.val_only=1.5",
        "trainer.log_val_generations=-1",
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(values); i++) {
        const char *const overrides[] = {"data.train_files=[\"a\"]", values[i]};
        char *key = rk_format("%.*s", (int)strcspn(values[i], "="), values[i]);
        struct rk_config *job;

        print_message("%s\n", values[i]);
        assert_fails(rk_job_load(&job, NULL, overrides, RK_ARRAY_LEN(overrides)), RK_INVALID_ARGUMENT, key);
        rk_free(key);
    }
}

/* --- roles --- */

/* Goal: a job has the reference when its keys ask for it, with the actor's tensor-parallel size or its own;
 * the rollout stands where the actor stands. */
static void test_job_roles_follow_flow_and_keys(void **state)
{
    static const struct {
        const char *more[2];
        bool has_ref;
        int32_t ref_tp;
    } cases[] = {
        {{"algorithm=rl", "algorithm.kl_penalty=kl"}, false, 2},
        {{"actor_rollout_ref.actor.use_kl_loss=true", "algorithm.type=rl"}, true, 2},
        {{"algorithm.use_kl_in_reward=true", "actor_rollout_ref.ref.megatron.tensor_model_parallel_size=4"},
         true,
         4},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_config *job = load_minimal(cases[i].more, RK_ARRAY_LEN(cases[i].more));

        print_message("%s\n", cases[i].more[0]);
        assert_string_equal(rk_config_string(job, "algorithm.type"), "rl");
        assert_true(rk_job_role_needed(job, RK_ROLE_ACTOR));
        assert_true(rk_job_role_needed(job, RK_ROLE_ROLLOUT));
        assert_int_equal(rk_job_role_needed(job, RK_ROLE_REF), cases[i].has_ref);
        assert_int_equal(rk_job_role_size(job, RK_ROLE_ACTOR, RK_AXIS_TP), 2);
        assert_int_equal(rk_job_role_size(job, RK_ROLE_ROLLOUT, RK_AXIS_TP), 2);
        assert_int_equal(rk_job_role_size(job, RK_ROLE_REF, RK_AXIS_TP), cases[i].ref_tp);
        assert_false(rk_job_role_needed(job, RK_ROLE_CRITIC));
        rk_config_destroy(job);
    }
}

/* Goal: an estimator that needs values, or the key, brings a critic; what its section leaves open is the
 * actor's, but for verl's learning rate. */
static void test_job_critic_inherits_from_the_actor(void **state)
{
    static const char *const open[] = {"algorithm.adv_estimator=gae", ACTOR "ppo_epochs=3",
                                       ACTOR "shuffle=true", ACTOR "ppo_max_token_len_per_gpu=99"};
    static const char *const own[] = {CRITIC "enable=true",
                                      CRITIC "ppo_epochs=2",
                                      CRITIC "ppo_mini_batch_size=8",
                                      CRITIC "ppo_micro_batch_size_per_gpu=1",
                                      CRITIC "forward_micro_batch_size_per_gpu=5",
                                      CRITIC "use_dynamic_bsz=true",
                                      CRITIC "data_loader_seed=9",
                                      CRITIC "megatron.tensor_model_parallel_size=1"};
    struct rk_config *job = load_minimal(open, RK_ARRAY_LEN(open));
    struct rk_job_update update = rk_job_update_of(job, RK_ROLE_CRITIC);

    (void)state;
    assert_true(rk_job_role_needed(job, RK_ROLE_CRITIC));
    assert_int_equal(rk_job_role_size(job, RK_ROLE_CRITIC, RK_AXIS_TP), 2);
    assert_int_equal(update.mini_batch_size, 4);
    assert_int_equal(update.epochs, 3);
    assert_true(update.shuffle);
    assert_int_equal(update.seed, 42);
    assert_int_equal(update.micro.micro_batch_rows, 2);
    assert_int_equal(rk_job_values_micro(job).max_token_len, 99);
    assert_true(rk_config_real(job, CRITIC "optim.lr") == 1e-5);
    assert_true(rk_config_real(job, ACTOR "optim.lr") == 1e-6);
    rk_config_destroy(job);
    job = load_minimal(own, RK_ARRAY_LEN(own));
    update = rk_job_update_of(job, RK_ROLE_CRITIC);
    assert_true(rk_job_role_needed(job, RK_ROLE_CRITIC));
    assert_int_equal(rk_job_role_size(job, RK_ROLE_CRITIC, RK_AXIS_TP), 1);
    assert_int_equal(update.mini_batch_size, 8);
    assert_int_equal(update.epochs, 2);
    assert_false(update.shuffle);
    assert_int_equal(update.seed, 9);
    assert_true(update.micro.use_dynamic_bsz);
    assert_int_equal(update.micro.micro_batch_rows, 1);
    assert_int_equal(rk_job_values_micro(job).micro_batch_rows, 5);
    assert_int_equal(rk_job_update_of(job, RK_ROLE_ACTOR).mini_batch_size, 4);
    rk_config_destroy(job);
}

/* Goal: with a critic a checkpoint stays as long as either of its roles asks for it. */
static void test_job_keeps_the_larger_number_of_checkpoints(void **state)
{
    static const struct {
        const char *overrides[3];
        int64_t expected; /* 0: all */
    } cases[] = {
        {{"algorithm.adv_estimator=gae", "trainer.test_freq=-1", "trainer.save_freq=1"}, 0},
        {{"algorithm.adv_estimator=gae", "trainer.max_actor_ckpt_to_keep=2", "trainer.save_freq=1"}, 2},
        {{"algorithm.adv_estimator=gae", "trainer.max_actor_ckpt_to_keep=2",
          "trainer.max_critic_ckpt_to_keep=1"},
         2},
        {{"algorithm.adv_estimator=gae", "trainer.max_actor_ckpt_to_keep=2",
          "trainer.max_critic_ckpt_to_keep=3"},
         3},
        {{"algorithm.adv_estimator=gae", "trainer.save_freq=1", "trainer.max_critic_ckpt_to_keep=3"}, 0},
        {{"algorithm.adv_estimator=grpo", "trainer.max_actor_ckpt_to_keep=2",
          "trainer.max_critic_ckpt_to_keep=3"},
         2},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_config *job = load_minimal(cases[i].overrides, RK_ARRAY_LEN(cases[i].overrides));

        assert_int_equal(rk_job_ckpt_to_keep(job), cases[i].expected);
        rk_config_destroy(job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_job_load_values_out_of_range_name_their_key),
        cmocka_unit_test(test_job_load_bad_files_are_refused_naming_the_key),
        cmocka_unit_test(test_job_load_missing_file_is_not_found),
        cmocka_unit_test(test_job_load_defaults_are_verls),
        cmocka_unit_test(test_job_reward_verls_keys_select_the_row),
        cmocka_unit_test(test_job_make_absolute_resolves_the_paths_of_the_reward),
        cmocka_unit_test(test_job_dtype_follows_the_devices),
        cmocka_unit_test(test_job_rules_object_to_their_own_violation_only),
        cmocka_unit_test(test_job_rules_each_has_a_case),
        cmocka_unit_test(test_job_rules_of_examples),
        cmocka_unit_test(test_job_load_takes_the_keys_of_verl_for_sft),
        cmocka_unit_test(test_job_load_algorithm_in_short_keeps_its_section),
        cmocka_unit_test(test_job_check_reports_all_problems_together),
        cmocka_unit_test(test_job_log_prob_micro_inherits_from_the_actor),
        cmocka_unit_test(test_job_micro_tokens_are_the_most_that_come),
        cmocka_unit_test(test_job_roles_follow_flow_and_keys),
        cmocka_unit_test(test_job_critic_inherits_from_the_actor),
        cmocka_unit_test(test_job_keeps_the_larger_number_of_checkpoints),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
