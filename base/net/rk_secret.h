/* Tokens that a daemon or a driver makes for daemons of one host. */
#ifndef RK_SECRET_H
#define RK_SECRET_H

#include <sys/types.h>

#include "base/rk_status.h"

RK_BEGIN_DECLS

/* The file beside a daemon's Unix socket in which drivers find the token. */
#define RK_TOKEN_NAME "token"
/* Beside it: the daemon's address, for one that is not the socket in this directory. */
#define RK_TOKEN_ADDRESS_NAME   "address"
#define RK_TOKEN_FILE_BYTES_MAX (64 << 10)

/* A line of a token file, "admin:TOKEN", with 256 random bits; rk_free it. */
struct rk_status *rk_make_token(char **line) RK_NODISCARD;
/* Creates or replaces a file; the file never has more permissions than `mode`. */
struct rk_status *rk_write_secret(const char *path, const char *text, mode_t mode) RK_NODISCARD;
/* The first line of a token file; rk_free it. INVALID_ARGUMENT when group or others have more rights than
 * `mode` gives them, or the line is empty or holds more than printable ASCII. */
struct rk_status *rk_read_token(char **out, const char *path, mode_t mode) RK_NODISCARD;

RK_END_DECLS

#endif
