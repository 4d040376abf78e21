/* Causal attention over packed sequences, backward.
 * With p_ij = e^(scale q_i.k_j - lse_i) and D_i = dout_i.out_i:
 *
 *   dv_j = sum_i p_ij dout_i        ds_ij = scale * p_ij (dout_i.v_j - D_i)
 *   dk_j = sum_i ds_ij q_i          dq_i  = sum_j ds_ij k_j
 *
 * i and j are positions, as in attn_varlen.c. A task is one kv head of one segment: only it writes dk and dv
 * of its keys, so no sum is shared between threads. It iterates over blocks of RK_PANEL queries, head after
 * head, and for each block over tiles of RK_PANEL keys, whose p it recomputes from lse, so no quadratic
 * memory is needed. */
#include "kernels/cpu/attn_internal.h"

#include <math.h>
#include <string.h>

typedef double tile_t[RK_PANEL][RK_PANEL];

/* A task: one kv head of a segment; all in f64, rows padded with zeros. */
struct task {
    const struct rk_attn_varlen_bwd_args *args;
    struct rk_attn_segment segment;
    int64_t head_dim, padded_dim;      /* of queries and keys */
    int64_t v_head_dim, padded_v_dim;  /* of values and results */
    double *k, *dk;                    /* [num_keys, padded_dim] */
    double *v, *dv;                    /* [num_keys, padded_v_dim] */
    double *q, *dq;                    /* [RK_PANEL, padded_dim]: the block of queries */
    double *dout;                      /* [RK_PANEL, padded_v_dim] */
    double *out;                       /* [padded_v_dim]: one output row of the forward pass */
    double *q_panel;                   /* [head_dim, RK_PANEL] */
    double *dout_panel;                /* [v_head_dim, RK_PANEL] */
    double lse[RK_PANEL], d[RK_PANEL]; /* of the block; D */
};

static int64_t task_scratch(int64_t num_keys, int64_t head_dim, int64_t v_head_dim)
{
    int64_t padded_dim = rk_panel_round_up(head_dim), padded_v_dim = rk_panel_round_up(v_head_dim);

    return 2 * num_keys * (padded_dim + padded_v_dim) + RK_PANEL * (2 * padded_dim + padded_v_dim) +
           padded_v_dim + RK_PANEL * (head_dim + v_head_dim);
}

static void task_init(struct task *task, double *scratch)
{
    int64_t k_rows = task->segment.num_keys * task->padded_dim, q_block = RK_PANEL * task->padded_dim;
    int64_t v_rows = task->segment.num_keys * task->padded_v_dim, v_block = RK_PANEL * task->padded_v_dim;

    task->k = scratch;
    task->v = task->k + k_rows;
    task->dk = task->v + v_rows;
    task->dv = task->dk + k_rows;
    task->q = task->dv + v_rows;
    task->dout = task->q + q_block;
    task->dq = task->dout + v_block;
    task->out = task->dq + q_block;
    task->q_panel = task->out + task->padded_v_dim;
    task->dout_panel = task->q_panel + RK_PANEL * task->head_dim;
    memset(scratch, 0, (size_t)(task->q_panel - scratch) * sizeof(*scratch));
}

/* Loads the queries of a head from the segment's i0-th on, as rows and as panels. Rows beyond `count` keep
 * the previous block's values: their contribution is multiplied by p = 0. */
static void load_block(struct task *task, int64_t head, int64_t i0, int64_t count)
{
    const struct rk_attn_varlen_args *fwd = &task->args->fwd;
    int64_t column = head * task->v_head_dim, row = task->segment.first_query + i0;

    for (int64_t i = 0; i < count; i++) {
        double *q = task->q + i * task->padded_dim, *dout = task->dout + i * task->padded_v_dim;

        rk_cpu_load(q, fwd->q, row + i, head * task->head_dim, task->head_dim);
        rk_cpu_load(dout, task->args->dout, row + i, column, task->v_head_dim);
        rk_cpu_load(task->out, fwd->out, row + i, column, task->v_head_dim);
        task->lse[i] = rk_cpu_load_one(fwd->lse, head, row + i);
        task->d[i] = 0.0;
        for (int64_t c = 0; c < task->v_head_dim; c++)
            task->d[i] += dout[c] * task->out[c];
        rk_panel_set_column(task->q_panel, i, q, task->head_dim);
        rk_panel_set_column(task->dout_panel, i, dout, task->v_head_dim);
    }
    memset(task->dq, 0, (size_t)(RK_PANEL * task->padded_dim) * sizeof(*task->dq));
}

/* p and ds of the queries from position i0 on against key j, zero where the key is masked. */
static void tile_row(const struct task *task, int64_t i0, int64_t count, int64_t j, double *p, double *ds)
{
    const struct rk_attn_varlen_args *fwd = &task->args->fwd;
    double s[RK_PANEL] = {0}, dp[RK_PANEL] = {0};

    rk_panel_accumulate(s, task->k + j * task->padded_dim, task->q_panel, task->head_dim, RK_PANEL);
    rk_panel_accumulate(dp, task->v + j * task->padded_v_dim, task->dout_panel, task->v_head_dim, RK_PANEL);
    for (int64_t i = 0; i < RK_PANEL; i++) {
        bool is_seen = i < count && j <= i0 + i && j >= rk_attn_first_key(i0 + i, fwd->window);

        p[i] = is_seen ? exp(fwd->scale * s[i] - task->lse[i]) : 0.0;
        ds[i] = is_seen ? fwd->scale * p[i] * (dp[i] - task->d[i]) : 0.0;
    }
}

