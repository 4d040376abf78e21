#include "daemon/guard/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/net/rk_net.h"
#include "base/rk_str.h"

#define UNIX_PREFIX     "unix:"
#define ABSTRACT_PREFIX "unix-abstract:"

static bool is_loopback(const struct sockaddr *address)
{
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)address;
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)address;

    if (address->sa_family == AF_INET)
        return ntohl(v4->sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

static struct rk_status *parse_unix(struct rk_listen *out, const char *text, const char *name)
{
    size_t max_bytes = RK_UNIX_PATH_BYTES - (size_t)out->is_abstract;

    out->is_unix = out->is_local = true;
    if (!out->is_abstract && name[0] != '/')
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s '%s': expected an absolute path after unix:", out->key, text);
    if (!name[0] || strlen(name) > max_bytes)
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s '%s': the name has %zu bytes, expected 1 to %zu", out->key,
                       text, strlen(name), max_bytes);
    snprintf(out->name, sizeof(out->name), "%s", name);
    return NULL;
}

/* First address of the host, as text; `is_local` may be NULL. The key and its value are for the message. */
static struct rk_status *resolve(char *out, size_t out_bytes, bool *is_local, const char *host,
                                 const char *key, const char *text)
{
    struct addrinfo *found;
    int rc = rk_net_resolve(&found, host, NULL, 0);

    if (rc == 0)
        rc = getnameinfo(found->ai_addr, found->ai_addrlen, out, (socklen_t)out_bytes, NULL, 0,
                         NI_NUMERICHOST);
    if (found && is_local)
        *is_local = is_loopback(found->ai_addr);
    if (found)
        freeaddrinfo(found);
    if (rc != 0) /* the name server may not answer yet while the network starts */
        return RK_FAIL(rc == EAI_AGAIN ? RK_UNAVAILABLE : RK_INVALID_ARGUMENT, "%s '%s': host '%s': %s", key,
                       text, host, gai_strerror(rc));
    return NULL;
}

struct rk_status *rk_listen_check_peer_host(const char *host)
{
    char address[NI_MAXHOST];

    RK_TRY(resolve(address, sizeof(address), NULL, host, "comm.listen", host));
    if (strcmp(address, "0.0.0.0") == 0 || strcmp(address, "::") == 0)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "comm.listen '%s': expected the address at which peers reach this host, or unix (the "
                       "default is the host of rpc.listen)",
                       host);
    return NULL;
}

struct rk_status *rk_listen_parse(struct rk_listen *out, const char *key, const char *text)
{
    const char *colon = strrchr(text, ':');
    struct rk_status *st;
    int64_t port;
    char *host;

    *out = (struct rk_listen){.key = key};
    if (rk_str_has_prefix(text, UNIX_PREFIX))
        return parse_unix(out, text, text + strlen(UNIX_PREFIX));
    if (rk_str_has_prefix(text, ABSTRACT_PREFIX)) {
        out->is_abstract = true;
        return parse_unix(out, text, text + strlen(ABSTRACT_PREFIX));
    }
    if (!colon || colon == text || !rk_parse_i64(colon + 1, &port) || port < 0 || port > UINT16_MAX)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "%s '%s': expected HOST:PORT with a port of 0 to 65535, unix:/PATH or "
                       "unix-abstract:NAME",
                       key, text);
    out->port = (uint16_t)port;
    host = rk_strndup(text, (size_t)(colon - text));
    if (host[0] == '[' && rk_str_has_suffix(host, "]")) {
        memmove(host, host + 1, strlen(host));
        host[strlen(host) - 1] = '\0';
    }
    st = resolve(out->host, sizeof(out->host), &out->is_local, host, key, text);
    rk_free(host);
    return st;
}

struct rk_status *rk_listen_check_policy(const struct rk_listen *listen, bool is_insecure, bool has_tls,
                                         bool asks_certificates, bool has_tokens)
{
    if (is_insecure)
        return NULL;
    if (!listen->is_local && !has_tls)
        return RK_FAIL(
            RK_INVALID_ARGUMENT,
            "%s: %s can be reached from other hosts and connections would not be encrypted; set "
            "rpc.tls_cert, "
            "rpc.tls_key and rpc.tls_ca, listen on 127.0.0.1, ::1 or a Unix socket, or pass --insecure "
            "(rpc.insecure) if the network is trusted",
            listen->key, listen->host);
    if (!listen->is_local && !asks_certificates && !has_tokens)
        return RK_FAIL(
            RK_INVALID_ARGUMENT,
            "%s: %s can be reached from other hosts, and clients would need neither a certificate nor a "
            "token; set rpc.tls_ca or rpc.token_file, or pass --insecure (rpc.insecure)",
            listen->key, listen->host);
    if (listen->is_abstract && !has_tokens)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "rpc.listen: every local user can connect to the abstract socket '%s'; set "
                       "rpc.token_file, or pass "
                       "--insecure (rpc.insecure)",
                       listen->name);
    return NULL;
}

