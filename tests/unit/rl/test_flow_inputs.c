/* The values that a flow reads from a model's configuration. */
#include "rl/flows/steps_internal.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/format/rk_safetensors.h"
#include "base/rk_str.h"
#include "rl/rk_job.h"
#include "proto/rk_methods.h"
#include "tests/support/test.h"

/* Lengths for the models of examples/digits, which have 64 positions. */
#define SHORT rk_strdup("data.max_prompt_length=8"), rk_strdup("data.max_response_length=8")

static void put_file(const char *dir, const char *name, const char *text)
{
    char *path = rk_path_join(dir, name);

    if (text)
        rk_test_write_file(path, text, strlen(text));
    else
        (void)unlink(path);
    rk_free(path);
}

/* config.json, an object, of a family that there is. */
static void put_config(const char *dir, const char *text)
{
    char *config =
        text ? rk_format("{\"model_type\": \"llama\"%s%s", text[1] == '}' ? "" : ", ", text + 1) : NULL;

    put_file(dir, "config.json", config);
    rk_free(config);
}

/* Files of a model, NULL: missing, and the ids that end a response. */
struct token_ids_case {
    const char *config, *generation, *tokenizer, *eos;
    int64_t pad_id;
};

static void check_token_ids(const char *dir, const struct token_ids_case *c, const struct rk_config *job)
{
    struct rk_flow_inputs inputs;
    char *eos;

    print_message("%s %s %s\n", c->config, c->generation ? c->generation : "-",
                  c->tokenizer ? c->tokenizer : "-");
    put_config(dir, c->config);
    put_file(dir, "generation_config.json", c->generation);
    put_file(dir, "tokenizer_config.json", c->tokenizer);
    assert_ok(rk_flow_inputs_load(&inputs, job, "/"));
    eos = rk_json_dump(inputs.eos_ids, 0, false);
    assert_string_equal(eos, c->eos);
    assert_int_equal(inputs.pad_id, c->pad_id);
    rk_free(eos);
    rk_flow_inputs_fini(&inputs);
}

/* Goal: the tokenizer's eos_token, generation_config.json and config.json all end a response, in this order
 * and each id once. An id of -1 means none, as in some configurations; a token that the tokenizer or the
 * model does not have ends nothing; padding falls back to the first end token, then to 0. */
static void test_flow_inputs_token_ids(void **state)
{
    static const struct token_ids_case cases[] = {
        {"{\"eos_token_id\": 3, \"pad_token_id\": 2}", NULL, NULL, "[3]", 2},
        {"{\"eos_token_id\": 3, \"pad_token_id\": -1}", NULL, NULL, "[3]", 3},
        {"{\"eos_token_id\": [4, 3], \"pad_token_id\": null}", NULL, NULL, "[4,3]", 4},
        {"{\"eos_token_id\": 3}", NULL, "{}", "[3]", 3},
        {"{\"eos_token_id\": -1, \"pad_token_id\": -1}", NULL, NULL, "[]", 0},
        {"{\"eos_token_id\": null}", NULL, NULL, "[]", 0},
        {"{}", NULL, NULL, "[]", 0},
        {"{\"eos_token_id\": 0}", NULL, "{\"eos_token\": \"<eos>\"}", "[1,0]", 1},
        {"{\"eos_token_id\": [5, 7, 1], \"pad_token_id\": 0}", NULL,
         "{\"eos_token\": {\"content\": \"<eos>\"}}", "[1,5,7]", 0},
        {"{\"eos_token_id\": 3}", "{\"eos_token_id\": [5, 7]}", "{\"eos_token\": \"<eos>\"}", "[1,5,7,3]", 1},
        {"{}", "{\"eos_token_id\": [5, -1]}", NULL, "[5]", 5},
        {"{}", NULL, "{\"eos_token\": \"<eos>\"}", "[1]", 1},
        {"{\"eos_token_id\": 3}", NULL, "{\"eos_token\": \"<|im_end|>\"}", "[3]", 3},
        {"{\"eos_token_id\": 0, \"vocab_size\": 1}", NULL, "{\"eos_token\": \"<eos>\"}", "[0]", 0},
    };
    static const char row[] = "{\"prompt\": \"<pad>\", \"reward_model\": {\"ground_truth\": \"1\"}}\n";
    char *dir = rk_test_temp_path("eos"), *data = rk_test_temp_path("data.jsonl");
    char *path = rk_test_fixture_path("../examples/digits/tokenizer.json"),
         *tokenizer = rk_test_read_file(path, NULL);
    char *const overrides[] = {rk_format("data.train_files=%s", data), rk_format(RK_JOB_MODEL "path=%s", dir),
                               rk_strdup("+reward.name=digits")};
    struct rk_flow_inputs inputs;
    struct rk_config *job;

    (void)state;
    assert_int_equal(mkdir(dir, 0755), 0);
    rk_test_write_file(data, row, strlen(row));
    put_file(dir, "tokenizer.json", tokenizer);
    assert_ok(rk_job_load(&job, NULL, (const char *const *)overrides, RK_ARRAY_LEN(overrides)));
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++)
        check_token_ids(dir, &cases[i], job);
    put_file(dir, "generation_config.json", "{\"eos_token_id\": [\"<eos>\"]}");
    assert_fails(
        rk_flow_inputs_load(&inputs, job, "/"), RK_INVALID_ARGUMENT,
        "generation_config.json: eos_token_id: expected an integer or a list of integers, got a string");
    rk_config_destroy(job);
    for (size_t i = 0; i < RK_ARRAY_LEN(overrides); i++)
        rk_free(overrides[i]);
    rk_free(tokenizer);
    rk_free(path);
    rk_free(data);
    rk_free(dir);
}

