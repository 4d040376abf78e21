/* Runs with several models on the same daemons, each with its own mesh: their total memory is planned, shown,
 * and checked before any of them is loaded. */
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/proc/cli_fixture.h"

#define ACTOR       "actor_rollout_ref.actor."
#define ROLLOUT     "actor_rollout_ref.rollout."
#define TP          "megatron.tensor_model_parallel_size="
#define TEACHER     "distillation.teacher."
#define TEACHER_2   "distillation.teacher_2."
#define NUM_DAEMONS 2
#define ARGS_MAX    40

/* Actor, rollout, reference and critic on two daemons. The rollout is small, the critic larger than all. */
#define FOUR_ROLES                                                                                        \
    "algorithm.adv_estimator=gae", ACTOR "use_kl_loss=true", ACTOR TP "2", "critic." TP "1",              \
        "actor_rollout_ref.ref." TP "1", ACTOR "ppo_max_token_len_per_gpu=64",                            \
        ACTOR "ppo_mini_batch_size=4", "critic.ppo_max_token_len_per_gpu=4096", ROLLOUT "max_num_seqs=4", \
        ROLLOUT "max_num_batched_tokens=16"

/* The tiny job for one step on these daemons ("--local=2", "--hosts=..."), with `more`, NULL-terminated. */
static struct outcome run_on(const char *daemons, const char *dir, const char *const *more)
{
    const char *args[ARGS_MAX] = {
        "run", TINY_JOB, "--run-dir", dir, daemons, TINY, "trainer.total_training_steps=1"};

    append_args(args, ARGS_MAX, more);
    return run_rankctl(args);
}

/* Path of the model of a run; rk_free it. */
static char *make_teacher(void)
{
    char *dir = new_run_dir(), *model = rk_path_join(dir, "hf");
    struct outcome outcome = run_on("--local=1", dir, (const char *const[]){ACTOR TP "1", NULL});

    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    rk_free(dir);
    return model;
}

static int64_t int_at(const struct rk_json *json, const char *path)
{
    return rk_json_as_int(rk_json_find_path(json, path), -1);
}

/* Plan of a role on rank 0 in memory_plan.json. */
static const struct rk_json *role_of(const struct rk_json *plan, const char *name)
{
    const struct rk_json *roles = rk_json_find(rk_json_at(rk_json_find(plan, "ranks"), 0), "roles");

    for (int64_t i = 0; i < rk_json_count(roles); i++) {
        if (strcmp(rk_json_as_string(rk_json_find(rk_json_at(roles, i), "role"), ""), name) == 0)
            return rk_json_at(roles, i);
    }
    fail_msg("the plan has no role %s", name);
    return NULL;
}

/* Goal: six roles with different tensor-parallel sizes train together. Their plans are in the run's
 * directory and in the table, whose total is the sum of the roles. */
