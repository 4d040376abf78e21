/* A recorded run, replayed on other daemons: no difference, or the first call that differs. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "dispatch/rk_recording.h"
#include "tests/proc/cli_fixture.h"

#define REPLAY_MS 60000

/* Two steps on two ranks, recorded once for all tests below. The second one is profiled: its measurements do
 * not count as differences. */
static char *record_dir;

static int record_run(void **state)
{
    static const char *const keys[] = {"trainer.total_training_steps=2", "trainer.profile_steps=[2]", NULL};
    char *dir = new_run_dir();
    const char *args[24] = {"run",
                            TINY_JOB,
                            "--run-dir",
                            dir,
                            "--local",
                            "2",
                            "--record",
                            NULL,
                            "data.train_batch_size=4",
                            "actor_rollout_ref.rollout.n=4",
                            "actor_rollout_ref.actor.ppo_mini_batch_size=2",
                            cli_device()};
    struct outcome outcome;

    (void)state;
    record_dir = rk_test_temp_path("record");
    args[7] = record_dir;
    append_args(args, RK_ARRAY_LEN(args), keys);
    outcome = run_rankctl(args);
    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    rk_free(dir);
    return 0;
}

static int forget_run(void **state)
{
    (void)state;
    rk_free(record_dir);
    return 0;
}

/* The output of `rankctl replay` with these NULL-terminated arguments; rk_json_free it. */
static struct rk_json *replay(int code, const char *const *more)
{
    const char *args[16] = {"replay", "--output=json"};
    struct outcome outcome;
    struct rk_json *json;

    append_args(args, RK_ARRAY_LEN(args), more);
    outcome = finish_rankctl(start_rankctl(args), REPLAY_MS);
    assert_exit(&outcome, code);
    json = parse_json(outcome.out);
    outcome_fini(&outcome);
    return json;
}

static const char *text(const struct rk_json *json, const char *key)
{
    return rk_json_as_string(rk_json_find(json, key), "");
}

static int64_t number(const struct rk_json *json, const char *key)
{
    return rk_json_as_int(rk_json_find(json, key), -1);
}

/* The first difference; fails unless there is one of that kind. */
static const struct rk_json *first_difference(const struct rk_json *answer, const char *kind)
{
    const struct rk_json *list = rk_json_find(answer, "differences");

    assert_string_equal(text(answer, "end"), "difference");
    assert_true(rk_json_count(list) > 0);
    assert_string_equal(text(rk_json_at(list, 0), "kind"), kind);
    return rk_json_at(list, 0);
}

/* Goal: the same calls on fresh daemons give the same bits on all ranks. */
static void test_replay_of_a_run_shows_no_difference(void **state)
{
    struct rk_json *answer = replay(0, (const char *const[]){record_dir, NULL});

    (void)state;
    assert_string_equal(text(answer, "end"), "all");
    assert_int_equal(rk_json_count(rk_json_find(answer, "differences")), 0);
    assert_true(number(answer, "num_calls") >= 8);      /* three init_model, two steps */
    assert_int_equal(number(answer, "num_skipped"), 2); /* the export and similar calls */
    rk_json_free(answer);
}

/* Goal: replay also works on daemons given by --hosts, with two addresses. */
static void test_replay_runs_on_given_daemons(void **state)
{
    struct rk_proc *daemons[2] = {start_daemon_on(0, NULL), start_daemon_on(is_on_gpus() ? 1 : 0, NULL)};
    char *hosts = rk_format("--hosts=%s,%s", rk_proc_address(daemons[0]), rk_proc_address(daemons[1]));
    struct rk_json *answer = replay(0, (const char *const[]){record_dir, hosts, NULL});

    (void)state;
    assert_string_equal(text(answer, "end"), "all");
    rk_json_free(answer);
    rk_free(hosts);
    for (int i = 0; i < 2; i++)
        rk_proc_destroy(daemons[i]);
}

