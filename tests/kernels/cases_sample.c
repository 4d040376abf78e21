/* Goal: the sampler draws the published tokens for a known row, its filters keep exactly the tokens of their
 * definitions, and it returns the log-probability under the sampled distribution. */
#include "tests/kernels/kernel_test.h"

#include <math.h>
#include <stdlib.h>

#define VOCAB_SIZE 8
#define SEED       1234567890123u
#define STREAM     42u

static const double known_logits[VOCAB_SIZE] = {0, 1, 2, 3, -1, 0.5, 2.5, 1.5};
static const double known_log_probs[VOCAB_SIZE] = {-3.90949, -2.90949, -1.90949, -0.90949,
                                                   -4.90949, -3.40949, -1.40949, -2.40949};

struct samples {
    const int32_t *tokens;
    const double *log_probs;
};

/* One row of F32 per parameter set, all with the same logits of `count` columns, the first vocab_size
 * valid. */
static struct rk_sample_args make_args(struct kt *kt, const double *logits, int64_t count, int64_t vocab_size,
                                       const struct rk_sample_params *params, int64_t num_rows)
{
    double *rows = kt_scratch(kt, num_rows * count);
    rk_tensor_t bytes = kt_zeros_1d(kt, RK_DTYPE_U8, num_rows * (int64_t)sizeof(*params));
    struct rk_sample_args args = {
        .tokens = kt_zeros_1d(kt, RK_DTYPE_I32, num_rows),
        .log_probs = kt_zeros_1d(kt, RK_DTYPE_F32, num_rows),
        .logits = kt_zeros_2d(kt, RK_DTYPE_F32, num_rows, count),
        .vocab_size = vocab_size,
        .params = bytes.data,
    };

    for (int64_t i = 0; i < num_rows * count; i++)
        rows[i] = logits[i % count];
    kt_write(kt, args.logits, rows);
    assert_ok(rk_stream_copy(kt->stream, bytes.data, params, rk_tensor_bytes(bytes), RK_COPY_H2D));
    return args;
}

static struct samples run(struct kt *kt, const struct rk_sample_args *args)
{
    assert_ok(rk_sample(kt->stream, args));
    return (struct samples){kt_read_ints(kt, args->tokens), kt_read(kt, args->log_probs)};
}

static struct rk_sample_params params_at(int32_t position)
{
    return (struct rk_sample_params){
        .temperature = 1.0f,
        .top_k = -1,
        .top_p = 1.0f,
        .position = position,
        .seed = SEED,
        .stream = STREAM,
    };
}

static void test_sample_known_row_gives_published_tokens(void **state)
{
    static const struct {
        int32_t position, plain, cold, top3;
    } expected[] = {{17, 3, 3, 3}, {18, 7, 3, 3}, {19, 6, 6, 6}, {20, 3, 3, 3}};
    struct kt *kt = *state;
    struct rk_sample_params params[3 * RK_ARRAY_LEN(expected)];
    struct rk_sample_args args;
    struct samples got;

    for (size_t i = 0; i < RK_ARRAY_LEN(expected); i++) {
        params[3 * i] = params[3 * i + 1] = params[3 * i + 2] = params_at(expected[i].position);
        params[3 * i + 1].temperature = 0.5f;
        params[3 * i + 2].top_k = 3;
    }
    args = make_args(kt, known_logits, VOCAB_SIZE, VOCAB_SIZE, params, RK_ARRAY_LEN(params));
    got = run(kt, &args);
    for (size_t i = 0; i < RK_ARRAY_LEN(expected); i++) {
        assert_int_equal(got.tokens[3 * i], expected[i].plain);
        assert_int_equal(got.tokens[3 * i + 1], expected[i].cold);
        assert_int_equal(got.tokens[3 * i + 2], expected[i].top3);
        assert_below("log-prob", fabs(got.log_probs[3 * i] - known_log_probs[expected[i].plain]),
                     RK_TOL_FIVE_DECIMALS);
    }
}

