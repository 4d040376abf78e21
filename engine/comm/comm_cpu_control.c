/* Control connections of the CPU peer network: they carry which ranks are alive, which left, and which
 * aborted with what reason.
 *
 * Frames have a fixed size and are sent without waiting. The connections carry little traffic, so a frame
 * that does not fit the send buffer means that the peer has not read for minutes; the frame is dropped. */
#include "engine/comm/comm_cpu_internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/rk_assert.h"
#include "base/rk_time.h"

#define CONTROL_MAGIC 0x544b4352u /* "RCKT" */

typedef enum rk_cpu_control_kind {
    RK_CPU_CONTROL_BYE = 1,
    RK_CPU_CONTROL_ABORT,
    RK_CPU_CONTROL_HEARTBEAT
} rk_cpu_control_kind_t;

static void send_control(struct rk_cpu_peer *peer, const struct rk_cpu_control *control)
{
    ssize_t sent;

    if (peer->control_wire.fd < 0 || atomic_load(&peer->link) != RK_CPU_LINK_OPEN)
        return;
    do {
        sent = rk_cpu_wire_send(&peer->control_wire, control, sizeof(*control));
    } while (sent < 0 && errno == EINTR);
}

/* --- reading --- */

static struct rk_status *peer_lost(struct rk_cpu_peer *peer, int32_t rank, const char *how)
{
    atomic_store(&peer->link, RK_CPU_LINK_CLOSED);
    return rk_status_blame(RK_FAIL_REASON(RK_ABORTED, "PEER_LOST", "rank %d is lost: %s", rank, how), rank);
}

/* Status reasons are static strings: maps the text that a peer sent to one of them. */
static const char *known_reason(const char *text)
{
    static const char *const reasons[] = {"PEER_LOST", "COMM_DESYNC", "WATCHDOG"};

    for (size_t i = 0; i < RK_ARRAY_LEN(reasons); i++) {
        if (strcmp(text, reasons[i]) == 0)
            return reasons[i];
    }
    return "COMM_ABORTED";
}

/* Always ABORTED, whatever the code on the rank where the failure began: here, another rank aborted the
 * operation. */
static struct rk_status *peer_aborted(struct rk_cpu_peer *peer, int32_t rank)
{
    struct rk_cpu_control *control = &peer->control;
    struct rk_status *st;

    control->reason[sizeof(control->reason) - 1] = '\0';
    control->text[sizeof(control->text) - 1] = '\0';
    atomic_store(&peer->link, RK_CPU_LINK_CLOSED);
    st =
        RK_FAIL_REASON(RK_ABORTED, known_reason(control->reason), "rank %d reports: %s", rank, control->text);
    return control->blamed_rank >= 0 ? rk_status_blame(st, control->blamed_rank) : st;
}

static struct rk_status *take_control(struct rk_cpu_peer *peer, int32_t rank)
{
    if (peer->control.magic == CONTROL_MAGIC) {
        switch (peer->control.kind) {
        case RK_CPU_CONTROL_HEARTBEAT:
            atomic_store(&peer->control_seen_ns, rk_time_now_ns());
            peer->control.text[sizeof(peer->doing) - 1] = '\0';
            memcpy(peer->doing, peer->control.text, sizeof(peer->doing));
            return NULL;
        case RK_CPU_CONTROL_BYE:
            atomic_store(&peer->link, RK_CPU_LINK_BYE);
            return NULL;
        case RK_CPU_CONTROL_ABORT:
            return peer_aborted(peer, rank);
        default:
            break;
        }
    }
    return peer_lost(peer, rank, "its control connection sent an invalid frame");
}

/* Reads all pending frames of one connection. Under control_lock. */
static struct rk_status *read_peer(struct rk_cpu_net *net, int32_t rank)
{
    struct rk_cpu_peer *peer = &net->peers[rank];
    ssize_t got;

    while (atomic_load(&peer->link) == RK_CPU_LINK_OPEN) {
        got = rk_cpu_wire_recv(&peer->control_wire, (char *)&peer->control + peer->control_filled,
                               sizeof(peer->control) - peer->control_filled);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return NULL;
        if (got == 0)
            return peer_lost(peer, rank, "its control connection closed without a leave message");
        if (got < 0)
            return peer_lost(peer, rank, strerror(errno));
        peer->control_filled += (size_t)got;
        if (peer->control_filled < sizeof(peer->control))
            continue;
        peer->control_filled = 0;
        RK_TRY(take_control(peer, rank));
    }
    return NULL;
}

