/* The daemon's report of its place in the meshes of the roles. */
#include <stdio.h>

#include "base/rk_compiler.h"
#include "daemon/daemon_internal.h"
#include "tests/support/test.h"

#define WORLD 4

static const int32_t upper_ranks[] = {2, 3};

static void put_role(struct rk_group *group, const char *role, const struct rk_mesh_spec *spec)
{
    snprintf(group->roles[group->num_roles].role, sizeof(group->roles[0].role), "%s", role);
    assert_ok(rk_mesh_create(&group->roles[group->num_roles].mesh, spec, WORLD));
    group->num_roles++;
}

/* Goal: a rank reports its coordinates in exactly the meshes that it belongs to. Method: actor on all
 * ranks, ref on the upper two. */
static void test_rk_group_describe_lists_meshes_of_the_rank(void **state)
{
    static const struct {
        int32_t rank;
        int64_t num_roles;
        int32_t actor_tp, actor_dp, ref_tp;
    } cases[] = {{0, 1, 0, 0, 0}, {1, 1, 1, 0, 0}, {2, 2, 0, 1, 0}, {3, 2, 1, 1, 1}};
    const struct rk_mesh_spec actor = {.tp = 2, .dp = 2};
    const struct rk_mesh_spec ref = {.tp = 2, .num_ranks = 2, .ranks = upper_ranks};
    struct rk_arena *arena = rk_arena_create(4096, 0);
    struct rk_worker_snapshot snapshot = {0};
    struct rk_daemon daemon = {.group = {.world_size = WORLD}};

    (void)state;
    put_role(&daemon.group, "actor", &actor);
    put_role(&daemon.group, "ref", &ref);
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_rank_info info;

        print_message("rank %d\n", cases[i].rank);
        daemon.group.rank = cases[i].rank;
        info = rk_group_describe(&daemon, &snapshot, arena);
        assert_int_equal(info.rank, cases[i].rank);
        assert_int_equal(info.num_roles, cases[i].num_roles);
        assert_string_equal(info.roles[0].role, "actor");
        assert_int_equal(info.roles[0].tp_rank, cases[i].actor_tp);
        assert_int_equal(info.roles[0].dp_rank, cases[i].actor_dp);
        if (cases[i].num_roles == 1)
            continue;
        assert_string_equal(info.roles[1].role, "ref");
        assert_int_equal(info.roles[1].tp_rank, cases[i].ref_tp);
    }
    rk_group_clear(&daemon.group);
    rk_arena_destroy(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rk_group_describe_lists_meshes_of_the_rank),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
