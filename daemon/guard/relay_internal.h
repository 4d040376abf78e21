/* One TCP connection and its socket to gRPC, with the filter in between. All of it
 * belongs to the thread of the guard (guard.c). */
#ifndef RK_RELAY_INTERNAL_H
#define RK_RELAY_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/net/rk_tls.h"
#include "daemon/guard/h2_filter_internal.h"
#include "daemon/guard/pipe_internal.h"

#define RK_RELAY_BUFFER_BYTES (64 << 10) /* per direction, while it is not empty */
#define RK_RELAY_POOL_MAX     8          /* free buffers that are kept for reuse */

/* Buffers of the thread; idle connections have none. Zero-initialised. */
struct rk_relay_pool {
    char *free[RK_RELAY_POOL_MAX];
    int num_free;
    struct rk_pipe_pool pipes;
};

void rk_relay_pool_fini(struct rk_relay_pool *pool);

/* One direction of a relay, with the data read from its side: `sent` <= `passed` <= `bytes`. */
struct rk_relay_half {
    char *data; /* NULL while empty */
    size_t bytes, passed, sent;
    bool can_read, can_write; /* last known state: from one side, to the other */
    bool is_held;             /* by the filter */
    struct rk_pipe *pipe;     /* has bytes of a large frame; NULL: none, and always while `data` is used */
};

typedef enum rk_relay_state {
    RK_RELAY_IDLE,  /* waits for its sockets, or for time */
    RK_RELAY_READY, /* has more work; other connections run first */
    RK_RELAY_CUT,   /* the filter's rule is the reason */
    RK_RELAY_ENDED  /* one side has closed, and the other has got all data */
} rk_relay_state_t;

/* The client's side uses TLS: it waits for its turn, because a handshake costs more than any other request
 * of an unauthorised peer. */
typedef enum rk_relay_tls {
    RK_RELAY_PLAIN,
    RK_RELAY_TLS_WAITS,
    RK_RELAY_TLS_SHAKES,
    RK_RELAY_TLS_UP
} rk_relay_tls_t;

struct rk_relay {
    struct rk_relay_pool *pool; /* borrowed */
    int client_fd;              /* owned by the connection; non-blocking, as the next */
    int server_fd;              /* -1: the connection has not been passed to gRPC yet; see wants_server */
    rk_relay_tls_t tls_state;
    struct rk_tls_conn *tls; /* from rk_relay_begin_tls on */
    struct rk_relay_half from_client, from_server;
    struct rk_h2_filter filter;
};

/* Takes the client's socket; the server's is set later, when rk_relay_wants_server returns true. */
void rk_relay_init(struct rk_relay *relay, struct rk_relay_pool *pool, struct rk_h2_shared *shared,
                   int client_fd, int64_t now_ns);
/* No data is relayed before rk_relay_begin_tls and the handshake. After rk_relay_init. */
void rk_relay_expect_tls(struct rk_relay *relay);
/* Starts TLS: the client has sent data, and it is its turn. */
void rk_relay_begin_tls(struct rk_relay *relay, struct rk_tls *tls, rk_tls_demand_t demand);
/* Closes the open ones of both sockets. */
void rk_relay_fini(struct rk_relay *relay);
/* The client has sent the preface, so that the connection may be passed to gRPC. */
bool rk_relay_wants_server(const struct rk_relay *relay);
/* The reason why it was cut. Borrowed. */
const char *rk_relay_why(const struct rk_relay *relay);
/* Relays the data that can be relayed now. */
rk_relay_state_t rk_relay_run(struct rk_relay *relay, int64_t now_ns);
/* RK_RELAY_CUT when the client is too slow. */
rk_relay_state_t rk_relay_tick(struct rk_relay *relay, int64_t now_ns);
/* Closes the server's side, and sends the client the reason if that is possible now. */
void rk_relay_say_goodbye(struct rk_relay *relay);

#endif
