/* Private to engine/: the model object, the interface of families, and the functions that the rollout engine
 * calls. */
#ifndef RK_ENGINE_MODEL_H
#define RK_ENGINE_MODEL_H

#include "base/rk_arena.h"
#include "base/rk_array.h"
#include "base/layout/rk_pipeline.h"
#include "engine/params/params.h"
#include "engine/nn/nn.h"
#include "engine/rk_model.h"
#include "engine/tensor/movable.h"

/* --- families: rows of families.c --- */

/* One block in a family's list of a layer: x <- x + ops(norm(x)). */
struct rk_block_desc {
    const struct rk_block_ops *ops; /* NULL ends the list */
    const char *norm;               /* "input_layernorm": name of the norm's parameter within the layer */
    const char *module;             /* "self_attn": prefix of the block's own parameters within the layer */
};

/* A kind of layer; a model may have several. */
struct rk_layer_kind {
    const char *name;                   /* "dense"; NULL ends a list of kinds */
    const struct rk_block_desc *blocks; /* in order of execution; ops NULL ends them */
};

struct rk_model_family {
    const char *name; /* config.json's model_type */
    /* Required. Reads config.json into `out`, whose family is set; rejects values that the family does not
     * implement. If layers differ, sets the kind of each in out->layer_kinds. */
    struct rk_status *(*parse_config)(struct rk_model_config *out, const struct rk_json *hf_config);
    const struct rk_layer_kind *layer_kinds; /* required */
};

#define X(name) extern const struct rk_model_family rk_family_##name;
#include "base/format/families.def"
#undef X

/* The list with one kind of layer: attention and a gated MLP, with Llama's parameter names. */
extern const struct rk_layer_kind rk_dense_layers[];

/* A list of two kinds: rk_dense_layers, and layers with experts instead of the MLP. */
enum { RK_LAYER_DENSE, RK_LAYER_SPARSE };
extern const struct rk_layer_kind rk_sparse_layers[];
extern const struct rk_moe_names rk_moe_names_qwen; /* gate_proj, up_proj, down_proj, shared_expert */

const struct rk_model_family *rk_family_find(const char *name); /* NULL when unknown */
/* For tests: adds one family to the table; NULL removes it. */
void rk_family_set_extra(const struct rk_model_family *family);

/* Reads the keys that all families share (config.c); `out` holds the defaults. */
struct rk_status *rk_config_read_common(struct rk_model_config *out,
                                        const struct rk_json *hf_config) RK_NODISCARD;
/* Reads use_sliding_window, sliding_window and max_window_layers as Qwen2 and Qwen3 define them. */
struct rk_status *rk_config_read_window(struct rk_model_config *out,
                                        const struct rk_json *hf_config) RK_NODISCARD;
/* Newer files also list the kind of each layer (layer_types): UNIMPLEMENTED unless the list agrees with
 * sliding_window and max_window_layers of `config`. */
struct rk_status *rk_config_check_layer_types(const struct rk_model_config *config,
                                              const struct rk_json *hf_config) RK_NODISCARD;
/* Whether the key is null in the file. For some keys null means "none" and a missing key the default. */
bool rk_config_has_null(const struct rk_json *hf_config, const char *key);
/* rope_theta and the scaling, in the old form (rope_theta, rope_scaling) and the new one (rope_parameters,
 * for all layers or by kind of layer; `out` says which layers have a window). */
struct rk_status *rk_config_read_rope(struct rk_model_config *out,
                                      const struct rk_json *hf_config) RK_NODISCARD;
/* RoPE over whole heads, with the keys of config.json that apply to all layers. */
struct rk_rope_spec rk_rope_of_config(const struct rk_model_config *config);
/* What the configuration says about a layer. */
struct rk_layer_values rk_config_layer_values(const struct rk_model_config *config, int64_t layer);
/* Number of experts (num_experts, num_local_experts or n_routed_experts), num_experts_per_tok,
 * moe_intermediate_size and norm_topk_prob, with the defaults that `out` holds at the call; checks them and
 * the other members. INVALID_ARGUMENT. */
