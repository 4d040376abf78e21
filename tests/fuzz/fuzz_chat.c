/* Goal: a template either compiles or is rejected with a position; a rendering ends within its limits, and is
 * valid UTF-8. The input is a template, a line "===", and the conversation as JSON (optional). */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "text/chat/jinja_internal.h"
#include "text/rk_chat.h"

#define SEPARATOR "\n===\n"

static const char default_item[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"a \\u00e9\"}, "
                                   "{\"role\": \"assistant\", \"content\": \"b\"}],"
                                   " \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}],"
                                   " \"kwargs\": {\"s\": \"Abc\", \"l\": [3, 1, 2], \"d\": {\"k\": 1.5}}}";

static void check_code(const struct rk_status *st)
{
    RK_ASSERT(rk_status_code(st) == RK_INVALID_ARGUMENT || rk_status_code(st) == RK_UNIMPLEMENTED ||
              rk_status_code(st) == RK_RESOURCE_EXHAUSTED);
    RK_ASSERT(strstr(rk_status_message(st), "fuzz") != NULL);
}

static void check_text(struct rk_str *text)
{
    RK_ASSERT(text->bytes <= RK_JINJA_OUTPUT_BYTES_MAX);
    for (size_t i = 0; i < text->bytes; i++) {
        if (text->text[i] == '\0')
            text->text[i] = ' ';
    }
    RK_ASSERT(rk_utf8_is_valid(rk_str_text(text), text->bytes));
}

static void render(const struct rk_chat *chat, const struct rk_json *item)
{
    struct rk_chat_args args = {.messages = rk_json_find(item, "messages"),
                                .tools = rk_json_find(item, "tools"),
                                .kwargs = rk_json_find(item, "kwargs"),
                                .add_generation_prompt = true};
    struct rk_str text = {0};
    struct rk_status *st = rk_chat_render(chat, &args, &text);

    if (st)
        check_code(st);
    else
        check_text(&text);
    rk_status_free(st);
    rk_str_fini(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const char *text = (const char *)data;
    const char *cut = bytes > 0 ? memmem(text, bytes, SEPARATOR, strlen(SEPARATOR)) : NULL;
    const char *item_text = cut ? cut + strlen(SEPARATOR) : default_item;
    size_t item_bytes = cut ? bytes - (size_t)(item_text - text) : strlen(default_item);
    struct rk_json *item = NULL;
    struct rk_chat *chat = NULL;
    struct rk_status *st = rk_chat_create_text(&chat, text, cut ? (size_t)(cut - text) : bytes, "fuzz");

    if (st) {
        RK_ASSERT(chat == NULL);
        check_code(st);
        rk_status_free(st);
        return 0;
    }
    st = rk_json_parse(&item, item_text, item_bytes, "item", 0);
    if (!st && rk_json_type(item) == RK_JSON_OBJECT)
        render(chat, item);
    rk_status_free(st);
    rk_json_free(item);
    rk_chat_destroy(chat);
    return 0;
}
