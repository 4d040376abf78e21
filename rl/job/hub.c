#include "rl/rk_hub.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/config/rk_config.h"
#include "base/rk_env.h"
#include "base/rk_str.h"
#include "base/rk_small_file.h"

#define NAME_BYTES_MAX 200 /* of Org/Name; Hugging Face allows 96 */
#define REF_BYTES_MAX  256

static bool is_dir(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* "Org/Name" of letters, digits, "-", "_" and ".", no part of which begins with a dot. */
static bool is_repository(const char *path)
{
    const char *slash = strchr(path, '/');
    size_t bytes = strlen(path);

    if (!slash || slash == path || slash[1] == '\0' || slash[1] == '.' || path[0] == '.' ||
        strchr(slash + 1, '/') || bytes > NAME_BYTES_MAX)
        return false;
    for (size_t i = 0; i < bytes; i++) {
        if (!isalnum((unsigned char)path[i]) && !strchr("-_./", path[i]))
            return false;
    }
    return true;
}

/* The cache directory as in huggingface_hub; NULL without a home directory. */
static char *cache_dir(void)
{
    static const struct {
        const char *variable, *below;
    } places[] = {{"HF_HUB_CACHE", NULL},
                  {"HUGGINGFACE_HUB_CACHE", NULL},
                  {"HF_HOME", "hub"},
                  {"XDG_CACHE_HOME", "huggingface/hub"},
                  {"HOME", ".cache/huggingface/hub"}};

    for (size_t i = 0; i < RK_ARRAY_LEN(places); i++) {
        const char *value = rk_env(places[i].variable);

        if (value && *value)
            return places[i].below ? rk_path_join(value, places[i].below) : rk_strdup(value);
    }
    return NULL;
}

/* CACHE/models--Org--Name */
static char *repository_dir(const char *cache, const char *name)
{
    const char *slash = strchr(name, '/');

    return rk_format("%s/models--%.*s--%s", cache, (int)(slash - name), name, slash + 1);
}

/* The snapshot that refs/main names; NULL when there is none. */
static char *main_snapshot(const char *repository)
{
    char *ref_path = rk_path_join(repository, "refs/main"), *ref = NULL, *snapshot = NULL;
    struct rk_status *st = rk_load_file(&ref, NULL, ref_path, REF_BYTES_MAX);
    size_t bytes = ref ? strcspn(ref, " \t\r\n") : 0;

    if (bytes > 0 && strspn(ref, "0123456789abcdef") == bytes) {
        snapshot = rk_format("%s/snapshots/%.*s", repository, (int)bytes, ref);
        if (!is_dir(snapshot)) {
            rk_free(snapshot);
            snapshot = NULL;
        }
    }
    rk_status_free(st);
    rk_free(ref);
    rk_free(ref_path);
    return snapshot;
}

static char *find_cached(const char *name)
{
    char *cache = cache_dir();
    char *repository = cache ? repository_dir(cache, name) : NULL;
    char *snapshot = repository ? main_snapshot(repository) : NULL;

    rk_free(repository);
    rk_free(cache);
    return snapshot;
}

char *rk_hub_resolve(const char *base, const char *path)
{
    char *full = rk_resolve_path(base, path);
    char *cached = !is_repository(path) || access(full, F_OK) == 0 ? NULL : find_cached(path);

    if (!cached)
        return full;
    rk_free(full);
    return cached;
}

struct rk_status *rk_hub_not_found(const char *path, const char *full)
{
    struct rk_status *st;
    int error = errno;
    char *cache;

    if (!is_repository(path))
        return RK_FAIL(RK_NOT_FOUND, "cannot open '%s': %s", full, strerror(error));
    cache = cache_dir();
    st = RK_FAIL(RK_NOT_FOUND,
                 "'%s' is neither a directory (%s) nor a model in Hugging Face's cache (%s); download it: hf "
                 "download %s",
                 path, full, cache ? cache : "no home directory", path);
    rk_free(cache);
    return st;
}
