/* Argument checks of the operators around the layers: vocabulary statistics, sampling, row moves, elementwise
 * passes and the optimizer. */
#include "kernels/checks_internal.h"

#include <float.h>
#include <math.h>

static void expect_vocab_part(struct rk_check *check, int64_t vocab_begin, int64_t num_valid, int64_t columns,
                              float inv_temperature)
{
    rk_expect(check, vocab_begin >= 0, "vocab_begin=%lld, expected >= 0", (long long)vocab_begin);
    rk_expect(check, num_valid >= 0 && num_valid <= columns, "num_valid=%lld, expected 0 to %lld",
              (long long)num_valid, (long long)columns);
    rk_expect(check, isfinite(inv_temperature) && inv_temperature > 0,
              "inv_temperature=%g, expected finite and > 0", (double)inv_temperature);
}

int64_t rk_check_vocab_stats(struct rk_check *check, const struct rk_vocab_stats_args *args)
{
    int64_t num_tokens = args->logits.shape[0];

    rk_expect_source(check, "logits", args->logits, 2);
    rk_expect_tensor(check, "stats", args->stats, RK_DTYPE_F64, RK_DIMS(num_tokens, 4));
    rk_expect_optional(check, "squares", args->squares, RK_DTYPE_F64, RK_DIMS(num_tokens));
    rk_expect_tensor(check, "labels", args->labels, RK_DTYPE_I32, RK_DIMS(num_tokens));
    expect_vocab_part(check, args->vocab_begin, args->num_valid, args->logits.shape[1],
                      args->inv_temperature);
    return num_tokens;
}

int64_t rk_check_vocab_stats_merge(struct rk_check *check, const struct rk_vocab_stats_merge_args *args)
{
    int64_t num_parts = args->parts.shape[0], num_tokens = args->parts.shape[1];
    rk_dtype_t dtype = rk_stat_dtype(args->log_probs.dtype);

    rk_expect_tensor(check, "parts", args->parts, RK_DTYPE_F64, RK_DIMS(num_parts, num_tokens, 4));
    rk_expect(check, num_parts >= 1, "parts has num_parts=%lld, expected >= 1", (long long)num_parts);
    rk_expect_optional(check, "stats", args->stats, RK_DTYPE_F64, RK_DIMS(num_tokens, 4));
    rk_expect_tensor(check, "log_probs", args->log_probs, dtype, RK_DIMS(num_tokens));
    rk_expect_optional(check, "entropy", args->entropy, dtype, RK_DIMS(num_tokens));
    rk_expect_optional(check, "sum_pi_squared", args->sum_pi_squared, dtype, RK_DIMS(num_tokens));
    rk_expect_optional(check, "squares", args->squares, RK_DTYPE_F64, RK_DIMS(num_tokens));
    if (args->sum_pi_squared.data || args->squares.data)
        rk_expect_tensor(check, "square_parts", args->square_parts, RK_DTYPE_F64,
                         RK_DIMS(num_parts, num_tokens));
    return num_tokens;
}

static void expect_num_ids(struct rk_check *check, rk_tensor_t ids)
{
    rk_expect(check, ids.rank == 2 && ids.shape[1] >= 1 && ids.shape[1] <= RK_VOCAB_IDS_MAX,
              "ids has rank %d and %lld a row, expected rank 2 and 1 to %d a row", ids.rank,
              (long long)ids.shape[1], RK_VOCAB_IDS_MAX);
}

int64_t rk_check_vocab_gather(struct rk_check *check, const struct rk_vocab_gather_args *args)
{
    int64_t num_tokens = args->logits.shape[0], num_ids = args->ids.shape[1];

    rk_expect_source(check, "logits", args->logits, 2);
    expect_num_ids(check, args->ids);
    rk_expect_tensor(check, "ids", args->ids, RK_DTYPE_I32, RK_DIMS(num_tokens, num_ids));
    rk_expect_tensor(check, "z", args->z, RK_DTYPE_F64, RK_DIMS(num_tokens, num_ids));
    rk_expect_tensor(check, "stats", args->stats, RK_DTYPE_F64, RK_DIMS(num_tokens, 4));
    expect_vocab_part(check, args->vocab_begin, args->num_valid, args->logits.shape[1],
                      args->inv_temperature);
    return num_tokens;
}

