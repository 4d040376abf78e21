/* Exchanges of the CPU peer network: one loop completes a set of sends and receives in all directions at
 * once, so no order of frames can deadlock. Entry point: rk_cpu_exchange().
 *
 * Two timeouts bound a wait. A peer whose part of a collective has begun to arrive has entered it and must
 * not be silent for longer than the progress timeout; it sends heartbeats while it waits for another rank. A
 * peer that has not arrived may compute for minutes: the collective timeout bounds it. Point to point, only a
 * frame that has begun counts as arrival, because the peer may do other work between two messages. */
#include "engine/comm/comm_cpu_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/rk_assert.h"
#include "base/rk_str.h"
#include "base/rk_time.h"

#define FRAME_MAGIC 0x464b4352u /* "RCKF" */
#define NS_PER_MS   1000000
/* Heartbeats per progress timeout: three may be late before a peer counts as silent. */
#define HEARTBEATS 4

/* --- building the list --- */

void rk_cpu_begin(struct rk_cpu_net *net, const struct rk_comm_group *group, rk_comm_op_t op,
                  rk_dtype_t dtype, uint32_t arg)
{
    RK_ASSERT(arg <= UINT16_MAX);
    net->group = group;
    net->is_collective = op != RK_COMM_OP_SEND;
    net->frame = (struct rk_cpu_frame){.magic = FRAME_MAGIC,
                                       .tag = group->tag,
                                       .seq = group->seq,
                                       .op = (uint8_t)op,
                                       .dtype = (uint8_t)dtype,
                                       .arg = (uint16_t)arg};
    net->begun_ns = net->heartbeat_ns = net->world->started_ns;
    net->transfers.count = 0;
    for (int32_t r = 0; r < net->size; r++)
        net->peers[r].has_arrived = false;
}

static void add(struct rk_cpu_net *net, int32_t peer, bool is_send, void *data, size_t bytes)
{
    struct rk_cpu_transfer transfer = {
        .frame = net->frame, .peer = net->group->world_ranks[peer], .is_send = is_send, .data = data};

    RK_ASSERT(peer != net->group->rank);
    transfer.frame.bytes = bytes;
    rk_array_append(&net->transfers, transfer);
}

void rk_cpu_add_send(struct rk_cpu_net *net, int32_t peer, const void *data, size_t bytes)
{
    add(net, peer, true, (void *)data, bytes); /* never written: sends and receives share one type */
}

void rk_cpu_add_recv(struct rk_cpu_net *net, int32_t peer, void *data, size_t bytes)
{
    add(net, peer, false, data, bytes);
}

/* Links the transfers of each peer into lists, in the order of the calls. */
static void link_transfers(struct rk_cpu_net *net)
{
    for (int32_t r = 0; r < net->size; r++)
        net->peers[r].send_head = net->peers[r].recv_head = NULL;
    for (int64_t i = net->transfers.count - 1; i >= 0; i--) {
        struct rk_cpu_transfer *transfer = &net->transfers.items[i];
        struct rk_cpu_peer *peer = &net->peers[transfer->peer];
        struct rk_cpu_transfer **head = transfer->is_send ? &peer->send_head : &peer->recv_head;

        transfer->next = *head;
        *head = transfer;
    }
    net->num_pending = net->transfers.count;
}

/* --- messages --- */

static void describe_frame(struct rk_str *out, const struct rk_cpu_net *net, const struct rk_cpu_frame *frame)
{
    static const char *const reduce_names[RK_REDUCE_OP_COUNT] = {"sum", "max", "min", "ordered sum"};
    char name[RK_COMM_NAME_BYTES];

    if (frame->magic != FRAME_MAGIC || frame->op >= RK_COMM_OP_COUNT) {
        rk_str_append(out, "garbage");
        return;
    }
    rk_str_appendf(out, "%s #%" PRIu64 ".%" PRIu32 " of group %s (", rk_comm_op_name((rk_comm_op_t)frame->op),
                   frame->seq, frame->step, rk_comm_world_group_name(net->world, frame->tag, name));
    if ((frame->op == RK_COMM_OP_ALL_REDUCE || frame->op == RK_COMM_OP_REDUCE_SCATTER) &&
        frame->arg < RK_REDUCE_OP_COUNT)
        rk_str_appendf(out, "%s, ", reduce_names[frame->arg]);
    if (frame->op == RK_COMM_OP_BROADCAST)
        rk_str_appendf(out, "root %u, ", frame->arg);
    rk_str_appendf(out, "%s, %" PRIu64 " bytes)",
                   rk_dtype_is_valid(frame->dtype) ? rk_dtype_name(frame->dtype) : "?", frame->bytes);
}

