#include "base/net/rk_net.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"

const char *rk_net_host(const char *host)
{
    /* The dot at the end makes a name absolute. */
    bool is_localhost = strcasecmp(host, "localhost") == 0 || strcasecmp(host, "localhost.") == 0;

    return is_localhost ? "127.0.0.1" : host;
}

char *rk_net_address(const char *address)
{
    const char *colon = strrchr(address, ':');
    char *host = rk_strndup(address, colon ? (size_t)(colon - address) : strlen(address));
    char *changed = rk_format("%s%s", rk_net_host(host), colon ? colon : "");

    rk_free(host);
    return changed;
}

int rk_net_resolve(struct addrinfo **out, const char *host, const char *port, int flags)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = flags};

    *out = NULL;
    return getaddrinfo(rk_net_host(host), port, &hints, out);
}
