/* Verifies that replicas of the parameters are equal: fingerprints of every rank's parameters are compared on
 * all ranks, which therefore return the same result.
 *
 * Replicas apply the same updates in the same order, so their parameters are bit-identical. A difference
 * means a defect (memory, a link, a kernel) that would otherwise go unnoticed: each replica would continue
 * from its own weights. */
#include "engine/model/model.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_str.h"
#include "kernels/rk_kernels.h"

/* State of one comparison. */
struct comparison {
    struct rk_model *model;
    const struct rk_engine_hooks *hooks;
    struct rk_comm_group *group; /* all ranks of the mesh */
    int32_t num_ranks;
    int32_t *ranks; /* [num_ranks]: world ranks in the order of the group */
    int64_t num_params;
    rk_tensor_t gathered; /* I64 [num_ranks, num_params] on the device */
    int64_t *prints;      /* the same on the host; 0 where a rank does not hold the parameter */
};

static void fini(struct comparison *c)
{
    rk_device_free(rk_stream_device(c->model->core->stream), c->gathered.data);
    rk_free(c->ranks);
    rk_free(c->prints);
}

/* Element `i` of this rank's row of `gathered`. */
static rk_tensor_t own_prints(const struct comparison *c, int64_t i, int64_t count)
{
    int64_t at = rk_comm_group_rank(c->group) * c->num_params + i;

    return rk_tensor_1d((char *)c->gathered.data + (size_t)at * sizeof(int64_t), RK_DTYPE_I64, count);
}

/* Computes the fingerprints of this rank's parameters. */
static struct rk_status *take_prints(struct comparison *c)
{
    const struct rk_model_core *core = c->model->core;
    size_t elem_bytes = rk_dtype_bytes(core->dtype);
    struct rk_model_walk walk;

    rk_model_walk_begin(&walk, core, "verify", c->hooks);
    for (int64_t i = 0; i < c->num_params; i++) {
        const struct rk_placement *placement = rk_params_placement(&core->params, i);
        char *values = (char *)core->values + (size_t)placement->offset * elem_bytes;
        struct rk_fingerprint_args args = {
            .out = own_prints(c, i, 1),
            .x = rk_tensor_2d(values, core->dtype, placement->local_shape[0], placement->local_shape[1]),
            .dtype = core->dtype,
            .row_pitch = (uint64_t)placement->local_shape[1],
        };

        if (!placement->is_held)
            continue;
        RK_TRY(rk_fingerprint(core->stream, &args));
        RK_TRY(rk_model_walk_advance(&walk, rk_placement_num_elements(placement)));
    }
    return NULL;
}

static struct rk_status *prepare(struct comparison *c)
{
    struct rk_device *device = rk_stream_device(c->model->core->stream);
    void *memory;

    RK_TRY(rk_try_alloc(&memory, (size_t)(c->num_ranks * c->num_params) * sizeof(*c->prints),
                        "fingerprints of parameters"));
    c->prints = memory;
    c->gathered = rk_tensor_1d(NULL, RK_DTYPE_I64, c->num_ranks * c->num_params);
    RK_TRY(rk_device_alloc(device, &c->gathered.data, rk_tensor_bytes(c->gathered),
                           "fingerprints of parameters"));
    return take_prints(c);
}

static struct rk_status *gather(struct comparison *c)
{
    struct rk_stream *stream = c->model->core->stream;

    RK_TRY(rk_comm_all_gather(c->group, stream, c->gathered, own_prints(c, 0, c->num_params)));
    RK_TRY(rk_stream_copy(stream, c->prints, c->gathered.data, rk_tensor_bytes(c->gathered), RK_COPY_D2H));
    return rk_stream_sync(stream);
}

/* --- the verdict --- */

struct verdict {
    int64_t num_compared;  /* copies compared with the first copy of their part */
    int64_t num_different; /* parameters with copies that differ */
    int64_t first_param;   /* the first of these, and two ranks whose copies differ */
    int32_t first_ranks[2];
    bool *is_odd; /* [num_ranks]: holds a copy that differs from the first */
};

