/* rankctl verify-layout: layouts that agree with one rank, and one that does not. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/proc/cli_fixture.h"
#include "tests/support/models.h"

#define ACTOR     "actor_rollout_ref.actor."
#define ROLLOUT   "actor_rollout_ref.rollout."
#define TP        ACTOR "megatron.tensor_model_parallel_size="
#define CP        ACTOR "megatron.context_parallel_size="
#define PP        ACTOR "megatron.pipeline_model_parallel_size="
#define VPP       ACTOR "megatron.virtual_pipeline_model_parallel_size="
#define EP        ACTOR "megatron.expert_model_parallel_size="
#define REPLAY    ACTOR "megatron.router_replay.mode="
#define ROUTER    ACTOR "megatron.override_transformer_config.moe_"
#define BALANCING ROUTER "router_load_balancing_type="
#define AUX_LOSS  ROUTER "aux_loss_coeff="
#define Z_LOSS    ROUTER "z_loss_coeff="
#define SFT_JOB   RK_TEST_SOURCE_DIR "/examples/digits/sft.json"
#define DPO_JOB   RK_TEST_SOURCE_DIR "/examples/digits/dpo.json"
#define MODEL     "actor_rollout_ref.model.hf_config_path=" RK_TEST_SOURCE_DIR "/examples/digits/"
/* Two prompts of four responses. */
#define SMALL    "--rows=2", ROLLOUT "n=4"
#define ARGS_MAX 40
#define STEP_MS  120000

/* A new directory, which verify-layout must leave empty; rk_free it. */
static char *new_work_dir(void)
{
    char *dir = new_run_dir();

    assert_int_equal(mkdir(dir, 0777), 0);
    return dir;
}

static struct outcome verify(const char *job, const char *daemons, const char *work_dir,
                             const char *const *more)
{
    char *work = rk_format("--work-dir=%s", work_dir);
    const char *args[ARGS_MAX] = {"verify-layout", job, daemons, work, "--output=json", cli_device()};
    struct outcome outcome;

    append_args(args, ARGS_MAX, more);
    outcome = finish_rankctl(start_rankctl(args), STEP_MS);
    rk_free(work);
    return outcome;
}

static int64_t count_rows(const struct rk_json *answer, const char *kind, const char *role)
{
    const struct rk_json *rows = rk_json_find(answer, "rows");
    int64_t count = 0;

    for (int64_t i = 0; i < rk_json_count(rows); i++) {
        const struct rk_json *row = rk_json_at(rows, i);

        count += strcmp(rk_json_as_string(rk_json_find(row, "kind"), ""), kind) == 0 &&
                 strcmp(rk_json_as_string(rk_json_find(row, "role"), ""), role) == 0;
    }
    return count;
}

static bool has_row(const struct rk_json *answer, const char *role, const char *name)
{
    const struct rk_json *rows = rk_json_find(answer, "rows");

    for (int64_t i = 0; i < rk_json_count(rows); i++) {
        if (strcmp(rk_json_as_string(rk_json_find(rk_json_at(rows, i), "name"), ""), name) == 0 &&
            strcmp(rk_json_as_string(rk_json_find(rk_json_at(rows, i), "role"), ""), role) == 0)
            return true;
    }
    return false;
}

/* --- agreement --- */

struct agreement {
    const char *label, *job, *daemons;
    int num_daemons;
    const char *more[12];
    const char *layout;        /* part of the layout's description */
    int64_t num_actor_tensors; /* of config.json: 9 a layer, embedding, norm and head; of config-moe.json: 33
                                  a layer; of config-mla.json: 12 a layer */
    const char *rows[6];       /* "role/name" of outputs and metrics */
};

/* Goal: every output, gradient and parameter of the layout is compared with that of one rank, and agrees.
 * num_frozen: tensors that are not trained, and so have no gradient. */
