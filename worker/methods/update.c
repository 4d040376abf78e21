/* The body of the update methods.
 *
 * The plan carries the global denominators, so each rank adds its part of one sum: gradients over
 * micro-batches and replicas, and metrics, which the collecting rank of each replica reports with reduce
 * "sum". */
#include "worker/methods/update_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "worker/methods/forward_internal.h"

/* State of the steps; all of it is created before the first collective. */
struct update {
    struct rk_method_call *call;
    const struct rk_update_kind *kind;
    struct rk_rows rows;
    struct rk_objective objective;
    double temperature;
    const float *columns[RK_LOSS_COLUMN_COUNT]; /* [B, R] of the batch; NULL if the call has none */
    /* Packed, room for all tokens of the call. */
    double *weight, *token_weight, *seq_weight, *packed[RK_LOSS_COLUMN_COUNT];
    uint8_t *mask;
    /* If the objective reads ids: columns, and packed, num_ids per token. */
    struct rk_id_columns id_columns;
    int32_t *ids;
    double *teacher_log_probs;
    float *log_probs;                 /* [B, R] of the result; NULL: it has none */
    const struct rk_mini_batch *mini; /* current */
    int64_t num_first;                /* mini-batches of the first pass over the rows */
    bool is_first_pass;               /* the current mini-batch belongs to the first pass */
    bool is_pipeline;                 /* the model is a stage of one */
    double grad_norm_sum;
    struct rk_router_metrics routers;
    bool *is_empty;                 /* [num_mini] has no counted token */
    int64_t num_skipped, num_empty; /* skipped steps */
};

static struct rk_status *find_columns(struct update *u)
{
    const struct rk_objective *objective = &u->objective;

    for (int i = 0; i < RK_LOSS_COLUMN_COUNT; i++) {
        const char *name = rk_loss_column_name((rk_loss_column_t)i);
        bool is_required = objective->columns & RK_LOSS_BIT(i);

        if (!is_required && !(objective->optional_columns & RK_LOSS_BIT(i)))
            continue;
        RK_TRY(rk_rows_find(&u->rows, u->call, name, is_required, &u->columns[i]));
        RK_TRY(rk_rows_check_finite(&u->rows, name, 1, u->columns[i]));
    }
    if (objective->num_ids == 0)
        return NULL;
    RK_TRY(rk_method_call_check_num_ids(u->call, objective->num_ids, true));
    return rk_rows_find_ids(&u->rows, u->call, objective->num_ids, &u->id_columns);
}

static struct rk_status *allocate_ids(struct update *u)
{
    int64_t count = u->rows.num_tokens * u->objective.num_ids;

    if (u->objective.num_ids == 0)
        return NULL;
    u->ids = rk_method_call_alloc(u->call, count, sizeof(*u->ids));
    u->teacher_log_probs = rk_method_call_alloc(u->call, count, sizeof(*u->teacher_log_probs));
    return u->ids && u->teacher_log_probs ? NULL : rk_method_call_no_memory(u->call);
}

static struct rk_status *allocate(struct update *u)
{
    int64_t n = u->rows.num_tokens, num_arrays = 3;
    double *memory;

    for (int i = 0; i < RK_LOSS_COLUMN_COUNT; i++)
        num_arrays += u->columns[i] != NULL;
    memory = rk_method_call_alloc(u->call, num_arrays * n, sizeof(double));
    u->mask = rk_method_call_alloc(u->call, n, sizeof(*u->mask));
    u->is_empty = rk_method_call_alloc(u->call, u->call->job->plan.num_mini, sizeof(*u->is_empty));
    if (!memory || !u->mask || !u->is_empty)
        return rk_method_call_no_memory(u->call);
    u->weight = memory;
    u->token_weight = memory + n;
    u->seq_weight = memory + 2 * n;
    memory += 3 * n;
    for (int i = 0; i < RK_LOSS_COLUMN_COUNT; i++) {
        if (!u->columns[i])
            continue;
        u->packed[i] = memory;
        memory += n;
    }
    return allocate_ids(u);
}

