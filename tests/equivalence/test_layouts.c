/* A sample of the equivalence gate (test_gate.c runs it for every layout, model and dtype), and tests that
 * the gate detects defects. */
#include "tests/support/test.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/config/rk_config.h"
#include "base/rk_env.h"
#include "tests/equivalence/gate.h"
#include "tests/support/device.h"
#include "tests/support/fake_nccl.h"

static bool has_pair(const struct rk_gate_pairs *pairs, rk_gate_axis_t a, rk_gate_axis_t b)
{
    return pairs->with[a] >> b & 1;
}

/* Adds the pairs of all cases that can run here, and sets a bit of *models for each model. */
static void collect(struct rk_gate_pairs *pairs, uint64_t *models, const struct rk_gate_case *cases,
                    int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        rk_gate_add_pairs(pairs, &cases[i]);
        *models |= (uint64_t)1 << (cases[i].model - rk_gate_models);
    }
}

/* Goal: the sample lacks no pair of axes that the gate has, and no model. */
static void test_sample_has_every_pair_and_model(void **state)
{
    static struct rk_gate_case sample[RK_GATE_CASES_MAX];
    struct rk_gate_pairs all_pairs = {0}, pairs = {0};
    uint64_t all_models = 0, models = 0;
    struct rk_gate_case *all;
    int32_t num_all = rk_gate_all_cases(&all), count = rk_gate_sample(sample);

    (void)state;
    collect(&all_pairs, &all_models, all, num_all);
    collect(&pairs, &models, sample, count);
    rk_free(all);
    print_message("%d of %d cases\n", count, num_all);
    for (int32_t i = 0; i < count; i++)
        print_message("  %s\n", rk_gate_label(&sample[i]));
    for (int a = 0; a < RK_GATE_NUM_AXES; a++) {
        for (int b = 0; b <= a; b++) {
            if (has_pair(&all_pairs, a, b) && !has_pair(&pairs, a, b))
                fail_msg("no case with %s and %s", rk_gate_axis_name(a), rk_gate_axis_name(b));
        }
    }
    if (rk_gate_sample_has_models())
        assert_int_equal(models, all_models);
}

/* Goal: the gate itself has every pair of these axes, whatever rows its tables lose. On the CPU without NCCL,
 * which runs all cases. */
static void test_gate_has_every_pair_of_parallel_axes(void **state)
{
    static const rk_gate_axis_t axes[] = {RK_GATE_TP,     RK_GATE_SP,     RK_GATE_CP,    RK_GATE_PP,
                                          RK_GATE_DP,     RK_GATE_EP,     RK_GATE_ETP,   RK_GATE_ROUNDS,
                                          RK_GATE_STRICT, RK_GATE_F64,    RK_GATE_F32,   RK_GATE_BF16,
                                          RK_GATE_LATENT, RK_GATE_REPLAY, RK_GATE_DENSE, RK_GATE_EXPERTS};
    /* A case has one dtype; what is for experts is not for dense models. */
    const uint32_t dtypes = 1U << RK_GATE_F64 | 1U << RK_GATE_F32 | 1U << RK_GATE_BF16;
    const uint32_t sparse = 1U << RK_GATE_EP | 1U << RK_GATE_ETP | 1U << RK_GATE_ROUNDS |
                            1U << RK_GATE_REPLAY | 1U << RK_GATE_EXPERTS;
    struct rk_gate_pairs pairs = {0};
    uint64_t models = 0;
    struct rk_gate_case *all;
    int32_t count, num_wrong = 0;

    (void)state;
    if (rk_env("RK_TEST_COMM") || rk_test_device_dtype() != RK_DTYPE_F64)
        rk_test_skip("the table of cases is the same on all devices; checked on the CPU");
    count = rk_gate_all_cases(&all);
    collect(&pairs, &models, all, count);
    rk_free(all);
    for (size_t i = 0; i < RK_ARRAY_LEN(axes); i++) {
        for (size_t k = 0; k <= i; k++) {
            uint32_t both = 1U << axes[i] | 1U << axes[k];
            bool is_impossible =
                i != k && ((both & ~dtypes) == 0 || ((both & 1U << RK_GATE_DENSE) && (both & sparse)));

            if (has_pair(&pairs, axes[i], axes[k]) == is_impossible)
                print_error("%s and %s: expected %s case\n", rk_gate_axis_name(axes[i]),
                            rk_gate_axis_name(axes[k]), is_impossible ? "no" : "a");
            num_wrong += has_pair(&pairs, axes[i], axes[k]) == is_impossible;
        }
    }
    assert_int_equal(num_wrong, 0);
}

