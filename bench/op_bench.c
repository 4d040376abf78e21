/* Runs one operator repeatedly over several sets of tensors, which together exceed all caches. Measures the
 * host time between two synchronisations over many calls: the cost of a call in a stream of calls. */
#include "bench/op_bench.h"

#include <stdio.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_rng.h"
#include "base/rk_time.h"
#include "kernels/rk_kernels.h"

#define SETS_BYTES  ((size_t)256 << 20)
#define MAX_SETS    32
#define BATCH_NS    8000000 /* duration of one timed batch of calls */
#define BATCHES     5
#define TINY_CALLS  2
#define INT_SEED    7
#define ALIGN_BYTES 256

void bench_add(struct bench_tensors *tensors, rk_tensor_t t)
{
    bench_add_ints(tensors, t, (struct bench_fill){.kind = BENCH_NORMAL});
}

void bench_add_ints(struct bench_tensors *tensors, rk_tensor_t t, struct bench_fill fill)
{
    RK_ASSERT(tensors->count < BENCH_MAX_TENSORS);
    tensors->fills[tensors->count] = fill;
    tensors->t[tensors->count++] = t;
}

/* Copies of all tensors of an operator in one block of memory. */
struct sets {
    struct bench_tensors tensors;
    size_t offsets[BENCH_MAX_TENSORS], set_bytes;
    int num_sets, next;
    char *memory;
};

static struct rk_status *fill_ints(struct bench_ctx *ctx, rk_tensor_t t, struct bench_fill fill)
{
    int64_t count = rk_tensor_num_elements(t);
    int32_t *values = rk_calloc((size_t)count + 1, sizeof(*values));
    struct rk_status *st;

    for (int64_t i = 0; i < count; i++) {
        int64_t value = fill.base + fill.step * i;

        if (fill.kind == BENCH_BELOW)
            value = (int64_t)(rk_rng_uniform(rk_rng_token_word(INT_SEED, 0, 0, (uint32_t)i)) *
                              (double)fill.modulus);
        else if (fill.modulus > 0)
            value %= fill.modulus;
        values[i] = (int32_t)value;
    }
    st = rk_stream_copy(ctx->stream, t.data, values, rk_tensor_bytes(t), RK_COPY_H2D);
    if (!st)
        st = rk_stream_sync(ctx->stream);
    rk_free(values);
    return st;
}

static struct rk_status *fill_tensor(struct bench_ctx *ctx, rk_tensor_t t, struct bench_fill fill,
                                     uint64_t number)
{
    int64_t count = rk_tensor_num_elements(t);

    if (fill.kind != BENCH_NORMAL)
        return fill_ints(ctx, t, fill);
    if (!rk_dtype_is_float(t.dtype) || count == 0)
        return NULL;
    return rk_random_normal(ctx->stream,
                            &(struct rk_random_normal_args){.out = rk_tensor_2d(t.data, t.dtype, 1, count),
                                                            .deviation = 1,
                                                            .seed = INT_SEED,
                                                            .stream = number});
}

static void point_at(struct sets *sets, int set)
{
    for (int i = 0; i < sets->tensors.count; i++)
        sets->tensors.t[i].data = sets->memory + (size_t)set * sets->set_bytes + sets->offsets[i];
}

static struct rk_status *sets_init(struct sets *sets, struct bench_ctx *ctx, struct bench_op_call *call,
                                   const struct bench_op *op)
{
    size_t wanted = ctx->options->is_tiny ? 1 : SETS_BYTES;
    void *memory;

    op->declare(&sets->tensors, call->dims);
    for (int i = 0; i < sets->tensors.count; i++) {
        sets->offsets[i] = sets->set_bytes;
        sets->set_bytes += rk_round_up(rk_tensor_bytes(sets->tensors.t[i]), ALIGN_BYTES);
    }
    sets->num_sets = (int)RK_MIN(wanted / sets->set_bytes + 1, (size_t)MAX_SETS);
    RK_TRY(rk_device_alloc(ctx->device, &memory, sets->set_bytes * (size_t)sets->num_sets, "inputs"));
    sets->memory = memory;
    for (int s = 0; s < sets->num_sets; s++) {
        point_at(sets, s);
        for (int i = 0; i < sets->tensors.count; i++)
            RK_TRY(fill_tensor(ctx, sets->tensors.t[i], sets->tensors.fills[i],
                               (uint64_t)(s * BENCH_MAX_TENSORS + i)));
        if (op->prepare)
            RK_TRY(op->prepare(call));
    }
    return rk_stream_sync(ctx->stream);
}

static struct rk_status *run_many(struct sets *sets, const struct bench_op *op,
                                  const struct bench_op_call *call, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        point_at(sets, sets->next++ % sets->num_sets);
        RK_TRY(op->run(call));
    }
    return rk_stream_sync(call->stream);
}

static struct rk_status *measure(double *seconds, struct sets *sets, const struct bench_op *op,
                                 const struct bench_op_call *call, bool is_tiny)
{
    double times[BATCHES];
    int64_t count = TINY_CALLS, begin;

    RK_TRY(run_many(sets, op, call, RK_MAX(count, sets->num_sets)));
    begin = rk_time_now_ns();
    RK_TRY(run_many(sets, op, call, count));
    if (!is_tiny)
        count = RK_MAX(count, count * BATCH_NS / RK_MAX(rk_time_now_ns() - begin, 1));
    for (int b = 0; b < BATCHES; b++) {
        begin = rk_time_now_ns();
        RK_TRY(run_many(sets, op, call, count));
        times[b] = (double)(rk_time_now_ns() - begin) * 1e-9 / (double)count;
    }
    *seconds = bench_median(times, BATCHES);
    return NULL;
}

static void format_shape(struct bench_result *result, const struct bench_op *op, const int64_t *dims,
                         bool is_strict)
{
    size_t used = 0;

    for (int i = 0; i < BENCH_MAX_DIMS && op->dim_names[i]; i++)
        used += (size_t)snprintf(result->shape + used, sizeof(result->shape) - used, "%s%s=%lld",
                                 i ? " " : "", op->dim_names[i], (long long)dims[i]);
    snprintf(result->shape + used, sizeof(result->shape) - used, is_strict ? " bf16 strict" : " bf16");
}

struct rk_status *bench_run_op(struct bench_ctx *ctx, const struct bench_case *bench,
                               struct bench_result *result)
{
    const struct bench_op *op = bench->op;
    struct sets sets = {0};
    struct bench_op_call call = {.stream = ctx->stream,
                                 .t = sets.tensors.t,
                                 .dims = bench_dims(ctx, bench),
                                 .is_strict = bench->is_strict};
    struct rk_status *st;
    double seconds = 0;

    format_shape(result, op, call.dims, bench->is_strict);
    st = sets_init(&sets, ctx, &call, op);
    if (!st)
        st = measure(&seconds, &sets, op, &call, ctx->options->is_tiny);
    if (!st) {
        bench_set_rate(result, ctx, bench, seconds, op->cost(call.dims));
        snprintf(result->note, sizeof(result->note), "%.1f us a call", seconds * 1e6);
    }
    rk_device_free(ctx->device, sets.memory);
    return st;
}
