/* Writes a part of a checkpoint, which replaces its predecessor atomically, and removes one. */
#include "base/format/rk_ckpt_dir_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/format/rk_ckpt_shard.h"
#include "base/rk_fault.h"
#include "base/rk_file.h"
#include "base/rk_file_io.h"
#include "base/rk_log.h"
#include "base/format/rk_safetensors.h"
#include "base/rk_str.h"

#define DEPTH_MAX 8 /* a part has three levels */

/* --- removing --- */

/* Empties the directory open as `fd`, and closes it. `path` is for messages. */
static struct rk_status *empty_dir(int fd, const char *path, int depth)
{
    DIR *entries = depth < DEPTH_MAX ? fdopendir(fd) : NULL;
    const struct dirent *entry;
    struct rk_status *st = NULL;

    if (!entries) {
        close(fd);
        return depth < DEPTH_MAX ? rk_file_errno("reading directory", path)
                                 : RK_FAIL(RK_INVALID_ARGUMENT,
                                           "'%s' has more levels of directories than a checkpoint", path);
    }
    while (!st && (entry = readdir(entries))) {
        int child;

        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        child = openat(dirfd(entries), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (child >= 0)
            st = empty_dir(child, path, depth + 1);
        if (!st && unlinkat(dirfd(entries), entry->d_name, child >= 0 ? AT_REMOVEDIR : 0) != 0 &&
            errno != ENOENT)
            st = rk_file_errno("removing from", path);
    }
    closedir(entries);
    return st;
}

static struct rk_status *remove_manifest(const char *part_dir)
{
    char *path = rk_path_join(part_dir, RK_CKPT_MANIFEST_FILE);
    struct rk_status *st = NULL;

    if (unlink(path) == 0)
        st = rk_file_sync_dir(part_dir);
    else if (errno != ENOENT && errno != ENOTDIR)
        st = rk_file_errno("removing", path);
    rk_free(path);
    return st;
}

static struct rk_status *remove_manifests(const char *path)
{
    struct rk_ckpt_names names = {0};
    struct rk_status *st = rk_ckpt_list_names(&names, path);

    if (!st)
        st = remove_manifest(path);
    for (int64_t i = 0; !st && i < names.items.count; i++) {
        char *child = rk_path_join(path, names.items.items[i]);
        struct stat info;

        if (lstat(child, &info) == 0 && S_ISDIR(info.st_mode))
            st = remove_manifest(child);
        rk_free(child);
    }
    rk_ckpt_names_fini(&names);
    return st;
}

struct rk_status *rk_ckpt_remove(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct rk_status *st;

    if (fd < 0)
        return errno == ENOENT ? NULL : rk_file_errno("removing", path);
    st = remove_manifests(path);
    if (st) {
        close(fd);
        return st;
    }
    if (RK_FAULT("ckpt.remove")) {
        close(fd);
        return RK_FAIL(RK_INTERNAL, "fault point ckpt.remove");
    }
    RK_TRY(empty_dir(fd, path, 0));
    return rmdir(path) != 0 && errno != ENOENT ? rk_file_errno("removing", path) : NULL;
}

/* --- writing a part --- */

/* The last component of the path of a part; NULL when that is not a valid name. */
static const char *part_name(const char *part_dir)
{
    const char *slash = strrchr(part_dir, '/');
    const char *name = slash ? slash + 1 : part_dir;

    return name[0] == '\0' || name[0] == '.' ? NULL : name;
}

/* Makes the directory and the directories above it. */
static struct rk_status *make_dirs(const char *path)
{
    char *copy = rk_strdup(path);
    struct rk_status *st = NULL;
    struct stat info;

    for (char *slash = strchr(copy + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(copy, 0777); /* the last one shows whether all succeeded */
        *slash = '/';
    }
    if (mkdir(copy, 0777) != 0 && (errno != EEXIST || stat(copy, &info) != 0 || !S_ISDIR(info.st_mode)))
        st = rk_file_errno("creating directory", path);
    rk_free(copy);
    return st;
}

struct rk_status *rk_ckpt_check_target(const char *part_dir)
{
    struct rk_ckpt_names names = {0};
    struct stat info;
    bool is_ours;
    int64_t count;

