/* Goal: the largest logits of a row equal those found by sorting, ties by id, also over parts of the
 * vocabulary; log-probs at several ids per row equal log-softmax over the whole vocabulary, and their
 * gradient its formula. */
#include "tests/kernels/kernel_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PARTS 2

struct top_case {
    const char *label;
    int64_t num_rows, k;
    int64_t columns, num_valid[MAX_PARTS]; /* of each part */
    int num_values;                        /* number of distinct logits: ties */
};

static const struct top_case top_cases[] = {
    {"no rows", 0, 3, 8, {8, 0}, 100},
    {"one of one", 1, 1, 1, {1, 0}, 100},
    {"more than there are", 3, 9, 8, {4, 0}, 100},
    {"none there", 2, 2, 8, {0, 0}, 100},
    {"all equal", 4, 5, 600, {600, 0}, 1},
    {"ties at the border", 9, 50, 3000, {2900, 0}, 20},
    {"two parts", 6, 33, 1000, {1000, 431}, 200},
    {"two parts, few equal", 5, 7, 64, {64, 3}, 2},
    {"one of many", 3, 1, 9000, {9000, 0}, 100000},
    {"the most", 2, 1024, 5000, {5000, 5000}, 3000},
};

struct pair {
    double value;
    int32_t id;
};

static int compare_pairs(const void *a, const void *b)
{
    const struct pair *x = a, *y = b;

    if (x->value != y->value)
        return x->value > y->value ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Logits of one part: integers, which repeat if num_values is small; some are -inf; NaN from num_valid on. */
static rk_tensor_t top_logits(struct kt *kt, const struct top_case *c, rk_dtype_t dtype, int64_t num_valid)
{
    rk_tensor_t t = kt_zeros_2d(kt, dtype, c->num_rows, c->columns);
    double *values = kt_scratch(kt, c->num_rows * c->columns);

    for (int64_t i = 0; i < c->num_rows * c->columns; i++) {
        values[i] = (double)rk_rng_next_below(&kt->rng, (uint32_t)c->num_values) - c->num_values / 2;
        values[i] = c->num_values > 1 && rk_rng_next_below(&kt->rng, 7) == 0 ? -INFINITY : values[i];
        values[i] = i % c->columns >= num_valid ? NAN : values[i];
    }
    kt_write(kt, t, values);
    return t;
}

static void run_top_k(struct kt *kt, const struct top_case *c, rk_dtype_t dtype)
{
    rk_dtype_t stat = kt_stat_dtype(dtype);
    int64_t num_parts = c->num_valid[1] > 0 ? 2 : 1, total = c->num_valid[0] + c->num_valid[1];
    rk_tensor_t values = kt_zeros_2d(kt, stat, c->num_rows, num_parts * c->k);
    rk_tensor_t ids = kt_zeros_2d(kt, RK_DTYPE_I32, c->num_rows, num_parts * c->k);
    struct pair *all = rk_calloc((size_t)RK_MAX(c->num_rows * total, 1), sizeof(*all));
    const double *found;
    const int32_t *found_ids;

    for (int64_t i = 0; i < num_parts; i++) {
        rk_tensor_t logits = top_logits(kt, c, dtype, c->num_valid[i]);
        const double *z = kt_read(kt, logits);
        int64_t begin = i * c->num_valid[0];

        assert_ok(
            rk_top_k(kt->stream, &(struct rk_top_k_args){.values = rk_tensor_cols(values, i * c->k, c->k),
                                                         .ids = rk_tensor_cols(ids, i * c->k, c->k),
                                                         .logits = logits,
                                                         .vocab_begin = begin,
                                                         .num_valid = c->num_valid[i]}));
        for (int64_t r = 0; r < c->num_rows; r++) {
            for (int64_t j = 0; j < c->num_valid[i]; j++)
                all[r * total + begin + j] = (struct pair){z[r * c->columns + j], (int32_t)(begin + j)};
        }
    }
    if (num_parts > 1) {
        struct rk_top_k_args merge = {.values = kt_zeros_2d(kt, stat, c->num_rows, c->k),
                                      .ids = kt_zeros_2d(kt, RK_DTYPE_I32, c->num_rows, c->k),
                                      .logits = values,
                                      .source_ids = ids,
                                      .num_valid = num_parts * c->k};

        assert_ok(rk_top_k(kt->stream, &merge));
        values = merge.values;
        ids = merge.ids;
    }
    found = kt_read(kt, values);
    found_ids = kt_read_ints(kt, ids);
    for (int64_t r = 0; r < c->num_rows; r++) {
        if (total > 0)
            qsort(all + r * total, (size_t)total, sizeof(*all), compare_pairs);
        for (int64_t k = 0; k < c->k; k++) {
            struct pair expected = {-INFINITY, -1};

            if (k < total && all[r * total + k].value > -INFINITY)
                expected = all[r * total + k];
            assert_int_equal(found_ids[r * c->k + k], expected.id);
            assert_true(found[r * c->k + k] == expected.value);
        }
    }
    rk_free(all);
}

static void test_top_k_all_cases_equal_sorting(void **state)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(top_cases); i++) {
        for (size_t d = 0; d < RK_ARRAY_LEN(kt_dtypes); d++) {
            if (!kt_is_cpu_only(*state, kt_dtypes[d]) && rk_test_in_part())
                run_top_k(*state, &top_cases[i], kt_dtypes[d]);
        }
    }
}

