#include "rl/algo/validation.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_str.h"

#define SEED       42
#define NUM_DRAWS  1000
#define NAME_BYTES 48

/* Indices of all draws of n out of N values: [NUM_DRAWS][n]. */
struct draws {
    int64_t num_values, subset;
    uint32_t *indices;
};

/* A metric of a variable, summed over prompts. */
struct total {
    char name[NAME_BYTES];
    double sum;
    int64_t count;
};

struct work {
    const struct rk_val_in *in;
    int64_t *begins;  /* [num_prompts + 1] into samples */
    int64_t *samples; /* [num_samples] prompt by prompt */
    RK_ARRAY(struct draws) draws;
    RK_ARRAY(struct total) totals; /* of the current variable and source */
    /* of the current prompt, num_samples elements each */
    double *values;
    int64_t *votes; /* numbers of the different preds */
    int64_t *counts;
    bool has_votes;
};

static const uint32_t *get_draws(struct work *work, int64_t num_values, int64_t subset)
{
    struct draws draws = {num_values, subset, NULL};
    struct rk_mt19937 mt;

    for (int64_t i = 0; i < work->draws.count; i++) {
        if (work->draws.items[i].num_values == num_values && work->draws.items[i].subset == subset)
            return work->draws.items[i].indices;
    }
    draws.indices = rk_calloc((size_t)(NUM_DRAWS * subset), sizeof(*draws.indices));
    rk_mt19937_init(&mt, SEED);
    for (int64_t i = 0; i < NUM_DRAWS * subset; i++)
        draws.indices[i] = rk_mt19937_up_to(&mt, (uint32_t)num_values - 1);
    rk_array_append(&work->draws, draws);
    return draws.indices;
}

static void add(struct work *work, const char *name, double value)
{
    for (int64_t i = 0; i < work->totals.count; i++) {
        struct total *total = &work->totals.items[i];

        if (strcmp(total->name, name) == 0) {
            total->sum += value;
            total->count++;
            return;
        }
    }
    rk_array_append(&work->totals, (struct total){.sum = value, .count = 1});
    snprintf(work->totals.items[work->totals.count - 1].name, NAME_BYTES, "%s", name);
}

static double mean_of(const double *values, int64_t count)
{
    double sum = 0.0;

    for (int64_t i = 0; i < count; i++)
        sum += values[i];
    return sum / (double)count;
}

static double std_of(const double *values, int64_t count)
{
    double mean = mean_of(values, count), sum = 0.0;

    for (int64_t i = 0; i < count; i++)
        sum += (values[i] - mean) * (values[i] - mean);
    return sqrt(sum / (double)count);
}

static double best_of(struct work *work, const uint32_t *draw, int64_t subset)
{
    double best = work->values[draw[0]];

    for (int64_t i = 1; i < subset; i++)
        best = fmax(best, work->values[draw[i]]);
    return best;
}

static double worst_of(struct work *work, const uint32_t *draw, int64_t subset)
{
    double worst = work->values[draw[0]];

    for (int64_t i = 1; i < subset; i++)
        worst = fmin(worst, work->values[draw[i]]);
    return worst;
}

/* The first of the drawn samples with the commonest vote; the first vote wins a tie. */
static double majority_of(struct work *work, const uint32_t *draw, int64_t subset)
{
    int64_t winner = 0;

    for (int64_t i = 0; i < subset; i++)
        work->counts[work->votes[draw[i]]] = 0;
    for (int64_t i = 0; i < subset; i++)
        work->counts[work->votes[draw[i]]]++;
    for (int64_t i = 1; i < subset; i++) {
        if (work->counts[work->votes[draw[i]]] > work->counts[work->votes[draw[winner]]])
            winner = i;
    }
    return work->values[draw[winner]];
}

static void add_draws(struct work *work, const char *what, int64_t num_values, int64_t subset,
                      double (*reduce)(struct work *work, const uint32_t *draw, int64_t subset))
{
    const uint32_t *indices = get_draws(work, num_values, subset);
    double results[NUM_DRAWS];
    char name[NAME_BYTES];

    for (int64_t i = 0; i < NUM_DRAWS; i++)
        results[i] = reduce(work, indices + i * subset, subset);
    snprintf(name, sizeof(name), "%s@%lld/mean", what, (long long)subset);
    add(work, name, mean_of(results, NUM_DRAWS));
    snprintf(name, sizeof(name), "%s@%lld/std", what, (long long)subset);
    add(work, name, std_of(results, NUM_DRAWS));
}

/* All metrics of the values of one prompt. */
static void add_prompt(struct work *work, int64_t num_values)
{
    char name[NAME_BYTES];

    snprintf(name, sizeof(name), "mean@%lld", (long long)num_values);
    add(work, name, mean_of(work->values, num_values));
    if (num_values == 1)
        return;
    snprintf(name, sizeof(name), "std@%lld", (long long)num_values);
    add(work, name, std_of(work->values, num_values));
    for (int64_t subset = 2;; subset *= 2) {
        int64_t size = RK_MIN(subset, num_values);

        add_draws(work, "best", num_values, size, best_of);
        add_draws(work, "worst", num_values, size, worst_of);
        if (work->has_votes)
            add_draws(work, "maj", num_values, size, majority_of);
        if (size == num_values)
            return;
    }
}

/* Votes count for a variable that every sample of the prompt has, when every sample votes. */
static void number_votes(struct work *work, const int64_t *samples, int64_t num_samples, int64_t num_values)
{
    work->has_votes = work->in->preds && num_samples == num_values;
    for (int64_t i = 0; i < num_samples && work->has_votes; i++) {
        const char *pred = work->in->preds[samples[i]];

        work->has_votes = pred != NULL;
        work->votes[i] = i;
        for (int64_t j = 0; pred && j < i; j++) {
            if (strcmp(work->in->preds[samples[j]], pred) == 0) {
                work->votes[i] = work->votes[j];
                break;
            }
        }
    }
}

