#include "proto/rk_wire.h"

#include <string.h>

/* Takes the value of a field whose key has been read. */
static bool read_value(struct rk_bytes *in, struct rk_wire_field *out)
{
    uint64_t bytes = out->type == RK_WIRE_FIXED64 ? 8 : 4;
    const uint8_t *begin = in->data;

    out->value = 0;
    if (out->type == RK_WIRE_VARINT) {
        if (!rk_wire_read_varint(in, RK_WIRE_VARINT_BYTES_MAX, &out->value))
            return false;
        out->bytes = (struct rk_bytes){begin, (size_t)(in->data - begin)};
        return true;
    }
    if (out->type == RK_WIRE_LENGTH && !rk_wire_read_varint(in, RK_WIRE_KEY_BYTES_MAX, &bytes))
        return false;
    if (bytes > in->bytes)
        return false;
    out->bytes = (struct rk_bytes){in->data, (size_t)bytes};
    in->data += bytes;
    in->bytes -= (size_t)bytes;
    if (out->type == RK_WIRE_LENGTH)
        return true;
    for (size_t i = 0; i < bytes; i++)
        out->value |= (uint64_t)out->bytes.data[i] << (8 * i);
    return out->type == RK_WIRE_FIXED64 || out->type == RK_WIRE_FIXED32;
}

bool rk_wire_next(struct rk_bytes *in, struct rk_wire_field *out)
{
    uint64_t key;

    if (!rk_wire_read_varint(in, RK_WIRE_KEY_BYTES_MAX, &key) || key >> 3 == 0 || key > UINT32_MAX)
        return false;
    out->number = (uint32_t)(key >> 3);
    out->type = (uint32_t)(key & 7);
    return read_value(in, out);
}

size_t rk_wire_varint(uint8_t *dst, uint64_t value)
{
    size_t bytes = 0;

    while (value >= 0x80) {
        dst[bytes++] = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    dst[bytes++] = (uint8_t)value;
    return bytes;
}

void rk_wire_put_varint(struct rk_str *out, uint64_t value)
{
    uint8_t buf[RK_WIRE_VARINT_BYTES_MAX];

    rk_str_append_bytes(out, (const char *)buf, rk_wire_varint(buf, value));
}

void rk_wire_put_fixed(struct rk_str *out, uint64_t value, size_t bytes)
{
    char buf[8];

    for (size_t i = 0; i < bytes; i++)
        buf[i] = (char)(value >> (8 * i));
    rk_str_append_bytes(out, buf, bytes);
}

void rk_wire_put_key(struct rk_str *out, uint32_t number, rk_wire_type_t type)
{
    rk_wire_put_varint(out, (uint64_t)number << 3 | type);
}

void rk_wire_put_number(struct rk_str *out, uint32_t number, uint64_t value)
{
    rk_wire_put_key(out, number, RK_WIRE_VARINT);
    rk_wire_put_varint(out, value);
}

void rk_wire_put_bytes(struct rk_str *out, uint32_t number, const void *data, size_t bytes)
{
    rk_wire_put_key(out, number, RK_WIRE_LENGTH);
    rk_wire_put_varint(out, bytes);
    rk_str_append_bytes(out, data, bytes);
}

void rk_wire_put_text(struct rk_str *out, uint32_t number, const char *text)
{
    rk_wire_put_bytes(out, number, text, strlen(text));
}

void rk_wire_put_message(struct rk_str *out, uint32_t number, struct rk_str *message)
{
    rk_wire_put_bytes(out, number, rk_str_text(message), message->bytes);
    rk_str_fini(message);
}
