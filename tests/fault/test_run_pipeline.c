/* A rank of a run is killed (SIGKILL) or stopped (SIGSTOP) at a known point: before a message of a pipeline,
 * a bucket of update_weights, or a copy between device and host. The run ends with one message that names the
 * rank, its mesh coordinates, the call and the operation of a survivor; the survivors are released and serve
 * the next run, and so does a stopped daemon after SIGCONT.
 *
 * Fault points stop the rank at that point, so the test does not depend on the machine's speed. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/config/rk_config.h"
#include "base/rk_env.h"
#include "base/rk_str.h"
#include "base/rk_time.h"
#include "tests/proc/cli_fixture.h"

#define ACTOR     "actor_rollout_ref.actor."
#define ROLLOUT   "actor_rollout_ref.rollout."
#define MAX_RANKS 4
#define MAX_KEYS  8
#define MAX_ARGS  48
/* The driver's keepalive finds a silent daemon in 8 s; GIVE_UP_MS of an abort may follow. */
#define VERDICT_MS 25000

struct group {
    int num_ranks;
    struct rk_proc *daemons[MAX_RANKS];
    char *hosts; /* of all */
};

static void name_hosts(struct group *group)
{
    struct rk_str hosts = {0};

    for (int r = 0; r < group->num_ranks; r++)
        rk_str_appendf(&hosts, "%s%s", r ? "," : "", rk_proc_address(group->daemons[r]));
    rk_free(group->hosts);
    group->hosts = rk_str_take(&hosts);
}

static struct rk_proc *start_faulty(int rank, const char *fault)
{
    struct rk_proc *daemon;

    if (fault)
        setenv("RANKD_FAULTS", fault, 1);
    daemon = start_daemon_on(rank, NULL);
    unsetenv("RANKD_FAULTS");
    return daemon;
}

static struct group start_group(int num_ranks, int faulty, const char *fault)
{
    struct group group = {.num_ranks = num_ranks};

    for (int r = 0; r < num_ranks; r++)
        group.daemons[r] = start_faulty(r, r == faulty ? fault : NULL);
    name_hosts(&group);
    return group;
}

/* Stops every daemon like a service manager: with LeakSanitizer it exits with 0 only without leaks. */
static void stop_group(struct group *group)
{
    for (int r = 0; r < group->num_ranks; r++)
        rk_proc_signal(group->daemons[r], SIGTERM);
    for (int r = 0; r < group->num_ranks; r++) {
        assert_int_equal(rk_proc_wait(group->daemons[r], 30000), 0);
        rk_proc_destroy(group->daemons[r]);
    }
    rk_free(group->hosts);
}

static struct rk_proc *start_run(const char *hosts, const char *dir, const char *const *keys)
{
    const char *args[MAX_ARGS] = {"run", TINY_JOB, "--hosts", hosts, "--run-dir", dir, TINY};

    append_args(args, MAX_ARGS, keys);
    return start_rankctl(args);
}

/* A continued daemon still has the lease of its old run for a while: --takeover. */
static void assert_run_succeeds(const char *hosts, const char *const *keys)
{
    const char *args[MAX_KEYS + 2] = {"--takeover"};
    char *dir = new_run_dir();
    struct outcome outcome;

    append_args(args, RK_ARRAY_LEN(args), keys);
    outcome = finish_rankctl(start_run(hosts, dir, args), 60000);

    assert_exit(&outcome, 0);
    assert_int_equal(count_metrics(dir), TINY_STEPS);
    outcome_fini(&outcome);
    rk_free(dir);
}

/* --- faults --- */

struct layout {
    int num_ranks;
    const char *keys[MAX_KEYS];
};

static const struct layout pp2 = {2,
                                  {ACTOR "megatron.tensor_model_parallel_size=1",
                                   ACTOR "megatron.pipeline_model_parallel_size=2",
                                   ACTOR "use_dynamic_bsz=false", ACTOR "ppo_micro_batch_size_per_gpu=2"}};
static const struct layout tp2_pp2 = {
    4,
    {ACTOR "megatron.tensor_model_parallel_size=2", ACTOR "megatron.pipeline_model_parallel_size=2",
     ACTOR "use_dynamic_bsz=false", ACTOR "ppo_micro_batch_size_per_gpu=2"}};
