/* Training checkpoints: saves and loads weights, optimizer state and counters of a model.
 *
 * Every rank writes the elements of its shard of its local part of each parameter, as the parameter
 * descriptor defines them. Nothing is gathered, and files describe their contents as boxes of the global
 * tensors, so any mesh can load a checkpoint of any other mesh. Directories, manifests:
 * base/format/rk_ckpt_dir.h; the shards: docs/formats.md.
 *
 * Training waits only while a save copies the state to host memory; thread C of the rank writes it. A save is
 * complete when rk_saver_wait has published it. A saver has at most one save in progress. All
 * functions are collective over the model's mesh and run on the engine thread. */
#ifndef RK_CHECKPOINT_H
#define RK_CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_json.h"
#include "engine/rk_model.h"

RK_BEGIN_DECLS

/* verl's names: "model", "optimizer", "extra", "hf_model". */
enum rk_checkpoint_contents {
    RK_CHECKPOINT_MODEL = 1u << 0,     /* weights; the masters if there are any */
    RK_CHECKPOINT_OPTIMIZER = 1u << 1, /* optimizer states and the scheduler's counters */
    RK_CHECKPOINT_EXTRA = 1u << 2,     /* random state: this engine has none, its noise is counter-based */
    RK_CHECKPOINT_HF_MODEL = 1u << 3,  /* an additional Hugging Face export; never loaded */
    /* Gradients of the last optimizer step: summed over all ranks, before clipping; never loaded. For
     * comparisons of layouts. */
    RK_CHECKPOINT_GRADIENTS = 1u << 4,
};
#define RK_CHECKPOINT_CONTENTS_COUNT 5
/* Name of the content with bit 1 << i. */
const char *rk_checkpoint_content_name(int32_t i);
/* From an array of names. INVALID_ARGUMENT for an empty array, and names an unknown or repeated content. */
struct rk_status *rk_checkpoint_contents_read(uint32_t *out, const struct rk_json *names) RK_NODISCARD;

struct rk_checkpoint_save {
    const char *part_dir; /* target of the part, on a file system that all ranks share */
    const char *role;
    int64_t global_step;
    uint32_t contents;
    bool is_async;
};

typedef enum rk_checkpoint_state {
    RK_CHECKPOINT_NONE,    /* no save is in progress */
    RK_CHECKPOINT_WRITING, /* some rank is still writing */
    RK_CHECKPOINT_DONE     /* published by this call */
} rk_checkpoint_state_t;
const char *rk_checkpoint_state_name(rk_checkpoint_state_t state); /* "none", "writing", "done" */

struct rk_checkpoint_report {
    rk_checkpoint_state_t state;
    const char *part_dir; /* NULL in state NONE; valid until the next save */
    int64_t global_step;
    uint64_t bytes;      /* state DONE: total of all files of the part */
    double copy_seconds; /* how long training waited for this rank's copy to host memory */
    double seconds;      /* since the start of the save */
};

/* Not collective: whether the model can save these contents. FAILED_PRECONDITION for a model that shares
 * another model's weights, for optimizer state of a model that does not train, and for gradients when no step
 * has run, the next one has begun, or gradients are offloaded after every call. */
struct rk_status *rk_model_check_contents(const struct rk_model *model, uint32_t contents) RK_NODISCARD;
/* Not collective: bytes of the tensors of all ranks. */
uint64_t rk_model_checkpoint_bytes(const struct rk_model *model, uint32_t contents);

/* The saver of a model: the save in progress, its thread C, and the host memory of the copy, which is kept
 * for the next save. Saves have the optimizer state of the model's trainer. */
struct rk_saver;
struct rk_saver *rk_saver_create(struct rk_model *model); /* borrowed: the model must outlive the saver */
/* Stops the writer and drops a save in progress. Not collective. NULL is a no-op. */
void rk_saver_destroy(struct rk_saver *saver);
/* Allocates the host memory that saves of these contents will copy to, so that the first save waits no longer
 * than later ones. If there is not enough memory it warns: training will then wait for the disk. */
struct rk_status *rk_saver_prepare(struct rk_saver *saver, uint32_t contents) RK_NODISCARD;
/* First completes a save in progress. Writes to a temporary directory, see rk_ckpt_begin. Without host memory
 * for the copy it warns and writes from the device. On an error on any rank the files are removed and all
 * ranks return the error; CANCELLED when one was asked to stop. */
struct rk_status *rk_saver_save(struct rk_saver *saver, const struct rk_checkpoint_save *save,
                                const struct rk_engine_hooks *hooks,
                                struct rk_checkpoint_report *report) RK_NODISCARD;
/* Publishes the save in progress if all ranks have written; with `waits`, waits for them. Returns the error
 * of a failed write: then the files are removed and no save is in progress. CANCELLED while waiting leaves
 * the save in progress. */
struct rk_status *rk_saver_wait(struct rk_saver *saver, bool waits, const struct rk_engine_hooks *hooks,
                                struct rk_checkpoint_report *report) RK_NODISCARD;

struct rk_checkpoint_loaded {
    int64_t global_step;
    uint64_t weight_version;
    uint32_t contents; /* contents that were loaded */
    /* After an error: the model has parts of two states and must not be used. */
    bool is_mixed;
};
/* Reads the part in `part_dir`. `contents` 0: everything in the part except gradients and the Hugging Face
 * export. All ranks check before anything is overwritten: manifest, sizes and checksums of all files, that
 * every tensor is covered exactly once, shapes, the configuration, the optimizer. Errors as of rk_ckpt_check;
 * INVALID_ARGUMENT names contents that the checkpoint lacks, or the difference in configuration or optimizer.
 * When weights are loaded without optimizer state, the moments are set to zero and the scheduler restarts. */
struct rk_status *rk_model_load_checkpoint(struct rk_model *model, const char *part_dir, uint32_t contents,
                                           const struct rk_engine_hooks *hooks,
                                           struct rk_checkpoint_loaded *loaded) RK_NODISCARD;

RK_END_DECLS

#endif
