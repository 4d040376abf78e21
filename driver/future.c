/* Asynchronous calls. Each has a thread that runs the same as rk_driver_call on the caller's
 * thread; both share the future. */
#include "driver/invocation_internal.h"

#include <errno.h>
#include <signal.h>
#include <time.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

/* A thread that waits for the first of several futures. Lock order: a future's lock, then the waiter's. */
struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t woken;
};

struct rk_future {
    pthread_t thread;
    pthread_mutex_t lock;      /* guards inv and waiter */
    struct rk_invocation *inv; /* NULL once it has ended */
    struct waiter *waiter;     /* NULL: no thread waits */
    atomic_bool is_done;
    struct rk_status *status; /* with result, the thread's until is_done */
    struct rk_driver_result result;
};

static void wake(struct waiter *waiter)
{
    pthread_mutex_lock(&waiter->lock);
    pthread_cond_signal(&waiter->woken);
    pthread_mutex_unlock(&waiter->lock);
}

static void *run(void *user)
{
    struct rk_future *future = user;
    struct rk_invocation *inv = future->inv;

    future->status = rk_invocation_run(inv, &future->result);
    pthread_mutex_lock(&future->lock);
    future->inv = NULL;
    pthread_mutex_unlock(&future->lock);
    rk_invocation_destroy(inv);

    pthread_mutex_lock(&future->lock);
    atomic_store(&future->is_done, true);
    if (future->waiter)
        wake(future->waiter);
    pthread_mutex_unlock(&future->lock);
    return NULL;
}

struct rk_status *rk_driver_start(struct rk_future **out, struct rk_driver *driver,
                                  const struct rk_driver_call_args *call)
{
    struct rk_future *future;
    struct rk_invocation *inv;
    sigset_t all, old;
    int rc;

    *out = NULL;
    RK_TRY(rk_invocation_create(&inv, driver, call));
    future = rk_calloc(1, sizeof(*future));
    future->inv = inv;
    pthread_mutex_init(&future->lock, NULL);
    atomic_init(&future->is_done, false);
    /* Signals belong to the program's own threads. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    rc = pthread_create(&future->thread, NULL, run, future);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc == 0) {
        *out = future;
        return NULL;
    }
    rk_turns_leave(&driver->turns, inv);
    rk_invocation_destroy(inv);
    pthread_mutex_destroy(&future->lock);
    rk_free(future);
    return RK_FAIL(RK_RESOURCE_EXHAUSTED, "%s.%s: cannot create a thread for the call (error %d)", call->role,
                   call->method, rc);
}

bool rk_future_is_done(const struct rk_future *future)
{
    return atomic_load(&future->is_done);
}

static int32_t find_done(struct rk_future *const *futures, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        if (futures[i] && rk_future_is_done(futures[i]))
            return i;
    }
    return -1;
}

/* Registers the waiter at the futures; returns their number. */
static int32_t set_waiter(struct rk_future *const *futures, int32_t count, struct waiter *waiter)
{
    int32_t num_futures = 0;

    for (int32_t i = 0; i < count; i++) {
        if (!futures[i])
            continue;
        pthread_mutex_lock(&futures[i]->lock);
        futures[i]->waiter = waiter;
        pthread_mutex_unlock(&futures[i]->lock);
        num_futures++;
    }
    return num_futures;
}

static void waiter_init(struct waiter *waiter)
{
    pthread_condattr_t attributes;

    pthread_mutex_init(&waiter->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&waiter->woken, &attributes);
    pthread_condattr_destroy(&attributes);
}

static struct timespec after_ms(int64_t ms)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += ms / 1000;
    until.tv_nsec += ms % 1000 * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_nsec -= 1000000000L;
        until.tv_sec++;
    }
    return until;
}

int32_t rk_future_wait_any(struct rk_future *const *futures, int32_t count, int64_t timeout_ms)
{
    struct timespec until = after_ms(timeout_ms > 0 ? timeout_ms : 0);
    struct waiter waiter;
    int32_t found = find_done(futures, count);
    int rc = 0;

    if (found >= 0 || timeout_ms == 0)
        return found;
    waiter_init(&waiter);
    if (set_waiter(futures, count, &waiter) > 0) {
        pthread_mutex_lock(&waiter.lock);
        while ((found = find_done(futures, count)) < 0 && rc != ETIMEDOUT) {
            rc = timeout_ms < 0 ? pthread_cond_wait(&waiter.woken, &waiter.lock)
                                : pthread_cond_timedwait(&waiter.woken, &waiter.lock, &until);
        }
        pthread_mutex_unlock(&waiter.lock);
        set_waiter(futures, count, NULL);
    }
    pthread_cond_destroy(&waiter.woken);
    pthread_mutex_destroy(&waiter.lock);
    return found;
}

void rk_future_cancel(struct rk_future *future, const char *reason)
{
    pthread_mutex_lock(&future->lock);
    if (future->inv)
        rk_invocation_cancel(future->inv, reason);
    pthread_mutex_unlock(&future->lock);
}

struct rk_status *rk_future_take(struct rk_future *future, struct rk_driver_result *result)
{
    struct rk_status *st;

    pthread_join(future->thread, NULL);
    RK_ASSERT(rk_future_is_done(future));
    st = future->status;
    *result = future->result;
    pthread_mutex_destroy(&future->lock);
    rk_free(future);
    return st;
}

void rk_future_drop(struct rk_future *future)
{
    struct rk_driver_result result;

    if (!future)
        return;
    rk_future_cancel(future, "the result of a dropped future is not needed");
    RK_IGNORE(rk_future_take(future, &result), "a dropped future reports no status");
    rk_driver_result_fini(&result);
}
