/* Thread pool for copies and reads: one thread does not saturate memory channels, disks or links. */
#include "engine/ckpt/state_internal.h"

#include "base/rk_alloc.h"
#include "base/rk_thread.h"

/* More threads do not raise the bandwidth of a memory channel. */
#define THREADS_MAX 8

struct rk_pool {
    pthread_t threads[THREADS_MAX];
    int32_t num_threads;
    pthread_mutex_t lock; /* guards the fields below, and is_done of the tasks */
    pthread_cond_t has_work, has_finished;
    struct rk_pool_task *first, *last;
    bool is_stopping;
};

static struct rk_pool_task *take_task(struct rk_pool *pool)
{
    struct rk_pool_task *task = pool->first;

    if (task)
        pool->first = task->next;
    return task;
}

static void *thread_main(void *user)
{
    struct rk_pool *pool = user;

    pthread_mutex_lock(&pool->lock);
    for (;;) {
        struct rk_pool_task *task = take_task(pool);

        if (!task && pool->is_stopping)
            break;
        if (!task) {
            pthread_cond_wait(&pool->has_work, &pool->lock);
            continue;
        }
        pthread_mutex_unlock(&pool->lock);
        task->run(task->user);
        pthread_mutex_lock(&pool->lock);
        task->is_done = true;
        pthread_cond_broadcast(&pool->has_finished);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

/* Half of the cores: daemons of other devices on the host copy at the same time. */
static int32_t wanted_threads(void)
{
    return RK_MIN(RK_MAX(rk_thread_num_cpus() / 2, 1), THREADS_MAX);
}

struct rk_status *rk_pool_create(struct rk_pool **out)
{
    struct rk_pool *pool = rk_calloc(1, sizeof(*pool));
    struct rk_status *st = NULL;

    *out = NULL;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->has_work, NULL);
    pthread_cond_init(&pool->has_finished, NULL);
    while (!st && pool->num_threads < wanted_threads()) {
        st = rk_thread_start(&pool->threads[pool->num_threads], thread_main, pool, "checkpoint copies");
        pool->num_threads += st == NULL;
    }
    if (st && pool->num_threads == 0) {
        rk_pool_destroy(pool);
        return st;
    }
    rk_status_free(st); /* the pool works with fewer threads */
    *out = pool;
    return NULL;
}

void rk_pool_destroy(struct rk_pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->is_stopping = true;
    pthread_cond_broadcast(&pool->has_work);
    pthread_mutex_unlock(&pool->lock);
    for (int32_t i = 0; i < pool->num_threads; i++)
        pthread_join(pool->threads[i], NULL);
    pthread_mutex_destroy(&pool->lock);
    pthread_cond_destroy(&pool->has_work);
    pthread_cond_destroy(&pool->has_finished);
    rk_free(pool);
}

void rk_pool_submit(struct rk_pool *pool, struct rk_pool_task *task)
{
    pthread_mutex_lock(&pool->lock);
    task->is_done = false;
    task->next = NULL;
    if (pool->first)
        pool->last->next = task;
    else
        pool->first = task;
    pool->last = task;
    pthread_cond_signal(&pool->has_work);
    pthread_mutex_unlock(&pool->lock);
}

void rk_pool_wait(struct rk_pool *pool, struct rk_pool_task *task)
{
    pthread_mutex_lock(&pool->lock);
    while (!task->is_done)
        pthread_cond_wait(&pool->has_finished, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}