/* Goal: losses, log-probs, entropies, values, gradients, gradient norms and parameters do not depend on the
 * layout. Method: the cases of the sample, against one rank. */
static void test_sample_of_layouts_equals_one_rank(void **state)
{
    static struct rk_gate_case cases[RK_GATE_CASES_MAX];

    (void)state;
    assert_true(rk_gate_check(cases, rk_gate_sample(cases)) > 0);
}

static bool fits(const struct rk_gate_case *test)
{
    bool has_ranks = rk_gate_has_ranks(test->layout);

    if (!has_ranks)
        rk_test_skip_part("%s: the layout does not run on these devices", rk_gate_label(test));
    return has_ranks;
}

/* --- omitted sums --- */

struct seen {
    int32_t num_cases, num_right;
};

/* Expects that only this tensor differs. */
static void expect_mutated(void *user, const struct rk_gate_case *test, const struct rk_gate_diff *diffs,
                           int32_t num_diffs)
{
    struct seen *seen = user;

    for (int32_t i = 0; i < num_diffs; i++)
        print_message("  %s without a sum: %s differs by %g, bound %g\n", rk_gate_label(test),
                      diffs[i].tensor, diffs[i].error, diffs[i].bound);
    if (num_diffs == 0)
        print_error("%s: nothing differs without the sum of %s\n", rk_gate_label(test), test->mutated);
    seen->num_cases++;
    seen->num_right +=
        num_diffs == 1 && strstr(diffs[0].tensor, test->mutated) && diffs[0].error > 20 * diffs[0].bound;
}

/* Goal: the bounds detect an omitted sum of gradients, also in BF16. Method: changes the row of the parameter
 * table by which a gradient is summed before it is gathered. */
