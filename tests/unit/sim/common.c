#include "tests/unit/sim/common.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/rk_env.h"
#include "base/rk_str.h"
#include "base/rk_time.h"
#include "daemon/daemon_internal.h"
#include "daemon/feed_internal.h"
#include "daemon/operation_internal.h"
#include "daemon/rpc/watch.h"
#include "tests/support/test.h"

static struct sim_world *current;

void sim_world_begin(struct sim_world *world, uint64_t seed)
{
    current = world;
    world->has_faults = true;
    world->now_ns = SIM_MS(1000);
    rk_rng_init(&world->rng, seed, 0x73696dULL);
    rk_time_inject(&world->now_ns);
}

void sim_world_end(struct sim_world *world)
{
    rk_time_inject(NULL);
    rk_test_agenda_fini(&world->agenda);
    current = NULL;
}

void sim_fail(const char *fmt, ...)
{
    va_list args;

    if (current->failure[0])
        return; /* the first failure is the most informative */
    va_start(args, fmt);
    vsnprintf(current->failure, sizeof(current->failure), fmt, args);
    va_end(args);
}

bool sim_chance(double probability)
{
    return current->has_faults && rk_rng_next_uniform(&current->rng) < probability;
}

int64_t sim_between_ns(int64_t from_ms, int64_t to_ms)
{
    return SIM_MS(from_ms) + (int64_t)(rk_rng_next_uniform(&current->rng) * (double)SIM_MS(to_ms - from_ms));
}

int64_t sim_number(const char *name, int64_t fallback)
{
    const char *text = rk_env(name);
    int64_t value = fallback;

    if (text && !rk_parse_i64(text, &value))
        fail_msg("%s=%s, expected a number", name, text);
    return value;
}

void sim_check_order(int32_t rank, const struct rk_operation *operation, uint64_t *epoch, uint64_t *seq)
{
    if (operation->epoch < *epoch)
        sim_fail("rank %d runs a call of epoch %d after one of epoch %d", rank, (int)operation->epoch,
                 (int)*epoch);
    if (operation->epoch > *epoch)
        *seq = 0;
    if (operation->seq != *seq + 1)
        sim_fail("rank %d runs seq %d after %d in epoch %d", rank, (int)operation->seq, (int)*seq,
                 (int)operation->epoch);
    *epoch = operation->epoch;
    *seq = operation->seq;
}

/* --- functions of the daemon: health, feed and metrics are left out --- */

struct rk_status *rk_daemon_check_well(const struct rk_daemon *daemon)
{
    (void)daemon;
    return NULL;
}

struct rk_status *rk_daemon_check_takes_work(const struct rk_daemon *daemon)
{
    return rk_daemon_check_well(daemon);
}

void rk_stop_advance(struct rk_daemon *daemon)
{
    (void)daemon;
}

void rk_feed_add(struct rk_feed *feed, rk_feed_kind_t kind, const struct rk_meta *fields, const char *fmt,
                 ...)
{
    (void)feed;
    (void)kind;
    (void)fields;
    (void)fmt;
}

void rk_metrics_count_job(struct rk_metrics *metrics, const struct rk_job *job)
{
    (void)metrics;
    (void)job;
}

void rk_watch_add_metrics(struct rk_daemon *daemon, const struct rk_operation *operation,
                          const struct rk_job *job)
{
    (void)daemon;
    (void)operation;
    (void)job;
}
