/* Cause that is reported of several failed ranks, and the text of the message. */
#include "driver/driver_internal.h"

#include <string.h>

#include "tests/support/test.h"

#define RANKS 4

struct end {
    rk_code_t code; /* RK_OK: this rank did not fail */
    const char *reason, *message;
    int32_t order;
    bool is_lost;
};

struct root_case {
    const char *label;
    struct end ends[RANKS];
    int32_t root;
    rk_code_t code;
    const char *reason, *message; /* of the whole call */
};

static const struct root_case cases[] = {
    {.label = "all fine", .root = -1},
    {.label = "one rank's own error",
     .ends = {[2] = {RK_RESOURCE_EXHAUSTED, "DEVICE_OOM", "wanted 8 GiB", 0, false}},
     .root = 2,
     .code = RK_RESOURCE_EXHAUSTED,
     .reason = "DEVICE_OOM",
     .message = "worker 2 (host:2, rank 2): RESOURCE_EXHAUSTED DEVICE_OOM: wanted 8 GiB"},
    {.label = "the killed rank is blamed though its victims reported first",
     .ends = {{RK_ABORTED, "PEER_LOST", "rank 3 is gone", 0, false},
              {RK_ABORTED, "PEER_LOST", "rank 3 is gone", 1, false},
              {RK_ABORTED, "COMM_ABORTED", "cancelled", 2, false},
              {RK_UNAVAILABLE, "", "Socket closed", 3, true}},
     .root = 3,
     .code = RK_ABORTED,
     .reason = "PEER_LOST",
     .message = "worker 3 (host:3, rank 3): UNAVAILABLE: Socket closed (3 other ranks ended with it)"},
    {.label = "a rank's own error before the ranks that waited for it",
     .ends = {{RK_DEADLINE_EXCEEDED, "WATCHDOG", "rank 1 did not arrive", 0, false},
              {RK_INTERNAL, "", "bug", 1, false}},
     .root = 1,
     .code = RK_INTERNAL,
     .reason = "",
     .message = "worker 1 (host:1, rank 1): INTERNAL: bug (1 other rank ended with it)"},
    {.label = "who waited before who only saw the connections close",
     .ends = {{RK_ABORTED, "PEER_LOST", "rank 1 closed", 0, false},
              {RK_DEADLINE_EXCEEDED, "WATCHDOG", "rank 2 did not arrive", 1, false}},
     .root = 1,
     .code = RK_DEADLINE_EXCEEDED,
     .reason = "WATCHDOG",
     .message = "worker 1 (host:1, rank 1): DEADLINE_EXCEEDED WATCHDOG: rank 2 did not arrive"},
    {.label = "equals: the first to report",
     .ends = {{RK_INVALID_ARGUMENT, "BAD_FIELD", "late", 1, false},
              {RK_INVALID_ARGUMENT, "BAD_FIELD", "early", 0, false}},
     .root = 1,
     .code = RK_INVALID_ARGUMENT,
     .reason = "BAD_FIELD",
     .message = "worker 1 (host:1, rank 1): INVALID_ARGUMENT BAD_FIELD: early"},
    {.label = "a desync before the ranks that were stopped for it",
     .ends = {{RK_CANCELLED, "", "withdrawn", 0, false},
              {RK_ABORTED, "COMM_ABORTED", "cancelled", 1, false},
              {RK_ABORTED, "COMM_DESYNC", "all_reduce against broadcast", 2, false}},
     .root = 2,
     .code = RK_ABORTED,
     .reason = "COMM_DESYNC",
     .message = "worker 2 (host:2, rank 2): ABORTED COMM_DESYNC: all_reduce against broadcast"},
};

static const char *const addresses[RANKS] = {"host:0", "host:1", "host:2", "host:3"};

static void fill(struct rk_rank_error *errors, const struct root_case *test)
{
    for (int32_t i = 0; i < RANKS; i++) {
        const struct end *end = &test->ends[i];

        errors[i] = (struct rk_rank_error){
            .rank = i, .address = addresses[i], .order = end->order, .is_lost = end->is_lost};
        if (end->code != RK_OK)
            errors[i].status = rk_status_from_wire(end->code, end->reason, end->message);
    }
}