/* Goal: replay's own daemons have the recorded number of threads, which the last bits of sums depend on, and
 * not their share of the cores. */
static void test_replay_takes_the_recorded_threads(void **state)
{
    char *dir = new_run_dir(), *record = rk_test_temp_path("threads");
    char *flag = rk_format("--record.dir=%s", record);
    struct rk_proc *daemon = start_daemon_on(0, flag); /* with one thread */
    struct outcome outcome = run_rankctl((const char *const[]){
        "run", TINY_JOB, "--run-dir", dir, "--hosts", rk_proc_address(daemon),
        "trainer.total_training_steps=1", "data.train_batch_size=4", "actor_rollout_ref.rollout.n=4",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=1",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=1", NULL});
    struct rk_recording *recording;
    struct rk_json *answer;

    (void)state;
    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    rk_proc_signal(daemon, SIGTERM);
    assert_int_equal(rk_proc_wait(daemon, 20000), 0);
    rk_proc_destroy(daemon);
    assert_ok(rk_recording_open(&recording, record, 0));
    assert_int_equal(number(rk_recording_info(recording), "cpu_num_threads"), 1);
    rk_recording_close(recording);
    answer = replay(0, (const char *const[]){record, NULL});
    assert_string_equal(text(answer, "end"), "all");
    rk_json_free(answer);
    rk_free(flag);
    rk_free(record);
    rk_free(dir);
}

/* Goal: a model from another seed shows in the first call that uses its weights, with the column's name and
 * how many values differ. */
static void test_replay_with_another_seed_names_the_call(void **state)
{
    struct rk_json *answer =
        replay(1, (const char *const[]){record_dir, "--opt=actor.init_model.megatron.seed=43", NULL});
    const struct rk_json *difference = first_difference(answer, "tensor");

    (void)state;
    assert_string_equal(text(answer, "call"), "rollout.generate_sequences");
    assert_string_equal(text(difference, "name"), "responses");
    assert_true(number(difference, "num_different") > 0);
    assert_true(number(difference, "num_different") <= number(difference, "num_values"));
    rk_json_free(answer);
}

/* --- modified recordings --- */

/* The message of an entry with tensors, and the description of those; NULL if it has none. */
static const struct rk_batch_spec *describe(const struct rk_recording_item *item, struct rk_arena *arena,
                                            struct rk_execute_request *call,
                                            struct rk_execute_response *result)
{
    if (item->kind == RK_RECORDING_CALL) {
        assert_ok(rk_unpack_execute_request(call, arena, item->message, item->message_bytes));
        return &call->header.input;
    }
    if (item->kind != RK_RECORDING_RESULT)
        return NULL;
    assert_ok(rk_unpack_execute_response(result, arena, item->message, item->message_bytes));
    return &result->result.output;
}

/* Adds `change` to the first value of the f32 column `name` of a result. */
static bool spoil(const struct rk_recording_item *item, struct rk_batch *batch, const char *name,
                  float change)
{
    struct rk_column *column = item->kind == RK_RECORDING_RESULT ? rk_batch_find(batch, name) : NULL;

    if (!column)
        return false;
    assert_int_equal(rk_column_get_info(column).dtype, RK_DTYPE_F32);
    ((float *)(uintptr_t)rk_column_values(column))[0] += change;
    return true;
}

/* What copy_recording also changes. */
static struct {
    const char *method;  /* of the call that it leaves out or repeats; NULL: none */
    int times;           /* how often it is copied */
    const char *code;    /* JSON, of the first result; NULL: as it was */
    const char *threads; /* JSON, of cpu_num_threads; NULL: as it was */
} edit;

static struct rk_json *parse_value(const char *text)
{
    struct rk_json *value;

    assert_ok(rk_json_parse(&value, text, strlen(text), "edit", 0));
    return value;
}

