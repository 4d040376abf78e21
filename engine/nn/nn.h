/* Private to engine/: the building blocks of layers, each a forward and a backward function.
 *
 * A rank of the tp group holds its heads, its part of the intermediate size and its part of the vocabulary,
 * of all tokens. The residual stream, [num_rows, hidden_size], is either the same on all of these ranks, or
 * split by tokens (sequence_tp.c). Column-parallel layers sum the gradient of their input over tp,
 * row-parallel ones their output (docs/parallelism.md). Backward functions accumulate the gradients of
 * weights and overwrite those of activations. The caller provides the outputs; tensors that a forward
 * function saves for its backward function are in the step arena. */
#ifndef RK_ENGINE_NN_H
#define RK_ENGINE_NN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_arena.h"
#include "base/rk_status.h"
#include "base/layout/rk_zigzag.h"
#include "engine/params/params.h"
#include "engine/rk_comm.h"
#include "engine/rk_model.h"
#include "engine/tensor/step_arena.h"
#include "kernels/rk_kernels.h"

/* Tokens whose logits exist at the same time: bounds the head's memory to RK_HEAD_CHUNK * vocab_size / tp
 * elements. The logits of every chunk but the last are computed twice, and every chunk reads and writes the
 * whole gradient of the weight: a training step of Qwen2.5-1.5B with 8192 tokens takes 171, 168, 166, 163 ms
 * on an H200 with chunks of 1024, 2048, 4096, 8192, whose logits take 0.3, 0.6, 1.2, 2.3 GiB. */
#define RK_HEAD_CHUNK 8192

/* One or more adjacent rows of the parameter table that are used as one matrix. */
struct rk_weight {
    int64_t param;      /* the first of these rows */
    int64_t rows, cols; /* local; cols 0 for a vector */
    bool has_bias;      /* linear layers; column-parallel ones only */
    int64_t bias_param; /* the first row of the biases: `rows` adjacent elements */
};

/* New tokens of several sequences with a paged cache. */
struct rk_paged_step {
    int64_t num_tokens;
    int32_t num_seqs;
    int32_t num_logits;
    rk_tensor_t tokens, positions, slot_mapping, block_table, cu_q, seq_lens, logits_index; /* device, I32 */
    const rk_tensor_t *caches; /* of all blocks: the tensors of a block begin at its first_cache */
    rk_tensor_t chosen;        /* none, or as in struct rk_pass: receives the choices of the routers */
};

/* A packed micro-batch split over the ranks of a cp group (base/layout/rk_zigzag.h). Its sequences are padded
 * at the end; the whole micro-batch has num_keys rows, and every rank has num_keys / cp of them. */
struct rk_context {
    struct rk_comm_group *group;
    int64_t num_keys;
    /* I32 [num_keys], permutations between the whole micro-batch and the concatenated rows of all ranks: row
     * i of the former is row to_whole[i] of the latter, and row i of the latter is row to_ranks[i] of the
     * former. */
    rk_tensor_t to_whole, to_ranks;
    /* Segments of attention, whose query offsets are pass->cu_seqlens: I32 [two per sequence]. k_lens is
     * indexed by the halves that a call covers (enum rk_zigzag_half). */
    rk_tensor_t k_begin, k_lens[RK_ZIGZAG_BOTH + 1];
    /* Host [num_keys], in the order of to_ranks: index of the token in the caller's micro-batch, which has no
     * padding; -1: padding. */
    const int32_t *tokens;
    const int32_t *rows; /* host: to_ranks */
};

/* A stream beside the pass's stream, for collectives over tp and ep, and the events that order the two. */
struct rk_side {
    struct rk_stream *stream;
    struct rk_event *is_ready, *is_done;
};

