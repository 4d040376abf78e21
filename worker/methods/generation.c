/* The inputs of generate_sequences. */
#include "worker/methods/generation_internal.h"

#include <string.h>

#include "base/rk_alloc.h"

static const struct rk_knob sampling_knobs[] = {RK_SAMPLING_KNOBS(RK_KNOB_ROW, struct rk_sampling_knobs, , )};

static struct rk_status *read_sampling(struct rk_generation *g)
{
    const struct rk_json *options = g->call->job->options;

    RK_TRY(rk_json_get_f64(options, "", "temperature", &g->temperature));
    RK_TRY(rk_knobs_read(&g->sampling, sampling_knobs, RK_ARRAY_LEN(sampling_knobs), options));
    if (!g->sampling.do_sample) {
        g->temperature = 0.0;
        g->sampling.top_k = -1;
        g->sampling.top_p = 1.0;
    }
    return NULL;
}

/* The ids of the option; the model's own where it has none. */
static struct rk_status *read_eos(struct rk_generation *g, const struct rk_model_config *config)
{
    const struct rk_json *value = rk_json_find(g->call->job->options, "eos_token_id");
    bool is_list = rk_json_type(value) == RK_JSON_ARRAY;
    int64_t count = is_list ? rk_json_count(value) : 1;

    if (count > RK_GENERATION_EOS_MAX)
        return RK_FAIL(RK_INVALID_ARGUMENT, "eos_token_id: expected at most %d ids, got %lld",
                       RK_GENERATION_EOS_MAX, (long long)count);
    for (int64_t i = 0; i < count; i++) {
        int64_t id = rk_json_as_int(is_list ? rk_json_at(value, i) : value, -1);

        if (id < 0 || id >= config->vocab_size)
            return RK_FAIL(RK_INVALID_ARGUMENT, "eos_token_id: expected ids from 0 to %lld",
                           (long long)config->vocab_size - 1);
        g->eos[g->num_eos++] = id;
    }
    if (g->num_eos == 0) {
        g->num_eos = config->num_eos_token_ids;
        memcpy(g->eos, config->eos_token_ids, sizeof(config->eos_token_ids));
    }
    if (g->sampling.ignore_eos)
        g->num_eos = 0;
    return NULL;
}

static struct rk_status *read_routes(struct rk_generation *g)
{
    bool captures = rk_rollout_get_config(g->call->role->rollout).captures_routes;

    RK_TRY(rk_json_get_bool(g->call->job->options, "", "routed_experts", &g->returns_routes));
    g->returns_routes = g->returns_routes && captures;
    return NULL;
}

static struct rk_status *read_columns(struct rk_generation *g)
{
    const struct rk_batch *batch = g->call->job->input;
    int64_t shape[2], mask_shape[2];
    const void *data;

    if (!batch)
        return RK_FAIL(RK_INVALID_ARGUMENT, "the call has no batch");
    RK_TRY(rk_batch_get_dense(batch, "prompts", RK_DTYPE_I64, 2, shape, &data));
    g->prompts = data;
    RK_TRY(rk_batch_get_dense(batch, "attention_mask", RK_DTYPE_I64, 2, mask_shape, &data));
    g->attention_mask = data;
    if (mask_shape[1] != shape[1])
        return RK_FAIL(RK_INVALID_ARGUMENT, "attention_mask has %lld columns, prompts %lld",
                       (long long)mask_shape[1], (long long)shape[1]);
    RK_TRY(rk_batch_get_dense(batch, "stream", RK_DTYPE_I64, 1, NULL, &data));
    g->streams = data;
    if (rk_batch_find(batch, "seed")) {
        RK_TRY(rk_batch_get_dense(batch, "seed", RK_DTYPE_I64, 1, NULL, &data));
        g->seeds = data;
    }
    g->num_rows = shape[0];
    g->prompt_columns = shape[1];
    return NULL;
}

static struct rk_status *allocate(struct rk_generation *g)
{
    int64_t num_prompt_tokens, num_response_tokens;

