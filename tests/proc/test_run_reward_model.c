/* Reward models in whole runs: the score of each response equals that of the engine in this process for the
 * model's input text, in the policy's tokens or in its own. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "text/rk_tokenizer.h"
#include "tests/proc/cli_fixture.h"
#include "tests/support/models.h"

#define ACTOR      "actor_rollout_ref.actor."
#define RM         "reward.reward_model."
#define TP         "megatron.tensor_model_parallel_size="
#define CP         "megatron.context_parallel_size="
#define FILTER     "algorithm.filter_groups."
#define KEYS_MAX   24
#define TOKENS_MAX 96
#define NUM_LINES  16 /* of a dump: 4 prompts of 4 responses */

#define CONFIG(vocab_size)                                                                                  \
    "{\"architectures\": [\"LlamaForSequenceClassification\"], \"model_type\": \"llama\", \"num_labels\": " \
    "1, "                                                                                                   \
    "\"vocab_size\": " vocab_size                                                                           \
    ", \"hidden_size\": 16, \"intermediate_size\": 32, \"num_hidden_layers\": 2, "                          \
    "\"num_attention_heads\": 2, \"num_key_value_heads\": 2, \"max_position_embeddings\": 128, "            \
    "\"rms_norm_eps\": 1e-6, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\", \"initializer_range\": "    \
    "0.3, "                                                                                                 \
    "\"tie_word_embeddings\": false, \"torch_dtype\": \"float32\"}"

/* A model, and the format of its input of prompt and response. */
struct reward_kind {
    const char *name, *config, *tokenizer; /* below tests/ */
    const char *template; /* NULL: none; otherwise puts before, between and after around the texts */
    const char *before, *between, *after;
};

/* With the policy's tokenizer, and with another. */
static const struct reward_kind digits = {
    .name = "digits_rm", .config = CONFIG("14"), .tokenizer = "../examples/digits/tokenizer.json"};
static const struct reward_kind chat = {
    .name = "chat_rm",
    .config = CONFIG("424"),
    .tokenizer = "golden/tokenizers/qwen2.json",
    .template =
        "{% for turn in messages %}<|im_start|>{{ turn.role }}\n{{ turn.content }}<|im_end|>\n{% endfor %}",
    .before = "<|im_start|>user\n",
    .between = "<|im_end|>\n<|im_start|>assistant\n",
    .after = "<|im_end|>\n",
};

static const struct reward_kind broken = {
    .name = "broken_rm", .config = CONFIG("14"), .tokenizer = "../examples/digits/tokenizer.json"};

/* --- the models --- */

static void write_into(const char *dir, const char *name, const char *text)
{
    char *path = rk_path_join(dir, name);

    rk_test_write_file(path, text, strlen(text));
    rk_free(path);
}

/* A Hugging Face directory with random weights; rk_free. */
static char *make_reward_model(const struct reward_kind *kind)
{
    struct rk_test_model_spec spec = {
        .config = kind->config, .seed = 3, .head = "score", .dtype = RK_DTYPE_F32};
    char *dir = rk_test_temp_path(kind->name), *path = rk_test_fixture_path(kind->tokenizer);
    char *tokenizer = rk_test_read_file(path, NULL);
    struct rk_test_model test;
    struct stat info;

    if (stat(dir, &info) != 0) {
        assert_ok(rk_test_model_open(&test, &spec));
        assert_ok(rk_model_export_hf(test.model, dir, 0, NULL));
        rk_test_model_close(&test);
        write_into(dir, "tokenizer.json", tokenizer);
        if (kind->template)
            write_into(dir, "chat_template.jinja", kind->template);
    }
    rk_free(tokenizer);
    rk_free(path);
    return dir;
}

/* Sets weights of the score head whose sums overflow. */
static void break_scores(const char *dir)
{
    static const char offsets[] = "\"data_offsets\":[";
    char *path = rk_path_join(dir, "model.safetensors"), *text, *end;
    const float huge = FLT_MAX;
    uint64_t header_bytes;
    size_t bytes, begin, stop;

    text = rk_test_read_file(path, &bytes);
    memcpy(&header_bytes, text, sizeof(header_bytes));
    end = strstr(strstr(text + sizeof(header_bytes), "\"score.weight\""), offsets) + sizeof(offsets) - 1;
    begin = strtoull(end, &end, 10);
    stop = strtoull(end + 1, NULL, 10);
    assert_true(begin < stop);
    for (size_t at = begin; at < stop; at += sizeof(huge))
        memcpy(text + sizeof(header_bytes) + header_bytes + at, &huge, sizeof(huge));
    rk_test_write_file(path, text, bytes);
    rk_free(text);
    rk_free(path);
}

