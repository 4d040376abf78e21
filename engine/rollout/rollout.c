/* The step loop: plan, write the flattened inputs, run the model, sample on the device, append.
 *
 * On an asynchronous device a step is enqueued before the host has read the tokens of the previous step: it
 * takes them on the device (rk_next_tokens). The host learns one step late which of them ended a response,
 * and drops the token that such a sequence sampled afterwards. Results do not change, because neither logits
 * nor noise of a sequence depend on the other sequences in a step. All memory is allocated at creation. Entry
 * point: rk_rollout_generate. */
#include "engine/rollout/rollout.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_time.h"
#include "kernels/rk_kernels.h"

#define STEPS_PER_CANCEL_CHECK 16 /* each check is a collective */
#define ARENA_BLOCK_BYTES      (64 << 10)
#define MAX_NUM_SEQS           65536 /* prevents overflow of block counts and staging bytes */

/* A step in flight. */
struct step {
    struct rk_step_plan plan;
    struct rk_event *done; /* recorded after the copy of its tokens to the host */
    char *tokens;          /* pinned: sampled tokens [rows] (I32), followed by log-probs (F32) */
    int32_t num_rows;      /* rows of logits, with padding */
};

struct rk_rollout {
    struct rk_model *model;          /* borrowed */
    struct rk_arena *arena;          /* owned: host memory of the members below */
    struct rk_rollout_config config; /* complete */
    struct rk_kv_block_pool pool;
    struct rk_kv_cache cache;
    struct rk_batcher batcher;
    struct rk_step_inputs inputs;
    struct rk_decode_graphs graphs;
    struct rk_route_capture capture;
    void *sampled;                       /* device: result of the last step, as in struct step */
    struct step steps[2];                /* the step being read and the step in flight, alternating */
    const struct rk_engine_hooks *hooks; /* of the running call; NULL when there are none */
    int64_t begun_ns;                    /* the call */
    bool is_pipelined;
};

static struct rk_device *device_of(const struct rk_rollout *rollout)
{
    return rk_stream_device(rk_model_stream(rollout->model));
}

static struct rk_status *complete_config(struct rk_rollout_config *config, const struct rk_model *model)
{
    int64_t max_position = rk_model_get_config(model)->max_position_embeddings;

    if (config->max_model_len == 0)
        config->max_model_len = max_position;
    if (config->max_model_len < 2 || config->max_model_len > max_position)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "rollout.max_model_len=%lld: expected 2 to %lld, the limit of the model",
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

/* Sets the number of blocks: from the configuration, or enough for max_num_seqs sequences of full length plus
 * the null block. */
static struct rk_status *complete_blocks(struct rk_rollout_config *config)
{
    int64_t per_seq = (config->max_model_len + RK_KV_BLOCK_TOKENS - 1) / RK_KV_BLOCK_TOKENS;
    int64_t num_kv_blocks =
        config->num_kv_blocks > 0 ? config->num_kv_blocks : 1 + per_seq * config->max_num_seqs;

    if (num_kv_blocks >= INT32_MAX / RK_KV_BLOCK_TOKENS)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED,
                       "the KV cache of rollout.max_num_seqs=%d sequences of rollout.max_model_len=%lld "
                       "tokens has too many slots",
                       config->max_num_seqs, (long long)config->max_model_len);
    if (num_kv_blocks < 1 + per_seq)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED,
                       "a KV cache of %lld blocks does not fit one sequence of rollout.max_model_len=%lld "
                       "tokens, expected at least %lld blocks",
                       (long long)num_kv_blocks, (long long)config->max_model_len, (long long)(1 + per_seq));
    config->num_kv_blocks = (int32_t)num_kv_blocks;
    return NULL;
}

/* Maximum size of a step's results. */
static size_t bytes_sampled(const struct rk_rollout *rollout)
{
    return (size_t)rollout->config.max_num_seqs * (sizeof(int32_t) + sizeof(float));
}

/* Allocates the results of steps. */
static struct rk_status *init_steps(struct rk_rollout *rollout)
{
    struct rk_device *device = device_of(rollout);
    int32_t num_seqs = rollout->config.max_num_seqs;
    size_t bytes = bytes_sampled(rollout);

