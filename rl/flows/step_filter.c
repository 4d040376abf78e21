/* Groups without signal (Yu et al., "DAPO", arXiv:2503.14476, "dynamic sampling"): responses to a prompt that
 * do not differ in algorithm.filter_groups.metric have no advantage. Such groups are evicted, and generation
 * continues until the batch is full; as in verl an evicted group is replaced by two prompts, and a
 * generation takes at most max_inflight_gen_batches batches of them. With data.gen_batch_size every
 * generation has that many prompts, as in DAPO's recipe. The oldest groups form the batch. */
#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_log.h"
#include "base/rk_str.h"
#include "rl/flows/steps_internal.h"

#define FILTER_GROUPS  "algorithm.filter_groups."
#define EVICTED_CREDIT 2 /* prompts for an evicted group */
#define VALUES_MAX     8 /* in the line about evicted groups */

/* One generation, without its evicted groups. */
struct part {
    int64_t num_groups;
    const struct rk_dataset_row **prompts; /* [num_groups] */
    struct rk_batch *batch;
    struct rk_flow_scores scores;
};

struct filter {
    struct rk_flow_context *ctx;
    const char *metric;
    RK_ARRAY(struct part) parts;
    int64_t num_taken, num_kept, num_evicted; /* prompts; groups */
    int64_t credit;                           /* prompts that may still be generated */
    struct {
        double value; /* of all responses of a group */
        int64_t num_groups;
    } evicted[VALUES_MAX];
    int64_t num_values;
};

/* --- the rule --- */

bool rk_filter_value(double *out, const struct rk_reward_result *result, const char *metric)
{
    const struct rk_json *value = result->extra ? rk_json_find(result->extra, metric) : NULL;

    *out = rk_json_as_real(value, NAN);
    if (!value && (strcmp(metric, "score") == 0 || strcmp(metric, "reward") == 0 ||
                   strcmp(metric, "seq_reward") == 0 || (!result->extra && strcmp(metric, "acc") == 0)))
        *out = result->score;
    return isfinite(*out);
}

bool rk_filter_keeps(const double *values, int64_t count)
{
    double first = NAN;

    for (int64_t i = 0; i < count; i++) {
        if (isfinite(first) && isfinite(values[i]) && values[i] != first)
            return true;
        first = isfinite(first) ? first : values[i];
    }
    return count == 1;
}

/* Groups beyond VALUES_MAX values are only counted in num_evicted. */
static void count_evicted(struct filter *filter, double value)
{
    int64_t i = 0;

    while (i < filter->num_values && filter->evicted[i].value != value)
        i++;
    if (i == VALUES_MAX || !isfinite(value))
        return;
    filter->evicted[i].value = value;
    filter->evicted[i].num_groups++;
    filter->num_values = RK_MAX(filter->num_values, i + 1);
}

static struct rk_status *find_kept(bool *is_kept, struct filter *filter, const struct rk_flow_scores *scores)
{
    int64_t n = filter->ctx->num_samples;
    double *values = rk_flow_scratch(filter->ctx, (size_t)n, sizeof(*values));

    for (int64_t group = 0; group < scores->num_rows / n; group++) {
        for (int64_t i = 0; i < n; i++) {
            const struct rk_reward_result *result = &scores->results[group * n + i];

            values[i] = NAN;
            if (rk_flow_has_score(result) && !rk_filter_value(&values[i], result, filter->metric))
                return RK_FAIL(RK_INVALID_ARGUMENT,
                               FILTER_GROUPS
                               "metric=%s: the reward of response %lld to a prompt of '%s' has no number of "
                               "this name",
                               filter->metric, (long long)i, scores->items[group * n + i].data_source);
        }
        is_kept[group] = rk_filter_keeps(values, n);
        if (!is_kept[group])
            count_evicted(filter, values[0]);
    }
    return NULL;
}

/* --- a generation --- */

/* In the order of the epochs, without gaps. */
static const struct rk_dataset_row *next_prompt(struct rk_flow_context *ctx)
{
    struct rk_run_position *at = &ctx->position;
    const struct rk_dataset_row *row =
        rk_dataset_at(rk_flow_prompt_inputs(ctx->inputs)->train, at->epoch, at->next_row);

    at->next_row++;
    if (at->next_row == at->num_rows) {
        at->epoch++;
        at->next_row = 0;
    }
    return row;
}

