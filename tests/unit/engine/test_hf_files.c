/* Hugging Face directories: accepted files, refused files, exported files. */
#include "tests/support/test.h"

#include <stdio.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_log.h"
#include "base/rk_rng.h"
#include "engine/model/model.h"
#include "base/format/rk_safetensors.h"
#include "base/rk_str.h"
#include "tests/support/models.h"

#define CONFIG                                                                                              \
    "{\"model_type\": \"llama\", \"hidden_size\": 16, \"intermediate_size\": 24, \"num_hidden_layers\": 1," \
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 37, "                         \
    "\"max_position_embeddings\": 16,"                                                                      \
    " \"unknown_key\": [1, {\"kept\": true}], \"tie_word_embeddings\": "
#define UNTIED       CONFIG "false}"
#define TIED         CONFIG "true}"
#define ELEMENTS_MAX 1024

/* The content of a weight file, and how it differs from what the model expects. */
struct file_spec {
    rk_dtype_t dtype;
    const char *drop;    /* a tensor to leave out */
    const char *reshape; /* a tensor to give another shape */
    bool flattens;       /* the shape has another rank, not another size */
    rk_dtype_t retype;   /* with `reshape`: its dtype instead */
    bool adds_others;    /* tensors that the model ignores, and a head in addition to the tied embedding */
    bool uses_alias;     /* the tied embedding has its second name */
    const char *poison;  /* a tensor whose second to last element becomes poison_value */
    double poison_value;
    int64_t begin, end; /* tensors of the table; end 0: all */
};

/* Small multiples of 1/8: exact in every dtype. The embedding has the same values under both of its names. */
static double value_of(const char *name, int64_t i)
{
    if (strcmp(name, "lm_head.weight") == 0)
        name = "model.embed_tokens.weight";
    return (double)((int64_t)((rk_rng_stream_of_name(name) + (uint64_t)i * 7) % 31) - 15) / 8;
}

static void fill_raw(void *raw, const struct rk_st_entry *entry, const struct file_spec *spec)
{
    double values[2 * ELEMENTS_MAX];
    int64_t count = entry->shape[0] * (entry->rank > 1 ? entry->shape[1] : 1);

    for (int64_t i = 0; i < count; i++)
        values[i] = value_of(entry->name, i);
    if (spec->poison && strcmp(spec->poison, entry->name) == 0)
        values[count - 2] = spec->poison_value;
    if (rk_dtype_is_float(entry->dtype))
        rk_store_f64(raw, entry->dtype, values, count);
    else
        memset(raw, 0, (size_t)count * rk_dtype_bytes(entry->dtype));
}

static int64_t list_entries(struct rk_st_entry *entries, const struct rk_model *model,
                            const struct file_spec *spec)
{
    int64_t end = spec->end ? spec->end : rk_model_num_params(model), count = 0;

    for (int64_t i = spec->begin; i < end; i++) {
        const struct rk_param *param = rk_model_param_at(model, i);
        const char *name = spec->uses_alias && *param->alias ? param->alias : param->name;
        struct rk_st_entry entry = {.name = name,
                                    .dtype = spec->dtype,
                                    .rank = param->rank,
                                    .shape = {param->shape[0], param->shape[1]}};

        if (spec->drop && strcmp(spec->drop, param->name) == 0)
            continue;
        if (spec->reshape && strcmp(spec->reshape, param->name) == 0) {
            entry.dtype = spec->retype ? spec->retype : spec->dtype;
            if (!spec->retype && spec->flattens) {
                entry.rank = 1;
                entry.shape[0] *= entry.shape[1];
            } else if (!spec->retype) {
                entry.shape[0]++;
            }
        }
        entries[count++] = entry;
    }
    if (spec->adds_others) {
        entries[count++] =
            (struct rk_st_entry){.name = "lm_head.weight", .dtype = RK_DTYPE_F32, .rank = 2, .shape = {3, 5}};
        entries[count++] =
            (struct rk_st_entry){.name = "some.counter", .dtype = RK_DTYPE_I64, .rank = 1, .shape = {1}};
    }
    return count;
}

