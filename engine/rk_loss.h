/* Losses: functions of a head's outputs per token, computed on the host.
 *
 * A micro-batch has T packed tokens; arrays are f64 [T] in host memory. A loss is a weighted sum with global
 * denominators, L = sum_t weight[t] * l[t], so that it does not depend on layout or micro-batches. weight is
 * 0 where the mask is 0, and such entries are never read (selected, not multiplied: a NaN outside the mask
 * has no effect). A row of the loss table defines its configuration keys, the columns and outputs that it
 * reads, and its metrics; an objective is the sum of the rows that an update method's options select.
 * Formulas and references: each loss_<name>.c. */
#ifndef RK_LOSS_H
#define RK_LOSS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_json.h"
#include "base/config/rk_knobs.h"
#include "base/config/rk_losses.h"
#include "base/math/rk_loss_agg.h"
#include "base/rk_status.h"
#include "engine/rk_model.h"

RK_BEGIN_DECLS

/* Objective of an update. */
typedef enum rk_objective_kind {
    RK_OBJECTIVE_POLICY, /* one row by policy_loss.loss_mode, plus the terms that other keys enable */
    RK_OBJECTIVE_VALUE,  /* of a critic */
    RK_OBJECTIVE_SFT,    /* always token-mean */
    RK_OBJECTIVE_DPO,    /* of pairs of sequences */
    RK_OBJECTIVE_SUM,    /* always token-sum: one of the sums of forward_backward */
    RK_OBJECTIVE_COUNT
} rk_objective_kind_t;

typedef enum rk_loss_reduce {
    RK_LOSS_SUM,    /* over tokens, already divided by the global denominators */
    RK_LOSS_FIRST,  /* the same over the first pass over the rows only: later epochs do not count */
    RK_LOSS_MAX,    /* maximum over the tokens; no metric without tokens */
    RK_LOSS_MIN,    /* the same */
    RK_LOSS_CONFIG, /* a number in the configuration, at `offset` */
    RK_LOSS_COUNT,  /* number of tokens that the loss keeps; no metric. One row of an objective at most */
    RK_LOSS_KEPT,   /* as RK_LOSS_SUM, but a mean over the tokens that the loss keeps */
} rk_loss_reduce_t;

struct rk_loss_metric {
    const char *name; /* "pg_clipfrac": the update prefixes its role unless the name has a "/" */
    rk_loss_reduce_t reduce;
    size_t offset; /* of a double in the configuration */
};
/* The value of such a metric before the first token. */
double rk_loss_reduce_start(rk_loss_reduce_t reduce);
#define RK_LOSS_METRICS_MAX      28
#define RK_LOSS_CONFIG_BYTES_MAX 2048

/* Several ids per position, [num_tokens, num_ids]: columns of the batch, and the head's outputs for them
 * (struct rk_head_ids). */
struct rk_loss_ids {
    int64_t num_ids;                 /* 0: none */
    const int32_t *ids;              /* column teacher_topk_ids; below 0: none */
    const double *teacher_log_probs; /* column teacher_topk_log_probs */
    const double *log_probs;         /* of the ids under the model */
    const int32_t *top_ids;          /* the model's most likely ids */
};

struct rk_loss_in {
    int64_t num_tokens;
    int32_t num_seqs;
    const int32_t *cu_seqlens; /* [num_seqs + 1] */
    const uint8_t *mask;       /* 1: this position is in the loss mask */
    const double *weight;      /* rk_loss_weights of the objective's mode */
    /* Weights of mode token-mean, for metrics that are means over tokens, and of seq-mean-token-mean, for
     * losses that always use this mode. */
    const double *token_weight, *seq_weight;
    double num_sequences;                        /* of the whole mini-batch */
    rk_loss_agg_mode_t agg_mode;                 /* of weight */
    bool is_first_pass;                          /* over the rows: see RK_LOSS_FIRST */
    const double *outputs[RK_HEAD_OUTPUT_COUNT]; /* only outputs that the row requests */
    const double *columns[RK_LOSS_COLUMN_COUNT]; /* NULL: the call has none */
    struct rk_loss_ids ids;                      /* for a row that requests them */
};

struct rk_loss_out {
    /* d(sum weight * l)/d(output), added to; for the outputs that the row requests */
    double *grads[RK_HEAD_OUTPUT_COUNT];
    double *id_grads; /* the same with respect to ids.log_probs, [num_tokens, num_ids] */
    double *metrics;  /* [RK_LOSS_METRICS_MAX] by row of ops->metrics: added to, or the maximum or minimum so
                       * far */
};

