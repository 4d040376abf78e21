/* rankctl checkpoint: on checkpoints on the disk, and through daemons; and the model of a run that has lost a
 * replica. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/format/rk_ckpt_dir.h"
#include "base/rk_str.h"
#include "tests/proc/cli_fixture.h"

#define TP          "actor_rollout_ref.actor.megatron.tensor_model_parallel_size="
#define NUM_DAEMONS 4
#define MODEL       "model.safetensors"
/* Scores the 16 responses of the first step; waits for the file `flag` before those of the second. */
#define GATED_REWARD                                                                                     \
    "reward={\"name\": \"command\", \"num_workers\": 1, \"command\": [\"sh\", \"-c\", \"read -r hello; " \
    "echo '{\\\"hello\\\": 2}'; while read -r line; do id=${line#*:*:}; id=${id%%%%,*}; "                \
    "while [ $id -ge 17 ] && [ ! -e %s ]; do sleep 0.1; done; "                                          \
    "echo '{\\\"id\\\": '$id', \\\"score\\\": 1}'; done\"]}"

/* Runs two steps with a checkpoint each; returns the run directory. */
static char *make_run(void)
{
    char *dir = new_run_dir();
    struct outcome outcome =
        run_rankctl((const char *const[]){"run", TINY_JOB, "--local=1", "--run-dir", dir, TINY, TP "1",
                                          "trainer.total_training_steps=2", "trainer.save_freq=1", NULL});

    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    return dir;
}

static void assert_same_model(const char *dir, const char *expected_dir)
{
    char *path = rk_path_join(dir, MODEL), *expected_path = rk_path_join(expected_dir, MODEL), *text,
         *expected;
    size_t bytes, expected_bytes;

    text = rk_test_read_file(path, &bytes);
    expected = rk_test_read_file(expected_path, &expected_bytes);
    assert_int_equal(bytes, expected_bytes);
    assert_true(memcmp(text, expected, bytes) == 0);
    rk_free(expected);
    rk_free(text);
    rk_free(expected_path);
    rk_free(path);
}

static void flip_byte(const char *path)
{
    size_t bytes;
    char *text = rk_test_read_file(path, &bytes);

    text[bytes / 2] ^= 1;
    rk_test_write_file(path, text, bytes);
    rk_free(text);
}

/* The first shard of a checkpoint; rk_free it. */
static char *find_shard(struct rk_json *inspected, const char *step_dir)
{
    const struct rk_json *parts = rk_json_find(inspected, "parts");
    const struct rk_json *files = rk_json_find(rk_json_at(parts, 0), "files");

    for (int64_t i = 0; i < rk_json_count(files); i++) {
        const char *name = rk_json_as_string(rk_json_find(rk_json_at(files, i), "name"), "");

        if (rk_str_has_suffix(name, ".safetensors"))
            return rk_format("%s/actor/%s", step_dir, name);
    }
    fail_msg("no shard is listed");
    return NULL;
}

static struct rk_json *json_of(const char *const *args)
{
    struct outcome outcome = run_rankctl(args);
    struct rk_json *json;

    assert_exit(&outcome, 0);
    json = parse_json(outcome.out);
    outcome_fini(&outcome);
    return json;
}

/* Goal: list and inspect show the checkpoints, as text and JSON; --verify detects a flipped byte, which does
 * not change sizes. */
