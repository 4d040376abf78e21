#include "daemon/feed_internal.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_time.h"

#define MAX_MESSAGE_BYTES 4000

/* Event number n is at index n % RK_FEED_EVENTS while it is one of the newest. */
struct entry {
    struct rk_str encoded; /* without its number, which is written when it is read */
    rk_feed_kind_t kind;
    rk_log_level_t level; /* of RK_FEED_LOG */
};

struct rk_feed {
    pthread_mutex_t lock; /* guards the ring */
    struct entry entries[RK_FEED_EVENTS];
    uint64_t first, next; /* numbers; first == next: empty */
    size_t bytes;

    void (*on_add)(void *user);
    void *user;
    atomic_bool is_waiting, is_woken;
};

static const char *const kind_names[RK_FEED_KIND_COUNT] = {
    [RK_FEED_STATE] = "state",
    [RK_FEED_LEASE] = "lease",
    [RK_FEED_METHOD_START] = "method_start",
    [RK_FEED_METHOD_END] = "method_end",
    [RK_FEED_PROGRESS] = "progress",
    [RK_FEED_METRICS] = "metrics",
    [RK_FEED_LOG] = "log",
};

const char *rk_feed_kind_name(rk_feed_kind_t kind)
{
    RK_ASSERT(kind < RK_FEED_KIND_COUNT);
    return kind_names[kind];
}

/* --- filter --- */

static struct rk_status *add_kind(struct rk_feed_filter *filter, const char *name)
{
    for (int kind = 0; kind < RK_FEED_KIND_COUNT; kind++) {
        if (strcmp(kind_names[kind], name) == 0) {
            filter->kinds |= 1u << kind;
            return NULL;
        }
    }
    return RK_FAIL_REASON(
        RK_INVALID_ARGUMENT, "BAD_FIELD",
        "kind: unknown kind of event '%s', expected state, lease, method_start, method_end, "
        "progress, metrics or log",
        name);
}

struct rk_status *rk_feed_filter_init(struct rk_feed_filter *out, const struct rk_watch_request *request)
{
    *out = (struct rk_feed_filter){.level = RK_LOG_INFO};
    if (request->level[0] && !rk_log_level_parse(request->level, &out->level))
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD",
                              "level: unknown level '%s', expected debug, info, warn or error",
                              request->level);
    for (int64_t i = 0; i < request->num_kinds; i++)
        RK_TRY(add_kind(out, request->kinds[i]));
    return NULL;
}

static bool lets_through(const struct rk_feed_filter *filter, const struct entry *entry)
{
    if (filter->kinds && !(filter->kinds & 1u << entry->kind))
        return false;
    return entry->kind != RK_FEED_LOG || entry->level >= filter->level;
}

/* --- the ring --- */

struct rk_feed *rk_feed_create(void)
{
    struct rk_feed *feed = rk_calloc(1, sizeof(*feed));

    pthread_mutex_init(&feed->lock, NULL);
    feed->first = feed->next = 1;
    return feed;
}

void rk_feed_destroy(struct rk_feed *feed)
{
    if (!feed)
        return;
    for (int i = 0; i < RK_FEED_EVENTS; i++)
        rk_str_fini(&feed->entries[i].encoded);
    pthread_mutex_destroy(&feed->lock);
    rk_free(feed);
}

void rk_feed_set_wake(struct rk_feed *feed, void (*on_add)(void *user), void *user)
{
    feed->on_add = on_add;
    feed->user = user;
}

void rk_feed_set_waiting(struct rk_feed *feed, bool is_waiting)
{
    atomic_store(&feed->is_waiting, is_waiting);
}

void rk_feed_clear_wake(struct rk_feed *feed)
{
    atomic_store(&feed->is_woken, false);
}

/* Needs the lock. */
static void drop_first(struct rk_feed *feed)
{
    struct entry *entry = &feed->entries[feed->first % RK_FEED_EVENTS];

    RK_ASSERT(feed->first < feed->next);
    feed->bytes -= entry->encoded.bytes;
    rk_str_fini(&entry->encoded);
    feed->first++;
}

/* Takes the encoded text. */
static void put(struct rk_feed *feed, rk_feed_kind_t kind, rk_log_level_t level, struct rk_str encoded)
{
    RK_ASSERT(encoded.bytes < RK_FEED_BYTES_MAX);
    pthread_mutex_lock(&feed->lock);
    while (feed->next - feed->first == RK_FEED_EVENTS ||
           (feed->first < feed->next && feed->bytes + encoded.bytes > RK_FEED_BYTES_MAX))
        drop_first(feed);
    feed->entries[feed->next % RK_FEED_EVENTS] =
        (struct entry){.encoded = encoded, .kind = kind, .level = level};
    feed->bytes += encoded.bytes;
    feed->next++;
    pthread_mutex_unlock(&feed->lock);
    if (atomic_load(&feed->is_waiting) && !atomic_exchange(&feed->is_woken, true))
        feed->on_add(feed->user);
}

