/* Rules between the keys of a job: those of every job, and those of jobs with prompts or with examples. */
#include <string.h>

#include "base/rk_str.h"
#include "rl/rk_flow.h"
#include "rl/rk_job.h"
#include "tests/support/test.h"
#include "tests/unit/rl/minimal_job.h"

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
#define REPLAY       ACTOR "megatron.router_replay.mode"
#define REF_REPLAY   REF "megatron.router_replay.mode"
#define CAPTURE      ROLLOUT "enable_rollout_routing_replay"
#define GDPO         "algorithm.adv_estimator=gdpo"
#define KL_ADAPTIVE  "algorithm.kl_ctrl.type=adaptive"
#define GDPO_KEYS    "algorithm.gdpo_reward_keys="
#define GDPO_WEIGHTS "algorithm.gdpo_reward_weights="

struct rule_case {
    const char *rule; /* the only rule that is violated */
    const char *changes[5];
    int32_t world_size;
    const char *message; /* NULL: no rule is violated */
};

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
    {"none", {ROLLOUT "expert_parallel_size=4"}, 4, NULL},
    {"none", {"data.gen_batch_size=24", "data.train_batch_size=8"}, 4, NULL},
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
     "data.max_prompt_length + data.max_response_length = 16"},
    {"update micro-batch",
     {"~" ACTOR "ppo_micro_batch_size_per_gpu", ROLLOUT "log_prob_micro_batch_size_per_gpu=1"},
     4,
     "set ppo_micro_batch_size_per_gpu, or use_dynamic_bsz"},
    {"log-prob micro-batch",
     {ROLLOUT "log_prob_use_dynamic_bsz=true", ROLLOUT "log_prob_max_token_len_per_gpu=8"},
     4,
     "actor_rollout_ref.rollout: 8 tokens"},
    {"log-prob micro-batch",
     {ACTOR "use_kl_loss=true", REF "log_prob_use_dynamic_bsz=true", REF "log_prob_max_token_len_per_gpu=8"},
     4,
     "actor_rollout_ref.ref: 8 tokens"},
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
     "critic: compute_values: 8 tokens"},
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
     "distillation.teacher: 8 tokens"},
    {"none", {REWARD_ON, REWARD_MODEL "megatron.tensor_model_parallel_size=4"}, 4, NULL},
    {"world",
     {REWARD_ON, REWARD_MODEL "megatron.tensor_model_parallel_size=3"},
     4,
     "reward.reward_model.megatron.tensor_model_parallel_size=3 does not divide the 4 daemons"},
    {"reward model", {REWARD_MODEL "enable=true"}, 4, "set reward.reward_model.model_path"},
    {"reward model",
     {REWARD_ON, REWARD_MODEL "use_dynamic_bsz=true", REWARD_MODEL "forward_max_token_len_per_gpu=15"},
     4,
     "forward_max_token_len_per_gpu: 15 tokens"},
    {"reward model",
     {REWARD_ON, REWARD_MODEL "use_dynamic_bsz=true", REWARD_MODEL "forward_max_token_len_per_gpu=16",
      REWARD_MODEL "max_length=17"},
     4,
     "expected at least the 17"},
    {"betas",
     {"algorithm.adv_estimator=gae", CRITIC "optim.betas=[0.9]"},
     4,
     "critic.optim.betas: expected two numbers"},
    {"recompute",
     {"algorithm.adv_estimator=gae", CRITIC "megatron.override_transformer_config.recompute_method=uniform"},
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
    {"gdpo", {GDPO, GDPO_KEYS "[\"acc\",\"f\",\"acc\"]"}, 4, "gdpo_reward_keys: 'acc'"},
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
    {"none", {REPLAY "=R2"}, 4, NULL},
    {"none", {REPLAY "=R3", CAPTURE "=true", "numerics=strict"}, 4, NULL},
    {"none", {CAPTURE "=true"}, 4, NULL},
    {"none", {ACTOR "use_kl_loss=true", REF_REPLAY "=R3", CAPTURE "=true"}, 4, NULL},
    {"router replay", {REPLAY "=R3"}, 4, REPLAY "=R3 uses the experts of the rollout: set " CAPTURE "=true"},
    {"router replay", {REF_REPLAY "=R3"}, 4, REF_REPLAY "=R3"},
    {"router replay", {REPLAY "=R2", CAPTURE "=true"}, 4, CAPTURE "=false"},
    {"router replay", {REPLAY "=R2", ACTOR "old_log_prob=rollout"}, 4, "old_log_prob=rollout"},
    {"dataset class",
     {"data.custom_cls.path=my_data.py"},
     4,
     "data.custom_cls.path needs data.custom_cls.name"},
    {"keys of examples", {"data.max_length=5"}, 4, "data.max_length has no effect with algorithm.type=rl"},
    {"examples",
     {"algorithm.type=dpo", "algorithm.dpo.loss_type=exo_pair"},
     4,
     "algorithm.dpo.label_smoothing: loss_type exo_pair needs a number above 0, got 0"},
    {"none", {CRITIC "model.path=null", CRITIC "ppo_epochs=1", "critic.enable=null"}, 4, NULL},
    {"none", {CRITIC "optim.lr=1e-4", CRITIC "enable=false"}, 4, NULL},
    {"none", {REWARD_MODEL "coef=2", REWARD_MODEL "enable=false"}, 4, NULL},
    {"none", {REF "log_prob_max_token_len_per_gpu=64"}, 4, NULL},
    {"keys of roles",
     {CRITIC "optim.lr=1e-4"},
     4,
     "critic.optim.lr has no effect, since the job has no critic: set algorithm.adv_estimator=gae, or "},
    {"keys of roles", {CRITIC "model.path=rm"}, 4, "critic.model.path has no effect"},
    {"keys of roles", {CRITIC "ppo_epochs=2"}, 4, "critic.ppo_epochs has no effect"},
    {"keys of roles",
     {"reward_model.model.path=rm"},
     4,
     REWARD_MODEL "model_path has no effect, since the job has no reward: set " REWARD_MODEL "enable=true"},
    {"keys of roles",
     {TEACHER "model.path=big"},
     4,
     TEACHER "model.path has no effect, since the job has no teacher: set distillation.enabled=true"},
    {"keys of roles", {DISTILL "topk=8"}, 4, DISTILL "topk has no effect"},
    {"min_lr", {ACTOR "optim.min_lr_ratio=0.1"}, 4, NULL},
    {"min_lr",
     {ACTOR "optim.min_lr_ratio=0.1", ACTOR "optim.min_lr=1e-7"},
     4,
     "actor.optim.min_lr_ratio=0.1: expected one of them"},
    {"min_lr",
     {CRITIC "enable=true", CRITIC "optim.min_lr_ratio=0.1", CRITIC "optim.min_lr=1e-7"},
     4,
     "expected one of them"},
    {"betas", {ACTOR "optim.betas=[0.9]"}, 4, "optim.betas: expected two numbers"},
    {"betas", {ACTOR "optim.betas=[0.9,1]"}, 4, "optim.betas: expected two numbers"},
    {"betas", {ACTOR "optim.betas=[\"a\",0.9]"}, 4, "optim.betas: expected two numbers"},
    {"none",
     {"algorithm.filter_groups.enable=true", "algorithm.filter_groups.metric=acc",
      "reward_model.reward_manager=dapo", OVERLONG "enable=true", OVERLONG "len=4"},
     4,
     NULL},
    {"filter_groups",
     {"algorithm.filter_groups.enable=true", "algorithm.filter_groups.metric=null"},
     4,
     "algorithm.filter_groups.enable needs algorithm.filter_groups.metric"},
    {"reward", {OVERLONG "enable=true", OVERLONG "len=4"}, 4, "needs reward.reward_manager.name=dapo"},
    {"reward",
     {"reward.reward_manager.name=dapo", OVERLONG "enable=true"},
     4,
     "overlong_buffer_cfg.len: expected 1 to reward.reward_kwargs.max_resp_len, got 0 and 8"},
    {"reward",
     {"reward_model.reward_manager=dapo", "reward_model.overlong_buffer.enable=True",
      "reward_model.overlong_buffer.len=9", "reward.reward_kwargs.max_resp_len=null"},
     4,
     "overlong_buffer_cfg.len: expected 1 to reward.reward_kwargs.max_resp_len, got 9 and 8"},
    {"reward",
     {"reward.reward_manager.name=dapo", OVERLONG "enable=true", OVERLONG "len=9"},
     4,
     "got 9 and 8"},
    {"reward",
     {"reward.name=http", "reward.url='http://me:secret@scorer/x'"},
     4,
     "reward.url: a user or password in the URL would be stored"},
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
     "load_contents: hf_model"},
    {"checkpoints", {"trainer.resume_mode=resume_path"}, 4, "expected trainer.resume_from_path="},
    {"checkpoints",
     {"trainer.resume_mode=resume_path", "trainer.resume_from_path=/a/step_3"},
     4,
     "global_step_<N>, got /a/step_3"},
    {"none", {"trainer.resume_from_path=/a/global_step_3"}, 4, NULL},
    {"checkpoints", {"trainer.del_local_ckpt_after_load=true"}, 4, "trainer.max_actor_ckpt_to_keep removes"},
    {"profile", {"trainer.profile_steps=[0]"}, 4, "item 0: expected an integer from 1"},
    {"profile", {"trainer.profile_ranks=[0, 4]"}, 4, "item 1: expected an integer from 0 to 3"},
    {"paths",
     {"trainer.rollout_data_dir=a\tb"},
     4,
     "trainer.rollout_data_dir: path 'a\\x09b': has a control character"},
    {"none", {"trainer.experiment_name=a\tb"}, 4, NULL},
    {"validation", {"trainer.test_freq=after_each_epoch"}, 4, "trainer.test_freq needs data.val_files"},
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
    {"logger",
     {"trainer.logger=[\"clearml\"]"},
     4,
     "trainer.logger: clearml is not supported; use tensorboard"},
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

