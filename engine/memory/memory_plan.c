/* The dry run that makes a memory plan, and allocation according to a plan. Entry point:
 * rk_memory_plan_make. */
#include "engine/rk_memory.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/layout/rk_zigzag.h"
#include "engine/comm/comm.h"
#include "engine/model/model.h"
#include "engine/optim/trainer.h"
#include "engine/reshard/reshard.h"
#include "engine/rollout/rollout.h"

/* The world of one rank of a dry run, and the role's model in it. */
struct dry_run {
    const struct rk_memory_plan_desc *desc;
    struct rk_device *device;
    struct rk_stream *stream;
    struct rk_comm_world *world;
    struct rk_mesh_comms *comms;
    struct rk_model *owner;     /* owner of the weights, if the role shares them */
    struct rk_model *model;     /* the role's */
    struct rk_trainer *trainer; /* of the model; NULL: the role does not train */
};

static void dry_run_fini(struct dry_run *run)
{
    rk_trainer_destroy(run->trainer);
    rk_model_destroy(run->model);
    rk_model_destroy(run->owner);
    rk_mesh_comms_destroy(run->comms);
    rk_comm_world_destroy(run->world);
    rk_stream_destroy(run->stream);
    rk_device_close(run->device);
}

static struct rk_status *dry_run_init(struct dry_run *run)
{
    const struct rk_memory_plan_desc *desc = run->desc;
    struct rk_model_desc model = desc->model;

    RK_TRY(rk_device_open_dry(&run->device, desc->device));
    RK_TRY(rk_stream_create(&run->stream, run->device, "plan"));
    run->world = rk_comm_world_create_dry(desc->rank, rk_mesh_world_size(desc->mesh));
    RK_TRY(rk_mesh_comms_create(&run->comms, desc->mesh, run->world));
    model.stream = run->stream;
    model.mesh = run->comms;
    if (!desc->shares_weights)
        return rk_model_create(&run->model, &model);
    RK_TRY(rk_model_create(&run->owner, &model));
    return rk_model_create_shared(&run->model, run->owner);
}

/* --- passes over packed tokens --- */

static struct rk_status *no_loss(void *user, const struct rk_head_arrays *outputs,
                                 const struct rk_head_arrays *grads)
{
    (void)user;
    (void)outputs;
    (void)grads;
    return NULL;
}

/* Number of micro-batches with which the pipeline's stages hold their maximum at the same time. */
static int64_t count_for_stages(const struct rk_model *model)
{
    const struct rk_pipeline *pipeline = model->core->pipeline;
    int32_t num_stages = rk_pipeline_num_stages(pipeline);

    return num_stages == 1 ? 1
                           : rk_pipeline_round_micro_batches(2 * num_stages, num_stages,
                                                             rk_pipeline_num_chunks(pipeline), 0);
}

static struct rk_status *bind_train(void *user, int64_t i, struct rk_train_micro *micro)
{
    (void)i;
    *micro = *(const struct rk_train_micro *)user;
    return NULL;
}

static struct rk_status *bind_forward(void *user, int64_t i, struct rk_forward_micro *micro)
{
    (void)i;
    *micro = *(const struct rk_forward_micro *)user;
    return NULL;
}

static struct rk_status *run_train(struct rk_model *model, const struct rk_packed *packed, int64_t num_ids)
{
    int32_t *ids = rk_calloc((size_t)(packed->num_tokens * num_ids), sizeof(*ids));
    const struct rk_train_micro micro = {
        .packed = packed,
        .temperature = 1,
        .outputs = rk_model_head_outputs(model),
        .num_ids = num_ids,
        .ids = ids,
        .loss_fn = no_loss,
    };
    struct rk_trainer *trainer = rk_model_trainer(model);
    struct rk_status *st;
    bool is_finite;
    double norm;

    RK_TRY_GOTO(st, rk_trainer_begin(trainer), out);
    RK_TRY_GOTO(st,
                rk_trainer_micro_batches(trainer, &(struct rk_train_work){.count = count_for_stages(model),
                                                                          .is_last = true,
                                                                          .bind = bind_train,
                                                                          .user = (void *)&micro}),
                out);
    RK_TRY_GOTO(st, rk_trainer_reduce(trainer), out);
    st = rk_trainer_grad_norm(trainer, &norm, &is_finite);
out:
    rk_free(ids);
    return st;
}

