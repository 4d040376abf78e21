/* Job files: verl's names, errors that name line and key, and values derived from other keys. */
#include "rl/rk_job.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "proto/rk_methods.h"
#include "tests/support/test.h"
#include "tests/unit/rl/minimal_job.h"

#define ACTOR   "actor_rollout_ref.actor."
#define REF     "actor_rollout_ref.ref."
#define CRITIC  "critic."
#define DISTILL "distillation.distillation_loss."
#define TEACHER "distillation.teacher."

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
    {"negative lower clip ratio",
     "{\"data\": {\"train_files\": [\"a\"]}, \"actor_rollout_ref\": {\"actor\": {\"clip_ratio_low\": -0.5}}}",
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
    {"parallel size of no rank",
     "{\"data\": {\"train_files\": [\"a\"]}, "
     "\"actor_rollout_ref\": {\"actor\": {\"megatron\": {\"expert_model_parallel_size\": 0}}}}",
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

/* Goal: verl's defaults; flags take precedence over the file. */
static void test_job_load_defaults_are_verls(void **state)
{
    struct rk_config *job = test_minimal_job((const char *const[]){"algorithm.kl_ctrl.kl_coef=0.5"}, 1);

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

/* Goal: verl's keys select the function, and without them data_source selects the score, as in verl. */
static void test_job_reward_verls_keys_select_the_row(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(reward_cases); i++) {
        int64_t count = reward_cases[i].changes[1] ? 2 : 1;
        struct rk_config *job = test_minimal_job(reward_cases[i].changes, count);
        struct rk_json *reward = rk_job_reward(job);
        const char *path = rk_json_as_string(rk_json_find_path(reward, "custom_reward_function.path"), NULL);

        assert_string_equal(rk_json_as_string(rk_json_find(reward, "name"), ""), reward_cases[i].name);
        assert_string_equal(path ? path : "-", reward_cases[i].path ? reward_cases[i].path : "-");
        rk_json_free(reward);
        rk_config_destroy(job);
    }
}

/* Goal: a job that is copied elsewhere finds its reward program and the files of its connections. */
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
        {"daemons.tls_ca=certs/ca.crt", "daemons.tls_ca", "/job/certs/ca.crt"},
        {"daemons.tls_key=/etc/key", "daemons.tls_key", "/etc/key"},
        {"reward.reward_model.model_path=rm", "reward.reward_model.model_path", "/job/rm"},
        {"reward.reward_model.tokenizer_path=t.json", "reward.reward_model.tokenizer_path", "/job/t.json"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_config *job = test_minimal_job(&cases[i].change, 1);
        struct rk_json *tree = rk_job_make_absolute(job, "/job");

        assert_string_equal(rk_json_as_string(rk_json_find_path(tree, cases[i].key), ""), cases[i].absolute);
        rk_json_free(tree);
        rk_config_destroy(job);
    }
}

/* Goal: the dtype depends on the daemons' devices unless the job sets it; the job's `device` has no
 * influence. */
static void test_job_dtype_follows_the_devices(void **state)
{
    struct rk_config *open = test_minimal_job((const char *const[]){"device=cuda"}, 1);
    struct rk_config *set = test_minimal_job((const char *const[]){RK_JOB_ACTOR "megatron.dtype=float32"}, 1);

    (void)state;
    assert_string_equal(rk_job_dtype(open, "cpu"), "float32");
    assert_string_equal(rk_job_dtype(open, "cuda"), "bfloat16");
    assert_string_equal(rk_job_dtype(set, "cuda"), "float32");
    rk_config_destroy(open);
    rk_config_destroy(set);
}

/* Goal: strict on GPUs and fast on CPUs unless the job sets it; models with latent attention are fast. */
static void test_job_numerics_follow_the_devices_and_the_model(void **state)
{
    struct rk_config *open = test_minimal_job((const char *const[]){"device=cuda"}, 1);
    struct rk_config *fast = test_minimal_job((const char *const[]){"numerics=fast"}, 1);
    struct rk_config *strict = test_minimal_job((const char *const[]){"numerics=strict"}, 1);
    struct rk_json *dense = rk_json_new_object(), *latent = rk_json_new_object();

    (void)state;
    rk_json_set(latent, "kv_lora_rank", rk_json_new_int(512));
    assert_string_equal(rk_job_numerics(open, "cuda", dense), "strict");
    assert_string_equal(rk_job_numerics(open, "cuda", NULL), "strict");
    assert_string_equal(rk_job_numerics(open, "cuda", latent), "fast");
    assert_string_equal(rk_job_numerics(open, "cpu", dense), "fast");
    assert_string_equal(rk_job_numerics(fast, "cuda", dense), "fast");
    assert_string_equal(rk_job_numerics(strict, "cuda", latent), "strict");
    assert_string_equal(rk_job_numerics(strict, "cpu", dense), "strict");
    rk_json_free(dense);
    rk_json_free(latent);
    rk_config_destroy(open);
    rk_config_destroy(fast);
    rk_config_destroy(strict);
}

/* Goal: keys that verl's SFT trainer has below data set the actor's keys. */
static void test_job_load_takes_the_keys_of_verl_for_sft(void **state)
{
    const char *const more[] = {"algorithm=sft", "data.use_dynamic_bsz=true",
                                "data.max_token_len_per_gpu=8192", "data.pad_mode=no_padding",
                                "data.tools_key=tools"};
    struct rk_config *job = test_minimal_job(more, RK_ARRAY_LEN(more));

    (void)state;
    assert_true(rk_config_bool(job, ACTOR "use_dynamic_bsz"));
    assert_int_equal(rk_config_int(job, ACTOR "ppo_max_token_len_per_gpu"), 8192);
    rk_config_destroy(job);
}

/* Goal: the short form can be combined with the section's other members, in any order. */
static void test_job_load_algorithm_in_short_keeps_its_section(void **state)
{
    static const char *const orders[][2] = {{"algorithm=dpo", "algorithm.dpo.beta=0.25"},
                                            {"algorithm.dpo.beta=0.25", "algorithm=dpo"}};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(orders); i++) {
        struct rk_config *job = test_minimal_job(orders[i], 2);

        assert_string_equal(rk_config_string(job, "algorithm.type"), "dpo");
        assert_true(rk_config_real(job, "algorithm.dpo.beta") == 0.25);
        rk_config_destroy(job);
    }
}

