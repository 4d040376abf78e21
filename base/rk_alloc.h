/* Host memory and checked arithmetic.
 *
 * rk_malloc, rk_calloc, rk_realloc and rk_strdup are for the small, bounded objects of the control plane:
 * they abort the process when memory is exhausted (docs/adr/0003). Allocations whose size depends on a peer,
 * a file or a model use rk_try_alloc, which returns RESOURCE_EXHAUSTED instead and takes part in fault
 * injection (rk_alloc_fail_after). */
#ifndef RK_ALLOC_H
#define RK_ALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rk_status.h"

RK_BEGIN_DECLS

void *rk_malloc(size_t bytes);                    /* never NULL; bytes 0 gives a unique pointer */
void *rk_calloc(size_t count, size_t elem_bytes); /* zeroed; aborts on overflow of the product */
void *rk_realloc(void *ptr, size_t bytes);
char *rk_strdup(const char *text); /* NULL gives NULL */
char *rk_strndup(const char *text, size_t max_bytes);
void rk_free(void *ptr);

/* Zeroed memory whose size comes from outside. *out is NULL on failure. `what` names it in the message. */
struct rk_status *rk_try_alloc(void **out, size_t bytes, const char *what) RK_NODISCARD;
/* Tests: the n-th (1-based) rk_try_alloc from now on fails, once. 0 switches off. Not thread-safe. */
void rk_alloc_fail_after(int64_t nth);

/* Checked size arithmetic: false on overflow, *out is then untouched. */
static inline bool rk_mul_size(size_t a, size_t b, size_t *out)
{
    size_t result;

    if (__builtin_mul_overflow(a, b, &result))
        return false;
    *out = result;
    return true;
}

static inline bool rk_add_size(size_t a, size_t b, size_t *out)
{
    size_t result;

    if (__builtin_add_overflow(a, b, &result))
        return false;
    *out = result;
    return true;
}

static inline bool rk_mul_i64(int64_t a, int64_t b, int64_t *out)
{
    int64_t result;

    if (__builtin_mul_overflow(a, b, &result))
        return false;
    *out = result;
    return true;
}

static inline bool rk_add_i64(int64_t a, int64_t b, int64_t *out)
{
    int64_t result;

    if (__builtin_add_overflow(a, b, &result))
        return false;
    *out = result;
    return true;
}

static inline size_t rk_round_up(size_t value, size_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

RK_END_DECLS

#endif
