/* Whole PPO steps against a reimplementation in PyTorch (tests/golden/gen/make_ppo.py), with real daemons:
 * the flow is that of flow_rl.c with responses from a file instead of generated ones, and a comparison
 * at the end of each step. */
#include "rl/flows/steps_internal.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/format/rk_safetensors.h"
#include "base/rk_str.h"
#include "rl/rk_job.h"
#include "tests/proc/cli_fixture.h"

#define EXPECTED "expected."

struct golden {
    char *dir;               /* of the case */
    struct rk_json *metrics; /* of the steps */
};

/* A case on one layout. */
struct run {
    struct rk_flow kind; /* of its context */
    struct rk_config *job;
    struct rk_flow_inputs inputs;
    struct rk_local *local;
    struct rk_driver *driver;
    struct rk_flow_context flow;
};

static const struct golden *golden_of(const struct rk_flow_context *ctx)
{
    return ctx->sink.user;
}

/* --- steps of the test --- */

/* Asserts that the prompts of the file equal those of the job's data. */
static void assert_prompts(struct rk_flow_context *ctx)
{
    const struct rk_dataset_row *const *prompts = rk_flow_prompt_state(ctx)->rows;
    const void *ids;

    assert_ok(rk_flow_column(ctx, "prompts", RK_DTYPE_I64, ctx->prompt_length, &ids));
    for (int64_t row = 0; row < ctx->num_rows; row++) {
        const struct rk_dataset_row *prompt = prompts[row / ctx->num_samples];
        const int64_t *end = (const int64_t *)ids + (row + 1) * ctx->prompt_length;

        for (int64_t i = 0; i < prompt->prompt_len; i++)
            assert_int_equal(end[i - prompt->prompt_len], prompt->prompt_ids[i]);
    }
}

static struct rk_status *respond(struct rk_flow_context *ctx)
{
    char *path = rk_format("%s/step%lld.safetensors", golden_of(ctx)->dir, (long long)ctx->step);
    struct rk_status *st = rk_batch_read_file(&ctx->batch, path);

    rk_free(path);
    if (st)
        return st;
    assert_prompts(ctx);
    return rk_flow_add_identity(ctx);
}

static double error_of(double actual, double expected)
{
    return isfinite(actual) ? fabs(actual - expected) / fmax(1.0, fabs(expected)) : INFINITY;
}

/* Compares under the mask only: values after the end of a response are undefined. */
static void check_column(const struct rk_flow_context *ctx, const char *name)
{
    const char *column = name + strlen(EXPECTED);
    char *label = rk_format("step %lld, %s", (long long)ctx->step, column);
    const void *actual, *expected, *mask;
    double worst = 0.0;

    assert_ok(rk_flow_column(ctx, column, RK_DTYPE_F32, ctx->response_length, &actual));
    assert_ok(rk_flow_column(ctx, name, RK_DTYPE_F32, ctx->response_length, &expected));
    assert_ok(rk_flow_column(ctx, "response_mask", RK_DTYPE_I64, ctx->response_length, &mask));
    for (int64_t i = 0; i < ctx->num_rows * ctx->response_length; i++) {
        if (((const int64_t *)mask)[i])
            worst = fmax(worst, error_of(((const float *)actual)[i], ((const float *)expected)[i]));
    }
    assert_below(label, worst, RK_TOL_F32_SUM);
    rk_free(label);
}

static void check_metrics(const struct rk_flow_context *ctx)
{
    const struct rk_json *expected = rk_json_at(golden_of(ctx)->metrics, ctx->step - 1);

    assert_true(rk_json_count(expected) > 0);
    for (void *it = rk_json_iter(expected); it; it = rk_json_iter_next(expected, it)) {
        const char *name = rk_json_iter_key(it);
        char *label = rk_format("step %lld, %s", (long long)ctx->step, name);
        double value = rk_json_as_real(rk_json_iter_value(it), NAN);

        assert_below(label, error_of(metric(ctx->metrics, name), value), RK_TOL_F32_SUM);
        rk_free(label);
    }
}

