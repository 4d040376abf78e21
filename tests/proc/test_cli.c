/* rankctl's command line: output, and the exit codes 0 to 4 for every kind of error. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "base/rk_time.h"
#include "tests/proc/cli_fixture.h"

#define NOBODY   "unix:/does/not/exist.sock"
#define ARGS_MAX 10

struct cli_case {
    const char *label;
    const char *args[ARGS_MAX];
    int code;
    const char *out, *err; /* parts of the output; NULL: the stream must be empty */
};

static const struct cli_case cases[] = {
    {"nothing", {0}, 2, NULL, "usage: rankctl COMMAND"},
    {"help", {"--help"}, 0, "usage: rankctl COMMAND", NULL},
    {"unknown command", {"runn"}, 2, NULL, "did you mean 'run'?"},
    {"help of run", {"run", "--help"}, 0, "actor_rollout_ref.actor.clip_ratio", NULL},
    {"help of status", {"status", "-h"}, 0, "usage: rankctl status", NULL},
    {"help of call", {"call", "--help"}, 0, "--opt=KEY=VALUE", NULL},
    {"help of describe", {"describe", "--help"}, 0, "METHOD", NULL},
    {"help of shutdown", {"shutdown", "--help"}, 0, "--yes", NULL},
    {"version", {"version"}, 0, "rankctl ", NULL},
    {"version as a flag", {"--version"}, 0, "rankctl ", NULL},
    {"version as JSON", {"version", "--output=json"}, 0, "\"apiVersion\": \"rankctl/v1\"", NULL},
    {"unknown option", {"status", "--host=a:1"}, 2, NULL, "unknown option --host; did you mean --hosts?"},
    {"option without its value", {"status", "--hosts"}, 2, NULL, "--hosts needs a value"},
    {"option given twice",
     {"status", "--hosts", NOBODY, "--hosts=unix:/nor/here"},
     2,
     NULL,
     "rankctl status: --hosts is given twice"},
    {"flag with a value", {"shutdown", "--yes=1", "--hosts", NOBODY}, 2, NULL, "--yes takes no value"},
    {"unknown form of output",
     {"status", "--output=xml", "--hosts", NOBODY},
     2,
     NULL,
     "expected table or json"},
    {"too many arguments", {"status", "now"}, 2, NULL, "unexpected argument 'now'"},
    {"too few arguments", {"describe"}, 2, NULL, "too few arguments"},

    {"compiled methods", {"methods"}, 0, "generate_sequences", NULL},
    {"compiled methods as JSON",
     {"methods", "--output=json"},
     0,
     "\"dispatch\": \"ND_COMPUTE(rollout)\"",
     NULL},
    {"one method", {"describe", "update_actor"}, 0, "clip_ratio_high", NULL},
    {"one method as JSON",
     {"describe", "update_actor", "--output=json"},
     0,
     "\"name\": \"old_log_probs\"",
     NULL},
    {"method of a role", {"describe", "actor.update_actor"}, 0, "clip_ratio_high", NULL},
    {"method of a role that lacks it",
     {"describe", "ref.update_actor"},
     2,
     NULL,
     "role 'ref' has no method update_actor, expected one of actor.update_actor"},
    {"alias of a method", {"methods"}, 0, "train_batch,train_mini_batch", NULL},
    {"alias with its role", {"describe", "critic.train_batch"}, 0, "update_critic: value update", NULL},
    {"method with its aliases", {"describe", "compute_values"}, 0, "aliases: infer_batch", NULL},
    {"alias without a role",
     {"describe", "train_batch"},
     2,
     NULL,
     "'train_batch' is an alias of several methods, expected one of actor.update_actor, "
     "critic.update_critic"},
    {"alias of a role that lacks it",
     {"describe", "rollout.train_batch"},
     2,
     NULL,
     "role 'rollout' has no method train_batch, expected one of actor.update_actor, critic.update_critic"},
    {"unknown method", {"describe", "update_actors"}, 2, NULL, "unknown method 'update_actors'"},
    {"unknown method of a role", {"describe", "actor.update"}, 2, NULL, "unknown method 'update'"},

    {"a good job", {"config", "check", TINY_JOB, "--world=2"}, 0, "grpo.json is fine", NULL},
    {"a job for too few daemons",
     {"config", "check", TINY_JOB, "--world=3"},
     2,
     NULL,
     "tensor_model_parallel_size=2 does not divide the 3 daemons"},
    {"a job with a key of verl's that does not work",
     {"config", "check", TINY_JOB, "actor_rollout_ref.model.lora_rank=8"},
     2,
     NULL,
     "actor_rollout_ref.model.lora_rank: expected 0, got 8"},
    {"a key of verl's that does nothing",
     {"config", "check", TINY_JOB, "actor_rollout_ref.model.enable_activation_offload=True"},
     0,
     "is fine",
     "enable_activation_offload=true has no effect"},
    {"values of a job and where they come from",
     {"config", "show", TINY_JOB, "trainer.critic_warmup=0", "+actor_rollout_ref.rollout.n=8"},
     0,
     "actor_rollout_ref.rollout.n = 8 (flag)",
     NULL},
    {"config of no job", {"config", "show"}, 2, NULL, "expected JOB.json, - (standard input) or KEY=VALUE"},
    {"a job of keys alone",
     {"config", "show", "data.train_files=a", "model.path=m"},
     0,
     "[\"a\"] (flag)",
     NULL},
    {"a wrong job of keys alone",
     {"config", "check", "data.train_files=a", "--world=1"},
     2,
     NULL,
     "command line: actor_rollout_ref.actor: set"},
    {"no job and no key", {"config", "check", "job.jsn"}, 2, NULL, "opening 'job.jsn'"},
    {"config of a bad world", {"config", "check", TINY_JOB, "--world=0"}, 2, NULL, "--world=0"},
    {"unknown part of config", {"config", "dump", TINY_JOB}, 2, NULL, "expected check, show or verl"},
    {"verl's keys", {"config", "verl"}, 0, "| `actor_rollout_ref.hybrid_engine` | `true` | taken |", NULL},

    {"no daemons named", {"status"}, 2, NULL, "use --hosts or RANKCTL_HOSTS"},
    {"bad address", {"status", "--hosts=node1:"}, 2, NULL, "address 'node1:': port '' is not a number"},
    {"missing host file", {"status", "--hosts=@/does/not/exist"}, 2, NULL, "/does/not/exist"},
    {"missing token file",
     {"status", "--hosts", NOBODY, "--token-file=/does/not/exist"},
     2,
     NULL,
     "/does/not/exist"},
    {"nobody there",
     {"status", "--hosts", NOBODY},
     3,
     "UNAVAILABLE",
     "worker 0 (" NOBODY ", rank 0): UNAVAILABLE"},
    {"events of nobody",
     {"events", "--hosts", NOBODY},
     3,
     NULL,
     "worker 0 (" NOBODY ", rank 0): UNAVAILABLE"},
    {"events without a kind",
     {"events", "--kinds=state,", "--hosts", NOBODY},
     2,
     NULL,
     "--kinds: expected 1 to 16 kinds"},
    {"only new events of the past", {"events", "--new", "--hosts", NOBODY}, 2, NULL, "--follow"},
    {"nobody there, as JSON",
     {"status", "--hosts", NOBODY, "--output=json"},
     3,
     "\"code\": \"UNAVAILABLE\"",
     "worker 0"},
    {"shutdown without a terminal", {"shutdown", "--hosts", NOBODY}, 2, NULL, "use --yes"},
    {"shutdown with a bad duration",
     {"shutdown", "--yes", "--grace=1", "--hosts", NOBODY},
     2,
     NULL,
     "--grace=1"},
    {"shutdown with a duration that the wire does not hold",
     {"shutdown", "--yes", "--grace=1194h", "--hosts", NOBODY},
     2,
     NULL,
     "at most 1193h"},

    {"run without daemons", {"run", TINY_JOB}, 2, NULL, "no daemons given; use --local N"},
    {"run a missing job", {"run", "/does/not/exist.json", "--local=1"}, 2, NULL, "/does/not/exist.json"},
    {"run with a misspelled key",
     {"run", TINY_JOB, "--local=1", "actor_rollout_ref.rollout.temprature=1"},
     2,
     NULL,
     "actor_rollout_ref.rollout.temprature"},
    {"run with a value of a wrong type",
     {"run", TINY_JOB, "--local=1", "data.train_batch_size=many"},
     2,
     NULL,
     "data.train_batch_size"},
    {"run on a number of daemons that does not fit",
     {"run", TINY_JOB, "--local=3"},
     2,
     NULL,
     "tensor_model_parallel_size=2 does not divide the 3 daemons"},
    {"run with missing data",
     {"run", TINY_JOB, "--local=2", "data.train_files=[\"none.jsonl\"]"},
     2,
     NULL,
     "none.jsonl"},
    {"run with a missing tokenizer",
     {"run", TINY_JOB, "--local=2", "actor_rollout_ref.model.tokenizer_path=none"},
     2,
     NULL,
     "actor_rollout_ref.model.tokenizer_path"},
    {"run with missing weights",
     {"run", TINY_JOB, "--local=2", "actor_rollout_ref.model.path=none",
      "actor_rollout_ref.model.tokenizer_path=tokenizer.json"},
     2,
     NULL,
     "actor_rollout_ref.model.path"},
    {"run with an unknown reward", {"run", TINY_JOB, "--local=2", "reward.name=none"}, 2, NULL, "digits"},
    {"run without data",
     {"run", TINY_JOB, "--local=2", "data.train_files=[]"},
     2,
     NULL,
     "grpo.json: data.train_files: expected at least one file"},
    {"run with data that is no path",
     {"run", TINY_JOB, "--local=2", "data.train_files=[5]"},
     2,
     NULL,
     "grpo.json: data.train_files: item 0: expected a string"},
    {"run with held-out data that is not there",
     {"run", TINY_JOB, "--local=2", "data.val_files=[\"none.jsonl\"]"},
     2,
     NULL,
     "grpo.json: data.val_files: cannot open the data file"},
    {"run with an argument among the template's variables",
     {"run", TINY_JOB, "--local=2", "data.apply_chat_template_kwargs={\"tools\": []}"},
     2,
     NULL,
     "grpo.json: data.apply_chat_template_kwargs.tools: not a variable"},
    {"run with a chat template that is none",
     {"run", TINY_JOB, "--local=2", "actor_rollout_ref.model.custom_chat_template=\"{{\""},
     2,
     NULL,
     "grpo.json: actor_rollout_ref.model.custom_chat_template: template:1"},
    {"run of a model that is not in the cache",
     {"run", TINY_JOB, "--local=2", "actor_rollout_ref.model.path=Org/No-Such-Model"},
     2,
     NULL,
     "hf download Org/No-Such-Model"},
    {"run on zero daemons", {"run", TINY_JOB, "--local=0"}, 2, NULL, "--local=0"},
    {"run on both kinds of daemons", {"run", TINY_JOB, "--local=1", "--hosts", NOBODY}, 2, NULL, "--hosts"},
    {"run on daemons of its own with a token",
     {"run", TINY_JOB, "--local=1", "--token-file=token"},
     2,
     NULL,
     "--token-file"},
    {"run where nobody is",
     {"run", TINY_JOB, "--hosts=" NOBODY ",unix:/nor/here", "--run-dir=RUN"},
     3,
     NULL,
     "worker 0 (" NOBODY},

    {"call without a role", {"call", "get_mesh_info", "--hosts", NOBODY}, 2, NULL, "expected ROLE.METHOD"},
    {"call with a bad option",
     {"call", "actor.get_mesh_info", "--opt", "novalue", "--hosts", NOBODY},
     2,
     NULL,
     "--opt=novalue: expected KEY=VALUE"},
    {"call with its result where nothing can be",
     {"call", "actor.get_mesh_info", "--out=/nope/x.st", "--hosts", NOBODY},
     2,
     NULL,
     "--out=/nope/x.st: cannot write in '/nope': No such file or directory"},
    {"call with its result over a directory",
     {"call", "actor.get_mesh_info", "--out=/", "--hosts", NOBODY},
     2,
     NULL,
     "--out=/: "},
    {"call with its result to stdout",
     {"call", "actor.get_mesh_info", "--out", "-", "--hosts", NOBODY},
     2,
     NULL,
     "--out=-: expected a file"},
    {"call with a missing batch",
     {"call", "actor.compute_log_prob", "--in=/does/not/exist", "--hosts", NOBODY},
     2,
     NULL,
     "/does/not/exist"},
    {"call where nobody is", {"call", "actor.get_mesh_info", "--hosts", NOBODY}, 3, NULL, "UNAVAILABLE"},
};

