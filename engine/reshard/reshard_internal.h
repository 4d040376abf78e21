/* Private to engine/reshard/: a run in progress. reshard.c prepares it, transfer.c moves, fingerprints.c
 * compares. */
#ifndef RK_RESHARD_INTERNAL_H
#define RK_RESHARD_INTERNAL_H

#include "engine/comm/comm_internal.h"
#include "engine/model/model_internal.h"
#include "engine/rk_reshard.h"
#include "engine/tensor/step_arena_internal.h"

struct rk_reshard_link {
    const struct rk_mesh *source, *destination;
    struct rk_comm_shared *shared; /* NULL: one rank */
    int32_t *ranks;                /* of the world, ascending: the group's members in order */
    int32_t num_ranks;
    int32_t rank; /* this one, of the world */
    bool is_member;
};

/* Index of a rank of the world in the group, which it is in. */
int32_t rk_reshard_link_index(const struct rk_reshard_link *link, int32_t rank);

/* Device memory of a run, from a step arena. */
struct rk_reshard_buffers {
    rk_tensor_t send, recv;   /* U8: a round of the rank */
    rk_tensor_t fingerprints; /* I64 [2 * rows]: of the source, of the destination */
    rk_tensor_t sums;         /* F64 [4 * rows]: the same in halves, summed over the ranks */
};
/* RESOURCE_EXHAUSTED. */
struct rk_status *rk_reshard_buffers_take(struct rk_reshard_buffers *out, struct rk_step_arena *arena,
                                          const struct rk_reshard_plan *plan) RK_NODISCARD;

struct rk_reshard_run {
    const struct rk_reshard_args *args;
    struct rk_reshard_result *result;
    const struct rk_reshard_link *link;
    struct rk_comm_group *group;
    struct rk_model_core *source, *destination; /* of this rank's models; NULL where there is none */
    rk_dtype_t dtype;                           /* of the destination, and of what travels */
    struct rk_reshard_plan *plan;               /* owned */
    struct rk_reshard_buffers buffers;
};

/* Takes from the arena of the model, which is on one side of the link, what a run would: for dry runs. The
 * link needs no communicator. */
struct rk_status *rk_reshard_take(struct rk_model *model, const struct rk_reshard_link *link,
                                  int64_t bucket_bytes) RK_NODISCARD;

/* Elements of a box in a model's memory: a view [rows, cols]. */
rk_tensor_t rk_reshard_view(const struct rk_model_core *core, int64_t row, const struct rk_param_box *box);

/* All moves of the plan (transfer.c). */
struct rk_status *rk_reshard_transfer(struct rk_reshard_run *run) RK_NODISCARD;
/* Collective: both sides' fingerprints of every tensor (fingerprints.c). Waits for the stream. */
struct rk_status *rk_reshard_compare(struct rk_reshard_run *run) RK_NODISCARD;

#endif
