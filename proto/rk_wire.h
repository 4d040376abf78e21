/* The wire format of protobuf: reading and writing single fields, without groups, which proto3 has not. */
#ifndef RK_WIRE_H
#define RK_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rk_compiler.h"
#include "base/rk_str.h"
#include "proto/rk_messages.h"

RK_BEGIN_DECLS

typedef enum rk_wire_type {
    RK_WIRE_VARINT = 0,
    RK_WIRE_FIXED64 = 1,
    RK_WIRE_LENGTH = 2, /* text, bytes, messages, packed lists */
    RK_WIRE_FIXED32 = 5
} rk_wire_type_t;

#define RK_WIRE_VARINT_BYTES_MAX 10
#define RK_WIRE_KEY_BYTES_MAX    5 /* keys and lengths */

struct rk_wire_field {
    uint32_t number;
    uint32_t type;         /* an rk_wire_type_t */
    uint64_t value;        /* VARINT, FIXED64, FIXED32 */
    struct rk_bytes bytes; /* LENGTH; else the bytes of the value */
};

/* Takes the next field of a message; false when no complete one follows. */
bool rk_wire_next(struct rk_bytes *in, struct rk_wire_field *out);
static inline bool rk_wire_read_varint(struct rk_bytes *in, size_t max_bytes, uint64_t *out)
{
    uint64_t value = 0;

    for (size_t i = 0; i < max_bytes && i < in->bytes; i++) {
        value |= (uint64_t)(in->data[i] & 0x7f) << (7 * i);
        if (in->data[i] & 0x80)
            continue;
        in->data += i + 1;
        in->bytes -= i + 1;
        *out = value;
        return true;
    }
    return false;
}

/* Writes at most RK_WIRE_VARINT_BYTES_MAX bytes; returns their number. */
size_t rk_wire_varint(uint8_t *dst, uint64_t value);
void rk_wire_put_varint(struct rk_str *out, uint64_t value);
/* The lowest `bytes` bytes of the value, little-endian. */
void rk_wire_put_fixed(struct rk_str *out, uint64_t value, size_t bytes);
void rk_wire_put_key(struct rk_str *out, uint32_t number, rk_wire_type_t type);
void rk_wire_put_number(struct rk_str *out, uint32_t number, uint64_t value); /* as a varint */
void rk_wire_put_bytes(struct rk_str *out, uint32_t number, const void *data, size_t bytes);
void rk_wire_put_text(struct rk_str *out, uint32_t number, const char *text);
/* Puts the message and releases it. */
void rk_wire_put_message(struct rk_str *out, uint32_t number, struct rk_str *message);

RK_END_DECLS

#endif