static void test_sample_many_positions_match_published_frequencies(void **state)
{
    enum { NUM_POSITIONS = 20000 };
    static const double expected[VOCAB_SIZE] = {.0186, .0505, .1469, .4080, .0073, .0330, .2457, .0901};
    static struct rk_sample_params params[NUM_POSITIONS];
    struct kt *kt = *state;
    double frequency[VOCAB_SIZE] = {0};
    struct rk_sample_args args;
    struct samples got;

    if (!rk_test_in_part() || rk_test_is_quick())
        rk_test_skip("belongs to another part, or to a run that is not quick");
    for (int32_t i = 0; i < NUM_POSITIONS; i++)
        params[i] = params_at(i);
    args = make_args(kt, known_logits, VOCAB_SIZE, VOCAB_SIZE, params, NUM_POSITIONS);
    got = run(kt, &args);
    for (int32_t i = 0; i < NUM_POSITIONS; i++)
        frequency[got.tokens[i]] += 1.0 / NUM_POSITIONS;
    for (int v = 0; v < VOCAB_SIZE; v++)
        assert_below("frequency", fabs(frequency[v] - expected[v]), RK_TOL_FREQUENCY);
}

/* The kept tokens are determined from the sampled tokens and their probabilities. */
struct filter_case {
    const char *label;
    double probabilities[5];
    int32_t top_k;
    float top_p;
    bool kept[5];
};

static const struct filter_case filter_cases[] = {
    {"top-k off", {.5, .25, .15, .1, 0}, 0, 1.0f, {1, 1, 1, 1, 0}},
    {"top-k of all", {.4, .2, .2, .1, .1}, 5, 1.0f, {1, 1, 1, 1, 1}},
    {"top-k 2", {.1, .5, .15, .25, 0}, 2, 1.0f, {0, 1, 0, 1, 0}},
    {"top-k keeps ties at the threshold", {.4, .2, .2, .1, .1}, 2, 1.0f, {1, 1, 1, 0, 0}},
    {"top-p .74", {.5, .25, .15, .1, 0}, -1, .74f, {1, 1, 0, 0, 0}},
    {"top-p .76", {.5, .25, .15, .1, 0}, -1, .76f, {1, 1, 1, 0, 0}},
    {"top-p keeps the largest", {.15, .25, .5, .1, 0}, -1, 1e-6f, {0, 0, 1, 0, 0}},
    {"top-p, of equal ones the larger id goes", {.3, .3, .3, .1, 0}, -1, .65f, {1, 1, 1, 0, 0}},
    {"top-p, only the first of equal ones stays", {.25, .25, .25, .25, 0}, -1, .2f, {1, 0, 0, 0, 0}},
    {"top-p works on what top-k left", {.4, .3, .2, .1, 0}, 2, .5f, {1, 0, 0, 0, 0}},
};

static void test_sample_filters_keep_what_is_defined(void **state)
{
    enum { NUM_ROWS = 400 };
    const int32_t num_rows = rk_test_is_quick() ? 4 : NUM_ROWS;
    struct kt *kt = *state;

    for (size_t i = 0; i < RK_ARRAY_LEN(filter_cases); i++) {
        const struct filter_case *c = &filter_cases[i];
        struct rk_sample_params params[NUM_ROWS];
        double logits[5], mass = 0.0;
        bool seen[5] = {false};
        struct rk_sample_args args;
        struct samples got;

        if (!rk_test_in_part())
            continue;
        for (int v = 0; v < 5; v++) {
            logits[v] = log(c->probabilities[v]);
            mass += c->kept[v] ? c->probabilities[v] : 0.0;
        }
        for (int32_t r = 0; r < num_rows; r++) {
            params[r] = params_at(r);
            params[r].top_k = c->top_k;
            params[r].top_p = c->top_p;
        }
        args = make_args(kt, logits, 5, 5, params, num_rows);
        got = run(kt, &args);
        for (int32_t r = 0; r < num_rows; r++) {
            double expected = log(c->probabilities[got.tokens[r]] / mass);

            seen[got.tokens[r]] = true;
            assert_below(c->label, fabs(got.log_probs[r] - expected), RK_TOL_F32_ELEMENT);
        }
        for (int v = 0; v < 5; v++) {
            if (seen[v] ? !c->kept[v] : c->kept[v] && num_rows == NUM_ROWS)
                fail_msg("%s: token %d was%s drawn", c->label, v, seen[v] ? "" : " not");
        }
    }
}

