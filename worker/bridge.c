/* From padded columns to packed micro-batches and back.
 *
 *   column          0  1  ..  P-1 | P  P+1  ..  S-1     S = P + R; response token j is at column P + j
 *   attention_mask  0  1  ..  1   | 1  1    ..  0       real tokens, in order, make the packed sequence
 *
 * The model's output at a token predicts the next real token. So the label of a packed position is the token
 * after it, if that is a marked response token, and its log-prob belongs into the cell [row, j] of that
 * token. */
#include "worker/worker_internal.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "dispatch/rk_plan.h"

#define bad_field(...) RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", __VA_ARGS__)

/* A dense column of that many columns. */
static struct rk_status *get_matrix(const struct rk_batch *batch, const char *name, rk_dtype_t dtype,
                                    const void **data, int64_t num_columns)
{
    int64_t shape[2];

    RK_TRY(rk_batch_get_dense(batch, name, dtype, 2, shape, data));
    if (shape[1] == num_columns)
        return NULL;
    return bad_field("column '%s' has %lld columns, expected %lld", name, (long long)shape[1],
                     (long long)num_columns);
}

static struct rk_status *get_columns(struct rk_rows *rows, const struct rk_batch *batch,
                                     const char *mask_name, int64_t max_columns)
{
    int64_t shape[2];
    const void *data;

    RK_TRY(rk_batch_get_dense(batch, "input_ids", RK_DTYPE_I64, 2, shape, &data));
    rows->input_ids = data;
    rows->num_rows = shape[0];
    rows->seq_columns = shape[1];
    RK_TRY(get_matrix(batch, "attention_mask", RK_DTYPE_I64, &data, rows->seq_columns));
    rows->attention_mask = data;
    RK_TRY(get_matrix(batch, "position_ids", RK_DTYPE_I64, &data, rows->seq_columns));
    rows->position_ids = data;
    rows->num_responses = mask_name ? rows->seq_columns : 0;
    if (rk_batch_find(batch, "responses")) {
        RK_TRY(rk_batch_get_dense(batch, "responses", RK_DTYPE_I64, 2, shape, &data));
        rows->responses = data;
        rows->num_responses = shape[1];
    }
    if (rows->seq_columns > max_columns)
        return bad_field("column 'input_ids' has %lld columns, max_position_embeddings of the model is %lld",
                         (long long)rows->seq_columns, (long long)max_columns);
    if (rows->num_responses > rows->seq_columns)
        return bad_field("column 'responses' has %lld columns, more than input_ids with %lld",
                         (long long)rows->num_responses, (long long)rows->seq_columns);
    rows->label_mask = rows->attention_mask + (rows->seq_columns - rows->num_responses);
    rows->label_stride = rows->seq_columns;
    if (!mask_name)
        return NULL;
    RK_TRY(get_matrix(batch, mask_name, RK_DTYPE_I64, &data, rows->num_responses));
    rows->label_mask = data;
    rows->label_stride = rows->num_responses;
    return NULL;
}

struct rk_status *rk_rows_check_finite(const struct rk_rows *rows, const char *name, int64_t width,
                                       const float *column)
{
    for (int64_t cell = 0; column && cell < rows->num_rows * rows->num_responses; cell++) {
        int64_t row = cell / rows->num_responses, j = cell % rows->num_responses;

        if (!rows->label_mask[row * rows->label_stride + j])
            continue;
        for (int64_t k = cell * width; k < (cell + 1) * width; k++) {
            if (!isfinite(column[k]))
                return RK_FAIL_REASON(
                    RK_INVALID_ARGUMENT, "NON_FINITE",
                    "%s[%lld, %lld]=%g: expected a finite number, the loss counts this token", name,
                    (long long)row, (long long)j, (double)column[k]);
        }
    }
    return NULL;
}

/* Whether the token at column c of a row is a response token that gets a label. */
static bool is_label(const struct rk_rows *rows, int64_t row, int64_t c)
{
    int64_t j = c - (rows->seq_columns - rows->num_responses);

    return j >= 0 && rows->label_mask[row * rows->label_stride + j] != 0;
}

static struct rk_status *check_bit(const char *column, int64_t row, int64_t c, int64_t value)
{
    if (value == 0 || value == 1)
        return NULL;
    return bad_field("%s[%lld, %lld]=%lld: expected 0 or 1", column, (long long)row, (long long)c,
                     (long long)value);
}

static struct rk_status *check_range(const char *column, int64_t row, int64_t c, int64_t value, int64_t end)
{
    if (value >= 0 && value < end)
        return NULL;
    return bad_field("%s[%lld, %lld]=%lld: expected 0 to %lld", column, (long long)row, (long long)c,
                     (long long)value, (long long)(end - 1));
}

