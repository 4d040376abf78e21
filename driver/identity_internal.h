/* The key by which a driver proves that a lease was granted to it: 16 secret bytes.
 *
 * A directory keeps one for every list of daemons that a user of a host drives: file driver-HOST-DAEMONS.key,
 * locked by the driver that uses it. A driver that is started again with the same daemons, in any order,
 * after it was killed or lost one of them has the same identity, whatever other drivers run. A second driver
 * of the same daemons at the same time has one of its own, which is not kept. A key that was not used for a
 * month is removed.
 */
#ifndef RK_IDENTITY_INTERNAL_H
#define RK_IDENTITY_INTERNAL_H

#include <stdint.h>

#include "base/rk_status.h"

#define RK_IDENTITY_BYTES 16

struct rk_identity {
    int fd; /* the locked file; -1: known to this process only */
    uint8_t key[RK_IDENTITY_BYTES];
};

/* `dir` NULL, one that cannot be written, or whose file is locked: a new identity that is not kept. */
struct rk_status *rk_identity_open(struct rk_identity *out, const char *dir, const char *const *addresses,
                                   int32_t num_addresses) RK_NODISCARD;
void rk_identity_close(struct rk_identity *identity);

#endif
