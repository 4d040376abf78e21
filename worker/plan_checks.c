/* Checks of a call's micro-batch plan against its rows, the pipeline schedule and the planned memory. */
#include "worker/worker_internal.h"

#include "base/rk_alloc.h"
#include "base/layout/rk_pipeline.h"
#include "dispatch/rk_plan.h"

#define bad_field(...) RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", __VA_ARGS__)

const struct rk_micro_batch *rk_method_call_micro_batch(const struct rk_method_call *call,
                                                        const struct rk_mini_batch *mini, int32_t i)
{
    struct rk_mesh_coords coords;
    int64_t entry;

    RK_ASSERT(rk_mesh_find_coords(call->role->mesh, call->worker->rank, &coords));
    entry = (int64_t)coords.axis[RK_AXIS_DP] * mini->num_micro + i;
    RK_ASSERT(entry < mini->num_entries);
    return &mini->micro[entry];
}

static int64_t count_tokens(const struct rk_rows *rows, const struct rk_micro_batch *micro)
{
    int64_t count = 0;

    for (int64_t i = 0; i < micro->num_rows; i++)
        for (int64_t c = 0; c < rows->seq_columns; c++)
            count += rows->attention_mask[micro->rows[i] * rows->seq_columns + c];
    return count;
}

int64_t rk_method_call_count_tokens(const struct rk_method_call *call, const struct rk_rows *rows,
                                    const struct rk_mini_batch *mini, int32_t i)
{
    return count_tokens(rows, rk_method_call_micro_batch(call, mini, i));
}

int64_t rk_method_call_max_tokens(const struct rk_method_call *call, const struct rk_rows *rows)
{
    const struct rk_plan *plan = &call->job->plan;
    int64_t most = 0;

    for (int64_t m = 0; m < plan->num_mini; m++)
        for (int32_t i = 0; i < plan->mini[m].num_micro; i++)
            most = RK_MAX(most, rk_method_call_count_tokens(call, rows, &plan->mini[m], i));
    return most;
}

/* A pass without planned memory could run out of memory after its begin, which would end the world. */
static struct rk_status *check_tokens(const struct rk_method_call *call, const struct rk_rows *rows,
                                      const char *option, int64_t limit)
{
    const struct rk_plan *plan = &call->job->plan;

    for (int64_t m = 0; m < plan->num_mini; m++) {
        for (int32_t i = 0; i < plan->mini[m].num_micro; i++) {
            const struct rk_micro_batch *micro = rk_method_call_micro_batch(call, &plan->mini[m], i);
            int64_t num_tokens = count_tokens(rows, micro);

            if (num_tokens <= limit)
                continue;
            if (micro->num_rows == 1)
                return bad_field("row %u has %lld tokens: more than %s of init_model, which must hold "
                                 "the longest sequence",
                                 micro->rows[0], (long long)num_tokens, option);
            return bad_field("mini-batch %lld, micro-batch %d: %lld tokens are more than %s of init_model",
                             (long long)m, i, (long long)num_tokens, option);
        }
    }
    return NULL;
}

/* A stage would wait without end for a micro-batch that another stage refuses. */
static struct rk_status *check_schedule(const struct rk_method_call *call, bool trains)
{
    const struct rk_plan *plan = &call->job->plan;
    struct rk_pipeline_schedule schedule = {
        .pp = rk_mesh_axis_size(call->role->mesh, RK_AXIS_PP),
        .vpp = call->role->layout.vpp,
        .forward_only = !trains,
    };

    for (int64_t m = 0; m < plan->num_mini; m++) {
        struct rk_status *st, *refusal;

        schedule.num_micro_batches = plan->mini[m].num_micro;
        st = rk_pipeline_schedule_check(&schedule);
        if (!st)
            continue;
        refusal = bad_field("mini-batch %lld: %s", (long long)m, rk_status_message(st));
        rk_status_free(st);
        return refusal;
    }
    return NULL;
}

