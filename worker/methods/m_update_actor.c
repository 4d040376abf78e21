/* update_actor: one optimizer step a mini-batch of the plan, one step of the learning-rate schedule in all.
 *
 * The plan carries the global denominators, so each rank adds its part of one sum: gradients over
 * micro-batches and replicas, and metrics, which the collecting rank of each replica reports with reduce
 * "sum". */
#include "worker/methods/methods_internal.h"

#include <string.h>

#include "worker/methods/log_prob_internal.h"

/* Everything that the steps need; all of it exists before the first collective. */
struct update {
    struct rk_call *call;
    struct rk_rows rows;
    struct rk_loss_config loss;
    double temperature;
    /* Columns [B, R] of the batch; NULL where the call has none. */
    const float *old_log_probs, *advantages, *ref_log_prob, *is_weights;
    /* Packed, room for all tokens of the call. */
    double *weight, *token_weight, *packed_old, *packed_advantages, *packed_ref, *packed_is_weights;
    uint8_t *mask;
    const struct rk_mini_batch *mini; /* current */
    struct rk_loss_metrics metrics;   /* sums over micro-batches and mini-batches */
    double grad_norm_sum;
    bool *is_empty;                 /* [num_mini] no token counts */
    int64_t num_skipped, num_empty; /* steps that were not taken */
};

static struct rk_status *allocate(struct update *u)
{
    double **const arrays[] = {&u->weight,     &u->token_weight,     &u->packed_old, &u->packed_advantages,
                               &u->packed_ref, &u->packed_is_weights};
    int64_t n = u->rows.num_tokens;
    double *memory = rk_call_alloc(u->call, (int64_t)RK_ARRAY_LEN(arrays) * n, sizeof(double));

    u->mask = rk_call_alloc(u->call, n, sizeof(*u->mask));
    u->is_empty = rk_call_alloc(u->call, u->call->job->plan.num_mini, sizeof(*u->is_empty));
    if (!memory || !u->mask || !u->is_empty)
        return rk_call_no_memory(u->call);
    for (size_t i = 0; i < RK_ARRAY_LEN(arrays); i++)
        *arrays[i] = memory + (int64_t)i * n;
    return NULL;
}

static struct rk_status *prepare(struct update *u)
{
    const struct rk_role *role = u->call->role;
    const struct rk_json *options = u->call->job->options;

    if (!role->is_training)
        return RK_FAIL_REASON(
            RK_FAILED_PRECONDITION, "NO_MODEL",
            "role '%s' has no optimizer: it was made with megatron.forward_only, or its other "
            "replicas were lost",
            role->name);
    RK_TRY(rk_temperature_read(&u->temperature, options));
    RK_TRY(rk_loss_config_read(&u->loss, options));
    RK_TRY(rk_rows_open(&u->rows, u->call, rk_model_get_config(role->model), "response_mask"));
    RK_TRY(rk_call_check_plan(u->call, &u->rows, true));
    RK_TRY(rk_rows_find(&u->rows, u->call, "old_log_probs", true, &u->old_log_probs));
    RK_TRY(rk_rows_find(&u->rows, u->call, "advantages", true, &u->advantages));
    RK_TRY(rk_rows_find(&u->rows, u->call, "ref_log_prob", u->loss.use_kl_loss, &u->ref_log_prob));
    RK_TRY(rk_rows_find(&u->rows, u->call, "rollout_is_weights", false, &u->is_weights));
    RK_TRY(rk_rows_check_finite(&u->rows, "old_log_probs", u->old_log_probs));
    RK_TRY(rk_rows_check_finite(&u->rows, "advantages", u->advantages));
    RK_TRY(rk_rows_check_finite(&u->rows, "ref_log_prob", u->loss.use_kl_loss ? u->ref_log_prob : NULL));
    RK_TRY(rk_rows_check_finite(&u->rows, "rollout_is_weights", u->is_weights));
    if (u->loss.loss_scale_factor == 0.0)
        u->loss.loss_scale_factor = (double)u->rows.num_responses;
    return allocate(u);
}

static void gather_columns(struct update *u)
{
    const struct rk_packed *packed = &u->rows.packed;
    const struct rk_loss_denominators denominators = {
        .num_tokens = (double)u->mini->num_tokens,
        .num_sequences = (double)u->mini->num_sequences,
        .scale = u->loss.loss_scale_factor,
    };

    for (int64_t t = 0; t < packed->num_tokens; t++)
        u->mask[t] = packed->labels[t] != RK_LABEL_NONE;
    rk_loss_weights(u->weight, u->loss.agg_mode, u->mask, packed->cu_seqlens, packed->num_seqs,
                    &denominators);
    rk_loss_weights(u->token_weight, RK_AGG_TOKEN_MEAN, u->mask, packed->cu_seqlens, packed->num_seqs,
                    &denominators);
    rk_rows_gather(&u->rows, u->old_log_probs, u->packed_old);
    rk_rows_gather(&u->rows, u->advantages, u->packed_advantages);
    if (u->ref_log_prob)
        rk_rows_gather(&u->rows, u->ref_log_prob, u->packed_ref);
    if (u->is_weights)
        rk_rows_gather(&u->rows, u->is_weights, u->packed_is_weights);
}

