/* A driver according to docs/rpc.md: claims, opens each call on all ranks, commits when all have
 * accepted, repeats a committed request whose stream broke, and claims again when its lease or a daemon is
 * lost. */
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "tests/unit/daemon/sim.h"

#define RETRIES_MAX    8
#define ACCEPT_MS      15000
#define RESULT_MS      25000
#define KEEP_ALIVE_MS  2500
#define LEASE_ID_BYTES 16

struct place { /* the call on one rank */
    struct sim_stream *stream;
    bool is_accepted, is_done;
};

struct sim_driver {
    int number, num_calls, num_left, num_retries;
    char id[16];
    uint8_t key[LEASE_ID_BYTES];
    bool takeover, is_dead, is_claimed, is_committed;
    uint64_t epoch, attempt; /* attempt: timers and replies of an earlier one are ignored */
    struct rk_fence fences[SIM_RANKS];
    uint8_t lease_ids[SIM_RANKS][LEASE_ID_BYTES];
    uint64_t next_seq[SIM_RANKS];
    int num_granted;
    uint64_t tag;
    uint8_t request_id[RK_REQUEST_ID_BYTES];
    struct place places[SIM_RANKS];
};

/* The call that a timer or a reply belongs to. */
struct ticket {
    struct sim_driver *driver;
    uint64_t attempt;
};

static struct ticket *make_ticket(struct sim_driver *driver)
{
    struct ticket *ticket = rk_calloc(1, sizeof(*ticket));

    *ticket = (struct ticket){driver, driver->attempt};
    return ticket;
}

/* The driver, if the ticket is still valid; frees it. */
static struct sim_driver *take_ticket(void *user)
{
    struct ticket ticket = *(struct ticket *)user;

    rk_free(user);
    return ticket.driver->is_dead || ticket.attempt != ticket.driver->attempt ? NULL : ticket.driver;
}

static void claim(struct sim_driver *driver);
static void begin_call(struct sim_driver *driver);

static void close_streams(struct sim_driver *driver)
{
    for (int32_t rank = 0; rank < SIM_RANKS; rank++) {
        sim_stream_close(driver->places[rank].stream);
        driver->places[rank] = (struct place){0};
    }
}

/* --- the lease --- */

static void ignore_reply(void *user, int32_t rank, rk_code_t code, const char *reason, struct rk_bytes reply)
{
    (void)user;
    (void)rank;
    (void)code;
    (void)reason;
    (void)reply;
}

static void release(struct sim_driver *driver)
{
    for (int32_t rank = 0; rank < SIM_RANKS; rank++) {
        struct rk_release_lease_request request = {.fence = driver->fences[rank]};
        struct rk_str packed = {0};

        if (driver->fences[rank].epoch == 0)
            continue;
        rk_pack_release_lease_request(&packed, &request);
        sim_unary(rank, &rk_rpc_release_lease, &packed, ignore_reply, NULL);
        rk_str_fini(&packed);
        driver->fences[rank] = (struct rk_fence){0};
    }
    driver->is_claimed = false;
}

static void on_claim_time(void *user)
{
    struct sim_driver *driver = take_ticket(user);

    if (driver)
        claim(driver);
}

static void claim_later(struct sim_driver *driver, int64_t delay_ns)
{
    driver->attempt++;
    close_streams(driver);
    sim_at(delay_ns, on_claim_time, make_ticket(driver));
}

static void acquire(struct sim_driver *driver, int32_t rank);

static void take_grant(struct sim_driver *driver, int32_t rank, struct rk_bytes reply)
{
    struct rk_arena *arena = rk_arena_create(4096, 0);
    struct rk_acquire_lease_response grant;
    struct rk_status *st = rk_unpack_acquire_lease_response(&grant, arena, reply.data, reply.bytes);

    RK_ASSERT(!st);
    memcpy(driver->lease_ids[rank], grant.fence.lease_id.data, LEASE_ID_BYTES);
    driver->fences[rank] = grant.fence;
    driver->fences[rank].lease_id.data = driver->lease_ids[rank];
    driver->next_seq[rank] = 1;
    rk_arena_destroy(arena);
}

static void on_acquired(void *user, int32_t rank, rk_code_t code, const char *reason, struct rk_bytes reply)
{
    struct sim_driver *driver = take_ticket(user);

    (void)reason;
    if (!driver)
        return;
    if (code != RK_OK) {
        release(driver);
        claim_later(driver, sim_between_ns(500, 2000));
        return;
    }
    take_grant(driver, rank, reply);
    if (rank + 1 < SIM_RANKS) {
        acquire(driver, rank + 1);
        return;
    }
    driver->is_claimed = true;
    begin_call(driver);
}

