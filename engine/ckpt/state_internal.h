/* Private to engine/ckpt/: training state as named pieces of tensors on the device, in host memory and in
 * files.
 *
 * A piece is one rank's part of one tensor: a box of the global tensor, and the runs of the box's elements,
 * in row-major order, that belong to the rank's shard. */
#ifndef RK_STATE_INTERNAL_H
#define RK_STATE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/rk_array.h"
#include "base/format/rk_ckpt_dir.h"
#include "base/format/rk_ckpt_shard.h"
#include "base/format/rk_safetensors.h"
#include "engine/model/model.h"
#include "engine/optim/trainer.h"
#include "engine/rk_checkpoint.h"

#define RK_STATE_HF_DIR "huggingface"

/* Kinds of tensors: 0 is the weights, 1 + s is state s of the optimizer, the last one is the gradients. */
#define RK_STATE_KIND_GRADIENTS (1 + RK_OPTIM_STATES_MAX)
#define RK_STATE_KINDS_MAX      (1 + RK_STATE_KIND_GRADIENTS)

/* --- thread pool for copies and reads (pool.c) --- */

struct rk_pool;

/* Memory of the caller; must stay valid until is_done. */
struct rk_pool_task {
    void (*run)(void *user);
    void *user;
    bool is_done; /* guarded by the pool's lock */
    struct rk_pool_task *next;
};

struct rk_status *rk_pool_create(struct rk_pool **out) RK_NODISCARD;
/* Waits for the submitted tasks. NULL is a no-op. */
void rk_pool_destroy(struct rk_pool *pool);
void rk_pool_submit(struct rk_pool *pool, struct rk_pool_task *task);
void rk_pool_wait(struct rk_pool *pool, struct rk_pool_task *task);

/* --- pieces of this rank (pieces.c) --- */

struct rk_state_run {
    int64_t begin, count; /* elements of the box */
    int64_t source;       /* index of the first one in the buffer of the piece */
};

/* A buffer on the device. */
struct rk_state_buffer {
    void *data; /* NULL: the model has no such kind */
    rk_dtype_t dtype;
    bool is_sharded; /* indexed like the shard's arrays; otherwise like the flat buffers */
};

struct rk_state_piece {
    char *name; /* name in the file */
    int64_t param;
    struct rk_state_buffer buffer;
    struct rk_param_box box;
    int64_t first_run, num_runs;
    int64_t count; /* elements of all runs */
};

struct rk_state_pieces {
    RK_ARRAY(struct rk_state_piece) pieces; /* in the order of the file */
    RK_ARRAY(struct rk_state_run) runs;
    uint64_t bytes;
};

/* Bit mask of the kinds in `contents`. */
uint32_t rk_state_kinds(const struct rk_model *model, uint32_t contents);
/* Where the elements of a tensor are: weights that are not trained have no masters. */
struct rk_state_buffer rk_state_buffer_of(const struct rk_model *model, int32_t kind, int64_t param);
/* Whether the tensor exists: of a parameter that is not trained only the weights do. */
bool rk_state_has(const struct rk_model *model, int32_t kind, int64_t param);
/* "NAME", "optimizer.state.exp_avg.NAME", "gradient.NAME"; rk_free it. */
char *rk_state_tensor_name(const struct rk_model *model, int32_t kind, const struct rk_param *param);
/* Lists the pieces that this rank writes. */
void rk_state_pieces_list(struct rk_state_pieces *out, const struct rk_model *model, uint32_t kinds);
void rk_state_pieces_fini(struct rk_state_pieces *pieces);
/* Opens the shard's file and writes header and metadata. */
struct rk_status *rk_state_open_shard(struct rk_st_writer **out, const struct rk_state_pieces *pieces,
                                      const struct rk_model *model, const char *path) RK_NODISCARD;

/* --- copies between device and host (snapshot.c) --- */

/* Pageable memory for the state of this rank, kept between saves, and the pinned memory through which it is
 * copied. */
struct rk_snapshot {
    char *data;
    size_t capacity;
    void *pinned;
    struct rk_device *device; /* of `pinned` */
};

void rk_snapshot_fini(struct rk_snapshot *snapshot);
/* Pageable and pinned bytes. */
uint64_t rk_snapshot_bytes(const struct rk_snapshot *snapshot);
/* Reserves `bytes`, which `num_neighbours` processes of this host, this one included, request at the same
 * time. False when free memory does not suffice for all of them. */
bool rk_snapshot_reserve(struct rk_snapshot *snapshot, uint64_t bytes, int32_t num_neighbours);
/* Copies all pieces, one after the other. Waits for the stream. */
struct rk_status *rk_snapshot_take(struct rk_snapshot *snapshot, const struct rk_model *model,
                                   const struct rk_state_pieces *pieces) RK_NODISCARD;

/* --- the shards of a checkpoint (shards.c) --- */

struct rk_shards;

/* Opens all shards of the part and checks that they hold every tensor of `kinds` exactly once, but for the
 * optimizer state of parameters that have none at all: they were not trained. DATA_LOSS, reason
 * CHECKPOINT_DAMAGED, names the tensor. */
struct rk_status *rk_shards_open(struct rk_shards **out, const char *part_dir,
                                 const struct rk_ckpt_manifest *manifest, const struct rk_model *model,
                                 uint32_t kinds) RK_NODISCARD;
void rk_shards_close(struct rk_shards *shards); /* NULL is a no-op */
/* Whether no optimizer state of the parameter was read. */
bool rk_shards_lacks_state(const struct rk_shards *shards, int64_t param);
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

/* --- other members of a manifest (state_json.c) --- */

/* The configuration without keys that do not affect the weights and their use; rk_json_free it. */
struct rk_json *rk_state_config(const struct rk_json *hf_config);
struct rk_json *rk_state_format_layout(const struct rk_model *model);
struct rk_json *rk_state_format_state(const struct rk_model *model);
/* INVALID_ARGUMENT names the first difference. */
struct rk_status *rk_state_check_layout(const struct rk_model *model, const struct rk_ckpt_manifest *manifest,
                                        const char *part_dir) RK_NODISCARD;
/* The counters of a checkpoint. DATA_LOSS, reason CHECKPOINT_DAMAGED, when one is missing; INVALID_ARGUMENT
 * for another optimizer. The optimizer's counters are read only with `has_optimizer`. */
struct rk_state_counters {
    int64_t weight_version, applied_steps, lr_steps, skipped_in_a_row;
};
struct rk_status *rk_state_read_counters(struct rk_state_counters *out, const struct rk_model *model,
                                         const struct rk_ckpt_manifest *manifest,
                                         bool has_optimizer) RK_NODISCARD;

#endif
