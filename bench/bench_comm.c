/* Collectives. dims: bytes of the message (all-reduce: of the tensor; all-gather and reduce-scatter: of the
 * whole result or input). Figures are bus bandwidths: each link carries 2 (n - 1) / n of the message for an
 * all-reduce and (n - 1) / n for the others, so they are comparable with the hardware's bandwidth. */
#include "bench/models.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_assert.h"

#define CALLS 20 /* calls enqueued between two synchronisations */

struct exchange {
    struct bench_ctx *ctx;
    struct rk_comm_group *group;
    enum bench_collective kind;
    rk_tensor_t whole, mine;
    int num_calls;
};

static struct rk_status *call_once(const struct exchange *exchange)
{
    struct rk_stream *stream = exchange->ctx->stream;

    switch (exchange->kind) {
    case BENCH_ALL_REDUCE:
        return rk_comm_all_reduce(exchange->group, stream, exchange->whole, RK_REDUCE_SUM);
    case BENCH_ALL_GATHER:
        return rk_comm_all_gather(exchange->group, stream, exchange->whole, exchange->mine);
    default:
        return rk_comm_reduce_scatter(exchange->group, stream, exchange->mine, exchange->whole,
                                      RK_REDUCE_SUM);
    }
}

static struct rk_status *call_many(void *user)
{
    const struct exchange *exchange = user;

    for (int i = 0; i < exchange->num_calls; i++)
        RK_TRY(call_once(exchange));
    return rk_stream_sync(exchange->ctx->stream);
}

static struct rk_status *time_calls(double *seconds, struct exchange *exchange, int64_t bytes)
{
    struct bench_ctx *ctx = exchange->ctx;
    int64_t count = bytes / 2 / ctx->num_ranks * ctx->num_ranks, part = count / ctx->num_ranks;
    struct rk_status *st;
    void *memory;

    RK_TRY(rk_device_alloc(ctx->device, &memory, (size_t)count * 2, "message"));
    exchange->whole = rk_tensor_1d(memory, RK_DTYPE_BF16, count);
    exchange->mine = rk_tensor_1d((char *)memory + (size_t)(ctx->rank * part) * 2, RK_DTYPE_BF16, part);
    exchange->num_calls = ctx->options->is_tiny ? 2 : CALLS;
    st = bench_time(seconds, 2, 5, call_many, exchange);
    *seconds /= exchange->num_calls;
    rk_device_free(ctx->device, memory);
    return st;
}

struct rk_status *bench_run_collective(struct bench_ctx *ctx, const struct bench_case *bench,
                                       struct bench_result *result)
{
    static const char *const names[] = {"all-reduce", "all-gather", "reduce-scatter"};
    struct rk_mesh_spec spec = {.dp = ctx->num_ranks};
    const int64_t *dims = bench_dims(ctx, bench);
    struct exchange exchange = {.ctx = ctx, .kind = (enum bench_collective)dims[1]};
    struct bench_instance holder = {0};
    double seconds, others = (double)(ctx->num_ranks - 1) / ctx->num_ranks;
    struct rk_status *st;

    snprintf(result->shape, sizeof(result->shape), "%s %lld bytes bf16, %d ranks", names[exchange.kind],
             (long long)dims[0], ctx->num_ranks);
    RK_TRY(rk_mesh_create(&holder.mesh, &spec, ctx->num_ranks));
    st = rk_mesh_comms_create(&holder.comms, holder.mesh, ctx->world);
    if (!st) {
        exchange.group = rk_mesh_comms_group(holder.comms, RK_GROUP_ALL);
        st = time_calls(&seconds, &exchange, dims[0]);
    }
    bench_instance_close(&holder);
    if (st)
        return st;
    if (bench->unit == BENCH_MICROS)
        result->measured = seconds * 1e6;
    else
        result->measured =
            (exchange.kind == BENCH_ALL_REDUCE ? 2 : 1) * others * (double)dims[0] / seconds * 1e-9;
    snprintf(result->note, sizeof(result->note), "%.1f us per call, bus bandwidth", seconds * 1e6);
    return NULL;
}
