/* Rules about the daemons of a job's roles. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/config/rk_knobs.h"
#include "base/rk_log.h"
#include "rl/rk_job.h"
#include "proto/rk_methods.h"

static const rk_axis_t axes[] = {RK_AXIS_TP, RK_AXIS_CP, RK_AXIS_PP};
#define NUM_AXES 3

/* --- sizes that do not divide --- */

/* "tensor_model_parallel_size=2 x pipeline_model_parallel_size=3" of the sizes above 1, tp always. */
static void append_sizes(struct rk_str *out, const int32_t size[NUM_AXES])
{
    for (int i = 0; i < NUM_AXES; i++) {
        if (i == 0 || size[i] > 1)
            rk_str_appendf(out, "%s%s=%d", i ? " x " : "", strchr(rk_job_axis_key(axes[i]), '.') + 1,
                           size[i]);
    }
}

/* Finds the (tp, cp, pp) closest to the given sizes, by the sum of differences, whose product divides
 * num_ranks; on a tie the smaller tp, which divides the heads of more models. */
static void find_nearest(int32_t nearest[NUM_AXES], const int32_t size[NUM_AXES], int32_t num_ranks)
{
    int64_t least = INT64_MAX;

    for (int32_t tp = 1; tp <= num_ranks; tp++) {
        for (int32_t cp = 1; num_ranks % tp == 0 && cp <= num_ranks / tp; cp++) {
            for (int32_t pp = 1; num_ranks / tp % cp == 0 && pp <= num_ranks / tp / cp; pp++) {
                int64_t distance = llabs((int64_t)tp - size[0]) + llabs((int64_t)cp - size[1]) +
                                   llabs((int64_t)pp - size[2]);

                if (num_ranks / tp / cp % pp != 0 || distance >= least)
                    continue;
                least = distance;
                nearest[0] = tp;
                nearest[1] = cp;
                nearest[2] = pp;
            }
        }
    }
}

/* Without the experts. */
static bool divides(const struct rk_config *job, const struct rk_job_role *role,
                    const struct rk_job_ranks *ranks, int32_t world_size)
{
    int32_t product = 1;

    for (int i = 0; i < NUM_AXES; i++)
        product *= rk_job_role_size(job, role->bit, axes[i]);
    return (ranks->count ? (int32_t)ranks->count : world_size) % product == 0;
}

static void tell_sizes(struct rk_str *problems, const struct rk_config *job, const struct rk_job_role *role,
                       const struct rk_job_ranks *ranks, int32_t world_size)
{
    int32_t size[NUM_AXES], nearest[NUM_AXES], num_ranks = ranks->count ? (int32_t)ranks->count : world_size;
    bool is_rollout = role->bit == RK_ROLE_ROLLOUT;
    char *path = rk_job_ranks_path(job, role->bit);

    for (int i = 0; i < NUM_AXES; i++)
        size[i] = rk_job_role_size(job, role->bit, axes[i]);
    rk_str_appendf(problems, "%s%s", role->section, is_rollout ? "" : "megatron.");
    append_sizes(problems, size);
    if (ranks->count)
        rk_str_appendf(problems, " does not divide the %d ranks of %s", num_ranks, path);
    else
        rk_str_appendf(problems, " does not divide the %d daemons of the group", num_ranks);
    find_nearest(nearest, size, num_ranks);
    rk_str_append(problems, "; the nearest that does: ");
    append_sizes(problems, nearest);
    rk_str_append(problems, "\n");
    rk_free(path);
}

/* --- ranks --- */

/* A rank of the list that is outside the world, or listed twice; -1: none. */
static int32_t find_bad_rank(const struct rk_job_ranks *ranks, int32_t world_size)
{
    bool *seen = rk_calloc((size_t)world_size, sizeof(*seen));
    int32_t bad = -1;

    for (int64_t i = 0; i < ranks->count && bad < 0; i++) {
        int32_t rank = ranks->items[i];

        if (rank >= world_size || seen[rank])
            bad = rank;
        else
            seen[rank] = true;
    }
    rk_free(seen);
    return bad;
}

