/* Pending work of a stream of the tests' device (graph_device.h): a queue, and a thread that executes it in
 * order. As on a GPU the queue is bounded: adding to a full one blocks. */
#ifndef RK_TEST_STREAM_QUEUE_H
#define RK_TEST_STREAM_QUEUE_H

#include <stddef.h>

#include "kernels/rk_device.h"

RK_BEGIN_DECLS

#define RK_TEST_QUEUE_MAX 1000

/* A task. `args` is copied; `release` (may be NULL) is called with the copy when it is not
 * needed any more. */
struct rk_test_task {
    struct rk_status *(*run)(struct rk_stream *cpu_stream, const void *args);
    void (*release)(const void *args);
    const void *args;
    size_t args_bytes;
};

struct rk_test_queue;

/* Tasks run on `cpu`, which must outlive it. */
struct rk_test_queue *rk_test_queue_create(struct rk_stream *cpu);
/* Waits until all tasks are done. */
void rk_test_queue_destroy(struct rk_test_queue *queue);
void rk_test_queue_add(struct rk_test_queue *queue, const struct rk_test_task *task);
/* Waits until all tasks are done. Returns the first error since the last call. */
struct rk_status *rk_test_queue_sync(struct rk_test_queue *queue) RK_NODISCARD;

RK_END_DECLS

#endif
