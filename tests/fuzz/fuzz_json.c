/* Goal: a parsed value equals itself after a dump and a second parse, and every member has a line number. */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_json.h"

static void check_round_trip(const struct rk_json *json, int indent, bool sort_keys)
{
    char *text = rk_json_dump(json, indent, sort_keys);
    struct rk_json *again;
    struct rk_status *st = rk_json_parse(&again, text, strlen(text), "dump", RK_JSON_ALLOW_NUL);

    RK_ASSERT(st == NULL);
    RK_ASSERT(rk_json_equal(json, again));
    rk_json_free(again);
    rk_free(text);
}

static void check_lines(const struct rk_json *json, const char *text, size_t bytes)
{
    for (void *it = rk_json_iter(json); it; it = rk_json_iter_next(json, it)) {
        const char *key = rk_json_iter_key(it);
        int line = rk_json_find_line(text, bytes, key);

        RK_ASSERT(line >= 1);
        RK_ASSERT((size_t)line <= bytes);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const uint32_t flags[] = {0, RK_JSON_ALLOW_NUL, RK_JSON_BIG_INT_AS_REAL};
    const char *text = (const char *)data;

    for (size_t i = 0; i < RK_ARRAY_LEN(flags); i++) {
        struct rk_json *json;
        struct rk_status *st = rk_json_parse(&json, text, bytes, "fuzz", flags[i]);

        if (st) {
            RK_ASSERT(json == NULL);
            rk_status_free(st);
            continue;
        }
        check_round_trip(json, 0, false);
        check_round_trip(json, 2, true);
        if (bytes > 0)
            check_lines(json, text, bytes);
        rk_json_free(json);
    }
    return 0;
}
