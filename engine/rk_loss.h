/* Losses: functions of what a head computes of each token, on the host.
 *
 * A micro-batch has T packed tokens; arrays are f64 [T] in host memory. A loss is a weighted sum with global
 * denominators, L = sum_t weight[t] * l[t], so that it does not depend on layout or micro-batches. weight is
 * 0 where the mask is, and such entries are never read ("select, never multiply": a NaN outside the mask is
 * harmless). A row of the loss table owns its configuration keys, the columns and outputs that it reads, and
 * its metrics; an objective is the sum of the rows that an update method's options ask for. Formulas and
 * references: each loss_<name>.c. */
#ifndef RK_LOSS_H
#define RK_LOSS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_json.h"
#include "base/rk_knobs.h"
#include "base/rk_loss_agg.h"
#include "base/rk_status.h"
#include "engine/rk_model.h"

RK_BEGIN_DECLS

#define RK_LOSS_ABI 4

/* Columns [B, R] of a batch that losses read: X(ID, name). */
#define RK_LOSS_COLUMN_TABLE(X)                 \
    X(OLD_LOG_PROBS, "old_log_probs")           \
    X(ADVANTAGES, "advantages")                 \
    X(REF_LOG_PROB, "ref_log_prob")             \
    X(ROLLOUT_IS_WEIGHTS, "rollout_is_weights") \
    X(ROLLOUT_LOG_PROBS, "rollout_log_probs")   \
    X(VALUES, "values")                         \
    X(RETURNS, "returns")                       \
    X(TEACHER_LOG_PROBS, "teacher_log_probs")   \
    X(WEIGHTS, "weights")                       \
    X(SEQUENCE_RATIO_MASK, "sequence_ratio_mask")

typedef enum rk_loss_column {
#define RK_LOSS_COLUMN_ID(id, name) RK_LOSS_##id,
    RK_LOSS_COLUMN_TABLE(RK_LOSS_COLUMN_ID)
#undef RK_LOSS_COLUMN_ID
        RK_LOSS_COLUMN_COUNT
} rk_loss_column_t;
#define RK_LOSS_BIT(column) (1u << (column))
const char *rk_loss_column_name(rk_loss_column_t column);

/* What an update optimizes. */
typedef enum rk_objective_kind {
    RK_OBJECTIVE_POLICY, /* one row of policy_loss.loss_mode, and the terms that other keys add */
    RK_OBJECTIVE_VALUE,  /* of a critic */
    RK_OBJECTIVE_SFT,    /* token-mean always */
    RK_OBJECTIVE_DPO,    /* of pairs of sequences */
    RK_OBJECTIVE_SUM,    /* token-sum always: one of the sums of forward_backward */
    RK_OBJECTIVE_COUNT
} rk_objective_kind_t;

typedef enum rk_loss_reduce {
    RK_LOSS_SUM,    /* over tokens, divided by the global denominators already */
    RK_LOSS_FIRST,  /* the same, of the first pass over the rows: epochs after it do not count */
    RK_LOSS_MAX,    /* of the tokens; no metric when there is none */
    RK_LOSS_MIN,    /* the same */
    RK_LOSS_CONFIG, /* a number of the configuration, at `offset` */
} rk_loss_reduce_t;

struct rk_loss_metric {
    const char *name; /* "pg_clipfrac": the update puts its role in front, unless there is a "/" */
    rk_loss_reduce_t reduce;
    size_t offset; /* of a double in the configuration */
};
/* What such a metric is before the first token. */
double rk_loss_reduce_start(rk_loss_reduce_t reduce);
#define RK_LOSS_METRICS_MAX      28
#define RK_LOSS_CONFIG_BYTES_MAX 2048

/* Several ids a position, [num_tokens, num_ids]: columns of the batch, and what the head gives for them
 * (struct rk_head_ids). */
struct rk_loss_ids {
    int64_t num_ids;                 /* 0: none */
    const int32_t *ids;              /* column teacher_topk_ids; below 0: none */
    const double *teacher_log_probs; /* column teacher_topk_log_probs */
    const double *log_probs;         /* of the ids under the model */
    const int32_t *top_ids;          /* the model's own most likely ones */
};

