#include "base/rk_thread.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_fault.h"

static struct rk_status *no_thread(int error, const char *what)
{
    return RK_FAIL(RK_RESOURCE_EXHAUSTED, "cannot start the thread of the %s: %s", what, strerror(error));
}

struct rk_status *rk_thread_start(pthread_t *out, void *(*run)(void *user), void *user, const char *what)
{
    int rc = RK_FAULT("thread.start") ? EAGAIN : pthread_create(out, NULL, run, user);

    return rc == 0 ? NULL : no_thread(rc, what);
}

int rk_thread_num_cpus(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof(set), &set) != 0)
        return 1;
    return RK_MAX(CPU_COUNT(&set), 1);
}

static void *wait_for_gate(void *user)
{
    pthread_mutex_t *gate = user;

    rk_free(rk_malloc(1));    /* makes the allocator reserve its memory for this thread now */
    pthread_mutex_lock(gate); /* the threads wait until all have been started */
    pthread_mutex_unlock(gate);
    return NULL;
}

struct rk_status *rk_thread_check_room(int count, const char *what)
{
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    RK_ARRAY(pthread_t) threads = {0};
    pthread_t thread;
    int rc = RK_FAULT("thread.room") ? EAGAIN : 0;

    pthread_mutex_lock(&gate);
    while (rc == 0 && threads.count < count) {
        rc = pthread_create(&thread, NULL, wait_for_gate, &gate);
        if (rc == 0)
            rk_array_append(&threads, thread);
    }
    pthread_mutex_unlock(&gate);
    for (int64_t i = 0; i < threads.count; i++)
        pthread_join(threads.items[i], NULL);
    rk_array_fini(&threads);
    pthread_mutex_destroy(&gate);
    return rc == 0 ? NULL : no_thread(rc, what);
}