static int compare_descending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? 1 : x > y ? -1 : 0;
}

/* Number of sorted logits that top-k and top-p keep. */
static int64_t count_kept(const double *sorted, int64_t count, int32_t top_k, double top_p)
{
    double sum = 0.0, tail = 0.0;
    int64_t kept = top_k > 0 ? top_k : count;

    while (kept < count && sorted[kept] == sorted[kept - 1])
        kept++;
    for (int64_t i = 0; i < kept; i++)
        sum += exp(sorted[i] - sorted[0]);
    for (; kept > 1; kept--) {
        tail += exp(sorted[kept - 1] - sorted[0]);
        if (tail > (1.0 - top_p) * sum)
            break;
    }
    return kept;
}

struct large_filter {
    const char *label;
    int32_t top_k;
    float top_p;
    double step; /* logits are multiples of this */
    int32_t count;
};

static void check_large_filter(struct kt *kt, const struct large_filter *filter, rk_dtype_t dtype)
{
    enum { NUM_ROWS = 32 };
    const int32_t num_rows = rk_test_is_quick() ? 2 : NUM_ROWS, count = filter->count;
    double *logits = kt_read(kt, kt_randomize(kt, kt_zeros_1d(kt, dtype, count), 3.0));
    double *sorted = kt_scratch(kt, count), sum = 0.0;
    struct rk_sample_params params[NUM_ROWS];
    rk_tensor_t rows = kt_zeros_2d(kt, dtype, num_rows, count);
    double *all = kt_scratch(kt, (int64_t)num_rows * count);
    struct rk_sample_args args;
    struct samples got;
    int64_t num_kept;

    for (int i = 0; i < count; i++)
        sorted[i] = logits[i] = filter->step > 0 ? filter->step * rint(logits[i] / filter->step) : logits[i];
    for (int i = 0; i < num_rows * count; i++)
        all[i] = logits[i % count];
    qsort(sorted, count, sizeof(*sorted), compare_descending);
    num_kept = count_kept(sorted, count, filter->top_k, filter->top_p);
    for (int64_t i = 0; i < num_kept; i++)
        sum += exp(sorted[i]);
    for (int32_t r = 0; r < num_rows; r++) {
        params[r] = params_at(r);
        params[r].top_k = filter->top_k;
        params[r].top_p = filter->top_p;
    }
    args = make_args(kt, logits, count, count, params, num_rows);
    kt_write(kt, rows, all);
    args.logits = rows;
    got = run(kt, &args);
    for (int32_t r = 0; r < num_rows; r++) {
        double z = logits[got.tokens[r]];

        assert_true(z >= sorted[num_kept - 1]);
        assert_below(kt_label(kt, filter->label, dtype), fabs(got.log_probs[r] - (z - log(sum))),
                     RK_TOL_F32_SUM);
    }
}

/* Goal: with a vocabulary larger than a block or warp holds at once, sampled tokens are those that the
 * filters keep, with their renormalized probabilities. In F32 the logits are distinct except in the rows of
 * ties; in BF16 there are a dozen of each value, and the threshold of top-p is among equal ones. */
static void test_sample_filters_large_vocabulary(void **state)
{
    static const struct large_filter filters[] = {
        {"top-k", 50, 1.0f, 0.0, 20011},
        {"top-k, ties", 50, 1.0f, 0.125, 20011},
        {"top-p", 0, 0.9f, 0.0, 20011},
        {"small top-p", 0, 0.05f, 0.0, 20011},
        {"both", 1000, 0.6f, 0.0, 20011},
        {"top-p, all equal", 0, 0.3f, 1e3, 20011},
        {"top-p, all equal, few", 0, 0.3f, 1e3, 3000},
    };
    static const rk_dtype_t dtypes[] = {RK_DTYPE_F32, RK_DTYPE_BF16};

    for (size_t i = 0; i < RK_ARRAY_LEN(filters) * RK_ARRAY_LEN(dtypes); i++) {
        if (rk_test_in_part())
            check_large_filter(*state, &filters[i / 2], dtypes[i % 2]);
    }
}

