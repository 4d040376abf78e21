/* Completion scripts for bash and zsh. Both shells get the same functions, in the part of the language that
 * they share: tables of words made from the tables of commands, keys and methods, and a walk over the words
 * before the cursor that selects the table. Only the input and output of words differ between the
 * shells. */
#include "cmd/cmd_internal.h"

#include <ctype.h>
#include <string.h>

#include "base/rk_arena.h"
#include "base/rk_str.h"
#include "rl/rk_job.h"
#include "proto/rk_methods.h"

/* --- the kind of a word on the command line, from its spelling in the tables: "FILE", "a|b", "[ROLE.]METHOD"
 * --- */

/* The name of the function that lists candidates, "choices" for candidates in the text, "" for anything else.
 */
static const char *kind_of(const char *text)
{
    if (strstr(text, "KEY=VALUE"))
        return "keys";
    if (strstr(text, "ROLE.]METHOD"))
        return "methods";
    if (strstr(text, "ROLE.METHOD"))
        return "calls";
    if (strcmp(text, "ROLE") == 0)
        return "roles";
    if (strstr(text, ".json") || strstr(text, "DIR") || strstr(text, "FILE"))
        return "files";
    return strchr(text, '|') && islower((unsigned char)text[0]) ? "choices" : "";
}

static void append_words(struct rk_str *out, const char *choices)
{
    for (; *choices && *choices != ' '; choices++)
        rk_str_appendf(out, "%c", *choices == '|' ? ' ' : *choices);
}

/* "choices a b", "files", or "". */
static void append_kind(struct rk_str *out, const char *text)
{
    const char *kind = kind_of(text);

    rk_str_append(out, kind);
    if (strcmp(kind, "choices") == 0) {
        rk_str_append(out, " ");
        append_words(out, text);
    }
}

/* --- tables --- */

static void format_commands(struct rk_str *out)
{
    rk_str_append(out, "# The words that may follow those before: \"\" and first words of two.\n"
                       "_rankctl_commands() {\n    case $1 in\n    '') echo");
    for (size_t i = 0; i < rk_num_commands; i++) {
        const char *name = rk_commands[i]->name;
        size_t bytes = strcspn(name, " ");

        if (i == 0 || strncmp(rk_commands[i - 1]->name, name, bytes + 1) != 0)
            rk_str_appendf(out, " %.*s", (int)bytes, name);
    }
    rk_str_append(out, " ;;\n");
    for (size_t i = 0; i < rk_num_commands; i++) {
        const char *name = rk_commands[i]->name, *space = strchr(name, ' ');

        if (space && (i == 0 || strncmp(rk_commands[i - 1]->name, name, (size_t)(space - name) + 1) != 0))
            rk_str_appendf(out, "    %.*s) _rankctl_group_%.*s ;;\n", (int)(space - name), name,
                           (int)(space - name), name);
    }
    rk_str_append(out, "    esac\n}\n");
}

/* One function per first word, since an entry of a case would have to be written at once. */
static void format_groups(struct rk_str *out)
{
    for (size_t i = 0; i < rk_num_commands; i++) {
        const char *name = rk_commands[i]->name, *space = strchr(name, ' ');
        size_t bytes = space ? (size_t)(space - name) + 1 : 0;

        if (!space || (i > 0 && strncmp(rk_commands[i - 1]->name, name, bytes) == 0))
            continue;
        rk_str_appendf(out, "_rankctl_group_%.*s() { echo", (int)bytes - 1, name);
        for (size_t j = i; j < rk_num_commands; j++) {
            if (strncmp(rk_commands[j]->name, name, bytes) == 0)
                rk_str_appendf(out, " %s", rk_commands[j]->name + bytes);
        }
        rk_str_append(out, "; }\n");
    }
}

static void append_options(struct rk_str *out, const struct rk_option *options)
{
    for (; options && options->name; options++)
        rk_str_appendf(out, " --%s%s", options->name, options->value ? "=" : "");
}

static void append_option_kinds(struct rk_str *out, const char *command, const struct rk_option *options)
{
    for (; options && options->name; options++) {
        if (!options->value || !*kind_of(options->value))
            continue;
        rk_str_appendf(out, "    %s' --%s') echo ", command, options->name);
        /* The keys of --opt are those of the method, not of a job. */
        if (strcmp(kind_of(options->value), "keys") == 0)
            rk_str_append(out, "options");
        else
            append_kind(out, options->value);
        rk_str_append(out, " ;;\n");
    }
}

