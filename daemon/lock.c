#include "daemon/lock_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_file.h"
#include "base/rk_str.h"

struct rk_lock {
    int fd;
};

struct rk_status *rk_lock_take(struct rk_lock **out, const char *path, uint64_t incarnation)
{
    struct rk_lock *lock;
    char text[64];
    int fd, bytes;

    *out = NULL;
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0640);
    if (fd < 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "cannot open the lock '%s': %s", path, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        struct rk_status *st = errno == EWOULDBLOCK
                                   ? RK_FAIL_REASON(RK_FAILED_PRECONDITION, "LOCK_HELD",
                                                    "another process holds the lock '%s'", path)
                                   : RK_FAIL(RK_INTERNAL, "cannot lock '%s': %s", path, strerror(errno));

        close(fd);
        return st;
    }
    bytes = snprintf(text, sizeof(text), "%d %016" PRIx64 "\n", (int)getpid(), incarnation);
    if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)bytes, 0) != bytes) {
        close(fd);
        return RK_FAIL(RK_INTERNAL, "cannot write the lock '%s': %s", path, strerror(errno));
    }
    lock = rk_calloc(1, sizeof(*lock));
    lock->fd = fd;
    *out = lock;
    return NULL;
}

void rk_lock_release(struct rk_lock *lock)
{
    if (!lock)
        return;
    close(lock->fd);
    rk_free(lock);
}

struct rk_status *rk_epoch_load(uint64_t *out, const char *dir)
{
    char *path = rk_path_join(dir, "epoch");
    struct rk_status *st = NULL;
    char text[32] = {0};
    int64_t epoch = 0;
    ssize_t bytes;
    int fd;

    *out = 0;
    st = rk_file_open_read(&fd, path);
    if (rk_status_code(st) == RK_NOT_FOUND) {
        rk_status_free(st);
        st = NULL;
        goto out;
    }
    if (st)
        goto out;
    bytes = read(fd, text, sizeof(text) - 1);
    if (bytes > 0 && text[bytes - 1] == '\n')
        text[bytes - 1] = '\0';
    if (bytes < 0)
        st = RK_FAIL(RK_INTERNAL, "cannot read '%s': %s", path, strerror(errno));
    else if (!rk_parse_i64(text, &epoch) || epoch < 0)
        st = RK_FAIL(RK_DATA_LOSS,
                     "'%s' does not hold a number; write the highest epoch that was in use into it", path);
    else
        *out = (uint64_t)epoch;
out:
    if (fd >= 0)
        close(fd);
    rk_free(path);
    return st;
}

/* Every step counts: data on disk before the name, the name on disk before the epoch is used. */
static struct rk_status *replace_file(int dir_fd, const char *text)
{
    size_t bytes = strlen(text);
    int fd = openat(dir_fd, "epoch.tmp", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0640);
    bool is_written;

    if (fd < 0)
        return RK_FAIL(RK_INTERNAL, "creating epoch.tmp: %s", strerror(errno));
    is_written = write(fd, text, bytes) == (ssize_t)bytes && fsync(fd) == 0;
    if (close(fd) != 0 || !is_written)
        return RK_FAIL(RK_INTERNAL, "writing epoch.tmp: %s", strerror(errno));
    if (renameat(dir_fd, "epoch.tmp", dir_fd, "epoch") != 0 || fsync(dir_fd) != 0)
        return RK_FAIL(RK_INTERNAL, "renaming epoch.tmp: %s", strerror(errno));
    return NULL;
}

struct rk_status *rk_epoch_store(const char *dir, uint64_t epoch)
{
    int dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct rk_status *st;
    char text[32];

    if (dir_fd < 0)
        return RK_FAIL(RK_INTERNAL, "cannot open state.dir '%s': %s", dir, strerror(errno));
    snprintf(text, sizeof(text), "%" PRIu64 "\n", epoch);
    st = replace_file(dir_fd, text);
    close(dir_fd);
    return st ? RK_WRAP(st, "state.dir '%s'", dir) : NULL;
}
