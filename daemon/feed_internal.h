/* The events of a daemon: a ring that keeps the newest ones, for watchers to read at their own pace.
 *
 * Any thread adds, thread L reads. An event is encoded once, when it is added; a reader has its own
 * cursor and no queue, so a slow reader only misses events. The lock guards the ring, is held for one
 * copy, and nothing else is locked or called while it is held. */
#ifndef RK_FEED_INTERNAL_H
#define RK_FEED_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_compiler.h"
#include "base/rk_log.h"
#include "base/rk_status.h"
#include "base/rk_str.h"
#include "proto/rk_messages.h"

#define RK_FEED_EVENTS    1024      /* events in the ring */
#define RK_FEED_BYTES_MAX (1 << 20) /* of all events, encoded: the oldest are removed */

typedef enum rk_feed_kind {
    RK_FEED_STATE,
    RK_FEED_LEASE,
    RK_FEED_METHOD_START,
    RK_FEED_METHOD_END,
    RK_FEED_PROGRESS,
    RK_FEED_METRICS,
    RK_FEED_LOG,
    RK_FEED_KIND_COUNT
} rk_feed_kind_t;

const char *rk_feed_kind_name(rk_feed_kind_t kind); /* "method_start" */

/* The events that a reader requests. */
struct rk_feed_filter {
    uint32_t kinds;       /* bits 1 << kind; 0: all */
    rk_log_level_t level; /* lowest level of RK_FEED_LOG */
};

/* INVALID_ARGUMENT names an unknown kind or level. */
struct rk_status *rk_feed_filter_init(struct rk_feed_filter *out,
                                      const struct rk_watch_request *request) RK_NODISCARD;

struct rk_feed;

struct rk_feed *rk_feed_create(void);
void rk_feed_destroy(struct rk_feed *feed); /* NULL is a no-op */
/* `on_add` is called on the thread that adds, at most once between two calls of rk_feed_clear_wake, while
 * readers are waiting (rk_feed_set_waiting). */
void rk_feed_set_wake(struct rk_feed *feed, void (*on_add)(void *user), void *user);
void rk_feed_set_waiting(struct rk_feed *feed, bool is_waiting);
void rk_feed_clear_wake(struct rk_feed *feed);

/* Any thread. Takes printf arguments for the message; bytes of it that are not UTF-8 are replaced. `fields`
 * may be NULL. */
void rk_feed_add(struct rk_feed *feed, rk_feed_kind_t kind, const struct rk_meta *fields, const char *fmt,
                 ...) RK_PRINTF(4, 5);
/* The event of a log record. */
void rk_feed_add_log(struct rk_feed *feed, rk_log_level_t level, const char *message, size_t bytes,
                     const char *source);

/* Number of the newest event; 0 before the first. */
uint64_t rk_feed_newest(struct rk_feed *feed);
/* The first event from *cursor on that the filter accepts, encoded as a message Event, appended to `out`;
 * *cursor moves after it. If the ring has lost events from *cursor on, an event "gap" comes first.
 * False: there is none, and *cursor is the number of the next event. */
bool rk_feed_next(struct rk_feed *feed, const struct rk_feed_filter *filter, uint64_t *cursor,
                  struct rk_str *out);

/* Fields of an event, on the stack. */
#define RK_FEED_TEXT(key_, text_)                                            \
    {                                                                        \
        .key = (key_), .value = {.kind = RK_SCALAR_STRING, .text = (text_) } \
    }
#define RK_FEED_INT(key_, value_)                                                      \
    {                                                                                  \
        .key = (key_), .value = {.kind = RK_SCALAR_INT, .integer = (int64_t)(value_) } \
    }
#define RK_FEED_FIELDS(entries_)                                        \
    &(struct rk_meta)                                                   \
    {                                                                   \
        .count = (int64_t)RK_ARRAY_LEN(entries_), .entries = (entries_) \
    }

#endif
