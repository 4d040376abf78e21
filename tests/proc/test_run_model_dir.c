/* What a model's directory and its tokenizer's files mean to a run. */
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/proc/cli_fixture.h"

#define DIGITS RK_TEST_SOURCE_DIR "/examples/digits/"
#define MODEL  "actor_rollout_ref.model."

static void put_text(const char *dir, const char *name, const char *text)
{
    char *path = rk_path_join(dir, name);

    rk_test_write_file(path, text, strlen(text));
    rk_free(path);
}

static void put_copy(const char *dir, const char *name)
{
    char *from = rk_path_join(DIGITS, name), *text = rk_test_read_file(from, NULL);

    put_text(dir, name, text);
    rk_free(text);
    rk_free(from);
}

static void remove_file(const char *dir, const char *name)
{
    char *path = rk_path_join(dir, name);

    assert_int_equal(unlink(path), 0);
    rk_free(path);
}

/* Writes the configuration of the digits with another eos_token_id. */
static void put_config(const char *dir, const char *eos)
{
    struct rk_json *config;
    char *text;

    assert_ok(rk_json_parse_file(&config, DIGITS "config.json", 1 << 20, 0));
    rk_json_set(config, "eos_token_id", parse_json(eos));
    text = rk_json_dump(config, 1, false);
    put_text(dir, "config.json", text);
    rk_free(text);
    rk_json_free(config);
}

/* Counts the responses of a step's dump, and those with the token in front of the last. */
static void count_responses(const char *dump, int32_t token, int *count, int *num_behind)
{
    char *path = rk_format("%s/1.jsonl", dump), *text = rk_test_read_file(path, NULL), *rest = text, *line;

    *count = *num_behind = 0;
    while ((line = strsep(&rest, "\n")) && *line) {
        struct rk_json *json = parse_json(line);
        const struct rk_json *ids = rk_json_find(json, "response_ids");
        bool goes_on = false;

        assert_true(rk_json_count(ids) > 0);
        for (int64_t i = 0; i + 1 < rk_json_count(ids); i++)
            goes_on = goes_on || rk_json_as_int(rk_json_at(ids, i), -1) == token;
        *num_behind += goes_on;
        *count += 1;
        rk_json_free(json);
    }
    rk_free(text);
    rk_free(path);
}

/* Goal: a model whose config.json has another end token than its tokenizer, as after fine-tuning a base model
 * with a chat format, ends its responses at both. */
static void test_run_the_tokenizers_eos_token_ends_responses(void **state)
{
    char *model = rk_test_temp_path("eos"), *dump = rk_test_temp_path("eos-dump");
    char *keys[] = {rk_format(MODEL "hf_config_path=%s/config.json", model),
                    rk_format(MODEL "tokenizer_path=%s", model),
                    rk_format("trainer.rollout_data_dir=%s", dump)};
    int count, num_behind;

    (void)state;
    assert_int_equal(mkdir(model, 0755), 0);
    put_config(model, "0");
    put_copy(model, "tokenizer.json");
    put_text(model, "tokenizer_config.json", "{\"eos_token\": \"<eos>\"}");
    rk_free(run_new_tiny_job(
        "2", (const char *const[]){keys[0], keys[1], keys[2], "data.max_response_length=24", NULL}, NULL));
    for (int32_t token = 0; token < 2; token++) {
        count_responses(dump, token, &count, &num_behind);
        assert_int_equal(count, 16);
        assert_int_equal(num_behind, 0);
    }
    for (size_t i = 0; i < RK_ARRAY_LEN(keys); i++)
        rk_free(keys[i]);
    rk_free(dump);
    rk_free(model);
}

