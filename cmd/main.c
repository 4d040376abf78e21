/* rankctl: drives rankd daemons. */
#include "cmd/cmd_internal.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_log.h"

static void print_overview(FILE *out)
{
    fprintf(out, "usage: rankctl COMMAND [options] [arguments]\n\n"
                 "Drives rankd daemons: training runs, single calls, queries.\n\ncommands:\n");
    for (size_t i = 0; i < rk_num_commands; i++)
        fprintf(out, "  %-18s %s\n", rk_commands[i]->name, rk_commands[i]->summary);
    fprintf(out, "\n'rankctl COMMAND --help' describes each command.\nexit codes:");
    for (size_t i = 0; i < rk_num_exit_codes; i++)
        fprintf(out, "%s %d %s", i > 0 ? "," : "", rk_exit_codes[i].code, rk_exit_codes[i].text);
    fprintf(out, ";\n%s\n", rk_exit_by_signal);
}

/* The command that the first *num_words words name: one or two. */
static const struct rk_command *find_command(int argc, char **argv, int *num_words)
{
    const struct rk_command *found = NULL;

    for (size_t i = 0; i < rk_num_commands && !found; i++) {
        const char *name = rk_commands[i]->name, *space = strchr(name, ' ');
        size_t bytes = space ? (size_t)(space - name) : strlen(name);

        if (strlen(argv[0]) != bytes || strncmp(argv[0], name, bytes) != 0 ||
            (space && (argc < 2 || strcmp(argv[1], space + 1) != 0)))
            continue;
        found = rk_commands[i];
        *num_words = space ? 2 : 1;
    }
    return found;
}

/* The commands that begin with that word; false when there are none. */
static bool print_group(const char *word, FILE *out)
{
    bool has_any = false;

    for (size_t i = 0; i < rk_num_commands; i++) {
        if (!rk_str_has_prefix(rk_commands[i]->name, word) || rk_commands[i]->name[strlen(word)] != ' ')
            continue;
        fprintf(out, "%s  rankctl %-18s %s\n", has_any ? "" : "commands:\n", rk_commands[i]->name,
                rk_commands[i]->summary);
        has_any = true;
    }
    return has_any;
}

static struct rk_status *unknown_command(const char *name)
{
    const char *names[64];
    const char *close;

    RK_ASSERT(rk_num_commands <= RK_ARRAY_LEN(names));
    for (size_t i = 0; i < rk_num_commands; i++)
        names[i] = rk_commands[i]->name;
    close = rk_str_suggest(name, names, (int64_t)rk_num_commands);
    return rk_cli_usage(RK_FAIL(RK_INVALID_ARGUMENT,
                                "unknown command '%s'%s%s%s; rankctl --help lists all commands", name,
                                close ? "; did you mean '" : "", close ? close : "", close ? "'?" : ""));
}

static struct rk_status *run_command(struct rk_cli *cli, const struct rk_command *command, int argc,
                                     char **argv)
{
    struct rk_str help = {0};

    RK_TRY(rk_cli_parse(cli, command, argc, argv));
    if (!rk_cli_has(cli, "help"))
        return command->run(cli);
    rk_cli_format_help(command, &help);
    printf("%s", rk_str_text(&help));
    rk_str_fini(&help);
    return NULL;
}

/* Data goes to stdout, diagnostics to stderr; with --output=json the error is also on stdout, in the
 * object of the answer if there is one. */
static void report(const struct rk_cli *cli, const struct rk_status *st)
{
    char *message = rk_cli_printable(rk_status_message(st));

    /* Messages about the command line begin with the command. */
    fprintf(stderr, "%s%s\n", rk_str_has_prefix(message, "rankctl ") ? "" : "rankctl: ", message);
    rk_free(message);
    if (rk_cli_is_json(cli) && !cli->has_told) {
        struct rk_json *body = rk_json_new_object();

        rk_json_set(body, "error", rk_cli_status_json(st));
        rk_cli_print_json("Error", body);
    }
}

/* Whether output did not reach stdout; reports it on stderr. */
static bool has_lost_output(void)
{
    bool has_lost = fflush(stdout) != 0;

    if (!has_lost && !ferror(stdout))
        return false;
    fputs("rankctl: standard output was closed or is full; the output is incomplete\n", stderr);
    return true;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    const struct rk_command *command;
    struct rk_cli cli = {0};
    struct rk_status *st;
    int num_words = 1;
    int code;

    rk_log_set_format(RK_LOG_TEXT); /* for a terminal */
    rk_log_set_level(RK_LOG_WARN);
    /* rankctl reports errors of connections with their cause; gRPC would log them before. */
    setenv("GRPC_VERBOSITY", "NONE", 0);
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is an error of the write, not the end of a run */
    signal(SIGXFSZ, SIG_IGN); /* so is a limit of the file size */
    if (argc < 2 || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_overview(argc < 2 ? stderr : stdout);
        return argc < 2 ? 2 : has_lost_output() ? 1 : 0;
    }
    if (strcmp(name, "--version") == 0)
        command = &rk_cmd_version;
    else
        command = find_command(argc - 1, argv + 1, &num_words);
    if (!command && argc == 3 && strcmp(argv[2], "--help") == 0 && print_group(name, stdout))
        return has_lost_output() ? 1 : 0;
    if (!command && print_group(name, stderr)) {
        fprintf(stderr, "rankctl: '%s' is the first word of these commands\n", name);
        return 2;
    }
    st = command ? run_command(&cli, command, argc - 1 - num_words, argv + 1 + num_words)
                 : unknown_command(name);
    code = rk_cli_exit_code(st);
    if (st)
        report(&cli, st);
    rk_status_free(st);
    rk_cli_fini(&cli);
    if (has_lost_output() && code == 0)
        code = 1;
    if (rk_cli_signal()) { /* end by it, so that the shell gets the signal */
        signal(rk_cli_signal(), SIG_DFL);
        raise(rk_cli_signal());
    }
    return code;
}
