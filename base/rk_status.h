/* Status objects: how every rankd function reports an expected failure.
 *
 * NULL is success. The receiver owns a non-NULL status and must return, wrap or free it.
 * Codes have the values of grpc_status_code, so the mapping to the wire is the identity. A status carries a
 * message for the user, an optional machine-readable reason (google.rpc.ErrorInfo.reason, e.g.
 * "STALE_EPOCH"), optionally the rank where the failure began, the field of
 * the request and the time after which to try again, and a list of
 * context frames (file, line, text), innermost first. */
#ifndef RK_STATUS_H
#define RK_STATUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rk_compiler.h"

RK_BEGIN_DECLS

typedef enum rk_code {
    RK_OK = 0,
    RK_CANCELLED = 1,
    RK_UNKNOWN = 2,
    RK_INVALID_ARGUMENT = 3,
    RK_DEADLINE_EXCEEDED = 4,
    RK_NOT_FOUND = 5,
    RK_ALREADY_EXISTS = 6,
    RK_PERMISSION_DENIED = 7,
    RK_RESOURCE_EXHAUSTED = 8,
    RK_FAILED_PRECONDITION = 9,
    RK_ABORTED = 10,
    RK_OUT_OF_RANGE = 11,
    RK_UNIMPLEMENTED = 12,
    RK_INTERNAL = 13,
    RK_UNAVAILABLE = 14,
    RK_DATA_LOSS = 15,
    RK_UNAUTHENTICATED = 16,
    RK_CODE_COUNT
} rk_code_t;

struct rk_status;

struct rk_status *rk_status_new(rk_code_t code, const char *file, int line, const char *fmt,
                                ...) RK_NODISCARD RK_RETURNS_NONNULL RK_PRINTF(4, 5);
/* Same, with a reason string of static storage. */
struct rk_status *rk_status_new_reason(rk_code_t code, const char *reason, const char *file, int line,
                                       const char *fmt, ...) RK_NODISCARD RK_RETURNS_NONNULL RK_PRINTF(5, 6);
/* Same for errors that were received: `reason` is copied and may be NULL. */
struct rk_status *rk_status_from_wire(rk_code_t code, const char *reason,
                                      const char *message) RK_NODISCARD RK_RETURNS_NONNULL;
/* Pushes one frame of context and returns `st` (NULL for NULL). The frame is prepended to the message:
 * "context: message". Code and reason stay. */
struct rk_status *rk_status_wrap(struct rk_status *st, const char *file, int line, const char *fmt,
                                 ...) RK_NODISCARD RK_PRINTF(4, 5);
/* Sets the rank where the failure began and returns `st` (NULL for NULL). */
struct rk_status *rk_status_blame(struct rk_status *st, int32_t rank) RK_NODISCARD;
/* Sets the field of the request that caused the failure, and returns `st` (NULL for NULL). A field that is
 * set already becomes a member of the new one: "shape", then "input" is "input.shape". */
struct rk_status *rk_status_at_field(struct rk_status *st, const char *field) RK_NODISCARD;
/* Sets after how long the same call may be tried again, and returns `st` (NULL for NULL). */
struct rk_status *rk_status_retry_after(struct rk_status *st, int64_t ms) RK_NODISCARD;
struct rk_status *rk_status_clone(const struct rk_status *st) RK_NODISCARD;
void rk_status_free(struct rk_status *st); /* NULL is a no-op */

rk_code_t rk_status_code(const struct rk_status *st); /* RK_OK for NULL */
/* Message with its context, for users; "ok" for NULL. Valid until the status is wrapped or freed. */
const char *rk_status_message(const struct rk_status *st);
const char *rk_status_reason(const struct rk_status *st);  /* "" when there is none */
int32_t rk_status_blamed_rank(const struct rk_status *st); /* -1 when it is not known */
const char *rk_status_field(const struct rk_status *st);   /* "" when there is none */
int64_t rk_status_retry_ms(const struct rk_status *st);    /* -1 when nothing is known */
/* One line per frame, "file:line: text", into buf (always terminated). Returns the length that was needed. */
size_t rk_status_format_frames(const struct rk_status *st, char *buf, size_t buf_bytes);
const char *rk_code_name(rk_code_t code); /* "INVALID_ARGUMENT"; "UNKNOWN" for values out of range */

/* Drops a status that may be ignored; `why` goes to the debug log with the message. */
void rk_status_ignore(struct rk_status *st, const char *why);
/* Keeps the first error of a clean-up path: returns `first` if set (frees `second`), else `second`. */
struct rk_status *rk_status_first(struct rk_status *first, struct rk_status *second) RK_NODISCARD;

#define RK_FAIL(code, ...) rk_status_new((code), __FILE__, __LINE__, __VA_ARGS__)
#define RK_FAIL_REASON(code, reason, ...) \
    rk_status_new_reason((code), (reason), __FILE__, __LINE__, __VA_ARGS__)
#define RK_WRAP(st, ...)   rk_status_wrap((st), __FILE__, __LINE__, __VA_ARGS__)
#define RK_IGNORE(st, why) rk_status_ignore((st), (why))
#define RK_TRY(expr)                       \
    do {                                   \
        struct rk_status *rk_st_ = (expr); \
        if (rk_st_)                        \
            return rk_st_;                 \
    } while (0)
#define RK_TRY_GOTO(st, expr, label) \
    do {                             \
        (st) = (expr);               \
        if (st)                      \
            goto label;              \
    } while (0)

RK_END_DECLS

#endif
