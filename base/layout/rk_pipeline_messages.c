/* When a stage exchanges messages with the others. Derived from a simulation of the schedule, in
 * which a backward step takes as long as two forward steps and sends do not wait. A message that is
 * ready at time t is sent before the sender's next step, and received before the first step of the
 * receiver that does not begin before t. All messages before a step are exchanged together.
 *
 * No stage then waits without end, although a send waits for its receiver. Proof: assume that all messages
 * that are ready before t are exchanged. On both sides, a message of time t is preceded only by messages that
 * are ready before t and steps whose inputs were ready before t; so both sides reach it. */
#include "base/layout/rk_pipeline.h"

#include <stdlib.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_assert.h"

struct timed_message {
    struct rk_pipeline_message message;
    double ready;
};

static int compare(const void *a, const void *b)
{
    const struct timed_message *left = a, *right = b;

    if (left->message.before_step != right->message.before_step)
        return left->message.before_step < right->message.before_step ? -1 : 1;
    if (left->ready < right->ready || left->ready > right->ready)
        return left->ready < right->ready ? -1 : 1;
    return (int)right->message.is_send - (int)left->message.is_send;
}

static bool is_equal(struct rk_pipeline_step a, struct rk_pipeline_step b)
{
    return a.kind == b.kind && a.micro_batch == b.micro_batch && a.chunk == b.chunk;
}

/* Time at which a stage has computed a step. */
static double end_of(const struct rk_pipeline_timeline *timeline, int32_t stage, struct rk_pipeline_step step)
{
    int64_t first = stage * timeline->num_steps, i = first;

    while (!is_equal(timeline->steps[i], step))
        i++;
    RK_ASSERT(i < first + timeline->num_steps);
    return timeline->end[i];
}

/* The first step of a stage that does not begin before `ready`. */
static int64_t first_step_after(const struct rk_pipeline_timeline *timeline, int32_t stage, double ready)
{
    int64_t i = 0;

    while (i < timeline->num_steps && timeline->begin[stage * timeline->num_steps + i] < ready)
        i++;
    return i;
}

struct messages {
    RK_ARRAY(struct timed_message) list;
};

static void add_of_step(struct messages *messages, const struct rk_pipeline_schedule *schedule,
                        const struct rk_pipeline_timeline *timeline, int32_t stage, int64_t i)
{
    struct rk_pipeline_step step = timeline->steps[stage * timeline->num_steps + i];
    struct rk_pipeline_place peer;

    if (rk_pipeline_recv_from(schedule, stage, step, &peer)) {
        struct rk_pipeline_step sent = {step.kind, step.micro_batch, peer.chunk};
        double ready = end_of(timeline, peer.stage, sent);
        struct timed_message received = {
            {.before_step = first_step_after(timeline, stage, ready), .step = step, .peer_stage = peer.stage},
            ready};

        RK_ASSERT(received.message.before_step <= i);
        rk_array_append(&messages->list, received);
    }
    if (rk_pipeline_send_to(schedule, stage, step, &peer)) {
        struct timed_message sent = {
            {.before_step = i + 1, .is_send = true, .step = step, .peer_stage = peer.stage},
            timeline->end[stage * timeline->num_steps + i]};

        rk_array_append(&messages->list, sent);
    }
}

static struct rk_status *simulate(struct rk_pipeline_timeline **out,
                                  const struct rk_pipeline_schedule *schedule)
{
    int32_t count = RK_MAX(schedule->pp, 1) * RK_MAX(schedule->vpp, 1);
    double *forward = rk_calloc((size_t)count, sizeof(*forward));
    double *backward = rk_calloc((size_t)count, sizeof(*backward));
    struct rk_pipeline_costs costs = {.forward = forward, .backward = backward};
    struct rk_status *st;

    for (int32_t i = 0; i < count; i++) {
        forward[i] = 1;
        backward[i] = 2;
    }
    st = rk_pipeline_simulate(out, schedule, &costs, RK_PIPELINE_BUFFERED);
    rk_free(forward);
    rk_free(backward);
    return st;
}

struct rk_status *rk_pipeline_messages_create(struct rk_pipeline_message **out, int64_t *num_messages,
                                              const struct rk_pipeline_schedule *schedule, int32_t stage)
{
    struct messages messages = {.list = {0}};
    struct rk_pipeline_timeline *timeline;

    *out = NULL;
    *num_messages = 0;
    RK_TRY(simulate(&timeline, schedule));
    for (int64_t i = 0; i < timeline->num_steps; i++)
        add_of_step(&messages, schedule, timeline, stage, i);
    rk_pipeline_timeline_destroy(timeline);
    if (messages.list.count > 0)
        qsort(messages.list.items, (size_t)messages.list.count, sizeof(*messages.list.items), compare);
    *out = rk_calloc((size_t)messages.list.count + 1, sizeof(**out));
    for (int64_t i = 0; i < messages.list.count; i++)
        (*out)[i] = messages.list.items[i].message;
    *num_messages = messages.list.count;
    rk_array_fini(&messages.list);
    return NULL;
}
