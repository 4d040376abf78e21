/* The dispatch modes: all tables of rank maps, and properties over random meshes. */
#include "tests/support/test.h"

#include "base/rk_alloc.h"
#include "base/rk_compiler.h"
#include "base/rk_rng.h"
#include "base/rk_str.h"
#include "dispatch/rk_modes.h"
#include "proto/rk_methods.h"

#include <stdio.h>
#include <string.h>

#define MAX_RANKS 16

/* Chunk of each rank as digits or letters ("-": not addressed), and the collected ranks in the order of the
 * result. */
static const struct {
    const char *label;
    struct rk_mesh_spec mesh;
    int32_t world_size;
    const char *mode;
    int32_t chunk_of_rank[MAX_RANKS];
    int32_t num_chunks;
    int32_t num_collected, collected[MAX_RANKS];
} cases[] = {
#define COMPUTE "MEGATRON_COMPUTE_PROTO"
#define AS_DP   "MEGATRON_PP_AS_DP_PROTO"
#define STAGES  "MEGATRON_PP_ONLY"
    {"tp2 dp2 pp2", {.tp = 2, .dp = 2, .pp = 2}, 8, COMPUTE, {0, 0, 1, 1, 0, 0, 1, 1}, 2, 2, {4, 6}},
    {"tp2 dp2 pp2", {.tp = 2, .dp = 2, .pp = 2}, 8, AS_DP, {0, 0, 2, 2, 1, 1, 3, 3}, 4, 4, {0, 4, 2, 6}},
    {"tp2 dp2 pp2", {.tp = 2, .dp = 2, .pp = 2}, 8, STAGES, {0}, 1, 2, {0, 4}},
    {"tp2 cp2 dp2", {.tp = 2, .cp = 2, .dp = 2}, 8, COMPUTE, {0, 0, 0, 0, 1, 1, 1, 1}, 2, 2, {0, 4}},
    {"tp2 cp2 dp2", {.tp = 2, .cp = 2, .dp = 2}, 8, AS_DP, {0, 0, 2, 2, 1, 1, 3, 3}, 4, 4, {0, 4, 2, 6}},
    {"tp2 cp2 dp2", {.tp = 2, .cp = 2, .dp = 2}, 8, STAGES, {0}, 1, 1, {0}},
    {"tp2 cp2 pp2", {.tp = 2, .cp = 2, .dp = 1, .pp = 2}, 8, COMPUTE, {0}, 1, 1, {4}},
    {"tp2 cp2 pp2",
     {.tp = 2, .cp = 2, .dp = 1, .pp = 2},
     8,
     AS_DP,
     {0, 0, 2, 2, 1, 1, 3, 3},
     4,
     4,
     {0, 4, 2, 6}},
    {"tp2 cp2 pp2", {.tp = 2, .cp = 2, .dp = 1, .pp = 2}, 8, STAGES, {0}, 1, 2, {0, 4}},
    {"tp2 cp2 dp2 pp2",
     {.tp = 2, .cp = 2, .dp = 2, .pp = 2},
     16,
     COMPUTE,
     {0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1},
     2,
     2,
     {8, 12}},
    {"tp2 cp2 dp2 pp2",
     {.tp = 2, .cp = 2, .dp = 2, .pp = 2},
     16,
     AS_DP,
     {0, 0, 4, 4, 2, 2, 6, 6, 1, 1, 5, 5, 3, 3, 7, 7},
     8,
     8,
     {0, 8, 4, 12, 2, 10, 6, 14}},
    {"tp2 cp2 dp2 pp2", {.tp = 2, .cp = 2, .dp = 2, .pp = 2}, 16, STAGES, {0}, 1, 2, {0, 8}},
    {"tp2 dp4", {.tp = 2, .dp = 4}, 8, COMPUTE, {0, 0, 1, 1, 2, 2, 3, 3}, 4, 4, {0, 2, 4, 6}},
    {"tp2 dp4", {.tp = 2, .dp = 4}, 8, AS_DP, {0, 0, 1, 1, 2, 2, 3, 3}, 4, 4, {0, 2, 4, 6}},
    {"tp2 dp2 pp2, items",
     {.tp = 2, .dp = 2, .pp = 2},
     8,
     "MEGATRON_COMPUTE",
     {0, 0, 1, 1, 0, 0, 1, 1},
     2,
     2,
     {4, 6}},
    {"tp2 dp2 pp2, items",
     {.tp = 2, .dp = 2, .pp = 2},
     8,
     "MEGATRON_PP_AS_DP",
     {0, 0, 2, 2, 1, 1, 3, 3},
     4,
     4,
     {0, 4, 2, 6}},
    {"rollout tp2",
     {.tp = 2, .order = "pp-tp-dp"},
     8,
     "ND_COMPUTE",
     {0, 0, 1, 1, 2, 2, 3, 3},
     4,
     4,
     {0, 2, 4, 6}},
    {"rollout tp4", {.tp = 4, .order = "pp-tp-dp"}, 8, "ND_COMPUTE", {0, 0, 0, 0, 1, 1, 1, 1}, 2, 2, {0, 4}},
    {"rollout tp2 pp2",
     {.tp = 2, .pp = 2, .order = "pp-tp-dp"},
     8,
     "ND_COMPUTE",
     {0, 0, 0, 0, 1, 1, 1, 1},
     2,
     2,
     {0, 4}},
    {"ND_COMPUTE over a training mesh",
     {.tp = 2, .dp = 2, .pp = 2},
     8,
     "ND_COMPUTE",
     {0, 0, 1, 1, 0, 0, 1, 1},
     2,
     2,
     {4, 6}},
    {"one to all", {.tp = 2, .dp = 2}, 4, "ONE_TO_ALL", {0, 0, 0, 0}, 1, 4, {0, 1, 2, 3}},
    {"all to all", {.tp = 2, .dp = 2}, 4, "ALL_TO_ALL", {0, 1, 2, 3}, 4, 4, {0, 1, 2, 3}},
    {"rank zero", {.tp = 2, .dp = 2}, 4, "RANK_ZERO", {0, -1, -1, -1}, 1, 1, {0}},
    {"dp compute", {.tp = 2, .dp = 2}, 4, "DP_COMPUTE", {0, 1, 2, 3}, 4, 4, {0, 1, 2, 3}},
    {"dp compute", {.tp = 2, .dp = 2}, 4, "DP_COMPUTE_PROTO", {0, 1, 2, 3}, 4, 4, {0, 1, 2, 3}},
    {"dp compute", {.tp = 2, .dp = 2}, 4, "DP_COMPUTE_METRIC", {0, 1, 2, 3}, 4, 4, {0, 1, 2, 3}},
    {"ranks 2 and 3 of four",
     {.dp = 2, .num_ranks = 2, .ranks = (const int32_t[]){2, 3}},
     4,
     COMPUTE,
     {-1, -1, 0, 1},
     2,
     2,
     {2, 3}},
    {"ranks 2 and 3 of four",
     {.dp = 2, .num_ranks = 2, .ranks = (const int32_t[]){2, 3}},
     4,
     "ONE_TO_ALL",
     {-1, -1, 0, 0},
     1,
     2,
     {2, 3}},
    {"ranks 3 and 1, in this order",
     {.dp = 2, .num_ranks = 2, .ranks = (const int32_t[]){3, 1}},
     4,
     "DP_COMPUTE_PROTO",
     {-1, 1, -1, 0},
     2,
     2,
     {3, 1}},
    {"rank zero of a mesh elsewhere",
     {.dp = 2, .num_ranks = 2, .ranks = (const int32_t[]){2, 3}},
     4,
     "RANK_ZERO",
     {-1, -1, 0, -1},
     1,
     1,
     {2}},
    {"a single rank", {.dp = 1}, 1, COMPUTE, {0}, 1, 1, {0}},
};

