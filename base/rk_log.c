/* The log. One mutex guards the settings, the rate-limit state of every call site and the sink, so that lines
 * of several threads come out whole and in order. A record is formatted into a fixed buffer: no allocation,
 * and no line over MAX_LINE_BYTES. */
#include "base/rk_log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_assert.h"
#include "base/rk_str.h"
#include "base/rk_time.h"

#define MAX_RECORDS_PER_WINDOW 10
#define WINDOW_NS              1000000000LL
#define MAX_MESSAGE_BYTES      4000
#define MAX_LINE_BYTES         8000
#define TAIL_BYTES             320 /* reserved for the fields after the message */

struct line {
    char text[MAX_LINE_BYTES + 1];
    size_t bytes;
    size_t limit; /* bytes beyond it are dropped */
};

static const char *const level_names[RK_LOG_LEVEL_COUNT] = {"debug", "info", "warn", "error"};

static atomic_int min_level = RK_LOG_INFO;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below */
static rk_log_format_t format = RK_LOG_AUTO;
static char context[128];
static void (*sink_fn)(rk_log_level_t level, const char *line, void *user);
static void *sink_user;
static rk_log_tap_t tap_fn;
static void *tap_user;
/* A sink that logs would wait for the lock that its own caller holds. Aligned like the data section:
 * mold 1.10 may put an unaligned .tbss on a page of its own, and the program then does not start. */
static _Thread_local _Alignas(8) bool in_sink;

void rk_log_set_level(rk_log_level_t level)
{
    RK_ASSERT(level < RK_LOG_LEVEL_COUNT);
    atomic_store_explicit(&min_level, (int)level, memory_order_relaxed);
}

rk_log_level_t rk_log_get_level(void)
{
    return (rk_log_level_t)atomic_load_explicit(&min_level, memory_order_relaxed);
}

void rk_log_set_format(rk_log_format_t new_format)
{
    pthread_mutex_lock(&lock);
    format = new_format;
    pthread_mutex_unlock(&lock);
}

void rk_log_set_context(const char *text)
{
    pthread_mutex_lock(&lock);
    snprintf(context, sizeof(context), "%s", text ? text : "");
    pthread_mutex_unlock(&lock);
}

void rk_log_set_sink(void (*sink)(rk_log_level_t level, const char *line, void *user), void *user)
{
    pthread_mutex_lock(&lock);
    sink_fn = sink;
    sink_user = user;
    pthread_mutex_unlock(&lock);
}

void rk_log_set_tap(rk_log_tap_t tap, void *user)
{
    pthread_mutex_lock(&lock);
    tap_fn = tap;
    tap_user = user;
    pthread_mutex_unlock(&lock);
}

bool rk_log_level_parse(const char *text, rk_log_level_t *out)
{
    for (int i = 0; i < RK_LOG_LEVEL_COUNT; i++) {
        if (strcmp(text, level_names[i]) == 0) {
            *out = (rk_log_level_t)i;
            return true;
        }
    }
    return false;
}

const char *rk_log_level_name(rk_log_level_t level)
{
    RK_ASSERT(level < RK_LOG_LEVEL_COUNT);
    return level_names[level];
}

static void put_bytes(struct line *line, const char *data, size_t bytes)
{
    if (bytes > line->limit - line->bytes)
        return; /* dropped completely: half an escape sequence would break the line */
    memcpy(line->text + line->bytes, data, bytes);
    line->bytes += bytes;
}

static void put(struct line *line, const char *text)
{
    put_bytes(line, text, strlen(text));
}

/* Appends text that has to stay on one line. With `quotes`, characters that JSON reserves are escaped too. */
static void put_escaped(struct line *line, const char *text, size_t bytes, bool quotes)
{
    bool is_utf8 = rk_utf8_is_valid(text, bytes);
    char escape[8];

    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)text[i];

        if (c == '\n') {
            put(line, "\\n");
        } else if (c < 0x20 || c == 0x7f) {
            snprintf(escape, sizeof(escape), "\\u%04x", c);
            put(line, escape);
        } else if (is_utf8 && rk_utf8_control_bytes(text + i) == 2) { /* C1 */
            snprintf(escape, sizeof(escape), "\\u%04x", (unsigned char)text[++i]);
            put(line, escape);
        } else if (quotes && (c == '"' || c == '\\')) {
            put_bytes(line, (const char[]){'\\', (char)c}, 2);
        } else if (c >= 0x80 && !is_utf8) {
            put(line, "?");
        } else {
            put_bytes(line, text + i, 1);
        }
    }
}

/* Cuts a character that the end of the buffer split, so that the line stays UTF-8. */
static size_t whole_characters(const char *text, size_t bytes)
{
    size_t cut = bytes;

    while (cut > 0 && bytes - cut < 4 && !rk_utf8_is_valid(text, cut))
        cut--;
    return rk_utf8_is_valid(text, cut) ? cut : bytes;
}

