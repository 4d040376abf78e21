/* From the tokens of a batch to scored texts, and from a batch with missing scores to one that trains without
 * them. */
#include "rl/flows/steps_internal.h"

#include <stdatomic.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_assert.h"
#include "base/rk_log.h"
#include "base/rk_map.h"

/* Responses of a batch: ids[row * width], and marks of the real ones at mask[row * stride]. */
struct responses {
    const int64_t *ids, *mask;
    int64_t width, stride;
};

static bool is_interrupted(void *user)
{
    return rk_driver_is_interrupted(user);
}

static struct rk_status *find_responses(struct responses *out, const struct rk_batch *batch)
{
    int64_t num_rows = rk_batch_num_rows(batch), response_shape[2], attention_shape[2];
    const void *ids, *mask;

    RK_TRY(rk_batch_get_dense(batch, "responses", RK_DTYPE_I64, 2, response_shape, &ids));
    RK_TRY(rk_batch_get_dense(batch, "attention_mask", RK_DTYPE_I64, 2, attention_shape, &mask));
    if (attention_shape[1] < response_shape[1])
        return RK_FAIL(RK_INTERNAL, "attention_mask has %lld columns, fewer than the %lld of responses",
                       (long long)attention_shape[1], (long long)response_shape[1]);
    RK_ASSERT(response_shape[0] == num_rows);
    RK_ASSERT(attention_shape[0] == num_rows);
    out->ids = ids;
    out->width = response_shape[1];
    out->stride = attention_shape[1];
    out->mask = (const int64_t *)mask + (out->stride - out->width);
    return NULL;
}

/* Decodes the real tokens of a row's response; returns their number. */
static int64_t decode(const struct rk_flow_context *ctx, const struct responses *responses, int64_t row,
                      int32_t *ids, struct rk_str *out)
{
    int64_t count = 0;

    for (int64_t i = 0; i < responses->width; i++) {
        if (responses->mask[row * responses->stride + i])
            ids[count++] = (int32_t)responses->ids[row * responses->width + i];
    }
    rk_str_clear(out);
    rk_tokenizer_decode(ctx->inputs->tokenizer, ids, count, true, out);
    return count;
}

static char *arena_text(struct rk_flow_context *ctx, const struct rk_str *text)
{
    char *copy = rk_flow_scratch(ctx, text->bytes + 1, 1);

    memcpy(copy, rk_str_text(text), text->bytes);
    return copy;
}

struct rk_reward_item rk_flow_reward_item(const struct rk_dataset_row *row)
{
    return (struct rk_reward_item){
        .data_source = row->data_source,
        .prompt = row->prompt,
        .prompt_bytes = row->prompt_bytes,
        .solution_str = "",
        .ground_truth = row->ground_truth,
        .ground_truth_json = row->ground_truth_json,
        .extra_info = row->extra_info,
        .columns = row->columns,
        .messages = row->messages,
    };
}

static void keep_ids(struct rk_reward_item *item, struct rk_flow_context *ctx, const int32_t *ids,
                     int64_t count)
{
    int32_t *copy = rk_flow_scratch(ctx, (size_t)RK_MAX(count, 1), sizeof(*copy));

    memcpy(copy, ids, (size_t)count * sizeof(*copy));
    item->completion_ids = copy;
    item->num_completion_ids = count;
}

static void make_items(struct rk_flow_scores *out, struct rk_flow_context *ctx,
                       const struct responses *responses, const struct rk_dataset_row *const *prompts)
{
    int32_t *ids = rk_flow_scratch(ctx, (size_t)responses->width, sizeof(*ids));
    struct rk_str text = {0};

    for (int64_t row = 0; row < out->num_rows; row++) {
        out->lengths[row] = decode(ctx, responses, row, ids, &text);
        out->items[row] = rk_flow_reward_item(prompts[row]);
        out->items[row].solution_str = arena_text(ctx, &text);
        out->items[row].solution_bytes = text.bytes;
        if (prompts[row]->columns)
            keep_ids(&out->items[row], ctx, ids, out->lengths[row]);
    }
    rk_str_fini(&text);
}

