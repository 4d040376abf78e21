#include "daemon/guard/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_log.h"
#include "base/rk_str.h"
#include "base/rk_thread.h"
#include "base/rk_time.h"
#include "daemon/guard/guard_state_internal.h"

#define EVENTS_MAX       64
#define TICK_MS          250               /* interval of checks of idle peers */
#define HELD_TICK_MS     10                /* interval while some are held back */
#define ACCEPTS_MAX      64                /* in a row */
#define ACCEPT_AGAIN_NS  (100 * 1000000LL) /* after a failure */
#define FLUSH_NS         (500 * 1000000LL) /* at the end */
#define TCP_FILES        3                 /* per connection: its own and a pair */
#define UNIX_FILES       2                 /* its own, which gRPC owns, and a copy to detect its end */
#define TCP_BACKLOG      128               /* connections that wait for RK_GUARD_ACCEPTS_RATE */
#define UNIX_BACKLOG     1024              /* connect fails when it is full */
#define CORE_PEER_PREFIX "fd:"

/* --- accepting --- */

/* L may close the listener at any time. */
static int accept_from_listener(struct rk_guard *guard, struct sockaddr_storage *from, socklen_t *from_bytes)
{
    int fd = -1;

    errno = EAGAIN;
    pthread_mutex_lock(&guard->lock);
    if (guard->listen_fd >= 0)
        fd = accept4(guard->listen_fd, (struct sockaddr *)from, from_bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);
    pthread_mutex_unlock(&guard->lock);
    return fd;
}

/* No descriptor is free: the reserved one accepts the connection and closes it, so that the peer gets an end
 * and the next connection can be tried. */
static void refuse_one(struct rk_guard *guard)
{
    struct sockaddr_storage from;
    socklen_t from_bytes = sizeof(from);
    int fd;

    if (guard->reserve_fd < 0)
        return;
    close(guard->reserve_fd);
    fd = accept_from_listener(guard, &from, &from_bytes);
    if (fd >= 0)
        close(fd);
    guard->reserve_fd = fcntl(guard->wake_fd, F_DUPFD_CLOEXEC, 0);
}

/* A connection that is closed for a new one keeps its place until gRPC has closed its end; the new one waits
 * in the kernel. False: the caller tries again later. */
static bool make_room(struct rk_guard *guard, int64_t now_ns, rk_guard_room_t *room)
{
    struct pollfd poller = {.events = POLLIN};

    *room = RK_GUARD_HAS_ROOM;
    if (guard->num_connections < guard->max_connections)
        return true;
    pthread_mutex_lock(&guard->lock);
    poller.fd = guard->listen_fd;
    poll(&poller, 1, 0);
    pthread_mutex_unlock(&guard->lock);
    if (!(poller.revents & POLLIN)) /* no client waits: no place is needed */
        return true;
    *room = rk_guard_make_room(guard, now_ns);
    if (*room == RK_GUARD_ROOM_LATER)
        guard->accept_after_ns = now_ns + HELD_TICK_MS * 1000000LL;
    return *room != RK_GUARD_ROOM_LATER;
}

/* False when no connection is waiting, or none can be accepted now. */
static bool accept_one(struct rk_guard *guard, int64_t now_ns)
{
    struct sockaddr_storage from;
    socklen_t from_bytes = sizeof(from);
    char peer[RK_PEER_BYTES];
    rk_guard_room_t room;
    int fd, error;

    if (!make_room(guard, now_ns, &room))
        return false;
    fd = accept_from_listener(guard, &from, &from_bytes);
    if (fd >= 0) {
        guard->num_accepted++;
        if (room == RK_GUARD_HAS_ROOM) {
            rk_connection_admit(guard, fd, &from, from_bytes);
        } else {
            rk_guard_format_address(peer, &from, from_bytes);
            rk_guard_count_refused(guard, peer, "all connections belong to authorised peers");
            close(fd);
        }
        return true;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
        guard->has_pending = false;
        return false;
    }
    if (errno == EINTR || errno == ECONNABORTED)
        return true;
    error = errno;
    rk_guard_count_refused(guard, "unknown", strerror(error));
    if (error == EMFILE || error == ENFILE)
        refuse_one(guard);
    guard->accept_after_ns = now_ns + ACCEPT_AGAIN_NS;
    return false;
}

static bool may_accept(const struct rk_guard *guard, int64_t now_ns)
{
    return guard->has_pending && guard->is_open && now_ns >= guard->accept_after_ns;
}

/* Milliseconds until then, rounded up, and at most HELD_TICK_MS. */
static int ms_until(int64_t then_ns, int64_t now_ns)
{
    return (int)RK_MAX(RK_MIN((then_ns - now_ns + 999999) / 1000000, HELD_TICK_MS), 0);
}

