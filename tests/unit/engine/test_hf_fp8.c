/* Goal: files in DeepSeek-V3's form, F8_E4M3 with a scale for each block of 128 x 128, are read as element
 * times scale in fp32, rounded to the model's dtype; a scale that is missing or of other blocks is named;
 * layers of multi-token prediction are skipped with one line; exports say nothing of either. */
#include "tests/support/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/rk_alloc.h"
#include "base/rk_json.h"
#include "base/rk_log.h"
#include "base/rk_rng.h"
#include "base/format/rk_safetensors.h"
#include "base/rk_str.h"
#include "engine/ckpt/ckpt_internal.h"
#include "engine/model/model.h"
#include "tests/support/models.h"

#define ENTRIES_MAX 128

/* Matrices of one and several blocks, whole ones and parts; the correction bias and norms are no FP8. */
#define CONFIG(more)                                                                                      \
    "{\"model_type\": \"deepseek_v3\", \"architectures\": [\"DeepseekV3ForCausalLM\"],"                   \
    " \"hidden_size\": 144, \"intermediate_size\": 256, \"num_hidden_layers\": 2,"                        \
    " \"num_attention_heads\": 2, \"vocab_size\": 31, \"max_position_embeddings\": 32,"                   \
    " \"q_lora_rank\": null, \"kv_lora_rank\": 128, \"qk_nope_head_dim\": 66, \"qk_rope_head_dim\": 4,"   \
    " \"v_head_dim\": 70, \"first_k_dense_replace\": 1, \"n_routed_experts\": 2, \"n_group\": 1,"         \
    " \"topk_group\": 1, \"num_experts_per_tok\": 1, \"moe_intermediate_size\": 130, \"torch_dtype\":"    \
    " \"bfloat16\", \"num_nextn_predict_layers\": 1, \"quantization_config\": {\"quant_method\": \"fp8\"" \
    ", \"fmt\": \"e4m3\", \"activation_scheme\": \"dynamic\", \"weight_block_size\": " more "}}"
#define BLOCKS_OF_128 CONFIG("[128, 128]")

/* From the definition: a sign, four bits of exponent, three of fraction. */
static double value_of(uint8_t bits)
{
    int exponent = bits / 8 % 16, fraction = bits % 8;
    double magnitude =
        exponent > 0 ? (1 + fraction / 8.0) * pow(2, exponent - 7) : fraction / 8.0 * pow(2, -6);

    return bits >= 128 ? -magnitude : magnitude;
}

/* Goal: every bit pattern has its value. */
static void test_fp8_values_are_those_of_the_format(void **state)
{
    (void)state;
    for (int i = 0; i < 256; i++) {
        float value = rk_f8e4m3_to_f32((uint8_t)i);

        if (i % 128 == 127)
            assert_true(isnan(value));
        else
            assert_true((double)value == value_of((uint8_t)i));
    }
    assert_true(rk_f8e4m3_to_f32(0x7e) == 448.0F);
    assert_true(rk_f8e4m3_to_f32(0x01) == 0x1p-9F);
}

/* A file that is made tensor by tensor. */
struct file {
    struct rk_st_entry entries[ENTRIES_MAX];
    char *names[ENTRIES_MAX];
    void *data[ENTRIES_MAX];
    int64_t count;
};

static void *add(struct file *file, char *name, rk_dtype_t dtype, int32_t rank, int64_t rows, int64_t cols)
{
    struct rk_st_entry *entry = &file->entries[file->count];
    size_t bytes = (size_t)(rows * (rank > 1 ? cols : 1)) * rk_dtype_bytes(dtype);

    assert_true(file->count < ENTRIES_MAX);
    *entry = (struct rk_st_entry){.name = name, .dtype = dtype, .rank = rank, .shape = {rows, cols}};
    file->names[file->count] = name;
    file->data[file->count] = rk_calloc(bytes, 1);
    return file->data[file->count++];
}

static int64_t blocks_of(int64_t size)
{
    return (size + 127) / 128;
}

