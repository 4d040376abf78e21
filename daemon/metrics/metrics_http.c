#include "daemon/metrics/metrics_http.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <microhttpd.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_log.h"
#include "base/rk_thread.h"
#include "base/rk_time.h"

#define PATH             "/metrics"
#define CONTENT_TYPE     "text/plain; version=0.0.4; charset=utf-8"
#define BACKLOG          64
#define CONNECTION_BYTES (16 << 10) /* header lines of a request, and read-ahead data */

struct rk_metrics_http {
    struct rk_metrics_http_config config;
    char *address, *unix_path; /* unix_path NULL: none to remove */
    struct MHD_Daemon *core;
    pthread_mutex_t lock; /* guards all below; held while a connection is suspended and L notified */
    bool is_stopping;
    int num_waiting; /* for L */
    struct peer {
        int fd;           /* -1: no connection */
        int64_t begun_ns; /* of its connection, of the headers of a request, or of its last answer */
    } peers[RK_METRICS_CONNECTIONS_MAX];
};

/* A scrape that waits for its text. Owned by the thread, except while L makes the text. */
struct scrape {
    struct rk_loop_event event;
    struct rk_metrics_http *http;
    struct MHD_Connection *connection;
    struct rk_str text;
};

/* L */
static void answer(struct rk_loop_event *event)
{
    struct scrape *scrape = RK_CONTAINER_OF(event, struct scrape, event);
    struct rk_metrics_http *http = scrape->http;

    http->config.render(http->config.user, &scrape->text);
    pthread_mutex_lock(&http->lock);
    http->num_waiting--;
    MHD_resume_connection(scrape->connection);
    pthread_mutex_unlock(&http->lock);
}

static enum MHD_Result respond(struct MHD_Connection *connection, unsigned code, const char *type,
                               const struct rk_str *text)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(
        text->bytes, (void *)(uintptr_t)rk_str_text(text), MHD_RESPMEM_MUST_COPY);
    enum MHD_Result result;

    if (!response)
        return MHD_NO;
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    result = MHD_queue_response(connection, code, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result refuse(struct MHD_Connection *connection, unsigned code, const char *why)
{
    struct rk_str text = {0};
    enum MHD_Result result;

    rk_str_appendf(&text, "%s\n", why);
    result = respond(connection, code, "text/plain; charset=utf-8", &text);
    rk_str_fini(&text);
    return result;
}

/* The time limit counts from now on. */
static void restart_time(struct rk_metrics_http *http, struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);

    if (!info || !info->socket_context)
        return;
    pthread_mutex_lock(&http->lock);
    ((struct peer *)info->socket_context)->begun_ns = rk_time_now_ns();
    pthread_mutex_unlock(&http->lock);
}

static enum MHD_Result ask(struct rk_metrics_http *http, struct MHD_Connection *connection, void **user)
{
    struct scrape *scrape;

    pthread_mutex_lock(&http->lock);
    if (http->is_stopping) {
        pthread_mutex_unlock(&http->lock);
        return refuse(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "the daemon is shutting down");
    }
    scrape = rk_calloc(1, sizeof(*scrape));
    scrape->event.run = answer;
    scrape->http = http;
    scrape->connection = connection;
    *user = scrape;
    http->num_waiting++;
    MHD_suspend_connection(connection);
    rk_loop_post(http->config.loop, &scrape->event);
    pthread_mutex_unlock(&http->lock);
    return MHD_YES;
}

/* RK_LINT_FOREIGN: libmicrohttpd */
static enum MHD_Result on_request(void *arg, struct MHD_Connection *connection, const char *path,
                                  const char *method, const char *version, const char *body,
                                  size_t *body_bytes, void **user)
{
    const struct scrape *scrape = *user;

    (void)version;
    (void)body;
    (void)body_bytes; /* a request with a body is answered before the body is read */
    if (scrape)
        return respond(connection, MHD_HTTP_OK, CONTENT_TYPE, &scrape->text);
    restart_time(arg, connection); /* a scraper that keeps its connection may have been silent for long */
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return refuse(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "expected GET or HEAD");
    if (strcmp(path, PATH) != 0)
        return refuse(connection, MHD_HTTP_NOT_FOUND, "expected " PATH);
    return ask(arg, connection, user);
}

static void on_completed(void *arg, struct MHD_Connection *connection, void **user,
                         enum MHD_RequestTerminationCode why)
{
    struct scrape *scrape = *user;