static int times_of(const struct rk_recording_item *item)
{
    struct rk_arena *arena = rk_arena_create(4096, 0);
    struct rk_execute_request call;
    int times = 1;

    if (edit.method && item->kind == RK_RECORDING_CALL) {
        assert_ok(rk_unpack_execute_request(&call, arena, item->message, item->message_bytes));
        if (strcmp(call.header.method, edit.method) == 0) {
            edit.method = NULL;
            times = edit.times;
        }
    }
    rk_arena_destroy(arena);
    return times;
}

/* Copies an entry; returns true if it was modified. */
static bool copy_entry(struct rk_recording_writer *writer, const struct rk_recording *from,
                       const struct rk_recording_item *item, const char *name, float change)
{
    struct rk_recording_entry *entry = rk_recording_entry_create(item->kind);
    struct rk_arena *arena = rk_arena_create(4096, 0);
    struct rk_execute_request call;
    struct rk_execute_response result;
    const struct rk_batch_spec *spec = describe(item, arena, &call, &result);
    struct rk_batch_spec unused;
    struct rk_batch *batch;
    bool is_spoilt = false;

    rk_json_free(entry->meta);
    entry->meta = rk_json_clone(item->meta);
    if (edit.code && item->kind == RK_RECORDING_RESULT) {
        rk_json_set(entry->meta, "code", parse_value(edit.code));
        edit.code = NULL;
    }
    rk_str_append_bytes(&entry->message, item->message, item->message_bytes);
    if (spec && spec->num_tensors > 0) {
        assert_ok(rk_recording_read_batch(&batch, from, item, spec));
        is_spoilt = name && spoil(item, batch, name, change);
        assert_ok(rk_recording_entry_set_batch(entry, &unused, batch, NULL));
        rk_batch_destroy(batch);
    }
    assert_ok(rk_recording_writer_put(writer, entry));
    rk_recording_entry_destroy(entry);
    rk_arena_destroy(arena);
    return is_spoilt;
}

/* Copies the recording of one rank, with valid checksums; modifies the first result with that column (NULL:
 * none). */
static void copy_recording(const char *to_dir, int rank, const char *name, float change)
{
    char *rank_name = rk_format("rank-%d", rank);
    char *from_dir = rk_path_join(record_dir, rank_name), *dir = rk_path_join(to_dir, rank_name);
    struct rk_recording_writer *writer;
    struct rk_recording *from;
    struct rk_json *info;

    assert_ok(rk_recording_open(&from, from_dir, 0));
    info = rk_json_clone(rk_recording_info(from));
    rk_json_remove(info, "checksum");
    if (edit.threads)
        rk_json_set(info, "cpu_num_threads", parse_value(edit.threads));
    assert_ok(rk_recording_writer_open(&writer, dir, info));
    for (int64_t i = 0; i < rk_recording_num_items(from); i++) {
        const struct rk_recording_item *item = rk_recording_item_at(from, i);

        for (int n = times_of(item); n > 0; n--) {
            if (copy_entry(writer, from, item, name, change))
                name = NULL;
        }
    }
    assert_null(name); /* it was found */
    rk_recording_writer_close(writer);
    rk_recording_close(from);
    rk_json_free(info);
    rk_free(dir);
    rk_free(from_dir);
    rk_free(rank_name);
}

/* Goal: a single different value is reported with call, rank, tensor and difference; within a tolerance it is
 * not. */
static void test_replay_names_a_changed_value(void **state)
{
    char *dir = rk_test_temp_path("spoilt");
    const struct rk_json *difference;
    struct rk_json *answer;

    (void)state;
    assert_int_equal(mkdir(dir, 0700), 0);
    copy_recording(dir, 0, "rollout_log_probs", 0.25f);
    copy_recording(dir, 1, NULL, 0.0f);
    answer = replay(1, (const char *const[]){dir, NULL});
    assert_string_equal(text(answer, "call"), "rollout.generate_sequences");
    difference = first_difference(answer, "tensor");
    assert_string_equal(text(difference, "name"), "rollout_log_probs");
    assert_int_equal(number(difference, "rank"), 0);
    assert_int_equal(number(difference, "num_different"), 1);
    assert_true(fabs(metric(difference, "max_abs") - 0.25) < 1e-6);
    rk_json_free(answer);
    answer = replay(0, (const char *const[]){dir, "--atol=0.26", NULL});
    rk_json_free(answer);
    rk_free(dir);
}

