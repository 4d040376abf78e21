/* Roles whose parts are offloaded between calls: the results are the same as without offload, and the device
 * memory is released. */
#include "tests/unit/worker/cluster.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"

#define ROWS       4 /* of all replicas */
#define TOKENS     6
#define RESPONSE   2 /* columns of the response: those that test_samples marks */
#define ITERATIONS 3
#define OFFLOAD                                                          \
    "\"megatron.param_offload\": true, \"megatron.grad_offload\": true," \
    " \"megatron.optimizer_offload\": true"
#define SHARDS "\"megatron.override_ddp_config.grad_reduce_in_fp32\": false"
#define SIZES  "\"ppo_max_token_len_per_gpu\": 100, \"log_prob_max_token_len_per_gpu\": 100"

static const struct test_mesh one_rank[] = {{"actor", {0}}, {"rollout", {0}}, {"critic", {0}}};
static const struct test_mesh four_ranks[] = {
    {"actor", {.tp = 2, .dp = 2}}, {"rollout", {.tp = 2, .dp = 2}}, {"critic", {.tp = 2, .dp = 2}}};
#define NUM_ROLES ((int64_t)RK_ARRAY_LEN(one_rank))

static void destroy_all(const struct test_cluster *cluster, struct rk_job **jobs)
{
    for (int32_t rank = 0; rank < cluster->num_ranks; rank++)
        rk_job_destroy(jobs[rank]);
}

static void call_ok(struct test_cluster *cluster, const char *role, const char *method, const char *options,
                    struct rk_batch *const *inputs, struct rk_job **jobs)
{
    test_cluster_call(cluster, role, method, options, inputs, jobs);
    for (int32_t rank = 0; rank < cluster->num_ranks; rank++)
        assert_ok(rk_status_clone(jobs[rank]->status));
}

static void open_roles(struct test_cluster *cluster, int32_t num_ranks, const char *more)
{
    char *options = rk_format("\"optim.lr\": 0.01, \"optim.eps\": 1e-5, \"megatron.dtype\": \"bfloat16\"%s%s",
                              *more ? ", " : "", more);
    struct rk_job *jobs[TEST_MAX_WORKERS];

    test_cluster_open(cluster, num_ranks, NULL);
    test_cluster_configure(cluster, 1, num_ranks == 1 ? one_rank : four_ranks, NUM_ROLES);
    test_cluster_init_model(cluster, "actor", options);
    test_cluster_init_model(cluster, "critic", options);
    call_ok(cluster, "rollout", "init_model",
            "{\"share_weights_of\": \"actor\", \"rollout.max_num_seqs\": 4, \"rollout.max_model_len\": 16}",
            NULL, jobs);
    destroy_all(cluster, jobs);
    rk_free(options);
}

/* --- results of calls --- */

struct trace {
    uint8_t bytes[1 << 16];
    size_t count;
};

static void note(struct trace *trace, const void *data, size_t bytes)
{
    assert_in_range(trace->count + bytes, 0, sizeof(trace->bytes));
    memcpy(trace->bytes + trace->count, data, bytes);
    trace->count += bytes;
}

static void note_metric(struct trace *trace, const struct test_cluster *cluster, struct rk_job **jobs,
                        const char *name)
{
    double value = test_metric(jobs[0], name);

    (void)cluster;
    assert_true(isfinite(value));
    note(trace, &value, sizeof(value));
}

static void note_column(struct trace *trace, const struct test_cluster *cluster, struct rk_job **jobs,
                        const char *name, size_t row_bytes)
{
    for (int32_t rank = 0; rank < cluster->num_ranks; rank++) {
        const struct rk_batch *output = jobs[rank]->call.output;

        if (output && rk_batch_find(output, name))
            note(trace, rk_column_values(rk_batch_find(output, name)),
                 (size_t)rk_batch_num_rows(output) * row_bytes);
    }
}

/* Rows of every replica: samples with the columns of all methods. */
static struct rk_batch *make_rows(int32_t dp)
{
    static const char *const reals[] = {"old_log_probs", "advantages", "values", "returns"};
    int64_t shape[] = {ROWS / dp, RESPONSE};
    struct rk_batch *batch = test_samples(shape[0], TOKENS);
    void *data;

    for (size_t r = 0; r < RK_ARRAY_LEN(reals); r++) {
        if (rk_batch_find(batch, reals[r]))
            continue;
        assert_ok(rk_batch_add_dense(batch, reals[r], RK_DTYPE_F32, 2, shape, &data));
        for (int64_t i = 0; i < shape[0] * RESPONSE; i++)
            ((float *)data)[i] = (float)(i % 3 - 1) + 0.25F * (float)r;
    }
    return batch;
}