static struct rk_status *desync(const struct rk_cpu_net *net, const struct rk_cpu_transfer *transfer)
{
    struct rk_str expected = {0}, got = {0};
    struct rk_status *st;

    describe_frame(&expected, net, &transfer->frame);
    describe_frame(&got, net, &transfer->got);
    st = RK_FAIL_REASON(RK_ABORTED, "COMM_DESYNC", "rank %d expects %s, rank %d sent %s", net->rank,
                        rk_str_text(&expected), transfer->peer, rk_str_text(&got));
    rk_str_fini(&expected);
    rk_str_fini(&got);
    return st;
}

/* --- moving bytes --- */

/* The remaining part of a frame: header, payload or both. Returns the number of parts. */
static int rest_of(const struct rk_cpu_transfer *transfer, const struct rk_cpu_frame *header,
                   struct iovec iov[2])
{
    size_t done = transfer->done_bytes;
    int parts = 0;

    if (done < sizeof(*header)) {
        iov[parts++] = (struct iovec){.iov_base = (char *)header + done, .iov_len = sizeof(*header) - done};
        done = sizeof(*header);
    }
    done -= sizeof(*header);
    if (done < transfer->frame.bytes)
        iov[parts++] =
            (struct iovec){.iov_base = transfer->data + done, .iov_len = transfer->frame.bytes - done};
    return parts;
}

static bool is_complete(const struct rk_cpu_transfer *transfer)
{
    return transfer->done_bytes == sizeof(transfer->frame) + transfer->frame.bytes;
}

/* The control connection reports why the data connection failed. */
static void mark_broken(struct rk_cpu_peer *peer)
{
    peer->is_data_broken = true;
    peer->last_seen_ns = rk_time_now_ns();
}

static bool would_block(void)
{
    return errno == EAGAIN || errno == EWOULDBLOCK;
}

/* Sends until all transfers are done or the socket is full. */
static void pump_send(struct rk_cpu_net *net, struct rk_cpu_peer *peer)
{
    while (peer->send_head && !peer->is_data_broken) {
        struct rk_cpu_transfer *transfer = peer->send_head;
        struct iovec iov[2];
        int num_parts = rest_of(transfer, &transfer->frame, iov);
        ssize_t sent = rk_cpu_wire_send_parts(&peer->data_wire, iov, num_parts);

        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0) {
            if (!would_block())
                mark_broken(peer);
            return;
        }
        peer->last_seen_ns = rk_time_now_ns();
        transfer->done_bytes += (size_t)sent;
        if (!is_complete(transfer))
            return; /* another call would only return EAGAIN */
        peer->send_head = transfer->next;
        net->num_pending--;
    }
}

/* Receives until all transfers are done or the socket is empty. */
static struct rk_status *pump_recv(struct rk_cpu_net *net, struct rk_cpu_peer *peer)
{
    while (peer->recv_head && !peer->is_data_broken) {
        struct rk_cpu_transfer *transfer = peer->recv_head;
        bool had_header = transfer->done_bytes >= sizeof(transfer->got);
        struct iovec iov[2];
        int num_parts = rest_of(transfer, &transfer->got, iov);
        ssize_t got = rk_cpu_wire_recv_parts(&peer->data_wire, iov, num_parts);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            if (got == 0 || !would_block())
                mark_broken(peer);
            return NULL;
        }
        peer->last_seen_ns = rk_time_now_ns();
        peer->has_arrived = true;
        transfer->done_bytes += (size_t)got;
        if (!had_header && transfer->done_bytes >= sizeof(transfer->got) &&
            memcmp(&transfer->got, &transfer->frame, sizeof(transfer->got)) != 0)
            return desync(net, transfer);
        if (!is_complete(transfer))
            return NULL;
        peer->recv_head = transfer->next;
        net->num_pending--;
    }
    return NULL;
}

