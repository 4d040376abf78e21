/* The group of daemons: opening, queries without a lease, shutdown. */
#include "driver/invocation_internal.h"

#include <pwd.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_small_file.h"
#include "driver/token_internal.h"

#define CONTROL_TIMEOUT_MS 10000
#define LEASE_TTL_MS       30000

/* Size of the first version of the ABI. */
#define CONFIG_BYTES_MIN (offsetof(struct rk_driver_config, dry_device) + sizeof(const char *))

char *rk_driver_default_id(void)
{
    char host[256] = {0};
    const struct passwd *user = getpwuid(geteuid());
    bool is_known = gethostname(host, sizeof(host) - 1) == 0;

    return rk_format("%s@%s:%d", user ? user->pw_name : "?", is_known ? host : "?", (int)getpid());
}

uint32_t rk_driver_abi(void)
{
    return RK_DRIVER_ABI;
}

/* The program may have been compiled with fewer fields: the others have their default. */
static struct rk_status *read_config(struct rk_driver_config *out, const struct rk_driver_config *given)
{
    *out = (struct rk_driver_config){0};
    if (given->struct_size < CONFIG_BYTES_MIN || given->struct_size > sizeof(*out))
        return RK_FAIL(
            RK_INVALID_ARGUMENT,
            "rk_driver_config.struct_size=%zu, expected %zu to %zu; the program was compiled with the "
            "headers of another version of librankd_driver",
            given->struct_size, CONFIG_BYTES_MIN, sizeof(*out));
    memcpy(out, given, given->struct_size);
    return NULL;
}

/* TLS files are read only if a TCP address needs them. */
static struct rk_status *read_tls(struct rk_driver_tls *out, const struct rk_driver_config *config)
{
    struct rk_tls_files files = {
        .cert = config->tls_cert, .key = config->tls_key, .ca = config->tls_ca, .prefix = "tls_"};

    for (int32_t i = 0; i < config->num_addresses; i++) {
        if (!rk_str_has_prefix(config->addresses[i], "unix"))
            return rk_driver_tls_init(out, &files);
    }
    return NULL;
}

struct rk_status *rk_driver_open(struct rk_driver **out, const struct rk_driver_config *given)
{
    struct rk_driver_config known;
    const struct rk_driver_config *config = &known;
    struct rk_driver *driver;
    struct rk_status *st;

    *out = NULL;
    RK_TRY(read_config(&known, given));
    if (config->num_addresses < 1)
        return RK_FAIL(RK_INVALID_ARGUMENT, "num_addresses=%d, expected at least 1", config->num_addresses);
    if (config->dry_world_size < 0 || (config->dry_world_size > 0 && config->num_addresses != 1))
        return RK_FAIL(RK_INVALID_ARGUMENT, "a dry run of %d ranks: expected one daemon, got %d",
                       config->dry_world_size, config->num_addresses);
    driver = rk_calloc(1, sizeof(*driver));
    st = config->token_file ? rk_token_read(&driver->token, config->token_file) : NULL;
    if (!st)
        st = read_tls(&driver->tls, config);
    if (st) {
        rk_free(driver->token);
        rk_free(driver);
        return st;
    }
    grpc_init();
    rk_turns_init(&driver->turns);
    atomic_init(&driver->is_lost, false);
    driver->driver_id = config->driver_id ? rk_strdup(config->driver_id) : rk_driver_default_id();
    driver->lease_ttl_ms = config->lease_ttl_ms > 0 ? config->lease_ttl_ms : LEASE_TTL_MS;
    driver->control_timeout_ms =
        config->control_timeout_ms > 0 ? config->control_timeout_ms : CONTROL_TIMEOUT_MS;
    driver->takeover = config->takeover;
    driver->identity_dir = rk_strdup(config->identity_dir);
    driver->chunk_bytes = RK_LIMIT_CHUNK_BYTES_DEFAULT;
    driver->num_clients = config->num_addresses;
    driver->dry_world_size = config->dry_world_size;
    driver->dry_device = rk_strdup(config->dry_device);
    driver->clients = rk_calloc((size_t)driver->num_clients, sizeof(*driver->clients));
    for (int32_t i = 0; i < driver->num_clients; i++)
        rk_client_init(&driver->clients[i], i, config->addresses[i],
                       driver->token ? rk_strdup(driver->token)
                                     : rk_token_find(config->addresses[i], RK_TOKEN_ROOT),
                       &driver->tls);
    *out = driver;
    return NULL;
}

