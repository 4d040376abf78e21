/* Row order, plans and their check: worked examples, invariants over random batches, and invalid plans. */
#include "tests/support/test.h"

#include "base/rk_alloc.h"
#include "base/rk_compiler.h"
#include "base/rk_rng.h"
#include "dispatch/rk_plan.h"
#include "proto/limits.h"

#include <string.h>

static struct rk_arena *arena;

static int setup(void **state)
{
    (void)state;
    arena = rk_arena_create(1 << 16, 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    rk_arena_destroy(arena);
    return 0;
}

static const struct rk_workload verl_7b = {.linear = 24576};
static const int64_t lengths[] = {100, 900, 300, 700, 500, 200, 800, 400};

/* --- layout --- */

static void test_layout_worked_example(void **state)
{
    static const int64_t expected[] = {5, 3, 6, 2, 0, 4, 1, 7};
    struct rk_layout_request request = {
        .num_rows = 8, .num_replicas = 2, .seqlens = lengths, .balance = true, .workload = verl_7b};
    struct rk_seqlen_stats stats;
    int64_t order[8];

    (void)state;
    assert_ok(rk_plan_layout(order, &request));
    assert_memory_equal(order, expected, sizeof(expected));
    stats = rk_plan_seqlen_stats(lengths, order, 8, 2);
    assert_true(stats.min == 1900 && stats.max == 2000 && stats.minmax_diff == 100);
    assert_true(stats.balanced_min == 1900 && stats.balanced_max == 2000 && stats.mean == 1950);
}

static void test_layout_without_balance_deals_in_order(void **state)
{
    static const int64_t whole[] = {0, 1, 2, 3, 4, 5, 6, 7};
    static const int64_t mini[] = {0, 1, 4, 5, 2, 3, 6, 7};
    struct rk_layout_request request = {.num_rows = 8, .num_replicas = 2, .seqlens = lengths};
    int64_t order[8];

    (void)state;
    assert_ok(rk_plan_layout(order, &request));
    assert_memory_equal(order, whole, sizeof(whole));
    request.mini_batch_rows = 4; /* rows 0-3, then 4-7; replica 0 has the first half of each */
    assert_ok(rk_plan_layout(order, &request));
    assert_memory_equal(order, mini, sizeof(mini));
}

/* The rows of mini-batch m over all replicas, as a bit mask. */
static uint64_t rows_of_mini(const int64_t *order, const struct rk_layout_request *request, int64_t m)
{
    int64_t chunk = request->num_rows / request->num_replicas;
    int64_t part = request->mini_batch_rows / request->num_replicas;
    uint64_t mask = 0;

    for (int32_t d = 0; d < request->num_replicas; d++) {
        for (int64_t i = 0; i < part; i++)
            mask |= 1ull << order[d * chunk + m * part + i];
    }
    return mask;
}

static void test_layout_composition_of_mini_batches_does_not_depend_on_replicas(void **state)
{
    struct rk_rng rng;
    int64_t seqlens[48];

    (void)state;
    rk_rng_init(&rng, rk_test_seed(), 1);
    for (int i = 0; i < 48; i++)
        seqlens[i] = 1 + rk_rng_next_below(&rng, 500);
    for (int variant = 0; variant < 4; variant++) {
        struct rk_layout_request request = {.num_rows = 48,
                                            .seqlens = seqlens,
                                            .mini_batch_rows = 12,
                                            .shuffle = variant & 1,
                                            .balance = variant & 2,
                                            .seed = 7,
                                            .workload = verl_7b};
        static const int32_t replicas[] = {1, 2, 3, 4, 6, 12};
        uint64_t first[4] = {0}, all = 0;

        for (size_t k = 0; k < RK_ARRAY_LEN(replicas); k++) {
            int64_t order[48];

            request.num_replicas = replicas[k];
            assert_ok(rk_plan_layout(order, &request));
            for (int64_t m = 0; m < 4; m++) {
                uint64_t mask = rows_of_mini(order, &request, m);

                assert_int_equal(__builtin_popcountll(mask), 12);
                if (k == 0)
                    first[m] = mask;
                assert_true(mask == first[m]);
                all |= mask;
            }
        }
        assert_true(all == (1ull << 48) - 1);
        assert_int_equal(first[0] == 0xfff, !request.shuffle);
    }
}

static void test_layout_same_seed_same_order_other_seed_another(void **state)
{
    struct rk_layout_request request = {
        .num_rows = 8, .num_replicas = 2, .seqlens = lengths, .shuffle = true, .seed = 1};
    int64_t a[8], b[8], c[8];

    (void)state;
    assert_ok(rk_plan_layout(a, &request));
    assert_ok(rk_plan_layout(b, &request));
    request.seed = 2;
    assert_ok(rk_plan_layout(c, &request));
    assert_memory_equal(a, b, sizeof(a));
    assert_memory_not_equal(a, c, sizeof(a));
}

static void test_layout_bad_requests_are_refused(void **state)
{
    static const int64_t negative[] = {1, 2, -1, 4};
    static const struct {
        int64_t num_rows;
        int32_t num_replicas;
        int64_t mini_batch_rows;
        const int64_t *seqlens;
        const char *error;
    } cases[] = {
        {0, 1, 0, lengths, "0 rows for 1 replicas"},
        {8, 0, 0, lengths, "8 rows for 0 replicas"},
        {8, 3, 0, lengths, "3 replicas do not divide mini_batch_rows=8"},
        {8, 2, 3, lengths, "mini_batch_rows=3 does not divide the 8 rows"},
        {8, 4, 2, lengths, "4 replicas do not divide mini_batch_rows=2"},
        {8, 2, -8, lengths, "mini_batch_rows=-8"},
        {4, 2, 0, negative, "row 2 has -1 tokens"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_layout_request request = {.num_rows = cases[i].num_rows,
                                            .num_replicas = cases[i].num_replicas,
                                            .mini_batch_rows = cases[i].mini_batch_rows,
                                            .seqlens = cases[i].seqlens,
                                            .balance = true};
        int64_t order[8];

        assert_fails(rk_plan_layout(order, &request), RK_INVALID_ARGUMENT, cases[i].error);
    }
}

/* --- plans --- */

#define MAX_MICRO 5

/* One replica, the lengths above. Rows of each micro-batch, ended by -1. */
static const struct {
    const char *label;
    int64_t max_token_len, micro_batch_rows; /* one of them is set */
    int32_t num_micro;
    int64_t rows[MAX_MICRO][9];
} micro_cases[] = {
    {"limit 1200", 1200, 0, 4, {{0, 4, 7, -1}, {5, 6, -1}, {2, 3, -1}, {1, -1}}},
    {"limit 1600", 1600, 0, 3, {{1, 2, -1}, {3, 4, 5, -1}, {0, 6, 7, -1}}},
    {"limit 3900", 3900, 0, 1, {{0, 1, 2, 3, 4, 5, 6, 7, -1}}},
    {"fixed 3", 0, 3, 3, {{0, 1, 2, -1}, {3, 4, 5, -1}, {6, 7, -1}}},
    {"fixed 8", 0, 8, 1, {{0, 1, 2, 3, 4, 5, 6, 7, -1}}},
    {"fixed, more than there are", 0, 100, 1, {{0, 1, 2, 3, 4, 5, 6, 7, -1}}},
};

static void test_build_worked_examples(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(micro_cases); i++) {
        struct rk_plan_request request = {.num_rows = 8,
                                          .num_replicas = 1,
                                          .seqlens = lengths,
                                          .use_dynamic_bsz = micro_cases[i].max_token_len != 0,
                                          .max_token_len = micro_cases[i].max_token_len,
                                          .micro_batch_rows = micro_cases[i].micro_batch_rows,
                                          .workload = verl_7b};
        struct rk_plan plan;

        print_message("%s\n", micro_cases[i].label);
        assert_ok(rk_plan_build(&plan, arena, &request));
        assert_int_equal(plan.num_mini, 1);
        assert_int_equal(plan.mini[0].num_micro, micro_cases[i].num_micro);
        assert_int_equal(plan.mini[0].num_entries, micro_cases[i].num_micro);
        assert_int_equal(plan.mini[0].num_tokens, 3900); /* forward only: all tokens */
        assert_int_equal(plan.mini[0].num_sequences, 8);
        for (int32_t k = 0; k < micro_cases[i].num_micro; k++) {
            const struct rk_micro_batch *micro = &plan.mini[0].micro[k];
            uint64_t tokens = 0;
            int64_t count = 0;

            for (; micro_cases[i].rows[k][count] >= 0; count++) {
                assert_true(count < micro->num_rows);
                assert_int_equal(micro->rows[count], micro_cases[i].rows[k][count]);
                tokens += (uint64_t)lengths[micro->rows[count]];
            }
            assert_int_equal(micro->num_rows, count);
            assert_int_equal(micro->num_tokens, tokens);
        }
        assert_ok(rk_plan_check(&plan, 8, 1));
    }
}

/* The inverse of the worked example puts results back: flat = 0,4,7,5,6,2,3,1 -> 0,7,5,6,1,3,4,2. */
static void test_build_flat_rows_invert_to_the_order_of_the_rows(void **state)
{
    static const int64_t expected[] = {0, 7, 5, 6, 1, 3, 4, 2};
    struct rk_plan_request request = {.num_rows = 8,
                                      .num_replicas = 1,
                                      .seqlens = lengths,
                                      .use_dynamic_bsz = true,
                                      .max_token_len = 1200,
                                      .workload = verl_7b};
    int64_t inverse[8], next = 0;
    struct rk_plan plan;

    (void)state;
    assert_ok(rk_plan_build(&plan, arena, &request));
    for (int32_t i = 0; i < plan.mini[0].num_micro; i++) {
        for (int64_t k = 0; k < plan.mini[0].micro[i].num_rows; k++)
            inverse[plan.mini[0].micro[i].rows[k]] = next++;
    }
    assert_memory_equal(inverse, expected, sizeof(expected));
}

/* All replicas run the same number of micro-batches: the largest number that a replica needs. */
static void test_build_replicas_have_equal_counts(void **state)
{
    static const int64_t seqlens[] = {10, 10, 10, 10, 100, 90, 80, 70};
    struct rk_plan_request request = {
        .num_rows = 8, .num_replicas = 2, .seqlens = seqlens, .use_dynamic_bsz = true, .max_token_len = 120};
    struct rk_plan plan;

    (void)state;
    assert_ok(rk_plan_build(&plan, arena, &request));
    /* 340 tokens need at least 3; no partition of 100, 90, 80, 70 into three parts stays within 120, so it is
     * 4. */
    assert_int_equal(plan.mini[0].num_micro, 4);
    assert_int_equal(plan.mini[0].num_entries, 8);
    for (int i = 0; i < 8; i++)
        assert_int_equal(plan.mini[0].micro[i].num_rows, 1);
    assert_ok(rk_plan_check(&plan, 4, 2));
}

/* Counts of micro-batches with and without a multiple; rows of the micro-batches of replica 0 with it. */
static void test_build_counts_are_multiples(void **state)
{
    static const int64_t equal[] = {100, 100, 100, 100, 100, 100, 100, 100};
    static const int64_t long_one[] = {10, 10, 10, 10, 100, 90, 80, 70};
    static const struct {
        const char *label;
        const int64_t *seqlens;
        bool is_dynamic;
        int64_t size; /* tokens, or rows */
        int32_t num_replicas, multiple, num_micro, rounded;
        int64_t rows[8]; /* of the micro-batches of replica 0 */
    } cases[] = {
        {"fixed, divides", equal, false, 2, 1, 2, 4, 4, {2, 2, 2, 2}},
        {"fixed, one more", equal, false, 3, 1, 4, 3, 4, {3, 3, 2, 0}},
        {"fixed, more than rows", equal, false, 1, 2, 8, 4, 8, {1, 1, 1, 1, 0, 0, 0, 0}},
        {"dynamic, divides", equal, true, 200, 1, 2, 4, 4, {2, 2, 2, 2}},
        {"dynamic, smaller ones", equal, true, 300, 1, 4, 3, 4, {2, 2, 2, 2}},
        {"dynamic, empty ones at both ends", equal, true, 100, 2, 3, 4, 6, {0, 1, 1, 1, 1, 0}},
        {"dynamic, one is empty", equal, true, 400, 2, 5, 1, 5, {0, 1, 1, 1, 1}},
        {"dynamic, of the fullest replica", long_one, true, 120, 2, 4, 4, 4, {1, 1, 1, 1}},
        {"one micro-batch", equal, true, 1000, 1, 1, 1, 1, {8}},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_plan_request request = {.num_rows = 8,
                                          .num_replicas = cases[i].num_replicas,
                                          .seqlens = cases[i].seqlens,
                                          .use_dynamic_bsz = cases[i].is_dynamic,
                                          .max_token_len = cases[i].size,
                                          .micro_batch_rows = cases[i].size};
        struct rk_plan plan;

        print_message("%s\n", cases[i].label);
        assert_ok(rk_plan_build(&plan, arena, &request));
        assert_int_equal(plan.mini[0].num_micro, cases[i].num_micro);
        request.micro_multiple = cases[i].multiple;
        assert_ok(rk_plan_build(&plan, arena, &request));
        assert_int_equal(plan.mini[0].num_micro, cases[i].rounded);
        assert_int_equal(plan.mini[0].num_entries, cases[i].rounded * cases[i].num_replicas);
        for (int32_t k = 0; k < cases[i].rounded; k++)
            assert_int_equal(plan.mini[0].micro[k].num_rows, cases[i].rows[k]);
        assert_int_equal(plan.mini[0].num_sequences, 8);
        assert_ok(rk_plan_check(&plan, 8 / cases[i].num_replicas, cases[i].num_replicas));
    }
}

static void test_build_denominators_are_global(void **state)
{
    static const int64_t seqlens[] = {5, 5, 5, 5, 5, 5, 5, 5};
    static const int64_t loss_tokens[] = {1, 2, 0, 0, 3, 0, 0, 0};
    struct rk_plan_request request = {.num_rows = 8,
                                      .num_replicas = 2,
                                      .seqlens = seqlens,
                                      .loss_tokens = loss_tokens,
                                      .mini_batch_rows = 4,
                                      .micro_batch_rows = 1};
    struct rk_plan plan;

    (void)state;
    assert_ok(rk_plan_build(&plan, arena, &request));
    assert_int_equal(plan.num_mini, 2);
    assert_int_equal(plan.mini[0].num_tokens, 6);    /* rows 0, 1 of both replicas */
    assert_int_equal(plan.mini[0].num_sequences, 4); /* with the row that has no token in the loss */
    assert_int_equal(plan.mini[1].num_tokens, 1);    /* no token counts: the sum 0 is divided by 1 */
    assert_int_equal(plan.mini[1].num_sequences, 4);
    assert_ok(rk_plan_check(&plan, 4, 2));
}

static void test_build_epochs_repeat_the_mini_batches(void **state)
{
    struct rk_plan_request request = {.num_rows = 8,
                                      .num_replicas = 2,
                                      .seqlens = lengths,
                                      .mini_batch_rows = 2,
                                      .epochs = 3,
                                      .micro_batch_rows = 1};
    struct rk_plan plan, shuffled, again;
    bool is_shuffled = false;

    (void)state;
    assert_ok(rk_plan_build(&plan, arena, &request));
    assert_int_equal(plan.num_mini, 12);
    for (int64_t m = 0; m < 12; m++)
        assert_int_equal(plan.mini[m].micro[0].rows[0], m % 4);
    request.shuffle = true;
    request.seed = 5;
    assert_ok(rk_plan_build(&shuffled, arena, &request));
    assert_ok(rk_plan_build(&again, arena, &request));
    for (int64_t epoch = 0; epoch < 3; epoch++) {
        uint32_t seen = 0;

        for (int64_t m = 0; m < 4; m++) {
            uint32_t row = shuffled.mini[4 * epoch + m].micro[0].rows[0];

            assert_int_equal(row, again.mini[4 * epoch + m].micro[0].rows[0]);
            seen |= 1u << row;
            is_shuffled = is_shuffled || row != m;
        }
        assert_int_equal(seen, 0xf);
    }
    assert_true(is_shuffled);
    assert_ok(rk_plan_check(&shuffled, 4, 2));
}

/* --- groups --- */

/* Goal: pairs stay together and are balanced by their sums; the layout of groups equals that of rows without
 * groups. */
static void test_layout_groups_stay_together(void **state)
{
    static const int64_t seqlens[] = {100, 900, 300, 750, 500, 200, 800, 400};
    static const int64_t sums[] = {1000, 1050, 700, 1200};
    struct rk_layout_request pairs = {
        .num_rows = 8, .num_replicas = 2, .seqlens = seqlens, .balance = true, .group_size = 2};
    struct rk_layout_request single = {.num_rows = 4, .num_replicas = 2, .seqlens = sums, .balance = true};
    struct rk_seqlen_stats stats;
    int64_t order[8], groups[4];

    (void)state;
    for (int variant = 0; variant < 4; variant++) {
        pairs.shuffle = single.shuffle = variant & 1;
        pairs.balance = single.balance = variant & 2;
        pairs.workload.linear = single.workload.linear = 1 << 20; /* the sum of squares has no influence */
        assert_ok(rk_plan_layout(order, &pairs));
        assert_ok(rk_plan_layout(groups, &single));
        for (int i = 0; i < 8; i++)
            assert_int_equal(order[i], 2 * groups[i / 2] + i % 2);
    }
    stats = rk_plan_seqlen_stats(seqlens, order, 8, 2);
    assert_true(stats.balanced_min == 1900 && stats.balanced_max == 2050);
}

static void test_build_groups_are_in_one_micro_batch(void **state)
{
    struct rk_plan_request request = {.num_rows = 8,
                                      .num_replicas = 1,
                                      .seqlens = lengths,
                                      .use_dynamic_bsz = true,
                                      .max_token_len = 1200,
                                      .group_size = 2,
                                      .workload = verl_7b};
    struct rk_plan plan;
    uint32_t seen = 0;

    (void)state;
    for (int variant = 0; variant < 2; variant++, request.use_dynamic_bsz = false) {
        request.micro_batch_rows = variant ? 2 : 0;
        seen = 0;
        assert_ok(rk_plan_build(&plan, arena, &request));
        assert_int_equal(plan.mini[0].num_micro, 4); /* no two of the sums 1000, 1000, 700, 1200 fit */
        for (int i = 0; i < 4; i++) {
            const struct rk_micro_batch *micro = &plan.mini[0].micro[i];

            assert_int_equal(micro->num_rows, 2);
            assert_int_equal(micro->rows[0] % 2, 0);
            assert_int_equal(micro->rows[1], micro->rows[0] + 1);
            assert_int_equal(micro->num_tokens, lengths[micro->rows[0]] + lengths[micro->rows[1]]);
            seen |= 3u << micro->rows[0];
        }
        assert_int_equal(seen, 0xff);
        assert_ok(rk_plan_check(&plan, 8, 1));
    }
}

static void test_groups_that_do_not_divide_are_refused(void **state)
{
    static const struct {
        int32_t num_replicas, group_size;
        int64_t max_token_len, micro_batch_rows;
        const char *error;
    } cases[] = {
        {1, 3, 5000, 0, "group_size=3 does not divide the 8 rows"},
        {4, 4, 5000, 0, "group_size=4 does not divide the 2 rows of a mini-batch on one of 4 replicas"},
        {1, -2, 5000, 0, "group_size=-2"},
        {1, 2, 1100, 0, "rows 6 to 7, a group, have 1200 tokens, max_token_len is 1100"},
        {1, 2, 0, 3, "group_size=2 does not divide micro_batch_rows=3"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_plan_request request = {.num_rows = 8,
                                          .num_replicas = cases[i].num_replicas,
                                          .seqlens = lengths,
                                          .use_dynamic_bsz = cases[i].max_token_len != 0,
                                          .max_token_len = cases[i].max_token_len,
                                          .micro_batch_rows = cases[i].micro_batch_rows,
                                          .group_size = cases[i].group_size};
        struct rk_layout_request layout = {.num_rows = 8,
                                           .num_replicas = cases[i].num_replicas,
                                           .seqlens = lengths,
                                           .group_size = cases[i].group_size};
        struct rk_plan plan;
        int64_t order[8];

        assert_fails(rk_plan_build(&plan, arena, &request), RK_INVALID_ARGUMENT, cases[i].error);
        if (i < 3)
            assert_fails(rk_plan_layout(order, &layout), RK_INVALID_ARGUMENT, cases[i].error);
    }
}

static void check_random_plan(struct rk_rng *rng)
{
    int32_t num_replicas = 1 + (int32_t)rk_rng_next_below(rng, 4);
    int32_t group_size = 1 + (int32_t)rk_rng_next_below(rng, 2);
    int64_t mini_rows = num_replicas * group_size * (1 + rk_rng_next_below(rng, 6));
    int64_t num_rows = mini_rows * (1 + rk_rng_next_below(rng, 4)), longest = 0, seqlens[4 * 2 * 6 * 4];
    struct rk_plan_request request = {.num_rows = num_rows,
                                      .num_replicas = num_replicas,
                                      .seqlens = seqlens,
                                      .mini_batch_rows = mini_rows,
                                      .group_size = group_size,
                                      .epochs = (int32_t)rk_rng_next_below(rng, 3),
                                      .shuffle = rk_rng_next_below(rng, 2),
                                      .use_dynamic_bsz = true,
                                      .micro_multiple = (int32_t)rk_rng_next_below(rng, 6),
                                      .workload = verl_7b};
    struct rk_plan plan;

    for (int64_t i = 0; i < num_rows; i++) {
        seqlens[i] = rk_rng_next_below(rng, 1000);
        longest = RK_MAX(longest, seqlens[i]);
    }
    request.max_token_len = group_size * longest + rk_rng_next_below(rng, 2000);
    assert_ok(rk_plan_build(&plan, arena, &request));
    assert_ok(rk_plan_check(&plan, num_rows / num_replicas, num_replicas));
    for (int64_t m = 0; m < plan.num_mini; m++) {
        assert_int_equal(plan.mini[m].num_micro % RK_MAX(request.micro_multiple, 1), 0);
        for (int64_t i = 0; i < plan.mini[m].num_entries; i++)
            assert_true(plan.mini[m].micro[i].num_tokens <= (uint64_t)request.max_token_len);
        for (int64_t i = 0; i < plan.mini[m].num_entries; i++) {
            const struct rk_micro_batch *micro = &plan.mini[m].micro[i];

            for (int64_t k = 0; k < micro->num_rows; k++)
                assert_int_equal(micro->rows[k] % group_size, k % group_size);
        }
    }
}

static void test_build_random_plans_are_complete_and_keep_to_the_budget(void **state)
{
    struct rk_rng rng;

    (void)state;
    rk_rng_init(&rng, rk_test_seed(), 2);
    for (int i = 0; i < 300; i++) {
        check_random_plan(&rng);
        rk_arena_reset(arena);
    }
}

static void test_build_bad_requests_are_refused(void **state)
{
    static const struct {
        const char *label;
        struct rk_plan_request request;
        rk_code_t code;
        const char *error;
    } cases[] = {
        {"row over the budget",
         {.num_rows = 8, .num_replicas = 1, .use_dynamic_bsz = true, .max_token_len = 899},
         RK_INVALID_ARGUMENT,
         "row 1 has 900 tokens, max_token_len is 899"},
        {"no micro-batch rows",
         {.num_rows = 8, .num_replicas = 1},
         RK_INVALID_ARGUMENT,
         "micro_batch_rows=0"},
        {"replicas do not divide",
         {.num_rows = 8, .num_replicas = 3, .micro_batch_rows = 1},
         RK_INVALID_ARGUMENT,
         "3 replicas do not divide"},
        {"mini-batches do not divide",
         {.num_rows = 8, .num_replicas = 1, .mini_batch_rows = 5, .micro_batch_rows = 1},
         RK_INVALID_ARGUMENT,
         "mini_batch_rows=5 does not divide the 8 rows"},
        {"negative epochs",
         {.num_rows = 8, .num_replicas = 1, .micro_batch_rows = 1, .epochs = -1},
         RK_INVALID_ARGUMENT,
         "epochs=-1"},
        {"negative multiple",
         {.num_rows = 8, .num_replicas = 1, .micro_batch_rows = 1, .micro_multiple = -1},
         RK_INVALID_ARGUMENT,
         "micro_multiple=-1, expected 0 to 65536"},
        {"more empty micro-batches than the wire takes",
         {.num_rows = 8, .num_replicas = 1, .micro_batch_rows = 1, .micro_multiple = 65536},
         RK_RESOURCE_EXHAUSTED,
         "more than 65536 mini- and micro-batches"},
        {"no rows", {.num_replicas = 1, .micro_batch_rows = 1}, RK_INVALID_ARGUMENT, "0 rows for 1 replicas"},
        {"more than the wire takes",
         {.num_rows = 8, .num_replicas = 1, .micro_batch_rows = 1, .epochs = RK_LIMIT_MICRO_BATCHES / 9 + 1},
         RK_RESOURCE_EXHAUSTED,
         "more than 65536 mini- and micro-batches"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_plan_request request = cases[i].request;
        struct rk_plan plan;

        print_message("%s\n", cases[i].label);
        request.seqlens = lengths;
        assert_fails(rk_plan_build(&plan, arena, &request), cases[i].code, cases[i].error);
        assert_int_equal(plan.num_mini, 0);
    }
}

static void test_build_without_arena_memory_is_resource_exhausted(void **state)
{
    struct rk_plan_request request = {
        .num_rows = 8, .num_replicas = 1, .seqlens = lengths, .micro_batch_rows = 1};
    struct rk_arena *small = rk_arena_create(64, 64);
    struct rk_plan plan;

    (void)state;
    assert_code(rk_plan_build(&plan, small, &request), RK_RESOURCE_EXHAUSTED);
    rk_arena_destroy(small);
}

/* --- received plans --- */

static const uint32_t rows_01[] = {0, 1}, rows_0[] = {0}, rows_1[] = {1}, rows_2[] = {2}, rows_00[] = {0, 0};

/* Two replicas of two rows. */
static const struct {
    const char *label;
    struct rk_mini_batch mini;
    struct rk_micro_batch micro[4];
    int64_t num_mini;  /* the same mini-batch several times: epochs */
    const char *error; /* NULL: accepted */
} plan_cases[] = {
    {"one micro-batch each",
     {.num_micro = 1, .num_entries = 2, .num_tokens = 1, .num_sequences = 4},
     {{.num_rows = 2, .rows = rows_01}, {.num_rows = 2, .rows = rows_01}},
     1,
     NULL},
    {"two each, in another order, two epochs",
     {.num_micro = 2, .num_entries = 4, .num_tokens = 1, .num_sequences = 4},
     {{.num_rows = 1, .rows = rows_1},
      {.num_rows = 1, .rows = rows_0},
      {.num_rows = 1, .rows = rows_0},
      {.num_rows = 1, .rows = rows_1}},
     2,
     NULL},
    {"an empty micro-batch",
     {.num_micro = 2, .num_entries = 4, .num_tokens = 1, .num_sequences = 4},
     {{.num_rows = 2, .rows = rows_01},
      {0},
      {.num_rows = 1, .rows = rows_0},
      {.num_rows = 1, .rows = rows_1}},
     1,
     NULL},
    {"no mini-batches", {0}, {{0}}, 0, "the plan has no mini-batches"},
    {"no micro-batches", {.num_tokens = 1, .num_sequences = 1}, {{0}}, 1, "mini-batch 0 has 0 entries"},
    {"entries of one replica only",
     {.num_micro = 1, .num_entries = 1, .num_tokens = 1, .num_sequences = 4},
     {{.num_rows = 2, .rows = rows_01}},
     1,
     "mini-batch 0 has 1 entries, expected num_micro=1 for each of 2 replicas"},
    {"a row beyond the chunk",
     {.num_micro = 1, .num_entries = 2, .num_tokens = 1, .num_sequences = 4},
     {{.num_rows = 2, .rows = rows_01}, {.num_rows = 2, .rows = (const uint32_t[]){1, 2}}},
     1,
     "micro-batch 0: row 2 of a chunk with 2 rows"},
    {"a row twice in one micro-batch",
     {.num_micro = 1, .num_entries = 2, .num_tokens = 1, .num_sequences = 4},
     {{.num_rows = 2, .rows = rows_01}, {.num_rows = 2, .rows = rows_00}},
     1,
     "micro-batch 0: row 0 comes twice"},
    {"a row twice in one mini-batch",
     {.num_micro = 2, .num_entries = 4, .num_tokens = 1, .num_sequences = 4},
     {{.num_rows = 2, .rows = rows_01},
      {0},
      {.num_rows = 1, .rows = rows_0},
      {.num_rows = 1, .rows = rows_0}},
     1,
     "micro-batch 1: row 0 comes twice"},
    {"a row is missing",
     {.num_micro = 1, .num_entries = 2, .num_tokens = 1, .num_sequences = 4},
     {{.num_rows = 2, .rows = rows_01}, {.num_rows = 1, .rows = rows_0}},
     1,
     "the plan names 3 rows, the batch has 2 for each of 2 replicas"},
    {"a row is missing in all epochs",
     {.num_micro = 1, .num_entries = 2, .num_tokens = 1, .num_sequences = 4},
     {{.num_rows = 2, .rows = rows_01}, {.num_rows = 1, .rows = rows_0}},
     2,
     "row 1 of replica 1 comes 0 times, the first one 2"},
    {"no tokens to divide by",
     {.num_micro = 1, .num_entries = 2, .num_sequences = 4},
     {{.num_rows = 2, .rows = rows_01}, {.num_rows = 2, .rows = rows_01}},
     1,
     "mini-batch 0 has rows, but num_tokens=0"},
    {"no sequences to divide by",
     {.num_micro = 1, .num_entries = 2, .num_tokens = 1},
     {{.num_rows = 2, .rows = rows_01}, {.num_rows = 2, .rows = rows_01}},
     1,
     "and num_sequences=0"},
    {"far row",
     {.num_micro = 1, .num_entries = 2, .num_tokens = 1, .num_sequences = 4},
     {{.num_rows = 2, .rows = (const uint32_t[]){0, UINT32_MAX}}, {.num_rows = 2, .rows = rows_01}},
     1,
     "row 4294967295"},
};

static void test_check(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(plan_cases); i++) {
        struct rk_micro_batch micro[4];
        struct rk_mini_batch mini[2];
        struct rk_plan plan = {.num_mini = plan_cases[i].num_mini, .mini = mini};

        print_message("%s\n", plan_cases[i].label);
        memcpy(micro, plan_cases[i].micro, sizeof(micro));
        for (int k = 0; k < 2; k++) {
            mini[k] = plan_cases[i].mini;
            mini[k].micro = micro;
        }
        if (plan_cases[i].error)
            assert_fails(rk_plan_check(&plan, 2, 2), RK_INVALID_ARGUMENT, plan_cases[i].error);
        else
            assert_ok(rk_plan_check(&plan, 2, 2));
    }
}

/* A batch that claims more rows than a plan can have must not cause an allocation. */
static void test_check_huge_batch_is_refused_at_once(void **state)
{
    struct rk_micro_batch micro = {.num_rows = 1, .rows = rows_2};
    struct rk_mini_batch mini = {
        .num_micro = 1, .num_entries = 1, .micro = &micro, .num_tokens = 1, .num_sequences = 1};
    struct rk_plan plan = {.num_mini = 1, .mini = &mini};

    (void)state;
    rk_alloc_fail_after(1);
    assert_fails(rk_plan_check(&plan, INT64_MAX, 1), RK_INVALID_ARGUMENT, "the plan names 1 rows");
    rk_alloc_fail_after(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout_worked_example),
        cmocka_unit_test(test_layout_without_balance_deals_in_order),
        cmocka_unit_test(test_layout_composition_of_mini_batches_does_not_depend_on_replicas),
        cmocka_unit_test(test_layout_same_seed_same_order_other_seed_another),
        cmocka_unit_test(test_layout_bad_requests_are_refused),
        cmocka_unit_test(test_build_worked_examples),
        cmocka_unit_test(test_build_flat_rows_invert_to_the_order_of_the_rows),
        cmocka_unit_test(test_build_replicas_have_equal_counts),
        cmocka_unit_test(test_build_counts_are_multiples),
        cmocka_unit_test(test_build_denominators_are_global),
        cmocka_unit_test(test_build_epochs_repeat_the_mini_batches),
        cmocka_unit_test(test_layout_groups_stay_together),
        cmocka_unit_test(test_build_groups_are_in_one_micro_batch),
        cmocka_unit_test(test_groups_that_do_not_divide_are_refused),
        cmocka_unit_test(test_build_random_plans_are_complete_and_keep_to_the_budget),
        cmocka_unit_test(test_build_bad_requests_are_refused),
        cmocka_unit_test(test_build_without_arena_memory_is_resource_exhausted),
        cmocka_unit_test(test_check),
        cmocka_unit_test(test_check_huge_batch_is_refused_at_once),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