static void check_agreement(const struct agreement *c, int64_t num_frozen)
{
    struct outcome outcome;
    struct rk_json *answer;
    char *dir;

    if (!has_devices(c->num_daemons)) {
        rk_test_skip_part("%s: needs %d GPUs", c->label, c->num_daemons);
        return;
    }
    dir = new_work_dir();
    print_message("%s\n", c->label);
    outcome = verify(c->job, c->daemons, dir, c->more);
    assert_exit(&outcome, 0);
    answer = parse_json(outcome.out);
    assert_true(rk_json_as_bool(rk_json_find(answer, "agrees"), false));
    assert_text("layout", rk_json_as_string(rk_json_find(answer, "layout"), ""), c->layout);
    assert_text("reference", rk_json_as_string(rk_json_find(answer, "reference"), ""), "on 1 rank");
    assert_int_equal(count_rows(answer, "gradient", "actor"), c->num_actor_tensors - num_frozen);
    assert_int_equal(count_rows(answer, "parameter", "actor"), c->num_actor_tensors);
    for (size_t i = 0; i < RK_ARRAY_LEN(c->rows) && c->rows[i]; i++) {
        char *role = rk_strdup(c->rows[i]), *name = strchr(role, ' ');

        *name++ = '\0';
        if (!has_row(answer, role, name))
            fail_msg("%s: no row '%s' in\n%s", c->label, c->rows[i], outcome.out);
        rk_free(role);
    }
    assert_int_equal(rk_test_count_entries(dir), 0);
    rk_json_free(answer);
    outcome_fini(&outcome);
    rk_free(dir);
}

static void test_verify_layouts_agree_with_one_rank(void **state)
{
    static const struct agreement cases[] = {
        {"tp 2, pp 2",
         TINY_JOB,
         "--local=4",
         4,
         {SMALL, TP "2", PP "2", NULL},
         "actor tp=2 pp=2 on 4 ranks, rollout tp=2 dp=2 on 4 ranks",
         21,
         {"actor old_log_probs", "rollout rollout_log_probs", "actor actor/loss", "actor actor/grad_norm"}},
        {"cp 2, tp 2, and a rollout of its own",
         TINY_JOB,
         "--local=4",
         4,
         {SMALL, TP "2", CP "2", ROLLOUT "tensor_model_parallel_size=1", NULL},
         "actor tp=2 cp=2 on 4 ranks, rollout dp=4 on 4 ranks",
         21,
         {"rollout rollout_log_probs"}},
        {"vpp 2 of a model with 4 layers",
         TINY_JOB,
         "--local=2",
         2,
         {SMALL, TP "1", PP "2", VPP "2", "--layers=4", NULL},
         "actor pp=2 vpp=2 on 2 ranks",
         39,
         {"actor entropys"}},
        {"dp 4 with a critic and a reference",
         TINY_JOB,
         "--local=4",
         4,
         {SMALL, TP "1", "algorithm.adv_estimator=gae", ACTOR "use_kl_loss=true", NULL},
         "actor dp=4 on 4 ranks",
         21,
         {"critic values", "critic critic/grad_norm", "critic critic/vf_loss", "critic score.weight",
          "ref ref_log_prob", "actor actor/kl_loss"}},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++)
        check_agreement(&cases[i], 0);
}

/* Goal: the flows sft and dpo, in the dtype of runs on GPUs. */
static void test_verify_examples_in_bfloat16(void **state)
{
    static const struct agreement cases[] = {
        {"sft, tp 2, dp 2",
         SFT_JOB,
         "--local=4",
         4,
         {TP "2", "--rows=8", "--dtype=bfloat16", NULL},
         "actor tp=2 dp=2 on 4 ranks",
         21,
         {"actor old_log_probs", "actor train/loss", "actor train/grad_norm"}},
        {"dpo, pp 2",
         DPO_JOB,
         "--local=2",
         2,
         {TP "1", PP "2", "--rows=4", "--dtype=bfloat16", NULL},
         "actor pp=2 on 2 ranks",
         21,
         {"ref ref_log_prob", "actor train/loss"}},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++)
        check_agreement(&cases[i], 0);
}

