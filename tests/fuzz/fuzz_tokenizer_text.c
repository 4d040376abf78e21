/* Goal: a byte-level tokenizer, and one with byte fallback, reproduce every text exactly. */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "text/rk_tokenizer.h"

static const char byte_level[] =
    "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}, \"decoder\": {\"type\": "
    "\"ByteLevel\"}, "
    "\"added_tokens\": [{\"content\": \"<s>\", \"id\": 258, \"special\": true, \"normalized\": false}]";
static const char byte_fallback[] = "\"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": "
                                    "\"ByteFallback\"}, {\"type\": \"Fuse\"}]}";

/* Every byte as written in the vocabulary. */
static void append_bytes(struct rk_str *json, bool is_byte_level)
{
    int shifted = 0x100;

    for (int byte = 0; byte < 256; byte++) {
        bool is_itself = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);

        rk_str_append(json, byte > 0 ? ", " : "");
        if (is_byte_level)
            rk_str_appendf(json, "\"\\u%04x\": %d", (unsigned)(is_itself ? byte : shifted++), byte);
        else
            rk_str_appendf(json, "\"<0x%02X>\": %d", (unsigned)byte, byte);
    }
}

static struct rk_tokenizer *make(bool is_byte_level)
{
    struct rk_str json = {0};
    struct rk_tokenizer *tokenizer = NULL;
    struct rk_status *st;

    rk_str_appendf(&json, "{%s, \"model\": {\"type\": \"BPE\", \"byte_fallback\": %s, \"vocab\": {",
                   is_byte_level ? byte_level : byte_fallback, is_byte_level ? "false" : "true");
    append_bytes(&json, is_byte_level);
    if (is_byte_level)
        rk_str_append(&json, ", \"th\": 256, \"the\": 257}, \"merges\": [\"t h\", \"th e\"]}}");
    else
        rk_str_append(
            &json, ", \"t\": 256, \"h\": 257, \"th\": 258, \"\xe4\xb8\xad\": 259}, \"merges\": [\"t h\"]}}");
    st = rk_tokenizer_create_json(&tokenizer, json.text, json.bytes, "fuzz");
    RK_ASSERT(!st);
    rk_str_fini(&json);
    return tokenizer;
}

static void check(const struct rk_tokenizer *tokenizer, const char *text, size_t bytes)
{
    struct rk_tokenizer_ids ids = {0};
    struct rk_str decoded = {0};
    struct rk_status *st = rk_tokenizer_encode(tokenizer, text, bytes, true, &ids);

    if (st) { /* not UTF-8 */
        rk_status_free(st);
        return;
    }
    RK_ASSERT(ids.count <= (int64_t)bytes);
    rk_tokenizer_decode(tokenizer, ids.items, ids.count, false, &decoded);
    RK_ASSERT(decoded.bytes == bytes);
    RK_ASSERT(bytes == 0 || memcmp(decoded.text, text, bytes) == 0);
    rk_str_fini(&decoded);
    rk_free(ids.items);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct rk_str text = {0};

    for (int is_byte_level = 0; is_byte_level < 2; is_byte_level++) {
        struct rk_tokenizer *tokenizer = make(is_byte_level == 1);

        /* the bytes unchanged, and converted to valid text */
        rk_str_clear(&text);
        rk_str_append_utf8(&text, (const char *)data, bytes);
        check(tokenizer, (const char *)data, bytes);
        check(tokenizer, rk_str_text(&text), text.bytes);
        rk_tokenizer_destroy(tokenizer);
    }
    rk_str_fini(&text);
    return 0;
}
