/* Private to bench/: models in the shapes of well-known ones, with random weights, and the costs of their
 * passes. */
#ifndef RK_BENCH_MODELS_H
#define RK_BENCH_MODELS_H

#include "bench/bench.h"
#include "engine/rk_rollout.h"
#include "engine/rk_train.h"

/* Layers of experts; count 0: none. The first num_dense layers have an MLP instead. */
struct bench_experts {
    int64_t count, per_token, intermediate_size, num_shared, num_dense;
};

/* Latent attention; rank 0: none. head_dim is nope_dim + rope_dim. */
struct bench_latent {
    int64_t rank, nope_dim, rope_dim, v_dim;
};

struct bench_model {
    const char *name;
    int64_t hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads, head_dim, vocab_size;
    bool tie_word_embeddings;
    struct bench_experts experts;
    struct bench_latent latent;
    const struct bench_model *tiny; /* with --tiny; NULL: bench_model_tiny */
};

/* Qwen2.5's, Llama's, Qwen3's and Moonlight's; _12: with 12 layers. */
extern const struct bench_model bench_model_1_5b, bench_model_7b, bench_model_8b;
extern const struct bench_model bench_model_30b_a3b, bench_model_30b_a3b_12, bench_model_moonlight,
    bench_model_moonlight_12;
extern const struct bench_model bench_model_tiny, bench_model_tiny_moe, bench_model_tiny_latent;
/* The tiny model, with one layer for each of 8 chunks. */
extern const struct bench_model bench_model_tiny_deep;

/* The model that is run: differs with --tiny. */
const struct bench_model *bench_shape(const struct bench_ctx *ctx, const struct bench_model *model);
/* Its config.json, as text of rk_alloc. */
char *bench_model_config(const struct bench_model *model, int64_t max_positions);

/* The model of a benchmark. */
struct bench_instance {
    struct rk_mesh *mesh;
    struct rk_mesh_comms *comms;
    struct rk_model *model;
    struct rk_trainer *trainer; /* NULL: it does not train */
    struct rk_rollout *rollout; /* NULL unless requested in desc */
    struct bench_model shape;   /* the tiny shape with --tiny */
};

struct bench_instance_desc {
    const struct bench_model *model;
    int64_t num_layers;     /* 0: the model's */
    int32_t tp, cp, dp, pp; /* 0: 1. More than one rank needs ctx->world. */
    int32_t ep;             /* of the ranks of these axes; 0: 1 */
    /* Pipeline: vpp 0 means 1 chunk per stage; layers 0 mean as many as the other stages. */
    int32_t vpp, num_first_layers, num_last_layers;
    bool is_strict, recomputes;
    bool is_deep;          /* with --tiny: uses the model with enough layers for a pipeline, even without
                            * one */
    bool is_whole;         /* every tp rank has all tokens: no sequence parallelism */
    const char *head;      /* NULL: "lm" */
    int64_t num_tokens;    /* of the largest packed pass */
    int64_t num_micros;    /* micro-batches of a step; 0: 1 */
    int64_t max_positions; /* tokens of the longest sequence; 0: 4096 */
    const struct rk_rollout_config *rollout; /* NULL: no generation */
    enum { BENCH_NO_TRAINING, BENCH_GRADIENTS_ONLY, BENCH_WITH_OPTIMIZER } training;
};

struct rk_status *bench_instance_open(struct bench_instance *out, struct bench_ctx *ctx,
                                      const struct bench_instance_desc *desc) RK_NODISCARD;
void bench_instance_close(struct bench_instance *instance); /* also if opening failed */
/* The shape that the instance will have: differs with --tiny. */
const struct bench_model *bench_instance_shape(const struct bench_ctx *ctx,
                                               const struct bench_instance_desc *desc);

/* Packed sequences of equal length with random ids; every position but a sequence's last has a label. */
struct bench_batch {
    struct rk_packed packed;
    int32_t *ints; /* memory of packed's arrays */
    double *log_probs, *entropy;
};
void bench_batch_init(struct bench_batch *batch, int32_t num_seqs, int32_t seq_len, int64_t vocab_size);
void bench_batch_fini(struct bench_batch *batch);

/* Parameters in GEMMs per token, including the output projection, without the embedding. Of experts: those
 * that a token goes to. */
double bench_matmul_params(const struct bench_model *model);
double bench_num_params(const struct bench_model *model);
/* For num_seqs sequences of seq_len tokens; causal attention counts half (2 N + L a (d_qk + d_v) S per token,
 * which is 2 N + 2 L h S where keys and values are equally wide). */
struct bench_cost bench_cost_forward(const struct bench_model *model, int64_t num_seqs, int64_t seq_len);
/* Three times the forward pass: recomputation does not count. */
struct bench_cost bench_cost_train(const struct bench_model *model, int64_t num_seqs, int64_t seq_len);
/* One decode step: reads the weights (of the experts that some token goes to), and the cache of `context`
 * tokens of each sequence. */
