/* Threads as fibers, and the functions with which threads wait: conditions, joins, sleeps, clocks. The
 * functions that begin with __wrap_ replace those of libc and base/ (CMakeLists.txt). */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>

#include <grpc/support/time.h>

#include "base/rk_assert.h"
#include "base/rk_base.h"
#include "tests/unit/sim/sim.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

#define STACK_BYTES (256 << 10)
#define POOL_MAX    64

struct sim_fiber {
    struct sim_fiber *next;
    ucontext_t context;
    char *stack;
    struct sim_process *process;
    void *(*run)(void *user);
    void *user, *result;
    uint64_t sleep;        /* number of the current sleep; 0: not sleeping */
    const void *waits_for; /* a condition */
    bool is_woken, is_done;
    void *fake_stack, *tsan;
};

/* Stacks are reused. */
static char *pool[POOL_MAX];
static int num_pooled;

static ucontext_t scheduler;
static void *scheduler_tsan;
static const void *scheduler_stack;
static size_t scheduler_stack_bytes;
static uint64_t num_sleeps;

/* --- switching, with annotations for sanitizers --- */

static void before_switch(void **save, const void *stack, size_t bytes, void *tsan)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(save, stack, bytes);
#else
    (void)save;
    (void)stack;
    (void)bytes;
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(tsan, 0);
#else
    (void)tsan;
#endif
}

static void after_switch(void *saved, const void **stack, size_t *bytes)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(saved, stack, bytes);
#else
    (void)saved;
    (void)stack;
    (void)bytes;
#endif
}

static void free_fiber(struct sim_fiber *fiber)
{
#if defined(__SANITIZE_THREAD__)
    __tsan_destroy_fiber(fiber->tsan);
#endif
    if (num_pooled < POOL_MAX)
        pool[num_pooled++] = fiber->stack;
    else
        munmap(fiber->stack, STACK_BYTES);
}

static void switch_to(struct sim_fiber *fiber)
{
    void *saved = NULL;

    sim->current = fiber;
    before_switch(&saved, fiber->stack, STACK_BYTES, fiber->tsan);
    swapcontext(&scheduler, &fiber->context);
    after_switch(saved, NULL, NULL);
    sim->current = NULL;
    if (fiber->is_done)
        free_fiber(fiber);
}

static void switch_back(struct sim_fiber *fiber)
{
    before_switch(fiber->is_done ? NULL : &fiber->fake_stack, scheduler_stack, scheduler_stack_bytes,
                  scheduler_tsan);
    swapcontext(&fiber->context, &scheduler);
    after_switch(fiber->fake_stack, &scheduler_stack, &scheduler_stack_bytes);
}

static void begin(void)
{
    struct sim_fiber *fiber = sim->current;

    after_switch(NULL, &scheduler_stack, &scheduler_stack_bytes);
    fiber->result = fiber->run(fiber->user);
    fiber->is_done = true;
    for (struct sim_fiber *other = sim->fibers; other; other = other->next) {
        if (other->waits_for == fiber)
            sim_fiber_wake(other);
    }
    switch_back(fiber);
}

/* --- fibers --- */

static char *take_stack(void)
{
    char *stack;

    if (num_pooled > 0)
        return pool[--num_pooled];
    stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    RK_ASSERT(stack != MAP_FAILED);
    return stack;
}

static void resume(void *user, uint64_t sleep)
{
    struct sim_fiber *fiber = user;

    if (fiber->sleep != sleep || fiber->is_done)
        return; /* of a sleep that is over */
    switch_to(fiber);
}

struct sim_fiber *sim_fiber_start(struct sim_process *process, void *(*run)(void *user), void *user)
{
    struct sim_fiber *fiber = sim_alloc(sizeof(*fiber));

#if defined(__SANITIZE_THREAD__)
    scheduler_tsan = __tsan_get_current_fiber();
    fiber->tsan = __tsan_create_fiber(0);
#endif
    fiber->stack = take_stack();
    fiber->process = process;
    fiber->run = run;
    fiber->user = user;
    fiber->next = sim->fibers;
    sim->fibers = fiber;
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack;
    fiber->context.uc_stack.ss_size = STACK_BYTES;
    makecontext(&fiber->context, begin, 0);
    fiber->context.uc_stack.ss_size = 0; /* AddressSanitizer would clear its shadow memory at each switch */
    sim_at(process, 0, resume, fiber, 0);
    return fiber;
}

bool sim_fiber_sleep(int64_t until_ns)
{
    struct sim_fiber *fiber = sim->current;

    RK_ASSERT(fiber);
    fiber->is_woken = false;
    fiber->sleep = ++num_sleeps;
    if (until_ns < INT64_MAX)
        sim_at(fiber->process, RK_MAX(until_ns - sim->world.now_ns, 0), resume, fiber, fiber->sleep);
    switch_back(fiber);
    fiber->sleep = 0;
    fiber->waits_for = NULL;
    return fiber->is_woken;
}

