/* Goal: every failure ends the operation on all ranks, in time, and names the rank where it began, also on
 * ranks that were only informed. Method: real processes that are killed, stopped, late, gone or call
 * different operations. */
#include "tests/support/test.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_time.h"
#include "engine/rk_comm.h"
#include "tests/support/ranks.h"

#define NUM_RANKS 4
#define NS_PER_MS 1000000LL
/* Large enough that the fault happens during the operation. */
#define LARGE_ELEMENTS (16 << 20)

static const int32_t all_ranks[] = {0, 1, 2, 3};

/* Shared by the ranks of one run. */
struct run {
    struct rk_test_rendezvous *rendezvous;
    const char *listen_host;
    struct rk_comm_world_config config;
    _Atomic int64_t fault_ns;   /* time of the fault */
    atomic_int num_late_errors; /* ranks that detected the deadline themselves */
    atomic_int num_done;
    _Atomic pid_t victim;
    int case_idx;
};

static struct run *run_create(const char *listen_host)
{
    struct run *run = rk_test_shared_alloc(sizeof(*run));

    run->rendezvous = rk_test_rendezvous_create();
    run->listen_host = listen_host;
    return run;
}

static void run_destroy(struct run *run)
{
    rk_test_rendezvous_destroy(run->rendezvous);
    rk_test_shared_free(run, sizeof(*run));
}

static int open_world(struct rk_comm_world **world, struct rk_comm_group **group, struct run *run,
                      int32_t rank, int32_t num_ranks)
{
    RK_RANK_OK(rk_test_world_create(world, run->rendezvous, rank, num_ranks, run->listen_host, &run->config));
    RK_RANK_OK(rk_comm_group_create(group, *world, "dp", all_ranks, num_ranks));
    return 0;
}

static void close_world(struct rk_comm_world *world, struct rk_comm_group *group)
{
    rk_comm_group_destroy(group);
    rk_comm_world_destroy(world);
}

/* Every later call returns the same first error, immediately. */
static int check_stays_failed(struct rk_comm_world *world, struct rk_comm_group *group, const char *text)
{
    struct rk_status *first = rk_comm_world_check(world), *again;
    struct rk_comm_group *none;

    RK_RANK_CHECK(first, "the world is healthy");
    again = rk_comm_barrier(group, NULL);
    RK_RANK_CHECK(again, "the barrier went through");
    RK_RANK_CHECK(strcmp(rk_status_message(first), rk_status_message(again)) == 0, "'%s' and '%s'",
                  rk_status_message(first), rk_status_message(again));
    rk_status_free(again);
    again = rk_comm_group_create(&none, world, "more", all_ranks, 1);
    RK_RANK_CHECK(!none, "a group on a world that failed");
    if (rk_test_rank_check_error(again, rk_status_code(first), rk_status_reason(first), text))
        return 1;
    rk_status_free(first);
    return 0;
}

/* --- a rank that dies or stops in the middle of an operation --- */

struct attacker {
    struct run *run;
    struct rk_comm_world *world;
    uint64_t seq; /* of the operation to hit */
    int signal;
};

/* Signals its own process while the engine thread is inside the operation. */
static void *hit_in_operation(void *arg)
{
    struct attacker *attacker = arg;
    struct rk_comm_activity activity;

    do {
        rk_comm_world_activity(attacker->world, &activity);
    } while (activity.seq < attacker->seq || !activity.in_operation ||
             rk_time_now_ns() < activity.started_ns + 5 * NS_PER_MS);
    atomic_store(&attacker->run->victim, getpid());
    atomic_store(&attacker->run->fault_ns, rk_time_now_ns());
    raise(attacker->signal);
    return NULL;
}

static struct rk_status *reduce_large(struct rk_comm_group *group, float *data)
{
    return rk_comm_all_reduce(group, NULL, rk_tensor_1d(data, RK_DTYPE_F32, LARGE_ELEMENTS), RK_REDUCE_SUM);
}

