/* grpc-status-details-bin: rankd's statuses round-trip; foreign and malformed details leave code and message
 * unchanged. */
#include "tests/support/test.h"

#include "base/rk_compiler.h"
#include "proto/limits.h"
#include "proto/rk_messages.h"
#include "rankd/v1/errors.pb-c.h"
#include "tests/unit/proto/wire.h"

#include <string.h>

static void check_received(rk_code_t code, const char *message, const void *details, size_t bytes,
                           const char *reason)
{
    struct rk_status *st = rk_unpack_status_details(code, message, details, bytes);

    assert_non_null(st);
    assert_int_equal(rk_status_code(st), code);
    assert_string_equal(rk_status_message(st), message);
    assert_string_equal(rk_status_reason(st), reason);
    rk_status_free(st);
}

static void test_round_trip_keeps_the_reason(void **state)
{
    struct rk_status *st =
        RK_FAIL_REASON(RK_FAILED_PRECONDITION, "STALE_EPOCH", "epoch 3 is older than %d", 4);
    struct rk_str packed = {0};
    Google__Rpc__Status *got;

    (void)state;
    rk_pack_status_details(&packed, st);
    check_received(RK_FAILED_PRECONDITION, rk_status_message(st), packed.text, packed.bytes, "STALE_EPOCH");
    got = google__rpc__status__unpack(NULL, packed.bytes, (uint8_t *)packed.text);
    assert_non_null(got);
    assert_int_equal(got->code, 9);
    assert_string_equal(got->message, "epoch 3 is older than 4");
    assert_string_equal(got->details[0]->type_url, "type.googleapis.com/google.rpc.ErrorInfo");
    google__rpc__status__free_unpacked(got, NULL);
    rk_status_free(st);
    rk_str_fini(&packed);
}

/* Goal: the details are those of google.rpc, in the order reason, field, retry, and do not change the status
 * that rankd's client reads. */
static void test_pack_has_all_known_details(void **state)
{
    struct rk_status *st = RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "shape[0]=-1 is negative");
    struct rk_str packed = {0};
    Google__Rpc__Status *got;
    Google__Rpc__ErrorInfo *info;
    Google__Rpc__BadRequest *request;
    Google__Rpc__RetryInfo *retry;

    (void)state;
    st = rk_status_blame(rk_status_retry_after(rk_status_at_field(st, "header.input"), 1250), 3);
    rk_pack_status_details(&packed, st);
    check_received(RK_INVALID_ARGUMENT, "shape[0]=-1 is negative", packed.text, packed.bytes, "BAD_FIELD");
    got = google__rpc__status__unpack(NULL, packed.bytes, (uint8_t *)packed.text);
    assert_non_null(got);
    assert_int_equal(got->n_details, 3);
    assert_string_equal(got->details[0]->type_url, "type.googleapis.com/google.rpc.ErrorInfo");
    info = google__rpc__error_info__unpack(NULL, got->details[0]->value.len, got->details[0]->value.data);
    assert_int_equal(info->n_metadata, 1);
    assert_string_equal(info->metadata[0]->key, "rank");
    assert_string_equal(info->metadata[0]->value, "3");
    assert_string_equal(got->details[1]->type_url, "type.googleapis.com/google.rpc.BadRequest");
    request = google__rpc__bad_request__unpack(NULL, got->details[1]->value.len, got->details[1]->value.data);
    assert_int_equal(request->n_field_violations, 1);
    assert_string_equal(request->field_violations[0]->field, "header.input");
    assert_string_equal(request->field_violations[0]->description, "shape[0]=-1 is negative");
    assert_string_equal(got->details[2]->type_url, "type.googleapis.com/google.rpc.RetryInfo");
    retry = google__rpc__retry_info__unpack(NULL, got->details[2]->value.len, got->details[2]->value.data);
    assert_int_equal(retry->retry_delay->seconds, 1);
    assert_int_equal(retry->retry_delay->nanos, 250000000);
    google__rpc__error_info__free_unpacked(info, NULL);
    google__rpc__bad_request__free_unpacked(request, NULL);
    google__rpc__retry_info__free_unpacked(retry, NULL);
    google__rpc__status__free_unpacked(got, NULL);
    rk_status_free(st);
    rk_str_fini(&packed);
}

