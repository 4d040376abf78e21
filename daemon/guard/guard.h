/* The guard in front of gRPC: it listens, accepts, limits the connections, and protects gRPC, which has no
 * such limits, from floods of HTTP/2 frames.
 *
 * A TCP connection ends here: its bytes go through a filter (h2_filter_internal.h) to a socket pair whose
 * other end belongs to gRPC. A connection of a Unix socket, which is protected by file permissions,
 * is passed to gRPC unchanged. One thread, "rankd-N", does all of it; functions for L are marked below.
 * Reasons and measurements: docs/adr/0009-a-guard-before-grpc.md. */
#ifndef RK_DAEMON_GUARD_H
#define RK_DAEMON_GUARD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_status.h"
#include "base/net/rk_tls.h"
#include "daemon/guard/listen.h"
#include "proto/rk_rpcs.h"

/* --- limits; also listed in docs/rpc.md --- */
#define RK_GUARD_CONNECTIONS_MAX 512 /* fewer if the limit on open files is lower */
#define RK_GUARD_CONNECTIONS_MIN 4
#define RK_GUARD_FILES_RESERVED  48         /* for the rest of the daemon */
#define RK_GUARD_STRANGER_BYTES  (64 << 10) /* kernel buffers of a peer before its first authorised call */
#define RK_GUARD_PENALTY_MS      5000 /* how long the socket of a peer that was cut stays open, unread */

/* TLS handshakes that begin: burst, and per second. One costs 0.2 to 2 ms of processor time. */
#define RK_GUARD_HANDSHAKES_BURST 128
#define RK_GUARD_HANDSHAKES_RATE  200

/* TCP connections that are accepted: burst, and per second. */
#define RK_GUARD_ACCEPTS_BURST 256
#define RK_GUARD_ACCEPTS_RATE  1000

/* Connections without an authorised call that are passed to gRPC: burst, per second, and how many gRPC has at
 * a time. gRPC needs up to 140 KB and 1 ms for a connection with a few calls. */
#define RK_GUARD_STRANGERS_BURST 128
#define RK_GUARD_STRANGERS_RATE  200
#define RK_GUARD_STRANGERS_MAX   128

struct rk_guard;

struct rk_guard_config {
    const struct rk_listen *listen; /* borrowed during rk_guard_create */
    int64_t max_files;              /* the process may have open; 0: ask the system */
    int max_connections;            /* 0: RK_GUARD_CONNECTIONS_MAX */
    struct rk_tls *tls;             /* TCP is TLS; NULL: plain. Must outlive the guard */
    rk_tls_demand_t tls_demand;
    void *user;
    /* The guard's thread: a peer has sent the preface of HTTP/2. Takes the socket. */
    void (*on_connection)(void *user, int fd);
};

struct rk_guard_stats {
    int num_connections, max_connections;       /* a connection counts until gRPC has closed its end, too */
    int64_t num_accepted, num_refused, num_cut; /* since the start; refused: limit reached */
    int64_t refused_ns;                         /* the last; 0: never */
    int64_t thread_age_ns;                      /* since the thread last responded */
};

/* Binds, listens and starts the thread, but accepts nothing before rk_guard_open. Reason ADDRESS_IN_USE when
 * another process has the address. */
struct rk_status *rk_guard_create(struct rk_guard **out, const struct rk_guard_config *config) RK_NODISCARD;
/* Starts accepting connections. */
void rk_guard_open(struct rk_guard *guard);
/* Closes the listener; on_connection is not called again, connections continue. Any number of times.
 */
void rk_guard_close_listener(struct rk_guard *guard);
/* Waits briefly until the connections have forwarded the data of gRPC, and ends the thread. NULL is a
 * no-op. */
void rk_guard_destroy(struct rk_guard *guard);

/* The address as rk_listen_format writes it, with the port that was bound. Borrowed. */
const char *rk_guard_address(const struct rk_guard *guard);
/* The connection whose socket has that number in gRPC, as gRPC writes it ("fd:12"). `out` receives the
 * peer's address, or the given text if there is none. */
void rk_guard_format_peer(struct rk_guard *guard, const char *core_peer, char *out, size_t out_bytes);
/* The names of its certificate, a line each; NULL without a verified certificate. rk_free it. */
char *rk_guard_peer_names(struct rk_guard *guard, const char *core_peer);
/* Notes that the peer has made an authorised call with those rights: its connection is not closed in favour
 * of a stranger, and a viewer's connection only if viewers have more than their share of places. */
void rk_guard_trust(struct rk_guard *guard, const char *core_peer, rk_rights_t rights);
void rk_guard_get_stats(struct rk_guard *guard, struct rk_guard_stats *out);

#endif
