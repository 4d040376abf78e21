/* The daemons of a job's roles. The keys of a role give its mesh's description; the mesh object made from
 * it defines everything else, here and in the flows: replicas, collecting ranks, participants. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/config/rk_knobs.h"
#include "base/layout/rk_pipeline.h"
#include "rl/rk_job.h"
#include "proto/rk_methods.h"

/* Keys below a role's section. */
static const struct {
    rk_axis_t axis;
    const char *key;
} sizes[] = {
    {RK_AXIS_TP, RK_JOB_TP}, {RK_AXIS_CP, RK_JOB_CP},   {RK_AXIS_PP, RK_JOB_PP},
    {RK_AXIS_EP, RK_JOB_EP}, {RK_AXIS_ETP, RK_JOB_ETP},
};

const char *rk_job_axis_key(rk_axis_t axis)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(sizes); i++) {
        if (sizes[i].axis == axis)
            return sizes[i].key;
    }
    RK_ASSERT(!"an axis that a job names");
    return NULL;
}

/* The path of a key below `megatron` that the role has or inherits: unset keys of a role take the actor's
 * value. rk_free it. */
static char *path_of(const struct rk_config *job, const struct rk_job_role *role, const char *name)
{
    char *own = rk_format("%s%s", role->section, name);

    if (!rk_config_is_null(job, own))
        return own;
    rk_free(own);
    return rk_format(RK_JOB_ACTOR "%s", name);
}

/* The rollout's own keys are in its section, without megatron. */
static int64_t rollout_tp(const struct rk_config *job)
{
    return rk_job_int_or(job, RK_JOB_ROLLOUT RK_JOB_ROLLOUT_TP,
                         rk_job_role_size(job, RK_ROLE_ACTOR, RK_AXIS_TP));
}

/* With ep the experts are whole. A replica has all of them: other sizes, such as verl's ranks over several
 * replicas, are taken as its tp. */
static int64_t rollout_size(const struct rk_config *job, rk_axis_t axis)
{
    int64_t tp = rollout_tp(job), ep = rk_config_int(job, RK_JOB_ROLLOUT RK_JOB_ROLLOUT_EP) > 1 ? tp : 1;

    switch (axis) {
    case RK_AXIS_TP:
        return tp;
    case RK_AXIS_EP:
        return ep;
    case RK_AXIS_ETP:
        return ep > 1 ? 1 : tp;
    default:
        return 1;
    }
}

int32_t rk_job_etp(const struct rk_config *job, uint32_t role)
{
    int32_t etp = rk_job_role_size(job, role, RK_AXIS_ETP);

    return etp > 0 ? etp : rk_job_role_size(job, role, RK_AXIS_TP);
}

/* Its ranks hold other parts of the model than the actor's do. */
static bool rollout_has_own_parts(const struct rk_config *job)
{
    static const rk_axis_t axes[] = {RK_AXIS_TP, RK_AXIS_EP, RK_AXIS_PP};
    bool has_own = !rk_config_is_null(job, RK_JOB_ROLLOUT RK_JOB_ROLLOUT_RANKS) ||
                   rk_job_etp(job, RK_ROLE_ROLLOUT) != rk_job_etp(job, RK_ROLE_ACTOR);

    for (size_t i = 0; i < RK_ARRAY_LEN(axes) && !has_own; i++)
        has_own =
            rk_job_role_size(job, RK_ROLE_ROLLOUT, axes[i]) != rk_job_role_size(job, RK_ROLE_ACTOR, axes[i]);
    return has_own;
}

bool rk_job_rollout_has_own_mesh(const struct rk_config *job)
{
    return rollout_has_own_parts(job) || rk_job_role_size(job, RK_ROLE_ACTOR, RK_AXIS_CP) > 1;
}

uint32_t rk_job_role_shares(const struct rk_config *job, uint32_t bit)
{
    uint32_t owner = rk_job_role(bit)->shares;

    return owner && rollout_has_own_parts(job) ? 0 : owner;
}

bool rk_job_moves_weights(const struct rk_config *job)
{
    return rk_job_role_needed(job, RK_ROLE_ROLLOUT) && !rk_job_role_shares(job, RK_ROLE_ROLLOUT);
}

int32_t rk_job_role_size(const struct rk_config *job, uint32_t role, rk_axis_t axis)
{
    const struct rk_job_role *row = rk_job_role(role);
    int64_t size;
    char *path;

    if (role == RK_ROLE_ROLLOUT)
        return (int32_t)rollout_size(job, axis);
    path = path_of(job, row, rk_job_axis_key(axis));
    size = rk_job_int_or(job, path, 0);
    rk_free(path);
    return (int32_t)size;
}

/* --- ranks --- */

