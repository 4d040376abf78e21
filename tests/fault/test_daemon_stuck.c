/* A blocked engine, a failing Commit, threads that cannot be created: needs a build with fault points. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_json.h"
#include "base/rk_str.h"
#include "base/rk_time.h"
#include "tests/proc/daemon_fixture.h"

#define ANSWER_MS 1000
#define STOP_MS   20000

static void start_with_faults(struct fixture *fixture, const char *faults, const char *const *args)
{
#ifndef RK_FAULTS
    rk_test_skip("this build has no fault points");
#endif
    assert_int_equal(setenv("RANKD_FAULTS", faults, 1), 0);
    fixture_start(fixture, args);
    unsetenv("RANKD_FAULTS");
    fixture_lead(fixture);
}

/* Goal: while the engine is stuck, status and Cancel answer at once; when the daemon is told to stop, it
 * gives the engine 30 s and then exits with 1. Method: a method that sleeps for longer than that. */
static void test_stuck_engine_is_given_up(void **state)
{
    static const char *const args[] = {"--drain.grace=0", NULL};
    struct rk_execute_header header;
    struct rk_client_stream *stream;
    struct rk_worker_status status;
    struct rk_accepted accepted;
    struct fixture fixture;
    char outcome[32];
    int64_t begin_ns;

    (void)state;
    start_with_faults(&fixture, "worker.before_method=sleep:100s", args);
    header = fixture_header(&fixture, "actor", "get_mesh_info");
    stream = fixture_open(&fixture, &header);
    assert_true(fixture_read_accepted(&fixture, stream, &accepted));
    fixture_send_commit(stream);
    fixture_wait_state(&fixture, "BUSY");

    begin_ns = rk_time_now_ns();
    assert_ok(rk_client_get_status(fixture.client, &status));
    assert_string_equal(status.method, "actor.get_mesh_info");
    assert_ok(fixture_cancel(&fixture, &header, true, outcome));
    assert_string_equal(outcome, "aborted");
    assert_true(rk_time_now_ns() - begin_ns < rk_proc_timeout_ms(ANSWER_MS) * 1000000);
    fixture_wait_state(&fixture, "BUSY"); /* it was cancelled but does not react */

    begin_ns = rk_time_now_ns();
    rk_proc_signal(fixture.proc, SIGTERM);
    fixture_wait_state(&fixture, "DRAINING");
    assert_fails(rk_client_finish(stream), RK_UNAVAILABLE, "");
    fixture_end(&fixture, 1);
    assert_true(rk_time_now_ns() - begin_ns > 29 * 1000000000LL);
}

/* The watchdog has written the flight recorder: the unfinished call, and the watchdog's reason. */
static void assert_flight_of_the_verdict(void)
{
    char *path = rk_test_temp_path("flight-0.json");
    bool has_call = false, has_error = false;
    const struct rk_json *list;
    struct rk_json *json;

    assert_ok(rk_json_parse_file(&json, path, 4 << 20, 0));
    assert_string_equal(rk_json_as_string(rk_json_find(json, "reason"), ""), "watchdog");
    list = rk_json_find(json, "operations");
    for (int64_t i = 0; i < rk_json_count(list); i++) {
        const struct rk_json *item = rk_json_at(list, i);
        const char *what = rk_json_as_string(rk_json_find(item, "what"), "");
        const char *where = rk_json_as_string(rk_json_find(item, "where"), "");

        has_call |= strcmp(what, "actor.get_mesh_info") == 0 && rk_json_is_null(rk_json_find(item, "end_ns"));
        has_error |= strcmp(what, "watchdog") == 0 && strstr(where, "actor.get_mesh_info made no progress");
    }
    assert_true(has_call);
    assert_true(has_error);
    rk_json_free(json);
    rk_free(path);
}

/* Goal: a method that does not end after the watchdog aborted it is answered without the engine, with the
 * reason; the daemon is FAILED, reports this to later calls, and exits without waiting. */
static void test_stuck_method_is_answered_without_the_engine(void **state)
{
    const char *args[] = {"--watchdog.idle_progress=1s", "--watchdog.engine_grace=1s", NULL, NULL};
    static const char expected[] = "actor.get_mesh_info made no progress for 1000 ms, and did not end within "
                                   "1000 ms after it was cancelled";
    struct rk_execute_header header, again;
    struct rk_worker_status status;
    struct fixture fixture;
    char *flight_dir;
    int64_t begin_ns;

    (void)state;
    flight_dir = rk_format("--flight.dir=%s", rk_test_temp_dir());
    args[2] = flight_dir;
    start_with_faults(&fixture, "worker.before_method=sleep:100s", args);
    header = again = fixture_header(&fixture, "actor", "get_mesh_info");
    begin_ns = rk_time_now_ns();
    assert_refused(fixture_execute(&fixture, &header, NULL, NULL), RK_INTERNAL, "ENGINE_STUCK");
    assert_true(rk_time_now_ns() - begin_ns < rk_proc_timeout_ms(6000) * 1000000);
    assert_ok(rk_client_get_status(fixture.client, &status));
    assert_string_equal(status.state, "FAILED");
    assert_non_null(strstr(status.last_error, expected));
    assert_fails(fixture_execute(&fixture, &again, NULL, NULL), RK_INTERNAL, expected);
    header = fixture_header(&fixture, "actor", "get_mesh_info");
    assert_fails(fixture_execute(&fixture, &header, NULL, NULL), RK_INTERNAL, expected);
    assert_flight_of_the_verdict();
    rk_free(flight_dir);

    begin_ns = rk_time_now_ns();
    rk_proc_signal(fixture.proc, SIGTERM);
    fixture_end(&fixture, 1);
    assert_true(rk_time_now_ns() - begin_ns < rk_proc_timeout_ms(6000) * 1000000);
}

