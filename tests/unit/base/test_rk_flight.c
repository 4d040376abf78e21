#include "base/rk_flight.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_assert.h"
#include "base/rk_json.h"
#include "base/rk_status.h"
#include "base/rk_str.h"
#include "tests/support/test.h"

static void append(void *user, const char *data, size_t bytes)
{
    rk_str_append_bytes(user, data, bytes);
}

/* The dump, parsed; rk_json_free it. */
static struct rk_json *dump(void)
{
    struct rk_str text = {0};
    struct rk_json *json;

    rk_flight_write(append, &text, "a \"test\"\n");
    assert_ok(rk_json_parse(&json, text.text, text.bytes, "flight", 0));
    rk_str_fini(&text);
    return json;
}

static const char *text_of(const struct rk_json *json, const char *key)
{
    return rk_json_as_string(rk_json_find(json, key), "");
}

static int64_t int_of(const struct rk_json *json, const char *key)
{
    return rk_json_as_int(rk_json_find(json, key), -1);
}

static uint64_t begin(rk_flight_kind_t kind, const char *what, uint64_t seq)
{
    return rk_flight_begin(
        &(struct rk_flight_entry){.kind = kind, .what = what, .where = "dp", .seq = seq, .bytes = 8 * seq});
}

/* Goal: operations of both rings are sorted by the time of their begin; unfinished ones are marked. */
static void test_flight_writes_operations_in_order(void **state)
{
    uint64_t call, collective;
    struct rk_json *json;
    const struct rk_json *list, *item;

    (void)state;
    rk_flight_clear();
    call = begin(RK_FLIGHT_CALL, "actor.update_actor", 3);
    collective = begin(RK_FLIGHT_COLLECTIVE, "all_reduce", 41);
    rk_flight_end(collective, RK_ABORTED);
    rk_flight_note(&(struct rk_flight_entry){.kind = RK_FLIGHT_STATE, .what = "BUSY"}, RK_OK);
    begin(RK_FLIGHT_COLLECTIVE, "all_gather", 42);
    rk_flight_end(call, RK_OK);
    json = dump();
    assert_string_equal(text_of(json, "reason"), "a \"test\"?");
    assert_int_equal(int_of(json, "pid"), getpid());
    assert_true(int_of(json, "unix_ns") > 0);
    list = rk_json_find(json, "operations");
    assert_int_equal(rk_json_count(list), 4);
    item = rk_json_at(list, 0);
    assert_string_equal(text_of(item, "kind"), "call");
    assert_string_equal(text_of(item, "what"), "actor.update_actor");
    assert_true(int_of(item, "end_ns") >= int_of(item, "begin_ns"));
    item = rk_json_at(list, 1);
    assert_string_equal(text_of(item, "kind"), "collective");
    assert_string_equal(text_of(item, "where"), "dp");
    assert_int_equal(int_of(item, "seq"), 41);
    assert_int_equal(int_of(item, "bytes"), 8 * 41);
    assert_null(rk_json_find(item, "group"));
    assert_string_equal(text_of(item, "code"), "ABORTED");
    assert_true(int_of(item, "begin_ns") >= int_of(rk_json_at(list, 0), "begin_ns"));
    assert_string_equal(text_of(rk_json_at(list, 2), "what"), "BUSY");
    item = rk_json_at(list, 3);
    assert_string_equal(text_of(item, "what"), "all_gather");
    assert_true(rk_json_is_null(rk_json_find(item, "end_ns")));
    rk_json_free(json);
}

/* Goal: groups are written unchanged, also at the limits of their numbers. */
static void test_flight_writes_groups(void **state)
{
    static const int cases[][4] = {{0, 0, 0, 1}, {7, 2, 4, 3}, {(1 << 27) - 1, 4095, 4095, 4096}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const int *one = cases[i];
        const struct rk_json *group;
        struct rk_json *json;

        rk_flight_clear();
        rk_flight_note(
            &(struct rk_flight_entry){.kind = RK_FLIGHT_COLLECTIVE,
                                      .what = "all_reduce",
                                      .group = rk_flight_group((uint32_t)one[0], one[1], one[2], one[3])},
            RK_OK);
        json = dump();
        group = rk_json_find(rk_json_at(rk_json_find(json, "operations"), 0), "group");
        assert_int_equal(int_of(group, "tag"), one[0]);
        assert_int_equal(int_of(group, "first"), one[1]);
        assert_int_equal(int_of(group, "stride"), one[2]);
        assert_int_equal(int_of(group, "size"), one[3]);
        rk_json_free(json);
    }
}

/* Goal: the newest entries are kept, collectives do not evict calls, and the end of an evicted entry is
 * dropped. */
static void test_flight_keeps_the_newest(void **state)
{
    uint64_t first;
    struct rk_json *json;
    const struct rk_json *list;

    (void)state;
    rk_flight_clear();
    begin(RK_FLIGHT_CALL, "actor.init_model", 1);
    first = begin(RK_FLIGHT_COLLECTIVE, "barrier", 0);
    for (uint64_t i = 1; i <= RK_FLIGHT_WORK; i++)
        begin(RK_FLIGHT_COLLECTIVE, "all_reduce", i);
    rk_flight_end(first, RK_OK);
    assert_int_equal(rk_flight_count(), RK_FLIGHT_WORK + 2);
    json = dump();
    list = rk_json_find(json, "operations");
    assert_int_equal(rk_json_count(list), RK_FLIGHT_WORK + 1);
    assert_string_equal(text_of(rk_json_at(list, 0), "what"), "actor.init_model");
    for (int64_t i = 1; i <= RK_FLIGHT_WORK; i++) {
        assert_int_equal(int_of(rk_json_at(list, i), "seq"), i);
        assert_true(rk_json_is_null(rk_json_find(rk_json_at(list, i), "end_ns")));
    }
    rk_json_free(json);
}

