/* Execute: calls that are rejected before they run, and leave no state. */
#include <string.h>

#include "base/rk_time.h"
#include "tests/proc/daemon_fixture.h"

/* --- rejected headers --- */

/* Invalidates a valid header of rollout.generate_sequences. */
struct spoiler {
    const char *label;
    void (*spoil)(struct fixture *fixture, struct rk_execute_header *header);
    rk_code_t code;
    const char *reason, *text;
};

static void no_role(struct fixture *fixture, struct rk_execute_header *header)
{
    (void)fixture;
    header->role = "juggler";
}

static void no_method(struct fixture *fixture, struct rk_execute_header *header)
{
    (void)fixture;
    header->method = "juggle";
}

static void wrong_role(struct fixture *fixture, struct rk_execute_header *header)
{
    (void)fixture;
    header->role = "actor";
}

static void unconfigured_role(struct fixture *fixture, struct rk_execute_header *header)
{
    (void)fixture;
    header->role = "critic";
    header->method = "get_mesh_info";
}

static void wrong_mesh(struct fixture *fixture, struct rk_execute_header *header)
{
    (void)fixture;
    header->mesh_generation++;
}

static void seq_gap(struct fixture *fixture, struct rk_execute_header *header)
{
    (void)fixture;
    header->seq++;
}

static void seq_zero(struct fixture *fixture, struct rk_execute_header *header)
{
    (void)fixture;
    header->seq = 0;
}

static void seq_used(struct fixture *fixture, struct rk_execute_header *header)
{
    (void)fixture;
    header->seq = 1;
}

static void short_id(struct fixture *fixture, struct rk_execute_header *header)
{
    (void)fixture;
    header->request_id.bytes = 15;
}

static void wrong_epoch(struct fixture *fixture, struct rk_execute_header *header)
{
    (void)fixture;
    header->fence.epoch--;
}

static void brief_collective(struct fixture *fixture, struct rk_execute_header *header)
{
    (void)fixture;
    header->brief = true;
    header->two_phase = false;
    header->seq = 0;
}

static void missing_column(struct fixture *fixture, struct rk_execute_header *header)
{
    (void)fixture;
    header->input.num_tensors--;
}

static void renamed_column(struct fixture *fixture, struct rk_execute_header *header)
{
    (void)fixture;
    header->input.tensors[0].name = "promts";
}

static void wrong_dtype(struct fixture *fixture, struct rk_execute_header *header)
{
    (void)fixture;
    header->input.tensors[0].dtype = RK_DTYPE_F64; /* of the same size */
}

static void wrong_length(struct fixture *fixture, struct rk_execute_header *header)
{
    int64_t *shape = rk_arena_alloc(rk_client_arena(fixture->client), 2 * sizeof(*shape));

    shape[0] = header->input.tensors[1].shape[0];
    shape[1] = header->input.tensors[1].shape[1] + 1;
    header->input.tensors[1].shape = shape;
    header->input.tensors[1].byte_size = (uint64_t)(shape[0] * shape[1]) * 8;
}

static void wrong_rows(struct fixture *fixture, struct rk_execute_header *header)
{
    (void)fixture;
    header->input.batch_size++;
}

static void wrong_byte_size(struct fixture *fixture, struct rk_execute_header *header)
{
    (void)fixture;
    header->input.tensors[0].byte_size--;
}

/* 2^40 rows of the same width in every column: consistent, but more than any memory. */
static void huge(struct fixture *fixture, struct rk_execute_header *header)
{
    const int64_t num_rows = 1LL << 40;

    header->input.batch_size = num_rows;
    for (int64_t i = 0; i < header->input.num_tensors; i++) {
        struct rk_tensor_spec *tensor = &header->input.tensors[i];
        int64_t *shape = rk_arena_alloc(rk_client_arena(fixture->client), 2 * sizeof(*shape));

        tensor->byte_size = tensor->byte_size / (uint64_t)tensor->shape[0] * (uint64_t)num_rows;
        shape[0] = num_rows;
        shape[1] = tensor->rank > 1 ? tensor->shape[1] : 0;
        tensor->shape = shape;
    }
}

