/* Shapes and costs of operator calls, from their arguments. Bytes count every tensor once. */
#include "bench/profile_ops.h"

#include <stdio.h>
#include <string.h>

static double bytes_of(rk_tensor_t t)
{
    return t.data ? (double)rk_tensor_bytes(t) : 0;
}

static void set_shape(struct bench_op_note *note, rk_tensor_t t, const char *more)
{
    int used = snprintf(note->shape, sizeof(note->shape), "%s ", rk_dtype_name(t.dtype));

    for (int32_t i = 0; i < t.rank; i++)
        used += snprintf(note->shape + used, sizeof(note->shape) - (size_t)used, "%s%lld", i ? "x" : "",
                         (long long)t.shape[i]);
    snprintf(note->shape + used, sizeof(note->shape) - (size_t)used, "%s", more);
}

static void note_gemm(struct bench_op_note *note, const void *opaque)
{
    const struct rk_gemm_args *args = opaque;
    int64_t k = args->trans_a ? args->a.shape[0] : args->a.shape[1];

    snprintf(note->shape, sizeof(note->shape), "%s%s %lldx%lldx%lld %s%s%s%s", args->trans_a ? "T" : "N",
             args->trans_b ? "T" : "N", (long long)args->c.shape[0], (long long)args->c.shape[1],
             (long long)k, rk_dtype_name(args->c.dtype), args->beta != 0 ? " +=" : "",
             args->bias.data     ? " bias"
             : args->swiglu.data ? " swiglu"
                                 : "",
             args->strict ? " strict" : "");
    note->flops = 2.0 * (double)args->c.shape[0] * (double)args->c.shape[1] * (double)k;
    note->bytes = bytes_of(args->a) + bytes_of(args->b) + bytes_of(args->c) * (args->beta != 0 ? 2 : 1);
}

static void note_embed_fwd(struct bench_op_note *note, const void *opaque)
{
    const struct rk_embed_fwd_args *args = opaque;

    set_shape(note, args->out, "");
    note->bytes = 2 * bytes_of(args->out);
}

static void note_embed_bwd(struct bench_op_note *note, const void *opaque)
{
    const struct rk_embed_bwd_args *args = opaque;
    double rows = (double)rk_tensor_num_elements(args->dout) * (double)rk_dtype_bytes(args->dtable.dtype);

    set_shape(note, args->dout, "");
    note->bytes = bytes_of(args->dout) + 2 * rows;
}

static void note_bias_bwd(struct bench_op_note *note, const void *opaque)
{
    const struct rk_bias_bwd_args *args = opaque;

    set_shape(note, args->dy, "");
    note->bytes = bytes_of(args->dy);
}

static void note_rmsnorm_fwd(struct bench_op_note *note, const void *opaque)
{
    const struct rk_rmsnorm_fwd_args *args = opaque;

    set_shape(note, args->y, args->residual.data ? " + residual" : "");
    note->bytes = bytes_of(args->y) + bytes_of(args->x) + bytes_of(args->residual) + bytes_of(args->sum);
}

static void note_rmsnorm_bwd(struct bench_op_note *note, const void *opaque)
{
    const struct rk_rmsnorm_bwd_args *args = opaque;

    set_shape(note, args->dx, args->dresidual.data ? " + residual" : "");
    note->bytes = bytes_of(args->dx) + bytes_of(args->dy) + bytes_of(args->x) + bytes_of(args->dresidual);
}

static void note_head_norm_fwd(struct bench_op_note *note, const void *opaque)
{
    const struct rk_head_norm_fwd_args *args = opaque;

    set_shape(note, args->x, "");
    note->bytes = bytes_of(args->y) + bytes_of(args->x);
}

static void note_head_norm_bwd(struct bench_op_note *note, const void *opaque)
{
    const struct rk_head_norm_bwd_args *args = opaque;

    set_shape(note, args->dy, "");
    note->bytes = bytes_of(args->dx) + bytes_of(args->dy) + bytes_of(args->x);
}

static void note_project_fwd(struct bench_op_note *note, const void *opaque)
{
    const struct rk_project_fwd_args *args = opaque;

    set_shape(note, args->x, "");
    note->bytes = bytes_of(args->x) + bytes_of(args->weight) + bytes_of(args->scores);
}

static void note_project_bwd(struct bench_op_note *note, const void *opaque)
{
    const struct rk_project_bwd_args *args = opaque;

    set_shape(note, args->x, "");
    note->bytes = bytes_of(args->dx) + bytes_of(args->x) + bytes_of(args->weight) + bytes_of(args->dweight);
}

