#include "driver/local_internal.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/config/rk_config.h"
#include "base/rk_env.h"
#include "base/rk_file.h"
#include "base/format/rk_safetensors.h"
#include "base/net/rk_secret.h"
#include "base/rk_str.h"

#define PREFIX      "rankctl-"
#define CONFIG_FILE "rankd.json"
#define LOCK_FILE   "lock"
/* Creates the lock before the directory is visible: no other process may find it free while its owner runs.
 */
#define NEW_LOCK_FILE "lock.new"

static const char *find_root(void)
{
    const char *root = rk_env("XDG_RUNTIME_DIR");

    /* Not TMPDIR: the path of a Unix socket must be short. */
    return root && access(root, W_OK) == 0 ? root : "/tmp";
}

/* Removes the directory with the files in it: there are no others below. */
static void remove_dir(const char *path)
{
    DIR *dir = opendir(path);
    struct dirent *entry;

    while (dir && (entry = readdir(dir)) != NULL)
        unlinkat(dirfd(dir), entry->d_name, 0); /* fails for . and .. */
    if (dir)
        closedir(dir);
    rmdir(path);
}

/* --- directories of killed drivers --- */

/* The lock of a directory of ours, held; -1 when its owner lives, or it is none. */
static int lock_orphan(const char *path)
{
    int dir = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat info;
    int lock = -1;

    if (dir < 0)
        return -1;
    if (fstat(dir, &info) == 0 && info.st_uid == geteuid())
        lock = openat(dir, LOCK_FILE, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    close(dir);
    if (lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) != 0) {
        close(lock);
        lock = -1;
    }
    return lock;
}

static void remove_orphans(const char *root)
{
    DIR *dir = opendir(root);
    struct dirent *entry;

    while (dir && (entry = readdir(dir)) != NULL) {
        char *path = rk_path_join(root, entry->d_name);
        int lock = rk_str_has_prefix(entry->d_name, PREFIX) ? lock_orphan(path) : -1;

        if (lock >= 0) {
            remove_dir(path);
            close(lock);
        }
        rk_free(path);
    }
    if (dir)
        closedir(dir);
}

/* --- one's own --- */

static struct rk_status *take_lock(struct rk_local_dir *dir)
{
    char *early = rk_path_join(dir->path, NEW_LOCK_FILE), *path = rk_path_join(dir->path, LOCK_FILE);
    struct rk_status *st = NULL;

    dir->lock = open(early, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (dir->lock < 0 || flock(dir->lock, LOCK_EX | LOCK_NB) != 0 || rename(early, path) != 0)
        st = rk_file_errno("cannot lock", path);
    rk_free(early);
    rk_free(path);
    return st;
}

/* The directory is private already; the token protects the daemons if its mode is changed. */
static struct rk_status *write_token(const struct rk_local_dir *dir)
{
    char *path = rk_local_dir_token(dir), *line = NULL;
    struct rk_status *st = rk_make_token(&line);

    if (!st)
        st = rk_write_secret(path, line, 0600);
    rk_free(line);
    rk_free(path);
    return st;
}

struct rk_status *rk_local_dir_open(struct rk_local_dir *dir)
{
    static const char config[] = "{}\n";
    const char *root = find_root();
    struct rk_status *st;
    char *path;

    *dir = (struct rk_local_dir){.lock = -1};
    remove_orphans(root);
    path = rk_path_join(root, PREFIX "XXXXXX");
    if (!mkdtemp(path)) {
        st = rk_file_errno("cannot create a directory like", path);
        rk_free(path);
        return st;
    }
    dir->path = path;
    RK_TRY(take_lock(dir));
    path = rk_local_dir_config(dir);
    st = rk_write_file_atomic(path, config, sizeof(config) - 1);
    rk_free(path);
    return st ? st : write_token(dir);
}

void rk_local_dir_close(struct rk_local_dir *dir, bool is_kept)
{
    if (dir->path && !is_kept)
        remove_dir(dir->path);
    if (dir->lock >= 0)
        close(dir->lock);
    rk_free(dir->path);
    *dir = (struct rk_local_dir){.lock = -1};
}

char *rk_local_dir_token(const struct rk_local_dir *dir)
{
    return rk_path_join(dir->path, RK_TOKEN_NAME);
}

char *rk_local_dir_config(const struct rk_local_dir *dir)
{
    return rk_path_join(dir->path, CONFIG_FILE);
}
