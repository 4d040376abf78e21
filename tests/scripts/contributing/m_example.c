/* example: the numbers from 0 to the option count - 1 in a column, and this rank in the result's meta.
 *
 * A template of CONTRIBUTING.md (tests/scripts/test_contributing.py). */
#include "worker/methods/methods.h"

struct rk_status *rk_m_example(struct rk_method_call *call)
{
    int64_t count = rk_json_as_int(rk_json_find(call->job->options, "count"), 0);
    int64_t *numbers;
    void *data;

    if (count < 1 || count > 1000)
        return RK_FAIL(RK_INVALID_ARGUMENT, "count: expected 1 to 1000, got %lld", (long long)count);
    RK_TRY(rk_batch_create(&call->job->output, count));
    RK_TRY(rk_batch_add_dense(call->job->output, "numbers", RK_DTYPE_I64, 1, &count, &data));
    numbers = data;
    for (int64_t i = 0; i < count; i++)
        numbers[i] = i;
    rk_batch_set_meta(call->job->output, "rank", rk_json_new_int(call->worker->rank));
    return NULL;
}
