/* rankctl_manual PAGE FILE: writes rankctl.1 or rankd-job.5 from the tables of commands, keys and methods.
 * Part of the build, not installed. */
#include "base/config/rk_manual.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_arena.h"
#include "cmd/cmd_internal.h"
#include "rl/rk_job.h"
#include "generated/rk_version.h"
#include "proto/rk_methods.h"

static void add_commands(struct rk_str *out)
{
    rk_manual_section(out, "COMMANDS");
    for (size_t i = 0; i < rk_num_commands; i++) {
        const struct rk_command *command = rk_commands[i];
        char *title = rk_format("rankctl %s [options] %s", command->name, command->args);

        rk_manual_subsection(out, title);
        rk_manual_text(out, command->summary);
        rk_manual_options(out, command->options);
        if (command->details) {
            rk_str_append(out, ".PP\n");
            rk_manual_text(out, command->details);
        }
        rk_free(title);
    }
}

static void add_methods(struct rk_str *out)
{
    struct rk_arena *arena = rk_arena_create(16384, 0);
    struct rk_list_methods_response list;

    rk_manual_section(out, "METHODS");
    rk_manual_text(out, "Methods for 'rankctl call'; 'rankctl describe METHOD' shows columns and options.");
    rk_methods_describe(&list, arena);
    for (int64_t i = 0; i < list.num_methods; i++)
        rk_manual_item(out, list.methods[i].name, list.methods[i].doc);
    rk_arena_destroy(arena);
}

static void format_rankctl(struct rk_str *out)
{
    rk_manual_begin(out, "rankctl", 1, RK_VERSION, "drives rankd daemons");
    rk_manual_section(out, "SYNOPSIS");
    rk_manual_text(out, "rankctl COMMAND [options] [arguments]");
    rk_manual_section(out, "DESCRIPTION");
    rk_manual_text(out, "Connects to the daemons of --hosts, claims them for changes, and runs "
                        "training jobs, single methods and queries on them.");
    add_commands(out);
    rk_manual_section(out, "COMMON OPTIONS");
    rk_manual_options(out, rk_common_options);
    add_methods(out);
    rk_manual_exit_codes(out, rk_exit_codes, rk_num_exit_codes);
    rk_str_append(out, ".PP\n");
    rk_manual_text(out, rk_exit_by_signal);
    rk_manual_section(out, "SEE ALSO");
    rk_manual_text(out, "rankd(8), rankd-job(5), rankd.conf(5)");
}

static void add_key(void *user, const struct rk_config_key *key)
{
    rk_manual_key(user, key, NULL);
}

static void format_job(struct rk_str *out)
{
    int64_t count;
    const struct rk_job_group *groups = rk_job_groups(&count);

    rk_manual_begin(out, "rankd-job", 5, RK_VERSION, "job files of rankctl run");
    rk_manual_section(out, "DESCRIPTION");
    rk_manual_text(
        out, "A job is a JSON object; a key a.b.c is the member c of the member b of the member a. Values "
             "come from the defaults, the file, RANKCTL_JOB_ and the key in capitals with dots as "
             "underscores in the environment, and KEY=VALUE arguments; later sources override earlier ones. "
             "Members "
             "named \"//\" are comments. 'rankctl config check JOB.json' checks a job.");
    rk_manual_section(out, "KEYS");
    for (int64_t i = 0; i < count; i++) {
        rk_manual_subsection(out, groups[i].title);
        rk_job_group_keys(i, add_key, out);
    }
    rk_manual_section(out, "SEE ALSO");
    rk_manual_text(out, "rankctl(1), rankd.conf(5)");
}

int main(int argc, char **argv)
{
    static const struct rk_manual_page pages[] = {
        {"rankctl.1", format_rankctl},
        {"rankd-job.5", format_job},
        {NULL, NULL},
    };

    return rk_manual_main(pages, argc, argv);
}
