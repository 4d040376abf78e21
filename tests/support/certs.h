/* Certificates for tests: a private authority and what it signs, as files in the test's directory. */
#ifndef RK_TEST_CERTS_H
#define RK_TEST_CERTS_H

#include "base/rk_certs.h"
#include "base/rk_tls.h"

RK_BEGIN_DECLS

/* What to make; zeroed: valid for an hour, signed by `authority` of the call. */
struct rk_test_cert_spec {
    const char *file; /* FILE.crt and FILE.key are written; the key has mode 0600 */
    rk_cert_use_t use;
    const char *names[4];    /* ends with NULL */
    int64_t from_s, until_s; /* from now on; both 0: -1 hour to +1 hour */
};

/* NULL signs it by itself. */
struct rk_cert rk_test_make_cert(const struct rk_test_cert_spec *spec, const struct rk_cert *authority);
/* Path of FILE.SUFFIX in the test's directory. Borrowed, for ever. */
const char *rk_test_cert_path(const char *file, const char *suffix);
/* FILE.crt and FILE.key (`file` NULL: none), and CA.crt (NULL: none), with the prefix "tls_". */
struct rk_tls_files rk_test_tls_files(const char *file, const char *ca);
/* ca.*, host.* for 127.0.0.1 and localhost, client.* for "alice", and other_ca.*, which has signed none. */
void rk_test_make_certs(void);

RK_END_DECLS

#endif
