/* Paths in calls. They must lead to directories below the configured roots: every
 * component is opened from the directory before it, without following symbolic links, and ".." is refused
 * before anything is opened. The result is the canonical path of the directory. Only
 * directories are resolved here: symbolic links among the files of a model are followed, since Hugging Face's
 * cache consists of them. */
#include "worker/worker_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_file.h"

#define PATH_BYTES_MAX 4096

static struct rk_status *outside(const char *path, const char *why)
{
    return RK_FAIL_REASON(RK_PERMISSION_DENIED, "PATH_OUTSIDE_ROOTS", "path '%s': %s", path, why);
}

/* The rest of the path after `dir`; NULL when the path is not below it. */
static const char *rest_below(const char *dir, const char *path)
{
    size_t bytes = strlen(dir);

    while (bytes > 0 && dir[bytes - 1] == '/')
        bytes--;
    return strncmp(path, dir, bytes) == 0 && (path[bytes] == '/' || path[bytes] == '\0') ? path + bytes
                                                                                         : NULL;
}

/* The root above `path`, and the rest of the path. A root that is a symbolic link, or below one,
 * is accepted under both names: drivers send the path that their own file system resolves. */
static struct rk_status *split_root(const char **root, const char **rest, char *const *roots,
                                    const char *path)
{
    char resolved[PATH_MAX];

    if (path[0] != '/')
        return RK_FAIL(RK_INVALID_ARGUMENT, "path '%s': expected an absolute path", path);
    if (!roots[0])
        return outside(path,
                       "ckpt.roots of the daemon is empty; set it to the directories that calls may name");
    for (char *const *candidate = roots; *candidate; candidate++) {
        *root = *candidate;
        *rest = rest_below(*candidate, path);
        if (!*rest && realpath(*candidate, resolved))
            *rest = rest_below(resolved, path);
        if (*rest)
            return NULL;
    }
    return outside(path, "not below one of ckpt.roots");
}

/* *fd becomes the descriptor of the component; -1 with RK_PATH_RESOLVE_PROBE when it is missing. */
static struct rk_status *open_component(int *fd, const char *name, const char *path, uint32_t flags)
{
    int next = openat(*fd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (next < 0 && errno == ENOENT && flags & RK_PATH_RESOLVE_CREATE) {
        if (mkdirat(*fd, name, 0777) != 0 && errno != EEXIST)
            return RK_FAIL(errno == EACCES || errno == EPERM || errno == EROFS ? RK_PERMISSION_DENIED
                                                                               : RK_INTERNAL,
                           "path '%s': cannot create '%s': %s", path, name, strerror(errno));
        next = openat(*fd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    }
    if (next < 0 && errno == ENOENT && flags & RK_PATH_RESOLVE_PROBE) {
        close(*fd);
        *fd = -1;
        return NULL;
    }
    if (next < 0 && errno == ENOENT)
        return RK_FAIL(RK_NOT_FOUND, "path '%s': '%s' does not exist", path, name);
    if (next < 0 && (errno == ENOTDIR || errno == ELOOP))
        return outside(path, "leads through a symbolic link or something that is not a directory");
    if (next < 0)
        return RK_FAIL(errno == EACCES ? RK_PERMISSION_DENIED : RK_INTERNAL,
                       "path '%s': cannot open '%s': %s", path, name, strerror(errno));
    close(*fd);
    *fd = next;
    return NULL;
}

static struct rk_status *walk(int *fd, const char *rest, const char *path, uint32_t flags)
{
    char *copy = rk_strdup(rest), *cursor = copy, *name;
    struct rk_status *st = NULL;

    while (!st && (name = strsep(&cursor, "/")) != NULL) {
        if (strcmp(name, "..") == 0)
            st = outside(path, "'..' is not allowed");
        else if (*fd >= 0 && *name && strcmp(name, ".") != 0)
            st = open_component(fd, name, path, flags);
    }
    rk_free(copy);
    return st;
}

static struct rk_status *path_of_fd(char **out, int fd, const char *path)
{
    char link[64], target[PATH_MAX];
    ssize_t bytes;

    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    bytes = readlink(link, target, sizeof(target) - 1);
    if (bytes <= 0)
        return RK_FAIL(RK_INTERNAL, "path '%s': cannot read %s: %s", path, link, strerror(errno));
    target[bytes] = '\0';
    *out = rk_strdup(target);
    return NULL;
}

struct rk_status *rk_path_resolve(char **out, char *const *roots, const char *path, uint32_t flags)
{
    const char *root, *rest;
    struct rk_status *st;
    int fd;

    *out = NULL;
    if (!*path || strlen(path) > PATH_BYTES_MAX)
        return RK_FAIL(RK_INVALID_ARGUMENT, "path: expected 1 to %d bytes, got %zu", PATH_BYTES_MAX,
                       strlen(path));
    RK_TRY(rk_path_check(path, flags & (RK_PATH_RESOLVE_CREATE | RK_PATH_RESOLVE_PROBE)));
    RK_TRY(split_root(&root, &rest, roots, path));
    fd = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return RK_FAIL(RK_FAILED_PRECONDITION, "ckpt.roots: cannot open '%s': %s", root, strerror(errno));
    st = walk(&fd, rest, path, flags);
    if (!st && fd >= 0)
        st = path_of_fd(out, fd, path);
    if (fd >= 0)
        close(fd);
    return st;
}
