/* Every message of rk_messages.h: random ones round-trip from protobuf-c's encoding to plain structs and back
 * byte for byte (so no field is lost or mistyped), and fields are stored in the members of the same name. */
#include "tests/support/test.h"

#include "grpc/health/v1/health.pb-c.h"
#include "grpc/reflection/v1/reflection.pb-c.h"
#include "proto/rk_messages.h"
#include "rankd/v1/admin.pb-c.h"
#include "rankd/v1/common.pb-c.h"
#include "rankd/v1/worker.pb-c.h"
#include "tests/unit/proto/random_message.h"

#include <stdio.h>
#include <string.h>

static struct rk_arena *arena;

static int setup(void **state)
{
    (void)state;
    arena = rk_arena_create(1 << 16, 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    rk_arena_destroy(arena);
    return 0;
}

union any_message {
#define X(name) struct rk_##name name;
    RK_MESSAGE_TABLE(X)
#undef X
};

typedef struct rk_status *unpack_fn(union any_message *out, const void *data, size_t bytes);
typedef void pack_fn(struct rk_str *out, const union any_message *msg);

#define X(name)                                                                                    \
    static struct rk_status *unpack_##name(union any_message *out, const void *data, size_t bytes) \
    {                                                                                              \
        return rk_unpack_##name(&out->name, arena, data, bytes);                                   \
    }                                                                                              \
    static void pack_##name(struct rk_str *out, const union any_message *msg)                      \
    {                                                                                              \
        rk_pack_##name(out, &msg->name);                                                           \
    }
RK_MESSAGE_TABLE(X)
#undef X

static const struct {
    const char *name;
    const ProtobufCMessageDescriptor *descriptor;
} descriptors[] = {
#define WORKER(name)                            \
    {                                           \
#name, &rankd__v1__##name##__descriptor \
    }
    WORKER(list_methods_response),
    WORKER(describe_response),
    WORKER(acquire_lease_request),
    WORKER(acquire_lease_response),
    WORKER(keep_alive_request),
    WORKER(keep_alive_response),
    WORKER(release_lease_request),
    WORKER(configure_request),
    WORKER(configure_response),
    WORKER(execute_request),
    WORKER(execute_response),
    WORKER(cancel_request),
    WORKER(cancel_response),
    WORKER(worker_status),
    WORKER(watch_request),
    {"watch_event", &rankd__v1__event__descriptor},
    WORKER(drain_request),
    WORKER(drain_response),
    WORKER(shutdown_request),
    WORKER(dump_chunk),
    {"health_check_request", &grpc__health__v1__health_check_request__descriptor},
    {"health_check_response", &grpc__health__v1__health_check_response__descriptor},
    {"reflection_request", &grpc__reflection__v1__server_reflection_request__descriptor},
};

static const struct {
    const char *name;
    unpack_fn *unpack;
    pack_fn *pack;
} codecs[] = {
#define X(name) {#name, unpack_##name, pack_##name},
    RK_MESSAGE_TABLE(X)
#undef X
};

static void check_round_trip(size_t type, struct rk_rng *rng, double density)
{
    ProtobufCMessage *message = random_message(descriptors[type].descriptor, rng, arena, density);
    size_t bytes = protobuf_c_message_get_packed_size(message);
    uint8_t *packed = rk_arena_alloc(arena, bytes);
    union any_message plain;
    struct rk_str again = {0};

    protobuf_c_message_pack(message, packed);
    assert_ok(codecs[type].unpack(&plain, packed, bytes));
    codecs[type].pack(&again, &plain);
    if (again.bytes != bytes || (bytes && memcmp(again.text, packed, bytes) != 0))
        fail_msg("%s: %zu bytes became %zu (stream %llu, next %llu)", descriptors[type].name, bytes,
                 again.bytes, (unsigned long long)rng->stream, (unsigned long long)rng->next);
    rk_str_fini(&again);
}

static void test_pack_of_unpacked_random_message_gives_the_same_bytes(void **state)
{
    (void)state;
    assert_int_equal(RK_ARRAY_LEN(descriptors), RK_ARRAY_LEN(codecs));
    for (size_t type = 0; type < RK_ARRAY_LEN(descriptors); type++) {
        struct rk_rng rng;

        assert_string_equal(descriptors[type].name, codecs[type].name);
        rk_rng_init(&rng, rk_test_seed(), type);
        for (int i = 0; i < 60; i++) {
            check_round_trip(type, &rng, i % 2 ? 0.5 : 1.0);
            rk_arena_reset(arena);
        }
    }
}

static void test_unpack_empty_message_gives_zeros_and_empty_strings(void **state)
{
    struct rk_worker_status status;
    struct rk_execute_request request;

    (void)state;
    assert_ok(rk_unpack_worker_status(&status, arena, NULL, 0));
    assert_string_equal(status.state, "");
    assert_string_equal(status.rank.host, "");
    assert_string_equal(status.progress.phase, "");
    assert_int_equal(status.num_metrics, 0);
    assert_ok(rk_unpack_execute_request(&request, arena, NULL, 0));
    assert_int_equal(request.kind, RK_EXECUTE_NONE);
}

static void test_pack_null_strings_gives_empty_message(void **state)
{
    struct rk_cancel_request request = {0};
    struct rk_str packed = {0};

    (void)state;
    rk_pack_cancel_request(&packed, &request);
    assert_int_equal(packed.bytes, 0);
    rk_str_fini(&packed);
}

static void test_unpack_result_refers_to_nothing_else(void **state)
{
    struct rk_cancel_request request = {.reason = "why",
                                        .request_id = {(const uint8_t *)"0123456789abcdef", 16}};
    struct rk_cancel_request got;
    struct rk_str packed = {0};

    (void)state;
    rk_pack_cancel_request(&packed, &request);
    assert_ok(rk_unpack_cancel_request(&got, arena, packed.text, packed.bytes));
    memset(packed.text, 'x', packed.bytes);
    rk_str_fini(&packed);
    assert_string_equal(got.reason, "why");
    assert_memory_equal(got.request_id.data, "0123456789abcdef", 16);
}

/* --- names: plain struct -> bytes -> protobuf-c
 * ---------------------------------------------------------------- */

static void check_header(const Rankd__V1__ExecuteHeader *header)
{
    assert_int_equal(header->fence->epoch, 21);
    assert_memory_equal(header->fence->lease_id.data, "0123456789abcdef", 16);
    assert_int_equal(header->fence->incarnation, 22);
    assert_memory_equal(header->request_id.data, "fedcba9876543210", 16);
    assert_int_equal(header->seq, 23);
    assert_int_equal(header->mesh_generation, 24);
    assert_string_equal(header->role, "actor");
    assert_string_equal(header->method, "update_actor");
    assert_int_equal(header->timeout_ms, 26);
    assert_true(header->two_phase);
    assert_true(header->brief);
    assert_true(header->collect);
    assert_int_equal(header->n_want, 2);
    assert_string_equal(header->want[1], "entropys");
}

static void check_header_input(const Rankd__V1__ExecuteHeader *header)
{
    assert_int_equal(header->input->batch_size, 25);
    assert_int_equal(header->input->n_tensor, 2);
    assert_string_equal(header->input->tensor[0]->name, "ids");
    assert_int_equal(header->input->tensor[0]->dtype, RANKD__V1__DTYPE__BF16);
    assert_int_equal(header->input->tensor[0]->n_shape, 2);
    assert_int_equal(header->input->tensor[0]->shape[1], 3);
    assert_int_equal(header->input->tensor[0]->byte_size, 12);
    assert_int_equal(header->input->tensor[1]->n_cu_seqlens, 3);
    assert_int_equal(header->input->tensor[1]->cu_seqlens[2], 9);
    assert_string_equal(header->input->column[0]->name, "uid");
    assert_string_equal(header->input->column[0]->value[1], "u2");
    assert_true(header->input->column[0]->json);
    assert_string_equal(header->input->meta[0]->key, "lr");
}

static void check_header_options_and_plan(const Rankd__V1__ExecuteHeader *header)
{
    assert_int_equal(header->n_option, 5);
    assert_true(header->option[0]->value->f == 0.5);
    assert_int_equal(header->option[1]->value->i, -4);
    assert_true(header->option[2]->value->b);
    assert_string_equal(header->option[3]->value->s, "fast");
    assert_string_equal(header->option[4]->value->json, "[1]");
    assert_int_equal(header->plan->mini[0]->num_micro, 5);
    assert_int_equal(header->plan->mini[0]->num_tokens, 12);
    assert_int_equal(header->plan->mini[0]->num_sequences, 13);
    assert_int_equal(header->plan->mini[0]->micro[0]->n_row, 2);
    assert_int_equal(header->plan->mini[0]->micro[0]->row[0], 3);
    assert_int_equal(header->plan->mini[0]->micro[0]->num_tokens, 11);
}

static void test_pack_execute_header_fills_fields_of_the_same_name(void **state)
{
    static const int64_t shape[] = {2, 3}, cu_seqlens[] = {0, 4, 9};
    static const char *const values[] = {"u1", "u2"};
    static const char *const want[] = {"old_log_probs", "entropys"};
    static const uint32_t rows[] = {3, 1};
    struct rk_tensor_spec tensors[] = {
        {.name = "ids", .dtype = RK_DTYPE_BF16, .rank = 2, .shape = shape, .byte_size = 12},
        {.name = "packed", .dtype = RK_DTYPE_I64, .num_cu_seqlens = 3, .cu_seqlens = cu_seqlens},
    };
    struct rk_string_column column = {.name = "uid", .num_values = 2, .values = values, .is_json = true};
    struct rk_meta_entry options[] = {
        {.key = "lr", .value = {.kind = RK_SCALAR_REAL, .real = 0.5}},
        {.key = "n", .value = {.kind = RK_SCALAR_INT, .integer = -4}},
        {.key = "flag", .value = {.kind = RK_SCALAR_BOOL, .boolean = true}},
        {.key = "mode", .value = {.kind = RK_SCALAR_STRING, .text = "fast"}},
        {.key = "list", .value = {.kind = RK_SCALAR_JSON, .json = "[1]"}},
    };
    struct rk_micro_batch micro = {.num_rows = 2, .rows = rows, .num_tokens = 11};
    struct rk_mini_batch mini = {
        .num_micro = 5, .num_entries = 1, .micro = &micro, .num_tokens = 12, .num_sequences = 13};
    struct rk_execute_request request = {
        .kind = RK_EXECUTE_HEADER,
        .header = {
            .fence = {.epoch = 21, .lease_id = {(const uint8_t *)"0123456789abcdef", 16}, .incarnation = 22},
            .request_id = {(const uint8_t *)"fedcba9876543210", 16},
            .seq = 23,
            .mesh_generation = 24,
            .role = "actor",
            .method = "update_actor",
            .input = {.batch_size = 25,
                      .num_tensors = 2,
                      .tensors = tensors,
                      .num_columns = 1,
                      .columns = &column,
                      .meta = {1, options}},
            .options = {5, options},
            .plan = {1, &mini},
            .timeout_ms = 26,
            .two_phase = true,
            .brief = true,
            .collect = true,
            .num_want = 2,
            .want = want}};
    struct rk_str packed = {0};
    Rankd__V1__ExecuteRequest *got;

    (void)state;
    rk_pack_execute_request(&packed, &request);
    got = rankd__v1__execute_request__unpack(NULL, packed.bytes, (uint8_t *)packed.text);
    assert_non_null(got);
    assert_int_equal(got->m_case, RANKD__V1__EXECUTE_REQUEST__M_HEADER);
    check_header(got->header);
    check_header_input(got->header);
    check_header_options_and_plan(got->header);
    rankd__v1__execute_request__free_unpacked(got, NULL);
    rk_str_fini(&packed);
}

static void test_pack_configure_request_fills_fields_of_the_same_name(void **state)
{
    static const int32_t ranks[] = {4, 5, 6, 7};
    struct rk_role_mesh mesh = {.role = "rollout",
                                .mesh = {.tp = 1,
                                         .cp = 2,
                                         .ep = 3,
                                         .etp = 4,
                                         .dp = 5,
                                         .pp = 6,
                                         .order = "pp-tp-dp",
                                         .num_ranks = 4,
                                         .ranks = ranks}};
    struct rk_peer peer = {.rank = 7, .comm_address = "unix:/run/a", .incarnation = 8};
    struct rk_configure_request request = {.fence = {.epoch = 9},
                                           .mesh_generation = 10,
                                           .num_meshes = 1,
                                           .meshes = &mesh,
                                           .rank = 11,
                                           .world_size = 12,
                                           .num_peers = 1,
                                           .peers = &peer,
                                           .comm_id = {(const uint8_t *)"id", 2},
                                           .make_comm_id = true};
    struct rk_str packed = {0};
    Rankd__V1__ConfigureRequest *got;

    (void)state;
    rk_pack_configure_request(&packed, &request);
    got = rankd__v1__configure_request__unpack(NULL, packed.bytes, (uint8_t *)packed.text);
    assert_non_null(got);
    assert_int_equal(got->fence->epoch, 9);
    assert_int_equal(got->mesh_generation, 10);
    assert_string_equal(got->mesh[0]->role, "rollout");
    assert_int_equal(got->mesh[0]->mesh->tp, 1);
    assert_int_equal(got->mesh[0]->mesh->cp, 2);
    assert_int_equal(got->mesh[0]->mesh->ep, 3);
    assert_int_equal(got->mesh[0]->mesh->etp, 4);
    assert_int_equal(got->mesh[0]->mesh->dp, 5);
    assert_int_equal(got->mesh[0]->mesh->pp, 6);
    assert_string_equal(got->mesh[0]->mesh->order, "pp-tp-dp");
    assert_int_equal(got->mesh[0]->mesh->n_ranks, 4);
    assert_int_equal(got->mesh[0]->mesh->ranks[3], 7);
    assert_int_equal(got->rank, 11);
    assert_int_equal(got->world_size, 12);
    assert_int_equal(got->peer[0]->rank, 7);
    assert_string_equal(got->peer[0]->comm_address, "unix:/run/a");
    assert_int_equal(got->peer[0]->incarnation, 8);
    assert_int_equal(got->comm_id.len, 2);
    assert_true(got->make_comm_id);
    rankd__v1__configure_request__free_unpacked(got, NULL);
    rk_str_fini(&packed);
}

static void check_rank_info(const Rankd__V1__RankInfo *rank)
{
    assert_int_equal(rank->rank, 1);
    assert_int_equal(rank->world_size, 2);
    assert_string_equal(rank->host, "h");
    assert_string_equal(rank->device, "cpu");
    assert_string_equal(rank->device_uuid, "u");
    assert_int_equal(rank->device_mem_total, 3);
    assert_string_equal(rank->role[0]->role, "actor");
    assert_int_equal(rank->role[0]->mesh->tp, 2);
    assert_int_equal(rank->role[0]->tp_rank, 1);
    assert_int_equal(rank->role[0]->cp_rank, 2);
    assert_int_equal(rank->role[0]->ep_rank, 3);
    assert_int_equal(rank->role[0]->etp_rank, 4);
    assert_int_equal(rank->role[0]->dp_rank, 5);
    assert_int_equal(rank->role[0]->pp_rank, 6);
    assert_true(rank->role[0]->is_collect);
}

static void check_status(const Rankd__V1__WorkerStatus *got)
{
    assert_string_equal(got->state, "READY");
    assert_int_equal(got->incarnation, 4);
    assert_int_equal(got->epoch, 5);
    assert_string_equal(got->driver_id, "d");
    assert_int_equal(got->last_seq, 6);
    assert_string_equal(got->method, "actor.update_actor");
    assert_int_equal(got->request_id.len, 1);
    assert_int_equal(got->running_ms, 7);
    assert_string_equal(got->progress->phase, "step");
    assert_int_equal(got->progress->done, 8);
    assert_int_equal(got->progress->total, 9);
    assert_true(got->progress->metric[0]->value == 1.5);
    assert_string_equal(got->progress->metric[0]->reduce, "mean");
    assert_int_equal(got->progress->monotonic_ns, 10);
    assert_int_equal(got->mesh_generation, 11);
    assert_string_equal(got->metric[0]->name, "loss");
    assert_string_equal(got->metric[0]->unit, "nats");
    assert_string_equal(got->last_error, "e");
    assert_int_equal(got->uptime_ms, 12);
    assert_int_equal(got->collective_seq, 13);
    assert_string_equal(got->collective_name, "all_reduce");
}

static void test_pack_worker_status_fills_fields_of_the_same_name(void **state)
{
    struct rk_role_rank role = {.role = "actor",
                                .mesh = {.tp = 2},
                                .tp_rank = 1,
                                .cp_rank = 2,
                                .ep_rank = 3,
                                .etp_rank = 4,
                                .dp_rank = 5,
                                .pp_rank = 6,
                                .is_collect = true};
    struct rk_metric metric = {.name = "loss", .value = 1.5, .unit = "nats", .reduce = "mean"};
    struct rk_worker_status status = {.rank = {.rank = 1,
                                               .world_size = 2,
                                               .host = "h",
                                               .num_roles = 1,
                                               .roles = &role,
                                               .device = "cpu",
                                               .device_uuid = "u",
                                               .device_mem_total = 3},
                                      .state = "READY",
                                      .incarnation = 4,
                                      .epoch = 5,
                                      .driver_id = "d",
                                      .last_seq = 6,
                                      .method = "actor.update_actor",
                                      .request_id = {(const uint8_t *)"r", 1},
                                      .running_ms = 7,
                                      .progress = {.phase = "step",
                                                   .done = 8,
                                                   .total = 9,
                                                   .num_metrics = 1,
                                                   .metrics = &metric,
                                                   .monotonic_ns = 10},
                                      .mesh_generation = 11,
                                      .num_metrics = 1,
                                      .metrics = &metric,
                                      .last_error = "e",
                                      .uptime_ms = 12,
                                      .collective_seq = 13,
                                      .collective_name = "all_reduce"};
    struct rk_str packed = {0};
    Rankd__V1__WorkerStatus *got;

    (void)state;
    rk_pack_worker_status(&packed, &status);
    got = rankd__v1__worker_status__unpack(NULL, packed.bytes, (uint8_t *)packed.text);
    assert_non_null(got);
    check_rank_info(got->rank);
    check_status(got);
    rankd__v1__worker_status__free_unpacked(got, NULL);
    rk_str_fini(&packed);
}

static void check_response(const struct rk_execute_response *response,
                           Rankd__V1__ExecuteResponse__MCase member)
{
    struct rk_execute_response again;
    struct rk_str packed = {0};
    Rankd__V1__ExecuteResponse *got;

    rk_pack_execute_response(&packed, response);
    got = rankd__v1__execute_response__unpack(NULL, packed.bytes, (uint8_t *)packed.text);
    assert_non_null(got);
    assert_int_equal(got->m_case, member);
    if (member == RANKD__V1__EXECUTE_RESPONSE__M_ACCEPTED)
        assert_int_equal(got->accepted->seq, response->accepted.seq);
    if (member == RANKD__V1__EXECUTE_RESPONSE__M_RESULT)
        assert_int_equal(got->result->peak_device_bytes, response->result.peak_device_bytes);
    assert_ok(rk_unpack_execute_response(&again, arena, packed.text, packed.bytes));
    assert_int_equal(again.kind, response->kind);
    rankd__v1__execute_response__free_unpacked(got, NULL);
    rk_str_fini(&packed);
}

static void test_pack_execute_response_selects_the_member_of_its_kind(void **state)
{
    (void)state;
    check_response(&(struct rk_execute_response){.kind = RK_RESPONSE_ACCEPTED, .accepted = {.seq = 3}},
                   RANKD__V1__EXECUTE_RESPONSE__M_ACCEPTED);
    /* A member without content is present nevertheless. */
    check_response(&(struct rk_execute_response){.kind = RK_RESPONSE_PROGRESS},
                   RANKD__V1__EXECUTE_RESPONSE__M_PROGRESS);
    check_response(
        &(struct rk_execute_response){.kind = RK_RESPONSE_RESULT, .result = {.peak_device_bytes = 5}},
        RANKD__V1__EXECUTE_RESPONSE__M_RESULT);
}

static void test_unpack_execute_request_tells_commit_and_cancel_apart(void **state)
{
    struct rk_execute_request requests[] = {{.kind = RK_EXECUTE_COMMIT},
                                            {.kind = RK_EXECUTE_CANCEL, .cancel = {"stop"}}};
    struct rk_execute_request got;
    struct rk_str packed = {0};

    (void)state;
    rk_pack_execute_request(&packed, &requests[0]);
    assert_ok(rk_unpack_execute_request(&got, arena, packed.text, packed.bytes));
    assert_int_equal(got.kind, RK_EXECUTE_COMMIT);
    rk_str_clear(&packed);
    rk_pack_execute_request(&packed, &requests[1]);
    assert_ok(rk_unpack_execute_request(&got, arena, packed.text, packed.bytes));
    assert_int_equal(got.kind, RK_EXECUTE_CANCEL);
    assert_string_equal(got.cancel.reason, "stop");
    rk_str_fini(&packed);
}

static void test_pack_plan_equal_plans_give_equal_bytes_and_others_do_not(void **state)
{
    static const uint32_t rows[] = {0, 1}, other_rows[] = {1, 0};
    struct rk_micro_batch micro[] = {{.num_rows = 2, .rows = rows, .num_tokens = 9}, {.num_rows = 0}};
    struct rk_mini_batch mini = {.num_micro = 1, .num_entries = 2, .micro = micro, .num_tokens = 9};
    struct rk_plan plan = {1, &mini};
    struct rk_str a = {0}, b = {0}, c = {0};

    (void)state;
    rk_pack_plan(&a, &plan);
    rk_pack_plan(&b, &plan);
    assert_int_equal(a.bytes, b.bytes);
    assert_memory_equal(a.text, b.text, a.bytes);
    micro[0].rows = other_rows;
    rk_pack_plan(&c, &plan);
    assert_int_equal(a.bytes, c.bytes);
    assert_memory_not_equal(a.text, c.text, a.bytes);
    rk_str_fini(&a);
    rk_str_fini(&b);
    rk_str_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pack_of_unpacked_random_message_gives_the_same_bytes),
        cmocka_unit_test(test_unpack_empty_message_gives_zeros_and_empty_strings),
        cmocka_unit_test(test_pack_null_strings_gives_empty_message),
        cmocka_unit_test(test_unpack_result_refers_to_nothing_else),
        cmocka_unit_test(test_pack_execute_header_fills_fields_of_the_same_name),
        cmocka_unit_test(test_pack_configure_request_fills_fields_of_the_same_name),
        cmocka_unit_test(test_pack_worker_status_fills_fields_of_the_same_name),
        cmocka_unit_test(test_pack_execute_response_selects_the_member_of_its_kind),
        cmocka_unit_test(test_unpack_execute_request_tells_commit_and_cancel_apart),
        cmocka_unit_test(test_pack_plan_equal_plans_give_equal_bytes_and_others_do_not),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
