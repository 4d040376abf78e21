/* Slow disks and slow passes: work that makes progress is not ended, cancel requests take effect, and the
 * ranks end joint work together. */
#include "tests/unit/worker/cluster.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"

#ifdef RK_FAULTS

/* 21 parameters, so that reading or writing one takes a tenth of a limit that the whole exceeds. */
#define LIMIT_MS   1000
#define SLOW_READ  "ckpt.read=sleep:100ms"
#define SLOW_WRITE "ckpt.write=sleep:100ms"

static void open_cluster(struct test_cluster *cluster, int32_t dp)
{
    const struct test_mesh meshes[] = {{"actor", {.dp = dp}}, {"ref", {.dp = dp}}};
    const char *const dirs[] = {rk_test_temp_dir(), NULL};
    const struct rk_worker_config config = {
        .ckpt_roots = dirs, .idle_progress_ms = LIMIT_MS, .collective_timeout_ms = LIMIT_MS};

    test_cluster_open(cluster, dp, &config);
    test_cluster_configure(cluster, 1, meshes, RK_ARRAY_LEN(meshes));
    test_cluster_init_model(cluster, "actor", "");
}

/* A call on all ranks under these faults; checks and frees the status of each. */
static void call(struct test_cluster *cluster, const char *role, const char *method, const char *options,
                 const char *faults)
{
    struct rk_job *jobs[TEST_MAX_WORKERS];

    setenv("RANKD_FAULTS", faults, 1);
    test_cluster_call(cluster, role, method, options, NULL, jobs);
    unsetenv("RANKD_FAULTS");
    for (int32_t rank = 0; rank < cluster->num_ranks; rank++) {
        assert_ok(rk_status_clone(jobs[rank]->status));
        rk_job_destroy(jobs[rank]);
    }
}

/* Options that name a directory of the test; rk_free them. */
static char *options_with(const char *key, const char *name)
{
    return rk_format("{\"%s\": \"%s/%s\"}", key, rk_test_temp_dir(), name);
}

/* Goal: on a slow disk a model is written and read without a time limit, by one rank alone or with other
 * ranks that have nothing to write. */
static void test_slow_disk_is_progress(void **state)
{
    (void)state;
    for (int32_t dp = 1; dp <= 2; dp++) {
        char *name = rk_format("slow-%d", dp), *path = rk_format("%s/%s", rk_test_temp_dir(), name);
        char *export_options = rk_format("{\"path\": \"%s\"}", path);
        char *load_options = rk_format("{\"model.path\": \"%s\", \"megatron.forward_only\": true}", path);
        struct test_cluster cluster;

        open_cluster(&cluster, dp);
        call(&cluster, "actor", "export_hf", export_options, SLOW_WRITE);
        call(&cluster, "ref", "init_model", load_options, SLOW_READ);
        test_cluster_close(&cluster);
        rk_free(name);
        rk_free(path);
        rk_free(export_options);
        rk_free(load_options);
    }
}

/* Goal: a pass that takes longer than the idle limit is not ended while its layers make progress, on a single
 * rank, which has no collectives. */
static void test_slow_pass_is_progress(void **state)
{
    static const struct test_mesh meshes[] = {{"actor", {0}}, {"rollout", {0}}};
    static const char *const calls[][2] = {
        {"actor", "compute_log_prob"}, {"actor", "update_actor"}, {"rollout", "generate_sequences"}};
    const struct rk_worker_config config = {.idle_progress_ms = LIMIT_MS};
    struct test_cluster cluster;

    (void)state;
    test_cluster_open(&cluster, 1, &config);
    test_cluster_configure(&cluster, 1, meshes, RK_ARRAY_LEN(meshes));
    test_cluster_init_model(&cluster, "actor", "");
    call(&cluster, "rollout", "init_model", "{\"share_weights_of\": \"actor\", \"rollout.max_num_seqs\": 1}",
         "");
    for (size_t i = 0; i < RK_ARRAY_LEN(calls); i++) {
        bool generates = strcmp(calls[i][0], "rollout") == 0;
        struct rk_batch *input = generates ? test_prompts(1, 4, 0) : test_samples(1, 4);
        struct rk_job *job =
            test_method_job(calls[i][0], calls[i][1], generates ? "{\"response_length\": 1}" : "{}", input);

        if (!generates)
            test_plan(job, &input, 1, "response_mask", 0, 1);
        setenv("RANKD_FAULTS", "model.block=sleep:400ms", 1); /* there are four */
        test_cluster_run(&cluster, 0, job);
        unsetenv("RANKD_FAULTS");
        assert_ok(rk_status_clone(job->status));
        rk_job_destroy(job);
    }
    test_cluster_close(&cluster);
}

