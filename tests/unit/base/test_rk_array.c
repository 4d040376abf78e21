#include "base/rk_array.h"

#include "tests/support/test.h"

static void test_array_append_thousand_keeps_order(void **state)
{
    RK_ARRAY(int64_t) array = {0};

    (void)state;
    for (int64_t i = 0; i < 1000; i++)
        rk_array_append(&array, i * i);
    assert_int_equal(array.count, 1000);
    assert_true(array.capacity >= array.count);
    for (int64_t i = 0; i < 1000; i++)
        assert_int_equal(array.items[i], i * i);
    rk_array_fini(&array);
    assert_null(array.items);
    assert_int_equal(array.count, 0);
}

/* Goal: an initializer with commas is one element. */
static void test_array_append_struct_literal_is_one_element(void **state)
{
    struct pair {
        int a, b;
    };
    RK_ARRAY(struct pair) array = {0};

    (void)state;
    rk_array_append(&array, (struct pair){1, 2});
    rk_array_append(&array, (struct pair){.b = 4, .a = 3});
    assert_int_equal(array.count, 2);
    assert_int_equal(array.items[1].a, 3);
    assert_int_equal(array.items[1].b, 4);
    rk_array_fini(&array);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_array_append_thousand_keeps_order),
        cmocka_unit_test(test_array_append_struct_literal_is_one_element),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