struct rk_status *rk_config_read_moe(struct rk_moe_config *out, const struct rk_json *hf_config) RK_NODISCARD;
struct rk_status *rk_config_check_moe(const struct rk_moe_config *moe) RK_NODISCARD;
/* Sets out->layer_kinds from decoder_sparse_step and mlp_only_layers. */
struct rk_status *rk_config_read_sparse_layers(struct rk_model_config *out, const struct rk_json *hf_config,
                                               uint8_t dense, uint8_t sparse) RK_NODISCARD;
/* A key that changes the computation, and the only value (JSON text) that is implemented; absent and null
 * pass. */
struct rk_config_limit {
    const char *key, *allowed;
};
struct rk_status *rk_config_check_limits(const struct rk_json *hf_config,
                                         const struct rk_config_limit *limits,
                                         int64_t num_limits) RK_NODISCARD;

/* --- the object --- */

/* A layer of the model, and its blocks. */
struct rk_layer {
    const struct rk_layer_kind *kind;
    int64_t begin, end;
};

/* Blocks that a rank runs without communication between stages: all of its blocks, unless pipeline stages are
 * interleaved. */
struct rk_chunk {
    int64_t begin, end;           /* blocks */
    bool has_embedding, has_head; /* before the blocks, after the blocks */
};

/* Device memory that is counted by kind and can be offloaded with its part (buffers.c). */
struct rk_model_buffer {
    struct rk_movable memory;
    rk_memory_kind_t kind;
    uint32_t part; /* of enum rk_model_parts */
};
#define RK_MODEL_BUFFERS_MAX 8

/* Masters of the parameters in this rank's shard, in the order of the shard's arrays: their values before
 * rounding to the model's dtype. Set by a trainer; a parameter is always its rounded master. */
struct rk_masters {
    void *values; /* of rk_master_dtype; NULL: none */
    const struct rk_shard_maps *shards;
};

/* State shared by models that share weights. Owned by the model that was created first. */
struct rk_model_core {
    /* Fixed after create. */
    struct rk_model_config config;
    struct rk_json *hf_config;
    rk_dtype_t dtype;
    rk_numerics_t numerics;
    uint64_t seed;
    int64_t recompute_num_layers;
    struct rk_model_layout layout;
    struct rk_moe_knobs moe;
    const char *const *frozen; /* patterns of names, NULL-terminated; NULL: none */
    struct rk_model_replay replay;
    int64_t vocab_size; /* ids that the head does not mask; at most config.vocab_size */
    uint32_t offload;   /* parts that may leave the device */
    struct rk_stream *stream;
    const struct rk_mesh_comms *mesh;
    struct rk_param_table params;
    struct rk_embedding embedding;
    struct rk_layer *layers; /* [config.num_layers] */
    struct rk_block *blocks; /* [num_blocks], in order of the forward pass */
    int64_t num_blocks;
    struct rk_pipeline *pipeline; /* assigns layers to stages */
    struct rk_chunk *chunks;      /* [num_chunks] of this rank, in order of the forward pass */
    int32_t num_chunks;
    struct rk_weight final_norm;
    struct rk_head head;
    struct rk_rope_spec *ropes;         /* [num_ropes]: distinct specifications that blocks declare */
    struct rk_rope_tables *rope_tables; /* [num_ropes] */
    int32_t num_ropes;
    int64_t num_caches;      /* tensors of a paged cache, over all blocks */
    int64_t num_routes;      /* blocks that have routes */
    rk_tensor_t row_numbers; /* I32 [RK_HEAD_CHUNK]: 0, 1, 2, ...; none if tp is 1 */
    struct rk_side side;     /* side stream of passes; NULL with one rank of tp and of ep */
    struct rk_model_buffer buffers[RK_MODEL_BUFFERS_MAX]; /* the parameters; then the trainer's */
    int32_t num_buffers;
    void *values; /* flat buffer of params.num_elements */
    struct rk_masters masters;
    void *scratch; /* RK_AGREE_BYTES for rk_model_agree, allocated early: agreement must work without free
                    * memory */
    /* Engine thread. */
    uint64_t weight_version;
    bool has_warned_of_padding;
};

