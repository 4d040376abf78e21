#include "base/rk_time.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#include "base/rk_assert.h"

#define NS_PER_S  1000000000LL
#define NS_PER_MS 1000000LL

static _Atomic(const int64_t *) injected;

static int64_t read_clock(clockid_t clock)
{
    const int64_t *now = atomic_load(&injected);
    struct timespec ts;

    if (now)
        return *now;
    RK_ASSERT(clock_gettime(clock, &ts) == 0);
    return ts.tv_sec * NS_PER_S + ts.tv_nsec;
}

int64_t rk_time_now_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

int64_t rk_time_boot_ms(void)
{
    return read_clock(CLOCK_BOOTTIME) / NS_PER_MS;
}

int64_t rk_time_unix_ns(void)
{
    return read_clock(CLOCK_REALTIME);
}

void rk_time_sleep_ms(int64_t ms)
{
    struct timespec left = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * NS_PER_MS};

    while (ms > 0 && nanosleep(&left, &left) != 0)
        RK_ASSERT(errno == EINTR);
}

void rk_time_inject(const int64_t *now_ns)
{
    atomic_store(&injected, now_ns);
}

char *rk_time_format_utc(int64_t unix_ns, char *buf, size_t buf_bytes)
{
    /* Floor division, so that times before 1970 keep a non-negative fraction. */
    int64_t seconds = unix_ns / NS_PER_S - (unix_ns % NS_PER_S < 0);
    int ms = (int)((unix_ns - seconds * NS_PER_S) / NS_PER_MS);
    time_t clock_seconds = (time_t)seconds;
    struct tm tm;
    size_t bytes;

    RK_ASSERT(buf_bytes >= 32);
    RK_ASSERT(gmtime_r(&clock_seconds, &tm) != NULL);
    bytes = strftime(buf, buf_bytes, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(buf + bytes, buf_bytes - bytes, ".%03dZ", ms);
    return buf;
}
