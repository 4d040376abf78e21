/* Goal: other threads may read the activity, check for failures and abort while the engine thread is in
 * collectives. Method: threads that call continuously during operations; abort while an operation waits for a
 * peer that does not arrive. Also built with ThreadSanitizer. */
#include "tests/support/test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_time.h"
#include "engine/rk_comm.h"
#include "tests/support/ranks.h"

#define NS_PER_MS 1000000LL

struct watcher {
    struct rk_comm_world *world;
    atomic_bool must_stop;
    uint64_t num_looks, num_seen_busy;
    const char *error; /* static text; NULL if there was no error */
};

static void *watch(void *arg)
{
    struct watcher *watcher = arg;
    struct rk_comm_activity activity;
    uint64_t last_seq = 0;

    while (!atomic_load(&watcher->must_stop)) {
        struct rk_status *st = rk_comm_world_check(watcher->world);

        if (st)
            watcher->error = "a healthy world reports a failure";
        rk_status_free(st);
        rk_comm_world_activity(watcher->world, &activity);
        if (activity.seq < last_seq)
            watcher->error = "seq went back";
        if (activity.seq > 0 &&
            (strncmp(activity.name, "all_reduce #", 12) != 0 || !strstr(activity.name, " of group dp")) &&
            strcmp(activity.name, "batch of group dp") != 0)
            watcher->error = "wrong name";
        last_seq = activity.seq;
        watcher->num_looks++;
        watcher->num_seen_busy += activity.in_operation;
    }
    return NULL;
}

static int run_watched(struct rk_comm_world *world, void *user)
{
    static const int32_t ranks[] = {0, 1, 2};
    int32_t rank = rk_comm_world_rank(world), got = -1;
    struct watcher watcher = {.world = world};
    float *data = rk_calloc(100000, sizeof(*data));
    struct rk_comm_activity activity;
    struct rk_comm_group *group;
    pthread_t thread;

    (void)user;
    rk_comm_world_activity(world, &activity);
    RK_RANK_CHECK(activity.seq == 0 && !activity.in_operation && activity.name[0] == '\0',
                  "activity before the first");
    RK_RANK_OK(rk_comm_group_create(&group, world, "dp", ranks, 3));
    RK_RANK_CHECK(pthread_create(&thread, NULL, watch, &watcher) == 0, "thread");
    for (int i = 0; i < 50; i++) {
        RK_RANK_OK(rk_comm_all_reduce(group, NULL, rk_tensor_1d(data, RK_DTYPE_F32, 100000), RK_REDUCE_SUM));
        RK_RANK_OK(rk_comm_batch_begin(group));
        RK_RANK_OK(rk_comm_send(group, NULL, rk_tensor_1d(&rank, RK_DTYPE_I32, 1), (rank + 1) % 3));
        RK_RANK_OK(rk_comm_recv(group, NULL, rk_tensor_1d(&got, RK_DTYPE_I32, 1), (rank + 2) % 3));
        RK_RANK_OK(rk_comm_batch_end(group));
        RK_RANK_CHECK(got == (rank + 2) % 3, "%d", got);
    }
    atomic_store(&watcher.must_stop, true);
    pthread_join(thread, NULL);
    RK_RANK_CHECK(!watcher.error, "%s", watcher.error);
    RK_RANK_CHECK(watcher.num_looks > 0 && watcher.num_seen_busy > 0, "%llu looks, %llu of them busy",
                  (unsigned long long)watcher.num_looks, (unsigned long long)watcher.num_seen_busy);
    rk_comm_world_activity(world, &activity);
    RK_RANK_CHECK(activity.seq == 100 && !activity.in_operation, "seq %llu",
                  (unsigned long long)activity.seq);
    RK_RANK_CHECK(strcmp(activity.name, "batch of group dp") == 0, "%s", activity.name);
    rk_comm_group_destroy(group);
    rk_free(data);
    return 0;
}

static void test_comm_activity_and_check_from_another_thread(void **state)
{
    (void)state;
    assert_int_equal(rk_test_run_world(3, "unix", run_watched, NULL, 60), 0);
}