static void add_matrix(struct file *file, const struct rk_param *param, struct rk_rng *rng)
{
    int64_t count = rk_param_num_elements(param);
    int64_t num_scales = blocks_of(param->shape[0]) * blocks_of(param->shape[1]);
    uint8_t *bits = add(file, rk_strdup(param->name), RK_DTYPE_F8E4M3, 2, param->shape[0], param->shape[1]);
    float *scales = add(file, rk_format("%s_scale_inv", param->name), RK_DTYPE_F32, 2,
                        blocks_of(param->shape[0]), blocks_of(param->shape[1]));

    for (int64_t i = 0; i < count; i++) {
        bits[i] = (uint8_t)rk_rng_next_below(rng, 256);
        bits[i] = bits[i] % 128 == 127 ? 0 : bits[i];
    }
    for (int64_t i = 0; i < num_scales; i++)
        scales[i] = (float)(1 + rk_rng_next_below(rng, 1000)) / 7000.0F;
}

/* File of all parameters of the model: matrices in FP8 but for the embedding, the head and the router. */
static void make_file(struct file *file, const struct rk_model *model)
{
    struct rk_rng rng;

    memset(file, 0, sizeof(*file));
    rk_rng_init(&rng, rk_test_seed(), 8);
    for (int64_t i = 0; i < rk_model_num_params(model); i++) {
        const struct rk_param *param = rk_model_param_at(model, i);
        bool is_plain =
            param->rank == 1 || strstr(param->name, "mlp.gate.") || !strstr(param->name, ".layers.");
        uint16_t *values;
        float *wide;

        if (!is_plain) {
            add_matrix(file, param, &rng);
            continue;
        }
        if (param->flags & RK_PARAM_WIDE) {
            wide = add(file, rk_strdup(param->name), RK_DTYPE_F32, 1, rk_param_num_values(param), 1);
            for (int64_t k = 0; k < rk_param_num_values(param); k++)
                wide[k] = (float)rk_rng_next_below(&rng, 1000) / 7000.0F;
            continue;
        }
        values =
            add(file, rk_strdup(param->name), RK_DTYPE_BF16, param->rank, param->shape[0], param->shape[1]);
        for (int64_t k = 0; k < rk_param_num_elements(param); k++)
            values[k] = rk_f32_to_bf16((float)rk_rng_next_below(&rng, 1000) / 500.0F - 1.0F);
    }
}

static int64_t find(const struct file *file, const char *name)
{
    for (int64_t i = 0; i < file->count; i++) {
        if (strcmp(file->names[i], name) == 0)
            return i;
    }
    fail_msg("%s is not in the file", name);
    return -1;
}

static void drop(struct file *file, const char *name)
{
    int64_t i = find(file, name);

    rk_free(file->names[i]);
    rk_free(file->data[i]);
    file->count--;
    file->names[i] = file->names[file->count];
    file->data[i] = file->data[file->count];
    file->entries[i] = file->entries[file->count];
}

static void write_file(const struct file *file, const char *path)
{
    struct rk_st_writer *writer;

    assert_ok(rk_st_writer_create(&writer, path, file->entries, file->count, NULL));
    for (int64_t i = 0; i < file->count; i++) {
        const struct rk_st_entry *entry = &file->entries[i];
        int64_t count = entry->shape[0] * (entry->rank > 1 ? entry->shape[1] : 1);

        assert_ok(
            rk_st_writer_write(writer, i, 0, file->data[i], (size_t)count * rk_dtype_bytes(entry->dtype)));
    }
    assert_ok(rk_st_writer_commit(writer));
    rk_st_writer_destroy(writer);
}

static void file_fini(struct file *file)
{
    for (int64_t i = 0; i < file->count; i++) {
        rk_free(file->names[i]);
        rk_free(file->data[i]);
    }
}

static char *make_dir(const char *name)
{
    char *path = rk_test_temp_path(name);
    char *file = rk_path_join(path, "model.safetensors");

    assert_int_equal(mkdir(path, 0777), 0);
    rk_free(path);
    return file;
}

static void open_model(struct rk_test_model *test, rk_dtype_t dtype)
{
    assert_ok(rk_test_model_open(
        test, &(struct rk_test_model_spec){.config = BLOCKS_OF_128, .seed = 4, .dtype = dtype}));
}

