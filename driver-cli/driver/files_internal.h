/* Small files of the control plane: host lists, tokens, tokenizer files, run directories. */
#ifndef RK_FILES_INTERNAL_H
#define RK_FILES_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "base/rk_json.h"
#include "base/rk_status.h"

/* The whole file, terminated; rk_free it. As rk_file_read; `bytes` may be NULL. */
struct rk_status *rk_load_file(char **out, size_t *bytes, const char *path, size_t max_bytes) RK_NODISCARD;
/* All of standard input; rk_free it. */
struct rk_status *rk_load_stdin(char **out, size_t max_bytes) RK_NODISCARD;
/* A file as rk_file_open_read opens it; fclose it. */
struct rk_status *rk_open_input(FILE **out, const char *path) RK_NODISCARD;
/* The first line of a token file; rk_free it. INVALID_ARGUMENT when group or others have more rights than
 * `mode` gives them, or the line is empty or holds more than printable ASCII. */
struct rk_status *rk_read_token(char **out, const char *path, mode_t mode) RK_NODISCARD;
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
/* The same for a program: a name without a slash is found through PATH, so it stays. rk_free it. */
char *rk_resolve_program(const char *base, const char *name);
/* `text` as the name of one file in a directory: without slashes, control characters, "." and
 * ".."; rk_free it. */
char *rk_file_name_of(const char *text);
/* Status for errno after `action` on `path`. */
struct rk_status *rk_errno_status(const char *action, const char *path) RK_NODISCARD;

/* --- JSON Lines that a run appends to (jsonl.c) --- */
struct rk_jsonl_line {
    int64_t number;             /* from 1 */
    int64_t end;                /* offset after its newline */
    const struct rk_json *json; /* borrowed */
};

/* Reads the lines that end with a newline, one after the other, until on_line returns false; a missing file
 * has none. INVALID_ARGUMENT "PATH:LINE: ..." for one that is not JSON. */
struct rk_status *rk_jsonl_read(const char *path,
                                bool (*on_line)(void *user, const struct rk_jsonl_line *line),
                                void *user) RK_NODISCARD;
/* Truncates the file before the first line whose integer member `key` is at least `first`, and a line without
 * a newline at the end. */
struct rk_status *rk_jsonl_cut(const char *path, const char *key, int64_t first) RK_NODISCARD;

#endif
