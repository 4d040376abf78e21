/* Private to engine/rollout: the block pool, the cache, the batcher, the inputs of a step and its graphs. */
#ifndef RK_ENGINE_ROLLOUT_H
#define RK_ENGINE_ROLLOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_arena.h"
#include "engine/model/model.h"
#include "engine/rk_rollout.h"

#define RK_KV_BLOCK_TOKENS 16
_Static_assert(RK_KV_BLOCK_TOKENS % 16 == 0, "paged attention reads keys in groups of 16");

/* --- kv_cache.c --- */

/* Free blocks of the cache. Block 0 is the null block: it belongs to no sequence, and padding of block tables
 * refers to it. */
struct rk_kv_block_pool {
    int32_t num_kv_blocks; /* including the null block */
    int32_t num_free;
    int32_t *free_blocks; /* stack [num_kv_blocks - 1]; lower ids are allocated first */
};

/* Memory comes from the arena and has its lifetime. */
struct rk_status *rk_kv_block_pool_init(struct rk_kv_block_pool *pool, struct rk_arena *arena,
                                        int32_t num_kv_blocks) RK_NODISCARD;
/* Allocates all `count` blocks or none. */
bool rk_kv_block_pool_take(struct rk_kv_block_pool *pool, int32_t *blocks, int32_t count);
void rk_kv_block_pool_give(struct rk_kv_block_pool *pool, const int32_t *blocks, int32_t count);

/* Cached tensors of this rank's blocks, on the device. */
struct rk_kv_cache {
    struct rk_model *model; /* borrowed */
    void *memory;
    size_t memory_bytes;
    /* [core->num_caches] of [num_kv_blocks, heads, RK_KV_BLOCK_TOKENS, width]; the tensors of a block of the
     * model begin at its first_cache. */
    rk_tensor_t *tensors;
};

struct rk_status *rk_kv_cache_init(struct rk_kv_cache *cache, struct rk_arena *arena, struct rk_model *model,
                                   int32_t num_kv_blocks) RK_NODISCARD;
void rk_kv_cache_fini(struct rk_kv_cache *cache);

/* --- batcher.c --- */

/* A running request. A step may be planned while the previous one still runs: then the host may not know the
 * last token yet. */
struct rk_sequence {
    const struct rk_rollout_request *request;
    struct rk_rollout_result *result;
    int64_t serial;       /* unique number of the admission */
    int32_t num_computed; /* tokens whose keys are in the cache once the planned steps have run */
    int32_t num_pending;  /* tokens that planned steps sample and that are not appended yet */
    int32_t pending_row;  /* row of logits, in its step, that samples the last pending token */
    int32_t num_kv_blocks;
    bool is_finished; /* no more steps are planned; retires when no token is pending */
};

/* The part of one running sequence in a step: its next num_tokens tokens. */
struct rk_step_entry {
    int32_t slot;  /* of the sequence */
    int32_t first; /* position of the first of these tokens */
    int32_t num_tokens;
    int32_t source; /* row of logits of the previous step that samples the last of these tokens; -1: it is
                     * known */
    bool samples;   /* the last of these is the sequence's last token: the step samples the next one */
};

struct rk_step_plan {
    struct rk_step_entry *entries; /* [max_num_seqs] */
    int32_t num_entries, num_samples;
    int64_t num_tokens;
};

/* Chooses the tokens and requests of the next step. A pure function of its inputs: no device, no clock, no
 * randomness, so that all tp ranks choose alike. */
struct rk_batcher {
    /* Fixed after init. */
    int32_t max_num_seqs, max_kv_blocks; /* max_kv_blocks: of one sequence */
    int64_t max_num_batched_tokens;
    struct rk_kv_block_pool *pool; /* borrowed */
    int64_t next_serial;
    /* Requests of the current call. */
    const struct rk_rollout_request *requests;
    struct rk_rollout_result *results;
    int64_t num_requests, num_admitted, num_finished;
    struct rk_sequence *sequences; /* [max_num_seqs], by slot */
    int32_t *running;              /* slots [max_num_seqs], in order of admission */
    int32_t num_running;
    int32_t *block_rows; /* [max_num_seqs, max_kv_blocks], by slot */
    int32_t *free_slots; /* stack [max_num_seqs] */
    int32_t num_free_slots;
};

