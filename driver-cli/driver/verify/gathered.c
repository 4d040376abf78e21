/* Tensors of a checkpoint, whole: the shards say which elements of which box they hold (docs/formats.md), and
 * a block of rows is put together from all that have some of it. No more than a block is in memory. */
#include "driver-cli/driver/verify/verify_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_ckpt_dir.h"
#include "base/rk_map.h"
#include "base/rk_safetensors.h"

#define SHARD_PREFIX "dist_ckpt/shard_"
#define PIECES_KEY   "rankd.pieces"
#define RUNS_MAX     ((int64_t)1 << 20)

/* Elements [begin, end) of the piece's box, in row-major order; the first is element `at` in the file. */
struct run {
    int64_t begin, end, at;
};

/* What a shard has of a tensor. */
struct piece {
    const struct rk_st_file *file;
    const struct rk_st_tensor *stored;
    int32_t shard;
    int64_t row, col, rows, cols; /* the box */
    int64_t first_run, num_runs;
    int64_t next; /* of the same tensor; -1: none */
};

struct tensor {
    struct rk_gathered_tensor info;
    int64_t first_piece;
};

struct rk_gathered {
    RK_ARRAY(struct rk_st_file *) files;
    RK_ARRAY(struct tensor) tensors;
    RK_ARRAY(struct piece) pieces;
    RK_ARRAY(struct run) runs;
    struct rk_map *by_name; /* name -> index + 1 */
};

static struct rk_status *damaged(const char *path, const char *name, const char *problem)
{
    return RK_FAIL_REASON(RK_DATA_LOSS, "CHECKPOINT_DAMAGED", "'%s': tensor '%.120s': %s", path, name,
                          problem);
}

/* --- what the shards say --- */

/* "[begin, end]"; false unless 0 <= begin <= end <= limit. */
static bool read_pair(const struct rk_json *pair, int64_t limit, int64_t *begin, int64_t *end)
{
    *begin = rk_json_as_int(rk_json_at(pair, 0), -1);
    *end = rk_json_as_int(rk_json_at(pair, 1), -1);
    return rk_json_count(pair) == 2 && *begin >= 0 && *end >= *begin && *end <= limit;
}

static bool read_box(struct rk_gathered_tensor *info, struct piece *piece, const struct rk_json *described)
{
    const struct rk_json *shape = rk_json_find(described, "global_shape"),
                         *box = rk_json_find(described, "box");
    int64_t rank = rk_json_count(shape), end;

    if (rank < 1 || rank > 2 || rk_json_count(box) != rank)
        return false;
    info->is_vector = rank == 1;
    info->rows = rk_json_as_int(rk_json_at(shape, 0), -1);
    info->cols = rank == 1 ? 1 : rk_json_as_int(rk_json_at(shape, 1), -1);
    if (info->rows < 1 || info->cols < 1 || !read_pair(rk_json_at(box, 0), info->rows, &piece->row, &end))
        return false;
    piece->rows = end - piece->row;
    piece->col = 0;
    end = 1;
    if (rank == 2 && !read_pair(rk_json_at(box, 1), info->cols, &piece->col, &end))
        return false;
    piece->cols = end - piece->col;
    return piece->cols > 0;
}

static bool read_runs(struct rk_gathered *gathered, struct piece *piece, const struct rk_json *runs)
{
    int64_t last = 0, at = 0, elements = 1;

    piece->first_run = gathered->runs.count;
    piece->num_runs = rk_json_count(runs);
    if (piece->num_runs > RUNS_MAX)
        return false;
    for (int64_t r = 0; r < piece->num_runs; r++) {
        struct run run = {.at = at};

        if (!read_pair(rk_json_at(runs, r), piece->rows * piece->cols, &run.begin, &run.end) ||
            run.begin < last)
            return false;
        last = run.end;
        at += run.end - run.begin;
        rk_array_append(&gathered->runs, run);
    }
    for (int32_t dim = 0; dim < piece->stored->rank; dim++)
        elements *= piece->stored->shape[dim];
    return at == elements;
}

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