static void format_options(struct rk_str *out)
{
    rk_str_append(out, "_rankctl_options() {\n    case $1 in\n");
    for (size_t i = 0; i < rk_num_commands; i++) {
        rk_str_appendf(out, "    '%s') echo", rk_commands[i]->name);
        append_options(out, rk_commands[i]->options);
        append_options(out, rk_common_options);
        rk_str_append(out, " ;;\n");
    }
    rk_str_append(out, "    esac\n}\n# The kind of an option's value.\n_rankctl_value() {\n    case $1 in\n");
    for (size_t i = 0; i < rk_num_commands; i++) {
        char *quoted = rk_format("'%s'", rk_commands[i]->name);

        append_option_kinds(out, quoted, rk_commands[i]->options);
        rk_free(quoted);
    }
    append_option_kinds(out, "*", rk_common_options);
    rk_str_append(out, "    esac\n}\n");
}

/* The first word of `args` for the first argument, the last one for the following ones. */
static void format_arguments(struct rk_str *out)
{
    rk_str_append(out, "# The kinds of the first argument of a command, and of the following ones.\n"
                       "_rankctl_argument() {\n    case $1 in\n");
    for (size_t i = 0; i < rk_num_commands; i++) {
        const char *args = rk_commands[i]->args;
        char *first = rk_strndup(args, strcspn(args, " "));
        const char *rest = args + strlen(first);

        rk_str_appendf(out, "    '%s first') echo ", rk_commands[i]->name);
        append_kind(out, first);
        rk_str_appendf(out, " ;;\n    '%s next') echo ", rk_commands[i]->name);
        if (strcmp(kind_of(first), "choices") == 0 && strstr(rest, ".json"))
            rk_str_append(out, "files keys");
        else
            rk_str_append(out, kind_of(rest));
        rk_str_append(out, " ;;\n");
        rk_free(first);
    }
    rk_str_append(out, "    esac\n}\n");
}

static void format_keys(struct rk_str *out)
{
    int64_t count;
    const struct rk_config_key *keys = rk_job_keys(&count);

    rk_str_append(out, "_rankctl_keys() {\n    echo");
    for (int64_t i = 0; i < count; i++)
        rk_str_appendf(out, " %s=", keys[i].path);
    rk_str_append(out, "\n}\n_rankctl_key_values() {\n    case $1 in\n");
    for (int64_t i = 0; i < count; i++) {
        if (!keys[i].choices && keys[i].type != RK_CONFIG_BOOL)
            continue;
        rk_str_appendf(out, "    %s) echo ", keys[i].path);
        append_words(out, keys[i].choices ? keys[i].choices : "true|false");
        rk_str_append(out, " ;;\n");
    }
    rk_str_append(out, "    esac\n}\n");
}

static void format_methods(struct rk_str *out)
{
    struct rk_arena *arena = rk_arena_create(16384, 0);
    struct rk_list_methods_response list;

    rk_methods_describe(&list, arena);
    rk_str_append(out, "_rankctl_methods() {\n    echo");
    for (int64_t i = 0; i < list.num_methods; i++)
        rk_str_appendf(out, " %s", list.methods[i].name);
    rk_str_append(out, "\n}\n_rankctl_calls() {\n    echo");
    for (int64_t i = 0; i < list.num_methods; i++) {
        for (int64_t j = 0; j < list.methods[i].num_roles; j++)
            rk_str_appendf(out, " %s.%s", list.methods[i].roles[j], list.methods[i].name);
    }
    rk_str_append(out,
                  "\n}\n_rankctl_roles() { _rankctl_calls | tr ' ' '\\n' | sed 's/[.].*//' | sort -u; }\n"
                  "_rankctl_method_options() {\n    case $1 in\n");
    for (int64_t i = 0; i < list.num_methods; i++) {
        rk_str_appendf(out, "    %s) echo", list.methods[i].name);
        for (int64_t j = 0; j < list.methods[i].num_options; j++)
            rk_str_appendf(out, " %s=", list.methods[i].options[j].name);
        rk_str_append(out, " ;;\n");
    }
    rk_str_append(out, "    esac\n}\n");
    rk_arena_destroy(arena);
}

/* --- the walk --- */

