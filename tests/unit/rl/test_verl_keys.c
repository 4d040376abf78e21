/* verl's keys: every key of its trainers is known with its default, its command lines parse, and unsupported
 * features are refused by name. */
#include "rl/rk_job.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/config/rk_knobs.h"
#include "tests/support/test.h"

static struct rk_status *load(struct rk_config **job, const char *const *args)
{
    int64_t count = 0;

    while (args[count])
        count++;
    return rk_job_load(job, NULL, args, count);
}

/* --- whole configurations --- */

/* Sizes of tests/golden/verl/defaults.tsv, which tests/golden/gen/verl_defaults.py makes. */
#define NUM_LETTERS     52
#define OVERRIDES_MAX   2048
#define NEWEST_FSDP     "0.9.1 ppo fsdp"
#define NEWEST_MEGATRON "0.9.1 ppo megatron"

struct configuration {
    char *name;
    int64_t count;
    char *overrides[OVERRIDES_MAX];
};

static struct configuration *configurations; /* [NUM_LETTERS], by letter */

static struct configuration *by_letter(char letter)
{
    return &configurations[letter >= 'a' ? letter - 'a' : 26 + letter - 'A'];
}

/* KEY, JSON and the letters of the configurations that have the pair. */
static void add_row(char *line)
{
    const char *key = strsep(&line, "\t"), *value = strsep(&line, "\t"), *letters = strsep(&line, "\n");

    assert_non_null(letters);
    if (strcmp(key, "#") == 0) {
        by_letter(*value)->name = rk_strdup(letters);
        return;
    }
    for (; *letters && strcmp(value, "\"???\"") != 0; letters++) {
        struct configuration *to = by_letter(*letters);

        assert_true(to->count < OVERRIDES_MAX);
        to->overrides[to->count++] = rk_format("++%s=%s", key, value);
    }
}

static int read_configurations(void **state)
{
    char *path = rk_test_fixture_path("golden/verl/defaults.tsv"), line[4096];
    FILE *file = fopen(path, "r");

    (void)state;
    configurations = rk_calloc(NUM_LETTERS, sizeof(*configurations));
    assert_non_null(file);
    while (fgets(line, sizeof(line), file))
        add_row(line);
    fclose(file);
    rk_free(path);
    return 0;
}

static int free_configurations(void **state)
{
    (void)state;
    for (int i = 0; i < NUM_LETTERS; i++) {
        for (int64_t j = 0; j < configurations[i].count; j++)
            rk_free(configurations[i].overrides[j]);
        rk_free(configurations[i].name);
    }
    rk_free(configurations);
    return 0;
}

/* The configuration and then `more`, which is NULL-terminated. */
static struct rk_status *load_whole(struct rk_config **job, const struct configuration *whole,
                                    const char *const *more)
{
    const char **args = rk_calloc(OVERRIDES_MAX + 16, sizeof(*args));
    int64_t count = 0;
    struct rk_status *st;

    for (; count < whole->count; count++)
        args[count] = whole->overrides[count];
    for (; more && *more; more++)
        args[count++] = *more;
    st = rk_job_load(job, NULL, args, count);
    rk_free(args);
    return st;
}

/* Goal: the whole default configuration of every trainer and engine of verl is taken, as its users have it.
 */
static void test_whole_configurations_are_taken(void **state)
{
    int num_taken = 0;

    (void)state;
    for (int i = 0; i < NUM_LETTERS && configurations[i].name; i++, num_taken++) {
        struct rk_config *job;
        const char *more[] = {strstr(configurations[i].name, " sft ") ? "algorithm.type=sft" : NULL, NULL};

        print_message("%s: %lld keys\n", configurations[i].name, (long long)configurations[i].count);
        assert_ok(load_whole(&job, &configurations[i], more));
        rk_config_destroy(job);
    }
    assert_true(num_taken > 20);
}

static const struct configuration *by_name(const char *name)
{
    for (int i = 0; i < NUM_LETTERS && configurations[i].name; i++) {
        if (strcmp(configurations[i].name, name) == 0)
            return &configurations[i];
    }
    fail_msg("no configuration %s", name);
    return NULL;
}

/* Goal: keys of roles that are not there, at verl's default, are no error in a job with another estimator. */
static void test_whole_configuration_without_a_critic_is_a_job(void **state)
{
    static const char *const names[] = {NEWEST_FSDP, NEWEST_MEGATRON};
    static const char *const more[] = {"algorithm.adv_estimator=grpo", RK_JOB_ROLLOUT "n=4",
                                       RK_JOB_ACTOR "ppo_micro_batch_size_per_gpu=4",
                                       RK_JOB_ROLLOUT "log_prob_micro_batch_size_per_gpu=4", NULL};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(names); i++) {
        struct rk_config *job;

        assert_ok(load_whole(&job, by_name(names[i]), more));
        assert_false(rk_job_wants_critic(job));
        assert_ok(rk_job_check(job, 8));
        rk_config_destroy(job);
    }
}

