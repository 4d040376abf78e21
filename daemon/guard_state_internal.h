/* The state of the guard, shared by its files: guard.c listens, accepts and runs the thread,
 * guard_connection.c has the life of a connection. */
#ifndef RK_GUARD_STATE_INTERNAL_H
#define RK_GUARD_STATE_INTERNAL_H

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

#include "daemon/guard_internal.h"
#include "daemon/guard_log_internal.h"
#include "daemon/relay_internal.h"

#define RK_PEER_BYTES 64

enum { RK_SIDE_CLIENT, RK_SIDE_SERVER, RK_SIDE_COUNT };

struct rk_connection;

struct rk_endpoint { /* the subject of an epoll event */
    struct rk_connection *connection;
    int side;
};

struct rk_connection {
    struct rk_connection *next, **link; /* guarded by rk_guard.lock */
    struct rk_endpoint endpoints[RK_SIDE_COUNT];
    char peer[RK_PEER_BYTES];
    char *names; /* of its certificate, set before gRPC gets the connection; NULL: none */
    int core_fd; /* gRPC's socket; guarded by rk_guard.lock; -1: not yet */
    _Atomic bool is_trusted;
    int64_t accepted_ns, cut_ns; /* cut_ns 0: it was not */
    int watch_fd;                /* of a Unix socket: a copy; -1: this is a relay */
    struct rk_relay relay;
    bool is_ready, is_gone;
};

struct rk_guard {
    struct rk_guard_config config;
    char *address, *unix_path; /* unix_path NULL: none to remove */
    bool is_unix;
    int max_connections;
    pthread_t thread;
    int epoll_fd, wake_fd, reserve_fd;
    _Atomic bool is_open, is_stopping;
    _Atomic int64_t seen_ns, refused_ns, num_accepted, num_refused, num_cut;
    _Atomic int num_connections;

    /* Guards the list of connections, their core_fd, and listen_fd; held while a connection is passed to
     * gRPC.
     */
    pthread_mutex_t lock;
    struct rk_connection *connections;
    int listen_fd; /* -1: closed */

    /* the thread's */
    bool has_pending; /* accept has not yet returned EAGAIN */
    int64_t accept_after_ns, ticked_ns;
    struct rk_h2_bucket handshakes;
    struct rk_h2_shared shared;
    struct rk_relay_pool pool;
    struct rk_guard_log log;
};

/* All functions below are for the guard's thread. */

/* Adds a descriptor to epoll; `what` is returned with its events. */
void rk_guard_watch(struct rk_guard *guard, int fd, uint32_t events, void *what);
/* A connecting peer could not be accepted. */
void rk_guard_count_refused(struct rk_guard *guard, const char *peer, const char *why);
/* "HOST:PORT", or "unix". */
void rk_guard_format_address(char out[RK_PEER_BYTES], const struct sockaddr_storage *from, socklen_t bytes);
/* Closes another connection if that is needed for a new one; false when none may be closed. */
bool rk_guard_make_room(struct rk_guard *guard);

/* Takes the socket that was accepted. */
void rk_connection_admit(struct rk_guard *guard, int fd, const struct sockaddr_storage *from,
                         socklen_t from_bytes);
/* Closes all of it and frees it. */
void rk_connection_drop(struct rk_guard *guard, struct rk_connection *connection);
/* It waits for its turn to begin with TLS. */
bool rk_connection_waits_for_tls(const struct rk_connection *connection);
void rk_connection_begin_tls(struct rk_guard *guard, struct rk_connection *connection);
/* Something has happened. False when the connection is over. */
bool rk_connection_run(struct rk_guard *guard, struct rk_connection *connection, int64_t now_ns);
/* Time has passed. Likewise. */
bool rk_connection_tick(struct rk_guard *guard, struct rk_connection *connection, int64_t now_ns);

#endif
