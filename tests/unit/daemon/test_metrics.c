/* Counting for metrics.listen: the number of series is bounded for all calls, and counts are exact. */
#include "tests/support/test.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "daemon/metrics/metrics.h"
#include "proto/rk_methods.h"

static struct rk_metrics *metrics;

static int setup(void **state)
{
    (void)state;
    metrics = rk_calloc(1, sizeof(*metrics));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    rk_free(metrics);
    return 0;
}

static struct rk_job *new_job(const char *role, rk_method_id_t method)
{
    struct rk_job *job = rk_job_create(RK_JOB_METHOD);

    job->call.method = rk_method_get(method);
    job->device_ns = 2000000000;
    snprintf(job->call.role, sizeof(job->call.role), "%s", role);
    return job;
}

static void end_job(struct rk_job *job)
{
    rk_metrics_count_job(metrics, job);
    rk_job_destroy(job);
}

static void test_count_call_by_code_and_time(void **state)
{
    const struct rk_call_end ok = {.rpc = RK_RPC_ID_GET_STATUS, .code = RK_OK, .ns = 3000000};
    const struct rk_call_end watch = {
        .rpc = RK_RPC_ID_HEALTH_WATCH, .code = RK_CANCELLED, .ns = 3600000000000, .is_endless = true};
    const struct rk_call_end unknown = {.rpc = RK_RPC_COUNT, .code = RK_UNIMPLEMENTED};

    (void)state;
    rk_metrics_count_call(metrics, &ok);
    rk_metrics_count_call(metrics, &ok);
    rk_metrics_count_call(metrics, &watch);
    rk_metrics_count_call(metrics, &unknown);
    assert_int_equal(metrics->rpcs[RK_RPC_ID_GET_STATUS].by_code[RK_OK], 2);
    assert_int_equal(metrics->rpcs[RK_RPC_ID_GET_STATUS].duration.count, 2);
    assert_int_equal(metrics->rpcs[RK_RPC_ID_HEALTH_WATCH].by_code[RK_CANCELLED], 1);
    assert_int_equal(metrics->rpcs[RK_RPC_ID_HEALTH_WATCH].duration.count, 0);
    assert_int_equal(metrics->rpcs[RK_RPC_COUNT].by_code[RK_UNIMPLEMENTED], 1);
}

/* Goal: the metrics of a call replace those of the previous call of the same role and method; a failed call
 * does not change them. */
static void test_count_job_keeps_the_last_metrics(void **state)
{
    struct rk_job *job = new_job("actor", RK_METHOD_UPDATE_ACTOR);

    (void)state;
    rk_job_add_metric(&job->call, "actor/pg_loss", 1.0, "sum");
    rk_job_add_metric(&job->call, "actor/grad_norm", 2.0, "mean");
    end_job(job);
    job = new_job("critic", RK_METHOD_UPDATE_CRITIC);
    rk_job_add_metric(&job->call, "critic/vf_loss", 3.0, "sum");
    end_job(job);
    job = new_job("actor", RK_METHOD_UPDATE_ACTOR);
    rk_job_add_metric(&job->call, "actor/pg_loss", 4.0, "sum");
    end_job(job);
    job = new_job("critic", RK_METHOD_UPDATE_CRITIC);
    job->status = RK_FAIL_REASON(RK_ABORTED, "PEER_LOST", "rank 1 is lost");
    end_job(job);

    assert_int_equal(metrics->num_steps, 2);
    assert_string_equal(metrics->steps[0].name, "critic/vf_loss");
    assert_string_equal(metrics->steps[1].name, "actor/pg_loss");
    assert_true(metrics->steps[1].value == 4.0);
    assert_int_equal(metrics->num_methods, 2);
    assert_int_equal(metrics->methods[0].by_code[RK_OK], 2);
    assert_int_equal(metrics->methods[1].by_code[RK_ABORTED], 1);
    assert_int_equal(metrics->num_failures, 1);
    assert_string_equal(metrics->failures[0].reason, "PEER_LOST");
}

/* Goal: tokens, first tokens and checkpoints of successful calls are summed; failed calls do not count.
 */
static void test_count_job_tokens_and_checkpoints(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct rk_job *job = new_job("rollout", RK_METHOD_GENERATE_SEQUENCES);

        job->call.num_tokens = 100;
        job->call.num_prompt_tokens = 7;
        job->call.num_first_tokens = 2;
        job->call.first_token_seconds = rk_calloc(2, sizeof(double));
        job->call.first_token_seconds[0] = 0.02;
        job->call.first_token_seconds[1] = 5.0;
        if (i == 2)
            job->status = RK_FAIL(RK_ABORTED, "lost");
        end_job(job);
    }
    assert_int_equal(metrics->methods[0].num_tokens, 200);
    assert_int_equal(metrics->num_prompt_tokens, 14);
    assert_int_equal(metrics->first_token.count, 4);
    assert_true(metrics->first_token.sum > 10.0 && metrics->first_token.sum < 10.1);
    for (int i = 0; i < 2; i++) {
        struct rk_job *job = new_job("actor", RK_METHOD_SAVE_CHECKPOINT);

        job->call.checkpoint_bytes = i == 0 ? 1000 : 0; /* the second one continues during training */
        job->call.checkpoint_seconds = 2.5;
        end_job(job);
    }
    assert_int_equal(metrics->checkpoint_bytes, 1000);
    assert_int_equal(metrics->checkpoint_duration.count, 1);
    assert_true(metrics->checkpoint_unix_ns > 0);
}

/* Goal: more roles, reasons and metrics than the limit are counted in the series "other", or omitted. */
static void test_count_job_series_are_bounded(void **state)
{
    uint64_t calls = 0, failures = 0;
    char text[32];

    (void)state;
    for (int i = 0; i < 300; i++) {
        struct rk_job *job;

        snprintf(text, sizeof(text), "role%d", i);
        job = new_job(text, RK_METHOD_UPDATE_ACTOR);
        for (int m = 0; m < RK_JOB_MAX_METRICS; m++) {
            snprintf(text, sizeof(text), "m%d", m);
            rk_job_add_metric(&job->call, text, m, "last");
        }
        end_job(job);
        snprintf(text, sizeof(text), "R%d", i);
        job = new_job("actor", RK_METHOD_UPDATE_ACTOR);
        job->status = rk_status_from_wire(RK_ABORTED, text, "aborted");
        end_job(job);
    }
    assert_int_equal(metrics->num_methods, RK_METRICS_METHODS_MAX);
    assert_string_equal(metrics->methods[RK_METRICS_METHODS_MAX - 1].role, "other");
    assert_int_equal(metrics->num_failures, RK_METRICS_FAILURES_MAX);
    assert_string_equal(metrics->failures[RK_METRICS_FAILURES_MAX - 1].reason, "other");
    assert_int_equal(metrics->num_steps, RK_METRICS_STEP_MAX);
    for (int i = 0; i < metrics->num_methods; i++)
        calls += metrics->methods[i].duration.count;
    for (int i = 0; i < metrics->num_failures; i++)
        failures += metrics->failures[i].count;
    assert_int_equal(calls, 600);
    assert_int_equal(failures, 300);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_count_call_by_code_and_time, setup, teardown),
        cmocka_unit_test_setup_teardown(test_count_job_keeps_the_last_metrics, setup, teardown),
        cmocka_unit_test_setup_teardown(test_count_job_tokens_and_checkpoints, setup, teardown),
        cmocka_unit_test_setup_teardown(test_count_job_series_are_bounded, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
