/* Simulation of a schedule.
 *
 * A stage computes its steps in order. In the rendezvous exchanges it also has one or two lines of groups,
 * each line over a list of its steps: all of them (paired), or the forwards and the backwards (directions).
 * Group g of a line sends the output of the line's step g-1 and receives the input of its step g. It is
 * posted when the group before it is complete and step g-1 is computed, and complete when the peers have
 * posted the groups on their side. Stages advance in turns until all are finished or none can continue. */
#include "base/layout/rk_pipeline.h"

#include <inttypes.h>
#include <math.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

#define MAX_LINES RK_PIPELINE_KIND_COUNT
#define NOT_YET   (-1.0)

/* One line of groups of one stage. */
struct line {
    int64_t num_steps;
    int64_t *steps;     /* [num_steps] indices in the stage's list */
    double *posted;     /* [num_steps + 1], NOT_YET before */
    double *complete;   /* likewise */
    int64_t next_group; /* the first that is not complete */
};

struct simulation {
    const struct rk_pipeline_schedule *schedule;
    const struct rk_pipeline_costs *costs;
    rk_pipeline_exchange_t exchange;
    struct rk_pipeline_timeline *timeline;
    int num_lines;       /* of each stage; 0: buffered */
    struct line *lines;  /* [pp * MAX_LINES] */
    int64_t *next_step;  /* [pp] the first that is not computed */
    int64_t *index_of;   /* [pp, num_steps] index in the stage's list, by key_of */
    int64_t *ordinal_of; /* [pp, num_steps] index in the step's line */
    int64_t *indices;    /* storage of the lines' steps */
    double *times;       /* storage of the lines' times */
};

/* Steps by what they compute: 0 <= key < num_steps. */
static int64_t key_of(const struct simulation *sim, struct rk_pipeline_step step)
{
    int64_t chunk = step.chunk + (step.kind == RK_PIPELINE_BACKWARD ? sim->timeline->vpp : 0);

    return chunk * sim->schedule->num_micro_batches + step.micro_batch;
}

static int64_t at_stage(const struct simulation *sim, int32_t stage, int64_t step)
{
    RK_DCHECK(step < sim->timeline->num_steps);
    return stage * sim->timeline->num_steps + step;
}

static struct rk_pipeline_step step_at(const struct simulation *sim, int32_t stage, int64_t step)
{
    return sim->timeline->steps[at_stage(sim, stage, step)];
}

static struct line *line_of(const struct simulation *sim, int32_t stage, rk_pipeline_kind_t kind)
{
    return &sim->lines[stage * MAX_LINES + (sim->num_lines > 1 ? (int)kind : 0)];
}

/* Index of the peer's step on the other side of a message. */
static int64_t find_step(const struct simulation *sim, struct rk_pipeline_place place,
                         struct rk_pipeline_step like)
{
    like.chunk = place.chunk;
    return sim->index_of[at_stage(sim, place.stage, key_of(sim, like))];
}

/* When the peer posted the group that has the other side of a step's input (`offset` 1: it sends it) or
 * output (0: it receives it); NOT_YET. */
static double peer_posted(const struct simulation *sim, struct rk_pipeline_place peer,
                          struct rk_pipeline_step step, int offset)
{
    int64_t theirs = find_step(sim, peer, step);
    int64_t group = sim->ordinal_of[at_stage(sim, peer.stage, theirs)] + offset;

    return line_of(sim, peer.stage, step.kind)->posted[group];
}

/* Completion of one message of a group posted at `since`. */
static double meet(const struct simulation *sim, double since, double posted)
{
    return posted < 0 ? NOT_YET : fmax(since, posted) + sim->costs->transfer;
}

