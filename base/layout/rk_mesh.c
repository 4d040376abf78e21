/* Two grids over one list of ranks. A grid is {size, stride} per axis; the dense grid has tp, cp, dp, pp and
 * the expert grid has etp, ep, edp, pp, in the places that the order gives to tp, ep, dp, pp. */
#include "base/layout/rk_mesh.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_str.h"

#define MAX_ORDER_AXES 5
#define DENSE_MASK \
    (RK_AXIS_BIT(RK_AXIS_TP) | RK_AXIS_BIT(RK_AXIS_CP) | RK_AXIS_BIT(RK_AXIS_DP) | RK_AXIS_BIT(RK_AXIS_PP))
#define EXPERT_MASK \
    (RK_AXIS_BIT(RK_AXIS_ETP) | RK_AXIS_BIT(RK_AXIS_EP) | RK_AXIS_BIT(RK_AXIS_EDP) | RK_AXIS_BIT(RK_AXIS_PP))

static const char *const axis_names[RK_AXIS_COUNT] = {"tp", "cp", "dp", "pp", "etp", "ep", "edp"};

struct rk_mesh {
    int32_t size[RK_AXIS_COUNT];
    int32_t dense_stride[RK_AXIS_COUNT];  /* of tp, cp, dp, pp */
    int32_t expert_stride[RK_AXIS_COUNT]; /* of etp, ep, edp, pp */
    rk_axis_t dense_order[4];             /* fastest first; the axes that the order does not name come last */
    rk_axis_t expert_order[4];
    char order[32];
    char text[96];
    int32_t world_size;
    int32_t num_ranks;
    int32_t *ranks;    /* [num_ranks] world rank of mesh index */
    int32_t *index_of; /* [world_size] mesh index of world rank, -1 outside the mesh */
};

/* The order's axes by their dense names ("ep" stays ep); count in *num. */
static struct rk_status *parse_order(rk_axis_t axes[MAX_ORDER_AXES], int *num, const char *order)
{
    static const rk_axis_t named[] = {RK_AXIS_TP, RK_AXIS_CP, RK_AXIS_EP, RK_AXIS_DP, RK_AXIS_PP};
    uint32_t seen = 0;

    *num = 0;
    for (const char *p = order;; p++) {
        size_t bytes = strcspn(p, "-");
        int found = -1;

        for (size_t i = 0; i < RK_ARRAY_LEN(named); i++) {
            const char *name = axis_names[named[i]];

            if (strlen(name) == bytes && strncmp(p, name, bytes) == 0)
                found = (int)named[i];
        }
        if (found < 0 || (seen & RK_AXIS_BIT(found)))
            return RK_FAIL(RK_INVALID_ARGUMENT,
                           "mesh order '%s': '%.*s' is %s; expected tp, cp, ep, dp, pp, each at most once, "
                           "joined by '-'",
                           order, (int)bytes, p, found < 0 ? "no axis" : "repeated");
        seen |= RK_AXIS_BIT(found);
        axes[(*num)++] = (rk_axis_t)found;
        p += bytes;
        if (!*p)
            return NULL;
    }
}

static bool contains(const rk_axis_t *axes, int num, rk_axis_t axis)
{
    for (int i = 0; i < num; i++) {
        if (axes[i] == axis)
            return true;
    }
    return false;
}

/* Lays one grid out: first the axes of this grid that the order names, then the other axes, which have size
 * 1. */
static void lay_out(struct rk_mesh *mesh, rk_axis_t grid_order[4], int32_t stride[RK_AXIS_COUNT],
                    const rk_axis_t *order, int num)
{
    bool is_expert = grid_order == mesh->expert_order;
    static const rk_axis_t dense_axes[4] = {RK_AXIS_TP, RK_AXIS_CP, RK_AXIS_DP, RK_AXIS_PP};
    static const rk_axis_t expert_axes[4] = {RK_AXIS_ETP, RK_AXIS_EP, RK_AXIS_EDP, RK_AXIS_PP};
    const rk_axis_t *all = is_expert ? expert_axes : dense_axes;
    int32_t next = 1;
    int count = 0;

    for (int i = 0; i < num; i++) {
        rk_axis_t axis = order[i];

        if (is_expert && axis == RK_AXIS_TP)
            axis = RK_AXIS_ETP;
        else if (is_expert && axis == RK_AXIS_DP)
            axis = RK_AXIS_EDP;
        if (contains(all, 4, axis))
            grid_order[count++] = axis;
    }
    for (int i = 0; i < 4; i++) {
        if (!contains(grid_order, count, all[i]))
            grid_order[count++] = all[i];
    }
    RK_ASSERT(count == 4);
    for (int i = 0; i < 4; i++) {
        stride[grid_order[i]] = next;
        next *= mesh->size[grid_order[i]];
    }
    RK_ASSERT(next == mesh->num_ranks);
}

