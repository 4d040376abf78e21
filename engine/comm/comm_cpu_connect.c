/* Connects the CPU peer network. Every rank listens from round 1 of the rendezvous on; in round 2 the higher
 * rank of a pair opens two connections to the lower one, data and control, and retries until the listener
 * accepts.
 *
 * Rank r first connects to 0 .. r-1, one after the other, then accepts r+1 .. n-1. This cannot deadlock: rank
 * 0 accepts at once, and rank r finishes its connects once all ranks below r accept. A connection is not
 * trusted until its proof has been checked, so unauthenticated connections are bounded in number and time and
 * do not block one another. */
#include "engine/comm/comm_cpu_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_log.h"
#include "base/rk_random.h"
#include "base/rk_str.h"
#include "base/rk_time.h"

#define NS_PER_MS 1000000
/* Pause between two attempts to connect. */
#define RETRY_MS 20
/* Maximum number of unauthenticated connections; one more closes the oldest. */
#define MAX_PENDING 64
/* Time limit of a handshake. A peer rank needs one or two milliseconds. */
#define HANDSHAKE_MS 5000
/* Holds a whole part on a Unix socket; the kernel caps it at its own limit. TCP sizes its buffers itself. */
#define UNIX_BUFFER_BYTES (4 << 20)
/* Detects dead hosts on the control connection: first probe after 10 s of silence, connection lost 9 s
 * later. */
#define KEEPALIVE_IDLE_S     10
#define KEEPALIVE_INTERVAL_S 3
#define KEEPALIVE_PROBES     3

/* --- socket options and waits, used by both sides --- */

static void set_option(int fd, int level, int option, int value)
{
    /* All of these options only tune; the connection works without them. */
    (void)setsockopt(fd, level, option, &value, sizeof(value));
}

static void tune_socket(int fd, int family, rk_cpu_channel_t channel, int64_t collective_ms)
{
    if (family == AF_UNIX) {
        if (channel == RK_CPU_CHANNEL_DATA)
            set_option(fd, SOL_SOCKET, SO_SNDBUF, UNIX_BUFFER_BYTES);
        return;
    }
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    if (channel == RK_CPU_CHANNEL_DATA) {
        /* The timeout also runs while the peer computes and its receive window is closed, so it must be at
         * least the collective timeout. */
        set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)RK_MIN(collective_ms, INT_MAX));
        return;
    }
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_PROBES);
}

static void set_peer_wire(struct rk_cpu_net *net, int32_t rank, rk_cpu_channel_t channel,
                          struct rk_cpu_wire wire)
{
    struct rk_cpu_peer *peer = &net->peers[rank];
    struct rk_cpu_wire *slot = channel == RK_CPU_CHANNEL_DATA ? &peer->data_wire : &peer->control_wire;

    RK_ASSERT(slot->fd < 0);
    *slot = wire;
}

static int remaining_ms(int64_t deadline_ns)
{
    int64_t left_ns = deadline_ns - rk_time_now_ns();

    return left_ns <= 0 ? 0 : (int)RK_MIN((left_ns + NS_PER_MS - 1) / NS_PER_MS, INT_MAX);
}

/* --- connecting --- */

/* Interval at which a wait checks should_stop. */
#define ASK_MS 100

static struct rk_status *check_wanted(const struct rk_comm_world_config *config)
{
    if (!config->should_stop || !config->should_stop(config->user))
        return NULL;
    return RK_FAIL_REASON(RK_ABORTED, "COMM_ABORTED",
                          "connecting the ranks aborted: this rank was asked to stop");
}

/* One attempt to join a lower rank on one channel. */
struct attempt {
    const struct rk_comm_world_config *config;
    int64_t deadline_ns;
    const uint8_t *id;
    struct rk_tls *tls;
    struct rk_cpu_hello hello;
    struct rk_cpu_address address;
    char error[128]; /* reason why the last attempt failed, for the final message */
};

static bool wait_for(int fd, short events, const struct attempt *attempt)
{
    const struct rk_comm_world_config *config = attempt->config;
    struct pollfd poll_fd = {.fd = fd, .events = events};
    int rc, left_ms;

    do {
        left_ms = remaining_ms(attempt->deadline_ns);
        rc = poll(&poll_fd, 1, RK_MIN(left_ms, ASK_MS));
        if (rc == 0 && (left_ms == 0 || (config->should_stop && config->should_stop(config->user)))) {
            errno = ETIMEDOUT;
            return false;
        }
    } while (rc == 0 || (rc < 0 && errno == EINTR));
    return rc > 0;
}

