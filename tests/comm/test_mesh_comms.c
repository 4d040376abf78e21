/* Goal: the communicators of several meshes over one world have the members and the order of the rank
 * arithmetic, and are shared exactly if their partitions are equal and their operations do not run at the
 * same time. Method: 8 ranks gather their own number in every group.
 */
#include "tests/support/test.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/config/rk_config.h"
#include "base/rk_env.h"
#include "engine/rk_comm.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/ranks.h"

#define NUM_RANKS 8

/* The meshes of one role each: Megatron's order for training, verl's for the rollout. */
enum { ACTOR, CRITIC, REFERENCE, ROLLOUT, EXPERTS, HALF, REVERSED, NUM_MESHES };

static const int32_t half_ranks[] = {4, 5, 6, 7};
static const int32_t reversed_ranks[] = {7, 6, 5, 4, 3, 2, 1, 0};
static const struct rk_mesh_spec specs[NUM_MESHES] = {
    [ACTOR] = {.tp = 2, .dp = 2, .pp = 2},
    [CRITIC] = {.tp = 4, .dp = 2},
    [REFERENCE] = {.dp = 8},
    [ROLLOUT] = {.tp = 2, .dp = 4},
    [EXPERTS] = {.tp = 2, .dp = 4, .ep = 4, .etp = 1},
    [HALF] = {.tp = 2, .dp = 2, .num_ranks = 4, .ranks = half_ranks},
    [REVERSED] = {.dp = 8, .num_ranks = 8, .ranks = reversed_ranks},
};

struct group_case {
    const char *label;
    int mesh;
    rk_mesh_group_kind_t kind;
    int32_t size;
    int32_t members[NUM_RANKS][NUM_RANKS]; /* by world rank */
};

#define PAIRS_01                                            \
    {0, 1}, {0, 1}, {2, 3}, {2, 3}, {4, 5}, {4, 5}, {6, 7}, \
    {                                                       \
        6, 7                                                \
    }
#define ALL_8                  \
    {                          \
        0, 1, 2, 3, 4, 5, 6, 7 \
    }

/* Computed by hand from rank = tp + t * (cp + c * (dp + d * pp)); -1: in no group. */
static const struct group_case group_cases[] = {
    {"actor tp", ACTOR, RK_GROUP_TP, 2, {PAIRS_01}},
    {"actor dp", ACTOR, RK_GROUP_DP, 2, {{0, 2}, {1, 3}, {0, 2}, {1, 3}, {4, 6}, {5, 7}, {4, 6}, {5, 7}}},
    {"actor dp_cp",
     ACTOR,
     RK_GROUP_DP_CP,
     2,
     {{0, 2}, {1, 3}, {0, 2}, {1, 3}, {4, 6}, {5, 7}, {4, 6}, {5, 7}}},
    {"actor pp", ACTOR, RK_GROUP_PP, 2, {{0, 4}, {1, 5}, {2, 6}, {3, 7}, {0, 4}, {1, 5}, {2, 6}, {3, 7}}},
    {"actor mp",
     ACTOR,
     RK_GROUP_MP,
     4,
     {{0, 1, 4, 5},
      {0, 1, 4, 5},
      {2, 3, 6, 7},
      {2, 3, 6, 7},
      {0, 1, 4, 5},
      {0, 1, 4, 5},
      {2, 3, 6, 7},
      {2, 3, 6, 7}}},
    {"actor all", ACTOR, RK_GROUP_ALL, 8, {ALL_8, ALL_8, ALL_8, ALL_8, ALL_8, ALL_8, ALL_8, ALL_8}},
    {"critic tp",
     CRITIC,
     RK_GROUP_TP,
     4,
     {{0, 1, 2, 3},
      {0, 1, 2, 3},
      {0, 1, 2, 3},
      {0, 1, 2, 3},
      {4, 5, 6, 7},
      {4, 5, 6, 7},
      {4, 5, 6, 7},
      {4, 5, 6, 7}}},
    {"critic dp", CRITIC, RK_GROUP_DP, 2, {{0, 4}, {1, 5}, {2, 6}, {3, 7}, {0, 4}, {1, 5}, {2, 6}, {3, 7}}},
    {"reference dp", REFERENCE, RK_GROUP_DP, 8, {ALL_8, ALL_8, ALL_8, ALL_8, ALL_8, ALL_8, ALL_8, ALL_8}},
    {"rollout tp", ROLLOUT, RK_GROUP_TP, 2, {PAIRS_01}},
    {"rollout dp",
     ROLLOUT,
     RK_GROUP_DP,
     4,
     {{0, 2, 4, 6},
      {1, 3, 5, 7},
      {0, 2, 4, 6},
      {1, 3, 5, 7},
      {0, 2, 4, 6},
      {1, 3, 5, 7},
      {0, 2, 4, 6},
      {1, 3, 5, 7}}},
    {"experts ep",
     EXPERTS,
     RK_GROUP_EP,
     4,
     {{0, 1, 2, 3},
      {0, 1, 2, 3},
      {0, 1, 2, 3},
      {0, 1, 2, 3},
      {4, 5, 6, 7},
      {4, 5, 6, 7},
      {4, 5, 6, 7},
      {4, 5, 6, 7}}},
    {"experts edp",
     EXPERTS,
     RK_GROUP_EDP,
     2,
     {{0, 4}, {1, 5}, {2, 6}, {3, 7}, {0, 4}, {1, 5}, {2, 6}, {3, 7}}},
    {"half tp", HALF, RK_GROUP_TP, 2, {{-1}, {-1}, {-1}, {-1}, {4, 5}, {4, 5}, {6, 7}, {6, 7}}},
    {"half dp", HALF, RK_GROUP_DP, 2, {{-1}, {-1}, {-1}, {-1}, {4, 6}, {5, 7}, {4, 6}, {5, 7}}},
    {"reversed dp",
     REVERSED,
     RK_GROUP_DP,
     8,
     {{7, 6, 5, 4, 3, 2, 1, 0},
      {7, 6, 5, 4, 3, 2, 1, 0},
      {7, 6, 5, 4, 3, 2, 1, 0},
      {7, 6, 5, 4, 3, 2, 1, 0},
      {7, 6, 5, 4, 3, 2, 1, 0},
      {7, 6, 5, 4, 3, 2, 1, 0},
      {7, 6, 5, 4, 3, 2, 1, 0},
      {7, 6, 5, 4, 3, 2, 1, 0}}},
};

