/* Interrupted and resumed runs: a run with a kill -9 of driver and daemons in the middle is bit-identical to
 * an uninterrupted run in metrics (except times) and weights; with faults during a save, on another layout,
 * and rejected resumes.
 *
 * RK_TEST_STEPS: steps of the whole run (default 6). RK_TEST_DEVICE=cuda: on 1, 2 and 4 GPUs. */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/config/rk_config.h"
#include "base/rk_env.h"
#include "base/rk_str.h"
#include "base/rk_time.h"
#include "tests/proc/cli_fixture.h"

#define ACTOR         "actor_rollout_ref.actor."
#define TP            ACTOR "megatron.tensor_model_parallel_size="
#define CP            ACTOR "megatron.context_parallel_size="
#define PP            ACTOR "megatron.pipeline_model_parallel_size="
#define VPP           ACTOR "megatron.virtual_pipeline_model_parallel_size="
#define FOUR_LAYERS   "actor_rollout_ref.model.hf_config_path=config-4-layers.json"
#define ARGS_MAX      40
#define MAX_DAEMONS   4
#define STEPS_DEFAULT 6

struct layout {
    const char *label, *num_daemons, *tp;
};

static int64_t num_steps(void)
{
    const char *text = rk_env("RK_TEST_STEPS");
    int64_t steps = STEPS_DEFAULT;

    if (text && (!rk_parse_i64(text, &steps) || steps < 2 || steps % 2 != 0))
        fail_msg("RK_TEST_STEPS=%s, expected an even number", text);
    return steps;
}

/* The tiny job with `steps` steps; `more` is NULL-terminated. */
static struct rk_proc *start_run(const struct layout *layout, const char *dir, int64_t steps,
                                 const char *const *more)
{
    const char *args[ARGS_MAX] = {"run",       TINY_JOB, "--local", layout->num_daemons,
                                  "--run-dir", dir,      TINY,      layout->tp};
    char *total = rk_format("trainer.total_training_steps=%lld", (long long)steps);
    struct rk_proc *run;

    append_args(args, ARGS_MAX, (const char *const[]){total, NULL});
    append_args(args, ARGS_MAX, more);
    run = start_rankctl(args);
    rk_free(total);
    return run;
}

static struct outcome do_run(const struct layout *layout, const char *dir, int64_t steps,
                             const char *const *more)
{
    return finish_rankctl(start_run(layout, dir, steps, more), 300000);
}

static void assert_runs(const struct layout *layout, const char *dir, int64_t steps, const char *const *more)
{
    struct outcome outcome = do_run(layout, dir, steps, more);

    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
}

/* Kills driver and daemons with SIGKILL once the run has completed that step. */
static void kill_all_after(struct rk_proc *run, int count, int64_t step, int64_t steps)
{
    char *text = rk_format("step %lld/%lld", (long long)step, (long long)steps);
    pid_t daemons[MAX_DAEMONS];
    struct outcome outcome;

    wait_stderr(run, text, 300000);
    find_daemons(run, daemons, count);
    rk_proc_signal(run, SIGKILL);
    for (int i = 0; i < count; i++)
        kill(daemons[i], SIGKILL);
    outcome = finish_rankctl(run, 10000);
    assert_exit(&outcome, -SIGKILL);
    assert_gone(daemons, count, 10000);
    outcome_fini(&outcome);
    rk_free(text);
}

/* Every step once, every number with the same bits. */
static void assert_same_metrics(const char *dir, const char *expected_dir, int64_t steps)
{
    assert_int_equal(count_metrics(dir), steps);
    for (int64_t step = 1; step <= steps; step++) {
        struct rk_json *metrics = read_metrics(dir, step), *expected = read_metrics(expected_dir, step);

        assert_same_step(metrics, expected, step);
        rk_json_free(metrics);
        rk_json_free(expected);
    }
}

static int64_t latest_step(const char *dir)
{
    char *path = rk_path_join(dir, "checkpoints/latest_checkpointed_iteration.txt");
    char *text = rk_test_read_file(path, NULL);
    int64_t step = -1;

    assert_true(rk_parse_i64(text, &step));
    rk_free(text);
    rk_free(path);
    return step;
}

/* --- 2n steps without interruption equal n steps, a kill and n steps --- */

/* One uninterrupted run, and one that is killed after its first half and resumed; `more` applies to both.
 * With a save in every step (`saves_often`) the latest complete save may be of any of the last steps. */
