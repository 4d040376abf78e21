/* The parameter descriptor over meshes: every element of a tensor has one main replica, every element of its
 * optimizer state one shard. The functions are pure, so meshes of all axes are tested, including those that
 * the engine does not support. */
#include "tests/support/test.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "engine/rk_param.h"

/* Rows as a layer would declare them; num_parts 0: one per rank of the split axis. */
struct param_case {
    const char *label;
    int64_t rows, cols, rows_padded;
    int32_t split_dim, num_parts;
    int32_t stage, shared_stage; /* -1: the last */
    int32_t ep_rank;             /* -1: dense */
};

static const struct param_case params[] = {
    {"vector", 40, 1, 0, -1, 1, 0, 0, -1},
    {"rows", 48, 6, 0, 0, 0, 0, 0, -1},
    {"columns", 10, 48, 0, 1, 0, -1, -1, -1},
    {"key-value heads, two parts", 16, 5, 0, 0, 2, 0, 0, -1},
    {"padded vocabulary, tied", 51, 4, 96, 0, 0, 0, -1, -1},
    {"expert, rows", 24, 6, 0, 0, 0, -1, -1, 0},
    {"last expert, columns", 6, 24, 0, 1, 0, -1, -1, 1},
    {"expert, vector", 9, 1, 0, -1, 1, 0, 0, 0},
};

static const struct rk_mesh_spec meshes[] = {
    {.tp = 1},
    {.tp = 2},
    {.tp = 4, .dp = 2},
    {.tp = 8, .dp = 1},
    {.dp = 3},
    {.tp = 2, .dp = 2, .pp = 2},
    {.tp = 2, .cp = 2, .dp = 2},
    {.tp = 2, .cp = 2, .dp = 3, .pp = 2},
    {.tp = 2, .dp = 4, .ep = 2},
    {.tp = 4, .dp = 2, .ep = 2, .etp = 2},
    {.tp = 4, .dp = 2, .ep = 2, .etp = 1, .pp = 2},
    {.tp = 2, .cp = 2, .dp = 2, .ep = 2, .etp = 1},
    {.tp = 2, .dp = 3, .pp = 2, .order = RK_MESH_ORDER_ROLLOUT},
    {.tp = 2, .cp = 2, .dp = 2, .pp = 2, .order = "cp-dp-tp-pp"},
};

static int32_t count_ranks(const struct rk_mesh_spec *spec)
{
    return RK_MAX(spec->tp, 1) * RK_MAX(spec->cp, 1) * RK_MAX(spec->dp, 1) * RK_MAX(spec->pp, 1);
}

static struct rk_param make_param(const struct param_case *row, const struct rk_mesh *mesh)
{
    int32_t last_stage = rk_mesh_axis_size(mesh, RK_AXIS_PP) - 1;
    bool is_expert = row->ep_rank >= 0;
    struct rk_param param = {
        .rank = row->cols > 1 ? 2 : 1,
        .shape = {row->rows, row->cols},
        .stage = row->stage < 0 ? last_stage : row->stage,
        .shared_stage = row->shared_stage < 0 ? last_stage : row->shared_stage,
        .ep_rank = is_expert ? RK_MIN(row->ep_rank, rk_mesh_axis_size(mesh, RK_AXIS_EP) - 1) : -1,
        .split = {.axis = is_expert ? RK_AXIS_ETP : RK_AXIS_TP, .dim = row->split_dim, .num_parts = 1},
        .grad_group = is_expert ? RK_GROUP_EDP : RK_GROUP_DP_CP,
    };
    int32_t axis_size = rk_mesh_axis_size(mesh, param.split.axis);

    if (row->split_dim < 0)
        return param;
    param.split.num_parts = row->num_parts ? RK_MIN(row->num_parts, axis_size) : axis_size;
    param.split.size_padded = row->rows_padded ? row->rows_padded : param.shape[row->split_dim];
    return param;
}

