/* The worker's threads and jobs: configuration, order, cancellation, timeouts, the end. One rank. */
#include "tests/unit/worker/cluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_time.h"

#define LONG_RESPONSE "{\"response_length\": 4000, \"ignore_eos\": true}"

static const struct test_mesh meshes[] = {{"actor", {0}}, {"rollout", {0}}, {"ref", {0}}};

/* One rank with an actor, and a rollout over its weights. */
static void open_with_models(struct test_cluster *cluster, const struct rk_worker_config *base)
{
    test_cluster_open(cluster, 1, base);
    test_cluster_configure(cluster, 1, meshes, 3);
    test_cluster_init_model(cluster, "actor", "");
    rk_job_destroy(test_call_ok(cluster, "rollout", "init_model",
                                "{\"share_weights_of\": \"actor\", \"rollout.max_num_seqs\": 2}", NULL));
}

/* A call that takes seconds. */
static struct rk_job *long_job(void)
{
    return test_method_job("rollout", "generate_sequences", LONG_RESPONSE, test_prompts(2, 4, 0));
}

static void submit_and_wait_until_running(struct test_cluster *cluster, struct rk_job *job)
{
    struct rk_worker_snapshot snapshot;

    rk_worker_submit(cluster->workers[0], job);
    do {
        rk_time_sleep_ms(1);
        rk_worker_get_snapshot(cluster->workers[0], &snapshot);
    } while (snapshot.running != job || strcmp(snapshot.phase, "generate") != 0);
}

static void check_generates(struct test_cluster *cluster)
{
    rk_job_destroy(test_call_ok(cluster, "rollout", "generate_sequences", "{\"response_length\": 3}",
                                test_prompts(2, 4, 0)));
}

static void ignore_done(void *user, struct rk_job *job)
{
    (void)user;
    rk_job_destroy(job);
}

static void test_create_unknown_device_fails(void **state)
{
    const struct rk_worker_config config = {
        .struct_size = sizeof(config),
        .device = "abacus:3",
        .comm_listen_host = "unix",
        .on_done = ignore_done,
    };
    struct rk_worker *worker;

    (void)state;
    assert_fails(rk_worker_create(&worker, &config), RK_FAILED_PRECONDITION, "abacus");
    assert_null(worker);
    rk_worker_destroy(NULL);
}

static void test_method_before_configure_is_refused(void **state)
{
    struct test_cluster cluster;
    char *options = test_init_options("");
    struct rk_job *job;

    (void)state;
    test_cluster_open(&cluster, 1, NULL);
    job = test_cluster_run(&cluster, 0, test_method_job("actor", "init_model", options, NULL));
    assert_string_equal(rk_status_reason(job->status), "NOT_CONFIGURED");
    assert_fails(rk_status_clone(job->status), RK_FAILED_PRECONDITION, "Configure");
    rk_job_destroy(job);
    rk_free(options);
    test_cluster_close(&cluster);
}

static struct rk_job *configure_job(int32_t rank, int32_t world_size, const char *const *roles)
{
    struct rk_job *job = rk_job_create(RK_JOB_CONFIGURE);
    struct rk_job_configure *configure = &job->configure;

    configure->rank = rank;
    configure->world_size = world_size;
    for (; roles[configure->num_meshes]; configure->num_meshes++) {
        const struct rk_mesh_spec spec = {0};

        snprintf(configure->meshes[configure->num_meshes].role, sizeof(configure->meshes[0].role), "%s",
                 roles[configure->num_meshes]);
        assert_ok(rk_mesh_create(&configure->meshes[configure->num_meshes].mesh, &spec, 1));
    }
    return job;
}

