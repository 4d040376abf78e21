/* Runs of algorithm sft and dpo: the loss falls, the layout does not change it, a resumed run is
 * bit-identical, and invalid data fails a run before any daemon starts. */
#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/proc/cli_fixture.h"

#define DIGITS   RK_TEST_SOURCE_DIR "/examples/digits/"
#define MOE      "actor_rollout_ref.model.hf_config_path=" DIGITS "config-moe.json"
#define EP       "actor_rollout_ref.actor.megatron.expert_model_parallel_size="
#define STEPS    4
#define ARGS_MAX 20

static const struct {
    const char *job;
    const char *metrics[6]; /* that every layout must have, of training and validation */
    double first_loss;      /* 0: unknown */
} kinds[] = {
    {DIGITS "sft.json", {"train/loss", "train/grad_norm", "val/loss"}, 0.0},
    {DIGITS "dpo.json",
     {"train/loss", "train/grad_norm", "rewards/margins", "val/loss", "val/rewards/margins",
      "val/logps/chosen"},
     0.69314718},
};

static char *straight[RK_ARRAY_LEN(kinds)]; /* run directories of two replicas, for both tests below */

/* The job on `num_daemons` replicas with `steps` steps and `more`, NULL-terminated. */
static void run_job(const char *job, const char *dir, const char *num_daemons, int64_t steps,
                    const char *const *more)
{
    char *total = rk_format("trainer.total_training_steps=%lld", (long long)steps);
    const char *args[ARGS_MAX] = {"run",
                                  job,
                                  "--local",
                                  num_daemons,
                                  "--run-dir",
                                  dir,
                                  "data.train_batch_size=8",
                                  "trainer.test_freq=2",
                                  "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=1",
                                  total,
                                  cli_device()};
    struct outcome outcome;

    append_args(args, ARGS_MAX, more);
    outcome = run_rankctl(args);
    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    rk_free(total);
}

static void assert_near(const struct rk_json *metrics, const struct rk_json *expected, const char *name)
{
    double a, b;

    if (!rk_json_find(expected, name))
        return;
    a = metric(metrics, name);
    b = metric(expected, name);
    if (!(fabs(a - b) <= 1e-5 * fmax(fabs(b), 1.0)))
        fail_msg("%s is %.9g, expected %.9g", name, a, b);
}

static void test_run_examples_layouts_agree_and_the_loss_falls(void **state)
{
    (void)state;
    for (size_t k = 0; k < RK_ARRAY_LEN(kinds); k++) {
        static const char *const shared[] = {"actor_rollout_ref.actor.megatron.context_parallel_size=2",
                                             NULL};
        char *one = new_run_dir(), *two = straight[k] = new_run_dir(), *cp = new_run_dir();
        double first = 0.0, last = 0.0, held_out = 0.0;

        print_message("%s\n", kinds[k].job);
        run_job(kinds[k].job, one, "1", STEPS, NULL);
        run_job(kinds[k].job, two, "2", STEPS, NULL);
        run_job(kinds[k].job, cp, "2", STEPS, shared);
        for (int64_t line = 1; line <= STEPS + 1; line++) { /* the first is the validation of step 0 */
            struct rk_json *expected = read_metrics(one, line), *metrics = read_metrics(two, line);
            struct rk_json *of_cp = read_metrics(cp, line);

            for (size_t i = 0; i < RK_ARRAY_LEN(kinds[k].metrics) && kinds[k].metrics[i]; i++) {
                assert_near(metrics, expected, kinds[k].metrics[i]);
                assert_near(of_cp, expected, kinds[k].metrics[i]);
            }
            if (line == 1)
                held_out = metric(metrics, "val/loss");
            if (line == 2)
                first = metric(metrics, "train/loss");
            if (line > 1)
                last = metric(metrics, "train/loss");
            rk_json_free(expected);
            rk_json_free(metrics);
            rk_json_free(of_cp);
        }
        if (kinds[k].first_loss > 0.0) { /* the policy equals its reference: ln 2 */
            assert_true(fabs(first - kinds[k].first_loss) < 1e-6);
            assert_true(fabs(held_out - kinds[k].first_loss) < 1e-6);
        }
        assert_true(last < first);
        rk_free(one);
        rk_free(cp);
    }
}

