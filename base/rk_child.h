/* Processes that a program starts. */
#ifndef RK_CHILD_H
#define RK_CHILD_H

#include <stddef.h>
#include <sys/types.h>

#include "base/rk_compiler.h"

RK_BEGIN_DECLS

/* First in a child, between fork and exec, where only async-signal-safe calls are allowed. It gets a separate
 * process group, so that Ctrl-C reaches the driver alone, and dies with the thread that created it; it exits
 * with 127 if its parent has ended already. The signals of `reset` get their default action; none is
 * blocked. */
void rk_child_begin(pid_t parent, const int *reset, size_t num_reset);

RK_END_DECLS

#endif