/* Goal: unset keys of rollout and ref take the actor's values. */
static void test_job_log_prob_micro_inherits_from_the_actor(void **state)
{
    const char *const changes[] = {REF "log_prob_micro_batch_size_per_gpu=7",
                                   REF "log_prob_use_dynamic_bsz=true"};
    struct rk_config *job = test_minimal_job(changes, RK_ARRAY_LEN(changes));
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

/* Goal: the daemons reserve memory for the largest micro-batch that the plan can produce, not for a larger
 * configured limit.
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
        {{.micro_batch_rows = 2, .max_token_len = 16384}, 3, 11}, /* the ranks share a micro-batch */
    };
    struct rk_config *job = test_minimal_job(NULL, 0);

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++)
        assert_int_equal(rk_job_micro_tokens(job, &rows[i].micro, rows[i].cp), rows[i].tokens);
    rk_config_destroy(job);
}

/* Goal: values out of a key's range are refused with the key's name. */
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
        "reward.reward_manager.name=dapoo",
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
 * the rollout is on the actor's ranks. */
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
        struct rk_config *job = test_minimal_job(cases[i].more, RK_ARRAY_LEN(cases[i].more));

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

/* Goal: an estimator that needs values, or the key, adds a critic; unset keys of its section take the actor's
 * values, except the learning rate, which is verl's default. */
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
    struct rk_config *job = test_minimal_job(open, RK_ARRAY_LEN(open));
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
    job = test_minimal_job(own, RK_ARRAY_LEN(own));
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

/* Goal: with a critic a checkpoint is kept as long as one of the two roles' limits keeps it. */
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
        struct rk_config *job = test_minimal_job(cases[i].overrides, RK_ARRAY_LEN(cases[i].overrides));

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
        cmocka_unit_test(test_job_numerics_follow_the_devices_and_the_model),
        cmocka_unit_test(test_job_load_takes_the_keys_of_verl_for_sft),
        cmocka_unit_test(test_job_load_algorithm_in_short_keeps_its_section),
        cmocka_unit_test(test_job_log_prob_micro_inherits_from_the_actor),
        cmocka_unit_test(test_job_micro_tokens_are_the_most_that_come),
        cmocka_unit_test(test_job_roles_follow_flow_and_keys),
        cmocka_unit_test(test_job_critic_inherits_from_the_actor),
        cmocka_unit_test(test_job_keeps_the_larger_number_of_checkpoints),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