/* A call with a plan, with these columns of the rows. */
struct planned {
    const char *role, *method, *options, *loss_mask;
    const char *columns[8];
};

static const struct planned log_prob = {
    "actor", "compute_log_prob", "{}", NULL, {"input_ids", "attention_mask", "position_ids", "responses"}};
static const struct planned update = {"actor",
                                      "update_actor",
                                      "{\"entropy_coeff\": 0.01}",
                                      "response_mask",
                                      {"input_ids", "attention_mask", "position_ids", "responses",
                                       "response_mask", "old_log_probs", "advantages"}};
static const struct planned values = {
    "critic", "compute_values", "{}", NULL, {"input_ids", "attention_mask", "position_ids", "responses"}};
static const struct planned update_critic = {
    "critic",
    "update_critic",
    "{}",
    "response_mask",
    {"input_ids", "attention_mask", "position_ids", "responses", "response_mask", "values", "returns"}};

static void run(struct test_cluster *cluster, const struct planned *call, struct rk_job **jobs)
{
    int32_t tp = cluster->num_ranks == 1 ? 1 : 2, dp = cluster->num_ranks / tp;
    struct rk_batch *chunks[TEST_MAX_WORKERS], *rows = make_rows(dp), *input;

    for (int32_t d = 0; d < dp; d++)
        assert_ok(rk_batch_select(&chunks[d], rows, call->columns, NULL));
    for (int32_t rank = 0; rank < cluster->num_ranks; rank++) {
        assert_ok(rk_batch_clone(&input, chunks[rank / tp]));
        jobs[rank] = test_method_job(call->role, call->method, call->options, input);
        test_plan(jobs[rank], chunks, dp, call->loss_mask, ROWS / 2, 1);
    }
    for (int32_t rank = 0; rank < cluster->num_ranks; rank++)
        rk_worker_submit(cluster->workers[rank], jobs[rank]);
    for (int32_t rank = 0; rank < cluster->num_ranks; rank++)
        test_cluster_wait(cluster, jobs[rank]);
    for (int32_t rank = 0; rank < cluster->num_ranks; rank++)
        assert_ok(rk_status_clone(jobs[rank]->status));
    for (int32_t d = 0; d < dp; d++)
        rk_batch_destroy(chunks[d]);
    rk_batch_destroy(rows);
}

static void run_iteration(struct test_cluster *cluster, struct trace *trace, int64_t iteration)
{
    struct rk_batch *prompts[TEST_MAX_WORKERS];
    struct rk_job *jobs[TEST_MAX_WORKERS];

    for (int32_t rank = 0; rank < cluster->num_ranks; rank++)
        prompts[rank] = test_prompts(ROWS, 5, iteration * ROWS);
    call_ok(cluster, "rollout", "generate_sequences", "{\"response_length\": 7}", prompts, jobs);
    note_column(trace, cluster, jobs, "responses", 7 * sizeof(int64_t));
    note_column(trace, cluster, jobs, "rollout_log_probs", 7 * sizeof(float));
    destroy_all(cluster, jobs);
    run(cluster, &log_prob, jobs);
    note_column(trace, cluster, jobs, "old_log_probs", RESPONSE * sizeof(float));
    destroy_all(cluster, jobs);
    run(cluster, &values, jobs);
    note_column(trace, cluster, jobs, "values", RESPONSE * sizeof(float));
    destroy_all(cluster, jobs);
    run(cluster, &update_critic, jobs);
    note_metric(trace, cluster, jobs, "critic/grad_norm");
    destroy_all(cluster, jobs);
    run(cluster, &update, jobs);
    note_metric(trace, cluster, jobs, "actor/grad_norm");
    note_metric(trace, cluster, jobs, "actor/pg_loss");
    destroy_all(cluster, jobs);
}

static struct trace *run_iterations(int32_t num_ranks, const char *more)
{
    struct trace *trace = rk_calloc(1, sizeof(*trace));
    struct test_cluster cluster;

    open_roles(&cluster, num_ranks, more);
    for (int64_t i = 0; i < ITERATIONS; i++)
        run_iteration(&cluster, trace, i);
    test_cluster_close(&cluster);
    assert_true(trace->count > ITERATIONS * ROWS * 7 * sizeof(int64_t));
    return trace;
}

