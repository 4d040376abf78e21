/* rankctl call: single methods with batches from files; a rejected batch leaves the daemons usable.
 */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "dispatch/rk_batch.h"
#include "tests/proc/cli_fixture.h"

#define P     4
#define R     4
#define S     (P + R)
#define VOCAB 14 /* of the digits example */

/* Two daemons, each a replica. */
struct group {
    struct rk_proc *daemons[2];
    char *hosts, *job, *hf_config;
};

static int start_group(void **state)
{
    struct group *group = rk_calloc(1, sizeof(*group));
    char *config = rk_test_read_file(RK_TEST_SOURCE_DIR "/examples/digits/config.json", NULL);

    for (int i = 0; i < 2; i++)
        group->daemons[i] = start_daemon(NULL);
    group->hosts = rk_format("%s,%s", rk_proc_address(group->daemons[0]), rk_proc_address(group->daemons[1]));
    group->job = write_tp1_job(TINY_JOB, "dp.json");
    group->hf_config = rk_format("model.hf_config=%s", config);
    rk_free(config);
    *state = group;
    return 0;
}

static int stop_group(void **state)
{
    struct group *group = *state;

    for (int i = 0; i < 2; i++)
        rk_proc_destroy(group->daemons[i]);
    rk_free(group->hosts);
    rk_free(group->job);
    rk_free(group->hf_config);
    rk_free(group);
    return 0;
}

static struct outcome call(const struct group *group, const char *target, const char *const *more)
{
    const char *args[16] = {"call", target, "--hosts", group->hosts};
    size_t num_args = 4;

    for (; more && *more; more++)
        args[num_args++] = *more;
    assert_true(num_args < RK_ARRAY_LEN(args));
    return run_rankctl(args);
}

static void assert_call(const struct group *group, const char *target, const char *const *more, int code,
                        const char *text)
{
    struct outcome outcome = call(group, target, more);

    assert_exit(&outcome, code);
    if (text)
        assert_text(code == 0 ? "stdout" : "stderr", code == 0 ? outcome.out : outcome.err, text);
    outcome_fini(&outcome);
}

/* --- batches --- */

static void fill(int64_t *values, int64_t rows, int64_t width, int64_t (*value)(int64_t row, int64_t i))
{
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = 0; i < width; i++)
            values[row * width + i] = value(row, i);
    }
}

static int64_t token_at(int64_t row, int64_t i)
{
    return 2 + (row + 3 * i) % (VOCAB - 2);
}

static int64_t response_at(int64_t row, int64_t i)
{
    return token_at(row, P + i);
}

static int64_t one_at(int64_t row, int64_t i)
{
    (void)row;
    (void)i;
    return 1;
}

static int64_t position_at(int64_t row, int64_t i)
{
    (void)row;
    return i;
}

static void add(struct rk_batch *batch, const char *name, int64_t width,
                int64_t (*value)(int64_t row, int64_t i))
{
    int64_t shape[2] = {rk_batch_num_rows(batch), width};
    void *data;

    assert_ok(rk_batch_add_dense(batch, name, RK_DTYPE_I64, 2, shape, &data));
    fill(data, shape[0], width, value);
}

static struct rk_batch *token_batch(int64_t rows)
{
    struct rk_batch *batch;

    assert_ok(rk_batch_create(&batch, rows));
    add(batch, "input_ids", S, token_at);
    add(batch, "attention_mask", S, one_at);
    add(batch, "position_ids", S, position_at);
    add(batch, "responses", R, response_at);
    return batch;
}

static void remove_responses(struct rk_batch *batch)
{
    rk_batch_remove(batch, "responses");
}

static void add_stranger(struct rk_batch *batch)
{
    add(batch, "stranger", 2, one_at);
}

static void change_dtype(struct rk_batch *batch)
{
    int64_t shape[2] = {rk_batch_num_rows(batch), R};
    void *data;

    assert_ok(rk_batch_add_dense(batch, "responses", RK_DTYPE_F32, 2, shape, &data));
}

static void change_length(struct rk_batch *batch)
{
    add(batch, "position_ids", S - 1, position_at);
}

static void change_rank(struct rk_batch *batch)
{
    int64_t shape[1] = {rk_batch_num_rows(batch)};
    void *data;

    assert_ok(rk_batch_add_dense(batch, "responses", RK_DTYPE_I64, 1, shape, &data));
}

struct bad_batch {
    const char *label;
    int64_t rows;
    void (*spoil)(struct rk_batch *batch);
    const char *message;
};

