/* Whole runs with --local daemons: their output files, and independence of the layout. */
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/proc/cli_fixture.h"

#define ACTOR       "actor_rollout_ref.actor."
#define ROLLOUT     "actor_rollout_ref.rollout."
#define FAKE_PLUGIN "--plugin=" RK_TEST_BINARY_DIR "/tests/librankd_fake.so"

/* Runs the tiny job; returns its directory (rk_free it). */
static char *run_tiny(const char *local, const char *const *changes)
{
    const char *args[24] = {"run", TINY_JOB, "--local", local, "--run-dir", NULL, TINY};
    char *dir = new_run_dir();
    struct outcome outcome;
    size_t num_args = 6;

    args[5] = dir;
    while (args[num_args])
        num_args++;
    for (; changes && *changes; changes++)
        args[num_args++] = *changes;
    assert_true(num_args < RK_ARRAY_LEN(args));
    outcome = run_rankctl(args);
    assert_exit(&outcome, 0);
    assert_text("stdout", outcome.out, dir);
    assert_text("stderr", outcome.err, "step 3/3");
    outcome_fini(&outcome);
    return dir;
}

static void assert_file(const char *dir, const char *name)
{
    char *path = rk_path_join(dir, name);

    if (access(path, R_OK) != 0)
        fail_msg("%s is missing", path);
    rk_free(path);
}

struct layout {
    const char *label, *local;
    const char *changes[6]; /* NULL-terminated */
};

static const struct layout layouts[] = {
    {"one rank", "1", {ACTOR "megatron.tensor_model_parallel_size=1"}},
    {"tp 2", "2", {ACTOR "megatron.tensor_model_parallel_size=2"}},
    {"dp 2", "2", {ACTOR "megatron.tensor_model_parallel_size=1"}},
    {"tp 2 x dp 2", "4", {ACTOR "megatron.tensor_model_parallel_size=2"}},
    {"dp 2, micro-batches of two rows",
     "2",
     {ACTOR "megatron.tensor_model_parallel_size=1", ACTOR "use_dynamic_bsz=false",
      ACTOR "ppo_micro_batch_size_per_gpu=2"}},
    {"tp 2, rollout tp 1",
     "2",
     {ACTOR "megatron.tensor_model_parallel_size=2", ROLLOUT "tensor_model_parallel_size=1"}},
    {"dp 2, rollout tp 2",
     "2",
     {ACTOR "megatron.tensor_model_parallel_size=1", ROLLOUT "tensor_model_parallel_size=2"}},
    {"tp 2 x dp 2, rollout tp 4",
     "4",
     {ACTOR "megatron.tensor_model_parallel_size=2", ROLLOUT "tensor_model_parallel_size=4"}},
    {"cp 2", "2", {ACTOR "megatron.tensor_model_parallel_size=1", ACTOR "megatron.context_parallel_size=2"}},
    {"tp 2 x cp 2",
     "4",
     {ACTOR "megatron.tensor_model_parallel_size=2", ACTOR "megatron.context_parallel_size=2"}},
    {"pp 2",
     "2",
     {ACTOR "megatron.tensor_model_parallel_size=1", ACTOR "megatron.pipeline_model_parallel_size=2"}},
    {"tp 2 x pp 2, rollout tp 2, micro-batches of two rows",
     "4",
     {ACTOR "megatron.tensor_model_parallel_size=2", ACTOR "megatron.pipeline_model_parallel_size=2",
      ROLLOUT "tensor_model_parallel_size=2", ACTOR "use_dynamic_bsz=false",
      ACTOR "ppo_micro_batch_size_per_gpu=2"}},
    {"tp 2, rollout elsewhere",
     "3",
     {ACTOR "megatron.tensor_model_parallel_size=2", ACTOR "megatron.ranks=0-1",
      ROLLOUT "tensor_model_parallel_size=1", ROLLOUT "ranks=2"}},
};

/* Runs every layout with `more` and compares the first step with that of one rank (later steps may differ in
 * tokens once rounding differs). */
