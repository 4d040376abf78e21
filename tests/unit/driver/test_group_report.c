/* Parts that the daemons of a group hold, according to their own status. */
#include "driver/rk_group_report.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "tests/support/test.h"

#define MAX_WORKERS 4

/* A daemon of the group: 'a' actor and rollout, 'e' configured without models, 'n' new process, 'x' lost. */
struct report_case {
    const char *label;
    struct rk_mesh_spec mesh; /* mesh of the actor; the rollout has the same mesh */
    const char *workers;
    const char *parts; /* first letters of rk_part_name */
    rk_group_action_t action;
    const char *replica; /* '1' for its daemons; NULL: none */
};

static const char *const names[MAX_WORKERS] = {"addr0", "addr1", "addr2", "addr3"};

static void make_worker(struct rk_driver_worker *worker, struct rk_role_rank *roles,
                        const struct report_case *c, const struct rk_mesh *mesh, int32_t rank)
{
    struct rk_mesh_coords coords;
    char kind = c->workers[rank];

    *worker = (struct rk_driver_worker){.address = names[rank]};
    worker->status.state = "UNCONFIGURED";
    worker->status.epoch = 7;
    if (kind == 'x')
        worker->error = RK_FAIL(RK_UNAVAILABLE, "lost");
    if (kind == 'x' || kind == 'n')
        return;
    worker->status.rank = (struct rk_rank_info){
        .rank = rank, .world_size = (int32_t)strlen(c->workers), .num_roles = 0, .roles = roles};
    if (!rk_mesh_find_coords(mesh, rank, &coords))
        return;
    for (int i = 0; i < 2; i++) {
        roles[i] = (struct rk_role_rank){.role = i == 0 ? "actor" : "rollout",
                                         .mesh = rk_mesh_get_spec(mesh),
                                         .tp_rank = coords.axis[RK_AXIS_TP],
                                         .dp_rank = coords.axis[RK_AXIS_DP],
                                         .state = kind == 'a' ? "AWAKE" : "EMPTY",
                                         .weight_version = kind == 'a' ? 3 : 0};
    }
    worker->status.rank.num_roles = 2;
}

static void check(const struct report_case *c)
{
    int32_t count = (int32_t)strlen(c->workers);
    struct rk_driver_worker workers[MAX_WORKERS];
    struct rk_role_rank roles[MAX_WORKERS][2];
    struct rk_group_report report;
    struct rk_mesh *mesh;

    assert_ok(rk_mesh_create(&mesh, &c->mesh, count));
    for (int32_t i = 0; i < count; i++)
        make_worker(&workers[i], roles[i], c, mesh, i);
    assert_ok(rk_group_report_make(&report, workers, count));
    assert_int_equal(report.is_incomplete, c->action != RK_GROUP_ACTION_NONE);
    assert_int_equal(report.action, c->action);
    assert_int_equal(report.has_replica, c->replica != NULL);
    for (int32_t i = 0; i < count; i++) {
        assert_int_equal(rk_part_name(report.parts[i])[0], c->parts[i]);
        assert_int_equal(report.in_replica[i], c->replica && c->replica[i] == '1');
        /* The one message names every daemon. */
        assert_true(!report.is_incomplete || strstr(report.text, names[i]));
    }
    rk_group_report_fini(&report);
    for (int32_t i = 0; i < count; i++)
        rk_status_free(workers[i].error);
    rk_mesh_destroy(mesh);
}

static void test_rk_group_report_make_cases(void **state)
{
    static const int32_t upper[] = {2, 3};
    static const struct report_case cases[] = {
        {"whole", {.tp = 2, .dp = 2}, "aaaa", "hhhh", RK_GROUP_ACTION_NONE, NULL},
        {"never configured", {.dp = 2}, "nn", "nn", RK_GROUP_ACTION_NONE, NULL},
        {"configured, no models", {.dp = 2}, "ee", "nn", RK_GROUP_ACTION_NONE, NULL},
        {"nothing held, one lost", {.dp = 2}, "ex", "nu", RK_GROUP_ACTION_NONE, NULL},
        {"one lost", {.tp = 2, .dp = 2}, "aaax", "hhhu", RK_GROUP_ACTION_START_DAEMONS, "1100"},
        {"one started again", {.tp = 2, .dp = 2}, "naaa", "mhhh", RK_GROUP_ACTION_RUN_AGAIN, "0011"},
        {"one configured again", {.tp = 2, .dp = 2}, "aaae", "hhhm", RK_GROUP_ACTION_RUN_AGAIN, "1100"},
        {"no replica is whole", {.tp = 2, .dp = 2}, "anna", "hmmh", RK_GROUP_ACTION_RUN_AGAIN, NULL},
        {"lost and started again", {.tp = 2, .dp = 2}, "axna", "humh", RK_GROUP_ACTION_START_DAEMONS, NULL},
        {"outside the mesh",
         {.tp = 2, .num_ranks = 2, .ranks = upper},
         "ennn",
         "nnnn",
         RK_GROUP_ACTION_NONE,
         NULL},
        {"a mesh of some",
         {.tp = 2, .num_ranks = 2, .ranks = upper},
         "nnan",
         "nnhm",
         RK_GROUP_ACTION_RUN_AGAIN,
         NULL},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        print_message("%s\n", cases[i].label);
        check(&cases[i]);
    }
}

/* Goal: an error keeps its code, and the reason is added only if the group is incomplete. */
static void test_rk_group_report_explain_keeps_the_code(void **state)
{
    const struct rk_mesh_spec spec = {.dp = 2};
    struct report_case c = {"", spec, "an", NULL, RK_GROUP_ACTION_RUN_AGAIN, NULL};
    struct rk_driver_worker workers[2];
    struct rk_role_rank roles[2][2];
    struct rk_mesh *mesh;
    struct rk_status *st;

    (void)state;
    assert_ok(rk_mesh_create(&mesh, &spec, 2));
    for (int32_t i = 0; i < 2; i++)
        make_worker(&workers[i], roles[i], &c, mesh, i);
    st = rk_group_report_explain(RK_FAIL_REASON(RK_ABORTED, "ONE", "text"), workers, 2);
    assert_int_equal(rk_status_code(st), RK_ABORTED);
    assert_string_equal(rk_status_reason(st), "GROUP_INCOMPLETE");
    rk_status_free(st);
    c.workers = "nn";
    for (int32_t i = 0; i < 2; i++)
        make_worker(&workers[i], roles[i], &c, mesh, i);
    st = rk_group_report_explain(RK_FAIL_REASON(RK_ABORTED, "ONE", "text"), workers, 2);
    assert_string_equal(rk_status_reason(st), "ONE");
    rk_status_free(st);
    rk_mesh_destroy(mesh);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rk_group_report_make_cases),
        cmocka_unit_test(test_rk_group_report_explain_keeps_the_code),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
