/* The output of the loggers: event files that equal those of TensorBoard's own writer, verl's lines, the
 * console lines; and the treatment of existing files by a continued run. */
#include "rl/rk_loggers.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_time.h"
#include "base/rk_small_file.h"
#include "rl/rk_jsonl.h"
#include "rl/rk_job.h"
#include "tests/support/test.h"

#define WALL_TIME_NS 1769862896500000000 /* of make_event_file.py */
#define EVENT_PREFIX "events.out.tfevents."

static struct rk_json *parse(const char *text)
{
    struct rk_json *json;

    assert_ok(rk_json_parse(&json, text, strlen(text), "test", 0));
    return json;
}

static struct rk_config *load(const char *loggers)
{
    char *names = rk_format("trainer.logger=%s", loggers);
    const char *const overrides[] = {"data.train_files=[\"a.jsonl\"]", "trainer.experiment_name=exp", names};
    struct rk_config *job;

    assert_ok(rk_job_load(&job, NULL, overrides, RK_ARRAY_LEN(overrides)));
    rk_free(names);
    return job;
}

/* The loggers of a new run directory in the temporary directory. */
struct fixture {
    struct rk_config *job;
    char *dir;
    FILE *console;
    struct rk_loggers *loggers;
};

static struct fixture open_loggers_of(const char *names, const char *dir, bool begins_again)
{
    struct fixture f = {.job = load(names), .dir = rk_test_temp_path(dir), .console = tmpfile()};
    struct rk_logger_config config = {
        .job = f.job, .run_dir = f.dir, .console = f.console, .world_size = 2, .begins_again = begins_again};

    assert_ok(rk_make_dirs(f.dir));
    assert_ok(rk_loggers_create(&f.loggers, &config));
    return f;
}

static struct fixture open_loggers(const char *names, const char *dir)
{
    return open_loggers_of(names, dir, false);
}

static void close_loggers(struct fixture *f)
{
    rk_loggers_destroy(f->loggers);
    fclose(f->console);
    rk_config_destroy(f->job);
    rk_free(f->dir);
}

static void log_text(struct fixture *f, int64_t step, const char *metrics)
{
    struct rk_json *json = parse(metrics);

    rk_loggers_log(f->loggers, step, json);
    rk_json_free(json);
}

static char *read_in(const struct fixture *f, const char *name)
{
    char *path = rk_path_join(f->dir, name), *text = rk_test_read_file(path, NULL);

    rk_free(path);
    return text;
}

static char *read_console(const struct fixture *f)
{
    char *text = rk_calloc(1, 4096);

    rewind(f->console);
    text[fread(text, 1, 4095, f->console)] = '\0';
    return text;
}

/* --- tensorboard --- */

/* Goal: the bytes of every kind of record are those of TensorBoard's own writer. */
static void test_tb_records_equal_tensorboards_own(void **state)
{
    char *path = rk_test_fixture_path("golden/tensorboard/events.tfevents"), *expected;
    struct rk_json *metrics =
        parse("{\"training/global_step\": 300, \"critic/score/mean\": 0.1, \"none\": null, "
              "\"actor/lr\": 1e-6}");
    struct rk_json *validation = parse("{\"val-core/gsm8k/reward/mean@1\": -2.5}");
    double wall_time = (double)WALL_TIME_NS / 1e9;
    struct rk_str out = {0}, text = {0};
    size_t bytes;

    (void)state;
    expected = rk_test_read_file(path, &bytes);
    rk_str_append(&text, "# gr\u00fc\u00dfe\n\n");
    for (int i = 0; i < 20; i++)
        rk_str_append(&text, "a long text ");
    rk_tb_version(&out, wall_time);
    rk_tb_session_start(&out, wall_time, 300);
    rk_tb_scalars(&out, wall_time, 300, metrics);
    rk_tb_scalars(&out, wall_time, 0, validation);
    rk_tb_text(&out, wall_time, 300, "val/generations/text_summary", rk_str_text(&text));
    assert_int_equal(out.bytes, bytes);
    assert_memory_equal(out.text, expected, bytes);
    rk_str_fini(&text);
    rk_str_fini(&out);
    rk_json_free(validation);
    rk_json_free(metrics);
    rk_free(expected);
    rk_free(path);
}