static void write_file(const char *dir, const char *name, const struct rk_model *model,
                       const struct file_spec *spec)
{
    struct rk_st_entry entries[32];
    int64_t count = list_entries(entries, model, spec);
    char *path = rk_path_join(dir, name);
    struct rk_st_writer *writer;

    assert_ok(rk_st_writer_create(&writer, path, entries, count, NULL));
    for (int64_t i = 0; i < count; i++) {
        uint8_t raw[2 * ELEMENTS_MAX * 8];
        int64_t elements = entries[i].shape[0] * (entries[i].rank > 1 ? entries[i].shape[1] : 1);

        fill_raw(raw, &entries[i], spec);
        assert_ok(rk_st_writer_write(writer, i, 0, raw, (size_t)elements * rk_dtype_bytes(entries[i].dtype)));
    }
    assert_ok(rk_st_writer_commit(writer));
    rk_st_writer_destroy(writer);
    rk_free(path);
}

static void write_text(const char *dir, const char *name, const char *text)
{
    char *path = rk_path_join(dir, name);

    rk_test_write_file(path, text, strlen(text));
    rk_free(path);
}

static char *make_dir(const char *name)
{
    char *path = rk_test_temp_path(name);

    assert_int_equal(mkdir(path, 0777), 0);
    return path;
}

static void open_model(struct rk_test_model *test, const char *config)
{
    assert_ok(rk_test_model_open(
        test, &(struct rk_test_model_spec){.config = config, .seed = 1, .dtype = RK_DTYPE_F32}));
}

static void assert_loaded(struct rk_model *model, const char *label)
{
    double values[ELEMENTS_MAX];

    for (int64_t i = 0; i < rk_model_num_params(model); i++) {
        const struct rk_param *param = rk_model_param_at(model, i);

        assert_ok(rk_model_gather_param(model, i, values));
        for (int64_t e = 0; e < param->shape[0] * param->shape[1]; e++) {
            if (values[e] != value_of(param->name, e))
                fail_msg("%s: %s[%lld] = %g", label, param->name, (long long)e, values[e]);
        }
    }
}

#define INDEX_FULL                                                                                          \
    "{\"metadata\": {\"total_size\": 1.5}, \"weight_map\": {"                                               \
    "\"model.embed_tokens.weight\": \"a.safetensors\", \"model.layers.0.input_layernorm.weight\": "         \
    "\"a.safetensors\","                                                                                    \
    "\"model.layers.0.self_attn.q_proj.weight\": \"a.safetensors\","                                        \
    "\"model.layers.0.self_attn.k_proj.weight\": \"a.safetensors\","                                        \
    "\"model.layers.0.self_attn.v_proj.weight\": \"b.safetensors\","                                        \
    "\"model.layers.0.self_attn.o_proj.weight\": \"b.safetensors\","                                        \
    "\"model.layers.0.post_attention_layernorm.weight\": \"b.safetensors\","                                \
    "\"model.layers.0.mlp.gate_proj.weight\": \"b.safetensors\", \"model.layers.0.mlp.up_proj.weight\": "   \
    "\"b.safetensors\","                                                                                    \
    "\"model.layers.0.mlp.down_proj.weight\": \"b.safetensors\", \"model.norm.weight\": \"b.safetensors\"," \
    "\"lm_head.weight\": \"b.safetensors\"}}"

struct load_case {
    const char *label;
    bool is_tied;
    struct {
        const char *name; /* NULL: none */
        struct file_spec spec;
    } files[2];
    const char *text_name, *text; /* a further file */
    rk_code_t code;
    const char *error; /* NULL: loads */
};

#define SINGLE "model.safetensors"
#define INDEX  "model.safetensors.index.json"
#define F32    .dtype = RK_DTYPE_F32

