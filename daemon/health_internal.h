/* The standard health service: Check and Watch, from cached state only. */
#ifndef RK_HEALTH_INTERNAL_H
#define RK_HEALTH_INTERNAL_H

#include <stdbool.h>

#include "daemon/rpc/rpc.h"

#define RK_HEALTH_WATCHERS_MAX 32

/* The facts from which the answers derive. */
struct rk_health_facts {
    bool is_alive;   /* serving at all: not FAILED, not stopping */
    bool takes_work; /* alive and not draining */
    bool is_ready;   /* takes work, communicators are up and some role has a model */
};

struct rk_watcher;

/* Owned by the daemon; zero-initialised. */
struct rk_health {
    struct rk_health_facts facts;
    struct rk_watcher *watchers;
    int num_watchers;
};

/* Sends changes to the watchers. */
void rk_health_set(struct rk_health *health, const struct rk_health_facts *facts);
/* RK_SERVICE_UNKNOWN for a name that is not served. */
rk_serving_status_t rk_health_get(const struct rk_health *health, const char *service);

extern const struct rk_rpc_handler rk_rpc_health_check, rk_rpc_health_watch;

#endif
