/* The model of a run that fails late or cannot be saved. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/proc/cli_fixture.h"

#define ONE_RANK "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=1"
/* Scores the 16 responses of the first step and some of the second, then ends. */
#define REWARD_OF_ONE_STEP                                                                               \
    "reward={\"name\": \"command\", \"num_workers\": 1, \"on_error\": \"fail\", \"command\": [\"sh\", "  \
    "\"-c\", "                                                                                           \
    "\"read -r hello; echo '{\\\"hello\\\": 2}'; while read -r line; do id=${line#*:*:}; id=${id%%,*}; " \
    "[ $id -lt 21 ] || exit 3; echo '{\\\"id\\\": '$id', \\\"score\\\": 1}'; done\"]}"

static struct outcome run_job(const char *where, const char *value, const char *dir, const char *change)
{
    return run_rankctl(
        (const char *const[]){"run", TINY_JOB, where, value, "--run-dir", dir, TINY, ONE_RANK, change, NULL});
}

static bool has_file(const char *dir, const char *name)
{
    char *path = rk_path_join(dir, name);
    bool has = access(path, R_OK) == 0;

    rk_free(path);
    return has;
}

/* Goal: a run exports a trained model before its --local daemons stop. */
static void test_save_run_of_its_own_saves_before_its_daemons_stop(void **state)
{
    char *dir = new_run_dir();
    struct outcome outcome =
        run_rankctl((const char *const[]){"run", TINY_JOB, "--local=1", "--run-dir", dir, TINY, ONE_RANK,
                                          REWARD_OF_ONE_STEP, "--output=json", NULL});
    struct rk_json *summary;

    (void)state;
    assert_exit(&outcome, 1);
    assert_text("stderr", outcome.err, "saving the model of step 1 to ");
    assert_text("stderr", outcome.err, "step 2, reward: ");
    assert_true(has_file(dir, "hf/model.safetensors"));
    assert_true(has_file(dir, "hf/tokenizer.json"));
    summary = read_json(dir, "summary.json");
    assert_string_equal(rk_json_as_string(rk_json_find(summary, "status"), ""), "failed");
    assert_string_equal(rk_json_as_string(rk_json_find(summary, "model"), ""), "hf");
    assert_true(rk_json_as_bool(rk_json_find(summary, "has_tokenizer"), false));
    rk_json_free(summary);
    summary = parse_json(outcome.out); /* one object with all information */
    assert_string_equal(rk_json_as_string(rk_json_find(summary, "kind"), ""), "RunSummary");
    assert_string_equal(rk_json_as_string(rk_json_find(summary, "run_dir"), ""), dir);
    assert_int_equal(rk_json_as_int(rk_json_find(summary, "num_steps"), 0), 1);
    assert_string_equal(rk_json_as_string(rk_json_find_path(summary, "error.code"), ""), "ABORTED");
    rk_json_free(summary);
    outcome_fini(&outcome);
    rk_free(dir);
}

/* Goal: daemons that keep running keep the model, and the printed command saves it. */
static void test_save_run_on_hosts_prints_the_command_that_saves(void **state)
{
    struct rk_proc *daemon = start_daemon(NULL);
    char *dir = new_run_dir(), *option = rk_format("path=%s/hf", dir), *command;
    struct outcome outcome = run_job("--hosts", rk_proc_address(daemon), dir, REWARD_OF_ONE_STEP);

    (void)state;
    command = rk_format("rankctl checkpoint export --hosts %s --out %s/hf --tokenizer ",
                        rk_proc_address(daemon), dir);
    assert_exit(&outcome, 1);
    assert_text("stderr", outcome.err, "the daemons keep the model of step 1 for lease.grace");
    assert_text("stderr", outcome.err, command);
    assert_false(has_file(dir, "hf/model.safetensors"));
    outcome_fini(&outcome);
    outcome = run_rankctl((const char *const[]){"call", "actor.export_hf", "--hosts", rk_proc_address(daemon),
                                                "--opt", option, NULL});
    assert_exit(&outcome, 0);
    assert_true(has_file(dir, "hf/model.safetensors"));
    outcome_fini(&outcome);
    rk_proc_destroy(daemon);
    rk_free(command);
    rk_free(option);
    rk_free(dir);
}

/* Goal: an export without the tokenizer is reported as a model only. Method: a tokenizer file with another
 * name. */