static const struct load_case load_cases[] = {
    {"one file", false, {{SINGLE, {F32}}}, NULL, NULL, RK_OK, NULL},
    {"bf16", false, {{SINGLE, {.dtype = RK_DTYPE_BF16}}}, NULL, NULL, RK_OK, NULL},
    {"f16", false, {{SINGLE, {.dtype = RK_DTYPE_F16}}}, NULL, NULL, RK_OK, NULL},
    {"f64", false, {{SINGLE, {.dtype = RK_DTYPE_F64}}}, NULL, NULL, RK_OK, NULL},
    {"tied, with a head and others that are ignored",
     true,
     {{SINGLE, {F32, .adds_others = true}}},
     NULL,
     NULL,
     RK_OK,
     NULL},
    {"tied, under the name of the head",
     true,
     {{SINGLE, {F32, .uses_alias = true}}},
     NULL,
     NULL,
     RK_OK,
     NULL},
    {"several files without index",
     false,
     {{"x.safetensors", {F32, .end = 5}}, {"y.safetensors", {F32, .begin = 5}}},
     NULL,
     NULL,
     RK_OK,
     NULL},
    {"several files with index",
     false,
     {{"a.safetensors", {F32, .end = 4}}, {"b.safetensors", {F32, .begin = 4}}},
     INDEX,
     INDEX_FULL,
     RK_OK,
     NULL},
    {"model.safetensors wins over the index, as in transformers",
     false,
     {{SINGLE, {F32}}, {"b.safetensors", {F32, .end = 4}}},
     INDEX,
     "{\"weight_map\": {}}",
     RK_OK,
     NULL},
    {"nothing", false, {{NULL, {0}}}, NULL, NULL, RK_NOT_FOUND, "no *.safetensors file"},
    {"pickles",
     false,
     {{NULL, {0}}},
     "pytorch_model-00001-of-00002.bin",
     "x",
     RK_UNIMPLEMENTED,
     "pytorch_model"},
    {"missing tensor",
     false,
     {{SINGLE, {F32, .drop = "model.norm.weight"}}},
     NULL,
     NULL,
     RK_NOT_FOUND,
     "tensor 'model.norm.weight' is in no weight file of"},
    {"missing tensor of the index",
     false,
     {{"a.safetensors", {F32, .end = 3}}, {"b.safetensors", {F32, .begin = 4}}},
     INDEX,
     INDEX_FULL,
     RK_NOT_FOUND,
     "tensor 'model.layers.0.self_attn.k_proj.weight'"},
    {"missing file of the index",
     false,
     {{"a.safetensors", {F32, .end = 4}}},
     INDEX,
     INDEX_FULL,
     RK_NOT_FOUND,
     "b.safetensors"},
    {"index outside",
     false,
     {{"a.safetensors", {F32}}},
     INDEX,
     "{\"weight_map\": {\"w\": \"../a.safetensors\"}}",
     RK_DATA_LOSS,
     "weight_map: w: expected a bare file name"},
    {"index to itself",
     false,
     {{"a.safetensors", {F32}}},
     INDEX,
     "{\"weight_map\": {\"w\": \"..\"}}",
     RK_DATA_LOSS,
     "bare file name"},
    {"index of a number",
     false,
     {{"a.safetensors", {F32}}},
     INDEX,
     "{\"weight_map\": {\"w\": 3}}",
     RK_DATA_LOSS,
     "bare file name"},
    {"index without map",
     false,
     {{"a.safetensors", {F32}}},
     INDEX,
     "{\"metadata\": {}}",
     RK_DATA_LOSS,
     "weight_map: expected an object"},
    {"index of nothing", false, {{"a.safetensors", {F32}}}, INDEX, "{\"weight_map\": ", RK_DATA_LOSS, INDEX},
    {"twice",
     false,
     {{"x.safetensors", {F32}}, {"y.safetensors", {F32, .begin = 5}}},
     NULL,
     NULL,
     RK_DATA_LOSS,
     "y.safetensors"},
    {"shape",
     false,
     {{SINGLE, {F32, .reshape = "model.layers.0.mlp.up_proj.weight"}}},
     NULL,
     NULL,
     RK_INVALID_ARGUMENT,
     "shape [25, 16], expected [24, 16]"},
    {"rank",
     false,
     {{SINGLE, {F32, .reshape = "model.layers.0.mlp.up_proj.weight", .flattens = true}}},
     NULL,
     NULL,
     RK_INVALID_ARGUMENT,
     "shape [384], expected [24, 16]"},
    {"integers",
     false,
     {{SINGLE, {F32, .reshape = "model.norm.weight", .retype = RK_DTYPE_I32}}},
     NULL,
     NULL,
     RK_UNIMPLEMENTED,
     "is I32, expected F16"},
    {"no safetensors", false, {{NULL, {0}}}, SINGLE, "short", RK_DATA_LOSS, SINGLE},
};

