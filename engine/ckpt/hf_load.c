/* Reading a Hugging Face checkpoint: of every tensor only this rank's slice, by row blocks, converted to the
 * model's dtype (and that of its masters) on the way. No rank reads for another; replicas read the same bytes
 * from the page cache. The ranks meet after every parameter, so that none waits long for a slow disk, and all
 * stop when one of them cannot go on. */
#include "engine/ckpt/ckpt_internal.h"

#include "base/rk_alloc.h"
#include "base/rk_fault.h"
#include "engine/optim/optim_internal.h"

struct source {
    const struct rk_st_file *file;
    const struct rk_st_tensor *tensor;
};

/* Staging for one block of rows: as in the file, as masters are, and as parameters are. A parameter is its
 * master, rounded, whether the model trains or not. */
struct staging {
    void *raw, *values, *rounded;
    rk_dtype_t dtype; /* of values: that of masters */
};

static struct rk_status *check_tensor(const struct rk_param *param, const struct source *source)
{
    const struct rk_st_tensor *tensor = source->tensor;
    bool same = tensor->rank == param->rank;

    for (int32_t i = 0; same && i < param->rank; i++)
        same = tensor->shape[i] == param->shape[i];
    if (!same)
        return RK_FAIL(
            RK_INVALID_ARGUMENT,
            "tensor '%s' in '%s' has rank %d and shape [%lld, %lld, ...], expected [%lld, %lld] of rank %d "
            "by config.json",
            param->name, rk_st_path(source->file), tensor->rank, (long long)tensor->shape[0],
            (long long)(tensor->rank > 1 ? tensor->shape[1] : 1), (long long)param->shape[0],
            (long long)param->shape[1], param->rank);
    switch (tensor->dtype) {
    case RK_DTYPE_F16:
    case RK_DTYPE_BF16:
    case RK_DTYPE_F32:
    case RK_DTYPE_F64:
        return NULL;
    default:
        return RK_FAIL(RK_UNIMPLEMENTED, "tensor '%s' in '%s' is %s, expected F16, BF16, F32 or F64",
                       param->name, rk_st_path(source->file), rk_dtype_safetensors_name(tensor->dtype));
    }
}

/* Rows [begin, begin + count) of the box: one range of the file, or one for each row when columns are split.
 */
static struct rk_status *read_rows(const struct rk_param_box *box, const struct source *source, int64_t begin,
                                   int64_t count, char *raw)
{
    const struct rk_st_tensor *tensor = source->tensor;
    uint64_t elem_bytes = rk_dtype_bytes(tensor->dtype);
    int64_t cols = box->shape[1], all_cols = tensor->rank > 1 ? tensor->shape[1] : 1;
    int64_t row = box->begin[0] + begin, col = box->begin[1];

    if (RK_FAULT("ckpt.read"))
        return RK_FAIL(RK_INTERNAL, "fault point ckpt.read");
    if (cols == all_cols)
        return rk_st_read(source->file, source->tensor, (uint64_t)(row * cols) * elem_bytes,
                          (size_t)(count * cols) * elem_bytes, raw);
    for (int64_t r = 0; r < count; r++)
        RK_TRY(rk_st_read(source->file, source->tensor, (uint64_t)((row + r) * all_cols + col) * elem_bytes,
                          (size_t)cols * elem_bytes, raw + (size_t)(r * cols) * elem_bytes));
    return NULL;
}

/* `count` rows of staging->values become rows of the parameter from `begin` on, and of its masters. */
static struct rk_status *store_rows(struct rk_model *model, const struct rk_placement *placement,
                                    int64_t begin, int64_t count, const struct staging *staging)
{
    const struct rk_model_core *core = model->core;
    int64_t cols = placement->local_shape[1], offset = placement->offset + begin * cols, num = count * cols;
    size_t elem_bytes = rk_dtype_bytes(core->dtype);

    rk_convert(staging->rounded, core->dtype, staging->values, staging->dtype, num);
    RK_TRY(rk_stream_copy(core->stream, (char *)core->values + (size_t)offset * elem_bytes, staging->rounded,
                          (size_t)num * elem_bytes, RK_COPY_H2D));
    RK_TRY(rk_stream_sync(core->stream));
    return rk_train_set_masters(model->train, core->stream, offset, num, staging->values);
}

static struct rk_status *load_rows(struct rk_model *model, int64_t i, const struct source *source,
                                   const struct staging *staging, struct rk_model_walk *walk)
{
    const struct rk_placement *placement = rk_params_placement(&model->core->params, i);
    struct rk_param_box box = rk_param_get_box(rk_params_at(&model->core->params, i), placement);
    int64_t step = rk_model_rows_per_move(model, i), cols = box.shape[1];

    for (int64_t begin = 0; begin < box.shape[0]; begin += step) {
        int64_t count = RK_MIN(step, box.shape[0] - begin);

        RK_TRY(read_rows(&box, source, begin, count, staging->raw));
        rk_convert(staging->values, staging->dtype, staging->raw, source->tensor->dtype, count * cols);
        RK_TRY(store_rows(model, placement, begin, count, staging));
        RK_TRY(rk_model_walk_advance(walk, count * cols));
    }
    return rk_model_walk_advance(walk, (placement->local_shape[0] - box.shape[0]) * cols);
}

static struct rk_status *load_param(struct rk_model *model, const struct rk_hf_dir *dir, int64_t i,
                                    struct rk_model_walk *walk)
{
    const struct rk_param *param = rk_params_at(&model->core->params, i);
    const struct rk_placement *placement = rk_params_placement(&model->core->params, i);
    size_t count = (size_t)(rk_model_rows_per_move(model, i) * placement->local_shape[1]);
    struct staging staging = {.dtype = rk_train_grad_dtype(model->core->dtype)};
    struct source source;
    struct rk_status *st;

    if (!placement->is_held)
        return NULL;
    RK_TRY(rk_hf_dir_find(dir, param, &source.file, &source.tensor));
    RK_TRY(check_tensor(param, &source));
    RK_TRY_GOTO(st, rk_try_alloc(&staging.raw, count * rk_dtype_bytes(source.tensor->dtype), param->name),
                out);
    RK_TRY_GOTO(st, rk_try_alloc(&staging.values, count * rk_dtype_bytes(staging.dtype), param->name), out);
    RK_TRY_GOTO(st, rk_try_alloc(&staging.rounded, count * rk_dtype_bytes(model->core->dtype), param->name),
                out);
    st = load_rows(model, i, &source, &staging, walk);

out:
    rk_free(staging.raw);
    rk_free(staging.values);
    rk_free(staging.rounded);
    return st;
}

struct rk_status *rk_model_load_hf(struct rk_model *model, const char *path,
                                   const struct rk_engine_hooks *hooks)
{
    const struct rk_param_table *params = &model->core->params;
    struct rk_hf_dir *dir = NULL;
    struct rk_model_walk walk;
    struct rk_status *st = rk_model_agree(model, rk_hf_dir_open(&dir, path));

    rk_model_walk_begin(&walk, model->core, "load", hooks);
    if (!st)
        rk_hf_dir_warn_unused(dir, params);
    for (int64_t i = 0; !st && i < params->count; i++)
        st = rk_model_agree(model, load_param(model, dir, i, &walk));
    rk_hf_dir_close(dir);
    return st ? RK_WRAP(st, "loading the model from '%s'", path) : NULL;
}
