/* The RPC Watch: the events that a watcher gets; a watcher that does not read does not disturb others. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_time.h"
#include "tests/proc/daemon_fixture.h"
#include "tests/support/h2_raw.h"

#define TOGGLES          1500 /* of drain: their events, two each, exceed the ring and all buffers */
#define TOGGLES_PER_PUMP 50   /* a connection that answers no ping for 8 s is closed */
#define NUM_SLOW         8
#define WATCHERS_MAX     32
#define STALL_MS         45000 /* the daemon ends a stalled watcher after 30 s */

static struct rk_client_stream *watch(struct rk_client *client, const struct rk_watch_request *request)
{
    struct rk_client_stream *stream = rk_client_open(client, RK_RPC_ID_WATCH);
    struct rk_str packed = {0};

    rk_pack_watch_request(&packed, request);
    assert_true(rk_client_send(stream, &packed));
    rk_client_half_close(stream);
    rk_str_fini(&packed);
    return stream;
}

static bool next(struct rk_client *client, struct rk_client_stream *stream, struct rk_watch_event *event)
{
    struct rk_bytes message;

    if (!rk_client_receive(stream, &message))
        return false;
    assert_ok(rk_unpack_watch_event(event, rk_client_arena(client), message.data, message.bytes));
    return true;
}

static const struct rk_scalar *field(const struct rk_watch_event *event, const char *key)
{
    for (int64_t i = 0; i < event->fields.count; i++) {
        if (strcmp(event->fields.entries[i].key, key) == 0)
            return &event->fields.entries[i].value;
    }
    fail_msg("the %s event '%s' has no field %s", event->kind, event->message, key);
    return NULL;
}

/* Reads on to the next event of that kind. */
static void read_until(struct rk_client *client, struct rk_client_stream *stream, const char *kind,
                       struct rk_watch_event *event)
{
    do {
        assert_true(next(client, stream, event));
    } while (strcmp(event->kind, kind) != 0);
}

static void drain(struct rk_client *client, bool undo)
{
    struct rk_drain_request request = {.undo = undo, .reason = "test"};
    struct rk_str packed = {0};

    rk_pack_drain_request(&packed, &request);
    assert_ok(rk_client_call(client, RK_RPC_ID_DRAIN, &packed, NULL));
    rk_str_fini(&packed);
}

/* Goal: state, lease, calls with their duration, their metrics and log lines arrive in order; the first
 * message has the current state of the daemon. */
static void test_watch_reports_events(void **state)
{
    struct rk_client_stream *stream;
    struct rk_watch_event event;
    struct rk_client *watcher;
    struct fixture fixture;

    (void)state;
    fixture_start(&fixture, NULL);
    watcher = rk_client_create(rk_proc_address(fixture.proc), NULL);
    stream = watch(watcher, &(struct rk_watch_request){0});
    assert_true(next(watcher, stream, &event));
    assert_string_equal(event.kind, "state");
    assert_string_equal(event.message, "UNCONFIGURED");
    assert_int_equal(event.id, 0);
    assert_string_equal(event.status.state, "UNCONFIGURED");
    assert_true(event.status.incarnation != 0);

    fixture_lead(&fixture);
    read_until(watcher, stream, "lease", &event);
    assert_string_equal(field(&event, "what")->text, "granted");
    assert_int_equal(field(&event, "epoch")->integer, fixture.lease.fence.epoch);
    read_until(watcher, stream, "state", &event);
    assert_string_equal(field(&event, "from")->text, "UNCONFIGURED");
    assert_string_equal(field(&event, "to")->text, "CONFIGURED");

    fixture_init_models(&fixture);
    read_until(watcher, stream, "method_start", &event);
    assert_string_equal(event.message, "actor.init_model");
    read_until(watcher, stream, "method_end", &event);
    assert_string_equal(field(&event, "method")->text, "actor.init_model");
    assert_string_equal(field(&event, "code")->text, "OK");
    assert_true(field(&event, "ms")->integer >= 0);

    read_until(watcher, stream, "method_end", &event);
    assert_ok(fixture_generate(&fixture, 2));
    read_until(watcher, stream, "method_end", &event);
    assert_string_equal(field(&event, "method")->text, "rollout.generate_sequences");
    read_until(watcher, stream, "metrics", &event);
    assert_string_equal(event.message, "rollout.generate_sequences");
    assert_true(event.fields.count > 0);
    assert_int_equal(event.fields.entries[0].value.kind, RK_SCALAR_REAL);

    rk_proc_signal(fixture.proc, SIGHUP);
    do {
        read_until(watcher, stream, "log", &event);
    } while (!strstr(event.message, "reloaded"));
    assert_string_equal(field(&event, "level")->text, "info");

    /* The last event is the daemon's shutdown. */
    rk_proc_signal(fixture.proc, SIGTERM);
    do {
        read_until(watcher, stream, "state", &event);
    } while (strcmp(field(&event, "to")->text, "DRAINING") != 0);
    while (next(watcher, stream, &event))
        ;
    assert_fails(rk_client_finish(stream), RK_UNAVAILABLE, "shutting down");
    rk_client_destroy(watcher);
    fixture_end(&fixture, 0);
}