/* Goal: calls return the same bits whichever parts are offloaded between them, on one rank and on several. */
static void test_calls_return_the_same_bits(void **state)
{
    static const char *const cases[] = {OFFLOAD, "\"megatron.param_offload\": true",
                                        "\"megatron.optimizer_offload\": true",
                                        "\"megatron.grad_offload\": true"};
    static const int32_t num_ranks[] = {1, 4};

    (void)state;
    for (size_t n = 0; n < RK_ARRAY_LEN(num_ranks); n++) {
        struct trace *expected = run_iterations(num_ranks[n], "");

        for (size_t c = 0; c < RK_ARRAY_LEN(cases); c++) {
            struct trace *actual;

            if (n > 0 && c > 0)
                break;
            actual = run_iterations(num_ranks[n], cases[c]);
            print_message("%d ranks, %s\n", num_ranks[n], cases[c]);
            assert_int_equal(actual->count, expected->count);
            assert_memory_equal(actual->bytes, expected->bytes, expected->count);
            rk_free(actual);
        }
        rk_free(expected);
    }
}

/* --- memory --- */

static struct rk_json *memory_report(struct test_cluster *cluster, const char *role)
{
    struct rk_job *job = test_call_ok(cluster, role, "memory_report", "{}", NULL);
    struct rk_json *meta = rk_json_clone(rk_batch_meta(job->call.output));

    rk_job_destroy(job);
    return meta;
}

static int64_t int_at(const struct rk_json *meta, const char *path)
{
    const struct rk_json *value = rk_json_find_path(meta, path);

    assert_non_null(value);
    return rk_json_as_int(value, -1);
}

/* With the options OFFLOAD only rotary tables are on the device between calls. */
static void assert_away(struct test_cluster *cluster, const char *role)
{
    struct rk_json *report = memory_report(cluster, role);

    assert_in_range(int_at(report, "held.parameters"), 1, int_at(report, "planned.parameters") - 1);
    assert_int_equal(int_at(report, "held.gradients"), 0);
    assert_int_equal(int_at(report, "held.masters"), 0);
    assert_int_equal(int_at(report, "held.optimizer"), 0);
    assert_true(int_at(report, "planned.optimizer") > 0);
    assert_true(int_at(report, "held.offload_host") > 0);
    assert_int_equal(int_at(report, "held.offload_host"), int_at(report, "planned.offload_host"));
    assert_int_equal(int_at(report, "overflows"), 0);
    assert_string_equal(rk_json_as_string(rk_json_find(report, "state"), ""), "AWAKE");
    rk_json_free(report);
}

/* Goal: after init_model and after every call the device memory is released; host memory is allocated
 * once. */
static void test_between_calls_the_parts_are_away(void **state)
{
    struct trace *trace = rk_calloc(1, sizeof(*trace));
    struct rk_json *before, *after;
    struct test_cluster cluster;

    (void)state;
    open_roles(&cluster, 1, OFFLOAD ", " SIZES);
    assert_away(&cluster, "actor");
    assert_away(&cluster, "critic");
    run_iteration(&cluster, trace, 0);
    before = memory_report(&cluster, "actor");
    assert_away(&cluster, "actor");
    assert_away(&cluster, "critic");
    run_iteration(&cluster, trace, 1);
    after = memory_report(&cluster, "actor");
    assert_int_equal(int_at(after, "device.allocated"), int_at(before, "device.allocated"));
    assert_int_equal(int_at(after, "device.host"), int_at(before, "device.host"));
    rk_json_free(before);
    rk_json_free(after);
    rk_free(trace);
    test_cluster_close(&cluster);
}

/* Goal: gradients pending for optim_step are offloaded with their values. Method: two calls accumulate, with
 * a call in between that needs the parameters only; the norm has the same bits. */
static double accumulate(const char *more)
{
    static const struct planned forward_backward = {
        "actor",
        "forward_backward",
        "{}",
        "response_mask",
        {"input_ids", "attention_mask", "position_ids", "responses", "response_mask", "weights"}};
    struct rk_job *jobs[TEST_MAX_WORKERS];
    struct test_cluster cluster;
    double norm;

    open_roles(&cluster, 1, more);
    for (int i = 0; i < 2; i++) {
        struct rk_batch *rows = make_rows(1), *chunk;
        const int64_t shape[] = {ROWS, RESPONSE};
        struct rk_job *job;
        void *data;

        assert_ok(rk_batch_add_dense(rows, "weights", RK_DTYPE_F32, 2, shape, &data));
        for (int64_t k = 0; k < ROWS * RESPONSE; k++)
            ((float *)data)[k] = (float)(k + i + 1);
        assert_ok(rk_batch_select(&chunk, rows, forward_backward.columns, NULL));
        rk_batch_destroy(rows);
        job = test_method_job("actor", "forward_backward", "{}", chunk);
        test_plan(job, &chunk, 1, "response_mask", 0, 2);
        test_cluster_run(&cluster, 0, job);
        assert_ok(rk_status_clone(job->status));
        rk_job_destroy(job);
        run(&cluster, &log_prob, jobs);
        destroy_all(&cluster, jobs);
    }
    call_ok(&cluster, "actor", "optim_step", "{}", NULL, jobs);
    norm = test_metric(jobs[0], "actor/grad_norm");
    destroy_all(&cluster, jobs);
    test_cluster_close(&cluster);
    return norm;
}