/* Goal: a failed Commit uses no sequence number and changes no state; the same call then succeeds. */
static void test_failed_commit_leaves_the_number_free(void **state)
{
    struct rk_execute_header header;
    struct fixture fixture;

    (void)state;
    start_with_faults(&fixture, "daemon.commit=fail", NULL);
    header = fixture_header(&fixture, "actor", "get_mesh_info");
    assert_fails(fixture_execute(&fixture, &header, NULL, NULL), RK_INTERNAL, "daemon.commit");
    assert_int_equal(fixture_last_seq(&fixture), 0);
    assert_ok(fixture_execute(&fixture, &header, NULL, NULL));
    assert_int_equal(fixture_last_seq(&fixture), 1);
    fixture_stop(&fixture);
}

/* Goal: a daemon that cannot create one of its threads prints an error and exits with 1. */
static void test_no_threads_ends_the_start(void **state)
{
    static const struct {
        const char *faults, *text;
    } cases[] = {
        {"thread.start=fail@1", "rankd: cannot start the thread of the watchdog: Resource temporarily"},
        {"thread.start=fail@2", "rankd: cannot start the thread of the engine: Resource temporarily"},
        {"thread.room=fail", "rankd: cannot start the thread of the gRPC core: Resource temporarily"},
        {"thread.start=fail@3", "rankd: cannot start the thread of the network guard: Resource temporarily"},
        {"thread.start=fail@4",
         "rankd: cannot start the thread of the completion queue: Resource temporarily"},
        {"thread.start=fail@4,server.abandon=sleep:600s", /* as in gRPC when it could not create threads */
         "rankd: cannot start the thread of the completion queue: Resource temporarily"},
    };

    (void)state;
#ifndef RK_FAULTS
    rk_test_skip("this build has no fault points");
#endif
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_proc *proc;
        char *errors;

        assert_int_equal(setenv("RANKD_FAULTS", cases[i].faults, 1), 0);
        proc = rk_proc_start_rankd(NULL);
        unsetenv("RANKD_FAULTS");
        assert_int_equal(rk_proc_wait(proc, STOP_MS), 1);
        errors = rk_proc_stderr(proc);
        if (!strstr(errors, cases[i].text))
            fail_msg("'%s' is not in: %s", cases[i].text, errors);
        rk_free(errors);
        rk_proc_destroy(proc);
    }
}

/* Goal: a batch that exceeds the host's free memory is rejected at its header, and the daemon continues. */
static void test_batch_beyond_the_free_memory_is_refused(void **state)
{
    enum { COLUMNS = 70000 }; /* two columns of I64: beyond the size that is accepted without a check */
    const int64_t matrix[] = {1, COLUMNS}, vector[] = {1};
    struct rk_execute_header header;
    struct rk_batch *batch, *small = fixture_prompts(1);
    struct fixture fixture;
    void *data;

    (void)state;
    start_with_faults(&fixture, "daemon.memory=fail", NULL);
    fixture_init_models(&fixture);
    assert_ok(rk_batch_create(&batch, 1));
    assert_ok(rk_batch_add_dense(batch, "prompts", RK_DTYPE_I64, 2, matrix, &data));
    assert_ok(rk_batch_add_dense(batch, "attention_mask", RK_DTYPE_I64, 2, matrix, &data));
    assert_ok(rk_batch_add_dense(batch, "stream", RK_DTYPE_I64, 1, vector, &data));
    header = fixture_header(&fixture, "rollout", "generate_sequences");
    fixture_set_options(&fixture, &header, "{\"response_length\": 4}");
    assert_fails(fixture_execute(&fixture, &header, batch, NULL), RK_RESOURCE_EXHAUSTED,
                 "the batch has 1120008 bytes, the host or a control group of the daemon leaves 33554432");
    header = fixture_header(&fixture, "rollout", "generate_sequences");
    fixture_set_options(&fixture, &header, "{\"response_length\": 4}");
    assert_ok(fixture_execute(&fixture, &header, small, NULL));
    rk_batch_destroy(small);
    rk_batch_destroy(batch);
    fixture_stop(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stuck_engine_is_given_up),
        cmocka_unit_test(test_stuck_method_is_answered_without_the_engine),
        cmocka_unit_test(test_failed_commit_leaves_the_number_free),
        cmocka_unit_test(test_batch_beyond_the_free_memory_is_refused),
        cmocka_unit_test(test_no_threads_ends_the_start),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
