/* The equivalence gate: results must not depend on the layout. Layouts x models x dtypes, each compared with
 * one rank.
 *
 * A case trains a model from the same random weights on the same 12 sequences for four steps. An outcome has
 * the outputs of every token, of a forward-only pass and of training; the loss; every gradient of the first
 * step, gathered to the whole tensor; the gradient norms; and every parameter after the last step. Layouts
 * and models are rows of gate_table.c: a new parallel feature adds rows. */
#ifndef RK_TEST_GATE_H
#define RK_TEST_GATE_H

#include "engine/rk_model.h"
#include "engine/rk_train.h"

RK_BEGIN_DECLS

#define RK_GATE_NUM_SEQS     12
#define RK_GATE_NUM_TOKENS   469 /* of all sequences */
#define RK_GATE_SEQ_LEN_MAX  97
#define RK_GATE_NUM_STEPS    4
#define RK_GATE_LR           3e-4 /* with a larger rate rounding errors grow tenfold per step */
#define RK_GATE_PARAMS_MAX   192
#define RK_GATE_ELEMENTS_MAX 200000
#define RK_GATE_DIFFS_MAX    (2 * RK_GATE_PARAMS_MAX + 16)
#define RK_GATE_MAX_RANKS    8
#define RK_GATE_ROUTES_MAX   12 /* layers times experts per token */
#define RK_GATE_CASES_MAX    96 /* layouts */

struct rk_gate_model {
    const char *name, *config; /* text of a config.json */
    const char *head;          /* row of the head table */
    rk_dtype_t dtype;          /* that it has in the sample */
    /* 0: dense. With experts there is no BF16, in which rounding decides which of two close experts a token
     * goes to, and layouts round differently. */
    int32_t num_experts;
    /* Router replay: routes are given, a function of token and layer. Then BF16 is compared as well. */
    int32_t num_routes, top_k; /* layers of experts, and experts per token; 0: routers choose */
    /* Losses of routers, and updates of their biases. The loss of a micro-batch (aux_loss) depends on how
     * sequences are divided among micro-batches: it is compared only in layouts with one. Padding at the end
     * of sequences, whose tokens are tokens to a router, is left out with all of them. */
    struct rk_moe_knobs moe;
};

struct rk_gate_layout {
    const char *name;
    const char *model; /* the model with which the sample, which runs for every change, combines this
                        * layout */
    int32_t tp, cp, dp, pp, vpp; /* 0: 1 */
    int32_t ep, etp;             /* 0: 1, and tp */
    int32_t moe_dispatch_tokens; /* 0: the default */
    bool moe_keep_dispatched;
    bool sequence_parallel;
    int32_t num_first, num_last; /* layers of these stages; 0: as many as the other stages */
    int32_t num_micro_batches;   /* 0: 1 */
    bool is_padded;              /* sequences are padded at the end to the length of the longest */
    bool is_reversed;            /* the last sequence is first in its micro-batch */
    bool is_strict;              /* numerics */
    int64_t recompute_num_layers;
};

extern const struct rk_gate_model rk_gate_models[];
extern const size_t rk_gate_num_models;
extern const struct rk_gate_layout rk_gate_layouts[];
extern const size_t rk_gate_num_layouts;
extern const struct rk_gate_layout rk_gate_one_rank;

/* NULL when there is no model with that name. */
const struct rk_gate_model *rk_gate_find_model(const char *name);
const struct rk_gate_layout *rk_gate_find_layout(const char *name);
int32_t rk_gate_num_ranks(const struct rk_gate_layout *layout);

/* A sum that is omitted from one gradient, to show that the comparison detects it. Such a case ends with the
 * gathered gradients. */
typedef enum rk_gate_mutation {
    RK_GATE_NO_MUTATION,
    RK_GATE_NO_TP_SUM, /* the gradient is that of the first copy along tp */
    RK_GATE_NO_DP_SUM, /* the gradient is that of the first dp rank */
    RK_GATE_NO_PP_SUM, /* the gradient of a tied embedding is that of the first stage */
} rk_gate_mutation_t;

struct rk_gate_case {
    const struct rk_gate_layout *layout;
    const struct rk_gate_model *model;
    rk_dtype_t dtype;
    bool has_bf16_weights; /* an F32 model on one rank that starts with the weights of the BF16 model */
    rk_gate_mutation_t mutation;
    const char *mutated; /* the parameter */
};

/* In memory that the ranks share. */
struct rk_gate_outcome {
    double loss, loss_terms[RK_GATE_NUM_TOKENS]; /* its terms, in the first step */
    double loss_slopes[RK_GATE_NUM_TOKENS];      /* derivatives of the terms with respect to log-probs or
                                                  * values */
    double forward[RK_HEAD_OUTPUT_COUNT][RK_GATE_NUM_TOKENS];
    double trained[RK_HEAD_OUTPUT_COUNT][RK_GATE_NUM_TOKENS]; /* in the first step */
    double grad_norm[RK_GATE_NUM_STEPS];
    int64_t num_params;
    char names[RK_GATE_PARAMS_MAX][96];
    int64_t begin[RK_GATE_PARAMS_MAX + 1]; /* of every parameter in grads and params */
    double grads[RK_GATE_ELEMENTS_MAX], params[RK_GATE_ELEMENTS_MAX];
};