/* Marks the row of verl_defaults.def with that value; false: none. */
static bool mark_difference(bool *is_seen, const char *path, const char *value)
{
    int64_t count;
    const struct rk_verl_default *rows = rk_job_verl_defaults(&count);

    for (int64_t i = 0; i < count; i++) {
        if (strcmp(rows[i].path, path) == 0 && strcmp(rows[i].value, value) == 0) {
            is_seen[i] = true;
            return true;
        }
    }
    print_message("%s is %s in verl, which neither is the default here nor in verl_defaults.def\n", path,
                  value);
    return false;
}

/* Goal: every default is verl's, or a row of verl_defaults.def with verl's value, and that has no other row.
 */
static void test_defaults_are_verls_or_listed(void **state)
{
    static const char *const names[] = {NEWEST_FSDP, NEWEST_MEGATRON};
    int64_t num_keys, num_rows;
    const struct rk_config_key *keys = rk_job_keys(&num_keys);
    const struct rk_verl_default *rows = rk_job_verl_defaults(&num_rows);
    bool *is_seen = rk_calloc((size_t)num_rows, sizeof(*is_seen)), is_fine = true;

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(names); i++) {
        struct rk_config *job;

        assert_ok(load_whole(&job, by_name(names[i]), NULL));
        for (int64_t k = 0; k < num_keys; k++) {
            char *value = rk_json_dump(rk_json_find_path(rk_config_tree(job), keys[k].path), 0, false);

            if (!rk_config_is_default(job, keys[k].path))
                is_fine &= mark_difference(is_seen, keys[k].path, value);
            rk_free(value);
        }
        rk_config_destroy(job);
    }
    for (int64_t i = 0; i < num_rows; i++) {
        if (!is_seen[i])
            print_message("%s=%s is verl's default no more\n", rows[i].path, rows[i].value);
        is_fine &= is_seen[i];
    }
    rk_free(is_seen);
    assert_true(is_fine);
}

/* --- command lines --- */

/* Keys and values of verl's examples, as a shell hands them over. Unsupported settings (a pipeline) are
 * overridden at the end, as a user would append them to such a script. */
static const char *const qwen2_7b_math_megatron[] = {
    "algorithm.adv_estimator=grpo",
    "data.train_files=['/h/data/gsm8k/train.parquet', '/h/data/math/train.parquet']",
    "data.val_files=['/h/data/gsm8k/test.parquet', '/h/data/math/test.parquet']",
    "data.return_raw_chat=True",
    "data.train_batch_size=1024",
    "data.max_prompt_length=1024",
    "data.max_response_length=1024",
    "data.filter_overlong_prompts=True",
    "data.truncation=error",
    "actor_rollout_ref.model.path=Qwen/Qwen2-7B-Instruct",
    "actor_rollout_ref.model.use_fused_kernels=True",
    "actor_rollout_ref.actor.optim.lr=1e-6",
    "actor_rollout_ref.actor.ppo_mini_batch_size=256",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2",
    "actor_rollout_ref.actor.use_kl_loss=True",
    "actor_rollout_ref.actor.kl_loss_coef=0.001",
    "actor_rollout_ref.actor.kl_loss_type=low_var_kl",
    "actor_rollout_ref.actor.entropy_coeff=0",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.mode=async",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.6",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.ref.megatron.tensor_model_parallel_size=2",
    "algorithm.use_kl_in_reward=False",
    "trainer.critic_warmup=0",
    "trainer.logger=[\"console\",\"wandb\"]",
    "trainer.project_name=verl_grpo_example_gsm8k_math",
    "trainer.experiment_name=qwen2_7b_megatron",
    "trainer.n_gpus_per_node=8",
    "trainer.nnodes=1",
    "trainer.total_epochs=15",
    "actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=1",
    "actor_rollout_ref.ref.megatron.pipeline_model_parallel_size=1",
    NULL,
};

