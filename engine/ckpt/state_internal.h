/* Private to engine/ckpt/: training state as named pieces of tensors, on the device, in host memory, in
 * files.
 *
 * A piece is what one rank holds of one tensor: a box of the global tensor, and of its elements in row-major
 * order some runs, the rank's shard of it. */
#ifndef RK_STATE_INTERNAL_H
#define RK_STATE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/rk_array.h"
#include "base/rk_ckpt_dir.h"
#include "base/rk_ckpt_shard.h"
#include "base/rk_safetensors.h"
#include "engine/model/model_internal.h"
#include "engine/optim/optim_internal.h"
#include "engine/rk_checkpoint.h"

#define RK_STATE_HF_DIR "huggingface"

/* Kinds of tensors: 0 is the weights, 1 + s state s of the optimizer, the last one the gradients. */
#define RK_STATE_KIND_GRADIENTS (1 + RK_OPTIM_STATES_MAX)
#define RK_STATE_KINDS_MAX      (1 + RK_STATE_KIND_GRADIENTS)

/* --- threads that move bytes (pool.c) --- */

struct rk_pool;

/* Memory of the caller, until it is done. */
struct rk_pool_task {
    void (*run)(void *user);
    void *user;
    bool is_done; /* the pool's lock guards it */
    struct rk_pool_task *next;
};

struct rk_status *rk_pool_create(struct rk_pool **out) RK_NODISCARD;
/* Waits for what was submitted. NULL is a no-op. */
void rk_pool_destroy(struct rk_pool *pool);
void rk_pool_submit(struct rk_pool *pool, struct rk_pool_task *task);
void rk_pool_wait(struct rk_pool *pool, struct rk_pool_task *task);

/* --- what this rank holds (pieces.c) --- */

struct rk_state_run {
    int64_t begin, count; /* elements of the box */
    int64_t source;       /* the first of them in the buffer of the kind */
};

struct rk_state_piece {
    char *name; /* in the file */
    int64_t param;
    int32_t kind;
    struct rk_param_box box;
    int64_t first_run, num_runs;
    int64_t count; /* elements of all runs */
};

/* A buffer on the device. */
struct rk_state_buffer {
    void *data; /* NULL: the model has no such kind */
    rk_dtype_t dtype;
    bool is_sharded; /* indexed as the shard's arrays, otherwise as the flat buffers */
};

struct rk_state_pieces {
    struct rk_state_buffer buffers[RK_STATE_KINDS_MAX];
    RK_ARRAY(struct rk_state_piece) pieces; /* by name: the order of the file */
    RK_ARRAY(struct rk_state_run) runs;
    uint64_t bytes;
};

/* Kinds that the contents hold, as bits. */
uint32_t rk_state_kinds(const struct rk_model *model, uint32_t contents);
struct rk_state_buffer rk_state_buffer_of(const struct rk_model *model, int32_t kind);
/* "NAME", "optimizer.state.exp_avg.NAME", "gradient.NAME"; rk_free it. */
char *rk_state_tensor_name(const struct rk_model *model, int32_t kind, const struct rk_param *param);
/* How the elements of parameters are dealt out to the ranks that hold the same part. */
struct rk_shard_maps rk_state_shards(const struct rk_model *model);
/* The pieces that this rank writes. */
void rk_state_pieces_list(struct rk_state_pieces *out, const struct rk_model *model, uint32_t kinds);
void rk_state_pieces_fini(struct rk_state_pieces *pieces);
/* Opens the shard's file: header and metadata are on their way to the disk. */
struct rk_status *rk_state_open_shard(struct rk_st_writer **out, const struct rk_state_pieces *pieces,
                                      const struct rk_model *model, const char *path) RK_NODISCARD;

/* --- copies between device and host (snapshot.c) --- */

/* Pageable memory for the state of this rank, kept from save to save, and the pinned memory through which
 * copies go. */
struct rk_snapshot {
    char *data;
    size_t capacity;
    void *pinned;
    struct rk_device *device; /* of `pinned` */
};

void rk_snapshot_fini(struct rk_snapshot *snapshot);
/* Pageable and pinned bytes. */
uint64_t rk_snapshot_bytes(const struct rk_snapshot *snapshot);
/* Makes room for `bytes`, which `num_neighbours` processes of this host, this one included, want at the same
 * time. False when they do not fit into what is free. */
bool rk_snapshot_reserve(struct rk_snapshot *snapshot, uint64_t bytes, int32_t num_neighbours);
/* Copies all pieces, one after the other. Waits for the stream. */
struct rk_status *rk_snapshot_take(struct rk_snapshot *snapshot, const struct rk_model *model,
                                   const struct rk_state_pieces *pieces) RK_NODISCARD;

/* --- the shards of a checkpoint (shards.c) --- */

struct rk_shards;

/* Opens all shards of the part and checks that they hold every tensor of `kinds` exactly once. DATA_LOSS,
 * reason CHECKPOINT_DAMAGED, names the tensor. */
struct rk_status *rk_shards_open(struct rk_shards **out, const char *part_dir,
                                 const struct rk_ckpt_manifest *manifest, const struct rk_model *model,
                                 uint32_t kinds) RK_NODISCARD;
void rk_shards_close(struct rk_shards *shards); /* NULL is a no-op */
/* Elements [begin, begin + count) of a box of the tensor, converted. `scratch` has room for count elements of
 * 8 bytes. Any thread. */
struct rk_shards_read {
    int64_t param;
    int32_t kind;
    struct rk_param_box box;
    int64_t begin, count;
    rk_dtype_t dtype;
    void *out, *scratch;
};
struct rk_status *rk_shards_read(const struct rk_shards *shards,
                                 const struct rk_shards_read *read) RK_NODISCARD;

/* --- what else a manifest says (state_json.c) --- */

/* The configuration without what does not matter to weights and their use; rk_json_free it. */
struct rk_json *rk_state_config(const struct rk_json *hf_config);
struct rk_json *rk_state_format_layout(const struct rk_model *model);
struct rk_json *rk_state_format_state(const struct rk_model *model);
/* INVALID_ARGUMENT names what differs. */
struct rk_status *rk_state_check_layout(const struct rk_model *model, const struct rk_ckpt_manifest *manifest,
                                        const char *part_dir) RK_NODISCARD;
/* The counters of a checkpoint. DATA_LOSS, reason CHECKPOINT_DAMAGED, when one is missing; INVALID_ARGUMENT
 * for another optimizer. Those of the optimizer are read with `has_optimizer`. */
struct rk_state_counters {
    int64_t weight_version, applied_steps, lr_steps, skipped_in_a_row;
};
struct rk_status *rk_state_read_counters(struct rk_state_counters *out, const struct rk_model *model,
                                         const struct rk_ckpt_manifest *manifest,
                                         bool has_optimizer) RK_NODISCARD;

/* --- a save under way (save.c) --- */

struct rk_saver;
void rk_saver_destroy(struct rk_saver *saver); /* stops the writer, drops the save; NULL is a no-op */
uint64_t rk_saver_host_bytes(const struct rk_saver *saver); /* 0 for NULL */

#endif
