/* Certificates of a private authority: ECDSA keys on P-256, as PEM. */
#ifndef RK_CERTS_H
#define RK_CERTS_H

#include <stdint.h>

#include "base/rk_status.h"

RK_BEGIN_DECLS

typedef enum rk_cert_use {
    RK_CERT_AUTHORITY, /* signs other certificates, which cannot sign */
    RK_CERT_HOST,      /* a server, and a client of other hosts */
    RK_CERT_CLIENT
} rk_cert_use_t;

#define RK_CERT_NAME_BYTES 253 /* of a name at most, as DNS has it */

struct rk_cert_spec {
    rk_cert_use_t use;
    const char *common_name; /* of 1 to 64 printable ASCII characters, informative */
    /* Subject alternative names: DNS names, addresses (IPv4 or IPv6) or URIs ("spiffe://..."), by their
     * syntax.
     */
    const char *const *names;
    int32_t num_names;
    int64_t from_s, until_s; /* valid, seconds since 1970 */
};

struct rk_cert {
    char *cert, *key; /* PEM */
};

/* Makes a certificate with a new key, signed by `authority`; NULL: by itself. INVALID_ARGUMENT for an invalid
 * name. */
struct rk_status *rk_cert_make(struct rk_cert *out, const struct rk_cert_spec *spec,
                               const struct rk_cert *authority) RK_NODISCARD;
void rk_cert_fini(struct rk_cert *cert);

RK_END_DECLS

#endif
