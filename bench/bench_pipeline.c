/* Pipelines compared with the ideal time of their schedules. The time of every step of a stage is measured
 * while the stage runs alone: its messages go to a world that sends nothing (rk_comm_world_create_dry), so it
 * never waits, and computes on data received in earlier runs. dims: those of bench_layouts.c. */
#include "bench/training.h"

#include <math.h>
#include <stdio.h>

#include "base/rk_array.h"
#include "base/rk_assert.h"

#define NUM_WARM   1
#define NUM_TIMED  3
#define MAX_CHUNKS 16 /* over all stages */

static int num_timed(const struct bench_ctx *ctx)
{
    return ctx->options->is_tiny ? 1 : NUM_TIMED;
}

/* Seconds of a micro-batch in every chunk; chunk c of stage s is at [s * vpp + c]. */
struct chunk_times {
    double forward[MAX_CHUNKS], backward[MAX_CHUNKS];
};
_Static_assert(sizeof(struct chunk_times) <= RK_AGREE_BYTES, "they are exchanged as one");

/* --- a stage alone --- */

struct timed_step {
    struct rk_pipeline_step step;
    struct rk_event *begin, *end;
};

struct step_clock {
    struct bench_ctx *ctx;
    RK_ARRAY(struct timed_step) steps;
};

static void clock_clear(struct step_clock *timer)
{
    for (int64_t i = 0; i < timer->steps.count; i++) {
        rk_event_destroy(timer->steps.items[i].begin);
        rk_event_destroy(timer->steps.items[i].end);
    }
    timer->steps.count = 0;
}

static struct rk_status *note_step(void *user, struct rk_pipeline_step step, bool is_done)
{
    struct step_clock *timer = user;

    if (!is_done) {
        rk_array_append(&timer->steps, (struct timed_step){.step = step});
        RK_TRY(rk_event_create_timed(&timer->steps.items[timer->steps.count - 1].begin, timer->ctx->device));
        RK_TRY(rk_event_create_timed(&timer->steps.items[timer->steps.count - 1].end, timer->ctx->device));
    }
    RK_ASSERT(timer->steps.count > 0);
    return rk_event_record(is_done ? timer->steps.items[timer->steps.count - 1].end
                                   : timer->steps.items[timer->steps.count - 1].begin,
                           timer->ctx->stream);
}

static struct rk_status *add_up(struct chunk_times *times, const struct step_clock *timer, int32_t first,
                                int64_t num_micros)
{
    for (int64_t i = 0; i < timer->steps.count; i++) {
        const struct timed_step *timed = &timer->steps.items[i];
        double *of = timed->step.kind == RK_PIPELINE_FORWARD ? times->forward : times->backward;
        int64_t ns;

        RK_TRY(rk_event_elapsed_ns(&ns, timed->begin, timed->end));
        of[first + timed->step.chunk] += (double)ns * 1e-9 / (double)num_micros;
    }
    return NULL;
}

/* Computes the gradients of a step twice; the second run counts. */
static struct rk_status *run_alone(struct chunk_times *times, struct bench_ctx *ctx,
                                   struct bench_training *training, int32_t first)
{
    struct step_clock timer = {.ctx = ctx};
    struct rk_status *st = NULL;

    training->on_step = note_step;
    training->on_step_user = &timer;
    for (int i = 0; i < 2 && !st; i++) {
        clock_clear(&timer);
        st = bench_training_run(training);
    }
    training->on_step = NULL;
    if (!st)
        st = add_up(times, &timer, first, training->num_micros);
    clock_clear(&timer);
    rk_array_fini(&timer.steps);
    return st;
}

/* All-gathers the times that each rank has measured of its chunks. */
static struct rk_status *share(struct chunk_times *times, struct bench_ctx *ctx,
                               const struct bench_training *training)
{
    struct rk_comm_group *all = rk_mesh_comms_group(training->instance.comms, RK_GROUP_ALL);
    struct rk_status *st;
    void *scratch;

    RK_TRY(rk_device_alloc(ctx->device, &scratch, RK_AGREE_BYTES, "times of chunks"));
    st = rk_engine_sum(all, ctx->stream, scratch, (double *)times, sizeof(*times) / sizeof(double));
    rk_device_free(ctx->device, scratch);
    return st;
}

