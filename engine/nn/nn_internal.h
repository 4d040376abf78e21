/* Private to engine/: the operators that layers are made of, each a forward and a backward function.
 *
 * A rank of the tp group holds its heads, its part of the intermediate size and its part of the vocabulary,
 * of all tokens. The residual stream, [num_rows, hidden_size], is the same on all of these ranks, or each has
 * its part of the tokens (sequence_tp.c). Column-parallel products sum the gradient of their input over tp,
 * row-parallel ones their output (docs/parallelism.md). Backward functions accumulate the gradients of
 * weights and overwrite those of activations. Outputs are the caller's; what a forward function keeps for its
 * backward function lies in the step arena. */
#ifndef RK_NN_INTERNAL_H
#define RK_NN_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_arena.h"
#include "base/rk_status.h"
#include "base/rk_zigzag.h"
#include "engine/model/params_internal.h"
#include "engine/rk_comm.h"
#include "engine/rk_model.h"
#include "engine/tensor/step_arena_internal.h"
#include "kernels/rk_kernels.h"

/* Tokens whose logits exist at the same time: bounds the head's memory to RK_HEAD_CHUNK * vocab_size / tp
 * elements. Every chunk but the last is computed twice, and adds to the whole gradient of the weight: a
 * training step of Qwen2.5-1.5B with 8192 tokens takes 171, 168, 166, 163 ms on an H200 with chunks of 1024,
 * 2048, 4096, 8192, which take 0.3, 0.6, 1.2, 2.3 GiB. */
#define RK_HEAD_CHUNK 8192

/* One or more rows of the parameter table that follow each other without a gap and are used as one matrix. */
struct rk_weight {
    int64_t param;      /* the first of them */
    int64_t rows, cols; /* local; cols 0 for a vector */
    bool has_bias;      /* linear layers; column-parallel ones only */
    int64_t bias_param; /* the first row of the biases: `rows` elements without a gap */
};

/* New tokens of several sequences over a paged cache. */
struct rk_paged_step {
    int64_t num_tokens;
    int32_t num_seqs;
    int32_t num_logits;
    rk_tensor_t tokens, positions, slot_mapping, block_table, cu_q, seq_lens, logits_index; /* device, I32 */
    const rk_tensor_t *caches; /* of all blocks: what a block declares begins at its first_cache */
};

/* A packed micro-batch that the ranks of a cp group share (base/rk_zigzag.h). Its sequences are padded behind
 * their last token; the whole micro-batch has num_keys rows, of which every rank has num_keys / cp. */
struct rk_context {
    struct rk_comm_group *group;
    int64_t num_keys;
    /* I32 [num_keys], permutations: row i of the whole micro-batch is row to_whole[i] of those that all ranks
     * have, one rank after the other, and the i-th of these is row to_ranks[i] of the whole micro-batch. */
    rk_tensor_t to_whole, to_ranks;
    /* Segments of attention, whose queries are pass->cu_seqlens: I32 [two a sequence]. k_lens are those of a
     * call for these halves (enum rk_zigzag_half). */
    rk_tensor_t k_begin, k_lens[RK_ZIGZAG_BOTH + 1];
    /* Host [num_keys], as to_ranks: the token of the caller's micro-batch, which has no padding; -1: none. */
    const int32_t *tokens;
    const int32_t *rows; /* host: to_ranks */
};

/* A stream beside that of the pass, for collectives over tp, and the events that tie the two together. */
struct rk_side {
    struct rk_stream *stream;
    struct rk_event *is_ready, *is_done;
};

