/* Goal: the router, the sort by expert and the sum by token equal plain loops in f64, for softmax and
 * sigmoid, groups, a correction bias, ties, given choices and absent choices; gradients equal finite
 * differences of the loss. */
#include "tests/kernels/kernel_test.h"

#include <math.h>
#include <string.h>

struct route_case {
    const char *label;
    int64_t tokens, experts, top_k;
    bool is_sigmoid, normalizes, has_bias, is_given;
    int32_t num_groups, topk_groups;
    float scale;
    bool is_captured;
};

static const struct route_case cases[] = {
    {"one expert", 3, 1, 1, false, false, false, false, 1, 1, 1.0f, false},
    {"softmax", 7, 8, 2, false, false, false, false, 1, 1, 1.0f, false},
    {"softmax, normalised", 9, 40, 8, false, true, false, false, 1, 1, 1.0f, false},
    {"sigmoid with bias and scale", 6, 64, 6, true, true, true, false, 1, 1, 2.446f, false},
    {"groups", 11, 32, 4, true, true, true, false, 8, 3, 2.5f, false},
    {"groups of one expert", 5, 6, 2, false, true, false, false, 6, 4, 1.0f, false},
    {"all experts", 4, 5, 5, false, true, false, false, 1, 1, 1.0f, false},
    {"given", 6, 16, 3, false, true, false, true, 1, 1, 1.0f, false},
    {"given, sigmoid", 6, 130, 8, true, true, true, true, 1, 1, 2.0f, false},
    {"captured", 7, 8, 2, false, true, false, false, 1, 1, 1.0f, true},
    {"captured, groups", 11, 32, 4, true, true, true, false, 8, 3, 2.5f, true},
    {"captured and given", 6, 16, 3, false, true, false, true, 1, 1, 1.0f, true},
    {"captured and given, 32 choices", 3, 40, 32, true, true, true, true, 1, 1, 2.0f, true},
};

/* The value by which an expert is chosen, in f64. */
static double choice_of(const struct route_case *c, const double *scores, const double *bias, int64_t e)
{
    return scores[e] + (c->has_bias ? bias[e] : 0.0);
}

static void score_row(const struct route_case *c, double *scores, const double *logits)
{
    double sum = 0.0;

    for (int64_t e = 0; e < c->experts; e++) {
        scores[e] = c->is_sigmoid ? 1.0 / (1.0 + exp(-logits[e])) : exp(logits[e]);
        sum += scores[e];
    }
    for (int64_t e = 0; !c->is_sigmoid && e < c->experts; e++)
        scores[e] /= sum;
}

/* The score of a group, and whether it is among the best: by counting better groups. */
static double group_of(const struct route_case *c, const double *scores, const double *bias, int64_t g)
{
    int64_t size = c->experts / c->num_groups;
    double best = -INFINITY;

    for (int64_t i = g * size; i < (g + 1) * size; i++) {
        for (int64_t j = g * size; j < (g + 1) * size; j++) {
            if (size == 1)
                best = choice_of(c, scores, bias, i);
            else if (i != j)
                best = fmax(best, choice_of(c, scores, bias, i) + choice_of(c, scores, bias, j));
        }
    }
    return best;
}

static bool group_is_kept(const struct route_case *c, const double *scores, const double *bias, int64_t g)
{
    double own = group_of(c, scores, bias, g);
    int32_t before = 0;

    for (int64_t i = 0; i < c->num_groups; i++) {
        double other = group_of(c, scores, bias, i);

        before += other > own || (other == own && i < g);
    }
    return before < c->topk_groups;
}

/* The rank of expert e among those of kept groups; -1 if its group is not kept. */
static int64_t rank_of(const struct route_case *c, const double *scores, const double *bias, int64_t e)
{
    int64_t size = c->experts / c->num_groups, before = 0;
    double own = choice_of(c, scores, bias, e);

    if (!group_is_kept(c, scores, bias, e / size))
        return -1;
    for (int64_t i = 0; i < c->experts; i++) {
        double other = choice_of(c, scores, bias, i);

        if (group_is_kept(c, scores, bias, i / size))
            before += other > own || (other == own && i < e);
    }
    return before;
}

