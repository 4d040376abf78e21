/* Committed calls: repeated, disconnected, cancelled, queued, and during the shutdown of a daemon. */
#include <signal.h>
#include <string.h>

#include "base/rk_array.h"
#include "base/rk_time.h"
#include "tests/proc/daemon_fixture.h"

#define ANSWER_MS 2000

/* Goal: a repeated request gets the same result and is not run again, also from a new driver in a new epoch
 * and after another Configure; a different header with its id is rejected. */
static void test_execute_repeated_request_is_replayed(void **state)
{
    struct rk_batch *prompts = fixture_prompts(2), *first = NULL, *again = NULL;
    struct rk_execute_header header, other;
    struct fixture fixture;

    (void)state;
    fixture_start(&fixture, NULL);
    fixture_lead(&fixture);
    fixture_init_models(&fixture);
    header = fixture_header(&fixture, "rollout", "generate_sequences");
    fixture_set_options(&fixture, &header, "{\"response_length\": 3}");
    assert_ok(fixture_execute(&fixture, &header, prompts, &first));
    /* With the chunks, like a client without further knowledge, and without them: they are not needed. */
    for (int with_body = 0; with_body < 2; with_body++) {
        fixture_set_input(&fixture, &header, prompts);
        assert_ok(fixture_execute(&fixture, &header, with_body ? prompts : NULL, &again));
        assert_non_null(again);
        for (int64_t i = 0; i < rk_batch_num_columns(first); i++)
            assert_true(rk_column_equal(rk_batch_column_at(first, i),
                                        rk_batch_find(again, rk_batch_name_at(first, i))));
        rk_batch_destroy(again);
        assert_int_equal(fixture_last_seq(&fixture), 3);
    }

    other = header;
    fixture_set_options(&fixture, &other, "{\"response_length\": 4}");
    assert_refused(fixture_execute(&fixture, &other, NULL, NULL), RK_INVALID_ARGUMENT, "DIGEST_MISMATCH");

    fixture_lead(&fixture);
    header.fence = fixture.lease.fence;
    header.seq = fixture.next_seq;
    header.mesh_generation = fixture.generation;
    assert_ok(fixture_execute(&fixture, &header, NULL, &again));
    assert_int_equal(rk_batch_num_rows(again), 2);
    rk_batch_destroy(again);
    rk_batch_destroy(first);
    rk_batch_destroy(prompts);
    fixture_stop(&fixture);
}

/* Goal: a call continues when its stream breaks after Commit; repeating it, with its chunks, attaches to it,
 * and Cancel ends it. */
static void test_execute_broken_after_commit_goes_on(void **state)
{
    static const char filler[64 << 10];
    struct rk_client_stream *stream;
    struct rk_execute_header header;
    struct rk_worker_status status;
    struct rk_accepted accepted;
    struct fixture fixture;
    char outcome[32];

    (void)state;
    fixture_start(&fixture, NULL);
    fixture_lead(&fixture);
    fixture_init_models(&fixture);
    stream = fixture_start_endless(&fixture, &header);
    rk_client_cancel(stream);
    assert_fails(rk_client_finish(stream), RK_CANCELLED, "");
    rk_time_sleep_ms(200);
    assert_ok(rk_client_get_status(fixture.client, &status));
    assert_string_equal(status.state, "BUSY");
    assert_string_equal(status.method, "rollout.generate_sequences");
    assert_memory_equal(status.request_id.data, header.request_id.data, 16);

    /* Repeats the whole call; one of the chunks' messages is larger than a Commit. */
    stream = fixture_open(&fixture, &header);
    assert_true(fixture_send_body(stream, fixture.prompts));
    assert_true(rk_client_send_chunk(stream, 0, 0, filler, sizeof(filler)));
    fixture_send_commit(stream);
    assert_true(fixture_read_accepted(&fixture, stream, &accepted));
    assert_true(accepted.is_replayed);
    rk_client_half_close(stream);
    rk_time_sleep_ms(200);
    assert_ok(fixture_cancel(&fixture, &header, false, outcome));
    assert_string_equal(outcome, "flagged");
    fixture_read_result(&fixture, stream, NULL);
    assert_fails(rk_client_finish(stream), RK_CANCELLED, "the test says so");
    assert_ok(fixture_cancel(&fixture, &header, false, outcome));
    assert_string_equal(outcome, "already_done");
    stream = fixture_open(&fixture, &header); /* an error is a valid result too */
    assert_true(fixture_read_accepted(&fixture, stream, &accepted));
    assert_true(accepted.is_replayed);
    assert_fails(rk_client_finish(stream), RK_CANCELLED, "the test says so");
    assert_ok(rk_client_get_status(fixture.client, &status));
    assert_non_null(strstr(status.last_error, "rollout.generate_sequences: CANCELLED"));
    assert_string_equal(status.state, "READY");
    fixture_stop(&fixture);
}