/* Product of three sizes; 0 when one is out of range. */
static int64_t product(int32_t a, int32_t b, int32_t c)
{
    if (a > RK_MESH_MAX_RANKS || b > RK_MESH_MAX_RANKS || c > RK_MESH_MAX_RANKS)
        return 0;
    return (int64_t)a * b * c;
}

static struct rk_status *fill_sizes(struct rk_mesh *mesh, const struct rk_mesh_spec *spec)
{
    int32_t n = mesh->num_ranks;
    int64_t dense, expert;

    if (spec->tp < 0 || spec->cp < 0 || spec->ep < 0 || spec->etp < 0 || spec->dp < 0 || spec->pp < 0)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "mesh sizes must not be negative: tp=%d cp=%d ep=%d etp=%d dp=%d pp=%d", spec->tp,
                       spec->cp, spec->ep, spec->etp, spec->dp, spec->pp);
    mesh->size[RK_AXIS_TP] = RK_MAX(spec->tp, 1);
    mesh->size[RK_AXIS_CP] = RK_MAX(spec->cp, 1);
    mesh->size[RK_AXIS_PP] = RK_MAX(spec->pp, 1);
    mesh->size[RK_AXIS_EP] = RK_MAX(spec->ep, 1);
    mesh->size[RK_AXIS_ETP] = spec->etp ? spec->etp : mesh->size[RK_AXIS_TP];
    dense = product(mesh->size[RK_AXIS_TP], mesh->size[RK_AXIS_CP], mesh->size[RK_AXIS_PP]);
    if (dense == 0 || n % dense != 0)
        return RK_FAIL(
            RK_INVALID_ARGUMENT, "mesh of %d ranks (world size %d) is not divisible by tp=%d x cp=%d x pp=%d",
            n, mesh->world_size, mesh->size[RK_AXIS_TP], mesh->size[RK_AXIS_CP], mesh->size[RK_AXIS_PP]);
    mesh->size[RK_AXIS_DP] = (int32_t)(n / dense);
    if (spec->dp && spec->dp != mesh->size[RK_AXIS_DP])
        return RK_FAIL(
            RK_INVALID_ARGUMENT,
            "mesh of %d ranks (world size %d) with tp=%d cp=%d pp=%d has dp=%d, but dp=%d was requested", n,
            mesh->world_size, mesh->size[RK_AXIS_TP], mesh->size[RK_AXIS_CP], mesh->size[RK_AXIS_PP],
            mesh->size[RK_AXIS_DP], spec->dp);
    expert = product(mesh->size[RK_AXIS_ETP], mesh->size[RK_AXIS_EP], mesh->size[RK_AXIS_PP]);
    if (expert == 0 || n % expert != 0)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "mesh of %d ranks (world size %d) is not divisible by etp=%d x ep=%d x pp=%d", n,
                       mesh->world_size, mesh->size[RK_AXIS_ETP], mesh->size[RK_AXIS_EP],
                       mesh->size[RK_AXIS_PP]);
    mesh->size[RK_AXIS_EDP] = (int32_t)(n / expert);
    return NULL;
}

/* An axis without a place in the order cannot have more than one rank. */
static struct rk_status *check_named(const struct rk_mesh *mesh, const rk_axis_t *order, int num)
{
    static const struct {
        rk_axis_t axis, place;
    } rows[] = {
        {RK_AXIS_TP, RK_AXIS_TP},  {RK_AXIS_CP, RK_AXIS_CP}, {RK_AXIS_EP, RK_AXIS_EP},
        {RK_AXIS_DP, RK_AXIS_DP},  {RK_AXIS_PP, RK_AXIS_PP}, {RK_AXIS_ETP, RK_AXIS_TP},
        {RK_AXIS_EDP, RK_AXIS_DP},
    };

    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        if (mesh->size[rows[i].axis] > 1 && !contains(order, num, rows[i].place))
            return RK_FAIL(RK_INVALID_ARGUMENT, "mesh has %s=%d, but its order '%s' does not name %s",
                           axis_names[rows[i].axis], mesh->size[rows[i].axis], mesh->order,
                           axis_names[rows[i].place]);
    }
    return NULL;
}

