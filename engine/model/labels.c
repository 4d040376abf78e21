/* The positions of a micro-batch that have a label: what goes to the device for them, and comes back. */
#include "engine/model/model_internal.h"

#include <string.h>

#include "base/rk_assert.h"

struct rk_status *rk_packed_check_range(const char *what, const int32_t *values, int64_t count, int64_t bound)
{
    for (int64_t t = 0; t < count; t++) {
        if (values[t] < 0 || values[t] >= bound)
            return RK_FAIL(RK_OUT_OF_RANGE, "%s of packed token %lld is %d, expected 0 to %lld", what,
                           (long long)t, values[t], (long long)bound - 1);
    }
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
    RK_TRY(rk_packed_check_range("label", labels, out->count, vocab_size));
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