/* Goal: status, health and rejections are immediate while the engine works, and progress is reported. */
static void test_execute_status_answers_while_busy(void **state)
{
    struct rk_client_stream *stream;
    struct rk_execute_header header;
    struct rk_worker_status status;
    struct fixture fixture;
    char outcome[32];
    uint64_t done = 0;

    (void)state;
    fixture_start(&fixture, NULL);
    fixture_lead(&fixture);
    fixture_init_models(&fixture);
    stream = fixture_start_endless(&fixture, &header);
    for (int i = 0; i < 20 || (status.progress.total == 0 && i < 1000); i++) {
        int64_t begin_ns = rk_time_now_ns();

        assert_ok(rk_client_get_status(fixture.client, &status));
        assert_true(rk_time_now_ns() - begin_ns < rk_proc_timeout_ms(ANSWER_MS) * 1000000);
        assert_string_equal(status.state, "BUSY");
        assert_true(status.progress.done >= done);
        done = status.progress.done;
        rk_time_sleep_ms(20);
    }
    assert_string_equal(status.progress.phase, "generate");
    assert_int_equal(status.progress.total, 4);
    assert_true(status.running_ms > 0);
    assert_ok(fixture_cancel(&fixture, &header, false, outcome));
    fixture_read_result(&fixture, stream, NULL);
    assert_fails(rk_client_finish(stream), RK_CANCELLED, "");
    fixture_stop(&fixture);
}

/* Goal: a call behind the running one is queued and can be cancelled; the method timeout ends the running
 * one. */
static void test_execute_queue_and_timeout(void **state)
{
    struct rk_batch *prompts = fixture_prompts(4);
    struct rk_execute_header first, second;
    struct rk_client_stream *running, *waiting;
    struct rk_accepted accepted;
    struct fixture fixture;
    char outcome[32];

    (void)state;
    fixture_start(&fixture, NULL);
    fixture_lead(&fixture);
    fixture_init_models(&fixture);
    first = fixture_endless_header(&fixture);
    first.timeout_ms = 1500;
    fixture_set_input(&fixture, &first, prompts);
    running = fixture_open(&fixture, &first);
    assert_true(fixture_send_body(running, prompts));
    assert_true(fixture_read_accepted(&fixture, running, &accepted));
    fixture_send_commit(running);
    fixture.next_seq++;

    waiting = fixture_open_generate(&fixture, &second, prompts);
    assert_true(fixture_send_body(waiting, prompts));
    assert_true(fixture_read_accepted(&fixture, waiting, &accepted));
    fixture_send_commit(waiting);
    fixture.next_seq++;
    rk_time_sleep_ms(300);
    assert_ok(fixture_cancel(&fixture, &second, false, outcome));
    assert_string_equal(outcome, "flagged");

    fixture_read_result(&fixture, running, NULL);
    assert_refused(rk_client_finish(running), RK_DEADLINE_EXCEEDED, "WATCHDOG");
    fixture_read_result(&fixture, waiting, NULL);
    assert_fails(rk_client_finish(waiting), RK_CANCELLED, "the test says so");
    rk_batch_destroy(prompts);
    fixture_stop(&fixture);
}