/* What all operators of one forward (and backward) pass have in common. */
struct rk_pass {
    struct rk_stream *stream;
    const struct rk_side *side;  /* NULL: all of the pass is on its stream */
    struct rk_step_arena *arena; /* of what one operator, or one direction of the pass, needs */
    struct rk_step_arena *kept;  /* of what the forward pass keeps for the backward pass; may be the same */
    struct rk_arena *host;       /* host memory of the lifetime of `kept` */
    struct rk_comm_group *tp;
    rk_dtype_t dtype, stat_dtype; /* of activations; of statistics */
    rk_dtype_t grad_dtype;        /* of gradients of weights: the latter, unless the trainer says otherwise */
    bool is_strict;
    bool keeps_activations; /* blocks keep what their backward functions need */
    const struct rk_param_table *params;
    void *values, *grads;  /* flat buffers; grads NULL when no backward pass follows */
    bool overwrites_grads; /* of linear layers: what is there is no gradient of this step */
    int64_t num_tokens;    /* of attention and of the products: of the sequences, all or this rank's part */
    int64_t num_rows;      /* of the residual stream on this rank */
    bool splits_rows;      /* num_rows is num_tokens / tp: sequence parallelism (sequence_tp.c) */
    int64_t hidden_size;
    int64_t vocab_size; /* ids that have a probability */
    float norm_eps;
    rk_tensor_t tokens, positions;      /* I32 [T] */
    const struct rk_rope_tables *ropes; /* those of the model: a block's is at its index */
    rk_tensor_t row_numbers;            /* I32 [RK_HEAD_CHUNK]: 0, 1, 2, ...; none where tp is 1 */
    /* How attention finds the keys: the packed sequences, those of all cp ranks, or a cache. */
    rk_tensor_t cu_seqlens; /* with a context, of segments */
    int32_t max_seqlen;
    const struct rk_context *context;    /* NULL: this rank has the whole micro-batch */
    const struct rk_paged_step *paged;   /* NULL: packed */
    const struct rk_engine_hooks *hooks; /* optional; NULL disables progress callbacks */
    /* Called when the backward pass has left the gradients of all parameters from `first_param` on (in the
     * order of the forward pass). NULL: the pass tells it to no function. */
    struct rk_status *(*on_grads_ready)(void *user, int64_t first_param);
    void *grads_user;
};

static inline struct rk_status *rk_pass_grads_ready(const struct rk_pass *pass, int64_t first_param)
{
    return pass->on_grads_ready ? pass->on_grads_ready(pass->grads_user, first_param) : NULL;
}

/* Where what a block's forward function saves has its place. */
static inline struct rk_step_arena *rk_pass_saved_arena(const struct rk_pass *pass)
{
    return pass->keeps_activations ? pass->kept : pass->arena;
}

/* The pass has come further: after every block, and every chunk of the head. */
static inline void rk_pass_note_alive(const struct rk_pass *pass)
{
    if (pass->hooks && pass->hooks->on_alive)
        pass->hooks->on_alive(pass->hooks->user);
}

rk_tensor_t rk_weight_value(const struct rk_pass *pass, const struct rk_weight *weight);
rk_tensor_t rk_weight_grad(const struct rk_pass *pass, const struct rk_weight *weight);

/* --- sequence_tp.c: between the rows of the residual stream, [num_rows, n], and all tokens, [num_tokens, n].
 * Without sequence parallelism they are the same memory. What these functions make room for lies in
 * pass->arena. --- */
struct rk_status *rk_sp_gather(const struct rk_pass *pass, rk_tensor_t rows,
                               rk_tensor_t *tokens) RK_NODISCARD;
/* Room for this rank's summands of what will be `rows`, and their sum over tp. */
struct rk_status *rk_sp_begin_sum(const struct rk_pass *pass, rk_tensor_t rows,
                                  rk_tensor_t *tokens) RK_NODISCARD;
struct rk_status *rk_sp_sum(const struct rk_pass *pass, rk_tensor_t tokens, rk_tensor_t rows,
                            rk_reduce_op_t op) RK_NODISCARD;
/* The same two on the side stream, behind what the pass's stream has been given so far. What is given to that
 * before rk_sp_join runs beside them; it may read what they read. One of them at a time. */
struct rk_status *rk_sp_start_gather(const struct rk_pass *pass, rk_tensor_t rows,
                                     rk_tensor_t *tokens) RK_NODISCARD;
struct rk_status *rk_sp_start_sum(const struct rk_pass *pass, rk_tensor_t tokens, rk_tensor_t rows,
                                  rk_reduce_op_t op) RK_NODISCARD;
struct rk_status *rk_sp_join(const struct rk_pass *pass) RK_NODISCARD;
/* Of tokens that are the same on all ranks, mine. */
struct rk_status *rk_sp_keep(const struct rk_pass *pass, rk_tensor_t tokens, rk_tensor_t rows) RK_NODISCARD;

