/* JSON Lines that a run appends to and a resumed run continues. */
#ifndef RK_JSONL_H
#define RK_JSONL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_json.h"
#include "base/rk_status.h"

struct rk_jsonl_line {
    int64_t number;             /* from 1 */
    int64_t end;                /* offset after its newline */
    const struct rk_json *json; /* borrowed */
};

/* Reads the lines that end with a newline, one after the other, until on_line returns false; a missing file
 * has no lines. INVALID_ARGUMENT "PATH:LINE: ..." for a line that is not JSON. */
struct rk_status *rk_jsonl_read(const char *path,
                                bool (*on_line)(void *user, const struct rk_jsonl_line *line),
                                void *user) RK_NODISCARD;
/* Truncates the file before the first line whose integer member `key` is at least `first`, and a line without
 * a newline at the end. */
struct rk_status *rk_jsonl_cut(const char *path, const char *key, int64_t first) RK_NODISCARD;

#endif
