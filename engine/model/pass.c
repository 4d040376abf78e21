/* Forward passes: over packed sequences (log-probs, logits) and over a paged cache. */
#include "engine/model/model_internal.h"

#include <string.h>

#include "base/rk_assert.h"

void rk_model_begin_pass(struct rk_model *model, struct rk_pass *pass)
{
    const struct rk_model_core *core = model->core;

    rk_step_arena_reset(model->arena);
    rk_arena_reset(model->host);
    *pass = (struct rk_pass){
        .stream = core->stream,
        .arena = model->arena,
        .host = model->host,
        .tp = rk_mesh_comms_group(core->mesh, RK_GROUP_TP),
        .dtype = core->dtype,
        .stat_dtype = core->dtype == RK_DTYPE_F64 ? RK_DTYPE_F64 : RK_DTYPE_F32,
        .is_strict = core->numerics == RK_NUMERICS_STRICT,
        .params = &core->params,
        .values = core->values,
        .hidden_size = core->config.hidden_size,
        .vocab_size = core->vocab_size,
        .norm_eps = (float)core->config.rms_norm_eps,
        .rope_cos = core->rope_cos,
        .rope_sin = core->rope_sin,
        .row_numbers = core->row_numbers,
    };
}

static struct rk_status *check_range(const char *what, const int32_t *values, int64_t count, int64_t bound)
{
    for (int64_t t = 0; t < count; t++) {
        if (values[t] < 0 || values[t] >= bound)
            return RK_FAIL(RK_OUT_OF_RANGE, "%s of packed token %lld is %d, expected 0 to %lld", what,
                           (long long)t, values[t], (long long)bound - 1);
    }
    return NULL;
}

struct rk_status *rk_model_begin_packed(struct rk_model *model, struct rk_pass *pass,
                                        const struct rk_packed *packed)
{
    const struct rk_model_config *config = &model->core->config;
    const int32_t *cu_seqlens = packed->cu_seqlens;

    RK_ASSERT(packed->num_seqs >= 0);
    RK_ASSERT(cu_seqlens[0] == 0);
    RK_ASSERT(cu_seqlens[packed->num_seqs] == packed->num_tokens);
    RK_TRY(check_range("id", packed->tokens, packed->num_tokens, config->vocab_size));
    RK_TRY(check_range("position", packed->positions, packed->num_tokens, config->max_position_embeddings));
    rk_model_begin_pass(model, pass);
    pass->num_tokens = packed->num_tokens;
    pass->max_seqlen = packed->max_seqlen;
    RK_TRY(rk_step_upload(pass->arena, pass->stream, &pass->tokens, RK_DTYPE_I32, packed->tokens,
                          packed->num_tokens));
    RK_TRY(rk_step_upload(pass->arena, pass->stream, &pass->positions, RK_DTYPE_I32, packed->positions,
                          packed->num_tokens));
    return rk_step_upload(pass->arena, pass->stream, &pass->cu_seqlens, RK_DTYPE_I32, cu_seqlens,
                          packed->num_seqs + 1);
}

struct rk_status *rk_pass_alloc_host(const struct rk_pass *pass, void *out, int64_t count, size_t elem_bytes)
{
    void *memory = rk_arena_calloc(pass->host, (size_t)count + 1, elem_bytes);

    if (!memory)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "no host memory for %lld elements of %zu bytes",
                       (long long)count, elem_bytes);
    memcpy(out, &memory, sizeof(memory));
    return NULL;
}

struct rk_status *rk_labels_select(struct rk_labels *out, const struct rk_pass *pass,
                                   const struct rk_packed *packed)
{
    int64_t vocab_size = pass->vocab_size;
    int32_t *labels;

    *out = (struct rk_labels){0};
    RK_TRY(rk_pass_alloc_host(pass, &out->positions, packed->num_tokens, sizeof(*out->positions)));
    RK_TRY(rk_pass_alloc_host(pass, &labels, packed->num_tokens, sizeof(*labels)));
    for (int64_t t = 0; t < packed->num_tokens; t++) {
        if (packed->labels[t] == RK_LABEL_NONE)
            continue;
        out->positions[out->count] = (int32_t)t;
        labels[out->count++] = packed->labels[t];
    }
    RK_TRY(check_range("label", labels, out->count, vocab_size));
    RK_TRY(rk_step_upload(pass->arena, pass->stream, &out->index, RK_DTYPE_I32, out->positions, out->count));
    return rk_step_upload(pass->arena, pass->stream, &out->labels, RK_DTYPE_I32, labels, out->count);
}

/* Numbers of a row of [L] or [L, K]. */
static int64_t row_width(rk_tensor_t t)
{
    return t.rank == 2 ? t.shape[1] : 1;
}

