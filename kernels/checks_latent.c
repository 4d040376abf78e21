/* Argument checks of the operators of latent attention. */
#include "kernels/checks_internal.h"

/* What both directions have: rope_dim columns of a key are shared, the others and the value are in kv. */
static void expect_parts(struct rk_check *check, rk_tensor_t kv, rk_tensor_t rope, int64_t head_dim,
                         int64_t v_head_dim)
{
    int64_t rope_dim = rope.shape[1];

    rk_expect(check, rope_dim >= 1 && rope_dim < head_dim, "rope has %lld columns, expected 1 to %lld",
              (long long)rope_dim, (long long)head_dim - 1);
    rk_expect(check, v_head_dim >= 1, "v has %lld columns, expected >= 1", (long long)v_head_dim);
    rk_expect(check, kv.shape[2] == head_dim - rope_dim + v_head_dim,
              "kv has %lld columns a head, expected %lld", (long long)kv.shape[2],
              (long long)(head_dim - rope_dim + v_head_dim));
}

/* [T, heads, width], or blocks of as many tokens. */
static void expect_keys(struct rk_check *check, const char *arg, rk_tensor_t t, rk_tensor_t kv, int64_t width)
{
    int64_t num_tokens = kv.shape[0], heads = kv.shape[1], block_size = t.shape[2];

    if (t.rank != 4) {
        rk_expect_tensor(check, arg, t, kv.dtype, RK_DIMS(num_tokens, heads, width));
        return;
    }
    rk_expect(check, block_size >= 1 && num_tokens % block_size == 0,
              "%s has block_size=%lld, expected a divisor of %lld tokens", arg, (long long)block_size,
              (long long)num_tokens);
    if (!check->st)
        rk_expect_tensor(check, arg, t, kv.dtype, RK_DIMS(num_tokens / block_size, heads, block_size, width));
}

int64_t rk_check_latent_kv(struct rk_check *check, const struct rk_latent_kv_args *args)
{
    int64_t head_dim = args->k.shape[args->k.rank == 4 ? 3 : 2];
    int64_t v_head_dim = args->v.shape[args->v.rank == 4 ? 3 : 2];

    rk_expect_source(check, "kv", args->kv, 3);
    rk_expect_tensor(check, "rope", args->rope, args->kv.dtype,
                     RK_DIMS(args->kv.shape[0], args->rope.shape[1]));
    expect_parts(check, args->kv, args->rope, head_dim, v_head_dim);
    rk_expect(check, args->k.rank == args->v.rank, "v has rank %d, expected %d as k", args->v.rank,
              args->k.rank);
    expect_keys(check, "k", args->k, args->kv, head_dim);
    expect_keys(check, "v", args->v, args->kv, v_head_dim);
    rk_expect_no_alias(check, "k", args->k, "kv", args->kv);
    rk_expect_no_alias(check, "v", args->v, "kv", args->kv);
    return args->kv.shape[0] * args->kv.shape[1];
}

int64_t rk_check_latent_kv_bwd(struct rk_check *check, const struct rk_latent_kv_bwd_args *args)
{
    const int64_t *dkv = args->dkv.shape;

    rk_expect_source(check, "dkv", args->dkv, 3);
    rk_expect_tensor(check, "drope", args->drope, args->dkv.dtype, RK_DIMS(dkv[0], args->drope.shape[1]));
    expect_parts(check, args->dkv, args->drope, args->dk.shape[2], args->dv.shape[2]);
    rk_expect_tensor(check, "dk", args->dk, args->dkv.dtype, RK_DIMS(dkv[0], dkv[1], args->dk.shape[2]));
    rk_expect_tensor(check, "dv", args->dv, args->dkv.dtype, RK_DIMS(dkv[0], dkv[1], args->dv.shape[2]));
    rk_expect_no_alias(check, "dkv", args->dkv, "dk", args->dk);
    rk_expect_no_alias(check, "dkv", args->dkv, "dv", args->dv);
    rk_expect_no_alias(check, "drope", args->drope, "dk", args->dk);
    return dkv[0] * dkv[1];
}

int64_t rk_check_gather_blocks(struct rk_check *check, const struct rk_gather_blocks_args *args)
{
    const int64_t *cache = args->cache.shape, *table = args->block_table.shape;

    rk_expect_source(check, "cache", args->cache, 4);
    rk_expect_tensor(check, "block_table", args->block_table, RK_DTYPE_I32, RK_DIMS(table[0], table[1]));
    rk_expect_tensor(check, "numbers", args->numbers, RK_DTYPE_I32, RK_DIMS(table[0], table[1]));
    rk_expect_tensor(check, "out", args->out, args->cache.dtype,
                     RK_DIMS(table[0] * table[1], cache[1], cache[2], cache[3]));
    rk_expect_contiguous(check, "out", args->out);
    rk_expect_contiguous(check, "numbers", args->numbers);
    rk_expect_no_alias(check, "out", args->out, "cache", args->cache);
    return table[0] * table[1];
}

int64_t rk_check_batched_gemm(struct rk_check *check, const struct rk_batched_gemm_args *args)
{
    rk_tensor_t w = args->w;
    int64_t heads = args->x.shape[1], k = w.shape[args->trans_w ? 2 : 1], n = w.shape[args->trans_w ? 1 : 2];

    rk_expect_source(check, "x", args->x, 3);
    rk_expect_source(check, "w", w, 3);
    rk_expect_tensor(check, "w", w, args->x.dtype, RK_DIMS(heads, w.shape[1], w.shape[2]));
    rk_expect(check, args->x.shape[2] >= k, "x has %lld columns a head, expected at least %lld",
              (long long)args->x.shape[2], (long long)k);
    rk_expect_tensor(check, "y", args->y, args->x.dtype, RK_DIMS(args->x.shape[0], heads, args->y.shape[2]));
    rk_expect(check, args->y.shape[2] >= n, "y has %lld columns a head, expected at least %lld",
              (long long)args->y.shape[2], (long long)n);
    rk_expect_no_alias(check, "y", args->y, "x", args->x);
    rk_expect_no_alias(check, "y", args->y, "w", w);
    return args->x.shape[0] * heads * n;
}
