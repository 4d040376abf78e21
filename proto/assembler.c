/* Records the received chunks of a batch: which bytes of which tensor. Pure; it does not access the bytes. */
#include "proto/rk_stream.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_str.h"
#include "proto/limits.h"

#include <inttypes.h>

struct progress {
    char *name;
    uint64_t byte_size;
    uint64_t received; /* bytes so far, which is also the next offset */
};

struct rk_assembler {
    int64_t num_tensors;
    uint64_t total_bytes;
    struct progress *tensors;
};

static struct rk_status *check_size(const struct rk_tensor_spec *spec)
{
    uint64_t bytes;

    if (!rk_dtype_is_valid((int)spec->dtype))
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "tensor '%s': dtype %d is unknown",
                              spec->name, (int)spec->dtype);
    bytes = rk_dtype_bytes(spec->dtype);
    for (int32_t i = 0; i < spec->rank; i++) {
        if (spec->shape[i] < 0)
            return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD",
                                  "tensor '%s': shape[%d]=%" PRId64 " is negative", spec->name, i,
                                  spec->shape[i]);
        if (__builtin_mul_overflow(bytes, (uint64_t)spec->shape[i], &bytes))
            return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "tensor '%s': the shape overflows",
                                  spec->name);
    }
    if (bytes != spec->byte_size)
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD",
                              "tensor '%s': byte_size=%" PRIu64 ", but shape and dtype %s make %" PRIu64,
                              spec->name, spec->byte_size, rk_dtype_name(spec->dtype), bytes);
    return NULL;
}

/* Takes and returns the status. */
static struct rk_status *name_tensor(struct rk_status *st, const char *name)
{
    char *field;

    if (!st)
        return NULL;
    field = rk_format("tensor[%s]", name);
    st = rk_status_at_field(st, field);
    rk_free(field);
    return st;
}

struct rk_status *rk_assembler_create(struct rk_assembler **out, const struct rk_batch_spec *spec,
                                      uint64_t limit_bytes)
{
    struct rk_assembler *assembler;
    uint64_t total = 0;

    *out = NULL;
    for (int64_t i = 0; i < spec->num_tensors; i++) {
        RK_TRY(name_tensor(check_size(&spec->tensors[i]), spec->tensors[i].name));
        if (__builtin_add_overflow(total, spec->tensors[i].byte_size, &total))
            return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "the sizes of the tensors overflow");
    }
    if (limit_bytes && total > limit_bytes)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED,
                       "the batch has %" PRIu64 " bytes, at most %" PRIu64 " are allowed", total,
                       limit_bytes);
    assembler = rk_calloc(1, sizeof(*assembler));
    assembler->num_tensors = spec->num_tensors;
    assembler->total_bytes = total;
    assembler->tensors = rk_calloc((size_t)spec->num_tensors, sizeof(*assembler->tensors));
    for (int64_t i = 0; i < spec->num_tensors; i++) {
        assembler->tensors[i].name = rk_strdup(spec->tensors[i].name);
        assembler->tensors[i].byte_size = spec->tensors[i].byte_size;
    }
    *out = assembler;
    return NULL;
}

void rk_assembler_destroy(struct rk_assembler *assembler)
{
    if (!assembler)
        return;
    for (int64_t i = 0; i < assembler->num_tensors; i++)
        rk_free(assembler->tensors[i].name);
    rk_free(assembler->tensors);
    rk_free(assembler);
}

uint64_t rk_assembler_total_bytes(const struct rk_assembler *assembler)
{
    return assembler->total_bytes;
}

struct rk_status *rk_assembler_accept(struct rk_assembler *assembler, const struct rk_tensor_chunk *chunk,
                                      size_t data_bytes)
{
    struct progress *tensor;

    if (chunk->tensor >= (uint64_t)assembler->num_tensors)
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD",
                              "chunk of tensor %" PRIu32 ", but there are %" PRId64, chunk->tensor,
                              assembler->num_tensors);
    tensor = &assembler->tensors[chunk->tensor];
    RK_ASSERT(tensor->received <= tensor->byte_size);
    /* Empty chunks are refused: a stream of empty chunks would never end. */
    if (data_bytes == 0)
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "tensor '%s': empty chunk at offset %" PRIu64,
                              tensor->name, chunk->offset);
    if (data_bytes > RK_LIMIT_CHUNK_BYTES_MAX)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "tensor '%s': chunk of %zu bytes, at most %d are allowed",
                       tensor->name, data_bytes, RK_LIMIT_CHUNK_BYTES_MAX);
    if (chunk->offset != tensor->received)
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD",
                              "tensor '%s': chunk at offset %" PRIu64 ", expected %" PRIu64, tensor->name,
                              chunk->offset, tensor->received);
    if (data_bytes > tensor->byte_size - tensor->received)
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD",
                              "tensor '%s': chunk of %zu bytes at offset %" PRIu64 " ends behind its %" PRIu64
                              " bytes",
                              tensor->name, data_bytes, chunk->offset, tensor->byte_size);
    tensor->received += data_bytes;
    return NULL;
}

struct rk_status *rk_assembler_check_complete(const struct rk_assembler *assembler)
{
    for (int64_t i = 0; i < assembler->num_tensors; i++) {
        const struct progress *tensor = &assembler->tensors[i];

        if (tensor->received != tensor->byte_size)
            return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD",
                                  "tensor '%s' is incomplete: %" PRIu64 " of %" PRIu64 " bytes came",
                                  tensor->name, tensor->received, tensor->byte_size);
    }
    return NULL;
}
