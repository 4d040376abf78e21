/* Tokens that drivers send to daemons. */
#ifndef RK_TOKEN_INTERNAL_H
#define RK_TOKEN_INTERNAL_H

#include "base/rk_status.h"

/* Contains the runtime directories of a host's daemons: RuntimeDirectory of the systemd units, and the
 * images. */
#define RK_TOKEN_ROOT "/run/rankd"

/* "Bearer TOKEN" from a file whose first line is TOKEN or, as in a daemon's token file, RIGHTS:TOKEN; rk_free
 * it. */
struct rk_status *rk_token_read(char **out, const char *path) RK_NODISCARD;
/* "Bearer TOKEN" of the token that the daemon at `address` has made: the file "token" beside its Unix socket,
 * else in the directory below `root` whose file "address" has this address. rk_free it. NULL: there is none,
 * or this user must not read it, so that the daemon will tell. */
char *rk_token_find(const char *address, const char *root);

#endif