static void expect_row(const struct route_case *c, int32_t *ids, double *probs, const double *logits,
                       const double *bias)
{
    double scores[RK_MOE_EXPERTS_MAX], sum = c->is_sigmoid ? 1e-20 : 0.0;

    score_row(c, scores, logits);
    for (int64_t e = 0; !c->is_given && e < c->experts; e++) {
        int64_t rank = rank_of(c, scores, bias, e);

        if (rank >= 0 && rank < c->top_k)
            ids[rank] = (int32_t)e;
    }
    for (int64_t k = 0; k < c->top_k; k++)
        sum += ids[k] >= 0 ? scores[ids[k]] : 0.0;
    for (int64_t k = 0; k < c->top_k; k++)
        probs[k] = ids[k] >= 0 ? c->scale * scores[ids[k]] / (c->normalizes ? sum : 1.0) : 0.0;
}

/* Distinct experts in random order, and some absent ones. */
static rk_tensor_t given_ids(struct kt *kt, const struct route_case *c)
{
    int32_t ids[256];

    for (int64_t t = 0; t < c->tokens; t++) {
        for (int64_t k = 0; k < c->top_k; k++)
            ids[t * c->top_k + k] = t == 2 && k == 1 ? -1 : (int32_t)((t * 5 + k * 3) % c->experts);
    }
    return rk_tensor_2d(kt_ints(kt, ids, c->tokens * c->top_k).data, RK_DTYPE_I32, c->tokens, c->top_k);
}

/* Memory for the choices: columns of a wider tensor, as those of one layer of several. */
static rk_tensor_t columns_for_choices(struct kt *kt, const struct route_case *c)
{
    return rk_tensor_cols(kt_zeros_2d(kt, RK_DTYPE_I16, c->tokens, 3 * c->top_k), c->top_k, c->top_k);
}

/* The choice does not depend on given ids. */
static void expect_choices(struct kt *kt, const struct route_case *c, rk_tensor_t chosen,
                           const double *logits, const double *bias)
{
    struct route_case by_score = *c;
    const int16_t *actual = kt_read_bytes(kt, chosen);
    double *probs = kt_scratch(kt, c->top_k);
    int32_t ids[RK_MOE_TOP_K_MAX];

    by_score.is_given = false;
    for (int64_t t = 0; t < c->tokens; t++) {
        expect_row(&by_score, ids, probs, logits + t * c->experts, bias);
        for (int64_t k = 0; k < c->top_k; k++)
            assert_int_equal(actual[t * c->top_k + k], ids[k]);
    }
}

static struct rk_moe_route_args route_args(struct kt *kt, const struct route_case *c, rk_dtype_t dtype)
{
    struct rk_moe_route_args args = {
        .ids = kt_zeros_2d(kt, RK_DTYPE_I32, c->tokens, c->top_k),
        .probs = kt_zeros_2d(kt, dtype, c->tokens, c->top_k),
        .logits = kt_randomize(kt, kt_zeros_2d(kt, dtype, c->tokens, c->experts), 1.5),
        .is_sigmoid = c->is_sigmoid,
        .normalizes = c->normalizes,
        .num_groups = c->num_groups,
        .topk_groups = c->topk_groups,
        .scale = c->scale,
    };

    if (c->is_captured)
        args.chosen = columns_for_choices(kt, c);
    if (c->has_bias)
        args.bias = kt_randomize(
            kt, kt_zeros_2d(kt, dtype == RK_DTYPE_F64 ? dtype : RK_DTYPE_BF16, 3, c->experts), 0.1);
    if (c->is_given)
        args.given = given_ids(kt, c);
    return args;
}

static const double *sum_of_parts(struct kt *kt, rk_tensor_t parts)
{
    double *sum = kt_read(kt, parts);

    for (int64_t i = parts.shape[1]; i < rk_tensor_num_elements(parts); i++)
        sum[i % parts.shape[1]] += sum[i];
    return sum;
}