/* --- linear_tp.c. y [T, rows], x [T, cols]; the gradients of weight and bias are accumulated, that of the
 * weight unless the pass overwrites it. --- */
/* The product of this rank alone: dx is a partial sum when rows are split, y when columns are. */
struct rk_status *rk_linear_fwd(const struct rk_pass *pass, const struct rk_weight *weight, rk_tensor_t x,
                                rk_tensor_t y) RK_NODISCARD;
struct rk_status *rk_linear_bwd(const struct rk_pass *pass, const struct rk_weight *weight, rk_tensor_t x,
                                rk_tensor_t dy, rk_tensor_t dx) RK_NODISCARD;
/* The two halves of the latter: the gradients of weight and bias, and dx. */
struct rk_status *rk_linear_bwd_weight(const struct rk_pass *pass, const struct rk_weight *weight,
                                       rk_tensor_t x, rk_tensor_t dy) RK_NODISCARD;
struct rk_status *rk_linear_bwd_input(const struct rk_pass *pass, const struct rk_weight *weight,
                                      rk_tensor_t dy, rk_tensor_t dx) RK_NODISCARD;
/* From the residual stream to all tokens: x and dx have num_rows rows, y and dy num_tokens. */
struct rk_status *rk_linear_column_fwd(const struct rk_pass *pass, const struct rk_weight *weight,
                                       rk_tensor_t x, rk_tensor_t y) RK_NODISCARD;
/* y = silu(gate) * up of the product [gate; up], which is not kept: gate_up is undefined. */
struct rk_status *rk_linear_column_swiglu_fwd(const struct rk_pass *pass, const struct rk_weight *weight,
                                              rk_tensor_t x, rk_tensor_t gate_up, rk_tensor_t y) RK_NODISCARD;
/* dx is neither x nor dy. */
struct rk_status *rk_linear_column_bwd(const struct rk_pass *pass, const struct rk_weight *weight,
                                       rk_tensor_t x, rk_tensor_t dy, rk_tensor_t dx) RK_NODISCARD;
/* And back: x and dx have num_tokens rows, y and dy num_rows. */
struct rk_status *rk_linear_row_fwd(const struct rk_pass *pass, const struct rk_weight *weight, rk_tensor_t x,
                                    rk_tensor_t y) RK_NODISCARD;
struct rk_status *rk_linear_row_bwd(const struct rk_pass *pass, const struct rk_weight *weight, rk_tensor_t x,
                                    rk_tensor_t dy, rk_tensor_t dx) RK_NODISCARD;

/* --- embed_vp.c: vocabulary-parallel embedding --- */
/* Declares [vocab_size, hidden_size], split by rows, which are padded so that the parts over tp are equal. */
struct rk_weight rk_vocabulary_declare(struct rk_param_table *params, const struct rk_model_config *config,
                                       const char *name, const char *alias);
struct rk_embedding {
    struct rk_weight weight;
    int64_t vocab_begin; /* of my part */
};
/* out and dout: the residual stream. */
struct rk_status *rk_embedding_fwd(const struct rk_pass *pass, const struct rk_embedding *embedding,
                                   rk_tensor_t out) RK_NODISCARD;
struct rk_status *rk_embedding_bwd(const struct rk_pass *pass, const struct rk_embedding *embedding,
                                   rk_tensor_t dout) RK_NODISCARD;

/* --- context.c: rows of all cp ranks. Only in passes with a context. --- */
/* whole [num_keys, columns]: the columns of x [T, ...], num_x tensors side by side, of all ranks, in the
 * order of the whole micro-batch. Collective over cp. */
struct rk_status *rk_context_gather(const struct rk_pass *pass, const rk_tensor_t *x, int num_x,
                                    rk_tensor_t whole) RK_NODISCARD;
/* Its adjoint: the sum over all ranks' whole, of which each gets its rows. */
struct rk_status *rk_context_reduce(const struct rk_pass *pass, rk_tensor_t whole, const rk_tensor_t *x,
                                    int num_x) RK_NODISCARD;

