/* Goal: log-probability, entropy, sum of squared probabilities and their gradient over a vocabulary in parts
 * equal log-softmax over the whole row in f64, for every dtype, split, padding and size of the logits. */
#include "tests/kernels/kernel_test.h"

#include <math.h>
#include <string.h>

#define MAX_PARTS 3

struct vocab_case {
    const char *label;
    int64_t num_tokens, num_parts;
    int64_t columns, num_valid[MAX_PARTS]; /* of each part; columns beyond num_valid are padding */
    double deviation;
    float inv_temperature;
};

static const struct vocab_case cases[] = {
    {"no tokens", 0, 1, 8, {8}, 1.0, 1.0f},
    {"one token of one", 1, 1, 1, {1}, 1.0, 1.0f},
    {"whole vocabulary", 9, 1, 100, {100}, 2.0, 1.0f},
    {"padded", 5, 1, 64, {57}, 2.0, 0.5f},
    {"three parts, last one short", 7, 3, 40, {40, 40, 13}, 2.0, 2.0f},
    {"part with padding only", 4, 2, 16, {16, 0}, 1.0, 1.0f},
    {"huge logits", 6, 2, 30, {30, 22}, 1e4, 1.0f},
    {"large vocabulary", 3, 2, 20000, {20000, 9003}, 2.0, 1.0f},
    {"larger vocabulary", 2, 1, 72008, {72005}, 2.0, 1.0f},
    {"logits on both sides of 44", 5, 2, 400, {400, 130}, 30.0, 1.0f},
};

struct vocab_data {
    rk_tensor_t logits[MAX_PARTS], labels, parts, squares;
    int64_t begin[MAX_PARTS];
    struct rk_vocab_stats_merge_args merge;
};

/* Runs the forward pass. Padded columns have large numbers, so that reading them is detected. */
static struct vocab_data forward(struct kt *kt, const struct vocab_case *c, rk_dtype_t dtype)
{
    rk_dtype_t stat = kt_stat_dtype(dtype);
    struct vocab_data data = {.parts = kt_zeros_3d(kt, RK_DTYPE_F64, c->num_parts, c->num_tokens, 4),
                              .squares = kt_zeros_2d(kt, RK_DTYPE_F64, c->num_parts, c->num_tokens)};
    int64_t vocab_size = 0;

    for (int64_t i = 0; i < c->num_parts; i++) {
        data.begin[i] = vocab_size;
        vocab_size += c->num_valid[i];
        data.logits[i] = kt_randomize(kt, kt_zeros_2d(kt, dtype, c->num_tokens, c->columns), 1e5);
        kt_randomize(kt, rk_tensor_cols(data.logits[i], 0, c->num_valid[i]), c->deviation);
    }
    data.labels = kt_random_ints(kt, c->num_tokens, vocab_size);
    for (int64_t i = 0; i < c->num_parts; i++) {
        rk_tensor_t part = rk_tensor_rows(data.parts, i, 1), squares = rk_tensor_rows(data.squares, i, 1);

        assert_ok(
            rk_vocab_stats(kt->stream, &(struct rk_vocab_stats_args){
                                           .stats = rk_tensor_2d(part.data, RK_DTYPE_F64, c->num_tokens, 4),
                                           .squares = rk_tensor_1d(squares.data, RK_DTYPE_F64, c->num_tokens),
                                           .logits = data.logits[i],
                                           .labels = data.labels,
                                           .vocab_begin = data.begin[i],
                                           .num_valid = c->num_valid[i],
                                           .inv_temperature = c->inv_temperature,
                                       }));
    }
    data.merge = (struct rk_vocab_stats_merge_args){
        .stats = kt_zeros_2d(kt, RK_DTYPE_F64, c->num_tokens, 4),
        .parts = data.parts,
        .squares = kt_zeros_1d(kt, RK_DTYPE_F64, c->num_tokens),
        .square_parts = data.squares,
        .log_probs = kt_zeros_1d(kt, stat, c->num_tokens),
        .entropy = kt_zeros_1d(kt, stat, c->num_tokens),
        .sum_pi_squared = kt_zeros_1d(kt, stat, c->num_tokens),
    };
    assert_ok(rk_vocab_stats_merge(kt->stream, &data.merge));
    return data;
}

