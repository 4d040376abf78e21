/* Who may call what: bearer tokens from a file, each with a role. */
#ifndef RK_AUTH_INTERNAL_H
#define RK_AUTH_INTERNAL_H

#include <stddef.h>

#include "base/rk_status.h"
#include "proto/rk_rpcs.h"

struct rk_auth;

/* path NULL: no tokens, everybody may do everything (local addresses). PERMISSION_DENIED when others could
 * read or write the file, INVALID_ARGUMENT naming the line that is wrong; the text of a line is never
 * repeated. */
struct rk_status *rk_auth_create(struct rk_auth **out, const char *path) RK_NODISCARD;
void rk_auth_destroy(struct rk_auth *auth); /* NULL is a no-op */
/* Checks the value of the metadata "authorization" (NULL when there is none). UNAUTHENTICATED, reason TOKEN,
 * or PERMISSION_DENIED, reason ROLE. */
struct rk_status *rk_auth_check(const struct rk_auth *auth, const char *header, size_t header_bytes,
                                rk_rights_t needed) RK_NODISCARD;

#endif
