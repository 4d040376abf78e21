/* Reads parameters that files have in fp32 (RK_PARAM_WIDE, engine/params/wide.c). */
#include "engine/ckpt/ckpt_internal.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

/* Reads the values and splits them into the runs of the flat buffer. */
static struct rk_status *read_parts(const struct rk_hf_tensor *found, int64_t count, rk_dtype_t dtype,
                                    double *values, double *parts, void *raw)
{
    RK_TRY(
        rk_st_read(found->file, found->tensor, 0, (size_t)count * rk_dtype_bytes(found->tensor->dtype), raw));
    rk_load_f64(values, raw, found->tensor->dtype, count);
    rk_param_wide_split(values, count, parts);
    rk_store_f64(raw, dtype, parts, RK_PARAM_WIDE_PARTS * count);
    return NULL;
}

struct rk_status *rk_hf_wide_load(struct rk_model *model, int64_t param, const struct rk_hf_tensor *found)
{
    const struct rk_model_core *core = model->core;
    const struct rk_placement *placement = rk_params_placement(&core->params, param);
    int64_t num_elements = rk_placement_num_elements(placement), count = num_elements / RK_PARAM_WIDE_PARTS;
    double *values = rk_calloc((size_t)count, sizeof(double));
    double *parts = rk_calloc((size_t)num_elements, sizeof(double));
    void *raw = rk_calloc((size_t)num_elements, sizeof(double)); /* of the file, then of the buffer */
    rk_tensor_t to = rk_flat_view(core->values, core->dtype, placement->offset, num_elements);
    struct rk_status *st = read_parts(found, count, core->dtype, values, parts, raw);

    RK_ASSERT(count * RK_PARAM_WIDE_PARTS == num_elements);
    if (!st)
        st = rk_stream_copy(core->stream, to.data, raw, rk_tensor_bytes(to), RK_COPY_H2D);
    if (!st)
        st = rk_model_copy_masters(core, placement->offset, num_elements);
    if (!st)
        st = rk_stream_sync(core->stream);
    rk_free(raw);
    rk_free(parts);
    rk_free(values);
    return st;
}
