/* Parameters that files have in fp32 whatever the model's dtype is (RK_PARAM_WIDE): the choice of experts
 * depends on differences between correction biases that bf16 cannot represent.
 *
 * The flat buffers have one dtype. Such a parameter therefore has RK_PARAM_WIDE_PARTS runs there, each of
 * which is exact in bf16: the value rounded to bf16, the remainder rounded to bf16, and the remainder of
 * that. Three times 8 bits are the 24 of fp32, and the sum of the three in fp32 is the value. All other code
 * treats the parameter as a vector. */
#include "engine/ckpt/ckpt_internal.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "engine/optim/trainer.h"

static double round_to_bf16(double value)
{
    uint16_t bits;

    rk_store_f64(&bits, RK_DTYPE_BF16, &value, 1);
    rk_load_f64(&value, &bits, RK_DTYPE_BF16, 1);
    return value;
}

void rk_hf_wide_split(const double *values, int64_t count, double *parts)
{
    for (int64_t i = 0; i < count; i++) {
        double rest = values[i];

        for (int64_t part = 0; part < RK_PARAM_WIDE_PARTS; part++) {
            parts[part * count + i] = round_to_bf16(rest);
            rest -= parts[part * count + i];
        }
    }
}

void rk_hf_wide_join(const void *parts, rk_dtype_t dtype, int64_t count, float *out)
{
    for (int64_t i = 0; i < count; i++) {
        double sum = 0;

        for (int64_t part = 0; part < RK_PARAM_WIDE_PARTS; part++) {
            double value;

            rk_load_f64(&value, (const char *)parts + (size_t)(part * count + i) * rk_dtype_bytes(dtype),
                        dtype, 1);
            sum += value;
        }
        out[i] = (float)sum;
    }
}

/* Reads the values and splits them into the runs of the flat buffer. */
static struct rk_status *read_parts(const struct rk_hf_tensor *found, int64_t count, rk_dtype_t dtype,
                                    double *values, double *parts, void *raw)
{
    RK_TRY(
        rk_st_read(found->file, found->tensor, 0, (size_t)count * rk_dtype_bytes(found->tensor->dtype), raw));
    rk_load_f64(values, raw, found->tensor->dtype, count);
    rk_hf_wide_split(values, count, parts);
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
        st = rk_train_copy_masters(model->train, core, placement->offset, num_elements);
    if (!st)
        st = rk_stream_sync(core->stream);
    rk_free(raw);
    rk_free(parts);
    rk_free(values);
    return st;
}