/* The rollout's mesh is not the actor's: update_weights moves the weights. */
static const struct layout other_rollout = {
    2, {ACTOR "megatron.tensor_model_parallel_size=2", ROLLOUT "tensor_model_parallel_size=1"}};
static const struct layout offload = {
    2,
    {ACTOR "megatron.tensor_model_parallel_size=1", ACTOR "megatron.pipeline_model_parallel_size=2",
     ACTOR "megatron.param_offload=true", ACTOR "megatron.optimizer_offload=true"}};

struct fault_case {
    const char *label;
    const struct layout *layout;
    int rank; /* the faulty one */
    const char *fault;
    /* rankctl's message: the rank's coordinates, the call, and the operation of a survivor, NULL if it may
     * have ended before. */
    const char *place, *call, *seen[4];
};

#define KILLED_IN_TRAIN                                                                              \
    {                                                                                                \
        "stage 0 of 2, pipeline.exchange: ", "the backward of micro-batch 0 of 4 from stage 1",      \
            "rank 0 says: because of rank 1 (actor: pp 1 of 2)", "batch of group pp: rank 1 is lost" \
    }

static const struct fault_case killed[] = {
    {"a message of an update", &pp2, 1, "pipeline.train=kill@2", "pp 1 of 2", "actor.update_actor",
     KILLED_IN_TRAIN},
    {"a message of a forward pass",
     &pp2,
     0,
     "pipeline.forward=kill@2",
     "pp 0 of 2",
     "actor.compute_log_prob",
     {"stage 1 of 2, pipeline.exchange: receives the forward of micro-batch 1 of", " from stage 0",
      "rank 1 says: because of rank 0 (actor: pp 0 of 2)", "batch of group pp: rank 0 is lost"}},
    {"a message of an update, with tp",
     &tp2_pp2,
     3,
     "pipeline.train=kill@2",
     "tp 1 of 2, pp 1 of 2",
     "actor.update_actor",
     {" says: because of rank 3 (actor: tp 1 of 2, pp 1 of 2): stage ", "micro-batch 0 of 4"}},
    {"a bucket of update_weights",
     &other_rollout,
     1,
     "reshard.round=kill",
     "dp 1 of 2",
     "rollout.update_weights",
     {"rank 0 says: because of rank 1 (rollout: dp 1 of 2): moving weights from mesh tp=2 to dp=2: ",
      "bucket 0 of 1 ('", "rank 1 is lost"}},
    {"parts on their way to the device",
     &offload,
     1,
     "onload.copy=kill@4",
     "pp 1 of 2",
     "actor.update_actor",
     {"rank 0 says: because of rank 1 (actor: pp 1 of 2): copying parts of the model to the device: ",
      "rank 1 is lost"}},
    {"parts on their way to host memory",
     &offload,
     1,
     "offload.copy=kill@5",
     "pp 1 of 2",
     "actor.update_actor",
     {NULL}},
};

static const struct fault_case stopped[] = {
    {"a message of an update",
     &pp2,
     1,
     "pipeline.train=stop@2",
     "pp 1 of 2",
     "actor.update_actor",
     {"stage 0 of 2, pipeline.exchange: ", "the backward of micro-batch 0 of 4 from stage 1",
      "rank 1 of the call failed: UNAVAILABLE"}},
    {"a message of a forward pass, with tp",
     &tp2_pp2,
     0,
     "pipeline.forward=stop@2",
     "tp 0 of 2, pp 0 of 2",
     "actor.compute_log_prob",
     /* Micro-batch 1 or 2: the other rank of its stage may have continued. */
     {"stage ", " of micro-batch ", "rank 0 of the call failed: UNAVAILABLE"}},
    {"a bucket of update_weights",
     &other_rollout,
     1,
     "reshard.round=stop",
     "dp 1 of 2",
     "rollout.update_weights",
     {"moving weights from mesh tp=2 to dp=2: bucket 0 of 1 ('", "rank 1 of the call failed: UNAVAILABLE"}},
    {"parts on their way to the device",
     &offload,
     1,
     "onload.copy=stop@4",
     "pp 1 of 2",
     "actor.update_actor",
     {"copying parts of the model to the device: ", "rank 1 of the call failed: UNAVAILABLE"}},
};

