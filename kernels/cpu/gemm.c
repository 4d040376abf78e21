/* C = alpha * op(A) * op(B) + beta * C (+ bias).
 *
 * Three paths: OpenBLAS in place for F32 and F64; OpenBLAS over converted tiles for the half types and for a
 * C of another type; and, when strict, loops in this file that sum in f64, ascending over k. Only the last
 * one guarantees that an element's bits do not depend on the rest of the matrix. */
#include "kernels/cpu/cpu_internal.h"

#include <cblas.h>

#include <string.h>

struct gemm_size {
    int64_t m, n, k;
};

static struct gemm_size size_of(const struct rk_gemm_args *args)
{
    return (struct gemm_size){args->c.shape[0], args->c.shape[1], args->a.shape[args->trans_a ? 0 : 1]};
}

/* Stores acc[0..n) = op(A) * op(B) at row m, columns from n0 on, as that part of C, rounded once. */
static void store_row(const struct rk_gemm_args *args, int64_t m, int64_t n0, double *acc, double *scratch,
                      int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        acc[i] *= args->alpha;
    if (args->beta != 0.0f) {
        rk_cpu_load(scratch, args->c, m, n0, n);
        for (int64_t i = 0; i < n; i++)
            acc[i] += args->beta * scratch[i];
    }
    if (args->bias.data) {
        rk_cpu_load(scratch, args->bias, 0, n0, n);
        for (int64_t i = 0; i < n; i++)
            acc[i] += scratch[i];
    }
    rk_cpu_store(args->c, m, n0, acc, n);
}

/* --- OpenBLAS --- */

static rk_dtype_t compute_dtype(rk_dtype_t dtype)
{
    return dtype == RK_DTYPE_F64 ? RK_DTYPE_F64 : RK_DTYPE_F32;
}

/* A row-major block with BLAS's parameters. */
struct block {
    void *data;
    int stride;
};

static struct block block_of(rk_tensor_t t)
{
    int64_t columns = rk_tensor_row_elements(t);
    int64_t stride = t.shape[0] > 1 ? t.row_stride : columns; /* BLAS rejects a stride below the width: a
                                                               * single row may have any */

    return (struct block){t.data, (int)RK_MAX(stride, 1)};
}

static void call_blas(const struct rk_gemm_args *args, struct gemm_size size, struct block a, struct block b,
                      struct block c, bool is_final)
{
    CBLAS_TRANSPOSE trans_a = args->trans_a ? CblasTrans : CblasNoTrans;
    CBLAS_TRANSPOSE trans_b = args->trans_b ? CblasTrans : CblasNoTrans;
    float alpha = is_final ? args->alpha : 1.0f, beta = is_final ? args->beta : 0.0f;
    int m = (int)size.m, n = (int)size.n, k = (int)size.k;

    if (args->a.dtype == RK_DTYPE_F64)
        cblas_dgemm(CblasRowMajor, trans_a, trans_b, m, n, k, alpha, a.data, a.stride, b.data, b.stride, beta,
                    c.data, c.stride);
    else
        cblas_sgemm(CblasRowMajor, trans_a, trans_b, m, n, k, alpha, a.data, a.stride, b.data, b.stride, beta,
                    c.data, c.stride);
}

static struct rk_status *gemm_in_place(struct rk_cpu_device *cpu, const struct rk_gemm_args *args)
{
    struct gemm_size size = size_of(args);

    RK_TRY(rk_cpu_scratch_reserve(cpu, 2 * size.n));
    call_blas(args, size, block_of(args->a), block_of(args->b), block_of(args->c), true);
    if (!args->bias.data)
        return NULL;
#pragma omp parallel for num_threads(cpu->num_threads)
    for (int64_t m = 0; m < size.m; m++) {
        double *row = rk_cpu_scratch(cpu), *bias = row + size.n;

        rk_cpu_load(row, args->c, m, 0, size.n);
        rk_cpu_load(bias, args->bias, 0, 0, size.n);
        for (int64_t i = 0; i < size.n; i++)
            row[i] += bias[i];
        rk_cpu_store(args->c, m, 0, row, size.n);
    }
    return NULL;
}