static const struct bad_batch bad_batches[] = {
    {"missing column", 2, remove_responses, "responses"}, {"extra column", 2, add_stranger, "stranger"},
    {"wrong dtype", 2, change_dtype, "responses"},        {"wrong length", 2, change_length, "position_ids"},
    {"wrong rank", 2, change_rank, "responses"},          {"rows that do not divide", 3, NULL, "3"},
};

/* --- tests, in order: the daemons are shared --- */

static void test_call_unconfigured_group_is_refused(void **state)
{
    assert_call(*state, "actor.get_mesh_info", NULL, 1, "is UNCONFIGURED and has no meshes");
}

static void test_call_with_job_configures_every_rank(void **state)
{
    const struct group *group = *state;
    const char *const more[] = {"--job", group->job, "--output=json", NULL};
    struct outcome outcome = call(group, "actor.get_mesh_info", more);
    struct rk_json *json, *outputs;

    assert_exit(&outcome, 0);
    json = parse_json(outcome.out);
    assert_string_equal(rk_json_as_string(rk_json_find(json, "kind"), ""), "CallResult");
    outputs = rk_json_find(json, "outputs");
    assert_int_equal(rk_json_count(outputs), 2);
    for (int64_t rank = 0; rank < 2; rank++)
        assert_int_equal(rk_json_as_int(rk_json_find(rk_json_at(outputs, rank), "dp_rank"), -1), rank);
    rk_json_free(json);
    outcome_fini(&outcome);
}

/* Goal: a call that fails has one line in the daemon's log, that with its name, number and frames. */
static void test_call_that_fails_has_one_line(void **state)
{
    struct rk_proc *daemon = start_daemon(NULL);
    char *job = write_tp1_job(TINY_JOB, "one-line.json"), *log;
    struct outcome outcome =
        run_rankctl((const char *const[]){"call", "actor.init_model", "--hosts", rk_proc_address(daemon),
                                          "--job", job, "--opt", "model.path=/does/not/exist", NULL});
    const char *found;

    (void)state;
    assert_exit(&outcome, 4);
    outcome_fini(&outcome);
    rk_proc_signal(daemon, SIGTERM);
    assert_int_equal(rk_proc_wait(daemon, 60000), 0);
    log = rk_proc_stderr(daemon);
    found = strstr(log, "/does/not/exist");
    assert_non_null(found);
    assert_null(strstr(strchr(found, '\n'), "/does/not/exist"));
    assert_non_null(strstr(log, "method failed name=actor.init_model"));
    rk_free(log);
    rk_free(job);
    rk_proc_destroy(daemon);
}

/* Goal: a method before init_model is rejected; then init_model uses the existing configuration. */
static void test_call_init_model_uses_the_configured_meshes(void **state)
{
    const struct group *group = *state;
    const char *const init[] = {"--opt", group->hf_config, "--opt", "megatron.seed=7", NULL};
    struct rk_batch *batch = token_batch(2);
    char *path = rk_test_temp_path("early.safetensors");
    const char *const in[] = {"--in", path, NULL};

    assert_ok(rk_batch_write_file(batch, path));
    assert_call(group, "actor.compute_log_prob", in, 1, "FAILED_PRECONDITION");
    assert_call(group, "actor.init_model", init, 0, NULL);
    rk_batch_destroy(batch);
    rk_free(path);
}

/* Goal: every rank reports the planned and allocated memory of its role. */
static void test_call_memory_report_shows_every_rank(void **state)
{
    const char *const more[] = {"--output=json", NULL};
    struct outcome outcome = call(*state, "actor.memory_report", more);
    struct rk_json *json, *outputs;

    assert_exit(&outcome, 0);
    json = parse_json(outcome.out);
    outputs = rk_json_find(json, "outputs");
    assert_int_equal(rk_json_count(outputs), 2);
    for (int64_t rank = 0; rank < 2; rank++) {
        const struct rk_json *report = rk_json_at(outputs, rank);
        int64_t planned = rk_json_as_int(rk_json_find_path(report, "planned.total"), -1);

        assert_int_equal(rk_json_as_int(rk_json_find(report, "rank"), -1), rank);
        assert_true(planned > 0);
        assert_int_equal(rk_json_as_int(rk_json_find_path(report, "held.total"), -1), planned);
    }
    rk_json_free(json);
    outcome_fini(&outcome);
}

