/* The step loop: plan, upload the flattened inputs, run the model, sample on the device, append.
 *
 * Inputs of a step lie in one staging buffer, in pinned host memory and at the same offsets on the device, so
 * that a step uploads once. All memory is taken at creation. Start reading at rk_rollout_generate. */
#include "engine/rollout/rollout_internal.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "engine/model/model_internal.h"
#include "kernels/rk_kernels.h"

#define STEPS_PER_CANCEL_CHECK 16 /* a check is a collective */
#define STAGING_ALIGN          64
#define ARENA_BLOCK_BYTES      (64 << 10)
#define MAX_NUM_SEQS           65536 /* keeps counts of blocks and bytes of staging far from overflow */

/* Host and device memory of equal layout. */
struct staging {
    char *host, *device;
    size_t bytes, used;
};

struct rk_rollout {
    struct rk_model *model;          /* borrowed */
    struct rk_arena *arena;          /* owned: host memory of the parts below */
    struct rk_rollout_config config; /* complete */
    struct rk_block_pool pool;
    struct rk_kv_cache cache;
    struct rk_batcher batcher;
    struct staging in;
    /* What a step samples: [max_num_seqs] tokens (I32), then log-probs (F32). */
    struct staging out;
};

static struct rk_device *device_of(const struct rk_rollout *rollout)
{
    return rk_stream_device(rk_model_stream(rollout->model));
}

static struct rk_status *staging_init(struct staging *staging, struct rk_rollout *rollout, size_t bytes)
{
    struct rk_device *device = device_of(rollout);
    void *memory;

    RK_TRY(rk_device_host_alloc(device, &memory, bytes, "rollout staging"));
    staging->host = memory;
    RK_TRY(rk_device_alloc(device, &memory, bytes, "rollout staging"));
    staging->device = memory;
    staging->bytes = bytes;
    rk_model_note_staging(rollout->model, (int64_t)bytes, (int64_t)bytes);
    return NULL;
}

static void staging_fini(struct staging *staging, struct rk_rollout *rollout)
{
    rk_device_host_free(device_of(rollout), staging->host);
    rk_device_free(device_of(rollout), staging->device);
    rk_model_note_staging(rollout->model, -(int64_t)staging->bytes, -(int64_t)staging->bytes);
    *staging = (struct staging){0};
}

/* Room for `bytes`: where to write on the host; *device is where the kernels will find it. */
static void *staging_take(struct staging *staging, size_t bytes, void **device)
{
    void *host = staging->host + staging->used;

    *device = staging->device + staging->used;
    staging->used += rk_round_up(bytes, STAGING_ALIGN);
    RK_ASSERT(staging->used <= staging->bytes);
    return host;
}

static int32_t *staging_take_i32(struct staging *staging, int64_t count, rk_tensor_t *tensor)
{
    void *device;
    int32_t *host = staging_take(staging, (size_t)count * sizeof(int32_t), &device);

    *tensor = rk_tensor_1d(device, RK_DTYPE_I32, count);
    return host;
}

static size_t staging_bytes_of(const struct rk_batcher *batcher)
{
    size_t num_seqs = (size_t)batcher->max_num_seqs;
    size_t table = num_seqs * (size_t)batcher->max_blocks * sizeof(int32_t);
    size_t per_token = rk_round_up((size_t)batcher->max_num_batched_tokens * sizeof(int32_t), STAGING_ALIGN);
    size_t per_seq = rk_round_up((num_seqs + 1) * sizeof(int32_t), STAGING_ALIGN);

    return 3 * per_token + 3 * per_seq + rk_round_up(table, STAGING_ALIGN) +
           rk_round_up(num_seqs * sizeof(struct rk_sample_params), STAGING_ALIGN);
}

static struct rk_status *complete_config(struct rk_rollout_config *config, const struct rk_model *model)
{
    int64_t max_position = rk_model_get_config(model)->max_position_embeddings;

    if (config->max_model_len == 0)
        config->max_model_len = max_position;
    if (config->max_model_len < 2 || config->max_model_len > max_position)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "rollout.max_model_len=%lld: the model takes from 2 to %lld tokens",
                       (long long)config->max_model_len, (long long)max_position);
    if (config->max_num_seqs < 1 || config->max_num_seqs > MAX_NUM_SEQS)
        return RK_FAIL(RK_INVALID_ARGUMENT, "rollout.max_num_seqs=%d: expected a number from 1 to %d",
                       config->max_num_seqs, MAX_NUM_SEQS);
    if (config->max_num_batched_tokens < config->max_num_seqs ||
        config->max_num_batched_tokens > INT32_MAX / 4)
        return RK_FAIL(
            RK_INVALID_ARGUMENT,
            "rollout.max_num_batched_tokens=%lld: expected a number from rollout.max_num_seqs=%d to %d",
            (long long)config->max_num_batched_tokens, config->max_num_seqs, INT32_MAX / 4);
    return NULL;
}

