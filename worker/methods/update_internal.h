/* Functions that the update methods share: one optimizer step per mini-batch of the plan, one step of the
 * learning-rate schedule in total; and the same split into two calls. */
#ifndef RK_UPDATE_INTERNAL_H
#define RK_UPDATE_INTERNAL_H

#include "worker/worker_internal.h"

/* The objective of an update method, and its input. */
struct rk_update_kind {
    rk_objective_kind_t objective;
    const char *mask_column; /* [B, R]: 1 on tokens that the loss covers */
    const char *prefix;      /* of its metrics: "actor" */
    bool has_temperature;    /* among its options */
    bool has_pairs;          /* rows 2i and 2i + 1 of a chunk follow one another in a micro-batch */
    bool replays_routes;     /* with router replay, passes are given the experts of the batch */
    bool only_accumulates;   /* no step: adds to the gradients of earlier calls, returns log-probs */
};

/* Statistics of the routers of layers of experts over the steps of a call. */
struct rk_router_metrics {
    struct rk_router_stats sum; /* over the steps; of max_load_of_layers the maximum */
    int64_t num_steps;
};
void rk_router_metrics_add(struct rk_router_metrics *metrics, const struct rk_router_stats *stats);
/* Means over the steps; nothing without experts. */
void rk_router_metrics_report(const struct rk_router_metrics *metrics, struct rk_job_call *job,
                              const char *prefix);

/* Runs the plan. Metrics are means over its mini-batches: loss, metrics of the objective's terms and of
 * routers, and grad_norm, lr, skipped_steps, empty_steps. */
struct rk_status *rk_update_run(struct rk_method_call *call, const struct rk_update_kind *kind) RK_NODISCARD;

/* Whether the role trains. */
struct rk_status *rk_update_check_role(const struct rk_role *role) RK_NODISCARD;
/* FAILED_PRECONDITION while gradients are accumulated for optim_step, which `what` would omit or lose. */
struct rk_status *rk_update_check_no_gradients(const struct rk_role *role, const char *what) RK_NODISCARD;
/* Collective: an optimizer step. An interrupted step marks the role's weights as possibly mixed. */
struct rk_status *rk_update_step(struct rk_method_call *call, const struct rk_optim_config *config,
                                 struct rk_step_stats *stats) RK_NODISCARD;

#endif