static void test_call_bad_names_and_options_are_refused(void **state)
{
    const struct group *group = *state;
    const struct {
        const char *target, *option, *message;
        int code;
    } tries[] = {
        {"actor.fly", NULL, "fly", 2},
        {"ref.update_actor", NULL, "actor", 2},
        {"pilot.get_mesh_info", NULL, "pilot", 2},
        {"ref.get_mesh_info", NULL, "role 'ref' has no mesh", 1},
        {"actor.init_model", "optim.l=1", "optim.lr", 2},
        {"actor.init_model", "optim.lr=fast", "optim.lr", 2},
        {"actor.init_model", "model.hf_config={\"model_type\":\"gpt9\"}", "gpt9", 1},
    };

    for (size_t i = 0; i < RK_ARRAY_LEN(tries); i++) {
        const char *const more[] = {tries[i].option ? "--opt" : NULL, tries[i].option, NULL};

        print_message("%s %s\n", tries[i].target, tries[i].option ? tries[i].option : "");
        assert_call(group, tries[i].target, more, tries[i].code, tries[i].message);
    }
}

static void test_call_path_outside_the_roots_is_refused(void **state)
{
    const char *const more[] = {"--opt", "path=/etc/model", NULL};

    assert_call(*state, "actor.export_hf", more, 4, "PATH_OUTSIDE_ROOTS");
}

static void test_call_bad_batches_are_refused_naming_the_column(void **state)
{
    const struct group *group = *state;
    char *path = rk_test_temp_path("bad.safetensors");
    const char *const more[] = {"--in", path, NULL};

    for (size_t i = 0; i < RK_ARRAY_LEN(bad_batches); i++) {
        struct rk_batch *batch = token_batch(bad_batches[i].rows);

        print_message("%s\n", bad_batches[i].label);
        if (bad_batches[i].spoil)
            bad_batches[i].spoil(batch);
        assert_ok(rk_batch_write_file(batch, path));
        assert_call(group, "actor.compute_log_prob", more, 2, bad_batches[i].message);
        rk_batch_destroy(batch);
    }
    rk_free(path);
}

static void test_call_no_batch_or_one_too_many_is_refused(void **state)
{
    struct rk_batch *batch = token_batch(2);
    char *path = rk_test_temp_path("extra.safetensors");
    const char *const more[] = {"--in", path, NULL};

    assert_ok(rk_batch_write_file(batch, path));
    assert_call(*state, "actor.get_mesh_info", more, 2, "actor.get_mesh_info: ");
    assert_call(*state, "rollout.generate_sequences",
                (const char *const[]){"--opt", "response_length=4", NULL}, 2, "needs a batch");
    rk_batch_destroy(batch);
    rk_free(path);
}

/* Goal: after all rejected calls a valid call works; its result is a file with rows in the order of the
 * input, and a repeated call gives the same, also under the method's alias. */
static void test_call_compute_log_prob_writes_its_result(void **state)
{
    char *in = rk_test_temp_path("in.safetensors"), *out = rk_test_temp_path("out.safetensors");
    struct rk_batch *batch = token_batch(6), *first, *second;
    const char *const more[] = {"--in", in, "--out", out, "--max-tokens=16", NULL};
    const char *const dropped[] = {"--in", in, NULL};
    struct outcome outcome;
    int64_t shape[2];
    const void *data;

    assert_ok(rk_batch_write_file(batch, in));
    outcome = call(*state, "actor.compute_log_prob", dropped);
    assert_exit(&outcome, 0);
    assert_text("stderr", outcome.err, "6 rows");
    outcome_fini(&outcome);
    outcome = call(*state, "actor.compute_log_prob", more);
    assert_exit(&outcome, 0);
    assert_string_equal(outcome.err, "");
    outcome_fini(&outcome);
    assert_ok(rk_batch_read_file(&first, out));
    assert_ok(rk_batch_get_dense(first, "old_log_probs", RK_DTYPE_F32, 2, shape, &data));
    assert_int_equal(shape[0], 6);
    assert_int_equal(shape[1], R);
    for (int64_t i = 0; i < 6 * R; i++)
        assert_true(isfinite(((const float *)data)[i]) && ((const float *)data)[i] < 0.0f);
    assert_call(*state, "actor.infer_batch", more, 2, "out.safetensors: exists, and is not replaced");
    assert_int_equal(unlink(out), 0);
    assert_call(*state, "actor.infer_batch", more, 0, NULL);
    assert_ok(rk_batch_read_file(&second, out));
    assert_true(
        rk_column_equal(rk_batch_find(first, "old_log_probs"), rk_batch_find(second, "old_log_probs")));
    rk_batch_destroy(first);
    rk_batch_destroy(second);
    rk_batch_destroy(batch);
    rk_free(in);
    rk_free(out);
}

