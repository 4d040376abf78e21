/* Columns, the container, and every operation that moves columns or rows, with the worked values of verl's
 * semantics. */
#include "tests/unit/dispatch/batch_util.h"

/* --- columns --- */

static void test_create_dense_bad_shapes_are_refused(void **state)
{
    static const struct {
        const char *label;
        int dtype;
        int32_t rank;
        int64_t shape[RK_COLUMN_MAX_RANK];
        const char *error;
    } cases[] = {
        {"no dimensions", RK_DTYPE_F32, 0, {0}, "1 to 4 dimensions, got 0"},
        {"five dimensions", RK_DTYPE_F32, 5, {1, 1, 1, 1}, "1 to 4 dimensions, got 5"},
        {"negative", RK_DTYPE_F32, 2, {2, -1}, "shape[1]=-1 is negative"},
        {"overflow", RK_DTYPE_F32, 3, {INT64_MAX, INT64_MAX, 8}, "overflows"},
        {"no dtype", RK_DTYPE_UNSPECIFIED, 1, {2}, "dtype 0 is unknown"},
        {"unknown dtype", 99, 1, {2}, "dtype 99 is unknown"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_column *column;
        int64_t shape[5] = {1, 1, 1, 1, 1};

        print_message("%s\n", cases[i].label);
        memcpy(shape, cases[i].shape, sizeof(cases[i].shape));
        assert_fails(rk_column_create_dense(&column, (rk_dtype_t)cases[i].dtype, cases[i].rank, shape),
                     RK_INVALID_ARGUMENT, cases[i].error);
        assert_null(column);
    }
}

static void test_create_packed_bad_prefixes_are_refused(void **state)
{
    static const struct {
        const char *label;
        int64_t num_rows, cu_seqlens[4], num_values;
        const char *error;
    } cases[] = {
        {"does not begin at 0", 2, {1, 2, 3}, 3, "begins with 1"},
        {"falls", 3, {0, 3, 2, 4}, 4, "falls from 3 to 2 at 2"},
        {"too few values", 2, {0, 2, 5}, 4, "4 values, but cu_seqlens ends with 5"},
        {"negative rows", -1, {0}, 0, "num_rows=-1 is negative"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_column *column;

        print_message("%s\n", cases[i].label);
        assert_fails(rk_column_create_packed(&column, RK_DTYPE_F32, cases[i].num_rows, cases[i].cu_seqlens, 1,
                                             &cases[i].num_values),
                     RK_INVALID_ARGUMENT, cases[i].error);
        assert_null(column);
    }
}

static void test_create_strings_bad_text_is_refused(void **state)
{
    struct rk_column *column;

    (void)state;
    assert_fails(rk_column_create_strings(&column, 2, (const char *const[]){"a", "\xff"}, false),
                 RK_INVALID_ARGUMENT, "row 1: not valid UTF-8");
    assert_fails(rk_column_create_strings(&column, 2, (const char *const[]){"{}", "{"}, true),
                 RK_INVALID_ARGUMENT, "row 1");
    assert_null(column);
    assert_ok(rk_column_create_strings(&column, 2, (const char *const[]){"{", ""}, false));
    assert_string_equal(rk_column_string(column, 1), "");
    rk_column_release(column);
}

static void test_create_without_memory_is_resource_exhausted(void **state)
{
    struct rk_column *column;

    (void)state;
    rk_alloc_fail_after(1);
    assert_code(rk_column_create_dense(&column, RK_DTYPE_F32, 1, (int64_t[]){4}), RK_RESOURCE_EXHAUSTED);
    assert_null(column);
    rk_alloc_fail_after(0);
}

/* A column of one f32 row with these bits. */
static struct rk_column *column_of_bits(uint32_t bits)
{
    struct rk_column *column;

    assert_ok(rk_column_create_dense(&column, RK_DTYPE_F32, 1, (int64_t[]){1}));
    memcpy(rk_column_data(column), &bits, sizeof(bits));
    return column;
}

static void test_equal_compares_bits(void **state)
{
    static const struct {
        uint32_t a, b;
        bool is_equal;
    } cases[] = {
        {0x3f800000, 0x3f800000, true},  /* 1.0 */
        {0x7fc00001, 0x7fc00001, true},  /* the same NaN */
        {0x7fc00001, 0x7fc00002, false}, /* another NaN */
        {0x00000000, 0x80000000, false}, /* 0.0 and -0.0 */
        {0x3f800000, 0x3f800001, false},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_column *a = column_of_bits(cases[i].a), *b = column_of_bits(cases[i].b);

        assert_int_equal(rk_column_equal(a, b), cases[i].is_equal);
        rk_column_release(a);
        rk_column_release(b);
    }
}

static void test_equal_other_forms_differ(void **state)
{
    struct rk_column *columns[8];

    (void)state;
    assert_ok(rk_column_create_dense(&columns[0], RK_DTYPE_F32, 1, (int64_t[]){2}));
    assert_ok(rk_column_create_dense(&columns[1], RK_DTYPE_I32, 1, (int64_t[]){2}));
    assert_ok(rk_column_create_dense(&columns[2], RK_DTYPE_F32, 2, (int64_t[]){2, 1}));
    assert_ok(rk_column_create_dense(&columns[3], RK_DTYPE_F32, 1, (int64_t[]){3}));
    assert_ok(rk_column_create_packed(&columns[4], RK_DTYPE_F32, 2, (int64_t[]){0, 1, 2}, 1, (int64_t[]){2}));
    assert_ok(rk_column_create_packed(&columns[5], RK_DTYPE_F32, 2, (int64_t[]){0, 0, 2}, 1, (int64_t[]){2}));
    assert_ok(rk_column_create_strings(&columns[6], 2, (const char *const[]){"1", "2"}, false));
    assert_ok(rk_column_create_strings(&columns[7], 2, (const char *const[]){"1", "2"}, true));
    for (int i = 0; i < 8; i++) {
        for (int k = 0; k < 8; k++)
            assert_int_equal(rk_column_equal(columns[i], columns[k]), i == k);
    }
    for (int i = 0; i < 8; i++)
        rk_column_release(columns[i]);
}

/* --- the container --- */

static void test_put_wrong_rows_and_names_are_refused(void **state)
{
    struct rk_batch *batch = make_numbered(3);
    struct rk_column *column;
    char name[200];

    (void)state;
    memset(name, 'n', sizeof(name));
    name[129] = '\0';
    assert_ok(rk_column_create_dense(&column, RK_DTYPE_F32, 1, (int64_t[]){2}));
    assert_fails(rk_batch_put_new(batch, "y", column), RK_INVALID_ARGUMENT,
                 "column 'y' has 2 rows, the batch has 3");
    assert_ok(rk_column_create_dense(&column, RK_DTYPE_F32, 1, (int64_t[]){3}));
    assert_fails(rk_batch_put(batch, "", column), RK_INVALID_ARGUMENT, "1 to 128 bytes, got 0");
    assert_fails(rk_batch_put(batch, name, column), RK_INVALID_ARGUMENT, "1 to 128 bytes, got 129");
    assert_fails(rk_batch_put(batch, "\xc3", column), RK_INVALID_ARGUMENT, "UTF-8");
    name[128] = '\0';
    assert_ok(rk_batch_put(batch, name, column));
    assert_ptr_equal(rk_batch_find(batch, name), column);
    rk_column_release(column);
    rk_batch_destroy(batch);
}

static void test_put_same_name_replaces_in_place(void **state)
{
    struct rk_batch *batch = make_rich(2);
    void *data;

    (void)state;
    assert_ok(rk_batch_add_dense(batch, "x", RK_DTYPE_F64, 1, (int64_t[]){2}, &data));
    assert_int_equal(rk_batch_num_columns(batch), 5);
    assert_string_equal(rk_batch_name_at(batch, 0), "x");
    assert_int_equal(rk_column_get_info(rk_batch_column_at(batch, 0)).dtype, RK_DTYPE_F64);
    rk_batch_remove(batch, "pair");
    rk_batch_remove(batch, "pair");
    assert_int_equal(rk_batch_num_columns(batch), 4);
    assert_string_equal(rk_batch_name_at(batch, 1), "list");
    assert_null(rk_batch_find(batch, "pair"));
    rk_batch_destroy(batch);
}

static void test_get_dense_says_what_is_there_instead(void **state)
{
    struct rk_batch *batch = make_rich(2);
    const void *data;

    (void)state;
    assert_fails(rk_batch_get_dense(batch, "z", RK_DTYPE_F32, 1, NULL, &data), RK_INVALID_ARGUMENT,
                 "no column 'z'");
    assert_fails(rk_batch_get_dense(batch, "pair", RK_DTYPE_F64, 2, NULL, &data), RK_INVALID_ARGUMENT,
                 "column 'pair' is dense f32 [2, 2], expected dense f64 with 2 dimensions");
    assert_fails(rk_batch_get_dense(batch, "pair", RK_DTYPE_F32, 1, NULL, &data), RK_INVALID_ARGUMENT,
                 "with 1 dimensions");
    assert_fails(rk_batch_get_dense(batch, "list", RK_DTYPE_I32, 1, NULL, &data), RK_INVALID_ARGUMENT,
                 "is packed i32 [1]");
    assert_fails(rk_batch_get_dense(batch, "uid", RK_DTYPE_I32, 1, NULL, &data), RK_INVALID_ARGUMENT,
                 "is strings");
    assert_null(data);
    rk_batch_destroy(batch);
}

static void test_create_negative_rows_is_refused(void **state)
{
    struct rk_batch *batch;

    (void)state;
    assert_fails(rk_batch_create(&batch, -1), RK_INVALID_ARGUMENT, "num_rows=-1");
    assert_null(batch);
}

static void test_meta_is_copied_on_write(void **state)
{
    struct rk_batch *batch = make_numbered(4), *slice, *clone;

    (void)state;
    set_meta(batch, "{\"a\": 1, \"b\": 2}");
    assert_ok(rk_batch_slice(&slice, batch, 0, 2, 1));
    assert_ok(rk_batch_clone(&clone, batch));
    assert_ptr_equal(rk_batch_meta(slice), rk_batch_meta(batch));
    rk_batch_set_meta(slice, "a", rk_json_new_int(7));
    rk_batch_set_meta(clone, "b", rk_json_new_int(3));
    assert_json(rk_batch_meta(batch), "{\"a\": 1, \"b\": 2}");
    assert_json(rk_batch_meta(slice), "{\"a\": 7, \"b\": 2}");
    assert_json(rk_batch_meta(clone), "{\"a\": 1, \"b\": 3}");
    rk_batch_destroy(batch);
    rk_batch_destroy(slice);
    rk_batch_destroy(clone);
}

/* --- columns move --- */

static void test_select_keeps_what_is_named(void **state)
{
    struct rk_batch *batch = make_rich(3), *selected;

    (void)state;
    set_meta(batch, "{\"a\": 1, \"b\": 2}");
    assert_ok(rk_batch_select(&selected, batch, (const char *const[]){"uid", "x", NULL},
                              (const char *const[]){"b", "unknown", NULL}));
    assert_int_equal(rk_batch_num_columns(selected), 2);
    assert_string_equal(rk_batch_name_at(selected, 0), "uid");
    assert_ptr_equal(rk_batch_find(selected, "x"), rk_batch_find(batch, "x"));
    assert_json(rk_batch_meta(selected), "{\"b\": 2}");
    rk_batch_destroy(selected);
    assert_ok(rk_batch_select(&selected, batch, (const char *const[]){NULL}, NULL));
    assert_int_equal(rk_batch_num_columns(selected), 0);
    assert_int_equal(rk_batch_num_rows(selected), 3);
    assert_json(rk_batch_meta(selected), "{\"a\": 1, \"b\": 2}");
    rk_batch_destroy(selected);
    assert_fails(rk_batch_select(&selected, batch, (const char *const[]){"x", "z", NULL}, NULL), RK_NOT_FOUND,
                 "no column 'z'");
    assert_null(selected);
    rk_batch_destroy(batch);
}

static void test_union_adds_columns_and_meta(void **state)
{
    struct rk_batch *batch = make_numbered(3), *other = make_rich(3);

    (void)state;
    set_meta(batch, "{\"a\": 1}");
    set_meta(other, "{\"a\": 1, \"b\": [2]}");
    assert_ok(rk_batch_union(batch, other));
    assert_int_equal(rk_batch_num_columns(batch), 5);
    assert_rich(batch);
    assert_json(rk_batch_meta(batch), "{\"a\": 1, \"b\": [2]}");
    assert_ok(rk_batch_union(batch, other)); /* equal columns are no conflict */
    rk_batch_destroy(batch);
    rk_batch_destroy(other);
}

static void test_union_equal_nan_is_no_conflict(void **state)
{
    struct rk_batch *batches[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_ok(rk_batch_create(&batches[i], 1));
        assert_ok(rk_batch_put_new(batches[i], "nan", column_of_bits(0x7fc00001)));
    }
    assert_ok(rk_batch_union(batches[0], batches[1]));
    assert_ok(rk_batch_put_new(batches[1], "nan", column_of_bits(0x7fc00002)));
    assert_fails(rk_batch_union(batches[0], batches[1]), RK_INVALID_ARGUMENT,
                 "column 'nan' differs between the two batches");
    rk_batch_destroy(batches[0]);
    rk_batch_destroy(batches[1]);
}

static void test_union_conflicts_change_nothing(void **state)
{
    struct rk_batch *batch = make_numbered(3), *rows = make_numbered(4), *values, *text, *meta;
    struct rk_column *column;

    (void)state;
    set_meta(batch, "{\"a\": 1}");
    values = make_batch(ROWS(0, 1, 3));
    meta = make_rich(3);
    text = make_rich(3);
    set_meta(meta, "{\"a\": 2}");
    assert_fails(rk_batch_union(batch, rows), RK_INVALID_ARGUMENT, "batches with 3 and 4 rows");
    assert_fails(rk_batch_union(batch, values), RK_INVALID_ARGUMENT,
                 "column 'x' differs between the two batches");
    assert_fails(rk_batch_union(batch, meta), RK_INVALID_ARGUMENT,
                 "meta 'a' differs between the two batches");
    assert_int_equal(rk_batch_num_columns(batch), 1);
    assert_ok(rk_column_create_strings(&column, 3, (const char *const[]){"u0", "u1", "other"}, false));
    assert_ok(rk_batch_put_new(batch, "uid", column));
    assert_fails(rk_batch_union(batch, text), RK_INVALID_ARGUMENT,
                 "column 'uid' differs between the two batches");
    assert_int_equal(rk_batch_num_columns(batch), 2);
    rk_batch_destroy(batch);
    rk_batch_destroy(rows);
    rk_batch_destroy(values);
    rk_batch_destroy(text);
    rk_batch_destroy(meta);
}

/* --- rows move --- */

static void test_slice_follows_python(void **state)
{
    static const struct {
        int64_t begin, end, step;
        int64_t count, rows[5];
    } cases[] = {
        {0, 5, 1, 5, {0, 1, 2, 3, 4}},
        {1, 3, 1, 2, {1, 2}},
        {-2, 5, 1, 2, {3, 4}},
        {0, -1, 1, 4, {0, 1, 2, 3}},
        {-100, 100, 1, 5, {0, 1, 2, 3, 4}},
        {0, 5, 2, 3, {0, 2, 4}},
        {1, 5, 3, 2, {1, 4}},
        {3, 3, 1, 0, {0}},
        {4, 1, 1, 0, {0}},
        {7, 9, 1, 0, {0}},
        {4, 0, -1, 4, {4, 3, 2, 1}},
        {4, INT64_MIN, -1, 5, {4, 3, 2, 1, 0}},
        {100, -100, -2, 3, {4, 2, 0}},
        {-1, -4, -1, 3, {4, 3, 2}},
        {0, 5, INT64_MAX, 1, {0}},
        {4, INT64_MIN, INT64_MIN, 1, {4}},
    };
    struct rk_batch *batch = make_rich(5), *slice;

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        print_message("[%lld:%lld:%lld]\n", (long long)cases[i].begin, (long long)cases[i].end,
                      (long long)cases[i].step);
        assert_ok(rk_batch_slice(&slice, batch, cases[i].begin, cases[i].end, cases[i].step));
        assert_rows(slice, cases[i].count, cases[i].rows);
        assert_rich(slice);
        rk_batch_destroy(slice);
    }
    assert_fails(rk_batch_slice(&slice, batch, 0, 5, 0), RK_INVALID_ARGUMENT, "step 0");
    assert_null(slice);
    rk_batch_destroy(batch);
}

static void test_slice_of_a_run_shares_storage(void **state)
{
    struct rk_batch *batch = make_rich(6), *slice, *again;
    const char *base = rk_column_values(rk_batch_find(batch, "x"));

    (void)state;
    assert_ok(rk_batch_slice(&slice, batch, 2, 6, 1));
    assert_ptr_equal(rk_column_values(rk_batch_find(slice, "x")), base + 2 * sizeof(int64_t));
    rk_batch_destroy(batch); /* the storage lives as long as its last view */
    assert_ok(rk_batch_slice(&again, slice, 1, 3, 1));
    rk_batch_destroy(slice);
    assert_rows(again, ROWS(3, 4));
    assert_rich(again);
    rk_batch_destroy(again);
}

static void test_select_idxs_keeps_order_and_repeats(void **state)
{
    struct rk_batch *batch = make_rich(4), *selected;

    (void)state;
    assert_ok(rk_batch_select_idxs(&selected, batch, (int64_t[]){3, 0, 0, 2}, 4));
    assert_rows(selected, ROWS(3, 0, 0, 2));
    assert_rich(selected);
    rk_batch_destroy(selected);
    assert_ok(rk_batch_select_idxs(&selected, batch, NULL, 0));
    assert_rows(selected, 0, NULL);
    rk_batch_destroy(selected);
    assert_fails(rk_batch_select_idxs(&selected, batch, (int64_t[]){0, 4}, 2), RK_OUT_OF_RANGE,
                 "row 4 of a batch with 4 rows");
    assert_fails(rk_batch_select_idxs(&selected, batch, (int64_t[]){-1}, 1), RK_OUT_OF_RANGE, "row -1");
    assert_null(selected);
    rk_batch_destroy(batch);
}

static void test_select_mask(void **state)
{
    struct rk_batch *batch = make_rich(4), *selected;

    (void)state;
    assert_ok(rk_batch_select_mask(&selected, batch, (bool[]){true, false, false, true}));
    assert_rows(selected, ROWS(0, 3));
    assert_rich(selected);
    rk_batch_destroy(selected);
    assert_ok(rk_batch_select_mask(&selected, batch, (bool[]){false, false, false, false}));
    assert_rows(selected, 0, NULL);
    rk_batch_destroy(selected);
    rk_batch_destroy(batch);
}

static void test_reorder_in_place(void **state)
{
    struct rk_batch *batch = make_rich(4);

    (void)state;
    set_meta(batch, "{\"a\": 1}");
    assert_ok(rk_batch_reorder(batch, (int64_t[]){2, 0, 3, 1}));
    assert_rows(batch, ROWS(2, 0, 3, 1));
    assert_rich(batch);
    assert_json(rk_batch_meta(batch), "{\"a\": 1}");
    assert_fails(rk_batch_reorder(batch, (int64_t[]){0, 1, 2, 2}), RK_INVALID_ARGUMENT, "row 2 comes twice");
    assert_fails(rk_batch_reorder(batch, (int64_t[]){0, 1, 2, 4}), RK_INVALID_ARGUMENT,
                 "row 4 of a batch with 4");
    assert_fails(rk_batch_reorder(batch, (int64_t[]){0, -1, 2, 3}), RK_INVALID_ARGUMENT, "row -1");
    assert_rows(batch, ROWS(2, 0, 3, 1));
    rk_batch_destroy(batch);
}

static void test_chunk_equal_parts_only(void **state)
{
    struct rk_batch *batch = make_rich(6), *parts[6];

    (void)state;
    assert_ok(rk_batch_chunk(parts, batch, 3));
    assert_rows(parts[0], ROWS(0, 1));
    assert_rows(parts[2], ROWS(4, 5));
    for (int i = 0; i < 3; i++) {
        assert_rich(parts[i]);
        rk_batch_destroy(parts[i]);
    }
    assert_fails(rk_batch_chunk(parts, batch, 4), RK_INVALID_ARGUMENT,
                 "only support equal chunk: 6 rows into 4");
    assert_fails(rk_batch_chunk(parts, batch, 0), RK_INVALID_ARGUMENT,
                 "only support equal chunk: 6 rows into 0");
    rk_batch_destroy(batch);
}

static void test_pad_repeats_the_last_or_first_row(void **state)
{
    struct rk_batch *batch = make_rich(3), *empty = make_rich(0), *padded, *back;

    (void)state;
    assert_ok(rk_batch_pad(&padded, batch, 2, false));
    assert_rows(padded, ROWS(0, 1, 2, 2, 2));
    assert_rich(padded);
    assert_ok(rk_batch_unpad(&back, padded, 2));
    assert_rows(back, ROWS(0, 1, 2));
    rk_batch_destroy(back);
    rk_batch_destroy(padded);
    assert_ok(rk_batch_pad(&padded, batch, 2, true));
    assert_rows(padded, ROWS(0, 1, 2, 0, 0));
    rk_batch_destroy(padded);
    assert_ok(rk_batch_pad(&padded, batch, 0, false));
    assert_rows(padded, ROWS(0, 1, 2));
    rk_batch_destroy(padded);
    assert_ok(rk_batch_pad(&padded, empty, 0, false));
    assert_rows(padded, 0, NULL);
    rk_batch_destroy(padded);
    assert_fails(rk_batch_pad(&padded, empty, 1, false), RK_INVALID_ARGUMENT, "padding of 0 rows by 1");
    assert_fails(rk_batch_pad(&padded, batch, -1, false), RK_INVALID_ARGUMENT, "by -1");
    assert_fails(rk_batch_unpad(&padded, batch, 4), RK_INVALID_ARGUMENT, "dropping 4 of 3 rows");
    assert_fails(rk_batch_unpad(&padded, batch, -1), RK_INVALID_ARGUMENT, "dropping -1");
    assert_null(padded);
    rk_batch_destroy(batch);
    rk_batch_destroy(empty);
}

static void test_pad_to_divisor_worked_values(void **state)
{
    static const struct {
        int64_t rows, divisor, num_padded, expected[16];
    } cases[] = {
        {10, 4, 2, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1}},
        {3, 8, 5, {0, 1, 2, 0, 1, 2, 0, 1}},
        {2, 8, 6, {0, 1, 0, 1, 0, 1, 0, 1}},
        {8, 4, 0, {0, 1, 2, 3, 4, 5, 6, 7}},
        {0, 4, 0, {0}},
    };
    struct rk_batch *padded;
    int64_t num_padded;

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_batch *batch = make_rich(cases[i].rows);

        assert_ok(rk_batch_pad_to_divisor(&padded, batch, cases[i].divisor, &num_padded));
        assert_int_equal(num_padded, cases[i].num_padded);
        assert_rows(padded, cases[i].rows + num_padded, cases[i].expected);
        assert_rich(padded);
        assert_int_equal(rk_batch_num_rows(batch), cases[i].rows);
        rk_batch_destroy(padded);
        assert_fails(rk_batch_pad_to_divisor(&padded, batch, 0, &num_padded), RK_INVALID_ARGUMENT,
                     "multiple of 0");
        rk_batch_destroy(batch);
    }
}

