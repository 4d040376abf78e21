/* The world: events, randomness, and the schedule of faults. */
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_base.h"
#include "base/rk_time.h"
#include "tests/unit/sim/net.h"

#define FAULTS_MS 45000  /* time at which faults end and the last program starts */
#define END_MS    300000 /* when it must have ended */
#define UNWIND_MS 400000 /* simulated time in which all code of a seed must have come to its end */

struct sim *sim;

uint32_t sim_random(uint32_t count)
{
    return (uint32_t)rk_rng_next_below(&sim->world.rng, count);
}

bool sim_weather(double probability)
{
    return sim_chance(probability * sim->roughness);
}

void *sim_alloc(size_t bytes)
{
    void *memory = rk_arena_calloc(sim->arena, 1, bytes);

    RK_ASSERT(memory);
    return memory;
}

struct sim_process *sim_process_create(int32_t rank, void *owner)
{
    struct sim_process *process = sim_alloc(sizeof(*process));

    process->rank = rank;
    process->owner = owner;
    process->next = sim->processes;
    sim->processes = process;
    return process;
}

uint64_t sim_state_after(sim_role_t role, int32_t step)
{
    uint64_t state = 17 + (uint64_t)role;

    for (int32_t i = 1; i <= step; i++) /* what engine.c does with an update of step i */
        state = (state * 6364136223846793005ULL + (uint64_t)i) >> 16;
    return state;
}

/* --- events --- */

void sim_at(struct sim_process *process, int64_t delay_ns, void (*run)(void *user, uint64_t arg), void *user,
            uint64_t arg)
{
    rk_test_agenda_add(
        &sim->world.agenda,
        &(struct rk_test_event){
            .at_ns = sim->world.now_ns + delay_ns, .run = run, .user = user, .arg = arg, .owner = process});
}

static void run_event(void)
{
    struct rk_test_event event = rk_test_agenda_take(&sim->world.agenda);
    struct sim_process *process = event.owner;

    sim->world.now_ns = event.at_ns;
    if (process && process->stopped_until_ns > sim->world.now_ns && !process->is_dead) {
        sim_at(process, process->stopped_until_ns - sim->world.now_ns, event.run, event.user, event.arg);
        return;
    }
    sim->acting = process;
    event.run(event.user, event.arg);
    sim->acting = NULL;
}

/* --- faults of the processes --- */

static void restart_host(void *user, uint64_t rank)
{
    (void)user;
    if (!sim->is_ending)
        sim_host_start((int32_t)rank);
}

static void crash_host(void *user, uint64_t rank)
{
    (void)user;
    if (!sim->world.has_faults || !sim->hosts[rank])
        return;
    sim->num_crashes++;
    sim_host_crash(sim->hosts[rank]);
    sim->hosts[rank] = NULL;
    sim_at(NULL, sim_between_ns(50, 4000), restart_host, NULL, rank);
}

static void restart_trainer(void *user, uint64_t arg)
{
    (void)arg;
    if (sim->world.has_faults && sim->num_trainers < SIM_TRAINERS - 1)
        sim_trainer_start(false, false, user, 0);
}

/* A program that is killed is started again: on the same host, which keeps its identity. */
static void crash_trainer(void *user, uint64_t i)
{
    struct sim_trainer *trainer = sim->trainers[i];

    if (!sim->world.has_faults || !sim_trainer_is_running(trainer))
        return;
    sim->num_crashes++;
    sim_net_end_process(sim_trainer_process(trainer));
    sim_at(NULL, sim_between_ns(200, 5000), restart_trainer, user, 0);
}

static void stop_process(struct sim_process *process, int64_t ns)
{
    sim->num_stops++;
    sim_net_stop_process(process, ns);
}

static void stop_host(void *user, uint64_t rank)
{
    (void)user;
    if (sim->world.has_faults && sim->hosts[rank])
        stop_process(sim_host_process(sim->hosts[rank]), sim_between_ns(300, 18000));
}

static void stop_trainer(void *user, uint64_t i)
{
    (void)user;
    if (sim->world.has_faults && sim_trainer_is_running(sim->trainers[i]))
        stop_process(sim_trainer_process(sim->trainers[i]), sim_between_ns(300, 25000));
}

