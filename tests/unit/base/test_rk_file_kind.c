/* What a file or directory is that was given instead of a model's. */
#include "base/rk_file_kind.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_json.h"
#include "base/format/rk_safetensors.h"
#include "base/rk_str.h"
#include "tests/support/test.h"

#define LFS                                            \
    "version https://git-lfs.github.com/spec/v1\noid " \
    "sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1\nsize 12\n"

/* The kind contains `part`; NULL: there is none. Frees it. */
static void expect_kind(char *kind, const char *part)
{
    if (!part)
        assert_null(kind);
    else if (!kind || !strstr(kind, part))
        fail_msg("expected '%s', got '%s'", part, kind ? kind : "nothing");
    rk_free(kind);
}

static void test_file_kind_by_first_bytes(void **state)
{
    static const struct {
        const char *head;
        size_t bytes;
        const char *part;
    } cases[] = {
        {LFS, sizeof(LFS) - 1, "git lfs pull"},
        {"version https://git", 19, NULL},
        {"<!DOCTYPE html>\n", 16, "HTML page"},
        {" \r\n\t<HTML lang=\"en\">", 21, "HTML page"},
        {"  <htm", 6, NULL},
        {"GGUF\3\0\0\0", 8, "GGUF"},
        {"PK\3\4\0\0\b\b", 8, "pickled"},
        {"\200\002}q\0", 5, "pickled"},
        {"\211HDF\r\n", 6, "HDF5"},
        {"", 0, "is empty"},
        {"\0\0\0\0", 4, NULL},
        {"{\"a\": 1}", 8, NULL},
        {"\200\002\0\0\0\0\0\0{\"", 10, NULL}, /* safetensors with a header of 640 bytes */
        {"\200\002\0\0\0\0\0\0}\"", 10, "pickled"},
        {" ", 1, NULL},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        const char *kind = rk_file_kind_of(cases[i].head, cases[i].bytes);

        expect_kind(kind ? rk_strdup(kind) : NULL, cases[i].part);
    }
}

/* Makes an empty file for each name, one after the other: what the directory is then, as a model's and as a
 * tokenizer's. */
static void test_dir_kind_by_names(void **state)
{
    static const struct {
        const char *name, *text, *model, *tokenizer;
    } steps[] = {
        {"README.md", "", NULL, "has no tokenizer (tokenizer.json)"},
        {"flax_model.msgpack", "", "Flax (flax_model.msgpack)", "has no tokenizer (tokenizer.json)"},
        {"vocab.json", "{}", "Flax", "slow tokenizer (vocab.json): write one with transformers"},
        {"tokenizer.model", "", "Flax", "SentencePiece vocabulary (tokenizer.model)"},
        {"tiktoken.model", "", "Flax", "convert_tiktoken_to_fast"},
        {"pytorch_model-00001-of-00002.bin", "", "pickled weights (pytorch_model-00001", "tiktoken"},
        {"model_world_size_2_rank_0.pt", "", "verl.model_merger", "tiktoken"},
        {"model.Q4_K.gguf", "", "GGUF file (model.Q4_K.gguf)", "tiktoken"},
        {"consolidated.safetensors", "", "Mistral's own format", "tiktoken"},
        {"adapter_config.json", "{\"base_model_name_or_path\": \"Org/Base\"}",
         "is an adapter (adapter_config.json), not a model: merge it into its base model 'Org/Base' first",
         "tiktoken"},
        {"adapter_model.safetensors", "", "is an adapter", "tiktoken"},
        {"adapter_config.json", "{", "its base model first", "tiktoken"},
        {"model-00001-of-00002.safetensors", "01234567{", NULL, "tiktoken"},
        {"model-00002-of-00002.safetensors", LFS,
         "has a file model-00002-of-00002.safetensors that is a git-lfs pointer", "tiktoken"},
        {"model.safetensors", "<html>", "has a file model.safetensors that is an HTML page", "tiktoken"},
        {"model.safetensors", "text that is no weights", NULL, "tiktoken"},
    };
    char *dir = rk_test_temp_path("dir");

    (void)state;
    assert_int_equal(mkdir(dir, 0755), 0);
    for (size_t i = 0; i < RK_ARRAY_LEN(steps); i++) {
        char *path = rk_path_join(dir, steps[i].name);

        print_message("  %s\n", steps[i].name);
        rk_test_write_file(path, steps[i].text, strlen(steps[i].text));
        expect_kind(rk_model_dir_kind(dir), steps[i].model);
        expect_kind(rk_tokenizer_dir_kind(dir), steps[i].tokenizer);
        if (strcmp(steps[i].name, "model.Q4_K.gguf") == 0) {
            rk_test_write_file(path, "GGUF\3", 5);
            expect_kind(rk_model_dir_kind(path), "is a GGUF file");
        }
        if (strcmp(steps[i].name, "README.md") == 0) {
            rk_test_write_file(path, "# Model", 7);
            expect_kind(rk_model_dir_kind(path), "is a file: expected the model's directory");
        }
        rk_free(path);
    }
    expect_kind(rk_model_dir_kind("/nowhere/at/all"), NULL);
    rk_free(dir);
}

/* Goal: readers of weights and of JSON say what the file is instead of what their format lacks. */
static void test_readers_name_the_kind(void **state)
{
    char *weights = rk_test_temp_path("model.safetensors"), *json = rk_test_temp_path("config.json");
    struct rk_st_file *file;
    struct rk_json *value;

    (void)state;
    rk_test_write_file(weights, LFS, sizeof(LFS) - 1);
    assert_fails(rk_st_open(&file, weights), RK_DATA_LOSS, "model.safetensors' is a git-lfs pointer");
    rk_test_write_file(weights, "<!DOCTYPE html><html>", 21);
    assert_fails(rk_st_open(&file, weights), RK_DATA_LOSS, "model.safetensors' is an HTML page");
    rk_test_write_file(weights, "", 0);
    assert_fails(rk_st_open(&file, weights), RK_DATA_LOSS, "model.safetensors' is empty");
    rk_test_write_file(weights, "Access to model x is restricted.", 32);
    assert_fails(rk_st_open(&file, weights), RK_DATA_LOSS, "no safetensors file");
    rk_test_write_file(json, LFS, sizeof(LFS) - 1);
    assert_fails(rk_json_parse_file(&value, json, 1 << 20, 0), RK_INVALID_ARGUMENT,
                 "config.json' is a git-lfs pointer");
    rk_test_write_file(json, "{", 1);
    assert_fails(rk_json_parse_file(&value, json, 1 << 20, 0), RK_INVALID_ARGUMENT, "config.json");
    rk_free(weights);
    rk_free(json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file_kind_by_first_bytes),
        cmocka_unit_test(test_dir_kind_by_names),
        cmocka_unit_test(test_readers_name_the_kind),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
