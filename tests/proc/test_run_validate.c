/* Validation in whole runs: it does not affect training, its metrics are those of the dumped responses, and
 * it does not depend on the batches of prompts. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/proc/cli_fixture.h"

#define VAL_KWARGS  "actor_rollout_ref.rollout.val_kwargs."
#define VAL_PROMPTS 5
#define VAL_N       3
#define VAL_MEAN    "val-core/digits/acc/mean@3"

/* The first prompts of the example, as held-out ones. */
static char *val_files(void)
{
    char *text = rk_test_read_file(RK_TEST_SOURCE_DIR "/examples/digits/train.jsonl", NULL);
    char *path = rk_test_temp_path("val.jsonl"), *key, *end = text;

    for (int i = 0; i < VAL_PROMPTS; i++)
        end = strchr(end, '\n') + 1;
    rk_test_write_file(path, text, (size_t)(end - text));
    key = rk_format("data.val_files=[\"%s\"]", path);
    rk_free(path);
    rk_free(text);
    return key;
}

/* Runs the tiny job on two replicas with held-out prompts and `changes` in a run directory. */
static struct outcome run_in(const char *dir, const char *const *changes)
{
    char *files = val_files();
    const char *const keys[] = {"actor_rollout_ref.actor.megatron.tensor_model_parallel_size=1", files, NULL};
    struct outcome outcome = run_tiny_job(dir, "2", keys, changes);

    rk_free(files);
    return outcome;
}

/* run_in a new directory; rk_free *dir. */
static struct outcome run_job(const char *const *changes, char **dir)
{
    *dir = new_run_dir();
    return run_in(*dir, changes);
}

/* Adds up a dumped step. */
struct dumped {
    int64_t num_lines;
    double mean_score;
};

static void check_line(const struct rk_json *line, int64_t step, bool is_validation)
{
    static const char *const texts[] = {"input", "output", "gts", "uid"};
    const struct rk_json *log_probs = rk_json_find(line, "rollout_log_probs");

    for (size_t i = 0; i < RK_ARRAY_LEN(texts); i++)
        assert_non_null(rk_json_as_string(rk_json_find(line, texts[i]), NULL));
    assert_int_equal(rk_json_as_int(rk_json_find(line, "step"), -1), step);
    assert_int_equal(rk_json_find(line, "reward") != NULL, is_validation);
    assert_true(rk_json_count(log_probs) > 0);
    assert_int_equal(rk_json_count(log_probs), rk_json_count(rk_json_find(line, "response_ids")));
    for (int64_t i = 0; i < rk_json_count(log_probs); i++)
        assert_true(rk_json_as_real(rk_json_at(log_probs, i), 1.0) <= 0.0);
}

static struct dumped read_dump(const char *dir, const char *folder, int64_t step)
{
    char *path = rk_format("%s/%s/%lld.jsonl", dir, folder, (long long)step);
    char *text = rk_test_read_file(path, NULL), *rest = text, *line;
    struct dumped dumped = {0};
    double sum = 0.0;

    while ((line = strsep(&rest, "\n")) && *line) {
        struct rk_json *json = parse_json(line);

        check_line(json, step, strcmp(folder, "val") == 0);
        sum += rk_json_as_real(rk_json_find(json, "score"), NAN);
        dumped.num_lines++;
        rk_json_free(json);
    }
    dumped.mean_score = sum / (double)dumped.num_lines;
    rk_free(text);
    rk_free(path);
    return dumped;
}

/* Every metric of the plain run except times is in the other run, bit-identical. */
static void assert_same_training(const char *plain, const char *validated)
{
    for (int64_t step = 1; step <= TINY_STEPS; step++) {
        struct rk_json *expected = read_metrics(plain, step);
        struct rk_json *metrics = read_metrics(validated, step + 1); /* after that of step 0 */

        assert_same_step(metrics, expected, step);
        rk_json_free(expected);
        rk_json_free(metrics);
    }
}

/* Goal: with validation before, every two steps and at the end, sampled and in batches that two replicas do
 * not divide, the training is bit-identical to one without; metrics, dumps, summary and report agree. */