/* --- norm.c: the residual stream and the norm in front of a block --- */
struct rk_norm_saved {
    rk_tensor_t x;    /* what was normalised: the residual after the addition */
    rk_tensor_t rstd; /* none when no backward pass follows */
};
/* s = residual + delta, y = norm(s); the same bits as without delta and residual = s. */
struct rk_norm_io {
    rk_tensor_t residual, delta; /* delta none: s = residual */
    rk_tensor_t sum;             /* where s is written: may be residual; none without delta */
    rk_tensor_t y;
    rk_tensor_t rstd; /* stat [num_rows], or none */
};
struct rk_status *rk_norm_fwd(const struct rk_pass *pass, const struct rk_weight *weight,
                              const struct rk_norm_io *io) RK_NODISCARD;
/* dresidual <- dresidual + d(norm), in place; `is_first`: dresidual holds nothing yet. */
struct rk_status *rk_norm_bwd(const struct rk_pass *pass, const struct rk_weight *weight,
                              const struct rk_norm_saved *saved, rk_tensor_t dy, rk_tensor_t dresidual,
                              bool is_first) RK_NODISCARD;

/* --- rope.c --- */
/* What a rotary table depends on. */
struct rk_rope_spec {
    int64_t width;       /* columns of a head that are rotated, an even number; 0: none */
    bool is_interleaved; /* pairs are columns 2 k and 2 k + 1, not k and k + width / 2 */
    double theta;
    struct rk_rope_scaling scaling;
};
/* F32 [max_position_embeddings, width / 2], on the device. */
struct rk_rope_tables {
    rk_tensor_t cos, sin;
};
/* Of whole heads, with the keys that a config.json has for all layers. */
struct rk_rope_spec rk_rope_of_config(const struct rk_model_config *config);
/* They have the same tables. */
bool rk_rope_equal(const struct rk_rope_spec *a, const struct rk_rope_spec *b);
/* Frequency k of width / 2, with the scaling, in the fp32 steps of Hugging Face. */
float rk_rope_inv_freq(const struct rk_rope_spec *rope, int64_t k);
/* cos and sin [num_positions, width / 2] in host memory. */
void rk_rope_table(const struct rk_rope_spec *rope, int64_t num_positions, float *cos_out, float *sin_out);

/* --- blocks: what stands between a norm and the residual addition --- */

struct rk_block_ops;

#define RK_BLOCK_MAX_CACHES      2
#define RK_BLOCK_MAX_ACTIVATIONS 24

/* A tensor of the paged cache: what a block remembers of every token, in the model's dtype. */
struct rk_cache_decl {
    const char *name;     /* "k" */
    int64_t heads, width; /* of this rank: heads vectors of width elements a token */
};

/* When a tensor exists, and what it is taken from. */
typedef enum rk_activation_life {
    RK_ACTIVATION_SAVED,    /* forward makes it and backward reads it: kept if a backward pass follows */
    RK_ACTIVATION_KEPT,     /* only if one follows */
    RK_ACTIVATION_FORWARD,  /* scratch of forward */
    RK_ACTIVATION_BACKWARD, /* scratch of backward */
    RK_ACTIVATION_LIFE_COUNT
} rk_activation_life_t;

/* A tensor that a block makes: [num_tokens * rows_per_token, columns], or [num_rows, columns]. */
struct rk_activation_decl {
    const char *name; /* "qkv" */
    rk_activation_life_t life;
    bool is_stat;           /* in the dtype of statistics; otherwise in the model's */
    int64_t columns;        /* of this rank; 0: this block makes none */
    bool is_index;          /* I32 */
    int64_t rows_per_token; /* 0: 1 */
    int64_t num_rows;       /* above 0: this many, whatever the tokens are */
};

/* What a block says of itself on this rank. Caches, tables and plans are made from it: nobody else works out
 * shapes from a configuration. Temporary tensors of products and collectives are not listed: those depend on
 * the pass. */
struct rk_block_decl {
    struct rk_rope_spec rope; /* width 0: it rotates nothing */
    int32_t num_caches;       /* 0: it remembers nothing of earlier tokens */
    struct rk_cache_decl caches[RK_BLOCK_MAX_CACHES];
    int32_t num_activations; /* the numbers are the block's own: what it asks rk_activation_make for */
    struct rk_activation_decl activations[RK_BLOCK_MAX_ACTIVATIONS];
};