static int check_group(struct rk_comm_world *world, struct rk_mesh_comms *const *comms,
                       const struct group_case *c)
{
    int32_t rank = rk_comm_world_rank(world), got[NUM_RANKS] = {0};
    const int32_t *expected = c->members[rank];
    struct rk_comm_group *group = rk_mesh_comms_group(comms[c->mesh], c->kind);

    if (expected[0] < 0) {
        RK_RANK_CHECK(!group, "%s: rank %d is in a group", c->label, rank);
        return 0;
    }
    RK_RANK_CHECK(group, "%s: rank %d is in no group", c->label, rank);
    RK_RANK_CHECK(rk_comm_group_size(group) == c->size, "%s: size %d", c->label, rk_comm_group_size(group));
    RK_RANK_CHECK(expected[rk_comm_group_rank(group)] == rank, "%s: place %d", c->label,
                  rk_comm_group_rank(group));
    RK_RANK_OK(rk_comm_all_gather(group, rk_test_rank_stream(rank), rk_tensor_1d(got, RK_DTYPE_I32, c->size),
                                  rk_tensor_1d(&rank, RK_DTYPE_I32, 1)));
    for (int32_t i = 0; i < c->size; i++)
        RK_RANK_CHECK(got[i] == expected[i], "%s: member %d is %d", c->label, i, got[i]);
    return 0;
}

static struct rk_comm_group *group_of(struct rk_mesh_comms *const *comms, int mesh, rk_mesh_group_kind_t kind)
{
    return rk_mesh_comms_group(comms[mesh], kind);
}

static int check_sharing(struct rk_comm_world *world, struct rk_mesh_comms *const *comms)
{
    bool is_member = rk_comm_world_rank(world) >= 4;

    RK_RANK_CHECK(group_of(comms, ACTOR, RK_GROUP_TP) == group_of(comms, ROLLOUT, RK_GROUP_TP),
                  "equal tp groups");
    RK_RANK_CHECK(group_of(comms, ACTOR, RK_GROUP_DP) == group_of(comms, ACTOR, RK_GROUP_DP_CP),
                  "dp and dp_cp");
    RK_RANK_CHECK(group_of(comms, ACTOR, RK_GROUP_PP) == group_of(comms, CRITIC, RK_GROUP_DP),
                  "pp and critic dp");
    RK_RANK_CHECK(group_of(comms, ACTOR, RK_GROUP_PP) != group_of(comms, CRITIC, RK_GROUP_DP_CP),
                  "a pass's group and one of gradients, which run at the same time");
    RK_RANK_CHECK(group_of(comms, REFERENCE, RK_GROUP_DP) != group_of(comms, REVERSED, RK_GROUP_DP),
                  "the same members in another order");
    RK_RANK_CHECK(!group_of(comms, ACTOR, RK_GROUP_CP), "a group of one");
    RK_RANK_CHECK(!group_of(comms, REFERENCE, RK_GROUP_TP), "a group of one");
    RK_RANK_CHECK(rk_mesh_comms_is_member(comms[HALF]) == is_member, "membership");
    RK_RANK_CHECK((rk_mesh_comms_coords(comms[HALF])->axis[RK_AXIS_TP] >= 0) == is_member, "coordinates");
    return 0;
}