/* Blocks for max_num_seqs sequences of full length, and the null block; or what the configuration says. */
static struct rk_status *complete_blocks(struct rk_rollout_config *config)
{
    int64_t per_seq = (config->max_model_len + RK_KV_BLOCK_TOKENS - 1) / RK_KV_BLOCK_TOKENS;
    int64_t num_blocks = config->num_blocks > 0 ? config->num_blocks : 1 + per_seq * config->max_num_seqs;

    if (num_blocks >= INT32_MAX / RK_KV_BLOCK_TOKENS)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED,
                       "the KV cache of rollout.max_num_seqs=%d sequences of rollout.max_model_len=%lld "
                       "tokens has too many slots",
                       config->max_num_seqs, (long long)config->max_model_len);
    if (num_blocks < 1 + per_seq)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED,
                       "a KV cache of %lld blocks does not hold one sequence of rollout.max_model_len=%lld "
                       "tokens, which needs %lld",
                       (long long)num_blocks, (long long)config->max_model_len, (long long)(1 + per_seq));
    config->num_blocks = (int32_t)num_blocks;
    return NULL;
}

struct rk_status *rk_rollout_create(struct rk_rollout **out, struct rk_model *model,
                                    const struct rk_rollout_config *config)
{
    struct rk_rollout *rollout = rk_calloc(1, sizeof(*rollout));
    struct rk_status *st = NULL;

    *out = NULL;
    rollout->model = model;
    rollout->config = *config;
    rollout->arena = rk_arena_create(ARENA_BLOCK_BYTES, 0);
    RK_TRY_GOTO(st, complete_config(&rollout->config, model), out);
    RK_TRY_GOTO(st, complete_blocks(&rollout->config), out);
    RK_TRY_GOTO(st, rk_block_pool_init(&rollout->pool, rollout->arena, rollout->config.num_blocks), out);
    RK_TRY_GOTO(st, rk_kv_cache_init(&rollout->cache, rollout->arena, model, rollout->config.num_blocks),
                out);
    RK_TRY_GOTO(st, rk_batcher_init(&rollout->batcher, rollout->arena, &rollout->config, &rollout->pool),
                out);
    RK_TRY_GOTO(st, staging_init(&rollout->in, rollout, staging_bytes_of(&rollout->batcher)), out);
    RK_TRY_GOTO(st,
                staging_init(&rollout->out, rollout,
                             (size_t)rollout->config.max_num_seqs * (sizeof(int32_t) + sizeof(float))),
                out);
    *out = rollout;
out:
    if (st)
        rk_rollout_destroy(rollout);
    return st;
}

void rk_rollout_destroy(struct rk_rollout *rollout)
{
    if (!rollout)
        return;
    staging_fini(&rollout->in, rollout);
    staging_fini(&rollout->out, rollout);
    rk_kv_cache_fini(&rollout->cache);
    rk_arena_destroy(rollout->arena);
    rk_free(rollout);
}

struct rk_rollout_config rk_rollout_get_config(const struct rk_rollout *rollout)
{
    return rollout->config;
}

static struct rk_status *check_request(const struct rk_rollout *rollout, int64_t i,
                                       const struct rk_rollout_request *request)
{
    int64_t vocab_size = rk_model_get_config(rollout->model)->vocab_size;

    if (request->prompt_len < 1)
        return RK_FAIL(RK_INVALID_ARGUMENT, "request %lld: the prompt is empty", (long long)i);
    if (request->max_tokens < 1)
        return RK_FAIL(RK_INVALID_ARGUMENT, "request %lld: max_tokens=%d: expected at least 1", (long long)i,
                       request->max_tokens);
    if ((int64_t)request->prompt_len + request->max_tokens > rollout->config.max_model_len)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "request %lld: a prompt of %d tokens and %d new ones exceed max_model_len=%lld",
                       (long long)i, request->prompt_len, request->max_tokens,
                       (long long)rollout->config.max_model_len);
    if (!isfinite(request->temperature) || request->temperature < 0.0F)
        return RK_FAIL(RK_INVALID_ARGUMENT, "request %lld: temperature=%g: expected a number of at least 0",
                       (long long)i, (double)request->temperature);
    if (!(request->top_p > 0.0F))
        return RK_FAIL(RK_INVALID_ARGUMENT, "request %lld: top_p=%g: expected a number above 0", (long long)i,
                       (double)request->top_p);
    for (int32_t t = 0; t < request->prompt_len; t++)
        if (request->prompt[t] < 0 || request->prompt[t] >= vocab_size)
            return RK_FAIL(RK_OUT_OF_RANGE, "request %lld: token %d at %d: the vocabulary has %lld ids",
                           (long long)i, request->prompt[t], t, (long long)vocab_size);
    return NULL;
}

