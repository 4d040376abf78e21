/* Completes a save: the ranks wait for their writers, then mesh rank 0 writes the manifest and renames the
 * directory. */
#include "engine/ckpt/saver_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_fault.h"
#include "base/rk_log.h"
#include "base/rk_str.h"
#include "base/rk_time.h"
#include "engine/ckpt/ckpt_internal.h"

#define POLL_MS 2
#define MEET_MS 500

/* Waits for this rank's writer for up to MEET_MS. Reports progress if the writer made some. */
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

struct rk_status *rk_saver_wait_writers(struct rk_saver *saver, const struct rk_engine_hooks *hooks)
{
    uint64_t last = UINT64_MAX;
    int32_t is_finished = 0;

    while (!is_finished) {
        RK_TRY(rk_model_agree(saver->model, wait_for_writer(saver, hooks, &last)));
        is_finished = atomic_load(&saver->is_finished);
        RK_TRY(rk_model_min(saver->model, RK_GROUP_ALL, &is_finished, 1));
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

/* `sums`: four values per rank, see publish(). */
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

/* Mesh rank 0 only. *bytes: total of all files. */
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

/* Call when all shards are written. Sizes and checksums reach rank 0 in values of 31 and 16 bits. */
static struct rk_status *publish(struct rk_saver *saver, uint64_t *bytes)
{
    int32_t count = rk_saver_num_ranks(saver);
    int32_t *sums = rk_calloc((size_t)count, 4 * sizeof(*sums));
    const int32_t mine[4] = {(int32_t)(saver->file_bytes >> 31), (int32_t)(saver->file_bytes & INT32_MAX),
                             (int32_t)(saver->file_crc >> 16), (int32_t)(saver->file_crc & 0xffff)};
    struct rk_status *st = rk_saver_share(saver, mine, 4, sums);

    *bytes = 0;
    for (int32_t r = 0; r < count; r++)
        *bytes += (uint64_t)sums[4 * r] << 31 | (uint32_t)sums[4 * r + 1];
    if (!st && rk_saver_rank(saver) == 0)
        st = write_manifest(saver, sums, count, bytes);
    rk_free(sums);
    return st;
}

static struct rk_status *finish(struct rk_saver *saver, struct rk_checkpoint_report *report)
{
    struct rk_status *st;
    uint64_t bytes;

    if (saver->has_thread)
        pthread_join(saver->thread, NULL);
    saver->has_thread = false;
    st = saver->status;
    saver->status = NULL;
    RK_TRY(rk_saver_agree(saver, st));
    RK_TRY(rk_saver_agree(saver, publish(saver, &bytes)));
    rk_saver_report(saver, RK_CHECKPOINT_DONE, bytes, report);
    RK_INFO("checkpoint '%s': %llu bytes in %.2f s, of which training waited %.2f s", saver->part_dir,
            (unsigned long long)bytes, report->seconds, report->copy_seconds);
    rk_saver_drop(saver);
    return NULL;
}

struct rk_status *rk_saver_wait(struct rk_saver *saver, bool waits, const struct rk_engine_hooks *hooks,
                                struct rk_checkpoint_report *report)
{
    int32_t is_finished;

    *report = (struct rk_checkpoint_report){.state = RK_CHECKPOINT_NONE};
    if (!saver || !saver->is_pending)
        return NULL;
    if (waits)
        RK_TRY(rk_saver_wait_writers(saver, hooks));
    is_finished = atomic_load(&saver->is_finished);
    RK_TRY(rk_model_min(saver->model, RK_GROUP_ALL, &is_finished, 1));
    rk_saver_report(saver, RK_CHECKPOINT_WRITING, 0, report);
    return is_finished ? finish(saver, report) : NULL;
}
