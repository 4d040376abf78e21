/* The equivalence gate for one model: all its layouts and dtypes.
 *
 *   test_gate MODEL [LAYOUT [DTYPE]]
 */
#include "tests/support/test.h"

#include <string.h>

#include "tests/equivalence/gate.h"
#include "tests/support/device.h"

static const struct rk_gate_model *model;
static const char *only_layout, *only_dtype;

static bool is_chosen(const struct rk_gate_case *test)
{
    return (!only_layout || strcmp(only_layout, test->layout->name) == 0) &&
           (!only_dtype || strcmp(only_dtype, rk_dtype_name(test->dtype)) == 0);
}

/* Goal: losses, log-probs, entropies, values, gradients, gradient norms and parameters do not depend on the
 * layout. Method: every layout against one rank. */
static void test_layouts_of_model_equal_one_rank(void **state)
{
    static const rk_dtype_t dtypes[] = {RK_DTYPE_F64, RK_DTYPE_F32, RK_DTYPE_BF16};
    static struct rk_gate_case cases[RK_GATE_CASES_MAX];

    int32_t num_compared = 0;

    (void)state;
    assert_true(rk_gate_num_layouts <= RK_GATE_CASES_MAX);
    for (size_t d = 0; d < RK_ARRAY_LEN(dtypes); d++) {
        int32_t count = 0;

        for (size_t i = 0; i < rk_gate_num_layouts; i++) {
            cases[count] =
                (struct rk_gate_case){.layout = &rk_gate_layouts[i], .model = model, .dtype = dtypes[d]};
            count += is_chosen(&cases[count]);
        }
        print_message("%s %s\n", model->name, rk_dtype_name(dtypes[d]));
        if (count > 0)
            num_compared += rk_gate_check(cases, count);
    }
    assert_true(num_compared > 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layouts_of_model_equal_one_rank),
    };

    model = argc > 1 ? rk_gate_find_model(argv[1]) : NULL;
    only_layout = argc > 2 ? argv[2] : NULL;
    only_dtype = argc > 3 ? argv[3] : NULL;
    if (!model || (only_layout && !rk_gate_find_layout(only_layout))) {
        print_error("usage: test_gate MODEL [LAYOUT [DTYPE]], of gate_table.c\n");
        return 2;
    }
    rk_test_device_need_ranks(2);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