struct rk_status *rk_labels_download(const struct rk_labels *labels, const struct rk_pass *pass,
                                     rk_tensor_t stats, double *values, int64_t num_tokens)
{
    int64_t width = row_width(stats), count = labels->count * width;
    double *wide;
    void *raw;

    RK_ASSERT(stats.shape[0] == labels->count);
    RK_TRY(rk_pass_alloc_host(pass, &wide, count, sizeof(*wide)));
    RK_TRY(rk_step_download(pass->arena, pass->stream, stats, &raw));
    RK_TRY(rk_stream_sync(pass->stream));
    rk_load_f64(wide, raw, stats.dtype, count);
    memset(values, 0, (size_t)(num_tokens * width) * sizeof(*values));
    for (int64_t i = 0; i < labels->count; i++)
        memcpy(values + labels->positions[i] * width, wide + i * width, (size_t)width * sizeof(*values));
    return NULL;
}

static struct rk_status *upload_rows(const struct rk_labels *labels, const struct rk_pass *pass,
                                     const double *values, int64_t width, rk_tensor_t *stats)
{
    int64_t count = labels->count * width;
    double *wide;
    void *raw;

    RK_TRY(rk_pass_alloc_host(pass, &raw, count, rk_dtype_bytes(pass->stat_dtype)));
    RK_TRY(rk_pass_alloc_host(pass, &wide, count, sizeof(*wide)));
    for (int64_t i = 0; i < labels->count; i++)
        memcpy(wide + i * width, values + labels->positions[i] * width, (size_t)width * sizeof(*wide));
    rk_store_f64(raw, pass->stat_dtype, wide, count);
    return rk_step_upload(pass->arena, pass->stream, stats, pass->stat_dtype, raw, count);
}

struct rk_status *rk_labels_upload(const struct rk_labels *labels, const struct rk_pass *pass,
                                   const double *values, rk_tensor_t *stats)
{
    return upload_rows(labels, pass, values, 1, stats);
}

struct rk_status *rk_labels_upload_ids(const struct rk_labels *labels, const struct rk_pass *pass,
                                       const int32_t *ids, int64_t num_ids, rk_tensor_t *out)
{
    int64_t count = labels->count * num_ids, vocab_size = pass->vocab_size;
    int32_t *rows;

    RK_ASSERT(num_ids >= 0);
    RK_ASSERT(num_ids <= RK_VOCAB_IDS_MAX);
    if (num_ids == 0 || !ids)
        return NULL;
    RK_TRY(rk_pass_alloc_host(pass, &rows, count, sizeof(*rows)));
    for (int64_t i = 0; i < labels->count; i++)
        memcpy(rows + i * num_ids, ids + labels->positions[i] * num_ids, (size_t)num_ids * sizeof(*rows));
    for (int64_t i = 0; i < count; i++) {
        if (rows[i] >= vocab_size)
            return RK_FAIL(RK_OUT_OF_RANGE, "id %lld of packed token %d is %d, expected at most %lld",
                           (long long)(i % num_ids), labels->positions[i / num_ids], rows[i],
                           (long long)vocab_size - 1);
    }
    RK_TRY(rk_step_upload(pass->arena, pass->stream, out, RK_DTYPE_I32, rows, count));
    *out = rk_tensor_2d(out->data, RK_DTYPE_I32, labels->count, num_ids);
    return NULL;
}

