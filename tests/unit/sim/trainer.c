/* A program that uses the driver library: a training run that resumes from its newest checkpoint after any
 * fault, as rankctl does with a job, and overlapping calls. The status of each call in the driver is compared
 * with the mutations in the engines. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_time.h"
#include "driver/rk_driver.h"
#include "tests/support/test.h"
#include "tests/unit/sim/net.h"

#define TTL_MS     9000
#define CONTROL_MS 5000
#define LONGEST_MS                                                                                 \
    170000            /* longest duration of one library call: its own limits plus the time that a \
                       * process is stopped */
#define CALLS_MAX   3 /* at once */
#define ROWS        4
#define PROMPT      4
#define SAVE_PERIOD 2

/* The program's progress with its group. */
typedef enum stage { CLOSED, OPENED, CLAIMED, CONFIGURED, LOADED } stage_t;

struct sim_trainer {
    struct sim_process *process;
    struct rk_driver *driver;
    char id[16];
    const char *identity;
    bool takeover, is_last, is_over;
    bool has_claimed; /* since it was opened */
    stage_t stage;
    int32_t step; /* that was made last */
    int64_t begun_ns;
};

/* A call that the program has started. */
struct started {
    uint64_t tag;
    struct rk_future *future;
};

struct sim_process *sim_trainer_process(struct sim_trainer *trainer)
{
    return trainer->process;
}

bool sim_trainer_is_running(const struct sim_trainer *trainer)
{
    return !trainer->is_over && !trainer->process->is_dead;
}

void sim_trainer_interrupt(struct sim_trainer *trainer)
{
    if (trainer->driver)
        rk_driver_interrupt(trainer->driver);
}

/* --- checks of the library's status of a call --- */

static const char *kind_name(const struct sim_call *call)
{
    static const char *const names[] = {"nothing", "generate", "update", "save", "load"};

    return names[call->kind];
}

/* Refused before any rank began. */
static bool says_not_applied(const struct rk_status *st)
{
    rk_code_t code = rk_status_code(st);

    return code == RK_FAILED_PRECONDITION || code == RK_INVALID_ARGUMENT || code == RK_NOT_FOUND;
}

static void check_applied(uint64_t tag, int expected, const char *said)
{
    const struct sim_call *call = &sim->calls[tag];

    for (int32_t rank = 0; rank < SIM_RANKS; rank++) {
        if (sim_role_has_rank(call->role, rank) && call->applied[rank] != expected)
            sim_fail("call %d (%s of step %d) was applied %d times on rank %d; its driver says %s", (int)tag,
                     kind_name(call), call->step, call->applied[rank], rank, said);
    }
}

static void check_state(uint64_t tag, const struct rk_driver_result *result)
{
    const struct sim_call *call = &sim->calls[tag];
    double state = rk_json_as_real(rk_json_find(result->metrics, "state"), -1);
    double got = rk_json_as_real(rk_json_find(result->metrics, "tag"), -1);

    if (got != (double)tag)
        sim_fail("call %d was answered with the result of call %d", (int)tag, (int)got);
    else if (state != (double)sim_state_after(call->role, call->step))
        sim_fail("call %d (%s of step %d) did not leave the state of an undisturbed run", (int)tag,
                 kind_name(call), call->step);
}

static int64_t prompt_of(uint64_t tag, int64_t i)
{
    return (int64_t)tag * 100 + i;
}

static void check_rows(uint64_t tag, const struct rk_driver_result *result)
{
    struct rk_status *st;
    int64_t shape[2];
    const void *data;

    st = rk_batch_get_dense(result->batch, "responses", RK_DTYPE_I64, 2, shape, &data);
    if (st || shape[0] != ROWS || shape[1] != PROMPT) {
        rk_status_free(st);
        sim_fail("call %d returned other rows than were asked for", (int)tag);
        return;
    }
    for (int64_t i = 0; i < (int64_t)ROWS * PROMPT; i++) {
        if (((const int64_t *)data)[i] != 3 * prompt_of(tag, i) + 1)
            sim_fail("call %d: element %d of the answer is not that of the question", (int)tag, (int)i);
    }
}