struct rk_status *rk_method_call_check_plan(const struct rk_method_call *call, const struct rk_rows *rows,
                                            bool trains)
{
    const struct rk_memory_limits *limits = &call->role->limits;
    int64_t limit = trains ? limits->train_tokens : limits->log_prob_tokens;
    int32_t cp = rk_mesh_axis_size(call->role->mesh, RK_AXIS_CP);
    struct rk_status *st;
    char *option;

    RK_TRY(rk_plan_check(&call->job->plan, rows->num_rows, rk_mesh_axis_size(call->role->mesh, RK_AXIS_DP)));
    RK_TRY(check_schedule(call, trains));
    if (limit == 0)
        return NULL;
    option = rk_format("%s=%lld", trains ? "ppo_max_token_len_per_gpu" : "log_prob_max_token_len_per_gpu",
                       (long long)(limit / cp));
    if (cp > 1) { /* the ranks share a micro-batch */
        char *of_one = option;

        option = rk_format("%s x cp=%d", of_one, cp);
        rk_free(of_one);
    }
    st = check_tokens(call, rows, option, limit);
    rk_free(option);
    return st;
}

struct rk_status *rk_method_call_check_num_ids(const struct rk_method_call *call, int64_t num_ids,
                                               bool trains)
{
    const struct rk_memory_limits *limits = &call->role->limits;
    int64_t vocab_size = rk_model_get_config(call->role->model)->vocab_size;
    int64_t largest = RK_MIN(vocab_size, RK_DISTILL_TOPK_MAX);

    if (num_ids < 1 || num_ids > largest)
        return bad_field("topk=%lld: expected 1 to %lld, the model's vocabulary has %lld ids",
                         (long long)num_ids, (long long)largest, (long long)vocab_size);
    if ((trains ? limits->train_tokens : limits->log_prob_tokens) == 0 || num_ids <= limits->num_ids)
        return NULL;
    return bad_field("topk=%lld: more than topk=%lld of init_model", (long long)num_ids,
                     (long long)limits->num_ids);
}

/* Counts of this rank's replica: {tokens, sequences} of each mini-batch that the loss covers, and rows. */
static void count_labels(const struct rk_method_call *call, const struct rk_rows *rows, double (*counts)[3])
{
    const struct rk_plan *plan = &call->job->plan;

    for (int64_t m = 0; m < plan->num_mini; m++) {
        for (int32_t i = 0; i < plan->mini[m].num_micro; i++) {
            const struct rk_micro_batch *micro = rk_method_call_micro_batch(call, &plan->mini[m], i);

            for (int64_t r = 0; r < micro->num_rows; r++) {
                double num_tokens = 0.0;

                for (int64_t j = 0; j < rows->num_responses; j++)
                    num_tokens += rows->label_mask[micro->rows[r] * rows->label_stride + j] != 0;
                counts[m][0] += num_tokens;
                counts[m][1] += num_tokens > 0.0;
                counts[m][2] += 1.0;
            }
        }
    }
}

/* A mini-batch without counted tokens has denominators of 1. */
static struct rk_status *check_counts(const struct rk_plan *plan, double (*const counts)[3])
{
    for (int64_t m = 0; m < plan->num_mini; m++) {
        const struct rk_mini_batch *mini = &plan->mini[m];
        double num_sequences = (double)mini->num_sequences;

        if ((double)mini->num_tokens != RK_MAX(counts[m][0], 1.0))
            return bad_field("plan: mini-batch %lld has num_tokens=%llu, the masks of its rows mark %.0f",
                             (long long)m, (unsigned long long)mini->num_tokens, counts[m][0]);
        if (num_sequences < RK_MAX(counts[m][1], 1.0) || num_sequences > RK_MAX(counts[m][2], 1.0))
            return bad_field("plan: mini-batch %lld has num_sequences=%llu, expected %.0f (the rows that "
                             "have a marked token) to %.0f (its rows)",
                             (long long)m, (unsigned long long)mini->num_sequences, RK_MAX(counts[m][1], 1.0),
                             counts[m][2]);
    }
    return NULL;
}

struct rk_status *rk_method_call_check_denominators(struct rk_method_call *call, const struct rk_rows *rows,
                                                    bool *is_empty)
{
    const struct rk_plan *plan = &call->job->plan;
    double(*counts)[3] = rk_calloc((size_t)plan->num_mini, sizeof(*counts));
    struct rk_status *st;

    count_labels(call, rows, counts);
    st = rk_engine_sum(rk_mesh_comms_group(call->role->comms, RK_GROUP_DP), call->worker->stream,
                       call->worker->agree_scratch, counts[0], plan->num_mini * 3);
    if (!st)
        st = check_counts(plan, counts);
    for (int64_t m = 0; m < plan->num_mini; m++)
        is_empty[m] = counts[m][0] == 0.0;
    rk_free(counts);
    return st;
}