static void check_rules(const struct rk_job_rule *rule, const struct rk_config *job,
                        const struct rule_case *expected)
{
    for (; rule->name; rule++) {
        struct rk_str problems = {0};

        rule->check(job, expected->world_size, &problems);
        if (expected->message && strcmp(rule->name, expected->rule) == 0)
            assert_non_null(strstr(rk_str_text(&problems), expected->message));
        else
            assert_string_equal(rk_str_text(&problems), "");
        rk_str_fini(&problems);
    }
}

/* Goal: each violation is reported by its own rule and by no other. */
static void test_job_rules_object_to_their_own_violation_only(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(rule_cases); i++) {
        struct rk_config *job = test_minimal_job(rule_cases[i].changes, count_changes(&rule_cases[i]));

        print_message("%s: %s\n", rule_cases[i].rule, rule_cases[i].message ? rule_cases[i].message : "fine");
        check_rules(rk_job_rules(), job, &rule_cases[i]);
        check_rules(rk_flow_of(job)->data->rules, job, &rule_cases[i]);
        rk_config_destroy(job);
    }
}

static void assert_has_cases(const struct rk_job_rule *rule)
{
    for (; rule->name; rule++) {
        bool is_covered = false;

        for (size_t i = 0; i < RK_ARRAY_LEN(rule_cases); i++)
            is_covered |= strcmp(rule_cases[i].rule, rule->name) == 0;
        if (!is_covered)
            fail_msg("rule '%s' has no case", rule->name);
    }
}

