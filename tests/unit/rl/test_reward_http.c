/* The reward http with a server of Python's standard library (reward_server.py): answers, failures, retries,
 * limits, interrupts. */
#include "rl/rk_reward.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "base/rk_time.h"
#include "tests/support/proc.h"
#include "tests/support/test.h"

#define SERVER         RK_TEST_SOURCE_DIR "/tests/unit/rl/reward_server.py"
#define SERVER_TIMEOUT 60000

static struct rk_proc *server;
static int port;

static struct rk_status *open_http(struct rk_reward **out, int at, const char *more)
{
    char *text =
        rk_format("{\"name\": \"http\", \"url\": \"http://127.0.0.1:%d/score\", \"max_failed_ratio\": 1%s%s}",
                  at, *more ? ", " : "", more);
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

/* Scores one text; the caller releases the result. */
static void score_one(int at, const char *more, const char *text, struct rk_reward_result *result)
{
    struct rk_reward_item item = item_of(text);
    struct rk_reward *reward;

    assert_ok(open_http(&reward, at, more));
    assert_ok(rk_reward_score(reward, &item, 1, result, NULL));
    rk_reward_destroy(reward);
}

/* Goal: every item gets its own score, for any number of concurrent requests and of items per request. */
static void test_http_every_item_gets_its_own_answer(void **state)
{
    enum { COUNT = 120 };
    static const char *const configs[] = {"", "\"max_concurrent\": 1", "\"batch_size\": 7",
                                          "\"batch_size\": 1000, \"max_concurrent\": 3"};
    struct rk_reward_item items[COUNT];
    struct rk_reward_result results[COUNT];
    char *texts[COUNT];

    (void)state;
    for (int i = 0; i < COUNT; i++) {
        texts[i] = rk_format("score:%d.25", i);
        items[i] = item_of(texts[i]);
    }
    for (size_t c = 0; c < RK_ARRAY_LEN(configs); c++) {
        int64_t began_ns = rk_time_now_ns();
        struct rk_reward *reward;

        assert_ok(open_http(&reward, port, configs[c]));
        for (int call = 0; call < 2; call++) {
            assert_ok(rk_reward_score(reward, items, COUNT, results, NULL));
            for (int i = 0; i < COUNT; i++)
                assert_true(results[i].score == i + 0.25);
            rk_reward_results_fini(results, COUNT);
        }
        assert_true(rk_time_now_ns() - began_ns < 20 * 1000000000LL); /* no pause between requests */
        rk_reward_destroy(reward);
    }
    for (int i = 0; i < COUNT; i++)
        rk_free(texts[i]);
}

static const struct {
    const char *label, *config, *text;
    rk_reward_outcome_t outcome;
    const char *message;
} bad_answers[] = {
    {"client error", "", "status:404", RK_REWARD_ERROR, "HTTP status 404"},
    {"redirect", "", "redirect", RK_REWARD_ERROR, "HTTP status 302"},
    {"server error, again and again", "\"max_retries\": 1", "status:500", RK_REWARD_ERROR, "HTTP status 500"},
    {"slow", "\"timeout\": \"300ms\"", "slow:5", RK_REWARD_TIMEOUT, "no answer within 300 ms"},
    {"garbage", "", "raw:hello", RK_REWARD_ERROR, "answer"},
    {"no results", "", "raw:{}", RK_REWARD_ERROR, "expected {\"results\": [...]}"},
    {"no result", "", "raw:{\"results\": []}", RK_REWARD_ERROR, "lacks this item"},
    {"another id", "", "raw:{\"results\": [{\"id\": 99, \"score\": 1}]}", RK_REWARD_ERROR, "the item 99"},
    {"twice the id", "", "raw:{\"results\": [{\"id\": ID, \"skip\": true}, {\"id\": ID, \"score\": 1}]}",
     RK_REWARD_ERROR, "two answers for the item"},
    {"text as score", "", "raw:{\"results\": [{\"id\": ID, \"score\": \"1\"}]}", RK_REWARD_ERROR,
     "expected a number"},
    {"error of the scorer", "", "raw:{\"results\": [{\"id\": ID, \"error\": \"no such unit\"}]}",
     RK_REWARD_ERROR, "no such unit"},
    {"oversize", "", "huge", RK_REWARD_ERROR, "longer than 1048576 bytes"},
    {"connection closed", "\"max_retries\": 0", "hangup", RK_REWARD_ERROR, "mpty reply"},
};

static void test_http_bad_answer_fails_its_item(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(bad_answers); i++) {
        struct rk_reward_result result;

        print_message("  %s\n", bad_answers[i].label);
        score_one(port, bad_answers[i].config, bad_answers[i].text, &result);
        assert_int_equal(result.outcome, bad_answers[i].outcome);
        if (!strstr(result.message, bad_answers[i].message))
            fail_msg("%s: the message is '%s'", bad_answers[i].label, result.message);
        rk_reward_results_fini(&result, 1);
    }
}

/* Goal: requests to a busy or restarting server are retried without failures; items of an unreachable server
 * fail. */
static void test_http_requests_are_repeated(void **state)
{
    struct rk_reward_result result;

    (void)state;
    score_one(port, "", "flaky:3", &result);
    assert_int_equal(result.outcome, RK_REWARD_SCORED);
    assert_true(result.score == 4.0);
    rk_reward_results_fini(&result, 1);
    score_one(1, "\"max_retries\": 1", "score:1", &result);
    assert_int_equal(result.outcome, RK_REWARD_ERROR);
    assert_non_null(strstr(result.message, "connect"));
    rk_reward_results_fini(&result, 1);
}

