/* Models: one instance per role, split over the ranks of the role's mesh.
 *
 * The parameter table (rk_param.h) is the only description of layouts. Inside the engine tokens are packed
 * (struct rk_packed): no padding. All functions run on the engine thread; those marked "collective" must be
 * called by all ranks of the mesh in the same order. Formulas: Hugging Face's modeling files; layouts:
 * docs/parallelism.md. */
#ifndef RK_MODEL_H
#define RK_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_json.h"
#include "base/config/rk_knobs.h"
#include "base/rk_status.h"
#include "engine/rk_comm.h"
#include "engine/rk_param.h"
#include "kernels/rk_device.h"
#include "kernels/rk_tensor.h"

RK_BEGIN_DECLS

struct rk_model;

typedef enum rk_numerics { RK_NUMERICS_FAST, RK_NUMERICS_STRICT, RK_NUMERICS_COUNT } rk_numerics_t;
/* Parses "fast" or "strict"; INVALID_ARGUMENT lists them ("hf" is UNIMPLEMENTED). */
struct rk_status *rk_numerics_parse(rk_numerics_t *out, const char *text) RK_NODISCARD;

/* Load of a running generation. */
struct rk_rollout_load {
    int64_t num_running, num_waiting; /* sequences */
    int32_t num_used_kv_blocks,
        num_kv_blocks; /* of the KV cache; a sequence takes all its blocks when it begins */
};

/* Called by long operations: between decode steps, and between blocks of rows while a model is filled or
 * written. Any entry may be NULL. */
struct rk_engine_hooks {
    void *user;
    void (*on_progress)(void *user, const char *phase, uint64_t done, uint64_t total);
    bool (*is_cancelled)(void *user); /* this rank was asked to stop; the ranks agree before they stop */
    /* Called within a pass after every layer, as a sign of progress: one pass may take minutes on a CPU. */
    void (*on_alive)(void *user);
    /* Called after every step of a generation and at its end. */
    void (*on_rollout)(void *user, const struct rk_rollout_load *load);
};
/* Device memory that the agreements below need: allocated once; they allocate nothing. */
#define RK_AGREE_BYTES 1024
/* Collective over `group`: CANCELLED on all its ranks when one rank was asked to stop. scratch:
 * RK_AGREE_BYTES. */
struct rk_status *rk_engine_check_cancel(const struct rk_engine_hooks *hooks, struct rk_comm_group *group,
                                         struct rk_stream *stream, void *scratch) RK_NODISCARD;
/* Each value becomes the minimum over the ranks of the group. Waits for the stream. scratch: RK_AGREE_BYTES,
 * which `count` values must fit into. */
struct rk_status *rk_engine_min(struct rk_comm_group *group, struct rk_stream *stream, void *scratch,
                                int32_t *values, int64_t count) RK_NODISCARD;
/* Each value becomes the sum over the ranks of the group. Waits for the stream. scratch: RK_AGREE_BYTES. */
struct rk_status *rk_engine_sum(struct rk_comm_group *group, struct rk_stream *stream, void *scratch,
                                double *values, int64_t count) RK_NODISCARD;
/* Collective over `group`; takes `st`. Returns NULL on all ranks if `st` is NULL on all; otherwise an error
 * on all: the rank's own, or the error of the first failed rank, with its number. scratch: RK_AGREE_BYTES. */
struct rk_status *rk_engine_agree(struct rk_comm_group *group, struct rk_stream *stream, void *scratch,
                                  struct rk_status *st) RK_NODISCARD;

/* rope_type of config.json. */
typedef enum rk_rope_type {
    RK_ROPE_DEFAULT, /* no scaling: all else is zero */
    RK_ROPE_LLAMA3,  /* frequency-dependent interpolation */
    RK_ROPE_YARN,    /* YaRN, with DeepSeek's mscale */
} rk_rope_type_t;

/* How the frequencies of a rotary table are scaled, and the tables themselves. */
struct rk_rope_scaling {
    rk_rope_type_t type;
    double factor;
    int64_t original_max_position_embeddings;
    double low_freq_factor, high_freq_factor; /* llama3 */
    double beta_fast, beta_slow;              /* yarn: rotations in the original context; the range between is
                                               * interpolated in part */
    bool truncates;                           /* yarn: to whole columns */
    double attention_factor;                  /* yarn: of cos and sin */
    double softmax_factor;                    /* yarn: of the scores of latent attention */
};

