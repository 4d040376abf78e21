/* Goal: an NCCL world has the guarantees of rk_comm.h: every failure ends waiting operations in time, and
 * names the rank where it began and the operation; afterwards the process can create another world. Method:
 * real processes that die, stop, leave or are late, over the fake NCCL, which can also inject failures, or,
 * with RK_TEST_DEVICE=cuda, over the real one with one GPU per rank. */
#include "tests/support/test.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/config/rk_config.h"
#include "base/rk_time.h"
#include "engine/rk_comm.h"
#include "tests/comm/comm_fixture.h"
#include "tests/support/device.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/graph_device.h"

#define NS_PER_MS 1000000LL
#define ELEMENTS  100000

/* --- a rank --- */

struct member {
    struct rk_comm_world *world;
    struct rk_comm_group *group;
    struct rk_stream *stream;
    float *data; /* [ELEMENTS] on the device, ones */
    int32_t rank, num_ranks;
};

static int join(struct member *member, struct comm_run *run, struct rk_test_rendezvous *rendezvous,
                int32_t rank, int32_t num_ranks)
{
    *member = (struct member){.rank = rank, .num_ranks = num_ranks, .stream = rk_test_rank_stream(rank)};
    RK_RANK_OK(rk_test_world_create(&member->world, rendezvous, rank, num_ranks, "unix", &run->config));
    RK_RANK_OK(rk_comm_group_create(&member->group, member->world, "dp", comm_all_ranks, num_ranks));
    RK_RANK_OK(rk_device_alloc(rk_stream_device(member->stream), (void **)&member->data,
                               ELEMENTS * sizeof(float), "tensor of the test"));
    return comm_fill_ones(member->stream, member->data, ELEMENTS);
}

static void leave(struct member *member)
{
    rk_comm_group_destroy(member->group);
    rk_comm_world_destroy(member->world);
    rk_device_free(rk_stream_device(member->stream), member->data);
}

/* The operation and the wait for it: either may return an error. */
static struct rk_status *reduce(struct member *member)
{
    RK_TRY(rk_comm_all_reduce(member->group, member->stream,
                              rk_tensor_1d(member->data, RK_DTYPE_F32, ELEMENTS), RK_REDUCE_SUM));
    return rk_stream_sync(member->stream);
}

/* Checks that a sum over all ranks is right. */
static int check_works(struct member *member)
{
    float first, last;

    if (comm_fill_ones(member->stream, member->data, ELEMENTS))
        return 1;
    RK_RANK_OK(reduce(member));
    RK_RANK_OK(rk_stream_copy(member->stream, &first, member->data, sizeof(first), RK_COPY_D2H));
    RK_RANK_OK(rk_stream_copy(member->stream, &last, member->data + ELEMENTS - 1, sizeof(last), RK_COPY_D2H));
    RK_RANK_OK(rk_stream_sync(member->stream));
    RK_RANK_CHECK((int32_t)first == member->num_ranks && (int32_t)last == member->num_ranks, "%g, %g",
                  (double)first, (double)last);
    return 0;
}

/* --- what works --- */

/* Two groups of a partition that leaves out some ranks and has a group of one, in addition to a group of
 * all. */
static int rank_partition(int32_t rank, int32_t num_ranks, void *user)
{
    static const int32_t pair[] = {1, 0};
    struct rk_comm_group *part;
    struct member member;
    float x = (float)rank, sum;

    if (join(&member, user, ((struct comm_run *)user)->rendezvous, rank, num_ranks))
        return 1;
    RK_RANK_OK(rk_stream_copy(member.stream, member.data, &x, sizeof(x), RK_COPY_H2D));
    RK_RANK_OK(
        rk_comm_group_create(&part, member.world, "pair", rank < 2 ? pair : &rank, rank < 2 ? 2 : rank == 2));
    RK_RANK_CHECK((part != NULL) == (rank <= 2), "group of rank %d", rank);
    RK_RANK_CHECK(rank > 1 || rk_comm_group_rank(part) == 1 - rank, "order of the pair");
    RK_RANK_OK(
        rk_comm_all_reduce(part, member.stream, rk_tensor_1d(member.data, RK_DTYPE_F32, 1), RK_REDUCE_SUM));
    RK_RANK_OK(rk_stream_copy(member.stream, &sum, member.data, sizeof(sum), RK_COPY_D2H));
    RK_RANK_OK(rk_stream_sync(member.stream));
    RK_RANK_CHECK((int32_t)sum == (rank < 2 ? 1 : rank), "sum %g", (double)sum);
    rk_comm_group_destroy(part);
    if (check_works(&member))
        return 1;
    leave(&member);
    return 0;
}

