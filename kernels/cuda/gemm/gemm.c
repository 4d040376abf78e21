/* C = alpha * op(A) * op(B) + beta * C (+ bias) through cuBLASLt.
 *
 * cuBLASLt is column-major: row-major C is its C^T = op(B)^T * op(A)^T, so A and B are swapped and no memory
 * is moved.
 *
 * Reproducibility. strict requires one ascending chain of k16 tensor-core steps per output, for all M and N:
 * cuBLASLt's algorithms with split-K = 1 have exactly these bits (measured for 16-bit types and K a multiple
 * of 16, over all tiles and M), and so do gemm_small_sm90.cu, used for few rows where it is faster, and
 * gemm_chain.cu, used for all other shapes. The tests compare them. fast does the same if no other algorithm
 * is faster: for many rows, and for few rows with a short K. For few rows with a long K and a short N it uses
 * gemm_small_sm90.cu with split K, otherwise cuBLASLt's first choice for the shape; both are bit-identical in
 * every run. F32 never uses TF32.
 *
 * GEMMs of heads (batched_gemm), which only fast uses, take cuBLASLt's first choice.
 *
 * Entry points: rk_cuda_op_gemm, rk_cuda_op_batched_gemm. */
#include "kernels/cuda/gemm/gemm_internal.h"
#include "kernels/cuda/gemm/gemm_small.h"

#include <string.h>

/* Alignment that all kernels of cuBLASLt accept. */
#define FULL_ALIGNMENT 16

/* --- keys --- */

/* A single row may have any stride. */
static int64_t leading_dim(rk_tensor_t t)
{
    int64_t stride = t.shape[0] > 1 ? t.row_stride : t.shape[1];

    return RK_MAX(stride, (int64_t)1);
}

static uint8_t alignment_of(rk_tensor_t t)
{
    uintptr_t bits = (uintptr_t)t.data | FULL_ALIGNMENT;

    return (uint8_t)(bits & -bits);
}

static bool is_16_bit(rk_dtype_t dtype)
{
    return dtype == RK_DTYPE_BF16 || dtype == RK_DTYPE_F16;
}

/* cuBLASLt adds only a bias of C's dtype, and none in f64. */
static bool takes_bias(const struct rk_gemm_args *args)
{
    return args->bias.data && args->c.dtype == args->a.dtype && args->a.dtype != RK_DTYPE_F64;
}

/* Every row of every matrix starts at a multiple of FULL_ALIGNMENT. */
static bool is_aligned(const struct rk_gemm_key *key)
{
    int64_t unit = FULL_ALIGNMENT / (int64_t)rk_dtype_bytes((rk_dtype_t)key->dtype);
    int64_t unit_c = FULL_ALIGNMENT / (int64_t)rk_dtype_bytes((rk_dtype_t)key->c_dtype);

    return key->lda % unit == 0 && key->ldb % unit == 0 && key->ldc % unit_c == 0 &&
           key->align_a == FULL_ALIGNMENT && key->align_b == FULL_ALIGNMENT && key->align_c == FULL_ALIGNMENT;
}

/* Whether cuBLASLt's algorithms with split-K = 1 have been measured to be bit-identical to the chain. */
static bool has_chain_bits(const struct rk_gemm_key *key)
{
    return is_16_bit((rk_dtype_t)key->dtype) && key->k % 16 == 0 && is_aligned(key);
}

/* Sets the allowed class of algorithms. It may depend on the GEMM and the device, but not on timings. */
static void choose_bits(struct rk_gemm_key *key, const struct rk_cuda_device *dev,
                        const struct rk_gemm_args *args)
{
    bool is_few = key->m <= RK_GEMM_FEW_ROWS && rk_gemm_small_takes(dev, args);

    key->num_parts = 1;
    if (args->strict) {
        key->bits = RK_GEMM_ONE_CHAIN;
    } else if (is_few && rk_gemm_small_parts(args) > 1) {
        key->bits = RK_GEMM_PARTS;
        key->num_parts = (uint8_t)rk_gemm_small_parts(args);
    } else if (has_chain_bits(key) &&
               (key->m >= RK_GEMM_MANY_ROWS || (is_few && key->k <= RK_GEMM_SHORT_K))) {
        key->bits = RK_GEMM_ONE_SPLIT;
    }
}

