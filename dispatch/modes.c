/* The dispatch modes: rows over one mechanism. A row defines the chunk of a rank and whether its result
 * is collected, both as functions of the rank's coordinates in the mesh; everything else (checks, order of
 * the result) is the same for all. */
#include "dispatch/rk_modes.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_str.h"

#include <string.h>

#define NOT_ADDRESSED (-1)

/* A rank's coordinates, and the sizes for the formulas. */
struct place {
    int32_t t, c, d, p;
    int32_t tp, cp, dp, pp;
    int32_t index;     /* position in the mesh's list of ranks */
    int32_t num_ranks; /* of the mesh */
    bool is_collector;
};

/* --- chunk of a rank --- */

static int32_t chunk_same(const struct place *place)
{
    (void)place;
    return 0;
}

static int32_t chunk_first_only(const struct place *place)
{
    return place->index == 0 ? 0 : NOT_ADDRESSED;
}

static int32_t chunk_rank(const struct place *place)
{
    return place->index;
}

static int32_t chunk_dp(const struct place *place)
{
    return place->d;
}

/* Consecutive items go down one pipeline; dp within cp. */
static int32_t chunk_item(const struct place *place)
{
    return (place->c * place->dp + place->d) * place->pp + place->p;
}

/* --- number of chunks --- */

static int32_t count_one(const struct place *place)
{
    (void)place;
    return 1;
}

static int32_t count_ranks(const struct place *place)
{
    return place->num_ranks;
}

static int32_t count_dp(const struct place *place)
{
    return place->dp;
}

static int32_t count_items(const struct place *place)
{
    return place->cp * place->dp * place->pp;
}

/* --- collected ranks --- */

static bool collect_all(const struct place *place)
{
    (void)place;
    return true;
}

static bool collect_first(const struct place *place)
{
    return place->index == 0;
}

static bool collect_collector(const struct place *place)
{
    return place->is_collector;
}

static bool collect_tp0(const struct place *place)
{
    return place->t == 0;
}

/* One rank of every pipeline stage. verl's rule lacks the condition on cp and returns cp copies of each
 * stage. */
static bool collect_stages(const struct place *place)
{
    return place->t == 0 && place->d == 0 && place->c == 0;
}

/*   X(name, payload, pads, chunk of a rank, number of chunks, who is collected) */
#define MODE_TABLE(X)                                                              \
    X(RANK_ZERO, VALUE, false, chunk_first_only, count_one, collect_first)         \
    X(ONE_TO_ALL, VALUE, false, chunk_same, count_one, collect_all)                \
    X(ALL_TO_ALL, VALUE, false, chunk_rank, count_ranks, collect_all)              \
    X(MEGATRON_COMPUTE, ITEMS, false, chunk_dp, count_dp, collect_collector)       \
    X(MEGATRON_COMPUTE_PROTO, PROTO, false, chunk_dp, count_dp, collect_collector) \
    X(MEGATRON_PP_AS_DP, ITEMS, false, chunk_item, count_items, collect_tp0)       \
    X(MEGATRON_PP_AS_DP_PROTO, PROTO, false, chunk_item, count_items, collect_tp0) \
    X(MEGATRON_PP_ONLY, VALUE, false, chunk_same, count_one, collect_stages)       \
    X(DP_COMPUTE, ITEMS, false, chunk_rank, count_ranks, collect_all)              \
    X(DP_COMPUTE_PROTO, PROTO, true, chunk_rank, count_ranks, collect_all)         \
    X(DP_COMPUTE_METRIC, METRIC, true, chunk_rank, count_ranks, collect_all)       \
    X(ND_COMPUTE, PROTO, false, chunk_dp, count_dp, collect_collector)

struct mode {
    const char *name;
    rk_payload_kind_t payload;
    bool pads;
    int32_t (*chunk)(const struct place *place);
    int32_t (*num_chunks)(const struct place *place);
    bool (*collects)(const struct place *place);
};

