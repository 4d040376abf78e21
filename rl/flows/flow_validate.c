/* Validation: responses to held-out prompts, their scores, and verl's numbers of them. Its random streams are
 * separate from those of training and are the same in every validation, so it does not affect the training
 * and two validations of one model give the same result. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_assert.h"
#include "rl/algo/validation.h"
#include "rl/flows/flow_dump_internal.h"
#include "rl/flows/steps_internal.h"
#include "rl/rk_job.h"

#define VAL_KWARGS    RK_JOB_ROLLOUT "val_kwargs."
#define FIRST_STREAM  (INT64_C(1) << 62) /* training counts from 0 */
#define VARIABLES_MAX 64
#define SOURCE        "unknown" /* of rows without data_source, as in verl */

/* The responses of one call of generate_sequences. */
struct part {
    int64_t first_prompt;
    struct rk_batch *batch; /* NULL unless it is dumped */
    struct rk_flow_scores scores;
};

struct validation {
    struct rk_flow_context *ctx;
    int64_t num_prompts, num_samples; /* n responses to each prompt, prompt by prompt */
    int64_t n;
    const struct rk_dataset_row **prompts; /* [num_prompts] */
    RK_ARRAY(struct part) parts;
    /* [num_samples], borrowed from the parts */
    const struct rk_reward_item **items;
    const struct rk_reward_result **results;
};

static void *scratch(const struct validation *v, int64_t count, size_t elem_bytes)
{
    return rk_flow_scratch(v->ctx, (size_t)count, elem_bytes);
}

static const char *dump_dir(const struct validation *v)
{
    return rk_config_string(v->ctx->job, "trainer.validation_data_dir");
}

/* --- responses --- */

static struct rk_json *sampling_options(const struct rk_config *job)
{
    static const char *const keys[] = {"temperature", "top_p", "top_k"};
    struct rk_json *options = rk_json_new_object();

    rk_job_copy_knobs(options, job, RK_JOB_KNOBS_SAMPLING);
    for (size_t i = 0; i < RK_ARRAY_LEN(keys); i++) {
        char *path = rk_format(VAL_KWARGS "%s", keys[i]);

        rk_job_copy_value(options, keys[i], job, path);
        rk_free(path);
    }
    rk_json_set(options, "do_sample", rk_json_new_bool(rk_config_real(job, VAL_KWARGS "temperature") > 0.0));
    return options;
}

/* Generates and scores the responses to prompts [first, first + count). */
static struct rk_status *run_part(struct validation *v, int64_t first, int64_t count)
{
    int64_t num_rows = count * v->n;
    const struct rk_dataset_row **rows = scratch(v, num_rows, sizeof(*rows));
    int64_t *streams = scratch(v, num_rows, sizeof(*streams));
    struct rk_flow_prompts prompts = {num_rows, rows, streams};
    /* The metrics of this generation would replace training's. */
    struct rk_json *dropped = rk_json_new_object();
    struct rk_json *sampling = sampling_options(v->ctx->job);
    struct part *part;
    struct rk_status *st;

    rk_flow_drop_routes(sampling, v->ctx);
    for (int64_t i = 0; i < num_rows; i++) {
        rows[i] = v->prompts[first + i / v->n];
        streams[i] = FIRST_STREAM + rows[i]->index * v->n + i % v->n;
    }
    rk_array_append(&v->parts, (struct part){.first_prompt = first});
    part = &v->parts.items[v->parts.count - 1];
    st = rk_flow_generate(&part->batch, v->ctx, &prompts, sampling, dropped);
    rk_json_free(dropped);
    if (!st)
        st = rk_flow_score(&part->scores, v->ctx, part->batch, rows);
    if (!dump_dir(v)) { /* the texts are enough */
        rk_batch_destroy(part->batch);
        part->batch = NULL;
    }
    return st;
}

static struct rk_status *run_parts(struct validation *v)
{
    int64_t count = rk_job_int_or(v->ctx->job, "data.val_batch_size", v->num_prompts);

    for (int64_t first = 0; first < v->num_prompts; first += count)
        RK_TRY(run_part(v, first, RK_MIN(count, v->num_prompts - first)));
    v->items = scratch(v, v->num_samples, sizeof(*v->items));
    v->results = scratch(v, v->num_samples, sizeof(*v->results));
    for (int64_t i = 0; i < v->parts.count; i++) {
        const struct part *part = &v->parts.items[i];

        for (int64_t row = 0; row < part->scores.num_rows; row++) {
            v->items[part->first_prompt * v->n + row] = &part->scores.items[row];
            v->results[part->first_prompt * v->n + row] = &part->scores.results[row];
        }
    }
    return NULL;
}