static int64_t routes_per_token(const struct rk_model *model)
{
    struct rk_model_routes routes = rk_model_get_routes(model);

    return routes.num_layers * routes.num_experts_per_tok;
}

/* Whether passes that only compute log-probs return what their routers choose. */
static bool returns_routes(const struct rk_model *model)
{
    struct rk_model_replay replay = rk_model_get_replay(model);

    return replay.mode != RK_REPLAY_DISABLED || replay.compares;
}

static struct rk_status *run_forward(struct rk_model *model, const struct rk_packed *packed, int64_t num_ids)
{
    uint32_t outputs = rk_model_head_outputs(model);
    struct rk_head_arrays out = {.ids = {.num_ids = num_ids}};
    size_t num_tokens = (size_t)packed->num_tokens;
    struct rk_packed own = *packed;
    struct rk_forward_micro micro = {.packed = &own, .temperature = 1, .out = &out};
    struct rk_status *st;

    if (rk_model_get_replay(model).mode != RK_REPLAY_R3)
        own.routed_experts = NULL;
    if (returns_routes(model))
        micro.chosen_experts = rk_calloc(num_tokens * (size_t)routes_per_token(model), sizeof(uint16_t));
    for (int i = 0; i < RK_HEAD_OUTPUT_COUNT; i++) {
        if (outputs & RK_HEAD_BIT(i))
            out.of[i] = rk_calloc(num_tokens, sizeof(double));
    }
    if (num_ids > 0) {
        out.ids.top_ids = rk_calloc(num_tokens * (size_t)num_ids, sizeof(int32_t));
        out.ids.top_log_probs = rk_calloc(num_tokens * (size_t)num_ids, sizeof(double));
    }
    st = rk_model_forward_all(
        model,
        &(struct rk_forward_work){.count = count_for_stages(model), .bind = bind_forward, .user = &micro});
    if (!st && micro.chosen_experts)
        st = rk_model_merge_routes(model, micro.chosen_experts, packed->num_tokens);
    for (int i = 0; i < RK_HEAD_OUTPUT_COUNT; i++)
        rk_free(out.of[i]);
    rk_free(micro.chosen_experts);
    rk_free(out.ids.top_ids);
    rk_free(out.ids.top_log_probs);
    return st;
}

/* Minimum length of a planned sequence, in units of the padding multiple. */
#define PADDED_UNITS_MIN 8

/* Tokens of each sequence of a planned pass. If the ranks pad sequences, shorter sequences need more memory;
 * passes with sequences shorter than this may exceed the plan. */
static int64_t tokens_per_sequence(const struct rk_memory_plan_desc *desc)
{
    int32_t cp = rk_mesh_axis_size(desc->mesh, RK_AXIS_CP), tp = rk_mesh_axis_size(desc->mesh, RK_AXIS_TP);

    return cp > 1 ? PADDED_UNITS_MIN * rk_zigzag_padded_length(1, cp, tp) + 1 : 1;
}

/* The first experts for all tokens, if training replays the experts of tokens; otherwise NULL. */
static uint16_t *make_routes(const struct rk_model *model, int64_t num_tokens)
{
    int64_t count = num_tokens * routes_per_token(model);
    int64_t top_k = rk_model_get_routes(model).num_experts_per_tok;
    uint16_t *experts;

    if (rk_model_get_replay(model).mode == RK_REPLAY_DISABLED)
        return NULL;
    experts = rk_calloc((size_t)count, sizeof(*experts));
    for (int64_t i = 0; i < count; i++)
        experts[i] = (uint16_t)(i % top_k);
    return experts;
}

/* Runs a pass of num_tokens tokens, all labelled, in sequences of tokens_per_sequence(). No pass with as many
 * tokens in longer sequences needs more memory. */