static struct rk_status *pump(struct rk_cpu_net *net, struct rk_cpu_peer *peer)
{
    pump_send(net, peer);
    return pump_recv(net, peer);
}

/* --- waiting --- */

static bool has_work(const struct rk_cpu_peer *peer)
{
    return peer->send_head || peer->recv_head;
}

/* Whether the silence of this peer counts from its last byte, and not from the beginning of the operation. */
static bool must_progress(const struct rk_cpu_net *net, const struct rk_cpu_peer *peer)
{
    if (peer->is_data_broken)
        return true;
    if (net->is_collective)
        return peer->has_arrived;
    return peer->recv_head && peer->recv_head->done_bytes > 0;
}

static int64_t deadline_of(const struct rk_cpu_net *net, struct rk_cpu_peer *peer)
{
    int64_t seen_ns = RK_MAX(peer->last_seen_ns, atomic_load(&peer->control_seen_ns));

    return must_progress(net, peer) ? seen_ns + net->progress_ns : net->begun_ns + net->collective_ns;
}

static int timeout_ms(struct rk_cpu_net *net, int64_t now_ns)
{
    int64_t until_ns = net->is_collective ? net->heartbeat_ns + net->progress_ns / HEARTBEATS : INT64_MAX;

    for (int32_t r = 0; r < net->size; r++) {
        if (has_work(&net->peers[r]))
            until_ns = RK_MIN(until_ns, deadline_of(net, &net->peers[r]));
    }
    if (until_ns <= now_ns)
        return 0;
    return (int)RK_MIN((until_ns - now_ns + NS_PER_MS - 1) / NS_PER_MS, INT_MAX);
}

static bool is_late(const struct rk_cpu_net *net, struct rk_cpu_peer *peer, int64_t now_ns)
{
    return has_work(peer) && now_ns >= deadline_of(net, peer);
}

/* Names all ranks that have not arrived. */
static struct rk_status *not_arrived(struct rk_cpu_net *net, int64_t now_ns)
{
    struct rk_str ranks = {0};
    struct rk_status *st;
    int32_t count = 0, first = 0;

    for (int32_t r = 0; r < net->size; r++) {
        if (!is_late(net, &net->peers[r], now_ns) || must_progress(net, &net->peers[r]))
            continue;
        first = count == 0 ? r : first;
        rk_str_appendf(&ranks, "%s%d", count++ ? ", " : "", r);
    }
    st = RK_FAIL_REASON(RK_DEADLINE_EXCEEDED, "WATCHDOG", "%s %s did not arrive within %" PRId64 " ms",
                        count > 1 ? "ranks" : "rank", rk_str_text(&ranks), net->collective_ns / NS_PER_MS);
    rk_str_fini(&ranks);
    return count == 1 ? rk_status_blame(st, first) : st;
}

static struct rk_status *judge_late(const struct rk_cpu_net *net, int32_t r)
{
    if (net->peers[r].is_data_broken)
        return RK_FAIL_REASON(RK_ABORTED, "PEER_LOST", "rank %d is lost: its data connection broke", r);
    return RK_FAIL_REASON(RK_DEADLINE_EXCEEDED, "WATCHDOG", "rank %d went silent for %" PRId64 " ms", r,
                          net->progress_ns / NS_PER_MS);
}

/* `now_ns` is the time before the last poll of the connections: everything that arrived by then has been
 * read. */
static struct rk_status *check_deadlines(struct rk_cpu_net *net, int64_t now_ns)
{
    for (int32_t r = 0; r < net->size; r++) {
        struct rk_cpu_peer *peer = &net->peers[r];

        if (!is_late(net, peer, now_ns))
            continue;
        if (must_progress(net, peer)) /* a peer with a broken data connection too */
            return rk_status_blame(judge_late(net, r), r);
        return not_arrived(net, now_ns);
    }
    return NULL;
}

