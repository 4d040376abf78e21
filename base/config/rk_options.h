/* Command lines of the programs: options from tables, and arguments. --help, manual pages and completions are
 * generated from the same tables.
 *
 * An option with a value is "--name=VALUE" or "--name VALUE", one without "--name". "--" ends the options;
 * "-h" is
 * --help. Other words, also those that begin with one hyphen, are arguments. */
#ifndef RK_OPTIONS_H
#define RK_OPTIONS_H

#include <stdbool.h>

#include "base/rk_array.h"
#include "base/rk_status.h"
#include "base/rk_str.h"

RK_BEGIN_DECLS

struct rk_option {
    const char *name;  /* "token-file" for --token-file */
    const char *value; /* name of its value in --help: "FILE"; NULL: no value */
    const char *help;
};

/* The syntax of a command line. */
struct rk_command_syntax {
    const char *program;             /* "rankctl run"; errors refer to its --help */
    const char *args;                /* its arguments, as shown in --help: "JOB.json [KEY=VALUE...]"; "":
                                      * none */
    int min_args, max_args;          /* fewer are accepted with --help */
    const struct rk_option *options; /* each table ends with a row without name; NULL: none */
    const struct rk_option *common_options; /* used for names that are not in `options`; NULL: none */
    const char *repeatable;                 /* the option that may be given more than once; NULL: none */
    bool takes_keys;                        /* "--NAME=VALUE" with a name in no table is a setting */
};

struct rk_command_setting {
    const char *name, *value; /* value: NULL for an option without a value */
    bool is_key;              /* by takes_keys */
};

struct rk_command_line {
    RK_ARRAY(struct rk_command_setting) settings; /* in the order in which they were given */
    RK_ARRAY(const char *) args;
    int64_t num_before_dashes; /* args before "--"; -1: there was none */
    RK_ARRAY(char *) names;    /* of settings; owned */
};

/* Parses the words after the program's name and its command; the results borrow their text. INVALID_ARGUMENT
 * names the option or argument and what was expected. rk_command_line_fini, on failure too. */
struct rk_status *rk_command_line_parse(struct rk_command_line *out, const struct rk_command_syntax *syntax,
                                        int argc, char **argv) RK_NODISCARD;
void rk_command_line_fini(struct rk_command_line *line); /* zeroed ones too */
bool rk_command_line_has(const struct rk_command_line *line, const char *name);
/* The first value given to the option; NULL if it was not given or has no value. */
const char *rk_command_line_find(const struct rk_command_line *line, const char *name);

/* "--name=VALUE", as --help and the manual show it; rk_free it. */
char *rk_option_term(const struct rk_option *option);
/* A line of --help for each option except the options that are also in `shadowed` (NULL: none). */
void rk_options_format(struct rk_str *out, const struct rk_option *options, const struct rk_option *shadowed);

RK_END_DECLS

#endif