/* --- invalid directories --- */

static void assert_refused_record(const char *const *args, int code, const char *reason)
{
    struct rk_json *answer = replay(code, args);
    const struct rk_json *error = rk_json_find(answer, "error");

    if (!error || strcmp(text(error, "reason"), reason) != 0)
        fail_msg("the reason is '%s', expected '%s'", error ? text(error, "reason") : "", reason);
    rk_json_free(answer);
}

static void test_replay_refuses_bad_folders(void **state)
{
    char *dir = rk_test_temp_path("bad"), *ranks[2], *calls;
    size_t bytes;
    char *data;

    (void)state;
    assert_int_equal(mkdir(dir, 0700), 0);
    for (int i = 0; i < 2; i++) {
        char *name = rk_format("rank-%d", i);

        copy_recording(dir, i, NULL, 0.0f);
        ranks[i] = rk_path_join(dir, name);
        rk_free(name);
    }
    assert_refused_record((const char *const[]){ranks[0], NULL}, 2, "RECORD_INCOMPLETE");
    assert_refused_record((const char *const[]){ranks[1], ranks[1], NULL}, 2, "RECORD_INCOMPLETE");
    assert_refused_record((const char *const[]){rk_test_temp_dir(), "--atol=-1", NULL}, 2, "USAGE");

    calls = rk_path_join(ranks[1], RK_RECORDING_CALLS_FILE);
    data = rk_test_read_file(calls, &bytes);
    data[bytes / 2] ^= 4;
    rk_test_write_file(calls, data, bytes);
    assert_refused_record((const char *const[]){dir, NULL}, 1, "RECORD_DAMAGED");
    data[bytes / 2] ^= 4;
    rk_test_write_file(calls, data, bytes / 2);
    assert_refused_record((const char *const[]){dir, NULL}, 1, "RECORD_CUT");
    rk_json_free(replay(0, (const char *const[]){dir, "--partial", NULL}));
    data[8] = 2;
    rk_test_write_file(calls, data, bytes);
    assert_refused_record((const char *const[]){dir, NULL}, 1, "RECORD_VERSION");
    rk_free(data);
    rk_free(calls);
    for (int i = 0; i < 2; i++)
        rk_free(ranks[i]);
    rk_free(dir);
}

/* Goal: ranks that disagree are refused at once, with the call and the rank, and no daemon waits for another.
 */
static void test_replay_refuses_ranks_that_disagree(void **state)
{
    static const struct {
        const char *method, *code, *threads, *reason, *message;
        int times;
    } cases[] = {
        {"generate_sequences", NULL, NULL, "RECORD_DISAGREES", "rollout.generate_sequences: rank 1 (", 0},
        {"update_actor", NULL, NULL, "RECORD_DISAGREES", "actor.update_actor: rank 1 (", 0},
        {"update_actor", NULL, NULL, "RECORD_DAMAGED", "the call is recorded twice", 2},
        {NULL, "\"NOSUCH\"", NULL, "RECORD_DAMAGED", "code: expected a number from 0 to 16, got \"NOSUCH\"",
         1},
        {NULL, "99", NULL, "RECORD_DAMAGED", "code: expected a number from 0 to 16, got 99", 1},
        {NULL, NULL, "-1", "RECORD_DAMAGED", "cpu_num_threads: expected a number from 0 to 4096", 1},
        {NULL, NULL, "1000000", "RECORD_DAMAGED", "cpu_num_threads", 1},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char *name = rk_format("disagree-%zu", i), *dir = rk_test_temp_path(name);
        struct outcome outcome;

        assert_int_equal(mkdir(dir, 0700), 0);
        copy_recording(dir, 0, NULL, 0.0f);
        edit.method = cases[i].method;
        edit.times = cases[i].times;
        edit.code = cases[i].code;
        edit.threads = cases[i].threads;
        copy_recording(dir, 1, NULL, 0.0f);
        edit.threads = NULL;
        assert_refused_record((const char *const[]){dir, NULL}, 1, cases[i].reason);
        outcome = run_rankctl((const char *const[]){"replay", dir, NULL});
        assert_exit(&outcome, 1);
        assert_text("stderr", outcome.err, cases[i].message);
        outcome_fini(&outcome);
        rk_free(dir);
        rk_free(name);
    }
}

