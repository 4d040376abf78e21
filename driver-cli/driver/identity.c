#include "driver-cli/driver/identity_internal.h"

#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_hash.h"
#include "base/rk_log.h"
#include "base/rk_str.h"
#include "driver-cli/driver/files_internal.h"

#define FILES_MAX 16 /* drivers of one user and host at the same time that keep an identity */

/* Locked, and accessible only to this user; -1 when another driver has it, or it cannot be opened. */
static int lock_file(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    struct stat info;

    if (fd < 0)
        return -1;
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid() &&
        (info.st_mode & 077) == 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
        return fd;
    close(fd);
    return -1;
}

/* Takes the key out of the locked file, or puts the fresh one into a file that has none. */
static bool share_key(struct rk_identity *identity, int fd)
{
    uint8_t kept[RK_IDENTITY_BYTES];

    if (pread(fd, kept, sizeof(kept), 0) == (ssize_t)sizeof(kept)) {
        memcpy(identity->key, kept, sizeof(kept));
        return true;
    }
    return pwrite(fd, identity->key, sizeof(identity->key), 0) == (ssize_t)sizeof(identity->key);
}

static void keep_in(struct rk_identity *identity, const char *dir)
{
    char host[256] = {0};

    if (gethostname(host, sizeof(host) - 1) != 0)
        return;
    for (int i = 0; i < FILES_MAX && identity->fd < 0; i++) {
        char *text = rk_format("driver-%s-%d.key", host, i);
        char *name = rk_file_name_of(text), *path = rk_path_join(dir, name);
        int fd = lock_file(path);

        if (fd >= 0 && share_key(identity, fd))
            identity->fd = fd;
        else if (fd >= 0)
            close(fd);
        rk_free(path);
        rk_free(name);
        rk_free(text);
    }
}

struct rk_status *rk_identity_open(struct rk_identity *out, const char *dir)
{
    struct rk_status *st;

    *out = (struct rk_identity){.fd = -1};
    RK_TRY(rk_random_bytes(out->key, sizeof(out->key)));
    if (!dir)
        return NULL;
    st = rk_make_dirs(dir);
    if (st)
        RK_IGNORE(st, "without the directory the identity ends with this process");
    else
        keep_in(out, dir);
    return NULL;
}

void rk_identity_close(struct rk_identity *identity)
{
    if (identity->fd >= 0)
        close(identity->fd);
    identity->fd = -1;
}