static void run_route(struct kt *kt, const struct route_case *c, rk_dtype_t dtype)
{
    struct rk_moe_route_args args = route_args(kt, c, dtype);
    const double *logits = kt_read(kt, args.logits), *bias = c->has_bias ? sum_of_parts(kt, args.bias) : NULL;
    double *probs = kt_scratch(kt, c->tokens * c->top_k);
    int32_t *actual, ids[256];

    if (c->is_given)
        memcpy(ids, kt_read_ints(kt, args.given), (size_t)(c->tokens * c->top_k) * sizeof(*ids));
    for (int64_t t = 0; t < c->tokens; t++)
        expect_row(c, ids + t * c->top_k, probs + t * c->top_k, logits + t * c->experts, bias);
    assert_ok(rk_moe_route(kt->stream, &args));
    actual = kt_read_ints(kt, args.ids);
    for (int64_t i = 0; i < c->tokens * c->top_k; i++)
        assert_int_equal(actual[i], ids[i]);
    kt_expect_close_sum(kt, kt_label(kt, c->label, dtype), args.probs, probs);
    if (c->is_captured)
        expect_choices(kt, c, args.chosen, logits, bias);
}

static void test_moe_route_all_cases_equal_reference(void **state)
{
    struct kt *kt = *state;

    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        if (!kt_is_cpu_only(kt, RK_DTYPE_F64) && rk_test_in_part())
            run_route(kt, &cases[i], RK_DTYPE_F64);
        if (rk_test_in_part())
            run_route(kt, &cases[i], RK_DTYPE_F32);
    }
}

/* Goal: equal scores are chosen by ascending id, for experts and for groups. */
static void test_moe_route_ties_go_to_the_smallest_id(void **state)
{
    static const double logits[] = {0, 1, 1, 0, 1, 1, 1, 0, 2, 2, 2, 2, 2, 2, 2, 2};
    static const int32_t expected[] = {1, 2, 4, 0, 1, 2};
    struct kt *kt = *state;
    struct rk_moe_route_args args = {.ids = kt_zeros_2d(kt, RK_DTYPE_I32, 2, 3),
                                     .probs = kt_zeros_2d(kt, RK_DTYPE_F32, 2, 3),
                                     .logits = kt_zeros_2d(kt, RK_DTYPE_F32, 2, 8),
                                     .num_groups = 1,
                                     .topk_groups = 1,
                                     .scale = 1.0f};

    kt_write(kt, args.logits, logits);
    for (int32_t groups = 1; groups <= 2; groups++) {
        args.num_groups = args.topk_groups = groups;
        assert_ok(rk_moe_route(kt->stream, &args));
        assert_memory_equal(kt_read_ints(kt, args.ids), expected, sizeof(expected));
    }
}

struct route_loss {
    struct rk_moe_route_args args;
    rk_tensor_t weight;
};

static double loss_of_route(struct kt *kt, void *user)
{
    struct route_loss *loss = user;

    assert_ok(rk_moe_route(kt->stream, &loss->args));
    return kt_project(kt, loss->args.probs, loss->weight);
}

/* Goal: the gradient is that of the probabilities for a fixed choice. Method: the chosen ids are given. */
static void test_moe_route_gradient_equals_differences(void **state)
{
    struct kt *kt = *state;

    if (kt_is_cpu_only(kt, RK_DTYPE_F64))
        rk_test_skip("only the CPU computes in F64");
    for (size_t i = 1; i < RK_ARRAY_LEN(cases); i++) { /* that of the first is 0 */
        const struct route_case *c = &cases[i];
        struct route_loss loss = {.args = route_args(kt, c, RK_DTYPE_F64)};
        struct rk_moe_route_bwd_args bwd;

        loss.weight = kt_randomize(kt, kt_zeros_2d(kt, RK_DTYPE_F64, c->tokens, c->top_k), 1.0);
        assert_ok(rk_moe_route(kt->stream, &loss.args));
        bwd = (struct rk_moe_route_bwd_args){.fwd = loss.args,
                                             .dlogits = kt_zeros_2d(kt, RK_DTYPE_F64, c->tokens, c->experts),
                                             .dprobs = loss.weight};
        assert_ok(rk_moe_route_bwd(kt->stream, &bwd));
        if (!c->is_given) {
            loss.args.given = loss.args.ids;
            loss.args.ids = kt_zeros_2d(kt, RK_DTYPE_I32, c->tokens, c->top_k);
        }
        kt_expect_gradient(kt, c->label, loss.args.logits, bwd.dlogits, loss_of_route, &loss);
    }
}