/* The only event file of tensorboard/, whole; fails unless there are `count`. */
static char *read_events(const struct fixture *f, int count, size_t *bytes)
{
    char *dir_path = rk_path_join(f->dir, "tensorboard"), *last = NULL, *text;
    DIR *dir = opendir(dir_path);
    struct dirent *entry;
    int found = 0;

    assert_non_null(dir);
    while ((entry = readdir(dir))) {
        if (!rk_str_has_prefix(entry->d_name, EVENT_PREFIX))
            continue;
        found++;
        if (!last || strcmp(entry->d_name, last) > 0) {
            rk_free(last);
            last = rk_strdup(entry->d_name);
        }
    }
    closedir(dir);
    assert_int_equal(found, count);
    text = rk_path_join(dir_path, last);
    rk_free(last);
    last = text;
    text = rk_test_read_file(last, bytes);
    rk_free(last);
    rk_free(dir_path);
    return text;
}

/* Goal: a continued run writes a new file, which marks the steps of the older file that are void.
 */
static void test_tensorboard_continued_run_begins_a_file_that_purges(void **state)
{
    int64_t now = WALL_TIME_NS;
    struct rk_str expected = {0};
    struct rk_json *metrics = parse("{\"a\": 1}");
    struct fixture f;
    size_t bytes;
    char *text;

    (void)state;
    rk_time_inject(&now);
    f = open_loggers("[\"tensorboard\"]", "tb");
    rk_loggers_begin(f.loggers, 1, 9);
    log_text(&f, 1, "{\"a\": 1}");
    text = read_events(&f, 1, &bytes);
    rk_tb_version(&expected, (double)now / 1e9);
    rk_tb_scalars(&expected, (double)now / 1e9, 1, metrics);
    assert_int_equal(bytes, expected.bytes);
    assert_memory_equal(text, expected.text, bytes);
    rk_free(text);
    close_loggers(&f);

    now += 1000000000;
    f = open_loggers("[\"tensorboard\"]", "tb");
    rk_loggers_begin(f.loggers, 5, 9);
    log_text(&f, 5, "{\"a\": 1}");
    text = read_events(&f, 2, &bytes);
    rk_str_clear(&expected);
    rk_tb_version(&expected, (double)now / 1e9);
    rk_tb_session_start(&expected, (double)now / 1e9, 5);
    rk_tb_scalars(&expected, (double)now / 1e9, 5, metrics);
    assert_int_equal(bytes, expected.bytes);
    assert_memory_equal(text, expected.text, bytes);
    rk_free(text);
    close_loggers(&f);

    now += 1000000000;
    f = open_loggers_of("[\"tensorboard\"]", "tb", true); /* all older steps are void, step 0 too */
    rk_loggers_begin(f.loggers, 1, 9);
    text = read_events(&f, 3, &bytes);
    rk_str_clear(&expected);
    rk_tb_version(&expected, (double)now / 1e9);
    rk_tb_session_start(&expected, (double)now / 1e9, 0);
    assert_int_equal(bytes, expected.bytes);
    assert_memory_equal(text, expected.text, bytes);
    rk_free(text);
    close_loggers(&f);
    rk_time_inject(NULL);
    rk_str_fini(&expected);
    rk_json_free(metrics);
}

/* Goal: validation samples are written to the text dashboard as code, so that a model's text is not
 * interpreted as markup; other samples are not written. */
