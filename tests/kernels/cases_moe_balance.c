/* Goal: counts of choices, sums over the tokens of a router and the gradients of its losses equal plain loops
 * in f64, for softmax and sigmoid, segments, padding and absent choices; gradients equal finite differences;
 * a case small enough to compute by hand equals the hand-computed values. */
#include "tests/kernels/kernel_test.h"

#include <math.h>

struct balance_case {
    const char *label;
    int64_t tokens, experts, top_k, segments; /* segments 0: no balance loss */
    bool is_sigmoid;
    double z_weight;
};

static const struct balance_case cases[] = {
    {"one expert", 3, 1, 1, 1, false, 0.5},
    {"sums alone", 9, 8, 2, 0, false, 0.0},
    {"z alone", 9, 8, 2, 0, false, 0.25},
    {"softmax", 17, 8, 2, 1, false, 0.0},
    {"softmax, segments and z", 31, 40, 8, 4, false, 0.125},
    {"sigmoid", 11, 64, 6, 1, true, 0.0},
    {"sigmoid, segments and z", 700, 130, 4, 5, true, 0.5},
};

/* Segments follow one another; some tokens are padding. */
static int32_t segment_of(const struct balance_case *c, int64_t t)
{
    int64_t num_segments = RK_MAX(c->segments, 1);

    return t % 5 == 3 ? -1 : (int32_t)(t * num_segments / c->tokens);
}

static int32_t id_of(const struct balance_case *c, int64_t t, int64_t k)
{
    return t % 7 == 2 && k == 1 ? -1 : (int32_t)((t * t + k) % c->experts);
}

/* --- the reference --- */

struct row {
    double softmax[RK_MOE_EXPERTS_MAX], scores[RK_MOE_EXPERTS_MAX], p[RK_MOE_EXPERTS_MAX], log_sum;
};

static void score_row(const struct balance_case *c, struct row *row, const double *logits)
{
    double sum = 0.0, score_sum = c->is_sigmoid ? 1e-20 : 0.0;

    for (int64_t e = 0; e < c->experts; e++)
        sum += exp(logits[e]);
    for (int64_t e = 0; e < c->experts; e++) {
        row->softmax[e] = exp(logits[e]) / sum;
        row->scores[e] = c->is_sigmoid ? 1.0 / (1.0 + exp(-logits[e])) : row->softmax[e];
        score_sum += row->scores[e];
    }
    for (int64_t e = 0; e < c->experts; e++)
        row->p[e] = row->scores[e] / score_sum;
    row->log_sum = log(sum);
}

struct reference {
    const double *logits, *counts, *weights; /* counts none: no balance loss */
    double *sums, *dlogits;
};

static double slope_of(const struct balance_case *c, const struct reference *ref, int64_t t, int64_t e)
{
    int32_t segment = segment_of(c, t);

    return ref->counts ? ref->weights[segment] * ref->counts[segment * c->experts + e] : 0.0;
}

static void add_token(const struct balance_case *c, const struct reference *ref, int64_t t)
{
    double *others = ref->sums + c->experts, balance = 0.0;
    static struct row row;

    score_row(c, &row, ref->logits + t * c->experts);
    for (int64_t k = 0; k < c->top_k; k++) {
        if (id_of(c, t, k) >= 0)
            ref->sums[id_of(c, t, k)] += 1.0;
    }
    for (int64_t e = 0; e < c->experts; e++) {
        others[RK_ROUTER_ENTROPY] -= row.p[e] * log(row.p[e]);
        balance += row.p[e] * slope_of(c, ref, t, e);
    }
    others[RK_ROUTER_TOKENS] += 1.0;
    others[RK_ROUTER_BALANCE] += balance;
    others[RK_ROUTER_Z] += row.log_sum * row.log_sum;
    for (int64_t e = 0; e < c->experts; e++) {
        double of_score = row.p[e] * (slope_of(c, ref, t, e) - balance);

        ref->dlogits[t * c->experts + e] += of_score * (c->is_sigmoid ? 1.0 - row.scores[e] : 1.0) +
                                            2.0 * c->z_weight * row.log_sum * row.softmax[e];
    }
}

