/* Goal: in the rounds of an exchange every row reaches the rank of its expert exactly once, no rank receives
 * more than its capacity, and the order of an expert's rows is the same for every capacity. Method: a list of
 * all rows, by loops over experts and ranks, is what the rounds must add up to. */
#include "tests/support/test.h"

#include "base/rk_rng.h"
#include "engine/nn/moe_exchange_plan.h"

#define MAX_RANKS   4
#define MAX_EXPERTS 12
#define MAX_ROWS    400

struct exchange_case {
    const char *label;
    int32_t num_ranks;
    int64_t experts_per_rank, capacity;
    int32_t most;   /* rows of one expert on one rank: 0 to this many */
    int64_t expert; /* the one that has all rows; -1: random */
};

static const struct exchange_case cases[] = {
    {"one rank, one round", 1, 3, 100, 9, -1},
    {"one rank, a row a round", 1, 3, 1, 5, -1},
    {"two ranks, enough room", 2, 4, 400, 9, -1},
    {"two ranks, rounds of seven", 2, 4, 7, 9, -1},
    {"four ranks, rounds of 16", 4, 3, 16, 6, -1},
    {"four ranks, an expert or two a round", 4, 3, 25, 6, -1},
    {"four ranks, all on one expert", 4, 2, 5, 20, 5},
    {"four ranks, a round that is exactly full", 4, 1, 80, 20, 2},
    {"four ranks, one round", 4, 3, 100, 8, -1},
    {"no rows", 2, 2, 8, 0, -1},
};

static void fill_offsets(int32_t *offsets, const struct exchange_case *c)
{
    int64_t experts = c->num_ranks * c->experts_per_rank;
    struct rk_rng rng;

    rk_rng_init(&rng, 7, 0);
    for (int32_t rank = 0; rank < c->num_ranks; rank++) {
        int32_t *own = offsets + rank * (experts + 1);

        own[0] = 0;
        for (int64_t e = 0; e < experts; e++) {
            int32_t count = (int32_t)rk_rng_next_below(&rng, c->most + 1);

            own[e + 1] = own[e] + (c->expert < 0 || c->expert == e ? count : 0);
        }
    }
}

/* A row by where it comes from. */
struct origin {
    int32_t rank;
    int64_t row;
};

/* The rows of the experts of `to`, by expert, then by rank; returns their number. */
static int64_t list_rows(struct origin *list, const struct rk_moe_exchange_plan *plan, int32_t to)
{
    int64_t experts = plan->num_ranks * plan->experts_per_rank, count = 0;

    for (int64_t e = to * plan->experts_per_rank; e < (to + 1) * plan->experts_per_rank; e++) {
        for (int32_t from = 0; from < plan->num_ranks; from++) {
            const int32_t *offsets = plan->offsets + from * (experts + 1);

            for (int32_t row = offsets[e]; row < offsets[e + 1]; row++)
                list[count++] = (struct origin){from, row};
        }
    }
    return count;
}

/* What the rank of the plan receives in a round, as it arrives. */
static int64_t receive(struct origin *arrived, const struct rk_moe_exchange_plan *plan, int64_t round)
{
    int64_t count = 0;

    for (int32_t from = 0; from < plan->num_ranks; from++) {
        struct rk_moe_span span = rk_moe_exchange_span(plan, from, plan->rank, round);

        for (int64_t i = 0; i < span.count; i++)
            arrived[count++] = (struct origin){from, span.begin + i};
    }
    return count;
}

static int64_t expert_of(const struct rk_moe_exchange_plan *plan, const struct origin *row)
{
    const int32_t *offsets = plan->offsets + row->rank * (plan->num_ranks * plan->experts_per_rank + 1);
    int64_t expert = 0;

    while (offsets[expert + 1] <= row->row)
        expert++;
    return expert;
}

/* Sorted by expert, those of one in the order in which they arrive: what comes next of what is wanted. */
static void check_round(const struct rk_moe_exchange_plan *plan, const struct origin *arrived, int64_t count,
                        const struct origin *wanted)
{
    int64_t done = 0;

    for (int64_t e = 0; e < plan->num_ranks * plan->experts_per_rank; e++) {
        for (int64_t i = 0; i < count; i++) {
            if (expert_of(plan, &arrived[i]) != e)
                continue;
            assert_int_equal(arrived[i].rank, wanted[done].rank);
            assert_int_equal(arrived[i].row, wanted[done].row);
            done++;
        }
    }
    assert_int_equal(done, count);
}

/* Whether a round has rows of an expert. */
static bool has_rows(const struct rk_moe_exchange_plan *plan, const struct origin *arrived, int64_t count,
                     int64_t expert)
{
    for (int64_t i = 0; i < count; i++) {
        if (expert_of(plan, &arrived[i]) == expert)
            return true;
    }
    return false;
}

