/* The methods save_checkpoint, wait_checkpoint and load_checkpoint, as the daemon calls them. */
#include "tests/support/test.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/unit/worker/cluster.h"

static void open_cluster(struct test_cluster *cluster, int32_t num_ranks)
{
    const char *roots[] = {rk_test_temp_dir(), NULL};
    struct rk_worker_config base = {.struct_size = sizeof(base), .ckpt_roots = roots};
    struct test_mesh meshes[] = {{"actor", {.dp = num_ranks}}, {"rollout", {.dp = num_ranks}}};

    test_cluster_open(cluster, num_ranks, &base);
    test_cluster_configure(cluster, 1, meshes, 2);
}

/* One call on all ranks; returns the status of rank 0 and optionally its job. */
static struct rk_status *call(struct test_cluster *cluster, const char *role, const char *method,
                              const char *options, struct rk_job **out)
{
    struct rk_job *jobs[TEST_MAX_WORKERS];
    struct rk_status *st;

    test_cluster_call(cluster, role, method, options, NULL, jobs);
    for (int32_t r = 1; r < cluster->num_ranks; r++) {
        assert_int_equal(rk_status_code(jobs[r]->status), rk_status_code(jobs[0]->status));
        rk_job_destroy(jobs[r]);
    }
    st = rk_status_clone(jobs[0]->status);
    if (out)
        *out = jobs[0];
    else
        rk_job_destroy(jobs[0]);
    return st;
}

static char *part_of(const char *name, int64_t step)
{
    return rk_format("%s/%s/global_step_%lld/actor", rk_test_temp_dir(), name, (long long)step);
}

static struct rk_status *save(struct test_cluster *cluster, const char *name, int64_t step, const char *more,
                              struct rk_job **out)
{
    char *part = part_of(name, step);
    char *options = rk_format("{\"path\": \"%s\", \"global_step\": %lld%s}", part, (long long)step, more);
    struct rk_status *st = call(cluster, "actor", "save_checkpoint", options, out);

    rk_free(options);
    rk_free(part);
    return st;
}

static struct rk_status *load(struct test_cluster *cluster, const char *name, int64_t step, const char *more,
                              struct rk_job **out)
{
    char *part = part_of(name, step);
    char *options = rk_format("{\"path\": \"%s\"%s}", part, more);
    struct rk_status *st = call(cluster, "actor", "load_checkpoint", options, out);

    rk_free(options);
    rk_free(part);
    return st;
}

static const char *meta_string(const struct rk_job *job, const char *key)
{
    return rk_json_as_string(rk_json_find(rk_batch_meta(job->call.output), key), "none");
}

static int64_t meta_int(const struct rk_job *job, const char *key)
{
    return rk_json_as_int(rk_json_find(rk_batch_meta(job->call.output), key), -1);
}

/* Whether the shards of rank `rank` have the same bytes. */
static bool is_same_shard(const char *name, int64_t a, int64_t b, int32_t rank)
{
    char *parts[] = {part_of(name, a), part_of(name, b)}, *data[2];
    size_t bytes[2];
    bool is_same;

    for (int i = 0; i < 2; i++) {
        char *path = rk_format("%s/dist_ckpt/shard_%05d.safetensors", parts[i], rank);

        data[i] = rk_test_read_file(path, &bytes[i]);
        rk_free(path);
        rk_free(parts[i]);
    }
    is_same = bytes[0] == bytes[1] && memcmp(data[0], data[1], bytes[0]) == 0;
    rk_free(data[0]);
    rk_free(data[1]);
    return is_same;
}

/* Goal: a saved state is restored, with its step and contents in the meta. */
static void test_save_and_load_of_two_ranks(void **state)
{
    struct test_cluster cluster;
    struct rk_job *job;

    (void)state;
    open_cluster(&cluster, 2);
    test_cluster_init_model(&cluster, "actor", "");
    assert_ok(save(&cluster, "two", 1, "", &job));
    assert_string_equal(meta_string(job, "state"), "done");
    assert_int_equal(meta_int(job, "global_step"), 1);
    assert_true(meta_int(job, "bytes") > 1000);
    rk_job_destroy(job);
    test_cluster_init_model(&cluster, "actor", "\"megatron.seed\": 7");
    assert_ok(save(&cluster, "two", 2, ", \"async\": true", &job));
    assert_string_equal(meta_string(job, "state"), "writing");
    rk_job_destroy(job);
    assert_ok(call(&cluster, "actor", "wait_checkpoint", "{}", &job));
    assert_string_equal(meta_string(job, "state"), "done");
    assert_int_equal(meta_int(job, "global_step"), 2);
    rk_job_destroy(job);
    assert_ok(call(&cluster, "actor", "wait_checkpoint", "{\"wait\": false}", &job));
    assert_string_equal(meta_string(job, "state"), "none");
    rk_job_destroy(job);
    assert_false(is_same_shard("two", 1, 2, 1));
    assert_ok(load(&cluster, "two", 1, "", &job));
    assert_int_equal(meta_int(job, "global_step"), 1);
    assert_int_equal(meta_int(job, "weight_version"), 0);
    assert_int_equal(rk_json_count(rk_json_find(rk_batch_meta(job->call.output), "contents")), 3);
    rk_job_destroy(job);
    assert_ok(save(&cluster, "two", 3, "", NULL));
    assert_true(is_same_shard("two", 1, 3, 0));
    assert_true(is_same_shard("two", 1, 3, 1));
    test_cluster_close(&cluster);
}