/* Two operations; rank 3 is signalled in the second. Returns the status of the second. */
static int run_hit(struct run *run, int32_t rank, int hit_signal, struct rk_comm_world **world,
                   struct rk_comm_group **group, struct rk_status **st)
{
    float *data = rk_calloc(LARGE_ELEMENTS, sizeof(*data));
    struct attacker attacker = {.run = run, .seq = 2, .signal = hit_signal};
    pthread_t thread;

    if (open_world(world, group, run, rank, NUM_RANKS))
        return 1;
    attacker.world = *world;
    RK_RANK_OK(rk_comm_barrier(*group, NULL));
    if (rank == 3)
        RK_RANK_CHECK(pthread_create(&thread, NULL, hit_in_operation, &attacker) == 0, "thread");
    *st = reduce_large(*group, data);
    if (rank == 3)
        pthread_join(thread, NULL);
    rk_free(data);
    return 0;
}

static int rank_killed(int32_t rank, int32_t num_ranks, void *user)
{
    struct run *run = user;
    struct rk_comm_world *world;
    struct rk_comm_group *group;
    struct rk_status *st;
    int64_t delay_ns;

    (void)num_ranks;
    if (run_hit(run, rank, SIGKILL, &world, &group, &st))
        return 1;
    delay_ns = rk_time_now_ns() - atomic_load(&run->fault_ns);
    RK_RANK_CHECK(delay_ns < 1000 * NS_PER_MS, "took %lld ms", (long long)(delay_ns / NS_PER_MS));
    RK_RANK_CHECK(rk_status_blamed_rank(st) == 3, "rank %d is blamed", (int)rk_status_blamed_rank(st));
    if (rk_test_rank_check_error(st, RK_ABORTED, "PEER_LOST", "all_reduce #2 of group dp: ") ||
        check_stays_failed(world, group, "rank 3 is lost"))
        return 1;
    close_world(world, group);
    return 0;
}

static void test_comm_all_reduce_with_killed_rank_ends_within_a_second(void **state)
{
    static const char *const hosts[] = {"unix", "127.0.0.1"};

    (void)state;
    for (size_t h = 0; h < RK_ARRAY_LEN(hosts); h++) {
        struct rk_test_rank_result results[NUM_RANKS];
        struct run *run = run_create(hosts[h]);

        print_message("%s\n", hosts[h]);
        assert_int_equal(rk_test_run_ranks_results(NUM_RANKS, rank_killed, run, 30, results), 1);
        assert_int_equal(results[3].signal, SIGKILL);
        run_destroy(run);
    }
}

static int rank_stopped(int32_t rank, int32_t num_ranks, void *user)
{
    struct run *run = user;
    struct rk_comm_world *world;
    struct rk_comm_group *group;
    struct rk_status *st;
    int64_t delay_ns;

    (void)num_ranks;
    if (run_hit(run, rank, SIGSTOP, &world, &group, &st))
        return 1;
    RK_RANK_CHECK(st, "the operation went through");
    delay_ns = rk_time_now_ns() - atomic_load(&run->fault_ns);
    RK_RANK_CHECK(rank == 3 || delay_ns < 2500 * NS_PER_MS, "took %lld ms",
                  (long long)(delay_ns / NS_PER_MS));
    RK_RANK_CHECK(rk_status_blamed_rank(st) == 3, "rank %d is blamed", (int)rk_status_blamed_rank(st));
    if (rank < 3) {
        if (rk_status_code(st) == RK_DEADLINE_EXCEEDED)
            atomic_fetch_add(&run->num_late_errors, 1);
        if (rk_test_rank_check_error(st, rk_status_code(st), "WATCHDOG", "rank 3 went silent for 1000 ms"))
            return 1;
        /* The last one wakes the stopped rank. */
        if (atomic_fetch_add(&run->num_done, 1) == 2)
            kill(atomic_load(&run->victim), SIGCONT);
    } else if (rk_test_rank_check_error(st, RK_ABORTED, "WATCHDOG", "rank 3 went silent")) {
        return 1;
    }
    if (check_stays_failed(world, group, "rank 3 went silent"))
        return 1;
    close_world(world, group);
    return 0;
}