/* "0-3", "6, 2, 4-5": in the order of the mesh. */
static bool parse_ranks(struct rk_job_ranks *out, const char *text)
{
    for (const char *p = text;;) {
        char *end;
        long first = strtol(p, &end, 10), last = first;
        bool is_number = end != p && first >= 0;

        p = end;
        if (is_number && *p == '-') {
            last = strtol(++p, &end, 10);
            is_number = end != p;
            p = end;
        }
        if (!is_number || last < first || last >= RK_MESH_MAX_RANKS ||
            out->count + last - first >= RK_MESH_MAX_RANKS)
            return false;
        for (long rank = first; rank <= last; rank++)
            rk_array_append(out, (int32_t)rank);
        p += strspn(p, " ");
        if (!*p)
            return true;
        if (*p++ != ',')
            return false;
    }
}

char *rk_job_ranks_path(const struct rk_config *job, uint32_t role)
{
    if (role == RK_ROLE_ROLLOUT && !rk_config_is_null(job, RK_JOB_ROLLOUT RK_JOB_ROLLOUT_RANKS))
        return rk_strdup(RK_JOB_ROLLOUT RK_JOB_ROLLOUT_RANKS);
    if (role == RK_ROLE_ROLLOUT)
        return rk_strdup(RK_JOB_ACTOR RK_JOB_RANKS);
    return path_of(job, rk_job_role(role), RK_JOB_RANKS);
}

struct rk_status *rk_job_ranks(struct rk_job_ranks *out, const struct rk_config *job, uint32_t role)
{
    char *path = rk_job_ranks_path(job, role);
    const char *text = rk_config_string(job, path);
    struct rk_status *st = NULL;

    *out = (struct rk_job_ranks){0};
    if (text && !parse_ranks(out, text)) {
        rk_array_fini(out);
        st = RK_FAIL(RK_INVALID_ARGUMENT,
                     "%s=%.100s: expected ranks of daemons from 0, for example \"0-3\" or \"0,2,4-7\"", path,
                     text);
    }
    rk_free(path);
    return st;
}

/* --- the mesh --- */

struct rk_mesh_spec rk_job_mesh_spec(const struct rk_config *job, uint32_t role,
                                     const struct rk_job_ranks *ranks)
{
    bool is_actors = role == RK_ROLE_ROLLOUT && !rk_job_rollout_has_own_mesh(job);
    uint32_t of = is_actors ? RK_ROLE_ACTOR : role;
    struct rk_mesh_spec spec = {
        .tp = rk_job_role_size(job, of, RK_AXIS_TP),
        .cp = rk_job_role_size(job, of, RK_AXIS_CP),
        .pp = rk_job_role_size(job, of, RK_AXIS_PP),
        .ep = rk_job_role_size(job, of, RK_AXIS_EP),
        .etp = rk_job_role_size(job, of, RK_AXIS_ETP),
        .num_ranks = (int32_t)ranks->count,
        .ranks = ranks->items,
    };

    if (of == RK_ROLE_ROLLOUT)
        snprintf(spec.order, sizeof(spec.order), "%s",
                 spec.ep > 1 ? RK_MESH_ORDER_ROLLOUT_EP : RK_MESH_ORDER_ROLLOUT);
    return spec;
}

struct rk_status *rk_job_mesh_create(struct rk_mesh **out, const struct rk_config *job, uint32_t role,
                                     int32_t world_size)
{
    struct rk_job_ranks ranks;
    struct rk_mesh_spec spec;
    struct rk_status *st;

    *out = NULL;
    RK_TRY(rk_job_ranks(&ranks, job, role));
    spec = rk_job_mesh_spec(job, role, &ranks);
    st = rk_mesh_create(out, &spec, world_size);
    rk_array_fini(&ranks);
    return st;
}

int32_t rk_job_num_replicas(const struct rk_config *job, uint32_t role, int32_t world_size)
{
    struct rk_mesh *mesh;
    struct rk_status *st = rk_job_mesh_create(&mesh, job, role, world_size);
    int32_t count = st ? 1 : rk_mesh_axis_size(mesh, RK_AXIS_DP);

    rk_status_free(st);
    rk_mesh_destroy(mesh);
    return count;
}

/* --- the pipeline, and other options of the engine --- */

/* A role with its own number of stages does not take the actor's division of the layers; as in verl the
 * reference does, with the same number. */
static bool has_own_cut(const struct rk_config *job, const struct rk_job_role *row)
{
    char *pp = rk_format("%s" RK_JOB_PP, row->section);
    bool has_own = !rk_config_is_null(job, pp) &&
                   (row->bit != RK_ROLE_REF ||
                    rk_config_int(job, pp) != rk_job_role_size(job, RK_ROLE_ACTOR, RK_AXIS_PP));

    rk_free(pp);
    return has_own;
}

/* 0 when it is not given. */
static int32_t cut_of(const struct rk_config *job, uint32_t role, const char *name)
{
    const struct rk_job_role *row = rk_job_role(role);
    char *path = has_own_cut(job, row) ? rk_format("%s%s", row->section, name) : path_of(job, row, name);
    int64_t value = rk_job_int_or(job, path, 0);

    rk_free(path);
    return (int32_t)value;
}

