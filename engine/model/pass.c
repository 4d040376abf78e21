/* Forward passes: over packed sequences (logits) and over a paged cache. */
#include "engine/model/model.h"

#include <string.h>

#include "base/rk_assert.h"
#include "kernels/rk_trace.h"

static void fill_pass(const struct rk_model_core *core, struct rk_pass *pass)
{
    *pass = (struct rk_pass){
        .stream = core->stream,
        .side = core->side.stream ? &core->side : NULL,
        .tp = rk_mesh_comms_group(core->mesh, RK_GROUP_TP),
        .ep = rk_mesh_comms_group(core->mesh, RK_GROUP_EP),
        .etp = rk_mesh_comms_group(core->mesh, RK_GROUP_ETP),
        .dtype = core->dtype,
        .stat_dtype = core->dtype == RK_DTYPE_F64 ? RK_DTYPE_F64 : RK_DTYPE_F32,
        .grad_dtype = core->dtype == RK_DTYPE_F64 ? RK_DTYPE_F64 : RK_DTYPE_F32,
        .is_strict = core->numerics == RK_NUMERICS_STRICT,
        .params = &core->params,
        .values = core->values,
        .hidden_size = core->config.hidden_size,
        .vocab_size = core->vocab_size,
        .norm_eps = (float)core->config.rms_norm_eps,
        .ropes = core->rope_tables,
        .row_numbers = core->row_numbers,
    };
}

static struct rk_status *copy_ids(const struct rk_pass *pass, int32_t **out, const int32_t *ids,
                                  int64_t count, int64_t room)
{
    RK_TRY(rk_pass_alloc_host(pass, out, room, sizeof(**out)));
    memcpy(*out, ids, (size_t)count * sizeof(**out));
    return NULL;
}

/* Adds a sequence of ids 0 at positions from 0 on, so that the number of tokens is a multiple of tp. It has
 * no labels, so it adds nothing to outputs or gradients, and other sequences do not attend to it. */
static struct rk_status *pad_tokens(const struct rk_pass *pass, struct rk_packed *packed,
                                    int64_t num_positions)
{
    int64_t num_tokens = packed->num_tokens, tp_size = rk_comm_group_size(pass->tp);
    int64_t count = (tp_size - num_tokens % tp_size) % tp_size;
    int32_t *tokens, *positions, *cu_seqlens;

    if (count == 0)
        return NULL;
    RK_TRY(copy_ids(pass, &tokens, packed->tokens, num_tokens, num_tokens + count));
    RK_TRY(copy_ids(pass, &positions, packed->positions, num_tokens, num_tokens + count));
    RK_TRY(copy_ids(pass, &cu_seqlens, packed->cu_seqlens, packed->num_seqs + 1, packed->num_seqs + 2));
    for (int64_t i = 0; i < count; i++)
        positions[num_tokens + i] = (int32_t)RK_MIN(i, num_positions - 1);
    packed->num_tokens += count;
    cu_seqlens[++packed->num_seqs] = (int32_t)packed->num_tokens;
    packed->max_seqlen = RK_MAX(packed->max_seqlen, (int32_t)count);
    packed->tokens = tokens;
    packed->positions = positions;
    packed->cu_seqlens = cu_seqlens;
    return NULL;
}

/* Sets the number of tokens of the pass, and this rank's rows. */
static struct rk_status *set_rows(struct rk_pass *pass, struct rk_packed *packed, int64_t num_positions)
{
    if (pass->splits_rows)
        RK_TRY(pad_tokens(pass, packed, num_positions));
    pass->num_tokens = packed->num_tokens;
    pass->num_rows = packed->num_tokens / (pass->splits_rows ? rk_comm_group_size(pass->tp) : 1);
    pass->max_seqlen = packed->max_seqlen;
    return NULL;
}

struct rk_status *rk_model_check_packed(const struct rk_model *model, const struct rk_packed *packed)
{
    const struct rk_model_config *config = &model->core->config;

