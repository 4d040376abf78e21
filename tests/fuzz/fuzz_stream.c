/* Goal: the hand-written reader of chunks agrees with protobuf-c on every message that it parses as a chunk,
 * for every split of the message into slices. The first byte is the size of the slices. */
#include "tests/fuzz/fuzz.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "proto/rk_stream.h"
#include "rankd/v1/worker.pb-c.h"

#include <grpc/byte_buffer.h>
#include <grpc/slice.h>

#include <string.h>

#define MAX_SLICES 64

static grpc_byte_buffer *cut_buffer(const uint8_t *data, size_t bytes, size_t slice_bytes)
{
    grpc_slice slices[MAX_SLICES];
    size_t count = 0, begin = 0;
    grpc_byte_buffer *buffer;

    do {
        size_t part = bytes - begin;

        if (slice_bytes && count < MAX_SLICES - 1)
            part = RK_MIN(part, slice_bytes);
        slices[count++] = grpc_slice_from_copied_buffer((const char *)data + begin, part);
        begin += part;
    } while (begin < bytes);
    buffer = grpc_raw_byte_buffer_create(slices, count);
    for (size_t i = 0; i < count; i++)
        grpc_slice_unref(slices[i]);
    return buffer;
}

static void compare(const struct rk_stream_frame *frame, grpc_byte_buffer *buffer, const uint8_t *data,
                    size_t bytes)
{
    Rankd__V1__ExecuteRequest *oracle = rankd__v1__execute_request__unpack(NULL, bytes, data);
    uint8_t *copy = rk_malloc(frame->data_bytes);

    RK_ASSERT(oracle != NULL);
    RK_ASSERT(oracle->m_case == RANKD__V1__EXECUTE_REQUEST__M_CHUNK);
    RK_ASSERT(oracle->chunk->tensor == frame->chunk.tensor);
    RK_ASSERT(oracle->chunk->offset == frame->chunk.offset);
    RK_ASSERT(oracle->chunk->data.len == frame->data_bytes);
    rk_stream_copy_chunk(frame, buffer, copy);
    RK_ASSERT(frame->data_bytes == 0 || memcmp(copy, oracle->chunk->data.data, frame->data_bytes) == 0);
    rk_free(copy);
    rankd__v1__execute_request__free_unpacked(oracle, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct rk_stream_frame frame;
    grpc_byte_buffer *buffer;
    struct rk_status *st;

    if (bytes == 0)
        return 0;
    buffer = cut_buffer(data + 1, bytes - 1, data[0]);
    st = rk_stream_read(&frame, buffer);
    if (!st && frame.is_chunk)
        compare(&frame, buffer, data + 1, bytes - 1);
    rk_status_free(st);
    grpc_byte_buffer_destroy(buffer);
    return 0;
}
