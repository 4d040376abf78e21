/* Replays recorded calls on other daemons: the recordings of all ranks are merged into one order (order.c),
 * which must agree (agree.c), each call is sent with the inputs of each rank (run.c), and the results are
 * compared with the recorded ones (compare.c). */
#ifndef RK_CMD_REPLAY_H
#define RK_CMD_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_array.h"
#include "driver/rk_call_parts.h"

/* --- order.c --- */
/* One Configure or one call, on all ranks that took part. */
struct rk_replay_step {
    rk_recording_kind_t kind;                 /* CONFIGURE or CALL */
    const struct rk_recording_item **items;   /* [num_ranks]; NULL: this rank took no part */
    const struct rk_recording_item **results; /* [num_ranks], of a CALL; NULL: none was recorded */
};

struct rk_replay_order {
    int32_t num_ranks;
    struct rk_recording **recordings; /* [num_ranks], by rank; borrowed */
    RK_ARRAY(struct rk_replay_step) steps;
};

/* Takes recordings in any order. INVALID_ARGUMENT (RECORD_INCOMPLETE) when ranks of the world are missing or
 * given twice, or the recordings are not of one run; errors of agree.c. */
struct rk_status *rk_replay_order_make(struct rk_replay_order *out, struct rk_recording **recordings,
                                       int32_t num_recordings) RK_NODISCARD;
void rk_replay_order_fini(struct rk_replay_order *order);

/* --- agree.c --- */
/* DATA_LOSS (RECORD_DAMAGED): a result without a known code, or a call that is recorded twice. */
struct rk_status *rk_replay_check_entries(const struct rk_recording *recording) RK_NODISCARD;
/* DATA_LOSS (RECORD_DISAGREES) names the first call that is missing or different on a rank, and the rank. */
struct rk_status *rk_replay_check_steps(const struct rk_replay_order *order) RK_NODISCARD;
rk_code_t rk_replay_code_of(const struct rk_recording_item *result);
/* Ends by external events, which a replay does not repeat. */
bool rk_replay_is_from_outside(rk_code_t code);

/* --- compare.c --- */
typedef enum rk_difference_kind {
    RK_DIFFERENCE_TENSOR, /* values of an output column */
    RK_DIFFERENCE_SHAPE,  /* an output column is missing, or has another dtype or shape */
    RK_DIFFERENCE_TEXT,   /* strings of an output column */
    RK_DIFFERENCE_METRIC,
    RK_DIFFERENCE_STATUS, /* of the call: another code or reason */
    RK_DIFFERENCE_COUNT
} rk_difference_kind_t;
const char *rk_difference_kind_name(rk_difference_kind_t kind); /* "tensor" */

struct rk_replay_difference {
    rk_difference_kind_t kind;
    int32_t rank;
    char name[RK_LIMIT_NAME_BYTES + 1]; /* of the column or metric; "" for the status */
    int64_t num_different, num_values;
    double max_abs;            /* |replayed - recorded|; infinite where only one is a number */
    double max_rel;            /* of the same over the larger of the two absolute values: 0 to 2 */
    double recorded, replayed; /* where max_abs is */
};

struct rk_replay_tolerance {
    double abs, rel; /* equal: |replayed - recorded| <= abs + rel * |recorded|; 0 and 0: the same bits */
};

struct rk_replay_differences {
    RK_ARRAY(struct rk_replay_difference) items;
};

/* Compares the replayed result of one rank (`result` and its output, NULL: none) with the recorded entry. */
struct rk_status *rk_replay_compare(struct rk_replay_differences *out, int32_t rank,
                                    const struct rk_recording *recording,
                                    const struct rk_recording_item *recorded,
                                    const struct rk_execute_result *result, const struct rk_batch *output,
                                    const struct rk_replay_tolerance *tolerance) RK_NODISCARD;
/* Times and memory, which differ between runs. */
bool rk_replay_is_measured(const char *metric);

/* --- run.c --- */
struct rk_replay_args {
    struct rk_driver *driver; /* of order->num_ranks daemons, not claimed yet */
    const struct rk_replay_order *order;
    struct rk_replay_tolerance tolerance;
    const char *const *options; /* "ROLE.METHOD.KEY=VALUE": changed options; NULL-terminated, may be NULL */
    bool writes_files;          /* run export_hf, save_checkpoint and wait_checkpoint as well */
    void (*on_call)(void *user, int64_t number, const char *name); /* optional; before each call */
    void *user;
};

typedef enum rk_replay_end {
    RK_REPLAY_ALL,        /* every recorded call was run */
    RK_REPLAY_DIFFERENCE, /* the first call that differs is the last that was run */
    RK_REPLAY_STOPPED     /* an external event ended the recorded call (a lost rank, a cancel) */
} rk_replay_end_t;

struct rk_replay_report {
    rk_replay_end_t end;
    int64_t num_calls, num_skipped; /* run; skipped because they write files */
    int64_t number;                 /* of the call that the end is about, from 1 */
    char name[2 * RK_LIMIT_NAME_BYTES];
    char recorded_end[RK_LIMIT_DOC_BYTES]; /* STOPPED: code, reason and message of the recorded call */
    bool is_unanswered;                    /* the last call has no recorded result: the daemon ended in it */
    struct rk_replay_differences differences;
};

/* Claims, and runs until the end, the first difference, or an error outside of the calls. */
struct rk_status *rk_replay_run(struct rk_replay_report *out, const struct rk_replay_args *args) RK_NODISCARD;
void rk_replay_report_fini(struct rk_replay_report *report);

#endif