    RK_ASSERT(packed->num_seqs >= 0);
    RK_ASSERT(packed->cu_seqlens[0] == 0);
    RK_ASSERT(packed->cu_seqlens[packed->num_seqs] == packed->num_tokens);
    RK_TRY(rk_packed_check_range("id", packed->tokens, packed->num_tokens, config->vocab_size));
    RK_TRY(rk_model_check_routes(model->core, packed));
    return rk_packed_check_range("position", packed->positions, packed->num_tokens,
                                 config->max_position_embeddings);
}

/* Saved tensors go to `memory`, the rest to the model's arena. */
static void begin_in(struct rk_model *model, const struct rk_pass_memory *memory, struct rk_pass *pass)
{
    rk_step_arena_reset(memory->arena);
    rk_arena_reset(memory->host);
    fill_pass(model->core, pass);
    pass->arena = model->arena;
    pass->kept = memory->arena;
    pass->host = memory->host;
}

void rk_model_begin_pass(struct rk_model *model, struct rk_pass *pass)
{
    const struct rk_pass_memory own = {.arena = model->arena, .host = model->host};

    begin_in(model, &own, pass);
}

struct rk_status *rk_model_begin_packed(struct rk_model *model, const struct rk_pass_memory *memory,
                                        struct rk_pass *pass, const struct rk_packed *packed)
{
    struct rk_packed all = *packed;

    if (memory)
        begin_in(model, memory, pass);
    else
        rk_model_begin_pass(model, pass);
    pass->splits_rows = pass->params->splits_rows;
    pass->num_packed = packed->num_tokens;
    if (rk_comm_group_size(rk_mesh_comms_group(model->core->mesh, RK_GROUP_CP)) > 1)
        return rk_model_cut_packed(model->core, pass, packed);
    RK_TRY(set_rows(pass, &all, model->core->config.max_position_embeddings));
    RK_TRY(rk_model_upload_routes(model->core, pass, packed, NULL));
    RK_TRY(rk_step_upload(pass->kept, pass->stream, &pass->tokens, RK_DTYPE_I32, all.tokens, all.num_tokens));
    RK_TRY(rk_step_upload(pass->kept, pass->stream, &pass->positions, RK_DTYPE_I32, all.positions,
                          all.num_tokens));
    return rk_step_upload(pass->kept, pass->stream, &pass->cu_seqlens, RK_DTYPE_I32, all.cu_seqlens,
                          all.num_seqs + 1);
}

struct rk_status *rk_model_check_temperature(double temperature)
{
    if (temperature >= (double)RK_TEMPERATURE_MIN && temperature <= (double)RK_TEMPERATURE_MAX)
        return NULL;
    return RK_FAIL(RK_INVALID_ARGUMENT, "temperature=%g: expected a number from %g to %g", temperature,
                   (double)RK_TEMPERATURE_MIN, (double)RK_TEMPERATURE_MAX);
}

struct rk_status *rk_inverse_temperature(float *out, double temperature)
{
    RK_TRY(rk_model_check_temperature(temperature));
    *out = (float)(1.0 / temperature);
    return NULL;
}

uint32_t rk_model_head_outputs(const struct rk_model *model)
{
    return model->core->head.ops->outputs;
}

struct rk_status *rk_model_check_outputs(const struct rk_model *model, uint32_t outputs)
{
    const struct rk_head_ops *head = model->core->head.ops;

    for (int i = 0; i < RK_HEAD_OUTPUT_COUNT; i++) {
        if (outputs & ~head->outputs & RK_HEAD_BIT(i))
            return RK_FAIL(RK_FAILED_PRECONDITION, "the model has a head '%s', which does not compute %s",
                           head->name, rk_head_output_name((rk_head_output_t)i));
    }
    return NULL;
}

static struct rk_status *check_whole(const struct rk_model *model, const char *what)
{
    if (rk_pipeline_num_stages(model->core->pipeline) == 1)
        return NULL;
    return RK_FAIL(RK_FAILED_PRECONDITION,
                   "%s: the model is one of %d pipeline stages, expected pp=1; generate with a rollout on a "
                   "mesh of its own with pp=1, which update_weights fills",
                   what, rk_pipeline_num_stages(model->core->pipeline));
}

