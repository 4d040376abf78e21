#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "cmd/replay/replay.h"

/* One step that is being run. */
struct replay_call {
    const struct rk_replay_args *args;
    const struct rk_replay_step *step;
    struct rk_arena *arena;          /* headers */
    struct rk_execute_header header; /* the same for all ranks but for the members of the parts */
    struct rk_call_part *parts;      /* [num_ranks] */
    struct rk_batch **inputs;        /* [num_ranks], owned */
    struct rk_json *options;         /* changed ones, whose texts the header borrows; NULL: none changed */
};

/* --- Configure --- */

static struct rk_status *configure(const struct rk_replay_args *args, const struct rk_replay_step *step)
{
    const struct rk_recording_item *item = step->items[0];
    struct rk_arena *arena = rk_arena_create(4096, 0);
    struct rk_configure_request request;
    struct rk_status *st;

    st = rk_unpack_configure_request(&request, arena, item->message, item->message_bytes);
    if (!st)
        st = rk_driver_configure(args->driver, request.meshes, request.num_meshes);
    rk_arena_destroy(arena);
    return st ? RK_WRAP(st, "replaying a Configure") : NULL;
}

/* --- calls --- */

static void set_option(struct rk_json *options, const char *text)
{
    const char *equals = strchr(text, '=');
    struct rk_json *value;
    struct rk_status *st;
    char *key;

    RK_ASSERT(equals);
    st = rk_json_parse(&value, equals + 1, strlen(equals + 1), "option", 0);
    if (st) { /* a bare word */
        rk_status_free(st);
        value = rk_json_new_string(equals + 1);
    }
    key = rk_strndup(text, (size_t)(equals - text));
    rk_json_set(options, key, value);
    rk_free(key);
}

/* The options of the user over the recorded ones. */
static void change_options(struct replay_call *call)
{
    char *prefix = rk_format("%s.%s.", call->header.role, call->header.method);

    for (const char *const *text = call->args->options; text && *text; text++) {
        if (!rk_str_has_prefix(*text, prefix))
            continue;
        if (!call->options)
            call->options = rk_meta_to_json(&call->header.options);
        set_option(call->options, *text + strlen(prefix));
    }
    if (call->options)
        call->header.options = rk_meta_from_json(call->arena, call->options);
    rk_free(prefix);
}

static struct rk_status *read_part(struct replay_call *call, int32_t rank)
{
    const struct rk_recording_item *item = call->step->items[rank];
    struct rk_execute_request request;

    if (!item)
        return NULL;
    RK_TRY(rk_unpack_execute_request(&request, call->arena, item->message, item->message_bytes));
    if (request.kind != RK_EXECUTE_HEADER)
        return RK_FAIL_REASON(RK_DATA_LOSS, "RECORD_DAMAGED", "entry %lld has no header",
                              (long long)item->number);
    if (!call->header.role)
        call->header = request.header;
    call->parts[rank].is_addressed = true;
    call->parts[rank].collects = request.header.collect;
    if (request.header.input.num_tensors == 0 && request.header.input.num_columns == 0)
        return NULL;
    RK_TRY(rk_recording_read_batch(&call->inputs[rank], call->args->order->recordings[rank], item,
                                   &request.header.input));
    call->parts[rank].input = call->inputs[rank];
    return NULL;
}

static struct rk_status *open_call(struct replay_call *call)
{
    int32_t num_ranks = call->args->order->num_ranks;

    call->arena = rk_arena_create(16384, 0);
    call->parts = rk_calloc((size_t)num_ranks, sizeof(*call->parts));
    call->inputs = rk_calloc((size_t)num_ranks, sizeof(struct rk_batch *));
    for (int32_t rank = 0; rank < num_ranks; rank++) {
        struct rk_status *st = read_part(call, rank);

        if (st)
            return RK_WRAP(st, "'%s'", rk_recording_dir(call->args->order->recordings[rank]));
    }
    return NULL;
}

static void close_call(struct replay_call *call)
{
    for (int32_t rank = 0; rank < call->args->order->num_ranks; rank++)
        rk_batch_destroy(call->inputs[rank]);
    rk_json_free(call->options);
    rk_free(call->inputs);
    rk_free(call->parts);
    rk_arena_destroy(call->arena);
}

/* --- the end of the recorded call --- */

static const char *text_of(const struct rk_recording_item *result, const char *key)
{
    return rk_json_as_string(rk_json_find(result->meta, key), "");
}

/* The recorded error that caused the failure: a rank's own error takes precedence over errors reported for
 * peers. NULL: none. */
static const struct rk_recording_item *find_failure(const struct rk_replay_step *step, int32_t num_ranks)
{
    const struct rk_recording_item *found = NULL;

    for (int32_t rank = 0; rank < num_ranks; rank++) {
        const struct rk_recording_item *result = step->results[rank];

        if (!result || rk_replay_code_of(result) == RK_OK)
            continue;
        if (!found || (rk_replay_is_from_outside(rk_replay_code_of(found)) &&
                       !rk_replay_is_from_outside(rk_replay_code_of(result))))
            found = result;
    }
    return found;
}

static bool is_answered(const struct rk_replay_step *step, int32_t num_ranks)
{
    for (int32_t rank = 0; rank < num_ranks; rank++) {
        if (step->items[rank] && !step->results[rank])
            return false;
    }
    return true;
}

