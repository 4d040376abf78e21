/* The metrics of a validation equal those of verl's own functions. */
#include "rl/algo/validation.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/support/test.h"

#define TOL_SUM                                                                                    \
    1e-12 /* numpy uses pairwise summation, the metrics sequential summation: up to 1000 values of \
           * magnitude 500 */

static struct rk_json *golden(void)
{
    char *path = rk_test_fixture_path("golden/validation/cases.json"), *text;
    struct rk_json *json;
    size_t bytes;

    text = rk_test_read_file(path, &bytes);
    assert_ok(rk_json_parse(&json, text, bytes, path, 0));
    rk_free(text);
    rk_free(path);
    return json;
}

/* The value of a number or boolean; NAN for null. */
static double value_of(const struct rk_json *json)
{
    if (rk_json_type(json) == RK_JSON_BOOL)
        return rk_json_as_bool(json, false);
    return rk_json_as_real(json, NAN);
}

#define VARIABLES 3
#define SAMPLES   64

struct samples {
    const char *sources[SAMPLES], *preds[SAMPLES];
    int64_t prompts[SAMPLES];
    double values[VARIABLES][SAMPLES];
    struct rk_val_variable variables[VARIABLES];
    struct rk_val_in in;
};

static void fill(struct samples *s, const struct rk_json *list)
{
    static const char *const names[VARIABLES] = {"reward", "acc", "length"};

    *s = (struct samples){.in = {.num_samples = rk_json_count(list),
                                 .data_sources = s->sources,
                                 .prompts = s->prompts,
                                 .num_variables = VARIABLES,
                                 .variables = s->variables}};
    assert_true(s->in.num_samples <= SAMPLES);
    for (int64_t i = 0; i < s->in.num_samples; i++) {
        const struct rk_json *sample = rk_json_at(list, i);

        s->prompts[i] = rk_json_as_int(rk_json_find(sample, "prompt"), -1);
        s->in.num_prompts = RK_MAX(s->in.num_prompts, s->prompts[i] + 1);
        s->sources[s->prompts[i]] = rk_json_as_string(rk_json_find(sample, "data_source"), NULL);
        s->preds[i] = rk_json_as_string(rk_json_find(sample, "pred"), NULL);
        s->in.preds = s->preds[i] ? s->preds : s->in.preds;
        for (int v = 0; v < VARIABLES; v++)
            s->values[v][i] = value_of(rk_json_find(sample, names[v]));
    }
    for (int v = 0; v < VARIABLES; v++)
        s->variables[v] = (struct rk_val_variable){names[v], s->values[v]};
}

/* Goal: same names, same values, for prompts with different numbers of responses, missing values, votes,
 * booleans and several sources. */
static void test_val_metrics_equal_verls(void **state)
{
    struct rk_json *all = golden();
    const struct rk_json *cases = rk_json_find(all, "cases");

    (void)state;
    assert_int_equal(rk_json_count(cases), 7);
    for (int64_t c = 0; c < rk_json_count(cases); c++) {
        const struct rk_json *expected = rk_json_find(rk_json_at(cases, c), "metrics");
        struct rk_json *metrics = rk_json_new_object();
        struct samples samples;

        print_message("case %lld: %lld metrics\n", (long long)c, (long long)rk_json_count(expected));
        fill(&samples, rk_json_find(rk_json_at(cases, c), "samples"));
        rk_val_metrics(metrics, &samples.in);
        for (void *it = rk_json_iter(expected); it; it = rk_json_iter_next(expected, it)) {
            double want = rk_json_as_real(rk_json_iter_value(it), NAN);
            double got = rk_json_as_real(rk_json_find(metrics, rk_json_iter_key(it)), NAN);

            if (!(fabs(got - want) <= TOL_SUM * fmax(1.0, fabs(want))))
                fail_msg("%s: %.17g, expected %.17g", rk_json_iter_key(it), got, want);
        }
        assert_int_equal(rk_json_count(metrics), rk_json_count(expected));
        rk_json_free(metrics);
    }
    rk_json_free(all);
}

static void test_val_shuffle_is_numpys(void **state)
{
    struct rk_json *all = golden();
    const struct rk_json *lists = rk_json_find(all, "shown");

    (void)state;
    for (int64_t i = 0; i < rk_json_count(lists); i++) {
        const struct rk_json *expected = rk_json_at(lists, i);
        int64_t order[SAMPLES + 8];

        assert_true(rk_json_count(expected) <= (int64_t)RK_ARRAY_LEN(order));
        rk_val_shuffle(order, rk_json_count(expected));
        for (int64_t j = 0; j < rk_json_count(expected); j++)
            assert_int_equal(order[j], rk_json_as_int(rk_json_at(expected, j), -1));
    }
    rk_json_free(all);
}

/* The first words of numpy.random.RandomState(42), and a bound that equals its mask. */
static void test_mt19937_known_answers(void **state)
{
    static const uint32_t expected[] = {1608637542u, 3421126067u, 4083286876u, 787846414u};
    struct rk_mt19937 mt;

    (void)state;
    rk_mt19937_init(&mt, 42);
    for (size_t i = 0; i < RK_ARRAY_LEN(expected); i++)
        assert_int_equal(rk_mt19937_u32(&mt), expected[i]);
    rk_mt19937_init(&mt, 42);
    assert_int_equal(rk_mt19937_up_to(&mt, 0), 0); /* draws nothing */
    assert_int_equal(rk_mt19937_up_to(&mt, UINT32_MAX), expected[0]);
    assert_int_equal(rk_mt19937_up_to(&mt, 3), expected[1] & 3);
}

static void test_val_metrics_of_nothing_are_none(void **state)
{
    struct rk_json *metrics = rk_json_new_object();

    (void)state;
    rk_val_metrics(metrics, &(struct rk_val_in){0});
    assert_int_equal(rk_json_count(metrics), 0);
    rk_json_free(metrics);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_val_metrics_equal_verls),
        cmocka_unit_test(test_val_shuffle_is_numpys),
        cmocka_unit_test(test_mt19937_known_answers),
        cmocka_unit_test(test_val_metrics_of_nothing_are_none),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
