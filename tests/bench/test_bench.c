/* rankd-bench on the CPU with --tiny: every benchmark runs, its output has the documented format, and invalid
 * command lines are errors. Figures are not checked: they are meaningless for tiny shapes.
 */
#include "tests/support/test.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_json.h"
#include "base/rk_str.h"
#include "base/rk_time.h"
#include "tests/support/proc.h"

#define TIMEOUT_MS 200000
#define ARGS_MAX   12
#define POLL_MS    5

struct outcome {
    int code;
    char *out, *err;
};

static struct rk_proc *start_bench(const char *const *args)
{
    char *program = rk_proc_program("rankd-bench");
    const char *argv[ARGS_MAX + 2] = {program};
    struct rk_proc *proc;

    for (int i = 0; i < ARGS_MAX && args[i]; i++)
        argv[i + 1] = args[i];
    proc = rk_proc_start(argv);
    rk_free(program);
    return proc;
}

static struct outcome run_bench(const char *const *args)
{
    struct rk_proc *proc = start_bench(args);
    struct outcome outcome = {.code = rk_proc_wait(proc, TIMEOUT_MS)};

    outcome.out = rk_proc_stdout(proc);
    outcome.err = rk_proc_stderr(proc);
    rk_proc_destroy(proc);
    return outcome;
}

static void outcome_fini(struct outcome *outcome)
{
    rk_free(outcome->out);
    rk_free(outcome->err);
}

static void assert_exit(const struct outcome *outcome, int code)
{
    if (outcome->code != code)
        fail_msg("exit code %d, expected %d\n%s\n%s", outcome->code, code, outcome->out, outcome->err);
}

static void assert_has(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("'%s' is not in:\n%s", part, text);
}

static const struct usage_case {
    const char *label, *args[6];
    int code;
    const char *out, *err;
} usage_cases[] = {
    {"help", {"--help"}, 0, "usage: rankd-bench", ""},
    {"version", {"--version"}, 0, "rankd-bench ", ""},
    {"list", {"--list"}, 0, "dp2_scaling_1.5b", ""},
    {"list of a group", {"--list", "decode"}, 0, "strict_overhead_decode", ""},
    {"no subcommand", {0}, 2, "", "subcommand"},
    {"unknown subcommand", {"decoding"}, 2, "", "unknown subcommand 'decoding'"},
    {"unknown option", {"--fast", "all"}, 2, "", "unknown option --fast; did you mean --list?"},
    {"misspelled option", {"--filtre=a", "all"}, 2, "", "unknown option --filtre; did you mean --filter?"},
    {"option without its value", {"all", "--device"}, 2, "", "--device needs a value (NAME)"},
    {"option given twice", {"all", "--json=a", "--json=b"}, 2, "", "--json is given twice"},
    {"two subcommands", {"gemm", "comm"}, 2, "", "unexpected argument 'comm'"},
    {"no such benchmark", {"all", "--filter", "tpyo"}, 2, "", "no benchmark's name contains 'tpyo'"},
    {"none of that group", {"comm", "--filter", "gemm"}, 2, "", "no benchmark's name contains 'gemm'"},
    {"no such file", {"--compare", "/does/not/exist", "gemm"}, 2, "", "/does/not/exist"},
    {"no such folder", {"--json", "/does/not/exist", "gemm"}, 2, "", "cannot create files in /does/not/"},
    {"no file", {"--json", "/dev/null", "gemm"}, 2, "", "--json /dev/null: "},
    {"unknown device", {"--device", "abacus:0", "gemm"}, 1, "", "abacus"},
    {"no name", {"--device", "", "gemm"}, 1, "", "device '': expected NAME or NAME:INDEX"},
};

static void test_command_line_tells_what_is_wrong(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(usage_cases); i++) {
        struct outcome outcome = run_bench(usage_cases[i].args);

        print_message("%s\n", usage_cases[i].label);
        assert_exit(&outcome, usage_cases[i].code);
        assert_has(outcome.out, usage_cases[i].out);
        assert_has(outcome.err, usage_cases[i].err);
        outcome_fini(&outcome);
    }
}