/* --- comparing --- */

static struct rk_status *compare_ranks(struct rk_replay_report *report, const struct replay_call *call,
                                       struct rk_invocation *inv)
{
    const struct rk_replay_order *order = call->args->order;
    struct rk_status *st = NULL;

    for (int32_t rank = 0; rank < order->num_ranks && !st; rank++) {
        struct rk_batch *output;

        if (!call->step->results[rank])
            continue;
        output = rk_invocation_take_output(inv, rank);
        st = rk_replay_compare(&report->differences, rank, order->recordings[rank], call->step->results[rank],
                               rk_invocation_result(inv, rank), output, &call->args->tolerance);
        rk_batch_destroy(output);
    }
    return st;
}

/* Compares the error of the replayed call with the error of the recorded call; either may have none. */
static void compare_error(struct rk_replay_report *report, const struct rk_recording_item *failure,
                          const struct rk_status *st)
{
    struct rk_replay_difference difference = {
        .kind = RK_DIFFERENCE_STATUS, .num_values = 1, .num_different = 1};

    difference.recorded = failure ? rk_replay_code_of(failure) : RK_OK;
    difference.replayed = rk_status_code(st);
    if (difference.recorded == difference.replayed &&
        (!failure || strcmp(text_of(failure, "reason"), rk_status_reason(st)) == 0))
        return;
    snprintf(difference.name, sizeof(difference.name), "%.*s", RK_LIMIT_NAME_BYTES,
             st ? rk_status_message(st) : "");
    rk_array_append(&report->differences.items, difference);
}

static struct rk_status *run_parts(struct rk_replay_report *report, struct replay_call *call)
{
    const struct rk_recording_item *failure = find_failure(call->step, call->args->order->num_ranks);
    struct rk_invocation *inv;
    struct rk_status *st, *own;

    RK_TRY(rk_invocation_create_parts(&inv, call->args->driver, &call->header, call->parts));
    st = rk_invocation_run_parts(inv);
    if (rk_status_code(st) == RK_CANCELLED) { /* by the user */
        rk_invocation_destroy(inv);
        return st;
    }
    compare_error(report, failure, st);
    own = !st && !failure ? compare_ranks(report, call, inv) : NULL;
    rk_status_free(st);
    rk_invocation_destroy(inv);
    return own;
}

/* --- the replay --- */

static bool writes_files(const char *method)
{
    static const char *const names[] = {"export_hf", "save_checkpoint", "wait_checkpoint"};

    for (size_t i = 0; i < RK_ARRAY_LEN(names); i++) {
        if (strcmp(names[i], method) == 0)
            return true;
    }
    return false;
}

static void note_stop(struct rk_replay_report *report, const struct rk_recording_item *failure)
{
    report->end = RK_REPLAY_STOPPED;
    snprintf(report->recorded_end, sizeof(report->recorded_end), "%s%s%s: %s",
             rk_code_name(rk_replay_code_of(failure)), *text_of(failure, "reason") ? " " : "",
             text_of(failure, "reason"), text_of(failure, "message"));
}

static struct rk_status *run_opened(struct rk_replay_report *report, struct replay_call *call)
{
    const struct rk_recording_item *failure = find_failure(call->step, call->args->order->num_ranks);

    report->number++;
    snprintf(report->name, sizeof(report->name), "%.127s.%.127s", call->header.role, call->header.method);
    if (failure && rk_replay_is_from_outside(rk_replay_code_of(failure))) {
        note_stop(report, failure);
        return NULL;
    }
    if (!call->args->writes_files && writes_files(call->header.method)) {
        report->num_skipped++;
        return NULL;
    }
    change_options(call);
    if (call->args->on_call)
        call->args->on_call(call->args->user, report->number, report->name);
    report->is_unanswered = !is_answered(call->step, call->args->order->num_ranks);
    RK_TRY(run_parts(report, call));
    report->num_calls++;
    if (report->differences.items.count > 0)
        report->end = RK_REPLAY_DIFFERENCE;
    return NULL;
}

static struct rk_status *run_call(struct rk_replay_report *report, const struct rk_replay_args *args,
                                  const struct rk_replay_step *step)
{
    struct replay_call call = {.args = args, .step = step};
    struct rk_status *st = open_call(&call);

    if (!st)
        st = run_opened(report, &call);
    close_call(&call);
    return st ? RK_WRAP(st, "call %lld", (long long)report->number) : NULL;
}

struct rk_status *rk_replay_run(struct rk_replay_report *out, const struct rk_replay_args *args)
{
    const struct rk_replay_order *order = args->order;

    *out = (struct rk_replay_report){.end = RK_REPLAY_ALL};
    RK_ASSERT(rk_driver_num_workers(args->driver) == order->num_ranks);
    RK_TRY(rk_driver_claim(args->driver));
    for (int64_t i = 0; i < order->steps.count && out->end == RK_REPLAY_ALL; i++) {
        const struct rk_replay_step *step = &order->steps.items[i];

        if (step->kind == RK_RECORDING_CONFIGURE)
            RK_TRY(configure(args, step));
        else
            RK_TRY(run_call(out, args, step));
    }
    return NULL;
}

void rk_replay_report_fini(struct rk_replay_report *report)
{
    rk_array_fini(&report->differences.items);
}
