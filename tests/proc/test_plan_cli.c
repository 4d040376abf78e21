/* rankctl plan: the memory of a run on that many daemons, from one daemon that loads nothing. */
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/proc/cli_fixture.h"

#define ACTOR    "actor_rollout_ref.actor."
#define ROLLOUT  "actor_rollout_ref.rollout."
#define TP       "megatron.tensor_model_parallel_size="
#define PP       "megatron.pipeline_model_parallel_size="
#define ARGS_MAX 40

/* rankctl plan with the tiny job for `world` ranks. */
static struct outcome plan_for(const char *world, const char *const *more)
{
    const char *args[ARGS_MAX] = {"plan", TINY_JOB, world, TINY};

    append_args(args, ARGS_MAX, more);
    return run_rankctl(args);
}

static struct outcome run_on(const char *local, const char *dir, const char *const *more)
{
    const char *args[ARGS_MAX] = {
        "run", TINY_JOB, "--run-dir", dir, local, TINY, "trainer.total_training_steps=1"};

    append_args(args, ARGS_MAX, more);
    return run_rankctl(args);
}

static int64_t int_at(const struct rk_json *json, const char *path)
{
    return rk_json_as_int(rk_json_find_path(json, path), -1);
}

/* All figures of all ranks except free memory, which changes constantly. */
static void assert_same_plan(const struct rk_json *planned, const struct rk_json *ran, int64_t num_ranks)
{
    static const char *const lists[] = {"planned", "communication", "num_kv_blocks", "added", "role"};
    const struct rk_json *of_plan = rk_json_find(planned, "ranks"), *of_run = rk_json_find(ran, "ranks");

    assert_int_equal(rk_json_count(of_plan), num_ranks);
    assert_int_equal(rk_json_count(of_run), num_ranks);
    for (int64_t rank = 0; rank < num_ranks; rank++) {
        const struct rk_json *a = rk_json_at(of_plan, rank), *b = rk_json_at(of_run, rank);
        int64_t num_roles = rk_json_count(rk_json_find(b, "roles"));

        assert_int_equal(int_at(a, "rank"), rank);
        assert_int_equal(int_at(a, "sum"), int_at(b, "sum"));
        assert_true(int_at(a, "sum") > 0);
        assert_int_equal(rk_json_count(rk_json_find(a, "roles")), num_roles);
        for (int64_t i = 0; i < num_roles; i++) {
            for (size_t k = 0; k < RK_ARRAY_LEN(lists); k++)
                assert_true(rk_json_equal(rk_json_find(rk_json_at(rk_json_find(a, "roles"), i), lists[k]),
                                          rk_json_find(rk_json_at(rk_json_find(b, "roles"), i), lists[k])));
        }
    }
}

/* Plans for and runs on `count` daemons, and compares. */
static void check_against_run(int64_t count, const char *const *more)
{
    char *world = rk_format("--world=%d", (int)count), *local = rk_format("--local=%d", (int)count);
    char *dir = new_run_dir();
    const char *args[ARGS_MAX] = {"plan", TINY_JOB, world, TINY, "--output=json"};
    struct outcome planned, ran = run_on(local, dir, more);
    struct rk_json *answer, *plan;

    append_args(args, ARGS_MAX, more);
    planned = run_rankctl(args);
    assert_exit(&ran, 0);
    assert_exit(&planned, 0);
    answer = parse_json(planned.out);
    plan = read_json(dir, "memory_plan.json");
    assert_int_equal(int_at(answer, "world_size"), count);
    assert_same_plan(rk_json_find(answer, "memory"), plan, count);
    rk_json_free(plan);
    rk_json_free(answer);
    outcome_fini(&planned);
    outcome_fini(&ran);
    rk_free(dir);
    rk_free(local);
    rk_free(world);
}

/* Goal: the plan of tp 2, dp 2 by one daemon equals that of four daemons that train. */
static void test_plan_equals_run_tp2_dp2(void **state)
{
    (void)state;
    check_against_run(4, (const char *const[]){ACTOR TP "2", NULL});
}

/* Goal: the same for roles with different meshes, whose ranks share the memory of ordered sums. */
static void test_plan_equals_run_of_several_meshes(void **state)
{
    (void)state;
    check_against_run(4, (const char *const[]){"algorithm.adv_estimator=gae", ACTOR "use_kl_loss=true",
                                               ACTOR TP "2", "critic." TP "4",
                                               "actor_rollout_ref.ref." TP "1", "numerics=strict", NULL});
}

/* Goal: the same if weights are moved to a rollout with a separate mesh, for which ranks differ. */
static void test_plan_equals_run_with_a_mesh_of_the_rollout(void **state)
{
    (void)state;
    check_against_run(4, (const char *const[]){ACTOR TP "2", ROLLOUT "tensor_model_parallel_size=1",
                                               ROLLOUT "ranks=1-3", ROLLOUT "max_num_seqs=8", NULL});
}

