/* Reads shards: maps the pieces in the files to elements of the model's tensors, each of which they have to
 * cover. base checks the pieces themselves. */
#include "engine/ckpt/state_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_fault.h"
#include "base/rk_map.h"
#include "base/rk_str.h"
#include "engine/ckpt/ckpt_internal.h"

#define OPTIMIZER_PREFIX "optimizer.state."

struct piece {
    struct rk_ckpt_piece stored;
    struct rk_param_box box;
    int64_t next; /* next piece of the same tensor; -1: none */
};

struct target {
    int32_t kind;
    int64_t param;
};

struct rk_shards {
    const struct rk_model *model;
    uint32_t kinds;
    struct rk_ckpt_shards files;
    RK_ARRAY(struct piece) pieces;
    int64_t *heads[RK_STATE_KINDS_MAX]; /* [num_params]: first piece of each, -1: none; NULL: kind not
                                         * loaded */
    struct target *targets;             /* tensors by name */
    struct rk_map *by_name;             /* name -> struct target * */
};

/* --- descriptions --- */

static struct rk_status *read_box(struct rk_param_box *out, const struct rk_ckpt_piece *stored,
                                  const struct rk_param *param)
{
    if (stored->rank != param->rank)
        return rk_ckpt_piece_damaged(stored, "global_shape does not have the rank of the parameter");
    for (int32_t dim = 0; dim < RK_PARAM_DIMS; dim++) {
        if (dim < param->rank && stored->global_shape[dim] != param->shape[dim])
            return RK_FAIL(RK_INVALID_ARGUMENT,
                           "'%s': tensor '%s' has %lld for dimension %d, expected %lld by " RK_HF_CONFIG_FILE,
                           rk_st_path(stored->file), param->name, (long long)stored->global_shape[dim], dim,
                           (long long)param->shape[dim]);
        out->begin[dim] = stored->begin[dim];
        out->shape[dim] = stored->shape[dim];
    }
    return NULL;
}

static struct rk_status *check_dtype(const struct rk_shards *shards, const struct rk_ckpt_piece *stored,
                                     const struct target *target)
{
    rk_dtype_t dtype = stored->tensor->dtype;
    bool is_good =
        dtype == RK_DTYPE_F16 || dtype == RK_DTYPE_BF16 || dtype == RK_DTYPE_F32 || dtype == RK_DTYPE_F64;

    if (target->kind > 0)
        is_good = dtype == shards->model->trainer->grad_dtype;
    return is_good ? NULL : rk_ckpt_piece_damaged(stored, "unexpected dtype");
}

static struct rk_status *add_piece(void *user, const struct rk_ckpt_piece *stored)
{
    struct rk_shards *shards = user;
    const char *name = stored->tensor->name;
    const struct target *target = rk_map_find(shards->by_name, name);
    struct piece piece = {.stored = *stored};
    int64_t *head;

    if (!target && rk_str_has_prefix(name, OPTIMIZER_PREFIX) && shards->kinds <= 1)
        return NULL; /* the optimizer state was not requested */
    if (!target && rk_str_has_prefix(name, RK_CKPT_GRADIENT_PREFIX))
        return NULL;
    if (!target)
        return rk_ckpt_piece_damaged(stored, "the model has no such parameter");
    if (!(shards->kinds >> target->kind & 1))
        return NULL;
    RK_TRY(read_box(&piece.box, stored, rk_params_at(&shards->model->core->params, target->param)));
    RK_TRY(check_dtype(shards, stored, target));
    head = &shards->heads[target->kind][target->param];
    piece.next = *head;
    *head = shards->pieces.count;
    rk_array_append(&shards->pieces, piece);
    return NULL;
}

/* --- coverage --- */

bool rk_shards_lacks_state(const struct rk_shards *shards, int64_t i)
{
    for (int32_t kind = 1; kind < RK_STATE_KINDS_MAX; kind++) {
        if (shards->heads[kind] && shards->heads[kind][i] >= 0)
            return false;
    }
    return true;
}

