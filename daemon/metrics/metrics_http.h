/* The listener of metrics.listen: only GET and HEAD of /metrics over HTTP/1.1.
 *
 * libmicrohttpd's own thread serves the connections, so that a slow or silent peer delays neither L
 * nor G. L makes the text: the thread asks for it and suspends the connection until the text is ready. */
#ifndef RK_DAEMON_METRICS_HTTP_H
#define RK_DAEMON_METRICS_HTTP_H

#include "base/rk_status.h"
#include "base/rk_str.h"
#include "daemon/guard/listen.h"
#include "daemon/loop_internal.h"

#define RK_METRICS_CONNECTIONS_MAX 16
#define RK_METRICS_TIMEOUT_S       5 /* of a request with its answer, and of an idle connection */

struct rk_metrics_http;

struct rk_metrics_http_config {
    const struct rk_listen *listen; /* borrowed during create */
    struct rk_loop *loop;
    void *user;
    void (*render)(void *user, struct rk_str *out); /* L */
};

/* Binds, listens and starts the thread. Reason ADDRESS_IN_USE when another process has the address. */
struct rk_status *rk_metrics_http_create(struct rk_metrics_http **out,
                                         const struct rk_metrics_http_config *config) RK_NODISCARD;
/* L, regularly: closes connections whose request takes too long. */
void rk_metrics_http_tick(struct rk_metrics_http *http);
/* L, when the loop has ended: answers waiting scrapes, and ends the thread. NULL is a no-op. */
void rk_metrics_http_destroy(struct rk_metrics_http *http);
/* The address in the form that clients accept. Borrowed. */
const char *rk_metrics_http_address(const struct rk_metrics_http *http);

#endif