/* Goal: the same for ranks with different experts, whose rollout has a mesh of its own. */
static void test_plan_equals_run_of_experts(void **state)
{
    (void)state;
    check_against_run(4, (const char *const[]){"actor_rollout_ref.model.hf_config_path=" RK_TEST_SOURCE_DIR
                                               "/examples/digits/config-moe.json",
                                               ACTOR TP "1", ACTOR "megatron.expert_model_parallel_size=4",
                                               ROLLOUT "tensor_model_parallel_size=2", NULL});
    check_against_run(4, (const char *const[]){"actor_rollout_ref.model.hf_config_path=" RK_TEST_SOURCE_DIR
                                               "/examples/digits/config-moe.json",
                                               ACTOR TP "2", ACTOR "megatron.expert_model_parallel_size=2",
                                               ACTOR "megatron.expert_tensor_parallel_size=1", NULL});
}

/* Goal: the same for pipeline stages, which have different numbers of micro-batches in flight. */
static void test_plan_equals_run_with_pipelines(void **state)
{
    (void)state;
    check_against_run(4,
                      (const char *const[]){"algorithm.adv_estimator=gae", ACTOR TP "2", ACTOR PP "2",
                                            "critic." PP "2", ROLLOUT "tensor_model_parallel_size=1", NULL});
}

/* Goal: the output has layout, memory and rates. */
static void test_plan_shows_layout_and_rates(void **state)
{
    static const char *const texts[] = {
        "on 8 ranks",
        "actor     tp=2 dp=4 on 8 ranks; layers 0-1 +embedding +head",
        "tp of 2",
        "dp of 4",
        "all of 8",
        "memory plan of rank ",
        "update of the actor: ",
        "no pipeline",
        "assumed: 100 TFLOP/s peak and 50% of it",
        " tokens/s, ",
        "GiB are free on the device of each rank",
    };
    struct outcome outcome =
        plan_for("--world=8", (const char *const[]){ACTOR TP "2", "--peak-tflops=100", "--mfu=0.5",
                                                    "--device-memory=1GiB", NULL});

    (void)state;
    assert_exit(&outcome, 0);
    for (size_t i = 0; i < RK_ARRAY_LEN(texts); i++)
        assert_text("stdout", outcome.out, texts[i]);
    outcome_fini(&outcome);
}

/* Goal: a job for a device that this machine does not have is planned anyway, and the assumptions are
 * printed. */
static void test_plan_for_a_device_that_is_not_here(void **state)
{
    struct outcome outcome;

    (void)state;
    if (has_devices(1) && is_on_gpus())
        rk_test_skip("this machine has the device");
    outcome = plan_for("--world=2", (const char *const[]){ACTOR TP "2", "device=cuda", NULL});
    assert_exit(&outcome, 0);
    assert_text("stdout", outcome.out, "on 2 ranks, device cuda");
    assert_text("stdout", outcome.out, "no device cuda");
    assert_text("stdout", outcome.out, "assumed: 80.00 GiB are free on the device of each rank");
    assert_text("stdout", outcome.out, "assumed: 989 TFLOP/s peak");
    outcome_fini(&outcome);
}

/* Goal: roles that do not fit are rejected as by run, after the table, with exit code 1. */
static void test_plan_that_does_not_fit(void **state)
{
    struct outcome outcome = plan_for(
        "--world=2", (const char *const[]){ACTOR TP "2", "--device-memory=2MiB", "--output=json", NULL});
    struct rk_json *answer;

    (void)state;
    assert_exit(&outcome, 1);
    assert_text("stderr", outcome.err, "role actor does not fit into the memory of rank 0");
    assert_text("stderr", outcome.err, "nothing was loaded");
    answer = parse_json(outcome.out);
    assert_string_equal(rk_json_as_string(rk_json_find_path(answer, "error.reason"), ""), "DEVICE_OOM");
    assert_false(rk_json_as_bool(rk_json_find_path(answer, "memory.fits"), true));
    rk_json_free(answer);
    outcome_fini(&outcome);
}