static void encode_and_put(struct rk_feed *feed, rk_feed_kind_t kind, rk_log_level_t level,
                           const struct rk_meta *fields, const char *message, size_t bytes)
{
    struct rk_str text = {0}, encoded = {0};
    struct rk_watch_event event = {.unix_ns = (uint64_t)rk_time_unix_ns(), .kind = kind_names[kind]};

    rk_str_append_utf8(&text, message, bytes);
    event.message = rk_str_text(&text);
    if (fields)
        event.fields = *fields;
    rk_pack_watch_event(&encoded, &event);
    rk_str_fini(&text);
    put(feed, kind, level, encoded);
}

/* U+FFFD takes three bytes for one that is not UTF-8: such a message is truncated earlier. */
static size_t cut(const char *message, size_t bytes)
{
    size_t limit = rk_utf8_is_valid(message, bytes) ? MAX_MESSAGE_BYTES : MAX_MESSAGE_BYTES / 3;

    if (bytes <= limit)
        return bytes;
    while (limit > 0 && ((unsigned char)message[limit] & 0xc0) == 0x80)
        limit--;
    return limit;
}

void rk_feed_add(struct rk_feed *feed, rk_feed_kind_t kind, const struct rk_meta *fields, const char *fmt,
                 ...)
{
    char message[MAX_MESSAGE_BYTES + 1];
    va_list args;

    va_start(args, fmt);
    vsnprintf(message, sizeof(message), fmt, args);
    va_end(args);
    encode_and_put(feed, kind, RK_LOG_INFO, fields, message, cut(message, strlen(message)));
}

void rk_feed_add_log(struct rk_feed *feed, rk_log_level_t level, const char *message, size_t bytes,
                     const char *source)
{
    struct rk_meta_entry fields[] = {RK_FEED_TEXT("level", rk_log_level_name(level)),
                                     RK_FEED_TEXT("src", source)};

    encode_and_put(feed, RK_FEED_LOG, level, RK_FEED_FIELDS(fields), message, cut(message, bytes));
}

uint64_t rk_feed_newest(struct rk_feed *feed)
{
    uint64_t newest;

    pthread_mutex_lock(&feed->lock);
    newest = feed->next - 1;
    pthread_mutex_unlock(&feed->lock);
    return newest;
}

static void encode_gap(struct rk_str *out, uint64_t num_lost)
{
    struct rk_meta_entry fields[] = {RK_FEED_INT("lost", num_lost)};
    struct rk_watch_event event = {.unix_ns = (uint64_t)rk_time_unix_ns(),
                                   .kind = "gap",
                                   .message =
                                       "events were lost: this watcher reads more slowly than they occur, or "
                                       "requested older ones than the ring keeps",
                                   .fields = *RK_FEED_FIELDS(fields)};

    rk_pack_watch_event(out, &event);
}

/* Number of lost events; needs the lock. */
static uint64_t skip_lost(const struct rk_feed *feed, uint64_t *cursor)
{
    uint64_t num_lost;

    if (*cursor >= feed->first)
        return 0;
    num_lost = feed->first - *cursor;
    *cursor = feed->first;
    return num_lost;
}

bool rk_feed_next(struct rk_feed *feed, const struct rk_feed_filter *filter, uint64_t *cursor,
                  struct rk_str *out)
{
    uint64_t num_lost;
    bool is_found = false;

    RK_ASSERT(*cursor > 0);
    pthread_mutex_lock(&feed->lock);
    num_lost = skip_lost(feed, cursor);
    while (num_lost == 0 && *cursor < feed->next && !is_found) {
        const struct entry *entry = &feed->entries[*cursor % RK_FEED_EVENTS];
        struct rk_watch_event number = {.id = *cursor};

        is_found = lets_through(filter, entry);
        if (is_found) { /* concatenated messages are one message with the fields of both */
            rk_pack_watch_event(out, &number);
            rk_str_append_bytes(out, entry->encoded.text, entry->encoded.bytes);
        }
        ++*cursor;
    }
    pthread_mutex_unlock(&feed->lock);
    if (num_lost > 0)
        encode_gap(out, num_lost);
    return is_found || num_lost > 0;
}
