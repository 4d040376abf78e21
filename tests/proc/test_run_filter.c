/* Runs that filter groups: the prompts of a batch, the position in the data, and the bounds of a step. */
#include <string.h>
#include <sys/stat.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/proc/cli_fixture.h"

#define FILTER    "algorithm.filter_groups."
#define ACTOR     "actor_rollout_ref.actor."
#define KEPT_ROWS 8 /* of a step: 4 groups of 2 */

/* One of two responses to a prompt with the truth "m" scores 1; those to others score 0. */
static const char script[] =
    "read -r hello && echo '{\"hello\": 2}'\n"
    "while read -r line; do id=${line#*'\"id\":'}; id=${id%%,*}\n"
    "case $line in *'\"ground_truth\":\"m\"'*) score=$((id % 2));; *) score=0;; esac\n"
    "echo '{\"id\": '$id', \"score\": '$score'}'; done\n";

struct job {
    char *keys[2]; /* data and reward */
};

/* Prompts with these truths, one letter each; prompt i is "i:9,1". */
static void open_job(struct job *job, const char *truths)
{
    char *data = rk_test_temp_path("prompts.jsonl"), *path = rk_test_temp_path("score.sh");
    struct rk_str text = {0};

    for (int i = 0; truths[i]; i++)
        rk_str_appendf(&text,
                       "{\"data_source\": \"digits\", \"prompt\": \"%d:9,%d\", \"reward_model\": "
                       "{\"ground_truth\": \"%c\"}}\n",
                       i / 10, i % 10, truths[i]);
    rk_test_write_file(data, rk_str_text(&text), text.bytes);
    rk_test_write_file(path, script, sizeof(script) - 1);
    job->keys[0] = rk_format("data.train_files=[\"%s\"]", data);
    job->keys[1] = rk_format("reward={\"name\": \"command\", \"command\": [\"sh\", \"%s\"], "
                             "\"num_workers\": 1}",
                             path);
    rk_str_fini(&text);
    rk_free(path);
    rk_free(data);
}

static void close_job(struct job *job)
{
    rk_free(job->keys[0]);
    rk_free(job->keys[1]);
}

static struct outcome run_in(const char *dir, const struct job *job, const char *const *more)
{
    const char *const keys[] = {ACTOR "megatron.tensor_model_parallel_size=1",
                                "actor_rollout_ref.rollout.n=2",
                                FILTER "enable=true",
                                FILTER "metric=acc",
                                job->keys[0],
                                job->keys[1],
                                NULL};

    return run_tiny_job(dir, "1", keys, more);
}

/* The prompts of a step's dump, one letter or digit each row. */
static void read_inputs(const char *dump, int64_t step, char inputs[KEPT_ROWS + 1])
{
    char *path = rk_format("%s/%lld.jsonl", dump, (long long)step);
    char *text = rk_test_read_file(path, NULL), *rest = text, *line;
    int count = 0;

    memset(inputs, 0, KEPT_ROWS + 1);
    while ((line = strsep(&rest, "\n")) && *line) {
        struct rk_json *json = parse_json(line);
        const char *input = rk_json_as_string(rk_json_find(json, "input"), "");

        assert_true(count < KEPT_ROWS);
        inputs[count++] = input[strlen(input) - 1];
        rk_json_free(json);
    }
    rk_free(text);
    rk_free(path);
}

static int64_t state_value(const char *dir, int64_t step, const char *path)
{
    char *name = rk_format("checkpoints/global_step_%lld/driver/MANIFEST.json", (long long)step);
    struct rk_json *manifest = read_json(dir, name);
    int64_t value = rk_json_as_int(rk_json_find_path(rk_json_find(manifest, "state"), path), -1);

    rk_json_free(manifest);
    rk_free(name);
    return value;
}

/* Runs two steps over 12 prompts with two more keys. `expected` are a step's evicted and surplus groups and
 * its generations; the batches have the same prompts whatever these are. */
static void check_two_steps(const char *dir, const char *const *more, const double (*expected)[3])
{
    char *dump = rk_path_join(dir, "dump"), *key = rk_format("trainer.rollout_data_dir=%s", dump);
    char inputs[KEPT_ROWS + 1];
    struct outcome outcome;
    struct job job;

    open_job(&job, "fmfmmmfmmmmm");
    outcome = run_in(dir, &job,
                     (const char *const[]){"data.shuffle=false", "trainer.total_training_steps=2", key,
                                           more[0], more[1], NULL});
    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    for (int64_t step = 1; step <= 2; step++) {
        struct rk_json *metrics = read_metrics(dir, step);

        assert_true(metric(metrics, "training/filter_groups/evicted_samples") == expected[step - 1][0]);
        assert_true(metric(metrics, "training/filter_groups/discarded_surplus_samples") ==
                    expected[step - 1][1]);
        assert_true(metric(metrics, "train/num_gen_batches") == expected[step - 1][2]);
        assert_true(metric(metrics, "critic/score/mean") == 0.5);
        rk_json_free(metrics);
    }
    read_inputs(dump, 1, inputs);
    assert_string_equal(inputs, "11334455");
    read_inputs(dump, 2, inputs);
    assert_string_equal(inputs, "88990011"); /* prompts 8 to 11 */
    close_job(&job);
    rk_free(key);
    rk_free(dump);
}

/* Goal: a case computed by hand. 2 of the 4 groups of a batch have equal scores, so 4 more prompts are
 * generated, 3 of which give groups with different scores; the oldest 4 of these 5 form the batch. The next
 * step uses the following prompts, and its samples have new random streams. */