/* --- a full disk --- */

static int count_lines(const char *log, const char *part)
{
    int count = 0;

    for (const char *at = strstr(log, part); at; at = strstr(at + 1, part))
        count++;
    return count;
}

/* Goal: when the disk is full, recording stops with one line in the log and a note in the status; calls
 * continue, and the written part can be read. Method: the writes of the recorder fail from the 30th on. */
static void test_full_disk_stops_the_recording_only(void **state)
{
    char *dir = rk_test_temp_path("full"), *flag = rk_format("--record.dir=%s", dir), *hosts, *log;
    char *job = write_tp1_job(RK_TEST_SOURCE_DIR "/examples/digits/sft.json", "one.json");
    const char *call[] = {"call", "actor.get_mesh_info", "--hosts", NULL, "--job", NULL, NULL};
    struct rk_recording *recording;
    struct rk_json *status;
    struct outcome outcome;
    struct rk_proc *daemon;

    (void)state;
#ifndef RK_FAULTS
    rk_test_skip("this build has no fault points");
#endif
    assert_int_equal(setenv("RANKD_FAULTS", "record.write=fail@30", 1), 0);
    daemon = start_daemon_on(0, flag);
    unsetenv("RANKD_FAULTS");
    hosts = rk_strdup(rk_proc_address(daemon));
    call[3] = hosts;
    call[5] = job;
    for (int i = 0; i < 5; i++) {
        outcome = run_rankctl(call);
        assert_exit(&outcome, 0);
        outcome_fini(&outcome);
    }
    outcome = run_rankctl((const char *const[]){"status", "--hosts", hosts, "--output=json", NULL});
    assert_exit(&outcome, 0);
    status = parse_json(outcome.out);
    assert_text("recording", text(rk_json_at(rk_json_find(status, "workers"), 0), "recording"), "stopped");
    rk_json_free(status);
    outcome_fini(&outcome);
    rk_proc_signal(daemon, SIGTERM);
    assert_int_equal(rk_proc_wait(daemon, 20000), 0);
    log = rk_proc_stderr(daemon);
    assert_int_equal(count_lines(log, "recording stopped"), 1);
    assert_ok(rk_recording_open(&recording, dir, 0));
    assert_true(rk_recording_num_items(recording) > 3);
    assert_non_null(rk_recording_end_reason(recording));
    assert_string_not_equal(rk_recording_end_reason(recording), RK_RECORDING_WHOLE);
    rk_recording_close(recording);
    rk_proc_destroy(daemon);
    rk_free(log);
    rk_free(job);
    rk_free(hosts);
    rk_free(flag);
    rk_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replay_of_a_run_shows_no_difference),
        cmocka_unit_test(test_replay_runs_on_given_daemons),
        cmocka_unit_test(test_replay_takes_the_recorded_threads),
        cmocka_unit_test(test_replay_with_another_seed_names_the_call),
        cmocka_unit_test(test_replay_names_a_changed_value),
        cmocka_unit_test(test_replay_refuses_bad_folders),
        cmocka_unit_test(test_replay_refuses_ranks_that_disagree),
        cmocka_unit_test(test_full_disk_stops_the_recording_only),
    };

    return cmocka_run_group_tests(tests, record_run, forget_run);
}
