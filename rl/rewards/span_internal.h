/* Text with the semantics of verl's rewards: Python's strings are code points, rankd's are UTF-8. All text
 * here is valid UTF-8 and may hold NUL. */
#ifndef RK_REWARD_SPAN_INTERNAL_H
#define RK_REWARD_SPAN_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rk_str.h"

/* A borrowed piece of text. */
struct rk_span {
    const char *data;
    size_t bytes;
};

#define RK_SPAN_NONE SIZE_MAX /* an offset: not found */

struct rk_span rk_span_of(const char *terminated);
struct rk_span rk_span_of_str(const struct rk_str *str);
/* From `begin` to before `end`; both are offsets in the text. */
struct rk_span rk_span_slice(struct rk_span text, size_t begin, size_t end);
bool rk_span_equal(struct rk_span a, struct rk_span b);
bool rk_span_begins_with(struct rk_span text, const char *prefix);
/* Offset of the first (last) occurrence, RK_SPAN_NONE without one. */
size_t rk_span_find(struct rk_span text, size_t from, const char *needle);
size_t rk_span_find_last(struct rk_span text, const char *needle);
int64_t rk_span_count(struct rk_span text, const char *needle); /* occurrences that do not overlap */

/* Bytes of the code point at an offset inside the text. */
size_t rk_span_char_bytes(struct rk_span text, size_t at);
/* The last `count` code points. */
struct rk_span rk_span_last_chars(struct rk_span text, int64_t count);
int64_t rk_span_num_chars(struct rk_span text);
/* Bytes of the white space character (Python's str.isspace) at the offset, 0 for another character. */
size_t rk_span_space_bytes(struct rk_span text, size_t at);
/* Without white space at both ends. */
struct rk_span rk_span_strip(struct rk_span text);

/* Replaces every occurrence, from left to right. */
void rk_span_replace(struct rk_str *str, const char *from, const char *to);
/* Sets the builder to `text`, which may be a part of the builder's text. */
void rk_span_assign(struct rk_str *str, struct rk_span text);

/* From the last "\boxed{" (or another `opening` that ends in a brace) to its matching brace, both included;
 * bytes 0 when there is none. `from` is where it is searched. */
struct rk_span rk_span_matching_braces(struct rk_span text, size_t from);

#endif