/* Arguments common to all operators of one forward (and backward) pass. */
struct rk_pass {
    struct rk_stream *stream;
    const struct rk_side *side;  /* NULL: all work is on `stream` */
    struct rk_step_arena *arena; /* temporary memory of one operator, or of one direction of the pass */
    struct rk_step_arena *kept;  /* tensors saved by the forward pass for the backward pass; may be the same
                                  * arena */
    struct rk_arena *host;       /* host memory with the lifetime of `kept` */
    struct rk_comm_group *tp;
    struct rk_comm_group *ep;     /* ranks that have different experts */
    struct rk_comm_group *etp;    /* ranks of tp that have parts of the same experts */
    rk_dtype_t dtype, stat_dtype; /* of activations; of statistics */
    rk_dtype_t grad_dtype;        /* of gradients of weights: stat_dtype unless the trainer sets another */
    bool is_strict;
    bool keeps_activations; /* blocks save what their backward functions need */
    const struct rk_param_table *params;
    void *values, *grads;  /* flat buffers; grads NULL when no backward pass follows */
    bool overwrites_grads; /* linear layers and experts overwrite their gradients: the old contents are of
                            * an earlier step */
    int64_t num_packed;    /* tokens of the caller's micro-batch, which has no padding; 0 with a cache */
    int64_t num_tokens;    /* of attention and the GEMMs: tokens of all sequences, or this rank's part */
    int64_t num_rows;      /* of the residual stream on this rank */
    bool splits_rows;      /* num_rows is num_tokens / tp: sequence parallelism (sequence_tp.c) */
    int64_t hidden_size;
    int64_t vocab_size; /* number of ids that the head does not mask */
    float norm_eps;
    rk_tensor_t tokens, positions;      /* I32 [T] */
    const struct rk_rope_tables *ropes; /* tables of the model; a block's index is block->rope */
    rk_tensor_t row_numbers;            /* I32 [RK_HEAD_CHUNK]: 0, 1, 2, ...; none if tp is 1 */
    /* Where attention finds the keys: in packed sequences, in the packed sequences of all cp ranks, or in a
     * cache. */
    rk_tensor_t cu_seqlens; /* with a context: of segments */
    int32_t max_seqlen;
    /* Router replay. ids: I32 [num_routes * num_tokens, top_k], one layer after the other; none: the routers
     * choose. chosen: I16 [num_tokens, num_routes * top_k], receives what the routers choose, also with ids;
     * none: not wanted. This rank routes `num_tokens` of routes.num_tokens tokens, from `begin` on. */
    struct {
        rk_tensor_t ids, chosen;
        int64_t num_tokens, begin;
    } routes;
    /* Statistics of routers. The backward pass sums them up, and adds the gradients of losses on the scores
     * (struct rk_moe_balance_args). */
    struct {
        rk_tensor_t sums;     /* F64 [num_routes, E + RK_NUM_ROUTER_SUMS]; none: it is not */
        rk_tensor_t segments; /* I32 [routes.num_tokens, or num_tokens without routes]: -1 for padding; tokens
                               * that this rank routes begin at routes.begin */
        rk_tensor_t weights;  /* stat [number of segments]: of their balance losses; none: there is none */
        double z_weight;      /* of the z-loss of a token; 0: there is none */
    } routers;
    const struct rk_context *context;    /* NULL: this rank has the whole micro-batch */
    const struct rk_paged_step *paged;   /* NULL: packed */
    const struct rk_engine_hooks *hooks; /* optional; NULL disables progress callbacks */
    /* Called when the backward pass has written the gradients of all parameters from `first_param` on (in the
     * order of the forward pass). NULL disables it. */
    struct rk_status *(*on_grads_ready)(void *user, int64_t first_param);
    void *grads_user;
};

static inline struct rk_status *rk_pass_grads_ready(const struct rk_pass *pass, int64_t first_param)
{
    return pass->on_grads_ready ? pass->on_grads_ready(pass->grads_user, first_param) : NULL;
}

/* Zeroed host memory of the current pass for `count` elements: *out, a pointer, is never NULL on success.
 * RESOURCE_EXHAUSTED. */
struct rk_status *rk_pass_alloc_host(const struct rk_pass *pass, void *out, int64_t count,
                                     size_t elem_bytes) RK_NODISCARD;

/* Arena for tensors that a block's forward function saves. */
static inline struct rk_step_arena *rk_pass_saved_arena(const struct rk_pass *pass)
{
    return pass->keeps_activations ? pass->kept : pass->arena;
}

/* Reports progress: call after every block and every chunk of the head. */
static inline void rk_pass_note_alive(const struct rk_pass *pass)
{
    if (pass->hooks && pass->hooks->on_alive)
        pass->hooks->on_alive(pass->hooks->user);
}

