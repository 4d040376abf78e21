#include "driver/identity_internal.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_log.h"
#include "base/rk_random.h"
#include "base/rk_rng.h"
#include "base/rk_str.h"
#include "base/rk_small_file.h"

#define NAME_BYTES 8 /* of the hash of the addresses */
#define OLD_S      (30 * 24 * 3600LL)

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

/* A name that is the same for every order of the addresses. */
static void name_of_addresses(char out[2 * NAME_BYTES + 1], const char *const *addresses, int32_t count)
{
    uint64_t sum = 0;

    for (int32_t i = 0; i < count; i++)
        sum += rk_rng_stream_of_name(addresses[i]);
    rk_hex(&sum, NAME_BYTES, out);
}

static void keep_in(struct rk_identity *identity, const char *dir, const char *const *addresses,
                    int32_t count)
{
    char host[256] = {0}, daemons[2 * NAME_BYTES + 1], *text, *name, *path;
    int fd;

    if (gethostname(host, sizeof(host) - 1) != 0)
        return;
    name_of_addresses(daemons, addresses, count);
    text = rk_format("driver-%s-%s.key", host, daemons);
    name = rk_file_name_of(text);
    path = rk_path_join(dir, name);
    fd = lock_file(path);
    if (fd >= 0 && share_key(identity, fd))
        identity->fd = fd;
    else if (fd >= 0)
        close(fd);
    rk_free(path);
    rk_free(name);
    rk_free(text);
}

/* Removes keys that no driver has used for a month: the leases they prove have ended. */
static void remove_old(const char *dir_path)
{
    DIR *dir = opendir(dir_path);
    struct dirent *entry;
    struct stat info;

    while (dir && (entry = readdir(dir)) != NULL) {
        if (rk_str_has_prefix(entry->d_name, "driver-") && rk_str_has_suffix(entry->d_name, ".key") &&
            fstatat(dirfd(dir), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
            time(NULL) - info.st_mtime > OLD_S)
            unlinkat(dirfd(dir), entry->d_name, 0);
    }
    if (dir)
        closedir(dir);
}

struct rk_status *rk_identity_open(struct rk_identity *out, const char *dir, const char *const *addresses,
                                   int32_t num_addresses)
{
    struct rk_status *st;

    *out = (struct rk_identity){.fd = -1};
    RK_TRY(rk_random_bytes(out->key, sizeof(out->key)));
    if (!dir)
        return NULL;
    st = rk_make_dirs(dir);
    if (st) {
        RK_IGNORE(st, "without the directory the identity ends with this process");
        return NULL;
    }
    remove_old(dir);
    keep_in(out, dir, addresses, num_addresses);
    if (out->fd >= 0)
        (void)futimens(out->fd, NULL); /* it is in use */
    return NULL;
}

void rk_identity_close(struct rk_identity *identity)
{
    if (identity->fd >= 0)
        close(identity->fd);
    identity->fd = -1;
}