static void fill_polls(struct rk_cpu_net *net)
{
    for (int32_t r = 0; r < net->size; r++) {
        struct rk_cpu_peer *peer = &net->peers[r];
        bool is_open = atomic_load(&peer->link) == RK_CPU_LINK_OPEN;
        bool is_used = has_work(peer) && !peer->is_data_broken;

        net->polls[r] = (struct pollfd){.fd = is_open ? peer->control_wire.fd : -1, .events = POLLIN};
        net->polls[net->size + r] = (struct pollfd){
            .fd = is_used ? peer->data_wire.fd : -1,
            .events = (short)((peer->send_head ? POLLOUT : 0) | (peer->recv_head ? POLLIN : 0))};
    }
    net->polls[2 * net->size] = (struct pollfd){.fd = net->wake_fd, .events = POLLIN};
}

/* Explains a failed data connection; the reason has usually arrived on the control connection before. NULL:
 * not known yet. */
static struct rk_status *explain_broken(struct rk_cpu_net *net)
{
    for (int32_t r = 0; r < net->size; r++) {
        if (!net->peers[r].is_data_broken)
            continue;
        RK_TRY(rk_cpu_control_read(net));
        if (atomic_load(&net->peers[r].link) == RK_CPU_LINK_BYE)
            return rk_status_blame(
                RK_FAIL_REASON(RK_ABORTED, "PEER_LOST", "rank %d is lost: it left the world", r), r);
    }
    return NULL;
}

/* Polls once and handles all events. */
static struct rk_status *wait_and_pump(struct rk_cpu_net *net, int64_t now_ns)
{
    bool is_control_ready = false;
    int num_ready;

    fill_polls(net);
    num_ready = poll(net->polls, (nfds_t)(2 * net->size + 1), timeout_ms(net, now_ns));
    if (num_ready < 0 && errno != EINTR)
        return RK_FAIL(RK_INTERNAL, "poll: %s", strerror(errno));
    if (atomic_load(&net->world->has_failed))
        return rk_comm_world_error(net->world);
    if (num_ready <= 0)
        return NULL;
    for (int32_t r = 0; r < net->size; r++)
        is_control_ready = is_control_ready || net->polls[r].revents;
    if (is_control_ready)
        RK_TRY(rk_cpu_control_read(net));
    for (int32_t r = 0; r < net->size; r++) {
        if (net->polls[net->size + r].revents)
            RK_TRY(pump(net, &net->peers[r]));
    }
    return NULL;
}

static struct rk_status *run(struct rk_cpu_net *net)
{
    link_transfers(net);
    if (net->has_unread_control) { /* poll() does not report frames that TLS has already buffered */
        net->has_unread_control = false;
        RK_TRY(rk_cpu_control_read(net));
    }
    /* Small operations often complete without a poll. */
    for (int32_t r = 0; r < net->size; r++)
        RK_TRY(pump(net, &net->peers[r]));
    while (net->num_pending > 0) {
        int64_t now_ns = rk_time_now_ns();

        RK_TRY(explain_broken(net));
        if (net->is_collective && now_ns >= net->heartbeat_ns + net->progress_ns / HEARTBEATS) {
            net->heartbeat_ns = now_ns;
            rk_cpu_control_heartbeat(net);
        }
        RK_TRY(wait_and_pump(net, now_ns));
        RK_TRY(check_deadlines(net, now_ns));
    }
    return NULL;
}

struct rk_status *rk_cpu_exchange(struct rk_cpu_net *net)
{
    struct rk_status *st = run(net);
    char seq[32] = "";

    net->transfers.count = 0;
    if (!st)
        return NULL;
    if (net->is_collective)
        snprintf(seq, sizeof(seq), " #%" PRIu64, net->frame.seq);
    rk_comm_world_fail(net->world, RK_WRAP(st, "%s%s of group %s", rk_comm_op_name(net->world->doing.op), seq,
                                           net->group->name));
    return rk_comm_world_error(net->world);
}
