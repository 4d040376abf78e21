#include "engine/rollout/rollout.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_log.h"

/* The graph of one number of rows. `generation`: of the step arena; in another generation equal steps use
 * other addresses. */
struct rk_decode_graph {
    int32_t num_rows;
    struct rk_comm_graph *graph; /* NULL: not recorded */
    uint64_t generation;         /* of the graph; without a graph, of the last step without allocations */
    bool is_warm;                /* there was such a step */
};

/* Increase of free memory after which graphs are recorded again when memory had run out: a graph takes some
 * MiB, and free memory fluctuates. */
#define RETRY_BYTES ((uint64_t)64 << 20)

/* 2^16 sequences, the maximum of rk_rollout_create, have 74 sizes. */
#define MAX_NUM_SIZES 80
_Static_assert((2 * MAX_NUM_SIZES + 1) * sizeof(int32_t) <= RK_AGREE_BYTES,
               "ranks compare all sizes in one call");

/* Every graph takes some MiB of device memory: steps of an eighth limit their number when many sequences
 * run. */
static int32_t next_size(int32_t num_rows)
{
    if (num_rows < 8)
        return 2 * num_rows;
    return num_rows + RK_MAX(8, num_rows / 64 * 8);
}

static int32_t list_sizes(struct rk_decode_graph *graphs, int32_t max_num_seqs)
{
    int32_t count = 0, num_rows = 1;

    for (; num_rows < max_num_seqs; num_rows = next_size(num_rows), count++) {
        if (graphs)
            graphs[count].num_rows = num_rows;
    }
    if (graphs)
        graphs[count].num_rows = max_num_seqs;
    return count + 1;
}

static struct rk_comm_group *tp_of(const struct rk_decode_graphs *graphs)
{
    return rk_mesh_comms_group(rk_model_mesh(graphs->model), RK_GROUP_TP);
}

struct rk_status *rk_decode_graphs_init(struct rk_decode_graphs *graphs, struct rk_arena *arena,
                                        struct rk_model *model, int32_t max_num_seqs, bool enabled)
{
    struct rk_device *device = rk_stream_device(rk_model_stream(model));
    int32_t num_sizes = list_sizes(NULL, max_num_seqs);

    *graphs = (struct rk_decode_graphs){.model = model, .max_num_seqs = max_num_seqs};
    if (!enabled || !rk_comm_has_graphs(tp_of(graphs), device))
        return NULL;
    graphs->graphs = rk_arena_calloc(arena, (size_t)num_sizes, sizeof(*graphs->graphs));
    if (!graphs->graphs)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "no memory for the graphs of %d sizes of decode steps",
                       num_sizes);
    graphs->num_sizes = list_sizes(graphs->graphs, max_num_seqs);
    RK_ASSERT(graphs->num_sizes <= MAX_NUM_SIZES);
    return NULL;
}

void rk_decode_graphs_fini(struct rk_decode_graphs *graphs)
{
    for (int32_t i = 0; i < graphs->num_sizes; i++)
        rk_comm_graph_destroy(graphs->graphs[i].graph);
    *graphs = (struct rk_decode_graphs){0};
}

static struct rk_decode_graph *find_size(const struct rk_decode_graphs *graphs, int32_t num_entries)
{
    int32_t i = 0;

    RK_ASSERT(num_entries >= 1);
    RK_ASSERT(num_entries <= graphs->max_num_seqs);
    while (graphs->graphs[i].num_rows < num_entries)
        i++;
    return &graphs->graphs[i];
}

int32_t rk_decode_graphs_num_rows(const struct rk_decode_graphs *graphs, int32_t num_entries)
{
    return graphs->num_sizes > 0 ? find_size(graphs, num_entries)->num_rows : 0;
}

static uint64_t free_bytes_of(const struct rk_decode_graphs *graphs)
{
    return rk_device_free_bytes(rk_stream_device(rk_model_stream(graphs->model)));
}

static uint64_t generation_of(const struct rk_decode_graphs *graphs)
{
    return rk_step_arena_stats(graphs->model->arena).tensors.generation;
}

