/* C = alpha * op(A) * op(B) + beta * C (+ bias).
 *
 * C is divided into tiles, and threads take tiles: OpenBLAS computes each on the thread that calls it. Its
 * own threads spin and yield while they wait for one another, which costs a time slice of another program for
 * each wait when the cores are busy.
 *
 * Three paths: OpenBLAS in place for F32 and F64; OpenBLAS over converted tiles for the half types and for a
 * C of another type; and, when strict, loops in this file that sum in f64, ascending over k. Only the last
 * one guarantees that an element's bits do not depend on the rest of the matrix: some kernels of OpenBLAS sum
 * in another order at the edges of a tile, so there bits may depend on the number of threads. */
#include "kernels/cpu/cpu_internal.h"

#include <cblas.h>

#include <string.h>

typedef enum gemm_path { PATH_IN_PLACE, PATH_CONVERTED, PATH_STRICT } gemm_path_t;

struct gemm_size {
    int64_t m, n, k;
};

static struct gemm_size size_of(const struct rk_gemm_args *args)
{
    return (struct gemm_size){args->c.shape[0], args->c.shape[1], args->a.shape[args->trans_a ? 0 : 1]};
}

static rk_dtype_t compute_dtype(rk_dtype_t dtype)
{
    return dtype == RK_DTYPE_F64 ? RK_DTYPE_F64 : RK_DTYPE_F32;
}

static gemm_path_t path_of(const struct rk_gemm_args *args)
{
    if (args->strict || size_of(args).k == 0) /* if k is 0, A and B may be none, which BLAS does not accept */
        return PATH_STRICT;
    return args->a.dtype == compute_dtype(args->a.dtype) && args->c.dtype == args->a.dtype ? PATH_IN_PLACE
                                                                                           : PATH_CONVERTED;
}

/* --- tiles --- */

#define STRICT_M 64
#define STRICT_N 128

/* Edge of the blocks that are converted: converting takes about 1/CONVERTED of the multiplication. */
#define CONVERTED 512
/* Parts of an edge begin at multiples of this unit: whole registers of OpenBLAS's kernels. */
#define UNIT 16
/* Packing the operands of a shorter tile takes too long. */
#define EDGE_MIN 64
/* Multiplications of a tile: enough to wake a thread. OpenBLAS has other kernels below 100^3. */
#define TILE_WORK (128 * 128 * 128)
/* A thread that gets little of a core delays the others less. */
#define TILES_PER_THREAD 2

/* An edge of C in `count` parts of almost equal numbers of units; the last unit may be cut. */
struct split {
    int64_t size, unit, count;
};

struct grid {
    struct split m, n;
};

/* A part of C: rows [m0, m0 + m), columns [n0, n0 + n). */
struct tile {
    int64_t m0, m, n0, n;
};

static int64_t num_units(const struct split *split)
{
    return (split->size + split->unit - 1) / split->unit;
}

static int64_t begin_of(const struct split *split, int64_t part)
{
    return RK_MIN(num_units(split) * part / split->count * split->unit, split->size);
}

/* Splits into parts of one unit. */
static struct split split_by(int64_t size, int64_t unit)
{
    return (struct split){size, unit, RK_MAX((size + unit - 1) / unit, 1)};
}

/* Length of the longest part. */
static int64_t edge_of(const struct split *split)
{
    return RK_MIN((num_units(split) + split->count - 1) / split->count * split->unit, split->size);
}

static int64_t num_tiles(const struct grid *grid)
{
    return grid->m.size > 0 && grid->n.size > 0 ? grid->m.count * grid->n.count : 0;
}

static struct tile tile_at(const struct grid *grid, int64_t i)
{
    int64_t row = i / grid->n.count, col = i % grid->n.count;
    struct tile tile = {.m0 = begin_of(&grid->m, row), .n0 = begin_of(&grid->n, col)};

    tile.m = begin_of(&grid->m, row + 1) - tile.m0;
    tile.n = begin_of(&grid->n, col + 1) - tile.n0;
    return tile;
}

static bool can_halve(const struct grid *grid, int64_t k)
{
    int64_t m = edge_of(&grid->m), n = edge_of(&grid->n);

    return (double)m * (double)n * (double)k >= 2.0 * TILE_WORK && RK_MAX(m, n) >= 2 * EDGE_MIN;
}

static void halve(struct split *split)
{
    split->unit = UNIT;
    split->count *= 2;
}

/* Converted tiles are few, because each converts its operands. */
static int64_t wanted_tiles(gemm_path_t path, int num_threads)
{
    if (path == PATH_STRICT || num_threads == 1)
        return 1;
    return path == PATH_CONVERTED ? num_threads : num_threads * TILES_PER_THREAD;
}