/* Computes scores in this process. */
struct judge {
    const struct reward_kind *kind;
    struct rk_test_model test;
    struct rk_tokenizer *tokenizer;
    int64_t max_length;
};

static void judge_open(struct judge *judge, const struct reward_kind *kind, const char *dir,
                       int64_t max_length)
{
    struct rk_test_model_spec spec = {.dir = dir, .head = "score", .dtype = RK_DTYPE_F32};
    char *path = rk_path_join(dir, "tokenizer.json");

    *judge = (struct judge){.kind = kind, .max_length = max_length};
    assert_ok(rk_test_model_open(&judge->test, &spec));
    assert_ok(rk_tokenizer_create_file(&judge->tokenizer, path));
    rk_free(path);
}

static void judge_close(struct judge *judge)
{
    rk_tokenizer_destroy(judge->tokenizer);
    rk_test_model_close(&judge->test);
}

/* Appends the tokens of a text. */
static void encode(struct judge *judge, const char *text, int32_t *ids, int64_t *count)
{
    struct rk_tokenizer_ids some = {0};

    assert_ok(rk_tokenizer_encode(judge->tokenizer, text, strlen(text), false, &some));
    assert_true(*count + some.count <= TOKENS_MAX);
    memcpy(ids + *count, some.items, (size_t)some.count * sizeof(*ids));
    *count += some.count;
    rk_free(some.items);
}

/* The score of a dumped line. */
static double expected_score(struct judge *judge, const struct rk_json *line)
{
    const struct reward_kind *kind = judge->kind;
    const char *input = rk_json_as_string(rk_json_find(line, "input"), NULL);
    const struct rk_json *response = rk_json_find(line, "response_ids");
    int32_t ids[TOKENS_MAX];
    int64_t count = 0;
    double score;

    assert_non_null(input);
    if (kind->template) {
        char *text = rk_format("%s%s%s%s%s", kind->before, input, kind->between,
                               rk_json_as_string(rk_json_find(line, "output"), ""), kind->after);

        encode(judge, text, ids, &count);
        rk_free(text);
    } else {
        encode(judge, input, ids, &count);
        for (int64_t i = 0; i < rk_json_count(response); i++)
            ids[count++] = (int32_t)rk_json_as_int(rk_json_at(response, i), -1);
    }
    assert_ok(rk_test_score(&score, &judge->test, ids, RK_MIN(count, judge->max_length)));
    return score;
}

/* --- runs --- */

static const struct run_case {
    const char *label;
    const struct reward_kind *kind;
    int num_daemons;
    double coef;
    bool has_function; /* reward.name=digits in addition to the model */
    int64_t max_length;
    const char *more[8]; /* NULL-terminated */
} run_cases[] = {
    {"grpo, the policy's tokens", &digits, 1, 1.0, false, TOKENS_MAX, {ACTOR TP "1"}},
    {"ppo, the policy's tokens, reward model tp 2 x dp 1",
     &digits,
     2,
     1.0,
     false,
     TOKENS_MAX,
     {ACTOR TP "1", RM TP "2", "algorithm.adv_estimator=gae", "critic.optim.lr=1e-4"}},
    {"grpo, tokens of its own, beside a function, reward model tp 2 x cp 2",
     &chat,
     4,
     0.5,
     true,
     TOKENS_MAX,
     {ACTOR TP "1", RM TP "2", RM CP "2", RM "coef=0.5", RM "max_length=96"}},
    {"ppo, tokens of its own, texts cut at 24 tokens, fixed micro-batches",
     &chat,
     2,
     1.0,
     false,
     24,
     {ACTOR TP "2", RM TP "1", RM "max_length=24", RM "use_dynamic_bsz=false",
      RM "micro_batch_size_per_gpu=3", "algorithm.adv_estimator=gae", "critic.optim.lr=1e-4"}},
    {"gdpo, the function and the model as two rewards",
     &digits,
     1,
     1.0,
     true,
     TOKENS_MAX,
     {ACTOR TP "1", "algorithm.adv_estimator=gdpo", "algorithm.gdpo_reward_keys=[\"acc\",\"rm_score\"]"}},
    {"groups that differ",
     &digits,
     2,
     -2.0,
     false,
     TOKENS_MAX,
     {ACTOR TP "1", RM "coef=-2", FILTER "enable=true", FILTER "metric=rm_score"}},
};

