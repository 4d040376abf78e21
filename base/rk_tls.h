/* TLS: certificates and keys from files, connections over a socket that somebody else owns, and what is wrong
 * with either in words. Certificates are PEM, TLS is 1.2 or later, sessions are never resumed: every
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
    const char *cert; /* certificate of this side, then those between it and the authority; NULL: none */
    const char *key;  /* its private key, for its owner only, without a passphrase; with cert only */
    const char *ca;   /* authorities whose certificates are trusted; NULL: none */
    const char *prefix;
};

/* What is in the files; NULL where there is none. */
struct rk_tls_pem {
    char *cert, *key, *ca;
};

/* Reads and checks what each file is by itself, and whether key and certificate belong together and are valid
 * now. INVALID_ARGUMENT, PERMISSION_DENIED (others can read the key) or NOT_FOUND, with the file. `out` is
 * empty on failure. */
struct rk_status *rk_tls_pem_read(struct rk_tls_pem *out, const struct rk_tls_files *files) RK_NODISCARD;
void rk_tls_pem_fini(struct rk_tls_pem *pem);

/* --- what connections begin with --- */

struct rk_tls;

/* Reads the files; errors as rk_tls_pem_read. */
struct rk_status *rk_tls_create(struct rk_tls **out, const struct rk_tls_files *files) RK_NODISCARD;
/* Any thread: connections that begin from now on take what the files have now; on failure what they had
 * before. Those that there are go on as they are. */
struct rk_status *rk_tls_reload(struct rk_tls *tls, const struct rk_tls_files *files) RK_NODISCARD;
/* After all its connections. NULL is a no-op. */
void rk_tls_destroy(struct rk_tls *tls);
/* Until when the certificate is valid, seconds since 1970; INT64_MAX without one. */
int64_t rk_tls_expires_s(struct rk_tls *tls);

/* --- connections --- */

struct rk_tls_conn;

typedef enum rk_tls_demand {
    RK_TLS_PEER_ANY,      /* the client is not asked for a certificate */
    RK_TLS_PEER_OPTIONAL, /* one that it has is checked */
    RK_TLS_PEER_REQUIRED
} rk_tls_demand_t;

typedef enum rk_tls_step { RK_TLS_DONE, RK_TLS_WAITS, RK_TLS_FAILED } rk_tls_step_t;

/* The side that was connected to. The socket stays the caller's, blocks nobody whatever its mode, and is
 * closed after the connection's end. */
struct rk_tls_conn *rk_tls_accept(struct rk_tls *tls, int fd, rk_tls_demand_t demand);
/* The side that connects. The peer's certificate must be for `host`, a name or an address; NULL: nothing is
 * checked. `speaks_http2`: offers "h2" (ALPN). */
struct rk_tls_conn *rk_tls_connect(struct rk_tls *tls, int fd, const char *host, bool speaks_http2);
/* Says goodbye as far as that is possible at once. NULL is a no-op. */
void rk_tls_conn_destroy(struct rk_tls_conn *conn);
/* One step of the handshake; RK_TLS_WAITS: for the socket. */
rk_tls_step_t rk_tls_shake(struct rk_tls_conn *conn);
/* The handshake waits to send, and not to receive. */
bool rk_tls_waits_to_send(const struct rk_tls_conn *conn);
/* As recv and send with MSG_DONTWAIT and MSG_NOSIGNAL, after the handshake. 0 of rk_tls_recv: the peer has
 * closed. -1 with EAGAIN: not now; what was to be sent must be given again, as it was or longer. -1 with
 * EPROTO: rk_tls_error says why. */
ssize_t rk_tls_recv(struct rk_tls_conn *conn, void *data, size_t bytes);
ssize_t rk_tls_send(struct rk_tls_conn *conn, const void *data, size_t bytes);
/* The last rk_tls_recv took all that had come. */
bool rk_tls_is_drained(const struct rk_tls_conn *conn);
/* The peer closed, in the handshake or after it. */
bool rk_tls_has_closed(const struct rk_tls_conn *conn);
/* Why it failed, for people, "" while it has not. Borrowed. */
const char *rk_tls_error(const struct rk_tls_conn *conn);
/* Names of the peer's certificate that was checked, a line each: the DNS names, addresses, URIs and e-mail
 * addresses that it is for, else its common name. "" without a certificate. rk_free it. */
char *rk_tls_peer_names(const struct rk_tls_conn *conn);

RK_END_DECLS

#endif