static void note_rope(struct bench_op_note *note, const void *opaque)
{
    const struct rk_rope_args *args = opaque;

    set_shape(note, args->x, args->inverse ? " inverse" : "");
    note->bytes = 2 * bytes_of(args->x);
}

static void note_swiglu_fwd(struct bench_op_note *note, const void *opaque)
{
    const struct rk_swiglu_fwd_args *args = opaque;

    set_shape(note, args->y, "");
    note->bytes = 3 * bytes_of(args->y);
}

static void note_swiglu_bwd(struct bench_op_note *note, const void *opaque)
{
    const struct rk_swiglu_bwd_args *args = opaque;

    set_shape(note, args->dy, "");
    note->bytes = 5 * bytes_of(args->dy);
}

/* Assumes sequences of equal length: device memory cannot be read here. */
static double causal_pairs(const struct rk_attn_varlen_args *args)
{
    int64_t num_seqs = args->cu_seqlens.shape[0] - 1;

    return (double)rk_tensor_num_elements(args->q) * (double)args->q.shape[0] / (double)RK_MAX(num_seqs, 1);
}

static void note_attn_varlen_fwd(struct bench_op_note *note, const void *opaque)
{
    const struct rk_attn_varlen_args *args = opaque;

    set_shape(note, args->q, "");
    note->flops = 2 * causal_pairs(args);
    note->bytes = 2 * bytes_of(args->q) + bytes_of(args->k) + bytes_of(args->v);
}

static void note_attn_varlen_bwd(struct bench_op_note *note, const void *opaque)
{
    const struct rk_attn_varlen_bwd_args *args = opaque;

    set_shape(note, args->fwd.q, "");
    note->flops = 5 * causal_pairs(&args->fwd);
    note->bytes = 4 * bytes_of(args->fwd.q) + 2 * bytes_of(args->fwd.k) + 2 * bytes_of(args->fwd.v);
}

static void note_kv_write(struct bench_op_note *note, const void *opaque)
{
    const struct rk_kv_write_args *args = opaque;

    set_shape(note, args->k, "");
    note->bytes = 2 * (bytes_of(args->k) + bytes_of(args->v));
}

static void note_rope_kv_write(struct bench_op_note *note, const void *opaque)
{
    const struct rk_rope_kv_write_args *args = opaque;

    set_shape(note, args->q, "");
    note->bytes = 2 * (bytes_of(args->q) + bytes_of(args->kv.k) + bytes_of(args->kv.v));
}

static void note_attn_paged(struct bench_op_note *note, const void *opaque)
{
    const struct rk_attn_paged_args *args = opaque;
    char more[32];

    snprintf(more, sizeof(more), " over <= %lld",
             (long long)(args->block_table.shape[1] * args->k_cache.shape[2]));
    set_shape(note, args->q, more);
    note->bytes = 2 * (double)rk_tensor_num_elements(args->block_table) *
                  (double)rk_tensor_row_elements(args->k_cache) * (double)rk_dtype_bytes(args->k_cache.dtype);
}

static void note_vocab_stats(struct bench_op_note *note, const void *opaque)
{
    const struct rk_vocab_stats_args *args = opaque;

    set_shape(note, args->logits, "");
    note->bytes = bytes_of(args->logits);
}

static void note_vocab_stats_merge(struct bench_op_note *note, const void *opaque)
{
    const struct rk_vocab_stats_merge_args *args = opaque;

    set_shape(note, args->parts, "");
    note->bytes = bytes_of(args->parts) + bytes_of(args->stats) + bytes_of(args->log_probs);
}

static void note_vocab_stats_bwd(struct bench_op_note *note, const void *opaque)
{
    const struct rk_vocab_stats_bwd_args *args = opaque;

    set_shape(note, args->logits, "");
    note->bytes = 2 * bytes_of(args->logits);
}

static void note_vocab_gather(struct bench_op_note *note, const void *opaque)
{
    const struct rk_vocab_gather_args *args = opaque;

    set_shape(note, args->ids, "");
    note->bytes = bytes_of(args->z) + bytes_of(args->ids);
}

static void note_vocab_gather_merge(struct bench_op_note *note, const void *opaque)
{
    const struct rk_vocab_gather_merge_args *args = opaque;

    set_shape(note, args->ids, "");
    note->bytes = bytes_of(args->parts) + bytes_of(args->ids) + bytes_of(args->log_probs);
}

