/* Private to engine/nn: the parts of a layer of experts, combined in moe.c.
 *
 * E experts, K of them per token, T tokens, R = T K rows. A row is the input of one expert for one token:
 * rows are sorted by expert, and within an expert by token. */
#ifndef RK_MOE_INTERNAL_H
#define RK_MOE_INTERNAL_H

#include "engine/nn/nn.h"

/* Default limit of the rows received in a round of an exchange, in multiples of one rank's rows. */
#define RK_MOE_DISPATCH_FACTOR 2

/* Adjacent matrices of this rank's experts: [num_experts, rows, cols]. */
struct rk_expert_weight {
    int64_t param; /* the first row of the parameter table */
    int64_t num_experts, rows, cols;
};

/* A layer of experts: its part on this rank. */
struct rk_moe {
    struct rk_moe_config config;
    int64_t hidden_size;
    int64_t intermediate_size; /* of an expert: this rank's part */
    struct rk_weight router;   /* [E, hidden_size] */
    struct rk_weight bias;     /* parts of [E]: added to scores for the choice; with has_correction_bias */
    struct rk_expert_weight gate_up, down;
    int64_t first_expert;  /* of this rank */
    bool is_wide;          /* etp < tp: a rank has more of the width of an expert than 1/tp */
    bool is_by_rows;       /* in addition sequence parallelism: etp ranks route their own rows */
    int64_t dispatch_rows; /* ep > 1: rows that a rank receives in a round; 0: the default */
    bool keeps_rows;       /* ep > 1: the rows of an exchange of one round are kept for the backward pass */
    /* The shared expert, applied to all tokens; intermediate_size 0: none. */
    struct {
        int64_t intermediate_size; /* this rank's part */
        struct rk_weight gate_up, down;
        struct rk_weight score; /* [1, hidden_size], with has_shared_gate */
    } shared;
};

/* Whether the tp ranks, which all have the tokens of this pass, have different experts. */
static inline bool rk_moe_is_divided(const struct rk_pass *pass, const struct rk_moe *moe)
{
    return pass->ep && moe->is_wide && !pass->splits_rows;
}

/* Tensors that backward needs from forward. */
struct rk_moe_saved {
    rk_tensor_t logits;       /* stat [T, E] */
    rk_tensor_t ids;          /* I32 [T, K] */
    rk_tensor_t places;       /* I32 [T, K]: the row of each choice; -1: it has none on this rank */
    rk_tensor_t tokens;       /* I32 [R]: the token of each row */
    rk_tensor_t offsets;      /* I32 [E + 1]: first row of each expert; of divided ones, this rank's */
    rk_tensor_t row_probs;    /* stat [R] */
    rk_tensor_t gate_up;      /* [R, 2 * intermediate_size] */
    rk_tensor_t shared_score; /* stat [T, 1]: a logit */
    rk_tensor_t shared_prob;  /* stat [T, 1]: the sigmoid of the score */
    rk_tensor_t shared_gate_up;
    /* ep > 1: the rows of an exchange, C = dispatch_rows. Only with keeps_rows; then gate_up has C rows. */
    struct {
        rk_tensor_t x;             /* [C, hidden_size], sorted by expert */
        rk_tensor_t probs;         /* stat [C, 1], sorted */
        rk_tensor_t order, places; /* I32 [C, 1]: the received row that is the i-th sorted, and the inverse */
        rk_tensor_t offsets;       /* I32 [E + 1] */
    } received;
    bool has_received;             /* they hold all rows that this rank received */
    const int32_t *offsets_of_all; /* in host memory, of all ranks of ep; NULL: not exchanged */
};

/* Indices of the declared activations. */
enum {
    RK_MOE_LOGITS,
    RK_MOE_IDS,
    RK_MOE_PLACES,
    RK_MOE_TOKENS,
    RK_MOE_OFFSETS,
    RK_MOE_ROW_PROBS,
    RK_MOE_GATE_UP,
    RK_MOE_SHARED_SCORE,
    RK_MOE_SHARED_PROB,
    RK_MOE_SHARED_GATE_UP,
    RK_MOE_RECEIVED_X,
    RK_MOE_RECEIVED_PROBS,
    RK_MOE_RECEIVED_ORDER,
    RK_MOE_RECEIVED_PLACES,
    RK_MOE_RECEIVED_OFFSETS,
    RK_MOE_PROBS, /* of the forward pass from here on */
    RK_MOE_ROWS,
    RK_MOE_ACTIVATED,
    RK_MOE_SHARED_ACTIVATED,
    RK_MOE_SHARED_OUT,
    RK_MOE_DROWS, /* of the backward pass from here on */
    RK_MOE_DACTIVATED,
    RK_MOE_DROW_PROBS,
    RK_MOE_DPROBS,
    RK_MOE_DLOGITS,
    RK_MOE_DX,
    RK_MOE_SHARED_DACTIVATED,
    RK_MOE_SHARED_DPROB,
    RK_MOE_SHARED_DSCORE,
    RK_MOE_NUM_ACTIVATIONS
};

