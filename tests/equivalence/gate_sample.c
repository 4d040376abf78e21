/* The sample of the gate that runs for every change, with fewer steps; test_gate runs all cases.
 *
 * Rule: the sample has every pair of axes (RK_GATE_AXES) that some case of the gate has, every model, and
 * every size of `special_bits`. With the fake NCCL it need not have every model: only collectives differ.
 * Cases are taken greedily, each time the one with the most pairs, models and sizes that the sample lacks,
 * for its cost; of equal ones, one with the most axes. */
#include "tests/equivalence/gate.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/config/rk_config.h"
#include "base/rk_env.h"

/* Rough costs; strict numerics have GEMMs of their own. A one-rank run is made once for each model and dtype,
 * in BF16 also in F32. */
#define CASE_COST   4
#define STRICT_COST 4
#define ONE_COST    3

static const char *const axis_names[] = {
#define RK_GATE_AXIS(id, name, has) name,
    RK_GATE_AXES(RK_GATE_AXIS)
#undef RK_GATE_AXIS
};

_Static_assert(RK_GATE_NUM_AXES <= 32, "a mask of 32 bits has all axes");

const char *rk_gate_axis_name(rk_gate_axis_t axis)
{
    return axis_names[axis];
}

static uint32_t axes_of(const struct rk_gate_case *test)
{
    const struct rk_gate_layout *layout = test->layout;
    const struct rk_gate_model *model = test->model;
    uint32_t axes = 0;

#define RK_GATE_AXIS(id, name, has) axes |= (uint32_t)((has) ? 1 : 0) << RK_GATE_##id;
    RK_GATE_AXES(RK_GATE_AXIS)
#undef RK_GATE_AXIS
    return axes;
}

bool rk_gate_sample_has_models(void)
{
    return !rk_env("RK_TEST_COMM");
}

/* What the sample has at least once: sizes of axes, forms of micro-batches and stages, models. */
static uint64_t special_bits(const struct rk_gate_case *test)
{
    const struct rk_gate_layout *layout = test->layout;
    const bool sizes[] = {
        layout->tp > 2,    layout->cp == 3,     layout->cp > 3,
        layout->pp == 3,   layout->pp > 3,      layout->dp == 3,
        layout->dp > 3,    layout->ep > 2,      layout->num_first > 0,
        layout->is_padded, layout->is_reversed, layout->num_micro_batches >= RK_GATE_NUM_SEQS,
    };
    uint64_t bits = 0;

    RK_ASSERT(RK_ARRAY_LEN(sizes) + rk_gate_num_models <= 64);
    for (size_t i = 0; i < RK_ARRAY_LEN(sizes); i++)
        bits |= (uint64_t)sizes[i] << i;
    if (!rk_gate_sample_has_models())
        return bits;
    return bits | (uint64_t)1 << (RK_ARRAY_LEN(sizes) + (size_t)(test->model - rk_gate_models));
}

void rk_gate_add_pairs(struct rk_gate_pairs *pairs, const struct rk_gate_case *test)
{
    uint32_t axes = axes_of(test);

    for (int a = 0; a < RK_GATE_NUM_AXES; a++) {
        if (axes >> a & 1)
            pairs->with[a] |= axes;
    }
}

int32_t rk_gate_all_cases(struct rk_gate_case **out)
{
    static const rk_dtype_t dtypes[] = {RK_DTYPE_F64, RK_DTYPE_F32, RK_DTYPE_BF16};
    size_t capacity = rk_gate_num_models * RK_ARRAY_LEN(dtypes) * rk_gate_num_layouts;
    struct rk_gate_case *all = rk_calloc(capacity, sizeof(*all));
    int32_t count = 0;

    for (size_t m = 0; m < rk_gate_num_models; m++) {
        for (size_t d = 0; d < RK_ARRAY_LEN(dtypes); d++) {
            for (size_t i = 0; i < rk_gate_num_layouts; i++) {
                all[count] = (struct rk_gate_case){
                    .layout = &rk_gate_layouts[i], .model = &rk_gate_models[m], .dtype = dtypes[d]};
                count += rk_gate_can_run(&all[count]);
            }
        }
    }
    *out = all;
    return count;
}

struct sample {
    struct rk_gate_case *cases;
    int32_t count;
    struct rk_gate_pairs pairs;
    uint64_t special;
};

static int32_t gain_of(const struct sample *sample, const struct rk_gate_case *test)
{
    uint32_t axes = axes_of(test);
    int32_t gain = __builtin_popcountll(special_bits(test) & ~sample->special);

    for (int a = 0; a < RK_GATE_NUM_AXES; a++) {
        if (axes >> a & 1)
            gain += __builtin_popcount(axes & ~sample->pairs.with[a]);
    }
    return gain;
}

static int32_t cost_of(const struct sample *sample, const struct rk_gate_case *test)
{
    int32_t cost = CASE_COST + (test->layout->is_strict ? STRICT_COST : 0);

    for (int32_t i = 0; i < sample->count; i++) {
        if (sample->cases[i].model == test->model && sample->cases[i].dtype == test->dtype)
            return cost;
    }
    return cost + (test->dtype == RK_DTYPE_BF16 ? 2 : 1) * ONE_COST;
}

static int32_t num_axes(const struct rk_gate_case *test)
{
    return __builtin_popcount(axes_of(test));
}

/* The next case of the sample; NULL: nothing is missing. */
static const struct rk_gate_case *find_best(const struct sample *sample, const struct rk_gate_case *all,
                                            int32_t count)
{
    const struct rk_gate_case *best = NULL;
    int32_t best_gain = 0, best_cost = 1, best_axes = 0;

    for (int32_t i = 0; i < count; i++) {
        int32_t gain = gain_of(sample, &all[i]), cost = cost_of(sample, &all[i]);

        if (gain == 0 || gain * best_cost < best_gain * cost ||
            (gain * best_cost == best_gain * cost && num_axes(&all[i]) <= best_axes))
            continue;
        best = &all[i];
        best_gain = gain;
        best_cost = cost;
        best_axes = num_axes(best);
    }
    return best;
}

int32_t rk_gate_sample(struct rk_gate_case *cases)
{
    struct sample sample = {.cases = cases};
    const struct rk_gate_case *next;
    struct rk_gate_case *all;
    int32_t count = rk_gate_all_cases(&all);

    while ((next = find_best(&sample, all, count)) != NULL) {
        RK_ASSERT(sample.count < RK_GATE_CASES_MAX);
        rk_gate_add_pairs(&sample.pairs, next);
        sample.special |= special_bits(next);
        cases[sample.count] = *next;
        cases[sample.count++].num_steps = RK_GATE_FEW_STEPS;
    }
    rk_free(all);
    return sample.count;
}
