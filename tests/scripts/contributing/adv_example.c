/* example: every counted token of a response has half of the sum of its rewards as advantage.
 *
 * A template of CONTRIBUTING.md (tests/scripts/test_contributing.py). */
#include "rl/algo/algo_internal.h"

static struct rk_status *compute(const struct rk_adv_out *out, const struct rk_adv_in *in)
{
    struct rk_adv_rows rows;

    rk_adv_rows_init(&rows, in);
    for (int64_t i = 0; i < rows.num_rows; i++)
        rows.scores[i] *= 0.5;
    rk_adv_rows_spread(out, in, &rows);
    rk_adv_rows_fini(&rows);
    return NULL;
}

const struct rk_adv_ops rk_adv_example = {
    .name = "example",
    .compute = compute,
};
