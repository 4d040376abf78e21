/* Endpoints of the CPU peer network: the listening socket of a rank and the address text that its peers
 * connect to. */
#include "engine/comm/comm_cpu_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/net/rk_net.h"
#include "base/rk_random.h"
#include "base/rk_str.h"

#define UNIX_PREFIX "unix:@"
/* Abstract names are visible to every process of the host; a random name avoids collisions. */
#define UNIX_NAME_RANDOM_BYTES 16

/* --- addresses --- */

static struct rk_status *parse_unix(struct rk_cpu_address *out, const char *text)
{
    struct sockaddr_un *sun = (struct sockaddr_un *)&out->storage;
    const char *name = text + strlen(UNIX_PREFIX);
    size_t name_bytes = strlen(name);

    if (name_bytes == 0 || name_bytes >= sizeof(sun->sun_path))
        return RK_FAIL(RK_INVALID_ARGUMENT, "address '%s': expected a name of 1 to %zu bytes", text,
                       sizeof(sun->sun_path) - 1);
    sun->sun_family = AF_UNIX;
    memcpy(sun->sun_path + 1, name, name_bytes); /* the leading zero byte makes the name abstract */
    out->bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + name_bytes);
    return NULL;
}

static struct rk_status *resolve(struct rk_cpu_address *out, const char *host, const char *port, int flags)
{
    struct addrinfo *found;
    int rc = rk_net_resolve(&found, host, port, flags);

    if (rc != 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "address '%s': %s", host, gai_strerror(rc));
    memcpy(&out->storage, found->ai_addr, found->ai_addrlen);
    out->bytes = found->ai_addrlen;
    freeaddrinfo(found);
    return NULL;
}

struct rk_status *rk_cpu_address_parse(struct rk_cpu_address *out, const char *text)
{
    char host[RK_COMM_ADDRESS_BYTES];
    const char *colon = strrchr(text, ':');
    size_t host_bytes;

    *out = (struct rk_cpu_address){0};
    if (rk_str_has_prefix(text, UNIX_PREFIX))
        return parse_unix(out, text);
    host_bytes = colon ? (size_t)(colon - text) : 0;
    if (host_bytes >= 2 && text[0] == '[' && text[host_bytes - 1] == ']') {
        text++;
        host_bytes -= 2;
    }
    if (host_bytes == 0 || host_bytes >= sizeof(host) || colon[1] == '\0')
        return RK_FAIL(RK_INVALID_ARGUMENT, "address '%s': expected HOST:PORT or " UNIX_PREFIX "NAME", text);
    memcpy(host, text, host_bytes);
    host[host_bytes] = '\0';
    memcpy(out->host, host, host_bytes + 1);
    return resolve(out, host, colon + 1, AI_NUMERICSERV);
}

static bool is_wildcard(const struct rk_cpu_address *address)
{
    if (address->storage.ss_family == AF_INET)
        return ((const struct sockaddr_in *)&address->storage)->sin_addr.s_addr == htonl(INADDR_ANY);
    return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)&address->storage)->sin6_addr);
}

static struct rk_status *listen_address(struct rk_cpu_address *out, const char *host,
                                        char text[RK_COMM_ADDRESS_BYTES])
{
    uint8_t name[UNIX_NAME_RANDOM_BYTES];
    char hex[2 * UNIX_NAME_RANDOM_BYTES + 1];

    *out = (struct rk_cpu_address){0};
    if (strcmp(host, "unix") == 0) {
        RK_TRY(rk_random_bytes(name, sizeof(name)));
        snprintf(text, RK_COMM_ADDRESS_BYTES, UNIX_PREFIX "rankd-mesh-%s", rk_hex(name, sizeof(name), hex));
        return parse_unix(out, text);
    }
    RK_TRY(resolve(out, host, "0", AI_PASSIVE | AI_NUMERICSERV));
    if (is_wildcard(out))
        return RK_FAIL(RK_INVALID_ARGUMENT, "listen_host '%s': expected an address that peers can connect to",
                       host);
    return NULL;
}

/* Formats the address for the peers, with the port that the kernel chose. `name` replaces the bound address
 * unless it is NULL. */
static struct rk_status *format_bound(char text[RK_COMM_ADDRESS_BYTES], int fd, const char *name)
{
    struct rk_cpu_address bound = {.bytes = sizeof(bound.storage)};
    char host[128], port[8];
    int rc;

    if (getsockname(fd, (struct sockaddr *)&bound.storage, &bound.bytes) != 0)
        return RK_FAIL(RK_INTERNAL, "getsockname: %s", strerror(errno));
    rc = getnameinfo((struct sockaddr *)&bound.storage, bound.bytes, host, sizeof(host), port, sizeof(port),
                     NI_NUMERICHOST | NI_NUMERICSERV);
    if (rc != 0)
        return RK_FAIL(RK_INTERNAL, "getnameinfo: %s", gai_strerror(rc));
    if (name && strlen(name) >= sizeof(host))
        return RK_FAIL(RK_INVALID_ARGUMENT, "listen_host '%s': expected fewer than %zu bytes", name,
                       sizeof(host));
    snprintf(text, RK_COMM_ADDRESS_BYTES, bound.storage.ss_family == AF_INET6 && !name ? "[%s]:%s" : "%s:%s",
             name ? name : host, port);
    return NULL;
}

/* --- endpoints --- */

/* A host name must reach the peers for the certificate check; a literal address is in the bound address
 * already. */
static const char *name_of(const struct rk_comm_endpoint_config *config)
{
    uint8_t discard[sizeof(struct in6_addr)];
    bool is_address =
        inet_pton(AF_INET, config->listen_host, discard) == 1 || strchr(config->listen_host, ':');

    return config->tls && !is_address ? config->listen_host : NULL;
}

struct rk_status *rk_cpu_endpoint_open(void **out, const struct rk_comm_endpoint_config *config,
                                       char address[RK_COMM_ADDRESS_BYTES])
{
    struct rk_cpu_endpoint *endpoint;
    struct rk_status *st;
    struct rk_cpu_address local;

    *out = NULL;
    if (!config->listen_host)
        return RK_FAIL(RK_INVALID_ARGUMENT, "listen_host is missing, expected an address or \"unix\"");
    RK_TRY(listen_address(&local, config->listen_host, address));
    endpoint = rk_calloc(1, sizeof(*endpoint));
    endpoint->tls = config->tls;
    endpoint->listen_fd = socket(local.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (endpoint->listen_fd < 0 ||
        bind(endpoint->listen_fd, (struct sockaddr *)&local.storage, local.bytes) != 0 ||
        listen(endpoint->listen_fd, SOMAXCONN) != 0) {
        st = RK_FAIL(RK_UNAVAILABLE, "listening on '%s': %s", config->listen_host, strerror(errno));
        goto out;
    }
    if (local.storage.ss_family != AF_UNIX)
        RK_TRY_GOTO(st, format_bound(address, endpoint->listen_fd, name_of(config)), out);
    *out = endpoint;
    return NULL;

out:
    rk_cpu_endpoint_close(endpoint);
    return st;
}

void rk_cpu_endpoint_close(void *endpoint_)
{
    struct rk_cpu_endpoint *endpoint = endpoint_;

    if (endpoint->listen_fd >= 0)
        close(endpoint->listen_fd);
    rk_free(endpoint);
}