/* What a loss or term computes. */
struct rk_loss_ops {
    uint32_t outputs; /* RK_HEAD_BIT: outputs read; differentiated unless listed by `measures` */
    /* Optional: number of ids per position that the row reads; NULL: none. */
    int64_t (*num_ids)(const void *config);
    const struct rk_loss_metric *metrics; /* the first is the loss itself, without its coefficient */
    int32_t num_metrics;
    /* Optional: factor of the row in the objective; NULL: 1. */
    double (*coefficient)(const void *config);
    /* Optional: whether the configuration defines metrics[i]. */
    bool (*has_metric)(const void *config, int32_t i);
    /* Keys of this row, read into config_bytes of configuration; num_knobs 0: none. */
    const struct rk_knob *knobs;
    int64_t num_knobs;
    size_t config_bytes;
    /* Optional; NULL: none. The outputs with respect to which its derivative is 0 in this configuration: it
     * reads them only for metrics. */
    uint32_t (*measures)(const void *config);
    /* Optional. Completes and checks the configuration. INVALID_ARGUMENT names key, value and expectation. */
    struct rk_status *(*check)(void *config);
    /* Optional; of a term. Whether this configuration adds it, beside the option of its row. */
    bool (*is_enabled)(const void *config);
    /* Only of an added term; NULL: false. Whether it replaces the loss and all other terms. */
    bool (*is_alone)(const void *config);
    /* Required. */
    void (*forward_backward)(struct rk_loss_out *out, const struct rk_loss_in *in, const void *config);
};

/* A row of the loss table (base/config/losses.def). */
struct rk_loss {
    const char *name; /* "vanilla" */
    rk_objective_kind_t kind;
    bool is_term;              /* added to the loss that the objective selects by its mode */
    const char *option;        /* of a term: the option that adds it; NULL: its is_enabled decides alone */
    uint32_t columns;          /* RK_LOSS_BIT: required columns */
    uint32_t optional_columns; /* columns read if present */
    const struct rk_loss_ops *ops;
};
const struct rk_loss *rk_loss_find(rk_objective_kind_t kind, const char *name); /* NULL: no such loss */

/* --- objectives --- */
#define RK_OBJECTIVE_TERMS_MAX 5

struct rk_loss_term {
    const struct rk_loss *loss;
    double config[RK_LOSS_CONFIG_BYTES_MAX / sizeof(double)]; /* bytes, aligned */
    double metrics[RK_LOSS_METRICS_MAX]; /* sums over micro-batches, or maximum and minimum; those of the
                                            current mini-batch for RK_LOSS_KEPT and RK_LOSS_COUNT */
    double kept[RK_LOSS_METRICS_MAX];    /* RK_LOSS_KEPT: sums over the mini-batches that have ended */
};

struct rk_objective {
    rk_objective_kind_t kind;
    struct rk_loss_term terms[RK_OBJECTIVE_TERMS_MAX];
    int32_t num_terms;
    rk_loss_agg_mode_t agg_mode;
    double loss_scale_factor;                    /* 0: use the response length of the batch */
    uint32_t outputs, columns, optional_columns; /* of all terms */
    uint32_t differentiated;                     /* outputs with a nonzero derivative in some term */
    int64_t num_ids;                             /* of the term that reads ids; 0: no term does */
};

/* Reads the options of an update method (base/config/knobs.def). INVALID_ARGUMENT names the key, the value
 * and the expectation. */
struct rk_status *rk_objective_read(struct rk_objective *out, rk_objective_kind_t kind,
                                    const struct rk_json *options) RK_NODISCARD;
/* Adds the gradients with respect to the objective's outputs to `grads`, and updates the metrics of the
 * terms. */
void rk_objective_run(struct rk_objective *objective, const struct rk_loss_in *in,
                      const struct rk_head_arrays *grads);
/* RK_LOSS_COUNT of the current mini-batch; NULL: no row has one. The caller adds up the counts of all
 * replicas before it ends the mini-batch, whose plan counts num_tokens. */
double *rk_objective_count(struct rk_objective *objective);
void rk_objective_end_mini_batch(struct rk_objective *objective, double num_tokens);
/* Value of the objective over all runs: its terms with their coefficients. */
double rk_objective_loss(const struct rk_objective *objective);

RK_END_DECLS

#endif
