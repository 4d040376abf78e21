/* Outputs of a head for the tokens of a batch: the body of the methods that only run a model forward. */
#include "worker/methods/forward_internal.h"

/* State of the passes; all of it is created before the first collective. */
struct forward {
    struct rk_method_call *call;
    const struct rk_forward_kind *kind;
    struct rk_rows rows;
    double temperature;
    bool is_wanted[RK_FORWARD_OUTPUTS_MAX];
    struct rk_head_arrays arrays;           /* packed */
    float *columns[RK_FORWARD_OUTPUTS_MAX]; /* of the result; NULL where this rank returns none */
    const struct rk_mini_batch *mini;       /* current */
    bool is_pipeline;                       /* the model is a stage of one */
    bool records_routes;                    /* passes return what the routers choose */
    struct rk_route_record routes;
    uint16_t *routed_experts; /* of the result; NULL where this rank returns none */
    int32_t *top_ids;         /* the same */
    float *top_log_probs;
};

struct rk_status *rk_temperature_read(double *out, const struct rk_json *options)
{
    RK_TRY(rk_json_get_f64(options, "", "temperature", out));
    RK_TRY(rk_model_check_temperature(*out));
    *out = (double)(float)*out; /* the sampler's precision: both sides divide by the same number */
    return NULL;
}

static bool has_output(const struct rk_forward_kind *kind, int i)
{
    return i < RK_FORWARD_OUTPUTS_MAX && kind->outputs[i].column;
}

static struct rk_status *read_options(struct forward *f)
{
    const struct rk_json *options = f->call->job->options;

    f->temperature = 1.0;
    if (f->kind->has_temperature)
        RK_TRY(rk_temperature_read(&f->temperature, options));
    for (int i = 0; has_output(f->kind, i); i++) {
        const char *option = f->kind->outputs[i].option;

        f->is_wanted[i] = option == NULL;
        if (option)
            RK_TRY(rk_json_get_bool(options, "", option, &f->is_wanted[i]));
    }
    if (!f->kind->top_ids)
        return NULL;
    RK_TRY(rk_json_get_i64(options, "", "topk", INT64_MIN, INT64_MAX, &f->arrays.ids.num_ids));
    return rk_method_call_check_num_ids(f->call, f->arrays.ids.num_ids, false);
}

static struct rk_status *allocate_ids(struct forward *f)
{
    struct rk_head_ids *ids = &f->arrays.ids;
    int64_t count = f->rows.num_tokens * ids->num_ids;

    if (ids->num_ids == 0)
        return NULL;
    ids->top_ids = rk_method_call_alloc(f->call, count, sizeof(*ids->top_ids));
    ids->top_log_probs = rk_method_call_alloc(f->call, count, sizeof(*ids->top_log_probs));
    return ids->top_ids && ids->top_log_probs ? NULL : rk_method_call_no_memory(f->call);
}

static struct rk_status *allocate(struct forward *f)
{
    for (int i = 0; has_output(f->kind, i); i++) {
        double **array = &f->arrays.of[f->kind->outputs[i].output];

        if (!f->is_wanted[i])
            continue;
        *array = rk_method_call_alloc(f->call, f->rows.num_tokens, sizeof(double));
        if (!*array)
            return rk_method_call_no_memory(f->call);
    }
    return allocate_ids(f);
}

static struct rk_status *add_id_columns(struct forward *f)
{
    const int64_t shape[] = {f->rows.num_rows, f->rows.num_responses, f->arrays.ids.num_ids};
    struct rk_batch *output = f->call->job->output;
    void *ids, *log_probs;

    if (!f->kind->top_ids)
        return NULL;
    RK_TRY(rk_batch_add_dense(output, f->kind->top_ids, RK_DTYPE_I32, 3, shape, &ids));
    RK_TRY(rk_batch_add_dense(output, f->kind->top_log_probs, RK_DTYPE_F32, 3, shape, &log_probs));
    f->top_ids = ids;
    f->top_log_probs = log_probs;
    for (int64_t i = 0; i < shape[0] * shape[1] * shape[2]; i++)
        f->top_ids[i] = -1;
    return NULL;
}

/* Columns of experts that passes are given, and that they return. */
static struct rk_status *prepare_routes(struct forward *f)
{
    struct rk_model_replay replay = rk_model_get_replay(f->call->role->model);
    bool compares = replay.compares && rk_batch_find(f->call->job->input, "routed_experts");

    if (!f->kind->replays_routes)
        return NULL;
    if (replay.mode == RK_REPLAY_R3 || (compares && f->kind->records_routes))
        RK_TRY(rk_rows_find_routes(&f->rows, f->call));
    if (replay.mode == RK_REPLAY_R3)
        RK_TRY(rk_rows_replay_routes(&f->rows, f->call));
    f->records_routes = f->kind->records_routes && (replay.mode == RK_REPLAY_R2 || f->rows.routes.column);
    return f->records_routes ? rk_route_record_init(&f->routes, f->call, &f->rows) : NULL;
}

