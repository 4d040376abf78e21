/* Schedules in simulated time: bubbles, deadlocks, order of dependent steps, and the drawing. */
#include "base/layout/rk_pipeline.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_rng.h"
#include "base/rk_str.h"
#include "tests/support/test.h"

#define MAX_POSITIONS 64

static void assert_near(double actual, double expected, double tolerance)
{
    if (!(fabs(actual - expected) <= tolerance))
        fail_msg("%.17g, expected %.17g", actual, expected);
}

static void fill(double *costs, double value)
{
    for (int i = 0; i < MAX_POSITIONS; i++)
        costs[i] = value;
}

/* A timeline with equal chunks: forward takes 1 / vpp, backward 2 / vpp. */
static struct rk_pipeline_timeline *simulate_equal(const struct rk_pipeline_schedule *schedule,
                                                   rk_pipeline_exchange_t exchange)
{
    double forward[MAX_POSITIONS], backward[MAX_POSITIONS];
    struct rk_pipeline_costs costs = {.forward = forward, .backward = backward};
    struct rk_pipeline_timeline *timeline;

    fill(forward, 1.0 / RK_MAX(schedule->vpp, 1));
    fill(backward, 2.0 / RK_MAX(schedule->vpp, 1));
    assert_ok(rk_pipeline_simulate(&timeline, schedule, &costs, exchange));
    return timeline;
}

/* Goal: the bubble is (pp - 1) / (vpp * m), and total time m * (f + b) plus it. */
static void test_pipeline_simulate_bubble(void **state)
{
    static const struct rk_pipeline_schedule cases[] = {
        {.pp = 0, .num_micro_batches = 3},           {.pp = 2, .num_micro_batches = 4},
        {.pp = 4, .num_micro_batches = 8},           {.pp = 4, .num_micro_batches = 2},
        {.pp = 4, .vpp = 2, .num_micro_batches = 8}, {.pp = 4, .vpp = 4, .num_micro_batches = 8},
        {.pp = 2, .vpp = 2, .num_micro_batches = 4}, {.pp = 8, .vpp = 3, .num_micro_batches = 16},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_pipeline_timeline *timeline = simulate_equal(&cases[i], RK_PIPELINE_BUFFERED);
        int32_t pp = RK_MAX(cases[i].pp, 1), vpp = RK_MAX(cases[i].vpp, 1), m = cases[i].num_micro_batches;

        assert_near(timeline->bubble, (pp - 1) / ((double)vpp * m), 1e-12);
        assert_near(timeline->total, 3.0 * m * (1 + (pp - 1) / ((double)vpp * m)), 1e-9);
        assert_near(timeline->busy, 3.0 * m * pp, 1e-9);
        rk_pipeline_timeline_destroy(timeline);
    }
}

/* Goal: hand-computed times with different stages, micro-batches and transfers. */
static void test_pipeline_simulate_times(void **state)
{
    const struct rk_pipeline_schedule schedule = {.pp = 2, .num_micro_batches = 2};
    const double forward[] = {1, 3}, backward[] = {2, 4}, factors[] = {1, 2};
    const struct rk_pipeline_costs costs = {
        .forward = forward, .backward = backward, .micro_batches = factors, .transfer = 0.5};
    /* stage 0: F0 F1 B0 B1; stage 1: F0 B0 F1 B1 */
    const double begin[] = {0, 1, 9, 23, 1.5, 4.5, 8.5, 14.5}, end[] = {1, 3, 11, 27, 4.5, 8.5, 14.5, 22.5};
    struct rk_pipeline_timeline *timeline;

    (void)state;
    assert_ok(rk_pipeline_simulate(&timeline, &schedule, &costs, RK_PIPELINE_BUFFERED));
    assert_int_equal(timeline->num_steps, 4);
    for (int i = 0; i < 8; i++) {
        assert_near(timeline->begin[i], begin[i], 1e-12);
        assert_near(timeline->end[i], end[i], 1e-12);
    }
    assert_near(timeline->total, 27, 1e-12);
    assert_near(timeline->busy, 30, 1e-12);
    assert_near(timeline->bubble, 54.0 / 30 - 1, 1e-12);
    rk_pipeline_timeline_destroy(timeline);
}

/* Goal: the simulation detects deadlocks. An interleaved stage sends before the other side has reached its
 * receive, so one sequence of groups for both directions deadlocks; one sequence per direction does not. */
static void test_pipeline_simulate_deadlock(void **state)
{
    static const struct rk_pipeline_schedule cases[] = {
        {.pp = 2, .vpp = 2, .num_micro_batches = 4},
        {.pp = 4, .vpp = 2, .num_micro_batches = 8},
        {.pp = 3, .vpp = 3, .num_micro_batches = 6},
    };
    double ones[MAX_POSITIONS];
    const struct rk_pipeline_costs costs = {.forward = ones, .backward = ones};
    struct rk_pipeline_timeline *timeline;

    (void)state;
    fill(ones, 1);
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        assert_fails(rk_pipeline_simulate(&timeline, &cases[i], &costs, RK_PIPELINE_PAIRED), RK_INTERNAL,
                     "deadlocks");
        assert_null(timeline);
        assert_ok(rk_pipeline_simulate(&timeline, &cases[i], &costs, RK_PIPELINE_DIRECTIONS));
        rk_pipeline_timeline_destroy(timeline);
    }
}