/* --- moe_declare.c --- */
struct rk_status *rk_moe_declare(struct rk_block *block, struct rk_param_table *params,
                                 const struct rk_block_site *site) RK_NODISCARD;

/* --- moe_route.c: x [T, hidden_size] of all tokens of this rank --- */
/* Fills logits and ids of `saved`, which has memory, and probs stat [T, K]. */
struct rk_status *rk_moe_choose(const struct rk_pass *pass, const struct rk_block *block, rk_tensor_t x,
                                const struct rk_moe_saved *saved, rk_tensor_t probs) RK_NODISCARD;
/* The gradient of the router, and dx += the gradient of its input, from dprobs stat [T, K]. */
struct rk_status *rk_moe_choose_bwd(const struct rk_pass *pass, const struct rk_block *block,
                                    const struct rk_moe_saved *saved, rk_tensor_t x, rk_tensor_t dprobs,
                                    rk_tensor_t dx) RK_NODISCARD;
/* --- moe_measure.c --- */
/* Adds the tokens of the pass to the sums of the router, and the gradients of its losses to dlogits stat
 * [T, E], if the pass has them. Collective over cp, and over tp if ranks route their own rows. */
struct rk_status *rk_moe_measure(const struct rk_pass *pass, const struct rk_block *block,
                                 const struct rk_moe_saved *saved, rk_tensor_t dlogits) RK_NODISCARD;

/* score stat [T, 1] = x . weight, prob = its sigmoid; and back, dx +=. */
struct rk_status *rk_moe_gate(const struct rk_pass *pass, const struct rk_weight *weight, rk_tensor_t x,
                              rk_tensor_t score, rk_tensor_t prob) RK_NODISCARD;
struct rk_status *rk_moe_gate_bwd(const struct rk_pass *pass, const struct rk_block *block,
                                  const struct rk_moe_saved *saved, rk_tensor_t x, rk_tensor_t dprob,
                                  rk_tensor_t dx) RK_NODISCARD;

/* --- moe_rows.c: between tokens and rows. Between these and the experts there may be an exchange with other
 * ranks. --- */
/* Sorts the choices: fills places, tokens and offsets of `saved` from its ids, and row_probs from probs. */
struct rk_status *rk_moe_sort_tokens(const struct rk_pass *pass, const struct rk_moe *moe,
                                     const struct rk_moe_saved *saved, rk_tensor_t probs) RK_NODISCARD;
/* I32 [1]: the number of rows of divided experts on this rank; otherwise none, for all rows. */
rk_tensor_t rk_moe_count_rows(const struct rk_pass *pass, const struct rk_moe *moe,
                              const struct rk_moe_saved *saved);
/* rows [R, n] of x [T, n]. */
struct rk_status *rk_moe_hand_out(const struct rk_pass *pass, const struct rk_moe *moe,
                                  const struct rk_moe_saved *saved, rk_tensor_t x,
                                  rk_tensor_t rows) RK_NODISCARD;
/* y [T, n] = the sum of each token's rows, by ascending expert; the adjoint of handing out. */
struct rk_status *rk_moe_collect(const struct rk_pass *pass, const struct rk_moe_saved *saved,
                                 rk_tensor_t rows, rk_tensor_t y) RK_NODISCARD;
/* rk_moe_collect for the rows of all tp ranks, with the bits of a rank that has all experts. Collective over
 * tp. */
struct rk_status *rk_moe_collect_divided(const struct rk_pass *pass, const struct rk_moe_saved *saved,
                                         rk_tensor_t rows, rk_tensor_t y) RK_NODISCARD;
/* dprobs stat [T, K] from the gradients of the rows, stat [R]; 0 for a choice without a row. */
struct rk_status *rk_moe_collect_dprobs(const struct rk_pass *pass, const struct rk_moe *moe,
                                        const struct rk_moe_saved *saved, rk_tensor_t drow_probs,
                                        rk_tensor_t dprobs) RK_NODISCARD;

/* --- moe_experts.c: the experts of this rank over their rows, [num_rows, hidden_size] --- */
struct rk_moe_rows {
    rk_tensor_t offsets; /* I32 [experts of this rank + 1] */
    rk_tensor_t probs;   /* stat [num_rows]: factors of the results */
    rk_tensor_t gate_up; /* [num_rows, 2 * intermediate_size] */
    /* I32 [1]: number of rows that experts of this rank have, and an estimate of it, if other rows follow
     * them. Otherwise none, and 0. */
    rk_tensor_t count;
    int64_t likely_count;
    bool overwrites_grads; /* backward: = instead of +=, also of experts without a row */
};
/* Fills gate_up; out = down (prob * silu(gate) * up), which may have the memory of x; out none: not computed.
 * activated: scratch, [num_rows, intermediate_size]. */