static bool has_whole_pairs(const struct rk_micro_batch *micro)
{
    for (int64_t i = 0; i + 1 < micro->num_rows; i += 2)
        if (micro->rows[i] % 2 != 0 || micro->rows[i + 1] != micro->rows[i] + 1)
            return false;
    return micro->num_rows % 2 == 0;
}

/* A plan may put the rows of a chunk into micro-batches in any order; a pair must stay together. */
static struct rk_status *check_pairs(const struct update *u)
{
    const struct rk_plan *plan = &u->call->job->plan;

    for (int64_t m = 0; m < plan->num_mini; m++)
        for (int32_t i = 0; i < plan->mini[m].num_micro; i++)
            if (!has_whole_pairs(rk_method_call_micro_batch(u->call, &plan->mini[m], i)))
                return RK_FAIL_REASON(
                    RK_INVALID_ARGUMENT, "BAD_FIELD",
                    "plan: mini-batch %lld, micro-batch %d: expected pairs of rows 2i, 2i + 1", (long long)m,
                    (int)i);
    return NULL;
}

/* Mini-batches until every row was in one; replicas have the same number. */
static int64_t count_first_pass(const struct rk_plan *plan, int64_t num_rows)
{
    int64_t count = 0, seen = 0;

    while (count < plan->num_mini && seen < num_rows) {
        for (int32_t m = 0; m < plan->mini[count].num_micro; m++)
            seen += plan->mini[count].micro[m].num_rows;
        count++;
    }
    return count;
}

struct rk_status *rk_update_check_role(const struct rk_role *role)
{
    if (role->trainer)
        return NULL;
    return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "NO_MODEL",
                          "role '%s' has no optimizer: it was made with megatron.forward_only, or its other "
                          "replicas were lost",
                          role->name);
}

struct rk_status *rk_update_check_no_gradients(const struct rk_role *role, const char *what)
{
    if (!role->has_gradients)
        return NULL;
    return RK_FAIL(RK_FAILED_PRECONDITION,
                   "role '%s' has accumulated gradients of forward_backward; call optim_step before %s",
                   role->name, what);
}

/* Checks of a kind that takes no step, and of one that does. */
static struct rk_status *check_kind(const struct update *u)
{
    const struct rk_job_call *job = u->call->job;

    if (!u->kind->only_accumulates)
        return rk_update_check_no_gradients(u->call->role, job->method->name);
    if (job->plan.num_mini == 1)
        return NULL;
    return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "plan: expected one mini-batch for %s, got %lld",
                          job->method->name, (long long)job->plan.num_mini);
}

static struct rk_status *add_log_probs(struct update *u)
{
    const int64_t shape[] = {u->rows.num_rows, u->rows.num_responses};
    struct rk_job_call *job = u->call->job;
    void *data;

    if (!u->kind->only_accumulates || !job->collect)
        return NULL;
    RK_TRY(rk_batch_create(&job->output, shape[0]));
    RK_TRY(rk_batch_add_dense(job->output, "log_probs", RK_DTYPE_F32, 2, shape, &data));
    u->log_probs = data;
    return NULL;
}

static struct rk_status *prepare_routes(struct update *u)
{
    if (!u->kind->replays_routes || rk_model_get_replay(u->call->role->model).mode == RK_REPLAY_DISABLED)
        return NULL;
    RK_TRY(rk_rows_find_routes(&u->rows, u->call));
    return rk_rows_replay_routes(&u->rows, u->call);
}

static struct rk_status *prepare(struct update *u)
{
    const struct rk_role *role = u->call->role;
    const struct rk_json *options = u->call->job->options;