/* Goal: watchers get the progress of a running call. */
static void test_watch_reports_progress(void **state)
{
    struct rk_watch_request request = {.num_kinds = 1, .kinds = (const char *const[]){"progress"}};
    struct rk_client_stream *stream, *call;
    struct rk_execute_header header;
    struct rk_watch_event event;
    struct rk_client *watcher;
    struct fixture fixture;
    char outcome[32];

    (void)state;
    fixture_start(&fixture, NULL);
    fixture_lead(&fixture);
    fixture_init_models(&fixture);
    watcher = rk_client_create(rk_proc_address(fixture.proc), NULL);
    stream = watch(watcher, &request);
    assert_true(next(watcher, stream, &event));
    call = fixture_start_endless(&fixture, &header);
    assert_true(next(watcher, stream, &event));
    assert_string_equal(event.kind, "progress");
    assert_string_equal(field(&event, "method")->text, "rollout.generate_sequences");
    assert_true(field(&event, "phase")->text[0] != 0);
    assert_in_range(field(&event, "done")->integer, 0, field(&event, "total")->integer);
    assert_ok(fixture_cancel(&fixture, &header, false, outcome));
    fixture_read_result(&fixture, call, NULL); /* the end follows the progress that was sent */
    assert_fails(rk_client_finish(call), RK_CANCELLED, "");
    rk_batch_destroy(fixture.prompts);
    fixture.prompts = NULL;
    rk_client_cancel(stream);
    assert_fails(rk_client_finish(stream), RK_CANCELLED, "");
    rk_client_destroy(watcher);
    fixture_stop(&fixture);
}

/* Goal: past_only gives the events in the ring and then ends. */
static void test_watch_of_the_past_ends(void **state)
{
    struct rk_watch_request request = {
        .from_event = 1, .past_only = true, .num_kinds = 1, .kinds = (const char *const[]){"state"}};
    struct rk_client_stream *stream;
    struct rk_watch_event event;
    struct fixture fixture;

    (void)state;
    fixture_start(&fixture, NULL);
    drain(fixture.client, false);
    stream = watch(fixture.client, &request);
    assert_true(next(fixture.client, stream, &event));
    assert_string_equal(event.message, "DRAINING");
    assert_true(next(fixture.client, stream, &event));
    assert_string_equal(event.message, "STARTING -> UNCONFIGURED");
    assert_true(next(fixture.client, stream, &event));
    assert_string_equal(event.message, "UNCONFIGURED -> DRAINING");
    assert_false(next(fixture.client, stream, &event));
    assert_ok(rk_client_finish(stream));
    fixture_stop(&fixture);
}

