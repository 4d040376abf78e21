/* The directory of a run: its files, when they are written, and that a run is never overwritten. */
#include "rl/rk_run.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "rl/rk_job.h"
#include "tests/support/test.h"

static struct rk_config *load(const char *experiment)
{
    char *name = rk_format("trainer.experiment_name=%s", experiment);
    const char *const overrides[] = {"data.train_files=[\"a.jsonl\"]", "data.val_files=[\"b.jsonl\"]", name};
    struct rk_config *job;

    assert_ok(rk_job_load(&job, NULL, overrides, RK_ARRAY_LEN(overrides)));
    rk_free(name);
    return job;
}

static char *read_file(const struct rk_run_dir *run, const char *name)
{
    char *path = rk_path_join(run->path, name);
    char *text = rk_test_read_file(path, NULL);

    rk_free(path);
    return text;
}

static void append(struct rk_run_dir *run, int64_t step, double reward)
{
    struct rk_json *metrics = rk_json_new_object();

    rk_json_set(metrics, "training/global_step", rk_json_new_int(step));
    rk_json_set(metrics, "critic/score/mean", rk_json_new_real(reward));
    assert_ok(rk_run_dir_append(run, metrics));
    rk_json_free(metrics);
}

/* Goal: a line is on disk as soon as its step is done; the end adds the summary. */
static void test_run_dir_steps_are_written_at_once(void **state)
{
    struct rk_config *job = load("first");
    struct rk_json *summary = rk_json_new_object();
    char *path = rk_test_temp_path("runs/a/b");
    struct rk_run_dir run;
    char *text;

    (void)state;
    assert_ok(rk_run_dir_create(&run, job, "/jobs", path, RK_RUN_DIR_NEW));
    assert_string_equal(run.path, path);
    append(&run, 1, 0.25);
    text = read_file(&run, "metrics.jsonl");
    assert_string_equal(text, "{\"training/global_step\":1,\"critic/score/mean\":0.25}\n");
    rk_free(text);
    for (int64_t step = 2; step <= 100; step++)
        append(&run, step, step <= 3 ? 0.25 : 0.75);
    assert_true(rk_run_dir_mean(&run, false, 3) == 0.25);
    assert_true(rk_run_dir_mean(&run, true, 10) == 0.75);
    assert_ok(rk_run_dir_finish(&run, summary));
    assert_int_equal(rk_json_as_int(rk_json_find(summary, "num_steps"), 0), 100);
    assert_true(rk_json_as_real(rk_json_find(summary, "reward_last_10"), 0.0) == 0.75);
    text = read_file(&run, "config.json");
    assert_non_null(strstr(text, "\"experiment_name\": \"first\""));
    assert_non_null(strstr(text, "\"/jobs/a.jsonl\""));
    assert_non_null(strstr(text, "\"/jobs/b.jsonl\""));
    rk_free(text);
    rk_json_free(summary);
    rk_run_dir_fini(&run);
    rk_config_destroy(job);
    rk_free(path);
}

/* Goal: the curve of a run without rewards is the loss. */
static void test_run_dir_curve_of_examples_is_the_loss(void **state)
{
    struct rk_config *job = load("loss");
    struct rk_json *summary = rk_json_new_object(), *metrics = rk_json_new_object();
    char *path = rk_test_temp_path("runs/loss");
    struct rk_run_dir run;

    (void)state;
    assert_ok(rk_run_dir_create(&run, job, "/jobs", path, RK_RUN_DIR_NEW));
    rk_json_set(metrics, "val/loss", rk_json_new_real(9.0));
    assert_ok(rk_run_dir_append(&run, metrics)); /* a validation alone does not count as a step */
    rk_json_set(metrics, "train/loss", rk_json_new_real(0.5));
    assert_ok(rk_run_dir_append(&run, metrics));
    assert_ok(rk_run_dir_finish(&run, summary));
    assert_int_equal(rk_json_as_int(rk_json_find(summary, "num_steps"), 0), 1);
    assert_true(rk_json_as_real(rk_json_find(summary, "loss_last_10"), 0.0) == 0.5);
    assert_null(rk_json_find(summary, "reward_last_10"));
    rk_json_free(summary);
    rk_json_free(metrics);
    rk_run_dir_fini(&run);
    rk_config_destroy(job);
    rk_free(path);
}

