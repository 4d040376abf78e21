/* The hand-written chunk codec against protobuf-c, in both directions, over buffers split into slices of any
 * size. */
#include "tests/support/test.h"

#include "base/rk_alloc.h"
#include "base/rk_compiler.h"
#include "base/rk_rng.h"
#include "proto/limits.h"
#include "proto/rk_stream.h"
#include "rankd/v1/worker.pb-c.h"
#include "tests/unit/proto/wire.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/slice.h>

#include <string.h>

static struct rk_arena *arena;

static int setup(void **state)
{
    (void)state;
    grpc_init();
    arena = rk_arena_create(1 << 16, 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    rk_arena_destroy(arena);
    grpc_shutdown();
    return 0;
}

/* A buffer of these bytes in slices of 1 to max_slice bytes (0: one slice). */
static grpc_byte_buffer *cut_buffer(const void *data, size_t bytes, struct rk_rng *rng, size_t max_slice)
{
    grpc_slice slices[256];
    size_t count = 0, begin = 0;
    grpc_byte_buffer *buffer;

    do {
        size_t part = bytes - begin;

        if (max_slice && count < RK_ARRAY_LEN(slices) - 1) {
            size_t wanted = 1 + (size_t)rk_rng_next_below(rng, (int64_t)max_slice);

            part = RK_MIN(part, wanted);
        }
        slices[count++] = grpc_slice_from_copied_buffer((const char *)data + begin, part);
        begin += part;
    } while (begin < bytes);
    buffer = grpc_raw_byte_buffer_create(slices, count);
    for (size_t i = 0; i < count; i++)
        grpc_slice_unref(slices[i]);
    return buffer;
}

static void count_release(void *user)
{
    (*(int *)user)++;
}

/* 64-bit numbers of every length, 0 included. */
static uint64_t random_number(struct rk_rng *rng)
{
    uint64_t bits = (uint64_t)rk_rng_next_u32(rng) << 32 | rk_rng_next_u32(rng);
    int64_t shift = rk_rng_next_below(rng, 65);

    return shift == 64 ? 0 : bits >> shift;
}

static void test_encode_chunk_is_what_protobuf_reads(void **state)
{
    struct rk_rng rng;

    (void)state;
    rk_rng_init(&rng, rk_test_seed(), 1);
    for (int i = 0; i < 300; i++) {
        struct rk_tensor_chunk chunk = {.tensor = (uint32_t)random_number(&rng),
                                        .offset = random_number(&rng)};
        uint8_t data[300];
        size_t bytes = 1 + (size_t)rk_rng_next_below(&rng, sizeof(data));
        int num_released = 0;
        grpc_byte_buffer *buffer;
        struct rk_bytes flat;
        Rankd__V1__ExecuteRequest *request;
        Rankd__V1__ExecuteResponse *response;

        for (size_t k = 0; k < bytes; k++)
            data[k] = (uint8_t)rk_rng_next_u32(&rng);
        buffer = rk_stream_encode_chunk(&chunk, data, bytes, count_release, &num_released);
        assert_ok(rk_stream_flatten(&flat, arena, buffer, RK_LIMIT_MESSAGE_BYTES));
        request = rankd__v1__execute_request__unpack(NULL, flat.bytes, flat.data);
        assert_non_null(request);
        assert_int_equal(request->m_case, RANKD__V1__EXECUTE_REQUEST__M_CHUNK);
        assert_int_equal(request->chunk->tensor, chunk.tensor);
        assert_int_equal(request->chunk->offset, chunk.offset);
        assert_int_equal(request->chunk->data.len, bytes);
        assert_memory_equal(request->chunk->data.data, data, bytes);
        /* Byte for byte what protobuf-c writes, and the same in the other direction of the stream. */
        assert_int_equal(rankd__v1__execute_request__get_packed_size(request), flat.bytes);
        response = rankd__v1__execute_response__unpack(NULL, flat.bytes, flat.data);
        assert_non_null(response);
        assert_int_equal(response->m_case, RANKD__V1__EXECUTE_RESPONSE__M_CHUNK);
        rankd__v1__execute_request__free_unpacked(request, NULL);
        rankd__v1__execute_response__free_unpacked(response, NULL);
        assert_int_equal(num_released, 0);
        grpc_byte_buffer_destroy(buffer);
        assert_int_equal(num_released, 1);
        rk_arena_reset(arena);
    }
}

/* Writes the fields of a chunk in a random order, some of them omitted, with unknown fields in between. */
static void write_foreign_chunk(struct rk_str *out, const struct rk_tensor_chunk *chunk, const void *data,
                                size_t bytes, struct rk_rng *rng)
{
    int64_t order[6];
    struct rk_str inner = {0};

    rk_rng_permutation(rng->seed, rng->next, 6, order);
    for (int i = 0; i < 6; i++) {
        switch (order[i]) {
        case 0:
            put_number(&inner, 1, chunk->tensor);
            break;
        case 1:
            put_number(&inner, 2, chunk->offset);
            break;
        case 2:
            put_key(&inner, 21, WIRE_FIXED32);
            rk_str_append_bytes(&inner, "1234", 4);
            break;
        case 3:
            put_bytes(&inner, 15, data, bytes);
            break;
        case 4:
            put_number(&inner, 20, random_number(rng));
            break;
        default:
            put_bytes(&inner, 1000, "unknown", 7);
            break;
        }
    }
    put_message(out, 15, &inner);
    rk_str_fini(&inner);
}

static void test_read_agrees_with_protobuf_on_any_field_order_and_slicing(void **state)
{
    struct rk_rng rng;

    (void)state;
    rk_rng_init(&rng, rk_test_seed(), 2);
    for (int i = 0; i < 500; i++) {
        struct rk_tensor_chunk chunk = {.tensor = (uint32_t)random_number(&rng),
                                        .offset = random_number(&rng)};
        uint8_t data[200] = {0}, copy[200];
        size_t bytes = (size_t)rk_rng_next_below(&rng, sizeof(data) + 1);
        struct rk_str message = {0};
        struct rk_stream_frame frame;
        grpc_byte_buffer *buffer;
        Rankd__V1__ExecuteRequest *oracle;

        for (size_t k = 0; k < bytes; k++)
            data[k] = (uint8_t)rk_rng_next_u32(&rng);
        write_foreign_chunk(&message, &chunk, data, bytes, &rng);
        oracle = rankd__v1__execute_request__unpack(NULL, message.bytes, (uint8_t *)message.text);
        assert_non_null(oracle);
        buffer = cut_buffer(message.text, message.bytes, &rng, (size_t)(i % 5));
        assert_ok(rk_stream_read(&frame, buffer));
        assert_true(frame.is_chunk);
        assert_int_equal(frame.chunk.tensor, oracle->chunk->tensor);
        assert_int_equal(frame.chunk.offset, oracle->chunk->offset);
        assert_int_equal(frame.data_bytes, oracle->chunk->data.len);
        rk_stream_copy_chunk(&frame, buffer, copy);
        assert_memory_equal(copy, data, bytes);
        rankd__v1__execute_request__free_unpacked(oracle, NULL);
        grpc_byte_buffer_destroy(buffer);
        rk_str_fini(&message);
    }
}

static void test_read_other_messages_are_no_chunks(void **state)
{
    struct rk_execute_request requests[] = {
        {.kind = RK_EXECUTE_HEADER, .header = {.role = "actor", .method = "update_actor"}},
        {.kind = RK_EXECUTE_COMMIT},
        {.kind = RK_EXECUTE_CANCEL, .cancel = {"why"}},
        {.kind = RK_EXECUTE_NONE},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(requests); i++) {
        struct rk_str packed = {0};
        struct rk_stream_frame frame;
        struct rk_execute_request got;
        struct rk_bytes flat;
        grpc_byte_buffer *buffer;

        rk_pack_execute_request(&packed, &requests[i]);
        buffer = rk_stream_encode(&packed);
        assert_ok(rk_stream_read(&frame, buffer));
        assert_false(frame.is_chunk);
        assert_ok(rk_stream_flatten(&flat, arena, buffer, packed.bytes));
        assert_int_equal(flat.bytes, packed.bytes);
        assert_ok(rk_unpack_execute_request(&got, arena, flat.data, flat.bytes));
        assert_int_equal(got.kind, requests[i].kind);
        grpc_byte_buffer_destroy(buffer);
        rk_str_fini(&packed);
    }
}

static void test_flatten_at_the_limit_passes_and_one_less_is_resource_exhausted(void **state)
{
    struct rk_rng rng;
    char data[1000];
    struct rk_bytes flat;
    grpc_byte_buffer *buffer;
    struct rk_arena *small = rk_arena_create(64, 64);

    (void)state;
    rk_rng_init(&rng, rk_test_seed(), 3);
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (char)rk_rng_next_u32(&rng);
    buffer = cut_buffer(data, sizeof(data), &rng, 90);
    assert_ok(rk_stream_flatten(&flat, arena, buffer, sizeof(data)));
    assert_memory_equal(flat.data, data, sizeof(data));
    assert_fails(rk_stream_flatten(&flat, arena, buffer, sizeof(data) - 1), RK_RESOURCE_EXHAUSTED,
                 "at most 999");
    assert_null(flat.data);
    assert_fails(rk_stream_flatten(&flat, small, buffer, sizeof(data)), RK_RESOURCE_EXHAUSTED, "no memory");
    grpc_byte_buffer_destroy(buffer);
    rk_arena_destroy(small);
}

static const struct {
    const char *label;
    const char *data;
    size_t bytes;
    rk_code_t code;
    const char *error;
} broken[] = {
    {"cut key", "\x80", 1, RK_INVALID_ARGUMENT, "not a message"},
    {"length beyond the end", "\x7a\x05\x08\x01", 4, RK_INVALID_ARGUMENT, "not a message"},
    {"data longer than its chunk", "\x7a\x03\x7a\x05\x01\x02\x03", 7, RK_INVALID_ARGUMENT, "not a message"},
    {"data longer than its chunk, but inside the buffer", "\x7a\x02\x7a\x02\x0a\x00", 6, RK_INVALID_ARGUMENT,
     "not a message"},
    {"varint that leaves its chunk", "\x7a\x02\x08\x80\x01", 5, RK_INVALID_ARGUMENT, "not a message"},
    {"varint without end", "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 11, RK_INVALID_ARGUMENT,
     "not a message"},
    {"length of 64 bits", "\x7a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11, RK_INVALID_ARGUMENT,
     "not a message"},
    {"length of six bytes", "\x7a\x80\x80\x80\x80\x80\x00", 7, RK_INVALID_ARGUMENT, "not a message"},
    {"key of six bytes", "\xfa\x80\x80\x80\x80\x00\x00", 7, RK_INVALID_ARGUMENT, "not a message"},
    {"tensor as bytes", "\x7a\x02\x0a\x00", 4, RK_INVALID_ARGUMENT, "not a message"},
    {"data as a number", "\x7a\x02\x78\x00", 4, RK_INVALID_ARGUMENT, "not a message"},
    {"group", "\x7b", 1, RK_INVALID_ARGUMENT, "not a message"},
    {"field 0", "\x02\x00", 2, RK_INVALID_ARGUMENT, "not a message"},
    {"cut fixed32", "\x7a\x03\x1d\x01\x02", 5, RK_INVALID_ARGUMENT, "not a message"},
    {"two chunks", "\x7a\x02\x08\x01\x7a\x02\x08\x01", 8, RK_INVALID_ARGUMENT, "only field"},
    {"chunk beside a commit", "\x12\x00\x7a\x02\x08\x01", 6, RK_INVALID_ARGUMENT, "only field"},
    {"commit beside a chunk", "\x7a\x02\x08\x01\x12\x00", 6, RK_INVALID_ARGUMENT, "only field"},
    {"unknown fields in a chunk",
     "\x7a\x22\x48\x01\x48\x01\x48\x01\x48\x01\x48\x01\x48\x01\x48\x01\x48\x01\x48\x01\x48\x01\x48\x01\x48"
     "\x01"
     "\x48\x01\x48\x01\x48\x01\x48\x01\x48\x01",
     36, RK_RESOURCE_EXHAUSTED, "more than 16 unknown fields"},
};

static void test_read_broken_messages_are_refused_however_they_are_sliced(void **state)
{
    struct rk_rng rng;

    (void)state;
    rk_rng_init(&rng, rk_test_seed(), 4);
    for (size_t i = 0; i < RK_ARRAY_LEN(broken); i++) {
        print_message("%s\n", broken[i].label);
        for (size_t max_slice = 0; max_slice < 4; max_slice++) {
            grpc_byte_buffer *buffer = cut_buffer(broken[i].data, broken[i].bytes, &rng, max_slice);
            struct rk_stream_frame frame;

            assert_fails(rk_stream_read(&frame, buffer), broken[i].code, broken[i].error);
            assert_false(frame.is_chunk);
            grpc_byte_buffer_destroy(buffer);
        }
    }
}

/* Goal: data of a chunk at the limit is accepted, one byte more is refused. */
static void test_read_chunk_size_limit(void **state)
{
    uint8_t *data = rk_malloc(RK_LIMIT_CHUNK_BYTES_MAX + 1);
    uint8_t *copy = rk_malloc(RK_LIMIT_CHUNK_BYTES_MAX);
    struct rk_rng rng;

    (void)state;
    rk_rng_init(&rng, rk_test_seed(), 5);
    for (size_t i = 0; i <= RK_LIMIT_CHUNK_BYTES_MAX; i++)
        data[i] = (uint8_t)(i * 31);
    for (int extra = 0; extra < 2; extra++) {
        struct rk_str inner = {0}, message = {0};
        struct rk_stream_frame frame;
        grpc_byte_buffer *buffer;

        put_bytes(&inner, 15, data, (size_t)RK_LIMIT_CHUNK_BYTES_MAX + (size_t)extra);
        put_message(&message, 15, &inner);
        buffer = cut_buffer(message.text, message.bytes, &rng, 1 << 16);
        if (extra) {
            assert_fails(rk_stream_read(&frame, buffer), RK_RESOURCE_EXHAUSTED, "chunk of 4194305 bytes");
        } else {
            assert_ok(rk_stream_read(&frame, buffer));
            rk_stream_copy_chunk(&frame, buffer, copy);
            assert_memory_equal(copy, data, RK_LIMIT_CHUNK_BYTES_MAX);
        }
        grpc_byte_buffer_destroy(buffer);
        rk_str_fini(&inner);
        rk_str_fini(&message);
    }
    rk_free(data);
    rk_free(copy);
}

static void test_read_random_bytes_are_survived(void **state)
{
    struct rk_rng rng;

    (void)state;
    rk_rng_init(&rng, rk_test_seed(), 6);
    for (int i = 0; i < 20000; i++) {
        uint8_t bytes[24];
        size_t count = (size_t)rk_rng_next_below(&rng, sizeof(bytes) + 1);
        struct rk_stream_frame frame;
        grpc_byte_buffer *buffer;
        struct rk_status *st;

        for (size_t k = 0; k < count; k++)
            bytes[k] = (uint8_t)rk_rng_next_below(&rng, 256);
        if (count > 2) { /* likely a chunk */
            bytes[0] = 0x7a;
            bytes[1] = (uint8_t)(count - 2);
        }
        buffer = cut_buffer(bytes, count, &rng, (size_t)(i % 4));
        st = rk_stream_read(&frame, buffer);
        if (!st && frame.is_chunk) {
            uint8_t copy[sizeof(bytes)];

            assert_true(frame.data_bytes <= count);
            rk_stream_copy_chunk(&frame, buffer, copy);
        }
        rk_status_free(st);
        grpc_byte_buffer_destroy(buffer);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode_chunk_is_what_protobuf_reads),
        cmocka_unit_test(test_read_agrees_with_protobuf_on_any_field_order_and_slicing),
        cmocka_unit_test(test_read_other_messages_are_no_chunks),
        cmocka_unit_test(test_flatten_at_the_limit_passes_and_one_less_is_resource_exhausted),
        cmocka_unit_test(test_read_broken_messages_are_refused_however_they_are_sliced),
        cmocka_unit_test(test_read_chunk_size_limit),
        cmocka_unit_test(test_read_random_bytes_are_survived),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
