/* The Prometheus text format: compared with texts written by hand from its specification. */
#include "tests/support/test.h"

#include <math.h>
#include <string.h>

#include "base/rk_compiler.h"
#include "daemon/metrics/metrics_text_internal.h"

#define HELP_UP "# HELP rankd_comm_up 1 while the communicators are up.\n# TYPE rankd_comm_up gauge\n"

static void assert_text(struct rk_str *out, const char *expected)
{
    assert_string_equal(rk_str_text(out), expected);
    rk_str_fini(out);
}

static void test_put_int_help_and_type_come_once(void **state)
{
    const struct rk_metric_label a = {"x", "1"}, b = {"x", "2"};
    struct rk_str out = {0};
    struct rk_metrics_text text = {.out = &out};

    (void)state;
    rk_metrics_put_int(&text, RK_METRIC_COMM_UP, &a, 1, 0);
    rk_metrics_put_int(&text, RK_METRIC_COMM_UP, &b, 1, UINT64_MAX);
    assert_text(&out, HELP_UP "rankd_comm_up{x=\"1\"} 0\nrankd_comm_up{x=\"2\"} 18446744073709551615\n");
}

/* Goal: every label value is escaped to one label on one line. */
static void test_put_int_labels_are_escaped(void **state)
{
    const struct rk_metric_label labels[] = {
        {"a", "back\\slash \"quote\"\nline"}, {"b", ""}, {"c", "\xc3\xa4{}, "}};
    struct rk_str out = {0};
    struct rk_metrics_text text = {.out = &out};

    (void)state;
    rk_metrics_put_int(&text, RK_METRIC_COMM_UP, labels, RK_ARRAY_LEN(labels), 1);
    assert_text(&out, HELP_UP
                "rankd_comm_up{a=\"back\\\\slash \\\"quote\\\"\\nline\",b=\"\",c=\"\xc3\xa4{}, \"} 1\n");
}

static void test_put_real_has_names_for_non_finite_values(void **state)
{
    struct rk_str out = {0};
    struct rk_metrics_text text = {.out = &out};

    (void)state;
    rk_metrics_put_real(&text, RK_METRIC_COMM_UP, NULL, 0, 0.25);
    rk_metrics_put_real(&text, RK_METRIC_COMM_UP, NULL, 0, NAN);
    rk_metrics_put_real(&text, RK_METRIC_COMM_UP, NULL, 0, INFINITY);
    rk_metrics_put_real(&text, RK_METRIC_COMM_UP, NULL, 0, -INFINITY);
    rk_metrics_put_real(&text, RK_METRIC_COMM_UP, NULL, 0, 1.5e18);
    assert_text(&out,
                HELP_UP "rankd_comm_up 0.25\nrankd_comm_up NaN\nrankd_comm_up +Inf\nrankd_comm_up -Inf\n"
                        "rankd_comm_up 1.5e+18\n");
}

/* Goal: buckets are cumulative and include their bound; values above the last bound are only in +Inf. */
static void test_put_histogram_buckets_are_cumulative(void **state)
{
    static const struct rk_histogram_bounds bounds = {.num_bounds = 3, .bounds = {0.1, 1, 10}};
    static const double values[] = {0.05, 0.1, 0.5, 10, 11, 100};
    const struct rk_metric_label label = {"rpc", "a"};
    struct rk_histogram histogram = {0};
    struct rk_str out = {0};
    struct rk_metrics_text text = {.out = &out};
    const char *samples;

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(values); i++)
        rk_histogram_add(&histogram, &bounds, values[i]);
    rk_metrics_put_histogram(&text, RK_METRIC_RPC_DURATION, &label, 1, &histogram, &bounds);
    samples = strstr(rk_str_text(&out), "\nrankd_rpc_duration_seconds_bucket");
    assert_non_null(samples);
    assert_string_equal(samples, "\nrankd_rpc_duration_seconds_bucket{rpc=\"a\",le=\"0.1\"} 2\n"
                                 "rankd_rpc_duration_seconds_bucket{rpc=\"a\",le=\"1\"} 3\n"
                                 "rankd_rpc_duration_seconds_bucket{rpc=\"a\",le=\"10\"} 4\n"
                                 "rankd_rpc_duration_seconds_bucket{rpc=\"a\",le=\"+Inf\"} 6\n"
                                 "rankd_rpc_duration_seconds_sum{rpc=\"a\"} 121.65\n"
                                 "rankd_rpc_duration_seconds_count{rpc=\"a\"} 6\n");
    rk_str_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_put_int_help_and_type_come_once),
        cmocka_unit_test(test_put_int_labels_are_escaped),
        cmocka_unit_test(test_put_real_has_names_for_non_finite_values),
        cmocka_unit_test(test_put_histogram_buckets_are_cumulative),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
