/* Private to gemm.c, gemm_plan.c and gemm_tune.c: plans of GEMMs, in cuBLASLt's terms. */
#ifndef RK_GEMM_INTERNAL_H
#define RK_GEMM_INTERNAL_H

#include "kernels/cuda/cuda_internal.h"

/* Maximum number of algorithms to request at a time. */
#define RK_GEMM_MAX_CANDIDATES 16

/* Class of algorithms allowed for a GEMM. ANY: cuBLASLt's first choice for its shape, the same in every run.
 * ONE_SPLIT: any algorithm with split-K = 1, which are all bit-identical. ONE_CHAIN: the same, verified to be
 * bit-identical to gemm_chain.cu. PARTS: any choice of gemm_small.h with the key's number of parts.
 */
enum rk_gemm_bits { RK_GEMM_ANY, RK_GEMM_ONE_SPLIT, RK_GEMM_ONE_CHAIN, RK_GEMM_PARTS };

/* From this number of rows on, fast uses ONE_SPLIT, because no other class is faster (except by 3% for one
 * shape of a model): results then do not depend on the timings that select the algorithm. */
#define RK_GEMM_MANY_ROWS 513

/* Up to this number of rows, and of K, splitting K gains nothing either. */
#define RK_GEMM_FEW_ROWS 64
#define RK_GEMM_SHORT_K  4096

/* Key by which an algorithm is chosen. Compared as bytes: initialize it by memset, then assign. */
struct rk_gemm_key {
    int64_t m, n, k, lda, ldb, ldc;
    int32_t dtype, c_dtype;
    uint8_t trans_a, trans_b, bits, has_bias;
    uint8_t align_a, align_b, align_c, has_beta;
    uint8_t num_parts, has_swiglu, unused[2]; /* num_parts: of K, for the kernel of gemm_small.h */
    int32_t num_heads;                        /* of a batched GEMM, otherwise 0 */
    int64_t head_a, head_b, head_c;           /* elements from one head to the next */
};

/* cuBLASLt is column-major: it computes C^T = op(B)^T op(A)^T, so B comes first. */
struct rk_gemm_plan {
    struct rk_gemm_key key;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t first, second, out;
    cublasLtMatmulAlgo_t algo;
    int small; /* a choice of gemm_small.h, plus 1, used instead of cuBLASLt; 0: none */
    bool is_used, has_algo;
};

/* An algorithm found by timing, by the key of its GEMM with the number of tokens rounded up. */
struct rk_gemm_tuned {
    struct rk_gemm_key key;
    cublasLtMatmulAlgo_t algo;
};

/* ... and the choice of gemm_small.h, as in a plan. */
struct rk_gemm_small_tuned {
    struct rk_gemm_key key;
    int choice;
};

/* A model has fewer than a hundred plans per number of tokens, and a few hundred tuned ones in all. */
#define RK_GEMM_NUM_SLOTS 4096
#define RK_GEMM_MAX_TUNED 512

/* Plans of one device. */
struct rk_cuda_gemm_plans {
    struct rk_gemm_plan slots[RK_GEMM_NUM_SLOTS]; /* by hash, with linear probing */
    int num_plans;
    struct rk_gemm_tuned tuned[RK_GEMM_MAX_TUNED];
    int num_tuned;
    struct rk_gemm_small_tuned small[RK_GEMM_MAX_TUNED];
    int num_small;
};

/* --- gemm_plan.c --- */

/* A row-major matrix in cuBLASLt's terms. */
struct rk_status *rk_gemm_make_layout(cublasLtMatrixLayout_t *out, rk_tensor_t t,
                                      int64_t leading_dim) RK_NODISCARD;

/* The plan of a GEMM, made at its first call; has_algo is false if cuBLASLt has no algorithm. */
struct rk_status *rk_gemm_find_plan(struct rk_cuda_device *dev, struct rk_cuda_stream *stream,
                                    struct rk_gemm_plan **out, const struct rk_gemm_key *key,
                                    const struct rk_gemm_args *args) RK_NODISCARD;
/* The algorithms of the class that the plan's key allows, best first as far as cuBLASLt can tell. */
struct rk_status *rk_gemm_candidates(const struct rk_cuda_device *dev, const struct rk_gemm_plan *plan,
                                     cublasLtMatmulAlgo_t found[RK_GEMM_MAX_CANDIDATES],
                                     int *count) RK_NODISCARD;

/* --- gemm.c --- */

/* Enqueues the GEMM with the plan's algorithm, without a bias that cuBLASLt does not support. */
struct rk_status *rk_gemm_run_plan(struct rk_cuda_device *dev, const struct rk_cuda_stream *stream,
                                   const struct rk_gemm_plan *plan,
                                   const struct rk_gemm_args *args) RK_NODISCARD;

/* Applies args->swiglu to the computed C; no-op without it. */
struct rk_status *rk_gemm_activate(struct rk_cuda_device *dev, struct rk_cuda_stream *stream,
                                   const struct rk_gemm_args *args) RK_NODISCARD;

/* --- gemm_tune.c --- */

/* Finds the fastest of cuBLASLt's algorithms with split-K = 1, by timing on the operands, once for all GEMMs
 * of similar size. C is overwritten if beta is 0, otherwise unchanged. ONE_CHAIN: has_algo is false if none
 * has the required bits. */
struct rk_status *rk_gemm_tune(struct rk_cuda_device *dev, const struct rk_cuda_stream *stream,
                               struct rk_gemm_plan *plan, const struct rk_gemm_args *args) RK_NODISCARD;
/* The key that GEMMs of similar size share. A weight gradient sums over the tokens; all others have one row
 * of C per token. */
struct rk_gemm_key rk_gemm_shared_key(const struct rk_gemm_key *key);
/* Uses an algorithm found earlier for a GEMM of similar size. */
bool rk_gemm_take_tuned(const struct rk_cuda_device *dev, struct rk_gemm_plan *plan);
/* Whether algorithms may be timed: the stream is not being captured into a graph. */
bool rk_gemm_can_wait(const struct rk_cuda_stream *stream);

/* --- gemm_small.c --- */

/* Sets plan->small if the kernel of gemm_small.h is faster than the plan's algorithm, by timing on the
 * operands, or is required; overwrites C. */
struct rk_status *rk_gemm_small_tune(struct rk_cuda_device *dev, struct rk_cuda_stream *stream,
                                     struct rk_gemm_plan *plan, const struct rk_gemm_args *args) RK_NODISCARD;

#endif
