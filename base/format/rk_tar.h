/* A writer of tar files: plain files in memory, in the POSIX ustar format that every tar reads. */
#ifndef RK_TAR_H
#define RK_TAR_H

#include <stddef.h>
#include <stdint.h>

#include "base/rk_status.h"

#define RK_TAR_NAME_BYTES 100 /* longest name of a member */

struct rk_tar;

/* Makes the file, readable by its owner only. ALREADY_EXISTS when there is one. */
struct rk_status *rk_tar_create(struct rk_tar **out, const char *path) RK_NODISCARD;
/* Adds a file of `bytes` bytes (below 8 GiB), modified at `unix_s`. `name` is relative, at most
 * RK_TAR_NAME_BYTES bytes long. */
struct rk_status *rk_tar_add(struct rk_tar *tar, const char *name, const void *data, size_t bytes,
                             int64_t unix_s) RK_NODISCARD;
/* Ends the file and frees the writer, on failure too; with `st` (ownership is taken), or if it fails itself,
 * the file is removed.
 */
struct rk_status *rk_tar_finish(struct rk_tar *tar, struct rk_status *st) RK_NODISCARD;

#endif
