/* Private to engine/pipeline: one run of a schedule, and its parts in their own files. */
#ifndef RK_PIPELINE_RUN_INTERNAL_H
#define RK_PIPELINE_RUN_INTERNAL_H

#include "engine/pipeline/pipeline_internal.h"

struct rk_pipeline_slot {
    struct rk_pass_memory memory;
    struct rk_event *has_arrived; /* recorded behind the message that was received last */
    struct rk_event *is_free;     /* recorded when the slot was given back */
    bool was_used, is_taken;
    int32_t micro_batch, chunk;
    struct rk_micro micro;
    rk_tensor_t in, out;   /* of the forward step */
    rk_tensor_t dout, din; /* of the backward step */
};

struct rk_pipeline_run {
    struct rk_model *model;
    const struct rk_pipeline_work *work;
    struct rk_pipeline_schedule schedule;
    int32_t stage;
    struct rk_pipeline_step *steps;
    int64_t num_steps;
    const struct rk_engine_hooks *hooks; /* of the micro-batch that was bound last; may be NULL */
    bool is_cancelled;                   /* the rest of the messages is exchanged without computing */
    bool has_asked_stage;
    struct rk_pipeline_message *messages;
    int64_t num_messages, next_message;
    int64_t step;          /* the current one, or the one that the messages go in front of */
    int64_t first_message; /* of those that are exchanged now; next_message: none are */
    int64_t bound;         /* the micro-batch that work->bind was called for last; -1: none */
};

/* --- slots.c --- */

/* Whether the fault point is hit. Dry runs are no runs: they do not count. */
bool rk_run_is_hit(const struct rk_pipeline_run *run, const char *fault);
/* Describes the i-th micro-batch, and keeps its hooks. */
struct rk_status *rk_run_bind(struct rk_pipeline_run *run, int64_t i,
                              struct rk_micro_desc *desc) RK_NODISCARD;
/* A free slot, whose micro-batch has begun. */
struct rk_status *rk_run_take_slot(struct rk_pipeline_run *run, struct rk_pipeline_step step,
                                   struct rk_pipeline_slot **out) RK_NODISCARD;
/* That of the step's micro-batch and chunk; NULL: none is taken. */
struct rk_pipeline_slot *rk_run_find_slot(const struct rk_pipeline_run *run, struct rk_pipeline_step step);
/* Another micro-batch may have it when the stream has passed this. */
struct rk_status *rk_slot_give_back(struct rk_pipeline_slot *slot, struct rk_stream *stream) RK_NODISCARD;

/* --- messages.c --- */

/* Makes the stream of messages, once a model. Collective over the stages. */
struct rk_status *rk_run_open_messages(struct rk_model *model) RK_NODISCARD;
/* All messages in front of step `before`, together, behind the steps so far. */
struct rk_status *rk_run_exchange(struct rk_pipeline_run *run, int64_t before) RK_NODISCARD;
/* The model's stream waits for all messages so far. */
struct rk_status *rk_run_wait_for_messages(struct rk_model *model) RK_NODISCARD;

/* --- cancel.c --- */

/* In front of a forward step: the ranks that share its collectives. The other stages need not know: they get
 * zeros instead of results. */
struct rk_status *rk_run_ask_replica(struct rk_pipeline_run *run) RK_NODISCARD;
/* In front of the first backward step in which sums over the replicas may begin. All forward steps are over,
 * so that nothing changes the answer any more. */
struct rk_status *rk_run_ask_stage(struct rk_pipeline_run *run) RK_NODISCARD;
/* Behind the last step: all ranks. CANCELLED on all of them, or on none. */
struct rk_status *rk_run_ask_all(struct rk_pipeline_run *run) RK_NODISCARD;
/* In the places of the steps of a cancelled run. */
struct rk_status *rk_run_skip_forward(const struct rk_pipeline_run *run, struct rk_pipeline_slot *slot,
                                      bool has_head) RK_NODISCARD;
struct rk_status *rk_run_skip_backward(const struct rk_pipeline_run *run, struct rk_pipeline_slot *slot,
                                       bool has_embedding) RK_NODISCARD;

#endif
