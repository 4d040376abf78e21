#include "daemon/loop_internal.h"

#include <pthread.h>
#include <signal.h>
#include <uv.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_compiler.h"

/* Converts a libuv result; only this file uses libuv. */
#define RK_UV(expr) uv_status((expr), #expr)

static const int signal_numbers[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};

struct rk_loop {
    uv_loop_t uv;
    uv_async_t wake;
    uv_timer_t tick;
    uv_signal_t signals[RK_ARRAY_LEN(signal_numbers)];
    struct rk_loop_handlers handlers;
    pthread_mutex_t turn; /* its holder acts for L; taken before `lock` */
    bool is_stopping;     /* with the turn */
    pthread_mutex_t lock; /* guards the list; nothing is called while it is held */
    struct rk_loop_event *first;
    struct rk_loop_event **last; /* link for the next event */
};

static struct rk_status *uv_status(int rc, const char *text)
{
    return rc == 0 ? NULL : RK_FAIL(RK_INTERNAL, "%s: %s", text, uv_strerror(rc));
}

static void append(struct rk_loop *loop, struct rk_loop_event *event)
{
    event->next = NULL;
    pthread_mutex_lock(&loop->lock);
    *loop->last = event;
    loop->last = &event->next;
    pthread_mutex_unlock(&loop->lock);
}

static void wake(struct rk_loop *loop)
{
    int rc = uv_async_send(&loop->wake);

    RK_ASSERT(rc == 0);
}

void rk_loop_post(struct rk_loop *loop, struct rk_loop_event *event)
{
    append(loop, event);
    wake(loop);
}

/* The present holder of the turn may have looked at the list already, so the loop's own thread is woken. */
void rk_loop_run_here(struct rk_loop *loop, struct rk_loop_event *event)
{
    append(loop, event);
    if (pthread_mutex_trylock(&loop->turn) != 0) {
        wake(loop);
        return;
    }
    rk_loop_drain(loop);
    pthread_mutex_unlock(&loop->turn);
}

/* Sends coalesce, so one wake-up stands for any number of events. */
void rk_loop_drain(struct rk_loop *loop)
{
    for (;;) {
        struct rk_loop_event *event, *next;

        pthread_mutex_lock(&loop->lock);
        event = loop->first;
        loop->first = NULL;
        loop->last = &loop->first;
        pthread_mutex_unlock(&loop->lock);
        if (!event)
            return;
        for (; event; event = next) {
            next = event->next; /* the event may be freed or posted again by run */
            event->run(event);
        }
    }
}

static void take_turn(struct rk_loop *loop)
{
    pthread_mutex_lock(&loop->turn);
}

static void end_turn(struct rk_loop *loop)
{
    if (loop->is_stopping)
        uv_stop(&loop->uv);
    pthread_mutex_unlock(&loop->turn);
}

static void on_wake(uv_async_t *handle)
{
    struct rk_loop *loop = handle->data;

    take_turn(loop);
    rk_loop_drain(loop);
    end_turn(loop);
}

static void on_tick(uv_timer_t *handle)
{
    struct rk_loop *loop = handle->data;

    take_turn(loop);
    loop->handlers.on_tick(loop->handlers.user);
    end_turn(loop);
}

static void on_signal(uv_signal_t *handle, int signum)
{
    struct rk_loop *loop = handle->data;

    take_turn(loop);
    loop->handlers.on_signal(loop->handlers.user, signum);
    end_turn(loop);
}

static struct rk_status *start_handles(struct rk_loop *loop)
{
    RK_TRY(RK_UV(uv_async_init(&loop->uv, &loop->wake, on_wake)));
    loop->wake.data = loop;
    RK_TRY(RK_UV(uv_timer_init(&loop->uv, &loop->tick)));
    loop->tick.data = loop;
    RK_TRY(RK_UV(uv_timer_start(&loop->tick, on_tick, RK_TICK_MS, RK_TICK_MS)));
    for (size_t i = 0; i < RK_ARRAY_LEN(signal_numbers); i++) {
        RK_TRY(RK_UV(uv_signal_init(&loop->uv, &loop->signals[i])));
        loop->signals[i].data = loop;
        RK_TRY(RK_UV(uv_signal_start(&loop->signals[i], on_signal, signal_numbers[i])));
    }
    return NULL;
}

struct rk_status *rk_loop_create(struct rk_loop **out, const struct rk_loop_handlers *handlers)
{
    struct rk_loop *loop = rk_calloc(1, sizeof(*loop));
    struct rk_status *st;

    *out = NULL;
    loop->handlers = *handlers;
    loop->last = &loop->first;
    pthread_mutex_init(&loop->lock, NULL);
    pthread_mutex_init(&loop->turn, NULL);
    take_turn(loop);
    st = RK_UV(uv_loop_init(&loop->uv));
    if (st) {
        pthread_mutex_unlock(&loop->turn);
        rk_free(loop);
        return st;
    }
    st = start_handles(loop);
    if (st) {
        rk_loop_destroy(loop);
        return st;
    }
    *out = loop;
    return NULL;
}

static void close_handle(uv_handle_t *handle, void *unused)
{
    (void)unused;
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

/* libuv restores the default action, which would end a process that is ending anyway, but by the signal. */
static void ignore_signals(struct rk_loop *loop)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(signal_numbers); i++) {
        if (loop->signals[i].loop) /* initialised */
            uv_signal_stop(&loop->signals[i]);
        (void)signal(signal_numbers[i], SIG_IGN);
    }
}

void rk_loop_destroy(struct rk_loop *loop)
{
    int rc;

    if (!loop)
        return;
    RK_ASSERT(!loop->first);
    ignore_signals(loop);
    uv_walk(&loop->uv, close_handle, NULL);
    uv_run(&loop->uv, UV_RUN_DEFAULT);
    rc = uv_loop_close(&loop->uv);
    RK_ASSERT(rc == 0);
    pthread_mutex_unlock(&loop->turn);
    pthread_mutex_destroy(&loop->turn);
    pthread_mutex_destroy(&loop->lock);
    rk_free(loop);
}

void rk_loop_run(struct rk_loop *loop)
{
    pthread_mutex_unlock(&loop->turn);
    uv_run(&loop->uv, UV_RUN_DEFAULT);
    take_turn(loop);
}

void rk_loop_stop(struct rk_loop *loop)
{
    loop->is_stopping = true;
    wake(loop);
}
