/* Tokenizers that a job names. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_file.h"
#include "base/rk_file_kind.h"
#include "base/format/rk_safetensors.h"
#include "base/rk_str.h"
#include "base/rk_small_file.h"
#include "rl/rk_flows.h"
#include "rl/rk_hub.h"

static struct rk_status *open_file(struct rk_tokenizer **out, const char *file, const char *dir)
{
    struct rk_json *special = NULL;
    struct rk_status *st;

    if (access(file, F_OK) != 0 && errno == ENOENT) {
        char *kind = rk_tokenizer_dir_kind(dir);

        st = RK_FAIL(RK_NOT_FOUND, "'%s' %s", dir, kind);
        rk_free(kind);
        return st;
    }
    st = rk_special_tokens_read_dir(&special, dir);
    if (!st)
        st = rk_tokenizer_create_special(out, file, special);
    rk_json_free(special);
    return st;
}

struct rk_status *rk_flow_open_tokenizer(struct rk_tokenizer **out, char **dir, const char *full,
                                         const char *name)
{
    struct rk_status *st;
    struct stat info;
    char *file;

    if (stat(full, &info) == 0 && S_ISDIR(info.st_mode)) {
        *dir = rk_strdup(full);
        file = rk_path_join(full, "tokenizer.json");
    } else {
        *dir = rk_path_dir(full);
        file = rk_strdup(full);
    }
    st = access(full, F_OK) == 0 ? open_file(out, file, *dir) : rk_hub_not_found(name, full);
    rk_free(file);
    return st;
}

/* Tokens that are parts of a character have no text and look equal. */
struct rk_status *rk_flow_compare_tokens(const struct rk_tokenizer *tokenizer, const char *path,
                                         const struct rk_tokenizer *expected, const char *owner)
{
    int64_t size = rk_tokenizer_vocab_size(tokenizer), expected_size = rk_tokenizer_vocab_size(expected);
    struct rk_str text = {0}, expected_text = {0};
    struct rk_status *st = NULL;

    if (size != expected_size)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "%s: expected %" PRId64 " tokens, as the %s's tokenizer has, got %" PRId64, path,
                       expected_size, owner, size);
    for (int32_t id = 0; id < size && !st; id++) {
        rk_str_clear(&text);
        rk_str_clear(&expected_text);
        rk_tokenizer_decode(tokenizer, &id, 1, false, &text);
        rk_tokenizer_decode(expected, &id, 1, false, &expected_text);
        if (text.bytes != expected_text.bytes ||
            (text.bytes > 0 && memcmp(text.text, expected_text.text, text.bytes) != 0))
            st = RK_FAIL(RK_INVALID_ARGUMENT,
                         "%s: token %d: expected \"%s\", that of the %s's tokenizer, got \"%s\"", path,
                         (int)id, expected_text.bytes > 0 ? expected_text.text : "", owner,
                         text.bytes > 0 ? text.text : "");
    }
    rk_str_fini(&text);
    rk_str_fini(&expected_text);
    return st;
}

/* Copies the templates of conversations with tools. */
static struct rk_status *copy_tool_template(const char *from_dir, const char *to_dir)
{
    static const char folder[] = "additional_chat_templates";
    char *from = rk_path_join(from_dir, folder), *to = rk_path_join(to_dir, folder);
    struct rk_status *st = access(from, F_OK) == 0 ? rk_make_dirs(to) : NULL;

    if (!st)
        st = rk_copy_if_there(from, to, "tool_use.jinja");
    rk_free(from);
    rk_free(to);
    return st;
}

struct rk_status *rk_flow_copy_tokenizer(const char *from_dir, const char *to_dir)
{
    static const char *const files[] = {"tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "generation_config.json",
                                        "chat_template.jinja",
                                        "chat_template.json",
                                        "vocab.json",
                                        "merges.txt"};

    for (size_t i = 0; i < RK_ARRAY_LEN(files); i++)
        RK_TRY(rk_copy_if_there(from_dir, to_dir, files[i]));
    return copy_tool_template(from_dir, to_dir);
}

struct rk_status *rk_flow_write_tokenizer(const struct rk_flow_inputs *inputs, const char *to_dir)
{
    const char *custom = inputs->custom_template;
    char *path, *tools;
    struct rk_status *st;

    RK_TRY(rk_flow_copy_tokenizer(inputs->tokenizer_dir, to_dir));
    if (!custom)
        return NULL;
    path = rk_path_join(to_dir, "chat_template.jinja"); /* is read before all others */
    tools = rk_path_join(to_dir, "additional_chat_templates/tool_use.jinja");
    st = rk_write_file_atomic(path, custom, strlen(custom));
    if (!st && unlink(tools) != 0 && errno != ENOENT && errno != ENOTDIR)
        st = rk_file_errno("cannot remove", tools);
    rk_free(tools);
    rk_free(path);
    return st;
}