static void test_http_token_is_sent(void **state)
{
    char *path = rk_test_temp_path("token");
    struct rk_reward_result result;

    (void)state;
    rk_test_write_file(path, "secret\n", 7);
    assert_int_equal(chmod(path, 0600), 0);
    score_one(port, "\"token_file\": \"token\"", "token:Bearer secret", &result);
    assert_true(result.score == 1.0);
    rk_reward_results_fini(&result, 1);
    score_one(port, "\"token_file\": \"token\", \"user\": \"me\"", "token:Basic bWU6c2VjcmV0", &result);
    assert_true(result.score == 1.0); /* base64 of me:secret */
    rk_reward_results_fini(&result, 1);
    rk_free(path);
}

static bool after_some(void *user)
{
    return --*(int *)user < 0;
}

static void test_http_interrupt_ends_the_phase_at_once(void **state)
{
    struct rk_reward_item item = item_of("slow:30");
    int looks = 3;
    struct rk_reward_watch watch = {.is_cancelled = after_some, .user = &looks};
    struct rk_reward_result result;
    struct rk_reward *reward;
    int64_t began_ns = rk_time_now_ns();

    (void)state;
    assert_ok(open_http(&reward, port, ""));
    assert_code(rk_reward_score(reward, &item, 1, &result, &watch), RK_CANCELLED);
    assert_true(rk_time_now_ns() - began_ns < 2000000000LL);
    rk_reward_results_fini(&result, 1);
    rk_reward_destroy(reward);
}

static const struct {
    const char *label, *config;
    rk_code_t code;
    const char *message;
} bad_configs[] = {
    {"no url", "{\"name\": \"http\"}", RK_INVALID_ARGUMENT, "reward.url"},
    {"file", "{\"name\": \"http\", \"url\": \"file:///etc/passwd\"}", RK_INVALID_ARGUMENT, "reward.url"},
    {"password", "{\"name\": \"http\", \"url\": \"http://me:secret@a/b\"}", RK_INVALID_ARGUMENT,
     "reward.url: a user or password"},
    {"user without a password", "{\"name\": \"http\", \"url\": \"http://a/@\", \"user\": \"me\"}",
     RK_INVALID_ARGUMENT, "reward.user: expected with reward.token_file"},
    {"max_concurrent", "{\"name\": \"http\", \"url\": \"http://a\", \"max_concurrent\": 0}",
     RK_INVALID_ARGUMENT, "reward.max_concurrent"},
    {"max_retries", "{\"name\": \"http\", \"url\": \"http://a\", \"max_retries\": -1}", RK_INVALID_ARGUMENT,
     "reward.max_retries"},
    {"batch_size", "{\"name\": \"http\", \"url\": \"http://a\", \"batch_size\": 0}", RK_INVALID_ARGUMENT,
     "reward.batch_size"},
    {"timeout", "{\"name\": \"http\", \"url\": \"http://a\", \"timeout\": \"1\"}", RK_INVALID_ARGUMENT,
     "reward.timeout"},
    {"missing token", "{\"name\": \"http\", \"url\": \"http://a\", \"token_file\": \"/nonexistent\"}",
     RK_NOT_FOUND, "reward.token_file"},
    {"open token", "{\"name\": \"http\", \"url\": \"http://a\", \"token_file\": \"open\"}",
     RK_INVALID_ARGUMENT, "expected 0600"},
    {"header in a token", "{\"name\": \"http\", \"url\": \"http://a\", \"token_file\": \"blank\"}",
     RK_INVALID_ARGUMENT, "printable ASCII"},
};

static void write_token(const char *name, const char *text, mode_t mode)
{
    char *path = rk_test_temp_path(name);

    rk_test_write_file(path, text, strlen(text));
    assert_int_equal(chmod(path, mode), 0);
    rk_free(path);
}

static void test_http_bad_config_is_refused(void **state)
{
    (void)state;
    write_token("open", "secret", 0644);
    write_token("blank", "a b", 0600);
    for (size_t i = 0; i < RK_ARRAY_LEN(bad_configs); i++) {
        struct rk_reward *reward = NULL;
        struct rk_json *config;

        print_message("  %s\n", bad_configs[i].label);
        assert_ok(rk_json_parse(&config, bad_configs[i].config, strlen(bad_configs[i].config), "test", 0));
        assert_fails(rk_reward_create(&reward, config, rk_test_temp_dir()), bad_configs[i].code,
                     bad_configs[i].message);
        rk_json_free(config);
    }
}

static int start_server(void **state)
{
    char *out;

    (void)state;
    server = rk_proc_start((const char *const[]){RK_TEST_PYTHON, SERVER, NULL});
    rk_proc_wait_output(server, "ready", SERVER_TIMEOUT);
    out = rk_proc_stdout(server);
    port = (int)strtol(out + strlen("port "), NULL, 10);
    rk_free(out);
    return port > 0 ? 0 : 1;
}

static int stop_server(void **state)
{
    (void)state;
    rk_proc_destroy(server);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_http_every_item_gets_its_own_answer),
        cmocka_unit_test(test_http_bad_answer_fails_its_item),
        cmocka_unit_test(test_http_requests_are_repeated),
        cmocka_unit_test(test_http_token_is_sent),
        cmocka_unit_test(test_http_interrupt_ends_the_phase_at_once),
        cmocka_unit_test(test_http_bad_config_is_refused),
    };

    return cmocka_run_group_tests(tests, start_server, stop_server);
}
