/* Shared by rk_json.c (values, over jansson) and rk_json_text.c (text, without it). */
#ifndef RK_JSON_INTERNAL_H
#define RK_JSON_INTERNAL_H

#include "base/rk_json.h"
#include "base/rk_str.h"

/* True when brackets nest deeper than RK_JSON_MAX_DEPTH. Works on any bytes; checked before parsing, so that
 * the parser's recursion is bounded. */
bool rk_json_is_too_deep(const char *text, size_t bytes);
/* Copy of `text`, with RK_JSON_BIG_INT_AS_REAL with reals instead of integers beyond 64 bits (".0" appended),
 * with RK_JSON_NAN_AS_NULL with null instead of NaN. */
void rk_json_mend(struct rk_str *out, const char *text, size_t bytes, uint32_t flags);
/* The path of the member or element at the offset, "a.b[3]"; "" at the root. Works on any bytes; rk_free it.
 */
char *rk_json_path_at(const char *text, size_t bytes, size_t offset);
#endif
