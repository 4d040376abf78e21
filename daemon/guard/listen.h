/* Addresses of rpc.listen and similar keys: their syntax, their reachability, and errors of bind. */
#ifndef RK_DAEMON_LISTEN_H
#define RK_DAEMON_LISTEN_H

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

/* Value of the key: "HOST:PORT" (a host name is resolved here, so that the checked address is the bound one),
 * "unix:/PATH", "unix-abstract:NAME". UNAVAILABLE when the name server does not answer, which may be
 * temporary. */
struct rk_status *rk_listen_parse(struct rk_listen *out, const char *key, const char *text) RK_NODISCARD;
/* An address that other hosts can reach needs TLS, and certificates or tokens of clients, or rpc.insecure; an
 * abstract socket, which every local user can reach without file permissions, needs the same except TLS. */
struct rk_status *rk_listen_check_policy(const struct rk_listen *listen, bool is_insecure, bool has_tls,
                                         bool asks_certificates, bool has_tokens) RK_NODISCARD;
/* The value of comm.listen, or the default from rpc.listen: an address that peers can connect to, so
 * not a wildcard address. */
struct rk_status *rk_listen_check_peer_host(const char *host) RK_NODISCARD;
/* Whether one listener would take the address of the other. */
bool rk_listen_is_same(const struct rk_listen *a, const struct rk_listen *b);
/* Binds and releases the address. Reason ADDRESS_IN_USE when another process has it;
 * UNAVAILABLE when no interface has the address (yet). */
struct rk_status *rk_listen_probe(const struct rk_listen *listen) RK_NODISCARD;
/* Binds and listens; errors as rk_listen_probe. *fd receives a non-blocking socket, *port the one that the
 * kernel chose, or the given one. A socket file is readable and writable for owner and group; an existing
 * one that no process listens on is replaced. */
struct rk_status *rk_listen_open(int *fd, int *port, const struct rk_listen *to, int backlog) RK_NODISCARD;
/* The address in the form that clients accept and messages show; rk_free it. */
char *rk_listen_format(const struct rk_listen *listen, int port);

#endif