void sim_fiber_wake(struct sim_fiber *fiber)
{
    if (fiber->sleep == 0 || fiber->is_woken)
        return;
    fiber->is_woken = true;
    /* Random delay, as with a kernel scheduler. */
    sim_at(fiber->process, sim_weather(0.001) ? sim_between_ns(1, 1500) : sim_random(50000), resume, fiber,
           fiber->sleep);
}

struct sim_process *sim_here(void)
{
    return sim->current ? sim->current->process : sim->acting;
}

void sim_fibers_end(void)
{
    for (struct sim_fiber *fiber = sim->fibers; fiber; fiber = fiber->next) {
        if (!fiber->is_done)
            fprintf(stderr, "seed %llu: a thread has not ended\n", (unsigned long long)sim->seed);
        RK_ASSERT(fiber->is_done);
    }
    sim->fibers = NULL;
}

/* --- threads --- */

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *user);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *user);
int __real_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_join(pthread_t thread, void **result);
int __real_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until);
int __wrap_pthread_cond_signal(pthread_cond_t *cond);
int __wrap_pthread_cond_broadcast(pthread_cond_t *cond);
int __real_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out);
gpr_timespec __real_gpr_now(gpr_clock_type clock);
gpr_timespec __wrap_gpr_now(gpr_clock_type clock);
void __wrap_rk_time_sleep_ms(int64_t ms);
struct rk_status *__wrap_rk_thread_check_room(int count, const char *what);
struct rk_status *__real_rk_random_bytes(void *out, size_t bytes);
struct rk_status *__wrap_rk_random_bytes(void *out, size_t bytes);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *user)
{
    struct sim_fiber *fiber;

    if (!sim)
        return __real_pthread_create(thread, attr, run, user);
    fiber = sim_fiber_start(sim_here(), run, user);
    memcpy(thread, &fiber, sizeof(fiber));
    return 0;
}

int __wrap_pthread_join(pthread_t thread, void **result)
{
    struct sim_fiber *fiber;

    if (!sim)
        return __real_pthread_join(thread, result);
    memcpy(&fiber, &thread, sizeof(fiber));
    while (!fiber->is_done) {
        RK_ASSERT(sim->current); /* an event cannot wait */
        sim->current->waits_for = fiber;
        sim_fiber_sleep(INT64_MAX);
    }
    if (result)
        *result = fiber->result;
    return 0;
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    if (!sim || !sim->current)
        return __real_pthread_mutex_lock(mutex);
    while (pthread_mutex_trylock(mutex) == EBUSY)
        sim_fiber_sleep(sim->world.now_ns + SIM_MS(1));
    return 0;
}

static bool wait_for(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t until_ns)
{
    bool is_woken;

    sim->current->waits_for = cond;
    pthread_mutex_unlock(mutex);
    is_woken = sim_fiber_sleep(until_ns);
    pthread_mutex_lock(mutex);
    return is_woken;
}

int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
{
    wait_for(cond, mutex, INT64_MAX);
    return 0;
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until)
{
    return wait_for(cond, mutex, (int64_t)until->tv_sec * 1000000000 + until->tv_nsec) ? 0 : ETIMEDOUT;
}

int __wrap_pthread_cond_broadcast(pthread_cond_t *cond)
{
    for (struct sim_fiber *fiber = sim->fibers; fiber; fiber = fiber->next) {
        if (fiber->waits_for == cond)
            sim_fiber_wake(fiber);
    }
    return 0;
}

int __wrap_pthread_cond_signal(pthread_cond_t *cond)
{
    return __wrap_pthread_cond_broadcast(cond); /* spurious wake-ups, which are allowed */
}

/* --- time and randomness --- */

int __wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
    if (!sim)
        return __real_clock_gettime(clock, out);
    *out = (struct timespec){sim->world.now_ns / 1000000000, sim->world.now_ns % 1000000000};
    return 0;
}

gpr_timespec __wrap_gpr_now(gpr_clock_type clock)
{
    if (!sim)
        return __real_gpr_now(clock);
    return (gpr_timespec){sim->world.now_ns / 1000000000, (int32_t)(sim->world.now_ns % 1000000000), clock};
}

void __wrap_rk_time_sleep_ms(int64_t ms)
{
    sim_fiber_sleep(sim->world.now_ns + SIM_MS(ms));
}

struct rk_status *__wrap_rk_thread_check_room(int count, const char *what)
{
    (void)count;
    (void)what;
    return NULL;
}

struct rk_status *__wrap_rk_random_bytes(void *out, size_t bytes)
{
    uint8_t *byte = out;

    if (!sim)
        return __real_rk_random_bytes(out, bytes);
    for (size_t i = 0; i < bytes; i++)
        byte[i] = (uint8_t)sim_random(256);
    return NULL;
}