static void interrupt_trainer(void *user, uint64_t i)
{
    (void)user;
    if (sim->world.has_faults && sim_trainer_is_running(sim->trainers[i]))
        sim_trainer_interrupt(sim->trainers[i]);
}

static void block(void *user, uint64_t arg)
{
    (void)user;
    if (sim->world.has_faults)
        sim_net_block((int)(arg / SIM_RANKS), (int32_t)(arg % SIM_RANKS), sim_between_ns(500, 15000));
}

static void end_faults(void *user, uint64_t arg)
{
    (void)user;
    (void)arg;
    sim->world.has_faults = false;
    if (!sim->is_ending)
        sim_trainer_start(true, true, NULL, 0);
}

static void maybe(double probability, void (*run)(void *user, uint64_t arg), void *user, uint64_t arg)
{
    if (sim_chance(probability))
        sim_at(NULL, sim_between_ns(50, 40000), run, user, arg);
}

static void plan_trainer(struct sim_trainer *trainer, const char *identity)
{
    uint64_t i = (uint64_t)(sim->num_trainers - 1);

    (void)trainer;
    maybe(0.35, crash_trainer, (void *)(uintptr_t)identity, i);
    maybe(0.35, stop_trainer, NULL, i);
    maybe(0.2, interrupt_trainer, NULL, i);
    for (uint64_t rank = 0; rank < SIM_RANKS; rank++)
        maybe(0.12, block, NULL, i * SIM_RANKS + rank);
}

static void plan_world(void)
{
    static const double roughness[] = {0, 0.3, 1, 1, 4, 12};

    sim->roughness = roughness[sim_random(RK_ARRAY_LEN(roughness))];
    sim->latest_step = 0;
    for (int role = 0; role < SIM_ROLE_COUNT; role++) {
        sim->saved[0][role] = sim_state_after((sim_role_t)role, 0);
        sim->is_saved[0][role] = true;
    }
    for (int32_t rank = 0; rank < SIM_RANKS; rank++) {
        sim_host_start(rank);
        maybe(0.25, crash_host, NULL, (uint64_t)rank);
        maybe(0.1, crash_host, NULL, (uint64_t)rank);
        maybe(0.2, stop_host, NULL, (uint64_t)rank);
    }
    plan_trainer(sim_trainer_start(false, false, "a", 0), "a");
    plan_trainer(
        sim_trainer_start(sim_chance(0.5), false, sim_chance(0.5) ? "b" : NULL, sim_between_ns(0, 30000)),
        "b");
    sim_at(NULL, SIM_MS(FAULTS_MS), end_faults, NULL, 0);
}

/* --- a seed --- */

bool sim_run(uint64_t seed, sim_defect_t defect)
{
    sim = rk_calloc(1, sizeof(*sim));
    sim->seed = seed;
    sim->defect = defect;
    sim->arena = rk_arena_create(1 << 20, 0);
    sim_world_begin(&sim->world, seed);
    plan_world();
    while (!sim->world.failure[0] && sim->world.now_ns < SIM_MS(END_MS) && !sim->is_complete)
        run_event();
    if (!sim->world.failure[0] && !sim->is_complete)
        sim_fail("the last program has not ended %d s after the faults", (END_MS - FAULTS_MS) / 1000);
    return !sim->world.failure[0];
}

static void end_processes(void)
{
    for (struct sim_process *process = sim->processes; process; process = process->next) {
        if (process->rank < 0 && !process->is_dead)
            sim_net_end_process(process);
    }
    for (int32_t rank = 0; rank < SIM_RANKS; rank++) {
        if (sim->hosts[rank])
            sim_host_crash(sim->hosts[rank]);
        sim->hosts[rank] = NULL;
    }
}

void sim_end(void)
{
    int64_t end_ns = sim->world.now_ns + SIM_MS(UNWIND_MS);

    sim->is_ending = true;
    sim->world.has_faults = false;
    end_processes();
    while (sim->world.agenda.num_events > 0 && sim->world.now_ns < end_ns)
        run_event();
    sim_fibers_end();
    sim_hosts_free();
    sim_world_end(&sim->world);
    rk_arena_destroy(sim->arena);
    rk_free(sim);
    sim = NULL;
}