    for (int i = 0; i < 2; i++) {
        struct step *step = &rollout->steps[i];
        void *memory;

        RK_TRY(rk_step_plan_init(&step->plan, rollout->arena, num_seqs));
        RK_TRY(rk_event_create(&step->done, device));
        RK_TRY(rk_device_host_alloc(device, &memory, bytes, "sampled tokens"));
        step->tokens = memory;
    }
    RK_TRY(rk_device_alloc(device, &rollout->sampled, bytes, "sampled tokens"));
    rk_model_note_staging(rollout->model, (int64_t)bytes, 2 * (int64_t)bytes);
    return NULL;
}

/* Replicas generate independently of each other: with experts on other replicas they would have to run every
 * step together. */
static struct rk_status *check_mesh(const struct rk_model *model)
{
    const struct rk_mesh *mesh = rk_mesh_comms_mesh(rk_model_mesh(model));

    if (rk_mesh_axis_size(mesh, RK_AXIS_EP) == 1)
        return NULL;
    if (rk_model_get_routes(model).num_layers == 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "a rollout on mesh %s: expected ep=1 for a model without experts",
                       rk_mesh_text(mesh));
    if (!rk_mesh_ep_is_tp(mesh))
        return RK_FAIL(RK_UNIMPLEMENTED,
                       "a rollout on mesh %s: expected ep=1, which divides the width of experts over the tp "
                       "ranks, or ep=%d and etp=1, which divides whole experts",
                       rk_mesh_text(mesh), rk_mesh_axis_size(mesh, RK_AXIS_TP));
    return NULL;
}

static struct rk_status *init(struct rk_rollout *rollout)
{
    struct rk_rollout_config *config = &rollout->config;
    struct rk_model *model = rollout->model;
    struct rk_arena *arena = rollout->arena;

    RK_TRY(check_mesh(model));
    RK_TRY(complete_config(config, model));
    RK_TRY(complete_blocks(config));
    RK_TRY(rk_kv_block_pool_init(&rollout->pool, arena, config->num_kv_blocks));
    RK_TRY(rk_kv_cache_init(&rollout->cache, arena, model, config->num_kv_blocks));
    RK_TRY(rk_batcher_init(&rollout->batcher, arena, config, &rollout->pool));
    RK_TRY(rk_step_inputs_init(&rollout->inputs, arena, device_of(rollout), &rollout->batcher));
    rk_model_note_staging(model, (int64_t)rollout->inputs.device_bytes, (int64_t)rollout->inputs.host_bytes);
    RK_TRY(rk_route_capture_init(&rollout->capture, model, config));
    RK_TRY(
        rk_decode_graphs_init(&rollout->graphs, arena, model, config->max_num_seqs, !config->enforce_eager));
    return init_steps(rollout);
}

struct rk_status *rk_rollout_create(struct rk_rollout **out, struct rk_model *model,
                                    const struct rk_rollout_config *config)
{
    struct rk_rollout *rollout = rk_calloc(1, sizeof(*rollout));
    struct rk_status *st;

    RK_ASSERT(rk_model_head_outputs(model) & RK_HEAD_BIT(RK_HEAD_LOG_PROBS));
    *out = NULL;
    rollout->model = model;
    rollout->config = *config;
    rollout->arena = rk_arena_create(ARENA_BLOCK_BYTES, 0);
    rollout->is_pipelined = rk_device_is_async(device_of(rollout));
    st = init(rollout);
    if (st)
        rk_rollout_destroy(rollout);
    else
        *out = rollout;
    return st;
}