/* d prob_k / d logit_e through the score of each chosen j; k and j are indices of choices. */
static double derivative(const struct route_case *c, const double *scores, double sum, const int32_t *ids,
                         int64_t k, int64_t e)
{
    double by_logit = 0.0;

    for (int64_t j = 0; j < c->top_k; j++) {
        double of_score = ids[j] == ids[k], of_logit;

        if (ids[j] < 0)
            continue;
        if (c->normalizes)
            of_score = of_score / sum - scores[ids[k]] / (sum * sum);
        of_logit = c->is_sigmoid ? (ids[j] == e) * scores[e] * (1.0 - scores[e])
                                 : scores[ids[j]] * ((ids[j] == e) - scores[e]);
        by_logit += of_score * of_logit;
    }
    return by_logit;
}

static void expect_gradient_row(const struct route_case *c, double *dlogits, const double *logits,
                                const double *dprobs, const int32_t *ids)
{
    double scores[RK_MOE_EXPERTS_MAX], sum = c->is_sigmoid ? 1e-20 : 0.0;

    score_row(c, scores, logits);
    for (int64_t k = 0; k < c->top_k; k++)
        sum += ids[k] >= 0 ? scores[ids[k]] : 0.0;
    for (int64_t k = 0; k < c->top_k; k++) {
        for (int64_t e = 0; ids[k] >= 0 && e < c->experts; e++)
            dlogits[e] += c->scale * dprobs[k] * derivative(c, scores, sum, ids, k, e);
    }
}

/* Goal: the gradient in f32, which all backends support, equals the definition. */
static void test_moe_route_gradient_all_cases_equal_reference(void **state)
{
    struct kt *kt = *state;

    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        const struct route_case *c = &cases[i];
        struct rk_moe_route_args args = route_args(kt, c, RK_DTYPE_F32);
        rk_tensor_t dprobs = kt_randomize(kt, kt_zeros_2d(kt, RK_DTYPE_F32, c->tokens, c->top_k), 1.0);
        rk_tensor_t dlogits = kt_zeros_2d(kt, RK_DTYPE_F32, c->tokens, c->experts);
        const double *logits = kt_read(kt, args.logits), *d = kt_read(kt, dprobs);
        double *expected = kt_scratch(kt, c->tokens * c->experts);
        const int32_t *ids;

        assert_ok(rk_moe_route(kt->stream, &args));
        assert_ok(rk_moe_route_bwd(
            kt->stream, &(struct rk_moe_route_bwd_args){.fwd = args, .dlogits = dlogits, .dprobs = dprobs}));
        ids = kt_read_ints(kt, args.ids);
        for (int64_t t = 0; t < c->tokens; t++)
            expect_gradient_row(c, expected + t * c->experts, logits + t * c->experts, d + t * c->top_k,
                                ids + t * c->top_k);
        kt_expect_close_sum(kt, c->label, dlogits, expected);
    }
}

