/* rankd_manual PAGE FILE: writes rankd.8, rankd.conf.5 or the completions rankd.bash and rankd.zsh from the
 * tables of flags and keys. Part of the build, not installed. */
#include <string.h>

#include "base/config/rk_manual.h"
#include "daemon/options_internal.h"
#include "daemon/rk_daemon.h"
#include "generated/rk_version.h"

/* --- manual --- */

static void format_rankd(struct rk_str *out)
{
    rk_manual_begin(out, "rankd", 8, RK_VERSION, "serves one device to rankctl and other gRPC clients");
    rk_manual_section(out, "SYNOPSIS");
    rk_manual_text(out, "rankd [--config FILE] [--KEY=VALUE ...]");
    rk_manual_section(out, "DESCRIPTION");
    rk_manual_text(out,
                   "Stays in the foreground and waits for a driver, which gives it a rank, models and calls. "
                   "The unit rankd@.service runs one for each device of a host.\n\n" RK_DAEMON_FIRST_LINES);
    rk_manual_section(out, "OPTIONS");
    rk_manual_options(out, rk_daemon_options);
    rk_manual_item(out, "--KEY=VALUE", "sets a key of rankd.conf(5)");
    rk_manual_section(out, "SIGNALS");
    rk_manual_item(out, "SIGTERM, SIGINT",
                   "wait for the running method, drain.grace at most, then stop; a second "
                   "one stops at once");
    rk_manual_item(out, "SIGHUP", "read the configuration again and apply the keys that a reload applies");
    rk_manual_exit_codes(out, rk_daemon_exit_codes, rk_num_daemon_exit_codes);
    rk_manual_section(out, "FILES");
    rk_manual_item(out, RK_DAEMON_CONFIG_FILE, "configuration that is read when --config names no other");
    rk_manual_section(out, "SEE ALSO");
    rk_manual_text(out, "rankctl(1), rankd.conf(5), systemctl(1)");
}

static void format_conf(struct rk_str *out)
{
    int64_t count;
    const struct rk_config_key *keys = rk_daemon_config_keys(&count);

    rk_manual_begin(out, "rankd.conf", 5, RK_VERSION, "configuration of rankd");
    rk_manual_section(out, "DESCRIPTION");
    rk_manual_text(out, RK_DAEMON_CONFIG_FILE
                   " is a JSON object; a key a.b is the member b of the object a. Flags "
                   "override the environment, which overrides the file. Members named "
                   "\"//\" are comments. 'rankd --check-config' prints every value with "
                   "its origin.");
    rk_manual_section(out, "KEYS");
    for (int64_t i = 0; i < count; i++)
        rk_manual_key(out, &keys[i], "RANKD");
    rk_manual_section(out, "SEE ALSO");
    rk_manual_text(out, "rankd(8), rankd-job(5)");
}

/* --- completion --- */

/* Functions that bash and zsh share: all words, and the values of keys with choices. */
static void format_words(struct rk_str *out)
{
    int64_t count;
    const struct rk_config_key *keys = rk_daemon_config_keys(&count);

    rk_str_append(out, "# Made from rankd's tables.\n_rankd_words() {\n    echo");
    for (const struct rk_option *option = rk_daemon_options; option->name; option++)
        rk_str_appendf(out, " --%s%s", option->name, option->value ? "=" : "");
    for (int64_t i = 0; i < count; i++) {
        if (strchr(keys[i].path, '.')) /* the others are also flags */
            rk_str_appendf(out, " --%s=", keys[i].path);
    }
    rk_str_append(out, "\n}\n_rankd_values() {\n    case $1 in\n");
    for (int64_t i = 0; i < count; i++) {
        if (!keys[i].choices && keys[i].type != RK_CONFIG_BOOL)
            continue;
        rk_str_appendf(out, "    --%s) echo ", keys[i].path);
        for (const char *at = keys[i].choices ? keys[i].choices : "true|false"; *at; at++)
            rk_str_appendf(out, "%c", *at == '|' ? ' ' : *at);
        rk_str_append(out, " ;;\n");
    }
    rk_str_append(out, "    esac\n}\n");
}

static const char bash_end[] =
    "_rankd() {\n"
    "    local line=${COMP_LINE:0:COMP_POINT} current values\n"
    "    current=${line##*[[:space:]]}\n"
    "    COMPREPLY=()\n"
    "    case $current in\n"
    "    *=*)\n"
    "        values=$(_rankd_values \"${current%%=*}\")\n"
    "        if [ -n \"$values\" ]; then mapfile -t COMPREPLY < <(compgen -W \"$values\" -- "
    "\"${current#*=}\")\n"
    "        else compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "
    "\"${current#*=}\"); fi\n"
    "        ;;\n"
    "    -*)\n"
    "        mapfile -t COMPREPLY < <(compgen -W \"$(_rankd_words)\" -- \"$current\")\n"
    "        case ${COMPREPLY[0]-} in *=) compopt -o nospace 2>/dev/null ;; esac\n"
    "        ;;\n"
    "    *) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- \"$current\") ;;\n"
    "    esac\n"
    "}\n"
    "complete -F _rankd rankd\n";

static const char zsh_end[] =
    "_rankd() {\n"
    "    local -a found\n"
    "    if [[ $PREFIX == *=* ]]; then\n"
    "        found=(${=\"$(_rankd_values \"${PREFIX%%=*}\")\"})\n"
    "        compset -P '*='\n"
    "        if (( $#found )); then compadd -- $found; else _files; fi\n"
    "    else\n"
    "        found=(${=\"$(_rankd_words)\"})\n"
    "        compadd -S '' -- ${(M)found:#*=}\n"
    "        compadd -- ${found:#*=}\n"
    "    fi\n"
    "}\n"
    "if [ \"$funcstack[1]\" = _rankd ]; then _rankd \"$@\"; else compdef _rankd rankd; fi\n";

static void format_bash(struct rk_str *out)
{
    format_words(out);
    rk_str_append(out, bash_end);
}

static void format_zsh(struct rk_str *out)
{
    rk_str_append(out, "#compdef rankd\n");
    format_words(out);
    rk_str_append(out, zsh_end);
}

int main(int argc, char **argv)
{
    static const struct rk_manual_page pages[] = {
        {"rankd.8", format_rankd},
        {"rankd.conf.5", format_conf},
        {"rankd.bash", format_bash},
        {"rankd.zsh", format_zsh},
        {NULL, NULL},
    };

    return rk_manual_main(pages, argc, argv);
}