static void test_run_dir_directory_with_a_run_is_refused(void **state)
{
    struct rk_config *job = load("again");
    char *path = rk_test_temp_path("runs/again");
    struct rk_run_dir run;

    (void)state;
    assert_ok(rk_run_dir_create(&run, job, "/jobs", path, RK_RUN_DIR_NEW));
    append(&run, 1, 0.5);
    rk_run_dir_fini(&run);
    assert_fails(rk_run_dir_create(&run, job, "/jobs", path, RK_RUN_DIR_NEW), RK_ALREADY_EXISTS,
                 "metrics.jsonl' exists");
    assert_null(run.path);
    rk_config_destroy(job);
    rk_free(path);
}

/* Goal: a run that ended before its first step (no daemons, a typing error) leaves its directory reusable; a
 * run that has begun keeps it. */
static void test_run_dir_run_without_a_step_is_written_over(void **state)
{
    struct rk_config *job = load("again");
    char *path = rk_test_temp_path("runs/none");
    struct rk_run_dir first, second;

    (void)state;
    assert_ok(rk_run_dir_create(&first, job, "/jobs", path, RK_RUN_DIR_NEW));
    assert_fails(rk_run_dir_create(&second, job, "/jobs", path, RK_RUN_DIR_NEW), RK_ALREADY_EXISTS,
                 "in use by another run");
    rk_run_dir_fini(&first);
    assert_ok(rk_run_dir_create(&second, job, "/jobs", path, RK_RUN_DIR_NEW));
    append(&second, 1, 0.5);
    rk_run_dir_fini(&second);
    rk_config_destroy(job);
    rk_free(path);
}

static int64_t count_lines(const struct rk_run_dir *run)
{
    char *text = read_file(run, "metrics.jsonl");
    int64_t count = 0;

    for (const char *c = text; *c; c++)
        count += *c == '\n';
    rk_free(text);
    return count;
}

static void append_text(const char *dir, const char *text)
{
    char *path = rk_path_join(dir, "metrics.jsonl");
    FILE *file = fopen(path, "a");

    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    rk_free(path);
}

struct tail_case {
    const char *label, *tail;
};

/* Goal: a resumed run has each step once, whatever the previous run left at the end, and the rewards of the
 * steps that are kept; an existing export is renamed. */
static void test_run_dir_run_that_goes_on_has_each_step_once(void **state)
{
    static const struct tail_case cases[] = {
        {"nothing", ""},
        {"a torn line", "{\"training/global_step\":6,\"crit"},
        {"zeros of a file system that lost power", "\001\001\001\n"},
    };
    struct rk_config *job = load("goes-on");

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char *name = rk_format("runs/goes-on-%zu", i), *path = rk_test_temp_path(name), *hf, *model, *moved;
        struct rk_run_dir run, other;

        print_message("%s\n", cases[i].label);
        assert_ok(rk_run_dir_create(&run, job, "/jobs", path, RK_RUN_DIR_NEW));
        hf = rk_path_join(path, "hf");
        model = rk_path_join(hf, "config.json");
        moved = rk_path_join(path, "hf-1");
        for (int64_t step = 1; step <= 5; step++)
            append(&run, step, (double)step);
        assert_int_equal(mkdir(hf, 0777), 0);
        rk_test_write_file(model, "{}", 2);
        assert_fails(rk_run_dir_create(&other, job, "/jobs", path, 3), RK_ALREADY_EXISTS,
                     "in use by another run");
        rk_run_dir_fini(&run);
        append_text(path, cases[i].tail);
        assert_ok(rk_run_dir_create(&run, job, "/jobs", path, 3));
        assert_int_equal(count_lines(&run), 3);
        assert_int_equal(run.num_steps, 3);
        assert_true(rk_run_dir_mean(&run, true, 1) == 3.0);
        assert_int_equal(access(moved, F_OK), 0);
        append(&run, 4, 4.0);
        assert_ok(rk_run_dir_sync(&run));
        assert_int_equal(count_lines(&run), 4);
        rk_run_dir_fini(&run);
        rk_free(moved);
        rk_free(model);
        rk_free(hf);
        rk_free(path);
        rk_free(name);
    }
    rk_config_destroy(job);
}

/* Goal: a run that starts again from step 0 keeps no line, not even the validation of step 0, and no empty
 * export directory. */
