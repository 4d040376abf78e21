/* Shared by the files of the filter table. */
#ifndef RK_FILTERS_INTERNAL_H
#define RK_FILTERS_INTERNAL_H

#include "text/chat/render_internal.h"

#define RK_FILTER(name) \
    static struct rk_status *name(struct rk_render *r, rk_value_t *out, const struct rk_row_call *call)

/* Member of the item by "name", "a.b" or a number; the item itself when the attribute is not given. */
struct rk_status *rk_filter_attribute(struct rk_render *r, rk_value_t attribute, rk_value_t item,
                                      rk_value_t *out) RK_NODISCARD;
/* The item for comparisons: strings in lower case unless case_sensitive. */
struct rk_status *rk_filter_fold(struct rk_render *r, rk_value_t item, bool case_sensitive,
                                 rk_value_t *out) RK_NODISCARD;

/* --- text_ops.c: shared by filters and methods --- */
struct rk_status *rk_text_replace(struct rk_render *r, const struct rk_text *text, const struct rk_text *old,
                                  const struct rk_text *new_text, int64_t count,
                                  rk_value_t *out) RK_NODISCARD;
/* str.splitlines() without line ends. */
struct rk_status *rk_text_lines(struct rk_render *r, const struct rk_text *text,
                                rk_value_t *out) RK_NODISCARD;
/* `text` with `left` and `right` characters of padding. */
struct rk_status *rk_text_pad(struct rk_render *r, const struct rk_text *text, int64_t left, int64_t right,
                              const struct rk_text *fill, rk_value_t *out) RK_NODISCARD;
struct rk_status *rk_text_center(struct rk_render *r, struct rk_text *text, int64_t width,
                                 const struct rk_text *fill, rk_value_t *out) RK_NODISCARD;
struct rk_status *rk_text_join(struct rk_render *r, const struct rk_text *separator, rk_value_t items,
                               bool strings_only, rk_value_t attribute, rk_value_t *out) RK_NODISCARD;

#endif