/* Goal: an error that prevents all benchmarks is printed once, with a hint, also with several ranks. */
static void test_missing_device_is_told_once(void **state)
{
    static const char *const groups[] = {"gemm", "comm"};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(groups); i++) {
        struct outcome outcome = run_bench((const char *[ARGS_MAX]){"--device", "abacus:0", groups[i]});
        const char *end = strchr(outcome.err, '\n');

        assert_exit(&outcome, 1);
        assert_has(outcome.err, "the plug-in of device 'abacus' is not installed");
        assert_has(outcome.err, "--device cpu");
        assert_true(end && end[1] == '\0');
        assert_string_equal(outcome.out, "");
        outcome_fini(&outcome);
    }
}

/* Goal: if only the devices of other ranks are missing, benchmarks of several ranks are skipped. Method: in
 * the fake plug-in (tests/unit/engine/fake_plugin.h) device 99 opens and 100 does not. */
static void test_too_few_devices_skip(void **state)
{
    static const char plugin[] = RK_TEST_BINARY_DIR "/tests/librankd_fake.so";
    struct outcome outcome =
        run_bench((const char *[ARGS_MAX]){"comm", "--tiny", "--plugin", plugin, "--device", "fake:99"});

    (void)state;
    assert_exit(&outcome, 0);
    assert_has(outcome.out, "skipped: needs 2 devices");
    assert_string_equal(outcome.err, "");
    outcome_fini(&outcome);
    outcome =
        run_bench((const char *[ARGS_MAX]){"comm", "--tiny", "--plugin", plugin, "--device", "fake:100"});
    assert_exit(&outcome, 1);
    assert_has(outcome.err, "rankd-bench: opening device 'fake:100': no driver for fakes");
    outcome_fini(&outcome);
}

static void test_output_that_does_not_arrive_fails(void **state)
{
    static const char *const commands[] = {"--help", "--version", "--list",
                                           "--device cpu --tiny --filter kv_write all"};
    char *program = rk_proc_program("rankd-bench");

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(commands); i++) {
        char *line = rk_format("%s %s > /dev/full", program, commands[i]);
        struct rk_proc *proc = rk_proc_start((const char *[]){"/bin/sh", "-c", line, NULL});
        int code = rk_proc_wait(proc, TIMEOUT_MS);
        char *err = rk_proc_stderr(proc);

        assert_int_equal(code, 1);
        assert_has(err, "cannot write to standard output");
        rk_free(err);
        rk_proc_destroy(proc);
        rk_free(line);
    }
    rk_free(program);
}

static struct rk_json *read_results(const char *path)
{
    struct rk_json *results;

    assert_ok(rk_json_parse_file(&results, path, 1 << 22, 0));
    assert_int_equal(rk_json_type(results), RK_JSON_ARRAY);
    return results;
}

static const struct rk_json *find_result(const struct rk_json *results, const char *name)
{
    for (int64_t i = 0; i < rk_json_count(results); i++) {
        const struct rk_json *row = rk_json_at(results, i);

        if (strcmp(rk_json_as_string(rk_json_find(row, "name"), ""), name) == 0)
            return row;
    }
    fail_msg("no result %s", name);
    return NULL;
}

static double number(const struct rk_json *row, const char *key)
{
    return rk_json_as_real(rk_json_find(row, key), NAN);
}

/* The fields that results/ and --compare use. For figures where less is better the percentage is inverted. */
static void check_row(const struct rk_json *row)
{
    static const char *const texts[] = {"name", "shape", "unit", "date", "hardware", "versions"};
    double measured = number(row, "measured"), bound = number(row, "bound");
    const char *unit = rk_json_as_string(rk_json_find(row, "unit"), "");

    for (size_t i = 0; i < RK_ARRAY_LEN(texts); i++)
        assert_true(strlen(rk_json_as_string(rk_json_find(row, texts[i]), "")) > 0);
    assert_true(isfinite(measured));
    if (isfinite(bound)) {
        bool is_less_better = strcmp(unit, "GiB") == 0 || strcmp(unit, "us") == 0;
        double part = is_less_better ? bound / measured : measured / bound;

        assert_true(fabs(number(row, "percent_of_bound") / (100 * part) - 1) < 1e-4);
    } else {
        assert_true(rk_json_find(row, "percent_of_bound") && isnan(number(row, "percent_of_bound")));
    }
    assert_true(rk_json_find(row, "baseline") != NULL);
    assert_true(rk_json_find(row, "ratio") != NULL);
}

