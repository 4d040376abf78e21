/* Device memory of a role, planned before it is allocated.
 *
 * A plan is a dry run: the code of the largest micro-batch, log-prob pass and generation step within the
 * limits runs on a device without memory and with collectives that send nothing (rk_device_open_dry), which
 * record what the role will allocate. So layouts, families and options need no formulas of their own, and
 * planning needs no device. Engine thread only. */
#ifndef RK_MEMORY_H
#define RK_MEMORY_H

#include "base/layout/rk_mesh.h"
#include "engine/rk_rollout.h"
#include "engine/rk_train.h"

RK_BEGIN_DECLS

/* Largest calls that a role will get, in tokens of one packed pass over all its cp ranks; 0: no such passes.
 * With cp above 1 the ranks pad every sequence to a multiple of 2 cp tp (base/layout/rk_zigzag.h): a plan
 * covers the padding of sequences with at least 8 times as many tokens. A pass over shorter sequences may
 * need more memory than planned. */
struct rk_memory_limits {
    int64_t train_tokens;    /* of a training micro-batch */
    int64_t log_prob_tokens; /* of a micro-batch of a log-prob pass */
    /* Ids per position (struct rk_head_ids) of a language model: of training micro-batches, or of log-prob
     * passes if the role does not train. */
    int64_t num_ids;
};

struct rk_memory_plan_desc {
    size_t struct_size;
    struct rk_model_desc model;              /* without stream and mesh */
    const struct rk_mesh *mesh;              /* the role's */
    int32_t rank;                            /* rank in the world of the mesh; a member of the mesh */
    const struct rk_optim_config *optim;     /* NULL: the role does not train */
    const struct rk_rollout_config *rollout; /* NULL: it does not generate */
    bool shares_weights;                     /* uses the weights of another role's model, whose plan has their
                                              * memory */
    /* Meshes of the rk_reshard_run that keeps its buckets in the model's step arena; NULL: none. One of the
     * two meshes is the role's. */
    const struct rk_mesh *reshard_source, *reshard_destination;
    struct rk_model_layout reshard_layout; /* of the source's model, if the role is the destination */
    int64_t reshard_bucket_bytes;
    struct rk_memory_limits limits;
    const struct rk_device *device; /* asked for the workspace of its operators; NULL: the plan has none */
    const char *weights_dir;        /* rk_model_check_hf of the model; NULL: no weights are looked at */
};

struct rk_memory_plan {
    struct rk_model_memory memory; /* as rk_model_get_memory will report it, plus the workspace of
                                    * operators */
    struct rk_workspace workspace; /* of operators; shared by roles on one stream */
    int32_t num_kv_blocks;
    /* Part of `memory` that the role releases between calls: offloaded parts (rk_model_offload). Roles of a
     * device run one at a time, so other roles can use it. */
    uint64_t away_bytes;
};

/* Errors: INVALID_ARGUMENT, UNIMPLEMENTED and RESOURCE_EXHAUSTED of the model, the optimizer and the rollout,
 * and the errors of rk_model_check_hf. */
struct rk_status *rk_memory_plan_make(struct rk_memory_plan *out,
                                      const struct rk_memory_plan_desc *desc) RK_NODISCARD;
/* Allocates what the passes of the model and the operators on its stream will need. RESOURCE_EXHAUSTED. */
struct rk_status *rk_memory_plan_reserve(const struct rk_memory_plan *plan,
                                         struct rk_model *model) RK_NODISCARD;

/* --- device memory available to further roles --- */
struct rk_memory_room {
    int64_t free_bytes;            /* negative: the counted roles do not fit */
    uint64_t away_bytes;           /* additional memory for one of the counted roles at a time, which onload
                                    * their parts */
    uint64_t own_bytes;            /* workspace that operators hold; the next role's operators share it */
    struct rk_workspace workspace; /* maximum of the roles counted with rk_memory_room_take */
};
/* The room that the device has now. */
struct rk_memory_room rk_memory_room_of(const struct rk_device *device);
/* Bytes available to the plan: free memory, plus the operators' workspace up to the plan's own workspace,
 * plus the memory that other roles release between calls up to what this role releases. */
uint64_t rk_memory_room_bytes(const struct rk_memory_room *room, const struct rk_memory_plan *plan);
/* NULL when there is room for the device memory of the plan; otherwise RESOURCE_EXHAUSTED, reason DEVICE_OOM,
 * with the required bytes of every kind. */
struct rk_status *rk_memory_plan_check(const struct rk_memory_plan *plan,
                                       const struct rk_memory_room *room) RK_NODISCARD;
/* Number of KV cache blocks with which the plan's role stays within `share` of the room: from 1 to the number
 * in the plan, which must be enough for all sequences. */
int32_t rk_memory_plan_fit_blocks(const struct rk_memory_plan *plan, const struct rk_memory_room *room,
                                  double share);
/* Reserves what existing roles offload between calls, up to `away_bytes`: one role at a time will need it
 * again. */
void rk_memory_room_keep(struct rk_memory_room *room, uint64_t away_bytes);
/* Reduces the room to what is left once the role of the plan has been created. */
void rk_memory_room_take(struct rk_memory_room *room, const struct rk_memory_plan *plan);

/* --- kinds of device memory by name --- */
const char *rk_memory_kind_name(rk_memory_kind_t kind); /* "parameters", "kv_cache" */
uint64_t rk_memory_kind_bytes(const struct rk_model_memory *memory, rk_memory_kind_t kind);
uint64_t rk_memory_total_bytes(const struct rk_model_memory *memory); /* sum of the kinds */

RK_END_DECLS

#endif