/* Goal: equal calls have equal hashes, and every property that ranks must agree on changes the hash. */
static void test_execute_plan_hash_covers_method_and_options(void **state)
{
    static const struct {
        const char *method, *options;
        bool is_equal;
    } cases[] = {
        {"get_mesh_info", NULL, true},
        {"init_model", "{\"share_weights_of\": \"rollout\"}", false},
        {"init_model", "{\"share_weights_of\": \"rollout\", \"optim.lr\": 1e-6}", false},
    };
    uint8_t hashes[RK_ARRAY_LEN(cases)][32];
    struct fixture fixture;

    (void)state;
    fixture_start(&fixture, NULL);
    fixture_lead(&fixture);
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        for (int repetition = 0; repetition < 2; repetition++) {
            struct rk_execute_header header = fixture_header(&fixture, "actor", cases[i].method);
            struct rk_client_stream *stream;
            struct rk_accepted accepted;

            if (cases[i].options)
                fixture_set_options(&fixture, &header, cases[i].options);
            stream = fixture_open(&fixture, &header);
            assert_true(fixture_read_accepted(&fixture, stream, &accepted));
            assert_int_equal(accepted.plan_hash.bytes, 32);
            if (repetition == 0)
                memcpy(hashes[i], accepted.plan_hash.data, 32);
            else
                assert_memory_equal(hashes[i], accepted.plan_hash.data, 32);
            rk_client_half_close(stream); /* without Commit: the number can be reused */
            assert_fails(rk_client_finish(stream), RK_CANCELLED, "without Commit");
        }
    }
    assert_memory_not_equal(hashes[0], hashes[1], 32);
    assert_memory_equal(hashes[1], hashes[2], 32); /* the option's default, given explicitly */
    fixture_stop(&fixture);
}

/* One Execute of the method: its hash and its log-probs. */
static void infer(struct fixture *fixture, const char *method, const struct rk_batch *tokens,
                  uint8_t hash[32], struct rk_batch **out)
{
    const uint32_t rows[] = {0, 1};
    struct rk_micro_batch micro = {.num_rows = 2, .rows = rows, .num_tokens = 14};
    struct rk_mini_batch mini = {
        .num_micro = 1, .num_entries = 1, .micro = &micro, .num_tokens = 1, .num_sequences = 1};
    struct rk_execute_header header = fixture_header(fixture, "actor", method);
    struct rk_client_stream *stream;
    struct rk_accepted accepted;

    header.plan = (struct rk_plan){.num_mini = 1, .mini = &mini};
    fixture_set_input(fixture, &header, tokens);
    stream = fixture_open(fixture, &header);
    assert_true(fixture_send_body(stream, tokens));
    assert_true(fixture_read_accepted(fixture, stream, &accepted));
    assert_int_equal(accepted.plan_hash.bytes, 32);
    memcpy(hash, accepted.plan_hash.data, 32);
    fixture_send_commit(stream);
    fixture->next_seq++;
    fixture_read_result(fixture, stream, out);
    assert_ok(rk_client_finish(stream));
}

/* Goal: a daemon accepts a method's alias: the call has the method's hash, so that ranks may use either name,
 * and its result. */
static void test_execute_takes_an_alias(void **state)
{
    static const char *const columns[] = {"input_ids", "attention_mask", "position_ids", "responses", NULL};
    struct rk_batch *prompts = fixture_prompts(2), *rollout, *tokens, *first, *second;
    uint8_t hashes[2][32];
    struct rk_execute_header header;
    struct fixture fixture;

    (void)state;
    fixture_start(&fixture, NULL);
    fixture_lead(&fixture);
    fixture_init_models(&fixture);
    header = fixture_header(&fixture, "rollout", "generate_sequences");
    fixture_set_options(&fixture, &header, "{\"response_length\": 3}");
    assert_ok(fixture_execute(&fixture, &header, prompts, &rollout));
    assert_ok(rk_batch_select(&tokens, rollout, columns, NULL));
    infer(&fixture, "compute_log_prob", tokens, hashes[0], &first);
    infer(&fixture, "infer_batch", tokens, hashes[1], &second);
    assert_memory_equal(hashes[0], hashes[1], 32);
    assert_true(
        rk_column_equal(rk_batch_find(first, "old_log_probs"), rk_batch_find(second, "old_log_probs")));
    rk_batch_destroy(first);
    rk_batch_destroy(second);
    rk_batch_destroy(tokens);
    rk_batch_destroy(rollout);
    rk_batch_destroy(prompts);
    fixture_stop(&fixture);
}

