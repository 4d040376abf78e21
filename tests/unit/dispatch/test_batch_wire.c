/* Batches to descriptions and back through the real encoding, and the check of descriptions against the
 * columns of a method.
 */
#include "tests/unit/dispatch/batch_util.h"

#include "proto/limits.h"
#include "proto/rk_stream.h"

static struct rk_arena *arena;

static int setup(void **state)
{
    (void)state;
    arena = rk_arena_create(1 << 16, 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    rk_arena_destroy(arena);
    return 0;
}

/* batch -> header bytes and tensor bytes -> batch. */
static struct rk_batch *send(const struct rk_batch *batch, const char *const *want)
{
    struct rk_execute_request request = {.kind = RK_EXECUTE_HEADER}, got;
    struct rk_assembler *assembler;
    const struct rk_column **columns;
    struct rk_str packed = {0};
    struct rk_batch *received;
    void **data;

    assert_ok(rk_batch_describe(&request.header.input, &columns, arena, batch, want));
    rk_pack_execute_request(&packed, &request);
    assert_ok(rk_unpack_execute_request(&got, arena, packed.text, packed.bytes));
    rk_str_fini(&packed);
    assert_ok(rk_assembler_create(&assembler, &got.header.input, 0));
    rk_assembler_destroy(assembler);
    assert_ok(rk_batch_from_spec(&received, &data, arena, &got.header.input));
    for (int64_t i = 0; i < got.header.input.num_tensors; i++) {
        assert_int_equal(rk_column_bytes(columns[i]), got.header.input.tensors[i].byte_size);
        memcpy(data[i], rk_column_values(columns[i]), rk_column_bytes(columns[i]));
    }
    return received;
}

static void test_round_trip_is_bit_exact(void **state)
{
    struct rk_batch *batch = make_rich(5), *part, *received;

    (void)state;
    set_meta(batch,
             "{\"temperature\": 0.1, \"list\": [1, null], \"text\": \"a\", \"n\": -3, \"flag\": true}");
    assert_ok(rk_batch_slice(&part, batch, 1, 4, 1));
    received = send(part, NULL);
    assert_int_equal(rk_batch_num_rows(received), 3);
    assert_rich(received);
    for (int64_t i = 0; i < rk_batch_num_columns(part); i++)
        assert_true(
            rk_column_equal(rk_batch_column_at(part, i), rk_batch_find(received, rk_batch_name_at(part, i))));
    assert_true(rk_json_equal(rk_batch_meta(part), rk_batch_meta(received)));
    rk_batch_destroy(received);
    rk_batch_destroy(part);
    rk_batch_destroy(batch);
}

static void test_round_trip_of_bits_that_are_no_numbers(void **state)
{
    static const uint32_t bits[] = {0x80000000, 0x7fc00001, 0xff800000, 0x7f800001, 0x00000001};
    struct rk_batch *batch, *received;
    void *data;

    (void)state;
    assert_ok(rk_batch_create(&batch, 5));
    assert_ok(rk_batch_add_dense(batch, "f32", RK_DTYPE_F32, 1, (int64_t[]){5}, &data));
    memcpy(data, bits, sizeof(bits));
    assert_ok(rk_batch_add_dense(batch, "bf16", RK_DTYPE_BF16, 2, (int64_t[]){5, 2}, &data));
    memcpy(data, bits, sizeof(bits));
    received = send(batch, NULL);
    assert_memory_equal(rk_column_values(rk_batch_find(received, "f32")), bits, sizeof(bits));
    assert_memory_equal(rk_column_values(rk_batch_find(received, "bf16")), bits, sizeof(bits));
    rk_batch_destroy(received);
    rk_batch_destroy(batch);
}

static void test_describe_only_what_is_wanted(void **state)
{
    struct rk_batch *batch = make_rich(3), *received;
    struct rk_batch_spec spec;

    (void)state;
    received = send(batch, (const char *const[]){"uid", "x", NULL});
    assert_int_equal(rk_batch_num_columns(received), 2);
    assert_rows(received, ROWS(0, 1, 2));
    rk_batch_destroy(received);
    assert_fails(rk_batch_describe(&spec, NULL, arena, batch, (const char *const[]){"z", NULL}), RK_NOT_FOUND,
                 "'z'");
    assert_int_equal(spec.num_tensors, 0);
    rk_batch_destroy(batch);
}

static void test_describe_at_the_limits_of_the_wire(void **state)
{
    struct rk_batch *batch;
    struct rk_batch_spec spec;
    void *data;

    (void)state;
    assert_ok(rk_batch_create(&batch, 1));
    for (int i = 0; i < RK_LIMIT_TENSORS; i++) {
        char *name = rk_format("c%d", i);

        assert_ok(rk_batch_add_dense(batch, name, RK_DTYPE_U8, 1, (int64_t[]){1}, &data));
        rk_free(name);
    }
    assert_ok(rk_batch_describe(&spec, NULL, arena, batch, NULL));
    assert_ok(rk_batch_add_dense(batch, "one more", RK_DTYPE_U8, 1, (int64_t[]){1}, &data));
    assert_fails(rk_batch_describe(&spec, NULL, arena, batch, NULL), RK_RESOURCE_EXHAUSTED, "257 columns");
    rk_batch_remove(batch, "one more");
    for (int i = 0; i <= RK_LIMIT_META_ENTRIES; i++) {
        char *key = rk_format("m%d", i);

        assert_ok(rk_batch_describe(&spec, NULL, arena, batch, NULL));
        rk_batch_set_meta(batch, key, rk_json_new_int(i));
        rk_free(key);
        rk_arena_reset(arena);
    }
    assert_fails(rk_batch_describe(&spec, NULL, arena, batch, NULL), RK_RESOURCE_EXHAUSTED,
                 "1025 meta entries");
    rk_batch_destroy(batch);
    for (int extra = 0; extra < 2; extra++) {
        int64_t num_rows = RK_LIMIT_STRINGS + extra;
        const char **texts = rk_calloc((size_t)num_rows, sizeof(*texts));
        struct rk_column *column;

        for (int64_t i = 0; i < num_rows; i++)
            texts[i] = "";
        assert_ok(rk_batch_create(&batch, num_rows));
        assert_ok(rk_column_create_strings(&column, num_rows, texts, false));
        assert_ok(rk_batch_put_new(batch, "uid", column));
        if (extra)
            assert_fails(rk_batch_describe(&spec, NULL, arena, batch, NULL), RK_RESOURCE_EXHAUSTED,
                         "65537 strings");
        else
            assert_ok(rk_batch_describe(&spec, NULL, arena, batch, NULL));
        rk_batch_destroy(batch);
        rk_free(texts);
    }
}

/* --- from_spec --- */

static const int64_t shape_2[] = {2}, shape_3[] = {3}, shape_many[] = {2, 1, 1, 1, 1};
static const int64_t prefix_good[] = {0, 1, 3}, prefix_falling[] = {0, 4, 3}, prefix_rows[] = {0, 1, 2, 3};
static const char *const two_texts[] = {"a", "b"}, *const bad_json[] = {"1", "{"};

static const struct {
    const char *label;
    struct rk_tensor_spec tensors[2];
    int64_t num_tensors;
    struct rk_string_column columns[1];
    int64_t num_columns;
    const char *error; /* NULL: accepted */
} spec_cases[] = {
    {"dense",
     {{.name = "a", .dtype = RK_DTYPE_U8, .rank = 1, .shape = shape_2, .byte_size = 2}},
     1,
     {{0}},
     0,
     NULL},
    {"packed",
     {{.name = "a",
       .dtype = RK_DTYPE_U8,
       .rank = 1,
       .shape = shape_3,
       .byte_size = 3,
       .num_cu_seqlens = 3,
       .cu_seqlens = prefix_good}},
     1,
     {{0}},
     0,
     NULL},
    {"strings", {{0}}, 0, {{.name = "s", .num_values = 2, .values = two_texts}}, 1, NULL},
    {"other rows",
     {{.name = "a", .dtype = RK_DTYPE_U8, .rank = 1, .shape = shape_3, .byte_size = 3}},
     1,
     {{0}},
     0,
     "column 'a': column 'a' has 3 rows, the batch has 2"},
    {"a scalar",
     {{.name = "a", .dtype = RK_DTYPE_U8, .byte_size = 1}},
     1,
     {{0}},
     0,
     "column 'a': a column has 1 to 4"},
    {"too many dimensions",
     {{.name = "a", .dtype = RK_DTYPE_U8, .rank = 5, .shape = shape_many, .byte_size = 2}},
     1,
     {{0}},
     0,
     "column 'a': a column has 1 to 4 dimensions, got 5"},
    {"falling prefix sums",
     {{.name = "a",
       .dtype = RK_DTYPE_U8,
       .rank = 1,
       .shape = shape_3,
       .byte_size = 3,
       .num_cu_seqlens = 3,
       .cu_seqlens = prefix_falling}},
     1,
     {{0}},
     0,
     "column 'a': cu_seqlens falls from 4 to 3 at 2"},
    {"prefix sums of other rows",
     {{.name = "a",
       .dtype = RK_DTYPE_U8,
       .rank = 1,
       .shape = shape_3,
       .byte_size = 3,
       .num_cu_seqlens = 4,
       .cu_seqlens = prefix_rows}},
     1,
     {{0}},
     0,
     "has 3 rows, the batch has 2"},
    {"twice",
     {{.name = "a", .dtype = RK_DTYPE_U8, .rank = 1, .shape = shape_2, .byte_size = 2},
      {.name = "a", .dtype = RK_DTYPE_U8, .rank = 1, .shape = shape_2, .byte_size = 2}},
     2,
     {{0}},
     0,
     "column 'a': "},
    {"twice, once as strings",
     {{.name = "s", .dtype = RK_DTYPE_U8, .rank = 1, .shape = shape_2, .byte_size = 2}},
     1,
     {{.name = "s", .num_values = 2, .values = two_texts}},
     1,
     "column 's': it occurs twice"},
    {"strings of other length",
     {{0}},
     0,
     {{.name = "s", .num_values = 1, .values = two_texts}},
     1,
     "column 's' has 1 rows, the batch has 2"},
    {"no JSON",
     {{0}},
     0,
     {{.name = "s", .num_values = 2, .values = bad_json, .is_json = true}},
     1,
     "column 's': row 1"},
    {"no name",
     {{.dtype = RK_DTYPE_U8, .name = "", .rank = 1, .shape = shape_2, .byte_size = 2}},
     1,
     {{0}},
     0,
     "a column name is UTF-8 of 1 to 128 bytes"},
};

static void test_from_spec(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(spec_cases); i++) {
        struct rk_tensor_spec tensors[2];
        struct rk_string_column columns[1];
        struct rk_batch_spec spec = {.batch_size = 2,
                                     .num_tensors = spec_cases[i].num_tensors,
                                     .tensors = tensors,
                                     .num_columns = spec_cases[i].num_columns,
                                     .columns = columns};
        struct rk_batch *batch;
        void **data;

        print_message("%s\n", spec_cases[i].label);
        memcpy(tensors, spec_cases[i].tensors, sizeof(tensors));
        memcpy(columns, spec_cases[i].columns, sizeof(columns));
        if (spec_cases[i].error) {
            assert_fails(rk_batch_from_spec(&batch, &data, arena, &spec), RK_INVALID_ARGUMENT,
                         spec_cases[i].error);
            assert_null(batch);
            assert_null(data);
        } else {
            assert_ok(rk_batch_from_spec(&batch, &data, arena, &spec));
            assert_int_equal(rk_batch_num_columns(batch), 1);
            rk_batch_destroy(batch);
        }
    }
}

