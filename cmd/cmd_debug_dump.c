/* rankctl debug dump: state, events and configuration of all daemons in one file, for diagnosis elsewhere. */
#include "cmd/cmd_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_time.h"
#include "cmd/collectives_internal.h"
#include "base/format/rk_tar.h"
#include "generated/rk_version.h"

/* What is collected from one daemon. */
struct part {
    struct rk_str events;        /* lines */
    struct rk_status *no_events; /* why they are missing; owned */
};

struct dump {
    const struct rk_hosts *hosts;
    struct rk_driver_worker *workers; /* [hosts->count], like the rest */
    struct rk_driver_dump *flights;
    struct part *parts;
    struct rk_collectives collectives;
    struct rk_tar *tar;
    char dir[48];
    int64_t unix_s;
};

static void on_event(void *user, int32_t worker, const struct rk_watch_event *event)
{
    struct dump *dump = user;
    struct rk_json *json = rk_cli_event_json(worker, dump->hosts->addresses[worker], event);
    char *text = rk_json_dump(json, 0, false);

    rk_str_appendf(&dump->parts[worker].events, "%s\n", text);
    rk_free(text);
    rk_json_free(json);
}

static void collect(struct dump *dump, struct rk_driver *driver, struct rk_arena *arena)
{
    struct rk_driver_watch_args watch = {.request = {.from_event = 1, .past_only = true, .level = "debug"},
                                         .on_event = on_event,
                                         .user = dump};
    struct rk_status **errors = rk_calloc((size_t)dump->hosts->count, sizeof(*errors));

    rk_driver_get_status(driver, arena, dump->workers);
    rk_driver_dump_flight(driver, dump->flights);
    rk_driver_watch(driver, &watch, errors);
    for (int32_t i = 0; i < dump->hosts->count; i++)
        dump->parts[i].no_events = errors[i];
    rk_free(errors);
}

/* A daemon whose rank or recorder is not known takes no part. */
static void compare_collectives(struct dump *dump)
{
    for (int32_t i = 0; i < dump->hosts->count; i++) {
        const struct rk_driver_worker *worker = &dump->workers[i];
        const struct rk_str *text = &dump->flights[i].json;
        struct rk_json *json = NULL;
        struct rk_status *st;

        if (worker->error || dump->flights[i].error || worker->status.rank.world_size == 0)
            continue;
        st = rk_json_parse(&json, rk_str_text(text), text->bytes, "flight recorder", 0);
        if (st) {
            RK_IGNORE(st, "add_config has it again, and fails");
            continue;
        }
        rk_collectives_add(&dump->collectives, worker->status.rank.rank, rk_json_find(json, "flight"));
        rk_json_free(json);
    }
    rk_collectives_compare(&dump->collectives);
}

static struct rk_status *add_text(struct dump *dump, const char *name, const char *text, size_t bytes)
{
    char path[RK_TAR_NAME_BYTES + 1];

    snprintf(path, sizeof(path), "%s/%s", dump->dir, name);
    return rk_tar_add(dump->tar, path, text, bytes, dump->unix_s);
}

/* Takes the object. */
static struct rk_status *add_json(struct dump *dump, const char *name, struct rk_json *json)
{
    char *text = rk_json_dump(json, 2, false);
    struct rk_status *st = add_text(dump, name, text, strlen(text));

    rk_free(text);
    rk_json_free(json);
    return st;
}

/* The configuration has a separate file, since it is needed most often. */
static struct rk_status *add_config(struct dump *dump, int32_t worker)
{
    const struct rk_str *text = &dump->flights[worker].json;
    struct rk_json *json = NULL;
    char name[48];
    struct rk_status *st;

    RK_TRY(rk_json_parse(&json, rk_str_text(text), text->bytes, "flight recorder", 0));
    snprintf(name, sizeof(name), "worker-%d/config.json", worker);
    st = add_json(dump, name, rk_json_retain(rk_json_find(json, "config")));
    rk_json_free(json);
    return st;
}

/* Members that a daemon did not send are omitted. */
static struct rk_status *add_worker(struct dump *dump, int32_t worker)
{
    const struct part *part = &dump->parts[worker];
    char name[48];

    snprintf(name, sizeof(name), "worker-%d/status.json", worker);
    RK_TRY(add_json(dump, name, rk_cli_worker_json(worker, &dump->workers[worker])));
    snprintf(name, sizeof(name), "worker-%d/events.jsonl", worker);
    if (!part->no_events)
        RK_TRY(add_text(dump, name, rk_str_text(&part->events), part->events.bytes));
    if (dump->flights[worker].error)
        return NULL;
    snprintf(name, sizeof(name), "worker-%d/flight.json", worker);
    RK_TRY(add_text(dump, name, rk_str_text(&dump->flights[worker].json), dump->flights[worker].json.bytes));
    return add_config(dump, worker);
}

/* The first missing part of a daemon; borrowed. */
static const struct rk_status *find_error(const struct dump *dump, int32_t worker)
{
    if (dump->workers[worker].error)
        return dump->workers[worker].error;
    return dump->flights[worker].error ? dump->flights[worker].error : dump->parts[worker].no_events;
}

static struct rk_json *summary_json(const struct dump *dump)
{
    struct rk_json *json = rk_json_new_object(), *workers = rk_json_new_array();
    char text[32];