static const struct mode modes[] = {
#define X(name, payload, pads, chunk, count, collects) \
    {#name, RK_PAYLOAD_##payload, pads, chunk, count, collects},
    MODE_TABLE(X)
#undef X
};

const char *const *rk_dispatch_mode_names(void)
{
    static const char *const names[] = {
#define X(name, payload, pads, chunk, count, collects) #name,
        MODE_TABLE(X)
#undef X
            NULL};

    return names;
}

static struct rk_status *find_mode(const struct mode **out, const char *name)
{
    struct rk_str known = {0};
    struct rk_status *st;

    for (size_t i = 0; i < RK_ARRAY_LEN(modes); i++) {
        if (strcmp(modes[i].name, name) == 0) {
            *out = &modes[i];
            rk_str_fini(&known);
            return NULL;
        }
        rk_str_appendf(&known, "%s%s", i ? ", " : "", modes[i].name);
    }
    st = RK_FAIL(RK_NOT_FOUND, "unknown dispatch mode '%s', expected one of %s", name, rk_str_text(&known));
    rk_str_fini(&known);
    return st;
}

static struct rk_dispatch *dispatch_new(const char *mode, rk_payload_kind_t payload, int32_t world_size)
{
    struct rk_dispatch *dispatch = rk_calloc(1, sizeof(*dispatch));

    dispatch->mode = mode;
    dispatch->payload = payload;
    dispatch->world_size = world_size;
    dispatch->chunk_of_rank = rk_calloc((size_t)world_size, sizeof(*dispatch->chunk_of_rank));
    dispatch->collects = rk_calloc((size_t)world_size, sizeof(*dispatch->collects));
    dispatch->collected = rk_calloc((size_t)world_size, sizeof(*dispatch->collected));
    for (int32_t r = 0; r < world_size; r++)
        dispatch->chunk_of_rank[r] = NOT_ADDRESSED;
    return dispatch;
}

void rk_dispatch_destroy(struct rk_dispatch *dispatch)
{
    if (!dispatch)
        return;
    rk_free(dispatch->chunk_of_rank);
    rk_free(dispatch->collects);
    rk_free(dispatch->collected);
    rk_free(dispatch);
}

/* Collected ranks by chunk, ascending ranks inside a chunk: a counting sort. */
static void order_collected(struct rk_dispatch *dispatch)
{
    int32_t *next = rk_calloc((size_t)dispatch->num_chunks + 1, sizeof(*next));

    for (int32_t r = 0; r < dispatch->world_size; r++) {
        if (dispatch->collects[r])
            next[dispatch->chunk_of_rank[r] + 1]++;
    }
    for (int32_t i = 0; i < dispatch->num_chunks; i++)
        next[i + 1] += next[i];
    dispatch->num_collected = next[dispatch->num_chunks];
    for (int32_t r = 0; r < dispatch->world_size; r++) {
        if (dispatch->collects[r])
            dispatch->collected[next[dispatch->chunk_of_rank[r]]++] = r;
    }
    rk_free(next);
}

/* Every chunk must have a receiver; a result batch is complete only if every chunk is collected once. */
static struct rk_status *check_chunks(const struct rk_dispatch *dispatch)
{
    int32_t *num_receivers = rk_calloc((size_t)dispatch->num_chunks, sizeof(*num_receivers));
    int32_t *num_collected = rk_calloc((size_t)dispatch->num_chunks, sizeof(*num_collected));
    struct rk_status *st = NULL;

    for (int32_t r = 0; r < dispatch->world_size; r++) {
        int32_t chunk = dispatch->chunk_of_rank[r];

        if (chunk == NOT_ADDRESSED)
            continue;
        num_receivers[chunk]++;
        num_collected[chunk] += dispatch->collects[r];
    }
    for (int32_t i = 0; i < dispatch->num_chunks && !st; i++) {
        if (num_receivers[i] == 0)
            st = RK_FAIL(RK_INVALID_ARGUMENT, "%s: no rank receives chunk %d of %d", dispatch->mode, i,
                         dispatch->num_chunks);
        else if (dispatch->payload == RK_PAYLOAD_PROTO && num_collected[i] != 1)
            st = RK_FAIL(RK_INVALID_ARGUMENT, "%s: chunk %d is collected from %d ranks, expected one",
                         dispatch->mode, i, num_collected[i]);
    }
    rk_free(num_receivers);
    rk_free(num_collected);
    return st;
}

/* Takes ownership of the dispatch, on failure too. */
static struct rk_status *finish(struct rk_dispatch **out, struct rk_dispatch *dispatch)
{
    struct rk_status *st = check_chunks(dispatch);

    if (st) {
        rk_dispatch_destroy(dispatch);
        return st;
    }
    order_collected(dispatch);
    *out = dispatch;
    return NULL;
}

struct rk_status *rk_dispatch_create(struct rk_dispatch **out, const char *mode, const struct rk_mesh *mesh)
{
    struct rk_mesh_spec spec = rk_mesh_get_spec(mesh);
    struct place place = {
        .tp = spec.tp, .cp = spec.cp, .dp = spec.dp, .pp = spec.pp, .num_ranks = spec.num_ranks};
    struct rk_dispatch *dispatch;
    const struct mode *row;

    *out = NULL;
    RK_TRY(find_mode(&row, mode));
    dispatch = dispatch_new(row->name, row->payload, rk_mesh_world_size(mesh));
    dispatch->pads = row->pads;
    dispatch->num_chunks = row->num_chunks(&place);
    for (int32_t i = 0; i < spec.num_ranks; i++) {
        int32_t rank = spec.ranks[i];
        struct rk_mesh_coords coords;

        RK_ASSERT(rk_mesh_find_coords(mesh, rank, &coords));
        place.t = coords.axis[RK_AXIS_TP];
        place.c = coords.axis[RK_AXIS_CP];
        place.d = coords.axis[RK_AXIS_DP];
        place.p = coords.axis[RK_AXIS_PP];
        place.index = i;
        place.is_collector = rk_mesh_is_collector(mesh, rank);
        dispatch->chunk_of_rank[rank] = row->chunk(&place);
        dispatch->collects[rank] = row->collects(&place);
        RK_ASSERT(dispatch->chunk_of_rank[rank] < dispatch->num_chunks);
    }
    return finish(out, dispatch);
}

/* --- several meshes --- */

static struct rk_status *check_union(const struct mode *row, const struct rk_mesh *const *meshes,
                                     int32_t num_meshes)
{
    if (row->chunk != chunk_same || row->collects != collect_all)
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s over %d meshes, expected ONE_TO_ALL or one mesh", row->name,
                       num_meshes);
    for (int32_t i = 1; i < num_meshes; i++) {
        if (rk_mesh_world_size(meshes[i]) != rk_mesh_world_size(meshes[0]))
            return RK_FAIL(RK_INVALID_ARGUMENT, "%s over meshes of worlds of %d and %d ranks", row->name,
                           rk_mesh_world_size(meshes[0]), rk_mesh_world_size(meshes[i]));
    }
    return NULL;
}