/* Connections beyond the rate wait in the kernel's backlog; clients beyond the backlog wait in connect(). */
static void accept_some(struct rk_guard *guard, int64_t now_ns)
{
    for (int i = 0; i < ACCEPTS_MAX; i++) {
        int64_t until_ns = guard->is_unix ? 0 : rk_h2_bucket_wait_until(&guard->accepts, now_ns);

        if (until_ns != 0)
            guard->accept_after_ns = until_ns;
        if (until_ns != 0 || !accept_one(guard, now_ns))
            return;
        guard->accepts.tokens -= 1;
    }
}

/* --- the thread --- */

static void on_event(struct rk_guard *guard, const struct epoll_event *event)
{
    struct rk_endpoint *endpoint = event->data.ptr;
    uint64_t discard;
    bool is_input = event->events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR);
    bool is_output = event->events & (EPOLLOUT | EPOLLHUP | EPOLLERR);
    struct rk_relay *relay;

    if (!endpoint) {
        guard->has_pending = true;
        return;
    }
    if (endpoint->side == RK_SIDE_COUNT) {
        if (read(guard->wake_fd, &discard, sizeof(discard)) < 0)
            RK_ASSERT(errno == EAGAIN || errno == EINTR);
        return;
    }
    relay = &endpoint->connection->relay;
    endpoint->connection->is_ready = true;
    if (endpoint->side == RK_SIDE_CLIENT && relay->tls) /* each side may wait for the other */
        is_input = is_output = is_input || is_output;
    if (endpoint->side == RK_SIDE_CLIENT) {
        relay->from_client.can_read |= is_input;
        relay->from_server.can_write |= is_output;
        endpoint->connection->is_gone |= (event->events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
    } else {
        relay->from_server.can_read |= is_input;
        relay->from_client.can_write |= is_output;
    }
}

/* The connections whose turn is next: for TLS, and for gRPC. */
struct turns {
    struct rk_connection *tls, *core;
};

/* Connections from an address that has an authorised connection come first. The list has the youngest first.
 */
static void take_turn(struct rk_connection **next, struct rk_connection *one, bool is_oldest_first)
{
    if (!*next || (one->is_known && !(*next)->is_known) ||
        (is_oldest_first && one->is_known == (*next)->is_known))
        *next = one;
}

/* One handshake per round, so that connections after their handshake have their turn. Returns how long to
 * wait for the next handshake. */
static int begin_handshake(struct rk_guard *guard, struct rk_connection *next, int64_t now_ns)
{
    if (!next)
        return TICK_MS;
    if (rk_h2_bucket_wait_until(&guard->handshakes, now_ns) != 0)
        return HELD_TICK_MS;
    guard->handshakes.tokens -= 1;
    rk_connection_begin_tls(guard, next);
    return 0;
}

/* Likewise passes one connection to gRPC, the youngest first: when more arrive than gRPC may get, the clients
 * of the oldest have given up and try again. */
static int pass_to_core(struct rk_guard *guard, struct rk_connection *next, int64_t now_ns)
{
    if (!next)
        return TICK_MS;
    if (now_ns < guard->pass_after_ns || rk_h2_bucket_wait_until(&guard->strangers, now_ns) != 0)
        return HELD_TICK_MS;
    if (rk_guard_make_core_room(guard, now_ns) != RK_GUARD_HAS_ROOM) {
        guard->pass_after_ns = now_ns + HELD_TICK_MS * 1000000LL;
        return HELD_TICK_MS;
    }
    guard->strangers.tokens -= 1;
    rk_connection_pass_to_core(guard, next);
    return 0;
}

/* Runs connections with work; checks all of them at each tick. Returns how long to wait. */
static int run_connections(struct rk_guard *guard, int64_t now_ns)
{
    bool has_ready = false, has_held = false;
    bool is_tick = now_ns - guard->ticked_ns >= HELD_TICK_MS * 1000000LL;
    struct turns turns = {0};
    struct rk_connection *next;
    int wait_ms, core_ms;

    if (is_tick)
        guard->ticked_ns = now_ns;
    for (struct rk_connection *one = guard->connections; one; one = next) {
        bool goes_on = one->is_closed || !is_tick || rk_connection_tick(guard, one, now_ns);

        next = one->next;
        if (goes_on && one->is_ready)
            goes_on = rk_connection_run(guard, one, now_ns);
        has_ready |= goes_on && one->is_ready;
        has_held |= goes_on && one->relay.from_client.is_held;
        if (goes_on && rk_connection_waits_for_tls(one))
            take_turn(&turns.tls, one, true);
        if (goes_on && rk_connection_waits_for_core(one))
            take_turn(&turns.core, one, false);
        if (!goes_on)
            rk_connection_drop(guard, one);
        else if (is_tick)
            rk_connection_reap(guard, one);
    }
    wait_ms = begin_handshake(guard, turns.tls, now_ns);
    core_ms = pass_to_core(guard, turns.core, now_ns);
    wait_ms = RK_MIN(wait_ms, core_ms);
    return has_ready ? 0 : has_held ? RK_MIN(wait_ms, HELD_TICK_MS) : wait_ms;
}

