/* Addresses of host names. */
#ifndef RK_NET_H
#define RK_NET_H

#include <netdb.h>

#include "base/rk_compiler.h"

RK_BEGIN_DECLS

/* "127.0.0.1" for the name localhost, without a resolver, since a new root file system has no /etc/hosts;
 * every other host unchanged. */
const char *rk_net_host(const char *host);
/* "HOST:PORT" with rk_net_host of its host; rk_free it. */
char *rk_net_address(const char *address);
/* getaddrinfo of rk_net_host(host) for a stream socket; `flags`: AI_PASSIVE, AI_NUMERICSERV. `port` may be
 * NULL. Returns 0, or a code for gai_strerror; freeaddrinfo the list. */
int rk_net_resolve(struct addrinfo **out, const char *host, const char *port, int flags);

RK_END_DECLS

#endif