static void judge(struct sim_trainer *trainer, uint64_t tag, const struct rk_status *st,
                  const struct rk_driver_result *result)
{
    struct sim_call *call = &sim->calls[tag];
    bool mutates = call->kind == SIM_UPDATE || call->kind == SIM_LOAD;

    if (trainer->process->is_dead) { /* its result has no receiver */
        call->verdict = SIM_UNKNOWN;
        return;
    }
    sim->num_done += !st;
    sim->num_failed += st != NULL;
    call->verdict = !st ? SIM_DONE : says_not_applied(st) ? SIM_NOT_APPLIED : SIM_UNKNOWN;
    if (call->verdict == SIM_NOT_APPLIED)
        check_applied(tag, 0, rk_status_message(st));
    if (st)
        return;
    if (mutates)
        check_applied(tag, 1, "done");
    if (call->kind == SIM_GENERATE)
        check_rows(tag, result);
    else
        check_state(tag, result);
}

/* --- calls --- */

static uint64_t new_call(struct sim_trainer *trainer, sim_kind_t kind, sim_role_t role, int32_t step)
{
    uint64_t tag = ++sim->next_tag;

    RK_ASSERT(tag < SIM_TAGS);
    sim->calls[tag] = (struct sim_call){.kind = kind, .role = role, .step = step, .trainer = trainer};
    return tag;
}

static struct rk_batch *make_prompts(uint64_t tag)
{
    static const int64_t shape[] = {ROWS, PROMPT};
    struct rk_batch *batch;
    void *prompts, *mask, *stream;

    assert_ok(rk_batch_create(&batch, ROWS));
    assert_ok(rk_batch_add_dense(batch, "prompts", RK_DTYPE_I64, 2, shape, &prompts));
    assert_ok(rk_batch_add_dense(batch, "attention_mask", RK_DTYPE_I64, 2, shape, &mask));
    assert_ok(rk_batch_add_dense(batch, "stream", RK_DTYPE_I64, 1, shape, &stream));
    for (int64_t i = 0; i < (int64_t)ROWS * PROMPT; i++)
        ((int64_t *)prompts)[i] = prompt_of(tag, i);
    return batch;
}

/* The critic has no method of its own without a plan: any mutating method is suitable. */
static const char *method_of(const struct sim_call *call)
{
    switch (call->kind) {
    case SIM_GENERATE:
        return "generate_sequences";
    case SIM_UPDATE:
        return call->role == SIM_ACTOR ? "optim_step" : "load_checkpoint";
    case SIM_SAVE:
        return "save_checkpoint";
    default:
        return "load_checkpoint";
    }
}

static struct rk_json *make_options(const struct sim_call *call)
{
    struct rk_json *options = rk_json_new_object();

    if (call->kind == SIM_GENERATE)
        rk_json_set(options, "response_length", rk_json_new_int(PROMPT));
    else if (strstr(method_of(call), "checkpoint"))
        rk_json_set(options, "path", rk_json_new_string("/checkpoints"));
    if (call->kind == SIM_SAVE)
        rk_json_set(options, "global_step", rk_json_new_int(call->step));
    return options;
}

/* Returns the status of a call that did not start; NULL if it started. */
static struct rk_status *start(struct sim_trainer *trainer, struct started *out, const struct sim_call *call)
{
    struct rk_json *options = make_options(call);
    struct rk_driver_call_args args = {.method = method_of(call), .options = options};
    struct rk_batch *batch = NULL;
    struct rk_status *st;

    out->tag = new_call(trainer, call->kind, call->role, call->step);
    if (call->kind == SIM_GENERATE)
        args.batch = batch = make_prompts(out->tag);
    args.role = call->kind == SIM_GENERATE ? "rollout" : call->role == SIM_ACTOR ? "actor" : "critic";
    args.timeout_ms = SIM_TIMEOUT_MS + (int64_t)out->tag;
    st = rk_driver_start(&out->future, trainer->driver, &args);
    rk_batch_destroy(batch);
    rk_json_free(options);
    if (st)
        judge(trainer, out->tag, st, NULL);
    return st;
}

static struct rk_status *take(struct sim_trainer *trainer, struct started *started)
{
    struct rk_driver_result result;
    struct rk_status *st = rk_future_take(started->future, &result);

    started->future = NULL;
    judge(trainer, started->tag, st, &result);
    rk_driver_result_fini(&result);
    return st;
}