/* Starts the call on all ranks, cancels it on `rank` in the middle, and expects all ranks to stop long before
 * the work would have ended. */
static void cancel(struct test_cluster *cluster, const char *role, const char *method, const char *options,
                   int32_t rank)
{
    struct rk_job *jobs[TEST_MAX_WORKERS];
    struct rk_worker_snapshot snapshot;
    bool is_running = false;

    for (int32_t i = 0; i < cluster->num_ranks; i++) {
        jobs[i] = test_method_job(role, method, options, NULL);
        rk_worker_submit(cluster->workers[i], jobs[i]);
    }
    while (!is_running) {
        usleep(1000);
        rk_worker_get_snapshot(cluster->workers[rank], &snapshot);
        is_running = snapshot.running == jobs[rank] && snapshot.progress_done > 0;
    }
    assert_string_equal(rk_worker_cancel(cluster->workers[rank], jobs[rank], false, "enough"), "flagged");
    for (int32_t i = 0; i < cluster->num_ranks; i++) {
        test_cluster_wait(cluster, jobs[i]);
        assert_code(rk_status_clone(jobs[i]->status), RK_CANCELLED);
        rk_job_destroy(jobs[i]);
    }
}

/* Goal: a cancellation on one rank, the writer or another, ends an export or a load on all of them; the
 * communicators stay valid, and no partial files remain. */
static void test_cancel_ends_export_and_load(void **state)
{
    char *dir = rk_format("%s/cancelled", rk_test_temp_dir());
    struct rk_worker_snapshot snapshot;
    struct test_cluster cluster;
    char *whole = options_with("path", "whole"), *again = options_with("path", "cancelled");
    char *load_options = options_with("model.path", "whole");

    (void)state;
    open_cluster(&cluster, 2);
    call(&cluster, "actor", "export_hf", whole, "");
    for (int32_t rank = 0; rank < 2; rank++) {
        setenv("RANKD_FAULTS", SLOW_WRITE, 1);
        cancel(&cluster, "actor", "export_hf", again, rank);
        assert_int_equal(rmdir(dir), 0); /* it is empty */
        setenv("RANKD_FAULTS", SLOW_READ, 1);
        cancel(&cluster, "ref", "init_model", load_options, rank);
        unsetenv("RANKD_FAULTS");
        rk_worker_get_snapshot(cluster.workers[rank], &snapshot);
        assert_true(snapshot.is_configured);
    }
    call(&cluster, "actor", "export_hf", again, "");
    call(&cluster, "ref", "init_model", load_options, "");
    test_cluster_close(&cluster);
    rk_free(whole);
    rk_free(again);
    rk_free(load_options);
    rk_free(dir);
}

/* Goal: if one rank cannot read a file, all ranks fail at the same parameter. */
static void test_unreadable_on_one_rank_fails_all(void **state)
{
    struct rk_job *jobs[TEST_MAX_WORKERS];
    struct test_cluster cluster;
    char *once = options_with("path", "once"), *options = options_with("model.path", "once");

    (void)state;
    open_cluster(&cluster, 2);
    call(&cluster, "actor", "export_hf", once, "");
    setenv("RANKD_FAULTS", "ckpt.read=fail@5", 1); /* once, on the fifth read in any rank */
    test_cluster_call(&cluster, "ref", "init_model", options, NULL, jobs);
    unsetenv("RANKD_FAULTS");
    for (int32_t rank = 0; rank < 2; rank++) {
        assert_fails(rk_status_clone(jobs[rank]->status), RK_INTERNAL, "fault point ckpt.read");
        rk_job_destroy(jobs[rank]);
    }
    call(&cluster, "ref", "init_model", options, "");
    test_cluster_close(&cluster);
    rk_free(once);
    rk_free(options);
}

#endif /* RK_FAULTS */

int main(void)
{
    const struct CMUnitTest tests[] = {
#ifdef RK_FAULTS
        cmocka_unit_test(test_slow_disk_is_progress),
        cmocka_unit_test(test_slow_pass_is_progress),
        cmocka_unit_test(test_cancel_ends_export_and_load),
        cmocka_unit_test(test_unreadable_on_one_rank_fails_all),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