struct gather_case {
    const char *label;
    int64_t num_tokens, k, columns, num_valid[MAX_PARTS];
    double deviation;
    float inv_temperature;
};

static const struct gather_case gather_cases[] = {
    {"no tokens", 0, 3, 8, {8, 8}, 1.0, 1.0f},
    {"one id", 5, 1, 40, {40, 31}, 2.0, 1.0f},
    {"several", 7, 9, 64, {57, 64}, 2.0, 0.5f},
    {"more than the vocabulary has", 4, 30, 8, {8, 5}, 1.0, 2.0f},
    {"far apart", 6, 20, 300, {300, 200}, 30.0, 1.0f},
    {"many", 2, 1024, 3000, {3000, 2100}, 2.0, 1.0f},
};

struct gather_data {
    rk_tensor_t logits[MAX_PARTS], labels, ids, stats, squares, log_probs;
    int64_t begin[MAX_PARTS], vocab_size;
};

/* The forward pass over two parts of the vocabulary. Every fifth id is absent; ids of a row may be equal. */
static struct gather_data gather(struct kt *kt, const struct gather_case *c, rk_dtype_t dtype)
{
    rk_dtype_t stat = kt_stat_dtype(dtype);
    struct gather_data data = {
        .vocab_size = c->num_valid[0] + c->num_valid[1],
        .stats = kt_zeros_2d(kt, RK_DTYPE_F64, c->num_tokens, 4),
        .squares = kt_zeros_1d(kt, RK_DTYPE_F64, c->num_tokens),
        .log_probs = kt_zeros_2d(kt, stat, c->num_tokens, c->k),
    };
    rk_tensor_t parts = kt_zeros_3d(kt, RK_DTYPE_F64, MAX_PARTS, c->num_tokens, 4);
    rk_tensor_t square_parts = kt_zeros_2d(kt, RK_DTYPE_F64, MAX_PARTS, c->num_tokens);
    rk_tensor_t z = kt_zeros_3d(kt, RK_DTYPE_F64, MAX_PARTS, c->num_tokens, c->k);
    int32_t *ids = rk_calloc((size_t)(c->num_tokens * c->k) + 1, sizeof(*ids));