/* Goal: invalid requests are rejected with the name of the field. */
static void test_watch_bad_requests_are_refused(void **state)
{
    struct rk_client_stream *stream;
    struct fixture fixture;

    (void)state;
    fixture_start(&fixture, NULL);
    stream = watch(fixture.client, &(struct rk_watch_request){.level = "all"});
    assert_refused(rk_client_finish(stream), RK_INVALID_ARGUMENT, "BAD_FIELD");
    stream = watch(fixture.client,
                   &(struct rk_watch_request){.num_kinds = 1, .kinds = (const char *const[]){"weather"}});
    assert_refused(rk_client_finish(stream), RK_INVALID_ARGUMENT, "BAD_FIELD");
    fixture_stop(&fixture);
}

/* --- watchers that do not read: hand-written HTTP/2 with minimal windows, which are never enlarged. They
 * answer pings, so that the connection stays open. --- */

struct raw_watcher {
    int fd;
    struct rk_str in;     /* bytes of an incomplete frame */
    struct rk_str data;   /* received in DATA frames and not consumed */
    struct rk_str header; /* of the last HEADERS frame */
    bool has_ended;
};

static void raw_send(struct raw_watcher *raw, struct rk_str *bytes)
{
    size_t done = 0;

    while (done < bytes->bytes) {
        ssize_t sent = send(raw->fd, bytes->text + done, bytes->bytes - done, MSG_NOSIGNAL);

        assert_true(sent > 0);
        done += (size_t)sent;
    }
    rk_str_fini(bytes);
}

static void raw_open(struct raw_watcher *raw, const char *address, const struct rk_watch_request *request)
{
    struct rk_str bytes = {0}, message = {0};
    uint8_t prefix[5] = {0};

    *raw = (struct raw_watcher){.fd = h2_connect(address)};
    assert_true(raw->fd >= 0);
    rk_pack_watch_request(&message, request);
    prefix[4] = (uint8_t)message.bytes;
    h2_greeting(&bytes);
    h2_open_call(&bytes, 1, "/rankd.v1.Worker/Watch", NULL);
    h2_frame(&bytes, H2_DATA, 0, 1, prefix, sizeof(prefix));
    h2_frame(&bytes, H2_DATA, H2_END_STREAM, 1, message.text, message.bytes);
    raw_send(raw, &bytes);
    rk_str_fini(&message);
}

static void raw_close(struct raw_watcher *raw)
{
    close(raw->fd);
    rk_str_fini(&raw->in);
    rk_str_fini(&raw->data);
    rk_str_fini(&raw->header);
}

/* Removes `bytes` from the beginning. */
static void drop_front(struct rk_str *text, size_t bytes)
{
    struct rk_str rest = {0};

    rk_str_append_bytes(&rest, text->text + bytes, text->bytes - bytes);
    rk_str_fini(text);
    *text = rest;
}

static void raw_take_frame(struct raw_watcher *raw, int type, int flags, uint32_t stream, const char *payload,
                           size_t bytes)
{
    struct rk_str answer = {0};

    if (type == H2_DATA && stream == 1)
        rk_str_append_bytes(&raw->data, payload, bytes);
    if (type == H2_HEADERS && stream == 1) {
        rk_str_clear(&raw->header);
        rk_str_append_bytes(&raw->header, payload, bytes);
    }
    raw->has_ended = raw->has_ended || (type == H2_HEADERS && stream == 1 && flags & H2_END_STREAM);
    if ((type == H2_PING || type == H2_SETTINGS) && !(flags & H2_ACK)) {
        h2_frame(&answer, type, H2_ACK, 0, payload, type == H2_PING ? bytes : 0);
        raw_send(raw, &answer);
    }
}