/* Goal: temperature 0 takes the largest logit, the smallest id of equal ones, and returns the unscaled
 * log-prob; filters and noise have no effect. */
static void test_sample_greedy_takes_first_largest(void **state)
{
    static const double logits[4] = {1.0, 2.0, 2.0, 0.0};
    struct kt *kt = *state;
    struct rk_sample_params params[16];
    double expected = 2.0 - log(exp(1.0) + 2 * exp(2.0) + 1.0);
    struct rk_sample_args args;
    struct samples got;

    for (int32_t i = 0; i < 16; i++) {
        params[i] = params_at(i);
        params[i].temperature = i % 2 ? 0.0f : 9e-6f;
        params[i].top_k = 1;
    }
    args = make_args(kt, logits, 4, 4, params, 16);
    got = run(kt, &args);
    for (int32_t i = 0; i < 16; i++) {
        assert_int_equal(got.tokens[i], 1);
        assert_below("greedy", fabs(got.log_probs[i] - expected), RK_TOL_F32_ELEMENT);
    }
}

/* Goal: columns from vocab_size on are never sampled and have no probability. */
static void test_sample_padding_has_no_mass(void **state)
{
    static const double logits[4] = {1.0, 1.0, 100.0, NAN};
    struct kt *kt = *state;
    struct rk_sample_params params[64];
    struct rk_sample_args args;
    struct samples got;

    for (int32_t i = 0; i < 64; i++)
        params[i] = params_at(i);
    args = make_args(kt, logits, 4, 2, params, 64);
    got = run(kt, &args);
    for (int32_t i = 0; i < 64; i++) {
        assert_in_range(got.tokens[i], 0, 1);
        assert_below("padding", fabs(got.log_probs[i] - log(0.5)), RK_TOL_F32_ELEMENT);
    }
}

/* Goal: a row without a distribution gives a token in the vocabulary and NaN. */
static void test_sample_broken_row_reports_nan(void **state)
{
    static const double rows[][3] = {
        {1.0, NAN, 2.0}, {1.0, INFINITY, 2.0}, {-INFINITY, -INFINITY, -INFINITY}, {NAN, NAN, NAN}};
    struct kt *kt = *state;

    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        for (int32_t top_k = 0; top_k < 2; top_k++) {
            struct rk_sample_params params = params_at(0);
            struct rk_sample_args args;
            struct samples got;

            params.top_k = top_k;
            args = make_args(kt, rows[i], 3, 3, &params, 1);
            got = run(kt, &args);
            assert_int_equal(got.tokens[0], 0);
            assert_true(isnan(got.log_probs[0]));
        }
    }
}

static void check_log_prob_bits(struct kt *kt, int64_t columns, float temperature)
{
    enum { NUM_ROWS = 12 };
    rk_tensor_t logits = kt_randomize(kt, kt_zeros_2d(kt, RK_DTYPE_F32, 1, columns), 3.0);
    rk_tensor_t part = kt_zeros_3d(kt, RK_DTYPE_F64, 1, NUM_ROWS, 4);
    struct rk_sample_params params[NUM_ROWS];
    struct rk_sample_args args;
    struct rk_vocab_stats_merge_args merge = {.parts = part,
                                              .log_probs = kt_zeros_1d(kt, RK_DTYPE_F32, NUM_ROWS)};

    for (int32_t r = 0; r < NUM_ROWS; r++) {
        params[r] = params_at(r);
        params[r].temperature = temperature;
    }
    args = make_args(kt, kt_read(kt, logits), columns, columns, params, NUM_ROWS);
    assert_ok(rk_sample(kt->stream, &args));
    assert_ok(rk_vocab_stats(kt->stream, &(struct rk_vocab_stats_args){
                                             .stats = rk_tensor_2d(part.data, RK_DTYPE_F64, NUM_ROWS, 4),
                                             .logits = args.logits,
                                             .labels = args.tokens,
                                             .num_valid = columns,
                                             .inv_temperature = 1.0f / temperature,
                                         }));
    assert_ok(rk_vocab_stats_merge(kt->stream, &merge));
    kt_expect_same_bits(kt, "log-prob", args.log_probs, merge.log_probs);
}

