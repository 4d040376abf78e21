/* Worker processes of a reward: protocol 2 with real programs (reward_worker.c), their failures, and the
 * processes that remain. */
#include "rl/rk_reward.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "base/rk_time.h"
#include "tests/support/test.h"

#define WORKER RK_TEST_BINARY_DIR "/tests/reward_worker"

/* Opens the reward with `more` members ("\"num_workers\": 2") and the worker in a mode. */
static struct rk_status *open_workers(struct rk_reward **out, const char *mode, const char *more)
{
    char *text =
        rk_format("{\"name\": \"command\", \"command\": [\"" WORKER "\", \"%s\", \"pids\"], %s}", mode, more);
    struct rk_json *config = NULL;
    struct rk_status *st;

    assert_ok(rk_json_parse(&config, text, strlen(text), "test", 0));
    st = rk_reward_create(out, config, rk_test_temp_dir());
    rk_json_free(config);
    rk_free(text);
    return st;
}

static struct rk_reward_item item_of(const char *solution)
{
    return (struct rk_reward_item){.data_source = "",
                                   .prompt = "",
                                   .solution_str = solution,
                                   .solution_bytes = strlen(solution),
                                   .ground_truth = ""};
}

/* Scores texts and returns the results, which the caller releases. */
static struct rk_status *score(struct rk_reward *reward, const char *const *texts, int64_t count,
                               struct rk_reward_result *results)
{
    struct rk_reward_item *items = rk_calloc((size_t)count, sizeof(*items));
    struct rk_status *st;

    for (int64_t i = 0; i < count; i++)
        items[i] = item_of(texts[i]);
    st = rk_reward_score(reward, items, count, results, NULL);
    rk_free(items);
    return st;
}

struct spread {
    const char *label, *mode, *config;
};

static const struct spread spreads[] = {
    {"one worker", "ok", "\"num_workers\": 1"},
    {"three workers", "ok", "\"num_workers\": 3"},
    {"batches", "ok", "\"num_workers\": 2, \"batch_size\": 7"},
    {"answers in reverse", "reverse", "\"num_workers\": 2, \"batch_size\": 16"},
};

/* Goal: for any number of workers and order of answers, each item gets its own score, in successive calls. */
static void test_workers_every_item_gets_its_own_answer(void **state)
{
    enum { COUNT = 200 };
    struct rk_reward_result results[COUNT];
    const char *texts[COUNT];

    (void)state;
    for (int i = 0; i < COUNT; i++)
        texts[i] = rk_format("score:%d.5", i);
    for (size_t s = 0; s < RK_ARRAY_LEN(spreads); s++) {
        struct rk_reward *reward;

        print_message("  %s\n", spreads[s].label);
        assert_ok(open_workers(&reward, spreads[s].mode, spreads[s].config));
        for (int call = 0; call < 2; call++) {
            assert_ok(score(reward, texts, COUNT, results));
            for (int i = 0; i < COUNT; i++)
                assert_true(results[i].score == i + 0.5);
            rk_reward_results_fini(results, COUNT);
        }
        rk_reward_destroy(reward);
    }
    for (int i = 0; i < COUNT; i++)
        rk_free((char *)(uintptr_t)texts[i]);
}

/* Goal: an item arrives complete, including NULs, quotes and newlines. */
static void test_workers_items_arrive_whole(void **state)
{
    static const char with_nul[] = "bytes:a\0b\n\"\\\u00e9\0";
    struct rk_json *extra_info = rk_json_new_object();
    struct rk_reward_item items[2] = {item_of(with_nul), item_of("echo")};
    struct rk_reward_result results[2];
    struct rk_reward *reward;
    const struct rk_json *extra;

    (void)state;
    rk_json_set(extra_info, "index", rk_json_new_int(7));
    items[0].solution_bytes = sizeof(with_nul) - 1;
    items[1].data_source = "some/source";
    items[1].prompt = "1 + 1 =\n\"?\"";
    items[1].prompt_bytes = strlen(items[1].prompt);
    items[1].ground_truth = "2";
    items[1].extra_info = extra_info;
    assert_ok(open_workers(&reward, "ok", "\"num_workers\": 1"));
    assert_ok(rk_reward_score(reward, items, 2, results, NULL));
    assert_true(results[0].score == (double)sizeof(with_nul) - 1);
    assert_true(rk_json_as_real(rk_json_find(results[0].extra, "num_nul"), -1) == 2.0);
    extra = results[1].extra;
    assert_string_equal(rk_json_as_string(rk_json_find(extra, "data_source"), ""), "some/source");
    assert_string_equal(rk_json_as_string(rk_json_find(extra, "prompt"), ""), "1 + 1 =\n\"?\"");
    assert_string_equal(rk_json_as_string(rk_json_find(extra, "ground_truth"), ""), "2");
    assert_string_equal(rk_json_as_string(rk_json_find(extra, "extra_info"), ""), "{\"index\":7}");
    rk_reward_results_fini(results, 2);
    rk_reward_destroy(reward);
    rk_json_free(extra_info);
}

