/* Weights from a Hugging Face directory, and training checkpoints: the time that training waits, the whole
 * save, and the load, each compared with the machine's bandwidth for the same number of bytes. The three
 * checkpoint figures are measured together, once: the state of a 1.5B is 18.5 GB, and it is written into
 * TMPDIR (or /tmp) three times, twice as a checkpoint and once as a plain file. */
#include "bench/models.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/format/rk_ckpt_dir.h"
#include "base/config/rk_config.h"
#include "base/rk_env.h"
#include "base/rk_log.h"
#include "base/rk_str.h"
#include "base/rk_time.h"
#include "engine/rk_checkpoint.h"

#define CONTENTS    (RK_CHECKPOINT_MODEL | RK_CHECKPOINT_OPTIMIZER | RK_CHECKPOINT_EXTRA)
#define BLOCK_BYTES ((size_t)64 << 20)
#define NUM_COPIES  32 /* copies of a block per measurement */

struct measured {
    const struct bench_model *model; /* model of the measurements; NULL: none yet */
    double bytes;
    double first_stall, stall, save, load; /* seconds */
    double to_host, to_device;             /* pinned copies, bytes per second */
    double plain_write, plain_read;        /* seconds for the same number of bytes */
};

static double seconds_since(int64_t begin_ns)
{
    return (double)(rk_time_now_ns() - begin_ns) / 1e9;
}

/* --- ceilings --- */

static struct rk_status *time_copy(double *rate, struct bench_ctx *ctx, void *host, void *device,
                                   rk_copy_kind_t kind)
{
    bool to_host = kind == RK_COPY_D2H;
    int64_t begin_ns;

    for (int i = 0; i <= NUM_COPIES; i++) {
        if (i == 1)
            RK_TRY(rk_stream_sync(ctx->stream)); /* the first iteration is a warm-up */
        if (i <= 1)
            begin_ns = rk_time_now_ns();
        RK_TRY(
            rk_stream_copy(ctx->stream, to_host ? host : device, to_host ? device : host, BLOCK_BYTES, kind));
    }
    RK_TRY(rk_stream_sync(ctx->stream));
    *rate = NUM_COPIES * (double)BLOCK_BYTES / seconds_since(begin_ns);
    return NULL;
}

static struct rk_status *time_copies(struct measured *out, struct bench_ctx *ctx)
{
    void *host = NULL, *device = NULL;
    struct rk_status *st;

    RK_TRY_GOTO(st, rk_device_host_alloc(ctx->device, &host, BLOCK_BYTES, "copies"), out);
    RK_TRY_GOTO(st, rk_device_alloc(ctx->device, &device, BLOCK_BYTES, "copies"), out);
    memset(host, 1, BLOCK_BYTES);
    RK_TRY_GOTO(st, time_copy(&out->to_host, ctx, host, device, RK_COPY_D2H), out);
    st = time_copy(&out->to_device, ctx, host, device, RK_COPY_H2D);

out:
    rk_device_host_free(ctx->device, host);
    rk_device_free(ctx->device, device);
    return st;
}

static struct rk_status *io_error(const char *path)
{
    return RK_FAIL(RK_INTERNAL, "'%s': %s", path, strerror(errno));
}

/* Writes or reads a plain file with one buffer and without checks. */
static struct rk_status *move_plain(const char *path, uint64_t bytes, char *buf, bool writes)
{
    int fd = open(path, writes ? O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC : O_RDONLY | O_CLOEXEC, 0666);
    struct rk_status *st = fd < 0 ? io_error(path) : NULL;

    for (uint64_t done = 0; !st && done < bytes;) {
        size_t step = RK_MIN(BLOCK_BYTES, bytes - done);
        ssize_t moved = writes ? write(fd, buf, step) : read(fd, buf, step);

        if (moved <= 0)
            st = io_error(path);
        else
            done += (uint64_t)moved;
    }
    if (!st && writes && fsync(fd) != 0)
        st = io_error(path);
    if (fd >= 0)
        close(fd);
    return st;
}

static struct rk_status *time_disk(struct measured *out, const char *dir)
{
    char *path = rk_path_join(dir, "plain"), *buf = rk_malloc(BLOCK_BYTES);
    int64_t begin_ns = rk_time_now_ns();
    struct rk_status *st;

