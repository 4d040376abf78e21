/* rankd: command line and exit code. The process stays in the foreground; a service manager supervises it. */
#include <malloc.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_status.h"
#include "daemon/options.def"
#include "daemon/rk_daemon.h"
#include "generated/rk_version.h"

#define ARENAS_MAX 4

struct options {
    struct rk_daemon_args args;
    RK_ARRAY(char *) overrides;
    bool wants_help, wants_version, wants_check;
};

static void print_option(const char *name, const char *value, const char *help)
{
    char *left = rk_format("--%s%s%s", name, value ? " " : "", value ? value : "");

    printf("  %-18s %s\n", left, help);
    rk_free(left);
}

static void print_help(void)
{
    struct rk_str keys = {0};

    printf("usage: rankd [--config FILE] [--KEY=VALUE ...]\n"
           "\n"
           "Serves one device to rankctl or any other gRPC client.\n"
           "\n");
#define X(name, value, help) print_option(name, value, help);
    RK_DAEMON_OPTION_TABLE(X)
#undef X
    rk_daemon_config_format_keys(&keys);
    printf("\n" RK_DAEMON_PRECEDENCE "\n\n%s\n" RK_DAEMON_FIRST_LINES "\nExit codes:\n", rk_str_text(&keys));
#define X(code, meaning) printf("  %d  %s\n", code, meaning);
    RK_DAEMON_EXIT_TABLE(X)
#undef X
    rk_str_fini(&keys);
}

static void add_override(struct options *options, const char *key, const char *value)
{
    rk_array_append(&options->overrides, rk_format("%s=%s", key, value));
}

/* Takes the value of a flag that has one: "--config FILE" or "--config=FILE". */
static struct rk_status *take_value(const char **out, int argc, char **argv, int *i)
{
    const char *equals = strchr(argv[*i], '=');

    if (equals) {
        *out = equals + 1;
        return NULL;
    }
    if (*i + 1 == argc)
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s needs a value", argv[*i]);
    *out = argv[++*i];
    return NULL;
}

static bool is_flag(const char *arg, const char *name)
{
    size_t bytes = strlen(name);

    return strncmp(arg, name, bytes) == 0 && (arg[bytes] == '\0' || arg[bytes] == '=');
}

static struct rk_status *parse_flag(struct options *options, int argc, char **argv, int *i)
{
    const char *arg = argv[*i], *value;

    if (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0) {
        options->wants_help = true;
    } else if (strcmp(arg, "--version") == 0) {
        options->wants_version = true;
    } else if (strcmp(arg, "--check-config") == 0) {
        options->wants_check = true;
    } else if (strcmp(arg, "--insecure") == 0) {
        add_override(options, "rpc.insecure", "true");
    } else if (is_flag(arg, "--config")) {
        RK_TRY(take_value(&options->args.config_file, argc, argv, i));
    } else if (is_flag(arg, "--record")) {
        RK_TRY(take_value(&value, argc, argv, i));
        add_override(options, "record.dir", value);
    } else if (is_flag(arg, "--device") || is_flag(arg, "--slot")) {
        RK_TRY(take_value(&value, argc, argv, i));
        add_override(options, is_flag(arg, "--slot") ? "slot" : "device", value);
    } else if (strncmp(arg, "--", 2) == 0 && strchr(arg, '=')) {
        rk_array_append(&options->overrides, rk_strdup(arg + 2));
    } else {
        return RK_FAIL(RK_INVALID_ARGUMENT, "unknown argument '%s'; see rankd --help", arg);
    }
    return NULL;
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

static struct rk_status *check_config(const struct options *options)
{
    struct rk_config *config = NULL;
    struct rk_str text = {0};
    struct rk_status *st;

    RK_TRY(rk_daemon_config_load(&config, &options->args));
    rk_config_format(config, &text);
    fputs(rk_str_text(&text), stdout);
    st = flush_text();
    if (!st)
        st = rk_daemon_config_check(config);
    rk_str_fini(&text);
    rk_config_destroy(config);
    return st;
}

static struct rk_status *run(struct options *options, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        RK_TRY(parse_flag(options, argc, argv, &i));
    if (options->wants_help) {
        print_help();
        return flush_text();
    }
    if (options->wants_version) {
        printf("rankd %s (%s)\n", RK_VERSION, RK_GIT_COMMIT);
        return flush_text();
    }
    options->args.overrides = (const char *const *)options->overrides.items;
    options->args.num_overrides = options->overrides.count;
    options->args.on_listening = on_listening;
    options->args.on_detached = on_detached;
    return options->wants_check ? check_config(options) : rk_daemon_run(&options->args);
}

/* Every arena of malloc keeps what it once needed, and glibc has one for each thread, up to 8 a core: with
 * the threads of gRPC, what floods and peaks of load leave behind would grow with the number of cores. */
static void limit_arenas(void)
{
#ifdef M_ARENA_MAX
    mallopt(M_ARENA_MAX, ARENAS_MAX);
#endif
}

int main(int argc, char **argv)
{
    struct options options = {0};
    struct rk_status *st;
    int code;

    limit_arenas();
    st = run(&options, argc, argv);
    code = rk_daemon_exit_code(st);
    if (st)
        fprintf(stderr, "rankd: %s\n", rk_status_message(st));
    if (rk_status_code(st) == RK_RESOURCE_EXHAUSTED) {
        /* Libraries that were given no threads wait for them as they are unloaded, some in a loop. */
        fflush(stdout);
        _exit(code);
    }
    rk_status_free(st);
    for (int64_t i = 0; i < options.overrides.count; i++)
        rk_free(options.overrides.items[i]);
    rk_array_fini(&options.overrides);
    return code;
}