    rk_json_set(json, "apiVersion", rk_json_new_string(RK_CLI_API));
    rk_json_set(json, "kind", rk_json_new_string("DebugDump"));
    rk_json_set(json, "time",
                rk_json_new_string(rk_time_format_utc(dump->unix_s * 1000000000, text, sizeof(text))));
    rk_json_set(json, "rankctl_version", rk_json_new_string(RK_VERSION));
    rk_json_set(json, "rankctl_git_commit", rk_json_new_string(RK_GIT_COMMIT));
    for (int32_t i = 0; i < dump->hosts->count; i++) {
        const struct rk_status *error = find_error(dump, i);
        struct rk_json *item = rk_json_new_object();

        rk_json_set(item, "worker", rk_json_new_int(i));
        rk_json_set(item, "address", rk_json_new_string(dump->hosts->addresses[i]));
        rk_json_set(item, "error", error ? rk_cli_status_json(error) : rk_json_new_null());
        rk_json_append(workers, item);
    }
    rk_json_set(json, "workers", workers);
    return json;
}

static struct rk_status *write_tar(struct dump *dump, const char *path)
{
    struct rk_str text = {0};
    struct rk_status *st;

    RK_TRY(rk_tar_create(&dump->tar, path));
    st = add_json(dump, "summary.json", summary_json(dump));
    rk_collectives_format(&dump->collectives, &text);
    if (!st)
        st = add_text(dump, "collectives.txt", rk_str_text(&text), text.bytes);
    rk_str_fini(&text);
    if (!st)
        st = add_json(dump, "collectives.json", rk_collectives_json(&dump->collectives));
    for (int32_t i = 0; i < dump->hosts->count && !st; i++)
        st = add_worker(dump, i);
    return rk_tar_finish(dump->tar, st);
}

static void print_result(const struct rk_cli *cli, const struct dump *dump, const char *path)
{
    struct rk_str text = {0};
    struct rk_json *body;

    if (!rk_cli_is_json(cli)) {
        rk_collectives_format(&dump->collectives, &text);
        printf("wrote %s\n%s", path, rk_str_text(&text));
        rk_str_fini(&text);
        return;
    }
    body = summary_json(dump);
    rk_json_set(body, "collectives", rk_collectives_json(&dump->collectives));
    rk_json_set(body, "file", rk_json_new_string(path));
    rk_cli_print_json("DebugDump", body);
}

static void init(struct dump *dump, const struct rk_hosts *hosts)
{
    char text[32];

    dump->hosts = hosts;
    dump->workers = rk_calloc((size_t)hosts->count, sizeof(*dump->workers));
    dump->flights = rk_calloc((size_t)hosts->count, sizeof(*dump->flights));
    dump->parts = rk_calloc((size_t)hosts->count, sizeof(*dump->parts));
    dump->unix_s = rk_time_unix_ns() / 1000000000;
    rk_time_format_utc(dump->unix_s * 1000000000, text, sizeof(text));
    for (char *c = text; *c; c++) {
        if (*c == ':')
            *c = '-';
    }
    snprintf(dump->dir, sizeof(dump->dir), "rankd-debug-%.19s", text);
}

/* The first error of the daemons, by their order; NULL when nothing is missing. */
static struct rk_status *fini(struct dump *dump)
{
    struct rk_status *st = NULL;

    for (int32_t i = 0; dump->hosts && i < dump->hosts->count; i++) {
        st = rk_status_first(st, dump->workers[i].error);
        st = rk_status_first(st, dump->flights[i].error);
        st = rk_status_first(st, dump->parts[i].no_events);
        rk_str_fini(&dump->flights[i].json);
        rk_str_fini(&dump->parts[i].events);
    }
    rk_collectives_fini(&dump->collectives);
    rk_free(dump->workers);
    rk_free(dump->flights);
    rk_free(dump->parts);
    return st;
}

static struct rk_status *run(struct rk_cli *cli)
{
    struct rk_arena *arena = rk_arena_create(16384, 0);
    const char *out = rk_cli_find(cli, "out");
    struct rk_driver *driver = NULL;
    struct rk_hosts hosts = {0};
    struct dump dump = {0};
    char *path = NULL;
    struct rk_status *st;

    RK_TRY_GOTO(st, rk_cli_hosts(cli, &hosts), out);
    RK_TRY_GOTO(st, rk_cli_open(cli, &hosts, &driver), out);
    init(&dump, &hosts);
    collect(&dump, driver, arena);
    compare_collectives(&dump);
    path = out ? rk_strdup(out) : rk_format("%s.tar", dump.dir);
    st = write_tar(&dump, path);
    if (!st) {
        cli->has_told = true;
        print_result(cli, &dump, path);
    }
out:
    st = rk_status_first(st, fini(&dump));
    rk_free(path);
    rk_driver_close(driver);
    rk_hosts_fini(&hosts);
    rk_arena_destroy(arena);
    return st;
}

static const struct rk_option options[] = {
    {"out", "FILE.tar", "file to write (default: rankd-debug-TIME.tar)"},
    {NULL, NULL, NULL},
};

const struct rk_command rk_cmd_debug_dump = {
    .name = "debug dump",
    .args = "",
    .summary =
        "collect status, events, log lines, flight recorder and configuration of all daemons in a tar file",
    .details = "Prints which ranks are in which collective, and which have not arrived there.\n"
               "Without prompts, samples, weights, tokens or keys. The file is written also when a daemon "
               "cannot be\n"
               "reached; summary.json lists what is missing, and the exit code is that of the first error.",
    .options = options,
    .run = run,
};
