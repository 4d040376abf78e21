/* Status objects. Success allocates nothing. When memory for a failure is missing, the one static object
 * `oom` stands for it: it is never changed and never freed. */
#include "base/rk_status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_assert.h"
#include "base/rk_log.h"

struct frame {
    const char *file; /* static storage; NULL for a status that came from a peer */
    int line;
    char *text;
};

struct rk_status {
    rk_code_t code;
    const char *reason; /* static storage, or owned_reason */
    char *owned_reason;
    char *message; /* the frames' texts, outermost first, joined by ": " */
    struct frame *frames;
    size_t num_frames;
    int32_t blamed_rank; /* -1: not known */
    int64_t retry_ms;    /* -1: not known */
    char *field;         /* NULL: none */
};

static struct rk_status oom = {
    .blamed_rank = -1,
    .retry_ms = -1,
    .code = RK_RESOURCE_EXHAUSTED,
    .reason = "",
    .message = (char[]){"out of host memory while reporting an error"},
};

static const char *const code_names[RK_CODE_COUNT] = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};

RK_PRINTF(1, 0) static char *try_vformat(const char *fmt, va_list args)
{
    char *text = NULL;

    return vasprintf(&text, fmt, args) < 0 ? NULL : text;
}

void rk_status_free(struct rk_status *st)
{
    if (!st || st == &oom)
        return;
    for (size_t i = 0; i < st->num_frames; i++)
        free(st->frames[i].text);
    free(st->frames);
    free(st->owned_reason);
    free(st->field);
    free(st->message);
    free(st);
}

/* Adds a frame; takes `text`, which may be NULL when memory is exhausted. False leaves `st` as it was. */
static bool push_frame(struct rk_status *st, const char *file, int line, char *text)
{
    struct frame *frames = text ? realloc(st->frames, (st->num_frames + 1) * sizeof(*frames)) : NULL;

    if (!frames) {
        free(text);
        return false;
    }
    st->frames = frames;
    frames[st->num_frames++] = (struct frame){.file = file, .line = line, .text = text};
    return true;
}

static struct rk_status *make(rk_code_t code, const char *reason, const char *file, int line, char *text)
{
    struct rk_status *st = calloc(1, sizeof(*st));

    RK_ASSERT(code > RK_OK);
    RK_ASSERT(code < RK_CODE_COUNT);
    if (!st || !text) {
        free(text);
        free(st);
        return &oom;
    }
    st->code = code;
    st->reason = reason;
    st->blamed_rank = -1;
    st->retry_ms = -1;
    st->message = strdup(text);
    if (!push_frame(st, file, line, text) || !st->message) {
        rk_status_free(st);
        return &oom;
    }
    return st;
}

struct rk_status *rk_status_new(rk_code_t code, const char *file, int line, const char *fmt, ...)
{
    va_list args;
    char *text;

    va_start(args, fmt);
    text = try_vformat(fmt, args);
    va_end(args);
    return make(code, "", file, line, text);
}

struct rk_status *rk_status_new_reason(rk_code_t code, const char *reason, const char *file, int line,
                                       const char *fmt, ...)
{
    va_list args;
    char *text;

    va_start(args, fmt);
    text = try_vformat(fmt, args);
    va_end(args);
    return make(code, reason, file, line, text);
}

/* Gives `st` a copy of `reason`, because the caller's may go away. */
static struct rk_status *own_reason(struct rk_status *st, const char *reason)
{
    if (st == &oom || !reason || !*reason)
        return st;
    st->owned_reason = strdup(reason);
    if (!st->owned_reason) {
        rk_status_free(st);
        return &oom;
    }
    st->reason = st->owned_reason;
    return st;
}

struct rk_status *rk_status_from_wire(rk_code_t code, const char *reason, const char *message)
{
    rk_code_t known = code > RK_OK && code < RK_CODE_COUNT ? code : RK_UNKNOWN;

    return own_reason(make(known, "", NULL, 0, strdup(message ? message : "")), reason);
}

