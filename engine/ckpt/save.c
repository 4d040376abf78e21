/* Saves a training checkpoint. The ranks agree on a temporary directory. Each copies its pieces to host
 * memory, which training waits for, and its thread C writes them as one shard. When all shards are written,
 * mesh rank 0 adds the manifest and renames the directory. After a failure on any rank, all ranks drop the
 * save at the next agreement. */
#include "engine/ckpt/saver_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_fault.h"
#include "base/rk_hash.h"
#include "base/rk_log.h"
#include "base/rk_random.h"
#include "base/rk_str.h"
#include "base/rk_thread.h"
#include "base/rk_time.h"
#include "engine/ckpt/ckpt_internal.h"

/* Counts the ranks on this host. */
static struct rk_status *count_neighbours(struct rk_saver *saver, int32_t *out)
{
    int32_t *hosts = rk_calloc((size_t)rk_saver_num_ranks(saver), sizeof(*hosts)), mine;
    uint8_t digest[RK_SHA256_BYTES];
    char name[256] = "";
    struct rk_status *st;

    (void)gethostname(name, sizeof(name) - 1);
    rk_sha256_of(name, strlen(name), digest);
    memcpy(&mine, digest, sizeof(mine));
    mine &= 0x3fffffff;
    st = rk_saver_share(saver, &mine, 1, hosts);
    *out = 0;
    for (int32_t r = 0; r < rk_saver_num_ranks(saver); r++)
        *out += hosts[r] == mine;
    rk_free(hosts);
    return st;
}

/* Mesh rank 0 draws it. No earlier attempt, and no process killed during one, has the same token. */
static struct rk_status *draw_token(struct rk_saver *saver, char token[16])
{
    int32_t value = INT32_MAX;
    struct rk_status *st = NULL;

    if (rk_saver_rank(saver) == 0)
        st = rk_random_bytes(&value, sizeof(value));
    value &= INT32_MAX;
    RK_TRY(rk_model_agree(saver->model, st));
    RK_TRY(rk_model_min(saver->model, RK_GROUP_ALL, &value, 1));
    snprintf(token, 16, "%08x", (unsigned)value);
    return NULL;
}

static struct rk_status *make_dir(const char *parent, const char *name)
{
    char *path = rk_path_join(parent, name);
    struct rk_status *st = NULL;

    if (mkdir(path, 0777) != 0)
        st = RK_FAIL(RK_INTERNAL, "creating directory '%s': %s", path, strerror(errno));
    rk_free(path);
    return st;
}

/* Run by mesh rank 0. */
static struct rk_status *make_dirs(struct rk_saver *saver, const char *token)
{
    RK_TRY(rk_ckpt_begin(&saver->temp_dir, saver->part_dir, token));
    RK_TRY(make_dir(saver->temp_dir, RK_CKPT_SHARDS_DIR));
    return make_dir(saver->temp_dir, RK_STATE_HF_DIR);
}

/* Other ranks: checks that the directory made by rank 0 exists here. */
static struct rk_status *find_dirs(struct rk_saver *saver, const char *token)
{
    char *step_dir = rk_path_dir(saver->part_dir);
    struct stat info;
    struct rk_status *st = NULL;

    saver->temp_dir =
        rk_format("%s/" RK_CKPT_TEMP_PREFIX "%s-%s", step_dir, strrchr(saver->part_dir, '/') + 1, token);
    if (stat(saver->temp_dir, &info) != 0)
        st = RK_FAIL(RK_FAILED_PRECONDITION,
                     "'%s', created by mesh rank 0, is missing on this rank: %s; expected a directory that "
                     "all ranks share",
                     saver->temp_dir, strerror(errno));
    rk_free(step_dir);
    return st;
}

static void prepare(struct rk_saver *saver, const struct rk_checkpoint_save *save)
{
    rk_saver_stop(saver); /* the copy will touch the pages that the toucher has not touched */
    rk_free(saver->part_dir);
    saver->part_dir = rk_strdup(save->part_dir);
    saver->role = rk_strdup(save->role);
    saver->global_step = save->global_step;
    saver->contents = save->contents;
    saver->begin_ns = rk_time_now_ns();
    saver->copy_seconds = 0;
    atomic_store(&saver->is_finished, false);
    atomic_store(&saver->is_cancelled, false);
    atomic_store(&saver->done_bytes, 0);
    rk_state_pieces_list(&saver->pieces, saver->model, rk_state_kinds(saver->model, save->contents));
    if (rk_saver_rank(saver) == 0) {
        saver->layout = rk_state_format_layout(saver->model);
        saver->state = rk_state_format_state(saver->model);
    }
}

static struct rk_status *open_dirs(struct rk_saver *saver)
{
    struct rk_status *st;
    char token[16];

