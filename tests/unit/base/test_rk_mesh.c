#include "base/layout/rk_mesh.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_rng.h"
#include "base/rk_str.h"
#include "tests/support/test.h"

#define TP  RK_AXIS_BIT(RK_AXIS_TP)
#define CP  RK_AXIS_BIT(RK_AXIS_CP)
#define DP  RK_AXIS_BIT(RK_AXIS_DP)
#define PP  RK_AXIS_BIT(RK_AXIS_PP)
#define ETP RK_AXIS_BIT(RK_AXIS_ETP)
#define EP  RK_AXIS_BIT(RK_AXIS_EP)
#define EDP RK_AXIS_BIT(RK_AXIS_EDP)

static struct rk_mesh *make(struct rk_mesh_spec spec, int32_t world_size)
{
    struct rk_mesh *mesh;

    assert_ok(rk_mesh_create(&mesh, &spec, world_size));
    return mesh;
}

/* All groups of an axis set, in order of their first rank: "{0,1}{2,3}". */
static void format_groups(const struct rk_mesh *mesh, uint32_t mask, struct rk_str *out)
{
    int32_t members[64];

    for (int32_t rank = 0; rank < rk_mesh_world_size(mesh); rank++) {
        int32_t count = rk_mesh_group(mesh, mask, rank, members);

        if (count == 0 || members[0] != rank)
            continue;
        for (int32_t i = 0; i < count; i++)
            rk_str_appendf(out, "%s%d", i ? "," : "{", members[i]);
        rk_str_append(out, "}");
    }
}

struct group_case {
    const char *label;
    struct rk_mesh_spec spec;
    int32_t world_size;
    uint32_t mask;
    const char *expected;
};

static void check_groups(const struct group_case *cases, size_t num_cases)
{
    for (size_t i = 0; i < num_cases; i++) {
        struct rk_mesh *mesh = make(cases[i].spec, cases[i].world_size);
        struct rk_str text = {0};

        format_groups(mesh, cases[i].mask, &text);
        if (strcmp(rk_str_text(&text), cases[i].expected) != 0)
            fail_msg("%s: %s", cases[i].label, rk_str_text(&text));
        rk_str_fini(&text);
        rk_mesh_destroy(mesh);
    }
}

#define PAIRS8   "{0,1}{2,3}{4,5}{6,7}"
#define SINGLES8 "{0}{1}{2}{3}{4}{5}{6}{7}"

/* Goal: four models on one set of 8 ranks, each with its own mesh. */
static void test_mesh_group_eight_ranks_four_meshes(void **state)
{
    static const struct rk_mesh_spec actor = {.tp = 2, .dp = 2, .pp = 2}, critic = {.tp = 4, .dp = 2},
                                     reference = {.tp = 1, .dp = 8}, rollout = {.tp = 2, .dp = 4};
    const struct group_case cases[] = {
        {"actor tp", actor, 8, TP, PAIRS8},
        {"actor dp", actor, 8, DP, "{0,2}{1,3}{4,6}{5,7}"},
        {"actor pp", actor, 8, PP, "{0,4}{1,5}{2,6}{3,7}"},
        {"critic tp", critic, 8, TP, "{0,1,2,3}{4,5,6,7}"},
        {"critic dp", critic, 8, DP, "{0,4}{1,5}{2,6}{3,7}"},
        {"critic pp", critic, 8, PP, SINGLES8},
        {"reference tp", reference, 8, TP, SINGLES8},
        {"reference dp", reference, 8, DP, "{0,1,2,3,4,5,6,7}"},
        {"reference pp", reference, 8, PP, SINGLES8},
        {"rollout tp", rollout, 8, TP, PAIRS8},
        {"rollout dp", rollout, 8, DP, "{0,2,4,6}{1,3,5,7}"},
        {"rollout pp", rollout, 8, PP, SINGLES8},
        {"no axis", actor, 8, 0, SINGLES8},
    };

    (void)state;
    check_groups(cases, RK_ARRAY_LEN(cases));
}

#define PAIRS16      "{0,1}{2,3}{4,5}{6,7}{8,9}{10,11}{12,13}{14,15}"
#define EVERY_FOURTH "{0,4}{1,5}{2,6}{3,7}{8,12}{9,13}{10,14}{11,15}"