/* Goal: models with experts and with latents, in every flow. */
static void test_verify_experts_and_latents(void **state)
{
    static const struct agreement cases[] = {
        {"experts on 2 of 4 ranks, with a critic and a reference",
         TINY_JOB,
         "--local=4",
         4,
         {SMALL, TP "1", EP "2", MODEL "config-moe.json", "algorithm.adv_estimator=gae",
          ACTOR "use_kl_loss=true", "critic.megatron.expert_model_parallel_size=2", NULL},
         "actor ep=2 dp=4 on 4 ranks",
         69,
         {"critic values", "critic critic/grad_norm", "critic score.weight", "ref ref_log_prob",
          "rollout rollout_log_probs", "actor model.layers.1.mlp.experts.7.down_proj.weight"}},
        {"experts that the rollout chose, cp 2",
         TINY_JOB,
         "--local=2",
         2,
         {SMALL, TP "1", ACTOR "megatron.context_parallel_size=2", MODEL "config-moe.json", REPLAY "R3",
          "actor_rollout_ref.rollout.enable_rollout_routing_replay=true", NULL},
         "actor cp=2 on 2 ranks",
         69,
         {"actor old_log_probs", "actor model.layers.1.mlp.gate.weight"}},
        {"experts that compute_log_prob chose, pp 2",
         TINY_JOB,
         "--local=2",
         2,
         {SMALL, TP "1", PP "2", MODEL "config-moe.json", REPLAY "R2", NULL},
         "actor pp=2 on 2 ranks",
         69,
         {"actor old_log_probs", "actor model.layers.1.mlp.gate.weight"}},
        {"losses of routers over sequences, tp 2, ep 2",
         TINY_JOB,
         "--local=4",
         4,
         {SMALL, TP "2", EP "2", MODEL "config-moe.json", BALANCING "seq_aux_loss", AUX_LOSS "0.2",
          Z_LOSS "0.02", NULL},
         "actor tp=2 ep=2 dp=2 on 4 ranks",
         69,
         {"actor actor/seq_load_balancing_loss", "actor actor/z_loss",
          "actor model.layers.1.mlp.gate.weight"}},
        {"losses of routers over micro-batches, which are compared over sequences, tp 2, ep 2",
         TINY_JOB,
         "--local=4",
         4,
         {SMALL, TP "2", EP "2", MODEL "config-moe.json", BALANCING "aux_loss", AUX_LOSS "0.2", NULL},
         "actor tp=2 ep=2 dp=2 on 4 ranks",
         69,
         {"actor actor/seq_load_balancing_loss", "actor model.layers.1.mlp.gate.weight"}},
        {"latents, tp 2, pp 2, with a critic",
         TINY_JOB,
         "--local=4",
         4,
         {SMALL, TP "2", PP "2", MODEL "config-mla.json", "algorithm.adv_estimator=gae", NULL},
         "actor tp=2 pp=2 on 4 ranks",
         27,
         {"critic values", "rollout rollout_log_probs", "actor model.layers.1.self_attn.kv_b_proj.weight"}},
        {"sft of experts, tp 2, ep 2",
         SFT_JOB,
         "--local=4",
         4,
         {TP "2", EP "2", MODEL "config-moe.json", "--rows=8", NULL},
         "actor tp=2 ep=2 dp=2 on 4 ranks",
         69,
         {"actor old_log_probs", "actor train/loss", "actor model.layers.0.mlp.gate.weight"}},
        {"dpo of experts, pp 2, ep 2",
         DPO_JOB,
         "--local=4",
         4,
         {TP "1", PP "2", EP "2", MODEL "config-moe.json", "--rows=4", NULL},
         "actor ep=2 dp=2 pp=2 on 4 ranks",
         69,
         {"ref ref_log_prob", "actor train/loss"}},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++)
        check_agreement(&cases[i], 0);
}

/* Goal: routers that are not trained, with an embedding that is the head and lies on two stages: 68 tensors,
 * without the head. */
