/* Creates a model: declares its layers, lays out the parameter table, allocates the buffers. */
#include "engine/model/model.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/layout/rk_mesh.h"

struct rk_status *rk_numerics_parse(rk_numerics_t *out, const char *text)
{
    static const char *const names[RK_NUMERICS_COUNT] = {
        [RK_NUMERICS_FAST] = "fast", [RK_NUMERICS_STRICT] = "strict"};

    for (int i = 0; i < RK_NUMERICS_COUNT; i++) {
        if (strcmp(text, names[i]) == 0) {
            *out = (rk_numerics_t)i;
            return NULL;
        }
    }
    if (strcmp(text, "hf") == 0)
        return RK_FAIL(RK_UNIMPLEMENTED, "numerics='hf' is not implemented, expected fast or strict");
    return RK_FAIL(RK_INVALID_ARGUMENT, "numerics='%.32s', expected fast or strict", text);
}

/* Expert tensor parallelism equals tp unless it is set. */
static struct rk_status *check_axes(const struct rk_mesh *mesh)
{
    int32_t etp = rk_mesh_axis_size(mesh, RK_AXIS_ETP), tp = rk_mesh_axis_size(mesh, RK_AXIS_TP);

    if (tp % etp != 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "mesh axis etp=%d: expected a divisor of tp=%d", etp, tp);
    return NULL;
}

/* Makes the cos and sin tables of one RoPE specification. */
static struct rk_status *make_rope(struct rk_model_core *core, const struct rk_rope_spec *rope,
                                   struct rk_rope_tables *out)
{
    int64_t num_positions = core->config.max_position_embeddings, half = rope->width / 2;
    rk_tensor_t *tables[] = {&out->cos, &out->sin};
    float *host[2] = {NULL, NULL};
    struct rk_status *st = NULL;
    size_t bytes;

    if (!rk_mul_size((size_t)num_positions * sizeof(float), (size_t)half, &bytes))
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "RoPE tables of %lld positions exceed the address space",
                       (long long)num_positions);
    for (int i = 0; i < 2; i++) {
        void *memory;

        *tables[i] = rk_tensor_2d(NULL, RK_DTYPE_F32, num_positions, half);
        RK_TRY_GOTO(st,
                    rk_device_alloc(rk_stream_device(core->stream), &tables[i]->data, bytes, "rotary tables"),
                    out);
        RK_TRY_GOTO(st, rk_try_alloc(&memory, bytes, "rotary tables"), out);
        host[i] = memory;
    }
    if (!rk_device_is_dry(rk_stream_device(core->stream))) /* filling tables of 131072 positions takes half a
                                                            * second */
        rk_rope_table(rope, num_positions, host[0], host[1]);
    for (int i = 0; i < 2; i++)
        RK_TRY_GOTO(st, rk_stream_copy(core->stream, tables[i]->data, host[i], bytes, RK_COPY_H2D), out);
    st = rk_stream_sync(core->stream);

out:
    rk_free(host[0]);
    rk_free(host[1]);
    return st;
}

static struct rk_status *make_ropes(struct rk_model_core *core)
{
    core->rope_tables = rk_calloc((size_t)core->num_ropes, sizeof(*core->rope_tables));
    for (int32_t i = 0; i < core->num_ropes; i++)
        RK_TRY(make_rope(core, &core->ropes[i], &core->rope_tables[i]));
    return NULL;
}

/* 0, 1, 2, ...: indices that interleave the rows of several ranks' logits (nn/head_lm.c). */
static struct rk_status *make_row_numbers(struct rk_model_core *core)
{
    size_t bytes = RK_HEAD_CHUNK * sizeof(int32_t);
    int32_t *numbers;
    struct rk_status *st;
    void *memory;

