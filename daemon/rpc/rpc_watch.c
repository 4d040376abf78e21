/* Watch: the daemon's events as a stream.
 *
 * A watcher is a cursor into the ring of events (feed.c), and at most one message in progress: a peer that
 * does not read costs neither memory nor time, and gets the number of missed events when it reads
 * again. A watch whose peer reads nothing for STALL_NS while there are events is ended, to free its
 * place. */
#include "daemon/rpc/watch.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_time.h"
#include "daemon/daemon_internal.h"
#include "daemon/feed_internal.h"
#include "daemon/operation_internal.h"
#include "proto/rk_stream.h"

#define STALL_NS (30 * 1000000000LL)

struct rk_subscriber {
    struct rk_subscriber *next, **link;
    struct rk_call *call;
    struct rk_feed_filter filter;
    uint64_t cursor; /* the next event */
    uint64_t last;   /* past_only: the stream ends after this event; else UINT64_MAX */
    int64_t sent_ns; /* when the message in progress was sent */
};

/* --- sending --- */

static void send_packed(struct rk_subscriber *subscriber, struct rk_str *packed)
{
    subscriber->sent_ns = rk_time_now_ns();
    rk_call_send(subscriber->call, rk_stream_encode(packed));
    rk_str_fini(packed);
}

/* Sends the next event, unless a message is in progress. */
static void advance(struct rk_subscriber *subscriber)
{
    struct rk_feed *feed = rk_call_daemon(subscriber->call)->feed;
    struct rk_str packed = {0};

    if (rk_call_is_sending(subscriber->call) || rk_call_is_finished(subscriber->call))
        return;
    if (subscriber->cursor <= subscriber->last &&
        rk_feed_next(feed, &subscriber->filter, &subscriber->cursor, &packed)) {
        send_packed(subscriber, &packed);
        return;
    }
    if (subscriber->cursor > subscriber->last)
        rk_call_finish(subscriber->call, NULL);
}

/* The first message: the current status of the daemon. */
static void greet(struct rk_subscriber *subscriber)
{
    struct rk_call *call = subscriber->call;
    struct rk_daemon *daemon = rk_call_daemon(call);
    struct rk_watch_event event = {.unix_ns = (uint64_t)rk_time_unix_ns(),
                                   .kind = rk_feed_kind_name(RK_FEED_STATE),
                                   .message = rk_daemon_state_name(daemon->state)};
    struct rk_str packed = {0};

    event.status = rk_query_status(daemon, rk_call_arena(call));
    rk_pack_watch_event(&packed, &event);
    send_packed(subscriber, &packed);
}

void rk_watch_advance(struct rk_watch *watch)
{
    struct rk_subscriber *next;

    for (struct rk_subscriber *subscriber = watch->subscribers; subscriber; subscriber = next) {
        next = subscriber->next;
        advance(subscriber);
    }
}

/* L: an event was added. */
static void on_added(struct rk_loop_event *event)
{
    struct rk_watch *watch = RK_CONTAINER_OF(event, struct rk_watch, added_event);

    rk_feed_clear_wake(watch->feed);
    rk_watch_advance(watch);
}

/* Any thread. */
static void wake(void *user)
{
    struct rk_watch *watch = user;

    rk_loop_post(watch->loop, &watch->added_event);
}

void rk_watch_init(struct rk_watch *watch, struct rk_feed *feed, struct rk_loop *loop)
{
    *watch = (struct rk_watch){.feed = feed, .loop = loop, .added_event.run = on_added};
    rk_feed_set_wake(feed, wake, watch);
}

/* --- the call --- */

static void add(struct rk_watch *watch, struct rk_subscriber *subscriber)
{
    subscriber->next = watch->subscribers;
    subscriber->link = &watch->subscribers;
    if (subscriber->next)
        subscriber->next->link = &subscriber->next;
    watch->subscribers = subscriber;
    watch->num_subscribers++;
    rk_feed_set_waiting(watch->feed, true);
}

static struct rk_status *begin(struct rk_call *call, struct grpc_byte_buffer *buffer)
{
    struct rk_watch *watch = &rk_call_daemon(call)->watch;
    struct rk_subscriber *subscriber;
    struct rk_watch_request message;
    struct rk_feed_filter filter;
    struct rk_bytes request;
    uint64_t newest;