static void check_resume(const struct layout *layout, bool saves_often, const char *const *more)
{
    int64_t steps = num_steps(), half = steps / 2;
    char *save = rk_format("trainer.save_freq=%lld", saves_often ? 1LL : (long long)half),
         *dir = new_run_dir(), *straight = new_run_dir();
    const char *args[12] = {save};
    size_t count = 1;
    struct outcome outcome;

    print_message("%s: %lld steps\n", layout->label, (long long)steps);
    for (; more && *more; more++)
        args[count++] = *more;
    assert_runs(layout, straight, steps, args + 1);
    kill_all_after(start_run(layout, dir, steps, args), (int)strtol(layout->num_daemons, NULL, 10), half + 1,
                   steps);
    assert_in_range(latest_step(dir), saves_often ? 1 : half, saves_often ? half + 1 : half);
    outcome = do_run(layout, dir, steps, args);
    assert_exit(&outcome, 0);
    assert_text("stderr", outcome.err, "resuming from ");
    outcome_fini(&outcome);
    assert_same_metrics(dir, straight, steps);
    assert_same_file(dir, straight, "hf/model.safetensors");
    assert_int_equal(latest_step(dir), steps);
    rk_free(save);
    rk_free(dir);
    rk_free(straight);
}

static const struct layout tp2_dp2 = {"tp 2 x dp 2", "4", TP "2"};
static const struct layout one = {"one rank", "1", TP "1"};

static void test_resume_after_kill_is_bit_for_bit(void **state)
{
    static const struct layout gpus[] = {
        {"1 GPU", "1", TP "1"}, {"2 GPUs", "2", TP "2"}, {"4 GPUs", "4", TP "2"}};
    static const int32_t counts[] = {1, 2, 4};

    (void)state;
    if (!is_on_gpus()) {
        check_resume(&tp2_dp2, false, NULL);
        return;
    }
    for (size_t i = 0; i < RK_ARRAY_LEN(gpus); i++) {
        if (has_devices(counts[i]))
            check_resume(&gpus[i], false,
                         (const char *const[]){ACTOR "megatron.dtype=bfloat16", "numerics=strict", NULL});
        else
            rk_test_skip_part("%s: this machine has fewer", gpus[i].label);
    }
}

/* Goal: the same with stages, chunks or tokens divided over the ranks. */
static void test_resume_of_pipelines_and_cp_is_bit_for_bit(void **state)
{
    static const struct {
        struct layout layout;
        int32_t num_devices;
        const char *more[4];
    } cases[] = {
        {{"tp 2 x pp 2", "4", TP "2"}, 4, {FOUR_LAYERS, PP "2", NULL}},
        {{"tp 2 x cp 2", "4", TP "2"}, 4, {FOUR_LAYERS, CP "2", NULL}},
        {{"pp 2, vpp 2", "2", TP "1"}, 2, {FOUR_LAYERS, PP "2", VPP "2", NULL}},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        if (has_devices(cases[i].num_devices))
            check_resume(&cases[i].layout, false, cases[i].more);
        else
            rk_test_skip_part("%s: this machine has fewer GPUs", cases[i].layout.label);
    }
}

/* Goal: the same with everything that has state switched on: bf16 with masters, a learning rate that changes,
 * shuffled mini-batches, a reference policy, an adaptive weight of its KL, asynchronous saves. */
static void test_resume_with_more_state_is_bit_for_bit(void **state)
{
    (void)state;
    check_resume(&one, true,
                 (const char *const[]){ACTOR "megatron.dtype=bfloat16", ACTOR "optim.lr_decay_style=cosine",
                                       ACTOR "shuffle=true", ACTOR "use_kl_loss=true",
                                       "algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive",
                                       "algorithm.kl_ctrl.horizon=100", ACTOR "checkpoint.async_save=true",
                                       NULL});
}

/* --- an interrupted save --- */

#ifdef RK_FAULTS
struct cut_case {
    const char *label, *fault;
};

/* Goal: a daemon that dies in the middle of the second save leaves the first; the run resumes from it, each
 * step is in the metrics once, and the result equals that of a run without faults. After a death in the first
 * save the run restarts. */
