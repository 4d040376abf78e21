/* verl's SFT trainer: every key of its engines and optimizers is taken, its defaults hold, and its sections
 * become ours. */
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/config/rk_knobs.h"
#include "rl/rk_job.h"
#include "tests/support/test.h"

#define RECOMPUTE RK_JOB_ACTOR "megatron.override_transformer_config.recompute_granularity"

static struct rk_status *load(struct rk_config **job, const char *const *args, bool is_sft)
{
    struct rk_job_source source = {.overrides = args, .is_verl_sft = is_sft};

    while (args[source.num_overrides])
        source.num_overrides++;
    return rk_job_load_from(job, &source);
}

/* The value as text: strings without quotes. */
static char *value_of(const struct rk_config *job, const char *path)
{
    const struct rk_json *value = rk_json_find_path(rk_config_tree(job), path);
    const char *text = rk_json_as_string(value, NULL);

    assert_non_null(value);
    return text ? rk_strdup(text) : rk_json_dump(value, 0, false);
}

static void assert_value(const struct rk_config *job, const char *path, const char *expected)
{
    char *value = value_of(job, path);

    if (strcmp(value, expected) != 0)
        fail_msg("%s=%s, expected %s", path, value, expected);
    rk_free(value);
}

/* --- the whole default configuration of every form --- */

static void free_overrides(char **items, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        rk_free(items[i]);
}

/* The lines of sft_keys.tsv for a form as overrides; returns their number. "~", a default that refers to
 * other keys, is left out. */
static int64_t read_defaults(char **out, int64_t capacity, const char *form)
{
    char *path = rk_test_fixture_path("golden/verl/sft_keys.tsv"), line[1024];
    FILE *file = fopen(path, "r");
    int64_t count = 0;

    assert_non_null(file);
    while (fgets(line, sizeof(line), file)) {
        char *key = strchr(line, '\t') + 1, *value = strchr(key, '\t') + 1;

        line[key - line - 1] = value[-1] = value[strcspn(value, "\n")] = '\0';
        if (strcmp(value, "~") == 0 || (strcmp(line, "*") != 0 && strcmp(line, form) != 0))
            continue;
        assert_true(count + 3 < capacity);
        out[count++] = rk_format("++%s=%s", key, value);
    }
    fclose(file);
    rk_free(path);
    out[count++] = rk_format("engine=%s", form);
    out[count++] = rk_format("optim=%s", form);
    out[count] = NULL;
    return count;
}

static const char *const forms[] = {"fsdp", "megatron", "veomni", "torchtitan", "automodel"};

static void test_default_configurations_are_taken(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(forms); i++) {
        char *overrides[512];
        int64_t count = read_defaults(overrides, RK_ARRAY_LEN(overrides), forms[i]);
        struct rk_config *job;

        assert_true(count > 150);
        assert_ok(load(&job, (const char *const *)overrides, false));
        assert_value(job, "algorithm.type", "sft");
        assert_value(job, "data.train_batch_size", "256");
        assert_value(job, "trainer.total_epochs", "4");
        assert_value(job, RK_JOB_ACTOR "optim.lr", strcmp(forms[i], "automodel") == 0 ? "1e-05" : "0.001");
        assert_value(job, RK_JOB_ACTOR RK_JOB_TP, "1");
        rk_config_destroy(job);
        free_overrides(overrides, count);
    }
}

/* Goal: what a form's list says is what a job of that form has when it sets nothing. */
static void test_defaults_are_those_of_the_list(void **state)
{
    static const char *const keys[] = {
        "algorithm.type",
        "data.train_batch_size",
        "data.max_length",
        "data.train_files",
        "data.truncation",
        "data.seed",
        "trainer.total_epochs",
        "trainer.save_freq",
        "trainer.test_freq",
        "trainer.project_name",
        "trainer.experiment_name",
        "trainer.resume_mode",
        RK_JOB_ACTOR "optim.lr",
        RK_JOB_ACTOR "optim.betas",
        RK_JOB_ACTOR "optim.weight_decay",
        RK_JOB_ACTOR "optim.eps",
        RK_JOB_ACTOR "optim.min_lr",
        RK_JOB_ACTOR "optim.lr_decay_style",
        RK_JOB_ACTOR "optim.clip_grad",
        RK_JOB_ACTOR "optim.lr_warmup_steps",
        RK_JOB_ACTOR "optim.lr_warmup_init",
        RK_JOB_ACTOR "use_dynamic_bsz",
        RK_JOB_ACTOR "ppo_micro_batch_size_per_gpu",
        RK_JOB_ACTOR "ppo_max_token_len_per_gpu",
        RK_JOB_ACTOR RK_JOB_TP,
        RK_JOB_ACTOR RK_JOB_CP,
        RK_JOB_ACTOR RK_JOB_PP,
        RK_JOB_ACTOR RK_JOB_EP,
        RK_JOB_ACTOR "megatron.param_offload",

        RK_JOB_ACTOR "checkpoint.save_contents",
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(forms); i++) {
        char *listed[512], *engine = rk_format("engine=%s", forms[i]),
                           *optim = rk_format("optim=%s", forms[i]);
        int64_t count = read_defaults(listed, RK_ARRAY_LEN(listed), forms[i]);
        const char *bare[] = {"data.train_files=~/data/gsm8k/train.parquet", engine, optim, NULL};
        struct rk_config *all, *none;

        assert_ok(load(&all, (const char *const *)listed, false));
        assert_ok(load(&none, bare, false));
        for (size_t k = 0; k < RK_ARRAY_LEN(keys); k++) {
            char *expected = value_of(all, keys[k]);

            assert_value(none, keys[k], expected);
            rk_free(expected);
        }
        rk_config_destroy(all);
        rk_config_destroy(none);
        rk_free(engine);
        rk_free(optim);
        free_overrides(listed, count);
    }
}