/* Goal: rows are sorted by expert and token, for numbers of choices around the block sizes of a GPU. */
static void test_moe_sort_equals_reference(void **state)
{
    static const struct {
        int64_t tokens, top_k, experts;
    } sizes[] = {{0, 2, 3}, {1, 1, 1}, {5, 2, 4}, {700, 3, 7}, {1025, 1, 3}, {513, 4, 130}};
    struct kt *kt = *state;

    for (size_t s = 0; s < RK_ARRAY_LEN(sizes); s++) {
        int64_t tokens = sizes[s].tokens, top_k = sizes[s].top_k, experts = sizes[s].experts, row = 0;
        int64_t num_choices = tokens * top_k;
        int32_t *ids = (int32_t *)kt_scratch(kt, num_choices + 1), *offsets, *of_rows, *places;
        struct rk_moe_sort_args args = {.offsets = kt_zeros_1d(kt, RK_DTYPE_I32, experts + 1),
                                        .tokens = kt_zeros_1d(kt, RK_DTYPE_I32, num_choices),
                                        .places = kt_zeros_2d(kt, RK_DTYPE_I32, tokens, top_k)};

        for (int64_t t = 0; t < tokens; t++) { /* distinct, uneven, sometimes absent */
            for (int64_t k = 0; k < top_k; k++)
                ids[t * top_k + k] = t % 11 == 3 && k == 0 ? -1 : (int32_t)((t * t / 3 + k) % experts);
        }
        args.ids = rk_tensor_2d(kt_ints(kt, ids, num_choices).data, RK_DTYPE_I32, tokens, top_k);
        assert_ok(rk_moe_sort(kt->stream, &args));
        offsets = kt_read_ints(kt, args.offsets);
        of_rows = kt_read_ints(kt, args.tokens);
        places = kt_read_ints(kt, args.places);
        for (int64_t e = 0; e < experts; e++) {
            assert_int_equal(offsets[e], row);
            for (int64_t i = 0; i < num_choices; i++) {
                if (ids[i] != e)
                    continue;
                assert_int_equal(of_rows[row], i / top_k);
                assert_int_equal(places[i], row);
                row++;
            }
        }
        assert_int_equal(offsets[experts], row);
        for (int64_t i = 0; i < num_choices; i++)
            assert_true(ids[i] >= 0 || places[i] == -1);
        for (int64_t r = row; r < num_choices; r++)
            assert_int_equal(of_rows[r], 0);
    }
}

/* Goal: with a range of experts, these get the rows that they have among all experts, without those of
 * others. */
static void test_moe_sort_of_a_range_equals_that_part_of_all(void **state)
{
    enum { TOKENS = 700, TOP_K = 3, EXPERTS = 7, NUM = TOKENS * TOP_K };
    struct kt *kt = *state;
    int32_t ids[NUM];
    struct rk_moe_sort_args all = {.offsets = kt_zeros_1d(kt, RK_DTYPE_I32, EXPERTS + 1),
                                   .tokens = kt_zeros_1d(kt, RK_DTYPE_I32, NUM),
                                   .places = kt_zeros_2d(kt, RK_DTYPE_I32, TOKENS, TOP_K)};

    for (int i = 0; i < NUM; i++)
        ids[i] = i % 13 == 4 ? -1 : (i / TOP_K * (i / TOP_K) / 3 + i % TOP_K) % EXPERTS;
    all.ids = rk_tensor_2d(kt_ints(kt, ids, NUM).data, RK_DTYPE_I32, TOKENS, TOP_K);
    assert_ok(rk_moe_sort(kt->stream, &all));
    for (int first = 0; first < EXPERTS; first++) {
        for (int count = 1; first + count <= EXPERTS; count++) {
            struct rk_moe_sort_args part = all;
            const int32_t *offsets = kt_read_ints(kt, all.offsets), *places = kt_read_ints(kt, all.places);
            const int32_t *tokens = kt_read_ints(kt, all.tokens), *of_part, *tokens_of_part, *places_of_part;

            part.offsets = kt_zeros_1d(kt, RK_DTYPE_I32, count + 1);
            part.tokens = kt_zeros_1d(kt, RK_DTYPE_I32, NUM);
            part.places = kt_zeros_2d(kt, RK_DTYPE_I32, TOKENS, TOP_K);
            part.first = first;
            part.num_experts = EXPERTS;
            assert_ok(rk_moe_sort(kt->stream, &part));
            of_part = kt_read_ints(kt, part.offsets);
            tokens_of_part = kt_read_ints(kt, part.tokens);
            places_of_part = kt_read_ints(kt, part.places);
            for (int e = 0; e <= count; e++)
                assert_int_equal(of_part[e], offsets[first + e] - offsets[first]);
            for (int r = 0; r < NUM; r++)
                assert_int_equal(tokens_of_part[r], r < of_part[count] ? tokens[offsets[first] + r] : 0);
            for (int i = 0; i < NUM; i++)
                assert_int_equal(places_of_part[i],
                                 ids[i] >= first && ids[i] < first + count ? places[i] - offsets[first] : -1);
        }
    }
}

