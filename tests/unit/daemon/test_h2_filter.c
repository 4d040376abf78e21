#include "daemon/guard/h2_filter_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/support/h2_raw.h"
#include "tests/support/test.h"

#define SECOND_NS 1000000000LL
#define PATH      "/rankd.v1.Worker/GetStatus"
#define CANCEL    "\0\0\0\x8"

struct side {
    struct rk_h2_shared shared;
    struct rk_h2_filter filter;
};

static void init(struct side *side)
{
    rk_h2_shared_init(&side->shared, 0);
    rk_h2_filter_init(&side->filter, &side->shared, 0);
}

static rk_h2_verdict_t feed(struct side *side, struct rk_str *bytes, int64_t now_ns, size_t *passed)
{
    rk_h2_verdict_t verdict =
        rk_h2_filter_client(&side->filter, (const uint8_t *)bytes->text, bytes->bytes, now_ns, passed);

    rk_str_fini(bytes);
    *bytes = (struct rk_str){0};
    return verdict;
}

static void greet(struct side *side)
{
    struct rk_str bytes = {0};
    size_t passed;

    init(side);
    h2_greeting(&bytes);
    assert_int_equal(feed(side, &bytes, 0, &passed), RK_H2_PASS);
    assert_true(side->filter.is_greeted);
}

/* --- frames after the preface --- */

static void say_call(struct rk_str *out)
{
    h2_open_call(out, 1, PATH, NULL);
    h2_frame(out, H2_DATA, H2_END_STREAM, 1, "\0\0\0\0", 5);
}

/* A block of `bytes` in HEADERS and `num_more` frames of CONTINUATION. */
static void say_block(struct rk_str *out, size_t bytes, int num_more)
{
    size_t part = bytes / (size_t)(num_more + 1);

    h2_frame(out, H2_HEADERS, num_more == 0 ? H2_END_HEADERS : 0, 1, NULL, part);
    for (int i = 1; i <= num_more; i++)
        h2_frame(out, H2_CONTINUATION, i == num_more ? H2_END_HEADERS : 0, 1, NULL, part);
}

static void say_longest_block(struct rk_str *out)
{
    say_block(out, RK_H2_BLOCK_BYTES, RK_H2_BLOCK_FRAMES - 1);
}

static void say_frames_too_many(struct rk_str *out)
{
    say_block(out, 9, RK_H2_BLOCK_FRAMES);
}

static void say_block_too_long(struct rk_str *out)
{
    say_block(out, RK_H2_BLOCK_BYTES + 4, 1);
}

static void say_head_too_long(struct rk_str *out)
{
    say_block(out, RK_H2_BLOCK_BYTES + 1, 0);
}

static void say_endless_block(struct rk_str *out)
{
    h2_frame(out, H2_HEADERS, 0, 1, NULL, 9);
    for (int i = 0; i < 1000; i++)
        h2_frame(out, H2_CONTINUATION, 0, 1, NULL, 0);
}

static void say_lone_continuation(struct rk_str *out)
{
    h2_frame(out, H2_CONTINUATION, H2_END_HEADERS, 1, NULL, 9);
}

static void say_ping_in_block(struct rk_str *out)
{
    h2_frame(out, H2_HEADERS, 0, 1, NULL, 9);
    h2_frame(out, H2_PING, 0, 0, NULL, 8);
}

static void say_continuation_of_another(struct rk_str *out)
{
    h2_frame(out, H2_HEADERS, 0, 1, NULL, 9);
    h2_frame(out, H2_CONTINUATION, H2_END_HEADERS, 3, NULL, 9);
}

static void say_headers_in_block(struct rk_str *out)
{
    h2_frame(out, H2_HEADERS, 0, 1, NULL, 9);
    h2_frame(out, H2_HEADERS, H2_END_HEADERS, 3, NULL, 9);
}

static void say_large_data(struct rk_str *out)
{
    h2_open_call(out, 1, PATH, NULL);
    h2_frame(out, H2_DATA, 0, 1, NULL, 1 << 20);
}

static void say_large_settings(struct rk_str *out)
{
    h2_frame(out, H2_SETTINGS, 0, 0, NULL, RK_H2_CONTROL_BYTES + 6);
}