static void test_create_gives_the_tables(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_dispatch *dispatch;
        struct rk_mesh *mesh;

        print_message("%s %s\n", cases[i].label, cases[i].mode);
        assert_ok(rk_mesh_create(&mesh, &cases[i].mesh, cases[i].world_size));
        assert_ok(rk_dispatch_create(&dispatch, cases[i].mode, mesh));
        assert_string_equal(dispatch->mode, cases[i].mode);
        assert_int_equal(dispatch->world_size, cases[i].world_size);
        assert_int_equal(dispatch->num_chunks, cases[i].num_chunks);
        assert_memory_equal(dispatch->chunk_of_rank, cases[i].chunk_of_rank,
                            (size_t)cases[i].world_size * sizeof(int32_t));
        assert_int_equal(dispatch->num_collected, cases[i].num_collected);
        assert_memory_equal(dispatch->collected, cases[i].collected,
                            (size_t)cases[i].num_collected * sizeof(int32_t));
        for (int32_t r = 0; r < cases[i].world_size; r++) {
            bool is_listed = false;

            for (int32_t k = 0; k < dispatch->num_collected; k++)
                is_listed = is_listed || dispatch->collected[k] == r;
            assert_int_equal(dispatch->collects[r], is_listed);
        }
        rk_dispatch_destroy(dispatch);
        rk_mesh_destroy(mesh);
    }
}