/* --- routes.c: router replay --- */
/* OUT_OF_RANGE, naming token, layer and value, unless every token has distinct experts of the model;
 * FAILED_PRECONDITION when the model has none. packed->routed_experts may be NULL. */
struct rk_status *rk_model_check_routes(const struct rk_model_core *core,
                                        const struct rk_packed *packed) RK_NODISCARD;
/* Sets pass->routes. sources [pass->num_tokens]: the packed token of each token of this rank, -1 for padding;
 * NULL: token t is packed token t, and padding follows the last. */
struct rk_status *rk_model_upload_routes(const struct rk_model_core *core, struct rk_pass *pass,
                                         const struct rk_packed *packed, const int32_t *sources) RK_NODISCARD;
/* FAILED_PRECONDITION if router replay is on and the model has no layers of experts. */
struct rk_status *rk_model_check_replay(const struct rk_model_core *core) RK_NODISCARD;
/* Memory for what the routers choose in a packed pass that has begun; and its download after a forward pass
 * through a chunk, to out [num_packed, num_routes, top_k] in host memory: the entries of this rank's tokens
 * and layers are written, with 0 where another rank routes. Waits for the stream. */
struct rk_status *rk_model_begin_chosen(const struct rk_model_core *core, struct rk_pass *pass) RK_NODISCARD;
struct rk_status *rk_model_download_chosen(const struct rk_model_core *core, const struct rk_chunk *chunk,
                                           const struct rk_pass *pass, uint16_t *out) RK_NODISCARD;

/* --- router_losses.c: losses on the scores of routers --- */
struct rk_router_losses {
    double balance_coeff, z_coeff; /* 0: off */
    bool is_per_sequence;          /* loads are counted per sequence, not per micro-batch */
};
struct rk_router_losses rk_router_losses_of(const struct rk_moe_knobs *knobs);
/* INVALID_ARGUMENT names a key that the model does not take, also of bias updates. */
struct rk_status *rk_router_losses_check(const struct rk_moe_knobs *knobs,
                                         const struct rk_model_config *config) RK_NODISCARD;

/* --- segments.c: the tokens over which routers have metrics and losses --- */
/* Totals of the micro-batches of a step, over all replicas. */
struct rk_step_totals {
    double num_tokens, num_seqs;
};
/* Sets pass->routers, except for the sums, for a pass that has begun. totals: used only with losses. */
struct rk_status *rk_model_upload_segments(const struct rk_model_core *core, struct rk_pass *pass,
                                           const struct rk_packed *packed,
                                           const struct rk_step_totals *totals) RK_NODISCARD;

/* Fills params, layers, blocks, ropes, embedding, final_norm and head from core->config and core->dtype for
 * the rank at `coords`. Allocates nothing on the device. */
struct rk_status *rk_model_declare(struct rk_model_core *core, const struct rk_mesh *mesh,
                                   const struct rk_mesh_coords *coords) RK_NODISCARD;
void rk_model_declare_fini(struct rk_model_core *core);

static inline bool rk_model_has_head(const struct rk_model_core *core)
{
    return core->chunks[core->num_chunks - 1].has_head;
}

/* Size of the host memory blocks of a pass: one block fits labels and statistics of a few thousand tokens. */
#define RK_PASS_HOST_BLOCK_BYTES ((size_t)1 << 20)

/* Memory of one pass. */
struct rk_pass_memory {
    struct rk_step_arena *arena; /* on the device */
    struct rk_arena *host;
};

struct rk_slot;

struct rk_model {
    struct rk_model_core *core;
    bool owns_core;
    struct rk_step_arena *arena;      /* device memory of one forward and backward pass */
    struct rk_arena *host;            /* host memory of the same pass */
    struct rk_trainer *trainer;       /* borrowed; NULL: the model does not train */
    struct rk_stream *trainer_stream; /* of the trainer's collectives; NULL: none */
    /* Micro-batches in flight on a pipeline stage, and the memory of each (slots.c). */
    RK_ARRAY(struct rk_slot *) slots;
    size_t slot_bytes, slot_host_bytes; /* 0: grows on demand */
    /* The stream of messages between stages with the events that order it with the model's stream; NULL
     * before the first run of a pipeline. */
    struct rk_stream *messages;
    struct rk_event *is_ready, *is_done;
    /* Memory that rollouts, the trainer and the saver hold for this model. */
    int64_t kv_cache_bytes, staging_bytes, rollout_host_bytes;
    uint64_t trainer_workspace_bytes, checkpoint_host_bytes;
};

