/* Named fault points for tests: RK_FAULT("optim.step") executes the action that RANKD_FAULTS has for that
 * name, e.g. RANKD_FAULTS=optim.step=kill,comm.all_reduce=sleep:2s,ckpt.rename=fail. Compiled in with
 * RK_FAULTS only. "name=ACTION@N" acts from the N-th time on (1-based); the default is the first time. "fail"
 * fires once; RK_FAULT returns true then, and the caller fails as documented. "stop" also fires once: the
 * process stops (SIGSTOP) and continues there after a SIGCONT. */
#ifndef RK_FAULT_H
#define RK_FAULT_H

#include <stdbool.h>

#include "base/rk_compiler.h"

RK_BEGIN_DECLS

bool rk_fault_hit(const char *name);

#ifdef RK_FAULTS
#define RK_FAULT(name) rk_fault_hit(name)
#else
#define RK_FAULT(name) (false)
#endif

RK_END_DECLS

#endif