static void test_run_of_six_roles_shows_their_sum(void **state)
{
    static const char *const names[] = {"actor", "ref", "critic", "teacher", "teacher_2", "rollout"};
    char *dir = new_run_dir(), *teacher = make_teacher(), *path = rk_format(TEACHER "model.path=%s", teacher);
    char *second = rk_format(TEACHER_2 "model.path=%s", teacher);
    struct outcome outcome = run_on("--local=2", dir,
                                    (const char *const[]){FOUR_ROLES, "distillation.enabled=true", path,
                                                          TEACHER TP "2", TEACHER "key=digits", second,
                                                          TEACHER_2 TP "1", TEACHER_2 "key=none", NULL});
    struct rk_json *plan;
    const struct rk_json *rank;
    int64_t sum = 0;

    (void)state;
    assert_exit(&outcome, 0);
    assert_text("stderr", outcome.err, "memory plan of rank ");
    assert_text("stderr", outcome.err, "teacher_2.key=none: no row of data.train_files has this value");
    plan = read_json(dir, "memory_plan.json");
    assert_true(rk_json_as_bool(rk_json_find(plan, "fits"), false));
    assert_int_equal(rk_json_count(rk_json_find(plan, "ranks")), NUM_DAEMONS);
    rank = rk_json_at(rk_json_find(plan, "ranks"), 0);
    for (size_t i = 0; i < RK_ARRAY_LEN(names); i++) {
        const struct rk_json *role = role_of(plan, names[i]);
        char *line = rk_format("\n%-8s", names[i]);

        assert_text("stderr", outcome.err, line);
        assert_true(int_at(role, "added") > 0);
        sum += int_at(role, "added");
        rk_free(line);
    }
    assert_int_equal(sum, int_at(rank, "sum"));
    if (!is_on_gpus()) { /* both use the host's memory: the sums are equal */
        const struct rk_json *shared = rk_json_at(rk_json_find(plan, "shared"), 0);

        assert_text("stderr", outcome.err, "\nranks 0, 1 share memory: sum ");
        assert_int_equal(int_at(shared, "sum"), NUM_DAEMONS * sum);
    }
    assert_int_equal(int_at(rank, "left"), int_at(rank, "free") - sum);
    assert_int_equal(int_at(role_of(plan, "rollout"), "planned.parameters"), 0);
    assert_true(int_at(role_of(plan, "rollout"), "planned.kv_cache") > 0);
    /* The actor is split in two; the reference is not split, and has no gradients. */
    assert_true(int_at(role_of(plan, "ref"), "planned.parameters") >
                int_at(role_of(plan, "actor"), "planned.parameters"));
    assert_int_equal(int_at(role_of(plan, "ref"), "planned.gradients"), 0);
    assert_true(int_at(role_of(plan, "teacher_2"), "planned.parameters") >
                int_at(role_of(plan, "teacher"), "planned.parameters"));
    rk_json_free(plan);
    outcome_fini(&outcome);
    rk_free(second);
    rk_free(path);
    rk_free(teacher);
    rk_free(dir);
}

/* Rank 0's report of the role. */
static struct rk_json *memory_report(const char *hosts, const char *role)
{
    char *method = rk_format("%s.memory_report", role);
    struct outcome outcome = run_rankctl((const char *const[]){"call", method, hosts, "--output=json", NULL});
    struct rk_json *result, *report;

    assert_exit(&outcome, 0);
    result = parse_json(outcome.out);
    report = rk_json_clone(rk_json_at(rk_json_find(result, "outputs"), 0));
    rk_json_free(result);
    outcome_fini(&outcome);
    rk_free(method);
    return report;
}

/* A limit within which actor and reference fit, and half of the critic, for any rollout. */
static int64_t find_limit(void)
{
    char *dir = new_run_dir();
    struct outcome outcome = run_on("--local=2", dir, (const char *const[]){FOUR_ROLES, NULL});
    struct rk_json *plan;
    const struct rk_json *device;
    int64_t critic, limit;

    assert_exit(&outcome, 0);
    plan = read_json(dir, "memory_plan.json");
    device = rk_json_find(rk_json_at(rk_json_find(plan, "ranks"), 0), "device");
    critic = int_at(role_of(plan, "critic"), "added");
    assert_true(critic / 2 > int_at(role_of(plan, "rollout"), "added")); /* the rest runs without a critic */
    limit = int_at(device, "allocated") + int_at(device, "own") + int_at(role_of(plan, "actor"), "added") +
            int_at(role_of(plan, "ref"), "added") + critic / 2;
    rk_json_free(plan);
    outcome_fini(&outcome);
    rk_free(dir);
    return limit;
}

static struct rk_proc *start_limited(int index, int64_t limit_bytes)
{
    char *limit = rk_format("--limits.device_memory=%lldB", (long long)limit_bytes);
    struct rk_proc *daemon = start_daemon_on(index, limit);

    rk_free(limit);
    return daemon;
}

/* Goal: a critic that does not fit is reported, with the table and suggestions, before any role has a model.
 * The daemons survive, and a job without the critic runs on them. */