/* --- single keys --- */

struct sft_case {
    const char *args[6];
    const char *path, *value;
};

static const struct sft_case cases[] = {
    /* The defaults, and what wins over them, in any order. */
    {{"model.path=/m"}, "data.train_batch_size", "256"},
    {{"model.path=/m"}, "algorithm.type", "sft"},
    {{"model.path=/m"}, RK_JOB_ACTOR "use_dynamic_bsz", "true"},
    {{"model.path=/m"}, RK_JOB_MODEL "path", "/m"},
    {{"model.path=/m"}, RECOMPUTE, "full"},
    {{"model.path=/m", "engine=megatron"}, RECOMPUTE, "null"},
    {{"model.path=/m", "model.enable_gradient_checkpointing=False"}, RECOMPUTE, "null"},
    {{"optim.lr=1e-5"}, RK_JOB_ACTOR "optim.lr", "1e-05"},
    {{"optim=megatron", "optim.lr=1e-5"}, RK_JOB_ACTOR "optim.lr", "1e-05"},
    {{"optim.lr=2e-5", "optim=automodel"}, RK_JOB_ACTOR "optim.lr", "2e-05"},
    {{"optim=automodel"}, RK_JOB_ACTOR "optim.lr", "1e-05"},
    {{"optim=automodel"}, RK_JOB_ACTOR "optim.lr_decay_style", "cosine"},
    {{"optim=veomni"}, RK_JOB_ACTOR "optim.lr_decay_style", "cosine"},
    {{"optim=torchtitan"}, RK_JOB_ACTOR "optim.lr_decay_style", "linear"},
    {{"optim=automodel"}, RK_JOB_ACTOR "optim.min_lr_ratio", "0.01"},
    {{"optim=torchtitan", "optim.min_lr_factor=0.2"}, RK_JOB_ACTOR "optim.min_lr_ratio", "0.2"},
    {{"optim=torchtitan", "optim.decay_type=cosine"}, RK_JOB_ACTOR "optim.lr_decay_style", "cosine"},
    {{"+optim.override_optimizer_config.decoupled_weight_decay=true"}, RK_JOB_ACTOR "optim.lr", "0.001"},
    {{"optim.betas='[0.9,0.95]'"}, RK_JOB_ACTOR "optim.betas", "[0.9,0.95]"},
    {{"optim.lr=1e-5", "algorithm.type=dpo"}, "algorithm.type", "dpo"},
    /* A job in rankd's form has rankd's defaults. */
    {{"actor_rollout_ref.model.path=/m", "optim.lr=3e-5"}, "data.train_batch_size", "1024"},
    {{"actor_rollout_ref.model.path=/m", "optim.lr=3e-5"}, RK_JOB_ACTOR "optim.lr", "3e-05"},
    {{"algorithm=sft"}, "data.train_batch_size", "1024"},
    /* The parallel sizes of every engine. */
    {{"engine.ulysses_sequence_parallel_size=2"}, RK_JOB_ACTOR RK_JOB_CP, "2"},
    {{"engine=megatron", "engine.tensor_model_parallel_size=4"}, RK_JOB_ACTOR RK_JOB_TP, "4"},
    {{"engine=megatron", "engine.expert_tensor_parallel_size=1"}, RK_JOB_ACTOR RK_JOB_ETP, "1"},
    {{"engine=megatron", "engine.param_offload=True"}, RK_JOB_ACTOR RK_JOB_PARAM_OFFLOAD, "true"},
    {{"engine=veomni", "engine.expert_parallel_size=8"}, RK_JOB_ACTOR RK_JOB_EP, "8"},
    {{"engine=veomni", "engine.ulysses_parallel_size=2"}, RK_JOB_ACTOR RK_JOB_CP, "2"},
    {{"engine=torchtitan", "engine.tensor_parallel_size=2"}, RK_JOB_ACTOR RK_JOB_TP, "2"},
    {{"engine=torchtitan", "engine.pipeline_parallel_size=2"}, RK_JOB_ACTOR RK_JOB_PP, "2"},
    {{"engine=torchtitan", "engine.activation_checkpoint=full"}, RECOMPUTE, "full"},
    {{"engine=automodel", "engine.tp_size=2", "engine.cp_size=4"}, RK_JOB_ACTOR RK_JOB_CP, "4"},
    {{"engine=automodel", "engine.ep_size=4"}, RK_JOB_ACTOR RK_JOB_EP, "4"},
    {{"engine=mlite", "engine.pp=4", "engine.vpp=2"}, RK_JOB_ACTOR RK_KNOB_VPP, "2"},
    /* The trainer before it. */
    {{"model.partial_pretrain=/m", "model.strategy=fsdp2"}, RK_JOB_MODEL "path", "/m"},
    {{"ulysses_sequence_parallel_size=2", "optim.lr=1e-5"}, RK_JOB_ACTOR RK_JOB_CP, "2"},
    {{"data.multiturn.enable=true", "data.multiturn.messages_key=turns", "optim.lr=1e-5"},
     "data.messages_key",
     "turns"},
    {{"model.fsdp_config.offload_params=true"}, RK_JOB_ACTOR RK_JOB_PARAM_OFFLOAD, "true"},
    /* The rest. */
    {{"model.path=/m", "data.micro_batch_size_per_gpu=8"}, RK_JOB_ACTOR "ppo_micro_batch_size_per_gpu", "8"},
    {{"checkpoint.save_contents=[model]"}, RK_JOB_ACTOR "checkpoint.save_contents", "[\"model\"]"},
    {{"model.path=/m", "trainer.seed=7"}, "data.seed", "7"},
    {{"model.path=/m", "data.enable_thinking_default=true"},
     "data.apply_chat_template_kwargs",
     "{\"enable_thinking\":true}"},
    {{"+engine.override_transformer_config.recompute_granularity=full", "engine=megatron"},
     RECOMPUTE,
     "full"},
    {{"model.path=/m", "model.mtp.enable=True"}, RK_JOB_MODEL "path", "/m"},
};

