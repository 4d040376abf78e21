#include "base/rk_map.h"

#include <stdio.h>
#include <string.h>

#include "tests/support/test.h"

static void test_map_put_thousand_finds_all_in_order(void **state)
{
    struct rk_map *map = rk_map_create();
    static int values[1000];
    char key[32];

    (void)state;
    for (int i = 0; i < 1000; i++) {
        snprintf(key, sizeof(key), "layers.%d.weight", i);
        assert_null(rk_map_put(map, key, &values[i]));
    }
    assert_int_equal(rk_map_count(map), 1000);
    for (int i = 0; i < 1000; i++) {
        snprintf(key, sizeof(key), "layers.%d.weight", i);
        assert_ptr_equal(rk_map_find(map, key), &values[i]);
        assert_string_equal(rk_map_key_at(map, i), key);
        assert_ptr_equal(rk_map_value_at(map, i), &values[i]);
    }
    assert_null(rk_map_find(map, "layers.1000.weight"));
    assert_null(rk_map_find(map, ""));
    rk_map_destroy(map);
}

static void test_map_put_existing_key_replaces_in_place(void **state)
{
    struct rk_map *map = rk_map_create();
    int a, b, c;

    (void)state;
    assert_null(rk_map_put(map, "x", &a));
    assert_null(rk_map_put(map, "y", &b));
    assert_ptr_equal(rk_map_put(map, "x", &c), &a);
    assert_int_equal(rk_map_count(map), 2);
    assert_ptr_equal(rk_map_value_at(map, 0), &c);
    rk_map_destroy(map);
}

static void test_map_put_copies_the_key(void **state)
{
    struct rk_map *map = rk_map_create();
    char key[] = "name";
    int value;

    (void)state;
    assert_null(rk_map_put(map, key, &value));
    key[0] = 'g';
    assert_ptr_equal(rk_map_find(map, "name"), &value);
    assert_null(rk_map_find(map, key));
    rk_map_destroy(map);
    rk_map_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_map_put_thousand_finds_all_in_order),
        cmocka_unit_test(test_map_put_existing_key_replaces_in_place),
        cmocka_unit_test(test_map_put_copies_the_key),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
