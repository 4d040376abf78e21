/* Aggregation modes: packed weights and a padded matrix give the same numbers. */
#include "base/math/rk_loss_agg.h"

#include <math.h>

#include "tests/support/test.h"

/* L = [1 2 . .], [3 3 3 3], [1 1 . .]: 8 tokens in 3 rows, sums 3, 12, 2. */
static const float loss[3 * 4] = {1, 2, NAN, NAN, 3, 3, 3, 3, 1, 1, NAN, NAN};
static const int64_t loss_mask[3 * 4] = {1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0};

static const struct {
    const char *name;
    double expected;
} cases[RK_AGG_COUNT] = {
    [RK_AGG_TOKEN_MEAN] = {"token-mean", 17.0 / 8.0},
    [RK_AGG_TOKEN_SUM] = {"token-sum", 17.0},
    [RK_AGG_SEQ_MEAN_TOKEN_SUM] = {"seq-mean-token-sum", 17.0 / 3.0},
    [RK_AGG_SEQ_MEAN_TOKEN_MEAN] = {"seq-mean-token-mean", (1.5 + 3.0 + 1.0) / 3.0},
    [RK_AGG_SEQ_MEAN_TOKEN_SUM_NORM] = {"seq-mean-token-sum-norm", 17.0 / 12.0},
};

static rk_loss_agg_mode_t mode_of(int i)
{
    rk_loss_agg_mode_t mode;

    assert_ok(rk_loss_agg_mode_parse("loss_agg_mode", cases[i].name, &mode));
    assert_int_equal(mode, i);
    assert_string_equal(rk_loss_agg_mode_name(mode), cases[i].name);
    return mode;
}

static void test_aggregate_worked_matrix_gives_worked_values(void **state)
{
    static const int64_t nothing[3 * 4] = {0};
    const struct rk_loss_matrix matrix = {3, 4, loss, loss_mask}, empty = {3, 4, loss, nothing};

    (void)state;
    for (int i = 0; i < RK_AGG_COUNT; i++) {
        assert_below(cases[i].name, fabs(rk_loss_aggregate(&matrix, mode_of(i), 4.0) - cases[i].expected),
                     RK_TOL_F32_ELEMENT);
        assert_true(rk_loss_aggregate(&empty, mode_of(i), 4.0) == 0.0);
    }
}

/* Goal: the same losses packed, with a sequence without counted tokens and a masked token. */
static void test_weights_of_packed_sequences_give_the_same(void **state)
{
    static const struct rk_loss_denominators global = {.num_tokens = 8, .num_sequences = 3, .scale = 4};
    static const float packed[10] = {1, 2, NAN, 3, 3, 3, NAN, 3, 1, 1};
    static const uint8_t mask[10] = {1, 1, 0, 1, 1, 1, 0, 1, 1, 1};
    static const int32_t cu_seqlens[5] = {0, 2, 3, 8, 10};

    (void)state;
    for (int i = 0; i < RK_AGG_COUNT; i++) {
        double weight[10], sum = 0.0;

        rk_loss_weights(weight, mode_of(i), mask, cu_seqlens, 4, &global);
        for (int t = 0; t < 10; t++) {
            if (mask[t])
                sum += weight[t] * (double)packed[t];
            else
                assert_true(weight[t] == 0.0);
        }
        assert_below(cases[i].name, fabs(sum - cases[i].expected), 1e-12);
    }
}

static void test_mode_parse_unknown_name_fails(void **state)
{
    static const char *const names[] = {"", "token_mean", "token-mean ", "mean"};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(names); i++) {
        rk_loss_agg_mode_t mode;

        assert_fails(rk_loss_agg_mode_parse("actor.loss_agg_mode", names[i], &mode), RK_INVALID_ARGUMENT,
                     "actor.loss_agg_mode");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_aggregate_worked_matrix_gives_worked_values),
        cmocka_unit_test(test_weights_of_packed_sequences_give_the_same),
        cmocka_unit_test(test_mode_parse_unknown_name_fails),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