static void test_checkpoint_list_and_inspect(void **state)
{
    char *run_dir = make_run(), *dir = rk_path_join(run_dir, "checkpoints");
    char *first = rk_path_join(dir, "global_step_1"), *last = rk_path_join(dir, "global_step_2"), *shard;
    struct rk_json *json = json_of((const char *const[]){"checkpoint", "list", dir, "--output=json", NULL});
    const struct rk_json *items = rk_json_find(json, "checkpoints");
    struct outcome outcome;

    (void)state;
    assert_string_equal(rk_json_as_string(rk_json_find(json, "kind"), ""), "CheckpointList");
    assert_int_equal(rk_json_as_int(rk_json_find(json, "latest"), 0), 2);
    assert_int_equal(rk_json_count(items), 2);
    assert_int_equal(rk_json_as_int(rk_json_find(rk_json_at(items, 0), "step"), 0), 2);
    assert_true(rk_json_as_bool(rk_json_find(rk_json_at(items, 1), "is_complete"), false));
    rk_json_free(json);

    json = json_of((const char *const[]){"checkpoint", "inspect", last, "--verify", "--output=json", NULL});
    items = rk_json_at(rk_json_find(json, "parts"), 0);
    assert_string_equal(rk_json_as_string(rk_json_find(items, "part"), ""), "actor");
    assert_string_equal(rk_json_as_string(rk_json_find_path(items, "layout.dtype"), ""), "float32");
    assert_int_equal(rk_json_as_int(rk_json_find_path(items, "layout.mesh.tp"), 0), 1);
    assert_true(rk_json_as_int(rk_json_find(items, "tensors"), 0) > 0);
    items = rk_json_at(rk_json_find(json, "parts"), 1);
    assert_int_equal(rk_json_as_int(rk_json_find_path(items, "state.data.next_row"), -1), 8);
    shard = find_shard(json, last);
    rk_json_free(json);

    flip_byte(shard);
    outcome = run_rankctl((const char *const[]){"checkpoint", "inspect", last, NULL});
    assert_exit(&outcome, 0);
    assert_text("stdout", outcome.out, "actor: complete");
    outcome_fini(&outcome);
    outcome = run_rankctl((const char *const[]){"checkpoint", "inspect", last, "--verify", NULL});
    assert_exit(&outcome, 1);
    assert_text("stderr", outcome.err, "checksum");
    outcome_fini(&outcome);
    assert_int_equal(unlink(shard), 0);
    for (int i = 0; i < 2; i++) { /* with the directory of the checkpoints, and with that of the run */
        outcome = run_rankctl((const char *const[]){"checkpoint", "list", i == 0 ? dir : run_dir, NULL});
        assert_exit(&outcome, 0);
        assert_text("stdout", outcome.out, "2*");
        assert_text("stdout", outcome.out, shard);
        outcome_fini(&outcome);
    }
    outcome = run_rankctl((const char *const[]){"checkpoint", "list", first, NULL});
    assert_exit(&outcome, 0);
    assert_text("stderr", outcome.err, "no checkpoint (global_step_<N>) in '");
    outcome_fini(&outcome);
    rk_free(shard);
    rk_free(last);
    rk_free(first);
    rk_free(dir);
    rk_free(run_dir);
}

/* Goal: the export of a checkpoint is bit-identical to the model that the run exported, with its tokenizer,
 * also with a different number of daemons. */
/* --- parts that a load does not take --- */

/* Signs the manifest of the last step's actor again, with a change. */
static void change_manifest(const char *part, int change)
{
    struct rk_ckpt_manifest manifest;

    assert_ok(rk_ckpt_manifest_read(&manifest, part));
    switch (change) {
    case 0:
        rk_free(manifest.role);
        manifest.role = rk_strdup("critic");
        break;
    case 1:
        manifest.global_step = 1;
        break;
    case 2:
        for (int64_t i = 0; i < manifest.files.count; i++)
            rk_free(manifest.files.items[i].name);
        manifest.files.count = 0;
        break;
    default: /* all but one of the two shards */
        for (int64_t i = 0; i < manifest.files.count; i++) {
            if (!rk_str_has_suffix(manifest.files.items[i].name, "shard_00001.safetensors"))
                continue;
            rk_free(manifest.files.items[i].name);
            manifest.files.items[i] = manifest.files.items[--manifest.files.count];
        }
    }
    assert_ok(rk_ckpt_manifest_write(&manifest, part));
    rk_ckpt_manifest_fini(&manifest);
}

