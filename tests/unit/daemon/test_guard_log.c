/* The log lines of connections that the guard ends, with a simulated clock. */
#include "daemon/guard/guard_log_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_log.h"
#include "base/rk_str.h"
#include "tests/support/test.h"

#define BEGIN_NS  5000000000LL
#define SECOND_NS 1000000000LL
#define RULE      "a header block in too many frames"

struct lines {
    struct rk_str text;
    int count;
};

static void on_line(rk_log_level_t level, const char *line, void *user)
{
    struct lines *lines = user;

    assert_int_equal(level, RK_LOG_WARN);
    rk_str_append(&lines->text, line);
    rk_str_append(&lines->text, "\n");
    lines->count++;
}

static void begin(struct lines *lines)
{
    *lines = (struct lines){.count = 0};
    rk_log_set_sink(on_line, lines);
}

static void end(struct lines *lines)
{
    rk_log_set_sink(NULL, NULL);
    rk_str_fini(&lines->text);
}

static bool has(const struct lines *lines, const char *text)
{
    return lines->text.text && strstr(lines->text.text, text);
}

/* Goal: a thousand connections of an address in an interval give two lines, the second with the exact count.
 * Other reasons and addresses have separate lines; the port does not matter. */
static void test_an_address_has_one_line_an_interval(void **state)
{
    struct rk_guard_log *log = rk_calloc(1, sizeof(*log));
    struct lines lines;
    char peer[32];

    (void)state;
    begin(&lines);
    for (int i = 0; i < 1000; i++) {
        snprintf(peer, sizeof(peer), "192.0.2.7:%d", 1024 + i);
        rk_guard_log_note(log, "cut", peer, RULE, BEGIN_NS + i);
        rk_guard_log_tick(log, BEGIN_NS + i);
    }
    assert_int_equal(lines.count, 1);
    assert_true(has(&lines, "cut peer=192.0.2.7:1024: " RULE));
    rk_guard_log_note(log, "cut", "192.0.2.7:1", "another rule", BEGIN_NS);
    rk_guard_log_note(log, "dropped", "192.0.2.7:1", RULE, BEGIN_NS);
    rk_guard_log_note(log, "cut", "[2001:db8::7]:1", RULE, BEGIN_NS);
    rk_guard_log_note(log, "cut", "[2001:db8::7]:2", RULE, BEGIN_NS);
    assert_int_equal(lines.count, 4);

    rk_guard_log_tick(log, BEGIN_NS + RK_GUARD_LOG_INTERVAL_NS - SECOND_NS);
    assert_int_equal(lines.count, 4);
    rk_guard_log_tick(log, BEGIN_NS + RK_GUARD_LOG_INTERVAL_NS);
    assert_int_equal(lines.count, 6);
    assert_true(has(&lines, "cut peer=192.0.2.7: 999 more in 10 s: " RULE));
    assert_true(has(&lines, "cut peer=[2001:db8::7]: 1 more in 10 s: " RULE));
    end(&lines);
    rk_free(log);
}

/* Goal: a continued attack has one line per interval; after an interval without it, the next connection has a
 * line again. */
static void test_a_long_attack_has_one_line_an_interval(void **state)
{
    struct rk_guard_log *log = rk_calloc(1, sizeof(*log));
    int64_t now_ns = BEGIN_NS;
    struct lines lines;

    (void)state;
    begin(&lines);
    for (int i = 0; i < 600; i++, now_ns += SECOND_NS / 10) { /* a minute */
        rk_guard_log_note(log, "cut", "192.0.2.7:9", RULE, now_ns);
        rk_guard_log_tick(log, now_ns);
    }
    assert_true(lines.count >= 6);
    assert_true(lines.count <= 7);
    for (int i = 0; i < 25; i++, now_ns += SECOND_NS)
        rk_guard_log_tick(log, now_ns);
    lines.count = 0;
    rk_guard_log_note(log, "cut", "192.0.2.7:9", RULE, now_ns);
    assert_int_equal(lines.count, 1);
    end(&lines);
    rk_free(log);
}

/* Goal: many addresses or reasons exhaust neither log nor memory: beyond the number of rows they share one,
 * and the final counts are exact. */
static void test_many_addresses_share_a_row(void **state)
{
    const int num_peers = 5000;
    struct rk_guard_log *log = rk_calloc(1, sizeof(*log));
    struct lines lines;
    long long rest = 0;
    const char *found;
    char peer[32];

    (void)state;
    begin(&lines);
    for (int i = 0; i < num_peers; i++) {
        snprintf(peer, sizeof(peer), "10.0.%d.%d:7", i / 250, i % 250);
        rk_guard_log_note(log, "cut", peer, RULE, BEGIN_NS);
    }
    assert_true(lines.count <= 10); /* the log's limit of lines per call site and second */
    rk_guard_log_flush(log, BEGIN_NS + SECOND_NS);
    found = strstr(lines.text.text, "ended peer=(others): ");
    assert_non_null(found);
    assert_int_equal(sscanf(found, "ended peer=(others): %lld more", &rest), 1);
    assert_int_equal(rest, num_peers - RK_GUARD_LOG_ROWS - 1);

    for (int i = 0; i < RK_GUARD_LOG_ROWS; i++) { /* more rows than lines at the end */
        snprintf(peer, sizeof(peer), "10.1.0.%d:7", i);
        for (int j = 0; j < 3; j++)
            rk_guard_log_note(log, "cut", peer, RULE, BEGIN_NS);
    }
    lines.count = 0;
    rk_str_fini(&lines.text);
    lines.text = (struct rk_str){0};
    rk_guard_log_flush(log, BEGIN_NS + SECOND_NS);
    assert_true(lines.count <= 10);
    found = strstr(lines.text.text, "ended peer=(others): ");
    assert_non_null(found);
    assert_int_equal(sscanf(found, "ended peer=(others): %lld more", &rest), 1);
    assert_int_equal(rest % 2, 0);
    assert_true(rest >= 2 * (RK_GUARD_LOG_ROWS - 10));
    end(&lines);
    rk_free(log);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_address_has_one_line_an_interval),
        cmocka_unit_test(test_a_long_attack_has_one_line_an_interval),
        cmocka_unit_test(test_many_addresses_share_a_row),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
