/* The losses of pairs. */
#include "base/math/rk_preference.h"

#include <math.h>

#include "tests/support/test.h"

/* D = 3, Dn = 1 with these values for beta = 0.1. */
static const struct rk_preference_side chosen = {2.0, 4.0}, rejected = {-1.0, 2.0};

static const struct {
    const char *loss_type;
    double label_smoothing, loss;
} cases[] = {
    {"sigmoid", 0.0, 0.554355},
    {"sigmoid", 0.1, 0.584355},
    {"robust", 0.1, 0.516855},
    {"hinge", 0.0, 0.7},
    {"ipo", 0.0, 16.0},
    {"ipo_sum", 0.0, 4.0},
    {"sigmoid_norm", 0.0, 0.644397},
    {"exo_pair", 0.1, 0.358383},
    {"apo_zero", 0.0, 0.925187},
    {"apo_down", 0.0, 0.975391},
    {"nca_pair", 0.0, 1.319407},
    {"sppo_hard", 0.0, 25.0},
};

/* Goal: the losses of a hand-computed pair, and derivatives that equal central differences. */
static void test_preference_worked_pair_and_derivatives(void **state)
{
    const double step = 1e-6;

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_preference_slope slope, up, down;
        struct rk_preference pair;

        assert_ok(rk_preference_read(&pair, cases[i].loss_type, 0.1, cases[i].label_smoothing));
        slope = rk_preference_of(&pair, &chosen, &rejected);
        assert_below(cases[i].loss_type, fabs(slope.loss - cases[i].loss), RK_TOL_SIX_DECIMALS);
        for (int side = 0; side < 2; side++) {
            struct rk_preference_side moved[2] = {chosen, rejected};
            double derivative = side == 0 ? slope.chosen : slope.rejected;

            moved[side].log_ratio += step;
            up = rk_preference_of(&pair, &moved[0], &moved[1]);
            moved[side].log_ratio -= 2.0 * step;
            down = rk_preference_of(&pair, &moved[0], &moved[1]);
            assert_below(cases[i].loss_type, fabs((up.loss - down.loss) / (2.0 * step) - derivative),
                         RK_TOL_GRADIENT_F64);
        }
    }
}

static void test_preference_read_names_the_key(void **state)
{
    struct rk_preference pair;

    (void)state;
    assert_fails(rk_preference_read(&pair, "aot", 0.1, 0.0), RK_INVALID_ARGUMENT,
                 "loss_type: expected one of sigmoid|robust|hinge|");
    assert_fails(rk_preference_read(&pair, "exo_pair", 0.1, 0.0), RK_INVALID_ARGUMENT,
                 "label_smoothing: loss_type exo_pair needs a number above 0, got 0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_preference_worked_pair_and_derivatives),
        cmocka_unit_test(test_preference_read_names_the_key),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