/* Downloads the logits of these hidden states as f64, without the padding of the vocabulary. */
static struct rk_status *download_logits(struct rk_model *model, struct rk_pass *pass, rk_tensor_t hidden,
                                         double *out)
{
    int64_t num_rows = hidden.shape[0], vocab_size = model->core->config.vocab_size;
    rk_tensor_t logits;
    char *raw;

    RK_TRY(rk_head_logits(pass, &model->core->head, hidden, &logits));
    RK_TRY(rk_pass_alloc_host(pass, &raw, rk_tensor_num_elements(logits), rk_dtype_bytes(logits.dtype)));
    RK_TRY(rk_stream_copy(pass->stream, raw, logits.data, rk_tensor_bytes(logits), RK_COPY_D2H));
    RK_TRY(rk_stream_sync(pass->stream));
    for (int64_t i = 0; i < num_rows; i++)
        rk_load_f64(out + i * vocab_size,
                    raw + (size_t)(i * logits.row_stride) * rk_dtype_bytes(logits.dtype), logits.dtype,
                    vocab_size);
    return NULL;
}

struct rk_status *rk_model_logits(struct rk_model *model, const struct rk_packed *packed, double *logits)
{
    int64_t chunk = model->core->head.chunk_tokens, vocab_size = model->core->config.vocab_size;
    struct rk_pass pass;
    rk_tensor_t hidden;

    RK_TRY(check_whole(model, "logits"));
    RK_TRY(rk_model_check_packed(model, packed));
    RK_TRY(rk_model_begin_packed(model, NULL, &pass, packed));
    RK_TRY(rk_trunk_fwd(model->core, &model->core->chunks[0], &pass, (rk_tensor_t){0}, &hidden, NULL));
    RK_TRY(rk_sp_gather(&pass, hidden, &hidden));
    RK_TRY(rk_model_gather_packed(&pass, hidden, packed->num_tokens, &hidden));
    for (int64_t begin = 0; begin < packed->num_tokens; begin += chunk) {
        struct rk_step_mark mark = rk_step_arena_mark(pass.arena);
        int64_t count = RK_MIN(chunk, packed->num_tokens - begin);

        RK_TRY(
            download_logits(model, &pass, rk_tensor_rows(hidden, begin, count), logits + begin * vocab_size));
        rk_step_arena_release(pass.arena, mark);
    }
    return NULL;
}

static struct rk_status *run_paged(struct rk_model *model, const struct rk_paged_step *step,
                                   const struct rk_engine_hooks *hooks, rk_tensor_t *logits)
{
    struct rk_pass pass;
    rk_tensor_t hidden, rows;

    RK_TRY(check_whole(model, "generation"));
    rk_model_begin_pass(model, &pass);
    pass.hooks = hooks;
    pass.num_tokens = pass.num_rows = step->num_tokens;
    pass.tokens = step->tokens;
    pass.positions = step->positions;
    pass.paged = step;
    pass.routes.chosen = step->chosen;
    RK_TRY(rk_trunk_fwd(model->core, &model->core->chunks[0], &pass, (rk_tensor_t){0}, &hidden, NULL));
    RK_TRY(rk_step_2d(pass.arena, &rows, pass.dtype, step->num_logits, pass.hidden_size));
    RK_TRY(rk_gather_rows(pass.stream,
                          &(struct rk_rows_args){.out = rows, .x = hidden, .index = step->logits_index}));
    return rk_head_logits(&pass, &model->core->head, rows, logits);
}

struct rk_status *rk_model_forward_paged(struct rk_model *model, const struct rk_paged_step *step,
                                         const struct rk_engine_hooks *hooks, rk_tensor_t *logits)
{
    struct rk_stream *stream = model->core->stream;
    struct rk_status *st;

    rk_trace_begin_phase(stream, "generation step");
    st = run_paged(model, step, hooks, logits);
    rk_trace_end_phase(stream);
    return st;
}