rk_tensor_t rk_weight_value(const struct rk_pass *pass, const struct rk_weight *weight);
bool rk_weight_is_trained(const struct rk_pass *pass, const struct rk_weight *weight);
/* Only of a trained weight. */
rk_tensor_t rk_weight_grad(const struct rk_pass *pass, const struct rk_weight *weight);
/* For operators that always compute a gradient: of a weight that is not trained, memory of the pass's arena
 * with arbitrary contents that nothing reads. */
struct rk_status *rk_weight_grad_or_scratch(const struct rk_pass *pass, const struct rk_weight *weight,
                                            rk_tensor_t *out) RK_NODISCARD;

/* --- sequence_tp.c: between the rows of the residual stream, [num_rows, n], and all tokens, [num_tokens, n].
 * Without sequence parallelism they are the same memory. These functions allocate in pass->arena. --- */
struct rk_status *rk_sp_gather(const struct rk_pass *pass, rk_tensor_t rows,
                               rk_tensor_t *tokens) RK_NODISCARD;
/* Allocates this rank's summands of `rows`, and sums them over tp. */
struct rk_status *rk_sp_begin_sum(const struct rk_pass *pass, rk_tensor_t rows,
                                  rk_tensor_t *tokens) RK_NODISCARD;
struct rk_status *rk_sp_sum(const struct rk_pass *pass, rk_tensor_t tokens, rk_tensor_t rows,
                            rk_reduce_op_t op) RK_NODISCARD;
/* rk_sp_gather and rk_sp_sum on the side stream, after the work enqueued on the pass's stream so far. Work
 * enqueued on the pass's stream before rk_pass_join overlaps them and may read their inputs. One of them at a
 * time. */
struct rk_status *rk_sp_start_gather(const struct rk_pass *pass, rk_tensor_t rows,
                                     rk_tensor_t *tokens) RK_NODISCARD;
struct rk_status *rk_sp_start_sum(const struct rk_pass *pass, rk_tensor_t tokens, rk_tensor_t rows,
                                  rk_reduce_op_t op) RK_NODISCARD;
/* *out: the side stream, made to wait for the pass's stream; without a side stream, the latter. */
struct rk_status *rk_pass_fork(const struct rk_pass *pass, struct rk_stream **out) RK_NODISCARD;
/* Makes the pass's stream wait for the side stream. */
struct rk_status *rk_pass_join(const struct rk_pass *pass) RK_NODISCARD;
/* This rank's rows of tokens that are the same on all ranks. */
struct rk_status *rk_sp_keep(const struct rk_pass *pass, rk_tensor_t tokens, rk_tensor_t rows) RK_NODISCARD;

/* --- linear_tp.c. y [T, rows], x [T, cols]; the gradients of weight and bias are accumulated, that of the
 * weight unless the pass overwrites it. --- */
/* The GEMM of this rank alone: dx is a partial sum when rows are split, y when columns are. */
struct rk_status *rk_linear_fwd(const struct rk_pass *pass, const struct rk_weight *weight, rk_tensor_t x,
                                rk_tensor_t y) RK_NODISCARD;
struct rk_status *rk_linear_bwd(const struct rk_pass *pass, const struct rk_weight *weight, rk_tensor_t x,
                                rk_tensor_t dy, rk_tensor_t dx) RK_NODISCARD;
/* The two halves of rk_linear_bwd: the gradients of weight and bias, and dx. */
struct rk_status *rk_linear_bwd_weight(const struct rk_pass *pass, const struct rk_weight *weight,
                                       rk_tensor_t x, rk_tensor_t dy) RK_NODISCARD;
struct rk_status *rk_linear_bwd_input(const struct rk_pass *pass, const struct rk_weight *weight,
                                      rk_tensor_t dy, rk_tensor_t dx) RK_NODISCARD;
/* y = silu(gate) * up of the GEMM's output [gate; up], which is not saved: gate_up is undefined
 * afterwards. */
struct rk_status *rk_linear_swiglu_fwd(const struct rk_pass *pass, const struct rk_weight *weight,
                                       rk_tensor_t x, rk_tensor_t gate_up, rk_tensor_t y) RK_NODISCARD;
