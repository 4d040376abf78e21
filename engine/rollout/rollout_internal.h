/* Private to engine/rollout: the block pool, the cache, the batcher, the inputs of a step and its graphs. */
#ifndef RK_ROLLOUT_INTERNAL_H
#define RK_ROLLOUT_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_arena.h"
#include "engine/model/model_internal.h"
#include "engine/rk_rollout.h"

#define RK_KV_BLOCK_TOKENS 16
_Static_assert(RK_KV_BLOCK_TOKENS % 16 == 0, "paged attention reads keys in groups of 16");

/* --- kv_cache.c --- */

/* Which blocks of the cache are free. Block 0 is the null block: it belongs to no sequence, and padding of
 * block tables points at it. */
struct rk_block_pool {
    int32_t num_blocks; /* with the null block */
    int32_t num_free;
    int32_t *free_blocks; /* stack [num_blocks - 1]; the lowest ids are taken first */
};

/* Memory comes from the arena and lives as long. */
struct rk_status *rk_block_pool_init(struct rk_block_pool *pool, struct rk_arena *arena,
                                     int32_t num_blocks) RK_NODISCARD;
/* All `count` blocks or none. */
bool rk_block_pool_take(struct rk_block_pool *pool, int32_t *blocks, int32_t count);
void rk_block_pool_give(struct rk_block_pool *pool, const int32_t *blocks, int32_t count);

/* What this rank's blocks remember, on the device. */
struct rk_kv_cache {
    struct rk_model *model; /* borrowed */
    void *memory;
    size_t memory_bytes;
    /* [core->num_caches] of [num_blocks, heads, RK_KV_BLOCK_TOKENS, width]; a block's begin at its
     * first_cache. */
    rk_tensor_t *tensors;
};

struct rk_status *rk_kv_cache_init(struct rk_kv_cache *cache, struct rk_arena *arena, struct rk_model *model,
                                   int32_t num_blocks) RK_NODISCARD;
void rk_kv_cache_fini(struct rk_kv_cache *cache);

/* --- batcher.c --- */

/* A request that runs. A step is planned while the one before it still runs: the host may then not have seen
 * the last token. */
struct rk_sequence {
    const struct rk_rollout_request *request;
    struct rk_rollout_result *result;
    int64_t serial;       /* of the admission: never given twice */
    int32_t num_computed; /* tokens whose keys the cache holds once the planned steps have run */
    int32_t num_pending;  /* tokens that planned steps sample and that have not been appended yet */
    int32_t pending_row;  /* row of logits of the last of them, in its step */
    int32_t num_blocks;
    bool is_finished; /* nothing more is planned; it leaves when nothing is pending */
};

/* What one running sequence does in a step: its next num_tokens tokens. */
struct rk_step_entry {
    int32_t slot;  /* of the sequence */
    int32_t first; /* position of the first of these tokens */
    int32_t num_tokens;
    int32_t source; /* row of logits of the step before that samples the last of them; -1: it is known */
    bool samples;   /* the last of them is the sequence's last token: a new one follows */
};

struct rk_step_plan {
    struct rk_step_entry *entries; /* [max_num_seqs] */
    int32_t num_entries, num_samples;
    int64_t num_tokens;
};

/* Decides which tokens of which requests are computed in the next step. Pure: no device, no clock, no
 * randomness, so that all tp ranks decide alike. */
struct rk_batcher {
    /* Fixed after init. */
    int32_t max_num_seqs, max_blocks; /* max_blocks: of one sequence */
    int64_t max_num_batched_tokens;
    struct rk_block_pool *pool; /* borrowed */
    int64_t next_serial;
    /* Of the call. */
    const struct rk_rollout_request *requests;
    struct rk_rollout_result *results;
    int64_t num_requests, num_admitted, num_finished;
    struct rk_sequence *sequences; /* [max_num_seqs], by slot */
    int32_t *running;              /* slots [max_num_seqs], in order of admission */
    int32_t num_running;
    int32_t *block_rows; /* [max_num_seqs, max_blocks], by slot */
    int32_t *free_slots; /* stack [max_num_seqs] */
    int32_t num_free_slots;
};

/* Memory comes from the arena and lives as long. */
struct rk_status *rk_batcher_init(struct rk_batcher *batcher, struct rk_arena *arena,
                                  const struct rk_rollout_config *config,
                                  struct rk_block_pool *pool) RK_NODISCARD;
struct rk_status *rk_step_plan_init(struct rk_step_plan *plan, struct rk_arena *arena,
                                    int32_t max_num_seqs) RK_NODISCARD;
/* Starts with these requests, all waiting in order. They are borrowed, and so are the results. */
void rk_batcher_begin(struct rk_batcher *batcher, const struct rk_rollout_request *requests,
                      int64_t num_requests, struct rk_rollout_result *results);
/* Fills the plan: at least one entry while a request is unfinished and nothing is pending. At most the step
 * planned last may be pending. */
void rk_batcher_plan(struct rk_batcher *batcher, struct rk_step_plan *plan);
/* Appends the token that an entry has sampled, and applies the stop rules. Of a sequence that a token before
 * it has ended the token is dropped. */
