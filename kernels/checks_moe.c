/* Argument checks of the operators that make up layers of experts. */
#include "kernels/checks_internal.h"

/* Maximum number of groups: a GPU counts them in a block's shared memory. */
#define MAX_GROUPS 1024

static void expect_offsets(struct rk_check *check, rk_tensor_t offsets, int64_t num_groups)
{
    rk_expect(check, num_groups >= 1 && num_groups <= MAX_GROUPS, "%lld groups, expected 1 to %d",
              (long long)num_groups, MAX_GROUPS);
    rk_expect_tensor(check, "offsets", offsets, RK_DTYPE_I32, RK_DIMS(num_groups + 1));
}

static void expect_swiglu(struct rk_check *check, const struct rk_grouped_gemm_args *args)
{
    int64_t rows = args->y.shape[0], n = args->y.shape[1];

    rk_expect(check, args->swiglu.data || !args->probs.data, "probs without swiglu");
    if (!args->swiglu.data)
        return;
    rk_expect(check, n % 2 == 0, "y has %lld columns, expected an even number for swiglu", (long long)n);
    rk_expect_tensor(check, "swiglu", args->swiglu, args->y.dtype, RK_DIMS(rows, n / 2));
    rk_expect_optional(check, "probs", args->probs, rk_stat_dtype(args->y.dtype), RK_DIMS(rows));
    rk_expect_no_alias(check, "swiglu", args->swiglu, "x", args->x);
    rk_expect_no_alias(check, "swiglu", args->swiglu, "y", args->y);
}

int64_t rk_check_grouped_gemm(struct rk_check *check, const struct rk_grouped_gemm_args *args)
{
    const rk_tensor_t *w = &args->w;
    int64_t rows = args->x.shape[0], k = args->x.shape[1], n = w->shape[args->trans_w ? 1 : 2];

    rk_expect_source(check, "x", args->x, 2);
    rk_expect_source(check, "w", *w, 3);
    rk_expect_tensor(check, "w", *w, args->x.dtype,
                     args->trans_w ? RK_DIMS(w->shape[0], n, k) : RK_DIMS(w->shape[0], k, n));
    rk_expect_contiguous(check, "w", *w);
    rk_expect_tensor(check, "y", args->y, args->x.dtype, RK_DIMS(rows, n));
    expect_offsets(check, args->offsets, w->shape[0]);
    rk_expect(check, args->likely_rows >= 0, "likely_rows=%lld, expected at least 0",
              (long long)args->likely_rows);
    rk_expect_no_alias(check, "y", args->y, "x", args->x);
    rk_expect_no_alias(check, "y", args->y, "w", *w);
    expect_swiglu(check, args);
    return rows * n;
}

int64_t rk_check_grouped_gemm_wgrad(struct rk_check *check, const struct rk_grouped_gemm_wgrad_args *args)
{
    const rk_tensor_t *dw = &args->dw;
    int64_t rows = args->x.shape[0];

    rk_expect_source(check, "x", args->x, 2);
    rk_expect_source(check, "dw", *dw, 3);
    rk_expect_tensor(check, "dw", *dw, dw->dtype == RK_DTYPE_F32 ? RK_DTYPE_F32 : args->x.dtype,
                     RK_DIMS(dw->shape[0], dw->shape[1], args->x.shape[1]));
    rk_expect_contiguous(check, "dw", *dw);
    rk_expect_tensor(check, "dy", args->dy, args->x.dtype, RK_DIMS(rows, dw->shape[1]));
    expect_offsets(check, args->offsets, dw->shape[0]);
    rk_expect_no_alias(check, "dw", *dw, "dy", args->dy);
    rk_expect_no_alias(check, "dw", *dw, "x", args->x);
    return args->overwrites_dw ? rk_tensor_num_elements(*dw) : rows * dw->shape[1];
}