/* Goal: a chat template in a file renders the prompts, and is exported with the model. */
static void test_run_a_template_in_a_file(void **state)
{
    static const char row[] =
        "{\"data_source\": \"digits\", \"prompt\": [{\"role\": \"user\", \"content\": \"3,5\"}], "
        "\"reward_model\": {\"ground_truth\": \"7\"}}\n";
    static const char text[] = "{% for m in messages %}{{ m.content }}:{% endfor %}9,2\n";
    const char *temp = rk_test_temp_dir();
    char *keys[] = {rk_format(MODEL "custom_chat_template=%s/chat.jinja", temp),
                    rk_format("data.train_files=[%s/chat.jsonl]", temp),
                    rk_format("trainer.rollout_data_dir=%s/chat-dump", temp)};
    char *dir, *dump, *exported;
    struct rk_json *sample;

    (void)state;
    put_text(temp, "chat.jinja", text);
    put_text(temp, "chat.jsonl", row);
    dir = run_new_tiny_job("2",
                           (const char *const[]){keys[0], keys[1], keys[2], "data.train_batch_size=1",
                                                 "actor_rollout_ref.actor.ppo_mini_batch_size=1",
                                                 "trainer.total_training_steps=1", NULL},
                           NULL);
    dump = rk_path_join(temp, "chat-dump/1.jsonl");
    exported = rk_test_read_file(dump, NULL);
    exported[strcspn(exported, "\n")] = '\0';
    sample = parse_json(exported);
    assert_string_equal(rk_json_as_string(rk_json_find(sample, "input"), ""), "3,5:9,2");
    rk_json_free(sample);
    rk_free(exported);
    rk_free(dump);
    dump = rk_path_join(dir, "hf/chat_template.jinja");
    exported = rk_test_read_file(dump, NULL);
    assert_string_equal(exported, text);
    rk_free(exported);
    rk_free(dump);
    for (size_t i = 0; i < RK_ARRAY_LEN(keys); i++)
        rk_free(keys[i]);
    rk_free(dir);
}

#define LFS                                            \
    "version https://git-lfs.github.com/spec/v1\noid " \
    "sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1\nsize 12\n"

/* The last line of standard error; rk_free it. */
static char *last_words(const struct outcome *outcome)
{
    size_t bytes = strlen(outcome->err);
    const char *begin;

    while (bytes > 0 && outcome->err[bytes - 1] == '\n')
        bytes--;
    begin = outcome->err + bytes;
    while (begin > outcome->err && begin[-1] != '\n')
        begin--;
    return rk_strndup(begin, (size_t)(outcome->err + bytes - begin));
}

/* What can know that a model is none: all look into its directory, which for `config check` may be one
 * without the model on the driver's machine, and for plan without weights. */
enum knows { ALL_KNOW, PLAN_KNOWS, RUN_KNOWS };

static const char *const *const commands[] = {
    (const char *const[]){"config", "check", TINY_JOB, NULL},
    (const char *const[]){"plan", TINY_JOB, "--world", "1", NULL},
    (const char *const[]){"run", TINY_JOB, "--local", "1", "--run-dir", NULL},
};

/* Each command that knows fails before a daemon starts, with `part`, the same words, and none about memory.
 */
static void expect_refused(const char *model, const char *part, enum knows first)
{
    char *path = rk_format(MODEL "path=%s", model), *tokenizer = rk_format(MODEL "tokenizer_path=%s", model);
    char *words[3] = {NULL}, *dir = new_run_dir();
    const char *const keys[] = {TINY, path, tokenizer,
                                "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=1", NULL};

    print_message("  %s\n", part);
    for (int i = 0; i < 3; i++) {
        const char *args[20] = {NULL};
        struct outcome outcome;

        append_args(args, RK_ARRAY_LEN(args), commands[i]);
        if (i == RUN_KNOWS)
            append_args(args, RK_ARRAY_LEN(args), (const char *const[]){dir, NULL});
        append_args(args, RK_ARRAY_LEN(args), keys);
        outcome = run_rankctl(args);
        assert_exit(&outcome, i < (int)first ? 0 : 2);
        words[i] = last_words(&outcome);
        if (i >= (int)first) {
            assert_text("stderr", words[i], part);
            assert_string_equal(words[i], words[first]);
        }
        if (i >= (int)first && (strstr(outcome.err, "memory") || strstr(outcome.err, "not fit")))
            fail_msg("a message about memory: %s", outcome.err);
        outcome_fini(&outcome);
    }
    assert_int_not_equal(access(dir, F_OK), 0); /* daemons' logs are in it */
    for (int i = 0; i < 3; i++)
        rk_free(words[i]);
    rk_free(dir);
    rk_free(tokenizer);
    rk_free(path);
}

