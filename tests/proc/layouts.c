#include "tests/proc/layouts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/proc/cli_fixture.h"

#define TP(n)         LAYOUT_ACTOR "megatron.tensor_model_parallel_size=" #n
#define CP(n)         LAYOUT_ACTOR "megatron.context_parallel_size=" #n
#define PP(n)         LAYOUT_ACTOR "megatron.pipeline_model_parallel_size=" #n
#define VPP(n)        LAYOUT_ACTOR "megatron.virtual_pipeline_model_parallel_size=" #n
#define LAST_STAGE    "megatron.override_transformer_config.num_layers_in_last_pipeline_stage="
#define LAST(n)       LAYOUT_ACTOR LAST_STAGE #n
#define NO_SP         LAYOUT_ACTOR "megatron.sequence_parallel=false"
#define ROLLOUT_TP(n) LAYOUT_ROLLOUT "tensor_model_parallel_size=" #n

static const struct layout rows[] = {
    {"one rank", 1, 1, 1, {TP(1)}},
    {"tp 2", 2, 2, 2, {TP(2)}},
    {"tp 2, no sequence parallelism", 2, 2, 2, {TP(2), NO_SP}},
    {"pp 2", 2, 1, 1, {TP(1), PP(2)}},
    {"pp 2, vpp 2", 2, 1, 1, {TP(1), PP(2), VPP(2)}},
    {"cp 2", 2, 1, 1, {TP(1), CP(2)}},
    {"dp 2", 2, 1, 1, {TP(1)}},
    {"tp 2, rollout tp 1", 2, 2, 1, {TP(2), ROLLOUT_TP(1)}},
    {"tp 4", 4, 4, 4, {TP(4)}},
    {"tp 4, no sequence parallelism", 4, 4, 4, {TP(4), NO_SP}},
    {"tp 2 x pp 2", 4, 2, 2, {TP(2), PP(2)}},
    {"pp 4", 4, 1, 1, {TP(1), PP(4)}},
    {"pp 3, two layers in the last stage", 3, 1, 1, {TP(1), PP(3), LAST(2)}},
    {"tp 2 x cp 2", 4, 2, 2, {TP(2), CP(2)}},
    {"dp 4", 4, 1, 1, {TP(1)}},
    {"pp 2, vpp 2 x dp 2", 4, 1, 1, {TP(1), PP(2), VPP(2)}},
    {"tp 2 x pp 2, vpp 2, rollout tp 4", 4, 2, 4, {TP(2), PP(2), VPP(2), ROLLOUT_TP(4)}},
    {"tp 2 x pp 2, rollout tp 1", 4, 2, 1, {TP(2), PP(2), ROLLOUT_TP(1)}},
    {"tp 2 x pp 2 x cp 2", 8, 2, 2, {TP(2), PP(2), CP(2)}},
    {"tp 2 x pp 2 x dp 2", 8, 2, 2, {TP(2), PP(2)}},
};

const struct layout *layouts(int64_t *count)
{
    *count = RK_ARRAY_LEN(rows);
    return rows;
}

const struct layout *layout_find(const char *label)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        if (strcmp(rows[i].label, label) == 0)
            return &rows[i];
    }
    fail_msg("no layout '%s'", label);
    return NULL;
}

const char *layout_local(const struct layout *layout)
{
    static char text[32];

    snprintf(text, sizeof(text), "%d", layout->num_daemons);
    return text;
}

bool layout_fits(const struct layout *layout)
{
    bool fits = has_devices(layout->num_daemons);

    if (!fits)
        rk_test_skip_part("%s: this machine has fewer than %d GPUs", layout->label, layout->num_daemons);
    return fits;
}

void layout_assert_step(const char *dir, const char *expected_dir, int64_t step)
{
    static const char *const names[] = {
        "critic/score/mean",
        "critic/rewards/mean",
        "response_length/mean",
        "actor/entropy",
        "actor/pg_loss",
        "actor/ppo_kl",
        "actor/grad_norm",
        "actor/lr",
        "training/rollout_probs_diff_max",
    };
    struct rk_json *metrics = read_metrics(dir, step), *expected = read_metrics(expected_dir, step);

    for (size_t i = 0; i < RK_ARRAY_LEN(names); i++)
        assert_below(names[i], fabs(metric(metrics, names[i]) - metric(expected, names[i])),
                     RK_TOL_F32_SUM * fmax(1.0, fabs(metric(expected, names[i]))));
    assert_below("rollout against trainer", metric(metrics, "training/rollout_probs_diff_max"),
                 RK_TOL_F32_SUM);
    assert_true(metric(expected, "actor/grad_norm") > 0.0);
    rk_json_free(expected);
    rk_json_free(metrics);
}
