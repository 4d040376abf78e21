/* Training steps of models split over several ranks. dims: sequences, tokens of each, micro-batches of a
 * step, and the layers of the first and the last pipeline stage (0: as many as the other stages). */
#include "bench/training.h"

#include <stdio.h>

/* These steps take seconds: fewer runs than for other benchmarks. */
#define NUM_WARM  1
#define NUM_TIMED 3

static int num_timed(const struct bench_ctx *ctx)
{
    return ctx->options->is_tiny ? 1 : NUM_TIMED;
}

/* "tp=2 pp=2" */
static void format_layout(char *text, size_t bytes, const struct bench_layout *layout)
{
    const struct {
        const char *name;
        int32_t size;
    } axes[] = {{"tp", layout->tp}, {"cp", layout->cp},   {"dp", layout->dp},
                {"pp", layout->pp}, {"vpp", layout->vpp}, {"ep", layout->ep}};
    int used = 0;

    text[0] = '\0';
    for (size_t i = 0; i < RK_ARRAY_LEN(axes); i++) {
        if (axes[i].size > 1 && used < (int)bytes)
            used += snprintf(text + used, bytes - (size_t)used, "%s%s=%d", used > 0 ? " " : "", axes[i].name,
                             axes[i].size);
    }
}

static void describe(struct bench_result *result, struct bench_ctx *ctx, const struct bench_case *bench,
                     const struct bench_instance_desc *desc)
{
    const int64_t *dims = bench_dims(ctx, bench);
    char layout[48];

    format_layout(layout, sizeof(layout), &bench->layout);
    snprintf(result->shape, sizeof(result->shape), "%s %s, %lldx%lldx%lld tokens bf16, %s",
             bench_instance_shape(ctx, desc)->name, layout, (long long)RK_MAX(desc->num_micros, 1),
             (long long)dims[0], (long long)dims[1],
             desc->training == BENCH_WITH_OPTIMIZER ? "f32 masters" : "no step");
}

struct bench_instance_desc bench_layout_desc(const struct bench_ctx *ctx, const struct bench_case *bench)
{
    const int64_t *dims = bench_dims(ctx, bench);

    return (struct bench_instance_desc){.model = bench->model,
                                        .tp = bench->layout.tp,
                                        .cp = bench->layout.cp,
                                        .dp = bench->layout.dp,
                                        .pp = bench->layout.pp,
                                        .vpp = bench->layout.vpp,
                                        .ep = bench->layout.ep,
                                        .num_micros = dims[2],
                                        .num_first_layers = (int32_t)dims[3],
                                        .num_last_layers = (int32_t)dims[4],
                                        .max_positions = RK_MAX(dims[1], 4096),
                                        .training = BENCH_WITH_OPTIMIZER};
}

struct bench_cost bench_layout_cost(const struct bench_ctx *ctx, const struct bench_case *bench,
                                    const struct bench_instance_desc *desc)
{
    const int64_t *dims = bench_dims(ctx, bench);
    struct bench_cost cost = bench_cost_train(bench_instance_shape(ctx, desc), dims[0], dims[1]);
    double micros = (double)(RK_MAX(desc->num_micros, 1) * RK_MAX(desc->dp, 1));

    return (struct bench_cost){.flops = micros * cost.flops, .items = micros * cost.items};
}

/* Percentage of the data-sheet peak of all ranks. */
static double mfu(const struct bench_ctx *ctx, struct bench_cost cost, double seconds)
{
    return 100 * cost.flops / seconds / (ctx->num_ranks * BENCH_DATASHEET_H200);
}

/* target: the MFU to reach, in percent. */
static struct rk_status *run_steps(struct bench_ctx *ctx, const struct bench_case *bench,
                                   struct bench_result *result, struct bench_instance_desc desc, int target)
{
    struct bench_cost cost = bench_layout_cost(ctx, bench, &desc);
    double seconds, bound = cost.flops / (ctx->num_ranks * ctx->ceilings.flops);

    describe(result, ctx, bench, &desc);
    RK_TRY(bench_time_training(&seconds, ctx, bench, &desc, NUM_WARM, num_timed(ctx)));
    result->measured = cost.items / seconds;
    result->bound = bound > 0 ? cost.items / bound : 0;
    snprintf(result->note, sizeof(result->note), "%.1f ms, %.0f tok/s a device, MFU %.1f%% of 989 (must %d)",
             seconds * 1e3, cost.items / seconds / ctx->num_ranks, mfu(ctx, cost, seconds), target);
    return NULL;
}

struct rk_status *bench_run_layout_step(struct bench_ctx *ctx, const struct bench_case *bench,
                                        struct bench_result *result)
{
    return run_steps(ctx, bench, result, bench_layout_desc(ctx, bench), 38);
}

struct rk_status *bench_run_layout_fwd_bwd(struct bench_ctx *ctx, const struct bench_case *bench,
                                           struct bench_result *result)
{
    struct bench_instance_desc desc = bench_layout_desc(ctx, bench);

    desc.training = BENCH_GRADIENTS_ONLY;
    return run_steps(ctx, bench, result, desc, 25);
}

/* --- sequence parallelism --- */

