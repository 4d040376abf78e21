/* The model that init_model builds: read from the options, planned, and then created. */
#ifndef RK_MODEL_BUILD_INTERNAL_H
#define RK_MODEL_BUILD_INTERNAL_H

#include "base/config/rk_knobs.h"
#include "worker/worker_internal.h"

struct rk_init_knobs {
    RK_INIT_KNOBS(RK_KNOB_FIELD, , , )
};

struct rk_model_build {
    struct rk_method_call *call;
    /* Options. */
    const char *path, *share_with; /* NULL when unset */
    char *dir;                     /* resolved path; owned */
    struct rk_json *hf_config;     /* owned */
    struct rk_role *owner;         /* of the weights, with share_with */
    bool plan_only;
    bool lacks_weights;            /* update_weights provides them */
    struct rk_json *owner_options; /* owned; of the owner's next init_model, with plan_only; NULL: none */
    struct rk_optim_config optim;  /* used if desc.optim is set */
    struct rk_rollout_config rollout_config; /* for roles that generate */
    struct rk_init_knobs init;
    int64_t bucket_bytes; /* of update_weights */
    /* The memory that the role will need. */
    struct rk_memory_plan_desc desc;
    struct rk_memory_plan plan;
    struct rk_memory_room room; /* free memory for the role; with plan_only, at its turn */
    struct rk_json *sums;       /* owned; with plan_only: groups whose ordered sums have been counted */
    uint64_t sums_bytes;        /* with plan_only: of ordered sums, counted for this role */
    /* Owned until they become the role's. */
    struct rk_model *model;
    struct rk_trainer *trainer;
    struct rk_rollout *rollout;
};

/* Reads and checks the options, and plans the memory. Allocates nothing: the role may still have a model. */
struct rk_status *rk_model_build_prepare(struct rk_model_build *build) RK_NODISCARD;
/* The group whose ordered sums the model needs memory for; NULL: it needs none. */
struct rk_comm_group *rk_model_build_sums(const struct rk_model_build *build);
/* Collective over the role's mesh, all of whose ranks have prepared: with gpu_memory_utilization the cache
 * gets the blocks that fit on every rank. */
struct rk_status *rk_model_build_fit_cache(struct rk_model_build *build) RK_NODISCARD;
/* Allocates the memory. RESOURCE_EXHAUSTED before any allocation when it does not fit. */
struct rk_status *rk_model_build_take(struct rk_model_build *build) RK_NODISCARD;
/* Collective over the role's mesh, all of whose ranks have the memory: fills the model. */
struct rk_status *rk_model_build_fill(struct rk_model_build *build) RK_NODISCARD;
/* --- plan_only (model_plan.c) --- */
/* Reads the options about the roles that are built before: owner_options, room and sums of the build. */
struct rk_status *rk_model_build_read_plan(struct rk_model_build *build) RK_NODISCARD;
/* Subtracts the memory of ordered sums that the role is the first to need from the room. */
void rk_model_build_count_sums(struct rk_model_build *build);
/* The plan as meta of an empty batch. */
struct rk_status *rk_model_build_report(struct rk_model_build *build) RK_NODISCARD;

/* Frees what is owned. */
void rk_model_build_fini(struct rk_model_build *build);

#endif
