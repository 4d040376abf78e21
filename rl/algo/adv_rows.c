/* Functions that outcome estimators share: the score of a row, and its group. */
#include "rl/algo/algo_internal.h"

#include <math.h>

#include "base/rk_alloc.h"
#include "base/rk_map.h"

#define STD_EPSILON 1e-6

/* Groups of rows with equal uid: group_of[num_rows] receives indices from 0; returns the number of groups. */
static int64_t find_groups(int64_t *group_of, const char *const *uid, int64_t num_rows)
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

void rk_adv_rows_init(struct rk_adv_rows *rows, const struct rk_adv_in *in)
{
    const int64_t *mask = in->group_mask ? in->group_mask : in->response_mask;
    size_t count = (size_t)in->num_rows;

    *rows = (struct rk_adv_rows){
        .num_rows = in->num_rows,
        .scores = rk_calloc(count, sizeof(*rows->scores)),
        .group_of = rk_calloc(count, sizeof(*rows->group_of)),
        .takes_part = rk_calloc(count, sizeof(*rows->takes_part)),
    };
    rows->num_groups = find_groups(rows->group_of, in->uid, in->num_rows);
    rows->groups = rk_calloc((size_t)rows->num_groups, sizeof(*rows->groups));
    for (int64_t i = 0; i < in->num_rows; i++) {
        const float *rewards = in->token_level_rewards + i * in->response_length;

        for (int64_t t = 0; t < in->response_length; t++)
            rows->scores[i] += (double)rewards[t];
        rows->takes_part[i] = rk_mask_count(mask + i * in->response_length, in->response_length) > 0;
    }
    rk_adv_rows_measure(rows);
}

void rk_adv_rows_fini(struct rk_adv_rows *rows)
{
    rk_free(rows->scores);
    rk_free(rows->group_of);
    rk_free(rows->takes_part);
    rk_free(rows->groups);
    *rows = (struct rk_adv_rows){0};
}

void rk_adv_rows_measure(struct rk_adv_rows *rows)
{
    for (int64_t g = 0; g < rows->num_groups; g++)
        rows->groups[g] = (struct rk_adv_group){0};
    for (int64_t i = 0; i < rows->num_rows; i++) {
        if (!rows->takes_part[i])
            continue;
        rows->groups[rows->group_of[i]].count++;
        rows->groups[rows->group_of[i]].sum += rows->scores[i];
    }
    for (int64_t i = 0; i < rows->num_rows; i++) {
        struct rk_adv_group *group = &rows->groups[rows->group_of[i]];
        double deviation;

        if (!rows->takes_part[i])
            continue;
        deviation = rows->scores[i] - group->sum / (double)group->count;
        group->std += deviation * deviation;
    }
    for (int64_t g = 0; g < rows->num_groups; g++) {
        struct rk_adv_group *group = &rows->groups[g];

        group->mean = group->count > 1 ? group->sum / (double)group->count : 0.0;
        group->std = group->count > 1 ? sqrt(group->std / (double)(group->count - 1)) : 1.0;
    }
}

void rk_adv_rows_normalise(struct rk_adv_rows *rows, bool by_std)
{
    for (int64_t i = 0; i < rows->num_rows; i++) {
        const struct rk_adv_group *group = &rows->groups[rows->group_of[i]];

        if (rows->takes_part[i])
            rows->scores[i] = (rows->scores[i] - group->mean) / (by_std ? group->std + STD_EPSILON : 1.0);
    }
}

void rk_adv_rows_spread(const struct rk_adv_out *out, const struct rk_adv_in *in,
                        const struct rk_adv_rows *rows)
{
    for (int64_t i = 0; i < in->num_rows * in->response_length; i++) {
        out->advantages[i] = in->response_mask[i] ? (float)rows->scores[i / in->response_length] : 0.0f;
        out->returns[i] = out->advantages[i];
    }
}

struct rk_status *rk_adv_rows_spread_whitened(const struct rk_adv_out *out, const struct rk_adv_in *in,
                                              const struct rk_adv_rows *rows)
{
    int64_t count = in->num_rows * in->response_length;
    double *values = rk_calloc((size_t)count, sizeof(*values));
    struct rk_status *st;

    for (int64_t i = 0; i < count; i++)
        values[i] = rows->scores[i / in->response_length];
    st = rk_mask_whiten(values, in->response_mask, count, false);
    for (int64_t i = 0; i < count && !st; i++) {
        out->advantages[i] = in->response_mask[i] ? (float)values[i] : 0.0f;
        out->returns[i] = out->advantages[i];
    }
    rk_free(values);
    return st;
}

void rk_adv_rewards_to_go(double *returns, const struct rk_adv_in *in, int64_t row)
{
    int64_t begin = row * in->response_length;
    double sum = 0.0;

    for (int64_t t = in->response_length - 1; t >= 0; t--) {
        if (in->response_mask[begin + t])
            sum += (double)in->token_level_rewards[begin + t];
        returns[t] = sum;
    }
}
