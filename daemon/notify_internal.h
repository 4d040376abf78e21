/* Notifications of the service manager (sd_notify); no effect without one or without libsystemd. */
#ifndef RK_NOTIFY_INTERNAL_H
#define RK_NOTIFY_INTERNAL_H

#include <stdint.h>

#include "base/rk_compiler.h"

void rk_notify_ready(void);
void rk_notify_stopping(void);
void rk_notify_reloading(void); /* followed by rk_notify_ready */
void rk_notify_alive(void);
void rk_notify_status(const char *fmt, ...) RK_PRINTF(1, 2);
/* Period in which the service manager expects rk_notify_alive; 0: none. */
int64_t rk_notify_watchdog_ms(void);

#endif
