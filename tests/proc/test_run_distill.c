/* Distillation in whole runs: a teacher with a separate mesh. */
#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/proc/cli_fixture.h"

#define ACTOR     "actor_rollout_ref.actor."
#define TP        "megatron.tensor_model_parallel_size="
#define CP        "megatron.context_parallel_size="
#define TEACHER   "distillation.teacher."
#define TEACHER_2 "distillation.teacher_2."
#define LOSS      "distillation.distillation_loss."

/* Changes of the tiny job for distillation. */
static const char *const keys[] = {"trainer.total_training_steps=1", ACTOR "ppo_mini_batch_size=4",
                                   ACTOR "optim.lr=1e-3", NULL};

static struct outcome run_in(const char *dir, const char *num_daemons, const char *const *more)
{
    return run_tiny_job(dir, num_daemons, keys, more);
}

static char *run_new(const char *num_daemons, const char *const *more)
{
    return run_new_tiny_job(num_daemons, keys, more);
}

/* Path of the model of a run with another seed and this argument; rk_free it. */
static char *make_teacher_with(const char *arg)
{
    const char *const more[] = {ACTOR TP "1", ACTOR "megatron.seed=7", "trainer.total_training_steps=1", arg,
                                NULL};
    char *dir = run_new("1", more), *model = rk_path_join(dir, "hf");

    rk_free(dir);
    return model;
}

static char *make_teacher(void)
{
    return make_teacher_with(NULL);
}

/* Goal: with distillation alone the estimate of the KL to the teacher falls, and no layout of the actor or
 * the teacher changes it. */
static void test_distill_every_layout_gives_the_result_of_one_rank(void **state)
{
    static const char *const layouts[][2] = {{ACTOR TP "2", TEACHER TP "1"}, {ACTOR TP "1", TEACHER TP "2"}};
    static const char *const names[] = {"distillation/loss", "distillation/abs_loss", "distillation/loss_max",
                                        "actor/grad_norm"};
    char *teacher = make_teacher(), *path = rk_format(TEACHER "model.path=%s", teacher);
    const char *more[] = {ACTOR TP "1", "distillation.enabled=true", path, LOSS "use_task_rewards=false",
                          ACTOR TP "1", ACTOR "entropy_coeff=0",     NULL};
    char *expected_dir = run_new("1", more);
    struct rk_json *first = read_metrics(expected_dir, 1);

    (void)state;
    assert_true(metric(first, "distillation/loss") > 0.1);
    assert_true(metric(first, "timing_s/teacher") > 0.0);
    assert_null(rk_json_find(first, "actor/pg_loss"));
    for (size_t i = 0; i < RK_ARRAY_LEN(layouts); i++) {
        struct rk_json *metrics;
        char *dir;

        if (!has_devices(4)) {
            rk_test_skip_part("%s: needs 4 GPUs", layouts[i][0]);
            continue;
        }
        more[0] = layouts[i][0];
        more[4] = layouts[i][1];
        dir = run_new("4", more);
        metrics = read_metrics(dir, 1);
        for (size_t j = 0; j < RK_ARRAY_LEN(names); j++)
            assert_below(names[j], fabs(metric(metrics, names[j]) - metric(first, names[j])),
                         RK_TOL_F32_SUM * fmax(1.0, fabs(metric(first, names[j]))));
        rk_json_free(metrics);
        rk_free(dir);
    }
    rk_json_free(first);
    rk_free(expected_dir);
    rk_free(path);
    rk_free(teacher);
}

/* Goal: the same for every divergence over the teacher's top-k, and for the policy gradient of one; with the
 * log-probs of all ids of the vocabulary. */
static void test_distill_topk_every_layout_gives_the_result_of_one_rank(void **state)
{
    static const struct {
        const char *mode, *topk, *more;
    } cases[] = {
        {LOSS "loss_mode=forward_kl_topk", LOSS "topk=5", LOSS "log_prob_min_clamp=-10"},
        {LOSS "loss_mode=reverse_kl_topk", LOSS "topk=14", LOSS "use_policy_gradient=false"},
        {LOSS "loss_mode=jsd_topk", LOSS "topk=5", LOSS "beta=0.3"},
        {LOSS "loss_mode=forward_kl_topk", LOSS "topk=5", LOSS "use_policy_gradient=true"},
    };
    static const char *const names[] = {"distillation/loss",
                                        "distillation/loss_max",
                                        "distillation/student_mass",
                                        "distillation/teacher_mass",
                                        "distillation/overlap_ratio",
                                        "distillation/overlap_token_advantage",
                                        "actor/grad_norm"};
    char *teacher, *path;

    (void)state;
    if (!has_devices(2))
        rk_test_skip("needs 2 GPUs");
    teacher = make_teacher();
    path = rk_format(TEACHER "model.path=%s", teacher);
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        const char *more[] = {ACTOR TP "1",
                              "distillation.enabled=true",
                              path,
                              LOSS "use_task_rewards=false",
                              TEACHER TP "1",
                              ACTOR "entropy_coeff=0",
                              cases[i].mode,
                              cases[i].topk,
                              cases[i].more,
                              NULL,
                              NULL};
        struct rk_json *expected, *actual;
        char *dirs[2];

        dirs[0] = run_new("1", more);
        more[i % 2 ? 9 : 0] = i % 2 ? ACTOR CP "2" : ACTOR TP "2"; /* and the teacher's cp */
        dirs[1] = run_new("2", more);
        expected = read_metrics(dirs[0], 1);
        actual = read_metrics(dirs[1], 1);
        assert_true(metric(expected, "distillation/loss") > 0.01);
        assert_true(metric(expected, "actor/grad_norm") > 0.0);
        for (size_t j = 0; j < RK_ARRAY_LEN(names); j++)
            assert_below(names[j], fabs(metric(actual, names[j]) - metric(expected, names[j])),
                         RK_TOL_F32_SUM * fmax(1.0, fabs(metric(expected, names[j]))));
        if (strstr(cases[i].topk, "14"))
            assert_below("mass", fabs(metric(expected, "distillation/student_mass") - 1.0), RK_TOL_F32_SUM);
        rk_json_free(expected);
        rk_json_free(actual);
        rk_free(dirs[0]);
        rk_free(dirs[1]);
    }
    rk_free(path);
    rk_free(teacher);
}