static void test_gradient_without_a_sum_is_detected(void **state)
{
    static const struct {
        const char *layout, *model, *param;
        rk_gate_mutation_t mutation;
        rk_dtype_t dtype;
    } rows[] = {
        {"t2s", "qwen3", "model.norm.weight", RK_GATE_NO_TP_SUM, RK_DTYPE_BF16},
        {"t2s", "qwen3_tied", "model.layers.2.input_layernorm.weight", RK_GATE_NO_TP_SUM, RK_DTYPE_F32},
        {"t2", "qwen3", "model.layers.1.self_attn.q_norm.weight", RK_GATE_NO_TP_SUM, RK_DTYPE_BF16},
        {"t4_m2", "qwen2", "model.layers.2.self_attn.k_proj.weight", RK_GATE_NO_TP_SUM, RK_DTYPE_BF16},
        {"d2", "qwen2", "model.layers.3.self_attn.q_proj.bias", RK_GATE_NO_DP_SUM, RK_DTYPE_BF16},
        {"c2", "qwen2", "model.layers.0.mlp.up_proj.weight", RK_GATE_NO_DP_SUM, RK_DTYPE_BF16},
        {"p2", "llama_tied", "model.embed_tokens.weight", RK_GATE_NO_PP_SUM, RK_DTYPE_BF16},
        {"t2sd2e2_rounds", "mixtral", "model.layers.1.block_sparse_moe.gate.weight", RK_GATE_NO_TP_SUM,
         RK_DTYPE_F32},
        {"d4e2_m2_recompute3", "qwen3_moe_tied", "model.layers.2.mlp.experts.5.down_proj.weight",
         RK_GATE_NO_DP_SUM, RK_DTYPE_F32},
        {"t4s_etp2_e2_m2", "qwen2_moe_value", "model.layers.2.mlp.gate.weight", RK_GATE_NO_TP_SUM,
         RK_DTYPE_F32},
        {"t2s", "qwen2_moe_value", "model.layers.2.mlp.shared_expert_gate.weight", RK_GATE_NO_TP_SUM,
         RK_DTYPE_F32},
        {"t2s", "latent", "model.layers.1.self_attn.kv_a_proj_with_mqa.weight", RK_GATE_NO_TP_SUM,
         RK_DTYPE_F32},
        {"t2s", "latent_tied", "model.layers.3.self_attn.kv_a_layernorm.weight", RK_GATE_NO_TP_SUM,
         RK_DTYPE_F32},
    };
    struct rk_gate_case cases[RK_ARRAY_LEN(rows)];
    int32_t num_possible = 0;
    struct seen seen = {0};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        cases[i] = (struct rk_gate_case){.layout = rk_gate_find_layout(rows[i].layout),
                                         .model = rk_gate_find_model(rows[i].model),
                                         .dtype = rows[i].dtype,
                                         .num_steps = 1,
                                         .mutation = rows[i].mutation,
                                         .mutated = rows[i].param};
        num_possible += rk_gate_can_run(&cases[i]);
    }
    rk_gate_for_each(cases, RK_ARRAY_LEN(rows), expect_mutated, &seen);
    assert_int_equal(seen.num_cases, num_possible);
    assert_int_equal(seen.num_right, num_possible);
}

/* --- bits --- */