/* Goal: what resume skips fails in inspect --verify: a critic in actor/, a part of another step, one without
 * files, and one that lacks a shard, each with correct checksums; the run goes on from the step before. */
static void test_checkpoint_inspect_fails_where_resume_skips(void **state)
{
    static const char *const messages[] = {"a part of role 'critic'", "a part of global_step 1",
                                           "has no tensors", "tensor '"};
    char *dir = new_run_dir(), *last = rk_path_join(dir, "checkpoints/global_step_2");
    char *part = rk_path_join(last, "actor"), *path = rk_path_join(part, RK_CKPT_MANIFEST_FILE), *text;
    const char *args[] = {"run",
                          TINY_JOB,
                          "--local=2",
                          "--run-dir",
                          dir,
                          TINY,
                          TP "2",
                          "trainer.total_training_steps=2",
                          "trainer.save_freq=1",
                          NULL};
    struct outcome outcome = run_rankctl(args);
    size_t bytes;

    (void)state;
    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    text = rk_test_read_file(path, &bytes);
    for (int i = 0; i < (int)RK_ARRAY_LEN(messages); i++) {
        rk_test_write_file(path, text, bytes);
        outcome = run_rankctl((const char *const[]){"checkpoint", "inspect", last, "--verify", NULL});
        assert_exit(&outcome, 0);
        outcome_fini(&outcome);
        change_manifest(part, i);
        outcome = run_rankctl((const char *const[]){"checkpoint", "inspect", last, "--verify", NULL});
        assert_exit(&outcome, 1);
        assert_text("stdout", outcome.out, messages[i]);
        outcome_fini(&outcome);
    }
    outcome = run_rankctl(args);
    assert_exit(&outcome, 0);
    assert_text("stderr", outcome.err, "checkpoint global_step_2 is skipped: ");
    outcome_fini(&outcome);
    rk_free(text);
    rk_free(path);
    rk_free(part);
    rk_free(last);
    rk_free(dir);
}

static void test_checkpoint_export_is_the_model_of_the_run(void **state)
{
    char *run_dir = make_run(), *expected = rk_path_join(run_dir, "hf"), *out = new_run_dir();
    char *step_dir = rk_path_join(run_dir, "checkpoints/global_step_2"), *tokenizer;
    struct outcome outcome =
        run_rankctl((const char *const[]){"checkpoint", "export", step_dir, "--out", out, "--local=2", NULL});

    (void)state;
    assert_exit(&outcome, 0);
    assert_text("stdout", outcome.out, out);
    assert_same_model(out, expected);
    tokenizer = rk_path_join(out, "tokenizer.json");
    assert_int_equal(access(tokenizer, R_OK), 0);
    outcome_fini(&outcome);
    rk_free(tokenizer);
    rk_free(step_dir);
    rk_free(out);
    rk_free(expected);
    rk_free(run_dir);
}

/* Goal: save and load on daemons that still have the model of a run. */
static void test_checkpoint_save_and_load_on_live_daemons(void **state)
{
    struct rk_proc *daemon = start_daemon(NULL);
    const char *address = rk_proc_address(daemon);
    char *dir = new_run_dir(), *hf = rk_path_join(dir, "hf"), *out = new_run_dir(), *with = new_run_dir();
    char *saved = rk_format("%s/by-hand/global_step_3", rk_test_temp_dir());
    struct outcome outcome;
    struct rk_json *json;

    (void)state;
    outcome = run_rankctl(
        (const char *const[]){"run", TINY_JOB, "--hosts", address, "--run-dir", dir, TINY, TP "1", NULL});
    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    json = json_of(
        (const char *const[]){"checkpoint", "save", saved, "--hosts", address, "--output=json", NULL});
    assert_string_equal(rk_json_as_string(rk_json_find(json, "state"), ""), "done");
    rk_json_free(json);
    json = json_of(
        (const char *const[]){"checkpoint", "load", saved, "--hosts", address, "--output=json", NULL});
    assert_int_equal(rk_json_as_int(rk_json_find(json, "global_step"), 0), 3);
    rk_json_free(json);
    outcome =
        run_rankctl((const char *const[]){"checkpoint", "export", "--hosts", address, "--out", out, NULL});
    assert_exit(&outcome, 0);
    assert_same_model(out, hf);
    assert_text("stderr", outcome.err,
                "has no tokenizer; copy tokenizer.json and its companions, or export with");
    outcome_fini(&outcome);

    /* Daemons have none; the run's directory has. */
    outcome = run_rankctl((const char *const[]){"checkpoint", "export", "--hosts", address, "--out", with,
                                                "--tokenizer", hf, NULL});
    assert_exit(&outcome, 0);
    assert_same_model(with, hf);
    assert_same_file(with, hf, "tokenizer.json");
    assert_null(strstr(outcome.err, "tokenizer"));
    outcome_fini(&outcome);
    rk_proc_destroy(daemon);
    rk_free(saved);
    rk_free(with);
    rk_free(out);
    rk_free(hf);
    rk_free(dir);
}

