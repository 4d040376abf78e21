/* Sums over the tokens of a router, for metrics, and the gradients of losses on its scores. */
#include "kernels/cpu/cpu_internal.h"

#include <math.h>

#include "base/rk_alloc.h"

#define SIGMOID_EPSILON 1e-20 /* as in moe_route */

/* Summands of a token. */
struct terms {
    double entropy, balance, z;
};

/* Scores of a token: logsumexp and softmax of the logits, scores, and scores divided by their sum; the arrays
 * are [E]. */
struct scores {
    double log_sum, *softmax, *s, *p;
};

static struct rk_status *check_ids(const char *op, rk_tensor_t ids, int64_t experts)
{
    for (int64_t t = 0; t < ids.shape[0]; t++) {
        const int32_t *row = rk_cpu_at(ids, t, 0);

        for (int64_t k = 0; k < ids.shape[1]; k++) {
            if (row[k] >= experts)
                return RK_FAIL(RK_INVALID_ARGUMENT, "%s: ids[%lld][%lld]=%d, expected an expert below %lld",
                               op, (long long)t, (long long)k, row[k], (long long)experts);
        }
    }
    return NULL;
}

struct rk_status *rk_cpu_moe_count(void *dev, void *stream, const struct rk_moe_count_args *args)
{
    int64_t num_segments = args->counts.shape[0], experts = args->counts.shape[1];

    (void)dev;
    (void)stream;
    RK_TRY(check_ids("moe_count", args->ids, experts));
    RK_TRY(rk_cpu_check_range("moe_count", "segments", args->segments, INT32_MIN, num_segments - 1));
    for (int64_t t = 0; t < args->ids.shape[0]; t++) {
        const int32_t *ids = rk_cpu_at(args->ids, t, 0);
        int32_t segment = rk_cpu_i32(args->segments)[t];

        for (int64_t k = 0; segment >= 0 && k < args->ids.shape[1]; k++) {
            double count;

            if (ids[k] < 0)
                continue;
            count = 1.0 + rk_cpu_load_one(args->counts, segment, ids[k]);
            rk_cpu_store(args->counts, segment, ids[k], &count, 1);
        }
    }
    return NULL;
}

static void score(struct scores *scores, const struct rk_moe_balance_args *args, int64_t t)
{
    int64_t experts = args->logits.shape[1];
    double max = -INFINITY, sum = 0.0, score_sum = args->is_sigmoid ? SIGMOID_EPSILON : 0.0;

    rk_cpu_load(scores->p, args->logits, t, 0, experts);
    for (int64_t e = 0; e < experts; e++)
        max = fmax(max, scores->p[e]);
    for (int64_t e = 0; e < experts; e++) {
        scores->softmax[e] = exp(scores->p[e] - max);
        scores->s[e] = args->is_sigmoid ? 1.0 / (1.0 + exp(-scores->p[e])) : scores->softmax[e];
        sum += scores->softmax[e];
        score_sum += scores->s[e];
    }
    scores->log_sum = max + log(sum);
    for (int64_t e = 0; e < experts; e++) {
        scores->softmax[e] /= sum;
        scores->p[e] = scores->s[e] / score_sum;
    }
}

/* The derivative of balance by p_e. */
static double slope_of(const struct rk_moe_balance_args *args, int32_t segment, int64_t e)
{
    if (!args->counts.data)
        return 0.0;
    return rk_cpu_load_one(args->weights, segment, 0) * rk_cpu_load_one(args->counts, segment, e);
}

static void add_gradient(const struct rk_moe_balance_args *args, int64_t t, const struct scores *scores,
                         const struct terms *terms)
{
    int32_t segment = rk_cpu_i32(args->segments)[t];

    for (int64_t e = 0; e < args->logits.shape[1]; e++) {
        double of_p = scores->p[e] * (slope_of(args, segment, e) - terms->balance);
        double gradient = rk_cpu_load_one(args->dlogits, t, e);

        gradient += args->is_sigmoid ? of_p * (1.0 - scores->s[e]) : of_p;
        gradient += args->z_weight * 2.0 * scores->log_sum * scores->softmax[e];
        rk_cpu_store(args->dlogits, t, e, &gradient, 1);
    }
}

/* scratch: [3 E]. */
static struct terms run_token(const struct rk_moe_balance_args *args, int64_t t, double *scratch)
{
    int64_t experts = args->logits.shape[1];
    struct scores scores = {.softmax = scratch, .s = scratch + experts, .p = scratch + 2 * experts};
    struct terms terms = {0};

    score(&scores, args, t);
    for (int64_t e = 0; e < experts; e++) {
        terms.entropy -= scores.p[e] > 0.0 ? scores.p[e] * log(scores.p[e]) : 0.0;
        terms.balance += scores.p[e] * slope_of(args, rk_cpu_i32(args->segments)[t], e);
    }
    terms.z = scores.log_sum * scores.log_sum;
    if (args->dlogits.data)
        add_gradient(args, t, &scores, &terms);
    return terms;
}

/* Adds the terms of all tokens in ascending order. */
static void add_sums(const struct rk_moe_balance_args *args, const struct terms *terms)
{
    double *sums = args->sums.data, *others = sums + args->logits.shape[1];

    for (int64_t t = 0; t < args->logits.shape[0]; t++) {
        const int32_t *ids = rk_cpu_at(args->ids, t, 0);

        if (rk_cpu_i32(args->segments)[t] < 0)
            continue;
        for (int64_t k = 0; k < args->ids.shape[1]; k++) {
            if (ids[k] >= 0)
                sums[ids[k]] += 1.0;
        }
        others[RK_ROUTER_TOKENS] += 1.0;
        others[RK_ROUTER_ENTROPY] += terms[t].entropy;
        others[RK_ROUTER_BALANCE] += terms[t].balance;
        others[RK_ROUTER_Z] += terms[t].z;
    }
}

struct rk_status *rk_cpu_moe_balance(void *dev, void *stream, const struct rk_moe_balance_args *args)
{
    int64_t num_tokens = args->logits.shape[0], experts = args->logits.shape[1];
    struct rk_cpu_device *cpu = dev;
    struct terms *terms;
    void *memory;

    (void)stream;
    RK_TRY(check_ids("moe_balance", args->ids, experts));
    if (args->counts.data)
        RK_TRY(rk_cpu_check_range("moe_balance", "segments", args->segments, INT32_MIN,
                                  args->counts.shape[0] - 1));
    RK_TRY(rk_cpu_scratch_reserve(cpu, 3 * experts));
    RK_TRY(rk_try_alloc(&memory, (size_t)num_tokens * sizeof(*terms), "terms of tokens"));
    terms = memory;
#pragma omp parallel for num_threads(rk_cpu_threads_over(cpu, args->logits, 2.0 * RK_WORK_EXP))
    for (int64_t t = 0; t < num_tokens; t++) {
        if (rk_cpu_i32(args->segments)[t] >= 0)
            terms[t] = run_token(args, t, rk_cpu_scratch(cpu));
    }
    add_sums(args, terms);
    rk_free(memory);
    return NULL;
}