static struct rk_status *compare(struct rk_flow_context *ctx)
{
    int64_t num_columns = 0;

    for (int64_t i = 0; i < rk_batch_num_columns(ctx->batch); i++) {
        const char *name = rk_batch_name_at(ctx->batch, i);

        if (!rk_str_has_prefix(name, EXPECTED))
            continue;
        check_column(ctx, name);
        num_columns++;
    }
    assert_true(num_columns > 0);
    check_metrics(ctx);
    return NULL;
}

static const struct rk_flow_step step_respond = {"respond", "gen", NULL, respond};
static const struct rk_flow_step step_compare = {"compare", NULL, NULL, compare};
static const struct rk_flow_step *const steps[] = {
    &rk_step_prompts,      &step_respond,
    &rk_step_layout,       &rk_step_reward,
    &rk_step_old_log_prob, &rk_step_ref,
    &rk_step_values,       &rk_step_token_rewards,
    &rk_step_adv,          &rk_step_update_critic,
    &rk_step_update_actor, &rk_step_metrics,
    &step_compare,         NULL,
};

/* --- a run --- */

static void start_daemons(struct run *run, int32_t num_daemons)
{
    char *program = rk_proc_program("rankd"), *fixtures = rk_test_fixture_path("golden");
    const char *roots[] = {rk_test_temp_dir(), fixtures, NULL};

    assert_ok(rk_local_start(&run->local, &(struct rk_local_config){
                                              .struct_size = sizeof(struct rk_local_config),
                                              .num_daemons = num_daemons,
                                              .program = program,
                                              .device = rk_job_device(run->job),
                                              .log_dir = rk_test_temp_dir(),
                                              .ckpt_roots = roots,
                                          }));
    assert_ok(rk_driver_open(&run->driver, &(struct rk_driver_config){
                                               .struct_size = sizeof(struct rk_driver_config),
                                               .addresses = rk_local_addresses(run->local),
                                               .num_addresses = num_daemons,
                                           }));
    assert_ok(rk_driver_claim(run->driver));
    rk_free(fixtures);
    rk_free(program);
}

static void run_init(struct run *run, const struct golden *golden, int32_t num_daemons, const char *override)
{
    const char *overrides[] = {cli_device(), override};
    char *path = rk_format("%s.json", golden->dir), *job_dir = rk_path_dir(path);

    *run = (struct run){0};
    assert_ok(rk_job_load(&run->job, path, overrides, RK_ARRAY_LEN(overrides)));
    assert_ok(rk_job_check(run->job, num_daemons));
    assert_ok(rk_flow_inputs_load(&run->inputs, run->job, job_dir));
    start_daemons(run, num_daemons);
    rk_free(job_dir);
    rk_free(path);
}

static void run_fini(struct run *run)
{
    rk_flow_context_fini(&run->flow);
    rk_driver_close(run->driver);
    rk_local_stop(run->local);
    rk_flow_inputs_fini(&run->inputs);
    rk_config_destroy(run->job);
}

static void train(struct run *run, struct golden *golden)
{
    const struct rk_flow_sink sink = {.user = golden};

    run->kind = rk_flow_rl;
    run->kind.steps = steps;
    assert_ok(rk_flow_context_init(&run->flow, run->job, &run->inputs, run->driver, &sink));
    run->flow.flow = &run->kind;
    assert_ok(rk_flow_run(&run->flow));
    assert_int_equal(run->flow.step, rk_json_count(golden->metrics));
}

/* --- parameters --- */

static float *read_f32(const struct rk_st_file *file, const char *name, int64_t *count)
{
    const struct rk_st_tensor *tensor = rk_st_find(file, name);
    float *values;

    if (!tensor || tensor->dtype != RK_DTYPE_F32)
        fail_msg("%s: no tensor '%s' of f32", rk_st_path(file), name);
    values = rk_malloc(tensor->bytes);
    assert_ok(rk_st_read(file, tensor, 0, tensor->bytes, values));
    *count = (int64_t)(tensor->bytes / sizeof(float));
    return values;
}

