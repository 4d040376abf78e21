/* wait_checkpoint: publishes a checkpoint that save_checkpoint with async began, when all ranks have written.
 * Meta of the result as of save_checkpoint; state "none" without a pending checkpoint. */
#include "worker/methods/checkpoint_internal.h"

struct rk_status *rk_m_wait_checkpoint(struct rk_method_call *call)
{
    bool waits = rk_json_as_bool(rk_json_find(call->job->options, "wait"), true);
    struct rk_checkpoint_report report;

    RK_TRY(rk_saver_wait(call->role->saver, waits, &call->hooks, &report));
    return rk_method_call_agree(call, rk_checkpoint_put_report(call, &report));
}
