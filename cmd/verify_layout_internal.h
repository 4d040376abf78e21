/* rankctl verify-layout: the jobs of both layouts, and the output of the comparison. */
#ifndef RK_VERIFY_LAYOUT_CMD_INTERNAL_H
#define RK_VERIFY_LAYOUT_CMD_INTERNAL_H

#include "base/config/rk_config.h"
#include "cmd/verify/verify.h"

/* --- the jobs (verify_jobs.c) --- */

struct rk_verify_options {
    const char *dtype;    /* "float32", "bfloat16" */
    int64_t num_rows;     /* rows of the data; 0: the rows of one optimizer step */
    int64_t num_layers;   /* 0: the model's */
    uint64_t seed;        /* of advantages and returns */
    const char *work_dir; /* of config.json with num_layers */
};

/* Keys of a job, as on the command line. */
struct rk_verify_keys {
    RK_ARRAY(char *) items; /* owned */
};
void rk_verify_keys_fini(struct rk_verify_keys *keys);
void rk_verify_keys_add(struct rk_verify_keys *keys, const char *fmt, ...) RK_PRINTF(2, 3);

/* Changes of both layouts: one optimizer step over num_rows rows, in the dtype; gradients that are kept; a
 * learning rate above 0; with num_layers random weights. `job`: the user's. */
struct rk_status *rk_verify_add_common(struct rk_verify_keys *keys, const struct rk_config *job,
                                       const char *job_dir,
                                       const struct rk_verify_options *options) RK_NODISCARD;

/* A layout that the job is compared with: every role on all its ranks. */
struct rk_verify_reference {
    int32_t tp, pp;
};
/* From one rank to the largest that is smaller than the job's own. */
#define RK_VERIFY_REFERENCES_MAX 32
int32_t rk_verify_references(struct rk_verify_reference out[RK_VERIFY_REFERENCES_MAX],
                             const struct rk_config *job, int32_t world_size);
/* Its keys instead of the job's layout: no other parallelism, and one sequence per micro-batch. */
void rk_verify_add_reference(struct rk_verify_keys *keys, const struct rk_config *job,
                             const struct rk_verify_reference *reference);

/* --- output (verify_report.c) --- */

struct rk_verify_report {
    const char *job;
    const char *dtype;
    char *layout, *reference; /* "tp=2 pp=2 on 4 ranks"; owned */
    struct rk_verify_measure measure;
    struct rk_verify_rows rows;
    int64_t num_sequences;
    const char *cause; /* static; NULL: not known */
    struct rk_str advice;
};

void rk_verify_report_fini(struct rk_verify_report *report);
void rk_verify_report_print(const struct rk_verify_report *report);
struct rk_json *rk_verify_report_json(const struct rk_verify_report *report);
/* DATA_LOSS (reason LAYOUTS_DIFFER) names the first and the worst row and the cause; NULL: all agree. */
struct rk_status *rk_verify_report_verdict(const struct rk_verify_report *report) RK_NODISCARD;

#endif
