/* Whether the pieces in the shards of a part make whole tensors. */
#include "base/format/rk_ckpt_shard.h"

#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_map.h"
#include "base/rk_str.h"

/* Maximum number of distinct boxes per tensor. */
#define BOXES_MAX 4096

/* --- the pieces of one tensor --- */

static int64_t box_elements(const struct rk_ckpt_piece *piece)
{
    return piece->shape[0] * piece->shape[1];
}

static bool is_same_box(const struct rk_ckpt_piece *a, const struct rk_ckpt_piece *b)
{
    return memcmp(a->begin, b->begin, sizeof(a->begin)) == 0 &&
           memcmp(a->shape, b->shape, sizeof(a->shape)) == 0;
}

static bool overlap(const struct rk_ckpt_piece *a, const struct rk_ckpt_piece *b)
{
    for (int32_t dim = 0; dim < RK_CKPT_DIMS; dim++) {
        if (a->begin[dim] + a->shape[dim] <= b->begin[dim] || b->begin[dim] + b->shape[dim] <= a->begin[dim])
            return false;
    }
    return true;
}

static int compare_runs(const void *a, const void *b)
{
    int64_t left = ((const struct rk_ckpt_run *)a)->begin, right = ((const struct rk_ckpt_run *)b)->begin;

    return left < right ? -1 : left > right;
}

/* Whether the pieces with this box cover all of its elements exactly once. */
static bool is_box_covered(const struct rk_ckpt_shards *shards, const struct rk_ckpt_piece *const *pieces,
                           int64_t count, const struct rk_ckpt_piece *box)
{
    RK_ARRAY(struct rk_ckpt_run) runs = {0};
    int64_t next = 0;
    bool is_covered = true;

    for (int64_t i = 0; i < count; i++) {
        for (int64_t r = 0; is_same_box(pieces[i], box) && r < pieces[i]->num_runs; r++)
            rk_array_append(&runs, shards->runs.items[pieces[i]->first_run + r]);
    }
    if (runs.count > 1)
        qsort(runs.items, (size_t)runs.count, sizeof(*runs.items), compare_runs);
    for (int64_t r = 0; r < runs.count; r++) {
        is_covered = is_covered && runs.items[r].begin == next;
        next = runs.items[r].end;
    }
    rk_array_fini(&runs);
    return is_covered && next == box_elements(box);
}

struct boxes {
    RK_ARRAY(const struct rk_ckpt_piece *) items;
};

/* Adds the box of a piece if it is a new one. */
static const char *add_box(struct boxes *boxes, const struct rk_ckpt_piece *piece, bool *is_new)
{
    *is_new = false;
    for (int64_t b = 0; b < boxes->items.count; b++) {
        if (is_same_box(piece, boxes->items.items[b]))
            return NULL;
        if (overlap(piece, boxes->items.items[b]))
            return "two pieces overlap";
    }
    if (boxes->items.count == BOXES_MAX)
        return "too many distinct parts";
    rk_array_append(&boxes->items, piece);
    *is_new = true;
    return NULL;
}

/* -1: more than fit into 63 bits; boxes that cover such a tensor cannot be stored. */
static int64_t tensor_elements(const struct rk_ckpt_piece *piece)
{
    int64_t elements;

    return __builtin_mul_overflow(piece->global_shape[0], piece->global_shape[1], &elements) ? -1 : elements;
}

const char *rk_ckpt_pieces_gap(const struct rk_ckpt_shards *shards, const struct rk_ckpt_piece *const *pieces,
                               int64_t count)
{
    struct boxes boxes = {0};
    const char *problem = NULL;
    int64_t total = 0;

    for (int64_t i = 0; !problem && i < count; i++) {
        bool is_new;

        if (memcmp(pieces[i]->global_shape, pieces[0]->global_shape, sizeof(pieces[0]->global_shape)) != 0)
            problem = "the pieces are of different shapes";
        else
            problem = add_box(&boxes, pieces[i], &is_new);
        if (problem || !is_new)
            continue;
        if (!is_box_covered(shards, pieces, count, pieces[i]) ||
            __builtin_add_overflow(total, box_elements(pieces[i]), &total))
            problem = "the runs of a part do not cover it exactly once";
    }
    if (!problem && (count == 0 || total != tensor_elements(pieces[0])))
        problem = "elements are missing";
    rk_array_fini(&boxes.items);
    return problem;
}

/* --- all tensors of a part --- */

struct linked {
    struct rk_ckpt_piece piece;
    int64_t next; /* of the same tensor; -1: none */
};

struct all {
    RK_ARRAY(struct linked) pieces;
    RK_ARRAY(int64_t) heads;
    struct rk_map *by_name; /* name -> 1 + index of heads */
};

static struct rk_status *add_piece(void *user, const struct rk_ckpt_piece *piece)
{
    struct all *all = user;
    uintptr_t found = (uintptr_t)rk_map_find(all->by_name, piece->tensor->name);
    struct linked linked = {*piece, -1};

    if (found == 0) {
        rk_array_append(&all->heads, -1);
        found = (uintptr_t)all->heads.count;
        rk_map_put(all->by_name, piece->tensor->name, (void *)found);
    }
    linked.next = all->heads.items[found - 1];
    all->heads.items[found - 1] = all->pieces.count;
    rk_array_append(&all->pieces, linked);
    return NULL;
}

static struct rk_status *check_tensor(const struct all *all, const struct rk_ckpt_shards *shards,
                                      int64_t head)
{
    RK_ARRAY(const struct rk_ckpt_piece *) pieces = {0};
    const char *problem;
    struct rk_status *st;

    for (int64_t i = head; i >= 0; i = all->pieces.items[i].next)
        rk_array_append(&pieces, &all->pieces.items[i].piece);
    problem = rk_ckpt_pieces_gap(shards, pieces.items, pieces.count);
    st = problem ? rk_ckpt_piece_damaged(pieces.items[0], problem) : NULL;
    rk_array_fini(&pieces);
    return st;
}

struct rk_status *rk_ckpt_check_shards(const char *part_dir, const struct rk_ckpt_manifest *manifest)
{
    struct all all = {.by_name = rk_map_create()};
    struct rk_ckpt_shards shards = {0};
    struct rk_status *st = rk_ckpt_shards_open(&shards, part_dir, manifest, add_piece, &all);

    if (!st && all.heads.count == 0)
        st = RK_FAIL_REASON(RK_DATA_LOSS, "CHECKPOINT_DAMAGED",
                            "'%s' has no tensors: its " RK_CKPT_MANIFEST_FILE " lists no " RK_CKPT_SHARDS_DIR
                            "/shard_*.safetensors with any",
                            part_dir);
    for (int64_t i = 0; !st && i < all.heads.count; i++)
        st = check_tensor(&all, &shards, all.heads.items[i]);
    rk_ckpt_shards_fini(&shards);
    rk_map_destroy(all.by_name);
    rk_array_fini(&all.heads);
    rk_array_fini(&all.pieces);
    return st;
}