/* Goal: with each allocation failing in turn: an error status, no leak, and an unchanged source. */
static void test_operations_survive_failing_allocations(void **state)
{
    struct rk_batch *batch = make_rich(5), *out;
    bool is_done = false;

    (void)state;
    for (int64_t n = 1; !is_done; n++) {
        struct rk_status *st;

        assert_true(n < 100);
        rk_alloc_fail_after(n);
        st = rk_batch_select_idxs(&out, batch, (int64_t[]){4, 1, 1}, 3);
        if (!st) {
            struct rk_batch *whole = NULL;
            const struct rk_batch *parts[] = {out, batch};

            st = rk_batch_concat(&whole, parts, 2);
            rk_batch_destroy(whole);
            rk_batch_destroy(out);
        }
        rk_alloc_fail_after(0);
        is_done = st == NULL;
        if (st)
            assert_code(st, RK_RESOURCE_EXHAUSTED);
    }
    assert_rich(batch);
    rk_batch_destroy(batch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create_dense_bad_shapes_are_refused),
        cmocka_unit_test(test_create_packed_bad_prefixes_are_refused),
        cmocka_unit_test(test_create_strings_bad_text_is_refused),
        cmocka_unit_test(test_create_without_memory_is_resource_exhausted),
        cmocka_unit_test(test_equal_compares_bits),
        cmocka_unit_test(test_equal_other_forms_differ),
        cmocka_unit_test(test_put_wrong_rows_and_names_are_refused),
        cmocka_unit_test(test_put_same_name_replaces_in_place),
        cmocka_unit_test(test_get_dense_says_what_is_there_instead),
        cmocka_unit_test(test_create_negative_rows_is_refused),
        cmocka_unit_test(test_meta_is_copied_on_write),
        cmocka_unit_test(test_select_keeps_what_is_named),
        cmocka_unit_test(test_union_adds_columns_and_meta),
        cmocka_unit_test(test_union_equal_nan_is_no_conflict),
        cmocka_unit_test(test_union_conflicts_change_nothing),
        cmocka_unit_test(test_slice_follows_python),
        cmocka_unit_test(test_slice_of_a_run_shares_storage),
        cmocka_unit_test(test_select_idxs_keeps_order_and_repeats),
        cmocka_unit_test(test_select_mask),
        cmocka_unit_test(test_reorder_in_place),
        cmocka_unit_test(test_chunk_equal_parts_only),
        cmocka_unit_test(test_pad_repeats_the_last_or_first_row),
        cmocka_unit_test(test_pad_to_divisor_worked_values),
        cmocka_unit_test(test_operations_survive_failing_allocations),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