/* Goal: check_only reports whether there is enough space and leaves no files. */
static void test_check_only_leaves_nothing(void **state)
{
    struct test_cluster cluster;
    char *step_dir = rk_format("%s/check/global_step_5", rk_test_temp_dir());
    struct rk_job *job;
    struct rk_status *st;

    (void)state;
    open_cluster(&cluster, 1);
    test_cluster_init_model(&cluster, "actor", "");
    assert_ok(save(&cluster, "check", 5, ", \"check_only\": true", &job));
    assert_string_equal(meta_string(job, "state"), "none");
    rk_job_destroy(job);
    assert_int_not_equal(access(step_dir, F_OK), 0);
    setenv("RANKD_FAULTS", "ckpt.space=fail", 1);
    st = save(&cluster, "check", 5, ", \"check_only\": true", NULL);
    unsetenv("RANKD_FAULTS");
    assert_string_equal(rk_status_reason(st), "DISK_FULL");
    assert_code(st, RK_RESOURCE_EXHAUSTED);
    rk_free(step_dir);
    test_cluster_close(&cluster);
}

/* Goal: every option is checked, on all ranks, before any effect. */
static void test_bad_options_are_refused(void **state)
{
    static const struct {
        const char *method, *options; /* ROOT stands for the root */
        rk_code_t code;
        const char *text;
    } cases[] = {
        {"save_checkpoint", "{\"path\": \"/etc/x/actor\", \"global_step\": 1}", RK_PERMISSION_DENIED,
         "roots"},
        {"save_checkpoint", "{\"path\": \"actor\", \"global_step\": 1}", RK_INVALID_ARGUMENT, "absolute"},
        {"save_checkpoint", "{\"path\": \"ROOT/x/critic\", \"global_step\": 1}", RK_INVALID_ARGUMENT,
         "expected a directory with the name of the role, 'actor'"},
        {"save_checkpoint", "{\"path\": \"ROOT/global_step_2/actor\", \"global_step\": 1}",
         RK_INVALID_ARGUMENT, "expected the step of global_step=1"},
        {"save_checkpoint", "{\"path\": \"ROOT/x/\", \"global_step\": 1}", RK_INVALID_ARGUMENT, "role"},
        {"save_checkpoint", "{\"path\": \"ROOT/x/..\", \"global_step\": 1}", RK_INVALID_ARGUMENT, "role"},
        {"save_checkpoint", "{\"path\": \"ROOT/../x/actor\", \"global_step\": 1}", RK_PERMISSION_DENIED,
         "'..'"},
        {"save_checkpoint", "{\"path\": \"ROOT/x/actor\", \"global_step\": -1}", RK_INVALID_ARGUMENT,
         "global_step"},
        {"save_checkpoint", "{\"path\": \"ROOT/x/actor\", \"global_step\": 9007199254740993}",
         RK_INVALID_ARGUMENT, "global_step"},
        {"save_checkpoint", "{\"path\": \"ROOT/x/actor\", \"global_step\": 1, \"contents\": [\"weights\"]}",
         RK_INVALID_ARGUMENT, "contents: 'weights'"},
        {"save_checkpoint", "{\"path\": \"ROOT/x/actor\", \"global_step\": 1, \"contents\": []}",
         RK_INVALID_ARGUMENT, "contents"},
        {"save_checkpoint", "{\"path\": \"ROOT/foreign/actor\", \"global_step\": 1}", RK_ALREADY_EXISTS,
         "is not a checkpoint of rankd"},
        {"load_checkpoint", "{\"path\": \"/etc\"}", RK_PERMISSION_DENIED, "roots"},
        {"load_checkpoint", "{\"path\": \"ROOT/absent\"}", RK_NOT_FOUND, "absent"},
        {"load_checkpoint", "{\"path\": \"ROOT/empty\"}", RK_NOT_FOUND, "incomplete"},
        {"load_checkpoint", "{\"path\": \"ROOT/foreign/actor\"}", RK_UNIMPLEMENTED, "verl"},
        {"load_checkpoint", "{\"path\": \"ROOT/empty\", \"contents\": [\"model\", \"x\"]}",
         RK_INVALID_ARGUMENT, "contents: 'x'"},
    };
    struct test_cluster cluster;
    char *empty = rk_test_temp_path("empty"), *foreign = rk_test_temp_path("foreign"), *file;

    (void)state;
    open_cluster(&cluster, 2);
    test_cluster_init_model(&cluster, "actor", "");
    assert_int_equal(mkdir(empty, 0777), 0);
    assert_int_equal(mkdir(foreign, 0777), 0);
    file = rk_path_join(foreign, "actor");
    assert_int_equal(mkdir(file, 0777), 0);
    rk_free(file);
    file = rk_path_join(foreign, "actor/model_world_size_2_rank_0.pt");
    rk_test_write_file(file, "x", 1);
    rk_free(file);
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        const char *at = strstr(cases[i].options, "ROOT");
        char *options = at ? rk_format("%.*s%s%s", (int)(at - cases[i].options), cases[i].options,
                                       rk_test_temp_dir(), at + 4)
                           : rk_strdup(cases[i].options);
        struct rk_status *st = call(&cluster, "actor", cases[i].method, options, NULL);

        print_message("%s %s\n", cases[i].method, options);
        if (rk_status_code(st) != cases[i].code || !strstr(rk_status_message(st), cases[i].text))
            fail_msg("%s: %s: %s", options, rk_code_name(rk_status_code(st)), rk_status_message(st));
        rk_status_free(st);
        rk_free(options);
    }
    rk_free(empty);
    rk_free(foreign);
    test_cluster_close(&cluster);
}