/* Writes the whole buffer to a non-blocking socket. On false, errno is set. */
static bool write_full(const struct rk_cpu_wire *wire, const void *data, size_t bytes,
                       const struct attempt *attempt)
{
    while (bytes > 0) {
        ssize_t sent = rk_cpu_wire_send(wire, data, bytes);

        if (sent >= 0) {
            data = (const char *)data + sent;
            bytes -= (size_t)sent;
        } else if (errno == EAGAIN) {
            if (!wait_for(wire->fd, POLLOUT, attempt))
                return false;
        } else if (errno != EINTR) {
            return false;
        }
    }
    return true;
}

static bool read_full(const struct rk_cpu_wire *wire, void *data, size_t bytes, const struct attempt *attempt)
{
    while (bytes > 0) {
        ssize_t got = rk_cpu_wire_recv(wire, data, bytes);

        if (got > 0) {
            data = (char *)data + got;
            bytes -= (size_t)got;
        } else if (got == 0) {
            errno = ECONNRESET;
            return false;
        } else if (errno == EAGAIN) {
            if (!wait_for(wire->fd, POLLIN, attempt))
                return false;
        } else if (errno != EINTR) {
            return false;
        }
    }
    return true;
}

static bool connect_socket(int fd, const struct attempt *attempt)
{
    int error = 0;
    socklen_t bytes = sizeof(error);

    if (connect(fd, (const struct sockaddr *)&attempt->address.storage, attempt->address.bytes) == 0)
        return true;
    if (errno != EINPROGRESS || !wait_for(fd, POLLOUT, attempt))
        return false;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0)
        return false;
    errno = error;
    return error == 0;
}

/* Certificate errors on either side are final: a retry cannot succeed. */
static struct rk_status *tls_failure(const struct rk_cpu_wire *wire, const struct attempt *attempt)
{
    if (!wire->tls || !*rk_tls_error(wire->tls) || rk_tls_has_closed(wire->tls))
        return NULL;
    return RK_FAIL_REASON(RK_UNAUTHENTICATED, "TLS", "TLS handshake with rank %d at '%s' failed: %s",
                          attempt->hello.to_rank, attempt->config->addresses[attempt->hello.to_rank],
                          rk_tls_error(wire->tls));
}

/* On false, errno is set or tls_failure() returns the error. */
static bool shake_tls(struct rk_cpu_wire *wire, const struct attempt *attempt)
{
    rk_tls_step_t step;

    if (!attempt->tls || attempt->address.storage.ss_family == AF_UNIX)
        return true;
    wire->tls = rk_tls_connect(attempt->tls, wire->fd, attempt->address.host, false);
    while ((step = rk_tls_shake(wire->tls)) == RK_TLS_WAITS) {
        if (!wait_for(wire->fd, rk_tls_waits_to_send(wire->tls) ? POLLOUT : POLLIN, attempt))
            return false;
    }
    errno = ECONNRESET;
    return step == RK_TLS_DONE;
}

/* The connector's side of the handshake. *is_up: whether the handshake completed. A connection that broke
 * earlier may be retried; a refusal is final. */
static struct rk_status *shake_hands(struct attempt *attempt, struct rk_cpu_wire *wire, bool *is_up)
{
    struct rk_cpu_challenge challenge;
    uint8_t proof[RK_CPU_PROOF_BYTES];
    uint32_t verdict;

    *is_up = false;
    RK_TRY(rk_random_bytes(attempt->hello.nonce, sizeof(attempt->hello.nonce)));
    if (!shake_tls(wire, attempt) || !write_full(wire, &attempt->hello, sizeof(attempt->hello), attempt) ||
        !read_full(wire, &challenge, sizeof(challenge), attempt))
        return tls_failure(wire, attempt);
    RK_TRY(rk_cpu_challenge_check(&challenge, &attempt->hello, attempt->id));
    rk_cpu_prove(proof, &attempt->hello, &challenge, attempt->id);
    if (!write_full(wire, proof, sizeof(proof), attempt) ||
        !read_full(wire, &verdict, sizeof(verdict), attempt))
        return NULL;
    RK_TRY(rk_cpu_verdict_status(verdict, &attempt->hello));
    *is_up = true;
    return NULL;
}