/* --- passes (trunk.c, pass.c) --- */

/* Clears the model's arenas and fills the fields that every pass needs. */
void rk_model_begin_pass(struct rk_model *model, struct rk_pass *pass);
/* OUT_OF_RANGE names an id or a position outside of the model's range. */
struct rk_status *rk_model_check_packed(const struct rk_model *model,
                                        const struct rk_packed *packed) RK_NODISCARD;
/* Like begin_pass, for a packed micro-batch that has been checked, whose arrays it copies to the device. The
 * saved tensors of the pass are allocated in `memory`, which is cleared; NULL: in the model's arenas. */
struct rk_status *rk_model_begin_packed(struct rk_model *model, const struct rk_pass_memory *memory,
                                        struct rk_pass *pass, const struct rk_packed *packed) RK_NODISCARD;

/* --- under context parallelism (context.c) --- */
/* For a pass that has begun on a mesh with cp above 1: sets tokens, positions, segments and context of this
 * rank's part of the micro-batch, whose sequences are padded. */
struct rk_status *rk_model_cut_packed(struct rk_model_core *core, struct rk_pass *pass,
                                      const struct rk_packed *packed) RK_NODISCARD;
/* *out [num_tokens, columns]: the rows of x of all cp ranks in the order of the caller's micro-batch; x
 * itself if this rank has all rows. */
struct rk_status *rk_model_gather_packed(const struct rk_pass *pass, rk_tensor_t x, int64_t num_tokens,
                                         rk_tensor_t *out) RK_NODISCARD;

/* The factor that kernels multiply logits with. INVALID_ARGUMENT for a temperature out of range. */
struct rk_status *rk_inverse_temperature(float *out, double temperature) RK_NODISCARD;

/* OUT_OF_RANGE for the first values[i] outside [0, bound); the message names `what` and i. */
struct rk_status *rk_packed_check_range(const char *what, const int32_t *values, int64_t count,
                                        int64_t bound) RK_NODISCARD;

/* --- labels (labels.c) --- */

/* The labelled positions of the micro-batch: of this rank's tokens, and of all cp ranks'. */
struct rk_labels {
    int64_t count;
    const int32_t *positions; /* [count] */
    rk_tensor_t index;        /* I32 [count]: their rows on this rank */
    rk_tensor_t labels;       /* I32 [count] */
    int64_t count_max;        /* the maximum count of a cp rank */
    int32_t *all; /* [cp, count_max], host arena of the pass: the positions of every rank, then -1 */
};
struct rk_status *rk_labels_select(struct rk_labels *out, const struct rk_pass *pass,
                                   const struct rk_packed *packed) RK_NODISCARD;
/* Download: values[positions[i]] = stats[i] of all cp ranks, 0 elsewhere; waits for the stream; collective
 * over cp. Upload: the values of this rank's labelled positions. stats may be [L, K]: rows of K values. */
struct rk_status *rk_labels_download(const struct rk_labels *labels, const struct rk_pass *pass,
                                     rk_tensor_t stats, double *values, int64_t num_tokens) RK_NODISCARD;
struct rk_status *rk_labels_upload(const struct rk_labels *labels, const struct rk_pass *pass,
                                   const double *values, rk_tensor_t *stats) RK_NODISCARD;
/* For several ids per position: uploads the rows [num_ids] at the labels (nothing without ids), and the
 * gradients with respect to their log-probs. OUT_OF_RANGE names an id outside of the vocabulary. */
struct rk_status *rk_labels_upload_ids(const struct rk_labels *labels, const struct rk_pass *pass,
                                       const int32_t *ids, int64_t num_ids, rk_tensor_t *out) RK_NODISCARD;
struct rk_status *rk_labels_upload_id_grads(const struct rk_labels *labels, const struct rk_pass *pass,
                                            const struct rk_head_ids *grads,
                                            struct rk_head_id_tensors *out) RK_NODISCARD;