/* Adds 1 to the cells of the box. */
static void paint_box(const struct rk_param *param, const struct rk_param_box *box, int32_t *cells)
{
    for (int64_t r = 0; r < box->shape[0]; r++) {
        for (int64_t c = 0; c < box->shape[1]; c++)
            cells[(box->begin[0] + r) * param->shape[1] + box->begin[1] + c]++;
    }
}

/* Adds 1 to the cells of the global tensor whose state is in a shard, and records the contents of the shard's
 * arrays.
 */
static void paint_shard(const struct rk_param *param, const struct rk_placement *placement,
                        const struct rk_shard_map *map, int32_t *cells, uint8_t *held)
{
    struct rk_param_box box = rk_param_get_box(param, placement);
    int64_t begin = placement->offset, end = begin + rk_placement_num_elements(placement);
    struct rk_shard_run run = {0};

    while (rk_shard_next_run(map, begin, end, &run)) {
        assert_true(run.begin >= begin && run.count > 0 && run.begin + run.count <= end);
        for (int64_t e = 0; e < run.count; e++) {
            int64_t row = (run.begin - begin + e) / placement->local_shape[1];
            int64_t col = (run.begin - begin + e) % placement->local_shape[1];

            assert_int_equal(held[run.shard + e]++, 0);
            if (row < box.shape[0] && col < box.shape[1])
                cells[(box.begin[0] + row) * param->shape[1] + box.begin[1] + col]++;
        }
    }
}

/* The rank's index among the ranks over which the gradient is summed. */
static int32_t grad_rank(const struct rk_param *param, const struct rk_mesh *mesh, int32_t rank,
                         int32_t *count)
{
    uint32_t mask =
        param->ep_rank >= 0 ? RK_AXIS_BIT(RK_AXIS_EDP) : RK_AXIS_BIT(RK_AXIS_DP) | RK_AXIS_BIT(RK_AXIS_CP);
    int32_t members[64];

    *count = rk_mesh_group(mesh, mask, rank, members);
    assert_int_equal(*count, rk_grad_group_size(rk_param_grad_group(param), mesh));
    for (int32_t i = 0; i < *count; i++) {
        if (members[i] == rank)
            return i;
    }
    fail_msg("rank %d is not in its own group", rank);
    return -1;
}

/* A flat buffer that holds the parameter between others, and is divided into buckets of 48 elements and
 * more. */
static struct rk_shard_map make_map(const struct rk_param *param, const struct rk_mesh *mesh, int32_t rank,
                                    struct rk_placement *placement)
{
    struct rk_shard_map map = {0};
    int64_t align;

    map.index = grad_rank(param, mesh, rank, &map.num_shards);
    align = 8 * map.num_shards;
    placement->offset = 24;
    map.bucket_elements = (48 + align - 1) / align * align;
    map.num_elements = (24 + rk_placement_num_elements(placement) + 5 + align - 1) / align * align;
    return map;
}

/* The elements of one parameter on all ranks of a mesh, counted over the global tensor. */
struct painting {
    int32_t *copies, *mains, *states;
};

static void paint_rank(const struct rk_param *param, const struct rk_mesh *mesh, int32_t rank,
                       const struct painting *out)
{
    struct rk_mesh_coords coords;
    struct rk_placement placement;
    struct rk_param_box box;
    struct rk_shard_map map;
    uint8_t *held;

    assert_true(rk_mesh_find_coords(mesh, rank, &coords));
    rk_param_place(&placement, param, mesh, &coords);
    box = rk_param_get_box(param, &placement);
    paint_box(param, &box, out->copies);
    if (placement.is_main)
        paint_box(param, &box, out->mains);
    assert_true(placement.is_counted || !placement.is_main);
    assert_true(placement.is_held || rk_placement_num_elements(&placement) == 0);
    if (!placement.is_counted)
        return;
    map = make_map(param, mesh, rank, &placement);
    held = rk_calloc((size_t)(map.num_elements / map.num_shards), 1);
    paint_shard(param, &placement, &map, out->states, held);
    rk_free(held);
}

/* The number of ranks that hold each element: the product of the other axes of its grid, per part and
 * stage. */