static struct rk_status *fill_grids(struct rk_mesh *mesh, const struct rk_mesh_spec *spec)
{
    size_t order_bytes = strnlen(spec->order, sizeof(spec->order));
    rk_axis_t order[MAX_ORDER_AXES];
    int num;

    if (order_bytes == sizeof(spec->order))
        return RK_FAIL(RK_INVALID_ARGUMENT, "mesh order is longer than %zu bytes", sizeof(spec->order) - 1);
    snprintf(mesh->order, sizeof(mesh->order), "%s", order_bytes ? spec->order : RK_MESH_ORDER_TRAIN);
    RK_TRY(parse_order(order, &num, mesh->order));
    RK_TRY(fill_sizes(mesh, spec));
    RK_TRY(check_named(mesh, order, num));
    lay_out(mesh, mesh->dense_order, mesh->dense_stride, order, num);
    lay_out(mesh, mesh->expert_order, mesh->expert_stride, order, num);
    if (mesh->size[RK_AXIS_PP] > 1 && mesh->dense_stride[RK_AXIS_PP] != mesh->expert_stride[RK_AXIS_PP])
        return RK_FAIL(
            RK_INVALID_ARGUMENT,
            "mesh order '%s' with tp=%d cp=%d dp=%d and etp=%d ep=%d edp=%d gives dense and expert "
            "layers different pipeline groups (put pp last)",
            mesh->order, mesh->size[RK_AXIS_TP], mesh->size[RK_AXIS_CP], mesh->size[RK_AXIS_DP],
            mesh->size[RK_AXIS_ETP], mesh->size[RK_AXIS_EP], mesh->size[RK_AXIS_EDP]);
    return NULL;
}

static struct rk_status *fill_ranks(struct rk_mesh *mesh, const struct rk_mesh_spec *spec)
{
    for (int32_t i = 0; i < mesh->world_size; i++)
        mesh->index_of[i] = -1;
    for (int32_t i = 0; i < mesh->num_ranks; i++) {
        int32_t rank = spec->num_ranks ? spec->ranks[i] : i;

        if (rank < 0 || rank >= mesh->world_size)
            return RK_FAIL(RK_INVALID_ARGUMENT, "mesh rank %d is outside the world of size %d", rank,
                           mesh->world_size);
        if (mesh->index_of[rank] >= 0)
            return RK_FAIL(RK_INVALID_ARGUMENT, "mesh names rank %d twice", rank);
        mesh->ranks[i] = rank;
        mesh->index_of[rank] = i;
    }
    return NULL;
}

static void fill_text(struct rk_mesh *mesh)
{
    static const rk_axis_t shown[] = {RK_AXIS_TP,  RK_AXIS_CP, RK_AXIS_EP,
                                      RK_AXIS_ETP, RK_AXIS_DP, RK_AXIS_PP};

    for (size_t i = 0; i < RK_ARRAY_LEN(shown); i++) {
        rk_axis_t axis = shown[i];
        int32_t usual = axis == RK_AXIS_ETP ? mesh->size[RK_AXIS_TP] : 1;
        size_t at = strlen(mesh->text);

        if (mesh->size[axis] != usual)
            snprintf(mesh->text + at, sizeof(mesh->text) - at, "%s%s=%d", at ? " " : "", axis_names[axis],
                     mesh->size[axis]);
    }
    if (!mesh->text[0])
        snprintf(mesh->text, sizeof(mesh->text), "single");
}

struct rk_status *rk_mesh_create(struct rk_mesh **out, const struct rk_mesh_spec *spec, int32_t world_size)
{
    struct rk_mesh *mesh;
    struct rk_status *st;

    *out = NULL;
    if (world_size < 1 || world_size > RK_MESH_MAX_RANKS)
        return RK_FAIL(RK_INVALID_ARGUMENT, "world size %d is not in 1..%d", world_size, RK_MESH_MAX_RANKS);
    if (spec->num_ranks < 0 || spec->num_ranks > world_size)
        return RK_FAIL(RK_INVALID_ARGUMENT, "mesh of %d ranks does not fit a world of size %d",
                       spec->num_ranks, world_size);
    RK_ASSERT(spec->num_ranks == 0 || spec->ranks != NULL);
    mesh = rk_calloc(1, sizeof(*mesh));
    mesh->world_size = world_size;
    mesh->num_ranks = spec->num_ranks ? spec->num_ranks : world_size;
    mesh->ranks = rk_calloc((size_t)mesh->num_ranks, sizeof(*mesh->ranks));
    mesh->index_of = rk_calloc((size_t)world_size, sizeof(*mesh->index_of));
    RK_TRY_GOTO(st, fill_ranks(mesh, spec), out);
    RK_TRY_GOTO(st, fill_grids(mesh, spec), out);
    fill_text(mesh);
    *out = mesh;
    mesh = NULL;

out:
    rk_mesh_destroy(mesh);
    return st;
}

