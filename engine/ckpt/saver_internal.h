/* Private to engine/ckpt/: a save under way, between the engine thread (save.c) and its writer
 * (write_shard.c). */
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
