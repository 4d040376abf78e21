/* Goal: with NCCL the status of a rank that waits in a collective names the operation, the time does not
 * count as idle, and a missing rank is named at the collective's timeout. Method: workers on the test device
 * with streams and a fake NCCL library, whose calls return before the operation has ended. */
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

/* Waits until the worker's status shows that collective. */
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

/* Rank 1 arrives later than the idle limit. */
static void test_waiting_in_a_collective_is_reported_and_is_not_idle(void **state)
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

#define STRICT "\"numerics\": \"strict\""

/* A call on all four ranks: its metas as a list. */
static struct rk_json *call_all(struct test_cluster *cluster, const char *role, const char *method,
                                const char *options)
{
    struct rk_json *metas = rk_json_new_array();
    struct rk_job *jobs[TEST_MAX_WORKERS];

    test_cluster_call(cluster, role, method, options, NULL, jobs);
    for (int32_t rank = 0; rank < cluster->num_ranks; rank++) {
        assert_ok(rk_status_clone(jobs[rank]->status));
        rk_json_append(metas, rk_json_clone(rk_batch_meta(jobs[rank]->call.output)));
        rk_job_destroy(jobs[rank]);
    }
    return metas;
}

/* Plans with strict numerics after the plans of `before`; NULL: there are none. */
static struct rk_json *plan_strict(struct test_cluster *cluster, const char *role,
                                   const struct rk_json *before)
{
    struct rk_json *rooms = rk_json_new_array(), *metas;
    char *text, *more, *options;

    for (int64_t rank = 0; rank < rk_json_count(before); rank++)
        rk_json_append(rooms, rk_json_clone(rk_json_find(rk_json_at(before, rank), "room_after")));
    text = before ? rk_json_dump(rooms, 0, false) : rk_strdup("null");
    more = rk_format(STRICT ", \"plan_only\": true, \"plan_room\": %s", text);
    options = test_init_options(more);
    metas = call_all(cluster, role, "init_model", options);
    rk_free(options);
    rk_free(more);
    rk_free(text);
    rk_json_free(rooms);
    return metas;
}

static int64_t int_at(const struct rk_json *metas, const char *path)
{
    return rk_json_as_int(rk_json_find_path(rk_json_at(metas, 0), path), -1);
}

/* Goal: ordered sums over more than two ranks need separate memory, which plans count once for roles with the
 * same tp group; planning allocates none of it. */
static void test_plan_only_counts_ordered_sums_once(void **state)
{
    static const struct test_mesh meshes[] = {{"actor", {.tp = 4}}, {"ref", {.tp = 4}}};
    const struct rk_worker_config limited = {.device = "graphs",
                                             .device_memory_limit_bytes = (uint64_t)512 << 20};
    struct rk_json *actor, *ref, *report;
    struct rk_worker_snapshot before, after;
    struct test_cluster cluster;

    (void)state;
    test_cluster_open(&cluster, 4, &limited);
    test_cluster_configure(&cluster, 1, meshes, RK_ARRAY_LEN(meshes));
    rk_worker_get_snapshot(cluster.workers[0], &before);
    actor = plan_strict(&cluster, "actor", NULL);
    ref = plan_strict(&cluster, "ref", actor);
    rk_worker_get_snapshot(cluster.workers[0], &after);
    assert_int_equal(after.device_allocated_bytes, before.device_allocated_bytes);
    assert_true(int_at(actor, "communication") > 0);
    assert_int_equal(int_at(ref, "communication"), 0);
    test_cluster_init_model(&cluster, "actor", STRICT);
    test_cluster_init_model(&cluster, "ref", STRICT);
    report = call_all(&cluster, "ref", "memory_report", "{}");
    assert_int_equal(int_at(report, "device.free"), int_at(ref, "room_after.free"));
    rk_json_free(actor);
    rk_json_free(report);
    actor = plan_strict(&cluster, "actor", NULL);
    assert_int_equal(int_at(actor, "communication"), 0); /* already allocated */
    rk_json_free(actor);
    rk_json_free(ref);
    test_cluster_close(&cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_waiting_in_a_collective_is_reported_and_is_not_idle),
        cmocka_unit_test(test_rank_that_does_not_come_is_named),
        cmocka_unit_test(test_plan_only_counts_ordered_sums_once),
    };
    struct rk_status *st = rk_test_graphs_register();

    if (st)
        return EXIT_FAILURE;
    rk_fake_nccl_setup();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