static void check_layouts(const char *const *more)
{
    static const char *const same[] = {"critic/score/mean", "actor/entropy", "actor/pg_loss",
                                       "actor/grad_norm", "response_length/mean"};
    double expected[RK_ARRAY_LEN(same)];

    for (size_t i = 0; i < RK_ARRAY_LEN(layouts); i++) {
        const char *changes[8] = {0};
        struct rk_json *metrics;
        size_t num_changes = 0;
        char *dir;

        for (const char *const *change = layouts[i].changes; *change; change++)
            changes[num_changes++] = *change;
        for (const char *const *change = more; *change; change++)
            changes[num_changes++] = *change;
        dir = run_tiny(layouts[i].local, changes);
        metrics = read_metrics(dir, 1);
        print_message("%s\n", layouts[i].label);
        assert_int_equal(count_metrics(dir), TINY_STEPS);
        for (size_t j = 0; j < RK_ARRAY_LEN(same); j++) {
            double got = metric(metrics, same[j]);

            if (i == 0)
                expected[j] = got;
            assert_below(same[j], fabs(got - expected[j]), RK_TOL_F32_SUM * fmax(1.0, fabs(expected[j])));
        }
        rk_json_free(metrics);
        metrics = read_metrics(dir, TINY_STEPS);
        assert_true(metric(metrics, "actor/memory_overflows") == 0.0);
        assert_true(metric(metrics, "rollout/memory_overflows") == 0.0);
        rk_json_free(metrics);
        rk_free(dir);
    }
}

static void test_run_every_layout_gives_the_result_of_one_rank(void **state)
{
    (void)state;
    check_layouts((const char *const[]){NULL});
}

/* Goal: the composition of shuffled mini-batches, over two epochs, does not depend on the layout either. */
static void test_run_every_layout_shuffles_in_the_same_way(void **state)
{
    (void)state;
    check_layouts((const char *const[]){ACTOR "shuffle=true", ACTOR "ppo_epochs=2", NULL});
}

/* Goal: the same for a loss over whole sequences, which the ranks of a replica may split. */
static void test_run_every_layout_computes_the_same_sequence_loss(void **state)
{
    (void)state;
    check_layouts((const char *const[]){ACTOR "policy_loss.loss_mode=gspo",
                                        ACTOR "loss_agg_mode=seq-mean-token-mean", NULL});
}

static const char *const step_metrics[] = {
    "training/global_step",
    "training/epoch",
    "critic/score/mean",
    "critic/score/max",
    "critic/score/min",
    "critic/rewards/mean",
    "critic/advantages/mean",
    "critic/returns/mean",
    "response_length/mean",
    "response_length/clip_ratio",
    "prompt_length/mean",
    "response/aborted_ratio",
    "actor/entropy",
    "actor/pg_loss",
    "actor/pg_clipfrac",
    "actor/pg_clipfrac_lower",
    "actor/ppo_kl",
    "actor/grad_norm",
    "actor/lr",
    "training/rollout_probs_diff_max",
    "training/rollout_probs_diff_mean",
    "training/rollout_probs_diff_std",
    "training/rollout_actor_probs_pearson_corr",
    "global_seqlen/min",
    "global_seqlen/max",
    "global_seqlen/minmax_diff",
    "global_seqlen/balanced_min",
    "global_seqlen/balanced_max",
    "global_seqlen/mean",
    "timing_s/gen",
    "timing_s/reward",
    "timing_s/old_log_prob",
    "timing_s/adv",
    "timing_s/update_actor",
    "timing_s/step",
    "timing_per_token_ms/gen",
    "timing_per_token_ms/update_actor",
    "perf/total_num_tokens",
    "perf/time_per_step",
    "perf/throughput",
    "perf/mfu/actor",
    "perf/mfu/actor_infer",
    "perf/cpu_memory_used_gb",
    "num_turns/mean",
    "timing_s/agent_loop/generate_sequences/min",
    "timing_s/agent_loop/generate_sequences/mean",
    "timing_s/agent_loop/generate_sequences/max",
};

static const char *const left_behind[] = {"config.json",    "metrics.jsonl",        "report.html",
                                          "summary.json",   "rankd-0.log",          "rankd-1.log",
                                          "hf/config.json", "hf/model.safetensors", "hf/tokenizer.json"};