/* Goal: a chat template is the text of the file that the key names, which is relative to the job, or the text
 * itself; what is neither is refused, since every prompt would be that text. */
static void test_flow_inputs_template_is_a_file_or_its_text(void **state)
{
    static const struct {
        const char *value, *text, *error;
    } cases[] = {
        {"chat.jinja", "{{ messages[0].content }}!", NULL},
        {"{{ messages }}", "{{ messages }}", NULL},
        {"3,5:9{# messages #}", "3,5:9{# messages #}", NULL},
        {"plain.txt", NULL,
         "plain.txt': expected a Jinja template that writes the messages, got text without {{ ... }}"},
        {"chat.json", NULL, "chat.json': expected a file with the text of a Jinja template"},
        {"nul.jinja", NULL, "nul.jinja': the template contains NUL"},
        {"missing.jinja", NULL, "'missing.jinja': expected a file with a Jinja template, or the text of one"},
        {".", NULL, "is no regular file"},
        {"", NULL, "expected a file with a Jinja template"},
    };
    const char *dir = rk_test_temp_dir();
    char *nul = rk_path_join(dir, "nul.jinja");

    (void)state;
    put_file(dir, "chat.jinja", "{{ messages[0].content }}!");
    put_file(dir, "plain.txt", "chat.jinja\n");
    put_file(dir, "chat.json", "{\"chat_template\": \"{{ messages }}\"}");
    rk_test_write_file(nul, "{{ a }}\0b", 9);
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char *text, *path;
        struct rk_status *st = rk_flow_read_template(&text, &path, cases[i].value, dir);

        print_message("  %s\n", cases[i].value);
        if (cases[i].error) {
            assert_fails(st, RK_INVALID_ARGUMENT, cases[i].error);
        } else {
            assert_ok(st);
            assert_string_equal(text, cases[i].text);
            assert_int_equal(path != NULL, i == 0);
        }
        rk_free(text);
        rk_free(path);
    }
    rk_free(nul);
}

/* Goal: sequences are balanced by the operations of the model: of latents, and of the experts of a token. By
 * hand: attention of 49,152 weights, a router of 1,024 and two experts of 49,152; attention of 50,688 with
 * latents and an MLP of 98,304; 128 columns of attention. */
static void test_flow_inputs_workload(void **state)
{
    static const struct {
        const char *config;
        int64_t linear;
    } cases[] = {
        {"config-moe.json", (49152 + 1024 + 2 * 49152) / 128},
        {"config-mla.json", (50688 + 98304) / 128},
        {NULL, RK_FLOW_WORKLOAD_DEFAULT}, /* no sizes */
    };
    static const char row[] = "{\"prompt\": \"1\", \"reward_model\": {\"ground_truth\": \"1\"}}\n";
    char *data = rk_test_temp_path("data.jsonl");
    char *tokenizer = rk_test_fixture_path("../examples/digits/tokenizer.json");

    (void)state;
    put_config(rk_test_temp_dir(), "{}");
    rk_test_write_file(data, row, strlen(row));
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char *const overrides[] = {
            rk_format("data.train_files=%s", data),
            rk_format(RK_JOB_MODEL "hf_config_path=%s/%s",
                      cases[i].config ? RK_TEST_SOURCE_DIR "/examples/digits" : rk_test_temp_dir(),
                      cases[i].config ? cases[i].config : "config.json"),
            rk_format(RK_JOB_MODEL "tokenizer_path=%s", tokenizer), rk_strdup("+reward.name=digits"), SHORT};
        struct rk_flow_inputs inputs;
        struct rk_config *job;

        assert_ok(rk_job_load(&job, NULL, (const char *const *)overrides, RK_ARRAY_LEN(overrides)));
        assert_ok(rk_flow_inputs_load(&inputs, job, "/"));
        assert_int_equal(inputs.workload.linear, cases[i].linear);
        rk_flow_inputs_fini(&inputs);
        rk_config_destroy(job);
        for (size_t k = 0; k < RK_ARRAY_LEN(overrides); k++)
            rk_free(overrides[k]);
    }
    rk_free(tokenizer);
    rk_free(data);
}

