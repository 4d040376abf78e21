/* Directories of training checkpoints, as daemons (which write the roles' parts) and the driver see them.
 *
 *   DIR/latest_checkpointed_iteration.txt            decimal step; the driver writes it when all is complete
 *   DIR/global_step_<N>/<role>/MANIFEST.json         written last: without it the part is incomplete
 *   DIR/global_step_<N>/<role>/...                   the files that the manifest lists
 *   DIR/global_step_<N>/.tmp-<role>-<token>/         a part that is being written, or was left by a crash
 *
 * A part is one directory with a manifest: that of a role ("actor"), or of the driver's own state. It is
 * written under a temporary name and renamed when all of it is on the disk, so that a directory with the
 * final name is complete; sizes and checksums detect later changes. Format: docs/formats.md.
 *
 * To write a part: rk_ckpt_begin; write files below the temporary directory (each fsynced, for example by
 * rk_write_file_atomic); rk_ckpt_manifest_add_file for each; rk_ckpt_manifest_write; rk_ckpt_publish. On any
 * error rk_ckpt_remove the temporary directory. */
#ifndef RK_CKPT_DIR_H
#define RK_CKPT_DIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rk_array.h"
#include "base/rk_json.h"
#include "base/rk_status.h"

RK_BEGIN_DECLS

#define RK_CKPT_TRACKER_FILE   "latest_checkpointed_iteration.txt"
#define RK_CKPT_MANIFEST_FILE  "MANIFEST.json"
#define RK_CKPT_STEP_PREFIX    "global_step_"
#define RK_CKPT_TEMP_PREFIX    ".tmp-"
#define RK_CKPT_FORMAT_VERSION 1
/* 2^53: every JSON reader represents integers up to this exactly. */
#define RK_CKPT_STEP_MAX ((int64_t)1 << 53)

/* --- names --- */

/* "DIR/global_step_20"; rk_free it. */
char *rk_ckpt_step_dir(const char *dir, int64_t step);
/* The step in "global_step_20", or in a path that ends with such a component (a slash may follow). */
bool rk_ckpt_step_parse(const char *path, int64_t *step);

/* --- manifests --- */

struct rk_ckpt_file {
    char *name; /* relative to the part's directory: "dist_ckpt/shard_00000.safetensors" */
    uint64_t bytes;
    uint32_t crc32c;
};

/* Zero-initialise; rk_ckpt_manifest_fini releases all members. */
struct rk_ckpt_manifest {
    char *role; /* [a-z_]+ */
    int64_t global_step;
    RK_ARRAY(char *) contents; /* "model", "optimizer", ...: [a-z_]+ */
    /* Objects whose members are defined by the writer of the part; NULL when absent. */
    struct rk_json *layout; /* what the files describe: mesh, dtype, ... */
    struct rk_json *state;  /* small state: counters, random streams, ... */
    RK_ARRAY(struct rk_ckpt_file) files;
};

void rk_ckpt_manifest_fini(struct rk_ckpt_manifest *manifest);
bool rk_ckpt_manifest_has(const struct rk_ckpt_manifest *manifest, const char *content);
/* The sum of the files' sizes. */
uint64_t rk_ckpt_manifest_bytes(const struct rk_ckpt_manifest *manifest);
/* Parses and checks the text of a manifest. DATA_LOSS (reason CHECKPOINT_DAMAGED, or CHECKSUM when its own
 * checksum differs) names the member; UNIMPLEMENTED for a newer format. `source` is for messages. On failure
 * `out` is empty. */
struct rk_status *rk_ckpt_manifest_parse(struct rk_ckpt_manifest *out, const char *text, size_t bytes,
                                         const char *source) RK_NODISCARD;
/* Reads the manifest of the part in `part_dir`. NOT_FOUND (reason NO_CHECKPOINT) when there is no manifest;
 * UNIMPLEMENTED (reason FOREIGN_CHECKPOINT) when the directory is a checkpoint of verl's: the message
 * explains how to use it. */
struct rk_status *rk_ckpt_manifest_read(struct rk_ckpt_manifest *out, const char *part_dir) RK_NODISCARD;
/* Lists a file that was written below `part_dir`: reads it for size and checksum. */
struct rk_status *rk_ckpt_manifest_add_file(struct rk_ckpt_manifest *manifest, const char *part_dir,
                                            const char *name) RK_NODISCARD;
