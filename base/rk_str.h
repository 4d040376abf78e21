/* Bounded string builder and small string helpers. */
#ifndef RK_STR_H
#define RK_STR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rk_compiler.h"

RK_BEGIN_DECLS

/* Zero-initialise; rk_str_fini releases. `text` is always terminated once something was appended; use
 * rk_str_text() to read a builder that may be empty. */
struct rk_str {
    char *text;
    size_t bytes; /* without the terminator */
    size_t capacity;
};

void rk_str_fini(struct rk_str *str);
void rk_str_clear(struct rk_str *str);
void rk_str_append(struct rk_str *str, const char *text);
void rk_str_append_bytes(struct rk_str *str, const char *data, size_t bytes);
/* Appends data with U+FFFD for each maximal subpart that is not UTF-8. */
void rk_str_append_utf8(struct rk_str *str, const char *data, size_t bytes);
void rk_str_appendf(struct rk_str *str, const char *fmt, ...) RK_PRINTF(2, 3);
void rk_str_vappendf(struct rk_str *str, const char *fmt, va_list args) RK_PRINTF(2, 0);
const char *rk_str_text(const struct rk_str *str); /* "" when nothing was appended */
char *rk_str_take(struct rk_str *str);             /* ownership of the text (rk_free), empties the builder */

/* printf into a new string, rk_free it. */
char *rk_format(const char *fmt, ...) RK_PRINTF(1, 2);
/* "a/b" with exactly one slash between; rk_free it. */
char *rk_path_join(const char *dir, const char *name);
/* The directory that `path` is in: "a" of "a/b", "/" of "/b", "." of "b"; rk_free it. */
char *rk_path_dir(const char *path);
bool rk_str_has_prefix(const char *text, const char *prefix);
bool rk_str_has_suffix(const char *text, const char *suffix);
/* True when data is valid UTF-8 (no surrogates, no overlong forms) without NUL. */
bool rk_utf8_is_valid(const char *data, size_t bytes);
/* Bytes of the character at data, NUL included; of an ill-formed character the bytes of its maximal subpart
 * (Unicode 15, section 3.9), at least 1. bytes > 0. */
size_t rk_utf8_part(const char *data, size_t bytes, bool *is_valid);
/* Code point at `text`, which is valid UTF-8, and its bytes. */
static inline int32_t rk_utf8_read(const char *text, int *bytes)
{
    const uint8_t *p = (const uint8_t *)text;

    if (p[0] < 0x80) {
        *bytes = 1;
        return p[0];
    }
    if (p[0] < 0xe0) {
        *bytes = 2;
        return (p[0] & 0x1f) << 6 | (p[1] & 0x3f);
    }
    if (p[0] < 0xf0) {
        *bytes = 3;
        return (p[0] & 0x0f) << 12 | (p[1] & 0x3f) << 6 | (p[2] & 0x3f);
    }
    *bytes = 4;
    return (p[0] & 0x07) << 18 | (p[1] & 0x3f) << 12 | (p[2] & 0x3f) << 6 | (p[3] & 0x3f);
}
/* Appends the UTF-8 of a code point, 0 to 0x10ffff. */
void rk_utf8_append(struct rk_str *str, int32_t code);
/* `text` with control characters as \xHH, except those in `kept`: terminals interpret them; rk_free it. */
char *rk_str_printable(const char *text, const char *kept);
/* Bytes of the control character at the start of valid UTF-8: 1 for C0 and DEL, 2 for C1, which terminals
 * also interpret; 0 for another character. */
int rk_utf8_control_bytes(const char *text);
/* Edit distance (Levenshtein), capped at `cap`. For "did you mean". */
int rk_str_distance(const char *a, const char *b, int cap);
/* The candidate closest to `text` within distance 2, or NULL. */
const char *rk_str_suggest(const char *text, const char *const *candidates, int64_t num_candidates);
/* Whole-string numbers; false on garbage, overflow or an empty string. */
bool rk_parse_i64(const char *text, int64_t *out);
bool rk_parse_f64(const char *text, double *out);
/* "8GiB", "512KiB", "5GB", "1000B" -> bytes (KiB to TiB are powers of 1024, KB to TB of 1000); "30s",
 * "10min", "500ms", "1h" -> milliseconds. Whole numbers; a unit is required (except for 0). */
bool rk_parse_bytes(const char *text, int64_t *out);
bool rk_parse_duration_ms(const char *text, int64_t *out);

RK_END_DECLS

#endif