void rk_rollout_destroy(struct rk_rollout *rollout)
{
    if (!rollout)
        return;
    for (int i = 0; i < 2; i++) {
        rk_event_destroy(rollout->steps[i].done);
        rk_device_host_free(device_of(rollout), rollout->steps[i].tokens);
    }
    if (rollout->sampled)
        rk_model_note_staging(rollout->model, -(int64_t)bytes_sampled(rollout),
                              -2 * (int64_t)bytes_sampled(rollout));
    rk_device_free(device_of(rollout), rollout->sampled);
    rk_decode_graphs_fini(&rollout->graphs);
    rk_route_capture_fini(&rollout->capture);
    rk_model_note_staging(rollout->model, -(int64_t)rollout->inputs.device_bytes,
                          -(int64_t)rollout->inputs.host_bytes);
    rk_step_inputs_fini(&rollout->inputs);
    rk_kv_cache_fini(&rollout->cache);
    rk_arena_destroy(rollout->arena);
    rk_free(rollout);
}

static const struct rk_knob knobs[] = {RK_ROLLOUT_KNOBS(RK_KNOB_ROW, struct rk_rollout_config, , )};

struct rk_status *rk_rollout_config_read(struct rk_rollout_config *out, const struct rk_json *options)
{
    *out = (struct rk_rollout_config){0};
    return rk_knobs_read(out, knobs, RK_ARRAY_LEN(knobs), options);
}

struct rk_rollout_config rk_rollout_get_config(const struct rk_rollout *rollout)
{
    return rollout->config;
}

void rk_rollout_set_pipelined(struct rk_rollout *rollout, bool is_pipelined)
{
    rollout->is_pipelined = is_pipelined;
}

int64_t rk_rollout_num_graph_launches(const struct rk_rollout *rollout)
{
    return rollout->graphs.num_launches;
}

static struct rk_status *check_lengths(const struct rk_rollout *rollout,
                                       const struct rk_rollout_request *request)
{
    int64_t max_model_len = rollout->config.max_model_len;

    if (request->prompt_len < 1)
        return RK_FAIL(RK_INVALID_ARGUMENT, "the prompt is empty");
    if (request->prompt_len >= max_model_len)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "a prompt of %d tokens leaves no room for a response in rollout.max_model_len=%lld",
                       request->prompt_len, (long long)max_model_len);
    if (request->max_tokens < 1)
        return RK_FAIL(RK_INVALID_ARGUMENT, "max_tokens=%d: expected at least 1", request->max_tokens);
    if (request->max_tokens > max_model_len - request->prompt_len)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "a prompt of %d tokens and %d new ones exceed rollout.max_model_len=%lld",
                       request->prompt_len, request->max_tokens, (long long)max_model_len);
    return NULL;
}

struct rk_status *rk_rollout_check(const struct rk_rollout *rollout, const struct rk_rollout_request *request)
{
    int64_t vocab_size = rk_model_get_config(rollout->model)->vocab_size;
    float temperature = request->temperature;

    RK_TRY(check_lengths(rollout, request));
    if (temperature != 0.0F && !(temperature >= RK_TEMPERATURE_MIN && temperature <= RK_TEMPERATURE_MAX))
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "temperature=%g: expected 0, which is greedy, or a number from %g to %g",
                       (double)temperature, (double)RK_TEMPERATURE_MIN, (double)RK_TEMPERATURE_MAX);
    if (!(request->top_p > 0.0F && request->top_p <= 1.0F))
        return RK_FAIL(RK_INVALID_ARGUMENT, "top_p=%g: expected a number above 0, at most 1",
                       (double)request->top_p);
    for (int32_t t = 0; t < request->prompt_len; t++)
        if (request->prompt[t] < 0 || request->prompt[t] >= vocab_size)
            return RK_FAIL(RK_INVALID_ARGUMENT, "token %d of the prompt is %d: expected 0 to %lld", t,
                           request->prompt[t], (long long)vocab_size - 1);
    return NULL;
}

/* Arguments of a step to be enqueued or recorded. */
struct model_step {
    struct rk_rollout *rollout;
    struct rk_step_device inputs;
};

/* Samples one token per row of logits. Rank 0 of tp broadcasts: equal logits may sample different tokens on
 * hosts with different math libraries. */