/* z of the whole vocabulary, one row after the other. */
static double *whole_rows(struct kt *kt, const struct vocab_case *c, const struct vocab_data *data,
                          int64_t *size)
{
    double *z;

    *size = data->begin[c->num_parts - 1] + c->num_valid[c->num_parts - 1];
    z = kt_scratch(kt, c->num_tokens * *size);
    for (int64_t i = 0; i < c->num_parts; i++) {
        const double *part = kt_read(kt, data->logits[i]);

        for (int64_t t = 0; t < c->num_tokens; t++) {
            for (int64_t j = 0; j < c->num_valid[i]; j++)
                z[t * *size + data->begin[i] + j] = c->inv_temperature * part[t * c->columns + j];
        }
    }
    return z;
}

/* log-softmax of one row in place, naively after subtracting the maximum. */
static void log_softmax(double *z, int64_t size)
{
    double max = z[0], sum = 0.0;

    for (int64_t j = 0; j < size; j++)
        max = fmax(max, z[j]);
    for (int64_t j = 0; j < size; j++)
        sum += exp(z[j] - max);
    for (int64_t j = 0; j < size; j++)
        z[j] = z[j] - max - log(sum);
}

static void run_forward(struct kt *kt, const struct vocab_case *c, rk_dtype_t dtype)
{
    struct vocab_data data = forward(kt, c, dtype);
    const int32_t *labels = kt_read_ints(kt, data.labels);
    double *log_probs = kt_scratch(kt, c->num_tokens), *entropy = kt_scratch(kt, c->num_tokens);
    double *sum_pi_squared = kt_scratch(kt, c->num_tokens);
    int64_t size;
    double *z = whole_rows(kt, c, &data, &size);

    for (int64_t t = 0; t < c->num_tokens; t++) {
        double *row = z + t * size;

        log_softmax(row, size);
        log_probs[t] = row[labels[t]];
        for (int64_t j = 0; j < size; j++)
            entropy[t] -= exp(row[j]) * row[j];
        for (int64_t j = 0; j < size; j++)
            sum_pi_squared[t] += exp(2.0 * row[j]);
    }
    kt_expect_close(kt, c->label, data.merge.log_probs, log_probs);
    kt_expect_close(kt, c->label, data.merge.entropy, entropy);
    kt_expect_close(kt, c->label, data.merge.sum_pi_squared, sum_pi_squared);
}

/* Upstream gradients in addition to that of the log-prob. */
enum { UP_ENTROPY = 1, UP_SQUARES = 2, UP_END = 4 };

/* The gradient of one row with respect to z, from its log-softmax. dH/dz_j = -p_j (log p_j + H), and that of
 * sum_k p_k^2 is 2 p_j (p_j - sum_k p_k^2). */
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

static void run_backward(struct kt *kt, const struct vocab_case *c, rk_dtype_t dtype, int ups)
{
    rk_dtype_t stat = kt_stat_dtype(dtype);
    struct vocab_data data = forward(kt, c, dtype);
    rk_tensor_t up[3];
    const double *upstream[3];
    const int32_t *labels = kt_read_ints(kt, data.labels);
    int64_t size;
    double *z = whole_rows(kt, c, &data, &size);

    for (int u = 0; u < 3; u++) {
        up[u] = kt_zeros_1d(kt, stat, c->num_tokens);
        if (u == 0 || ups & u)
            kt_randomize(kt, up[u], 1.0);
        upstream[u] = kt_read(kt, up[u]);
    }
    for (int64_t t = 0; t < c->num_tokens; t++) {
        double *dz = kt_scratch(kt, size);

        log_softmax(z + t * size, size);
        row_gradient(dz, z + t * size, size, labels[t],
                     (double[3]){upstream[0][t], upstream[1][t], upstream[2][t]});
        memcpy(z + t * size, dz, (size_t)size * sizeof(*dz));
    }
    for (int64_t i = 0; i < c->num_parts; i++) {
        double *expected = kt_scratch(kt, c->num_tokens * c->columns);

        for (int64_t t = 0; t < c->num_tokens; t++) {
            for (int64_t j = 0; j < c->num_valid[i]; j++)
                expected[t * c->columns + j] = c->inv_temperature * z[t * size + data.begin[i] + j];
        }
        assert_ok(
            rk_vocab_stats_bwd(kt->stream, &(struct rk_vocab_stats_bwd_args){
                                               .dlogits = data.logits[i], /* may alias */
                                               .logits = data.logits[i],
                                               .stats = data.merge.stats,
                                               .dlog_probs = up[0],
                                               .dentropy = ups & UP_ENTROPY ? up[1] : (rk_tensor_t){0},
                                               .dsum_pi_squared = ups & UP_SQUARES ? up[2] : (rk_tensor_t){0},
                                               .squares = data.merge.squares,
                                               .labels = data.labels,
                                               .vocab_begin = data.begin[i],
                                               .num_valid = c->num_valid[i],
                                               .inv_temperature = c->inv_temperature,
                                           }));
        kt_expect_close(kt, c->label, data.logits[i], expected);
    }
}