static void test_verify_a_frozen_router_with_a_tied_head(void **state)
{
    char *path = rk_test_temp_path("tied.json"),
         *key = rk_format("actor_rollout_ref.model.hf_config_path=%s", path);
    struct agreement c = {"a frozen router and a tied head, pp 2, ep 2",
                          TINY_JOB,
                          "--local=4",
                          4,
                          {SMALL, TP "1", PP "2", EP "2", key,
                           "actor_rollout_ref.model.override_config.moe_config.freeze_moe_router=true", NULL},
                          "actor ep=2 dp=2 pp=2 on 4 ranks",
                          68,
                          {"actor model.embed_tokens.weight"}};
    struct rk_json *config;
    char *text;

    (void)state;
    assert_ok(rk_json_parse_file(&config, RK_TEST_SOURCE_DIR "/examples/digits/config-moe.json", 1 << 16, 0));
    rk_json_set(config, "tie_word_embeddings", rk_json_new_bool(true));
    text = rk_json_dump(config, 0, false);
    rk_test_write_file(path, text, strlen(text));
    rk_free(text);
    rk_json_free(config);
    check_agreement(&c, 2);
    rk_free(key);
    rk_free(path);
}

/* A Hugging Face directory of a model that reads the job's tokens, with random weights; rk_free it. */
static char *make_model(const char *name, const char *architecture, const char *head)
{
    char *config =
        rk_format("{\"architectures\": [\"Llama%s\"], \"model_type\": \"llama\", \"num_labels\": 1, "
                  "\"vocab_size\": 14, \"hidden_size\": 16, \"intermediate_size\": 32, "
                  "\"num_hidden_layers\": 2, \"num_attention_heads\": 2, "
                  "\"num_key_value_heads\": 2, \"max_position_embeddings\": 64, "
                  "\"rms_norm_eps\": 1e-6, \"initializer_range\": 0.3}",
                  architecture);
    struct rk_test_model_spec spec = {.config = config, .seed = 3, .head = head, .dtype = RK_DTYPE_F32};
    char *dir = rk_test_temp_path(name);
    struct rk_test_model test;

    assert_ok(rk_test_model_open(&test, &spec));
    assert_ok(rk_model_export_hf(test.model, dir, 0, NULL));
    rk_test_model_close(&test);
    rk_free(config);
    return dir;
}

/* Goal: roles that do not train are compared, too: a teacher and a reward model, each with a layout of its
 * own. */
static void test_verify_teachers_and_reward_models(void **state)
{
    char *teacher = make_model("teacher", "ForCausalLM", "lm");
    char *reward = make_model("reward", "ForSequenceClassification", "score");
    char *teacher_key = rk_format("distillation.teacher.model.path=%s", teacher);
    char *reward_key = rk_format("reward.reward_model.model_path=%s", reward);
    struct agreement c = {"a teacher and a reward model",
                          TINY_JOB,
                          "--local=2",
                          2,
                          {SMALL, TP "1", "distillation.enabled=true", teacher_key,
                           "distillation.distillation_loss.loss_mode=forward_kl_topk",
                           "distillation.distillation_loss.topk=4", "reward.reward_model.enable=true",
                           reward_key, "reward.reward_model.megatron.tensor_model_parallel_size=2", NULL},
                          "actor dp=2 on 2 ranks, reward tp=2 on 2 ranks",
                          21,
                          {"teacher teacher_topk_log_probs", "reward rm_scores", "actor distillation/loss"}};

    (void)state;
    check_agreement(&c, 0);
    rk_free(reward_key);
    rk_free(teacher_key);
    rk_free(reward);
    rk_free(teacher);
}

#ifdef RK_FAULTS
/* Goal: if the model does not fit on one rank, the smallest layout that fits is the reference. Method: a
 * fault point instead of a small device. */
static void test_verify_takes_a_larger_reference(void **state)
{
    char *dir = new_work_dir();
    struct outcome outcome;
    struct rk_json *answer;

    (void)state;
    if (!has_devices(4)) {
        rk_free(dir);
        rk_test_skip("needs 4 GPUs");
    }
    setenv("RANKD_FAULTS", "verify.reference=fail", 1);
    outcome = verify(TINY_JOB, "--local=4", dir, (const char *const[]){SMALL, TP "4", NULL});
    unsetenv("RANKD_FAULTS");
    assert_exit(&outcome, 0);
    answer = parse_json(outcome.out);
    assert_string_equal(rk_json_as_string(rk_json_find(answer, "reference"), ""), "actor tp=2 on 2 ranks");
    assert_int_equal(rk_test_count_entries(dir), 0);
    rk_json_free(answer);
    outcome_fini(&outcome);
    rk_free(dir);
}
#endif

