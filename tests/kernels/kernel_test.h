/* Common code of the kernel tests: a device, tensors on it, comparison with a reference in f64, gradient
 * checks.
 *
 * Tests access device memory only by copies, so they run on any backend: see support/device.h. A
 * reference reads back the rounded inputs, computes in f64 and expects the operator to differ only by the
 * rounding of its results and, on a GPU, by f32 arithmetic. */
#ifndef RK_KERNEL_TEST_H
#define RK_KERNEL_TEST_H

#include "base/rk_alloc.h"
#include "base/rk_rng.h"
#include "kernels/rk_kernels.h"
#include "tests/support/test.h"

#include <stdbool.h>

/* One per test; tensors and read-back arrays live until its end. */
struct kt {
    struct rk_device *device;
    struct rk_stream *stream;
    struct rk_rng rng;
    void **device_memory;
    int64_t num_device, device_capacity;
    void **host_memory;
    int64_t num_host, host_capacity;
};

/* cmocka setup and teardown: *state is a struct kt. */
int kt_setup(void **state);
int kt_teardown(void **state);
/* Setup and teardown with another number of threads. */
struct kt *kt_create(int num_threads);
void kt_destroy(struct kt *kt);

bool kt_is_cpu(const struct kt *kt);
/* Whether it is F64 on a backend other than the CPU, which need not support it. */
bool kt_is_cpu_only(const struct kt *kt, rk_dtype_t dtype);

#define kt_test(function) cmocka_unit_test_setup_teardown(function, kt_setup, kt_teardown)

/* Zeroed tensors. */
rk_tensor_t kt_zeros_1d(struct kt *kt, rk_dtype_t dtype, int64_t dim0);
rk_tensor_t kt_zeros_2d(struct kt *kt, rk_dtype_t dtype, int64_t dim0, int64_t dim1);
rk_tensor_t kt_zeros_3d(struct kt *kt, rk_dtype_t dtype, int64_t dim0, int64_t dim1, int64_t dim2);
rk_tensor_t kt_zeros_4d(struct kt *kt, rk_dtype_t dtype, int64_t dim0, int64_t dim1, int64_t dim2,
                        int64_t dim3);
/* Fills the tensor with normal numbers of that standard deviation; returns it. */
rk_tensor_t kt_randomize(struct kt *kt, rk_tensor_t t, double deviation);
/* I32 [count]. */
rk_tensor_t kt_ints(struct kt *kt, const int32_t *values, int64_t count);
rk_tensor_t kt_random_ints(struct kt *kt, int64_t count, int64_t below);

/* Elements in order, without gaps, as f64 (or unconverted). Borrowed until the end of the test. */
double *kt_read(struct kt *kt, rk_tensor_t t);
int32_t *kt_read_ints(struct kt *kt, rk_tensor_t t);
void *kt_read_bytes(struct kt *kt, rk_tensor_t t);
void kt_write(struct kt *kt, rk_tensor_t t, const double *values);
/* count doubles, zeroed. */
double *kt_scratch(struct kt *kt, int64_t count);

/* The CPU backend rejects invalid values in integer tensors with INVALID_ARGUMENT and a message that contains
 * `text`; other backends do not check them, and must not fail. Takes the status. */
void kt_expect_refused(struct kt *kt, struct rk_status *st, const char *text);
/* Every element is within one rounding of the exact result to the tensor's dtype. */
void kt_expect_close(struct kt *kt, const char *label, rk_tensor_t actual, const double *expected);
/* kt_expect_close for a result near 1 that was summed in fp32, or whose inputs were stored in fp32. */
void kt_expect_close_sum(struct kt *kt, const char *label, rk_tensor_t actual, const double *expected);
/* kt_expect_close for attention, whose probabilities a GPU rounds to the tensors' dtype for the second GEMM.
 */
void kt_expect_close_attention(struct kt *kt, const char *label, rk_tensor_t actual, const double *expected);
/* Bytes. */
void kt_expect_same_bits(struct kt *kt, const char *label, rk_tensor_t actual, rk_tensor_t expected);

/* "rmsnorm bf16": borrowed until the end of the test. */
const char *kt_label(struct kt *kt, const char *label, rk_dtype_t dtype);

/* sum_i weight_i * t_i: the scalar loss of the gradient checks, whose gradient with respect to t is
 * `weight`. */
double kt_project(struct kt *kt, rk_tensor_t t, rk_tensor_t weight);
/* Compares `gradient` with finite differences of the loss for every element of `input` (both F64). `loss`
 * runs the forward pass. Counts as a separate case for rk_test_in_part. */
void kt_expect_gradient(struct kt *kt, const char *label, rk_tensor_t input, rk_tensor_t gradient,
                        double (*loss)(struct kt *kt, void *user), void *user);

extern const rk_dtype_t kt_dtypes[4]; /* F64, F32, BF16, F16 */

static inline rk_dtype_t kt_stat_dtype(rk_dtype_t dtype)
{
    return dtype == RK_DTYPE_F64 ? RK_DTYPE_F64 : RK_DTYPE_F32;
}

#endif