/* --- numbers --- */

/* Value of a sample's variable; NAN without one. For a scorer that returns only a score, it is also acc. */
static double value_of(const struct rk_reward_result *result, const char *name)
{
    const struct rk_json *value = result->extra ? rk_json_find(result->extra, name) : NULL;

    if (!rk_flow_has_score(result))
        return NAN;
    if (strcmp(name, "reward") == 0 || (!result->extra && strcmp(name, "acc") == 0))
        return result->score;
    if (value && rk_json_type(value) == RK_JSON_BOOL)
        return rk_json_as_bool(value, false);
    return rk_json_as_real(value, NAN);
}

static void add_name(const char **names, int64_t *count, const char *name)
{
    for (int64_t i = 0; i < *count; i++) {
        if (strcmp(names[i], name) == 0)
            return;
    }
    if (*count < VARIABLES_MAX)
        names[(*count)++] = name;
}

/* "reward", then the further values of scorers, in the order of their first occurrence. */
static int64_t find_names(const struct validation *v, const char *names[VARIABLES_MAX])
{
    int64_t count = 0;

    add_name(names, &count, "reward");
    for (int64_t i = 0; i < v->num_samples; i++) {
        const struct rk_json *extra = v->results[i]->extra;

        if (!extra)
            add_name(names, &count, "acc");
        for (void *it = extra ? rk_json_iter(extra) : NULL; it; it = rk_json_iter_next(extra, it)) {
            if (rk_json_type(rk_json_iter_value(it)) != RK_JSON_STRING)
                add_name(names, &count, rk_json_iter_key(it));
        }
    }
    return count;
}

/* The answers that vote; NULL when no scorer names one. */
static const char **find_preds(const struct validation *v)
{
    const char **preds = scratch(v, v->num_samples, sizeof(*preds));
    bool has_any = false;

    for (int64_t i = 0; i < v->num_samples; i++) {
        const struct rk_json *pred = v->results[i]->extra ? rk_json_find(v->results[i]->extra, "pred") : NULL;
        double number = rk_json_as_real(pred, NAN);

        preds[i] = rk_json_as_string(pred, NULL);
        if (isfinite(number)) {
            char *text = rk_format("%.17g", number);

            preds[i] = rk_arena_strdup(v->ctx->arena, text);
            rk_free(text);
        }
        has_any |= preds[i] != NULL;
    }
    return has_any ? preds : NULL;
}

static void measure(struct validation *v)
{
    const char *names[VARIABLES_MAX], **sources = scratch(v, v->num_prompts, sizeof(*sources));
    struct rk_val_variable variables[VARIABLES_MAX];
    int64_t *prompts = scratch(v, v->num_samples, sizeof(*prompts));
    struct rk_val_in in = {.num_prompts = v->num_prompts,
                           .num_samples = v->num_samples,
                           .data_sources = sources,
                           .prompts = prompts,
                           .preds = find_preds(v),
                           .num_variables = find_names(v, names),
                           .variables = variables};

    for (int64_t i = 0; i < v->num_prompts; i++)
        sources[i] = *v->prompts[i]->data_source ? v->prompts[i]->data_source : SOURCE;
    for (int64_t i = 0; i < v->num_samples; i++)
        prompts[i] = i / v->n;
    for (int64_t j = 0; j < in.num_variables; j++) {
        double *values = scratch(v, v->num_samples, sizeof(*values));

        for (int64_t i = 0; i < v->num_samples; i++)
            values[i] = value_of(v->results[i], names[j]);
        variables[j] = (struct rk_val_variable){names[j], values};
    }
    rk_val_metrics(v->ctx->metrics, &in);
}

/* --- samples for users --- */

struct shown {
    const char *input;
    int64_t sample;
};

/* By input; samples of one prompt stay in their order. */
static int compare_shown(const void *left, const void *right)
{
    const struct shown *a = left, *b = right;
    int order = strcmp(a->input, b->input);

    return order != 0 ? order : (a->sample > b->sample) - (a->sample < b->sample);
}