/* At the end: gRPC has closed its sockets, and data that it sent before may still be in transit. */
static bool is_done(struct rk_guard *guard, int64_t *deadline_ns)
{
    if (!guard->is_stopping)
        return false;
    if (*deadline_ns == 0)
        *deadline_ns = rk_time_now_ns() + FLUSH_NS;
    for (struct rk_connection *one = guard->connections; one; one = one->next) {
        if (one->relay.server_fd >= 0 && rk_time_now_ns() < *deadline_ns)
            return false;
    }
    return true;
}

static void *run_guard(void *arg)
{
    struct rk_guard *guard = arg;
    struct epoll_event events[EVENTS_MAX];
    int64_t deadline_ns = 0;
    int wait_ms = 0;

    prctl(PR_SET_NAME, "rankd-N");
    while (!is_done(guard, &deadline_ns)) {
        int count = epoll_wait(guard->epoll_fd, events, EVENTS_MAX, wait_ms);
        int64_t now_ns = rk_time_now_ns();

        guard->seen_ns = now_ns;
        for (int i = 0; i < count; i++)
            on_event(guard, &events[i]);
        wait_ms = run_connections(guard, now_ns);
        rk_guard_log_tick(&guard->log, now_ns);
        if (may_accept(guard, now_ns))
            accept_some(guard, now_ns);
        if (guard->has_pending && guard->is_open)
            wait_ms = RK_MIN(wait_ms, ms_until(guard->accept_after_ns, now_ns));
    }
    while (guard->connections)
        rk_connection_destroy(guard, guard->connections);
    rk_guard_log_flush(&guard->log, rk_time_now_ns());
    rk_relay_pool_fini(&guard->pool);
    return NULL;
}

/* --- start and end --- */

static int choose_max_connections(const struct rk_guard_config *config)
{
    struct rlimit limit = {.rlim_cur = 1024};
    int64_t files = config->max_files, room;
    int most = config->max_connections > 0 ? config->max_connections : RK_GUARD_CONNECTIONS_MAX;

    if (files == 0) {
        getrlimit(RLIMIT_NOFILE, &limit);
        files = limit.rlim_cur == RLIM_INFINITY ? INT32_MAX : (int64_t)limit.rlim_cur;
    }
    room = (files - RK_GUARD_FILES_RESERVED) / (config->listen->is_unix ? UNIX_FILES : TCP_FILES);
    return (int)RK_MAX(RK_MIN(room, most), RK_GUARD_CONNECTIONS_MIN);
}

static struct rk_status *start_listening(struct rk_guard *guard, const struct rk_listen *listen)
{
    int port;

    RK_TRY(rk_listen_open(&guard->listen_fd, &port, listen, listen->is_unix ? UNIX_BACKLOG : TCP_BACKLOG));
    guard->address = rk_listen_format(listen, port);
    if (listen->is_unix && !listen->is_abstract)
        guard->unix_path = rk_strdup(listen->name);
    guard->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    guard->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    guard->reserve_fd = guard->wake_fd < 0 ? -1 : fcntl(guard->wake_fd, F_DUPFD_CLOEXEC, 0);
    if (guard->epoll_fd < 0 || guard->reserve_fd < 0)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "no descriptors for the listener: %s", strerror(errno));
    rk_guard_watch(guard, guard->listen_fd, EPOLLIN | EPOLLET, NULL);
    return NULL;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void fini(struct rk_guard *guard)
{
    rk_guard_close_listener(guard);
    close_fd(&guard->epoll_fd);
    close_fd(&guard->wake_fd);
    close_fd(&guard->reserve_fd);
    pthread_mutex_destroy(&guard->lock);
    rk_free(guard->unix_path);
    rk_free(guard->address);
    rk_free(guard);
}

/* The tag of wake_fd in epoll. */
static struct rk_endpoint wake_endpoint = {.side = RK_SIDE_COUNT};

struct rk_status *rk_guard_create(struct rk_guard **out, const struct rk_guard_config *config)
{
    struct rk_guard *guard = rk_calloc(1, sizeof(*guard));
    struct rk_status *st;

