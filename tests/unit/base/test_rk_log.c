#include "base/rk_log.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_json.h"
#include "base/rk_time.h"
#include "tests/support/test.h"

/* Lines that the sink received. */
static RK_ARRAY(char *) lines;
static int64_t now_ns;

static void keep_line(rk_log_level_t level, const char *line, void *user)
{
    (void)level;
    RK_ERROR("from inside the sink"); /* must neither dead-lock nor recurse */
    rk_array_append(&lines, rk_strdup(line));
    (*(int *)user)++;
}

static int setup(void **state)
{
    static int calls;

    (void)state;
    calls = 0;
    now_ns = 1000000000ll;
    rk_time_inject(&now_ns);
    rk_log_set_sink(keep_line, &calls);
    rk_log_set_level(RK_LOG_DEBUG);
    rk_log_set_context("");
    rk_log_set_format(RK_LOG_AUTO);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int64_t i = 0; i < lines.count; i++)
        rk_free(lines.items[i]);
    rk_array_fini(&lines);
    rk_log_set_sink(NULL, NULL);
    rk_log_set_level(RK_LOG_INFO);
    rk_time_inject(NULL);
    return 0;
}

static const char *last_line(void)
{
    assert_true(lines.count > 0);
    return lines.items[lines.count - 1];
}

static void test_log_text_holds_time_level_message_context(void **state)
{
    (void)state;
    rk_log_set_format(RK_LOG_TEXT);
    rk_log_set_context("slot=3 rank=1");
    RK_WARN("epoch=%d is stale\nretry", 7);
    assert_string_equal(last_line(), "1970-01-01T00:00:01.000Z warn  epoch=7 is stale\\nretry slot=3 rank=1");
    RK_WARN("a \033[31m b \302\2335m c \303\251"); /* C0, and C1 in UTF-8, which terminals interpret, too */
    assert_non_null(strstr(last_line(), "a \\u001b[31m b \\u009b5m c \303\251"));
}

/* Goal: a line is a JSON object for every message; the context's words become members. */
static void test_log_json_is_parseable_for_hostile_messages(void **state)
{
    static const char *const messages[] = {"plain",
                                           "quote \" backslash \\",
                                           "tab\tnewline\nbell\a",
                                           "caf\xc3\xa9",
                                           "broken \xff\xfe utf-8",
                                           "%s%n",
                                           ""};

    (void)state;
    rk_log_set_context("slot=3 rank=1 method=update_actor id=007x n=007");
    for (size_t i = 0; i < RK_ARRAY_LEN(messages); i++) {
        struct rk_json *json;

        RK_INFO("%s", messages[i]);
        assert_ok(rk_json_parse(&json, last_line(), strlen(last_line()), "line", 0));
        assert_string_equal(rk_json_as_string(rk_json_find(json, "level"), ""), "info");
        assert_int_equal(rk_json_as_int(rk_json_find(json, "slot"), -1), 3);
        assert_int_equal(rk_json_as_int(rk_json_find(json, "n"), -1), 7);
        assert_string_equal(rk_json_as_string(rk_json_find(json, "method"), ""), "update_actor");
        assert_string_equal(rk_json_as_string(rk_json_find(json, "id"), ""), "007x");
        if (i != 4)
            assert_string_equal(rk_json_as_string(rk_json_find(json, "msg"), "?"), messages[i]);
        else
            assert_string_equal(rk_json_as_string(rk_json_find(json, "msg"), ""), "broken ?? utf-8");
        rk_json_free(json);
    }
}

/* Goal: lines stay under 8 KiB and well formed when the message is huge and every byte needs an escape. */
static void test_log_json_huge_message_is_cut(void **state)
{
    static const char *const fills[] = {"x", "\x01", "\"", "\xc3\xa9", "\xf0\x9f\x98\x80"};
    char message[20000];

    (void)state;
    rk_log_set_context("slot=3 rank=1");
    for (size_t i = 0; i < RK_ARRAY_LEN(fills); i++) {
        size_t step = strlen(fills[i]);
        struct rk_json *json;

        for (size_t at = 0; at + step < sizeof(message); at += step)
            memcpy(message + at, fills[i], step + 1);
        RK_INFO("%s", message);
        assert_true(strlen(last_line()) < 8192);
        assert_ok(rk_json_parse(&json, last_line(), strlen(last_line()), "line", 0));
        assert_int_equal(rk_json_as_int(rk_json_find(json, "rank"), -1), 1);
        assert_true(rk_json_string_bytes(rk_json_find(json, "msg")) > 1000);
        rk_json_free(json);
    }
}

static void test_log_level_below_minimum_is_dropped(void **state)
{
    (void)state;
    rk_log_set_level(RK_LOG_WARN);
    RK_DEBUG_LOG("no");
    RK_INFO("no");
    assert_int_equal(lines.count, 0);
    RK_WARN("yes");
    RK_ERROR("yes");
    assert_int_equal(lines.count, 2);
}

static void log_from_one_site(int i)
{
    RK_INFO("record %d", i);
}

/* Goal: at most ten lines per second and call site; the first record of the next window has the number of
 * suppressed lines. */