static void test_gradients_that_wait_are_kept(void **state)
{
    double expected = accumulate(""), actual = accumulate(OFFLOAD);

    (void)state;
    assert_true(expected > 0.0);
    assert_memory_equal(&actual, &expected, sizeof(actual));
}

/* Goal: the option of 16-bit gradients takes effect in the trainer: its memory plan differs, its steps equal
 * the default's except for rounding, and replicas stay equal, also with everything offloaded. */
static void test_gradients_in_16_bits_add_up(void **state)
{
    static const char *const options[] = {"", SHARDS, SHARDS ", " OFFLOAD};
    double norms[RK_ARRAY_LEN(options)], of_critic[RK_ARRAY_LEN(options)];
    int64_t planned[RK_ARRAY_LEN(options)];

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(options); i++) {
        struct rk_job *jobs[TEST_MAX_WORKERS];
        struct test_cluster cluster;

        open_roles(&cluster, 4, options[i]);
        run(&cluster, &update, jobs);
        norms[i] = test_metric(jobs[0], "actor/grad_norm");
        destroy_all(&cluster, jobs);
        run(&cluster, &update_critic, jobs);
        of_critic[i] = test_metric(jobs[0], "critic/grad_norm");
        destroy_all(&cluster, jobs);
        call_ok(&cluster, "actor", "verify_replicas", "{}", NULL, jobs);
        assert_true(test_metric(jobs[0], "actor/verified_copies") > 0.0);
        destroy_all(&cluster, jobs);
        call_ok(&cluster, "actor", "memory_report", "{}", NULL, jobs);
        planned[i] = int_at(rk_batch_meta(jobs[0]->call.output), "planned.gradients");
        destroy_all(&cluster, jobs);
        test_cluster_close(&cluster);
    }
    assert_below("norm", fabs(norms[1] - norms[0]), RK_TOL_BF16_MODEL * norms[0]);
    assert_memory_equal(&norms[2], &norms[1], sizeof(norms[1]));
    assert_below("norm of the critic", fabs(of_critic[1] - of_critic[0]), RK_TOL_BF16_MODEL * of_critic[0]);
    assert_memory_equal(&of_critic[2], &of_critic[1], sizeof(of_critic[1]));
    assert_int_not_equal(planned[1], planned[0]);
    assert_true(planned[2] > planned[1]); /* whole granules */
}

/* --- plans --- */

#define LIMIT_BYTES ((int64_t)512 << 20)
/* The CPU's operators allocate their workspace when they first run; it is less than any role offloads. */
#define SCRATCH_BYTES ((int64_t)1 << 20)

static struct rk_json *plan(struct test_cluster *cluster, const char *role, const struct rk_json *room)
{
    char *rooms = room ? rk_json_dump(room, 0, false) : rk_strdup("null");
    char *more = rk_format(OFFLOAD ", " SIZES ", \"plan_only\": true, \"plan_room\": %s%s%s", room ? "[" : "",
                           rooms, room ? "]" : "");
    char *options = test_init_options(more);
    struct rk_job *job = test_call_ok(cluster, role, "init_model", options, NULL);
    struct rk_json *meta = rk_json_clone(rk_batch_meta(job->call.output));

    rk_job_destroy(job);
    rk_free(options);
    rk_free(more);
    rk_free(rooms);
    return meta;
}

static void open_limited(struct test_cluster *cluster, int64_t limit_bytes)
{
    const struct rk_worker_config config = {.device_memory_limit_bytes = (uint64_t)limit_bytes};

    test_cluster_open(cluster, 1, &config);
    test_cluster_configure(cluster, 1, one_rank, NUM_ROLES);
}

static struct rk_status *init(struct test_cluster *cluster, const char *role)
{
    char *options = test_init_options(OFFLOAD ", " SIZES);
    struct rk_job *job = test_cluster_run(cluster, 0, test_method_job(role, "init_model", options, NULL));
    struct rk_status *st = rk_status_clone(job->status);

