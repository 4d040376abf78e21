/* The experts of tokens, between the column routed_experts [B, S, layers of experts, experts per token] and
 * the passes of the engine. A rollout never computes the last token of a row, whose experts are 0 then;
 * nothing depends on them, and a pass gets those of the token before. */
#include "worker/worker_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "dispatch/rk_plan.h"

static const char column_name[] = "routed_experts";

#define bad_field(...) RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", __VA_ARGS__)

/* Column of the last real token of a row; -1: it has none. */
static int64_t last_token(const struct rk_rows *rows, int64_t row)
{
    int64_t c = rows->seq_columns - 1;

    while (c >= 0 && !rows->attention_mask[row * rows->seq_columns + c])
        c--;
    return c;
}

static const uint16_t *routes_at(const struct rk_rows *rows, int64_t row, int64_t c)
{
    return rows->routes.column + (row * rows->seq_columns + c) * rows->routes.per_token;
}

static bool is_zero(const uint16_t *routes, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (routes[i] != 0)
            return false;
    }
    return true;
}

/* The id must be one of the model's experts and differ from the ids before it in the same layer. */
static struct rk_status *check_id(const uint16_t *experts, int64_t k, int64_t num_experts)
{
    if (experts[k] >= num_experts)
        return bad_field("%d: expected 0 to %lld", (int16_t)experts[k], (long long)num_experts - 1);
    for (int64_t j = 0; j < k; j++) {
        if (experts[j] == experts[k])
            return bad_field("%d twice: expected different experts", experts[k]);
    }
    return NULL;
}

static struct rk_status *check_token(const struct rk_rows *rows, int64_t row, int64_t c, int64_t num_experts)
{
    int64_t top_k = rows->routes.num_experts_per_tok;
    const uint16_t *routes = routes_at(rows, row, c);

    for (int64_t i = 0; i < rows->routes.per_token; i++) {
        struct rk_status *st = check_id(routes + i / top_k * top_k, i % top_k, num_experts);

        if (st)
            return RK_WRAP(st, "%s[%lld, %lld, %lld, %lld]", column_name, (long long)row, (long long)c,
                           (long long)(i / top_k), (long long)(i % top_k));
    }
    return NULL;
}

static struct rk_status *check_tokens(const struct rk_rows *rows, int64_t num_experts)
{
    for (int64_t row = 0; row < rows->num_rows; row++) {
        int64_t last = last_token(rows, row);

        for (int64_t c = 0; c <= last; c++) {
            bool is_real = rows->attention_mask[row * rows->seq_columns + c] != 0;

            if (is_real && !(c == last && is_zero(routes_at(rows, row, c), rows->routes.per_token)))
                RK_TRY(check_token(rows, row, c, num_experts));
        }
    }
    return NULL;
}

struct rk_status *rk_rows_find_routes(struct rk_rows *rows, const struct rk_method_call *call)
{
    struct rk_model_routes routes = rk_model_get_routes(call->role->model);
    int64_t shape[4];
    const void *data;

    RK_TRY(rk_batch_get_dense(call->job->input, column_name, RK_DTYPE_I16, 4, shape, &data));
    if (shape[1] != rows->seq_columns || shape[2] != routes.num_layers ||
        shape[3] != routes.num_experts_per_tok)
        return bad_field(
            "column '%s' has [%lld, %lld, %lld] numbers per row, expected [%lld, %lld, %lld]: the "
            "model has %lld layers of experts and %lld experts per token",
            column_name, (long long)shape[1], (long long)shape[2], (long long)shape[3],
            (long long)rows->seq_columns, (long long)routes.num_layers, (long long)routes.num_experts_per_tok,
            (long long)routes.num_layers, (long long)routes.num_experts_per_tok);
    rows->routes.column = data;
    rows->routes.per_token = routes.num_layers * routes.num_experts_per_tok;
    rows->routes.num_experts_per_tok = routes.num_experts_per_tok;
    return check_tokens(rows, routes.num_experts);
}

struct rk_status *rk_rows_replay_routes(struct rk_rows *rows, struct rk_method_call *call)
{
    int64_t count = rk_method_call_max_tokens(call, rows) * rows->routes.per_token;

    rows->routes.packed = rk_method_call_alloc(call, count, sizeof(*rows->routes.packed));
    return rows->routes.packed ? NULL : rk_method_call_no_memory(call);
}

/* Experts for a token that has none: those of the token before it in the row, so that no expert gets more
 * tokens than its share; the first ones if there is none. */
static void fill_token(uint16_t *out, const struct rk_rows *rows, bool has_before)
{
    int64_t per_token = rows->routes.per_token;

    for (int64_t k = 0; k < per_token; k++)
        out[k] = has_before ? out[k - per_token] : (uint16_t)(k % rows->routes.num_experts_per_tok);
}