/* Goal: the rows of two ranges of experts, put together in the order of the choices, have the sum of the rows
 * of all experts, bit by bit. */
static void test_moe_combine_of_rows_in_order_has_the_bits_of_sorted_rows(void **state)
{
    enum { TOKENS = 9, TOP_K = 3, EXPERTS = 5, COLUMNS = 72, NUM = TOKENS * TOP_K };
    struct kt *kt = *state;

    for (size_t d = 0; d < RK_ARRAY_LEN(kt_dtypes); d++) {
        rk_dtype_t dtype = kt_dtypes[d];
        int32_t ids[NUM];
        struct rk_moe_sort_args sort = {.offsets = kt_zeros_1d(kt, RK_DTYPE_I32, EXPERTS + 1),
                                        .tokens = kt_zeros_1d(kt, RK_DTYPE_I32, NUM),
                                        .places = kt_zeros_2d(kt, RK_DTYPE_I32, TOKENS, TOP_K)};
        struct rk_moe_combine_args sorted = {.y = kt_zeros_2d(kt, dtype, TOKENS, COLUMNS)}, ordered;

        for (int i = 0; i < NUM; i++)
            ids[i] = (i / TOP_K + 4 * (i % TOP_K)) % EXPERTS;
        sort.ids = rk_tensor_2d(kt_ints(kt, ids, NUM).data, RK_DTYPE_I32, TOKENS, TOP_K);
        assert_ok(rk_moe_sort(kt->stream, &sort));
        sorted.x = kt_randomize(kt, kt_zeros_2d(kt, dtype, NUM, COLUMNS), 1.0);
        sorted.ids = sort.ids;
        sorted.places = sort.places;
        ordered = sorted;
        ordered.y = kt_zeros_2d(kt, dtype, TOKENS, COLUMNS);
        ordered.x = kt_zeros_2d(kt, dtype, NUM, COLUMNS);
        ordered.places = (rk_tensor_t){0};
        assert_ok(rk_gather_rows(
            kt->stream, &(struct rk_rows_args){.out = ordered.x,
                                               .x = sorted.x,
                                               .index = rk_tensor_1d(sort.places.data, RK_DTYPE_I32, NUM)}));
        assert_ok(rk_moe_combine(kt->stream, &sorted));
        assert_ok(rk_moe_combine(kt->stream, &ordered));
        kt_expect_same_bits(kt, kt_label(kt, "combine", dtype), ordered.y, sorted.y);
        ordered.x = rk_tensor_rows(ordered.x, 0, NUM - 1);
        assert_fails(rk_moe_combine(kt->stream, &ordered), RK_INVALID_ARGUMENT, "x has 26 rows");
    }
}

/* Goal: a token gets the sum of its experts' rows, in ascending experts, for every dtype.
 */
static void test_moe_combine_equals_reference(void **state)
{
    enum { TOKENS = 9, TOP_K = 3, EXPERTS = 5 };
    struct kt *kt = *state;

    for (size_t d = 0; d < RK_ARRAY_LEN(kt_dtypes) * 2; d++) {
        rk_dtype_t dtype = kt_dtypes[d / 2];
        int64_t columns = d % 2 == 0 ? 72 : 13;
        int32_t ids[TOKENS * TOP_K];
        const int32_t *places;
        struct rk_moe_sort_args sort = {.offsets = kt_zeros_1d(kt, RK_DTYPE_I32, EXPERTS + 1),
                                        .tokens = kt_zeros_1d(kt, RK_DTYPE_I32, TOKENS * TOP_K),
                                        .places = kt_zeros_2d(kt, RK_DTYPE_I32, TOKENS, TOP_K)};
        struct rk_moe_combine_args args = {
            .y = kt_zeros_2d(kt, dtype, TOKENS, columns),
            .x = kt_randomize(kt, kt_zeros_2d(kt, dtype, TOKENS * TOP_K, columns), 1.0)};
        const double *x = kt_read(kt, args.x);
        double *expected = kt_scratch(kt, TOKENS * columns);

        for (int i = 0; i < TOKENS * TOP_K; i++)
            ids[i] = i == 7 ? -1 : (i / TOP_K + 4 * (i % TOP_K)) % EXPERTS;
        args.ids = sort.ids =
            rk_tensor_2d(kt_ints(kt, ids, TOKENS * TOP_K).data, RK_DTYPE_I32, TOKENS, TOP_K);
        args.places = sort.places;
        assert_ok(rk_moe_sort(kt->stream, &sort));
        assert_ok(rk_moe_combine(kt->stream, &args));
        places = kt_read_ints(kt, sort.places);
        for (int i = 0; i < TOKENS * TOP_K; i++) {
            for (int64_t c = 0; ids[i] >= 0 && c < columns; c++)
                expected[i / TOP_K * columns + c] += x[places[i] * columns + c];
        }
        kt_expect_close_sum(kt, kt_label(kt, "combine", dtype), args.y, expected);
    }
}

