/* Causal attention over packed sequences, forward.
 *
 *   out[i] = sum_j softmax_j(scale * q[i].k[j]) v[j],  j <= i in the sequence, i - j < window if window > 0
 *
 * i and j are positions; the queries of a segment are the last ones of its keys' positions. One task is one
 * kv head of one segment with the query heads that read it. Backward: attn_varlen_bwd.c. */
#include "kernels/cpu/attn_internal.h"

static void forward_head(const struct rk_attn_varlen_args *args, struct rk_attn *attn,
                         const struct rk_attn_segment *segment, int64_t head)
{
    for (int64_t i = 0; i < segment->num_queries; i++) {
        int64_t row = segment->first_query + i, position = segment->num_keys - segment->num_queries + i;
        double lse;

        rk_cpu_load(attn->query, args->q, row, head * attn->head_dim, attn->head_dim);
        lse = rk_attn_row(attn, rk_attn_first_key(position, args->window), position + 1);
        rk_cpu_store(args->out, row, head * attn->v_head_dim, attn->out, attn->v_head_dim);
        if (args->lse.data)
            rk_cpu_store(args->lse, head, row, &lse, 1);
    }
}

static void forward_task(const struct rk_attn_varlen_args *args, int64_t seq, int64_t kv_head,
                         double *scratch)
{
    struct rk_attn_segment segment = rk_attn_segment_of(args, seq);
    int64_t head_dim = args->q.shape[2], v_head_dim = args->out.shape[2];
    int64_t group = args->q.shape[1] / args->k.shape[1];
    struct rk_attn attn = {.scale = args->scale};

    if (segment.num_keys == 0)
        return;
    rk_attn_init(&attn, scratch, segment.num_keys, head_dim, v_head_dim);
    for (int64_t j = 0; j < segment.num_keys; j++)
        rk_attn_set_key(&attn, j, rk_cpu_at(args->k, segment.first_key + j, kv_head * head_dim),
                        rk_cpu_at(args->v, segment.first_key + j, kv_head * v_head_dim), args->k.dtype);
    for (int64_t h = kv_head * group; h < (kv_head + 1) * group; h++)
        forward_head(args, &attn, &segment, h);
}

struct rk_status *rk_cpu_attn_varlen_fwd(void *dev, void *stream, const struct rk_attn_varlen_args *args)
{
    struct rk_cpu_device *cpu = dev;
    int64_t num_seqs = rk_attn_num_segments(args), num_kv_heads = args->k.shape[1];

    (void)stream;
    RK_TRY(rk_attn_check_segments("attn_varlen_fwd", args, false));
    RK_TRY(rk_cpu_scratch_reserve(
        cpu, rk_attn_scratch(rk_attn_most_keys(args), args->q.shape[2], args->out.shape[2])));
#pragma omp parallel for schedule(dynamic) num_threads(rk_cpu_num_threads(cpu, rk_attn_work(args)))
    for (int64_t task = 0; task < num_seqs * num_kv_heads; task++)
        forward_task(args, task / num_kv_heads, task % num_kv_heads, rk_cpu_scratch(cpu));
    return NULL;
}
