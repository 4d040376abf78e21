#include "tests/unit/daemon/sim.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_time.h"

#define FAULTS_MS 90000 /* faults end, and the last driver starts */
#define END_MS    240000
#define TICK_MS   250

struct sim *sim;

int64_t sim_delay_ns(void)
{
    if (sim_chance(0.02))
        return sim_between_ns(100, 12000);
    return (int64_t)(rk_rng_next_uniform(&sim->world.rng) * 2e6) + 1000;
}

static void call(void *user, uint64_t run)
{
    ((void (*)(void *))(uintptr_t)run)(user);
}

void sim_at(int64_t delay_ns, void (*run)(void *user), void *user)
{
    rk_test_agenda_add(&sim->world.agenda, &(struct rk_test_event){.at_ns = sim->world.now_ns + delay_ns,
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

    if (!sim->world.has_faults || !host->is_up)
        return;
    sim->num_crashes++;
    sim_daemon_crash(host);
    sim_at(sim_between_ns(50, 4000), restart, host);
}

static void crash_driver(void *user)
{
    if (!sim->world.has_faults)
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
    sim->world.has_faults = false;
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
    struct rk_test_event event = rk_test_agenda_take(&sim->world.agenda);

    sim->world.now_ns = event.at_ns;
    event.run(event.user, event.arg);
}

bool sim_run(uint64_t seed, sim_defect_t defect)
{
    sim = rk_calloc(1, sizeof(*sim));
    sim->seed = seed;
    sim->defect = defect;
    sim_world_begin(&sim->world, seed);
    plan_world();
    while (!sim->world.failure[0] && sim->world.now_ns < SIM_MS(END_MS) &&
           !(sim->drivers[2] && sim_driver_is_done(sim->drivers[2])))
        run_event();
    if (!sim->world.failure[0] && !sim_driver_is_done(sim->drivers[2]))
        sim_fail("the last driver has not made its calls %d s after the faults ended",
                 (END_MS - FAULTS_MS) / 1000);
    return !sim->world.failure[0];
}

void sim_end(void)
{
    sim->is_ending = true;
    sim->world.has_faults = false;
    for (int i = 0; i < SIM_DRIVERS; i++) {
        if (sim->drivers[i])
            sim_driver_crash(sim->drivers[i]);
    }
    for (int32_t rank = 0; rank < SIM_RANKS; rank++)
        sim_daemon_stop(&sim->daemons[rank]);
    while (sim->world.agenda.num_events > 0)
        run_event();
    for (int i = 0; i < SIM_DRIVERS; i++)
        sim_driver_destroy(sim->drivers[i]);
    sim_world_end(&sim->world);
    rk_free(sim);
    sim = NULL;
}