/* One step of the tiny job, with messages as prompts. */
static struct outcome run_in(const char *dir, const struct run_case *row, const char *model,
                             const char *const *more)
{
    char *rollout = rk_format("trainer.rollout_data_dir=%s/rollout", dir);
    char *val = rk_format("trainer.validation_data_dir=%s/val", dir),
         *data = rk_test_temp_path("chats.jsonl");
    char *files = rk_format("data.train_files=%s", data), *val_files = rk_format("data.val_files=%s", data);
    char *path = rk_format(RM "model_path=%s", model), *num_daemons = rk_format("%d", row->num_daemons);
    const char *keys[KEYS_MAX] = {"trainer.total_training_steps=1",
                                  RM "enable=true",
                                  path,
                                  rollout,
                                  val,
                                  files,
                                  val_files,
                                  "trainer.val_before_train=false",
                                  "actor_rollout_ref.model.custom_chat_template='{{ messages[0].content }}'",
                                  row->has_function ? "reward.name=digits" : "~reward.name"};
    struct rk_str text = {0};
    struct outcome outcome;

    for (int i = 0; i < 5; i++) /* a number of held-out prompts that is not a multiple of the replicas */
        rk_str_appendf(
            &text,
            "{\"data_source\": \"digits\", \"prompt\": [{\"role\": \"user\", \"content\": \"%d:9,1\"}], "
            "\"reward_model\": {\"ground_truth\": \"1,2\"}}\n",
            i);
    rk_test_write_file(data, rk_str_text(&text), text.bytes);
    append_args(keys, KEYS_MAX, row->more);
    outcome = run_tiny_job(dir, num_daemons, keys, more);
    rk_str_fini(&text);
    rk_free(num_daemons);
    rk_free(path);
    rk_free(val_files);
    rk_free(files);
    rk_free(data);
    rk_free(val);
    rk_free(rollout);
    return outcome;
}

static char *run_new(const struct run_case *row, const char *model, const char *const *more)
{
    char *dir = new_run_dir();
    struct outcome outcome = run_in(dir, row, model, more);

    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    return dir;
}

/* Checks every line of a dump; returns their number and sets the mean of the scores. */
static int64_t check_dump(struct judge *judge, const struct run_case *row, const char *dir, const char *file,
                          double *mean)
{
    char *path = rk_path_join(dir, file), *text = rk_test_read_file(path, NULL), *rest = text, *next;
    double least = INFINITY, most = -INFINITY;
    int64_t count = 0;

    *mean = 0.0;
    while ((next = strsep(&rest, "\n")) && *next) {
        struct rk_json *line = parse_json(next);
        double actual = metric(line, "rm_score"), expected = expected_score(judge, line);
        double score = row->coef * actual + (row->has_function ? metric(line, "acc") : 0.0);

        assert_below("rm_score", fabs(actual - expected), RK_TOL_F32_SUM * fmax(1.0, fabs(expected)));
        assert_below("score", fabs(metric(line, "score") - score), 1e-12);
        assert_int_equal(rk_json_find(line, "acc") != NULL, row->has_function);
        least = fmin(least, actual);
        most = fmax(most, actual);
        *mean += metric(line, "score");
        count++;
        rk_json_free(line);
    }
    assert_true(most - least > 1e-2); /* otherwise the check would pass for any text */
    *mean /= (double)count;
    rk_free(text);
    rk_free(path);
    return count;
}

/* Goal: in training the score of every response is the model's score of its text, for every layout and
 * algorithm, alone or added to a function's score; validation has these scores, too. */
