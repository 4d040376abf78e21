#include "daemon/health_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "daemon/daemon_internal.h"
#include "proto/rk_stream.h"

#define RETRY_MS 1000 /* another watch may have ended by then */

struct rk_watcher {
    struct rk_watcher *next, **link;
    struct rk_call *call;
    char *service;
    int sent; /* last status that was sent; -1: none */
};

/* "" is for liveness probes: draining is healthy. "rankd.ready" is for probes that wait for a loaded
 * model. */
rk_serving_status_t rk_health_get(const struct rk_health *health, const char *service)
{
    const struct {
        const char *name;
        bool is_serving;
    } services[] = {
        {"", health->facts.is_alive},
        {"rankd.v1.Worker", health->facts.takes_work},
        {"rankd.v1.Admin", health->facts.is_alive},
        {"rankd.ready", health->facts.is_ready},
    };

    for (size_t i = 0; i < RK_ARRAY_LEN(services); i++) {
        if (strcmp(services[i].name, service) == 0)
            return services[i].is_serving ? RK_SERVING : RK_NOT_SERVING;
    }
    return RK_SERVICE_UNKNOWN;
}

/* Sends the current status, unless it was sent already or a message is still in progress. */
static void tell(struct rk_watcher *watcher)
{
    const struct rk_health *health = &rk_call_daemon(watcher->call)->health;
    struct rk_health_check_response response = {.status = rk_health_get(health, watcher->service)};
    struct rk_str packed = {0};

    if ((int)response.status == watcher->sent || rk_call_is_sending(watcher->call))
        return;
    watcher->sent = (int)response.status;
    rk_pack_health_check_response(&packed, &response);
    rk_call_send(watcher->call, rk_stream_encode(&packed));
    rk_str_fini(&packed);
}

void rk_health_set(struct rk_health *health, const struct rk_health_facts *facts)
{
    health->facts = *facts;
    for (struct rk_watcher *watcher = health->watchers; watcher; watcher = watcher->next)
        tell(watcher);
}

static struct rk_status *unpack(struct rk_health_check_request *out, struct rk_call *call,
                                struct rk_bytes request)
{
    return rk_unpack_health_check_request(out, rk_call_arena(call), request.data, request.bytes);
}

static struct rk_status *check(struct rk_call *call, struct rk_bytes request, struct rk_str *reply)
{
    struct rk_health_check_response response;
    struct rk_health_check_request message;

    RK_TRY(unpack(&message, call, request));
    response.status = rk_health_get(&rk_call_daemon(call)->health, message.service);
    if (response.status == RK_SERVICE_UNKNOWN)
        return RK_FAIL(RK_NOT_FOUND,
                       "unknown service '%s', expected '', rankd.v1.Worker, rankd.v1.Admin or rankd.ready",
                       message.service);
    rk_pack_health_check_response(reply, &response);
    return NULL;
}

static struct rk_status *begin_watch(struct rk_call *call, struct grpc_byte_buffer *buffer)
{
    struct rk_health *health = &rk_call_daemon(call)->health;
    struct rk_health_check_request message;
    struct rk_watcher *watcher;
    struct rk_bytes request;

    if (!buffer)
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "the call has no request message");
    RK_TRY(rk_stream_flatten(&request, rk_call_arena(call), buffer, RK_LIMIT_MESSAGE_BYTES));
    RK_TRY(unpack(&message, call, request));
    if (health->num_watchers == RK_HEALTH_WATCHERS_MAX)
        return rk_status_retry_after(RK_FAIL(RK_RESOURCE_EXHAUSTED,
                                             "%d health watches are open on this daemon, which is the limit",
                                             RK_HEALTH_WATCHERS_MAX),
                                     RETRY_MS);
    watcher = rk_calloc(1, sizeof(*watcher));
    watcher->call = call;
    watcher->service = rk_strdup(message.service);
    watcher->sent = -1;
    watcher->next = health->watchers;
    watcher->link = &health->watchers;
    if (watcher->next)
        watcher->next->link = &watcher->next;
    health->watchers = watcher;
    health->num_watchers++;
    rk_call_set_user(call, watcher);
    tell(watcher);
    return NULL;
}

static void on_watch_message(struct rk_call *call, struct grpc_byte_buffer *message)
{
    struct rk_status *st = begin_watch(call, message);

    if (st)
        rk_call_finish(call, st);
}

static void on_watch_sent(struct rk_call *call)
{
    tell(rk_call_user(call));
}

static void on_watch_end(struct rk_call *call)
{
    struct rk_watcher *watcher = rk_call_user(call);

    if (!watcher)
        return;
    *watcher->link = watcher->next;
    if (watcher->next)
        watcher->next->link = watcher->link;
    rk_call_daemon(call)->health.num_watchers--;
    rk_free(watcher->service);
    rk_free(watcher);
}

const struct rk_rpc_handler rk_rpc_health_check = {.unary = check};
const struct rk_rpc_handler rk_rpc_health_watch = {
    .on_message = on_watch_message, .on_sent = on_watch_sent, .on_end = on_watch_end, .is_endless = true};
