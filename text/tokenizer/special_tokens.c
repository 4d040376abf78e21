/* Special tokens that the files beside tokenizer.json name. */
#include "text/tokenizer/tokenizer_internal.h"

#include <string.h>

#include "base/rk_small_file.h"

#define CONFIG_BYTES_MAX (16u << 20) /* tokenizer_config.json lists every added token */

/* Text, or an object with the member "content"; NULL: neither. */
static const struct rk_json *text_of(const struct rk_json *token)
{
    if (rk_json_type(token) == RK_JSON_OBJECT)
        token = rk_json_find(token, "content");
    return token && rk_json_type(token) == RK_JSON_STRING ? token : NULL;
}

static void append_text(struct rk_json *list, const struct rk_json *token)
{
    const struct rk_json *text = text_of(token);

    if (text)
        rk_json_append(list, rk_json_clone(text));
}

static void take_named(struct rk_json *out, const struct rk_json *from)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};

    for (size_t i = 0; i < RK_ARRAY_LEN(names); i++) {
        const struct rk_json *text = text_of(rk_json_find(from, names[i]));

        if (text)
            rk_json_set(out, names[i], rk_json_clone(text));
    }
}

/* Lists of tokens, or objects from a name to a token. */
static void take_others(struct rk_json *list, const struct rk_json *from)
{
    static const char *const names[] = {"additional_special_tokens", "extra_special_tokens"};

    for (size_t i = 0; i < RK_ARRAY_LEN(names); i++) {
        const struct rk_json *tokens = rk_json_find(from, names[i]);

        if (rk_json_type(tokens) == RK_JSON_OBJECT) {
            for (void *it = rk_json_iter(tokens); it; it = rk_json_iter_next(tokens, it))
                append_text(list, rk_json_iter_value(it));
        } else {
            for (int64_t k = 0; k < rk_json_count(tokens); k++)
                append_text(list, rk_json_at(tokens, k));
        }
    }
}

struct rk_status *rk_special_tokens_read_dir(struct rk_json **out, const char *dir)
{
    static const uint32_t flags = RK_JSON_BIG_INT_AS_REAL | RK_JSON_ALLOW_NUL;
    struct rk_json *files[2] = {NULL}, *others;
    struct rk_status *st;

    *out = NULL;
    RK_TRY_GOTO(st, rk_load_json_if_there(&files[0], dir, "tokenizer_config.json", CONFIG_BYTES_MAX, flags),
                out);
    /* transformers does not read the older file if the other one lists all tokens */
    if (!rk_json_find(files[0], "added_tokens_decoder"))
        RK_TRY_GOTO(st,
                    rk_load_json_if_there(&files[1], dir, "special_tokens_map.json", CONFIG_BYTES_MAX, flags),
                    out);
    *out = rk_json_new_object();
    others = rk_json_new_array();
    for (size_t i = 0; i < RK_ARRAY_LEN(files); i++) {
        take_named(*out, files[i]);
        take_others(others, files[i]);
    }
    rk_json_set(*out, "additional_special_tokens", others);
out:
    rk_json_free(files[0]);
    rk_json_free(files[1]);
    return st;
}

/* --- marking --- */

static struct rk_json *find_added(const struct rk_json *added, const char *text)
{
    for (int64_t i = rk_json_count(added) - 1; i >= 0; i--) {
        struct rk_json *token = rk_json_at(added, i);

        if (strcmp(rk_json_as_string(rk_json_find(token, "content"), ""), text) == 0)
            return token;
    }
    return NULL;
}

/* Ordinary tokens become special and are searched in the text as it is; special tokens keep their properties.
 */
static void mark(struct rk_json *root, const struct rk_json *text)
{
    const char *content = rk_json_as_string(text, "");
    const struct rk_json *id = rk_json_find(rk_json_find(rk_json_find(root, "model"), "vocab"), content);
    struct rk_json *added = rk_json_find(root, "added_tokens"), *token = find_added(added, content);

    if (*content == '\0' || (!token && rk_json_is_null(id)) ||
        rk_json_as_bool(rk_json_find(token, "special"), false))
        return;
    if (rk_json_is_null(added)) {
        added = rk_json_new_array();
        rk_json_set(root, "added_tokens", added);
    }
    if (rk_json_type(added) != RK_JSON_ARRAY) /* an error of the reader */
        return;
    if (!token) {
        token = rk_json_new_object();
        rk_json_set(token, "id", rk_json_clone(id));
        rk_json_set(token, "content", rk_json_clone(text));
        rk_json_append(added, token);
    }
    rk_json_set(token, "special", rk_json_new_bool(true));
    rk_json_set(token, "normalized", rk_json_new_bool(false));
}

void rk_special_tokens_mark(struct rk_json *root, const struct rk_json *special)
{
    if (rk_json_type(root) != RK_JSON_OBJECT) /* an error of the reader */
        return;
    for (void *it = rk_json_iter(special); it; it = rk_json_iter_next(special, it)) {
        const struct rk_json *value = rk_json_iter_value(it);

        if (rk_json_type(value) == RK_JSON_STRING)
            mark(root, value);
        for (int64_t i = 0; i < rk_json_count(value); i++)
            mark(root, rk_json_at(value, i));
    }
}
