/* rankctl events: past and new events of the daemons. */
#include "cmd/cmd_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_time.h"

struct line {
    uint64_t unix_ns;
    int64_t order; /* of arrival */
    char *text;    /* owned */
};

struct events {
    bool is_json, follows;
    const struct rk_hosts *hosts;
    RK_ARRAY(struct line) lines; /* past events: printed in order of time when all have been received */
};

struct rk_json *rk_cli_event_json(int32_t worker, const char *address, const struct rk_watch_event *event)
{
    struct rk_json *json = rk_json_new_object();
    char time_text[32];

    rk_json_set(json, "apiVersion", rk_json_new_string(RK_CLI_API));
    rk_json_set(json, "kind", rk_json_new_string("Event"));
    rk_json_set(json, "worker", rk_json_new_int(worker));
    rk_json_set(json, "address", rk_json_new_string(address));
    rk_json_set(json, "id", rk_json_new_int((int64_t)event->id));
    rk_json_set(
        json, "time",
        rk_json_new_string(rk_time_format_utc((int64_t)event->unix_ns, time_text, sizeof(time_text))));
    rk_json_set(json, "unix_ns", rk_json_new_int((int64_t)event->unix_ns));
    rk_json_set(json, "event", rk_json_new_string(event->kind));
    rk_json_set(json, "message", rk_json_new_string(event->message));
    rk_json_set(json, "fields", rk_meta_to_json(&event->fields));
    return json;
}

static const struct rk_scalar *find_field(const struct rk_watch_event *event, const char *key)
{
    for (int64_t i = 0; i < event->fields.count; i++) {
        if (strcmp(event->fields.entries[i].key, key) == 0)
            return &event->fields.entries[i].value;
    }
    return NULL;
}

static void append_metrics(struct rk_str *out, const struct rk_watch_event *event)
{
    for (int64_t i = 0; i < event->fields.count; i++) {
        const struct rk_scalar *value = &event->fields.entries[i].value;

        if (value->kind == RK_SCALAR_REAL)
            rk_str_appendf(out, " %s=%.6g", event->fields.entries[i].key, value->real);
        else if (value->kind == RK_SCALAR_STRING)
            rk_str_appendf(out, " %s=%s", event->fields.entries[i].key, value->text);
    }
}

/* One line without its end; rk_free it. */
static char *format_text(int32_t worker, const struct rk_watch_event *event)
{
    const struct rk_scalar *level = find_field(event, "level"), *lost = find_field(event, "lost");
    struct rk_str out = {0};
    char time_text[32];
    char *printable;

    rk_str_appendf(&out, "%s worker %d %-12s ",
                   rk_time_format_utc((int64_t)event->unix_ns, time_text, sizeof(time_text)), worker,
                   event->kind);
    if (level && level->kind == RK_SCALAR_STRING)
        rk_str_appendf(&out, "%-5s ", level->text);
    if (lost && lost->kind == RK_SCALAR_INT)
        rk_str_appendf(&out, "%" PRId64 " ", lost->integer);
    rk_str_append(&out, event->message);
    if (strcmp(event->kind, "metrics") == 0)
        append_metrics(&out, event);
    for (char *c = out.text; *c; c++) {
        if (*c == '\n') /* one event, one line */
            *c = ' ';
    }
    printable = rk_cli_printable(rk_str_text(&out));
    rk_str_fini(&out);
    return printable;
}

static char *format(const struct events *events, int32_t worker, const struct rk_watch_event *event)
{
    struct rk_json *json;
    char *text;

    if (!events->is_json)
        return format_text(worker, event);
    json = rk_cli_event_json(worker, events->hosts->addresses[worker], event);
    text = rk_json_dump(json, 0, false);
    rk_json_free(json);
    return text;
}

static void on_event(void *user, int32_t worker, const struct rk_watch_event *event)
{
    struct events *events = user;
    bool is_gap = strcmp(event->kind, "gap") == 0;
    char *text;

    if (event->id == 0 && !is_gap && !events->follows)
        return; /* the current status of the daemon, which 'rankctl status' shows */
    text = format(events, worker, event);
    if (events->follows) {
        printf("%s\n", text);
        fflush(stdout);
        rk_free(text);
        return;
    }
    rk_array_append(
        &events->lines,
        ((struct line){.unix_ns = is_gap ? 0 : event->unix_ns, .order = events->lines.count, .text = text}));
}

