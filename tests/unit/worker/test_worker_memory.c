/* Memory of roles through jobs: refusals of init_model, the size of the cache, memory_report.
 */
#include "tests/unit/worker/cluster.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"

static const struct test_mesh one_rank[] = {{"actor", {0}}, {"rollout", {0}}};
static const int32_t first_rank[] = {0};
static const struct test_mesh two_ranks[] = {
    {"actor", {.dp = 2}}, {"rollout", {.dp = 2}}, {"ref", {.num_ranks = 1, .ranks = first_rank}}};

/* A cache of 1 + 8 * 4 blocks. */
#define ROLLOUT                                                                                    \
    "\"share_weights_of\": \"actor\", \"rollout.max_num_seqs\": 8, \"rollout.max_model_len\": 64," \
    " \"rollout.max_num_batched_tokens\": 16"
#define FULL_BLOCKS 33
/* A cache of up to 1 + 64 * 4 blocks, half of the remaining memory. */
#define HALF                                                                                         \
    "{\"share_weights_of\": \"actor\", \"rollout.max_num_seqs\": 64, \"rollout.max_model_len\": 64," \
    " \"rollout.max_num_batched_tokens\": 64, \"rollout.gpu_memory_utilization\": 0.5}"
#define HALF_FULL_BLOCKS 257
#define LEAST_BLOCKS     5
/* Keys and values of 16 tokens, 2 layers, 2 heads of 8, f32. */
#define BLOCK_BYTES (2 * 16 * 2 * 2 * 8 * 4)

static struct rk_json *memory_report(struct test_cluster *cluster, int32_t rank, const char *role)
{
    struct rk_job *job = test_cluster_run(cluster, rank, test_method_job(role, "memory_report", "{}", NULL));
    struct rk_json *meta;

    assert_ok(rk_status_clone(job->status));
    meta = rk_json_clone(rk_batch_meta(job->call.output));
    rk_job_destroy(job);
    return meta;
}

static int64_t report_int(const struct rk_json *report, const char *path)
{
    return rk_json_as_int(rk_json_find_path(report, path), -1);
}

static void open_cluster(struct test_cluster *cluster, uint64_t limit_bytes)
{
    const struct rk_worker_config config = {.device_memory_limit_bytes = limit_bytes};

    test_cluster_open(cluster, 1, &config);
    test_cluster_configure(cluster, 1, one_rank, RK_ARRAY_LEN(one_rank));
}

/* Goal: a model that does not fit gives RESOURCE_EXHAUSTED with the required memory and the reason, leaves
 * nothing allocated, and a smaller one still fits. */
static void test_init_model_beyond_device_memory_fails(void **state)
{
    static const struct {
        const char *role, *options, *message;
    } cases[] = {
        {"rollout", "{\"share_weights_of\": \"actor\", \"rollout.max_num_seqs\": 512}",
         "largest: kv_cache; in all:"},
        {"rollout", "{" ROLLOUT ", \"rollout.gpu_memory_utilization\": 0.01}", "KV cache"},
    };
    struct rk_worker_snapshot before, after;
    struct test_cluster cluster;
    struct rk_job *job;
    char *options;

    (void)state;
    open_cluster(&cluster, 4 << 20);
    options = test_init_options("\"ppo_max_token_len_per_gpu\": 100000");
    job = test_cluster_run(&cluster, 0, test_method_job("actor", "init_model", options, NULL));
    assert_string_equal(rk_status_reason(job->status), "DEVICE_OOM");
    assert_fails(rk_status_clone(job->status), RK_RESOURCE_EXHAUSTED, "memory of role actor: ");
    assert_fails(rk_status_clone(job->status), RK_RESOURCE_EXHAUSTED,
                 "largest: activations; in all: parameters ");
    rk_job_destroy(job);
    rk_free(options);

    test_cluster_init_model(&cluster, "actor", "");
    rk_worker_get_snapshot(cluster.workers[0], &before);
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        job = test_cluster_run(&cluster, 0,
                               test_method_job(cases[i].role, "init_model", cases[i].options, NULL));
        assert_fails(rk_status_clone(job->status), RK_RESOURCE_EXHAUSTED, cases[i].message);
        rk_job_destroy(job);
        rk_worker_get_snapshot(cluster.workers[0], &after);
        assert_int_equal(after.device_allocated_bytes, before.device_allocated_bytes);
    }
    rk_job_destroy(test_call_ok(&cluster, "rollout", "init_model", "{" ROLLOUT "}", NULL));
    test_cluster_close(&cluster);
}

