/* The reduction of metrics of several ranks to one number: which ranks count, and how. */
#include "driver/driver_internal.h"

#include <math.h>

#include "tests/support/test.h"

/* tp 2 x dp 2: ranks 0 and 2 collect, 1 and 3 repeat their collector's values; memory differs on every rank.
 */
static struct rk_metric of_rank[4][5] = {
    {{"loss", 1.0, "", "sum"},
     {"lr", 0.1, "", "last"},
     {"frac", 0.5, "", "mean"},
     {"mem", 3.0, "", "max"},
     {"low", 7.0, "", "min"}},
    {{"loss", 1.0, "", "sum"},
     {"lr", 0.1, "", "last"},
     {"frac", 0.5, "", "mean"},
     {"mem", 9.0, "", "max"},
     {"low", 6.0, "", "min"}},
    {{"loss", 2.0, "", "sum"},
     {"lr", 0.2, "", "last"},
     {"frac", 1.0, "", "mean"},
     {"mem", 4.0, "", "max"},
     {"low", 5.0, "", "min"}},
    {{"loss", 2.0, "", "sum"},
     {"lr", 0.2, "", "last"},
     {"frac", 1.0, "", "mean"},
     {"mem", 5.0, "", "max"},
     {"low", 8.0, "", "min"}},
};
static const bool collects[4] = {true, false, true, false};

static const struct {
    const char *name;
    double expected;
} reduced[] = {{"loss", 3.0}, {"lr", 0.2}, {"frac", 0.75}, {"mem", 9.0}, {"low", 5.0}};

static void test_reduce_metrics_parts_count_once_and_extremes_everywhere(void **state)
{
    struct rk_execute_result results[4] = {0};
    const struct rk_execute_result *by_rank[4];
    struct rk_json *metrics;

    (void)state;
    for (int i = 0; i < 4; i++) {
        results[i] = (struct rk_execute_result){.num_metrics = 5, .metrics = of_rank[i]};
        by_rank[i] = &results[i];
    }
    metrics = rk_reduce_metrics(by_rank, collects, 4);
    assert_int_equal(rk_json_count(metrics), RK_ARRAY_LEN(reduced));
    for (size_t i = 0; i < RK_ARRAY_LEN(reduced); i++)
        assert_true(rk_json_as_real(rk_json_find(metrics, reduced[i].name), NAN) == reduced[i].expected);
    rk_json_free(metrics);
}

static void test_reduce_metrics_absent_ranks_and_bad_numbers(void **state)
{
    struct rk_metric bad = {"loss", NAN, "", "sum"};
    struct rk_execute_result result = {.num_metrics = 1, .metrics = &bad};
    const struct rk_execute_result *by_rank[4] = {NULL, NULL, &result, NULL};
    struct rk_json *metrics = rk_reduce_metrics(by_rank, collects, 4);

    (void)state;
    assert_non_null(rk_json_find(metrics, "loss"));
    assert_true(rk_json_is_null(rk_json_find(metrics, "loss")));
    rk_json_free(metrics);
}

/* Goal: a non-finite metric of one replica is neither dropped from a sum nor lost in a comparison. */
static void test_reduce_metrics_keeps_a_non_finite_value_of_one_rank(void **state)
{
    static const char *const reduces[] = {"sum", "mean", "max", "min", "last"};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(reduces); i++) {
        struct rk_metric bad = {"loss", i % 2 == 0 ? NAN : INFINITY, "", reduces[i]};
        struct rk_metric good = {"loss", 1.0, "", reduces[i]};
        struct rk_execute_result first = {.num_metrics = 1, .metrics = &bad};
        struct rk_execute_result second = {.num_metrics = 1, .metrics = &good};
        const struct rk_execute_result *by_rank[4] = {&first, NULL, &second, NULL};
        struct rk_json *metrics = rk_reduce_metrics(by_rank, collects, 4);

        print_message("%s\n", reduces[i]);
        assert_non_null(rk_json_find(metrics, "loss"));
        assert_true(rk_json_is_null(rk_json_find(metrics, "loss")));
        rk_json_free(metrics);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reduce_metrics_parts_count_once_and_extremes_everywhere),
        cmocka_unit_test(test_reduce_metrics_absent_ranks_and_bad_numbers),
        cmocka_unit_test(test_reduce_metrics_keeps_a_non_finite_value_of_one_rank),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