/* Goal: a load that fails halfway leaves the role, and the role that shares its weights, without a model; a
 * load that is refused before leaves both unchanged. Roles that share weights have no checkpoint. */
static void test_failed_load_leaves_no_mixed_model(void **state)
{
    struct test_cluster cluster;
    struct rk_status *st;
    char *part = part_of("mixed", 1);
    char *options = rk_format("{\"path\": \"%s\", \"global_step\": 1}", part);

    (void)state;
    open_cluster(&cluster, 2);
    test_cluster_init_model(&cluster, "actor", "");
    assert_ok(call(&cluster, "rollout", "init_model", "{\"share_weights_of\": \"actor\"}", NULL));
    assert_code(call(&cluster, "rollout", "save_checkpoint", options, NULL), RK_FAILED_PRECONDITION);
    assert_ok(save(&cluster, "mixed", 1, "", NULL));
    assert_code(load(&cluster, "mixed", 2, "", NULL), RK_NOT_FOUND);
    assert_ok(save(&cluster, "mixed", 2, "", NULL));
    setenv("RANKD_FAULTS", "ckpt.load=fail", 1);
    assert_code(load(&cluster, "mixed", 1, "", NULL), RK_INTERNAL);
    unsetenv("RANKD_FAULTS");
    st = save(&cluster, "mixed", 3, "", NULL);
    assert_string_equal(rk_status_reason(st), "NO_MODEL");
    rk_status_free(st);
    st = call(&cluster, "rollout", "wait_checkpoint", "{}", NULL);
    assert_string_equal(rk_status_reason(st), "NO_MODEL");
    rk_status_free(st);
    test_cluster_init_model(&cluster, "actor", "");
    assert_ok(load(&cluster, "mixed", 1, "", NULL));
    rk_free(options);
    rk_free(part);
    test_cluster_close(&cluster);
}

/* Goal: wait_checkpoint returns the error of a failed asynchronous save, and no files remain. */
static void test_failed_async_save_is_returned_by_wait(void **state)
{
    struct test_cluster cluster;
    struct rk_status *st;
    char *part = part_of("failed", 1);

    (void)state;
    open_cluster(&cluster, 2);
    test_cluster_init_model(&cluster, "actor", "");
    setenv("RANKD_FAULTS", "file.sync=fail@2", 1);
    assert_ok(save(&cluster, "failed", 1, ", \"async\": true", NULL));
    st = call(&cluster, "actor", "wait_checkpoint", "{}", NULL);
    unsetenv("RANKD_FAULTS");
    assert_string_equal(rk_status_reason(st), "DISK_FULL");
    assert_code(st, RK_RESOURCE_EXHAUSTED);
    assert_int_not_equal(access(part, F_OK), 0);
    assert_ok(save(&cluster, "failed", 1, "", NULL));
    rk_free(part);
    test_cluster_close(&cluster);
}

/* Goal: the report includes the host memory of the copy. */
static void test_memory_report_counts_the_copy(void **state)
{
    struct test_cluster cluster;
    struct rk_job *job;
    int64_t bytes[2];

    (void)state;
    open_cluster(&cluster, 1);
    test_cluster_init_model(&cluster, "actor", "");
    for (int i = 0; i < 2; i++) {
        assert_ok(call(&cluster, "actor", "memory_report", "{}", &job));
        bytes[i] =
            rk_json_as_int(rk_json_find_path(rk_batch_meta(job->call.output), "held.checkpoint_host"), -1);
        rk_job_destroy(job);
        assert_ok(save(&cluster, "memory", i, ", \"check_only\": true", NULL));
    }
    assert_int_equal(bytes[0], 0);
    assert_true(bytes[1] > 1000);
    assert_ok(save(&cluster, "memory", 1, "", NULL)); /* uses the same host memory */
    assert_ok(load(&cluster, "memory", 1, "", NULL));
    test_cluster_close(&cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_save_and_load_of_two_ranks),
        cmocka_unit_test(test_check_only_leaves_nothing),
        cmocka_unit_test(test_bad_options_are_refused),
        cmocka_unit_test(test_failed_load_leaves_no_mixed_model),
        cmocka_unit_test(test_failed_async_save_is_returned_by_wait),
        cmocka_unit_test(test_memory_report_counts_the_copy),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