static void test_run_leaves_metrics_plot_summary_and_model(void **state)
{
    char *dir = run_tiny("2", NULL);
    struct rk_json *summary = read_json(dir, "summary.json"), *config = read_json(dir, "config.json");

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(left_behind); i++)
        assert_file(dir, left_behind[i]);
    for (int64_t step = 1; step <= TINY_STEPS; step++) {
        struct rk_json *metrics = read_metrics(dir, step);

        for (size_t i = 0; i < RK_ARRAY_LEN(step_metrics); i++)
            assert_true(isfinite(metric(metrics, step_metrics[i])));
        assert_true(metric(metrics, "training/global_step") == (double)step);
        /* The rollout's log-probs equal the trainer's. */
        assert_below("rollout against trainer", metric(metrics, "training/rollout_probs_diff_max"),
                     RK_TOL_F32_SUM);
        rk_json_free(metrics);
    }
    assert_string_equal(rk_json_as_string(rk_json_find(summary, "status"), ""), "succeeded");
    assert_int_equal(rk_json_as_int(rk_json_find(summary, "num_steps"), 0), TINY_STEPS);
    assert_int_equal(rk_json_as_int(rk_json_find_path(config, "data.train_batch_size"), 0), 4);
    rk_json_free(config);
    rk_json_free(summary);
    rk_free(dir);
}

/* In every step of a run on two daemons the log-probs of the rollout equal the trainer's. `moves`: the
 * weights are moved to it; otherwise it shares them. */
static void check_rollout_is_the_trainers(const char *const *changes, bool moves)
{
    char *dir = run_tiny("2", changes);

    for (int64_t step = 1; step <= TINY_STEPS; step++) {
        struct rk_json *metrics = read_metrics(dir, step);

        assert_below("rollout against trainer", metric(metrics, "training/rollout_probs_diff_max"),
                     RK_TOL_F32_SUM);
        assert_int_equal(rk_json_find(metrics, "timing_s/update_weights") != NULL, moves);
        if (moves) {
            assert_true(metric(metrics, "timing_s/update_weights") > 0);
            assert_true(metric(metrics, "perf/update_weights_bytes") > 0);
        }
        rk_json_free(metrics);
    }
    rk_free(dir);
}

/* Goal: a rollout with a separate mesh generates with the weights of the previous step: its log-probs equal
 * the trainer's in every step. */
static void test_run_rollout_of_other_layout_gets_the_weights_of_every_step(void **state)
{
    const char *const changes[] = {ACTOR "megatron.tensor_model_parallel_size=2",
                                   ROLLOUT "tensor_model_parallel_size=1",
                                   ROLLOUT "checkpoint_engine.update_weights_bucket_megabytes=1", NULL};

    (void)state;
    check_rollout_is_the_trainers(changes, true);
}

/* Goal: a rollout of an actor with cp has a separate mesh over the actor's weights: nothing is moved, and its
 * log-probs equal the trainer's in every step. */
static void test_run_rollout_of_an_actor_with_cp_shares_its_weights(void **state)
{
    const char *const changes[] = {ACTOR "megatron.tensor_model_parallel_size=1",
                                   ACTOR "megatron.context_parallel_size=2", NULL};

    (void)state;
    check_rollout_is_the_trainers(changes, false);
}