static void test_error_of_call_names_the_rank_where_it_began(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_rank_error errors[RANKS];
        struct rk_status *st;

        print_message("%s\n", cases[i].label);
        fill(errors, &cases[i]);
        assert_int_equal(rk_error_find_root(errors, RANKS), cases[i].root);
        st = rk_error_of_call(errors, RANKS, "actor", NULL);
        if (cases[i].root < 0) {
            assert_null(st);
            continue;
        }
        assert_int_equal(rk_status_code(st), cases[i].code);
        assert_string_equal(rk_status_reason(st), cases[i].reason);
        assert_message_contains(st, cases[i].message);
        for (int32_t rank = 0; rank < RANKS; rank++)
            assert_null(errors[rank].status);
    }
}

/* Goal: for a lost rank the message has its mesh coordinates and the collective of the first rank that waited
 * for it; for a rank that failed by itself only the coordinates. */
static void test_error_of_call_has_the_place_and_a_witness(void **state)
{
    static const struct root_case lost = {
        .ends = {{RK_ABORTED, "PEER_LOST", "saw it later", 2, false},
                 {RK_ABORTED, "PEER_LOST", "stage 0 of 2: rank 3 is lost", 1, false},
                 {RK_OK, NULL, NULL, 0, false},
                 {RK_UNAVAILABLE, "", "Socket closed", 0, true}}};
    static const struct root_case own = {
        .ends = {[0] = {RK_ABORTED, "COMM_ABORTED", "rank 3 reports", 0, false},
                 [3] = {RK_RESOURCE_EXHAUSTED, "DEVICE_OOM", "no memory", 1, false}}};
    struct rk_rank_error errors[RANKS];
    struct rk_mesh_spec spec = {.tp = 2, .pp = 2};
    struct rk_mesh *mesh;
    struct rk_status *st;

    (void)state;
    assert_ok(rk_mesh_create(&mesh, &spec, RANKS));
    fill(errors, &lost);
    st = rk_error_of_call(errors, RANKS, "actor", mesh);
    assert_message_contains(st, "worker 3 (host:3, rank 3): UNAVAILABLE: Socket closed (2 other ranks ended "
                                "with it); rank 3 is tp 1 of 2, pp 1 of 2 of role 'actor'; rank 1 says: "
                                "stage 0 of 2: rank 3 is lost");
    fill(errors, &own);
    st = rk_error_of_call(errors, RANKS, "actor", mesh);
    assert_string_equal(rk_status_message(st),
                        "worker 3 (host:3, rank 3): RESOURCE_EXHAUSTED DEVICE_OOM: no memory (1 other rank "
                        "ended with it); rank 3 is tp 1 of 2, pp 1 of 2 of role 'actor'");
    rk_status_free(st);
    rk_mesh_destroy(mesh);
}

static void test_error_of_worker_keeps_code_and_reason(void **state)
{
    struct rk_status *st = rk_error_of_worker(
        RK_FAIL_REASON(RK_FAILED_PRECONDITION, "LEASE_HELD", "driver \"night-run\" holds it, 21 s left"), 3,
        "gpu-a2:7003");

    (void)state;
    assert_int_equal(rk_status_code(st), RK_FAILED_PRECONDITION);
    assert_string_equal(rk_status_reason(st), "LEASE_HELD");
    assert_string_equal(rk_status_message(st),
                        "worker 3 (gpu-a2:7003, rank 3): FAILED_PRECONDITION LEASE_HELD: driver "
                        "\"night-run\" holds it, 21 s left");
    rk_status_free(st);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_error_of_call_names_the_rank_where_it_began),
        cmocka_unit_test(test_error_of_call_has_the_place_and_a_witness),
        cmocka_unit_test(test_error_of_worker_keeps_code_and_reason),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
