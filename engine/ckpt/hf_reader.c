/* Reads blocks of tensors ahead of the copies to the device.
 *
 * The threads of a pool read the next blocks into the slots of a ring of pinned memory, and convert them if
 * the file has another dtype (F8_E4M3 with its scales); the engine thread takes the blocks in order, enqueues
 * their copies to the device, and releases the slots when the copies are complete. A slot belongs to the pool
 * until its task is done, and to the engine thread until it is released. */
#include "engine/ckpt/ckpt_internal.h"

#include <stdatomic.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "engine/ckpt/state_internal.h"

/* Blocks that are being read or wait to be taken: two per thread of a pool. */
#define AHEAD_MAX 16

struct slot {
    struct rk_pool_task task;
    struct rk_hf_reader *reader;
    const struct rk_hf_block *block;
    void *raw, *wide, *values; /* raw is the allocation */
    struct rk_status *st;      /* owned */
};

struct rk_hf_reader {
    /* Fixed after create. */
    struct rk_hf_reader_desc desc;
    struct rk_pool *pool;
    struct slot *slots;
    int64_t num_slots;
    int64_t taken, released; /* block numbers */
    atomic_bool is_stopping;
};

static bool needs_conversion(const struct rk_hf_reader *reader, const struct rk_hf_block *block)
{
    return block->tensor->dtype != reader->desc.dtype;
}

/* Rows of the block: one range of the file, or one range per row when columns are split. */
static struct rk_status *read_rows(const struct rk_hf_block *block, char *raw)
{
    const struct rk_st_tensor *tensor = block->tensor;
    uint64_t elem_bytes = rk_dtype_bytes(tensor->dtype);
    int64_t all_cols = tensor->rank > 1 ? tensor->shape[tensor->rank - 1] : 1, cols = block->cols;

    if (cols == all_cols)
        return rk_st_read(block->file, tensor, (uint64_t)(block->row * cols) * elem_bytes,
                          (size_t)(block->num_rows * cols) * elem_bytes, raw);
    for (int64_t r = 0; r < block->num_rows; r++)
        RK_TRY(rk_st_read(block->file, tensor,
                          (uint64_t)((block->row + r) * all_cols + block->col) * elem_bytes,
                          (size_t)cols * elem_bytes, raw + (size_t)(r * cols) * elem_bytes));
    return NULL;
}

/* Values of an F8_E4M3 matrix: every element times the scale of its block of 128 x 128, in f32. */
static struct rk_status *scale_rows(const struct rk_hf_block *block, const uint8_t *raw, float *values)
{
    int64_t per_row = block->scale->shape[1], first = block->row / RK_HF_SCALE_BLOCK;
    int64_t count = (block->row + block->num_rows - 1) / RK_HF_SCALE_BLOCK - first + 1;
    float *scales = rk_calloc((size_t)(count * per_row), sizeof(*scales)), decoded[256];
    struct rk_status *st =
        rk_st_read(block->scale_file, block->scale, (uint64_t)(first * per_row) * sizeof(*scales),
                   (size_t)(count * per_row) * sizeof(*scales), scales);

    for (int i = 0; i < 256; i++)
        decoded[i] = rk_f8e4m3_to_f32((uint8_t)i);
    for (int64_t r = 0; !st && r < block->num_rows; r++) {
        const float *of_row = scales + ((block->row + r) / RK_HF_SCALE_BLOCK - first) * per_row;

        for (int64_t c = 0; c < block->cols; c++)
            values[r * block->cols + c] =
                decoded[raw[r * block->cols + c]] * of_row[(block->col + c) / RK_HF_SCALE_BLOCK];
    }
    rk_free(scales);
    return st;
}

/* Converts to the masters' dtype. */
static struct rk_status *widen(const struct rk_hf_reader *reader, const struct rk_hf_block *block,
                               struct slot *slot)
{
    int64_t count = block->num_rows * block->cols;

    if (!block->scale) {
        rk_convert(slot->wide, reader->desc.wide_dtype, slot->raw, block->tensor->dtype, count);
        return NULL;
    }
    if (reader->desc.wide_dtype == RK_DTYPE_F32)
        return scale_rows(block, slot->raw, slot->wide);
    RK_ASSERT(reader->desc.dtype == RK_DTYPE_F64);
    RK_TRY(scale_rows(block, slot->raw, slot->values));
    rk_convert(slot->wide, RK_DTYPE_F64, slot->values, RK_DTYPE_F32, count);
    return NULL;
}

/* A parameter is its rounded master, whether the model trains or not: a value wider than the master is
 * rounded twice. */
static struct rk_status *fill_slot(const struct rk_hf_reader *reader, const struct rk_hf_block *block,
                                   struct slot *slot)
{
    int64_t count = block->num_rows * block->cols;

