/* Reads a Hugging Face checkpoint: each rank reads only its box of every tensor, in blocks of rows that
 * threads read ahead (hf_reader.c) while the device copies earlier blocks. Tensors in the model's dtype are
 * copied unchanged, and masters are widened on the device; other dtypes are converted by the reader threads.
 * Ranks do not send weights to each other; replicas read the same bytes from the page cache. The ranks agree
 * after every few parameters, so that no collective waits long for a slow disk, and all stop when one
 * fails. */
#include "engine/ckpt/ckpt_internal.h"

#include <stdio.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_fault.h"
#include "base/rk_log.h"

/* Elements of a block: large enough for full copy bandwidth, small enough for a ring of blocks in pinned
 * memory. */
#define BLOCK_ELEMENTS ((int64_t)2 << 20)
/* Rows of the parameter table between two agreements of the ranks. */
#define MEETING_PARAMS 4

struct load_job {
    struct rk_model *model;
    struct rk_hf_dir *dir;
    RK_ARRAY(struct rk_hf_block) blocks; /* in the order of the table */
    struct rk_hf_reader *reader;
    struct rk_event *copies[RK_HF_COPIES_MAX]; /* recorded after the copies of the last blocks, by block
                                                * number modulo the array's length */
    int64_t num_copied;                        /* blocks whose copies are enqueued */
    struct rk_model_walk walk;
};

/* "[3, 4]" of a tensor's shape; truncated to `room`. */
static const char *shape_text(char *text, size_t room, const int64_t *shape, int32_t rank)
{
    size_t used = 0;

    for (int32_t i = 0; i < rank && used < room; i++)
        used += (size_t)snprintf(text + used, room - used, "%s%lld", i > 0 ? ", " : "[", (long long)shape[i]);
    if (used < room)
        snprintf(text + used, room - used, "%s", rank > 0 ? "]" : "[]");
    return text;
}

static struct rk_status *check_tensor(const struct rk_param *param, const struct rk_hf_tensor *found)
{
    const struct rk_st_tensor *tensor = found->tensor;
    const int64_t stacked[3] = {param->stack.count, param->stack.rows, param->shape[1]};
    const int64_t values[1] = {rk_param_num_values(param)};
    const int64_t *shape = found->is_stack ? stacked : param->rank == 1 ? values : param->shape;
    int32_t rank = found->is_stack ? 3 : param->rank;
    bool same = tensor->rank == rank;
    char has[96], expected[96];

    for (int32_t i = 0; same && i < rank; i++)
        same = tensor->shape[i] == shape[i];
    if (!same)
        return RK_FAIL(RK_INVALID_ARGUMENT, "tensor '%s' in '%s' has shape %s, expected %s by config.json",
                       tensor->name, rk_st_path(found->file),
                       shape_text(has, sizeof(has), tensor->shape, tensor->rank),
                       shape_text(expected, sizeof(expected), shape, rank));
    switch (tensor->dtype) {
    case RK_DTYPE_F16:
    case RK_DTYPE_BF16:
    case RK_DTYPE_F32:
    case RK_DTYPE_F64:
    case RK_DTYPE_F8E4M3:
        return NULL;
    default:
        return RK_FAIL(RK_UNIMPLEMENTED, "tensor '%s' in '%s' is %s, expected F16, BF16, F32, F64 or F8_E4M3",
                       tensor->name, rk_st_path(found->file), rk_dtype_safetensors_name(tensor->dtype));
    }
}

/* Whether the parameter is optional and missing from the directory. */
static bool is_missing(const struct rk_hf_dir *dir, const struct rk_param *param)
{
    return (param->flags & RK_PARAM_OPTIONAL) && !rk_hf_dir_has(dir, param);
}

static bool is_new(const struct load_job *job, int64_t i)
{
    return is_missing(job->dir, rk_params_at(&job->model->core->params, i));
}

static struct rk_status *find_tensor(struct rk_hf_dir *dir, const struct rk_param *param,
                                     struct rk_hf_tensor *found)
{
    RK_TRY(rk_hf_dir_find(dir, param, found));
    return check_tensor(param, found);
}

static struct rk_status *check_params(struct rk_hf_dir *dir, const struct rk_param_table *params)
{
    struct rk_hf_tensor found;