static void test_comm_all_reduce_with_stopped_rank_ends_at_progress_timeout(void **state)
{
    static const char *const hosts[] = {"unix", "127.0.0.1"};

    (void)state;
    for (size_t h = 0; h < RK_ARRAY_LEN(hosts); h++) {
        struct run *run = run_create(hosts[h]);

        print_message("%s\n", hosts[h]);
        run->config.progress_timeout_ms = 1000;
        assert_int_equal(rk_test_run_ranks(NUM_RANKS, rank_stopped, run, 30), 0);
        assert_true(atomic_load(&run->num_late_errors) >= 1);
        run_destroy(run);
    }
}

/* --- ranks that do not arrive --- */

static int rank_late(int32_t rank, int32_t num_ranks, void *user)
{
    struct run *run = user;
    struct rk_comm_world *world;
    struct rk_comm_group *group;
    struct rk_status *st;
    float x = 1;

    if (open_world(&world, &group, run, rank, num_ranks))
        return 1;
    if (rank >= 2)
        rk_time_sleep_ms(900);
    st = rk_comm_all_reduce(group, NULL, rk_tensor_1d(&x, RK_DTYPE_F32, 1), RK_REDUCE_SUM);
    RK_RANK_CHECK(st, "the operation went through");
    if (rk_status_code(st) == RK_DEADLINE_EXCEEDED)
        atomic_fetch_add(&run->num_late_errors, 1);
    else
        RK_RANK_CHECK(rk_status_code(st) == RK_ABORTED, "%s", rk_status_message(st));
    if (rk_test_rank_check_error(st, rk_status_code(st), "WATCHDOG",
                                 "all_reduce #1 of group dp: ranks 2, 3 did not arrive within 300 ms"))
        return 1;
    close_world(world, group);
    return 0;
}

static void test_comm_all_reduce_with_missing_ranks_ends_at_collective_timeout(void **state)
{
    struct run *run = run_create("unix");

    (void)state;
    /* The progress timeout does not apply to ranks that have not arrived. */
    run->config.progress_timeout_ms = 100;
    run->config.collective_timeout_ms = 300;
    assert_int_equal(rk_test_run_ranks(NUM_RANKS, rank_late, run, 30), 0);
    assert_true(atomic_load(&run->num_late_errors) >= 1);
    run_destroy(run);
}

/* A rank may compute for several progress timeouts while the others wait inside the operation: the others
 * have arrived and send heartbeats. */
static int rank_slow(int32_t rank, int32_t num_ranks, void *user)
{
    struct run *run = user;
    float *data = rk_calloc(1 << 20, sizeof(*data));
    struct rk_comm_world *world;
    struct rk_comm_group *group;

    if (open_world(&world, &group, run, rank, num_ranks))
        return 1;
    for (int i = 0; i < 2; i++) {
        if (rank == i)
            rk_time_sleep_ms(3000);
        RK_RANK_OK(rk_comm_all_reduce(group, NULL, rk_tensor_1d(data, RK_DTYPE_F32, 1 << 20), RK_REDUCE_SUM));
        RK_RANK_OK(rk_comm_broadcast(group, NULL, rk_tensor_1d(data, RK_DTYPE_F32, 1 << 20), 3));
    }
    rk_free(data);
    close_world(world, group);
    return 0;
}

static void test_comm_all_reduce_with_slow_rank_waits(void **state)
{
    struct run *run = run_create("127.0.0.1");

    (void)state;
    run->config.progress_timeout_ms = 1000; /* a heartbeat may be late by as much on a busy machine */
    assert_int_equal(rk_test_run_ranks(NUM_RANKS, rank_slow, run, 30), 0);
    run_destroy(run);
}