/* --- against a method --- */

/* One change to a correct input of a method. */
enum change { NOTHING, REMOVE, ADD, ADD_STRINGS, DTYPE, RANK, LAST_DIM, PACK, TWICE };

static const struct {
    const char *label, *method;
    enum change change;
    const char *column;
    int64_t last_dim;
    const char *error; /* NULL: accepted */
} method_cases[] = {
    {"as it should be", "compute_log_prob", NOTHING, NULL, 0, NULL},
    {"policy", "update_actor", NOTHING, NULL, 0, NULL},
    {"prompts", "generate_sequences", NOTHING, NULL, 0, NULL},
    {"no columns", "init_model", NOTHING, NULL, 0, NULL},
    {"without an optional one", "update_actor", REMOVE, "ref_log_prob", 0, NULL},
    {"without a required one", "update_actor", REMOVE, "advantages", 0,
     "update_actor needs the column 'advantages' (f32 [B,R]"},
    {"one too many", "compute_log_prob", ADD, "extra", 0, "column 'extra'"},
    {"columns for a method without any", "init_model", ADD, "x", 0, "init_model does not take a column 'x'"},
    {"strings", "compute_log_prob", ADD_STRINGS, "uid", 0, "does not take a column of strings such as 'uid'"},
    {"another dtype", "compute_log_prob", DTYPE, "input_ids", 0,
     "column 'input_ids' has dtype i32, expected i64"},
    {"a dimension too few", "compute_log_prob", RANK, "responses", 0,
     "column 'responses' has 1 dimensions, expected [B,R]"},
    {"another length", "compute_log_prob", LAST_DIM, "attention_mask", 9,
     "column 'attention_mask' [B,S]: dimension 1 is 9, but S is 8 in this call"},
    {"responses as long as the sequence", "compute_log_prob", LAST_DIM, "responses", 8,
     "sequences of S=8 positions do not hold a prompt and R=8 responses"},
    {"a third dimension too few", "update_actor", RANK, "teacher_topk_ids", 0,
     "column 'teacher_topk_ids' has 2 dimensions, expected [B,R,K]"},
    {"packed", "compute_log_prob", PACK, "responses", 0, "column 'responses' is packed"},
    {"twice", "compute_log_prob", TWICE, "responses", 0, "column 'responses' occurs twice"},
};

