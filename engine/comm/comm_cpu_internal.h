/* Private to engine/comm: the CPU backend, a peer network of sockets.
 *
 * Two connections join every pair of ranks. The data connection carries frames, each a header and its
 * payload, in the order of the operations; both ends compute the next expected header and compare. The
 * control connection carries messages that must arrive while a payload is blocked half-way: leave, abort with
 * its reason, heartbeats. It also decides which peers are lost: those whose control connection closes without
 * a leave or abort message. After a data connection closes, the reason arrives on the control connection.
 *
 * Threads: the engine thread runs operations. Any thread may abort or look for failures; it touches the
 * control connections under control_lock, which is never held while waiting, and wakes the engine through
 * wake_fd. */
#ifndef RK_COMM_CPU_INTERNAL_H
#define RK_COMM_CPU_INTERNAL_H

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/net/rk_tls.h"
#include "engine/comm/comm.h"

/* --- endpoints (comm_cpu_endpoint.c) --- */

struct rk_cpu_endpoint {
    int listen_fd;
    struct rk_tls *tls; /* of TCP; NULL: without TLS */
};

struct rk_cpu_address {
    struct sockaddr_storage storage;
    socklen_t bytes;
    char host[RK_COMM_ADDRESS_BYTES]; /* as written, without brackets; "" of a Unix socket */
};

struct rk_status *rk_cpu_endpoint_open(void **out, const struct rk_comm_endpoint_config *config,
                                       char address[RK_COMM_ADDRESS_BYTES]) RK_NODISCARD;
void rk_cpu_endpoint_close(void *endpoint);
/* "unix:@name", "host:port" or "[host]:port", as an endpoint wrote it. */
struct rk_status *rk_cpu_address_parse(struct rk_cpu_address *out, const char *text) RK_NODISCARD;

/* --- handshake (comm_cpu_handshake.c): functions over bytes, without sockets ---
 *
 * The connector, always the higher rank, sends HELLO. The listener answers CHALLENGE: a verdict, its nonce
 * and the proof that it knows the id. The connector checks it and sends PROOF; the listener answers with the
 * final VERDICT. A proof is HMAC-SHA256, keyed by the id, over a label, HELLO and the listener's nonce; HELLO
 * holds both ranks, the generation and the connector's nonce. */

typedef enum rk_cpu_channel {
    RK_CPU_CHANNEL_DATA,
    RK_CPU_CHANNEL_CONTROL,
    RK_CPU_CHANNEL_COUNT
} rk_cpu_channel_t;

#define RK_CPU_NONCE_BYTES 16
#define RK_CPU_PROOF_BYTES 32

typedef enum rk_cpu_verdict {
    RK_CPU_VERDICT_OK = 1,
    RK_CPU_VERDICT_NOT_RANKD, /* HELLO has another magic or version */
    RK_CPU_VERDICT_WORLD,     /* another world size, or an unexpected rank */
    RK_CPU_VERDICT_GENERATION,
    RK_CPU_VERDICT_PROOF,
    RK_CPU_VERDICT_DUPLICATE, /* that rank is already connected */
    RK_CPU_VERDICT_COUNT
} rk_cpu_verdict_t;

struct rk_cpu_hello {
    uint32_t magic, version;
    uint32_t channel; /* rk_cpu_channel_t */
    int32_t from_rank, to_rank, world_size;
    uint64_t generation;
    uint8_t nonce[RK_CPU_NONCE_BYTES];
};

struct rk_cpu_challenge {
    uint32_t verdict; /* OK, or the reason of the refusal; then the rest is zero */
    uint8_t nonce[RK_CPU_NONCE_BYTES];
    uint8_t proof[RK_CPU_PROOF_BYTES];
};

/* Requirements of a rank for a connecting peer. */
struct rk_cpu_rules {
    int32_t rank, world_size;
    uint64_t generation;
    const uint8_t *id;
    const bool *is_taken; /* [world_size * RK_CPU_CHANNEL_COUNT] */
};

typedef enum rk_cpu_accept_stage {
    RK_CPU_ACCEPT_HELLO,
    RK_CPU_ACCEPT_PROOF,
    RK_CPU_ACCEPT_DONE,
    RK_CPU_ACCEPT_REFUSED
} rk_cpu_accept_stage_t;

/* The listener's state of one handshake. */
struct rk_cpu_acceptor {
    rk_cpu_accept_stage_t stage;
    size_t filled; /* bytes of `in` received in this stage */
    union {
        struct rk_cpu_hello hello;
        uint8_t proof[RK_CPU_PROOF_BYTES];
    } in;
    struct rk_cpu_hello hello; /* valid from stage PROOF on; authenticated from DONE on */
    uint8_t nonce[RK_CPU_NONCE_BYTES];
};

