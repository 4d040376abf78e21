/* Private to engine/pipeline: the state of one run of a schedule, shared by the files of the executor. */
#ifndef RK_PIPELINE_RUN_INTERNAL_H
#define RK_PIPELINE_RUN_INTERNAL_H

#include "engine/pipeline/pipeline.h"

struct rk_pipeline_run {
    struct rk_model *model;
    const struct rk_pipeline_work *work;
    struct rk_pipeline_schedule schedule;
    int32_t stage;
    struct rk_pipeline_step *steps;
    int64_t num_steps;
    const struct rk_engine_hooks *hooks; /* of the last bound micro-batch; may be NULL */
    bool is_cancelled;                   /* the remaining messages are exchanged without computing */
    bool has_asked_stage;
    struct rk_pipeline_message *messages;
    int64_t num_messages, next_message;
    int64_t step;          /* the current step, or the step before which the messages are exchanged */
    int64_t first_message; /* messages that are exchanged now; next_message: none */
    int64_t bound;         /* the last micro-batch passed to work->bind; -1: none */
};

/* --- run_slots.c --- */

/* Whether the fault point is hit. Dry runs do not count. */
bool rk_run_is_hit(const struct rk_pipeline_run *run, const char *fault);
/* Describes the i-th micro-batch and stores its hooks. */
struct rk_status *rk_run_bind(struct rk_pipeline_run *run, int64_t i,
                              struct rk_micro_desc *desc) RK_NODISCARD;
/* A free slot whose micro-batch has begun. */
struct rk_status *rk_run_take_slot(struct rk_pipeline_run *run, struct rk_pipeline_step step,
                                   struct rk_slot **out) RK_NODISCARD;
/* The slot of the step's micro-batch and chunk; NULL: none is taken. */
struct rk_slot *rk_run_find_slot(const struct rk_pipeline_run *run, struct rk_pipeline_step step);
/* Releases the slot: another micro-batch may use it after the work enqueued on the stream so far. */
struct rk_status *rk_slot_give_back(struct rk_slot *slot, struct rk_stream *stream) RK_NODISCARD;

/* --- messages.c --- */

/* Creates the stream of messages, once per model. Collective over the stages. */
struct rk_status *rk_run_open_messages(struct rk_model *model) RK_NODISCARD;
/* Exchanges all messages listed before step `before` together, after the steps so far. */
struct rk_status *rk_run_exchange(struct rk_pipeline_run *run, int64_t before) RK_NODISCARD;
/* Makes the model's stream wait for all messages so far. */
struct rk_status *rk_run_wait_for_messages(struct rk_model *model) RK_NODISCARD;

/* --- cancel.c --- */

/* Before a forward step: asks the ranks that share its collectives. The other stages need not know: they
 * receive zeros instead of results. */
struct rk_status *rk_run_ask_replica(struct rk_pipeline_run *run) RK_NODISCARD;
/* Before the first backward step in which reductions over the replicas may begin. All forward steps are done,
 * so the answer is final. */
struct rk_status *rk_run_ask_stage(struct rk_pipeline_run *run) RK_NODISCARD;
/* After the last step: asks all ranks. CANCELLED on all ranks, or on none. */
struct rk_status *rk_run_ask_all(struct rk_pipeline_run *run) RK_NODISCARD;
/* Replace the steps of a cancelled run. */
struct rk_status *rk_run_skip_forward(const struct rk_pipeline_run *run, struct rk_slot *slot,
                                      bool has_head) RK_NODISCARD;
struct rk_status *rk_run_skip_backward(const struct rk_pipeline_run *run, struct rk_slot *slot,
                                       bool has_embedding) RK_NODISCARD;

#endif