static const char *note_of(const struct rk_json *results, const char *name)
{
    return rk_json_as_string(rk_json_find(find_result(results, name), "note"), "");
}

/* Bytes that the ranks received from one another, from the beginning of the note. */
static double moved_bytes(const struct rk_json *results, const char *name)
{
    const char *note = note_of(results, name);

    assert_has(note, " bytes between ranks");
    return strtod(note, NULL);
}

/* Figures that do not depend on the shape's size. With sequence parallelism a layer saves as many bytes as
 * computed. Every stage was timed alone, which the ideal time needs. Ranks receive only missing weights:
 * nothing between equal layouts, three quarters of the model each with pp=4, one quarter with tp=2 pp=2,
 * except for norms, which all tp ranks hold. */
static void check_layouts(const struct rk_json *results)
{
    const char *kept = strstr(note_of(results, "sp_7b_tp2"), "MB, ");
    double ratio;

    assert_non_null(kept);
    ratio = strtod(kept + strlen("MB, "), NULL);
    assert_true(ratio > 0.95 && ratio < 1.05);
    assert_true(number(find_result(results, "pp_7b_pp2"), "bound") > 0);
    assert_true(number(find_result(results, "pp_7b_pp4"), "bound") > 0);
    assert_true(isfinite(number(find_result(results, "vpp_8b_pp4"), "measured")));
    assert_true(number(find_result(results, "rpc_dispatch_8"), "measured") > 0);
    assert_true(number(find_result(results, "rpc_stream_tcp"), "bound") > 0);
    assert_true(moved_bytes(results, "update_weights_7b_tp2_to_tp2") == 0);
    assert_true(moved_bytes(results, "update_weights_7b_tp4_to_tp4") == 0);
    ratio = moved_bytes(results, "update_weights_7b_pp4_to_dp4") /
            moved_bytes(results, "update_weights_7b_tp2pp2_to_tp2");
    assert_true(ratio > 2.95 && ratio < 3.05);
}

static void test_all_runs_and_writes_results_that_compare(void **state)
{
    static const char *const names[] = {
        "train_step_1.5b",
        "fwd_bwd_7b",
        "logprob_1.5b",
        "logprob_7b",
        "decode_1.5b_b64",
        "decode_7b_b64",
        "attn_fwd_hd128",
        "attn_bwd_hd128",
        "dp2_scaling_1.5b",
        "tp2_speedup_7b",
        "strict_overhead_train",
        "strict_overhead_decode",
        "peak_memory_1.5b",
        "all_reduce_256m",
        "gather_params_1.5b",
        "adamw_bf16",
        "strict_overhead_decode_7b",
        "ckpt_stall_1.5b",
        "ckpt_save_1.5b",
        "ckpt_load_1.5b",
        "load_hf_1.5b",
        "load_hf_7b",
        "dp_1.5b_dp4",
        "cp_1.5b_cp2",
        "step_7b_tp2pp2",
        "step_7b_dp2tp2",
    };
    char *first = rk_test_temp_path("first.json"), *second = rk_test_temp_path("second.json");
    struct outcome outcome =
        run_bench((const char *[ARGS_MAX]){"all", "--device", "cpu", "--tiny", "--json", first});
    struct rk_json *results, *again;
    const struct rk_json *row;

    (void)state;
    assert_exit(&outcome, 0);
    assert_has(outcome.out, "\nceilings: none"); /* a percentage of the bounds would be misleading */
    outcome_fini(&outcome);
    results = read_results(first);
    for (int64_t i = 0; i < rk_json_count(results); i++)
        check_row(rk_json_at(results, i));
    for (size_t i = 0; i < RK_ARRAY_LEN(names); i++)
        find_result(results, names[i]);

    check_layouts(results);

    outcome = run_bench((const char *[ARGS_MAX]){"--device", "cpu", "--tiny", "--compare", first, "--json",
                                                 second, "--filter", "attn_fwd_hd64", "attention"});
    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    again = read_results(second);
    assert_int_equal(rk_json_count(again), 1);
    row = rk_json_at(again, 0);
    assert_true(number(row, "baseline") == number(find_result(results, "attn_fwd_hd64"), "measured"));
    assert_true(fabs(number(row, "ratio") * number(row, "baseline") / number(row, "measured") - 1) < 1e-4);
    rk_json_free(results);
    rk_json_free(again);
    unlink(first);
    unlink(second);
    rk_free(first);
    rk_free(second);
}