/* FAILED_PRECONDITION names the first of these outputs that the model's head does not compute. */
struct rk_status *rk_model_check_outputs(const struct rk_model *model, uint32_t outputs) RK_NODISCARD;
/* rk_labels_download of the outputs and ids that have an array in `out`. */
struct rk_status *rk_head_download(const struct rk_labels *labels, const struct rk_pass *pass,
                                   const struct rk_head_out *out, const struct rk_head_arrays *arrays,
                                   int64_t num_tokens) RK_NODISCARD;

/* Tensors that the forward pass saves for the backward pass. */
struct rk_block_saved {
    struct rk_norm_saved norm; /* of x, the input of the block */
    void *own;                 /* saved by the block's forward function */
};

struct rk_trunk_saved {
    struct rk_block_saved *blocks; /* [num_blocks], host arena; only the entries of the chunk are filled */
    struct rk_norm_saved final_norm;
};
/* Computes *out from `in`, the residual stream [num_rows, hidden_size] (none for a chunk with the embedding,
 * which starts from the tokens): the residual stream after the chunk or, for a chunk with a head, the final
 * hidden states. `saved` may be NULL when no backward pass follows; otherwise it refers to `in`. *out is
 * valid until the memory of one direction is used again.
 */
struct rk_status *rk_trunk_fwd(const struct rk_model_core *core, const struct rk_chunk *chunk,
                               struct rk_pass *pass, rk_tensor_t in, rk_tensor_t *out,
                               struct rk_trunk_saved *saved) RK_NODISCARD;
/* Computes *din, the gradient with respect to `in`, from dout, the gradient with respect to *out. For a chunk
 * without a head *din overwrites dout.
 */
struct rk_status *rk_trunk_bwd(const struct rk_model_core *core, const struct rk_chunk *chunk,
                               struct rk_pass *pass, const struct rk_trunk_saved *saved, rk_tensor_t dout,
                               rk_tensor_t *din) RK_NODISCARD;

/* --- micro-batches (micro_batch.c) --- */

/* Description of a pass over a packed micro-batch. */
struct rk_micro_desc {
    const struct rk_packed *packed; /* its arrays are read only by rk_micro_begin */
    uint16_t *chosen_experts;       /* as in struct rk_forward_micro; NULL: not wanted */
    double temperature;
    uint32_t outputs; /* RK_HEAD_BIT of the outputs to compute */
    /* [num_tokens, num_ids]: also computes the log-probs of these ids; num_ids 0: none */
    int64_t num_ids;
    const int32_t *ids;
    int64_t num_top_ids;                 /* and the log-probs of this many most likely ids */
    const struct rk_engine_hooks *hooks; /* only on_alive is called; may be NULL */
    void *grads;                         /* flat buffer; NULL when no backward pass follows */
    rk_dtype_t grad_dtype;               /* of it */
    const struct rk_step_totals *totals; /* only with router_sums */
    rk_tensor_t router_sums; /* F64 [num_routes, columns], accumulated by backward passes; or none */
};

/* State of a micro-batch in a chunk of the model. Calls: begin, forward, then download, or upload and
 * backward. */
struct rk_micro {
    struct rk_model *model;
    struct rk_pass pass;
    int64_t num_tokens;
    uint16_t *chosen_experts; /* caller's memory; NULL: not wanted */
    uint32_t outputs;
    struct rk_labels labels;
    struct rk_head_saved head;
    struct rk_head_out out, dout;
    struct rk_trunk_saved trunk;
};

/* The checks of rk_micro_begin, except the check of the labels' ids. */
struct rk_status *rk_micro_check(const struct rk_model *model, const struct rk_micro_desc *desc) RK_NODISCARD;
/* Clears `memory` (NULL: the model's own), which will hold the saved tensors, and copies the inputs to the
 * device. OUT_OF_RANGE as for rk_model_forward. */
struct rk_status *rk_micro_begin(struct rk_micro *micro, struct rk_model *model,
                                 const struct rk_pass_memory *memory,
                                 const struct rk_micro_desc *desc) RK_NODISCARD;
