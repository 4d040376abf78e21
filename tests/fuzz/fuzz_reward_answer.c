/* Goal: every reply of a reward program or server is rejected or gives a consistent result, and every hello
 * is accepted or rejected. */
#include "tests/fuzz/fuzz.h"

#include <math.h>

#include "base/rk_assert.h"
#include "rl/rewards/wire_internal.h"

static void check_extra(const struct rk_json *extra)
{
    RK_ASSERT(rk_json_count(extra) > 0);
    RK_ASSERT(rk_json_count(extra) <= RK_REWARD_EXTRAS_MAX);
    for (void *it = rk_json_iter(extra); it; it = rk_json_iter_next(extra, it)) {
        rk_json_type_t type = rk_json_type(rk_json_iter_value(it));

        RK_ASSERT(type == RK_JSON_REAL || type == RK_JSON_STRING);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const char *line = (const char *)data;
    struct rk_reward_result result;
    struct rk_status *st;
    int64_t id = -1;

    st = rk_reward_wire_parse_answer(&id, &result, line, bytes);
    if (!st) {
        RK_ASSERT(id >= 0);
        RK_ASSERT(result.outcome < RK_REWARD_OUTCOME_COUNT);
        RK_ASSERT(isfinite(result.score));
        RK_ASSERT((result.outcome == RK_REWARD_SCORED) == (result.message == NULL));
        if (result.extra)
            check_extra(result.extra);
    }
    rk_status_free(st);
    rk_reward_results_fini(&result, 1);
    rk_status_free(rk_reward_wire_check_hello(line, bytes));
    return 0;
}
