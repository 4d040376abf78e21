/* Karmarkar-Karp: the worked examples (their ties included), and properties. */
#include "tests/support/test.h"

#include "base/rk_alloc.h"
#include "base/rk_compiler.h"
#include "base/rk_rng.h"
#include "dispatch/rk_plan.h"

#include <string.h>

#define MAX_ITEMS 8

static const struct rk_workload verl_7b = {.linear = 24576};

/* Expected: the part of each item. */
static const struct {
    const char *label;
    bool use_workload;
    int64_t num_items, values[MAX_ITEMS];
    int32_t k;
    bool equal_size;
    int32_t part_of[MAX_ITEMS];
} cases[] = {
#define LENGTHS                                \
    8,                                         \
    {                                          \
        100, 900, 300, 700, 500, 200, 800, 400 \
    }
    {"8 7 6 5 4", false, 5, {8, 7, 6, 5, 4}, 2, false, {1, 0, 1, 0, 0}},
    {"values, k=2 equal", false, LENGTHS, 2, true, {1, 1, 0, 0, 1, 0, 0, 1}},
    {"values, k=2 unequal", false, LENGTHS, 2, false, {0, 0, 0, 0, 1, 1, 1, 1}},
    {"values, k=4 equal", false, LENGTHS, 4, true, {2, 2, 1, 1, 3, 0, 0, 3}},
    {"workload, k=2 equal", true, LENGTHS, 2, true, {1, 1, 0, 0, 1, 0, 0, 1}},
    {"workload, k=2 unequal", true, LENGTHS, 2, false, {0, 1, 1, 1, 0, 0, 0, 0}},
    {"workload, k=4 equal", true, LENGTHS, 4, true, {0, 0, 2, 2, 3, 1, 1, 3}},
    {"one part", false, 3, {5, 1, 2}, 1, false, {0, 0, 0}},
    {"a part an item", false, 3, {5, 1, 2}, 3, false, {0, 2, 1}},
    {"all zero", false, 4, {0, 0, 0, 0}, 2, true, {0, 1, 1, 0}},
    {"ties, k=3 unequal", false, 8, {1, 1, 1, 0, 1, 0, 1, 1}, 3, false, {2, 0, 1, 0, 1, 1, 0, 2}},
    {"ties, k=2 equal", false, 8, {2, 1, 2, 1, 2, 1, 2, 1}, 2, true, {0, 0, 1, 1, 1, 0, 0, 1}},
    {"ties, k=4 equal", false, 8, {3, 3, 3, 3, 1, 1, 1, 1}, 4, true, {3, 2, 1, 0, 0, 1, 2, 3}},
    {"ties, k=5 unequal", false, 8, {2, 2, 2, 2, 2, 2, 2, 1}, 5, false, {1, 0, 0, 1, 2, 4, 3, 2}},
};

static void test_balance_partitions_worked_examples(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        int64_t values[MAX_ITEMS];
        int32_t part_of[MAX_ITEMS];

        print_message("%s\n", cases[i].label);
        for (int64_t k = 0; k < cases[i].num_items; k++)
            values[k] =
                cases[i].use_workload ? rk_workload_of(verl_7b, cases[i].values[k]) : cases[i].values[k];
        assert_ok(
            rk_balance_partitions(part_of, values, cases[i].num_items, cases[i].k, cases[i].equal_size));
        for (int64_t k = 0; k < cases[i].num_items; k++)
            assert_int_equal(part_of[k], cases[i].part_of[k]);
    }
}

static void test_workload_of_is_linear_plus_square(void **state)
{
    (void)state;
    assert_int_equal(rk_workload_of(verl_7b, 0), 0);
    assert_int_equal(rk_workload_of(verl_7b, 100), 24576 * 100 + 10000);
    assert_int_equal(rk_workload_of((struct rk_workload){0}, 7), 49);
}

static void test_balance_partitions_bad_arguments_are_refused(void **state)
{
    int32_t part_of[4];

    (void)state;
    assert_fails(rk_balance_partitions(part_of, (int64_t[]){1, 2}, 2, 3, false), RK_INVALID_ARGUMENT,
                 "2 items for 3 parts");
    assert_fails(rk_balance_partitions(part_of, NULL, 0, 1, false), RK_INVALID_ARGUMENT,
                 "0 items for 1 parts");
    assert_fails(rk_balance_partitions(part_of, (int64_t[]){1, 2}, 2, 0, false), RK_INVALID_ARGUMENT,
                 "for 0 parts");
    assert_fails(rk_balance_partitions(part_of, (int64_t[]){1, 2, 3}, 3, 2, true), RK_INVALID_ARGUMENT,
                 "3 items do not divide into 2 parts of equal size");
    assert_fails(rk_balance_partitions(part_of, (int64_t[]){1, -2}, 2, 2, false), RK_INVALID_ARGUMENT,
                 "item 1: the value -2");
    assert_fails(rk_balance_partitions(part_of, (int64_t[]){INT64_MAX, 1}, 2, 2, false), RK_INVALID_ARGUMENT,
                 "item 1: the value 1 is negative or too large");
}

static void check_random(struct rk_rng *rng, int64_t num_items, int32_t k, bool equal_size)
{
    int64_t *values = rk_calloc((size_t)num_items, sizeof(*values));
    int32_t *part_of = rk_calloc((size_t)num_items, sizeof(*part_of));
    int64_t *sums = rk_calloc((size_t)k, sizeof(*sums)), *counts = rk_calloc((size_t)k, sizeof(*counts));
    int64_t largest = 0;

    for (int64_t i = 0; i < num_items; i++) {
        values[i] = rk_rng_next_below(rng, 1000);
        largest = RK_MAX(largest, values[i]);
    }
    assert_ok(rk_balance_partitions(part_of, values, num_items, k, equal_size));
    for (int64_t i = 0; i < num_items; i++) {
        assert_true(part_of[i] >= 0);
        assert_true(part_of[i] < k);
        sums[part_of[i]] += values[i];
        counts[part_of[i]]++;
    }
    for (int32_t part = 0; part < k; part++) {
        assert_true(counts[part] >= 1);
        if (equal_size)
            assert_int_equal(counts[part], num_items / k);
        if (part > 0)
            assert_true(sums[part] <= sums[part - 1]);
    }
    /* Parts differ by no more than one item could. */
    assert_true(sums[0] - sums[k - 1] <= largest);
    rk_free(values);
    rk_free(part_of);
    rk_free(sums);
    rk_free(counts);
}

static void test_balance_partitions_random_values(void **state)
{
    struct rk_rng rng;

    (void)state;
    rk_rng_init(&rng, rk_test_seed(), 1);
    for (int i = 0; i < 300; i++) {
        int32_t k = 1 + (int32_t)rk_rng_next_below(&rng, 9);

        check_random(&rng, k * (1 + rk_rng_next_below(&rng, 12)), k, true);
        check_random(&rng, k + rk_rng_next_below(&rng, 60), k, false);
    }
    check_random(&rng, 4096, 64, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_balance_partitions_worked_examples),
        cmocka_unit_test(test_workload_of_is_linear_plus_square),
        cmocka_unit_test(test_balance_partitions_bad_arguments_are_refused),
        cmocka_unit_test(test_balance_partitions_random_values),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