/* Bounds the size of the parameter table in host memory; the deepest published models have 126 layers.
 */
#define RK_MODEL_MAX_LAYERS 4096

/* The family's parameter names inside a MoE layer. */
struct rk_moe_names {
    const char *gate, *up, *down; /* of an expert: "gate_proj" */
    const char *shared;           /* module of the shared expert: "shared_expert" */
};

/* Layers of experts: num_experts 0, the model has none. */
struct rk_moe_config {
    int64_t num_experts, num_experts_per_tok;
    int64_t intermediate_size;        /* of an expert */
    int64_t shared_intermediate_size; /* of the shared expert; 0: none */
    bool has_shared_gate; /* the shared expert's result is multiplied with the sigmoid of a score */
    /* The router (struct rk_moe_route_args). */
    bool is_sigmoid;     /* scores are sigmoids of the logits; otherwise their softmax */
    bool norm_topk_prob; /* probabilities of a token's experts are divided by their sum */
    bool
        has_correction_bias; /* experts are chosen by score + e_score_correction_bias, which is not trained */
    int32_t num_groups, topk_groups; /* 1, 1: no groups */
    double routed_scaling_factor;
    const struct rk_moe_names *names;
};

/* Latent attention; kv_lora_rank 0: the model has none. */
struct rk_latent_config {
    int64_t
        q_lora_rank; /* of the latent that queries are made from; 0: they are made from the hidden state */
    int64_t kv_lora_rank;                       /* of the latent that keys and values are made from */
    int64_t qk_nope_head_dim, qk_rope_head_dim; /* columns of a key that are a head's own, and the rotated
                                                 * ones that all heads share */
    int64_t v_head_dim;
    bool rope_interleave; /* rotated pairs are neighbours */
};

/* --- configuration: Hugging Face's config.json, parsed by the family that its model_type names --- */
struct rk_model_config {
    const char *family; /* row of the family table: "llama", "qwen3" */
    int64_t hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads, head_dim, vocab_size;
    int64_t max_position_embeddings;
    double rms_norm_eps, rope_theta, initializer_range;
    bool tie_word_embeddings;
    bool has_qkv_bias;
    bool has_qk_norm;       /* RMSNorm of every head of queries and keys */
    int32_t sliding_window; /* keys that queries of layers from max_window_layers on attend to; 0: all */
    int64_t max_window_layers;
    struct rk_rope_scaling rope_scaling;
    struct rk_latent_config latent;
    int64_t num_nextn_predict_layers; /* layers behind the others in files, for multi-token prediction: not
                                       * read */
    int64_t num_labels;               /* of a classification head */
    struct rk_moe_config moe;
    /* [num_layers]: index of each layer's kind in the family's list of kinds. */
    uint8_t layer_kinds[RK_MODEL_MAX_LAYERS];
    int64_t eos_token_ids[8];
    int32_t num_eos_token_ids;
};
/* UNIMPLEMENTED for an unknown model_type (lists the known ones) or a value that the family does not
 * implement; INVALID_ARGUMENT "config.json: KEY: ..." for bad values. */
struct rk_status *rk_model_config_parse(struct rk_model_config *out,
                                        const struct rk_json *hf_config) RK_NODISCARD;

/* --- the parameter table (rk_param.h): rows that are equal on all ranks, and this rank's parts --- */
int64_t rk_model_num_params(const struct rk_model *model);
const struct rk_param *rk_model_param_at(const struct rk_model *model, int64_t i);
const struct rk_placement *rk_model_placement_at(const struct rk_model *model, int64_t i);
int64_t rk_model_find_param(const struct rk_model *model, const char *name); /* -1 when absent */
int64_t rk_model_num_elements(const struct rk_model *model); /* of the whole model, global shapes */

/* --- life --- */
/* Parts of a model that can be offloaded to host memory. */
enum rk_model_parts {
    RK_PART_PARAMETERS = 1u << 0,
    RK_PART_GRADIENTS = 1u << 1,
    RK_PART_OPTIMIZER = 1u << 2, /* masters and states */
    RK_PARTS_ALL = (1u << 3) - 1,
};