/* --- totals of operations --- */

#define LATE_MS 60

static int find_row(const struct rk_comm_stats *stats, const char *name)
{
    for (int i = 0; i < RK_COMM_STATS_ROWS; i++) {
        if (strcmp(stats->rows[i].name, name) == 0)
            return i;
    }
    return -1;
}

/* Rank 2 is late for the first of three operations; the others' waiting time counts for them. */
static int run_counted(struct rk_comm_world *world, void *user)
{
    static const int32_t ranks[] = {0, 1, 2};
    int32_t rank = rk_comm_world_rank(world);
    int64_t begin_ns = rk_time_now_ns(), all_ns = 0;
    struct rk_comm_group *group;
    struct rk_comm_stats stats;
    float value = 1.0f;
    int row;

    (void)user;
    RK_RANK_OK(rk_comm_group_create(&group, world, "dp", ranks, 3));
    RK_RANK_OK(rk_comm_barrier(group, NULL));
    if (rank == 2)
        rk_time_sleep_ms(LATE_MS);
    for (int i = 0; i < 3; i++)
        RK_RANK_OK(rk_comm_all_reduce(group, NULL, rk_tensor_1d(&value, RK_DTYPE_F32, 1), RK_REDUCE_SUM));
    rk_comm_world_stats(world, &stats);
    RK_RANK_CHECK(stats.has_times, "calls of the CPU net return when they are done");
    for (int i = 0; i < RK_COMM_STATS_ROWS; i++)
        all_ns += stats.rows[i].ns;
    RK_RANK_CHECK(all_ns <= rk_time_now_ns() - begin_ns, "more time than has passed");
    row = find_row(&stats, "barrier");
    RK_RANK_CHECK(row >= 0 && stats.rows[row].count == 1, "barriers");
    row = find_row(&stats, "all_reduce");
    RK_RANK_CHECK(row >= 0 && stats.rows[row].count == 3, "all-reduces");
    RK_RANK_CHECK(rank == 2 || stats.rows[row].ns > LATE_MS / 2 * 1000000LL, "%lld ns in all-reduces",
                  (long long)stats.rows[row].ns);
    row = find_row(&stats, "broadcast");
    RK_RANK_CHECK(row >= 0 && stats.rows[row].count == 0 && stats.rows[row].ns == 0, "broadcasts");
    rk_comm_group_destroy(group);
    return 0;
}

static void test_comm_stats_count_operations_and_their_time(void **state)
{
    (void)state;
    assert_int_equal(rk_test_run_world(3, "unix", run_counted, NULL, 60), 0);
}

/* --- abort --- */

struct aborter {
    struct rk_comm_world *world;
    int64_t abort_ns;
};

/* Aborts as soon as the engine thread is inside the operation. */
static void *abort_in_operation(void *arg)
{
    struct aborter *aborter = arg;
    struct rk_comm_activity activity;

    do {
        rk_time_sleep_ms(1);
        rk_comm_world_activity(aborter->world, &activity);
    } while (!activity.in_operation);
    rk_time_sleep_ms(20);
    aborter->abort_ns = rk_time_now_ns();
    rk_comm_world_abort(aborter->world, "lease lapsed");
    rk_comm_world_abort(aborter->world, "a later reason");
    return NULL;
}

/* Rank 0 waits for rank 2 until its own thread aborts; rank 1 waits too and is informed. Rank 2 arrives
 * later. It may find the frames of the others and complete that operation; the next one has nothing to
 * receive. */