static void test_validate_training_is_the_same_and_numbers_are_those_of_the_dump(void **state)
{
    static const int64_t val_steps[] = {0, 2, 3};
    char *plain, *validated, *report, *rollout_dir = rk_test_temp_path("dumps"), *changes[3];
    struct outcome outcome = run_job((const char *const[]){"trainer.val_before_train=false", NULL}, &plain);
    struct rk_json *summary;

    (void)state;
    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    changes[0] = rk_format("trainer.rollout_data_dir=%s/train", rollout_dir);
    changes[1] = rk_format("trainer.validation_data_dir=%s/val", rollout_dir);
    outcome = run_job((const char *const[]){"trainer.test_freq=2", VAL_KWARGS "n=3",
                                            VAL_KWARGS "temperature=0.7", VAL_KWARGS "top_k=8",
                                            VAL_KWARGS "do_sample=true", "data.val_batch_size=3",
                                            "trainer.log_val_generations=4", changes[0], changes[1], NULL},
                      &validated);
    assert_exit(&outcome, 0);
    assert_text("stderr", outcome.err, "step 0  " VAL_MEAN);
    assert_text("stdout", outcome.out, "validation of step 3: " VAL_MEAN);
    outcome_fini(&outcome);
    assert_int_equal(count_metrics(validated), TINY_STEPS + 1);
    assert_same_training(plain, validated);
    assert_same_file(validated, plain, "hf/model.safetensors");
    for (size_t i = 0; i < RK_ARRAY_LEN(val_steps); i++) {
        struct dumped dumped = read_dump(rollout_dir, "val", val_steps[i]);
        struct rk_json *metrics = read_metrics(validated, val_steps[i] + 1);

        assert_int_equal(dumped.num_lines, VAL_PROMPTS * VAL_N);
        assert_below("mean of the dump", fabs(dumped.mean_score - metric(metrics, VAL_MEAN)), 1e-12);
        assert_true(isfinite(metric(metrics, "val-core/digits/acc/best@3/mean")));
        assert_true(isfinite(metric(metrics, "val-aux/digits/reward/worst@2/std")));
        assert_true(metric(metrics, "timing_s/testing") > 0.0);
        rk_json_free(metrics);
    }
    for (int64_t step = 1; step <= TINY_STEPS; step++) {
        struct dumped dumped = read_dump(rollout_dir, "train", step);
        struct rk_json *metrics = read_metrics(validated, step + 1);

        assert_int_equal(dumped.num_lines, 16);
        assert_below("mean of the dump", fabs(dumped.mean_score - metric(metrics, "critic/score/mean")),
                     1e-6);
        assert_null(rk_json_find(metrics, step == 1 ? VAL_MEAN : "none"));
        rk_json_free(metrics);
    }
    summary = read_json(validated, "summary.json");
    assert_int_equal(rk_json_as_int(rk_json_find(rk_json_find(summary, "validation"), "step"), -1), 3);
    changes[2] = rk_path_join(validated, "report.html");
    report = rk_test_read_file(changes[2], NULL);
    assert_text("report", report, "<h3>Validation, step 3</h3>");
    rk_free(report);
    for (int i = 0; i < 3; i++)
        rk_free(changes[i]);
    rk_json_free(summary);
    rk_free(rollout_dir);
    rk_free(validated);
    rk_free(plain);
}

/* The plan of the first rank: an actor that does not train, and a rollout. */
static void assert_plan_without_training(const char *dir)
{
    static const char *const kinds[] = {"gradients", "optimizer", "masters"};
    char *path = rk_path_join(dir, "memory_plan.json");
    const struct rk_json *roles;
    struct rk_json *plan;

    assert_ok(rk_json_parse_file(&plan, path, 1 << 20, 0));
    roles = rk_json_find(rk_json_at(rk_json_find(plan, "ranks"), 0), "roles");
    assert_int_equal(rk_json_count(roles), 2);
    for (int64_t i = 0; i < 2; i++) {
        const struct rk_json *role = rk_json_at(roles, i), *planned = rk_json_find(role, "planned");

        assert_string_equal(rk_json_as_string(rk_json_find(role, "role"), ""), i ? "rollout" : "actor");
        for (size_t k = 0; k < RK_ARRAY_LEN(kinds); k++)
            assert_int_equal(rk_json_as_int(rk_json_find(planned, kinds[k]), -1), 0);
    }
    rk_json_free(plan);
    rk_free(path);
}