/* A student of the digits example with a teacher in a directory of its own. */
struct teacher_fixture {
    char *dir, *data, *config, *tokenizer, *text; /* text: content of the student's tokenizer.json */
    char *overrides[10];
};

static void teacher_fixture_init(struct teacher_fixture *f, const char *dir)
{
    static const char row[] = "{\"prompt\": \"1\", \"reward_model\": {\"ground_truth\": \"1\"}}\n";
    char *path = rk_test_fixture_path("../examples/digits/tokenizer.json");

    f->dir = rk_test_temp_path(dir);
    f->data = rk_test_temp_path("data.jsonl");
    f->config = rk_path_join(f->dir, "config.json");
    f->tokenizer = rk_path_join(f->dir, "tokenizer.json");
    f->text = rk_test_read_file(path, NULL);
    f->overrides[0] = rk_format("data.train_files=%s", f->data);
    f->overrides[1] =
        rk_strdup(RK_JOB_MODEL "hf_config_path=" RK_TEST_SOURCE_DIR "/examples/digits/config.json");
    f->overrides[2] = rk_format(RK_JOB_MODEL "tokenizer_path=%s", path);
    f->overrides[3] = rk_strdup("+reward.name=digits");
    f->overrides[4] = rk_strdup("distillation.enabled=true");
    f->overrides[5] = rk_format(RK_JOB_TEACHER "model.path=%s", f->dir);
    f->overrides[6] = rk_strdup("distillation.distillation_loss.loss_mode=jsd_topk");
    f->overrides[7] = rk_strdup("distillation.distillation_loss.topk=13");
    f->overrides[8] = rk_strdup("data.max_prompt_length=8");
    f->overrides[9] = rk_strdup("data.max_response_length=8");
    rk_test_write_file(f->data, row, strlen(row));
    rk_free(path);
}

static void teacher_fixture_fini(struct teacher_fixture *f)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(f->overrides); i++)
        rk_free(f->overrides[i]);
    rk_free(f->text);
    rk_free(f->tokenizer);
    rk_free(f->config);
    rk_free(f->data);
    rk_free(f->dir);
}

/* Goal: a teacher whose vocabulary differs from the student's is refused with the file and the difference;
 * padding rows are not part of the vocabulary, and ids beyond the smaller vocabulary are not available. A
 * teacher that is not on this machine is checked by the daemons. Digits has 14 tokens. */
static void test_flow_inputs_teacher_has_the_vocabulary_of_the_student(void **state)
{
    static const struct {
        const char *size;
        const char *from, *to; /* in tokenizer.json */
        const char *message;   /* NULL: fine */
        int64_t limit;
    } cases[] = {
        {"14", NULL, NULL, NULL, 0},
        {"15", NULL, NULL, NULL, 14},
        {"13", NULL, NULL, "config.json: vocab_size: expected 14, that of the policy, got 13", 0},
        {"15", "", "NONE", "config.json: vocab_size: expected 14, that of the policy, got 15, and", 0},
        {"12", "", "NONE", "config.json: vocab_size: expected 14, that of the policy, got 12", 0},
        {"14", "", "NONE", NULL, 0},
        {"14", "\"7\": ", "\"x\": ", "token 9: expected \"7\"", 0},
        {"15", "\"7\": ", "\"x\": ", "token 9: expected \"7\"", 0},
        {"14", "\"7\": 9", "\"7\": 14", "expected 14 tokens", 0},
        {"14", "{", "", "tokenizer.json", 0},
    };
    struct rk_flow_inputs inputs;
    struct teacher_fixture f;
    struct rk_config *job;

    (void)state;
    teacher_fixture_init(&f, "teacher");
    assert_ok(rk_job_load(&job, NULL, (const char *const *)f.overrides, RK_ARRAY_LEN(f.overrides)));
    assert_ok(rk_flow_inputs_load(&inputs, job, "/"));
    assert_string_equal(rk_flow_own_model(&inputs, RK_ROLE_TEACHER), f.dir);
    rk_flow_inputs_fini(&inputs);
    assert_int_equal(mkdir(f.dir, 0700), 0);
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        const char *at = cases[i].from ? strstr(f.text, cases[i].from) : f.text;
        size_t skipped = cases[i].from ? strlen(cases[i].from) : 0;
        char *size = rk_format("{\"model_type\": \"llama\", \"vocab_size\": %s}", cases[i].size), *changed;

        print_message("%s, %s\n", cases[i].size, cases[i].to ? cases[i].to : "");
        assert_non_null(at);
        changed =
            rk_format("%.*s%s%s", (int)(at - f.text), f.text, cases[i].to ? cases[i].to : "", at + skipped);
        rk_test_write_file(f.config, size, strlen(size));
        rk_test_write_file(f.tokenizer, changed, strlen(changed));
        if (cases[i].to && strcmp(cases[i].to, "NONE") == 0)
            assert_int_equal(unlink(f.tokenizer), 0);
        if (cases[i].message)
            assert_fails(rk_flow_inputs_load(&inputs, job, "/"), RK_INVALID_ARGUMENT, cases[i].message);
        else
            assert_ok(rk_flow_inputs_load(&inputs, job, "/"));
        if (!cases[i].message)
            assert_int_equal(rk_flow_prompt_inputs(&inputs)->teachers.items[0].vocab_size, cases[i].limit);
        rk_flow_inputs_fini(&inputs);
        rk_free(changed);
        rk_free(size);
    }
    rk_config_destroy(job);
    teacher_fixture_fini(&f);
}