static void test_configure_bad_request_is_refused(void **state)
{
    static const struct {
        const char *text;
        rk_code_t code;
        int32_t rank, world_size;
        const char *roles[4];
    } cases[] = {
        {"make_comm_id", RK_FAILED_PRECONDITION, 0, 1, {"actor"}},
        {"rank=1", RK_INVALID_ARGUMENT, 1, 1, {"actor"}},
        {"rank=-1", RK_INVALID_ARGUMENT, -1, 1, {"actor"}},
        {"rank=0", RK_INVALID_ARGUMENT, 0, 0, {"actor"}},
        {"unknown role 'referee'", RK_NOT_FOUND, 0, 1, {"actor", "referee"}},
        {"two meshes", RK_INVALID_ARGUMENT, 0, 1, {"actor", "ref", "actor"}},
        {"world of 1 ranks", RK_INVALID_ARGUMENT, 0, 2, {"actor"}},
    };
    struct test_cluster cluster;

    (void)state;
    test_cluster_open(&cluster, 1, NULL);
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_job *job =
            test_cluster_run(&cluster, 0, configure_job(cases[i].rank, cases[i].world_size, cases[i].roles));

        assert_fails(rk_status_clone(job->status), cases[i].code, cases[i].text);
        rk_job_destroy(job);
    }
    test_cluster_configure(&cluster, 1, meshes, 3); /* still usable */
    test_cluster_close(&cluster);
}

static rk_role_state_t role_state(const struct rk_worker_snapshot *snapshot, const char *role)
{
    for (int32_t i = 0; i < snapshot->num_roles; i++)
        if (strcmp(snapshot->roles[i].role, role) == 0)
            return snapshot->roles[i].state;
    fail_msg("no role %s", role);
    return RK_ROLE_STATE_COUNT;
}

static void test_snapshot_follows_life(void **state)
{
    struct rk_worker_snapshot snapshot;
    struct test_cluster cluster;
    uint64_t with_models;

    (void)state;
    test_cluster_open(&cluster, 1, NULL);
    rk_worker_get_snapshot(cluster.workers[0], &snapshot);
    assert_false(snapshot.is_configured);
    assert_int_equal(snapshot.num_roles, 0);
    assert_true(snapshot.device_total_bytes > 0);
    test_cluster_configure(&cluster, 7, meshes, 3);
    rk_worker_get_snapshot(cluster.workers[0], &snapshot);
    assert_true(snapshot.is_configured);
    assert_int_equal(snapshot.mesh_generation, 7);
    assert_int_equal(snapshot.num_roles, 3);
    assert_int_equal(role_state(&snapshot, "actor"), RK_ROLE_STATE_EMPTY);
    test_cluster_init_model(&cluster, "actor", "");
    rk_worker_get_snapshot(cluster.workers[0], &snapshot);
    assert_int_equal(role_state(&snapshot, "actor"), RK_ROLE_STATE_AWAKE);
    assert_int_equal(role_state(&snapshot, "ref"), RK_ROLE_STATE_EMPTY);
    assert_null(snapshot.running);
    with_models = snapshot.device_allocated_bytes;

    rk_job_destroy(test_cluster_run(&cluster, 0, rk_job_create(RK_JOB_DROP_MODELS)));
    rk_worker_get_snapshot(cluster.workers[0], &snapshot);
    assert_false(snapshot.is_configured);
    assert_int_equal(snapshot.num_roles, 0);
    assert_true(snapshot.device_allocated_bytes < with_models / 10);
    test_cluster_close(&cluster);
}

/* Goal: phase and progress of a running job are visible, and it ends soon after a cancel request. */
static void test_cancel_running_job_ends_it(void **state)
{
    struct rk_worker_snapshot snapshot;
    struct test_cluster cluster;
    struct rk_job *job = long_job();

    (void)state;
    open_with_models(&cluster, NULL);
    submit_and_wait_until_running(&cluster, job);
    rk_worker_get_snapshot(cluster.workers[0], &snapshot);
    assert_int_equal(snapshot.progress_total, 2);
    assert_true(snapshot.running_since_ns > 0);
    assert_string_equal(rk_worker_cancel(cluster.workers[0], job, false, "the user pressed Ctrl-C"),
                        "flagged");
    test_cluster_wait(&cluster, job);
    assert_fails(rk_status_clone(job->status), RK_CANCELLED, "the user pressed Ctrl-C");
    assert_null(job->call.output);
    rk_job_destroy(job);
    rk_worker_get_snapshot(cluster.workers[0], &snapshot);
    assert_true(snapshot.is_configured);
    check_generates(&cluster);
    test_cluster_close(&cluster);
}

/* Goal: aborting the communicators ends the job and the configuration, but the models are kept and usable
 * after the next one. */