/* Goal: with equal chunks, one sequence per direction takes no longer than buffered sends. */
static void test_pipeline_simulate_directions_cost_nothing(void **state)
{
    (void)state;
    for (int32_t pp = 1; pp <= 6; pp++) {
        for (int32_t vpp = 1; vpp <= (pp > 1 ? 3 : 1); vpp++) {
            for (int32_t groups = 1; groups <= 4; groups++) {
                const struct rk_pipeline_schedule schedule = {
                    .pp = pp, .vpp = vpp, .num_micro_batches = groups * pp};
                struct rk_pipeline_timeline *timeline = simulate_equal(&schedule, RK_PIPELINE_DIRECTIONS);

                assert_near(timeline->bubble, (pp - 1) / ((double)vpp * groups * pp), 1e-9);
                rk_pipeline_timeline_destroy(timeline);
            }
        }
    }
}

static void test_pipeline_simulate_refused_costs(void **state)
{
    const struct rk_pipeline_schedule schedule = {.pp = 2, .num_micro_batches = 2};
    const double good[] = {1, 1}, bad[] = {1, NAN}, negative[] = {-1, 1};
    struct rk_pipeline_timeline *timeline;
    struct rk_pipeline_costs costs[] = {
        {.forward = bad, .backward = good},
        {.forward = good, .backward = negative},
        {.forward = good, .backward = good, .micro_batches = bad},
        {.forward = good, .backward = good, .transfer = INFINITY},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(costs); i++) {
        assert_fails(rk_pipeline_simulate(&timeline, &schedule, &costs[i], RK_PIPELINE_BUFFERED),
                     RK_INVALID_ARGUMENT, "pipeline costs");
        assert_null(timeline);
    }
}

/* Index of a step in a stage's list. */
static int64_t find(const struct rk_pipeline_timeline *timeline, struct rk_pipeline_place place,
                    struct rk_pipeline_step like)
{
    for (int64_t i = place.stage * timeline->num_steps; i < (place.stage + 1) * timeline->num_steps; i++) {
        const struct rk_pipeline_step *at = &timeline->steps[i];

        if (at->kind == like.kind && at->micro_batch == like.micro_batch && at->chunk == place.chunk)
            return i;
    }
    fail_msg("stage %d has no such step", place.stage);
    return -1;
}

/* A stage computes one step at a time, after its input and after the forward whose activations it uses. */
static void check_timeline(const struct rk_pipeline_timeline *timeline,
                           const struct rk_pipeline_schedule *schedule, double transfer)
{
    for (int32_t stage = 0; stage < timeline->pp; stage++) {
        for (int64_t i = 0; i < timeline->num_steps; i++) {
            int64_t at = stage * timeline->num_steps + i;
            struct rk_pipeline_step step = timeline->steps[at];
            struct rk_pipeline_place peer;

            if (i > 0)
                assert_true(timeline->begin[at] >= timeline->end[at - 1]);
            if (rk_pipeline_recv_from(schedule, stage, step, &peer))
                assert_true(timeline->begin[at] >= timeline->end[find(timeline, peer, step)] + transfer);
            if (step.kind == RK_PIPELINE_FORWARD)
                continue;
            step.kind = RK_PIPELINE_FORWARD;
            peer = (struct rk_pipeline_place){stage, step.chunk};
            assert_true(timeline->begin[at] >= timeline->end[find(timeline, peer, step)]);
        }
    }
}

struct random_case {
    struct rk_pipeline_schedule schedule;
    struct rk_pipeline_costs costs;
    double forward[MAX_POSITIONS], backward[MAX_POSITIONS], factors[MAX_POSITIONS];
};

static void draw_case(struct random_case *c, struct rk_rng *rng)
{
    c->schedule = (struct rk_pipeline_schedule){
        .pp = 1 + (int32_t)rk_rng_next_below(rng, 6),
        .vpp = 1 + (int32_t)rk_rng_next_below(rng, 4),
        .num_micro_batches = 1 + (int32_t)rk_rng_next_below(rng, 12),
        .forward_only = rk_rng_next_below(rng, 5) == 0,
    };
    if (c->schedule.pp == 1)
        c->schedule.vpp = 1;
    if (rk_rng_next_below(rng, 2))
        c->schedule.group_size = c->schedule.pp + (int32_t)rk_rng_next_below(rng, 3);
    if (!c->schedule.forward_only)
        c->schedule.num_micro_batches = rk_pipeline_round_micro_batches(
            c->schedule.num_micro_batches, c->schedule.pp, c->schedule.vpp, c->schedule.group_size);
    for (int i = 0; i < MAX_POSITIONS; i++) {
        c->forward[i] = rk_rng_next_uniform(rng);
        c->backward[i] = 2 * rk_rng_next_uniform(rng);
        c->factors[i] = rk_rng_next_below(rng, 8) ? rk_rng_next_uniform(rng) : 0;
    }
    c->costs =
        (struct rk_pipeline_costs){.forward = c->forward,
                                   .backward = c->backward,
                                   .micro_batches = c->factors,
                                   .transfer = rk_rng_next_below(rng, 2) ? rk_rng_next_uniform(rng) / 4 : 0};
}

