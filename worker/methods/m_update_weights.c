/* update_weights: copies the actor's weights to the rollout, for any two meshes. It runs on the ranks of
 * both. No-op for a rollout that shares the actor's weights. The copies are compared before the
 * rollout may use them; after a failure it may not use them until the next update_weights. */
#include "worker/methods/methods.h"

#include <string.h>

struct options {
    RK_RESHARD_KNOBS(RK_KNOB_FIELD, , , )
};
static const struct rk_knob knobs[] = {RK_RESHARD_KNOBS(RK_KNOB_ROW, struct options, , )};

static struct rk_status *check_role(const struct rk_role *role)
{
    if (!rk_mesh_comms_is_member(role->comms))
        return NULL;
    if (!role->model)
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "NO_MODEL",
                              "role '%s' has no model; call init_model before update_weights", role->name);
    if (role->weights->is_suspect && !role->kind->generates)
        return RK_FAIL_REASON(
            RK_FAILED_PRECONDITION, "NO_MODEL",
            "role '%s': an optimizer step was interrupted, its weights may be mixed; call init_model first",
            role->name);
    return NULL;
}

/* Loads offloaded parameters. */
static struct rk_status *bring(const struct rk_role *role, bool writes)
{
    return role->model ? rk_model_onload(role->model, RK_PART_PARAMETERS, writes) : NULL;
}

static struct rk_status *send_away(const struct rk_role *role)
{
    if (!role->model || !rk_role_moves(role) || !(role->offload & ~rk_model_offloaded(role->model)))
        return NULL;
    return rk_model_offload(role->model, role->offload, role->has_gradients);
}

static struct rk_status *check(struct rk_method_call *call, const struct rk_role *source,
                               struct options *options)
{
    if (atomic_load(&call->worker->is_cancel_requested))
        return RK_FAIL(RK_CANCELLED, "cancelled before it began");
    RK_TRY(rk_knobs_read(options, knobs, RK_ARRAY_LEN(knobs), call->job->options));
    RK_TRY(check_role(source));
    return check_role(call->role);
}

static struct rk_status *move(struct rk_method_call *call, const struct rk_role *source, int64_t bucket_bytes,
                              struct rk_reshard_result *result)
{
    struct rk_role *rollout = call->role;
    struct rk_status *st = rk_reshard_run(result, &(struct rk_reshard_args){
                                                      .struct_size = sizeof(struct rk_reshard_args),
                                                      .link = call->worker->weight_update.link,
                                                      .source = source->model,
                                                      .destination = rollout->model,
                                                      .stream = call->worker->stream,
                                                      .scratch = call->worker->agree_scratch,
                                                      .bucket_bytes = bucket_bytes,
                                                      .hooks = &call->hooks,
                                                  });

    if (rollout->model && result->has_begun)
        rollout->weights->is_suspect = st != NULL;
    if (rollout->model && !st)
        rollout->weights->are_missing = false;
    if (result->is_known_to_peers)
        call->peers_wait = false;
    return st;
}

static struct rk_status *move_present(struct rk_method_call *call, const struct rk_role *source,
                                      int64_t bucket_bytes, struct rk_reshard_result *result)
{
    struct rk_status *st = bring(source, false);

    if (!st)
        st = bring(call->role, true);
    st = RK_WRAP(rk_method_call_agree(call, st), "copying parameters to the device");
    if (st)
        call->peers_wait = false;
    else
        st = move(call, source, bucket_bytes, result);
    return rk_status_first(st, send_away(source));
}

/* Bytes of this rank; the sum over the ranks is the transferred total. */
static struct rk_status *report(struct rk_method_call *call, const struct rk_reshard_result *result)
{
    struct rk_job_call *job = call->job;

    RK_TRY(rk_batch_create(&job->output, 0));
    rk_batch_set_meta(job->output, "rank", rk_json_new_int(call->worker->rank));
    rk_batch_set_meta(job->output, "weight_version", rk_json_new_int((int64_t)result->weight_version));
    rk_batch_set_meta(job->output, "sent_bytes", rk_json_new_int((int64_t)result->traffic.sent_bytes));
    rk_batch_set_meta(job->output, "received_bytes",
                      rk_json_new_int((int64_t)result->traffic.received_bytes));
    rk_batch_set_meta(job->output, "copied_bytes", rk_json_new_int((int64_t)result->traffic.copied_bytes));
    rk_job_add_metric(job, "perf/update_weights_bytes", (double)result->traffic.received_bytes, "sum");
    return NULL;
}

struct rk_status *rk_m_update_weights(struct rk_method_call *call)
{
    const struct rk_weight_update *update = &call->worker->weight_update;
    const struct rk_role *source = update->source;
    struct rk_reshard_result result = {0};
    struct options options;

    if (!update->link)
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "NOT_CONFIGURED",
                              "update_weights moves weights from role 'actor', which has no mesh");
    if (!rk_reshard_link_is_member(update->link))
        return NULL;
    call->group = rk_reshard_link_group(update->link);
    RK_TRY(rk_method_call_begin(call, check(call, source, &options)));
    if (call->role->weights && !rk_role_owns_weights(call->role))
        result.weight_version = rk_model_weight_version(call->role->model);
    else
        RK_TRY(move_present(call, source, options.bucket_megabytes * RK_BYTES_PER_MEGABYTE, &result));
    return report(call, &result);
}