/* For a chunk with a head *out is none and the outputs are computed; otherwise as rk_trunk_fwd. `keeps`: a
 * backward pass follows. */
struct rk_status *rk_micro_forward(struct rk_micro *micro, const struct rk_chunk *chunk, rk_tensor_t in,
                                   bool keeps, rk_tensor_t *out) RK_NODISCARD;
/* Downloads the outputs that have an array. */
struct rk_status *rk_micro_download(struct rk_micro *micro, const struct rk_head_arrays *arrays) RK_NODISCARD;
/* Uploads the gradients with respect to the outputs in `differentiated` and to the log-probs of ids. */
struct rk_status *rk_micro_upload(struct rk_micro *micro, const struct rk_head_arrays *grads,
                                  uint32_t differentiated) RK_NODISCARD;
/* dout: see rk_trunk_bwd; none for a chunk with a head, whose gradients were uploaded. */
struct rk_status *rk_micro_backward(struct rk_micro *micro, const struct rk_chunk *chunk, rk_tensor_t dout,
                                    rk_tensor_t *din) RK_NODISCARD;

/* --- micro-batches in flight (slots.c) --- */

/* The tensors of a micro-batch in a chunk, from the forward to the backward step. */
struct rk_slot {
    struct rk_pass_memory memory;
    struct rk_event *has_arrived; /* recorded after the last received message */
    struct rk_event *is_free;     /* recorded when the slot was released */
    bool was_used, is_taken;
    int32_t micro_batch, chunk;
    struct rk_micro micro;
    rk_tensor_t in, out;   /* of the forward step */
    rk_tensor_t dout, din; /* of the backward step */
};

/* Adds a slot, owned by the model. RESOURCE_EXHAUSTED. */
struct rk_status *rk_model_add_slot(struct rk_model *model, struct rk_slot **out) RK_NODISCARD;
/* Allocates the slots that a memory plan requires. RESOURCE_EXHAUSTED. */
struct rk_status *rk_model_reserve_slots(struct rk_model *model,
                                         const struct rk_model_memory *plan) RK_NODISCARD;
void rk_model_destroy_slots(struct rk_model *model);
void rk_model_add_slot_memory(const struct rk_model *model, struct rk_model_memory *memory);

/* --- buffers (buffers.c) --- */

/* Allocates a zeroed buffer, owned by the model, and sets *data to its address; NULL for 0 bytes.
 * RESOURCE_EXHAUSTED. */
struct rk_status *rk_model_add_buffer(struct rk_model_core *core, rk_memory_kind_t kind, size_t bytes,
                                      const char *what, void **data) RK_NODISCARD;
/* Frees all buffers but the first `count`. */
void rk_model_keep_buffers(struct rk_model_core *core, int32_t count);
void rk_model_add_buffer_memory(const struct rk_model_core *core, struct rk_model_memory *memory);
/* Host memory for copies of offloaded parts, without gradients: only some calls keep copies of them. */
uint64_t rk_model_offload_copy_bytes(const struct rk_model *model);
/* Host memory that copies hold now. */
uint64_t rk_model_offload_host_bytes(const struct rk_model *model);

/* --- masters (masters.c). Without masters the functions do nothing. --- */

rk_dtype_t rk_master_dtype(rk_dtype_t param_dtype);
/* Sets the masters in this rank's shard of elements [begin, begin + count) of the flat buffers: to the
 * parameters, or to `values` [count] of rk_master_dtype in host memory, which must stay valid until the
 * stream has copied them. */
struct rk_status *rk_model_copy_masters(const struct rk_model_core *core, int64_t begin,
                                        int64_t count) RK_NODISCARD;
struct rk_status *rk_model_set_masters(const struct rk_model_core *core, int64_t begin, int64_t count,
                                       const void *values) RK_NODISCARD;

/* --- ranks (agree.c, gather.c) --- */

/* Collective over the mesh; takes `st`. Returns NULL on all ranks if `st` is NULL on all; otherwise an error
 * on all: the rank's own, or the error of the first failed rank, with its number. */
