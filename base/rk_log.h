/* Leveled key=value log.
 *
 * One record is one line: time, level, message, then fields. Text on a terminal, JSON lines otherwise (or as
 * configured). Never log prompts, tokens or weights. Thread-safe; each call site is limited to 10 records a
 * second, further ones are counted and reported as suppressed. */
#ifndef RK_LOG_H
#define RK_LOG_H

#include <stdbool.h>
#include <stddef.h>

#include "base/rk_compiler.h"

RK_BEGIN_DECLS

typedef enum rk_log_level {
    RK_LOG_DEBUG,
    RK_LOG_INFO,
    RK_LOG_WARN,
    RK_LOG_ERROR,
    RK_LOG_LEVEL_COUNT
} rk_log_level_t;
typedef enum rk_log_format { RK_LOG_AUTO, RK_LOG_TEXT, RK_LOG_JSON } rk_log_format_t;

void rk_log_set_level(rk_log_level_t level);
rk_log_level_t rk_log_get_level(void);
void rk_log_set_format(rk_log_format_t format);
/* Prefix of every record, e.g. "slot=3 rank=1"; copied, at most 127 bytes. */
void rk_log_set_context(const char *context);
/* Sink for complete lines without newline; NULL restores stderr. */
void rk_log_set_sink(void (*sink)(rk_log_level_t level, const char *line, void *user), void *user);
/* Function that gets every record too, independent of the sink; NULL removes it. It is called by the thread
 * that logs, must not block and cannot log itself. `message` has `bytes` bytes and is not always UTF-8;
 * `source` is "file.c:12". */
typedef void (*rk_log_tap_t)(void *user, rk_log_level_t level, const char *message, size_t bytes,
                             const char *source);
void rk_log_set_tap(rk_log_tap_t tap, void *user);
bool rk_log_level_parse(const char *text, rk_log_level_t *out); /* "debug", "info", "warn", "error" */
const char *rk_log_level_name(rk_log_level_t level);

/* Rate-limit state of one call site; zero-initialised static. */
struct rk_log_site {
    long long window_start_ns;
    int count;
    int suppressed;
};

void rk_log_write(struct rk_log_site *site, rk_log_level_t level, const char *file, int line, const char *fmt,
                  ...) RK_PRINTF(5, 6);

#define RK_LOG(level, ...)                                                     \
    do {                                                                       \
        static struct rk_log_site rk_site_;                                    \
        if ((level) >= rk_log_get_level())                                     \
            rk_log_write(&rk_site_, (level), __FILE__, __LINE__, __VA_ARGS__); \
    } while (0)
#define RK_DEBUG_LOG(...) RK_LOG(RK_LOG_DEBUG, __VA_ARGS__)
#define RK_INFO(...)      RK_LOG(RK_LOG_INFO, __VA_ARGS__)
#define RK_WARN(...)      RK_LOG(RK_LOG_WARN, __VA_ARGS__)
#define RK_ERROR(...)     RK_LOG(RK_LOG_ERROR, __VA_ARGS__)

RK_END_DECLS

#endif