/* Bytes per token that a layer saves for the backward pass, over all of its ranks: Korthikanti et al.,
 * arXiv:2205.05198, for a gated MLP, grouped-query attention and one saved statistic per head. The outputs of
 * the two norms (4 h) and silu(gate) * up (2 f) are recomputed, so they are not part of 8 h + 2 (2 a + 2 g) d
 * + 4 a + 6 f. */
static double kept_bytes(const struct bench_model *model)
{
    double heads = (double)model->num_heads, kv_heads = (double)model->num_kv_heads;

    return 4 * (double)model->hidden_size + 4 * (heads + kv_heads) * (double)model->head_dim + 4 * heads +
           4 * (double)model->intermediate_size;
}

struct kept {
    double seconds, activation_bytes, layer_bytes;
};

/* Seconds of a step, and peak activation memory of its passes. */
static struct rk_status *run_kept(double *seconds, double *bytes, struct bench_ctx *ctx,
                                  const struct bench_case *bench, const struct bench_instance_desc *desc)
{
    struct bench_training training;
    struct rk_status *st = bench_training_open(&training, ctx, bench_dims(ctx, bench), desc);

    if (!st)
        st = bench_time(seconds, NUM_WARM, num_timed(ctx), bench_training_run, &training);
    if (!st && !desc->num_layers)
        st = bench_print_profile(ctx, bench, bench_training_run, &training);
    if (!st)
        *bytes = (double)rk_model_get_memory(training.instance.model).activation_peak_bytes;
    bench_training_close(&training);
    return st;
}

/* Determines the memory of a layer from a second model with half of the layers. */
static struct rk_status *time_kept(struct kept *out, struct bench_ctx *ctx, const struct bench_case *bench,
                                   const struct bench_instance_desc *desc)
{
    int64_t num_layers = bench_instance_shape(ctx, desc)->num_layers;
    struct bench_instance_desc half = *desc;
    double seconds, bytes;

    half.num_layers = num_layers / 2;
    half.num_micros = 1;
    half.training = BENCH_GRADIENTS_ONLY;
    RK_TRY(run_kept(&out->seconds, &out->activation_bytes, ctx, bench, desc));
    RK_TRY(run_kept(&seconds, &bytes, ctx, bench, &half));
    out->layer_bytes = (out->activation_bytes - bytes) / (double)(num_layers - half.num_layers);
    return NULL;
}

struct rk_status *bench_run_sequence_parallel(struct bench_ctx *ctx, const struct bench_case *bench,
                                              struct bench_result *result)
{
    struct bench_instance_desc desc = bench_layout_desc(ctx, bench);
    struct bench_cost cost = bench_layout_cost(ctx, bench, &desc);
    double tokens = cost.items / (double)RK_MAX(desc.num_micros, 1);
    double counted = tokens * kept_bytes(bench_instance_shape(ctx, &desc)) / desc.tp;
    struct kept divided, whole;

    describe(result, ctx, bench, &desc);
    RK_TRY(time_kept(&divided, ctx, bench, &desc));
    desc.is_whole = true;
    RK_TRY(time_kept(&whole, ctx, bench, &desc));
    result->measured = whole.seconds / divided.seconds;
    snprintf(result->note, sizeof(result->note),
             "tok/s with sp %.0f (MFU %.1f%%), without %.0f; activations %.2f and %.2f GB; a layer with sp "
             "%.1f MB, %.3f of the count / %d (must 0.95 to 1.05), without %.1f MB",
             cost.items / divided.seconds, mfu(ctx, cost, divided.seconds), cost.items / whole.seconds,
             divided.activation_bytes * 1e-9, whole.activation_bytes * 1e-9, divided.layer_bytes * 1e-6,
             divided.layer_bytes / counted, desc.tp, whole.layer_bytes * 1e-6);
    return NULL;
}

/* --- context parallelism --- */

/* One rank has no memory for the activations of a long sequence: it recomputes every layer. Several ranks are
 * timed with and without recomputation. */
struct rk_status *bench_run_context_parallel(struct bench_ctx *ctx, const struct bench_case *bench,
                                             struct bench_result *result)
{
    struct bench_instance_desc desc = bench_layout_desc(ctx, bench);
    struct bench_cost cost = bench_layout_cost(ctx, bench, &desc);
    double alone, again, together;

    describe(result, ctx, bench, &desc);
    RK_TRY(bench_time_training(&together, ctx, bench, &desc, 1, 2));
    desc.recomputes = true;
    RK_TRY(bench_time_training(&again, ctx, bench, &desc, 1, 2));
    desc.cp = 1;
    RK_TRY(bench_time_training(&alone, ctx, bench, &desc, 1, 1)); /* each rank runs independently */
    result->measured = alone / together;
    snprintf(result->note, sizeof(result->note),
             "1 rank with recompute %.1f ms; cp=%d %.1f ms, %.0f tok/s, MFU %.1f%%; with recompute, too, "
             "%.1f ms, %.2fx",
             alone * 1e3, bench->layout.cp, together * 1e3, cost.items / together, mfu(ctx, cost, together),
             again * 1e3, alone / again);
    return NULL;
}
