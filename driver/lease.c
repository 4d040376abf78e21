/* The lease on the group: acquisition on all daemons or none, renewal by a thread, release.
 *
 * The thread owns one KeepAlive stream per daemon and its own completion queue. It shares with the rest of
 * the driver the times of the last acknowledged renewals (atomics) and, under `lock`, the flag that ends it.
 */
#include "driver/invocation_internal.h"

#include <signal.h>
#include <string.h>

#include <grpc/byte_buffer.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_log.h"
#include "base/rk_random.h"
#include "base/rk_time.h"
#include "driver/rk_group_report.h"

#define CLAIM_ATTEMPTS   4   /* lost races against drivers that started at the same moment */
#define CLAIM_BACKOFF_MS 500 /* plus up to three times as much, at random */
#define RENEWALS_PER_TTL 3
#define REOPEN_DELAY_MS  1000 /* after a KeepAlive stream broke */
#define PARK_MS          10   /* interval of the thread's looks at its queue while there are calls */

/* One daemon's KeepAlive stream; lease thread only, except `renewed_ms`. */
struct keeper {
    struct rk_tag on_open, on_send, on_recv, on_status;
    struct rk_lease_keeper *lease;
    struct rk_client *client;
    struct rk_client_stream stream;
    bool is_sending, is_broken;
    bool is_reported; /* the break was logged, and no renewal succeeded since */
    grpc_byte_buffer *reply;
    int64_t next_ms; /* boot clock: next renewal, or when to open again */
    _Atomic int64_t renewed_ms;
};

struct rk_lease_keeper {
    struct rk_driver *driver;
    unsigned num_pumped; /* calls of the driver when the thread last looked; thread only, as the next */
    bool is_drained;     /* the queue had no event the last time */
    int64_t ttl_ms;
    grpc_completion_queue *queue;
    pthread_t thread;
    pthread_mutex_t lock; /* guards is_ending, and with it every start of an operation */
    bool is_ending;
    int32_t num_keepers;
    struct keeper *keepers;
};

/* --- the KeepAlive stream of one daemon --- */

static void start_recv(struct keeper *keeper)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &keeper->reply};

    keeper->reply = NULL;
    rk_client_stream_start(&keeper->stream, &op, &keeper->on_recv);
}

static void start_send(struct keeper *keeper)
{
    struct rk_keep_alive_request request = {.fence = keeper->client->fence};
    struct rk_str packed = {0};
    grpc_byte_buffer *message;
    grpc_op op = {.op = GRPC_OP_SEND_MESSAGE};

    rk_pack_keep_alive_request(&packed, &request);
    message = rk_stream_encode(&packed);
    rk_str_fini(&packed);
    op.data.send_message.send_message = message;
    keeper->is_sending = true;
    rk_client_stream_start(&keeper->stream, &op, &keeper->on_send);
    grpc_byte_buffer_destroy(message);
}

static void open_stream(struct keeper *keeper)
{
    struct rk_client *client = keeper->client;
    grpc_call *call =
        rk_client_open_call(client, client->control, RK_RPC_ID_KEEP_ALIVE, 0, keeper->lease->queue);

    keeper->is_broken = false;
    rk_client_stream_open(&keeper->stream, client, call, NULL, &keeper->on_open, &keeper->on_status);
    start_recv(keeper);
}

/* After each event: when the last one of a broken stream came, the stream can be opened again. */
static void settle(struct keeper *keeper)
{
    keeper->stream.num_pending--;
    if (keeper->stream.num_pending > 0 || !keeper->is_broken)
        return;
    rk_client_stream_close(&keeper->stream);
    keeper->next_ms = rk_time_boot_ms() + REOPEN_DELAY_MS;
}

static void on_open(struct rk_tag *tag, bool ok)
{
    struct keeper *keeper = RK_OWNER_OF(tag, struct keeper, on_open);

    (void)ok;
    settle(keeper);
}

static void on_send(struct rk_tag *tag, bool ok)
{
    struct keeper *keeper = RK_OWNER_OF(tag, struct keeper, on_send);

    (void)ok;
    keeper->is_sending = false;
    settle(keeper);
}

static void on_recv(struct rk_tag *tag, bool ok)
{
    struct keeper *keeper = RK_OWNER_OF(tag, struct keeper, on_recv);

    if (ok && keeper->reply) {
        atomic_store(&keeper->renewed_ms, rk_time_boot_ms());
        keeper->is_reported = false;
        grpc_byte_buffer_destroy(keeper->reply);
        keeper->reply = NULL;
        if (!keeper->lease->is_ending && !keeper->is_broken)
            start_recv(keeper);
    }
    settle(keeper);
}

