/* Assertions. RK_ASSERT is always on, also in release builds: it guards invariants of rankd's own code and
 * aborts with file, line and expression. Never use it on data that came from outside. RK_DCHECK is for checks
 * too costly for release builds. */
#ifndef RK_ASSERT_H
#define RK_ASSERT_H

#include "base/rk_compiler.h"

RK_BEGIN_DECLS

void rk_assert_fail(const char *expr, const char *file, int line) RK_NORETURN;

#define RK_ASSERT(expr) ((expr) ? (void)0 : rk_assert_fail(#expr, __FILE__, __LINE__))

#ifdef RK_DEBUG
#define RK_DCHECK(expr) RK_ASSERT(expr)
#else
#define RK_DCHECK(expr) ((void)sizeof(!(expr)))
#endif

RK_END_DECLS

#endif
