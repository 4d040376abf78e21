/* The saver of a model: creation, destruction, and agreement of the ranks of a save. */
#include "engine/ckpt/saver_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_log.h"
#include "base/rk_time.h"

int32_t rk_saver_rank(const struct rk_saver *saver)
{
    return rk_comm_group_rank(rk_mesh_comms_group(saver->model->core->mesh, RK_GROUP_ALL));
}

int32_t rk_saver_num_ranks(const struct rk_saver *saver)
{
    return rk_comm_group_size(rk_mesh_comms_group(saver->model->core->mesh, RK_GROUP_ALL));
}

void rk_saver_stop(struct rk_saver *saver)
{
    if (!saver->has_thread)
        return;
    atomic_store(&saver->is_cancelled, true);
    pthread_join(saver->thread, NULL);
    saver->has_thread = false;
}

void rk_saver_drop(struct rk_saver *saver)
{
    rk_saver_stop(saver);
    saver->is_pending = false;
    rk_status_free(saver->status);
    saver->status = NULL;
    rk_state_pieces_fini(&saver->pieces);
    rk_json_free(saver->layout);
    rk_json_free(saver->state);
    rk_free(saver->temp_dir);
    rk_free(saver->shard_path);
    rk_free(saver->role);
    saver->layout = saver->state = NULL;
    saver->temp_dir = saver->shard_path = saver->role = NULL;
}

void rk_saver_note_memory(const struct rk_saver *saver)
{
    saver->model->checkpoint_host_bytes = rk_snapshot_bytes(&saver->snapshot);
}

struct rk_saver *rk_saver_create(struct rk_model *model)
{
    struct rk_saver *saver = rk_calloc(1, sizeof(*saver));

    saver->model = model;
    return saver;
}

void rk_saver_destroy(struct rk_saver *saver)
{
    if (!saver)
        return;
    if (saver->is_pending)
        RK_WARN("discarding the incomplete checkpoint '%s'", saver->part_dir);
    rk_saver_drop(saver);
    rk_snapshot_fini(&saver->snapshot);
    rk_saver_note_memory(saver);
    rk_free(saver->part_dir);
    rk_free(saver);
}

#define VALUES_MAX (RK_AGREE_BYTES / (int64_t)sizeof(int32_t))

struct rk_status *rk_saver_share(struct rk_saver *saver, const int32_t *mine, int64_t count, int32_t *all)
{
    int64_t total = rk_saver_num_ranks(saver) * count, first = rk_saver_rank(saver) * count;

    for (int64_t i = 0; i < total; i++)
        all[i] = i >= first && i < first + count ? mine[i - first] : INT32_MAX;
    for (int64_t i = 0; i < total; i += VALUES_MAX)
        RK_TRY(rk_model_min(saver->model, RK_GROUP_ALL, all + i, RK_MIN(VALUES_MAX, total - i)));
    return NULL;
}

static void remove_temp_dir(const struct rk_saver *saver)
{
    struct rk_status *st = rk_ckpt_remove(saver->temp_dir);

    if (st)
        RK_WARN("cannot remove '%s' of the failed save: %s", saver->temp_dir, rk_status_message(st));
    rk_status_free(st);
}

struct rk_status *rk_saver_agree(struct rk_saver *saver, struct rk_status *st)
{
    st = rk_model_agree(saver->model, st);
    if (!st)
        return NULL;
    rk_saver_stop(saver);
    /* No rank's writer may be writing in the directory that is being removed. */
    st = rk_status_first(st, rk_model_agree(saver->model, NULL));
    if (rk_saver_rank(saver) == 0 && saver->temp_dir)
        remove_temp_dir(saver);
    st = rk_status_first(st, rk_model_agree(saver->model, NULL));
    rk_saver_drop(saver);
    return RK_WRAP(st, "saving checkpoint '%s'", saver->part_dir);
}

void rk_saver_report(const struct rk_saver *saver, rk_checkpoint_state_t state, uint64_t bytes,
                     struct rk_checkpoint_report *report)
{
    *report = (struct rk_checkpoint_report){
        .state = state,
        .part_dir = saver->part_dir,
        .global_step = saver->global_step,
        .bytes = bytes,
        .copy_seconds = saver->copy_seconds,
        .seconds = (double)(rk_time_now_ns() - saver->begin_ns) / 1e9,
    };
}