void rk_driver_close(struct rk_driver *driver)
{
    if (!driver)
        return;
    rk_driver_release(driver);
    rk_turns_fini(&driver->turns);
    if (driver->spare_queue)
        rk_pump_end(driver->spare_queue);
    for (int32_t i = 0; i < driver->num_clients; i++)
        rk_client_fini(&driver->clients[i]);
    rk_upload_reap(driver, true);
    for (int32_t i = 0; i < driver->num_roles; i++)
        rk_mesh_destroy(driver->roles[i].mesh);
    rk_free(driver->clients);
    rk_driver_tls_fini(&driver->tls);
    rk_free(driver->token);
    rk_free(driver->device_kind);
    rk_free(driver->device_model);
    rk_free(driver->dry_device);
    if (driver->has_identity)
        rk_identity_close(&driver->identity);
    rk_free(driver->identity_dir);
    rk_free(driver->driver_id);
    rk_free(driver);
    grpc_shutdown_blocking();
}

int32_t rk_driver_num_workers(const struct rk_driver *driver)
{
    return driver->dry_world_size > 0 ? driver->dry_world_size : driver->num_clients;
}

bool rk_driver_is_dry_run(const struct rk_driver *driver)
{
    return driver->dry_world_size > 0;
}

void rk_driver_stand_for(struct rk_driver *driver, int32_t rank)
{
    RK_ASSERT(rk_driver_is_dry_run(driver));
    RK_ASSERT(rank >= 0 && rank < driver->dry_world_size);
    driver->dry_rank = rank;
}

uint64_t rk_driver_epoch(const struct rk_driver *driver)
{
    return driver->epoch;
}

void rk_driver_interrupt(struct rk_driver *driver)
{
    atomic_fetch_add(&driver->interrupts, 1);
}

bool rk_driver_is_interrupted(const struct rk_driver *driver)
{
    return atomic_load(&driver->interrupts) > 0;
}

bool rk_driver_resume(struct rk_driver *driver)
{
    int interrupts = 1;

    return atomic_compare_exchange_strong(&driver->interrupts, &interrupts, 0) || interrupts == 0;
}

void rk_driver_get_status(struct rk_driver *driver, struct rk_arena *arena, struct rk_driver_worker *workers)
{
    struct rk_fanout *items = rk_fanout_create(driver);

    rk_fanout_run(driver, RK_RPC_ID_GET_STATUS, items, driver->control_timeout_ms, RK_FANOUT_IGNORE_INTERRUPT,
                  arena);
    for (int32_t i = 0; i < driver->num_clients; i++) {
        workers[i] =
            (struct rk_driver_worker){.address = driver->clients[i].address, .error = items[i].error};
        items[i].error = NULL;
        if (!workers[i].error)
            workers[i].error =
                rk_unpack_worker_status(&workers[i].status, arena, items[i].reply.data, items[i].reply.bytes);
        if (workers[i].error)
            workers[i].error = rk_error_of_worker(workers[i].error, i, workers[i].address);
    }
    rk_fanout_destroy(items, driver->num_clients);
}

struct rk_status *rk_driver_list_methods(struct rk_driver *driver, struct rk_arena *arena,
                                         struct rk_list_methods_response *out)
{
    struct rk_fanout *items = rk_fanout_create(driver);
    struct rk_status *st;

    *out = (struct rk_list_methods_response){0};
    for (int32_t i = 1; i < driver->num_clients; i++)
        items[i].client = NULL;
    rk_fanout_run(driver, RK_RPC_ID_LIST_METHODS, items, driver->control_timeout_ms, 0, arena);
    RK_TRY_GOTO(st, rk_fanout_take_error(driver, items), out);
    st = rk_unpack_list_methods_response(out, arena, items[0].reply.data, items[0].reply.bytes);
out:
    rk_fanout_destroy(items, driver->num_clients);
    return st;
}

struct rk_status *rk_driver_shutdown(struct rk_driver *driver, uint32_t grace_ms, bool force,
                                     const char *reason)
{
    struct rk_shutdown_request request = {.grace_ms = grace_ms, .force = force, .reason = reason};
    struct rk_fanout *items = rk_fanout_create(driver);
    struct rk_arena *arena = rk_arena_create(4096, 0);
    struct rk_status *st;

    for (int32_t i = 0; i < driver->num_clients; i++)
        rk_pack_shutdown_request(&items[i].request, &request);
    rk_fanout_run(driver, RK_RPC_ID_SHUTDOWN, items, driver->control_timeout_ms, 0, arena);
    st = rk_fanout_take_error(driver, items);
    rk_arena_destroy(arena);
    rk_fanout_destroy(items, driver->num_clients);
    return st;
}
