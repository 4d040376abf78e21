/* The kind of a file or directory that was given in place of a model's, with advice: predicates for messages,
 * "is a git-lfs pointer, not the file itself: run 'git lfs pull' ..." */
#ifndef RK_FILE_KIND_H
#define RK_FILE_KIND_H

#include <stdbool.h>
#include <stddef.h>

#include "base/rk_compiler.h"

RK_BEGIN_DECLS

/* The kind by a file's first bytes, up to RK_FILE_KIND_BYTES; NULL: a model's file, or unknown. */
#define RK_FILE_KIND_BYTES 64
const char *rk_file_kind_of(const void *data, size_t bytes);
/* The kind of a regular file; NULL also if it cannot be read. */
const char *rk_file_kind(const char *path);
/* What a path is that should be a directory with *.safetensors: a file, or a directory with something else
 * (adapter, GGUF, pickled weights, weight files that are git-lfs pointers); rk_free it. NULL if the directory
 * has weights, or nothing is known. */
char *rk_model_dir_kind(const char *path);
/* What a directory without tokenizer.json has instead; rk_free it, never NULL. */
char *rk_tokenizer_dir_kind(const char *path);

RK_END_DECLS

#endif