/* Keeps the groups that are marked. */
static struct rk_status *evict(struct part *part, const struct rk_flow_context *ctx, const bool *is_kept)
{
    int64_t n = ctx->num_samples, num_rows = 0, num_groups = 0;
    struct rk_flow_scores *scores = &part->scores;
    bool *is_row_kept = rk_calloc((size_t)scores->num_rows + 1, sizeof(*is_row_kept));
    struct rk_batch *kept = NULL;
    struct rk_status *st;

    for (int64_t row = 0; row < scores->num_rows; row++) {
        is_row_kept[row] = is_kept[row / n];
        if (!is_row_kept[row]) {
            rk_reward_results_fini(&scores->results[row], 1);
            continue;
        }
        if (row % n == 0)
            part->prompts[num_groups++] = part->prompts[row / n];
        scores->items[num_rows] = scores->items[row];
        scores->lengths[num_rows] = scores->lengths[row];
        scores->results[num_rows++] = scores->results[row];
    }
    scores->num_rows = num_rows;
    part->num_groups = num_groups;
    st = rk_batch_select_mask(&kept, part->batch, is_row_kept);
    rk_free(is_row_kept);
    rk_batch_destroy(part->batch);
    part->batch = kept;
    return st;
}

/* Generates and scores responses to the next prompts. */
static struct rk_status *generate_part(struct filter *filter, int64_t num_prompts)
{
    struct rk_flow_context *ctx = filter->ctx;
    const struct rk_dataset_row **prompts = rk_flow_scratch(ctx, (size_t)num_prompts, sizeof(*prompts));
    const struct rk_dataset_row **rows =
        rk_flow_scratch(ctx, (size_t)(num_prompts * ctx->num_samples), sizeof(*rows));
    bool *is_kept = rk_flow_scratch(ctx, (size_t)num_prompts, sizeof(*is_kept));
    struct part *part;

    for (int64_t i = 0; i < num_prompts; i++)
        prompts[i] = next_prompt(ctx);
    for (int64_t row = 0; row < num_prompts * ctx->num_samples; row++)
        rows[row] = prompts[row / ctx->num_samples];
    rk_array_append(&filter->parts, (struct part){.num_groups = num_prompts, .prompts = prompts});
    part = &filter->parts.items[filter->parts.count - 1];
    RK_TRY(rk_flow_answer(&part->batch, ctx, prompts, num_prompts, ctx->position.next_random_stream));
    ctx->position.next_random_stream += num_prompts * ctx->num_samples;
    RK_TRY(rk_flow_score(&part->scores, ctx, part->batch, rows));
    RK_TRY(find_kept(is_kept, filter, &part->scores));
    RK_TRY(evict(part, ctx, is_kept));
    filter->num_taken += num_prompts;
    filter->num_kept += part->num_groups;
    filter->num_evicted += num_prompts - part->num_groups;
    filter->credit += EVICTED_CREDIT * (num_prompts - part->num_groups) - num_prompts;
    return NULL;
}

/* --- until the batch is full --- */

static struct rk_status *check_bound(const struct filter *filter)
{
    const struct rk_flow_context *ctx = filter->ctx;
    int64_t most = rk_config_int(ctx->job, FILTER_GROUPS "max_num_gen_batches");
    bool is_over = most > 0 ? filter->parts.count >= most : filter->num_taken >= ctx->position.num_rows;

    if (!is_over)
        return NULL;
    return RK_FAIL(RK_ABORTED,
                   "%lld generations of %lld prompts gave %lld groups whose responses differ in %s, "
                   "expected data.train_batch_size=%lld; " FILTER_GROUPS
                   "max_num_gen_batches=%lld bounds them (0: every prompt of the data once)",
                   (long long)filter->parts.count, (long long)filter->num_taken, (long long)filter->num_kept,
                   filter->metric, (long long)ctx->num_prompts, (long long)most);
}

static struct rk_status *generate_parts(struct filter *filter)
{
    const struct rk_flow_context *ctx = filter->ctx;
    int64_t limit = rk_config_int(ctx->job, FILTER_GROUPS "max_inflight_gen_batches") * ctx->num_prompts;
    int64_t size = rk_job_int_or(ctx->job, "data.gen_batch_size", 0);