static void acquire(struct sim_driver *driver, int32_t rank)
{
    struct rk_acquire_lease_request request = {.driver_id = driver->id,
                                               .epoch = driver->epoch,
                                               .takeover = driver->takeover,
                                               .driver_key = {driver->key, sizeof(driver->key)}};
    struct rk_str packed = {0};

    rk_pack_acquire_lease_request(&packed, &request);
    sim_unary(rank, &rk_rpc_acquire_lease, &packed, on_acquired, make_ticket(driver));
    rk_str_fini(&packed);
}

/* GetStatus of all is not simulated: so the epoch may be outdated when the request arrives, as in reality. */
static void claim(struct sim_driver *driver)
{
    driver->epoch = 0;
    for (int32_t rank = 0; rank < SIM_RANKS; rank++)
        driver->epoch = RK_MAX(driver->epoch, sim->daemons[rank].daemon.lease.epoch);
    driver->epoch++;
    acquire(driver, 0);
}

/* Renews the lease by Cancel of an unknown request: a fenced call like any other. */
static void keep_alive(void *user)
{
    struct sim_driver *driver = user;
    struct rk_cancel_request request = {.reason = "keep alive"};
    static const uint8_t nothing[RK_REQUEST_ID_BYTES];
    struct rk_str packed;

    if (driver->is_dead)
        return;
    for (int32_t rank = 0; rank < SIM_RANKS && driver->is_claimed; rank++) {
        packed = (struct rk_str){0};
        request.fence = driver->fences[rank];
        request.request_id = (struct rk_bytes){nothing, sizeof(nothing)};
        rk_pack_cancel_request(&packed, &request);
        sim_unary(rank, &rk_rpc_cancel, &packed, ignore_reply, NULL);
        rk_str_fini(&packed);
    }
    sim_at(SIM_MS(KEEP_ALIVE_MS), keep_alive, driver);
}

/* --- calls --- */

/* The outcome of the call is unknown: the tag is not used again. */
static void give_up_call(struct sim_driver *driver)
{
    release(driver);
    claim_later(driver, sim_between_ns(10, 2000));
}

static void on_accepted(void *user, int32_t rank, bool is_replayed);
static void on_end(void *user, int32_t rank, rk_code_t code, const char *reason, uint64_t tag);

/* Every second call has columns, like a generation. The network provides the bytes. */
static void add_input(struct rk_execute_header *header)
{
    static const int64_t matrix[] = {1, 4}, vector[] = {1};
    static struct rk_tensor_spec tensors[SIM_TENSORS] = {
        {.name = "prompts", .dtype = RK_DTYPE_I64, .rank = 2, .shape = matrix, .byte_size = 32},
        {.name = "attention_mask", .dtype = RK_DTYPE_I64, .rank = 2, .shape = matrix, .byte_size = 32},
        {.name = "stream", .dtype = RK_DTYPE_I64, .rank = 1, .shape = vector, .byte_size = 8},
    };
    static struct rk_meta_entry option = {.key = "response_length",
                                          .value = {.kind = RK_SCALAR_INT, .integer = 2}};

    header->role = "rollout";
    header->method = "generate_sequences";
    header->input = (struct rk_batch_spec){.batch_size = 1, .num_tensors = SIM_TENSORS, .tensors = tensors};
    header->options = (struct rk_meta){.count = 1, .entries = &option};
}

static void open_stream(struct sim_driver *driver, int32_t rank)
{
    struct sim_stream_hooks hooks = {on_accepted, on_end, driver};
    struct rk_execute_header header = {.fence = driver->fences[rank],
                                       .request_id = {driver->request_id, sizeof(driver->request_id)},
                                       .seq = driver->next_seq[rank],
                                       .mesh_generation = 1,
                                       .role = "actor",
                                       .method = "optim_step",
                                       .timeout_ms = (uint32_t)driver->tag,
                                       .two_phase = true};

    if (driver->tag % 2 == 0)
        add_input(&header);
    sim_stream_close(driver->places[rank].stream);
    driver->places[rank].stream = sim_stream_open(rank, &header, &hooks);
}

static void new_request(struct sim_driver *driver)
{
    for (size_t i = 0; i < sizeof(driver->request_id); i++)
        driver->request_id[i] = (uint8_t)rk_rng_next_u32(&sim->world.rng);
}

static void on_timeout(void *user)
{
    struct sim_driver *driver = take_ticket(user);

    if (driver)
        give_up_call(driver);
}

