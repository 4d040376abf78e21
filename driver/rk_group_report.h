/* The parts of a group's models that each daemon holds, and what to do when some are missing: a rank was
 * lost, or its process was restarted. Made from the answers of GetStatus. */
#ifndef RK_GROUP_REPORT_H
#define RK_GROUP_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "driver/rk_driver.h"

typedef enum rk_part {
    RK_PART_NONE,        /* no model of the group needs a part here */
    RK_PART_HELD,        /* holds all its parts */
    RK_PART_MISSING,     /* answers, but lacks its part of a model that others hold */
    RK_PART_UNREACHABLE, /* does not answer */
    RK_PART_COUNT
} rk_part_t;
const char *rk_part_name(rk_part_t part); /* "held" */

typedef enum rk_group_action {
    RK_GROUP_ACTION_NONE,
    RK_GROUP_ACTION_START_DAEMONS, /* start the daemons that do not answer, then run the job again */
    RK_GROUP_ACTION_RUN_AGAIN,     /* missing parts must be loaded again, from a checkpoint */
    RK_GROUP_ACTION_COUNT
} rk_group_action_t;
const char *rk_group_action_name(rk_group_action_t action); /* "start_daemons" */

struct rk_group_report {
    bool is_incomplete; /* some daemons hold parts, and others lack theirs */
    rk_group_action_t action;
    int32_t num_workers;
    rk_part_t *parts; /* [num_workers], owned */
    bool *in_replica; /* [num_workers], owned: daemons that together hold the actor's complete weights */
    bool has_replica;
    char *text; /* owned: a line for each daemon, then what to do */
};

/* workers[num_workers] in rank order, as rk_driver_get_status fills them. */
struct rk_status *rk_group_report_make(struct rk_group_report *out, const struct rk_driver_worker *workers,
                                       int32_t num_workers) RK_NODISCARD;
void rk_group_report_fini(struct rk_group_report *report);
/* Takes an error caused by the state of the group: adds the report and the reason GROUP_INCOMPLETE when
 * the group is incomplete, else returns it unchanged. The code is kept. */
struct rk_status *rk_group_report_explain(struct rk_status *st, const struct rk_driver_worker *workers,
                                          int32_t num_workers) RK_NODISCARD;

#endif