/* Goal: a top-k of more ids than there are is refused, whatever is known of the teacher. */
static void test_flow_inputs_topk_beyond_the_vocabulary_is_refused(void **state)
{
    struct rk_flow_inputs inputs;
    struct teacher_fixture f;
    struct rk_config *job;

    (void)state;
    teacher_fixture_init(&f, "teacher_elsewhere");
    rk_free(f.overrides[7]);
    f.overrides[7] = rk_strdup("distillation.distillation_loss.topk=15");
    assert_ok(rk_job_load(&job, NULL, (const char *const *)f.overrides, RK_ARRAY_LEN(f.overrides)));
    assert_fails(rk_flow_inputs_load(&inputs, job, "/"), RK_INVALID_ARGUMENT,
                 "distillation_loss.topk=15: expected at most 14");
    rk_flow_inputs_fini(&inputs);
    rk_config_destroy(job);
    rk_free(f.overrides[7]);
    f.overrides[7] = rk_strdup("distillation.distillation_loss.topk=14");
    assert_ok(rk_job_load(&job, NULL, (const char *const *)f.overrides, RK_ARRAY_LEN(f.overrides)));
    assert_ok(rk_flow_inputs_load(&inputs, job, "/"));
    rk_flow_inputs_fini(&inputs);
    rk_config_destroy(job);
    teacher_fixture_fini(&f);
}

#define KEYS(a, b) \
    RK_JOB_TEACHER_2 "model.path=/elsewhere", RK_JOB_TEACHER "key=" a, RK_JOB_TEACHER_2 "key=" b
#define COLUMN RK_JOB_TEACHER_COLUMN "="

/* Goal: of several teachers every row of the data chooses one, by the column that the job names and as text;
 * a row that cannot is named with its value and the keys. The only teacher has all rows. */
static void test_flow_inputs_rows_choose_their_teacher(void **state)
{
    static const struct {
        const char *row;        /* members of the second of two rows besides prompt and ground truth */
        const char *changes[4]; /* of the job */
        int64_t teacher;        /* of that row; -1: refused */
        const char *message;
    } cases[] = {
        {"\"data_source\": \"b\"", {KEYS("a", "b")}, 1, NULL},
        {"\"data_source\": \"a\"", {KEYS("a", "b")}, 0, NULL},
        {"\"data_source\": \"a\"", {KEYS("b", "a"), COLUMN "data_source"}, 1, NULL},
        {"\"data_source\": \"x\", \"domain\": \"b\"", {KEYS("0", "b"), COLUMN "domain"}, 1, NULL},
        {"\"domain\": 7", {KEYS("0", "7"), COLUMN "domain"}, 1, NULL},
        {"\"data_source\": \"c\"",
         {KEYS("a", "b")},
         -1,
         "data.jsonl:2: data_source: no teacher has the key 'c'; the keys are 'a', 'b'"},
        {"\"data_source\": \"A\"", {KEYS("a", "b")}, -1, "no teacher has the key 'A'"},
        {"\"domain\": \"a\"", {KEYS("a", "b")}, -1, "data.jsonl:2: data_source: the row has no value"},
        {"\"domain\": null", {KEYS("0", "b"), COLUMN "domain"}, -1, "domain: the row has no value"},
        {"\"data_source\": \"c\"", {RK_JOB_TEACHER "key=a"}, 0, NULL},
    };
    struct teacher_fixture f;

    (void)state;
    teacher_fixture_init(&f, "teacher_elsewhere");
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        static const char row[] = "{\"prompt\": \"1\", \"reward_model\": {\"ground_truth\": \"1\"}, ";
        char *text = rk_format("%s\"data_source\": \"a\", \"domain\": 0}\n%s%s}\n", row, row, cases[i].row);
        const char *overrides[RK_ARRAY_LEN(f.overrides) + 5] = {0};
        size_t count = RK_ARRAY_LEN(f.overrides);
        struct rk_flow_inputs inputs;
        struct rk_config *job;
        int64_t teacher = -1;

        print_message("%s\n", cases[i].row);
        rk_test_write_file(f.data, text, strlen(text));
        memcpy(overrides, f.overrides, sizeof(f.overrides));
        for (size_t k = 0; k < RK_ARRAY_LEN(cases[i].changes) && cases[i].changes[k]; k++)
            overrides[count++] = cases[i].changes[k];
        overrides[count++] = "data.shuffle=false";
        assert_ok(rk_job_load(&job, NULL, overrides, (int64_t)count));
        if (cases[i].message) {
            assert_fails(rk_flow_inputs_load(&inputs, job, "/"), RK_INVALID_ARGUMENT, cases[i].message);
        } else {
            assert_ok(rk_flow_inputs_load(&inputs, job, "/"));
            assert_ok(rk_flow_choose_teacher(&teacher, &inputs.of.prompts.teachers,
                                             rk_dataset_at(inputs.of.prompts.train, 0, 1)));
        }
        assert_int_equal(teacher, cases[i].teacher);
        rk_flow_inputs_fini(&inputs);
        rk_config_destroy(job);
        rk_free(text);
    }
    teacher_fixture_fini(&f);
}

