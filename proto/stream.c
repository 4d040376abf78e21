/* Messages of the chunk stream of Execute and gRPC's byte buffers. The only file of this module that uses
 * gRPC.
 *
 * A chunk is encoded by hand, so that its data is neither copied into a message nor out of one: a small slice
 * with everything up to the length of the data, then a slice that refers to the caller's memory. Field 15 of
 * both ExecuteRequest and ExecuteResponse is the TensorChunk, and field 15 of TensorChunk its data, so both
 * carry the same bytes. Received messages consist of hundreds of slices; a cursor walks them. */
#include "proto/rk_stream.h"

#include "base/rk_assert.h"
#include "proto/limits.h"
#include "proto/rk_wire.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/slice.h>

#include <string.h>

enum { FIELD_TENSOR = 1, FIELD_OFFSET = 2, FIELD_DATA = 15, FIELD_CHUNK = 15 };

#define KEY(field, wire_type) ((uint8_t)((field) << 3 | (wire_type)))
/* Two keys and lengths around the chunk and its data, and the two fields before the data. */
#define MAX_CHUNK_PREFIX_BYTES (2 * (1 + RK_WIRE_VARINT_BYTES_MAX) + 2 * (1 + RK_WIRE_VARINT_BYTES_MAX))

/* --- encoding --- */

struct grpc_byte_buffer *rk_stream_encode(const struct rk_str *packed)
{
    grpc_slice slice = grpc_slice_from_copied_buffer(packed->bytes ? packed->text : "", packed->bytes);
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);

    grpc_slice_unref(slice);
    return buffer;
}

/* The fields of a TensorChunk up to and with the length of its data. Zero fields are omitted, as in
 * proto3. */
static size_t put_chunk_fields(uint8_t *dst, const struct rk_tensor_chunk *chunk, size_t data_bytes)
{
    size_t bytes = 0;

    if (chunk->tensor) {
        dst[bytes++] = KEY(FIELD_TENSOR, RK_WIRE_VARINT);
        bytes += rk_wire_varint(dst + bytes, chunk->tensor);
    }
    if (chunk->offset) {
        dst[bytes++] = KEY(FIELD_OFFSET, RK_WIRE_VARINT);
        bytes += rk_wire_varint(dst + bytes, chunk->offset);
    }
    dst[bytes++] = KEY(FIELD_DATA, RK_WIRE_LENGTH);
    return bytes + rk_wire_varint(dst + bytes, data_bytes);
}

struct grpc_byte_buffer *rk_stream_encode_chunk(const struct rk_tensor_chunk *chunk, const void *data,
                                                size_t bytes, void (*release)(void *user), void *user)
{
    uint8_t prefix[MAX_CHUNK_PREFIX_BYTES], fields[MAX_CHUNK_PREFIX_BYTES];
    size_t fields_bytes = put_chunk_fields(fields, chunk, bytes);
    size_t prefix_bytes = 0;
    grpc_slice slices[2];
    grpc_byte_buffer *buffer;

    RK_ASSERT(bytes > 0);
    RK_ASSERT(bytes <= RK_LIMIT_CHUNK_BYTES_MAX);
    prefix[prefix_bytes++] = KEY(FIELD_CHUNK, RK_WIRE_LENGTH);
    prefix_bytes += rk_wire_varint(prefix + prefix_bytes, fields_bytes + bytes);
    memcpy(prefix + prefix_bytes, fields, fields_bytes);
    slices[0] = grpc_slice_from_copied_buffer((const char *)prefix, prefix_bytes + fields_bytes);
    slices[1] = grpc_slice_new_with_user_data((void *)data, bytes, release, user);
    buffer = grpc_raw_byte_buffer_create(slices, 2);
    grpc_slice_unref(slices[0]);
    grpc_slice_unref(slices[1]);
    return buffer;
}

/* --- decoding --- */

struct cursor {
    grpc_byte_buffer_reader reader;
    const uint8_t *next, *end; /* the rest of the current slice */
    uint64_t position;         /* inside the buffer */
    uint64_t total;
};

static bool cursor_init(struct cursor *cursor, grpc_byte_buffer *buffer)
{
    *cursor = (struct cursor){.total = grpc_byte_buffer_length(buffer)};
    return grpc_byte_buffer_reader_init(&cursor->reader, buffer) != 0;
}

