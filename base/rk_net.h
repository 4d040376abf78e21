/* Addresses of host names. */
#ifndef RK_NET_H
#define RK_NET_H

#include <netdb.h>

#include "base/rk_compiler.h"

RK_BEGIN_DECLS

/* "127.0.0.1" for the name localhost, which no resolver is asked for: a new root file system has no
 * /etc/hosts. Every other host as it is. */
const char *rk_net_host(const char *host);
/* "HOST:PORT" with that of its host; rk_free it. */
char *rk_net_address(const char *address);
/* getaddrinfo for a stream socket, with `flags` (AI_PASSIVE, AI_NUMERICSERV) and the above. `port` may be
 * NULL. Returns 0, or a code for gai_strerror; freeaddrinfo the list. */
int rk_net_resolve(struct addrinfo **out, const char *host, const char *port, int flags);

RK_END_DECLS

#endif
