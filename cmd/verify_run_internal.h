/* rankctl verify-layout: the state of a verification, from the command line to the comparison. */
#ifndef RK_VERIFY_RUN_INTERNAL_H
#define RK_VERIFY_RUN_INTERNAL_H

#include "cmd/cmd_internal.h"
#include "cmd/verify_layout_internal.h"
#include "rl/rk_flows.h"

/* One of the two layouts. */
struct rk_verify_side {
    struct rk_config *job;
    char *dir; /* of its logs and checkpoint; NULL: not made */
    struct rk_local *local;
    struct rk_driver *driver;
    struct rk_flow_context flow;
};

struct rk_verification {
    struct rk_cli *cli;
    char *job_dir;
    struct rk_hosts hosts; /* count 0 with --local */
    int32_t world_size;
    struct rk_verify_options options;
    struct rk_verify_keys keys; /* of both sides */
    struct rk_flow_inputs inputs;
    char *work_dir; /* NULL: not made */
    struct rk_verify_side layout, reference;
    struct rk_verify_report report;
};

/* --- the arguments (verify_inputs.c) --- */

/* The command line, the job for the daemons of its layout, and a directory for both layouts. Failures
 * are usage errors. */
struct rk_status *rk_verification_read(struct rk_verification *v) RK_NODISCARD;
/* The user's keys, then the keys of both sides, then `more` (NULL: none); the last one of a name counts. */
struct rk_status *rk_verification_load_job(struct rk_config **out, const struct rk_verification *v,
                                           const struct rk_verify_keys *more) RK_NODISCARD;
/* `st`: the result. When a daemon failed, the logs of the daemons are kept: the message names them. */
void rk_verification_remove_dir(struct rk_verification *v, const struct rk_status *st);

/* --- the daemons of a side (verify_sides.c) --- */

/* Starts or claims the daemons and builds the models of side->job; `name`: name of its directory, must stay.
 */
struct rk_status *rk_verify_side_open(struct rk_verification *v, struct rk_verify_side *side, char *name,
                                      int32_t world_size) RK_NODISCARD;
/* Results stay in side->flow. Returns `st`, with the status of daemons that ended unexpectedly. */
struct rk_status *rk_verify_side_close(struct rk_verify_side *side, struct rk_status *st) RK_NODISCARD;
void rk_verify_side_fini(struct rk_verify_side *side);
/* "actor tp=2 pp=2 on 4 ranks, rollout tp=2 dp=2 on 4 ranks": the actor, and the roles that have another
 * mesh. rk_free it. */
char *rk_verify_side_describe(const struct rk_verify_side *side);

/* --- the comparison (verify_compare.c): rows of v->report --- */

/* Compares log-probs, values and scores, before the reference's replace the layout's. */
void rk_verification_compare_outputs(struct rk_verification *v);
/* Metrics, gradients and parameters; then judges all rows and determines the cause of differences. */
struct rk_status *rk_verification_compare(struct rk_verification *v) RK_NODISCARD;

#endif