static const char *const qwen2_7b_fsdp[] = {
    "algorithm.adv_estimator=grpo",
    "data.train_files=/h/data/gsm8k/train.parquet",
    "data.val_files=/h/data/gsm8k/test.parquet",
    "data.train_batch_size=1024",
    "data.max_prompt_length=512",
    "data.max_response_length=1024",
    "data.filter_overlong_prompts=True",
    "data.truncation='error'",
    "data.image_key=images",
    "actor_rollout_ref.model.path=Qwen/Qwen2-7B-Instruct",
    "actor_rollout_ref.actor.optim.lr=1e-6",
    "actor_rollout_ref.model.use_remove_padding=True",
    "actor_rollout_ref.actor.ppo_mini_batch_size=256",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32",
    "actor_rollout_ref.actor.use_kl_loss=True",
    "actor_rollout_ref.actor.kl_loss_coef=0.001",
    "actor_rollout_ref.actor.kl_loss_type=low_var_kl",
    "actor_rollout_ref.actor.entropy_coeff=0",
    "actor_rollout_ref.model.enable_gradient_checkpointing=True",
    "actor_rollout_ref.actor.fsdp_config.param_offload=False",
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload=False",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    "actor_rollout_ref.rollout.name=sglang",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.6",
    "actor_rollout_ref.rollout.n=4",
    "+actor_rollout_ref.rollout.engine_kwargs.sglang.attention_backend=flashinfer",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=32",
    "actor_rollout_ref.ref.fsdp_config.param_offload=True",
    "algorithm.use_kl_in_reward=False",
    "trainer.critic_warmup=0",
    "trainer.logger='console'",
    "trainer.project_name='verl_grpo_example_gsm8k'",
    "trainer.experiment_name='qwen2_7b_function_rm'",
    "trainer.n_gpus_per_node=8",
    "trainer.nnodes=1",
    "trainer.total_epochs=15",
    "+ray_kwargs.ray_init.num_gpus=8",
    "ray_kwargs.ray_init.runtime_env.py_executable=uv -v run --frozen --extra vllm",
    NULL,
};

static const char *const qwen3_8b_megatron[] = {
    "algorithm.adv_estimator=grpo",
    "algorithm.use_kl_in_reward=False",
    "data.train_files=['/h/data/gsm8k/train.parquet', '/h/data/math/train.parquet']",
    "data.val_files=['/h/data/gsm8k/test.parquet', '/h/data/math/test.parquet']",
    "data.train_batch_size=1024",
    "data.max_prompt_length=1024",
    "data.max_response_length=2048",
    "data.filter_overlong_prompts=True",
    "data.truncation=error",
    "actor_rollout_ref.model.path=Qwen/Qwen3-8B",
    "actor_rollout_ref.model.use_remove_padding=True",
    "actor_rollout_ref.actor.optim.lr=1e-6",
    "actor_rollout_ref.actor.ppo_mini_batch_size=256",
    "actor_rollout_ref.actor.use_dynamic_bsz=True",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=24576",
    "actor_rollout_ref.actor.use_kl_loss=True",
    "actor_rollout_ref.actor.kl_loss_coef=0.001",
    "actor_rollout_ref.actor.kl_loss_type=low_var_kl",
    "actor_rollout_ref.actor.entropy_coeff=0",
    "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4",
    "actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=1",
    "+actor_rollout_ref.actor.megatron.override_transformer_config.recompute_method=uniform",
    "+actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full",
    "++actor_rollout_ref.actor.megatron.override_transformer_config.recompute_num_layers=1",
    "+actor_rollout_ref.actor.megatron.override_transformer_config.apply_rope_fusion=True",
    "+actor_rollout_ref.actor.optim.override_optimizer_config.optimizer_offload_fraction=1",
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=4",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.6",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True",
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=24576",
    "actor_rollout_ref.rollout.enable_chunked_prefill=True",
    "actor_rollout_ref.rollout.free_cache_engine=True",
    "actor_rollout_ref.rollout.dtype=bfloat16",
    "actor_rollout_ref.hybrid_engine=True",
    "actor_rollout_ref.ref.log_prob_use_dynamic_bsz=True",
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=24576",
    "actor_rollout_ref.ref.megatron.tensor_model_parallel_size=4",
    "actor_rollout_ref.ref.megatron.pipeline_model_parallel_size=1",
    "trainer.balance_batch=True",
    "trainer.logger=[\"console\"]",
    "trainer.project_name=verl_grpo_gsm8k_math",
    "trainer.experiment_name=qwen3_8b_grpo_vllm_megatron_20260822_1724",
    "trainer.n_gpus_per_node=8",
    "trainer.nnodes=1",
    "trainer.total_epochs=15",
    "model_engine=megatron",
    "ray_kwargs.ray_init.runtime_env.py_executable=null",
    NULL,
};

#define RECOMPUTE RK_JOB_ACTOR "megatron.override_transformer_config.recompute_"

static void test_verl_command_lines_are_jobs(void **state)
{
    static const char *const *const lines[] = {qwen2_7b_math_megatron, qwen2_7b_fsdp, qwen3_8b_megatron};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(lines); i++) {
        struct rk_config *job;

        assert_ok(load(&job, lines[i]));
        assert_string_equal(rk_config_string(job, RK_JOB_ROLLOUT "name"), "rankd");
        assert_string_equal(rk_config_string(job, "data.truncation"), "error");
        assert_true(rk_config_bool(job, RK_JOB_ACTOR "use_kl_loss"));
        assert_string_equal(rk_json_as_string(rk_json_at(rk_config_json(job, "trainer.logger"), 0), ""),
                            "console");
        assert_true(rk_json_count(rk_config_json(job, "data.train_files")) >= 1);
        assert_true(rk_config_is_null(job, "reward.name")); /* selected by the data source, as in verl */
        assert_ok(rk_job_check(job, 8));
        rk_config_destroy(job);
    }
}

