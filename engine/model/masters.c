/* Masters of 16-bit parameters. */
#include "engine/model/model.h"

rk_dtype_t rk_master_dtype(rk_dtype_t param_dtype)
{
    return param_dtype == RK_DTYPE_F64 ? RK_DTYPE_F64 : RK_DTYPE_F32;
}

static rk_tensor_t masters_of(const struct rk_model_core *core, const struct rk_shard_run *run)
{
    return rk_flat_view(core->masters.values, rk_master_dtype(core->dtype), run->shard, run->count);
}

struct rk_status *rk_model_copy_masters(const struct rk_model_core *core, int64_t begin, int64_t count)
{
    struct rk_shard_run run = {0};

    if (!core->masters.values)
        return NULL;
    while (rk_shards_next_run(core->masters.shards, begin, begin + count, &run))
        RK_TRY(rk_axpby(core->stream, &(struct rk_axpby_args){
                                          .y = masters_of(core, &run),
                                          .x = rk_flat_view(core->values, core->dtype, run.begin, run.count),
                                          .alpha = 1,
                                      }));
    return NULL;
}

struct rk_status *rk_model_set_masters(const struct rk_model_core *core, int64_t begin, int64_t count,
                                       const void *values)
{
    size_t elem_bytes = rk_dtype_bytes(rk_master_dtype(core->dtype));
    struct rk_shard_run run = {0};

    if (!core->masters.values)
        return NULL;
    while (rk_shards_next_run(core->masters.shards, begin, begin + count, &run))
        RK_TRY(rk_stream_copy(core->stream, masters_of(core, &run).data,
                              (const char *)values + (size_t)(run.begin - begin) * elem_bytes,
                              (size_t)run.count * elem_bytes, RK_COPY_H2D));
    return NULL;
}