    if (!rk_mul_i64(g->num_rows, g->prompt_columns, &num_prompt_tokens) ||
        !rk_mul_i64(g->num_rows, g->response_columns, &num_response_tokens))
        return rk_method_call_no_memory(g->call);
    g->requests = rk_method_call_alloc(g->call, g->num_rows, sizeof(*g->requests));
    g->results = rk_method_call_alloc(g->call, g->num_rows, sizeof(*g->results));
    g->prompt_tokens = rk_method_call_alloc(g->call, num_prompt_tokens, sizeof(*g->prompt_tokens));
    g->response_tokens = rk_method_call_alloc(g->call, num_response_tokens, sizeof(*g->response_tokens));
    g->log_probs = rk_method_call_alloc(g->call, num_response_tokens, sizeof(*g->log_probs));
    if (!g->requests || !g->results || !g->prompt_tokens || !g->response_tokens || !g->log_probs)
        return rk_method_call_no_memory(g->call);
    return NULL;
}

/* Removes the left padding of row i; *num_tokens receives the rest. */
static struct rk_status *unpad_prompt(struct rk_generation *g, int64_t row, int32_t *num_tokens)
{
    int32_t *tokens = g->prompt_tokens + row * g->prompt_columns;
    int32_t n = 0;

    for (int64_t c = 0; c < g->prompt_columns; c++) {
        int64_t i = row * g->prompt_columns + c, mask = g->attention_mask[i];

        if ((mask != 0 && mask != 1) || (mask == 0 && n > 0))
            return RK_FAIL(
                RK_INVALID_ARGUMENT,
                "attention_mask[%lld, %lld]=%lld: expected 0 on the left and 1 from the first real token on",
                (long long)row, (long long)c, (long long)mask);
        if (mask && g->prompts[i] != (int32_t)g->prompts[i])
            return RK_FAIL(RK_INVALID_ARGUMENT, "prompts[%lld, %lld]=%lld: expected the id of a token",
                           (long long)row, (long long)c, (long long)g->prompts[i]);
        if (mask)
            tokens[n++] = (int32_t)g->prompts[i];
    }
    *num_tokens = n;
    return NULL;
}

static struct rk_status *make_request(struct rk_generation *g, int64_t row)
{
    int64_t max_model_len = rk_rollout_get_config(g->call->role->rollout).max_model_len;
    struct rk_rollout_request *request = &g->requests[row];
    struct rk_status *st;

    *request = (struct rk_rollout_request){
        .prompt = g->prompt_tokens + row * g->prompt_columns,
        .temperature = (float)g->temperature,
        .top_k = g->sampling.top_k,
        .top_p = (float)g->sampling.top_p,
        .seed = (uint64_t)(g->seeds ? g->seeds[row] : g->sampling.seed),
        .stream = (uint64_t)g->streams[row],
        .eos_token_ids = g->eos,
        .num_eos_token_ids = g->num_eos,
    };
    RK_TRY(unpad_prompt(g, row, &request->prompt_len));
    request->max_tokens = (int32_t)RK_MIN(g->response_columns, max_model_len - request->prompt_len);
    st = rk_rollout_check(g->call->role->rollout, request);
    if (st)
        return RK_WRAP(st, "row %lld", (long long)row);
    g->results[row].tokens = g->response_tokens + row * g->response_columns;
    g->results[row].log_probs = g->log_probs + row * g->response_columns;
    return NULL;
}

struct rk_status *rk_generation_prepare(struct rk_generation *g)
{
    const struct rk_model_config *config = rk_model_get_config(g->call->role->model);
    const struct rk_json *options = g->call->job->options;
    int64_t max_model_len = rk_rollout_get_config(g->call->role->rollout).max_model_len;

    RK_TRY(read_sampling(g));
    RK_TRY(read_eos(g, config));
    RK_TRY(read_routes(g));
    /* Columns beyond that would be padding, of any size. */
    RK_TRY(rk_json_get_i64(options, "", "response_length", 1, max_model_len, &g->response_columns));
    RK_TRY(rk_json_get_i64(options, "", "pad_token_id", 0, INT32_MAX, &g->pad_token_id));
    RK_TRY(read_columns(g));
    if (g->prompt_columns > config->max_position_embeddings)
        return RK_FAIL_REASON(
            RK_INVALID_ARGUMENT, "BAD_FIELD",
            "column 'prompts' has %lld columns, max_position_embeddings of the model is %lld",
            (long long)g->prompt_columns, (long long)config->max_position_embeddings);
    RK_TRY(allocate(g));
    for (int64_t row = 0; row < g->num_rows; row++)
        RK_TRY(make_request(g, row));
    return NULL;
}