static void unknown_option(struct fixture *fixture, struct rk_execute_header *header)
{
    fixture_set_options(fixture, header, "{\"response_length\": 3, \"temprature\": 1.0}");
}

static void missing_option(struct fixture *fixture, struct rk_execute_header *header)
{
    fixture_set_options(fixture, header, "{\"top_k\": 3}");
}

static void wrong_option(struct fixture *fixture, struct rk_execute_header *header)
{
    fixture_set_options(fixture, header, "{\"response_length\": \"long\"}");
}

static void unknown_want(struct fixture *fixture, struct rk_execute_header *header)
{
    static const char *const want[] = {"responses", "rewards"};

    (void)fixture;
    header->want = want;
    header->num_want = 2;
}

static void with_plan(struct fixture *fixture, struct rk_execute_header *header)
{
    static struct rk_mini_batch mini = {.num_tokens = 1};

    (void)fixture;
    header->plan = (struct rk_plan){.num_mini = 1, .mini = &mini};
}

/* 2 MiB of one option. */
static void long_header(struct fixture *fixture, struct rk_execute_header *header)
{
    size_t bytes = 2 << 20;
    char *text = rk_arena_alloc(rk_client_arena(fixture->client), bytes + 1);
    struct rk_meta_entry *entry = rk_arena_calloc(rk_client_arena(fixture->client), 1, sizeof(*entry));

    memset(text, 'x', bytes);
    text[bytes] = '\0';
    *entry = (struct rk_meta_entry){.key = "eos_token_id", .value = {.kind = RK_SCALAR_STRING, .text = text}};
    header->options = (struct rk_meta){.count = 1, .entries = entry};
}

static const struct spoiler spoilers[] = {
    {"role", no_role, RK_NOT_FOUND, "UNKNOWN_ROLE", "juggler"},
    {"method", no_method, RK_NOT_FOUND, "UNKNOWN_METHOD", "juggle"},
    {"method of another role", wrong_role, RK_INVALID_ARGUMENT, "BAD_FIELD", "expected one of rollout"},
    {"role without a mesh", unconfigured_role, RK_FAILED_PRECONDITION, "NOT_CONFIGURED", "critic"},
    {"mesh generation", wrong_mesh, RK_FAILED_PRECONDITION, "WRONG_MESH", "mesh_generation=2"},
    {"seq gap", seq_gap, RK_FAILED_PRECONDITION, "SEQ_GAP", "expected 3"},
    {"seq 0", seq_zero, RK_INVALID_ARGUMENT, "BAD_FIELD", "seq=0"},
    {"used seq", seq_used, RK_ABORTED, "RESULT_EXPIRED", "the next is 3"},
    {"short request_id", short_id, RK_INVALID_ARGUMENT, "BAD_FIELD", "15 bytes"},
    {"stale epoch", wrong_epoch, RK_FAILED_PRECONDITION, "STALE_EPOCH", "epoch"},
    {"brief call of a method with collectives", brief_collective, RK_INVALID_ARGUMENT, "BAD_FIELD", "brief"},
    {"missing column", missing_column, RK_INVALID_ARGUMENT, "BAD_FIELD", "stream"},
    {"unknown column", renamed_column, RK_INVALID_ARGUMENT, "BAD_FIELD", "promts"},
    {"dtype", wrong_dtype, RK_INVALID_ARGUMENT, "BAD_FIELD", "f64"},
    {"length", wrong_length, RK_INVALID_ARGUMENT, "BAD_FIELD", "attention_mask"},
    {"rows", wrong_rows, RK_INVALID_ARGUMENT, "BAD_FIELD", "prompts"},
    {"byte size", wrong_byte_size, RK_INVALID_ARGUMENT, "BAD_FIELD", "byte_size"},
    {"memory", huge, RK_RESOURCE_EXHAUSTED, "", "rpc.max_inflight"},
    {"long header", long_header, RK_RESOURCE_EXHAUSTED, "BAD_FIELD", "at most 1048576 are allowed"},
    {"unknown option", unknown_option, RK_INVALID_ARGUMENT, "BAD_FIELD", "did you mean 'temperature'"},
    {"missing option", missing_option, RK_INVALID_ARGUMENT, "BAD_FIELD", "response_length"},
    {"option type", wrong_option, RK_INVALID_ARGUMENT, "BAD_FIELD", "expected an integer"},
    {"unknown result column", unknown_want, RK_INVALID_ARGUMENT, "BAD_FIELD", "rewards"},
    {"plan", with_plan, RK_INVALID_ARGUMENT, "BAD_FIELD", "takes no plan"},
};