/* --- a peer that leaves or dies while this rank is outside of operations --- */

static int rank_leaves(int32_t rank, int32_t num_ranks, void *user)
{
    struct run *run = user;
    struct rk_comm_world *world;
    struct rk_comm_group *group;
    struct rk_status *st;
    float x = 1;

    if (open_world(&world, &group, run, rank, num_ranks))
        return 1;
    RK_RANK_OK(rk_comm_barrier(group, NULL));
    if (rank == 1) {
        close_world(world, group);
        rk_test_meet(run->rendezvous, num_ranks);
        return 0;
    }
    rk_test_meet(run->rendezvous, num_ranks);
    RK_RANK_OK(rk_comm_world_check(world)); /* leaving is not a failure */
    st = rk_comm_all_reduce(group, NULL, rk_tensor_1d(&x, RK_DTYPE_F32, 1), RK_REDUCE_SUM);
    if (rk_test_rank_check_error(st, RK_ABORTED, "PEER_LOST", "rank 1 is lost: it left the world"))
        return 1;
    close_world(world, group);
    return 0;
}

static void test_comm_all_reduce_after_goodbye_names_who_left(void **state)
{
    static const char *const hosts[] = {"unix", "127.0.0.1"};

    (void)state;
    for (size_t h = 0; h < RK_ARRAY_LEN(hosts); h++) {
        struct run *run = run_create(hosts[h]);

        assert_int_equal(rk_test_run_ranks(2, rank_leaves, run, 30), 0);
        run_destroy(run);
    }
}

static int rank_dies_idle(int32_t rank, int32_t num_ranks, void *user)
{
    struct run *run = user;
    struct rk_comm_world *world;
    struct rk_comm_group *group;
    struct rk_status *st = NULL;

    if (open_world(&world, &group, run, rank, num_ranks))
        return 1;
    rk_test_meet(run->rendezvous, num_ranks);
    if (rank == 2)
        raise(SIGKILL);
    for (int i = 0; i < 1000 && !st; i++) {
        rk_time_sleep_ms(1);
        st = rk_comm_world_check(world);
    }
    if (rk_test_rank_check_error(st, RK_ABORTED, "PEER_LOST", "rank 2 is lost") ||
        check_stays_failed(world, group, "rank 2 is lost"))
        return 1;
    close_world(world, group);
    return 0;
}

static void test_comm_world_check_finds_dead_peer_between_operations(void **state)
{
    struct run *run = run_create("unix");
    struct rk_test_rank_result results[3];

    (void)state;
    assert_int_equal(rk_test_run_ranks_results(3, rank_dies_idle, run, 30, results), 1);
    assert_int_equal(results[2].signal, SIGKILL);
    run_destroy(run);
}

/* --- ranks that issue different operations --- */

struct step_args {
    struct rk_comm_group *dp, *tp; /* of both ranks */
    float *x;                      /* 64 elements */
};

static struct rk_status *sum_f32(const struct step_args *args)
{
    return rk_comm_all_reduce(args->dp, NULL, rk_tensor_1d(args->x, RK_DTYPE_F32, 8), RK_REDUCE_SUM);
}

static struct rk_status *sum_f32_longer(const struct step_args *args)
{
    return rk_comm_all_reduce(args->dp, NULL, rk_tensor_1d(args->x, RK_DTYPE_F32, 9), RK_REDUCE_SUM);
}

static struct rk_status *max_f32(const struct step_args *args)
{
    return rk_comm_all_reduce(args->dp, NULL, rk_tensor_1d(args->x, RK_DTYPE_F32, 8), RK_REDUCE_MAX);
}

static struct rk_status *sum_i32(const struct step_args *args)
{
    return rk_comm_all_reduce(args->dp, NULL, rk_tensor_1d(args->x, RK_DTYPE_I32, 8), RK_REDUCE_SUM);
}

