/* The state of the guard, shared by its files: guard.c listens, accepts and runs the thread,
 * guard_connection.c has the life of a connection. */
#ifndef RK_GUARD_STATE_INTERNAL_H
#define RK_GUARD_STATE_INTERNAL_H

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

#include "daemon/guard/guard.h"
#include "daemon/guard/guard_log_internal.h"
#include "daemon/guard/relay_internal.h"
#include "proto/rk_rpcs.h"

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
    int core_fd; /* gRPC's socket; guarded by rk_guard.lock; -1: not yet, or gRPC has closed it */
    dev_t core_device;
    ino_t core_inode;           /* with core_device the identity of that socket: gRPC closes it at any time */
    _Atomic rk_rights_t rights; /* the most that an authorised call of it had; NONE: a stranger */
    _Atomic int64_t called_ns;  /* its last authorised call, or when it was accepted */
    int64_t cut_ns;             /* 0: it was not */
    int64_t closed_ns;          /* see is_closed */
    int watch_fd;               /* of a Unix socket: a copy; -1: this is a relay, or it is closed */
    struct rk_relay relay;
    bool is_ready, is_gone;
    bool is_known;  /* when it was accepted, its address had a connection with an authorised call */
    bool is_closed; /* by the guard; gRPC has not closed its end yet, so it keeps its place */
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
    int64_t accept_after_ns, pass_after_ns, ticked_ns;
    struct rk_h2_bucket accepts, handshakes, strangers;
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
/* Whether there is a place for a new connection. If not, another one is closed, which frees its place as soon
 * as gRPC has closed its end. */
typedef enum rk_guard_room { RK_GUARD_HAS_ROOM, RK_GUARD_ROOM_LATER, RK_GUARD_NO_ROOM } rk_guard_room_t;
rk_guard_room_t rk_guard_make_room(struct rk_guard *guard, int64_t now_ns);
/* rk_guard_make_room for the strangers among gRPC's connections; there is always room, now or later. */
rk_guard_room_t rk_guard_make_core_room(struct rk_guard *guard, int64_t now_ns);

/* Takes the socket that was accepted. */
void rk_connection_admit(struct rk_guard *guard, int fd, const struct sockaddr_storage *from,
                         socklen_t from_bytes);
/* Closes the guard's descriptors of the connection, and frees it if gRPC has closed its end; otherwise
 * rk_connection_reap frees it later. */
void rk_connection_drop(struct rk_guard *guard, struct rk_connection *connection);
/* Notes whether gRPC still has its end; frees a dropped connection without one. */
void rk_connection_reap(struct rk_guard *guard, struct rk_connection *connection);
/* Closes and frees the connection. */
void rk_connection_destroy(struct rk_guard *guard, struct rk_connection *connection);
/* Whether the connection waits for its turn to begin with TLS. */
bool rk_connection_waits_for_tls(const struct rk_connection *connection);
void rk_connection_begin_tls(struct rk_guard *guard, struct rk_connection *connection);
/* Whether the connection waits for its turn to be passed to gRPC. */
bool rk_connection_waits_for_core(const struct rk_connection *connection);
void rk_connection_pass_to_core(struct rk_guard *guard, struct rk_connection *connection);
/* Something has happened. False when the connection is over. */
bool rk_connection_run(struct rk_guard *guard, struct rk_connection *connection, int64_t now_ns);
/* Time has passed. False when the connection is over. */
bool rk_connection_tick(struct rk_guard *guard, struct rk_connection *connection, int64_t now_ns);

#endif