static struct rk_status *sample(struct rk_rollout *rollout, rk_tensor_t logits,
                                const struct rk_sample_params *params)
{
    struct rk_stream *stream = rk_model_stream(rollout->model);
    struct rk_comm_group *tp = rk_mesh_comms_group(rk_model_mesh(rollout->model), RK_GROUP_TP);
    int64_t n = logits.shape[0];
    char *tokens = rollout->sampled, *log_probs = tokens + (size_t)n * sizeof(int32_t);
    size_t bytes = (size_t)n * (sizeof(int32_t) + sizeof(float));
    struct rk_sample_args args = {
        .tokens = rk_tensor_1d(tokens, RK_DTYPE_I32, n),
        .log_probs = rk_tensor_1d(log_probs, RK_DTYPE_F32, n),
        .logits = logits,
        .vocab_size = rk_model_get_config(rollout->model)->vocab_size,
        .params = params,
    };

    RK_TRY(rk_sample(stream, &args));
    return rk_comm_broadcast(tp, stream, rk_tensor_1d(tokens, RK_DTYPE_U8, (int64_t)bytes), 0);
}

/* Enqueues model and sampling: from the inputs on the device to the sampled tokens on the device. */
static struct rk_status *enqueue_model(void *user)
{
    struct model_step *step = user;
    struct rk_rollout *rollout = step->rollout;
    const struct rk_paged_step *paged = &step->inputs.paged;
    rk_tensor_t logits;

    RK_TRY(rk_next_tokens(
        rk_model_stream(rollout->model),
        &(struct rk_next_tokens_args){
            .tokens = paged->tokens,
            .sampled = rk_tensor_1d(rollout->sampled, RK_DTYPE_I32, rollout->config.max_num_seqs),
            .source = step->inputs.source,
        }));
    RK_TRY(rk_model_forward_paged(rollout->model, paged, rollout->hooks, &logits));
    return paged->num_logits > 0 ? sample(rollout, logits, step->inputs.params) : NULL;
}

/* Whether every entry computes one token and samples. */
static bool is_decode(const struct rk_step_plan *plan)
{
    return plan->num_tokens == plan->num_entries && plan->num_samples == plan->num_entries;
}

static int turn_of(const struct rk_rollout *rollout, const struct step *step)
{
    return step == &rollout->steps[1];
}

/* Enqueues the planned step, including the copy of its tokens to the host. */
static struct rk_status *enqueue_step(struct rk_rollout *rollout, struct step *step)
{
    struct rk_stream *stream = rk_model_stream(rollout->model);
    struct model_step model_step = {.rollout = rollout};
    int32_t num_rows =
        is_decode(&step->plan) ? rk_decode_graphs_num_rows(&rollout->graphs, step->plan.num_entries) : 0;

    RK_TRY(rk_step_inputs_write(&rollout->inputs, stream, &rollout->batcher, &step->plan, num_rows,
                                &model_step.inputs));
    model_step.inputs.paged.caches = rollout->cache.tensors;
    model_step.inputs.paged.chosen =
        rk_route_capture_tensor(&rollout->capture, model_step.inputs.paged.num_tokens);
    if (num_rows > 0)
        RK_TRY(rk_decode_graphs_run(&rollout->graphs, num_rows, enqueue_model, &model_step));
    else
        RK_TRY(enqueue_model(&model_step));
    step->num_rows = model_step.inputs.paged.num_logits;
    RK_TRY(rk_stream_copy(stream, step->tokens, rollout->sampled,
                          (size_t)step->num_rows * (sizeof(int32_t) + sizeof(float)), RK_COPY_D2H));
    RK_TRY(rk_route_capture_fetch(&rollout->capture, turn_of(rollout, step), step->plan.num_tokens));
    return rk_event_record(step->done, stream);
}

/* Waits for the step's tokens and appends them. */
static struct rk_status *read_step(struct rk_rollout *rollout, const struct step *step)
{
    const int32_t *tokens = (const int32_t *)(const void *)step->tokens;
    const float *log_probs = (const float *)(const void *)(tokens + step->num_rows);
    int32_t row = 0;
    int64_t now_ns;