/* Goal: every layout of files that occurs in practice is read, and every defect is named. */
static void test_load_of_directories_reads_or_names_the_defect(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(load_cases); i++) {
        const struct load_case *row = &load_cases[i];
        char *name = rk_format("load-%zu", i), *dir = make_dir(name);
        struct rk_test_model test;
        struct rk_status *st;

        open_model(&test, row->is_tied ? TIED : UNTIED);
        for (int f = 0; f < 2 && row->files[f].name; f++)
            write_file(dir, row->files[f].name, test.model, &row->files[f].spec);
        if (row->text)
            write_text(dir, row->text_name, row->text);
        st = rk_model_load_hf(test.model, dir, NULL);
        print_message("  %s\n", row->label);
        if (row->error) {
            assert_fails(st, row->code, row->error);
        } else {
            assert_ok(st);
            assert_loaded(test.model, row->label);
        }
        rk_test_model_close(&test);
        rk_free(name);
        rk_free(dir);
    }
}

/* Goal: tied weights that a directory has under both names must be equal, since transformers does not tie
 * others: the plan of a role finds it. */
static void test_check_of_tied_weights_compares_them(void **state)
{
    static const struct {
        struct file_spec spec;
        const char *error; /* NULL: accepted */
    } cases[] = {
        {{F32, .uses_alias = true, .end = 1}, NULL},
        {{.dtype = RK_DTYPE_BF16, .uses_alias = true, .end = 1},
         "differ, but config.json has tie_word_embeddings"},
        {{F32, .uses_alias = true, .end = 1, .poison = "lm_head.weight", .poison_value = 2},
         "'model.embed_tokens.weight' and 'lm_head.weight'"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char *name = rk_format("tied-%zu", i), *dir = make_dir(name);
        struct rk_test_model test;

        open_model(&test, TIED);
        write_file(dir, "x.safetensors", test.model, &(struct file_spec){F32});
        write_file(dir, "y.safetensors", test.model, &cases[i].spec);
        if (cases[i].error)
            assert_fails(rk_model_check_hf(test.model, dir), RK_INVALID_ARGUMENT, cases[i].error);
        else
            assert_ok(rk_model_check_hf(test.model, dir));
        rk_test_model_close(&test);
        rk_free(name);
        rk_free(dir);
    }
}

static void append_warning(rk_log_level_t level, const char *line, void *user)
{
    if (level == RK_LOG_WARN)
        rk_str_appendf(user, "%s\n", line);
}

/* Goal: weights that the model of config.json does not use are named, for instance those of additional
 * layers. */
static void test_load_of_unused_weights_is_reported(void **state)
{
    static const struct file_spec specs[] = {{F32}, {F32, .adds_others = true}};
    static const char *const warnings[] = {"", "ignoring 1 of 13 tensors that config.json does not define: "};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(specs); i++) {
        char *name = rk_format("more-%zu", i), *dir = make_dir(name);
        struct rk_str lines = {0};
        struct rk_test_model test;

        open_model(&test, TIED);
        write_file(dir, SINGLE, test.model, &specs[i]);
        rk_log_set_sink(append_warning, &lines);
        assert_ok(rk_model_load_hf(test.model, dir, NULL));
        rk_log_set_sink(NULL, NULL);
        if (!warnings[i][0])
            assert_string_equal(rk_str_text(&lines), "");
        assert_non_null(strstr(rk_str_text(&lines), warnings[i]));
        rk_test_model_close(&test);
        rk_str_fini(&lines);
        rk_free(name);
        rk_free(dir);
    }
}