static int count_of(const char *text, const char *part)
{
    int count = 0;

    while ((text = strstr(text, part)) != NULL) {
        count++;
        text += strlen(part);
    }
    return count;
}

/* One message with all of this information. */
static void assert_told(const struct fault_case *fault, const struct outcome *outcome)
{
    char *named = rk_format("rank %d): UNAVAILABLE", fault->rank);
    char *placed = rk_format("; rank %d is %s of role '", fault->rank, fault->place);

    assert_exit(outcome, 1);
    assert_text("stderr", outcome->err, named);
    assert_text("stderr", outcome->err, placed);
    assert_text("stderr", outcome->err, fault->call);
    for (size_t i = 0; i < RK_ARRAY_LEN(fault->seen) && fault->seen[i]; i++)
        assert_text("stderr", outcome->err, fault->seen[i]);
    assert_text("stderr", outcome->err, "start the lost daemon again");
    assert_int_equal(count_of(outcome->err, named), 1);
    rk_free(placed);
    rk_free(named);
}

static void assert_answers(struct rk_proc *daemon)
{
    struct outcome outcome =
        run_rankctl((const char *const[]){"status", "--hosts", rk_proc_address(daemon), NULL});

    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
}

/* The run up to the message; the survivors respond. Returns the seconds from the fault to the end. */
static void run_into(const struct fault_case *fault, struct group *group)
{
    char *dir = new_run_dir();
    struct rk_proc *run;
    struct outcome outcome;
    int64_t since_ns;

    print_message("%s\n", fault->label);
    *group = start_group(fault->layout->num_ranks, fault->rank, fault->fault);
    run = start_run(group->hosts, dir, fault->layout->keys);
    wait_stderr(group->daemons[fault->rank], ": acting", 60000);
    since_ns = rk_time_now_ns();
    outcome = finish_rankctl(run, VERDICT_MS);
    print_message("rankctl ended %.2f s after the fault: %s", (double)(rk_time_now_ns() - since_ns) / 1e9,
                  strstr(outcome.err, "rankctl: ") ? strstr(outcome.err, "rankctl: ") : outcome.err);
    assert_told(fault, &outcome);
    outcome_fini(&outcome);
    for (int r = 0; r < group->num_ranks; r++) {
        if (r != fault->rank)
            assert_answers(group->daemons[r]);
    }
    rk_free(dir);
}

/* Goal: see above. The survivors then serve a run alone, and one with a new daemon. */
static void test_run_rank_killed_at_a_known_place_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(killed); i++) {
        const struct fault_case *fault = &killed[i];
        static const char *const alone[] = {ACTOR "megatron.tensor_model_parallel_size=1", NULL};
        struct group group;

        run_into(fault, &group);
        assert_int_equal(rk_proc_wait(group.daemons[fault->rank], 1000), -SIGKILL);
        rk_proc_destroy(group.daemons[fault->rank]);
        if (i == 0)
            assert_run_succeeds(rk_proc_address(group.daemons[0]), alone);
        group.daemons[fault->rank] = start_faulty(fault->rank, NULL);
        name_hosts(&group);
        assert_run_succeeds(group.hosts, fault->layout->keys);
        stop_group(&group);
    }
}

/* Goal: see above. After SIGCONT the stopped daemon takes part in the next run. */
static void test_run_rank_stopped_at_a_known_place_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(stopped); i++) {
        const struct fault_case *fault = &stopped[i];
        struct group group;

        run_into(fault, &group);
        rk_proc_signal(group.daemons[fault->rank], SIGCONT);
        assert_run_succeeds(group.hosts, fault->layout->keys);
        stop_group(&group);
    }
}

/* --- resources of a survivor --- */

static int64_t count_fds(const struct rk_proc *proc)
{
    char *path = rk_format("/proc/%d/fd", (int)rk_proc_pid(proc));
    int64_t count = rk_test_count_entries(path);

    rk_free(path);
    return count;
}

