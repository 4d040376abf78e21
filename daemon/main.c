/* rankd: command line and exit code. The process stays in the foreground; a service manager supervises it. */
#include <malloc.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/config/rk_options.h"
#include "base/rk_status.h"
#include "daemon/options_internal.h"
#include "daemon/rk_daemon.h"
#include "generated/rk_version.h"

#define ARENAS_MAX 4

static void print_help(void)
{
    struct rk_str text = {0};

    rk_options_format(&text, rk_daemon_options, NULL);
    rk_str_append(&text, "\n" RK_DAEMON_PRECEDENCE "\n\n");
    rk_daemon_config_format_keys(&text);
    printf("usage: rankd [--config FILE] [--KEY=VALUE ...]\n"
           "\n"
           "Serves one device to rankctl or any other gRPC client.\n"
           "\n%s\n" RK_DAEMON_FIRST_LINES "\nExit codes:\n",
           rk_str_text(&text));
    for (size_t i = 0; i < rk_num_daemon_exit_codes; i++)
        printf("  %d  %s\n", rk_daemon_exit_codes[i].code, rk_daemon_exit_codes[i].text);
    rk_str_fini(&text);
}

/* Flags that are short for a key. */
static const struct {
    const char *flag, *key;
} short_flags[] = {
    {"device", "device"},
    {"slot", "slot"},
    {"record", "record.dir"},
    {"insecure", "rpc.insecure"},
};

/* The key that the setting is of; NULL: none. */
static const char *key_of(const struct rk_command_setting *setting)
{
    if (setting->is_key)
        return setting->name;
    for (size_t i = 0; i < RK_ARRAY_LEN(short_flags); i++) {
        if (strcmp(setting->name, short_flags[i].flag) == 0)
            return short_flags[i].key;
    }
    return NULL;
}

struct overrides {
    RK_ARRAY(char *) items; /* "KEY=VALUE" */
};

static void take_keys(struct overrides *out, const struct rk_command_line *line)
{
    for (int64_t i = 0; i < line->settings.count; i++) {
        const struct rk_command_setting *setting = &line->settings.items[i];
        const char *key = key_of(setting);

        if (key)
            rk_array_append(&out->items, rk_format("%s=%s", key, setting->value ? setting->value : "true"));
    }
}

static void on_listening(void *user, const char *key, const char *address)
{
    (void)user;
    if (key)
        printf("rankd: %s is %s\n", key, address);
    else
        printf("rankd: listening on %s\n", address);
    fflush(stdout);
}

static void on_detached(void *user)
{
    (void)user;
    printf("rankd: detached\n");
    fflush(stdout);
}

/* Fails when the text could not be written to standard output completely. */
static struct rk_status *flush_text(void)
{
    if (fflush(stdout) != 0 || ferror(stdout))
        return RK_FAIL(RK_INTERNAL, "cannot write to the standard output");
    return NULL;
}

static struct rk_status *check_config(const struct rk_daemon_args *args)
{
    struct rk_config *config = NULL;
    struct rk_str text = {0};
    struct rk_status *st;

    RK_TRY(rk_daemon_config_load(&config, args));
    rk_config_format(config, &text);
    fputs(rk_str_text(&text), stdout);
    st = flush_text();
    if (!st)
        st = rk_daemon_config_check(config);
    rk_str_fini(&text);
    rk_config_destroy(config);
    return st;
}

static struct rk_status *serve(const struct rk_command_line *line)
{
    struct rk_daemon_args args = {
        .config_file = rk_command_line_find(line, "config"),
        .on_listening = on_listening,
        .on_detached = on_detached,
    };
    struct overrides overrides = {0};
    struct rk_status *st;

    take_keys(&overrides, line);
    args.overrides = (const char *const *)overrides.items.items;
    args.num_overrides = overrides.items.count;
    st = rk_command_line_has(line, "check-config") ? check_config(&args) : rk_daemon_run(&args);
    for (int64_t i = 0; i < overrides.items.count; i++)
        rk_free(overrides.items.items[i]);
    rk_array_fini(&overrides.items);
    return st;
}

static struct rk_status *run(struct rk_command_line *line, int argc, char **argv)
{
    static const struct rk_command_syntax syntax = {
        .program = "rankd", .args = "", .options = rk_daemon_options, .takes_keys = true};

    RK_TRY(rk_command_line_parse(line, &syntax, argc - 1, argv + 1));
    if (rk_command_line_has(line, "help")) {
        print_help();
        return flush_text();
    }
    if (rk_command_line_has(line, "version")) {
        printf("rankd %s (%s)\n", RK_VERSION, RK_GIT_COMMIT);
        return flush_text();
    }
    return serve(line);
}

/* Every arena of malloc keeps its peak memory, and glibc has one for each thread, up to 8 a core: with
 * the threads of gRPC, the memory kept after peaks of load would grow with the number of cores. */
static void limit_arenas(void)
{
#ifdef M_ARENA_MAX
    mallopt(M_ARENA_MAX, ARENAS_MAX);
#endif
}

int main(int argc, char **argv)
{
    struct rk_command_line line;
    struct rk_status *st;
    int code;

    limit_arenas();
    st = run(&line, argc, argv);
    code = rk_daemon_exit_code(st);
    if (st)
        fprintf(stderr, "rankd: %s\n", rk_status_message(st));
    if (rk_status_code(st) == RK_RESOURCE_EXHAUSTED) {
        /* Libraries whose threads could not be created wait for them at unload, some in a loop. */
        fflush(stdout);
        _exit(code);
    }
    rk_status_free(st);
    rk_command_line_fini(&line);
    return code;
}