#define MAX_COLUMNS 16
#define MAX_DIMS    4

struct spec_builder {
    struct rk_batch_spec spec;
    struct rk_tensor_spec tensors[MAX_COLUMNS];
    struct rk_string_column strings;
    int64_t shapes[MAX_COLUMNS][MAX_DIMS];
};

static int64_t size_of_dim(char name)
{
    static const struct {
        char name;
        int64_t size;
    } sizes[] = {{'B', 4}, {'P', 5}, {'R', 3}, {'S', 8}, {'K', 2}, {'L', 2}, {'E', 3}};

    for (size_t i = 0; i < RK_ARRAY_LEN(sizes); i++) {
        if (sizes[i].name == name)
            return sizes[i].size;
    }
    fail_msg("dimension '%c' has no size in this test", name);
    return 0;
}

/* A correct input. */
static void build_spec(struct spec_builder *builder, const struct rk_method *method)
{
    *builder = (struct spec_builder){0};
    builder->spec =
        (struct rk_batch_spec){.batch_size = 4, .tensors = builder->tensors, .columns = &builder->strings};
    assert_true(method->num_in < MAX_COLUMNS); /* a change may add one column */
    for (int64_t i = 0; i < method->num_in; i++) {
        const struct rk_column_schema *schema = &method->in[i];
        int rank = 0;

        for (const char *dim = schema->dims; *dim; dim++) {
            if (*dim != ',')
                builder->shapes[i][rank++] = size_of_dim(*dim);
        }
        builder->tensors[i] = (struct rk_tensor_spec){
            .name = schema->name, .dtype = schema->dtype, .rank = rank, .shape = builder->shapes[i]};
    }
    builder->spec.num_tensors = method->num_in;
}

