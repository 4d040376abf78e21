/* A device backend that forwards every call to a stream of another device, between two timed events. So the
 * engine runs unchanged, and the time of each operator is known by name and shape, together with the device's
 * idle time before it. */
#include "bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_array.h"
#include "base/rk_assert.h"
#include "base/rk_time.h"
#include "bench/profile_ops.h"
#include "kernels/rk_kernels.h"

struct record {
    struct bench_op_note note;
    struct rk_event *begin, *end;
    double host_seconds; /* host time of the call itself */
};

/* One device, and one stream: the engine's. */
static struct {
    struct rk_device *device;
    RK_ARRAY(struct record) records;
    int64_t num_used; /* number of records in use: events are reused */
    int64_t num_syncs, first_ns;
    double sync_seconds;
} profile;

static struct rk_status *begin_record(struct rk_stream *stream, struct record **out)
{
    if (profile.num_used == profile.records.count) {
        struct record record = {0};

        RK_TRY(rk_event_create_timed(&record.begin, profile.device));
        RK_TRY(rk_event_create_timed(&record.end, profile.device));
        rk_array_append(&profile.records, record);
    }
    if (profile.num_used == 0)
        profile.first_ns = rk_time_now_ns();
    *out = &profile.records.items[profile.num_used++];
    RK_TRY(rk_event_record((*out)->begin, stream));
    (*out)->host_seconds = -(double)rk_time_now_ns() * 1e-9;
    return NULL;
}

static struct rk_status *end_record(struct rk_stream *stream, struct record *record)
{
    record->host_seconds += (double)rk_time_now_ns() * 1e-9;
    return rk_event_record(record->end, stream);
}

