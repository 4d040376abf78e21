/* examples/gsm8k with the commands of its README, on a tiny random chat model: it trains, validates, is
 * killed and resumes; and examples/addition, which trains and validates. */
#include <math.h>
#include <signal.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/proc/cli_fixture.h"
#include "tests/support/models.h"

#define EXAMPLE  RK_TEST_SOURCE_DIR "/examples/gsm8k/"
#define ADDITION RK_TEST_SOURCE_DIR "/examples/addition/"
#define ACTOR    "actor_rollout_ref.actor."
#define STEPS    4
#define VAL_MEAN "val-core/openai/gsm8k/acc/mean@1"

static const char config[] = "{\"architectures\": [\"Qwen2ForCausalLM\"], \"model_type\": \"qwen2\", "
                             "\"vocab_size\": 424, \"hidden_size\": 16,"
                             " \"intermediate_size\": 32, \"num_hidden_layers\": 2, \"num_attention_heads\": "
                             "2, \"num_key_value_heads\": 1,"
                             " \"max_position_embeddings\": 1024, \"rms_norm_eps\": 1e-6, \"rope_theta\": "
                             "10000.0, \"hidden_act\": \"silu\","
                             " \"initializer_range\": 0.2, \"tie_word_embeddings\": true, \"torch_dtype\": "
                             "\"float32\", \"eos_token_id\": 2,"
                             " \"pad_token_id\": 0}";

static const char tokenizer_config[] =
    "{\"eos_token\": \"<|im_end|>\", \"pad_token\": \"<|endoftext|>\", \"chat_template\": "
    "\"{%- for turn in messages %}{{ '<|im_start|>' + turn.role + '\\\\n' + turn.content + '<|im_end|>\\\\n' "
    "}}"
    "{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\\\n' }}{%- endif %}\"}";

static void write_text(const char *dir, const char *name, const char *text)
{
    char *path = rk_path_join(dir, name);

    rk_test_write_file(path, text, strlen(text));
    rk_free(path);
}

/* A Hugging Face directory; returns it (rk_free). */
static char *make_model(const char *name)
{
    struct rk_test_model_spec spec = {.config = config, .seed = 42, .dtype = RK_DTYPE_F32};
    char *dir = rk_test_temp_path(name), *path, *tokenizer;
    struct rk_test_model test;

    assert_ok(rk_test_model_open(&test, &spec));
    assert_ok(rk_model_export_hf(test.model, dir, 0, NULL));
    rk_test_model_close(&test);
    path = rk_test_fixture_path("golden/tokenizers/qwen2.json");
    tokenizer = rk_test_read_file(path, NULL);
    write_text(dir, "tokenizer.json", tokenizer);
    write_text(dir, "tokenizer_config.json", tokenizer_config);
    rk_free(tokenizer);
    rk_free(path);
    return dir;
}

/* The example, reduced to four short steps on two daemons. */
static struct rk_proc *start(const char *model, const char *dir)
{
    char *path = rk_format("actor_rollout_ref.model.path=%s", model);
    const char *const args[] = {"run",
                                EXAMPLE "grpo.json",
                                "--local=2",
                                "--run-dir",
                                dir,
                                path,
                                cli_device(),
                                "data.train_batch_size=4",
                                "data.max_response_length=8",
                                "data.val_max_samples=3",
                                "actor_rollout_ref.rollout.n=2",
                                ACTOR "ppo_mini_batch_size=4",
                                "trainer.total_training_steps=4",
                                "trainer.test_freq=2",
                                "trainer.save_freq=2",
                                NULL};
    struct rk_proc *proc = start_rankctl(args);

    rk_free(path);
    return proc;
}