static void test_nccl_groups_of_a_partition_sum_apart(void **state)
{
    (void)state;
    comm_expect_pass(rank_partition, comm_num_ranks(), NULL);
}

static int rank_many_worlds(int32_t rank, int32_t num_ranks, void *user)
{
    struct comm_run *run = user;
    struct member member;
    int num_fds = 0, num_looks = 0;

    for (int i = 0; i < 4; i++) {
        if (join(&member, run, run->rendezvous, rank, num_ranks) || check_works(&member))
            return 1;
        leave(&member);
        if (i > 0)
            continue;
        rk_time_sleep_ms(500);       /* NCCL's threads end asynchronously */
        num_fds = rk_test_num_fds(); /* the driver opened its own descriptors with the first world */
    }
    while (rk_test_num_fds() > num_fds && num_looks++ < 30)
        rk_time_sleep_ms(100);
    RK_RANK_CHECK(rk_test_num_fds() <= num_fds, "%d descriptors, %d before", rk_test_num_fds(), num_fds);
    return 0;
}

static void test_nccl_worlds_come_and_go(void **state)
{
    (void)state;
    comm_expect_pass(rank_many_worlds, 2, NULL);
}

/* More operations than are monitored: the activity is the first unfinished one, and then none. */
static int rank_waits(int32_t rank, int32_t num_ranks, void *user)
{
    struct comm_run *run = user;
    struct rk_comm_activity activity;
    struct member member;
    int64_t begin_ns;

    if (join(&member, run, run->rendezvous, rank, num_ranks) || check_works(&member))
        return 1;
    RK_RANK_CHECK(!comm_check_idle(member.world), "busy");
    if (rank == 1)
        rk_test_meet(run->rendezvous, num_ranks);
    begin_ns = rk_time_now_ns();
    for (int i = 0; i < 200; i++)
        RK_RANK_OK(rk_comm_barrier(member.group, member.stream));
    if (rank != 1) {
        rk_time_sleep_ms(300);
        rk_comm_world_activity(member.world, &activity);
        RK_RANK_CHECK(activity.in_operation && strcmp(activity.name, "barrier #2 of group dp") == 0, "'%s'",
                      activity.name);
        RK_RANK_CHECK(activity.started_ns >= begin_ns && activity.started_ns < begin_ns + 200 * NS_PER_MS,
                      "since %lld ms", (long long)((rk_time_now_ns() - activity.started_ns) / NS_PER_MS));
        rk_test_meet(run->rendezvous, num_ranks);
    }
    RK_RANK_OK(rk_stream_sync(member.stream));
    if (comm_check_idle(member.world) || check_works(&member))
        return 1;
    leave(&member);
    return 0;
}

static void test_nccl_activity_is_the_operation_that_is_waited_for(void **state)
{
    (void)state;
    if (!rk_test_device_is_per_rank())
        rk_test_skip("the fake NCCL executes a call at once");
    comm_expect_pass(rank_waits, comm_num_ranks(), NULL);
}

/* --- a rank that dies, and a new world afterwards --- */

static int rank_killed(int32_t rank, int32_t num_ranks, void *user)
{
    struct comm_run *run = user;
    int32_t victim = num_ranks - 1;
    struct member member;
    struct rk_status *st;
    char lost[32];

    if (join(&member, run, run->rendezvous, rank, num_ranks))
        return 1;
    RK_RANK_OK(rk_comm_barrier(member.group, member.stream));
    if (rank == victim) { /* the others are waiting in the operation by then */
        RK_RANK_OK(rk_stream_sync(member.stream));
        rk_time_sleep_ms(300);
        atomic_store(&run->fault_ns, rk_time_now_ns());
        raise(SIGKILL);
    }
    st = reduce(&member);
    snprintf(lost, sizeof(lost), "rank %d is lost: ", victim);
    if (comm_check_in_time(run, COMM_VERDICT_MS))
        return 1;
    RK_RANK_CHECK(st && strstr(rk_status_message(st), lost), "%s", st ? rk_status_message(st) : "no error");
    if (rk_test_rank_check_error(st, RK_ABORTED, "PEER_LOST", "all_reduce #2 of group dp: ") ||
        rk_test_rank_check_error(rk_comm_barrier(member.group, member.stream), RK_ABORTED, "PEER_LOST", lost))
        return 1;
    leave(&member);
    RK_RANK_OK(rk_stream_sync(member.stream)); /* healthy again */
    if (join(&member, run, run->again, rank, num_ranks - 1) || check_works(&member))
        return 1;
    leave(&member);
    return 0;
}