static void test_save_model_without_tokenizer_is_called_that(void **state)
{
    char *dir = new_run_dir(), *path = rk_test_temp_path("words.json"), *text, *change;
    struct rk_json *summary;
    struct outcome outcome;
    size_t bytes;

    (void)state;
    text = rk_test_read_file(RK_TEST_SOURCE_DIR "/examples/digits/tokenizer.json", &bytes);
    rk_test_write_file(path, text, bytes);
    change = rk_format("actor_rollout_ref.model.tokenizer_path=%s", path);
    outcome = run_job("--local", "1", dir, change);
    assert_exit(&outcome, 0);
    assert_text("stderr", outcome.err, "the exported model has no tokenizer");
    assert_text("stdout", outcome.out, "hf/ without its tokenizer");
    summary = read_json(dir, "summary.json");
    assert_false(rk_json_as_bool(rk_json_find(summary, "has_tokenizer"), true));
    rk_json_free(summary);
    outcome_fini(&outcome);
    rk_free(change);
    rk_free(text);
    rk_free(path);
    rk_free(dir);
}

/* The daemons that a run left running, from the printed command; rk_free it. */
static char *find_hosts(const char *err)
{
    const char *flag = " --hosts ";
    const char *text = strstr(err, flag);

    if (!text)
        fail_msg("no%sin: %s", flag, err);
    text += strlen(flag);
    return rk_strndup(text, strcspn(text, " \n"));
}

/* Daemons that were left running can still save the model, and can be stopped. */
static void assert_kept_model(const char *err, pid_t daemon)
{
    char *hosts = find_hosts(err), *dir = new_run_dir(), *option = rk_format("path=%s", dir);
    struct outcome outcome;

    outcome = run_rankctl(
        (const char *const[]){"call", "actor.export_hf", "--hosts", hosts, "--opt", option, NULL});
    assert_exit(&outcome, 0);
    assert_true(has_file(dir, "model.safetensors"));
    outcome_fini(&outcome);
    outcome = run_rankctl((const char *const[]){"shutdown", "--yes", "--hosts", hosts, NULL});
    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    assert_gone(&daemon, 1, 5000);
    rk_free(option);
    rk_free(dir);
    rk_free(hosts);
}

/* Goal: removing the run directory ends the run, but not its daemons, which keep the model. */
static void test_save_vanished_run_directory_leaves_the_model_with_the_daemons(void **state)
{
    char *dir = new_run_dir(), *metrics = rk_path_join(dir, "metrics.jsonl"), *moved = new_run_dir();
    struct rk_proc *run =
        start_rankctl((const char *const[]){"run", TINY_JOB, "--local=1", "--run-dir", dir, TINY, ONE_RANK,
                                            "trainer.total_training_steps=100000", NULL});
    struct outcome outcome;
    pid_t daemon;

    (void)state;
    wait_stderr(run, "step 1/100000", 30000);
    find_daemons(run, &daemon, 1);
    assert_int_equal(unlink(metrics), 0);
    assert_int_equal(rename(dir, moved), 0);
    rk_test_write_file(dir, "in the way", 10);
    outcome = finish_rankctl(run, 20000);
    assert_exit(&outcome, 1);
    assert_text("stderr", outcome.err, "metrics.jsonl was removed");
    assert_text("stderr", outcome.err, "the daemons keep the model of step ");
    assert_text("stderr", outcome.err, "rankctl shutdown --yes --hosts ");
    assert_kept_model(outcome.err, daemon);
    outcome_fini(&outcome);
    rk_free(moved);
    rk_free(metrics);
    rk_free(dir);
}

/* Goal: a daemon that was left running ends after its grace period. Method: a call acquires and releases a
 * lease.
 */
static void test_save_daemon_left_behind_ends_with_its_grace_period(void **state)
{
    struct rk_proc *daemon = start_daemon((const char *const[]){"--lease.grace=200ms", NULL});
    struct outcome outcome;

    (void)state;
    rk_proc_signal(daemon, SIGUSR1);
    rk_proc_wait_output(daemon, "rankd: detached\n", 5000);
    outcome = run_rankctl((const char *const[]){"call", "actor.get_mesh_info", "--hosts",
                                                rk_proc_address(daemon), "--job", TINY_JOB, NULL});
    outcome_fini(&outcome); /* the job needs two daemons and fails: only the lease matters */
    assert_int_equal(rk_proc_wait(daemon, 10000), 0);
    rk_proc_destroy(daemon);
}