static void on_status(struct rk_tag *tag, bool ok)
{
    struct keeper *keeper = RK_OWNER_OF(tag, struct keeper, on_status);
    struct rk_status *st =
        rk_client_status(keeper->stream.code, keeper->stream.details, &keeper->stream.trailing);

    (void)ok;
    if (!keeper->lease->is_ending && !keeper->is_reported)
        RK_WARN("lease renewal interrupted worker=%d address=%s err=\"%s\"", keeper->client->rank,
                keeper->client->address, st ? rk_status_message(st) : "the daemon ended the stream");
    rk_status_free(st);
    keeper->is_reported = true;
    keeper->is_broken = true;
    settle(keeper);
}

/* Sends due renewals and opens closed streams. Returns the milliseconds until the next one is due. */
static int64_t renew(struct rk_lease_keeper *lease)
{
    int64_t period_ms = lease->ttl_ms / RENEWALS_PER_TTL;
    int64_t now_ms = rk_time_boot_ms(), wait_ms = period_ms;

    for (int32_t i = 0; i < lease->num_keepers; i++) {
        struct keeper *keeper = &lease->keepers[i];

        if (keeper->is_broken && keeper->stream.call)
            continue; /* settling */
        if (now_ms >= keeper->next_ms) {
            if (!keeper->stream.call)
                open_stream(keeper);
            if (!keeper->is_sending)
                start_send(keeper);
            keeper->next_ms = now_ms + period_ms;
        }
        wait_ms = RK_MIN(wait_ms, keeper->next_ms - now_ms);
    }
    return RK_MAX(wait_ms, 1);
}

/* gRPC polls all sockets of the process in one thread at a time. If that were this thread, it would have to
 * wake the threads of the calls for each of their events. So it waits outside of gRPC while there are calls,
 * whose threads then poll the sockets of the leases too. */
static grpc_event next_event(struct rk_lease_keeper *lease, int64_t wait_ms)
{
    unsigned num_pumped = atomic_load(&lease->driver->num_pumped);
    bool has_calls = atomic_load(&lease->driver->num_pumping) > 0 || num_pumped != lease->num_pumped;
    grpc_event event;

    lease->num_pumped = num_pumped;
    if (has_calls && lease->is_drained)
        rk_time_sleep_ms(RK_MIN(wait_ms, PARK_MS));
    wait_ms = has_calls ? 0 : RK_MIN(wait_ms, RK_DRIVER_POLL_MS);
    event = grpc_completion_queue_next(lease->queue, rk_deadline_in(wait_ms), NULL);
    lease->is_drained = event.type != GRPC_OP_COMPLETE;
    return event;
}

static void *run_lease(void *user)
{
    struct rk_lease_keeper *lease = user;
    grpc_event event;

    do {
        int64_t wait_ms = REOPEN_DELAY_MS;

        pthread_mutex_lock(&lease->lock);
        if (!lease->is_ending)
            wait_ms = renew(lease);
        pthread_mutex_unlock(&lease->lock);
        event = next_event(lease, wait_ms);
        if (event.type != GRPC_OP_COMPLETE)
            continue;
        pthread_mutex_lock(&lease->lock);
        ((struct rk_tag *)event.tag)->on_event(event.tag, event.success != 0);
        pthread_mutex_unlock(&lease->lock);
    } while (event.type != GRPC_QUEUE_SHUTDOWN);
    return NULL;
}

static struct rk_lease_keeper *begin_keeping(struct rk_driver *driver)
{
    struct rk_lease_keeper *lease = rk_calloc(1, sizeof(*lease));
    sigset_t all, old;
    int rc;

