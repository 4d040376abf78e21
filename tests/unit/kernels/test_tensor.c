/* Goal: views address the elements given by their names. */
#include "base/rk_alloc.h"

#include "kernels/rk_tensor.h"
#include "tests/support/test.h"

static int32_t memory[4 * 6];

static void test_tensor_constructors_are_contiguous(void **state)
{
    rk_tensor_t t = rk_tensor_4d(memory, RK_DTYPE_BF16, 5, 2, 3, 4);

    (void)state;
    assert_int_equal(t.rank, 4);
    assert_int_equal(t.row_stride, 24);
    assert_int_equal(rk_tensor_row_elements(t), 24);
    assert_int_equal(rk_tensor_num_elements(t), 120);
    assert_int_equal(rk_tensor_bytes(t), 240);
    assert_true(rk_tensor_is_contiguous(t));
    assert_int_equal(rk_tensor_1d(memory, RK_DTYPE_I32, 7).row_stride, 1);
    assert_int_equal(rk_tensor_num_elements(rk_tensor_3d(NULL, RK_DTYPE_F32, 3, 0, 2)), 0);
    assert_int_equal(rk_tensor_num_elements((rk_tensor_t){0}), 0);
}

static void test_tensor_rows_moves_by_rows(void **state)
{
    rk_tensor_t t = rk_tensor_rows(rk_tensor_2d(memory, RK_DTYPE_I32, 4, 6), 1, 2);

    (void)state;
    assert_ptr_equal(t.data, memory + 6);
    assert_int_equal(t.shape[0], 2);
    assert_int_equal(t.shape[1], 6);
    assert_int_equal(rk_tensor_rows(t, 2, 0).shape[0], 0);
}

static void test_tensor_cols_keep_row_stride(void **state)
{
    rk_tensor_t t = rk_tensor_cols(rk_tensor_2d(memory, RK_DTYPE_I32, 4, 6), 2, 4);

    (void)state;
    assert_ptr_equal(t.data, memory + 2);
    assert_int_equal(t.row_stride, 6);
    assert_int_equal(rk_tensor_row_elements(t), 4);
    assert_false(rk_tensor_is_contiguous(t));
    assert_true(rk_tensor_is_contiguous(rk_tensor_rows(t, 3, 1))); /* one row has no gaps */
    assert_ptr_equal(rk_tensor_rows(t, 3, 1).data, memory + 20);
}

static void test_tensor_split_and_merge_cols_are_inverse(void **state)
{
    rk_tensor_t t = rk_tensor_cols(rk_tensor_2d(memory, RK_DTYPE_I32, 4, 6), 2, 4);
    rk_tensor_t split = rk_tensor_split_cols(t, 2, 2), merged = rk_tensor_merge_cols(split);

    (void)state;
    assert_int_equal(split.rank, 3);
    assert_int_equal(split.shape[1], 2);
    assert_int_equal(split.shape[2], 2);
    assert_int_equal(split.row_stride, 6);
    assert_memory_equal(&merged, &t, sizeof(t));
}

static void test_tensor_views_of_none_stay_none(void **state)
{
    rk_tensor_t none = rk_tensor_2d(NULL, RK_DTYPE_F32, 4, 6);

    (void)state;
    assert_null(rk_tensor_rows(none, 2, 1).data);
    assert_null(rk_tensor_cols(none, 2, 1).data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensor_constructors_are_contiguous),
        cmocka_unit_test(test_tensor_rows_moves_by_rows),
        cmocka_unit_test(test_tensor_cols_keep_row_stride),
        cmocka_unit_test(test_tensor_split_and_merge_cols_are_inverse),
        cmocka_unit_test(test_tensor_views_of_none_stay_none),
    };

    return cmocka_run_group_tests_name("unit/kernels/tensor", tests, NULL, NULL);
}