    RK_TRY(rk_update_check_role(role));
    u->is_pipeline = rk_mesh_axis_size(role->mesh, RK_AXIS_PP) > 1;
    RK_TRY(check_kind(u));
    u->temperature = 1.0;
    if (u->kind->has_temperature)
        RK_TRY(rk_temperature_read(&u->temperature, options));
    RK_TRY(rk_objective_read(&u->objective, u->kind->objective, options));
    RK_TRY(rk_rows_open(&u->rows, u->call, rk_model_get_config(role->model), u->kind->mask_column));
    RK_TRY(rk_method_call_check_plan(u->call, &u->rows, true));
    RK_TRY(prepare_routes(u));
    if (u->kind->has_pairs)
        RK_TRY(check_pairs(u));
    u->num_first = count_first_pass(&u->call->job->plan, u->rows.num_rows);
    RK_TRY(find_columns(u));
    if (u->objective.loss_scale_factor == 0.0)
        u->objective.loss_scale_factor = (double)u->rows.num_responses;
    RK_TRY(allocate(u));
    return add_log_probs(u);
}

static void gather_columns(struct update *u)
{
    const struct rk_packed *packed = &u->rows.packed;
    const struct rk_loss_denominators denominators = {
        .num_tokens = (double)u->mini->num_tokens,
        .num_sequences = (double)u->mini->num_sequences,
        .scale = u->objective.loss_scale_factor,
    };

    for (int64_t t = 0; t < packed->num_tokens; t++)
        u->mask[t] = packed->labels[t] != RK_LABEL_NONE;
    rk_loss_weights(u->weight, u->objective.agg_mode, u->mask, packed->cu_seqlens, packed->num_seqs,
                    &denominators);
    rk_loss_weights(u->token_weight, RK_AGG_TOKEN_MEAN, u->mask, packed->cu_seqlens, packed->num_seqs,
                    &denominators);
    rk_loss_weights(u->seq_weight, RK_AGG_SEQ_MEAN_TOKEN_MEAN, u->mask, packed->cu_seqlens, packed->num_seqs,
                    &denominators);
    for (int i = 0; i < RK_LOSS_COLUMN_COUNT; i++) {
        if (u->columns[i])
            rk_rows_gather(&u->rows, 1, u->columns[i], u->packed[i]);
    }
    if (u->ids) {
        rk_rows_gather_ids(&u->rows, u->objective.num_ids, u->id_columns.ids, u->ids);
        rk_rows_gather(&u->rows, u->objective.num_ids, u->id_columns.log_probs, u->teacher_log_probs);
    }
}

/* Between forward and backward of a micro-batch. */
static struct rk_status *loss_fn(void *user, const struct rk_head_arrays *outputs,
                                 const struct rk_head_arrays *grads)
{
    struct update *u = user;
    const struct rk_packed *packed = &u->rows.packed;
    struct rk_loss_in in = {
        .num_tokens = packed->num_tokens,
        .num_seqs = packed->num_seqs,
        .cu_seqlens = packed->cu_seqlens,
        .mask = u->mask,
        .weight = u->weight,
        .token_weight = u->token_weight,
        .seq_weight = u->seq_weight,
        .num_sequences = (double)u->mini->num_sequences,
        .agg_mode = u->objective.agg_mode,
        .is_first_pass = u->is_first_pass,
        .ids = {.num_ids = u->objective.num_ids,
                .ids = u->ids,
                .teacher_log_probs = u->teacher_log_probs,
                .log_probs = outputs->ids.log_probs,
                .top_ids = outputs->ids.top_ids},
    };

    for (int i = 0; i < RK_HEAD_OUTPUT_COUNT; i++)
        in.outputs[i] = outputs->of[i];
    for (int i = 0; i < RK_LOSS_COLUMN_COUNT; i++)
        in.columns[i] = u->packed[i];
    rk_objective_run(&u->objective, &in, grads);
    if (u->log_probs)
        rk_rows_scatter(&u->rows, 1, outputs->of[RK_HEAD_LOG_PROBS], u->log_probs);
    return NULL;
}

