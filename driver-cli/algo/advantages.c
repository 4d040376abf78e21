/* The table of advantage estimators and the helpers that outcome estimators share. */
#include "driver-cli/algo/algo_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_map.h"
#include "base/rk_str.h"

static const struct rk_adv_ops *const rows[] = {
    &rk_adv_grpo,
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

struct rk_status *rk_adv_compute(const struct rk_adv_ops *ops, const struct rk_adv_out *out,
                                 const struct rk_adv_in *in)
{
    RK_ASSERT(ops->abi == RK_ADV_ABI);
    RK_ASSERT(in->num_rows >= 0);
    RK_ASSERT(in->response_length > 0);
    return ops->compute(out, in);
}

void rk_adv_takes_part(bool *takes_part, const struct rk_adv_in *in)
{
    for (int64_t i = 0; i < in->num_rows; i++) {
        takes_part[i] = false;
        for (int64_t t = 0; t < in->response_length && !takes_part[i]; t++)
            takes_part[i] = in->response_mask[i * in->response_length + t] != 0;
    }
}

int64_t rk_adv_groups(int64_t *group_of, const char *const *uid, int64_t num_rows)
{
    struct rk_map *map = rk_map_create();
    int64_t num_groups;

    for (int64_t i = 0; i < num_rows; i++) {
        void *known = rk_map_find(map, uid[i]);

        if (!known) {
            known = (void *)(uintptr_t)(rk_map_count(map) + 1);
            (void)rk_map_put(map, uid[i], known);
        }
        group_of[i] = (int64_t)(uintptr_t)known - 1;
    }
    num_groups = rk_map_count(map);
    rk_map_destroy(map);
    return num_groups;
}

void rk_adv_outcome_scores(double *scores, const struct rk_adv_in *in)
{
    for (int64_t i = 0; i < in->num_rows; i++) {
        scores[i] = 0.0;
        for (int64_t t = 0; t < in->response_length; t++)
            scores[i] += in->token_level_rewards[i * in->response_length + t];
    }
}

void rk_adv_spread(const struct rk_adv_out *out, const struct rk_adv_in *in, const double *scores)
{
    for (int64_t i = 0; i < in->num_rows; i++) {
        for (int64_t t = 0; t < in->response_length; t++) {
            int64_t at = i * in->response_length + t;

            out->advantages[at] = in->response_mask[at] ? (float)scores[i] : 0.0f;
            out->returns[at] = out->advantages[at];
        }
    }
}