    RK_TRY(read_rows(block, slot->raw));
    if (!needs_conversion(reader, block))
        return NULL;
    RK_TRY(widen(reader, block, slot));
    rk_convert(slot->values, reader->desc.dtype, slot->wide, reader->desc.wide_dtype, count);
    return NULL;
}

static void run_task(void *user)
{
    struct slot *slot = user;

    if (!atomic_load(&slot->reader->is_stopping))
        slot->st = fill_slot(slot->reader, slot->block, slot);
}

static struct slot *slot_of(struct rk_hf_reader *reader, int64_t i)
{
    return &reader->slots[i % reader->num_slots];
}

/* Starts reading block i into a free slot. */
static void submit(struct rk_hf_reader *reader, int64_t i)
{
    struct slot *slot = slot_of(reader, i);

    slot->block = &reader->desc.blocks[i];
    slot->task = (struct rk_pool_task){.run = run_task, .user = slot};
    rk_pool_submit(reader->pool, &slot->task);
}

/* Bytes of the largest block as stored, and converted: 0 when no block is converted. */
static void find_sizes(const struct rk_hf_reader *reader, size_t *raw_bytes, size_t *converted_elements)
{
    *raw_bytes = *converted_elements = 0;
    for (int64_t i = 0; i < reader->desc.num_blocks; i++) {
        const struct rk_hf_block *block = &reader->desc.blocks[i];
        size_t count = (size_t)(block->num_rows * block->cols);

        *raw_bytes = RK_MAX(*raw_bytes, count * rk_dtype_bytes(block->tensor->dtype));
        if (needs_conversion(reader, block))
            *converted_elements = RK_MAX(*converted_elements, count);
    }
    *raw_bytes = rk_round_up(*raw_bytes, sizeof(double));
}

static struct rk_status *make_slots(struct rk_hf_reader *reader)
{
    size_t raw_bytes, elements, wide_bytes, bytes;

    find_sizes(reader, &raw_bytes, &elements);
    wide_bytes = rk_round_up(elements * rk_dtype_bytes(reader->desc.wide_dtype), sizeof(double));
    bytes = raw_bytes + wide_bytes + elements * rk_dtype_bytes(reader->desc.dtype);
    reader->slots = rk_calloc((size_t)reader->num_slots, sizeof(*reader->slots));
    for (int64_t i = 0; i < reader->num_slots; i++) {
        struct slot *slot = &reader->slots[i];

        slot->reader = reader;
        RK_TRY(rk_device_host_alloc(reader->desc.device, &slot->raw, bytes, "blocks of weights"));
        slot->wide = (char *)slot->raw + raw_bytes;
        slot->values = (char *)slot->wide + wide_bytes;
    }
    return NULL;
}

struct rk_status *rk_hf_reader_create(struct rk_hf_reader **out, const struct rk_hf_reader_desc *desc)
{
    struct rk_hf_reader *reader = rk_calloc(1, sizeof(*reader));
    struct rk_status *st;

    *out = NULL;
    reader->desc = *desc;
    reader->num_slots = RK_MIN(AHEAD_MAX + RK_HF_COPIES_MAX, RK_MAX(desc->num_blocks, 1));
    st = make_slots(reader);
    if (!st)
        st = rk_pool_create(&reader->pool);
    if (st) {
        rk_hf_reader_destroy(reader);
        return st;
    }
    for (int64_t i = 0; i < RK_MIN(reader->num_slots, desc->num_blocks); i++)
        submit(reader, i);
    *out = reader;
    return NULL;
}

struct rk_status *rk_hf_reader_take(struct rk_hf_reader *reader, struct rk_hf_data *out)
{
    struct slot *slot = slot_of(reader, reader->taken);
    struct rk_status *st;

    RK_ASSERT(reader->taken < reader->desc.num_blocks);
    RK_ASSERT(reader->taken < reader->released + reader->num_slots);
    rk_pool_wait(reader->pool, &slot->task);
    reader->taken++;
    st = slot->st;
    slot->st = NULL;
    *out = needs_conversion(reader, slot->block)
               ? (struct rk_hf_data){.values = slot->values, .wide = slot->wide}
               : (struct rk_hf_data){.values = slot->raw};
    return st;
}

void rk_hf_reader_release(struct rk_hf_reader *reader)
{
    int64_t next = reader->released + reader->num_slots;

    RK_ASSERT(reader->released < reader->taken);
    reader->released++;
    if (next < reader->desc.num_blocks)
        submit(reader, next);
}

void rk_hf_reader_destroy(struct rk_hf_reader *reader)
{
    if (!reader)
        return;
    atomic_store(&reader->is_stopping, true);
    rk_pool_destroy(reader->pool);
    for (int64_t i = 0; reader->slots && i < reader->num_slots; i++) {
        rk_device_host_free(reader->desc.device, reader->slots[i].raw);
        rk_status_free(reader->slots[i].st);
    }
    rk_free(reader->slots);
    rk_free(reader);
}