static struct rk_status *bind_micro_batch(void *user, int64_t m, struct rk_train_micro *micro)
{
    struct update *u = user;
    const struct rk_plan *plan = &u->call->job->plan;

    if (!u->is_pipeline)
        RK_TRY(rk_method_call_check_cancel(u->call));
    rk_method_call_progress(u->call, u->call->job->method->name, (uint64_t)(u->mini - plan->mini),
                            (uint64_t)plan->num_mini);
    rk_rows_pack(&u->rows, rk_method_call_micro_batch(u->call, u->mini, (int32_t)m));
    gather_columns(u);
    *micro = (struct rk_train_micro){
        .packed = &u->rows.packed,
        .temperature = u->temperature,
        .outputs = u->objective.outputs,
        .measured = u->objective.outputs & ~u->objective.differentiated,
        .num_ids = u->objective.num_ids,
        .ids = u->ids,
        .loss_fn = loss_fn,
        .user = u,
        .hooks = &u->call->hooks,
    };
    return NULL;
}

/* An interrupted step may leave some parameters new and others old. */
struct rk_status *rk_update_step(struct rk_method_call *call, const struct rk_optim_config *config,
                                 struct rk_step_stats *stats)
{
    struct rk_status *st;

    *stats = (struct rk_step_stats){0};
    st = rk_trainer_step_with(call->role->trainer, config, stats);
    if (st && stats->has_begun)
        call->role->weights->is_suspect = true;
    return st;
}

static struct rk_status *run_step(struct update *u)
{
    struct rk_optim_config config = rk_trainer_get_config(u->call->role->trainer);
    struct rk_step_stats stats;

    RK_TRY(rk_update_step(u->call, &config, &stats));
    if (stats.was_skipped) {
        u->num_skipped++;
        return NULL;
    }
    u->grad_norm_sum += stats.grad_norm;
    rk_router_metrics_add(&u->routers, &stats.routers);
    return NULL;
}

static struct rk_status *run_micro_batches(struct update *u, int64_t i)
{
    const struct rk_plan *plan = &u->call->job->plan;

    u->mini = &plan->mini[i];
    u->is_first_pass = i < u->num_first;
    /* Stages reach a micro-batch at different times: within a schedule the engine checks for a cancel. */
    if (u->is_pipeline)
        RK_TRY(rk_method_call_check_cancel(u->call));
    RK_TRY(rk_trainer_micro_batches(u->call->role->trainer,
                                    &(struct rk_train_work){.count = u->mini->num_micro,
                                                            .is_last = !u->kind->only_accumulates,
                                                            .bind = bind_micro_batch,
                                                            .user = u}));
    return NULL;
}

/* Sums the number of tokens that the loss has kept, which is known only after the passes. */
static struct rk_status *count_kept(struct update *u)
{
    double *count = rk_objective_count(&u->objective);

    if (!count)
        return NULL;
    RK_TRY(rk_engine_sum(rk_mesh_comms_group(u->call->role->comms, RK_GROUP_DP), u->call->worker->stream,
                         u->call->worker->agree_scratch, count, 1));
    rk_objective_end_mini_batch(&u->objective, (double)u->mini->num_tokens);
    return NULL;
}

static struct rk_status *run_mini_batch(struct update *u, int64_t i)
{
    if (u->is_empty[i]) { /* a step without gradients would still decay the weights and move the momentum */
        u->num_empty++;
        return NULL;
    }
    RK_TRY(rk_trainer_begin(u->call->role->trainer));
    RK_TRY(run_micro_batches(u, i));
    RK_TRY(count_kept(u));
    return run_step(u);
}

static struct rk_status *run_steps(struct update *u)
{
    for (int64_t i = 0; i < u->call->job->plan.num_mini; i++)
        RK_TRY(run_mini_batch(u, i));
    rk_trainer_advance_lr(u->call->role->trainer);
    return NULL;
}

