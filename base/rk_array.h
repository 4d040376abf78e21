/* Growable array: struct { T *items; int64_t count, capacity; } with an abort-on-exhaustion append. For the
 * control plane only; bound the count before you append data of a peer. */
#ifndef RK_ARRAY_H
#define RK_ARRAY_H

#include <stdint.h>

#include "base/rk_alloc.h"

#define RK_ARRAY(T)       \
    struct {              \
        T *items;         \
        int64_t count;    \
        int64_t capacity; \
    }

/* Appends the value; evaluates `array` more than once. */
#define rk_array_append(array, ...)                                                              \
    do {                                                                                         \
        if ((array)->count == (array)->capacity) {                                               \
            (array)->capacity = (array)->capacity ? 2 * (array)->capacity : 8;                   \
            (array)->items =                                                                     \
                rk_realloc((array)->items, (size_t)(array)->capacity * sizeof(*(array)->items)); \
        }                                                                                        \
        (array)->items[(array)->count++] = __VA_ARGS__;                                          \
    } while (0)

#define rk_array_fini(array)                    \
    do {                                        \
        rk_free((array)->items);                \
        (array)->items = NULL;                  \
        (array)->count = (array)->capacity = 0; \
    } while (0)

#endif