/* A function's score is in range; its sum with a model's score and a penalty may not be. */
static struct rk_status *check_range(const struct rk_flow_scores *scores)
{
    for (int64_t row = 0; row < scores->num_rows; row++) {
        if (!rk_reward_is_in_range(scores->results[row].score))
            return RK_FAIL_REASON(
                RK_ABORTED, "NON_FINITE",
                "the score of response %lld of the batch is %g, beyond the range of float32", (long long)row,
                scores->results[row].score);
    }
    return NULL;
}

struct rk_status *rk_flow_score(struct rk_flow_scores *out, struct rk_flow_context *ctx,
                                const struct rk_batch *batch, const struct rk_dataset_row *const *prompts)
{
    const struct rk_prompt_inputs *inputs = rk_flow_prompt_inputs(ctx->inputs);
    struct rk_reward_watch watch = {.is_cancelled = is_interrupted, .user = ctx->driver};
    int64_t num_rows = rk_batch_num_rows(batch);
    struct responses responses;

    *out = (struct rk_flow_scores){0};
    RK_TRY(find_responses(&responses, batch));
    out->items = rk_flow_scratch(ctx, (size_t)num_rows, sizeof(*out->items));
    out->lengths = rk_flow_scratch(ctx, (size_t)num_rows, sizeof(*out->lengths));
    out->results = rk_flow_scratch(ctx, (size_t)num_rows, sizeof(*out->results));
    out->num_rows = num_rows;
    make_items(out, ctx, &responses, prompts);
    if (inputs->reward)
        RK_TRY(rk_reward_score(inputs->reward, out->items, num_rows, out->results, &watch));
    if (inputs->reward_model.path)
        RK_TRY(rk_flow_add_rm_scores(out, ctx, batch, prompts));
    rk_overlong_apply(out, ctx->job);
    return check_range(out);
}

void rk_flow_scores_fini(struct rk_flow_scores *scores)
{
    rk_reward_results_fini(scores->results, scores->num_rows);
    *scores = (struct rk_flow_scores){0};
}

void rk_flow_keep_score(struct rk_reward_result *result)
{
    const char *name = result->extra ? "score" : "acc";

    if (!result->extra)
        result->extra = rk_json_new_object();
    if (!rk_json_find(result->extra, name))
        rk_json_set(result->extra, name, rk_json_new_real(result->score));
}

bool rk_flow_has_score(const struct rk_reward_result *result)
{
    return !result->is_dropped;
}

/* --- rows without a score --- */

/* Drops the single remaining row of a group that lost rows too, since it cannot be compared. Returns the
 * number of dropped groups. */
static int64_t drop_lone_rows(bool *is_dropped, int64_t num_rows, const int64_t *group_of, int64_t num_groups)
{
    int64_t *num_left = rk_calloc((size_t)num_groups, sizeof(*num_left));
    bool *has_lost = rk_calloc((size_t)num_groups, sizeof(*has_lost));
    int64_t num_gone = 0;

    for (int64_t row = 0; row < num_rows; row++) {
        num_left[group_of[row]] += !is_dropped[row];
        has_lost[group_of[row]] |= is_dropped[row];
    }
    for (int64_t row = 0; row < num_rows; row++)
        is_dropped[row] |= has_lost[group_of[row]] && num_left[group_of[row]] == 1;
    for (int64_t group = 0; group < num_groups; group++)
        num_gone += has_lost[group] && num_left[group] <= 1;
    rk_free(has_lost);
    rk_free(num_left);
    return num_gone;
}

struct rk_status *rk_flow_drop_rows(struct rk_batch *batch, const bool *is_dropped)
{
    int64_t shape[2];
    const void *old;
    int64_t *copy;
    void *mask;
    struct rk_status *st;

    RK_TRY(rk_batch_get_dense(batch, "response_mask", RK_DTYPE_I64, 2, shape, &old));
    copy = rk_calloc((size_t)(shape[0] * shape[1]), sizeof(*copy));
    for (int64_t i = 0; i < shape[0] * shape[1]; i++)
        copy[i] = is_dropped[i / shape[1]] ? 0 : ((const int64_t *)old)[i];
    rk_batch_remove(batch, "response_mask");
    st = rk_batch_add_dense(batch, "response_mask", RK_DTYPE_I64, 2, shape, &mask);
    if (!st)
        memcpy(mask, copy, (size_t)(shape[0] * shape[1]) * sizeof(*copy));
    rk_free(copy);
    return st;
}

