#include "tests/unit/sim/net.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_base.h"

#define KEEPALIVE_MS 8000 /* after which a silent connection is ended */
#define CONNECT_MS   2000

/* The delay of a packet: usually about a millisecond, sometimes seconds. */
static int64_t delay_ns(void)
{
    if (sim_weather(0.004))
        return sim_between_ns(50, 6000);
    return sim_between_ns(0, 2) + 1000;
}

static int64_t notice_ns(void)
{
    return sim_random(2) ? sim_between_ns(0, 5) : sim_between_ns(1, KEEPALIVE_MS);
}

/* --- connections --- */

static bool is_blocked(const struct sim_process *client, int32_t rank)
{
    for (int i = 0; i < sim->num_trainers; i++) {
        if (sim_trainer_process(sim->trainers[i]) == client)
            return sim->blocked_until_ns[i][rank] > sim->world.now_ns;
    }
    return false;
}

struct sim_conn *sim_net_connect(struct sim_process *client, int32_t rank, int64_t *fails_ns)
{
    struct sim_conn *conn;

    *fails_ns = 0;
    if (client->is_dead)
        return NULL;
    if (is_blocked(client, rank)) {
        *fails_ns = SIM_MS(CONNECT_MS);
        return NULL;
    }
    *fails_ns = sim_between_ns(0, 2);
    if (!sim->hosts[rank])
        return NULL;
    conn = sim_alloc(sizeof(*conn));
    conn->ends[SIM_CLIENT] = client;
    conn->ends[SIM_SERVER] = sim_host_process(sim->hosts[rank]);
    conn->last_ns[SIM_SERVER] = sim->world.now_ns + delay_ns(); /* the handshake */
    conn->last_ns[SIM_CLIENT] = sim->world.now_ns;
    conn->next = sim->conns;
    sim->conns = conn;
    return conn;
}

/* One side notices the end of the connection: its calls are told. */
static void notice(void *user, uint64_t side)
{
    struct sim_conn *conn = user;

    if (conn->knows[side])
        return;
    conn->knows[side] = true;
    for (struct sim_stream *stream = conn->streams; stream; stream = stream->next) {
        if (stream->ends[side])
            sim_call_lose(stream->ends[side]);
    }
}

void sim_net_cut(struct sim_conn *conn, int64_t client_ns, int64_t server_ns)
{
    if (conn->is_cut)
        return;
    conn->is_cut = true;
    conn->loses_flight = sim_random(2) == 0;
    sim->num_cuts++;
    sim_at(conn->ends[SIM_CLIENT], client_ns, notice, conn, SIM_CLIENT);
    sim_at(conn->ends[SIM_SERVER], server_ns, notice, conn, SIM_SERVER);
}

/* --- packets --- */

struct flight {
    struct sim_packet packet;
    sim_side_t to;
};

static void arrive(void *user, uint64_t arg)
{
    struct flight *flight = user;
    struct sim_packet *packet = &flight->packet;
    struct sim_conn *conn = packet->stream->conn;
    struct grpc_call *call = packet->stream->ends[flight->to];

    (void)arg;
    if (!conn->knows[flight->to] && !(conn->is_cut && conn->loses_flight) &&
        !conn->ends[flight->to]->is_dead) {
        if (packet->kind == SIM_PACKET_OPEN)
            sim_server_take_call(packet->stream);
        else if (call)
            sim_call_take(call, packet);
    }
    rk_str_fini(&packet->bytes);
    rk_free(packet->text);
    rk_free(flight);
}

static void send_packet(struct sim_stream *stream, sim_side_t to, const struct sim_packet *packet,
                        int64_t after_ns)
{
    struct sim_conn *conn = stream->conn;
    struct flight *flight = rk_calloc(1, sizeof(*flight));
    int64_t arrives_ns = sim->world.now_ns + after_ns + delay_ns();

    flight->packet = *packet;
    flight->packet.stream = stream;
    flight->to = to;
    conn->last_ns[to] = RK_MAX(conn->last_ns[to], arrives_ns);
    sim_at(conn->ends[to], conn->last_ns[to] - sim->world.now_ns, arrive, flight, 0);
}

