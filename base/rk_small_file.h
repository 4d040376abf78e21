/* Small files: host lists, tokenizer files, run directories. */
#ifndef RK_SMALL_FILE_H
#define RK_SMALL_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "base/rk_json.h"
#include "base/rk_status.h"

RK_BEGIN_DECLS

/* The whole file, terminated; rk_free it. As rk_file_read; `bytes` may be NULL. */
struct rk_status *rk_load_file(char **out, size_t *bytes, const char *path, size_t max_bytes) RK_NODISCARD;
/* All of standard input; rk_free it. */
struct rk_status *rk_load_stdin(char **out, size_t max_bytes) RK_NODISCARD;
/* A file as rk_file_open_read opens it; fclose it. */
struct rk_status *rk_open_input(FILE **out, const char *path) RK_NODISCARD;
/* Creates the directory and its parents; an existing one is accepted. Creates nothing if a name in the path
 * is one that rk_path_check refuses. */
struct rk_status *rk_make_dirs(const char *path) RK_NODISCARD;
/* DIR/NAME as JSON; *out is NULL when there is no such file. Flags of rk_json_parse. */
struct rk_status *rk_load_json_if_there(struct rk_json **out, const char *dir, const char *name,
                                        size_t max_bytes, uint32_t flags) RK_NODISCARD;
/* Copies a small file; a missing source is not an error. */
struct rk_status *rk_copy_if_there(const char *from_dir, const char *to_dir, const char *name) RK_NODISCARD;
/* "base/path" unless path is absolute; "~/" at its beginning is the home directory. rk_free it. */
char *rk_resolve_path(const char *base, const char *path);
/* rk_resolve_path for a program: a name without a slash is found through PATH, so it stays. rk_free it. */
char *rk_resolve_program(const char *base, const char *name);
/* `text` as the name of one file in a directory: without slashes, control characters, "." and
 * ".."; rk_free it. */
char *rk_file_name_of(const char *text);

RK_END_DECLS

#endif
