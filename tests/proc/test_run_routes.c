/* Router replay in whole runs over daemons: the digits example with experts, in modes R2 and R3. */
#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "tests/proc/cli_fixture.h"

#define MOE_JOB RK_TEST_SOURCE_DIR "/examples/digits/moe.json"
#define ACTOR   "actor_rollout_ref.actor."
#define REF     "actor_rollout_ref.ref."
#define MODE    "megatron.router_replay.mode="
#define CAPTURE "actor_rollout_ref.rollout.enable_rollout_routing_replay=true"
#define TP      ACTOR "megatron.tensor_model_parallel_size="
#define TOKENS  "training/rollout_routes_diff_tokens"
#define LAYERS  "training/rollout_routes_diff_layers"
#define STRICT  "numerics=strict"
#define EPOCHS  ACTOR "ppo_epochs=2", ACTOR "optim.lr=0.05"
#define MODEL   "hf/model.safetensors"
#define STEPS   2

/* Runs the job at `path` in a new directory, which it returns in *dir (rk_free it). */
static struct outcome run_job(char **dir, const char *path, const char *local, const char *const *changes)
{
    const char *args[28] = {
        "run",
        path,
        "--local",
        local,
        "--run-dir",
        NULL,
        "data.train_batch_size=4",
        "actor_rollout_ref.rollout.n=4",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "trainer.total_training_steps=2",
        cli_device(),
    };

    *dir = new_run_dir();
    args[5] = *dir;
    append_args(args, RK_ARRAY_LEN(args), changes);
    return run_rankctl(args);
}

static char *run_moe(const char *local, const char *const *changes)
{
    char *dir;
    struct outcome outcome = run_job(&dir, MOE_JOB, local, changes);

    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    return dir;
}

/* The metric of the step; NAN if it is missing. */
static double metric_of(const char *dir, int64_t step, const char *name)
{
    struct rk_json *metrics = read_metrics(dir, step);
    double value = rk_json_as_real(rk_json_find(metrics, name), NAN);

    rk_json_free(metrics);
    return value;
}

static void assert_routes_are_equal(const char *dir)
{
    for (int64_t step = 1; step <= STEPS; step++) {
        assert_true(metric_of(dir, step, TOKENS) == 0.0);
        assert_true(metric_of(dir, step, LAYERS) == 0.0);
    }
}

/* Goal: in strict numerics rollout and training choose alike, so with one update a step all modes end with
 * the same weights, bit for bit, on tp 2 if there are two devices. */
static void test_run_with_one_update_has_the_same_bits_in_all_modes(void **state)
{
    const char *local = has_devices(2) ? "2" : "1", *tp = has_devices(2) ? TP "2" : TP "1";
    char *disabled = run_moe(local, (const char *const[]){tp, STRICT, NULL});
    char *compared =
        run_moe(local, (const char *const[]){tp, STRICT, ACTOR "old_log_prob=recompute", CAPTURE, NULL});
    char *r2 = run_moe(local, (const char *const[]){tp, STRICT, ACTOR MODE "R2", NULL});
    char *r3 = run_moe(local, (const char *const[]){tp, STRICT, ACTOR MODE "R3", CAPTURE, NULL});

    (void)state;
    assert_same_file(compared, disabled, MODEL);
    assert_same_file(r2, disabled, MODEL);
    assert_same_file(r3, disabled, MODEL);
    assert_routes_are_equal(compared);
    assert_routes_are_equal(r3);
    assert_true(isnan(metric_of(disabled, 1, TOKENS)));
    assert_true(isnan(metric_of(r2, 1, TOKENS)));
    rk_free(disabled);
    rk_free(compared);
    rk_free(r2);
    rk_free(r3);
}

/* Goal: with more updates a step routers change between them: replay has an effect, and R2 and R3, whose
 * experts are equal in strict numerics, have the same one. */
static void test_run_with_two_epochs_replays_the_routes_of_the_first(void **state)
{
    char *disabled = run_moe("1", (const char *const[]){TP "1", STRICT, EPOCHS, NULL});
    char *r2 = run_moe("1", (const char *const[]){TP "1", STRICT, EPOCHS, ACTOR MODE "R2", NULL});
    char *r3 = run_moe("1", (const char *const[]){TP "1", STRICT, EPOCHS, ACTOR MODE "R3", CAPTURE, NULL});

    (void)state;
    assert_same_file(r3, r2, MODEL);
    assert_true(metric_of(r2, 2, "actor/grad_norm") != metric_of(disabled, 2, "actor/grad_norm"));
    rk_free(disabled);
    rk_free(r2);
    rk_free(r3);
}

