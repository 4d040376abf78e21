/* Private to kernels/cpu/: the device handle, access to rows, and the vector primitive of the
 * compute-intensive operators.
 *
 * Every operator loads rows into f64 scratch memory, computes in f64, and rounds once when it stores. So the
 * same code handles F16, BF16, F32 and F64, and a row's result depends on that row alone. Work is split over
 * threads by rows, heads or sequences, never within a sum, so results do not depend on the number of
 * threads. Only fast GEMMs sum in OpenBLAS, which changes the order with the size of a part (gemm.c). */
#ifndef RK_CPU_INTERNAL_H
#define RK_CPU_INTERNAL_H

#include "base/rk_dtype.h"

#include "kernels/rk_kernels.h"

/* Owned by the engine thread. Scratch memory grows to the maximum of all calls and is kept. */
struct rk_cpu_device {
    int num_threads;
    double *scratch; /* num_threads * scratch_per_thread elements */
    int64_t scratch_per_thread;
    uint64_t num_allocations; /* of scratch */
    uint64_t allocated_bytes; /* of device and pinned memory */
};

#define X(op, args_type) struct rk_status *rk_cpu_##op(void *dev, void *stream, const struct args_type *args);
RK_KERNEL_TABLE(X)
#undef X

extern const struct rk_kernel_ops rk_cpu_kernel_ops;

/* --- scratch (device_cpu.c) --- */

/* Gives every thread `count` doubles, uninitialized. Invalidates the scratch memory of earlier calls. */
struct rk_status *rk_cpu_scratch_reserve(struct rk_cpu_device *dev, int64_t count) RK_NODISCARD;
/* The calling thread's scratch memory. */
double *rk_cpu_scratch(const struct rk_cpu_device *dev);

/* --- threads (device_cpu.c) --- */

/* Number of threads for a parallel loop: one if waking the others would take longer than they save. `work`
 * estimates the loop in elements that one thread loads, adds to a sum or multiplies, and stores. */
int rk_cpu_num_threads(const struct rk_cpu_device *dev, double work);

/* Work of other operations, in the same unit: */
#define RK_WORK_EXP  4.0          /* an exponential or logarithm */
#define RK_WORK_SORT 16.0         /* an element of a row that is sorted */
#define RK_WORK_COPY 0.125        /* an element that is copied as it is */
#define RK_WORK_BLAS (1.0 / 64.0) /* a multiplication and addition in OpenBLAS */
#define RK_WORK_F64  0.125        /* the same in f64 (rk_panel_accumulate) */

/* Threads for a loop over a tensor, each of whose elements is `work`. */
static inline int rk_cpu_threads_over(const struct rk_cpu_device *dev, rk_tensor_t t, double work)
{
    return rk_cpu_num_threads(dev, (double)rk_tensor_num_elements(t) * work);
}

/* --- GEMMs (gemm.c) --- */

/* A series of independent GEMMs: none reads what another one writes. `get` returns one GEMM, without swiglu.
 */
struct rk_cpu_gemms {
    int64_t count;
    struct rk_gemm_args (*get)(const void *args, int64_t i);
    const void *args;
};

/* Runs the GEMMs in one parallel loop. Each has the same bits as when it runs alone. */
struct rk_status *rk_cpu_gemms_run(struct rk_cpu_device *cpu, const struct rk_cpu_gemms *gemms) RK_NODISCARD;

/* --- integers in tensors (indices.c): invalid values must not make the backend access memory out of bounds
 * --- */

struct rk_status *rk_cpu_check_range(const char *op, const char *arg, rk_tensor_t t, int64_t min,
                                     int64_t max) RK_NODISCARD;
/* Checks prefix sums: from 0 to `total`, non-decreasing, no step above `longest`. */
struct rk_status *rk_cpu_check_prefix_sums(const char *op, const char *arg, rk_tensor_t t, int64_t total,
                                           int64_t longest) RK_NODISCARD;
/* Checks offsets of groups of rows: from 0, non-decreasing, at most num_rows. */
struct rk_status *rk_cpu_check_offsets(const char *op, rk_tensor_t offsets, int64_t num_rows) RK_NODISCARD;

/* *out = count[0], or `most` without the tensor. */
struct rk_status *rk_cpu_read_count(const char *op, rk_tensor_t count, int64_t most,
                                    int64_t *out) RK_NODISCARD;

static inline const int32_t *rk_cpu_i32(rk_tensor_t t)
{
    return t.data;
}

/* --- rows --- */

/* Address of element `col` of row `row`, with dimensions before the last flattened into rows. */
static inline void *rk_cpu_at(rk_tensor_t t, int64_t row, int64_t col)
{
    return (char *)t.data + (size_t)(row * t.row_stride + col) * rk_dtype_bytes(t.dtype);
}

static inline void rk_cpu_load(double *dst, rk_tensor_t t, int64_t row, int64_t col, int64_t count)
{
    rk_load_f64(dst, rk_cpu_at(t, row, col), t.dtype, count);
}

static inline void rk_cpu_store(rk_tensor_t t, int64_t row, int64_t col, const double *src, int64_t count)
{
    rk_store_f64(rk_cpu_at(t, row, col), t.dtype, src, count);
}

static inline double rk_cpu_load_one(rk_tensor_t t, int64_t row, int64_t col)
{
    double value;

    rk_cpu_load(&value, t, row, col, 1);
    return value;
}

/* --- panels (panel.c) --- */

/* Columns computed together: eight 128-bit registers of f64, so that the sums of a panel stay in registers on
 * baseline x86-64. */
#define RK_PANEL 16

static inline int64_t rk_panel_round_up(int64_t count)
{
    return (count + RK_PANEL - 1) / RK_PANEL * RK_PANEL;
}

/* y[c] += sum_r w[r] * rows[r * row_len + c] for c < row_len, a multiple of RK_PANEL. Each y[c] is a
 * sequential sum in ascending r: it depends neither on the other columns nor on how r is split over calls. */
void rk_panel_accumulate(double *y, const double *w, const double *rows, int64_t num_rows, int64_t row_len);
/* panel[r * RK_PANEL + column] = values[r]. */
void rk_panel_set_column(double *panel, int64_t column, const double *values, int64_t count);

#endif