static int64_t planned_activations(struct test_cluster *cluster, const char *options)
{
    struct rk_json *report;
    int64_t bytes;

    test_cluster_init_model(cluster, "actor", options);
    report = memory_report(cluster, 0, "actor");
    bytes = report_int(report, "planned.activations");
    rk_json_free(report);
    return bytes;
}

/* Goal: the options of recomputation, with verl's names, take effect in the model. */
static void test_init_model_with_recompute_plans_less(void **state)
{
    struct test_cluster cluster;
    int64_t without, with;

    (void)state;
    open_cluster(&cluster, 0);
    without = planned_activations(&cluster, "\"ppo_max_token_len_per_gpu\": 200");
    with = planned_activations(&cluster,
                               "\"ppo_max_token_len_per_gpu\": 200,"
                               " \"megatron.override_transformer_config.recompute_granularity\": \"full\","
                               " \"megatron.override_transformer_config.recompute_method\": \"uniform\","
                               " \"megatron.override_transformer_config.recompute_num_layers\": 1");
    assert_in_range(with, 1, without - 1);
    test_cluster_close(&cluster);
}

static void test_init_model_bad_limits_are_refused(void **state)
{
    static const struct {
        const char *role, *option, *message;
    } cases[] = {
        {"actor", "\"ppo_max_token_len_per_gpu\": 0", "ppo_max_token_len_per_gpu"},
        {"actor", "\"log_prob_max_token_len_per_gpu\": 1073741824", "log_prob_max_token_len_per_gpu"},
        {"rollout", "\"rollout.gpu_memory_utilization\": 0", "0.01 to 1, got 0"},
        {"rollout", "\"rollout.gpu_memory_utilization\": 1.5", "0.01 to 1, got 1.5"},
    };
    struct test_cluster cluster;

    (void)state;
    open_cluster(&cluster, 0);
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char *options = test_init_options(cases[i].option);
        struct rk_job *job =
            test_cluster_run(&cluster, 0, test_method_job(cases[i].role, "init_model", options, NULL));

        assert_fails(rk_status_clone(job->status), RK_INVALID_ARGUMENT, cases[i].message);
        rk_job_destroy(job);
        rk_free(options);
    }
    test_cluster_close(&cluster);
}