static void test_cancel_with_abort_keeps_models(void **state)
{
    struct rk_worker_snapshot snapshot;
    struct test_cluster cluster;
    struct rk_job *job = long_job();

    (void)state;
    open_with_models(&cluster, NULL);
    submit_and_wait_until_running(&cluster, job);
    assert_string_equal(rk_worker_cancel(cluster.workers[0], job, true, "lease lost"), "aborted");
    test_cluster_wait(&cluster, job);
    assert_non_null(job->status);
    rk_job_destroy(job);
    rk_worker_get_snapshot(cluster.workers[0], &snapshot);
    assert_false(snapshot.is_configured);
    assert_int_equal(role_state(&snapshot, "rollout"), RK_ROLE_STATE_AWAKE);
    job = test_cluster_run(&cluster, 0, long_job());
    assert_string_equal(rk_status_reason(job->status), "NOT_CONFIGURED");
    rk_job_destroy(job);
    test_cluster_configure(&cluster, 2, meshes, 3);
    check_generates(&cluster);
    test_cluster_close(&cluster);
}

/* Goal: a job that is cancelled in the queue ends when its turn comes; one whose communicators are aborted
 * never begins. */
static void test_cancel_queued_job_ends_without_work(void **state)
{
    struct test_cluster cluster;
    struct rk_job *running = long_job(), *queued = long_job(), *removed = long_job(), *unknown = long_job();

    (void)state;
    open_with_models(&cluster, NULL);
    submit_and_wait_until_running(&cluster, running);
    rk_worker_submit(cluster.workers[0], queued);
    rk_worker_submit(cluster.workers[0], removed);
    assert_string_equal(rk_worker_cancel(cluster.workers[0], unknown, false, "?"), "not_found");
    assert_string_equal(rk_worker_cancel(cluster.workers[0], queued, false, "too late"), "flagged");
    assert_string_equal(rk_worker_cancel(cluster.workers[0], queued, false, "again"), "flagged");
    assert_string_equal(rk_worker_cancel(cluster.workers[0], removed, true, "gone"), "queued_removed");
    assert_string_equal(rk_worker_cancel(cluster.workers[0], removed, false, "again"), "queued_removed");
    assert_string_equal(rk_worker_cancel(cluster.workers[0], running, false, "stop"), "flagged");
    test_cluster_wait(&cluster, running);
    test_cluster_wait(&cluster, queued);
    test_cluster_wait(&cluster, removed);
    assert_fails(rk_status_clone(queued->status), RK_CANCELLED,
                 "was cancelled (too late): cancelled before it began");
    assert_fails(rk_status_clone(removed->status), RK_CANCELLED, "before it began: gone");
    rk_job_destroy(running);
    rk_job_destroy(queued);
    rk_job_destroy(removed);
    rk_job_destroy(unknown);
    check_generates(&cluster);
    test_cluster_close(&cluster);
}

static void test_job_over_its_timeout_is_ended(void **state)
{
    struct test_cluster cluster;
    struct rk_job *job = long_job();

    (void)state;
    open_with_models(&cluster, NULL);
    job->call.timeout_ms = 20;
    test_cluster_run(&cluster, 0, job);
    assert_string_equal(rk_status_reason(job->status), "WATCHDOG");
    assert_fails(rk_status_clone(job->status), RK_DEADLINE_EXCEEDED, "rollout.generate_sequences");
    rk_job_destroy(job);
    test_cluster_configure(&cluster, 2, meshes, 3);
    check_generates(&cluster);
    test_cluster_close(&cluster);
}

#ifdef RK_FAULTS
/* Goal: a method that does not report progress is ended by the idle limit; one that does is not. */
static void test_job_without_progress_is_ended(void **state)
{
    const struct rk_worker_config config = {.idle_progress_ms = 1000};
    struct test_cluster cluster;
    struct rk_job *job;

    (void)state;
    setenv("RANKD_FAULTS", "worker.before_method=sleep:3s@3", 1);
    open_with_models(&cluster, &config); /* two methods */
    job = test_cluster_run(&cluster, 0, long_job());
    unsetenv("RANKD_FAULTS");
    assert_string_equal(rk_status_reason(job->status), "WATCHDOG");
    assert_fails(rk_status_clone(job->status), RK_DEADLINE_EXCEEDED, "no progress for 1000 ms");
    rk_job_destroy(job);
    test_cluster_configure(&cluster, 2, meshes, 3);
    job = long_job();
    rk_json_set(job->call.options, "response_length", rk_json_new_int(1000));
    test_cluster_run(&cluster, 0, job);
    assert_ok(rk_status_clone(job->status));
    rk_job_destroy(job);
    test_cluster_close(&cluster);
}
#endif