static void test_tensorboard_samples_are_text_of_validation_only(void **state)
{
    struct rk_sample sample = {.input = "1 + 1\n# is", .output = "<b>2</b>", .gts = "2", .score = 1.0};
    struct rk_samples samples = {RK_SAMPLES_TRAIN, 1, &sample};
    struct fixture f = open_loggers("[\"tensorboard\"]", "tb_samples");
    size_t bytes, without;
    char *text;

    (void)state;
    text = read_events(&f, 1, &without);
    rk_free(text);
    rk_loggers_log_samples(f.loggers, 3, &samples);
    text = read_events(&f, 1, &bytes);
    assert_int_equal(bytes, without);
    rk_free(text);
    samples.tag = RK_SAMPLES_VAL;
    rk_loggers_log_samples(f.loggers, 3, &samples);
    text = read_events(&f, 1, &bytes);
    assert_non_null(memmem(text, bytes, "val/generations/text_summary", 28));
    assert_non_null(memmem(text, bytes, "    1 + 1\n    # is\n", 19));
    assert_non_null(memmem(text, bytes, "    <b>2</b>\n", 13));
    rk_free(text);
    close_loggers(&f);
}

static void test_tensorboard_dir_of_the_environment_is_taken(void **state)
{
    char *dir = rk_test_temp_path("elsewhere/events");
    struct stat info;
    struct fixture f;

    (void)state;
    assert_int_equal(setenv("TENSORBOARD_DIR", dir, 1), 0);
    f = open_loggers("[\"tensorboard\"]", "tb_env");
    assert_int_equal(unsetenv("TENSORBOARD_DIR"), 0);
    assert_int_equal(stat(dir, &info), 0);
    close_loggers(&f);
    rk_free(dir);
}

static void test_tensorboard_directory_that_is_a_file_fails_the_opening(void **state)
{
    struct fixture f = {.job = load("[\"tensorboard\"]"), .dir = rk_test_temp_path("tb_file")};
    char *blocked = rk_path_join(f.dir, "tensorboard");
    struct rk_logger_config config = {.job = f.job, .run_dir = f.dir};

    (void)state;
    assert_ok(rk_make_dirs(f.dir));
    rk_test_write_file(blocked, "x", 1);
    assert_fails(rk_loggers_create(&f.loggers, &config), RK_INVALID_ARGUMENT, blocked);
    assert_null(f.loggers);
    rk_config_destroy(f.job);
    rk_free(blocked);
    rk_free(f.dir);
}

/* --- file --- */

/* Goal: verl's lines; a continued run keeps the steps before its first step, a new run keeps nothing. */
static void test_file_lines_are_verls_and_each_step_once(void **state)
{
    struct fixture f = open_loggers("[\"file\"]", "file");
    char *text;

    (void)state;
    rk_loggers_begin(f.loggers, 1, 3);
    log_text(&f, 0, "{\"val\": 0.5}");
    for (int64_t step = 1; step <= 3; step++)
        log_text(&f, step, "{\"a/b\": 1.5, \"c\": null}");
    close_loggers(&f);
    f = open_loggers("[\"file\"]", "file");
    rk_loggers_begin(f.loggers, 2, 3);
    log_text(&f, 2, "{\"a/b\": 2.5}");
    text = read_in(&f, "log.jsonl");
    assert_string_equal(text, "{\"step\": 0, \"data\": {\"val\":0.5}}\n"
                              "{\"step\": 1, \"data\": {\"a/b\":1.5,\"c\":null}}\n"
                              "{\"step\": 2, \"data\": {\"a/b\":2.5}}\n");
    rk_free(text);
    close_loggers(&f);
    f = open_loggers("[\"file\"]", "file");
    rk_loggers_begin(f.loggers, 1, 3);
    text = read_in(&f, "log.jsonl");
    assert_string_equal(text, "");
    rk_free(text);
    close_loggers(&f);
}

