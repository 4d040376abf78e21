#include "daemon/guard/guard_state_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_log.h"
#include "base/rk_time.h"

#define CLOSING_NS (5000 * 1000000LL) /* gRPC closes its end in far less, unless a call holds it */

void rk_guard_watch(struct rk_guard *guard, int fd, uint32_t events, void *what)
{
    struct epoll_event event = {.events = events, .data.ptr = what};
    int rc = epoll_ctl(guard->epoll_fd, EPOLL_CTL_ADD, fd, &event);

    RK_ASSERT(rc == 0);
}

void rk_guard_format_address(char out[RK_PEER_BYTES], const struct sockaddr_storage *from, socklen_t bytes)
{
    char host[48], port[8];

    if (from->ss_family == AF_UNIX || getnameinfo((const struct sockaddr *)from, bytes, host, sizeof(host),
                                                  port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        snprintf(out, RK_PEER_BYTES, "unix");
    else
        snprintf(out, RK_PEER_BYTES, from->ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

/* gRPC may have closed its socket, and the number may belong to another file by now. */
static bool core_has_socket(const struct rk_connection *connection)
{
    struct stat info;

    return connection->core_fd >= 0 && fstat(connection->core_fd, &info) == 0 &&
           info.st_dev == connection->core_device && info.st_ino == connection->core_inode;
}

/* Closes the guard's descriptors. */
static void close_own(struct rk_guard *guard, struct rk_connection *connection)
{
    rk_relay_fini(&connection->relay);
    if (connection->watch_fd >= 0) {
        /* gRPC may still hold the other descriptor: a close would not end the watch. */
        epoll_ctl(guard->epoll_fd, EPOLL_CTL_DEL, connection->watch_fd, NULL);
        shutdown(connection->watch_fd, SHUT_RDWR);
        close(connection->watch_fd);
    }
    connection->watch_fd = -1;
}

void rk_connection_destroy(struct rk_guard *guard, struct rk_connection *connection)
{
    close_own(guard, connection);
    pthread_mutex_lock(&guard->lock);
    *connection->link = connection->next;
    if (connection->next)
        connection->next->link = connection->link;
    pthread_mutex_unlock(&guard->lock);
    guard->num_connections--;
    rk_free(connection->names);
    rk_free(connection);
}

void rk_connection_reap(struct rk_guard *guard, struct rk_connection *connection)
{
    if (connection->core_fd >= 0 && !core_has_socket(connection)) {
        pthread_mutex_lock(&guard->lock);
        connection->core_fd = -1;
        pthread_mutex_unlock(&guard->lock);
    }
    if (connection->is_closed && connection->core_fd < 0)
        rk_connection_destroy(guard, connection);
}

void rk_connection_drop(struct rk_guard *guard, struct rk_connection *connection)
{
    close_own(guard, connection);
    connection->is_closed = true;
    connection->closed_ns = rk_time_now_ns();
    connection->is_ready = false;
    rk_connection_reap(guard, connection);
}

/* With the lock held: gRPC has closed the connection that had this descriptor number, so its record must not
 * be found by the number any more. A record that the guard has closed is freed at the next tick. */
static void forget_core_fd(struct rk_guard *guard, int fd)
{
    for (struct rk_connection *one = guard->connections; one; one = one->next) {
        if (one->core_fd == fd)
            one->core_fd = -1;
    }
}

/* False when the daemon shuts down. Takes the socket then, too. */
static bool give_to_core(struct rk_guard *guard, struct rk_connection *connection, int fd)
{
    struct stat info;
    bool is_open;

    RK_ASSERT(fstat(fd, &info) == 0);
    connection->core_device = info.st_dev;
    connection->core_inode = info.st_ino;
    pthread_mutex_lock(&guard->lock);
    is_open = guard->listen_fd >= 0;
    if (is_open) {
        forget_core_fd(guard, fd);
        connection->core_fd = fd;
        guard->config.on_connection(guard->config.user, fd);
    }
    pthread_mutex_unlock(&guard->lock);
    if (!is_open)
        close(fd);
    return is_open;
}

void rk_guard_count_refused(struct rk_guard *guard, const char *peer, const char *why)
{
    char reason[96];

    guard->num_refused++;
    guard->refused_ns = rk_time_now_ns();
    snprintf(reason, sizeof(reason), "%s; at most %d connections can be open", why, guard->max_connections);
    rk_guard_log_note(&guard->log, "refused", peer, reason, guard->refused_ns);
}

static bool open_server_side(struct rk_guard *guard, struct rk_connection *connection)
{
    int fds[2];

    if (connection->relay.tls) {
        connection->names = rk_tls_peer_names(connection->relay.tls);
        if (connection->names[0])
            RK_DEBUG_LOG("peer=%s has a certificate for %.*s", connection->peer,
                         (int)strcspn(connection->names, "\n"), connection->names);
    }
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) != 0) {
        rk_guard_count_refused(guard, connection->peer, strerror(errno));
        return false;
    }
    if (!give_to_core(guard, connection, fds[1])) {
        close(fds[0]);
        return false;
    }
    connection->relay.server_fd = fds[0];
    rk_guard_watch(guard, fds[0], EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                   &connection->endpoints[RK_SIDE_SERVER]);
    return true;
}

/* The peer has violated a rule. Its socket stays open, unread, so that the peer does not reconnect at once; a
 * peer that never sent HTTP/2 costs less when it reconnects, so its socket is closed. */
static bool cut(struct rk_guard *guard, struct rk_connection *connection, int64_t now_ns)
{
    guard->num_cut++;
    rk_guard_log_note(&guard->log, "cut", connection->peer, rk_relay_why(&connection->relay), now_ns);
    if (!connection->relay.filter.is_greeted)
        return false;
    rk_relay_say_goodbye(&connection->relay);
    connection->cut_ns = now_ns;
    return true;
}

/* Limits the kernel's buffers for the peer; no limit for a trusted peer. */
static void clamp_window(int fd, int bytes)
{
    setsockopt(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, &bytes, sizeof(bytes));
}

static void trust(struct rk_connection *connection)
{
    connection->relay.filter.is_trusted = true;
    clamp_window(connection->relay.client_fd, INT32_MAX);
}

bool rk_connection_run(struct rk_guard *guard, struct rk_connection *connection, int64_t now_ns)
{
    rk_relay_state_t state;

    connection->is_ready = false;
    if (connection->watch_fd >= 0)
        return !connection->is_gone;
    if (connection->is_gone && connection->relay.tls_state == RK_RELAY_TLS_WAITS)
        return false;
    if (connection->cut_ns != 0 || connection->relay.from_client.is_held) {
        if (connection->is_gone)
            return false;
        if (connection->cut_ns != 0)
            return true;
    }
    if (connection->rights != RK_RIGHTS_NONE && !connection->relay.filter.is_trusted)
        trust(connection);
    state = rk_relay_run(&connection->relay, now_ns);
    if (connection->is_gone && rk_relay_wants_server(&connection->relay))
        return false; /* gRPC never sees it */
    connection->is_ready = state == RK_RELAY_READY;
    if (state == RK_RELAY_CUT)
        return cut(guard, connection, now_ns);
    if (state == RK_RELAY_ENDED && connection->relay.tls_state == RK_RELAY_TLS_SHAKES)
        rk_guard_log_note(&guard->log, "lost in the TLS handshake", connection->peer,
                          rk_relay_why(&connection->relay), now_ns);
    return state != RK_RELAY_ENDED;
}

bool rk_connection_tick(struct rk_guard *guard, struct rk_connection *connection, int64_t now_ns)
{
    if (connection->watch_fd >= 0)
        return true;
    if (connection->cut_ns != 0)
        return now_ns - connection->cut_ns < RK_GUARD_PENALTY_MS * 1000000LL;
    if (rk_relay_tick(&connection->relay, now_ns) == RK_RELAY_CUT)
        return cut(guard, connection, now_ns);
    connection->is_ready |= connection->relay.from_client.is_held;
    return true;
}

bool rk_connection_waits_for_tls(const struct rk_connection *connection)
{
    return connection->relay.tls_state == RK_RELAY_TLS_WAITS && connection->relay.from_client.can_read;
}

void rk_connection_begin_tls(struct rk_guard *guard, struct rk_connection *connection)
{
    rk_relay_begin_tls(&connection->relay, guard->config.tls, guard->config.tls_demand);
    connection->is_ready = true;
}

bool rk_connection_waits_for_core(const struct rk_connection *connection)
{
    return !connection->is_closed && connection->watch_fd < 0 && rk_relay_wants_server(&connection->relay);
}

void rk_connection_pass_to_core(struct rk_guard *guard, struct rk_connection *connection)
{
    if (open_server_side(guard, connection))
        connection->is_ready = true;
    else
        rk_connection_drop(guard, connection);
}

/* --- closing a connection for a new one --- */

/* Rank among the connections that may be closed for a new one, the highest first; 0: must stay. A connection
 * that gRPC does not have frees its place at once. */
static int rank_victim(const struct rk_connection *one, bool has_many_viewers)
{
    if (one->is_closed)
        return 0;
    if (one->cut_ns != 0)
        return 8;
    if (one->rights == RK_RIGHTS_VIEWER)
        return has_many_viewers ? 6 + (one->relay.filter.num_open == 0) : 0;
    if (one->rights != RK_RIGHTS_NONE || one->watch_fd >= 0) /* file permissions admitted it */
        return 0;
    return (one->is_known ? 2 : 4) + (one->core_fd < 0);
}

/* Counts connections with these rights: with only_core the connections that gRPC has, closed by the guard or
 * not; else the connections that the guard has not closed. */
static int count_rights(const struct rk_guard *guard, rk_rights_t rights, bool only_core)
{
    int count = 0;

    for (const struct rk_connection *one = guard->connections; one; one = one->next)
        count += one->rights == rights && (only_core ? one->core_fd >= 0 : !one->is_closed);
    return count;
}

/* The connection to close for a new one: of the highest rank, and idle longest. NULL: none. only_core: a
 * stranger that gRPC has. */
static struct rk_connection *find_victim(const struct rk_guard *guard, bool only_core)
{
    int num_viewers = count_rights(guard, RK_RIGHTS_VIEWER, false), victim_rank = 0;
    bool has_many_viewers = num_viewers > guard->max_connections - guard->max_connections / 4;
    struct rk_connection *victim = NULL;

    for (struct rk_connection *one = guard->connections; one; one = one->next) {
        int rank = rank_victim(one, has_many_viewers);

        if (only_core && (one->core_fd < 0 || one->rights != RK_RIGHTS_NONE))
            continue;
        if (rank > victim_rank || (victim && rank == victim_rank && one->called_ns <= victim->called_ns)) {
            victim = one;
            victim_rank = rank;
        }
    }
    return victim;
}

/* Whether a place becomes free anyway, as gRPC is about to close its end of a connection that the guard has
 * closed: one that comes must not cost several their connections. */
static bool has_closing(const struct rk_guard *guard, bool only_strangers, int64_t now_ns)
{
    for (const struct rk_connection *one = guard->connections; one; one = one->next) {
        if (one->is_closed && now_ns - one->closed_ns < CLOSING_NS &&
            (!only_strangers || one->rights == RK_RIGHTS_NONE))
            return true;
    }
    return false;
}

static void evict(struct rk_guard *guard, struct rk_connection *victim, int64_t now_ns)
{
    rk_guard_log_note(&guard->log, "dropped", victim->peer,
                      victim->rights == RK_RIGHTS_NONE
                          ? "the limit of connections is reached; this one had made no authorised call"
                          : "the limit of connections is reached; this one of a viewer was idle longest",
                      now_ns);
    rk_connection_drop(guard, victim);
}

rk_guard_room_t rk_guard_make_room(struct rk_guard *guard, int64_t now_ns)
{
    struct rk_connection *victim;
    bool has_closed = false;

    if (guard->num_connections < guard->max_connections)
        return RK_GUARD_HAS_ROOM;
    victim = find_victim(guard, false);
    if (victim && (victim->core_fd < 0 || !has_closing(guard, false, now_ns)))
        evict(guard, victim, now_ns);
    if (guard->num_connections < guard->max_connections)
        return RK_GUARD_HAS_ROOM;
    for (const struct rk_connection *one = guard->connections; one; one = one->next)
        has_closed |= one->is_closed;
    return has_closed ? RK_GUARD_ROOM_LATER : RK_GUARD_NO_ROOM;
}

rk_guard_room_t rk_guard_make_core_room(struct rk_guard *guard, int64_t now_ns)
{
    int most = RK_MIN(guard->max_connections, RK_GUARD_STRANGERS_MAX);
    struct rk_connection *victim;

    if (count_rights(guard, RK_RIGHTS_NONE, true) < most)
        return RK_GUARD_HAS_ROOM;
    victim = has_closing(guard, true, now_ns) ? NULL : find_victim(guard, true);
    if (victim)
        evict(guard, victim, now_ns);
    return RK_GUARD_ROOM_LATER;
}

/* Whether a connection from the same address has made an authorised call. */
static bool is_known_peer(const struct rk_guard *guard, const char *peer)
{
    const char *port = strrchr(peer, ':');
    size_t host_bytes = port ? (size_t)(port - peer) + 1 : strlen(peer);

    for (const struct rk_connection *one = guard->connections; one; one = one->next) {
        if (one->rights != RK_RIGHTS_NONE && strncmp(one->peer, peer, host_bytes) == 0)
            return true;
    }
    return false;
}

void rk_connection_admit(struct rk_guard *guard, int fd, const struct sockaddr_storage *from,
                         socklen_t from_bytes)
{
    struct rk_connection *connection = rk_calloc(1, sizeof(*connection));
    int64_t now_ns = rk_time_now_ns();
    const int on = 1;

    for (int side = 0; side < RK_SIDE_COUNT; side++)
        connection->endpoints[side] = (struct rk_endpoint){.connection = connection, .side = side};
    connection->called_ns = now_ns;
    connection->core_fd = connection->watch_fd = -1;
    rk_guard_format_address(connection->peer, from, from_bytes);
    connection->is_known = is_known_peer(guard, connection->peer);
    pthread_mutex_lock(&guard->lock);
    connection->next = guard->connections;
    connection->link = &guard->connections;
    if (connection->next)
        connection->next->link = &connection->next;
    guard->connections = connection;
    pthread_mutex_unlock(&guard->lock);
    guard->num_connections++;
    if (!guard->is_unix) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        clamp_window(fd, RK_GUARD_STRANGER_BYTES);
        rk_relay_init(&connection->relay, &guard->pool, &guard->shared, fd, now_ns);
        if (guard->config.tls)
            rk_relay_expect_tls(&connection->relay);
        rk_guard_watch(guard, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                       &connection->endpoints[RK_SIDE_CLIENT]);
        return;
    }
    connection->relay.client_fd = connection->relay.server_fd = -1;
    connection->watch_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (connection->watch_fd < 0) {
        rk_guard_count_refused(guard, connection->peer, strerror(errno));
        close(fd);
        rk_connection_drop(guard, connection);
        return;
    }
    rk_guard_watch(guard, connection->watch_fd, EPOLLRDHUP | EPOLLET, &connection->endpoints[RK_SIDE_CLIENT]);
    connection->is_gone = !give_to_core(guard, connection, fd);
    connection->is_ready = connection->is_gone;
}
