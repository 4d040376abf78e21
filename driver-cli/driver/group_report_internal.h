/* Which daemons of a group hold which parts of its models, and what to do when some do not: a rank was lost,
 * or its process started again with nothing. Made from what GetStatus answers. */
#ifndef RK_GROUP_REPORT_INTERNAL_H
#define RK_GROUP_REPORT_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "driver-cli/rk_driver.h"

typedef enum rk_part {
    RK_PART_NONE,        /* no model of the group has a part here */
    RK_PART_HELD,        /* holds a part of every model that it should */
    RK_PART_MISSING,     /* answers, but lacks the part of some model that the others hold */
    RK_PART_UNREACHABLE, /* does not answer */
    RK_PART_COUNT
} rk_part_t;
const char *rk_part_name(rk_part_t part); /* "held" */

typedef enum rk_group_action {
    RK_GROUP_ACTION_NONE,
    RK_GROUP_ACTION_START_DAEMONS, /* those that do not answer; then run the job again */
    RK_GROUP_ACTION_RUN_AGAIN,     /* the parts of the others are gone: load them again, from a checkpoint */
    RK_GROUP_ACTION_COUNT
} rk_group_action_t;
const char *rk_group_action_name(rk_group_action_t action); /* "start_daemons" */

struct rk_group_report {
    bool is_incomplete; /* some daemons hold parts, and others lack theirs */
    rk_group_action_t action;
    int32_t num_workers;
    rk_part_t *parts; /* [num_workers], owned */
    bool *in_replica; /* [num_workers], owned: of the daemons that hold the actor's weights once, complete */
    bool has_replica;
    char *text; /* owned: a line for each daemon, then what to do */
};

/* workers[num_workers] in rank order, as rk_driver_get_status fills them. */
struct rk_status *rk_group_report_make(struct rk_group_report *out, const struct rk_driver_worker *workers,
                                       int32_t num_workers) RK_NODISCARD;
void rk_group_report_fini(struct rk_group_report *report);
/* Takes an error that comes from the state of the group: adds the report and the reason GROUP_INCOMPLETE when
 * the group is incomplete, else returns it as it is. The code stays. */
struct rk_status *rk_group_report_explain(struct rk_status *st, const struct rk_driver_worker *workers,
                                          int32_t num_workers) RK_NODISCARD;

#endif