/* One block of a model. */
struct rk_block {
    const struct rk_block_ops *ops;
    int64_t layer;
    struct rk_weight norm; /* in front of it */
    void *own;             /* ops->block_bytes: weights and dimensions, those of this rank */
    struct rk_block_decl decl;
    /* By the model, from decl. */
    int64_t first_cache; /* index of its first tensor among those of all blocks */
    int32_t rope;        /* index of its table among the model's; -1: none */
};

/* Where a block stands, when its parameters are declared. */
struct rk_block_site {
    const struct rk_model_config *config;
    int64_t layer;
    const char *module; /* "self_attn" */
};

#define RK_BLOCK_ABI 2

/* A kind of block. What it holds and what it keeps between the passes is its own affair: others only make
 * room for it. */
struct rk_block_ops {
    const char *name; /* "attention", "swiglu" */
    uint32_t abi;
    size_t block_bytes; /* of block->own */
    size_t saved_bytes; /* of what forward keeps for backward, in host memory */
    /* Required. Adds the parameters to the table and fills block->own and block->decl, which are zero;
     * INVALID_ARGUMENT when tp does not divide them. */
    struct rk_status *(*declare)(struct rk_block *block, struct rk_param_table *params,
                                 const struct rk_block_site *site);
    /* Required. out = f(x), both [num_rows, hidden_size]. `out` none: only what the backward function needs
     * is made. saved: written anew. */
    struct rk_status *(*forward)(struct rk_pass *pass, const struct rk_block *block, rk_tensor_t x,
                                 rk_tensor_t out, void *saved);
    /* Required. May overwrite the tensors that were saved. */
    struct rk_status *(*backward)(struct rk_pass *pass, const struct rk_block *block, const void *saved,
                                  rk_tensor_t x, rk_tensor_t dout, rk_tensor_t dx);
};

/* --- block.c: what follows from a declaration --- */
/* Bytes a token, of one tensor of the cache and of all that a block has. */
int64_t rk_cache_bytes(const struct rk_cache_decl *cache, rk_dtype_t dtype);
int64_t rk_block_cache_bytes(const struct rk_block *block, rk_dtype_t dtype);
/* Bytes a token of the activations with that life; those with a number of rows of their own are not in it. */
int64_t rk_block_activation_bytes(const struct rk_block *block, rk_activation_life_t life, rk_dtype_t dtype,
                                  rk_dtype_t stat_dtype);
/* Makes activation `i` of the block, as declared, where its life says. RESOURCE_EXHAUSTED. */
struct rk_status *rk_activation_make(const struct rk_pass *pass, const struct rk_block *block, int32_t i,
                                     rk_tensor_t *out) RK_NODISCARD;
/* Tensor `i` of the block's cache, [num_blocks, heads, block size, width]. Of a pass over a cache. */
rk_tensor_t rk_block_cache(const struct rk_pass *pass, const struct rk_block *block, int32_t i);
/* The table of a block that rotates. */
const struct rk_rope_tables *rk_block_rope(const struct rk_pass *pass, const struct rk_block *block);

extern const struct rk_block_ops rk_block_attention; /* attention.c: grouped queries, rotary positions */
extern const struct rk_block_ops rk_block_swiglu;    /* mlp.c */
extern const struct rk_block_ops rk_block_moe;       /* moe.c: experts, and a shared one beside them */

/* --- heads: what turns final hidden states into the outputs of enum rk_head_output; rows of heads.c --- */
struct rk_head_ops;

struct rk_head {
    const struct rk_head_ops *ops;
    struct rk_weight weight; /* [columns, hidden_size] */
    /* Of the language model head. */
    int64_t vocab_begin;  /* of my part */
    int64_t num_valid;    /* of my columns: the others are padding */
    int64_t chunk_tokens; /* RK_HEAD_CHUNK */
};

/* Several ids a position, as in struct rk_head_ids; none where they are not wanted. */
struct rk_head_id_tensors {
    rk_tensor_t ids;           /* I32 [L, K] */
    rk_tensor_t log_probs;     /* stat [L, K]: theirs, or gradients by these */
    rk_tensor_t log_prob_sum;  /* stat [L]: of gradients, over the ids */
    rk_tensor_t top_ids;       /* I32 [L, K] */
    rk_tensor_t top_log_probs; /* stat [L, K] */
};