int64_t rk_check_vocab_gather_merge(struct rk_check *check, const struct rk_vocab_gather_merge_args *args)
{
    int64_t num_tokens = args->ids.shape[0], num_ids = args->ids.shape[1], num_parts = args->parts.shape[0];

    expect_num_ids(check, args->ids);
    rk_expect_tensor(check, "ids", args->ids, RK_DTYPE_I32, RK_DIMS(num_tokens, num_ids));
    rk_expect_tensor(check, "parts", args->parts, RK_DTYPE_F64, RK_DIMS(num_parts, num_tokens, num_ids));
    rk_expect(check, num_parts >= 1, "parts has num_parts=%lld, expected >= 1", (long long)num_parts);
    rk_expect_tensor(check, "stats", args->stats, RK_DTYPE_F64, RK_DIMS(num_tokens, 4));
    rk_expect_tensor(check, "log_probs", args->log_probs, rk_stat_dtype(args->log_probs.dtype),
                     RK_DIMS(num_tokens, num_ids));
    return num_tokens;
}

static void expect_gathered(struct rk_check *check, const struct rk_vocab_gather_grads *gathered,
                            int64_t num_tokens, rk_dtype_t dtype)
{
    int64_t num_ids = gathered->ids.shape[1];

    if (!gathered->ids.data)
        return;
    expect_num_ids(check, gathered->ids);
    rk_expect_tensor(check, "gathered.ids", gathered->ids, RK_DTYPE_I32, RK_DIMS(num_tokens, num_ids));
    rk_expect_tensor(check, "gathered.log_probs", gathered->log_probs, dtype, RK_DIMS(num_tokens, num_ids));
    rk_expect_tensor(check, "gathered.dlog_probs", gathered->dlog_probs, dtype, RK_DIMS(num_tokens, num_ids));
    rk_expect_tensor(check, "gathered.dsum", gathered->dsum, dtype, RK_DIMS(num_tokens));
}

int64_t rk_check_top_k(struct rk_check *check, const struct rk_top_k_args *args)
{
    int64_t num_rows = args->logits.shape[0], columns = args->logits.shape[1], k = args->ids.shape[1];

    rk_expect_source(check, "logits", args->logits, 2);
    expect_num_ids(check, args->ids);
    rk_expect_tensor(check, "ids", args->ids, RK_DTYPE_I32, RK_DIMS(num_rows, k));
    rk_expect_tensor(check, "values", args->values, rk_stat_dtype(args->logits.dtype), RK_DIMS(num_rows, k));
    rk_expect_optional(check, "source_ids", args->source_ids, RK_DTYPE_I32, RK_DIMS(num_rows, columns));
    expect_vocab_part(check, args->vocab_begin, args->num_valid, columns, 1.0f);
    return num_rows;
}