static struct rk_status *sum_other_group(const struct step_args *args)
{
    return rk_comm_all_reduce(args->tp, NULL, rk_tensor_1d(args->x, RK_DTYPE_F32, 8), RK_REDUCE_SUM);
}

static struct rk_status *gather(const struct step_args *args)
{
    return rk_comm_all_gather(args->dp, NULL, rk_tensor_1d(args->x, RK_DTYPE_F32, 16),
                              rk_tensor_1d(args->x + 32, RK_DTYPE_F32, 8));
}

static struct rk_status *root_0(const struct step_args *args)
{
    RK_TRY(rk_comm_broadcast(args->dp, NULL, rk_tensor_1d(args->x, RK_DTYPE_F32, 8), 0));
    return rk_comm_barrier(args->dp, NULL);
}

static struct rk_status *root_1(const struct step_args *args)
{
    RK_TRY(rk_comm_broadcast(args->dp, NULL, rk_tensor_1d(args->x, RK_DTYPE_F32, 8), 1));
    return rk_comm_barrier(args->dp, NULL);
}

static struct rk_status *empty_then_sum(const struct step_args *args)
{
    RK_TRY(rk_comm_all_reduce(args->dp, NULL, rk_tensor_1d(args->x, RK_DTYPE_F32, 0), RK_REDUCE_SUM));
    return sum_f32(args);
}

static struct rk_status *swap_rows(const struct step_args *args, int64_t rows)
{
    const int64_t counts[] = {rows, rows};

    return rk_comm_all_to_all(args->dp, NULL, rk_tensor_2d(args->x, RK_DTYPE_F32, 6, 4), counts,
                              rk_tensor_2d(args->x + 32, RK_DTYPE_F32, 6, 4), counts);
}

static struct rk_status *swap_3_rows(const struct step_args *args)
{
    return swap_rows(args, 3);
}

static struct rk_status *swap_0_rows(const struct step_args *args)
{
    return swap_rows(args, 0);
}

struct desync_case {
    const char *label;
    struct rk_status *(*step[2])(const struct step_args *args);
    const char *text[2]; /* of either side's operation, in both messages */
};

static const struct desync_case desync_cases[] = {
    {"operation",
     {sum_f32, gather},
     {"all_reduce #1.0 of group dp (sum, f32, 32 bytes)", "all_gather #1.0 of group dp"}},
    {"size", {sum_f32, sum_f32_longer}, {"32 bytes", "36 bytes"}},
    {"reduction", {sum_f32, max_f32}, {"(sum, f32", "(max, f32"}},
    {"dtype", {sum_f32, sum_i32}, {"f32", "i32"}},
    {"group", {sum_f32, sum_other_group}, {"of group dp", "of group tp"}},
    {"root", {root_0, root_1}, {"barrier #2", "broadcast #1"}},
    {"one more operation", {sum_f32, empty_then_sum}, {"#1", "#2"}},
    {"row counts", {swap_3_rows, swap_0_rows}, {"48 bytes", "0 bytes"}},
};

static int rank_desync(int32_t rank, int32_t num_ranks, void *user)
{
    struct run *run = user;
    const struct desync_case *c = &desync_cases[run->case_idx];
    struct step_args args;
    struct rk_comm_world *world;
    struct rk_status *st;
    float x[64] = {0};

    if (open_world(&world, &args.dp, run, rank, num_ranks))
        return 1;
    RK_RANK_OK(rk_comm_group_create(&args.tp, world, "tp", all_ranks, num_ranks));
    args.x = x;
    st = c->step[rank](&args);
    for (int i = 0; i < 2 && st; i++)
        RK_RANK_CHECK(strstr(rk_status_message(st), c->text[i]), "'%s' lacks '%s'", rk_status_message(st),
                      c->text[i]);
    if (rk_test_rank_check_error(st, RK_ABORTED, "COMM_DESYNC", " sent "))
        return 1;
    rk_comm_group_destroy(args.tp);
    close_world(world, args.dp);
    return 0;
}