static void note_top_k(struct bench_op_note *note, const void *opaque)
{
    const struct rk_top_k_args *args = opaque;

    set_shape(note, args->logits, "");
    note->bytes = bytes_of(args->logits);
}

static void note_sample(struct bench_op_note *note, const void *opaque)
{
    const struct rk_sample_args *args = opaque;

    set_shape(note, args->logits, "");
    note->bytes = bytes_of(args->logits);
}

static void note_gather_rows(struct bench_op_note *note, const void *opaque)
{
    const struct rk_rows_args *args = opaque;

    set_shape(note, args->out, "");
    note->bytes = 2 * bytes_of(args->out);
}

static void note_scatter_rows(struct bench_op_note *note, const void *opaque)
{
    const struct rk_rows_args *args = opaque;

    set_shape(note, args->x, "");
    note->bytes = 2 * bytes_of(args->x);
}

static void note_axpby(struct bench_op_note *note, const void *opaque)
{
    const struct rk_axpby_args *args = opaque;

    set_shape(note, args->y, args->beta != 0 ? " +=" : "");
    note->bytes = bytes_of(args->x) + bytes_of(args->y) * (args->beta != 0 ? 2 : 1);
}

static void note_sum_squares(struct bench_op_note *note, const void *opaque)
{
    const struct rk_sum_squares_args *args = opaque;

    snprintf(note->shape, sizeof(note->shape), "%s", rk_dtype_name(args->x.dtype));
    note->bytes = bytes_of(args->x);
}

/* Segments differ in length: one row for all of them. */
static void note_adamw(struct bench_op_note *note, const void *opaque)
{
    const struct rk_adamw_args *args = opaque;

    snprintf(note->shape, sizeof(note->shape), "%s", rk_dtype_name(args->param.dtype));
    note->bytes = bytes_of(args->param) + 7 * bytes_of(args->master);
}

static void (*const notes[RK_BENCH_OP_COUNT])(struct bench_op_note *note, const void *args) = {
    [RK_BENCH_OP_gemm] = note_gemm,
    [RK_BENCH_OP_embed_fwd] = note_embed_fwd,
    [RK_BENCH_OP_embed_bwd] = note_embed_bwd,
    [RK_BENCH_OP_bias_bwd] = note_bias_bwd,
    [RK_BENCH_OP_rmsnorm_fwd] = note_rmsnorm_fwd,
    [RK_BENCH_OP_rmsnorm_bwd] = note_rmsnorm_bwd,
    [RK_BENCH_OP_head_norm_fwd] = note_head_norm_fwd,
    [RK_BENCH_OP_head_norm_bwd] = note_head_norm_bwd,
    [RK_BENCH_OP_project_fwd] = note_project_fwd,
    [RK_BENCH_OP_project_bwd] = note_project_bwd,
    [RK_BENCH_OP_rope] = note_rope,
    [RK_BENCH_OP_swiglu_fwd] = note_swiglu_fwd,
    [RK_BENCH_OP_swiglu_bwd] = note_swiglu_bwd,
    [RK_BENCH_OP_attn_varlen_fwd] = note_attn_varlen_fwd,
    [RK_BENCH_OP_attn_varlen_bwd] = note_attn_varlen_bwd,
    [RK_BENCH_OP_kv_write] = note_kv_write,
    [RK_BENCH_OP_rope_kv_write] = note_rope_kv_write,
    [RK_BENCH_OP_attn_paged] = note_attn_paged,
    [RK_BENCH_OP_vocab_stats] = note_vocab_stats,
    [RK_BENCH_OP_vocab_stats_merge] = note_vocab_stats_merge,
    [RK_BENCH_OP_vocab_stats_bwd] = note_vocab_stats_bwd,
    [RK_BENCH_OP_vocab_gather] = note_vocab_gather,
    [RK_BENCH_OP_vocab_gather_merge] = note_vocab_gather_merge,
    [RK_BENCH_OP_top_k] = note_top_k,
    [RK_BENCH_OP_sample] = note_sample,
    [RK_BENCH_OP_gather_rows] = note_gather_rows,
    [RK_BENCH_OP_scatter_rows] = note_scatter_rows,
    [RK_BENCH_OP_axpby] = note_axpby,
    [RK_BENCH_OP_sum_squares] = note_sum_squares,
    [RK_BENCH_OP_adamw] = note_adamw,
};

void bench_note_op(struct bench_op_note *note, enum bench_op_id op, const void *args)
{
    if (notes[op])
        notes[op](note, args);
}