/* --- disagreement --- */

#ifdef RK_FAULTS
/* Goal: a wrong gradient on one rank is reported, with its tensor and its rank, on daemons of --hosts.
 * Method: the second of two daemons replaces an element of the sums of its shard. */
static void test_verify_names_the_tensor_that_differs(void **state)
{
    static const struct {
        const char *layout, *place, *tensor;
    } cases[] = {
        {TP "1", "dp 1", "first: gradient 'model.embed_tokens.weight' of role actor"},
        {TP "2", "tp 1", "first: gradient 'model.layers.0.self_attn.q_proj.weight' of role actor"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_proc *first = start_daemon_on(0, NULL), *second;
        char *dir = new_work_dir(), *hosts;
        struct outcome outcome;
        struct rk_json *answer;

        setenv("RANKD_FAULTS", "optim.gradient=fail@3", 1);
        second = start_daemon_on(1, NULL);
        unsetenv("RANKD_FAULTS");
        hosts = rk_format("--hosts=%s,%s", rk_proc_address(first), rk_proc_address(second));
        outcome = verify(TINY_JOB, hosts, dir, (const char *const[]){SMALL, cases[i].layout, NULL});
        assert_exit(&outcome, 1);
        answer = parse_json(outcome.out);
        assert_false(rk_json_as_bool(rk_json_find(answer, "agrees"), true));
        assert_string_equal(rk_json_as_string(rk_json_find_path(answer, "error.reason"), ""),
                            "LAYOUTS_DIFFER");
        assert_string_equal(rk_json_as_string(rk_json_find_path(answer, "first.kind"), ""), "gradient");
        assert_string_equal(rk_json_as_string(rk_json_find_path(answer, "cause"), ""), "rank");
        assert_text("advice", rk_json_as_string(rk_json_find(answer, "advice"), ""), cases[i].place);
        assert_text("stderr", outcome.err, cases[i].tensor);
        assert_int_equal(rk_test_count_entries(dir), 0);
        rk_json_free(answer);
        outcome_fini(&outcome);
        rk_proc_destroy(second);
        rk_proc_destroy(first);
        rk_free(hosts);
        rk_free(dir);
    }
}
#endif

/* Goal: with a tolerance of 0 rows differ: the command does compare. */
static void test_verify_with_no_tolerance_differs(void **state)
{
    char *dir = new_work_dir();
    struct outcome outcome =
        verify(TINY_JOB, "--local=2", dir, (const char *const[]){SMALL, TP "2", "--tolerance=1e-12", NULL});

    (void)state;
    assert_exit(&outcome, 1);
    assert_text("stderr", outcome.err, "differs from");
    assert_int_equal(rk_test_count_entries(dir), 0);
    outcome_fini(&outcome);
    rk_free(dir);
}

/* Goal: the tolerance grows as the square root of the model's longest sums: 4,096 here, four times 1,024. */
static void test_verify_wide_models_have_a_larger_tolerance(void **state)
{
    char *dir = new_work_dir(), *config = rk_test_temp_path("config.json");
    char *key = rk_format("actor_rollout_ref.model.hf_config_path=%s", config);
    FILE *file = fopen(config, "w");
    struct outcome outcome;
    struct rk_json *answer;

    (void)state;
    assert_non_null(file);
    fputs("{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"vocab_size\": 14, "
          "\"hidden_size\": 16, \"intermediate_size\": 4096, \"num_hidden_layers\": 1, "
          "\"num_attention_heads\": 2, \"num_key_value_heads\": 2, \"max_position_embeddings\": 64, "
          "\"rms_norm_eps\": 1e-6}",
          file);
    assert_int_equal(fclose(file), 0);
    outcome = verify(TINY_JOB, "--local=2", dir, (const char *const[]){SMALL, TP "2", key, NULL});
    assert_exit(&outcome, 0);
    answer = parse_json(outcome.out);
    assert_float_equal(rk_json_as_real(rk_json_find(answer, "tolerance"), 0), 2e-5, 1e-10);
    rk_json_free(answer);
    outcome_fini(&outcome);
    rk_free(key);
    rk_free(config);
    rk_free(dir);
}

/* --- refusals --- */

/* Goal: invalid arguments are rejected before a daemon starts, with exit code 2, and leave no files. */
static void test_verify_refuses_bad_input(void **state)
{
    static const struct {
        const char *job, *args[4], *message;
    } cases[] = {
        {TINY_JOB, {"--local=3", TP "2"}, TP "2 does not divide the 3"},
        {TINY_JOB, {"--local=2", TP "1", PP "2", "--layers=3"}, "3 layers"},
        {TINY_JOB, {"--local=4", TP "1", "--rows=1", ROLLOUT "n=2"}, "does not divide"},
        {TINY_JOB, {TP "1"}, "no daemons given"},
        {TINY_JOB, {"--local=0"}, "--local=0: expected a number of daemons"},
        {TINY_JOB, {"--local=2", "--hosts=unix:/nowhere"}, "--local starts its own daemons"},
        {TINY_JOB, {"--local=2", "--dtype=float16"}, "--dtype=float16: expected float32 or bfloat16"},
        {TINY_JOB, {"--local=2", "--tolerance=1"}, "--tolerance=1: expected a number between 0 and 1"},
        {TINY_JOB, {"--local=2", "--rows=0"}, "--rows=0: expected a number from 1"},
        {TINY_JOB, {"--local=2", "--layers=x"}, "--layers=x: expected a number from 1"},
        {TINY_JOB, {"--local=2", "--world=2"}, "unknown option --world"},
        {TINY_JOB, {"--local=2", "data.train_files=missing.jsonl"}, "missing.jsonl"},
        {"missing.json", {"--local=2"}, "missing.json"},
    };
    char *dir = new_work_dir(), *work = rk_format("--work-dir=%s", dir);

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        const char *args[ARGS_MAX] = {"verify-layout", cases[i].job, work};
        struct outcome outcome;

        for (size_t k = 0; k < RK_ARRAY_LEN(cases[i].args) && cases[i].args[k]; k++)
            append_args(args, ARGS_MAX, (const char *const[]){cases[i].args[k], NULL});
        outcome = run_rankctl(args);
        assert_exit(&outcome, 2);
        assert_text("stderr", outcome.err, cases[i].message);
        assert_int_equal(rk_test_count_entries(dir), 0);
        outcome_fini(&outcome);
    }
    rk_free(work);
    rk_free(dir);
}