/* Goal: every invalid header is rejected with field and expectation, uses no sequence number, and leaves the
 * daemon usable. Method: one valid call before, the invalid headers, one valid call after. */
static void test_execute_wrong_header_is_refused(void **state)
{
    struct rk_batch *prompts = fixture_prompts(2);
    struct fixture fixture;

    (void)state;
    fixture_start(&fixture, NULL);
    fixture_lead(&fixture);
    fixture_init_models(&fixture);
    for (size_t i = 0; i < RK_ARRAY_LEN(spoilers); i++) {
        struct rk_execute_header header = fixture_header(&fixture, "rollout", "generate_sequences");
        struct rk_client_stream *stream;
        struct rk_accepted accepted;
        struct rk_status *st;

        print_message("%s\n", spoilers[i].label);
        fixture_set_options(&fixture, &header, "{\"response_length\": 3}");
        fixture_set_input(&fixture, &header, prompts);
        spoilers[i].spoil(&fixture, &header);
        stream = fixture_open(&fixture, &header);
        assert_false(fixture_read_accepted(&fixture, stream, &accepted));
        st = rk_client_finish(stream);
        if (!strstr(rk_status_message(st), spoilers[i].text))
            fail_msg("'%s' is not in: %s", spoilers[i].text, rk_status_message(st));
        assert_refused(st, spoilers[i].code, spoilers[i].reason);
    }
    assert_ok(fixture_generate(&fixture, 2));
    rk_batch_destroy(prompts);
    fixture_stop(&fixture);
}

/* Goal: values that only the method can check are rejected with the reason of an invalid field, too. */
static void test_execute_wrong_value_has_its_reason(void **state)
{
    static const struct {
        const char *options, *text;
    } cases[] = {
        {"{\"response_length\": 3, \"temperature\": -1.0}", "temperature=-1: expected 0"},
        {"{\"response_length\": 3, \"top_p\": 0.0}", "top_p: expected 1e-06 to 1, got 0"},
        {"{\"response_length\": 3, \"eos_token_id\": 64}", "eos_token_id: expected ids from 0 to 63"},
        {"{\"response_length\": 0}", "response_length: expected an integer from 1"},
        {"{\"response_length\": 30000000}", "response_length: expected an integer from 1"},
        {"{\"response_length\": 3}", "row 1: token 3 of the prompt is 64: expected 0 to 63"},
    };
    struct rk_batch *prompts = fixture_prompts(2);
    struct rk_configure_request request = {.world_size = 2};
    struct rk_str packed = {0};
    struct fixture fixture;

    (void)state;
    ((int64_t *)rk_column_values(rk_batch_find(prompts, "prompts")))[7] = 64;
    fixture_start(&fixture, NULL);
    fixture_lead(&fixture);
    fixture_init_models(&fixture);
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_execute_header header = fixture_header(&fixture, "rollout", "generate_sequences");
        struct rk_status *st;

        fixture_set_options(&fixture, &header, cases[i].options);
        st = fixture_execute(&fixture, &header, prompts, NULL);
        if (!strstr(rk_status_message(st), cases[i].text))
            fail_msg("'%s' is not in: %s", cases[i].text, rk_status_message(st));
        assert_refused(st, RK_INVALID_ARGUMENT, "BAD_FIELD");
    }
    request.fence = fixture.lease.fence;
    request.mesh_generation = 9;
    request.num_meshes = 1;
    request.meshes = &(struct rk_role_mesh){.role = "actor", .mesh = {.tp = 3, .cp = 1, .pp = 1, .dp = 1}};
    request.comm_id = (struct rk_bytes){.data = (const uint8_t[128]){0}, .bytes = 128};
    rk_pack_configure_request(&packed, &request);
    assert_refused(rk_client_call(fixture.client, RK_RPC_ID_CONFIGURE, &packed, NULL), RK_INVALID_ARGUMENT,
                   "BAD_FIELD");
    rk_str_fini(&packed);
    rk_batch_destroy(prompts);
    fixture_stop(&fixture);
}