static void test_vocab_stats_all_cases_equal_log_softmax(void **state)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        for (size_t d = 0; d < RK_ARRAY_LEN(kt_dtypes); d++) {
            if (!kt_is_cpu_only(*state, kt_dtypes[d]) && rk_test_in_part())
                run_forward(*state, &cases[i], kt_dtypes[d]);
        }
    }
}

static void test_vocab_stats_bwd_all_cases_equal_formula(void **state)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        for (size_t d = 0; d < RK_ARRAY_LEN(kt_dtypes); d++) {
            if (kt_is_cpu_only(*state, kt_dtypes[d]) || !rk_test_in_part())
                continue;
            for (int ups = 0; ups < UP_END; ups++)
                run_backward(*state, &cases[i], kt_dtypes[d], ups);
        }
    }
}

/* Goal: logits of -inf inside the vocabulary have probability 0 and no effect, and give no NaN. */
static void test_vocab_stats_minus_infinity_is_excluded(void **state)
{
    static const double logits[4] = {-INFINITY, 1.0, -INFINITY, 3.0}, one[1] = {1.0};
    static const int32_t label = 3;
    struct kt *kt = *state;
    rk_dtype_t dtype = kt_is_cpu(kt) ? RK_DTYPE_F64 : RK_DTYPE_F32;
    double q = exp(-2.0), p = 1.0 / (1.0 + q);
    double entropy = -p * log(p) - (1 - p) * log(1 - p), log_prob = log(p);
    double dlogits[4] = {0.0, -(1 - p) - (1 - p) * (log(1 - p) + entropy), 0.0,
                         1 - p - p * (log(p) + entropy)};
    rk_tensor_t part = kt_zeros_3d(kt, RK_DTYPE_F64, 1, 1, 4),
                stats = rk_tensor_2d(part.data, RK_DTYPE_F64, 1, 4);
    struct rk_vocab_stats_args args = {
        .stats = stats,
        .logits = kt_zeros_2d(kt, dtype, 1, 4),
        .labels = kt_ints(kt, &label, 1),
        .num_valid = 4,
        .inv_temperature = 1.0f,
    };
    struct rk_vocab_stats_merge_args merge = {
        .parts = part,
        .log_probs = kt_zeros_1d(kt, dtype, 1),
        .entropy = kt_zeros_1d(kt, dtype, 1),
    };
    struct rk_vocab_stats_bwd_args bwd = {
        .dlogits = kt_zeros_2d(kt, dtype, 1, 4),
        .logits = args.logits,
        .stats = stats,
        .dlog_probs = kt_zeros_1d(kt, dtype, 1),
        .dentropy = kt_zeros_1d(kt, dtype, 1),
        .labels = args.labels,
        .num_valid = 4,
        .inv_temperature = 1.0f,
    };

    kt_write(kt, args.logits, logits);
    kt_write(kt, bwd.dlog_probs, one);
    kt_write(kt, bwd.dentropy, one);
    assert_ok(rk_vocab_stats(kt->stream, &args));
    assert_ok(rk_vocab_stats_merge(kt->stream, &merge));
    assert_ok(rk_vocab_stats_bwd(kt->stream, &bwd));
    kt_expect_close(kt, "-inf", merge.log_probs, &log_prob);
    kt_expect_close(kt, "-inf", merge.entropy, &entropy);
    kt_expect_close(kt, "-inf", bwd.dlogits, dlogits);
}

