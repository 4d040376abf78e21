/* Classes of characters. The lists and exceptions come from the Unicode properties White_Space and
 * Alphabetic; the general categories come from utf8proc. */
#include <string.h>
#include <utf8proc.h>

#include "base/rk_assert.h"
#include "text/tokenizer/tokenizer_internal.h"

bool rk_char_is_space(int32_t c)
{
    if (c < 0x80)
        return c == ' ' || (c >= '\t' && c <= '\r');
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
           c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool rk_char_is_numeric(int32_t c)
{
    utf8proc_category_t category;

    if (c < 0x80)
        return c >= '0' && c <= '9';
    category = utf8proc_category(c);
    return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
           category == UTF8PROC_CATEGORY_NO;
}

bool rk_char_is_punctuation(int32_t c)
{
    utf8proc_category_t category;

    if (c < 0x80)
        return c > ' ' && c < 0x7f && !((c | 0x20) >= 'a' && (c | 0x20) <= 'z') && !(c >= '0' && c <= '9');
    category = utf8proc_category(c);
    return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

bool rk_char_is_mark(int32_t c)
{
    utf8proc_category_t category = utf8proc_category(c);

    return category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME;
}

/* Symbols that have the property Alphabetic: letters in circles, parentheses and squares. */
static bool is_enclosed_letter(int32_t c)
{
    return (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
           (c >= 0x1f170 && c <= 0x1f189);
}

bool rk_char_is_word(int32_t c)
{
    utf8proc_category_t category;

    if (c < 0x80)
        return ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || (c >= '0' && c <= '9') || c == '_';
    category = utf8proc_category(c);
    if (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL)
        return true;
    return category == UTF8PROC_CATEGORY_PC || is_enclosed_letter(c) || c == 0x200c || c == 0x200d;
}

bool rk_text_is_ascii(const char *text, size_t bytes)
{
    size_t at = 0;
    uint64_t word;

    for (; at + sizeof(word) <= bytes; at += sizeof(word)) {
        memcpy(&word, text + at, sizeof(word));
        if (word & 0x8080808080808080u)
            return false;
    }
    for (; at < bytes; at++) {
        if ((uint8_t)text[at] >= 0x80)
            return false;
    }
    return true;
}

bool rk_text_is_utf8(const char *text, size_t bytes)
{
    bool is_valid = true;

    if (rk_text_is_ascii(text, bytes))
        return true;
    for (size_t at = 0; at < bytes && is_valid;)
        at += (uint8_t)text[at] < 0x80 ? 1 : rk_utf8_part(text + at, bytes - at, &is_valid);
    return is_valid;
}
