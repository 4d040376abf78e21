/* Comparison of the gate's outcomes. */
#include "tests/equivalence/gate.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "tests/support/models.h"
#include "tests/support/test.h"

#define INITIALIZER_RANGE 0.1 /* of gate_table.c */

struct comparison {
    struct rk_gate_diff *diffs;
    int32_t num_diffs;
    const struct rk_gate_case *test;
    const struct rk_gate_outcome *actual;
    const struct rk_gate_golden *golden;
};

/* Values at `offset` bytes in an outcome. Differences are relative to the size of the values, or to
 * `smallest` if they are smaller. In BF16 one of them may differ by `flip`.
 */
struct values {
    const char *kind, *name;
    size_t offset;
    int64_t count;
    double smallest, flip;
};

/* Effect of Adam on one element whose gradient is nearly 0, if it has the opposite sign in every step. */
#define FLIP(num_steps) (2 * RK_GATE_LR * (num_steps))

static const double *values_at(const struct rk_gate_outcome *outcome, const struct values *values)
{
    return (const double *)((const char *)outcome + values->offset);
}

static double square_of(const struct rk_gate_outcome *outcome, const struct values *values)
{
    const double *x = values_at(outcome, values);
    double sum = 0;

    for (int64_t i = 0; i < values->count; i++)
        sum += x[i] * x[i];
    return fmax(sum, (double)values->count * values->smallest * values->smallest);
}

static double nmse_of(const struct rk_gate_outcome *outcome, const struct rk_gate_outcome *f32,
                      const struct values *values)
{
    const double *actual = values_at(outcome, values), *expected = values_at(f32, values);
    double error = 0;

    for (int64_t i = 0; i < values->count; i++)
        error += (actual[i] - expected[i]) * (actual[i] - expected[i]);
    return error / square_of(f32, values);
}

static double error_by_max(const struct rk_gate_outcome *outcome, const struct rk_gate_outcome *one,
                           const struct values *values)
{
    const double *expected = values_at(one, values), *actual = values_at(outcome, values);
    double largest = 0, own = 0;

    for (int64_t i = 0; i < values->count; i++) {
        largest = fmax(largest, fabs(expected[i]));
        own = isnan(actual[i]) ? INFINITY : fmax(own, fabs(actual[i]));
    }
    if (largest == 0 && values->smallest > 0)
        return own / values->smallest;
    return rk_test_error_by_max(actual, expected, values->count) * largest / fmax(largest, values->smallest);
}

/* `level`: for BF16, the mean NMSE of one rank over the tensors of the kind. */
static void compare_values(struct comparison *c, const struct values *values, double level)
{
    const struct rk_gate_golden *golden = c->golden;
    struct rk_gate_diff diff;

    if (c->test->dtype == RK_DTYPE_BF16) {
        diff.error = nmse_of(c->actual, golden->f32, values);
        diff.bound = RK_TOL_BF16_ERRORS * fmax(level, nmse_of(golden->same_dtype, golden->f32, values)) +
                     values->flip * values->flip / square_of(golden->f32, values);
    } else {
        diff.error = error_by_max(c->actual, golden->same_dtype, values);
        diff.bound = c->test->dtype == RK_DTYPE_F64 ? RK_TOL_F64_SUM : RK_TOL_F32_SUM;
    }
    if (diff.error <= diff.bound) /* false also if one of them is NaN */
        return;
    snprintf(diff.tensor, sizeof(diff.tensor), "%s%s%s", values->kind, *values->name ? " of " : "",
             values->name);
    if (c->num_diffs < RK_GATE_DIFFS_MAX)
        c->diffs[c->num_diffs] = diff;
    c->num_diffs++;
}

static void compare_outputs(struct comparison *c)
{
    bool is_lm = strcmp(c->test->model->head, "lm") == 0;

    for (int k = 0; k < RK_HEAD_OUTPUT_COUNT; k++) {
        const char *name = rk_head_output_name((rk_head_output_t)k);
        size_t offset = (size_t)k * sizeof(c->actual->forward[0]);
        const struct values forward = {
            "forward-only pass", name, offsetof(struct rk_gate_outcome, forward) + offset,
            RK_GATE_NUM_TOKENS,  0,    0};
        const struct values trained = {
            "training pass",    name, offsetof(struct rk_gate_outcome, trained) + offset,
            RK_GATE_NUM_TOKENS, 0,    0};

        if ((k != RK_HEAD_VALUES) != is_lm)
            continue;
        compare_values(c, &forward, 0);
        compare_values(c, &trained, 0);
    }
}

/* The error of the loss terms caused by errors of log-probs or values; a few terms with large ratios
 * dominate. */
