#include "base/config/rk_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "tests/support/test.h"

static const struct rk_config_key keys[] = {
    {"device", RK_CONFIG_STRING, "\"cpu\"", 0, 0, NULL, 0, "cpu or cuda:N"},
    {"name", RK_CONFIG_STRING, "null", 0, 0, NULL, RK_CONFIG_NULLABLE, "of the run"},
    {"rpc.max_inflight", RK_CONFIG_BYTES, "\"8GiB\"", 1024, 1099511627776.0, NULL, RK_CONFIG_RELOADABLE,
     "bytes"},
    {"rpc.insecure", RK_CONFIG_BOOL, "false", 0, 0, NULL, 0, "no TLS"},
    {"lease.ttl", RK_CONFIG_DURATION, "\"30s\"", 1000, 3600000, NULL, 0, "of a lease"},
    {"log.level", RK_CONFIG_STRING, "\"info\"", 0, 0, "debug|info|warn|error", 0, "least level"},
    {"ckpt.roots", RK_CONFIG_LIST, "[]", 0, 0, NULL, 0, "folders"},
    {"actor.optim.lr", RK_CONFIG_REAL, "1e-6", 0, 1, NULL, 0, "learning rate"},
    {"actor.optim.clip", RK_CONFIG_REAL, "1", 0, 0, NULL, RK_CONFIG_NULLABLE, "gradient norm"},
    {"actor.parallel.tp", RK_CONFIG_INT, "1", 1, 64, NULL, 0, "tensor parallel"},
    {"actor.parallel.pp", RK_CONFIG_INT, "1", 1, 64, NULL, 0, "pipeline parallel"},
    {"ref.parallel.tp", RK_CONFIG_INT, "\"${actor.parallel.tp}\"", 1, 64, NULL, 0, "tensor parallel"},
    {"ref.parallel.pp", RK_CONFIG_INT, "1", 1, 64, NULL, 0, "pipeline parallel"},
    {"engine_kwargs", RK_CONFIG_OPEN, "{}", 0, 0, NULL, 0, "passed on"},
    {"model.arch.hidden_act", RK_CONFIG_STRING, "\"silu\"", 0, 0, NULL, 0, "activation"},
    {"model.arch.qkv_bias", RK_CONFIG_BOOL, "false", 0, 0, NULL, 0, "bias"},
    {"model.arch.rope_theta", RK_CONFIG_REAL, "10000.0", 0, 0, NULL, 0, "base"},
    {"model.arch.hidden_size", RK_CONFIG_INT, "64", 0, 0, NULL, 0, "width"},
    {"model.arch.rope_scaling", RK_CONFIG_REAL, "null", 0, 0, NULL, RK_CONFIG_NULLABLE, "factor"},
};

#define MAX_FLAGS 4

static struct rk_status *load_with(struct rk_config **out, const char *text,
                                   const char *const flags[MAX_FLAGS])
{
    static const char *const env_known[] = {"RKTEST_FAULTS", NULL};
    struct rk_config_source source = {
        .keys = keys,
        .num_keys = RK_ARRAY_LEN(keys),
        .text = text,
        .text_name = "job.json",
        .env_prefix = "RKTEST",
        .env_known = env_known,
        .overrides = flags,
    };

    while (source.num_overrides < MAX_FLAGS && flags[source.num_overrides])
        source.num_overrides++;
    return rk_config_load(out, &source);
}

static struct rk_config *load_ok(const char *text)
{
    static const char *const none[MAX_FLAGS];
    struct rk_config *config;

    assert_ok(load_with(&config, text, none));
    return config;
}

/* --- values and their sources --- */

static void test_config_load_nothing_gives_defaults(void **state)
{
    struct rk_config *config = load_ok(NULL);

    (void)state;
    assert_string_equal(rk_config_string(config, "device"), "cpu");
    assert_null(rk_config_string(config, "name"));
    assert_true(rk_config_is_null(config, "name"));
    assert_false(rk_config_is_null(config, "device"));
    assert_true(rk_config_int(config, "rpc.max_inflight") == 8ll << 30);
    assert_int_equal(rk_config_int(config, "lease.ttl"), 30000);
    assert_false(rk_config_bool(config, "rpc.insecure"));
    assert_true(rk_config_real(config, "actor.optim.lr") == 1e-6);
    assert_int_equal(rk_json_count(rk_config_json(config, "engine_kwargs")), 0);
    assert_string_equal(rk_config_origin(config, "device"), "default");
    rk_config_destroy(config);
    rk_config_destroy(NULL);
}

static void test_config_load_file_values_with_lines(void **state)
{
    struct rk_config *config =
        load_ok("{ \"//\": \"a comment\",\n"
                "  \"device\": \"cuda:1\",\n"
                "  \"actor\": {\"//\": \"another\", \"optim\": {\n"
                "    \"lr\": 1, \"clip\": null}},\n"
                "  \"engine_kwargs\": {\"deep\": {\n"
                "    \"x\": [1, {\"//\": \"third\"}]}}, \"ckpt\": {\"roots\": [\"/a\"]}}");

    (void)state;
    assert_string_equal(rk_config_string(config, "device"), "cuda:1");
    assert_string_equal(rk_config_origin(config, "device"), "job.json:2");
    assert_true(rk_config_real(config, "actor.optim.lr") == 1.0);
    assert_string_equal(rk_config_origin(config, "actor.optim.lr"), "job.json:4");
    assert_true(rk_config_is_null(config, "actor.optim.clip"));
    assert_string_equal(rk_config_origin(config, "engine_kwargs"), "job.json:5");
    assert_null(rk_json_find_path(rk_config_json(config, "engine_kwargs"), "deep.x.1.//"));
    assert_string_equal(rk_json_as_string(rk_json_at(rk_config_json(config, "ckpt.roots"), 0), ""), "/a");
    assert_int_equal(rk_json_count(rk_config_tree(config)), 10);
    rk_config_destroy(config);
}