/* Goal: runs are reproducible. Method: the same layout and seed twice gives bit-identical results. */
static void test_train_twice_gives_identical_bits(void **state)
{
    static const struct {
        const char *layout, *model;
    } rows[] = {
        {"t2d2_m2_strict", "llama_tied"},
        {"c2d2_m2_recompute3", "llama"},
        {"t2sp2d2_m3", "qwen3"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        const struct rk_gate_case test = {.layout = rk_gate_find_layout(rows[i].layout),
                                          .model = rk_gate_find_model(rows[i].model),
                                          .dtype = RK_DTYPE_F32,
                                          .num_steps = RK_GATE_FEW_STEPS};
        const struct rk_gate_case twice[] = {test, test};
        struct rk_gate_outcome *outcomes;

        if (!fits(&test))
            continue;
        outcomes = rk_gate_run(twice, 2);
        if (memcmp(&outcomes[0], &outcomes[1], sizeof(outcomes[0])) != 0)
            fail_msg("%s: other bits the second time", rk_gate_label(&test));
        rk_gate_outcomes_free(outcomes, 2);
    }
}

/* Goal: the backward pass of kept rows has the bits of the one that exchanges them again, be it that one
 * round suffices or not, with and without recomputed layers and a shared expert. */
static void test_kept_rows_give_the_same_bits(void **state)
{
    static const struct {
        const char *model;
        struct rk_gate_layout layout;
    } rows[] = {
        {"latent_moe", {.name = "d4e2", .dp = 4, .ep = 2, .moe_dispatch_tokens = 300}},
        {"mixtral", {.name = "t2d2e2_rounds", .tp = 2, .dp = 2, .ep = 2, .moe_dispatch_tokens = 9}},
        {"qwen2_moe_value",
         {.name = "t2s_etp1_e2_m2_recompute2",
          .tp = 2,
          .sequence_parallel = true,
          .etp = 1,
          .ep = 2,
          .moe_dispatch_tokens = 300,
          .recompute_num_layers = 2,
          .num_micro_batches = 2}},
        {"qwen2_moe_value",
         {.name = "d2e2_recompute1",
          .dp = 2,
          .ep = 2,
          .moe_dispatch_tokens = 400,
          .recompute_num_layers = 1}},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        struct rk_gate_layout kept = rows[i].layout;
        struct rk_gate_case both[2];
        struct rk_gate_outcome *outcomes;

        kept.moe_keep_dispatched = true;
        for (int k = 0; k < 2; k++)
            both[k] = (struct rk_gate_case){.layout = k ? &kept : &rows[i].layout,
                                            .model = rk_gate_find_model(rows[i].model),
                                            .dtype = RK_DTYPE_BF16,
                                            .num_steps = RK_GATE_FEW_STEPS};
        if (!fits(&both[0]))
            continue;
        outcomes = rk_gate_run(both, 2);
        if (memcmp(&outcomes[0], &outcomes[1], sizeof(outcomes[0])) != 0)
            fail_msg("%s: other bits with kept rows", rk_gate_label(&both[0]));
        rk_gate_outcomes_free(outcomes, 2);
    }
}

/* Goal: rounds give the bits of one round, in the gradients of the experts' weights, too, if no expert has
 * more rows than the buffer. Here a rank has about 470 rows of four experts and takes 340. */
static void test_rounds_have_the_bits_of_one_round(void **state)
{
    static const struct rk_gate_layout layouts[] = {
        {.name = "d2e2_m1_one_round", .dp = 2, .ep = 2, .moe_dispatch_tokens = 1000},
        {.name = "d2e2_m1_rounds", .dp = 2, .ep = 2, .moe_dispatch_tokens = 170},
    };
    const struct rk_gate_model *model = rk_gate_find_model("latent_moe");
    const rk_dtype_t dtypes[] = {RK_DTYPE_F32, RK_DTYPE_BF16};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(dtypes); i++) {
        const struct rk_gate_case both[] = {
            {.layout = &layouts[0], .model = model, .dtype = dtypes[i], .num_steps = RK_GATE_FEW_STEPS},
            {.layout = &layouts[1], .model = model, .dtype = dtypes[i], .num_steps = RK_GATE_FEW_STEPS}};
        struct rk_gate_outcome *outcomes;

        if (!fits(&both[0]))
            continue;
        outcomes = rk_gate_run(both, 2);
        if (memcmp(&outcomes[0], &outcomes[1], sizeof(outcomes[0])) != 0)
            fail_msg("%s: other bits than one round", rk_gate_label(&both[1]));
        rk_gate_outcomes_free(outcomes, 2);
    }
}

/* Goal: in strict numerics the outputs are bit-identical on all layouts with the same tp: work divided by
 * tokens, chunks or layers is computed by row, and sums over tp are in rank order. */
