/* Text by code points: offsets, white space, stripping, searching. Upper and lower case: casing.c. */
#include "text/chat/value_internal.h"

#include <string.h>
#include <utf8proc.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

static bool is_first_byte(char c)
{
    return ((unsigned char)c & 0xc0) != 0x80;
}

int64_t rk_text_chars(struct rk_text *text)
{
    if (text->chars < 0) {
        text->chars = 0;
        for (int64_t i = 0; i < text->bytes; i++)
            text->chars += is_first_byte(text->data[i]);
    }
    return text->chars;
}

int64_t rk_text_offset(struct rk_text *text, int64_t i)
{
    int64_t offset = 0;

    RK_ASSERT(i >= 0);
    RK_ASSERT(i <= rk_text_chars(text));
    if (text->chars == text->bytes)
        return i;
    while (i > 0) {
        int bytes;

        (void)rk_utf8_read(text->data + offset, &bytes);
        offset += bytes;
        i--;
    }
    return offset;
}

bool rk_code_point_is_space(uint32_t code)
{
    if (code <= 0x20)
        return code == 0x20 || (code >= 0x09 && code <= 0x0d) || (code >= 0x1c && code <= 0x1f);
    return code == 0x85 || code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) ||
           code == 0x2028 || code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

bool rk_code_point_is_printable(uint32_t code)
{
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    case UTF8PROC_CATEGORY_ZS:
        return code == ' ';
    default:
        return true;
    }
}

bool rk_code_point_is_alpha(uint32_t code)
{
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
        return true;
    default:
        return false;
    }
}

bool rk_code_point_is_alnum(uint32_t code)
{
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
        return true;
    default:
        return rk_code_point_is_alpha(code);
    }
}

/* Superscript, subscript and circled digits, which are digits in Python too: first and last of each run. */
bool rk_code_point_is_digit(uint32_t code)
{
    static const uint32_t runs[][2] = {
        {0xb2, 0xb3},     {0xb9, 0xb9},       {0x1369, 0x1371},   {0x19da, 0x19da},   {0x2070, 0x2070},
        {0x2074, 0x2079}, {0x2080, 0x2089},   {0x2460, 0x2468},   {0x2474, 0x247c},   {0x2488, 0x2490},
        {0x24ea, 0x24ea}, {0x24f5, 0x24fd},   {0x24ff, 0x24ff},   {0x2776, 0x277e},   {0x2780, 0x2788},
        {0x278a, 0x2792}, {0x10a40, 0x10a43}, {0x10e60, 0x10e68}, {0x11052, 0x1105a}, {0x1f100, 0x1f10a}};

    for (size_t i = 0; i < RK_ARRAY_LEN(runs); i++) {
        if (code >= runs[i][0] && code <= runs[i][1])
            return true;
    }
    return utf8proc_category((utf8proc_int32_t)code) == UTF8PROC_CATEGORY_ND;
}

/* Whether the character at `at` is one of `chars`, or white space when chars is NULL. */
static bool is_stripped(const char *at, int bytes, uint32_t code, const struct rk_text *chars)
{
    if (!chars)
        return rk_code_point_is_space(code);
    for (int64_t i = 0; i + bytes <= chars->bytes; i++) {
        if (memcmp(chars->data + i, at, (size_t)bytes) == 0)
            return true;
    }
    return false;
}

void rk_text_strip(const struct rk_text *text, const struct rk_text *chars, enum rk_strip_sides sides,
                   int64_t *offset, int64_t *bytes)
{
    int64_t begin = 0, end = text->bytes;
    int size;

    while ((sides & RK_STRIP_LEFT) && begin < end) {
        uint32_t code = rk_utf8_read(text->data + begin, &size);

        if (!is_stripped(text->data + begin, size, code, chars))
            break;
        begin += size;
    }
    while ((sides & RK_STRIP_RIGHT) && end > begin) {
        int64_t last = end - 1;
        uint32_t code;

        while (!is_first_byte(text->data[last]))
            last--;
        code = rk_utf8_read(text->data + last, &size);
        if (!is_stripped(text->data + last, size, code, chars))
            break;
        end = last;
    }
    *offset = begin;
    *bytes = end - begin;
}

bool rk_text_has_prefix(const struct rk_text *text, const struct rk_text *prefix)
{
    return prefix->bytes <= text->bytes && memcmp(text->data, prefix->data, (size_t)prefix->bytes) == 0;
}

bool rk_text_has_suffix(const struct rk_text *text, const struct rk_text *suffix)
{
    return suffix->bytes <= text->bytes &&
           memcmp(text->data + text->bytes - suffix->bytes, suffix->data, (size_t)suffix->bytes) == 0;
}

int64_t rk_text_find(const struct rk_text *text, const struct rk_text *what, int64_t from)
{
    const char *found;

    if (from > text->bytes || what->bytes > text->bytes - from)
        return -1;
    if (what->bytes == 0)
        return from;
    found = memmem(text->data + from, (size_t)(text->bytes - from), what->data, (size_t)what->bytes);
    return found ? found - text->data : -1;
}