/* Sets wire->fd to -1 when the attempt may be retried. */
static struct rk_status *try_connect(struct attempt *attempt, struct rk_cpu_wire *wire)
{
    struct rk_status *st = NULL;
    bool is_up = false;

    wire->fd = socket(attempt->address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (wire->fd < 0)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "socket: %s", strerror(errno));
    if (connect_socket(wire->fd, attempt))
        st = shake_hands(attempt, wire, &is_up);
    if (is_up)
        return NULL;
    snprintf(attempt->error, sizeof(attempt->error), "%s", strerror(errno));
    rk_cpu_wire_close(wire);
    return st;
}

static struct rk_status *connect_to(struct rk_cpu_net *net, int32_t rank, rk_cpu_channel_t channel,
                                    struct rk_tls *tls, const struct rk_comm_world_config *config,
                                    int64_t deadline_ns)
{
    struct attempt attempt = {.config = config, .deadline_ns = deadline_ns, .id = config->id, .tls = tls};
    struct rk_cpu_wire wire = {.fd = -1};

    RK_TRY(rk_cpu_address_parse(&attempt.address, config->addresses[rank]));
    rk_cpu_hello_init(&attempt.hello, net->rank, rank, net->size, config->generation, channel);
    while (wire.fd < 0) {
        RK_TRY(rk_cpu_control_read(net)); /* a peer that aborted will not accept again */
        RK_TRY(check_wanted(config));
        RK_TRY(try_connect(&attempt, &wire));
        if (wire.fd < 0 && rk_time_now_ns() >= deadline_ns)
            return RK_FAIL_REASON(RK_DEADLINE_EXCEEDED, "WATCHDOG",
                                  "connecting to rank %d at '%s' within %" PRId64 " ms: %s", rank,
                                  config->addresses[rank], config->connect_timeout_ms, attempt.error);
        if (wire.fd < 0)
            rk_time_sleep_ms(RETRY_MS);
    }
    tune_socket(wire.fd, attempt.address.storage.ss_family, channel, config->collective_timeout_ms);
    set_peer_wire(net, rank, channel, wire);
    return NULL;
}

/* --- accepting --- */

/* An accepted connection that has not finished its handshake. */
struct pending {
    struct rk_cpu_wire wire;
    bool is_shaken; /* with TLS */
    int64_t deadline_ns;
    struct rk_cpu_acceptor acceptor;
};

struct listener {
    struct rk_cpu_net *net;
    struct rk_cpu_rules rules;
    bool *is_taken; /* [size * RK_CPU_CHANNEL_COUNT] */
    int64_t num_missing;
    int family;
    struct rk_tls *tls; /* NULL: plain */
    int64_t collective_ms;
    struct pending pending[MAX_PENDING]; /* oldest first */
    int num_pending;
    struct pollfd *polls; /* [1 + MAX_PENDING + size]: listener, unauthenticated connections, control
                           * connections */
};

static void drop_pending(struct listener *listener, int i)
{
    listener->num_pending--;
    memmove(&listener->pending[i], &listener->pending[i + 1],
            (size_t)(listener->num_pending - i) * sizeof(listener->pending[0]));
}

static struct rk_status *accept_stranger(struct listener *listener, int listen_fd)
{
    uint8_t nonce[RK_CPU_NONCE_BYTES];
    struct pending *pending;
    int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM))
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "cannot accept a connection of the mesh: %s", strerror(errno));
    if (fd < 0)
        return NULL; /* the peer closed it before accept() */
    if (listener->num_pending == MAX_PENDING) {
        rk_cpu_wire_close(&listener->pending[0].wire);
        drop_pending(listener, 0);
    }
    pending = &listener->pending[listener->num_pending++];
    *pending =
        (struct pending){.wire.fd = fd, .deadline_ns = rk_time_now_ns() + HANDSHAKE_MS * (int64_t)NS_PER_MS};
    if (listener->tls)
        pending->wire.tls = rk_tls_accept(listener->tls, fd, RK_TLS_PEER_REQUIRED);
    RK_TRY(rk_random_bytes(nonce, sizeof(nonce)));
    rk_cpu_acceptor_init(&pending->acceptor, nonce);
    return NULL;
}

