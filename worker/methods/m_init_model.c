/* init_model: builds the role's model from a Hugging Face directory, at random from a configuration, or over
 * the weights of another role of equal mesh. All device memory of the role is planned before
 * anything is allocated, and allocated at once. A previous model of the role is freed only after all ranks
 * have checked their options and made their memory plans, so that a mistyped option does not lose a trained
 * model. After that all ranks succeed, or none has a model. With plan_only it ends with the plan and changes
 * nothing. */
#include "worker/methods/methods.h"

#include <stdio.h>

#include "base/rk_log.h"
#include "worker/methods/model_build_internal.h"

/* Memory of collectives is allocated before any rank reads its free memory. */
static struct rk_status *prepare(struct rk_model_build *build)
{
    RK_TRY(rk_model_build_prepare(build));
    return build->plan_only ? NULL : rk_comm_reserve_ordered_sum(rk_model_build_sums(build));
}

static struct rk_status *fit_cache(struct rk_model_build *build)
{
    if (build->rollout_config.gpu_memory_utilization <= 0.0)
        return NULL;
    return rk_method_call_agree(build->call, rk_model_build_fit_cache(build));
}

static struct rk_status *build_all(struct rk_model_build *build)
{
    struct rk_method_call *call = build->call;

    RK_TRY(rk_method_call_agree(call, prepare(build)));
    if (build->plan_only) {
        RK_TRY(fit_cache(build));
        return rk_model_build_report(build);
    }
    rk_role_drop_model(call->worker, call->role);
    RK_TRY(fit_cache(build));
    RK_TRY(rk_method_call_agree(call, rk_model_build_take(build)));
    return rk_method_call_agree(call, rk_model_build_fill(build));
}

/* The role takes ownership of the result. */
static void adopt(struct rk_role *role, struct rk_model_build *build)
{
    role->model = build->model;
    role->trainer = build->trainer;
    role->saver = rk_saver_create(role->model);
    role->rollout = build->rollout;
    role->weights = build->owner ? build->owner->weights : rk_weights_create(role);
    role->weights->are_missing |= build->lacks_weights;
    role->offload = build->owner ? build->owner->offload & RK_PART_PARAMETERS : build->desc.model.offload;
    role->memory_plan = build->plan;
    role->limits = build->desc.limits;
    role->layout = build->desc.model.layout;
    build->model = NULL;
    build->trainer = NULL;
    build->rollout = NULL;
}

struct rk_status *rk_m_init_model(struct rk_method_call *call)
{
    struct rk_role *role = call->role;
    struct rk_model_build build = {.call = call};
    struct rk_status *st;

    if (!rk_mesh_comms_is_member(role->comms))
        return NULL;
    st = build_all(&build);
    if (!st && !build.plan_only) {
        adopt(role, &build);
        rk_role_wake(call->worker, role);
        RK_INFO("model of role %s: %lld parameters on mesh %s, %llu bytes planned", role->name,
                (long long)rk_model_num_elements(role->model), rk_mesh_text(role->mesh),
                (unsigned long long)rk_memory_total_bytes(&role->memory_plan.memory));
    }
    rk_model_build_fini(&build);
    return st;
}