    if (rk_params_tp_size(&core->params) == 1)
        return NULL;
    core->row_numbers = rk_tensor_1d(NULL, RK_DTYPE_I32, RK_HEAD_CHUNK);
    RK_TRY(rk_device_alloc(rk_stream_device(core->stream), &core->row_numbers.data, bytes, "row numbers"));
    RK_TRY(rk_try_alloc(&memory, bytes, "row numbers"));
    numbers = memory;
    for (int32_t i = 0; i < RK_HEAD_CHUNK; i++)
        numbers[i] = i;
    st = rk_stream_copy(core->stream, core->row_numbers.data, numbers, bytes, RK_COPY_H2D);
    if (!st)
        st = rk_stream_sync(core->stream);
    rk_free(memory);
    return st;
}

/* Makes the stream of collectives beside the work of a pass (struct rk_side). */
static struct rk_status *open_side(struct rk_model_core *core)
{
    struct rk_device *device = rk_stream_device(core->stream);

    if (rk_params_tp_size(&core->params) == 1 && rk_mesh_axis_size(core->params.mesh, RK_AXIS_EP) == 1)
        return NULL;
    RK_TRY(rk_stream_create_urgent(&core->side.stream, device, "side"));
    RK_TRY(rk_event_create(&core->side.is_ready, device));
    return rk_event_create(&core->side.is_done, device);
}

static void close_side(struct rk_side *side)
{
    rk_event_destroy(side->is_ready);
    rk_event_destroy(side->is_done);
    rk_stream_destroy(side->stream);
}

static struct rk_status *allocate(struct rk_model_core *core)
{
    struct rk_device *device = rk_stream_device(core->stream);
    size_t bytes;

    if (!rk_mul_size((size_t)core->params.num_elements, rk_dtype_bytes(core->dtype), &bytes))
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "%lld parameters exceed the address space",
                       (long long)core->params.num_elements);
    RK_TRY(rk_model_add_buffer(core, RK_MEMORY_PARAMETERS, bytes, "parameters", &core->values));
    RK_TRY(rk_device_alloc(device, &core->scratch, RK_AGREE_BYTES, "verdicts of ranks"));
    RK_TRY(make_row_numbers(core));
    RK_TRY(open_side(core));
    return make_ropes(core);
}

/* Masks ids from `vocab_size` on in the head, unless `vocab_size` is 0. */
static struct rk_status *limit_vocabulary(struct rk_model_core *core, int64_t vocab_size)
{
    struct rk_head *head = &core->head;

    if (vocab_size < 0 || vocab_size > core->config.vocab_size)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "the tokenizer has %lld ids, expected at most vocab_size=%lld of config.json",
                       (long long)vocab_size, (long long)core->config.vocab_size);
    core->vocab_size = vocab_size > 0 ? vocab_size : core->config.vocab_size;
    head->num_valid = RK_MIN(head->num_valid, RK_MAX(core->vocab_size - head->vocab_begin, 0));
    return NULL;
}

static struct rk_status *core_init(struct rk_model_core *core, const struct rk_model_desc *desc)
{
    const struct rk_mesh *mesh = rk_mesh_comms_mesh(desc->mesh);

    if (desc->dtype != RK_DTYPE_F32 && desc->dtype != RK_DTYPE_BF16 && desc->dtype != RK_DTYPE_F64)
        return RK_FAIL(RK_UNIMPLEMENTED, "parameter dtype %s is not implemented, expected f32 or bf16",
                       rk_dtype_name(desc->dtype));
    RK_TRY(rk_model_config_parse(&core->config, desc->hf_config));
    RK_TRY(check_axes(mesh));
    core->head.ops = rk_head_find(desc->head ? desc->head : "lm");
    RK_ASSERT(core->head.ops);
    RK_TRY(rk_head_check_architecture(core->head.ops, desc->hf_config));
    core->seed = desc->seed;
    core->hf_config = rk_json_clone(desc->hf_config);
    core->dtype = desc->dtype;
    core->numerics = desc->numerics;
    core->recompute_num_layers = desc->recompute_num_layers;
    core->offload = desc->offload;
    core->layout = desc->layout;
    core->moe = desc->moe;
    core->frozen = desc->frozen;
    core->replay = desc->replay;
    core->stream = desc->stream;
    core->mesh = desc->mesh;
    RK_TRY(rk_router_losses_check(&core->moe, &core->config));
    RK_TRY(rk_model_declare(core, mesh, rk_mesh_comms_coords(desc->mesh)));
    RK_TRY(limit_vocabulary(core, desc->vocab_size));
    RK_TRY(rk_model_check_replay(core));
    return allocate(core);
}