void rk_mesh_destroy(struct rk_mesh *mesh)
{
    if (!mesh)
        return;
    rk_free(mesh->ranks);
    rk_free(mesh->index_of);
    rk_free(mesh);
}

struct rk_status *rk_mesh_clone(struct rk_mesh **out, const struct rk_mesh *mesh)
{
    struct rk_mesh_spec spec = rk_mesh_get_spec(mesh);

    return rk_mesh_create(out, &spec, mesh->world_size);
}

bool rk_mesh_equal(const struct rk_mesh *a, const struct rk_mesh *b)
{
    return a->world_size == b->world_size && a->num_ranks == b->num_ranks &&
           memcmp(a->size, b->size, sizeof(a->size)) == 0 && strcmp(a->order, b->order) == 0 &&
           memcmp(a->ranks, b->ranks, (size_t)a->num_ranks * sizeof(*a->ranks)) == 0;
}

/* Whether every rank of `a` has the same group over an axis of `a` as over an axis of `b`. */
static bool has_same_groups(const struct rk_mesh *a, rk_axis_t axis_a, const struct rk_mesh *b,
                            rk_axis_t axis_b)
{
    int32_t *of_a = rk_calloc((size_t)a->num_ranks, sizeof(*of_a));
    int32_t *of_b = rk_calloc((size_t)b->num_ranks, sizeof(*of_b));
    bool is_same = true;

    for (int32_t i = 0; i < a->num_ranks && is_same; i++) {
        int32_t count = rk_mesh_group(a, RK_AXIS_BIT(axis_a), a->ranks[i], of_a);

        is_same = rk_mesh_group(b, RK_AXIS_BIT(axis_b), a->ranks[i], of_b) == count &&
                  memcmp(of_a, of_b, (size_t)count * sizeof(*of_a)) == 0;
    }
    rk_free(of_a);
    rk_free(of_b);
    return is_same;
}

bool rk_mesh_has_same_parts(const struct rk_mesh *a, const struct rk_mesh *b)
{
    static const rk_axis_t axes[] = {RK_AXIS_TP, RK_AXIS_PP, RK_AXIS_EP, RK_AXIS_ETP};
    bool is_same = a->world_size == b->world_size && a->num_ranks == b->num_ranks;

    for (size_t i = 0; i < RK_ARRAY_LEN(axes) && is_same; i++)
        is_same = has_same_groups(a, axes[i], b, axes[i]);
    return is_same;
}

bool rk_mesh_ep_is_tp(const struct rk_mesh *mesh)
{
    return mesh->size[RK_AXIS_EP] == mesh->size[RK_AXIS_TP] &&
           has_same_groups(mesh, RK_AXIS_TP, mesh, RK_AXIS_EP);
}

struct rk_mesh_spec rk_mesh_get_spec(const struct rk_mesh *mesh)
{
    struct rk_mesh_spec spec = {
        .tp = mesh->size[RK_AXIS_TP],
        .cp = mesh->size[RK_AXIS_CP],
        .ep = mesh->size[RK_AXIS_EP],
        .etp = mesh->size[RK_AXIS_ETP],
        .dp = mesh->size[RK_AXIS_DP],
        .pp = mesh->size[RK_AXIS_PP],
        .num_ranks = mesh->num_ranks,
        .ranks = mesh->ranks,
    };

    memcpy(spec.order, mesh->order, sizeof(spec.order));
    return spec;
}

int32_t rk_mesh_axis_size(const struct rk_mesh *mesh, rk_axis_t axis)
{
    RK_ASSERT(axis < RK_AXIS_COUNT);
    return mesh->size[axis];
}

int32_t rk_mesh_num_ranks(const struct rk_mesh *mesh)
{
    return mesh->num_ranks;
}

int32_t rk_mesh_world_size(const struct rk_mesh *mesh)
{
    return mesh->world_size;
}

const char *rk_mesh_text(const struct rk_mesh *mesh)
{
    return mesh->text;
}

