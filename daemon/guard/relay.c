#include "daemon/guard/relay_internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

#define ROUNDS_MAX 16 /* of a connection, before the next connection has its turn */
/* From this size on the rest of a frame's payload is moved through a pipe. Only DATA may be as large, see
 * RK_H2_CONTROL_BYTES. */
#define PIPE_BYTES_MIN    (64 << 10)
#define PIPE_BYTES_MAX    (512 << 10) /* in a round */
#define GOAWAY_HEAD_BYTES 8           /* last stream and code */
#define ENHANCE_YOUR_CALM 11

/* --- buffers --- */

static char *take_buffer(struct rk_relay_pool *pool)
{
    return pool->num_free > 0 ? pool->free[--pool->num_free] : rk_malloc(RK_RELAY_BUFFER_BYTES);
}

static void give_buffer(struct rk_relay_pool *pool, char *data)
{
    if (data && pool->num_free < RK_RELAY_POOL_MAX)
        pool->free[pool->num_free++] = data;
    else
        rk_free(data);
}

void rk_relay_pool_fini(struct rk_relay_pool *pool)
{
    while (pool->num_free > 0)
        rk_free(pool->free[--pool->num_free]);
    rk_pipe_pool_fini(&pool->pipes);
}

/* --- one direction --- */

typedef enum half_state { HALF_GOES_ON, HALF_STOPS, HALF_ENDED, HALF_CUT } half_state_t;