static void test_load_of_missing_directory_is_not_found(void **state)
{
    struct rk_test_model test;

    (void)state;
    open_model(&test, UNTIED);
    assert_fails(rk_model_load_hf(test.model, "/nonexistent/model", NULL), RK_NOT_FOUND,
                 "/nonexistent/model");
    rk_test_model_close(&test);
}

/* Goal: a truncated file is detected before its bytes are used. */
static void test_load_of_truncated_file_is_data_loss(void **state)
{
    char *dir = make_dir("truncated"), *path = rk_path_join(dir, SINGLE);
    struct rk_test_model test;
    struct stat info;

    (void)state;
    open_model(&test, UNTIED);
    write_file(dir, SINGLE, test.model, &(struct file_spec){F32});
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(truncate(path, info.st_size - 1), 0);
    assert_fails(rk_model_load_hf(test.model, dir, NULL), RK_DATA_LOSS, SINGLE);
    rk_test_model_close(&test);
    rk_free(path);
    rk_free(dir);
}

static bool exists(const char *dir, const char *name)
{
    char *path = rk_path_join(dir, name);
    bool found = access(path, F_OK) == 0;

    rk_free(path);
    return found;
}

/* Goal: an export in shards has Hugging Face's names, index and configuration, unknown keys included. */
static void test_export_in_shards_writes_index_and_config(void **state)
{
    char *parent = rk_test_temp_path("deep"), *dir = rk_path_join(parent, "er/sharded"), *path, *shard;
    struct rk_json *index, *config;
    struct rk_test_model test;
    int64_t num_bytes;

    (void)state;
    open_model(&test, UNTIED);
    num_bytes = rk_model_num_elements(test.model) * 4;
    assert_ok(rk_model_export_hf(test.model, dir, 4096, NULL)); /* creates the parents too */
    path = rk_path_join(dir, INDEX);
    assert_ok(rk_json_parse_file(&index, path, 1 << 20, 0));
    assert_int_equal(rk_json_as_int(rk_json_find_path(index, "metadata.total_size"), 0), num_bytes);
    assert_int_equal(rk_json_count(rk_json_find(index, "weight_map")), rk_model_num_params(test.model));
    shard =
        rk_strdup(rk_json_as_string(rk_json_find(rk_json_find(index, "weight_map"), "lm_head.weight"), ""));
    assert_true(rk_str_has_prefix(shard, "model-0000"));
    assert_true(exists(dir, shard));
    assert_false(exists(dir, SINGLE));
    rk_free(path);
    path = rk_path_join(dir, "config.json");
    assert_ok(rk_json_parse_file(&config, path, 1 << 20, 0));
    assert_string_equal(rk_json_as_string(rk_json_find(config, "torch_dtype"), ""), "float32");
    assert_int_equal(rk_json_count(rk_json_find(config, "unknown_key")), 2);
    rk_json_free(config);
    rk_json_free(index);
    rk_test_model_close(&test);
    rk_free(shard);
    rk_free(path);
    rk_free(dir);
    rk_free(parent);
}

static struct rk_status *export_to(const char *dir)
{
    struct rk_test_model test;
    struct rk_status *st;

    open_model(&test, UNTIED);
    st = rk_model_export_hf(test.model, dir, 0, NULL);
    rk_test_model_close(&test);
    return st;
}