#define X(op, args_type)                                                                         \
    static struct rk_status *profile_##op(void *dev, void *stream, const struct args_type *args) \
    {                                                                                            \
        struct record *record;                                                                   \
                                                                                                 \
        (void)dev;                                                                               \
        RK_TRY(begin_record(stream, &record));                                                   \
        record->note = (struct bench_op_note){.name = #op};                                      \
        bench_note_op(&record->note, RK_BENCH_OP_##op, args);                                    \
        RK_TRY(rk_##op(stream, args));                                                           \
        return end_record(stream, record);                                                       \
    }
RK_KERNEL_TABLE(X)
#undef X

static const struct rk_kernel_ops profile_kernels = {.name = "profile",
                                                     .abi = RK_KERNEL_ABI,
#define X(op, args_type) .op = profile_##op,
                                                     RK_KERNEL_TABLE(X)
#undef X
};

/* --- the device: handles are the wrapped objects --- */

/* The other device is already open: its description was needed before. */
static struct rk_status *profile_open(void **out, int index, const struct rk_device_config *config)
{
    (void)index;
    (void)config;
    *out = profile.device;
    return NULL;
}

static void profile_close(void *dev)
{
    for (int64_t i = 0; i < profile.records.count; i++) {
        rk_event_destroy(profile.records.items[i].begin);
        rk_event_destroy(profile.records.items[i].end);
    }
    rk_array_fini(&profile.records);
    profile.num_used = 0;
    rk_device_close(dev);
}

static struct rk_status *profile_get_info(void *dev, struct rk_device_info *out)
{
    *out = rk_device_get_info(dev);
    return NULL;
}

static struct rk_status *profile_alloc(void *dev, void **out, size_t bytes)
{
    return rk_device_alloc(dev, out, bytes, "profiled");
}

static void profile_free(void *dev, void *ptr)
{
    rk_device_free(dev, ptr);
}

static struct rk_status *profile_host_alloc(void *dev, void **out, size_t bytes)
{
    return rk_device_host_alloc(dev, out, bytes, "profiled");
}

static void profile_host_free(void *dev, void *ptr)
{
    rk_device_host_free(dev, ptr);
}

static struct rk_status *profile_stream_create(void *dev, void **out, const char *name)
{
    return rk_stream_create((struct rk_stream **)out, dev, name);
}

static struct rk_status *profile_stream_create_urgent(void *dev, void **out, const char *name)
{
    return rk_stream_create_urgent((struct rk_stream **)out, dev, name);
}

static void profile_stream_destroy(void *dev, void *stream)
{
    (void)dev;
    rk_stream_destroy(stream);
}

static struct rk_status *profile_copy(void *dev, void *stream, void *dst, const void *src, size_t bytes,
                                      rk_copy_kind_t kind)
{
    static const char *const names[] = {
        [RK_COPY_H2D] = "copy to device", [RK_COPY_D2H] = "copy to host", [RK_COPY_D2D] = "copy"};
    struct record *record;

    (void)dev;
    RK_TRY(begin_record(stream, &record));
    record->note = (struct bench_op_note){.name = names[kind], .bytes = (double)bytes};
    RK_TRY(rk_stream_copy(stream, dst, src, bytes, kind));
    return end_record(stream, record);
}

static struct rk_status *profile_zero(void *dev, void *stream, void *dst, size_t bytes)
{
    struct record *record;

    (void)dev;
    RK_TRY(begin_record(stream, &record));
    record->note = (struct bench_op_note){.name = "zero", .bytes = (double)bytes};
    RK_TRY(rk_stream_zero(stream, dst, bytes));
    return end_record(stream, record);
}

static struct rk_status *profile_sync(void *dev, void *stream)
{
    int64_t begin_ns = rk_time_now_ns();

    (void)dev;
    RK_TRY(rk_stream_sync(stream));
    profile.sync_seconds += (double)(rk_time_now_ns() - begin_ns) * 1e-9;
    profile.num_syncs++;
    return NULL;
}

static struct rk_status *profile_event_create(void *dev, void **out)
{
    return rk_event_create((struct rk_event **)out, dev);
}

static struct rk_status *profile_event_create_timed(void *dev, void **out)
{
    return rk_event_create_timed((struct rk_event **)out, dev);
}

static struct rk_status *profile_event_elapsed_ns(void *dev, int64_t *out, void *begin, void *end)
{
    (void)dev;
    return rk_event_elapsed_ns(out, begin, end);
}

static void profile_event_destroy(void *dev, void *event)
{
    (void)dev;
    rk_event_destroy(event);
}

static struct rk_status *profile_event_record(void *dev, void *event, void *stream)
{
    (void)dev;
    return rk_event_record(event, stream);
}

static struct rk_status *profile_stream_wait(void *dev, void *stream, void *event)
{
    (void)dev;
    return rk_stream_wait(stream, event);
}

static bool profile_event_query(void *dev, void *event)
{
    (void)dev;
    return rk_event_query(event);
}

static struct rk_status *profile_use(void *dev)
{
    return rk_device_use(dev);
}

static void *profile_stream_native(void *dev, void *stream)
{
    (void)dev;
    return rk_stream_native(stream);
}

static struct rk_status *profile_reserve(void *dev, void *stream, const struct rk_workspace *workspace)
{
    (void)dev;
    return rk_stream_reserve(stream, workspace);
}

static struct rk_device_ops profile_device = {
    .name = "profile",
    .abi = RK_DEVICE_ABI,
    .kernels = &profile_kernels,
    .open = profile_open,
    .close = profile_close,
    .get_info = profile_get_info,
    .alloc = profile_alloc,
    .free = profile_free,
    .host_alloc = profile_host_alloc,
    .host_free = profile_host_free,
    .stream_create = profile_stream_create,
    .stream_create_urgent = profile_stream_create_urgent,
    .stream_destroy = profile_stream_destroy,
    .copy = profile_copy,
    .zero = profile_zero,
    .stream_sync = profile_sync,
    .event_create = profile_event_create,
    .event_create_timed = profile_event_create_timed,
    .event_elapsed_ns = profile_event_elapsed_ns,
    .event_destroy = profile_event_destroy,
    .event_record = profile_event_record,
    .stream_wait = profile_stream_wait,
    .event_query = profile_event_query,
    .stream_native = profile_stream_native,
    .use = profile_use,
    .reserve = profile_reserve,
};

struct rk_status *bench_profile_register(const struct rk_device_config *config)
{
    RK_TRY(rk_device_open(&profile.device, config));
    profile_device.collectives = rk_device_collectives(profile.device);
    return rk_device_register(&profile_device);
}

/* --- the report --- */

struct row {
    struct bench_op_note note;
    int64_t calls;
    double seconds, idle_seconds, host_seconds;
};

void bench_profile_clear(void)
{
    profile.num_used = 0;
    profile.num_syncs = 0;
    profile.sync_seconds = 0;
}

static struct row *row_of(struct row *rows, int64_t *num_rows, const struct bench_op_note *note)
{
    for (int64_t i = 0; i < *num_rows; i++) {
        if (strcmp(rows[i].note.name, note->name) == 0 && strcmp(rows[i].note.shape, note->shape) == 0 &&
            rows[i].note.flops == note->flops)
            return &rows[i];
    }
    rows[*num_rows] = (struct row){.note = *note};
    rows[*num_rows].note.bytes = 0;
    rows[*num_rows].note.flops = note->flops;
    return &rows[(*num_rows)++];
}

static struct rk_status *add_up(struct row *rows, int64_t *num_rows)
{
    for (int64_t i = 0; i < profile.num_used; i++) {
        const struct record *record = &profile.records.items[i];
        struct row *row = row_of(rows, num_rows, &record->note);
        int64_t work_ns, idle_ns = 0;

        RK_TRY(rk_event_elapsed_ns(&work_ns, record->begin, record->end));
        if (i > 0)
            RK_TRY(rk_event_elapsed_ns(&idle_ns, profile.records.items[i - 1].end, record->begin));
        row->calls++;
        row->note.bytes += record->note.bytes;
        row->seconds += (double)work_ns * 1e-9;
        row->idle_seconds += (double)idle_ns * 1e-9;
        row->host_seconds += record->host_seconds;
    }
    return NULL;
}

static int by_time(const void *a, const void *b)
{
    double x = ((const struct row *)a)->seconds, y = ((const struct row *)b)->seconds;

    return x < y ? 1 : x > y ? -1 : 0;
}

static void print_row(const struct row *row, double total, const struct bench_ceilings *ceilings)
{
    double flops = row->note.flops * (double)row->calls / row->seconds,
           bytes = row->note.bytes / row->seconds;

    printf("%-18s %-44s %6lld %9.3f %5.1f%% %8.3f %8.3f", row->note.name, row->note.shape,
           (long long)row->calls, row->seconds * 1e3, 100 * row->seconds / total, row->idle_seconds * 1e3,
           row->host_seconds * 1e3);
    if (row->note.flops > 0)
        printf(" %8.1f TFLOP/s %5.1f%%", flops * 1e-12, 100 * flops / ceilings->flops);
    else if (row->note.bytes > 0)
        printf(" %8.0f GB/s    %5.1f%%", bytes * 1e-9, 100 * bytes / ceilings->bytes);
    printf("\n");
}

struct rk_status *bench_profile_print(const char *title, const struct bench_ceilings *ceilings)
{
    struct row *rows = rk_calloc((size_t)profile.num_used + 1, sizeof(*rows)), all = {0};
    int64_t num_rows = 0;
    double host_seconds = (double)(rk_time_now_ns() - profile.first_ns) * 1e-9;
    struct rk_status *st = add_up(rows, &num_rows);

    for (int64_t i = 0; i < num_rows && !st; i++) {
        all.calls += rows[i].calls;
        all.seconds += rows[i].seconds;
        all.idle_seconds += rows[i].idle_seconds;
        all.host_seconds += rows[i].host_seconds;
    }
    if (!st) {
        qsort(rows, (size_t)num_rows, sizeof(*rows), by_time);
        printf("\nprofile of %s\n%-18s %-44s %6s %9s %6s %8s %8s %s\n", title, "operator", "shape", "calls",
               "ms", "part", "idle ms", "host ms", "rate, part of the ceiling");
        for (int64_t i = 0; i < num_rows; i++)
            print_row(&rows[i], all.seconds, ceilings);
        printf("%-18s %-44s %6lld %9.3f        %8.3f %8.3f\n", "all", "", (long long)all.calls,
               all.seconds * 1e3, all.idle_seconds * 1e3, all.host_seconds * 1e3);
        printf("wall %.3f ms; waiting in %lld synchronisations %.3f ms; idle: device idle time before the "
               "operator; host: host time inside the call\n",
               host_seconds * 1e3, (long long)profile.num_syncs, profile.sync_seconds * 1e3);
    }
    bench_profile_clear();
    rk_free(rows);
    return st;
}