    *out = NULL;
    guard->config = *config;
    guard->is_unix = config->listen->is_unix;
    guard->max_connections = choose_max_connections(config);
    guard->listen_fd = guard->epoll_fd = guard->wake_fd = guard->reserve_fd = -1;
    guard->has_pending = true;
    pthread_mutex_init(&guard->lock, NULL);
    guard->seen_ns = rk_time_now_ns();
    rk_h2_shared_init(&guard->shared, guard->seen_ns);
    rk_h2_bucket_init(&guard->handshakes, RK_GUARD_HANDSHAKES_BURST, RK_GUARD_HANDSHAKES_RATE,
                      guard->seen_ns);
    rk_h2_bucket_init(&guard->accepts, RK_GUARD_ACCEPTS_BURST, RK_GUARD_ACCEPTS_RATE, guard->seen_ns);
    rk_h2_bucket_init(&guard->strangers, RK_GUARD_STRANGERS_BURST, RK_GUARD_STRANGERS_RATE, guard->seen_ns);
    st = start_listening(guard, config->listen);
    guard->config.listen = NULL;
    if (!st) {
        rk_guard_watch(guard, guard->wake_fd, EPOLLIN, &wake_endpoint);
        st = rk_thread_start(&guard->thread, run_guard, guard, "network guard");
    }
    if (st) {
        fini(guard);
        return st;
    }
    *out = guard;
    return NULL;
}

static void wake(struct rk_guard *guard)
{
    const uint64_t one = 1;

    if (write(guard->wake_fd, &one, sizeof(one)) < 0)
        RK_ASSERT(errno == EAGAIN || errno == EINTR);
}

void rk_guard_open(struct rk_guard *guard)
{
    guard->is_open = true;
    wake(guard);
}

void rk_guard_close_listener(struct rk_guard *guard)
{
    pthread_mutex_lock(&guard->lock);
    if (guard->listen_fd >= 0 && guard->unix_path)
        unlink(guard->unix_path);
    guard->is_open = false;
    close_fd(&guard->listen_fd);
    pthread_mutex_unlock(&guard->lock);
}

void rk_guard_destroy(struct rk_guard *guard)
{
    if (!guard)
        return;
    guard->is_stopping = true;
    wake(guard);
    pthread_join(guard->thread, NULL);
    fini(guard);
}

/* --- L --- */

const char *rk_guard_address(const struct rk_guard *guard)
{
    return guard->address;
}

/* With the lock held. */
static struct rk_connection *find_connection(const struct rk_guard *guard, const char *core_peer)
{
    int64_t fd;

    if (!rk_str_has_prefix(core_peer, CORE_PEER_PREFIX) ||
        !rk_parse_i64(core_peer + strlen(CORE_PEER_PREFIX), &fd))
        return NULL;
    for (struct rk_connection *one = guard->connections; one; one = one->next) { /* the youngest first */
        if (one->core_fd == fd)
            return one;
    }
    return NULL;
}

void rk_guard_format_peer(struct rk_guard *guard, const char *core_peer, char *out, size_t out_bytes)
{
    const struct rk_connection *connection;

    pthread_mutex_lock(&guard->lock);
    connection = find_connection(guard, core_peer);
    snprintf(out, out_bytes, "%s", connection ? connection->peer : core_peer);
    pthread_mutex_unlock(&guard->lock);
}

char *rk_guard_peer_names(struct rk_guard *guard, const char *core_peer)
{
    const struct rk_connection *connection;
    char *names = NULL;

    pthread_mutex_lock(&guard->lock);
    connection = find_connection(guard, core_peer);
    if (connection && connection->names && connection->names[0])
        names = rk_strdup(connection->names);
    pthread_mutex_unlock(&guard->lock);
    return names;
}

void rk_guard_trust(struct rk_guard *guard, const char *core_peer, rk_rights_t rights)
{
    struct rk_connection *connection;

    pthread_mutex_lock(&guard->lock);
    connection = find_connection(guard, core_peer);
    if (connection) {
        connection->rights = RK_MAX(connection->rights, rights);
        connection->called_ns = rk_time_now_ns();
    }
    pthread_mutex_unlock(&guard->lock);
}

void rk_guard_get_stats(struct rk_guard *guard, struct rk_guard_stats *out)
{
    *out = (struct rk_guard_stats){
        .num_connections = guard->num_connections,
        .max_connections = guard->max_connections,
        .num_accepted = guard->num_accepted,
        .num_refused = guard->num_refused,
        .num_cut = guard->num_cut,
        .refused_ns = guard->refused_ns,
        .thread_age_ns = rk_time_now_ns() - guard->seen_ns,
    };
}