static bool is_needed(const struct rk_shards *shards, int32_t kind, int64_t i)
{
    return rk_state_has(shards->model, kind, i) && (kind == 0 || !rk_shards_lacks_state(shards, i));
}

static struct rk_status *check_coverage(const struct rk_shards *shards, int32_t kind, int64_t i)
{
    RK_ARRAY(const struct rk_ckpt_piece *) pieces = {0};
    const char *problem;
    struct rk_status *st = NULL;

    for (int64_t p = shards->heads[kind][i]; p >= 0; p = shards->pieces.items[p].next)
        rk_array_append(&pieces, &shards->pieces.items[p].stored);
    problem = rk_ckpt_pieces_gap(&shards->files, pieces.items, pieces.count);
    rk_array_fini(&pieces);
    if (problem) {
        char *name = rk_state_tensor_name(shards->model, kind, rk_params_at(&shards->model->core->params, i));

        st = RK_FAIL_REASON(RK_DATA_LOSS, "CHECKPOINT_DAMAGED", "tensor '%s': %s", name, problem);
        rk_free(name);
    }
    return st;
}

/* --- life --- */

static void name_targets(struct rk_shards *shards)
{
    const struct rk_param_table *params = &shards->model->core->params;
    uint32_t known = rk_state_kinds(shards->model, RK_CHECKPOINT_MODEL | RK_CHECKPOINT_OPTIMIZER);
    int64_t count = 0;

    shards->by_name = rk_map_create();
    shards->targets = rk_calloc((size_t)(params->count * RK_STATE_KINDS_MAX) + 1, sizeof(*shards->targets));
    for (int32_t kind = 0; kind < RK_STATE_KINDS_MAX; kind++) {
        if (shards->kinds >> kind & 1)
            shards->heads[kind] = rk_calloc((size_t)params->count + 1, sizeof(int64_t));
        for (int64_t i = 0; known >> kind & 1 && i < params->count; i++) {
            char *name = rk_state_tensor_name(shards->model, kind, rk_params_at(params, i));

            shards->targets[count] = (struct target){kind, i};
            rk_map_put(shards->by_name, name, &shards->targets[count++]);
            if (shards->heads[kind])
                shards->heads[kind][i] = -1;
            rk_free(name);
        }
    }
}

static struct rk_status *read_all(struct rk_shards *shards, const char *part_dir,
                                  const struct rk_ckpt_manifest *manifest)
{
    RK_TRY(rk_ckpt_shards_open(&shards->files, part_dir, manifest, add_piece, shards));
    for (int32_t kind = 0; kind < RK_STATE_KINDS_MAX; kind++) {
        for (int64_t i = 0; shards->heads[kind] && i < shards->model->core->params.count; i++) {
            if (is_needed(shards, kind, i))
                RK_TRY(check_coverage(shards, kind, i));
        }
    }
    return NULL;
}

struct rk_status *rk_shards_open(struct rk_shards **out, const char *part_dir,
                                 const struct rk_ckpt_manifest *manifest, const struct rk_model *model,
                                 uint32_t kinds)
{
    struct rk_shards *shards = rk_calloc(1, sizeof(*shards));
    struct rk_status *st;

    *out = NULL;
    shards->model = model;
    shards->kinds = kinds;
    name_targets(shards);
    st = read_all(shards, part_dir, manifest);
    if (st) {
        rk_shards_close(shards);
        return st;
    }
    *out = shards;
    return NULL;
}

void rk_shards_close(struct rk_shards *shards)
{
    if (!shards)
        return;
    rk_ckpt_shards_fini(&shards->files);
    for (int32_t kind = 0; kind < RK_STATE_KINDS_MAX; kind++)
        rk_free(shards->heads[kind]);
    rk_array_fini(&shards->pieces);
    rk_map_destroy(shards->by_name);
    rk_free(shards->targets);
    rk_free(shards);
}

/* --- reading --- */