/* Goal: a file of results is replaced only by a run with results. */
static void test_results_outlive_a_run_that_has_none(void **state)
{
    static const char content[] = "[{\"name\": \"gemm_8192\", \"measured\": 1.5}]\n";
    char *path = rk_test_temp_path("kept.json");
    const char *const runs[][ARGS_MAX] = {
        {"all", "--device", "abacus:0", "--json", path},
        {"all", "--device", "cpu", "--filter", "tpyo", "--json", path},
        {"all", "--device", "cpu", "--compare", "/does/not/exist", "--json", path},
    };

    (void)state;
    rk_test_write_file(path, content, strlen(content));
    for (size_t i = 0; i < RK_ARRAY_LEN(runs); i++) {
        struct outcome outcome = run_bench(runs[i]);
        size_t bytes;
        char *text;

        assert_true(outcome.code != 0);
        text = rk_test_read_file(path, &bytes);
        assert_string_equal(text, content);
        rk_free(text);
        outcome_fini(&outcome);
    }
    unlink(path);
    rk_free(path);
}

/* Goal: a full disk ends the run, and earlier results stay intact. Method: a file size limit of a few
 * results. */
static void test_results_that_cannot_be_kept_end_the_run(void **state)
{
    char *program = rk_proc_program("rankd-bench"), *path = rk_test_temp_path("full.json"), *line, *err;
    struct rk_json *results;
    struct rk_proc *proc;

    (void)state;
    line = rk_format("ulimit -f 4; exec %s all --device cpu --tiny --json %s >/dev/null", program, path);
    proc = rk_proc_start((const char *[]){"/bin/sh", "-c", line, NULL});
    assert_int_equal(rk_proc_wait(proc, TIMEOUT_MS), 1);
    err = rk_proc_stderr(proc);
    assert_has(err, "full.json': File too large");
    results = read_results(path);
    find_result(results, "gemm_8192");
    assert_true(rk_json_count(results) < 12);
    rk_json_free(results);
    rk_free(err);
    rk_proc_destroy(proc);
    rk_free(line);
    unlink(path);
    rk_free(path);
    rk_free(program);
}

static pid_t child_of(const struct rk_proc *proc)
{
    char *path = rk_format("/proc/%d/task/%d/children", (int)rk_proc_pid(proc), (int)rk_proc_pid(proc));
    size_t bytes;
    char *text = rk_test_read_file(path, &bytes);
    pid_t child = (pid_t)strtol(text, NULL, 10);

    rk_free(text);
    rk_free(path);
    assert_true(child > 0);
    return child;
}

/* Whether the process is gone, or a zombie that is not reaped yet. */
static bool is_gone(pid_t pid)
{
    char *path = rk_format("/proc/%d/stat", (int)pid), line[256] = "";
    FILE *file = fopen(path, "r");
    const char *name_end;

    rk_free(path);
    if (!file)
        return true;
    if (!fgets(line, sizeof(line), file))
        line[0] = '\0';
    fclose(file);
    name_end = strrchr(line, ')');
    return !name_end || name_end[2] == 'Z';
}

