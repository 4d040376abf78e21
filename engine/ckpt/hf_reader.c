/* Reading blocks of tensors ahead of the device.
 *
 * Threads read the next blocks into the slots of a ring of pinned memory, and convert them where the file has
 * another dtype; the engine thread takes the blocks in their order, gives them to the device, and releases
 * the slots when that has copied them. One lock guards the positions in the ring; a slot belongs to a reader
 * until it is ready, and to the engine thread until it is released. */
#include "engine/ckpt/ckpt_internal.h"

#include <pthread.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_thread.h"

/* More readers than this gain nothing: eight copy more from the page cache than a link to a GPU takes. */
#define READERS_MAX 8

struct slot {
    void *raw, *wide, *values; /* raw is the memory that was allocated */
    bool is_ready;
    struct rk_status *st; /* owned */
};

struct rk_hf_reader {
    /* Fixed after create. */
    struct rk_hf_reader_desc desc;
    struct slot *slots;
    int64_t num_slots;
    pthread_t threads[READERS_MAX];
    int num_threads;
    pthread_mutex_t lock;
    pthread_cond_t can_read, can_take;
    /* Guarded by lock: numbers of blocks. */
    int64_t next; /* to be read */
    int64_t taken, released;
    bool is_stopping;
};

static bool needs_conversion(const struct rk_hf_reader *reader, const struct rk_hf_block *block)
{
    return block->tensor->dtype != reader->desc.dtype;
}

/* Rows of the block: one range of the file, or one for each row when columns are split. */
static struct rk_status *read_rows(const struct rk_hf_block *block, char *raw)
{
    const struct rk_st_tensor *tensor = block->tensor;
    uint64_t elem_bytes = rk_dtype_bytes(tensor->dtype);
    int64_t all_cols = tensor->rank > 1 ? tensor->shape[1] : 1, cols = block->cols;

    if (cols == all_cols)
        return rk_st_read(block->file, tensor, (uint64_t)(block->row * cols) * elem_bytes,
                          (size_t)(block->num_rows * cols) * elem_bytes, raw);
    for (int64_t r = 0; r < block->num_rows; r++)
        RK_TRY(rk_st_read(block->file, tensor,
                          (uint64_t)((block->row + r) * all_cols + block->col) * elem_bytes,
                          (size_t)cols * elem_bytes, raw + (size_t)(r * cols) * elem_bytes));
    return NULL;
}

/* A parameter is its master, rounded, whether the model trains or not: what is wider than both is rounded
 * twice. */
static struct rk_status *fill_slot(const struct rk_hf_reader *reader, const struct rk_hf_block *block,
                                   struct slot *slot)
{
    int64_t count = block->num_rows * block->cols;

    RK_TRY(read_rows(block, slot->raw));
    if (!needs_conversion(reader, block))
        return NULL;
    rk_convert(slot->wide, reader->desc.wide_dtype, slot->raw, block->tensor->dtype, count);
    rk_convert(slot->values, reader->desc.dtype, slot->wide, reader->desc.wide_dtype, count);
    return NULL;
}

/* The number of the next block to read, when there is a slot for it; -1 at the end. */
static int64_t wait_for_slot(struct rk_hf_reader *reader)
{
    while (!reader->is_stopping && reader->next < reader->desc.num_blocks &&
           reader->next >= reader->released + reader->num_slots)
        pthread_cond_wait(&reader->can_read, &reader->lock);
    if (reader->is_stopping || reader->next >= reader->desc.num_blocks)
        return -1;
    return reader->next++;
}

static void *reader_main(void *user)
{
    struct rk_hf_reader *reader = user;
    int64_t i;

    pthread_mutex_lock(&reader->lock);
    while ((i = wait_for_slot(reader)) >= 0) {
        struct slot *slot = &reader->slots[i % reader->num_slots];
        struct rk_status *st;

        pthread_mutex_unlock(&reader->lock);
        st = fill_slot(reader, &reader->desc.blocks[i], slot);
        pthread_mutex_lock(&reader->lock);
        slot->st = st;
        slot->is_ready = true;
        if (st) /* the blocks before it are being read, those behind it are not needed */
            reader->next = reader->desc.num_blocks;
        pthread_cond_broadcast(&reader->can_take);
    }
    pthread_mutex_unlock(&reader->lock);
    return NULL;
}