struct bad_item {
    const char *label, *text;
    rk_reward_outcome_t outcome;
    const char *message;
};

static const struct bad_item bad_items[] = {
    {"exits", "exit:3", RK_REWARD_CRASH, "exited with code 3"},
    {"is killed", "kill", RK_REWARD_CRASH, "killed by signal 9"},
    {"closes its output", "close", RK_REWARD_CRASH, "closed its output"},
    {"hangs", "hang", RK_REWARD_TIMEOUT, "did not answer within 1000 ms"},
    {"garbage", "garbage", RK_REWARD_CRASH, "violated the protocol: answer"},
    {"no id", "garbage:{\"score\": 1}", RK_REWARD_CRASH, "id"},
    {"another item's id", "garbage:{\"id\": 123456, \"score\": 1}", RK_REWARD_CRASH, "the item 123456"},
    {"negative id", "garbage:{\"id\": -1, \"score\": 1}", RK_REWARD_CRASH, "id"},
    {"endless line", "flood", RK_REWARD_CRASH, "longer than"},
    {"no score", "raw:", RK_REWARD_ERROR, "exactly one of score, error and skip"},
    {"two kinds", "raw:\"score\": 1, \"skip\": true", RK_REWARD_ERROR, "exactly one"},
    {"text as score", "raw:\"score\": \"1\"", RK_REWARD_ERROR, "expected a number, got a string"},
    {"null as score", "raw:\"score\": null", RK_REWARD_ERROR, "score"},
    {"beyond float32", "raw:\"score\": -1e39", RK_REWARD_ERROR,
     "the score is -1e+39, expected a number from -3.4"},
    {"NaN", "raw:\"score\": NaN", RK_REWARD_CRASH, "NaN or Infinity, which JSON does not have"},
    {"infinite", "raw:\"score\": -Infinity", RK_REWARD_CRASH, "NaN or Infinity, which JSON does not have"},
    {"says why", "raw:\"error\": \"no such unit\"", RK_REWARD_ERROR, "no such unit"},
    {"error of another type", "raw:\"error\": 7", RK_REWARD_ERROR, "error"},
    {"skips", "raw:\"skip\": true", RK_REWARD_SKIPPED, "skipped"},
};

/* Goal: a failure of an item affects this item only, with single items and with batches, where the others are
 * sent again. Method: alternating good and bad items. */
static void check_bad_items(const char *config)
{
    enum { COUNT = 2 * RK_ARRAY_LEN(bad_items) };
    struct rk_reward_result results[COUNT];
    const char *texts[COUNT];
    struct rk_reward *reward;

    for (int i = 0; i < COUNT; i++)
        texts[i] = i % 2 ? bad_items[i / 2].text : "score:3";
    assert_ok(open_workers(&reward, "ok", config));
    assert_ok(score(reward, texts, COUNT, results));
    for (int i = 0; i < COUNT; i++) {
        const struct bad_item *bad = &bad_items[i / 2];

        assert_int_equal(results[i].is_dropped, i % 2);
        assert_int_equal(results[i].outcome, i % 2 ? bad->outcome : RK_REWARD_SCORED);
        assert_true(results[i].score == (i % 2 ? 0.0 : 3.0));
        if (i % 2 && !strstr(results[i].message, bad->message))
            fail_msg("%s: the message is '%s'", bad->label, results[i].message);
    }
    rk_reward_results_fini(results, COUNT);
    rk_reward_destroy(reward);
}

static void test_workers_bad_item_costs_itself_only(void **state)
{
    (void)state;
    check_bad_items("\"num_workers\": 1, \"timeout\": \"1s\", \"max_failed_ratio\": 0.5");
}

