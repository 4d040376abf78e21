/* A group that has lost daemons: which replicas are complete, and the order of their daemons as ranks of a
 * separate world. */
#include "driver/rk_replicas.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "cmd/rescue_internal.h"
#include "tests/support/test.h"

#define MAX_WORKERS 8

struct replica_case {
    const char *label;
    struct rk_mesh_spec mesh;
    const char *lost;     /* '1' at the ranks that do not answer */
    const char *expected; /* "dp: addresses;" of each complete replica */
    const char *missing;  /* part of the message; NULL: no message */
};

/* A group of that mesh, as reported by its daemons; the address of rank i contains the digit i. */
static void make_group(struct rk_driver_worker *workers, struct rk_role_rank *places,
                       const char *const *names, const struct replica_case *c)
{
    int32_t count = (int32_t)strlen(c->lost);
    struct rk_mesh *mesh;

    assert_ok(rk_mesh_create(&mesh, &c->mesh, count));
    for (int32_t rank = 0; rank < count; rank++) {
        struct rk_mesh_coords coords;

        assert_true(rk_mesh_find_coords(mesh, rank, &coords));
        places[rank] = (struct rk_role_rank){
            .role = "actor",
            .mesh = rk_mesh_get_spec(mesh),
            .tp_rank = coords.axis[RK_AXIS_TP],
            .cp_rank = coords.axis[RK_AXIS_CP],
            .dp_rank = coords.axis[RK_AXIS_DP],
            .pp_rank = coords.axis[RK_AXIS_PP],
        };
        places[rank].mesh.ranks = NULL;
        workers[rank] = (struct rk_driver_worker){.address = names[rank]};
        if (c->lost[rank] == '1')
            workers[rank].error = RK_FAIL(RK_UNAVAILABLE, "lost");
        else
            workers[rank].status.rank = (struct rk_rank_info){
                .rank = rank, .world_size = count, .num_roles = 1, .roles = &places[rank]};
    }
    rk_mesh_destroy(mesh);
}

static void test_replicas_find_whole_ones_in_rank_order(void **state)
{
    static const char *const names[MAX_WORKERS] = {"0", "1", "2", "3", "4", "5", "6", "7"};
    static const struct replica_case cases[] = {
        {"all there", {.tp = 2, .dp = 2}, "0000", "0:01;1:23;", NULL},
        {"the last one lost", {.tp = 2, .dp = 2}, "0001", "0:01;", "replica 1 lacks the daemon of tp rank 1"},
        {"the first one lost",
         {.tp = 2, .dp = 2},
         "1000",
         "1:23;",
         "replica 0 lacks the daemon of tp rank 0"},
        {"one of each", {.tp = 2, .dp = 2}, "1001", "", "replica 0 lacks"},
        {"replicas of one rank", {.tp = 1, .dp = 3}, "010", "0:0;2:2;", "replica 1 lacks"},
        {"no other replica", {.tp = 4, .dp = 1}, "0010", "", "tp rank 2"},
        {"all lost", {.tp = 2, .dp = 1}, "11", "", NULL},
        {"pipeline stages",
         {.tp = 2, .dp = 2, .pp = 2},
         "00010000",
         "0:0145;",
         "replica 1 lacks the daemon of tp rank 1, pp rank 0"},
        {"the rollout's order",
         {.tp = 2, .dp = 2, .pp = 2, .order = "pp-tp-dp"},
         "00001000",
         "0:0123;",
         "replica 1 lacks"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_driver_worker workers[MAX_WORKERS];
        struct rk_role_rank places[MAX_WORKERS];
        struct rk_replicas replicas;
        struct rk_str missing = {0}, found = {0};
        int32_t count = (int32_t)strlen(cases[i].lost);

        print_message("%s\n", cases[i].label);
        make_group(workers, places, names, &cases[i]);
        assert_ok(rk_replicas_find(&replicas, "actor", workers, count, &missing));
        for (int64_t r = 0; r < replicas.items.count; r++) {
            const struct rk_replica *replica = &replicas.items.items[r];

            rk_str_appendf(&found, "%d:", replica->dp_rank);
            for (int64_t a = 0; a < replica->addresses.count; a++)
                rk_str_append(&found, replica->addresses.items[a]);
            rk_str_append(&found, ";");
            assert_int_equal(replica->mesh.dp, 1);
        }
        assert_string_equal(rk_str_text(&found), cases[i].expected);
        if (cases[i].missing)
            assert_non_null(strstr(rk_str_text(&missing), cases[i].missing));
        else
            assert_int_equal(missing.bytes, 0);
        for (int32_t w = 0; w < count; w++)
            rk_status_free(workers[w].error);
        rk_replicas_fini(&replicas);
        rk_str_fini(&missing);
        rk_str_fini(&found);
    }
}

/* Goal: only daemons that do not answer are missing to the model of a run: neither one that still ends a
 * cancelled call, nor is a stopping one, or one of another driver, a holder of it. */
static void test_rescue_who_holds_the_model(void **state)
{
    static const struct {
        const char *states[2];
        uint64_t epochs[2];
        const char *lost;
        rk_holder_t expected;
    } cases[] = {
        {{"READY", "READY"}, {7, 7}, "00", RK_HOLDER_GROUP},
        {{"READY", "BUSY"}, {7, 7}, "00", RK_HOLDER_GROUP},
        {{"READY", "UNCONFIGURED"}, {7, 7}, "00", RK_HOLDER_REPLICA}, /* its communicators were aborted */
        {{"READY", "READY"}, {7, 7}, "01", RK_HOLDER_REPLICA},
        {{"READY", "READY"}, {7, 7}, "11", RK_HOLDER_NONE},
        {{"READY", "DRAINING"}, {7, 7}, "00", RK_HOLDER_NONE},
        {{"DRAINING", "READY"}, {7, 7}, "01", RK_HOLDER_NONE},
        {{"FAILED", "READY"}, {7, 7}, "00", RK_HOLDER_NONE},
        {{"READY", "READY"}, {7, 8}, "00", RK_HOLDER_NONE},
    };
    static const char *const names[] = {"0", "1"};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct replica_case group = {.mesh = {.tp = 1, .dp = 2}, .lost = cases[i].lost};
        struct rk_driver_worker workers[2];
        struct rk_role_rank places[2];

        print_message("%s %s %s\n", cases[i].states[0], cases[i].states[1], cases[i].lost);
        make_group(workers, places, names, &group);
        for (int w = 0; w < 2; w++) {
            workers[w].status.state = cases[i].states[w];
            workers[w].status.epoch = cases[i].epochs[w];
        }
        assert_int_equal(rk_rescue_holder(workers, 2, 7), cases[i].expected);
        for (int w = 0; w < 2; w++)
            rk_status_free(workers[w].error);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_replicas_find_whole_ones_in_rank_order),
                                       cmocka_unit_test(test_rescue_who_holds_the_model)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
