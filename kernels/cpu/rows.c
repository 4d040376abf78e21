/* Moves of whole rows by index, of parts of matrices, and of sampled tokens to the next step. */
#include "kernels/cpu/cpu_internal.h"

#include <string.h>

/* Elements converted at a time. */
#define BLOCK 256

/* The smallest index that is legal. */
static int64_t first_of(const struct rk_rows_args *args)
{
    return args->has_gaps ? -1 : 0;
}

struct rk_status *rk_cpu_gather_rows(void *dev, void *stream, const struct rk_rows_args *args)
{
    const struct rk_cpu_device *cpu = dev;
    const int32_t *index = rk_cpu_i32(args->index);
    size_t row_bytes = (size_t)args->x.shape[1] * rk_dtype_bytes(args->x.dtype);
    int64_t num_rows;

    (void)stream;
    RK_TRY(rk_cpu_read_count("gather_rows", args->count, args->index.shape[0], &num_rows));
    RK_TRY(rk_cpu_check_range("gather_rows", "index", args->index, first_of(args), args->x.shape[0] - 1));
#pragma omp parallel for num_threads(rk_cpu_threads_over(cpu, args->out, RK_WORK_COPY))
    for (int64_t r = 0; r < num_rows; r++) {
        if (index[r] < 0)
            memset(rk_cpu_at(args->out, r, 0), 0, row_bytes);
        else
            memcpy(rk_cpu_at(args->out, r, 0), rk_cpu_at(args->x, index[r], 0), row_bytes);
    }
    return NULL;
}

/* Indices must be distinct; a single thread makes the result deterministic even if they are not. */
struct rk_status *rk_cpu_scatter_rows(void *dev, void *stream, const struct rk_rows_args *args)
{
    const int32_t *index = rk_cpu_i32(args->index);
    size_t row_bytes = (size_t)args->x.shape[1] * rk_dtype_bytes(args->x.dtype);
    int64_t num_rows;

    (void)dev;
    (void)stream;
    RK_TRY(rk_cpu_read_count("scatter_rows", args->count, args->index.shape[0], &num_rows));
    RK_TRY(rk_cpu_check_range("scatter_rows", "index", args->index, first_of(args), args->out.shape[0] - 1));
    for (int64_t r = 0; r < num_rows; r++) {
        if (index[r] < 0)
            continue;
        memcpy(rk_cpu_at(args->out, index[r], 0), rk_cpu_at(args->x, r, 0), row_bytes);
    }
    return NULL;
}

struct rk_status *rk_cpu_next_tokens(void *dev, void *stream, const struct rk_next_tokens_args *args)
{
    const int32_t *sampled = rk_cpu_i32(args->sampled), *source = rk_cpu_i32(args->source);
    int32_t *tokens = args->tokens.data;

    (void)dev;
    (void)stream;
    RK_TRY(rk_cpu_check_range("next_tokens", "source", args->source, INT32_MIN, args->sampled.shape[0] - 1));
    for (int64_t t = 0; t < args->tokens.shape[0]; t++)
        tokens[t] = source[t] >= 0 ? sampled[source[t]] : tokens[t];
    return NULL;
}

static void convert_row(rk_tensor_t out, rk_tensor_t x, int64_t row)
{
    double values[BLOCK];

    for (int64_t begin = 0; begin < x.shape[1]; begin += BLOCK) {
        int64_t count = RK_MIN(BLOCK, x.shape[1] - begin);

        rk_cpu_load(values, x, row, begin, count);
        rk_cpu_store(out, row, begin, values, count);
    }
}

struct rk_status *rk_cpu_copy_2d(void *dev, void *stream, const struct rk_copy_2d_args *args)
{
    const struct rk_cpu_device *cpu = dev;
    size_t row_bytes = (size_t)args->x.shape[1] * rk_dtype_bytes(args->x.dtype);

    (void)stream;
#pragma omp parallel for num_threads(rk_cpu_threads_over(cpu, args->x, 1.0))
    for (int64_t r = 0; r < args->x.shape[0]; r++) {
        if (args->out.dtype == args->x.dtype)
            memcpy(rk_cpu_at(args->out, r, 0), rk_cpu_at(args->x, r, 0), row_bytes);
        else
            convert_row(args->out, args->x, r);
    }
    return NULL;
}