    for (int64_t i = 0; i < params->count; i++) {
        if (rk_params_placement(params, i)->is_held && !is_missing(dir, rk_params_at(params, i)))
            RK_TRY(find_tensor(dir, rk_params_at(params, i), &found));
    }
    return NULL;
}

struct rk_status *rk_model_check_hf(const struct rk_model *model, const char *path)
{
    const struct rk_model_core *core = model->core;
    int64_t embedding = core->embedding.weight.param;
    struct rk_hf_dir *dir;
    struct rk_status *st = rk_hf_dir_open(&dir, path);

    if (!st)
        st = check_params(dir, &core->params);
    if (!st && core->head.weight.param == embedding)
        st = rk_hf_dir_check_tied(dir, rk_params_at(&core->params, embedding));
    rk_hf_dir_close(dir);
    return st ? RK_WRAP(st, "loading the model from '%s'", path) : NULL;
}

/* Only for matrices: a missing bias is zero, which is the normal case. */
static void warn_new(const struct load_job *job, int64_t i)
{
    const struct rk_param *param = rk_params_at(&job->model->core->params, i);

    if (param->rank > 1)
        RK_WARN("model directory '%s' has no tensor '%s': it is initialized at random from N(0, %g)",
                rk_hf_dir_path(job->dir), param->name, job->model->core->config.initializer_range);
}

static struct rk_status *init_param(struct load_job *job, int64_t i)
{
    const struct rk_model_core *core = job->model->core;
    const struct rk_placement *placement = rk_params_placement(&core->params, i);
    int64_t count = rk_placement_num_elements(placement);

    RK_TRY(rk_model_init_param(job->model->core, i, core->seed));
    RK_TRY(rk_model_copy_masters(core, placement->offset, count));
    return rk_model_walk_advance(&job->walk, count);
}

/* Lists the blocks of a parameter: none when this rank's part is only padding. */
static struct rk_status *plan_param(struct load_job *job, int64_t i)
{
    const struct rk_param *param = rk_params_at(&job->model->core->params, i);
    const struct rk_placement *placement = rk_params_placement(&job->model->core->params, i);
    struct rk_param_box box = rk_param_get_box(param, placement);
    struct rk_hf_block block = {.param = i, .col = box.begin[1], .cols = box.shape[1]};
    struct rk_hf_tensor found;

    if (!placement->is_held)
        return NULL;
    if (is_new(job, i)) {
        warn_new(job, i);
        return NULL;
    }
    RK_TRY(find_tensor(job->dir, param, &found));
    if (param->flags & RK_PARAM_WIDE)
        return NULL; /* has no blocks: load_wide */
    block.file = found.file;
    block.tensor = found.tensor;
    block.scale_file = found.scale_file;
    block.scale = found.scale;
    for (int64_t begin = 0; begin < box.shape[0]; begin += block.num_rows) {
        block.row = (found.is_stack ? param->stack.first_row : 0) + box.begin[0] + begin;
        block.num_rows = RK_MIN(RK_MAX(BLOCK_ELEMENTS / box.shape[1], 1), box.shape[0] - begin);
        block.offset = placement->offset + begin * placement->local_shape[1];
        rk_array_append(&job->blocks, block);
    }
    return NULL;
}

static struct rk_status *prepare(struct load_job *job, const char *path)
{
    const struct rk_model_core *core = job->model->core;
    struct rk_hf_reader_desc desc = {.device = rk_stream_device(core->stream),
                                     .dtype = core->dtype,
                                     .wide_dtype = rk_master_dtype(core->dtype)};

    RK_TRY(rk_hf_dir_open(&job->dir, path));
    rk_hf_dir_warn_unused(job->dir, core);
    for (int64_t i = 0; i < core->params.count; i++)
        RK_TRY(plan_param(job, i));
    for (int i = 0; i < RK_HF_COPIES_MAX; i++)
        RK_TRY(rk_event_create(&job->copies[i], desc.device));
    desc.blocks = job->blocks.items;
    desc.num_blocks = job->blocks.count;
    return rk_hf_reader_create(&job->reader, &desc);
}