struct rk_job_pipeline rk_job_pipeline(const struct rk_config *job, uint32_t role)
{
    if (role == RK_ROLE_ROLLOUT)
        return (struct rk_job_pipeline){.pp = 1};
    return (struct rk_job_pipeline){
        .pp = rk_job_role_size(job, role, RK_AXIS_PP),
        .vpp = cut_of(job, role, RK_KNOB_VPP),
        .num_first = cut_of(job, role, RK_KNOB_FIRST_STAGE),
        .num_last = cut_of(job, role, RK_KNOB_LAST_STAGE),
    };
}

struct rk_status *rk_job_check_layers(const struct rk_config *job, uint32_t role, int64_t num_layers)
{
    struct rk_job_pipeline cut = rk_job_pipeline(job, role);
    struct rk_pipeline_spec spec = {
        .num_layers = (int32_t)RK_MIN(num_layers, INT32_MAX),
        .pp = cut.pp,
        .vpp = cut.vpp,
        .num_layers_in_first_pipeline_stage = cut.num_first,
        .num_layers_in_last_pipeline_stage = cut.num_last,
    };
    struct rk_pipeline *pipeline;
    struct rk_status *st = rk_pipeline_create(&pipeline, &spec);
    char *path;

    rk_pipeline_destroy(pipeline);
    if (!st)
        return NULL;
    path = path_of(job, rk_job_role(role), RK_JOB_PP);
    st = RK_WRAP(st, "%s=%d of role %s", path, cut.pp, rk_job_role(role)->name);
    rk_free(path);
    return st;
}

int32_t rk_job_micro_multiple(const struct rk_config *job, uint32_t role)
{
    struct rk_job_pipeline pipeline = rk_job_pipeline(job, role);

    return pipeline.vpp > 1 ? pipeline.pp : 1;
}

static void set_size(struct rk_json *options, const char *option, int32_t size)
{
    if (size > 0)
        rk_json_set(options, option, rk_json_new_int(size));
}

void rk_job_set_layout(struct rk_json *options, const struct rk_config *job, uint32_t role)
{
    struct rk_job_pipeline pipeline = rk_job_pipeline(job, role);
    char *path = path_of(job, rk_job_role(role), RK_KNOB_SEQUENCE_PARALLEL);
    char *dispatch = path_of(job, rk_job_role(role), RK_KNOB_DISPATCH_TOKENS);
    char *keep = path_of(job, rk_job_role(role), RK_KNOB_KEEP_DISPATCHED);

    rk_job_copy_value(options, RK_KNOB_SEQUENCE_PARALLEL, job, path);
    set_size(options, RK_KNOB_DISPATCH_TOKENS, (int32_t)rk_job_int_or(job, dispatch, 0));
    set_size(options, RK_KNOB_VPP, pipeline.vpp);
    set_size(options, RK_KNOB_FIRST_STAGE, pipeline.num_first);
    set_size(options, RK_KNOB_LAST_STAGE, pipeline.num_last);
    if (rk_job_bool_or(job, keep, false))
        rk_json_set(options, RK_KNOB_KEEP_DISPATCHED, rk_json_new_bool(true));
    rk_free(keep);
    rk_free(dispatch);
    rk_free(path);
}

/* --- of all roles --- */

struct rk_status *rk_job_meshes_create(struct rk_job_meshes *out, const struct rk_config *job,
                                       int32_t world_size)
{
    int64_t num_roles;
    const struct rk_job_role *roles = rk_job_roles(&num_roles);

    *out = (struct rk_job_meshes){0};
    for (int64_t i = 0; i < num_roles; i++) {
        struct rk_job_mesh *item = &out->items[out->count];
        struct rk_status *st;

        if (!rk_job_role_needed(job, roles[i].bit))
            continue;
        RK_ASSERT(out->count < RK_LIMIT_ROLES);
        st = rk_job_mesh_create(&item->mesh, job, roles[i].bit, world_size);
        if (st) {
            rk_job_meshes_fini(out);
            return RK_WRAP(st, "mesh of role '%s'", roles[i].name);
        }
        item->role = &roles[i];
        out->count++;
    }
    return NULL;
}

void rk_job_meshes_fini(struct rk_job_meshes *meshes)
{
    for (int64_t i = 0; i < meshes->count; i++)
        rk_mesh_destroy(meshes->items[i].mesh);
    *meshes = (struct rk_job_meshes){0};
}

const struct rk_mesh *rk_job_meshes_find(const struct rk_job_meshes *meshes, uint32_t role)
{
    for (int64_t i = 0; i < meshes->count; i++) {
        if (meshes->items[i].role->bit == role)
            return meshes->items[i].mesh;
    }
    return NULL;
}

struct rk_status *rk_job_meshes_configure(const struct rk_job_meshes *meshes, struct rk_driver *driver)
{
    struct rk_role_mesh specs[RK_LIMIT_ROLES];

    for (int64_t i = 0; i < meshes->count; i++)
        specs[i] =
            (struct rk_role_mesh){meshes->items[i].role->name, rk_mesh_get_spec(meshes->items[i].mesh)};
    return rk_driver_configure(driver, specs, meshes->count);
}
