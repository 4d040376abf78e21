#include "daemon/feed_internal.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "tests/support/test.h"

static const struct rk_feed_filter everything = {.kinds = 0, .level = RK_LOG_DEBUG};

/* The next event, in the arena; false when there is none. */
static bool next(struct rk_feed *feed, const struct rk_feed_filter *filter, uint64_t *cursor,
                 struct rk_arena *arena, struct rk_watch_event *event)
{
    struct rk_str packed = {0};
    bool is_found = rk_feed_next(feed, filter, cursor, &packed);

    if (is_found)
        assert_ok(rk_unpack_watch_event(event, arena, packed.text, packed.bytes));
    rk_str_fini(&packed);
    return is_found;
}

/* Goal: every reader gets all events once, in order, with number, kind, text and fields. */
static void test_feed_readers_get_every_event_in_order(void **state)
{
    struct rk_meta_entry fields[] = {RK_FEED_TEXT("from", "READY"), RK_FEED_INT("n", 7)};
    struct rk_arena *arena = rk_arena_create(4096, 0);
    struct rk_feed *feed = rk_feed_create();
    struct rk_watch_event event;
    uint64_t cursors[2] = {1, 1};

    (void)state;
    assert_int_equal(rk_feed_newest(feed), 0);
    assert_false(next(feed, &everything, &cursors[0], arena, &event));
    rk_feed_add(feed, RK_FEED_STATE, RK_FEED_FIELDS(fields), "READY -> %s", "BUSY");
    rk_feed_add(feed, RK_FEED_METHOD_START, NULL, "actor.update_actor");
    assert_int_equal(rk_feed_newest(feed), 2);
    for (int reader = 0; reader < 2; reader++) {
        assert_true(next(feed, &everything, &cursors[reader], arena, &event));
        assert_int_equal(event.id, 1);
        assert_true(event.unix_ns > 0);
        assert_string_equal(event.kind, "state");
        assert_string_equal(event.message, "READY -> BUSY");
        assert_int_equal(event.fields.count, 2);
        assert_string_equal(event.fields.entries[0].value.text, "READY");
        assert_int_equal(event.fields.entries[1].value.integer, 7);
        assert_true(next(feed, &everything, &cursors[reader], arena, &event));
        assert_int_equal(event.id, 2);
        assert_string_equal(event.kind, "method_start");
        assert_false(next(feed, &everything, &cursors[reader], arena, &event));
        assert_int_equal(cursors[reader], 3);
    }
    rk_feed_destroy(feed);
    rk_arena_destroy(arena);
}

/* Goal: a filter selects kinds, and the level of log lines; filtered events are not gaps. */
static void test_feed_filter_takes_kinds_and_levels(void **state)
{
    static const char *const kinds[] = {"log", "lease"};
    struct rk_watch_request request = {.num_kinds = 2, .kinds = kinds, .level = "warn"};
    struct rk_arena *arena = rk_arena_create(4096, 0);
    struct rk_feed *feed = rk_feed_create();
    struct rk_feed_filter filter;
    struct rk_watch_event event;
    uint64_t cursor = 1;

    (void)state;
    assert_ok(rk_feed_filter_init(&filter, &request));
    rk_feed_add_log(feed, RK_LOG_INFO, "quiet", 5, "a.c:1");
    rk_feed_add(feed, RK_FEED_STATE, NULL, "other kind");
    rk_feed_add_log(feed, RK_LOG_ERROR, "loud", 4, "b.c:2");
    rk_feed_add(feed, RK_FEED_LEASE, NULL, "granted");
    assert_true(next(feed, &filter, &cursor, arena, &event));
    assert_string_equal(event.message, "loud");
    assert_int_equal(event.id, 3);
    assert_string_equal(event.fields.entries[0].value.text, "error");
    assert_string_equal(event.fields.entries[1].value.text, "b.c:2");
    assert_true(next(feed, &filter, &cursor, arena, &event));
    assert_string_equal(event.message, "granted");
    assert_false(next(feed, &filter, &cursor, arena, &event));

    request.level = "loud";
    assert_fails(rk_feed_filter_init(&filter, &request), RK_INVALID_ARGUMENT, "level: unknown level 'loud'");
    request = (struct rk_watch_request){.num_kinds = 1, .kinds = (const char *const[]){"oom"}, .level = ""};
    assert_fails(rk_feed_filter_init(&filter, &request), RK_INVALID_ARGUMENT,
                 "kind: unknown kind of event 'oom', expected state");
    request.num_kinds = 0;
    assert_ok(rk_feed_filter_init(&filter, &request));
    assert_int_equal(filter.level, RK_LOG_INFO);
    rk_feed_destroy(feed);
    rk_arena_destroy(arena);
}