/* How the passes of a model are split over its mesh, in addition to the sizes of the axes. */
struct rk_model_layout {
    RK_LAYOUT_KNOBS(RK_KNOB_FIELD, , , ) /* 0: not given */
};

/* Router replay: whose experts training uses (verl's names). */
typedef enum rk_replay {
    RK_REPLAY_DISABLED, /* the router chooses in every pass */
    RK_REPLAY_R2,       /* experts that the model chose in compute_log_prob */
    RK_REPLAY_R3,       /* experts that the rollout chose */
    RK_REPLAY_COUNT
} rk_replay_t;

/* Memory plans include the columns of experts that passes are given and that they return. */
struct rk_model_replay {
    rk_replay_t mode;
    bool compares; /* disabled: passes that only compute log-probs compare their choice with the rollout's */
};
/* Sets out->mode. INVALID_ARGUMENT. */
struct rk_status *rk_replay_read(struct rk_model_replay *out, const char *mode) RK_NODISCARD;

struct rk_model_desc {
    size_t struct_size;
    const struct rk_json *hf_config; /* kept (cloned) to be written back at export */
    rk_dtype_t dtype;                /* of parameters and activations: F32, BF16, or F64 for tests */
    rk_numerics_t numerics;
    const char *head;         /* row of the head table: "lm" (also when NULL), "value", "score" */
    uint64_t seed;            /* for tensors that rk_model_load_hf does not find and may initialise at
                               * random */
    struct rk_stream *stream; /* borrowed for the life of the model, like mesh */
    const struct rk_mesh_comms *mesh;
    /* Activation recomputation in training. 0: saves all activations for the backward pass except cheap ones,
     * which are always recomputed. n: saves only the input of every n-th layer and runs the n layers twice
     * (Megatron's full, uniform recompute). Gradients are bit-identical. */
    int64_t recompute_num_layers;
    /* The head masks ids from here on, for example a teacher's padding beyond the student's vocabulary. 0: no
     * id is masked. */
    int64_t vocab_size;
    uint32_t offload; /* enum rk_model_parts: parts that may be offloaded (rk_model_offload) */
    struct rk_moe_knobs {
        RK_MOE_KNOBS(RK_KNOB_FIELD, , , )
        RK_ROUTER_KNOBS(RK_KNOB_FIELD, , , ) /* balancing_type "": aux_loss; coefficients NAN: 0 */
    } moe;                                   /* of training; of no effect without layers of experts */
    /* Patterns (fnmatch) of the names of parameters that training does not update, NULL-terminated; NULL:
     * none. They have no gradient, master and optimizer state, unless they are fused with a trained one (the
     * projections of an attention block or of a gated MLP). Borrowed, like stream. */
    const char *const *frozen;
    struct rk_model_replay replay;
    struct rk_model_layout layout;
};

/* Checks the mesh (heads and intermediate_size divisible by tp; axes that are not implemented), allocates the
 * parameters. RESOURCE_EXHAUSTED with the required bytes. */
struct rk_status *rk_model_create(struct rk_model **out, const struct rk_model_desc *desc) RK_NODISCARD;
/* A model that uses the same parameter buffer (actor and rollout of equal layout). The owner must outlive it.
 */
struct rk_status *rk_model_create_shared(struct rk_model **out, struct rk_model *owner) RK_NODISCARD;
/* NULL is a no-op. Trainer, saver and rollout of the model must have been destroyed. */
void rk_model_destroy(struct rk_model *model);
/* The description from which an equal model can be created; its pointers belong to the model. */
void rk_model_describe(const struct rk_model *model, struct rk_model_desc *out);
const struct rk_model_config *rk_model_get_config(const struct rk_model *model);
const struct rk_mesh_comms *rk_model_mesh(const struct rk_model *model);
/* Sets new communicators (after the world was recreated) of an equal mesh in which this rank has the same
 * coordinates; for a model that does not train, the number of replicas and this rank's replica may differ.
 * NULL: no communicators; then only destroy may be called. Call it for the owner of the weights; models that
 * share them follow.
 */
void rk_model_set_mesh(struct rk_model *model, const struct rk_mesh_comms *mesh);
uint64_t rk_model_weight_version(
    const struct rk_model *model); /* incremented by every applied update; shared models return the owner's */

