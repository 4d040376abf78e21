#include "base/rk_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_crc32c.h"
#include "base/rk_fault.h"
#include "base/rk_file_io.h"
#include "base/rk_random.h"
#include "base/rk_str.h"

/* Few syncs on any disk, and seconds for one even on a slow network file system. */
#define SYNC_BYTES ((size_t)64 << 20)

struct rk_status *rk_file_errno(const char *action, const char *path)
{
    int error = errno;
    const char *reason = "";
    rk_code_t code = RK_INTERNAL;

    switch (error) {
    case ENOENT:
        code = RK_NOT_FOUND;
        break;
    case EACCES:
    case EPERM:
    case EROFS:
        code = RK_PERMISSION_DENIED;
        break;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        code = RK_RESOURCE_EXHAUSTED;
        reason = "DISK_FULL";
        break;
    case EMFILE:
    case ENFILE:
    case ENOMEM:
        code = RK_RESOURCE_EXHAUSTED;
        break;
    case EISDIR:
    case ENOTDIR:
    case ELOOP:
    case ENAMETOOLONG:
    case EEXIST:
        code = RK_INVALID_ARGUMENT;
        break;
    default:
        break;
    }
    return RK_FAIL_REASON(code, reason, "%s '%s': %s", action, path, strerror(error));
}

static struct rk_status *open_stream(int *fd, const char *path)
{
    /* O_NONBLOCK: opening a pipe instead of a file must not wait without end for a writer; reading then
     * waits as usual, so that a shell's <(command) works. */
    do
        *fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    while (*fd < 0 && errno == EINTR);
    if (*fd < 0)
        return rk_file_errno("opening", path);
    (void)fcntl(*fd, F_SETFL, fcntl(*fd, F_GETFL) & ~O_NONBLOCK);
    return NULL;
}

static const char *kind_of(mode_t mode)
{
    if (S_ISDIR(mode))
        return "a directory";
    if (S_ISFIFO(mode))
        return "a pipe";
    return S_ISSOCK(mode) ? "a socket" : "a device";
}

struct rk_status *rk_file_open_read(int *fd, const char *path)
{
    struct rk_status *st = NULL;
    struct stat info;

    RK_TRY(open_stream(fd, path));
    if (fstat(*fd, &info) != 0)
        st = rk_file_errno("opening", path);
    else if (!S_ISREG(info.st_mode))
        st = RK_FAIL(RK_INVALID_ARGUMENT, "'%s' is %s, expected a file", path, kind_of(info.st_mode));
    if (!st)
        return NULL;
    close(*fd);
    *fd = -1;
    return st;
}

struct rk_status *rk_file_pread(int fd, const char *path, void *dst, size_t bytes, uint64_t offset)
{
    char *p = dst;

    while (bytes > 0) {
        ssize_t got = pread(fd, p, bytes, (off_t)offset);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return rk_file_errno("reading", path);
        if (got == 0)
            return RK_FAIL(RK_DATA_LOSS, "'%s' is truncated: %zu bytes missing at offset %llu", path, bytes,
                           (unsigned long long)offset);
        p += got;
        offset += (uint64_t)got;
        bytes -= (size_t)got;
    }
    return NULL;
}

/* Reads to the end: pipes and files of the kernel have no size in the inode. */
static struct rk_status *read_to_end(int fd, const char *path, size_t max_bytes, struct rk_str *text)
{
    char buf[16384];

    for (;;) {
        ssize_t got = read(fd, buf, sizeof(buf));

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return rk_file_errno("reading", path);
        if (got == 0)
            return NULL;
        if ((size_t)got > max_bytes - text->bytes)
            return RK_FAIL(RK_RESOURCE_EXHAUSTED, "'%s' is larger than %zu bytes", path, max_bytes);
        rk_str_append_bytes(text, buf, (size_t)got);
    }
}

/* Closes `fd`. */
static struct rk_status *read_text(char **out, size_t *bytes, int fd, const char *path, size_t max_bytes)
{
    struct rk_str text = {0};
    struct rk_status *st = read_to_end(fd, path, max_bytes, &text);

    close(fd);
    if (st) {
        rk_str_fini(&text);
        return st;
    }
    *bytes = text.bytes;
    *out = rk_str_take(&text);
    return NULL;
}

struct rk_status *rk_file_read(char **out, size_t *bytes, const char *path, size_t max_bytes)
{
    int fd;

    *out = NULL;
    RK_TRY(rk_file_open_read(&fd, path));
    return read_text(out, bytes, fd, path, max_bytes);
}

struct rk_status *rk_file_read_stream(char **out, size_t *bytes, const char *path, size_t max_bytes)
{
    int fd;

    *out = NULL;
    RK_TRY(open_stream(&fd, path));
    return read_text(out, bytes, fd, path, max_bytes);
}

struct rk_status *rk_pending_file_open(struct rk_pending_file *file, const char *path)
{
    uint8_t noise[8];
    char hex[2 * sizeof(noise) + 1];
    char *temp_path;