/* When group `group` of a line is complete; NOT_YET while a peer has not posted its side. */
static double complete_group(const struct simulation *sim, int32_t stage, const struct line *line,
                             int64_t group)
{
    double since = line->posted[group], sent = since, received = since;
    struct rk_pipeline_place peer;

    if (group > 0) {
        struct rk_pipeline_step step = step_at(sim, stage, line->steps[group - 1]);

        if (rk_pipeline_send_to(sim->schedule, stage, step, &peer))
            sent = meet(sim, since, peer_posted(sim, peer, step, 0));
    }
    if (group < line->num_steps) {
        struct rk_pipeline_step step = step_at(sim, stage, line->steps[group]);

        if (rk_pipeline_recv_from(sim->schedule, stage, step, &peer))
            received = meet(sim, since, peer_posted(sim, peer, step, 1));
    }
    return sent < 0 || received < 0 ? NOT_YET : fmax(sent, received);
}

/* Posts the line's next group when it can be; true when it is posted now. */
static bool post_group(const struct simulation *sim, int32_t stage, struct line *line)
{
    int64_t group = line->next_group;
    double since = group > 0 ? line->complete[group - 1] : 0;

    if (group > 0) {
        int64_t step = line->steps[group - 1];

        if (step >= sim->next_step[stage])
            return false;
        since = fmax(since, sim->timeline->end[at_stage(sim, stage, step)]);
    }
    line->posted[group] = since;
    return true;
}

static bool advance_line(const struct simulation *sim, int32_t stage, struct line *line)
{
    bool has_moved = false;

    while (line->next_group <= line->num_steps) {
        if (line->posted[line->next_group] < 0) {
            if (!post_group(sim, stage, line))
                break;
            has_moved = true;
        }
        line->complete[line->next_group] = complete_group(sim, stage, line, line->next_group);
        if (line->complete[line->next_group] < 0)
            break;
        line->next_group++;
        has_moved = true;
    }
    return has_moved;
}

/* When the input of a stage's step is there; NOT_YET. */
static double input_ready(const struct simulation *sim, int32_t stage, int64_t step)
{
    struct rk_pipeline_step at = step_at(sim, stage, step);
    struct rk_pipeline_place peer;
    int64_t theirs;

    if (sim->num_lines > 0)
        return line_of(sim, stage, at.kind)->complete[sim->ordinal_of[at_stage(sim, stage, step)]];
    if (!rk_pipeline_recv_from(sim->schedule, stage, at, &peer))
        return 0;
    theirs = find_step(sim, peer, at);
    if (theirs >= sim->next_step[peer.stage])
        return NOT_YET;
    return sim->timeline->end[at_stage(sim, peer.stage, theirs)] + sim->costs->transfer;
}

static void compute(const struct simulation *sim, int32_t stage, int64_t step, double since)
{
    const struct rk_pipeline_costs *costs = sim->costs;
    struct rk_pipeline_timeline *timeline = sim->timeline;
    struct rk_pipeline_step at = step_at(sim, stage, step);
    const double *of_kind = at.kind == RK_PIPELINE_FORWARD ? costs->forward : costs->backward;
    double cost = of_kind[stage * timeline->vpp + at.chunk];
    int64_t i = at_stage(sim, stage, step);

    if (costs->micro_batches)
        cost *= costs->micro_batches[at.micro_batch];
    timeline->begin[i] = since;
    timeline->end[i] = since + cost;
    timeline->busy += cost;
    timeline->total = fmax(timeline->total, timeline->end[i]);
}

static bool advance_steps(const struct simulation *sim, int32_t stage)
{
    int64_t *next = &sim->next_step[stage];
    bool has_moved = false;

    while (*next < sim->timeline->num_steps) {
        double ready = input_ready(sim, stage, *next);

        if (ready < 0)
            break;
        if (*next > 0)
            ready = fmax(ready, sim->timeline->end[at_stage(sim, stage, *next - 1)]);
        compute(sim, stage, *next, ready);
        ++*next;
        has_moved = true;
    }
    return has_moved;
}

/* Every step computed implies every group complete: the last groups only send to steps that are computed. */
static struct rk_status *report_deadlock(const struct simulation *sim)
{
    const struct rk_pipeline_timeline *timeline = sim->timeline;

