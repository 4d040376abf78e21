/* Seconds of a repeated function, and their conversion to the unit of a benchmark. */
#include "bench/bench.h"

#include <stdlib.h>

#include "base/rk_assert.h"
#include "base/rk_time.h"

#define MAX_TIMED 64

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

double bench_median(double *values, int count)
{
    RK_ASSERT(count >= 1);
    qsort(values, (size_t)count, sizeof(*values), compare);
    return count % 2 ? values[count / 2] : 0.5 * (values[count / 2 - 1] + values[count / 2]);
}

struct rk_status *bench_time(double *seconds, int num_warm, int num_timed,
                             struct rk_status *(*fn)(void *user), void *user)
{
    double times[MAX_TIMED];

    RK_ASSERT(num_timed >= 1);
    RK_ASSERT(num_timed <= MAX_TIMED);
    for (int i = 0; i < num_warm; i++)
        RK_TRY(fn(user));
    for (int i = 0; i < num_timed; i++) {
        int64_t begin = rk_time_now_ns();

        RK_TRY(fn(user));
        times[i] = (double)(rk_time_now_ns() - begin) * 1e-9;
    }
    *seconds = bench_median(times, num_timed);
    return NULL;
}

const struct bench_unit_row bench_units[BENCH_UNIT_COUNT] = {
    [BENCH_TOKENS] = {"tok/s", false}, [BENCH_TFLOPS] = {"TFLOP/s", false},  [BENCH_GBYTES] = {"GB/s", false},
    [BENCH_MICROS] = {"us", true},     [BENCH_PERCENT] = {"%", true},        [BENCH_GIB] = {"GiB", true},
    [BENCH_TIMES] = {"x", false},      [BENCH_FASTER] = {"% faster", false}, [BENCH_SECONDS] = {"s", true},
};

double bench_bound_seconds(const struct bench_ceilings *ceilings, struct bench_cost cost)
{
    return RK_MAX(cost.flops / ceilings->flops, cost.bytes / ceilings->bytes);
}

static double in_unit(bench_unit_t unit, double seconds, struct bench_cost cost)
{
    switch (unit) {
    case BENCH_TOKENS:
        return cost.items / seconds;
    case BENCH_TFLOPS:
        return cost.flops / seconds * 1e-12;
    case BENCH_GBYTES:
        return cost.bytes / seconds * 1e-9;
    case BENCH_MICROS:
        return seconds * 1e6;
    default:
        RK_ASSERT(!"a unit of time");
        return 0;
    }
}

void bench_set_rate(struct bench_result *result, const struct bench_ctx *ctx, const struct bench_case *bench,
                    double seconds, struct bench_cost cost)
{
    double bound_seconds = bench_bound_seconds(&ctx->ceilings, cost);

    result->measured = in_unit(bench->unit, seconds, cost);
    result->bound = bound_seconds > 0 ? in_unit(bench->unit, bound_seconds, cost) : 0;
}