/* Goal: val_only trains and exports nothing, and has no memory for it, nor reference and critic; greedy
 * results do not depend on the batches. */
static void test_validate_only_ends_after_the_validation(void **state)
{
    static const char *const batches[] = {"data.val_batch_size=2", "data.val_batch_size=100"};
    double means[RK_ARRAY_LEN(batches)];

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(batches); i++) {
        char *dir, *hf;
        struct outcome outcome =
            run_job((const char *const[]){"trainer.val_only=true", "numerics=strict", batches[i],
                                          "actor_rollout_ref.actor.use_kl_loss=true",
                                          "algorithm.adv_estimator=gae", NULL},
                    &dir);
        struct rk_json *metrics;

        assert_exit(&outcome, 0);
        assert_text("stdout", outcome.out, "validation of step 0: val-core/digits/acc/mean@1");
        assert_null(strstr(outcome.err, "step 1/"));
        assert_int_equal(count_metrics(dir), 1);
        metrics = read_metrics(dir, 1);
        means[i] = metric(metrics, "val-core/digits/acc/mean@1");
        assert_plan_without_training(dir);
        hf = rk_path_join(dir, "hf");
        assert_int_not_equal(access(hf, F_OK), 0);
        rk_free(hf);
        rk_json_free(metrics);
        outcome_fini(&outcome);
        rk_free(dir);
    }
    assert_true(means[0] == means[1]);
}

/* Goal: val_only of a checkpoint, in a separate directory, gives the same metrics as the run after that step.
 * The run's directory is not changed. */
static void test_validate_only_of_a_checkpoint_finds_its_model(void **state)
{
    char *trained, *dir, *resume;
    struct outcome outcome = run_job((const char *const[]){"trainer.save_freq=2", "trainer.test_freq=2",
                                                           "trainer.val_before_train=false", NULL},
                                     &trained);
    struct rk_json *metrics, *expected;

    (void)state;
    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    resume = rk_format("trainer.resume_from_path=%s/checkpoints/global_step_2", trained);
    outcome = run_job(
        (const char *const[]){"trainer.val_only=true", "trainer.resume_mode=resume_path", resume, NULL},
        &dir);
    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    assert_int_equal(count_metrics(dir), 1);
    assert_int_equal(count_metrics(trained), TINY_STEPS);
    metrics = read_metrics(dir, 1);
    expected = read_metrics(trained, 2);
    assert_true(metric(metrics, "training/global_step") == 2.0);
    assert_true(metric(metrics, "val-core/digits/acc/mean@1") ==
                metric(expected, "val-core/digits/acc/mean@1"));
    rk_json_free(expected);
    rk_json_free(metrics);
    rk_free(dir);
    outcome = run_in(trained, (const char *const[]){"trainer.val_only=true",
                                                    "trainer.resume_mode=resume_path", resume, NULL});
    assert_exit(&outcome, 2);
    assert_text("stderr", outcome.err, trained);
    assert_int_equal(count_metrics(trained), TINY_STEPS);
    outcome_fini(&outcome);
    rk_free(resume);
    rk_free(trained);
}

/* Goal: a directory for dumps that cannot be created is an error before anything runs. */
static void test_validate_dump_folder_that_is_a_file_trains_nothing(void **state)
{
    char *path = rk_test_temp_path("in_the_way"), *change, *dir;
    struct outcome outcome;

    (void)state;
    rk_test_write_file(path, "x", 1);
    change = rk_format("trainer.validation_data_dir=%s", path);
    outcome = run_job((const char *const[]){change, NULL}, &dir);
    assert_exit(&outcome, 2);
    assert_text("stderr", outcome.err, "trainer.validation_data_dir");
    assert_text("stderr", outcome.err, path);
    assert_int_equal(count_metrics(dir), 0);
    outcome_fini(&outcome);
    rk_free(dir);
    rk_free(change);
    rk_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_validate_training_is_the_same_and_numbers_are_those_of_the_dump),
        cmocka_unit_test(test_validate_only_ends_after_the_validation),
        cmocka_unit_test(test_validate_only_of_a_checkpoint_finds_its_model),
        cmocka_unit_test(test_validate_dump_folder_that_is_a_file_trains_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