/* Goal: requesting the squares changes neither the other statistics nor the gradient, bit for bit. */
static void test_vocab_stats_squares_change_nothing_else(void **state)
{
    enum { NUM_TOKENS = 20, COLUMNS = 700 };
    struct kt *kt = *state;
    rk_tensor_t logits = kt_randomize(kt, kt_zeros_2d(kt, RK_DTYPE_BF16, NUM_TOKENS, COLUMNS), 4.0);
    rk_tensor_t labels = kt_random_ints(kt, NUM_TOKENS, COLUMNS), stats[2], log_probs[2];

    for (int with = 0; with < 2; with++) {
        rk_tensor_t squares = kt_zeros_2d(kt, RK_DTYPE_F64, 1, NUM_TOKENS);
        rk_tensor_t parts = kt_zeros_3d(kt, RK_DTYPE_F64, 1, NUM_TOKENS, 4), none = {0};

        stats[with] = rk_tensor_2d(parts.data, RK_DTYPE_F64, NUM_TOKENS, 4);
        log_probs[with] = kt_zeros_1d(kt, RK_DTYPE_F32, NUM_TOKENS);
        assert_ok(rk_vocab_stats(
            kt->stream, &(struct rk_vocab_stats_args){
                            .stats = stats[with],
                            .squares = with ? rk_tensor_1d(squares.data, RK_DTYPE_F64, NUM_TOKENS) : none,
                            .logits = logits,
                            .labels = labels,
                            .num_valid = COLUMNS,
                            .inv_temperature = 0.7f}));
        assert_ok(rk_vocab_stats_merge(
            kt->stream, &(struct rk_vocab_stats_merge_args){
                            .parts = parts,
                            .square_parts = with ? squares : none,
                            .log_probs = log_probs[with],
                            .sum_pi_squared = with ? kt_zeros_1d(kt, RK_DTYPE_F32, NUM_TOKENS) : none}));
    }
    kt_expect_same_bits(kt, "stats", stats[1], stats[0]);
    kt_expect_same_bits(kt, "log_probs", log_probs[1], log_probs[0]);
}

/* Goal: the gradient is that of the forward pass, over two parts of the vocabulary. */
struct squares_loss {
    struct rk_vocab_stats_args part[2];
    struct rk_vocab_stats_merge_args merge;
    rk_tensor_t logits, weight;
};

static double squares_loss(struct kt *kt, void *user)
{
    struct squares_loss *loss = user;

    for (int i = 0; i < 2; i++)
        assert_ok(rk_vocab_stats(kt->stream, &loss->part[i]));
    assert_ok(rk_vocab_stats_merge(kt->stream, &loss->merge));
    return kt_project(kt, loss->merge.sum_pi_squared, loss->weight);
}

static void test_vocab_stats_bwd_sum_pi_squared_gradient_matches(void **state)
{
    enum { NUM_TOKENS = 4, COLUMNS = 11, SPLIT = 7 };
    struct kt *kt = *state;
    struct squares_loss loss = {
        .merge = {.stats = kt_zeros_2d(kt, RK_DTYPE_F64, NUM_TOKENS, 4),
                  .parts = kt_zeros_3d(kt, RK_DTYPE_F64, 2, NUM_TOKENS, 4),
                  .squares = kt_zeros_1d(kt, RK_DTYPE_F64, NUM_TOKENS),
                  .square_parts = kt_zeros_2d(kt, RK_DTYPE_F64, 2, NUM_TOKENS),
                  .log_probs = kt_zeros_1d(kt, RK_DTYPE_F64, NUM_TOKENS),
                  .sum_pi_squared = kt_zeros_1d(kt, RK_DTYPE_F64, NUM_TOKENS)},
        .logits = kt_randomize(kt, kt_zeros_2d(kt, RK_DTYPE_F64, NUM_TOKENS, COLUMNS), 1.0),
        .weight = kt_randomize(kt, kt_zeros_1d(kt, RK_DTYPE_F64, NUM_TOKENS), 1.0),
    };
    rk_tensor_t dlogits = kt_zeros_2d(kt, RK_DTYPE_F64, NUM_TOKENS, COLUMNS);
    rk_tensor_t labels = kt_random_ints(kt, NUM_TOKENS, COLUMNS);

    if (kt_is_cpu_only(kt, RK_DTYPE_F64))
        rk_test_skip("only the CPU computes in F64");
    for (int i = 0; i < 2; i++) {
        int64_t begin = i * SPLIT, count = i ? COLUMNS - SPLIT : SPLIT;

        loss.part[i] = (struct rk_vocab_stats_args){
            .stats = rk_tensor_2d(rk_tensor_rows(loss.merge.parts, i, 1).data, RK_DTYPE_F64, NUM_TOKENS, 4),
            .squares =
                rk_tensor_1d(rk_tensor_rows(loss.merge.square_parts, i, 1).data, RK_DTYPE_F64, NUM_TOKENS),
            .logits = rk_tensor_cols(loss.logits, begin, count),
            .labels = labels,
            .vocab_begin = begin,
            .num_valid = count,
            .inv_temperature = 0.5f,
        };
    }
    squares_loss(kt, &loss);
    for (int i = 0; i < 2; i++)
        assert_ok(rk_vocab_stats_bwd(
            kt->stream,
            &(struct rk_vocab_stats_bwd_args){
                .dlogits = rk_tensor_cols(dlogits, loss.part[i].vocab_begin, loss.part[i].num_valid),
                .logits = loss.part[i].logits,
                .stats = loss.merge.stats,
                .dlog_probs = kt_zeros_1d(kt, RK_DTYPE_F64, NUM_TOKENS),
                .dsum_pi_squared = loss.weight,
                .squares = loss.merge.squares,
                .labels = labels,
                .vocab_begin = loss.part[i].vocab_begin,
                .num_valid = loss.part[i].num_valid,
                .inv_temperature = 0.5f}));
    kt_expect_gradient(kt, "dlogits", loss.logits, dlogits, squares_loss, &loss);
}