/* The context's "key=value" words as members of the JSON object: integers as numbers, the rest as strings. */
static void put_json_context(struct line *line)
{
    const char *word = context + strspn(context, " ");

    while (*word) {
        size_t bytes = strcspn(word, " ");
        const char *equals = memchr(word, '=', bytes);
        char value[sizeof(context)];
        int64_t number;

        if (equals) {
            snprintf(value, sizeof(value), "%.*s", (int)(word + bytes - equals - 1), equals + 1);
            put(line, ",\"");
            put_escaped(line, word, (size_t)(equals - word), true);
            put(line, "\":");
            if (rk_parse_i64(value, &number)) {
                snprintf(value, sizeof(value), "%lld", (long long)number); /* "007" is no JSON number */
                put(line, value);
            } else {
                put(line, "\"");
                put_escaped(line, value, strlen(value), true);
                put(line, "\"");
            }
        }
        word += bytes;
        word += strspn(word, " ");
    }
}

static void format_json(struct line *line, const char *message, size_t bytes, const char *tail_fields)
{
    put(line, "\"msg\":\"");
    line->limit -= TAIL_BYTES;
    put_escaped(line, message, bytes, true);
    line->limit += TAIL_BYTES;
    put(line, "\"");
    put_json_context(line);
    put(line, tail_fields);
    put(line, "}");
}

static void format_record(struct line *line, rk_log_level_t level, const char *source, int suppressed,
                          const char *message, size_t message_bytes)
{
    bool is_json = format == RK_LOG_JSON || (format == RK_LOG_AUTO && (sink_fn || !isatty(STDERR_FILENO)));
    char time_text[32], head[96], tail[160];

    rk_time_format_utc(rk_time_unix_ns(), time_text, sizeof(time_text));
    if (is_json) {
        snprintf(head, sizeof(head), "{\"ts\":\"%s\",\"level\":\"%s\",", time_text, level_names[level]);
        snprintf(tail, sizeof(tail), ",\"src\":\"%.96s\"", source);
        if (suppressed)
            snprintf(tail + strlen(tail), sizeof(tail) - strlen(tail), ",\"suppressed\":%d", suppressed);
        put(line, head);
        format_json(line, message, message_bytes, tail);
        return;
    }
    snprintf(head, sizeof(head), "%s %-5s ", time_text, level_names[level]);
    put(line, head);
    line->limit -= TAIL_BYTES;
    put_escaped(line, message, message_bytes, false);
    line->limit += TAIL_BYTES;
    if (*context) {
        put(line, " ");
        put_escaped(line, context, strlen(context), false);
    }
    if (suppressed) {
        snprintf(tail, sizeof(tail), " suppressed=%d", suppressed);
        put(line, tail);
    }
}

/* Counts the record against its site's window. False: over the limit, only counted. */
static bool admit(struct rk_log_site *site, int *suppressed)
{
    int64_t now_ns = rk_time_now_ns();

    *suppressed = 0;
    if (site->count == 0 || now_ns - site->window_start_ns >= WINDOW_NS || now_ns < site->window_start_ns) {
        *suppressed = site->suppressed;
        *site = (struct rk_log_site){.window_start_ns = now_ns};
    }
    if (site->count == MAX_RECORDS_PER_WINDOW) {
        site->suppressed++;
        return false;
    }
    site->count++;
    return true;
}

static void emit(rk_log_level_t level, struct line *line)
{
    line->text[line->bytes] = '\0';
    if (sink_fn) {
        in_sink = true;
        sink_fn(level, line->text, sink_user);
        in_sink = false;
        return;
    }
    line->text[line->bytes] = '\n';
    /* One write per line. Errors are ignored: there is no other place to report to. */
    if (write(STDERR_FILENO, line->text, line->bytes + 1) < 0)
        return;
}

void rk_log_write(struct rk_log_site *site, rk_log_level_t level, const char *file, int line, const char *fmt,
                  ...)
{
    struct line record = {.bytes = 0, .limit = MAX_LINE_BYTES};
    char message[MAX_MESSAGE_BYTES], source[96];
    const char *slash = strrchr(file, '/');
    size_t message_bytes;
    int suppressed;
    va_list args;
    int written;

    if (in_sink)
        return;
    va_start(args, fmt);
    written = vsnprintf(message, sizeof(message), fmt, args);
    va_end(args);
    RK_ASSERT(written >= 0);
    message_bytes = strlen(message);
    if ((size_t)written > message_bytes)
        message_bytes = whole_characters(message, message_bytes);
    snprintf(source, sizeof(source), "%s:%d", slash ? slash + 1 : file, line);

    pthread_mutex_lock(&lock);
    if (admit(site, &suppressed)) {
        format_record(&record, level, source, suppressed, message, message_bytes);
        emit(level, &record);
        if (tap_fn) {
            in_sink = true;
            tap_fn(tap_user, level, message, message_bytes, source);
            in_sink = false;
        }
    }
    pthread_mutex_unlock(&lock);
}
