/* The table of advantage estimators. */
#include "rl/algo/algo_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_assert.h"
#include "base/rk_str.h"

static const struct rk_adv_ops *const rows[] = {
#define X(name) &rk_adv_##name,
#include "rl/algo/advantages.def"
#undef X
};

const struct rk_adv_ops *rk_adv_find(const char *name)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        if (strcmp(rows[i]->name, name) == 0)
            return rows[i];
    }
    return NULL;
}

const char *rk_adv_names(void)
{
    static char names[256];

    if (names[0] == '\0') {
        struct rk_str text = {0};

        for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++)
            rk_str_appendf(&text, "%s%s", i ? ", " : "", rows[i]->name);
        snprintf(names, sizeof(names), "%s", rk_str_text(&text));
        rk_str_fini(&text);
    }
    return names;
}

/* The columns of tokens that the row reads. */
static struct rk_status *check_columns(const struct rk_adv_ops *ops, const struct rk_adv_in *in)
{
    const struct {
        uint32_t needed_by;
        const char *name;
        const float *values;
        bool is_optional;
    } columns[] = {
        {RK_ADV_NEEDS_VALUES, "values", in->values, false},
        {RK_ADV_NEEDS_OLD_LOG_PROBS, "old_log_probs", in->old_log_probs, false},
        {RK_ADV_NEEDS_SUM_PI_SQUARED, "sum_pi_squared", in->sum_pi_squared, false},
        {RK_ADV_NEEDS_SUM_PI_SQUARED, "rollout_is_weights", in->rollout_is_weights, true},
    };

    for (size_t i = 0; i < RK_ARRAY_LEN(columns); i++) {
        if (!(ops->needs & columns[i].needed_by) || (columns[i].is_optional && !columns[i].values))
            continue;
        RK_ASSERT(columns[i].values || in->num_rows == 0);
        RK_TRY(rk_check_finite(columns[i].name, columns[i].values, in->response_mask, in->num_rows,
                               in->response_length));
    }
    return NULL;
}

struct rk_status *rk_adv_compute(const struct rk_adv_ops *ops, const struct rk_adv_out *out,
                                 const struct rk_adv_in *in)
{
    RK_ASSERT(in->num_rows >= 0);
    RK_ASSERT(in->response_length > 0);
    RK_ASSERT(!(ops->needs & RK_ADV_NEEDS_REWARD_BASELINES) || in->reward_baselines || in->num_rows == 0);
    RK_ASSERT(!(ops->needs & RK_ADV_NEEDS_KEY_REWARDS) || in->num_reward_keys > 0);
    RK_TRY(check_columns(ops, in));
    return ops->compute(out, in);
}