/* Processes received frames, and answers those that need a reply. */
static void raw_pump(struct raw_watcher *raw)
{
    char buffer[65536];
    ssize_t received;

    while ((received = recv(raw->fd, buffer, sizeof(buffer), MSG_DONTWAIT)) > 0)
        rk_str_append_bytes(&raw->in, buffer, (size_t)received);
    assert_true(received != 0);
    for (;;) {
        const uint8_t *head = (const uint8_t *)raw->in.text;
        size_t bytes;

        if (raw->in.bytes < H2_FRAME_BYTES)
            return;
        bytes = (size_t)head[0] << 16 | (size_t)head[1] << 8 | head[2];
        if (raw->in.bytes < H2_FRAME_BYTES + bytes)
            return;
        raw_take_frame(raw, head[3], head[4],
                       (uint32_t)head[5] << 24 | (uint32_t)head[6] << 16 | (uint32_t)head[7] << 8 | head[8],
                       raw->in.text + H2_FRAME_BYTES, bytes);
        drop_front(&raw->in, H2_FRAME_BYTES + bytes);
    }
}

/* The next received event; false: none is complete. */
static bool raw_next(struct raw_watcher *raw, struct rk_arena *arena, struct rk_watch_event *event)
{
    const uint8_t *head = (const uint8_t *)raw->data.text;
    size_t bytes;

    if (raw->data.bytes < 5)
        return false;
    bytes = (size_t)head[1] << 24 | (size_t)head[2] << 16 | (size_t)head[3] << 8 | head[4];
    if (raw->data.bytes < 5 + bytes)
        return false;
    assert_ok(rk_unpack_watch_event(event, arena, raw->data.text + 5, bytes));
    drop_front(&raw->data, 5 + bytes);
    return true;
}

/* Enlarges the windows of the stream and of the connection, so that data arrives. */
static void raw_open_windows(struct raw_watcher *raw)
{
    static const uint8_t increment[4] = {0x10, 0, 0, 0};
    struct rk_str bytes = {0};

    h2_frame(&bytes, H2_WINDOW_UPDATE, 0, 0, increment, sizeof(increment));
    h2_frame(&bytes, H2_WINDOW_UPDATE, 0, 1, increment, sizeof(increment));
    raw_send(raw, &bytes);
}

static void start_without_quarantine(struct fixture *fixture)
{
    setenv("ASAN_OPTIONS", "quarantine_size_mb=1:thread_local_quarantine_size_kb=64", 1);
    fixture_start(fixture, NULL);
    unsetenv("ASAN_OPTIONS");
}

static void toggle_drain(struct fixture *fixture, int times)
{
    for (int i = 0; i < times; i++) {
        drain(fixture->client, false);
        drain(fixture->client, true);
    }
}

/* Reads until the last event is "BUSY -> READY", and asserts that every event arrived once or was counted as
 * lost. */
static void read_to_the_end(struct raw_watcher *raw)
{
    struct rk_arena *arena = rk_arena_create(16384, 0);
    int64_t begun_ns = rk_time_now_ns(), num_lost = 0, num_events = 0, first = 0;
    struct rk_watch_event event = {0};
    bool is_last = false;

    raw_open_windows(raw);
    while (!is_last) {
        raw_pump(raw);
        if (!raw_next(raw, arena, &event)) {
            rk_time_sleep_ms(1);
            assert_true(rk_time_now_ns() - begun_ns < rk_proc_timeout_ms(20000) * 1000000);
            continue;
        }
        if (strcmp(event.kind, "gap") == 0) {
            num_lost += field(&event, "lost")->integer;
            continue;
        }
        if (event.id == 0)
            continue; /* the greeting */
        if (first == 0)
            first = (int64_t)event.id;
        num_events++;
        assert_int_equal(event.id, first + num_events + num_lost - 1);
        is_last = strcmp(event.message, "BUSY -> READY") == 0;
        rk_arena_reset(arena);
    }
    print_message("%lld events, %lld lost\n", (long long)num_events, (long long)num_lost);
    assert_true(num_lost > 0);
    rk_arena_destroy(arena);
}

/* Goal: watchers that do not read block no call, use no memory beyond the ring, and get the exact number of
 * missed events once they read again. Method: the daemon's state is toggled meanwhile. */
