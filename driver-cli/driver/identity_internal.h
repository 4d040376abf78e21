/* The key by which a driver proves that a lease was granted to it: 16 secret bytes.
 *
 * A directory keeps them for the drivers of one user on one host: file driver-HOST-N.key, locked by the
 * driver that uses it. The next driver takes the first file that is not locked, so that a driver that is
 * started again after it was killed, or after it lost a daemon, has the same identity. Two drivers that run
 * at the same time always have different ones. */
#ifndef RK_IDENTITY_INTERNAL_H
#define RK_IDENTITY_INTERNAL_H

#include <stdint.h>

#include "base/rk_status.h"

#define RK_IDENTITY_BYTES 16

struct rk_identity {
    int fd; /* the locked file; -1: known to this process only */
    uint8_t key[RK_IDENTITY_BYTES];
};

/* `dir` NULL, one that cannot be written, or without a file that is free: a new identity that is not kept.
 */
struct rk_status *rk_identity_open(struct rk_identity *out, const char *dir) RK_NODISCARD;
void rk_identity_close(struct rk_identity *identity);

#endif
