/* generate_sequences: samples a response to every prompt and returns the padded columns of verl's batch.
 *
 *   prompts [B, P] left padded, responses [B, R] right padded, input_ids [B, P + R] = both,
 *   attention_mask 1 on real tokens, position_ids = max(cumsum(attention_mask) - 1, 0)
 *   routed_experts [B, P + R, layers of experts, experts per token], 0 on padding and on the last token
 *
 * A sample is a function of (weights, prompt, options, seed, stream): running the method twice gives the
 * same. */
#include "worker/methods/methods.h"

#include <string.h>

#include "base/rk_alloc.h"

#include "worker/methods/generation_internal.h"

/* Columns of the result. */
struct output {
    int64_t *prompts, *responses, *response_mask, *input_ids, *attention_mask, *position_ids;
    float *log_probs;
};

static struct rk_status *add_ids(struct rk_generation *g, const char *name, int64_t num_columns,
                                 int64_t **out)
{
    const int64_t shape[] = {g->num_rows, num_columns};
    void *data;

    RK_TRY(rk_batch_add_dense(g->call->job->output, name, RK_DTYPE_I64, 2, shape, &data));
    *out = data;
    return NULL;
}

/* The rollout writes into the column: the tokens of a row are without gaps. */
static struct rk_status *add_routes(struct rk_generation *g, int64_t num_columns)
{
    struct rk_model_routes routes = rk_model_get_routes(g->call->role->model);
    const int64_t shape[] = {g->num_rows, num_columns, routes.num_layers, routes.num_experts_per_tok};
    void *data;

    if (!g->returns_routes)
        return NULL;
    RK_TRY(rk_batch_add_dense(g->call->job->output, "routed_experts", RK_DTYPE_I16, 4, shape, &data));
    for (int64_t row = 0; row < g->num_rows; row++) {
        int64_t first = row * num_columns + g->prompt_columns - g->requests[row].prompt_len;

        g->results[row].routed_experts = (uint16_t *)data + first * shape[2] * shape[3];
    }
    return NULL;
}

static struct rk_status *add_columns(struct output *out, struct rk_generation *g)
{
    int64_t num_columns = g->prompt_columns + g->response_columns;
    const int64_t shape[] = {g->num_rows, g->response_columns};
    struct rk_job_call *job = g->call->job;
    void *data;

    RK_TRY(rk_batch_create(&job->output, g->num_rows));
    RK_TRY(add_ids(g, "prompts", g->prompt_columns, &out->prompts));
    RK_TRY(add_ids(g, "responses", g->response_columns, &out->responses));
    RK_TRY(add_ids(g, "response_mask", g->response_columns, &out->response_mask));
    RK_TRY(rk_batch_add_dense(job->output, "rollout_log_probs", RK_DTYPE_F32, 2, shape, &data));
    out->log_probs = data;
    RK_TRY(add_ids(g, "input_ids", num_columns, &out->input_ids));
    RK_TRY(add_ids(g, "attention_mask", num_columns, &out->attention_mask));
    RK_TRY(add_ids(g, "position_ids", num_columns, &out->position_ids));
    RK_TRY(add_routes(g, num_columns));
    rk_batch_set_meta(job->output, "weight_version",
                      rk_json_new_int((int64_t)rk_model_weight_version(g->call->role->model)));
    return NULL;
}

static void fill_row(const struct output *out, const struct rk_generation *g, int64_t row)
{
    const struct rk_rollout_request *request = &g->requests[row];
    const struct rk_rollout_result *result = &g->results[row];
    int64_t p_columns = g->prompt_columns, r_columns = g->response_columns, s_columns = p_columns + r_columns;
    int64_t *input_ids = out->input_ids + row * s_columns, *mask = out->attention_mask + row * s_columns;
    int64_t *positions = out->position_ids + row * s_columns;
    int64_t begin = p_columns - request->prompt_len, end = p_columns + result->num_tokens;

    for (int64_t c = 0; c < s_columns; c++) {
        bool is_real = c >= begin && c < end;

        input_ids[c] = g->pad_token_id;
        if (is_real)
            input_ids[c] = c < p_columns ? request->prompt[c - begin] : result->tokens[c - p_columns];
        mask[c] = is_real;
        positions[c] = RK_MAX(RK_MIN(c, end - 1) - begin, 0);
    }
    memcpy(out->prompts + row * p_columns, input_ids, (size_t)p_columns * sizeof(int64_t));
    memcpy(out->responses + row * r_columns, input_ids + p_columns, (size_t)r_columns * sizeof(int64_t));
    memcpy(out->response_mask + row * r_columns, mask + p_columns, (size_t)r_columns * sizeof(int64_t));
    memcpy(out->log_probs + row * r_columns, result->log_probs, (size_t)result->num_tokens * sizeof(float));
}

static void count_tokens(const struct rk_generation *g)
{
    struct rk_job_call *job = g->call->job;

    job->first_token_seconds = rk_calloc((size_t)g->num_rows, sizeof(*job->first_token_seconds));
    job->num_first_tokens = g->num_rows;
    for (int64_t row = 0; row < g->num_rows; row++) {
        job->num_tokens += (uint64_t)g->results[row].num_tokens;
        job->num_prompt_tokens += (uint64_t)g->requests[row].prompt_len;
        job->first_token_seconds[row] = (double)g->results[row].first_token_ns / 1e9;
    }
}

/* verl's names: how long its agent loops wait for the tokens of a sample. */
static void add_times(const struct rk_generation *g)
{
    double min_s = g->num_rows > 0 ? (double)g->results[0].last_token_ns / 1e9 : 0, max_s = 0, sum_s = 0;

    for (int64_t row = 0; row < g->num_rows; row++) {
        double seconds = (double)g->results[row].last_token_ns / 1e9;

        min_s = RK_MIN(min_s, seconds);
        max_s = RK_MAX(max_s, seconds);
        sum_s += seconds;
    }
    if (g->num_rows == 0)
        return;
    rk_job_add_metric(g->call->job, "timing_s/agent_loop/generate_sequences/min", min_s, "min");
    rk_job_add_metric(g->call->job, "timing_s/agent_loop/generate_sequences/max", max_s, "max");
    rk_job_add_metric(g->call->job, "timing_s/agent_loop/generate_sequences/mean",
                      sum_s / (double)g->num_rows, "mean");
}

struct rk_status *rk_m_generate_sequences(struct rk_method_call *call)
{
    struct rk_generation g = {.call = call};
    struct output out = {0};
    struct rk_status *st = rk_generation_prepare(&g);

    if (!st && call->job->collect)
        st = add_columns(&out, &g);
    RK_TRY(rk_method_call_begin(call, st));
    RK_TRY(rk_rollout_generate(call->role->rollout, g.requests, g.num_rows, g.results, &call->hooks));
    count_tokens(&g);
    add_times(&g);
    for (int64_t row = 0; call->job->collect && row < g.num_rows; row++)
        fill_row(&out, &g, row);
    rk_method_call_add_memory_metrics(call);
    return NULL;
}