    lease->driver = driver;
    lease->ttl_ms = driver->lease_ttl_ms;
    lease->queue = grpc_completion_queue_create_for_next(NULL);
    lease->num_keepers = driver->num_clients;
    lease->keepers = rk_calloc((size_t)driver->num_clients, sizeof(*lease->keepers));
    pthread_mutex_init(&lease->lock, NULL);
    for (int32_t i = 0; i < driver->num_clients; i++) {
        struct keeper *keeper = &lease->keepers[i];

        keeper->lease = lease;
        keeper->client = &driver->clients[i];
        keeper->on_open.on_event = on_open;
        keeper->on_send.on_event = on_send;
        keeper->on_recv.on_event = on_recv;
        keeper->on_status.on_event = on_status;
        atomic_init(&keeper->renewed_ms, rk_time_boot_ms());
    }
    /* Signals belong to the program's own threads. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    rc = pthread_create(&lease->thread, NULL, run_lease, lease);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    RK_ASSERT(rc == 0);
    return lease;
}

static void end_keeping(struct rk_lease_keeper *lease)
{
    pthread_mutex_lock(&lease->lock);
    lease->is_ending = true;
    for (int32_t i = 0; i < lease->num_keepers; i++) {
        if (lease->keepers[i].stream.call)
            grpc_call_cancel(lease->keepers[i].stream.call, NULL);
    }
    grpc_completion_queue_shutdown(lease->queue);
    pthread_mutex_unlock(&lease->lock);
    pthread_join(lease->thread, NULL);
    for (int32_t i = 0; i < lease->num_keepers; i++)
        rk_client_stream_close(&lease->keepers[i].stream);
    grpc_completion_queue_destroy(lease->queue);
    pthread_mutex_destroy(&lease->lock);
    rk_free(lease->keepers);
    rk_free(lease);
}

struct rk_status *rk_driver_check_lease(struct rk_driver *driver)
{
    if (!driver->lease)
        return RK_FAIL(RK_FAILED_PRECONDITION, "the daemons are not claimed; call rk_driver_claim first");
    if (atomic_load(&driver->is_lost))
        return RK_FAIL(RK_FAILED_PRECONDITION,
                       "a worker was lost in an earlier call; claim and configure the group again");
    for (int32_t i = 0; i < driver->num_clients; i++) {
        int64_t age_ms = rk_time_boot_ms() - atomic_load(&driver->lease->keepers[i].renewed_ms);

        if (age_ms * 10 > driver->lease_ttl_ms * 8)
            return rk_error_of_worker(RK_FAIL_REASON(RK_FAILED_PRECONDITION, "LEASE_EXPIRED",
                                                     "the last renewal was acknowledged %.1f s ago; the "
                                                     "lease lasts %.1f s; claim the group again",
                                                     (double)age_ms / 1e3,
                                                     (double)driver->lease_ttl_ms / 1e3),
                                      i, driver->clients[i].address);
    }
    return NULL;
}

/* --- acquisition --- */

/* A daemon with two addresses would have to grant two leases. */
static struct rk_status *check_distinct(const struct rk_driver *driver)
{
    for (int32_t i = 0; i < driver->num_clients; i++) {
        for (int32_t j = 0; j < i; j++) {
            if (driver->clients[i].incarnation == driver->clients[j].incarnation)
                return RK_FAIL(RK_INVALID_ARGUMENT, "workers %d (%s) and %d (%s) are the same daemon", j,
                               driver->clients[j].address, i, driver->clients[i].address);
        }
    }
    return NULL;
}

/* Computes the epoch to request, one above all; stores each daemon's incarnation. */
static struct rk_status *find_epoch(struct rk_driver *driver, struct rk_arena *arena)
{
    struct rk_driver_worker *workers = rk_calloc((size_t)driver->num_clients, sizeof(*workers));
    struct rk_status *st = NULL;

    driver->epoch = 0;
    driver->mesh_generation = 0;
    rk_driver_get_status(driver, arena, workers);
    for (int32_t i = 0; i < driver->num_clients; i++) {
        if (!st)
            st = rk_status_clone(workers[i].error);
        if (st)
            continue;
        driver->epoch = RK_MAX(driver->epoch, workers[i].status.epoch);
        driver->mesh_generation = RK_MAX(driver->mesh_generation, workers[i].status.mesh_generation);
        driver->clients[i].incarnation = workers[i].status.incarnation;
    }
    driver->epoch++;
    if (st)
        st = rk_group_report_explain(st, workers, driver->num_clients);
    for (int32_t i = 0; i < driver->num_clients; i++)
        rk_status_free(workers[i].error);
    rk_free(workers);
    return st ? st : check_distinct(driver);
}

static struct rk_status *read_grant(struct rk_driver *driver, struct rk_client *client,
                                    struct rk_arena *arena, const struct rk_fanout *item)
{
    struct rk_acquire_lease_response grant;

    RK_TRY(rk_unpack_acquire_lease_response(&grant, arena, item->reply.data, item->reply.bytes));
    if (grant.fence.lease_id.bytes != sizeof(client->lease_id_bytes))
        return RK_FAIL(RK_INTERNAL, "the daemon granted a lease id of %zu bytes, expected %zu",
                       grant.fence.lease_id.bytes, sizeof(client->lease_id_bytes));
    memcpy(client->lease_id_bytes, grant.fence.lease_id.data, sizeof(client->lease_id_bytes));
    client->fence = grant.fence;
    client->fence.lease_id.data = client->lease_id_bytes;
    client->next_seq = 1;
    if (grant.ttl_ms > 0) /* the daemon may grant less than requested */
        driver->lease_ttl_ms = RK_MIN(driver->lease_ttl_ms, (int64_t)grant.ttl_ms);
    return NULL;
}

/* Acquires on clients [begin, end). A refusal leaves the others' grants in place. */
static struct rk_status *acquire(struct rk_driver *driver, int32_t begin, int32_t end, struct rk_arena *arena)
{
    struct rk_fanout *items = rk_fanout_create(driver);
    struct rk_status *st;