static void test_gradient_checkpointing_selects_full_recompute(void **state)
{
    static const struct {
        const char *args[4];
        const char *granularity; /* NULL: none */
    } cases[] = {
        {{"data.train_files=a", RK_JOB_MODEL "enable_gradient_checkpointing=True"}, "full"},
        {{"data.train_files=a", RK_JOB_MODEL "enable_gradient_checkpointing=False"}, NULL},
        {{"data.train_files=a"}, NULL},
        {{"data.train_files=a", RK_JOB_MODEL "enable_gradient_checkpointing=True",
          RECOMPUTE "granularity=null"},
         NULL},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_config *job;

        assert_ok(load(&job, cases[i].args));
        if (cases[i].granularity)
            assert_string_equal(rk_config_string(job, RECOMPUTE "granularity"), cases[i].granularity);
        else
            assert_true(rk_config_is_null(job, RECOMPUTE "granularity"));
        rk_config_destroy(job);
    }
}

/* Goal: a job with verl's sizes has verl's device, others the CPU. */
static void test_device_follows_verls_keys(void **state)
{
    static const struct {
        const char *arg, *device;
    } cases[] = {
        {"trainer.nnodes=1", "cpu"},     {"trainer.n_gpus_per_node=8", "cuda"},
        {"trainer.device=cuda", "cuda"}, {"trainer.device=cpu", "cpu"},
        {"device=cuda", "cuda"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_config *job;

        assert_ok(load(&job, (const char *const[]){"data.train_files=a", cases[i].arg, NULL}));
        assert_string_equal(rk_job_device(job), cases[i].device);
        rk_config_destroy(job);
    }
}

#define TEACHERS "distillation.teacher_models."

/* Goal: verl's name of a key sets rankd's key, which takes precedence if both are given. */
static void test_verl_keys_go_to_rankds(void **state)
{
    static const char *const args[] = {"data.train_files=a",
                                       RK_JOB_ACTOR "grad_clip=0.5",
                                       RK_JOB_ACTOR "optim.lr_scheduler_type=cosine",
                                       RK_JOB_ACTOR "fsdp_config.dtype=float32",
                                       RK_JOB_ACTOR "strategy=fsdp2",
                                       RK_JOB_ROLLOUT "response_length=99",
                                       "reward_model.num_workers=5",
                                       "data.max_response_length=77",
                                       "reward_model.enable=True",
                                       "reward_model.model.path=org/rm",
                                       "reward_model.rollout.tensor_model_parallel_size=2",
                                       "reward_model.megatron.context_parallel_size=3",
                                       RK_JOB_REF "megatron.pipeline_model_parallel_size=2",
                                       "reward.reward_model.rollout.name=vllm",
                                       "reward.reward_model.enable_resource_pool=False",
                                       TEACHERS "teacher_model.model_path=org/big",
                                       TEACHERS "teacher_model.inference.tensor_model_parallel_size=4",
                                       "global_profiler.tool=torch",
                                       "global_profiler.steps=[2,5]",
                                       RK_JOB_ACTOR "profiler.enable=True",
                                       RK_JOB_ACTOR "router_replay.mode=R2",
                                       RK_JOB_REF "router_replay.mode=R3",
                                       NULL};
    struct rk_config *job;

    (void)state;
    assert_ok(load(&job, args));
    assert_string_equal(rk_config_string(job, RK_JOB_ACTOR RK_KNOB_REPLAY), "R2");
    assert_string_equal(rk_config_string(job, RK_JOB_REF RK_KNOB_REPLAY), "R3");
    assert_true(rk_config_real(job, RK_JOB_ACTOR "optim.clip_grad") == 0.5);
    assert_string_equal(rk_config_string(job, RK_JOB_ACTOR "optim.lr_decay_style"), "cosine");
    assert_string_equal(rk_config_string(job, RK_JOB_ACTOR "megatron.dtype"), "float32");
    assert_string_equal(rk_config_string(job, RK_JOB_ACTOR "strategy"), "rankd");
    assert_int_equal(rk_config_int(job, "data.max_response_length"), 77);
    assert_int_equal(rk_config_int(job, "reward.num_workers"), 5);
    assert_string_equal(rk_config_string(job, RK_JOB_TEACHER "model.path"), "org/big");
    assert_int_equal(rk_config_int(job, RK_JOB_TEACHER RK_JOB_TP), 4);
    assert_true(rk_config_bool(job, RK_JOB_REWARD_MODEL "enable"));
    assert_string_equal(rk_config_string(job, RK_JOB_REWARD_MODEL "model_path"), "org/rm");
    assert_int_equal(rk_config_int(job, RK_JOB_REWARD_MODEL RK_JOB_TP), 2);
    assert_int_equal(rk_config_int(job, RK_JOB_REWARD_MODEL RK_JOB_CP), 3);
    assert_int_equal(rk_config_int(job, RK_JOB_REF RK_JOB_PP), 2);
    assert_int_equal(rk_json_count(rk_config_json(job, "trainer.profile_steps")), 2);
    assert_int_equal(rk_json_as_int(rk_json_at(rk_config_json(job, "trainer.profile_steps"), 1), -1), 5);
    assert_string_equal(rk_config_origin(job, RK_JOB_ACTOR "optim.clip_grad"), "flag");
    rk_config_destroy(job);
}

static void test_verl_features_that_rankd_lacks_are_refused(void **state)
{
    static const struct {
        const char *arg, *text;
    } cases[] = {
        {RK_JOB_MODEL "lora_rank=32", "model.lora_rank: expected 0, got 32"},
        {RK_JOB_MODEL "lora.rank=32", "model.lora.rank: expected 0, got 32: LoRA is not supported"},
        {RK_JOB_MODEL "mtp.enable_train=True",
         "expected false, got true: multi-token prediction is not trained"},
        {"+async_training.partial_rollout=True", "asynchronous training is not supported"},
        {"+rollout.nnodes=1", "asynchronous training is not supported"},
        {RK_JOB_ROLLOUT "agent.agent_loop_config_path=a.yaml", "agent loops are not supported"},
        {"trainer.device=npu", "expected cpu|cuda, got \"npu\": NVIDIA GPUs and CPUs"},
        {RK_JOB_ACTOR "fsdp_config.dtype=float16", "got \"float16\": bfloat16 or float32"},
        {"reward_model.model.update=before", "PRIME's reward model"},
        {"data.filter_accuracy=True", "expected false, got true: PRIME's filter"},
        {RK_JOB_ROLLOUT "repetition_penalty=1.1", "expected 1|null, got 1.1"},
        {"+" RK_JOB_MODEL "override_config.attention_dropout=0.1", "expected 0|null, got 0.1"},
        {RK_JOB_ROLLOUT "multi_turn.enable=True", "rollout.multi_turn.enable: expected false, got true"},
        {RK_JOB_ACTOR "ppo_micro_batch_size=64", "got 64: ppo_micro_batch_size_per_gpu"},
        {RK_JOB_REF "megatron.expert_model_parallel_size=0", "megatron.expert_model_parallel_size"},
        {"critic.ppo_micro_batch_size=8", "got 8: ppo_micro_batch_size_per_gpu"},
        {"+" RK_JOB_MODEL "override_config.num_hidden_layers=2",
         "not supported: write the value into config.json"},
        {"distillation.distillation_loss.policy_loss_mode=gspo", "expected vanilla, got \"gspo\""},
        {RK_JOB_ROLLOUT "name=mystery", "expected one of rankd"},
        {RK_JOB_ROLLOUT "freeze_cache_engine=True", "unknown key; did you mean"},
        {"critic.model.lora_rank=8", "critic.model.lora_rank: expected 0, got 8"},
        {"critic.megatron.dtype=float16", "critic.megatron.dtype: expected bfloat16|float32|null"},
        {"+" RK_JOB_ACTOR RK_KNOB_AUX_LOSS "=-0.01", RK_JOB_ACTOR RK_KNOB_AUX_LOSS},
        {"+critic." RK_KNOB_Z_LOSS "=-1", "critic." RK_KNOB_Z_LOSS},
        {"+" RK_JOB_ACTOR RK_KNOB_BALANCING_TYPE "=global_aux_loss", "none|aux_loss|seq_aux_loss"},
        {"+" RK_JOB_ACTOR RK_KNOB_BIAS_RATE "=-0.001", RK_JOB_ACTOR RK_KNOB_BIAS_RATE},
        {"+critic." RK_KNOB_EXPERT_BIAS "=1.5", "critic." RK_KNOB_EXPERT_BIAS},
        {"+critic." RK_KNOB_BALANCING_TYPE "=sinkhorn", "none|aux_loss|seq_aux_loss"},
        {"+critic.megatron.override_transformer_config.moe_expert_capacity_factor=1.25",
         "moe_expert_capacity_factor: expected null, got 1.25"},
        {"critic.optim.lr_scheduler_type=linear", "got \"linear\": optim.lr_decay_style"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_config *job;

        assert_fails(load(&job, (const char *const[]){"data.train_files=a", cases[i].arg, NULL}),
                     RK_INVALID_ARGUMENT, cases[i].text);
    }
}

/* Goal: teachers of any names become rankd's, in their order, each with its keys; a fifth is refused. */
static void test_verl_teachers_have_any_name(void **state)
{
    static const char *const one[] = {"data.train_files=a",
                                      TEACHERS "teacher_model.model_path=null",
                                      TEACHERS "math.model_path=org/math",
                                      TEACHERS "math.key=openai/gsm8k",
                                      TEACHERS "math.inference.tensor_model_parallel_size=2",
                                      NULL};
    static const char *const two[] = {"data.train_files=a",
                                      "+" TEACHERS "math.key=openai/gsm8k",
                                      "+" TEACHERS "code.inference.tensor_model_parallel_size=4",
                                      "+" TEACHERS "math.model_path=org/math",
                                      "+" TEACHERS "code.model_path=org/code",
                                      "+" TEACHERS "code.key=codeforces",
                                      "+" TEACHERS "code.num_replicas=2",
                                      "distillation.teacher_key=domain",
                                      NULL};
    static const char *const five[] = {"data.train_files=a",
                                       TEACHERS "a.model_path=a",
                                       TEACHERS "b.model_path=b",
                                       TEACHERS "c.model_path=c",
                                       TEACHERS "d.model_path=d",
                                       TEACHERS "e.model_path=e",
                                       NULL};
    struct rk_config *job;

    (void)state;
    assert_ok(load(&job, one));
    assert_string_equal(rk_config_string(job, RK_JOB_TEACHER "model.path"), "org/math");
    assert_int_equal(rk_config_int(job, RK_JOB_TEACHER RK_JOB_TP), 2);
    rk_config_destroy(job);
    assert_ok(load(&job, two));
    assert_string_equal(rk_config_string(job, RK_JOB_TEACHER "model.path"), "org/math");
    assert_string_equal(rk_config_string(job, RK_JOB_TEACHER "key"), "openai/gsm8k");
    assert_true(rk_config_is_null(job, RK_JOB_TEACHER RK_JOB_TP));
    assert_string_equal(rk_config_string(job, RK_JOB_TEACHER_2 "model.path"), "org/code");
    assert_string_equal(rk_config_string(job, RK_JOB_TEACHER_2 "key"), "codeforces");
    assert_int_equal(rk_config_int(job, RK_JOB_TEACHER_2 RK_JOB_TP), 4);
    assert_string_equal(rk_config_string(job, RK_JOB_TEACHER_COLUMN), "domain");
    rk_config_destroy(job);
    assert_fails(
        load(&job, five), RK_INVALID_ARGUMENT,
        "distillation.teacher_models.e.model_path: \"e\" is not supported: a job has at most 4 teachers");
}

/* Goal: keys of verl's scripts that were refused or unknown have the effect of rankd's keys. */
static void test_verl_keys_of_scripts_have_an_effect(void **state)
{
    static const struct {
        const char *arg, *key, *value;
    } cases[] = {
        {RK_JOB_ACTOR "ulysses_sequence_parallel_size=2", RK_JOB_ACTOR RK_JOB_CP, "2"},
        {RK_JOB_ACTOR "fsdp_config.ulysses_sequence_parallel_size=4", RK_JOB_ACTOR RK_JOB_CP, "4"},
        {RK_JOB_REF "fsdp_config.ulysses_sequence_parallel_size=4", RK_JOB_REF RK_JOB_CP, "4"},
        {"critic.model.fsdp_config.ulysses_sequence_parallel_size=2", RK_JOB_CRITIC RK_JOB_CP, "2"},
        {"reward_model.ulysses_sequence_parallel_size=2", RK_JOB_REWARD_MODEL RK_JOB_CP, "2"},
        {RK_JOB_ACTOR "veomni.ulysses_parallel_size=2", RK_JOB_ACTOR RK_JOB_CP, "2"},
        {RK_JOB_ACTOR "veomni.expert_parallel_size=8", RK_JOB_ACTOR RK_JOB_EP, "8"},
        {RK_JOB_ACTOR "veomni.optimizer_offload=True", RK_JOB_ACTOR "megatron.optimizer_offload", "true"},
        {RK_JOB_REF "veomni.param_offload=True", RK_JOB_REF "megatron.param_offload", "true"},
        {RK_JOB_ACTOR "torchtitan.tensor_parallel_size=2", RK_JOB_ACTOR RK_JOB_TP, "2"},
        {"+" RK_JOB_ACTOR "fsdp_config.turbo_config.distributed.expert_parallel_size=8",
         RK_JOB_ACTOR RK_JOB_EP, "8"},
        {RK_JOB_ACTOR "policy_loss.tau_pos=2.5", RK_JOB_ACTOR "tau_pos", "2.5"},
        {RK_JOB_ACTOR "optim.lr_warmup_steps=null", RK_JOB_ACTOR "optim.lr_warmup_steps", "-1"},
        {RK_JOB_ACTOR "optim.min_lr_ratio=0.5", RK_JOB_ACTOR "optim.min_lr_ratio", "0.5"},
        {"+" RK_JOB_ACTOR "optim.override_optimizer_config.optimizer_cpu_offload=True",
         RK_JOB_ACTOR "megatron.optimizer_offload", "true"},
        {RK_JOB_ACTOR "clip_ratio_low=10", RK_JOB_ACTOR "clip_ratio_low", "10"},
        {RK_JOB_ACTOR "checkpoint.contents=[\"model\"]", RK_JOB_ACTOR "checkpoint.save_contents",
         "[\"model\"]"},
        {"+" RK_JOB_MODEL "override_config.max_position_embeddings=32768",
         RK_JOB_MODEL "override_config.max_position_embeddings", "32768"},
        {"data.gen_batch_size=1536", "data.gen_batch_size", "1536"},
        {"trainer.seed=7", "data.seed", "7"},
        {"trainer.test_freq=after_each_epoch", "trainer.test_after_each_epoch", "true"},
        {"trainer.save_freq=after_each_epoch", "trainer.save_after_each_epoch", "true"},
        {"reward_model.overlong_buffer.len=4096", "reward.reward_kwargs.overlong_buffer_cfg.len", "4096"},
        {"reward_model.reward_manager=batch", "reward.reward_manager.name", "\"batch\""},
        {"reward.reward_manager.name=gdpo", "reward.reward_manager.name", "\"naive\""},
        {"reward_model.reward_manager=prime", "reward.reward_manager.name", "\"naive\""},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_config *job;
        char *value;

        print_message("%s\n", cases[i].arg);
        assert_ok(load(&job, (const char *const[]){"data.train_files=a", cases[i].arg, NULL}));
        value = rk_json_dump(rk_json_find_path(rk_config_tree(job), cases[i].key), 0, false);
        assert_string_equal(value, cases[i].value);
        rk_free(value);
        rk_config_destroy(job);
    }
}

/* Goal: keys without a meaning here are taken, whatever their value. */
static void test_verl_keys_without_a_meaning_are_taken(void **state)
{
    static const char *const args[] = {
        "data.train_files=a",
        "data.trust_remote_code=True",
        "data.num_workers=4",
        RK_JOB_MODEL "trust_remote_code=True",
        "+" RK_JOB_MODEL "override_config.attention_dropout=0.",
        RK_JOB_ACTOR "strategy=fsdp_turbo",
        RK_JOB_ACTOR "model_engine=megatron",
        RK_JOB_ACTOR "megatron.use_dist_checkpointing=True",
        RK_JOB_ACTOR "megatron.dist_checkpointing_path=/a",
        RK_JOB_ACTOR "megatron.use_megatron_fsdp=True",
        "+" RK_JOB_ACTOR "fsdp_config.turbo_config.plan={a.b: {}, c.\\{d\\}: {}}",
        "+" RK_JOB_ACTOR "optim.override_optimizer_config.offload_fraction=1.0",
        RK_JOB_ROLLOUT "enable_sleep_mode=True",
        RK_JOB_ROLLOUT "moe_tensor_parallel_size=4",
        RK_JOB_ROLLOUT "repetition_penalty=1.0",
        RK_JOB_ROLLOUT "router_config_path=null",
        "global_profiler.tool=npu",
        "hydra.searchpath=[pkg://a.config]",
        "actor@actor_rollout_ref.actor=mlite_actor",
        "trainer.checkpoint_callback_class=null",
        RK_JOB_ACTOR "optim._target_=verl.workers.config.FSDPOptimizerConfig",
        NULL};
    struct rk_config *job;

    (void)state;
    assert_ok(load(&job, args));
    rk_config_destroy(job);
}

/* Goal: a misspelt key is refused in every section with a suggestion of the nearest key. */
static void test_misspelt_keys_are_refused(void **state)
{
    static const struct {
        const char *arg, *text;
    } cases[] = {
        {RK_JOB_MODEL "pth=a", "model.pth: unknown key; did you mean 'path'?"},
        {RK_JOB_ACTOR "optim.lrr=1", "optim.lrr: unknown key; did you mean 'lr'?"},
        {RK_JOB_ACTOR "megatron.tensor_model_paralel_size=1", "did you mean 'tensor_model_parallel_size'?"},
        {RK_JOB_ACTOR "fsdp_config.param_ofload=true", "fsdp_config.param_ofload: unknown key"},
        {RK_JOB_REF "log_prob_micro_batch_size_per_gp=1",
         "did you mean 'log_prob_micro_batch_size_per_gpu'?"},
        {"critic.enabel=true", "critic.enabel: unknown key; did you mean 'enable'?"},
        {"critic.model.pth=a", "critic.model.pth: unknown key; did you mean 'path'?"},
        {"critic.optim.lrr=1", "critic.optim.lrr: unknown key; did you mean 'lr'?"},
        {"critic.megatron.tensor_model_paralel_size=1", "did you mean 'tensor_model_parallel_size'?"},
        {"critic.fsdp.param_ofload=true", "critic.fsdp.param_ofload: unknown key"},
        {"critic.checkpoint.save_content=[]", "critic.checkpoint.save_content: unknown key"},
        {"distillation.enable=true", "distillation.enable: unknown key; did you mean 'enabled'?"},
        {"distillation.teacher.model.pth=a", "teacher.model.pth: unknown key; did you mean 'path'?"},
        {TEACHERS "teacher_model.model_pth=a",
         "model_pth: \"a\" is not supported: a job has at most 4 teachers, each with model_path"},
        {TEACHERS "teacher_model.inference.nam=a",
         "inference.nam: \"a\" is not supported: a job has at most 4 teachers, each with"},
        {"reward.reward_model.model_pth=a",
         "reward_model.model_pth: unknown key; did you mean 'model_path'?"},
        {"reward.reward_model.rollout.nam=a", "rollout.nam: unknown key; did you mean"},
        {"reward_model.model.pth=a", "reward_model.model.pth: unknown key; did you mean 'path'?"},
        {"reward.num_worker=1", "reward.num_worker: unknown key; did you mean 'num_workers'?"},
        {"reward.custom_reward_function.pth=a", "did you mean 'path'?"},
        {"data.train_batch_sze=1", "did you mean 'train_batch_size'?"},
        {"trainer.save_frq=1", "did you mean 'save_freq'?"},
        {"algorithm.gama=1", "did you mean 'gamma'?"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_config *job;

        print_message("%s\n", cases[i].arg);
        assert_fails(load(&job, (const char *const[]){"data.train_files=a", cases[i].arg, NULL}),
                     RK_INVALID_ARGUMENT, cases[i].text);
    }
}

/* Goal: a key in a file is named with its line. */
static void test_verl_key_in_a_file_is_refused_with_its_line(void **state)
{
    static const char text[] =
        "{\n \"data\": {\"train_files\": \"a\"},\n \"critic\": {\"optim\": {\"lr\": 1e-5}},\n"
        " \"trainer\": {\n  \"esi_redundant_time\": 5\n }\n}";
    char *path = rk_test_temp_path("job.json");
    struct rk_config *job;

    (void)state;
    rk_test_write_file(path, text, strlen(text));
    assert_fails(rk_job_load(&job, path, NULL, 0), RK_INVALID_ARGUMENT,
                 "job.json:5: trainer.esi_redundant_time");
    rk_free(path);
}

/* --- the page --- */

/* Goal: docs/verl.md matches the table. To update it: rankctl config verl > docs/verl.md. */
static void test_docs_verl_is_made_of_the_table(void **state)
{
    char *path = rk_test_fixture_path("../docs/verl.md"), *committed;
    struct rk_str page = {0};
    size_t bytes;

    (void)state;
    committed = rk_test_read_file(path, &bytes);
    rk_job_format_verl_keys(&page);
    assert_string_equal(committed, rk_str_text(&page));
    rk_str_fini(&page);
    rk_free(committed);
    rk_free(path);
}

/* Goal: the page has one row for the mode of the actor and of ref, which are taken, and none that refuses
 * them; it refuses those of roles without replay. */
static void test_page_refuses_no_mode_that_is_taken(void **state)
{
    struct rk_str page = {0};

    (void)state;
    rk_job_format_verl_keys(&page);
    assert_non_null(strstr(rk_str_text(&page), "| `" RK_JOB_ACTOR "router_replay.mode` | any | taken |"));
    assert_non_null(strstr(rk_str_text(&page), "| `" RK_JOB_REF "router_replay.mode` | any | taken |"));
    assert_null(strstr(rk_str_text(&page), "| `" RK_JOB_MODELS "*.router_replay.mode`"));
    assert_non_null(strstr(rk_str_text(&page), "| `critic*.router_replay.mode` | any | refused |"));
    rk_str_fini(&page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_configurations_are_taken),
        cmocka_unit_test(test_whole_configuration_without_a_critic_is_a_job),
        cmocka_unit_test(test_defaults_are_verls_or_listed),
        cmocka_unit_test(test_verl_command_lines_are_jobs),
        cmocka_unit_test(test_device_follows_verls_keys),
        cmocka_unit_test(test_gradient_checkpointing_selects_full_recompute),
        cmocka_unit_test(test_verl_keys_go_to_rankds),
        cmocka_unit_test(test_verl_features_that_rankd_lacks_are_refused),
        cmocka_unit_test(test_verl_teachers_have_any_name),
        cmocka_unit_test(test_verl_keys_of_scripts_have_an_effect),
        cmocka_unit_test(test_verl_keys_without_a_meaning_are_taken),
        cmocka_unit_test(test_misspelt_keys_are_refused),
        cmocka_unit_test(test_verl_key_in_a_file_is_refused_with_its_line),
        cmocka_unit_test(test_docs_verl_is_made_of_the_table),
        cmocka_unit_test(test_page_refuses_no_mode_that_is_taken),
    };

    return cmocka_run_group_tests(tests, read_configurations, free_configurations);
}