/* Goal: a result of many chunks arrives complete, and only the requested columns of a collecting rank are
 * sent. */
static void test_execute_result_columns_and_chunks(void **state)
{
    static const char *const args[] = {"--rpc.chunk=64KiB", NULL};
    static const char *const want[] = {"responses", "input_ids"};
    struct rk_batch *prompts = fixture_prompts(4), *out = NULL;
    struct rk_execute_header header;
    struct fixture fixture;
    const void *responses, *input_ids;
    int64_t shape[2];

    (void)state;
    fixture_start(&fixture, args);
    fixture_lead(&fixture);
    fixture_init_models(&fixture);
    header = fixture_header(&fixture, "rollout", "generate_sequences");
    fixture_set_options(&fixture, &header,
                        "{\"response_length\": 3000, \"eos_token_id\": [0, 1, 2, 3, 4, 5, 6, 7]}");
    header.want = want;
    header.num_want = 2;
    assert_ok(fixture_execute(&fixture, &header, prompts, &out));
    assert_int_equal(rk_batch_num_columns(out), 2);
    assert_ok(rk_batch_get_dense(out, "responses", RK_DTYPE_I64, 2, shape, &responses));
    assert_int_equal(shape[1], 3000);
    assert_ok(rk_batch_get_dense(out, "input_ids", RK_DTYPE_I64, 2, shape, &input_ids));
    for (int64_t row = 0; row < 4; row++)
        assert_memory_equal((const int64_t *)input_ids + row * 3004 + 4,
                            (const int64_t *)responses + row * 3000, 3000 * sizeof(int64_t));
    rk_batch_destroy(out);

    header = fixture_header(&fixture, "rollout", "generate_sequences");
    fixture_set_options(&fixture, &header, "{\"response_length\": 3}");
    header.collect = false;
    assert_ok(fixture_execute(&fixture, &header, prompts, &out));
    assert_int_equal(rk_batch_num_columns(out), 0);
    rk_batch_destroy(out);
    rk_batch_destroy(prompts);
    fixture_stop(&fixture);
}

/* --- ends --- */

/* Goal: SIGTERM lets a running call end within the grace period and then cancels it; meanwhile new calls are
 * rejected. A second signal cancels at once. */
static void check_sigterm_when_busy(const char *grace, int num_signals, int64_t at_least_ms,
                                    int64_t at_most_ms)
{
    const char *args[] = {grace, NULL};
    struct rk_client_stream *stream;
    struct rk_execute_header header, late;
    struct fixture fixture;
    int64_t begin_ns, took_ms;

    fixture_start(&fixture, args);
    fixture_lead(&fixture);
    fixture_init_models(&fixture);
    stream = fixture_start_endless(&fixture, &header);
    begin_ns = rk_time_now_ns();
    rk_proc_signal(fixture.proc, SIGTERM);
    fixture_wait_state(&fixture, "DRAINING");
    late = fixture_header(&fixture, "actor", "get_mesh_info");
    assert_refused(fixture_execute(&fixture, &late, NULL, NULL), RK_FAILED_PRECONDITION, "DRAINING");
    for (int i = 1; i < num_signals; i++)
        rk_proc_signal(fixture.proc, SIGTERM);
    fixture_read_result(&fixture, stream, NULL);
    assert_fails(rk_client_finish(stream), RK_CANCELLED, "the daemon stops");
    fixture_end(&fixture, 0);
    took_ms = (rk_time_now_ns() - begin_ns) / 1000000;
    assert_true(took_ms >= at_least_ms);
    assert_true(took_ms <= rk_proc_timeout_ms(at_most_ms));
}

