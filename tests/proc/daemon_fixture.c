#include "tests/proc/daemon_fixture.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_time.h"
#include "proto/limits.h"

#define WAIT_MS    20000
#define PROMPT_LEN 4

/* The fixture does not renew its lease, which must outlast a test on a busy machine. */
#define LEASE_TTL "--lease.ttl="
#define ARGS_MAX  16

void fixture_start(struct fixture *fixture, const char *const *args)
{
    const char *all[ARGS_MAX + 2] = {LEASE_TTL "1h"};
    bool has_ttl = false;
    size_t count = 1;

    for (; args && *args; args++) {
        assert_true(count <= ARGS_MAX);
        has_ttl = has_ttl || strncmp(*args, LEASE_TTL, strlen(LEASE_TTL)) == 0;
        all[count++] = *args;
    }
    *fixture = (struct fixture){.next_seq = 1};
    fixture->proc = rk_proc_start_rankd(has_ttl ? all + 1 : all);
    fixture->client = rk_client_create(rk_proc_address(fixture->proc), NULL);
}

void fixture_lead(struct fixture *fixture)
{
    static const char *const roles[] = {"actor", "rollout", NULL};
    struct rk_acquire_lease_request request = {.driver_id = "test", .takeover = true};
    struct rk_worker_status status;

    assert_ok(rk_client_get_status(fixture->client, &status));
    request.epoch = status.epoch + 1;
    assert_ok(rk_client_acquire(fixture->client, &request, &fixture->lease));
    fixture->next_seq = 1;
    fixture->generation++;
    assert_ok(rk_client_configure_alone(fixture->client, &fixture->lease, fixture->generation, roles));
}

void fixture_init_models(struct fixture *fixture)
{
    static const char *const roles[] = {"actor", "rollout"};

    for (size_t i = 0; i < RK_ARRAY_LEN(roles); i++) {
        struct rk_execute_header header = fixture_header(fixture, roles[i], "init_model");

        fixture_set_options(fixture, &header, i == 0 ? FIXTURE_MODEL_OPTIONS : FIXTURE_ROLLOUT_OPTIONS);
        assert_ok(fixture_execute(fixture, &header, NULL, NULL));
    }
}

void fixture_stop(struct fixture *fixture)
{
    struct rk_shutdown_request request = {.force = true, .reason = "test"};
    struct rk_str packed = {0};

    rk_pack_shutdown_request(&packed, &request);
    assert_ok(rk_client_call(fixture->client, RK_RPC_ID_SHUTDOWN, &packed, NULL));
    rk_str_fini(&packed);
    fixture_end(fixture, 0);
}

void fixture_end(struct fixture *fixture, int expected_code)
{
    rk_batch_destroy(fixture->prompts);
    rk_client_destroy(fixture->client);
    assert_int_equal(rk_proc_wait(fixture->proc, WAIT_MS), expected_code);
    rk_proc_destroy(fixture->proc);
}

struct rk_execute_header fixture_header(struct fixture *fixture, const char *role, const char *method)
{
    uint8_t *id = rk_arena_alloc(rk_client_arena(fixture->client), 16);

    fixture->next_id++;
    memcpy(id, &fixture->next_id, sizeof(fixture->next_id));
    return (struct rk_execute_header){.fence = fixture->lease.fence,
                                      .request_id = {.data = id, .bytes = 16},
                                      .seq = fixture->next_seq,
                                      .mesh_generation = fixture->generation,
                                      .role = role,
                                      .method = method,
                                      .two_phase = true,
                                      .collect = true};
}

void fixture_set_options(struct fixture *fixture, struct rk_execute_header *header, const char *json)
{
    struct rk_json *options = NULL;
    struct rk_meta meta;

    assert_ok(rk_json_parse(&options, json, strlen(json), "options", 0));
    meta = rk_meta_from_json(rk_client_arena(fixture->client), options);
    for (int64_t i = 0; i < meta.count; i++)
        meta.entries[i].key = rk_arena_strdup(rk_client_arena(fixture->client), meta.entries[i].key);
    for (int64_t i = 0; i < meta.count; i++) {
        if (meta.entries[i].value.text)
            meta.entries[i].value.text =
                rk_arena_strdup(rk_client_arena(fixture->client), meta.entries[i].value.text);
    }
    header->options = meta;
    rk_json_free(options);
}

void fixture_set_input(struct fixture *fixture, struct rk_execute_header *header,
                       const struct rk_batch *input)
{
    assert_ok(rk_batch_describe(&header->input, NULL, rk_client_arena(fixture->client), input, NULL));
}