static void test_log_rate_limit_counts_suppressed(void **state)
{
    (void)state;
    rk_log_set_format(RK_LOG_TEXT);
    for (int i = 0; i < 25; i++)
        log_from_one_site(i);
    assert_int_equal(lines.count, 10);
    RK_INFO("another site is not limited");
    assert_int_equal(lines.count, 11);
    now_ns += 999999999;
    log_from_one_site(25);
    assert_int_equal(lines.count, 11);
    now_ns += 1;
    log_from_one_site(26);
    assert_int_equal(lines.count, 12);
    assert_non_null(strstr(last_line(), "record 26"));
    assert_non_null(strstr(last_line(), "suppressed=16"));
    log_from_one_site(27);
    assert_null(strstr(last_line(), "suppressed"));
}

static void *log_many(void *arg)
{
    for (int i = 0; i < 200; i++) {
        struct rk_log_site site = {0};

        rk_log_write(&site, RK_LOG_INFO, "dir/file.c", 1, "thread %d record %d", *(int *)arg, i);
    }
    return NULL;
}

/* Goal: no line is lost or torn when four threads write. */
static void test_log_threads_write_whole_lines(void **state)
{
    pthread_t threads[4];
    int numbers[4] = {0, 1, 2, 3};

    (void)state;
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, log_many, &numbers[i]), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(lines.count, 800);
    for (int64_t i = 0; i < lines.count; i++) {
        struct rk_json *json;

        assert_ok(rk_json_parse(&json, lines.items[i], strlen(lines.items[i]), "line", 0));
        assert_string_equal(rk_json_as_string(rk_json_find(json, "src"), ""), "file.c:1");
        rk_json_free(json);
    }
}

/* Goal: without a sink, lines go to stderr; a pipe is not a terminal, so they are JSON. */
static void test_log_default_sink_is_stderr(void **state)
{
    char text[512] = "";
    int saved = dup(STDERR_FILENO), ends[2];
    ssize_t got;

    (void)state;
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    rk_log_set_sink(NULL, NULL);
    RK_ERROR("device lost");
    dup2(saved, STDERR_FILENO);
    close(ends[1]);
    got = read(ends[0], text, sizeof(text) - 1);
    close(ends[0]);
    close(saved);
    assert_true(got > 0);
    assert_int_equal(text[got - 1], '\n');
    assert_non_null(strstr(text, "\"level\":\"error\",\"msg\":\"device lost\""));
}

static void test_log_level_parse_table(void **state)
{
    rk_log_level_t level;

    (void)state;
    for (int i = 0; i < RK_LOG_LEVEL_COUNT; i++) {
        assert_true(rk_log_level_parse(rk_log_level_name((rk_log_level_t)i), &level));
        assert_int_equal(level, i);
    }
    assert_false(rk_log_level_parse("warning", &level));
    assert_false(rk_log_level_parse("INFO", &level));
    assert_false(rk_log_level_parse("", &level));
}

struct tapped {
    int count;
    rk_log_level_t level;
    char message[64];
};

static void keep_tapped(void *user, rk_log_level_t level, const char *message, size_t bytes,
                        const char *source)
{
    struct tapped *tapped = user;

    RK_ERROR("from inside the tap"); /* must neither dead-lock nor recurse */
    assert_non_null(strstr(source, "test_rk_log.c:"));
    tapped->count++;
    tapped->level = level;
    snprintf(tapped->message, sizeof(tapped->message), "%.*s", (int)bytes, message);
}

/* Goal: the tap gets exactly the lines that the sink gets. */
static void test_log_tap_hears_what_is_logged(void **state)
{
    struct tapped tapped = {0};

    (void)state;
    rk_log_set_level(RK_LOG_INFO);
    rk_log_set_tap(keep_tapped, &tapped);
    RK_WARN("heard %d", 7);
    RK_DEBUG_LOG("below the level");
    for (int i = 0; i < 30; i++)
        RK_INFO("often");
    rk_log_set_tap(NULL, NULL);
    RK_ERROR("afterwards");
    assert_int_equal(tapped.count, 11); /* a call site has 10 records per second */
    assert_string_equal(tapped.message, "often");
    assert_int_equal(tapped.level, RK_LOG_INFO);
    assert_int_equal(lines.count, 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_log_text_holds_time_level_message_context, setup, teardown),
        cmocka_unit_test_setup_teardown(test_log_json_is_parseable_for_hostile_messages, setup, teardown),
        cmocka_unit_test_setup_teardown(test_log_json_huge_message_is_cut, setup, teardown),
        cmocka_unit_test_setup_teardown(test_log_level_below_minimum_is_dropped, setup, teardown),
        cmocka_unit_test_setup_teardown(test_log_rate_limit_counts_suppressed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_log_threads_write_whole_lines, setup, teardown),
        cmocka_unit_test_setup_teardown(test_log_default_sink_is_stderr, setup, teardown),
        cmocka_unit_test_setup_teardown(test_log_tap_hears_what_is_logged, setup, teardown),
        cmocka_unit_test(test_log_level_parse_table),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
