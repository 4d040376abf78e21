/* Private to kernels/cuda/: the handles of the backend, its errors, and functions that its files share.
 *
 * A process opens its devices on one thread (the engine's), which then has this device as its current device:
 * no function selects it again. */
#ifndef RK_CUDA_INTERNAL_H
#define RK_CUDA_INTERNAL_H

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/rk_cuda.h"
#include "kernels/rk_kernels.h"

RK_BEGIN_DECLS

/* cuBLASLt workspace of a stream: the size that NVIDIA recommends for Hopper; a smaller one excludes
 * algorithms. */
#define RK_CUDA_WORKSPACE_BYTES ((size_t)32 << 20)

#define RK_CUDA_COMPARE_BYTES (RK_CUDA_WORKSPACE_BYTES - 256)

struct rk_cuda_gemm_plans;

struct rk_cuda_device {
    int index;
    int compute_capability; /* 80, 90, ... */
    int num_sms;
    int max_shared_bytes; /* of a block, dynamic and static */
    bool has_sm90a;       /* compute capability 9.0, and the plug-in has sm_90a code */
    bool sync_launch;     /* RK_SYNC_LAUNCH=1: wait after every launch, so that an error names its operator */
    cublasLtHandle_t blas;
    struct rk_cuda_gemm_plans *plans; /* of gemm.c */
    cudaStream_t probe;               /* carries no work; used to query the state of the device */
    uint64_t own_bytes, num_own;      /* scratch of the streams, in bytes; number of allocations */
    struct rk_cuda_vmm *vmm;          /* of ranges_cuda.c; NULL until the first range */
};

/* Number of ints at the beginning of `splits` that are zero between calls. */
#define RK_CUDA_COUNTERS (1 << 16)

/* Memory that grows to the maximum of all calls and is kept: no allocation after warm-up. */
struct rk_cuda_buffer {
    void *data;
    size_t bytes;
};

struct rk_cuda_stream {
    struct rk_cuda_device *dev;
    cudaStream_t stream;
    struct rk_cuda_buffer scratch; /* undefined between calls */
    /* Counters, zero between calls; then the splits of paged attention, as the last call left them. */
    struct rk_cuda_buffer splits;
    uint64_t num_moves; /* how often scratch was reallocated: graphs recorded before are invalid */
    bool is_recording;  /* recording a graph: calls must not wait or allocate */
};

/* --- errors (device_cuda.c) --- */

/* NULL for cudaSuccess. Out of memory is RESOURCE_EXHAUSTED; anything else INTERNAL. Clears the thread's last
 * error. */
struct rk_status *rk_cuda_status(cudaError_t error, const char *call) RK_NODISCARD;
/* INTERNAL unless the call succeeded. */
struct rk_status *rk_cuda_blas_status(cublasStatus_t error, const char *call) RK_NODISCARD;
/* Call after every launch of `op`. */
struct rk_status *rk_cuda_launched(const struct rk_cuda_device *dev, const struct rk_cuda_stream *stream,
                                   const char *op) RK_NODISCARD;

#define RK_CUDA(expr)   RK_TRY(rk_cuda_status((expr), #expr))
#define RK_CUBLAS(expr) RK_TRY(rk_cuda_blas_status((expr), #expr))

/* --- memory (device_cuda.c) --- */

/* Zeroes memory on the default stream, which no other stream waits for, and waits. */
struct rk_status *rk_cuda_zero_now(void *ptr, size_t bytes) RK_NODISCARD;
/* RESOURCE_EXHAUSTED with the free memory of the GPU. */
struct rk_status *rk_cuda_no_memory(void) RK_NODISCARD;

/* --- address ranges (ranges_cuda.c): entries of rk_device_ops --- */
struct rk_status *rk_cuda_range_reserve(void *handle, void **out, size_t bytes) RK_NODISCARD;
struct rk_status *rk_cuda_range_commit(void *handle, void *range, size_t bytes) RK_NODISCARD;
struct rk_status *rk_cuda_range_release(void *handle, void *range, size_t bytes) RK_NODISCARD;
void rk_cuda_range_free(void *handle, void *range, size_t bytes);

/* --- streams (stream_cuda.c), events (event_cuda.c), graphs (graph_cuda.c): entries of rk_device_ops --- */
struct rk_status *rk_cuda_stream_reserve(void *handle, void *stream_handle,
                                         const struct rk_workspace *workspace) RK_NODISCARD;
void rk_cuda_stream_destroy(void *handle, void *stream_handle);
struct rk_status *rk_cuda_stream_create(void *handle, void **out, const char *name) RK_NODISCARD;
struct rk_status *rk_cuda_stream_create_urgent(void *handle, void **out, const char *name) RK_NODISCARD;
struct rk_status *rk_cuda_copy(void *handle, void *stream, void *dst, const void *src, size_t bytes,
                               rk_copy_kind_t kind) RK_NODISCARD;