static void test_moe_bad_arguments_are_named(void **state)
{
    static const int32_t twice[] = {1, 1}, beyond[] = {0, 4};
    struct kt *kt = *state;
    struct rk_moe_route_args args = {.ids = kt_zeros_2d(kt, RK_DTYPE_I32, 1, 2),
                                     .probs = kt_zeros_2d(kt, RK_DTYPE_F32, 1, 2),
                                     .logits = kt_zeros_2d(kt, RK_DTYPE_F32, 1, 4),
                                     .num_groups = 3,
                                     .topk_groups = 1,
                                     .scale = 1.0f};
    struct rk_moe_route_args many = args;

    assert_fails(rk_moe_route(kt->stream, &args), RK_INVALID_ARGUMENT, "num_groups=3");
    args.num_groups = 4;
    assert_fails(rk_moe_route(kt->stream, &args), RK_INVALID_ARGUMENT, "at most the 1 experts of 1 groups");
    args.topk_groups = 5;
    assert_fails(rk_moe_route(kt->stream, &args), RK_INVALID_ARGUMENT, "topk_groups=5");
    many.num_groups = 1;
    many.ids = kt_zeros_2d(kt, RK_DTYPE_I32, 1, 5);
    assert_fails(rk_moe_route(kt->stream, &many), RK_INVALID_ARGUMENT, "ids has 5 columns, expected 1 to 4");
    args.num_groups = args.topk_groups = 1;
    args.given = rk_tensor_2d(kt_ints(kt, twice, 2).data, RK_DTYPE_I32, 1, 2);
    kt_expect_refused(kt, rk_moe_route(kt->stream, &args), "expert 1 twice");
    args.given = rk_tensor_2d(kt_ints(kt, beyond, 2).data, RK_DTYPE_I32, 1, 2);
    kt_expect_refused(kt, rk_moe_route(kt->stream, &args), "given[0][1]=4");
    assert_fails(
        rk_moe_sort(kt->stream, &(struct rk_moe_sort_args){.offsets = kt_zeros_1d(kt, RK_DTYPE_I32, 3),
                                                           .tokens = kt_zeros_1d(kt, RK_DTYPE_I32, 2),
                                                           .places = kt_zeros_2d(kt, RK_DTYPE_I32, 1, 2),
                                                           .ids = args.ids,
                                                           .first = 3,
                                                           .num_experts = 4}),
        RK_INVALID_ARGUMENT, "experts from 3 to 4");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        kt_test(test_moe_route_all_cases_equal_reference),
        kt_test(test_moe_route_ties_go_to_the_smallest_id),
        kt_test(test_moe_route_gradient_equals_differences),
        kt_test(test_moe_route_gradient_all_cases_equal_reference),
        kt_test(test_moe_sort_equals_reference),
        kt_test(test_moe_sort_of_a_range_equals_that_part_of_all),
        kt_test(test_moe_combine_equals_reference),
        kt_test(test_moe_combine_of_rows_in_order_has_the_bits_of_sorted_rows),
        kt_test(test_moe_bad_arguments_are_named),
    };

    return cmocka_run_group_tests_name("kernels/moe", tests, NULL, NULL);
}
