/* The equivalence gate: results must not depend on the layout. Layouts x models x dtypes, each compared with
 * one rank.
 *
 * A case trains a model from the same random weights on the same 12 sequences for some steps. An outcome has
 * the outputs of every token, of a forward-only pass and of training; the loss; every gradient of the first
 * step, gathered to the whole tensor; the gradient norms; and every parameter after the last step. Layouts
 * and models are rows of gate_table.c: a new parallel feature adds rows, and an axis to RK_GATE_AXES. */
#ifndef RK_TEST_GATE_H
#define RK_TEST_GATE_H

#include <string.h>

#include "engine/rk_model.h"
#include "engine/rk_train.h"

RK_BEGIN_DECLS

#define RK_GATE_NUM_SEQS     12
#define RK_GATE_NUM_TOKENS   469 /* of all sequences */
#define RK_GATE_SEQ_LEN_MAX  97
#define RK_GATE_NUM_STEPS    4    /* of the whole gate */
#define RK_GATE_FEW_STEPS    2    /* the first gathers gradients, in the second reductions overlap the pass */
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
    int32_t num_steps;     /* 0: RK_GATE_NUM_STEPS */
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

/* gate_sample.c: axes of which the sample has every pair. A case is a set of them, one bit for each. */
#define RK_GATE_AXES(X)                                                                                \
    X(TP, "tp", layout->tp > 1)                                                                        \
    X(SP, "sp", layout->sequence_parallel)                                                             \
    X(CP, "cp", layout->cp > 1)                                                                        \
    X(PP, "pp", layout->pp > 1)                                                                        \
    X(VPP, "vpp", layout->vpp > 1)                                                                     \
    X(DP, "dp", layout->dp > 1)                                                                        \
    X(EP, "ep", model->num_experts > 0 && layout->ep > 1)                                              \
    X(ETP, "etp", model->num_experts > 0 && layout->etp > 0)                                           \
    X(ROUNDS, "rounds", model->num_experts > 0 && layout->moe_dispatch_tokens > 0)                     \
    X(KEPT, "kept rows", model->num_experts > 0 && layout->moe_keep_dispatched)                        \
    X(MICRO, "micro-batches", layout->num_micro_batches > 1)                                           \
    X(RECOMPUTE, "recompute", layout->recompute_num_layers > 0)                                        \
    X(STRICT, "strict", layout->is_strict)                                                             \
    X(DENSE, "dense", model->num_experts == 0)                                                         \
    X(EXPERTS, "experts", model->num_experts > 0)                                                      \
    X(LATENT, "latent", strstr(model->config, "kv_lora_rank") != NULL)                                 \
    X(WINDOW, "windows", strstr(model->config, "\"mistral\"") || strstr(model->config, "\"mixtral\"")) \
    X(BIASES, "biases", strstr(model->config, "\"qwen2") != NULL)                                      \
    X(HEAD_NORMS, "head norms", strstr(model->config, "\"qwen3") != NULL)                              \
    X(REPLAY, "replay", model->num_routes > 0)                                                         \
    X(ROUTER_LOSS, "router losses", model->moe.aux_loss_coeff > 0)                                     \
    X(BIAS_UPDATE, "bias updates", model->moe.updates_bias)                                            \
    X(VALUES, "values", strcmp(model->head, "lm") != 0)                                                \
    X(TIED, "tied", strstr(model->config, "\"tie_word_embeddings\": true") != NULL)                    \
    X(F64, "f64", test->dtype == RK_DTYPE_F64)                                                         \
    X(F32, "f32", test->dtype == RK_DTYPE_F32)                                                         \
    X(BF16, "bf16", test->dtype == RK_DTYPE_BF16)

typedef enum rk_gate_axis {
#define RK_GATE_AXIS(id, name, has) RK_GATE_##id,
    RK_GATE_AXES(RK_GATE_AXIS)
#undef RK_GATE_AXIS
        RK_GATE_NUM_AXES
} rk_gate_axis_t;

/* with[a]: the axes that some case has together with axis a. */
struct rk_gate_pairs {
    uint32_t with[RK_GATE_NUM_AXES];
};

const char *rk_gate_axis_name(rk_gate_axis_t axis);
/* Adds the pairs of a case. */
void rk_gate_add_pairs(struct rk_gate_pairs *pairs, const struct rk_gate_case *test);
/* All cases of the gate that can run here; returns their number. rk_free(*out). */
int32_t rk_gate_all_cases(struct rk_gate_case **out);
/* Few of them, by a rule that gate_sample.c describes; at most RK_GATE_CASES_MAX. */
int32_t rk_gate_sample(struct rk_gate_case *sample);
bool rk_gate_sample_has_models(void);

int32_t rk_gate_num_steps(const struct rk_gate_case *test);
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
/* Prints every diff with layout, model and tensor, and fails the test when there is one. Returns the number
 * of cases that ran. */
int32_t rk_gate_check(const struct rk_gate_case *cases, int32_t count);

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
