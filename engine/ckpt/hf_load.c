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

/* Local rows [begin, begin + count): one range of the file, or one for each row when columns are split. */
static struct rk_status *read_rows(const struct rk_param *param, const struct source *source, int64_t begin,
                                   int64_t count, char *raw)
{
    uint64_t elem_bytes = rk_dtype_bytes(source->tensor->dtype);
    int64_t cols = param->local_shape[1], all_cols = param->shape[1];
    int64_t row = begin + (param->split_dim == 0 ? param->part * param->local_shape[0] : 0);
    int64_t col = param->split_dim == 1 ? param->part * cols : 0;

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

/* Rows of mine that the file has: fewer than the local shape where the vocabulary is padded. */
static int64_t num_rows_in_file(const struct rk_param *param)
{
    int64_t first = param->split_dim == 0 ? param->part * param->local_shape[0] : 0;

    return RK_MIN(RK_MAX(param->shape[0] - first, 0), param->local_shape[0]);
}

/* `count` rows of staging->values become rows of the parameter from `begin` on, and of its masters. */
static struct rk_status *store_rows(struct rk_model *model, const struct rk_param *param, int64_t begin,
                                    int64_t count, const struct staging *staging)
{
    const struct rk_model_core *core = model->core;
    int64_t offset = param->offset + begin * param->local_shape[1], num = count * param->local_shape[1];
    size_t elem_bytes = rk_dtype_bytes(core->dtype);

    rk_convert(staging->rounded, core->dtype, staging->values, staging->dtype, num);
    RK_TRY(rk_stream_copy(core->stream, (char *)core->values + (size_t)offset * elem_bytes, staging->rounded,
                          (size_t)num * elem_bytes, RK_COPY_H2D));
    RK_TRY(rk_stream_sync(core->stream));
    return rk_train_set_masters(model->train, core->stream, offset, num, staging->values);
}

static struct rk_status *load_rows(struct rk_model *model, const struct rk_param *param,
                                   const struct source *source, const struct staging *staging,
                                   struct rk_model_walk *walk)
{
    int64_t num_rows = num_rows_in_file(param), step = rk_model_rows_per_move(model, param);

    for (int64_t begin = 0; begin < num_rows; begin += step) {
        int64_t count = RK_MIN(step, num_rows - begin);

        RK_TRY(read_rows(param, source, begin, count, staging->raw));
        rk_convert(staging->values, staging->dtype, staging->raw, source->tensor->dtype,
                   count * param->local_shape[1]);
        RK_TRY(store_rows(model, param, begin, count, staging));
        RK_TRY(rk_model_walk_advance(walk, count * param->local_shape[1]));
    }
    return rk_model_walk_advance(walk, (param->local_shape[0] - num_rows) * param->local_shape[1]);
}

static struct rk_status *load_param(struct rk_model *model, const struct rk_hf_dir *dir,
                                    const struct rk_param *param, struct rk_model_walk *walk)
{
    size_t count = (size_t)(rk_model_rows_per_move(model, param) * param->local_shape[1]);
    struct staging staging = {.dtype = rk_train_grad_dtype(model->core->dtype)};
    struct source source;
    struct rk_status *st;

    RK_TRY(rk_hf_dir_find(dir, param->name, &source.file, &source.tensor));
    RK_TRY(check_tensor(param, &source));
    RK_TRY_GOTO(st, rk_try_alloc(&staging.raw, count * rk_dtype_bytes(source.tensor->dtype), param->name),
                out);
    RK_TRY_GOTO(st, rk_try_alloc(&staging.values, count * rk_dtype_bytes(staging.dtype), param->name), out);
    RK_TRY_GOTO(st, rk_try_alloc(&staging.rounded, count * rk_dtype_bytes(model->core->dtype), param->name),
                out);
    st = load_rows(model, param, &source, &staging, walk);

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
        st = rk_model_agree(model, load_param(model, dir, rk_params_at(params, i), &walk));
    rk_hf_dir_close(dir);
    return st ? RK_WRAP(st, "loading the model from '%s'", path) : NULL;
}
