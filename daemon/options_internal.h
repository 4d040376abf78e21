/* Flags of rankd besides the keys, its listeners' lines and its exit codes: --help, the manual and the
 * completions derive from them. */
#ifndef RK_DAEMON_OPTIONS_INTERNAL_H
#define RK_DAEMON_OPTIONS_INTERNAL_H

#include "base/config/rk_manual.h"
#include "base/config/rk_options.h"

#define RK_DAEMON_FIRST_LINES                                                                            \
    "The first line on stdout is \"rankd: listening on ADDRESS\"; one line follows for each additional " \
    "listener."
#define RK_DAEMON_PRECEDENCE \
    "Keys. A flag overrides RANKD_SECTION_KEY in the environment, which overrides the file:"

extern const struct rk_option rk_daemon_options[]; /* ends with a row without name */
extern const struct rk_exit_code rk_daemon_exit_codes[];
extern const size_t rk_num_daemon_exit_codes;

#endif
