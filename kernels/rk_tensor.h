/* A tensor view: pointer, dtype and shape of memory that the view does not own. Passed by value. */
#ifndef RK_TENSOR_H
#define RK_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rk_dtype.h"

RK_BEGIN_DECLS

#define RK_TENSOR_MAX_RANK 4

/* Row-major. Dimensions 1.. are contiguous; rows of dimension 0 are row_stride elements apart, so that parts
 * of a fused projection are views of one allocation. */
typedef struct rk_tensor {
    void *data; /* device memory; NULL for "none" */
    rk_dtype_t dtype;
    int32_t rank;
    int64_t shape[RK_TENSOR_MAX_RANK];
    int64_t row_stride;
} rk_tensor_t;

rk_tensor_t rk_tensor_1d(void *data, rk_dtype_t dtype, int64_t dim0);
rk_tensor_t rk_tensor_2d(void *data, rk_dtype_t dtype, int64_t dim0, int64_t dim1);
rk_tensor_t rk_tensor_3d(void *data, rk_dtype_t dtype, int64_t dim0, int64_t dim1, int64_t dim2);
rk_tensor_t rk_tensor_4d(void *data, rk_dtype_t dtype, int64_t dim0, int64_t dim1, int64_t dim2,
                         int64_t dim3);
/* Rows [begin, begin + count) of dimension 0. */
rk_tensor_t rk_tensor_rows(rk_tensor_t t, int64_t begin, int64_t count);
/* Columns [begin, begin + count) of a 2-d view; keeps the row stride. */
rk_tensor_t rk_tensor_cols(rk_tensor_t t, int64_t begin, int64_t count);
/* Views [a, b * c] as [a, b, c] (keeps the row stride), and the inverse. */
rk_tensor_t rk_tensor_split_cols(rk_tensor_t t, int64_t dim1, int64_t dim2);
rk_tensor_t rk_tensor_merge_cols(rk_tensor_t t);
int64_t rk_tensor_num_elements(rk_tensor_t t);
int64_t rk_tensor_row_elements(rk_tensor_t t); /* elements of one row of dimension 0 */
size_t rk_tensor_bytes(rk_tensor_t t);         /* bytes of the elements, without gaps */
bool rk_tensor_is_contiguous(rk_tensor_t t);

RK_END_DECLS

#endif