struct rk_loss_in {
    int64_t num_tokens;
    int32_t num_seqs;
    const int32_t *cu_seqlens; /* [num_seqs + 1] */
    const uint8_t *mask;       /* 1: the loss counts this position's label */
    const double *weight;      /* rk_loss_weights of the objective's mode */
    /* Of mode token-mean, for metrics that are means over tokens, and of seq-mean-token-mean, for losses that
     * have this mode always. */
    const double *token_weight, *seq_weight;
    double num_sequences;                        /* of the whole mini-batch */
    rk_loss_agg_mode_t agg_mode;                 /* of weight */
    bool is_first_pass;                          /* over the rows: see RK_LOSS_FIRST */
    const double *outputs[RK_HEAD_OUTPUT_COUNT]; /* those that the row asks for */
    const double *columns[RK_LOSS_COLUMN_COUNT]; /* NULL: the call has none */
    struct rk_loss_ids ids;                      /* for a row that asks for them */
};

struct rk_loss_out {
    /* d(sum weight * l)/d(output), added to; for the outputs that the row asks for. */
    double *grads[RK_HEAD_OUTPUT_COUNT];
    double *id_grads; /* the same by ids.log_probs, [num_tokens, num_ids] */
    double
        *metrics; /* [RK_LOSS_METRICS_MAX] by row of ops->metrics: added to, or the largest or least so far */
};

/* A row of the loss table. */
struct rk_loss_ops {
    const char *name; /* "vanilla" */
    uint32_t abi;     /* RK_LOSS_ABI */
    rk_objective_kind_t kind;
    uint32_t outputs;          /* RK_HEAD_BIT: read, and differentiated unless `measures` says else */
    uint32_t columns;          /* RK_LOSS_BIT: required */
    uint32_t optional_columns; /* read where they are */
    /* Optional: how many ids a position the row reads; NULL: none. */
    int64_t (*num_ids)(const void *config);
    const struct rk_loss_metric *metrics; /* the first is the loss itself, without its coefficient */
    int32_t num_metrics;
    /* Optional: by what the objective multiplies it; NULL: 1. */
    double (*coefficient)(const void *config);
    /* Optional: whether the configuration gives metrics[i] a value. */
    bool (*has_metric)(const void *config, int32_t i);
    /* Its own keys, read into config_bytes of configuration; none: num_knobs 0. */
    const struct rk_knob *knobs;
    int64_t num_knobs;
    size_t config_bytes;
    /* Optional; NULL: none. Of its outputs those by which its derivative is 0 with this configuration: it
     * reads them for metrics alone. */
    uint32_t (*measures)(const void *config);
    /* Optional. Completes and checks what was read. INVALID_ARGUMENT names key, value and expectation. */
    struct rk_status *(*check)(void *config);
    /* NULL: the objective has one of these rows, by its mode. Else a term that is added where this is true.
     */
    bool (*is_enabled)(const void *config);
    /* Of a term that is added; NULL: no. Whether it takes the place of the loss and of all other terms. */
    bool (*is_alone)(const void *config);
    /* Required. */
    void (*forward_backward)(struct rk_loss_out *out, const struct rk_loss_in *in, const void *config);
};

const struct rk_loss_ops *rk_loss_find(rk_objective_kind_t kind, const char *name); /* NULL when unknown */

/* --- objectives --- */
#define RK_OBJECTIVE_TERMS_MAX 5

struct rk_loss_term {
    const struct rk_loss_ops *ops;
    double config[RK_LOSS_CONFIG_BYTES_MAX / sizeof(double)]; /* bytes, aligned */
    double metrics[RK_LOSS_METRICS_MAX]; /* sums over micro-batches, and the largest and least */
};

struct rk_objective {
    rk_objective_kind_t kind;
    struct rk_loss_term terms[RK_OBJECTIVE_TERMS_MAX];
    int32_t num_terms;
    rk_loss_agg_mode_t agg_mode;
    double loss_scale_factor;                    /* 0: the response length of the batch */
    uint32_t outputs, columns, optional_columns; /* of all terms */
    uint32_t differentiated; /* of the outputs, those by which some term has a derivative */
    int64_t num_ids;         /* of the term that reads ids; 0: none does */
};

/* From the options of an update method (base/knobs.def). INVALID_ARGUMENT names the key, the value and what
 * is allowed. */
struct rk_status *rk_objective_read(struct rk_objective *out, rk_objective_kind_t kind,
                                    const struct rk_json *options) RK_NODISCARD;
/* Gradients by the objective's outputs, added to `grads`, and metrics of the terms. */
void rk_objective_run(struct rk_objective *objective, const struct rk_loss_in *in,
                      const struct rk_head_arrays *grads);
/* The objective itself, of all that was run: its terms with their coefficients. */
double rk_objective_loss(const struct rk_objective *objective);

RK_END_DECLS

#endif
