#include "kernels/cuda/archs.h"

#include <stdlib.h>
#include <string.h>

bool rk_cuda_archs_run_on(const char *archs, int major, int minor)
{
    while (*archs) {
        char *suffix;
        long arch = strtol(archs, &suffix, 10);

        if (suffix == archs)
            return false; /* not a list */
        if (arch / 10 == major && (*suffix == 'a' ? arch % 10 == minor : arch % 10 <= minor))
            return true;
        archs = suffix;
        while (*archs && *archs++ != ',')
            continue;
    }
    return false;
}

bool rk_cuda_archs_have(const char *archs, const char *arch)
{
    size_t length = strlen(arch);

    while (*archs) {
        size_t own = strcspn(archs, ",");

        if (own == length && strncmp(archs, arch, length) == 0)
            return true;
        archs += own + (archs[own] == ',');
    }
    return false;
}
