/* Agreement of all ranks on a status: when one rank fails, all learn it before the next collective, so none
 * waits for a rank that has stopped. */
#include "engine/model/model.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_assert.h"

/* A status as the ranks exchange it. */
struct verdict {
    int32_t code;
    char reason[64];
    char message[RK_AGREE_BYTES - 64 - sizeof(int32_t)];
};

_Static_assert(sizeof(struct verdict) == RK_AGREE_BYTES,
               "a verdict has the size of the scratch memory of rk_model_agree");

struct rk_status *rk_engine_min(struct rk_comm_group *group, struct rk_stream *stream, void *scratch,
                                int32_t *values, int64_t count)
{
    size_t bytes = (size_t)count * sizeof(*values);

    RK_ASSERT(bytes <= RK_AGREE_BYTES);
    RK_TRY(rk_stream_copy(stream, scratch, values, bytes, RK_COPY_H2D));
    RK_TRY(rk_comm_all_reduce(group, stream, rk_tensor_1d(scratch, RK_DTYPE_I32, count), RK_REDUCE_MIN));
    RK_TRY(rk_stream_copy(stream, values, scratch, bytes, RK_COPY_D2H));
    return rk_stream_sync(stream);
}

struct rk_status *rk_engine_sum(struct rk_comm_group *group, struct rk_stream *stream, void *scratch,
                                double *values, int64_t count)
{
    for (int64_t i = 0; i < count; i += RK_AGREE_BYTES / (int64_t)sizeof(*values)) {
        int64_t n = RK_MIN(count - i, RK_AGREE_BYTES / (int64_t)sizeof(*values));
        size_t bytes = (size_t)n * sizeof(*values);

        RK_TRY(rk_stream_copy(stream, scratch, values + i, bytes, RK_COPY_H2D));
        RK_TRY(rk_comm_all_reduce(group, stream, rk_tensor_1d(scratch, RK_DTYPE_F64, n), RK_REDUCE_SUM));
        RK_TRY(rk_stream_copy(stream, values + i, scratch, bytes, RK_COPY_D2H));
        RK_TRY(rk_stream_sync(stream));
    }
    return NULL;
}

/* *first = the lowest rank of `group` that has `failed`, or the size of the group. */
static struct rk_status *find_first(struct rk_comm_group *group, struct rk_stream *stream, void *scratch,
                                    bool failed, int32_t *first)
{
    *first = failed ? rk_comm_group_rank(group) : rk_comm_group_size(group);
    return rk_engine_min(group, stream, scratch, first, 1);
}

static struct rk_status *share_verdict(struct rk_comm_group *group, struct rk_stream *stream, void *scratch,
                                       const struct rk_status *st, int32_t root)
{
    struct verdict verdict = {.code = (int32_t)rk_status_code(st)};

    snprintf(verdict.reason, sizeof(verdict.reason), "%s", rk_status_reason(st));
    snprintf(verdict.message, sizeof(verdict.message), "%s", rk_status_message(st));
    RK_TRY(rk_stream_copy(stream, scratch, &verdict, sizeof(verdict), RK_COPY_H2D));
    RK_TRY(rk_comm_broadcast(group, stream, rk_tensor_1d(scratch, RK_DTYPE_U8, RK_AGREE_BYTES), root));
    RK_TRY(rk_stream_copy(stream, &verdict, scratch, sizeof(verdict), RK_COPY_D2H));
    RK_TRY(rk_stream_sync(stream));
    if (st)
        return rk_status_clone(st);
    verdict.reason[sizeof(verdict.reason) - 1] = '\0';
    verdict.message[sizeof(verdict.message) - 1] = '\0';
    return RK_WRAP(rk_status_from_wire((rk_code_t)verdict.code, verdict.reason[0] ? verdict.reason : NULL,
                                       verdict.message),
                   "rank %d of the mesh", root);
}

struct rk_status *rk_engine_agree(struct rk_comm_group *group, struct rk_stream *stream, void *scratch,
                                  struct rk_status *st)
{
    struct rk_status *verdict;
    int32_t first;

    if (rk_comm_group_size(group) == 1)
        return st;
    verdict = find_first(group, stream, scratch, st != NULL, &first);
    if (!verdict && first < rk_comm_group_size(group))
        verdict = share_verdict(group, stream, scratch, st, first);
    return rk_status_first(st, verdict);
}

struct rk_status *rk_model_agree(struct rk_model *model, struct rk_status *st)
{
    const struct rk_model_core *core = model->core;

    return rk_engine_agree(rk_mesh_comms_group(core->mesh, RK_GROUP_ALL), core->stream, core->scratch, st);
}

struct rk_status *rk_model_min(struct rk_model *model, rk_mesh_group_kind_t kind, int32_t *values,
                               int64_t count)
{
    const struct rk_model_core *core = model->core;

    return rk_engine_min(rk_mesh_comms_group(core->mesh, kind), core->stream, core->scratch, values, count);
}

struct rk_status *rk_engine_check_cancel(const struct rk_engine_hooks *hooks, struct rk_comm_group *group,
                                         struct rk_stream *stream, void *scratch)
{
    bool is_cancelled = hooks && hooks->is_cancelled && hooks->is_cancelled(hooks->user);
    int32_t first = is_cancelled ? 0 : 1;

    if (rk_comm_group_size(group) > 1)
        RK_TRY(find_first(group, stream, scratch, is_cancelled, &first));
    return first < rk_comm_group_size(group) ? RK_FAIL(RK_CANCELLED, "cancelled") : NULL;
}

struct rk_status *rk_model_check_cancel(struct rk_model *model, const struct rk_engine_hooks *hooks,
                                        rk_mesh_group_kind_t kind)
{
    const struct rk_model_core *core = model->core;

    return rk_engine_check_cancel(hooks, rk_mesh_comms_group(core->mesh, kind), core->stream, core->scratch);
}
