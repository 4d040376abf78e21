#include "rl/data/parquet/thrift_internal.h"

#define DEPTH_MAX 16

static uint8_t take_byte(struct rk_thrift *in)
{
    if (in->is_bad || in->at >= in->end) {
        in->is_bad = true;
        return 0;
    }
    return *in->at++;
}

static void skip_bytes(struct rk_thrift *in, uint64_t bytes)
{
    if (in->is_bad || bytes > (uint64_t)(in->end - in->at)) {
        in->is_bad = true;
        return;
    }
    in->at += bytes;
}

uint64_t rk_thrift_varint(struct rk_thrift *in)
{
    uint64_t value = 0;

    for (int shift = 0; shift < 64; shift += 7) {
        uint8_t byte = take_byte(in);

        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return in->is_bad ? 0 : value;
    }
    in->is_bad = true;
    return 0;
}

static int64_t take_zigzag(struct rk_thrift *in)
{
    uint64_t value = rk_thrift_varint(in);

    return (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
}

bool rk_thrift_next(struct rk_thrift *in, struct rk_thrift_field *field)
{
    uint8_t head = take_byte(in);

    if (in->is_bad || head == 0)
        return false;
    field->type = head & 0x0f;
    if (head >> 4)
        field->id += head >> 4;
    else
        field->id = (int16_t)take_zigzag(in);
    return !in->is_bad;
}

static int64_t take_list_head(struct rk_thrift *in, int *type)
{
    uint8_t head = take_byte(in);
    uint64_t count = head >> 4;

    *type = head & 0x0f;
    if (count == 15)
        count = rk_thrift_varint(in);
    if (count > (uint64_t)(in->end - in->at)) /* every element has a byte */
        in->is_bad = true;
    return in->is_bad ? 0 : (int64_t)count;
}

static void skip_value(struct rk_thrift *in, int type, int depth);

static void skip_struct(struct rk_thrift *in, int depth)
{
    struct rk_thrift_field field = {0};

    while (rk_thrift_next(in, &field))
        skip_value(in, field.type, depth + 1);
}

/* In lists and maps a boolean has a byte of its own; in structs the type is its value. */
static void skip_element(struct rk_thrift *in, int type, int depth)
{
    if (type == RK_THRIFT_TRUE || type == RK_THRIFT_FALSE)
        (void)take_byte(in);
    else
        skip_value(in, type, depth + 1);
}

static void skip_map(struct rk_thrift *in, int depth)
{
    uint64_t count = rk_thrift_varint(in);
    uint8_t types = count > 0 ? take_byte(in) : 0;

    if (count > (uint64_t)(in->end - in->at) / 2) /* every key and every value has a byte */
        in->is_bad = true;
    for (uint64_t i = 0; i < count && !in->is_bad; i++) {
        skip_element(in, types >> 4, depth);
        skip_element(in, types & 0x0f, depth);
    }
}

static void skip_elements(struct rk_thrift *in, int depth)
{
    int type;
    int64_t count = take_list_head(in, &type);

    for (int64_t i = 0; i < count && !in->is_bad; i++)
        skip_element(in, type, depth);
}

static void skip_value(struct rk_thrift *in, int type, int depth)
{
    if (depth > DEPTH_MAX)
        in->is_bad = true;
    if (in->is_bad)
        return;
    switch (type) {
    case RK_THRIFT_TRUE:
    case RK_THRIFT_FALSE:
        break;
    case RK_THRIFT_BYTE:
        (void)take_byte(in);
        break;
    case RK_THRIFT_I16:
    case RK_THRIFT_I32:
    case RK_THRIFT_I64:
        (void)rk_thrift_varint(in);
        break;
    case RK_THRIFT_DOUBLE:
        skip_bytes(in, sizeof(double));
        break;
    case RK_THRIFT_BINARY:
        skip_bytes(in, rk_thrift_varint(in));
        break;
    case RK_THRIFT_LIST:
    case RK_THRIFT_SET:
        skip_elements(in, depth);
        break;
    case RK_THRIFT_MAP:
        skip_map(in, depth);
        break;
    case RK_THRIFT_STRUCT:
        skip_struct(in, depth);
        break;
    default:
        in->is_bad = true;
    }
}

void rk_thrift_skip(struct rk_thrift *in, int type)
{
    skip_value(in, type, 0);
}

int64_t rk_thrift_int(struct rk_thrift *in, const struct rk_thrift_field *field)
{
    switch (field->type) {
    case RK_THRIFT_TRUE:
        return 1;
    case RK_THRIFT_FALSE:
        return 0;
    case RK_THRIFT_BYTE:
        return (int8_t)take_byte(in);
    case RK_THRIFT_I16:
    case RK_THRIFT_I32:
    case RK_THRIFT_I64:
        return take_zigzag(in);
    default:
        in->is_bad = true;
        return 0;
    }
}

const uint8_t *rk_thrift_binary(struct rk_thrift *in, const struct rk_thrift_field *field, size_t *bytes)
{
    uint64_t count = rk_thrift_varint(in);
    const uint8_t *begin = in->at;

    if (field->type != RK_THRIFT_BINARY)
        in->is_bad = true;
    skip_bytes(in, count);
    *bytes = in->is_bad ? 0 : (size_t)count;
    return begin;
}

int64_t rk_thrift_list(struct rk_thrift *in, const struct rk_thrift_field *field, int type)
{
    int got = type;
    int64_t count = field->type == RK_THRIFT_LIST ? take_list_head(in, &got) : 0;

    if (field->type != RK_THRIFT_LIST || (count > 0 && got != type))
        in->is_bad = true;
    return in->is_bad ? 0 : count;
}

bool rk_thrift_is_struct(struct rk_thrift *in, const struct rk_thrift_field *field)
{
    if (field->type != RK_THRIFT_STRUCT)
        in->is_bad = true;
    return !in->is_bad;
}