static void expect_route(struct rk_check *check, const struct rk_moe_route_args *args)
{
    int64_t tokens = args->logits.shape[0], experts = args->logits.shape[1], top_k = args->ids.shape[1];
    rk_dtype_t stat = args->logits.dtype;

    rk_expect_source(check, "logits", args->logits, 2);
    rk_expect(check, stat == rk_stat_dtype(stat), "logits is %s, expected f32 or f64", rk_dtype_name(stat));
    rk_expect(check, experts >= 1 && experts <= RK_MOE_EXPERTS_MAX, "%lld experts, expected 1 to %d",
              (long long)experts, RK_MOE_EXPERTS_MAX);
    rk_expect(check, args->ids.rank == 2 && top_k >= 1 && top_k <= RK_MIN(experts, RK_MOE_TOP_K_MAX),
              "ids has %lld columns, expected 1 to %lld", (long long)top_k,
              (long long)RK_MIN(experts, RK_MOE_TOP_K_MAX));
    rk_expect_tensor(check, "ids", args->ids, RK_DTYPE_I32, RK_DIMS(tokens, top_k));
    rk_expect_optional(check, "bias", args->bias, args->bias.dtype, RK_DIMS(args->bias.shape[0], experts));
    rk_expect_optional(check, "given", args->given, RK_DTYPE_I32, RK_DIMS(tokens, top_k));
    rk_expect_optional(check, "chosen", args->chosen, RK_DTYPE_I16, RK_DIMS(tokens, top_k));
    rk_expect(check, args->num_groups >= 1 && experts % RK_MAX(args->num_groups, 1) == 0,
              "num_groups=%d, expected a divisor of the %lld experts", args->num_groups, (long long)experts);
    rk_expect(check, args->topk_groups >= 1 && args->topk_groups <= args->num_groups,
              "topk_groups=%d, expected 1 to num_groups=%d", args->topk_groups, args->num_groups);
    rk_expect(check, check->st || top_k <= experts / args->num_groups * args->topk_groups,
              "ids has %lld columns, expected at most the %lld experts of %d groups", (long long)top_k,
              (long long)(experts / RK_MAX(args->num_groups, 1) * args->topk_groups), args->topk_groups);
}

int64_t rk_check_moe_route(struct rk_check *check, const struct rk_moe_route_args *args)
{
    expect_route(check, args);
    rk_expect_tensor(check, "probs", args->probs, args->logits.dtype,
                     RK_DIMS(args->ids.shape[0], args->ids.shape[1]));
    return args->logits.shape[0];
}

int64_t rk_check_moe_route_bwd(struct rk_check *check, const struct rk_moe_route_bwd_args *args)
{
    const rk_tensor_t *logits = &args->fwd.logits, *ids = &args->fwd.ids;

    expect_route(check, &args->fwd);
    rk_expect_tensor(check, "dlogits", args->dlogits, logits->dtype,
                     RK_DIMS(logits->shape[0], logits->shape[1]));
    rk_expect_tensor(check, "dprobs", args->dprobs, logits->dtype, RK_DIMS(ids->shape[0], ids->shape[1]));
    return logits->shape[0];
}

static void expect_choices(struct rk_check *check, rk_tensor_t ids, rk_tensor_t places, bool needs_places)
{
    rk_expect(check, ids.rank == 2 && ids.shape[1] >= 1 && ids.shape[1] <= RK_MOE_TOP_K_MAX,
              "ids has %lld columns, expected 1 to %d", (long long)ids.shape[1], RK_MOE_TOP_K_MAX);
    rk_expect_tensor(check, "ids", ids, RK_DTYPE_I32, RK_DIMS(ids.shape[0], ids.shape[1]));
    rk_expect_contiguous(check, "ids", ids);
    if (!needs_places && !places.data)
        return;
    rk_expect_tensor(check, "places", places, RK_DTYPE_I32, RK_DIMS(ids.shape[0], ids.shape[1]));
    rk_expect_contiguous(check, "places", places);
}

