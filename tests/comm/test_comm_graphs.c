/* Goal: a graph repeats the operations of a group as if they were called, ranks that launch can be combined
 * with ranks that call, and failures in a launch are reported as those of calls: in time, with the rank and
 * the operations; afterwards the process can create another world, although graphs of the old one still
 * exist. Method: real processes over the fake NCCL and a CPU device with graphs, or, with
 * RK_TEST_DEVICE=cuda, over NCCL with one GPU per rank. */
#include "tests/support/test.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_time.h"
#include "engine/rk_comm.h"
#include "kernels/rk_kernels.h"
#include "tests/comm/comm_fixture.h"
#include "tests/support/device.h"
#include "tests/support/fake_nccl.h"

#define NS_PER_MS  1000000LL
#define ELEMENTS   20000
#define NUM_LEVELS 6

/* --- a rank --- */

struct member {
    struct rk_comm_world *world;
    struct rk_comm_group *group;
    struct rk_stream *stream;
    float *data; /* [2, ELEMENTS] on the device */
    struct rk_comm_graph *graph;
    int32_t rank, num_ranks;
};

/* Operations that are recorded: a sum, and a broadcast of it from the root. */
static struct rk_status *enqueue(struct member *member)
{
    float *copy = member->data + ELEMENTS;

    RK_TRY(rk_comm_all_reduce(member->group, member->stream,
                              rk_tensor_1d(member->data, RK_DTYPE_F32, ELEMENTS), RK_REDUCE_SUM));
    RK_TRY(rk_stream_copy(member->stream, copy, member->data, ELEMENTS * sizeof(*copy), RK_COPY_D2D));
    return rk_comm_broadcast(member->group, member->stream, rk_tensor_1d(copy, RK_DTYPE_F32, ELEMENTS), 1);
}

static int check_value(struct member *member, double expected)
{
    float values[4];

    for (int i = 0; i < 4; i++)
        RK_RANK_OK(rk_stream_copy(member->stream, &values[i],
                                  member->data + (i / 2) * ELEMENTS + (i % 2) * (ELEMENTS - 1),
                                  sizeof(values[i]), RK_COPY_D2H));
    RK_RANK_OK(rk_stream_sync(member->stream));
    for (int i = 0; i < 4; i++)
        RK_RANK_CHECK((double)values[i] == expected, "value %d is %g, expected %g", i, (double)values[i],
                      expected);
    return 0;
}

static int record(struct member *member)
{
    RK_RANK_OK(rk_comm_graph_begin(member->group, member->stream));
    RK_RANK_OK(enqueue(member));
    RK_RANK_OK(rk_comm_graph_end(&member->graph, member->group, member->stream));
    RK_RANK_CHECK(rk_comm_graph_is_current(member->graph), "the graph is not current");
    return 0;
}

static int join_group(struct member *member)
{
    RK_RANK_OK(rk_comm_group_create(&member->group, member->world, "dp", comm_all_ranks, member->num_ranks));
    RK_RANK_CHECK(rk_comm_has_graphs(member->group, rk_stream_device(member->stream)), "no graphs");
    return 0;
}

/* Creates a world, a group and a graph of it, after calling operations #1 and #2. */
static int join(struct member *member, struct comm_run *run, struct rk_test_rendezvous *rendezvous,
                int32_t rank, int32_t num_ranks)
{
    *member = (struct member){.rank = rank, .num_ranks = num_ranks, .stream = rk_test_rank_stream(rank)};
    RK_RANK_OK(rk_test_world_create(&member->world, rendezvous, rank, num_ranks, "unix", &run->config));
    RK_RANK_OK(rk_device_alloc(rk_stream_device(member->stream), (void **)&member->data,
                               2 * ELEMENTS * sizeof(float), "tensors of the test"));
    if (join_group(member) || comm_fill_ones(member->stream, member->data, ELEMENTS))
        return 1;
    RK_RANK_OK(enqueue(member));
    return record(member) || check_value(member, num_ranks);
}

