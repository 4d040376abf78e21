/* The checkpoints of a run: their directory, the one from which it resumes, and the driver's own
 * state.
 *
 *   DIR/lock                                       held by the driver that saves here
 *   DIR/latest_checkpointed_iteration.txt          written when a checkpoint is complete
 *   DIR/global_step_<N>/actor/                     written by the daemons, as that of each role that trains
 *   DIR/global_step_<N>/driver/MANIFEST.json       written by the driver (docs/formats.md) */
#ifndef RK_CHECKPOINTS_H
#define RK_CHECKPOINTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config/rk_config.h"
#include "base/rk_json.h"
#include "base/rk_str.h"
#include "rl/rk_flows.h"
#include "proto/limits.h"

#define RK_CHECKPOINT_ACTOR  "actor"
#define RK_CHECKPOINT_DRIVER "driver"
#define RK_RUN_CHECKPOINTS   "checkpoints" /* of a run directory, without trainer.default_local_dir */

/* --- the driver's state (run_state.c) --- */

/* The position after a step that has taken one batch; steps that filter groups may take more. */
struct rk_run_position rk_run_position_after(const struct rk_config *job, int64_t num_rows, int64_t step);

/* The identity of a run, for the state: resolved configuration, checksums of the data and of the tokenizer,
 * config.json of the model. Reads the data files. The caller frees it. */
struct rk_status *rk_run_identity_make(struct rk_json **out, const struct rk_config *job, const char *job_dir,
                                       const struct rk_flow_inputs *inputs) RK_NODISCARD;
/* The state after `step`: the identity, the position, the controllers. The caller frees it. */
struct rk_json *rk_run_state_make(const struct rk_json *identity, const struct rk_config *job,
                                  const struct rk_run_position *position, const struct rk_kl_ctrl *kl_ctrl,
                                  int64_t step);
/* The coefficient of an adaptive controller of the KL; NAN if the run had none. DATA_LOSS if it is missing
 * from the state. */
struct rk_status *rk_run_state_kl_coef(double *out, const struct rk_json *state) RK_NODISCARD;
/* The position in the state; in a run that filters groups it does not follow from the step. DATA_LOSS for an
 * impossible one. */
struct rk_status *rk_run_position_read(struct rk_run_position *out, const struct rk_json *state) RK_NODISCARD;
/* Whether a run of that identity can resume from the state: INVALID_ARGUMENT lists all differences that
 * change the meaning of its steps (model, data, their order, the samples of a prompt), one per line. Other
 * differences are appended to `changes`, one per line. DATA_LOSS for an incomplete state.
 */
struct rk_status *rk_run_state_check(const struct rk_json *state, const struct rk_json *identity,
                                     const struct rk_run_position *position, int64_t step,
                                     struct rk_str *changes) RK_NODISCARD;

/* --- the directory (checkpoints.c) --- */
struct rk_checkpoints {
    char *dir;         /* absolute; NULL: nothing is saved or loaded */
    int64_t save_freq; /* steps; 0: never; INT64_MAX: only after epochs and at the end */
    bool after_each_epoch;
    int64_t max_to_keep;                 /* 0: all */
    bool is_async;                       /* actor.checkpoint.async_save */
    const struct rk_json *save_contents; /* borrowed from the job */
    struct rk_json *load_contents;
    const char *parts[RK_LIMIT_ROLES + 2]; /* the parts of a step: one for each role that trains, and the
                                            * driver's; ends with NULL */
    const char *roles[RK_LIMIT_ROLES + 1]; /* the roles that train: the first parts */
    int lock;                              /* -1: not held */
    struct rk_json *identity;              /* of this run, with its run_dir */
    char *resume_path;                     /* DIR/global_step_<N>; NULL: from the beginning */
    int64_t resume_step;                   /* N; 0: from the beginning */
    double resume_kl_coef;                 /* of an adaptive controller of the KL; NAN: none was saved */
    struct rk_run_position position;       /* after that step */
    char *run_dir;                         /* of the resumed run; NULL: unknown */
    struct rk_str changes;                 /* changes of the configuration since then, one per line */
};

struct rk_checkpoints_args {
    const struct rk_config *job;
    const char *job_dir;
    const char *run_dir; /* --run-dir; NULL: not given */
    const struct rk_flow_inputs *inputs;
};

/* Reads the keys, takes the lock when the run saves, removes directories left by crashes, finds the
 * checkpoint to resume from and checks that the run may. FAILED_PRECONDITION (reason HELD) names the driver
 * that has the directory; INVALID_ARGUMENT and NOT_FOUND the key. `out` is to be released after a failure
 * too. */
struct rk_status *rk_checkpoints_open(struct rk_checkpoints *out,
                                      const struct rk_checkpoints_args *args) RK_NODISCARD;
void rk_checkpoints_fini(struct rk_checkpoints *checkpoints);
/* Writes the driver's part of the checkpoint of `step`. */
struct rk_status *rk_checkpoints_write_state(const struct rk_checkpoints *checkpoints,
                                             const struct rk_json *state, int64_t step) RK_NODISCARD;
/* Makes the checkpoint of `step`, whose parts are all written, the latest. DATA_LOSS or NOT_FOUND if a part
 * is missing. */
struct rk_status *rk_checkpoints_complete(const struct rk_checkpoints *checkpoints,
                                          int64_t step) RK_NODISCARD;
/* Removes the oldest checkpoints except the `keep` newest, the one named by the tracker and the one from
 * which the run resumed. Checkpoints without a driver's part belong to others, and are kept. */
struct rk_status *rk_checkpoints_prune(const struct rk_checkpoints *checkpoints, int64_t keep) RK_NODISCARD;

#endif