struct bench_cost bench_cost_decode(const struct bench_model *model, int64_t num_seqs, int64_t context);

/* dims of bench_run_collective: bytes, and one of these. */
enum bench_collective { BENCH_ALL_REDUCE, BENCH_ALL_GATHER, BENCH_REDUCE_SCATTER };

/* dims of bench_run_checkpoint: one of these. */
enum bench_checkpoint { BENCH_CKPT_STALL, BENCH_CKPT_SAVE, BENCH_CKPT_LOAD };

struct rk_status *bench_run_checkpoint(struct bench_ctx *ctx, const struct bench_case *bench,
                                       struct bench_result *result) RK_NODISCARD;
struct rk_status *bench_run_load_hf(struct bench_ctx *ctx, const struct bench_case *bench,
                                    struct bench_result *result) RK_NODISCARD;
struct rk_status *bench_run_collective(struct bench_ctx *ctx, const struct bench_case *bench,
                                       struct bench_result *result) RK_NODISCARD;
struct rk_status *bench_run_train(struct bench_ctx *ctx, const struct bench_case *bench,
                                  struct bench_result *result) RK_NODISCARD;
struct rk_status *bench_run_train_value(struct bench_ctx *ctx, const struct bench_case *bench,
                                        struct bench_result *result) RK_NODISCARD;
struct rk_status *bench_run_dpo(struct bench_ctx *ctx, const struct bench_case *bench,
                                struct bench_result *result) RK_NODISCARD;
struct rk_status *bench_run_values(struct bench_ctx *ctx, const struct bench_case *bench,
                                   struct bench_result *result) RK_NODISCARD;
struct rk_status *bench_run_fwd_bwd(struct bench_ctx *ctx, const struct bench_case *bench,
                                    struct bench_result *result) RK_NODISCARD;
/* Without recompute. */
struct rk_status *bench_run_fwd_bwd_kept(struct bench_ctx *ctx, const struct bench_case *bench,
                                         struct bench_result *result) RK_NODISCARD;
struct rk_status *bench_run_peak_memory(struct bench_ctx *ctx, const struct bench_case *bench,
                                        struct bench_result *result) RK_NODISCARD;
struct rk_status *bench_run_log_prob(struct bench_ctx *ctx, const struct bench_case *bench,
                                     struct bench_result *result) RK_NODISCARD;
struct rk_status *bench_run_strict_train(struct bench_ctx *ctx, const struct bench_case *bench,
                                         struct bench_result *result) RK_NODISCARD;
/* bench_run_strict_train without an optimizer. */
struct rk_status *bench_run_strict_fwd_bwd(struct bench_ctx *ctx, const struct bench_case *bench,
                                           struct bench_result *result) RK_NODISCARD;
struct rk_status *bench_run_decode(struct bench_ctx *ctx, const struct bench_case *bench,
                                   struct bench_result *result) RK_NODISCARD;
struct rk_status *bench_run_strict_decode(struct bench_ctx *ctx, const struct bench_case *bench,
                                          struct bench_result *result) RK_NODISCARD;
struct rk_status *bench_run_dp_scaling(struct bench_ctx *ctx, const struct bench_case *bench,
                                       struct bench_result *result) RK_NODISCARD;
struct rk_status *bench_run_tp_speedup(struct bench_ctx *ctx, const struct bench_case *bench,
                                       struct bench_result *result) RK_NODISCARD;

/* Benchmarks of layouts. dims of training over several ranks: sequences, tokens of each, micro-batches of a
 * step, and the layers of the first and the last stage (0: as many as the others). */
struct rk_status *bench_run_layout_step(struct bench_ctx *ctx, const struct bench_case *bench,
                                        struct bench_result *result) RK_NODISCARD;
/* bench_run_layout_step without an optimizer. */
struct rk_status *bench_run_layout_fwd_bwd(struct bench_ctx *ctx, const struct bench_case *bench,
                                           struct bench_result *result) RK_NODISCARD;
struct rk_status *bench_run_sequence_parallel(struct bench_ctx *ctx, const struct bench_case *bench,
                                              struct bench_result *result) RK_NODISCARD;
struct rk_status *bench_run_context_parallel(struct bench_ctx *ctx, const struct bench_case *bench,
                                             struct bench_result *result) RK_NODISCARD;
struct rk_status *bench_run_pipeline(struct bench_ctx *ctx, const struct bench_case *bench,
                                     struct bench_result *result) RK_NODISCARD;
struct rk_status *bench_run_interleaved(struct bench_ctx *ctx, const struct bench_case *bench,
                                        struct bench_result *result) RK_NODISCARD;
/* No dims. */
struct rk_status *bench_run_update_weights(struct bench_ctx *ctx, const struct bench_case *bench,
                                           struct bench_result *result) RK_NODISCARD;

#endif