static int64_t resident_kib(const struct rk_proc *proc)
{
    char *path = rk_format("/proc/%d/status", (int)rk_proc_pid(proc)), *text = rk_test_read_file(path, NULL);
    const char *line = strstr(text, "VmRSS:");
    int64_t kib = line ? strtoll(line + strlen("VmRSS:"), NULL, 10) : 0;

    assert_true(kib > 0);
    rk_free(text);
    rk_free(path);
    return kib;
}

/* Connections of a driver that has exited are closed a moment later. */
static void wait_fds(const struct rk_proc *proc, int64_t expected)
{
    int64_t end_ns = rk_time_now_ns() + rk_proc_timeout_ms(10000) * 1000000;

    while (count_fds(proc) > expected) {
        if (rk_time_now_ns() > end_ns)
            fail_msg("%lld open files, %lld before", (long long)count_fds(proc), (long long)expected);
        rk_time_sleep_ms(10);
    }
}

/* Rank 1 is killed in an update; a new one takes its place. */
static void lose_rank_1(struct group *group)
{
    char *dir = new_run_dir();
    struct outcome outcome;

    group->daemons[1] = start_faulty(1, "pipeline.train=kill@2");
    name_hosts(group);
    outcome = finish_rankctl(start_run(group->hosts, dir, pp2.keys), VERDICT_MS);
    assert_exit(&outcome, 1);
    assert_text("stderr", outcome.err, "rank 1): UNAVAILABLE");
    assert_int_equal(rk_proc_wait(group->daemons[1], 1000), -SIGKILL);
    rk_proc_destroy(group->daemons[1]);
    group->daemons[1] = NULL;
    outcome_fini(&outcome);
    rk_free(dir);
}

/* Goal: a daemon that survives several peers has as many open files and as much memory as after the first
 * ones. Disables the sanitizer's quarantine of freed memory, which would hide a growth. */
static void test_run_remaining_rank_of_many_is_unchanged(void **state)
{
    enum { FIRST = 2, CYCLES = 6, MORE_KIB = 8 << 10 };
    char *options = rk_strdup(rk_env("ASAN_OPTIONS")); /* NULL if unset */
    char *small = rk_format("%s%squarantine_size_mb=1", options ? options : "", options ? ":" : "");
    struct group group = {.num_ranks = pp2.num_ranks};
    int64_t fds = 0, kib = 0;

    (void)state;
    setenv("ASAN_OPTIONS", small, 1);
    group.daemons[0] = start_daemon_on(0, NULL);
    for (int i = 0; i < CYCLES; i++) {
        lose_rank_1(&group);
        if (i == FIRST) {
            fds = count_fds(group.daemons[0]);
            kib = resident_kib(group.daemons[0]);
        }
    }
    wait_fds(group.daemons[0], fds);
    print_message("%lld KiB after %d lost peers, %lld KiB after %d\n", (long long)kib, FIRST + 1,
                  (long long)resident_kib(group.daemons[0]), CYCLES);
    assert_true(resident_kib(group.daemons[0]) <= kib + MORE_KIB);
    if (options)
        setenv("ASAN_OPTIONS", options, 1);
    else
        unsetenv("ASAN_OPTIONS");
    group.num_ranks = 1;
    stop_group(&group);
    rk_free(small);
    rk_free(options);
}

/* --- daemons of --local --- */

static bool is_stopped(pid_t pid)
{
    char *path = rk_format("/proc/%d/stat", (int)pid), *text = rk_test_read_file(path, NULL);
    const char *after_name = strrchr(text, ')');
    bool is = after_name && strncmp(after_name, ") T", 3) == 0;

    rk_free(text);
    rk_free(path);
    return is;
}

static void wait_stopped(const pid_t *pids, int count)
{
    int64_t end_ns = rk_time_now_ns() + rk_proc_timeout_ms(60000) * 1000000;

    for (int i = 0; i < count; i++) {
        while (!is_stopped(pids[i])) {
            if (rk_time_now_ns() > end_ns)
                fail_msg("daemon %d (pid %d) did not stop", i, (int)pids[i]);
            rk_time_sleep_ms(10);
        }
    }
}

