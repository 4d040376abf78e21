/* Host memory: the only file that turns exhaustion into an abort (small objects) or a status (rk_try_alloc).
 */
#include "base/rk_alloc.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/rk_assert.h"

#define LARGE_PAGE_BYTES ((size_t)2 << 20)

/* Calls left until rk_try_alloc fails once; 0 means that injection is off. */
static atomic_int_least64_t fail_countdown;

void *rk_malloc(size_t bytes)
{
    void *ptr = malloc(bytes ? bytes : 1);

    RK_ASSERT(ptr != NULL);
    return ptr;
}

void *rk_calloc(size_t count, size_t elem_bytes)
{
    size_t bytes;
    void *ptr;

    RK_ASSERT(rk_mul_size(count, elem_bytes, &bytes));
    ptr = calloc(1, bytes ? bytes : 1);
    RK_ASSERT(ptr != NULL);
    return ptr;
}

void *rk_realloc(void *ptr, size_t bytes)
{
    void *grown = realloc(ptr, bytes ? bytes : 1);

    RK_ASSERT(grown != NULL);
    return grown;
}

char *rk_strdup(const char *text)
{
    return text ? rk_strndup(text, strlen(text)) : NULL;
}

char *rk_strndup(const char *text, size_t max_bytes)
{
    size_t bytes;
    char *copy;

    if (!text)
        return NULL;
    bytes = strnlen(text, max_bytes);
    copy = rk_malloc(bytes + 1);
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    return copy;
}

void rk_free(void *ptr)
{
    free(ptr);
}

/* True when a test has set this call to fail. */
static bool injected_failure(void)
{
    int_least64_t left = atomic_load_explicit(&fail_countdown, memory_order_relaxed);

    return left > 0 && atomic_fetch_sub(&fail_countdown, 1) == 1;
}

/* A large buffer is filled once, and a page fault for every 4 KiB of it takes longer than the copy. The
 * system uses pages of 2 MiB for the aligned parts of it, where its configuration allows this. */
static void ask_for_large_pages(void *ptr, size_t bytes)
{
    uintptr_t begin = ((uintptr_t)ptr + LARGE_PAGE_BYTES - 1) / LARGE_PAGE_BYTES * LARGE_PAGE_BYTES;
    uintptr_t end = ((uintptr_t)ptr + bytes) / LARGE_PAGE_BYTES * LARGE_PAGE_BYTES;

    if (end > begin)
        (void)madvise((void *)begin, end - begin, MADV_HUGEPAGE); /* only a hint */
}

struct rk_status *rk_try_alloc(void **out, size_t bytes, const char *what)
{
    *out = NULL;
    /* No object is larger than PTRDIFF_MAX; sanitizers abort on such a request instead of refusing it. */
    if (!injected_failure() && bytes <= PTRDIFF_MAX)
        *out = calloc(1, bytes ? bytes : 1);
    if (!*out)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "%s: cannot allocate %zu bytes of host memory", what, bytes);
    if (bytes >= 2 * LARGE_PAGE_BYTES)
        ask_for_large_pages(*out, bytes);
    return NULL;
}

void rk_alloc_fail_after(int64_t nth)
{
    RK_ASSERT(nth >= 0);
    atomic_store(&fail_countdown, nth);
}