/* "t2s qwen3 bf16"; valid until the next call. */
const char *rk_gate_label(const struct rk_gate_case *test);

/* Whether the machine has as many devices, and collectives between them. */
bool rk_gate_has_ranks(const struct rk_gate_layout *layout);
/* And supports the dtype. */
bool rk_gate_can_run(const struct rk_gate_case *test);
/* Runs all cases, those with equal numbers of ranks one after another in the same processes, and fails the
 * test when a rank fails. Returns their outcomes; free with rk_gate_outcomes_free. */
struct rk_gate_outcome *rk_gate_run(const struct rk_gate_case *cases, int32_t count);
void rk_gate_outcomes_free(struct rk_gate_outcome *outcomes, int32_t count);

/* Results of one rank: in the dtype of the case and, for BF16, also in F32 with the same weights. */
struct rk_gate_golden {
    const struct rk_gate_outcome *same_dtype;
    const struct rk_gate_outcome *f32; /* BF16 only */
};
/* A tensor that differs by more than the bound. */
struct rk_gate_diff {
    char tensor[128];
    double error, bound;
};
/* Compares all members of the outcomes; returns the number of diffs, of which the first RK_GATE_DIFFS_MAX are
 * stored. gate_compare.c defines the measures and derives the bounds. */
int32_t rk_gate_compare(struct rk_gate_diff *diffs, const struct rk_gate_case *test,
                        const struct rk_gate_outcome *actual, const struct rk_gate_golden *golden);

/* Called with the first RK_GATE_DIFFS_MAX of a case's diffs. */
typedef void (*rk_gate_visit_fn_t)(void *user, const struct rk_gate_case *test,
                                   const struct rk_gate_diff *diffs, int32_t num_diffs);
/* Runs the cases that the machine supports and the same on one rank, and compares. */
void rk_gate_for_each(const struct rk_gate_case *cases, int32_t count, rk_gate_visit_fn_t visit, void *user);
/* Prints every diff with layout, model and tensor, and fails the test when there is one. */
void rk_gate_check(const struct rk_gate_case *cases, int32_t count);

/* --- internal --- */

/* The sequences; each rank takes its own. */
struct rk_gate_batch {
    int32_t begin[RK_GATE_NUM_SEQS + 1];
    int32_t tokens[RK_GATE_NUM_TOKENS], labels[RK_GATE_NUM_TOKENS];
    double advantage[RK_GATE_NUM_SEQS], old_log_probs[RK_GATE_NUM_TOKENS];
    double num_labels;
};

#define RK_GATE_MICRO_TOKENS (RK_GATE_NUM_SEQS * RK_GATE_SEQ_LEN_MAX)

/* The sequences of one rank's micro-batch, packed. */
struct rk_gate_micro {
    struct rk_packed packed;
    int32_t tokens[RK_GATE_MICRO_TOKENS], positions[RK_GATE_MICRO_TOKENS], labels[RK_GATE_MICRO_TOKENS];
    int32_t cu_seqlens[RK_GATE_NUM_SEQS + 1];
    int32_t source[RK_GATE_MICRO_TOKENS]; /* index of the token in the batch; -1: padding */
    int32_t sequence[RK_GATE_MICRO_TOKENS];
    uint16_t routed_experts[RK_GATE_MICRO_TOKENS * RK_GATE_ROUTES_MAX];
    const struct rk_gate_batch *batch;
    const struct rk_gate_model *model;
    struct rk_gate_outcome *outcome;
    int32_t dp_rank;
    bool records; /* one rank per replica, in the first step */
};

void rk_gate_batch_make(struct rk_gate_batch *batch);
/* Sequence s is assigned to dp rank s % dp. Rank 1 puts all of its sequences into its first micro-batch: its
 * others are empty. */
void rk_gate_micro_make(struct rk_gate_micro *micro, const struct rk_gate_layout *layout, int32_t index);
/* The losses of language models, and of value and score heads; `user` is the micro-batch. */
struct rk_status *rk_gate_policy_loss(void *user, const struct rk_head_arrays *outputs,
                                      const struct rk_head_arrays *grads);
struct rk_status *rk_gate_value_loss(void *user, const struct rk_head_arrays *outputs,
                                     const struct rk_head_arrays *grads);
/* Writes the outputs of a micro-batch to the entries of their tokens. */
void rk_gate_record(double (*to)[RK_GATE_NUM_TOKENS], const struct rk_gate_micro *micro,
                    const struct rk_head_arrays *outputs);

RK_END_DECLS

#endif