static struct rk_status *check_token(const struct rk_rows *rows, int64_t row, int64_t c,
                                     const struct rk_model_config *config, int64_t num_before)
{
    int64_t i = row * rows->seq_columns + c;
    bool is_real = rows->attention_mask[i] != 0;

    RK_TRY(check_bit("attention_mask", row, c, rows->attention_mask[i]));
    if (is_real) {
        RK_TRY(check_range("input_ids", row, c, rows->input_ids[i], config->vocab_size));
        RK_TRY(check_range("position_ids", row, c, rows->position_ids[i], config->max_position_embeddings));
    }
    if (!is_label(rows, row, c))
        return NULL;
    if (!is_real)
        return bad_field(
            "row %lld: the token at column %lld is masked in attention_mask, but the loss counts it",
            (long long)row, (long long)c);
    if (num_before == 0)
        return bad_field("row %lld: expected a token before the first response token at column %lld",
                         (long long)row, (long long)c);
    return NULL;
}

static struct rk_status *check_rows(struct rk_rows *rows, const struct rk_model_config *config,
                                    const char *mask_name)
{
    int64_t prompt_columns = rows->seq_columns - rows->num_responses;

    for (int64_t row = 0; row < rows->num_rows; row++) {
        int64_t begin = rows->num_tokens;

        for (int64_t j = 0; mask_name && j < rows->num_responses; j++)
            RK_TRY(check_bit(mask_name, row, j, rows->label_mask[row * rows->label_stride + j]));
        if (rows->responses && memcmp(rows->responses + row * rows->num_responses,
                                      rows->input_ids + row * rows->seq_columns + prompt_columns,
                                      (size_t)rows->num_responses * sizeof(int64_t)) != 0)
            return bad_field("responses: row %lld differs from the last %lld columns of input_ids",
                             (long long)row, (long long)rows->num_responses);
        for (int64_t c = 0; c < rows->seq_columns; c++) {
            RK_TRY(check_token(rows, row, c, config, rows->num_tokens - begin));
            rows->num_tokens += rows->attention_mask[row * rows->seq_columns + c];
        }
    }
    if (rows->num_tokens < INT32_MAX)
        return NULL;
    return RK_FAIL(RK_RESOURCE_EXHAUSTED, "%lld tokens in one call: the limit is %d",
                   (long long)rows->num_tokens, INT32_MAX - 1);
}

struct rk_status *rk_rows_open(struct rk_rows *rows, struct rk_method_call *call,
                               const struct rk_model_config *config, const char *mask_name)
{
    const struct rk_batch *batch = call->job->input;

    *rows = (struct rk_rows){0};
    if (!batch)
        return bad_field("the call has no batch");
    RK_TRY(get_columns(rows, batch, mask_name, config->max_position_embeddings));
    RK_TRY(check_rows(rows, config, mask_name));
    rows->tokens = rk_method_call_alloc(call, rows->num_tokens, sizeof(int32_t));
    rows->positions = rk_method_call_alloc(call, rows->num_tokens, sizeof(int32_t));
    rows->labels = rk_method_call_alloc(call, rows->num_tokens, sizeof(int32_t));
    rows->cells = rk_method_call_alloc(call, rows->num_tokens, sizeof(int64_t));
    rows->cu_seqlens = rk_method_call_alloc(call, rows->num_rows + 1, sizeof(int32_t));
    if (!rows->tokens || !rows->positions || !rows->labels || !rows->cells || !rows->cu_seqlens)
        return rk_method_call_no_memory(call);
    return NULL;
}

struct rk_status *rk_rows_find(const struct rk_rows *rows, const struct rk_method_call *call,
                               const char *name, bool is_required, const float **out)
{
    const struct rk_batch *batch = call->job->input;
    const void *data;

    *out = NULL;
    if (!is_required && !rk_batch_find(batch, name))
        return NULL;
    RK_TRY(get_matrix(batch, name, RK_DTYPE_F32, &data, rows->num_responses));
    *out = data;
    return NULL;
}

/* A dense column [B, R, K]. */
static struct rk_status *get_cells(const struct rk_rows *rows, const struct rk_batch *batch, const char *name,
                                   rk_dtype_t dtype, int64_t num_ids, const void **data)
{
    int64_t shape[3];

    RK_TRY(rk_batch_get_dense(batch, name, dtype, 3, shape, data));
    if (shape[1] == rows->num_responses && shape[2] == num_ids)
        return NULL;
    return bad_field("column '%s' has [%lld, %lld] numbers per row, expected [%lld, %lld]", name,
                     (long long)shape[1], (long long)shape[2], (long long)rows->num_responses,
                     (long long)num_ids);
}

static struct rk_status *check_ids(const struct rk_rows *rows, const char *name, const int32_t *ids,
                                   int64_t num_ids, int64_t vocab_size)
{
    for (int64_t i = 0; i < rows->num_rows * rows->num_responses * num_ids; i++) {
        int64_t cell = i / num_ids;

        if (ids[i] < -1 || ids[i] >= vocab_size)
            return bad_field("%s[%lld, %lld, %lld]=%d: expected -1 to %lld", name,
                             (long long)(cell / rows->num_responses), (long long)(cell % rows->num_responses),
                             (long long)(i % num_ids), ids[i], (long long)vocab_size - 1);
    }
    return NULL;
}

