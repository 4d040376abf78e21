/* Argument checks of the operators that make up the layers of a transformer. */
#include "kernels/checks_internal.h"

#include <math.h>

int64_t rk_check_gemm(struct rk_check *check, const struct rk_gemm_args *args)
{
    const rk_tensor_t *a = &args->a, *b = &args->b;
    int64_t m = a->shape[args->trans_a ? 1 : 0];
    int64_t k = a->shape[args->trans_a ? 0 : 1];
    int64_t n = b->shape[args->trans_b ? 0 : 1];

    rk_expect_source(check, "a", *a, 2);
    rk_expect_tensor(check, "b", *b, a->dtype, args->trans_b ? RK_DIMS(n, k) : RK_DIMS(k, n));
    rk_expect_source(check, "c", args->c, 2);
    rk_expect_tensor(check, "c", args->c, args->c.dtype, RK_DIMS(m, n));
    rk_expect_optional(check, "bias", args->bias, a->dtype, RK_DIMS(n));
    rk_expect(check, !args->swiglu.data || n % 2 == 0,
              "c has %lld columns, expected an even number for swiglu", (long long)n);
    rk_expect_optional(check, "swiglu", args->swiglu, args->c.dtype, RK_DIMS(m, n / 2));
    rk_expect_no_alias(check, "swiglu", args->swiglu, "a", *a);
    rk_expect_no_alias(check, "swiglu", args->swiglu, "c", args->c);
    rk_expect_no_alias(check, "c", args->c, "a", *a);
    rk_expect_no_alias(check, "c", args->c, "b", *b);
    return m * n;
}

/* Accumulated gradients have F32 or the dtype of the incoming gradient. */
static void expect_gradient(struct rk_check *check, const char *arg, rk_tensor_t t, rk_dtype_t dtype,
                            struct rk_dims dims)
{
    rk_expect_tensor(check, arg, t, t.dtype == RK_DTYPE_F32 ? RK_DTYPE_F32 : dtype, dims);
}

int64_t rk_check_bias_bwd(struct rk_check *check, const struct rk_bias_bwd_args *args)
{
    const int64_t *shape = args->dy.shape;

    rk_expect_source(check, "dy", args->dy, 2);
    expect_gradient(check, "dbias", args->dbias, args->dy.dtype, RK_DIMS(shape[1]));
    rk_expect_no_alias(check, "dbias", args->dbias, "dy", args->dy);
    return shape[0] * shape[1];
}

int64_t rk_check_embed_fwd(struct rk_check *check, const struct rk_embed_fwd_args *args)
{
    int64_t num_tokens = args->out.shape[0];

    rk_expect_source(check, "table", args->table, 2);
    rk_expect_tensor(check, "out", args->out, args->table.dtype, RK_DIMS(num_tokens, args->table.shape[1]));
    rk_expect_tensor(check, "tokens", args->tokens, RK_DTYPE_I32, RK_DIMS(num_tokens));
    rk_expect(check, args->vocab_begin >= 0, "vocab_begin=%lld, expected >= 0", (long long)args->vocab_begin);
    rk_expect_no_alias(check, "out", args->out, "table", args->table);
    return num_tokens;
}

int64_t rk_check_embed_bwd(struct rk_check *check, const struct rk_embed_bwd_args *args)
{
    int64_t num_tokens = args->dout.shape[0];

    rk_expect_source(check, "dout", args->dout, 2);
    expect_gradient(check, "dtable", args->dtable, args->dout.dtype,
                    RK_DIMS(args->dtable.shape[0], args->dout.shape[1]));
    rk_expect_tensor(check, "tokens", args->tokens, RK_DTYPE_I32, RK_DIMS(num_tokens));
    rk_expect(check, args->vocab_begin >= 0, "vocab_begin=%lld, expected >= 0", (long long)args->vocab_begin);
    rk_expect_no_alias(check, "dtable", args->dtable, "dout", args->dout);
    return num_tokens;
}