static void send_request(struct rk_client_stream *stream, const struct rk_execute_request *request)
{
    struct rk_str packed = {0};

    rk_pack_execute_request(&packed, request);
    rk_client_send(stream, &packed);
    rk_str_fini(&packed);
}

struct rk_client_stream *fixture_open(struct fixture *fixture, const struct rk_execute_header *header)
{
    struct rk_execute_request request = {.kind = RK_EXECUTE_HEADER, .header = *header};
    struct rk_client_stream *stream = rk_client_open(fixture->client, RK_RPC_ID_EXECUTE);

    send_request(stream, &request);
    return stream;
}

struct rk_client_stream *fixture_open_generate(struct fixture *fixture, struct rk_execute_header *header,
                                               const struct rk_batch *prompts)
{
    *header = fixture_header(fixture, "rollout", "generate_sequences");
    fixture_set_options(fixture, header, "{\"response_length\": 3}");
    fixture_set_input(fixture, header, prompts);
    return fixture_open(fixture, header);
}

void fixture_send_commit(struct rk_client_stream *stream)
{
    send_request(stream, &(struct rk_execute_request){.kind = RK_EXECUTE_COMMIT});
}

bool fixture_send_body(struct rk_client_stream *stream, const struct rk_batch *input)
{
    for (int64_t i = 0; i < rk_batch_num_columns(input); i++) {
        const struct rk_column *column = rk_batch_column_at(input, i);
        size_t bytes = rk_column_bytes(column);

        for (size_t offset = 0; offset < bytes; offset += RK_LIMIT_CHUNK_BYTES_DEFAULT) {
            size_t part = RK_MIN(bytes - offset, (size_t)RK_LIMIT_CHUNK_BYTES_DEFAULT);

            if (!rk_client_send_chunk(stream, (uint32_t)i, offset,
                                      (const char *)rk_column_values(column) + offset, part))
                return false;
        }
    }
    return true;
}

bool fixture_read_accepted(struct fixture *fixture, struct rk_client_stream *stream, struct rk_accepted *out)
{
    struct rk_execute_response response;
    struct rk_bytes bytes;

    if (!rk_client_receive(stream, &bytes))
        return false;
    assert_ok(
        rk_unpack_execute_response(&response, rk_client_arena(fixture->client), bytes.data, bytes.bytes));
    assert_int_equal(response.kind, RK_RESPONSE_ACCEPTED);
    *out = response.accepted;
    return true;
}

void fixture_read_result(struct fixture *fixture, struct rk_client_stream *stream, struct rk_batch **out)
{
    struct rk_arena *arena = rk_client_arena(fixture->client);
    struct rk_execute_response response;
    struct rk_batch *batch = NULL;
    struct rk_stream_frame frame;
    struct rk_bytes bytes;
    void **data = NULL;

    while (rk_client_receive_frame(stream, &frame, &bytes)) {
        if (frame.is_chunk) {
            assert_non_null(batch);
            memcpy((char *)data[frame.chunk.tensor] + frame.chunk.offset, bytes.data, bytes.bytes);
            continue;
        }
        assert_ok(rk_unpack_execute_response(&response, arena, bytes.data, bytes.bytes));
        if (response.kind == RK_RESPONSE_RESULT)
            assert_ok(rk_batch_from_spec(&batch, &data, arena, &response.result.output));
    }
    if (out)
        *out = batch;
    else
        rk_batch_destroy(batch);
}

struct rk_status *fixture_execute(struct fixture *fixture, struct rk_execute_header *header,
                                  const struct rk_batch *input, struct rk_batch **out)
{
    struct rk_client_stream *stream;
    struct rk_accepted accepted;

    if (out)
        *out = NULL;
    if (input)
        fixture_set_input(fixture, header, input);
    stream = fixture_open(fixture, header);
    if ((!input || fixture_send_body(stream, input)) && fixture_read_accepted(fixture, stream, &accepted)) {
        if (!accepted.is_replayed)
            fixture->next_seq++;
        fixture_send_commit(stream);
        rk_client_half_close(stream);
        fixture_read_result(fixture, stream, out);
    }
    return rk_client_finish(stream);
}

struct rk_batch *fixture_prompts(int64_t num_rows)
{
    const int64_t matrix[] = {num_rows, PROMPT_LEN}, vector[] = {num_rows};
    struct rk_batch *batch = NULL;
    void *prompts, *mask, *streams;

