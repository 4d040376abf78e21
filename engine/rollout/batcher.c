/* Continuous batching. There are no separate prefill and decode phases: some of a sequence's tokens (prompt
 * and sampled tokens) are computed, and a step computes some of the others. Running sequences come first, in
 * order of admission; then waiting requests are admitted in order, without skipping, while token budget,
 * slots and blocks for the longest possible response last. All blocks of a sequence are reserved at
 * admission, so no sequence is ever preempted. Otherwise the rules of vLLM's V1 scheduler.
 *
 * A step may be planned before the tokens of the previous step are known. Then it is unknown which of them
 * end a response: such a sequence is computed once more and the extra token is dropped. Reaching the maximum
 * length is known without the tokens. */
#include "engine/rollout/rollout.h"

#include "base/rk_assert.h"

struct rk_status *rk_batcher_init(struct rk_batcher *batcher, struct rk_arena *arena,
                                  const struct rk_rollout_config *config, struct rk_kv_block_pool *pool)
{
    size_t num_seqs = (size_t)config->max_num_seqs;
    int32_t max_kv_blocks = (int32_t)((config->max_model_len + RK_KV_BLOCK_TOKENS - 1) / RK_KV_BLOCK_TOKENS);

    *batcher = (struct rk_batcher){
        .max_num_seqs = config->max_num_seqs,
        .max_kv_blocks = max_kv_blocks,
        .max_num_batched_tokens = config->max_num_batched_tokens,
        .pool = pool,
        .next_serial = 1,
        .sequences = rk_arena_calloc(arena, num_seqs, sizeof(struct rk_sequence)),
        .running = rk_arena_calloc(arena, num_seqs, sizeof(int32_t)),
        .free_slots = rk_arena_calloc(arena, num_seqs, sizeof(int32_t)),
        .block_rows = rk_arena_calloc(arena, num_seqs * (size_t)max_kv_blocks, sizeof(int32_t)),
    };
    if (!batcher->sequences || !batcher->running || !batcher->free_slots || !batcher->block_rows)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "no memory for the tables of %d running sequences",
                       config->max_num_seqs);
    for (int32_t slot = config->max_num_seqs - 1; slot >= 0; slot--)
        batcher->free_slots[batcher->num_free_slots++] = slot;
    return NULL;
}

struct rk_status *rk_step_plan_init(struct rk_step_plan *plan, struct rk_arena *arena, int32_t max_num_seqs)
{
    *plan = (struct rk_step_plan){
        .entries = rk_arena_calloc(arena, (size_t)max_num_seqs, sizeof(struct rk_step_entry))};
    if (!plan->entries)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "no memory for a step of %d sequences", max_num_seqs);
    return NULL;
}

void rk_batcher_begin(struct rk_batcher *batcher, const struct rk_rollout_request *requests,
                      int64_t num_requests, struct rk_rollout_result *results)
{
    RK_ASSERT(batcher->num_running == 0);
    batcher->requests = requests;
    batcher->results = results;
    batcher->num_requests = num_requests;
    batcher->num_admitted = batcher->num_finished = 0;
    for (int64_t i = 0; i < num_requests; i++)
        results[i].num_tokens = 0;
}

static int32_t num_tokens_of(const struct rk_sequence *sequence)
{
    return sequence->request->prompt_len + sequence->result->num_tokens;
}

int32_t rk_sequence_token(const struct rk_sequence *sequence, int32_t position)
{
    int32_t prompt_len = sequence->request->prompt_len;

    RK_ASSERT(position >= 0);
    RK_ASSERT(position < num_tokens_of(sequence));
    return position < prompt_len ? sequence->request->prompt[position]
                                 : sequence->result->tokens[position - prompt_len];
}

static int32_t *blocks_of(const struct rk_batcher *batcher, int32_t slot)
{
    return batcher->block_rows + (int64_t)slot * batcher->max_kv_blocks;
}

const int32_t *rk_batcher_blocks(const struct rk_batcher *batcher, int32_t slot)
{
    return blocks_of(batcher, slot);
}

/* Counts pending tokens too; the last tokens may not be known yet. */
static bool is_complete(const struct rk_sequence *sequence)
{
    return sequence->is_finished ||
           sequence->result->num_tokens + sequence->num_pending == sequence->request->max_tokens;
}

/* Plans as many of the sequence's missing tokens as the budget allows. */
static void plan_sequence(struct rk_batcher *batcher, struct rk_step_plan *plan, int32_t slot)
{
    struct rk_sequence *sequence = &batcher->sequences[slot];
    int64_t budget = batcher->max_num_batched_tokens - plan->num_tokens;
    int32_t missing = num_tokens_of(sequence) + sequence->num_pending - sequence->num_computed;
    int32_t n = (int32_t)RK_MIN((int64_t)missing, budget);
    struct rk_step_entry *entry;

    if (is_complete(sequence))
        return;
    RK_ASSERT(n > 0);
    RK_ASSERT(sequence->num_pending == 0 || (sequence->num_pending == 1 && missing == 1));
    entry = &plan->entries[plan->num_entries++];
    *entry = (struct rk_step_entry){
        .slot = slot,
        .first = sequence->num_computed,
        .num_tokens = n,
        .source = sequence->num_pending > 0 ? sequence->pending_row : -1,
        .samples = n == missing,
    };
    sequence->num_computed += n;
    plan->num_tokens += n;
    if (entry->samples) {
        sequence->num_pending++;
        sequence->pending_row = plan->num_samples++;
    }
}