/* Goal: rows of padding that only the teacher has are not tokens: all of its probability is on the student's
 * ids. Method: a teacher whose config.json has three rows more, with random weights like the others. */
static void test_distill_from_a_padded_vocabulary(void **state)
{
    static const char rows[] = "\"vocab_size\": 14";
    char *path = rk_test_fixture_path("../examples/digits/config.json");
    char *text = rk_test_read_file(path, NULL);
    char *config = rk_test_temp_path("padded.json"), *at = strstr(text, rows), *arg, *teacher, *dir;
    struct rk_json *metrics;

    (void)state;
    assert_non_null(at);
    memcpy(at, "\"vocab_size\": 17", strlen(rows));
    rk_test_write_file(config, text, strlen(text));
    arg = rk_format("actor_rollout_ref.model.hf_config_path=%s", config);
    teacher = make_teacher_with(arg);
    rk_free(arg);
    arg = rk_format(TEACHER "model.path=%s", teacher);
    dir = run_new("1", (const char *const[]){ACTOR TP "1", "distillation.enabled=true", arg, TEACHER TP "1",
                                             LOSS "loss_mode=jsd_topk", LOSS "topk=14", NULL});
    metrics = read_metrics(dir, 1);
    assert_below("teacher", fabs(metric(metrics, "distillation/teacher_mass") - 1.0), RK_TOL_F32_SUM);
    assert_below("overlap", fabs(metric(metrics, "distillation/overlap_ratio") - 1.0), RK_TOL_F32_SUM);
    assert_true(metric(metrics, "distillation/loss") > 0.01);
    rk_json_free(metrics);
    rk_free(dir);
    rk_free(arg);
    rk_free(teacher);
    rk_free(config);
    rk_free(text);
    rk_free(path);
}

/* Goal: use_opd adds the teacher to the advantages: the run has the reverse KL, the policy loss and a
 * different gradient than without, and no metrics of distillation. */
static void test_opd_changes_the_advantages(void **state)
{
    char *teacher = make_teacher(), *path = rk_format(TEACHER "model.path=%s", teacher);
    const char *more[] = {ACTOR TP "1",   "algorithm.use_opd=true",    path,
                          TEACHER TP "1", "algorithm.opd_kl_coef=0.5", NULL};
    char *dirs[2] = {run_new("1", more)};
    struct rk_json *metrics[2];

    (void)state;
    more[1] = "algorithm.use_opd=false";
    dirs[1] = run_new("1", more);
    for (int i = 0; i < 2; i++)
        metrics[i] = read_metrics(dirs[i], 1);
    assert_true(metric(metrics[0], "actor/opd_reverse_kl") > 0.1);
    assert_null(rk_json_find(metrics[1], "actor/opd_reverse_kl"));
    assert_null(rk_json_find(metrics[0], "distillation/loss"));
    assert_non_null(rk_json_find(metrics[0], "actor/pg_loss"));
    /* Group advantages have the mean 0; what was subtracted is the mean of the reverse KL. */
    assert_below("advantages",
                 fabs(metric(metrics[1], "critic/advantages/mean") -
                      metric(metrics[0], "critic/advantages/mean") -
                      0.5 * metric(metrics[0], "actor/opd_reverse_kl")),
                 RK_TOL_F32_SUM);
    for (int i = 0; i < 2; i++) {
        rk_json_free(metrics[i]);
        rk_free(dirs[i]);
    }
    rk_free(path);
    rk_free(teacher);
}

/* Goal: with a teacher that has the student's weights every estimate is 0, and so is the gradient. With the
 * policy loss, distillation still has its metrics. */