static void test_workers_bad_item_of_a_batch_costs_itself_only(void **state)
{
    (void)state;
    check_bad_items("\"num_workers\": 2, \"timeout\": \"1s\", \"max_failed_ratio\": 0.5, \"batch_size\": 5");
}

/* Goal: members that cannot be reported cost neither the score nor the other members. */
static void test_workers_members_that_cannot_be_reported_are_ignored(void **state)
{
    struct rk_str many = {0};
    const char *texts[2];
    struct rk_reward_result results[2];
    struct rk_reward *reward;

    (void)state;
    rk_str_append(&many, "raw:\"score\": 3");
    for (int i = 0; i < 33; i++)
        rk_str_appendf(&many, ", \"m%d\": %d", i, i);
    texts[0] = "raw:\"score\": 3, \"tokens\": [1], \"a b\": 1, \"\u683c\u5f0f\u5206\": 0.5, \"kept\": 2, "
               "\"none\": null";
    texts[1] = rk_str_text(&many);
    assert_ok(open_workers(&reward, "ok", "\"num_workers\": 1"));
    assert_ok(score(reward, texts, 2, results));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(results[i].outcome, RK_REWARD_SCORED);
        assert_true(results[i].score == 3.0);
    }
    assert_string_equal(results[0].ignored, "'tokens', 'a b', '\u683c\u5f0f\u5206'");
    assert_int_equal(rk_json_count(results[0].extra), 1);
    assert_true(rk_json_as_real(rk_json_find(results[0].extra, "kept"), 0) == 2.0);
    assert_string_equal(results[1].ignored, "'m32'");
    assert_int_equal(rk_json_count(results[1].extra), 32);
    rk_reward_results_fini(results, 2);
    rk_reward_destroy(reward);
    rk_str_fini(&many);
}

/* Goal: a duplicate answer is an error of its worker only: the item and the worker's next items keep their
 * scores. */
static void test_workers_surplus_answer_costs_no_score(void **state)
{
    const char *texts[3] = {"twice:1", "score:2", "score:3"};
    struct rk_reward_result results[3];
    struct rk_reward *reward;

    (void)state;
    assert_ok(open_workers(&reward, "ok", "\"num_workers\": 1, \"batch_size\": 3"));
    for (int call = 0; call < 2; call++) {
        assert_ok(score(reward, texts, 3, results));
        for (int j = 0; j < 3; j++)
            assert_true(results[j].score == j + 1);
        rk_reward_results_fini(results, 3);
    }
    rk_reward_destroy(reward);
}

/* Goal: on_error decides the score of a failed item, and max_failed_ratio the number of failures that ends
 * the call; skipped items are not failures. */
static void test_workers_on_error_and_ratio(void **state)
{
    static const struct {
        const char *config;
        rk_code_t code; /* result of the call */
        const char *message;
        bool is_dropped;
    } cases[] = {
        {"\"max_failed_ratio\": 0.25", RK_OK, NULL, true},
        {"\"max_failed_ratio\": 0.25, \"on_error\": \"drop\"", RK_OK, NULL, true},
        {"\"max_failed_ratio\": 0.25, \"on_error\": \"zero\"", RK_OK, NULL, false},
        {"\"max_failed_ratio\": 0.24", RK_ABORTED, "1 of 4 items have no score", true},
        {"\"max_failed_ratio\": 0.24, \"on_error\": \"zero\"", RK_ABORTED, "item 1: error: bad", false},
        {"\"max_failed_ratio\": 1.0, \"on_error\": \"fail\"", RK_ABORTED, "item 1: error: bad", true},
    };
    const char *texts[4] = {"score:1", "raw:\"error\": \"bad\"", "raw:\"skip\": true", "raw:\"skip\": true"};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_reward_result results[4];
        struct rk_reward *reward;

        print_message("  %s\n", cases[i].config);
        assert_ok(open_workers(&reward, "ok", cases[i].config));
        if (cases[i].code == RK_OK) {
            assert_ok(score(reward, texts, 4, results));
            assert_true(results[0].score == 1.0);
            assert_true(results[2].is_dropped);
        } else {
            assert_fails(score(reward, texts, 4, results), cases[i].code, cases[i].message);
        }
        assert_int_equal(results[1].is_dropped, cases[i].is_dropped);
        assert_true(results[1].score == 0.0);
        rk_reward_results_fini(results, 4);
        rk_reward_destroy(reward);
    }
}

