/* The descriptions come from untrusted files: all of their content is checked. */
#include "base/format/rk_ckpt_shard.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_json.h"
#include "base/rk_str.h"

#define SHARD_PREFIX RK_CKPT_SHARDS_DIR "/shard_"
/* Maximum runs of a piece: one per bucket of gradients, and buckets have millions of elements. */
#define RUNS_MAX ((int64_t)1 << 20)

struct rk_status *rk_ckpt_piece_damaged(const struct rk_ckpt_piece *piece, const char *problem)
{
    return RK_FAIL_REASON(RK_DATA_LOSS, "CHECKPOINT_DAMAGED", "'%s': tensor '%.120s': %s",
                          rk_st_path(piece->file), piece->tensor->name, problem);
}

/* An array [begin, end] of integers with 0 <= begin <= end. */
static bool read_pair(const struct rk_json *json, int64_t *begin, int64_t *end)
{
    if (rk_json_type(json) != RK_JSON_ARRAY || rk_json_count(json) != 2)
        return false;
    *begin = rk_json_as_int(rk_json_at(json, 0), -1);
    *end = rk_json_as_int(rk_json_at(json, 1), -1);
    return *begin >= 0 && *begin <= *end;
}

static struct rk_status *read_box(struct rk_ckpt_piece *piece, const struct rk_json *described)
{
    const struct rk_json *shape = rk_json_find(described, "global_shape");
    const struct rk_json *box = rk_json_find(described, "box");
    int64_t rank = rk_json_count(shape), elements;

    if (rank < 1 || rank > RK_CKPT_DIMS || rk_json_count(box) != rank)
        return rk_ckpt_piece_damaged(piece, "expected global_shape and box of the same rank, 1 or 2");
    piece->rank = (int32_t)rank;
    for (int32_t dim = 0; dim < RK_CKPT_DIMS; dim++) {
        int64_t begin = 0, end = 1, size = dim < rank ? rk_json_as_int(rk_json_at(shape, dim), -1) : 1;

        if (dim < rank && (!read_pair(rk_json_at(box, dim), &begin, &end) || end > size))
            return rk_ckpt_piece_damaged(piece, "box is not inside the tensor");
        piece->global_shape[dim] = size;
        piece->begin[dim] = begin;
        piece->shape[dim] = end - begin;
    }
    if (__builtin_mul_overflow(piece->shape[0], piece->shape[1], &elements))
        return rk_ckpt_piece_damaged(piece, "box has more than 2^63 - 1 elements");
    return NULL;
}

static struct rk_status *read_runs(struct rk_ckpt_shards *shards, struct rk_ckpt_piece *piece,
                                   const struct rk_json *described)
{
    const struct rk_json *runs = rk_json_find(described, "runs");
    int64_t count = rk_json_count(runs), last = 0, at = 0, elements = 1;

    piece->first_run = shards->runs.count;
    piece->num_runs = count;
    if (rk_json_type(runs) != RK_JSON_ARRAY || count < 1 || count > RUNS_MAX)
        return rk_ckpt_piece_damaged(piece, "runs is not an array of pairs");
    for (int64_t r = 0; r < count; r++) {
        struct rk_ckpt_run run = {.at = at};

        if (!read_pair(rk_json_at(runs, r), &run.begin, &run.end) || run.begin < last ||
            run.begin == run.end || run.end > piece->shape[0] * piece->shape[1])
            return rk_ckpt_piece_damaged(piece, "runs do not ascend inside the box");
        last = run.end;
        at += run.end - run.begin;
        rk_array_append(&shards->runs, run);
    }
    for (int32_t dim = 0; dim < piece->tensor->rank; dim++)
        elements *= piece->tensor->shape[dim]; /* the reader of the header has checked the product */
    return at == elements ? NULL : rk_ckpt_piece_damaged(piece, "runs and shape have different sizes");
}

/* The file's description of its tensors; rk_json_free it. */
static struct rk_status *read_described(struct rk_json **out, const struct rk_st_file *file)
{
    const char *text = rk_json_as_string(rk_json_find(rk_st_metadata(file), RK_CKPT_PIECES_KEY), "");
    struct rk_status *st = rk_json_parse(out, text, strlen(text), RK_CKPT_PIECES_KEY, 0);

    if (!st)
        return NULL;
    rk_status_free(st);
    return RK_FAIL_REASON(RK_DATA_LOSS, "CHECKPOINT_DAMAGED",
                          "'%s': metadata " RK_CKPT_PIECES_KEY " is missing or not JSON", rk_st_path(file));
}

struct reader {
    struct rk_ckpt_shards *shards;
    struct rk_status *(*add)(void *user, const struct rk_ckpt_piece *piece);
    void *user;
};

static struct rk_status *read_tensor(const struct reader *reader, const struct rk_st_file *file,
                                     const struct rk_st_tensor *stored, const struct rk_json *described)
{
    struct rk_ckpt_piece piece = {
        .file = file, .tensor = stored, .shard = (int32_t)reader->shards->files.count - 1};

    RK_TRY(read_box(&piece, described));
    RK_TRY(read_runs(reader->shards, &piece, described));
    return reader->add(reader->user, &piece);
}

static struct rk_status *read_file(const struct reader *reader, const char *path)
{
    struct rk_json *described = NULL;
    struct rk_st_file *file;
    struct rk_status *st;

    RK_TRY(rk_st_open(&file, path));
    rk_array_append(&reader->shards->files, file);
    st = read_described(&described, file);
    for (int64_t i = 0; !st && i < rk_st_count(file); i++) {
        const struct rk_st_tensor *stored = rk_st_at(file, i);

        st = read_tensor(reader, file, stored, rk_json_find(described, stored->name));
    }
    rk_json_free(described);
    return st;
}

struct rk_status *rk_ckpt_shards_open(struct rk_ckpt_shards *shards, const char *part_dir,
                                      const struct rk_ckpt_manifest *manifest,
                                      struct rk_status *(*add)(void *user, const struct rk_ckpt_piece *piece),
                                      void *user)
{
    const struct reader reader = {shards, add, user};
    struct rk_status *st = NULL;

    for (int64_t i = 0; !st && i < manifest->files.count; i++) {
        const char *name = manifest->files.items[i].name;
        char *path;

        if (!rk_str_has_prefix(name, SHARD_PREFIX))
            continue;
        path = rk_path_join(part_dir, name);
        st = read_file(&reader, path);
        rk_free(path);
    }
    return st;
}

void rk_ckpt_shards_fini(struct rk_ckpt_shards *shards)
{
    for (int64_t i = 0; i < shards->files.count; i++)
        rk_st_close(shards->files.items[i]);
    rk_array_fini(&shards->files);
    rk_array_fini(&shards->runs);
    *shards = (struct rk_ckpt_shards){0};
}