/* Goal: mesh_generation only increases within an epoch, so that no call for an older mesh is valid on a newer
 * one; the next epoch starts again. */
static void test_configure_with_an_old_mesh_generation_is_refused(void **state)
{
    static const char *const roles[] = {"actor", NULL};
    struct rk_acquire_lease_request request = {.driver_id = "test"};
    struct fixture fixture;

    (void)state;
    fixture_start(&fixture, NULL);
    fixture_lead(&fixture);
    assert_ok(rk_client_configure_alone(fixture.client, &fixture.lease, 7, roles));
    assert_refused(rk_client_configure_alone(fixture.client, &fixture.lease, 6, roles),
                   RK_FAILED_PRECONDITION, "WRONG_MESH");
    assert_refused(rk_client_configure_alone(fixture.client, &fixture.lease, 7, roles),
                   RK_FAILED_PRECONDITION, "WRONG_MESH");
    assert_ok(rk_client_configure_alone(fixture.client, &fixture.lease, 8, roles));
    request.epoch = fixture.lease.fence.epoch + 1;
    request.takeover = true;
    assert_ok(rk_client_acquire(fixture.client, &request, &fixture.lease));
    assert_ok(rk_client_configure_alone(fixture.client, &fixture.lease, 1, roles));
    fixture_stop(&fixture);
}

/* Goal: calls that the daemon's state does not allow are rejected, and work once the state is right. */
static void test_execute_wrong_state_is_refused(void **state)
{
    struct rk_execute_header header;
    struct rk_batch *prompts = fixture_prompts(1);
    struct rk_acquire_lease_request request = {.driver_id = "test", .epoch = 1};
    struct fixture fixture;

    (void)state;
    fixture_start(&fixture, NULL);
    assert_ok(rk_client_acquire(fixture.client, &request, &fixture.lease));
    header = fixture_header(&fixture, "actor", "get_mesh_info");
    assert_refused(fixture_execute(&fixture, &header, NULL, NULL), RK_FAILED_PRECONDITION, "NOT_CONFIGURED");
    fixture_lead(&fixture);
    header = fixture_header(&fixture, "actor", "get_mesh_info");
    assert_ok(fixture_execute(&fixture, &header, NULL, NULL));
    header = fixture_header(&fixture, "rollout", "generate_sequences");
    fixture_set_options(&fixture, &header, "{\"response_length\": 3}");
    assert_refused(fixture_execute(&fixture, &header, prompts, NULL), RK_FAILED_PRECONDITION, "NO_MODEL");
    fixture_init_models(&fixture);
    assert_ok(fixture_generate(&fixture, 1));
    rk_batch_destroy(prompts);
    fixture_stop(&fixture);
}

/* --- invalid streams --- */

