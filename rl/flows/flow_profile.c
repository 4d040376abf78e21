/* trainer.profile_steps: start_profile before such a step and stop_profile after it, on all roles (a no-op
 * for further roles of a daemon), and one file in the Chrome trace format with their events and with the
 * driver's own parts of the step.
 *
 * Times are of the driver's monotonic clock, from the start of the first such step on. The clocks of the
 * ranks are compared with it by GetStatus: the daemon's time is assigned to the middle of the fastest of a
 * few round trips, with an error of at most half of it.
 *
 * The file is complete after each step: the next step overwrites its end. */
#include "rl/rk_flows.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_log.h"
#include "base/rk_time.h"
#include "base/rk_file.h"
#include "rl/rk_job.h"

#define DRIVER_PID 1000000 /* no rank has this number; viewers sort by the index, lower than all ranks' */

static const char head[] = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
static const char tail[] =
    "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":1000000,\"args\":{\"name\":\"driver\"}}\n]}\n";

struct part {
    const char *name; /* static */
    int64_t begin_ns, end_ns;
};

struct rk_flow_profile {
    bool is_on; /* in this step */
    bool has_file;
    int64_t origin_ns; /* of the first step */
    RK_ARRAY(struct part) parts;
};

static bool is_due(const struct rk_flow_context *ctx)
{
    const struct rk_json *steps = rk_config_json(ctx->job, "trainer.profile_steps");

    for (int64_t i = 0; ctx->trace_path && i < rk_json_count(steps); i++) {
        if (rk_json_as_int(rk_json_at(steps, i), 0) == ctx->step)
            return true;
    }
    return false;
}

/* Appends the events of one rank. */
static void append_events(const struct rk_batch *output, struct rk_str *text)
{
    const struct rk_column *column = output ? rk_batch_find(output, "trace") : NULL;

    if (column)
        rk_str_append_bytes(text, rk_column_values(column), rk_column_bytes(column));
}

/* Calls the method of every role of the job; appends the ranks' answers to `text`. Steals the options. */
static struct rk_status *call_roles(struct rk_flow_context *ctx, const char *method, struct rk_json *options,
                                    struct rk_str *text)
{
    struct rk_status *st = NULL;

    for (int64_t i = 0; i < ctx->meshes.count && !st; i++) {
        struct rk_driver_result result = {0};

        st = rk_flow_call(ctx, ctx->meshes.items[i].role->name, method, NULL, rk_json_retain(options), NULL,
                          &result);
        for (int32_t j = 0; text && j < result.num_outputs; j++)
            append_events(result.outputs[j], text);
        if (rk_json_as_real(rk_json_find(result.metrics, "profile/dropped_events"), 0) > 0)
            RK_WARN("the profile of step %lld is incomplete: a rank had more events than it keeps",
                    (long long)ctx->step);
        rk_driver_result_fini(&result);
    }
    rk_json_free(options);
    return st;
}

struct rk_status *rk_flow_profile_begin(struct rk_flow_context *ctx)
{
    const struct rk_json *ranks = rk_config_json(ctx->job, "trainer.profile_ranks");
    struct rk_json *options;

    if (!is_due(ctx))
        return NULL;
    if (!ctx->profile) {
        ctx->profile = rk_calloc(1, sizeof(*ctx->profile));
        ctx->profile->origin_ns = rk_time_now_ns();
    }
    options = rk_json_new_object();
    rk_json_set(options, "ranks", ranks ? rk_json_retain((struct rk_json *)ranks) : rk_json_new_null());
    RK_TRY(call_roles(ctx, "start_profile", options, NULL));
    ctx->profile->is_on = true;
    return NULL;
}

void rk_flow_profile_part(struct rk_flow_context *ctx, const char *name, int64_t begin_ns)
{
    struct part part = {.name = name, .begin_ns = begin_ns, .end_ns = rk_time_now_ns()};

    if (ctx->profile && ctx->profile->is_on)
        rk_array_append(&ctx->profile->parts, part);
}

static void append_parts(const struct rk_flow_profile *profile, struct rk_str *out)
{
    rk_str_appendf(
        out, "{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":%d,\"args\":{\"sort_index\":-1}},\n",
        DRIVER_PID);
    for (int64_t i = 0; i < profile->parts.count; i++) {
        const struct part *part = &profile->parts.items[i];
        int64_t ts = part->begin_ns - profile->origin_ns, dur = part->end_ns - part->begin_ns;

        rk_str_appendf(
            out,
            "{\"ph\":\"X\",\"name\":\"%s\",\"cat\":\"step\",\"ts\":%lld.%03lld,\"dur\":%lld.%03lld,"
            "\"pid\":%d,\"tid\":0},\n",
            part->name, (long long)(ts / 1000), (long long)(ts % 1000), (long long)(dur / 1000),
            (long long)(dur % 1000), DRIVER_PID);
    }
}

/* Overwrites the end of the file, with a new end. */
static struct rk_status *append_file(const char *path, bool has_file, const struct rk_str *events)
{
    FILE *file = fopen(path, has_file ? "r+b" : "wb");
    struct rk_status *st = NULL;
    bool is_good;

    if (!file)
        return rk_file_errno("cannot write", path);
    is_good = has_file ? fseek(file, -(long)strlen(tail), SEEK_END) == 0 : fputs(head, file) >= 0;
    is_good = is_good && fwrite(rk_str_text(events), 1, events->bytes, file) == events->bytes;
    is_good = is_good && fputs(tail, file) >= 0;
    if (!is_good)
        st = rk_file_errno("cannot write", path);
    if (fclose(file) != 0 && !st)
        st = rk_file_errno("cannot write", path);
    return st;
}

static struct rk_json *stop_options(struct rk_flow_context *ctx, struct rk_status **st)
{
    int32_t count = rk_driver_num_workers(ctx->driver);
    int64_t *offsets = rk_calloc((size_t)count, sizeof(*offsets));
    struct rk_json *options = rk_json_new_object(), *list = rk_json_new_array();

    *st = rk_driver_clock_offsets(ctx->driver, offsets);
    for (int32_t i = 0; i < count; i++)
        rk_json_append(list, rk_json_new_int(offsets[i]));
    rk_json_set(options, "clock_offsets_ns", list);
    rk_json_set(options, "origin_ns", rk_json_new_int(ctx->profile->origin_ns));
    rk_free(offsets);
    return options;
}

struct rk_status *rk_flow_profile_end(struct rk_flow_context *ctx)
{
    struct rk_flow_profile *profile = ctx->profile;
    struct rk_str events = {0};
    struct rk_json *options;
    struct rk_status *st;

    if (!profile || !profile->is_on)
        return NULL;
    profile->is_on = false;
    append_parts(profile, &events);
    profile->parts.count = 0;
    options = stop_options(ctx, &st);
    if (st)
        rk_json_free(options);
    else
        st = call_roles(ctx, "stop_profile", options, &events);
    if (!st)
        st = append_file(ctx->trace_path, profile->has_file, &events);
    profile->has_file = true;
    rk_str_fini(&events);
    return st ? RK_WRAP(st, "profile of step %lld", (long long)ctx->step) : NULL;
}

void rk_flow_profile_fini(struct rk_flow_context *ctx)
{
    if (ctx->profile)
        rk_array_fini(&ctx->profile->parts);
    rk_free(ctx->profile);
    ctx->profile = NULL;
}
