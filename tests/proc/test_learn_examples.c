/* The examples of algorithm sft and dpo learn, from three seeds. Label long. */
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/proc/cli_fixture.h"

#define SFT_JOB        RK_TEST_SOURCE_DIR "/examples/digits/sft.json"
#define DPO_JOB        RK_TEST_SOURCE_DIR "/examples/digits/dpo.json"
#define ACCURACY       "val-core/digits/acc/mean@1"
#define RUN_TIMEOUT_MS 240000

static const char *const seeds[] = {"42", "7", "1234"};

/* Starts a run of `job` with a seed and runs it to its end; gives its summary. */
static struct rk_json *run_seeded(const char *job, const char *seed_value, const char *dir,
                                  const char *const *more)
{
    char *seed = rk_format("actor_rollout_ref.actor.megatron.seed=%s", seed_value);
    const char *args[16] = {"run", job, "--local", "4", "--quiet", "--run-dir", dir, seed};
    struct outcome outcome;
    size_t count = 8;

    for (; more && *more; more++)
        args[count++] = *more;
    outcome = finish_rankctl(start_rankctl(args), RUN_TIMEOUT_MS);
    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    rk_free(seed);
    return read_json(dir, "summary.json");
}

/* Goal: SFT reaches an accuracy of 0.9 on all prompts, a ninth of them held out, from random weights; GRPO
 * continues from its model and keeps the accuracy. The entropy bonus is smaller than the example's, which is
 * needed to find answers from random weights and would reduce the accuracy of a trained model by 0.05. */
static void test_sft_then_grpo(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(seeds); i++) {
        char *sft = new_run_dir(), *grpo = new_run_dir();
        char *model = rk_format("actor_rollout_ref.model.path=%s/hf", sft);
        const char *const more[] = {model,
                                    "~actor_rollout_ref.model.hf_config_path",
                                    "actor_rollout_ref.actor.entropy_coeff=0.04",
                                    "data.val_files=" RK_TEST_SOURCE_DIR "/examples/digits/train.jsonl",
                                    "trainer.total_training_steps=10",
                                    "trainer.test_freq=10",
                                    NULL};
        struct rk_json *first, *last;
        double before, after;

        rk_json_free(run_seeded(SFT_JOB, seeds[i], sft, NULL));
        last = run_seeded(TINY_JOB, seeds[i], grpo, more);
        first = read_metrics(grpo, 1); /* the validation of the model trained by SFT */
        before = metric(first, ACCURACY);
        after = metric(rk_json_find(last, "validation"), ACCURACY);
        print_message("seed %s: accuracy %.3f, after 10 steps of GRPO %.3f\n", seeds[i], before, after);
        assert_true(before >= 0.9);
        assert_true(after >= 0.9);
        rk_json_free(first);
        rk_json_free(last);
        rk_free(model);
        rk_free(grpo);
        rk_free(sft);
    }
}

/* Goal: DPO raises the margin between held-out answers from 0, and prefers the right one of every pair. */
static void test_dpo_raises_the_held_out_margin(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(seeds); i++) {
        char *dir = new_run_dir();
        struct rk_json *summary = run_seeded(DPO_JOB, seeds[i], dir, NULL), *first = read_metrics(dir, 1);
        const struct rk_json *validation = rk_json_find(summary, "validation");

        print_message("seed %s: margin %.3f, accuracy %.3f\n", seeds[i],
                      metric(validation, "val/rewards/margins"),
                      metric(validation, "val/rewards/accuracies"));
        assert_true(metric(first, "val/rewards/margins") == 0.0); /* the policy equals its reference */
        assert_true(metric(validation, "val/rewards/margins") >= 1.0);
        assert_true(metric(validation, "val/loss") < metric(first, "val/loss"));
        assert_true(metric(validation, "val/rewards/accuracies") >= 0.9);
        rk_json_free(first);
        rk_json_free(summary);
        rk_free(dir);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sft_then_grpo),
        cmocka_unit_test(test_dpo_raises_the_held_out_margin),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