static void core_destroy(struct rk_model_core *core)
{
    struct rk_device *device = core->stream ? rk_stream_device(core->stream) : NULL;

    close_side(&core->side);
    if (device) {
        rk_model_keep_buffers(core, 0);
        rk_device_free(device, core->scratch);
        for (int32_t i = 0; core->rope_tables && i < core->num_ropes; i++) {
            rk_device_free(device, core->rope_tables[i].cos.data);
            rk_device_free(device, core->rope_tables[i].sin.data);
        }
        rk_device_free(device, core->row_numbers.data);
    }
    rk_free(core->rope_tables);
    rk_model_declare_fini(core);
    rk_json_free(core->hf_config);
    rk_free(core);
}

static struct rk_model *wrap_core(struct rk_model_core *core, bool owns_core)
{
    struct rk_model *model = rk_calloc(1, sizeof(*model));

    model->core = core;
    model->owns_core = owns_core;
    model->arena = rk_step_arena_create(rk_stream_device(core->stream));
    model->host = rk_arena_create(RK_PASS_HOST_BLOCK_BYTES, 0);
    return model;
}

struct rk_status *rk_model_create(struct rk_model **out, const struct rk_model_desc *desc)
{
    struct rk_model_core *core = rk_calloc(1, sizeof(*core));
    struct rk_status *st;

    RK_ASSERT(desc->struct_size == sizeof(*desc));
    RK_ASSERT(desc->stream);
    RK_ASSERT(desc->recompute_num_layers >= 0);
    RK_ASSERT(rk_mesh_comms_is_member(desc->mesh));
    *out = NULL;
    st = core_init(core, desc);
    if (st) {
        core_destroy(core);
        return RK_WRAP(st, "creating a model on mesh %s", rk_mesh_text(rk_mesh_comms_mesh(desc->mesh)));
    }
    *out = wrap_core(core, true);
    return NULL;
}

struct rk_status *rk_model_create_shared(struct rk_model **out, struct rk_model *owner)
{
    RK_ASSERT(owner);
    *out = wrap_core(owner->core, false);
    return NULL;
}

void rk_model_destroy(struct rk_model *model)
{
    if (!model)
        return;
    RK_ASSERT(!model->trainer);
    rk_model_destroy_slots(model);
    rk_event_destroy(model->is_ready);
    rk_event_destroy(model->is_done);
    rk_stream_destroy(model->messages);
    rk_step_arena_destroy(model->arena);
    rk_arena_destroy(model->host);
    if (model->owns_core)
        core_destroy(model->core);
    rk_free(model);
}

void rk_model_describe(const struct rk_model *model, struct rk_model_desc *out)
{
    const struct rk_model_core *core = model->core;

    *out = (struct rk_model_desc){
        .struct_size = sizeof(*out),
        .hf_config = core->hf_config,
        .dtype = core->dtype,
        .numerics = core->numerics,
        .head = core->head.ops->name,
        .seed = core->seed,
        .recompute_num_layers = core->recompute_num_layers,
        .vocab_size = core->vocab_size,
        .offload = core->offload,
        .layout = core->layout,
        .moe = core->moe,
        .frozen = core->frozen,
        .replay = core->replay,
        .stream = core->stream,
        .mesh = core->mesh,
    };
}

const struct rk_model_config *rk_model_get_config(const struct rk_model *model)
{
    return &model->core->config;
}

const struct rk_mesh_comms *rk_model_mesh(const struct rk_model *model)
{
    return model->core->mesh;
}

/* Gradients and optimizer state are sharded over the replicas; weights are not. */
static bool is_same_place(const struct rk_model *model, const struct rk_mesh_coords *coords)
{
    for (int axis = 0; axis < RK_AXIS_COUNT; axis++) {
        bool is_replica = axis == RK_AXIS_CP || axis == RK_AXIS_DP || axis == RK_AXIS_EDP;

        if ((model->trainer || !is_replica) && coords->axis[axis] != model->core->params.coords.axis[axis])
            return false;
    }
    return true;
}

