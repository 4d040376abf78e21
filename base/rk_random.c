#include "base/rk_random.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

struct rk_status *rk_random_bytes(void *out, size_t bytes)
{
    uint8_t *p = out;

    while (bytes > 0) {
        ssize_t got = getrandom(p, bytes, 0);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return RK_FAIL(RK_INTERNAL, "getrandom of %zu bytes: %s", bytes, strerror(errno));
        p += got;
        bytes -= (size_t)got;
    }
    return NULL;
}

char *rk_hex(const void *data, size_t bytes, char *out)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *p = data;

    for (size_t i = 0; i < bytes; i++) {
        out[2 * i] = digits[p[i] >> 4];
        out[2 * i + 1] = digits[p[i] & 15];
    }
    out[2 * bytes] = '\0';
    return out;
}
