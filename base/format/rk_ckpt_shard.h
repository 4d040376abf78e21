/* Shards of a checkpoint: which elements of which tensors a file has. Format: docs/formats.md.
 *
 * The metadata of a file describes this: for every tensor the shape of the whole (global_shape), a box of it,
 * and runs of the box's elements in row-major order; the file's tensor has the elements of these runs,
 * concatenated. */
#ifndef RK_CKPT_SHARD_H
#define RK_CKPT_SHARD_H

#include <stdint.h>

#include "base/rk_array.h"
#include "base/format/rk_ckpt_dir.h"
#include "base/format/rk_safetensors.h"
#include "base/rk_status.h"

RK_BEGIN_DECLS

#define RK_CKPT_SHARDS_DIR "dist_ckpt"
/* "dist_ckpt/shard_00000.safetensors": of the rank that wrote it. */
#define RK_CKPT_SHARD_FORMAT RK_CKPT_SHARDS_DIR "/shard_%05d.safetensors"
/* Key of a file's metadata: JSON, {"NAME": {"global_shape": [rows, cols], "box": [[begin, end], ...], "runs":
 * [[begin, end], ...]}}. */
#define RK_CKPT_PIECES_KEY "rankd.pieces"
/* Names of tensors that are gradients: "gradient.NAME". */
#define RK_CKPT_GRADIENT_PREFIX "gradient."

#define RK_CKPT_DIMS 2

/* Elements [begin, end) of the box; the first is element `at` of the file's tensor. */
struct rk_ckpt_run {
    int64_t begin, end, at;
};

/* The part of a tensor in a file. */
struct rk_ckpt_piece {
    const struct rk_st_file *file;
    const struct rk_st_tensor *tensor;
    int32_t shard;                                    /* number of the file, from 0 in the order of names */
    int32_t rank;                                     /* 1 or 2 */
    int64_t global_shape[RK_CKPT_DIMS];               /* {n, 1} for a vector */
    int64_t begin[RK_CKPT_DIMS], shape[RK_CKPT_DIMS]; /* the box; their product is below 2^63 */
    int64_t first_run, num_runs;                      /* at least one */
};

/* Zero-initialise; rk_ckpt_shards_fini closes the files, which pieces refer to. */
struct rk_ckpt_shards {
    RK_ARRAY(struct rk_st_file *) files;
    RK_ARRAY(struct rk_ckpt_run) runs; /* of a piece: not empty, ascending, inside its box */
};

/* Opens all shards of the part in `part_dir`, which has that manifest, and calls `add` for every tensor of
 * theirs; an error of `add` ends it and is returned. DATA_LOSS (reason CHECKPOINT_DAMAGED) names the file and
 * the tensor whose description is missing or does not describe it. */
struct rk_status *rk_ckpt_shards_open(struct rk_ckpt_shards *shards, const char *part_dir,
                                      const struct rk_ckpt_manifest *manifest,
                                      struct rk_status *(*add)(void *user, const struct rk_ckpt_piece *piece),
                                      void *user) RK_NODISCARD;
void rk_ckpt_shards_fini(struct rk_ckpt_shards *shards);
/* The defect of the pieces of one tensor: they have to hold each of its elements exactly once. NULL: none. */
const char *rk_ckpt_pieces_gap(const struct rk_ckpt_shards *shards, const struct rk_ckpt_piece *const *pieces,
                               int64_t count);
/* Whether the part has shards, and they hold whole tensors. DATA_LOSS (reason CHECKPOINT_DAMAGED) names file
 * and tensor. */
struct rk_status *rk_ckpt_check_shards(const char *part_dir,
                                       const struct rk_ckpt_manifest *manifest) RK_NODISCARD;
/* DATA_LOSS, reason CHECKPOINT_DAMAGED: the file, the tensor, `problem`. */
struct rk_status *rk_ckpt_piece_damaged(const struct rk_ckpt_piece *piece, const char *problem) RK_NODISCARD;

RK_END_DECLS

#endif