static int run_aborted(struct rk_comm_world *world, void *user)
{
    static const int32_t ranks[] = {0, 1, 2};
    int32_t rank = rk_comm_world_rank(world);
    struct aborter aborter = {.world = world};
    struct rk_comm_group *group;
    struct rk_status *st;
    pthread_t thread;
    float x = 1;
    int64_t delay_ns;

    (void)user;
    RK_RANK_OK(rk_comm_group_create(&group, world, "dp", ranks, 3));
    if (rank == 0)
        RK_RANK_CHECK(pthread_create(&thread, NULL, abort_in_operation, &aborter) == 0, "thread");
    if (rank == 2)
        rk_time_sleep_ms(200);
    st = rk_comm_all_reduce(group, NULL, rk_tensor_1d(&x, RK_DTYPE_F32, 1), RK_REDUCE_SUM);
    if (rank == 2 && !st)
        st = rk_comm_barrier(group, NULL);
    delay_ns = rk_time_now_ns();
    RK_RANK_CHECK(st, "the operation went through");
    RK_RANK_CHECK(rk_status_code(st) == RK_ABORTED, "%s", rk_status_message(st));
    RK_RANK_CHECK(strcmp(rk_status_reason(st), "COMM_ABORTED") == 0, "%s", rk_status_reason(st));
    RK_RANK_CHECK(
        strstr(rk_status_message(st), "rank 0 aborted during all_reduce #1 of group dp: lease lapsed"), "%s",
        rk_status_message(st));
    rk_status_free(st);
    if (rank == 0) {
        pthread_join(thread, NULL);
        delay_ns -= aborter.abort_ns;
        RK_RANK_CHECK(delay_ns < 100 * NS_PER_MS, "abort took %lld ms", (long long)(delay_ns / NS_PER_MS));
    }
    rk_comm_group_destroy(group);
    return 0;
}

static void test_comm_world_abort_ends_a_waiting_operation_everywhere(void **state)
{
    (void)state;
    assert_int_equal(rk_test_run_world(3, "unix", run_aborted, NULL, 60), 0);
    assert_int_equal(rk_test_run_world(3, "127.0.0.1", run_aborted, NULL, 60), 0);
}

/* The payload is far larger than the sockets, so the abort comes while a frame is half sent. */
static int run_aborted_transfer(struct rk_comm_world *world, void *user)
{
    static const int32_t ranks[] = {0, 1, 2};
    int32_t rank = rk_comm_world_rank(world);
    struct aborter aborter = {.world = world};
    char *data = rk_calloc(32 << 20, 1);
    rk_tensor_t tensor = rk_tensor_1d(data, RK_DTYPE_U8, 32 << 20);
    struct rk_comm_group *group;
    struct rk_status *st;
    pthread_t thread;

    (void)user;
    RK_RANK_OK(rk_comm_group_create(&group, world, "pp", ranks, 3));
    if (rank == 0)
        RK_RANK_CHECK(pthread_create(&thread, NULL, abort_in_operation, &aborter) == 0, "thread");
    if (rank == 1) { /* receives a first message, and then sleeps */
        RK_RANK_OK(rk_comm_recv(group, NULL, rk_tensor_1d(data, RK_DTYPE_U8, 1), 0));
        rk_time_sleep_ms(200);
        st = rk_comm_recv(group, NULL, tensor, 0);
    } else if (rank == 0) {
        RK_RANK_OK(rk_comm_send(group, NULL, rk_tensor_1d(data, RK_DTYPE_U8, 1), 1));
        st = rk_comm_send(group, NULL, tensor, 1);
    } else {
        st = rk_comm_recv(group, NULL, tensor, 1);
    }
    RK_RANK_CHECK(st, "the operation went through");
    RK_RANK_CHECK(strstr(rk_status_message(st), "rank 0 aborted during send of group pp: lease lapsed"), "%s",
                  rk_status_message(st));
    rk_status_free(st);
    if (rank == 0)
        pthread_join(thread, NULL);
    rk_comm_group_destroy(group);
    rk_free(data);
    return 0;
}

static void test_comm_world_abort_in_mid_transfer_keeps_its_origin(void **state)
{
    (void)state;
    assert_int_equal(rk_test_run_world(3, "unix", run_aborted_transfer, NULL, 60), 0);
    assert_int_equal(rk_test_run_world(3, "127.0.0.1", run_aborted_transfer, NULL, 60), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_activity_and_check_from_another_thread),
        cmocka_unit_test(test_comm_stats_count_operations_and_their_time),
        cmocka_unit_test(test_comm_world_abort_ends_a_waiting_operation_everywhere),
        cmocka_unit_test(test_comm_world_abort_in_mid_transfer_keeps_its_origin),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
