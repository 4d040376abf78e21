#include "base/rk_status.h"

#include <stdio.h>
#include <string.h>

#include "tests/support/test.h"

static struct rk_status *open_shard(int shard)
{
    return RK_FAIL_REASON(RK_NOT_FOUND, "NO_CHECKPOINT", "shard %d is missing", shard);
}

static struct rk_status *load(int shard)
{
    struct rk_status *st;

    RK_TRY_GOTO(st, open_shard(shard), out);

out:
    return st ? RK_WRAP(st, "loading step %d", 7) : NULL;
}

/* Goal: messages and logs have file paths relative to the source tree, for every build directory. */
static void test_file_names_begin_at_the_source_tree(void **state)
{
    (void)state;
    assert_string_equal(__FILE__, "tests/unit/base/test_rk_status.c");
}

static void test_status_null_is_ok(void **state)
{
    char buf[8] = "x";

    (void)state;
    assert_int_equal(rk_status_code(NULL), RK_OK);
    assert_string_equal(rk_status_message(NULL), "ok");
    assert_string_equal(rk_status_reason(NULL), "");
    assert_null(rk_status_clone(NULL));
    assert_null(RK_WRAP(NULL, "context"));
    assert_int_equal(rk_status_format_frames(NULL, buf, sizeof(buf)), 0);
    assert_string_equal(buf, "");
    rk_status_free(NULL);
}

static void test_status_wrap_puts_context_before_message(void **state)
{
    struct rk_status *st = load(3);
    char frames[512], first[64];

    (void)state;
    assert_int_equal(rk_status_code(st), RK_NOT_FOUND);
    assert_string_equal(rk_status_reason(st), "NO_CHECKPOINT");
    assert_string_equal(rk_status_message(st), "loading step 7: shard 3 is missing");
    rk_status_format_frames(st, frames, sizeof(frames));
    snprintf(first, sizeof(first), "test_rk_status.c:%d: shard 3 is missing\n", 10);
    assert_non_null(strstr(frames, first)); /* innermost first, with the line of the failure */
    assert_true(strstr(frames, "loading step 7") > strstr(frames, "shard 3"));
    rk_status_free(st);
}

/* Goal: as in snprintf, the required length is returned and the text is truncated and terminated. */
static void test_status_format_frames_small_buffer_is_cut(void **state)
{
    struct rk_status *st = load(3);
    char whole[512], cut[10];
    size_t needed = rk_status_format_frames(st, whole, sizeof(whole));

    (void)state;
    assert_int_equal(needed, strlen(whole));
    assert_int_equal(rk_status_format_frames(st, NULL, 0), needed);
    for (size_t bytes = 1; bytes <= sizeof(cut); bytes++) {
        assert_int_equal(rk_status_format_frames(st, cut, bytes), needed);
        assert_int_equal(strlen(cut), bytes - 1);
        assert_memory_equal(cut, whole, bytes - 1);
    }
    rk_status_free(st);
}

static void test_status_clone_is_equal_and_independent(void **state)
{
    struct rk_status *st = load(1);
    struct rk_status *copy = rk_status_clone(st);
    char a[512], b[512];

    (void)state;
    rk_status_format_frames(st, a, sizeof(a));
    rk_status_format_frames(copy, b, sizeof(b));
    assert_string_equal(a, b);
    assert_string_equal(rk_status_message(copy), rk_status_message(st));
    rk_status_free(st);
    copy = RK_WRAP(copy, "again");
    assert_string_equal(rk_status_reason(copy), "NO_CHECKPOINT");
    assert_message_contains(copy, "again: loading step 7: shard 1");
}

static void test_status_from_wire_copies_reason_and_maps_unknown_codes(void **state)
{
    static const struct {
        const char *label;
        int code;
        rk_code_t expected;
    } cases[] = {
        {"known", RK_ABORTED, RK_ABORTED},     {"last", RK_UNAUTHENTICATED, RK_UNAUTHENTICATED},
        {"ok is no error", RK_OK, RK_UNKNOWN}, {"too large", 17, RK_UNKNOWN},
        {"negative", -1, RK_UNKNOWN},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char reason[] = "PEER_LOST", message[] = "rank 3 left";
        struct rk_status *st = rk_status_from_wire((rk_code_t)cases[i].code, reason, message);

        reason[0] = message[0] = 'x';
        print_message("%s\n", cases[i].label);
        assert_int_equal(rk_status_code(st), cases[i].expected);
        assert_string_equal(rk_status_reason(st), "PEER_LOST");
        assert_string_equal(rk_status_message(st), "rank 3 left");
        rk_status_free(st);
    }
}