/* The graph still exists when its group and world are destroyed. */
static int leave(struct member *member)
{
    rk_comm_group_destroy(member->group);
    RK_RANK_CHECK(!rk_comm_graph_is_current(member->graph), "current without its group");
    rk_comm_world_destroy(member->world);
    rk_comm_graph_destroy(member->graph);
    rk_device_free(rk_stream_device(member->stream), member->data);
    return 0;
}

/* The operations and the wait for them: either may return an error. */
static struct rk_status *launch(struct member *member)
{
    RK_TRY(rk_comm_graph_launch(member->graph));
    return rk_stream_sync(member->stream);
}

/* --- what works --- */

/* In every round some ranks launch and the others call: bit r of the round's number selects for rank r. */
static int rank_repeats(int32_t rank, int32_t num_ranks, void *user)
{
    struct comm_run *run = user;
    struct member member;
    double expected = num_ranks;

    if (join(&member, run, run->rendezvous, rank, num_ranks))
        return 1;
    for (int round = 0; round < NUM_LEVELS; round++) {
        bool launches = ((round * 5 + 3) >> rank) & 1;

        RK_RANK_OK(launches ? rk_comm_graph_launch(member.graph) : enqueue(&member));
        expected *= num_ranks;
        if (check_value(&member, expected))
            return 1;
        if (round != 2)
            continue;
        RK_RANK_OK(rk_comm_graph_begin(member.group, member.stream)); /* a dropped recording */
        RK_RANK_OK(enqueue(&member));
        RK_RANK_OK(rk_comm_graph_end(NULL, member.group, member.stream));
    }
    return leave(&member);
}

static void test_graph_repeats_operations_beside_ranks_that_call_them(void **state)
{
    (void)state;
    comm_expect_pass(rank_repeats, comm_num_ranks(), NULL);
}

static int rank_regroups(int32_t rank, int32_t num_ranks, void *user)
{
    struct comm_run *run = user;
    struct rk_comm_graph *old;
    struct member member;

    if (join(&member, run, run->rendezvous, rank, num_ranks))
        return 1;
    RK_RANK_OK(launch(&member));
    rk_comm_group_destroy(member.group);
    RK_RANK_CHECK(!rk_comm_graph_is_current(member.graph), "current without its group");
    old = member.graph;
    if (join_group(&member) || comm_fill_ones(member.stream, member.data, ELEMENTS) || record(&member))
        return 1;
    rk_comm_graph_destroy(old);
    RK_RANK_OK(launch(&member));
    if (check_value(&member, num_ranks))
        return 1;
    return leave(&member);
}

static void test_graph_ends_with_its_group(void **state)
{
    (void)state;
    comm_expect_pass(rank_regroups, 2, NULL);
}

/* The activity is the launch from the call until the stream has completed it, and none afterwards. */
static int rank_waits(int32_t rank, int32_t num_ranks, void *user)
{
    static const char expected[] = "graph of all_reduce #3 to broadcast #4 of group dp";
    struct comm_run *run = user;
    struct rk_comm_activity activity;
    struct member member;
    int64_t begin_ns;

    if (join(&member, run, run->rendezvous, rank, num_ranks))
        return 1;
    if (rank == 1)
        rk_test_meet(run->rendezvous, num_ranks);
    begin_ns = rk_time_now_ns();
    RK_RANK_OK(rk_comm_graph_launch(member.graph));
    if (rank != 1) {
        rk_time_sleep_ms(300);
        rk_comm_world_activity(member.world, &activity);
        RK_RANK_CHECK(activity.in_operation && strcmp(activity.name, expected) == 0, "'%s'", activity.name);
        RK_RANK_CHECK(activity.started_ns >= begin_ns && activity.started_ns < begin_ns + 200 * NS_PER_MS,
                      "since %lld ms", (long long)((rk_time_now_ns() - activity.started_ns) / NS_PER_MS));
        rk_test_meet(run->rendezvous, num_ranks);
    }
    RK_RANK_OK(rk_stream_sync(member.stream));
    return comm_check_idle(member.world) || leave(&member);
}