/* Copies `count` elements from `at` on of the piece's tensor to the result from `to` on. */
static struct rk_status *copy_elements(const struct rk_shards_read *read, const struct piece *piece,
                                       int64_t at, int64_t to, int64_t count)
{
    size_t from_bytes = rk_dtype_bytes(piece->stored.tensor->dtype), to_bytes = rk_dtype_bytes(read->dtype);
    char *out = (char *)read->out + (size_t)to * to_bytes;
    bool is_same = piece->stored.tensor->dtype == read->dtype;

    if (RK_FAULT("ckpt.load"))
        return RK_FAIL(RK_INTERNAL, "fault point ckpt.load");
    RK_ASSERT(to >= 0);
    RK_ASSERT(to + count <= read->count);
    RK_TRY(rk_st_read(piece->stored.file, piece->stored.tensor, (uint64_t)at * from_bytes,
                      (size_t)count * from_bytes, is_same ? (void *)out : read->scratch));
    if (!is_same)
        rk_convert(out, read->dtype, read->scratch, piece->stored.tensor->dtype, count);
    return NULL;
}

/* Copies the intersection of the run and the wanted range in row `row` of the tensor. */
static struct rk_status *copy_row(const struct rk_shards_read *read, const struct piece *piece,
                                  const struct rk_ckpt_run *run, int64_t row)
{
    int64_t from_cols = piece->box.shape[1], to_cols = read->box.shape[1];
    int64_t from_row = (row - piece->box.begin[0]) * from_cols - piece->box.begin[1];
    int64_t to_row = (row - read->box.begin[0]) * to_cols - read->box.begin[1];
    int64_t first = RK_MAX(piece->box.begin[1], read->box.begin[1]);
    int64_t end = RK_MIN(piece->box.begin[1] + from_cols, read->box.begin[1] + to_cols);

    first = RK_MAX(RK_MAX(first, run->begin - from_row), read->begin - to_row);
    end = RK_MIN(RK_MIN(end, run->end - from_row), read->begin + read->count - to_row);
    if (first >= end)
        return NULL;
    return copy_elements(read, piece, run->at + from_row + first - run->begin, to_row + first - read->begin,
                         end - first);
}

/* Boxes with the same columns: the intersection is one range. */
static struct rk_status *copy_rows(const struct rk_shards_read *read, const struct piece *piece,
                                   const struct rk_ckpt_run *run)
{
    int64_t shift = (piece->box.begin[0] - read->box.begin[0]) * read->box.shape[1];
    int64_t first = RK_MAX(run->begin + shift, read->begin);
    int64_t end = RK_MIN(run->end + shift, read->begin + read->count);

    if (first >= end)
        return NULL;
    return copy_elements(read, piece, run->at + first - shift - run->begin, first - read->begin, end - first);
}

static struct rk_status *copy_run(const struct rk_shards_read *read, const struct piece *piece,
                                  const struct rk_ckpt_run *run)
{
    int64_t from_cols = piece->box.shape[1], to_cols = read->box.shape[1];
    int64_t first, end;

    if (from_cols == to_cols && piece->box.begin[1] == read->box.begin[1])
        return copy_rows(read, piece, run);
    first = RK_MAX(piece->box.begin[0] + run->begin / from_cols, read->box.begin[0] + read->begin / to_cols);
    end = RK_MIN(piece->box.begin[0] + (run->end - 1) / from_cols,
                 read->box.begin[0] + (read->begin + read->count - 1) / to_cols);
    for (int64_t row = first; row <= end; row++)
        RK_TRY(copy_row(read, piece, run, row));
    return NULL;
}

struct rk_status *rk_shards_read(const struct rk_shards *shards, const struct rk_shards_read *read)
{
    RK_ASSERT(shards->heads[read->kind]);
    RK_ASSERT(read->begin >= 0);
    RK_ASSERT(read->begin + read->count <= read->box.shape[0] * read->box.shape[1]);
    if (read->count == 0)
        return NULL;
    for (int64_t i = shards->heads[read->kind][read->param]; i >= 0; i = shards->pieces.items[i].next) {
        const struct piece *piece = &shards->pieces.items[i];

        for (int64_t r = 0; r < piece->stored.num_runs; r++)
            RK_TRY(copy_run(read, piece, &shards->files.runs.items[piece->stored.first_run + r]));
    }
    return NULL;
}
