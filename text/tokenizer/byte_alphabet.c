/* GPT-2's byte alphabet: printable Latin-1 bytes stand for themselves, the other 68 for U+0100, U+0101, ...
 * in order. */
#include "text/tokenizer/tokenizer_internal.h"

/* The runs of bytes that do not stand for themselves, with the code point of each run's first byte. */
static const struct {
    uint8_t first, last;
    int32_t code_point;
} runs[] = {{0x00, 0x20, 0x100}, {0x7f, 0xa0, 0x121}, {0xad, 0xad, 0x143}};

int32_t rk_byte_alphabet_code_point(uint8_t byte)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(runs); i++) {
        if (byte >= runs[i].first && byte <= runs[i].last)
            return runs[i].code_point + byte - runs[i].first;
    }
    return byte;
}

int rk_byte_alphabet_byte(int32_t code_point)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(runs); i++) {
        if (code_point >= runs[i].code_point &&
            code_point <= runs[i].code_point + runs[i].last - runs[i].first)
            return runs[i].first + (code_point - runs[i].code_point);
    }
    return code_point < 0x100 && rk_byte_alphabet_code_point((uint8_t)code_point) == code_point ? code_point
                                                                                                : -1;
}

void rk_byte_alphabet_append(struct rk_str *out, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        rk_utf8_append(out, rk_byte_alphabet_code_point((uint8_t)text[i]));
}
