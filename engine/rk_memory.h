/* Device memory of a role, planned before it is taken.
 *
 * A plan is a dry run: the code of the largest micro-batch, log-prob pass and generation step that the limits
 * allow runs on a device whose memory has no bytes and over collectives that send nothing
 * (rk_device_open_dry), and what it took is what the role will take. No layout, family or option needs a
 * formula of its own, and no device is needed to plan. Engine thread only. */
#ifndef RK_MEMORY_H
#define RK_MEMORY_H

#include "base/rk_mesh.h"
#include "engine/rk_rollout.h"
#include "engine/rk_train.h"

RK_BEGIN_DECLS

/* Largest calls that a role will see, in tokens of one packed pass, all its cp ranks together; 0: such passes
 * do not come. With cp above 1 the ranks pad every sequence to a multiple of 2 cp tp (base/rk_zigzag.h): a
 * plan has room for it where sequences have 8 times as many tokens or more. A pass of shorter ones may take
 * more memory than planned. */
struct rk_memory_limits {
    int64_t train_tokens;    /* of a training micro-batch */
    int64_t log_prob_tokens; /* of a micro-batch of a log-prob pass */
    /* Ids a position (struct rk_head_ids) of a language model: of training micro-batches, or of log-prob
     * passes where the role does not train. */
    int64_t num_ids;
};

struct rk_memory_plan_desc {
    size_t struct_size;
    struct rk_model_desc model;              /* without stream and mesh */
    const struct rk_mesh *mesh;              /* the role's */
    int32_t rank;                            /* of the world that the mesh is laid over; a member */
    const struct rk_optim_config *optim;     /* NULL: the role does not train */
    const struct rk_rollout_config *rollout; /* NULL: it does not generate */
    bool shares_weights;                     /* of another role's model, to whose plan they belong */
    /* Meshes of rk_reshard_run in whose moves the model's step arena has the buckets; NULL: in none. One of
     * them is the role's. */
    const struct rk_mesh *reshard_source, *reshard_destination;
    int64_t reshard_bucket_bytes;
    struct rk_memory_limits limits;
    const struct rk_device *device; /* whose operators are asked for their workspace; NULL: left out */
};

struct rk_memory_plan {
    struct rk_model_memory memory; /* as rk_model_get_memory will report it, workspace of operators added */
    struct rk_workspace workspace; /* of operators; roles on one stream share it */
    int32_t num_kv_blocks;
    /* Device memory of `memory` that the role gives back between calls: parts that leave (rk_model_offload).
     * Roles of a device run one at a time, so what one gives back is there for the others. */
    uint64_t away_bytes;
};

/* INVALID_ARGUMENT, UNIMPLEMENTED and RESOURCE_EXHAUSTED as the model, the optimizer and the rollout would
 * give them. */
struct rk_status *rk_memory_plan_make(struct rk_memory_plan *out,
                                      const struct rk_memory_plan_desc *desc) RK_NODISCARD;
/* Takes now what the passes of the model and the operators on its stream will need. RESOURCE_EXHAUSTED. */
struct rk_status *rk_memory_plan_reserve(const struct rk_memory_plan *plan,
                                         struct rk_model *model) RK_NODISCARD;

/* --- what a device has for the roles that come --- */
struct rk_memory_room {
    int64_t free_bytes;            /* below 0: roles that were counted do not fit */
    uint64_t away_bytes;           /* beside these: for one of the roles counted, which bring parts back */
    uint64_t own_bytes;            /* workspace that operators hold; the next role's operators use it too */
    struct rk_workspace workspace; /* the largest among the roles counted with rk_memory_room_take */
};
/* Now. */
struct rk_memory_room rk_memory_room_of(const struct rk_device *device);
/* Bytes for the plan: what is free, and as far as the plan has workspace, that of the operators, and as far
 * as its role gives memory back between calls, that of the others. */
uint64_t rk_memory_room_bytes(const struct rk_memory_room *room, const struct rk_memory_plan *plan);
/* NULL when the room is enough for the device memory of the plan; else RESOURCE_EXHAUSTED, reason DEVICE_OOM,
 * with what is wanted of every kind. */
struct rk_status *rk_memory_plan_check(const struct rk_memory_plan *plan,
                                       const struct rk_memory_room *room) RK_NODISCARD;
/* Blocks of a KV cache with which the plan's role stays within `share` of the room: from 1 to those of the
 * plan, which is one of a cache for all sequences. */
int32_t rk_memory_plan_fit_blocks(const struct rk_memory_plan *plan, const struct rk_memory_room *room,
                                  double share);
/* Roles that are there give that much back between calls, at most: one of them will want it again. */
void rk_memory_room_keep(struct rk_memory_room *room, uint64_t away_bytes);
/* The room that is left once the role of the plan has been built. */
void rk_memory_room_take(struct rk_memory_room *room, const struct rk_memory_plan *plan);

/* --- kinds of device memory: the fields of struct rk_model_memory by name --- */
typedef enum rk_memory_kind {
    RK_MEMORY_PARAMETERS,
    RK_MEMORY_MASTERS,
    RK_MEMORY_GRADIENTS,
    RK_MEMORY_OPTIMIZER,
    RK_MEMORY_ACTIVATIONS,
    RK_MEMORY_KV_CACHE,
    RK_MEMORY_WORKSPACE,
    RK_MEMORY_STAGING,
    RK_MEMORY_KIND_COUNT
} rk_memory_kind_t;
const char *rk_memory_kind_name(rk_memory_kind_t kind); /* "parameters", "kv_cache" */
uint64_t rk_memory_kind_bytes(const struct rk_model_memory *memory, rk_memory_kind_t kind);
uint64_t rk_memory_total_bytes(const struct rk_model_memory *memory); /* sum of the kinds */

RK_END_DECLS

#endif