static void test_sigterm_when_busy_waits_then_cancels(void **state)
{
    (void)state;
    check_sigterm_when_busy("--drain.grace=1500ms", 1, 1400, 10000);
    check_sigterm_when_busy("--drain.grace=60s", 2, 0, 10000);
}

/* Goal: a waiting Drain returns after its timeout with the state, and undo reverts it. */
static void test_drain_waits_up_to_its_timeout(void **state)
{
    struct rk_drain_request request = {.timeout_ms = 700, .reason = "test"};
    struct rk_drain_response response;
    struct rk_client_stream *stream;
    struct rk_execute_header header;
    struct rk_str packed = {0};
    struct rk_bytes reply;
    struct fixture fixture;
    int64_t begin_ns;

    (void)state;
    fixture_start(&fixture, NULL);
    fixture_lead(&fixture);
    fixture_init_models(&fixture);
    stream = fixture_start_endless(&fixture, &header);
    begin_ns = rk_time_now_ns();
    rk_pack_drain_request(&packed, &request);
    assert_ok(rk_client_call(fixture.client, RK_RPC_ID_DRAIN, &packed, &reply));
    assert_true(rk_time_now_ns() - begin_ns > 650 * 1000000LL);
    assert_ok(rk_unpack_drain_response(&response, rk_client_arena(fixture.client), reply.data, reply.bytes));
    assert_string_equal(response.state, "DRAINING");

    rk_str_clear(&packed);
    rk_pack_drain_request(&packed, &(struct rk_drain_request){.undo = true});
    assert_ok(rk_client_call(fixture.client, RK_RPC_ID_DRAIN, &packed, &reply));
    assert_ok(rk_unpack_drain_response(&response, rk_client_arena(fixture.client), reply.data, reply.bytes));
    assert_string_equal(response.state, "BUSY");
    rk_client_cancel(stream);
    assert_fails(rk_client_finish(stream), RK_CANCELLED, "");
    rk_str_fini(&packed);
    fixture_stop(&fixture);
}

/* --- brief calls --- */

static struct rk_execute_header brief_header(struct fixture *fixture)
{
    struct rk_execute_header header = fixture_header(fixture, "actor", "get_mesh_info");

    header.brief = true;
    header.two_phase = false;
    header.seq = 0;
    return header;
}

/* Reads the result, which must be the first and only message; returns the stream's status. */
static struct rk_status *read_brief(struct fixture *fixture, struct rk_client_stream *stream)
{
    struct rk_execute_response response;
    struct rk_bytes bytes;

    if (rk_client_receive(stream, &bytes)) {
        assert_ok(
            rk_unpack_execute_response(&response, rk_client_arena(fixture->client), bytes.data, bytes.bytes));
        assert_int_equal(response.kind, RK_RESPONSE_RESULT);
        assert_true(response.result.output.meta.count > 0);
        assert_false(rk_client_receive(stream, &bytes));
    }
    return rk_client_finish(stream);
}

static struct rk_status *run_brief(struct fixture *fixture, const struct rk_execute_header *header)
{
    struct rk_client_stream *stream = fixture_open(fixture, header);

    rk_client_half_close(stream);
    return read_brief(fixture, stream);
}

/* Goal: the only message of the daemon is the result, no seq is consumed, and a repetition is answered. */
static void test_brief_call_has_one_message_and_no_seq(void **state)
{
    struct rk_execute_header header, other;
    struct fixture fixture;

    (void)state;
    fixture_start(&fixture, NULL);
    fixture_lead(&fixture);
    header = brief_header(&fixture);
    for (int i = 0; i < 2; i++) {
        assert_ok(run_brief(&fixture, &header));
        assert_int_equal(fixture_last_seq(&fixture), 0);
    }
    other = header;
    other.method = "memory_report";
    assert_refused(run_brief(&fixture, &other), RK_INVALID_ARGUMENT, "DIGEST_MISMATCH");
    other = brief_header(&fixture);
    other.method = "memory_report";
    assert_ok(run_brief(&fixture, &other));
    other = fixture_header(&fixture, "actor", "get_mesh_info");
    assert_ok(fixture_execute(&fixture, &other, NULL, NULL));
    assert_int_equal(fixture_last_seq(&fixture), 1);
    fixture_stop(&fixture);
}