/* Checks the step's metrics; they must be bit-identical to those of the uninterrupted run. */
static void assert_step(const char *dir, const char *straight, int64_t step)
{
    struct rk_json *metrics = read_metrics(dir, step + 1); /* step 0 is the first line */
    struct rk_json *expected = read_metrics(straight, step + 1);

    assert_true(metric(metrics, "training/global_step") == (double)step);
    assert_same_step(metrics, expected, step);
    if (step % 2 == 0)
        assert_in_range((int64_t)(100 * metric(metrics, VAL_MEAN)), 0, 100);
    if (step > 0) {
        assert_in_range((int64_t)metric(metrics, "prompt_length/min"), 40, 512);
        assert_true(isfinite(metric(metrics, "actor/kl_loss")));
        assert_true(isfinite(metric(metrics, "actor/grad_norm")));
    }
    rk_json_free(expected);
    rk_json_free(metrics);
}

/* Goal: the commands of the README: run, lose everything after the checkpoint of step 2, run again; the
 * result has each step once, with its validations, and the same weights as an uninterrupted run. */
static void test_gsm8k_example_resumes_after_a_kill(void **state)
{
    char *model = make_model("chat_model"), *straight = new_run_dir(), *dir = new_run_dir();
    struct rk_proc *proc;
    struct outcome outcome;
    pid_t daemons[2];

    (void)state;
    outcome = finish_rankctl(start(model, straight), 120000);
    assert_exit(&outcome, 0);
    assert_text("stderr", outcome.err, "step 0  " VAL_MEAN);
    assert_text("stdout", outcome.out, "validation of step 4: " VAL_MEAN);
    outcome_fini(&outcome);

    proc = start(model, dir);
    wait_stderr(proc, "step 3/4", 120000);
    find_daemons(proc, daemons, 2);
    rk_proc_signal(proc, SIGKILL);
    for (int i = 0; i < 2; i++)
        kill(daemons[i], SIGKILL);
    outcome = finish_rankctl(proc, 10000);
    assert_exit(&outcome, -SIGKILL);
    assert_gone(daemons, 2, 10000);
    outcome_fini(&outcome);
    outcome = finish_rankctl(start(model, dir), 120000);
    assert_exit(&outcome, 0);
    assert_null(strstr(outcome.err, "step 2/4"));
    assert_text("stderr", outcome.err, "step 3/4");
    outcome_fini(&outcome);

    assert_int_equal(count_metrics(dir), STEPS + 1);
    for (int64_t step = 0; step <= STEPS; step++)
        assert_step(dir, straight, step);
    assert_same_file(dir, straight, "hf/model.safetensors");
    rk_free(dir);
    rk_free(straight);
    rk_free(model);
}

/* Goal: both jobs of examples/addition run as they are, but for their sizes: the tokenizer of the tiny model
 * needs longer prompts. */
static void test_addition_examples_train_and_validate(void **state)
{
    static const char *const jobs[] = {ADDITION "grpo.json", ADDITION "cpu.json"};
    char *model = make_model("sums_model"), *path = rk_format("actor_rollout_ref.model.path=%s", model);

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(jobs); i++) {
        char *dir = rk_test_temp_path(i == 0 ? "addition" : "addition_cpu");
        const char *const args[] = {"run",
                                    jobs[i],
                                    "--local=1",
                                    "--run-dir",
                                    dir,
                                    path,
                                    cli_device(),
                                    "data.train_batch_size=4",
                                    "data.max_prompt_length=256",
                                    "data.max_response_length=8",
                                    "data.val_max_samples=3",
                                    "actor_rollout_ref.rollout.n=2",
                                    ACTOR "ppo_mini_batch_size=4",
                                    "trainer.total_training_steps=2",
                                    "trainer.test_freq=2",
                                    NULL};
        struct outcome outcome = finish_rankctl(start_rankctl(args), 120000);
        struct rk_json *metrics;

        assert_exit(&outcome, 0);
        outcome_fini(&outcome);
        metrics = read_metrics(dir, 3);
        assert_true(metric(metrics, "training/global_step") == 2.0);
        assert_in_range((int64_t)(100 * metric(metrics, "val-core/addition/acc/mean@1")), 0, 100);
        rk_json_free(metrics);
        rk_free(dir);
    }
    rk_free(path);
    rk_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gsm8k_example_resumes_after_a_kill),
        cmocka_unit_test(test_addition_examples_train_and_validate),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
