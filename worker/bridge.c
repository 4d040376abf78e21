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
#include "base/rk_pipeline.h"
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

const struct rk_micro_batch *rk_method_call_micro_batch(const struct rk_method_call *call,
                                                        const struct rk_mini_batch *mini, int32_t i)
{
    struct rk_mesh_coords coords;
    int64_t entry;

    RK_ASSERT(rk_mesh_find_coords(call->role->mesh, call->worker->rank, &coords));
    entry = (int64_t)coords.axis[RK_AXIS_DP] * mini->num_micro + i;
    RK_ASSERT(entry < mini->num_entries);
    return &mini->micro[entry];
}

static int64_t count_tokens(const struct rk_rows *rows, const struct rk_micro_batch *micro)
{
    int64_t count = 0;

    for (int64_t i = 0; i < micro->num_rows; i++)
        for (int64_t c = 0; c < rows->seq_columns; c++)
            count += rows->attention_mask[micro->rows[i] * rows->seq_columns + c];
    return count;
}

/* A pass without planned memory could run out of memory after its begin, which would end the world. */
static struct rk_status *check_tokens(const struct rk_method_call *call, const struct rk_rows *rows,
                                      const char *option, int64_t limit)
{
    const struct rk_plan *plan = &call->job->plan;

    for (int64_t m = 0; m < plan->num_mini; m++) {
        for (int32_t i = 0; i < plan->mini[m].num_micro; i++) {
            const struct rk_micro_batch *micro = rk_method_call_micro_batch(call, &plan->mini[m], i);
            int64_t num_tokens = count_tokens(rows, micro);

            if (num_tokens <= limit)
                continue;
            if (micro->num_rows == 1)
                return bad_field("row %u has %lld tokens: more than %s of init_model, which must hold "
                                 "the longest sequence",
                                 micro->rows[0], (long long)num_tokens, option);
            return bad_field("mini-batch %lld, micro-batch %d: %lld tokens are more than %s of init_model",
                             (long long)m, i, (long long)num_tokens, option);
        }
    }
    return NULL;
}

/* A stage would wait for ever for a micro-batch that another stage refuses. */
static struct rk_status *check_schedule(const struct rk_method_call *call, bool trains)
{
    const struct rk_plan *plan = &call->job->plan;
    struct rk_pipeline_schedule schedule = {
        .pp = rk_mesh_axis_size(call->role->mesh, RK_AXIS_PP),
        .vpp = call->role->layout.vpp,
        .forward_only = !trains,
    };

    for (int64_t m = 0; m < plan->num_mini; m++) {
        struct rk_status *st, *refusal;

        schedule.num_micro_batches = plan->mini[m].num_micro;
        st = rk_pipeline_schedule_check(&schedule);
        if (!st)
            continue;
        refusal = bad_field("mini-batch %lld: %s", (long long)m, rk_status_message(st));
        rk_status_free(st);
        return refusal;
    }
    return NULL;
}

struct rk_status *rk_method_call_check_plan(const struct rk_method_call *call, const struct rk_rows *rows,
                                            bool trains)
{
    const struct rk_memory_limits *limits = &call->role->limits;
    int64_t limit = trains ? limits->train_tokens : limits->log_prob_tokens;
    int32_t cp = rk_mesh_axis_size(call->role->mesh, RK_AXIS_CP);
    struct rk_status *st;
    char *option;

    RK_TRY(rk_plan_check(&call->job->plan, rows->num_rows, rk_mesh_axis_size(call->role->mesh, RK_AXIS_DP)));
    RK_TRY(check_schedule(call, trains));
    if (limit == 0)
        return NULL;
    option = rk_format("%s=%lld", trains ? "ppo_max_token_len_per_gpu" : "log_prob_max_token_len_per_gpu",
                       (long long)(limit / cp));
    if (cp > 1) { /* ranks share a micro-batch */
        char *of_one = option;

        option = rk_format("%s x cp=%d", of_one, cp);
        rk_free(of_one);
    }
    st = check_tokens(call, rows, option, limit);
    rk_free(option);
    return st;
}