static socklen_t make_address(const struct rk_listen *listen, struct sockaddr_storage *out)
{
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)(void *)out;
    struct sockaddr_in *v4 = (struct sockaddr_in *)(void *)out;
    struct sockaddr_un *un = (struct sockaddr_un *)(void *)out;

    *out = (struct sockaddr_storage){0};
    if (listen->is_unix) {
        un->sun_family = AF_UNIX;
        memcpy(un->sun_path + listen->is_abstract, listen->name, strlen(listen->name));
        return (socklen_t)(sizeof(un->sun_family) + listen->is_abstract + strlen(listen->name));
    }
    if (inet_pton(AF_INET, listen->host, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(listen->port);
        return sizeof(*v4);
    }
    inet_pton(AF_INET6, listen->host, &v6->sin6_addr);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(listen->port);
    return sizeof(*v6);
}

static struct rk_status *fail_bind(const struct rk_listen *listen, int error)
{
    char *text = rk_listen_format(listen, listen->port);
    struct rk_status *st;

    if (error == EADDRINUSE)
        st = RK_FAIL_REASON(RK_FAILED_PRECONDITION, "ADDRESS_IN_USE", "%s: %s is in use by another process",
                            listen->key, text);
    else /* an address without interface may appear later */
        st = RK_FAIL(error == EADDRNOTAVAIL ? RK_UNAVAILABLE : RK_INVALID_ARGUMENT,
                     "%s: cannot listen on %s: %s", listen->key, text, strerror(error));
    rk_free(text);
    return st;
}

/* Whether a program listens on that socket: one without a program refuses connections. A socket that this
 * process has no permission to connect to counts as in use. */
static bool has_listener(const struct rk_listen *listen)
{
    struct sockaddr_storage address;
    socklen_t address_bytes = make_address(listen, &address);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool has = fd >= 0 && (connect(fd, (struct sockaddr *)&address, address_bytes) == 0 ||
                           (errno != ECONNREFUSED && errno != ENOENT));

    if (fd >= 0)
        close(fd);
    return has;
}

/* A file that is not a socket would make the bind fail; a socket is replaced unless a program listens on it.
 */
static struct rk_status *probe_unix_path(const struct rk_listen *listen)
{
    const char *path = listen->name;
    char *dir = rk_path_dir(path);
    struct rk_status *st = NULL;
    struct stat info;

    if (access(dir, W_OK | X_OK) != 0)
        st = RK_FAIL(RK_INVALID_ARGUMENT, "%s: cannot create a socket in '%s': %s", listen->key, dir,
                     strerror(errno));
    else if (lstat(path, &info) == 0 && !S_ISSOCK(info.st_mode))
        st = RK_FAIL(RK_INVALID_ARGUMENT, "%s: '%s' exists and is not a socket", listen->key, path);
    else if (has_listener(listen))
        st = fail_bind(listen, EADDRINUSE);
    rk_free(dir);
    return st;
}

static struct rk_status *bind_socket(int *out, const struct rk_listen *listen)
{
    struct sockaddr_storage address;
    socklen_t address_bytes = make_address(listen, &address);
    const int on = 1, off = 0;
    mode_t mask;
    int fd, rc, error;

    *out = -1;
    fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "socket: %s", strerror(errno));
    /* An address whose last connections are still closing can be bound again. */
    if (!listen->is_unix)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (address.ss_family == AF_INET6) /* [::] includes IPv4 */
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    mask = umask(0117); /* socket file: owner and group */
    rc = bind(fd, (struct sockaddr *)&address, address_bytes);
    error = errno;
    umask(mask);
    if (rc != 0) {
        close(fd);
        return fail_bind(listen, error);
    }
    *out = fd;
    return NULL;
}

bool rk_listen_is_same(const struct rk_listen *a, const struct rk_listen *b)
{
    if (a->is_unix || b->is_unix)
        return a->is_unix == b->is_unix && a->is_abstract == b->is_abstract && strcmp(a->name, b->name) == 0;
    return a->port != 0 && a->port == b->port && strcmp(a->host, b->host) == 0;
}

struct rk_status *rk_listen_probe(const struct rk_listen *listen)
{
    int fd;

    if (listen->is_unix && !listen->is_abstract)
        return probe_unix_path(listen);
    RK_TRY(bind_socket(&fd, listen));
    close(fd);
    return NULL;
}

static int bound_port(int fd, const struct rk_listen *listen)
{
    struct sockaddr_storage address;
    socklen_t address_bytes = sizeof(address);

    if (listen->is_unix || getsockname(fd, (struct sockaddr *)&address, &address_bytes) != 0)
        return listen->port;
    if (address.ss_family == AF_INET6)
        return ntohs(((const struct sockaddr_in6 *)(const void *)&address)->sin6_port);
    return ntohs(((const struct sockaddr_in *)(const void *)&address)->sin_port);
}

struct rk_status *rk_listen_open(int *fd, int *port, const struct rk_listen *to, int backlog)
{
    struct rk_status *st;

    *fd = -1;
    *port = 0;
    if (to->is_unix && !to->is_abstract) {
        RK_TRY(probe_unix_path(to));
        unlink(to->name);
    }
    RK_TRY(bind_socket(fd, to));
    if (listen(*fd, backlog) != 0) {
        st = fail_bind(to, errno);
        close(*fd);
        *fd = -1;
        return st;
    }
    *port = bound_port(*fd, to);
    return NULL;
}

char *rk_listen_format(const struct rk_listen *listen, int port)
{
    if (listen->is_unix)
        return rk_format("%s%s", listen->is_abstract ? ABSTRACT_PREFIX : UNIX_PREFIX, listen->name);
    return rk_format(strchr(listen->host, ':') ? "[%s]:%d" : "%s:%d", listen->host, port);
}