static void apply_change(struct spec_builder *builder, size_t i)
{
    int64_t *count = &builder->spec.num_tensors, k = 0;

    while (method_cases[i].column && k < *count &&
           strcmp(builder->tensors[k].name, method_cases[i].column) != 0)
        k++;
    switch (method_cases[i].change) {
    case NOTHING:
        break;
    case REMOVE:
        builder->tensors[k] = builder->tensors[--*count];
        break;
    case ADD:
        builder->tensors[(*count)++] =
            (struct rk_tensor_spec){.name = method_cases[i].column, .dtype = RK_DTYPE_F32};
        break;
    case ADD_STRINGS:
        builder->strings.name = method_cases[i].column;
        builder->spec.num_columns = 1;
        break;
    case DTYPE:
        builder->tensors[k].dtype = RK_DTYPE_I32;
        break;
    case RANK:
        builder->tensors[k].rank--;
        break;
    case LAST_DIM:
        builder->shapes[k][1] = method_cases[i].last_dim;
        break;
    case PACK:
        builder->tensors[k].num_cu_seqlens = 5;
        break;
    case TWICE:
        builder->tensors[(*count)++] = builder->tensors[k];
        break;
    }
}

static void test_spec_check(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(method_cases); i++) {
        const struct rk_method *method = rk_method_find(method_cases[i].method);
        struct spec_builder builder;

        print_message("%s\n", method_cases[i].label);
        build_spec(&builder, method);
        apply_change(&builder, i);
        if (method_cases[i].error)
            assert_fails(rk_batch_spec_check(&builder.spec, method), RK_INVALID_ARGUMENT,
                         method_cases[i].error);
        else
            assert_ok(rk_batch_spec_check(&builder.spec, method));
    }
}