/* Goal: a slow reader first gets the number of missed events, for limits of count and of bytes. */
static void test_feed_late_reader_gets_a_gap(void **state)
{
    struct rk_arena *arena = rk_arena_create(4096, 0);
    struct rk_feed *feed = rk_feed_create();
    struct rk_watch_event event;
    uint64_t cursor = 1;
    char large[4000];

    (void)state;
    for (int i = 1; i <= RK_FEED_EVENTS + 5; i++)
        rk_feed_add(feed, RK_FEED_PROGRESS, NULL, "%d", i);
    assert_true(next(feed, &everything, &cursor, arena, &event));
    assert_string_equal(event.kind, "gap");
    assert_int_equal(event.id, 0);
    assert_string_equal(event.fields.entries[0].key, "lost");
    assert_int_equal(event.fields.entries[0].value.integer, 5);
    for (int i = 6; i <= RK_FEED_EVENTS + 5; i++) {
        assert_true(next(feed, &everything, &cursor, arena, &event));
        assert_int_equal(event.id, i);
    }
    assert_false(next(feed, &everything, &cursor, arena, &event));

    /* 1,024 of 4 KB are more than the ring holds in bytes. */
    memset(large, 'x', sizeof(large));
    for (int i = 0; i < RK_FEED_EVENTS; i++)
        rk_feed_add_log(feed, RK_LOG_INFO, large, sizeof(large), "a.c:1");
    assert_true(next(feed, &everything, &cursor, arena, &event));
    assert_string_equal(event.kind, "gap");
    assert_in_range(event.fields.entries[0].value.integer, RK_FEED_EVENTS - RK_FEED_BYTES_MAX / 4000,
                    RK_FEED_EVENTS - RK_FEED_BYTES_MAX / 4100);
    rk_feed_destroy(feed);
    rk_arena_destroy(arena);
}

/* Goal: every log line gives a valid message of bounded length. */
static void test_feed_hostile_text_stays_readable(void **state)
{
    struct rk_arena *arena = rk_arena_create(4096, 0);
    struct rk_feed *feed = rk_feed_create();
    struct rk_watch_event event;
    uint64_t cursor = 1;
    char bytes[8000];

    (void)state;
    memset(bytes, 0xff, sizeof(bytes));
    rk_feed_add_log(feed, RK_LOG_WARN, bytes, sizeof(bytes), "a.c:1");
    for (size_t i = 0; i < sizeof(bytes); i += 2)
        memcpy(bytes + i, "\xc3\xa9", 2);
    rk_feed_add_log(feed, RK_LOG_WARN, bytes + 1, sizeof(bytes) - 1, "a.c:1");
    rk_feed_add_log(feed, RK_LOG_WARN, bytes, sizeof(bytes), "a.c:1");
    for (int i = 0; i < 3; i++) {
        assert_true(next(feed, &everything, &cursor, arena, &event));
        assert_in_range(strlen(event.message), 1000, 4096);
    }
    rk_feed_destroy(feed);
    rk_arena_destroy(arena);
}

static int num_wakes;

static void count_wake(void *user)
{
    (void)user;
    num_wakes++;
}

/* Goal: one wake-up is sent for any number of events, and none without a waiting reader. */
static void test_feed_wakes_once(void **state)
{
    struct rk_feed *feed = rk_feed_create();

    (void)state;
    num_wakes = 0;
    rk_feed_set_wake(feed, count_wake, NULL);
    rk_feed_add(feed, RK_FEED_STATE, NULL, "a");
    assert_int_equal(num_wakes, 0);
    rk_feed_set_waiting(feed, true);
    for (int i = 0; i < 10; i++)
        rk_feed_add(feed, RK_FEED_STATE, NULL, "b");
    assert_int_equal(num_wakes, 1);
    rk_feed_clear_wake(feed);
    rk_feed_add(feed, RK_FEED_STATE, NULL, "c");
    assert_int_equal(num_wakes, 2);
    rk_feed_destroy(feed);
}

#define NUM_WRITERS 4
#define PER_WRITER  5000

static void *write_many(void *user)
{
    for (int i = 0; i < PER_WRITER; i++)
        rk_feed_add(user, RK_FEED_STATE, NULL, "%d", i);
    return NULL;
}

/* Goal: with several writers every event is read or counted as lost, and numbers are consecutive. */
static void test_feed_writers_lose_nothing_uncounted(void **state)
{
    struct rk_feed *feed = rk_feed_create();
    pthread_t threads[NUM_WRITERS];
    uint64_t cursor = 1, num_seen = 0;
    bool is_done = false;

    (void)state;
    for (int i = 0; i < NUM_WRITERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, write_many, feed), 0);
    while (!is_done) {
        struct rk_arena *arena = rk_arena_create(4096, 0);
        struct rk_watch_event event;
        bool is_last = rk_feed_newest(feed) == (uint64_t)NUM_WRITERS * PER_WRITER;

        if (next(feed, &everything, &cursor, arena, &event)) {
            bool is_gap = strcmp(event.kind, "gap") == 0;

            num_seen += is_gap ? (uint64_t)event.fields.entries[0].value.integer : 1;
            if (!is_gap)
                assert_int_equal(event.id, num_seen);
        } else {
            is_done = is_last;
        }
        rk_arena_destroy(arena);
    }
    for (int i = 0; i < NUM_WRITERS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(num_seen, NUM_WRITERS * PER_WRITER);
    rk_feed_destroy(feed);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_feed_readers_get_every_event_in_order),
        cmocka_unit_test(test_feed_filter_takes_kinds_and_levels),
        cmocka_unit_test(test_feed_late_reader_gets_a_gap),
        cmocka_unit_test(test_feed_hostile_text_stays_readable),
        cmocka_unit_test(test_feed_wakes_once),
        cmocka_unit_test(test_feed_writers_lose_nothing_uncounted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
