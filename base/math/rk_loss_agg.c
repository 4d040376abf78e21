#include "base/math/rk_loss_agg.h"

#include <string.h>

#include "base/rk_assert.h"

/* verl's constant, added to the length of a row in seq-mean-token-mean of a matrix. */
#define LENGTH_EPSILON 1e-8

static const char *const names[RK_AGG_COUNT] = {
#define NAME(id, name) [RK_AGG_##id] = name,
    RK_AGG_TABLE(NAME)
#undef NAME
};

const char *rk_loss_agg_mode_name(rk_loss_agg_mode_t mode)
{
    RK_ASSERT(mode >= 0 && mode < RK_AGG_COUNT);
    return names[mode];
}

struct rk_status *rk_loss_agg_mode_parse(const char *key, const char *text, rk_loss_agg_mode_t *mode)
{
    for (int i = 0; i < RK_AGG_COUNT; i++) {
        if (strcmp(names[i], text) == 0) {
            *mode = (rk_loss_agg_mode_t)i;
            return NULL;
        }
    }
    return RK_FAIL(RK_INVALID_ARGUMENT, "%s: expected one of %s, got \"%s\"", key, RK_AGG_CHOICES, text);
}

/* Divisor of the sum over a sequence with `length` counted tokens, before sequences are added. */
static double sequence_divisor(rk_loss_agg_mode_t mode, double length)
{
    return mode == RK_AGG_SEQ_MEAN_TOKEN_MEAN ? length : 1.0;
}

/* Divisor of the sum over sequences; 0 without counted tokens. */
static double global_divisor(rk_loss_agg_mode_t mode, const struct rk_loss_denominators *global)
{
    switch (mode) {
    case RK_AGG_TOKEN_MEAN:
        return global->num_tokens;
    case RK_AGG_TOKEN_SUM:
        return 1.0;
    case RK_AGG_SEQ_MEAN_TOKEN_SUM:
    case RK_AGG_SEQ_MEAN_TOKEN_MEAN:
        return global->num_sequences;
    case RK_AGG_SEQ_MEAN_TOKEN_SUM_NORM:
        return global->scale * global->num_sequences;
    case RK_AGG_COUNT:
        break;
    }
    RK_ASSERT(!"not an aggregation mode");
    return 0.0;
}

static int64_t count_mask(const uint8_t *mask, int32_t begin, int32_t end)
{
    int64_t count = 0;

    for (int32_t t = begin; t < end; t++)
        count += mask[t] != 0;
    return count;
}

void rk_loss_weights(double *weight, rk_loss_agg_mode_t mode, const uint8_t *mask, const int32_t *cu_seqlens,
                     int32_t num_seqs, const struct rk_loss_denominators *denominators)
{
    double global = global_divisor(mode, denominators);

    RK_ASSERT(num_seqs == 0 || cu_seqlens[0] == 0);
    for (int32_t i = 0; i < num_seqs; i++) {
        int64_t length = count_mask(mask, cu_seqlens[i], cu_seqlens[i + 1]);
        double denominator = sequence_divisor(mode, (double)length) * global;

        for (int32_t t = cu_seqlens[i]; t < cu_seqlens[i + 1]; t++)
            weight[t] = mask[t] && denominator > 0.0 ? 1.0 / denominator : 0.0;
    }
}

double rk_loss_aggregate(const struct rk_loss_matrix *matrix, rk_loss_agg_mode_t mode, double scale)
{
    struct rk_loss_denominators local = {.scale = scale};
    double total = 0.0;

    for (int64_t row = 0; row < matrix->num_rows; row++) {
        double sum = 0.0, length = 0.0;

        for (int64_t i = row * matrix->width; i < (row + 1) * matrix->width; i++) {
            if (!matrix->mask[i])
                continue;
            sum += (double)matrix->values[i];
            length += 1.0;
        }
        total += sum / sequence_divisor(mode, length + LENGTH_EPSILON);
        local.num_tokens += length;
        local.num_sequences += length > 0.0;
    }
    return local.num_tokens > 0.0 ? total / global_divisor(mode, &local) : 0.0;
}
