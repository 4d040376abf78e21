/* Saving. The ranks agree on a temporary directory; each copies its pieces to host memory (what training
 * waits for) and its thread C writes them as one shard. When all have written, mesh rank 0 adds the manifest
 * and gives the directory its name. A rank that fails tells the others at the next meeting, and all give up.
 */
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
#include "base/rk_str.h"
#include "base/rk_thread.h"
#include "base/rk_time.h"
#include "engine/ckpt/ckpt_internal.h"

#define POLL_MS 2
#define MEET_MS 500

static int32_t my_rank(const struct rk_model *model)
{
    return rk_comm_group_rank(rk_mesh_comms_group(model->core->mesh, RK_GROUP_ALL));
}

static int32_t num_ranks(const struct rk_model *model)
{
    return rk_comm_group_size(rk_mesh_comms_group(model->core->mesh, RK_GROUP_ALL));
}

/* --- life --- */

/* Cancels the work of thread C, and joins it. */
static void stop_thread(struct rk_saver *saver)
{
    if (!saver->has_thread)
        return;
    atomic_store(&saver->is_cancelled, true);
    pthread_join(saver->thread, NULL);
    saver->has_thread = false;
}

static void drop_save(struct rk_saver *saver)
{
    stop_thread(saver);
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

void rk_saver_destroy(struct rk_saver *saver)
{
    if (!saver)
        return;
    if (saver->is_pending)
        RK_WARN("discarding the checkpoint '%s', which is not completely written", saver->part_dir);
    drop_save(saver);
    rk_snapshot_fini(&saver->snapshot);
    rk_free(saver->part_dir);
    rk_free(saver);
}

uint64_t rk_saver_host_bytes(const struct rk_saver *saver)
{
    return saver ? rk_snapshot_bytes(&saver->snapshot) : 0;
}

/* --- what all ranks know --- */

#define VALUES_MAX (RK_AGREE_BYTES / (int64_t)sizeof(int32_t))

/* Every rank brings `count` values of 0 to INT32_MAX - 1, all get those of all: [num_ranks * count]. */
static struct rk_status *share(struct rk_model *model, const int32_t *mine, int64_t count, int32_t *all)
{
    int64_t total = num_ranks(model) * count, first = my_rank(model) * count;

    for (int64_t i = 0; i < total; i++)
        all[i] = i >= first && i < first + count ? mine[i - first] : INT32_MAX;
    for (int64_t i = 0; i < total; i += VALUES_MAX)
        RK_TRY(rk_model_min(model, RK_GROUP_ALL, all + i, RK_MIN(VALUES_MAX, total - i)));
    return NULL;
}

/* Ranks whose memory is this host's. */
static struct rk_status *count_neighbours(struct rk_model *model, int32_t *out)
{
    int32_t *hosts = rk_calloc((size_t)num_ranks(model), sizeof(*hosts)), mine;
    uint8_t digest[RK_SHA256_BYTES];
    char name[256] = "";
    struct rk_status *st;

    (void)gethostname(name, sizeof(name) - 1);
    rk_sha256_of(name, strlen(name), digest);
    memcpy(&mine, digest, sizeof(mine));
    mine &= 0x3fffffff;
    st = share(model, &mine, 1, hosts);
    *out = 0;
    for (int32_t r = 0; r < num_ranks(model); r++)
        *out += hosts[r] == mine;
    rk_free(hosts);
    return st;
}

/* Of mesh rank 0: no earlier attempt, nor one of a process that was given up, has it. */
static struct rk_status *draw_token(struct rk_model *model, char token[16])
{
    int32_t value = INT32_MAX;
    struct rk_status *st = NULL;

    if (my_rank(model) == 0)
        st = rk_random_bytes(&value, sizeof(value));
    value &= INT32_MAX;
    RK_TRY(rk_model_agree(model, st));
    RK_TRY(rk_model_min(model, RK_GROUP_ALL, &value, 1));
    snprintf(token, 16, "%08x", (unsigned)value);
    return NULL;
}

/* --- beginning --- */

static struct rk_status *make_dir(const char *parent, const char *name)
{
    char *path = rk_path_join(parent, name);
    struct rk_status *st = NULL;

    if (mkdir(path, 0777) != 0)
        st = RK_FAIL(RK_INTERNAL, "creating directory '%s': %s", path, strerror(errno));
    rk_free(path);
    return st;
}

/* Mesh rank 0. */
static struct rk_status *make_dirs(struct rk_saver *saver, const char *token)
{
    RK_TRY(rk_ckpt_begin(&saver->temp_dir, saver->part_dir, token));
    RK_TRY(make_dir(saver->temp_dir, RK_CKPT_SHARDS_DIR));
    return make_dir(saver->temp_dir, RK_STATE_HF_DIR);
}

/* The others: where rank 0 made it. */
static struct rk_status *find_dirs(struct rk_saver *saver, const char *token)
{
    char *step_dir = rk_path_dir(saver->part_dir);
    struct stat info;
    struct rk_status *st = NULL;

    saver->temp_dir =
        rk_format("%s/" RK_CKPT_TEMP_PREFIX "%s-%s", step_dir, strrchr(saver->part_dir, '/') + 1, token);
    if (stat(saver->temp_dir, &info) != 0)
        st =
            RK_FAIL(RK_FAILED_PRECONDITION,
                    "'%s', which mesh rank 0 made, is not there: %s; a checkpoint needs a directory that all "
                    "ranks share",
                    saver->temp_dir, strerror(errno));
    rk_free(step_dir);
    return st;
}

static void remove_temp_dir(const struct rk_saver *saver)
{
    struct rk_status *st = rk_ckpt_remove(saver->temp_dir);

    if (st)
        RK_WARN("cannot remove '%s' of the failed save: %s", saver->temp_dir, rk_status_message(st));
    rk_status_free(st);
}

/* All ranks hear of a failure. Then nothing is left, and no save is under way. */
static struct rk_status *agree_or_drop(struct rk_model *model, struct rk_status *st)
{
    struct rk_saver *saver = model->saver;

    st = rk_model_agree(model, st);
    if (!st)
        return NULL;
    stop_thread(saver);
    /* No writer of any rank may be at work in a directory that is being removed. */
    st = rk_status_first(st, rk_model_agree(model, NULL));
    if (my_rank(model) == 0 && saver->temp_dir)
        remove_temp_dir(saver);
    st = rk_status_first(st, rk_model_agree(model, NULL));
    drop_save(saver);
    return RK_WRAP(st, "saving checkpoint '%s'", saver->part_dir);
}

static void prepare(struct rk_model *model, const struct rk_checkpoint_save *save)
{
    struct rk_saver *saver = model->saver;

    stop_thread(saver); /* memory that it has not touched the copy will touch */
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
    if (my_rank(model) == 0) {
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
    RK_TRY(rk_model_agree(model, my_rank(model) == 0 ? make_dirs(saver, token) : NULL));
    st = my_rank(model) == 0 ? NULL : find_dirs(saver, token);
    saver->shard_path = rk_format("%s/" RK_CKPT_SHARD_FORMAT, saver->temp_dir, my_rank(model));
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
        st = rk_model_agree(model, my_rank(model) == 0 ? rk_hf_write_config(model, dir) : NULL);
    rk_free(dir);
    return st;
}

/* *fits: there is room for `bytes` in host memory, on all ranks. */
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
    if (my_rank(model) == 0)
        RK_WARN("no room in host memory for a copy of the training state, %llu bytes on this rank: training "
                "waits until a checkpoint is written",
                (unsigned long long)bytes);
    return NULL;
}

/* Copies to host memory and starts the writer; where some rank has no room, all write now. */
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

/* --- ending --- */

/* Waits for this rank's writer, and no longer than MEET_MS. Tells of progress when it has gone on. */
static struct rk_status *wait_for_writer(struct rk_saver *saver, const struct rk_engine_hooks *hooks,
                                         uint64_t *last)
{
    for (int ms = 0; ms < MEET_MS && !atomic_load(&saver->is_finished); ms += POLL_MS) {
        uint64_t done = atomic_load(&saver->done_bytes);

        if (done != *last && hooks && hooks->on_progress)
            hooks->on_progress(hooks->user, RK_SAVER_PHASE, done, saver->pieces.bytes);
        if (hooks && hooks->is_cancelled && hooks->is_cancelled(hooks->user))
            return RK_FAIL(RK_CANCELLED, "cancelled");
        *last = done;
        rk_time_sleep_ms(POLL_MS);
    }
    return NULL;
}

/* The ranks meet while they wait: none is long in a collective because another one's disk is slow. */
static struct rk_status *wait_for_writers(struct rk_model *model, const struct rk_engine_hooks *hooks)
{
    uint64_t last = UINT64_MAX;
    int32_t is_finished = 0;

    while (!is_finished) {
        RK_TRY(rk_model_agree(model, wait_for_writer(model->saver, hooks, &last)));
        is_finished = atomic_load(&model->saver->is_finished);
        RK_TRY(rk_model_min(model, RK_GROUP_ALL, &is_finished, 1));
    }
    return NULL;
}

static int compare_files(const void *a, const void *b)
{
    return strcmp(((const struct rk_ckpt_file *)a)->name, ((const struct rk_ckpt_file *)b)->name);
}

static void add_contents(struct rk_ckpt_manifest *manifest, uint32_t contents)
{
    for (int32_t i = 0; i < RK_CHECKPOINT_CONTENTS_COUNT; i++) {
        if (contents >> i & 1)
            rk_array_append(&manifest->contents, rk_strdup(rk_checkpoint_content_name(i)));
    }
}

/* `sums`: four values a rank, see publish. */
static struct rk_status *make_manifest(struct rk_ckpt_manifest *out, const struct rk_saver *saver,
                                       const int32_t *sums, int32_t count)
{
    *out = (struct rk_ckpt_manifest){.role = rk_strdup(saver->role), .global_step = saver->global_step};
    out->layout = rk_json_retain(saver->layout);
    out->state = rk_json_retain(saver->state);
    add_contents(out, saver->contents);
    for (int32_t r = 0; r < count; r++) {
        struct rk_ckpt_file file = {
            .name = rk_format(RK_CKPT_SHARD_FORMAT, r),
            .bytes = (uint64_t)sums[4 * r] << 31 | (uint32_t)sums[4 * r + 1],
            .crc32c = (uint32_t)sums[4 * r + 2] << 16 | (uint32_t)sums[4 * r + 3],
        };

        rk_array_append(&out->files, file);
    }
    RK_TRY(rk_ckpt_manifest_add_files(out, saver->temp_dir, RK_STATE_HF_DIR));
    qsort(out->files.items, (size_t)out->files.count, sizeof(*out->files.items), compare_files);
    return NULL;
}

/* Mesh rank 0. *bytes: of all files. */
static struct rk_status *write_manifest(const struct rk_saver *saver, const int32_t *sums, int32_t count,
                                        uint64_t *bytes)
{
    struct rk_ckpt_manifest manifest;
    struct rk_status *st = make_manifest(&manifest, saver, sums, count);

    *bytes = rk_ckpt_manifest_bytes(&manifest);
    if (!st && RK_FAULT("ckpt.manifest"))
        st = RK_FAIL(RK_INTERNAL, "fault point ckpt.manifest");
    if (!st)
        st = rk_ckpt_manifest_write(&manifest, saver->temp_dir);
    if (!st)
        st = rk_ckpt_publish(saver->temp_dir, saver->part_dir);
    rk_ckpt_manifest_fini(&manifest);
    return st;
}

/* Everything has been written. Sizes and checksums come to rank 0 in values of 31 and 16 bits. */
static struct rk_status *publish(struct rk_model *model, uint64_t *bytes)
{
    struct rk_saver *saver = model->saver;
    int32_t count = num_ranks(model);
    int32_t *sums = rk_calloc((size_t)count, 4 * sizeof(*sums));
    const int32_t mine[4] = {(int32_t)(saver->file_bytes >> 31), (int32_t)(saver->file_bytes & INT32_MAX),
                             (int32_t)(saver->file_crc >> 16), (int32_t)(saver->file_crc & 0xffff)};
    struct rk_status *st = share(model, mine, 4, sums);

    *bytes = 0;
    for (int32_t r = 0; r < count; r++)
        *bytes += (uint64_t)sums[4 * r] << 31 | (uint32_t)sums[4 * r + 1];
    if (!st && my_rank(model) == 0)
        st = write_manifest(saver, sums, count, bytes);
    rk_free(sums);
    return st;
}

static void report_on(const struct rk_saver *saver, rk_checkpoint_state_t state, uint64_t bytes,
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

static struct rk_status *finish(struct rk_model *model, struct rk_checkpoint_report *report)
{
    struct rk_saver *saver = model->saver;
    struct rk_status *st;
    uint64_t bytes;

    if (saver->has_thread)
        pthread_join(saver->thread, NULL);
    saver->has_thread = false;
    st = saver->status;
    saver->status = NULL;
    RK_TRY(agree_or_drop(model, st));
    RK_TRY(agree_or_drop(model, publish(model, &bytes)));
    report_on(saver, RK_CHECKPOINT_DONE, bytes, report);
    RK_INFO("checkpoint '%s': %llu bytes in %.2f s, of which training waited %.2f s", saver->part_dir,
            (unsigned long long)bytes, report->seconds, report->copy_seconds);
    drop_save(saver);
    return NULL;
}

struct rk_status *rk_model_wait_checkpoint(struct rk_model *model, bool waits,
                                           const struct rk_engine_hooks *hooks,
                                           struct rk_checkpoint_report *report)
{
    struct rk_saver *saver = model->saver;
    int32_t is_finished;

    *report = (struct rk_checkpoint_report){.state = RK_CHECKPOINT_NONE};
    if (!saver || !saver->is_pending)
        return NULL;
    if (waits)
        RK_TRY(wait_for_writers(model, hooks));
    is_finished = atomic_load(&saver->is_finished);
    RK_TRY(rk_model_min(model, RK_GROUP_ALL, &is_finished, 1));
    report_on(saver, RK_CHECKPOINT_WRITING, 0, report);
    return is_finished ? finish(model, report) : NULL;
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
    stop_thread(saver);
    rk_state_pieces_list(&pieces, model, rk_state_kinds(model, contents));
    st = reserve(model, pieces.bytes, &fits);
    rk_state_pieces_fini(&pieces);
    if (st || !fits || saver->snapshot.capacity == 0)
        return st;
    atomic_store(&saver->is_cancelled, false);
    st = rk_thread_start(&saver->thread, rk_saver_toucher_main, saver, "the checkpoint writer");
    saver->has_thread = !st;
    RK_IGNORE(st, "the first save touches the memory then");
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
    RK_TRY(agree_or_drop(model, begin(model, hooks)));
    report_on(model->saver, RK_CHECKPOINT_WRITING, 0, report);
    if (save->is_async)
        return NULL;
    RK_TRY(agree_or_drop(model, wait_for_writers(model, hooks)));
    return rk_model_wait_checkpoint(model, true, hooks, report);
}