/* Goal: failures beyond the ratio end the call without scoring the rest, which would take 200 s here. */
static void test_workers_too_many_failures_end_the_call_early(void **state)
{
    enum { COUNT = 2000 };
    struct rk_reward_result results[COUNT];
    const char *texts[COUNT];
    struct rk_reward *reward;
    int64_t began_ns = rk_time_now_ns();

    (void)state;
    for (int i = 0; i < COUNT; i++)
        texts[i] = i < 8 ? "hang" : "sleep:100";
    assert_ok(open_workers(&reward, "ok",
                           "\"num_workers\": 2, \"timeout\": \"200ms\", \"max_failed_ratio\": 0.003"));
    assert_fails(score(reward, texts, COUNT, results), RK_ABORTED, " of 2000 items have no score");
    rk_reward_results_fini(results, COUNT);
    rk_reward_destroy(reward);
    assert_true(rk_time_now_ns() - began_ns < 30 * 1000000000LL);
}

/* Goal: a program that fails to restart is not restarted without limit. */
static void test_workers_program_that_does_not_start_again_ends_the_run(void **state)
{
    const char *texts[3] = {"exit:9", "score:1", "score:2"};
    struct rk_reward_result results[3];
    struct rk_reward *reward;

    (void)state;
    assert_ok(open_workers(&reward, "once", "\"num_workers\": 1, \"max_failed_ratio\": 1"));
    assert_fails(score(reward, texts, 3, results), RK_ABORTED, "exited with code 7; 5 restarts");
    assert_int_equal(results[0].outcome, RK_REWARD_CRASH);
    rk_reward_results_fini(results, 3);
    rk_reward_destroy(reward);
}

static const struct {
    const char *mode, *message;
} bad_hellos[] = {
    {"mute", "within 300 ms"},
    {"old", "expected {\"hello\": 2}"},
    {"sorry", "there is no model"},
};

static void test_workers_program_without_hello_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(bad_hellos); i++) {
        const char *more = i == 0 ? "\"start_timeout\": \"300ms\"" : "\"num_workers\": 2";
        struct rk_reward *reward;

        assert_fails(open_workers(&reward, bad_hellos[i].mode, more), RK_FAILED_PRECONDITION,
                     bad_hellos[i].message);
        assert_null(reward);
    }
}

/* --- interrupts and remaining processes --- */

/* Cancelled once a number of questions were asked. */
static bool after_some(void *user)
{
    return --*(int *)user < 0;
}

/* Goal: Ctrl-C during a long wait ends the call within a second, though no worker answers. */
static void test_workers_interrupt_ends_the_phase_at_once(void **state)
{
    struct rk_reward_item items[4] = {item_of("hang"), item_of("hang"), item_of("hang"), item_of("hang")};
    int looks = 3;
    struct rk_reward_watch watch = {.is_cancelled = after_some, .user = &looks};
    struct rk_reward_result results[4];
    struct rk_reward *reward;
    int64_t began_ns;

    (void)state;
    assert_ok(open_workers(&reward, "ok", "\"num_workers\": 4"));
    began_ns = rk_time_now_ns();
    assert_code(rk_reward_score(reward, items, 4, results, &watch), RK_CANCELLED);
    assert_true(rk_time_now_ns() - began_ns < 1000000000LL);
    rk_reward_results_fini(results, 4);
    rk_reward_destroy(reward);
}