struct rk_status *rk_cuda_zero(void *handle, void *stream, void *dst, size_t bytes) RK_NODISCARD;
struct rk_status *rk_cuda_stream_sync(void *handle, void *stream) RK_NODISCARD;
bool rk_cuda_stream_is_recording(void *handle, void *stream);
void *rk_cuda_stream_native(void *handle, void *stream);
struct rk_status *rk_cuda_event_create(void *handle, void **out) RK_NODISCARD;
struct rk_status *rk_cuda_event_create_timed(void *handle, void **out) RK_NODISCARD;
struct rk_status *rk_cuda_event_elapsed_ns(void *handle, int64_t *out, void *begin, void *end) RK_NODISCARD;
void rk_cuda_event_destroy(void *handle, void *event);
struct rk_status *rk_cuda_event_record(void *handle, void *event, void *stream) RK_NODISCARD;
struct rk_status *rk_cuda_stream_wait(void *handle, void *stream, void *event) RK_NODISCARD;
bool rk_cuda_event_query(void *handle, void *event);
struct rk_status *rk_cuda_event_sync(void *handle, void *event) RK_NODISCARD;
struct rk_status *rk_cuda_graph_begin(void *handle, void *stream_handle) RK_NODISCARD;
struct rk_status *rk_cuda_graph_end(void *handle, void *stream_handle, void **out) RK_NODISCARD;
struct rk_status *rk_cuda_graph_launch(void *handle, void *stream, void *graph) RK_NODISCARD;
bool rk_cuda_graph_is_current(void *handle, void *stream, void *graph);
void rk_cuda_graph_destroy(void *handle, void *graph);

/* --- scratch (device_cuda.c) --- */

/* Makes `buffer` (of `stream`) hold at least `bytes`, aligned to 256. When it grows, the new memory is zeroed
 * and the old contents are lost. */
struct rk_status *rk_cuda_reserve(struct rk_cuda_stream *stream, struct rk_cuda_buffer *buffer,
                                  size_t bytes) RK_NODISCARD;

/* --- workspaces: scratch that operators will reserve; limits: unsupported arguments --- */

#define X(op, args_type)                                                                       \
    struct rk_workspace rk_cuda_workspace_##op(const void *dev, const struct args_type *args); \
    struct rk_status *rk_cuda_limit_##op(const void *dev, const struct args_type *args) RK_NODISCARD;
RK_KERNEL_TABLE(X)
#undef X

/* --- products --- */

void rk_cuda_gemm_plans_destroy(struct rk_cuda_gemm_plans *plans); /* NULL is a no-op */
/* Supports all shapes, strides and transposes; sums sequentially over K (gemm_chain.cu). */
struct rk_status *rk_cuda_gemm_chain(const struct rk_cuda_device *dev, const struct rk_cuda_stream *stream,
                                     const struct rk_gemm_args *args) RK_NODISCARD;
struct rk_status *rk_cuda_batched_gemm_chain(const struct rk_cuda_device *dev,
                                             const struct rk_cuda_stream *stream,
                                             const struct rk_batched_gemm_args *args) RK_NODISCARD;
/* Whether two matrices of a 16-bit type or F32, of equal shape, are bit-identical; waits. Uses the scratch
 * memory from RK_CUDA_COMPARE_BYTES on; the matrices may be before that. */
struct rk_status *rk_cuda_same_bits(const struct rk_cuda_device *dev, const struct rk_cuda_stream *stream,
                                    rk_tensor_t x, rk_tensor_t y, bool *same) RK_NODISCARD;
/* c[m][n] += bias[n], for GEMMs whose epilogue cuBLASLt does not support. */
struct rk_status *rk_cuda_add_bias(const struct rk_cuda_device *dev, const struct rk_cuda_stream *stream,
                                   rk_tensor_t c, rk_tensor_t bias) RK_NODISCARD;

/* --- row moves (rows.cu) --- */

/* Row r of num_rows: dst row dst_index[r] (r without an index) gets src row src_index[r] - src_begin. A dst
 * row out of range is skipped, a src row out of range reads as zeros. */
struct rk_cuda_row_move {
    rk_tensor_t dst, src; /* 2-d, same row length and dtype */
    const int32_t *dst_index, *src_index;
    int64_t num_rows, src_begin;
    const int32_t *count; /* NULL, or the number of rows, on the device; at most num_rows */
};

struct rk_status *rk_cuda_move_rows(const struct rk_cuda_device *dev, const struct rk_cuda_stream *stream,
                                    const struct rk_cuda_row_move *move, const char *op) RK_NODISCARD;

/* --- tables --- */

#define X(op, args_type) \
    struct rk_status *rk_cuda_op_##op(void *dev, void *stream, const struct args_type *args) RK_NODISCARD;
RK_KERNEL_TABLE(X)
#undef X

extern const struct rk_kernel_ops rk_cuda_kernel_ops;

RK_END_DECLS

#endif
