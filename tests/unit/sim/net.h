/* The network below the core of gRPC: connections and their packets. Packets of a connection arrive in the
 * order in which they were sent, or not at all; there is no order between connections. Each side notices the
 * end of a connection separately, after up to the keepalive time, and packets in flight at the end arrive
 * late or never. */
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
    SIM_PACKET_RESET,      /* to the server: the client has cancelled the stream */
    SIM_PACKET_STATUS      /* to the client: the end of the stream */
} sim_packet_kind_t;

/* One call on a connection. */
struct sim_stream {
    struct sim_stream *next;
    struct sim_conn *conn;
    const char *path;
    struct grpc_call *ends[2]; /* NULL: not created yet, or destroyed */
    struct sim_stream *copy;   /* the stream that receives a copy of the server's packets; NULL: none */
    int64_t copy_delay_ns;
};

struct sim_packet {
    sim_packet_kind_t kind;
    struct sim_stream *stream;
    struct rk_str bytes; /* bytes of a message, or details of a status */
    int code;
    char *text;
};

struct sim_conn {
    struct sim_conn *next;
    struct sim_process *ends[2];
    int64_t last_ns[2]; /* when the newest packet to that side arrives */
    bool is_cut, loses_flight;
    bool knows[2]; /* whether the side knows that it has ended */
    struct sim_stream *streams;
};

/* NULL when the daemon is down or cannot be reached; *fails_ns then receives the time at which this is
 * known. */
struct sim_conn *sim_net_connect(struct sim_process *client, int32_t rank, int64_t *fails_ns);
struct sim_stream *sim_net_open(struct sim_conn *conn, struct grpc_call *call, const char *path);
/* Takes ownership of bytes and text. */
void sim_net_post(struct sim_stream *stream, sim_side_t to, const struct sim_packet *packet);
void sim_net_cut(struct sim_conn *conn, int64_t client_ns, int64_t server_ns);

void sim_net_end_process(struct sim_process *process);
void sim_net_stop_process(struct sim_process *process, int64_t ns);
void sim_net_block(int trainer, int32_t rank, int64_t ns);

/* --- core_call.c, core_server.c --- */
/* Handles an arrived packet; takes ownership of its bytes. */
void sim_call_take(struct grpc_call *call, struct sim_packet *packet);
/* Handles the end of the connection. */
void sim_call_lose(struct grpc_call *call);
void sim_server_take_call(struct sim_stream *stream);

#endif