static int32_t index_of_rank(const struct rk_mesh *mesh, int32_t world_rank)
{
    return world_rank >= 0 && world_rank < mesh->world_size ? mesh->index_of[world_rank] : -1;
}

bool rk_mesh_find_coords(const struct rk_mesh *mesh, int32_t world_rank, struct rk_mesh_coords *out)
{
    int32_t index = index_of_rank(mesh, world_rank);

    for (int axis = 0; axis < RK_AXIS_COUNT; axis++) {
        bool is_dense = (DENSE_MASK & RK_AXIS_BIT(axis)) != 0;
        int32_t stride = is_dense ? mesh->dense_stride[axis] : mesh->expert_stride[axis];

        out->axis[axis] = index < 0 ? -1 : index / stride % mesh->size[axis];
    }
    return index >= 0;
}

int32_t rk_mesh_rank_at(const struct rk_mesh *mesh, const struct rk_mesh_coords *coords)
{
    int32_t index = 0;

    for (int i = 0; i < 4; i++) {
        rk_axis_t axis = mesh->dense_order[i];

        RK_ASSERT(coords->axis[axis] >= 0);
        RK_ASSERT(coords->axis[axis] < mesh->size[axis]);
        index += coords->axis[axis] * mesh->dense_stride[axis];
    }
    return mesh->ranks[index];
}

int32_t rk_mesh_group(const struct rk_mesh *mesh, uint32_t axis_mask, int32_t world_rank, int32_t *out)
{
    bool is_dense = (axis_mask & ~DENSE_MASK) == 0;
    const rk_axis_t *order = is_dense ? mesh->dense_order : mesh->expert_order;
    const int32_t *stride = is_dense ? mesh->dense_stride : mesh->expert_stride;
    int32_t base = index_of_rank(mesh, world_rank);
    int32_t count = 1;

    RK_ASSERT(is_dense || (axis_mask & ~EXPERT_MASK) == 0);
    if (base < 0)
        return 0;
    for (int i = 0; i < 4; i++) {
        if (axis_mask & RK_AXIS_BIT(order[i]))
            base -= base / stride[order[i]] % mesh->size[order[i]] * stride[order[i]];
    }
    out[0] = base;
    /* Each masked axis repeats the ranks so far, one stride further: fastest axis first. */
    for (int i = 0; i < 4; i++) {
        rk_axis_t axis = order[i];
        int32_t before = count;

        if (!(axis_mask & RK_AXIS_BIT(axis)))
            continue;
        for (int32_t k = 1; k < mesh->size[axis]; k++) {
            for (int32_t j = 0; j < before; j++)
                out[count++] = out[j] + k * stride[axis];
        }
    }
    for (int32_t i = 0; i < count; i++)
        out[i] = mesh->ranks[out[i]];
    return count;
}

bool rk_mesh_is_collector(const struct rk_mesh *mesh, int32_t world_rank)
{
    int32_t pp_collects = mesh->dense_order[0] == RK_AXIS_PP ? 0 : mesh->size[RK_AXIS_PP] - 1;
    struct rk_mesh_coords coords;

    return rk_mesh_find_coords(mesh, world_rank, &coords) && coords.axis[RK_AXIS_TP] == 0 &&
           coords.axis[RK_AXIS_CP] == 0 && coords.axis[RK_AXIS_PP] == pp_collects;
}

const char *rk_axis_name(rk_axis_t axis)
{
    RK_ASSERT(axis < RK_AXIS_COUNT);
    return axis_names[axis];
}

bool rk_mesh_place_text(const struct rk_mesh *mesh, int32_t world_rank, char buf[RK_MESH_PLACE_BYTES])
{
    static const rk_axis_t axes[] = {RK_AXIS_TP, RK_AXIS_CP, RK_AXIS_DP, RK_AXIS_PP};
    struct rk_mesh_coords coords;
    size_t at = 0;

    buf[0] = '\0';
    if (!rk_mesh_find_coords(mesh, world_rank, &coords))
        return false;
    for (size_t i = 0; i < RK_ARRAY_LEN(axes); i++) {
        int32_t size = rk_mesh_axis_size(mesh, axes[i]);

        if (size > 1)
            at += (size_t)snprintf(buf + at, RK_MESH_PLACE_BYTES - at, "%s%s %d of %d", at ? ", " : "",
                                   rk_axis_name(axes[i]), coords.axis[axes[i]], size);
    }
    return at > 0;
}
