/* Operations on texts, by code points and as in Python's str. Unicode data is utf8proc's. */
#include "text/chat/jinja_internal.h"

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
    int size;

    RK_ASSERT(i >= 0);
    RK_ASSERT(i <= rk_text_chars(text));
    if (text->chars == text->bytes)
        return i;
    for (; i > 0; i--) {
        (void)rk_utf8_read(text->data + offset, &size);
        offset += size;
    }
    return offset;
}

bool rk_code_point_is_space(int32_t code)
{
    if (code <= 0x20)
        return code == 0x20 || (code >= 0x09 && code <= 0x0d) || (code >= 0x1c && code <= 0x1f);
    return code == 0x85 || code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) ||
           code == 0x2028 || code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

bool rk_code_point_is_printable(int32_t code)
{
    switch (utf8proc_category(code)) {
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

/* --- stripping, searching, replacing, lines --- */

/* Whether the character at `at` is one of `chars`, or white space when chars is NULL. */
static bool is_stripped(const char *at, const struct rk_text *chars, int *size)
{
    int32_t code = rk_utf8_read(at, size);

    return chars ? memmem(chars->data, (size_t)chars->bytes, at, (size_t)*size) != NULL
                 : rk_code_point_is_space(code);
}

struct rk_text rk_text_strip(const struct rk_text *text, const struct rk_text *chars, int sides)
{
    struct rk_text rest = *text;
    int64_t last;
    int size;

    rest.chars = -1;
    while ((sides & RK_STRIP_LEFT) && rest.bytes > 0 && is_stripped(rest.data, chars, &size)) {
        rest.data += size;
        rest.bytes -= size;
    }
    while ((sides & RK_STRIP_RIGHT) && rest.bytes > 0) {
        for (last = rest.bytes - 1; !is_first_byte(rest.data[last]);)
            last--;
        if (!is_stripped(rest.data + last, chars, &size))
            break;
        rest.bytes = last;
    }
    return rest;
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

/* An empty `old` is found in front of each character and at the end, as in Python. */
rk_value_t rk_text_replace(struct rk_render *r, const struct rk_text *text, const struct rk_text *old,
                           const struct rk_text *new_text, int64_t count)
{
    struct rk_str result = {0};
    int64_t from = 0, found;

    for (count = RK_MAX(count, -1); count != 0 && rk_render_step(r, 1); count--) {
        int size = 0;

        found = rk_text_find(text, old, from);
        if (found < 0)
            break;
        rk_text_append(r, &result, text->data + from, found - from);
        rk_text_append(r, &result, new_text->data, new_text->bytes);
        from = found + old->bytes;
        if (old->bytes > 0)
            continue;
        if (from == text->bytes)
            break;
        (void)rk_utf8_read(text->data + from, &size);
        rk_text_append(r, &result, text->data + from, size);
        from += size;
    }
    rk_text_append(r, &result, text->data + from, text->bytes - from);
    return rk_value_take_string(r, &result);
}

static bool is_line_end(int32_t code)
{
    return (code >= 0x0a && code <= 0x0d) || (code >= 0x1c && code <= 0x1e) || code == 0x85 ||
           code == 0x2028 || code == 0x2029;
}

rk_value_t rk_text_lines(struct rk_render *r, const struct rk_text *text)
{
    rk_value_t lines = rk_value_new_list(r, RK_VALUE_LIST);
    int64_t begin = 0;
    int size;

    for (int64_t at = 0; at < text->bytes && rk_render_step(r, 0); at += size) {
        int32_t code = rk_utf8_read(text->data + at, &size);

        if (!is_line_end(code))
            continue;
        rk_list_append(r, lines.list, rk_value_new_text(r, text->data + begin, at - begin));
        size += code == '\r' && at + 1 < text->bytes && text->data[at + 1] == '\n';
        begin = at + size;
    }
    if (begin < text->bytes)
        rk_list_append(r, lines.list, rk_value_new_text(r, text->data + begin, text->bytes - begin));
    return lines;
}

void rk_text_escape(const struct rk_text *text, struct rk_str *out)
{
    static const char marks[] = "&<>'\"";
    static const char *const entities[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};

    for (int64_t i = 0; i < text->bytes; i++) {
        const char *mark = text->data[i] ? strchr(marks, text->data[i]) : NULL;

        if (mark)
            rk_str_append(out, entities[mark - marks]);
        else
            rk_str_append_bytes(out, text->data + i, 1);
    }
}

/* --- upper and lower case --- */

static bool is_cased(int32_t code)
{
    utf8proc_category_t category = utf8proc_category(code);

    return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
           category == UTF8PROC_CATEGORY_LT || utf8proc_islower(code) || utf8proc_isupper(code);
}

/* Characters that become several in upper case are those whose case folding has several (sharp s, ligatures,
 * Greek with a subscript iota, which is a letter in upper case and a mark in title case), except for two. */
static void append_upper(struct rk_str *out, int32_t code, bool is_title)
{
    utf8proc_int32_t folded[8];
    int boundary = UTF8PROC_BOUNDCLASS_START;
    int32_t single = is_title ? utf8proc_totitle(code) : utf8proc_toupper(code);
    bool is_single =
        code < 0x80 || code == 0x130 || code == 0x1e9e ||
        (is_title && code != 0xdf && (single != code || utf8proc_category(code) == UTF8PROC_CATEGORY_LT));
    utf8proc_ssize_t count =
        is_single ? 1 : utf8proc_decompose_char(code, folded, 8, UTF8PROC_CASEFOLD, &boundary);

    if (count <= 1 || count > 8)
        rk_utf8_append(out, single);
    for (utf8proc_ssize_t i = 0; count > 1 && count <= 8 && i < count; i++) {
        if (is_title && i > 0 && is_cased(folded[0]))
            rk_utf8_append(out, folded[i] == 0x3b9 ? 0x345 : folded[i]);
        else
            rk_utf8_append(out, utf8proc_toupper(folded[i]));
    }
}

static bool is_case_ignorable(int32_t code)
{
    switch (utf8proc_category(code)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
        return true;
    default:
        return code == '\'' || code == '.' || code == ':' || code == 0xb7 || code == 0x2018 ||
               code == 0x2019 || code == 0x2024 || code == 0x2027;
    }
}

/* Whether the next character from `at` in this direction that is not case-ignorable is cased. */
static bool cased_is_next(const struct rk_text *text, int64_t at, int direction)
{
    for (; at >= 0 && at < text->bytes; at += direction) {
        int size;
        int32_t code;

        if (!is_first_byte(text->data[at]))
            continue;
        code = rk_utf8_read(text->data + at, &size);
        if (!is_case_ignorable(code))
            return is_cased(code);
    }
    return false;
}

/* The character at `at` of the text in lower case. A sigma at the end of a word has a form of its own. */
static void append_lower(struct rk_str *out, const struct rk_text *text, int64_t at)
{
    int size;
    int32_t code = rk_utf8_read(text->data + at, &size);

    if (code == 0x130)
        rk_str_append(out, "i\xcc\x87");
    else if (code == 0x3a3 && cased_is_next(text, at - 1, -1) && !cased_is_next(text, at + size, 1))
        rk_utf8_append(out, 0x3c2);
    else
        rk_utf8_append(out, utf8proc_tolower(code));
}

/* Jinja's title begins words only after blanks and -({[<, Python's after all that is not cased. */
void rk_text_case(const struct rk_text *text, rk_case_t to, struct rk_str *out)
{
    struct rk_text word = *text; /* what a sigma is looked at in */
    bool is_inside = false;
    int size;

    for (int64_t at = 0; at < text->bytes; at += size) {
        int32_t code = rk_utf8_read(text->data + at, &size);
        bool is_break = rk_code_point_is_space(code) || (code < 0x80 && strchr("-({[<", code) && code);

        if (to == RK_CASE_LOWER || (is_inside && to != RK_CASE_UPPER && !(to == RK_CASE_WORDS && is_break)))
            append_lower(out, &word, at - (word.data - text->data));
        else
            append_upper(out, code, to == RK_CASE_CAPITALIZE || to == RK_CASE_TITLE);
        if (to == RK_CASE_WORDS && !is_inside && !is_break)
            word = (struct rk_text){.data = text->data + at + size, .bytes = text->bytes - at - size};
        is_inside = to == RK_CASE_TITLE ? is_cased(code) : to == RK_CASE_WORDS ? !is_break : true;
    }
}
