/* Reading weights ahead: blocks arrive in order for any thread schedule, columns and dtypes are right, and an
 * invalid file or early end leaves nothing allocated. */
#include "tests/support/test.h"

#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "engine/ckpt/ckpt_internal.h"
#include "engine/optim/trainer.h"
#include "tests/support/models.h"

#define ROWS      1000
#define COLS      7
#define STEP_ROWS 3
#define BLOCKS    ((ROWS + STEP_ROWS - 1) / STEP_ROWS) /* many more than slots */

struct source {
    struct rk_device *device;
    char *path;
    struct rk_st_file *file;
    struct rk_hf_block blocks[BLOCKS];
};

/* Exact in bf16. */
static float value_at(int64_t row, int64_t col)
{
    return (float)((row * 31 + col * 7) % 199);
}

/* A file of one tensor, and blocks over some of its columns. */
static void open_source(struct source *source, rk_dtype_t dtype, int64_t col, int64_t cols)
{
    const struct rk_st_entry entry = {.name = "w", .dtype = dtype, .rank = 2, .shape = {ROWS, COLS}};
    char raw[ROWS * COLS * sizeof(double)];
    float values[ROWS * COLS];
    struct rk_st_writer *writer;

    for (int64_t i = 0; i < ROWS * COLS; i++)
        values[i] = value_at(i / COLS, i % COLS);
    rk_convert(raw, dtype, values, RK_DTYPE_F32, ROWS * COLS);
    source->path = rk_test_temp_path("w.safetensors");
    assert_ok(rk_st_writer_create(&writer, source->path, &entry, 1, NULL));
    assert_ok(rk_st_writer_write(writer, 0, 0, raw, ROWS * COLS * rk_dtype_bytes(dtype)));
    assert_ok(rk_st_writer_commit(writer));
    rk_st_writer_destroy(writer);
    assert_ok(rk_st_open(&source->file, source->path));
    for (int64_t i = 0; i < BLOCKS; i++)
        source->blocks[i] = (struct rk_hf_block){.file = source->file,
                                                 .tensor = rk_st_at(source->file, 0),
                                                 .row = i * STEP_ROWS,
                                                 .num_rows = RK_MIN(STEP_ROWS, ROWS - i * STEP_ROWS),
                                                 .col = col,
                                                 .cols = cols};
    assert_ok(rk_device_open(&source->device,
                             &(struct rk_device_config){.struct_size = sizeof(struct rk_device_config),
                                                        .name = "cpu",
                                                        .num_threads = 1}));
}

static void close_source(struct source *source)
{
    assert_int_equal(rk_device_get_stats(source->device).host_bytes, 0);
    rk_device_close(source->device);
    rk_st_close(source->file);
    rk_free(source->path);
}

static struct rk_hf_reader *open_reader(const struct source *source, rk_dtype_t dtype)
{
    const struct rk_hf_reader_desc desc = {.device = source->device,
                                           .dtype = dtype,
                                           .wide_dtype = RK_DTYPE_F32,
                                           .blocks = source->blocks,
                                           .num_blocks = BLOCKS};
    struct rk_hf_reader *reader;

    assert_ok(rk_hf_reader_create(&reader, &desc));
    return reader;
}

static void check_block(const struct rk_hf_block *block, rk_dtype_t dtype, const struct rk_hf_data *data)
{
    double values[STEP_ROWS * COLS], wide[STEP_ROWS * COLS];
    int64_t count = block->num_rows * block->cols;

    rk_load_f64(values, data->values, dtype, count);
    rk_load_f64(wide, data->wide ? data->wide : data->values, data->wide ? RK_DTYPE_F32 : dtype, count);
    for (int64_t i = 0; i < count; i++) {
        double expected = (double)value_at(block->row + i / block->cols, block->col + i % block->cols);

        assert_true(values[i] == expected && wide[i] == expected);
    }
}

/* Goal: every block has the right elements, in order. Method: the ring wraps many times, with blocks released
 * as late as the ring allows. */