static double loss_level(const struct comparison *c)
{
    int k = strcmp(c->test->model->head, "lm") == 0 ? RK_HEAD_LOG_PROBS : RK_HEAD_VALUES;
    const struct rk_gate_outcome *f32 = c->golden->f32;
    double error = 0, slope = 0, scale = 0, num_labels = 0;

    for (int64_t t = 0; t < RK_GATE_NUM_TOKENS; t++) {
        error += pow(c->golden->same_dtype->trained[k][t] - f32->trained[k][t], 2);
        slope += pow(f32->loss_slopes[t], 2);
        scale += pow(f32->loss_terms[t], 2);
        num_labels += f32->loss_slopes[t] != 0;
    }
    return error / num_labels * slope / scale;
}

static void compare_loss(struct comparison *c)
{
    const struct values terms = {
        "loss", "every token", offsetof(struct rk_gate_outcome, loss_terms), RK_GATE_NUM_TOKENS, 0, 0};
    const struct values sum = {"loss", "", offsetof(struct rk_gate_outcome, loss), 1, 0, 0};

    /* In BF16 the sum of the terms is not compared: errors may cancel by chance. */
    compare_values(c, &terms, c->golden->f32 ? loss_level(c) : 0);
    if (c->test->dtype != RK_DTYPE_BF16)
        compare_values(c, &sum, 0);
}

/* The bias that experts are chosen by is not trained, and routers are not if they are frozen. */
static bool is_trained(const struct rk_gate_model *model, const char *name)
{
    if (rk_str_has_suffix(name, "e_score_correction_bias"))
        return false;
    return !(model->moe.freezes_router && (rk_str_has_suffix(name, "mlp.gate.weight") ||
                                           rk_str_has_suffix(name, "shared_expert_gate.weight")));
}

static struct values values_of_param(const struct comparison *c, int64_t i, rk_test_kind_t kind)
{
    const struct rk_gate_outcome *outcome = c->golden->same_dtype;
    size_t begin = (size_t)outcome->begin[i] * sizeof(double);
    int64_t count = outcome->begin[i + 1] - outcome->begin[i];

    double smallest = is_trained(c->test->model, outcome->names[i]) ? 0 : INITIALIZER_RANGE;

    if (kind == RK_TEST_GRADIENT)
        return (struct values){"gradient", outcome->names[i], offsetof(struct rk_gate_outcome, grads) + begin,
                               count,      smallest,          0};
    /* Biases start at 0, and a few steps of Adam change them by a few thousandths; the gradients of key
     * biases are nearly 0, because the softmax hardly depends on them. */
    return (struct values){"value", outcome->names[i], offsetof(struct rk_gate_outcome, params) + begin,
                           count,   INITIALIZER_RANGE, FLIP(rk_gate_num_steps(c->test))};
}

static double level_of(const struct comparison *c, rk_test_kind_t kind)
{
    const struct rk_gate_outcome *one = c->golden->same_dtype;
    double sum = 0;

    for (int64_t i = 0; c->test->dtype == RK_DTYPE_BF16 && i < one->num_params; i++) {
        struct values values = values_of_param(c, i, kind);

        sum += nmse_of(one, c->golden->f32, &values);
    }
    return sum / (double)one->num_params;
}

static void compare_params(struct comparison *c, rk_test_kind_t kind)
{
    const struct rk_gate_outcome *one = c->golden->same_dtype;
    double level = level_of(c, kind);

    RK_ASSERT(c->actual->num_params == one->num_params);
    for (int64_t i = 0; i < one->num_params; i++) {
        struct values values = values_of_param(c, i, kind);

        compare_values(c, &values, level);
    }
}

/* The error of a norm is at most the norm of the error. */
static void compare_norms(struct comparison *c)
{
    double level = level_of(c, RK_TEST_GRADIENT);

    for (int step = 0; step < rk_gate_num_steps(c->test); step++) {
        size_t offset = offsetof(struct rk_gate_outcome, grad_norm) + (size_t)step * sizeof(double);
        char name[16];

        snprintf(name, sizeof(name), "step %d", step + 1);
        compare_values(c, &(struct values){"gradient norm", name, offset, 1, 0, 0}, level);
    }
}

int32_t rk_gate_compare(struct rk_gate_diff *diffs, const struct rk_gate_case *test,
                        const struct rk_gate_outcome *actual, const struct rk_gate_golden *golden)
{
    struct comparison c = {.diffs = diffs, .test = test, .actual = actual, .golden = golden};

    compare_outputs(&c);
    compare_loss(&c);
    compare_params(&c, RK_TEST_GRADIENT);
    if (test->mutation)
        return c.num_diffs;
    compare_norms(&c);
    compare_params(&c, RK_TEST_VALUE);
    return c.num_diffs;
}