/* Goal: a log-prob has the same f32 bits for every split of the vocabulary over ranks. */
static void test_vocab_stats_log_prob_split_has_no_effect(void **state)
{
    enum { NUM_TOKENS = 200, COLUMNS = 1000, SPLIT = 424 };
    struct kt *kt = *state;
    rk_tensor_t logits = kt_randomize(kt, kt_zeros_2d(kt, RK_DTYPE_F32, NUM_TOKENS, COLUMNS), 4.0);
    rk_tensor_t labels = kt_random_ints(kt, NUM_TOKENS, COLUMNS);
    rk_tensor_t log_probs[2];

    for (int num_parts = 1; num_parts <= 2; num_parts++) {
        rk_tensor_t parts = kt_zeros_3d(kt, RK_DTYPE_F64, num_parts, NUM_TOKENS, 4);

        for (int i = 0; i < num_parts; i++) {
            int64_t begin = i * SPLIT, end = i + 1 < num_parts ? SPLIT : COLUMNS;
            rk_tensor_t part = rk_tensor_rows(parts, i, 1);
            struct rk_vocab_stats_args args = {
                .stats = rk_tensor_2d(part.data, RK_DTYPE_F64, NUM_TOKENS, 4),
                .logits = rk_tensor_cols(logits, begin, end - begin),
                .labels = labels,
                .vocab_begin = begin,
                .num_valid = end - begin,
                .inv_temperature = 0.7f,
            };

            assert_ok(rk_vocab_stats(kt->stream, &args));
        }
        log_probs[num_parts - 1] = kt_zeros_1d(kt, RK_DTYPE_F32, NUM_TOKENS);
        assert_ok(rk_vocab_stats_merge(
            kt->stream,
            &(struct rk_vocab_stats_merge_args){.parts = parts, .log_probs = log_probs[num_parts - 1]}));
    }
    kt_expect_same_bits(kt, "two parts", log_probs[1], log_probs[0]);
}

/* Goal: the merge ignores the statistics of an empty part. */
static void test_vocab_stats_empty_part_is_neutral(void **state)
{
    static const int32_t label = 2;
    static const double expected[4] = {-INFINITY, 0.0, 0.0, 0.0};
    struct kt *kt = *state;
    struct rk_vocab_stats_args args = {
        .stats = kt_zeros_2d(kt, RK_DTYPE_F64, 1, 4),
        .logits = kt_randomize(kt, kt_zeros_2d(kt, RK_DTYPE_F32, 1, 8), 1.0),
        .labels = kt_ints(kt, &label, 1),
        .num_valid = 0,
        .inv_temperature = 1.0f,
    };
    const double *stats;

    assert_ok(rk_vocab_stats(kt->stream, &args));
    stats = kt_read(kt, args.stats);
    for (int i = 0; i < 4; i++)
        assert_true(stats[i] == expected[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        kt_test(test_vocab_stats_all_cases_equal_log_softmax),
        kt_test(test_vocab_stats_bwd_all_cases_equal_formula),
        kt_test(test_vocab_stats_minus_infinity_is_excluded),
        kt_test(test_vocab_stats_log_prob_split_has_no_effect),
        kt_test(test_vocab_stats_empty_part_is_neutral),
        kt_test(test_vocab_stats_squares_change_nothing_else),
        kt_test(test_vocab_stats_bwd_sum_pi_squared_gradient_matches),
    };

    return cmocka_run_group_tests_name("kernels/vocab", tests, NULL, NULL);
}
