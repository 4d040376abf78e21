/* Private to gemm.c, gemm_plan.c and gemm_tune.c: plans of products, in cuBLASLt's terms. */
#ifndef RK_GEMM_INTERNAL_H
#define RK_GEMM_INTERNAL_H

#include "kernels/cuda/cuda_internal.h"

/* How many algorithms to ask for at a time. */
#define RK_GEMM_MAX_CANDIDATES 16

/* What may be taken for a product. ANY: the library's first choice for its shape, the same in every run.
 * ONE_SPLIT: any algorithm with split-K = 1, which all have the same bits. ONE_CHAIN: these, and it is looked
 * at that their bits are gemm_chain.cu's. PARTS: any choice of gemm_small.h, with the key's number of parts.
 */
enum rk_gemm_bits { RK_GEMM_ANY, RK_GEMM_ONE_SPLIT, RK_GEMM_ONE_CHAIN, RK_GEMM_PARTS };

/* From this many rows on fast takes ONE_SPLIT, since nothing is faster (but by 3% for one shape of a model):
 * which algorithm the clock picks then changes no result. */
#define RK_GEMM_MANY_ROWS 513

/* Up to this many rows, and for no longer K, a split of K gains nothing either. */
#define RK_GEMM_FEW_ROWS 64
#define RK_GEMM_SHORT_K  4096

/* What an algorithm is chosen by. Compared as bytes: made by memset and assignment. */
struct rk_gemm_key {
    int64_t m, n, k, lda, ldb, ldc;
    int32_t dtype, c_dtype;
    uint8_t trans_a, trans_b, bits, has_bias;
    uint8_t align_a, align_b, align_c, has_beta;
    uint8_t num_parts, has_swiglu, unused[6]; /* num_parts: of K, for our own kernel */
};

/* The library is column-major: its product is C^T = op(B)^T op(A)^T, so B comes first. */
struct rk_gemm_plan {
    struct rk_gemm_key key;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t first, second, out;
    cublasLtMatmulAlgo_t algo;
    int small; /* a choice of gemm_small.h, plus 1, that is taken instead; 0: none */
    bool is_used, has_algo;
};

/* An algorithm that was found by time, by the key of its product with the number of tokens rounded up. */
struct rk_gemm_tuned {
    struct rk_gemm_key key;
    cublasLtMatmulAlgo_t algo;
};

/* ... and which choice of gemm_small.h, as in a plan. */
struct rk_gemm_small_tuned {
    struct rk_gemm_key key;
    int choice;
};

/* Plans of one model are below a hundred for each number of tokens, tuned ones a few hundred in all. */
#define RK_GEMM_NUM_SLOTS 4096
#define RK_GEMM_MAX_TUNED 512

/* Of one device. */
struct rk_cuda_gemm_plans {
    struct rk_gemm_plan slots[RK_GEMM_NUM_SLOTS]; /* by hash, then the next free one */
    int num_plans;
    struct rk_gemm_tuned tuned[RK_GEMM_MAX_TUNED];
    int num_tuned;
    struct rk_gemm_small_tuned small[RK_GEMM_MAX_TUNED];
    int num_small;
};

/* --- gemm_plan.c --- */

/* A row-major matrix as the library sees it. */
struct rk_status *rk_gemm_make_layout(cublasLtMatrixLayout_t *out, rk_tensor_t t,
                                      int64_t leading_dim) RK_NODISCARD;

/* The plan of a product, made at its first call; has_algo is false where the library has nothing for it. */
struct rk_status *rk_gemm_find_plan(struct rk_cuda_device *dev, struct rk_cuda_stream *stream,
                                    struct rk_gemm_plan **out, const struct rk_gemm_key *key,
                                    const struct rk_gemm_args *args) RK_NODISCARD;
/* The algorithms for the plan's product that have the bits which the key asks for, best first, as far as the
 * library can tell. */
struct rk_status *rk_gemm_candidates(const struct rk_cuda_device *dev, const struct rk_gemm_plan *plan,
                                     cublasLtMatmulAlgo_t found[RK_GEMM_MAX_CANDIDATES],
                                     int *count) RK_NODISCARD;

/* --- gemm.c --- */

/* Enqueues the product with the plan's algorithm; without a bias that the library lacks. */
struct rk_status *rk_gemm_run_plan(struct rk_cuda_device *dev, const struct rk_cuda_stream *stream,
                                   const struct rk_gemm_plan *plan,
                                   const struct rk_gemm_args *args) RK_NODISCARD;

/* What args->swiglu asks for, of the C that is there; nothing without it. */
struct rk_status *rk_gemm_activate(struct rk_cuda_device *dev, struct rk_cuda_stream *stream,
                                   const struct rk_gemm_args *args) RK_NODISCARD;

/* --- gemm_tune.c --- */

/* The fastest of the library's algorithms with split-K = 1, by time on the operands themselves, once for all
 * products of like size. C is written where beta is 0, else left as it is. ONE_CHAIN: has_algo is false where
 * none has the bits. */
struct rk_status *rk_gemm_tune(struct rk_cuda_device *dev, const struct rk_cuda_stream *stream,
                               struct rk_gemm_plan *plan, const struct rk_gemm_args *args) RK_NODISCARD;
/* The key that products of like size share. A gradient of weights sums over the tokens; all others have a row
 * of C for each. */
struct rk_gemm_key rk_gemm_shared_key(const struct rk_gemm_key *key);
/* An algorithm that was found before for a product of like size. */
bool rk_gemm_take_tuned(const struct rk_cuda_device *dev, struct rk_gemm_plan *plan);
/* Whether algorithms may be timed: the stream is not being captured into a graph. */
bool rk_gemm_can_wait(const struct rk_cuda_stream *stream);

/* --- gemm_small.c --- */

/* Sets plan->small where a kernel of our own is faster than the plan's algorithm, by time on the operands
 * themselves, or has to be taken; C is written. */
struct rk_status *rk_gemm_small_tune(struct rk_cuda_device *dev, struct rk_cuda_stream *stream,
                                     struct rk_gemm_plan *plan, const struct rk_gemm_args *args) RK_NODISCARD;

#endif