static void test_create_payload_and_padding_of_every_mode(void **state)
{
    static const struct {
        const char *mode;
        rk_payload_kind_t payload;
        bool pads;
    } rows[] = {
        {"RANK_ZERO", RK_PAYLOAD_VALUE, false},
        {"ONE_TO_ALL", RK_PAYLOAD_VALUE, false},
        {"ALL_TO_ALL", RK_PAYLOAD_VALUE, false},
        {"MEGATRON_COMPUTE", RK_PAYLOAD_ITEMS, false},
        {"MEGATRON_COMPUTE_PROTO", RK_PAYLOAD_PROTO, false},
        {"MEGATRON_PP_AS_DP", RK_PAYLOAD_ITEMS, false},
        {"MEGATRON_PP_AS_DP_PROTO", RK_PAYLOAD_PROTO, false},
        {"MEGATRON_PP_ONLY", RK_PAYLOAD_VALUE, false},
        {"DP_COMPUTE", RK_PAYLOAD_ITEMS, false},
        {"DP_COMPUTE_PROTO", RK_PAYLOAD_PROTO, true},
        {"DP_COMPUTE_METRIC", RK_PAYLOAD_METRIC, true},
        {"ND_COMPUTE", RK_PAYLOAD_PROTO, false},
    };
    const char *const *names = rk_dispatch_mode_names();
    struct rk_mesh *mesh;
    size_t count = 0;

    (void)state;
    assert_ok(rk_mesh_create(&mesh, &(struct rk_mesh_spec){.dp = 2}, 2));
    for (; names[count]; count++) {
        struct rk_dispatch *dispatch;

        assert_true(count < RK_ARRAY_LEN(rows));
        assert_string_equal(names[count], rows[count].mode);
        assert_ok(rk_dispatch_create(&dispatch, names[count], mesh));
        assert_int_equal(dispatch->payload, rows[count].payload);
        assert_int_equal(dispatch->pads, rows[count].pads);
        rk_dispatch_destroy(dispatch);
    }
    assert_int_equal(count, RK_ARRAY_LEN(rows));
    rk_mesh_destroy(mesh);
}

static void test_create_unknown_mode_lists_the_known_ones(void **state)
{
    static const char *const unknown[] = {"", "megatron_compute", "DP_COMPUTE_PROTO_WITH_FUNC",
                                          "DIRECT_ROLLOUT_METHOD"};
    struct rk_dispatch *dispatch;
    struct rk_mesh *mesh;

    (void)state;
    assert_ok(rk_mesh_create(&mesh, &(struct rk_mesh_spec){.dp = 2}, 2));
    for (size_t i = 0; i < RK_ARRAY_LEN(unknown); i++) {
        assert_fails(rk_dispatch_create(&dispatch, unknown[i], mesh), RK_NOT_FOUND,
                     "expected one of RANK_ZERO, ONE_TO_ALL");
        assert_null(dispatch);
    }
    rk_mesh_destroy(mesh);
}