static void on_end(void *user, int32_t worker, const struct rk_status *st)
{
    struct events *events = user;
    char *message;

    if (!events->follows || !st || rk_cli_signal())
        return;
    message = rk_cli_printable(rk_status_message(st));
    fprintf(stderr, "rankctl: no more events of worker %d (%s): %s: %s\n", worker,
            events->hosts->addresses[worker], rk_code_name(rk_status_code(st)), message);
    rk_free(message);
}

static int compare_lines(const void *left, const void *right)
{
    const struct line *a = left, *b = right;

    if (a->unix_ns != b->unix_ns)
        return a->unix_ns < b->unix_ns ? -1 : 1;
    return a->order < b->order ? -1 : a->order > b->order;
}

static void print_lines(struct events *events)
{
    if (events->lines.count > 0)
        qsort(events->lines.items, (size_t)events->lines.count, sizeof(struct line), compare_lines);
    for (int64_t i = 0; i < events->lines.count; i++) {
        printf("%s\n", events->lines.items[i].text);
        rk_free(events->lines.items[i].text);
    }
    rk_array_fini(&events->lines);
}

/* Cuts "a,b" in place into names. */
static struct rk_status *parse_kinds(char *text, const char **names, struct rk_watch_request *out)
{
    for (char *name = text; name;) {
        char *comma = strchr(name, ',');

        if (comma)
            *comma++ = '\0';
        if (!*name || out->num_kinds == RK_LIMIT_EVENT_KINDS)
            return rk_cli_usage(RK_FAIL(RK_INVALID_ARGUMENT,
                                        "--kinds: expected 1 to %d kinds of events separated by commas",
                                        RK_LIMIT_EVENT_KINDS));
        names[out->num_kinds++] = name;
        name = comma;
    }
    out->kinds = names;
    return NULL;
}

static struct rk_status *watch(struct rk_cli *cli, struct rk_driver *driver, struct events *events,
                               const struct rk_watch_request *request)
{
    struct rk_driver_watch_args args = {
        .request = *request, .on_event = on_event, .on_end = on_end, .user = events};
    struct rk_status **errors = rk_calloc((size_t)events->hosts->count, sizeof(*errors));
    struct rk_status *st = NULL;

    rk_cli_watch_signals(driver);
    rk_driver_watch(driver, &args, errors);
    rk_cli_watch_signals(NULL);
    print_lines(events);
    cli->has_told = true;
    for (int32_t i = 0; i < events->hosts->count; i++)
        st = rk_status_first(st, errors[i]);
    rk_free(errors);
    return st;
}

static struct rk_status *run(struct rk_cli *cli)
{
    const char *kinds = rk_cli_find(cli, "kinds"), *level = rk_cli_find(cli, "level");
    const char *names[RK_LIMIT_EVENT_KINDS];
    struct rk_watch_request request = {.level = level ? level : "info"};
    struct events events = {.is_json = rk_cli_is_json(cli), .follows = rk_cli_has(cli, "follow")};
    char *kinds_text = rk_strdup(kinds);
    struct rk_driver *driver = NULL;
    struct rk_hosts hosts = {0};
    struct rk_status *st = NULL;

    request.past_only = !events.follows;
    request.from_event = rk_cli_has(cli, "new") ? 0 : 1;
    events.hosts = &hosts;
    if (kinds_text)
        RK_TRY_GOTO(st, parse_kinds(kinds_text, names, &request), out);
    if (!events.follows && request.from_event == 0) {
        st = rk_cli_usage(RK_FAIL(RK_INVALID_ARGUMENT, "--new: expected together with --follow"));
        goto out;
    }
    RK_TRY_GOTO(st, rk_cli_hosts(cli, &hosts), out);
    RK_TRY_GOTO(st, rk_cli_open(cli, &hosts, &driver), out);
    st = watch(cli, driver, &events, &request);
out:
    rk_driver_close(driver);
    rk_hosts_fini(&hosts);
    rk_free(kinds_text);
    return st;
}

static const struct rk_option options[] = {
    {"follow", NULL, "also print new events, until Ctrl-C"},
    {"new", NULL, "with --follow: omit past events"},
    {"kinds", "LIST", "state,lease,method_start,method_end,progress,metrics,log (default: all)"},
    {"level", "LEVEL", "lowest level of log lines: debug, info, warn, error (default: info)"},
    {NULL, NULL, NULL},
};

const struct rk_command rk_cmd_events = {
    .name = "events",
    .args = "",
    .summary = "print events of the daemons: states, leases, calls, metrics, log lines",
    .details = "Each daemon keeps its last 1024 events. With --output=json every line is an object.\n"
               "Debug lines exist only if the daemon logs them (log.level). Events of kind progress exist\n"
               "only while a client watches.",
    .options = options,
    .run = run,
};