    for (int32_t stage = 0; stage < timeline->pp; stage++) {
        int64_t step = sim->next_step[stage];
        struct rk_pipeline_step at;

        if (step == timeline->num_steps)
            continue;
        at = step_at(sim, stage, step);
        return RK_FAIL(
            RK_INTERNAL,
            "pipeline schedule with pp=%d vpp=%d and %d micro-batches deadlocks: stage %d waits before "
            "step %" PRId64 " of %" PRId64 ", %s of micro-batch %d, chunk %d",
            timeline->pp, timeline->vpp, sim->schedule->num_micro_batches, stage, step, timeline->num_steps,
            at.kind == RK_PIPELINE_FORWARD ? "forward" : "backward", at.micro_batch, at.chunk);
    }
    return NULL;
}

static struct rk_status *run(const struct simulation *sim)
{
    struct rk_pipeline_timeline *timeline = sim->timeline;
    bool has_moved = true;

    while (has_moved) {
        has_moved = false;
        for (int32_t stage = 0; stage < timeline->pp; stage++) {
            for (int i = 0; i < sim->num_lines; i++)
                has_moved |= advance_line(sim, stage, &sim->lines[stage * MAX_LINES + i]);
            has_moved |= advance_steps(sim, stage);
        }
    }
    RK_TRY(report_deadlock(sim));
    timeline->bubble = timeline->busy > 0 ? timeline->total * timeline->pp / timeline->busy - 1 : 0;
    return NULL;
}

static struct rk_status *check_cost(const char *name, double cost)
{
    if (!isfinite(cost) || cost < 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "pipeline costs: %s=%g, expected a finite number >= 0", name,
                       cost);
    return NULL;
}

static struct rk_status *check_costs(const struct rk_pipeline_schedule *schedule,
                                     const struct rk_pipeline_costs *costs, int64_t num_positions)
{
    RK_ASSERT(costs->forward != NULL);
    RK_ASSERT(schedule->forward_only || costs->backward != NULL);
    RK_TRY(check_cost("transfer", costs->transfer));
    for (int64_t i = 0; i < num_positions; i++) {
        RK_TRY(check_cost("forward", costs->forward[i]));
        if (!schedule->forward_only)
            RK_TRY(check_cost("backward", costs->backward[i]));
    }
    for (int32_t i = 0; costs->micro_batches && i < schedule->num_micro_batches; i++)
        RK_TRY(check_cost("micro_batches", costs->micro_batches[i]));
    return NULL;
}

static struct rk_status *create_timeline(struct rk_pipeline_timeline **out,
                                         const struct rk_pipeline_schedule *schedule)
{
    struct rk_pipeline_timeline *timeline = rk_calloc(1, sizeof(*timeline));
    size_t count;

    *out = timeline;
    timeline->pp = RK_MAX(schedule->pp, 1);
    timeline->vpp = RK_MAX(schedule->vpp, 1);
    timeline->num_steps = rk_pipeline_schedule_num_steps(schedule);
    count = (size_t)timeline->pp * (size_t)timeline->num_steps;
    RK_TRY(rk_try_alloc((void **)&timeline->steps, count * sizeof(*timeline->steps), "pipeline steps"));
    RK_TRY(rk_try_alloc((void **)&timeline->begin, count * sizeof(*timeline->begin), "pipeline steps"));
    RK_TRY(rk_try_alloc((void **)&timeline->end, count * sizeof(*timeline->end), "pipeline steps"));
    for (int32_t stage = 0; stage < timeline->pp; stage++)
        rk_pipeline_schedule_steps(schedule, stage, timeline->steps + stage * timeline->num_steps);
    return NULL;
}