static void open_call(struct sim_driver *driver)
{
    driver->attempt++;
    driver->is_committed = false;
    close_streams(driver);
    new_request(driver);
    for (int32_t rank = 0; rank < SIM_RANKS; rank++)
        open_stream(driver, rank);
    sim_at(SIM_MS(ACCEPT_MS + RESULT_MS), on_timeout, make_ticket(driver));
}

static void begin_call(struct sim_driver *driver)
{
    if (driver->num_left == 0) {
        driver->attempt++;
        release(driver);
        return;
    }
    if (sim->next_tag + 1 == SIM_TAGS) {
        sim_fail("more than %d calls", SIM_TAGS);
        return;
    }
    driver->tag = ++sim->next_tag;
    driver->num_retries = 0;
    open_call(driver);
}

static void commit_all(struct sim_driver *driver)
{
    driver->is_committed = true;
    for (int32_t rank = 0; rank < SIM_RANKS; rank++)
        sim_stream_commit(driver->places[rank].stream);
}

static void on_accepted(void *user, int32_t rank, bool is_replayed)
{
    struct sim_driver *driver = user;

    (void)is_replayed;
    driver->places[rank].is_accepted = true;
    if (driver->is_committed) { /* a repetition: the daemon may have lost the commit */
        sim_stream_commit(driver->places[rank].stream);
        return;
    }
    for (int32_t i = 0; i < SIM_RANKS; i++) {
        if (!driver->places[i].is_accepted)
            return;
    }
    commit_all(driver);
}

/* Work of a driver between calls: rewards, plans. */
static void on_pause_over(void *user)
{
    struct sim_driver *driver = take_ticket(user);

    if (driver)
        begin_call(driver);
}

/* All ranks returned OK: the mutation must have been applied once on each. */
static void succeed(struct sim_driver *driver)
{
    sim->num_succeeded++;
    for (int32_t rank = 0; rank < SIM_RANKS; rank++) {
        if (sim->applied[driver->tag][rank] != 1)
            sim_fail("call %d succeeded, but was applied %d times on rank %d", (int)driver->tag,
                     sim->applied[driver->tag][rank], rank);
        driver->next_seq[rank]++;
    }
    driver->num_left--;
    driver->attempt++; /* the timers of this call are invalid */
    close_streams(driver);
    sim_at(sim->world.has_faults ? sim_between_ns(0, 6000) : 0, on_pause_over, make_ticket(driver));
}

/* The stream broke. Before the commit the call has no effect; after it the request is repeated. */
static void on_broken(struct sim_driver *driver, int32_t rank)
{
    if (++driver->num_retries > RETRIES_MAX) {
        give_up_call(driver);
        return;
    }
    sim->num_retried++;
    if (driver->is_committed && sim->defect == SIM_DEFECT_FRESH_RETRY) {
        for (int32_t i = 0; i < SIM_RANKS; i++)
            driver->next_seq[i]++;
        driver->is_committed = false;
    }
    if (driver->is_committed)
        open_stream(driver, rank);
    else
        open_call(driver);
}

static void on_end(void *user, int32_t rank, rk_code_t code, const char *reason, uint64_t tag)
{
    struct sim_driver *driver = user;

    if (driver->is_dead)
        return;
    if (code == RK_UNAVAILABLE && !*reason) {
        on_broken(driver, rank);
        return;
    }
    if (code != RK_OK) {
        give_up_call(driver);
        return;
    }
    if (tag != driver->tag)
        sim_fail("call %d was answered on rank %d with the result of call %d", (int)driver->tag, rank,
                 (int)tag);
    driver->places[rank].is_done = true;
    for (int32_t i = 0; i < SIM_RANKS; i++) {
        if (!driver->places[i].is_done)
            return;
    }
    succeed(driver);
}

/* --- life --- */

struct sim_driver *sim_driver_start(int number, int num_calls, bool takeover, int64_t delay_ns)
{
    struct sim_driver *driver = rk_calloc(1, sizeof(*driver));

    driver->number = number;
    driver->num_calls = driver->num_left = num_calls;
    driver->takeover = takeover;
    snprintf(driver->id, sizeof(driver->id), "driver-%d", number);
    memset(driver->key, number + 1, sizeof(driver->key));
    claim_later(driver, delay_ns);
    sim_at(delay_ns, keep_alive, driver);
    return driver;
}

void sim_driver_crash(struct sim_driver *driver)
{
    if (driver->is_dead)
        return;
    driver->is_dead = true;
    close_streams(driver);
}

bool sim_driver_is_done(const struct sim_driver *driver)
{
    return driver->num_left == 0;
}

void sim_driver_destroy(struct sim_driver *driver)
{
    if (!driver)
        return;
    sim_driver_crash(driver);
    rk_free(driver);
}