/* Column-parallel, from the residual stream to all tokens: x and dx have num_rows rows, y and dy
 * num_tokens. */
struct rk_status *rk_linear_column_fwd(const struct rk_pass *pass, const struct rk_weight *weight,
                                       rk_tensor_t x, rk_tensor_t y) RK_NODISCARD;
/* rk_linear_swiglu_fwd, column-parallel. */
struct rk_status *rk_linear_column_swiglu_fwd(const struct rk_pass *pass, const struct rk_weight *weight,
                                              rk_tensor_t x, rk_tensor_t gate_up, rk_tensor_t y) RK_NODISCARD;
/* dx must not alias x or dy. */
struct rk_status *rk_linear_column_bwd(const struct rk_pass *pass, const struct rk_weight *weight,
                                       rk_tensor_t x, rk_tensor_t dy, rk_tensor_t dx) RK_NODISCARD;
/* Row-parallel, from all tokens to the residual stream: x and dx have num_tokens rows, y and dy num_rows. */
struct rk_status *rk_linear_row_fwd(const struct rk_pass *pass, const struct rk_weight *weight, rk_tensor_t x,
                                    rk_tensor_t y) RK_NODISCARD;
struct rk_status *rk_linear_row_bwd(const struct rk_pass *pass, const struct rk_weight *weight, rk_tensor_t x,
                                    rk_tensor_t dy, rk_tensor_t dx) RK_NODISCARD;

/* --- embed_vp.c: vocabulary-parallel embedding --- */
/* Declares [vocab_size, hidden_size], split by rows and padded to equal parts over tp. */
struct rk_weight rk_vocabulary_declare(struct rk_param_table *params, const struct rk_model_config *config,
                                       const char *name, const char *alias);
struct rk_embedding {
    struct rk_weight weight;
    int64_t vocab_begin; /* first id of this rank's part */
};
/* out and dout are residual streams. */
struct rk_status *rk_embedding_fwd(const struct rk_pass *pass, const struct rk_embedding *embedding,
                                   rk_tensor_t out) RK_NODISCARD;
struct rk_status *rk_embedding_bwd(const struct rk_pass *pass, const struct rk_embedding *embedding,
                                   rk_tensor_t dout) RK_NODISCARD;

/* --- context.c: rows of all cp ranks. Only in passes with a context. --- */
/* whole [num_keys, columns]: the columns of num_x tensors x [T, ...] side by side, of all ranks, in the order
 * of the whole micro-batch. Collective over cp. */
struct rk_status *rk_context_gather(const struct rk_pass *pass, const rk_tensor_t *x, int num_x,
                                    rk_tensor_t whole) RK_NODISCARD;
/* Its adjoint: sums `whole` over all ranks; each gets its rows. */
struct rk_status *rk_context_reduce(const struct rk_pass *pass, rk_tensor_t whole, const rk_tensor_t *x,
                                    int num_x) RK_NODISCARD;

/* --- norm.c: the residual addition and the norm before a block --- */
struct rk_norm_saved {
    rk_tensor_t x;    /* input of the norm: the residual after the addition */
    rk_tensor_t rstd; /* none when no backward pass follows */
};
/* s = residual + delta, y = norm(s); delta none gives the same bits as residual = s. */
struct rk_norm_io {
    rk_tensor_t residual, delta; /* delta none: s = residual */
    rk_tensor_t sum;             /* output s: may alias residual; none without delta */
    rk_tensor_t y;
    rk_tensor_t rstd; /* stat [num_rows], or none */
};
struct rk_status *rk_norm_fwd(const struct rk_pass *pass, const struct rk_weight *weight,
                              const struct rk_norm_io *io) RK_NODISCARD;
/* dresidual <- dresidual + d(norm), in place; `is_first`: dresidual is uninitialized and is overwritten. */
struct rk_status *rk_norm_bwd(const struct rk_pass *pass, const struct rk_weight *weight,
                              const struct rk_norm_saved *saved, rk_tensor_t dy, rk_tensor_t dresidual,
                              bool is_first) RK_NODISCARD;

