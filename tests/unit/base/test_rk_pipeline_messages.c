/* Messages: every input arrives before its step, synchronous sends do not deadlock, and they cost little
 * time. */
#include "base/layout/rk_pipeline.h"

#include "base/rk_alloc.h"
#include "tests/support/test.h"

#define STAGES_MAX 8

/* State of the stages of a schedule and their messages. */
struct world {
    struct rk_pipeline_schedule schedule;
    int64_t num_steps;
    struct stage {
        struct rk_pipeline_message *messages;
        int64_t count;
        bool *is_done; /* [count] */
        int64_t step;  /* number of computed steps */
    } stages[STAGES_MAX];
};

static void world_init(struct world *world, struct rk_pipeline_schedule schedule)
{
    *world = (struct world){.schedule = schedule, .num_steps = rk_pipeline_schedule_num_steps(&schedule)};
    for (int32_t s = 0; s < schedule.pp; s++) {
        struct stage *stage = &world->stages[s];

        assert_ok(rk_pipeline_messages_create(&stage->messages, &stage->count, &schedule, s));
        stage->is_done = rk_calloc((size_t)stage->count + 1, sizeof(bool));
    }
}

static void world_fini(struct world *world)
{
    for (int32_t s = 0; s < world->schedule.pp; s++) {
        rk_free(world->stages[s].messages);
        rk_free(world->stages[s].is_done);
    }
}

/* The first unfinished message of `stage` to or from `peer` that is listed before the stage's current step;
 * -1: none. */
static int64_t find_open(const struct stage *stage, int32_t peer, bool is_send)
{
    for (int64_t i = 0; i < stage->count; i++) {
        const struct rk_pipeline_message *message = &stage->messages[i];

        if (message->before_step > stage->step)
            break;
        if (message->peer_stage == peer && message->is_send == is_send && !stage->is_done[i])
            return i;
    }
    return -1;
}

/* Completes a send and a receive when both stages have reached them: they must be the first of each stage and
 * have the same content. */
static bool exchange(struct world *world, int32_t from, int32_t to)
{
    struct stage *sender = &world->stages[from], *receiver = &world->stages[to];
    int64_t sent = find_open(sender, to, true), received = find_open(receiver, from, false);
    struct rk_pipeline_place source;

    if (sent < 0 || received < 0)
        return false;
    assert_true(rk_pipeline_recv_from(&world->schedule, to, receiver->messages[received].step, &source));
    assert_int_equal(source.stage, from);
    assert_int_equal(source.chunk, sender->messages[sent].step.chunk);
    assert_int_equal(sender->messages[sent].step.micro_batch, receiver->messages[received].step.micro_batch);
    assert_int_equal(sender->messages[sent].step.kind, receiver->messages[received].step.kind);
    sender->is_done[sent] = receiver->is_done[received] = true;
    return true;
}

/* Computes the next step if all messages before it are done. */
static bool compute(struct world *world, struct stage *stage)
{
    if (stage->step == world->num_steps)
        return false;
    for (int64_t i = 0; i < stage->count && stage->messages[i].before_step <= stage->step; i++) {
        if (!stage->is_done[i])
            return false;
    }
    stage->step++;
    return true;
}

/* The input of every step is received before it, the output is sent directly after it. */
static void check_places(const struct world *world, int32_t s)
{
    const struct stage *stage = &world->stages[s];
    struct rk_pipeline_step *steps = rk_calloc((size_t)world->num_steps, sizeof(*steps));
    struct rk_pipeline_place peer;
    int64_t expected = 0;

    rk_pipeline_schedule_steps(&world->schedule, s, steps);
    for (int64_t i = 0; i < world->num_steps; i++) {
        expected += rk_pipeline_recv_from(&world->schedule, s, steps[i], &peer);
        expected += rk_pipeline_send_to(&world->schedule, s, steps[i], &peer);
        for (int64_t k = 0; k < stage->count; k++) {
            const struct rk_pipeline_message *message = &stage->messages[k];

            if (message->step.kind != steps[i].kind || message->step.micro_batch != steps[i].micro_batch ||
                message->step.chunk != steps[i].chunk)
                continue;
            if (message->is_send)
                assert_int_equal(message->before_step, i + 1);
            else
                assert_true(message->before_step <= i);
        }
    }
    assert_int_equal(stage->count, expected);
    rk_free(steps);
}

