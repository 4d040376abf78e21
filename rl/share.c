#include "rl/rk_share.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "base/rk_small_file.h"

static char *find_near(const char *program, const char *file)
{
    static const char *const ways_up[] = {"..", "../.."};
    char *dir = rk_path_dir(program), *found = NULL;

    for (size_t i = 0; i < RK_ARRAY_LEN(ways_up) && !found; i++) {
        found = rk_format("%s/%s/share/rankd/%s", dir, ways_up[i], file);
        if (access(found, R_OK) != 0) {
            rk_free(found);
            found = NULL;
        }
    }
    rk_free(dir);
    return found;
}

struct rk_status *rk_share_find(char **out, const char *file)
{
    char self[PATH_MAX], absolute[PATH_MAX];
    ssize_t bytes = readlink("/proc/self/exe", self, sizeof(self) - 1);
    Dl_info library;

    self[bytes > 0 ? bytes : 0] = '\0';
    *out = find_near(self, file);
    if (!*out && dladdr((void *)find_near, &library) != 0 && library.dli_fname)
        *out = find_near(library.dli_fname, file);
    if (!*out)
        return RK_FAIL(RK_NOT_FOUND, "cannot find share/rankd/%s beside %s", file, self);
    if (realpath(*out, absolute)) { /* it may be used in another directory */
        rk_free(*out);
        *out = rk_strdup(absolute);
    }
    return NULL;
}