static struct rk_status *record(struct rk_decode_graphs *graphs, struct rk_decode_graph *size,
                                rk_enqueue_fn_t enqueue, void *user)
{
    struct rk_stream *stream = rk_model_stream(graphs->model);
    struct rk_comm_group *tp = tp_of(graphs);
    struct rk_status *st;

    RK_TRY(rk_comm_graph_begin(tp, stream));
    st = enqueue(user);
    st = rk_status_first(st, rk_comm_graph_end(st ? NULL : &size->graph, tp, stream));
    if (!st)
        RK_ASSERT(generation_of(graphs) == size->generation);
    return st ? RK_WRAP(st, "recording a decode step of %d rows", size->num_rows) : NULL;
}

static void forget(struct rk_decode_graph *size)
{
    rk_comm_graph_destroy(size->graph);
    size->graph = NULL;
    size->is_warm = false;
}

/* Failing to allocate a graph is not an error: this step and all sizes without a graph run eagerly until more
 * memory is free. */
static struct rk_status *try_to_record(struct rk_decode_graphs *graphs, struct rk_decode_graph *size,
                                       rk_enqueue_fn_t enqueue, void *user)
{
    struct rk_status *st = record(graphs, size, enqueue, user);

    if (rk_status_code(st) != RK_RESOURCE_EXHAUSTED)
        return st;
    RK_WARN("no memory for more CUDA graphs; other batch sizes run without one: %s", rk_status_message(st));
    rk_status_free(st);
    graphs->is_full = graphs->is_short = true;
    graphs->short_bytes = free_bytes_of(graphs);
    return NULL;
}

/* What a step of this size does next. */
typedef enum size_state { RUNS_EAGERLY, IS_RECORDED_NEXT, IS_LAUNCHED } size_state_t;

static size_state_t state_of(const struct rk_decode_graphs *graphs, const struct rk_decode_graph *size)
{
    if (size->generation != generation_of(graphs))
        return RUNS_EAGERLY;
    if (size->graph)
        return rk_comm_graph_is_current(size->graph) ? IS_LAUNCHED : RUNS_EAGERLY;
    return size->is_warm && !graphs->is_full ? IS_RECORDED_NEXT : RUNS_EAGERLY;
}

struct rk_status *rk_decode_graphs_agree(struct rk_decode_graphs *graphs)
{
    int32_t values[2 * MAX_NUM_SIZES + 1], *lowest = values, *highest = values + graphs->num_sizes;
    int32_t *fullest = values + (ptrdiff_t)2 * graphs->num_sizes;

    if (graphs->num_sizes == 0)
        return NULL;
    graphs->is_short = graphs->is_short && free_bytes_of(graphs) < graphs->short_bytes + RETRY_BYTES;
    graphs->is_full = graphs->is_short;
    if (rk_comm_group_size(tp_of(graphs)) == 1)
        return NULL;
    for (int32_t i = 0; i < graphs->num_sizes; i++) {
        lowest[i] = (int32_t)state_of(graphs, &graphs->graphs[i]);
        highest[i] = -lowest[i];
    }
    *fullest = graphs->is_full ? -1 : 0;
    RK_TRY(rk_model_min(graphs->model, RK_GROUP_TP, values, 2 * graphs->num_sizes + 1));
    for (int32_t i = 0; i < graphs->num_sizes; i++) {
        if (lowest[i] != -highest[i])
            forget(&graphs->graphs[i]); /* safe: the stream was synchronised */
    }
    graphs->is_full = *fullest < 0;
    return NULL;
}

/* Drops graphs with addresses that steps no longer have, or with a destroyed communicator. Rare: memory has
 * grown, or a rank was lost. */
static struct rk_status *drop_stale(struct rk_decode_graphs *graphs, struct rk_decode_graph *size)
{
    if (!size->graph || state_of(graphs, size) == IS_LAUNCHED)
        return NULL;
    RK_TRY(rk_stream_sync(rk_model_stream(graphs->model)));
    forget(size);
    return NULL;
}

struct rk_status *rk_decode_graphs_run(struct rk_decode_graphs *graphs, int32_t num_rows,
                                       rk_enqueue_fn_t enqueue, void *user)
{
    struct rk_decode_graph *size = find_size(graphs, num_rows);
    uint64_t before = generation_of(graphs);

    RK_TRY(drop_stale(graphs, size));
    if (state_of(graphs, size) == IS_RECORDED_NEXT)
        RK_TRY(try_to_record(graphs, size, enqueue, user));
    if (size->graph) {
        graphs->num_launches++;
        return rk_comm_graph_launch(size->graph);
    }
    RK_TRY(enqueue(user));
    size->generation = generation_of(graphs);
    size->is_warm = size->generation == before;
    return NULL;
}