int64_t rk_check_rmsnorm_fwd(struct rk_check *check, const struct rk_rmsnorm_fwd_args *args)
{
    rk_dtype_t dtype = args->x.dtype;
    struct rk_dims dims = RK_DIMS(args->x.shape[0], args->x.shape[1]);

    rk_expect_source(check, "x", args->x, 2);
    rk_expect(check, dims.size[1] >= 1, "x has no columns, expected hidden_size >= 1");
    rk_expect_tensor(check, "y", args->y, dtype, dims);
    rk_expect_optional(check, "rstd", args->rstd, rk_stat_dtype(dtype), RK_DIMS(dims.size[0]));
    rk_expect_optional(check, "residual", args->residual, dtype, dims);
    if (args->residual.data)
        rk_expect_tensor(check, "sum", args->sum, dtype, dims);
    else
        rk_expect(check, !args->sum.data, "sum is given without residual, expected none");
    rk_expect_tensor(check, "weight", args->weight, dtype, RK_DIMS(dims.size[1]));
    rk_expect(check, isfinite(args->eps) && args->eps >= 0, "eps=%g, expected finite and >= 0",
              (double)args->eps);
    rk_expect_no_alias(check, "y", args->y, "x", args->x);
    rk_expect_no_alias(check, "y", args->y, "residual", args->residual);
    rk_expect_no_alias(check, "y", args->y, "sum", args->sum);
    return dims.size[0];
}

int64_t rk_check_rmsnorm_bwd(struct rk_check *check, const struct rk_rmsnorm_bwd_args *args)
{
    rk_dtype_t dtype = args->dy.dtype;
    struct rk_dims dims = RK_DIMS(args->dy.shape[0], args->dy.shape[1]);

    rk_expect_source(check, "dy", args->dy, 2);
    rk_expect(check, dims.size[1] >= 1, "dy has no columns, expected hidden_size >= 1");
    rk_expect_tensor(check, "x", args->x, dtype, dims);
    rk_expect_tensor(check, "dx", args->dx, dtype, dims);
    expect_gradient(check, "dweight", args->dweight, dtype, RK_DIMS(dims.size[1]));
    rk_expect_optional(check, "dresidual", args->dresidual, dtype, dims);
    rk_expect_tensor(check, "weight", args->weight, dtype, RK_DIMS(dims.size[1]));
    rk_expect_tensor(check, "rstd", args->rstd, rk_stat_dtype(dtype), RK_DIMS(dims.size[0]));
    rk_expect_no_alias(check, "dx", args->dx, "dy", args->dy);
    rk_expect_no_alias(check, "dx", args->dx, "x", args->x);
    return dims.size[0];
}

int64_t rk_check_head_norm_fwd(struct rk_check *check, const struct rk_head_norm_fwd_args *args)
{
    rk_dtype_t dtype = args->x.dtype;
    const int64_t *shape = args->x.shape;

    rk_expect_source(check, "x", args->x, 3);
    rk_expect(check, shape[2] >= 1, "x has head_dim=%lld, expected >= 1", (long long)shape[2]);
    rk_expect_tensor(check, "y", args->y, dtype, RK_DIMS(shape[0], shape[1], shape[2]));
    rk_expect_optional(check, "rstd", args->rstd, rk_stat_dtype(dtype), RK_DIMS(shape[0], shape[1]));
    rk_expect_tensor(check, "weight", args->weight, dtype, RK_DIMS(shape[2]));
    rk_expect(check, isfinite(args->eps) && args->eps >= 0, "eps=%g, expected finite and >= 0",
              (double)args->eps);
    return shape[0] * shape[1];
}

