/* The reward python: the shim of share/rankd/python with valid and invalid functions of verl's and TRL's
 * form. */
#include "rl/rk_reward.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/support/test.h"

static const char code[] =
    "import asyncio, os, sys\n"
    "print('noise at import')\n"
    "def compute_score(data_source, solution_str, ground_truth, extra_info=None, bonus=0):\n"
    "    print('{\"id\": 0, \"score\": 99}')\n" /* must not be taken for an answer */
    "    os.system('echo noise of a child')\n"
    "    if solution_str == 'raise':\n"
    "        raise ValueError('no such unit')\n"
    "    if solution_str == 'none':\n"
    "        return None\n"
    "    if solution_str == 'nan':\n"
    "        return float('nan')\n"
    "    if solution_str == 'text':\n"
    "        return 'x'\n"
    "    if solution_str == 'exit':\n"
    "        os._exit(3)\n"
    "    if solution_str == 'dict':\n"
    "        return {'score': 0.5, 'acc': True, 'pred': ground_truth, 'turns': extra_info['num_turns'], "
    "'list': [1], 'huge': 10 ** 400, 'not a number': float('nan'), 'empty': None, 5: 1}\n"
    "    if solution_str == 'no score':\n"
    "        return {'acc': 1}\n"
    "    return len(solution_str) + bonus + extra_info.get('more', 0)\n"
    "async def wait(data_source, solution_str, ground_truth, extra_info):\n"
    "    await asyncio.sleep(0.3)\n"
    "    return 1\n"
    "def batch(data_sources, solution_strs, ground_truths, extra_infos, bonus):\n"
    "    assert len(data_sources) == len(ground_truths) == len(extra_infos)\n"
    "    return [{'score': bonus + (s == g), 'of': len(solution_strs)}\n"
    "            for s, g in zip(solution_strs, ground_truths)]\n"
    "def trl(prompts, completions, ground_truth, more):\n"
    "    assert len(prompts) == len(completions) == len(more)\n"
    "    return [None if c == 'none' else float(c == t) + (m or 0)\n"
    "            for c, t, m in zip(completions, ground_truth, more)]\n"
    "def chat(prompts, completions, completion_ids, **columns):\n"
    "    assert sorted(columns) == ['answer', 'data_source', 'ground_truth', 'level', 'split'], "
    "sorted(columns)\n"
    "    assert [c[0]['role'] for c in completions] == ['assistant'] * len(prompts)\n"
    "    assert prompts[0][-1] == {'role': 'user', 'content': 'question'}\n"
    "    assert columns['ground_truth'] == [42] and columns['answer'] == [{'x': [1]}]\n"
    "    assert columns['level'] == ['of the row'] and columns['split'] == ['train']\n"
    "    return [float(c[0]['content'] == 'right') + sum(i) for c, i in zip(completions, completion_ids)]\n"
    "def typed(data_source, solution_str, ground_truth, extra_info):\n"
    "    return {'score': 1, 'type': type(ground_truth).__name__, 'extra': type(extra_info).__name__}\n"
    "def names_of_its_own(data, answer):\n"
    "    return 1\n"
    "def short(completions, **kwargs):\n"
    "    return [1.0] * (len(completions) - 1)\n"
    "not_a_function = 7\n";

/* `function`: members of custom_reward_function; `more`: members outside it. */
static struct rk_status *open_python(struct rk_reward **out, const char *function, const char *more)
{
    char *text = rk_format("{\"name\": \"python\", \"num_workers\": 1, \"max_failed_ratio\": 1, "
                           "\"custom_reward_function\": {%s}%s%s}",
                           function, *more ? ", " : "", more);
    struct rk_json *config = NULL;
    struct rk_status *st;

    assert_ok(rk_json_parse(&config, text, strlen(text), "test", 0));
    st = rk_reward_create(out, config, rk_test_temp_dir());
    rk_json_free(config);
    rk_free(text);
    return st;
}

static struct rk_reward_item item_of(const char *solution, const struct rk_json *extra_info)
{
    return (struct rk_reward_item){.data_source = "src",
                                   .prompt = "question",
                                   .prompt_bytes = strlen("question"),
                                   .solution_str = solution,
                                   .solution_bytes = strlen(solution),
                                   .ground_truth = "right",
                                   .extra_info = extra_info};
}