/* The exchanges that the header guarantees not to deadlock. */
static bool may_use(const struct rk_pipeline_schedule *schedule, rk_pipeline_exchange_t exchange)
{
    bool is_usual_group = schedule->group_size == 0 || schedule->group_size == schedule->pp;

    if (exchange == RK_PIPELINE_BUFFERED || schedule->vpp <= 1)
        return true;
    return exchange == RK_PIPELINE_DIRECTIONS && is_usual_group;
}

/* Goal: no sizes and durations make a schedule deadlock or violate its order, with any exchange that it may
 * use. */
static void test_pipeline_simulate_random_durations(void **state)
{
    struct rk_rng rng;

    (void)state;
    rk_rng_init(&rng, rk_test_seed(), 3);
    for (int i = 0; i < 1000; i++) {
        struct random_case c;
        double buffered = 0;

        draw_case(&c, &rng);
        for (int exchange = 0; exchange < RK_PIPELINE_EXCHANGE_COUNT; exchange++) {
            struct rk_pipeline_timeline *timeline;

            if (!may_use(&c.schedule, (rk_pipeline_exchange_t)exchange))
                continue;
            assert_ok(
                rk_pipeline_simulate(&timeline, &c.schedule, &c.costs, (rk_pipeline_exchange_t)exchange));
            check_timeline(timeline, &c.schedule, c.costs.transfer);
            if (exchange == RK_PIPELINE_BUFFERED)
                buffered = timeline->total;
            /* waiting for the receiver never makes anything earlier */
            assert_true(timeline->total >= buffered - 1e-9);
            rk_pipeline_timeline_destroy(timeline);
        }
    }
}

static char *picture(const struct rk_pipeline_schedule *schedule, int32_t max_columns)
{
    struct rk_pipeline_timeline *timeline = simulate_equal(schedule, RK_PIPELINE_BUFFERED);
    struct rk_str text = {0};

    rk_pipeline_format(&text, timeline, max_columns);
    rk_pipeline_timeline_destroy(timeline);
    return rk_str_take(&text);
}

static void test_pipeline_format_picture(void **state)
{
    char *text = picture(&(struct rk_pipeline_schedule){.pp = 2, .num_micro_batches = 3}, 80);

    (void)state;
    assert_string_equal(text, "stage 0  F0-F1-......B0====F2-B1====...B2====\n"
                              "stage 1  ...F0-B0====F1-B1====F2-B2====......\n");
    rk_free(text);
    text = picture(&(struct rk_pipeline_schedule){.pp = 2, .num_micro_batches = 3}, 29);
    assert_string_equal(text, "stage 0  F0-F1-......B0====F2\n"
                              "stage 1  ...F0-B0====F1-B1===\n"
                              "(shown: the first 56% of the time)\n");
    rk_free(text);
    text = picture(&(struct rk_pipeline_schedule){.pp = 2, .vpp = 2, .num_micro_batches = 2}, 100);
    assert_string_equal(
        text, "stage 0  F0.0-F1.0-F0.1-F1.1-..........B0.1======.....B1.1======B0.0======B1.0======\n"
              "stage 1  .....F0.0-F1.0-F0.1-B0.1======F1.1-B1.1======B0.0======B1.0======..........\n");
    rk_free(text);
}

/* Goal: steps that take no time are not drawn and do not divide by zero. */
static void test_pipeline_format_without_time(void **state)
{
    const struct rk_pipeline_schedule schedule = {.pp = 2, .num_micro_batches = 2, .forward_only = true};
    const double costs_of[] = {0, 0};
    const struct rk_pipeline_costs costs = {.forward = costs_of};
    struct rk_pipeline_timeline *timeline;
    struct rk_str text = {0};

    (void)state;
    assert_ok(rk_pipeline_simulate(&timeline, &schedule, &costs, RK_PIPELINE_BUFFERED));
    assert_near(timeline->bubble, 0, 0);
    rk_pipeline_format(&text, timeline, 80);
    assert_string_equal(rk_str_text(&text), "stage 0  \nstage 1  \n");
    rk_str_fini(&text);
    rk_pipeline_timeline_destroy(timeline);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pipeline_simulate_bubble),
        cmocka_unit_test(test_pipeline_simulate_times),
        cmocka_unit_test(test_pipeline_simulate_deadlock),
        cmocka_unit_test(test_pipeline_simulate_directions_cost_nothing),
        cmocka_unit_test(test_pipeline_simulate_refused_costs),
        cmocka_unit_test(test_pipeline_simulate_random_durations),
        cmocka_unit_test(test_pipeline_format_picture),
        cmocka_unit_test(test_pipeline_format_without_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