static void test_comm_different_operations_are_named(void **state)
{
    struct run *run = run_create("unix");

    (void)state;
    for (size_t c = 0; c < RK_ARRAY_LEN(desync_cases); c++) {
        print_message("%s\n", desync_cases[c].label);
        run->case_idx = (int)c;
        assert_int_equal(rk_test_run_ranks(2, rank_desync, run, 30), 0);
    }
    run_destroy(run);
}

/* --- local failures --- */

#ifdef RK_FAULTS
static int rank_fault_point(int32_t rank, int32_t num_ranks, void *user)
{
    struct run *run = user;
    struct rk_comm_world *world;
    struct rk_comm_group *group;
    struct rk_status *st;
    float x = 1;

    if (open_world(&world, &group, run, rank, num_ranks))
        return 1;
    if (rank == 1)
        setenv("RANKD_FAULTS", "comm.all_reduce=fail", 1);
    st = rk_comm_all_reduce(group, NULL, rk_tensor_1d(&x, RK_DTYPE_F32, 1), RK_REDUCE_SUM);
    if (rank == 1 ? rk_test_rank_check_error(st, RK_INTERNAL, "", "fault point comm.all_reduce")
                  : rk_test_rank_check_error(st, RK_ABORTED, "COMM_ABORTED",
                                             "rank 1 reports: all_reduce: fault point"))
        return 1;
    close_world(world, group);
    return 0;
}

static void test_comm_failure_of_one_rank_ends_the_others(void **state)
{
    struct run *run = run_create("unix");

    (void)state;
    assert_int_equal(rk_test_run_ranks(3, rank_fault_point, run, 30), 0);
    run_destroy(run);
}
#endif

/* Rank 1 runs out of memory before it has connected: it returns the error; the other rank fails after its
 * timeout. */
static int rank_without_memory(int32_t rank, int32_t num_ranks, void *user)
{
    struct run *run = user;
    struct rk_comm_world *world;
    struct rk_status *st;

    (void)rk_test_rank_device(rank);
    if (rank == 1)
        rk_alloc_fail_after(1);
    st = rk_test_world_create(&world, run->rendezvous, rank, num_ranks, run->listen_host, &run->config);
    rk_alloc_fail_after(0);
    RK_RANK_CHECK(!world, "a world without rank 1");
    RK_RANK_CHECK(st, "no error");
    RK_RANK_CHECK(rk_status_code(st) == (rank == 1 ? RK_RESOURCE_EXHAUSTED : RK_DEADLINE_EXCEEDED), "%s",
                  rk_status_message(st));
    rk_status_free(st);
    return 0;
}

static void test_comm_world_create_without_memory_fails(void **state)
{
    struct run *run = run_create("unix");

    (void)state;
    run->config.connect_timeout_ms = 300;
    assert_int_equal(rk_test_run_ranks(2, rank_without_memory, run, 30), 0);
    run_destroy(run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_all_reduce_with_killed_rank_ends_within_a_second),
        cmocka_unit_test(test_comm_all_reduce_with_stopped_rank_ends_at_progress_timeout),
        cmocka_unit_test(test_comm_all_reduce_with_missing_ranks_ends_at_collective_timeout),
        cmocka_unit_test(test_comm_all_reduce_with_slow_rank_waits),
        cmocka_unit_test(test_comm_all_reduce_after_goodbye_names_who_left),
        cmocka_unit_test(test_comm_world_check_finds_dead_peer_between_operations),
        cmocka_unit_test(test_comm_different_operations_are_named),
#ifdef RK_FAULTS
        cmocka_unit_test(test_comm_failure_of_one_rank_ends_the_others),
#endif
        cmocka_unit_test(test_comm_world_create_without_memory_fails),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