/* Calls seen by the hooks, and the number of calls after which they request a stop. */
struct seen {
    char phase[32];
    uint64_t done, total;
    int64_t num_ticks, stops_after; /* stops_after 0: never */
};

static void note_progress(void *user, const char *phase, uint64_t done, uint64_t total)
{
    struct seen *seen = user;

    assert_true(done >= seen->done);
    assert_true(seen->num_ticks == 0 || total == seen->total);
    snprintf(seen->phase, sizeof(seen->phase), "%s", phase);
    seen->done = done;
    seen->total = total;
    seen->num_ticks++;
}

static bool asks_to_stop(void *user)
{
    const struct seen *seen = user;

    return seen->stops_after > 0 && seen->num_ticks >= seen->stops_after;
}

/* One of the operations that report. */
static struct rk_status *run_reporting(int i, struct rk_model *model, const char *dir, struct seen *seen)
{
    const struct rk_engine_hooks hooks = {
        .user = seen, .on_progress = note_progress, .is_cancelled = asks_to_stop};

    if (i == 0)
        return rk_model_init_random(model, 5, &hooks);
    return i == 1 ? rk_model_export_hf(model, dir, 4096, &hooks) : rk_model_load_hf(model, dir, &hooks);
}

/* Goal: operations that fill or write a model report progress up to the end and stop on request; a stopped
 * export leaves no files. */
static void test_filling_and_writing_reports_and_stops(void **state)
{
    static const char *const phases[] = {"initialise", "export", "load"};
    char *dir = rk_test_temp_path("reported"), *stopped_dir = rk_test_temp_path("stopped");
    struct rk_test_model test;

    (void)state;
    open_model(&test, UNTIED);
    for (int i = 0; i < (int)RK_ARRAY_LEN(phases); i++) {
        struct seen seen = {0}, stopped = {.stops_after = 5};

        assert_ok(run_reporting(i, test.model, dir, &seen));
        assert_string_equal(seen.phase, phases[i]);
        assert_true(seen.num_ticks >= rk_model_num_params(test.model));
        assert_int_equal(seen.done, seen.total);
        assert_true(seen.total >= (uint64_t)rk_model_num_elements(test.model) * 4);
        assert_fails(run_reporting(i, test.model, i == 1 ? stopped_dir : dir, &stopped), RK_CANCELLED,
                     "cancelled");
        assert_true(stopped.num_ticks < seen.num_ticks);
    }
    assert_int_not_equal(access(stopped_dir, F_OK), 0);
    rk_test_model_close(&test);
    rk_free(dir);
    rk_free(stopped_dir);
}

/* Goal: weights that are not finite, or not in the model's dtype, are detected and named. */
static void test_load_of_non_finite_weights_is_data_loss(void **state)
{
    static const char matrix[] = "model.layers.0.mlp.up_proj.weight", vector[] = "model.norm.weight";
    static const struct {
        const char *label, *name;
        double value;
        rk_dtype_t file_dtype, dtype;
        bool is_refused;
    } rows[] = {
        {"NaN in a matrix", matrix, NAN, RK_DTYPE_F32, RK_DTYPE_F32, true},
        {"inf in a vector", vector, -INFINITY, RK_DTYPE_F32, RK_DTYPE_F32, true},
        {"bf16 as it is", matrix, NAN, RK_DTYPE_BF16, RK_DTYPE_BF16, true},
        {"f16 made wider", vector, INFINITY, RK_DTYPE_F16, RK_DTYPE_F32, true},
        {"too large for f32", matrix, 1e300, RK_DTYPE_F64, RK_DTYPE_F32, true},
        {"too large for bf16", matrix, 3.4e38, RK_DTYPE_F32, RK_DTYPE_BF16, true},
        {"large enough", matrix, 3.3e38, RK_DTYPE_F32, RK_DTYPE_BF16, false},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        const struct file_spec spec = {
            .dtype = rows[i].file_dtype, .poison = rows[i].name, .poison_value = rows[i].value};
        char *name = rk_format("bad-%zu", i), *dir = make_dir(name);
        struct rk_test_model test;
        struct rk_status *st;

        assert_ok(rk_test_model_open(
            &test, &(struct rk_test_model_spec){.config = UNTIED, .seed = 1, .dtype = rows[i].dtype}));
        write_file(dir, SINGLE, test.model, &spec);
        st = rk_model_load_hf(test.model, dir, NULL);
        print_message("  %s\n", rows[i].label);
        if (rows[i].is_refused) {
            assert_string_equal(rk_status_reason(st), "NON_FINITE");
            assert_fails(st, RK_DATA_LOSS, rows[i].name);
        } else {
            assert_ok(st);
        }
        rk_test_model_close(&test);
        rk_free(name);
        rk_free(dir);
    }
}

