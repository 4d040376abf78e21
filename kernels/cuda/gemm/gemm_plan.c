/* Plans: cuBLASLt's descriptors and the chosen algorithm of each GEMM.
 *
 * Packed batches have many different M, so the cache is bounded, and cleared when it is full. */
#include "kernels/cuda/gemm/gemm_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_log.h"

/* At most half full, so that searches are short. */
#define MAX_PLANS (RK_GEMM_NUM_SLOTS / 2)

static void plan_fini(struct rk_gemm_plan *plan)
{
    if (plan->desc)
        (void)cublasLtMatmulDescDestroy(plan->desc);
    if (plan->first)
        (void)cublasLtMatrixLayoutDestroy(plan->first);
    if (plan->second)
        (void)cublasLtMatrixLayoutDestroy(plan->second);
    if (plan->out)
        (void)cublasLtMatrixLayoutDestroy(plan->out);
    memset(plan, 0, sizeof(*plan));
}

static void clear_plans(struct rk_cuda_gemm_plans *plans)
{
    for (int i = 0; i < RK_GEMM_NUM_SLOTS; i++)
        plan_fini(&plans->slots[i]);
    plans->num_plans = 0;
}

void rk_cuda_gemm_plans_destroy(struct rk_cuda_gemm_plans *plans)
{
    if (!plans)
        return;
    clear_plans(plans);
    rk_free(plans);
}

/* FNV-1a over the words of the key. */
static uint64_t hash_of(const struct rk_gemm_key *key)
{
    uint64_t words[sizeof(*key) / sizeof(uint64_t)], hash = 0xcbf29ce484222325u;

    _Static_assert(sizeof(*key) % sizeof(uint64_t) == 0, "the size of a key is a multiple of a word");
    memcpy(words, key, sizeof(*key));
    for (size_t i = 0; i < RK_ARRAY_LEN(words); i++)
        hash = (hash ^ words[i]) * 0x100000001b3u;
    return hash ^ hash >> 32;
}

static cudaDataType_t data_type(rk_dtype_t dtype)
{
    switch (dtype) {
    case RK_DTYPE_BF16:
        return CUDA_R_16BF;
    case RK_DTYPE_F16:
        return CUDA_R_16F;
    case RK_DTYPE_F32:
        return CUDA_R_32F;
    default:
        return CUDA_R_64F; /* the operator's checks reject other float types */
    }
}

static struct rk_status *set_attribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                       const void *value, size_t bytes)
{
    RK_CUBLAS(cublasLtMatmulDescSetAttribute(desc, attribute, value, bytes));
    return NULL;
}

struct rk_status *rk_gemm_make_layout(cublasLtMatrixLayout_t *out, rk_tensor_t t, int64_t leading_dim)
{
    RK_CUBLAS(cublasLtMatrixLayoutCreate(out, data_type(t.dtype), (uint64_t)t.shape[1], (uint64_t)t.shape[0],
                                         leading_dim));
    return NULL;
}

/* The matrices of all heads. */
static struct rk_status *set_heads(cublasLtMatrixLayout_t layout, int32_t num_heads, int64_t stride)
{
    RK_CUBLAS(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &num_heads,
                                               sizeof(num_heads)));
    RK_CUBLAS(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                               sizeof(stride)));
    return NULL;
}

static struct rk_status *describe(struct rk_gemm_plan *plan, const struct rk_gemm_args *args)
{
    bool is_f64 = args->a.dtype == RK_DTYPE_F64;
    cublasOperation_t first = args->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t second = args->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;

    RK_CUBLAS(cublasLtMatmulDescCreate(&plan->desc, is_f64 ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                       is_f64 ? CUDA_R_64F : CUDA_R_32F));
    RK_TRY(set_attribute(plan->desc, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof(first)));
    RK_TRY(set_attribute(plan->desc, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof(second)));
    if (plan->key.has_bias)
        RK_TRY(set_attribute(plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue)));
    RK_TRY(rk_gemm_make_layout(&plan->first, args->b, plan->key.ldb));
    RK_TRY(rk_gemm_make_layout(&plan->second, args->a, plan->key.lda));
    RK_TRY(rk_gemm_make_layout(&plan->out, args->c, plan->key.ldc));
    if (plan->key.num_heads == 0)
        return NULL;
    RK_TRY(set_heads(plan->first, plan->key.num_heads, plan->key.head_b));
    RK_TRY(set_heads(plan->second, plan->key.num_heads, plan->key.head_a));
    return set_heads(plan->out, plan->key.num_heads, plan->key.head_c);
}

static struct rk_status *set_preference(cublasLtMatmulPreference_t pref,
                                        cublasLtMatmulPreferenceAttributes_t attribute, uint32_t value)
{
    RK_CUBLAS(cublasLtMatmulPreferenceSetAttribute(pref, attribute, &value, sizeof(value)));
    return NULL;
}

static struct rk_status *fill_preference(cublasLtMatmulPreference_t pref, const struct rk_gemm_key *key)
{
    uint64_t workspace = RK_CUDA_WORKSPACE_BYTES;

