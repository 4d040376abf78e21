/* The flattened inputs of a step. Arrays are laid out one after another at the step's actual sizes, so steps
 * with the same numbers of tokens, sequences and logits have the same addresses, which a recorded decode step
 * requires. */
#include "engine/rollout/rollout.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "kernels/rk_kernels.h"

#define ALIGN_BYTES 64

static size_t table_bytes(const struct rk_batcher *batcher)
{
    return (size_t)batcher->max_num_seqs * (size_t)batcher->max_kv_blocks * sizeof(int32_t);
}

/* Upper bound of: tokens, source, positions, slot_mapping; cu_q, seq_lens, logits_index; sampling parameters.
 */
static size_t most_bytes(const struct rk_batcher *batcher)
{
    size_t num_seqs = (size_t)batcher->max_num_seqs;
    size_t per_token = rk_round_up((size_t)batcher->max_num_batched_tokens * sizeof(int32_t), ALIGN_BYTES);
    size_t per_seq = rk_round_up((num_seqs + 1) * sizeof(int32_t), ALIGN_BYTES);

    return 4 * per_token + 3 * per_seq + rk_round_up(num_seqs * sizeof(struct rk_sample_params), ALIGN_BYTES);
}

static struct rk_status *host_alloc(struct rk_step_inputs *inputs, void *out, size_t bytes)
{
    void *memory;

    RK_TRY(rk_device_host_alloc(inputs->device, &memory, bytes, "rollout staging"));
    memcpy(out, &memory, sizeof(memory));
    return NULL;
}

struct rk_status *rk_step_inputs_init(struct rk_step_inputs *inputs, struct rk_arena *arena,
                                      struct rk_device *device, const struct rk_batcher *batcher)
{
    void *memory;

    *inputs = (struct rk_step_inputs){
        .device = device,
        .bytes = most_bytes(batcher),
        .table_serials = rk_arena_calloc(arena, (size_t)batcher->max_num_seqs, sizeof(int64_t)),
    };
    if (!inputs->table_serials)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "no memory for the rows of %d running sequences",
                       batcher->max_num_seqs);
    for (int i = 0; i < 2; i++) {
        RK_TRY(host_alloc(inputs, &inputs->host[i], inputs->bytes));
        RK_TRY(host_alloc(inputs, &inputs->table_host[i], table_bytes(batcher)));
    }
    RK_TRY(rk_device_alloc(device, &memory, inputs->bytes, "rollout staging"));
    inputs->memory = memory;
    RK_TRY(rk_device_alloc(device, &memory, table_bytes(batcher), "rollout block tables"));
    inputs->table = memory;
    inputs->device_bytes = inputs->bytes + table_bytes(batcher);
    inputs->host_bytes = 2 * inputs->device_bytes;
    return NULL;
}

void rk_step_inputs_fini(struct rk_step_inputs *inputs)
{
    if (!inputs->device)
        return;
    for (int i = 0; i < 2; i++) {
        rk_device_host_free(inputs->device, inputs->host[i]);
        rk_device_host_free(inputs->device, inputs->table_host[i]);
    }
    rk_device_free(inputs->device, inputs->memory);
    rk_device_free(inputs->device, inputs->table);
    *inputs = (struct rk_step_inputs){0};
}

/* Allocates `bytes`: returns the host address; *device is the device address. */
static void *take(struct rk_step_inputs *inputs, size_t bytes, void **device)
{
    void *host = inputs->host[inputs->turn] + inputs->used;

    *device = inputs->memory + inputs->used;
    inputs->used += rk_round_up(bytes, ALIGN_BYTES);
    RK_ASSERT(inputs->used <= inputs->bytes);
    return host;
}

static int32_t *take_i32(struct rk_step_inputs *inputs, int64_t count, rk_tensor_t *tensor)
{
    void *device;
    int32_t *host = take(inputs, (size_t)count * sizeof(int32_t), &device);

    *tensor = rk_tensor_1d(device, RK_DTYPE_I32, count);
    return host;
}

/* The step being written: the plan's entries, followed by rows of padding of one token each. */
struct writer {
    struct rk_step_inputs *inputs;
    const struct rk_batcher *batcher;
    const struct rk_step_plan *plan;
    int32_t num_seqs, num_logits; /* with padding */
    int64_t num_tokens;
    struct rk_step_device *out;
};

/* Writes token, position and place in the cache of every planned token, and the source rows of unknown
 * tokens. */
static void write_tokens(const struct writer *w)
{
    struct rk_paged_step *step = &w->out->paged;
    int32_t *tokens = take_i32(w->inputs, w->num_tokens, &step->tokens);
    int32_t *source = take_i32(w->inputs, w->num_tokens, &w->out->source);
    int32_t *positions = take_i32(w->inputs, w->num_tokens, &step->positions);
    int32_t *slot_mapping = take_i32(w->inputs, w->num_tokens, &step->slot_mapping);
    int64_t t = 0;

    for (int32_t i = 0; i < w->plan->num_entries; i++) {
        const struct rk_step_entry *entry = &w->plan->entries[i];
        const int32_t *blocks = rk_batcher_blocks(w->batcher, entry->slot);
        int32_t end = entry->first + entry->num_tokens;

        for (int32_t p = entry->first; p < end; p++, t++) {
            source[t] = p == end - 1 ? entry->source : -1;
            tokens[t] = source[t] < 0 ? rk_sequence_token(&w->batcher->sequences[entry->slot], p) : 0;
            positions[t] = p;
            slot_mapping[t] = blocks[p / RK_KV_BLOCK_TOKENS] * RK_KV_BLOCK_TOKENS + p % RK_KV_BLOCK_TOKENS;
        }
    }
    for (; t < w->num_tokens; t++) { /* padding: token 0 at position 0, whose result is not read */
        tokens[t] = positions[t] = 0;
        source[t] = slot_mapping[t] = -1;
    }
}

