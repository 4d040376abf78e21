/* The labelled positions of a micro-batch: uploads their labels and gradients, downloads their outputs. */
#include "engine/model/model.h"

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

static int32_t cp_size(const struct rk_pass *pass)
{
    return pass->context ? rk_comm_group_size(pass->context->group) : 1;
}

/* The label of row `row` of a cp rank, and the index of its packed token. RK_LABEL_NONE: no label, or
 * padding. */
static int32_t label_at(const struct rk_pass *pass, const struct rk_packed *packed, int32_t rank, int64_t row,
                        int32_t *position)
{
    *position = pass->context ? pass->context->tokens[rank * pass->num_tokens + row] : (int32_t)row;
    return *position < 0 ? RK_LABEL_NONE : packed->labels[*position];
}

static int64_t rows_of_rank(const struct rk_pass *pass, const struct rk_packed *packed)
{
    return pass->context ? pass->num_tokens : packed->num_tokens;
}

/* The maximum number of labels of a cp rank; equal on all ranks. */
static int64_t count_labels(const struct rk_pass *pass, const struct rk_packed *packed)
{
    int64_t largest = 0;
    int32_t position;

    for (int32_t rank = 0; rank < cp_size(pass); rank++) {
        int64_t count = 0;

        for (int64_t row = 0; row < rows_of_rank(pass, packed); row++)
            count += label_at(pass, packed, rank, row, &position) != RK_LABEL_NONE;
        largest = RK_MAX(largest, count);
    }
    return largest;
}

/* Fills `positions` of one cp rank, and its rows and labels unless they are NULL. Returns the number. */
static int64_t list_labels(const struct rk_pass *pass, const struct rk_packed *packed, int32_t rank,
                           int32_t *positions, int32_t *rows, int32_t *labels)
{
    int64_t count = 0;

    for (int64_t row = 0; row < rows_of_rank(pass, packed); row++) {
        int32_t position, label = label_at(pass, packed, rank, row, &position);

        if (label == RK_LABEL_NONE)
            continue;
        positions[count] = position;
        if (rows) {
            rows[count] = (int32_t)row;
            labels[count] = label;
        }
        count++;
    }
    return count;
}

/* Checks the labels of all cp ranks, so all ranks return the same error. */
static struct rk_status *check_labels(const struct rk_packed *packed, int64_t vocab_size)
{
    for (int64_t t = 0; t < packed->num_tokens; t++) {
        int32_t label = packed->labels[t];

        if (label != RK_LABEL_NONE && (label < 0 || label >= vocab_size))
            return RK_FAIL(RK_OUT_OF_RANGE, "label of packed token %lld is %d, expected 0 to %lld",
                           (long long)t, label, (long long)vocab_size - 1);
    }
    return NULL;
}

struct rk_status *rk_labels_select(struct rk_labels *out, const struct rk_pass *pass,
                                   const struct rk_packed *packed)
{
    int32_t my_rank = pass->context ? rk_comm_group_rank(pass->context->group) : 0;
    int32_t *rows, *labels;

    *out = (struct rk_labels){.count_max = count_labels(pass, packed)};
    RK_TRY(check_labels(packed, pass->vocab_size));
    RK_TRY(rk_pass_alloc_host(pass, &out->all, cp_size(pass) * out->count_max, sizeof(*out->all)));
    RK_TRY(rk_pass_alloc_host(pass, &rows, out->count_max, sizeof(*rows)));
    RK_TRY(rk_pass_alloc_host(pass, &labels, out->count_max, sizeof(*labels)));
    for (int32_t rank = 0; rank < cp_size(pass); rank++) {
        bool is_mine = rank == my_rank;
        int32_t *positions = out->all + rank * out->count_max;
        int64_t count =
            list_labels(pass, packed, rank, positions, is_mine ? rows : NULL, is_mine ? labels : NULL);

        for (int64_t i = count; i < out->count_max; i++)
            positions[i] = -1;
        if (is_mine)
            out->count = count;
    }
    out->positions = out->all + my_rank * out->count_max;
    RK_TRY(rk_step_upload(pass->kept, pass->stream, &out->index, RK_DTYPE_I32, rows, out->count));
    return rk_step_upload(pass->kept, pass->stream, &out->labels, RK_DTYPE_I32, labels, out->count);
}

/* Values per row of [L] or [L, K]. */
static int64_t row_width(rk_tensor_t t)
{
    return t.rank == 2 ? t.shape[1] : 1;
}