    for (int64_t i = 0; i < c->num_tokens * c->k; i++)
        ids[i] = i % 5 == 4 ? -1 : (int32_t)rk_rng_next_below(&kt->rng, (uint32_t)data.vocab_size);
    data.labels = kt_random_ints(kt, c->num_tokens, data.vocab_size);
    data.ids = kt_ints(kt, ids, c->num_tokens * c->k);
    data.ids = rk_tensor_2d(data.ids.data, RK_DTYPE_I32, c->num_tokens, c->k);
    rk_free(ids);
    for (int i = 0; i < MAX_PARTS; i++) {
        rk_tensor_t stats = rk_tensor_rows(parts, i, 1), squares = rk_tensor_rows(square_parts, i, 1);
        struct rk_vocab_stats_args args;

        data.begin[i] = i * c->num_valid[0];
        data.logits[i] = kt_randomize(kt, kt_zeros_2d(kt, dtype, c->num_tokens, c->columns), c->deviation);
        args =
            (struct rk_vocab_stats_args){.stats = rk_tensor_2d(stats.data, RK_DTYPE_F64, c->num_tokens, 4),
                                         .squares = rk_tensor_1d(squares.data, RK_DTYPE_F64, c->num_tokens),
                                         .logits = data.logits[i],
                                         .labels = data.labels,
                                         .vocab_begin = data.begin[i],
                                         .num_valid = c->num_valid[i],
                                         .inv_temperature = c->inv_temperature};
        assert_ok(rk_vocab_stats(kt->stream, &args));
        assert_ok(rk_vocab_gather(
            kt->stream, &(struct rk_vocab_gather_args){.z = rk_tensor_2d(rk_tensor_rows(z, i, 1).data,
                                                                         RK_DTYPE_F64, c->num_tokens, c->k),
                                                       .ids = data.ids,
                                                       .logits = data.logits[i],
                                                       .stats = args.stats,
                                                       .vocab_begin = data.begin[i],
                                                       .num_valid = c->num_valid[i],
                                                       .inv_temperature = c->inv_temperature}));
    }
    assert_ok(rk_vocab_stats_merge(
        kt->stream, &(struct rk_vocab_stats_merge_args){.stats = data.stats,
                                                        .squares = data.squares,
                                                        .parts = parts,
                                                        .square_parts = square_parts,
                                                        .log_probs = kt_zeros_1d(kt, stat, c->num_tokens)}));
    assert_ok(rk_vocab_gather_merge(
        kt->stream, &(struct rk_vocab_gather_merge_args){
                        .log_probs = data.log_probs, .parts = z, .ids = data.ids, .stats = data.stats}));
    return data;
}

/* log-softmax of every row over the whole vocabulary. */
static double *log_softmax(struct kt *kt, const struct gather_case *c, const struct gather_data *data)
{
    double *rows = kt_scratch(kt, c->num_tokens * data->vocab_size);

    for (int i = 0; i < MAX_PARTS; i++) {
        const double *part = kt_read(kt, data->logits[i]);

        for (int64_t t = 0; t < c->num_tokens; t++) {
            for (int64_t j = 0; j < c->num_valid[i]; j++)
                rows[t * data->vocab_size + data->begin[i] + j] =
                    c->inv_temperature * part[t * c->columns + j];
        }
    }
    for (int64_t t = 0; t < c->num_tokens; t++) {
        double *row = rows + t * data->vocab_size, max = row[0], sum = 0.0;

        for (int64_t j = 0; j < data->vocab_size; j++)
            max = fmax(max, row[j]);
        for (int64_t j = 0; j < data->vocab_size; j++)
            sum += exp(row[j] - max);
        for (int64_t j = 0; j < data->vocab_size; j++)
            row[j] -= max + log(sum);
    }
    return rows;
}

static void run_gather(struct kt *kt, const struct gather_case *c, rk_dtype_t dtype)
{
    struct gather_data data = gather(kt, c, dtype);
    const double *rows = log_softmax(kt, c, &data);
    const int32_t *ids = kt_read_ints(kt, data.ids);
    double *expected = kt_scratch(kt, c->num_tokens * c->k);

    for (int64_t t = 0; t < c->num_tokens; t++) {
        for (int64_t k = 0; k < c->k; k++) {
            int32_t id = ids[t * c->k + k];

            expected[t * c->k + k] = id < 0 ? 0.0 : rows[t * data.vocab_size + id];
        }
    }
    kt_expect_close(kt, c->label, data.log_probs, expected);
}