/* Memory comes from the arena and has its lifetime. */
struct rk_status *rk_batcher_init(struct rk_batcher *batcher, struct rk_arena *arena,
                                  const struct rk_rollout_config *config,
                                  struct rk_kv_block_pool *pool) RK_NODISCARD;
struct rk_status *rk_step_plan_init(struct rk_step_plan *plan, struct rk_arena *arena,
                                    int32_t max_num_seqs) RK_NODISCARD;
/* Starts a call with these requests, all waiting in order. Requests and results are borrowed. */
void rk_batcher_begin(struct rk_batcher *batcher, const struct rk_rollout_request *requests,
                      int64_t num_requests, struct rk_rollout_result *results);
/* Fills the plan: at least one entry while a request is unfinished and no step is pending. Only the last
 * planned step may be pending. */
void rk_batcher_plan(struct rk_batcher *batcher, struct rk_step_plan *plan);
/* Appends the token that an entry has sampled, and applies the stop rules. Drops the token if an earlier
 * token has ended the sequence. */
void rk_batcher_append(struct rk_batcher *batcher, const struct rk_step_entry *entry, int32_t token,
                       float log_prob);
/* Removes finished sequences without pending tokens from running and frees their blocks. */
void rk_batcher_retire(struct rk_batcher *batcher);
/* Frees all blocks, also of running sequences. */
void rk_batcher_end(struct rk_batcher *batcher);
bool rk_batcher_is_done(const struct rk_batcher *batcher);

int32_t rk_sequence_token(const struct rk_sequence *sequence, int32_t position);
const int32_t *rk_batcher_blocks(const struct rk_batcher *batcher, int32_t slot);

/* --- step_inputs.c --- */

/* The flattened inputs of steps: written to pinned memory and copied to a fixed place on the device in one
 * copy. The next step may be written while the copy of the last one is pending. Block tables are separate and
 * are copied only when a row belongs to a different sequence than before. */
struct rk_step_inputs {
    struct rk_device *device; /* borrowed */
    char *host[2], *memory;   /* [bytes] */
    size_t bytes, used;
    int32_t *table_host[2], *table;  /* [max_num_seqs, max_kv_blocks] */
    int64_t *table_serials;          /* [max_num_seqs]: sequences whose rows the device has, 0: null block */
    size_t device_bytes, host_bytes; /* total allocated; 0 until init has succeeded */
    int32_t turn;                    /* host copy that the step being written uses */
};

/* Inputs of a step on the device. */
struct rk_step_device {
    struct rk_paged_step paged;
    rk_tensor_t source;                    /* I32 [num_tokens], input of rk_next_tokens */
    const struct rk_sample_params *params; /* [num_logits] */
};

struct rk_status *rk_step_inputs_init(struct rk_step_inputs *inputs, struct rk_arena *arena,
                                      struct rk_device *device,
                                      const struct rk_batcher *batcher) RK_NODISCARD;
void rk_step_inputs_fini(struct rk_step_inputs *inputs);
/* Writes the plan's inputs and enqueues their copies. `num_rows` > 0 is for plans whose entries all have one
 * token and sample: rows are padded to num_rows, and the block table has its maximum width, so that addresses
 * and sizes of *out depend on num_rows only. */
struct rk_status *rk_step_inputs_write(struct rk_step_inputs *inputs, struct rk_stream *stream,
                                       const struct rk_batcher *batcher, const struct rk_step_plan *plan,
                                       int32_t num_rows, struct rk_step_device *out) RK_NODISCARD;

/* --- route_capture.c --- */