/* Writes prefix sums and lengths of the sequences, and the rows with logits. A row of padding attends to one
 * key of the null block. */
static void write_sequences(const struct writer *w)
{
    struct rk_paged_step *step = &w->out->paged;
    int32_t *cu_q = take_i32(w->inputs, w->num_seqs + 1, &step->cu_q);
    int32_t *seq_lens = take_i32(w->inputs, w->num_seqs, &step->seq_lens);
    int32_t *logits_index = take_i32(w->inputs, w->num_logits, &step->logits_index);
    int32_t num_logits = 0;

    cu_q[0] = 0;
    for (int32_t i = 0; i < w->num_seqs; i++) {
        const struct rk_step_entry padding = {.num_tokens = 1, .samples = true};
        const struct rk_step_entry *entry = i < w->plan->num_entries ? &w->plan->entries[i] : &padding;

        cu_q[i + 1] = cu_q[i] + entry->num_tokens;
        seq_lens[i] = entry->first + entry->num_tokens;
        if (entry->samples)
            logits_index[num_logits++] = cu_q[i + 1] - 1;
    }
    RK_ASSERT(cu_q[w->num_seqs] == w->num_tokens);
    RK_ASSERT(num_logits == w->num_logits);
}

/* Writes one row of sampling parameters per row of logits. The position of the sampled token is the number of
 * tokens before it. */
static void write_params(const struct writer *w)
{
    void *device;
    struct rk_sample_params *params = take(w->inputs, (size_t)w->num_logits * sizeof(*params), &device),
                            *end = params + w->num_logits;

    for (int32_t i = 0; i < w->plan->num_entries; i++) {
        const struct rk_step_entry *entry = &w->plan->entries[i];
        const struct rk_rollout_request *request = w->batcher->sequences[entry->slot].request;

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
    while (params < end)
        *params++ = (struct rk_sample_params){.top_p = 1.0F}; /* greedy */
    w->out->params = device;
}

static int64_t serial_of_row(const struct writer *w, int32_t row)
{
    return row < w->plan->num_entries ? w->batcher->sequences[w->plan->entries[row].slot].serial : 0;
}

/* Rewrites all rows when one of them belongs to a different sequence than on the device. After its sequence's
 * blocks a row has null blocks up to `width`; beyond `width` old values remain, which are not read. */
static struct rk_status *write_table(const struct writer *w, struct rk_stream *stream, int32_t width)
{
    struct rk_step_inputs *inputs = w->inputs;
    size_t row_bytes = (size_t)w->batcher->max_kv_blocks * sizeof(int32_t);
    int32_t *table = inputs->table_host[inputs->turn];
    bool is_same = true;

    for (int32_t row = 0; row < w->num_seqs; row++) {
        is_same = is_same && inputs->table_serials[row] == serial_of_row(w, row);
        inputs->table_serials[row] = serial_of_row(w, row);
    }
    if (is_same)
        return NULL;
    for (int32_t row = 0; row < w->num_seqs; row++) {
        int32_t *at = table + (int64_t)row * w->batcher->max_kv_blocks, num_kv_blocks = 0;

        if (row < w->plan->num_entries) {
            int32_t slot = w->plan->entries[row].slot;

            num_kv_blocks = w->batcher->sequences[slot].num_kv_blocks;
            memcpy(at, rk_batcher_blocks(w->batcher, slot), (size_t)num_kv_blocks * sizeof(*at));
        }
        memset(at + num_kv_blocks, 0, (size_t)RK_MAX(width - num_kv_blocks, 0) * sizeof(*at));
    }
    return rk_stream_copy(stream, inputs->table, table, (size_t)w->num_seqs * row_bytes, RK_COPY_H2D);
}

/* Number of blocks of the longest sequence in the plan. */
static int32_t widest(const struct writer *w)
{
    int32_t width = 1;

    for (int32_t i = 0; i < w->plan->num_entries; i++)
        width = RK_MAX(width, w->batcher->sequences[w->plan->entries[i].slot].num_kv_blocks);
    return width;
}

struct rk_status *rk_step_inputs_write(struct rk_step_inputs *inputs, struct rk_stream *stream,
                                       const struct rk_batcher *batcher, const struct rk_step_plan *plan,
                                       int32_t num_rows, struct rk_step_device *out)
{
    int32_t padding = num_rows > 0 ? num_rows - plan->num_entries : 0;
    struct writer w = {
        .inputs = inputs,
        .batcher = batcher,
        .plan = plan,
        .num_seqs = plan->num_entries + padding,
        .num_logits = plan->num_samples + padding,
        .num_tokens = plan->num_tokens + padding,
        .out = out,
    };
    int32_t width = widest(&w);

    RK_ASSERT(padding >= 0);
    RK_ASSERT(w.num_seqs <= batcher->max_num_seqs);
    RK_ASSERT(num_rows == 0 || (w.num_tokens == num_rows && w.num_logits == num_rows));
    *out = (struct rk_step_device){
        .paged = {.num_tokens = w.num_tokens, .num_seqs = w.num_seqs, .num_logits = w.num_logits}};
    inputs->turn ^= 1;
    inputs->used = 0;
    write_tokens(&w);
    write_sequences(&w);
    write_params(&w);
    RK_TRY(write_table(&w, stream, width));
    out->paged.block_table =
        rk_tensor_cols(rk_tensor_2d(inputs->table, RK_DTYPE_I32, w.num_seqs, batcher->max_kv_blocks), 0,
                       num_rows > 0 ? batcher->max_kv_blocks : width);
    return rk_stream_copy(stream, inputs->memory, inputs->host[inputs->turn], inputs->used, RK_COPY_H2D);
}
