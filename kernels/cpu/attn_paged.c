/* The paged cache: writing keys and values into it, and attention of new tokens over it.
 *
 * Position p of a sequence is in block block_table[p / block_size] at offset p % block_size. */
#include "kernels/cpu/attn_internal.h"

#include <string.h>

/* Element (block, head, offset, 0) of a cache [num_blocks, num_kv_heads, block_size, head_dim]. */
static void *cache_at(rk_tensor_t cache, int64_t block, int64_t head, int64_t offset)
{
    return rk_cpu_at(cache, block, (head * cache.shape[2] + offset) * cache.shape[3]);
}

static void copy_head(rk_tensor_t cache, rk_tensor_t x, int64_t block, int64_t head, int64_t offset,
                      int64_t token)
{
    memcpy(cache_at(cache, block, head, offset), rk_cpu_at(x, token, head * x.shape[2]),
           (size_t)x.shape[2] * rk_dtype_bytes(x.dtype));
}

struct rk_status *rk_cpu_kv_write(void *dev, void *stream, const struct rk_kv_write_args *args)
{
    const int32_t *slots = rk_cpu_i32(args->slot_mapping);
    int64_t num_kv_heads = args->k.shape[1], block_size = args->k_cache.shape[2];

    (void)dev;
    (void)stream;
    RK_TRY(rk_cpu_check_range("kv_write", "slot_mapping", args->slot_mapping, -1,
                              args->k_cache.shape[0] * block_size - 1));
    for (int64_t t = 0; t < args->k.shape[0]; t++) {
        int64_t block = slots[t] / block_size, offset = slots[t] % block_size;

        for (int64_t h = 0; slots[t] >= 0 && h < num_kv_heads; h++) {
            copy_head(args->k_cache, args->k, block, h, offset, t);
            if (args->v_cache.data)
                copy_head(args->v_cache, args->v, block, h, offset, t);
        }
    }
    return NULL;
}

/* One sequence of the call: its new queries, and the keys from the first one that any query attends to. */
struct paged_seq {
    int64_t first_query, num_queries; /* rows of q */
    int64_t length;                   /* keys in the cache */
    int64_t first_key;
};

static struct paged_seq seq_of(const struct rk_attn_paged_args *args, int64_t r)
{
    const int32_t *cu_q = rk_cpu_i32(args->cu_q);
    struct paged_seq seq = {
        .first_query = cu_q[r],
        .num_queries = cu_q[r + 1] - cu_q[r],
        .length = rk_cpu_i32(args->seq_lens)[r],
    };

    seq.first_key = rk_attn_first_key(seq.length - seq.num_queries, args->window);
    return seq;
}

/* Checks lengths and the blocks that are read; blocks before the window may have been freed. */
static struct rk_status *check_seq(const struct rk_attn_paged_args *args, int64_t r)
{
    int64_t block_size = args->k_cache.shape[2], most = args->block_table.shape[1] * block_size;
    struct paged_seq seq = seq_of(args, r);
    int64_t first_block, num_blocks;

    if (seq.num_queries == 0)
        return NULL;
    if (seq.length < seq.num_queries || seq.length > most)
        return RK_FAIL(RK_INVALID_ARGUMENT, "attn_paged: seq_lens[%lld]=%lld, expected %lld to %lld",
                       (long long)r, (long long)seq.length, (long long)seq.num_queries, (long long)most);
    first_block = seq.first_key / block_size;
    num_blocks = (seq.length - 1) / block_size + 1 - first_block;
    return rk_cpu_check_range(
        "attn_paged", "block_table",
        rk_tensor_1d(rk_cpu_at(args->block_table, r, first_block), RK_DTYPE_I32, num_blocks), 0,
        args->k_cache.shape[0] - 1);
}

/* Work of loading the keys and values, and of the scores. */
static double work_of(const struct rk_attn_paged_args *args, const struct paged_seq *seq)
{
    double num_keys = (double)(seq->length - seq->first_key);
    double elements = (double)(args->q.shape[2] + args->out.shape[2]);
    double num_scores = num_keys * (double)seq->num_queries * (double)args->q.shape[1];

    if (seq->num_queries == 0)
        return 0.0;
    return num_keys * (double)args->k_cache.shape[1] * elements +
           num_scores * (RK_WORK_EXP + RK_WORK_F64 * elements);
}

static void paged_task(const struct rk_attn_paged_args *args, int64_t r, int64_t kv_head, double *scratch)
{
    const int32_t *blocks = rk_cpu_at(args->block_table, r, 0);
    struct paged_seq seq = seq_of(args, r);
    int64_t head_dim = args->q.shape[2], v_head_dim = args->out.shape[2];
    int64_t block_size = args->k_cache.shape[2];
    rk_tensor_t v_cache = args->v_cache.data ? args->v_cache : args->k_cache;
    int64_t group = args->q.shape[1] / args->k_cache.shape[1];
    struct rk_attn attn = {.scale = args->scale};

    if (seq.num_queries == 0)
        return;
    rk_attn_init(&attn, scratch, seq.length - seq.first_key, head_dim, v_head_dim);
    for (int64_t p = seq.first_key; p < seq.length; p++) {
        int64_t block = blocks[p / block_size], offset = p % block_size;

        rk_attn_set_key(&attn, p - seq.first_key, cache_at(args->k_cache, block, kv_head, offset),
                        cache_at(v_cache, block, kv_head, offset), args->k_cache.dtype);
    }
    for (int64_t h = kv_head * group; h < (kv_head + 1) * group; h++) {
        for (int64_t i = 0; i < seq.num_queries; i++) {
            int64_t position = seq.length - seq.num_queries + i;

            rk_cpu_load(attn.query, args->q, seq.first_query + i, h * head_dim, head_dim);
            rk_attn_row(&attn, rk_attn_first_key(position, args->window) - seq.first_key,
                        position + 1 - seq.first_key);
            rk_cpu_store(args->out, seq.first_query + i, h * v_head_dim, attn.out, v_head_dim);
        }
    }
}

struct rk_status *rk_cpu_attn_paged(void *dev, void *stream, const struct rk_attn_paged_args *args)
{
    struct rk_cpu_device *cpu = dev;
    int64_t num_seqs = args->seq_lens.shape[0], num_kv_heads = args->k_cache.shape[1];
    int64_t most_keys = 0;
    double work = 0.0;

    (void)stream;
    RK_TRY(rk_cpu_check_prefix_sums("attn_paged", "cu_q", args->cu_q, args->q.shape[0], args->q.shape[0]));
    for (int64_t r = 0; r < num_seqs; r++) {
        struct paged_seq seq = seq_of(args, r);

        RK_TRY(check_seq(args, r));
        most_keys = RK_MAX(most_keys, seq.num_queries ? seq.length - seq.first_key : 0);
        work += work_of(args, &seq);
    }
    RK_TRY(rk_cpu_scratch_reserve(cpu, rk_attn_scratch(most_keys, args->q.shape[2], args->out.shape[2])));
#pragma omp parallel for schedule(dynamic) num_threads(rk_cpu_num_threads(cpu, work))
    for (int64_t task = 0; task < num_seqs * num_kv_heads; task++)
        paged_task(args, task / num_kv_heads, task % num_kv_heads, rk_cpu_scratch(cpu));
    return NULL;
}