static void run(struct rk_pipeline_schedule schedule)
{
    struct world world;
    bool has_moved = true;

    world_init(&world, schedule);
    for (int32_t s = 0; s < schedule.pp; s++)
        check_places(&world, s);
    while (has_moved) {
        has_moved = false;
        for (int32_t from = 0; from < schedule.pp; from++) {
            for (int32_t to = 0; to < schedule.pp; to++)
                has_moved |= exchange(&world, from, to);
            has_moved |= compute(&world, &world.stages[from]);
        }
    }
    for (int32_t s = 0; s < schedule.pp; s++) {
        const struct stage *stage = &world.stages[s];

        if (stage->step != world.num_steps)
            fail_msg("pp=%d vpp=%d m=%d forward_only=%d: stage %d stops at step %lld of %lld", schedule.pp,
                     schedule.vpp, schedule.num_micro_batches, schedule.forward_only, s,
                     (long long)stage->step, (long long)world.num_steps);
        for (int64_t i = 0; i < stage->count; i++)
            assert_true(stage->is_done[i]);
    }
    world_fini(&world);
}

static void run_if_possible(struct rk_pipeline_schedule schedule)
{
    struct rk_status *st = rk_pipeline_schedule_check(&schedule);

    if (!st)
        run(schedule);
    rk_status_free(st);
}

/* Goal: all schedules that the check accepts complete. */
static void test_pipeline_messages_all_schedules_end(void **state)
{
    (void)state;
    for (int32_t pp = 1; pp <= STAGES_MAX; pp++) {
        for (int32_t vpp = 1; vpp <= 4; vpp++) {
            for (int32_t m = 1; m <= 17; m++) {
                run_if_possible((struct rk_pipeline_schedule){.pp = pp, .vpp = vpp, .num_micro_batches = m});
                run_if_possible((struct rk_pipeline_schedule){
                    .pp = pp, .vpp = vpp, .num_micro_batches = m, .forward_only = true});
            }
        }
    }
}

/* Goal: in 1F1B a stage sends a result while it receives a gradient. */
static void test_pipeline_messages_of_1f1b_are_pairs(void **state)
{
    struct rk_pipeline_schedule schedule = {.pp = 2, .vpp = 1, .num_micro_batches = 3};
    /* F0 F1 B0 F2 B1 B2 */
    static const struct {
        int64_t before_step;
        bool is_send;
        int32_t micro_batch;
    } expected[] = {{1, true, 0}, {2, true, 1}, {2, false, 0}, {4, true, 2}, {4, false, 1}, {5, false, 2}};
    struct rk_pipeline_message *messages;
    int64_t count;

    (void)state;
    assert_ok(rk_pipeline_messages_create(&messages, &count, &schedule, 0));
    assert_int_equal(count, RK_ARRAY_LEN(expected));
    for (int64_t i = 0; i < count; i++) {
        assert_int_equal(messages[i].before_step, expected[i].before_step);
        assert_int_equal(messages[i].is_send, expected[i].is_send);
        assert_int_equal(messages[i].step.micro_batch, expected[i].micro_batch);
        assert_int_equal(messages[i].peer_stage, 1);
    }
    rk_free(messages);
}

/* --- in simulated time --- */

#define NOT_YET (-1.0)

/* A stage as in the engine: steps in order, and message groups in order, which overlap the steps. */
struct runner {
    struct rk_pipeline_step *steps;
    double *step_end;            /* [num_steps] */
    double *sent_begin, *arrive; /* [count], of the message's group: its begin and its end */
    int64_t next_step, next_message;
};