#define RK_CPU_REPLY_BYTES sizeof(struct rk_cpu_challenge)

void rk_cpu_acceptor_init(struct rk_cpu_acceptor *acceptor, const uint8_t nonce[RK_CPU_NONCE_BYTES]);
/* Bytes missing in this stage; 0 when the handshake is over. Never read more: later bytes stay in the
 * socket. */
size_t rk_cpu_acceptor_wanted(const struct rk_cpu_acceptor *acceptor);
/* Takes at most the missing bytes; returns the length of the reply to send, 0 for none yet. */
size_t rk_cpu_acceptor_feed(struct rk_cpu_acceptor *acceptor, const struct rk_cpu_rules *rules,
                            const void *data, size_t bytes, uint8_t reply[RK_CPU_REPLY_BYTES]);

/* The connector's check of the challenge. NULL when the listener proved that it knows the id. */
struct rk_status *rk_cpu_challenge_check(const struct rk_cpu_challenge *challenge,
                                         const struct rk_cpu_hello *hello, const uint8_t *id) RK_NODISCARD;
/* NULL for OK; the error of a refusal otherwise. */
struct rk_status *rk_cpu_verdict_status(uint32_t verdict, const struct rk_cpu_hello *hello) RK_NODISCARD;
void rk_cpu_hello_init(struct rk_cpu_hello *hello, int32_t from_rank, int32_t to_rank, int32_t world_size,
                       uint64_t generation, rk_cpu_channel_t channel);
/* The connector's proof. */
void rk_cpu_prove(uint8_t proof[RK_CPU_PROOF_BYTES], const struct rk_cpu_hello *hello,
                  const struct rk_cpu_challenge *challenge, const uint8_t *id);

/* --- connections (comm_cpu_wire.c) --- */

struct rk_cpu_wire {
    int fd;                  /* -1: none */
    struct rk_tls_conn *tls; /* NULL: plain */
};

/* Like recv and send with MSG_DONTWAIT and MSG_NOSIGNAL. Bytes that TLS could not send must be passed again
 * unchanged before any others. */
ssize_t rk_cpu_wire_recv(const struct rk_cpu_wire *wire, void *data, size_t bytes);
ssize_t rk_cpu_wire_send(const struct rk_cpu_wire *wire, const void *data, size_t bytes);
/* Sends one or two parts; the first of two has at most a few hundred bytes. */
ssize_t rk_cpu_wire_send_parts(const struct rk_cpu_wire *wire, struct iovec *parts, int num_parts);
ssize_t rk_cpu_wire_recv_parts(const struct rk_cpu_wire *wire, struct iovec *parts, int num_parts);
void rk_cpu_wire_close(struct rk_cpu_wire *wire);

/* --- the net --- */

/* Header of every payload on a data connection; both ends compute and compare it. */
struct rk_cpu_frame {
    uint32_t magic;
    uint32_t tag; /* of the group */
    uint64_t seq; /* of the operation in the group; point to point: of the message between the two */
    uint64_t bytes;
    uint32_t step; /* phase of the operation */
    uint8_t op;    /* rk_comm_op_t */
    uint8_t dtype;
    uint16_t arg; /* rk_reduce_op_t of a reduction, or root of a broadcast */
};
_Static_assert(sizeof(struct rk_cpu_frame) == 32, "no padding: frames are compared as bytes");

/* One frame to send or to receive in an exchange. */
struct rk_cpu_transfer {
    struct rk_cpu_frame frame; /* to send, or expected */
    struct rk_cpu_frame got;   /* received */
    int32_t peer;              /* world rank */
    bool is_send;
    char *data;
    size_t done_bytes;            /* of header and payload together */
    struct rk_cpu_transfer *next; /* for the same peer in the same direction */
};

typedef enum rk_cpu_link {
    RK_CPU_LINK_OPEN,
    RK_CPU_LINK_BYE,   /* the peer destroyed its world */
    RK_CPU_LINK_CLOSED /* for any reason; it has been reported */
} rk_cpu_link_t;

#define RK_CPU_CONTROL_BYTES 512

/* A control frame. `reason` and `text` are terminated; ABORT fills both, HEARTBEAT the text. */
struct rk_cpu_control {
    uint32_t magic;
    uint32_t kind;       /* rk_cpu_control_kind_t */
    int32_t blamed_rank; /* of ABORT: rank where the failure began; -1: unknown */
    char reason[20], text[RK_CPU_CONTROL_BYTES - 32];
};
_Static_assert(sizeof(struct rk_cpu_control) == RK_CPU_CONTROL_BYTES, "one size on every host");