/* Edge of a converted tile of C: converting its inputs costs about 1/TILE of the multiplication. */
#define TILE 512

/* Converts rows [row, row + num_rows) x columns [col, col + num_cols) into contiguous memory. */
static struct block convert_block(void *dst, rk_dtype_t dtype, rk_tensor_t t, bool by_columns, int64_t begin,
                                  int64_t count)
{
    int64_t num_rows = by_columns ? t.shape[0] : count, num_cols = by_columns ? count : t.shape[1];
    size_t row_bytes = (size_t)num_cols * rk_dtype_bytes(dtype);

    for (int64_t r = 0; r < num_rows; r++) {
        const void *src = by_columns ? rk_cpu_at(t, r, begin) : rk_cpu_at(t, begin + r, 0);

        rk_convert((char *)dst + (size_t)r * row_bytes, dtype, src, t.dtype, num_cols);
    }
    return (struct block){dst, (int)RK_MAX(num_cols, 1)};
}

static struct rk_status *gemm_converted(struct rk_cpu_device *cpu, const struct rk_gemm_args *args)
{
    rk_dtype_t dtype = compute_dtype(args->a.dtype);
    struct gemm_size size = size_of(args), tile = size;
    double *a, *b, *c, *row;

    RK_TRY(rk_cpu_scratch_reserve(cpu, 2 * TILE * size.k + TILE * TILE + 2 * TILE));
    a = rk_cpu_scratch(cpu);
    b = a + TILE * size.k;
    c = b + TILE * size.k;
    row = c + TILE * TILE;
    for (int64_t n0 = 0; n0 < size.n; n0 += TILE) {
        struct block b_block, c_block = {c, TILE};

        tile.n = RK_MIN(size.n - n0, TILE);
        b_block = convert_block(b, dtype, args->b, !args->trans_b, n0, tile.n);
        for (int64_t m0 = 0; m0 < size.m; m0 += TILE) {
            tile.m = RK_MIN(size.m - m0, TILE);
            call_blas(args, tile, convert_block(a, dtype, args->a, args->trans_a, m0, tile.m), b_block,
                      c_block, false);
            for (int64_t r = 0; r < tile.m; r++) {
                rk_load_f64(row, (char *)c + (size_t)(r * TILE) * rk_dtype_bytes(dtype), dtype, tile.n);
                store_row(args, m0 + r, n0, row, row + TILE, tile.n);
            }
        }
    }
    return NULL;
}

/* --- strict --- */

/* A tile of C is summed in f64 over blocks of k; the operands of one block fit the L2 cache. */
#define STRICT_M 64
#define STRICT_N 128
#define STRICT_K 256

struct strict_tile {
    double acc[STRICT_M][STRICT_N];
    double a[STRICT_M][STRICT_K];                       /* op(A) */
    double b[STRICT_N / RK_PANEL][STRICT_K * RK_PANEL]; /* op(B) in panels */
    double column[STRICT_K];
    double scratch[STRICT_N];
};

static void load_a(struct strict_tile *tile, const struct rk_gemm_args *args, int64_t m0, int64_t m,
                   int64_t k0, int64_t k)
{
    for (int64_t r = 0; !args->trans_a && r < m; r++)
        rk_cpu_load(tile->a[r], args->a, m0 + r, k0, k);
    for (int64_t c = 0; args->trans_a && c < k; c++) {
        rk_cpu_load(tile->column, args->a, k0 + c, m0, m);
        for (int64_t r = 0; r < m; r++)
            tile->a[r][c] = tile->column[r];
    }
}

