/* A run: the ranks exchange their layouts, make the plan, execute its moves, and verify the result. Entry
 * point: rk_reshard_run. */
#include "engine/reshard/reshard.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

/* Data that one rank of each side broadcasts. */
struct header {
    uint64_t weight_version;
    int32_t dtype;
    struct rk_model_layout layout; /* assignment of rows to pipeline stages */
};

/* The parameter tables of both sides. On a rank without a model of a side, the table is built as on a rank
 * that has one. */
struct tables {
    struct rk_model_core *source, *destination; /* borrowed, or one of `own` */
    struct rk_model_core own[2];
};

/* All ranks get the same result, or the communicator has failed. */
static struct rk_status *agree(const struct rk_reshard_run *run, struct rk_status *st)
{
    st = rk_engine_agree(run->group, run->args->stream, run->args->scratch, st);
    run->result->is_known_to_peers = st != NULL;
    return st;
}

static bool is_in(const struct rk_mesh *mesh, int32_t rank)
{
    struct rk_mesh_coords coords;

    return rk_mesh_find_coords(mesh, rank, &coords);
}

static struct rk_status *check_args(const struct rk_reshard_run *run)
{
    const struct rk_reshard_args *args = run->args;
    const struct rk_engine_hooks *hooks = args->hooks;

    if (is_in(run->link->source, run->link->rank) && !args->source)
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "NO_MODEL", "the source has no model on this rank");
    if (is_in(run->link->destination, run->link->rank) && !args->destination)
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "NO_MODEL",
                              "the destination has no model on this rank");
    if (hooks && hooks->is_cancelled && hooks->is_cancelled(hooks->user))
        return RK_FAIL(RK_CANCELLED, "cancelled before any weights were moved");
    return NULL;
}

/* --- exchange of both sides' layouts --- */

static struct rk_status *share_header(const struct rk_reshard_run *run, const struct rk_mesh *mesh,
                                      const struct rk_model_core *core, struct header *out)
{
    struct rk_stream *stream = run->args->stream;
    void *scratch = run->args->scratch;
    int32_t root = rk_reshard_link_index(run->link, rk_mesh_get_spec(mesh).ranks[0]);

    *out = (struct header){0};
    if (core) {
        out->weight_version = core->weight_version;
        out->dtype = (int32_t)core->dtype;
        out->layout = core->layout;
    }
    RK_TRY(rk_stream_copy(stream, scratch, out, sizeof(*out), RK_COPY_H2D));
    RK_TRY(rk_comm_broadcast(run->group, stream, rk_tensor_1d(scratch, RK_DTYPE_U8, sizeof(*out)), root));
    RK_TRY(rk_stream_copy(stream, out, scratch, sizeof(*out), RK_COPY_D2H));
    return rk_stream_sync(stream);
}

static struct rk_status *plan_core(struct rk_model_core *out, const struct rk_model_core *like,
                                   const struct rk_mesh *mesh, const struct header *header)
{
    struct rk_mesh_coords coords;

    out->config = like->config;
    out->head.ops = like->head.ops;
    out->dtype = (rk_dtype_t)header->dtype;
    out->layout = header->layout;
    RK_ASSERT(rk_mesh_find_coords(mesh, rk_mesh_get_spec(mesh).ranks[0], &coords));
    return rk_model_declare(out, mesh, &coords);
}

static struct rk_status *tables_init(struct tables *tables, const struct rk_reshard_run *run,
                                     const struct header *source, const struct header *destination)
{
    tables->source = run->source ? run->source : &tables->own[0];
    tables->destination = run->destination ? run->destination : &tables->own[1];
    if (!run->source)
        RK_TRY(plan_core(tables->source, run->destination, run->link->source, source));
    if (!run->destination)
        RK_TRY(plan_core(tables->destination, run->source, run->link->destination, destination));
    return NULL;
}

static void tables_fini(struct tables *tables)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(tables->own); i++)
        rk_model_declare_fini(&tables->own[i]);
}

static struct rk_reshard_side side_of(const struct rk_model_core *core, const struct rk_mesh *mesh)
{
    return (struct rk_reshard_side){mesh, core->params.params, core->params.count};
}

static struct rk_status *make_plan(struct rk_reshard_run *run, const struct header *source,
                                   const struct header *destination)
{
    struct tables tables = {0};
    struct rk_status *st = tables_init(&tables, run, source, destination);

    if (!st)
        st = rk_reshard_plan_create(&run->plan,
                                    &(struct rk_reshard_desc){
                                        .source = side_of(tables.source, run->link->source),
                                        .destination = side_of(tables.destination, run->link->destination),
                                        .rank = run->link->rank,
                                        .elem_bytes = rk_dtype_bytes(run->dtype),
                                        .bucket_bytes = run->args->bucket_bytes,
                                    });
    tables_fini(&tables);
    return st;
}

/* The minimum of the hash and the minimum of its complement are complements exactly if all hashes are
 * equal. */
static struct rk_status *check_hash(const struct rk_reshard_run *run)
{
    int32_t least[8];