/* Checks that an expert is in as few rounds as possible if its rows fit a buffer: in one. */
static void check_splits(const struct rk_moe_exchange_plan *plan)
{
    int64_t experts = plan->num_ranks * plan->experts_per_rank;
    struct origin arrived[MAX_ROWS];

    for (int64_t e = plan->rank * plan->experts_per_rank; e < (plan->rank + 1) * plan->experts_per_rank;
         e++) {
        int64_t num_rows = 0, num_rounds = 0;

        for (int32_t from = 0; from < plan->num_ranks; from++)
            num_rows += plan->offsets[from * (experts + 1) + e + 1] - plan->offsets[from * (experts + 1) + e];
        for (int64_t round = 0; round < plan->num_rounds; round++)
            num_rounds += has_rows(plan, arrived, receive(arrived, plan, round), e);
        if (num_rows <= plan->capacity)
            assert_int_equal(num_rounds, num_rows > 0);
    }
}

static void check_rank(const struct rk_moe_exchange_plan *plan)
{
    struct origin wanted[MAX_ROWS], arrived[MAX_ROWS];
    int64_t done = 0, total = list_rows(wanted, plan, plan->rank);

    for (int64_t round = 0; round < plan->num_rounds; round++) {
        int64_t count = receive(arrived, plan, round);

        assert_true(count <= plan->capacity);
        check_round(plan, arrived, count, wanted + done);
        done += count;
    }
    assert_int_equal(done, total);
    check_splits(plan);
}

static void test_rounds_hand_over_every_row_once_and_in_order(void **state)
{
    int32_t offsets[MAX_RANKS * (MAX_EXPERTS + 1)];

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        const struct exchange_case *c = &cases[i];
        struct rk_moe_exchange_plan plan = {.num_ranks = c->num_ranks,
                                            .experts_per_rank = c->experts_per_rank,
                                            .capacity = c->capacity,
                                            .offsets = offsets};

        print_message("%s\n", c->label);
        fill_offsets(offsets, c);
        rk_moe_exchange_plan_init(&plan);
        assert_int_equal(plan.num_rounds == 0, c->most == 0);
        for (plan.rank = 0; plan.rank < c->num_ranks; plan.rank++)
            check_rank(&plan);
    }
}

/* All of 4 x 40 rows for one rank, of which it takes 50 a round: three full rounds and one of 10. */
static void test_the_fullest_rank_decides_on_the_rounds(void **state)
{
    static const int32_t offsets[4][5] = {
        {0, 0, 40, 40, 40}, {0, 0, 40, 40, 40}, {0, 0, 40, 40, 40}, {0, 0, 40, 40, 40}};
    struct rk_moe_exchange_plan plan = {
        .num_ranks = 4, .experts_per_rank = 1, .capacity = 50, .offsets = offsets[0]};
    struct rk_moe_span span;

    (void)state;
    rk_moe_exchange_plan_init(&plan);
    assert_int_equal(plan.num_rounds, 4);
    span = rk_moe_exchange_span(&plan, 1, 1, 0); /* rows 40 to 49 of the list */
    assert_int_equal(span.begin, 0);
    assert_int_equal(span.count, 10);
    span = rk_moe_exchange_span(&plan, 1, 1, 1);
    assert_int_equal(span.begin, 10);
    assert_int_equal(span.count, 30);
    assert_int_equal(rk_moe_exchange_span(&plan, 3, 1, 3).count, 10);
    assert_int_equal(rk_moe_exchange_span(&plan, 1, 0, 0).count, 0);
}

/* 6, 5, 3, 12 and 1 rows, 10 a round: 6; 5 and 3, and 2 of the 12 that no round has room for; 10; 1. */
static void test_experts_that_fit_a_round_are_not_split(void **state)
{
    static const int32_t offsets[6] = {0, 6, 11, 14, 26, 27};
    static const struct rk_moe_span rounds[] = {{0, 6}, {6, 10}, {16, 10}, {26, 1}};
    struct rk_moe_exchange_plan plan = {
        .num_ranks = 1, .experts_per_rank = 5, .capacity = 10, .offsets = offsets};

    (void)state;
    rk_moe_exchange_plan_init(&plan);
    assert_int_equal(plan.num_rounds, RK_ARRAY_LEN(rounds));
    for (int64_t i = 0; i < plan.num_rounds; i++) {
        struct rk_moe_span span = rk_moe_exchange_span(&plan, 0, 0, i);

        assert_int_equal(span.begin, rounds[i].begin);
        assert_int_equal(span.count, rounds[i].count);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounds_hand_over_every_row_once_and_in_order),
        cmocka_unit_test(test_experts_that_fit_a_round_are_not_split),
        cmocka_unit_test(test_the_fullest_rank_decides_on_the_rounds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
