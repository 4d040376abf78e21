/* Functions that steps share: memory of the step, and columns of its batch. */
#include "base/rk_assert.h"
#include "rl/flows/steps_internal.h"
#include "proto/rk_methods.h"

void *rk_flow_scratch(struct rk_flow_context *ctx, size_t count, size_t elem_bytes)
{
    void *memory = rk_arena_calloc(ctx->arena, count, elem_bytes);

    RK_ASSERT(memory);
    return memory;
}

struct rk_status *rk_flow_column_of(const struct rk_batch *batch, const char *name, rk_dtype_t dtype,
                                    int64_t num_rows, int64_t width, const void **data)
{
    int64_t shape[2];

    RK_TRY(rk_batch_get_dense(batch, name, dtype, 2, shape, data));
    if (shape[0] != num_rows || shape[1] != width)
        return RK_FAIL(RK_INTERNAL, "column '%s' has the shape [%lld, %lld], expected [%lld, %lld]", name,
                       (long long)shape[0], (long long)shape[1], (long long)num_rows, (long long)width);
    return NULL;
}

struct rk_status *rk_flow_column(const struct rk_flow_context *ctx, const char *name, rk_dtype_t dtype,
                                 int64_t width, const void **data)
{
    return rk_flow_column_of(ctx->batch, name, dtype, ctx->num_rows, width, data);
}

struct rk_status *rk_flow_sum_rows(struct rk_flow_context *ctx, const char *mask_name, int64_t width,
                                   int64_t **out)
{
    const void *mask;

    RK_TRY(rk_flow_column(ctx, mask_name, RK_DTYPE_I64, width, &mask));
    *out = rk_flow_scratch(ctx, (size_t)ctx->num_rows, sizeof(**out));
    rk_flow_count_marks(*out, mask, ctx->num_rows, width, width);
    return NULL;
}

/* Puts the column of the batch into `selected`. */
static struct rk_status *take_column(struct rk_batch *selected, const struct rk_batch *batch,
                                     const char *name, bool is_required)
{
    struct rk_column *column = rk_batch_find(batch, name);

    if (column)
        return rk_batch_find(selected, name) ? NULL : rk_batch_put(selected, name, column);
    return is_required ? RK_FAIL(RK_NOT_FOUND, "the batch has no column '%s'", name) : NULL;
}

struct rk_status *rk_flow_select(struct rk_batch **out, const struct rk_batch *batch, const char *method,
                                 const char *const *optional)
{
    static const char *const none[] = {NULL};
    const struct rk_method *row = rk_method_find(method);
    struct rk_batch *selected;
    struct rk_status *st;

    *out = NULL;
    RK_TRY(rk_batch_select(&selected, batch, none, none));
    for (int64_t i = 0; i < row->num_in; i++) {
        if (row->in[i].is_required)
            RK_TRY_GOTO(st, take_column(selected, batch, row->in[i].name, true), fail);
    }
    for (; optional && *optional; optional++)
        RK_TRY_GOTO(st, take_column(selected, batch, *optional, false), fail);
    *out = selected;
    return NULL;
fail:
    rk_batch_destroy(selected);
    return st;
}

struct rk_status *rk_flow_pad(struct rk_batch **batch, int64_t *num_padded, int32_t num_replicas)
{
    struct rk_batch *padded;

    *num_padded = 0;
    if (rk_batch_num_rows(*batch) % num_replicas == 0)
        return NULL;
    RK_TRY(rk_batch_pad_to_divisor(&padded, *batch, num_replicas, num_padded));
    rk_batch_destroy(*batch);
    *batch = padded;
    return NULL;
}