/* --- every order, and lists of ranks --- */

#define NUM_16 16

/* Coordinates of a position, computed by counting in mixed radix along the order, independently of the
 * strides of base/layout/rk_mesh.c. */
struct spot {
    int32_t t, c, d, p;
};

static struct spot count_to(const char *order, int32_t position)
{
    int32_t digit[4] = {0}; /* in the order's axes, each of size 2 */
    struct spot spot = {0};

    for (int32_t i = 0; i < position; i++) {
        for (int k = 0; k < 4 && ++digit[k] == 2; k++)
            digit[k] = 0;
    }
    for (int k = 0; k < 4; k++) {
        const char *axis = order + 3 * k;

        *(*axis == 't' ? &spot.t : *axis == 'c' ? &spot.c : *axis == 'd' ? &spot.d : &spot.p) = digit[k];
    }
    return spot;
}

/* Whether the pipeline stages of the dense layers and of the expert layers (whose grid has no cp and dp 4)
 * are the same ranks. Other meshes are invalid. */
static bool has_one_pipeline(const char *order)
{
    int dense = 1, expert = 1;

    for (; strncmp(order, "pp", 2) != 0; order += 3) {
        dense *= 2;
        expert *= *order == 'c' ? 1 : *order == 'd' ? 4 : 2;
    }
    return dense == expert;
}

/* Checks the rank that gets each of the 8 items, and the ranks whose results are collected, for the Megatron
 * modes. */
static void check_order(const char *order, const int32_t *ranks, int32_t world_size)
{
    static const char *const modes[] = {COMPUTE, "MEGATRON_COMPUTE",  "ND_COMPUTE",
                                        AS_DP,   "MEGATRON_PP_AS_DP", STAGES};
    struct rk_mesh_spec spec = {.tp = 2, .cp = 2, .dp = 2, .pp = 2, .num_ranks = ranks ? NUM_16 : 0};
    int32_t last =
        strncmp(order, "pp", 2) == 0 ? 0 : 1; /* a mesh with pp fastest collects at its first stage */
    struct rk_mesh *mesh;

    spec.ranks = ranks;
    snprintf(spec.order, sizeof(spec.order), "%s", order);
    if (!has_one_pipeline(order)) {
        assert_fails(rk_mesh_create(&mesh, &spec, world_size), RK_INVALID_ARGUMENT, "put pp last");
        return;
    }
    assert_ok(rk_mesh_create(&mesh, &spec, world_size));
    for (size_t m = 0; m < RK_ARRAY_LEN(modes); m++) {
        bool is_compute = m < 3, is_stages = m == 5;
        int32_t num_seen = 0, num_expected = is_compute ? 2 : is_stages ? 2 : 8;
        struct rk_dispatch *dispatch;

        assert_ok(rk_dispatch_create(&dispatch, modes[m], mesh));
        assert_int_equal(dispatch->num_chunks, is_compute ? 2 : is_stages ? 1 : 8);
        assert_int_equal(dispatch->num_collected, num_expected);
        for (int32_t i = 0; i < NUM_16; i++) {
            struct spot at = count_to(order, i);
            int32_t rank = ranks ? ranks[i] : i;

            assert_int_equal(dispatch->chunk_of_rank[rank], is_compute  ? at.d
                                                            : is_stages ? 0
                                                                        : (at.c * 2 + at.d) * 2 + at.p);
            assert_int_equal(dispatch->collects[rank], is_compute  ? at.t == 0 && at.c == 0 && at.p == last
                                                       : is_stages ? at.t == 0 && at.c == 0 && at.d == 0
                                                                   : at.t == 0);
        }
        for (int32_t r = 0; r < world_size; r++)
            num_seen += dispatch->chunk_of_rank[r] >= 0;
        assert_int_equal(num_seen, NUM_16);
        for (int32_t k = 0; k < num_expected && !is_stages; k++) /* items come back in their order */
            assert_int_equal(dispatch->chunk_of_rank[dispatch->collected[k]], k);
        rk_dispatch_destroy(dispatch);
    }
    rk_mesh_destroy(mesh);
}