void sim_net_post(struct sim_stream *stream, sim_side_t to, const struct sim_packet *packet)
{
    struct sim_conn *conn = stream->conn;
    struct sim_packet again = *packet;

    if (to == SIM_SERVER && stream->copy && !stream->copy->conn->is_cut) {
        again.bytes = (struct rk_str){0};
        again.text = NULL;
        if (packet->bytes.bytes > 0)
            rk_str_append_bytes(&again.bytes, packet->bytes.text, packet->bytes.bytes);
        send_packet(stream->copy, SIM_SERVER, &again, stream->copy_delay_ns);
    }
    if (conn->is_cut) {
        again = *packet;
        rk_str_fini(&again.bytes);
        rk_free(again.text);
        return;
    }
    send_packet(stream, to, packet, 0);
    if (sim_weather(0.003))
        sim_net_cut(conn, notice_ns(), notice_ns());
}

/* --- streams --- */

static struct sim_stream *stream_create(struct sim_conn *conn, struct grpc_call *call, const char *path)
{
    struct sim_stream *stream = sim_alloc(sizeof(*stream));

    stream->conn = conn;
    stream->path = path;
    stream->ends[SIM_CLIENT] = call;
    stream->next = conn->streams;
    conn->streams = stream;
    return stream;
}

static void end_copy(void *user, uint64_t arg)
{
    (void)arg;
    sim_net_cut(user, 0, notice_ns());
}

/* The daemon receives a copy of the stream at any later time on another connection, as from a proxy or from a
 * host that was considered dead. The responses are discarded. */
static void maybe_copy(struct sim_stream *stream)
{
    struct sim_process *server = stream->conn->ends[SIM_SERVER];
    struct sim_conn *conn;
    int64_t fails_ns;

    if (!sim_chance(0.05))
        return;
    conn = sim_net_connect(stream->conn->ends[SIM_CLIENT], server->rank, &fails_ns);
    if (!conn)
        return;
    sim->num_copies++;
    conn->ends[SIM_CLIENT] = sim_process_create(-1, NULL);
    stream->copy = stream_create(conn, NULL, stream->path);
    stream->copy_delay_ns = sim_between_ns(0, 20000);
    sim_at(NULL, stream->copy_delay_ns + sim_between_ns(100, 20000), end_copy, conn, 0);
}

struct sim_stream *sim_net_open(struct sim_conn *conn, struct grpc_call *call, const char *path)
{
    struct sim_stream *stream = stream_create(conn, call, path);

    maybe_copy(stream);
    return stream;
}

/* --- processes --- */

void sim_net_end_process(struct sim_process *process)
{
    process->is_dead = true;
    process->stopped_until_ns = 0;
    for (struct sim_conn *conn = sim->conns; conn; conn = conn->next) {
        sim_side_t side = conn->ends[SIM_CLIENT] == process ? SIM_CLIENT : SIM_SERVER;

        if (conn->ends[side] != process)
            continue;
        if (side == SIM_CLIENT)
            sim_net_cut(conn, 0, notice_ns());
        else
            sim_net_cut(conn, notice_ns(), 0);
        notice(conn, side); /* its resources are freed now */
    }
}

/* Its peers end connections that stay silent too long; it notices when it continues. */
void sim_net_stop_process(struct sim_process *process, int64_t ns)
{
    process->stopped_until_ns = sim->world.now_ns + ns;
    if (ns < SIM_MS(KEEPALIVE_MS))
        return;
    for (struct sim_conn *conn = sim->conns; conn; conn = conn->next) {
        int64_t peer_ns = sim_between_ns(KEEPALIVE_MS - 3000, KEEPALIVE_MS);

        if (conn->ends[SIM_CLIENT] == process)
            sim_net_cut(conn, ns, peer_ns);
        else if (conn->ends[SIM_SERVER] == process)
            sim_net_cut(conn, peer_ns, ns);
    }
}

void sim_net_block(int trainer, int32_t rank, int64_t ns)
{
    struct sim_process *client = sim_trainer_process(sim->trainers[trainer]);

    sim->blocked_until_ns[trainer][rank] = sim->world.now_ns + ns;
    for (struct sim_conn *conn = sim->conns; conn; conn = conn->next) {
        if (conn->ends[SIM_CLIENT] == client && conn->ends[SIM_SERVER]->rank == rank)
            sim_net_cut(conn, sim_between_ns(3000, KEEPALIVE_MS), sim_between_ns(3000, KEEPALIVE_MS));
    }
}