struct rk_cpu_peer {
    struct rk_cpu_wire data_wire, control_wire; /* this rank itself has none */

    /* engine thread only */
    struct rk_cpu_transfer *send_head, *recv_head; /* frames left in the running exchange */
    bool has_arrived;                              /* a byte of the running collective has arrived from it */
    bool is_data_broken; /* the data connection failed; the reason follows on control */
    int64_t last_seen_ns;

    /* under control_lock */
    struct rk_cpu_control control;
    size_t control_filled;
    char doing[RK_COMM_DOING_BYTES]; /* text of its last heartbeat */

    /* written under control_lock, read by any thread */
    atomic_int link; /* rk_cpu_link_t */
    _Atomic int64_t control_seen_ns;
};

/* Payload of one reduction step: a rank's part of a chunk. Bounds the scratch memory, which is allocated
 * once. Measured on 2 and 4 ranks, 16 MiB: the fastest size over TCP, by up to a third, and within 10% of the
 * fastest over Unix sockets. */
#define RK_CPU_PART_BYTES ((size_t)128 << 10)
/* Up to this size every rank gathers all parts and reduces alone: one exchange, because round trips cost more
 * than bytes here. */
#define RK_CPU_SMALL_BYTES ((size_t)64 << 10)

struct rk_cpu_net {
    struct rk_comm_world *world;
    int32_t rank, size;
    int64_t progress_ns, collective_ns;
    struct rk_cpu_peer *peers; /* [size] */
    int wake_fd;               /* eventfd: wakes the engine thread when the world has failed */
    struct pollfd *polls;      /* [2 * size + 1]: control connections, data connections, wake_fd */
    uint8_t *scratch;          /* [size * RK_CPU_PART_BYTES] */
    const void **parts;        /* [size]: operands of a reduction */
    pthread_mutex_t control_lock;
    bool is_down; /* under control_lock: all connections are shut down */

    /* the running operation; engine thread only */
    const struct rk_comm_group *group;
    struct rk_cpu_frame frame; /* template of its frames */
    bool is_collective;        /* peers that have sent a byte take part and must make progress */
    int64_t begun_ns, heartbeat_ns;
    bool has_unread_control; /* TLS may have buffered control frames while it completed the handshake */
    RK_ARRAY(struct rk_cpu_transfer) transfers; /* of the running exchange; the capacity is kept */
    int64_t num_pending;
};

/* comm_cpu_connect.c: accepts connections of the higher ranks and connects to the lower ones until every pair
 * is connected. Closes the endpoint's listener. */
struct rk_status *rk_cpu_net_connect(struct rk_cpu_net *net, struct rk_cpu_endpoint *endpoint,
                                     const struct rk_comm_world_config *config) RK_NODISCARD;

/* --- control connections (comm_cpu_control.c); any thread --- */

/* Reads the messages of the peers; returns the first failure among them. */
struct rk_status *rk_cpu_control_read(struct rk_cpu_net *net) RK_NODISCARD;
/* Tells all peers, shuts the connections down and wakes the engine thread. */
void rk_cpu_control_abort(struct rk_cpu_net *net, const struct rk_status *error);
void rk_cpu_control_bye(struct rk_cpu_net *net);
/* Sends a heartbeat to the peers in the running collective. Engine thread only. */
void rk_cpu_control_heartbeat(struct rk_cpu_net *net);

/* --- exchanges (comm_cpu_exchange.c); engine thread only --- */

/* Opens an operation on a group: no transfers yet, no rank has arrived. */
void rk_cpu_begin(struct rk_cpu_net *net, const struct rk_comm_group *group, rk_comm_op_t op,
                  rk_dtype_t dtype, uint32_t arg);
/* Adds a transfer; frames to one peer are sent in the order of these calls. `peer` is an index in the
 * group. */
void rk_cpu_add_send(struct rk_cpu_net *net, int32_t peer, const void *data, size_t bytes);
void rk_cpu_add_recv(struct rk_cpu_net *net, int32_t peer, void *data, size_t bytes);
/* Completes all added transfers together and empties the list. A failure has been passed to
 * rk_comm_world_fail(); returns the world's first error. */
struct rk_status *rk_cpu_exchange(struct rk_cpu_net *net) RK_NODISCARD;

/* --- reduction (comm_cpu_reduce.c) --- */

/* out[i] = parts[0][i] op parts[1][i] op ..., from left to right; bf16 and f16 in f32, rounded once at the
 * end. NaN propagates. Integers wrap around. `out` may be one of the parts. */
void rk_cpu_reduce(void *out, const void *const *parts, int32_t num_parts, int64_t count, rk_dtype_t dtype,
                   rk_reduce_op_t op);

#endif
