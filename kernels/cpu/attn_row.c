/* Attention of one query row: all scores, their maximum, then exponentials, their sum and the weighted
 * values; each sum is sequential in ascending key order. */
#include "base/rk_assert.h"
#include "kernels/cpu/attn_internal.h"

#include <math.h>
#include <string.h>

int64_t rk_attn_scratch(int64_t num_keys, int64_t head_dim, int64_t v_head_dim)
{
    int64_t padded_keys = rk_panel_round_up(num_keys), padded_dim = rk_panel_round_up(v_head_dim);

    return padded_keys * (head_dim + padded_dim + 1) + head_dim + padded_dim;
}

void rk_attn_init(struct rk_attn *attn, double *scratch, int64_t num_keys, int64_t head_dim,
                  int64_t v_head_dim)
{
    int64_t padded_keys = rk_panel_round_up(num_keys);

    attn->head_dim = head_dim;
    attn->v_head_dim = v_head_dim;
    attn->padded_dim = rk_panel_round_up(v_head_dim);
    attn->panels = scratch;
    attn->values = attn->panels + padded_keys * head_dim;
    attn->scores = attn->values + padded_keys * attn->padded_dim;
    attn->query = attn->scores + padded_keys;
    attn->out = attn->query + head_dim;
}

void rk_attn_set_key(struct rk_attn *attn, int64_t j, const void *k, const void *v, rk_dtype_t dtype)
{
    double *panel = attn->panels + j / RK_PANEL * RK_PANEL * attn->head_dim;
    double *value = attn->values + j * attn->padded_dim;

    rk_load_f64(attn->query, k, dtype, attn->head_dim);
    rk_panel_set_column(panel, j % RK_PANEL, attn->query, attn->head_dim);
    rk_load_f64(value, v, dtype, attn->v_head_dim);
    memset(value + attn->v_head_dim, 0, (size_t)(attn->padded_dim - attn->v_head_dim) * sizeof(*value));
}

double rk_attn_row(struct rk_attn *attn, int64_t begin, int64_t end)
{
    double *scores = attn->scores;
    double max = -INFINITY, sum = 0.0;

    RK_ASSERT(begin < end);
    /* Whole panels: also computes the keys around [begin, end) and ignores them. */
    for (int64_t j = begin / RK_PANEL * RK_PANEL; j < end; j += RK_PANEL) {
        memset(scores + j, 0, RK_PANEL * sizeof(*scores));
        rk_panel_accumulate(scores + j, attn->query, attn->panels + j * attn->head_dim, attn->head_dim,
                            RK_PANEL);
    }
    for (int64_t j = begin; j < end; j++) {
        scores[j] *= attn->scale;
        max = scores[j] > max ? scores[j] : max;
    }
    for (int64_t j = begin; j < end; j++) {
        scores[j] = exp(scores[j] - max);
        sum += scores[j];
    }
    memset(attn->out, 0, (size_t)attn->padded_dim * sizeof(*attn->out));
    rk_panel_accumulate(attn->out, scores + begin, attn->values + begin * attn->padded_dim, end - begin,
                        attn->padded_dim);
    for (int64_t c = 0; c < attn->v_head_dim; c++)
        attn->out[c] /= sum;
    return max + log(sum);
}