struct usage_case {
    const char *label;
    const char *args[8];
    int code;
    const char *err;
};

static void test_checkpoint_wrong_use_is_refused(void **state)
{
    static const struct usage_case cases[] = {
        {"no verb", {"checkpoint"}, 2, "checkpoint list"},
        {"unknown verb", {"checkpoint", "lst"}, 2, "checkpoint list"},
        {"list of nothing", {"checkpoint", "list", "/no/such/dir"}, 2, "/no/such/dir"},
        {"no step", {"checkpoint", "inspect", "/tmp"}, 2, "expected a directory global_step_<N>"},
        {"no checkpoint", {"checkpoint", "inspect", "/tmp/global_step_5"}, 2, "/tmp/global_step_5"},
        {"no out", {"checkpoint", "export", "/tmp/global_step_5"}, 2, "--out DIR"},
        {"local without a checkpoint",
         {"checkpoint", "export", "--local=1", "--out=/tmp/x"},
         2,
         "DIR/global_step_<N>"},
        {"local and hosts",
         {"checkpoint", "export", "--local=1", "--hosts=a:1", "--out=/tmp/x"},
         2,
         "--hosts"},
        {"export of nothing",
         {"checkpoint", "export", "/tmp/global_step_5", "--local=1", "--out=/tmp/x"},
         1,
         "global_step_5"},
        {"save without daemons", {"checkpoint", "save", "/tmp/global_step_5"}, 2, "no daemons given"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct outcome outcome = run_rankctl(cases[i].args);

        print_message("%s\n", cases[i].label);
        assert_exit(&outcome, cases[i].code);
        assert_text("stderr", outcome.err, cases[i].err);
        outcome_fini(&outcome);
    }
}

/* Goal: after the loss of a replica the other one still has the model; the run reports this, and the printed
 * command exports it. Method: the run waits in the reward of step 2 while a daemon is killed. */
static void test_checkpoint_export_survives_a_lost_replica(void **state)
{
    struct rk_proc *daemons[NUM_DAEMONS], *run;
    char *dir = new_run_dir(), *out = new_run_dir(), *flag = rk_test_temp_path("go-on"), *reward;
    struct rk_str hosts = {0};
    struct outcome outcome;
    char *path;

    (void)state;
    for (int i = 0; i < NUM_DAEMONS; i++) {
        daemons[i] = start_daemon_on(i, NULL);
        rk_str_appendf(&hosts, "%s%s", i ? "," : "", rk_proc_address(daemons[i]));
    }
    reward = rk_format(GATED_REWARD, flag);
    run = start_rankctl((const char *const[]){"run", TINY_JOB, "--hosts", rk_str_text(&hosts), "--run-dir",
                                              dir, TINY, TP "2", reward, NULL});
    wait_stderr(run, "step 1/3", 60000);
    rk_proc_signal(daemons[3], SIGKILL);
    rk_test_write_file(flag, "", 0);
    outcome = finish_rankctl(run, 60000);
    assert_exit(&outcome, 1);
    assert_text("stderr", outcome.err,
                "some daemons do not answer; the remaining daemons keep the model of step 1");
    assert_text("stderr", outcome.err, "rankctl checkpoint export --hosts ");
    outcome_fini(&outcome);
    outcome = run_rankctl(
        (const char *const[]){"checkpoint", "export", "--hosts", rk_str_text(&hosts), "--out", out, NULL});
    assert_exit(&outcome, 0);
    assert_text("stderr", outcome.err, "replica 1 lacks the daemon of tp rank 1");
    path = rk_path_join(out, MODEL);
    assert_int_equal(access(path, R_OK), 0);
    outcome_fini(&outcome);
    rk_proc_signal(daemons[0], SIGKILL); /* now no replica is complete */
    outcome = run_rankctl(
        (const char *const[]){"checkpoint", "export", "--hosts", rk_str_text(&hosts), "--out", dir, NULL});
    assert_exit(&outcome, 1);
    assert_text("stderr", outcome.err, "model of role 'actor'");
    outcome_fini(&outcome);
    for (int i = 0; i < NUM_DAEMONS; i++)
        rk_proc_destroy(daemons[i]);
    rk_str_fini(&hosts);
    rk_free(path);
    rk_free(reward);
    rk_free(flag);
    rk_free(out);
    rk_free(dir);
}

/* Goal: the same for --local daemons: they keep running, and the printed commands reach and stop them. */
static void test_checkpoint_export_survives_a_lost_replica_of_local_daemons(void **state)
{
    char *dir = new_run_dir(), *out = new_run_dir(), *flag = rk_test_temp_path("go-on-locally"), *reward,
         *hosts;
    static const char command[] = "rankctl checkpoint export --hosts ";
    struct outcome outcome;
    struct rk_proc *run;
    pid_t children[1 + NUM_DAEMONS], *daemons = children + 1; /* the reward program is the first child */
    const char *text;

    (void)state;
    reward = rk_format(GATED_REWARD, flag);
    run = start_rankctl(
        (const char *const[]){"run", TINY_JOB, "--local=4", "--run-dir", dir, TINY, TP "2", reward, NULL});
    wait_stderr(run, "step 1/3", 60000);
    find_daemons(run, children, 1 + NUM_DAEMONS);
    kill(daemons[0], SIGKILL);
    rk_test_write_file(flag, "", 0);
    outcome = finish_rankctl(run, 60000);
    assert_exit(&outcome, 1);
    assert_text("stderr", outcome.err, command);
    text = strstr(outcome.err, command) + strlen(command);
    hosts = rk_strndup(text, strcspn(text, " \n"));
    outcome_fini(&outcome);
    outcome =
        run_rankctl((const char *const[]){"checkpoint", "export", "--hosts", hosts, "--out", out, NULL});
    assert_exit(&outcome, 0);
    assert_text("stderr", outcome.err, "replica 0 lacks the daemon of tp rank 0");
    outcome_fini(&outcome);
    outcome = run_rankctl((const char *const[]){"shutdown", "--yes", "--hosts", hosts, NULL});
    assert_exit(&outcome, 3); /* the lost daemon cannot be reached */
    outcome_fini(&outcome);
    assert_gone(daemons, NUM_DAEMONS, 10000);
    rk_free(hosts);
    rk_free(reward);
    rk_free(flag);
    rk_free(out);
    rk_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoint_wrong_use_is_refused),
        cmocka_unit_test(test_checkpoint_list_and_inspect),
        cmocka_unit_test(test_checkpoint_inspect_fails_where_resume_skips),
        cmocka_unit_test(test_checkpoint_export_is_the_model_of_the_run),
        cmocka_unit_test(test_checkpoint_save_and_load_on_live_daemons),
        cmocka_unit_test(test_checkpoint_export_survives_a_lost_replica),
        cmocka_unit_test(test_checkpoint_export_survives_a_lost_replica_of_local_daemons),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
