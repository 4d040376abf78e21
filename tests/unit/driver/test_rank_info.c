/* The coordinates reported by a daemon are compared with the mesh arithmetic: one wrong coordinate is found
 * and named. */
#include "driver/driver_internal.h"

#include <string.h>

#include "tests/support/test.h"

#define WORLD 4

/* Role actor: tp 2 x dp 2 on all ranks. Role ref: tp 2 on ranks 2 and 3. */
static const int32_t ref_ranks[] = {2, 3};
static struct rk_role_entry roles[2] = {{.role = "actor"}, {.role = "ref"}};

static int make_roles(void **state)
{
    struct rk_mesh_spec actor = {.tp = 2, .dp = 2};
    struct rk_mesh_spec ref = {.tp = 2, .dp = 1, .num_ranks = 2, .ranks = ref_ranks};

    (void)state;
    assert_ok(rk_mesh_create(&roles[0].mesh, &actor, WORLD));
    assert_ok(rk_mesh_create(&roles[1].mesh, &ref, WORLD));
    return 0;
}

static int drop_roles(void **state)
{
    (void)state;
    rk_mesh_destroy(roles[0].mesh);
    rk_mesh_destroy(roles[1].mesh);
    return 0;
}

struct answer {
    const char *label;
    int32_t rank; /* the rank that is asked */
    struct rk_rank_info info;
    struct rk_role_rank roles[2];
    const char *message; /* NULL: fine */
};

/* The expert grid has the tensor parallel size unless stated otherwise. */
#define ACTOR(tp, dp)                                                       \
    {                                                                       \
        .role = "actor", .tp_rank = (tp), .etp_rank = (tp), .dp_rank = (dp) \
    }
#define REF(tp)                                          \
    {                                                    \
        .role = "ref", .tp_rank = (tp), .etp_rank = (tp) \
    }

static const struct answer answers[] = {
    {"rank 0", 0, {.rank = 0, .world_size = 4, .num_roles = 1}, {ACTOR(0, 0)}, NULL},
    {"rank 1", 1, {.rank = 1, .world_size = 4, .num_roles = 1}, {ACTOR(1, 0)}, NULL},
    {"rank 2", 2, {.rank = 2, .world_size = 4, .num_roles = 2}, {ACTOR(0, 1), REF(0)}, NULL},
    {"rank 3", 3, {.rank = 3, .world_size = 4, .num_roles = 2}, {REF(1), ACTOR(1, 1)}, NULL},
    {"another rank",
     1,
     {.rank = 0, .world_size = 4, .num_roles = 1},
     {ACTOR(0, 0)},
     "reports rank 0 of 4, expected 1 of 4"},
    {"another world", 0, {.rank = 0, .world_size = 8, .num_roles = 1}, {ACTOR(0, 0)}, "reports rank 0 of 8"},
    {"wrong tp",
     1,
     {.rank = 1, .world_size = 4, .num_roles = 1},
     {ACTOR(0, 0)},
     "tp_rank=0 in the mesh of role 'actor'"},
    {"wrong dp", 2, {.rank = 2, .world_size = 4, .num_roles = 2}, {ACTOR(0, 0), REF(0)}, "dp_rank=0"},
    {"wrong etp",
     1,
     {.rank = 1, .world_size = 4, .num_roles = 1},
     {{.role = "actor", .tp_rank = 1}},
     "etp_rank=0 in the mesh of role 'actor'"},
    {"role that the group does not have",
     0,
     {.rank = 0, .world_size = 4, .num_roles = 2},
     {ACTOR(0, 0), {.role = "critic"}},
     "in 2 meshes"},
    {"role twice",
     0,
     {.rank = 0, .world_size = 4, .num_roles = 2},
     {ACTOR(0, 0), ACTOR(0, 0)},
     "in 2 meshes"},
    {"missing role", 2, {.rank = 2, .world_size = 4, .num_roles = 1}, {ACTOR(0, 1)}, "mesh of role 'ref'"},
    {"role where it has no place",
     1,
     {.rank = 1, .world_size = 4, .num_roles = 2},
     {ACTOR(1, 0), REF(0)},
     "mesh of role 'ref'"},
};

static void test_check_rank_info_wrong_places_are_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(answers); i++) {
        struct rk_role_rank places[2] = {answers[i].roles[0], answers[i].roles[1]};
        struct rk_rank_info info = answers[i].info;
        struct rk_status *st;

        print_message("%s\n", answers[i].label);
        info.roles = places;
        st = rk_check_rank_info(&info, roles, 2, answers[i].rank, WORLD);
        if (answers[i].message)
            assert_fails(st, RK_INTERNAL, answers[i].message);
        else
            assert_ok(st);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_check_rank_info_wrong_places_are_named),
    };

    return cmocka_run_group_tests(tests, make_roles, drop_roles);
}