/* Goal: what people bring instead of a model's directory is named, with what to do, before a daemon starts.
 */
static void test_run_other_kinds_of_directories_are_named(void **state)
{
    char *model = rk_test_temp_path("other"), *file;

    (void)state;
    assert_int_equal(mkdir(model, 0755), 0);
    put_config(model, "1");
    put_copy(model, "tokenizer.json");
    put_text(model, "model.safetensors", LFS);
    expect_refused(model,
                   "model.safetensors that is a git-lfs pointer, not the file itself: run 'git lfs pull'",
                   ALL_KNOW);
    put_text(model, "model.safetensors",
             "<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>\n");
    expect_refused(model, "model.safetensors that is an HTML page", ALL_KNOW);
    remove_file(model, "model.safetensors");
    expect_refused(model, "no *.safetensors file", RUN_KNOWS);
    put_text(model, "pytorch_model.bin", "PK\003\004");
    expect_refused(model, "has pickled weights (pytorch_model.bin), which is not read", ALL_KNOW);
    put_text(model, "model.gguf", "GGUF\003");
    expect_refused(model, "has a GGUF file (model.gguf)", ALL_KNOW);
    put_text(model, "adapter_config.json", "{\"base_model_name_or_path\": \"Org/Base\"}");
    put_text(model, "adapter_model.safetensors", "");
    expect_refused(
        model, "is an adapter (adapter_config.json), not a model: merge it into its base model 'Org/Base'",
        ALL_KNOW);
    remove_file(model, "adapter_config.json");
    put_text(model, "model.safetensors", "read after all that follows");
    put_text(model, "tokenizer.json", LFS);
    expect_refused(model, "tokenizer.json' is a git-lfs pointer", ALL_KNOW);
    remove_file(model, "tokenizer.json");
    expect_refused(model, "has no tokenizer (tokenizer.json)", ALL_KNOW);
    put_text(model, "tiktoken.model", "");
    expect_refused(model, "has no tokenizer.json, only a tiktoken vocabulary (tiktoken.model)", ALL_KNOW);
    put_text(model, "config.json", LFS);
    expect_refused(model, "config.json' is a git-lfs pointer", ALL_KNOW);
    put_text(model, "config.json", "{\"vocab_size\": 20}");
    expect_refused(model, MODEL "path: config.json: model_type: missing", ALL_KNOW);
    put_text(model, "config.json", "{\"model_type\": 7}");
    expect_refused(model, MODEL "path: config.json: model_type: expected a string, got 7", ALL_KNOW);
    remove_file(model, "config.json");
    remove_file(model, "tiktoken.model");
    put_copy(model, "tokenizer.json");
    expect_refused(model, "/config.json': No such file or directory", PLAN_KNOWS);
    file = rk_path_join(model, "model.gguf");
    expect_refused(file, "model.gguf' is a GGUF file, which is not read", ALL_KNOW);
    remove_file(model, "model.gguf");
    expect_refused(file, "model.gguf' is a GGUF file, which is not read", ALL_KNOW);
    rk_free(file);
    rk_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run_the_tokenizers_eos_token_ends_responses),
        cmocka_unit_test(test_run_a_template_in_a_file),
        cmocka_unit_test(test_run_other_kinds_of_directories_are_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
