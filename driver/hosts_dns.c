/* Every address of a name in DNS. */
#include "driver/hosts_internal.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/rk_array.h"
#include "base/net/rk_net.h"
#include "base/rk_str.h"
#include "driver/rk_driver.h"

struct address {
    uint8_t family; /* 4 or 6 */
    uint8_t bytes[16];
};

static int compare_addresses(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(struct address));
}

static bool read_address(struct address *out, const struct addrinfo *info)
{
    *out = (struct address){0};
    if (info->ai_family == AF_INET) {
        out->family = 4;
        memcpy(out->bytes, &((const struct sockaddr_in *)(const void *)info->ai_addr)->sin_addr, 4);
        return true;
    }
    if (info->ai_family == AF_INET6) {
        out->family = 6;
        memcpy(out->bytes, &((const struct sockaddr_in6 *)(const void *)info->ai_addr)->sin6_addr, 16);
        return true;
    }
    return false;
}

static struct rk_status *tell_address(const struct address *address, int64_t port, rk_host_fn each,
                                      void *user)
{
    char text[INET6_ADDRSTRLEN];
    bool is_v6 = address->family == 6;
    struct rk_status *st;
    char *whole;

    inet_ntop(is_v6 ? AF_INET6 : AF_INET, address->bytes, text, sizeof(text));
    whole = rk_format("%s%s%s:%" PRId64, is_v6 ? "[" : "", text, is_v6 ? "]" : "", port);
    st = each(user, whole);
    rk_free(whole);
    return st;
}

struct rk_status *rk_hosts_of_addrinfo(const struct addrinfo *list, int64_t port, rk_host_fn each, void *user)
{
    RK_ARRAY(struct address) found = {0};
    struct rk_status *st = NULL;

    for (; list; list = list->ai_next) {
        struct address address;

        if (read_address(&address, list))
            rk_array_append(&found, address);
    }
    if (found.count > 0)
        qsort(found.items, (size_t)found.count, sizeof(*found.items), compare_addresses);
    for (int64_t i = 0; !st && i < found.count; i++) {
        if (i == 0 || compare_addresses(&found.items[i - 1], &found.items[i]) != 0)
            st = tell_address(&found.items[i], port, each, user);
    }
    rk_array_fini(&found);
    return st;
}

static struct rk_status *resolve(const char *name, int64_t port, rk_host_fn each, void *user)
{
    struct addrinfo *list;
    int error = rk_net_resolve(&list, name, NULL, 0);
    struct rk_status *st;

    if (error)
        return RK_FAIL(RK_UNAVAILABLE, "dns:%s: cannot resolve the name: %s", name, gai_strerror(error));
    st = rk_hosts_of_addrinfo(list, port, each, user);
    freeaddrinfo(list);
    return st;
}

struct rk_status *rk_hosts_dns(const char *name_and_port, rk_host_fn each, void *user)
{
    const char *colon = strchr(name_and_port, ':');
    char *name = rk_strndup(name_and_port, colon ? (size_t)(colon - name_and_port) : strlen(name_and_port));
    char *address = rk_format("dns:%s", name_and_port);
    int64_t port = RK_DEFAULT_PORT;
    struct rk_status *st = NULL;

    if (!*name || strchr(name, '['))
        st = RK_FAIL(RK_INVALID_ARGUMENT, "address '%s': expected dns:NAME or dns:NAME:PORT, without ranges",
                     address);
    if (!st && colon)
        st = rk_hosts_port(&port, colon + 1, address);
    if (!st)
        st = resolve(name, port, each, user);
    rk_free(address);
    rk_free(name);
    return st;
}