    memset(buf, 1, BLOCK_BYTES);
    st = move_plain(path, (uint64_t)out->bytes, buf, true);
    out->plain_write = seconds_since(begin_ns);
    begin_ns = rk_time_now_ns();
    if (!st)
        st = move_plain(path, (uint64_t)out->bytes, buf, false);
    out->plain_read = seconds_since(begin_ns);
    (void)unlink(path);
    rk_free(buf);
    rk_free(path);
    return st;
}

/* --- checkpoints --- */

static struct rk_status *time_save(struct rk_saver *saver, const char *part_dir, double *stall, double *whole)
{
    const struct rk_checkpoint_save save = {.part_dir = part_dir,
                                            .role = "actor",
                                            .global_step = 1, /* as its directory says */
                                            .contents = CONTENTS,
                                            .is_async = true};
    struct rk_checkpoint_report report;
    int64_t begin_ns = rk_time_now_ns();

    RK_TRY(rk_saver_save(saver, &save, NULL, &report));
    *stall = seconds_since(begin_ns);
    RK_TRY(rk_saver_wait(saver, true, NULL, &report));
    *whole = seconds_since(begin_ns);
    return NULL;
}

/* A first save without rk_saver_prepare allocates host memory; later saves reuse it. */
static struct rk_status *time_checkpoints(struct measured *out, struct rk_model *model, const char *dir)
{
    char *part_dir = rk_path_join(dir, "global_step_1/actor");
    struct rk_saver *saver = rk_saver_create(model);
    struct rk_checkpoint_loaded loaded;
    struct rk_status *st;
    double whole;
    int64_t begin_ns;

    RK_TRY_GOTO(st, time_save(saver, part_dir, &out->first_stall, &whole), out);
    RK_TRY_GOTO(st, rk_ckpt_remove(part_dir), out);
    RK_TRY_GOTO(st, time_save(saver, part_dir, &out->stall, &out->save), out);
    begin_ns = rk_time_now_ns();
    RK_TRY_GOTO(st, rk_model_load_checkpoint(model, part_dir, 0, NULL, &loaded), out);
    out->load = seconds_since(begin_ns);
    st = rk_ckpt_remove(part_dir);

out:
    rk_saver_destroy(saver);
    rk_free(part_dir);
    return st;
}

static struct rk_status *check_space(const char *dir, double bytes)
{
    struct statvfs info;

    if (statvfs(dir, &info) != 0)
        return io_error(dir);
    if ((double)info.f_bavail * (double)info.f_frsize < 1.1 * bytes)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED,
                       "'%s' has less than %.1f GB free; set TMPDIR to a directory with more", dir,
                       bytes / 1e9);
    return NULL;
}

static struct rk_status *measure_in(struct measured *out, struct bench_ctx *ctx,
                                    const struct bench_case *bench, const char *dir)
{
    struct bench_instance instance;
    struct rk_status *st = bench_instance_open(
        &instance, ctx,
        &(struct bench_instance_desc){.model = bench->model, .training = BENCH_WITH_OPTIMIZER});

    if (!st) {
        out->bytes = (double)rk_model_checkpoint_bytes(instance.model, CONTENTS);
        st = check_space(dir, out->bytes);
    }
    if (!st)
        st = time_checkpoints(out, instance.model, dir);
    bench_instance_close(&instance);
    if (!st)
        st = time_copies(out, ctx);
    return st ? st : time_disk(out, dir);
}

typedef struct rk_status *(*measure_fn_t)(struct measured *out, struct bench_ctx *ctx,
                                          const struct bench_case *bench, const char *dir);

/* Measures in a temporary directory, which is removed. */
static struct rk_status *measure(struct measured *out, struct bench_ctx *ctx, const struct bench_case *bench,
                                 measure_fn_t measure_fn)
{
    const char *parent = rk_env("TMPDIR");
    char *dir = rk_format("%s/rankd-bench-%d", parent ? parent : "/tmp", (int)getpid());
    rk_log_level_t level = rk_log_get_level();
    struct rk_status *st;

    rk_log_set_level(RK_LOG_WARN); /* suppresses the info messages of each save and load */
    *out = (struct measured){.model = bench->model};
    st = mkdir(dir, 0777) == 0 ? measure_fn(out, ctx, bench, dir) : io_error(dir);
    rk_log_set_level(level);
    RK_IGNORE(rk_ckpt_remove(dir), "leftover files are in a temporary directory");
    rk_free(dir);
    return st;
}