/* Goal: the log-prob of an unfiltered sample is bit-identical to vocab_stats for the same logits, also if a
 * GPU's sampler splits the row; at temperature 0.05 some logits are outside of the range of the fast path. */
static void test_sample_log_prob_has_bits_of_vocab_stats(void **state)
{
    static const float temperatures[] = {1.0f, 0.7f, 1.3f, 0.05f};

    for (size_t i = 0; i < RK_ARRAY_LEN(temperatures); i++) {
        if (!rk_test_in_part())
            continue;
        check_log_prob_bits(*state, 331, temperatures[i]);
        check_log_prob_bits(*state, 40009, temperatures[i]);
    }
}

static void test_sample_bad_params_fail(void **state)
{
    static const struct {
        struct rk_sample_params params;
        const char *text;
    } bad[] = {
        {{.temperature = -1.0f, .top_p = 1.0f}, "sample: params[1].temperature=-1, expected"},
        {{.temperature = NAN, .top_p = 1.0f}, "sample: params[1].temperature=nan"},
        {{.temperature = INFINITY, .top_p = 1.0f}, "sample: params[1].temperature=inf"},
        {{.temperature = 1.0f, .top_p = 0.0f}, "sample: params[1].top_p=0, expected > 0"},
        {{.temperature = 1.0f, .top_p = NAN}, "sample: params[1].top_p=nan"},
        {{.temperature = 1.0f, .top_p = 1.0f, .position = -1}, "sample: params[1].position=-1"},
    };
    struct kt *kt = *state;

    for (size_t i = 0; i < RK_ARRAY_LEN(bad); i++) {
        struct rk_sample_params params[2] = {params_at(0), bad[i].params};
        struct rk_sample_args args = make_args(kt, known_logits, VOCAB_SIZE, VOCAB_SIZE, params, 2);

        kt_expect_refused(kt, rk_sample(kt->stream, &args), bad[i].text);
    }
}

/* Goal: tokens with a source get the sampled token, others are unchanged. */
static void test_next_tokens_takes_what_was_sampled(void **state)
{
    static const int32_t tokens[] = {5, 6, 7, 8, 9}, source[] = {2, -1, 0, 2, -1}, sampled[] = {70, 71, 72};
    static const int32_t expected[] = {72, 6, 70, 72, 9}, bad[] = {0, 1, 2, 3, 0};
    struct kt *kt = *state;
    struct rk_next_tokens_args args = {
        .tokens = kt_ints(kt, tokens, 5),
        .sampled = kt_ints(kt, sampled, 3),
        .source = kt_ints(kt, source, 5),
    };

    assert_ok(rk_next_tokens(kt->stream, &args));
    assert_memory_equal(kt_read_ints(kt, args.tokens), expected, sizeof(expected));
    args.source = kt_ints(kt, bad, 5);
    kt_expect_refused(kt, rk_next_tokens(kt->stream, &args), "next_tokens: source[3]=3");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        kt_test(test_sample_known_row_gives_published_tokens),
        kt_test(test_sample_many_positions_match_published_frequencies),
        kt_test(test_sample_filters_keep_what_is_defined),
        kt_test(test_sample_filters_large_vocabulary),
        kt_test(test_sample_greedy_takes_first_largest),
        kt_test(test_sample_padding_has_no_mass),
        kt_test(test_sample_broken_row_reports_nan),
        kt_test(test_sample_log_prob_has_bits_of_vocab_stats),
        kt_test(test_sample_bad_params_fail),
        kt_test(test_next_tokens_takes_what_was_sampled),
    };

    return cmocka_run_group_tests_name("kernels/sample", tests, NULL, NULL);
}
