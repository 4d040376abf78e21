/* Lists the elements of tensors that this rank writes, and formats them in a shard's metadata. */
#include "engine/ckpt/state_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_str.h"

uint32_t rk_state_kinds(const struct rk_model *model, uint32_t contents)
{
    uint32_t kinds = contents & RK_CHECKPOINT_MODEL ? 1 : 0;

    if (contents & RK_CHECKPOINT_OPTIMIZER && model->trainer && model->trainer->config.ops) {
        for (int32_t s = 0; s < model->trainer->config.ops->num_states; s++)
            kinds |= 2u << s;
    }
    if (contents & RK_CHECKPOINT_GRADIENTS)
        kinds |= 1u << RK_STATE_KIND_GRADIENTS;
    return kinds;
}

struct rk_state_buffer rk_state_buffer_of(const struct rk_model *model, int32_t kind, int64_t param)
{
    const struct rk_trainer *trainer = model->trainer;
    void *masters = rk_params_is_trained(&model->core->params, param) ? model->core->masters.values : NULL;

    if (kind == RK_STATE_KIND_GRADIENTS)
        return trainer->shard_grads
                   ? (struct rk_state_buffer){trainer->shard_grads, trainer->grad_dtype, true}
                   : (struct rk_state_buffer){trainer->grads, trainer->grad_dtype, false};
    if (kind > 0)
        return (struct rk_state_buffer){trainer->states[kind - 1], trainer->grad_dtype, true};
    if (masters)
        return (struct rk_state_buffer){masters, trainer->grad_dtype, true};
    return (struct rk_state_buffer){model->core->values, model->core->dtype, false};
}

bool rk_state_has(const struct rk_model *model, int32_t kind, int64_t param)
{
    return kind == 0 || rk_params_is_trained(&model->core->params, param);
}

char *rk_state_tensor_name(const struct rk_model *model, int32_t kind, const struct rk_param *param)
{
    if (kind == 0)
        return rk_strdup(param->name);
    if (kind == RK_STATE_KIND_GRADIENTS)
        return rk_format(RK_CKPT_GRADIENT_PREFIX "%s", param->name);
    return rk_format("optimizer.state.%s.%s", model->trainer->config.ops->state_names[kind - 1], param->name);
}

/* Partition of the parameter's elements, and of those of others like it, among the ranks that hold the same
 * part. */
static struct rk_shard_maps shards_of(const struct rk_model *model, int64_t param)
{
    const struct rk_param_table *params = &model->core->params;
    struct rk_shard_places places = rk_shard_places_of(model->core->mesh);

    if (!rk_params_is_trained(params, param))
        return rk_params_cut_untrained(params, &places);
    if (model->trainer)
        return model->trainer->shards;
    return rk_params_cut(params, &places, RK_MAX(params->num_elements, 1));
}

/* The box is the beginning of the local part: only rows are padded, at the end. */
static void add_piece(struct rk_state_pieces *out, const struct rk_model *model, int64_t i, int32_t kind)
{
    const struct rk_param *param = rk_params_at(&model->core->params, i);
    const struct rk_placement *placement = rk_params_placement(&model->core->params, i);
    struct rk_shard_maps shards = shards_of(model, i);
    struct rk_state_piece piece = {
        .param = i, .buffer = rk_state_buffer_of(model, kind, i), .first_run = out->runs.count};
    struct rk_shard_run run = {0};
    int64_t begin = placement->offset, end;

    if (!placement->is_held || !placement->is_counted || !rk_state_has(model, kind, i))
        return;
    piece.box = rk_param_get_box(param, placement);
    RK_ASSERT(piece.box.shape[0] == 0 || piece.box.shape[1] == placement->local_shape[1]);
    end = begin + piece.box.shape[0] * piece.box.shape[1];
    while (rk_shards_next_run(&shards, begin, end, &run)) {
        struct rk_state_run own = {.begin = run.begin - begin, .count = run.count};

        own.source = piece.buffer.is_sharded ? run.shard : run.begin;
        rk_array_append(&out->runs, own);
        piece.num_runs++;
        piece.count += run.count;
    }
    if (piece.count == 0)
        return;
    piece.name = rk_state_tensor_name(model, kind, param);
    rk_array_append(&out->pieces, piece);
    out->bytes += (uint64_t)piece.count * rk_dtype_bytes(piece.buffer.dtype);
}