int64_t rk_check_vocab_stats_bwd(struct rk_check *check, const struct rk_vocab_stats_bwd_args *args)
{
    int64_t num_tokens = args->logits.shape[0], columns = args->logits.shape[1];
    rk_dtype_t stat_dtype = rk_stat_dtype(args->logits.dtype);

    rk_expect_source(check, "logits", args->logits, 2);
    rk_expect_tensor(check, "dlogits", args->dlogits, args->logits.dtype, RK_DIMS(num_tokens, columns));
    rk_expect_tensor(check, "stats", args->stats, RK_DTYPE_F64, RK_DIMS(num_tokens, 4));
    rk_expect_tensor(check, "dlog_probs", args->dlog_probs, stat_dtype, RK_DIMS(num_tokens));
    rk_expect_optional(check, "dentropy", args->dentropy, stat_dtype, RK_DIMS(num_tokens));
    rk_expect_optional(check, "dsum_pi_squared", args->dsum_pi_squared, stat_dtype, RK_DIMS(num_tokens));
    if (args->dsum_pi_squared.data)
        rk_expect_tensor(check, "squares", args->squares, RK_DTYPE_F64, RK_DIMS(num_tokens));
    expect_gathered(check, &args->gathered, num_tokens, stat_dtype);
    rk_expect_tensor(check, "labels", args->labels, RK_DTYPE_I32, RK_DIMS(num_tokens));
    expect_vocab_part(check, args->vocab_begin, args->num_valid, columns, args->inv_temperature);
    return num_tokens * columns;
}

int64_t rk_check_sample(struct rk_check *check, const struct rk_sample_args *args)
{
    int64_t num_rows = args->logits.shape[0], columns = args->logits.shape[1];

    rk_expect_source(check, "logits", args->logits, 2);
    rk_expect_tensor(check, "tokens", args->tokens, RK_DTYPE_I32, RK_DIMS(num_rows));
    rk_expect_tensor(check, "log_probs", args->log_probs, RK_DTYPE_F32, RK_DIMS(num_rows));
    rk_expect(check, args->vocab_size >= 1 && args->vocab_size <= columns && args->vocab_size <= INT32_MAX,
              "vocab_size=%lld, expected 1 to %lld", (long long)args->vocab_size, (long long)columns);
    rk_expect(check, args->params || num_rows == 0, "params is none, expected %lld rows",
              (long long)num_rows);
    return num_rows;
}

int64_t rk_check_next_tokens(struct rk_check *check, const struct rk_next_tokens_args *args)
{
    int64_t num_tokens = args->tokens.shape[0];

    rk_expect_tensor(check, "tokens", args->tokens, RK_DTYPE_I32, RK_DIMS(num_tokens));
    rk_expect_tensor(check, "source", args->source, RK_DTYPE_I32, RK_DIMS(num_tokens));
    rk_expect_tensor(check, "sampled", args->sampled, RK_DTYPE_I32, RK_DIMS(args->sampled.shape[0]));
    rk_expect_no_alias(check, "tokens", args->tokens, "sampled", args->sampled);
    return num_tokens;
}

static void expect_row_move(struct rk_check *check, const struct rk_rows_args *args, int64_t out_rows,
                            int64_t x_rows)
{
    int64_t columns = args->x.shape[1];

    rk_expect_tensor(check, "x", args->x, args->x.dtype, RK_DIMS(x_rows, columns));
    rk_expect_tensor(check, "out", args->out, args->x.dtype, RK_DIMS(out_rows, columns));
    rk_expect_tensor(check, "index", args->index, RK_DTYPE_I32, RK_DIMS(args->index.shape[0]));
    rk_expect_no_alias(check, "out", args->out, "x", args->x);
}

int64_t rk_check_gather_rows(struct rk_check *check, const struct rk_rows_args *args)
{
    expect_row_move(check, args, args->index.shape[0], args->x.shape[0]);
    rk_expect_optional(check, "count", args->count, RK_DTYPE_I32, RK_DIMS(1));
    return args->index.shape[0] * args->x.shape[1];
}

int64_t rk_check_scatter_rows(struct rk_check *check, const struct rk_rows_args *args)
{
    expect_row_move(check, args, args->out.shape[0], args->index.shape[0]);
    rk_expect_optional(check, "count", args->count, RK_DTYPE_I32, RK_DIMS(1));
    return args->index.shape[0] * args->x.shape[1];
}