/* --- arguments --- */

static rk_tensor_t ids_of(struct kt *kt, const struct balance_case *c)
{
    int32_t *ids = (int32_t *)kt_scratch(kt, c->tokens * c->top_k);

    for (int64_t t = 0; t < c->tokens; t++) {
        for (int64_t k = 0; k < c->top_k; k++)
            ids[t * c->top_k + k] = id_of(c, t, k);
    }
    return rk_tensor_2d(kt_ints(kt, ids, c->tokens * c->top_k).data, RK_DTYPE_I32, c->tokens, c->top_k);
}

static rk_tensor_t segments_of(struct kt *kt, const struct balance_case *c)
{
    int32_t *segments = (int32_t *)kt_scratch(kt, c->tokens);

    for (int64_t t = 0; t < c->tokens; t++)
        segments[t] = segment_of(c, t);
    return kt_ints(kt, segments, c->tokens);
}

/* Counts are those of the choices; weights are random. */
static struct rk_moe_balance_args balance_args(struct kt *kt, const struct balance_case *c, rk_dtype_t dtype)
{
    struct rk_moe_balance_args args = {
        .sums = kt_zeros_1d(kt, RK_DTYPE_F64, c->experts + RK_NUM_ROUTER_SUMS),
        .dlogits = kt_randomize(kt, kt_zeros_2d(kt, dtype, c->tokens, c->experts), 0.5),
        .logits = kt_randomize(kt, kt_zeros_2d(kt, dtype, c->tokens, c->experts), 1.5),
        .ids = ids_of(kt, c),
        .segments = segments_of(kt, c),
        .z_weight = c->z_weight,
        .is_sigmoid = c->is_sigmoid,
    };

    if (c->segments == 0)
        return args;
    args.counts = kt_zeros_2d(kt, dtype, c->segments, c->experts);
    args.weights = kt_randomize(kt, kt_zeros_1d(kt, dtype, c->segments), 0.25);
    assert_ok(rk_moe_count(
        kt->stream,
        &(struct rk_moe_count_args){.counts = args.counts, .ids = args.ids, .segments = args.segments}));
    return args;
}

static void run_balance(struct kt *kt, const struct balance_case *c, rk_dtype_t dtype)
{
    struct rk_moe_balance_args args = balance_args(kt, c, dtype);
    struct reference ref = {.logits = kt_read(kt, args.logits), .dlogits = kt_read(kt, args.dlogits)};
    const double *sums;

    ref.sums = kt_scratch(kt, c->experts + RK_NUM_ROUTER_SUMS);
    if (c->segments > 0) {
        ref.counts = kt_read(kt, args.counts);
        ref.weights = kt_read(kt, args.weights);
    }
    for (int64_t t = 0; t < c->tokens; t++) {
        if (segment_of(c, t) >= 0)
            add_token(c, &ref, t);
    }
    assert_ok(rk_moe_balance(kt->stream, &args));
    kt_expect_close_sum(kt, kt_label(kt, c->label, dtype), args.dlogits, ref.dlogits);
    sums = kt_read(kt, args.sums);
    for (int64_t i = 0; i < c->experts + RK_NUM_ROUTER_SUMS; i++) {
        double bound = i <= c->experts ? 0.0 : (dtype == RK_DTYPE_F64 ? 1e-12 : 1e-5);

        if (fabs(sums[i] - ref.sums[i]) > bound * (1.0 + fabs(ref.sums[i])))
            fail_msg("%s: sum %d is %.9g, expected %.9g", c->label, (int)i, sums[i], ref.sums[i]);
    }
}

