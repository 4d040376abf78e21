/* Manual pages (man(7)) from the tables that also make --help: escaping, sections, lists of keys. */
#ifndef RK_MANUAL_H
#define RK_MANUAL_H

#include <stdint.h>

#include "base/config/rk_config.h"
#include "base/config/rk_options.h"
#include "base/rk_str.h"

RK_BEGIN_DECLS

/* Title and the section NAME, as "rankctl", 1, "commands rankd daemons". */
void rk_manual_begin(struct rk_str *out, const char *name, int section, const char *version,
                     const char *summary);
void rk_manual_section(struct rk_str *out, const char *title);
void rk_manual_subsection(struct rk_str *out, const char *title);
/* Filled text: one newline is a space, an empty line ends a paragraph, indented lines stay as they are. */
void rk_manual_text(struct rk_str *out, const char *text);
/* A term in bold and its description, indented below it. */
void rk_manual_item(struct rk_str *out, const char *term, const char *text);
/* A key with its type, range and default. env_prefix as in rk_config_source; NULL: no variable is named. */
void rk_manual_key(struct rk_str *out, const struct rk_config_key *key, const char *env_prefix);
/* An item for each option. */
void rk_manual_options(struct rk_str *out, const struct rk_option *options);

struct rk_exit_code {
    int code;
    const char *text; /* its meaning */
};
/* The section EXIT STATUS. */
void rk_manual_exit_codes(struct rk_str *out, const struct rk_exit_code *codes, size_t count);

/* One of the pages that a program writes. */
struct rk_manual_page {
    const char *name; /* "rankd.8" */
    void (*format)(struct rk_str *out);
};
/* The main function of a program PAGE FILE, which writes a page of the table (ends with a row without name)
 * to a file: the exit code. */
int rk_manual_main(const struct rk_manual_page *pages, int argc, char **argv);

RK_END_DECLS

#endif