    filter->credit = ctx->num_prompts;
    RK_TRY(generate_part(filter, size > 0 ? size : ctx->num_prompts));
    while (filter->num_kept < ctx->num_prompts) {
        RK_TRY(check_bound(filter));
        RK_TRY(generate_part(filter, size > 0 ? size : RK_MIN(filter->credit, limit)));
    }
    return NULL;
}

/* --- the batch --- */

/* Moves the scores of the oldest groups into the context. */
static void take_scores(struct filter *filter)
{
    struct rk_flow_context *ctx = filter->ctx;
    struct rk_prompt_state *state = rk_flow_prompt_state(ctx);
    struct rk_flow_scores *out = &state->scores;
    int64_t num_groups = 0;

    state->rows = rk_flow_scratch(ctx, (size_t)ctx->num_prompts, sizeof(*state->rows));
    out->items = rk_flow_scratch(ctx, (size_t)ctx->num_rows, sizeof(*out->items));
    out->lengths = rk_flow_scratch(ctx, (size_t)ctx->num_rows, sizeof(*out->lengths));
    out->results = rk_flow_scratch(ctx, (size_t)ctx->num_rows, sizeof(*out->results));
    for (int64_t i = 0; i < filter->parts.count; i++) {
        struct part *part = &filter->parts.items[i];
        struct rk_flow_scores *scores = &part->scores;

        for (int64_t row = 0; row < scores->num_rows && out->num_rows < ctx->num_rows; row++) {
            if (row % ctx->num_samples == 0)
                state->rows[num_groups++] = part->prompts[row / ctx->num_samples];
            out->items[out->num_rows] = scores->items[row];
            out->lengths[out->num_rows] = scores->lengths[row];
            out->results[out->num_rows++] = scores->results[row];
            scores->results[row] = (struct rk_reward_result){0};
        }
    }
}

static struct rk_status *take_batch(struct filter *filter)
{
    static const char *const no_meta[] = {NULL};
    struct rk_flow_context *ctx = filter->ctx;
    const struct rk_batch **batches = rk_flow_scratch(ctx, (size_t)filter->parts.count, sizeof(*batches));
    struct rk_batch *all = NULL, *oldest = NULL;
    struct rk_status *st;

    for (int64_t i = 0; i < filter->parts.count; i++)
        batches[i] = filter->parts.items[i].batch;
    st = rk_batch_concat(&all, batches, filter->parts.count);
    if (!st)
        st = rk_batch_slice(&oldest, all, 0, ctx->num_rows, 1);
    if (!st)
        st = rk_batch_select(&ctx->batch, oldest, NULL, no_meta);
    rk_batch_destroy(oldest);
    rk_batch_destroy(all);
    return st;
}

static void tell(const struct filter *filter)
{
    struct rk_flow_context *ctx = filter->ctx;
    struct rk_str values = {0};

    for (int64_t i = 0; i < filter->num_values; i++)
        rk_str_appendf(&values, " %s=%g:%lld", filter->metric, filter->evicted[i].value,
                       (long long)filter->evicted[i].num_groups);
    RK_INFO("step=%lld generations=%lld evicted_groups=%lld%s", (long long)ctx->step,
            (long long)filter->parts.count, (long long)filter->num_evicted, rk_str_text(&values));
    rk_str_fini(&values);
    rk_json_set(ctx->metrics, "training/filter_groups/evicted_samples", rk_json_new_int(filter->num_evicted));
    rk_json_set(ctx->metrics, "training/filter_groups/discarded_surplus_samples",
                rk_json_new_int(filter->num_kept - ctx->num_prompts));
    rk_json_set(ctx->metrics, "train/num_gen_batches", rk_json_new_int(filter->parts.count));
}

static struct rk_status *run(struct rk_flow_context *ctx)
{
    struct filter filter = {.ctx = ctx, .metric = rk_config_string(ctx->job, FILTER_GROUPS "metric")};
    struct rk_status *st = generate_parts(&filter);

    if (!st)
        st = take_batch(&filter);
    if (!st) {
        take_scores(&filter);
        tell(&filter);
        st = rk_flow_add_identity(ctx);
    }
    for (int64_t i = 0; i < filter.parts.count; i++) {
        rk_batch_destroy(filter.parts.items[i].batch);
        rk_flow_scores_fini(&filter.parts.items[i].scores);
    }
    rk_array_fini(&filter.parts);
    return st;
}

const struct rk_flow_step rk_step_generate_filtered = {"generate", "gen", rk_flow_filters_groups, run};