/* Prints one candidate per line, whole words as the user would type them; "@files" means file names. */
static const char walk[] =
    "_rankctl_lines() { tr -s ' ' '\\n' | sed \"s|^|$1|\"; }\n"
    "_rankctl_list() { # kind, prefix, method\n"
    "    case $1 in\n"
    "    files) echo @files ;;\n"
    "    keys) _rankctl_keys | _rankctl_lines \"$2\" ;;\n"
    "    methods) _rankctl_methods | _rankctl_lines \"$2\" ;;\n"
    "    calls) _rankctl_calls | _rankctl_lines \"$2\" ;;\n"
    "    roles) _rankctl_roles | _rankctl_lines \"$2\" ;;\n"
    "    options) _rankctl_method_options \"$3\" | _rankctl_lines \"$2\" ;;\n"
    "    'files keys') echo @files; _rankctl_keys | _rankctl_lines \"$2\" ;;\n"
    "    'choices '*) echo \"${1#choices }\" | _rankctl_lines \"$2\" ;;\n"
    "    esac\n"
    "}\n"
    "_rankctl_candidates() { # the word at the cursor, the words between it and rankctl\n"
    "    local current=$1 command= group= option= method= next=first word\n"
    "    shift\n"
    "    for word in \"$@\"; do\n"
    "        if [ -n \"$option\" ]; then option=; continue; fi\n"
    "        if [ -z \"$command\" ]; then\n"
    "            if [ -n \"$group\" ]; then command=\"$group $word\"\n"
    "            elif [ -n \"$(_rankctl_commands \"$word\")\" ]; then group=$word\n"
    "            else command=$word; fi\n"
    "            continue\n"
    "        fi\n"
    "        case $word in\n"
    "        --*=*) ;;\n"
    "        --*) case \" $(_rankctl_options \"$command\") \" in *\" $word= \"*) option=$word ;; esac ;;\n"
    "        *) if [ $next = first ]; then method=${word#*.}; fi; next=next ;;\n"
    "        esac\n"
    "    done\n"
    "    if [ -z \"$command\" ]; then _rankctl_commands \"$group\" | _rankctl_lines ''; return; fi\n"
    "    if [ -n \"$option\" ]; then _rankctl_list \"$(_rankctl_value \"$command $option\")\" '' "
    "\"$method\"; "
    "return; fi\n"
    "    case $current in\n"
    "    --*=*) _rankctl_list \"$(_rankctl_value \"$command ${current%%=*}\")\" \"${current%%=*}=\" "
    "\"$method\" "
    ";;\n"
    "    -*) _rankctl_options \"$command\" | _rankctl_lines '' ;;\n"
    "    *=*) _rankctl_key_values \"${current%%=*}\" | _rankctl_lines \"${current%%=*}=\" ;;\n"
    "    *) _rankctl_list \"$(_rankctl_argument \"$command $next\")\" '' \"$method\" ;;\n"
    "    esac\n"
    "}\n";

/* COMP_WORDS is split at COMP_WORDBREAKS, which has "=" and ":"; only the part after the
 * last. */
static const char bash_end[] =
    "_rankctl() {\n"
    "    local line=${COMP_LINE:0:COMP_POINT} current= candidate broken\n"
    "    local -a words\n"
    "    read -ra words <<<\"$line\"\n"
    "    case $line in *[[:space:]]) ;; *) current=${words[-1]}; unset 'words[-1]' ;; esac\n"
    "    broken=${current%\"${current##*[=:]}\"}\n"
    "    COMPREPLY=()\n"
    "    while IFS= read -r candidate; do\n"
    "        if [ \"$candidate\" = @files ]; then\n"
    "            compopt -o filenames 2>/dev/null\n"
    "            while IFS= read -r candidate; do COMPREPLY+=(\"$candidate\"); done \\\n"
    "                < <(compgen -f -- \"${current##*=}\")\n"
    "        elif [[ $candidate == \"$current\"* && -n $candidate ]]; then\n"
    "            COMPREPLY+=(\"${candidate#\"$broken\"}\")\n"
    "        fi\n"
    "    done < <(_rankctl_candidates \"$current\" \"${words[@]:1}\")\n"
    "    case ${COMPREPLY[0]-} in *=) compopt -o nospace 2>/dev/null ;; esac\n"
    "}\n"
    "complete -F _rankctl rankctl\n";

static const char zsh_end[] =
    "_rankctl() {\n"
    "    local -a found\n"
    "    found=(${(f)\"$(_rankctl_candidates \"$PREFIX\" ${words[2,CURRENT-1]})\"})\n"
    "    if (( ${found[(I)@files]} )); then\n"
    "        found=(${found:#@files})\n"
    "        compset -P '*='\n"
    "        _files\n"
    "    fi\n"
    "    compadd -S '' -- ${(M)found:#*=}\n"
    "    compadd -- ${found:#*=}\n"
    "}\n"
    "if [ \"$funcstack[1]\" = _rankctl ]; then _rankctl \"$@\"; else compdef _rankctl rankctl; fi\n";

void rk_completion_format(const char *shell, struct rk_str *out)
{
    bool is_zsh = strcmp(shell, "zsh") == 0;

    rk_str_append(out, is_zsh ? "#compdef rankctl\n" : "");
    rk_str_append(out, "# Made by \"rankctl completion\".\n");
    format_commands(out);
    format_groups(out);
    format_options(out);
    format_arguments(out);
    format_keys(out);
    format_methods(out);
    rk_str_append(out, walk);
    rk_str_append(out, is_zsh ? zsh_end : bash_end);
}
