/* The first line is a text, the rest a tokenizer.json. Goal: the file is rejected, or every id of the text is
 * in the vocabulary and ids decode to UTF-8. */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "text/rk_tokenizer.h"

static void check_utf8(const struct rk_str *text)
{
    bool is_valid = true;

    for (size_t at = 0; at < text->bytes; at += rk_utf8_part(text->text + at, text->bytes - at, &is_valid))
        RK_ASSERT(is_valid);
    RK_ASSERT(is_valid);
}

static void check_decode(const struct rk_tokenizer *tokenizer, const int32_t *ids, int64_t count)
{
    struct rk_str text = {0};

    rk_tokenizer_decode(tokenizer, ids, count, count % 2 == 0, &text);
    check_utf8(&text);
    rk_str_fini(&text);
}

static void check_text(const struct rk_tokenizer *tokenizer, const char *text, size_t bytes)
{
    struct rk_tokenizer_ids ids = {0};
    struct rk_status *st = rk_tokenizer_encode(tokenizer, text, bytes, true, &ids);

    if (st) {
        RK_ASSERT(!ids.items);
        rk_status_free(st);
        return;
    }
    for (int64_t i = 0; i < ids.count; i++) {
        RK_ASSERT(ids.items[i] >= 0);
        RK_ASSERT(ids.items[i] < rk_tokenizer_vocab_size(tokenizer));
    }
    check_decode(tokenizer, ids.items, ids.count);
    rk_free(ids.items);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const char *text = (const char *)data;
    const char *end = bytes > 0 ? memchr(text, '\n', bytes) : NULL;
    size_t text_bytes = end ? (size_t)(end - text) : bytes;
    struct rk_tokenizer *tokenizer = NULL;
    struct rk_status *st;
    int32_t ids[16];

    if (!end)
        return 0;
    st = rk_tokenizer_create_json(&tokenizer, end + 1, bytes - text_bytes - 1, "fuzz");
    if (st) {
        RK_ASSERT(!tokenizer);
        rk_status_free(st);
        return 0;
    }
    check_text(tokenizer, text, text_bytes);
    for (size_t i = 0; i < RK_ARRAY_LEN(ids); i++)
        ids[i] = (int32_t)data[i * 7 % bytes] - 2;
    check_decode(tokenizer, ids, RK_ARRAY_LEN(ids));
    rk_tokenizer_destroy(tokenizer);
    return 0;
}