/* The bound is absolute: parameters are of the order of 1 and have changed by 0.01 or more. */
static void check_parameter(const struct rk_st_file *actual, const struct rk_st_file *expected,
                            const char *name)
{
    int64_t num_actual, num_expected;
    float *a = read_f32(actual, name, &num_actual), *b = read_f32(expected, name, &num_expected);
    double worst = 0.0;

    assert_int_equal(num_actual, num_expected);
    for (int64_t i = 0; i < num_actual; i++)
        worst = fmax(worst, isfinite(a[i]) ? fabs((double)a[i] - (double)b[i]) : INFINITY);
    assert_below(name, worst, RK_TOL_F32_SUM);
    rk_free(b);
    rk_free(a);
}

static void check_model(struct run *run, const struct golden *golden, const char *role)
{
    char *dir = new_run_dir(), *actual_path = rk_path_join(dir, "model.safetensors");
    char *expected_path = rk_format("%s/%s.safetensors", golden->dir, role);
    struct rk_json *options = rk_json_new_object();
    struct rk_st_file *actual, *expected;
    struct rk_driver_result result;

    rk_json_set(options, "path", rk_json_new_string(dir));
    assert_ok(rk_flow_call(&run->flow, role, "export_hf", NULL, options, NULL, &result));
    rk_driver_result_fini(&result);
    assert_ok(rk_st_open(&actual, actual_path));
    assert_ok(rk_st_open(&expected, expected_path));
    assert_int_equal(rk_st_count(actual), rk_st_count(expected));
    for (int64_t i = 0; i < rk_st_count(expected); i++)
        check_parameter(actual, expected, rk_st_at(expected, i)->name);
    rk_st_close(expected);
    rk_st_close(actual);
    rk_free(expected_path);
    rk_free(actual_path);
    rk_free(dir);
}

/* --- tests --- */

static const struct {
    const char *label, *override;
    int32_t num_daemons;
} layouts[] = {
    {"one rank", "actor_rollout_ref.actor." RK_JOB_TP "=1", 1},
    {"one rank, strict", "numerics=strict", 1},
    {"tp=2 dp=2", "actor_rollout_ref.actor." RK_JOB_TP "=2", 4},
};

/* Goal: every column, every metric and every parameter of both models. Method: the steps of the case, where
 * each step starts from the models that the previous step left. */
static void check_case(const char *name)
{
    char *fixture = rk_format("golden/ppo/%s", name);
    struct golden golden = {.dir = rk_test_fixture_path(fixture)};

    golden.metrics = read_json(golden.dir, "metrics.json");
    for (size_t i = 0; i < RK_ARRAY_LEN(layouts); i++) {
        struct run run;

        if (!has_devices(layouts[i].num_daemons)) {
            rk_test_skip_part("%s, %s: needs %d GPUs", name, layouts[i].label, (int)layouts[i].num_daemons);
            continue;
        }
        print_message("%s, %s\n", name, layouts[i].label);
        run_init(&run, &golden, layouts[i].num_daemons, layouts[i].override);
        train(&run, &golden);
        check_model(&run, &golden, "actor");
        check_model(&run, &golden, "critic");
        run_fini(&run);
    }
    rk_json_free(golden.metrics);
    rk_free(golden.dir);
    rk_free(fixture);
}

static void test_ppo_with_reward_model_matches_pytorch(void **state)
{
    (void)state;
    check_case("reward_model");
}

static void test_ppo_with_both_rewards_and_kl_loss_matches_pytorch(void **state)
{
    (void)state;
    check_case("kl_loss");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ppo_with_reward_model_matches_pytorch),
        cmocka_unit_test(test_ppo_with_both_rewards_and_kl_loss_matches_pytorch),
    };

    skip_without_devices(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