/* Upstream gradients: of the label's log-prob, entropy and sum_pi_squared, and of those at the ids. */
struct upstream {
    rk_tensor_t of[3], gathered, dsum;
    const double *values[3], *g;
};

/* NaN at absent ids, which must not be read. */
static struct upstream make_upstream(struct kt *kt, const struct gather_case *c, const int32_t *ids,
                                     rk_dtype_t stat)
{
    struct upstream up = {.gathered = kt_zeros_2d(kt, stat, c->num_tokens, c->k),
                          .dsum = kt_zeros_1d(kt, stat, c->num_tokens)};
    double *sums = kt_scratch(kt, c->num_tokens), *g;

    for (int u = 0; u < 3; u++) {
        up.of[u] = kt_randomize(kt, kt_zeros_1d(kt, stat, c->num_tokens), 1.0);
        up.values[u] = kt_read(kt, up.of[u]);
    }
    /* Sums near 1, in eighths, so that they are exact in f32. */
    g = kt_read(kt, kt_randomize(kt, up.gathered, 1 / sqrt((double)c->k)));
    for (int64_t i = 0; i < c->num_tokens * c->k; i++) {
        g[i] = round(g[i] * 256) / 256;
        sums[i / c->k] += ids[i] < 0 ? 0.0 : g[i];
        g[i] = ids[i] < 0 ? NAN : g[i];
    }
    kt_write(kt, up.gathered, g);
    kt_write(kt, up.dsum, sums);
    up.g = g;
    return up;
}

/* The formula of the header, over the whole row. */
static void row_gradient(double *dz, const double *row, int64_t size, int32_t label, const double up[3])
{
    double entropy = 0.0, squares = 0.0;

    for (int64_t j = 0; j < size; j++) {
        entropy -= exp(row[j]) * row[j];
        squares += exp(2.0 * row[j]);
    }
    for (int64_t j = 0; j < size; j++) {
        double p = exp(row[j]);

        dz[j] = up[0] * ((j == label) - p) - up[1] * p * (row[j] + entropy) + up[2] * 2.0 * p * (p - squares);
    }
}

static void add_gathered(double *dz, const double *row, int64_t size, const int32_t *ids, const double *g,
                         int64_t num_ids)
{
    double sum = 0.0;

    for (int64_t k = 0; k < num_ids; k++) {
        if (ids[k] < 0)
            continue;
        dz[ids[k]] += g[k];
        sum += g[k];
    }
    for (int64_t j = 0; j < size; j++)
        dz[j] -= sum * exp(row[j]);
}

static void expect_gradient(struct kt *kt, const struct gather_case *c, const struct gather_data *data,
                            int part, const double *dz)
{
    double *expected = kt_scratch(kt, c->num_tokens * c->columns);

    for (int64_t t = 0; t < c->num_tokens; t++) {
        for (int64_t j = 0; j < c->num_valid[part]; j++)
            expected[t * c->columns + j] =
                c->inv_temperature * dz[t * data->vocab_size + data->begin[part] + j];
    }
    kt_expect_close(kt, c->label, data->logits[part], expected);
}

static void run_gather_bwd(struct kt *kt, const struct gather_case *c, rk_dtype_t dtype)
{
    struct gather_data data = gather(kt, c, dtype);
    const double *rows = log_softmax(kt, c, &data);
    const int32_t *ids = kt_read_ints(kt, data.ids), *labels = kt_read_ints(kt, data.labels);
    struct upstream up = make_upstream(kt, c, ids, kt_stat_dtype(dtype));
    double *dz = kt_scratch(kt, c->num_tokens * data.vocab_size);

    for (int64_t t = 0; t < c->num_tokens; t++) {
        const double *row = rows + t * data.vocab_size;
        double of[3] = {up.values[0][t], up.values[1][t], up.values[2][t]};

        row_gradient(dz + t * data.vocab_size, row, data.vocab_size, labels[t], of);
        add_gathered(dz + t * data.vocab_size, row, data.vocab_size, ids + t * c->k, up.g + t * c->k, c->k);
    }
    for (int i = 0; i < MAX_PARTS; i++) {
        assert_ok(rk_vocab_stats_bwd(kt->stream, &(struct rk_vocab_stats_bwd_args){
                                                     .dlogits = data.logits[i], /* may alias */
                                                     .logits = data.logits[i],
                                                     .stats = data.stats,
                                                     .squares = data.squares,
                                                     .dlog_probs = up.of[0],
                                                     .dentropy = up.of[1],
                                                     .dsum_pi_squared = up.of[2],
                                                     .gathered = {.ids = data.ids,
                                                                  .log_probs = data.log_probs,
                                                                  .dlog_probs = up.gathered,
                                                                  .dsum = up.dsum},
                                                     .labels = data.labels,
                                                     .vocab_begin = data.begin[i],
                                                     .num_valid = c->num_valid[i],
                                                     .inv_temperature = c->inv_temperature,
                                                 }));
        expect_gradient(kt, c, &data, i, dz);
    }
}