/* The tiles of a GEMM. Strict ones, and those for one thread, do not depend on the number of threads. */
static struct grid grid_of(const struct rk_gemm_args *args, int num_threads)
{
    struct gemm_size size = size_of(args);
    gemm_path_t path = path_of(args);
    int64_t wanted = wanted_tiles(path, num_threads);
    struct grid grid = {{size.m, UNIT, 1}, {size.n, UNIT, 1}};

    if (path == PATH_STRICT)
        grid.m = split_by(size.m, STRICT_M);
    if (path != PATH_IN_PLACE)
        grid.n = split_by(size.n, path == PATH_STRICT ? STRICT_N : CONVERTED);
    while (num_tiles(&grid) < wanted && can_halve(&grid, size.k))
        halve(edge_of(&grid.m) >= edge_of(&grid.n) ? &grid.m : &grid.n);
    return grid;
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

/* A row-major block with BLAS's parameters. */
struct block {
    void *data;
    int stride;
};

/* The block of t that begins at (row, col). */
static struct block block_at(rk_tensor_t t, int64_t row, int64_t col)
{
    int64_t columns = rk_tensor_row_elements(t);
    int64_t stride = t.shape[0] > 1 ? t.row_stride : columns; /* BLAS rejects a stride below the width: a
                                                               * single row may have any */

    return (struct block){rk_cpu_at(t, row, col), (int)RK_MAX(stride, 1)};
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

static void run_in_place(const struct rk_gemm_args *args, const struct tile *tile, double *scratch)
{
    struct gemm_size size = {tile->m, tile->n, size_of(args).k};
    double *row = scratch, *bias = row + tile->n;

    call_blas(args, size, args->trans_a ? block_at(args->a, 0, tile->m0) : block_at(args->a, tile->m0, 0),
              args->trans_b ? block_at(args->b, tile->n0, 0) : block_at(args->b, 0, tile->n0),
              block_at(args->c, tile->m0, tile->n0), true);
    if (!args->bias.data)
        return;
    rk_cpu_load(bias, args->bias, 0, tile->n0, tile->n);
    for (int64_t m = tile->m0; m < tile->m0 + tile->m; m++) {
        rk_cpu_load(row, args->c, m, tile->n0, tile->n);
        for (int64_t i = 0; i < tile->n; i++)
            row[i] += bias[i];
        rk_cpu_store(args->c, m, tile->n0, row, tile->n);
    }
}

/* Converts rows [begin, begin + count), or these columns, into contiguous memory. */
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

/* scratch: converted blocks of A, B and C, and two rows in f64. */
static void run_converted(const struct rk_gemm_args *args, const struct tile *tile, double *scratch)
{
    rk_dtype_t dtype = compute_dtype(args->a.dtype);
    struct gemm_size size = {RK_MIN(tile->m, CONVERTED), tile->n, size_of(args).k};
    double *a = scratch, *b = a + size.m * size.k, *c = b + size.n * size.k, *row = c + size.m * size.n;
    struct block b_block = convert_block(b, dtype, args->b, !args->trans_b, tile->n0, tile->n);
    struct block c_block = {c, (int)tile->n};

    for (int64_t m0 = 0; m0 < tile->m; m0 += CONVERTED) {
        size.m = RK_MIN(tile->m - m0, CONVERTED);
        call_blas(args, size, convert_block(a, dtype, args->a, args->trans_a, tile->m0 + m0, size.m), b_block,
                  c_block, false);
        for (int64_t r = 0; r < size.m; r++) {
            rk_load_f64(row, (char *)c + (size_t)(r * tile->n) * rk_dtype_bytes(dtype), dtype, tile->n);
            store_row(args, tile->m0 + m0 + r, tile->n0, row, row + tile->n, tile->n);
        }
    }
}

/* --- strict --- */

/* A tile of C is summed in f64 over blocks of k; the operands of one block fit the L2 cache. */
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

static void run_strict(const struct rk_gemm_args *args, const struct tile *at, struct strict_tile *tile)
{
    int64_t k_size = size_of(args).k;

    memset(tile->acc, 0, sizeof(tile->acc));
    for (int64_t k0 = 0; k0 < k_size; k0 += STRICT_K) {
        int64_t k = RK_MIN(k_size - k0, STRICT_K);

        load_a(tile, args, at->m0, at->m, k0, k);
        load_b(tile, args, at->n0, at->n, k0, k);
        for (int64_t j = 0; j < at->n; j += RK_PANEL) {
            for (int64_t r = 0; r < at->m; r++)
                rk_panel_accumulate(&tile->acc[r][j], tile->a[r], tile->b[j / RK_PANEL], k, RK_PANEL);
        }
    }
    for (int64_t r = 0; r < at->m; r++)
        store_row(args, at->m0 + r, at->n0, tile->acc[r], tile->scratch, at->n);
}

/* --- several GEMMs --- */

static struct rk_status *check_size(const struct rk_gemm_args *args)
{
    struct gemm_size size = size_of(args);
    int64_t largest = RK_MAX(RK_MAX(size.m, size.n), size.k);