/* Goal: the report has the plan and the allocated memory, before and after init_model. */
static void test_memory_report_shows_plan_and_holdings(void **state)
{
    struct test_cluster cluster;
    struct rk_json *actor, *rollout;

    (void)state;
    open_cluster(&cluster, 64 << 20);
    actor = memory_report(&cluster, 0, "actor"); /* also without a model */
    assert_string_equal(rk_json_as_string(rk_json_find(actor, "state"), ""), "EMPTY");
    assert_int_equal(report_int(actor, "planned.total"), 0);
    assert_int_equal(report_int(actor, "held.total"), 0);
    rk_json_free(actor);

    test_cluster_init_model(&cluster, "actor", "\"ppo_max_token_len_per_gpu\": 200");
    rk_job_destroy(test_call_ok(&cluster, "rollout", "init_model", "{" ROLLOUT "}", NULL));
    actor = memory_report(&cluster, 0, "actor");
    rollout = memory_report(&cluster, 0, "rollout");
    assert_string_equal(rk_json_as_string(rk_json_find(actor, "state"), ""), "AWAKE");
    assert_int_equal(report_int(actor, "planned.total"), report_int(actor, "held.total"));
    assert_int_equal(report_int(actor, "planned.host"), report_int(actor, "held.host"));
    assert_int_equal(report_int(actor, "held.optimizer"), 2 * report_int(actor, "held.gradients"));
    assert_true(report_int(actor, "held.activations") > 200 * 32 * 4);
    assert_int_equal(report_int(actor, "peak.activations"), 0); /* no pass has run */
    assert_int_equal(report_int(rollout, "planned.parameters"), 0);
    assert_int_equal(report_int(rollout, "planned.kv_cache"), FULL_BLOCKS * BLOCK_BYTES);
    assert_int_equal(report_int(rollout, "held.kv_cache"), FULL_BLOCKS * BLOCK_BYTES);
    assert_true(report_int(rollout, "held.staging") > 0);
    assert_int_equal(report_int(rollout, "device.total") >= 64 << 20, 1);
    /* In addition to the roles there is one block, for the ranks' verdicts. */
    assert_int_equal(report_int(rollout, "device.allocated"),
                     report_int(actor, "held.total") + report_int(rollout, "held.total") + 1024);
    assert_int_equal(report_int(rollout, "device.free"),
                     (64 << 20) - report_int(rollout, "device.allocated"));
    rk_json_free(actor);
    rk_json_free(rollout);
    test_cluster_close(&cluster);
}

/* Goal: micro-batches larger than init_model reserved memory for are refused with the option, the value and
 * the limit, and with a hint if a single row is too long; smaller ones are accepted, and all are accepted
 * without a limit. */
static void test_calls_beyond_planned_tokens_are_refused(void **state)
{
    static const struct test_mesh meshes[] = {{"actor", {0}}, {"ref", {0}}};
    static const struct {
        const char *role, *method, *limits;
        int64_t num_rows, row_tokens, micro_batch_rows;
        const char *text; /* NULL: accepted */
    } cases[] = {
        {"actor", "update_actor", "\"ppo_max_token_len_per_gpu\": 16", 4, 8, 2, NULL},
        {"actor", "update_actor", "\"ppo_max_token_len_per_gpu\": 16", 4, 8, 3,
         "mini-batch 0, micro-batch 0: 24 tokens are more than ppo_max_token_len_per_gpu=16 of init_model"},
        {"actor", "update_actor", "\"ppo_max_token_len_per_gpu\": 16", 2, 17, 1,
         "row 0 has 17 tokens: more than ppo_max_token_len_per_gpu=16 of init_model, which must hold the "
         "longest"},
        {"actor", "update_actor", "\"log_prob_max_token_len_per_gpu\": 16", 4, 8, 3, NULL},
        {"actor", "compute_log_prob", "\"log_prob_max_token_len_per_gpu\": 16", 4, 8, 2, NULL},
        {"actor", "compute_log_prob", "\"log_prob_max_token_len_per_gpu\": 16", 4, 8, 3,
         "24 tokens are more than log_prob_max_token_len_per_gpu=16 of init_model"},
        {"actor", "compute_log_prob", "\"ppo_max_token_len_per_gpu\": 16", 4, 8, 3, NULL},
        {"ref", "compute_ref_log_prob", "\"log_prob_max_token_len_per_gpu\": 16", 1, 20, 1,
         "row 0 has 20 tokens: more than log_prob_max_token_len_per_gpu=16"},
    };
    struct test_cluster cluster;

    (void)state;
    test_cluster_open(&cluster, 1, NULL);
    test_cluster_configure(&cluster, 1, meshes, RK_ARRAY_LEN(meshes));
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_batch *input = test_samples(cases[i].num_rows, cases[i].row_tokens);
        struct rk_job *job = test_method_job(cases[i].role, cases[i].method, "{}", input);

        test_cluster_init_model(&cluster, cases[i].role, cases[i].limits);
        test_plan(job, &input, 1, "response_mask", 0, cases[i].micro_batch_rows);
        test_cluster_run(&cluster, 0, job);
        if (cases[i].text) {
            assert_string_equal(rk_status_reason(job->status), "BAD_FIELD");
            assert_fails(rk_status_clone(job->status), RK_INVALID_ARGUMENT, cases[i].text);
        } else {
            assert_ok(rk_status_clone(job->status));
        }
        rk_job_destroy(job);
    }
    test_cluster_close(&cluster);
}