static void test_nccl_killed_rank_is_named_and_the_others_go_on(void **state)
{
    (void)state;
    comm_expect_killed(rank_killed);
}

/* More operations than the stream's queue holds: the engine thread blocks inside NCCL's call or, if events
 * take queue entries too, at the event after it. */
static int rank_killed_at_full_streams(int32_t rank, int32_t num_ranks, void *user)
{
    struct comm_run *run = user;
    int32_t victim = num_ranks - 1;
    struct rk_event *event = NULL;
    struct rk_status *st = NULL;
    struct member member;
    char lost[32];

    if (join(&member, run, run->rendezvous, rank, num_ranks))
        return 1;
    RK_RANK_OK(rk_comm_barrier(member.group, member.stream));
    RK_RANK_OK(rk_stream_sync(member.stream));
    if (rank == victim) {
        rk_time_sleep_ms(1000);
        atomic_store(&run->fault_ns, rk_time_now_ns());
        raise(SIGKILL);
    }
    RK_RANK_OK(rk_event_create(&event, rk_stream_device(member.stream)));
    st = rk_comm_barrier(member.group, member.stream);
    for (int32_t i = 0; i < rank; i++)
        RK_RANK_OK(rk_event_record(event, member.stream));
    for (int i = 0; i < 3000 && !st; i++)
        st = rk_comm_barrier(member.group, member.stream);
    if (!st)
        st = rk_stream_sync(member.stream);
    snprintf(lost, sizeof(lost), "rank %d is lost: ", victim);
    if (comm_check_in_time(run, COMM_VERDICT_MS))
        return 1;
    RK_RANK_CHECK(st && strstr(rk_status_message(st), lost), "%s", st ? rk_status_message(st) : "no error");
    if (rk_test_rank_check_error(st, RK_ABORTED, "PEER_LOST", "barrier #2 of group dp: "))
        return 1;
    leave(&member);
    rk_event_destroy(event);
    RK_RANK_OK(rk_stream_sync(member.stream));
    return 0;
}

static void test_nccl_killed_rank_ends_who_waits_for_room_on_a_stream(void **state)
{
    (void)state;
    comm_expect_killed(rank_killed_at_full_streams);
}

/* --- ranks that are silent, late or gone --- */

static int rank_stopped(int32_t rank, int32_t num_ranks, void *user)
{
    struct comm_run *run = user;
    int32_t victim = num_ranks - 1;
    struct member member;
    struct rk_status *st;
    char text[64];

    if (join(&member, run, run->rendezvous, rank, num_ranks))
        return 1;
    RK_RANK_OK(rk_comm_barrier(member.group, member.stream));
    RK_RANK_OK(rk_stream_sync(member.stream));
    if (rank == victim) {
        rk_time_sleep_ms(100);
        atomic_store(&run->victim, getpid());
        atomic_store(&run->fault_ns, rk_time_now_ns());
        raise(SIGSTOP);
    }
    st = reduce(&member);
    /* The victim may find the data of the others and complete this operation; no rank completes the next. */
    if (rank == victim && !st)
        st = reduce(&member);
    snprintf(text, sizeof(text), "rank %d went silent for %lld ms", victim,
             (long long)run->config.progress_timeout_ms);
    if (rk_test_rank_check_error(st, st ? rk_status_code(st) : RK_ABORTED, "WATCHDOG", text))
        return 1;
    if (rank != victim && comm_check_in_time(run, 8000))
        return 1;
    if (rank != victim && atomic_fetch_add(&run->num_done, 1) == num_ranks - 2)
        kill(atomic_load(&run->victim), SIGCONT);
    leave(&member);
    return 0;
}

static void test_nccl_stopped_rank_is_named_after_the_progress_timeout(void **state)
{
    const struct rk_comm_world_config config = {.progress_timeout_ms = 2000};

    (void)state;
    comm_expect_pass(rank_stopped, comm_num_ranks(), &config);
}