static void say_unknown_frame(struct rk_str *out)
{
    h2_frame(out, 0xfa, 0, 0, NULL, 100);
}

static void say_push(struct rk_str *out)
{
    h2_frame(out, 5, H2_END_HEADERS, 1, NULL, 9);
}

static void say_even_stream(struct rk_str *out)
{
    h2_open_call(out, 2, PATH, NULL);
}

static void say_most_calls(struct rk_str *out)
{
    for (uint32_t i = 0; i < RK_H2_OPEN_MAX; i++)
        h2_open_call(out, 1 + 2 * i, PATH, NULL);
}

static void say_calls_too_many(struct rk_str *out)
{
    for (uint32_t i = 0; i <= RK_H2_OPEN_MAX; i++)
        h2_open_call(out, 1 + 2 * i, PATH, NULL);
}

static void say_resets(struct rk_str *out)
{
    for (uint32_t i = 0; i < 1000; i++) {
        h2_open_call(out, 1 + 2 * i, PATH, NULL);
        h2_frame(out, H2_RST_STREAM, 0, 1 + 2 * i, CANCEL, 4);
    }
}

static void say_pings(struct rk_str *out)
{
    for (int i = 0; i < 2000; i++)
        h2_frame(out, H2_PING, 0, 0, NULL, 8);
}

static void say_empty_data(struct rk_str *out)
{
    h2_open_call(out, 1, PATH, NULL);
    for (int i = 0; i < 2000; i++)
        h2_frame(out, H2_DATA, 0, 1, NULL, 0);
}

static void say_updates(struct rk_str *out)
{
    for (int i = 0; i < 5000; i++)
        h2_frame(out, H2_WINDOW_UPDATE, 0, 0, "\0\0\0\x1", 4);
}

static const struct {
    const char *label;
    void (*say)(struct rk_str *out);
    rk_h2_verdict_t verdict;
    const char *rule;
} cases[] = {
    {"nothing", NULL, RK_H2_PASS, NULL},
    {"a call", say_call, RK_H2_PASS, NULL},
    {"longest block", say_longest_block, RK_H2_PASS, NULL},
    {"large data", say_large_data, RK_H2_PASS, NULL},
    {"unknown frame", say_unknown_frame, RK_H2_PASS, NULL},
    {"most calls", say_most_calls, RK_H2_PASS, NULL},
    {"too many frames", say_frames_too_many, RK_H2_CUT, "more than 8 frames"},
    {"block too long", say_block_too_long, RK_H2_CUT, "more than 32 KiB"},
    {"head too long", say_head_too_long, RK_H2_CUT, "more than 32 KiB"},
    {"endless block", say_endless_block, RK_H2_CUT, "more than 8 frames"},
    {"lone CONTINUATION", say_lone_continuation, RK_H2_CUT, "CONTINUATION"},
    {"PING in a block", say_ping_in_block, RK_H2_CUT, "CONTINUATION"},
    {"CONTINUATION of another", say_continuation_of_another, RK_H2_CUT, "CONTINUATION"},
    {"HEADERS in a block", say_headers_in_block, RK_H2_CUT, "CONTINUATION"},
    {"large SETTINGS", say_large_settings, RK_H2_CUT, "other than DATA"},
    {"push promise", say_push, RK_H2_CUT, "push promise"},
    {"even stream", say_even_stream, RK_H2_CUT, "even number"},
    {"too many calls", say_calls_too_many, RK_H2_CUT, "128 open calls"},
    {"resets", say_resets, RK_H2_WAIT, NULL},
    {"pings", say_pings, RK_H2_WAIT, NULL},
    {"empty data", say_empty_data, RK_H2_WAIT, NULL},
    {"window updates", say_updates, RK_H2_WAIT, NULL},
};

/* Goal: frames of libraries pass, frames that no library sends are rejected with the rule, and unbounded work
 * is throttled. Method: each sequence after a preface, in one piece and byte by byte. */