int64_t rk_check_head_norm_bwd(struct rk_check *check, const struct rk_head_norm_bwd_args *args)
{
    rk_dtype_t dtype = args->dy.dtype;
    const int64_t *shape = args->dy.shape;
    struct rk_dims dims = RK_DIMS(shape[0], shape[1], shape[2]);

    rk_expect_source(check, "dy", args->dy, 3);
    rk_expect(check, shape[2] >= 1, "dy has head_dim=%lld, expected >= 1", (long long)shape[2]);
    rk_expect_tensor(check, "x", args->x, dtype, dims);
    rk_expect_tensor(check, "dx", args->dx, dtype, dims);
    expect_gradient(check, "dweight", args->dweight, dtype, RK_DIMS(shape[2]));
    rk_expect_tensor(check, "weight", args->weight, dtype, RK_DIMS(shape[2]));
    rk_expect_tensor(check, "rstd", args->rstd, rk_stat_dtype(dtype), RK_DIMS(shape[0], shape[1]));
    rk_expect_no_alias(check, "dx", args->dx, "x", args->x);
    return shape[0] * shape[1];
}

static void expect_project(struct rk_check *check, rk_tensor_t x, rk_tensor_t weight)
{
    rk_expect_source(check, "x", x, 2);
    rk_expect(check, x.shape[1] >= 1, "x has hidden_size=%lld, expected >= 1", (long long)x.shape[1]);
    rk_expect_tensor(check, "weight", weight, x.dtype, RK_DIMS(weight.shape[0], x.shape[1]));
    rk_expect(check, weight.shape[0] >= 1, "weight has columns=%lld, expected >= 1",
              (long long)weight.shape[0]);
}

int64_t rk_check_project_fwd(struct rk_check *check, const struct rk_project_fwd_args *args)
{
    int64_t num_tokens = args->x.shape[0], columns = args->weight.shape[0];
    rk_dtype_t dtype = args->x.dtype;

    expect_project(check, args->x, args->weight);
    rk_expect_optional(check, "bias", args->bias, dtype, RK_DIMS(columns));
    rk_expect_tensor(check, "scores", args->scores, rk_stat_dtype(dtype), RK_DIMS(num_tokens, columns));
    return num_tokens;
}

int64_t rk_check_project_bwd(struct rk_check *check, const struct rk_project_bwd_args *args)
{
    int64_t num_tokens = args->x.shape[0], hidden_size = args->x.shape[1], columns = args->weight.shape[0];
    rk_dtype_t dtype = args->x.dtype;

    expect_project(check, args->x, args->weight);
    rk_expect_tensor(check, "dscores", args->dscores, rk_stat_dtype(dtype), RK_DIMS(num_tokens, columns));
    rk_expect_tensor(check, "dx", args->dx, dtype, RK_DIMS(num_tokens, hidden_size));
    expect_gradient(check, "dweight", args->dweight, dtype, RK_DIMS(columns, hidden_size));
    rk_expect_contiguous(check, "dweight", args->dweight);
    rk_expect_no_alias(check, "dx", args->dx, "x", args->x);
    return num_tokens;
}

int64_t rk_check_rope(struct rk_check *check, const struct rk_rope_args *args)
{
    int64_t num_tokens = args->x.shape[0];
    int64_t head_dim = args->x.shape[2] - args->begin;

    rk_expect_source(check, "x", args->x, 3);
    rk_expect(check, args->begin >= 0, "begin=%lld, expected >= 0", (long long)args->begin);
    rk_expect(check, head_dim >= 2 && head_dim % 2 == 0, "x has head_dim=%lld from begin on, expected even",
              (long long)head_dim);
    rk_expect_tensor(check, "cos", args->cos, RK_DTYPE_F32, RK_DIMS(args->cos.shape[0], head_dim / 2));
    rk_expect_tensor(check, "sin", args->sin, RK_DTYPE_F32, RK_DIMS(args->cos.shape[0], head_dim / 2));
    rk_expect_tensor(check, "positions", args->positions, RK_DTYPE_I32, RK_DIMS(num_tokens));
    return num_tokens * args->x.shape[1];
}