int64_t rk_check_moe_sort(struct rk_check *check, const struct rk_moe_sort_args *args)
{
    int64_t experts = args->offsets.shape[0] - 1;

    expect_choices(check, args->ids, args->places, true);
    rk_expect(check, experts >= 1 && experts <= RK_MOE_EXPERTS_MAX,
              "offsets for %lld experts, expected 1 to %d", (long long)experts, RK_MOE_EXPERTS_MAX);
    rk_expect_tensor(check, "offsets", args->offsets, RK_DTYPE_I32, RK_DIMS(experts + 1));
    rk_expect(check,
              args->first >= 0 && args->first + experts <= (args->num_experts ? args->num_experts : experts),
              "experts from %lld to %lld, expected a range of num_experts=%lld", (long long)args->first,
              (long long)(args->first + experts - 1), (long long)args->num_experts);
    rk_expect_tensor(check, "tokens", args->tokens, RK_DTYPE_I32,
                     RK_DIMS(args->ids.shape[0] * args->ids.shape[1]));
    rk_expect(check, args->ids.shape[0] * args->ids.shape[1] <= INT32_MAX,
              "%lld tokens of %lld choices, expected %d rows at most", (long long)args->ids.shape[0],
              (long long)args->ids.shape[1], INT32_MAX);
    return 1; /* without tokens the offsets are still written */
}

int64_t rk_check_moe_combine(struct rk_check *check, const struct rk_moe_combine_args *args)
{
    rk_expect_source(check, "x", args->x, 2);
    rk_expect_tensor(check, "y", args->y, args->x.dtype, RK_DIMS(args->ids.shape[0], args->x.shape[1]));
    expect_choices(check, args->ids, args->places, false);
    rk_expect(check, args->places.data || args->x.shape[0] == args->ids.shape[0] * args->ids.shape[1],
              "x has %lld rows, expected one for each of the %lld choices without places",
              (long long)args->x.shape[0], (long long)(args->ids.shape[0] * args->ids.shape[1]));
    rk_expect_no_alias(check, "y", args->y, "x", args->x);
    return args->y.shape[0] * args->y.shape[1];
}

/* I32 [T, K] and I32 [T]. */
static void expect_tokens(struct rk_check *check, rk_tensor_t ids, rk_tensor_t segments)
{
    rk_expect(check, ids.rank == 2 && ids.shape[1] >= 1 && ids.shape[1] <= RK_MOE_TOP_K_MAX,
              "ids has %lld columns, expected 1 to %d", (long long)ids.shape[1], RK_MOE_TOP_K_MAX);
    rk_expect_tensor(check, "ids", ids, RK_DTYPE_I32, RK_DIMS(ids.shape[0], ids.shape[1]));
    rk_expect_tensor(check, "segments", segments, RK_DTYPE_I32, RK_DIMS(ids.shape[0]));
}

int64_t rk_check_moe_count(struct rk_check *check, const struct rk_moe_count_args *args)
{
    rk_dtype_t stat = rk_stat_dtype(args->counts.dtype);

    expect_tokens(check, args->ids, args->segments);
    rk_expect_tensor(check, "counts", args->counts, stat,
                     RK_DIMS(args->counts.shape[0], args->counts.shape[1]));
    rk_expect_contiguous(check, "counts", args->counts);
    return args->ids.shape[0];
}

int64_t rk_check_moe_balance(struct rk_check *check, const struct rk_moe_balance_args *args)
{
    int64_t tokens = args->logits.shape[0], experts = args->logits.shape[1];
    rk_dtype_t stat = rk_stat_dtype(args->logits.dtype);

    rk_expect_source(check, "logits", args->logits, 2);
    rk_expect_tensor(check, "logits", args->logits, stat, RK_DIMS(tokens, experts));
    rk_expect(check, experts >= 1 && experts <= RK_MOE_EXPERTS_MAX, "%lld experts, expected 1 to %d",
              (long long)experts, RK_MOE_EXPERTS_MAX);
    expect_tokens(check, args->ids, args->segments);
    rk_expect_tensor(check, "segments", args->segments, RK_DTYPE_I32, RK_DIMS(tokens));
    rk_expect_tensor(check, "sums", args->sums, RK_DTYPE_F64, RK_DIMS(experts + RK_NUM_ROUTER_SUMS));
    rk_expect_optional(check, "dlogits", args->dlogits, stat, RK_DIMS(tokens, experts));
    rk_expect(check, (args->counts.data != NULL) == (args->weights.data != NULL),
              "one of counts and weights is none, expected both or neither");
    rk_expect_optional(check, "counts", args->counts, stat, RK_DIMS(args->weights.shape[0], experts));
    rk_expect_optional(check, "weights", args->weights, stat, RK_DIMS(args->weights.shape[0]));
    return tokens;
}