static bool is_later(int error)
{
    return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

/* The client's side may be TLS; the server's never is. */
static ssize_t send_some(struct rk_relay *relay, int fd, const void *data, size_t bytes)
{
    if (relay->tls && fd == relay->client_fd)
        return rk_tls_send(relay->tls, data, bytes);
    return send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* *is_empty: all received data was taken; an event reports more. */
static ssize_t receive_some(struct rk_relay *relay, int fd, void *data, size_t bytes, bool *is_empty)
{
    ssize_t got;

    if (relay->tls && fd == relay->client_fd) {
        got = rk_tls_recv(relay->tls, data, bytes);
        *is_empty = rk_tls_is_drained(relay->tls);
    } else {
        got = recv(fd, data, bytes, MSG_DONTWAIT);
        *is_empty = got < (ssize_t)bytes;
    }
    return got;
}

static half_state_t send_passed(struct rk_relay *relay, struct rk_relay_half *half, int fd)
{
    while (half->sent < half->passed) {
        ssize_t sent;

        if (!half->can_write)
            return HALF_STOPS;
        sent = send_some(relay, fd, half->data + half->sent, half->passed - half->sent);
        if (sent >= 0)
            half->sent += (size_t)sent;
        else if (is_later(errno))
            half->can_write = errno == EINTR;
        else
            return HALF_ENDED; /* the other side has closed */
    }
    return HALF_GOES_ON;
}

/* Frees the space of sent data. */
static void compact(struct rk_relay *relay, struct rk_relay_half *half)
{
    if (half->sent == 0)
        return;
    half->bytes -= half->sent;
    half->passed -= half->sent;
    memmove(half->data, half->data + half->sent, half->bytes);
    half->sent = 0;
    if (half->bytes == 0) {
        give_buffer(relay->pool, half->data);
        half->data = NULL;
    }
}

static half_state_t receive(struct rk_relay *relay, struct rk_relay_half *half, int fd)
{
    size_t room = RK_RELAY_BUFFER_BYTES - half->bytes;
    bool is_empty;
    ssize_t got;

    if (!half->can_read || room == 0)
        return HALF_STOPS;
    if (!half->data)
        half->data = take_buffer(relay->pool);
    got = receive_some(relay, fd, half->data + half->bytes, room, &is_empty);
    if (got > 0) {
        half->bytes += (size_t)got;
        half->can_read = !is_empty;
        return HALF_GOES_ON;
    }
    if (half->bytes == 0) {
        give_buffer(relay->pool, half->data);
        half->data = NULL;
    }
    if (got == 0 || !is_later(errno))
        return HALF_ENDED;
    half->can_read = errno == EINTR;
    return HALF_STOPS;
}

static half_state_t filter(struct rk_relay *relay, struct rk_relay_half *half, int64_t now_ns)
{
    const uint8_t *data = (const uint8_t *)half->data + half->passed;
    size_t bytes = half->bytes - half->passed, passed;
    rk_h2_verdict_t verdict = RK_H2_PASS;

    if (half == &relay->from_server)
        rk_h2_filter_server(&relay->filter, data, bytes, now_ns, &passed);
    else
        verdict = rk_h2_filter_client(&relay->filter, data, bytes, now_ns, &passed);
    half->passed += passed;
    half->is_held = verdict == RK_H2_WAIT;
    return verdict == RK_H2_CUT ? HALF_CUT : HALF_GOES_ON;
}

/* --- large frames --- */

static struct rk_h2_direction *direction_of(struct rk_relay *relay, const struct rk_relay_half *half)
{
    return half == &relay->from_server ? &relay->filter.server : &relay->filter.client;
}

/* Takes a pipe if the filter does not need to see the next bytes: they are the payload of a large frame. An
 * unauthorised client gets no pipe, because the pages of the network are not counted as the daemon's memory.
 */
static bool uses_pipe(struct rk_relay *relay, struct rk_relay_half *half)
{
    if (half->pipe)
        return true;
    if (relay->tls || half->bytes > 0 || !half->can_read ||
        direction_of(relay, half)->payload_left < PIPE_BYTES_MIN ||
        (half == &relay->from_client && !relay->filter.is_trusted))
        return false;
    half->pipe = rk_pipe_take(&relay->pool->pipes);
    return half->pipe != NULL;
}

static half_state_t fill_pipe(struct rk_relay *relay, struct rk_relay_half *half, int from)
{
    struct rk_h2_direction *direction = direction_of(relay, half);
    size_t room = (size_t)RK_MIN(direction->payload_left, (uint64_t)PIPE_BYTES_MAX);
    ssize_t got = rk_pipe_fill(&relay->pool->pipes, half->pipe, from, room);

    if (got > 0) {
        direction->payload_left -= (uint64_t)got;
        return HALF_GOES_ON;
    }
    if (got == 0 || !is_later(errno))
        return HALF_ENDED;
    half->can_read = errno == EINTR;
    return half->can_read ? HALF_GOES_ON : HALF_STOPS;
}

static half_state_t drain_pipe(struct rk_relay_half *half, int to)
{
    while (half->pipe->bytes > 0) {
        if (!half->can_write)
            return HALF_STOPS;
        if (rk_pipe_drain(half->pipe, to) >= 0)
            continue;
        if (!is_later(errno))
            return HALF_ENDED;
        half->can_write = errno == EINTR;
    }
    return HALF_GOES_ON;
}

/* One round through the pipe, which goes back to the pool when it is empty. */
static half_state_t move_pages(struct rk_relay *relay, struct rk_relay_half *half, int from, int to)
{
    half_state_t state = half->pipe->bytes == 0 ? fill_pipe(relay, half, from) : HALF_GOES_ON;

    if (state == HALF_GOES_ON)
        state = drain_pipe(half, to);
    if (half->pipe->bytes == 0) {
        rk_pipe_give(&relay->pool->pipes, half->pipe);
        half->pipe = NULL;
    }
    return state;
}

/* --- rounds --- */

/* One round: sends the bytes that passed, receives new ones. */
static half_state_t move(struct rk_relay *relay, struct rk_relay_half *half, int from, int to, int64_t now_ns)
{
    half_state_t state;

    if (to >= 0) {
        state = send_passed(relay, half, to);
        if (state != HALF_GOES_ON)
            return state;
        compact(relay, half);
        if (uses_pipe(relay, half))
            return move_pages(relay, half, from, to);
    }
    if (half->is_held) {
        if (now_ns < relay->filter.wait_until_ns)
            return HALF_STOPS;
    } else {
        state = receive(relay, half, from);
        if (state != HALF_GOES_ON)
            return state;
    }
    return filter(relay, half, now_ns);
}

static rk_relay_state_t run_half(struct rk_relay *relay, struct rk_relay_half *half, int from, int to,
                                 int64_t now_ns)
{
    for (int round = 0; round < ROUNDS_MAX; round++) {
        switch (move(relay, half, from, to, now_ns)) {
        case HALF_CUT:
            return RK_RELAY_CUT;
        case HALF_ENDED:
            return RK_RELAY_ENDED;
        case HALF_STOPS:
            return RK_RELAY_IDLE;
        default:
            break;
        }
    }
    return RK_RELAY_READY;
}

/* --- both --- */

void rk_relay_init(struct rk_relay *relay, struct rk_relay_pool *pool, struct rk_h2_shared *shared,
                   int client_fd, int64_t now_ns)
{
    *relay = (struct rk_relay){.pool = pool, .client_fd = client_fd, .server_fd = -1};
    relay->from_client.can_read = relay->from_client.can_write = true;
    relay->from_server.can_read = relay->from_server.can_write = true;
    rk_h2_filter_init(&relay->filter, shared, now_ns);
}

void rk_relay_expect_tls(struct rk_relay *relay)
{
    relay->tls_state = RK_RELAY_TLS_WAITS;
    relay->from_client.can_read = false; /* until an event reports data of the client */
}

void rk_relay_begin_tls(struct rk_relay *relay, struct rk_tls *tls, rk_tls_demand_t demand)
{
    RK_ASSERT(relay->tls_state == RK_RELAY_TLS_WAITS);
    relay->tls = rk_tls_accept(tls, relay->client_fd, demand);
    relay->tls_state = RK_RELAY_TLS_SHAKES;
}

static rk_relay_state_t shake(struct rk_relay *relay)
{
    if (relay->tls_state == RK_RELAY_TLS_WAITS)
        return RK_RELAY_IDLE;
    switch (rk_tls_shake(relay->tls)) {
    case RK_TLS_DONE:
        relay->tls_state = RK_RELAY_TLS_UP;
        relay->from_client.can_read = relay->from_server.can_write = true;
        return RK_RELAY_READY;
    case RK_TLS_WAITS:
        return RK_RELAY_IDLE;
    default:
        return rk_tls_has_closed(relay->tls) ? RK_RELAY_ENDED : RK_RELAY_CUT;
    }
}

const char *rk_relay_why(const struct rk_relay *relay)
{
    return relay->filter.rule ? relay->filter.rule : relay->tls ? rk_tls_error(relay->tls) : "";
}

static void close_side(struct rk_relay *relay, struct rk_relay_half *half, int *fd)
{
    give_buffer(relay->pool, half->data);
    if (half->pipe) /* a Unix connection has no pool */
        rk_pipe_give(&relay->pool->pipes, half->pipe);
    *half = (struct rk_relay_half){0};
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

void rk_relay_fini(struct rk_relay *relay)
{
    rk_tls_conn_destroy(relay->tls);
    relay->tls = NULL;
    close_side(relay, &relay->from_client, &relay->client_fd);
    close_side(relay, &relay->from_server, &relay->server_fd);
}

bool rk_relay_wants_server(const struct rk_relay *relay)
{
    return relay->server_fd < 0 && relay->filter.is_greeted && !relay->filter.rule;
}

rk_relay_state_t rk_relay_run(struct rk_relay *relay, int64_t now_ns)
{
    rk_relay_state_t from_client, from_server = RK_RELAY_IDLE;

    if (relay->tls_state == RK_RELAY_TLS_WAITS || relay->tls_state == RK_RELAY_TLS_SHAKES)
        return shake(relay);
    if (relay->server_fd >= 0) {
        from_server = run_half(relay, &relay->from_server, relay->server_fd, relay->client_fd, now_ns);
        if (from_server == RK_RELAY_ENDED)
            return from_server;
    }
    from_client = run_half(relay, &relay->from_client, relay->client_fd, relay->server_fd, now_ns);
    return from_client == RK_RELAY_IDLE ? from_server : from_client;
}

rk_relay_state_t rk_relay_tick(struct rk_relay *relay, int64_t now_ns)
{
    const struct rk_relay_half *half = &relay->from_client;
    bool waits_for_us =
        relay->server_fd >= 0 && (half->is_held || half->sent < half->passed || half->pipe != NULL);

    if (waits_for_us || rk_relay_wants_server(relay))
        return RK_RELAY_IDLE;
    if (rk_h2_filter_tick(&relay->filter, now_ns) != RK_H2_CUT)
        return RK_RELAY_IDLE;
    if (relay->tls_state == RK_RELAY_TLS_WAITS || relay->tls_state == RK_RELAY_TLS_SHAKES)
        relay->filter.rule = "no TLS handshake within 5 s";
    return RK_RELAY_CUT;
}

/* GOAWAY with the rule as its text, if no other data is pending. */
void rk_relay_say_goodbye(struct rk_relay *relay)
{
    const char *rule = relay->filter.rule ? relay->filter.rule : "";
    size_t text_bytes = strlen(rule);
    uint8_t frame[RK_H2_HEAD_BYTES + GOAWAY_HEAD_BYTES + 64] = {
        0, 0, (uint8_t)(GOAWAY_HEAD_BYTES + text_bytes), 7, [RK_H2_HEAD_BYTES + 7] = ENHANCE_YOUR_CALM};
    bool is_between =
        relay->from_server.bytes == 0 && !relay->from_server.pipe && relay->filter.server.payload_left == 0;
    ssize_t ignored = 0;

    RK_ASSERT(text_bytes <= 64);
    memcpy(frame + RK_H2_HEAD_BYTES + GOAWAY_HEAD_BYTES, rule, text_bytes);
    if (is_between && relay->server_fd >= 0)
        ignored =
            send_some(relay, relay->client_fd, frame, RK_H2_HEAD_BYTES + GOAWAY_HEAD_BYTES + text_bytes);
    (void)ignored; /* best effort: the peer is being cut */
    close_side(relay, &relay->from_server, &relay->server_fd);
}