/* Picks in the order in which calls end, or in the order of their starts. */
static int32_t pick(const struct started *started, int32_t count)
{
    struct rk_future *futures[CALLS_MAX] = {0};

    for (int32_t i = 0; i < count; i++)
        futures[i] = started[i].future;
    if (sim_random(2))
        return rk_future_wait_any(futures, count, -1);
    for (int32_t i = 0; i < count; i++) {
        if (futures[i])
            return i;
    }
    return -1;
}

/* Starts the calls in this order, waits for all, and returns the first failure. */
static struct rk_status *run_calls(struct sim_trainer *trainer, const struct sim_call *calls, int32_t count)
{
    struct started started[CALLS_MAX] = {0};
    struct rk_status *st = NULL;
    int32_t i;

    RK_ASSERT(count <= CALLS_MAX);
    for (i = 0; i < count && !st; i++)
        st = start(trainer, &started[i], &calls[i]);
    if (sim_chance(0.02) && started[0].future)
        rk_future_cancel(started[0].future, "the simulation says so");
    while ((i = pick(started, count)) >= 0)
        st = rk_status_first(st, take(trainer, &started[i]));
    return st;
}

/* --- the run --- */

static struct rk_status *make_step(struct sim_trainer *trainer, int32_t step)
{
    const struct sim_call calls[] = {{.kind = SIM_GENERATE, .role = SIM_ACTOR, .step = step},
                                     {.kind = SIM_UPDATE, .role = SIM_ACTOR, .step = step},
                                     {.kind = SIM_UPDATE, .role = SIM_CRITIC, .step = step}};
    const struct sim_call saves[] = {{.kind = SIM_SAVE, .role = SIM_ACTOR, .step = step},
                                     {.kind = SIM_SAVE, .role = SIM_CRITIC, .step = step}};
    bool is_apart = sim_random(2) == 0; /* the samples first, as a real run requires */

    if (is_apart)
        RK_TRY(run_calls(trainer, calls, 1));
    RK_TRY(run_calls(trainer, calls + is_apart, 3 - is_apart));
    trainer->step = step;
    if (step % SAVE_PERIOD)
        return NULL;
    RK_TRY(run_calls(trainer, saves, 2));
    if (!trainer->process->is_dead)
        sim->latest_step = RK_MAX(sim->latest_step, step);
    return NULL;
}

static struct rk_status *load(struct sim_trainer *trainer)
{
    int32_t step = sim->latest_step;
    const struct sim_call calls[] = {{.kind = SIM_LOAD, .role = SIM_ACTOR, .step = step},
                                     {.kind = SIM_LOAD, .role = SIM_CRITIC, .step = step}};

    RK_TRY(run_calls(trainer, calls, 2));
    trainer->step = step;
    return NULL;
}

static struct rk_status *open_group(struct sim_trainer *trainer)
{
    static const char *const addresses[SIM_RANKS] = {"unix:/sim/0", "unix:/sim/1", "unix:/sim/2"};
    char *dir = trainer->identity ? rk_test_temp_path(trainer->identity) : NULL;
    struct rk_driver_config config = {.struct_size = sizeof(config),
                                      .addresses = addresses,
                                      .num_addresses = SIM_RANKS,
                                      .driver_id = trainer->id,
                                      .lease_ttl_ms = TTL_MS,
                                      .control_timeout_ms = CONTROL_MS,
                                      .takeover = trainer->takeover,
                                      .identity_dir = dir};
    struct rk_status *st = rk_driver_open(&trainer->driver, &config);

    rk_free(dir);
    return st;
}

static struct rk_status *configure(struct sim_trainer *trainer)
{
    static const int32_t actor_ranks[] = {0, 1}, critic_ranks[] = {1, 2};
    const struct rk_role_mesh meshes[] = {
        {"actor", {.dp = 2, .num_ranks = 2, .ranks = actor_ranks}},
        {"rollout", {.dp = 2, .num_ranks = 2, .ranks = actor_ranks}},
        {"critic", {.dp = 2, .num_ranks = 2, .ranks = critic_ranks}},
    };
    struct rk_status *st = NULL;

    if (sim_random(2)) { /* what an earlier program has left may do */
        st = rk_driver_adopt(trainer->driver);
        if (!st)
            return NULL;
        rk_status_free(st);
    }
    return rk_driver_configure(trainer->driver, meshes, RK_ARRAY_LEN(meshes));
}

