/* The KL estimators. */
#include "base/math/rk_kl.h"

#include <math.h>

#include "tests/support/test.h"

/* Goal: values and gradients of all estimators equal the published ones, including clamps. */
static void test_kl_estimate_worked_values(void **state)
{
    static const struct {
        const char *name;
        double log_prob, ref, value, grad;
    } cases[] = {
        {"k1", -1.0, -1.2, 0.2, 1.0},
        {"kl", -2.0, -1.5, -0.5, 1.0},
        {"k1", -0.5, -0.5, 0.0, 1.0},
        {"abs", -1.0, -1.2, 0.2, 1.0},
        {"abs", -2.0, -1.5, 0.5, -1.0},
        {"abs", -0.5, -0.5, 0.0, 0.0},
        {"k2", -1.0, -1.2, 0.02, 0.2},
        {"mse", -2.0, -1.5, 0.125, -0.5},
        {"k2", -0.5, -0.5, 0.0, 0.0},
        {"k3", -1.0, -1.2, 0.018731, 0.181269},
        {"low_var_kl", -2.0, -1.5, 0.148721, -0.648721},
        {"k3", -0.5, -0.5, 0.0, 0.0},
        {"k3", -6.0, -1.0, 10.0, 0.0},  /* raw value 142.41: the outer clamp */
        {"k3", -1.0, -31.0, 10.0, 0.0}, /* y = -30: both clamps */
        {"k1+", -1.0, -1.2, 0.2, 0.2},
        {"abs+", -2.0, -1.5, 0.5, -0.5},
        {"k2+", -2.0, -1.5, 0.125, -0.5},
        {"k3+", -2.0, -1.5, 0.148721, -0.5},
        {"low_var_kl+", -6.0, -1.0, 10.0, -5.0},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        rk_kl_type_t type;
        bool straight_through;
        double value, grad;

        assert_ok(rk_kl_type_parse("kl_loss_type", cases[i].name, &type, &straight_through));
        rk_kl_estimate(type, straight_through, cases[i].log_prob, cases[i].ref, &value, &grad);
        assert_below(cases[i].name, fabs(value - cases[i].value), RK_TOL_SIX_DECIMALS);
        assert_below(cases[i].name, fabs(grad - cases[i].grad), RK_TOL_SIX_DECIMALS);
    }
}

static void test_kl_type_parse_unknown_name_fails(void **state)
{
    static const char *const names[] = {"", "+", "k4", "full", "K3", "k3++", "k", "low_var_kl "};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(names); i++) {
        rk_kl_type_t type;
        bool straight_through;

        assert_fails(rk_kl_type_parse("kl_loss_type", names[i], &type, &straight_through),
                     RK_INVALID_ARGUMENT, "kl_loss_type");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kl_estimate_worked_values),
        cmocka_unit_test(test_kl_type_parse_unknown_name_fails),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