static const struct {
    const char *solution;
    rk_reward_outcome_t outcome;
    double score;
    const char *message;
} verl_cases[] = {
    {"four", RK_REWARD_SCORED, 4 + 2 + 10, NULL},
    {"", RK_REWARD_SCORED, 0 + 2 + 10, NULL},
    {"dict", RK_REWARD_SCORED, 0.5, NULL},
    {"raise", RK_REWARD_ERROR, 0, "ValueError: no such unit ("},
    {"none", RK_REWARD_SKIPPED, 0, "skipped"},
    {"nan", RK_REWARD_ERROR, 0, "expected a finite number"},
    {"text", RK_REWARD_ERROR, 0, "expected a number"},
    {"no score", RK_REWARD_ERROR, 0, "has no 'score'"},
    {"exit", RK_REWARD_CRASH, 0, "exited with code 3"},
    {"after", RK_REWARD_SCORED, 5 + 2 + 10, NULL},
};

/* Goal: results of every kind, arguments as in verl, and no interference from the function's prints or child
 * processes. */
static void test_python_verls_function_scores_and_fails_item_by_item(void **state)
{
    enum { COUNT = RK_ARRAY_LEN(verl_cases) };
    struct rk_json *extra_info = rk_json_new_object();
    struct rk_reward_item items[COUNT];
    struct rk_reward_result results[COUNT];
    struct rk_reward *reward;

    (void)state;
    rk_json_set(extra_info, "more", rk_json_new_int(10));
    for (int i = 0; i < COUNT; i++)
        items[i] = item_of(verl_cases[i].solution, extra_info);
    assert_ok(open_python(&reward, "\"path\": \"score.py\", \"reward_kwargs\": {\"bonus\": 2}", ""));
    assert_ok(rk_reward_score(reward, items, COUNT, results, NULL));
    for (int i = 0; i < COUNT; i++) {
        print_message("  %s\n", verl_cases[i].solution);
        assert_int_equal(results[i].outcome, verl_cases[i].outcome);
        assert_true(results[i].score == verl_cases[i].score);
        if (verl_cases[i].message && !strstr(results[i].message, verl_cases[i].message))
            fail_msg("the message is '%s'", results[i].message);
    }
    assert_non_null(strstr(results[3].message, "score.py:7, in compute_score)"));
    assert_string_equal(rk_json_as_string(rk_json_find(results[2].extra, "pred"), ""), "right");
    assert_true(rk_json_as_real(rk_json_find(results[2].extra, "acc"), 0) == 1.0);
    assert_true(rk_json_as_real(rk_json_find(results[2].extra, "turns"), 0) == 2.0);
    assert_true(rk_json_as_real(rk_json_find(results[2].extra, "5"), 0) == 1.0);
    assert_int_equal(rk_json_count(results[2].extra), 4);
    assert_string_equal(results[2].ignored, "'list', 'huge', 'not a number'");
    rk_reward_results_fini(results, COUNT);
    rk_reward_destroy(reward);
    rk_json_free(extra_info);
}

/* Goal: coroutines of a batch run together: 10 waits of 0.3 s complete within the timeout of one item. */
static void test_python_coroutines_of_a_batch_run_together(void **state)
{
    enum { COUNT = 10 };
    struct rk_reward_item items[COUNT];
    struct rk_reward_result results[COUNT];
    struct rk_reward *reward;

    (void)state;
    for (int i = 0; i < COUNT; i++)
        items[i] = item_of("x", NULL);
    assert_ok(open_python(&reward, "\"path\": \"file://score.py\", \"name\": \"wait\"",
                          "\"batch_size\": 10, \"timeout\": \"2500ms\""));
    assert_ok(rk_reward_score(reward, items, COUNT, results, NULL));
    for (int i = 0; i < COUNT; i++)
        assert_true(results[i].score == 1.0);
    rk_reward_results_fini(results, COUNT);
    rk_reward_destroy(reward);
}

/* Goal: the function of verl's reward manager "batch" gets lists, and returns what compute_score may return.
 */
