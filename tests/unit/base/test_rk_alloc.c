#include "base/rk_alloc.h"

#include "tests/support/test.h"

/* Goal: zero-byte and ordinary requests give usable, distinct memory. */
static void test_malloc_zero_bytes_gives_unique_pointers(void **state)
{
    void *a = rk_malloc(0), *b = rk_malloc(0);

    (void)state;
    assert_non_null(a);
    assert_ptr_not_equal(a, b);
    rk_free(a);
    rk_free(b);
    rk_free(NULL);
}

static void test_strdup_null_gives_null(void **state)
{
    char *copy = rk_strdup("abc"), *cut = rk_strndup("abcdef", 2), *whole = rk_strndup("ab", 9);

    (void)state;
    assert_null(rk_strdup(NULL));
    assert_null(rk_strndup(NULL, 3));
    assert_string_equal(copy, "abc");
    assert_string_equal(cut, "ab");
    assert_string_equal(whole, "ab");
    rk_free(copy);
    rk_free(cut);
    rk_free(whole);
}

static void test_try_alloc_small_request_is_zeroed(void **state)
{
    unsigned char *p;

    (void)state;
    assert_ok(rk_try_alloc((void **)&p, 1000, "buffer"));
    for (int i = 0; i < 1000; i++)
        assert_int_equal(p[i], 0);
    rk_free(p);
    assert_ok(rk_try_alloc((void **)&p, 0, "nothing"));
    assert_non_null(p);
    rk_free(p);
}

/* Goal: an allocation larger than any memory returns a status and does not abort. */
static void test_try_alloc_absurd_request_is_exhausted(void **state)
{
    void *p = &p;

    (void)state;
    assert_fails(rk_try_alloc(&p, SIZE_MAX, "KV cache"), RK_RESOURCE_EXHAUSTED, "KV cache: cannot allocate");
    assert_null(p);
}

/* Goal: exactly the n-th call fails, once. */
static void test_alloc_fail_after_nth_fails_once(void **state)
{
    (void)state;
    for (int64_t nth = 1; nth <= 4; nth++) {
        rk_alloc_fail_after(nth);
        for (int64_t call = 1; call <= 5; call++) {
            void *p;
            struct rk_status *st = rk_try_alloc(&p, 8, "probe");

            assert_int_equal(rk_status_code(st), call == nth ? RK_RESOURCE_EXHAUSTED : RK_OK);
            rk_status_free(st);
            rk_free(p);
        }
    }
}

static void test_alloc_fail_after_zero_switches_off(void **state)
{
    void *p;

    (void)state;
    rk_alloc_fail_after(1);
    rk_alloc_fail_after(0);
    assert_ok(rk_try_alloc(&p, 8, "probe"));
    rk_free(p);
}

static void test_checked_arithmetic_overflow_keeps_out(void **state)
{
    size_t size = 7;
    int64_t number = 7;

    (void)state;
    assert_true(rk_mul_size(3, 5, &size));
    assert_int_equal(size, 15);
    assert_true(rk_add_i64(INT64_MAX, 0, &number));
    assert_true(number == INT64_MAX);
    assert_false(rk_mul_size(SIZE_MAX, 2, &size));
    assert_false(rk_add_size(SIZE_MAX, 1, &size));
    assert_false(rk_mul_i64(INT64_MIN, -1, &number));
    assert_false(rk_add_i64(INT64_MIN, -1, &number));
    assert_int_equal(size, 15);
    assert_true(number == INT64_MAX);
}

static void test_round_up_table(void **state)
{
    static const struct {
        size_t value, multiple, expected;
    } cases[] = {{0, 8, 0}, {1, 8, 8}, {8, 8, 8}, {9, 8, 16}, {10, 3, 12}};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++)
        assert_int_equal(rk_round_up(cases[i].value, cases[i].multiple), cases[i].expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_malloc_zero_bytes_gives_unique_pointers),
        cmocka_unit_test(test_strdup_null_gives_null),
        cmocka_unit_test(test_try_alloc_small_request_is_zeroed),
        cmocka_unit_test(test_try_alloc_absurd_request_is_exhausted),
        cmocka_unit_test(test_alloc_fail_after_nth_fails_once),
        cmocka_unit_test(test_alloc_fail_after_zero_switches_off),
        cmocka_unit_test(test_checked_arithmetic_overflow_keeps_out),
        cmocka_unit_test(test_round_up_table),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