static int create_all(struct rk_mesh_comms **comms, struct rk_mesh **meshes, struct rk_comm_world *world)
{
    for (int m = 0; m < NUM_MESHES; m++) {
        RK_RANK_OK(rk_mesh_create(&meshes[m], &specs[m], NUM_RANKS));
        RK_RANK_OK(rk_mesh_comms_create(&comms[m], meshes[m], world));
    }
    return 0;
}

static void destroy_all(struct rk_mesh_comms **comms, struct rk_mesh **meshes)
{
    for (int m = 0; m < NUM_MESHES; m++) {
        rk_mesh_comms_destroy(comms[m]);
        rk_mesh_destroy(meshes[m]);
    }
}

static int run_meshes(struct rk_comm_world *world, void *user)
{
    struct rk_mesh_comms *comms[NUM_MESHES];
    struct rk_mesh *meshes[NUM_MESHES];

    (void)user;
    if (create_all(comms, meshes, world) || check_sharing(world, comms))
        return 1;
    for (size_t c = 0; c < RK_ARRAY_LEN(group_cases); c++) {
        if (check_group(world, comms, &group_cases[c]))
            return 1;
    }
    /* Shared communicators must outlive the first mesh that uses them. */
    rk_mesh_comms_destroy(comms[ACTOR]);
    comms[ACTOR] = NULL;
    for (size_t c = 0; c < RK_ARRAY_LEN(group_cases); c++) {
        if (group_cases[c].mesh != ACTOR && check_group(world, comms, &group_cases[c]))
            return 1;
    }
    destroy_all(comms, meshes);
    return 0;
}

static void test_mesh_comms_groups_of_seven_meshes_match_the_tables(void **state)
{
    (void)state;
    assert_int_equal(rk_test_run_world(NUM_RANKS, "unix", run_meshes, NULL, 60), 0);
}

static int run_many(struct rk_comm_world *world, void *user)
{
    struct rk_mesh_comms *comms[NUM_MESHES];
    struct rk_mesh *meshes[NUM_MESHES];
    int num_fds = rk_test_num_fds();

    (void)user;
    for (int i = 0; i < (rk_env("RK_TEST_COMM") ? 2 : 100); i++) { /* the fake NCCL is slow */
        if (create_all(comms, meshes, world) || check_group(world, comms, &group_cases[i % 13]))
            return 1;
        destroy_all(comms, meshes);
    }
    RK_RANK_CHECK(rk_test_num_fds() == num_fds, "%d descriptors, %d before", rk_test_num_fds(), num_fds);
    return 0;
}

/* LeakSanitizer checks memory when the rank exits. */
static void test_mesh_comms_hundred_times_keeps_nothing(void **state)
{
    (void)state;
    assert_int_equal(rk_test_run_world(NUM_RANKS, "unix", run_many, NULL, 60), 0);
}

static int run_mismatch(struct rk_comm_world *world, void *user)
{
    struct rk_mesh_spec spec = {.tp = 2};
    struct rk_mesh_comms *comms;
    struct rk_mesh *mesh;
    struct rk_status *st;

    (void)user;
    RK_RANK_OK(rk_mesh_create(&mesh, &spec, 4));
    st = rk_mesh_comms_create(&comms, mesh, world);
    RK_RANK_CHECK(rk_status_code(st) == RK_INVALID_ARGUMENT, "%s", rk_status_message(st));
    RK_RANK_CHECK(!comms, "communicators");
    RK_RANK_CHECK(strstr(rk_status_message(st), "has 4 ranks, expected 2"), "%s", rk_status_message(st));
    rk_status_free(st);
    rk_mesh_destroy(mesh);
    return 0;
}

static void test_mesh_comms_of_another_world_size_is_refused(void **state)
{
    (void)state;
    assert_int_equal(rk_test_run_world(2, "unix", run_mismatch, NULL, 60), 0);
}

static void test_mesh_comms_single_needs_no_world(void **state)
{
    struct rk_mesh_comms *comms;

    (void)state;
    assert_ok(rk_mesh_comms_create_single(&comms));
    assert_true(rk_mesh_comms_is_member(comms));
    assert_int_equal(rk_mesh_num_ranks(rk_mesh_comms_mesh(comms)), 1);
    for (int kind = 0; kind < RK_GROUP_KIND_COUNT; kind++)
        assert_null(rk_mesh_comms_group(comms, (rk_mesh_group_kind_t)kind));
    assert_int_equal(rk_mesh_comms_coords(comms)->axis[RK_AXIS_TP], 0);
    rk_mesh_comms_destroy(comms);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mesh_comms_groups_of_seven_meshes_match_the_tables),
        cmocka_unit_test(test_mesh_comms_hundred_times_keeps_nothing),
        cmocka_unit_test(test_mesh_comms_of_another_world_size_is_refused),
        cmocka_unit_test(test_mesh_comms_single_needs_no_world),
    };

    rk_fake_nccl_setup();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