static struct rk_status *run_tokens(const struct dry_run *dry, int64_t num_tokens, int64_t num_ids,
                                    struct rk_status *(*run)(struct rk_model *model,
                                                             const struct rk_packed *packed, int64_t num_ids))
{
    int64_t step = tokens_per_sequence(dry->desc);
    struct rk_packed packed = {.num_seqs = (int32_t)((num_tokens + step - 1) / step),
                               .num_tokens = num_tokens,
                               .max_seqlen = (int32_t)RK_MIN(step, num_tokens)};
    int32_t *zeros, *cu_seqlens;
    uint16_t *routes;
    struct rk_status *st;

    if (num_tokens < 0 || num_tokens > INT32_MAX / 4)
        return RK_FAIL(RK_INVALID_ARGUMENT, "a micro-batch of %lld tokens, expected 0 to %d",
                       (long long)num_tokens, INT32_MAX / 4);
    if (num_tokens == 0)
        return NULL;
    zeros = rk_calloc((size_t)num_tokens, sizeof(*zeros));
    cu_seqlens = rk_calloc((size_t)packed.num_seqs + 1, sizeof(*cu_seqlens));
    for (int32_t i = 0; i <= packed.num_seqs; i++)
        cu_seqlens[i] = (int32_t)RK_MIN(i * step, num_tokens);
    packed.tokens = packed.positions = packed.labels = zeros;
    packed.cu_seqlens = cu_seqlens;
    routes = make_routes(dry->model, num_tokens);
    packed.routed_experts = routes;
    st = run(dry->model, &packed, num_ids);
    rk_free(routes);
    rk_free(zeros);
    rk_free(cu_seqlens);
    return st;
}

/* Export stages parameters in the step arena: runs the largest move once. */
static struct rk_status *run_gather(struct rk_model *model)
{
    const struct rk_param_table *params = &model->core->params;
    struct rk_param_rows largest = {0};
    int64_t largest_elements = 0;
    struct rk_status *st;
    void *out;

    for (int64_t i = 0; i < params->count; i++) {
        struct rk_placement placement = rk_params_owner_placement(params, i);
        struct rk_param_rows rows = {.param = i, .count = rk_model_rows_per_move(model, i)};

        if (rows.count * placement.local_shape[1] > largest_elements) {
            largest = rows;
            largest_elements = rows.count * placement.local_shape[1];
        }
    }
    out = rk_calloc((size_t)largest_elements * (size_t)rk_params_tp_size(params),
                    rk_dtype_bytes(model->core->dtype));
    st = rk_model_gather_rows(model, &largest, out);
    rk_free(out);
    return st;
}

static struct rk_status *run_reshard(struct dry_run *run)
{
    const struct rk_memory_plan_desc *desc = run->desc;
    const struct rk_reshard_link link = {
        .source = desc->reshard_source, .destination = desc->reshard_destination, .rank = desc->rank};

    return rk_reshard_take(run->model, &link, &desc->reshard_layout, desc->reshard_bucket_bytes);
}

/* --- generation --- */

/* Greedy requests with prompts of zeros; a dry device also samples zeros. */
struct requests {
    struct rk_rollout_request *requests;
    struct rk_rollout_result *results;
    int32_t *zeros, *tokens; /* [max_model_len] each: prompt of all requests, output of all requests */
    float *log_probs;
};

static void requests_init(struct requests *all, int32_t count, int64_t max_model_len)
{
    static const int64_t zero = 0;

    all->requests = rk_calloc((size_t)count, sizeof(*all->requests));
    all->results = rk_calloc((size_t)count, sizeof(*all->results));
    all->zeros = rk_calloc((size_t)max_model_len, sizeof(*all->zeros));
    all->tokens = rk_calloc((size_t)max_model_len, sizeof(*all->tokens));
    all->log_probs = rk_calloc((size_t)max_model_len, sizeof(*all->log_probs));
    for (int32_t i = 0; i < count; i++) {
        all->requests[i] = (struct rk_rollout_request){
            .prompt = all->zeros, .top_p = 1, .eos_token_ids = &zero, .num_eos_token_ids = 1};
        all->results[i] = (struct rk_rollout_result){.tokens = all->tokens, .log_probs = all->log_probs};
    }
}

static void requests_fini(struct requests *all)
{
    rk_free(all->requests);
    rk_free(all->results);
    rk_free(all->zeros);
    rk_free(all->tokens);
    rk_free(all->log_probs);
}

/* The two extreme steps: the maximum number of tokens over the maximum number of sequences, and a decode
 * step. All sequences may grow to full length, so block tables have their maximum width: blocks are reserved
 * at admission. The first sampled token is an end token, so each call is one step. */
static struct rk_status *run_steps(struct rk_rollout *rollout)
{
    struct rk_rollout_config config = rk_rollout_get_config(rollout);
    int32_t num_seqs = config.max_num_seqs;
    struct requests all;
    struct rk_status *st;