static void for_all_gather_cases(struct kt *kt,
                                 void (*body)(struct kt *kt, const struct gather_case *c, rk_dtype_t dtype))
{
    for (size_t i = 0; i < RK_ARRAY_LEN(gather_cases); i++) {
        for (size_t d = 0; d < RK_ARRAY_LEN(kt_dtypes); d++) {
            if (!kt_is_cpu_only(kt, kt_dtypes[d]) && rk_test_in_part())
                body(kt, &gather_cases[i], kt_dtypes[d]);
        }
    }
}

static void test_vocab_gather_all_cases_equal_log_softmax(void **state)
{
    for_all_gather_cases(*state, run_gather);
}

static void test_vocab_stats_bwd_gathered_all_cases_equal_formula(void **state)
{
    for_all_gather_cases(*state, run_gather_bwd);
}

/* Goal: if a student is close to its teacher, the gradient p_k - p_k sum of p is much smaller than its terms,
 * and must still be right to the rounding of its dtype. */
static void test_vocab_stats_bwd_gathered_cancels_without_loss(void **state)
{
    enum { COLUMNS = 16 };
    static const int32_t ids[2] = {3, 11}, label = 0;
    struct kt *kt = *state;
    double logits[COLUMNS] = {0}, p, expected[COLUMNS] = {0}, sum = 2 * exp(6.0) + COLUMNS - 2, scale = 0.1;
    rk_tensor_t parts = kt_zeros_3d(kt, RK_DTYPE_F64, 1, 1, 4), z = kt_zeros_3d(kt, RK_DTYPE_F64, 1, 1, 2);
    rk_tensor_t stats = rk_tensor_2d(parts.data, RK_DTYPE_F64, 1, 4),
                t = kt_zeros_2d(kt, RK_DTYPE_BF16, 1, COLUMNS);
    struct rk_vocab_stats_bwd_args bwd = {
        .dlogits = t,
        .logits = t,
        .stats = stats,
        .dlog_probs = kt_zeros_1d(kt, RK_DTYPE_F32, 1),
        .gathered = {.ids = rk_tensor_2d(kt_ints(kt, ids, 2).data, RK_DTYPE_I32, 1, 2),
                     .log_probs = kt_zeros_2d(kt, RK_DTYPE_F32, 1, 2),
                     .dlog_probs = kt_zeros_2d(kt, RK_DTYPE_F32, 1, 2),
                     .dsum = kt_zeros_1d(kt, RK_DTYPE_F32, 1)},
        .labels = kt_ints(kt, &label, 1),
        .num_valid = COLUMNS,
        .inv_temperature = 1.0f,
    };

    logits[ids[0]] = logits[ids[1]] = 6.0;
    p = exp(6.0) / sum;
    for (int j = 0; j < COLUMNS; j++)
        expected[j] = -2 * scale * p * exp(logits[j]) / sum;
    for (int k = 0; k < 2; k++)
        expected[ids[k]] += scale * p;
    kt_write(kt, t, logits);
    assert_ok(rk_vocab_stats(kt->stream, &(struct rk_vocab_stats_args){.stats = stats,
                                                                       .logits = t,
                                                                       .labels = bwd.labels,
                                                                       .num_valid = COLUMNS,
                                                                       .inv_temperature = 1.0f}));
    assert_ok(rk_vocab_gather(kt->stream,
                              &(struct rk_vocab_gather_args){.z = rk_tensor_2d(z.data, RK_DTYPE_F64, 1, 2),
                                                             .ids = bwd.gathered.ids,
                                                             .logits = t,
                                                             .stats = stats,
                                                             .num_valid = COLUMNS,
                                                             .inv_temperature = 1.0f}));
    assert_ok(rk_vocab_gather_merge(
        kt->stream,
        &(struct rk_vocab_gather_merge_args){
            .log_probs = bwd.gathered.log_probs, .parts = z, .ids = bwd.gathered.ids, .stats = stats}));
    kt_write(kt, bwd.gathered.dlog_probs, (double[2]){scale * p, scale * p});
    kt_write(kt, bwd.gathered.dsum, (double[1]){2 * scale * p});
    assert_ok(rk_vocab_stats_bwd(kt->stream, &bwd));
    for (int k = 0; k < 2; k++)
        assert_below("error of a difference", fabs(kt_read(kt, t)[ids[k]] / expected[ids[k]] - 1), 5e-3);
}