/* Goal: default < file < environment < flag, each with its origin. */
static void test_config_load_precedence(void **state)
{
    static const char *const flags[MAX_FLAGS] = {"actor.parallel.tp=4", "+engine_kwargs.a.b=true"};
    struct rk_config *config;

    (void)state;
    setenv("RKTEST_ACTOR_PARALLEL_TP", "3", 1);
    setenv("RKTEST_ACTOR_PARALLEL_PP", "2", 1);
    setenv("RKTEST_DEVICE", "cuda:0", 1);
    setenv("RKTEST_NAME", "2024", 1);
    assert_ok(load_with(&config, "{\"actor\":{\"parallel\":{\"tp\":2,\"pp\":8}}}", flags));
    unsetenv("RKTEST_ACTOR_PARALLEL_TP");
    unsetenv("RKTEST_ACTOR_PARALLEL_PP");
    unsetenv("RKTEST_DEVICE");
    unsetenv("RKTEST_NAME");
    assert_int_equal(rk_config_int(config, "actor.parallel.tp"), 4);
    assert_string_equal(rk_config_origin(config, "actor.parallel.tp"), "flag");
    assert_int_equal(rk_config_int(config, "actor.parallel.pp"), 2);
    assert_string_equal(rk_config_origin(config, "actor.parallel.pp"), "env RKTEST_ACTOR_PARALLEL_PP");
    assert_string_equal(rk_config_string(config, "device"), "cuda:0");
    assert_string_equal(rk_config_string(config, "name"), "2024"); /* text remains text */
    assert_true(rk_json_as_bool(rk_json_find_path(rk_config_json(config, "engine_kwargs"), "a.b"), false));
    assert_string_equal(rk_config_origin(config, "engine_kwargs"), "flag");
    rk_config_destroy(config);
}

static void test_config_load_flags_table(void **state)
{
    static const struct {
        const char *flag, *path, *expected; /* JSON of the value */
    } cases[] = {
        {"device=cuda:3", "device", "\"cuda:3\""},
        {"device=\"quoted\"", "device", "\"quoted\""},
        {"name=null", "name", "null"},
        {"name=a=b", "name", "\"a=b\""},
        {"name=", "name", "\"\""},
        {"rpc.max_inflight=1MiB", "rpc.max_inflight", "\"1MiB\""},
        {"rpc.insecure=true", "rpc.insecure", "true"},
        {"actor.optim.lr=3e-4", "actor.optim.lr", "0.0003"},
        {"actor.parallel.tp=4.0", "actor.parallel.tp", "4.0"},
        {"actor.parallel={\"tp\":8}", "actor.parallel.tp", "8"},
        {"ckpt.roots=[\"/a\",\"/b\"]", "ckpt.roots", "[\"/a\",\"/b\"]"},
        {"engine_kwargs={\"x\":1}", "engine_kwargs", "{\"known\":true,\"x\":1}"},
        {"engine_kwargs.known=2", "engine_kwargs", "{\"known\":2}"},
        {"+engine_kwargs.new=2", "engine_kwargs", "{\"known\":true,\"new\":2}"},
        {"~engine_kwargs.known", "engine_kwargs", "{}"},
        {"~actor.optim", "actor.optim.lr", "1e-06"},
        {"device=${env:RKTEST_UNSET:cuda:7}", "device", "\"cuda:7\""},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        const char *const flags[MAX_FLAGS] = {cases[i].flag};
        struct rk_config *config;
        char *text;

        print_message("%s\n", cases[i].flag);
        assert_ok(load_with(
            &config, "{\"actor\":{\"optim\":{\"lr\":0.5}},\"engine_kwargs\":{\"known\":true}}", flags));
        text = rk_json_dump(rk_json_find_path(rk_config_tree(config), cases[i].path), 0, false);
        assert_string_equal(text, cases[i].expected);
        rk_free(text);
        rk_config_destroy(config);
    }
}

/* Values that Hydra rejects and rankd reads as text, or like Python and YAML; spaces before a quote. */
static bool is_more_than_hydra(const char *value)
{
    static const char *const values[] = {"a=b", "~/data", "{'x y':1}"};

    for (size_t i = 0; i < RK_ARRAY_LEN(values); i++) {
        if (strcmp(values[i], value) == 0)
            return true;
    }
    return value[0] == ' ';
}

/* Goal: overrides are parsed like by Hydra's own parser (tests/golden/gen/hydra_values.py); "!" means an
 * error. */
static void test_config_load_flags_are_read_as_by_hydra(void **state)
{
    char *path = rk_test_fixture_path("golden/hydra/values.tsv"), line[1024];
    FILE *file = fopen(path, "r");
    int num_values = 0;

    (void)state;
    assert_non_null(file);
    while (fgets(line, sizeof(line), file)) {
        char *tab = strchr(line, '\t'), *flag, *expected;
        struct rk_config *config;
        struct rk_json *json;
        struct rk_status *st;

        assert_non_null(tab);
        *tab = '\0';
        expected = tab + 1;
        expected[strcspn(expected, "\n")] = '\0';
        flag = rk_format("+engine_kwargs.k=%s", line);
        num_values++;
        st = load_with(&config, "{}", (const char *const[MAX_FLAGS]){flag});
        if (strcmp(expected, "!") == 0 && !is_more_than_hydra(line)) {
            print_message("%s\n", line);
            assert_fails(st, RK_INVALID_ARGUMENT, "flag: engine_kwargs.k: ");
        } else {
            assert_ok(st);
        }
        if (config && strcmp(expected, "!") != 0) {
            assert_ok(rk_json_parse(&json, expected, strlen(expected), "expected", 0));
            if (!rk_json_equal(json, rk_json_find(rk_config_json(config, "engine_kwargs"), "k")))
                fail_msg("%s: expected %s", line, expected);
            rk_json_free(json);
        }
        rk_config_destroy(config);
        rk_free(flag);
    }
    fclose(file);
    rk_free(path);
    assert_true(num_values > 200);
}

