#include "worker/methods/checkpoint_internal.h"

struct rk_status *rk_checkpoint_read_contents(const struct rk_method_call *call, uint32_t *out)
{
    const struct rk_json *names = rk_json_find(call->job->options, "contents");

    *out = 0;
    return rk_json_is_null(names) ? NULL : rk_checkpoint_contents_read(out, names);
}

struct rk_json *rk_checkpoint_format_contents(uint32_t contents)
{
    struct rk_json *names = rk_json_new_array();

    for (int32_t i = 0; i < RK_CHECKPOINT_CONTENTS_COUNT; i++) {
        if (contents >> i & 1)
            rk_json_append(names, rk_json_new_string(rk_checkpoint_content_name(i)));
    }
    return names;
}

struct rk_status *rk_checkpoint_put_report(struct rk_method_call *call,
                                           const struct rk_checkpoint_report *report)
{
    struct rk_batch *batch;

    RK_TRY(rk_batch_create(&call->job->output, 0));
    batch = call->job->output;
    rk_batch_set_meta(batch, "state", rk_json_new_string(rk_checkpoint_state_name(report->state)));
    if (!report->part_dir)
        return NULL;
    rk_batch_set_meta(batch, "path", rk_json_new_string(report->part_dir));
    rk_batch_set_meta(batch, "global_step", rk_json_new_int(report->global_step));
    rk_batch_set_meta(batch, "bytes", rk_json_new_int((int64_t)report->bytes));
    rk_batch_set_meta(batch, "copy_seconds", rk_json_new_real(report->copy_seconds));
    rk_batch_set_meta(batch, "seconds", rk_json_new_real(report->seconds));
    if (report->state == RK_CHECKPOINT_DONE) {
        call->job->checkpoint_bytes = report->bytes;
        call->job->checkpoint_seconds = report->seconds;
    }
    return NULL;
}