/* Goal: a brief call must not claim what belongs to ordinary ones, and needs the fence as they do. */
static void test_brief_call_with_a_wrong_header_is_refused(void **state)
{
    struct rk_execute_header header;
    struct fixture fixture;

    (void)state;
    fixture_start(&fixture, NULL);
    fixture_lead(&fixture);
    header = brief_header(&fixture);
    header.two_phase = true;
    assert_refused(run_brief(&fixture, &header), RK_INVALID_ARGUMENT, "BAD_FIELD");
    header = brief_header(&fixture);
    header.seq = fixture.next_seq;
    assert_refused(run_brief(&fixture, &header), RK_INVALID_ARGUMENT, "BAD_FIELD");
    header = brief_header(&fixture);
    header.method = "start_profile";
    assert_refused(run_brief(&fixture, &header), RK_INVALID_ARGUMENT, "BAD_FIELD");
    header = brief_header(&fixture);
    header.fence.epoch--;
    assert_refused(run_brief(&fixture, &header), RK_FAILED_PRECONDITION, "STALE_EPOCH");
    header = brief_header(&fixture);
    header.mesh_generation++;
    assert_refused(run_brief(&fixture, &header), RK_FAILED_PRECONDITION, "WRONG_MESH");
    assert_int_equal(fixture_last_seq(&fixture), 0);
    fixture_stop(&fixture);
}

/* Goal: a call that is open and not committed does not hinder a brief one, nor the reverse; behind a running
 * call a brief one waits, and the RPC Cancel reaches it. */
static void test_brief_call_beside_others(void **state)
{
    struct rk_client_stream *stream, *brief;
    struct rk_execute_header header, info;
    struct rk_accepted accepted;
    struct fixture fixture;
    char outcome[32];

    (void)state;
    fixture_start(&fixture, NULL);
    fixture_lead(&fixture);
    fixture_init_models(&fixture);
    header = fixture_header(&fixture, "actor", "get_mesh_info");
    stream = fixture_open(&fixture, &header);
    assert_true(fixture_read_accepted(&fixture, stream, &accepted));
    info = brief_header(&fixture);
    assert_ok(run_brief(&fixture, &info));
    fixture_send_commit(stream);
    rk_client_half_close(stream);
    fixture_read_result(&fixture, stream, NULL);
    assert_ok(rk_client_finish(stream));
    fixture.next_seq++;

    stream = fixture_start_endless(&fixture, &header);
    info = brief_header(&fixture);
    brief = fixture_open(&fixture, &info);
    rk_client_half_close(brief);
    do { /* until it has arrived */
        rk_time_sleep_ms(5);
        assert_ok(fixture_cancel(&fixture, &info, false, outcome));
    } while (strcmp(outcome, "not_found") == 0);
    assert_string_equal(outcome, "flagged"); /* it is queued, and other ranks might have begun */
    rk_client_cancel(stream);
    assert_fails(rk_client_finish(stream), RK_CANCELLED, "");
    assert_ok(fixture_cancel(&fixture, &header, false, outcome));
    RK_IGNORE(read_brief(&fixture, brief), "a method that does not check for cancels ends with OK");
    fixture_stop(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_execute_repeated_request_is_replayed),
        cmocka_unit_test(test_execute_broken_after_commit_goes_on),
        cmocka_unit_test(test_execute_status_answers_while_busy),
        cmocka_unit_test(test_execute_queue_and_timeout),
        cmocka_unit_test(test_execute_plan_hash_covers_method_and_options),
        cmocka_unit_test(test_execute_takes_an_alias),
        cmocka_unit_test(test_execute_result_columns_and_chunks),
        cmocka_unit_test(test_sigterm_when_busy_waits_then_cancels),
        cmocka_unit_test(test_drain_waits_up_to_its_timeout),
        cmocka_unit_test(test_brief_call_has_one_message_and_no_seq),
        cmocka_unit_test(test_brief_call_with_a_wrong_header_is_refused),
        cmocka_unit_test(test_brief_call_beside_others),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