struct rk_status *rk_flow_drop_unscored(struct rk_batch *batch, struct rk_json *metrics,
                                        const struct rk_flow_scores *scores, const int64_t *group_of,
                                        int64_t num_groups)
{
    bool *is_dropped = rk_calloc((size_t)scores->num_rows, sizeof(*is_dropped));
    int64_t num_gone = 0, num_dropped = 0;
    struct rk_status *st = NULL;

    for (int64_t row = 0; row < scores->num_rows; row++)
        is_dropped[row] = scores->results[row].is_dropped;
    if (group_of)
        num_gone = drop_lone_rows(is_dropped, scores->num_rows, group_of, num_groups);
    for (int64_t row = 0; row < scores->num_rows; row++)
        num_dropped += is_dropped[row];
    if (num_dropped > 0)
        st = rk_flow_drop_rows(batch, is_dropped);
    rk_flow_metric(metrics, "reward/dropped", (double)num_dropped);
    rk_flow_metric(metrics, "reward/dropped_groups", (double)num_gone);
    rk_free(is_dropped);
    return st;
}

/* --- metrics --- */

#define EXTRA_NAMES_MAX 256 /* of a batch; bounds the metrics of programs with many names */

struct extra {
    char *name;
    RK_ARRAY(double) values;
};

struct extras {
    struct rk_map *by_name;
    RK_ARRAY(struct extra *) list;
};

static void add_extra(struct extras *extras, const char *name, double value)
{
    struct extra *extra = rk_map_find(extras->by_name, name);

    if (!extra && extras->list.count >= EXTRA_NAMES_MAX)
        return;
    if (!extra) {
        extra = rk_calloc(1, sizeof(*extra));
        extra->name = rk_strdup(name);
        (void)rk_map_put(extras->by_name, name, extra);
        rk_array_append(&extras->list, extra);
    }
    rk_array_append(&extra->values, value);
}

/* reward_extra/NAME/mean, max, min of every additional number, over the rows that have it; with count
 * if some rows do not have it. */
static void extra_metrics(struct rk_json *metrics, const struct rk_flow_scores *scores)
{
    struct extras extras = {.by_name = rk_map_create()};

    for (int64_t row = 0; row < scores->num_rows; row++) {
        const struct rk_json *extra = scores->results[row].extra;

        for (void *it = extra ? rk_json_iter(extra) : NULL; it; it = rk_json_iter_next(extra, it)) {
            if (rk_json_type(rk_json_iter_value(it)) == RK_JSON_REAL)
                add_extra(&extras, rk_json_iter_key(it), rk_json_as_real(rk_json_iter_value(it), 0.0));
        }
    }
    for (int64_t i = 0; i < extras.list.count; i++) {
        struct extra *extra = extras.list.items[i];
        char *name = rk_format("reward_extra/%s", extra->name);
        char *count = rk_format("%s/count", name);

        rk_flow_metric_stats(metrics, name, extra->values.items, extra->values.count);
        if (extra->values.count < scores->num_rows)
            rk_flow_metric(metrics, count, (double)extra->values.count);
        rk_free(count);
        rk_free(name);
        rk_array_fini(&extra->values);
        rk_free(extra->name);
        rk_free(extra);
    }
    rk_array_fini(&extras.list);
    rk_map_destroy(extras.by_name);
}

void rk_flow_reward_metrics(struct rk_json *metrics, const struct rk_flow_scores *scores)
{
    static const struct {
        rk_reward_outcome_t outcome;
        const char *name;
    } rows[] = {
        {RK_REWARD_ERROR, "reward/errors"},
        {RK_REWARD_TIMEOUT, "reward/timeouts"},
        {RK_REWARD_CRASH, "reward/crashes"},
        {RK_REWARD_SKIPPED, "reward/skips"},
    };

    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        int64_t count = 0, first = -1;

        for (int64_t row = 0; row < scores->num_rows; row++) {
            if (scores->results[row].outcome != rows[i].outcome)
                continue;
            count++;
            first = first < 0 ? row : first;
        }
        rk_flow_metric(metrics, rows[i].name, (double)count);
        if (count > 0)
            RK_WARN("%s=%lld items=%lld first=%lld err=\"%s\"", rows[i].name, (long long)count,
                    (long long)scores->num_rows, (long long)first, scores->results[first].message);
    }
    extra_metrics(metrics, scores);
}
