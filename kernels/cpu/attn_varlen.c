/* Causal attention over packed sequences, forward.
 *
 *   out[i] = sum_j softmax_j(scale * q[i].k[j]) v[j],  j <= i in the sequence, i - j < window if window > 0
 *
 * One task is one kv head of one sequence with the query heads that read it. Backward: attn_varlen_bwd.c. */
#include "kernels/cpu/attn_internal.h"

static void forward_head(const struct rk_attn_varlen_args *args, struct rk_attn *attn, int64_t first,
                         int64_t length, int64_t head)
{
    int64_t column = head * attn->head_dim;

    for (int64_t i = 0; i < length; i++) {
        double lse;

        rk_cpu_load(attn->query, args->q, first + i, column, attn->head_dim);
        lse = rk_attn_row(attn, rk_attn_first_key(i, args->window), i + 1);
        rk_cpu_store(args->out, first + i, column, attn->out, attn->head_dim);
        if (args->lse.data)
            rk_cpu_store(args->lse, head, first + i, &lse, 1);
    }
}

static void forward_task(const struct rk_attn_varlen_args *args, int64_t seq, int64_t kv_head,
                         double *scratch)
{
    const int32_t *cu_seqlens = rk_cpu_i32(args->cu_seqlens);
    int64_t first = cu_seqlens[seq], length = cu_seqlens[seq + 1] - cu_seqlens[seq];
    int64_t head_dim = args->q.shape[2], group = args->q.shape[1] / args->k.shape[1];
    struct rk_attn attn = {.scale = args->scale};

    rk_attn_init(&attn, scratch, length, head_dim);
    for (int64_t j = 0; j < length; j++)
        rk_attn_set_key(&attn, j, rk_cpu_at(args->k, first + j, kv_head * head_dim),
                        rk_cpu_at(args->v, first + j, kv_head * head_dim), args->k.dtype);
    for (int64_t h = kv_head * group; h < (kv_head + 1) * group; h++)
        forward_head(args, &attn, first, length, h);
}

struct rk_status *rk_cpu_attn_varlen_fwd(void *dev, void *stream, const struct rk_attn_varlen_args *args)
{
    struct rk_cpu_device *cpu = dev;
    int64_t num_seqs = args->cu_seqlens.shape[0] - 1, num_kv_heads = args->k.shape[1];

    (void)stream;
    RK_TRY(rk_cpu_check_prefix_sums("attn_varlen_fwd", "cu_seqlens", args->cu_seqlens, args->q.shape[0],
                                    args->max_seqlen));
    RK_TRY(rk_cpu_scratch_reserve(cpu,
                                  rk_attn_scratch(rk_cpu_longest_step(args->cu_seqlens), args->q.shape[2])));
#pragma omp parallel for schedule(dynamic) num_threads(cpu->num_threads)
    for (int64_t task = 0; task < num_seqs * num_kv_heads; task++)
        forward_task(args, task / num_kv_heads, task % num_kv_heads, rk_cpu_scratch(cpu));
    return NULL;
}