static void backward_tile(struct task *task, int64_t i0, int64_t num_queries, int64_t j0, int64_t num_keys)
{
    int64_t padded_dim = task->padded_dim, padded_v_dim = task->padded_v_dim;
    tile_t p, ds, transposed;

    for (int64_t j = 0; j < num_keys; j++) {
        tile_row(task, i0, num_queries, j0 + j, p[j], ds[j]);
        rk_panel_set_column(transposed[0], j, ds[j], RK_PANEL);
        rk_panel_accumulate(task->dk + (j0 + j) * padded_dim, ds[j], task->q, num_queries, padded_dim);
        rk_panel_accumulate(task->dv + (j0 + j) * padded_v_dim, p[j], task->dout, num_queries, padded_v_dim);
    }
    for (int64_t i = 0; i < num_queries; i++)
        rk_panel_accumulate(task->dq + i * padded_dim, transposed[i], task->k + j0 * padded_dim, num_keys,
                            padded_dim);
}

static void backward_head(struct task *task, int64_t head)
{
    const struct rk_attn_segment *segment = &task->segment;

    for (int64_t i0 = 0; i0 < segment->num_queries; i0 += RK_PANEL) {
        int64_t num_queries = RK_MIN(segment->num_queries - i0, RK_PANEL);
        int64_t position = segment->num_keys - segment->num_queries + i0;
        int64_t j0 = rk_attn_first_key(position, task->args->fwd.window) / RK_PANEL * RK_PANEL;

        load_block(task, head, i0, num_queries);
        for (; j0 < position + num_queries; j0 += RK_PANEL)
            backward_tile(task, position, num_queries, j0, RK_MIN(segment->num_keys - j0, RK_PANEL));
        for (int64_t i = 0; i < num_queries; i++)
            rk_cpu_store(task->args->dq, segment->first_query + i0 + i, head * task->head_dim,
                         task->dq + i * task->padded_dim, task->head_dim);
    }
}

static void backward_task(const struct rk_attn_varlen_bwd_args *args, int64_t seq, int64_t kv_head,
                          double *scratch)
{
    const struct rk_attn_varlen_args *fwd = &args->fwd;
    int64_t head_dim = fwd->q.shape[2], v_head_dim = fwd->out.shape[2];
    int64_t group = fwd->q.shape[1] / fwd->k.shape[1], first, num_keys;
    struct task task = {
        .args = args,
        .segment = rk_attn_segment_of(fwd, seq),
        .head_dim = head_dim,
        .padded_dim = rk_panel_round_up(head_dim),
        .v_head_dim = v_head_dim,
        .padded_v_dim = rk_panel_round_up(v_head_dim),
    };

    first = task.segment.first_key;
    num_keys = task.segment.num_keys;
    if (num_keys == 0)
        return;
    task_init(&task, scratch);
    for (int64_t j = 0; j < num_keys; j++) {
        rk_cpu_load(task.k + j * task.padded_dim, fwd->k, first + j, kv_head * head_dim, head_dim);
        rk_cpu_load(task.v + j * task.padded_v_dim, fwd->v, first + j, kv_head * v_head_dim, v_head_dim);
    }
    for (int64_t h = kv_head * group; h < (kv_head + 1) * group; h++)
        backward_head(&task, h);
    for (int64_t j = 0; j < num_keys; j++) {
        rk_cpu_store(args->dk, first + j, kv_head * head_dim, task.dk + j * task.padded_dim, head_dim);
        rk_cpu_store(args->dv, first + j, kv_head * v_head_dim, task.dv + j * task.padded_v_dim, v_head_dim);
    }
}

static void zero_rows(rk_tensor_t t)
{
    for (int64_t row = 0; row < t.shape[0]; row++)
        memset(rk_cpu_at(t, row, 0), 0, (size_t)rk_tensor_row_elements(t) * rk_dtype_bytes(t.dtype));
}

struct rk_status *rk_cpu_attn_varlen_bwd(void *dev, void *stream, const struct rk_attn_varlen_bwd_args *args)
{
    struct rk_cpu_device *cpu = dev;
    const struct rk_attn_varlen_args *fwd = &args->fwd;
    int64_t num_kv_heads = fwd->k.shape[1];

    (void)stream;
    RK_TRY(rk_attn_check_segments("attn_varlen_bwd", fwd, true));
    RK_TRY(rk_cpu_scratch_reserve(cpu,
                                  task_scratch(rk_attn_most_keys(fwd), fwd->q.shape[2], fwd->out.shape[2])));
    if (fwd->k_begin.data) { /* keys that are in no segment */
        zero_rows(args->dk);
        zero_rows(args->dv);
    }
#pragma omp parallel for schedule(dynamic) num_threads(rk_cpu_num_threads(cpu, 3.0 * rk_attn_work(fwd)))
    for (int64_t task = 0; task < rk_attn_num_segments(fwd) * num_kv_heads; task++)
        backward_task(args, task / num_kv_heads, task % num_kv_heads, rk_cpu_scratch(cpu));
    return NULL;
}
