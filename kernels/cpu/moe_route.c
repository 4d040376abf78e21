/* Routing: the choice of experts, and its gradient. */
#include "kernels/cpu/cpu_internal.h"

#include <math.h>

#define SIGMOID_EPSILON 1e-20 /* added to the sum by which probabilities are normalised */

/* scores[e]: softmax or sigmoid of a row of logits. */
static void score(double *scores, const struct rk_moe_route_args *args, int64_t t)
{
    int64_t experts = args->logits.shape[1];
    double max = -INFINITY, sum = 0.0;

    rk_cpu_load(scores, args->logits, t, 0, experts);
    if (args->is_sigmoid) {
        for (int64_t e = 0; e < experts; e++)
            scores[e] = 1.0 / (1.0 + exp(-scores[e]));
        return;
    }
    for (int64_t e = 0; e < experts; e++)
        max = fmax(max, scores[e]);
    for (int64_t e = 0; e < experts; e++) {
        scores[e] = exp(scores[e] - max);
        sum += scores[e];
    }
    for (int64_t e = 0; e < experts; e++)
        scores[e] /= sum;
}

/* Index of the largest value that is not taken yet, the first of equal ones; NaN counts as the smallest.
 * Marks it taken by setting it to -INFINITY. */
static int32_t take_largest(double *values, int64_t count)
{
    int64_t best = -1;

    for (int64_t i = 0; i < count; i++) {
        if (values[i] > -INFINITY && (best < 0 || values[i] > values[best]))
            best = i;
    }
    for (int64_t i = 0; best < 0 && i < count; i++) /* only NaN left */
        best = isnan(values[i]) ? i : -1;
    if (best >= 0)
        values[best] = -INFINITY;
    return (int32_t)best;
}

/* Sum of the two largest values of a group; values are unchanged. */
static double group_score(const double *choice, int64_t count)
{
    double first = -INFINITY, second = -INFINITY;

    for (int64_t i = 0; i < count; i++) {
        if (choice[i] > first) {
            second = first;
            first = choice[i];
        } else if (choice[i] > second) {
            second = choice[i];
        }
    }
    return count > 1 ? first + second : first;
}

/* Removes the experts outside of the best groups. */
static void keep_groups(double *choice, double *groups, const struct rk_moe_route_args *args)
{
    int64_t size = args->logits.shape[1] / args->num_groups;

    for (int32_t g = 0; g < args->num_groups; g++)
        groups[g] = group_score(choice + g * size, size);
    for (int32_t i = 0; i < args->topk_groups; i++)
        take_largest(groups, args->num_groups);
    for (int32_t g = 0; g < args->num_groups; g++) {
        for (int64_t i = 0; groups[g] > -INFINITY && i < size; i++)
            choice[g * size + i] = -INFINITY;
    }
}

static double bias_of(const struct rk_moe_route_args *args, int64_t expert)
{
    double sum = 0.0;

    for (int64_t part = 0; args->bias.data && part < args->bias.shape[0]; part++)
        sum += rk_cpu_load_one(args->bias, part, expert);
    return sum;
}

static void choose(int32_t *ids, const double *scores, double *choice, const struct rk_moe_route_args *args)
{
    int64_t experts = args->logits.shape[1];

    for (int64_t e = 0; e < experts; e++)
        choice[e] = scores[e] + bias_of(args, e);
    if (args->num_groups > 1)
        keep_groups(choice, choice + experts, args);
    for (int64_t k = 0; k < args->ids.shape[1]; k++)
        ids[k] = take_largest(choice, experts);
}

/* Divisor of the chosen scores. */
static double divisor(const struct rk_moe_route_args *args, const int32_t *ids, const double *scores)
{
    double sum = args->is_sigmoid ? SIGMOID_EPSILON : 0.0;

    if (!args->normalizes)
        return 1.0;
    for (int64_t k = 0; k < args->ids.shape[1]; k++)
        sum += ids[k] >= 0 ? scores[ids[k]] : 0.0;
    return sum;
}

static void route(const struct rk_moe_route_args *args, int64_t t, double *scores)
{
    int64_t experts = args->logits.shape[1];
    int32_t *ids = rk_cpu_at(args->ids, t, 0);
    const int32_t *given = args->given.data ? rk_cpu_at(args->given, t, 0) : NULL;
    int16_t *chosen = args->chosen.data ? rk_cpu_at(args->chosen, t, 0) : NULL;
    double sum;

    score(scores, args, t);
    if (!given || chosen)
        choose(ids, scores, scores + experts, args);
    for (int64_t k = 0; chosen && k < args->ids.shape[1]; k++)
        chosen[k] = (int16_t)ids[k];
    for (int64_t k = 0; given && k < args->ids.shape[1]; k++)
        ids[k] = given[k];
    sum = divisor(args, ids, scores);
    for (int64_t k = 0; k < args->ids.shape[1]; k++) {
        double prob = ids[k] >= 0 ? args->scale * scores[ids[k]] / sum : 0.0;

        rk_cpu_store(args->probs, t, k, &prob, 1);
    }
}

