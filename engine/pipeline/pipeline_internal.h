/* Private to engine/: runs micro-batches through the stages of a model's pipeline. A mesh without a pipeline
 * is one stage, with one micro-batch at a time in the model's own memory. */
#ifndef RK_PIPELINE_INTERNAL_H
#define RK_PIPELINE_INTERNAL_H

#include "engine/model/model_internal.h"

/* What is done with micro-batches. Every rank of the mesh has the same number of them, of the same sizes on
 * all stages of a replica; they may be empty. */
struct rk_pipeline_work {
    int64_t count;
    bool trains; /* a backward pass follows each forward pass */
    /* Describes the i-th one. What it points to is used before the function is called again. On stages it is
     * called more than once for each, in any order. */
    struct rk_status *(*bind)(void *user, int64_t i, struct rk_micro_desc *desc);
    /* The outputs of the head are ready, on ranks that have it; the i-th one is bound. */
    struct rk_status *(*handle_outputs)(void *user, int64_t i, struct rk_micro *micro);
    /* In front of a backward pass; `is_last`: of the last one through these blocks. Only with `trains`. */
    struct rk_status *(*prepare_backward)(void *user, struct rk_micro *micro, bool is_last);
    struct rk_status *(*finish_backward)(void *user); /* behind it */
    /* May be NULL: as in struct rk_train_work. */
    struct rk_status *(*on_step)(void *user, struct rk_pipeline_step step, bool is_done);
    void *user;
};

/* Collective over the mesh. OUT_OF_RANGE and the like for what a micro-batch has come before anything runs.
 * The stream has passed everything at the end.
 *
 * On stages, where the hooks of the micro-batches have is_cancelled (on all ranks or on none), a rank that is
 * asked to stop goes through the rest of the schedule without computing, so that no stage waits for its
 * messages, and all ranks of the mesh return CANCELLED together: what has accumulated is of no use then. */
struct rk_status *rk_pipeline_run(struct rk_model *model, const struct rk_pipeline_work *work) RK_NODISCARD;

/* Memory of the micro-batches that live at once in a model that is a stage; none before the first run. */
void rk_pipeline_slots_destroy(struct rk_model *model);
void rk_pipeline_add_memory(const struct rk_model *model, struct rk_model_memory *memory);
/* Takes what a plan says that its slots need, now. RESOURCE_EXHAUSTED. */
struct rk_status *rk_pipeline_reserve(struct rk_model *model,
                                      const struct rk_model_memory *plan) RK_NODISCARD;

#endif
