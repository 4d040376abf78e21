/* GPT-2's byte alphabet: printable Latin-1 bytes stand for themselves, the other 68 for U+0100, U+0101, ...
 * in order. */
#include "driver-cli/tokenizer/tokenizer_internal.h"

#define FIRST_SHIFTED 0x100
#define NUM_SHIFTED   68

static bool stands_for_itself(int byte)
{
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
}

static int code_point_of(int byte)
{
    int shifted = FIRST_SHIFTED;

    if (stands_for_itself(byte))
        return byte;
    for (int other = 0; other < byte; other++)
        shifted += !stands_for_itself(other);
    return shifted;
}

static int byte_of(int code_point)
{
    if (code_point < FIRST_SHIFTED)
        return stands_for_itself(code_point) ? code_point : -1;
    if (code_point >= FIRST_SHIFTED + NUM_SHIFTED)
        return -1;
    for (int byte = 0; byte < 256; byte++) {
        if (code_point_of(byte) == code_point)
            return byte;
    }
    return -1;
}

void rk_byte_alphabet_char(uint8_t byte, char out[4])
{
    int code_point = code_point_of(byte);

    if (code_point < 0x80) {
        out[0] = (char)code_point;
        out[1] = '\0';
        return;
    }
    out[0] = (char)(0xc0 | (code_point >> 6));
    out[1] = (char)(0x80 | (code_point & 0x3f));
    out[2] = '\0';
}

int rk_byte_alphabet_read(const char **text)
{
    const uint8_t *at = (const uint8_t *)*text;
    int byte;

    if (at[0] < 0x80) {
        byte = byte_of(at[0]);
        *text += byte >= 0;
        return byte;
    }
    if ((at[0] & 0xe0) != 0xc0 || (at[1] & 0xc0) != 0x80)
        return -1;
    byte = byte_of((at[0] & 0x1f) << 6 | (at[1] & 0x3f));
    *text += byte >= 0 ? 2 : 0;
    return byte;
}