/* Makes at least one byte available; false at the end. */
static bool cursor_fill(struct cursor *cursor)
{
    grpc_slice *slice;

    while (cursor->next == cursor->end) {
        if (!grpc_byte_buffer_reader_peek(&cursor->reader, &slice))
            return false;
        cursor->next = GRPC_SLICE_START_PTR(*slice);
        cursor->end = GRPC_SLICE_END_PTR(*slice);
    }
    return true;
}

/* Skips `bytes`, copying them to dst unless it is NULL; false when there are fewer. */
static bool cursor_take(struct cursor *cursor, void *dst, uint64_t bytes)
{
    uint8_t *to = dst;

    if (bytes > cursor->total - cursor->position)
        return false;
    while (bytes > 0) {
        size_t part;

        if (!cursor_fill(cursor))
            return false;
        part = RK_MIN((size_t)(cursor->end - cursor->next), bytes);
        if (to) {
            memcpy(to, cursor->next, part);
            to += part;
        }
        cursor->next += part;
        cursor->position += part;
        bytes -= part;
    }
    return true;
}

static bool cursor_varint(struct cursor *cursor, int max_bytes, uint64_t *out)
{
    uint64_t value = 0;
    uint8_t byte;

    for (int i = 0; i < max_bytes; i++) {
        if (!cursor_take(cursor, &byte, 1))
            return false;
        value |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (!(byte & 0x80)) {
            *out = value;
            return true;
        }
    }
    return false;
}

/* Reads a key and the data before the value's bytes: varints and fixed32 are returned in *number, the bytes
 * of other types are still to be read (*bytes of them, which the buffer has). */
static bool read_field(struct cursor *cursor, uint64_t *key, uint64_t *number, uint64_t *bytes)
{
    uint8_t raw[4];

    *number = *bytes = 0;
    if (!cursor_varint(cursor, RK_WIRE_KEY_BYTES_MAX, key) || *key > UINT32_MAX || *key >> 3 == 0)
        return false;
    switch (*key & 7) {
    case RK_WIRE_VARINT:
        return cursor_varint(cursor, RK_WIRE_VARINT_BYTES_MAX, number);
    case RK_WIRE_FIXED32:
        if (!cursor_take(cursor, raw, sizeof(raw)))
            return false;
        *number = (uint64_t)raw[0] | (uint64_t)raw[1] << 8 | (uint64_t)raw[2] << 16 | (uint64_t)raw[3] << 24;
        return true;
    case RK_WIRE_FIXED64:
        *bytes = 8;
        break;
    case RK_WIRE_LENGTH:
        if (!cursor_varint(cursor, RK_WIRE_KEY_BYTES_MAX, bytes))
            return false;
        break;
    default:
        return false;
    }
    return *bytes <= cursor->total - cursor->position;
}

static struct rk_status *garbage(const struct cursor *cursor)
{
    return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD",
                          "not a message of an Execute stream (near byte %llu of %llu)",
                          (unsigned long long)cursor->position, (unsigned long long)cursor->total);
}

static struct rk_status *count_surplus(int *num_surplus)
{
    if (++*num_surplus > RK_LIMIT_UNKNOWN_FIELDS)
        return RK_FAIL_REASON(RK_RESOURCE_EXHAUSTED, "BAD_FIELD", "chunk: more than %d unknown fields",
                              RK_LIMIT_UNKNOWN_FIELDS);
    return NULL;
}

/* Whether a field of TensorChunk has this number. With a different wire type it is invalid. */
static bool is_chunk_field(uint64_t number)
{
    return number == FIELD_TENSOR || number == FIELD_OFFSET || number == FIELD_DATA;
}

/* The inside of a TensorChunk of `bytes`. In any order; of repeated fields the last one counts. */
static struct rk_status *read_chunk(struct rk_stream_frame *out, struct cursor *cursor, uint64_t bytes)
{
    uint64_t end = cursor->position + bytes, key, number, value_bytes;
    int num_surplus = 0;