/* *host [cp * count_max, width]: rows of all cp ranks; labels->all has their positions. */
static struct rk_status *download(const struct rk_labels *labels, const struct rk_pass *pass,
                                  rk_tensor_t stats, void **host)
{
    int64_t part = labels->count_max * row_width(stats);
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    rk_tensor_t all = stats, mine;

    RK_ASSERT(stats.shape[0] == labels->count);
    if (pass->context) {
        RK_TRY(rk_step_2d(pass->arena, &all, stats.dtype, cp_size(pass), part));
        mine = rk_tensor_rows(all, rk_comm_group_rank(pass->context->group), 1);
        RK_TRY(rk_stream_zero(pass->stream, mine.data, rk_tensor_bytes(mine)));
        RK_TRY(rk_stream_copy(pass->stream, mine.data, stats.data, rk_tensor_bytes(stats), RK_COPY_D2D));
        RK_TRY(rk_comm_all_gather(pass->context->group, pass->stream, all, mine));
    }
    RK_TRY(rk_step_download(pass->arena, pass->stream, all, host));
    RK_TRY(rk_stream_sync(pass->stream));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}

struct rk_status *rk_labels_download(const struct rk_labels *labels, const struct rk_pass *pass,
                                     rk_tensor_t stats, double *values, int64_t num_tokens)
{
    int64_t width = row_width(stats), num_rows = cp_size(pass) * labels->count_max;
    double *wide;
    void *raw;

    RK_TRY(rk_pass_alloc_host(pass, &wide, num_rows * width, sizeof(*wide)));
    RK_TRY(download(labels, pass, stats, &raw));
    rk_load_f64(wide, raw, stats.dtype, num_rows * width);
    memset(values, 0, (size_t)(num_tokens * width) * sizeof(*values));
    for (int64_t i = 0; i < num_rows; i++) {
        if (labels->all[i] >= 0)
            memcpy(values + labels->all[i] * width, wide + i * width, (size_t)width * sizeof(*values));
    }
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
    return rk_step_upload(pass->kept, pass->stream, stats, pass->stat_dtype, raw, count);
}

struct rk_status *rk_labels_upload(const struct rk_labels *labels, const struct rk_pass *pass,
                                   const double *values, rk_tensor_t *stats)
{
    return upload_rows(labels, pass, values, 1, stats);
}

/* Checks the ids of all cp ranks, so all ranks return the same error. */
static struct rk_status *check_ids(const struct rk_labels *labels, const struct rk_pass *pass,
                                   const int32_t *ids, int64_t num_ids)
{
    for (int64_t i = 0; i < cp_size(pass) * labels->count_max; i++) {
        for (int64_t k = 0; k < num_ids && labels->all[i] >= 0; k++) {
            int32_t id = ids[labels->all[i] * num_ids + k];

            if (id >= pass->vocab_size)
                return RK_FAIL(RK_OUT_OF_RANGE, "id %lld of packed token %d is %d, expected at most %lld",
                               (long long)k, labels->all[i], id, (long long)pass->vocab_size - 1);
        }
    }
    return NULL;
}

struct rk_status *rk_labels_upload_ids(const struct rk_labels *labels, const struct rk_pass *pass,
                                       const int32_t *ids, int64_t num_ids, rk_tensor_t *out)
{
    int64_t count = labels->count * num_ids;
    int32_t *rows;

    RK_ASSERT(num_ids >= 0);
    RK_ASSERT(num_ids <= RK_VOCAB_IDS_MAX);
    if (num_ids == 0 || !ids)
        return NULL;
    RK_TRY(check_ids(labels, pass, ids, num_ids));
    RK_TRY(rk_pass_alloc_host(pass, &rows, count, sizeof(*rows)));
    for (int64_t i = 0; i < labels->count; i++)
        memcpy(rows + i * num_ids, ids + labels->positions[i] * num_ids, (size_t)num_ids * sizeof(*rows));
    RK_TRY(rk_step_upload(pass->kept, pass->stream, out, RK_DTYPE_I32, rows, count));
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

    RK_TRY(download(labels, pass, ids, &raw));
    for (int64_t i = 0; i < num_tokens * width; i++)
        values[i] = -1;
    for (int64_t i = 0; i < cp_size(pass) * labels->count_max; i++) {
        if (labels->all[i] >= 0)
            memcpy(values + labels->all[i] * width, (const int32_t *)raw + i * width,
                   (size_t)width * sizeof(*values));
    }
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
