/* Private to engine/ckpt/: a save under way, between the engine thread (save.c, publish.c) and its
 * writer (write_shard.c). */
#ifndef RK_SAVER_INTERNAL_H
#define RK_SAVER_INTERNAL_H

#include "engine/ckpt/state_internal.h"

struct rk_saver {
    struct rk_snapshot snapshot;
    /* Of the save under way, or of the last one. */
    bool is_pending;
    char *part_dir, *temp_dir, *shard_path, *role;
    int64_t global_step;
    uint32_t contents;
    struct rk_json *layout, *state; /* mesh rank 0 */
    struct rk_state_pieces pieces;
    const struct rk_model *model; /* the writer reads its parameter table only */
    int64_t begin_ns;
    double copy_seconds;
    /* Thread C, and what it leaves. */
    pthread_t thread;
    bool has_thread;
    atomic_bool is_finished, is_cancelled;
    atomic_uint_fast64_t done_bytes;
    struct rk_status *status;
    uint64_t file_bytes;
    uint32_t file_crc;
};

/* --- saver.c --- */
int32_t rk_saver_rank(const struct rk_model *model); /* of the mesh */
int32_t rk_saver_num_ranks(const struct rk_model *model);
/* Cancels the work of thread C, and joins it. */
void rk_saver_stop(struct rk_saver *saver);
/* The save under way is none any more, without a word. */
void rk_saver_drop(struct rk_saver *saver);
/* Every rank brings `count` values of 0 to INT32_MAX - 1, all get those of all: [num_ranks * count]. */
struct rk_status *rk_saver_share(struct rk_model *model, const int32_t *mine, int64_t count,
                                 int32_t *all) RK_NODISCARD;
/* Collective; takes `st`. All ranks hear of a failure. Then nothing is left, and no save is under way. */
struct rk_status *rk_saver_agree(struct rk_model *model, struct rk_status *st) RK_NODISCARD;
void rk_saver_report(const struct rk_saver *saver, rk_checkpoint_state_t state, uint64_t bytes,
                     struct rk_checkpoint_report *report);

/* --- publish.c --- */
/* Collective: until the writers of all ranks have ended. The ranks meet while they wait: none is long in a
 * collective because another one's disk is slow. */
struct rk_status *rk_saver_wait(struct rk_model *model, const struct rk_engine_hooks *hooks) RK_NODISCARD;

/* --- write_shard.c --- */
/* Thread C: writes the shard from the snapshot, and leaves how that went. */
void *rk_saver_writer_main(void *saver);
/* The same on the engine thread, from the device, block by block. Fails only without memory for a block. */
struct rk_status *rk_saver_write_from_device(struct rk_saver *saver,
                                             const struct rk_engine_hooks *hooks) RK_NODISCARD;
/* Thread C before there is anything to write: touches the snapshot's memory, so that the first save need not.
 */
void *rk_saver_toucher_main(void *saver);

/* Of how far the writer is, for the hooks. */
#define RK_SAVER_PHASE "save"

#endif