/* --- cases and their one-rank results --- */

static bool is_one_rank_of(const struct rk_gate_case *golden, const struct rk_gate_case *test, bool has_bf16)
{
    return golden->layout == &rk_gate_one_rank && golden->model == test->model &&
           golden->dtype == (has_bf16 ? RK_DTYPE_F32 : test->dtype) && golden->has_bf16_weights == has_bf16 &&
           golden->num_steps == test->num_steps;
}

static int32_t find_golden(const struct rk_gate_case *cases, int32_t count, const struct rk_gate_case *test,
                           bool has_bf16)
{
    int32_t i = 0;

    while (i < count && !is_one_rank_of(&cases[i], test, has_bf16))
        i++;
    return i;
}

static int32_t add_golden(struct rk_gate_case *all, int32_t count, const struct rk_gate_case *test,
                          bool has_bf16)
{
    int32_t i = find_golden(all, count, test, has_bf16);

    if (i == count)
        all[count++] = (struct rk_gate_case){.layout = &rk_gate_one_rank,
                                             .model = test->model,
                                             .dtype = has_bf16 ? RK_DTYPE_F32 : test->dtype,
                                             .num_steps = test->num_steps,
                                             .has_bf16_weights = has_bf16};
    return count;
}

/* Collects the cases that can run, followed by those that they are compared with. */
static int32_t collect(struct rk_gate_case *all, const struct rk_gate_case *cases, int32_t *num_cases)
{
    int32_t count = 0, num_given = *num_cases;

    for (int32_t i = 0; i < num_given; i++) {
        if (rk_gate_can_run(&cases[i]))
            all[count++] = cases[i];
    }
    *num_cases = count;
    for (int32_t i = 0; i < *num_cases; i++) {
        count = add_golden(all, count, &all[i], false);
        if (all[i].dtype == RK_DTYPE_BF16)
            count = add_golden(all, count, &all[i], true);
    }
    return count;
}

void rk_gate_for_each(const struct rk_gate_case *cases, int32_t count, rk_gate_visit_fn_t visit, void *user)
{
    struct rk_gate_case *all = rk_calloc((size_t)count * 3, sizeof(*all));
    struct rk_gate_diff *diffs = rk_calloc(RK_GATE_DIFFS_MAX, sizeof(*diffs));
    int32_t num_cases = count, num_all = collect(all, cases, &num_cases);
    struct rk_gate_outcome *outcomes =
        num_all > 0 ? rk_gate_run(all, num_all) : NULL; /* F64 on a GPU: no cases */

    for (int32_t i = 0; i < num_cases; i++) {
        int32_t one = find_golden(all, num_all, &all[i], false);
        int32_t f32 = find_golden(all, num_all, &all[i], true);
        const struct rk_gate_golden golden = {.same_dtype = &outcomes[one],
                                              .f32 = f32 < num_all ? &outcomes[f32] : NULL};

        assert_true(fabs(golden.same_dtype->loss) > 0.01);
        visit(user, &all[i], diffs, rk_gate_compare(diffs, &all[i], &outcomes[i], &golden));
    }
    if (outcomes)
        rk_gate_outcomes_free(outcomes, num_all);
    rk_free(diffs);
    rk_free(all);
}

struct totals {
    int32_t num_cases, num_diffs;
};

static void print_diffs(void *user, const struct rk_gate_case *test, const struct rk_gate_diff *diffs,
                        int32_t num_diffs)
{
    struct totals *totals = user;

    for (int32_t i = 0; i < num_diffs && i < RK_GATE_DIFFS_MAX; i++)
        print_error("%s: %s differs by %g, over the bound %g\n", rk_gate_label(test), diffs[i].tensor,
                    diffs[i].error, diffs[i].bound);
    totals->num_cases++;
    totals->num_diffs += num_diffs;
}

int32_t rk_gate_check(const struct rk_gate_case *cases, int32_t count)
{
    struct totals totals = {0};
    int32_t num_unfit = 0;

    for (int32_t i = 0; i < count; i++)
        num_unfit += !rk_gate_has_ranks(cases[i].layout);
    if (num_unfit > 0)
        rk_test_skip_part("%d of %d cases have layouts that do not run on these devices", num_unfit, count);
    rk_gate_for_each(cases, count, print_diffs, &totals);
    print_message("  %d cases compared\n", totals.num_cases);
    if (totals.num_diffs > 0)
        fail_msg("%d tensors differ", totals.num_diffs);
    return totals.num_cases;
}