/* Goal: every kind of invalid chunk ends the call, and its number can be reused. */
static void test_execute_wrong_chunk_is_refused(void **state)
{
    static const struct {
        const char *label;
        uint32_t tensor;
        uint64_t offset;
        size_t bytes;
        const char *text;
    } cases[] = {
        {"hole", 0, 8, 8, "chunk at offset 8, expected 0"},
        {"beyond the end", 0, 0, 65, "ends behind"},
        {"far beyond", 0, UINT64_MAX, 8, "expected 0"},
        {"no such tensor", 3, 0, 8, "chunk of tensor 3"},
    };
    static const uint8_t zeros[65];
    struct rk_batch *prompts = fixture_prompts(2); /* 64, 64 and 16 bytes */
    struct fixture fixture;

    (void)state;
    fixture_start(&fixture, NULL);
    fixture_lead(&fixture);
    fixture_init_models(&fixture);
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_execute_header header;
        struct rk_client_stream *stream = fixture_open_generate(&fixture, &header, prompts);

        print_message("%s\n", cases[i].label);
        rk_client_send_chunk(stream, cases[i].tensor, cases[i].offset, zeros, cases[i].bytes);
        assert_fails(rk_client_finish(stream), RK_INVALID_ARGUMENT, cases[i].text);
    }
    assert_ok(fixture_generate(&fixture, 2));
    rk_batch_destroy(prompts);
    fixture_stop(&fixture);
}

/* Goal: the same for streams that end too early or have other messages. */
static void test_execute_wrong_stream_is_refused(void **state)
{
    struct rk_batch *prompts = fixture_prompts(2);
    struct rk_client_stream *stream;
    struct rk_execute_header header;
    struct rk_accepted accepted;
    struct rk_str garbage = {0};
    struct fixture fixture;

    (void)state;
    fixture_start(&fixture, NULL);
    fixture_lead(&fixture);
    fixture_init_models(&fixture);
    stream = fixture_open_generate(&fixture, &header, prompts);
    rk_client_send_chunk(stream, 0, 0, rk_column_values(rk_batch_column_at(prompts, 0)), 64);
    fixture_send_commit(stream);
    assert_fails(rk_client_finish(stream), RK_INVALID_ARGUMENT, "'attention_mask' is incomplete: 0 of 64");

    stream = fixture_open_generate(&fixture, &header, prompts);
    rk_client_half_close(stream);
    assert_fails(rk_client_finish(stream), RK_INVALID_ARGUMENT, "'prompts' is incomplete");

    stream = fixture_open_generate(&fixture, &header, prompts);
    rk_str_append(&garbage, "\x7f garbage");
    rk_client_send(stream, &garbage);
    assert_fails(rk_client_finish(stream), RK_INVALID_ARGUMENT, "");

    stream = fixture_open_generate(&fixture, &header, prompts);
    fixture_send_body(stream, prompts);
    rk_client_half_close(stream);
    assert_true(fixture_read_accepted(&fixture, stream, &accepted));
    assert_fails(rk_client_finish(stream), RK_CANCELLED, "without Commit");
    assert_int_equal(fixture_last_seq(&fixture), 2); /* the two init_model */
    assert_ok(fixture_generate(&fixture, 2));
    rk_str_fini(&garbage);
    rk_batch_destroy(prompts);
    fixture_stop(&fixture);
}

/* Goal: a stream that breaks before Commit releases its memory and its number. */
static void test_execute_broken_before_commit_is_forgotten(void **state)
{
    struct rk_batch *prompts = fixture_prompts(2);
    struct rk_client_stream *stream;
    struct rk_execute_header header;
    struct rk_worker_status status;
    struct rk_accepted accepted;
    struct fixture fixture;

    (void)state;
    fixture_start(&fixture, NULL);
    fixture_lead(&fixture);
    fixture_init_models(&fixture);
    stream = fixture_open_generate(&fixture, &header, prompts);
    assert_true(fixture_send_body(stream, prompts));
    assert_true(fixture_read_accepted(&fixture, stream, &accepted));
    assert_int_equal(accepted.seq, 3);
    rk_client_cancel(stream);
    assert_fails(rk_client_finish(stream), RK_CANCELLED, "");

    /* The same request again, possibly before the daemon has detected the broken stream. */
    assert_ok(fixture_execute(&fixture, &header, prompts, NULL));
    assert_ok(rk_client_get_status(fixture.client, &status));
    assert_int_equal(status.last_seq, 3);
    for (int64_t i = 0; i < status.num_metrics; i++) {
        if (strcmp(status.metrics[i].name, "inflight") == 0)
            assert_int_equal((int64_t)status.metrics[i].value, 0);
    }
    rk_batch_destroy(prompts);
    fixture_stop(&fixture);
}