static void test_run_with_a_role_too_much_loads_nothing(void **state)
{
    const char *const texts[] = {
        "memory plan of rank ",
        "\ncritic  ",
        "role critic does not fit into the memory of rank ",
        /* On a GPU the operators' workspace is larger than these models; it is counted for the first role. */
        is_on_gpus() ? "the largest role is actor with " : "the largest role is critic with ",
        "nothing was loaded",
        "lower critic.ppo_max_token_len_per_gpu",
    };
    static const char *const roles[] = {"actor", "ref", "critic", "rollout"};
    struct rk_proc *daemons[NUM_DAEMONS];
    char *dir = new_run_dir(), *smaller = new_run_dir(), *hosts;
    int64_t limit = find_limit();
    struct outcome outcome;
    struct rk_json *plan, *report;

    (void)state;
    for (int i = 0; i < NUM_DAEMONS; i++)
        daemons[i] = start_limited(i, limit);
    hosts = rk_format("--hosts=%s,%s", rk_proc_address(daemons[0]), rk_proc_address(daemons[1]));
    outcome = run_on(hosts, dir, (const char *const[]){FOUR_ROLES, NULL});
    assert_exit(&outcome, 1);
    for (size_t i = 0; i < RK_ARRAY_LEN(texts); i++)
        assert_text("stderr", outcome.err, texts[i]);
    outcome_fini(&outcome);
    plan = read_json(dir, "memory_plan.json");
    assert_false(rk_json_as_bool(rk_json_find(plan, "fits"), true));
    for (size_t i = 0; i < RK_ARRAY_LEN(roles); i++) {
        assert_true(int_at(role_of(plan, roles[i]), "added") > 0);
        report = memory_report(hosts, roles[i]);
        assert_string_equal(rk_json_as_string(rk_json_find(report, "state"), ""), "EMPTY");
        assert_int_equal(int_at(report, "held.total"), 0);
        rk_json_free(report);
    }
    rk_json_free(plan);

    outcome = run_on(
        hosts, smaller,
        (const char *const[]){FOUR_ROLES, "algorithm.adv_estimator=grpo", "critic.enable=false", NULL});
    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    for (int i = 0; i < NUM_DAEMONS; i++)
        rk_proc_destroy(daemons[i]);
    rk_free(hosts);
    rk_free(smaller);
    rk_free(dir);
}

/* Goal: a run's plan equals the memory that its roles then use. A second run on the same daemons has the same
 * plan: memory of models that will be replaced counts as free. */
static void test_run_on_daemons_with_models_plans_the_same(void **state)
{
    static const char *const roles[] = {"actor", "ref", "critic", "rollout"};
    struct rk_proc *daemons[NUM_DAEMONS];
    struct rk_json *plans[2];
    char *hosts;

    (void)state;
    for (int i = 0; i < NUM_DAEMONS; i++)
        daemons[i] = start_limited(i, (int64_t)512 << 20);
    hosts = rk_format("--hosts=%s,%s", rk_proc_address(daemons[0]), rk_proc_address(daemons[1]));
    for (int i = 0; i < 2; i++) {
        char *dir = new_run_dir();
        struct outcome outcome =
            run_on(hosts, dir, (const char *const[]){FOUR_ROLES, ROLLOUT "gpu_memory_utilization=0.5", NULL});

        assert_exit(&outcome, 0);
        plans[i] = read_json(dir, "memory_plan.json");
        outcome_fini(&outcome);
        rk_free(dir);
    }
    for (int64_t rank = 0; rank < NUM_DAEMONS; rank++) {
        const struct rk_json *first = rk_json_at(rk_json_find(plans[0], "ranks"), rank);
        const struct rk_json *second = rk_json_at(rk_json_find(plans[1], "ranks"), rank);

        /* Operators keep their workspace, which is not planned on the CPU. */
        assert_in_range(int_at(first, "left") - int_at(second, "left"), 0, int_at(second, "device.own"));
        assert_true(int_at(second, "device.free") < int_at(first, "device.free"));
    }
    for (size_t i = 0; i < RK_ARRAY_LEN(roles); i++) {
        const struct rk_json *planned = rk_json_find(role_of(plans[1], roles[i]), "planned");
        struct rk_json *report = memory_report(hosts, roles[i]);

        assert_true(rk_json_equal(planned, rk_json_find(role_of(plans[0], roles[i]), "planned")));
        assert_true(rk_json_equal(planned, rk_json_find(report, "planned")));
        assert_true(int_at(report, "held.total") > 0);
        rk_json_free(report);
    }
    for (int i = 0; i < 2; i++)
        rk_json_free(plans[i]);
    for (int i = 0; i < NUM_DAEMONS; i++)
        rk_proc_destroy(daemons[i]);
    rk_free(hosts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run_of_six_roles_shows_their_sum),
        cmocka_unit_test(test_run_with_a_role_too_much_loads_nothing),
        cmocka_unit_test(test_run_on_daemons_with_models_plans_the_same),
    };

    skip_without_devices(NUM_DAEMONS);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
