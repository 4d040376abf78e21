/* Completion queues, and gRPC's initialization and shutdown. */
#include <grpc/grpc.h>
#include <grpc/support/time.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "tests/unit/sim/core.h"

void __wrap_grpc_init(void);
void __wrap_grpc_shutdown(void);
void __wrap_grpc_shutdown_blocking(void);
grpc_completion_queue *__wrap_grpc_completion_queue_create_for_next(void *reserved);
grpc_event __wrap_grpc_completion_queue_next(grpc_completion_queue *queue, gpr_timespec deadline,
                                             void *reserved);
void __wrap_grpc_completion_queue_shutdown(grpc_completion_queue *queue);
void __wrap_grpc_completion_queue_destroy(grpc_completion_queue *queue);

/* The test has called the real function, for slices and buffers. */
void __wrap_grpc_init(void)
{
}

void __wrap_grpc_shutdown(void)
{
}

void __wrap_grpc_shutdown_blocking(void)
{
}

grpc_completion_queue *__wrap_grpc_completion_queue_create_for_next(void *reserved)
{
    grpc_completion_queue *queue = rk_calloc(1, sizeof(*queue));

    (void)reserved;
    queue->process = sim_here();
    queue->end = &queue->first;
    return queue;
}

void sim_queue_expect(grpc_completion_queue *queue)
{
    RK_ASSERT(!queue->is_shutdown);
    queue->num_pending++;
}

void sim_queue_complete(grpc_completion_queue *queue, void *tag, bool ok)
{
    struct sim_completion *completion = sim_alloc(sizeof(*completion));

    *completion = (struct sim_completion){.tag = tag, .ok = ok};
    *queue->end = completion;
    queue->end = &completion->next;
    if (queue->waiter)
        sim_fiber_wake(queue->waiter);
}

static int64_t ns_of(gpr_timespec time)
{
    if (gpr_time_cmp(time, gpr_inf_future(time.clock_type)) == 0)
        return INT64_MAX;
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static grpc_event take(grpc_completion_queue *queue)
{
    struct sim_completion *completion = queue->first;

    queue->first = completion->next;
    if (!queue->first)
        queue->end = &queue->first;
    queue->num_pending--;
    return (grpc_event){.type = GRPC_OP_COMPLETE, .success = completion->ok, .tag = completion->tag};
}

grpc_event __wrap_grpc_completion_queue_next(grpc_completion_queue *queue, gpr_timespec deadline,
                                             void *reserved)
{
    int64_t deadline_ns = ns_of(deadline);

    (void)reserved;
    while (!queue->first) {
        if (queue->is_shutdown && queue->num_pending == 0)
            return (grpc_event){.type = GRPC_QUEUE_SHUTDOWN};
        if (sim->world.now_ns >= deadline_ns)
            return (grpc_event){.type = GRPC_QUEUE_TIMEOUT};
        RK_ASSERT(!queue->waiter);
        queue->waiter = sim->current;
        sim_fiber_sleep(deadline_ns);
        queue->waiter = NULL;
    }
    return take(queue);
}

void __wrap_grpc_completion_queue_shutdown(grpc_completion_queue *queue)
{
    queue->is_shutdown = true;
    if (queue->waiter)
        sim_fiber_wake(queue->waiter);
}

void __wrap_grpc_completion_queue_destroy(grpc_completion_queue *queue)
{
    RK_ASSERT(queue->is_shutdown);
    RK_ASSERT(queue->num_pending == 0);
    rk_free(queue);
}
