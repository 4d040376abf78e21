/* The watchers of the daemon's events (the RPC Watch), and the events that exist only for them. Thread L. */
#ifndef RK_DAEMON_WATCH_H
#define RK_DAEMON_WATCH_H

#include <stdint.h>

#include "daemon/loop_internal.h"
#include "daemon/rpc/rpc.h"

#define RK_WATCHERS_MAX 32

struct rk_feed;
struct rk_job;
struct rk_operation;
struct rk_subscriber;
struct rk_worker_snapshot;

/* Owned by the daemon. */
struct rk_watch {
    struct rk_feed *feed;
    struct rk_loop *loop;
    struct rk_loop_event added_event; /* posted by the feed */
    struct rk_subscriber *subscribers;
    int num_subscribers;
    /* The last sent progress. */
    uint64_t told_seq, told_done;
    char told_phase[32];
};

void rk_watch_init(struct rk_watch *watch, struct rk_feed *feed, struct rk_loop *loop);
/* Starts sending the available events. */
void rk_watch_advance(struct rk_watch *watch);
/* Every tick: adds an event if there is a watcher and the running call has made progress. */
void rk_watch_tick(struct rk_daemon *daemon, const struct rk_worker_snapshot *snapshot);
/* Metrics of a call that ended. */
void rk_watch_add_metrics(struct rk_daemon *daemon, const struct rk_operation *operation,
                          const struct rk_job *job);

extern const struct rk_rpc_handler rk_rpc_watch;

#endif