/* Value of one element of a parameter, by the file. */
static double expected_of(const struct file *file, const struct rk_param *param, int64_t i, rk_dtype_t dtype)
{
    int64_t at = find(file, param->name), row = i / param->shape[1], col = i % param->shape[1];
    const float *scales;
    double value;
    char *name;

    if (file->entries[at].dtype == RK_DTYPE_F32)
        return (double)((const float *)file->data[at])[i];
    if (file->entries[at].dtype == RK_DTYPE_BF16)
        return (double)rk_bf16_to_f32(((const uint16_t *)file->data[at])[i]);
    name = rk_format("%s_scale_inv", param->name);
    scales = file->data[find(file, name)];
    rk_free(name);
    value = (double)(float)(value_of(((const uint8_t *)file->data[at])[i]) *
                            (double)scales[row / 128 * blocks_of(param->shape[1]) + col / 128]);
    return dtype == RK_DTYPE_BF16 ? (double)rk_bf16_to_f32(rk_f32_to_bf16((float)value)) : value;
}

static void check_values(struct rk_test_model *test, const struct file *file, rk_dtype_t dtype)
{
    for (int64_t p = 0; p < rk_model_num_params(test->model); p++) {
        const struct rk_param *param = rk_model_param_at(test->model, p);
        int64_t count = rk_param_num_values(param), num_parts = rk_param_num_elements(param) / count;
        double *values = rk_calloc((size_t)rk_param_num_elements(param), sizeof(*values));

        assert_ok(rk_model_gather_param(test->model, p, values));
        for (int64_t i = 0; i < count; i++) {
            for (int64_t part = 1; part < num_parts; part++)
                values[i] += values[part * count + i];
            if (values[i] != expected_of(file, param, i, dtype))
                fail_msg("%s[%lld] is %g, expected %g", param->name, (long long)i, values[i],
                         expected_of(file, param, i, dtype));
        }
        rk_free(values);
    }
}

static void test_load_multiplies_blocks_with_their_scales(void **state)
{
    static const rk_dtype_t dtypes[] = {RK_DTYPE_F32, RK_DTYPE_BF16, RK_DTYPE_F64};
    char *path = make_dir("fp8"), *dir = rk_test_temp_path("fp8");
    struct file file;

    (void)state;
    for (size_t d = 0; d < RK_ARRAY_LEN(dtypes); d++) {
        struct rk_test_model test;

        open_model(&test, dtypes[d]);
        if (d == 0) {
            make_file(&file, test.model);
            write_file(&file, path);
        }
        assert_ok(rk_model_load_hf(test.model, dir, NULL));
        check_values(&test, &file, dtypes[d]);
        rk_test_model_close(&test);
    }
    file_fini(&file);
    rk_free(path);
    rk_free(dir);
}

#define MATRIX "model.layers.0.self_attn.kv_b_proj.weight"

