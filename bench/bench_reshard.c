/* Moves weights from the training layout to the rollout layout as update_weights does: packing, messages,
 * unpacking and the comparison of fingerprints. */
#include "bench/models.h"

#include <stdio.h>

#include "engine/rk_reshard.h"

#define NUM_WARM     2
#define NUM_TIMED    5
#define BUCKET_BYTES ((int64_t)512 << 20) /* rollout.checkpoint_engine.update_weights_bucket_megabytes */

struct update {
    struct bench_ctx *ctx;
    struct bench_instance source, destination;
    struct rk_reshard_link *link;
    void *scratch;
    struct rk_reshard_result result; /* of the last run */
};

static struct rk_status *update_once(void *user)
{
    struct update *update = user;

    return rk_reshard_run(&update->result, &(struct rk_reshard_args){
                                               .struct_size = sizeof(struct rk_reshard_args),
                                               .link = update->link,
                                               .source = update->source.model,
                                               .destination = update->destination.model,
                                               .stream = update->ctx->stream,
                                               .scratch = update->scratch,
                                               .bucket_bytes = BUCKET_BYTES,
                                           });
}

static struct rk_status *update_open(struct update *update, const struct bench_case *bench)
{
    struct bench_ctx *ctx = update->ctx;
    const struct bench_layout *from = &bench->layout, *to = &bench->to;
    const struct bench_instance_desc source = {
        .model = bench->model, .tp = from->tp, .dp = from->dp, .pp = from->pp, .is_deep = true};
    const struct bench_instance_desc destination = {
        .model = bench->model, .tp = to->tp, .dp = to->dp, .pp = to->pp, .is_deep = true};

    RK_TRY(rk_device_alloc(ctx->device, &update->scratch, RK_AGREE_BYTES, "agreements"));
    RK_TRY(bench_instance_open(&update->source, ctx, &source));
    RK_TRY(bench_instance_open(&update->destination, ctx, &destination));
    return rk_reshard_link_create(&update->link, ctx->world, update->source.mesh, update->destination.mesh);
}

static void update_close(struct update *update)
{
    rk_reshard_link_destroy(update->link);
    bench_instance_close(&update->source);
    bench_instance_close(&update->destination);
    rk_device_free(update->ctx->device, update->scratch);
}

struct rk_status *bench_run_update_weights(struct bench_ctx *ctx, const struct bench_case *bench,
                                           struct bench_result *result)
{
    struct update update = {.ctx = ctx};
    double seconds = 0, bytes[2]; /* between ranks, within ranks */
    struct rk_status *st = update_open(&update, bench);

    if (!st)
        st = bench_time(&seconds, NUM_WARM, ctx->options->is_tiny ? 1 : NUM_TIMED, update_once, &update);
    bytes[0] = (double)update.result.traffic.received_bytes;
    bytes[1] = (double)update.result.traffic.copied_bytes;
    if (!st)
        st = rk_engine_sum(rk_reshard_link_group(update.link), ctx->stream, update.scratch, bytes, 2);
    if (!st) {
        snprintf(result->shape, sizeof(result->shape), "%s bf16, %s to %s", update.source.shape.name,
                 rk_mesh_text(update.source.mesh), rk_mesh_text(update.destination.mesh));
        result->measured = seconds;
        snprintf(result->note, sizeof(result->note),
                 "%.0f bytes between ranks (%.1f GB/s per rank), %.0f within ranks, %d rounds", bytes[0],
                 bytes[0] / ctx->num_ranks / seconds * 1e-9, bytes[1], update.result.num_rounds);
    }
    update_close(&update);
    return st;
}
