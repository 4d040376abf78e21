/* The environment of the process. */
#ifndef RK_ENV_H
#define RK_ENV_H

#include "base/rk_compiler.h"

RK_BEGIN_DECLS

/* The only reader of the environment in the project. NULL when unset. */
const char *rk_env(const char *name);

RK_END_DECLS

#endif