/* Admits the next waiting request with a slot and all its blocks; false if it cannot be admitted now. */
static bool admit(struct rk_batcher *batcher)
{
    const struct rk_rollout_request *request = &batcher->requests[batcher->num_admitted];
    int64_t num_tokens = (int64_t)request->prompt_len + request->max_tokens;
    int32_t num_kv_blocks = (int32_t)((num_tokens + RK_KV_BLOCK_TOKENS - 1) / RK_KV_BLOCK_TOKENS), slot;

    RK_ASSERT(num_kv_blocks <= batcher->max_kv_blocks);
    if (batcher->num_running == batcher->max_num_seqs)
        return false;
    slot = batcher->free_slots[batcher->num_free_slots - 1];
    if (!rk_kv_block_pool_take(batcher->pool, blocks_of(batcher, slot), num_kv_blocks))
        return false;
    batcher->sequences[slot] = (struct rk_sequence){
        .request = request,
        .result = &batcher->results[batcher->num_admitted],
        .serial = batcher->next_serial++,
        .num_kv_blocks = num_kv_blocks,
    };
    batcher->num_free_slots--;
    batcher->running[batcher->num_running++] = slot;
    batcher->num_admitted++;
    return true;
}

void rk_batcher_plan(struct rk_batcher *batcher, struct rk_step_plan *plan)
{
    plan->num_entries = plan->num_samples = 0;
    plan->num_tokens = 0;
    for (int32_t i = 0; i < batcher->num_running && plan->num_tokens < batcher->max_num_batched_tokens; i++)
        plan_sequence(batcher, plan, batcher->running[i]);
    while (batcher->num_admitted < batcher->num_requests &&
           plan->num_tokens < batcher->max_num_batched_tokens && admit(batcher))
        plan_sequence(batcher, plan, batcher->running[batcher->num_running - 1]);
}

static bool is_eos(const struct rk_rollout_request *request, int32_t token)
{
    for (int32_t i = 0; i < request->num_eos_token_ids; i++)
        if (request->eos_token_ids[i] == token)
            return true;
    return false;
}

void rk_batcher_append(struct rk_batcher *batcher, const struct rk_step_entry *entry, int32_t token,
                       float log_prob)
{
    struct rk_sequence *sequence = &batcher->sequences[entry->slot];
    struct rk_rollout_result *result = sequence->result;

    RK_ASSERT(entry->samples);
    RK_ASSERT(sequence->num_pending > 0);
    sequence->num_pending--;
    if (sequence->is_finished)
        return;
    RK_ASSERT(result->num_tokens < sequence->request->max_tokens);
    result->tokens[result->num_tokens] = token;
    result->log_probs[result->num_tokens] = log_prob;
    result->num_tokens++;
    if (is_eos(sequence->request, token)) {
        result->finish_reason = RK_FINISH_STOP;
        sequence->is_finished = true;
    } else if (result->num_tokens == sequence->request->max_tokens) {
        result->finish_reason = RK_FINISH_LENGTH;
        sequence->is_finished = true;
    }
}

static void release(struct rk_batcher *batcher, int32_t slot)
{
    rk_kv_block_pool_give(batcher->pool, blocks_of(batcher, slot), batcher->sequences[slot].num_kv_blocks);
    batcher->free_slots[batcher->num_free_slots++] = slot;
}

void rk_batcher_retire(struct rk_batcher *batcher)
{
    int32_t kept = 0;

    for (int32_t i = 0; i < batcher->num_running; i++) {
        int32_t slot = batcher->running[i];

        if (!batcher->sequences[slot].is_finished || batcher->sequences[slot].num_pending > 0) {
            batcher->running[kept++] = slot;
            continue;
        }
        release(batcher, slot);
        batcher->num_finished++;
    }
    batcher->num_running = kept;
}

void rk_batcher_end(struct rk_batcher *batcher)
{
    while (batcher->num_running > 0)
        release(batcher, batcher->running[--batcher->num_running]);
    RK_ASSERT(batcher->num_free_slots == batcher->max_num_seqs);
    batcher->requests = NULL;
    batcher->results = NULL;
    batcher->num_requests = batcher->num_admitted = batcher->num_finished = 0;
}

bool rk_batcher_is_done(const struct rk_batcher *batcher)
{
    return batcher->num_finished == batcher->num_requests;
}