/* first_of_part: memory for an index into the group for each part. */
static void compare_param(const struct comparison *c, int64_t i, int32_t *first_of_part, struct verdict *out)
{
    const struct rk_param_table *params = &c->model->core->params;
    const struct rk_param *param = rk_params_at(params, i);
    bool differs = false;

    for (int32_t part = 0; part < param->split.num_parts; part++)
        first_of_part[part] = -1;
    for (int32_t r = 0; r < c->num_ranks; r++) {
        struct rk_mesh_coords coords;
        struct rk_placement placement;
        bool is_member = rk_mesh_find_coords(params->mesh, c->ranks[r], &coords);
        int32_t *first;

        RK_ASSERT(is_member);
        rk_param_place(&placement, param, params->mesh, &coords);
        first = &first_of_part[placement.part];
        if (!placement.is_held)
            continue;
        if (*first < 0) {
            *first = r;
            continue;
        }
        out->num_compared++;
        if (c->prints[r * c->num_params + i] == c->prints[*first * c->num_params + i])
            continue;
        if (out->num_different == 0 && !differs) {
            out->first_param = i;
            out->first_ranks[0] = c->ranks[*first];
            out->first_ranks[1] = c->ranks[r];
        }
        differs = out->is_odd[r] = true;
    }
    out->num_different += differs;
}

static char *format_ranks(const struct comparison *c, const struct verdict *verdict)
{
    struct rk_str text = {0};

    for (int32_t r = 0; r < c->num_ranks; r++) {
        if (verdict->is_odd[r])
            rk_str_appendf(&text, "%s%d", text.bytes ? ", " : "", c->ranks[r]);
    }
    return rk_str_take(&text);
}

static struct rk_status *report(const struct comparison *c, const struct verdict *verdict)
{
    const char *name, *in_layers;
    char layer[32] = "outside the layers";
    struct rk_status *st;
    long long number;
    char *ranks;

    if (verdict->num_different == 0)
        return NULL;
    name = rk_params_at(&c->model->core->params, verdict->first_param)->name;
    in_layers = strstr(name, "layers.");
    if (in_layers && sscanf(in_layers, "layers.%lld.", &number) == 1)
        snprintf(layer, sizeof(layer), "layer %lld", number);
    ranks = format_ranks(c, verdict);
    st = RK_FAIL_REASON(RK_DATA_LOSS, "REPLICAS_DIFFER",
                        "replicas of the weights differ: '%s' (%s) of rank %d is not that of rank %d; "
                        "%lld of %lld parameters differ, on rank %s compared with their first holder",
                        name, layer, verdict->first_ranks[1], verdict->first_ranks[0],
                        (long long)verdict->num_different, (long long)c->num_params, ranks);
    rk_free(ranks);
    return st;
}

static struct rk_status *compare(const struct comparison *c, int64_t *num_compared)
{
    int32_t *first_of_part = rk_calloc((size_t)c->num_ranks, sizeof(*first_of_part));
    struct verdict verdict = {.is_odd = rk_calloc((size_t)c->num_ranks, sizeof(bool))};
    struct rk_status *st;

    for (int64_t i = 0; i < c->num_params; i++)
        compare_param(c, i, first_of_part, &verdict);
    *num_compared = verdict.num_compared;
    st = report(c, &verdict);
    rk_free(first_of_part);
    rk_free(verdict.is_odd);
    return st;
}

struct rk_status *rk_model_verify_replicas(struct rk_model *model, const struct rk_engine_hooks *hooks,
                                           int64_t *num_compared)
{
    static const uint32_t axes =
        RK_AXIS_BIT(RK_AXIS_TP) | RK_AXIS_BIT(RK_AXIS_CP) | RK_AXIS_BIT(RK_AXIS_DP) | RK_AXIS_BIT(RK_AXIS_PP);
    const struct rk_param_table *params = &model->core->params;
    struct rk_comm_group *group = rk_mesh_comms_group(model->core->mesh, RK_GROUP_ALL);
    struct comparison c = {.model = model,
                           .hooks = hooks,
                           .group = group,
                           .num_ranks = rk_comm_group_size(group),
                           .num_params = params->count};
    struct rk_status *st;

    *num_compared = 0;
    if (c.num_ranks == 1)
        return NULL;
    c.ranks = rk_calloc((size_t)c.num_ranks, sizeof(*c.ranks));
    (void)rk_mesh_group(params->mesh, axes, rk_mesh_rank_at(params->mesh, &params->coords), c.ranks);
    st = rk_model_agree(model, prepare(&c));
    if (!st)
        st = gather(&c);
    if (!st)
        st = compare(&c, num_compared);
    fini(&c);
    return st;
}
