/* Private to engine/reshard/: a run in progress. reshard.c prepares it, transfer.c moves, fingerprints.c
 * compares. */
#ifndef RK_ENGINE_RESHARD_H
#define RK_ENGINE_RESHARD_H

#include "engine/comm/comm.h"
#include "engine/model/model.h"
#include "engine/rk_reshard.h"
#include "engine/tensor/step_arena.h"

struct rk_reshard_link {
    const struct rk_mesh *source, *destination;
    struct rk_comm_shared *shared; /* NULL: the group is one rank */
    int32_t *ranks;                /* world ranks, ascending: the group's members in order */
    int32_t num_ranks;
    int32_t rank; /* this rank, in the world */
    bool is_member;
};

/* Index in the group of a world rank that is a member. */
int32_t rk_reshard_link_index(const struct rk_reshard_link *link, int32_t rank);

/* Device memory of a run, from a step arena. */
struct rk_reshard_buffers {
    rk_tensor_t send, recv;   /* U8: this rank's messages of one round */
    rk_tensor_t fingerprints; /* I64 [2 * rows]: of the source, then of the destination */
    rk_tensor_t sums;         /* F64 [4 * rows]: the same in halves, summed over the ranks */
};

struct rk_reshard_run {
    const struct rk_reshard_args *args;
    struct rk_reshard_result *result;
    const struct rk_reshard_link *link;
    struct rk_comm_group *group;
    struct rk_model_core *source, *destination; /* of this rank; NULL if it is not in that mesh */
    rk_dtype_t dtype;                           /* of the destination, and of the messages */
    struct rk_reshard_plan *plan;               /* owned */
    struct rk_reshard_buffers buffers;
};

/* Allocates from the arena of the model, which is on one side of the link, the memory of a run: for dry runs.
 * The link needs no communicator. source_layout: of the other side's model, if that is the source; a
 * destination, which generates, has no pipeline. */
struct rk_status *rk_reshard_take(struct rk_model *model, const struct rk_reshard_link *link,
                                  const struct rk_model_layout *source_layout,
                                  int64_t bucket_bytes) RK_NODISCARD;

/* View [rows, cols] of the elements of a box in a model's memory. */
rk_tensor_t rk_reshard_view(const struct rk_model_core *core, int64_t row, const struct rk_param_box *box);

/* Executes all moves of the plan (transfer.c). */
struct rk_status *rk_reshard_transfer(struct rk_reshard_run *run) RK_NODISCARD;
/* Collective: compares both sides' fingerprints of every tensor (fingerprints.c). Waits for the stream. */
struct rk_status *rk_reshard_compare(struct rk_reshard_run *run) RK_NODISCARD;

#endif