/* Tokens, positions and slots of every planned token. */
static void fill_tokens(struct rk_rollout *rollout, struct rk_paged_step *step)
{
    const struct rk_batcher *batcher = &rollout->batcher;
    int32_t *tokens = staging_take_i32(&rollout->in, batcher->num_tokens, &step->tokens);
    int32_t *positions = staging_take_i32(&rollout->in, batcher->num_tokens, &step->positions);
    int32_t *slots = staging_take_i32(&rollout->in, batcher->num_tokens, &step->slot_mapping);
    int64_t t = 0;

    for (int32_t i = 0; i < batcher->num_entries; i++) {
        const struct rk_step_entry *entry = &batcher->entries[i];
        const struct rk_sequence *sequence = &batcher->running[entry->sequence];
        const int32_t *blocks = rk_batcher_blocks(batcher, sequence);

        for (int32_t p = entry->first; p < entry->first + entry->num_tokens; p++, t++) {
            tokens[t] = rk_sequence_token(sequence, p);
            positions[t] = p;
            slots[t] = blocks[p / RK_KV_BLOCK_TOKENS] * RK_KV_BLOCK_TOKENS + p % RK_KV_BLOCK_TOKENS;
        }
    }
    RK_ASSERT(t == batcher->num_tokens);
}

/* Prefix sums, lengths and block tables of the sequences, and which rows give logits. */
static void fill_sequences(struct rk_rollout *rollout, struct rk_paged_step *step)
{
    const struct rk_batcher *batcher = &rollout->batcher;
    int32_t n = batcher->num_entries, width = 1, num_logits = 0;
    int32_t *cu_q = staging_take_i32(&rollout->in, n + 1, &step->cu_q);
    int32_t *seq_lens = staging_take_i32(&rollout->in, n, &step->seq_lens);
    int32_t *logits_index = staging_take_i32(&rollout->in, batcher->num_samples, &step->logits_index);
    int32_t *table;

    for (int32_t i = 0; i < n; i++)
        width = RK_MAX(width, batcher->running[batcher->entries[i].sequence].num_blocks);
    table = staging_take_i32(&rollout->in, (int64_t)n * width, &step->block_table);
    step->block_table = rk_tensor_2d(step->block_table.data, RK_DTYPE_I32, n, width);
    memset(table, 0, (size_t)n * (size_t)width * sizeof(int32_t)); /* padding is the null block */
    cu_q[0] = 0;
    for (int32_t i = 0; i < n; i++) {
        const struct rk_step_entry *entry = &batcher->entries[i];
        const struct rk_sequence *sequence = &batcher->running[entry->sequence];

        cu_q[i + 1] = cu_q[i] + entry->num_tokens;
        seq_lens[i] = entry->first + entry->num_tokens;
        memcpy(table + (int64_t)i * width, rk_batcher_blocks(batcher, sequence),
               (size_t)sequence->num_blocks * sizeof(int32_t));
        if (entry->samples)
            logits_index[num_logits++] = cu_q[i + 1] - 1;
    }
    RK_ASSERT(num_logits == batcher->num_samples);
}

/* Device address of the parameters, one a row of logits. The chosen token's position is the number of tokens
 * before it. */
static const struct rk_sample_params *fill_params(struct rk_rollout *rollout)
{
    const struct rk_batcher *batcher = &rollout->batcher;
    void *device;
    struct rk_sample_params *params =
        staging_take(&rollout->in, (size_t)batcher->num_samples * sizeof(*params), &device);

    for (int32_t i = 0; i < batcher->num_entries; i++) {
        const struct rk_step_entry *entry = &batcher->entries[i];
        const struct rk_rollout_request *request = batcher->running[entry->sequence].request;

        if (entry->samples)
            *params++ = (struct rk_sample_params){
                .temperature = request->temperature,
                .top_k = request->top_k,
                .top_p = request->top_p,
                .position = entry->first + entry->num_tokens,
                .seed = request->seed,
                .stream = request->stream,
            };
    }
    return device;
}