/* The proof was valid: the connection becomes the peer's. */
static void admit(struct listener *listener, const struct pending *pending)
{
    const struct rk_cpu_hello *hello = &pending->acceptor.hello;
    rk_cpu_channel_t channel = (rk_cpu_channel_t)hello->channel;

    listener->is_taken[(size_t)hello->from_rank * RK_CPU_CHANNEL_COUNT + channel] = true;
    listener->num_missing--;
    tune_socket(pending->wire.fd, listener->family, channel, listener->collective_ms);
    set_peer_wire(listener->net, hello->from_rank, channel, pending->wire);
}

static rk_tls_step_t shake_pending(struct pending *pending)
{
    rk_tls_step_t step =
        pending->wire.tls && !pending->is_shaken ? rk_tls_shake(pending->wire.tls) : RK_TLS_DONE;

    pending->is_shaken = step == RK_TLS_DONE;
    return step;
}

/* Reads the available bytes and replies. Returns false when the handshake is over, successful or not. */
static bool advance_pending(struct listener *listener, struct pending *pending)
{
    uint8_t in[sizeof(pending->acceptor.in)], reply[RK_CPU_REPLY_BYTES];
    size_t wanted = rk_cpu_acceptor_wanted(&pending->acceptor), reply_bytes;
    rk_tls_step_t step = shake_pending(pending);
    ssize_t got = -1;

    if (step == RK_TLS_WAITS)
        return true;
    if (step == RK_TLS_DONE) {
        got = rk_cpu_wire_recv(&pending->wire, in, wanted);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return true;
    }
    if (got > 0) {
        reply_bytes = rk_cpu_acceptor_feed(&pending->acceptor, &listener->rules, in, (size_t)got, reply);
        /* A reply always fits a new socket's send buffer; if it does not, the peer is not a rank. */
        if (reply_bytes > 0 && rk_cpu_wire_send(&pending->wire, reply, reply_bytes) != (ssize_t)reply_bytes)
            got = -1;
    }
    if (got > 0 && rk_cpu_acceptor_wanted(&pending->acceptor) > 0)
        return true;
    if (got > 0 && pending->acceptor.stage == RK_CPU_ACCEPT_DONE) {
        admit(listener, pending);
        return false;
    }
    RK_INFO("refused a connection to the mesh of rank %d%s%s", listener->rules.rank,
            step == RK_TLS_FAILED ? ": TLS: " : "",
            step == RK_TLS_FAILED ? rk_tls_error(pending->wire.tls) : "");
    rk_cpu_wire_close(&pending->wire);
    return false;
}

static void fill_polls(struct listener *listener, int listen_fd)
{
    struct pollfd *polls = listener->polls;

    polls[0] = (struct pollfd){.fd = listen_fd, .events = POLLIN};
    for (int i = 0; i < MAX_PENDING; i++) {
        const struct rk_cpu_wire *wire = &listener->pending[i].wire;
        bool is_used = i < listener->num_pending;
        bool sends = is_used && wire->tls && rk_tls_waits_to_send(wire->tls);

        polls[1 + i] = (struct pollfd){.fd = is_used ? wire->fd : -1, .events = sends ? POLLOUT : POLLIN};
    }
    for (int32_t r = 0; r < listener->net->size; r++) {
        struct rk_cpu_peer *peer = &listener->net->peers[r];
        int fd = atomic_load(&peer->link) == RK_CPU_LINK_OPEN ? peer->control_wire.fd : -1;

        polls[1 + MAX_PENDING + r] = (struct pollfd){.fd = fd, .events = POLLIN};
    }
}

/* Waits once for events on all connections and handles them. */
static struct rk_status *accept_round(struct listener *listener, int listen_fd, int64_t deadline_ns)
{
    int64_t now_ns = rk_time_now_ns(), until_ns = RK_MIN(deadline_ns, now_ns + ASK_MS * (int64_t)NS_PER_MS);