struct rk_head_saved {
    rk_tensor_t x;         /* [L, hidden_size]: hidden states at the positions with a label */
    rk_tensor_t index;     /* I32 [L]: these positions */
    rk_tensor_t labels;    /* I32 [L] */
    float inv_temperature; /* what logits are multiplied with */
    /* Of the language model head. */
    rk_tensor_t ids;          /* I32 [L, K]: whose log-probs are wanted; or none */
    int64_t num_top_ids;      /* how many of the most likely ids are wanted */
    rk_tensor_t id_log_probs; /* stat [L, K], of `ids` */
    rk_tensor_t stats;        /* F64 [L, 4], merged over tp */
    rk_tensor_t squares;      /* F64 [L], merged over tp; none where sum_pi_squared is not wanted */
    rk_tensor_t
        logits; /* [<= chunk_tokens, local vocab_size]: of the last chunk; gone after a mere forward */
};

/* Stat [L] for each output; none where it is not wanted. */
struct rk_head_out {
    rk_tensor_t of[RK_HEAD_OUTPUT_COUNT];
    struct rk_head_id_tensors ids;
};

/* Where a head stands, when its parameters are declared. */
struct rk_head_site {
    const struct rk_model_config *config;
    const struct rk_weight *embedding; /* for a head that shares it */
};

#define RK_HEAD_ABI 1

struct rk_head_ops {
    const char *name; /* "lm" */
    uint32_t abi;
    uint32_t outputs;                 /* RK_HEAD_BIT of what it computes */
    const char *const *architectures; /* ends of config.json's architectures that it takes; NULL ends them */
    /* Required. Adds the parameters to the table and fills the head. */
    void (*declare)(struct rk_head *head, struct rk_param_table *params, const struct rk_head_site *site);
    /* Required. From hidden [num_rows, hidden_size]. The caller has filled index, labels and inv_temperature
     * of `saved`, and ids and num_top_ids where the head computes log_probs; the function makes the rest, and
     * those of *out that `wanted` has a bit for. */
    struct rk_status *(*forward)(const struct rk_pass *pass, const struct rk_head *head, rk_tensor_t hidden,
                                 uint32_t wanted, struct rk_head_saved *saved, struct rk_head_out *out);
    /* Required. dhidden [num_rows, hidden_size], 0 where there is no label; gradients of outputs that were
     * not wanted are none. */
    struct rk_status *(*backward)(const struct rk_pass *pass, const struct rk_head *head,
                                  const struct rk_head_saved *saved, const struct rk_head_out *dout,
                                  rk_tensor_t dhidden);
};

extern const struct rk_head_ops rk_head_lm;    /* head_lm.c: log-probs over the vocabulary */
extern const struct rk_head_ops rk_head_value; /* head_value.c: of a critic */
extern const struct rk_head_ops rk_head_score; /* head_value.c: of a reward model */

const struct rk_head_ops *rk_head_find(const char *name); /* NULL when unknown */
/* UNIMPLEMENTED when config.json names an architecture that the head does not take. */
struct rk_status *rk_head_check_architecture(const struct rk_head_ops *ops,
                                             const struct rk_json *hf_config) RK_NODISCARD;

/* saved->x = hidden at the labelled positions, of all tokens. */
struct rk_status *rk_head_gather(const struct rk_pass *pass, rk_tensor_t hidden,
                                 struct rk_head_saved *saved) RK_NODISCARD;
/* And back, dhidden = dx there and 0 elsewhere: of dx that all tp ranks have, or each a summand of, which is
 * summed. The second may overwrite dx. */
struct rk_status *rk_head_scatter(const struct rk_pass *pass, const struct rk_head_saved *saved,
                                  rk_tensor_t dx, rk_tensor_t dhidden) RK_NODISCARD;
struct rk_status *rk_head_scatter_sum(const struct rk_pass *pass, const struct rk_head_saved *saved,
                                      rk_tensor_t dx, rk_tensor_t dhidden) RK_NODISCARD;

/* Logits [n, padded vocab_size] of hidden states [n, hidden_size], gathered over tp. Of the language model
 * head. */
struct rk_status *rk_head_logits(const struct rk_pass *pass, const struct rk_head *head, rk_tensor_t x,
                                 rk_tensor_t *logits) RK_NODISCARD;

#endif