static int compare_pieces(const void *a, const void *b)
{
    const struct rk_state_piece *x = a, *y = b;

    return rk_st_compare(x->buffer.dtype, x->name, y->buffer.dtype, y->name);
}

void rk_state_pieces_list(struct rk_state_pieces *out, const struct rk_model *model, uint32_t kinds)
{
    *out = (struct rk_state_pieces){0};
    for (int32_t kind = 0; kind < RK_STATE_KINDS_MAX; kind++) {
        for (int64_t i = 0; kinds >> kind & 1 && i < model->core->params.count; i++)
            add_piece(out, model, i, kind);
    }
    if (out->pieces.count > 1)
        qsort(out->pieces.items, (size_t)out->pieces.count, sizeof(*out->pieces.items), compare_pieces);
}

void rk_state_pieces_fini(struct rk_state_pieces *pieces)
{
    for (int64_t i = 0; i < pieces->pieces.count; i++)
        rk_free(pieces->pieces.items[i].name);
    rk_array_fini(&pieces->pieces);
    rk_array_fini(&pieces->runs);
    *pieces = (struct rk_state_pieces){0};
}

static struct rk_json *new_pair(int64_t begin, int64_t end)
{
    struct rk_json *pair = rk_json_new_array();

    rk_json_append(pair, rk_json_new_int(begin));
    rk_json_append(pair, rk_json_new_int(end));
    return pair;
}

static struct rk_json *format_piece(const struct rk_state_pieces *pieces, const struct rk_state_piece *piece,
                                    const struct rk_param *param)
{
    struct rk_json *object = rk_json_new_object(), *shape = rk_json_new_array(), *box = rk_json_new_array(),
                   *runs = rk_json_new_array();

    for (int32_t dim = 0; dim < param->rank; dim++) {
        rk_json_append(shape, rk_json_new_int(param->shape[dim]));
        rk_json_append(box, new_pair(piece->box.begin[dim], piece->box.begin[dim] + piece->box.shape[dim]));
    }
    for (int64_t r = 0; r < piece->num_runs; r++) {
        const struct rk_state_run *run = &pieces->runs.items[piece->first_run + r];

        rk_json_append(runs, new_pair(run->begin, run->begin + run->count));
    }
    rk_json_set(object, "global_shape", shape);
    rk_json_set(object, "box", box);
    rk_json_set(object, "runs", runs);
    return object;
}

/* The shape of the box if one run covers it; otherwise a vector. */
static struct rk_st_entry format_entry(const struct rk_state_piece *piece, const struct rk_param *param)
{
    struct rk_st_entry entry = {
        .name = piece->name, .dtype = piece->buffer.dtype, .rank = 1, .shape = {piece->count}};

    if (piece->num_runs == 1 && piece->count == piece->box.shape[0] * piece->box.shape[1]) {
        entry.rank = param->rank;
        for (int32_t dim = 0; dim < param->rank; dim++)
            entry.shape[dim] = piece->box.shape[dim];
    }
    return entry;
}

struct rk_status *rk_state_open_shard(struct rk_st_writer **out, const struct rk_state_pieces *pieces,
                                      const struct rk_model *model, const char *path)
{
    struct rk_st_entry *entries = rk_calloc((size_t)pieces->pieces.count + 1, sizeof(*entries));
    struct rk_json *metadata = rk_json_new_object(), *described = rk_json_new_object();
    struct rk_status *st;
    char *text;

    for (int64_t i = 0; i < pieces->pieces.count; i++) {
        const struct rk_state_piece *piece = &pieces->pieces.items[i];
        const struct rk_param *param = rk_params_at(&model->core->params, piece->param);

        entries[i] = format_entry(piece, param);
        rk_json_set(described, piece->name, format_piece(pieces, piece, param));
    }
    text = rk_json_dump(described, 0, false);
    rk_json_set(metadata, RK_CKPT_PIECES_KEY, rk_json_new_string(text));
    st = rk_st_writer_create(out, path, entries, pieces->pieces.count, metadata);
    rk_free(text);
    rk_json_free(described);
    rk_json_free(metadata);
    rk_free(entries);
    return st;
}