static void add_variable_of_prompt(struct work *work, const struct rk_val_variable *variable, int64_t prompt)
{
    const int64_t *samples = work->samples + work->begins[prompt];
    int64_t num_samples = work->begins[prompt + 1] - work->begins[prompt], num_values = 0;

    for (int64_t i = 0; i < num_samples; i++) {
        if (!isnan(variable->values[samples[i]]))
            work->values[num_values++] = variable->values[samples[i]];
    }
    if (num_values == 0)
        return;
    number_votes(work, samples, num_samples, num_values);
    add_prompt(work, num_values);
}

static int64_t size_of(const char *metric)
{
    const char *at = strchr(metric, '@') + 1;
    int64_t size = 0;

    for (; *at >= '0' && *at <= '9'; at++)
        size = 10 * size + (*at - '0');
    return size;
}

static void put_variable(struct rk_json *metrics, const struct work *work, const char *source,
                         const char *variable, bool is_core)
{
    int64_t largest = 0;

    for (int64_t i = 0; i < work->totals.count; i++)
        largest = RK_MAX(largest, size_of(work->totals.items[i].name));
    for (int64_t i = 0; i < work->totals.count; i++) {
        const struct total *total = &work->totals.items[i];
        bool is_headline = rk_str_has_prefix(total->name, "mean") || rk_str_has_prefix(total->name, "maj") ||
                           rk_str_has_prefix(total->name, "best");
        char *path = rk_format(
            "%s/%s/%s/%s", is_core && is_headline && size_of(total->name) == largest ? "val-core" : "val-aux",
            source, variable, total->name);

        rk_json_set(metrics, path, rk_json_new_real(total->sum / (double)total->count));
        rk_free(path);
    }
}

/* acc, where a sample of the source has it. */
static const char *core_variable(const struct rk_val_in *in, const char *source)
{
    for (int64_t v = 0; v < in->num_variables; v++) {
        for (int64_t i = 0; strcmp(in->variables[v].name, "acc") == 0 && i < in->num_samples; i++) {
            if (strcmp(in->data_sources[in->prompts[i]], source) == 0 && !isnan(in->variables[v].values[i]))
                return "acc";
        }
    }
    return "reward";
}

static void put_source(struct rk_json *metrics, struct work *work, const char *source)
{
    const char *core = core_variable(work->in, source);

    for (int64_t v = 0; v < work->in->num_variables; v++) {
        const struct rk_val_variable *variable = &work->in->variables[v];

        work->totals.count = 0;
        for (int64_t prompt = 0; prompt < work->in->num_prompts; prompt++) {
            if (strcmp(work->in->data_sources[prompt], source) == 0)
                add_variable_of_prompt(work, variable, prompt);
        }
        put_variable(metrics, work, source, variable->name, strcmp(variable->name, core) == 0);
    }
}

/* The samples of each prompt in their order. */
static void group(struct work *work)
{
    const struct rk_val_in *in = work->in;
    int64_t *ends = rk_calloc((size_t)in->num_prompts + 1, sizeof(*ends));

    for (int64_t i = 0; i < in->num_samples; i++)
        work->begins[in->prompts[i] + 1]++;
    for (int64_t prompt = 0; prompt < in->num_prompts; prompt++) {
        work->begins[prompt + 1] += work->begins[prompt];
        ends[prompt] = work->begins[prompt];
    }
    for (int64_t i = 0; i < in->num_samples; i++)
        work->samples[ends[in->prompts[i]]++] = i;
    rk_free(ends);
}

static bool is_first_of_source(const struct rk_val_in *in, int64_t prompt)
{
    for (int64_t i = 0; i < prompt; i++) {
        if (strcmp(in->data_sources[i], in->data_sources[prompt]) == 0)
            return false;
    }
    return true;
}

void rk_val_metrics(struct rk_json *metrics, const struct rk_val_in *in)
{
    size_t count = (size_t)in->num_samples + 1;
    struct work work = {.in = in,
                        .begins = rk_calloc((size_t)in->num_prompts + 1, sizeof(*work.begins)),
                        .samples = rk_calloc(count, sizeof(*work.samples)),
                        .values = rk_calloc(count, sizeof(*work.values)),
                        .votes = rk_calloc(count, sizeof(*work.votes)),
                        .counts = rk_calloc(count, sizeof(*work.counts))};

    group(&work);
    for (int64_t prompt = 0; prompt < in->num_prompts; prompt++) {
        if (is_first_of_source(in, prompt))
            put_source(metrics, &work, in->data_sources[prompt]);
    }
    for (int64_t i = 0; i < work.draws.count; i++)
        rk_free(work.draws.items[i].indices);
    rk_array_fini(&work.draws);
    rk_array_fini(&work.totals);
    rk_free(work.begins);
    rk_free(work.samples);
    rk_free(work.values);
    rk_free(work.votes);
    rk_free(work.counts);
}

void rk_val_shuffle(int64_t *order, int64_t count)
{
    struct rk_mt19937 mt;

    rk_mt19937_init(&mt, SEED);
    for (int64_t i = 0; i < count; i++)
        order[i] = i;
    for (int64_t i = count - 1; i > 0; i--) {
        int64_t j = (int64_t)rk_mt19937_up_to(&mt, (uint32_t)i), swapped = order[i];

        order[i] = order[j];
        order[j] = swapped;
    }
}
