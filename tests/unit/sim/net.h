/* The network under the core of gRPC: connections, and what travels on them. On a connection everything comes
 * in the order in which it was sent, or not at all; connections overtake each other. A connection that ends
 * is noticed by each side on its own, up to the time that a keepalive takes, and what was on its way when it
 * ended comes late or never. */
#ifndef RK_TEST_UNIT_SIM_NET_H
#define RK_TEST_UNIT_SIM_NET_H

#include "base/rk_str.h"
#include "tests/unit/sim/sim.h"

typedef enum sim_side { SIM_CLIENT, SIM_SERVER } sim_side_t;

struct grpc_call;

typedef enum sim_packet_kind {
    SIM_PACKET_OPEN,       /* to the server: a new stream */
    SIM_PACKET_INITIAL,    /* to the client: the server's headers */
    SIM_PACKET_MESSAGE,    /* either way */
    SIM_PACKET_HALF_CLOSE, /* to the server */
    SIM_PACKET_RESET,      /* to the server: the client has given the stream up */
    SIM_PACKET_STATUS      /* to the client: the end of the stream */
} sim_packet_kind_t;

/* One call on a connection. */
struct sim_stream {
    struct sim_stream *next;
    struct sim_conn *conn;
    const char *path;
    struct grpc_call *ends[2]; /* NULL: not there yet, or gone */
    struct sim_stream *copy;   /* that gets again what the server gets; NULL: none */
    int64_t copy_delay_ns;
};

struct sim_packet {
    sim_packet_kind_t kind;
    struct sim_stream *stream;
    struct rk_str bytes; /* of a message; of a status the details */
    int code;
    char *text;
};

struct sim_conn {
    struct sim_conn *next;
    struct sim_process *ends[2];
    int64_t last_ns[2]; /* when the newest packet to that side arrives */
    bool is_cut, loses_flight;
    bool knows[2]; /* that it has ended */
    struct sim_stream *streams;
};

/* NULL when the daemon is down or cannot be reached; *fails_ns then says when that is known. */
struct sim_conn *sim_net_connect(struct sim_process *client, int32_t rank, int64_t *fails_ns);
struct sim_stream *sim_net_open(struct sim_conn *conn, struct grpc_call *call, const char *path);
/* Takes bytes and text. */
void sim_net_post(struct sim_stream *stream, sim_side_t to, const struct sim_packet *packet);
void sim_net_cut(struct sim_conn *conn, int64_t client_ns, int64_t server_ns);

void sim_net_end_process(struct sim_process *process);
void sim_net_stop_process(struct sim_process *process, int64_t ns);
void sim_net_block(int trainer, int32_t rank, int64_t ns);

/* --- core_call.c, core_server.c --- */
/* What has arrived; takes the bytes out. */
void sim_call_take(struct grpc_call *call, struct sim_packet *packet);
/* The connection has ended. */
void sim_call_lose(struct grpc_call *call);
void sim_server_take_call(struct sim_stream *stream);

#endif
