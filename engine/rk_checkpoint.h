/* Training checkpoints: weights, optimizer state and counters of a model, in and out.
 *
 * Every rank writes what the parameter descriptor says is its own: of its local part of each parameter, the
 * elements of its shard. Nothing is gathered, and what is on the disk is described by boxes of the global
 * tensors, so any mesh reads what any other one wrote. Directories, manifests: base/rk_ckpt_dir.h; the
 * shards: docs/formats.md.
 *
 * A save copies the state to host memory, which is all that training waits for; thread C of the rank writes
 * it. It is complete when rk_model_wait_checkpoint has published it. At most one save of a model is under
 * way. All functions are collective over the model's mesh and run on the engine thread. */
#ifndef RK_CHECKPOINT_H
#define RK_CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_json.h"
#include "engine/rk_model.h"

RK_BEGIN_DECLS

/* verl's names: "model", "optimizer", "extra", "hf_model". */
enum rk_checkpoint_contents {
    RK_CHECKPOINT_MODEL = 1u << 0,     /* weights; the masters where there are any */
    RK_CHECKPOINT_OPTIMIZER = 1u << 1, /* its states and the scheduler's counters */
    RK_CHECKPOINT_EXTRA = 1u << 2,     /* random state: this engine has none, its noise has counters */
    RK_CHECKPOINT_HF_MODEL = 1u << 3,  /* a Hugging Face export beside; not to be loaded from */
    /* Those of the last optimizer step: summed over all ranks, before clipping; never loaded. What compares
     * layouts reads them. */
    RK_CHECKPOINT_GRADIENTS = 1u << 4,
};
#define RK_CHECKPOINT_CONTENTS_COUNT 5
/* Of bit 1 << i. */
const char *rk_checkpoint_content_name(int32_t i);
/* From an array of names. INVALID_ARGUMENT names what is no content, or comes twice; and an empty array. */
struct rk_status *rk_checkpoint_contents_read(uint32_t *out, const struct rk_json *names) RK_NODISCARD;

struct rk_checkpoint_save {
    const char *part_dir; /* where the part is to be, on a file system that all ranks share */
    const char *role;
    int64_t global_step;
    uint32_t contents;
    bool is_async;
};

typedef enum rk_checkpoint_state {
    RK_CHECKPOINT_NONE,    /* no save is under way */
    RK_CHECKPOINT_WRITING, /* some rank still writes */
    RK_CHECKPOINT_DONE     /* published by this call */
} rk_checkpoint_state_t;
const char *rk_checkpoint_state_name(rk_checkpoint_state_t state); /* "none", "writing", "done" */

struct rk_checkpoint_report {
    rk_checkpoint_state_t state;
    const char *part_dir; /* NULL in state NONE; valid until the next save of the model */
    int64_t global_step;
    uint64_t bytes;      /* state DONE: of all files of the part */
    double copy_seconds; /* that training waited for this rank's copy to host memory */
    double seconds;      /* since the save began */
};

/* Not collective: whether the model can save these contents. FAILED_PRECONDITION for a model that uses
 * another one's weights, for optimizer state of one that does not train, and for gradients when there was no
 * step or the next one has begun, or where they leave the device after every call. */
struct rk_status *rk_model_check_contents(const struct rk_model *model, uint32_t contents) RK_NODISCARD;
/* Not collective: bytes of the tensors of all ranks. */
uint64_t rk_model_checkpoint_bytes(const struct rk_model *model, uint32_t contents);

/* Takes the host memory that saves of these contents will copy to, so that the first one waits no longer than
 * the others. Without room it warns: saves will wait for the disk then. */
struct rk_status *rk_model_prepare_checkpoint(struct rk_model *model, uint32_t contents) RK_NODISCARD;
/* First finishes a save that is under way. Writes to a temporary directory, see rk_ckpt_begin. Without room
 * for the copy in host memory it warns and writes from the device. On an error on any rank nothing is left
 * and all ranks return it; CANCELLED when one was asked to stop. */
struct rk_status *rk_model_save_checkpoint(struct rk_model *model, const struct rk_checkpoint_save *save,
                                           const struct rk_engine_hooks *hooks,
                                           struct rk_checkpoint_report *report) RK_NODISCARD;
/* Publishes the save under way when all ranks have written, or after they have (`waits`). A failed write is
 * this call's error: nothing of it is left then, and no save is under way. CANCELLED while waiting leaves the
 * save under way. */
struct rk_status *rk_model_wait_checkpoint(struct rk_model *model, bool waits,
                                           const struct rk_engine_hooks *hooks,
                                           struct rk_checkpoint_report *report) RK_NODISCARD;

struct rk_checkpoint_loaded {
    int64_t global_step;
    uint64_t weight_version;
    uint32_t contents; /* what was loaded */
    /* After an error: the model holds parts of two states and must not be used. */
    bool is_mixed;
};
/* Reads the part in `part_dir`. `contents` 0: all that it has but gradients and the Hugging Face export.
 * Checked on all
 * ranks before anything is overwritten: manifest, sizes and checksums of all files, that every tensor is
 * there exactly once, shapes, the configuration, the optimizer. Errors as of rk_ckpt_check; INVALID_ARGUMENT
 * for contents that the checkpoint lacks and for a configuration or optimizer that differs, by name. With
 * weights and without optimizer state the moments become zero and the scheduler starts anew. */
struct rk_status *rk_model_load_checkpoint(struct rk_model *model, const char *part_dir, uint32_t contents,
                                           const struct rk_engine_hooks *hooks,
                                           struct rk_checkpoint_loaded *loaded) RK_NODISCARD;

RK_END_DECLS

#endif