static void test_file_path_of_verls_environment_is_taken(void **state)
{
    char *root = rk_test_temp_path("verl"), *path = rk_test_temp_path("verl/rankd/exp.jsonl"), *text;
    struct fixture f;

    (void)state;
    assert_int_equal(setenv("VERL_FILE_LOGGER_ROOT", root, 1), 0);
    f = open_loggers("[\"file\"]", "file_env");
    assert_int_equal(unsetenv("VERL_FILE_LOGGER_ROOT"), 0);
    log_text(&f, 1, "{}");
    text = rk_test_read_file(path, NULL);
    assert_string_equal(text, "{\"step\": 1, \"data\": {}}\n");
    close_loggers(&f);
    rk_free(text);
    rk_free(path);
    rk_free(root);
}

/* --- continued JSON Lines files --- */

struct cut_case {
    const char *label, *before, *after;
    int64_t first;
};

static const struct cut_case cuts[] = {
    {"in the middle", "{\"s\": 1}\n{\"s\": 2}\n{\"s\": 3}\n", "{\"s\": 1}\n", 2},
    {"behind the end", "{\"s\": 1}\n{\"s\": 2}\n", "{\"s\": 1}\n{\"s\": 2}\n", 3},
    {"all", "{\"s\": 1}\n{\"s\": 2}\n", "", 1},
    {"a torn line", "{\"s\": 1}\n{\"s\": 2, \"a", "{\"s\": 1}\n", 9},
    {"nothing there", "", "", 9},
};

static void test_jsonl_cut_removes_later_lines(void **state)
{
    char *path = rk_test_temp_path("cut.jsonl");

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cuts); i++) {
        char *text;

        print_message("%s\n", cuts[i].label);
        rk_test_write_file(path, cuts[i].before, strlen(cuts[i].before));
        assert_ok(rk_jsonl_cut(path, "s", cuts[i].first));
        text = rk_test_read_file(path, NULL);
        assert_string_equal(text, cuts[i].after);
        rk_free(text);
    }
    rk_test_write_file(path, "{\"s\": 1}\nbroken\n", 16);
    assert_fails(rk_jsonl_cut(path, "s", 9), RK_INVALID_ARGUMENT, "cut.jsonl:2");
    rk_free(path);
    path = rk_test_temp_path("no such file");
    assert_ok(rk_jsonl_cut(path, "s", 1));
    rk_free(path);
}

/* --- console --- */

static void test_console_prints_a_line_a_step_and_the_means_of_validation(void **state)
{
    struct fixture f = open_loggers("[\"console\"]", "console");
    char *text;

    (void)state;
    rk_loggers_begin(f.loggers, 1, 2);
    log_text(&f, 0, "{\"val-core/gsm8k/reward/mean@4\": 0.125, \"val-aux/gsm8k/reward/std@4\": 0.5}");
    /* data_source is the text of a row: it must not move the cursor, nor forge lines. */
    log_text(&f, 0, "{\"val-core/a\\nstep 9  reward 1\\u001b[2J/reward/mean@4\": 0.5}");
    rk_loggers_phase(f.loggers, "generate");
    rk_loggers_progress(f.loggers, 1, 2);
    log_text(&f, 1, "{\"critic/score/mean\": 0.25, \"perf/throughput\": 100}");
    text = read_console(&f);
    assert_non_null(strstr(text, "step 0  val-core/gsm8k/reward/mean@4 0.1250\n"));
    assert_null(strstr(text, "std@4"));
    assert_non_null(strstr(text, "step 0  val-core/a\\x0astep 9  reward 1\\x1b[2J/reward/mean@4 0.5000\n"));
    assert_null(strchr(text, '\033'));
    assert_non_null(strstr(text, "step 1/2  reward 0.2500  200 tok/s"));
    rk_free(text);
    close_loggers(&f);
}

/* Goal: a logger that cannot write warns without failing the run, and the others continue. */
static void test_loggers_one_that_fails_leaves_the_others_alone(void **state)
{
    struct fixture f;
    char *text;

    (void)state;
    assert_int_equal(setenv("VERL_FILE_LOGGER_PATH", "/dev/full", 1), 0);
    f = open_loggers("[\"file\", \"console\"]", "failing");
    assert_int_equal(unsetenv("VERL_FILE_LOGGER_PATH"), 0);
    log_text(&f, 1, "{\"critic/score/mean\": 0.5}");
    text = read_console(&f);
    assert_non_null(strstr(text, "step 1/0  reward 0.5000"));
    rk_free(text);
    close_loggers(&f);
}