    assert_ok(rk_batch_create(&batch, num_rows));
    assert_ok(rk_batch_add_dense(batch, "prompts", RK_DTYPE_I64, 2, matrix, &prompts));
    assert_ok(rk_batch_add_dense(batch, "attention_mask", RK_DTYPE_I64, 2, matrix, &mask));
    assert_ok(rk_batch_add_dense(batch, "stream", RK_DTYPE_I64, 1, vector, &streams));
    for (int64_t i = 0; i < num_rows * PROMPT_LEN; i++) {
        ((int64_t *)prompts)[i] = 1 + i % 60;
        ((int64_t *)mask)[i] = 1;
    }
    for (int64_t i = 0; i < num_rows; i++)
        ((int64_t *)streams)[i] = i;
    return batch;
}

struct rk_execute_header fixture_endless_header(struct fixture *fixture)
{
    struct rk_execute_header header = fixture_header(fixture, "rollout", "generate_sequences");

    fixture_set_options(fixture, &header, FIXTURE_ENDLESS_OPTIONS);
    return header;
}

struct rk_client_stream *fixture_start_endless(struct fixture *fixture, struct rk_execute_header *header)
{
    struct rk_client_stream *stream;
    struct rk_accepted accepted;

    if (!fixture->prompts)
        fixture->prompts = fixture_prompts(4);
    *header = fixture_endless_header(fixture);
    fixture_set_input(fixture, header, fixture->prompts);
    stream = fixture_open(fixture, header);
    assert_true(fixture_send_body(stream, fixture->prompts));
    assert_true(fixture_read_accepted(fixture, stream, &accepted));
    fixture_send_commit(stream);
    fixture->next_seq++;
    fixture_wait_state(fixture, "BUSY");
    return stream;
}

uint64_t fixture_last_seq(struct fixture *fixture)
{
    struct rk_worker_status status;

    assert_ok(rk_client_get_status(fixture->client, &status));
    return status.last_seq;
}

struct rk_status *fixture_cancel(struct fixture *fixture, const struct rk_execute_header *header,
                                 bool abort_comm, char outcome[32])
{
    struct rk_cancel_request request = {.fence = fixture->lease.fence,
                                        .request_id = header->request_id,
                                        .abort_comm = abort_comm,
                                        .reason = "the test says so"};
    struct rk_cancel_response response;
    struct rk_str packed = {0};
    struct rk_bytes reply;
    struct rk_status *st;

    rk_pack_cancel_request(&packed, &request);
    st = rk_client_call(fixture->client, RK_RPC_ID_CANCEL, &packed, &reply);
    rk_str_fini(&packed);
    if (st)
        return st;
    RK_TRY(rk_unpack_cancel_response(&response, rk_client_arena(fixture->client), reply.data, reply.bytes));
    snprintf(outcome, 32, "%s", response.outcome);
    return NULL;
}

struct rk_status *fixture_generate(struct fixture *fixture, int64_t num_rows)
{
    struct rk_execute_header header = fixture_header(fixture, "rollout", "generate_sequences");
    struct rk_batch *prompts = fixture_prompts(num_rows);
    struct rk_status *st;

    fixture_set_options(fixture, &header, "{\"response_length\": 3}");
    st = fixture_execute(fixture, &header, prompts, NULL);
    rk_batch_destroy(prompts);
    return st;
}

void fixture_wait_state(struct fixture *fixture, const char *state)
{
    int64_t deadline_ns = rk_time_now_ns() + rk_proc_timeout_ms(WAIT_MS) * 1000000;
    struct rk_worker_status status;

    do {
        assert_ok(rk_client_get_status(fixture->client, &status));
        if (strcmp(status.state, state) == 0 && (strcmp(state, "BUSY") != 0 || status.running_ms > 0))
            return; /* BUSY: and the engine has begun */
        rk_time_sleep_ms(20);
    } while (rk_time_now_ns() < deadline_ns);
    fail_msg("the daemon is %s, expected %s", status.state, state);
}

void fixture_assert_refused(struct rk_status *st, rk_code_t code, const char *reason, const char *expr,
                            const char *file, int line)
{
    bool is_equal = rk_status_code(st) == code && strcmp(rk_status_reason(st), reason) == 0;

    if (!is_equal)
        print_error("%s\n  expected %s %s\n  got %s %s: %s\n", expr, rk_code_name(code), reason,
                    rk_code_name(rk_status_code(st)), rk_status_reason(st), rk_status_message(st));
    rk_status_free(st);
    if (!is_equal)
        _fail(file, line);
}