/* --- rope.c --- */
/* Parameters of a RoPE table. */
struct rk_rope_spec {
    int64_t width; /* columns of a head that RoPE applies to, an even number; 0: none */
    double theta;
    struct rk_rope_scaling scaling;
};
/* F32 [max_position_embeddings, width / 2], on the device. */
struct rk_rope_tables {
    rk_tensor_t cos, sin;
};
/* Whether both specifications have the same tables. */
bool rk_rope_equal(const struct rk_rope_spec *a, const struct rk_rope_spec *b);
/* Frequency k of width / 2 with scaling, rounded to fp32 at the same steps as Hugging Face. */
float rk_rope_inv_freq(const struct rk_rope_spec *rope, int64_t k);
/* cos and sin [num_positions, width / 2] in host memory. */
void rk_rope_table(const struct rk_rope_spec *rope, int64_t num_positions, float *cos_out, float *sin_out);

/* --- blocks: functions between a norm and the residual addition --- */

struct rk_block_ops;

#define RK_BLOCK_MAX_CACHES      2
#define RK_BLOCK_MAX_ACTIVATIONS 32

/* A tensor of the paged cache: what a block stores per token, in the model's dtype. */
struct rk_cache_decl {
    const char *name;     /* "k" */
    int64_t heads, width; /* of this rank: `heads` vectors of `width` elements per token */
};

/* When a tensor exists, and which memory it is allocated from. */
typedef enum rk_activation_life {
    RK_ACTIVATION_SAVED,    /* written by forward, read by backward: saved if a backward pass follows */
    RK_ACTIVATION_KEPT,     /* allocated only if a backward pass follows */
    RK_ACTIVATION_FORWARD,  /* temporary of forward */
    RK_ACTIVATION_BACKWARD, /* temporary of backward */
    RK_ACTIVATION_LIFE_COUNT
} rk_activation_life_t;

/* A tensor that a block allocates: [num_tokens * rows_per_token, columns], or [num_rows, columns]. */
struct rk_activation_decl {
    const char *name; /* "qkv" */
    rk_activation_life_t life;
    bool is_stat;           /* in the dtype of statistics; otherwise in the model's */
    int64_t columns;        /* of this rank; 0: not allocated */
    bool is_index;          /* I32 */
    int64_t rows_per_token; /* 0: 1 */
    int64_t num_rows;       /* above 0: number of rows, independent of the tokens */
    bool of_rows;           /* one row per row of the residual stream: fewer with sequence parallelism */
};

/* Declaration of a block on this rank. Caches, RoPE tables and memory plans are computed from it; no other
 * code derives shapes from a configuration. Temporary tensors of GEMMs and collectives are not listed: they
 * depend on the pass. */
struct rk_block_decl {
    struct rk_rope_spec rope; /* width 0: no RoPE */
    bool has_routes;          /* tokens go to experts, which a pass may give (rk_pass_routes) */
    int32_t num_caches;       /* 0: stores nothing per token */
    struct rk_cache_decl caches[RK_BLOCK_MAX_CACHES];
    int32_t num_activations; /* indices are defined by the block: it passes them to rk_activation_make */
    struct rk_activation_decl activations[RK_BLOCK_MAX_ACTIVATIONS];
};

/* One block of a model. */
struct rk_block {
    const struct rk_block_ops *ops;
    int64_t layer;
    struct rk_weight norm; /* norm before the block */
    void *own;             /* ops->block_bytes: weights and dimensions of this rank */
    struct rk_block_decl decl;
    /* Set by the model from decl. */
    int64_t first_cache; /* index of its first tensor among the tensors of all blocks */
    int32_t rope;        /* index of its table in the model; -1: none */
    int64_t route;       /* index among the blocks that have routes */
};

/* Values of the blocks of one layer: layers of one model may differ in them. Blocks know no other keys of the
 * model's configuration. */
struct rk_layer_values {
    /* Attention. */
    int64_t num_heads, num_kv_heads, head_dim;
    bool has_qkv_bias;
    bool has_qk_norm;     /* RMSNorm of every head of queries and keys */
    int32_t window;       /* keys that a query attends to, itself included; 0: all before it */
    double softmax_scale; /* of the scores */
    struct rk_rope_spec rope;
    struct rk_latent_config latent;
    /* MLP, experts. */
    int64_t intermediate_size;
    struct rk_moe_config moe;
};

