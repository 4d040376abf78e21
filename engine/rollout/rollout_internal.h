/* Private to engine/rollout: the block pool, the cache and the batcher. */
#ifndef RK_ROLLOUT_INTERNAL_H
#define RK_ROLLOUT_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_arena.h"
#include "engine/rk_rollout.h"

#define RK_KV_BLOCK_TOKENS 16
_Static_assert(RK_KV_BLOCK_TOKENS % 16 == 0, "paged attention reads keys in groups of 16");

/* --- kv_cache.c --- */

/* Which blocks of the cache are free. Block 0 is the null block: it belongs to nobody, and padding of block
 * tables points at it. */
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

/* Keys and values of this rank's heads on the device. */
struct rk_kv_cache {
    struct rk_model *model; /* borrowed */
    void *memory;
    size_t memory_bytes;
    rk_tensor_t *k, *v; /* [num_layers] of [num_blocks, kv heads, RK_KV_BLOCK_TOKENS, head_dim] */
};

struct rk_status *rk_kv_cache_init(struct rk_kv_cache *cache, struct rk_arena *arena, struct rk_model *model,
                                   int32_t num_blocks) RK_NODISCARD;
void rk_kv_cache_fini(struct rk_kv_cache *cache);

/* --- batcher.c --- */

/* A request that runs. */
struct rk_sequence {
    const struct rk_rollout_request *request;
    struct rk_rollout_result *result;
    int32_t num_computed; /* tokens whose keys the cache holds once the planned step has run */
    int32_t num_blocks;
    int32_t slot; /* row of the block table */
    bool is_finished;
};

/* What one running sequence does in a step: its next num_tokens tokens. */
struct rk_step_entry {
    int32_t sequence; /* index into running */
    int32_t first;    /* position of the first of these tokens */
    int32_t num_tokens;
    bool samples; /* the last of them is the last known token: a new one follows */
};

/* Decides which tokens of which requests are computed in the next step. Pure: no device, no clock, no
 * randomness, so that all tp ranks decide alike. */
struct rk_batcher {
    /* Fixed after init. */
    int32_t max_num_seqs, max_blocks; /* max_blocks: of one sequence */
    int64_t max_num_batched_tokens;
    struct rk_block_pool *pool; /* borrowed */
    /* Of the call. */
    const struct rk_rollout_request *requests;
    struct rk_rollout_result *results;
    int64_t num_requests, num_admitted, num_finished;
    struct rk_sequence *running; /* [max_num_seqs], in order of admission */
    int32_t num_running;
    int32_t *block_rows; /* [max_num_seqs, max_blocks], by slot */
    int32_t *free_slots; /* stack [max_num_seqs] */
    int32_t num_free_slots;
    /* Of the step. */
    struct rk_step_entry *entries; /* [max_num_seqs] */
    int32_t num_entries, num_samples;
    int64_t num_tokens;
};

/* Memory comes from the arena and lives as long. */
struct rk_status *rk_batcher_init(struct rk_batcher *batcher, struct rk_arena *arena,
                                  const struct rk_rollout_config *config,
                                  struct rk_block_pool *pool) RK_NODISCARD;
/* Starts with these requests, all waiting in order. They are borrowed, and so are the results. */
void rk_batcher_begin(struct rk_batcher *batcher, const struct rk_rollout_request *requests,
                      int64_t num_requests, struct rk_rollout_result *results);
/* Fills entries: at least one while a request is unfinished. */
void rk_batcher_plan(struct rk_batcher *batcher);
/* Appends the sampled token of an entry that samples, and applies the stop rules. */
void rk_batcher_append(struct rk_batcher *batcher, const struct rk_step_entry *entry, int32_t token,
                       float log_prob);
/* Removes finished sequences from running and gives their blocks back. */
void rk_batcher_retire(struct rk_batcher *batcher);
/* Gives back all blocks, whatever runs. */
void rk_batcher_end(struct rk_batcher *batcher);
bool rk_batcher_is_done(const struct rk_batcher *batcher);

int32_t rk_sequence_token(const struct rk_sequence *sequence, int32_t position);
const int32_t *rk_batcher_blocks(const struct rk_batcher *batcher, const struct rk_sequence *sequence);

#endif