static void test_filter_client_of_sequences_has_the_verdict(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_str bytes = {0};
        size_t passed = 0, at = 0, given = 1;
        rk_h2_verdict_t verdict;
        struct side whole, split;

        greet(&whole);
        greet(&split);
        if (cases[i].say)
            cases[i].say(&bytes);
        verdict = rk_h2_filter_client(&whole.filter, (const uint8_t *)bytes.text, bytes.bytes, 0, &passed);
        print_message("%s: %zu of %zu bytes pass; %s\n", cases[i].label, passed, bytes.bytes,
                      whole.filter.rule ? whole.filter.rule : "-");
        assert_int_equal(verdict, cases[i].verdict);
        if (cases[i].rule)
            assert_non_null(strstr(whole.filter.rule, cases[i].rule));
        else
            assert_null(whole.filter.rule);
        if (verdict == RK_H2_PASS)
            assert_int_equal(passed, bytes.bytes);
        for (verdict = RK_H2_PASS; verdict == RK_H2_PASS && at + given <= bytes.bytes; given++) {
            size_t part;

            verdict = rk_h2_filter_client(&split.filter, (const uint8_t *)bytes.text + at, given, 0, &part);
            at += part;
            given -= part;
            assert_true(verdict != RK_H2_PASS || given < RK_H2_HEAD_BYTES);
        }
        assert_int_equal(verdict, cases[i].verdict);
        if (verdict != RK_H2_CUT)
            assert_int_equal(at, passed);
        rk_str_fini(&bytes);
    }
}

/* Goal: a peer without the HTTP/2 preface is rejected at the first different byte, and one that sends the
 * preface slowly, or leaves a block unfinished, after the timeout. */
static void test_filter_client_of_other_protocols_is_cut(void **state)
{
    static const char *const texts[] = {"GET / HTTP/1.1\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r ",
                                        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x8\6\0\0\0\0\0", "\x16\x3\x1"};
    static const size_t bytes[] = {18, 24, 33, 3};
    struct rk_str block = {0};
    struct side side;
    size_t passed;

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(texts); i++) {
        init(&side);
        assert_int_equal(rk_h2_filter_client(&side.filter, (const uint8_t *)texts[i], bytes[i], 0, &passed),
                         RK_H2_CUT);
        assert_int_equal(passed, 0);
        assert_false(side.filter.is_greeted);
        assert_int_equal(rk_h2_filter_client(&side.filter, (const uint8_t *)"x", 1, 0, &passed), RK_H2_CUT);
    }
    init(&side);
    assert_int_equal(rk_h2_filter_tick(&side.filter, RK_H2_GREETING_MS * 1000000LL), RK_H2_PASS);
    assert_int_equal(rk_h2_filter_tick(&side.filter, (RK_H2_GREETING_MS + 1) * 1000000LL), RK_H2_CUT);
    greet(&side);
    assert_int_equal(rk_h2_filter_tick(&side.filter, 100 * SECOND_NS), RK_H2_PASS);
    h2_frame(&block, H2_HEADERS, 0, 1, NULL, 9);
    assert_int_equal(feed(&side, &block, 100 * SECOND_NS, &passed), RK_H2_PASS);
    assert_int_equal(rk_h2_filter_tick(&side.filter, 104 * SECOND_NS), RK_H2_PASS);
    assert_int_equal(rk_h2_filter_tick(&side.filter, 106 * SECOND_NS), RK_H2_CUT);
}

/* Sends as many resets as pass at that time; returns their number. */
static int count_resets(struct side *side, uint32_t *stream, int64_t now_ns)
{
    int count = 0;

    for (;; count++, *stream += 2) {
        struct rk_str bytes = {0};
        size_t passed;

        h2_open_call(&bytes, *stream, PATH, NULL);
        assert_int_equal(feed(side, &bytes, now_ns, &passed), RK_H2_PASS);
        h2_frame(&bytes, H2_RST_STREAM, 0, *stream, CANCEL, 4);
        if (feed(side, &bytes, now_ns, &passed) != RK_H2_PASS)
            break;
    }
    *stream += 2;
    return count;
}

/* Goal: an authenticated peer may reset a burst of calls, then a limited number per second; unauthenticated
 * peers share a limit, except for the first reset of each. */