static void check_stream(const char *name, const char *text, const char *part)
{
    if (part)
        assert_text(name, text, part);
    else if (*text)
        fail_msg("%s should be empty: %s", name, text);
}

static void test_rankctl_command_lines_have_their_exit_codes(void **state)
{
    (void)state;
    assert_int_equal(chdir(rk_test_temp_dir()), 0); /* the directory RUN is created there */
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct outcome outcome = run_rankctl(cases[i].args);

        print_message("%s\n", cases[i].label);
        assert_exit(&outcome, cases[i].code);
        check_stream("stdout", outcome.out, cases[i].out);
        check_stream("stderr", outcome.err, cases[i].err);
        outcome_fini(&outcome);
    }
}

/* Goal: a configuration error of a --local daemon determines the exit code of the run. Method: GPUs that are
 * hidden or do not exist. */
static void test_rankctl_run_on_missing_devices_is_configuration(void **state)
{
    struct outcome outcome;

    (void)state;
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    outcome = run_rankctl((const char *const[]){"run", TINY_JOB, "--local=2", "device=cuda",
                                                "--run-dir=DEVICES", "--quiet", NULL});
    unsetenv("CUDA_VISIBLE_DEVICES");
    assert_exit(&outcome, 2);
    assert_text("stderr", outcome.err, "did not start: rankd of rank ");
    assert_text("stderr", outcome.err, "exited with code 2; its log is ");
    outcome_fini(&outcome);
}