/* Whether the process still runs after two seconds; a zombie does not count as running. */
static bool is_running(int64_t pid)
{
    char *path = rk_format("/proc/%lld/stat", (long long)pid), state = 'R';

    for (int i = 0; i < 200 && state != 'Z'; i++) {
        FILE *file = fopen(path, "re");

        if (!file || fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
            state = 'Z';
        if (file)
            fclose(file);
        rk_time_sleep_ms(state == 'Z' ? 0 : 10);
    }
    rk_free(path);
    return state != 'Z';
}

/* The process ids that the mode "child" has written to the file. */
static int read_pids(int64_t *pids, int capacity)
{
    char *path = rk_test_temp_path("pids"), *text;
    size_t bytes;
    int count = 0;

    text = rk_test_read_file(path, &bytes);
    for (char *line = text, *end; count < capacity && (end = strchr(line, '\n')) != NULL; line = end + 1) {
        *end = '\0';
        assert_true(rk_parse_i64(line, &pids[count++]));
    }
    (void)unlink(path);
    rk_free(text);
    rk_free(path);
    return count;
}

/* Goal: at the end the whole process group of a worker is killed, including its children; also that of a lost
 * worker. */
static void test_workers_group_is_killed_at_the_end(void **state)
{
    const char *texts[2] = {"exit:1", "score:1"};
    struct rk_reward_result results[2];
    struct rk_reward *reward;
    int64_t pids[8];

    (void)state;
    assert_ok(open_workers(&reward, "child", "\"num_workers\": 1, \"max_failed_ratio\": 1"));
    assert_ok(score(reward, texts, 2, results));
    rk_reward_results_fini(results, 2);
    rk_reward_destroy(reward);
    assert_int_equal(read_pids(pids, 8), 4); /* the worker and its child, twice */
    for (int i = 0; i < 4; i++)
        assert_false(is_running(pids[i]));
}

/* Goal: when the driver is killed, its workers are killed too, including child processes that do not read
 * their input. Method: a child of the test opens a reward and kills itself. */
static void test_workers_die_with_the_driver(void **state)
{
    int64_t pids[8];
    int status = 0;
    pid_t driver;

    (void)state;
    driver = fork();
    if (driver == 0) {
        struct rk_reward *reward;

        rk_status_free(open_workers(&reward, "child", "\"num_workers\": 1"));
        kill(getpid(), SIGKILL);
    }
    assert_int_equal(waitpid(driver, &status, 0), driver);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(read_pids(pids, 8), 2);
    assert_false(is_running(pids[0]));
    assert_false(is_running(pids[1]));
}

/* What is written to standard error while a worker in the mode scores an item. */
static char *messages_of(const char *mode, size_t *bytes)
{
    const char *texts[1] = {"score:1"};
    struct rk_reward_result results[1];
    char *path = rk_test_temp_path("stderr"), *text;
    int saved = dup(STDERR_FILENO);
    struct rk_reward *reward;

    fflush(stderr);
    assert_non_null(freopen(path, "w", stderr));
    assert_ok(open_workers(&reward, mode, "\"num_workers\": 1"));
    assert_ok(score(reward, texts, 1, results));
    rk_reward_results_fini(results, 1);
    rk_reward_destroy(reward);
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    text = rk_test_read_file(path, bytes);
    rk_free(path);
    return text;
}

/* Goal: standard error is passed on line by line with the worker's name as prefix, for lines of any length.
 */
static void test_workers_messages_pass_with_a_prefix(void **state)
{
    size_t bytes;
    char *text = messages_of("chatty", &bytes);

    (void)state;
    assert_non_null(strstr(text, "reward[0]: first\n"));
    assert_non_null(strstr(text, "long\nreward[0]: last\n"));
    assert_true(bytes > 10000);
    rk_free(text);
}

/* Goal: a program that writes without end fills neither log nor disk, and no control character reaches the
 * terminal. Method: 2.4 MB of lines that are not UTF-8 as a whole. */
static void test_workers_messages_are_limited_and_escaped(void **state)
{
    size_t bytes;
    char *text = messages_of("loud", &bytes);

    (void)state;
    assert_non_null(strstr(text, "reward[0]: \\x1b[31mred\tline ??5m ? ??\n"));
    assert_non_null(strstr(text, " lines of standard error left out"));
    assert_null(strchr(text, '\033'));
    assert_true(bytes > 1000000);
    assert_true(bytes < 1500000);
    rk_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_workers_every_item_gets_its_own_answer),
        cmocka_unit_test(test_workers_items_arrive_whole),
        cmocka_unit_test(test_workers_bad_item_costs_itself_only),
        cmocka_unit_test(test_workers_bad_item_of_a_batch_costs_itself_only),
        cmocka_unit_test(test_workers_members_that_cannot_be_reported_are_ignored),
        cmocka_unit_test(test_workers_surplus_answer_costs_no_score),
        cmocka_unit_test(test_workers_on_error_and_ratio),
        cmocka_unit_test(test_workers_too_many_failures_end_the_call_early),
        cmocka_unit_test(test_workers_program_that_does_not_start_again_ends_the_run),
        cmocka_unit_test(test_workers_program_without_hello_is_refused),
        cmocka_unit_test(test_workers_interrupt_ends_the_phase_at_once),
        cmocka_unit_test(test_workers_group_is_killed_at_the_end),
        cmocka_unit_test(test_workers_die_with_the_driver),
        cmocka_unit_test(test_workers_messages_pass_with_a_prefix),
        cmocka_unit_test(test_workers_messages_are_limited_and_escaped),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