    rk_job_destroy(job);
    rk_free(options);
    return st;
}

/* Goal: the sum of roles counts offloaded parts of only one role at a time; this much memory suffices, and
 * one byte less does not. Method: two roles on a device with the memory of their plans. */
static void test_plans_count_memory_held_at_the_same_time(void **state)
{
    struct rk_json *actor, *critic;
    struct rk_job *jobs[TEST_MAX_WORKERS];
    struct test_cluster cluster;
    int64_t left, need, sum;

    (void)state;
    open_limited(&cluster, LIMIT_BYTES);
    actor = plan(&cluster, "actor", NULL);
    critic = plan(&cluster, "critic", rk_json_find(actor, "room_after"));
    left = int_at(critic, "room_after.free");
    need = int_at(actor, "room.free") - left;
    sum = int_at(actor, "planned.total") + int_at(critic, "planned.total");
    /* The larger of the two offloaded sizes, not both: granules of parameters, gradients and two states. */
    assert_in_range(sum - need, int_at(critic, "away"), sum - 1);
    assert_true(int_at(critic, "away") >= 4 * (2 << 20));
    test_cluster_close(&cluster);

    open_limited(&cluster, LIMIT_BYTES - left + SCRATCH_BYTES);
    assert_ok(init(&cluster, "actor"));
    assert_ok(init(&cluster, "critic"));
    for (int i = 0; i < 2; i++) {
        run(&cluster, &update, jobs);
        destroy_all(&cluster, jobs);
        run(&cluster, &update_critic, jobs);
        destroy_all(&cluster, jobs);
    }
    test_cluster_close(&cluster);

    open_limited(&cluster, LIMIT_BYTES - left - 1);
    assert_ok(init(&cluster, "actor"));
    assert_fails(init(&cluster, "critic"), RK_RESOURCE_EXHAUSTED, "memory of role critic");
    test_cluster_close(&cluster);
    rk_json_free(actor);
    rk_json_free(critic);
}

#ifdef RK_FAULTS
/* Goal: without host memory for the offload the role is refused, and a later attempt can succeed; gradients
 * that cannot be kept are refused before they are computed, and the role can continue training. */
static void test_without_host_memory_the_call_is_refused(void **state)
{
    static const struct planned forward_backward = {
        "actor",
        "forward_backward",
        "{}",
        "response_mask",
        {"input_ids", "attention_mask", "position_ids", "responses", "response_mask", "weights"}};
    struct rk_job *jobs[TEST_MAX_WORKERS], *job;
    struct rk_batch *rows, *chunk;
    const int64_t shape[] = {ROWS, RESPONSE};
    struct test_cluster cluster;
    void *data;

    (void)state;
    open_limited(&cluster, LIMIT_BYTES);
    assert_int_equal(setenv("RANKD_FAULTS", "offload.host=fail@2", 1), 0);
    assert_fails(init(&cluster, "actor"), RK_RESOURCE_EXHAUSTED, "bytes of host memory");
    assert_ok(init(&cluster, "actor"));
    assert_int_equal(setenv("RANKD_FAULTS", "offload.host=fail", 1), 0);
    rows = make_rows(1);
    assert_ok(rk_batch_add_dense(rows, "weights", RK_DTYPE_F32, 2, shape, &data));
    assert_ok(rk_batch_select(&chunk, rows, forward_backward.columns, NULL));
    rk_batch_destroy(rows);
    job = test_method_job("actor", "forward_backward", "{}", chunk);
    test_plan(job, &chunk, 1, "response_mask", 0, 2);
    test_cluster_run(&cluster, 0, job);
    assert_fails(rk_status_clone(job->status), RK_RESOURCE_EXHAUSTED, "gradients: ");
    rk_job_destroy(job);
    assert_int_equal(unsetenv("RANKD_FAULTS"), 0);
    assert_away(&cluster, "actor");
    run(&cluster, &update, jobs);
    destroy_all(&cluster, jobs);
    test_cluster_close(&cluster);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls_return_the_same_bits),
        cmocka_unit_test(test_between_calls_the_parts_are_away),
        cmocka_unit_test(test_gradients_that_wait_are_kept),
        cmocka_unit_test(test_gradients_in_16_bits_add_up),
        cmocka_unit_test(test_plans_count_memory_held_at_the_same_time),
#ifdef RK_FAULTS
        cmocka_unit_test(test_without_host_memory_the_call_is_refused),
#endif
    };

    return cmocka_run_group_tests_name("worker_offload", tests, NULL, NULL);
}