static void test_spec_check_rows_are_those_of_the_batch(void **state)
{
    const struct rk_method *method = rk_method_find("compute_log_prob");
    struct spec_builder builder;

    (void)state;
    build_spec(&builder, method);
    builder.spec.batch_size = 5;
    assert_fails(rk_batch_spec_check(&builder.spec, method), RK_INVALID_ARGUMENT,
                 "dimension 0 is 4, but B is 5");
}

#define LARGE_VALUES ((int64_t)1 << 20)
#define LARGE_BYTES  ((size_t)LARGE_VALUES * sizeof(int64_t))

/* A batch with one column of num_values i64; *data receives the address for its bytes. */
static struct rk_batch *large_batch(int64_t num_values, void **data)
{
    struct rk_tensor_spec tensor = {.name = "input_ids",
                                    .dtype = RK_DTYPE_I64,
                                    .rank = 2,
                                    .shape = (int64_t[]){1, num_values},
                                    .byte_size = (uint64_t)num_values * sizeof(int64_t)};
    struct rk_batch_spec spec = {.batch_size = 1, .num_tensors = 1, .tensors = &tensor};
    struct rk_batch *batch;
    void **places;

    assert_ok(rk_batch_from_spec(&batch, &places, arena, &spec));
    *data = places[0];
    return batch;
}

/* Goal: the memory of a batch is reused for the next one of about its size; the amount and the time that
 * memory is kept are limited; columns requested as zero are zero. */
static void test_memory_of_large_batches_is_kept_for_the_next(void **state)
{
    struct rk_column *column;
    struct rk_batch *batch;
    void *first, *data;

    (void)state;
    rk_batch_destroy(large_batch(LARGE_VALUES, &first));
    assert_int_equal(rk_batch_trim_memory(INT32_MAX), 0); /* not requested as zero */

    rk_batch_keep_memory(LARGE_BYTES + LARGE_BYTES / 2);
    batch = large_batch(LARGE_VALUES, &first);
    memset(first, 7, LARGE_BYTES);
    rk_batch_destroy(batch);
    assert_int_equal(rk_batch_trim_memory(INT32_MAX), LARGE_BYTES);
    assert_ok(rk_column_create_dense(&column, RK_DTYPE_I64, 1, (int64_t[]){LARGE_VALUES}));
    for (int64_t i = 0; i < LARGE_VALUES; i++)
        assert_int_equal(((const int64_t *)rk_column_values(column))[i], 0);
    batch = large_batch(LARGE_VALUES / 2, &data); /* the kept memory is much too large for this batch */
    assert_int_equal(rk_batch_trim_memory(INT32_MAX), LARGE_BYTES);
    rk_batch_destroy(batch);
    batch = large_batch(LARGE_VALUES - 1, &data);
    assert_ptr_equal(data, first);
    rk_batch_destroy(batch);
    rk_column_release(column); /* exceeds the limit of kept memory */
    assert_int_equal(rk_batch_trim_memory(INT32_MAX), LARGE_BYTES + LARGE_BYTES / 2);
    assert_int_equal(rk_batch_trim_memory(0), 0);
    rk_batch_keep_memory(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_of_large_batches_is_kept_for_the_next),
        cmocka_unit_test(test_round_trip_is_bit_exact),
        cmocka_unit_test(test_round_trip_of_bits_that_are_no_numbers),
        cmocka_unit_test(test_describe_only_what_is_wanted),
        cmocka_unit_test(test_describe_at_the_limits_of_the_wire),
        cmocka_unit_test(test_from_spec),
        cmocka_unit_test(test_spec_check),
        cmocka_unit_test(test_spec_check_rows_are_those_of_the_batch),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