/* Goal: a model with non-finite weights is not exported; no files remain. */
static void test_export_of_non_finite_weights_is_data_loss(void **state)
{
    char *dir = rk_test_temp_path("diverged");
    struct rk_test_model test;
    struct rk_status *st;
    int64_t i;

    (void)state;
    open_model(&test, UNTIED);
    i = rk_model_find_param(test.model, "model.layers.0.self_attn.o_proj.weight");
    ((float *)test.model->core->values)[rk_model_placement_at(test.model, i)->offset + 3] = NAN;
    st = rk_model_export_hf(test.model, dir, 0, NULL);
    assert_string_equal(rk_status_reason(st), "NON_FINITE");
    assert_fails(st, RK_DATA_LOSS, "model.layers.0.self_attn.o_proj.weight");
    assert_int_not_equal(access(dir, F_OK), 0);
    rk_test_model_close(&test);
    rk_free(dir);
}

/* Goal: no file is overwritten, unrelated files in the directory are accepted, invalid targets are named. */
static void test_export_to_occupied_or_bad_targets_is_refused(void **state)
{
    static const char *const occupants[] = {"config.json", "x.safetensors", INDEX};
    char *file = rk_test_temp_path("a-file"), *below = rk_path_join(file, "model"), *free_dir;

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(occupants); i++) {
        char *name = rk_format("occupied-%zu", i), *dir = make_dir(name);
        struct rk_status *st;

        write_text(dir, occupants[i], "{}");
        st = export_to(dir);
        assert_string_equal(rk_status_reason(st), "TARGET_EXISTS");
        assert_fails(st, RK_ALREADY_EXISTS, occupants[i]);
        rk_free(name);
        rk_free(dir);
    }
    rk_test_write_file(file, "x", 1);
    assert_fails(export_to(below), RK_INVALID_ARGUMENT, below);
    assert_fails(export_to(file), RK_INVALID_ARGUMENT, file);
    free_dir = make_dir("with-tokenizer");
    write_text(free_dir, "tokenizer.json", "{}");
    assert_ok(export_to(free_dir));
    assert_true(exists(free_dir, SINGLE));
    assert_true(exists(free_dir, "tokenizer.json"));
    rk_free(free_dir);
    rk_free(file);
    rk_free(below);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_load_of_directories_reads_or_names_the_defect),
        cmocka_unit_test(test_check_of_tied_weights_compares_them),
        cmocka_unit_test(test_load_of_unused_weights_is_reported),
        cmocka_unit_test(test_load_of_missing_directory_is_not_found),
        cmocka_unit_test(test_load_of_truncated_file_is_data_loss),
        cmocka_unit_test(test_export_in_shards_writes_index_and_config),
        cmocka_unit_test(test_filling_and_writing_reports_and_stops),
        cmocka_unit_test(test_load_of_non_finite_weights_is_data_loss),
        cmocka_unit_test(test_export_of_non_finite_weights_is_data_loss),
        cmocka_unit_test(test_export_to_occupied_or_bad_targets_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
