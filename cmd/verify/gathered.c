/* Complete tensors of a checkpoint: the shards describe their elements (docs/formats.md), and
 * a block of rows is assembled from all shards that have parts of it. Only one block is in memory. */
#include "cmd/verify/verify.h"

#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/format/rk_ckpt_shard.h"
#include "base/rk_map.h"

/* The part of a tensor in a shard. */
struct piece {
    struct rk_ckpt_piece stored;
    int64_t next; /* of the same tensor; -1: none */
};

struct tensor {
    struct rk_gathered_tensor info;
    int64_t first_piece;
};

struct rk_gathered {
    struct rk_ckpt_shards shards;
    RK_ARRAY(struct tensor) tensors;
    RK_ARRAY(struct piece) pieces;
    struct rk_map *by_name; /* name -> index + 1 */
};

/* --- the descriptions of the shards --- */

/* The tensor of that name, new or known; NULL when the shards do not agree on its shape. */
static struct tensor *find_tensor(struct rk_gathered *gathered, const struct rk_gathered_tensor *info)
{
    intptr_t known = (intptr_t)rk_map_find(gathered->by_name, info->name);
    struct tensor *tensor;

    if (known == 0) {
        rk_array_append(&gathered->tensors, (struct tensor){*info, -1});
        rk_map_put(gathered->by_name, info->name, (void *)(intptr_t)gathered->tensors.count);
        return &gathered->tensors.items[gathered->tensors.count - 1];
    }
    tensor = &gathered->tensors.items[known - 1];
    return tensor->info.rows == info->rows && tensor->info.cols == info->cols ? tensor : NULL;
}

static struct rk_status *add_piece(void *user, const struct rk_ckpt_piece *stored)
{
    struct rk_gathered *gathered = user;
    rk_dtype_t dtype = stored->tensor->dtype;
    const struct rk_gathered_tensor info = {.name = stored->tensor->name,
                                            .rows = stored->global_shape[0],
                                            .cols = stored->global_shape[1],
                                            .is_vector = stored->rank == 1};
    struct tensor *tensor;

    if (dtype != RK_DTYPE_F32 && dtype != RK_DTYPE_F64 && dtype != RK_DTYPE_BF16)
        return rk_ckpt_piece_damaged(stored, "expected float32, float64 or bfloat16");
    tensor = find_tensor(gathered, &info);
    if (!tensor)
        return rk_ckpt_piece_damaged(stored, "its shape differs between shards");
    rk_array_append(&gathered->pieces, (struct piece){*stored, tensor->first_piece});
    tensor->first_piece = gathered->pieces.count - 1;
    return NULL;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct tensor *)a)->info.name, ((const struct tensor *)b)->info.name);
}

/* --- life --- */

struct rk_status *rk_gathered_open(struct rk_gathered **out, const char *part_dir)
{
    struct rk_gathered *gathered = rk_calloc(1, sizeof(*gathered));
    struct rk_ckpt_manifest manifest = {0};
    struct rk_status *st;

    *out = NULL;
    gathered->by_name = rk_map_create();
    st = rk_ckpt_check(&manifest, part_dir, RK_CKPT_CHECK_SIZES);
    if (!st)
        st = rk_ckpt_shards_open(&gathered->shards, part_dir, &manifest, add_piece, gathered);
    rk_ckpt_manifest_fini(&manifest);
    if (st) {
        rk_gathered_close(gathered);
        return st;
    }
    if (gathered->tensors.count > 1)
        qsort(gathered->tensors.items, (size_t)gathered->tensors.count, sizeof(*gathered->tensors.items),
              compare_names);
    *out = gathered;
    return NULL;
}

void rk_gathered_close(struct rk_gathered *gathered)
{
    if (!gathered)
        return;
    rk_ckpt_shards_fini(&gathered->shards);
    rk_array_fini(&gathered->tensors);
    rk_array_fini(&gathered->pieces);
    rk_map_destroy(gathered->by_name);
    rk_free(gathered);
}

int32_t rk_gathered_num_shards(const struct rk_gathered *gathered)
{
    return (int32_t)gathered->shards.files.count;
}

int64_t rk_gathered_count(const struct rk_gathered *gathered)
{
    return gathered->tensors.count;
}

const struct rk_gathered_tensor *rk_gathered_at(const struct rk_gathered *gathered, int64_t i)
{
    RK_ASSERT(i >= 0);
    RK_ASSERT(i < gathered->tensors.count);
    return &gathered->tensors.items[i].info;
}