static double cost_of(const struct rk_pipeline_costs *costs, const struct rk_pipeline_schedule *schedule,
                      int32_t stage, struct rk_pipeline_step step)
{
    int32_t i = stage * schedule->vpp + step.chunk;

    return step.kind == RK_PIPELINE_FORWARD ? costs->forward[i] : costs->backward[i];
}

static int64_t group_end(const struct stage *stage, int64_t begin)
{
    int64_t end = begin;

    while (end < stage->count && stage->messages[end].before_step == stage->messages[begin].before_step)
        end++;
    return end;
}

/* Index of a message's counterpart in the list of the peer's stage. */
static int64_t find_other(const struct world *world, int32_t s, const struct rk_pipeline_message *message)
{
    const struct stage *other = &world->stages[message->peer_stage];
    struct rk_pipeline_place place;

    if (message->is_send)
        assert_true(rk_pipeline_send_to(&world->schedule, s, message->step, &place));
    else
        assert_true(rk_pipeline_recv_from(&world->schedule, s, message->step, &place));
    for (int64_t i = 0; i < other->count; i++) {
        const struct rk_pipeline_message *theirs = &other->messages[i];

        if (theirs->is_send != message->is_send && theirs->step.kind == message->step.kind &&
            theirs->step.micro_batch == message->step.micro_batch && theirs->step.chunk == place.chunk)
            return i;
    }
    fail_msg("nobody has the other side");
    return -1;
}

/* Begins the stage's next group of messages, or completes it when the peers have begun theirs. */
static bool advance_messages(const struct world *world, struct runner *runners, int32_t s)
{
    const struct stage *stage = &world->stages[s];
    struct runner *runner = &runners[s];
    int64_t begin = runner->next_message, end = begin < stage->count ? group_end(stage, begin) : begin;
    int64_t before = begin < end ? stage->messages[begin].before_step : 0;
    double time;

    if (begin == end || runner->next_step < before)
        return false;
    if (runner->sent_begin[begin] < 0) {
        time =
            RK_MAX(before > 0 ? runner->step_end[before - 1] : 0, begin > 0 ? runner->arrive[begin - 1] : 0);
        for (int64_t i = begin; i < end; i++)
            runner->sent_begin[i] = time;
        return true;
    }
    time = runner->sent_begin[begin];
    for (int64_t i = begin; i < end; i++) {
        const struct runner *other = &runners[stage->messages[i].peer_stage];
        double theirs = other->sent_begin[find_other(world, s, &stage->messages[i])];

        if (theirs < 0)
            return false;
        time = RK_MAX(time, theirs);
    }
    for (int64_t i = begin; i < end; i++)
        runner->arrive[i] = time;
    runner->next_message = end;
    return true;
}

static bool advance_step(const struct world *world, struct runner *runner, int32_t s,
                         const struct rk_pipeline_costs *costs)
{
    const struct stage *stage = &world->stages[s];
    int64_t i = runner->next_step;
    double begin;

    if (i == world->num_steps)
        return false;
    begin = i > 0 ? runner->step_end[i - 1] : 0;
    for (int64_t k = 0; k < stage->count; k++) {
        const struct rk_pipeline_message *message = &stage->messages[k];

        if (message->is_send || message->step.kind != runner->steps[i].kind ||
            message->step.micro_batch != runner->steps[i].micro_batch ||
            message->step.chunk != runner->steps[i].chunk)
            continue;
        if (runner->arrive[k] < 0)
            return false;
        begin = RK_MAX(begin, runner->arrive[k]);
    }
    runner->step_end[i] = begin + cost_of(costs, &world->schedule, s, runner->steps[i]);
    runner->next_step++;
    return true;
}

