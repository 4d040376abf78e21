/* Private to engine/ckpt/: a save in progress, shared by the engine thread (save.c, publish.c) and its
 * writer (write_shard.c). */
#ifndef RK_SAVER_INTERNAL_H
#define RK_SAVER_INTERNAL_H

#include "engine/ckpt/state_internal.h"

struct rk_saver {
    struct rk_model *model; /* borrowed; the writer reads only its parameter table */
    struct rk_snapshot snapshot;
    /* State of the save in progress, or of the last one. */
    bool is_pending;
    char *part_dir, *temp_dir, *shard_path, *role;
    int64_t global_step;
    uint32_t contents;
    struct rk_json *layout, *state; /* mesh rank 0 */
    struct rk_state_pieces pieces;
    int64_t begin_ns;
    double copy_seconds;
    /* Thread C and its results. */
    pthread_t thread;
    bool has_thread;
    atomic_bool is_finished, is_cancelled;
    atomic_uint_fast64_t done_bytes;
    struct rk_status *status;
    uint64_t file_bytes;
    uint32_t file_crc;
};

/* --- saver.c --- */
int32_t rk_saver_rank(const struct rk_saver *saver); /* rank in the mesh */
int32_t rk_saver_num_ranks(const struct rk_saver *saver);
/* Cancels the work of thread C, and joins it. */
void rk_saver_stop(struct rk_saver *saver);
/* Tells the model the size of the snapshot, which has changed. */
void rk_saver_note_memory(const struct rk_saver *saver);
/* Drops the save in progress without logging. */
void rk_saver_drop(struct rk_saver *saver);
/* All-gathers `count` values per rank, each from 0 to INT32_MAX - 1: [num_ranks * count]. */
struct rk_status *rk_saver_share(struct rk_saver *saver, const int32_t *mine, int64_t count,
                                 int32_t *all) RK_NODISCARD;
/* Collective; takes `st`. All ranks learn of a failure; then the files are removed and no save is in
 * progress. */
struct rk_status *rk_saver_agree(struct rk_saver *saver, struct rk_status *st) RK_NODISCARD;
void rk_saver_report(const struct rk_saver *saver, rk_checkpoint_state_t state, uint64_t bytes,
                     struct rk_checkpoint_report *report);

/* --- publish.c --- */
/* Collective: waits until the writers of all ranks have ended. The ranks agree repeatedly while they wait, so
 * no collective lasts as long as the slowest disk. */
struct rk_status *rk_saver_wait_writers(struct rk_saver *saver,
                                        const struct rk_engine_hooks *hooks) RK_NODISCARD;

/* --- write_shard.c --- */
/* Thread C: writes the shard from the snapshot and stores the result. */
void *rk_saver_writer_main(void *saver);
/* Writes the shard on the engine thread, block by block from the device. Fails only when a block cannot be
 * allocated. */
struct rk_status *rk_saver_write_from_device(struct rk_saver *saver,
                                             const struct rk_engine_hooks *hooks) RK_NODISCARD;
/* Thread C before the first save: touches the snapshot's pages, so that the first save need not. */
void *rk_saver_toucher_main(void *saver);

/* Phase of the writer's progress for the hooks. */
#define RK_SAVER_PHASE "save"

#endif