/* Position of a block in the model when its parameters are declared. */
struct rk_block_site {
    const struct rk_layer_values *values;
    int64_t hidden_size;
    const struct rk_model_layout *layout;
    int64_t layer;
    const char *module; /* "self_attn" */
};

/* A kind of block. Its weights and its saved tensors are opaque to callers, which only allocate memory for
 * them. */
struct rk_block_ops {
    const char *name;   /* "attention", "swiglu" */
    size_t block_bytes; /* of block->own */
    size_t saved_bytes; /* size of the state that forward saves for backward, in host memory */
    /* Required. Adds the parameters to the table and fills block->own and block->decl, which are zeroed;
     * INVALID_ARGUMENT when tp does not divide them. */
    struct rk_status *(*declare)(struct rk_block *block, struct rk_param_table *params,
                                 const struct rk_block_site *site);
    /* Required. out = f(x), both [num_rows, hidden_size]. `out` none: computes only what the backward
     * function needs. Overwrites `saved`. */
    struct rk_status *(*forward)(struct rk_pass *pass, const struct rk_block *block, rk_tensor_t x,
                                 rk_tensor_t out, void *saved);
    /* Required. May overwrite the saved tensors. */
    struct rk_status *(*backward)(struct rk_pass *pass, const struct rk_block *block, const void *saved,
                                  rk_tensor_t x, rk_tensor_t dout, rk_tensor_t dx);
};

/* --- block.c: derived from a declaration --- */
/* Bytes per token: of one tensor of the cache, and of all a block's tensors. */
int64_t rk_cache_bytes(const struct rk_cache_decl *cache, rk_dtype_t dtype);
int64_t rk_block_cache_bytes(const struct rk_block *block, rk_dtype_t dtype);
/* Bytes per token of the activations with that life, except activations with num_rows. */
int64_t rk_block_activation_bytes(const struct rk_block *block, rk_activation_life_t life, rk_dtype_t dtype,
                                  rk_dtype_t stat_dtype);
/* Allocates activation `i` of the block, as declared, in the memory for its life. RESOURCE_EXHAUSTED. */
struct rk_status *rk_activation_make(const struct rk_pass *pass, const struct rk_block *block, int32_t i,
                                     rk_tensor_t *out) RK_NODISCARD;
/* Tensor `i` of the block's cache, [num_blocks, heads, block size, width]. Only in a pass with a cache. */
rk_tensor_t rk_block_cache(const struct rk_pass *pass, const struct rk_block *block, int32_t i);
/* The table of a block with RoPE. */
const struct rk_rope_tables *rk_block_rope(const struct rk_pass *pass, const struct rk_block *block);

extern const struct rk_block_ops rk_block_attention; /* attention.c: grouped-query attention with RoPE */
extern const struct rk_block_ops rk_block_latent;    /* latent.c: attention over a latent */
extern const struct rk_block_ops rk_block_swiglu;    /* mlp.c */
extern const struct rk_block_ops rk_block_moe;       /* moe.c: routed experts and a shared expert */

/* --- heads: compute the outputs of enum rk_head_output from final hidden states; rows of heads.c --- */
struct rk_head_ops;

struct rk_head {
    const struct rk_head_ops *ops;
    struct rk_weight weight; /* [columns, hidden_size] */
    /* Only of the language model head. */
    int64_t vocab_begin;  /* first id of this rank's part */
    int64_t num_valid;    /* columns of this rank that are not padding */
    int64_t chunk_tokens; /* RK_HEAD_CHUNK */
};

/* Several ids per position, as in struct rk_head_ids; none if not requested. */
struct rk_head_id_tensors {
    rk_tensor_t log_probs;     /* stat [L, K]: their log-probs, or the gradients with respect to these */
    rk_tensor_t log_prob_sum;  /* stat [L]: of gradients, sum over the ids */
    rk_tensor_t top_ids;       /* I32 [L, K] */
    rk_tensor_t top_log_probs; /* stat [L, K] */
};