static double run_timed(struct rk_pipeline_schedule schedule, const struct rk_pipeline_costs *costs)
{
    struct runner runners[STAGES_MAX];
    bool has_moved = true;
    struct world world;
    double total = 0;

    world_init(&world, schedule);
    for (int32_t s = 0; s < schedule.pp; s++) {
        size_t count = (size_t)world.stages[s].count;

        runners[s] = (struct runner){.steps = rk_calloc((size_t)world.num_steps, sizeof(*runners[s].steps)),
                                     .step_end = rk_calloc((size_t)world.num_steps, sizeof(double)),
                                     .sent_begin = rk_calloc(count + 1, sizeof(double)),
                                     .arrive = rk_calloc(count + 1, sizeof(double))};
        rk_pipeline_schedule_steps(&schedule, s, runners[s].steps);
        for (size_t i = 0; i < count; i++)
            runners[s].sent_begin[i] = runners[s].arrive[i] = NOT_YET;
    }
    while (has_moved) {
        has_moved = false;
        for (int32_t s = 0; s < schedule.pp; s++) {
            has_moved |= advance_messages(&world, runners, s);
            has_moved |= advance_step(&world, &runners[s], s, costs);
        }
    }
    for (int32_t s = 0; s < schedule.pp; s++) {
        assert_int_equal(runners[s].next_step, world.num_steps);
        assert_int_equal(runners[s].next_message, world.stages[s].count);
        total = RK_MAX(total, runners[s].step_end[world.num_steps - 1]);
        rk_free(runners[s].steps);
        rk_free(runners[s].step_end);
        rk_free(runners[s].sent_begin);
        rk_free(runners[s].arrive);
    }
    world_fini(&world);
    return total;
}

static void check_time(struct rk_pipeline_schedule schedule, double backward, double head)
{
    double forward_costs[STAGES_MAX * 4], backward_costs[STAGES_MAX * 4], total;
    const struct rk_pipeline_costs costs = {.forward = forward_costs, .backward = backward_costs};
    int32_t count = schedule.pp * schedule.vpp;
    struct rk_pipeline_timeline *buffered;

    for (int32_t i = 0; i < count; i++) {
        forward_costs[i] = 1.0 / schedule.vpp + (i == count - 1 ? head : 0);
        backward_costs[i] = backward * forward_costs[i];
    }
    assert_ok(rk_pipeline_simulate(&buffered, &schedule, &costs, RK_PIPELINE_BUFFERED));
    total = run_timed(schedule, &costs);
    if (total < 0.999 * buffered->total || total > 1.03 * buffered->total)
        fail_msg("pp=%d vpp=%d m=%d, backward %g, head %g: %.3f, with buffers %.3f", schedule.pp,
                 schedule.vpp, schedule.num_micro_batches, backward, head, total, buffered->total);
    rk_pipeline_timeline_destroy(buffered);
}

/* Goal: if the durations of steps differ from those that the list of messages assumes, stages that wait only
 * for their inputs are hardly slower than with buffers for all messages. Method: the time of a run in which a
 * send waits for its receiver and messages follow one another. */
static void test_pipeline_messages_cost_little_time(void **state)
{
    static const double backwards[] = {1.5, 2, 2.5, 3}, heads[] = {0, 0.3, 0.6};

    (void)state;
    for (int32_t pp = 2; pp <= 4; pp++) {
        for (int32_t vpp = 1; vpp <= 4; vpp *= 2) {
            for (int32_t m = pp; m <= 4 * pp; m *= 2) {
                for (size_t i = 0; i < RK_ARRAY_LEN(backwards) * RK_ARRAY_LEN(heads); i++)
                    check_time((struct rk_pipeline_schedule){.pp = pp, .vpp = vpp, .num_micro_batches = m},
                               backwards[i / RK_ARRAY_LEN(heads)], heads[i % RK_ARRAY_LEN(heads)]);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pipeline_messages_cost_little_time),
        cmocka_unit_test(test_pipeline_messages_all_schedules_end),
        cmocka_unit_test(test_pipeline_messages_of_1f1b_are_pairs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