static int rank_late(int32_t rank, int32_t num_ranks, void *user)
{
    struct comm_run *run = user;
    struct member member;
    struct rk_status *st;

    if (join(&member, run, run->rendezvous, rank, num_ranks))
        return 1;
    rk_time_sleep_ms(rank == 0 ? 6000 : 0);
    st = reduce(&member);
    if (rk_test_rank_check_error(st, st ? rk_status_code(st) : RK_ABORTED, "WATCHDOG",
                                 "all_reduce #1 of group dp: rank 0 did not arrive within 4000 ms"))
        return 1;
    leave(&member);
    return 0;
}

static void test_nccl_late_rank_ends_at_the_collective_timeout(void **state)
{
    /* which is also enough to connect */
    const struct rk_comm_world_config config = {.collective_timeout_ms = 4000};

    (void)state;
    comm_expect_pass(rank_late, comm_num_ranks(), &config);
}

/* Rank 1 destroys its world although rank 0 still starts an operation. */
static int rank_leaves(int32_t rank, int32_t num_ranks, void *user)
{
    struct comm_run *run = user;
    struct member member;

    if (join(&member, run, run->rendezvous, rank, num_ranks) || check_works(&member))
        return 1;
    if (rank == 0 && rk_test_rank_check_error(reduce(&member), RK_ABORTED, "PEER_LOST",
                                              "all_reduce #2 of group dp: rank 1 is lost: it left the world"))
        return 1;
    leave(&member);
    return 0;
}

static void test_nccl_rank_that_left_is_named(void **state)
{
    (void)state;
    comm_expect_pass(rank_leaves, 2, NULL);
}

/* --- abort by another thread --- */

static int rank_aborted(int32_t rank, int32_t num_ranks, void *user)
{
    struct comm_run *run = user;
    struct member member;
    struct rk_status *st;
    pthread_t thread;

    if (join(&member, run, run->rendezvous, rank, num_ranks))
        return 1;
    if (rank == 0)
        RK_RANK_CHECK(pthread_create(&thread, NULL, comm_abort_later, member.world) == 0, "thread");
    rk_time_sleep_ms(rank == 1 ? 2000 : 0);
    st = reduce(&member);
    if (rk_test_rank_check_error(st, RK_ABORTED, "COMM_ABORTED", "lease lapsed"))
        return 1;
    if (rank == 0)
        pthread_join(thread, NULL);
    leave(&member);
    return 0;
}

static void test_nccl_abort_from_another_thread_ends_all_ranks(void **state)
{
    (void)state;
    comm_expect_pass(rank_aborted, comm_num_ranks(), NULL);
}

/* A thread that does not use the device: it must not query events. */
static void *check_until_failed(void *world)
{
    struct rk_status *st;

    while (!(st = rk_comm_world_check(world)))
        rk_time_sleep_ms(1);
    return st;
}

static int rank_checked(int32_t rank, int32_t num_ranks, void *user)
{
    struct comm_run *run = user;
    struct member member;
    pthread_t thread;
    void *error;

    if (join(&member, run, run->rendezvous, rank, num_ranks))
        return 1;
    if (rank == 1) { /* while rank 0 waits in the operation */
        rk_time_sleep_ms(500);
        rk_comm_world_abort(member.world, "lease lapsed");
        leave(&member);
        return 0;
    }
    RK_RANK_CHECK(pthread_create(&thread, NULL, check_until_failed, member.world) == 0, "thread");
    if (rk_test_rank_check_error(reduce(&member), RK_ABORTED, "COMM_ABORTED", "lease lapsed"))
        return 1;
    pthread_join(thread, &error);
    if (rk_test_rank_check_error(error, RK_ABORTED, "COMM_ABORTED",
                                 "all_reduce #1 of group dp: rank 1 reports: rank 1 aborted: lease lapsed"))
        return 1;
    leave(&member);
    return 0;
}

static void test_nccl_check_from_another_thread_leaves_the_device_alone(void **state)
{
    (void)state;
    comm_expect_pass(rank_checked, 2, NULL);
}

/* --- failures of the library --- */

struct fault_case {
    const char *label;
    size_t field; /* offset in struct rk_fake_nccl_faults of the field set to 1 + rank 1 */
    rk_code_t code;
    const char *text; /* on rank 1; the others are informed */
};