    RK_TRY(rk_event_sync(step->done));
    now_ns = rk_time_now_ns();
    rk_route_capture_take(&rollout->capture, turn_of(rollout, step), &rollout->batcher, &step->plan);
    for (int32_t i = 0; i < step->plan.num_entries; i++) {
        struct rk_rollout_result *result;

        if (!step->plan.entries[i].samples)
            continue;
        if (isnan(log_probs[row]))
            return RK_FAIL_REASON(RK_ABORTED, "NON_FINITE", "the model's logits are not finite");
        result = rollout->batcher.sequences[step->plan.entries[i].slot].result;
        if (result->num_tokens == 0)
            result->first_token_ns = now_ns - rollout->begun_ns;
        result->last_token_ns = now_ns - rollout->begun_ns;
        rk_batcher_append(&rollout->batcher, &step->plan.entries[i], tokens[row], log_probs[row]);
        row++;
    }
    rk_batcher_retire(&rollout->batcher);
    return NULL;
}

/* Plans and enqueues the next step if there is one that does not need *pending to be read; then reads
 * *pending, which the new step replaces. Not pipelined: reads the new step at once. */
static struct rk_status *advance(struct rk_rollout *rollout, struct step **pending)
{
    struct step *before = *pending, *step = &rollout->steps[before == &rollout->steps[0] ? 1 : 0];

    rk_batcher_plan(&rollout->batcher, &step->plan);
    RK_ASSERT(before || step->plan.num_entries > 0);
    *pending = NULL;
    if (step->plan.num_entries > 0) {
        RK_TRY(enqueue_step(rollout, step));
        *pending = step;
    }
    if (before)
        RK_TRY(read_step(rollout, before));
    if (rollout->is_pipelined || !*pending)
        return NULL;
    *pending = NULL;
    return read_step(rollout, step);
}

static void tell_load(const struct rk_rollout *rollout)
{
    const struct rk_batcher *batcher = &rollout->batcher;
    const struct rk_engine_hooks *hooks = rollout->hooks;

    if (hooks && hooks->on_rollout)
        hooks->on_rollout(hooks->user,
                          &(struct rk_rollout_load){
                              .num_running = batcher->num_running,
                              .num_waiting = batcher->num_requests - batcher->num_admitted,
                              .num_used_kv_blocks = rollout->pool.num_kv_blocks - 1 - rollout->pool.num_free,
                              .num_kv_blocks = rollout->pool.num_kv_blocks - 1,
                          });
}

struct rk_status *rk_rollout_generate(struct rk_rollout *rollout, const struct rk_rollout_request *requests,
                                      int64_t num_requests, struct rk_rollout_result *results,
                                      const struct rk_engine_hooks *hooks)
{
    struct rk_batcher *batcher = &rollout->batcher;
    struct rk_stream *stream = rk_model_stream(rollout->model);
    struct step *pending = NULL;
    struct rk_status *st = NULL;
    int64_t begun_ns = rk_time_now_ns();

    for (int64_t i = 0; i < num_requests; i++) {
        st = rk_rollout_check(rollout, &requests[i]);
        if (st)
            return RK_WRAP(st, "request %lld", (long long)i);
    }
    RK_TRY(rk_decode_graphs_agree(&rollout->graphs));
    rk_batcher_begin(batcher, requests, num_requests, results);
    rk_route_capture_begin(&rollout->capture, results, num_requests);
    rollout->hooks = hooks;
    rollout->begun_ns = begun_ns;
    for (int64_t i = 0; !rk_batcher_is_done(batcher); i++) {
        if (hooks && i % STEPS_PER_CANCEL_CHECK == 0)
            RK_TRY_GOTO(st, rk_model_check_cancel(rollout->model, hooks, RK_GROUP_TP), out);
        RK_TRY_GOTO(st, advance(rollout, &pending), out);
        if (hooks && hooks->on_progress)
            hooks->on_progress(hooks->user, "generate", (uint64_t)batcher->num_finished,
                               (uint64_t)num_requests);
        tell_load(rollout);
    }
out:
    if (st) /* no step in flight may write to memory of the next call */
        st = rk_status_first(st, rk_stream_sync(stream));
    rk_batcher_end(batcher);
    tell_load(rollout);
    rollout->hooks = NULL;
    return st;
}