/* --- the reward model --- */

#define SCORE_CONFIG(size) \
    "{\"architectures\": [\"LlamaForSequenceClassification\"], \"num_labels\": 1, " size "}"
#define SAME     SCORE_CONFIG("\"vocab_size\": 14")
#define LARGER   SCORE_CONFIG("\"vocab_size\": 15")
#define APPLY    "reward.reward_model.apply_chat_template="
#define CHAT_ROW "{\"prompt\": [{\"role\": \"user\", \"content\": \"1,2\"}]}"
#define TEXT_ROW "{\"prompt\": \"1,2\"}"
/* Templates of the policy and of the reward model. */
#define POLICY_TEMPLATE "{% for m in messages %}{{ m.content }}{% endfor %}:"
#define REWARD_TEMPLATE "{% for m in messages %}{{ m.content }}<eos>{% endfor %}"

static const struct reward_case {
    const char *config; /* NULL: the directory is not on this machine */
    bool has_tokenizer;
    const char *to;       /* tokenizer.json has this instead of "7": 9; NULL: the policy's */
    const char *template; /* NULL: the directory has none */
    const char *row;
    const char *key;     /* an additional setting of the job */
    const char *message; /* NULL: fine, */
    const char *text;    /* the text in which the response "3" is scored; NULL: the policy's tokens are
                          * used */
} reward_cases[] = {
    {SAME, true, NULL, NULL, TEXT_ROW, NULL, NULL, NULL},
    {SAME, true, NULL, REWARD_TEMPLATE, TEXT_ROW, NULL, NULL, NULL},
    {SAME, true, NULL, NULL, CHAT_ROW, NULL, NULL, NULL},
    {SAME, true, NULL, POLICY_TEMPLATE, CHAT_ROW, NULL, NULL, NULL},
    {SAME, false, NULL, NULL, CHAT_ROW, NULL, NULL, NULL},
    {NULL, false, NULL, NULL, CHAT_ROW, NULL, NULL, NULL},
    {SAME, true, NULL, REWARD_TEMPLATE, CHAT_ROW, NULL, NULL, "1,2<eos>3<eos>"},
    {SAME, true, NULL, POLICY_TEMPLATE, CHAT_ROW, APPLY "true", NULL, "1,23:"},
    {SAME, true, NULL, REWARD_TEMPLATE, CHAT_ROW, APPLY "false", NULL, NULL},
    {LARGER, true, "\"7\": 14", REWARD_TEMPLATE, CHAT_ROW, NULL, NULL, "1,2<eos>3<eos>"},
    {LARGER, true, "\"7\": 14", NULL, TEXT_ROW, NULL, NULL, "1,23"},
    {LARGER, true, "\"7\": 14", NULL, CHAT_ROW, NULL, "has no chat template", NULL},
    {LARGER, true, "\"7\": 14", NULL, TEXT_ROW, APPLY "false", "apply_chat_template=false: ", NULL},
    {LARGER, false, NULL, NULL, TEXT_ROW, NULL,
     "config.json: vocab_size: expected 14, that of the policy, got 15, and the directory has no "
     "tokenizer.json",
     NULL},
    {SAME, false, NULL, NULL, TEXT_ROW, APPLY "true", "apply_chat_template=true needs a tokenizer", NULL},
    {SAME, true, "\"7\": 14", NULL, TEXT_ROW, NULL, "vocab_size: expected at least the 15 tokens of ", NULL},
    {SCORE_CONFIG("\"vocab_size\": 14, \"max_position_embeddings\": 15"), true, NULL, NULL, TEXT_ROW, NULL,
     "max_position_embeddings: expected at least 16 ", NULL},
    {"{\"architectures\": [\"LlamaForCausalLM\"], \"vocab_size\": 14}", true, NULL, NULL, TEXT_ROW, NULL,
     "architectures=[\"LlamaForCausalLM\"]", NULL},
    {SAME, true, NULL, NULL, TEXT_ROW, "reward.pattern=1", "reward.pattern: not a key of the reward 'auto'",
     NULL},
    {SAME, true, NULL, "{{ raise_exception('no system turn') }}", CHAT_ROW, NULL, "data.jsonl:1: ", NULL},
};