static void test_filter_batch_is_filled_with_the_oldest_groups(void **state)
{
    char *dir = new_run_dir();

    (void)state;
    check_two_steps(dir, (const char *const[]){"trainer.save_freq=1", NULL},
                    (const double[2][3]){{3, 1, 2}, {0, 0, 1}});
    assert_int_equal(state_value(dir, 1, "data.next_row"), 8);
    assert_int_equal(state_value(dir, 1, "sampling.next_stream"), 16);
    assert_int_equal(state_value(dir, 2, "data.epoch"), 1);
    assert_int_equal(state_value(dir, 2, "data.next_row"), 0);
    assert_int_equal(state_value(dir, 2, "sampling.next_stream"), 24);
    rk_free(dir);
}

/* Goal: every generation has data.gen_batch_size prompts. The same rewards as above: 3 of the first 8 groups
 * and 2 of the next 8 (4 of them of the next epoch) have equal scores; verl 0.9.1's metric is the default. */
static void test_filter_generates_gen_batch_size_prompts(void **state)
{
    char *dir = new_run_dir();

    (void)state;
    check_two_steps(dir, (const char *const[]){"data.gen_batch_size=8", FILTER "metric=reward"},
                    (const double[2][3]){{3, 1, 1}, {2, 2, 1}});
    rk_free(dir);
}

/* Goal: a batch that is put together from several generations has the experts of its rows: in strict numerics
 * those that training chooses. */
static void test_filter_keeps_the_experts_of_each_row(void **state)
{
    char *dir = new_run_dir();
    struct rk_json *metrics;
    struct outcome outcome;
    struct job job;

    (void)state;
    open_job(&job, "fmfmmmfmmmmm");
    outcome = run_in(
        dir, &job,
        (const char *const[]){"data.shuffle=false", "trainer.total_training_steps=1", "numerics=strict",
                              "actor_rollout_ref.model.hf_config_path=" RK_TEST_SOURCE_DIR
                              "/examples/digits/config-moe.json",
                              ACTOR "megatron.router_replay.mode=R3", ACTOR "old_log_prob=recompute",
                              "actor_rollout_ref.rollout.enable_rollout_routing_replay=true", NULL});
    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    metrics = read_metrics(dir, 1);
    assert_true(metric(metrics, "train/num_gen_batches") == 2.0);
    assert_true(metric(metrics, "training/rollout_routes_diff_tokens") == 0.0);
    rk_json_free(metrics);
    close_job(&job);
    rk_free(dir);
}

/* Goal: four steps without interruption equal two steps and two more, bit for bit, for every position in the
 * data. */
static void test_filter_run_goes_on_bit_for_bit(void **state)
{
    static const char *const whole[] = {"trainer.total_training_steps=4", NULL};
    static const char *const half[] = {"trainer.total_training_steps=2", "trainer.save_freq=2", NULL};
    static const char *const rest[] = {"trainer.total_training_steps=4", "trainer.save_freq=2", NULL};
    static const char *const without[] = {"trainer.total_training_steps=5", "trainer.save_freq=2",
                                          FILTER "enable=false", NULL};
    char *dir = new_run_dir(), *straight = new_run_dir();
    struct outcome outcome;
    struct job job;

    (void)state;
    open_job(&job, "fmfmmmfmfmmf");
    for (int i = 0; i < 3; i++) {
        outcome = run_in(i == 0 ? straight : dir, &job, i == 0 ? whole : i == 1 ? half : rest);
        assert_exit(&outcome, 0);
        outcome_fini(&outcome);
    }
    assert_int_equal(count_metrics(dir), 4);
    for (int64_t step = 1; step <= 4; step++) {
        struct rk_json *metrics = read_metrics(dir, step), *expected = read_metrics(straight, step);

        assert_same_step(metrics, expected, step);
        rk_json_free(expected);
        rk_json_free(metrics);
    }
    assert_same_file(dir, straight, "hf/model.safetensors");
    outcome = run_in(dir, &job, without);
    assert_exit(&outcome, 2);
    assert_text("stderr", outcome.err, FILTER "enable: true in the checkpoint, false now");
    outcome_fini(&outcome);
    close_job(&job);
    rk_free(straight);
    rk_free(dir);
}

/* Goal: prompts whose scores never differ end the run within the bound; so does a metric that the reward does
 * not have. */
static void test_filter_without_signal_ends_the_run(void **state)
{
    static const struct {
        const char *key, *text;
        int code;
    } cases[] = {
        {FILTER "max_num_gen_batches=2", "2 generations of 8 prompts gave 0 groups", 1},
        {FILTER "max_num_gen_batches=0", "3 generations of 12 prompts gave 0 groups", 1},
        {FILTER "max_inflight_gen_batches=2", "2 generations of 12 prompts gave 0 groups", 1},
        {FILTER "metric=length", FILTER "metric=length: ", 2},
    };
    struct job job;

    (void)state;
    open_job(&job, "ffffffffffff");
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char *dir = new_run_dir();
        struct outcome outcome = run_in(dir, &job, (const char *const[]){cases[i].key, NULL});

        assert_exit(&outcome, cases[i].code);
        assert_text("stderr", outcome.err, "step 1, generate: ");
        assert_text("stderr", outcome.err, cases[i].text);
        outcome_fini(&outcome);
        rk_free(dir);
    }
    close_job(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_filter_batch_is_filled_with_the_oldest_groups),
        cmocka_unit_test(test_filter_generates_gen_batch_size_prompts),
        cmocka_unit_test(test_filter_keeps_the_experts_of_each_row),
        cmocka_unit_test(test_filter_run_goes_on_bit_for_bit),
        cmocka_unit_test(test_filter_without_signal_ends_the_run),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
