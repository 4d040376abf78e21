/* Log-probs (and entropies) of response tokens under a model: the shared body of the two methods. Every real
 * response token gets a value; padding stays 0. */
#include "worker/methods/log_prob_internal.h"

/* Everything that the passes need; all of it exists before the first collective. */
struct pass {
    struct rk_rows rows;
    double temperature;
    double *log_probs, *entropy;        /* packed; entropy NULL when it is not wanted */
    float *out_log_probs, *out_entropy; /* columns of the result; NULL where this rank returns none */
};

struct rk_status *rk_temperature_read(double *out, const struct rk_json *options)
{
    RK_TRY(rk_json_get_f64(options, "", "temperature", out));
    RK_TRY(rk_model_check_temperature(*out));
    *out = (double)(float)*out; /* the sampler's precision: both sides divide by the same number */
    return NULL;
}

static struct rk_status *add_columns(struct rk_call *call, struct pass *pass, const char *log_prob_column,
                                     const char *entropy_column)
{
    const int64_t shape[] = {pass->rows.num_rows, pass->rows.num_responses};
    void *data;

    RK_TRY(rk_batch_create(&call->job->output, pass->rows.num_rows));
    RK_TRY(rk_batch_add_dense(call->job->output, log_prob_column, RK_DTYPE_F32, 2, shape, &data));
    pass->out_log_probs = data;
    if (!pass->entropy)
        return NULL;
    RK_TRY(rk_batch_add_dense(call->job->output, entropy_column, RK_DTYPE_F32, 2, shape, &data));
    pass->out_entropy = data;
    return NULL;
}

static struct rk_status *prepare(struct rk_call *call, struct pass *pass, const char *log_prob_column,
                                 const char *entropy_column)
{
    const struct rk_json *options = call->job->options;
    bool wants_entropy = false;

    RK_TRY(rk_temperature_read(&pass->temperature, options));
    if (entropy_column)
        RK_TRY(rk_json_get_bool(options, "", "calculate_entropy", &wants_entropy));
    RK_TRY(rk_rows_open(&pass->rows, call, rk_model_get_config(call->role->model), NULL));
    RK_TRY(rk_call_check_plan(call, &pass->rows, false));
    pass->log_probs = rk_call_alloc(call, pass->rows.num_tokens, sizeof(double));
    pass->entropy = wants_entropy ? rk_call_alloc(call, pass->rows.num_tokens, sizeof(double)) : NULL;
    if (!pass->log_probs || (wants_entropy && !pass->entropy))
        return rk_call_no_memory(call);
    return call->job->collect ? add_columns(call, pass, log_prob_column, entropy_column) : NULL;
}

static struct rk_status *run_mini_batch(struct rk_call *call, struct pass *pass,
                                        const struct rk_mini_batch *mini)
{
    for (int32_t m = 0; m < mini->num_micro; m++) {
        RK_TRY(rk_call_check_cancel(call));
        rk_rows_pack(&pass->rows, rk_call_micro_batch(call, mini, m));
        RK_TRY(rk_model_forward(call->role->model, &pass->rows.packed, pass->temperature, &call->hooks,
                                &(struct rk_head_arrays){{pass->log_probs, pass->entropy}}));
        if (pass->out_log_probs)
            rk_rows_scatter(&pass->rows, pass->log_probs, pass->out_log_probs);
        if (pass->out_entropy)
            rk_rows_scatter(&pass->rows, pass->entropy, pass->out_entropy);
        rk_call_progress(call, call->job->method->name, (uint64_t)m + 1, (uint64_t)mini->num_micro);
    }
    return NULL;
}

struct rk_status *rk_log_prob_run(struct rk_call *call, const char *log_prob_column,
                                  const char *entropy_column)
{
    struct pass pass = {0};

    RK_TRY(rk_call_begin(call, prepare(call, &pass, log_prob_column, entropy_column)));
    for (int64_t i = 0; i < call->job->plan.num_mini; i++)
        RK_TRY(run_mini_batch(call, &pass, &call->job->plan.mini[i]));
    rk_call_add_memory_metrics(call);
    return NULL;
}
