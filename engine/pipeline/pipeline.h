/* Private to engine/: runs micro-batches through the stages of a model's pipeline. A mesh without a pipeline
 * is one stage, with one micro-batch at a time in the model's own memory. */
#ifndef RK_ENGINE_PIPELINE_H
#define RK_ENGINE_PIPELINE_H

#include "engine/model/model.h"

/* Work to do with micro-batches. Every rank of the mesh has the same number of micro-batches, with the same
 * sizes on all stages of a replica; they may be empty. */
struct rk_pipeline_work {
    int64_t count;
    bool trains; /* a backward pass follows each forward pass */
    /* Describes the i-th micro-batch. Pointers in the description are used only until the next call. With a
     * pipeline it is called more than once for each, in any order. */
    struct rk_status *(*bind)(void *user, int64_t i, struct rk_micro_desc *desc);
    /* Called when the outputs of the head are ready, on ranks with the head; the i-th micro-batch is
     * bound. */
    struct rk_status *(*handle_outputs)(void *user, int64_t i, struct rk_micro *micro);
    /* Called before a backward pass; `is_last`: it is the last one through these blocks. Only with
     * `trains`. */
    struct rk_status *(*prepare_backward)(void *user, struct rk_micro *micro, bool is_last);
    struct rk_status *(*finish_backward)(void *user); /* behind it */
    /* May be NULL: as in struct rk_train_work. */
    struct rk_status *(*on_step)(void *user, struct rk_pipeline_step step, bool is_done);
    void *user;
};

/* Collective over the mesh. OUT_OF_RANGE and other errors in micro-batches are returned before anything runs.
 * Waits for the stream.
 *
 * With a pipeline, the hooks of the micro-batches have is_cancelled on all ranks or on none. A rank that is
 * asked to stop runs the rest of the schedule without computing, so that no stage blocks on its messages, and
 * all ranks of the mesh return CANCELLED together: accumulated gradients are then invalid. */
struct rk_status *rk_pipeline_run(struct rk_model *model, const struct rk_pipeline_work *work) RK_NODISCARD;

#endif