    for (int32_t i = 0; i < driver->num_clients; i++) {
        struct rk_acquire_lease_request request = {
            .driver_id = driver->driver_id,
            .epoch = driver->epoch,
            .ttl_ms = (uint32_t)driver->lease_ttl_ms,
            .takeover = driver->takeover,
            .incarnation = driver->clients[i].incarnation,
            .driver_key = {.data = driver->identity.key, .bytes = sizeof(driver->identity.key)},
        };

        if (i < begin || i >= end)
            items[i].client = NULL;
        else
            rk_pack_acquire_lease_request(&items[i].request, &request);
    }
    rk_fanout_run(driver, RK_RPC_ID_ACQUIRE_LEASE, items, driver->control_timeout_ms, 0, arena);
    for (int32_t i = begin; i < end; i++) {
        if (!items[i].error)
            items[i].error = read_grant(driver, &driver->clients[i], arena, &items[i]);
    }
    st = rk_fanout_take_error(driver, items);
    rk_fanout_destroy(items, driver->num_clients);
    return st;
}

/* Releases the granted leases; the lease of an unreachable daemon lapses. */
static void release_grants(struct rk_driver *driver)
{
    struct rk_fanout *items = rk_fanout_create(driver);
    struct rk_arena *arena = rk_arena_create(4096, 0);

    for (int32_t i = 0; i < driver->num_clients; i++) {
        struct rk_release_lease_request request = {.fence = driver->clients[i].fence};

        if (driver->clients[i].fence.epoch == 0)
            items[i].client = NULL;
        else
            rk_pack_release_lease_request(&items[i].request, &request);
        driver->clients[i].fence = (struct rk_fence){0};
    }
    rk_fanout_run(driver, RK_RPC_ID_RELEASE_LEASE, items, driver->control_timeout_ms,
                  RK_FANOUT_IGNORE_INTERRUPT, arena);
    RK_IGNORE(rk_fanout_take_error(driver, items), "a lease that is not released lapses");
    rk_arena_destroy(arena);
    rk_fanout_destroy(items, driver->num_clients);
}

static struct rk_status *claim_once(struct rk_driver *driver, struct rk_arena *arena, bool *is_race)
{
    struct rk_status *st;

    *is_race = false;
    RK_TRY(find_epoch(driver, arena));
    st = acquire(driver, 0, 1, arena);
    if (st) {
        /* Worker 0 is the lock: when its lease is held, another driver is active. A stale epoch means that
         * another driver was faster. */
        *is_race = strcmp(rk_status_reason(st), "STALE_EPOCH") == 0;
        return st;
    }
    if (driver->num_clients > 1)
        st = acquire(driver, 1, driver->num_clients, arena);
    if (st) {
        *is_race = strcmp(rk_status_reason(st), "STALE_EPOCH") == 0;
        release_grants(driver);
    }
    return st;
}

static int64_t backoff_ms(void)
{
    uint32_t random = 0;

    RK_IGNORE(rk_random_bytes(&random, sizeof(random)), "the back-off works without jitter");
    return CLAIM_BACKOFF_MS + random % (3 * CLAIM_BACKOFF_MS);
}

static struct rk_status *take_identity(struct rk_driver *driver)
{
    const char **addresses;
    struct rk_status *st;

    if (driver->has_identity)
        return NULL;
    addresses = rk_calloc((size_t)driver->num_clients, sizeof(*addresses));

    for (int32_t i = 0; i < driver->num_clients; i++)
        addresses[i] = driver->clients[i].address;
    st = rk_identity_open(&driver->identity, driver->identity_dir, addresses, driver->num_clients);
    driver->has_identity = st == NULL;
    rk_free(addresses);
    return st;
}

struct rk_status *rk_driver_claim(struct rk_driver *driver)
{
    struct rk_arena *arena;
    struct rk_status *st = NULL;

    RK_TRY(rk_turns_check_idle(&driver->turns, "claim"));
    RK_TRY(take_identity(driver));
    arena = rk_arena_create(16384, 0);
    rk_driver_release(driver);
    for (int attempt = 0; attempt < CLAIM_ATTEMPTS; attempt++) {
        bool is_race;

        if (st)
            rk_time_sleep_ms(backoff_ms());
        rk_status_free(st);
        st = claim_once(driver, arena, &is_race);
        if (!st || !is_race)
            break;
    }
    if (!st) {
        atomic_store(&driver->is_lost, false);
        driver->lease = begin_keeping(driver);
    }
    rk_arena_destroy(arena);
    return st;
}

void rk_driver_release(struct rk_driver *driver)
{
    if (!driver->lease)
        return;
    RK_ASSERT(rk_turns_is_idle(&driver->turns)); /* its futures are done */
    end_keeping(driver->lease);
    driver->lease = NULL;
    release_grants(driver);
}