/* Goal: with --output=json a failure is an object on stdout too. */
static void test_rankctl_json_error_is_an_object(void **state)
{
    const char *const args[] = {"call", "actor.get_mesh_info", "--hosts", NOBODY, "--output=json", NULL};
    struct outcome outcome = run_rankctl(args);
    struct rk_json *json;

    (void)state;
    assert_exit(&outcome, 3);
    json = parse_json(outcome.out);
    assert_string_equal(rk_json_as_string(rk_json_find(json, "kind"), ""), "Error");
    assert_string_equal(rk_json_as_string(rk_json_find_path(json, "error.code"), ""), "UNAVAILABLE");
    rk_json_free(json);
    outcome_fini(&outcome);
}

/* Goal: a disk that is full is an error message, not death by SIGXFSZ. Method: the file-size limit, lower
 * than the resolved configuration is long. */
static void test_rankctl_full_disk_is_an_error(void **state)
{
    struct rlimit saved, small = {.rlim_cur = 1024};
    char *dir = new_run_dir();
    const char *const args[] = {"run", TINY_JOB, "--local=2", "--run-dir", dir, NULL};
    struct rk_proc *proc;
    struct outcome outcome;

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &saved), 0);
    small.rlim_max = saved.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    proc = start_rankctl(args);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &saved), 0);
    outcome = finish_rankctl(proc, 10000);
    assert_exit(&outcome, 1);
    assert_text("stderr", outcome.err, "File too large");
    outcome_fini(&outcome);
    rk_free(dir);
}