static void test_status_from_wire_null_texts_are_empty(void **state)
{
    struct rk_status *st = rk_status_from_wire(RK_INTERNAL, NULL, NULL);

    (void)state;
    assert_string_equal(rk_status_reason(st), "");
    assert_string_equal(rk_status_message(st), "");
    rk_status_free(st);
}

static void test_status_first_keeps_first(void **state)
{
    struct rk_status *kept;

    (void)state;
    assert_null(rk_status_first(NULL, NULL));
    kept = rk_status_first(NULL, RK_FAIL(RK_ABORTED, "b"));
    assert_code(kept, RK_ABORTED);
    kept = rk_status_first(RK_FAIL(RK_INTERNAL, "a"), NULL);
    assert_code(kept, RK_INTERNAL);
    kept = rk_status_first(RK_FAIL(RK_INTERNAL, "a"), RK_FAIL(RK_ABORTED, "b"));
    assert_code(kept, RK_INTERNAL);
    RK_IGNORE(RK_FAIL(RK_ABORTED, "dropped"), "test");
}

static void test_code_name_out_of_range_is_unknown(void **state)
{
    (void)state;
    assert_string_equal(rk_code_name(RK_OK), "OK");
    assert_string_equal(rk_code_name(RK_FAILED_PRECONDITION), "FAILED_PRECONDITION");
    assert_string_equal(rk_code_name(RK_UNAUTHENTICATED), "UNAUTHENTICATED");
    assert_string_equal(rk_code_name((rk_code_t)-1), "UNKNOWN");
    assert_string_equal(rk_code_name(RK_CODE_COUNT), "UNKNOWN");
}

static void test_status_field_grows_outwards_and_stays_with_clones(void **state)
{
    struct rk_status *st = RK_FAIL(RK_INVALID_ARGUMENT, "negative"), *copy;

    (void)state;
    assert_string_equal(rk_status_field(NULL), "");
    assert_string_equal(rk_status_field(st), "");
    assert_null(rk_status_at_field(NULL, "input"));
    st = rk_status_at_field(rk_status_at_field(st, "shape"), "tensor[a]");
    st = rk_status_at_field(RK_WRAP(st, "header"), "input");
    copy = rk_status_clone(st);
    rk_status_free(st);
    assert_string_equal(rk_status_field(copy), "input.tensor[a].shape");
    rk_status_free(copy);
}

static void test_status_retry_after_stays_with_frames_and_clones(void **state)
{
    struct rk_status *st = RK_FAIL(RK_UNAVAILABLE, "later"), *copy;

    (void)state;
    assert_int_equal(rk_status_retry_ms(NULL), -1);
    assert_int_equal(rk_status_retry_ms(st), -1);
    assert_null(rk_status_retry_after(NULL, 5));
    st = RK_WRAP(rk_status_retry_after(st, 1500), "call");
    copy = rk_status_clone(st);
    rk_status_free(st);
    assert_int_equal(rk_status_retry_ms(copy), 1500);
    rk_status_free(copy);
}

static void test_status_blame_stays_with_frames_and_clones(void **state)
{
    struct rk_status *st = RK_FAIL(RK_ABORTED, "gone"), *copy;

    (void)state;
    assert_int_equal(rk_status_blamed_rank(NULL), -1);
    assert_int_equal(rk_status_blamed_rank(st), -1);
    assert_null(rk_status_blame(NULL, 3));
    st = RK_WRAP(rk_status_blame(st, 3), "all_reduce");
    copy = rk_status_clone(st);
    rk_status_free(st);
    assert_int_equal(rk_status_blamed_rank(copy), 3);
    rk_status_free(copy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file_names_begin_at_the_source_tree),
        cmocka_unit_test(test_status_null_is_ok),
        cmocka_unit_test(test_status_wrap_puts_context_before_message),
        cmocka_unit_test(test_status_format_frames_small_buffer_is_cut),
        cmocka_unit_test(test_status_clone_is_equal_and_independent),
        cmocka_unit_test(test_status_from_wire_copies_reason_and_maps_unknown_codes),
        cmocka_unit_test(test_status_from_wire_null_texts_are_empty),
        cmocka_unit_test(test_status_field_grows_outwards_and_stays_with_clones),
        cmocka_unit_test(test_status_retry_after_stays_with_frames_and_clones),
        cmocka_unit_test(test_status_blame_stays_with_frames_and_clones),
        cmocka_unit_test(test_status_first_keeps_first),
        cmocka_unit_test(test_code_name_out_of_range_is_unknown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