/* Goal: text of any length and any bytes gives valid JSON. */
static void test_flight_hostile_text_stays_json(void **state)
{
    char text[300];
    struct rk_json *json;

    (void)state;
    rk_flight_clear();
    memset(text, '"', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    begin(RK_FLIGHT_ERROR, text, 1);
    memset(text, 0xff, sizeof(text) - 1);
    begin(RK_FLIGHT_ERROR, text, 2);
    begin(RK_FLIGHT_ERROR, "\\\x01\x7f", UINT64_MAX >> 8);
    json = dump();
    assert_int_equal(rk_json_count(rk_json_find(json, "operations")), 3);
    assert_int_equal(strlen(text_of(rk_json_at(rk_json_find(json, "operations"), 0), "what")),
                     RK_FLIGHT_WHAT_BYTES - 1);
    assert_string_equal(text_of(rk_json_at(rk_json_find(json, "operations"), 2), "what"), "\\??");
    rk_json_free(json);
}

#define NUM_WRITERS 4

static void *record(void *user)
{
    const char *what = user;

    for (uint64_t i = 0; i < 20000; i++)
        rk_flight_end(begin(RK_FLIGHT_COLLECTIVE, what, i), RK_OK);
    return NULL;
}

/* Goal: entries read during concurrent writes are consistent: all bytes of an entry are from one writer. */
static void test_flight_entries_are_whole_while_others_write(void **state)
{
    static char names[NUM_WRITERS][RK_FLIGHT_WHAT_BYTES];
    pthread_t threads[NUM_WRITERS];

    (void)state;
    rk_flight_clear();
    for (int i = 0; i < NUM_WRITERS; i++) {
        memset(names[i], 'a' + i, sizeof(names[i]) - 1);
        assert_int_equal(pthread_create(&threads[i], NULL, record, names[i]), 0);
    }
    while (rk_flight_count() < (uint64_t)NUM_WRITERS * 20000) {
        struct rk_json *json = dump();
        const struct rk_json *list = rk_json_find(json, "operations");

        for (int64_t i = 0; i < rk_json_count(list); i++) {
            const char *what = text_of(rk_json_at(list, i), "what");

            assert_int_equal(strlen(what), RK_FLIGHT_WHAT_BYTES - 1);
            assert_int_equal(strspn(what, (char[]){what[0], '\0'}), RK_FLIGHT_WHAT_BYTES - 1);
            assert_int_equal(int_of(rk_json_at(list, i), "bytes"), 8 * int_of(rk_json_at(list, i), "seq"));
        }
        rk_json_free(json);
    }
    for (int i = 0; i < NUM_WRITERS; i++)
        pthread_join(threads[i], NULL);
}

typedef void (*death_t)(void);

static void die_by_assertion(void)
{
    RK_ASSERT(getpid() == 0);
}

static void die_by_address(void)
{
    volatile int *volatile nowhere = (volatile int *)16;

    *nowhere = 1;
}

static void die_by_signal(void)
{
    kill(getpid(), SIGBUS);
    pause();
}

/* The wait status of a process that dies in this way, and its dump. */
static int run_death(death_t die, struct rk_json **out)
{
    char *path = rk_test_temp_path("flight.json");
    pid_t pid;
    int status;

    unlink(path);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int null = open("/dev/null", O_WRONLY);

        dup2(null, STDERR_FILENO); /* output of assertions and sanitizers */
        signal(SIGSEGV, SIG_DFL);  /* a sanitizer's own handler exits */
        signal(SIGBUS, SIG_DFL);
        rk_flight_clear();
        begin(RK_FLIGHT_CALL, "actor.update_actor", 7);
        rk_flight_install(path);
        die();
        _exit(99);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_ok(rk_json_parse_file(out, path, 1 << 20, 0));
    rk_free(path);
    return status;
}

/* Goal: a crashing process writes its recorder, and terminates with its original status. */
static void test_flight_is_written_by_a_dying_process(void **state)
{
    static const struct {
        death_t die;
        int number;
        const char *reason;
    } deaths[] = {{die_by_assertion, SIGABRT, "SIGABRT"},
                  {die_by_address, SIGSEGV, "SIGSEGV"},
                  {die_by_signal, SIGBUS, "SIGBUS"}};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(deaths); i++) {
        struct rk_json *json;
        int status = run_death(deaths[i].die, &json);

        print_message("%s\n", deaths[i].reason);
        assert_true(WIFSIGNALED(status));
        assert_int_equal(WTERMSIG(status), deaths[i].number);
        assert_string_equal(text_of(json, "reason"), deaths[i].reason);
        assert_string_equal(text_of(rk_json_at(rk_json_find(json, "operations"), 0), "what"),
                            "actor.update_actor");
        rk_json_free(json);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flight_writes_operations_in_order),
        cmocka_unit_test(test_flight_writes_groups),
        cmocka_unit_test(test_flight_keeps_the_newest),
        cmocka_unit_test(test_flight_hostile_text_stays_json),
        cmocka_unit_test(test_flight_entries_are_whole_while_others_write),
        cmocka_unit_test(test_flight_is_written_by_a_dying_process),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
