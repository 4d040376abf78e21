#include "tests/unit/daemon/sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_time.h"

#define FAULTS_MS 90000 /* faults end, and the last driver starts */
#define END_MS    240000
#define TICK_MS   250

struct sim *sim;

void sim_fail(const char *fmt, ...)
{
    va_list args;

    if (sim->failure[0])
        return; /* the first says most */
    va_start(args, fmt);
    vsnprintf(sim->failure, sizeof(sim->failure), fmt, args);
    va_end(args);
}

bool sim_chance(double probability)
{
    return sim->has_faults && rk_rng_next_uniform(&sim->rng) < probability;
}

int64_t sim_between_ns(int64_t from_ms, int64_t to_ms)
{
    return SIM_MS(from_ms) + (int64_t)(rk_rng_next_uniform(&sim->rng) * (double)SIM_MS(to_ms - from_ms));
}

int64_t sim_delay_ns(void)
{
    if (sim_chance(0.02))
        return sim_between_ns(100, 12000);
    return (int64_t)(rk_rng_next_uniform(&sim->rng) * 2e6) + 1000;
}

static void call(void *user, uint64_t run)
{
    ((void (*)(void *))(uintptr_t)run)(user);
}

void sim_at(int64_t delay_ns, void (*run)(void *user), void *user)
{
    rk_test_agenda_add(&sim->agenda, &(struct rk_test_event){.at_ns = sim->now_ns + delay_ns,
                                                             .run = call,
                                                             .user = user,
                                                             .arg = (uint64_t)(uintptr_t)run});
}

/* --- faults of the processes --- */

static void restart(void *user)
{
    struct sim_daemon *host = user;

    if (!sim->is_ending)
        sim_daemon_start(host, host->rank);
}

static void crash_daemon(void *user)
{
    struct sim_daemon *host = user;

    if (!sim->has_faults || !host->is_up)
        return;
    sim->num_crashes++;
    sim_daemon_crash(host);
    sim_at(sim_between_ns(50, 4000), restart, host);
}

static void crash_driver(void *user)
{
    if (!sim->has_faults)
        return;
    sim->num_crashes++;
    sim_driver_crash(user);
}

static void tick(void *user)
{
    (void)user;
    for (int32_t rank = 0; rank < SIM_RANKS; rank++) {
        if (sim->daemons[rank].is_up)
            sim_daemon_tick(&sim->daemons[rank]);
    }
    if (!sim->is_ending)
        sim_at(SIM_MS(TICK_MS), tick, NULL);
}

static void end_faults(void *user)
{
    (void)user;
    sim->has_faults = false;
    if (!sim->is_ending)
        sim->drivers[2] = sim_driver_start(2, 3, true, 0);
}

static void plan_world(void)
{
    for (int32_t rank = 0; rank < SIM_RANKS; rank++) {
        sim_daemon_start(&sim->daemons[rank], rank);
        if (sim_chance(0.3))
            sim_at(sim_between_ns(100, 60000), crash_daemon, &sim->daemons[rank]);
    }
    sim->drivers[0] = sim_driver_start(0, 12, false, 0);
    sim->drivers[1] = sim_driver_start(1, 12, sim_chance(0.5), sim_between_ns(0, 30000));
    for (int i = 0; i < 2; i++) {
        if (sim_chance(0.2))
            sim_at(sim_between_ns(10, 40000), crash_driver, sim->drivers[i]);
    }
    sim_at(0, tick, NULL);
    sim_at(SIM_MS(FAULTS_MS), end_faults, NULL);
}

static void run_event(void)
{
    struct rk_test_event event = rk_test_agenda_take(&sim->agenda);

    sim->now_ns = event.at_ns;
    event.run(event.user, event.arg);
}

bool sim_run(uint64_t seed, sim_defect_t defect)
{
    sim = rk_calloc(1, sizeof(*sim));
    sim->seed = seed;
    sim->defect = defect;
    sim->has_faults = true;
    sim->now_ns = SIM_MS(1000);
    rk_rng_init(&sim->rng, seed, 0x73696dULL);
    rk_time_inject(&sim->now_ns);
    plan_world();
    while (!sim->failure[0] && sim->now_ns < SIM_MS(END_MS) &&
           !(sim->drivers[2] && sim_driver_is_done(sim->drivers[2])))
        run_event();
    if (!sim->failure[0] && !sim_driver_is_done(sim->drivers[2]))
        sim_fail("the last driver has not made its calls %d s after the faults ended",
                 (END_MS - FAULTS_MS) / 1000);
    return !sim->failure[0];
}

void sim_end(void)
{
    sim->is_ending = true;
    sim->has_faults = false;
    for (int i = 0; i < SIM_DRIVERS; i++) {
        if (sim->drivers[i])
            sim_driver_crash(sim->drivers[i]);
    }
    for (int32_t rank = 0; rank < SIM_RANKS; rank++)
        sim_daemon_stop(&sim->daemons[rank]);
    while (sim->agenda.num_events > 0)
        run_event();
    for (int i = 0; i < SIM_DRIVERS; i++)
        sim_driver_destroy(sim->drivers[i]);
    rk_time_inject(NULL);
    rk_test_agenda_fini(&sim->agenda);
    rk_free(sim);
    sim = NULL;
}