static void test_reward_model_scores_the_texts(void **state)
{
    static const char *const validate[] = {"trainer.test_freq=1", NULL};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(run_cases); i++) {
        const struct run_case *row = &run_cases[i];
        char *model, *dir;
        struct rk_json *metrics;
        struct judge judge;
        double mean;

        print_message("%s\n", row->label);
        if (!has_devices(row->num_daemons)) {
            rk_test_skip_part("%s: needs %d GPUs", row->label, row->num_daemons);
            continue;
        }
        model = make_reward_model(row->kind);
        dir = run_new(row, model, validate);
        metrics = read_metrics(dir, 1);
        judge_open(&judge, row->kind, model, row->max_length);
        assert_int_equal(check_dump(&judge, row, dir, "rollout/1.jsonl", &mean), NUM_LINES);
        assert_below("critic/score/mean", fabs(metric(metrics, "critic/score/mean") - mean),
                     RK_TOL_F32_SUM * fmax(1.0, fabs(mean)));
        assert_int_equal(check_dump(&judge, row, dir, "val/1.jsonl", &mean), 5);
        assert_below("val",
                     fabs(metric(metrics, row->has_function ? "val-aux/digits/reward/mean@1"
                                                            : "val-core/digits/reward/mean@1") -
                          mean),
                     RK_TOL_F32_SUM * fmax(1.0, fabs(mean)));
        judge_close(&judge);
        rk_json_free(metrics);
        rk_free(dir);
        rk_free(model);
    }
}

/* Goal: the baseline of remax is the model's score of the greedy response: greedy samples have advantage
 * 0. */
static void test_reward_model_scores_the_baseline(void **state)
{
    static const struct run_case row = {
        "remax", &digits, 1, 1.0, false, TOKENS_MAX, {ACTOR TP "1", "algorithm.adv_estimator=remax"}};
    static const char *const cold[] = {"actor_rollout_ref.rollout.temperature=1e-5", NULL};
    static const char *const warm[] = {NULL};
    char *model = make_reward_model(&digits);

    (void)state;
    for (int i = 0; i < 2; i++) {
        char *dir = run_new(&row, model, i == 0 ? cold : warm);
        struct rk_json *metrics = read_metrics(dir, 1);
        double most = fmax(fabs(metric(metrics, "critic/advantages/max")),
                           fabs(metric(metrics, "critic/advantages/min")));

        assert_true(fabs(metric(metrics, "critic/score/mean")) > 1e-2);
        assert_true(i == 0 ? most < RK_TOL_F32_SUM : most > 1e-2);
        rk_json_free(metrics);
        rk_free(dir);
    }
    rk_free(model);
}

/* Goal: a non-finite score fails the run and names its row. */
static void test_reward_model_without_numbers_ends_the_run(void **state)
{
    static const struct run_case row = {"broken", &broken, 1, 1.0, false, TOKENS_MAX, {ACTOR TP "1"}};
    static const char *const more[] = {NULL};
    char *model = make_reward_model(&broken), *dir = new_run_dir();
    struct outcome outcome;

    (void)state;
    break_scores(model);
    outcome = run_in(dir, &row, model, more);
    assert_true(outcome.code != 0);
    assert_text("stderr", outcome.err, "rm_scores of row ");
    outcome_fini(&outcome);
    rk_free(dir);
    rk_free(model);
}

/* Goal: a directory that is not a reward model is rejected before a daemon is started. */
static void test_reward_model_without_a_score_head_is_refused(void **state)
{
    char *model = rk_test_temp_path("lm"), *path = rk_format(RM "model_path=%s", model), *dir = new_run_dir();
    const char *const args[] = {"run",       TINY_JOB,     "--run-dir",      dir,  TINY,
                                "--local=1", ACTOR TP "1", RM "enable=true", path, NULL};
    struct outcome outcome;

    (void)state;
    assert_int_equal(mkdir(model, 0700), 0);
    write_into(model, "config.json", "{\"architectures\": [\"LlamaForCausalLM\"], \"vocab_size\": 14}");
    outcome = run_rankctl(args);
    assert_exit(&outcome, 2);
    assert_text("stderr", outcome.err, "reward.reward_model.model_path");
    assert_text("stderr", outcome.err, "architectures=[\"LlamaForCausalLM\"]");
    outcome_fini(&outcome);
    rk_free(dir);
    rk_free(path);
    rk_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reward_model_scores_the_texts),
        cmocka_unit_test(test_reward_model_scores_the_baseline),
        cmocka_unit_test(test_reward_model_without_numbers_ends_the_run),
        cmocka_unit_test(test_reward_model_without_a_score_head_is_refused),
    };

    skip_without_devices(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