static void test_run_dir_run_that_begins_again_keeps_nothing(void **state)
{
    struct rk_config *job = load("again");
    char *path = rk_test_temp_path("runs/begins-again"), *hf, *moved;
    struct rk_run_dir run;

    (void)state;
    assert_ok(rk_run_dir_create(&run, job, "/jobs", path, RK_RUN_DIR_NEW));
    hf = rk_path_join(path, "hf");
    moved = rk_path_join(path, "hf-1");
    for (int64_t step = 0; step <= 2; step++)
        append(&run, step, 0.5);
    assert_int_equal(mkdir(hf, 0777), 0);
    rk_run_dir_fini(&run);
    assert_ok(rk_run_dir_create(&run, job, "/jobs", path, 0));
    assert_int_equal(count_lines(&run), 0);
    assert_int_equal(run.num_steps, 0);
    assert_int_equal(access(hf, F_OK), -1);
    assert_int_equal(access(moved, F_OK), -1);
    rk_run_dir_fini(&run);
    rk_free(moved);
    rk_free(hf);
    rk_free(path);
    rk_config_destroy(job);
}

struct begin_case {
    const char *label, *save_freq, *status;
    int64_t last_step;
    bool can;
};

/* Goal: metrics are truncated only if the run can have ended before its first checkpoint was complete. */
static void test_run_dir_run_with_lost_checkpoints_does_not_begin_again(void **state)
{
    static const struct begin_case cases[] = {
        {"no checkpoints", "trainer.save_freq=-1", "failed", 1, false},
        {"no step", "trainer.save_freq=2", "failed", 0, true},
        {"the first is being written", "trainer.save_freq=2", "interrupted", 3, true},
        {"the first was complete", "trainer.save_freq=2", "failed", 4, false},
        {"at its end", "trainer.save_freq=2", "succeeded", 1, false},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        const char *const overrides[] = {"data.train_files=[\"a.jsonl\"]", cases[i].save_freq};
        char *name = rk_format("runs/begin-%zu", i), *path = rk_test_temp_path(name);
        struct rk_json *summary = rk_json_new_object();
        struct rk_config *job;
        struct rk_run_dir run;

        print_message("%s\n", cases[i].label);
        assert_ok(rk_job_load(&job, NULL, overrides, RK_ARRAY_LEN(overrides)));
        assert_ok(rk_run_dir_create(&run, job, "/jobs", path, RK_RUN_DIR_NEW));
        for (int64_t step = 0; step <= cases[i].last_step; step++)
            append(&run, step, 0.5);
        rk_json_set(summary, "status", rk_json_new_string(cases[i].status));
        assert_ok(rk_run_dir_finish(&run, summary));
        assert_int_equal(rk_run_dir_can_begin_again(path), cases[i].can);
        rk_run_dir_fini(&run);
        rk_config_destroy(job);
        rk_json_free(summary);
        rk_free(path);
        rk_free(name);
    }
}

static void test_run_dir_file_in_the_way_is_named(void **state)
{
    struct rk_config *job = load("blocked");
    char *path = rk_test_temp_path("blocked");
    char *below = rk_path_join(path, "run");
    struct rk_run_dir run;

    (void)state;
    rk_test_write_file(path, "x", 1);
    assert_message_contains(rk_run_dir_create(&run, job, "/jobs", below, RK_RUN_DIR_NEW), path);
    rk_free(below);
    rk_free(path);
    rk_config_destroy(job);
}

/* Goal: names of experiments cannot lead out of the runs directory, and two runs started in the same second
 * get two directories. */
static void test_run_dir_default_path_is_new_and_below_runs(void **state)
{
    struct rk_config *job = load("../../etc");
    struct rk_run_dir first, second;

    (void)state;
    assert_int_equal(chdir(rk_test_temp_dir()), 0);
    assert_ok(rk_run_dir_create(&first, job, "/jobs", NULL, RK_RUN_DIR_NEW));
    assert_ok(rk_run_dir_create(&second, job, "/jobs", NULL, RK_RUN_DIR_NEW));
    assert_string_not_equal(first.path, second.path);
    assert_non_null(strstr(first.path, "/runs/.._.._etc/"));
    rk_run_dir_fini(&first);
    rk_run_dir_fini(&second);
    rk_config_destroy(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run_dir_steps_are_written_at_once),
        cmocka_unit_test(test_run_dir_curve_of_examples_is_the_loss),
        cmocka_unit_test(test_run_dir_directory_with_a_run_is_refused),
        cmocka_unit_test(test_run_dir_run_without_a_step_is_written_over),
        cmocka_unit_test(test_run_dir_run_that_goes_on_has_each_step_once),
        cmocka_unit_test(test_run_dir_run_that_begins_again_keeps_nothing),
        cmocka_unit_test(test_run_dir_run_with_lost_checkpoints_does_not_begin_again),
        cmocka_unit_test(test_run_dir_file_in_the_way_is_named),
        cmocka_unit_test(test_run_dir_default_path_is_new_and_below_runs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
