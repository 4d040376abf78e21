/* Writes protobuf by hand, so that tests can send bytes that no encoder produces. */
#ifndef RK_TEST_WIRE_H
#define RK_TEST_WIRE_H

#include <stdint.h>

#include "base/rk_str.h"

enum { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_LENGTH = 2, WIRE_FIXED32 = 5 };

static inline void put_varint(struct rk_str *out, uint64_t value)
{
    do {
        char byte = (char)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));

        rk_str_append_bytes(out, &byte, 1);
        value >>= 7;
    } while (value);
}

static inline void put_key(struct rk_str *out, uint32_t field, uint32_t wire_type)
{
    put_varint(out, (uint64_t)field << 3 | wire_type);
}

static inline void put_bytes(struct rk_str *out, uint32_t field, const void *data, size_t bytes)
{
    put_key(out, field, WIRE_LENGTH);
    put_varint(out, bytes);
    rk_str_append_bytes(out, data, bytes);
}

static inline void put_message(struct rk_str *out, uint32_t field, const struct rk_str *inner)
{
    put_bytes(out, field, rk_str_text(inner), inner->bytes);
}

static inline void put_number(struct rk_str *out, uint32_t field, uint64_t value)
{
    put_key(out, field, WIRE_VARINT);
    put_varint(out, value);
}

#endif