struct rk_status *rk_dispatch_create_union(struct rk_dispatch **out, const char *mode,
                                           const struct rk_mesh *const *meshes, int32_t num_meshes)
{
    struct rk_dispatch *dispatch;
    const struct mode *row;

    *out = NULL;
    RK_ASSERT(num_meshes > 0);
    if (num_meshes == 1)
        return rk_dispatch_create(out, mode, meshes[0]);
    RK_TRY(find_mode(&row, mode));
    RK_TRY(check_union(row, meshes, num_meshes));
    dispatch = dispatch_new(row->name, row->payload, rk_mesh_world_size(meshes[0]));
    dispatch->num_chunks = 1;
    for (int32_t i = 0; i < num_meshes; i++) {
        struct rk_mesh_spec spec = rk_mesh_get_spec(meshes[i]);

        for (int32_t k = 0; k < spec.num_ranks; k++) {
            dispatch->chunk_of_rank[spec.ranks[k]] = 0;
            dispatch->collects[spec.ranks[k]] = true;
        }
    }
    return finish(out, dispatch);
}

/* --- tables --- */

/* Checks the chunks and collected ranks of a table; a mesh has valid ones by construction. */
static struct rk_status *check_table(int32_t world_size, const int32_t *chunk_of_rank, const bool *collects)
{
    int32_t last = NOT_ADDRESSED;

    if (world_size < 1 || world_size > RK_MESH_MAX_RANKS)
        return RK_FAIL(RK_INVALID_ARGUMENT, "ND_COMPUTE: a table of %d ranks, expected 1 to %d", world_size,
                       RK_MESH_MAX_RANKS);
    for (int32_t r = 0; r < world_size; r++) {
        if (chunk_of_rank[r] < NOT_ADDRESSED || chunk_of_rank[r] >= world_size)
            return RK_FAIL(RK_INVALID_ARGUMENT, "ND_COMPUTE: rank %d has chunk %d", r, chunk_of_rank[r]);
        if (!collects[r])
            continue;
        if (chunk_of_rank[r] == NOT_ADDRESSED)
            return RK_FAIL(RK_INVALID_ARGUMENT, "ND_COMPUTE: rank %d is collected, but has no chunk", r);
        if (chunk_of_rank[r] <= last)
            return RK_FAIL(RK_INVALID_ARGUMENT,
                           "ND_COMPUTE: collected ranks must have ascending chunks, rank %d has %d "
                           "after %d",
                           r, chunk_of_rank[r], last);
        last = chunk_of_rank[r];
    }
    return NULL;
}

struct rk_status *rk_dispatch_create_table(struct rk_dispatch **out, int32_t world_size,
                                           const int32_t *chunk_of_rank, const bool *collects)
{
    struct rk_dispatch *dispatch;

    *out = NULL;
    RK_TRY(check_table(world_size, chunk_of_rank, collects));
    dispatch = dispatch_new("ND_COMPUTE", RK_PAYLOAD_PROTO, world_size);
    for (int32_t r = 0; r < world_size; r++) {
        dispatch->chunk_of_rank[r] = chunk_of_rank[r];
        dispatch->collects[r] = collects[r];
        dispatch->num_chunks = RK_MAX(dispatch->num_chunks, chunk_of_rank[r] + 1);
    }
    return finish(out, dispatch);
}