/* --- trackers with a Python package, of which tests/unit/rl/trackers has stand-ins --- */

/* Opens the loggers with these stand-ins. fails: the call that raises; "": none. */
static struct fixture open_trackers(const char *names, const char *dir, const char *fails)
{
    char *log = rk_test_temp_path("tracker.log");
    struct fixture f;

    unlink(log);
    assert_int_equal(setenv("PYTHONPATH", RK_TEST_TRACKERS, 1), 0);
    assert_int_equal(setenv("PYTHONDONTWRITEBYTECODE", "1", 1), 0);
    assert_int_equal(setenv("TRACKER_LOG", log, 1), 0);
    assert_int_equal(setenv("TRACKER_FAILS", fails, 1), 0);
    f = open_loggers(names, dir);
    rk_free(log);
    return f;
}

/* The calls that the package got, closing the loggers first. rk_free it. */
static char *close_trackers(struct fixture *f, const char *outcome)
{
    char *log = rk_test_temp_path("tracker.log"), *text;

    rk_loggers_finish(f->loggers, outcome);
    close_loggers(f);
    text = access(log, F_OK) == 0 ? rk_test_read_file(log, NULL) : rk_strdup("");
    rk_free(log);
    return text;
}

/* Goal: every tracker gets project, experiment, numbers (null is left out), samples and the outcome, in its
 * own calls. */
static void test_trackers_get_the_run_as_their_packages_take_it(void **state)
{
    static const struct {
        const char *name, *calls[5];
    } cases[] = {
        {"wandb",
         {"[\"wandb.init\", [], {\"project\": \"rankd\", \"name\": \"exp\", \"id\": \"exp-tracker\"",
          "[\"wandb.init.log\", [{\"actor/lr\": 1e-06, \"x@1\": 2}], {\"step\": 1}]",
          "[\"wandb.Table\", [], {\"columns\": [\"step\", \"input\", \"output\", \"gts\", \"score\"], "
          "\"data\": [[1, \"2+2?\", \"4\", \"4\", 1.0]]}]",
          "[\"wandb.init.log\", [{\"val/generations\": \"wandb.Table\"}], {\"step\": 1}]",
          "[\"wandb.init.finish\", [], {\"exit_code\": 0}]"}},
        {"mlflow",
         {"[\"mlflow.set_experiment\", [\"rankd\"], {}]",
          "[\"mlflow.start_run\", [], {\"run_name\": \"exp\"}]",
          "[\"mlflow.log_metrics\", [{\"actor/lr\": 1e-06, \"x_at_1\": 2}], {\"step\": 1}]",
          "\"val/generations/1.json\"], {}]", "[\"mlflow.end_run\", [\"FINISHED\"], {}]"}},
        {"swanlab",
         {"[\"swanlab.init\", [], {\"project\": \"rankd\", \"experiment_name\": \"exp\"",
          "\"mode\": \"cloud\"}]", "[\"swanlab.log\", [{\"actor/lr\": 1e-06, \"x@1\": 2}], {\"step\": 1}]",
          "[\"swanlab.Text\", [\"2+2?\\n\\n4\"], {\"caption\": \"1.0\"}]", "[\"swanlab.finish\", [], {}]"}},
        {"trackio",
         {"[\"trackio.init\", [], {\"project\": \"rankd\", \"name\": \"exp\"", "\"algorithm\"", /* the job */
          "[\"trackio.log\", [{\"actor/lr\": 1e-06, \"x@1\": 2}], {\"step\": 1}]",
          "[\"trackio.finish\", [], {}]"}},
    };
    static const struct rk_sample sample = {.input = "2+2?", .output = "4", .gts = "4", .score = 1.0};
    static const struct rk_samples samples = {.tag = RK_SAMPLES_VAL, .count = 1, .items = &sample};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct fixture f = open_trackers(cases[i].name, "tracker", "");
        char *text;

        log_text(&f, 1, "{\"actor/lr\": 1e-6, \"none\": null, \"x@1\": 2}");
        rk_loggers_log_samples(f.loggers, 1, &samples);
        text = close_trackers(&f, "succeeded");
        for (size_t j = 0; j < RK_ARRAY_LEN(cases[i].calls) && cases[i].calls[j]; j++) {
            if (!strstr(text, cases[i].calls[j]))
                fail_msg("%s: no call %s in:\n%s", cases[i].name, cases[i].calls[j], text);
        }
        rk_free(text);
    }
}