/* Between forward and backward of a micro-batch. */
static struct rk_status *loss_fn(void *user, const struct rk_head_arrays *outputs,
                                 const struct rk_head_arrays *grads)
{
    struct update *u = user;
    const struct rk_packed *packed = &u->rows.packed;
    const struct rk_loss_in in = {
        .num_tokens = packed->num_tokens,
        .num_seqs = packed->num_seqs,
        .cu_seqlens = packed->cu_seqlens,
        .mask = u->mask,
        .weight = u->weight,
        .token_weight = u->token_weight,
        .log_probs = outputs->of[RK_HEAD_LOG_PROBS],
        .entropy = outputs->of[RK_HEAD_ENTROPY],
        .old_log_probs = u->packed_old,
        .advantages = u->packed_advantages,
        .ref_log_prob = u->loss.use_kl_loss ? u->packed_ref : NULL,
        .rollout_is_weights = u->is_weights ? u->packed_is_weights : NULL,
    };
    struct rk_loss_out out = {
        .dlog_probs = grads->of[RK_HEAD_LOG_PROBS],
        .dentropy = grads->of[RK_HEAD_ENTROPY],
        .metrics = u->metrics,
    };

    rk_loss_forward_backward(&out, &in, &u->loss);
    u->metrics = out.metrics;
    return NULL;
}

static struct rk_status *run_micro_batch(struct update *u, int32_t m)
{
    const struct rk_train_micro micro = {
        .packed = &u->rows.packed,
        .temperature = u->temperature,
        .outputs = RK_HEAD_BIT(RK_HEAD_LOG_PROBS) |
                   (u->loss.entropy_coeff != 0.0 ? RK_HEAD_BIT(RK_HEAD_ENTROPY) : 0),
        .is_last = m == u->mini->num_micro - 1,
        .loss_fn = loss_fn,
        .user = u,
        .hooks = &u->call->hooks,
    };

    RK_TRY(rk_call_check_cancel(u->call));
    rk_rows_pack(&u->rows, rk_call_micro_batch(u->call, u->mini, m));
    gather_columns(u);
    return rk_train_micro_batch(u->call->role->model, &micro);
}

/* A step that ended in the middle may leave some parameters new and others old: the role is suspect then. */
static struct rk_status *run_step(struct update *u)
{
    struct rk_step_stats stats = {0};
    struct rk_status *st = rk_train_step(u->call->role->model, &stats);

    if (st && stats.has_begun)
        u->call->role->is_suspect = true;
    RK_TRY(st);
    if (stats.was_skipped)
        u->num_skipped++;
    else
        u->grad_norm_sum += stats.grad_norm;
    return NULL;
}

static struct rk_status *run_mini_batch(struct update *u, int64_t i)
{
    const struct rk_plan *plan = &u->call->job->plan;

    if (u->is_empty[i]) { /* a step without gradients would still decay the weights and move the momentum */
        u->num_empty++;
        return NULL;
    }
    u->mini = &plan->mini[i];
    RK_TRY(rk_train_begin(u->call->role->model));
    for (int32_t m = 0; m < u->mini->num_micro; m++) {
        RK_TRY(run_micro_batch(u, m));
        rk_call_progress(u->call, "update_actor", (uint64_t)i, (uint64_t)plan->num_mini);
    }
    return run_step(u);
}

/* Means over the mini-batches. Every replica reports its part of the sums. */
static void report(const struct update *u, double lr)
{
    struct rk_job *job = u->call->job;
    const struct rk_loss_metrics *metrics = &u->metrics;
    double n = (double)job->plan.num_mini, num_applied = n - (double)(u->num_skipped + u->num_empty);

    rk_call_add_memory_metrics(u->call);
    if (!rk_call_is_collector(u->call))
        return;
    rk_job_add_metric(job, "actor/pg_loss", metrics->pg_loss / n, "sum");
    rk_job_add_metric(job, "actor/pg_clipfrac", metrics->pg_clipfrac / n, "sum");
    rk_job_add_metric(job, "actor/pg_clipfrac_lower", metrics->pg_clipfrac_lower / n, "sum");
    rk_job_add_metric(job, "actor/ppo_kl", metrics->ppo_kl / n, "sum");
    if (u->loss.use_kl_loss) {
        rk_job_add_metric(job, "actor/kl_loss", metrics->kl_loss / n, "sum");
        rk_job_add_metric(job, "actor/kl_coef", u->loss.kl_loss_coef, "last");
    }
    if (u->loss.entropy_coeff != 0.0)
        rk_job_add_metric(job, "actor/entropy_loss", metrics->entropy_loss / n, "sum");
    if (num_applied > 0.0)
        rk_job_add_metric(job, "actor/grad_norm", u->grad_norm_sum / num_applied, "mean");
    rk_job_add_metric(job, "actor/lr", lr, "last");
    rk_job_add_metric(job, "actor/skipped_steps", (double)u->num_skipped, "max");
    rk_job_add_metric(job, "actor/empty_steps", (double)u->num_empty, "max");
}

struct rk_status *rk_m_update_actor(struct rk_call *call)
{
    struct update u = {.call = call};
    double lr;

    RK_TRY(rk_call_agree(call, prepare(&u)));
    RK_TRY(rk_call_begin(call, rk_call_check_denominators(call, &u.rows, u.is_empty)));
    lr = rk_train_get_lr(call->role->model);
    for (int64_t i = 0; i < call->job->plan.num_mini; i++)
        RK_TRY(run_mini_batch(&u, i));
    rk_train_advance_lr(call->role->model);
    report(&u, lr);
    return NULL;
}
