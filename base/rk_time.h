/* Time. Everything that measures or waits uses the monotonic clock; leases use the boot clock, which
 * continues while the machine is suspended; wall-clock time is only printed. */
#ifndef RK_TIME_H
#define RK_TIME_H

#include <stddef.h>
#include <stdint.h>

#include "base/rk_compiler.h"

RK_BEGIN_DECLS

int64_t rk_time_now_ns(void);  /* CLOCK_MONOTONIC, or the injected clock */
int64_t rk_time_boot_ms(void); /* CLOCK_BOOTTIME, or the injected clock */
int64_t rk_time_unix_ns(void); /* CLOCK_REALTIME, for display only */
void rk_time_sleep_ms(int64_t ms);
/* Tests: all clocks return *now_ns from now on; NULL restores the real ones. */
void rk_time_inject(const int64_t *now_ns);
/* "2026-01-31T12:34:56.789Z" into buf (at least 32 bytes). Returns buf. */
char *rk_time_format_utc(int64_t unix_ns, char *buf, size_t buf_bytes);

RK_END_DECLS

#endif
