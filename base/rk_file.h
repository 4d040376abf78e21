/* Input files: the way in which files of users are opened for reading. Exceptions: rk_file_kind, which only
 * looks at a file's first bytes, and rk_auth_create, which follows no link. */
#ifndef RK_FILE_H
#define RK_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/rk_status.h"

RK_BEGIN_DECLS

/* Status for errno after `action` on `path`: NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED (reason
 * DISK_FULL for a full disk, quota or file-size limit), INVALID_ARGUMENT for a path of the wrong kind, else
 * INTERNAL. */
struct rk_status *rk_file_errno(const char *action, const char *path) RK_NODISCARD;
/* Opens a regular file, or what a link to one names. INVALID_ARGUMENT for a directory, pipe, socket or
 * device: they may have no end, and reading from them may wait for ever. Never waits for a writer. */
struct rk_status *rk_file_open_read(int *fd, const char *path) RK_NODISCARD;
/* The whole file, terminated (the terminator is not counted); rk_free it. RESOURCE_EXHAUSTED over max_bytes.
 */
struct rk_status *rk_file_read(char **out, size_t *bytes, const char *path, size_t max_bytes) RK_NODISCARD;
/* Writes the file under a temporary name, which is synced and renamed: a reader sees the old file or the new
 * one. */
struct rk_status *rk_write_file_atomic(const char *path, const void *data, size_t bytes) RK_NODISCARD;

/* INVALID_ARGUMENT for a name that no file system takes, and in the path of a new file for one that terminals
 * interpret. */
struct rk_status *rk_path_check(const char *path, bool is_new) RK_NODISCARD;

RK_END_DECLS

#endif