static void test_take_gives_blocks_in_order(void **state)
{
    static const struct {
        const char *label;
        rk_dtype_t file_dtype, dtype;
        int64_t col, cols;
        bool is_converted;
    } rows[] = {
        {"as they are", RK_DTYPE_BF16, RK_DTYPE_BF16, 0, COLS, false},
        {"some columns", RK_DTYPE_F32, RK_DTYPE_F32, 2, 4, false},
        {"narrower", RK_DTYPE_F32, RK_DTYPE_BF16, 0, COLS, true},
        {"wider", RK_DTYPE_BF16, RK_DTYPE_F32, 0, COLS, true},
        {"columns of another dtype", RK_DTYPE_F64, RK_DTYPE_BF16, 6, 1, true},
    };

    (void)state;
    for (size_t r = 0; r < RK_ARRAY_LEN(rows); r++) {
        struct source source;
        struct rk_hf_reader *reader;

        open_source(&source, rows[r].file_dtype, rows[r].col, rows[r].cols);
        reader = open_reader(&source, rows[r].dtype);
        for (int64_t i = 0; i < BLOCKS; i++) {
            struct rk_hf_data data;

            if (i >= RK_HF_COPIES_MAX)
                rk_hf_reader_release(reader);
            assert_ok(rk_hf_reader_take(reader, &data));
            assert_true((data.wide != NULL) == rows[r].is_converted);
            check_block(&source.blocks[i], rows[r].dtype, &data);
        }
        rk_hf_reader_destroy(reader);
        close_source(&source);
    }
}

/* Goal: an error is returned at its block's position, and the blocks before it are complete. */
static void test_take_of_truncated_file_is_data_loss(void **state)
{
    struct rk_hf_reader *reader;
    struct rk_hf_data data;
    struct source source;
    struct rk_status *st = NULL;
    int64_t i;

    (void)state;
    open_source(&source, RK_DTYPE_F32, 0, COLS);
    assert_int_equal(truncate(source.path, (off_t)(source.blocks[0].tensor->offset + 100 * COLS * 4)), 0);
    reader = open_reader(&source, RK_DTYPE_F32);
    for (i = 0; !st; i++) {
        if (i >= RK_HF_COPIES_MAX)
            rk_hf_reader_release(reader);
        st = rk_hf_reader_take(reader, &data);
        if (!st)
            check_block(&source.blocks[i], RK_DTYPE_F32, &data);
    }
    assert_int_equal(i - 1, 100 / STEP_ROWS);
    assert_fails(st, RK_DATA_LOSS, "w.safetensors");
    rk_hf_reader_destroy(reader);
    close_source(&source);
}

/* Goal: destroying a reader in the middle ends its threads. */
static void test_destroy_in_the_middle_ends(void **state)
{
    struct source source;

    (void)state;
    open_source(&source, RK_DTYPE_F32, 0, COLS);
    for (int64_t num_taken = 0; num_taken < 3; num_taken++) {
        struct rk_hf_reader *reader = open_reader(&source, RK_DTYPE_BF16);
        struct rk_hf_data data;

        for (int64_t i = 0; i < num_taken; i++)
            assert_ok(rk_hf_reader_take(reader, &data));
        rk_hf_reader_destroy(reader);
    }
    close_source(&source);
}

#define LARGE                                                                                                \
    "{\"model_type\": \"llama\", \"hidden_size\": 2048, \"intermediate_size\": 8, \"num_hidden_layers\": 1," \
    " \"num_attention_heads\": 2, \"num_key_value_heads\": 2, \"head_dim\": 8, \"vocab_size\": 1100,"        \
    " \"max_position_embeddings\": 16, \"tie_word_embeddings\": true}"

/* Goal: parameters of several blocks are assembled, including masters. Method: an embedding of 2.25 million
 * elements. */
static void test_load_of_parameters_of_several_blocks(void **state)
{
    struct rk_optim_config optim = rk_test_adamw(1e-3, 0, 0);
    char *dir = rk_test_temp_path("large");
    struct rk_test_model from, to;
    const uint16_t *values;

    (void)state;
    assert_ok(rk_test_model_open(
        &from, &(struct rk_test_model_spec){.config = LARGE, .seed = 1, .dtype = RK_DTYPE_BF16}));
    assert_ok(rk_model_export_hf(from.model, dir, 0, NULL));
    assert_ok(rk_test_model_open(
        &to, &(struct rk_test_model_spec){.config = LARGE, .seed = 2, .dtype = RK_DTYPE_BF16}));
    assert_ok(rk_test_enable_training(to.model, &optim));
    assert_ok(rk_model_load_hf(to.model, dir, NULL));
    values = to.model->core->values;
    assert_memory_equal(values, from.model->core->values,
                        (size_t)to.model->core->params.num_elements * sizeof(*values));
    for (int64_t i = 0; i < to.model->core->params.num_elements; i++)
        assert_true(((const float *)to.model->core->masters.values)[i] == rk_bf16_to_f32(values[i]));
    rk_test_model_close(&from);
    rk_test_model_close(&to);
    rk_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_take_gives_blocks_in_order),
        cmocka_unit_test(test_take_of_truncated_file_is_data_loss),
        cmocka_unit_test(test_destroy_in_the_middle_ends),
        cmocka_unit_test(test_load_of_parameters_of_several_blocks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
