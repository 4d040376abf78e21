/* Writes the Prometheus text format (version 0.0.4) from the table of metrics.def. Pure.
 *
 * The samples of a metric follow its HELP and TYPE, which are written before the first one. */
#ifndef RK_METRICS_TEXT_INTERNAL_H
#define RK_METRICS_TEXT_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_str.h"
#include "daemon/metrics/metrics.def"

typedef enum rk_metric_id {
#define X(id, name, type, help) RK_METRIC_##id,
    RK_METRIC_TABLE(X)
#undef X
        RK_METRIC_COUNT
} rk_metric_id_t;

typedef enum rk_metric_type { RK_METRIC_GAUGE, RK_METRIC_COUNTER, RK_METRIC_HISTOGRAM } rk_metric_type_t;

/* A text under construction. Zero-initialised; the caller owns `out`. */
struct rk_metrics_text {
    struct rk_str *out;
    bool has_begun[RK_METRIC_COUNT];
    rk_metric_id_t last; /* its samples are being written */
};

struct rk_metric_label {
    const char *name, *value; /* value: any text */
};

#define RK_HISTOGRAM_BUCKETS_MAX 16

/* Upper bounds of buckets in seconds, ascending; values above the last are counted only in the total. */
struct rk_histogram_bounds {
    int num_bounds;
    double bounds[RK_HISTOGRAM_BUCKETS_MAX];
};

struct rk_histogram {
    uint64_t buckets[RK_HISTOGRAM_BUCKETS_MAX]; /* not cumulative */
    uint64_t count;
    double sum;
};

void rk_histogram_add(struct rk_histogram *histogram, const struct rk_histogram_bounds *bounds, double value);

/* One sample; labels may be NULL. Asserts that the metric is not a histogram, and that its samples are
 * consecutive. */
void rk_metrics_put_int(struct rk_metrics_text *text, rk_metric_id_t id, const struct rk_metric_label *labels,
                        int num_labels, uint64_t value);
void rk_metrics_put_real(struct rk_metrics_text *text, rk_metric_id_t id,
                         const struct rk_metric_label *labels, int num_labels, double value);
/* All samples of a histogram. */
void rk_metrics_put_histogram(struct rk_metrics_text *text, rk_metric_id_t id,
                              const struct rk_metric_label *labels, int num_labels,
                              const struct rk_histogram *histogram, const struct rk_histogram_bounds *bounds);

#endif