/* Samples one token a row of logits and brings the result to the host. Rank 0 of tp decides: equal logits do
 * not make equal choices on hosts whose math libraries differ. */
static struct rk_status *sample(struct rk_rollout *rollout, rk_tensor_t logits,
                                const struct rk_sample_params *params)
{
    struct rk_stream *stream = rk_model_stream(rollout->model);
    struct rk_comm_group *tp = rk_mesh_comms_group(rk_model_mesh(rollout->model), RK_GROUP_TP);
    int32_t n = rollout->batcher.num_samples;
    void *tokens = rollout->out.device, *log_probs = rollout->out.device + (size_t)n * sizeof(int32_t);
    size_t bytes = (size_t)n * (sizeof(int32_t) + sizeof(float));
    struct rk_sample_args args = {
        .tokens = rk_tensor_1d(tokens, RK_DTYPE_I32, n),
        .log_probs = rk_tensor_1d(log_probs, RK_DTYPE_F32, n),
        .logits = logits,
        .vocab_size = rk_model_get_config(rollout->model)->vocab_size,
        .params = params,
    };

    RK_TRY(rk_sample(stream, &args));
    RK_TRY(rk_comm_broadcast(tp, stream, rk_tensor_1d(tokens, RK_DTYPE_U8, (int64_t)bytes), 0));
    return rk_stream_copy(stream, rollout->out.host, tokens, bytes, RK_COPY_D2H);
}

/* Runs the planned step and appends what it sampled. */
static struct rk_status *run_step(struct rk_rollout *rollout)
{
    struct rk_batcher *batcher = &rollout->batcher;
    struct rk_stream *stream = rk_model_stream(rollout->model);
    struct rk_paged_step step = {
        .num_tokens = batcher->num_tokens,
        .num_seqs = batcher->num_entries,
        .num_logits = batcher->num_samples,
        .k_cache = rollout->cache.k,
        .v_cache = rollout->cache.v,
    };
    const struct rk_sample_params *params;
    const int32_t *tokens = (const int32_t *)(const void *)rollout->out.host;
    const float *log_probs = (const float *)(const void *)(tokens + batcher->num_samples);
    rk_tensor_t logits;
    int32_t row = 0;

    rollout->in.used = 0;
    fill_tokens(rollout, &step);
    fill_sequences(rollout, &step);
    params = fill_params(rollout);
    RK_TRY(rk_stream_copy(stream, rollout->in.device, rollout->in.host, rollout->in.used, RK_COPY_H2D));
    RK_TRY(rk_model_forward_paged(rollout->model, &step, &logits));
    if (batcher->num_samples > 0)
        RK_TRY(sample(rollout, logits, params));
    RK_TRY(rk_stream_sync(stream)); /* the staging buffers may be written again */

    for (int32_t i = 0; i < batcher->num_entries; i++) {
        if (!batcher->entries[i].samples)
            continue;
        if (isnan(log_probs[row]))
            return RK_FAIL_REASON(RK_ABORTED, "NON_FINITE", "the model's logits are not finite");
        rk_batcher_append(batcher, &batcher->entries[i], tokens[row], log_probs[row]);
        row++;
    }
    rk_batcher_retire(batcher);
    return NULL;
}

struct rk_status *rk_rollout_generate(struct rk_rollout *rollout, const struct rk_rollout_request *requests,
                                      int64_t num_requests, struct rk_rollout_result *results,
                                      const struct rk_engine_hooks *hooks)
{
    struct rk_batcher *batcher = &rollout->batcher;
    struct rk_status *st = NULL;

    for (int64_t i = 0; i < num_requests; i++)
        RK_TRY(check_request(rollout, i, &requests[i]));
    rk_batcher_begin(batcher, requests, num_requests, results);
    for (int64_t step = 0; !rk_batcher_is_done(batcher); step++) {
        if (hooks && step % STEPS_PER_CANCEL_CHECK == 0)
            RK_TRY_GOTO(st, rk_model_check_cancel(rollout->model, hooks, RK_GROUP_TP), out);
        rk_batcher_plan(batcher);
        RK_TRY_GOTO(st, run_step(rollout), out);
        if (hooks && hooks->on_progress)
            hooks->on_progress(hooks->user, "generate", (uint64_t)batcher->num_finished,
                               (uint64_t)num_requests);
    }
out:
    rk_batcher_end(batcher);
    return st;
}