static void test_mesh_group_sixteen_ranks_dense_and_expert(void **state)
{
    static const struct rk_mesh_spec moe = {.tp = 2, .cp = 2, .dp = 2, .pp = 2, .etp = 1, .ep = 4},
                                     etp2 = {.tp = 2, .cp = 2, .dp = 2, .pp = 2, .ep = 4};
    const struct group_case cases[] = {
        {"tp", moe, 16, TP, PAIRS16},
        {"cp", moe, 16, CP, "{0,2}{1,3}{4,6}{5,7}{8,10}{9,11}{12,14}{13,15}"},
        {"dp", moe, 16, DP, EVERY_FOURTH},
        {"dp_cp", moe, 16, CP | DP, "{0,2,4,6}{1,3,5,7}{8,10,12,14}{9,11,13,15}"},
        {"tp_cp", moe, 16, TP | CP, "{0,1,2,3}{4,5,6,7}{8,9,10,11}{12,13,14,15}"},
        {"pp", moe, 16, PP, "{0,8}{1,9}{2,10}{3,11}{4,12}{5,13}{6,14}{7,15}"},
        {"mp", moe, 16, TP | PP, "{0,1,8,9}{2,3,10,11}{4,5,12,13}{6,7,14,15}"},
        {"tp_dp_cp", moe, 16, TP | CP | DP, "{0,1,2,3,4,5,6,7}{8,9,10,11,12,13,14,15}"},
        {"ep", moe, 16, EP, "{0,1,2,3}{4,5,6,7}{8,9,10,11}{12,13,14,15}"},
        {"expt_dp", moe, 16, EDP, EVERY_FOURTH},
        {"expt_tp", moe, 16, ETP, "{0}{1}{2}{3}{4}{5}{6}{7}{8}{9}{10}{11}{12}{13}{14}{15}"},
        {"tp_ep_pp", moe, 16, ETP | EP | PP, "{0,1,2,3,8,9,10,11}{4,5,6,7,12,13,14,15}"},
        {"etp2 ep", etp2, 16, EP, "{0,2,4,6}{1,3,5,7}{8,10,12,14}{9,11,13,15}"},
        {"etp2 expt_tp", etp2, 16, ETP, PAIRS16},
        {"etp2 expt_dp", etp2, 16, EDP, "{0}{1}{2}{3}{4}{5}{6}{7}{8}{9}{10}{11}{12}{13}{14}{15}"},
    };

    (void)state;
    check_groups(cases, RK_ARRAY_LEN(cases));
}

/* Goal: members of a group are in the order of the masked axes, fastest first, for every order of the
 * mesh. */
static void test_mesh_group_rollout_order_has_pp_fastest(void **state)
{
    static const struct rk_mesh_spec rollout = {.tp = 2, .pp = 2, .order = RK_MESH_ORDER_ROLLOUT};
    const struct group_case cases[] = {
        {"pp", rollout, 8, PP, PAIRS8},
        {"tp", rollout, 8, TP, "{0,2}{1,3}{4,6}{5,7}"},
        {"dp", rollout, 8, DP, "{0,4}{1,5}{2,6}{3,7}"},
        {"tp_pp", rollout, 8, TP | PP, "{0,1,2,3}{4,5,6,7}"},
    };

    (void)state;
    check_groups(cases, RK_ARRAY_LEN(cases));
}

/* One digit per rank for an axis: "0011...". */
static void check_coords(const char *label, struct rk_mesh_spec spec, int32_t world_size, rk_axis_t axis,
                         const char *expected)
{
    struct rk_mesh *mesh = make(spec, world_size);
    char text[65] = "";

    for (int32_t rank = 0; rank < world_size; rank++) {
        struct rk_mesh_coords coords;

        rk_mesh_find_coords(mesh, rank, &coords);
        text[rank] = coords.axis[axis] < 0 ? '-' : (char)('0' + coords.axis[axis]);
    }
    text[world_size] = '\0';
    if (strcmp(text, expected) != 0)
        fail_msg("%s %s: %s", label, rk_axis_name(axis), text);
    rk_mesh_destroy(mesh);
}

