/* Finds NaN and infinite weights on the device in one pass over the flat buffer; only if there are any are
 * the parameters checked one by one. */
#include "engine/model/model.h"

#include "base/rk_assert.h"

/* Elements per sum: bounds the operator's scratch memory. */
#define CHUNK_ELEMENTS ((int64_t)32 << 20)

struct rk_status *rk_model_count_non_finite(const struct rk_model_core *core, const void *values,
                                            rk_dtype_t dtype, int64_t num_elements, int64_t *count)
{
    rk_tensor_t sums = rk_tensor_1d(core->scratch, RK_DTYPE_F64, 2);
    size_t elem_bytes = rk_dtype_bytes(dtype);
    double host[2];

    _Static_assert(sizeof(host) <= RK_AGREE_BYTES, "the sums fit the scratch memory");
    RK_TRY(rk_stream_zero(core->stream, sums.data, sizeof(host)));
    for (int64_t begin = 0; begin < num_elements; begin += CHUNK_ELEMENTS) {
        char *at = (char *)(uintptr_t)values + (size_t)begin * elem_bytes;
        rk_tensor_t chunk = rk_tensor_1d(at, dtype, RK_MIN(CHUNK_ELEMENTS, num_elements - begin));

        RK_TRY(rk_sum_squares(core->stream, &(struct rk_sum_squares_args){.out = sums, .x = chunk}));
    }
    RK_TRY(rk_stream_copy(core->stream, host, sums.data, sizeof(host), RK_COPY_D2H));
    RK_TRY(rk_stream_sync(core->stream));
    *count = (int64_t)host[1];
    return NULL;
}

/* Counts values that are not finite among elements [begin, begin + num_elements) of the flat buffer. */
static struct rk_status *count_bad(const struct rk_model_core *core, int64_t begin, int64_t num_elements,
                                   int64_t *count)
{
    const char *values = (const char *)core->values + (size_t)begin * rk_dtype_bytes(core->dtype);

    return rk_model_count_non_finite(core, values, core->dtype, num_elements, count);
}

struct rk_status *rk_model_check_finite(struct rk_model *model, const char *advice)
{
    const struct rk_model_core *core = model->core;
    int64_t count;

    RK_TRY(count_bad(core, 0, core->params.num_elements, &count));
    if (count == 0)
        return NULL;
    for (int64_t i = 0; i < core->params.count; i++) {
        const struct rk_placement *placement = rk_params_placement(&core->params, i);
        int64_t num_elements = rk_placement_num_elements(placement);

        RK_TRY(count_bad(core, placement->offset, num_elements, &count));
        if (count > 0)
            return RK_FAIL_REASON(
                RK_DATA_LOSS, "NON_FINITE",
                "tensor '%s': %lld of %lld values on this rank are NaN or infinite in %s: %s",
                rk_params_at(&core->params, i)->name, (long long)count, (long long)num_elements,
                rk_dtype_name(core->dtype), advice);
    }
    return NULL;
}