static void test_resume_after_interrupted_save_uses_the_previous_checkpoint(void **state)
{
    static const struct cut_case cases[] = {
        {"in the first save", "file.write=kill@12"},
        {"before a shard is written", "ckpt.save=kill@2"},
        {"before the manifest", "ckpt.manifest=kill@2"},
        {"before the part gets its name", "ckpt.rename=kill@2"},
    };
    char *straight = new_run_dir();

    (void)state;
    assert_runs(&one, straight, 3, NULL);
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        static const char *const more[] = {"trainer.save_freq=1", NULL};
        char *dir = new_run_dir();
        struct outcome outcome;

        print_message("%s\n", cases[i].label);
        setenv("RANKD_FAULTS", cases[i].fault, 1);
        outcome = do_run(&one, dir, 3, more);
        unsetenv("RANKD_FAULTS");
        assert_exit(&outcome, 1);
        assert_text("stderr", outcome.err, "was killed by signal 9");
        outcome_fini(&outcome);
        outcome = do_run(&one, dir, 3, more);
        assert_exit(&outcome, 0);
        assert_text("stderr", outcome.err,
                    i > 0 ? "checkpoints/global_step_1," : "before its first checkpoint");
        outcome_fini(&outcome);
        assert_same_metrics(dir, straight, 3);
        assert_same_file(dir, straight, "hf/model.safetensors");
        rk_free(dir);
    }
    rk_free(straight);
}

/* Goal: a disk that fills up in a save ends the run, not the model: the daemons keep running, an older
 * checkpoint is intact, and the same command resumes from it. */
static void test_resume_full_disk_keeps_model_and_older_checkpoint(void **state)
{
    static const struct cut_case cases[] = {
        {"daemons keep the model of step 1 ", "file.write=fail@12,ckpt.write=fail"},
        {"the checkpoint of step 1 is complete; the same command", "ckpt.save=fail@2,ckpt.write=fail"},
    };
    static const char *const more[] = {"trainer.save_freq=1", NULL};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        static const char stop[] = "rankctl shutdown --yes --hosts ";
        char *dir = new_run_dir(), *hosts;
        struct outcome outcome;
        const char *text;

        print_message("%s\n", cases[i].fault);
        setenv("RANKD_FAULTS", cases[i].fault, 1);
        outcome = do_run(&one, dir, 3, more);
        unsetenv("RANKD_FAULTS");
        assert_exit(&outcome, 1);
        assert_text("stderr", outcome.err, "save_checkpoint");
        assert_text("stderr", outcome.err, cases[i].label);
        assert_text("stderr", outcome.err, stop);
        text = strstr(outcome.err, stop) + strlen(stop);
        hosts = rk_strndup(text, strcspn(text, " \n"));
        outcome_fini(&outcome);
        outcome = run_rankctl((const char *const[]){"shutdown", "--yes", "--hosts", hosts, NULL});
        assert_exit(&outcome, 0);
        outcome_fini(&outcome);
        assert_runs(&one, dir, 3, more);
        assert_int_equal(count_metrics(dir), 3);
        rk_free(hosts);
        rk_free(dir);
    }
}
#endif

/* --- on another layout, and rejected --- */

/* Goal: a checkpoint of four ranks can be resumed on one; the next step is equal up to the order of sums. */
static void test_resume_on_another_layout(void **state)
{
    static const char *const same[] = {"critic/score/mean", "actor/entropy", "actor/pg_loss",
                                       "actor/grad_norm", "actor/lr"};
    static const char *const more[] = {"trainer.save_freq=2", NULL};
    char *dir = new_run_dir(), *straight = new_run_dir();
    struct rk_json *metrics, *expected;
    struct outcome outcome;

    (void)state;
    assert_runs(&tp2_dp2, straight, 3, NULL);
    assert_runs(&tp2_dp2, dir, 2, more);
    outcome = do_run(&one, dir, 3, more);
    assert_exit(&outcome, 0);
    assert_text("stderr", outcome.err, "tensor_model_parallel_size: 2 in the checkpoint, 1 now");
    outcome_fini(&outcome);
    metrics = read_metrics(dir, 3);
    expected = read_metrics(straight, 3);
    for (size_t i = 0; i < RK_ARRAY_LEN(same); i++)
        assert_below(same[i], fabs(metric(metrics, same[i]) - metric(expected, same[i])),
                     RK_TOL_F32_SUM * fmax(1.0, fabs(metric(expected, same[i]))));
    rk_json_free(expected);
    rk_json_free(metrics);
    rk_free(straight);
    rk_free(dir);
}

/* Goal: without --run-dir the checkpoints are found by the names of project and experiment, and the run
 * directory from the checkpoint; old checkpoints are removed. */