/* Goal: if the failure is not caused by the request, its field is not reported as a field violation. */
static void test_pack_of_another_code_has_no_bad_request(void **state)
{
    struct rk_status *st = RK_FAIL_REASON(RK_FAILED_PRECONDITION, "WRONG_INCARNATION", "restarted");
    struct rk_str packed = {0};
    Google__Rpc__Status *got;

    (void)state;
    st = rk_status_at_field(st, "peer");
    rk_pack_status_details(&packed, st);
    got = google__rpc__status__unpack(NULL, packed.bytes, (uint8_t *)packed.text);
    assert_non_null(got);
    assert_int_equal(got->n_details, 1);
    google__rpc__status__free_unpacked(got, NULL);
    rk_status_free(st);
    rk_str_fini(&packed);
}

static void test_pack_without_reason_has_no_details(void **state)
{
    struct rk_status *st = RK_FAIL(RK_INTERNAL, "broken");
    struct rk_str packed = {0};
    Google__Rpc__Status *got;

    (void)state;
    rk_pack_status_details(&packed, st);
    got = google__rpc__status__unpack(NULL, packed.bytes, (uint8_t *)packed.text);
    assert_non_null(got);
    assert_int_equal(got->n_details, 0);
    google__rpc__status__free_unpacked(got, NULL);
    check_received(RK_INTERNAL, "broken", packed.text, packed.bytes, "");
    rk_status_free(st);
    rk_str_fini(&packed);
}

static void test_pack_long_message_is_cut_between_characters(void **state)
{
    struct rk_str text = {0}, packed = {0};
    struct rk_status *st;
    Google__Rpc__Status *got;

    (void)state;
    rk_str_append(&text, "x"); /* so that the limit is in the middle of a character */
    while (text.bytes < 2 * RK_LIMIT_STATUS_TEXT_BYTES)
        rk_str_append(&text, "\xc3\xa4");
    st = rk_status_from_wire(RK_INTERNAL, NULL, text.text);
    rk_pack_status_details(&packed, st);
    assert_true(packed.bytes < RK_LIMIT_METADATA_BYTES / 2);
    got = google__rpc__status__unpack(NULL, packed.bytes, (uint8_t *)packed.text);
    assert_non_null(got);
    assert_true(strlen(got->message) > 0);
    assert_true(strlen(got->message) <= RK_LIMIT_STATUS_TEXT_BYTES);
    assert_true(rk_utf8_is_valid(got->message, strlen(got->message)));
    google__rpc__status__free_unpacked(got, NULL);
    rk_status_free(st);
    rk_str_fini(&packed);
    rk_str_fini(&text);
}

static void test_unpack_ok_is_ok_whatever_the_details(void **state)
{
    (void)state;
    assert_ok(rk_unpack_status_details(RK_OK, "", "garbage", 7));
}

static void test_unpack_broken_details_leave_code_and_message(void **state)
{
    struct rk_str huge = {0};

    (void)state;
    check_received(RK_ABORTED, "gone", NULL, 0, "");
    check_received(RK_ABORTED, "gone", "\xff\xff\xff", 3, "");
    check_received(RK_ABORTED, "gone",
                   "\x1a\x05"
                   "ab",
                   4, "");
    while (huge.bytes <= RK_LIMIT_METADATA_BYTES)
        put_bytes(&huge, 2, "message", 7);
    check_received(RK_ABORTED, "gone", huge.text, huge.bytes, "");
    rk_str_fini(&huge);
}

static void test_unpack_finds_the_error_info_among_foreign_details(void **state)
{
    struct rk_str info = {0}, foreign = {0}, any = {0}, status = {0};

    (void)state;
    put_bytes(&foreign, 1, "type.googleapis.com/google.rpc.RetryInfo", 40);
    put_bytes(&foreign, 2, "\x0a\x00", 2);
    put_bytes(&info, 1, "PEER_LOST", 9);
    put_bytes(&info, 2, "rankd.dev", 9);
    put_bytes(&any, 1, "type.googleapis.com/google.rpc.ErrorInfo", 40);
    put_message(&any, 2, &info);
    put_message(&status, 3, &foreign);
    put_message(&status, 3, &any);
    check_received(RK_ABORTED, "gone", status.text, status.bytes, "PEER_LOST");
    rk_str_fini(&info);
    rk_str_fini(&foreign);
    rk_str_fini(&any);
    rk_str_fini(&status);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip_keeps_the_reason),
        cmocka_unit_test(test_pack_has_all_known_details),
        cmocka_unit_test(test_pack_of_another_code_has_no_bad_request),
        cmocka_unit_test(test_pack_without_reason_has_no_details),
        cmocka_unit_test(test_pack_long_message_is_cut_between_characters),
        cmocka_unit_test(test_unpack_ok_is_ok_whatever_the_details),
        cmocka_unit_test(test_unpack_broken_details_leave_code_and_message),
        cmocka_unit_test(test_unpack_finds_the_error_info_among_foreign_details),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