void rk_rows_pack_routes(struct rk_rows *rows, const struct rk_micro_batch *micro)
{
    int64_t per_token = rows->routes.per_token;
    uint16_t *out = rows->routes.packed;

    for (int64_t i = 0; i < micro->num_rows; i++) {
        int64_t row = micro->rows[i], last = last_token(rows, row);
        bool has_before = false;

        for (int64_t c = 0; c <= last; c++) {
            const uint16_t *routes = routes_at(rows, row, c);

            if (!rows->attention_mask[row * rows->seq_columns + c])
                continue;
            memcpy(out, routes, (size_t)per_token * sizeof(*out));
            if (c == last && is_zero(routes, per_token))
                fill_token(out, rows, has_before);
            has_before = true;
            out += per_token;
        }
    }
    rows->packed.routed_experts = rows->routes.packed;
}

/* --- what the routers choose --- */

struct rk_status *rk_route_record_init(struct rk_route_record *record, struct rk_method_call *call,
                                       const struct rk_rows *rows)
{
    struct rk_model_routes routes = rk_model_get_routes(call->role->model);
    const struct rk_plan *plan = &call->job->plan;
    int64_t num_micro = 0;

    *record = (struct rk_route_record){.per_token = routes.num_layers * routes.num_experts_per_tok,
                                       .num_experts_per_tok = routes.num_experts_per_tok};
    for (int64_t m = 0; m < plan->num_mini; m++)
        num_micro = RK_MAX(num_micro, plan->mini[m].num_micro);
    record->chosen =
        rk_method_call_alloc(call, rows->num_tokens * record->per_token, sizeof(*record->chosen));
    record->first = rk_method_call_alloc(call, num_micro + 1, sizeof(*record->first));
    return record->chosen && record->first ? NULL : rk_method_call_no_memory(call);
}

void rk_route_record_begin(struct rk_route_record *record, const struct rk_method_call *call,
                           const struct rk_rows *rows, const struct rk_mini_batch *mini)
{
    for (int32_t m = 0; m < mini->num_micro; m++)
        record->first[m + 1] = record->first[m] + rk_method_call_count_tokens(call, rows, mini, m);
    RK_ASSERT(record->first[mini->num_micro] <= rows->num_tokens);
    memset(record->chosen, 0,
           (size_t)(record->first[mini->num_micro] * record->per_token) * sizeof(*record->chosen));
}

uint16_t *rk_route_record_at(const struct rk_route_record *record, int64_t m)
{
    return record->chosen + record->first[m] * record->per_token;
}

/* Layers in which the sets of experts differ. */
static int64_t count_other_layers(const struct rk_route_record *record, const uint16_t *a, const uint16_t *b)
{
    int64_t top_k = record->num_experts_per_tok, count = 0;

    for (int64_t layer = 0; layer < record->per_token; layer += top_k) {
        bool is_same = true;

        for (int64_t i = 0; i < top_k; i++) {
            bool is_found = false;

            for (int64_t j = 0; j < top_k; j++)
                is_found = is_found || a[layer + i] == b[layer + j];
            is_same = is_same && is_found;
        }
        count += !is_same;
    }
    return count;
}

/* Uses what was chosen for the tokens of a row; returns the number of these. */
static int64_t take_row(struct rk_route_record *record, const struct rk_rows *rows, int64_t row,
                        const uint16_t *chosen, uint16_t *column)
{
    int64_t last = last_token(rows, row), per_token = record->per_token, count = 0;

    for (int64_t c = 0; c <= last; c++) {
        int64_t i = row * rows->seq_columns + c;
        const uint16_t *own = chosen + count * per_token;

        if (!rows->attention_mask[i])
            continue;
        if (column)
            memcpy(column + i * per_token, own, (size_t)per_token * sizeof(*own));
        if (rows->routes.column && c < last) {
            int64_t num_other = count_other_layers(record, own, routes_at(rows, row, c));

            record->num_tokens++;
            record->num_other_tokens += num_other > 0;
            record->num_other_layers += num_other;
        }
        count++;
    }
    return count;
}

struct rk_status *rk_route_record_end(struct rk_route_record *record, const struct rk_method_call *call,
                                      const struct rk_rows *rows, const struct rk_mini_batch *mini,
                                      uint16_t *column)
{
    const uint16_t *chosen = record->chosen;

    RK_TRY(rk_model_merge_routes(call->role->model, record->chosen, record->first[mini->num_micro]));
    for (int32_t m = 0; m < mini->num_micro; m++) {
        const struct rk_micro_batch *micro = rk_method_call_micro_batch(call, mini, m);

        for (int64_t i = 0; i < micro->num_rows; i++)
            chosen += take_row(record, rows, micro->rows[i], chosen, column) * record->per_token;
    }
    return NULL;
}

void rk_route_record_report(const struct rk_route_record *record, struct rk_job_call *job)
{
    double num_layers = (double)record->num_tokens * (double)record->per_token /
                        (double)RK_MAX(record->num_experts_per_tok, 1);

    rk_job_add_metric(job, "routes/tokens", (double)record->num_tokens, "sum");
    rk_job_add_metric(job, "routes/other_tokens", (double)record->num_other_tokens, "sum");
    rk_job_add_metric(job, "routes/layers", num_layers, "sum");
    rk_job_add_metric(job, "routes/other_layers", (double)record->num_other_layers, "sum");
}