static void test_resume_finds_directories_by_itself(void **state)
{
    char *place = new_run_dir(), *run_dir, *checkpoints, *first, *last;
    struct outcome outcome;
    struct rk_json *summary;

    (void)state;
    assert_int_equal(mkdir(place, 0777), 0);
    assert_int_equal(chdir(place), 0);
    for (int i = 1; i <= 2; i++) {
        char *total = rk_format("trainer.total_training_steps=%d", 2 * i);

        outcome = run_rankctl((const char *const[]){"run", TINY_JOB, "--local=1", "--output=json", TINY,
                                                    TP "1", "trainer.save_freq=1",
                                                    "trainer.max_actor_ckpt_to_keep=1", total, NULL});
        assert_exit(&outcome, 0);
        rk_free(total);
        if (i == 1)
            outcome_fini(&outcome);
    }
    summary = parse_json(outcome.out);
    run_dir = rk_strdup(rk_json_as_string(rk_json_find(summary, "run_dir"), ""));
    rk_json_free(summary);
    outcome_fini(&outcome);
    assert_int_equal(count_metrics(run_dir), 4);
    checkpoints = rk_path_join(place, "checkpoints/rankd/digits");
    first = rk_path_join(checkpoints, "global_step_3");
    last = rk_path_join(checkpoints, "global_step_4/actor/huggingface/tokenizer.json");
    assert_int_not_equal(access(first, F_OK), 0);
    assert_int_equal(access(last, F_OK), 0);
    assert_int_equal(chdir("/"), 0);
    rk_free(last);
    rk_free(first);
    rk_free(checkpoints);
    rk_free(run_dir);
    rk_free(place);
}

/* Goal: the directory of a running run, and an incompatible job, are rejected before daemons start. */
static void test_resume_refused(void **state)
{
    static const char *const more[] = {"trainer.save_freq=1", NULL};
    char *dir = new_run_dir(), *other = new_run_dir(), *shared;
    struct rk_proc *run;
    struct outcome outcome;

    (void)state;
    shared = rk_format("trainer.default_local_dir=%s/checkpoints", dir);
    run = start_run(&one, dir, 100000, more);
    wait_stderr(run, "step 2/100000", 30000);
    outcome = do_run(&one, other, 3, (const char *const[]){"trainer.save_freq=1", shared, NULL});
    assert_exit(&outcome, 4);
    assert_text("stderr", outcome.err, "saves its checkpoints in '");
    assert_int_not_equal(access(other, F_OK), 0);
    outcome_fini(&outcome);
    kill_all_after(run, 1, 2, 100000);
    outcome = do_run(&one, dir, 3, (const char *const[]){"trainer.save_freq=1", "data.seed=7", NULL});
    assert_exit(&outcome, 2);
    assert_text("stderr", outcome.err, "data.seed: 1 in the checkpoint, 7 now");
    outcome_fini(&outcome);
    rk_free(shared);
    rk_free(other);
    rk_free(dir);
}

int main(void)
{
    const struct CMUnitTest all[] = {
        cmocka_unit_test(test_resume_after_kill_is_bit_for_bit),
        cmocka_unit_test(test_resume_of_pipelines_and_cp_is_bit_for_bit),
        cmocka_unit_test(test_resume_with_more_state_is_bit_for_bit),
#ifdef RK_FAULTS
        cmocka_unit_test(test_resume_after_interrupted_save_uses_the_previous_checkpoint),
        cmocka_unit_test(test_resume_full_disk_keeps_model_and_older_checkpoint),
#endif
        cmocka_unit_test(test_resume_on_another_layout),
        cmocka_unit_test(test_resume_finds_directories_by_itself),
        cmocka_unit_test(test_resume_refused),
    };
    /* What depends on the device. */
    const struct CMUnitTest on_gpus[] = {
        cmocka_unit_test(test_resume_after_kill_is_bit_for_bit),
        cmocka_unit_test(test_resume_of_pipelines_and_cp_is_bit_for_bit),
        cmocka_unit_test(test_resume_with_more_state_is_bit_for_bit),
    };
    const struct CMUnitTest figure[] = {cmocka_unit_test(test_resume_after_kill_is_bit_for_bit)};

    skip_without_devices(1);
    if (rk_env("RK_TEST_STEPS"))
        return cmocka_run_group_tests(figure, NULL, NULL);
    if (is_on_gpus())
        return cmocka_run_group_tests(on_gpus, NULL, NULL);
    return cmocka_run_group_tests(all, NULL, NULL);
}
