/* The table of heads, and functions that they share. */
#include "engine/nn/nn.h"

#include <string.h>

#include "base/rk_assert.h"
#include "base/rk_str.h"

static const struct rk_head_ops *const heads[] = {
    &rk_head_lm,
    &rk_head_value,
    &rk_head_score,
};

const struct rk_head_ops *rk_head_find(const char *name)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(heads); i++) {
        if (strcmp(heads[i]->name, name) == 0)
            return heads[i];
    }
    return NULL;
}

const char *rk_head_output_name(rk_head_output_t output)
{
    static const char *const names[RK_HEAD_OUTPUT_COUNT] = {
        [RK_HEAD_LOG_PROBS] = "log_probs",
        [RK_HEAD_ENTROPY] = "entropy",
        [RK_HEAD_SUM_PI_SQUARED] = "sum_pi_squared",
        [RK_HEAD_VALUES] = "values",
    };

    RK_ASSERT(output < RK_HEAD_OUTPUT_COUNT);
    return names[output];
}

struct rk_status *rk_head_check_architecture(const struct rk_head_ops *ops, const struct rk_json *hf_config)
{
    const char *name = rk_json_as_string(rk_json_at(rk_json_find(hf_config, "architectures"), 0), NULL);
    struct rk_str expected = {0};
    struct rk_status *st;

    if (!name)
        return NULL;
    for (const char *const *end = ops->architectures; *end; end++) {
        if (rk_str_has_suffix(name, *end)) {
            rk_str_fini(&expected);
            return NULL;
        }
        rk_str_appendf(&expected, "%s...%s", expected.bytes ? " or " : "", *end);
    }
    st = RK_FAIL(RK_UNIMPLEMENTED, "config.json: architectures=[\"%.64s\"] is not implemented, expected %s",
                 name, rk_str_text(&expected));
    rk_str_fini(&expected);
    return st;
}

struct rk_status *rk_head_gather(const struct rk_pass *pass, rk_tensor_t hidden, struct rk_head_saved *saved)
{
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);

    RK_TRY(rk_sp_gather(pass, hidden, &hidden));
    RK_TRY(rk_gather_rows(pass->stream,
                          &(struct rk_rows_args){.out = saved->x, .x = hidden, .index = saved->index}));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}

/* dtokens = dx at the labelled positions and 0 elsewhere, for all tokens. */
static struct rk_status *scatter(const struct rk_pass *pass, const struct rk_head_saved *saved,
                                 rk_tensor_t dx, rk_tensor_t dtokens)
{
    RK_TRY(rk_stream_zero(pass->stream, dtokens.data, rk_tensor_bytes(dtokens)));
    return rk_scatter_rows(pass->stream,
                           &(struct rk_rows_args){.out = dtokens, .x = dx, .index = saved->index});
}

struct rk_status *rk_head_scatter(const struct rk_pass *pass, const struct rk_head_saved *saved,
                                  rk_tensor_t dx, rk_tensor_t dhidden)
{
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    rk_tensor_t dtokens;

    RK_TRY(rk_sp_begin_sum(pass, dhidden, &dtokens));
    RK_TRY(scatter(pass, saved, dx, dtokens));
    RK_TRY(rk_sp_keep(pass, dtokens, dhidden));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}

struct rk_status *rk_head_scatter_sum(const struct rk_pass *pass, const struct rk_head_saved *saved,
                                      rk_tensor_t dx, rk_tensor_t dhidden)
{
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    rk_tensor_t dtokens;

    if (!pass->splits_rows) { /* reduce only the labelled rows: they may be far fewer than the tokens */
        RK_TRY(rk_comm_all_reduce(pass->tp, pass->stream, dx, RK_REDUCE_SUM));
        return scatter(pass, saved, dx, dhidden);
    }
    RK_TRY(rk_sp_begin_sum(pass, dhidden, &dtokens));
    RK_TRY(scatter(pass, saved, dx, dtokens));
    RK_TRY(rk_sp_sum(pass, dtokens, dhidden, RK_REDUCE_SUM));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}
