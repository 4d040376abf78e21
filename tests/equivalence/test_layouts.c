/* A sample of the equivalence gate (test_gate.c runs it for every layout, model and dtype), and tests that
 * the gate detects defects. */
#include "tests/support/test.h"

#include <string.h>

#include "tests/equivalence/gate.h"
#include "tests/support/device.h"
#include "tests/support/fake_nccl.h"

/* The case of the sample with the i-th layout. F64 is only for the CPU: a GPU uses its widest dtype
 * instead. */
static struct rk_gate_case sample_at(size_t i)
{
    const struct rk_gate_model *model = rk_gate_find_model(rk_gate_layouts[i].model);

    assert_non_null(model);
    return (struct rk_gate_case){
        .layout = &rk_gate_layouts[i],
        .model = model,
        .dtype = model->dtype == RK_DTYPE_F64 ? rk_test_device_dtype() : model->dtype,
    };
}

/* Goal: no model is missing from the sample. */
static void test_sample_has_every_model(void **state)
{
    (void)state;
    for (size_t m = 0; m < rk_gate_num_models; m++) {
        size_t i = 0;

        while (i < rk_gate_num_layouts && sample_at(i).model != &rk_gate_models[m])
            i++;
        if (i == rk_gate_num_layouts)
            fail_msg("no layout has the model %s", rk_gate_models[m].name);
    }
}

/* Goal: losses, log-probs, entropies, values, gradients, gradient norms and parameters do not depend on the
 * layout. Method: every layout with one model and dtype, against one rank. */
static void test_sample_of_layouts_equals_one_rank(void **state)
{
    static struct rk_gate_case cases[RK_GATE_CASES_MAX];

    (void)state;
    assert_true(rk_gate_num_layouts <= RK_GATE_CASES_MAX);
    for (size_t i = 0; i < rk_gate_num_layouts; i++)
        cases[i] = sample_at(i);
    rk_gate_check(cases, (int32_t)rk_gate_num_layouts);
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
    };
    struct rk_gate_case cases[RK_ARRAY_LEN(rows)];
    int32_t num_possible = 0;
    struct seen seen = {0};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        cases[i] = (struct rk_gate_case){.layout = rk_gate_find_layout(rows[i].layout),
                                         .model = rk_gate_find_model(rows[i].model),
                                         .dtype = rows[i].dtype,
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
                                          .dtype = RK_DTYPE_F32};
        const struct rk_gate_case twice[] = {test, test};
        struct rk_gate_outcome *outcomes;

        if (!rk_gate_has_ranks(test.layout))
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
                                            .dtype = RK_DTYPE_BF16};
        if (!rk_gate_has_ranks(both[0].layout))
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
    for (size_t i = 0; i < RK_ARRAY_LEN(dtypes) && rk_gate_has_ranks(&layouts[0]); i++) {
        const struct rk_gate_case both[] = {{.layout = &layouts[0], .model = model, .dtype = dtypes[i]},
                                            {.layout = &layouts[1], .model = model, .dtype = dtypes[i]}};
        struct rk_gate_outcome *outcomes = rk_gate_run(both, 2);

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
        {"qwen2", RK_DTYPE_F32, STRICT(.name = "t2", .tp = 2),
         STRICT(.name = "t2sc2p2", .tp = 2, .sequence_parallel = true, .cp = 2, .pp = 2)},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        const struct rk_gate_model *model = rk_gate_find_model(rows[i].model);
        const struct rk_gate_case both[] = {
            {.layout = &rows[i].whole, .model = model, .dtype = rows[i].dtype},
            {.layout = &rows[i].divided, .model = model, .dtype = rows[i].dtype},
        };
        struct rk_gate_outcome *outcomes;

        if (!rk_gate_has_ranks(both[1].layout))
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
        cmocka_unit_test(test_sample_has_every_model),
        cmocka_unit_test(test_sample_of_layouts_equals_one_rank),
        cmocka_unit_test(test_gradient_without_a_sum_is_detected),
        cmocka_unit_test(test_train_twice_gives_identical_bits),
        cmocka_unit_test(test_kept_rows_give_the_same_bits),
        cmocka_unit_test(test_rounds_have_the_bits_of_one_round),
        cmocka_unit_test(test_strict_outputs_have_the_bits_of_tp_alone),
    };

    rk_test_device_need_ranks(2);
    rk_fake_nccl_setup();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
