/* On-policy distillation of the digits example brings the KL to the teacher below a tenth. Label long. */
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/proc/cli_fixture.h"

#define DISTILL_JOB    RK_TEST_SOURCE_DIR "/examples/digits/distill.json"
#define ACTOR          "actor_rollout_ref.actor."
#define LOSS           "distillation.distillation_loss."
#define RUN_TIMEOUT_MS 900000
#define LAST_STEPS     5 /* steps over which the KL is averaged, because samples are drawn at temperature 1 */

static void run(const char *job, const char *dir, const char *const *more)
{
    const char *args[16] = {"run", job,          "--local",
                            "2",   "--quiet",    "--run-dir",
                            dir,   cli_device(), ACTOR "megatron.tensor_model_parallel_size=1"};
    struct outcome outcome;

    append_args(args, RK_ARRAY_LEN(args), more);
    outcome = finish_rankctl(start_rankctl(args), RUN_TIMEOUT_MS);
    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
}

/* A policy trained with GRPO for some steps, from weights that differ from the student's. */
static char *make_teacher(void)
{
    static const char *const more[] = {ACTOR "megatron.seed=7", "trainer.total_training_steps=2", NULL};
    char *dir = new_run_dir(), *path;

    run(TINY_JOB, dir, more);
    path = rk_format("distillation.teacher.model.path=%s/hf", dir);
    rk_free(dir);
    return path;
}

static double loss_at(const char *dir, int64_t step)
{
    struct rk_json *metrics = read_metrics(dir, step);
    double loss = metric(metrics, "distillation/loss");

    rk_json_free(metrics);
    return loss;
}

/* Goal: the estimate at the sampled tokens, and the KL over the whole vocabulary (14 ids), fall below a tenth
 * of their initial values. */
static void test_distillation_brings_the_kl_below_a_tenth(void **state)
{
    static const char *const modes[] = {LOSS "loss_mode=k2", LOSS "loss_mode=forward_kl_topk"};
    char *teacher = make_teacher();

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(modes); i++) {
        const char *const more[] = {teacher, modes[i], LOSS "topk=14", NULL};
        char *dir = new_run_dir();
        int64_t num_steps;
        double first, last = 0.0;

        run(DISTILL_JOB, dir, more);
        num_steps = count_metrics(dir);
        first = loss_at(dir, 1);
        for (int64_t step = num_steps - LAST_STEPS + 1; step <= num_steps; step++)
            last += loss_at(dir, step) / LAST_STEPS;
        print_message("%s: %.4f, then %.4f: %.3f of it\n", modes[i], first, last, last / first);
        assert_true(last / first < 0.1);
        rk_free(dir);
    }
    rk_free(teacher);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_distillation_brings_the_kl_below_a_tenth),
    };

    skip_without_devices(2);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