static void test_watch_slow_watchers_do_not_block_others(void **state)
{
    struct raw_watcher slow[NUM_SLOW];
    struct fixture fixture;
    int64_t slowest_ns = 0, rss_kib;

    (void)state;
    start_without_quarantine(&fixture);
    fixture_lead(&fixture);
    fixture_init_models(&fixture);
    assert_ok(fixture_generate(&fixture, 2));
    toggle_drain(&fixture, TOGGLES); /* fills the ring once before the measurement */
    rss_kib = rk_proc_peak_rss_kib(fixture.proc);
    for (int i = 0; i < NUM_SLOW; i++)
        raw_open(&slow[i], rk_proc_address(fixture.proc), &(struct rk_watch_request){0});
    for (int i = 0; i < TOGGLES; i++) {
        int64_t begun_ns = rk_time_now_ns();

        toggle_drain(&fixture, 1);
        slowest_ns = RK_MAX(slowest_ns, rk_time_now_ns() - begun_ns);
        for (int j = 0; j < NUM_SLOW && i % TOGGLES_PER_PUMP == 0; j++)
            raw_pump(&slow[j]);
    }
    assert_ok(fixture_generate(&fixture, 2));
    print_message("slowest pair of Drain calls %.1f ms, rss %lld -> %lld KiB\n", (double)slowest_ns / 1e6,
                  (long long)rss_kib, (long long)rk_proc_peak_rss_kib(fixture.proc));
    assert_true(slowest_ns < rk_proc_timeout_ms(2000) * 1000000);
    assert_true(rk_proc_peak_rss_kib(fixture.proc) - rss_kib < 32 << 10);
    for (int i = 0; i < NUM_SLOW; i++) {
        read_to_the_end(&slow[i]);
        raw_close(&slow[i]);
    }
    fixture_stop(&fixture);
}

/* Goal: the number of watchers is bounded; one that never reads is ended, with a status that has the
 * reason. */
static void test_watch_places_are_bounded_and_given_back(void **state)
{
    struct raw_watcher watchers[WATCHERS_MAX];
    struct rk_client_stream *late;
    struct rk_watch_event event;
    struct fixture fixture;
    int64_t begun_ns;

    (void)state;
    fixture_start(&fixture, NULL);
    for (int i = 0; i < WATCHERS_MAX; i++) {
        raw_open(&watchers[i], rk_proc_address(fixture.proc), &(struct rk_watch_request){0});
        while (watchers[i].data.bytes == 0)
            raw_pump(&watchers[i]);
    }
    late = watch(fixture.client, &(struct rk_watch_request){0});
    assert_fails(rk_client_finish(late), RK_RESOURCE_EXHAUSTED, "32 Watch calls are open");
    for (int i = 0; i < TOGGLES; i += TOGGLES_PER_PUMP) {
        toggle_drain(&fixture, TOGGLES_PER_PUMP);
        for (int j = 0; j < WATCHERS_MAX; j++)
            raw_pump(&watchers[j]);
    }

    begun_ns = rk_time_now_ns();
    for (int i = 0; i < WATCHERS_MAX; i++) {
        while (!watchers[i].has_ended) {
            for (int j = 0; j < WATCHERS_MAX; j++)
                raw_pump(&watchers[j]);
            rk_time_sleep_ms(20);
            assert_true(rk_time_now_ns() - begun_ns < rk_proc_timeout_ms(STALL_MS) * 1000000);
        }
        rk_str_append(&watchers[i].header, "");
        assert_non_null(memmem(watchers[i].header.text, watchers[i].header.bytes, "no event for 30 s",
                               strlen("no event for 30 s")));
        raw_close(&watchers[i]);
    }
    late = watch(fixture.client, &(struct rk_watch_request){0});
    assert_true(next(fixture.client, late, &event));
    rk_client_cancel(late);
    assert_fails(rk_client_finish(late), RK_CANCELLED, "");
    fixture_stop(&fixture);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_watch_reports_events),
        cmocka_unit_test(test_watch_reports_progress),
        cmocka_unit_test(test_watch_of_the_past_ends),
        cmocka_unit_test(test_watch_bad_requests_are_refused),
        cmocka_unit_test(test_watch_slow_watchers_do_not_block_others),
        cmocka_unit_test(test_watch_places_are_bounded_and_given_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