    *file = (struct rk_pending_file){.fd = -1, .path = rk_strdup(path)};
    RK_TRY(rk_random_bytes(noise, sizeof(noise)));
    temp_path = rk_format("%s.tmp.%s", path, rk_hex(noise, sizeof(noise), hex));
    file->fd = open(temp_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file->fd < 0) {
        struct rk_status *st = rk_file_errno("creating", path);

        rk_free(temp_path);
        return st;
    }
    file->temp_path = temp_path;
    return NULL;
}

static struct rk_status *sync_data(struct rk_pending_file *file)
{
    file->unsynced_bytes = 0;
    if (RK_FAULT("file.sync")) {
        errno = ENOSPC;
        return rk_file_errno("syncing", file->path);
    }
    return fsync(file->fd) != 0 ? rk_file_errno("syncing", file->path) : NULL;
}

/* Waits for the writeback that the last call started, and starts writeback of the data written since:
 * the disk works while the next block is prepared. File systems without support for this wait at the end. */
static struct rk_status *push_data(struct rk_pending_file *file)
{
    int rc;

    file->unsynced_bytes = 0;
    if (RK_FAULT("file.sync")) {
        errno = ENOSPC;
        return rk_file_errno("syncing", file->path);
    }
    rc = sync_file_range(file->fd, 0, 0, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE);
    if (rc != 0 && (errno == EIO || errno == ENOSPC || errno == EDQUOT))
        return rk_file_errno("syncing", file->path);
    return NULL;
}

struct rk_status *rk_pending_file_pwrite(struct rk_pending_file *file, const void *data, size_t bytes,
                                         uint64_t offset)
{
    const char *p = data;

    if (RK_FAULT("file.write")) {
        errno = ENOSPC;
        return rk_file_errno("writing", file->path);
    }
    if (file->sums && offset == file->summed_bytes) {
        file->crc32c = rk_crc32c(file->crc32c, data, bytes);
        file->summed_bytes += bytes;
    }
    while (bytes > 0) {
        ssize_t put = pwrite(file->fd, p, bytes, (off_t)offset);

        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return rk_file_errno("writing", file->path);
        p += put;
        offset += (uint64_t)put;
        bytes -= (size_t)put;
        file->unsynced_bytes += (size_t)put;
    }
    return file->unsynced_bytes >= SYNC_BYTES ? push_data(file) : NULL;
}

struct rk_status *rk_pending_file_truncate(struct rk_pending_file *file, uint64_t bytes)
{
    int rc;

    do
        rc = ftruncate(file->fd, (off_t)bytes);
    while (rc != 0 && errno == EINTR);
    return rc != 0 ? rk_file_errno("setting the size of", file->path) : NULL;
}

struct rk_status *rk_file_sync_dir(const char *dir)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int error = fd >= 0 && fsync(fd) == 0 ? 0 : errno;

    if (fd >= 0)
        close(fd);
    errno = RK_FAULT("file.sync_dir") ? EIO : error;
    return errno != 0 ? rk_file_errno("syncing directory", dir) : NULL;
}

static struct rk_status *sync_directory_of(const char *path)
{
    char *dir = rk_path_dir(path);
    struct rk_status *st = rk_file_sync_dir(dir);

    rk_free(dir);
    return st;
}

struct rk_status *rk_pending_file_commit(struct rk_pending_file *file)
{
    int fd = file->fd;

    RK_ASSERT(file->temp_path != NULL);
    RK_TRY(sync_data(file));
    file->fd = -1;
    if (close(fd) != 0) /* network file systems report a full disk here */
        return rk_file_errno("closing", file->path);
    if (RK_FAULT("file.rename")) {
        errno = EIO;
        return rk_file_errno("renaming to", file->path);
    }
    if (rename(file->temp_path, file->path) != 0)
        return rk_file_errno("renaming to", file->path);
    rk_free(file->temp_path);
    file->temp_path = NULL;
    return sync_directory_of(file->path);
}

void rk_pending_file_discard(struct rk_pending_file *file)
{
    if (file->fd >= 0)
        close(file->fd);
    if (file->temp_path)
        unlink(file->temp_path);
    rk_free(file->temp_path);
    rk_free(file->path);
    *file = (struct rk_pending_file){.fd = -1};
}

struct rk_status *rk_write_file_atomic(const char *path, const void *data, size_t bytes)
{
    struct rk_pending_file file;
    struct rk_status *st;

    RK_TRY_GOTO(st, rk_pending_file_open(&file, path), out);
    RK_TRY_GOTO(st, rk_pending_file_pwrite(&file, data, bytes, 0), out);
    RK_TRY_GOTO(st, rk_pending_file_commit(&file), out);

out:
    rk_pending_file_discard(&file);
    return st;
}

struct rk_status *rk_path_check(const char *path, bool is_new)
{
    char *shown = rk_str_printable(path, "");
    struct rk_status *st = NULL;

    if (is_new && strcmp(shown, path) != 0)
        st = RK_FAIL(RK_INVALID_ARGUMENT, "path '%s': has a control character", shown);
    for (const char *name = path; !st && *name; name += strspn(name, "/")) {
        size_t bytes = strcspn(name, "/");

        if (bytes > NAME_MAX)
            st = RK_FAIL(RK_INVALID_ARGUMENT, "path '%s': a name in it has %zu bytes, expected at most %d",
                         shown, bytes, NAME_MAX);
        name += bytes;
    }
    rk_free(shown);
    return st;
}