struct rk_status *rk_status_wrap(struct rk_status *st, const char *file, int line, const char *fmt, ...)
{
    char *text, *message = NULL;
    va_list args;

    if (!st || st == &oom)
        return st;
    va_start(args, fmt);
    text = try_vformat(fmt, args);
    va_end(args);
    if (!text)
        return st;
    if (asprintf(&message, "%s: %s", text, st->message) < 0) {
        free(text);
        return st;
    }
    if (!push_frame(st, file, line, text)) {
        free(message);
        return st;
    }
    free(st->message);
    st->message = message;
    return st;
}

struct rk_status *rk_status_blame(struct rk_status *st, int32_t rank)
{
    RK_ASSERT(rank >= 0);
    if (st && st != &oom)
        st->blamed_rank = rank;
    return st;
}

struct rk_status *rk_status_at_field(struct rk_status *st, const char *field)
{
    char *name = NULL;

    if (!st || st == &oom)
        return st;
    if (asprintf(&name, "%s%s%s", field, st->field ? "." : "", st->field ? st->field : "") < 0)
        return st;
    free(st->field);
    st->field = name;
    return st;
}

struct rk_status *rk_status_retry_after(struct rk_status *st, int64_t ms)
{
    RK_ASSERT(ms >= 0);
    if (st && st != &oom)
        st->retry_ms = ms;
    return st;
}

struct rk_status *rk_status_clone(const struct rk_status *st)
{
    struct rk_status *copy;

    if (!st)
        return NULL;
    if (st == &oom)
        return &oom;
    copy = make(st->code, "", st->frames[0].file, st->frames[0].line, strdup(st->frames[0].text));
    copy = own_reason(copy, st->reason);
    if (copy != &oom) {
        copy->blamed_rank = st->blamed_rank;
        copy->retry_ms = st->retry_ms;
        copy->field = st->field ? strdup(st->field) : NULL;
    }
    for (size_t i = 1; i < st->num_frames && copy != &oom; i++)
        copy = rk_status_wrap(copy, st->frames[i].file, st->frames[i].line, "%s", st->frames[i].text);
    return copy;
}

rk_code_t rk_status_code(const struct rk_status *st)
{
    return st ? st->code : RK_OK;
}

const char *rk_status_message(const struct rk_status *st)
{
    return st ? st->message : "ok";
}

const char *rk_status_reason(const struct rk_status *st)
{
    return st ? st->reason : "";
}

int32_t rk_status_blamed_rank(const struct rk_status *st)
{
    return st ? st->blamed_rank : -1;
}

const char *rk_status_field(const struct rk_status *st)
{
    return st && st->field ? st->field : "";
}

int64_t rk_status_retry_ms(const struct rk_status *st)
{
    return st ? st->retry_ms : -1;
}

size_t rk_status_format_frames(const struct rk_status *st, char *buf, size_t buf_bytes)
{
    size_t needed = 0;

    if (buf_bytes)
        buf[0] = '\0';
    for (size_t i = 0; st && i < st->num_frames; i++) {
        const struct frame *frame = &st->frames[i];
        size_t at = needed < buf_bytes ? needed : buf_bytes;
        int bytes = snprintf(buf_bytes ? buf + at : NULL, buf_bytes - at, "%s%s:%d: %s", i ? "\n" : "",
                             frame->file ? frame->file : "peer", frame->line, frame->text);

        RK_ASSERT(bytes >= 0);
        needed += (size_t)bytes;
    }
    return needed;
}

const char *rk_code_name(rk_code_t code)
{
    return code >= RK_OK && code < RK_CODE_COUNT ? code_names[code] : "UNKNOWN";
}

void rk_status_ignore(struct rk_status *st, const char *why)
{
    if (st)
        RK_DEBUG_LOG("ignored %s (%s): %s", rk_code_name(st->code), why, st->message);
    rk_status_free(st);
}

struct rk_status *rk_status_first(struct rk_status *first, struct rk_status *second)
{
    if (!first)
        return second;
    rk_status_free(second);
    return first;
}
