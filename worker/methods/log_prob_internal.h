/* What compute_log_prob and compute_ref_log_prob share. */
#ifndef RK_LOG_PROB_INTERNAL_H
#define RK_LOG_PROB_INTERNAL_H

#include "worker/worker_internal.h"

/* Runs the plan forward and returns the columns. entropy_column NULL: no entropy in the result. */
struct rk_status *rk_log_prob_run(struct rk_call *call, const char *log_prob_column,
                                  const char *entropy_column) RK_NODISCARD;
/* The option `temperature`, checked. */
struct rk_status *rk_temperature_read(double *out, const struct rk_json *options) RK_NODISCARD;

#endif