#ifdef RK_FAULTS
/* Goal: the same for a failing final export of a run whose daemons would otherwise end with it. */
static void test_save_failed_export_leaves_daemons_of_its_own_running(void **state)
{
    char *dir = new_run_dir();
    struct rk_proc *run;
    struct outcome outcome;
    pid_t daemon;

    (void)state;
    setenv("RANKD_FAULTS", "ckpt.write=fail", 1);
    run = start_rankctl(
        (const char *const[]){"run", TINY_JOB, "--local=1", "--run-dir", dir, TINY, ONE_RANK, NULL});
    unsetenv("RANKD_FAULTS");
    wait_stderr(run, "step 1/3", 30000);
    find_daemons(run, &daemon, 1);
    outcome = finish_rankctl(run, 20000);
    assert_exit(&outcome, 1);
    assert_text("stderr", outcome.err, "fault point ckpt.write");
    assert_text("stderr", outcome.err, "the daemons keep the model of step 3");
    assert_kept_model(outcome.err, daemon);
    outcome_fini(&outcome);
    rk_free(dir);
}

/* On a daemon with that fault point. */
static struct outcome run_with_fault(const char *fault)
{
    char *dir = new_run_dir();
    struct rk_proc *daemon;
    struct outcome outcome;

    setenv("RANKD_FAULTS", fault, 1);
    daemon = start_daemon(NULL);
    unsetenv("RANKD_FAULTS");
    outcome = run_job("--hosts", rk_proc_address(daemon), dir, ONE_RANK);
    rk_proc_destroy(daemon);
    rk_free(dir);
    return outcome;
}

/* Goal: a disk with too little space for the model is an error before the first step. */
static void test_save_disk_without_room_trains_nothing(void **state)
{
    struct outcome outcome = run_with_fault("ckpt.space=fail");

    (void)state;
    assert_exit(&outcome, 1);
    assert_text("stderr", outcome.err, "cannot be saved to ");
    assert_text("stderr", outcome.err, "DISK_FULL");
    assert_text("stderr", outcome.err, "bytes, 0 are free");
    assert_null(strstr(outcome.err, "step 1/"));
    outcome_fini(&outcome);
}

/* Goal: with daemons of its own that is known before one starts, from the sizes in config.json. */
static void test_save_disk_without_room_starts_no_daemon(void **state)
{
    static const char *const keys[] = {"trainer.save_freq=-1", "trainer.save_freq=1"};
    static const char *const messages[] = {
        "0.0 MiB are free; the trained model takes about ",
        "0.0 MiB are free; the trained model and a checkpoint take about "};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(keys); i++) {
        char *dir = new_run_dir();
        struct outcome outcome;

        setenv("RANKD_FAULTS", "disk.space=fail", 1);
        outcome = run_job("--local", "1", dir, keys[i]);
        unsetenv("RANKD_FAULTS");
        assert_exit(&outcome, 1);
        assert_text("stderr", outcome.err, messages[i]);
        assert_text("stderr", outcome.err, "set --run-dir");
        assert_false(has_file(dir, "rankd-0.log"));
        assert_false(has_file(dir, "metrics.jsonl"));
        outcome_fini(&outcome);
        rk_free(dir);
    }
}

/* Goal: if the disk fills up later, the export fails, and the daemons keep the model. */
static void test_save_failed_export_leaves_the_model_with_the_daemons(void **state)
{
    struct outcome outcome = run_with_fault("ckpt.write=fail");

    (void)state;
    assert_exit(&outcome, 1);
    assert_text("stderr", outcome.err, "fault point ckpt.write");
    assert_text("stderr", outcome.err, "the daemons keep the model of step 3");
    assert_text("stderr", outcome.err, "--out DIR");
    outcome_fini(&outcome);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_save_run_of_its_own_saves_before_its_daemons_stop),
        cmocka_unit_test(test_save_run_on_hosts_prints_the_command_that_saves),
        cmocka_unit_test(test_save_model_without_tokenizer_is_called_that),
        cmocka_unit_test(test_save_vanished_run_directory_leaves_the_model_with_the_daemons),
        cmocka_unit_test(test_save_daemon_left_behind_ends_with_its_grace_period),
#ifdef RK_FAULTS
        cmocka_unit_test(test_save_failed_export_leaves_daemons_of_its_own_running),
        cmocka_unit_test(test_save_disk_without_room_trains_nothing),
        cmocka_unit_test(test_save_disk_without_room_starts_no_daemon),
        cmocka_unit_test(test_save_failed_export_leaves_the_model_with_the_daemons),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