static void test_moe_balance_all_cases_equal_reference(void **state)
{
    struct kt *kt = *state;

    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        if (!kt_is_cpu_only(kt, RK_DTYPE_F64))
            run_balance(kt, &cases[i], RK_DTYPE_F64);
        run_balance(kt, &cases[i], RK_DTYPE_F32);
    }
}

static void test_moe_count_equals_reference(void **state)
{
    struct kt *kt = *state;

    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        const struct balance_case *c = &cases[i];
        int64_t num_segments = RK_MAX(c->segments, 1);
        struct rk_moe_count_args args = {.counts = kt_zeros_2d(kt, RK_DTYPE_F32, num_segments, c->experts),
                                         .ids = ids_of(kt, c),
                                         .segments = segments_of(kt, c)};
        double *expected = kt_scratch(kt, num_segments * c->experts);
        const double *actual;

        for (int64_t t = 0; t < c->tokens; t++) {
            for (int64_t k = 0; segment_of(c, t) >= 0 && k < c->top_k; k++) {
                if (id_of(c, t, k) >= 0)
                    expected[segment_of(c, t) * c->experts + id_of(c, t, k)] += 2.0;
            }
        }
        assert_ok(rk_moe_count(kt->stream, &args));
        assert_ok(rk_moe_count(kt->stream, &args));
        actual = kt_read(kt, args.counts);
        for (int64_t j = 0; j < num_segments * c->experts; j++)
            assert_true(actual[j] == expected[j]);
    }
}

/* Two tokens, two experts, logits that give p = (3/4, 1/4) and (1/5, 4/5), one choice each. */
static void test_moe_balance_equals_values_computed_by_hand(void **state)
{
    static const int32_t ids[] = {0, 1}, segments[] = {0, 0};
    static const double counts[] = {1.0, 1.0}, uneven[] = {2.0, 0.0};
    const double logits[] = {log(3.0), 0.0, 0.0, log(4.0)};
    struct kt *kt = *state;
    struct rk_moe_balance_args args = {.sums = kt_zeros_1d(kt, RK_DTYPE_F64, 2 + RK_NUM_ROUTER_SUMS),
                                       .dlogits = kt_zeros_2d(kt, RK_DTYPE_F32, 2, 2),
                                       .logits = kt_zeros_2d(kt, RK_DTYPE_F32, 2, 2),
                                       .counts = kt_zeros_2d(kt, RK_DTYPE_F32, 1, 2),
                                       .weights = kt_zeros_1d(kt, RK_DTYPE_F32, 1)};
    const double weight = 0.5; /* coefficient 1: experts / (top_k tokens^2) = 2 / (1 * 4) */
    const double *sums;

    args.ids = rk_tensor_2d(kt_ints(kt, ids, 2).data, RK_DTYPE_I32, 2, 1);
    args.segments = kt_ints(kt, segments, 2);
    kt_write(kt, args.logits, logits);
    kt_write(kt, args.weights, &weight);
    kt_write(kt, args.counts, counts);
    assert_ok(rk_moe_balance(kt->stream, &args));
    sums = kt_read(kt, args.sums);
    assert_float_equal(sums[2 + RK_ROUTER_TOKENS], 2.0, 0.0);
    /* Even counts: 2 * (1/2 * 1/2 * (p summed over tokens and experts) / 2) = 1, the minimum. */
    assert_float_equal(sums[2 + RK_ROUTER_BALANCE], 1.0, 1e-6);
    assert_float_equal(sums[2 + RK_ROUTER_Z], pow(log(4.0), 2.0) + pow(log(5.0), 2.0), 1e-5);
    assert_float_equal(sums[2 + RK_ROUTER_ENTROPY],
                       -(0.75 * log(0.75) + 0.25 * log(0.25) + 0.2 * log(0.2) + 0.8 * log(0.8)), 1e-6);
    kt_expect_close_sum(kt, "even counts", args.dlogits, (const double[4]){0.0});
    kt_write(kt, args.counts, uneven);
    assert_ok(rk_moe_balance(kt->stream, &args));
    sums = kt_read(kt, args.sums);
    assert_float_equal(sums[2 + RK_ROUTER_BALANCE], 1.0 + 0.75 + 0.2, 1e-6);
    /* d p_0 / d logit_0 = p_0 p_1 = 3/16 and 4/25. */
    kt_expect_close_sum(kt, "uneven counts", args.dlogits,
                        (const double[4]){3.0 / 16, -3.0 / 16, 4.0 / 25, -4.0 / 25});
}