static struct rk_status *check_ids(const char *op, const char *arg, rk_tensor_t ids, int64_t experts)
{
    for (int64_t t = 0; t < ids.shape[0]; t++) {
        const int32_t *row = rk_cpu_at(ids, t, 0);

        for (int64_t k = 0; k < ids.shape[1]; k++) {
            if (row[k] >= experts)
                return RK_FAIL(RK_INVALID_ARGUMENT, "%s: %s[%lld][%lld]=%d, expected an expert below %lld",
                               op, arg, (long long)t, (long long)k, row[k], (long long)experts);
            for (int64_t j = 0; row[k] >= 0 && j < k; j++) {
                if (row[j] == row[k])
                    return RK_FAIL(RK_INVALID_ARGUMENT,
                                   "%s: %s[%lld] has expert %d twice, expected distinct ones", op, arg,
                                   (long long)t, row[k]);
            }
        }
    }
    return NULL;
}

static double work_of(const struct rk_moe_route_args *args)
{
    return (RK_WORK_EXP + (double)args->ids.shape[1]) * (double)rk_tensor_num_elements(args->logits);
}

struct rk_status *rk_cpu_moe_route(void *dev, void *stream, const struct rk_moe_route_args *args)
{
    struct rk_cpu_device *cpu = dev;
    int64_t experts = args->logits.shape[1];

    (void)stream;
    if (args->given.data)
        RK_TRY(check_ids("moe_route", "given", args->given, experts));
    RK_TRY(rk_cpu_scratch_reserve(cpu, 2 * experts + args->num_groups));
#pragma omp parallel for num_threads(rk_cpu_num_threads(cpu, work_of(args)))
    for (int64_t t = 0; t < args->logits.shape[0]; t++)
        route(args, t, rk_cpu_scratch(cpu));
    return NULL;
}

/* ds = d loss / d score of the chosen, then backward through softmax or sigmoid. */
static void route_bwd(const struct rk_moe_route_bwd_args *args, int64_t t, double *scores)
{
    const struct rk_moe_route_args *fwd = &args->fwd;
    int64_t experts = fwd->logits.shape[1], top_k = fwd->ids.shape[1];
    const int32_t *ids = rk_cpu_at(fwd->ids, t, 0);
    double *ds = scores + experts, sum, mean = 0.0, weighted = 0.0;

    score(scores, fwd, t);
    sum = divisor(fwd, ids, scores);
    for (int64_t e = 0; e < experts; e++)
        ds[e] = 0.0;
    for (int64_t k = 0; k < top_k; k++) {
        if (ids[k] < 0)
            continue;
        ds[ids[k]] = fwd->scale * rk_cpu_load_one(args->dprobs, t, k) / sum;
        mean += ds[ids[k]] * scores[ids[k]] / sum;
    }
    for (int64_t k = 0; k < top_k; k++) {
        if (ids[k] >= 0 && fwd->normalizes)
            ds[ids[k]] -= mean;
        if (ids[k] >= 0)
            weighted += ds[ids[k]] * scores[ids[k]];
    }
    for (int64_t e = 0; e < experts; e++)
        ds[e] = scores[e] * (fwd->is_sigmoid ? ds[e] * (1.0 - scores[e]) : ds[e] - weighted);
    rk_cpu_store(args->dlogits, t, 0, ds, experts);
}

struct rk_status *rk_cpu_moe_route_bwd(void *dev, void *stream, const struct rk_moe_route_bwd_args *args)
{
    struct rk_cpu_device *cpu = dev;
    int64_t experts = args->fwd.logits.shape[1];

    (void)stream;
    RK_TRY(check_ids("moe_route_bwd", "ids", args->fwd.ids, experts));
    RK_TRY(rk_cpu_scratch_reserve(cpu, 2 * experts));
#pragma omp parallel for num_threads(rk_cpu_num_threads(cpu, work_of(&args->fwd)))
    for (int64_t t = 0; t < args->fwd.logits.shape[0]; t++)
        route_bwd(args, t, rk_cpu_scratch(cpu));
    return NULL;
}
