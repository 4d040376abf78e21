#include "kernels/rk_tensor.h"

#include "base/rk_assert.h"

static rk_tensor_t make(void *data, rk_dtype_t dtype, int32_t rank, const int64_t *dims)
{
    rk_tensor_t t = {.data = data, .dtype = dtype, .rank = rank};

    RK_ASSERT(rk_dtype_is_valid((int)dtype));
    for (int32_t i = 0; i < rank; i++) {
        RK_ASSERT(dims[i] >= 0);
        t.shape[i] = dims[i];
    }
    t.row_stride = rk_tensor_row_elements(t);
    return t;
}

rk_tensor_t rk_tensor_1d(void *data, rk_dtype_t dtype, int64_t dim0)
{
    return make(data, dtype, 1, (const int64_t[]){dim0});
}

rk_tensor_t rk_tensor_2d(void *data, rk_dtype_t dtype, int64_t dim0, int64_t dim1)
{
    return make(data, dtype, 2, (const int64_t[]){dim0, dim1});
}

rk_tensor_t rk_tensor_3d(void *data, rk_dtype_t dtype, int64_t dim0, int64_t dim1, int64_t dim2)
{
    return make(data, dtype, 3, (const int64_t[]){dim0, dim1, dim2});
}

rk_tensor_t rk_tensor_4d(void *data, rk_dtype_t dtype, int64_t dim0, int64_t dim1, int64_t dim2, int64_t dim3)
{
    return make(data, dtype, 4, (const int64_t[]){dim0, dim1, dim2, dim3});
}

/* `t` advanced by a number of elements. "None" remains none. */
static rk_tensor_t advance(rk_tensor_t t, int64_t elements)
{
    if (t.data)
        t.data = (char *)t.data + (size_t)elements * rk_dtype_bytes(t.dtype);
    return t;
}

rk_tensor_t rk_tensor_rows(rk_tensor_t t, int64_t begin, int64_t count)
{
    RK_ASSERT(t.rank >= 1);
    RK_ASSERT(begin >= 0);
    RK_ASSERT(count >= 0);
    RK_ASSERT(begin + count <= t.shape[0]);
    t = advance(t, begin * t.row_stride);
    t.shape[0] = count;
    return t;
}

rk_tensor_t rk_tensor_cols(rk_tensor_t t, int64_t begin, int64_t count)
{
    RK_ASSERT(t.rank == 2);
    RK_ASSERT(begin >= 0);
    RK_ASSERT(count >= 0);
    RK_ASSERT(begin + count <= t.shape[1]);
    t = advance(t, begin);
    t.shape[1] = count;
    return t;
}

rk_tensor_t rk_tensor_split_cols(rk_tensor_t t, int64_t dim1, int64_t dim2)
{
    RK_ASSERT(t.rank == 2);
    RK_ASSERT(dim1 >= 0);
    RK_ASSERT(dim2 >= 0);
    RK_ASSERT(t.shape[1] == dim1 * dim2);
    t.rank = 3;
    t.shape[1] = dim1;
    t.shape[2] = dim2;
    return t;
}

rk_tensor_t rk_tensor_merge_cols(rk_tensor_t t)
{
    RK_ASSERT(t.rank == 3);
    t.rank = 2;
    t.shape[1] *= t.shape[2];
    t.shape[2] = 0;
    return t;
}

int64_t rk_tensor_num_elements(rk_tensor_t t)
{
    return t.rank == 0 ? 0 : t.shape[0] * rk_tensor_row_elements(t);
}

int64_t rk_tensor_row_elements(rk_tensor_t t)
{
    int64_t elements = 1;

    for (int32_t i = 1; i < t.rank; i++)
        elements *= t.shape[i];
    return elements;
}

size_t rk_tensor_bytes(rk_tensor_t t)
{
    return (size_t)rk_tensor_num_elements(t) * rk_dtype_bytes(t.dtype);
}

bool rk_tensor_is_contiguous(rk_tensor_t t)
{
    return t.shape[0] <= 1 || t.row_stride == rk_tensor_row_elements(t);
}