void rk_model_set_mesh(struct rk_model *model, const struct rk_mesh_comms *mesh)
{
    RK_ASSERT(model->owns_core);
    if (mesh) {
        RK_ASSERT(rk_mesh_comms_is_member(mesh));
        RK_ASSERT(is_same_place(model, rk_mesh_comms_coords(mesh)));
    }
    model->core->mesh = mesh;
}

uint64_t rk_model_weight_version(const struct rk_model *model)
{
    return model->core->weight_version;
}

struct rk_stream *rk_model_stream(const struct rk_model *model)
{
    return model->core->stream;
}

int64_t rk_model_num_params(const struct rk_model *model)
{
    return model->core->params.count;
}

const struct rk_param *rk_model_param_at(const struct rk_model *model, int64_t i)
{
    RK_ASSERT(i >= 0);
    RK_ASSERT(i < model->core->params.count);
    return rk_params_at(&model->core->params, i);
}

const struct rk_placement *rk_model_placement_at(const struct rk_model *model, int64_t i)
{
    RK_ASSERT(i >= 0);
    RK_ASSERT(i < model->core->params.count);
    return rk_params_placement(&model->core->params, i);
}

int64_t rk_model_find_param(const struct rk_model *model, const char *name)
{
    return rk_params_find(&model->core->params, name);
}

int64_t rk_model_num_elements(const struct rk_model *model)
{
    int64_t count = 0;

    for (int64_t i = 0; i < model->core->params.count; i++)
        count += rk_param_num_values(rk_params_at(&model->core->params, i));
    return count;
}

int64_t rk_model_cache_bytes(const struct rk_model *model)
{
    const struct rk_model_core *core = model->core;
    int64_t bytes = 0;

    for (int64_t i = 0; i < core->num_blocks; i++)
        bytes += rk_block_cache_bytes(&core->blocks[i], core->dtype);
    return bytes;
}

void rk_model_note_kv_cache(struct rk_model *model, int64_t bytes)
{
    model->kv_cache_bytes += bytes;
    RK_ASSERT(model->kv_cache_bytes >= 0);
}

void rk_model_note_staging(struct rk_model *model, int64_t device_bytes, int64_t host_bytes)
{
    model->staging_bytes += device_bytes;
    model->rollout_host_bytes += host_bytes;
    RK_ASSERT(model->staging_bytes >= 0);
    RK_ASSERT(model->rollout_host_bytes >= 0);
}

struct rk_model_memory rk_model_get_memory(const struct rk_model *model)
{
    const struct rk_model_core *core = model->core;
    struct rk_step_arena_stats step = rk_step_arena_stats(model->arena);
    struct rk_model_memory memory = {
        .activation_bytes = step.tensors.capacity_bytes,
        .kv_cache_bytes = (uint64_t)model->kv_cache_bytes,
        .staging_bytes = (uint64_t)model->staging_bytes,
        .pass_host_bytes = step.staging.capacity_bytes,
        .rollout_host_bytes = (uint64_t)model->rollout_host_bytes,
        .offload_host_bytes = rk_model_offload_host_bytes(model),
        .checkpoint_host_bytes = model->checkpoint_host_bytes,
        .activation_peak_bytes = step.tensors.peak_bytes,
        .pass_host_peak_bytes = step.staging.peak_bytes,
        .step_overflows = step.tensors.overflows + step.staging.overflows,
    };

    if (model->owns_core) {
        memory.workspace_bytes = RK_AGREE_BYTES + model->trainer_workspace_bytes;
        if (core->row_numbers.data)
            memory.workspace_bytes += rk_tensor_bytes(core->row_numbers);
        rk_model_add_buffer_memory(core, &memory);
        for (int32_t i = 0; i < core->num_ropes; i++)
            memory.param_bytes +=
                rk_tensor_bytes(core->rope_tables[i].cos) + rk_tensor_bytes(core->rope_tables[i].sin);
    }
    rk_model_add_slot_memory(model, &memory);
    return memory;
}