/* --- experts of the rollout --- */

/* Responses do not depend on the ranks that have an expert, the memory of a rank does. */
static void warn_of_rollout_experts(int64_t given, int32_t ep)
{
    if (given != ep)
        RK_WARN(RK_JOB_ROLLOUT RK_JOB_ROLLOUT_EP "=%" PRId64 " is taken as %d, " RK_JOB_ROLLOUT_TP
                                                 ": every replica of the rollout has all experts, divided "
                                                 "over its ranks",
                given, ep);
}

struct rk_status *rk_job_check_rollout_experts(const struct rk_config *job, int64_t num_experts)
{
    int64_t given = rk_config_int(job, RK_JOB_ROLLOUT RK_JOB_ROLLOUT_EP);
    int32_t ep = rk_job_role_size(job, RK_ROLE_ROLLOUT, RK_AXIS_EP);

    if (given == 1 || !rk_job_role_needed(job, RK_ROLE_ROLLOUT))
        return NULL;
    if (num_experts == 0)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       RK_JOB_ROLLOUT RK_JOB_ROLLOUT_EP "=%" PRId64
                                                        ": expected 1 for a model without layers of experts",
                       given);
    if (num_experts % ep != 0)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       RK_JOB_ROLLOUT RK_JOB_ROLLOUT_EP "=%d: expected a divisor of the %" PRId64
                                                        " experts of the model",
                       ep, num_experts);
    warn_of_rollout_experts(given, ep);
    return NULL;
}

/* --- meshes --- */

/* tp, cp and pp fit, so the sizes of the experts' grid do not. */
static void tell_expert_sizes(struct rk_str *problems, const struct rk_config *job,
                              const struct rk_job_role *role, const struct rk_status *st)
{
    int32_t etp = rk_job_role_size(job, role->bit, RK_AXIS_ETP);

    rk_str_appendf(problems, "%s" RK_JOB_EP "=%d", role->section,
                   RK_MAX(rk_job_role_size(job, role->bit, RK_AXIS_EP), 1));
    if (etp > 0)
        rk_str_appendf(problems, ", %s" RK_JOB_ETP "=%d", role->section, etp);
    rk_str_appendf(problems, ": %s\n", rk_status_message(st));
}

/* Whole experts, or experts split over some or all of the ranks that split other matrices. */
static bool has_etp(const struct rk_config *job, const struct rk_job_role *role)
{
    int32_t etp = rk_job_etp(job, role->bit);

    return rk_job_role_size(job, role->bit, RK_AXIS_TP) % etp == 0;
}

/* Checks the mesh of one role. */
static void check_mesh(const struct rk_config *job, const struct rk_job_role *role, int32_t world_size,
                       struct rk_str *problems)
{
    char *path = rk_job_ranks_path(job, role->bit);
    struct rk_job_ranks ranks;
    struct rk_mesh *mesh = NULL;
    struct rk_status *st = rk_job_ranks(&ranks, job, role->bit);
    int32_t bad = st ? -1 : find_bad_rank(&ranks, world_size);

    if (st)
        rk_str_appendf(problems, "%s\n", rk_status_message(st));
    else if (bad >= 0)
        rk_str_appendf(problems, "%s=%s: rank %d %s; expected each rank from 0 to %d at most once\n", path,
                       rk_config_string(job, path), bad, bad < world_size ? "comes twice" : "has no daemon",
                       world_size - 1);
    if (!st && bad < 0 && !has_etp(job, role)) {
        rk_str_appendf(problems, "%s" RK_JOB_ETP "=%d: expected a divisor of %s" RK_JOB_TP ", which is %d\n",
                       role->section, rk_job_etp(job, role->bit), role->section,
                       rk_job_role_size(job, role->bit, RK_AXIS_TP));
    } else if (!st && bad < 0) {
        st = rk_job_mesh_create(&mesh, job, role->bit, world_size);
        if (st && divides(job, role, &ranks, world_size))
            tell_expert_sizes(problems, job, role, st);
        else if (st)
            tell_sizes(problems, job, role, &ranks, world_size);
    }
    rk_status_free(st);
    rk_mesh_destroy(mesh);
    rk_array_fini(&ranks);
    rk_free(path);
}