/* Goal: bad scales are named, before anything is read. */
static void test_load_of_bad_scales_names_them(void **state)
{
    static const struct {
        const char *label;
        int64_t rows, cols; /* of the scale; 0: it is missing */
        rk_dtype_t dtype;
        rk_code_t code;
        const char *error;
    } cases[] = {
        {"missing", 0, 0, RK_DTYPE_F32, RK_NOT_FOUND, MATRIX "_scale_inv"},
        {"blocks of 64", 5, 2, RK_DTYPE_F32, RK_INVALID_ARGUMENT, "shape [5, 2], expected [3, 1]"},
        {"one a row", 272, 1, RK_DTYPE_F32, RK_INVALID_ARGUMENT, "shape [272, 1], expected [3, 1]"},
        {"bf16", 3, 1, RK_DTYPE_BF16, RK_UNIMPLEMENTED, "is BF16, expected F32"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char *name = rk_format("bad-%zu", i), *path = make_dir(name), *dir = rk_test_temp_path(name);
        struct rk_test_model test;
        struct file file;

        open_model(&test, RK_DTYPE_BF16);
        make_file(&file, test.model);
        drop(&file, MATRIX "_scale_inv");
        if (cases[i].rows > 0)
            add(&file, rk_strdup(MATRIX "_scale_inv"), cases[i].dtype, 2, cases[i].rows, cases[i].cols);
        write_file(&file, path);
        print_message("  %s\n", cases[i].label);
        assert_fails(rk_model_check_hf(test.model, dir), cases[i].code, cases[i].error);
        assert_fails(rk_model_load_hf(test.model, dir, NULL), cases[i].code, cases[i].error);
        rk_test_model_close(&test);
        file_fini(&file);
        rk_free(name);
        rk_free(path);
        rk_free(dir);
    }
}

static void append_warning(rk_log_level_t level, const char *line, void *user)
{
    if (level == RK_LOG_WARN)
        rk_str_appendf(user, "%s\n", line);
}

/* Goal: layers behind the model's are skipped with one line that has their number; scales of what is read are
 * no news. */
static void test_load_skips_layers_of_multi_token_prediction(void **state)
{
    static const char *const skipped[] = {"model.layers.2.enorm.weight", "model.layers.2.eh_proj.weight",
                                          "model.layers.2.mlp.gate.weight"};
    char *path = make_dir("mtp"), *dir = rk_test_temp_path("mtp");
    struct rk_str lines = {0};
    struct rk_test_model test;
    struct file file;

    (void)state;
    open_model(&test, RK_DTYPE_BF16);
    make_file(&file, test.model);
    for (size_t i = 0; i < RK_ARRAY_LEN(skipped); i++)
        add(&file, rk_strdup(skipped[i]), RK_DTYPE_BF16, 1, 4, 1);
    write_file(&file, path);
    rk_log_set_sink(append_warning, &lines);
    assert_ok(rk_model_load_hf(test.model, dir, NULL));
    rk_log_set_sink(NULL, NULL);
    assert_non_null(strstr(rk_str_text(&lines), "num_nextn_predict_layers=1"));
    assert_non_null(strstr(rk_str_text(&lines), "skipping 3 tensors"));
    assert_ptr_equal(strchr(rk_str_text(&lines), '\n') + 1,
                     rk_str_text(&lines) + strlen(rk_str_text(&lines)));
    rk_test_model_close(&test);
    rk_str_fini(&lines);
    file_fini(&file);
    rk_free(path);
    rk_free(dir);
}

/* Goal: what is exported is a plain model, which reads as the same values. */
static void test_export_is_without_scales(void **state)
{
    char *path = make_dir("plain"), *dir = rk_test_temp_path("plain"), *out = rk_test_temp_path("exported");
    char *config_path = rk_path_join(out, "config.json");
    struct rk_test_model test, back;
    struct rk_json *config;
    struct file file;

    (void)state;
    open_model(&test, RK_DTYPE_BF16);
    make_file(&file, test.model);
    write_file(&file, path);
    assert_ok(rk_model_load_hf(test.model, dir, NULL));
    assert_ok(rk_model_export_hf(test.model, out, 0, NULL));
    assert_ok(rk_json_parse_file(&config, config_path, 1 << 16, 0));
    assert_null(rk_json_find(config, "quantization_config"));
    assert_int_equal(rk_json_as_int(rk_json_find(config, "num_nextn_predict_layers"), -1), 0);
    rk_json_free(config);
    assert_ok(rk_test_model_open(&back, &(struct rk_test_model_spec){.dir = out, .dtype = RK_DTYPE_BF16}));
    check_values(&back, &file, RK_DTYPE_BF16);
    rk_test_model_close(&back);
    rk_test_model_close(&test);
    file_fini(&file);
    rk_free(path);
    rk_free(dir);
    rk_free(out);
    rk_free(config_path);
}

/* Goal: blocks of rows and columns that begin in the middle of a block of scales. */
static void test_reader_finds_the_scales_of_parts(void **state)
{
    enum { ROWS = 300, COLS = 270 };
    static const struct {
        int64_t row, num_rows, col, cols;
    } parts[] = {
        {0, 300, 0, 270}, {120, 20, 0, 270}, {127, 1, 100, 60}, {255, 45, 129, 141}, {256, 44, 256, 14}};
    struct rk_hf_block blocks[RK_ARRAY_LEN(parts)];
    struct rk_param param = {.name = "w", .rank = 2, .shape = {ROWS, COLS}};
    char *path = make_dir("parts");
    struct rk_hf_reader_desc desc = {.dtype = RK_DTYPE_BF16,
                                     .wide_dtype = RK_DTYPE_F32,
                                     .blocks = blocks,
                                     .num_blocks = RK_ARRAY_LEN(parts)};
    struct rk_st_file *opened;
    struct rk_hf_reader *reader;
    struct file file = {0};
    struct rk_rng rng;

    (void)state;
    rk_rng_init(&rng, rk_test_seed(), 9);
    add_matrix(&file, &param, &rng);
    write_file(&file, path);
    assert_ok(rk_st_open(&opened, path));
    for (size_t i = 0; i < RK_ARRAY_LEN(parts); i++)
        blocks[i] = (struct rk_hf_block){.file = opened,
                                         .tensor = rk_st_find(opened, "w"),
                                         .scale_file = opened,
                                         .scale = rk_st_find(opened, "w_scale_inv"),
                                         .row = parts[i].row,
                                         .num_rows = parts[i].num_rows,
                                         .col = parts[i].col,
                                         .cols = parts[i].cols};
    assert_ok(rk_device_open(
        &desc.device, &(struct rk_device_config){
                          .struct_size = sizeof(struct rk_device_config), .name = "cpu", .num_threads = 1}));
    assert_ok(rk_hf_reader_create(&reader, &desc));
    for (size_t i = 0; i < RK_ARRAY_LEN(parts); i++) {
        struct rk_hf_data data;

        assert_ok(rk_hf_reader_take(reader, &data));
        for (int64_t k = 0; k < parts[i].num_rows * parts[i].cols; k++) {
            int64_t at = (parts[i].row + k / parts[i].cols) * COLS + parts[i].col + k % parts[i].cols;

            assert_true((double)((const float *)data.wide)[k] ==
                        expected_of(&file, &param, at, RK_DTYPE_F32));
        }
        rk_hf_reader_release(reader);
    }
    rk_hf_reader_destroy(reader);
    rk_device_close(desc.device);
    rk_st_close(opened);
    file_fini(&file);
    rk_free(path);
}

/* Goal: other quantisations are refused by name. */
static void test_parse_of_other_quantisation_is_refused(void **state)
{
    static const struct {
        const char *more, *error;
    } cases[] = {
        {"\"quant_method\": \"fp8\", \"weight_block_size\": [64, 64]", "weight_block_size=[64,64]"},
        {"\"quant_method\": \"fp8\", \"weight_block_size\": null", "weight_block_size"},
        {"\"quant_method\": \"gptq\", \"bits\": 4", "quant_method=\"gptq\""},
        {"\"bits\": 4", "quant_method"},
        {"\"quant_method\": \"awq\", \"weight_block_size\": [128, 128]", "quant_method=\"awq\""},
        {"\"quant_method\": \"fp8\", \"fmt\": \"e5m2\", \"weight_block_size\": [128, 128]", "fmt=\"e5m2\""},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char *text = rk_format("{\"model_type\": \"llama\", \"quantization_config\": {%s}}", cases[i].more);
        struct rk_model_config config;
        struct rk_json *json;

        assert_ok(rk_json_parse(&json, text, strlen(text), "config.json", 0));
        assert_fails(rk_model_config_parse(&config, json), RK_UNIMPLEMENTED, cases[i].error);
        rk_json_free(json);
        rk_free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fp8_values_are_those_of_the_format),
        cmocka_unit_test(test_load_multiplies_blocks_with_their_scales),
        cmocka_unit_test(test_load_of_bad_scales_names_them),
        cmocka_unit_test(test_load_skips_layers_of_multi_token_prediction),
        cmocka_unit_test(test_export_is_without_scales),
        cmocka_unit_test(test_reader_finds_the_scales_of_parts),
        cmocka_unit_test(test_parse_of_other_quantisation_is_refused),
    };

    return cmocka_run_group_tests_name("unit/engine/hf_fp8", tests, NULL, NULL);
}