/* Lists all files of the directory part_dir/sub_dir, without the files of directories in it. */
struct rk_status *rk_ckpt_manifest_add_files(struct rk_ckpt_manifest *manifest, const char *part_dir,
                                             const char *sub_dir) RK_NODISCARD;
/* The text of the file, with the checksum; rk_free it. */
char *rk_ckpt_manifest_format(const struct rk_ckpt_manifest *manifest);
struct rk_status *rk_ckpt_manifest_write(const struct rk_ckpt_manifest *manifest,
                                         const char *part_dir) RK_NODISCARD;

typedef enum rk_ckpt_check_level {
    RK_CKPT_CHECK_SIZES, /* the manifest is valid and of this place, and all files are there in full size */
    RK_CKPT_CHECK_CHECKSUMS /* also their checksums are correct, and the shards of a role hold whole tensors
                             */
} rk_ckpt_check_level_t;
/* Whether the part is complete and undamaged, of the role that its directory is named after, and of the step
 * that a directory global_step_<N> above it names; fills `out` as rk_ckpt_manifest_read does. DATA_LOSS
 * (reasons CHECKPOINT_DAMAGED, CHECKSUM) names the file. */
struct rk_status *rk_ckpt_check(struct rk_ckpt_manifest *out, const char *part_dir,
                                rk_ckpt_check_level_t level) RK_NODISCARD;

/* --- writing a part --- */

/* Whether a part may be published under that name: nothing is there, or an empty directory, or a part of ours
 * (which will be replaced). ALREADY_EXISTS (reason TARGET_EXISTS) otherwise. */
struct rk_status *rk_ckpt_check_target(const char *part_dir) RK_NODISCARD;
/* Makes "STEP_DIR/.tmp-ROLE-TOKEN" for part_dir STEP_DIR/ROLE, and the directories above it; removes what
 * earlier attempts at the same part have left. rk_free *temp_dir. */
struct rk_status *rk_ckpt_begin(char **temp_dir, const char *part_dir, const char *token) RK_NODISCARD;
/* Gives the temporary directory its final name; an existing part of that name is replaced at once, and
 * removed when the new name is on the disk. After an error the part may still be complete under its name,
 * when only syncing the directory failed. */
struct rk_status *rk_ckpt_publish(const char *temp_dir, const char *part_dir) RK_NODISCARD;
/* Removes a directory with all that is in it, never following a symbolic link. A manifest in it or one level
 * below is removed first, so that a crash leaves an incomplete part. No-op when the directory does not exist.
 */
struct rk_status *rk_ckpt_remove(const char *path) RK_NODISCARD;

/* --- a directory of checkpoints --- */

struct rk_ckpt_steps {
    RK_ARRAY(int64_t) steps; /* descending */
};
void rk_ckpt_steps_fini(struct rk_ckpt_steps *steps);
/* All global_step_<N> of `dir`, complete or not. None when there is no such directory. */
struct rk_status *rk_ckpt_list(struct rk_ckpt_steps *out, const char *dir) RK_NODISCARD;
/* Whether the checkpoint of that step has all these parts (`roles` is ended by NULL), each complete, and of
 * that step. Errors of rk_ckpt_check. */
struct rk_status *rk_ckpt_check_step(const char *dir, int64_t step, const char *const *roles,
                                     rk_ckpt_check_level_t level) RK_NODISCARD;
/* The newest step that passes rk_ckpt_check_step; newer ones that do not are logged with the reason. *step is
 * -1 when there is none. */
struct rk_status *rk_ckpt_find_latest(int64_t *step, const char *dir, const char *const *roles,
                                      rk_ckpt_check_level_t level) RK_NODISCARD;
/* Removes temporary directories that crashes left below dir/global_step_*, and step directories that become
 * empty. No part may be being written. */
struct rk_status *rk_ckpt_sweep(const char *dir) RK_NODISCARD;

/* The step in the tracker file; -1 when there is none. DATA_LOSS when it does not contain a step. */
struct rk_status *rk_ckpt_tracker_read(int64_t *step, const char *dir) RK_NODISCARD;
struct rk_status *rk_ckpt_tracker_write(const char *dir, int64_t step) RK_NODISCARD;

RK_END_DECLS

#endif