struct rk_status *bench_run_checkpoint(struct bench_ctx *ctx, const struct bench_case *bench,
                                       struct bench_result *result)
{
    static struct measured m; /* kept from the previous case of the same model */
    int64_t what = bench_dims(ctx, bench)[0];
    double seconds[3], bounds[3];

    if (m.model != bench->model) {
        struct rk_status *st = measure(&m, ctx, bench, measure_in);

        if (st) {
            m.model = NULL;
            return st;
        }
    }
    seconds[BENCH_CKPT_STALL] = m.stall;
    seconds[BENCH_CKPT_SAVE] = m.save;
    seconds[BENCH_CKPT_LOAD] = m.load;
    bounds[BENCH_CKPT_STALL] = m.to_host / 1e9;
    bounds[BENCH_CKPT_SAVE] = m.bytes / m.plain_write / 1e9;
    bounds[BENCH_CKPT_LOAD] = m.to_device / 1e9;
    snprintf(result->shape, sizeof(result->shape), "%s weights and AdamW, %.2f GB",
             bench_shape(ctx, bench->model)->name, m.bytes / 1e9);
    result->measured = m.bytes / seconds[what] / 1e9;
    result->bound = bounds[what];
    if (what == BENCH_CKPT_STALL)
        snprintf(result->note, sizeof(result->note),
                 "training waits %.2f s, %.2f s the first time; bound: pinned copy", m.stall, m.first_stall);
    else if (what == BENCH_CKPT_SAVE)
        snprintf(result->note, sizeof(result->note), "%.2f s; bound: plain write and fsync, %.2f s", m.save,
                 m.plain_write);
    else
        snprintf(result->note, sizeof(result->note),
                 "%.2f s, with checksums; bound: pinned copy; a plain read takes %.2f s", m.load,
                 m.plain_read);
    return NULL;
}

/* --- Hugging Face directories --- */

/* Times the second load, with the files in the page cache. */
static struct rk_status *time_load(struct measured *out, struct rk_model *model, const char *dir)
{
    int64_t begin_ns = 0;

    RK_TRY(rk_model_export_hf(model, dir, 0, NULL));
    for (int i = 0; i < 2; i++) {
        begin_ns = rk_time_now_ns();
        RK_TRY(rk_model_load_hf(model, dir, NULL));
    }
    out->load = seconds_since(begin_ns);
    return NULL;
}

static struct rk_status *measure_load(struct measured *out, struct bench_ctx *ctx,
                                      const struct bench_case *bench, const char *dir)
{
    struct bench_instance instance;
    struct rk_status *st = bench_instance_open(
        &instance, ctx,
        &(struct bench_instance_desc){.model = bench->model, .training = BENCH_WITH_OPTIMIZER});

    if (!st) {
        struct rk_model_desc desc;

        rk_model_describe(instance.model, &desc);
        out->bytes = (double)rk_model_num_elements(instance.model) * (double)rk_dtype_bytes(desc.dtype);
        st = check_space(dir, out->bytes);
    }
    if (!st)
        st = time_load(out, instance.model, dir);
    bench_instance_close(&instance);
    return st ? st : time_copies(out, ctx);
}

struct rk_status *bench_run_load_hf(struct bench_ctx *ctx, const struct bench_case *bench,
                                    struct bench_result *result)
{
    struct measured m;

    RK_TRY(measure(&m, ctx, bench, measure_load));
    snprintf(result->shape, sizeof(result->shape), "%s weights, %.2f GB",
             bench_shape(ctx, bench->model)->name, m.bytes / 1e9);
    result->measured = m.bytes / m.load / 1e9;
    result->bound = m.to_device / 1e9;
    snprintf(result->note, sizeof(result->note),
             "%.2f s from page cache, masters included; bound: pinned copy", m.load);
    return NULL;
}