static void test_abort_comm_when_idle_unconfigures(void **state)
{
    struct rk_worker_snapshot snapshot;
    struct test_cluster cluster;

    (void)state;
    open_with_models(&cluster, NULL);
    rk_worker_abort_comm(cluster.workers[0], "the lease lapsed");
    rk_worker_get_snapshot(cluster.workers[0], &snapshot);
    assert_false(snapshot.is_configured);
    rk_worker_abort_comm(cluster.workers[0], "again");
    test_cluster_configure(&cluster, 2, meshes, 3);
    check_generates(&cluster);
    test_cluster_close(&cluster);
}

/* Goal: jobs of one submitter run in the order of submission. */
static void test_jobs_run_in_order(void **state)
{
    struct rk_job *jobs[8];
    struct test_cluster cluster;

    (void)state;
    open_with_models(&cluster, NULL);
    for (size_t i = 0; i < RK_ARRAY_LEN(jobs); i++) {
        jobs[i] = test_method_job("actor", "get_mesh_info", "{}", NULL);
        rk_worker_submit(cluster.workers[0], jobs[i]);
    }
    test_cluster_wait(&cluster, jobs[7]);
    pthread_mutex_lock(&cluster.lock);
    assert_int_equal(cluster.num_finished, 7);
    for (int i = 0; i < 7; i++)
        assert_ptr_equal(cluster.finished[i], jobs[i]);
    cluster.num_finished = 0;
    pthread_mutex_unlock(&cluster.lock);
    for (size_t i = 0; i < RK_ARRAY_LEN(jobs); i++) {
        assert_ok(rk_status_clone(jobs[i]->status));
        rk_job_destroy(jobs[i]);
    }
    test_cluster_close(&cluster);
}

/* Goal: destroying the worker ends the running job and returns every queued job. */
static void test_destroy_with_jobs_hands_them_back(void **state)
{
    struct rk_job *jobs[4];
    struct test_cluster cluster;

    (void)state;
    open_with_models(&cluster, NULL);
    for (size_t i = 0; i < RK_ARRAY_LEN(jobs); i++)
        jobs[i] = long_job();
    submit_and_wait_until_running(&cluster, jobs[0]);
    for (size_t i = 1; i < RK_ARRAY_LEN(jobs); i++)
        rk_worker_submit(cluster.workers[0], jobs[i]);
    rk_worker_destroy(cluster.workers[0]);
    cluster.workers[0] = NULL;
    assert_int_equal(cluster.num_finished, RK_ARRAY_LEN(jobs));
    for (size_t i = 0; i < RK_ARRAY_LEN(jobs); i++) {
        assert_ptr_equal(cluster.finished[i], jobs[i]);
        assert_fails(rk_status_clone(jobs[i]->status), RK_CANCELLED, "the daemon is stopping");
        rk_job_destroy(jobs[i]);
    }
    cluster.num_finished = 0;
    test_cluster_close(&cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create_unknown_device_fails),
        cmocka_unit_test(test_method_before_configure_is_refused),
        cmocka_unit_test(test_configure_bad_request_is_refused),
        cmocka_unit_test(test_snapshot_follows_life),
        cmocka_unit_test(test_cancel_running_job_ends_it),
        cmocka_unit_test(test_cancel_with_abort_keeps_models),
        cmocka_unit_test(test_cancel_queued_job_ends_without_work),
        cmocka_unit_test(test_job_over_its_timeout_is_ended),
#ifdef RK_FAULTS
        cmocka_unit_test(test_job_without_progress_is_ended),
#endif
        cmocka_unit_test(test_abort_comm_when_idle_unconfigures),
        cmocka_unit_test(test_jobs_run_in_order),
        cmocka_unit_test(test_destroy_with_jobs_hands_them_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