/* Goal: layouts that the model or the daemons do not allow are rejected before a model is created. */
static void test_run_rollout_layout_that_does_not_fit_is_refused(void **state)
{
    static const struct {
        const char *change, *text;
    } cases[] = {
        {ROLLOUT "tensor_model_parallel_size=2",
         "tensor_model_parallel_size=2 does not divide the 3 daemons"},
        {ROLLOUT "tensor_model_parallel_size=3", "is not divisible by tp=3"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char *dir = new_run_dir();
        const char *const args[] = {"run",
                                    TINY_JOB,
                                    "--local",
                                    "3",
                                    "--run-dir",
                                    dir,
                                    TINY,
                                    ACTOR "megatron.tensor_model_parallel_size=1",
                                    "data.train_batch_size=3",
                                    ACTOR "ppo_mini_batch_size=3",
                                    cases[i].change,
                                    NULL};
        struct outcome outcome = run_rankctl(args);

        assert_exit(&outcome, 2);
        assert_text("stderr", outcome.err, cases[i].text);
        assert_null(strstr(outcome.err, "step 1/3"));
        outcome_fini(&outcome);
        rk_free(dir);
    }
}

/* Goal: the same seed and layout give bit-identical results. */
static void test_run_twice_gives_identical_metrics(void **state)
{
    char *first_dir = run_tiny("2", NULL), *second_dir = run_tiny("2", NULL);

    (void)state;
    for (int64_t step = 1; step <= TINY_STEPS; step++) {
        struct rk_json *first = read_metrics(first_dir, step), *second = read_metrics(second_dir, step);

        assert_same_step(second, first, step);
        rk_json_free(first);
        rk_json_free(second);
    }
    rk_free(first_dir);
    rk_free(second_dir);
}

/* Goal: the reference policy equals the actor before the first update, so the first KL is 0 and later ones
 * are not. */
static void test_run_with_reference_measures_the_kl_to_it(void **state)
{
    const char *const changes[] = {ACTOR "use_kl_loss=true", "algorithm.use_kl_in_reward=true",
                                   "actor_rollout_ref.ref.megatron.tensor_model_parallel_size=1", NULL};
    char *dir = run_tiny("2", changes);
    struct rk_json *first = read_metrics(dir, 1), *last = read_metrics(dir, TINY_STEPS);

    (void)state;
    assert_below("first KL", fabs(metric(first, "actor/reward_kl_penalty")), RK_TOL_F32_SUM);
    assert_true(fabs(metric(last, "actor/reward_kl_penalty")) > RK_TOL_F32_SUM);
    assert_true(metric(last, "actor/reward_kl_penalty_coeff") == 0.001);
    assert_true(metric(last, "actor/kl_loss") > 0.0);
    assert_true(metric(last, "timing_s/ref") > 0.0);
    rk_json_free(first);
    rk_json_free(last);
    rk_free(dir);
}

static void test_run_json_output_is_one_summary_object(void **state)
{
    char *dir = new_run_dir();
    const char *const args[] = {"run",
                                TINY_JOB,
                                "--local=1",
                                "--quiet",
                                "--output=json",
                                "--run-dir",
                                dir,
                                TINY,
                                ACTOR "megatron.tensor_model_parallel_size=1",
                                NULL};
    struct outcome outcome = run_rankctl(args);
    struct rk_json *summary;

    (void)state;
    assert_exit(&outcome, 0);
    assert_string_equal(outcome.err, "");
    summary = parse_json(outcome.out);
    assert_string_equal(rk_json_as_string(rk_json_find(summary, "apiVersion"), ""), "rankctl/v1");
    assert_string_equal(rk_json_as_string(rk_json_find(summary, "kind"), ""), "RunSummary");
    assert_string_equal(rk_json_as_string(rk_json_find(summary, "run_dir"), ""), dir);
    rk_json_free(summary);
    outcome_fini(&outcome);
    rk_free(dir);
}

/* Goal: a run whose output pipe is closed (rankctl run | head) continues to its end, reports it and fails;
 * the number of prompts that do not fill a batch is reported. */
static void test_run_with_closed_output_loses_nothing(void **state)
{
    char *dir = new_run_dir(), *program = rk_proc_program("rankctl");
    char *command =
        rk_format("{ %s run %s --local=1 --run-dir=%s data.train_batch_size=4 data.train_max_samples=11"
                  " actor_rollout_ref.rollout.n=4 " ACTOR "ppo_mini_batch_size=2"
                  " trainer.total_training_steps=3 " ACTOR "megatron.tensor_model_parallel_size=1;"
                  " echo exit code $? >&2; } | true",
                  program, TINY_JOB, dir);
    struct outcome outcome =
        finish_rankctl(rk_proc_start((const char *const[]){"/bin/sh", "-c", command, NULL}), 60000);
    struct rk_json *summary;

    (void)state;
    assert_text("stderr", outcome.err, "exit code 1");
    assert_text("stderr", outcome.err, "standard output");
    assert_text("stderr", outcome.err,
                "data.train_files: 3 of 11 rows do not fill a batch of data.train_batch_size=4");
    assert_int_equal(count_metrics(dir), TINY_STEPS);
    assert_file(dir, "hf/model.safetensors");
    summary = read_json(dir, "summary.json");
    assert_int_equal(rk_json_as_int(rk_json_find(summary, "prompts_left_out_of_an_epoch"), 0), 3);
    assert_int_equal(rk_json_as_int(rk_json_find_path(summary, "data.train_files.read"), 0), 11);
    assert_true(rk_json_as_real(rk_json_find_path(summary, "data.notes.0.share"), 0) > 0.27);
    rk_json_free(summary);
    outcome_fini(&outcome);
    rk_free(command);
    rk_free(program);
    rk_free(dir);
}

/* Goal: the configuration that a run writes can be run again from any directory with the same result: paths
 * relative to the job, including the reward program, are absolute. */
static void test_run_configuration_left_behind_runs_again(void **state)
{
    static const char script[] = /* protocol 2, with the length of the line as score */
        "read -r hello && echo '{\"hello\": 2}'\n"
        "while read -r line; do id=${line#*'\"id\":'}; echo '{\"id\": '${id%%,*}', \"score\": '${#line}'}'; "
        "done\n";
    char *job_dir = rk_test_temp_path("job"), *path = rk_path_join(job_dir, "score.sh");
    char *change = rk_format(
        "reward={\"name\": \"command\", \"command\": [\"sh\", \"score.sh\"], \"dir\": \"%s\"}", job_dir);
    const char *const changes[] = {ACTOR "megatron.tensor_model_parallel_size=1", change, NULL};
    char *first, *config, *second = new_run_dir();
    struct rk_json *metrics[2];
    struct outcome outcome;

    (void)state;
    assert_int_equal(mkdir(job_dir, 0700), 0);
    rk_test_write_file(path, script, sizeof(script) - 1);
    first = run_tiny("1", changes);
    config = rk_path_join(first, "config.json");
    outcome = run_rankctl((const char *const[]){"run", config, "--local=1", "--run-dir", second, NULL});
    assert_exit(&outcome, 0);
    metrics[0] = read_metrics(first, TINY_STEPS);
    metrics[1] = read_metrics(second, TINY_STEPS);
    assert_true(metric(metrics[0], "actor/grad_norm") == metric(metrics[1], "actor/grad_norm"));
    for (int i = 0; i < 2; i++)
        rk_json_free(metrics[i]);
    outcome_fini(&outcome);
    rk_free(second);
    rk_free(config);
    rk_free(first);
    rk_free(change);
    rk_free(path);
    rk_free(job_dir);
}

/* Runs the tiny job with a reward program that replies with `answer`, a shell expression of the item's id;
 * returns the run's directory. */
static char *run_with_answers(const char *answer)
{
    char *script = rk_format("read -r hello && echo '{\"hello\": 2}'\n"
                             "while read -r line; do id=${line#*'\"id\":'}; id=${id%%%%,*}\n"
                             "echo '{\"id\": '$id', '%s'}'; done\n",
                             answer);
    char *path = rk_test_temp_path("answers.sh");
    char *change =
        rk_format("reward={\"name\": \"command\", \"command\": [\"sh\", \"%s\"], \"num_workers\": 2, "
                  "\"max_failed_ratio\": 1}",
                  path);
    const char *const changes[] = {ACTOR "megatron.tensor_model_parallel_size=1", change, NULL};
    char *dir;

    rk_test_write_file(path, script, strlen(script));
    dir = run_tiny("1", changes);
    rk_free(change);
    rk_free(path);
    rk_free(script);
    return dir;
}

/* Goal: a step without any score updates nothing and is counted; the run continues. */
static void test_run_without_any_score_updates_nothing(void **state)
{
    char *dir = run_with_answers("'\"error\": \"no\"'");

    (void)state;
    for (int64_t step = 1; step <= TINY_STEPS; step++) {
        struct rk_json *metrics = read_metrics(dir, step);

        assert_true(metric(metrics, "reward/errors") == 16.0);
        assert_true(metric(metrics, "reward/dropped") == 16.0);
        assert_true(metric(metrics, "reward/dropped_groups") == 4.0);
        assert_true(metric(metrics, "response_length/mean") > 0.0);
        assert_true(rk_json_is_null(rk_json_find(metrics, "critic/score/mean")));
        assert_null(rk_json_find(metrics, "actor/grad_norm"));
        assert_null(rk_json_find(metrics, "training/rollout_probs_diff_max"));
        rk_json_free(metrics);
    }
    rk_free(dir);
}

/* Goal: responses without a score are in no statistics; the others train as without them. Of each group of
 * four, one score is missing: ids count items, four per prompt. */
static void test_run_with_missing_scores_trains_on_the_rest(void **state)
{
    char *dir = run_with_answers("$([ $((id % 4)) = 3 ] && echo '\"skip\": true' || "
                                 "echo '\"score\": '$((id % 4 + 1))', \"acc\": '$((id % 2)))");

    (void)state;
    for (int64_t step = 1; step <= TINY_STEPS; step++) {
        struct rk_json *metrics = read_metrics(dir, step);

        assert_true(metric(metrics, "reward/skips") == 4.0);
        assert_true(metric(metrics, "reward/errors") == 0.0);
        assert_true(metric(metrics, "critic/score/mean") == 2.0);
        assert_true(metric(metrics, "critic/score/min") == 1.0);
        assert_below("acc", fabs(metric(metrics, "reward_extra/acc/mean") - 1.0 / 3.0), 1e-12);
        assert_true(metric(metrics, "reward_extra/acc/count") == 12.0);
        assert_true(metric(metrics, "actor/grad_norm") > 0.0);
        rk_json_free(metrics);
    }
    rk_free(dir);
}

/* Goal: a prompt that the reward cannot score is an error before a daemon is started. */
static void test_run_prompt_without_a_reward_is_refused(void **state)
{
    char *dir = new_run_dir();
    struct outcome outcome = run_rankctl(
        (const char *const[]){"run", TINY_JOB, "--local=2", "--run-dir", dir, TINY, "~reward.name", NULL});

    (void)state;
    assert_exit(&outcome, 2);
    assert_text("stderr", outcome.err, ": data_source 'digits' selects no reward");
    assert_text("stderr", outcome.err, "train.jsonl:");
    outcome_fini(&outcome);
    rk_free(dir);
}

/* Goal: the default dtype is that of the given daemons, independent of `device`, which is for --local. */
static void test_run_on_hosts_takes_the_dtype_of_their_devices(void **state)
{
    struct rk_proc *daemon = start_daemon((const char *const[]){"--device=cpu", NULL});
    char *dir = new_run_dir();
    struct outcome outcome = run_rankctl(
        (const char *const[]){"run", TINY_JOB, "--hosts", rk_proc_address(daemon), "--run-dir", dir, TINY,
                              "device=cuda", ACTOR "megatron.tensor_model_parallel_size=1", NULL});
    struct rk_json *config;

    (void)state;
    assert_exit(&outcome, 0);
    config = read_json(dir, "hf/config.json");
    assert_string_equal(rk_json_as_string(rk_json_find(config, "torch_dtype"), ""), "float32");
    rk_json_free(config);
    outcome_fini(&outcome);
    rk_proc_destroy(daemon);
    rk_free(dir);
}

/* Goal: a run directory that the daemons may not write into is an error before the first step.
 */
static void test_run_directory_outside_the_roots_trains_nothing(void **state)
{
    struct rk_proc *daemon = start_daemon((const char *const[]){"--ckpt.roots=[\"/nowhere\"]", NULL});
    char *dir = new_run_dir();
    struct outcome outcome =
        run_rankctl((const char *const[]){"run", TINY_JOB, "--hosts", rk_proc_address(daemon), "--run-dir",
                                          dir, TINY, ACTOR "megatron.tensor_model_parallel_size=1", NULL});

    (void)state;
    assert_exit(&outcome, 4);
    assert_text("stderr", outcome.err, "cannot be saved to ");
    assert_text("stderr", outcome.err, "PATH_OUTSIDE_ROOTS");
    assert_null(strstr(outcome.err, "step 1/"));
    outcome_fini(&outcome);
    rk_proc_destroy(daemon);
    rk_free(dir);
}

/* Runs the tiny job on two daemons with these devices, which fails; rk_free *log, rank 1's. */
static struct outcome run_on_devices(const char *first, const char *second, char **log)
{
    const char *devices[] = {first, second};
    struct rk_proc *daemons[2];
    struct outcome outcome;
    char *hosts, *dir = new_run_dir();

    for (int i = 0; i < 2; i++)
        daemons[i] = start_daemon((const char *const[]){devices[i], FAKE_PLUGIN, NULL});
    hosts = rk_format("%s,%s", rk_proc_address(daemons[0]), rk_proc_address(daemons[1]));
    /* A fake device has 16 MiB. */
    outcome = run_rankctl((const char *const[]){"run", TINY_JOB, "--hosts", hosts, "--run-dir", dir, TINY,
                                                "actor_rollout_ref.rollout.max_num_seqs=4",
                                                "actor_rollout_ref.rollout.max_num_batched_tokens=64", NULL});
    *log = rk_proc_stderr(daemons[1]);
    for (int i = 0; i < 2; i++)
        rk_proc_destroy(daemons[i]);
    rk_free(hosts);
    rk_free(dir);
    return outcome;
}

/* Goal: the rendezvous does not depend on the kind of device: both ranks join, and the run fails because the
 * fake device has no operators. */
static void test_run_on_a_plugin_device_configures_every_rank(void **state)
{
    char *log;
    struct outcome outcome = run_on_devices("--device=fake:0", "--device=fake:1", &log);

    (void)state;
    assert_exit(&outcome, 1);
    assert_text("stderr", outcome.err, "actor.init_model");
    assert_text("stderr", outcome.err, "not in the fake backend");
    assert_text("log of rank 1", log, "configured rank=1 world_size=2");
    outcome_fini(&outcome);
    rk_free(log);
}

static void test_run_on_different_devices_is_refused(void **state)
{
    char *log;
    struct outcome outcome = run_on_devices("--device=cpu", "--device=fake:2", &log);

    (void)state;
    assert_exit(&outcome, 1);
    assert_text("stderr", outcome.err, "MIXED_DEVICES: its device is of kind 'fake', expected 'cpu'");
    outcome_fini(&outcome);
    rk_free(log);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run_every_layout_gives_the_result_of_one_rank),
        cmocka_unit_test(test_run_every_layout_shuffles_in_the_same_way),
        cmocka_unit_test(test_run_every_layout_computes_the_same_sequence_loss),
        cmocka_unit_test(test_run_leaves_metrics_plot_summary_and_model),
        cmocka_unit_test(test_run_rollout_of_other_layout_gets_the_weights_of_every_step),
        cmocka_unit_test(test_run_rollout_of_an_actor_with_cp_shares_its_weights),
        cmocka_unit_test(test_run_rollout_layout_that_does_not_fit_is_refused),
        cmocka_unit_test(test_run_twice_gives_identical_metrics),
        cmocka_unit_test(test_run_with_reference_measures_the_kl_to_it),
        cmocka_unit_test(test_run_json_output_is_one_summary_object),
        cmocka_unit_test(test_run_with_closed_output_loses_nothing),
        cmocka_unit_test(test_run_configuration_left_behind_runs_again),
        cmocka_unit_test(test_run_without_any_score_updates_nothing),
        cmocka_unit_test(test_run_with_missing_scores_trains_on_the_rest),
        cmocka_unit_test(test_run_prompt_without_a_reward_is_refused),
        cmocka_unit_test(test_run_on_hosts_takes_the_dtype_of_their_devices),
        cmocka_unit_test(test_run_directory_outside_the_roots_trains_nothing),
        cmocka_unit_test(test_run_on_a_plugin_device_configures_every_rank),
        cmocka_unit_test(test_run_on_different_devices_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
