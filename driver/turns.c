/* Order of calls: calls on the same ranks reach the daemons in the order in which they were created. */
#include "driver/invocation_internal.h"

#include <errno.h>
#include <time.h>

#include "base/rk_assert.h"

void rk_turns_init(struct rk_turns *turns)
{
    pthread_condattr_t attributes;

    *turns = (struct rk_turns){0};
    pthread_mutex_init(&turns->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&turns->changed, &attributes);
    pthread_condattr_destroy(&attributes);
}

void rk_turns_fini(struct rk_turns *turns)
{
    RK_ASSERT(!turns->first); /* futures are taken or dropped before their driver is closed */
    pthread_cond_destroy(&turns->changed);
    pthread_mutex_destroy(&turns->lock);
}

void rk_turns_enter(struct rk_turns *turns, struct rk_invocation *inv)
{
    struct rk_invocation **link = &turns->first;

    pthread_mutex_lock(&turns->lock);
    while (*link)
        link = &(*link)->next;
    *link = inv;
    pthread_mutex_unlock(&turns->lock);
}

/* No earlier call on this rank is being offered, and the daemon's queue has room for one more. */
static bool is_rank_ready(const struct rk_turns *turns, struct rk_invocation *inv, int32_t rank)
{
    int32_t num_ahead = 0;

    for (const struct rk_invocation *other = turns->first; other != inv; other = other->next) {
        if (other->dispatch->chunk_of_rank[rank] < 0)
            continue;
        if (!other->is_offered)
            return false;
        num_ahead++;
    }
    inv->has_calls_ahead |= num_ahead > 0;
    return num_ahead < RK_LIMIT_QUEUED_CALLS;
}

static bool is_ready(const struct rk_turns *turns, struct rk_invocation *inv)
{
    inv->has_calls_ahead = false;
    for (int32_t rank = 0; rank < inv->num_ranks; rank++) {
        if (inv->dispatch->chunk_of_rank[rank] >= 0 && !is_rank_ready(turns, inv, rank))
            return false;
    }
    return true;
}

/* Interrupts come from signal handlers, which cannot signal the condition: hence the timeout. */
static void wait_for_change(struct rk_turns *turns)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += RK_DRIVER_POLL_MS * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_nsec -= 1000000000L;
        until.tv_sec++;
    }
    pthread_cond_timedwait(&turns->changed, &turns->lock, &until);
}

struct rk_status *rk_turns_wait(struct rk_turns *turns, struct rk_invocation *inv)
{
    struct rk_status *st = NULL;

    pthread_mutex_lock(&turns->lock);
    while (!st && !is_ready(turns, inv)) {
        inv->had_to_wait = true;
        wait_for_change(turns);
        if (atomic_load(&inv->is_cancelled))
            st = RK_FAIL(RK_CANCELLED, "cancelled before it began: %s", inv->cancel_reason);
        else if (atomic_load(&inv->driver->interrupts) > 0)
            st = RK_FAIL(RK_CANCELLED, "interrupted");
    }
    pthread_mutex_unlock(&turns->lock);
    return st;
}

void rk_turns_offered(struct rk_turns *turns, struct rk_invocation *inv)
{
    pthread_mutex_lock(&turns->lock);
    inv->is_offered = true;
    pthread_cond_broadcast(&turns->changed);
    pthread_mutex_unlock(&turns->lock);
}

void rk_turns_leave(struct rk_turns *turns, struct rk_invocation *inv)
{
    struct rk_invocation **link = &turns->first;

    pthread_mutex_lock(&turns->lock);
    while (*link != inv)
        link = &(*link)->next;
    *link = inv->next;
    pthread_cond_broadcast(&turns->changed);
    pthread_mutex_unlock(&turns->lock);
}

static int32_t count_calls(struct rk_turns *turns)
{
    int32_t num_calls = 0;

    pthread_mutex_lock(&turns->lock);
    for (const struct rk_invocation *inv = turns->first; inv; inv = inv->next)
        num_calls++;
    pthread_mutex_unlock(&turns->lock);
    return num_calls;
}

bool rk_turns_is_idle(struct rk_turns *turns)
{
    return count_calls(turns) == 0;
}

struct rk_status *rk_turns_check_idle(struct rk_turns *turns, const char *what)
{
    int32_t num_calls = count_calls(turns);

    if (num_calls == 0)
        return NULL;
    return RK_FAIL(RK_FAILED_PRECONDITION,
                   "%s: %d calls are in flight, expected none; wait for their futures first", what,
                   num_calls);
}