static double loss_of_balance(struct kt *kt, void *user)
{
    struct rk_moe_balance_args args = *(const struct rk_moe_balance_args *)user;
    const double *sums;
    int64_t experts = args.logits.shape[1];

    args.sums = kt_zeros_1d(kt, RK_DTYPE_F64, experts + RK_NUM_ROUTER_SUMS);
    args.dlogits = (rk_tensor_t){0};
    assert_ok(rk_moe_balance(kt->stream, &args));
    sums = kt_read(kt, args.sums);
    return sums[experts + RK_ROUTER_BALANCE] + args.z_weight * sums[experts + RK_ROUTER_Z];
}

static void test_moe_balance_gradient_equals_differences(void **state)
{
    struct kt *kt = *state;

    if (kt_is_cpu_only(kt, RK_DTYPE_F64))
        rk_test_skip("only the CPU computes in F64");
    for (size_t i = 2; i + 1 < RK_ARRAY_LEN(cases); i++) { /* the first two and the large one have equals */
        struct rk_moe_balance_args args = balance_args(kt, &cases[i], RK_DTYPE_F64);

        args.dlogits = kt_zeros_2d(kt, RK_DTYPE_F64, cases[i].tokens, cases[i].experts);
        assert_ok(rk_moe_balance(kt->stream, &args));
        kt_expect_gradient(kt, cases[i].label, args.logits, args.dlogits, loss_of_balance, &args);
    }
}

static void test_moe_balance_bad_arguments_are_named(void **state)
{
    static const int32_t beyond[] = {4}, segment[] = {1};
    struct kt *kt = *state;
    struct rk_moe_balance_args args = {.sums = kt_zeros_1d(kt, RK_DTYPE_F64, 4),
                                       .logits = kt_zeros_2d(kt, RK_DTYPE_F32, 1, 4),
                                       .ids = kt_zeros_2d(kt, RK_DTYPE_I32, 1, 1),
                                       .segments = kt_zeros_1d(kt, RK_DTYPE_I32, 1)};

    assert_fails(rk_moe_balance(kt->stream, &args), RK_INVALID_ARGUMENT, "sums");
    args.sums = kt_zeros_1d(kt, RK_DTYPE_F64, 4 + RK_NUM_ROUTER_SUMS);
    args.counts = kt_zeros_2d(kt, RK_DTYPE_F32, 1, 4);
    assert_fails(rk_moe_balance(kt->stream, &args), RK_INVALID_ARGUMENT, "weights");
    args.weights = kt_zeros_1d(kt, RK_DTYPE_F32, 1);
    args.ids = rk_tensor_2d(kt_ints(kt, beyond, 1).data, RK_DTYPE_I32, 1, 1);
    kt_expect_refused(kt, rk_moe_balance(kt->stream, &args), "ids[0][0]=4");
    args.ids = kt_zeros_2d(kt, RK_DTYPE_I32, 1, 1);
    args.segments = kt_ints(kt, segment, 1);
    kt_expect_refused(kt, rk_moe_balance(kt->stream, &args), "segments[0]=1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        kt_test(test_moe_count_equals_reference),
        kt_test(test_moe_balance_all_cases_equal_reference),
        kt_test(test_moe_balance_equals_values_computed_by_hand),
        kt_test(test_moe_balance_gradient_equals_differences),
        kt_test(test_moe_balance_bad_arguments_are_named),
    };

    return cmocka_run_group_tests_name("kernels/moe_balance", tests, NULL, NULL);
}
