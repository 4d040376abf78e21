#include "tests/support/stream_queue.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

struct entry {
    struct rk_test_task task;
    void *args; /* owned */
};

struct rk_test_queue {
    struct rk_stream *cpu;
    bool has_thread; /* started by the first task: processes that only fork others have none */
    pthread_t thread;
    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t moved;
    uint64_t num_added, num_done;
    struct entry entries[RK_TEST_QUEUE_MAX]; /* a ring */
    struct rk_status *error;                 /* the first one */
    bool is_ending;
};

static void lock(struct rk_test_queue *queue)
{
    RK_ASSERT(pthread_mutex_lock(&queue->lock) == 0);
}

static void unlock(struct rk_test_queue *queue)
{
    RK_ASSERT(pthread_mutex_unlock(&queue->lock) == 0);
}

static struct rk_status *run(struct rk_test_queue *queue, const struct entry *entry)
{
    struct rk_status *st = entry->task.run(queue->cpu, entry->args);

    if (entry->task.release)
        entry->task.release(entry->args);
    rk_free(entry->args);
    return st;
}

static void *queue_main(void *user)
{
    struct rk_test_queue *queue = user;
    struct rk_status *st;

    lock(queue);
    while (!queue->is_ending || queue->num_done < queue->num_added) {
        struct entry entry;

        if (queue->num_done == queue->num_added) {
            pthread_cond_wait(&queue->moved, &queue->lock);
            continue;
        }
        entry = queue->entries[queue->num_done % RK_TEST_QUEUE_MAX];
        unlock(queue);
        st = run(queue, &entry);
        lock(queue);
        if (queue->error)
            rk_status_free(st);
        else
            queue->error = st;
        queue->num_done++;
        pthread_cond_broadcast(&queue->moved);
    }
    unlock(queue);
    return NULL;
}

struct rk_test_queue *rk_test_queue_create(struct rk_stream *cpu)
{
    struct rk_test_queue *queue = rk_calloc(1, sizeof(*queue));

    queue->cpu = cpu;
    RK_ASSERT(pthread_mutex_init(&queue->lock, NULL) == 0);
    RK_ASSERT(pthread_cond_init(&queue->moved, NULL) == 0);
    return queue;
}

void rk_test_queue_destroy(struct rk_test_queue *queue)
{
    lock(queue);
    queue->is_ending = true;
    pthread_cond_broadcast(&queue->moved);
    unlock(queue);
    if (queue->has_thread)
        pthread_join(queue->thread, NULL);
    rk_status_free(queue->error);
    pthread_cond_destroy(&queue->moved);
    pthread_mutex_destroy(&queue->lock);
    rk_free(queue);
}

void rk_test_queue_add(struct rk_test_queue *queue, const struct rk_test_task *task)
{
    struct entry entry = {.task = *task, .args = rk_malloc(task->args_bytes)};

    memcpy(entry.args, task->args, task->args_bytes);
    lock(queue);
    if (!queue->has_thread)
        RK_ASSERT(pthread_create(&queue->thread, NULL, queue_main, queue) == 0);
    queue->has_thread = true;
    while (queue->num_added - queue->num_done == RK_TEST_QUEUE_MAX)
        pthread_cond_wait(&queue->moved, &queue->lock);
    queue->entries[queue->num_added++ % RK_TEST_QUEUE_MAX] = entry;
    pthread_cond_broadcast(&queue->moved);
    unlock(queue);
}

struct rk_status *rk_test_queue_sync(struct rk_test_queue *queue)
{
    struct rk_status *st;

    lock(queue);
    while (queue->num_done < queue->num_added)
        pthread_cond_wait(&queue->moved, &queue->lock);
    st = queue->error;
    queue->error = NULL;
    unlock(queue);
    return st;
}