#define FAULT(name) offsetof(struct rk_fake_nccl_faults, name)

static const struct fault_case fault_cases[] = {
    {"no library", FAULT(missing_pid), RK_FAILED_PRECONDITION, "the fake library does not load"},
    {"connecting", FAULT(init_rank), RK_INTERNAL, "NCCL: ncclCommInitRankConfig: fake error (fake detail)"},
    {"operation", FAULT(call_rank), RK_INTERNAL, "fake error (fake detail)"},
    {"asynchronous", FAULT(async_rank), RK_INTERNAL, "NCCL: fake remote error"},
};

struct fault_run {
    struct comm_run *run;
    const struct fault_case *row;
};

/* Runs operations until one fails. */
static struct rk_status *work(struct comm_run *run, int32_t rank, int32_t num_ranks)
{
    struct rk_comm_world *world;
    struct rk_comm_group *group;
    struct rk_status *st = NULL;

    RK_TRY(rk_test_world_create(&world, run->rendezvous, rank, num_ranks, "unix", &run->config));
    st = rk_comm_group_create(&group, world, "dp", comm_all_ranks, num_ranks);
    while (!st) {
        st = rk_comm_barrier(group, rk_test_rank_stream(rank));
        rk_time_sleep_ms(1);
    }
    rk_comm_group_destroy(group);
    rk_comm_world_destroy(world);
    return st;
}

static int rank_with_fault(int32_t rank, int32_t num_ranks, void *user)
{
    const struct fault_run *fault = user;
    bool is_missing = fault->row->field == FAULT(missing_pid);
    atomic_int *field = (atomic_int *)((char *)rk_fake_nccl_faults() + fault->row->field);
    struct rk_status *st;

    if (rank == 1)
        atomic_store(field, is_missing ? getpid() : 2);
    st = work(fault->run, rank, num_ranks);
    if (rank == 1)
        return rk_test_rank_check_error(st, fault->row->code, is_missing ? "NCCL_MISSING" : "",
                                        fault->row->text);
    RK_RANK_CHECK(strstr(rk_status_message(st), "rank 1 reports: "), "%s", rk_status_message(st));
    return rk_test_rank_check_error(st, RK_ABORTED, "COMM_ABORTED", fault->row->text);
}

static void test_nccl_failure_of_the_library_ends_all_ranks(void **state)
{
    (void)state;
    if (!rk_fake_nccl_faults())
        rk_test_skip("only the fake NCCL fails on request");
    for (size_t c = 0; c < RK_ARRAY_LEN(fault_cases); c++) {
        struct fault_run fault = {.run = comm_run_create(), .row = &fault_cases[c]};

        print_message("%s\n", fault.row->label);
        assert_int_equal(rk_test_run_ranks(3, rank_with_fault, &fault, COMM_RUN_S), 0);
        memset(rk_fake_nccl_faults(), 0, sizeof(struct rk_fake_nccl_faults));
        comm_run_destroy(fault.run);
    }
}

static int rank_with_environment(int32_t rank, int32_t num_ranks, void *user)
{
    static const char text[] = "NCCL_COMM_BLOCKING=0";
    struct comm_run *run = user;
    struct rk_comm_world *world;
    struct rk_status *st;

    if (rank == 1)
        setenv("NCCL_COMM_BLOCKING", "0", 1);
    st = rk_test_world_create(&world, run->rendezvous, rank, num_ranks, "unix", &run->config);
    if (rank == 1)
        return rk_test_rank_check_error(st, RK_FAILED_PRECONDITION, "", text);
    return rk_test_rank_check_error(st, RK_ABORTED, "COMM_ABORTED", text);
}

static void test_nccl_environment_that_changes_communicators_is_refused(void **state)
{
    (void)state;
    comm_expect_pass(rank_with_environment, 2, NULL);
}

/* Rank 0 is informed that rank 1 failed while its own connect call is in progress. */
static int rank_slow(int32_t rank, int32_t num_ranks, void *user)
{
    struct comm_run *run = user;
    struct rk_comm_world *world;

    if (rank == 0)
        atomic_store(&rk_fake_nccl_faults()->slow_rank, 1);
    else
        atomic_store(&rk_fake_nccl_faults()->init_rank, 2);
    return rk_test_rank_check_error(
        rk_test_world_create(&world, run->rendezvous, rank, num_ranks, "unix", &run->config),
        rank == 0 ? RK_ABORTED : RK_INTERNAL, rank == 0 ? "COMM_ABORTED" : "",
        "NCCL: ncclCommInitRankConfig: fake error (fake detail)");
}

