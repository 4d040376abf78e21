/* The dispatch modes: rows over one mechanism (modes.def). A row defines the chunk of a rank and whether its
 * result is collected, both by the rank's coordinates in the mesh; everything else (checks, order of the
 * result) is the same for all. */
#include "dispatch/rk_modes.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_str.h"
#include "dispatch/modes.def"

#include <string.h>

#define NOT_ADDRESSED (-1)

/* Coordinates of a rank, as bits. */
enum { NONE = 0, TP = 1, CP = 2, DP = 4, PP = 8, RANK = 16, COLLECTOR = 32 };

struct mode {
    const char *name;
    rk_payload_kind_t payload;
    bool pads;
    uint32_t receives, chunk, collects;
};

static const struct mode modes[] = {
#define X(name, payload, pads, receives, chunk, collects) \
    {#name, RK_PAYLOAD_##payload, pads, receives, chunk, collects},
    RK_DISPATCH_MODE_TABLE(X)
#undef X
};

const char *const *rk_dispatch_mode_names(void)
{
    static const char *const names[] = {
#define X(name, payload, pads, receives, chunk, collects) #name,
        RK_DISPATCH_MODE_TABLE(X)
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

/* The bits of the coordinates of rank ranks[index] that are 0. */
static uint32_t zeros_of(const struct rk_mesh *mesh, int32_t index, int32_t rank,
                         const struct rk_mesh_coords *coords)
{
    return (coords->axis[RK_AXIS_TP] == 0 ? TP : 0u) | (coords->axis[RK_AXIS_CP] == 0 ? CP : 0u) |
           (coords->axis[RK_AXIS_DP] == 0 ? DP : 0u) | (coords->axis[RK_AXIS_PP] == 0 ? PP : 0u) |
           (index == 0 ? RANK : 0u) | (rk_mesh_is_collector(mesh, rank) ? COLLECTOR : 0u);
}

/* The chunk of rank ranks[index]: its coordinates in the mode's mask, read as the digits of a number. */
static int32_t chunk_of(const struct mode *mode, const struct rk_mesh_spec *spec, int32_t index,
                        const struct rk_mesh_coords *coords)
{
    const struct {
        uint32_t bit;
        int32_t at, size;
    } digits[] = {
        {CP, coords->axis[RK_AXIS_CP], spec->cp},
        {DP, coords->axis[RK_AXIS_DP], spec->dp},
        {PP, coords->axis[RK_AXIS_PP], spec->pp},
        {RANK, index, spec->num_ranks},
    };
    int32_t chunk = 0;

    for (size_t i = 0; i < RK_ARRAY_LEN(digits); i++) {
        if (mode->chunk & digits[i].bit)
            chunk = chunk * digits[i].size + digits[i].at;
    }
    return chunk;
}

struct rk_status *rk_dispatch_create(struct rk_dispatch **out, const char *mode, const struct rk_mesh *mesh)
{
    struct rk_mesh_spec spec = rk_mesh_get_spec(mesh);
    struct rk_dispatch *dispatch;
    const struct mode *row;

    *out = NULL;
    RK_TRY(find_mode(&row, mode));
    dispatch = dispatch_new(row->name, row->payload, rk_mesh_world_size(mesh));
    dispatch->pads = row->pads;
    for (int32_t i = 0; i < spec.num_ranks; i++) {
        int32_t rank = spec.ranks[i];
        struct rk_mesh_coords coords;
        uint32_t zeros;

        RK_ASSERT(rk_mesh_find_coords(mesh, rank, &coords));
        zeros = zeros_of(mesh, i, rank, &coords);
        if (row->receives & ~zeros)
            continue;
        dispatch->chunk_of_rank[rank] = chunk_of(row, &spec, i, &coords);
        dispatch->collects[rank] = !(row->collects & ~zeros);
        dispatch->num_chunks = RK_MAX(dispatch->num_chunks, dispatch->chunk_of_rank[rank] + 1);
    }
    return finish(out, dispatch);
}

/* --- several meshes --- */

static struct rk_status *check_union(const struct mode *row, const struct rk_mesh *const *meshes,
                                     int32_t num_meshes)
{
    if ((row->receives | row->chunk | row->collects) != NONE)
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