static void test_job_rules_each_has_a_case(void **state)
{
    int64_t num_flows;
    const struct rk_flow *const *flows = rk_flows(&num_flows);

    (void)state;
    assert_has_cases(rk_job_rules());
    for (int64_t i = 0; i < num_flows; i++)
        assert_has_cases(flows[i]->data->rules);
}

/* Goal: the choices of algorithm.type are the rows of the table, in its order. */
static void test_job_types_are_the_flows(void **state)
{
    int64_t num_flows, num_keys;
    const struct rk_flow *const *flows = rk_flows(&num_flows);
    const struct rk_config_key *keys = rk_job_keys(&num_keys);
    struct rk_str names = {0};

    (void)state;
    for (int64_t i = 0; i < num_flows; i++)
        rk_str_appendf(&names, "%s%s", i > 0 ? "|" : "", flows[i]->name);
    assert_true(num_flows > 0);
    for (int64_t i = 0; i < num_keys; i++) {
        if (strcmp(keys[i].path, "algorithm.type") == 0)
            assert_string_equal(keys[i].choices, rk_str_text(&names));
    }
    rk_str_fini(&names);
}

/* Changes of jobs that train on examples; message NULL: no rule is violated. */
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
    {{"algorithm=sft", CRITIC "optim.lr=1e-4"},
     "critic.optim.lr has no effect: algorithm.type=sft has no critic"},
    {{"algorithm=sft", "data.train_batch_size=3"},
     "data.train_batch_size=3 x sequences of a row=1 does not divide by the 2 data-parallel replicas of the "
     "actor"},
    {{"algorithm=sft", ACTOR "ppo_micro_batch_size_per_gpu=3"}, "does not divide the 4 rows"},
    {{"algorithm=dpo", ACTOR "ppo_micro_batch_size_per_gpu=1"}, "ppo_micro_batch_size_per_gpu=1 would split"},
    {{"algorithm=dpo", "data.train_batch_size=1"}, "data-parallel replicas of the actor"},
    {{"algorithm=sft", ACTOR "use_dynamic_bsz=true", ACTOR "ppo_max_token_len_per_gpu=1023"},
     "data.max_length = 1024"},
    {{"algorithm=dpo", ACTOR "use_dynamic_bsz=true", ACTOR "ppo_max_token_len_per_gpu=2047"},
     "2 x data.max_length = 2048"},
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
        struct rk_config *job = test_job(base, RK_ARRAY_LEN(base), example_cases[i].changes, 4);

        print_message("%s, %s\n", example_cases[i].changes[0], example_cases[i].changes[1]);
        if (example_cases[i].message)
            assert_fails(rk_job_check(job, 4), RK_INVALID_ARGUMENT, example_cases[i].message);
        else
            assert_ok(rk_job_check(job, 4));
        rk_config_destroy(job);
    }
}

static void test_job_check_reports_all_problems_together(void **state)
{
    const char *const changes[] = {ACTOR "optim.betas=[2]", "custom_reward_function.path=a",
                                   "reward.custom_reward_function.path=b"};
    struct rk_config *job = test_minimal_job(changes, RK_ARRAY_LEN(changes));
    struct rk_status *st = rk_job_check(job, 3);

    (void)state;
    assert_int_equal(rk_status_code(st), RK_INVALID_ARGUMENT);
    assert_non_null(strstr(rk_status_message(st), "optim.betas"));
    assert_non_null(strstr(rk_status_message(st), "are the same key"));
    assert_non_null(strstr(rk_status_message(st), "3 daemons"));
    rk_status_free(st);
    rk_config_destroy(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_job_rules_object_to_their_own_violation_only),
        cmocka_unit_test(test_job_rules_each_has_a_case),
        cmocka_unit_test(test_job_types_are_the_flows),
        cmocka_unit_test(test_job_rules_of_examples),
        cmocka_unit_test(test_job_check_reports_all_problems_together),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