struct layout {
    const char *label, *local;
    const char *changes[6];
};

/* Goal: every layout gives the result of one rank in both modes, within the planned memory. */
static void test_run_every_layout_replays_as_one_rank(void **state)
{
    static const struct layout layouts[] = {
        {"one rank", "1", {TP "1"}},
        {"recomputed activations",
         "1",
         {TP "1", ACTOR "megatron.override_transformer_config.recompute_granularity=full"}},
        {"pp 2 x cp 2",
         "4",
         {TP "1", ACTOR "megatron.pipeline_model_parallel_size=2", ACTOR "megatron.context_parallel_size=2"}},
        {"tp 2 x dp 2", "4", {TP "2"}},
        {"dp 2, ep 2",
         "2",
         {TP "1", ACTOR "megatron.expert_model_parallel_size=2",
          "actor_rollout_ref.rollout.tensor_model_parallel_size=1"}},
    };
    static const char *const modes[][5] = {
        {ACTOR MODE "R2"}, {ACTOR MODE "R3", CAPTURE, ACTOR "use_kl_loss=true", REF MODE "R3"}};
    static const char *const same[] = {"critic/score/mean", "actor/entropy", "actor/pg_loss",
                                       "actor/grad_norm"};

    (void)state;
    for (size_t m = 0; m < RK_ARRAY_LEN(modes); m++) {
        double expected[RK_ARRAY_LEN(same)];

        for (size_t i = 0; i < RK_ARRAY_LEN(layouts); i++) {
            const char *changes[12] = {0};
            char *dir;

            memcpy(changes, layouts[i].changes, sizeof(layouts[i].changes));
            append_args(changes, RK_ARRAY_LEN(changes), modes[m]);
            if (!has_devices(layouts[i].local[0] - '0')) {
                rk_test_skip_part("%s: needs %s GPUs", layouts[i].label, layouts[i].local);
                continue;
            }
            print_message("%s\n", layouts[i].label);
            dir = run_moe(layouts[i].local, changes);
            for (size_t k = 0; k < RK_ARRAY_LEN(same); k++) {
                double got = metric_of(dir, 1, same[k]);

                if (i == 0)
                    expected[k] = got;
                assert_below(same[k], fabs(got - expected[k]), RK_TOL_F32_SUM * fmax(1.0, fabs(expected[k])));
            }
            assert_true(metric_of(dir, STEPS, "actor/memory_overflows") == 0.0);
            assert_true(metric_of(dir, STEPS, "rollout/memory_overflows") == 0.0);
            if (m == 1)
                assert_true(metric_of(dir, 1, TOKENS) >= 0.0);
            rk_free(dir);
        }
    }
}

/* Goal: a recording has the column: the recorded calls, of which updates need it, give the same bits again.
 * The greedy responses of remax do not return it. */
static void test_recording_of_a_run_keeps_the_routes(void **state)
{
    char *record = rk_test_temp_path("routes");
    char *dir = run_moe("1", (const char *const[]){TP "1", ACTOR MODE "R3", CAPTURE, "--record", record,
                                                   "algorithm.adv_estimator=remax", NULL});
    struct outcome outcome = run_rankctl((const char *const[]){"replay", "--output=json", record, NULL});
    struct rk_json *answer;

    (void)state;
    assert_exit(&outcome, 0);
    answer = parse_json(outcome.out);
    assert_string_equal(rk_json_as_string(rk_json_find(answer, "end"), ""), "all");
    assert_int_equal(rk_json_count(rk_json_find(answer, "differences")), 0);
    rk_json_free(answer);
    outcome_fini(&outcome);
    rk_free(record);
    rk_free(dir);
}

/* Goal: a dense model with replay ends the run before it has memory, with the key. */
static void test_run_of_dense_model_is_refused(void **state)
{
    char *dir;
    struct outcome outcome =
        run_job(&dir, TINY_JOB, "1", (const char *const[]){TP "1", ACTOR MODE "R3", CAPTURE, NULL});

    (void)state;
    assert_true(outcome.code != 0);
    assert_text("stderr", outcome.err, MODE "R3");
    assert_null(strstr(outcome.err, "step 1/"));
    outcome_fini(&outcome);
    rk_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run_with_one_update_has_the_same_bits_in_all_modes),
        cmocka_unit_test(test_run_with_two_epochs_replays_the_routes_of_the_first),
        cmocka_unit_test(test_run_every_layout_replays_as_one_rank),
        cmocka_unit_test(test_recording_of_a_run_keeps_the_routes),
        cmocka_unit_test(test_run_of_dense_model_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