static void test_graph_launch_is_the_activity_until_it_ends(void **state)
{
    (void)state;
    comm_expect_pass(rank_waits, comm_num_ranks(), NULL);
}

/* --- what fails --- */

static int rank_killed(int32_t rank, int32_t num_ranks, void *user)
{
    struct comm_run *run = user;
    int32_t victim = num_ranks - 1;
    struct member member;
    struct rk_status *st = NULL;
    char text[96];

    if (join(&member, run, run->rendezvous, rank, num_ranks))
        return 1;
    RK_RANK_OK(launch(&member));
    if (rank == victim) { /* the others are waiting in the next launch by then */
        rk_time_sleep_ms(300);
        atomic_store(&run->fault_ns, rk_time_now_ns());
        raise(SIGKILL);
    }
    for (int i = 0; i < 2 && !st; i++) /* one more may be in the queue behind the waiting one */
        st = rk_comm_graph_launch(member.graph);
    if (!st)
        st = rk_stream_sync(member.stream);
    if (comm_check_in_time(run, COMM_VERDICT_MS))
        return 1;
    snprintf(text, sizeof(text), "rank %d is lost: ", victim);
    RK_RANK_CHECK(st && strstr(rk_status_message(st), text), "%s", st ? rk_status_message(st) : "no error");
    if (rk_test_rank_check_error(st, RK_ABORTED, "PEER_LOST",
                                 "graph of all_reduce #5 to broadcast #6 of group dp: ") ||
        rk_test_rank_check_error(rk_comm_barrier(member.group, member.stream), RK_ABORTED, "PEER_LOST",
                                 text) ||
        rk_test_rank_check_error(rk_comm_graph_launch(member.graph), RK_ABORTED, "PEER_LOST", text) ||
        leave(&member))
        return 1;
    RK_RANK_OK(rk_stream_sync(member.stream)); /* healthy again */
    if (num_ranks == 2)
        return 0;
    if (join(&member, run, run->again, rank, num_ranks - 1))
        return 1;
    RK_RANK_OK(launch(&member));
    if (check_value(&member, (num_ranks - 1) * (num_ranks - 1)))
        return 1;
    return leave(&member);
}

static void test_graph_killed_rank_is_named_and_the_others_go_on(void **state)
{
    (void)state;
    comm_expect_killed(rank_killed);
}

static int rank_late(int32_t rank, int32_t num_ranks, void *user)
{
    struct comm_run *run = user;
    struct member member;
    struct rk_status *st;

    if (join(&member, run, run->rendezvous, rank, num_ranks))
        return 1;
    rk_time_sleep_ms(rank == 0 ? 6000 : 0);
    st = launch(&member);
    if (rk_test_rank_check_error(
            st, st ? rk_status_code(st) : RK_ABORTED, "WATCHDOG",
            "graph of all_reduce #3 to broadcast #4 of group dp: rank 0 did not arrive within 4000 "
            "ms"))
        return 1;
    return leave(&member);
}

static void test_graph_late_rank_ends_at_the_collective_timeout(void **state)
{
    /* which is also enough to connect */
    const struct rk_comm_world_config config = {.collective_timeout_ms = 4000};

    (void)state;
    comm_expect_pass(rank_late, comm_num_ranks(), &config);
}

/* Rank 0's launch waits for rank 1, which never comes; another thread aborts. */
static int rank_aborted(int32_t rank, int32_t num_ranks, void *user)
{
    struct comm_run *run = user;
    struct member member;
    pthread_t thread;

    if (join(&member, run, run->rendezvous, rank, num_ranks))
        return 1;
    if (rank == 0)
        RK_RANK_CHECK(pthread_create(&thread, NULL, comm_abort_later, member.world) == 0, "thread");
    rk_time_sleep_ms(rank == 1 ? 2000 : 0);
    if (rk_test_rank_check_error(
            launch(&member), RK_ABORTED, "COMM_ABORTED",
            "rank 0 aborted during graph of all_reduce #3 to broadcast #4 of group dp: lease lapsed"))
        return 1;
    if (rank == 0)
        pthread_join(thread, NULL);
    return leave(&member);
}

