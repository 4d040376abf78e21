#include "driver/tls_internal.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/net/rk_net.h"
#include "base/rk_str.h"
#include "base/rk_time.h"

#define PROBE_MS 2000

/* The first message of an HTTP/2 client: connection preface and SETTINGS, which a server answers at once. */
static const char greeting[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0";
#define GREETING_BYTES (sizeof(greeting) - 1)

static bool is_tcp(const char *address)
{
    return !rk_str_has_prefix(address, "unix:") && !rk_str_has_prefix(address, "unix-abstract:");
}

struct rk_status *rk_driver_tls_init(struct rk_driver_tls *out, const struct rk_tls_files *files)
{
    struct rk_status *st;

    *out = (struct rk_driver_tls){.has_cert = files->cert != NULL};
    if (!files->ca && !files->cert && !files->key)
        return NULL;
    if (!files->ca)
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s%s: expected together with %sca", files->prefix,
                       files->cert ? "cert" : "key", files->prefix);
    RK_TRY(rk_tls_pem_read(&out->pem, files));
    st = rk_tls_create(&out->tls, files);
    if (st)
        rk_driver_tls_fini(out);
    return st;
}

void rk_driver_tls_fini(struct rk_driver_tls *tls)
{
    rk_tls_destroy(tls->tls);
    rk_tls_pem_fini(&tls->pem);
    *tls = (struct rk_driver_tls){0};
}

grpc_channel_credentials *rk_driver_tls_credentials(const struct rk_driver_tls *tls, const char *address)
{
    grpc_ssl_pem_key_cert_pair pair = {.private_key = tls->pem.key, .cert_chain = tls->pem.cert};

    if (!tls->tls || !is_tcp(address))
        return grpc_insecure_credentials_create();
    return grpc_ssl_credentials_create(tls->pem.ca, tls->has_cert ? &pair : NULL, NULL, NULL);
}

/* --- the reason of a failed connection --- */

/* HOST:PORT or [V6]:PORT; rk_free both. */
static void split_address(const char *address, char **host, char **port)
{
    const char *colon = strrchr(address, ':');
    bool has_brackets = address[0] == '[';

    *host = rk_strndup(address + has_brackets, (size_t)(colon - address) - 2 * has_brackets);
    *port = rk_strdup(colon + 1);
}

static bool wait_until(int fd, short events, int64_t deadline_ns)
{
    struct pollfd poller = {.fd = fd, .events = events};
    int64_t left_ms;
    int rc;

    do {
        left_ms = RK_MAX((deadline_ns - rk_time_now_ns()) / 1000000, 0);
        rc = poll(&poller, 1, (int)left_ms);
    } while (rc < 0 && errno == EINTR);
    return rc > 0;
}

/* -1 when no process listens there, which gRPC has reported already. */
static int connect_to(const char *host, const char *port, int64_t deadline_ns)
{
    struct addrinfo *found;
    int fd = -1, error = 0;
    socklen_t error_bytes = sizeof(error);

    if (rk_net_resolve(&found, host, port, 0) != 0)
        return -1;
    for (const struct addrinfo *one = found; one && fd < 0; one = one->ai_next) {
        fd = socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0 || connect(fd, one->ai_addr, one->ai_addrlen) == 0)
            break;
        if (errno != EINPROGRESS || !wait_until(fd, POLLOUT, deadline_ns) ||
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_bytes) != 0 || error != 0) {
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(found);
    return fd;
}

static rk_tls_step_t shake(struct rk_tls_conn *conn, int fd, int64_t deadline_ns)
{
    rk_tls_step_t step;

    do
        step = rk_tls_shake(conn);
    while (step == RK_TLS_WAITS &&
           wait_until(fd, rk_tls_waits_to_send(conn) ? POLLOUT : POLLIN, deadline_ns));
    return step;
}

/* The server's answer to the greeting, or its refusal: with TLS 1.3 it has looked at the client's certificate
 * only after the client's handshake has ended. */
static void talk(struct rk_tls_conn *conn, int fd, int64_t deadline_ns)
{
    char answer[64];

    if (rk_tls_send(conn, greeting, GREETING_BYTES) < 0)
        return;
    while (rk_tls_recv(conn, answer, sizeof(answer)) < 0 && errno == EAGAIN &&
           wait_until(fd, POLLIN, deadline_ns))
        ;
}

/* A daemon without TLS reads no further than the first byte, and closes. */
static struct rk_status *explain(const struct rk_driver_tls *tls, const struct rk_tls_conn *conn,
                                 bool is_shaken)
{
    const char *error = rk_tls_error(conn);

    if (!is_shaken && (rk_tls_has_closed(conn) || strcmp(error, "it does not speak TLS") == 0))
        return RK_FAIL_REASON(RK_UNAUTHENTICATED, "TLS",
                              "the daemon does not speak TLS; set rpc.tls_cert and rpc.tls_key there, or "
                              "omit tls_ca on this side");
    return RK_FAIL_REASON(RK_UNAUTHENTICATED, "TLS", "TLS with the daemon fails: %s%s", error,
                          tls->has_cert ? "" : " (tls_cert and tls_key are not set on this side)");
}

static struct rk_status *look(const struct rk_driver_tls *tls, int fd, const char *host, int64_t deadline_ns)
{
    static const struct rk_tls_files none = {.prefix = ""};
    struct rk_tls *own = NULL;
    struct rk_tls_conn *conn;
    struct rk_status *st = NULL;
    rk_tls_step_t step;

    if (!tls->tls)
        RK_TRY(rk_tls_create(&own, &none));
    conn = rk_tls_connect(tls->tls ? tls->tls : own, fd, tls->tls ? host : NULL, true);
    step = shake(conn, fd, deadline_ns);
    if (step == RK_TLS_DONE && tls->tls)
        talk(conn, fd, deadline_ns);
    if (tls->tls && *rk_tls_error(conn))
        st = explain(tls, conn, step == RK_TLS_DONE);
    else if (!tls->tls && step == RK_TLS_DONE)
        st = RK_FAIL_REASON(RK_UNAUTHENTICATED, "TLS",
                            "the daemon requires TLS; set tls_ca to the certificate of its authority");
    rk_tls_conn_destroy(conn);
    rk_tls_destroy(own);
    return st;
}

struct rk_status *rk_driver_tls_probe(const struct rk_driver_tls *tls, const char *address)
{
    int64_t deadline_ns = rk_time_now_ns() + PROBE_MS * 1000000LL;
    struct rk_status *st = NULL;
    char *host, *port;
    int fd;

    if (!is_tcp(address) || !strrchr(address, ':'))
        return NULL;
    split_address(address, &host, &port);
    fd = connect_to(host, port, deadline_ns);
    if (fd >= 0) {
        st = look(tls, fd, host, deadline_ns);
        close(fd);
    }
    rk_free(host);
    rk_free(port);
    return st;
}