/* Sorts a stage's steps into its lines. Each line has room for all steps. */
static void fill_lines(struct simulation *sim, int32_t stage)
{
    int64_t num_steps = sim->timeline->num_steps;

    for (int i = 0; i < MAX_LINES; i++) {
        int64_t at = (int64_t)stage * MAX_LINES + i;

        sim->lines[at] = (struct line){
            .steps = sim->indices + at * num_steps,
            .posted = sim->times + 2 * at * (num_steps + 1),
            .complete = sim->times + (2 * at + 1) * (num_steps + 1),
        };
    }
    for (int64_t step = 0; step < num_steps; step++) {
        struct line *line = line_of(sim, stage, step_at(sim, stage, step).kind);

        sim->index_of[at_stage(sim, stage, key_of(sim, step_at(sim, stage, step)))] = step;
        sim->ordinal_of[at_stage(sim, stage, step)] = line->num_steps;
        line->steps[line->num_steps++] = step;
    }
}

static struct rk_status *prepare(struct simulation *sim)
{
    static const int num_lines[RK_PIPELINE_EXCHANGE_COUNT] = {
        [RK_PIPELINE_BUFFERED] = 0, [RK_PIPELINE_DIRECTIONS] = 2, [RK_PIPELINE_PAIRED] = 1};
    size_t pp = (size_t)sim->timeline->pp, num_steps = (size_t)sim->timeline->num_steps;
    size_t num_times = pp * MAX_LINES * 2 * (num_steps + 1);

    sim->num_lines = num_lines[sim->exchange];
    RK_TRY(rk_try_alloc((void **)&sim->lines, pp * MAX_LINES * sizeof(*sim->lines), "pipeline simulation"));
    RK_TRY(rk_try_alloc((void **)&sim->next_step, pp * sizeof(*sim->next_step), "pipeline simulation"));
    RK_TRY(rk_try_alloc((void **)&sim->index_of, pp * num_steps * sizeof(*sim->index_of),
                        "pipeline simulation"));
    RK_TRY(rk_try_alloc((void **)&sim->ordinal_of, pp * num_steps * sizeof(*sim->ordinal_of),
                        "pipeline simulation"));
    RK_TRY(rk_try_alloc((void **)&sim->indices, pp * MAX_LINES * num_steps * sizeof(*sim->indices),
                        "pipeline simulation"));
    RK_TRY(rk_try_alloc((void **)&sim->times, num_times * sizeof(*sim->times), "pipeline simulation"));
    for (size_t i = 0; i < num_times; i++)
        sim->times[i] = NOT_YET;
    for (int32_t stage = 0; stage < sim->timeline->pp; stage++)
        fill_lines(sim, stage);
    return NULL;
}

struct rk_status *rk_pipeline_simulate(struct rk_pipeline_timeline **out,
                                       const struct rk_pipeline_schedule *schedule,
                                       const struct rk_pipeline_costs *costs, rk_pipeline_exchange_t exchange)
{
    struct simulation sim = {.schedule = schedule, .costs = costs, .exchange = exchange};
    struct rk_status *st;

    *out = NULL;
    RK_ASSERT(exchange < RK_PIPELINE_EXCHANGE_COUNT);
    RK_TRY(rk_pipeline_schedule_check(schedule));
    RK_TRY(check_costs(schedule, costs, (int64_t)RK_MAX(schedule->pp, 1) * RK_MAX(schedule->vpp, 1)));
    RK_TRY_GOTO(st, create_timeline(&sim.timeline, schedule), out);
    RK_TRY_GOTO(st, prepare(&sim), out);
    RK_TRY_GOTO(st, run(&sim), out);
    *out = sim.timeline;
    sim.timeline = NULL;

out:
    rk_pipeline_timeline_destroy(sim.timeline);
    rk_free(sim.lines);
    rk_free(sim.next_step);
    rk_free(sim.index_of);
    rk_free(sim.ordinal_of);
    rk_free(sim.indices);
    rk_free(sim.times);
    return st;
}

void rk_pipeline_timeline_destroy(struct rk_pipeline_timeline *timeline)
{
    if (!timeline)
        return;
    rk_free(timeline->steps);
    rk_free(timeline->begin);
    rk_free(timeline->end);
    rk_free(timeline);
}
