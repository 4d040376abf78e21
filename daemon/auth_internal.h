/* Authorisation: bearer tokens and names of certificates from a file, each with a role. A line is
 * ROLE:TOKEN, ROLE:TOKEN cert=NAME (the token is valid only on connections with that certificate), or
 * ROLE cert=NAME (the certificate alone, without a token). */
#ifndef RK_AUTH_INTERNAL_H
#define RK_AUTH_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/rk_status.h"
#include "proto/rk_rpcs.h"

struct rk_auth;

/* path NULL: no tokens, every client has all rights (local addresses). PERMISSION_DENIED when others could
 * read or write the file, INVALID_ARGUMENT naming the invalid line; the text of a line is never
 * repeated. */
struct rk_status *rk_auth_create(struct rk_auth **out, const char *path) RK_NODISCARD;
/* One token of an admin, which it makes and writes to the file "token" of `dir`, for the owner and the group,
 * as the socket is. Drivers that do not know the directory find it by the file "address". */
struct rk_status *rk_auth_create_generated(struct rk_auth **out, const char *dir,
                                           const char *address) RK_NODISCARD;
void rk_auth_destroy(struct rk_auth *auth); /* NULL is a no-op */
/* Whether the file has names of certificates. */
bool rk_auth_asks_names(const struct rk_auth *auth);

struct rk_credentials {
    const char *header; /* value of the metadata "authorization"; NULL: none */
    size_t header_bytes;
    const char *names; /* of the connection's certificate, a line each; NULL: none */
};

/* UNAUTHENTICATED, reason TOKEN; PERMISSION_DENIED, reason CERTIFICATE (the token is bound to another one) or
 * ROLE. *granted receives the rights of the credentials, at least `needed` unless an error is returned. */
struct rk_status *rk_auth_check(rk_rights_t *granted, const struct rk_auth *auth,
                                const struct rk_credentials *given, rk_rights_t needed) RK_NODISCARD;

#endif