/* Goal: a layout that run rejects is rejected with the same message and exit code. */
static void test_plan_refuses_what_run_refuses(void **state)
{
    static const struct {
        const char *world, *local, *more[3], *message;
    } cases[] = {
        {"--world=3", "--local=3", {ACTOR TP "2"}, "3"},
        {"--world=2",
         "--local=2",
         {ACTOR TP "1", ACTOR "megatron.expert_model_parallel_size=2"},
         ACTOR "megatron.expert_model_parallel_size=2 of role actor: expected 1"},
        {"--world=2",
         "--local=2",
         {ACTOR TP "1", ACTOR "megatron.override_transformer_config.moe_dispatch_tokens=64"},
         ACTOR "megatron.override_transformer_config.moe_dispatch_tokens=64 of role actor: expected null"},
        {"--world=2",
         "--local=2",
         {ACTOR TP "1", ACTOR "megatron.override_transformer_config.moe_keep_dispatched=true"},
         ACTOR "megatron.override_transformer_config.moe_keep_dispatched=true of role actor: expected false"},
        {"--world=2",
         "--local=2",
         {ACTOR TP "2", ACTOR "megatron.expert_tensor_parallel_size=1"},
         ACTOR "megatron.expert_tensor_parallel_size=1 of role actor: expected null"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char *dir = new_run_dir();
        struct outcome planned = plan_for(cases[i].world, cases[i].more);
        struct outcome ran = run_on(cases[i].local, dir, cases[i].more);

        assert_exit(&ran, 2);
        assert_exit(&planned, 2);
        assert_text("stderr", ran.err, cases[i].message);
        assert_string_equal(planned.err, ran.err);
        outcome_fini(&planned);
        outcome_fini(&ran);
        rk_free(dir);
    }
}

#define MOE_DIGITS \
    "actor_rollout_ref.model.hf_config_path=" RK_TEST_SOURCE_DIR "/examples/digits/config-moe.json"
#define BUFFER ACTOR "megatron.override_transformer_config.moe_dispatch_tokens=64"

/* Goal: a bound of the exchange is told, once, to have no effect on a model with experts whose ranks have all
 * of them. */
static void test_plan_warns_of_a_bound_without_exchange(void **state)
{
    static const struct {
        const char *ep;
        bool warns;
    } cases[] = {{ACTOR "megatron.expert_model_parallel_size=1", true},
                 {ACTOR "megatron.expert_model_parallel_size=2", false}};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct outcome outcome =
            plan_for("--world=2", (const char *const[]){MOE_DIGITS, ACTOR TP "1", cases[i].ep, BUFFER, NULL});
        const char *found = strstr(outcome.err, BUFFER);

        assert_exit(&outcome, 0);
        assert_int_equal(found != NULL, cases[i].warns);
        assert_null(found ? strstr(found + 1, BUFFER) : NULL);
        outcome_fini(&outcome);
    }
}

static void test_plan_refuses_bad_options(void **state)
{
    static const char *const options[] = {"--world=0", "--world=x", "--device-memory=80", "--mfu=1.5",
                                          "--peak-tflops=-1"};
    struct outcome outcome = plan_for("data.seed=1", NULL);

    (void)state;
    assert_exit(&outcome, 2); /* without --world */
    assert_text("stderr", outcome.err, "--world");
    outcome_fini(&outcome);
    for (size_t i = 0; i < RK_ARRAY_LEN(options); i++) {
        const char *args[ARGS_MAX] = {"plan", TINY_JOB, options[i], i > 1 ? "--world=4" : NULL};

        outcome = run_rankctl(args);
        assert_exit(&outcome, 2);
        assert_text("stderr", outcome.err, options[i]);
        outcome_fini(&outcome);
    }
}

/* Goal: a daemon in a dry run plans, and rejects init_model. */
static void test_plan_daemon_builds_no_model(void **state)
{
    struct rk_proc *daemon = start_daemon((const char *const[]){"--dry_run=true", NULL});
    char *hosts = rk_format("--hosts=%s", rk_proc_address(daemon)), *dir = new_run_dir();
    struct outcome outcome = run_on(hosts, dir, (const char *const[]){ACTOR TP "1", NULL});
    struct rk_json *plan;

    (void)state;
    assert_exit(&outcome, 1);
    assert_text("stderr", outcome.err, "dry_run=true");
    plan = read_json(dir, "memory_plan.json");
    assert_true(rk_json_as_bool(rk_json_find(plan, "fits"), false));
    rk_json_free(plan);
    outcome_fini(&outcome);
    rk_proc_destroy(daemon);
    rk_free(dir);
    rk_free(hosts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_equals_run_tp2_dp2),
        cmocka_unit_test(test_plan_equals_run_of_several_meshes),
        cmocka_unit_test(test_plan_equals_run_with_a_mesh_of_the_rollout),
        cmocka_unit_test(test_plan_equals_run_with_pipelines),
        cmocka_unit_test(test_plan_equals_run_of_experts),
        cmocka_unit_test(test_plan_shows_layout_and_rates),
        cmocka_unit_test(test_plan_for_a_device_that_is_not_here),
        cmocka_unit_test(test_plan_that_does_not_fit),
        cmocka_unit_test(test_plan_refuses_what_run_refuses),
        cmocka_unit_test(test_plan_warns_of_a_bound_without_exchange),
        cmocka_unit_test(test_plan_refuses_bad_options),
        cmocka_unit_test(test_plan_daemon_builds_no_model),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