/* Goal: without the package or its server the run has TensorBoard's files, once. */
static void test_tracker_that_cannot_be_opened_becomes_tensorboard(void **state)
{
    struct fixture f = open_trackers("[wandb, mlflow]", "no_tracker", "wandb.init");
    char *tensorboard = rk_path_join(f.dir, "tensorboard"), *text;

    (void)state;
    assert_int_equal(access(tensorboard, F_OK), 0);
    log_text(&f, 1, "{\"x\": 1}");
    text = close_trackers(&f, "failed");
    assert_null(strstr(text, "[\"wandb."));
    assert_non_null(strstr(text, "[\"mlflow.end_run\", [\"FAILED\"], {}]"));
    rk_free(text);
    rk_free(tensorboard);
}

/* Goal: a tracker that ends in the middle of a run does not hold up the run or end it. */
static void test_tracker_that_ends_leaves_the_run_alone(void **state)
{
    struct fixture f = open_trackers("[wandb, console]", "ended_tracker", "wandb.init.log");
    char *text;

    (void)state;
    for (int64_t step = 1; step <= 50; step++)
        log_text(&f, step, "{\"critic/score/mean\": 0.5}");
    text = read_console(&f);
    assert_non_null(strstr(text, "step 50/0  reward 0.5000"));
    rk_free(text);
    text = close_trackers(&f, "succeeded");
    assert_null(strstr(text, "finish"));
    rk_free(text);
}

static void test_logger_table_names_advice_and_rows(void **state)
{
    static const char *const rows[] = {"console", "file",    "tensorboard", "wandb",
                                       "mlflow",  "swanlab", "trackio"};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        assert_string_equal(rk_logger_find(rows[i])->name, rows[i]);
        assert_non_null(strstr(rk_logger_names(), rows[i]));
        assert_null(rk_logger_advice(rows[i]));
    }
    assert_null(rk_logger_find("clearml"));
    assert_non_null(strstr(rk_logger_advice("clearml"), "tensorboard"));
    assert_null(rk_logger_advice("unheard of"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tb_records_equal_tensorboards_own),
        cmocka_unit_test(test_tensorboard_continued_run_begins_a_file_that_purges),
        cmocka_unit_test(test_tensorboard_samples_are_text_of_validation_only),
        cmocka_unit_test(test_tensorboard_dir_of_the_environment_is_taken),
        cmocka_unit_test(test_tensorboard_directory_that_is_a_file_fails_the_opening),
        cmocka_unit_test(test_file_lines_are_verls_and_each_step_once),
        cmocka_unit_test(test_file_path_of_verls_environment_is_taken),
        cmocka_unit_test(test_jsonl_cut_removes_later_lines),
        cmocka_unit_test(test_console_prints_a_line_a_step_and_the_means_of_validation),
        cmocka_unit_test(test_loggers_one_that_fails_leaves_the_others_alone),
        cmocka_unit_test(test_trackers_get_the_run_as_their_packages_take_it),
        cmocka_unit_test(test_tracker_that_cannot_be_opened_becomes_tensorboard),
        cmocka_unit_test(test_tracker_that_ends_leaves_the_run_alone),
        cmocka_unit_test(test_logger_table_names_advice_and_rows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