    if (!buffer)
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "the call has no request message");
    RK_TRY(rk_stream_flatten(&request, rk_call_arena(call), buffer, RK_LIMIT_MESSAGE_BYTES));
    RK_TRY(rk_unpack_watch_request(&message, rk_call_arena(call), request.data, request.bytes));
    RK_TRY(rk_feed_filter_init(&filter, &message));
    if (watch->num_subscribers == RK_WATCHERS_MAX)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "%d Watch calls are open on this daemon, which is the limit",
                       RK_WATCHERS_MAX);
    newest = rk_feed_newest(watch->feed);
    subscriber = rk_calloc(1, sizeof(*subscriber));
    subscriber->call = call;
    subscriber->filter = filter;
    subscriber->cursor = message.from_event ? RK_MIN(message.from_event, newest + 1) : newest + 1;
    subscriber->last = message.past_only ? newest : UINT64_MAX;
    add(watch, subscriber);
    rk_call_set_user(call, subscriber);
    greet(subscriber);
    return NULL;
}

static void on_message(struct rk_call *call, struct grpc_byte_buffer *message)
{
    struct rk_status *st = begin(call, message);

    if (st)
        rk_call_finish(call, st);
}

static void on_sent(struct rk_call *call)
{
    advance(rk_call_user(call));
}

static void on_tick(struct rk_call *call)
{
    struct rk_subscriber *subscriber = rk_call_user(call);

    if (subscriber && rk_call_is_sending(call) && rk_time_now_ns() - subscriber->sent_ns > STALL_NS)
        rk_call_cut(call, RK_FAIL(RK_RESOURCE_EXHAUSTED, "the client read no event for %d s",
                                  (int)(STALL_NS / 1000000000)));
}

static void on_end(struct rk_call *call)
{
    struct rk_watch *watch = &rk_call_daemon(call)->watch;
    struct rk_subscriber *subscriber = rk_call_user(call);

    if (!subscriber)
        return;
    *subscriber->link = subscriber->next;
    if (subscriber->next)
        subscriber->next->link = subscriber->link;
    if (--watch->num_subscribers == 0)
        rk_feed_set_waiting(watch->feed, false);
    rk_free(subscriber);
}

const struct rk_rpc_handler rk_rpc_watch = {
    .on_message = on_message, .on_sent = on_sent, .on_tick = on_tick, .on_end = on_end, .is_endless = true};

/* --- events that exist only for watchers --- */

void rk_watch_tick(struct rk_daemon *daemon, const struct rk_worker_snapshot *snapshot)
{
    struct rk_watch *watch = &daemon->watch;
    const struct rk_operation *first = rk_operations_find_first(daemon);

    if (watch->num_subscribers == 0 || !snapshot->running || !first || first->job != snapshot->running)
        return;
    if (watch->told_seq == first->seq && watch->told_done == snapshot->progress_done &&
        strcmp(watch->told_phase, snapshot->phase) == 0)
        return;
    watch->told_seq = first->seq;
    watch->told_done = snapshot->progress_done;
    memcpy(watch->told_phase, snapshot->phase, sizeof(watch->told_phase));
    rk_feed_add(watch->feed, RK_FEED_PROGRESS,
                RK_FEED_FIELDS(((struct rk_meta_entry[]){
                    RK_FEED_TEXT("method", first->name), RK_FEED_INT("seq", first->seq),
                    RK_FEED_TEXT("phase", snapshot->phase), RK_FEED_INT("done", snapshot->progress_done),
                    RK_FEED_INT("total", snapshot->progress_total),
                    RK_FEED_TEXT("collective", snapshot->collective_name)})),
                "%s %s %llu/%llu", first->name, snapshot->phase, (unsigned long long)snapshot->progress_done,
                (unsigned long long)snapshot->progress_total);
}

void rk_watch_add_metrics(struct rk_daemon *daemon, const struct rk_operation *operation,
                          const struct rk_job *job)
{
    struct rk_meta_entry fields[RK_JOB_MAX_METRICS];
    struct rk_meta meta = {.entries = fields};

    for (int64_t i = 0; i < job->call.num_metrics; i++) {
        const struct rk_job_metric *metric = &job->call.metrics[i];
        struct rk_scalar value = {.kind = RK_SCALAR_REAL, .real = metric->value};

        if (!isfinite(metric->value))
            value = (struct rk_scalar){.kind = RK_SCALAR_STRING,
                                       .text = isnan(metric->value) ? "nan"
                                               : metric->value > 0  ? "inf"
                                                                    : "-inf"};
        fields[meta.count++] = (struct rk_meta_entry){.key = metric->name, .value = value};
    }
    if (meta.count > 0)
        rk_feed_add(daemon->feed, RK_FEED_METRICS, &meta, "%s", operation->name);
}
