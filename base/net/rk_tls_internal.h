/* Private to base/net/rk_tls*.c. */
#ifndef RK_TLS_INTERNAL_H
#define RK_TLS_INTERNAL_H

#include <openssl/ssl.h>

#include "base/net/rk_tls.h"

/* The parsed texts. */
struct rk_tls_parts {
    X509 *cert;             /* NULL: none */
    STACK_OF(X509) * chain; /* after it */
    EVP_PKEY *key;
    STACK_OF(X509) * authorities; /* NULL: none */
};

struct rk_status *rk_tls_parse(struct rk_tls_parts *out, const struct rk_tls_pem *pem,
                               const struct rk_tls_files *files) RK_NODISCARD;
void rk_tls_parts_fini(struct rk_tls_parts *parts);

#define RK_TLS_DATE_BYTES 32
/* "2026-01-31 12:00 UTC" */
void rk_tls_format_date(char out[RK_TLS_DATE_BYTES], const ASN1_TIME *date);
/* The certificate's names, a line each, in `separator` instead of lines; rk_free it. */
char *rk_tls_names_of(X509 *cert, const char *separator);

/* A reference to the context of new connections; SSL_CTX_free it. */
SSL_CTX *rk_tls_take_context(struct rk_tls *tls);

#endif