static void test_mesh_coords_tables(void **state)
{
    static const struct rk_mesh_spec t2d2p2 = {.tp = 2, .dp = 2, .pp = 2},
                                     t2c2d2 = {.tp = 2, .cp = 2, .dp = 2},
                                     t2c2p2 = {.tp = 2, .cp = 2, .pp = 2}, t2d4 = {.tp = 2, .dp = 4},
                                     critic = {.tp = 4, .dp = 2}, expert = {.etp = 1, .ep = 4, .pp = 2},
                                     r2 = {.tp = 2, .order = RK_MESH_ORDER_ROLLOUT},
                                     r4 = {.tp = 4, .order = RK_MESH_ORDER_ROLLOUT},
                                     r22 = {.tp = 2, .pp = 2, .order = RK_MESH_ORDER_ROLLOUT};
    const struct {
        const char *label;
        struct rk_mesh_spec spec;
        rk_axis_t axis;
        const char *expected;
    } cases[] = {
        {"t2d2p2", t2d2p2, RK_AXIS_TP, "01010101"},       {"t2d2p2", t2d2p2, RK_AXIS_CP, "00000000"},
        {"t2d2p2", t2d2p2, RK_AXIS_DP, "00110011"},       {"t2d2p2", t2d2p2, RK_AXIS_PP, "00001111"},
        {"t2c2d2", t2c2d2, RK_AXIS_TP, "01010101"},       {"t2c2d2", t2c2d2, RK_AXIS_CP, "00110011"},
        {"t2c2d2", t2c2d2, RK_AXIS_DP, "00001111"},       {"t2c2d2", t2c2d2, RK_AXIS_PP, "00000000"},
        {"t2c2p2", t2c2p2, RK_AXIS_DP, "00000000"},       {"t2c2p2", t2c2p2, RK_AXIS_PP, "00001111"},
        {"t2d4", t2d4, RK_AXIS_DP, "00112233"},           {"critic", critic, RK_AXIS_TP, "01230123"},
        {"critic", critic, RK_AXIS_DP, "00001111"},       {"expert", expert, RK_AXIS_ETP, "00000000"},
        {"expert", expert, RK_AXIS_EP, "01230123"},       {"expert", expert, RK_AXIS_EDP, "00000000"},
        {"expert", expert, RK_AXIS_PP, "00001111"},       {"rollout tp2", r2, RK_AXIS_DP, "00112233"},
        {"rollout tp4", r4, RK_AXIS_DP, "00001111"},      {"rollout tp2 pp2", r22, RK_AXIS_DP, "00001111"},
        {"rollout tp2 pp2", r22, RK_AXIS_PP, "01010101"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++)
        check_coords(cases[i].label, cases[i].spec, 8, cases[i].axis, cases[i].expected);
    check_coords("16 ranks", (struct rk_mesh_spec){.tp = 2, .cp = 2, .dp = 2, .pp = 2}, 16, RK_AXIS_DP,
                 "0000111100001111");
}

static void test_mesh_is_collector_tables(void **state)
{
    static const struct {
        const char *label;
        struct rk_mesh_spec spec;
        int32_t world_size;
        const char *expected; /* x: collects */
    } cases[] = {
        {"t2d2p2", {.tp = 2, .dp = 2, .pp = 2}, 8, "....x.x."},
        {"t2c2d2", {.tp = 2, .cp = 2, .dp = 2}, 8, "x...x..."},
        {"t2c2p2", {.tp = 2, .cp = 2, .pp = 2}, 8, "....x..."},
        {"t2d4", {.tp = 2, .dp = 4}, 8, "x.x.x.x."},
        {"t4d2", {.tp = 4}, 8, "x...x..."},
        {"d8", {.dp = 8}, 8, "xxxxxxxx"},
        {"16 ranks", {.tp = 2, .cp = 2, .dp = 2, .pp = 2}, 16, "........x...x..."},
        {"rollout tp2", {.tp = 2, .order = RK_MESH_ORDER_ROLLOUT}, 8, "x.x.x.x."},
        {"rollout tp4", {.tp = 4, .order = RK_MESH_ORDER_ROLLOUT}, 8, "x...x..."},
        {"rollout tp2 pp2", {.tp = 2, .pp = 2, .order = RK_MESH_ORDER_ROLLOUT}, 8, "x...x..."},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_mesh *mesh = make(cases[i].spec, cases[i].world_size);

        for (int32_t rank = 0; rank < cases[i].world_size; rank++) {
            if (rk_mesh_is_collector(mesh, rank) != (cases[i].expected[rank] == 'x'))
                fail_msg("%s rank %d", cases[i].label, rank);
        }
        assert_false(rk_mesh_is_collector(mesh, -1));
        assert_false(rk_mesh_is_collector(mesh, cases[i].world_size));
        rk_mesh_destroy(mesh);
    }
}

/* Goal: a mesh over a list of ranks, out of order, in a larger world. */
static void test_mesh_create_rank_list_maps_world_ranks(void **state)
{
    static const int32_t ranks[] = {7, 2, 5, 4};
    const struct rk_mesh_spec spec = {.tp = 2, .num_ranks = 4, .ranks = ranks};
    struct rk_mesh *mesh = make(spec, 9);
    struct rk_mesh_coords coords;
    int32_t members[4];

    (void)state;
    assert_int_equal(rk_mesh_num_ranks(mesh), 4);
    assert_int_equal(rk_mesh_world_size(mesh), 9);
    assert_int_equal(rk_mesh_axis_size(mesh, RK_AXIS_DP), 2);
    assert_int_equal(rk_mesh_group(mesh, TP, 2, members), 2);
    assert_int_equal(members[0], 7);
    assert_int_equal(members[1], 2);
    assert_int_equal(rk_mesh_group(mesh, DP, 4, members), 2);
    assert_int_equal(members[0], 2);
    assert_int_equal(members[1], 4);
    assert_true(rk_mesh_find_coords(mesh, 5, &coords));
    assert_int_equal(coords.axis[RK_AXIS_TP], 0);
    assert_int_equal(coords.axis[RK_AXIS_DP], 1);
    assert_int_equal(rk_mesh_rank_at(mesh, &coords), 5);
    assert_false(rk_mesh_find_coords(mesh, 0, &coords));
    for (int axis = 0; axis < RK_AXIS_COUNT; axis++)
        assert_int_equal(coords.axis[axis], -1);
    assert_int_equal(rk_mesh_group(mesh, TP, 0, members), 0);
    rk_mesh_destroy(mesh);
}

static void test_mesh_create_rejects_table(void **state)
{
    static const int32_t twice[] = {0, 1, 1, 2}, outside[] = {0, 1, 2, 8}, negative[] = {0, -1};
    static const struct {
        const char *message;
        struct rk_mesh_spec spec;
        int32_t world_size;
    } cases[] = {
        {"not divisible by tp=3", {.tp = 3}, 8},
        {"not divisible by tp=2 x cp=2 x pp=4", {.tp = 2, .cp = 2, .pp = 4}, 8},
        {"has dp=4, but dp=3", {.tp = 2, .dp = 3}, 8},
        {"not divisible by etp=1 x ep=3", {.etp = 1, .ep = 3}, 8},
        {"must not be negative", {.tp = -2, .dp = -4}, 8},
        {"not divisible by tp=16", {.tp = 16}, 8},
        {"not divisible", {.tp = 65536, .cp = 65536, .pp = 65536}, 8},
        {"not divisible by tp=2147483647", {.tp = INT32_MAX}, 8},
        {"world size 0", {.tp = 1}, 0},
        {"world size -1", {.tp = 1}, -1},
        {"world size 4097", {.tp = 1}, 4097},
        {"does not fit a world of size 8", {.num_ranks = 9, .ranks = outside}, 8},
        {"mesh of -1 ranks", {.num_ranks = -1, .ranks = outside}, 8},
        {"names rank 1 twice", {.num_ranks = 4, .ranks = twice}, 8},
        {"rank 8 is outside", {.num_ranks = 4, .ranks = outside}, 8},
        {"rank -1 is outside", {.num_ranks = 2, .ranks = negative}, 8},
        {"'xp' is no axis", {.tp = 2, .order = "tp-xp"}, 8},
        {"'' is no axis", {.tp = 2, .order = "tp--dp"}, 8},
        {"'' is no axis", {.tp = 2, .order = "tp-"}, 8},
        {"'etp' is no axis", {.tp = 2, .order = "etp-dp"}, 8},
        {"'tp' is repeated", {.tp = 2, .order = "tp-dp-tp"}, 8},
        {"does not name cp", {.tp = 2, .cp = 2, .order = RK_MESH_ORDER_ROLLOUT}, 8},
        {"does not name ep", {.etp = 1, .ep = 2, .order = RK_MESH_ORDER_ROLLOUT}, 8},
        {"does not name dp", {.tp = 2, .order = "tp-pp"}, 8},
        {"different pipeline groups", {.tp = 2, .cp = 2, .pp = 2, .order = "tp-cp-pp-dp"}, 8},
        {"longer than 31 bytes", {.tp = 2, .order = "tp-cp-ep-dp-pp-tp-cp-ep-dp-pp-tp"}, 8},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_mesh *mesh = (struct rk_mesh *)&cases;

        print_message("%s\n", cases[i].message);
        assert_fails(rk_mesh_create(&mesh, &cases[i].spec, cases[i].world_size), RK_INVALID_ARGUMENT,
                     cases[i].message);
        assert_null(mesh);
    }
}

static void test_mesh_text_and_spec_round_trip(void **state)
{
    static const struct {
        struct rk_mesh_spec spec;
        int32_t world_size;
        const char *text;
    } cases[] = {
        {{.tp = 2, .dp = 2}, 4, "tp=2 dp=2"},
        {{.tp = 0}, 1, "single"},
        {{.tp = 2, .cp = 2, .pp = 2, .etp = 1, .ep = 4}, 16, "tp=2 cp=2 ep=4 etp=1 dp=2 pp=2"},
        {{.pp = 2, .order = RK_MESH_ORDER_ROLLOUT}, 4, "dp=2 pp=2"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_mesh *mesh = make(cases[i].spec, cases[i].world_size), *copy;
        struct rk_mesh_spec spec = rk_mesh_get_spec(mesh);

        assert_string_equal(rk_mesh_text(mesh), cases[i].text);
        assert_true(spec.order[0] != '\0');
        assert_true(spec.dp > 0);
        assert_true(spec.etp > 0);
        assert_ok(rk_mesh_clone(&copy, mesh));
        assert_true(rk_mesh_equal(mesh, copy));
        rk_mesh_destroy(copy);
        rk_mesh_destroy(mesh);
    }
    rk_mesh_destroy(NULL);
}

/* Goal: the same members in a different order are a different mesh. */
static void test_mesh_equal_tells_apart(void **state)
{
    static const int32_t forward[] = {0, 1, 2, 3}, backward[] = {3, 2, 1, 0};
    const struct rk_mesh_spec specs[] = {
        {.tp = 2, .num_ranks = 4, .ranks = forward},
        {.tp = 2, .num_ranks = 4, .ranks = backward},
        {.tp = 4, .num_ranks = 4, .ranks = forward},
        {.tp = 2, .num_ranks = 4, .ranks = forward, .order = RK_MESH_ORDER_ROLLOUT},
        {.tp = 2, .num_ranks = 2, .ranks = forward},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(specs); i++) {
        for (size_t j = 0; j < RK_ARRAY_LEN(specs); j++) {
            struct rk_mesh *a = make(specs[i], 4), *b = make(specs[j], 4);

            assert_int_equal(rk_mesh_equal(a, b), i == j);
            rk_mesh_destroy(a);
            rk_mesh_destroy(b);
        }
    }
}

/* Goal: meshes that differ only in cp and dp have the same parts on the same ranks, in any order with the
 * same tp groups. */
static void test_mesh_has_same_parts_tells_apart(void **state)
{
    static const int32_t swapped[] = {1, 0, 2, 3, 4, 5, 6, 7}, four[] = {0, 1, 2, 3};
    static const struct rk_mesh_spec actor = {.tp = 2, .cp = 2, .dp = 2};
    static const struct {
        struct rk_mesh_spec spec;
        bool is_same;
    } cases[] = {
        {{.tp = 2, .cp = 2, .dp = 2}, true},
        {{.tp = 2, .dp = 4}, true},
        {{.tp = 2, .dp = 4, .order = RK_MESH_ORDER_ROLLOUT}, true},
        {{.tp = 2, .cp = 4}, true},
        {{.tp = 2, .cp = 2, .dp = 2, .order = "cp-tp-dp-ep-pp"}, false}, /* tp groups 0,2 and 1,3 */
        {{.tp = 4, .cp = 2}, false},
        {{.tp = 1, .dp = 8}, false},
        {{.tp = 2, .dp = 2, .pp = 2}, false},
        {{.tp = 2, .dp = 4, .num_ranks = 8, .ranks = swapped}, false},
        {{.tp = 2, .dp = 2, .num_ranks = 4, .ranks = four}, false},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_mesh *a = make(actor, 8), *b = make(cases[i].spec, 8);

        assert_int_equal(rk_mesh_has_same_parts(a, b), cases[i].is_same);
        assert_int_equal(rk_mesh_has_same_parts(b, a), cases[i].is_same);
        rk_mesh_destroy(a);
        rk_mesh_destroy(b);
    }
}

/* Goal: meshes whose tp ranks have all experts between them, in any order of the axes; with experts on other
 * replicas, or parts of them, they have not. */
static void test_mesh_ep_is_tp_compares_groups(void **state)
{
    static const struct {
        struct rk_mesh_spec spec;
        bool expected;
    } cases[] = {
        {{.tp = 2, .ep = 2, .etp = 1}, true},
        {{.tp = 8, .ep = 8, .etp = 1}, true},
        {{.tp = 2, .cp = 2, .ep = 2, .etp = 1}, true},
        {{.tp = 2, .pp = 2, .ep = 2, .etp = 1}, true},
        {{.tp = 2, .ep = 2, .etp = 1, .order = RK_MESH_ORDER_ROLLOUT_EP}, true},
        {{.dp = 8}, true}, /* each rank is a group of its own in both */
        {{.tp = 2}, false},
        {{.tp = 2, .ep = 2}, false}, /* etp=2: ep is over dp */
        {{.tp = 2, .ep = 4, .etp = 1}, false},
        {{.tp = 4, .ep = 2, .etp = 1}, false},
        {{.ep = 2}, false},
        {{.tp = 2, .ep = 2, .etp = 1, .order = "cp-dp-ep-tp-pp"}, true},
        {{.tp = 2, .cp = 2, .ep = 2, .etp = 1, .order = "cp-tp-dp-ep-pp"}, false},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_mesh *mesh = make(cases[i].spec, 8);

        print_message("case %zu: %s\n", i, rk_mesh_text(mesh));
        assert_int_equal(rk_mesh_ep_is_tp(mesh), cases[i].expected);
        rk_mesh_destroy(mesh);
    }
}

/* --- properties over random meshes --- */

/* Random sizes with at most 64 ranks: dense axes and a factorisation of the same ranks for the experts. */
static struct rk_mesh_spec draw_spec(struct rk_rng *rng, int32_t *world_size)
{
    static const char *const orders[] = {"", "tp-cp-ep-dp-pp", "cp-tp-dp-ep-pp", "dp-ep-tp-cp-pp"};
    struct rk_mesh_spec spec = {0};
    int32_t outer;

    do {
        spec.tp = 1 << rk_rng_next_below(rng, 3);
        spec.cp = (int32_t)rk_rng_next_below(rng, 3) + 1;
        spec.pp = (int32_t)rk_rng_next_below(rng, 3) + 1;
        outer = (int32_t)rk_rng_next_below(rng, 6) + 1;
        *world_size = spec.tp * spec.cp * outer * spec.pp;
    } while (*world_size > 64);
    spec.dp = rk_rng_next_below(rng, 2) ? outer : 0;
    spec.etp = rk_rng_next_below(rng, 2) ? 1 : 0;
    do
        spec.ep = (int32_t)rk_rng_next_below(rng, 8) + 1;
    while (*world_size % ((spec.etp ? 1 : spec.tp) * spec.ep * spec.pp) != 0);
    snprintf(spec.order, sizeof(spec.order), "%s", orders[rk_rng_next_below(rng, RK_ARRAY_LEN(orders))]);
    return spec;
}

static bool contains(const int32_t *members, int32_t count, int32_t rank)
{
    for (int32_t i = 0; i < count; i++) {
        if (members[i] == rank)
            return true;
    }
    return false;
}

/* Groups of one axis set: same list for all members, sizes multiply, every rank in exactly one. */
static void check_partition(const struct rk_mesh *mesh, uint32_t mask, int32_t expected_size)
{
    int32_t members[64], again[64];

    for (int32_t rank = 0; rank < rk_mesh_num_ranks(mesh); rank++) {
        int32_t count = rk_mesh_group(mesh, mask, rank, members);

        assert_int_equal(count, expected_size);
        assert_true(contains(members, count, rank));
        for (int32_t i = 0; i < count; i++) {
            assert_int_equal(rk_mesh_group(mesh, mask, members[i], again), count);
            assert_memory_equal(members, again, (size_t)count * sizeof(*members));
        }
    }
}

/* The group over a mask and the group over the other axes of the grid share the rank itself and no other. */
static void check_orthogonal(const struct rk_mesh *mesh, uint32_t mask, uint32_t other)
{
    int32_t a[64], b[64];

    for (int32_t rank = 0; rank < rk_mesh_num_ranks(mesh); rank++) {
        int32_t num_a = rk_mesh_group(mesh, mask, rank, a), num_b = rk_mesh_group(mesh, other, rank, b);
        int32_t num_shared = 0;

        assert_int_equal(num_a * num_b, rk_mesh_num_ranks(mesh));
        for (int32_t i = 0; i < num_a; i++)
            num_shared += contains(b, num_b, a[i]);
        assert_int_equal(num_shared, 1);
    }
}

static void check_grid(const struct rk_mesh *mesh, const rk_axis_t axes[4])
{
    for (uint32_t subset = 0; subset < 16; subset++) {
        uint32_t mask = 0, other = 0;
        int32_t size = 1;

        for (int i = 0; i < 4; i++) {
            if (subset & 1u << i) {
                mask |= RK_AXIS_BIT(axes[i]);
                size *= rk_mesh_axis_size(mesh, axes[i]);
            } else {
                other |= RK_AXIS_BIT(axes[i]);
            }
        }
        check_partition(mesh, mask, size);
        check_orthogonal(mesh, mask, other);
    }
}

static void test_mesh_properties_random_sizes(void **state)
{
    static const rk_axis_t dense[4] = {RK_AXIS_TP, RK_AXIS_CP, RK_AXIS_DP, RK_AXIS_PP};
    static const rk_axis_t expert[4] = {RK_AXIS_ETP, RK_AXIS_EP, RK_AXIS_EDP, RK_AXIS_PP};
    struct rk_rng rng;

    (void)state;
    rk_rng_init(&rng, rk_test_seed(), 5);
    for (int round = 0; round < 60; round++) {
        int32_t world_size;
        struct rk_mesh_spec spec = draw_spec(&rng, &world_size);
        struct rk_mesh *mesh = make(spec, world_size);

        for (int32_t rank = 0; rank < world_size; rank++) {
            struct rk_mesh_coords coords;

            assert_true(rk_mesh_find_coords(mesh, rank, &coords));
            assert_int_equal(rk_mesh_rank_at(mesh, &coords), rank);
        }
        check_grid(mesh, dense);
        check_grid(mesh, expert);
        rk_mesh_destroy(mesh);
    }
}

static void test_mesh_place_text_names_the_axes_that_are_cut(void **state)
{
    static const int32_t last_two[] = {2, 3};
    static const struct {
        struct rk_mesh_spec spec;
        int32_t world_size, rank;
        const char *text;
    } cases[] = {
        {{.tp = 2, .pp = 2}, 4, 3, "tp 1 of 2, pp 1 of 2"},
        {{.tp = 2, .pp = 2}, 4, 2, "tp 0 of 2, pp 1 of 2"},
        {{.tp = 1}, 2, 1, "dp 1 of 2"},
        {{.cp = 2, .dp = 2, .pp = 2}, 8, 7, "cp 1 of 2, dp 1 of 2, pp 1 of 2"},
        {{.tp = 1}, 1, 0, ""},
        {{.tp = 2, .num_ranks = 2, .ranks = last_two}, 4, 3, "tp 1 of 2"},
        {{.tp = 2, .num_ranks = 2, .ranks = last_two}, 4, 1, ""},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char text[RK_MESH_PLACE_BYTES];
        struct rk_mesh *mesh;

        assert_ok(rk_mesh_create(&mesh, &cases[i].spec, cases[i].world_size));
        assert_int_equal(rk_mesh_place_text(mesh, cases[i].rank, text), *cases[i].text != '\0');
        assert_string_equal(text, cases[i].text);
        rk_mesh_destroy(mesh);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mesh_group_eight_ranks_four_meshes),
        cmocka_unit_test(test_mesh_group_sixteen_ranks_dense_and_expert),
        cmocka_unit_test(test_mesh_group_rollout_order_has_pp_fastest),
        cmocka_unit_test(test_mesh_coords_tables),
        cmocka_unit_test(test_mesh_is_collector_tables),
        cmocka_unit_test(test_mesh_create_rank_list_maps_world_ranks),
        cmocka_unit_test(test_mesh_create_rejects_table),
        cmocka_unit_test(test_mesh_text_and_spec_round_trip),
        cmocka_unit_test(test_mesh_equal_tells_apart),
        cmocka_unit_test(test_mesh_has_same_parts_tells_apart),
        cmocka_unit_test(test_mesh_ep_is_tp_compares_groups),
        cmocka_unit_test(test_mesh_place_text_names_the_axes_that_are_cut),
        cmocka_unit_test(test_mesh_properties_random_sizes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