/* If it is interrupted, on all ranks, the gradients accumulated before are lost as well. */
static struct rk_status *accumulate(struct update *u)
{
    struct rk_role *role = u->call->role;

    if (!role->has_gradients)
        RK_TRY(rk_trainer_begin(role->trainer));
    role->has_gradients = false;
    RK_TRY(run_micro_batches(u, 0));
    role->has_gradients = true;
    return NULL;
}

/* --- metrics: means over the mini-batches. Every replica reports its part of the sums. --- */

/* A name with its own group ("rewards/chosen") is used unchanged. */
static void add_metric(const struct update *u, const char *name, double value, const char *reduce)
{
    char path[64];

    snprintf(path, sizeof(path), "%s/%s", u->kind->prefix, name);
    rk_job_add_metric(u->call->job, strchr(name, '/') ? name : path, value, reduce);
}

static void report_term(const struct update *u, const struct rk_loss_term *term)
{
    double n = (double)u->call->job->plan.num_mini;

    for (int32_t i = 0; i < term->loss->ops->num_metrics; i++) {
        const struct rk_loss_metric *metric = &term->loss->ops->metrics[i];
        double value = term->metrics[i];

        if (term->loss->ops->has_metric && !term->loss->ops->has_metric(term->config, i))
            continue;
        switch (metric->reduce) {
        case RK_LOSS_SUM:
            add_metric(u, metric->name, value / n, "sum");
            break;
        case RK_LOSS_KEPT:
            add_metric(u, metric->name, term->kept[i] / n, "sum");
            break;
        case RK_LOSS_COUNT:
            break;
        case RK_LOSS_FIRST:
            add_metric(u, metric->name, value / (double)u->num_first, "sum");
            break;
        case RK_LOSS_MAX:
            if (!isinf(value))
                add_metric(u, metric->name, value, "max");
            break;
        case RK_LOSS_MIN:
            if (!isinf(value))
                add_metric(u, metric->name, value, "min");
            break;
        case RK_LOSS_CONFIG:
            add_metric(u, metric->name, term->config[metric->offset / sizeof(double)], "last");
            break;
        }
    }
}

/* If the loss is not already a metric of its row, as in SFT. */
static void report_loss(const struct update *u)
{
    static const char name[] = "loss";
    double n = (double)u->call->job->plan.num_mini;

    if (strcmp(u->objective.terms[0].loss->ops->metrics[0].name, name) != 0)
        add_metric(u, name, rk_objective_loss(&u->objective) / n, "sum");
}

static void report(const struct update *u)
{
    double n = (double)u->call->job->plan.num_mini;
    double num_applied = n - (double)(u->num_skipped + u->num_empty);

    rk_method_call_add_memory_metrics(u->call);
    if (!rk_method_call_is_collector(u->call))
        return;
    for (int32_t i = 0; i < u->objective.num_terms; i++)
        report_term(u, &u->objective.terms[i]);
    if (u->kind->only_accumulates)
        return;
    report_loss(u);
    if (num_applied > 0.0)
        add_metric(u, "grad_norm", u->grad_norm_sum / num_applied, "mean");
    rk_router_metrics_report(&u->routers, u->call->job, u->kind->prefix);
    add_metric(u, "lr", rk_trainer_get_lr(u->call->role->trainer), "last"); /* of the next call, as in verl */
    add_metric(u, "skipped_steps", (double)u->num_skipped, "max");
    add_metric(u, "empty_steps", (double)u->num_empty, "max");
}

struct rk_status *rk_update_run(struct rk_method_call *call, const struct rk_update_kind *kind)
{
    struct update u = {.call = call, .kind = kind};

    RK_TRY(rk_method_call_agree(call, prepare(&u)));
    RK_TRY(rk_method_call_begin(call, rk_method_call_check_denominators(call, &u.rows, u.is_empty)));
    RK_TRY(kind->only_accumulates ? accumulate(&u) : run_steps(&u));
    report(&u);
    return NULL;
}