static struct rk_gemm_key key_of(const struct rk_cuda_device *dev, const struct rk_gemm_args *args)
{
    struct rk_gemm_key key;

    memset(&key, 0, sizeof(key));
    key.m = args->c.shape[0];
    key.n = args->c.shape[1];
    key.k = args->a.shape[args->trans_a ? 0 : 1];
    key.lda = leading_dim(args->a);
    key.ldb = leading_dim(args->b);
    key.ldc = leading_dim(args->c);
    key.dtype = args->a.dtype;
    key.c_dtype = args->c.dtype;
    key.trans_a = args->trans_a;
    key.trans_b = args->trans_b;
    key.has_bias = takes_bias(args);
    key.has_beta = args->beta != 0.0f;
    key.has_swiglu = args->swiglu.data != NULL;
    key.align_a = alignment_of(args->a);
    key.align_b = alignment_of(args->b);
    key.align_c = alignment_of(args->c);
    choose_bits(&key, dev, args);
    return key;
}

/* Whether cuBLASLt can run this GEMM at all. */
static bool is_for_library(const struct rk_gemm_key *key)
{
    bool is_half = is_16_bit((rk_dtype_t)key->dtype);

    if (key->k == 0) /* if k is 0, A and B may be none */
        return false;
    if (key->c_dtype != key->dtype && !(is_half && key->c_dtype == RK_DTYPE_F32))
        return false;
    if (key->bits == RK_GEMM_ONE_CHAIN)
        return has_chain_bits(key);
    /* For unaligned addresses its kernels round to C before they add the bias. */
    return !(key->has_bias && is_half) || is_aligned(key);
}

/* --- the operator --- */

struct rk_status *rk_gemm_run_plan(struct rk_cuda_device *dev, const struct rk_cuda_stream *stream,
                                   const struct rk_gemm_plan *plan, const struct rk_gemm_args *args)
{
    double wide[2] = {args->alpha, args->beta};
    bool is_f64 = args->a.dtype == RK_DTYPE_F64;
    const void *alpha = is_f64 ? (const void *)&wide[0] : (const void *)&args->alpha;
    const void *beta = is_f64 ? (const void *)&wide[1] : (const void *)&args->beta;

    if (plan->key.has_bias)
        RK_CUBLAS(cublasLtMatmulDescSetAttribute(plan->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                 &args->bias.data, sizeof(args->bias.data)));
    RK_CUBLAS(cublasLtMatmul(dev->blas, plan->desc, alpha, args->b.data, plan->first, args->a.data,
                             plan->second, beta, args->c.data, plan->out, args->c.data, plan->out,
                             &plan->algo, stream->scratch.data, RK_CUDA_WORKSPACE_BYTES, stream->stream));
    return rk_cuda_launched(dev, stream, "gemm");
}

/* For a GEMM that cuBLASLt may run; whether it does depends on the addresses of the operands. */
struct rk_workspace rk_cuda_workspace_gemm(const void *dev, const struct rk_gemm_args *args)
{
    (void)dev;
    (void)args;
    return (struct rk_workspace){.scratch_bytes = RK_CUDA_WORKSPACE_BYTES};
}

struct rk_status *rk_gemm_activate(struct rk_cuda_device *dev, struct rk_cuda_stream *stream,
                                   const struct rk_gemm_args *args)
{
    int64_t half = args->c.shape[1] / 2;

    if (!args->swiglu.data)
        return NULL;
    return rk_cuda_op_swiglu_fwd(dev, stream,
                                 &(struct rk_swiglu_fwd_args){.y = args->swiglu,
                                                              .gate = rk_tensor_cols(args->c, 0, half),
                                                              .up = rk_tensor_cols(args->c, half, half)});
}

static struct rk_status *run_chain(struct rk_cuda_device *dev, struct rk_cuda_stream *stream,
                                   const struct rk_gemm_args *args)
{
    RK_TRY(rk_cuda_gemm_chain(dev, stream, args));
    return rk_gemm_activate(dev, stream, args);
}