/* Bytes of the largest block as in the file, and of its elements in another dtype: 0 when none is converted.
 */
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

        RK_TRY(rk_device_host_alloc(reader->desc.device, &slot->raw, bytes, "blocks of weights"));
        slot->wide = (char *)slot->raw + raw_bytes;
        slot->values = (char *)slot->wide + wide_bytes;
    }
    return NULL;
}

/* One thread is enough to go on. */
static struct rk_status *start_threads(struct rk_hf_reader *reader, int count)
{
    struct rk_status *st = NULL;

    while (!st && reader->num_threads < count) {
        st = rk_thread_start(&reader->threads[reader->num_threads], reader_main, reader, "weight reader");
        if (!st)
            reader->num_threads++;
    }
    if (reader->num_threads == 0)
        return st;
    rk_status_free(st);
    return NULL;
}

struct rk_status *rk_hf_reader_create(struct rk_hf_reader **out, const struct rk_hf_reader_desc *desc)
{
    struct rk_hf_reader *reader = rk_calloc(1, sizeof(*reader));
    int count = (int)RK_MIN(RK_MIN(rk_thread_num_cpus(), READERS_MAX), RK_MAX(desc->num_blocks, 1));
    struct rk_status *st;

    *out = NULL;
    reader->desc = *desc;
    pthread_mutex_init(&reader->lock, NULL);
    pthread_cond_init(&reader->can_read, NULL);
    pthread_cond_init(&reader->can_take, NULL);
    /* For each thread a slot that it fills and one that waits, and those that the device copies from. */
    reader->num_slots = RK_MIN(2 * count + RK_HF_COPIES_MAX, RK_MAX(desc->num_blocks, 1));
    st = make_slots(reader);
    if (!st)
        st = start_threads(reader, count);
    if (st) {
        rk_hf_reader_destroy(reader);
        return st;
    }
    *out = reader;
    return NULL;
}

struct rk_status *rk_hf_reader_take(struct rk_hf_reader *reader, struct rk_hf_data *out)
{
    const struct rk_hf_block *block = &reader->desc.blocks[reader->taken];
    struct slot *slot = &reader->slots[reader->taken % reader->num_slots];
    struct rk_status *st;

    RK_ASSERT(reader->taken < reader->desc.num_blocks);
    RK_ASSERT(reader->taken < reader->released + reader->num_slots);
    pthread_mutex_lock(&reader->lock);
    while (!slot->is_ready)
        pthread_cond_wait(&reader->can_take, &reader->lock);
    reader->taken++;
    pthread_mutex_unlock(&reader->lock);
    st = slot->st;
    slot->st = NULL;
    *out = needs_conversion(reader, block) ? (struct rk_hf_data){.values = slot->values, .wide = slot->wide}
                                           : (struct rk_hf_data){.values = slot->raw};
    return st;
}

void rk_hf_reader_release(struct rk_hf_reader *reader)
{
    pthread_mutex_lock(&reader->lock);
    RK_ASSERT(reader->released < reader->taken);
    reader->slots[reader->released % reader->num_slots].is_ready = false;
    reader->released++;
    pthread_cond_broadcast(&reader->can_read);
    pthread_mutex_unlock(&reader->lock);
}

void rk_hf_reader_destroy(struct rk_hf_reader *reader)
{
    if (!reader)
        return;
    pthread_mutex_lock(&reader->lock);
    reader->is_stopping = true;
    pthread_cond_broadcast(&reader->can_read);
    pthread_mutex_unlock(&reader->lock);
    for (int i = 0; i < reader->num_threads; i++)
        pthread_join(reader->threads[i], NULL);
    for (int64_t i = 0; reader->slots && i < reader->num_slots; i++) {
        rk_device_host_free(reader->desc.device, reader->slots[i].raw);
        rk_status_free(reader->slots[i].st);
    }
    pthread_mutex_destroy(&reader->lock);
    pthread_cond_destroy(&reader->can_read);
    pthread_cond_destroy(&reader->can_take);
    rk_free(reader->slots);
    rk_free(reader);
}