/* Goal: a --local run that loses a daemon in an exchange ends all of them, names the killed one and its log,
 * and leaves no file in its private directory. Method: both stop before their second exchange; then one is
 * killed, and the other continues. */
static void test_run_local_rank_killed_in_an_exchange_leaves_nothing_behind(void **state)
{
    char *root = rk_test_temp_path("runtime"), *dir = new_run_dir();
    const char *args[MAX_ARGS] = {"run", TINY_JOB, "--local", "2", "--run-dir", dir, TINY};
    pid_t daemons[2];
    struct rk_proc *run;
    struct outcome outcome;

    (void)state;
    assert_int_equal(mkdir(root, 0700), 0);
    append_args(args, MAX_ARGS, pp2.keys);
    setenv("XDG_RUNTIME_DIR", root, 1);
    setenv("RANKD_FAULTS", "pipeline.train=stop@2", 1);
    run = start_rankctl(args);
    unsetenv("RANKD_FAULTS");
    unsetenv("XDG_RUNTIME_DIR");
    wait_stderr(run, "memory plan of rank", 60000); /* the daemons are running */
    find_daemons(run, daemons, 2);
    wait_stopped(daemons, 2);
    kill(daemons[1], SIGKILL);
    kill(daemons[0], SIGCONT);
    outcome = finish_rankctl(run, VERDICT_MS);
    assert_exit(&outcome, 1);
    assert_text("stderr", outcome.err, "rank 1): UNAVAILABLE");
    assert_text("stderr", outcome.err, "; rank 1 is pp 1 of 2 of role 'actor'");
    assert_text("stderr", outcome.err, "was killed by signal 9; its log is ");
    assert_gone(daemons, 2, 1000);
    if (rmdir(root) != 0)
        fail_msg("the run left files in %s: %s", root, outcome.err);
    outcome_fini(&outcome);
    rk_free(dir);
    rk_free(root);
}

/* --- a rank that fails without dying --- */

/* Goal: if a rank runs out of memory in the middle of a schedule, the message and the errors of its peers
 * name it, with its coordinates and the cause. All daemons survive and serve the next run. */
static void test_run_rank_without_memory_in_a_schedule_is_named_by_its_peers(void **state)
{
    static const char *const expected[] = {
        "because of rank 1 (actor: pp 1 of 2): stage 0 of 2, pipeline.exchange: ",
        "rank 1 aborted: actor.update_actor failed: stage 1 of 2, ", "fault point pipeline.memory"};
    struct group group = start_group(pp2.num_ranks, 1, "pipeline.memory=fail@12");
    char *dir = new_run_dir(), *log;
    struct outcome outcome = finish_rankctl(start_run(group.hosts, dir, pp2.keys), 60000);

    (void)state;
    assert_exit(&outcome, 1);
    assert_text("stderr", outcome.err, "rank 1): RESOURCE_EXHAUSTED DEVICE_OOM: stage 1 of 2, ");
    assert_text("stderr", outcome.err, "(1 other rank ended with it); rank 1 is pp 1 of 2 of role 'actor'");
    log = rk_proc_stderr(group.daemons[0]);
    for (size_t i = 0; i < RK_ARRAY_LEN(expected); i++)
        assert_text("the log of rank 0", log, expected[i]);
    rk_free(log);
    assert_run_succeeds(group.hosts, pp2.keys);
    stop_group(&group);
    outcome_fini(&outcome);
    rk_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run_rank_killed_at_a_known_place_is_named),
        cmocka_unit_test(test_run_rank_stopped_at_a_known_place_is_named),
        cmocka_unit_test(test_run_remaining_rank_of_many_is_unchanged),
        cmocka_unit_test(test_run_local_rank_killed_in_an_exchange_leaves_nothing_behind),
        cmocka_unit_test(test_run_rank_without_memory_in_a_schedule_is_named_by_its_peers),
    };

#ifndef RK_FAULTS
    rk_test_skip_program("this build has no fault points");
#endif
    skip_without_devices(MAX_RANKS);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
