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
static struct rk_status *count_neighbours(struct rk_model *model, int32_t *out)
{
    int32_t *hosts = rk_calloc((size_t)rk_saver_num_ranks(model), sizeof(*hosts)), mine;
    uint8_t digest[RK_SHA256_BYTES];
    char name[256] = "";
    struct rk_status *st;

    (void)gethostname(name, sizeof(name) - 1);
    rk_sha256_of(name, strlen(name), digest);
    memcpy(&mine, digest, sizeof(mine));
    mine &= 0x3fffffff;
    st = rk_saver_share(model, &mine, 1, hosts);
    *out = 0;
    for (int32_t r = 0; r < rk_saver_num_ranks(model); r++)
        *out += hosts[r] == mine;
    rk_free(hosts);
    return st;
}

/* Mesh rank 0 draws it. No earlier attempt, and no process killed during one, has the same token. */
static struct rk_status *draw_token(struct rk_model *model, char token[16])
{
    int32_t value = INT32_MAX;
    struct rk_status *st = NULL;

    if (rk_saver_rank(model) == 0)
        st = rk_random_bytes(&value, sizeof(value));
    value &= INT32_MAX;
    RK_TRY(rk_model_agree(model, st));
    RK_TRY(rk_model_min(model, RK_GROUP_ALL, &value, 1));
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

static void prepare(struct rk_model *model, const struct rk_checkpoint_save *save)
{
    struct rk_saver *saver = model->saver;

    rk_saver_stop(saver); /* the copy will touch the pages that the toucher has not touched */
    rk_free(saver->part_dir);
    saver->part_dir = rk_strdup(save->part_dir);
    saver->role = rk_strdup(save->role);
    saver->global_step = save->global_step;
    saver->contents = save->contents;
    saver->model = model;
    saver->begin_ns = rk_time_now_ns();
    saver->copy_seconds = 0;
    atomic_store(&saver->is_finished, false);
    atomic_store(&saver->is_cancelled, false);
    atomic_store(&saver->done_bytes, 0);
    rk_state_pieces_list(&saver->pieces, model, rk_state_kinds(model, save->contents));
    if (rk_saver_rank(model) == 0) {
        saver->layout = rk_state_format_layout(model);
        saver->state = rk_state_format_state(model);
    }
}

static struct rk_status *open_dirs(struct rk_model *model)
{
    struct rk_saver *saver = model->saver;
    struct rk_status *st;
    char token[16];

    RK_TRY(draw_token(model, token));
    RK_TRY(rk_model_agree(model, rk_saver_rank(model) == 0 ? make_dirs(saver, token) : NULL));
    st = rk_saver_rank(model) == 0 ? NULL : find_dirs(saver, token);
    saver->shard_path = rk_format("%s/" RK_CKPT_SHARD_FORMAT, saver->temp_dir, rk_saver_rank(model));
    return rk_model_agree(model, st);
}

static struct rk_status *write_hf(struct rk_model *model, const struct rk_engine_hooks *hooks)
{
    struct rk_saver *saver = model->saver;
    char *dir = rk_path_join(saver->temp_dir, RK_STATE_HF_DIR);
    struct rk_status *st;

    if (saver->contents & RK_CHECKPOINT_HF_MODEL)
        st = rk_model_export_hf(model, dir, 0, hooks);
    else
        st = rk_model_agree(model, rk_saver_rank(model) == 0 ? rk_hf_write_config(model, dir) : NULL);
    rk_free(dir);
    return st;
}

/* *fits: whether all ranks have `bytes` of free host memory. */
static struct rk_status *reserve(struct rk_model *model, uint64_t bytes, int32_t *fits)
{
    struct rk_saver *saver = model->saver;
    int32_t neighbours;

    RK_TRY(count_neighbours(model, &neighbours));
    *fits = rk_snapshot_reserve(&saver->snapshot, bytes, neighbours);
    RK_TRY(rk_model_min(model, RK_GROUP_ALL, fits, 1));
    if (*fits)
        return NULL;
    rk_snapshot_fini(&saver->snapshot);
    if (rk_saver_rank(model) == 0)
        RK_WARN("no host memory for a copy of the training state (%llu bytes on this rank); training pauses "
                "while a checkpoint is written",
                (unsigned long long)bytes);
    return NULL;
}

/* Copies to host memory and starts the writer. If some rank lacks memory, all ranks write at once from the
 * device. */
static struct rk_status *take(struct rk_model *model, const struct rk_engine_hooks *hooks)
{
    struct rk_saver *saver = model->saver;
    int64_t begin_ns = rk_time_now_ns();
    struct rk_status *st;
    int32_t fits;

    RK_TRY(reserve(model, saver->pieces.bytes, &fits));
    if (fits)
        st = rk_snapshot_take(&saver->snapshot, model, &saver->pieces);
    else
        st = rk_saver_write_from_device(saver, hooks);
    saver->copy_seconds = (double)(rk_time_now_ns() - begin_ns) / 1e9;
    RK_TRY(rk_model_agree(model, st));
    if (!fits)
        return NULL;
    st = rk_thread_start(&saver->thread, rk_saver_writer_main, saver, "the checkpoint writer");
    saver->has_thread = !st;
    return rk_model_agree(model, st);
}

static struct rk_status *begin(struct rk_model *model, const struct rk_engine_hooks *hooks)
{
    RK_TRY(open_dirs(model));
    RK_TRY(write_hf(model, hooks));
    return take(model, hooks);
}

static void make_saver(struct rk_model *model)
{
    if (!model->saver)
        model->saver = rk_calloc(1, sizeof(*model->saver));
}

struct rk_status *rk_model_prepare_checkpoint(struct rk_model *model, uint32_t contents)
{
    struct rk_state_pieces pieces;
    struct rk_saver *saver;
    struct rk_status *st;
    int32_t fits = 0;

    RK_TRY(rk_model_agree(model, rk_model_check_contents(model, contents)));
    make_saver(model);
    saver = model->saver;
    if (saver->is_pending)
        return NULL;
    rk_saver_stop(saver);
    rk_state_pieces_list(&pieces, model, rk_state_kinds(model, contents));
    st = reserve(model, pieces.bytes, &fits);
    rk_state_pieces_fini(&pieces);
    if (st || !fits || saver->snapshot.capacity == 0)
        return st;
    atomic_store(&saver->is_cancelled, false);
    st = rk_thread_start(&saver->thread, rk_saver_toucher_main, saver, "the checkpoint writer");
    saver->has_thread = !st;
    RK_IGNORE(st, "the first save touches the memory instead");
    return NULL;
}

struct rk_status *rk_model_save_checkpoint(struct rk_model *model, const struct rk_checkpoint_save *save,
                                           const struct rk_engine_hooks *hooks,
                                           struct rk_checkpoint_report *report)
{
    RK_ASSERT(save->global_step >= 0);
    RK_ASSERT(strchr(save->part_dir, '/'));
    RK_TRY(rk_model_agree(model, rk_model_check_contents(model, save->contents)));
    RK_TRY(rk_model_wait_checkpoint(model, true, hooks, report));
    make_saver(model);
    prepare(model, save);
    model->saver->is_pending = true;
    RK_TRY(rk_saver_agree(model, begin(model, hooks)));
    rk_saver_report(model->saver, RK_CHECKPOINT_WRITING, 0, report);
    if (save->is_async)
        return NULL;
    RK_TRY(rk_saver_agree(model, rk_saver_wait(model, hooks)));
    return rk_model_wait_checkpoint(model, true, hooks, report);
}