/* --- offloading of parts ---
 *
 * The parts in the description's `offload` are allocated in address ranges: they return to the same
 * addresses, so views and graphs stay valid; while they are offloaded nothing may access them. The functions
 * below ignore all other parts, which stay on the device. Models that share weights offload the same
 * parameters. Not collective. */

/* Allocates the host memory for copies of these parts, which is kept for the life of the model.
 * RESOURCE_EXHAUSTED: the model is unchanged. */
struct rk_status *rk_model_reserve_offload(struct rk_model *model, uint32_t parts) RK_NODISCARD;
/* Copies the parts to the host, unless the host has a valid copy, and releases their device memory; parts
 * already offloaded are skipped. Without keeps_gradients gradients are not copied, and return as zeros. Waits
 * for the stream. Errors: of the copy (then no part has moved), and the errors of rk_model_reserve_offload.
 */
struct rk_status *rk_model_offload(struct rk_model *model, uint32_t parts, bool keeps_gradients) RK_NODISCARD;
/* Restores the parts, before later work on the model's stream; parts on the device are skipped. `writes`: the
 * caller may modify the parts, which invalidates their host copies. RESOURCE_EXHAUSTED (reason DEVICE_OOM):
 * some parts may still be offloaded; no data is lost. */
struct rk_status *rk_model_onload(struct rk_model *model, uint32_t parts, bool writes) RK_NODISCARD;
/* The parts that are offloaded now. */
uint32_t rk_model_offloaded(const struct rk_model *model);
/* Device memory of all parts that may be offloaded. */
uint64_t rk_model_offload_bytes(const struct rk_model *model);

/* Functions that fill or write a model report progress to the hooks, which may be NULL, in bytes of this
 * rank's part; CANCELLED when asked to stop. In the collective functions the ranks agree after every
 * parameter: waiting for a slow disk is spread over many short collectives, and after an error all ranks stop
 * there. */

/* N(0, initializer_range) for matrices, ones for norms, zeros for biases, from (seed, tensor name, global
 * element index), independent of the layout. CANCELLED on this rank alone. */
struct rk_status *rk_model_init_random(struct rk_model *model, uint64_t seed,
                                       const struct rk_engine_hooks *hooks) RK_NODISCARD;
/* Whether the directory has the tensors of this rank's parameters, with the shapes of config.json and the
 * scales of FP8 tensors: the errors of rk_model_load_hf, from the headers of the files. */
struct rk_status *rk_model_check_hf(const struct rk_model *model, const char *dir) RK_NODISCARD;
/* Collective. Reads only this rank's slices; F32 and F16 files also set the masters of a bf16 model that
 * trains. Missing optional tensors (RK_PARAM_OPTIONAL) are initialised as by rk_model_init_random with the
 * seed of the description, with a warning. NOT_FOUND names any other missing tensor and its expected place;
 * DATA_LOSS for damaged files; INVALID_ARGUMENT for a shape that differs from config.json. */
struct rk_status *rk_model_load_hf(struct rk_model *model, const char *dir,
                                   const struct rk_engine_hooks *hooks) RK_NODISCARD;
/* --- which ranks write files: for methods, which resolve the paths of writing ranks, and for the engine ---
 */
typedef enum rk_output {
    RK_OUTPUT_HF,         /* a Hugging Face directory: the first rank of the mesh */
    RK_OUTPUT_CHECKPOINT, /* a training checkpoint: every rank, its shards */
} rk_output_t;
bool rk_output_is_writer(rk_output_t output, const struct rk_mesh_comms *mesh);

/* Collective. Writes config.json, model.safetensors (or shards of max_shard_bytes with an index; 0: 5e9) into
 * `dir`, which must not hold a model (ALREADY_EXISTS, reason TARGET_EXISTS). After an error the files are
 * removed; only if the connection between the ranks is lost at the very end may the complete model stay.
 * Ranks that do not write (RK_OUTPUT_HF) need no `dir`. */
struct rk_status *rk_model_export_hf(struct rk_model *model, const char *dir, int64_t max_shard_bytes,
                                     const struct rk_engine_hooks *hooks) RK_NODISCARD;

/* Collective over tp: the whole tensor, global shape, as f64 in host memory [shape[0] * shape[1]], on every
 * rank. */
struct rk_status *rk_model_gather_param(struct rk_model *model, int64_t i, double *out) RK_NODISCARD;