    (void)why;
    restart_time(arg, connection);
    *user = NULL;
    if (!scrape)
        return;
    rk_str_fini(&scrape->text);
    rk_free(scrape);
}

/* libmicrohttpd's own time limit counts from the last byte: a peer that sends one from time to time would
 * keep its place. */
static void on_connection(void *arg, struct MHD_Connection *connection, void **user,
                          enum MHD_ConnectionNotificationCode code)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct rk_metrics_http *http = arg;

    pthread_mutex_lock(&http->lock);
    if (code == MHD_CONNECTION_NOTIFY_CLOSED && *user) {
        *(struct peer *)*user = (struct peer){.fd = -1};
        *user = NULL;
    }
    for (int i = 0; code == MHD_CONNECTION_NOTIFY_STARTED && info && !*user && i < RK_METRICS_CONNECTIONS_MAX;
         i++) {
        if (http->peers[i].fd < 0) {
            http->peers[i] = (struct peer){.fd = info->connect_fd, .begun_ns = rk_time_now_ns()};
            *user = &http->peers[i];
        }
    }
    pthread_mutex_unlock(&http->lock);
}

void rk_metrics_http_tick(struct rk_metrics_http *http)
{
    int64_t now_ns = rk_time_now_ns();

    pthread_mutex_lock(&http->lock);
    for (int i = 0; i < RK_METRICS_CONNECTIONS_MAX; i++) {
        struct peer *peer = &http->peers[i];

        if (peer->fd >= 0 && now_ns - peer->begun_ns > RK_METRICS_TIMEOUT_S * 1000000000LL)
            shutdown(peer->fd, SHUT_RDWR); /* the library closes it */
    }
    pthread_mutex_unlock(&http->lock);
}

static void on_log(void *arg, const char *format, va_list args)
{
    struct rk_str text = {0};

    (void)arg;
    rk_str_vappendf(&text, format, args);
    while (text.bytes > 0 && text.text[text.bytes - 1] == '\n')
        text.text[--text.bytes] = '\0';
    RK_DEBUG_LOG("metrics.listen: %s", rk_str_text(&text));
    rk_str_fini(&text);
}

struct rk_status *rk_metrics_http_create(struct rk_metrics_http **out,
                                         const struct rk_metrics_http_config *config)
{
    const struct rk_listen *listen = config->listen;
    struct rk_metrics_http *http;
    int fd, port;

    *out = NULL;
    RK_TRY(rk_thread_check_room(1, "metrics listener"));
    RK_TRY(rk_listen_open(&fd, &port, listen, BACKLOG));
    http = rk_calloc(1, sizeof(*http));
    http->config = *config;
    http->config.listen = NULL;
    http->address = rk_listen_format(listen, port);
    if (listen->is_unix && !listen->is_abstract)
        http->unix_path = rk_strdup(listen->name);
    pthread_mutex_init(&http->lock, NULL);
    for (int i = 0; i < RK_METRICS_CONNECTIONS_MAX; i++)
        http->peers[i].fd = -1;
    http->core = MHD_start_daemon(
        MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0,
        NULL, NULL, on_request, http, MHD_OPTION_EXTERNAL_LOGGER, on_log, NULL, MHD_OPTION_LISTEN_SOCKET, fd,
        MHD_OPTION_CONNECTION_LIMIT, RK_METRICS_CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT,
        RK_METRICS_TIMEOUT_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, http, MHD_OPTION_NOTIFY_CONNECTION, on_connection, http,
        MHD_OPTION_END);
    if (!http->core) {
        close(fd);
        rk_metrics_http_destroy(http);
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "metrics.listen: the HTTP server did not start");
    }
    *out = http;
    return NULL;
}

void rk_metrics_http_destroy(struct rk_metrics_http *http)
{
    if (!http)
        return;
    pthread_mutex_lock(&http->lock);
    http->is_stopping = true;
    pthread_mutex_unlock(&http->lock);
    rk_loop_drain(http->config.loop);
    RK_ASSERT(http->num_waiting == 0);
    if (http->core)
        MHD_stop_daemon(http->core);
    if (http->unix_path)
        unlink(http->unix_path);
    pthread_mutex_destroy(&http->lock);
    rk_free(http->unix_path);
    rk_free(http->address);
    rk_free(http);
}

const char *rk_metrics_http_address(const struct rk_metrics_http *http)
{
    return http->address;
}
