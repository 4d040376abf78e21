#include "rl/rewards/span_internal.h"

#include <string.h>

#include "base/rk_assert.h"

struct rk_span rk_span_of(const char *terminated)
{
    return (struct rk_span){terminated, strlen(terminated)};
}

struct rk_span rk_span_of_str(const struct rk_str *str)
{
    return (struct rk_span){rk_str_text(str), str->bytes};
}

struct rk_span rk_span_slice(struct rk_span text, size_t begin, size_t end)
{
    RK_ASSERT(begin <= end);
    RK_ASSERT(end <= text.bytes);
    return (struct rk_span){text.data + begin, end - begin};
}

bool rk_span_equal(struct rk_span a, struct rk_span b)
{
    return a.bytes == b.bytes && memcmp(a.data, b.data, a.bytes) == 0;
}

bool rk_span_begins_with(struct rk_span text, const char *prefix)
{
    size_t bytes = strlen(prefix);

    return text.bytes >= bytes && memcmp(text.data, prefix, bytes) == 0;
}

size_t rk_span_find(struct rk_span text, size_t from, const char *needle)
{
    size_t bytes = strlen(needle);

    for (size_t at = from; at + bytes <= text.bytes; at++) {
        if (text.data[at] == needle[0] && memcmp(text.data + at, needle, bytes) == 0)
            return at;
    }
    return RK_SPAN_NONE;
}

size_t rk_span_find_last(struct rk_span text, const char *needle)
{
    size_t bytes = strlen(needle);

    for (size_t end = text.bytes; end >= bytes; end--) {
        if (memcmp(text.data + end - bytes, needle, bytes) == 0)
            return end - bytes;
    }
    return RK_SPAN_NONE;
}

int64_t rk_span_count(struct rk_span text, const char *needle)
{
    size_t bytes = strlen(needle);
    int64_t count = 0;

    for (size_t at = rk_span_find(text, 0, needle); at != RK_SPAN_NONE;
         at = rk_span_find(text, at + bytes, needle))
        count++;
    return count;
}

static bool is_continuation(char c)
{
    return ((unsigned char)c & 0xc0) == 0x80;
}

size_t rk_span_char_bytes(struct rk_span text, size_t at)
{
    size_t bytes = 1;

    RK_ASSERT(at < text.bytes);
    while (at + bytes < text.bytes && is_continuation(text.data[at + bytes]))
        bytes++;
    return bytes;
}

struct rk_span rk_span_last_chars(struct rk_span text, int64_t count)
{
    size_t begin = text.bytes;

    while (begin > 0 && count > 0) {
        begin--;
        count -= !is_continuation(text.data[begin]);
    }
    return rk_span_slice(text, begin, text.bytes);
}

int64_t rk_span_num_chars(struct rk_span text)
{
    int64_t count = 0;

    for (size_t i = 0; i < text.bytes; i++)
        count += !is_continuation(text.data[i]);
    return count;
}

size_t rk_span_space_bytes(struct rk_span text, size_t at)
{
    static const char *const wide[] = {
        "\xc2\x85", "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003", "\u2004", "\u2005", "\u2006",
        "\u2007",   "\u2008", "\u2009", "\u200a", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000",
    };
    struct rk_span rest = rk_span_slice(text, at, text.bytes);
    unsigned char first = rest.bytes > 0 ? (unsigned char)rest.data[0] : 'x';

    if ((first >= 0x09 && first <= 0x0d) || (first >= 0x1c && first <= 0x20))
        return 1;
    for (size_t i = 0; first >= 0x80 && i < sizeof(wide) / sizeof(wide[0]); i++) {
        if (rk_span_begins_with(rest, wide[i]))
            return strlen(wide[i]);
    }
    return 0;
}

struct rk_span rk_span_strip(struct rk_span text)
{
    size_t begin = 0, end = 0, space;

    while ((space = rk_span_space_bytes(text, begin)) > 0)
        begin += space;
    for (size_t at = begin; at < text.bytes;) {
        space = rk_span_space_bytes(text, at);
        at += space ? space : rk_span_char_bytes(text, at);
        if (!space)
            end = at;
    }
    return rk_span_slice(text, begin, end > begin ? end : begin);
}

void rk_span_replace(struct rk_str *str, const char *from, const char *to)
{
    struct rk_span text = rk_span_of_str(str);
    size_t done = 0, at = rk_span_find(text, 0, from);
    struct rk_str out = {0};

    if (at == RK_SPAN_NONE)
        return;
    for (; at != RK_SPAN_NONE; at = rk_span_find(text, done, from)) {
        rk_str_append_bytes(&out, text.data + done, at - done);
        rk_str_append(&out, to);
        done = at + strlen(from);
    }
    rk_str_append_bytes(&out, text.data + done, text.bytes - done);
    rk_str_fini(str);
    *str = out;
}

void rk_span_assign(struct rk_str *str, struct rk_span text)
{
    struct rk_str out = {0};

    rk_str_append_bytes(&out, text.data, text.bytes);
    rk_str_fini(str);
    *str = out;
}

struct rk_span rk_span_matching_braces(struct rk_span text, size_t from)
{
    int64_t depth = 0;

    for (size_t i = from; i < text.bytes; i++) {
        depth += text.data[i] == '{';
        depth -= text.data[i] == '}';
        if (text.data[i] == '}' && depth == 0)
            return rk_span_slice(text, from, i + 1);
    }
    return (struct rk_span){text.data, 0};
}