/* Goal: chunks and collectors follow the coordinates, for any order of the axes and of the ranks. */
static void test_create_every_order_and_list_of_ranks(void **state)
{
    static const char *const axes[] = {"tp", "cp", "dp", "pp"};
    static const int32_t scattered[NUM_16] = {7, 19, 2, 3, 11, 5, 17, 0, 13, 1, 8, 16, 4, 10, 6, 18};
    int num_orders = 0;

    (void)state;
    for (int code = 0; code < 256; code++) {
        int a = code & 3, b = code >> 2 & 3, c = code >> 4 & 3, d = code >> 6;
        char order[16];

        if (a == b || a == c || a == d || b == c || b == d || c == d)
            continue;
        snprintf(order, sizeof(order), "%s-%s-%s-%s", axes[a], axes[b], axes[c], axes[d]);
        check_order(order, NULL, NUM_16);
        check_order(order, scattered, 20);
        num_orders++;
    }
    assert_int_equal(num_orders, 24);
}

/* --- several meshes --- */

#define RANKS(...)                                                                              \
    .num_ranks = sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t), .ranks = (const int32_t[]) \
    {                                                                                           \
        __VA_ARGS__                                                                             \
    }

static const struct {
    const char *label;
    int32_t world_size, num_meshes;
    struct rk_mesh_spec meshes[3];
    const char *addressed; /* a rank each */
} unions[] = {
    {"one mesh", 4, 1, {{.tp = 2, RANKS(1, 2)}}, ".xx."},
    {"the same ranks", 4, 2, {{.tp = 2, .pp = 2}, {.tp = 4, .order = "pp-tp-dp"}}, "xxxx"},
    {"disjoint", 6, 2, {{.tp = 2, RANKS(0, 1)}, {.tp = 2, RANKS(5, 3)}}, "xx.x.x"},
    {"overlapping", 6, 2, {{.dp = 3, RANKS(0, 1, 2)}, {.dp = 3, RANKS(2, 3, 1)}}, "xxxx.."},
    {"one inside the other", 4, 2, {{.dp = 4}, {.dp = 1, RANKS(3)}}, "xxxx"},
    {"three", 8, 3, {{.dp = 1, RANKS(7)}, {.dp = 1, RANKS(0)}, {.tp = 2, RANKS(3, 4)}}, "x..xx..x"},
};

static void test_create_union_addresses_every_rank_of_the_meshes_once(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(unions); i++) {
        struct rk_mesh *meshes[3] = {0};
        struct rk_dispatch *dispatch;
        int32_t next = 0;

        print_message("%s\n", unions[i].label);
        for (int32_t m = 0; m < unions[i].num_meshes; m++)
            assert_ok(rk_mesh_create(&meshes[m], &unions[i].meshes[m], unions[i].world_size));
        assert_ok(rk_dispatch_create_union(&dispatch, "ONE_TO_ALL", (const struct rk_mesh *const *)meshes,
                                           unions[i].num_meshes));
        assert_string_equal(dispatch->mode, "ONE_TO_ALL");
        assert_int_equal(dispatch->payload, RK_PAYLOAD_VALUE);
        assert_int_equal(dispatch->world_size, unions[i].world_size);
        assert_int_equal(dispatch->num_chunks, 1);
        for (int32_t r = 0; r < unions[i].world_size; r++) {
            bool is_addressed = unions[i].addressed[r] == 'x';

            assert_int_equal(dispatch->chunk_of_rank[r], is_addressed ? 0 : -1);
            assert_int_equal(dispatch->collects[r], is_addressed);
            if (is_addressed)
                assert_int_equal(dispatch->collected[next++], r);
        }
        assert_int_equal(dispatch->num_collected, next);
        rk_dispatch_destroy(dispatch);
        for (int32_t m = 0; m < unions[i].num_meshes; m++)
            rk_mesh_destroy(meshes[m]);
    }
}