    if (lstat(part_dir, &info) != 0)
        return errno == ENOENT ? NULL : rk_file_errno("looking at", part_dir);
    if (!S_ISDIR(info.st_mode))
        return RK_FAIL_REASON(RK_ALREADY_EXISTS, "TARGET_EXISTS", "'%s' is not a directory", part_dir);
    RK_TRY(rk_ckpt_list_names(&names, part_dir));
    count = names.items.count;
    rk_ckpt_names_fini(&names);
    is_ours = rk_ckpt_has_entry(part_dir, RK_CKPT_MANIFEST_FILE, "") ||
              rk_ckpt_has_entry_below(part_dir, RK_CKPT_SHARDS_DIR, "shard_", ".safetensors");
    if (count == 0 || is_ours)
        return NULL;
    return RK_FAIL_REASON(RK_ALREADY_EXISTS, "TARGET_EXISTS",
                          "'%s' exists and is not a checkpoint of rankd: choose another path, or remove it",
                          part_dir);
}

struct rk_status *rk_ckpt_sweep_step(const char *step_dir, const char *name)
{
    char *prefix = name ? rk_format(RK_CKPT_TEMP_PREFIX "%s-", name) : rk_strdup(RK_CKPT_TEMP_PREFIX);
    struct rk_ckpt_names names = {0};
    struct rk_status *st = rk_ckpt_list_names(&names, step_dir);

    for (int64_t i = 0; !st && i < names.items.count; i++) {
        char *path;

        if (!rk_str_has_prefix(names.items.items[i], prefix))
            continue;
        path = rk_path_join(step_dir, names.items.items[i]);
        RK_INFO("removing '%s', left by an interrupted save", path);
        st = rk_ckpt_remove(path);
        rk_free(path);
    }
    rk_ckpt_names_fini(&names);
    rk_free(prefix);
    return st;
}

struct rk_status *rk_ckpt_begin(char **temp_dir, const char *part_dir, const char *token)
{
    const char *name = part_name(part_dir);
    char *step_dir, *path = NULL;
    struct rk_status *st;

    *temp_dir = NULL;
    if (!name)
        return RK_FAIL(RK_INVALID_ARGUMENT, "'%s' does not end with the name of a role", part_dir);
    step_dir = rk_path_dir(part_dir);
    RK_TRY_GOTO(st, rk_ckpt_check_target(part_dir), out);
    RK_TRY_GOTO(st, make_dirs(step_dir), out);
    RK_TRY_GOTO(st, rk_ckpt_sweep_step(step_dir, name), out);
    path = rk_format("%s/" RK_CKPT_TEMP_PREFIX "%s-%s", step_dir, name, token);
    if (mkdir(path, 0777) != 0)
        st = rk_file_errno("creating directory", path);
    if (!st) {
        *temp_dir = path;
        path = NULL;
    }

out:
    rk_free(path);
    rk_free(step_dir);
    return st;
}

/* The part is published even if its predecessor cannot be removed: the next sweep tries again. */
static void remove_old(const char *path)
{
    struct rk_status *st = rk_ckpt_remove(path);

    if (st)
        RK_WARN("cannot remove the checkpoint that was replaced: %s", rk_status_message(st));
    rk_status_free(st);
}

/* *old receives the new name of the replaced part. On a file system that cannot exchange two names, part_dir
 * does not exist for a moment. */
static struct rk_status *replace(const char *temp_dir, const char *part_dir, char **old)
{
    struct rk_status *st = NULL;

    if (renameat2(AT_FDCWD, temp_dir, AT_FDCWD, part_dir, RENAME_EXCHANGE) == 0) {
        *old = rk_strdup(temp_dir);
        return NULL;
    }
    if (errno != EINVAL && errno != ENOSYS)
        return rk_file_errno("renaming to", part_dir);
    *old = rk_format("%s-old", temp_dir);
    if (rename(part_dir, *old) != 0) {
        st = rk_file_errno("renaming", part_dir);
    } else if (rename(temp_dir, part_dir) != 0) {
        st = rk_file_errno("renaming to", part_dir);
        (void)rename(*old, part_dir);
    }
    return st;
}

struct rk_status *rk_ckpt_publish(const char *temp_dir, const char *part_dir)
{
    char *step_dir = rk_path_dir(part_dir), *dir = rk_path_dir(step_dir), *old = NULL;
    struct rk_status *st;

    RK_TRY_GOTO(st, rk_ckpt_check_target(part_dir), out);
    RK_TRY_GOTO(st, rk_file_sync_dir(temp_dir), out);
    if (RK_FAULT("ckpt.rename")) {
        errno = EIO;
        st = rk_file_errno("renaming to", part_dir);
    } else if (rename(temp_dir, part_dir) != 0) {
        st = errno == ENOTEMPTY || errno == EEXIST ? replace(temp_dir, part_dir, &old)
                                                   : rk_file_errno("renaming to", part_dir);
    }
    if (!st)
        st = rk_file_sync_dir(step_dir);
    if (!st && old) /* from here on the new part survives a crash of the machine */
        remove_old(old);
    if (!st)
        st = rk_file_sync_dir(dir);

out:
    rk_free(old);
    rk_free(step_dir);
    rk_free(dir);
    return st;
}