int64_t rk_check_axpby(struct rk_check *check, const struct rk_axpby_args *args)
{
    int64_t count = rk_tensor_num_elements(args->y);

    rk_expect_source(check, "y", args->y, args->y.rank);
    rk_expect_source(check, "x", args->x, args->x.rank);
    rk_expect_contiguous(check, "y", args->y);
    rk_expect_contiguous(check, "x", args->x);
    rk_expect(check, rk_tensor_num_elements(args->x) == count, "x has %lld elements, expected %lld like y",
              (long long)rk_tensor_num_elements(args->x), (long long)count);
    rk_expect_no_alias(check, "y", args->y, "x", args->x);
    return count;
}

int64_t rk_check_sum_squares(struct rk_check *check, const struct rk_sum_squares_args *args)
{
    rk_expect_source(check, "x", args->x, args->x.rank);
    rk_expect_contiguous(check, "x", args->x);
    rk_expect_tensor(check, "out", args->out, RK_DTYPE_F64, RK_DIMS(2));
    return rk_tensor_num_elements(args->x);
}

int64_t rk_check_random_normal(struct rk_check *check, const struct rk_random_normal_args *args)
{
    rk_expect_source(check, "out", args->out, 2);
    rk_expect(check, isfinite(args->deviation), "deviation=%g, expected finite", args->deviation);
    return rk_tensor_num_elements(args->out);
}

int64_t rk_check_copy_2d(struct rk_check *check, const struct rk_copy_2d_args *args)
{
    int64_t num_rows = args->x.shape[0], columns = args->x.shape[1];

    rk_expect_source(check, "x", args->x, 2);
    rk_expect_source(check, "out", args->out, 2);
    rk_expect_tensor(check, "out", args->out, args->out.dtype, RK_DIMS(num_rows, columns));
    rk_expect_no_alias(check, "out", args->out, "x", args->x);
    return num_rows * columns;
}

int64_t rk_check_fingerprint(struct rk_check *check, const struct rk_fingerprint_args *args)
{
    rk_expect_source(check, "x", args->x, 2);
    rk_expect_tensor(check, "out", args->out, RK_DTYPE_I64, RK_DIMS(1));
    rk_expect(check, rk_dtype_is_float(args->dtype), "dtype is %s, expected a float type",
              rk_dtype_name(args->dtype));
    return rk_tensor_num_elements(args->x);
}

int64_t rk_check_adamw(struct rk_check *check, const struct rk_adamw_args *args)
{
    struct rk_dims dims = RK_DIMS(args->param.shape[0]);
    rk_dtype_t state = rk_stat_dtype(args->param.dtype);
    const struct {
        const char *name;
        double value, min, max;
    } ranges[] = {
        {"lr", args->lr, 0, DBL_MAX},
        {"beta1", args->beta1, 0, 1},
        {"beta2", args->beta2, 0, 1},
        {"eps", args->eps, 0, DBL_MAX},
        {"weight_decay", args->weight_decay, 0, DBL_MAX},
        {"correction1", args->correction1, 0, 1},
        {"correction2", args->correction2, 0, 1},
    };

    rk_expect_source(check, "param", args->param, 1);
    rk_expect_tensor(check, "master", args->master, state, dims);
    rk_expect_tensor(check, "m", args->m, state, dims);
    rk_expect_tensor(check, "v", args->v, state, dims);
    rk_expect_tensor(check, "grad", args->grad, state, dims);
    for (size_t i = 0; i < RK_ARRAY_LEN(ranges); i++)
        rk_expect(check, ranges[i].value >= ranges[i].min && ranges[i].value <= ranges[i].max,
                  "%s=%g, expected %g to %g", ranges[i].name, ranges[i].value, ranges[i].min, ranges[i].max);
    rk_expect(check, args->correction1 > 0 && args->correction2 > 0,
              "correction1=%g, correction2=%g, expected > 0 (the first step is 1)", args->correction1,
              args->correction2);
    rk_expect(check, isfinite(args->grad_scale), "grad_scale=%g, expected finite", args->grad_scale);
    return dims.size[0];
}
