/* Goal: the plug-in's test of supported GPUs is right; needs no GPU. */
#include "tests/support/test.h"

#include "kernels/cuda/archs.h"

static void test_cuda_archs_match_what_the_code_runs_on(void **state)
{
    static const struct {
        const char *archs;
        int major, minor;
        bool runs;
    } cases[] = {
        {"80,90a", 8, 0, true},  {"80,90a", 8, 9, true},       {"80,90a", 9, 0, true},
        {"80,90a", 7, 5, false}, {"80,90a", 10, 0, false},     {"80,90a", 12, 0, false},
        {"90a", 8, 0, false},    {"86", 8, 0, false},          {"86", 8, 6, true},
        {"90a", 9, 1, false},    {"100f", 10, 3, true},        {"100f", 9, 0, false},
        {"103f", 10, 0, false},  {"80,100f,120", 12, 1, true}, {"", 8, 0, false},
        {"all", 8, 0, false},    {"80,", 9, 0, false},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        if (rk_cuda_archs_run_on(cases[i].archs, cases[i].major, cases[i].minor) != cases[i].runs)
            fail_msg("code for '%s' on %d.%d: expected %s", cases[i].archs, cases[i].major, cases[i].minor,
                     cases[i].runs ? "runs" : "does not run");
    }
}

static void test_cuda_archs_list_is_searched_by_whole_names(void **state)
{
    (void)state;
    assert_true(rk_cuda_archs_have("80,90a,100", "90a"));
    assert_true(rk_cuda_archs_have("90a", "90a"));
    assert_false(rk_cuda_archs_have("80,90", "90a"));
    assert_false(rk_cuda_archs_have("80,90a", "90"));
    assert_false(rk_cuda_archs_have("190a", "90a"));
    assert_false(rk_cuda_archs_have("", "90a"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_archs_match_what_the_code_runs_on),
        cmocka_unit_test(test_cuda_archs_list_is_searched_by_whole_names),
    };

    return cmocka_run_group_tests_name("unit/kernels/cuda_archs", tests, NULL, NULL);
}