static struct rk_status *time_chunks(struct chunk_times *out, struct bench_ctx *ctx,
                                     struct bench_training *training, const struct bench_layout *layout)
{
    struct bench_instance *instance = &training->instance;
    struct rk_comm_world *plan = rk_comm_world_create_dry(ctx->rank, ctx->num_ranks);
    bool steps = training->steps;
    struct rk_mesh_comms *alone;
    struct rk_status *st;

    RK_ASSERT(layout->pp == ctx->num_ranks); /* so rank and stage are equal */
    RK_ASSERT(layout->pp * RK_MAX(layout->vpp, 1) <= MAX_CHUNKS);
    *out = (struct chunk_times){{0}, {0}};
    st = rk_mesh_comms_create(&alone, instance->mesh, plan);
    if (!st) {
        training->steps = false;
        rk_model_set_mesh(instance->model, alone);
        st = run_alone(out, ctx, training, ctx->rank * RK_MAX(layout->vpp, 1));
        rk_model_set_mesh(instance->model, instance->comms);
        training->steps = steps;
        rk_mesh_comms_destroy(alone);
    }
    rk_comm_world_destroy(plan);
    return st ? st : share(out, ctx, training);
}

/* --- 1F1B with uneven stages --- */

static double slowest_stage(const struct chunk_times *times, int32_t num_stages)
{
    double slowest = 0;

    for (int32_t s = 0; s < num_stages; s++)
        slowest = fmax(slowest, times->forward[s] + times->backward[s]);
    return slowest;
}

struct pipeline_times {
    double step, passes; /* with and without the optimizer */
    struct chunk_times chunks;
    int32_t num_layers[MAX_CHUNKS];
};

static struct rk_status *time_pipeline(struct pipeline_times *out, struct bench_ctx *ctx,
                                       const struct bench_case *bench, struct bench_training *training)
{
    RK_TRY(bench_time(&out->step, NUM_WARM, num_timed(ctx), bench_training_run, training));
    training->steps = false;
    RK_TRY(bench_time(&out->passes, 0, num_timed(ctx), bench_training_run, training));
    RK_TRY(bench_print_profile(ctx, bench, bench_training_run, training));
    return time_chunks(&out->chunks, ctx, training, &bench->layout);
}

/* " 15 layers 48.1+96.0 ms, 13 layers 47.2+95.9 ms" */
static void format_stages(char *text, size_t bytes, const struct pipeline_times *times,
                          const struct bench_instance_desc *desc, int64_t num_layers)
{
    int64_t middle = 0;
    int used = 0;

    if (desc->pp > 2)
        middle = (num_layers - desc->num_first_layers - desc->num_last_layers) / (desc->pp - 2);
    for (int32_t s = 0; s < desc->pp && used < (int)bytes; s++) {
        int64_t layers = s == 0 ? desc->num_first_layers : s == desc->pp - 1 ? desc->num_last_layers : middle;

        used += snprintf(text + used, bytes - (size_t)used, "%s %lld layers %.1f+%.1f", s > 0 ? "," : "",
                         (long long)layers, times->chunks.forward[s] * 1e3, times->chunks.backward[s] * 1e3);
    }
}

struct rk_status *bench_run_pipeline(struct bench_ctx *ctx, const struct bench_case *bench,
                                     struct bench_result *result)
{
    struct bench_instance_desc desc = bench_layout_desc(ctx, bench);
    const int64_t *dims = bench_dims(ctx, bench);
    double tokens = bench_layout_cost(ctx, bench, &desc).items, ideal;
    struct pipeline_times times = {0};
    struct bench_training training;
    char stages[120] = "";
    struct rk_status *st = bench_training_open(&training, ctx, dims, &desc);