static struct rk_status *add_tensor(struct rk_gathered *gathered, const struct rk_st_file *file,
                                    const struct rk_st_tensor *stored, const struct rk_json *described)
{
    struct rk_gathered_tensor info = {.name = stored->name};
    struct piece piece = {.file = file, .stored = stored, .shard = (int32_t)gathered->files.count - 1};
    struct tensor *tensor;

    if (!read_box(&info, &piece, described))
        return damaged(rk_st_path(file), stored->name, "expected a box inside the tensor");
    if (!read_runs(gathered, &piece, rk_json_find(described, "runs")))
        return damaged(rk_st_path(file), stored->name,
                       "expected runs of the box that are as long as the tensor");
    if (stored->dtype != RK_DTYPE_F32 && stored->dtype != RK_DTYPE_F64 && stored->dtype != RK_DTYPE_BF16)
        return damaged(rk_st_path(file), stored->name, "expected float32, float64 or bfloat16");
    tensor = find_tensor(gathered, &info);
    if (!tensor)
        return damaged(rk_st_path(file), stored->name, "another shard gives it another shape");
    piece.next = tensor->first_piece;
    tensor->first_piece = gathered->pieces.count;
    rk_array_append(&gathered->pieces, piece);
    return NULL;
}

static struct rk_status *add_file(struct rk_gathered *gathered, const char *path)
{
    struct rk_json *described = NULL;
    struct rk_st_file *file;
    const char *text;
    struct rk_status *st;

    RK_TRY(rk_st_open(&file, path));
    rk_array_append(&gathered->files, file);
    text = rk_json_as_string(rk_json_find(rk_st_metadata(file), PIECES_KEY), "");
    st = rk_json_parse(&described, text, strlen(text), PIECES_KEY, 0);
    if (st) {
        rk_status_free(st);
        return RK_FAIL_REASON(RK_DATA_LOSS, "CHECKPOINT_DAMAGED",
                              "'%s': metadata " PIECES_KEY ": expected JSON", path);
    }
    for (int64_t i = 0; !st && i < rk_st_count(file); i++)
        st = add_tensor(gathered, file, rk_st_at(file, i), rk_json_find(described, rk_st_at(file, i)->name));
    rk_json_free(described);
    return st;
}

static struct rk_status *add_files(struct rk_gathered *gathered, const char *part_dir,
                                   const struct rk_ckpt_manifest *manifest)
{
    struct rk_status *st = NULL;

    for (int64_t i = 0; !st && i < manifest->files.count; i++) {
        char *path;

        if (!rk_str_has_prefix(manifest->files.items[i].name, SHARD_PREFIX))
            continue;
        path = rk_path_join(part_dir, manifest->files.items[i].name);
        st = add_file(gathered, path);
        rk_free(path);
    }
    return st;
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
        st = add_files(gathered, part_dir, &manifest); /* in the order of their names: by rank */
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
    for (int64_t i = 0; i < gathered->files.count; i++)
        rk_st_close(gathered->files.items[i]);
    rk_array_fini(&gathered->files);
    rk_array_fini(&gathered->tensors);
    rk_array_fini(&gathered->pieces);
    rk_array_fini(&gathered->runs);
    rk_map_destroy(gathered->by_name);
    rk_free(gathered);
}

int32_t rk_gathered_num_shards(const struct rk_gathered *gathered)
{
    return (int32_t)gathered->files.count;
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

/* Elements from `to` of the block on come from the shard; false when another one has brought some of them. */
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
static struct rk_status *copy_elements(struct block *block, const struct piece *piece, int64_t begin,
                                       int64_t end, int64_t at)
{
    size_t bytes = rk_dtype_bytes(piece->stored->dtype);
    int64_t cols = block->tensor->cols, count;

    RK_TRY(rk_st_read(piece->file, piece->stored, (uint64_t)at * bytes, (size_t)(end - begin) * bytes,
                      block->raw));
    for (int64_t i = begin; i < end; i += count) {
        int64_t row = piece->row + i / piece->cols, col = i % piece->cols;
        int64_t to = (row - block->begin) * cols + piece->col + col;

        /* Whole rows stand one behind the other, parts of rows do not. */
        count = piece->cols == cols ? end - i : RK_MIN(piece->cols - col, end - i);
        if (!claim(block, piece->shard, to, count))
            return damaged(rk_st_path(piece->file), block->tensor->name,
                           "another shard has the same elements");
        rk_load_f64(block->out + to, (const char *)block->raw + (size_t)(i - begin) * bytes,
                    piece->stored->dtype, count);
    }
    block->num_filled += end - begin;
    return NULL;
}

static struct rk_status *copy_piece(const struct rk_gathered *gathered, struct block *block,
                                    const struct piece *piece)
{
    int64_t first_row = RK_MAX(block->begin, piece->row);
    int64_t end_row = RK_MIN(block->end, piece->row + piece->rows);
    int64_t first = (first_row - piece->row) * piece->cols, end = (end_row - piece->row) * piece->cols;

    for (int64_t r = 0; first < end && r < piece->num_runs; r++) {
        const struct run *run = &gathered->runs.items[piece->first_run + r];
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
        RK_TRY(copy_piece(gathered, block, &gathered->pieces.items[i]));
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