/* Goal: a stopped run keeps its results and leaves no process. */
static void test_stopped_run_leaves_results_and_no_process(void **state)
{
    static const int signals[] = {SIGTERM, SIGKILL};
    char *path = rk_test_temp_path("stopped.json");

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(signals); i++) {
        struct rk_proc *proc =
            start_bench((const char *[ARGS_MAX]){"train", "--device", "cpu", "--json", path, "--tiny"});
        int64_t begin = rk_time_now_ns();
        struct rk_json *results;
        pid_t child;

        rk_proc_wait_output(proc, "\ntrain_step_1.5b ", TIMEOUT_MS);
        child = child_of(proc);
        rk_proc_signal(proc, signals[i]);
        assert_int_equal(rk_proc_wait(proc, TIMEOUT_MS), -signals[i]);
        while (!is_gone(child)) {
            assert_true(rk_time_now_ns() - begin < TIMEOUT_MS * (int64_t)1000000);
            rk_time_sleep_ms(POLL_MS);
        }
        results = read_results(path);
        find_result(results, "train_step_1.5b");
        rk_json_free(results);
        rk_proc_destroy(proc);
        unlink(path);
    }
    rk_free(path);
}

static void test_compare_names_what_is_no_benchmark(void **state)
{
    static const char content[] = "[{\"name\": \"gemm_tpyo\", \"measured\": 1.5}]\n";
    char *path = rk_test_temp_path("baseline.json");
    struct outcome outcome;

    (void)state;
    rk_test_write_file(path, content, strlen(content));
    outcome = run_bench((const char *[ARGS_MAX]){"--device", "cpu", "--tiny", "--compare", path, "--filter",
                                                 "kv_write", "all"});
    assert_exit(&outcome, 0);
    assert_has(outcome.err, "'gemm_tpyo'");
    outcome_fini(&outcome);
    unlink(path);
    rk_free(path);

    /* A figure without a device is compared with the figure on this device. */
    outcome = run_bench(
        (const char *[ARGS_MAX]){"--device", "cpu", "--tiny", "--filter", "kv_write", "all", "--compare",
                                 RK_TEST_SOURCE_DIR "/bench/results/2026-11-20-h200-pytorch.json"});
    assert_exit(&outcome, 0);
    assert_string_equal(outcome.err, "");
    outcome_fini(&outcome);
}

static void test_profile_prints_operators_of_a_step(void **state)
{
    struct outcome outcome = run_bench((const char *[ARGS_MAX]){"--device", "cpu", "--tiny", "--profile",
                                                                "--filter", "train_step", "train"});

    (void)state;
    assert_exit(&outcome, 0);
    assert_has(outcome.out, "profile of train_step_1.5b");
    assert_has(outcome.out, "attn_varlen_bwd");
    assert_has(outcome.out, "adamw");
    assert_has(outcome.out, "synchronisations");
    outcome_fini(&outcome);
}

/* Goal: with --profile, too, the steps of a schedule are timed by events of the device. */
static void test_profile_of_a_pipeline(void **state)
{
    struct outcome outcome = run_bench((const char *[ARGS_MAX]){"--device", "cpu", "--tiny", "--profile",
                                                                "--filter", "vpp_8b_pp2", "train"});

    (void)state;
    assert_exit(&outcome, 0);
    assert_has(outcome.out, "profile of vpp_8b_pp2");
    assert_has(outcome.out, "% faster");
    outcome_fini(&outcome);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_command_line_tells_what_is_wrong),
        cmocka_unit_test(test_missing_device_is_told_once),
        cmocka_unit_test(test_too_few_devices_skip),
        cmocka_unit_test(test_output_that_does_not_arrive_fails),
        cmocka_unit_test(test_all_runs_and_writes_results_that_compare),
        cmocka_unit_test(test_results_outlive_a_run_that_has_none),
        cmocka_unit_test(test_results_that_cannot_be_kept_end_the_run),
        cmocka_unit_test(test_stopped_run_leaves_results_and_no_process),
        cmocka_unit_test(test_compare_names_what_is_no_benchmark),
        cmocka_unit_test(test_profile_prints_operators_of_a_step),
        cmocka_unit_test(test_profile_of_a_pipeline),
    };

    return cmocka_run_group_tests_name("bench", tests, NULL, NULL);
}