/* Collective. Compares the ranks' copies of every parameter by 64-bit fingerprints: copies of the same part
 * must be equal. DATA_LOSS (reason REPLICAS_DIFFER), the same on all ranks, names the first parameter that
 * differs, its layer and the ranks. *num_compared, over all ranks: copies compared with the first copy of
 * their part. `hooks` as for functions that fill a model. */
struct rk_status *rk_model_verify_replicas(struct rk_model *model, const struct rk_engine_hooks *hooks,
                                           int64_t *num_compared) RK_NODISCARD;

/* --- forward --- */

/* Minimum divisor of logits. Below it the sampler takes the largest logit, with log-probs of temperature 1,
 * which training cannot reproduce. */
#define RK_TEMPERATURE_MIN 1e-5F
#define RK_TEMPERATURE_MAX 1e6F
/* INVALID_ARGUMENT with value and range. */
struct rk_status *rk_model_check_temperature(double temperature) RK_NODISCARD;

#define RK_LABEL_NONE (-1)

/* A packed micro-batch, in host memory. num_seqs 0 is the empty micro-batch: it takes part in every
 * collective. All tp and cp ranks pass the same whole micro-batch and get the outputs of all positions; each
 * cp rank computes the outputs of its tokens (base/layout/rk_zigzag.h). */
struct rk_packed {
    int32_t num_seqs;
    int64_t num_tokens;
    int32_t max_seqlen;
    const int32_t *tokens;     /* [num_tokens] */
    const int32_t *positions;  /* [num_tokens] */
    const int32_t *cu_seqlens; /* [num_seqs + 1] */
    const int32_t *labels;     /* [num_tokens]: the id that position t must predict, or RK_LABEL_NONE */
    /* Router replay: [num_tokens, num_layers, num_experts_per_tok] (rk_model_get_routes): the experts that
     * each token goes to, instead of the experts with the largest scores; probabilities come from the current
     * scores. NULL: the router chooses. */
    const uint16_t *routed_experts;
};

/* Layers of experts of the whole model, and experts per token and in all of each. 0: the model has none. */
struct rk_model_routes {
    int64_t num_layers, num_experts_per_tok, num_experts;
};
struct rk_model_routes rk_model_get_routes(const struct rk_model *model);
struct rk_model_replay rk_model_get_replay(const struct rk_model *model);

/* Outputs that heads compute for a labelled position. */
typedef enum rk_head_output {
    RK_HEAD_LOG_PROBS,      /* log p(label), at the temperature */
    RK_HEAD_ENTROPY,        /* of the distribution of the label, at the temperature */
    RK_HEAD_SUM_PI_SQUARED, /* sum of the squared probabilities of that distribution */
    RK_HEAD_VALUES,         /* of a value or score head; the label only marks the position */
    RK_HEAD_OUTPUT_COUNT
} rk_head_output_t;
#define RK_HEAD_BIT(output) (1u << (output))
/* "log_probs", "entropy", "values". */
const char *rk_head_output_name(rk_head_output_t output);
/* Bits of the outputs that the model's head can compute. */
uint32_t rk_model_head_outputs(const struct rk_model *model);

/* Log-probs of several ids per position, at the temperature, for distillation. Only for a head that computes
 * log_probs. Arrays are [num_tokens, num_ids]; NULL if not requested. */
struct rk_head_ids {
    int64_t num_ids;       /* K, up to RK_VOCAB_IDS_MAX; 0: all arrays are unused */
    const int32_t *ids;    /* in: the ids of log_probs; below 0: none, with log-prob 0 */
    double *log_probs;     /* 0 at positions without a label */
    int32_t *top_ids;      /* the K most likely ids, most likely first, equal ones by ascending id; -1: no
                            * more */
    double *top_log_probs; /* of top_ids; 0 where there is no id; only with top_ids */
};

/* f64 [num_tokens] in host memory for each output; NULL if not requested. */
struct rk_head_arrays {
    double *of[RK_HEAD_OUTPUT_COUNT];
    struct rk_head_ids ids; /* as gradients: num_ids and log_probs */
};

/* Collective. Fills the arrays that are not NULL, on the ranks that have the head; 0, and ids of -1, at
 * positions without a label. OUT_OF_RANGE names a token, position or id outside of the model's range;
 * FAILED_PRECONDITION an output that its head does not compute. A pass calls only on_alive of `hooks`, which
 * may be NULL. */