static void test_python_verls_batch_function_gets_lists(void **state)
{
    struct rk_reward_item items[3] = {item_of("right", NULL), item_of("wrong", NULL), item_of("right", NULL)};
    struct rk_reward_result results[3];
    struct rk_reward *reward;

    (void)state;
    assert_ok(open_python(&reward,
                          "\"path\": \"score.py\", \"name\": \"batch\", \"reward_kwargs\": {\"bonus\": 2}",
                          "\"style\": \"verl_batch\", \"batch_size\": 3"));
    assert_ok(rk_reward_score(reward, items, 3, results, NULL));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(results[i].outcome, RK_REWARD_SCORED);
        assert_true(results[i].score == (i == 1 ? 2.0 : 3.0));
        assert_true(rk_json_as_real(rk_json_find(results[i].extra, "of"), 0.0) >= 1.0);
    }
    rk_reward_results_fini(results, 3);
    rk_reward_destroy(reward);
}

static void test_python_trls_function_gets_lists(void **state)
{
    struct rk_json *extra_info = rk_json_new_object();
    struct rk_reward_item items[4] = {item_of("right", NULL), item_of("wrong", NULL), item_of("none", NULL),
                                      item_of("right", extra_info)};
    static const double expected[4] = {1.0, 0.0, 0.0, 3.0};
    struct rk_reward_result results[4];
    struct rk_reward *reward;

    (void)state;
    rk_json_set(extra_info, "more", rk_json_new_int(2));
    assert_ok(open_python(&reward, "\"path\": \"score.py\", \"name\": \"trl\"",
                          "\"style\": \"trl\", \"batch_size\": 4"));
    assert_ok(rk_reward_score(reward, items, 4, results, NULL));
    for (int i = 0; i < 4; i++) {
        assert_int_equal(results[i].outcome, i == 2 ? RK_REWARD_SKIPPED : RK_REWARD_SCORED);
        assert_true(results[i].score == expected[i]);
    }
    rk_reward_results_fini(results, 4);
    rk_reward_destroy(reward);
    rk_json_free(extra_info);
}

/* Goal: a prompt of messages gives TRL's conversational form; columns are those of the row, then those of
 * verl's members. */
static void test_python_trls_function_gets_messages_ids_and_columns(void **state)
{
    static const char row[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"question\"}], \"truth\": 42, "
        "\"columns\": {\"answer\": {\"x\": [1]}, \"level\": \"of the row\", "
        "\"prompt\": \"not a column\"}, "
        "\"extra\": {\"level\": 7, \"split\": \"train\"}}";
    static const int32_t ids[] = {3, 4, 5};
    struct rk_reward_item item = item_of("right", NULL);
    struct rk_reward_result result;
    struct rk_json *json = NULL;
    struct rk_reward *reward;

    (void)state;
    assert_ok(rk_json_parse(&json, row, strlen(row), "row", 0));
    item.messages = rk_json_find(json, "messages");
    item.columns = rk_json_find(json, "columns");
    item.extra_info = rk_json_find(json, "extra");
    item.ground_truth = "42";
    item.ground_truth_json = rk_json_find(json, "truth");
    item.completion_ids = ids;
    item.num_completion_ids = RK_ARRAY_LEN(ids);
    assert_ok(open_python(&reward, "\"path\": \"score.py\", \"name\": \"chat\"", "\"style\": \"trl\""));
    assert_ok(rk_reward_score(reward, &item, 1, &result, NULL));
    if (result.message)
        fail_msg("the message is '%s'", result.message);
    assert_true(result.score == 1 + 3 + 4 + 5);
    rk_reward_results_fini(&result, 1);
    rk_reward_destroy(reward);
    rk_json_free(json);
}

static const struct {
    const char *value, *type;
} truths[] = {
    {"42", "int"},    {"0.5", "float"}, {"[\"a\", 1]", "list"}, {"{\"target\": [\"6\"]}", "dict"},
    {"true", "bool"}, {"\"6\"", "str"}, {"null", "NoneType"},
};

/* Goal: values keep their JSON types on the way to the function. */
static void test_python_values_keep_their_types(void **state)
{
    struct rk_reward *reward;

    (void)state;
    assert_ok(open_python(&reward, "\"path\": \"score.py\", \"name\": \"typed\"", ""));
    for (size_t i = 0; i < RK_ARRAY_LEN(truths); i++) {
        struct rk_reward_item item = item_of("x", NULL);
        struct rk_reward_result result;
        char *text = rk_format("[%s]", truths[i].value);
        struct rk_json *json = NULL;

        print_message("  %s\n", truths[i].value);
        assert_ok(rk_json_parse(&json, text, strlen(text), "truth", 0));
        item.ground_truth_json = rk_json_at(json, 0);
        item.extra_info = json; /* no object: passed as it is */
        assert_ok(rk_reward_score(reward, &item, 1, &result, NULL));
        assert_int_equal(result.outcome, RK_REWARD_SCORED);
        assert_string_equal(rk_json_as_string(rk_json_find(result.extra, "type"), ""), truths[i].type);
        assert_string_equal(rk_json_as_string(rk_json_find(result.extra, "extra"), ""), "list");
        rk_reward_results_fini(&result, 1);
        rk_json_free(json);
        rk_free(text);
    }
    rk_reward_destroy(reward);
}

static void test_python_trls_function_of_the_wrong_length_fails_the_items(void **state)
{
    struct rk_reward_item items[2] = {item_of("a", NULL), item_of("b", NULL)};
    struct rk_reward_result results[2];
    struct rk_reward *reward;

    (void)state;
    assert_ok(open_python(&reward, "\"path\": \"score.py\", \"name\": \"short\"",
                          "\"style\": \"trl\", \"batch_size\": 2"));
    assert_ok(rk_reward_score(reward, items, 2, results, NULL));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(results[i].outcome, RK_REWARD_ERROR);
        assert_non_null(strstr(results[i].message, "scores for"));
    }
    rk_reward_results_fini(results, 2);
    rk_reward_destroy(reward);
}