static void write_into(const char *dir, const char *name, const char *text)
{
    char *path = rk_path_join(dir, name);

    if (text)
        rk_test_write_file(path, text, strlen(text));
    rk_free(path);
}

/* The directory of a reward model; rk_free. */
static char *make_reward_dir(const struct reward_case *row, const char *tokenizer)
{
    char *name = rk_format("reward%td", row - reward_cases), *dir = rk_test_temp_path(name);
    const char *from = "\"7\": 9", *at = strstr(tokenizer, from);
    char *changed =
        rk_format("%.*s%s%s", (int)(at - tokenizer), tokenizer, row->to ? row->to : from, at + strlen(from));

    if (row->config)
        assert_int_equal(mkdir(dir, 0700), 0);
    if (row->config)
        put_config(dir, row->config);
    write_into(dir, "tokenizer.json", row->has_tokenizer ? changed : NULL);
    write_into(dir, "chat_template.jinja", row->template);
    rk_free(changed);
    rk_free(name);
    return dir;
}

/* Checks the text that the model receives for the first prompt with the response "3". */
static void check_reward_text(const struct rk_flow_inputs *inputs, const char *expected)
{
    const struct rk_prompt_inputs *prompts = rk_flow_prompt_inputs(inputs);
    const struct rk_dataset_row *row = rk_dataset_at(prompts->train, 0, 0);
    struct rk_reward_item item = rk_flow_reward_item(row);
    struct rk_tokenizer_ids ids = {0};
    struct rk_str text = {0};

    assert_int_equal(prompts->reward_model.tokenizer != NULL, expected != NULL);
    if (!expected)
        return;
    item.solution_str = "3";
    item.solution_bytes = 1;
    assert_ok(rk_flow_reward_text(&ids, &prompts->reward_model, row, &item));
    rk_tokenizer_decode(prompts->reward_model.tokenizer, ids.items, ids.count, false, &text);
    assert_string_equal(rk_str_text(&text), expected);
    rk_str_fini(&text);
    rk_free(ids.items);
}

static void check_reward_model(const struct reward_case *row, const char *tokenizer_path,
                               const char *tokenizer)
{
    char *dir = make_reward_dir(row, tokenizer), *data = rk_test_temp_path("data.jsonl");
    char *const overrides[] = {
        rk_format("data.train_files=%s", data),
        rk_strdup(RK_JOB_MODEL "hf_config_path=" RK_TEST_SOURCE_DIR "/examples/digits/config.json"),
        SHORT,
        rk_format(RK_JOB_MODEL "tokenizer_path=%s", tokenizer_path),
        rk_strdup(RK_JOB_MODEL "custom_chat_template='" POLICY_TEMPLATE "'"),
        rk_strdup(RK_JOB_REWARD_MODEL "enable=true"),
        rk_format(RK_JOB_REWARD_MODEL "model_path=%s", dir),
        rk_strdup(row->key ? row->key : APPLY "null")};
    struct rk_flow_inputs inputs;
    struct rk_config *job;

    rk_test_write_file(data, row->row, strlen(row->row));
    assert_ok(rk_job_load(&job, NULL, (const char *const *)overrides, RK_ARRAY_LEN(overrides)));
    if (row->message) {
        assert_fails(rk_flow_inputs_load(&inputs, job, "/"), RK_INVALID_ARGUMENT, row->message);
    } else {
        assert_ok(rk_flow_inputs_load(&inputs, job, "/"));
        assert_null(rk_flow_prompt_inputs(&inputs)->reward); /* only the model scores */
        assert_string_equal(rk_flow_own_model(&inputs, RK_ROLE_REWARD), dir);
        check_reward_text(&inputs, row->text);
    }
    rk_flow_inputs_fini(&inputs);
    rk_config_destroy(job);
    for (size_t i = 0; i < RK_ARRAY_LEN(overrides); i++)
        rk_free(overrides[i]);
    rk_free(data);
    rk_free(dir);
}

/* Goal: a reward model receives the policy's tokens if its tokenizer and template are equal, else texts
 * encoded with its own tokenizer; a directory that is not a reward model is refused with the file and the
 * missing part. */
static void test_flow_inputs_reward_model_has_a_head_and_tokens(void **state)
{
    char *path = rk_test_fixture_path("../examples/digits/tokenizer.json");
    char *tokenizer = rk_test_read_file(path, NULL);

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(reward_cases); i++) {
        print_message("%zu: %s\n", i, reward_cases[i].message ? reward_cases[i].message : "fine");
        check_reward_model(&reward_cases[i], path, tokenizer);
    }
    rk_free(tokenizer);
    rk_free(path);
}

/* --- the critic --- */

#define VALUE_CONFIG(labels, size)                                                        \
    "{\"architectures\": [\"LlamaForTokenClassification\"], \"num_labels\": " labels ", " \
    "\"vocab_size\": " size "}"