static void test_create_union_refuses_modes_that_count_chunks(void **state)
{
    const char *const *names = rk_dispatch_mode_names();
    const struct rk_mesh *meshes[3];
    struct rk_mesh *four, *of_four, *eight;
    struct rk_dispatch *dispatch;

    (void)state;
    assert_ok(rk_mesh_create(&four, &(struct rk_mesh_spec){.tp = 2}, 4));
    assert_ok(rk_mesh_create(&of_four, &(struct rk_mesh_spec){.tp = 2, RANKS(2, 3)}, 4));
    assert_ok(rk_mesh_create(&eight, &(struct rk_mesh_spec){.tp = 2}, 8));
    meshes[0] = four;
    meshes[1] = of_four;
    meshes[2] = eight;
    for (; *names; names++) {
        if (strcmp(*names, "ONE_TO_ALL") == 0)
            continue;
        assert_fails(rk_dispatch_create_union(&dispatch, *names, meshes, 2), RK_INVALID_ARGUMENT,
                     "over 2 meshes, expected ONE_TO_ALL or one mesh");
        assert_null(dispatch);
    }
    assert_fails(rk_dispatch_create_union(&dispatch, "ONE_TO_ALL", meshes, 3), RK_INVALID_ARGUMENT,
                 "over meshes of worlds of 4 and 8 ranks");
    assert_null(dispatch);
    assert_fails(rk_dispatch_create_union(&dispatch, "ONE_TO_SOME", meshes, 2), RK_NOT_FOUND,
                 "unknown dispatch mode 'ONE_TO_SOME'");
    rk_mesh_destroy(four);
    rk_mesh_destroy(of_four);
    rk_mesh_destroy(eight);
}

/* The meshes of the roles of a group without a ref role. */
static const struct rk_mesh *find_mesh(const void *user, const char *role)
{
    struct rk_mesh *const *meshes = user;

    return strcmp(role, "actor") == 0 ? meshes[0] : strcmp(role, "rollout") == 0 ? meshes[1] : NULL;
}

static void test_create_method_goes_over_the_meshes_of_its_row(void **state)
{
    static const struct {
        const char *mode, *mesh, *role;
        int32_t chunk_of_rank[4], num_collected;
    } rows[] = {
        {"ONE_TO_ALL", "", "actor", {0, 0, -1, -1}, 2},
        {"ONE_TO_ALL", "", "rollout", {-1, 0, 0, -1}, 2},
        {"ONE_TO_ALL", "actor+rollout", "rollout", {0, 0, 0, -1}, 3},
        {"ONE_TO_ALL", "actor+rollout", "critic", {0, 0, 0, -1}, 3},
        {"ND_COMPUTE", "rollout", "rollout", {-1, 0, 1, -1}, 2},
        {"MEGATRON_COMPUTE_PROTO", "", "actor", {0, 0, -1, -1}, 1},
    };
    struct rk_method method = {.name = "m"};
    struct rk_dispatch *dispatch;
    struct rk_mesh *meshes[2];

    (void)state;
    assert_ok(rk_mesh_create(&meshes[0], &(struct rk_mesh_spec){.tp = 2, RANKS(0, 1)}, 4));
    assert_ok(rk_mesh_create(&meshes[1], &(struct rk_mesh_spec){.dp = 2, RANKS(1, 2)}, 4));
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        print_message("%s(%s) of %s\n", rows[i].mode, rows[i].mesh, rows[i].role);
        method.dispatch_mode = rows[i].mode;
        method.dispatch_mesh = rows[i].mesh;
        assert_ok(rk_dispatch_create_method(&dispatch, &method, rows[i].role, find_mesh, meshes));
        assert_memory_equal(dispatch->chunk_of_rank, rows[i].chunk_of_rank, sizeof(rows[i].chunk_of_rank));
        assert_int_equal(dispatch->num_collected, rows[i].num_collected);
        rk_dispatch_destroy(dispatch);
    }
    method.dispatch_mesh = "actor+ref";
    assert_fails(rk_dispatch_create_method(&dispatch, &method, "actor", find_mesh, meshes),
                 RK_FAILED_PRECONDITION, "role 'ref' has no mesh in this group");
    assert_null(dispatch);
    rk_mesh_destroy(meshes[0]);
    rk_mesh_destroy(meshes[1]);
}