struct rk_status *rk_moe_experts_fwd(const struct rk_pass *pass, const struct rk_moe *moe,
                                     const struct rk_moe_rows *rows, rk_tensor_t x, rk_tensor_t activated,
                                     rk_tensor_t out) RK_NODISCARD;
/* Computes from dout dprobs, the gradients of gate and up (in place), and the gradient of down.
 * activated: scratch. */
struct rk_status *rk_moe_experts_bwd_down(const struct rk_pass *pass, const struct rk_moe *moe,
                                          const struct rk_moe_rows *rows, rk_tensor_t dout,
                                          rk_tensor_t activated, rk_tensor_t dprobs) RK_NODISCARD;
/* Computes from these dx, which may have the memory of x, and the gradients of the gate and up weights. */
struct rk_status *rk_moe_experts_bwd_up(const struct rk_pass *pass, const struct rk_moe *moe,
                                        const struct rk_moe_rows *rows, rk_tensor_t x,
                                        rk_tensor_t dx) RK_NODISCARD;
/* Zeroes the gradients of a rank that has no row at all. */
struct rk_status *rk_moe_experts_clear_grads(const struct rk_pass *pass,
                                             const struct rk_moe *moe) RK_NODISCARD;

/* --- moe_exchange.c: with ep, the experts of all ranks over the rows of this one. Collective over ep. --- */
/* Work that does not depend on the exchange. It is enqueued on the pass's stream while the first rows are
 * sent on the side stream, and must not allocate: the exchange takes the memory that follows. */
struct rk_moe_beside {
    struct rk_status *(*run)(void *user);
    void *user;
};
/* Replaces rows [R, hidden_size] of x by their results. beside: may be NULL. */
struct rk_status *rk_moe_exchange_fwd(const struct rk_pass *pass, const struct rk_block *block,
                                      struct rk_moe_saved *saved, rk_tensor_t rows,
                                      const struct rk_moe_beside *beside) RK_NODISCARD;
/* Replaces dy_rows by the rows of dx, writes drow_probs stat [R], and accumulates the gradients of this
 * rank's experts. x_rows are not read if the rows were kept. */
struct rk_moe_exchange_grads {
    rk_tensor_t x_rows, dy_rows, drow_probs;
};
struct rk_status *rk_moe_exchange_bwd(const struct rk_pass *pass, const struct rk_block *block,
                                      const struct rk_moe_saved *saved,
                                      const struct rk_moe_exchange_grads *grads,
                                      const struct rk_moe_beside *beside) RK_NODISCARD;

/* --- moe_shared.c: the shared expert over all tokens, a partial sum over tp --- */
/* y += shared(x), and saves what backward needs; y none: only the latter. */
struct rk_status *rk_moe_shared_fwd(const struct rk_pass *pass, const struct rk_block *block, rk_tensor_t x,
                                    const struct rk_moe_saved *saved, rk_tensor_t y) RK_NODISCARD;
/* dx += the gradient of x. */
struct rk_status *rk_moe_shared_bwd(const struct rk_pass *pass, const struct rk_block *block,
                                    const struct rk_moe_saved *saved, rk_tensor_t x, rk_tensor_t dy,
                                    rk_tensor_t dx) RK_NODISCARD;

/* The shared expert in steps, as work beside an exchange: begin allocates, run does not, end adds the result.
 */
struct rk_moe_shared_run {
    const struct rk_pass *pass;
    const struct rk_block *block;
    const struct rk_moe_saved *saved;
    rk_tensor_t x, dy;                  /* dy: of the backward pass */
    rk_tensor_t activated, part, dprob; /* of begin */
};
struct rk_status *rk_moe_shared_fwd_begin(struct rk_moe_shared_run *run) RK_NODISCARD;
struct rk_status *rk_moe_shared_fwd_run(void *run) RK_NODISCARD;
struct rk_status *rk_moe_shared_fwd_end(const struct rk_moe_shared_run *run, rk_tensor_t y) RK_NODISCARD;
struct rk_status *rk_moe_shared_bwd_begin(struct rk_moe_shared_run *run) RK_NODISCARD;
struct rk_status *rk_moe_shared_bwd_run(void *run) RK_NODISCARD;
struct rk_status *rk_moe_shared_bwd_end(const struct rk_moe_shared_run *run, rk_tensor_t dx) RK_NODISCARD;

#endif
