/* Goal: over NCCL a rank that waits in a collective is seen to do so: its status names the operation, the
 * time does not count as idle, and a rank that does not come is named when the time for a collective is over.
 * Method: workers on the tests' device with streams and the library in NCCL's place, where calls return
 * before the operation has ended. */
#include "tests/unit/worker/cluster.h"

#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_time.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/graph_device.h"

static const struct test_mesh two_ranks[] = {{"actor", {.dp = 2}}};
static const struct rk_worker_config config = {
    .device = "graphs", .collective_timeout_ms = 4000, .idle_progress_ms = 1000};

static struct rk_job *new_init(void)
{
    char *options = test_init_options("");
    struct rk_job *job = test_method_job("actor", "init_model", options, NULL);

    rk_free(options);
    return job;
}

#define WAITS_IN "all_reduce #1 of group dp"

/* Until the worker is seen in that collective. */
static void wait_until_seen(struct rk_worker *worker)
{
    int64_t deadline_ns = rk_time_now_ns() + 30000000000LL;
    struct rk_worker_snapshot snapshot;

    do {
        rk_time_sleep_ms(1);
        rk_worker_get_snapshot(worker, &snapshot);
    } while (strcmp(snapshot.collective_name, WAITS_IN) != 0 && rk_time_now_ns() < deadline_ns);
    assert_string_equal(snapshot.collective_name, WAITS_IN);
}

/* Rank 1 comes later than the idle limit. */
static void test_waiting_in_a_collective_is_seen_and_is_not_idle(void **state)
{
    struct rk_worker_snapshot snapshot;
    struct rk_job *jobs[2];
    struct test_cluster cluster;

    (void)state;
    test_cluster_open(&cluster, 2, &config);
    test_cluster_configure(&cluster, 1, two_ranks, 1);
    jobs[0] = new_init();
    jobs[1] = new_init();
    rk_worker_submit(cluster.workers[0], jobs[0]);
    wait_until_seen(cluster.workers[0]);
    rk_time_sleep_ms(2000);
    rk_worker_get_snapshot(cluster.workers[0], &snapshot);
    assert_string_equal(snapshot.collective_name, WAITS_IN);
    rk_worker_submit(cluster.workers[1], jobs[1]);
    for (int i = 0; i < 2; i++) {
        test_cluster_wait(&cluster, jobs[i]);
        assert_ok(rk_status_clone(jobs[i]->status));
        rk_job_destroy(jobs[i]);
    }
    test_cluster_close(&cluster);
}

static void test_rank_that_does_not_come_is_named(void **state)
{
    struct test_cluster cluster;
    struct rk_job *job;

    (void)state;
    test_cluster_open(&cluster, 2, &config);
    test_cluster_configure(&cluster, 1, two_ranks, 1);
    job = test_cluster_run(&cluster, 0, new_init());
    assert_string_equal(rk_status_reason(job->status), "WATCHDOG");
    assert_fails(rk_status_clone(job->status), RK_DEADLINE_EXCEEDED,
                 WAITS_IN ": rank 1 did not arrive within 4000 ms");
    rk_job_destroy(job);
    test_cluster_close(&cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_waiting_in_a_collective_is_seen_and_is_not_idle),
        cmocka_unit_test(test_rank_that_does_not_come_is_named),
    };
    struct rk_status *st = rk_test_graphs_register();

    if (st)
        return EXIT_FAILURE;
    rk_fake_nccl_setup();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