static void test_strict_outputs_have_the_bits_of_tp_alone(void **state)
{
#define STRICT(...)                    \
    {                                  \
        .is_strict = true, __VA_ARGS__ \
    }
    static const struct {
        const char *model;
        rk_dtype_t dtype;
        struct rk_gate_layout whole, divided;
    } rows[] = {
        {"llama", RK_DTYPE_F32, STRICT(.name = "t2", .tp = 2),
         STRICT(.name = "t2s", .tp = 2, .sequence_parallel = true)},
        {"qwen2_value", RK_DTYPE_BF16, STRICT(.name = "t4", .tp = 4),
         STRICT(.name = "t4s_m3", .tp = 4, .sequence_parallel = true, .num_micro_batches = 3)},
        {"mistral", RK_DTYPE_BF16, STRICT(.name = "one"),
         STRICT(.name = "c2p2_m3", .cp = 2, .pp = 2, .num_micro_batches = 3)},
        {"mixtral", RK_DTYPE_F32, STRICT(.name = "one"), STRICT(.name = "d2e2", .dp = 2, .ep = 2)},
        {"qwen2_moe_value", RK_DTYPE_F32, STRICT(.name = "one"),
         STRICT(.name = "d4e4_rounds", .dp = 4, .ep = 4, .moe_dispatch_tokens = 5)},
        {"qwen3_moe_tied", RK_DTYPE_F32, STRICT(.name = "t2", .tp = 2),
         STRICT(.name = "t2sd2e2_m2", .tp = 2, .sequence_parallel = true, .dp = 2, .ep = 2,
                .num_micro_batches = 2)},
        {"qwen2_moe_value", RK_DTYPE_BF16,
         STRICT(.name = "t2s_etp1", .tp = 2, .sequence_parallel = true, .etp = 1),
         STRICT(.name = "t2_etp1_e2", .tp = 2, .etp = 1, .ep = 2)},
        {"mixtral", RK_DTYPE_F32,
         STRICT(.name = "t2sd2_etp1_e4", .tp = 2, .sequence_parallel = true, .dp = 2, .etp = 1, .ep = 4),
         STRICT(.name = "t2d2_etp1_e2", .tp = 2, .dp = 2, .etp = 1, .ep = 2)},
        {"qwen3_moe_tied", RK_DTYPE_F32,
         STRICT(.name = "t4s_etp2_e2", .tp = 4, .sequence_parallel = true, .etp = 2, .ep = 2),
         STRICT(.name = "t4sd2_etp2_e4_rounds", .tp = 4, .sequence_parallel = true, .dp = 2, .etp = 2,
                .ep = 4, .moe_dispatch_tokens = 9)},
        {"latent_moe", RK_DTYPE_F32, STRICT(.name = "one"),
         STRICT(.name = "d4e4_rounds", .dp = 4, .ep = 4, .moe_dispatch_tokens = 5)},
        {"latent_tied", RK_DTYPE_BF16, STRICT(.name = "t2", .tp = 2),
         STRICT(.name = "t2sc2p2", .tp = 2, .sequence_parallel = true, .cp = 2, .pp = 2)},
        {"qwen2", RK_DTYPE_F32, STRICT(.name = "t2", .tp = 2),
         STRICT(.name = "t2sc2p2", .tp = 2, .sequence_parallel = true, .cp = 2, .pp = 2)},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        const struct rk_gate_model *model = rk_gate_find_model(rows[i].model);
        const struct rk_gate_case both[] = {
            {.layout = &rows[i].whole, .model = model, .dtype = rows[i].dtype, .num_steps = 1},
            {.layout = &rows[i].divided, .model = model, .dtype = rows[i].dtype, .num_steps = 1},
        };
        struct rk_gate_outcome *outcomes;

        if (!fits(&both[1]))
            continue;
        outcomes = rk_gate_run(both, 2);
        if (memcmp(outcomes[0].forward, outcomes[1].forward, sizeof(outcomes[0].forward)) != 0 ||
            memcmp(outcomes[0].trained, outcomes[1].trained, sizeof(outcomes[0].trained)) != 0)
            fail_msg("%s: other bits than with tp alone", rk_gate_label(&both[1]));
        rk_gate_outcomes_free(outcomes, 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sample_has_every_pair_and_model),
        cmocka_unit_test(test_gate_has_every_pair_of_parallel_axes),
        cmocka_unit_test(test_sample_of_layouts_equals_one_rank),
        cmocka_unit_test(test_gradient_without_a_sum_is_detected),
        cmocka_unit_test(test_train_twice_gives_identical_bits),
        cmocka_unit_test(test_kept_rows_give_the_same_bits),
        cmocka_unit_test(test_rounds_have_the_bits_of_one_round),
        cmocka_unit_test(test_strict_outputs_have_the_bits_of_tp_alone),
    };
    /* With the fake NCCL in the call only the layouts: the rest runs with it on the device with streams, and
     * without it. */
    const struct CMUnitTest of_sample[] = {tests[0], tests[1], tests[2]};

    rk_test_device_need_ranks(2);
    rk_fake_nccl_setup();
    if (rk_env("RK_TEST_COMM") && !rk_env("RK_TEST_DEVICE"))
        return cmocka_run_group_tests(of_sample, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