static int32_t expected_copies(const struct rk_param *param, const struct rk_mesh *mesh)
{
    int32_t num_stages = param->stage == param->shared_stage ? 1 : 2;
    int32_t replicas = param->ep_rank >= 0
                           ? rk_mesh_axis_size(mesh, RK_AXIS_EDP)
                           : rk_mesh_axis_size(mesh, RK_AXIS_DP) * rk_mesh_axis_size(mesh, RK_AXIS_CP);

    return num_stages * replicas * rk_param_num_copies(param, mesh);
}

static void check_param(const struct param_case *row, const struct rk_mesh *mesh)
{
    struct rk_param param = make_param(row, mesh);
    size_t count = (size_t)rk_param_num_elements(&param);
    struct painting painting = {.copies = rk_calloc(count, sizeof(int32_t)),
                                .mains = rk_calloc(count, sizeof(int32_t)),
                                .states = rk_calloc(count, sizeof(int32_t))};

    for (int32_t rank = 0; rank < rk_mesh_num_ranks(mesh); rank++)
        paint_rank(&param, mesh, rank, &painting);
    for (size_t i = 0; i < count; i++) {
        if (painting.mains[i] != 1 || painting.states[i] != 1 ||
            painting.copies[i] != expected_copies(&param, mesh))
            fail_msg("%s on mesh %s: element %zu has %d copies (expected %d), %d main ones, state in %d "
                     "shards",
                     row->label, rk_mesh_text(mesh), i, painting.copies[i], expected_copies(&param, mesh),
                     painting.mains[i], painting.states[i]);
    }
    rk_free(painting.copies);
    rk_free(painting.mains);
    rk_free(painting.states);
}

/* Goal: for any mesh, the files and optimizer state written by the designated ranks have every element once.
 * Method: paint boxes and shard runs of all ranks over the global tensor. */
static void test_placements_of_a_mesh_cover_every_element_once(void **state)
{
    (void)state;
    for (size_t m = 0; m < RK_ARRAY_LEN(meshes); m++) {
        struct rk_mesh *mesh;

        assert_ok(rk_mesh_create(&mesh, &meshes[m], count_ranks(&meshes[m])));
        for (size_t p = 0; p < RK_ARRAY_LEN(params); p++)
            check_param(&params[p], mesh);
        rk_mesh_destroy(mesh);
    }
}

/* Goal: the runs of one shard equal those computed by hand. Two shards of buckets of 20, 20 and 10 elements:
 * shard 1 has elements 10..19, 30..39, 45..49. */
static void test_shard_next_run_of_a_range_gives_the_computed_runs(void **state)
{
    static const struct rk_shard_map map = {
        .num_elements = 50, .bucket_elements = 20, .num_shards = 2, .index = 1};
    static const struct {
        const char *label;
        int64_t begin, end;
        struct rk_shard_run runs[4]; /* ended by count 0 */
    } rows[] = {
        {"all", 0, 50, {{10, 10, 0, 0}, {30, 10, 10, 1}, {45, 5, 20, 2}, {0}}},
        {"inside one part", 12, 15, {{12, 3, 2, 0}, {0}}},
        {"across a part of the other shard", 18, 33, {{18, 2, 8, 0}, {30, 3, 10, 1}, {0}}},
        {"only the other shard's", 20, 30, {{0}}},
        {"up to the end", 41, 50, {{45, 5, 20, 2}, {0}}},
        {"nothing", 35, 35, {{0}}},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        struct rk_shard_run run = {0};
        int32_t n = 0;

        for (; rk_shard_next_run(&map, rows[i].begin, rows[i].end, &run); n++) {
            if (memcmp(&run, &rows[i].runs[n], sizeof(run)) != 0)
                fail_msg("%s: run %d begins at %lld, has %lld elements, stands at %lld", rows[i].label, n,
                         (long long)run.begin, (long long)run.count, (long long)run.shard);
        }
        if (rows[i].runs[n].count != 0)
            fail_msg("%s: only %d runs", rows[i].label, n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_placements_of_a_mesh_cover_every_element_once),
        cmocka_unit_test(test_shard_next_run_of_a_range_gives_the_computed_runs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