static int64_t free_bytes(struct test_cluster *cluster, int32_t rank)
{
    struct rk_json *report = memory_report(cluster, rank, "actor");
    int64_t bytes = report_int(report, "device.free");

    rk_json_free(report);
    return bytes;
}

/* Goal: with gpu_memory_utilization the whole role uses at most that share of the remaining memory, the cache
 * takes the rest of the share, and at most the size that the limits can use. */
static void test_cache_takes_its_share_of_what_is_left(void **state)
{
    static const struct {
        uint64_t limit_bytes;
        bool is_full;
    } cases[] = {{2 << 20, false}, {64 << 20, true}};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct test_cluster cluster;
        struct rk_json *report;
        int64_t share, taken, blocks;

        open_cluster(&cluster, cases[i].limit_bytes);
        test_cluster_init_model(&cluster, "actor", "");
        share = free_bytes(&cluster, 0) / 2;
        rk_job_destroy(test_call_ok(&cluster, "rollout", "init_model", HALF, NULL));
        report = memory_report(&cluster, 0, "rollout");
        taken = report_int(report, "held.total");
        blocks = report_int(report, "held.kv_cache") / BLOCK_BYTES;
        assert_int_equal(blocks == HALF_FULL_BLOCKS, cases[i].is_full);
        assert_true(blocks >= LEAST_BLOCKS);
        assert_true(taken <= share);
        assert_true(cases[i].is_full || taken > share - BLOCK_BYTES);
        rk_json_free(report);
        test_cluster_close(&cluster);
    }
}

/* Goal: ranks with different amounts of remaining memory make caches of the same size, which fits the rank
 * with the least. Method: rank 0 hosts one more role. */
static void test_cache_is_alike_on_all_ranks(void **state)
{
    const struct rk_worker_config config = {.device_memory_limit_bytes = 2 << 20};
    struct test_cluster cluster;
    struct rk_job *jobs[TEST_MAX_WORKERS];
    int64_t blocks[2], share;

    (void)state;
    test_cluster_open(&cluster, 2, &config);
    test_cluster_configure(&cluster, 1, two_ranks, RK_ARRAY_LEN(two_ranks));
    test_cluster_init_model(&cluster, "actor", "");
    test_cluster_init_model(&cluster, "ref", "\"log_prob_max_token_len_per_gpu\": 200");
    share = free_bytes(&cluster, 0) / 2;
    assert_true(share < free_bytes(&cluster, 1) / 2);
    test_cluster_call(&cluster, "rollout", "init_model", HALF, NULL, jobs);
    for (int32_t rank = 0; rank < 2; rank++) {
        struct rk_json *report;

        assert_ok(rk_status_clone(jobs[rank]->status));
        rk_job_destroy(jobs[rank]);
        report = memory_report(&cluster, rank, "rollout");
        blocks[rank] = report_int(report, "held.kv_cache") / BLOCK_BYTES;
        assert_true(report_int(report, "held.total") <= share);
        rk_json_free(report);
    }
    assert_int_equal(blocks[0], blocks[1]);
    assert_in_range(blocks[0], LEAST_BLOCKS, HALF_FULL_BLOCKS - 1);
    test_cluster_close(&cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_init_model_beyond_device_memory_fails),
        cmocka_unit_test(test_init_model_with_recompute_plans_less),
        cmocka_unit_test(test_init_model_bad_limits_are_refused),
        cmocka_unit_test(test_memory_report_shows_plan_and_holdings),
        cmocka_unit_test(test_calls_beyond_planned_tokens_are_refused),
        cmocka_unit_test(test_cache_takes_its_share_of_what_is_left),
        cmocka_unit_test(test_cache_is_alike_on_all_ranks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