#define LM_CONFIG "{\"architectures\": [\"LlamaForCausalLM\"], \"vocab_size\": 14}"
#define INDEX     "model.safetensors.index.json"

static const struct critic_case {
    const char *config; /* NULL: the directory is not on this machine */
    const char *file;   /* a weight file with the head's tensor or another tensor; NULL: none */
    bool has_head;
    const char *message; /* NULL: fine */
} critic_cases[] = {
    {NULL, NULL, false, NULL},
    {LM_CONFIG, "model.safetensors", false, NULL},
    {VALUE_CONFIG("1", "14"), NULL, false, NULL},
    {VALUE_CONFIG("1", "14"), "model.safetensors", true, NULL},
    {VALUE_CONFIG("1", "14"), INDEX, true, NULL},
    {VALUE_CONFIG("1", "14"), "model.safetensors", false, "model.safetensors: no tensor 'score.weight'"},
    {VALUE_CONFIG("1", "14"), INDEX, false, INDEX ": no tensor 'score.weight'"},
    {VALUE_CONFIG("3", "14"), NULL, false, "config.json: id2label: a value head has one label, got 3"},
    {VALUE_CONFIG("1", "15"), NULL, false,
     "config.json: vocab_size: expected 14, that of the policy, got 15"},
};

/* A file with one tensor, or an index of one. */
static void write_weights(const char *dir, const struct critic_case *row)
{
    struct rk_st_entry entry = {
        .name = row->has_head ? "score.weight" : "other", .dtype = RK_DTYPE_F32, .rank = 1, .shape = {1}};
    const float value = 1.0F;
    struct rk_st_writer *writer;
    char *path, *index;

    if (strcmp(row->file, INDEX) == 0) {
        index = rk_format("{\"weight_map\": {\"%s\": \"model-1.safetensors\"}}", entry.name);
        write_into(dir, INDEX, index);
        rk_free(index);
        return;
    }
    path = rk_path_join(dir, row->file);
    assert_ok(rk_st_writer_create(&writer, path, &entry, 1, NULL));
    assert_ok(rk_st_writer_write(writer, 0, 0, &value, sizeof(value)));
    assert_ok(rk_st_writer_commit(writer));
    rk_st_writer_destroy(writer);
    rk_free(path);
}

static void check_critic(const struct critic_case *row, const char *data)
{
    char *name = rk_format("critic%td", row - critic_cases), *dir = rk_test_temp_path(name);
    char *const overrides[] = {
        rk_format("data.train_files=%s", data),
        rk_strdup(RK_JOB_MODEL "hf_config_path=" RK_TEST_SOURCE_DIR "/examples/digits/config.json"),
        SHORT,
        rk_strdup(RK_JOB_MODEL "tokenizer_path=" RK_TEST_SOURCE_DIR "/examples/digits/tokenizer.json"),
        rk_strdup("+reward.name=digits"),
        rk_strdup("algorithm.adv_estimator=gae"),
        rk_format(RK_JOB_CRITIC "model.path=%s", dir)};
    struct rk_flow_inputs inputs;
    struct rk_config *job;

    if (row->config)
        assert_int_equal(mkdir(dir, 0700), 0);
    if (row->config)
        put_config(dir, row->config);
    if (row->file)
        write_weights(dir, row);
    assert_ok(rk_job_load(&job, NULL, (const char *const *)overrides, RK_ARRAY_LEN(overrides)));
    if (row->message) {
        assert_fails(rk_flow_inputs_load(&inputs, job, "/"), RK_INVALID_ARGUMENT, row->message);
    } else {
        assert_ok(rk_flow_inputs_load(&inputs, job, "/"));
        assert_string_equal(rk_flow_own_model(&inputs, RK_ROLE_CRITIC), dir);
    }
    rk_flow_inputs_fini(&inputs);
    rk_config_destroy(job);
    for (size_t i = 0; i < RK_ARRAY_LEN(overrides); i++)
        rk_free(overrides[i]);
    rk_free(dir);
    rk_free(name);
}

/* Goal: a critic whose config.json declares a head that the weights lack (it would be initialized anew), or
 * that has another vocabulary, is refused with the file and the missing part. */
static void test_flow_inputs_critic_has_a_head_and_the_vocabulary(void **state)
{
    char *data = rk_test_temp_path("data.jsonl");
    static const char row[] = "{\"prompt\": \"1\", \"reward_model\": {\"ground_truth\": \"1\"}}\n";

    (void)state;
    rk_test_write_file(data, row, strlen(row));
    for (size_t i = 0; i < RK_ARRAY_LEN(critic_cases); i++) {
        print_message("%zu: %s\n", i, critic_cases[i].message ? critic_cases[i].message : "fine");
        check_critic(&critic_cases[i], data);
    }
    rk_free(data);
}

/* --- what is known before a daemon starts --- */