void rk_batcher_append(struct rk_batcher *batcher, const struct rk_step_entry *entry, int32_t token,
                       float log_prob);
/* Removes finished sequences of which nothing is pending from running and gives their blocks back. */
void rk_batcher_retire(struct rk_batcher *batcher);
/* Gives back all blocks, whatever runs. */
void rk_batcher_end(struct rk_batcher *batcher);
bool rk_batcher_is_done(const struct rk_batcher *batcher);

int32_t rk_sequence_token(const struct rk_sequence *sequence, int32_t position);
const int32_t *rk_batcher_blocks(const struct rk_batcher *batcher, int32_t slot);

/* --- step_inputs.c --- */

/* The flattened inputs of steps: written to pinned memory and copied to the same place of the device in one
 * go. The next step may be written while the copy of the last one is still to come. Block tables lie apart
 * and are copied only when other sequences stand in their rows than the last time. */
struct rk_step_inputs {
    struct rk_device *device; /* borrowed */
    char *host[2], *memory;   /* [bytes] */
    size_t bytes, used;
    int32_t *table_host[2], *table; /* [max_num_seqs, max_blocks] */
    int64_t *table_serials; /* [max_num_seqs] of the sequences whose rows the device has, 0: null block */
    size_t device_bytes, host_bytes; /* taken in all; 0 until init has succeeded */
    int32_t turn;                    /* which host copy the step being written takes */
};

/* What a step computes, where the kernels find it. */
struct rk_step_device {
    struct rk_paged_step paged;
    rk_tensor_t source;                    /* I32 [num_tokens], as rk_next_tokens takes it */
    const struct rk_sample_params *params; /* [num_logits] */
};

struct rk_status *rk_step_inputs_init(struct rk_step_inputs *inputs, struct rk_arena *arena,
                                      struct rk_device *device,
                                      const struct rk_batcher *batcher) RK_NODISCARD;
void rk_step_inputs_fini(struct rk_step_inputs *inputs);
/* Writes the plan's inputs and enqueues their copies. `num_rows` > 0 is for plans whose entries all have one
 * token and sample: padding fills up that many rows, and the block table is as wide as it can be, so that the
 * addresses and sizes of *out depend on num_rows only. */
struct rk_status *rk_step_inputs_write(struct rk_step_inputs *inputs, struct rk_stream *stream,
                                       const struct rk_batcher *batcher, const struct rk_step_plan *plan,
                                       int32_t num_rows, struct rk_step_device *out) RK_NODISCARD;

/* --- decode_graphs.c --- */

/* Graphs of decode steps, by number of rows: 1, 2, 4, 8, 16, ..., from 128 on in eighths of a power of two. A
 * step takes the next larger one, up to max_num_seqs. */
struct rk_decode_graph;
struct rk_decode_graphs {
    struct rk_model *model; /* borrowed */
    int32_t max_num_seqs;
    int32_t num_sizes; /* 0: steps are enqueued one operator after the other */
    struct rk_decode_graph *graphs;
    bool is_full;  /* the device of one of the ranks has no memory for a graph: no further ones */
    bool is_short; /* ... this rank's; with what was free then */
    uint64_t short_bytes;
    int64_t num_launches; /* steps that ran as a graph */
};

/* What a step does, to be run or recorded. */
typedef struct rk_status *(*rk_enqueue_fn_t)(void *user);

/* `enabled` false, or a device or collectives without graphs: none. Memory comes from the arena. */
struct rk_status *rk_decode_graphs_init(struct rk_decode_graphs *graphs, struct rk_arena *arena,
                                        struct rk_model *model, int32_t max_num_seqs,
                                        bool enabled) RK_NODISCARD;
void rk_decode_graphs_fini(struct rk_decode_graphs *graphs);
/* Collective over tp, at the start of a call: sizes that would not be recorded or launched on all ranks alike
 * start all over, and memory that has run out on one counts for all, until more is free there than at that
 * time. Their memory may have grown at different times; a rank may be a new process. */
struct rk_status *rk_decode_graphs_agree(struct rk_decode_graphs *graphs) RK_NODISCARD;
/* The rows that a decode step of `num_entries` sequences is filled up to; 0 where there are no graphs. */
int32_t rk_decode_graphs_num_rows(const struct rk_decode_graphs *graphs, int32_t num_entries);
/* Enqueues a step of so many rows: by its graph, once there is one. A size's first steps are enqueued one by
 * one, until nothing is allocated in them any more; then the step is recorded. */
struct rk_status *rk_decode_graphs_run(struct rk_decode_graphs *graphs, int32_t num_rows,
                                       rk_enqueue_fn_t enqueue, void *user) RK_NODISCARD;

/* --- rollout.c, for tests --- */

/* Whether a step is enqueued before the host has read the tokens of the one before it: by default where the
 * device runs beside the host. */
void rk_rollout_set_pipelined(struct rk_rollout *rollout, bool is_pipelined);
/* Steps that ran as a recorded graph since creation. */
int64_t rk_rollout_num_graph_launches(const struct rk_rollout *rollout);

#endif
