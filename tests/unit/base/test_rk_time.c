#include "base/rk_time.h"

#include "tests/support/test.h"

static void test_clocks_advance_over_a_sleep(void **state)
{
    int64_t mono = rk_time_now_ns(), boot = rk_time_boot_ms(), wall = rk_time_unix_ns();

    (void)state;
    rk_time_sleep_ms(20);
    assert_true(rk_time_now_ns() - mono >= 20 * 1000000);
    assert_true(rk_time_boot_ms() - boot >= 19); /* both readings are truncated to whole milliseconds */
    assert_true(rk_time_unix_ns() > wall);
    rk_time_sleep_ms(0);
    rk_time_sleep_ms(-5);
}

static void test_inject_all_clocks_return_it(void **state)
{
    int64_t now_ns = 5000000;

    (void)state;
    rk_time_inject(&now_ns);
    assert_int_equal(rk_time_now_ns(), 5000000);
    assert_int_equal(rk_time_unix_ns(), 5000000);
    assert_int_equal(rk_time_boot_ms(), 5);
    now_ns += 1000000;
    assert_int_equal(rk_time_boot_ms(), 6);
    rk_time_inject(NULL);
    assert_true(rk_time_unix_ns() > 1000000000000000000ll);
}

static void test_format_utc_table(void **state)
{
    static const struct {
        int64_t unix_ns;
        const char *expected;
    } cases[] = {
        {0, "1970-01-01T00:00:00.000Z"},
        {1769862896789000000ll, "2026-01-31T12:34:56.789Z"},
        {951782400999999999ll, "2000-02-29T00:00:00.999Z"},
        {-1000000, "1969-12-31T23:59:59.999Z"},
        {-1000000000ll, "1969-12-31T23:59:59.000Z"},
    };
    char buf[32];

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++)
        assert_string_equal(rk_time_format_utc(cases[i].unix_ns, buf, sizeof(buf)), cases[i].expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_clocks_advance_over_a_sleep),
        cmocka_unit_test(test_inject_all_clocks_return_it),
        cmocka_unit_test(test_format_utc_table),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