/* Columns beyond n keep old values, which only affect sums that are not stored. */
static void load_b(struct strict_tile *tile, const struct rk_gemm_args *args, int64_t n0, int64_t n,
                   int64_t k0, int64_t k)
{
    for (int64_t j = 0; args->trans_b && j < n; j++) {
        rk_cpu_load(tile->column, args->b, n0 + j, k0, k);
        rk_panel_set_column(tile->b[j / RK_PANEL], j % RK_PANEL, tile->column, k);
    }
    for (int64_t j = 0; !args->trans_b && j < n; j += RK_PANEL) {
        for (int64_t c = 0; c < k; c++)
            rk_cpu_load(&tile->b[j / RK_PANEL][c * RK_PANEL], args->b, k0 + c, n0 + j,
                        RK_MIN(n - j, RK_PANEL));
    }
}

static void strict_tile(struct strict_tile *tile, const struct rk_gemm_args *args, int64_t m0, int64_t n0)
{
    struct gemm_size size = size_of(args);
    int64_t m = RK_MIN(size.m - m0, STRICT_M), n = RK_MIN(size.n - n0, STRICT_N);

    memset(tile->acc, 0, sizeof(tile->acc));
    for (int64_t k0 = 0; k0 < size.k; k0 += STRICT_K) {
        int64_t k = RK_MIN(size.k - k0, STRICT_K);

        load_a(tile, args, m0, m, k0, k);
        load_b(tile, args, n0, n, k0, k);
        for (int64_t j = 0; j < n; j += RK_PANEL) {
            for (int64_t r = 0; r < m; r++)
                rk_panel_accumulate(&tile->acc[r][j], tile->a[r], tile->b[j / RK_PANEL], k, RK_PANEL);
        }
    }
    for (int64_t r = 0; r < m; r++)
        store_row(args, m0 + r, n0, tile->acc[r], tile->scratch, n);
}

static struct rk_status *gemm_strict(struct rk_cpu_device *cpu, const struct rk_gemm_args *args)
{
    struct gemm_size size = size_of(args);

    RK_TRY(rk_cpu_scratch_reserve(cpu, (int64_t)(sizeof(struct strict_tile) / sizeof(double))));
#pragma omp parallel for collapse(2) num_threads(cpu->num_threads)
    for (int64_t m0 = 0; m0 < size.m; m0 += STRICT_M) {
        for (int64_t n0 = 0; n0 < size.n; n0 += STRICT_N)
            strict_tile((struct strict_tile *)rk_cpu_scratch(cpu), args, m0, n0);
    }
    return NULL;
}

static struct rk_status *multiply(struct rk_cpu_device *dev, const struct rk_gemm_args *args)
{
    struct gemm_size size = size_of(args);
    int64_t largest = RK_MAX(RK_MAX(size.m, size.n), size.k);

    largest = RK_MAX(RK_MAX(largest, args->a.row_stride), RK_MAX(args->b.row_stride, args->c.row_stride));
    if (largest > INT32_MAX)
        return RK_FAIL(RK_UNIMPLEMENTED, "gemm: a size or stride is %lld, this backend takes at most %d",
                       (long long)largest, INT32_MAX);
    if (args->strict || size.k == 0) /* if k is 0, A and B may be none, which BLAS does not accept */
        return gemm_strict(dev, args);
    if (args->a.dtype == compute_dtype(args->a.dtype) && args->c.dtype == args->a.dtype)
        return gemm_in_place(dev, args);
    return gemm_converted(dev, args);
}

struct rk_status *rk_cpu_gemm(void *dev, void *stream, const struct rk_gemm_args *args)
{
    int64_t half = args->c.shape[1] / 2;

    RK_TRY(multiply(dev, args));
    if (!args->swiglu.data)
        return NULL;
    return rk_cpu_swiglu_fwd(dev, stream,
                             &(struct rk_swiglu_fwd_args){.y = args->swiglu,
                                                          .gate = rk_tensor_cols(args->c, 0, half),
                                                          .up = rk_tensor_cols(args->c, half, half)});
}