/* Goal: a row does not depend on the other rows of the call. */
static void test_gathered_other_rows_have_no_effect(void **state)
{
    static const struct gather_case c = {"alone", 6, 40, 300, {300, 211}, 3.0, 0.7f};
    struct kt *kt = *state;
    struct gather_data data = gather(kt, &c, RK_DTYPE_BF16);
    struct upstream up = make_upstream(kt, &c, kt_read_ints(kt, data.ids), RK_DTYPE_F32);
    rk_tensor_t all = kt_zeros_2d(kt, RK_DTYPE_BF16, c.num_tokens, c.columns);
    rk_tensor_t alone = kt_zeros_2d(kt, RK_DTYPE_BF16, c.num_tokens, c.columns);
    struct rk_vocab_stats_bwd_args args = {.dlogits = all,
                                           .logits = data.logits[0],
                                           .stats = data.stats,
                                           .dlog_probs = up.of[0],
                                           .gathered = {.ids = data.ids,
                                                        .log_probs = data.log_probs,
                                                        .dlog_probs = up.gathered,
                                                        .dsum = up.dsum},
                                           .labels = data.labels,
                                           .num_valid = c.num_valid[0],
                                           .inv_temperature = 0.7f};
    struct rk_vocab_stats_bwd_args row = args;

    assert_ok(rk_vocab_stats_bwd(kt->stream, &args));
    for (int64_t t = 0; t < c.num_tokens; t++) {
        row.dlogits = rk_tensor_rows(alone, t, 1);
        row.logits = rk_tensor_rows(args.logits, t, 1);
        row.stats = rk_tensor_rows(args.stats, t, 1);
        row.dlog_probs = rk_tensor_rows(args.dlog_probs, t, 1);
        row.gathered.ids = rk_tensor_rows(args.gathered.ids, t, 1);
        row.gathered.log_probs = rk_tensor_rows(args.gathered.log_probs, t, 1);
        row.gathered.dlog_probs = rk_tensor_rows(args.gathered.dlog_probs, t, 1);
        row.gathered.dsum = rk_tensor_rows(args.gathered.dsum, t, 1);
        row.labels = rk_tensor_rows(args.labels, t, 1);
        assert_ok(rk_vocab_stats_bwd(kt->stream, &row));
    }
    kt_expect_same_bits(kt, c.label, alone, all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        kt_test(test_top_k_all_cases_equal_sorting),
        kt_test(test_vocab_gather_all_cases_equal_log_softmax),
        kt_test(test_vocab_stats_bwd_gathered_all_cases_equal_formula),
        kt_test(test_vocab_stats_bwd_gathered_cancels_without_loss),
        kt_test(test_gathered_other_rows_have_no_effect),
    };

    return cmocka_run_group_tests_name("kernels/top_k", tests, NULL, NULL);
}