const struct rk_gathered_tensor *rk_gathered_find(const struct rk_gathered *gathered, const char *name)
{
    const struct tensor key = {.info = {.name = name}};
    const struct tensor *found = gathered->tensors.count == 0
                                     ? NULL
                                     : bsearch(&key, gathered->tensors.items, (size_t)gathered->tensors.count,
                                               sizeof(*gathered->tensors.items), compare_names);

    return found ? &found->info : NULL;
}

/* --- reading --- */

/* A block of rows that is being filled. */
struct block {
    const struct rk_gathered_tensor *tensor;
    int64_t begin, end; /* rows */
    double *out;
    int32_t *owners;
    int64_t num_filled;
    void *raw; /* room for the elements of the block, as they are stored */
};

/* Marks elements of the block from `to` on as filled from the shard; false if another shard has filled some
 * of them. */
static bool claim(struct block *block, int32_t shard, int64_t to, int64_t count)
{
    bool is_free = true;

    for (int64_t i = to; i < to + count; i++) {
        is_free = is_free && block->owners[i] < 0;
        block->owners[i] = shard;
    }
    return is_free;
}

/* Elements [begin, end) of the piece's box, which the file has from element `at` on. */
static struct rk_status *copy_elements(struct block *block, const struct rk_ckpt_piece *piece, int64_t begin,
                                       int64_t end, int64_t at)
{
    size_t bytes = rk_dtype_bytes(piece->tensor->dtype);
    int64_t cols = block->tensor->cols, box_cols = piece->shape[1], count;

    RK_TRY(rk_st_read(piece->file, piece->tensor, (uint64_t)at * bytes, (size_t)(end - begin) * bytes,
                      block->raw));
    for (int64_t i = begin; i < end; i += count) {
        int64_t row = piece->begin[0] + i / box_cols, col = i % box_cols;
        int64_t to = (row - block->begin) * cols + piece->begin[1] + col;

        /* Whole rows are contiguous, parts of rows are not. */
        count = box_cols == cols ? end - i : RK_MIN(box_cols - col, end - i);
        if (!claim(block, piece->shard, to, count))
            return rk_ckpt_piece_damaged(piece, "two shards have the same elements");
        rk_load_f64(block->out + to, (const char *)block->raw + (size_t)(i - begin) * bytes,
                    piece->tensor->dtype, count);
    }
    block->num_filled += end - begin;
    return NULL;
}

static struct rk_status *copy_piece(const struct rk_gathered *gathered, struct block *block,
                                    const struct rk_ckpt_piece *piece)
{
    int64_t first_row = RK_MAX(block->begin, piece->begin[0]);
    int64_t end_row = RK_MIN(block->end, piece->begin[0] + piece->shape[0]);
    int64_t first = (first_row - piece->begin[0]) * piece->shape[1];
    int64_t end = (end_row - piece->begin[0]) * piece->shape[1];

    for (int64_t r = 0; first < end && r < piece->num_runs; r++) {
        const struct rk_ckpt_run *run = &gathered->shards.runs.items[piece->first_run + r];
        int64_t from = RK_MAX(run->begin, first), to = RK_MIN(run->end, end);

        if (from < to)
            RK_TRY(copy_elements(block, piece, from, to, run->at + from - run->begin));
    }
    return NULL;
}

static struct rk_status *fill_block(const struct rk_gathered *gathered, struct block *block)
{
    const struct tensor *tensor = (const struct tensor *)(const void *)block->tensor; /* its first member */
    int64_t count = (block->end - block->begin) * block->tensor->cols;

    for (int64_t i = 0; i < count; i++)
        block->owners[i] = -1;
    for (int64_t i = tensor->first_piece; i >= 0; i = gathered->pieces.items[i].next)
        RK_TRY(copy_piece(gathered, block, &gathered->pieces.items[i].stored));
    if (block->num_filled == count)
        return NULL;
    return RK_FAIL_REASON(RK_DATA_LOSS, "CHECKPOINT_DAMAGED",
                          "tensor '%.120s': %lld of %lld elements of rows %lld to %lld are in no shard",
                          block->tensor->name, (long long)(count - block->num_filled), (long long)count,
                          (long long)block->begin, (long long)block->end - 1);
}

struct rk_status *rk_gathered_read(const struct rk_gathered *gathered,
                                   const struct rk_gathered_tensor *tensor, int64_t begin, int64_t count,
                                   double *out, int32_t *owners)
{
    struct block block = {
        .tensor = tensor, .begin = begin, .end = begin + count, .out = out, .owners = owners};
    struct rk_status *st;

    RK_ASSERT(begin >= 0);
    RK_ASSERT(count >= 0);
    RK_ASSERT(begin + count <= tensor->rows);
    block.raw = rk_malloc((size_t)(count * tensor->cols + 1) * sizeof(double));
    st = fill_block(gathered, &block);
    rk_free(block.raw);
    return st;
}