/* Goal: only one call may be open before its Commit; the error of another one names it. */
static void test_execute_second_open_call_is_refused(void **state)
{
    struct rk_batch *prompts = fixture_prompts(2);
    struct rk_client_stream *first, *second;
    struct rk_execute_header header;
    struct fixture fixture;
    struct rk_status *st;

    (void)state;
    fixture_start(&fixture, NULL);
    fixture_lead(&fixture);
    fixture_init_models(&fixture);
    first = fixture_open_generate(&fixture, &header, prompts);
    assert_true(rk_client_send_chunk(first, 0, 0, rk_column_values(rk_batch_column_at(prompts, 0)), 8));
    rk_time_sleep_ms(200);
    second = fixture_open_generate(&fixture, &header, prompts);
    st = rk_client_finish(second);
    assert_non_null(strstr(rk_status_message(st), "neither committed nor dropped"));
    assert_refused(st, RK_FAILED_PRECONDITION, "SEQ_GAP");
    rk_client_cancel(first);
    assert_fails(rk_client_finish(first), RK_CANCELLED, "");
    rk_batch_destroy(prompts);
    fixture_stop(&fixture);
}

/* Goal: the loss of communicators between Accepted and Commit fails the call, which uses its number like any
 * call that ran, but not the daemon. */
static void test_execute_commit_without_communicators_is_failed(void **state)
{
    struct rk_batch *prompts = fixture_prompts(2);
    struct rk_execute_header header, nothing;
    struct rk_client_stream *stream;
    struct rk_accepted accepted;
    struct fixture fixture;
    char outcome[32];

    (void)state;
    fixture_start(&fixture, NULL);
    fixture_lead(&fixture);
    fixture_init_models(&fixture);
    stream = fixture_open_generate(&fixture, &header, prompts);
    assert_true(fixture_send_body(stream, prompts));
    assert_true(fixture_read_accepted(&fixture, stream, &accepted));
    nothing = header;
    nothing.request_id = (struct rk_bytes){0};
    assert_ok(fixture_cancel(&fixture, &nothing, true, outcome));
    assert_string_equal(outcome, "aborted");
    fixture_wait_state(&fixture, "UNCONFIGURED");
    fixture_send_commit(stream);
    assert_refused(rk_client_finish(stream), RK_FAILED_PRECONDITION, "NOT_CONFIGURED");
    fixture_wait_state(&fixture, "UNCONFIGURED");
    assert_int_equal(fixture_last_seq(&fixture), 3);
    rk_batch_destroy(prompts);
    fixture_stop(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_configure_with_an_old_mesh_generation_is_refused),
        cmocka_unit_test(test_execute_wrong_header_is_refused),
        cmocka_unit_test(test_execute_wrong_value_has_its_reason),
        cmocka_unit_test(test_execute_wrong_state_is_refused),
        cmocka_unit_test(test_execute_wrong_chunk_is_refused),
        cmocka_unit_test(test_execute_wrong_stream_is_refused),
        cmocka_unit_test(test_execute_broken_before_commit_is_forgotten),
        cmocka_unit_test(test_execute_second_open_call_is_refused),
        cmocka_unit_test(test_execute_commit_without_communicators_is_failed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