/* Goal: a list of hosts that is not the whole group in its order is rejected with the configured group. */
static void test_call_group_named_otherwise_is_refused(void **state)
{
    const struct group *group = *state;
    const char *first = rk_proc_address(group->daemons[0]), *second = rk_proc_address(group->daemons[1]);
    struct group swapped = *group, half = *group;

    swapped.hosts = rk_format("%s,%s", second, first);
    half.hosts = rk_strdup(second);
    assert_call(&swapped, "actor.get_mesh_info", NULL, 1, "is rank 1 of 2 in its group");
    assert_call(&half, "actor.get_mesh_info", NULL, 1, "is rank 1 of 2 in its group");
    assert_call(group, "actor.get_mesh_info", NULL, 0, NULL);
    rk_free(swapped.hosts);
    rk_free(half.hosts);
}

#ifdef RK_FAULTS
/* Goal: a rank that does not arrive at a collective within the call's timeout ends it with exit code 5.
 * Method: tp 2, one daemon sleeps 3 s before every method. */
static void test_call_timeout_exits_with_five(void **state)
{
    struct group group = *(const struct group *)*state;
    const char *const init[] = {"--job", TINY_JOB, "--opt", group.hf_config, NULL};
    struct rk_batch *batch = token_batch(2);
    char *path = rk_test_temp_path("late.safetensors");
    const char *const late[] = {"--in", path, "--timeout=500ms", NULL};

    assert_ok(rk_batch_write_file(batch, path));
    group.daemons[0] = start_daemon(NULL);
    setenv("RANKD_FAULTS", "worker.before_method=sleep:3s", 1);
    group.daemons[1] = start_daemon(NULL);
    unsetenv("RANKD_FAULTS");
    group.hosts = rk_format("%s,%s", rk_proc_address(group.daemons[0]), rk_proc_address(group.daemons[1]));
    assert_call(&group, "actor.init_model", init, 0, NULL);
    assert_call(&group, "actor.compute_log_prob", late, 5, "DEADLINE_EXCEEDED");
    assert_call(&group, "actor.get_mesh_info", NULL, 1, "without --job: worker 0");
    rk_proc_destroy(group.daemons[0]);
    rk_proc_destroy(group.daemons[1]);
    rk_free(group.hosts);
    rk_batch_destroy(batch);
    rk_free(path);
}
#endif

/* Goal: gradients in one call, the step in another; a second step without gradients fails. */
static void test_call_forward_backward_and_step(void **state)
{
    char *in = rk_test_temp_path("sums.safetensors");
    struct rk_batch *batch = token_batch(6);
    const char *const sums[] = {"--in", in, "--opt", "loss_fn=cross_entropy", NULL};
    const char *const step[] = {"--opt", "optim.lr=0.001", NULL};
    struct outcome outcome;

    add(batch, "response_mask", R, one_at);
    assert_ok(rk_batch_write_file(batch, in));
    assert_call(*state, "actor.forward_backward", sums, 0, "actor/loss_sum");
    assert_call(*state, "actor.optimizer_step", step, 0, "actor/grad_norm");
    outcome = call(*state, "actor.optim_step", step);
    assert_exit(&outcome, 0);
    assert_null(strstr(outcome.out, "grad_norm"));
    outcome_fini(&outcome);
    rk_batch_destroy(batch);
    rk_free(in);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_call_unconfigured_group_is_refused),
        cmocka_unit_test(test_call_with_job_configures_every_rank),
        cmocka_unit_test(test_call_bad_names_and_options_are_refused),
        cmocka_unit_test(test_call_that_fails_has_one_line),
        cmocka_unit_test(test_call_init_model_uses_the_configured_meshes),
        cmocka_unit_test(test_call_memory_report_shows_every_rank),
        cmocka_unit_test(test_call_path_outside_the_roots_is_refused),
        cmocka_unit_test(test_call_bad_batches_are_refused_naming_the_column),
        cmocka_unit_test(test_call_no_batch_or_one_too_many_is_refused),
        cmocka_unit_test(test_call_compute_log_prob_writes_its_result),
        cmocka_unit_test(test_call_forward_backward_and_step),
        cmocka_unit_test(test_call_group_named_otherwise_is_refused),
#ifdef RK_FAULTS
        cmocka_unit_test(test_call_timeout_exits_with_five),
#endif
    };

    return cmocka_run_group_tests(tests, start_group, stop_group);
}