/* --- properties --- */

struct sizes {
    int32_t tp, cp, dp, pp;
};

static void check_compute(const struct rk_mesh *mesh, struct sizes sizes)
{
    struct rk_dispatch *dispatch;
    int32_t num_receivers[64] = {0};

    assert_ok(rk_dispatch_create(&dispatch, COMPUTE, mesh));
    assert_int_equal(dispatch->num_collected, sizes.dp);
    for (int32_t i = 0; i < sizes.dp; i++) {
        assert_int_equal(dispatch->chunk_of_rank[dispatch->collected[i]], i);
        if (i > 0)
            assert_true(dispatch->collected[i] > dispatch->collected[i - 1]);
    }
    for (int32_t r = 0; r < dispatch->world_size; r++)
        num_receivers[dispatch->chunk_of_rank[r]]++;
    for (int32_t i = 0; i < sizes.dp; i++)
        assert_int_equal(num_receivers[i], sizes.tp * sizes.cp * sizes.pp);
    rk_dispatch_destroy(dispatch);
}

static void check_pp_as_dp(const struct rk_mesh *mesh, struct sizes sizes)
{
    struct rk_dispatch *dispatch;
    int32_t num_receivers[64] = {0}, num_chunks = sizes.pp * sizes.dp * sizes.cp;

    assert_ok(rk_dispatch_create(&dispatch, AS_DP, mesh));
    assert_int_equal(dispatch->num_chunks, num_chunks);
    assert_int_equal(dispatch->num_collected, num_chunks);
    for (int32_t r = 0; r < dispatch->world_size; r++)
        num_receivers[dispatch->chunk_of_rank[r]]++;
    for (int32_t i = 0; i < num_chunks; i++) {
        assert_int_equal(num_receivers[i], sizes.tp);
        assert_int_equal(dispatch->chunk_of_rank[dispatch->collected[i]], i);
    }
    rk_dispatch_destroy(dispatch);
}

static void test_create_random_meshes_cover_every_chunk(void **state)
{
    struct rk_rng rng;
    int num_checked = 0;

    (void)state;
    rk_rng_init(&rng, rk_test_seed(), 1);
    while (num_checked < 200) {
        struct sizes sizes = {1 << rk_rng_next_below(&rng, 4), 1 + (int32_t)rk_rng_next_below(&rng, 3),
                              1 + (int32_t)rk_rng_next_below(&rng, 6),
                              1 + (int32_t)rk_rng_next_below(&rng, 4)};
        int32_t world_size = sizes.tp * sizes.cp * sizes.dp * sizes.pp;
        struct rk_mesh *mesh;

        if (world_size > 64)
            continue;
        assert_ok(rk_mesh_create(
            &mesh, &(struct rk_mesh_spec){.tp = sizes.tp, .cp = sizes.cp, .dp = sizes.dp, .pp = sizes.pp},
            world_size));
        check_compute(mesh, sizes);
        check_pp_as_dp(mesh, sizes);
        rk_mesh_destroy(mesh);
        num_checked++;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create_gives_the_tables),
        cmocka_unit_test(test_create_payload_and_padding_of_every_mode),
        cmocka_unit_test(test_create_unknown_mode_lists_the_known_ones),
        cmocka_unit_test(test_create_every_order_and_list_of_ranks),
        cmocka_unit_test(test_create_union_addresses_every_rank_of_the_meshes_once),
        cmocka_unit_test(test_create_union_refuses_modes_that_count_chunks),
        cmocka_unit_test(test_create_method_goes_over_the_meshes_of_its_row),
        cmocka_unit_test(test_create_random_meshes_cover_every_chunk),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