/* Goal: output that cannot be written is a failure, for short and long output. */
static void test_rankctl_text_to_a_full_disk_exits_with_1(void **state)
{
    static const char *const args[] = {"--help", "version", "run --help", "methods"};
    char *program = rk_proc_program("rankctl");

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(args); i++) {
        char *command = rk_format("exec %s %s >/dev/full", program, args[i]);
        struct outcome outcome =
            finish_rankctl(rk_proc_start((const char *const[]){"/bin/sh", "-c", command, NULL}), 10000);

        print_message("%s\n", args[i]);
        assert_exit(&outcome, 1);
        assert_text("stderr", outcome.err, "standard output");
        outcome_fini(&outcome);
        rk_free(command);
    }
    rk_free(program);
}

/* Goal: a daemon on a busy or far host is waited for. Method: it is stopped while rankctl connects. */
static void test_rankctl_slow_daemon_is_waited_for(void **state)
{
    struct rk_proc *daemon = start_daemon(NULL);
    const char *const args[] = {"status", "--hosts", rk_proc_address(daemon), NULL};
    struct rk_proc *proc;
    struct outcome outcome;

    (void)state;
    rk_proc_signal(daemon, SIGSTOP);
    proc = start_rankctl(args);
    rk_time_sleep_ms(1200);
    rk_proc_signal(daemon, SIGCONT);
    outcome = finish_rankctl(proc, 10000);
    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    rk_proc_destroy(daemon);
}