struct rk_status *rk_labels_upload_id_grads(const struct rk_labels *labels, const struct rk_pass *pass,
                                            const struct rk_head_ids *grads, struct rk_head_id_tensors *out)
{
    int64_t width = grads->num_ids, num_tokens = labels->count ? labels->positions[labels->count - 1] + 1 : 0;
    rk_tensor_t flat;
    double *sums;

    RK_TRY(rk_pass_alloc_host(pass, &sums, num_tokens, sizeof(*sums)));
    for (int64_t i = 0; i < labels->count; i++) {
        for (int64_t k = 0; k < width; k++)
            sums[labels->positions[i]] += grads->log_probs[labels->positions[i] * width + k];
    }
    RK_TRY(upload_rows(labels, pass, sums, 1, &out->log_prob_sum));
    RK_TRY(upload_rows(labels, pass, grads->log_probs, width, &flat));
    out->log_probs = rk_tensor_2d(flat.data, flat.dtype, labels->count, width);
    return NULL;
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

static uint32_t wanted_of(const struct rk_head_arrays *arrays)
{
    uint32_t wanted = 0;

    for (int i = 0; i < RK_HEAD_OUTPUT_COUNT; i++)
        wanted |= arrays->of[i] ? RK_HEAD_BIT(i) : 0;
    return arrays->ids.num_ids > 0 ? wanted | RK_HEAD_BIT(RK_HEAD_LOG_PROBS) : wanted;
}

/* values[positions[i]] = ids[i], -1 elsewhere. */
static struct rk_status *download_ids(const struct rk_labels *labels, const struct rk_pass *pass,
                                      rk_tensor_t ids, int32_t *values, int64_t num_tokens)
{
    int64_t width = ids.shape[1];
    void *raw;

    RK_TRY(rk_step_download(pass->arena, pass->stream, ids, &raw));
    RK_TRY(rk_stream_sync(pass->stream));
    for (int64_t i = 0; i < num_tokens * width; i++)
        values[i] = -1;
    for (int64_t i = 0; i < labels->count; i++)
        memcpy(values + labels->positions[i] * width, (const int32_t *)raw + i * width,
               (size_t)width * sizeof(*values));
    return NULL;
}

struct rk_status *rk_head_download(const struct rk_labels *labels, const struct rk_pass *pass,
                                   const struct rk_head_out *out, const struct rk_head_arrays *arrays,
                                   int64_t num_tokens)
{
    const struct rk_head_ids *ids = &arrays->ids;

    for (int i = 0; i < RK_HEAD_OUTPUT_COUNT; i++) {
        if (arrays->of[i])
            RK_TRY(rk_labels_download(labels, pass, out->of[i], arrays->of[i], num_tokens));
    }
    if (ids->log_probs)
        RK_TRY(rk_labels_download(labels, pass, out->ids.log_probs, ids->log_probs, num_tokens));
    if (ids->top_ids)
        RK_TRY(download_ids(labels, pass, out->ids.top_ids, ids->top_ids, num_tokens));
    if (ids->top_log_probs)
        RK_TRY(rk_labels_download(labels, pass, out->ids.top_log_probs, ids->top_log_probs, num_tokens));
    return NULL;
}

struct rk_status *rk_model_forward(struct rk_model *model, const struct rk_packed *packed, double temperature,
                                   const struct rk_engine_hooks *hooks, const struct rk_head_arrays *out)
{
    const struct rk_head *head = &model->core->head;
    uint32_t wanted = wanted_of(out);
    struct rk_head_saved saved = {0};
    struct rk_head_out stats = {0};
    struct rk_labels labels;
    struct rk_pass pass;
    rk_tensor_t hidden;

    RK_TRY(rk_model_check_outputs(model, wanted));
    RK_TRY(rk_inverse_temperature(&saved.inv_temperature, temperature));
    RK_TRY(rk_model_begin_packed(model, &pass, packed));
    pass.hooks = hooks;
    RK_TRY(rk_labels_select(&labels, &pass, packed));
    saved.index = labels.index;
    saved.labels = labels.labels;
    saved.num_top_ids = out->ids.top_ids ? out->ids.num_ids : 0;
    RK_TRY(rk_labels_upload_ids(&labels, &pass, out->ids.ids, out->ids.num_ids, &saved.ids));
    RK_TRY(rk_trunk_fwd(model, &pass, &hidden, NULL));
    RK_TRY(head->ops->forward(&pass, head, hidden, wanted, &saved, &stats));
    return rk_head_download(&labels, &pass, &stats, out, packed->num_tokens);
}

/* The logits of these hidden states, as f64, without the padding of the vocabulary. */
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

    RK_TRY(rk_model_begin_packed(model, &pass, packed));
    RK_TRY(rk_trunk_fwd(model, &pass, &hidden, NULL));
    for (int64_t begin = 0; begin < packed->num_tokens; begin += chunk) {
        struct rk_step_mark mark = rk_step_arena_mark(pass.arena);
        int64_t count = RK_MIN(chunk, packed->num_tokens - begin);

        RK_TRY(
            download_logits(model, &pass, rk_tensor_rows(hidden, begin, count), logits + begin * vocab_size));
        rk_step_arena_release(pass.arena, mark);
    }
    return NULL;
}

struct rk_status *rk_model_forward_paged(struct rk_model *model, const struct rk_paged_step *step,
                                         const struct rk_engine_hooks *hooks, rk_tensor_t *logits)
{
    struct rk_pass pass;
    rk_tensor_t hidden, rows;

    rk_model_begin_pass(model, &pass);
    pass.hooks = hooks;
    pass.num_tokens = step->num_tokens;
    pass.tokens = step->tokens;
    pass.positions = step->positions;
    pass.paged = step;
    RK_TRY(rk_trunk_fwd(model, &pass, &hidden, NULL));
    RK_TRY(rk_step_2d(pass.arena, &rows, pass.dtype, step->num_logits, pass.hidden_size));
    RK_TRY(rk_gather_rows(pass.stream,
                          &(struct rk_rows_args){.out = rows, .x = hidden, .index = step->logits_index}));
    return rk_head_logits(&pass, &model->core->head, rows, logits);
}
