/* Addresses: what rpc.listen and the keys like it may be, who can reach it, and why binding failed. */
#ifndef RK_LISTEN_INTERNAL_H
#define RK_LISTEN_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_status.h"

#define RK_UNIX_PATH_BYTES 107 /* of struct sockaddr_un, without the terminator */

struct rk_listen {
    const char *key; /* "rpc.listen", for messages; static */
    bool is_unix;    /* a path, or a name in the abstract namespace */
    bool is_abstract;
    bool is_local;                     /* other hosts cannot reach it */
    char host[64];                     /* TCP: literal address, IPv6 without brackets */
    uint16_t port;                     /* TCP: 0 lets the kernel choose */
    char name[RK_UNIX_PATH_BYTES + 1]; /* Unix */
};

/* Value of the key: "HOST:PORT" (a host name is resolved here, so that what is checked is what is bound),
 * "unix:/PATH", "unix-abstract:NAME". UNAVAILABLE when the name server does not answer: that may pass. */
struct rk_status *rk_listen_parse(struct rk_listen *out, const char *key, const char *text) RK_NODISCARD;
/* What others can reach needs TLS, and certificates or tokens of who calls, or an explicit wish; so does what
 * every local user reaches without a file's permissions in between, but for TLS. */
struct rk_status *rk_listen_check_policy(const struct rk_listen *listen, bool is_insecure, bool has_tls,
                                         bool asks_certificates, bool has_tokens) RK_NODISCARD;
/* The value of comm.listen, or what follows from rpc.listen: a host whose peers can be told its address, so
 * not the one that means "all". */
struct rk_status *rk_listen_check_peer_host(const char *host) RK_NODISCARD;
/* Whether one of them would take the address of the other. */
bool rk_listen_is_same(const struct rk_listen *a, const struct rk_listen *b);
/* Binds and lets go. Reason ADDRESS_IN_USE when another process has it;
 * UNAVAILABLE when no interface has the address (yet). */
struct rk_status *rk_listen_probe(const struct rk_listen *listen) RK_NODISCARD;
/* Binds and listens; errors as rk_listen_probe. *fd receives a non-blocking socket, *port the one that the
 * kernel chose, or the given one. A socket file is readable and writable for owner and group; one that is
 * there already is replaced, so take the lock beside it first. */
struct rk_status *rk_listen_open(int *fd, int *port, const struct rk_listen *to, int backlog) RK_NODISCARD;
/* As clients take it, and as people read it; rk_free it. */
char *rk_listen_format(const struct rk_listen *listen, int port);

#endif