struct rk_status *rk_rows_find_ids(const struct rk_rows *rows, const struct rk_method_call *call,
                                   int64_t num_ids, struct rk_id_columns *out)
{
    static const char ids_name[] = "teacher_topk_ids", log_probs_name[] = "teacher_topk_log_probs";
    const struct rk_batch *batch = call->job->input;
    const void *data;

    *out = (struct rk_id_columns){0};
    RK_TRY(get_cells(rows, batch, ids_name, RK_DTYPE_I32, num_ids, &data));
    out->ids = data;
    RK_TRY(get_cells(rows, batch, log_probs_name, RK_DTYPE_F32, num_ids, &data));
    out->log_probs = data;
    RK_TRY(check_ids(rows, ids_name, out->ids, num_ids, rk_model_get_config(call->role->model)->vocab_size));
    return rk_rows_check_finite(rows, log_probs_name, num_ids, out->log_probs);
}

/* Appends one row to the packed arrays; returns their new length. */
static int64_t pack_row(struct rk_rows *rows, int64_t row, int64_t begin)
{
    int64_t prompt_columns = rows->seq_columns - rows->num_responses;
    int64_t t = begin;

    for (int64_t c = 0; c < rows->seq_columns; c++) {
        int64_t i = row * rows->seq_columns + c;

        if (!rows->attention_mask[i])
            continue;
        if (t > begin && is_label(rows, row, c)) {
            rows->labels[t - 1] = (int32_t)rows->input_ids[i];
            rows->cells[t - 1] = row * rows->num_responses + c - prompt_columns;
        }
        rows->tokens[t] = (int32_t)rows->input_ids[i];
        rows->positions[t] = (int32_t)rows->position_ids[i];
        rows->labels[t] = RK_LABEL_NONE;
        rows->cells[t] = -1;
        t++;
    }
    return t;
}

void rk_rows_pack(struct rk_rows *rows, const struct rk_micro_batch *micro)
{
    int64_t num_tokens = 0, max_seqlen = 0;

    rows->cu_seqlens[0] = 0;
    for (int64_t i = 0; i < micro->num_rows; i++) {
        int64_t end;

        RK_ASSERT(micro->rows[i] < rows->num_rows);
        end = pack_row(rows, micro->rows[i], num_tokens);
        max_seqlen = RK_MAX(max_seqlen, end - num_tokens);
        num_tokens = end;
        rows->cu_seqlens[i + 1] = (int32_t)num_tokens;
    }
    RK_ASSERT(num_tokens <= rows->num_tokens);
    rows->packed = (struct rk_packed){
        .num_seqs = (int32_t)micro->num_rows,
        .num_tokens = num_tokens,
        .max_seqlen = (int32_t)max_seqlen,
        .tokens = rows->tokens,
        .positions = rows->positions,
        .cu_seqlens = rows->cu_seqlens,
        .labels = rows->labels,
    };
    if (rows->routes.packed)
        rk_rows_pack_routes(rows, micro);
}

void rk_rows_mark_last(struct rk_rows *rows, const struct rk_micro_batch *micro)
{
    for (int64_t t = 0; t < rows->packed.num_tokens; t++) {
        rows->labels[t] = RK_LABEL_NONE;
        rows->cells[t] = -1;
    }
    for (int32_t i = 0; i < rows->packed.num_seqs; i++) {
        int32_t last = rows->cu_seqlens[i + 1] - 1;

        if (last < rows->cu_seqlens[i])
            continue;
        rows->labels[last] = rows->tokens[last];
        rows->cells[last] = micro->rows[i];
    }
}

void rk_rows_gather(const struct rk_rows *rows, int64_t width, const float *column, double *packed)
{
    for (int64_t t = 0; t < rows->packed.num_tokens; t++)
        for (int64_t k = 0; k < width; k++)
            packed[t * width + k] = rows->cells[t] >= 0 ? (double)column[rows->cells[t] * width + k] : 0.0;
}

void rk_rows_gather_ids(const struct rk_rows *rows, int64_t width, const int32_t *column, int32_t *packed)
{
    for (int64_t t = 0; t < rows->packed.num_tokens; t++)
        for (int64_t k = 0; k < width; k++)
            packed[t * width + k] = rows->cells[t] >= 0 ? column[rows->cells[t] * width + k] : -1;
}

void rk_rows_scatter(const struct rk_rows *rows, int64_t width, const double *packed, float *column)
{
    for (int64_t t = 0; t < rows->packed.num_tokens; t++)
        for (int64_t k = 0; rows->cells[t] >= 0 && k < width; k++)
            column[rows->cells[t] * width + k] = (float)packed[t * width + k];
}

void rk_rows_scatter_ids(const struct rk_rows *rows, int64_t width, const int32_t *packed, int32_t *column)
{
    for (int64_t t = 0; t < rows->packed.num_tokens; t++)
        for (int64_t k = 0; rows->cells[t] >= 0 && k < width; k++)
            column[rows->cells[t] * width + k] = packed[t * width + k];
}
