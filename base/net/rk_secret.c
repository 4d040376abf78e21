#include "base/net/rk_secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_random.h"
#include "base/rk_small_file.h"
#include "base/rk_str.h"

#define TOKEN_BYTES 32

struct rk_status *rk_make_token(char **line)
{
    char text[2 * TOKEN_BYTES + 1];
    uint8_t bytes[TOKEN_BYTES];

    *line = NULL;
    RK_TRY(rk_random_bytes(bytes, sizeof(bytes)));
    *line = rk_format("admin:%s\n", rk_hex(bytes, sizeof(bytes), text));
    explicit_bzero(bytes, sizeof(bytes));
    explicit_bzero(text, sizeof(text));
    return NULL;
}

struct rk_status *rk_write_secret(const char *path, const char *text, mode_t mode)
{
    char *early = rk_format("%s.new", path);
    size_t bytes = strlen(text);
    ssize_t written = -1;
    bool is_written;
    int fd, error;

    unlink(early); /* of a process that was killed here */
    fd = open(early, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0)
        written = write(fd, text, bytes);
    is_written = written == (ssize_t)bytes && fchmod(fd, mode) == 0 && rename(early, path) == 0;
    error = written >= 0 && written < (ssize_t)bytes ? ENOSPC : errno;
    if (fd >= 0)
        close(fd);
    if (fd >= 0 && !is_written)
        unlink(early);
    rk_free(early);
    return is_written ? NULL : RK_FAIL(RK_INTERNAL, "cannot write '%s': %s", path, strerror(error));
}

struct rk_status *rk_read_token(char **out, const char *path, mode_t mode)
{
    struct rk_status *st = NULL;
    struct stat info;
    char *text;

    *out = NULL;
    RK_TRY(rk_load_file(&text, NULL, path, RK_TOKEN_FILE_BYTES_MAX));
    text[strcspn(text, "\r\n")] = '\0';
    if (stat(path, &info) == 0 && (info.st_mode & 0077 & ~mode) != 0)
        st = RK_FAIL(RK_INVALID_ARGUMENT, "token file '%s' is accessible by %s (mode %04o); expected %04o",
                     path, mode & 0070 ? "others, or can be changed by the group" : "group or others",
                     (unsigned)info.st_mode & 0777u, (unsigned)mode);
    for (const char *byte = text; !st && *byte; byte++) {
        if (*byte < '!' || *byte > '~')
            st = RK_FAIL(RK_INVALID_ARGUMENT,
                         "token file '%s': expected a token of printable ASCII characters", path);
    }
    if (!st && !*text)
        st = RK_FAIL(RK_INVALID_ARGUMENT, "token file '%s' is empty", path);
    if (st)
        rk_free(text);
    else
        *out = text;
    return st;
}
