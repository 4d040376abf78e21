/* Command line of rankd-bench: for --help and for its manual page. */
#ifndef RK_BENCH_OPTIONS_H
#define RK_BENCH_OPTIONS_H

#include "base/config/rk_options.h"

extern const struct rk_option bench_options_table[];
extern const char bench_groups_text[]; /* the subcommands, as in a synopsis */

#endif