static const struct {
    const char *function, *message;
} bad_functions[] = {
    {"\"path\": \"missing.py\"", "custom_reward_function.path: there is no file"},
    {"\"path\": \"score.py\", \"name\": \"missing\"", "has no function 'missing'"},
    {"\"path\": \"score.py\", \"name\": \"not_a_function\"", "has no function 'not_a_function'"},
    {"\"path\": \"broken.py\"", "SyntaxError"},
    {"\"path\": \"leaves.py\"", "SystemExit"},
    {"\"path\": \"pkg://no_such_module\"", "no_such_module"},
    {"\"path\": \"score.py\", \"name\": \"names_of_its_own\"",
     "names_of_its_own(data, answer) cannot be called with data_source, solution_str, ground_truth, "
     "extra_info: "},
    {"\"path\": \"score.py\", \"reward_kwargs\": {\"malus\": 1}", "unexpected keyword argument 'malus'"},
};

static void test_python_function_that_does_not_load_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(bad_functions); i++) {
        struct rk_reward *reward = NULL;

        assert_fails(open_python(&reward, bad_functions[i].function, ""), RK_FAILED_PRECONDITION,
                     bad_functions[i].message);
        assert_null(reward);
    }
}

static void write_code(const char *name, const char *text)
{
    char *path = rk_test_temp_path(name);

    rk_test_write_file(path, text, strlen(text));
    rk_free(path);
}

static int write_modules(void **state)
{
    (void)state;
    write_code("score.py", code);
    write_code("broken.py", "def f(:\n");
    write_code("leaves.py", "import sys\nsys.exit(1)\n");
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_python_verls_function_scores_and_fails_item_by_item),
        cmocka_unit_test(test_python_coroutines_of_a_batch_run_together),
        cmocka_unit_test(test_python_verls_batch_function_gets_lists),
        cmocka_unit_test(test_python_trls_function_gets_lists),
        cmocka_unit_test(test_python_trls_function_gets_messages_ids_and_columns),
        cmocka_unit_test(test_python_values_keep_their_types),
        cmocka_unit_test(test_python_trls_function_of_the_wrong_length_fails_the_items),
        cmocka_unit_test(test_python_function_that_does_not_load_is_refused),
    };

    return cmocka_run_group_tests(tests, write_modules, NULL);
}