static const struct {
    const char *config, *row, *key, *message; /* the key: an override, or NULL; the message: of loading */
    rk_code_t code;
    bool is_models; /* rk_flow_check_models finds it, too */
} early[] = {
    {"{\"vocab_size\": 20}", "", NULL, "model.path: config.json: model_type: missing", RK_INVALID_ARGUMENT,
     true},
    {"{\"model_type\": \"gemma3\"}", "", NULL,
     "model.path: config.json: model_type='gemma3' is not implemented, expected one of: llama, qwen2, ",
     RK_UNIMPLEMENTED, true},
    {"{\"model_type\": \"qwen3\", \"quantization_config\": {\"quant_method\": \"awq\"}}", "", NULL,
     "quantization_config: quant_method='awq' is not implemented", RK_UNIMPLEMENTED, true},
    {"{\"model_type\": \"llama\", \"max_position_embeddings\": 15}", "", NULL,
     "config.json: max_position_embeddings: expected at least 16, which is data.max_prompt_length + "
     "data.max_response_length, got 15",
     RK_INVALID_ARGUMENT, true},
    {"{\"model_type\": \"llama\", \"vocab_size\": 13}", "{\"prompt\": \"2,4\"}\n{\"prompt\": \"2:\"}\n", NULL,
     "early.jsonl:2: prompt: token 13, \":\", is beyond the model's vocab_size of 13 (config.json)",
     RK_INVALID_ARGUMENT, false},
    {"{\"model_type\": \"llama\"}", "{\"prompt\": \"1\", \"answer\": 7}\n", NULL,
     "early.jsonl:1: reward_model.ground_truth is missing; the row has prompt, answer", RK_INVALID_ARGUMENT,
     false},
    {"{\"model_type\": \"llama\"}", "{\"prompt\": \"1\", \"reward_model\": {\"style\": \"rule\"}}\n", NULL,
     "is missing; the row has prompt, reward_model; reward_model has style", RK_INVALID_ARGUMENT, false},
    {"{\"model_type\": \"llama\", \"max_position_embeddings\": 2}",
     "{\"prompt\": \"1\", \"response\": \"2,3\"}\n", "algorithm.type=sft",
     "early.jsonl:1: the sequence has 4 tokens, max_position_embeddings of the model is 2",
     RK_INVALID_ARGUMENT, false},
};

/* Goal: each is refused with its key, or with file and line, when the inputs of a run are read; what concerns
 * the model by `config check`, too, which reads no data. */
static void test_flow_inputs_refuse_what_is_known(void **state)
{
    char *dir = rk_test_temp_path("early"), *data = rk_test_temp_path("early.jsonl");
    char *path = rk_test_fixture_path("../examples/digits/tokenizer.json"),
         *tokenizer = rk_test_read_file(path, NULL);

    (void)state;
    assert_int_equal(mkdir(dir, 0755), 0);
    put_file(dir, "tokenizer.json", tokenizer);
    for (size_t i = 0; i < RK_ARRAY_LEN(early); i++) {
        char *const overrides[] = {rk_format("data.train_files=%s", data),
                                   rk_format(RK_JOB_MODEL "path=%s", dir), SHORT,
                                   rk_strdup(early[i].key ? early[i].key : "+reward.name=digits")};
        struct rk_flow_inputs inputs;
        struct rk_config *job;

        put_file(dir, "config.json", early[i].config);
        rk_test_write_file(data, early[i].row, strlen(early[i].row));
        assert_ok(rk_job_load(&job, NULL, (const char *const *)overrides, RK_ARRAY_LEN(overrides)));
        print_message("  %s\n", early[i].message);
        if (early[i].is_models)
            assert_code(rk_flow_check_models(job, "/"), early[i].code);
        else
            assert_ok(rk_flow_check_models(job, "/"));
        assert_fails(rk_flow_inputs_load(&inputs, job, "/"), early[i].code, early[i].message);
        rk_config_destroy(job);
        for (size_t k = 0; k < RK_ARRAY_LEN(overrides); k++)
            rk_free(overrides[k]);
    }
    rk_free(tokenizer);
    rk_free(path);
    rk_free(data);
    rk_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flow_inputs_token_ids),
        cmocka_unit_test(test_flow_inputs_template_is_a_file_or_its_text),
        cmocka_unit_test(test_flow_inputs_workload),
        cmocka_unit_test(test_flow_inputs_teacher_has_the_vocabulary_of_the_student),
        cmocka_unit_test(test_flow_inputs_topk_beyond_the_vocabulary_is_refused),
        cmocka_unit_test(test_flow_inputs_rows_choose_their_teacher),
        cmocka_unit_test(test_flow_inputs_reward_model_has_a_head_and_tokens),
        cmocka_unit_test(test_flow_inputs_critic_has_a_head_and_the_vocabulary),
        cmocka_unit_test(test_flow_inputs_refuse_what_is_known),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