struct rk_status *rk_method_call_check_num_ids(const struct rk_method_call *call, int64_t num_ids,
                                               bool trains)
{
    const struct rk_memory_limits *limits = &call->role->limits;
    int64_t vocab_size = rk_model_get_config(call->role->model)->vocab_size;
    int64_t largest = RK_MIN(vocab_size, RK_DISTILL_TOPK_MAX);

    if (num_ids < 1 || num_ids > largest)
        return bad_field("topk=%lld: expected 1 to %lld, the model's vocabulary has %lld ids",
                         (long long)num_ids, (long long)largest, (long long)vocab_size);
    if ((trains ? limits->train_tokens : limits->log_prob_tokens) == 0 || num_ids <= limits->num_ids)
        return NULL;
    return bad_field("topk=%lld: more than topk=%lld of init_model", (long long)num_ids,
                     (long long)limits->num_ids);
}

/* Counts of this rank's replica: {tokens, sequences} of each mini-batch that the loss covers, and rows. */
static void count_labels(const struct rk_method_call *call, const struct rk_rows *rows, double (*counts)[3])
{
    const struct rk_plan *plan = &call->job->plan;

    for (int64_t m = 0; m < plan->num_mini; m++) {
        for (int32_t i = 0; i < plan->mini[m].num_micro; i++) {
            const struct rk_micro_batch *micro = rk_method_call_micro_batch(call, &plan->mini[m], i);

            for (int64_t r = 0; r < micro->num_rows; r++) {
                double num_tokens = 0.0;

                for (int64_t j = 0; j < rows->num_responses; j++)
                    num_tokens += rows->label_mask[micro->rows[r] * rows->label_stride + j] != 0;
                counts[m][0] += num_tokens;
                counts[m][1] += num_tokens > 0.0;
                counts[m][2] += 1.0;
            }
        }
    }
}

/* A mini-batch without counted tokens has denominators of 1. */
static struct rk_status *check_counts(const struct rk_plan *plan, double (*const counts)[3])
{
    for (int64_t m = 0; m < plan->num_mini; m++) {
        const struct rk_mini_batch *mini = &plan->mini[m];
        double num_sequences = (double)mini->num_sequences;

        if ((double)mini->num_tokens != RK_MAX(counts[m][0], 1.0))
            return bad_field("plan: mini-batch %lld has num_tokens=%llu, the masks of its rows mark %.0f",
                             (long long)m, (unsigned long long)mini->num_tokens, counts[m][0]);
        if (num_sequences < RK_MAX(counts[m][1], 1.0) || num_sequences > RK_MAX(counts[m][2], 1.0))
            return bad_field("plan: mini-batch %lld has num_sequences=%llu, expected %.0f (the rows that "
                             "have a marked token) to %.0f (its rows)",
                             (long long)m, (unsigned long long)mini->num_sequences, RK_MAX(counts[m][1], 1.0),
                             counts[m][2]);
    }
    return NULL;
}

struct rk_status *rk_method_call_check_denominators(struct rk_method_call *call, const struct rk_rows *rows,
                                                    bool *is_empty)
{
    const struct rk_plan *plan = &call->job->plan;
    double(*counts)[3] = rk_calloc((size_t)plan->num_mini, sizeof(*counts));
    struct rk_status *st;

    count_labels(call, rows, counts);
    st = rk_engine_sum(rk_mesh_comms_group(call->role->comms, RK_GROUP_DP), call->worker->stream,
                       call->worker->agree_scratch, counts[0], plan->num_mini * 3);
    if (!st)
        st = check_counts(plan, counts);
    for (int64_t m = 0; m < plan->num_mini; m++)
        is_empty[m] = counts[m][0] == 0.0;
    rk_free(counts);
    return st;
}