    largest = RK_MAX(RK_MAX(largest, args->a.row_stride), RK_MAX(args->b.row_stride, args->c.row_stride));
    if (largest > INT32_MAX)
        return RK_FAIL(RK_UNIMPLEMENTED, "gemm: a size or stride is %lld, this backend takes at most %d",
                       (long long)largest, INT32_MAX);
    return NULL;
}

/* Number of doubles that a tile needs. */
static int64_t scratch_of(const struct rk_gemm_args *args, const struct grid *grid)
{
    int64_t m = RK_MIN(edge_of(&grid->m), CONVERTED), n = edge_of(&grid->n), k = size_of(args).k;

    switch (path_of(args)) {
    case PATH_IN_PLACE:
        return 2 * n;
    case PATH_CONVERTED:
        return (m + n) * k + m * n + 2 * n;
    case PATH_STRICT:
        break;
    }
    return (int64_t)(sizeof(struct strict_tile) / sizeof(double));
}

static double work_of(const struct rk_gemm_args *args)
{
    struct gemm_size size = size_of(args);

    return (double)size.m * (double)size.n * (double)size.k *
           (path_of(args) == PATH_STRICT ? RK_WORK_F64 : RK_WORK_BLAS);
}

static void run_tile(const struct rk_gemm_args *args, const struct tile *tile, double *scratch)
{
    switch (path_of(args)) {
    case PATH_IN_PLACE:
        run_in_place(args, tile, scratch);
        return;
    case PATH_CONVERTED:
        run_converted(args, tile, scratch);
        return;
    case PATH_STRICT:
        run_strict(args, tile, (struct strict_tile *)scratch);
        return;
    }
}

/* This thread's tiles. A thread that finds none left goes on to the next GEMM. */
static void run_tiles(const struct rk_cpu_device *cpu, const struct rk_cpu_gemms *gemms)
{
    for (int64_t g = 0; g < gemms->count; g++) {
        struct rk_gemm_args args = gemms->get(gemms->args, g);
        struct grid grid = grid_of(&args, cpu->num_threads);

#pragma omp for schedule(dynamic) nowait
        for (int64_t i = 0; i < num_tiles(&grid); i++) {
            struct tile tile = tile_at(&grid, i);

            run_tile(&args, &tile, rk_cpu_scratch(cpu));
        }
    }
}

struct rk_status *rk_cpu_gemms_run(struct rk_cpu_device *cpu, const struct rk_cpu_gemms *gemms)
{
    int64_t scratch = 0, tiles = 0;
    double work = 0.0;

    for (int64_t g = 0; g < gemms->count; g++) {
        struct rk_gemm_args args = gemms->get(gemms->args, g);
        struct grid grid = grid_of(&args, cpu->num_threads);

        RK_TRY(check_size(&args));
        scratch = RK_MAX(scratch, scratch_of(&args, &grid));
        tiles += num_tiles(&grid);
        work += work_of(&args);
    }
    RK_TRY(rk_cpu_scratch_reserve(cpu, scratch));
    if (tiles > 1 && rk_cpu_num_threads(cpu, work) > 1) {
#pragma omp parallel num_threads(cpu->num_threads)
        run_tiles(cpu, gemms);
    } else {
        run_tiles(cpu, gemms);
    }
    return NULL;
}

static struct rk_gemm_args get_one(const void *args, int64_t i)
{
    (void)i;
    return *(const struct rk_gemm_args *)args;
}

struct rk_status *rk_cpu_gemm(void *dev, void *stream, const struct rk_gemm_args *args)
{
    int64_t half = args->c.shape[1] / 2;

    RK_TRY(rk_cpu_gemms_run(dev, &(struct rk_cpu_gemms){.count = 1, .get = get_one, .args = args}));
    if (!args->swiglu.data)
        return NULL;
    return rk_cpu_swiglu_fwd(dev, stream,
                             &(struct rk_swiglu_fwd_args){.y = args->swiglu,
                                                          .gate = rk_tensor_cols(args->c, 0, half),
                                                          .up = rk_tensor_cols(args->c, half, half)});
}