    RK_CUBLAS(cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                                   sizeof(workspace)));
    RK_TRY(set_preference(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key->align_b));
    RK_TRY(set_preference(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key->align_a));
    RK_TRY(set_preference(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key->align_c));
    RK_TRY(set_preference(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key->align_c));
    /* Partial sums of split K are added in f32, never in the dtype of C. */
    return set_preference(pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                          key->bits != RK_GEMM_ANY ? CUBLASLT_REDUCTION_SCHEME_NONE
                                                   : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
}

static bool has_one_split(const cublasLtMatmulAlgo_t *algo)
{
    uint32_t splits = 0;
    size_t written;

    return cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits,
                                                sizeof(splits), &written) == CUBLAS_STATUS_SUCCESS &&
           splits <= 1;
}

struct rk_status *rk_gemm_candidates(const struct rk_cuda_device *dev, const struct rk_gemm_plan *plan,
                                     cublasLtMatmulAlgo_t found[RK_GEMM_MAX_CANDIDATES], int *count)
{
    cublasLtMatmulHeuristicResult_t results[RK_GEMM_MAX_CANDIDATES];
    cublasLtMatmulPreference_t pref = NULL;
    cublasStatus_t error;
    struct rk_status *st;
    int num_results = 0;

    *count = 0;
    RK_CUBLAS(cublasLtMatmulPreferenceCreate(&pref));
    RK_TRY_GOTO(st, fill_preference(pref, &plan->key), out);
    error = cublasLtMatmulAlgoGetHeuristic(dev->blas, plan->desc, plan->first, plan->second, plan->out,
                                           plan->out, pref, RK_GEMM_MAX_CANDIDATES, results, &num_results);
    if (error != CUBLAS_STATUS_NOT_SUPPORTED) /* no algorithm is not an error */
        RK_TRY_GOTO(st, rk_cuda_blas_status(error, "cublasLtMatmulAlgoGetHeuristic"), out);
    for (int i = 0; i < num_results; i++) {
        if (results[i].state == CUBLAS_STATUS_SUCCESS &&
            (plan->key.bits == RK_GEMM_ANY || has_one_split(&results[i].algo)))
            found[(*count)++] = results[i].algo;
    }

out:
    (void)cublasLtMatmulPreferenceDestroy(pref);
    return st;
}

static struct rk_status *choose(struct rk_cuda_device *dev, const struct rk_cuda_stream *stream,
                                struct rk_gemm_plan *plan, const struct rk_gemm_args *args)
{
    cublasLtMatmulAlgo_t found[RK_GEMM_MAX_CANDIDATES];
    int count;

    plan->has_algo = plan->key.bits != RK_GEMM_ANY && rk_gemm_take_tuned(dev, plan);
    if (plan->has_algo)
        return NULL;
    RK_TRY(rk_gemm_candidates(dev, plan, found, &count));
    if (count > 0) {
        plan->algo = found[0];
        plan->has_algo = true;
        if (plan->key.bits != RK_GEMM_ANY)
            RK_TRY(rk_gemm_tune(dev, stream, plan, args));
    }
    if (!plan->has_algo)
        RK_WARN("cuBLASLt has no kernel for GEMM m=%lld n=%lld k=%lld dtype=%s strict=%d; using the built-in "
                "kernel",
                (long long)plan->key.m, (long long)plan->key.n, (long long)plan->key.k,
                rk_dtype_name(args->a.dtype), args->strict);
    return NULL;
}

static struct rk_status *plan_init(struct rk_cuda_device *dev, struct rk_cuda_stream *stream,
                                   struct rk_gemm_plan *plan, const struct rk_gemm_args *args)
{
    struct rk_status *st = describe(plan, args);

    if (!st && plan->key.bits != RK_GEMM_PARTS)
        st = choose(dev, stream, plan, args);
    if (!st)
        st = rk_gemm_small_tune(dev, stream, plan, args);
    plan->is_used = true;
    if (st)
        plan_fini(plan);
    return st;
}

struct rk_status *rk_gemm_find_plan(struct rk_cuda_device *dev, struct rk_cuda_stream *stream,
                                    struct rk_gemm_plan **out, const struct rk_gemm_key *key,
                                    const struct rk_gemm_args *args)
{
    struct rk_cuda_gemm_plans *plans;
    uint64_t slot = hash_of(key);

    if (!dev->plans)
        dev->plans = rk_calloc(1, sizeof(*dev->plans));
    plans = dev->plans;
    if (plans->num_plans == MAX_PLANS)
        clear_plans(plans);
    for (;; slot++) {
        *out = &plans->slots[slot % RK_GEMM_NUM_SLOTS];
        if (!(*out)->is_used)
            break;
        if (memcmp(&(*out)->key, key, sizeof(*key)) == 0)
            return NULL;
    }
    (*out)->key = *key;
    RK_TRY(plan_init(dev, stream, *out, args));
    plans->num_plans++;
    return NULL;
}