int64_t rk_check_swiglu_fwd(struct rk_check *check, const struct rk_swiglu_fwd_args *args)
{
    struct rk_dims dims = RK_DIMS(args->gate.shape[0], args->gate.shape[1]);

    rk_expect_source(check, "gate", args->gate, 2);
    rk_expect_tensor(check, "up", args->up, args->gate.dtype, dims);
    rk_expect_tensor(check, "y", args->y, args->gate.dtype, dims);
    rk_expect_optional(check, "probs", args->probs, rk_stat_dtype(args->gate.dtype), RK_DIMS(dims.size[0]));
    rk_expect_optional(check, "count", args->count, RK_DTYPE_I32, RK_DIMS(1));
    rk_expect_no_alias(check, "y", args->y, "gate", args->gate);
    rk_expect_no_alias(check, "y", args->y, "up", args->up);
    return dims.size[0] * dims.size[1];
}

int64_t rk_check_swiglu_bwd(struct rk_check *check, const struct rk_swiglu_bwd_args *args)
{
    rk_dtype_t dtype = args->gate.dtype;
    struct rk_dims dims = RK_DIMS(args->gate.shape[0], args->gate.shape[1]);

    rk_expect_source(check, "gate", args->gate, 2);
    rk_expect_tensor(check, "up", args->up, dtype, dims);
    rk_expect_tensor(check, "dy", args->dy, dtype, dims);
    rk_expect_tensor(check, "dgate", args->dgate, dtype, dims);
    rk_expect_tensor(check, "dup", args->dup, dtype, dims);
    rk_expect_optional(check, "y", args->y, dtype, dims);
    rk_expect_optional(check, "probs", args->probs, rk_stat_dtype(dtype), RK_DIMS(dims.size[0]));
    rk_expect(check, !args->probs.data == !args->dprobs.data,
              "dprobs is %s, expected it where probs is given, and only there",
              args->dprobs.data ? "given" : "none");
    rk_expect_optional(check, "dprobs", args->dprobs, rk_stat_dtype(dtype), RK_DIMS(dims.size[0]));
    rk_expect_optional(check, "count", args->count, RK_DTYPE_I32, RK_DIMS(1));
    if (args->y.data) {
        rk_expect_no_alias(check, "y", args->y, "gate", args->gate);
        rk_expect_no_alias(check, "y", args->y, "up", args->up);
        rk_expect_no_alias(check, "y", args->y, "dgate", args->dgate);
        rk_expect_no_alias(check, "y", args->y, "dup", args->dup);
    }
    rk_expect_no_alias(check, "dgate", args->dgate, "dy", args->dy);
    rk_expect_no_alias(check, "dup", args->dup, "dy", args->dy);
    rk_expect_no_alias(check, "dup", args->dup, "dgate", args->dgate);
    return dims.size[0] * dims.size[1];
}

/* q is [T, num_heads, head_dim], out [T, num_heads, v_head_dim]. */
static void expect_heads(struct rk_check *check, rk_tensor_t q, rk_tensor_t out, int64_t num_kv_heads)
{
    int64_t num_heads = q.shape[1];

    rk_expect(check, num_kv_heads >= 1 && num_heads >= 1 && num_heads % num_kv_heads == 0,
              "num_heads=%lld, expected a multiple of num_kv_heads=%lld", (long long)num_heads,
              (long long)num_kv_heads);
    rk_expect(check, q.shape[2] >= 1, "q has head_dim=%lld, expected >= 1", (long long)q.shape[2]);
    rk_expect(check, out.shape[2] >= 1, "out has v_head_dim=%lld, expected >= 1", (long long)out.shape[2]);
}

static void expect_window_and_scale(struct rk_check *check, int32_t window, float scale)
{
    rk_expect(check, window >= 0, "window=%d, expected >= 0 (0: none)", window);
    rk_expect(check, isfinite(scale), "scale=%g, expected finite", (double)scale);
}

/* Prefix sums over sequences: at least the leading 0. */
static void expect_prefix_sums(struct rk_check *check, const char *arg, rk_tensor_t t)
{
    rk_expect_tensor(check, arg, t, RK_DTYPE_I32, RK_DIMS(t.shape[0]));
    rk_expect(check, t.shape[0] >= 1, "%s is empty, expected num_seqs + 1 elements", arg);
}