static void test_verify_hosts_need_a_directory(void **state)
{
    struct outcome outcome =
        run_rankctl((const char *const[]){"verify-layout", TINY_JOB, "--hosts=unix:/nowhere", NULL});

    (void)state;
    assert_exit(&outcome, 2);
    assert_text("stderr", outcome.err, "--hosts needs --work-dir DIR");
    outcome_fini(&outcome);
    outcome = run_rankctl(
        (const char *const[]){"verify-layout", TINY_JOB, "--local=2", "--work-dir=/nowhere", NULL});
    assert_exit(&outcome, 2);
    assert_text("stderr", outcome.err, "cannot find the directory '/nowhere'");
    outcome_fini(&outcome);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_verify_layouts_agree_with_one_rank),
        cmocka_unit_test(test_verify_examples_in_bfloat16),
        cmocka_unit_test(test_verify_experts_and_latents),
        cmocka_unit_test(test_verify_a_frozen_router_with_a_tied_head),
        cmocka_unit_test(test_verify_teachers_and_reward_models),
#ifdef RK_FAULTS
        cmocka_unit_test(test_verify_takes_a_larger_reference),
        cmocka_unit_test(test_verify_names_the_tensor_that_differs),
#endif
        cmocka_unit_test(test_verify_with_no_tolerance_differs),
        cmocka_unit_test(test_verify_wide_models_have_a_larger_tolerance),
        cmocka_unit_test(test_verify_refuses_bad_input),
        cmocka_unit_test(test_verify_hosts_need_a_directory),
    };

    skip_without_devices(2);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