struct rk_head_saved {
    rk_tensor_t x;         /* [L, hidden_size]: hidden states at the positions with a label */
    rk_tensor_t index;     /* I32 [L]: these positions */
    rk_tensor_t labels;    /* I32 [L] */
    float inv_temperature; /* factor of the logits */
    /* Only of the language model head. */
    rk_tensor_t ids;          /* I32 [L, K]: ids whose log-probs are requested; or none */
    int64_t num_top_ids;      /* number of most likely ids requested */
    rk_tensor_t id_log_probs; /* stat [L, K], of `ids` */
    rk_tensor_t stats;        /* F64 [L, 4], merged over tp */
    rk_tensor_t squares;      /* F64 [L], merged over tp; none unless sum_pi_squared is requested */
    rk_tensor_t logits;       /* [<= chunk_tokens, local vocab_size]: of the last chunk; not valid after a
                               * forward-only       pass */
};

/* stat [L] for each output; none if not requested. */
struct rk_head_out {
    rk_tensor_t of[RK_HEAD_OUTPUT_COUNT];
    struct rk_head_id_tensors ids;
};

/* Position of a head in the model when its parameters are declared. */
struct rk_head_site {
    const struct rk_model_config *config;
    const struct rk_weight *embedding; /* for a head that shares its weight */
};

struct rk_head_ops {
    const char *name;                 /* "lm" */
    uint32_t outputs;                 /* RK_HEAD_BIT of the outputs that it computes */
    const char *const *architectures; /* suffixes of the architectures of config.json that it supports; NULL
                                       * ends them */
    /* Required. Adds the parameters to the table and fills the head. */
    void (*declare)(struct rk_head *head, struct rk_param_table *params, const struct rk_head_site *site);
    /* Required. Computes the outputs from hidden [num_rows, hidden_size]. The caller has filled index, labels
     * and inv_temperature of `saved`, and ids and num_top_ids if the head computes log_probs; the function
     * fills the rest, and the members of *out that `wanted` has a bit for. */
    struct rk_status *(*forward)(const struct rk_pass *pass, const struct rk_head *head, rk_tensor_t hidden,
                                 uint32_t wanted, struct rk_head_saved *saved, struct rk_head_out *out);
    /* Required. dhidden [num_rows, hidden_size], 0 at positions without a label; gradients of outputs that
     * were not requested are none. */
    struct rk_status *(*backward)(const struct rk_pass *pass, const struct rk_head *head,
                                  const struct rk_head_saved *saved, const struct rk_head_out *dout,
                                  rk_tensor_t dhidden);
};

extern const struct rk_head_ops rk_head_lm;    /* head_lm.c: log-probs over the vocabulary */
extern const struct rk_head_ops rk_head_value; /* head_value.c: of a critic */
extern const struct rk_head_ops rk_head_score; /* head_value.c: of a reward model */

const struct rk_head_ops *rk_head_find(const char *name); /* NULL when unknown */
/* UNIMPLEMENTED when config.json names an architecture that the head does not support. */
struct rk_status *rk_head_check_architecture(const struct rk_head_ops *ops,
                                             const struct rk_json *hf_config) RK_NODISCARD;

/* saved->x = hidden at the labelled positions, over all tokens. */
struct rk_status *rk_head_gather(const struct rk_pass *pass, rk_tensor_t hidden,
                                 struct rk_head_saved *saved) RK_NODISCARD;
/* The inverse: dhidden = dx at the labelled positions and 0 elsewhere. In the first function dx is the same
 * on all tp ranks; in the second each has a summand, the sum is taken, and dx may be overwritten. */
struct rk_status *rk_head_scatter(const struct rk_pass *pass, const struct rk_head_saved *saved,
                                  rk_tensor_t dx, rk_tensor_t dhidden) RK_NODISCARD;
struct rk_status *rk_head_scatter_sum(const struct rk_pass *pass, const struct rk_head_saved *saved,
                                      rk_tensor_t dx, rk_tensor_t dhidden) RK_NODISCARD;

/* Logits [n, padded vocab_size] of hidden states [n, hidden_size], gathered over tp. Of the language model
 * head. */
struct rk_status *rk_head_logits(const struct rk_pass *pass, const struct rk_head *head, rk_tensor_t x,
                                 rk_tensor_t *logits) RK_NODISCARD;

#endif