/* k_begin and k_lens: both or neither. */
static void expect_key_ranges(struct rk_check *check, const struct rk_attn_varlen_args *args)
{
    int64_t num_seqs = args->cu_seqlens.shape[0] - 1;

    if (check->st || (!args->k_begin.data && !args->k_lens.data))
        return;
    rk_expect_tensor(check, "k_begin", args->k_begin, RK_DTYPE_I32, RK_DIMS(num_seqs));
    rk_expect_tensor(check, "k_lens", args->k_lens, RK_DTYPE_I32, RK_DIMS(num_seqs));
}

int64_t rk_check_attn_varlen_fwd(struct rk_check *check, const struct rk_attn_varlen_args *args)
{
    rk_dtype_t dtype = args->q.dtype;
    int64_t num_tokens = args->q.shape[0], num_heads = args->q.shape[1], head_dim = args->q.shape[2];
    int64_t num_keys = rk_attn_num_keys(args), num_kv_heads = args->k.shape[1];
    int64_t v_head_dim = args->out.shape[2];

    rk_expect_source(check, "q", args->q, 3);
    rk_expect_source(check, "out", args->out, 3);
    rk_expect_tensor(check, "k", args->k, dtype, RK_DIMS(num_keys, num_kv_heads, head_dim));
    rk_expect_tensor(check, "v", args->v, dtype, RK_DIMS(num_keys, num_kv_heads, v_head_dim));
    expect_heads(check, args->q, args->out, num_kv_heads);
    rk_expect_tensor(check, "out", args->out, dtype, RK_DIMS(num_tokens, num_heads, v_head_dim));
    rk_expect_optional(check, "lse", args->lse, rk_stat_dtype(dtype), RK_DIMS(num_heads, num_tokens));
    expect_prefix_sums(check, "cu_seqlens", args->cu_seqlens);
    expect_key_ranges(check, args);
    rk_expect(check, args->max_seqlen >= (num_tokens > 0 ? 1 : 0),
              "max_seqlen=%d, expected the longest length", args->max_seqlen);
    expect_window_and_scale(check, args->window, args->scale);
    rk_expect_no_alias(check, "out", args->out, "q", args->q);
    rk_expect_no_alias(check, "out", args->out, "k", args->k);
    rk_expect_no_alias(check, "out", args->out, "v", args->v);
    return num_tokens;
}

int64_t rk_check_attn_varlen_bwd(struct rk_check *check, const struct rk_attn_varlen_bwd_args *args)
{
    const struct rk_attn_varlen_args *fwd = &args->fwd;
    rk_dtype_t dtype = fwd->q.dtype;
    int64_t num_tokens = rk_check_attn_varlen_fwd(check, fwd), num_keys = rk_attn_num_keys(fwd);
    int64_t num_heads = fwd->q.shape[1], num_kv_heads = fwd->k.shape[1];

    rk_expect_tensor(check, "lse", fwd->lse, rk_stat_dtype(dtype), RK_DIMS(num_heads, num_tokens));
    rk_expect_tensor(check, "dq", args->dq, dtype, RK_DIMS(num_tokens, num_heads, fwd->q.shape[2]));
    rk_expect_tensor(check, "dk", args->dk, dtype, RK_DIMS(num_keys, num_kv_heads, fwd->k.shape[2]));
    rk_expect_tensor(check, "dv", args->dv, dtype, RK_DIMS(num_keys, num_kv_heads, fwd->v.shape[2]));
    rk_expect_tensor(check, "dout", args->dout, dtype, RK_DIMS(num_tokens, num_heads, fwd->out.shape[2]));
    rk_expect_no_alias(check, "dq", args->dq, "q", fwd->q);
    rk_expect_no_alias(check, "dk", args->dk, "k", fwd->k);
    rk_expect_no_alias(check, "dv", args->dv, "v", fwd->v);
    rk_expect_no_alias(check, "dq", args->dq, "dout", args->dout);
    return RK_MAX(num_tokens, num_keys); /* without queries, dk and dv become 0 */
}

/* k_cache is [num_blocks, num_kv_heads, block_size, head_dim], v_cache, if given, [.., v_head_dim]; cache
 * rows are whole blocks, so they are contiguous. */
