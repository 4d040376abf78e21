/* Functions that the forward-only methods share. */
#ifndef RK_FORWARD_INTERNAL_H
#define RK_FORWARD_INTERNAL_H

#include "worker/worker_internal.h"

#define RK_FORWARD_OUTPUTS_MAX 4

/* An output of the head, and the column of F32 that returns it. */
struct rk_forward_output {
    rk_head_output_t output;
    const char *column;
    const char *option; /* bool that requests it; NULL: always */
};

struct rk_forward_kind {
    struct rk_forward_output outputs[RK_FORWARD_OUTPUTS_MAX]; /* ended by a column of NULL */
    /* Columns [B, R, K] of the most likely ids, I32, and of their log-probs, F32; K is the option topk. NULL:
     * none, then both are. */
    const char *top_ids, *top_log_probs;
    bool has_temperature; /* among the options */
    /* The outputs are [B], at the last token of each row, instead of [B, R], at the positions before the
     * response tokens. */
    bool is_at_last_token;
    /* Router replay: passes are given the experts of the rollout (R3); passes of the actor also record what
     * its routers choose. */
    bool replays_routes, records_routes;
};

/* Runs the plan and returns the columns: a value for every real response token, 0 on padding (ids: -1); or
 * one for every row, 0 for a row without tokens. */
struct rk_status *rk_forward_run(struct rk_method_call *call,
                                 const struct rk_forward_kind *kind) RK_NODISCARD;
/* The option `temperature`, checked. */
struct rk_status *rk_temperature_read(double *out, const struct rk_json *options) RK_NODISCARD;

#endif