/* verl's choice: the first ones of a shuffle that is always the same. */
static void show(struct validation *v)
{
    int64_t count = RK_MIN(rk_config_int(v->ctx->job, "trainer.log_val_generations"), v->num_samples);
    struct shown *all = scratch(v, v->num_samples, sizeof(*all));
    int64_t *order = scratch(v, v->num_samples, sizeof(*order));
    struct rk_sample *items = scratch(v, RK_MAX(count, 1), sizeof(*items));
    struct rk_samples samples = {.tag = RK_SAMPLES_VAL, .count = count, .items = items};

    if (count == 0 || !v->ctx->sink.on_samples)
        return;
    for (int64_t i = 0; i < v->num_samples; i++)
        all[i] = (struct shown){v->items[i]->prompt, i};
    qsort(all, (size_t)v->num_samples, sizeof(*all), compare_shown);
    rk_val_shuffle(order, v->num_samples);
    for (int64_t i = 0; i < count; i++) {
        int64_t sample = all[order[i]].sample;

        items[i] = rk_flow_sample(v->ctx->arena, v->items[sample], v->results[sample]);
    }
    v->ctx->sink.on_samples(v->ctx->sink.user, v->ctx->step, &samples);
}

static struct rk_status *dump_part(struct rk_dump *dump, const struct validation *v, const struct part *part)
{
    struct rk_dump_row line = {.is_validation = true};
    struct rk_dump_columns columns;

    RK_TRY(rk_dump_find_columns(&columns, part->batch));
    for (int64_t row = 0; row < part->scores.num_rows; row++) {
        char *uid = rk_format("%lld_%lld_0", (long long)v->prompts[part->first_prompt + row / v->n]->index,
                              (long long)(row % v->n));
        struct rk_status *st;

        line.item = &part->scores.items[row];
        line.result = &part->scores.results[row];
        line.uid = uid;
        rk_dump_set_tokens(&line, &columns, row);
        st = rk_dump_append(dump, &line);
        rk_free(uid);
        RK_TRY(st);
    }
    return NULL;
}

static struct rk_status *dump_all(const struct validation *v)
{
    struct rk_status *st = NULL;
    struct rk_dump dump;

    if (!dump_dir(v))
        return NULL;
    RK_TRY_GOTO(st, rk_dump_open(&dump, dump_dir(v), v->ctx->step), out);
    for (int64_t i = 0; i < v->parts.count; i++)
        RK_TRY_GOTO(st, dump_part(&dump, v, &v->parts.items[i]), out);
    st = rk_dump_finish(&dump);
out:
    rk_dump_fini(&dump);
    return st ? RK_WRAP(st, "trainer.validation_data_dir") : NULL;
}

/* --- the whole --- */

bool rk_flow_validates(const struct rk_flow_context *ctx)
{
    int64_t freq = rk_config_int(ctx->job, "trainer.test_freq");
    bool each_epoch = rk_config_bool(ctx->job, "trainer.test_after_each_epoch");
    bool is_last = (freq > 0 || each_epoch) && ctx->step == ctx->total_steps;

    return !rk_config_is_null(ctx->job, "data.val_files") &&
           (is_last || (freq > 0 && ctx->step % freq == 0) ||
            (each_epoch && ctx->step % ctx->steps_per_epoch == 0));
}

static struct rk_status *validate(struct rk_flow_context *ctx)
{
    struct rk_dataset *prompts = rk_flow_prompt_inputs(ctx->inputs)->val;
    struct validation v = {.ctx = ctx, .n = rk_config_int(ctx->job, VAL_KWARGS "n")};
    struct rk_status *st;

    v.num_prompts = rk_dataset_num_rows(prompts);
    v.num_samples = v.num_prompts * v.n;
    v.prompts = scratch(&v, v.num_prompts, sizeof(*v.prompts));
    for (int64_t i = 0; i < v.num_prompts; i++)
        v.prompts[i] = rk_dataset_at(prompts, ctx->step, i);
    st = run_parts(&v);
    if (!st) {
        measure(&v);
        show(&v);
        st = dump_all(&v);
    }
    for (int64_t i = 0; i < v.parts.count; i++) {
        rk_batch_destroy(v.parts.items[i].batch);
        rk_flow_scores_fini(&v.parts.items[i].scores);
    }
    rk_array_fini(&v.parts);
    return st;
}

const struct rk_flow_step rk_step_validate = {"validate", "testing", rk_flow_validates, validate};