    if (!st)
        st = time_pipeline(&times, ctx, bench, &training);
    bench_training_close(&training);
    RK_TRY(st);
    ideal = (double)(dims[2] + desc.pp - 1) * slowest_stage(&times.chunks, desc.pp);
    format_stages(stages, sizeof(stages), &times, &desc, bench_instance_shape(ctx, &desc)->num_layers);
    result->measured = tokens / times.step;
    result->bound = ideal > 0 ? tokens / ideal : 0;
    snprintf(result->shape, sizeof(result->shape), "%s pp=%d, %lldx%lldx%lld tokens bf16, f32 masters",
             bench_instance_shape(ctx, &desc)->name, desc.pp, (long long)dims[2], (long long)dims[0],
             (long long)dims[1]);
    snprintf(result->note, sizeof(result->note),
             "step %.1f ms, ideal %.1f: %.1f%% (must 93); without optimizer %.1f: %.1f%%; stages, ms:%s",
             times.step * 1e3, ideal * 1e3, 100 * ideal / times.step, times.passes * 1e3,
             100 * ideal / times.passes, stages);
    return NULL;
}

/* --- interleaved schedules --- */

/* Seconds of the gradients of a step, measured and simulated with the chunks' times. */
struct run_times {
    double measured, simulated;
};

static struct rk_status *simulate(double *seconds, const struct chunk_times *times,
                                  const struct bench_layout *layout, int64_t num_micros)
{
    const struct rk_pipeline_schedule schedule = {
        .pp = layout->pp, .vpp = layout->vpp, .num_micro_batches = (int32_t)num_micros};
    const struct rk_pipeline_costs costs = {.forward = times->forward, .backward = times->backward};
    struct rk_pipeline_timeline *timeline;

    RK_TRY(rk_pipeline_simulate(&timeline, &schedule, &costs, RK_PIPELINE_BUFFERED));
    *seconds = timeline->total;
    rk_pipeline_timeline_destroy(timeline);
    return NULL;
}

static struct rk_status *time_schedule(struct run_times *out, struct bench_ctx *ctx,
                                       const struct bench_case *bench, const struct bench_layout *layout)
{
    struct bench_instance_desc desc = bench_layout_desc(ctx, bench);
    const int64_t *dims = bench_dims(ctx, bench);
    struct bench_training training;
    struct chunk_times chunks;
    struct rk_status *st;

    desc.vpp = layout->vpp;
    desc.training = BENCH_GRADIENTS_ONLY;
    st = bench_training_open(&training, ctx, dims, &desc);
    if (!st)
        st = bench_time(&out->measured, NUM_WARM, num_timed(ctx), bench_training_run, &training);
    if (!st)
        st = bench_print_profile(ctx, bench, bench_training_run, &training);
    if (!st)
        st = time_chunks(&chunks, ctx, &training, layout);
    bench_training_close(&training);
    return st ? st : simulate(&out->simulated, &chunks, layout, dims[2]);
}

static double gain(double slower, double faster)
{
    return 100 * (slower / faster - 1);
}

struct rk_status *bench_run_interleaved(struct bench_ctx *ctx, const struct bench_case *bench,
                                        struct bench_result *result)
{
    struct bench_layout plain = {.pp = bench->layout.pp};
    const int64_t *dims = bench_dims(ctx, bench);
    struct run_times one, several;
    double expected;

    snprintf(result->shape, sizeof(result->shape), "%s pp=%d vpp=%d, %lldx%lldx%lld tokens bf16, no step",
             ctx->options->is_tiny ? bench_model_tiny_deep.name : bench->model->name, bench->layout.pp,
             bench->layout.vpp, (long long)dims[2], (long long)dims[0], (long long)dims[1]);
    RK_TRY(time_schedule(&one, ctx, bench, &plain));
    RK_TRY(time_schedule(&several, ctx, bench, &bench->layout));
    expected = gain(one.simulated, several.simulated);
    result->measured = gain(one.measured, several.measured);
    result->bound = RK_MAX(expected, 0);
    snprintf(result->note, sizeof(result->note),
             "1F1B %.1f ms, simulated %.1f; vpp=%d %.1f ms, simulated %.1f; gain %.2f%% of %.2f%% (must 60%% "
             "of it)",
             one.measured * 1e3, one.simulated * 1e3, bench->layout.vpp, several.measured * 1e3,
             several.simulated * 1e3, result->measured, expected);
    return NULL;
}
