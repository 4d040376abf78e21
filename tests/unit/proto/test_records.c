/* The rows of messages.def against the .proto files, as protobuf-c describes them. */
#include "tests/support/test.h"

#include "grpc/health/v1/health.pb-c.h"
#include "grpc/reflection/v1/reflection.pb-c.h"
#include "proto/record_internal.h"
#include "rankd/v1/admin.pb-c.h"
#include "rankd/v1/common.pb-c.h"
#include "rankd/v1/errors.pb-c.h"
#include "rankd/v1/worker.pb-c.h"

#include <string.h>

static ProtobufCType type_of(rk_field_kind_t kind)
{
    static const ProtobufCType types[] = {
        [RK_FIELD_BOOL] = PROTOBUF_C_TYPE_BOOL,     [RK_FIELD_I32] = PROTOBUF_C_TYPE_INT32,
        [RK_FIELD_U32] = PROTOBUF_C_TYPE_UINT32,    [RK_FIELD_INDEX] = PROTOBUF_C_TYPE_UINT32,
        [RK_FIELD_I64] = PROTOBUF_C_TYPE_INT64,     [RK_FIELD_U64] = PROTOBUF_C_TYPE_UINT64,
        [RK_FIELD_ZIGZAG] = PROTOBUF_C_TYPE_SINT64, [RK_FIELD_FIXED64] = PROTOBUF_C_TYPE_FIXED64,
        [RK_FIELD_REAL] = PROTOBUF_C_TYPE_DOUBLE,   [RK_FIELD_ENUM] = PROTOBUF_C_TYPE_ENUM,
        [RK_FIELD_TEXT] = PROTOBUF_C_TYPE_STRING,   [RK_FIELD_CHARS] = PROTOBUF_C_TYPE_STRING,
        [RK_FIELD_BYTES] = PROTOBUF_C_TYPE_BYTES,   [RK_FIELD_RECORD] = PROTOBUF_C_TYPE_MESSAGE,
    };

    return types[kind];
}

/* Fields that rankd refuses or reads elsewhere: they have no rows. */
static bool has_no_row(const ProtobufCFieldDescriptor *field)
{
    return strcmp(field->name, "raw") == 0 || strcmp(field->name, "chunk") == 0;
}

static void check_rows(const struct rk_record *record, const ProtobufCMessageDescriptor *descriptor);

static void check_row(const struct rk_field *row, const ProtobufCFieldDescriptor *field)
{
    const ProtobufCEnumDescriptor *values;

    assert_int_equal(row->number, field->id);
    assert_string_equal(row->name, field->name);
    assert_int_equal(type_of(row->kind), field->type);
    assert_int_equal(row->is_list, field->label == PROTOBUF_C_LABEL_REPEATED);
    assert_int_equal(row->selected_kind != 0, (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0);
    if (field->type == PROTOBUF_C_TYPE_ENUM) {
        values = field->descriptor;
        assert_int_equal(values->n_values, row->max + 1); /* consecutive ones from 0 */
        assert_int_equal(values->values[row->max].value, row->max);
    }
    if (field->type == PROTOBUF_C_TYPE_MESSAGE)
        check_rows(row->record(), field->descriptor);
}

/* The same fields in the same order. */
static void check_rows(const struct rk_record *record, const ProtobufCMessageDescriptor *descriptor)
{
    size_t i = 0;

    if (record->num_fields == 0 && descriptor->n_fields == 0)
        return;
    print_message("%s\n", record->name);
    assert_string_equal(record->name, descriptor->name);
    for (unsigned k = 0; k < descriptor->n_fields; k++) {
        if (has_no_row(&descriptor->fields[k]))
            continue;
        assert_true(i < record->num_fields);
        check_row(&record->fields[i++], &descriptor->fields[k]);
    }
    assert_int_equal(i, record->num_fields);
}

/* All messages; check_rows() finds those that they contain. */
static void test_rows_are_the_fields_of_the_proto_files(void **state)
{
    static const struct {
        const struct rk_record *(*record)(void);
        const ProtobufCMessageDescriptor *descriptor;
    } cases[] = {
        {rk_record_list_methods_response, &rankd__v1__list_methods_response__descriptor},
        {rk_record_describe_response, &rankd__v1__describe_response__descriptor},
        {rk_record_acquire_lease_request, &rankd__v1__acquire_lease_request__descriptor},
        {rk_record_acquire_lease_response, &rankd__v1__acquire_lease_response__descriptor},
        {rk_record_keep_alive_request, &rankd__v1__keep_alive_request__descriptor},
        {rk_record_keep_alive_response, &rankd__v1__keep_alive_response__descriptor},
        {rk_record_release_lease_request, &rankd__v1__release_lease_request__descriptor},
        {rk_record_configure_request, &rankd__v1__configure_request__descriptor},
        {rk_record_configure_response, &rankd__v1__configure_response__descriptor},
        {rk_record_execute_request, &rankd__v1__execute_request__descriptor},
        {rk_record_execute_response, &rankd__v1__execute_response__descriptor},
        {rk_record_cancel_request, &rankd__v1__cancel_request__descriptor},
        {rk_record_cancel_response, &rankd__v1__cancel_response__descriptor},
        {rk_record_worker_status, &rankd__v1__worker_status__descriptor},
        {rk_record_watch_request, &rankd__v1__watch_request__descriptor},
        {rk_record_watch_event, &rankd__v1__event__descriptor},
        {rk_record_drain_request, &rankd__v1__drain_request__descriptor},
        {rk_record_drain_response, &rankd__v1__drain_response__descriptor},
        {rk_record_shutdown_request, &rankd__v1__shutdown_request__descriptor},
        {rk_record_dump_chunk, &rankd__v1__dump_chunk__descriptor},
        {rk_record_health_check_request, &grpc__health__v1__health_check_request__descriptor},
        {rk_record_health_check_response, &grpc__health__v1__health_check_response__descriptor},
        {rk_record_reflection_request, &grpc__reflection__v1__server_reflection_request__descriptor},
        {rk_record_rpc_status, &google__rpc__status__descriptor},
        {rk_record_error_info, &google__rpc__error_info__descriptor},
        {rk_record_bad_request, &google__rpc__bad_request__descriptor},
        {rk_record_retry_info, &google__rpc__retry_info__descriptor},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++)
        check_rows(cases[i].record(), cases[i].descriptor);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_are_the_fields_of_the_proto_files),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