/* Goal: a daemon listed under two names is reported as such; otherwise it would reject its own driver. */
static void test_rankctl_one_daemon_under_two_names_is_refused(void **state)
{
    struct rk_proc *daemon = start_daemon(NULL);
    const char *address = rk_proc_address(daemon), *name = strrchr(address, '/');
    char *hosts = rk_format("%s,%.*s/.%s", address, (int)(name - address), address, name);
    struct outcome outcome =
        run_rankctl((const char *const[]){"call", "actor.get_mesh_info", "--hosts", hosts, NULL});

    (void)state;
    assert_exit(&outcome, 2);
    assert_text("stderr", outcome.err, "workers 0 (");
    outcome_fini(&outcome);
    rk_proc_destroy(daemon);
    rk_free(hosts);
}

/* Goal: a run warns about a model without an end token. */
static void test_rankctl_run_of_a_model_without_end_token_warns(void **state)
{
    char *path = rk_test_temp_path("endless.json"), *text,
         *change = rk_format("actor_rollout_ref.model.hf_config_path=%s", path);
    const char *const args[] = {"run",  TINY_JOB, "--hosts", NOBODY ",unix:/nor/here", "--run-dir=ENDLESS",
                                change, NULL};
    struct rk_json *config;
    struct outcome outcome;

    (void)state;
    assert_ok(rk_json_parse_file(&config, RK_TEST_SOURCE_DIR "/examples/digits/config.json", 1 << 20, 0));
    rk_json_set(config, "eos_token_id", rk_json_new_null());
    text = rk_json_dump(config, 0, false);
    rk_test_write_file(path, text, strlen(text));
    outcome = run_rankctl(args);
    assert_exit(&outcome, 3);
    assert_text("stderr", outcome.err, "eos_token_id");
    outcome_fini(&outcome);
    rk_json_free(config);
    rk_free(text);
    rk_free(change);
    rk_free(path);
}

/* Goal: all errors of a job file are reported at once, with their lines. */
static void test_rankctl_bad_job_file_names_its_lines(void **state)
{
    static const char text[] =
        "{\n  \"data\": {\n    \"train_files\": [\"a\"],\n    \"train_batch\": 8\n  },\n"
        "  \"trainer\": { \"total_epochs\": \"many\" }\n}\n";
    char *path = rk_test_temp_path("bad.json");
    const char *const args[] = {"run", path, "--local=1", NULL};
    struct outcome outcome;

    (void)state;
    rk_test_write_file(path, text, sizeof(text) - 1);
    outcome = run_rankctl(args);
    assert_exit(&outcome, 2);
    assert_text("stderr", outcome.err, "bad.json:4: data.train_batch");
    assert_text("stderr", outcome.err, "bad.json:6: trainer.total_epochs");
    outcome_fini(&outcome);
    rk_free(path);
}

static void test_rankctl_status_and_shutdown_of_a_daemon(void **state)
{
    struct rk_proc *daemon = start_daemon(NULL);
    const char *hosts = rk_proc_address(daemon);
    const char *const status_args[] = {"status", "--hosts", hosts, "--output=json", NULL};
    const char *const table_args[] = {"status", "--hosts", hosts, NULL};
    const char *const methods_args[] = {"methods", "--hosts", hosts, NULL};
    const char *const shutdown_args[] = {"shutdown", "--hosts", hosts, "--yes", NULL};
    struct outcome outcome = run_rankctl(status_args);
    struct rk_json *json, *worker;

    (void)state;
    assert_exit(&outcome, 0);
    json = parse_json(outcome.out);
    worker = rk_json_at(rk_json_find(json, "workers"), 0);
    assert_string_equal(rk_json_as_string(rk_json_find(worker, "state"), ""), "UNCONFIGURED");
    assert_string_equal(rk_json_as_string(rk_json_find(worker, "address"), ""), hosts);
    rk_json_free(json);
    outcome_fini(&outcome);
    outcome = run_rankctl(table_args);
    assert_exit(&outcome, 0);
    assert_text("stdout", outcome.out, "UNCONFIGURED");
    outcome_fini(&outcome);
    outcome = run_rankctl(methods_args);
    assert_exit(&outcome, 0);
    assert_text("stdout", outcome.out, "MEGATRON_COMPUTE_PROTO");
    outcome_fini(&outcome);
    outcome = run_rankctl(shutdown_args);
    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    assert_int_equal(rk_proc_wait(daemon, 10000), 0);
    rk_proc_destroy(daemon);
}

#ifdef RK_FAULTS
/* Goal: the status of a failed daemon shows the failure and its reason, and the exit code is nonzero. Method:
 * a method that blocks in the engine. */