    out->chunk = (struct rk_tensor_chunk){0};
    out->data_bytes = 0;
    while (cursor->position < end) {
        if (!read_field(cursor, &key, &number, &value_bytes))
            return garbage(cursor);
        if (key == KEY(FIELD_TENSOR, RK_WIRE_VARINT)) {
            out->chunk.tensor = (uint32_t)number;
        } else if (key == KEY(FIELD_OFFSET, RK_WIRE_VARINT)) {
            out->chunk.offset = number;
        } else if (key == KEY(FIELD_DATA, RK_WIRE_LENGTH)) {
            out->data_begin = cursor->position;
            out->data_bytes = value_bytes;
        } else {
            if (is_chunk_field(key >> 3))
                return garbage(cursor);
            RK_TRY(count_surplus(&num_surplus));
        }
        if (!cursor_take(cursor, NULL, value_bytes))
            return garbage(cursor);
    }
    if (cursor->position != end)
        return garbage(cursor);
    if (out->data_bytes > RK_LIMIT_CHUNK_BYTES_MAX)
        return RK_FAIL_REASON(RK_RESOURCE_EXHAUSTED, "BAD_FIELD",
                              "chunk of %zu bytes, at most %d are allowed", out->data_bytes,
                              RK_LIMIT_CHUNK_BYTES_MAX);
    return NULL;
}

struct rk_status *rk_stream_read(struct rk_stream_frame *out, struct grpc_byte_buffer *buffer)
{
    struct rk_status *st = NULL;
    struct cursor cursor;
    uint64_t key, number, bytes;
    int num_chunks = 0, num_others = 0;

    *out = (struct rk_stream_frame){0};
    if (!cursor_init(&cursor, buffer))
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "unreadable message");
    while (cursor.position < cursor.total) {
        if (!read_field(&cursor, &key, &number, &bytes))
            RK_TRY_GOTO(st, garbage(&cursor), out);
        if (key == KEY(FIELD_CHUNK, RK_WIRE_LENGTH)) {
            num_chunks++;
            RK_TRY_GOTO(st, read_chunk(out, &cursor, bytes), out);
            continue;
        }
        num_others++;
        if (!cursor_take(&cursor, NULL, bytes))
            RK_TRY_GOTO(st, garbage(&cursor), out);
    }
    out->is_chunk = num_chunks > 0;
    /* All other fields of the message are members of the oneof that the chunk belongs to. */
    if (num_chunks > 1 || (num_chunks && num_others))
        st =
            RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "a chunk must be the only field of its message");
out:
    grpc_byte_buffer_reader_destroy(&cursor.reader);
    if (st)
        *out = (struct rk_stream_frame){0};
    return st;
}

void rk_stream_copy_chunk(const struct rk_stream_frame *frame, struct grpc_byte_buffer *buffer, void *dst)
{
    struct cursor cursor;

    RK_ASSERT(frame->is_chunk);
    RK_ASSERT(cursor_init(&cursor, buffer));
    RK_ASSERT(cursor_take(&cursor, NULL, frame->data_begin));
    RK_ASSERT(cursor_take(&cursor, dst, frame->data_bytes));
    grpc_byte_buffer_reader_destroy(&cursor.reader);
}

struct rk_status *rk_stream_flatten(struct rk_bytes *out, struct rk_arena *arena,
                                    struct grpc_byte_buffer *buffer, size_t limit_bytes)
{
    struct rk_status *st = NULL;
    struct cursor cursor;
    uint8_t *copy;

    *out = (struct rk_bytes){0};
    if (!cursor_init(&cursor, buffer))
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "unreadable message");
    if (cursor.total > limit_bytes)
        RK_TRY_GOTO(st,
                    RK_FAIL_REASON(RK_RESOURCE_EXHAUSTED, "BAD_FIELD",
                                   "message of %llu bytes, at most %zu are allowed",
                                   (unsigned long long)cursor.total, limit_bytes),
                    out);
    copy = rk_arena_alloc(arena, cursor.total);
    if (!copy)
        RK_TRY_GOTO(st,
                    RK_FAIL(RK_RESOURCE_EXHAUSTED, "no memory for a message of %llu bytes",
                            (unsigned long long)cursor.total),
                    out);
    RK_ASSERT(cursor_take(&cursor, copy, cursor.total));
    *out = (struct rk_bytes){.data = copy, .bytes = cursor.total};
out:
    grpc_byte_buffer_reader_destroy(&cursor.reader);
    return st;
}