/* A split that does not end: the communicator that it creates later is released. */
static int rank_splits(int32_t rank, int32_t num_ranks, void *user)
{
    struct comm_run *run = user;
    struct rk_comm_world *world;
    struct rk_comm_group *group;
    struct rk_status *st;

    RK_RANK_OK(rk_test_world_create(&world, run->rendezvous, rank, num_ranks, "unix", &run->config));
    rk_test_meet(run->rendezvous, num_ranks);
    atomic_store(&rk_fake_nccl_faults()->is_never_ready, true);
    st = rk_comm_group_create(&group, world, "dp", comm_all_ranks, num_ranks);
    if (rk_test_rank_check_error(st, st ? rk_status_code(st) : RK_OK, "WATCHDOG",
                                 "ncclCommSplit did not end within 3000 ms"))
        return 1;
    rk_comm_world_destroy(world);
    return 0;
}

/* LeakSanitizer detects a communicator that is not released. */
static void test_nccl_abort_releases_communicators_that_are_being_made(void **state)
{
    const struct rk_comm_world_config config = {.connect_timeout_ms = 3000};

    (void)state;
    if (!rk_fake_nccl_faults())
        rk_test_skip("only the fake NCCL fails on request");
    comm_expect_pass(rank_slow, 2, NULL);
    memset(rk_fake_nccl_faults(), 0, sizeof(struct rk_fake_nccl_faults));
    comm_expect_pass(rank_splits, 2, &config);
    memset(rk_fake_nccl_faults(), 0, sizeof(struct rk_fake_nccl_faults));
}

/* The driver does not answer the guard until the world is gone; then the communicators are not released. */
static int rank_with_lost_guard(int32_t rank, int32_t num_ranks, void *user)
{
    struct comm_run *run = user;
    struct member member;

    if (join(&member, run, run->rendezvous, rank, num_ranks))
        return 1;
    rk_test_meet(run->rendezvous, num_ranks);
    if (rank == 1)
        rk_test_graphs_hold_queries(true);
    RK_RANK_OK(reduce(&member)); /* with an event behind it */
    rk_time_sleep_ms(100);
    if (rank == 1) {
        atomic_store(&rk_fake_nccl_faults()->abort_rank, 2);
        rk_comm_world_abort(member.world, "no answer");
    }
    leave(&member);
    rk_test_graphs_hold_queries(false);
    rk_time_sleep_ms(rank == 1 ? 500 : 0);
    return 0;
}

static void test_nccl_world_outlives_a_guard_that_does_not_end(void **state)
{
    (void)state;
    if (!rk_fake_nccl_faults() || !rk_test_device_is_per_rank())
        rk_test_skip("needs the fake NCCL and a device a rank");
    comm_expect_pass(rank_with_lost_guard, 2, NULL);
    memset(rk_fake_nccl_faults(), 0, sizeof(struct rk_fake_nccl_faults));
}

/* When the mesh is connected and NCCL connects. */
static bool stops_after_2_s(void *user)
{
    return rk_time_now_ns() > *(const int64_t *)user + 2000 * NS_PER_MS;
}

/* The last rank stops when the mesh is connected and NCCL connects. */
static bool stops_its_process(void *user)
{
    struct comm_run *run = user;

    if (rk_time_now_ns() < atomic_load(&run->fault_ns))
        return false;
    if (atomic_exchange(&run->victim, getpid()) == 0)
        raise(SIGSTOP);
    return false;
}

static int rank_stopped_connecting(int32_t rank, int32_t num_ranks, void *user)
{
    struct comm_run *run = user;
    struct rk_comm_world_config config = run->config;
    struct rk_comm_world *world;
    struct rk_status *st;
    char text[96];

    if (rank == num_ranks - 1)
        config.should_stop = stops_its_process;
    config.user = run;
    st = rk_test_world_create(&world, run->rendezvous, rank, num_ranks, "unix", &config);
    RK_RANK_CHECK(!world, "a world");
    if (rank < num_ranks - 1 && atomic_fetch_add(&run->num_done, 1) == num_ranks - 2)
        kill(atomic_load(&run->victim), SIGCONT);
    snprintf(text, sizeof(text), "ncclCommInitRankConfig did not end within 6000 ms: rank %d went silent",
             num_ranks - 1);
    return rk_test_rank_check_error(st, st ? rk_status_code(st) : RK_OK, "WATCHDOG",
                                    rank < num_ranks - 1 ? text : "did not end within 6000 ms");
}

