/* Chunk streams over gRPC slices, for daemon and driver alike: the only place where tensor bytes are sent and
 * received.
 *
 * A message of the chunk stream of Execute is either a TensorChunk, whose bytes are sent from and received
 * into their final place without an intermediate copy of ours, or a small message that is flattened and
 * unpacked (rk_messages.h). */
#ifndef RK_STREAM_H
#define RK_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rk_status.h"
#include "base/rk_str.h"
#include "proto/rk_messages.h"

RK_BEGIN_DECLS

struct grpc_byte_buffer;

/* A buffer of these bytes (copied). */
struct grpc_byte_buffer *rk_stream_encode(const struct rk_str *packed);
/* An ExecuteRequest or ExecuteResponse holding a chunk: the header is encoded by hand, the data is referenced
 * and must live until `release(user)` is called, which may happen on any gRPC thread, after the send
 * completed. */
struct grpc_byte_buffer *rk_stream_encode_chunk(const struct rk_tensor_chunk *chunk, const void *data,
                                                size_t bytes, void (*release)(void *user), void *user);

/* One received message. */
struct rk_stream_frame {
    bool is_chunk;
    struct rk_tensor_chunk chunk; /* when is_chunk */
    size_t data_bytes;            /* when is_chunk: bytes of chunk data */
    uint64_t data_begin;          /* when is_chunk: where they begin inside the buffer */
};

/* Reads the outer fields. Fields in an order other than ours are legal and handled. INVALID_ARGUMENT for
 * malformed bytes, and for a chunk together with another field; RESOURCE_EXHAUSTED for a chunk over the
 * limit. */
struct rk_status *rk_stream_read(struct rk_stream_frame *out, struct grpc_byte_buffer *buffer) RK_NODISCARD;
/* Copies the data of a chunk frame to dst (frame->data_bytes), slice by slice. */
void rk_stream_copy_chunk(const struct rk_stream_frame *frame, struct grpc_byte_buffer *buffer, void *dst);
/* The complete message as contiguous bytes in the arena; RESOURCE_EXHAUSTED above `limit_bytes`. */
struct rk_status *rk_stream_flatten(struct rk_bytes *out, struct rk_arena *arena,
                                    struct grpc_byte_buffer *buffer, size_t limit_bytes) RK_NODISCARD;

/* --- chunk bookkeeping, pure: chunks of a tensor have increasing offsets without gaps or overlap, tensors
 * may be interleaved. --- */
struct rk_assembler;

/* Sizes are checked to be the product of shape and dtype, their sum against `limit_bytes` (0: none). */
struct rk_status *rk_assembler_create(struct rk_assembler **out, const struct rk_batch_spec *spec,
                                      uint64_t limit_bytes) RK_NODISCARD;
void rk_assembler_destroy(struct rk_assembler *assembler); /* NULL is a no-op */
uint64_t rk_assembler_total_bytes(const struct rk_assembler *assembler);
/* Records a chunk before its bytes are copied. INVALID_ARGUMENT names the tensor, the offset and the expected
 * one. */
struct rk_status *rk_assembler_accept(struct rk_assembler *assembler, const struct rk_tensor_chunk *chunk,
                                      size_t data_bytes) RK_NODISCARD;
/* INVALID_ARGUMENT naming the first incomplete tensor and its received bytes. */
struct rk_status *rk_assembler_check_complete(const struct rk_assembler *assembler) RK_NODISCARD;

RK_END_DECLS

#endif