static void test_filter_client_of_resets_is_held_back(void **state)
{
    struct side side;
    struct rk_h2_filter other;
    uint32_t stream = 1;
    int count;

    (void)state;
    greet(&side);
    side.filter.is_trusted = true;
    assert_int_equal(count_resets(&side, &stream, 0), RK_H2_RESETS_BURST);
    assert_true(side.filter.wait_until_ns > 0 &&
                side.filter.wait_until_ns <= SECOND_NS / RK_H2_RESETS_RATE + 1);
    count = count_resets(&side, &stream, SECOND_NS);
    assert_true(count >= RK_H2_RESETS_RATE - 1 && count <= RK_H2_RESETS_RATE);

    greet(&side);
    side.shared.resets.tokens = 5;
    stream = 1;
    assert_int_equal(count_resets(&side, &stream, 0), 5 + RK_H2_FREE_RESETS);
    other = side.filter;
    greet(&side);
    side.shared.resets.tokens = 0;
    stream = 1;
    assert_int_equal(count_resets(&side, &stream, 0), RK_H2_FREE_RESETS);
    assert_true(other.wait_until_ns > 0);
}

/* A frame of the server for a stream. */
static void answer(struct side *side, int type, int flags, uint32_t stream, const char *payload, size_t bytes)
{
    struct rk_str frame = {0};
    size_t passed = 0, at = 0;

    h2_frame(&frame, type, flags, stream, payload, bytes);
    for (size_t given = 1; at + given <= frame.bytes; given++) { /* byte by byte */
        rk_h2_filter_server(&side->filter, (const uint8_t *)frame.text + at, given, 0, &passed);
        at += passed;
        given -= passed;
    }
    assert_int_equal(at, frame.bytes);
    rk_str_fini(&frame);
}

/* Goal: calls that the server ends are not counted, for any number and for every way in which the client
 * closes them; those that it resets with an error count like a reset by the client. */
static void test_filter_server_of_ends_makes_room(void **state)
{
    struct rk_str bytes = {0};
    struct side side;
    size_t passed;

    (void)state;
    greet(&side);
    for (uint32_t stream = 1; stream < 20000; stream += 2) {
        h2_open_call(&bytes, stream, PATH, NULL);
        h2_frame(&bytes, H2_DATA, H2_END_STREAM, stream, "\0\0\0\0", 5);
        assert_int_equal(feed(&side, &bytes, 0, &passed), RK_H2_PASS);
        assert_int_equal(side.filter.num_open, 1);
        answer(&side, H2_HEADERS, H2_END_HEADERS | H2_END_STREAM, stream, "\x88", 1);
        assert_int_equal(side.filter.num_open, 0);
        side.filter.updates.tokens = RK_H2_UPDATES_BURST; /* time passes */
    }
    assert_true(side.filter.resets.tokens == RK_H2_RESETS_BURST);

    greet(&side);
    h2_open_call(&bytes, 1, PATH, NULL);
    h2_open_call(&bytes, 3, PATH, NULL);
    h2_open_call(&bytes, 5, PATH, NULL);
    assert_int_equal(feed(&side, &bytes, 0, &passed), RK_H2_PASS);
    answer(&side, H2_RST_STREAM, 0, 3, "\0\0\0\0", 4); /* no error: the call was answered early */
    assert_true(side.filter.resets.tokens == RK_H2_RESETS_BURST);
    answer(&side, H2_RST_STREAM, 0, 1, "\0\0\0\x1", 4);
    assert_true(side.filter.resets.tokens == RK_H2_RESETS_BURST - 1);
    assert_int_equal(side.filter.num_open, 1);
    h2_frame(&bytes, H2_RST_STREAM, 0, 3, CANCEL, 4); /* ended already */
    assert_int_equal(feed(&side, &bytes, 0, &passed), RK_H2_PASS);
    assert_true(side.filter.resets.tokens == RK_H2_RESETS_BURST - 1);
    answer(&side, H2_DATA, H2_END_STREAM, 5, NULL, 0);
    assert_int_equal(side.filter.num_open, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_filter_client_of_sequences_has_the_verdict),
        cmocka_unit_test(test_filter_client_of_other_protocols_is_cut),
        cmocka_unit_test(test_filter_client_of_resets_is_held_back),
        cmocka_unit_test(test_filter_server_of_ends_makes_room),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