    requests_init(&all, num_seqs, config.max_model_len);
    for (int32_t i = 0; i < num_seqs; i++) {
        int64_t share =
            config.max_num_batched_tokens / num_seqs + (i < config.max_num_batched_tokens % num_seqs ? 1 : 0);

        all.requests[i].prompt_len = (int32_t)RK_MIN(share, config.max_model_len - 1);
        all.requests[i].max_tokens = (int32_t)config.max_model_len - all.requests[i].prompt_len;
    }
    RK_TRY_GOTO(st, rk_rollout_generate(rollout, all.requests, num_seqs, all.results, NULL), out);
    for (int32_t i = 0; i < num_seqs; i++) {
        all.requests[i].prompt_len = 1;
        all.requests[i].max_tokens = (int32_t)config.max_model_len - 1;
    }
    st = rk_rollout_generate(rollout, all.requests, num_seqs, all.results, NULL);
out:
    requests_fini(&all);
    return st;
}

/* Steps run with a cache for all sequences, which costs nothing in a dry run; the plan reports the cache that
 * was requested. */
static struct rk_status *run_rollout(struct dry_run *run, struct rk_memory_plan *out)
{
    struct rk_rollout_config config = *run->desc->rollout;
    struct rk_rollout *rollout;
    struct rk_status *st;

    config.num_kv_blocks = 0;
    RK_TRY(rk_rollout_create(&rollout, run->model, &config));
    st = run_steps(rollout);
    rk_rollout_destroy(rollout);
    RK_TRY(st);
    RK_TRY(rk_rollout_create(&rollout, run->model, run->desc->rollout));
    out->memory = rk_model_get_memory(run->model);
    out->num_kv_blocks = rk_rollout_get_config(rollout).num_kv_blocks;
    rk_rollout_destroy(rollout);
    return NULL;
}

/* --- the plan --- */

static struct rk_status *run_all(struct dry_run *run, struct rk_memory_plan *out)
{
    const struct rk_memory_plan_desc *desc = run->desc;
    const struct rk_memory_limits *limits = &desc->limits;

    RK_TRY(dry_run_init(run));
    if (desc->optim)
        RK_TRY(rk_trainer_create(&run->trainer, run->model, desc->optim));
    if (desc->optim)
        RK_TRY(run_tokens(run, limits->train_tokens, limits->num_ids, run_train));
    RK_TRY(run_tokens(run, limits->log_prob_tokens, desc->optim ? 0 : limits->num_ids, run_forward));
    if (!desc->shares_weights) {
        RK_TRY(run_gather(run->model));
        RK_TRY(rk_model_check_finite(run->model, ""));
    }
    if (desc->reshard_source)
        RK_TRY(run_reshard(run));
    if (desc->rollout)
        return run_rollout(run, out);
    out->memory = rk_model_get_memory(run->model);
    return NULL;
}

struct rk_status *rk_memory_plan_make(struct rk_memory_plan *out, const struct rk_memory_plan_desc *desc)
{
    struct dry_run run = {.desc = desc};
    struct rk_status *st;

    RK_ASSERT(desc->struct_size == sizeof(*desc));
    *out = (struct rk_memory_plan){0};
    st = run_all(&run, out);
    if (st)
        st = RK_WRAP(st, "planning memory");
    else if (desc->weights_dir)
        st = rk_model_check_hf(run.model, desc->weights_dir);
    if (!st) {
        out->workspace = rk_device_dry_workspace(run.device);
        out->memory.workspace_bytes += out->workspace.scratch_bytes + out->workspace.kept_bytes;
        /* Each arena becomes one block of the peak live size. */
        out->memory.activation_bytes =
            out->memory.activation_peak_bytes + (uint64_t)out->memory.num_slots * out->memory.slot_peak_bytes;
        out->memory.pass_host_bytes = out->memory.pass_host_peak_bytes +
                                      (uint64_t)out->memory.num_slots * out->memory.slot_host_peak_bytes;
        if (!desc->shares_weights) {
            out->away_bytes = rk_model_offload_bytes(run.model);
            out->memory.offload_host_bytes = rk_model_offload_copy_bytes(run.model);
        }
    }
    dry_run_fini(&run);
    return st;
}

struct rk_status *rk_memory_plan_reserve(const struct rk_memory_plan *plan, struct rk_model *model)
{
    RK_TRY(rk_step_arena_reserve(model->arena, plan->memory.activation_peak_bytes,
                                 plan->memory.pass_host_peak_bytes));
    RK_TRY(rk_model_reserve_slots(model, &plan->memory));
    return rk_stream_reserve(model->core->stream, &plan->workspace);
}