/* A driver that has lost its lease or a daemon acquires it again at once. */
static struct rk_status *claim(struct sim_trainer *trainer)
{
    struct rk_status *st = rk_driver_claim(trainer->driver);
    char holder[32];

    sim->num_claims++;
    snprintf(holder, sizeof(holder), "\"%s\"", trainer->id);
    if (trainer->has_claimed && strcmp(rk_status_reason(st), "LEASE_HELD") == 0 &&
        strstr(rk_status_message(st), holder))
        sim_fail("%s was refused its own lease: %s", trainer->id, rk_status_message(st));
    trainer->has_claimed = trainer->has_claimed || !st;
    return st;
}

/* Advances by one stage or one step. */
static struct rk_status *advance(struct sim_trainer *trainer)
{
    switch (trainer->stage) {
    case CLOSED:
        return open_group(trainer);
    case OPENED:
        return claim(trainer);
    case CLAIMED:
        return configure(trainer);
    case CONFIGURED:
        return load(trainer);
    case LOADED:
        break;
    }
    return make_step(trainer, trainer->step + 1);
}

static void close_group(struct sim_trainer *trainer)
{
    struct rk_driver *driver = trainer->driver;

    trainer->driver = NULL; /* nobody interrupts it any more */
    trainer->has_claimed = false;
    rk_driver_close(driver);
    trainer->stage = CLOSED;
}

/* Goes back to the stage from which it must repeat. */
static void recover(struct sim_trainer *trainer)
{
    uint32_t chance = sim_random(10);

    while (!rk_driver_resume(trainer->driver))
        ;
    if (trainer->stage >= CONFIGURED && chance < 4)
        trainer->stage = CLAIMED;
    else if (chance < 8)
        trainer->stage = OPENED;
    else
        close_group(trainer);
    rk_time_sleep_ms(300 + sim_random(2000));
}

static int32_t last_step(const struct sim_trainer *trainer)
{
    return SIM_STEPS + (trainer->is_last ? SIM_EXTRA : 0);
}

static bool has_more(const struct sim_trainer *trainer)
{
    return !trainer->process->is_dead && !sim->is_ending && sim->latest_step < last_step(trainer);
}

static void *run(void *user)
{
    struct sim_trainer *trainer = user;

    while (has_more(trainer)) {
        struct rk_status *st;

        trainer->begun_ns = sim->world.now_ns;
        st = advance(trainer);
        if (sim->world.now_ns - trainer->begun_ns > SIM_MS(LONGEST_MS))
            sim_fail("%s hung for %d s in stage %d", trainer->id,
                     (int)((sim->world.now_ns - trainer->begun_ns) / 1000000000), (int)trainer->stage);
        if (st) {
            rk_status_free(st);
            if (!sim->world.has_faults && !trainer->is_last)
                break; /* the last program has come */
            recover(trainer);
            continue;
        }
        if (trainer->stage < LOADED)
            trainer->stage++;
        else
            rk_time_sleep_ms(sim_random(sim->world.has_faults ? 3000 : 300));
    }
    if (trainer->driver)
        close_group(trainer);
    trainer->is_over = true;
    if (trainer->is_last && !sim->is_ending)
        sim_hosts_check_free_of(trainer->id);
    sim->is_complete = sim->is_complete || (trainer->is_last && sim->latest_step >= last_step(trainer));
    return NULL;
}

static void begin(void *user, uint64_t arg)
{
    struct sim_trainer *trainer = user;

    (void)arg;
    sim_fiber_start(trainer->process, run, trainer);
}

struct sim_trainer *sim_trainer_start(bool takeover, bool is_last, const char *identity, int64_t delay_ns)
{
    struct sim_trainer *trainer = sim_alloc(sizeof(*trainer));

    RK_ASSERT(sim->num_trainers < SIM_TRAINERS);
    trainer->process = sim_process_create(-1, trainer);
    snprintf(trainer->id, sizeof(trainer->id), "program-%d", sim->num_trainers);
    trainer->takeover = takeover;
    trainer->is_last = is_last;
    trainer->identity = identity;
    sim->trainers[sim->num_trainers++] = trainer;
    sim_at(trainer->process, delay_ns, begin, trainer, 0);
    return trainer;
}