struct rk_status *rk_model_agree(struct rk_model *model, struct rk_status *st) RK_NODISCARD;
/* rk_engine_min() over a group of the model's mesh. */
struct rk_status *rk_model_min(struct rk_model *model, rk_mesh_group_kind_t kind, int32_t *values,
                               int64_t count) RK_NODISCARD;

/* CANCELLED on all ranks of `kind` when one rank was asked to stop. Collective over that group. */
struct rk_status *rk_model_check_cancel(struct rk_model *model, const struct rk_engine_hooks *hooks,
                                        rk_mesh_group_kind_t kind) RK_NODISCARD;

/* DATA_LOSS (reason NON_FINITE) names the first parameter with a NaN or inf in this rank's part; the message
 * ends with `advice`. Waits for the stream. */
struct rk_status *rk_model_check_finite(struct rk_model *model, const char *advice) RK_NODISCARD;
/* *count = NaN and infinite among num_elements values on the device. Waits for the stream. */
struct rk_status *rk_model_count_non_finite(const struct rk_model_core *core, const void *values,
                                            rk_dtype_t dtype, int64_t num_elements,
                                            int64_t *count) RK_NODISCARD;

/* Rows of one parameter or gradient of all tp ranks. */
struct rk_param_rows {
    int64_t param;
    rk_tensor_t grads;    /* the flat buffer of gradients, to gather these; none: the parameter's values */
    int64_t begin, count; /* rows of the local shape */
};
/* Collective over the ranks that the parameter is split over (and the ranks that its gradient is summed
 * over). Writes [split size, count, local_shape[1]] to host memory, in the dtype of the model or of
 * gradients. Resets the step arena. */
struct rk_status *rk_model_gather_rows(struct rk_model *model, const struct rk_param_rows *rows,
                                       void *out) RK_NODISCARD;
/* Collective: the whole parameter or gradient as f64, as rk_model_gather_param returns it. */
struct rk_status *rk_model_gather(struct rk_model *model, int64_t param, rk_tensor_t grads,
                                  double *out) RK_NODISCARD;
/* Rows that fit into about 4 MiB over all ranks, the unit in which tensors are moved. At least 1. */
int64_t rk_model_rows_per_move(const struct rk_model *model, int64_t param);

/* --- walks over all parameters, to fill or to write a model (walk.c) --- */

/* Progress of this rank, reported to the hooks, which may be NULL. */
struct rk_model_walk {
    const struct rk_engine_hooks *hooks;
    const char *phase;                /* "load" */
    uint64_t done_bytes, total_bytes; /* of this rank's part of the model */
    size_t elem_bytes;
};
void rk_model_walk_begin(struct rk_model_walk *walk, const struct rk_model_core *core, const char *phase,
                         const struct rk_engine_hooks *hooks);
/* Advances by elements of this rank's part. CANCELLED when this rank was asked to stop; the other ranks do
 * not learn it here. */
struct rk_status *rk_model_walk_advance(struct rk_model_walk *walk, int64_t num_elements) RK_NODISCARD;

/* Sets one parameter to its values from rk_model_init_random, without the masters. */
struct rk_status *rk_model_init_param(struct rk_model_core *core, int64_t i, uint64_t seed) RK_NODISCARD;

/* --- for the rollout engine --- */

/* Runs the model over new tokens; *logits [num_logits, >= vocab_size] over the whole vocabulary on every tp
 * rank (gathered), valid until the next call that uses the step arena. Collective over tp. `hooks` may be
 * NULL. */
struct rk_status *rk_model_forward_paged(struct rk_model *model, const struct rk_paged_step *step,
                                         const struct rk_engine_hooks *hooks,
                                         rk_tensor_t *logits) RK_NODISCARD;
/* Bytes per token of a paged cache, over all blocks on this rank. */
int64_t rk_model_cache_bytes(const struct rk_model *model);
struct rk_stream *rk_model_stream(const struct rk_model *model);
/* Adds `bytes` (negative: subtracts) to the memory that rollouts hold for this model, for
 * rk_model_get_memory. */
void rk_model_note_kv_cache(struct rk_model *model, int64_t bytes);
void rk_model_note_staging(struct rk_model *model, int64_t device_bytes, int64_t host_bytes);

#endif
