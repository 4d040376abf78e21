/* TLS: certificates and keys from files, connections over a socket of the caller, and messages about problems
 * of both. Certificates are PEM, TLS is 1.2 or later, sessions are never resumed: every
 * connection checks its peer. */
#ifndef RK_TLS_H
#define RK_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/rk_status.h"

RK_BEGIN_DECLS

/* --- files --- */

/* Paths, and how messages name them: with the prefix "rpc.tls_" a message begins "rpc.tls_key '/etc/x.key':".
 */
struct rk_tls_files {
    const char *cert; /* certificate of this side, then intermediate certificates; NULL: none */
    const char *key; /* its private key, accessible only to its owner, without a passphrase; only with cert */
    const char *ca;  /* authorities whose certificates are trusted; NULL: none */
    const char *prefix;
};

/* Contents of the files; NULL for an unset path. */
struct rk_tls_pem {
    char *cert, *key, *ca;
};

/* Reads and checks each file, and whether key and certificate match and are valid
 * now. INVALID_ARGUMENT, PERMISSION_DENIED (others can read the key) or NOT_FOUND, with the file. `out` is
 * empty on failure. */
struct rk_status *rk_tls_pem_read(struct rk_tls_pem *out, const struct rk_tls_files *files) RK_NODISCARD;
void rk_tls_pem_fini(struct rk_tls_pem *pem);

/* --- the context of new connections --- */

struct rk_tls;

/* Reads the files; errors as rk_tls_pem_read. */
struct rk_status *rk_tls_create(struct rk_tls **out, const struct rk_tls_files *files) RK_NODISCARD;
/* Any thread: new connections use the current content of the files, on failure the previous
 * content. Existing connections continue unchanged. */
struct rk_status *rk_tls_reload(struct rk_tls *tls, const struct rk_tls_files *files) RK_NODISCARD;
/* After all its connections. NULL is a no-op. */
void rk_tls_destroy(struct rk_tls *tls);
/* Until when the certificate is valid, seconds since 1970; INT64_MAX without one. */
int64_t rk_tls_expires_s(struct rk_tls *tls);

/* --- connections --- */

struct rk_tls_conn;

typedef enum rk_tls_demand {
    RK_TLS_PEER_ANY,      /* the client is not asked for a certificate */
    RK_TLS_PEER_OPTIONAL, /* a certificate is checked if the client has one */
    RK_TLS_PEER_REQUIRED
} rk_tls_demand_t;

typedef enum rk_tls_step { RK_TLS_DONE, RK_TLS_WAITS, RK_TLS_FAILED } rk_tls_step_t;

/* The accepting side. The caller keeps the socket and closes it after the connection's end; no call blocks on
 * it in any mode. */
struct rk_tls_conn *rk_tls_accept(struct rk_tls *tls, int fd, rk_tls_demand_t demand);
/* The side that connects. The peer's certificate must contain `host`, a name or an address; NULL: not
 * checked. `speaks_http2`: offers "h2" (ALPN). */
struct rk_tls_conn *rk_tls_connect(struct rk_tls *tls, int fd, const char *host, bool speaks_http2);
/* Sends close_notify if that is possible without waiting. NULL is a no-op. */
void rk_tls_conn_destroy(struct rk_tls_conn *conn);
/* One step of the handshake; RK_TLS_WAITS: for the socket. */
rk_tls_step_t rk_tls_shake(struct rk_tls_conn *conn);
/* The handshake waits to send, and not to receive. */
bool rk_tls_waits_to_send(const struct rk_tls_conn *conn);
/* As recv and send with MSG_DONTWAIT and MSG_NOSIGNAL, after the handshake. 0 of rk_tls_recv: the peer has
 * closed. -1 with EAGAIN: not now; the same data, or more, must be passed again. -1 with
 * EPROTO: rk_tls_error has the reason. */
ssize_t rk_tls_recv(struct rk_tls_conn *conn, void *data, size_t bytes);
ssize_t rk_tls_send(struct rk_tls_conn *conn, const void *data, size_t bytes);
/* The last rk_tls_recv took all received data. */
bool rk_tls_is_drained(const struct rk_tls_conn *conn);
/* The peer closed, in the handshake or after it. */
bool rk_tls_has_closed(const struct rk_tls_conn *conn);
/* The reason of a failure, "" without one. Borrowed. */
const char *rk_tls_error(const struct rk_tls_conn *conn);
/* Names of the peer's verified certificate, one per line: the DNS names, addresses, URIs and e-mail
 * addresses that it is for, else its common name. "" without a certificate. rk_free it. */
char *rk_tls_peer_names(const struct rk_tls_conn *conn);

RK_END_DECLS

#endif
