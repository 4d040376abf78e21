/* Small files of the control plane: host lists, tokens, tokenizer files, run directories. */
#ifndef RK_FILES_INTERNAL_H
#define RK_FILES_INTERNAL_H

#include <stddef.h>

#include "base/rk_status.h"

/* The whole file, terminated; rk_free it. NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED over max_bytes. */
struct rk_status *rk_load_file(char **out, size_t *bytes, const char *path, size_t max_bytes) RK_NODISCARD;
/* Creates the directory and its parents; one that exists is fine. */
struct rk_status *rk_make_dirs(const char *path) RK_NODISCARD;
/* Copies a small file; a missing source is no error. */
struct rk_status *rk_copy_if_there(const char *from_dir, const char *to_dir, const char *name) RK_NODISCARD;
/* "base/path" unless path is absolute; rk_free it. */
char *rk_resolve_path(const char *base, const char *path);
/* Status for errno after `action` on `path`. */
struct rk_status *rk_errno_status(const char *action, const char *path) RK_NODISCARD;

#endif
