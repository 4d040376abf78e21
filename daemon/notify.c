#include "daemon/notify_internal.h"

#include <stdarg.h>
#include <stdio.h>

#ifdef RK_HAVE_SYSTEMD
#include <systemd/sd-daemon.h>
#endif

#include "base/rk_time.h"

static void send_text(const char *text)
{
#ifdef RK_HAVE_SYSTEMD
    /* Without a service manager it does nothing. Errors are ignored: there is no other receiver for them. */
    sd_notify(0, text);
#else
    (void)text;
#endif
}

void rk_notify_ready(void)
{
    send_text("READY=1");
}

void rk_notify_stopping(void)
{
    send_text("STOPPING=1");
}

void rk_notify_reloading(void)
{
    char text[64];

    snprintf(text, sizeof(text), "RELOADING=1\nMONOTONIC_USEC=%lld", (long long)(rk_time_now_ns() / 1000));
    send_text(text);
}

void rk_notify_alive(void)
{
    send_text("WATCHDOG=1");
}

void rk_notify_status(const char *fmt, ...)
{
    char text[256] = "STATUS=";
    va_list args;

    va_start(args, fmt);
    vsnprintf(text + 7, sizeof(text) - 7, fmt, args);
    va_end(args);
    send_text(text);
}

int64_t rk_notify_watchdog_ms(void)
{
#ifdef RK_HAVE_SYSTEMD
    uint64_t period_us = 0;

    if (sd_watchdog_enabled(0, &period_us) > 0)
        return (int64_t)(period_us / 1000);
#endif
    return 0;
}
