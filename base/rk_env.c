#include "base/rk_env.h"

#include <stdlib.h>

const char *rk_env(const char *name)
{
    return getenv(name);
}
