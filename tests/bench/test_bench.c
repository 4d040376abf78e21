/* rankd-bench on the CPU with the shapes of a test: every benchmark runs, what it writes has the form that
 * others read, and mistakes on the command line are told. Figures are not looked at: they mean nothing here.
 */
#include "tests/support/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_json.h"
#include "base/rk_str.h"
#include "tests/support/proc.h"

#define TIMEOUT_MS 200000
#define ARGS_MAX   12

struct outcome {
    int code;
    char *out, *err;
};

static struct outcome run_bench(const char *const *args)
{
    char *program = rk_proc_program("rankd-bench");
    const char *argv[ARGS_MAX + 2] = {program};
    struct outcome outcome;
    struct rk_proc *proc;

    for (int i = 0; i < ARGS_MAX && args[i]; i++)
        argv[i + 1] = args[i];
    proc = rk_proc_start(argv);
    outcome.code = rk_proc_wait(proc, TIMEOUT_MS);
    outcome.out = rk_proc_stdout(proc);
    outcome.err = rk_proc_stderr(proc);
    rk_proc_destroy(proc);
    rk_free(program);
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
    const char *label, *args[4];
    int code;
    const char *out, *err;
} usage_cases[] = {
    {"help", {"--help"}, 0, "usage: rankd-bench", ""},
    {"version", {"--version"}, 0, "rankd-bench ", ""},
    {"list", {"--list"}, 0, "dp2_scaling_1.5b", ""},
    {"list of a group", {"--list", "decode"}, 0, "strict_overhead_decode", ""},
    {"no subcommand", {0}, 2, "", "one subcommand is expected"},
    {"unknown subcommand", {"decoding"}, 2, "", "unknown subcommand 'decoding'"},
    {"unknown option", {"--fast", "all"}, 2, "", "see rankd-bench --help"},
    {"no such file", {"--compare", "/does/not/exist", "gemm"}, 1, "", "/does/not/exist"},
    {"unknown device", {"--device", "abacus:0", "gemm"}, 1, "", "abacus"},
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

/* The fields that results/ and --compare are read by. Where less is better the percentage is the other way.
 */
static void check_row(const struct rk_json *row)
{
    static const char *const texts[] = {"name", "shape", "unit", "date", "hardware", "versions"};
    double measured = number(row, "measured"), bound = number(row, "bound");
    const char *unit = rk_json_as_string(rk_json_find(row, "unit"), "");

    for (size_t i = 0; i < RK_ARRAY_LEN(texts); i++)
        assert_true(strlen(rk_json_as_string(rk_json_find(row, texts[i]), "")) > 0);
    assert_true(isfinite(measured));
    if (isfinite(bound)) {
        double part = strcmp(unit, "GiB") == 0 ? bound / measured : measured / bound;

        assert_true(fabs(number(row, "percent_of_bound") / (100 * part) - 1) < 1e-4);
    } else {
        assert_true(rk_json_find(row, "percent_of_bound") && isnan(number(row, "percent_of_bound")));
    }
    assert_true(rk_json_find(row, "baseline") != NULL);
    assert_true(rk_json_find(row, "ratio") != NULL);
}

static void test_all_runs_and_writes_results_that_compare(void **state)
{
    static const char *const names[] = {
        "train_step_1.5b",  "fwd_bwd_7b",      "logprob_1.5b",          "logprob_7b",
        "decode_1.5b_b64",  "decode_7b_b64",   "attn_fwd_hd128",        "attn_bwd_hd128",
        "dp2_scaling_1.5b", "tp2_speedup_7b",  "strict_overhead_train", "strict_overhead_decode",
        "peak_memory_1.5b", "all_reduce_256m", "gather_params_1.5b",    "adamw_bf16",
    };
    char *first = rk_test_temp_path("first.json"), *second = rk_test_temp_path("second.json");
    struct outcome outcome =
        run_bench((const char *[ARGS_MAX]){"all", "--device", "cpu", "--tiny", "--json", first});
    struct rk_json *results, *again;
    const struct rk_json *row;

    (void)state;
    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    results = read_results(first);
    for (int64_t i = 0; i < rk_json_count(results); i++)
        check_row(rk_json_at(results, i));
    for (size_t i = 0; i < RK_ARRAY_LEN(names); i++)
        find_result(results, names[i]);

    outcome = run_bench((const char *[ARGS_MAX]){"--device", "cpu", "--tiny", "--compare", first, "--json",
                                                 second, "--filter", "attn_fwd_hd128", "attention"});
    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    again = read_results(second);
    assert_int_equal(rk_json_count(again), 1);
    row = rk_json_at(again, 0);
    assert_true(number(row, "baseline") == number(find_result(results, "attn_fwd_hd128"), "measured"));
    assert_true(fabs(number(row, "ratio") * number(row, "baseline") / number(row, "measured") - 1) < 1e-4);
    rk_json_free(results);
    rk_json_free(again);
    unlink(first);
    unlink(second);
    rk_free(first);
    rk_free(second);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_command_line_tells_what_is_wrong),
        cmocka_unit_test(test_all_runs_and_writes_results_that_compare),
        cmocka_unit_test(test_profile_prints_operators_of_a_step),
    };

    return cmocka_run_group_tests_name("bench", tests, NULL, NULL);
}