static void test_keys_of_the_sft_trainer(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        const char *args[8] = {"data.train_files=a"};
        struct rk_config *job;

        memcpy(args + 1, cases[i].args, sizeof(cases[i].args));
        assert_ok(load(&job, args, false));
        assert_value(job, cases[i].path, cases[i].value);
        rk_config_destroy(job);
    }
}

/* Goal: a command of verl's SFT trainer has its defaults even if it sets none of its sections. */
static void test_defaults_without_a_section(void **state)
{
    const char *args[] = {"data.train_files=a", NULL};
    struct rk_config *job;

    (void)state;
    assert_ok(load(&job, args, true));
    assert_value(job, "algorithm.type", "sft");
    assert_value(job, "data.train_batch_size", "256");
    assert_string_equal(rk_config_origin(job, "data.train_batch_size"), "verl's default");
    rk_config_destroy(job);
    assert_ok(load(&job, args, false));
    assert_value(job, "algorithm.type", "rl");
    rk_config_destroy(job);
}

static void test_what_does_not_work_is_named(void **state)
{
    static const struct {
        const char *arg, *message;
    } wrong[] = {
        {"optim.lrr=1", "flag: optim.lrr: unknown key; did you mean 'lr'?"},
        {"engine.tensor_model_parallel_sise=2", "did you mean 'tensor_model_parallel_size'?"},
        {"engine=deepspeed", "flag: engine: expected fsdp|megatron"},
        {"engine.enable_fp8=True", "flag: engine.enable_fp8: expected false, got true"},
        {"model.lora_rank=8", "lora_rank: expected 0, got 8"},
        {"model.mtp.enable_train=True", "mtp.enable_train"},
        {"optim.name=Muon", "flag: optim.name: expected AdamW|Adam, got \"Muon\""},
        {"optim.betas='[0.9'", "optim.betas: expected an array, got \"[0.9\""},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(wrong); i++) {
        const char *args[] = {"data.train_files=a", wrong[i].arg, NULL};
        struct rk_config *job;

        assert_fails(load(&job, args, false), RK_INVALID_ARGUMENT, wrong[i].message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_default_configurations_are_taken),
        cmocka_unit_test(test_defaults_are_those_of_the_list),
        cmocka_unit_test(test_keys_of_the_sft_trainer),
        cmocka_unit_test(test_defaults_without_a_section),
        cmocka_unit_test(test_what_does_not_work_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