static void test_rankctl_status_of_a_failed_daemon_has_the_reason(void **state)
{
    static const char *const args[] = {"--watchdog.idle_progress=1s", "--watchdog.engine_grace=1s", NULL};
    static const char job[] = "{ \"data\": { \"train_files\": [\"none\"] } }";
    char *path = rk_test_temp_path("one_rank.json");
    struct rk_proc *daemon;
    const char *hosts;
    struct outcome outcome;
    struct rk_json *json;

    (void)state;
    rk_test_write_file(path, job, sizeof(job) - 1);
    setenv("RANKD_FAULTS", "worker.before_method=sleep:100s", 1);
    daemon = start_daemon(args);
    unsetenv("RANKD_FAULTS");
    hosts = rk_proc_address(daemon);
    outcome = run_rankctl(
        (const char *const[]){"call", "actor.get_mesh_info", "--hosts", hosts, "--job", path, NULL});
    assert_exit(&outcome, 1);
    assert_text("stderr", outcome.err, "ENGINE_STUCK");
    outcome_fini(&outcome);
    outcome = run_rankctl((const char *const[]){"status", "--hosts", hosts, NULL});
    assert_exit(&outcome, 1);
    assert_text("stdout", outcome.out, "has FAILED: actor.get_mesh_info: INTERNAL: ");
    assert_text("stderr", outcome.err, ") has failed");
    outcome_fini(&outcome);
    outcome = run_rankctl((const char *const[]){"status", "--hosts", hosts, "--output=json", NULL});
    assert_exit(&outcome, 1);
    json = parse_json(outcome.out);
    assert_string_equal(rk_json_as_string(rk_json_find(json, "kind"), ""), "Status");
    rk_json_free(json);
    outcome_fini(&outcome);
    rk_proc_destroy(daemon);
    rk_free(path);
}
#endif

/* Goal: a daemon with tokens rejects a wrong or missing one with exit code 4, and accepts the right one.
 */
static void test_rankctl_tokens_are_sent_and_their_files_guarded(void **state)
{
    char *daemon_file = write_secret("daemon.token", "driver:0123456789abcdef0123456789abcdef\n", 0600);
    char *wrong_file = write_secret("wrong.token", "fedcba9876543210fedcba9876543210\n", 0600);
    char *open_file = write_secret("open.token", "0123456789abcdef0123456789abcdef\n", 0644);
    char *option = rk_format("--rpc.token_file=%s", daemon_file);
    struct rk_proc *daemon = start_daemon((const char *const[]){option, NULL});
    const char *hosts = rk_proc_address(daemon);
    const struct {
        const char *label, *file;
        int code;
    } tries[] = {
        {"the daemon's own file", daemon_file, 0},
        {"another token", wrong_file, 4},
        {"none", NULL, 4},
        {"a file that others can read", open_file, 2},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(tries); i++) {
        const char *const args[] = {"status",      "--hosts", hosts, tries[i].file ? "--token-file" : NULL,
                                    tries[i].file, NULL};
        struct outcome outcome = run_rankctl(args);

        print_message("%s\n", tries[i].label);
        assert_exit(&outcome, tries[i].code);
        outcome_fini(&outcome);
    }
    rk_proc_destroy(daemon);
    rk_free(option);
    rk_free(open_file);
    rk_free(wrong_file);
    rk_free(daemon_file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rankctl_command_lines_have_their_exit_codes),
        cmocka_unit_test(test_rankctl_run_on_missing_devices_is_configuration),
        cmocka_unit_test(test_rankctl_json_error_is_an_object),
        cmocka_unit_test(test_rankctl_full_disk_is_an_error),
        cmocka_unit_test(test_rankctl_text_to_a_full_disk_exits_with_1),
        cmocka_unit_test(test_rankctl_slow_daemon_is_waited_for),
        cmocka_unit_test(test_rankctl_one_daemon_under_two_names_is_refused),
        cmocka_unit_test(test_rankctl_run_of_a_model_without_end_token_warns),
        cmocka_unit_test(test_rankctl_bad_job_file_names_its_lines),
        cmocka_unit_test(test_rankctl_status_and_shutdown_of_a_daemon),
#ifdef RK_FAULTS
        cmocka_unit_test(test_rankctl_status_of_a_failed_daemon_has_the_reason),
#endif
        cmocka_unit_test(test_rankctl_tokens_are_sent_and_their_files_guarded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
