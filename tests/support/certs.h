/* Certificates for tests: a private authority and the certificates that it signs, as files in the test's
 * directory. */
#ifndef RK_TEST_CERTS_H
#define RK_TEST_CERTS_H

#include "base/net/rk_certs.h"
#include "base/net/rk_tls.h"

RK_BEGIN_DECLS

/* Description of a certificate; zeroed: valid for an hour, signed by `authority` of the call. */
struct rk_test_cert_spec {
    const char *file; /* FILE.crt and FILE.key are written */
    rk_cert_use_t use;
    const char *names[4];    /* NULL-terminated */
    int64_t from_s, until_s; /* relative to now; both 0: -1 hour to +1 hour */
    unsigned key_mode;       /* of FILE.key; 0: 0600 */
};

/* NULL: self-signed. */
struct rk_cert rk_test_make_cert(const struct rk_test_cert_spec *spec, const struct rk_cert *authority);
/* Path of FILE.SUFFIX in the test's directory. Valid until the process ends. */
const char *rk_test_cert_path(const char *file, const char *suffix);
/* FILE.crt and FILE.key (`file` NULL: none), and CA.crt (NULL: none), with the prefix "tls_". */
struct rk_tls_files rk_test_tls_files(const char *file, const char *ca);
/* ca.*, host.* for 127.0.0.1 and localhost, client.* for "alice", and other_ca.*, which has signed none of
 * them. */
void rk_test_make_certs(void);
/* Creates certificates signed by the existing AUTHORITY.crt and AUTHORITY.key. */
void rk_test_make_signed(const char *authority, const struct rk_test_cert_spec *specs, size_t count);
/* Creates certificates for that use with one defect each: expired.*; open.*, whose key is readable by its
 * group; mixed.*, with the key of another certificate. Also second.*, of host "second.example", and
 * stranger.*, for "alice", signed by other_ca. */
void rk_test_make_wrong_certs(rk_cert_use_t use);
/* Writes FILE.crt and FILE.key (mode 0600) with at most `most` bytes of the files of two others. */
void rk_test_mix_certs(const char *file, const char *cert_of, const char *key_of, size_t most);

RK_END_DECLS

#endif