    for (int i = 0; i < listener->num_pending; i++)
        until_ns = RK_MIN(until_ns, listener->pending[i].deadline_ns);
    fill_polls(listener, listen_fd);
    if (poll(listener->polls, (nfds_t)(1 + MAX_PENDING + listener->net->size), remaining_ms(until_ns)) < 0 &&
        errno != EINTR)
        return RK_FAIL(RK_INTERNAL, "poll: %s", strerror(errno));
    RK_TRY(rk_cpu_control_read(listener->net));
    now_ns = rk_time_now_ns();
    /* Backwards: removing an entry moves only entries that have been handled. */
    for (int i = listener->num_pending - 1; i >= 0; i--) {
        struct pending *pending = &listener->pending[i];

        if (listener->polls[1 + i].revents) {
            if (!advance_pending(listener, pending))
                drop_pending(listener, i);
        } else if (now_ns >= pending->deadline_ns) {
            rk_cpu_wire_close(&pending->wire);
            drop_pending(listener, i);
        }
    }
    return listener->polls[0].revents ? accept_stranger(listener, listen_fd) : NULL;
}

static struct rk_status *missing_ranks(const struct listener *listener, int64_t timeout_ms)
{
    struct rk_str ranks = {0};
    struct rk_status *st;

    for (int32_t r = listener->rules.rank + 1; r < listener->rules.world_size; r++) {
        const bool *is_taken = &listener->is_taken[(size_t)r * RK_CPU_CHANNEL_COUNT];

        if (!is_taken[RK_CPU_CHANNEL_DATA] || !is_taken[RK_CPU_CHANNEL_CONTROL])
            rk_str_appendf(&ranks, "%s%d", ranks.bytes ? ", " : "", r);
    }
    st = RK_FAIL_REASON(RK_DEADLINE_EXCEEDED, "WATCHDOG", "no connection from rank %s within %" PRId64 " ms",
                        rk_str_text(&ranks), timeout_ms);
    rk_str_fini(&ranks);
    return st;
}

static struct rk_status *accept_all(struct rk_cpu_net *net, const struct rk_cpu_endpoint *endpoint,
                                    const struct rk_comm_world_config *config, int64_t deadline_ns)
{
    struct listener *listener = rk_calloc(1, sizeof(*listener));
    struct rk_cpu_address local = {.bytes = sizeof(local.storage)};
    struct rk_status *st = NULL;

    listener->net = net;
    listener->is_taken = rk_calloc((size_t)net->size, RK_CPU_CHANNEL_COUNT * sizeof(bool));
    listener->polls = rk_calloc(1 + MAX_PENDING + (size_t)net->size, sizeof(struct pollfd));
    listener->rules = (struct rk_cpu_rules){.rank = net->rank,
                                            .world_size = net->size,
                                            .generation = config->generation,
                                            .id = config->id,
                                            .is_taken = listener->is_taken};
    listener->num_missing = (int64_t)RK_CPU_CHANNEL_COUNT * (net->size - 1 - net->rank);
    listener->collective_ms = config->collective_timeout_ms;
    if (getsockname(endpoint->listen_fd, (struct sockaddr *)&local.storage, &local.bytes) == 0)
        listener->family = local.storage.ss_family;
    listener->tls = listener->family == AF_UNIX ? NULL : endpoint->tls;
    while (!st && listener->num_missing > 0) {
        if (rk_time_now_ns() >= deadline_ns)
            st = missing_ranks(listener, config->connect_timeout_ms);
        else
            st = check_wanted(config);
        if (!st)
            st = accept_round(listener, endpoint->listen_fd, deadline_ns);
    }
    for (int i = 0; i < listener->num_pending; i++)
        rk_cpu_wire_close(&listener->pending[i].wire);
    rk_free(listener->polls);
    rk_free(listener->is_taken);
    rk_free(listener);
    return st;
}

struct rk_status *rk_cpu_net_connect(struct rk_cpu_net *net, struct rk_cpu_endpoint *endpoint,
                                     const struct rk_comm_world_config *config)
{
    int64_t deadline_ns = rk_time_now_ns() + config->connect_timeout_ms * NS_PER_MS;

    for (int32_t r = 0; r < net->rank; r++) {
        RK_TRY(connect_to(net, r, RK_CPU_CHANNEL_DATA, endpoint->tls, config, deadline_ns));
        RK_TRY(connect_to(net, r, RK_CPU_CHANNEL_CONTROL, endpoint->tls, config, deadline_ns));
    }
    net->has_unread_control = endpoint->tls != NULL;
    return accept_all(net, endpoint, config, deadline_ns);
}