static void test_graph_abort_from_another_thread_ends_all_ranks(void **state)
{
    (void)state;
    comm_expect_pass(rank_aborted, comm_num_ranks(), NULL);
}

#ifdef RK_FAULTS
static int rank_fault_point(int32_t rank, int32_t num_ranks, void *user)
{
    struct comm_run *run = user;
    struct member member;

    if (rank == 1)
        setenv("RANKD_FAULTS", "comm.graph=fail", 1);
    if (join(&member, run, run->rendezvous, rank, num_ranks))
        return 1;
    rk_test_meet(run->rendezvous, num_ranks); /* all ranks have completed the first operations */
    if (rank == 1
            ? rk_test_rank_check_error(launch(&member), RK_INTERNAL, "", "graph: fault point comm.graph")
            : rk_test_rank_check_error(launch(&member), RK_ABORTED, "COMM_ABORTED",
                                       "rank 1 reports: graph: fault point comm.graph"))
        return 1;
    return leave(&member);
}

static void test_graph_failure_of_one_rank_ends_the_others(void **state)
{
    (void)state;
    comm_expect_pass(rank_fault_point, comm_num_ranks(), NULL);
}
#endif

/* Rank 1's device is lost while it holds a graph: nothing on it can be expected to end. */
static int rank_lost(int32_t rank, int32_t num_ranks, void *user)
{
    struct comm_run *run = user;
    struct rk_axpby_args args = {.y = rk_tensor_1d((void *)(uintptr_t)4096, RK_DTYPE_F32, 1024), .alpha = 1};
    struct member member;
    struct rk_status *st;
    int64_t begin_ns;

    if (join(&member, run, run->rendezvous, rank, num_ranks))
        return 1;
    rk_test_meet(run->rendezvous, num_ranks); /* all ranks have completed the first operations */
    if (rank == 1) {
        args.x = rk_tensor_1d(member.data, RK_DTYPE_F32, 1024);
        RK_RANK_OK(rk_axpby(member.stream, &args));
        st = rk_stream_sync(member.stream);
        RK_RANK_CHECK(st, "the device works");
        rk_comm_world_abort(member.world, rk_status_message(st));
        rk_status_free(st);
    } else if (rk_test_rank_check_error(launch(&member), RK_ABORTED, "COMM_ABORTED", "rank 1 aborted")) {
        return 1;
    }
    begin_ns = rk_time_now_ns();
    if (leave(&member))
        return 1;
    if (rank == 1)
        atomic_store(&run->delay_ms, (rk_time_now_ns() - begin_ns) / NS_PER_MS);
    return 0;
}

static void test_graph_of_a_lost_device_holds_nobody_up(void **state)
{
    struct comm_run *run = comm_run_create();

    (void)state;
    if (rk_fake_nccl_faults())
        rk_test_skip("a CPU cannot be lost");
    assert_int_equal(rk_test_run_ranks(2, rank_lost, run, COMM_RUN_S), 0);
    print_message("the lost rank's world came down in %lld ms\n", (long long)atomic_load(&run->delay_ms));
    comm_run_destroy(run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_graph_repeats_operations_beside_ranks_that_call_them),
        cmocka_unit_test(test_graph_ends_with_its_group),
        cmocka_unit_test(test_graph_launch_is_the_activity_until_it_ends),
        cmocka_unit_test(test_graph_killed_rank_is_named_and_the_others_go_on),
        cmocka_unit_test(test_graph_late_rank_ends_at_the_collective_timeout),
        cmocka_unit_test(test_graph_abort_from_another_thread_ends_all_ranks),
#ifdef RK_FAULTS
        cmocka_unit_test(test_graph_failure_of_one_rank_ends_the_others),
#endif
        cmocka_unit_test(test_graph_of_a_lost_device_holds_nobody_up),
    };

    rk_test_device_need_ranks(2);
    rk_fake_nccl_setup();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