/* The experts of the tokens of steps. */
struct rk_route_capture {
    struct rk_model *model;   /* borrowed */
    int64_t routes_per_token; /* layers of experts times experts per token; 0: nothing is captured */
    void *memory;             /* device: I16 [tokens of a step, routes_per_token], of the last step */
    uint16_t *host[2];        /* pinned: the same of two steps, which alternate */
    size_t bytes;             /* of each */
    bool is_wanted;           /* by the running call, on this rank */
};

/* Allocates nothing unless captures_routes. FAILED_PRECONDITION, RESOURCE_EXHAUSTED. */
struct rk_status *rk_route_capture_init(struct rk_route_capture *capture, struct rk_model *model,
                                        const struct rk_rollout_config *config) RK_NODISCARD;
void rk_route_capture_fini(struct rk_route_capture *capture);
void rk_route_capture_begin(struct rk_route_capture *capture, const struct rk_rollout_result *results,
                            int64_t num_results);
/* The place of the choices of a step, whose address is fixed; none if nothing is captured. */
rk_tensor_t rk_route_capture_tensor(const struct rk_route_capture *capture, int64_t num_tokens);
/* Enqueues the copy of a step's choices to host memory `turn`, if they are wanted. */
struct rk_status *rk_route_capture_fetch(const struct rk_route_capture *capture, int turn,
                                         int64_t num_tokens) RK_NODISCARD;
/* Copies the fetched choices to the results of unfinished sequences. Before the step's tokens are appended.
 */
void rk_route_capture_take(const struct rk_route_capture *capture, int turn, const struct rk_batcher *batcher,
                           const struct rk_step_plan *plan);

/* --- decode_graphs.c --- */

/* Graphs of decode steps, by number of rows: 1, 2, 4, 8, 16, ..., from 128 on in eighths of a power of two. A
 * step uses the next larger size, up to max_num_seqs. */
struct rk_decode_graph;
struct rk_decode_graphs {
    struct rk_model *model; /* borrowed */
    int32_t max_num_seqs;
    int32_t num_sizes; /* 0: steps run eagerly */
    struct rk_decode_graph *graphs;
    bool is_full;  /* some rank has no device memory for another graph: no more are recorded */
    bool is_short; /* this rank has none; and its free memory at that time */
    uint64_t short_bytes;
    int64_t num_launches; /* steps that ran as a graph */
};

/* Enqueues a step, eagerly or while recording. */
typedef struct rk_status *(*rk_enqueue_fn_t)(void *user);

/* Makes no graphs with `enabled` false, or if device or collectives do not support them. Memory comes from
 * the arena. */
struct rk_status *rk_decode_graphs_init(struct rk_decode_graphs *graphs, struct rk_arena *arena,
                                        struct rk_model *model, int32_t max_num_seqs,
                                        bool enabled) RK_NODISCARD;
void rk_decode_graphs_fini(struct rk_decode_graphs *graphs);
/* Collective over tp, at the start of a call: resets the sizes that are not in the same state on all ranks,
 * and makes all ranks stop recording when one has run out of memory, until more is free there than at that
 * time. States differ when memory has grown at different times, or a rank is a new process. */
struct rk_status *rk_decode_graphs_agree(struct rk_decode_graphs *graphs) RK_NODISCARD;
/* Number of rows that a decode step of `num_entries` sequences is padded to; 0 without graphs. */
int32_t rk_decode_graphs_num_rows(const struct rk_decode_graphs *graphs, int32_t num_entries);
/* Enqueues a step of that many rows, as a graph if one exists. The first steps of a size run eagerly, until a
 * step allocates nothing; then the step is recorded. */
struct rk_status *rk_decode_graphs_run(struct rk_decode_graphs *graphs, int32_t num_rows,
                                       rk_enqueue_fn_t enqueue, void *user) RK_NODISCARD;

/* --- rollout.c, for tests --- */

/* Whether a step is enqueued before the host has read the tokens of the previous one; the default on
 * asynchronous devices. */
void rk_rollout_set_pipelined(struct rk_rollout *rollout, bool is_pipelined);
/* Steps that ran as a recorded graph since creation. */
int64_t rk_rollout_num_graph_launches(const struct rk_rollout *rollout);

#endif