/* Copies the values of a block to the parameter and its masters. */
static struct rk_status *copy_block(struct load_job *job, const struct rk_hf_block *block,
                                    const struct rk_hf_data *data)
{
    const struct rk_model_core *core = job->model->core;
    int64_t count = block->num_rows * block->cols;
    rk_tensor_t values = rk_flat_view(core->values, core->dtype, block->offset, count);

    RK_TRY(rk_stream_copy(core->stream, values.data, data->values, rk_tensor_bytes(values), RK_COPY_H2D));
    if (data->wide)
        return rk_model_set_masters(core, block->offset, count, data->wide);
    return rk_model_copy_masters(core, block->offset, count);
}

static struct rk_status *load_block(struct load_job *job)
{
    const struct rk_hf_block *block = &job->blocks.items[job->num_copied];
    struct rk_event *is_copied = job->copies[job->num_copied % RK_HF_COPIES_MAX];
    struct rk_hf_data data;

    if (RK_FAULT("ckpt.read"))
        return RK_FAIL(RK_INTERNAL, "fault point ckpt.read");
    if (job->num_copied >= RK_HF_COPIES_MAX) {
        RK_TRY(rk_event_sync(is_copied));
        rk_hf_reader_release(job->reader);
    }
    RK_TRY(rk_hf_reader_take(job->reader, &data));
    RK_TRY(copy_block(job, block, &data));
    job->num_copied++;
    RK_TRY(rk_event_record(is_copied, job->model->core->stream));
    return rk_model_walk_advance(&job->walk, block->num_rows * block->cols);
}

static struct rk_status *load_wide(struct load_job *job, int64_t i)
{
    const struct rk_param_table *params = &job->model->core->params;
    struct rk_hf_tensor found;

    RK_TRY(rk_hf_dir_find(job->dir, rk_params_at(params, i), &found));
    RK_TRY(rk_hf_wide_load(job->model, i, &found));
    return rk_model_walk_advance(&job->walk, rk_placement_num_elements(rk_params_placement(params, i)));
}

static struct rk_status *load_param(struct load_job *job, int64_t i)
{
    const struct rk_placement *placement = rk_params_placement(&job->model->core->params, i);
    struct rk_param_box box = rk_param_get_box(rk_params_at(&job->model->core->params, i), placement);
    int64_t padding = rk_placement_num_elements(placement) - box.shape[0] * box.shape[1];

    if (placement->is_held && is_new(job, i))
        return init_param(job, i);
    if (placement->is_held && rk_params_at(&job->model->core->params, i)->flags & RK_PARAM_WIDE)
        return load_wide(job, i);
    while (job->num_copied < job->blocks.count && job->blocks.items[job->num_copied].param == i)
        RK_TRY(load_block(job));
    return rk_model_walk_advance(&job->walk, padding);
}

/* Rows of the table from `begin` on, up to the next agreement. */
static struct rk_status *load_params(struct load_job *job, int64_t begin)
{
    int64_t end = RK_MIN(begin + MEETING_PARAMS, job->model->core->params.count);

    for (int64_t i = begin; i < end; i++)
        RK_TRY(load_param(job, i));
    return NULL;
}

/* The load is valid when no weight is NaN or infinite. */
static struct rk_status *finish(struct load_job *job)
{
    RK_TRY(rk_stream_sync(job->model->core->stream));
    return rk_model_check_finite(job->model, "the file is damaged, or a diverged run wrote it");
}

static void load_job_fini(struct load_job *job)
{
    /* The device may still copy from the reader's memory. */
    rk_status_free(rk_stream_sync(job->model->core->stream));
    rk_hf_reader_destroy(job->reader);
    for (int i = 0; i < RK_HF_COPIES_MAX; i++)
        rk_event_destroy(job->copies[i]);
    rk_array_fini(&job->blocks);
    rk_hf_dir_close(job->dir);
}

struct rk_status *rk_model_load_hf(struct rk_model *model, const char *path,
                                   const struct rk_engine_hooks *hooks)
{
    int64_t num_params = model->core->params.count;
    struct load_job job = {.model = model};
    struct rk_status *st = rk_model_agree(model, prepare(&job, path));

    rk_model_walk_begin(&job.walk, model->core, "load", hooks);
    for (int64_t i = 0; !st && i < num_params; i += MEETING_PARAMS)
        st = rk_model_agree(model, load_params(&job, i));
    if (!st)
        st = rk_model_agree(model, finish(&job));
    load_job_fini(&job);
    return st ? RK_WRAP(st, "loading the model from '%s'", path) : NULL;
}