struct rk_status *rk_cpu_control_read(struct rk_cpu_net *net)
{
    struct rk_status *st = NULL;

    RK_ASSERT(pthread_mutex_lock(&net->control_lock) == 0);
    /* After this rank has aborted, closed connections carry no new information. */
    for (int32_t r = 0; r < net->size && !st && !net->is_down; r++) {
        if (net->peers[r].control_wire.fd >= 0)
            st = read_peer(net, r);
    }
    RK_ASSERT(pthread_mutex_unlock(&net->control_lock) == 0);
    return st;
}

/* --- writing --- */

/* Sends to all peers, or only to those in the running collective. Under control_lock. */
static void tell_locked(struct rk_cpu_net *net, const struct rk_cpu_control *control, bool arrived_only)
{
    for (int32_t r = 0; r < net->size && !net->is_down; r++) {
        if (!arrived_only || net->peers[r].has_arrived)
            send_control(&net->peers[r], control);
    }
}

static void tell(struct rk_cpu_net *net, const struct rk_cpu_control *control, bool arrived_only)
{
    RK_ASSERT(pthread_mutex_lock(&net->control_lock) == 0);
    tell_locked(net, control, arrived_only);
    RK_ASSERT(pthread_mutex_unlock(&net->control_lock) == 0);
}

void rk_cpu_control_abort(struct rk_cpu_net *net, const struct rk_status *error)
{
    struct rk_cpu_control control = {.magic = CONTROL_MAGIC, .kind = RK_CPU_CONTROL_ABORT};
    uint64_t one = 1;

    control.blamed_rank = rk_status_blamed_rank(error);
    snprintf(control.reason, sizeof(control.reason), "%s", rk_status_reason(error));
    snprintf(control.text, sizeof(control.text), "%s", rk_status_message(error));
    RK_ASSERT(pthread_mutex_lock(&net->control_lock) == 0);
    if (!net->is_down) {
        tell_locked(net, &control, false);
        net->is_down = true;
        /* Shut down but not closed: the engine thread may be using the sockets. It closes them when the world
         * is destroyed. */
        for (int32_t r = 0; r < net->size; r++) {
            if (net->peers[r].data_wire.fd >= 0)
                shutdown(net->peers[r].data_wire.fd, SHUT_RDWR);
            if (net->peers[r].control_wire.fd >= 0)
                shutdown(net->peers[r].control_wire.fd, SHUT_RDWR);
        }
        RK_ASSERT(write(net->wake_fd, &one, sizeof(one)) == sizeof(one));
    }
    RK_ASSERT(pthread_mutex_unlock(&net->control_lock) == 0);
}

void rk_cpu_control_bye(struct rk_cpu_net *net)
{
    struct rk_cpu_control control = {.magic = CONTROL_MAGIC, .kind = RK_CPU_CONTROL_BYE};

    tell(net, &control, false);
}

void rk_cpu_control_heartbeat(struct rk_cpu_net *net)
{
    struct rk_cpu_control control = {.magic = CONTROL_MAGIC, .kind = RK_CPU_CONTROL_HEARTBEAT};

    tell(net, &control, true);
}

/* --- monitoring the ranks of another backend --- */

void rk_comm_control_heartbeat(struct rk_comm_world *control, const char *doing)
{
    struct rk_cpu_control frame = {.magic = CONTROL_MAGIC, .kind = RK_CPU_CONTROL_HEARTBEAT};

    snprintf(frame.text, RK_COMM_DOING_BYTES, "%s", doing);
    tell(control->impl, &frame, false);
}

const char *rk_comm_control_doing(struct rk_comm_world *control, int32_t rank, char buf[RK_COMM_DOING_BYTES])
{
    struct rk_cpu_net *net = control->impl;

    RK_ASSERT(pthread_mutex_lock(&net->control_lock) == 0);
    memcpy(buf, net->peers[rank].doing, RK_COMM_DOING_BYTES);
    RK_ASSERT(pthread_mutex_unlock(&net->control_lock) == 0);
    return buf;
}

int64_t rk_comm_control_seen_ns(const struct rk_comm_world *control, int32_t rank)
{
    const struct rk_cpu_net *net = control->impl;

    return atomic_load(&net->peers[rank].control_seen_ns);
}

void rk_comm_control_leave(struct rk_comm_world *control)
{
    rk_cpu_control_bye(control->impl);
}

bool rk_comm_control_has_left(const struct rk_comm_world *control, int32_t rank)
{
    const struct rk_cpu_net *net = control->impl;

    return atomic_load(&net->peers[rank].link) == RK_CPU_LINK_BYE;
}