struct rk_status *rk_cuda_op_gemm(void *dev_handle, void *stream_handle, const struct rk_gemm_args *args)
{
    struct rk_cuda_device *dev = dev_handle;
    struct rk_cuda_stream *stream = stream_handle;
    struct rk_gemm_key key = key_of(dev, args);
    struct rk_gemm_plan *plan;

    if (!is_for_library(&key))
        return run_chain(dev, stream, args);
    RK_TRY(rk_cuda_reserve(stream, &stream->scratch, RK_CUDA_WORKSPACE_BYTES));
    RK_TRY(rk_gemm_find_plan(dev, stream, &plan, &key, args));
    if (plan->small > 0 && rk_gemm_small_takes(dev, args)) /* alpha is not part of the key */
        return rk_gemm_small_run(dev, stream, plan->small - 1, key.num_parts, args);
    if (!plan->has_algo)
        return run_chain(dev, stream, args);
    RK_TRY(rk_gemm_run_plan(dev, stream, plan, args));
    if (args->bias.data && !key.has_bias)
        RK_TRY(rk_cuda_add_bias(dev, stream, args->c, args->bias));
    return rk_gemm_activate(dev, stream, args);
}

/* --- heads --- */

/* Alignment of the first rows of all heads. */
static uint8_t alignment_of_heads(rk_tensor_t heads, int64_t stride)
{
    uintptr_t bits = (uintptr_t)heads.data | (uintptr_t)stride * rk_dtype_bytes(heads.dtype) | FULL_ALIGNMENT;

    return (uint8_t)(bits & -bits);
}

/* The GEMM of the first head. */
static struct rk_gemm_args first_head(const struct rk_batched_gemm_args *args)
{
    int64_t rows = args->x.shape[0], k = args->w.shape[args->trans_w ? 2 : 1],
            n = args->w.shape[args->trans_w ? 1 : 2];
    struct rk_gemm_args first = {
        .c = rk_tensor_2d(args->y.data, args->y.dtype, rows, n),
        .a = rk_tensor_2d(args->x.data, args->x.dtype, rows, k),
        .b = rk_tensor_2d(args->w.data, args->w.dtype, args->w.shape[1], args->w.shape[2]),
        .trans_b = args->trans_w,
        .alpha = 1,
    };

    first.c.row_stride = args->y.row_stride;
    first.a.row_stride = args->x.row_stride;
    return first;
}

static struct rk_gemm_key key_of_heads(const struct rk_cuda_device *dev,
                                       const struct rk_batched_gemm_args *args,
                                       const struct rk_gemm_args *first)
{
    struct rk_gemm_key key = key_of(dev, first);

    key.bits = RK_GEMM_ANY;
    key.num_parts = 1;
    key.num_heads = (int32_t)args->x.shape[1];
    key.head_a = args->x.shape[2];
    key.head_b = args->w.row_stride;
    key.head_c = args->y.shape[2];
    key.align_a = alignment_of_heads(args->x, key.head_a);
    key.align_b = alignment_of_heads(args->w, key.head_b);
    key.align_c = alignment_of_heads(args->y, key.head_c);
    return key;
}

struct rk_workspace rk_cuda_workspace_batched_gemm(const void *dev, const struct rk_batched_gemm_args *args)
{
    (void)dev;
    (void)args;
    return (struct rk_workspace){.scratch_bytes = RK_CUDA_WORKSPACE_BYTES};
}

struct rk_status *rk_cuda_op_batched_gemm(void *dev_handle, void *stream_handle,
                                          const struct rk_batched_gemm_args *args)
{
    struct rk_cuda_device *dev = dev_handle;
    struct rk_cuda_stream *stream = stream_handle;
    struct rk_gemm_args first = first_head(args);
    struct rk_gemm_key key = key_of_heads(dev, args, &first);
    struct rk_gemm_plan *plan;

    if (!is_for_library(&key))
        return rk_cuda_batched_gemm_chain(dev, stream, args);
    RK_TRY(rk_cuda_reserve(stream, &stream->scratch, RK_CUDA_WORKSPACE_BYTES));
    RK_TRY(rk_gemm_find_plan(dev, stream, &plan, &key, &first));
    return plan->has_algo ? rk_gemm_run_plan(dev, stream, plan, &first)
                          : rk_cuda_batched_gemm_chain(dev, stream, args);
}