struct rk_status *rk_model_forward(struct rk_model *model, const struct rk_packed *packed, double temperature,
                                   const struct rk_engine_hooks *hooks,
                                   const struct rk_head_arrays *out) RK_NODISCARD;
/* One of several micro-batches of rk_model_forward_all: the arguments of rk_model_forward. */
struct rk_forward_micro {
    const struct rk_packed *packed;
    double temperature;
    const struct rk_engine_hooks *hooks;
    const struct rk_head_arrays *out;
    /* [num_tokens, num_layers, num_experts_per_tok] (rk_model_get_routes), zeroed, or NULL: receives what the
     * routers choose, also if the micro-batch has routed_experts; on every rank only the part of its layers
     * and tokens, until rk_model_merge_routes. Must stay valid until rk_model_forward_all has returned. Only
     * for a model with layers of experts. */
    uint16_t *chosen_experts;
};
struct rk_forward_work {
    int64_t count;
    /* Fills in the i-th micro-batch. Its pointers are used only until the next call. With a pipeline it is
     * called more than once for each, in any order. */
    struct rk_status *(*bind)(void *user, int64_t i, struct rk_forward_micro *micro);
    /* Called when the arrays of the i-th micro-batch, which is bound, are filled: on the ranks that have the
     * head (the last stage), in order. May be NULL. */
    struct rk_status *(*done)(void *user, int64_t i);
    void *user;
};
/* Collective: rk_model_forward of several micro-batches, which overlap on the stages of a pipeline. A
 * pipeline also calls the hooks' is_cancelled: CANCELLED on all ranks when it returns true on one. */
struct rk_status *rk_model_forward_all(struct rk_model *model,
                                       const struct rk_forward_work *work) RK_NODISCARD;
/* Collective over tp, cp and pp: completes the chosen_experts of num_tokens tokens, in any number of
 * micro-batches, on every rank. */
struct rk_status *rk_model_merge_routes(struct rk_model *model, uint16_t *chosen_experts,
                                        int64_t num_tokens) RK_NODISCARD;
/* Collective; for tests and tools: logits [num_tokens, vocab_size] as f64 in host memory, on every rank. */
struct rk_status *rk_model_logits(struct rk_model *model, const struct rk_packed *packed,
                                  double *logits) RK_NODISCARD;

/* Kinds of device memory: the first fields of struct rk_model_memory. Names: rk_memory.h. */
typedef enum rk_memory_kind {
    RK_MEMORY_PARAMETERS,
    RK_MEMORY_MASTERS,
    RK_MEMORY_GRADIENTS,
    RK_MEMORY_OPTIMIZER,
    RK_MEMORY_ACTIVATIONS,
    RK_MEMORY_KV_CACHE,
    RK_MEMORY_WORKSPACE,
    RK_MEMORY_STAGING,
    RK_MEMORY_KIND_COUNT
} rk_memory_kind_t;

/* Memory that the model holds, including that of its trainer, rollout and saver. */
struct rk_model_memory {
    /* Device memory by kind. */
    uint64_t param_bytes, master_bytes, grad_bytes, optimizer_bytes;
    uint64_t activation_bytes; /* for passes */
    uint64_t kv_cache_bytes;
    uint64_t workspace_bytes; /* agreements and norms; operators' workspace belongs to the device */
    uint64_t staging_bytes;   /* inputs and samples of generation steps */
    /* Pinned host memory. */
    uint64_t pass_host_bytes, rollout_host_bytes;
    uint64_t offload_host_bytes;    /* of copies of offloaded parts */
    uint64_t checkpoint_host_bytes; /* host memory of checkpoints, most of it not pinned */
    /* Peak use of activation_bytes and pass_host_bytes by a pass. */
    uint64_t activation_peak_bytes, pass_host_peak_bytes;
    /* Slots of a pipeline stage: micro-batches in flight, and the maximum that one of them saves in addition;
     * activation_bytes and pass_host_bytes include it num_slots times. */
    int64_t num_slots;
    uint64_t slot_peak_bytes, slot_host_peak_bytes;
    uint64_t step_overflows; /* blocks added to either after the first; 0 if the memory plan was right */
};
struct rk_model_memory rk_model_get_memory(const struct rk_model *model);

RK_END_DECLS

#endif