static void test_config_load_flags_know_python_and_pluses(void **state)
{
    static const char *const flags[MAX_FLAGS] = {"++actor.parallel.tp=4", "name=None",
                                                 "++engine_kwargs.x=True", "device='cuda:1'"};
    struct rk_config *config;

    (void)state;
    assert_ok(load_with(&config, "{\"name\":\"x\"}", flags));
    assert_int_equal(rk_config_int(config, "actor.parallel.tp"), 4);
    assert_true(rk_config_is_null(config, "name"));
    assert_true(rk_json_as_bool(rk_json_find(rk_config_json(config, "engine_kwargs"), "x"), false));
    assert_string_equal(rk_config_string(config, "device"), "cuda:1");
    rk_config_destroy(config);
}

/* --- keys of another product --- */

static void test_config_foreign_rows(void **state)
{
    static const struct rk_config_foreign foreign[] = {
        {"other.pad", RK_CONFIG_FOREIGN_SAME, "true|1.0|[]", NULL, "always"},
        {"other.pad", RK_CONFIG_FOREIGN_REFUSED, "*", NULL, "never without"},
        {"other.rate", RK_CONFIG_FOREIGN_SAME, "*", "actor.optim.lr", "the rate"},
        {"other.kind", RK_CONFIG_FOREIGN_SAME, "a|b", "device=\"cuda:0\"", "a kind"},
        {"device", RK_CONFIG_FOREIGN_SAME, "gpu", "device=\"cuda:0\"", "the first one"},
        {"other.*.enable", RK_CONFIG_FOREIGN_SAME, "false", NULL, "off"},
        {"other.hint*", RK_CONFIG_FOREIGN_IGNORED, "*", NULL, "nothing"},
        {"actor.*.opt.size", RK_CONFIG_FOREIGN_SAME, "*", NULL, "a size"},
        {"*lr", RK_CONFIG_FOREIGN_REFUSED, "*", NULL, "own keys are not matched by patterns"},
    };
    static const struct {
        const char *flag, *path, *expected; /* a message where path is NULL */
    } cases[] = {
        {"other.pad=True", "device", "\"cpu\""},
        {"other.pad=1", "device", "\"cpu\""},
        {"other.pad=[]", "device", "\"cpu\""},
        {"other.pad=2", NULL, "flag: other.pad: expected true|1.0|[], got 2: never without"},
        {"other.rate=0.5", "actor.optim.lr", "0.5"},
        {"other.kind=b", "device", "\"cuda:0\""},
        {"other.kind=c", NULL, "flag: other.kind: expected a|b, got \"c\": a kind"},
        {"device=gpu", "device", "\"cuda:0\""},
        {"device=cuda:3", "device", "\"cuda:3\""},
        {"other.x.y.enable=false", "device", "\"cpu\""},
        {"other.x.enable=true", NULL, "flag: other.x.enable: expected false, got true: off"},
        {"other.hints.a.b=[1,2]", "device", "\"cpu\""},
        {"actor.optim.lr=0.25", "actor.optim.lr", "0.25"},
        {"other.lr=0.25", NULL, "flag: other.lr: 0.25 is not supported: own keys"},
        {"other.padd=1", NULL, "flag: other.padd: unknown key; did you mean 'pad'?"},
        {"otter.pad=1", NULL, "flag: otter: unknown key"},
        {"actor.optim.opt.size=1", "device", "\"cpu\""},
        {"actor.optim.opt.sise=1", NULL, "flag: actor.optim.opt.sise: unknown key; did you mean 'size'?"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_config_source source = {.keys = keys,
                                          .num_keys = RK_ARRAY_LEN(keys),
                                          .foreign = foreign,
                                          .num_foreign = RK_ARRAY_LEN(foreign),
                                          .overrides = &cases[i].flag,
                                          .num_overrides = 1};
        struct rk_config *config;
        char *text;

        print_message("%s\n", cases[i].flag);
        if (!cases[i].path) {
            assert_fails(rk_config_load(&config, &source), RK_INVALID_ARGUMENT, cases[i].expected);
            continue;
        }
        assert_ok(rk_config_load(&config, &source));
        assert_null(rk_json_find(rk_config_tree(config), "other"));
        text = rk_json_dump(rk_json_find_path(rk_config_tree(config), cases[i].path), 0, false);
        assert_string_equal(text, cases[i].expected);
        rk_free(text);
        rk_config_destroy(config);
    }
}

/* Goal: names of a section are numbered in the order in which they come, in each section from the start; a
 * name for whose number there is no key has the next row. */
static void test_config_foreign_names_are_numbered(void **state)
{
    static const struct rk_config_key numbered[] = {
        {"pet.size", RK_CONFIG_INT, "0", 0, 0, NULL, 0, ""},
        {"pet.kind", RK_CONFIG_STRING, "\"\"", 0, 0, NULL, 0, ""},
        {"pet_2.size", RK_CONFIG_INT, "0", 0, 0, NULL, 0, ""},
        {"pet_2.kind", RK_CONFIG_STRING, "\"\"", 0, 0, NULL, 0, ""},
    };
    static const struct rk_config_foreign foreign[] = {
        {"pets.*.size", RK_CONFIG_FOREIGN_SAME, "*", "pet#.size", "a size"},
        {"pets.*.deep.kind", RK_CONFIG_FOREIGN_SAME, "*", "pet#.kind", "a kind"},
        {"pets.*", RK_CONFIG_FOREIGN_REFUSED, "*", NULL, "at most two"},
    };
    const char *overrides[] = {"+pets.cat.size=1", "+pets.dog.deep.kind=loud", "+pets.cat.deep.kind=quiet",
                               "+pets.dog.size=2", "+pets.fish.size=3"};
    struct rk_config_source source = {.keys = numbered,
                                      .num_keys = RK_ARRAY_LEN(numbered),
                                      .foreign = foreign,
                                      .num_foreign = RK_ARRAY_LEN(foreign),
                                      .overrides = overrides,
                                      .num_overrides = 4};
    struct rk_config *config;

    (void)state;
    assert_ok(rk_config_load(&config, &source));
    assert_int_equal(rk_config_int(config, "pet.size"), 1);
    assert_string_equal(rk_config_string(config, "pet.kind"), "quiet");
    assert_int_equal(rk_config_int(config, "pet_2.size"), 2);
    assert_string_equal(rk_config_string(config, "pet_2.kind"), "loud");
    rk_config_destroy(config);
    source.num_overrides = 5;
    assert_fails(rk_config_load(&config, &source), RK_INVALID_ARGUMENT,
                 "pets.fish.size: 3 is not supported: at most two");
}

/* Goal: a number and its text are the same value; bounds with "_" are not changed. */
static void test_config_number_as_text(void **state)
{
    static const struct rk_config_key bounds[] = {
        {"bound", RK_CONFIG_STRING, "null", 0, 0, NULL, RK_CONFIG_NULLABLE | RK_CONFIG_NUMBER_AS_TEXT, ""}};
    static const struct {
        const char *text, *expected, *message;
    } cases[] = {
        {"{\"bound\": 2}", "2", NULL},
        {"{\"bound\": 2.0}", "2.0", NULL},
        {"{\"bound\": \"0.5_5.0\"}", "0.5_5.0", NULL},
        {"{\"bound\": null}", NULL, NULL},
        {"{\"bound\": true}", NULL, "bound: expected a number or a string or null, got true"},
        {"{\"bound\": [2]}", NULL, "bound: expected a number or a string or null, got an array"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_config_source source = {
            .keys = bounds, .num_keys = 1, .text = cases[i].text, .text_name = "job.json"};
        struct rk_config *config;

        print_message("%s\n", cases[i].text);
        if (cases[i].message) {
            assert_fails(rk_config_load(&config, &source), RK_INVALID_ARGUMENT, cases[i].message);
            continue;
        }
        assert_ok(rk_config_load(&config, &source));
        if (cases[i].expected)
            assert_string_equal(rk_config_string(config, "bound"), cases[i].expected);
        else
            assert_null(rk_config_string(config, "bound"));
        rk_config_destroy(config);
    }
}

/* --- problems --- */

static void test_config_load_rejects_table(void **state)
{
    static const struct {
        const char *text, *flag, *message;
    } cases[] = {
        {"{\"devce\": \"x\"}", NULL, "job.json:1: devce: unknown key; did you mean 'device'?"},
        {"{\n\"actor\": {\n\"optimm\": {\"lr\": 1}}}", NULL,
         "job.json:3: actor.optimm: unknown key; did you mean 'optim'?"},
        {"{\"actor\":\n{\"lr\": 1}}", NULL,
         "job.json:2: actor.lr: unknown key; did you mean 'actor.optim.lr'?"},
        {"{\"zebra\": {}}", NULL, "zebra: unknown key"},
        {"{\"actor.optim.lr\": 1}", NULL, "nested objects"},
        {"{\"device\": 3}", NULL, "device: expected a string, got 3"},
        {"{\"device\": null}", NULL, "device: expected a string, got null"},
        {"{\"name\": []}", NULL, "name: expected a string or null, got an array"},
        {"{\"rpc\": {\"insecure\": 1}}", NULL, "rpc.insecure: expected true or false, got 1"},
        {"{\"rpc\": {\"max_inflight\": \"8Q\"}}", NULL, "rpc.max_inflight: expected a size with a unit"},
        {"{\"rpc\": {\"max_inflight\": 8}}", NULL, "rpc.max_inflight: expected a size with a unit"},
        {"{\"rpc\": {\"max_inflight\": \"1B\"}}", NULL, "expected 1KiB to 1TiB, got \"1B\""},
        {"{\"lease\": {\"ttl\": \"30\"}}", NULL, "lease.ttl: expected a duration with a unit"},
        {"{\"lease\": {\"ttl\": \"2h\"}}", NULL, "expected 1s to 1h, got \"2h\""},
        {"{\"log\": {\"level\": \"warning\"}}", NULL,
         "expected one of debug|info|warn|error, got \"warning\""},
        {"{\"log\": {\"level\": \"inf\"}}", NULL, "expected one of"},
        {"{\"log\": {\"level\": \"\"}}", NULL, "expected one of"},
        {"{\"log\": {\"level\": \"info|warn\"}}", NULL, "expected one of"},
        {"{\"actor\": {\"optim\": {\"lr\": 1.5}}}", NULL, "actor.optim.lr: expected 0 to 1, got 1.5"},
        {"{\"actor\": {\"parallel\": {\"tp\": 0}}}", NULL, "actor.parallel.tp: expected 1 to 64, got 0"},
        {"{\"actor\": {\"parallel\": {\"tp\": 2.5}}}", NULL, "expected an integer, got 2.5"},
        {"{\"actor\": {\"parallel\": {\"tp\": \"2\"}}}", NULL, "expected an integer, got \"2\""},
        {"{\"actor\": {\"parallel\": 3}}", NULL, "actor.parallel: expected an object, got an integer"},
        {"{\"actor\": null}", NULL, "actor: expected an object, got null"},
        {"{\"ckpt\": {\"roots\": \"/a\"}}", NULL, "ckpt.roots: expected an array, got \"/a\""},
        {"{\"engine_kwargs\": []}", NULL, "engine_kwargs: expected an object, got an array"},
        {"{\"device\": \"a\",\n \"device\": \"b\"}", NULL, "job.json:2:"},
        {"{\"device\": }", NULL, "job.json:1:"},
        {"[]", NULL, "job.json:1: expected an object"},
        {"{\"device\": \"${nothing.here}\"}", NULL, "device: ${nothing.here}: there is no such key"},
        {"{\"device\": \"${env:RKTEST_UNSET}\"}", NULL, "the environment variable is not set"},
        {"{\"device\": \"${name}\", \"name\": \"${device}\"}", NULL, "circular reference"},
        {"{\"device\": \"${device}\"}", NULL, "circular reference"},
        {"{\"engine_kwargs\": {\"a\": \"${engine_kwargs}\"}}", NULL, "circular reference"},
        {"{\"device\": \"${rpc.insecure}\"}", NULL, "device: expected a string, got false"},
        {"{}", "device", "flag: device: expected PATH=VALUE"},
        {"{}", "=3", "expected PATH=VALUE"},
        {"{}", ".a=3", "expected PATH=VALUE"},
        {"{}", "a..b=3", "expected PATH=VALUE"},
        {"{}", "a.=3", "expected PATH=VALUE"},
        {"{}", "\xff=3", "flag: not valid UTF-8"},
        {"{}", "a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a=3", "expected PATH=VALUE"},
        {"{}", "devise=3", "flag: devise: unknown key; did you mean 'device'?"},
        {"{}", "engine_kwargs.x=1", "write +engine_kwargs.x=1 to add it"},
        {"{}", "~name.x", "there is nothing to delete"},
        {"{}", "~device=3", "expected ~PATH"},
        {"{}", "actor.optim.lr=fast", "flag: actor.optim.lr: expected a number, got \"fast\""},
        {"{}", "engine_kwargs={\"__select__\":\"x\"}", "__select__: not allowed here"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        const char *const flags[MAX_FLAGS] = {cases[i].flag};
        struct rk_config *config = (struct rk_config *)&cases;

        assert_fails(load_with(&config, cases[i].text, flags), RK_INVALID_ARGUMENT, cases[i].message);
        assert_null(config);
    }
}

/* Goal: one load reports all problems of all sources, one per line. */
static void test_config_load_collects_all_problems(void **state)
{
    static const char *const flags[MAX_FLAGS] = {"devcie=1", "rpc.insecure=7"};
    struct rk_config *config;
    struct rk_status *st;
    int lines = 1;

    (void)state;
    setenv("RKTEST_LOG_LEVEL", "loud", 1);
    st = load_with(
        &config, "{\"lease\": {\"ttl\": 3},\n\"actor\": {\"optim\": {\"lr\": \"x\", \"clip\": {}}}}", flags);
    unsetenv("RKTEST_LOG_LEVEL");
    for (const char *p = rk_status_message(st); (p = strchr(p, '\n')) != NULL; p++)
        lines++;
    assert_int_equal(lines, 6);
    assert_message_contains(rk_status_clone(st), "job.json:1: lease.ttl: ");
    assert_message_contains(rk_status_clone(st), "\njob.json:2: actor.optim.lr: ");
    assert_message_contains(rk_status_clone(st), "\njob.json:2: actor.optim.clip: ");
    assert_message_contains(rk_status_clone(st), "env RKTEST_LOG_LEVEL: log.level: ");
    assert_message_contains(rk_status_clone(st), "flag: rpc.insecure: expected true or false, got 7");
    assert_message_contains(st, "flag: devcie: unknown key; did you mean 'device'?");
}

/* Goal: a misspelled variable is an error like a misspelled key; its value, which may be a secret, is not
 * shown.
 */
static void test_config_load_variables_without_a_key_are_refused(void **state)
{
    static const char *const none[MAX_FLAGS];
    static const struct {
        const char *name, *problem; /* NULL: it is ignored */
    } cases[] = {
        {"RKTEST_LOGLEVEL", "env RKTEST_LOGLEVEL: names no key; did you mean 'RKTEST_LOG_LEVEL'?"},
        {"RKTEST_log_level", "env RKTEST_log_level: names no key"},
        {"RKTEST_ENTIRELY_ELSE", "env RKTEST_ENTIRELY_ELSE: names no key"},
        {"RKTEST_PORTAL", "env RKTEST_PORTAL: names no key"},
        {"RKTEST_", "env RKTEST_: names no key"},
        {"RKTESTER", NULL},
        {"RKTEST_FAULTS", NULL},
        {"RKTEST_PORT", NULL},
        {"RKTEST_PORT_7000_TCP_ADDR", NULL},
        {"RKTEST_SERVICE_HOST", NULL},
        {"RKTEST_ACTOR_SERVICE_PORT_GRPC", NULL},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_config *config;
        struct rk_status *st;

        print_message("%s\n", cases[i].name);
        setenv(cases[i].name, "hidden", 1);
        st = load_with(&config, "{}", none);
        unsetenv(cases[i].name);
        if (cases[i].problem) {
            assert_null(strstr(rk_status_message(st), "hidden"));
            assert_fails(st, RK_INVALID_ARGUMENT, cases[i].problem);
        } else {
            assert_ok(st);
        }
        rk_config_destroy(config);
    }
}

static void test_config_load_many_problems_are_capped(void **state)
{
    static const char *const none[MAX_FLAGS];
    struct rk_str text = {0};
    struct rk_config *config;

    (void)state;
    rk_str_append(&text, "{");
    for (int i = 0; i < 70; i++)
        rk_str_appendf(&text, "%s\"unknown_%d\":1", i ? "," : "", i);
    rk_str_append(&text, "}");
    assert_fails(load_with(&config, rk_str_text(&text), none), RK_INVALID_ARGUMENT, "\n... and 20 more");
    rk_str_fini(&text);
}

static void test_config_load_required_and_missing_file(void **state)
{
    static const struct rk_config_key required[] = {
        {"data.train_files", RK_CONFIG_STRING, NULL, 0, 0, NULL, RK_CONFIG_REQUIRED, "prompts"},
    };
    struct rk_config_source source = {.keys = required, .num_keys = 1, .file = "/nonexistent/job.json"};
    struct rk_config *config;

    (void)state;
    assert_fails(rk_config_load(&config, &source), RK_NOT_FOUND, "/nonexistent/job.json");
    source.file = NULL;
    assert_fails(rk_config_load(&config, &source), RK_INVALID_ARGUMENT,
                 "data.train_files: required, but not set (prompts)");
    source.text = "{\"data\":{\"train_files\":\"a.jsonl\"}}";
    assert_ok(rk_config_load(&config, &source));
    assert_string_equal(rk_config_origin(config, "data.train_files"), "text:1");
    rk_config_destroy(config);
}

/* --- references --- */

static void test_config_refs_table(void **state)
{
    static const struct {
        const char *label, *text, *path, *expected;
    } cases[] = {
        {"default refers to a default", "{}", "ref.parallel.tp", "1"},
        {"default refers to a set value", "{\"actor\":{\"parallel\":{\"tp\":8}}}", "ref.parallel.tp", "8"},
        {"whole section",
         "{\"actor\":{\"parallel\":{\"tp\":8}},\"ref\":{\"parallel\":\"${actor.parallel}\"}}", "ref.parallel",
         "{\"tp\":8,\"pp\":1}"},
        {"default unused", "{\"name\":\"${device:x}\"}", "name", "\"cpu\""},
        {"default for absent", "{\"name\":\"${no.such:fallback}\"}", "name", "\"fallback\""},
        {"default for null", "{\"device\":\"${name:cuda:2}\"}", "device", "\"cuda:2\""},
        {"JSON default", "{\"engine_kwargs\":{\"a\":\"${no.such:{\\\"b\\\":[1]}}\"}}", "engine_kwargs",
         "{\"a\":{\"b\":[1]}}"},
        {"empty default", "{\"device\":\"${no.such:}\"}", "device", "\"\""},
        {"environment", "{\"device\":\"${env:RKT_HOST}\"}", "device", "\"node7\""},
        {"environment with unused default", "{\"device\":\"${env:RKT_HOST:x}\"}", "device", "\"node7\""},
        {"environment number", "{\"actor\":{\"parallel\":{\"tp\":\"${env:RKT_TP}\"}}}", "actor.parallel.tp",
         "4"},
        {"number as text", "{\"device\":\"${env:RKT_TP}\"}", "device", "\"4\""},
        {"chain", "{\"name\":\"${engine_kwargs.x}\",\"engine_kwargs\":{\"x\":\"${device}\"}}", "name",
         "\"cpu\""},
        {"in an array", "{\"ckpt\":{\"roots\":[\"${device}\",\"$x\"]}}", "ckpt.roots", "[\"cpu\",\"$x\"]"},
        {"no interpolation inside text", "{\"device\":\"a ${name}\"}", "device", "\"a ${name}\""},
    };

    (void)state;
    setenv("RKT_HOST", "node7", 1);
    setenv("RKT_TP", "4", 1);
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_config *config;
        char *text;

        print_message("%s\n", cases[i].label);
        config = load_ok(cases[i].text);
        text = rk_json_dump(rk_json_find_path(rk_config_tree(config), cases[i].path), 0, false);
        assert_string_equal(text, cases[i].expected);
        rk_free(text);
        rk_config_destroy(config);
    }
    unsetenv("RKT_HOST");
    unsetenv("RKT_TP");
}

/* Goal: references that double at each step are a reported problem and do not exhaust memory. */
static void test_config_refs_that_double_are_bounded(void **state)
{
    static const char *const none[MAX_FLAGS];
    struct rk_str text = {0};
    struct rk_config *config;

    (void)state;
    rk_str_append(&text, "{\"engine_kwargs\":{\"a0\":1");
    for (int i = 1; i <= 25; i++)
        rk_str_appendf(&text, ",\"a%d\":[\"${engine_kwargs.a%d}\",\"${engine_kwargs.a%d}\"]", i, i - 1,
                       i - 1);
    rk_str_append(&text, "}}");
    assert_fails(load_with(&config, rk_str_text(&text), none), RK_INVALID_ARGUMENT, "too many references");
    rk_str_fini(&text);
}

/* --- trees --- */

struct tree_file {
    const char *path, *text;
};

/* The tree of the example, with every construct of views. */
static const struct tree_file tree[] = {
    {"nest/model/arch/__manifest__.json", "{\"selection_mode\":\"one\"}"},
    {"nest/model/arch/qwen2-base.json",
     "{\"hidden_act\":\"silu\",\"qkv_bias\":true,\n\"rope_theta\":1000000.0}"},
    {"nest/model/arch/qwen2.5-0.5b.json", "{\"__inherit__\":\"qwen2-base\",\n\"hidden_size\":896}"},
    {"nest/model/arch/no-bias.json",
     "{\"__inherit__\":[\"qwen2-base.json\",\"wide\"],\"__delete__\":[\"qkv_bias\"]}"},
    {"nest/model/arch/wide.json", "{\"hidden_size\":4096,\"rope_theta\":5}"},
    {"nest/model/arch/loop.json", "{\"__inherit__\":\"pool\"}"},
    {"nest/model/arch/pool.json", "{\"__inherit__\":\"loop\"}"},
    {"nest/model/arch/orphan.json", "{\"__inherit__\":\"nobody\"}"},
    {"nest/model/arch/outside.json", "{\"__inherit__\":\"../../../secret\"}"},
    {"nest/model/arch/text.json", "{\"hidden_size\":\"wide\"}"},
    {"nest/model/arch/broken.json", "{\"hidden_size\":\n}"},
    {"nest/model/arch/delete.json", "{\"__delete__\":[\"nothing\"]}"},
    {"nest/model/arch/select.json", "{\"__select__\":\"wide\"}"},
    {"nest/model/arch/.hidden.json", "{\"hidden_size\":1}"},
    {"nest/actor/parallel.json", "{\"tp\":1,\"pp\":1}"},
    {"nest/actor/optim/__manifest__.json",
     "{\"selection_mode\":\"one\",\"if_no_selection\":\"default\",\"default_selection\":\"slow\"}"},
    {"nest/actor/optim/slow.json", "{\"lr\":1e-7}"},
    {"nest/actor/optim/fast.json", "{\"lr\":0.5,\"clip\":null}"},
    {"nest/ref/parallel/__manifest__.json", "{\"selection_mode\":\"one\",\"if_no_selection\":\"skip\"}"},
    {"nest/ref/parallel/two.json", "{\"tp\":2}"},
    {"endless/log/level.json", "{}"},
    {"odd/log/__manifest__.json", "{\"selection_mode\":\"some\"}"},
    {"odd/log/level.json", "{}"},
    {"secret.json", "{\"hidden_size\":1}"},
};

/* Writes the tree once and returns the path of the view file in it. */
static char *make_tree(const char *view)
{
    static bool is_made;
    char *path;

    for (size_t i = 0; i < RK_ARRAY_LEN(tree) && !is_made; i++) {
        path = rk_test_temp_path(tree[i].path);
        for (char *slash = strchr(path + strlen(rk_test_temp_dir()) + 1, '/'); slash;
             slash = strchr(slash + 1, '/')) {
            *slash = '\0';
            mkdir(path, 0700);
            *slash = '/';
        }
        rk_test_write_file(path, tree[i].text, strlen(tree[i].text));
        rk_free(path);
    }
    is_made = true;
    path = rk_test_temp_path("view.json");
    rk_test_write_file(path, view, strlen(view));
    return path;
}

static struct rk_status *load_view(struct rk_config **out, const char *view)
{
    char *path = make_tree(view);
    const struct rk_config_source source = {.keys = keys, .num_keys = RK_ARRAY_LEN(keys), .file = path};
    struct rk_status *st = rk_config_load(out, &source);

    rk_free(path);
    return st;
}

static void test_config_tree_select_inherit_override(void **state)
{
    static const char view[] = "{\"model\":{\"arch\":{\"__select__\":\"qwen2.5-0.5b\",\n"
                               " \"__override__\":{\"rope_theta\":10000.0}}},\n"
                               " \"actor\":{\"parallel\":{\"tp\":2}},\n"
                               " \"device\":\"cuda:0\"}";
    struct rk_config *config;

    (void)state;
    assert_ok(load_view(&config, view));
    assert_true(rk_config_real(config, "model.arch.rope_theta") == 10000.0);
    assert_true(rk_config_bool(config, "model.arch.qkv_bias"));
    assert_int_equal(rk_config_int(config, "model.arch.hidden_size"), 896);
    assert_int_equal(rk_config_int(config, "actor.parallel.tp"), 2);
    assert_int_equal(rk_config_int(config, "actor.parallel.pp"), 1);
    assert_true(rk_config_real(config, "actor.optim.lr") == 1e-7);     /* set by the manifest */
    assert_string_equal(rk_config_string(config, "device"), "cuda:0"); /* not in the tree, but in the table */
    assert_int_equal(rk_config_int(config, "ref.parallel.tp"), 2);     /* skipped, so the default: actor's */
    assert_non_null(strstr(rk_config_origin(config, "model.arch.rope_theta"), "view.json:2"));
    assert_non_null(strstr(rk_config_origin(config, "model.arch.qkv_bias"), "qwen2-base.json:1"));
    assert_non_null(strstr(rk_config_origin(config, "model.arch.hidden_size"), "qwen2.5-0.5b.json:2"));
    assert_non_null(strstr(rk_config_origin(config, "actor.parallel.tp"), "view.json:3"));
    rk_config_destroy(config);
}

static void test_config_tree_accepts_table(void **state)
{
    static const struct {
        const char *label, *view, *path, *expected;
    } cases[] = {
        {"direct keys beside __select__",
         "{\"model\":{\"arch\":{\"__select__\":\"wide\",\"hidden_size\":3}}}", "model.arch.hidden_size", "3"},
        {"several parents, later wins", "{\"model\":{\"arch\":{\"__select__\":\"no-bias\"}}}",
         "model.arch.rope_theta", "5"},
        {"__delete__ in a file", "{\"model\":{\"arch\":{\"__select__\":\"no-bias\"}}}", "model.arch.qkv_bias",
         "false"},
        {"__delete__ in the view",
         "{\"model\":{\"arch\":{\"__select__\":\"wide\",\"__delete__\":[\"hidden_size\"]}}}",
         "model.arch.hidden_size", "64"},
        {"a number replaces an integer",
         "{\"model\":{\"arch\":{\"__select__\":\"wide\",\"rope_theta\":2.5}}}", "model.arch.rope_theta",
         "2.5"},
        {"a value replaces null",
         "{\"model\":{\"arch\":{\"__select__\":\"wide\"}},\"actor\":{\"optim\":{\"__select__\":\"fast\","
         "\"clip\":2}}}",
         "actor.optim.clip", "2"},
        {"a reference replaces a number",
         "{\"model\":{\"arch\":{\"__select__\":\"wide\",\"hidden_size\":\"${actor.parallel.tp}\"}}}",
         "model.arch.hidden_size", "1"},
        {"selected instead of skipped",
         "{\"model\":{\"arch\":{\"__select__\":\"wide\"}},\"ref\":{\"parallel\":{\"__select__\":\"two\"}}}",
         "ref.parallel.tp", "2"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_config *config;
        char *text;

        print_message("%s\n", cases[i].label);
        assert_ok(load_view(&config, cases[i].view));
        text = rk_json_dump(rk_json_find_path(rk_config_tree(config), cases[i].path), 0, false);
        assert_string_equal(text, cases[i].expected);
        rk_free(text);
        rk_config_destroy(config);
    }
}

#define ARCH(rest) "{\"model\":{\"arch\":{" rest "}}}"

static void test_config_tree_rejects_table(void **state)
{
    static const struct {
        const char *view, *message;
    } cases[] = {
        {ARCH("\"__override__\":{}"),
         "view.json:1: model.arch: needs a __select__, one of: broken, delete, loop"},
        {ARCH("\"__select__\":\"qwen3\""), "model.arch: __select__: expected one of: broken"},
        {ARCH("\"__select__\":[\"wide\"]"), "__select__: expected one of"},
        {ARCH("\"__select__\":\"../wide\""), "__select__: expected one of"},
        {ARCH("\"__select__\":\".hidden\""), "__select__: expected one of"},
        {ARCH("\"__select__\":\"__manifest__\""), "__select__: expected one of"},
        {"{\"model\":{\"__select__\":\"arch\"}}", "model.__select__: this part is a folder of which all"},
        {"{\"actor\":{\"parallel\":{\"__select__\":\"x\"}}}",
         "actor.parallel.__select__: there is nothing to select"},
        {ARCH("\"__select__\":\"loop\""), "__inherit__ of 'loop' is circular"},
        {ARCH("\"__select__\":\"orphan\""), "nobody.json' to inherit from does not exist"},
        {ARCH("\"__select__\":\"outside\""), "'../../../secret' is outside of"},
        {ARCH("\"__select__\":\"broken\""), "broken.json:2:"},
        {ARCH("\"__select__\":\"delete\""), "__delete__: there is no 'nothing'"},
        {ARCH("\"__select__\":\"select\""), "select.json:1: model.arch.__select__: not allowed here"},
        {ARCH("\"__select__\":\"text\""), "model.arch.hidden_size: expected an integer, got \"wide\""},
        {ARCH("\"__select__\":\"wide\",\"hidden_size\":\"x\""), "expected an integer as in "},
        {ARCH("\"__select__\":\"wide\",\"hidden_size\":{\"x\":1}"), "got an object"},
        {ARCH("\"__select__\":\"wide\",\"hidden_sise\":3"), "unknown key; did you mean 'hidden_size'?"},
        {ARCH("\"__select__\":\"wide\",\"hidden_size\":1,\"__override__\":{\"hidden_size\":2}"),
         "model.arch.hidden_size: given twice"},
        {ARCH("\"__select__\":\"wide\",\"__override__\":3"), "model.arch.__override__: expected an object"},
        {ARCH("\"__select__\":\"wide\",\"__delete__\":\"hidden_size\""),
         "__delete__: expected an array of names"},
        {ARCH("\"__select__\":\"wide\",\"__inherit__\":\"pool\""),
         "model.arch.__inherit__: not allowed here"},
        {ARCH("\"__select__\":\"wide\",\"__unknown__\":1"), "model.arch.__unknown__: not allowed here"},
        {"{\"modle\":{\"arch\":{\"__select__\":\"wide\"}}}", "modle.arch.__select__: not allowed here"},
        {"{\"actor\":3,\"model\":{\"arch\":{\"__select__\":\"wide\"}}}",
         "actor: expected an object, got an integer"},
        {"{\"__nest__\":\"nowhere\"}", "nowhere' does not exist"},
        {"{\"__nest__\":3}", "__nest__: expected the path of a folder"},
        {"{\"__nest__\":\"odd\"}", "selection_mode (one|all)"},
        {"{\"__nest__\":\"nest\",\"model\":{\"arch\":{\"__select__\":\"wide\",\"__nest__\":\"x\"}}}",
         "model.arch.__nest__: not allowed here"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_config *config;

        assert_fails(load_view(&config, cases[i].view), RK_INVALID_ARGUMENT, cases[i].message);
    }
}

/* Goal: a directory that contains a link to itself is a reported problem. */
static void test_config_tree_endless_folders_are_bounded(void **state)
{
    char *link = rk_test_temp_path("endless/log/log");
    struct rk_config *config;
    struct rk_status *st;

    (void)state;
    rk_free(make_tree("{}"));
    assert_int_equal(symlink(".", link), 0);
    st = load_view(&config, "{\"__nest__\":\"endless\"}");
    assert_int_equal(unlink(link), 0);
    rk_free(link);
    assert_fails(st, RK_INVALID_ARGUMENT, "folders nest deeper than 32");
}

/* Goal: an invalid part of the tree neither hides problems elsewhere nor adds false ones. */
static void test_config_tree_broken_part_reports_the_rest(void **state)
{
    struct rk_config *config;
    struct rk_status *st =
        load_view(&config, "{\"model\":{\"arch\":{\"__select__\":\"broken\"}},\n\"devise\":1,\n"
                           "\"name\":\"${model.arch.hidden_act}\"}");

    (void)state;
    assert_null(strstr(rk_status_message(st), "hidden_act"));
    assert_message_contains(rk_status_clone(st), "broken.json:2:");
    assert_message_contains(st, "view.json:2: devise: unknown key; did you mean 'device'?");
}

/* --- texts --- */

static void test_config_format_lists_value_and_origin(void **state)
{
    static const char *const flags[MAX_FLAGS] = {"device=cuda:0"};
    struct rk_config *config;
    struct rk_str text = {0};

    (void)state;
    assert_ok(load_with(&config, "{\"actor\":{\"optim\":{\"lr\":0.1}}}", flags));
    rk_config_format(config, &text);
    assert_non_null(strstr(text.text, "device = \"cuda:0\" (flag)\n"));
    assert_non_null(strstr(text.text, "actor.optim.lr = 0.1 (job.json:1)\n"));
    assert_non_null(strstr(text.text, "name = null (default)\n"));
    rk_str_clear(&text);
    rk_config_format_keys(keys, RK_ARRAY_LEN(keys), &text);
    assert_non_null(strstr(text.text, "log.level (debug|info|warn|error, default \"info\"): least level\n"));
    assert_non_null(strstr(text.text, "rpc.max_inflight (bytes, default \"8GiB\"): bytes [reloadable]\n"));
    rk_str_fini(&text);
    rk_config_destroy(config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config_load_nothing_gives_defaults),
        cmocka_unit_test(test_config_load_file_values_with_lines),
        cmocka_unit_test(test_config_load_precedence),
        cmocka_unit_test(test_config_load_flags_table),
        cmocka_unit_test(test_config_load_flags_are_read_as_by_hydra),
        cmocka_unit_test(test_config_load_flags_know_python_and_pluses),
        cmocka_unit_test(test_config_foreign_rows),
        cmocka_unit_test(test_config_foreign_names_are_numbered),
        cmocka_unit_test(test_config_number_as_text),
        cmocka_unit_test(test_config_load_rejects_table),
        cmocka_unit_test(test_config_load_collects_all_problems),
        cmocka_unit_test(test_config_load_variables_without_a_key_are_refused),
        cmocka_unit_test(test_config_load_many_problems_are_capped),
        cmocka_unit_test(test_config_load_required_and_missing_file),
        cmocka_unit_test(test_config_refs_table),
        cmocka_unit_test(test_config_refs_that_double_are_bounded),
        cmocka_unit_test(test_config_tree_select_inherit_override),
        cmocka_unit_test(test_config_tree_accepts_table),
        cmocka_unit_test(test_config_tree_rejects_table),
        cmocka_unit_test(test_config_tree_endless_folders_are_bounded),
        cmocka_unit_test(test_config_tree_broken_part_reports_the_rest),
        cmocka_unit_test(test_config_format_lists_value_and_origin),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