/* With R2 the update takes what this model chooses. */
static struct rk_status *add_routes(struct forward *f)
{
    struct rk_model_routes routes = rk_model_get_routes(f->call->role->model);
    const int64_t shape[] = {f->rows.num_rows, f->rows.seq_columns, routes.num_layers,
                             routes.num_experts_per_tok};
    void *data;

    if (!f->records_routes || rk_model_get_replay(f->call->role->model).mode != RK_REPLAY_R2)
        return NULL;
    RK_TRY(rk_batch_add_dense(f->call->job->output, "routed_experts", RK_DTYPE_I16, 4, shape, &data));
    f->routed_experts = data;
    return NULL;
}

static struct rk_status *add_columns(struct forward *f)
{
    const int64_t shape[] = {f->rows.num_rows, f->rows.num_responses};
    int32_t rank = f->kind->is_at_last_token ? 1 : 2;
    struct rk_job_call *job = f->call->job;

    RK_TRY(rk_batch_create(&job->output, f->rows.num_rows));
    for (int i = 0; has_output(f->kind, i); i++) {
        void *data;

        if (!f->is_wanted[i])
            continue;
        RK_TRY(rk_batch_add_dense(job->output, f->kind->outputs[i].column, RK_DTYPE_F32, rank, shape, &data));
        f->columns[i] = data;
    }
    RK_TRY(add_routes(f));
    return add_id_columns(f);
}

static struct rk_status *prepare(struct forward *f)
{
    f->is_pipeline = rk_mesh_axis_size(f->call->role->mesh, RK_AXIS_PP) > 1;
    RK_TRY(read_options(f));
    RK_TRY(rk_rows_open(&f->rows, f->call, rk_model_get_config(f->call->role->model), NULL));
    RK_TRY(rk_method_call_check_plan(f->call, &f->rows, false));
    RK_TRY(prepare_routes(f));
    RK_TRY(allocate(f));
    return f->call->job->collect ? add_columns(f) : NULL;
}

static struct rk_status *bind_micro_batch(void *user, int64_t m, struct rk_forward_micro *micro)
{
    struct forward *f = user;
    const struct rk_micro_batch *rows = rk_method_call_micro_batch(f->call, f->mini, (int32_t)m);

    if (!f->is_pipeline)
        RK_TRY(rk_method_call_check_cancel(f->call));
    rk_rows_pack(&f->rows, rows);
    if (f->kind->is_at_last_token)
        rk_rows_mark_last(&f->rows, rows);
    *micro = (struct rk_forward_micro){.packed = &f->rows.packed,
                                       .temperature = f->temperature,
                                       .hooks = &f->call->hooks,
                                       .out = &f->arrays,
                                       .chosen_experts =
                                           f->records_routes ? rk_route_record_at(&f->routes, m) : NULL};
    return NULL;
}

static struct rk_status *take_outputs(void *user, int64_t m)
{
    struct forward *f = user;

    for (int i = 0; has_output(f->kind, i); i++) {
        if (f->columns[i])
            rk_rows_scatter(&f->rows, 1, f->arrays.of[f->kind->outputs[i].output], f->columns[i]);
    }
    if (f->top_ids) {
        rk_rows_scatter_ids(&f->rows, f->arrays.ids.num_ids, f->arrays.ids.top_ids, f->top_ids);
        rk_rows_scatter(&f->rows, f->arrays.ids.num_ids, f->arrays.ids.top_log_probs, f->top_log_probs);
    }
    rk_method_call_progress(f->call, f->call->job->method->name, (uint64_t)m + 1,
                            (uint64_t)f->mini->num_micro);
    return NULL;
}

/* The stages of a pipeline reach a micro-batch at different times: within a schedule the engine checks
 * for a cancel. */
static struct rk_status *run_mini_batch(struct forward *f, const struct rk_mini_batch *mini)
{
    f->mini = mini;
    if (f->is_pipeline)
        RK_TRY(rk_method_call_check_cancel(f->call));
    if (f->records_routes)
        rk_route_record_begin(&f->routes, f->call, &f->rows, mini);
    RK_TRY(rk_model_forward_all(f->call->role->model, &(struct rk_forward_work){.count = mini->num_micro,
                                                                                .bind = bind_micro_batch,
                                                                                .done = take_outputs,
                                                                                .user = f}));
    return f->records_routes ? rk_route_record_end(&f->routes, f->call, &f->rows, mini, f->routed_experts)
                             : NULL;
}

struct rk_status *rk_forward_run(struct rk_method_call *call, const struct rk_forward_kind *kind)
{
    struct forward f = {.call = call, .kind = kind};

    RK_TRY(rk_method_call_begin(call, prepare(&f)));
    for (int64_t i = 0; i < call->job->plan.num_mini; i++)
        RK_TRY(run_mini_batch(&f, &call->job->plan.mini[i]));
    if (f.records_routes && f.rows.routes.column)
        rk_route_record_report(&f.routes, call->job);
    rk_method_call_add_memory_metrics(call);
    return NULL;
}
