#include "daemon/metrics/metrics_text_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/rk_assert.h"

static const struct {
    const char *name;
    rk_metric_type_t type;
    const char *help;
} rows[RK_METRIC_COUNT] = {
#define X(id, name_, type_, help_) [RK_METRIC_##id] = {(name_), RK_METRIC_##type_, (help_)},
    RK_METRIC_TABLE(X)
#undef X
};

static const char *const type_names[] = {
    [RK_METRIC_GAUGE] = "gauge", [RK_METRIC_COUNTER] = "counter", [RK_METRIC_HISTOGRAM] = "histogram"};

void rk_histogram_add(struct rk_histogram *histogram, const struct rk_histogram_bounds *bounds, double value)
{
    int i = 0;

    RK_ASSERT(bounds->num_bounds <= RK_HISTOGRAM_BUCKETS_MAX);
    while (i < bounds->num_bounds && value > bounds->bounds[i])
        i++;
    if (i < bounds->num_bounds)
        histogram->buckets[i]++;
    histogram->count++;
    histogram->sum += value;
}

static void begin(struct rk_metrics_text *text, rk_metric_id_t id)
{
    RK_ASSERT(id < RK_METRIC_COUNT);
    if (text->has_begun[id]) {
        RK_ASSERT(text->last == id); /* samples of a metric are consecutive */
        return;
    }
    text->has_begun[id] = true;
    text->last = id;
    rk_str_appendf(text->out, "# HELP %s %s\n# TYPE %s %s\n", rows[id].name, rows[id].help, rows[id].name,
                   type_names[rows[id].type]);
}

static void put_escaped(struct rk_str *out, const char *value)
{
    for (; *value; value++) {
        if (*value == '\n')
            rk_str_append(out, "\\n");
        else if (*value == '"' || *value == '\\')
            rk_str_appendf(out, "\\%c", *value);
        else
            rk_str_append_bytes(out, value, 1);
    }
}

/* NAME{labels, bound} and a space; `bound` is "le" of a bucket, or NULL. */
static void put_head(struct rk_metrics_text *text, rk_metric_id_t id, const char *suffix,
                     const struct rk_metric_label *labels, int num_labels, const char *bound)
{
    const char *separator = "{";

    rk_str_appendf(text->out, "%s%s", rows[id].name, suffix);
    for (int i = 0; i < num_labels; i++, separator = ",") {
        rk_str_appendf(text->out, "%s%s=\"", separator, labels[i].name);
        put_escaped(text->out, labels[i].value);
        rk_str_append(text->out, "\"");
    }
    if (bound)
        rk_str_appendf(text->out, "%sle=\"%s\"", separator, bound);
    rk_str_append(text->out, num_labels > 0 || bound ? "} " : " ");
}

static void put_real(struct rk_str *out, double value)
{
    if (isnan(value))
        rk_str_append(out, "NaN\n");
    else if (isinf(value))
        rk_str_append(out, value > 0 ? "+Inf\n" : "-Inf\n");
    else
        rk_str_appendf(out, "%.12g\n", value);
}

void rk_metrics_put_int(struct rk_metrics_text *text, rk_metric_id_t id, const struct rk_metric_label *labels,
                        int num_labels, uint64_t value)
{
    RK_ASSERT(rows[id].type != RK_METRIC_HISTOGRAM);
    begin(text, id);
    put_head(text, id, "", labels, num_labels, NULL);
    rk_str_appendf(text->out, "%" PRIu64 "\n", value);
}

void rk_metrics_put_real(struct rk_metrics_text *text, rk_metric_id_t id,
                         const struct rk_metric_label *labels, int num_labels, double value)
{
    RK_ASSERT(rows[id].type != RK_METRIC_HISTOGRAM);
    begin(text, id);
    put_head(text, id, "", labels, num_labels, NULL);
    put_real(text->out, value);
}

void rk_metrics_put_histogram(struct rk_metrics_text *text, rk_metric_id_t id,
                              const struct rk_metric_label *labels, int num_labels,
                              const struct rk_histogram *histogram, const struct rk_histogram_bounds *bounds)
{
    uint64_t below = 0;
    char bound[32];

    RK_ASSERT(rows[id].type == RK_METRIC_HISTOGRAM);
    begin(text, id);
    for (int i = 0; i < bounds->num_bounds; i++) {
        below += histogram->buckets[i];
        snprintf(bound, sizeof(bound), "%g", bounds->bounds[i]);
        put_head(text, id, "_bucket", labels, num_labels, bound);
        rk_str_appendf(text->out, "%" PRIu64 "\n", below);
    }
    put_head(text, id, "_bucket", labels, num_labels, "+Inf");
    rk_str_appendf(text->out, "%" PRIu64 "\n", histogram->count);
    put_head(text, id, "_sum", labels, num_labels, NULL);
    put_real(text->out, histogram->sum);
    put_head(text, id, "_count", labels, num_labels, NULL);
    rk_str_appendf(text->out, "%" PRIu64 "\n", histogram->count);
}
