#include "base/format/rk_tar.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_str.h"
#include "base/rk_file.h"

#define BLOCK_BYTES 512
#define RECORD      20 /* blocks: a file is a multiple of that long, which tapes want and tar warns about */
#define BYTES_MAX   ((size_t)1 << 33) /* 11 octal digits */

/* POSIX.1-1988, "ustar Interchange Format". Numbers are octal text. */
struct header {
    char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8], type, link[100], magic[6],
        version[2], owner[32], group[32], major[8], minor[8], prefix[155], unused[12];
};
_Static_assert(sizeof(struct header) == BLOCK_BYTES, "one block");

struct rk_tar {
    FILE *file;
    char *path;
    size_t num_blocks;
};

struct rk_status *rk_tar_create(struct rk_tar **out, const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    struct rk_tar *tar;

    *out = NULL;
    if (fd < 0 && errno == EEXIST)
        return RK_FAIL(RK_ALREADY_EXISTS, "'%s' exists already; use another file", path);
    if (fd < 0)
        return rk_file_errno("cannot create", path);
    tar = rk_calloc(1, sizeof(*tar));
    tar->file = fdopen(fd, "wb");
    RK_ASSERT(tar->file);
    tar->path = rk_strdup(path);
    *out = tar;
    return NULL;
}

static struct rk_status *put_blocks(struct rk_tar *tar, const void *data, size_t bytes)
{
    static const char zeros[BLOCK_BYTES];
    size_t rest = bytes % BLOCK_BYTES ? BLOCK_BYTES - bytes % BLOCK_BYTES : 0;

    if (fwrite(data, 1, bytes, tar->file) != bytes || fwrite(zeros, 1, rest, tar->file) != rest)
        return rk_file_errno("cannot write", tar->path);
    tar->num_blocks += (bytes + rest) / BLOCK_BYTES;
    return NULL;
}

struct rk_status *rk_tar_add(struct rk_tar *tar, const char *name, const void *data, size_t bytes,
                             int64_t unix_s)
{
    struct header header = {.magic = "ustar", .version = {'0', '0'}, .type = '0'};
    unsigned sum = 0;
    char text[16];

    RK_ASSERT(strlen(name) <= RK_TAR_NAME_BYTES);
    RK_ASSERT(name[0] && name[0] != '/');
    RK_ASSERT(bytes < BYTES_MAX);
    memcpy(header.name, name, strlen(name));
    memcpy(header.mode, "0000600", 8);
    memcpy(header.uid, "0000000", 8);
    memcpy(header.gid, "0000000", 8);
    snprintf(text, sizeof(text), "%011zo", bytes);
    memcpy(header.size, text, sizeof(header.size));
    snprintf(text, sizeof(text), "%011" PRIo64, (uint64_t)unix_s & 077777777777);
    memcpy(header.mtime, text, sizeof(header.mtime));
    memset(header.checksum, ' ', sizeof(header.checksum)); /* as which it counts in the sum */
    for (size_t i = 0; i < sizeof(header); i++)
        sum += ((const unsigned char *)&header)[i];
    snprintf(text, sizeof(text), "%06o", sum);
    memcpy(header.checksum, text, 7); /* with its NUL; a space follows */
    RK_TRY(put_blocks(tar, &header, sizeof(header)));
    return put_blocks(tar, data, bytes);
}

/* Two empty blocks at least, up to a whole record. */
static struct rk_status *put_end(struct rk_tar *tar)
{
    static const char zeros[BLOCK_BYTES];
    size_t end = (tar->num_blocks + 2 + RECORD - 1) / RECORD * RECORD;

    while (tar->num_blocks < end)
        RK_TRY(put_blocks(tar, zeros, BLOCK_BYTES));
    return NULL;
}

struct rk_status *rk_tar_finish(struct rk_tar *tar, struct rk_status *st)
{
    if (!tar)
        return st;
    if (!st)
        st = put_end(tar);
    if (fclose(tar->file) != 0 && !st)
        st = rk_file_errno("cannot write", tar->path);
    if (st)
        unlink(tar->path);
    rk_free(tar->path);
    rk_free(tar);
    return st;
}
