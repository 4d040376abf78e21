#include "daemon/lock_internal.h"

#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "tests/support/test.h"

static void test_rk_lock_take_second_is_refused_until_released(void **state)
{
    char *path = rk_test_temp_path("lock");
    struct rk_lock *first = NULL, *second = NULL;
    struct rk_status *st;
    char *text;

    (void)state;
    assert_ok(rk_lock_take(&first, path, 0xabcd));
    st = rk_lock_take(&second, path, 1); /* another open file description: like another process */
    assert_null(second);
    assert_string_equal(rk_status_reason(st), "LOCK_HELD");
    assert_fails(st, RK_FAILED_PRECONDITION, path);
    text = rk_test_read_file(path, NULL);
    assert_non_null(strstr(text, "000000000000abcd"));
    rk_free(text);
    rk_lock_release(first);
    assert_ok(rk_lock_take(&second, path, 1));
    rk_lock_release(second);
    rk_free(path);
}

static void test_rk_lock_take_impossible_path_is_refused(void **state)
{
    struct rk_lock *lock = NULL;

    (void)state;
    assert_fails(rk_lock_take(&lock, "/nonexistent/lock", 1), RK_INVALID_ARGUMENT, "/nonexistent/lock");
    assert_null(lock);
}

static void test_rk_epoch_store_is_read_back(void **state)
{
    uint64_t epoch = 1;

    (void)state;
    assert_ok(rk_epoch_load(&epoch, rk_test_temp_dir()));
    assert_int_equal(epoch, 0);
    assert_ok(rk_epoch_store(rk_test_temp_dir(), 41));
    assert_ok(rk_epoch_store(rk_test_temp_dir(), INT64_MAX));
    assert_ok(rk_epoch_load(&epoch, rk_test_temp_dir()));
    assert_int_equal(epoch, INT64_MAX);
}

/* Goal: a damaged file is an error, not an epoch of 0 that would admit old drivers. */
static void test_rk_epoch_load_damaged_file_is_refused(void **state)
{
    static const char *const cases[] = {"", "\n", "12x\n", "-1\n", "99999999999999999999\n", "1 2\n"};
    char *path = rk_test_temp_path("epoch");

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        uint64_t epoch = 7;

        rk_test_write_file(path, cases[i], strlen(cases[i]));
        assert_fails(rk_epoch_load(&epoch, rk_test_temp_dir()), RK_DATA_LOSS, "does not hold a number");
        assert_int_equal(epoch, 0);
    }
    unlink(path);
    assert_fails(rk_epoch_store("/nonexistent", 1), RK_INTERNAL, "/nonexistent");
    rk_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rk_lock_take_second_is_refused_until_released),
        cmocka_unit_test(test_rk_lock_take_impossible_path_is_refused),
        cmocka_unit_test(test_rk_epoch_store_is_read_back),
        cmocka_unit_test(test_rk_epoch_load_damaged_file_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