    RK_TRY(draw_token(saver, token));
    RK_TRY(rk_model_agree(saver->model, rk_saver_rank(saver) == 0 ? make_dirs(saver, token) : NULL));
    st = rk_saver_rank(saver) == 0 ? NULL : find_dirs(saver, token);
    saver->shard_path = rk_format("%s/" RK_CKPT_SHARD_FORMAT, saver->temp_dir, rk_saver_rank(saver));
    return rk_model_agree(saver->model, st);
}

static struct rk_status *write_hf(struct rk_saver *saver, const struct rk_engine_hooks *hooks)
{
    char *dir = rk_path_join(saver->temp_dir, RK_STATE_HF_DIR);
    struct rk_status *st;

    if (saver->contents & RK_CHECKPOINT_HF_MODEL)
        st = rk_model_export_hf(saver->model, dir, 0, hooks);
    else
        st = rk_model_agree(saver->model,
                            rk_saver_rank(saver) == 0 ? rk_hf_write_config(saver->model, dir) : NULL);
    rk_free(dir);
    return st;
}

/* *fits: whether all ranks have `bytes` of free host memory. */
static struct rk_status *reserve(struct rk_saver *saver, uint64_t bytes, int32_t *fits)
{
    int32_t neighbours;

    RK_TRY(count_neighbours(saver, &neighbours));
    *fits = rk_snapshot_reserve(&saver->snapshot, bytes, neighbours);
    rk_saver_note_memory(saver);
    RK_TRY(rk_model_min(saver->model, RK_GROUP_ALL, fits, 1));
    if (*fits)
        return NULL;
    rk_snapshot_fini(&saver->snapshot);
    rk_saver_note_memory(saver);
    if (rk_saver_rank(saver) == 0)
        RK_WARN("no host memory for a copy of the training state (%llu bytes on this rank); training pauses "
                "while a checkpoint is written",
                (unsigned long long)bytes);
    return NULL;
}

/* Copies to host memory and starts the writer. If some rank lacks memory, all ranks write at once from the
 * device. */
static struct rk_status *take(struct rk_saver *saver, const struct rk_engine_hooks *hooks)
{
    int64_t begin_ns = rk_time_now_ns();
    struct rk_status *st;
    int32_t fits;

    RK_TRY(reserve(saver, saver->pieces.bytes, &fits));
    if (fits)
        st = rk_snapshot_take(&saver->snapshot, saver->model, &saver->pieces);
    else
        st = rk_saver_write_from_device(saver, hooks);
    rk_saver_note_memory(saver); /* with the pinned memory of the copy */
    saver->copy_seconds = (double)(rk_time_now_ns() - begin_ns) / 1e9;
    RK_TRY(rk_model_agree(saver->model, st));
    if (!fits)
        return NULL;
    st = rk_thread_start(&saver->thread, rk_saver_writer_main, saver, "the checkpoint writer");
    saver->has_thread = !st;
    return rk_model_agree(saver->model, st);
}

static struct rk_status *begin(struct rk_saver *saver, const struct rk_engine_hooks *hooks)
{
    RK_TRY(open_dirs(saver));
    RK_TRY(write_hf(saver, hooks));
    return take(saver, hooks);
}

struct rk_status *rk_saver_prepare(struct rk_saver *saver, uint32_t contents)
{
    struct rk_state_pieces pieces;
    struct rk_status *st;
    int32_t fits = 0;

    RK_TRY(rk_model_agree(saver->model, rk_model_check_contents(saver->model, contents)));
    if (saver->is_pending)
        return NULL;
    rk_saver_stop(saver);
    rk_state_pieces_list(&pieces, saver->model, rk_state_kinds(saver->model, contents));
    st = reserve(saver, pieces.bytes, &fits);
    rk_state_pieces_fini(&pieces);
    if (st || !fits || saver->snapshot.capacity == 0)
        return st;
    atomic_store(&saver->is_cancelled, false);
    st = rk_thread_start(&saver->thread, rk_saver_toucher_main, saver, "the checkpoint writer");
    saver->has_thread = !st;
    RK_IGNORE(st, "the first save touches the memory instead");
    return NULL;
}

struct rk_status *rk_saver_save(struct rk_saver *saver, const struct rk_checkpoint_save *save,
                                const struct rk_engine_hooks *hooks, struct rk_checkpoint_report *report)
{
    RK_ASSERT(save->global_step >= 0);
    RK_ASSERT(strchr(save->part_dir, '/'));
    RK_TRY(rk_model_agree(saver->model, rk_model_check_contents(saver->model, save->contents)));
    RK_TRY(rk_saver_wait(saver, true, hooks, report));
    prepare(saver, save);
    saver->is_pending = true;
    RK_TRY(rk_saver_agree(saver, begin(saver, hooks)));
    rk_saver_report(saver, RK_CHECKPOINT_WRITING, 0, report);
    if (save->is_async)
        return NULL;
    RK_TRY(rk_saver_agree(saver, rk_saver_wait_writers(saver, hooks)));
    return rk_saver_wait(saver, true, hooks, report);
}
