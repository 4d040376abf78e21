#include "rl/flows/flow_dump_internal.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "tests/support/test.h"

static struct rk_status *dump_one(const char *dir, const struct rk_json *truth)
{
    static const int64_t ids[] = {5, 6}, mask[] = {1, 0};
    static const float log_probs[] = {-0.5f, 0.0f};
    const struct rk_reward_item item = {.prompt = "1 2",
                                        .prompt_bytes = 3,
                                        .solution_str = "3",
                                        .solution_bytes = 1,
                                        .ground_truth = "[3]",
                                        .ground_truth_json = truth};
    const struct rk_reward_result result = {.score = 1.0};
    const struct rk_dump_row row = {.item = &item,
                                    .result = &result,
                                    .uid = "7-0_0_0",
                                    .width = 2,
                                    .ids = ids,
                                    .mask = mask,
                                    .log_probs = log_probs};
    struct rk_dump dump;
    struct rk_status *st = rk_dump_open(&dump, dir, 7);

    if (!st)
        st = rk_dump_append(&dump, &row);
    if (!st)
        st = rk_dump_finish(&dump);
    rk_dump_fini(&dump);
    return st;
}

static void test_dump_is_complete_or_not_there(void **state)
{
    char *dir = rk_test_temp_path("dumps"), *path = rk_format("%s/7.jsonl", dir), *text;
    char *temp = rk_format("%s.tmp", path);
    struct rk_json *line, *truth = rk_json_new_array();
    size_t bytes;

    (void)state;
    rk_json_append(truth, rk_json_new_int(3));
    assert_ok(dump_one(dir, truth));
    assert_int_not_equal(access(temp, F_OK), 0);
    text = rk_test_read_file(path, &bytes);
    assert_ok(rk_json_parse(&line, text, bytes, "line", 0));
    assert_string_equal(rk_json_as_string(rk_json_find(line, "output"), ""), "3");
    assert_int_equal(rk_json_as_int(rk_json_find(line, "step"), 0), 7);
    assert_true(rk_json_equal(rk_json_find(line, "gts"), truth));
    assert_int_equal(rk_json_count(rk_json_find(line, "response_ids")), 1);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0777), 0); /* makes creating a file of this name fail */
    assert_code(dump_one(dir, truth), RK_INVALID_ARGUMENT);
    assert_int_not_equal(access(temp, F_OK), 0);
    rk_json_free(truth);
    rk_json_free(line);
    rk_free(text);
    rk_free(temp);
    rk_free(path);
    rk_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_dump_is_complete_or_not_there)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