/* Every daemon of the group has a role. One without is most likely a mistake in the ranks of a role. */
static void check_coverage(const struct rk_config *job, int32_t world_size, struct rk_str *problems)
{
    struct rk_job_meshes meshes;
    struct rk_status *st = rk_job_meshes_create(&meshes, job, world_size);
    struct rk_str idle = {0};
    int32_t num_used = 0;
    bool has_gap = false; /* a daemon with a role after one without */

    for (int32_t rank = 0; rank < world_size && !st; rank++) {
        struct rk_mesh_coords coords;
        bool has_role = false;

        for (int64_t i = 0; i < meshes.count; i++)
            has_role = has_role || rk_mesh_find_coords(meshes.items[i].mesh, rank, &coords);
        has_gap = has_gap || (has_role && idle.bytes > 0);
        num_used += has_role;
        if (!has_role)
            rk_str_appendf(&idle, "%s%d", idle.bytes ? ", " : "", rank);
    }
    if (idle.bytes > 0)
        rk_str_appendf(problems,
                       "no role uses rank %s of the %d daemons; add the ranks to the key ranks of a role, "
                       "or run on %d daemons%s\n",
                       rk_str_text(&idle), world_size, num_used,
                       has_gap ? " with the ranks counted from 0" : "");
    rk_str_fini(&idle);
    rk_status_free(st); /* the finding of check_mesh */
    rk_job_meshes_fini(&meshes);
}

void rk_job_world_check(const struct rk_config *job, int32_t world_size, struct rk_str *problems)
{
    int64_t count;
    const struct rk_job_role *roles = rk_job_roles(&count);

    for (int64_t i = 0; i < count; i++) {
        if (rk_job_role_needed(job, roles[i].bit) && !rk_job_role_shares(job, roles[i].bit))
            check_mesh(job, &roles[i], world_size, problems);
    }
    check_coverage(job, world_size, problems);
}

/* --- pipelines --- */

static void check_pipeline_of(const struct rk_config *job, const struct rk_job_role *role,
                              struct rk_str *problems)
{
    struct rk_job_pipeline pipeline = rk_job_pipeline(job, role->bit);
    const struct {
        const char *key;
        int32_t value, least; /* that asks for more than one stage */
    } cuts[] = {
        {RK_KNOB_VPP, pipeline.vpp, 2},
        {RK_KNOB_FIRST_STAGE, pipeline.num_first, 1},
        {RK_KNOB_LAST_STAGE, pipeline.num_last, 1},
    };

    for (size_t i = 0; i < RK_ARRAY_LEN(cuts) && pipeline.pp == 1; i++) {
        char *path = rk_format("%s%s", role->section, cuts[i].key);

        if (cuts[i].value >= cuts[i].least && !rk_config_is_null(job, path)) /* else the actor's finding */
            rk_str_appendf(problems, "%s=%d: expected null, or %s" RK_JOB_PP " above 1, got 1\n", path,
                           cuts[i].value, role->section);
        rk_free(path);
    }
}

void rk_job_pipeline_check(const struct rk_config *job, int32_t world_size, struct rk_str *problems)
{
    int64_t count;
    const struct rk_job_role *roles = rk_job_roles(&count);

    (void)world_size;
    for (int64_t i = 0; i < count; i++) {
        if (!roles[i].shares && rk_job_role_needed(job, roles[i].bit))
            check_pipeline_of(job, &roles[i], problems);
    }
}
