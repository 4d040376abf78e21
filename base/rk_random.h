/* Secure random bytes, and bytes as text. */
#ifndef RK_RANDOM_H
#define RK_RANDOM_H

#include <stddef.h>

#include "base/rk_status.h"

RK_BEGIN_DECLS

/* From the kernel's generator. */
struct rk_status *rk_random_bytes(void *out, size_t bytes) RK_NODISCARD;
/* Lower-case hex into out (2 * bytes + 1). Returns out. */
char *rk_hex(const void *data, size_t bytes, char *out);

RK_END_DECLS

#endif
