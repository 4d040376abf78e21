/* What stands in front of gRPC: it listens, accepts, bounds the connections, and keeps peers that flood with
 * frames of HTTP/2 away from a library that has no bounds for them.
 *
 * A TCP connection ends here: its bytes go through a filter (h2_filter_internal.h) to a socket pair whose
 * other end gRPC has. A connection of a Unix socket, which only users reach that the file's permissions let
 * in, is handed to gRPC as it is. One thread, "rankd-N", does all of it; what L may call is said below.
 * Reasons and measurements: docs/adr/0009-a-guard-before-grpc.md. */
#ifndef RK_GUARD_INTERNAL_H
#define RK_GUARD_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_status.h"
#include "base/rk_tls.h"
#include "daemon/listen_internal.h"

/* --- limits; docs/rpc.md has them, too --- */
#define RK_GUARD_CONNECTIONS_MAX 512 /* fewer where the limit on open files leaves less */
#define RK_GUARD_CONNECTIONS_MIN 4
#define RK_GUARD_FILES_RESERVED  48 /* for the rest of the daemon */
#define RK_GUARD_STRANGER_BYTES \
    (64 << 10)                   /* that the kernel holds for a peer before it shows a right to call */
#define RK_GUARD_PENALTY_MS 5000 /* how long the socket of a peer that was cut stays open, unread */

/* TLS handshakes that begin: at once, and a second. One costs a processor 0.2 to 2 ms. */
#define RK_GUARD_HANDSHAKES_BURST 128
#define RK_GUARD_HANDSHAKES_RATE  200

struct rk_guard;

struct rk_guard_config {
    const struct rk_listen *listen; /* borrowed during rk_guard_create */
    int64_t max_files;              /* the process may have open; 0: ask the system */
    int max_connections;            /* 0: RK_GUARD_CONNECTIONS_MAX */
    struct rk_tls *tls;             /* TCP is TLS; NULL: plain. Must outlive the guard */
    rk_tls_demand_t tls_demand;
    void *user;
    /* The guard's thread: a peer has said what a client of HTTP/2 says first. Takes the socket. */
    void (*on_connection)(void *user, int fd);
};

struct rk_guard_stats {
    int num_connections, max_connections;
    int64_t num_accepted, num_refused, num_cut; /* since the start; refused: no room */
    int64_t refused_ns;                         /* the last; 0: never */
    int64_t thread_age_ns;                      /* since the thread was last seen */
};

/* Binds, listens and starts the thread, but accepts nothing before rk_guard_open. Reason ADDRESS_IN_USE when
 * another process has the address. */
struct rk_status *rk_guard_create(struct rk_guard **out, const struct rk_guard_config *config) RK_NODISCARD;
/* What comes from now on is accepted. */
void rk_guard_open(struct rk_guard *guard);
/* The listener is gone, and on_connection will not be called again; connections go on. Any number of times.
 */
void rk_guard_close_listener(struct rk_guard *guard);
/* Waits a moment until the connections are through with what gRPC has sent, and ends the thread. NULL is a
 * no-op. */
void rk_guard_destroy(struct rk_guard *guard);

/* As rk_listen_format, with the port that was bound. Borrowed. */
const char *rk_guard_address(const struct rk_guard *guard);
/* The connection whose socket gRPC has under that number, as gRPC writes it ("fd:12"). `out` receives the
 * peer's address, or what was given if there is none. */
void rk_guard_format_peer(struct rk_guard *guard, const char *core_peer, char *out, size_t out_bytes);
/* The names of its certificate, a line each; NULL when it has shown none that was checked. rk_free it. */
char *rk_guard_peer_names(struct rk_guard *guard, const char *core_peer);
/* A peer behind it has shown a right to call: it is not dropped to make room for another. */
void rk_guard_trust(struct rk_guard *guard, const char *core_peer);
void rk_guard_get_stats(struct rk_guard *guard, struct rk_guard_stats *out);

#endif