static void test_distill_from_itself_changes_nothing(void **state)
{
    char *teacher = make_teacher(), *path = rk_format(TEACHER "model.path=%s", teacher);
    char *student = rk_format("actor_rollout_ref.model.path=%s", teacher);
    const char *more[] = {ACTOR TP "1",
                          "distillation.enabled=true",
                          path,
                          student,
                          "~actor_rollout_ref.model.hf_config_path",
                          ACTOR "entropy_coeff=0",
                          LOSS "use_task_rewards=false",
                          NULL};
    char *dir = run_new("1", more);
    struct rk_json *metrics = read_metrics(dir, 1);

    (void)state;
    assert_below("loss", fabs(metric(metrics, "distillation/loss")), RK_TOL_F32_SUM);
    assert_below("grad_norm", fabs(metric(metrics, "actor/grad_norm")), RK_TOL_F32_SUM);
    assert_below("loss_max", fabs(metric(metrics, "distillation/loss_max")), RK_TOL_F32_SUM);
    rk_json_free(metrics);
    rk_free(dir);
    more[6] = LOSS "distillation_loss_coef=0.5";
    dir = run_new("1", more);
    metrics = read_metrics(dir, 1);
    assert_non_null(rk_json_find(metrics, "actor/pg_loss"));
    assert_non_null(rk_json_find(metrics, "distillation/loss"));
    rk_json_free(metrics);
    rk_free(dir);
    rk_free(student);
    rk_free(path);
    rk_free(teacher);
}

/* Rows of two sources, with twice as many of one; rk_free the path. */
static char *make_mixed_data(void)
{
    char *path = rk_test_temp_path("mixed.jsonl");
    struct rk_str text = {0};

    for (int i = 0; i < 12; i++)
        rk_str_appendf(
            &text,
            "{\"data_source\": \"%s\", \"prompt\": \"%d,1:9,1\", \"reward_model\": {\"ground_truth\": "
            "\"2\"}}\n",
            i % 3 == 0 ? "a" : "b", i % 10);
    rk_test_write_file(path, rk_str_text(&text), text.bytes);
    rk_str_fini(&text);
    return path;
}

/* Goal: of two teachers each gets its rows. With the same model in both, a run has the numbers of one
 * teacher, to the last bit. */
static void test_distill_two_teachers_divide_the_rows(void **state)
{
    static const char *const names[] = {"distillation/loss", "distillation/abs_loss", "distillation/loss_max",
                                        "actor/grad_norm"};
    char *teacher = make_teacher(), *path = rk_format(TEACHER "model.path=%s", teacher);
    char *data = make_mixed_data(), *files = rk_format("data.train_files=[\"%s\"]", data);
    char *second = rk_format(TEACHER_2 "model.path=%s", teacher);
    const char *more[] = {ACTOR TP "1",
                          files,
                          LOSS "use_task_rewards=false",
                          "distillation.enabled=true",
                          TEACHER TP "1",
                          path,
                          ACTOR "entropy_coeff=0",
                          "numerics=strict",
                          NULL,
                          NULL,
                          NULL,
                          NULL};
    struct rk_json *metrics[2];
    char *dirs[2];

    (void)state;
    if (!has_devices(2))
        rk_test_skip("needs 2 GPUs");
    dirs[0] = run_new("2", more);
    more[8] = TEACHER "key=a";
    more[9] = second;
    more[10] = TEACHER_2 "key=b";
    dirs[1] = run_new("2", more);
    for (int i = 0; i < 2; i++)
        metrics[i] = read_metrics(dirs[i], 1);
    assert_true(metric(metrics[0], names[0]) > 0.1);
    for (size_t i = 0; i < RK_ARRAY_LEN(names); i++)
        assert_true(metric(metrics[0], names[i]) == metric(metrics[1], names[i]));
    for (int i = 0; i < 2; i++) {
        rk_json_free(metrics[i]);
        rk_free(dirs[i]);
    }
    rk_free(second);
    rk_free(files);
    rk_free(data);
    rk_free(path);
    rk_free(teacher);
}

/* Goal: missing parts of a teacher are errors before a daemon is started. */
static void test_distill_without_a_teacher_is_refused(void **state)
{
    static const char *const more[] = {ACTOR TP "1", "distillation.enabled=true", NULL};
    char *dir = new_run_dir();
    struct outcome outcome = run_in(dir, "1", more);

    (void)state;
    assert_exit(&outcome, 2);
    assert_text("stderr", outcome.err, "set distillation.teacher.model.path");
    outcome_fini(&outcome);
    rk_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_distill_every_layout_gives_the_result_of_one_rank),
        cmocka_unit_test(test_distill_topk_every_layout_gives_the_result_of_one_rank),
        cmocka_unit_test(test_distill_from_a_padded_vocabulary),
        cmocka_unit_test(test_opd_changes_the_advantages),
        cmocka_unit_test(test_distill_from_itself_changes_nothing),
        cmocka_unit_test(test_distill_two_teachers_divide_the_rows),
        cmocka_unit_test(test_distill_without_a_teacher_is_refused),
    };

    skip_without_devices(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