    for (int i = 0; i < 4; i++) {
        least[i] = (int32_t)(run->plan->hash >> (16 * i) & UINT16_MAX);
        least[4 + i] = -least[i];
    }
    RK_TRY(rk_engine_min(run->group, run->args->stream, run->args->scratch, least, RK_ARRAY_LEN(least)));
    for (int i = 0; i < 4; i++) {
        if (least[i] == -least[4 + i])
            continue;
        run->result->is_known_to_peers = true;
        return RK_FAIL(RK_INVALID_ARGUMENT, "the ranks have different plans of the update; expected "
                                            "equal models and options in source and destination");
    }
    return NULL;
}

/* All ranks of a mesh have buffers of the same size, so that ranks with equal parts of the model have equal
 * memory plans. RESOURCE_EXHAUSTED. */
static struct rk_status *take_buffers_of(struct rk_reshard_run *run, struct rk_step_arena *arena)
{
    const struct rk_reshard_link *link = run->link;
    const struct rk_reshard_plan *plan = run->plan;
    struct rk_reshard_buffers *out = &run->buffers;
    struct rk_mesh_coords coords;

    if (rk_mesh_find_coords(link->source, link->rank, &coords))
        RK_TRY(rk_step_1d(arena, &out->send, RK_DTYPE_U8, plan->send_bytes_max));
    if (rk_mesh_find_coords(link->destination, link->rank, &coords))
        RK_TRY(rk_step_1d(arena, &out->recv, RK_DTYPE_U8, plan->recv_bytes_max));
    RK_TRY(rk_step_1d(arena, &out->fingerprints, RK_DTYPE_I64, 2 * plan->num_parts));
    return rk_step_1d(arena, &out->sums, RK_DTYPE_F64, 4 * plan->num_parts);
}

static struct rk_status *take_buffers(struct rk_reshard_run *run)
{
    struct rk_model *model = run->args->destination ? run->args->destination : run->args->source;

    RK_TRY(rk_stream_sync(run->args->stream));
    rk_step_arena_reset(model->arena);
    return take_buffers_of(run, model->arena);
}

struct rk_status *rk_reshard_take(struct rk_model *model, const struct rk_reshard_link *link,
                                  const struct rk_model_layout *source_layout, int64_t bucket_bytes)
{
    const struct rk_reshard_args args = {.bucket_bytes = bucket_bytes};
    /* Sequence parallelism, which a mesh with etp=1 may need for its passes, does not change the parts. */
    const struct header destination = {.dtype = (int32_t)model->core->dtype,
                                       .layout = {.sequence_parallel = true}};
    struct header source = {.dtype = destination.dtype, .layout = *source_layout};
    bool is_destination = rk_mesh_equal(rk_mesh_comms_mesh(model->core->mesh), link->destination);
    struct rk_reshard_run run = {.args = &args,
                                 .link = link,
                                 .source = is_destination ? NULL : model->core,
                                 .destination = is_destination ? model->core : NULL,
                                 .dtype = model->core->dtype};
    struct rk_status *st;

    source.layout.sequence_parallel = true;
    st = make_plan(&run, &source, &destination);
    if (!st) {
        rk_step_arena_reset(model->arena);
        st = take_buffers_of(&run, model->arena);
    }
    rk_reshard_plan_destroy(run.plan);
    return st;
}

static struct rk_status *prepare(struct rk_reshard_run *run, uint64_t *version)
{
    struct header source, destination;

    RK_TRY(agree(run, check_args(run)));
    RK_TRY(share_header(run, run->link->source, run->source, &source));
    RK_TRY(share_header(run, run->link->destination, run->destination, &destination));
    run->dtype = (rk_dtype_t)destination.dtype;
    *version = source.weight_version;
    RK_TRY(agree(run, make_plan(run, &source, &destination)));
    RK_TRY(check_hash(run));
    return agree(run, take_buffers(run));
}

struct rk_status *rk_reshard_run(struct rk_reshard_result *out, const struct rk_reshard_args *args)
{
    struct rk_reshard_run run = {
        .args = args,
        .result = out,
        .link = args->link,
        .group = rk_reshard_link_group(args->link),
        .source = args->source ? args->source->core : NULL,
        .destination = args->destination ? args->destination->core : NULL,
    };
    struct rk_status *st;

    RK_ASSERT(args->struct_size == sizeof(*args));
    RK_ASSERT(run.link->is_member);
    *out = (struct rk_reshard_result){0};
    RK_TRY_GOTO(st, prepare(&run, &out->weight_version), out);
    out->has_begun = true;
    RK_TRY_GOTO(st, rk_reshard_transfer(&run), out);
    RK_TRY_GOTO(st, rk_reshard_compare(&run), out);
    if (run.destination)
        run.destination->weight_version = out->weight_version;
    out->traffic = run.plan->mine;
    out->num_rounds = run.plan->num_rounds;

out:
    rk_reshard_plan_destroy(run.plan);
    return st ? RK_WRAP(st, "moving weights from mesh %s to %s", rk_mesh_text(run.link->source),
                        rk_mesh_text(run.link->destination))
              : NULL;
}