static void expect_cache(struct rk_check *check, rk_tensor_t k_cache, rk_tensor_t v_cache, int64_t v_head_dim)
{
    rk_expect_source(check, "k_cache", k_cache, 4);
    rk_expect(check, k_cache.shape[2] >= 1, "k_cache has block_size=%lld, expected >= 1",
              (long long)k_cache.shape[2]);
    rk_expect_optional(check, "v_cache", v_cache, k_cache.dtype,
                       RK_DIMS(k_cache.shape[0], k_cache.shape[1], k_cache.shape[2], v_head_dim));
    rk_expect_no_alias(check, "k_cache", k_cache, "v_cache", v_cache);
}

int64_t rk_check_kv_write(struct rk_check *check, const struct rk_kv_write_args *args)
{
    const int64_t *cache = args->k_cache.shape;
    int64_t num_tokens = args->k.shape[0];

    expect_cache(check, args->k_cache, args->v_cache, args->v_cache.shape[3]);
    rk_expect_tensor(check, "k", args->k, args->k_cache.dtype, RK_DIMS(num_tokens, cache[1], cache[3]));
    if (args->v_cache.data)
        rk_expect_tensor(check, "v", args->v, args->k_cache.dtype,
                         RK_DIMS(num_tokens, cache[1], args->v_cache.shape[3]));
    else
        rk_expect(check, !args->v.data, "v is given without v_cache, expected none");
    rk_expect_tensor(check, "slot_mapping", args->slot_mapping, RK_DTYPE_I32, RK_DIMS(num_tokens));
    return num_tokens;
}

int64_t rk_check_rope_kv_write(struct rk_check *check, const struct rk_rope_kv_write_args *args)
{
    struct rk_rope_args rotated = {
        .x = args->q, .cos = args->cos, .sin = args->sin, .positions = args->positions};
    int64_t num_tokens = args->q.shape[0];

    rk_expect_source(check, "q", args->q, 3);
    rk_check_rope(check, &rotated);
    rk_check_kv_write(check, &args->kv);
    rk_expect_tensor(check, "k", args->kv.k, args->q.dtype,
                     RK_DIMS(num_tokens, args->kv.k.shape[1], args->q.shape[2]));
    return num_tokens;
}

int64_t rk_check_attn_paged(struct rk_check *check, const struct rk_attn_paged_args *args)
{
    rk_dtype_t dtype = args->q.dtype;
    const int64_t *cache = args->k_cache.shape;
    int64_t num_tokens = args->q.shape[0], num_heads = args->q.shape[1], head_dim = args->q.shape[2];
    int64_t num_seqs = args->seq_lens.shape[0], v_head_dim = args->out.shape[2];

    rk_expect_source(check, "q", args->q, 3);
    rk_expect_source(check, "out", args->out, 3);
    expect_cache(check, args->k_cache, args->v_cache, v_head_dim);
    rk_expect_tensor(check, "k_cache", args->k_cache, dtype, RK_DIMS(cache[0], cache[1], cache[2], head_dim));
    expect_heads(check, args->q, args->out, cache[1]);
    rk_expect_tensor(check, "out", args->out, dtype, RK_DIMS(num_tokens, num_heads, v_head_dim));
    rk_expect(
        check, args->v_cache.data || v_head_dim <= head_dim,
        "out has v_head_dim=%lld, expected at most head_dim=%lld of k_cache, which also holds the values",
        (long long)v_head_dim, (long long)head_dim);
    rk_expect_tensor(check, "seq_lens", args->seq_lens, RK_DTYPE_I32, RK_DIMS(num_seqs));
    rk_expect_tensor(check, "cu_q", args->cu_q, RK_DTYPE_I32, RK_DIMS(num_seqs + 1));
    rk_expect_tensor(check, "block_table", args->block_table, RK_DTYPE_I32,
                     RK_DIMS(num_seqs, args->block_table.shape[1]));
    expect_window_and_scale(check, args->window, args->scale);
    rk_expect_no_alias(check, "out", args->out, "q", args->q);
    return num_tokens;
}