static void test_nccl_rank_that_stops_while_connecting_is_named(void **state)
{
    struct comm_run *run;

    (void)state;
    if (!rk_fake_nccl_faults())
        rk_test_skip("only the fake NCCL fails on request");
    run = comm_run_create();
    atomic_store(&rk_fake_nccl_faults()->is_never_ready, true);
    run->config.connect_timeout_ms = 6000;
    run->config.progress_timeout_ms = 1000;
    atomic_store(&run->fault_ns, rk_time_now_ns() + 2000 * NS_PER_MS);
    assert_int_equal(rk_test_run_ranks(3, rank_stopped_connecting, run, COMM_RUN_S), 0);
    atomic_store(&rk_fake_nccl_faults()->is_never_ready, false);
    comm_run_destroy(run);
}

static int rank_never_ready(int32_t rank, int32_t num_ranks, void *user)
{
    struct comm_run *run = user;
    struct rk_comm_world_config config = run->config;
    int64_t begin_ns = rk_time_now_ns();
    struct rk_comm_world *world;
    struct rk_status *st;

    config.user = &begin_ns;
    if (rank != 0)
        config.should_stop = NULL;
    st = rk_test_world_create(&world, run->rendezvous, rank, num_ranks, "unix", &config);
    RK_RANK_CHECK(!world, "a world");
    if (run->config.should_stop)
        return rk_test_rank_check_error(st, RK_ABORTED, "COMM_ABORTED", "this rank was asked to stop");
    return rk_test_rank_check_error(st, st ? rk_status_code(st) : RK_OK, "WATCHDOG",
                                    "ncclCommInitRankConfig did not end within 300 ms");
}

static void test_nccl_connecting_ends_at_its_timeout_and_when_asked(void **state)
{
    (void)state;
    if (!rk_fake_nccl_faults())
        rk_test_skip("only the fake NCCL fails on request");
    for (int i = 0; i < 2; i++) {
        struct comm_run *run = comm_run_create();

        atomic_store(&rk_fake_nccl_faults()->is_never_ready, true);
        run->config.connect_timeout_ms = i == 0 ? 300 : 30000;
        run->config.should_stop = i == 0 ? NULL : stops_after_2_s;
        assert_int_equal(rk_test_run_ranks(3, rank_never_ready, run, 20), 0);
        atomic_store(&rk_fake_nccl_faults()->is_never_ready, false);
        comm_run_destroy(run);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nccl_groups_of_a_partition_sum_apart),
        cmocka_unit_test(test_nccl_worlds_come_and_go),
        cmocka_unit_test(test_nccl_activity_is_the_operation_that_is_waited_for),
        cmocka_unit_test(test_nccl_killed_rank_is_named_and_the_others_go_on),
        cmocka_unit_test(test_nccl_killed_rank_ends_who_waits_for_room_on_a_stream),
        cmocka_unit_test(test_nccl_stopped_rank_is_named_after_the_progress_timeout),
        cmocka_unit_test(test_nccl_late_rank_ends_at_the_collective_timeout),
        cmocka_unit_test(test_nccl_rank_that_left_is_named),
        cmocka_unit_test(test_nccl_abort_from_another_thread_ends_all_ranks),
        cmocka_unit_test(test_nccl_check_from_another_thread_leaves_the_device_alone),
        cmocka_unit_test(test_nccl_failure_of_the_library_ends_all_ranks),
        cmocka_unit_test(test_nccl_environment_that_changes_communicators_is_refused),
        cmocka_unit_test(test_nccl_abort_releases_communicators_that_are_being_made),
        cmocka_unit_test(test_nccl_world_outlives_a_guard_that_does_not_end),
        cmocka_unit_test(test_nccl_connecting_ends_at_its_timeout_and_when_asked),
        cmocka_unit_test(test_nccl_rank_that_stops_while_connecting_is_named),
    };

    rk_test_device_need_ranks(2);
    rk_fake_nccl_setup();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