/* Goal: both algorithms train experts, on one rank and with experts on two. */
static void test_run_examples_train_experts(void **state)
{
    (void)state;
    if (count_devices(2) < 2)
        rk_test_skip("needs 2 GPUs");
    for (size_t k = 0; k < RK_ARRAY_LEN(kinds); k++) {
        char *one = new_run_dir(), *two = new_run_dir();
        double first = 0.0, last = 0.0;

        run_job(kinds[k].job, one, "1", STEPS, (const char *const[]){MOE, NULL});
        run_job(kinds[k].job, two, "2", STEPS, (const char *const[]){MOE, EP "2", NULL});
        for (int64_t line = 1; line <= STEPS + 1; line++) {
            struct rk_json *expected = read_metrics(one, line), *metrics = read_metrics(two, line);

            for (size_t i = 0; i < RK_ARRAY_LEN(kinds[k].metrics) && kinds[k].metrics[i]; i++)
                assert_near(metrics, expected, kinds[k].metrics[i]);
            if (line == 2)
                first = metric(metrics, "train/loss");
            if (line > 1)
                last = metric(metrics, "train/loss");
            rk_json_free(expected);
            rk_json_free(metrics);
        }
        assert_true(last < first);
        rk_free(one);
        rk_free(two);
    }
}

static void test_run_examples_go_on_with_the_same_bits(void **state)
{
    static const char *const saves[] = {"trainer.save_freq=2", NULL};

    (void)state;
    for (size_t k = 0; k < RK_ARRAY_LEN(kinds); k++) {
        char *parts = new_run_dir();

        print_message("%s\n", kinds[k].job);
        run_job(kinds[k].job, parts, "2", STEPS / 2, saves);
        run_job(kinds[k].job, parts, "2", STEPS, saves);
        assert_int_equal(count_metrics(parts), STEPS + 1);
        for (int64_t line = 1; line <= STEPS + 1; line++) {
            struct rk_json *expected = read_metrics(straight[k], line), *metrics = read_metrics(parts, line);

            assert_same_step(metrics, expected, line - 1);
            rk_json_free(expected);
            rk_json_free(metrics);
        }
        assert_same_file(parts, straight[k], "hf/model.safetensors");
        rk_free(straight[k]);
        rk_free(parts);
    }
}

static const struct {
    const char *label, *job, *row, *message;
} bad_rows[] = {
    {"an empty side", DIGITS "dpo.json", "{\"prompt\": \"1\", \"chosen\": \"\", \"rejected\": \"2\"}\n",
     "bad.jsonl:1: prompt, chosen: the response is empty"},
    {"the same answer twice", DIGITS "dpo.json",
     "{\"prompt\": \"1\", \"chosen\": \"2\", \"rejected\": \"2\"}\n", "bad.jsonl:1: chosen, rejected: "},
    {"no answer", DIGITS "sft.json",
     "{\"prompt\": \"1\", \"response\": \"2\"}\n{\"messages\": [{\"role\": \"user\", \"content\": \"1\"}]}\n",
     "bad.jsonl:2: messages: "},
};

static void test_run_examples_bad_row_ends_the_run_before_it_begins(void **state)
{
    char *path = rk_test_temp_path("bad.jsonl"), *files = rk_format("data.train_files=%s", path);

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(bad_rows); i++) {
        char *dir = new_run_dir();
        const char *args[] = {"run", bad_rows[i].job, "--local", "2", "--run-dir", dir, files, NULL};
        struct outcome outcome;

        print_message("%s\n", bad_rows[i].label);
        rk_test_write_file(path, bad_rows[i].row, strlen(bad_rows[i].row));
        outcome = run_rankctl(args);
        assert_exit(&outcome, 2);
        assert_text("stderr", outcome.err, bad_rows[i].message);
        outcome_fini(&outcome);
        rk_free(dir);
    }
    rk_free(files);
    rk_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run_examples_layouts_agree_and_the_loss_falls),
        cmocka_unit_test(test_run_examples_train_experts),
        cmocka_unit_test(test_run_examples_go_on_with_the_same_bits),
        cmocka_unit_test(test_run_examples_bad_row_ends_the_run_before_it_begins),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
