/* Goal: worlds are created and destroyed without leaks, and foreign connections are rejected without
 * disturbing a world. Method: real endpoints; foreign processes connect to the listeners while ranks are
 * still missing. */
#include "tests/support/test.h"

#include <arpa/inet.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_rng.h"
#include "base/rk_time.h"
#include "engine/rk_comm.h"
#include "tests/support/ranks.h"

static const int32_t all_ranks[] = {0, 1, 2, 3};

/* Shared by the ranks of one run. */
struct run {
    struct rk_test_rendezvous *rendezvous;
    const char *listen_host;
    char address[3][256];
    uint8_t id[RK_COMM_ID_BYTES];
    uint64_t seed;
    atomic_bool has_started; /* the foreign rank's attempts have begun */
    int32_t stopped_rank;
};

static struct run *run_create(const char *listen_host)
{
    struct run *run = rk_test_shared_alloc(sizeof(*run));

    run->rendezvous = rk_test_rendezvous_create();
    run->listen_host = listen_host;
    run->seed = rk_test_seed();
    return run;
}

static void run_destroy(struct run *run)
{
    rk_test_rendezvous_destroy(run->rendezvous);
    rk_test_shared_free(run, sizeof(*run));
}

/* Checks that a sum over all ranks works. */
static int check_works(struct rk_comm_world *world)
{
    int32_t n = rk_comm_world_size(world), x = rk_comm_world_rank(world) + 1;
    struct rk_comm_group *group;

    RK_RANK_OK(rk_comm_group_create(&group, world, "all", all_ranks, n));
    RK_RANK_OK(rk_comm_all_reduce(group, NULL, rk_tensor_1d(&x, RK_DTYPE_I32, 1), RK_REDUCE_SUM));
    RK_RANK_CHECK(x == n * (n + 1) / 2, "sum %d", x);
    rk_comm_group_destroy(group);
    return 0;
}

/* --- creation and destruction --- */

static int rank_many_worlds(int32_t rank, int32_t num_ranks, void *user)
{
    struct run *run = user;
    int num_fds = rk_test_num_fds();

    for (int i = 0; i < 100; i++) {
        struct rk_comm_world *world;

        RK_RANK_OK(rk_test_world_create(&world, run->rendezvous, rank, num_ranks, run->listen_host, NULL));
        if (check_works(world))
            return 1;
        RK_RANK_CHECK(rk_test_num_fds() == num_fds + 2 * (num_ranks - 1) + 1, "%d descriptors, %d before",
                      rk_test_num_fds(), num_fds);
        rk_comm_world_destroy(world);
        RK_RANK_CHECK(rk_test_num_fds() == num_fds, "%d descriptors, %d before", rk_test_num_fds(), num_fds);
    }
    return 0;
}

static bool has_ipv6(void)
{
    struct sockaddr_in6 sin6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool is_bound = fd >= 0 && bind(fd, (struct sockaddr *)&sin6, sizeof(sin6)) == 0;

    if (fd >= 0)
        close(fd);
    return is_bound;
}

/* The listener is closed as soon as the mesh is connected; LeakSanitizer checks memory when the rank exits.
 */
static void test_comm_world_hundred_times_keeps_nothing(void **state)
{
    static const char *const hosts[] = {"unix", "127.0.0.1", "::1"};

    (void)state;
    for (size_t h = 0; h < RK_ARRAY_LEN(hosts); h++) {
        struct run *run = run_create(hosts[h]);

        if (strcmp(hosts[h], "::1") == 0 && !has_ipv6()) {
            print_message("no IPv6 loopback on this host\n");
            run_destroy(run);
            continue;
        }
        print_message("%s\n", hosts[h]);
        assert_int_equal(rk_test_run_ranks(3, rank_many_worlds, run, 60), 0);
        run_destroy(run);
    }
}

static int run_alone(struct rk_comm_world *world, void *user)
{
    struct rk_status *st;

    (void)user;
    RK_RANK_CHECK(rk_comm_world_size(world) == 1 && rk_comm_world_rank(world) == 0, "size and rank");
    RK_RANK_OK(rk_comm_world_check(world));
    if (check_works(world))
        return 1;
    rk_comm_world_abort(world, "enough");
    st = rk_comm_world_check(world);
    RK_RANK_CHECK(rk_status_code(st) == RK_ABORTED, "%s", rk_status_message(st));
    rk_status_free(st);
    return 0;
}

static void test_comm_world_of_one_rank_works(void **state)
{
    (void)state;
    assert_int_equal(rk_test_run_world(1, "unix", run_alone, NULL, 10), 0);
}

/* --- refusals --- */

struct stranger_case {
    const char *label;
    uint64_t generation; /* of the foreign rank; the world has 7 */
    bool has_wrong_id;
    int32_t claimed_rank, claimed_size;
    rk_code_t code;
    const char *text;
};

static const struct stranger_case stranger_cases[] = {
    {"stale generation", 6, false, 2, 3, RK_FAILED_PRECONDITION, "rank 0 refuses mesh_generation=6"},
    {"future generation", 8, false, 2, 3, RK_FAILED_PRECONDITION, "rank 0 refuses mesh_generation=8"},
    {"wrong id", 7, true, 2, 3, RK_UNAUTHENTICATED, "rank 0"},
    {"rank out of range", 7, false, 3, 4, RK_FAILED_PRECONDITION, "rank 0 refuses rank=3 of world_size=4"},
    {"another world size", 7, false, 2, 4, RK_FAILED_PRECONDITION, "rank 0 refuses rank=2 of world_size=4"},
};

/* The identity that a rank claims. */
struct claim {
    int32_t rank, world_size;
    uint64_t generation;
    const uint8_t *id;
};

/* Takes ownership of the endpoint. */
static struct rk_status *join(struct rk_comm_world **world, struct rk_comm_endpoint *endpoint,
                              struct run *run, const struct claim *claim)
{
    const char *addresses[4];
    const struct rk_comm_world_config config = {.struct_size = sizeof(config),
                                                .rank = claim->rank,
                                                .world_size = claim->world_size,
                                                .generation = claim->generation,
                                                .addresses = addresses,
                                                .id = claim->id,
                                                .connect_timeout_ms = 20000};

    for (int32_t r = 0; r < 4; r++)
        addresses[r] = run->address[RK_MIN(r, 2)];
    return rk_comm_world_create(world, endpoint, &config);
}

static int open_endpoint(struct rk_comm_endpoint **endpoint, struct run *run, bool make_id)
{
    struct rk_comm_endpoint_config config = {
        .struct_size = sizeof(config), .backend = "cpu", .listen_host = run->listen_host, .make_id = make_id};

    RK_RANK_OK(rk_comm_endpoint_open(endpoint, &config));
    return 0;
}

/* A member of the world that rank 3, the foreign rank, tries to join. Rank 2 joins only after these
 * attempts. */
static int be_member(struct run *run, int32_t rank, struct rk_comm_world **world)
{
    struct rk_comm_endpoint *endpoint;
    uint8_t id[RK_COMM_ID_BYTES];
    const struct claim claim = {.rank = rank, .world_size = 3, .generation = 7, .id = id};

    if (open_endpoint(&endpoint, run, rank == 0))
        return 1;
    snprintf(run->address[rank], sizeof(run->address[rank]), "%s", rk_comm_endpoint_address(endpoint));
    if (rank == 0)
        memcpy(run->id, rk_comm_endpoint_id(endpoint), sizeof(run->id));
    rk_test_meet(run->rendezvous, 4);
    memcpy(id, run->id, sizeof(id));
    if (rank == 2)
        rk_test_meet(run->rendezvous, 2);
    RK_RANK_OK(join(world, endpoint, run, &claim));
    return 0;
}

/* Makes all invalid attempts; each ends with a reply, not with a timeout. */
static int be_stranger(struct run *run)
{
    for (size_t c = 0; c < RK_ARRAY_LEN(stranger_cases); c++) {
        const struct stranger_case *s = &stranger_cases[c];
        struct rk_comm_endpoint *endpoint;
        struct rk_comm_world *world;
        struct rk_status *st;
        uint8_t id[RK_COMM_ID_BYTES];
        const struct claim claim = {
            .rank = s->claimed_rank, .world_size = s->claimed_size, .generation = s->generation, .id = id};

        memcpy(id, run->id, sizeof(id));
        id[17] ^= (uint8_t)s->has_wrong_id;
        if (open_endpoint(&endpoint, run, false))
            return 1;
        st = join(&world, endpoint, run, &claim);
        RK_RANK_CHECK(!world, "%s: admitted", s->label);
        RK_RANK_CHECK(rk_status_code(st) == s->code && strstr(rk_status_message(st), s->text), "%s: %s %s",
                      s->label, rk_code_name(rk_status_code(st)), rk_status_message(st));
        rk_status_free(st);
    }
    return 0;
}

static int rank_with_stranger(int32_t rank, int32_t num_ranks, void *user)
{
    struct run *run = user;
    struct rk_comm_world *world;

    (void)num_ranks;
    if (rank == 3) {
        rk_test_meet(run->rendezvous, 4);
        if (be_stranger(run))
            return 1;
        rk_test_meet(run->rendezvous, 2);
        return 0;
    }
    if (be_member(run, rank, &world) || check_works(world))
        return 1;
    rk_comm_world_destroy(world);
    return 0;
}

static void test_comm_world_create_refuses_strangers_and_comes_up(void **state)
{
    static const char *const hosts[] = {"unix", "127.0.0.1"};

    (void)state;
    for (size_t h = 0; h < RK_ARRAY_LEN(hosts); h++) {
        struct run *run = run_create(hosts[h]);

        print_message("%s\n", hosts[h]);
        assert_int_equal(rk_test_run_ranks(4, rank_with_stranger, run, 60), 0);
        run_destroy(run);
    }
}

/* --- noise --- */

static int connect_raw(const char *address)
{
    struct sockaddr_un sun = {.sun_family = AF_UNIX};
    struct sockaddr_in sin = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const char *name = strchr(address, '@');
    int fd = socket(name ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), rc;

    if (name) {
        memcpy(sun.sun_path + 1, name + 1, strlen(name + 1));
        rc = connect(fd, (struct sockaddr *)&sun,
                     (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name)));
    } else {
        sin.sin_port = htons((uint16_t)strtol(strrchr(address, ':') + 1, NULL, 10));
        rc = connect(fd, (struct sockaddr *)&sin, sizeof(sin));
    }
    if (rc == 0)
        return fd;
    close(fd);
    return -1;
}

/* Connections that send nothing, too few bytes, or too much invalid data, all open at the same time. */
static int make_noise(struct run *run)
{
    enum { NUM_CONNECTIONS = 150 }; /* more than the limit of unauthenticated connections */
    int fds[NUM_CONNECTIONS];
    struct rk_rng rng;
    char junk[512];

    rk_rng_init(&rng, run->seed, 2);
    for (int i = 0; i < NUM_CONNECTIONS; i++) {
        int64_t bytes = i % 3 == 0 ? 0 : rk_rng_next_below(&rng, i % 3 == 1 ? 48 : (int64_t)sizeof(junk)) + 1;

        fds[i] = connect_raw(run->address[i % 2]);
        RK_RANK_CHECK(fds[i] >= 0, "connection %d to %s", i, run->address[i % 2]);
        for (int64_t b = 0; b < bytes; b++)
            junk[b] = (char)rk_rng_next_u32(&rng);
        (void)!send(fds[i], junk, (size_t)bytes, MSG_NOSIGNAL); /* may have been closed already */
    }
    rk_test_meet(run->rendezvous, 2);
    rk_time_sleep_ms(100); /* silent connections stay open while the last rank joins */
    for (int i = 0; i < NUM_CONNECTIONS; i++)
        close(fds[i]);
    return 0;
}

static int rank_with_noise(int32_t rank, int32_t num_ranks, void *user)
{
    struct run *run = user;
    struct rk_comm_world *world;

    (void)num_ranks;
    if (rank == 3) {
        rk_test_meet(run->rendezvous, 4);
        return make_noise(run);
    }
    if (be_member(run, rank, &world) || check_works(world))
        return 1;
    rk_comm_world_destroy(world);
    return 0;
}

static void test_comm_world_create_with_noise_at_the_listeners_comes_up(void **state)
{
    static const char *const hosts[] = {"unix", "127.0.0.1"};

    (void)state;
    for (size_t h = 0; h < RK_ARRAY_LEN(hosts); h++) {
        struct run *run = run_create(hosts[h]);

        print_message("%s\n", hosts[h]);
        assert_int_equal(rk_test_run_ranks(4, rank_with_noise, run, 60), 0);
        run_destroy(run);
    }
}

/* --- ranks that never arrive --- */

static int open_endpoint_only(struct run *run, int32_t num_ranks)
{
    struct rk_comm_endpoint *endpoint;

    if (open_endpoint(&endpoint, run, false))
        return 1;
    rk_test_meet(run->rendezvous, num_ranks);
    rk_time_sleep_ms(500);
    rk_comm_endpoint_close(endpoint);
    return 0;
}

static int rank_missing(int32_t rank, int32_t num_ranks, void *user)
{
    struct run *run = user;
    struct rk_comm_world_config config = {.connect_timeout_ms = 300};
    struct rk_comm_world *world;
    struct rk_status *st;

    if (rank >= 2)
        return open_endpoint_only(run, num_ranks);
    st = rk_test_world_create(&world, run->rendezvous, rank, num_ranks, run->listen_host, &config);
    RK_RANK_CHECK(!world, "a world without ranks 2 and 3");
    RK_RANK_CHECK(strstr(rk_status_message(st), "no connection from rank 2, 3 within 300 ms"), "%s",
                  rk_status_message(st));
    rk_status_free(st);
    return 0;
}

static void test_comm_world_create_names_missing_ranks(void **state)
{
    struct run *run = run_create("unix");

    (void)state;
    assert_int_equal(rk_test_run_ranks(4, rank_missing, run, 30), 0);
    run_destroy(run);
}

/* Rank 2 has a short timeout for rank 3, the others a long one. Rank 2 informs them when it fails. */
static int rank_impatient(int32_t rank, int32_t num_ranks, void *user)
{
    struct run *run = user;
    struct rk_comm_world_config config = {.connect_timeout_ms = rank == 2 ? 300 : 25000};
    int64_t start_ns = rk_time_now_ns();
    struct rk_comm_world *world;
    struct rk_status *st;

    if (rank == 3)
        return open_endpoint_only(run, num_ranks);
    st = rk_test_world_create(&world, run->rendezvous, rank, num_ranks, run->listen_host, &config);
    RK_RANK_CHECK(!world, "a world without rank 3");
    RK_RANK_CHECK(rk_time_now_ns() - start_ns < 10000000000, "waited for the timeout");
    RK_RANK_CHECK(strstr(rk_status_message(st), "no connection from rank 3 within 300 ms"), "%s",
                  rk_status_message(st));
    RK_RANK_CHECK(rk_status_code(st) == (rank == 2 ? RK_DEADLINE_EXCEEDED : RK_ABORTED), "%s",
                  rk_code_name(rk_status_code(st)));
    rk_status_free(st);
    return 0;
}

static void test_comm_world_create_ends_when_a_peer_gives_up(void **state)
{
    struct run *run = run_create("127.0.0.1");

    (void)state;
    assert_int_equal(rk_test_run_ranks(4, rank_impatient, run, 30), 0);
    run_destroy(run);
}

/* A rank that is asked to stop while it waits for a missing rank aborts at once, independent of its timeout,
 * and informs the others. */
static bool stops_after_300_ms(void *user)
{
    return rk_time_now_ns() > *(const int64_t *)user + 300000000;
}

static int rank_asked_to_stop(int32_t rank, int32_t num_ranks, void *user)
{
    struct run *run = user;
    int64_t begin_ns = rk_time_now_ns();
    struct rk_comm_world_config config = {.connect_timeout_ms = 25000, .user = &begin_ns};
    struct rk_comm_world *world;
    struct rk_status *st;

    if (rank == 3)
        return open_endpoint_only(run, num_ranks);
    if (rank == run->stopped_rank)
        config.should_stop = stops_after_300_ms;
    st = rk_test_world_create(&world, run->rendezvous, rank, num_ranks, run->listen_host, &config);
    RK_RANK_CHECK(!world, "a world without rank 3");
    RK_RANK_CHECK(rk_time_now_ns() - begin_ns < 10000000000, "waited for the timeout");
    RK_RANK_CHECK(rk_status_code(st) == RK_ABORTED && strcmp(rk_status_reason(st), "COMM_ABORTED") == 0, "%s",
                  rk_status_message(st));
    rk_status_free(st);
    return 0;
}

static void test_comm_world_create_ends_when_asked_to_stop(void **state)
{
    (void)state;
    for (int32_t rank = 0; rank < 3; rank++) {
        struct run *run = run_create("127.0.0.1");

        run->stopped_rank = rank;
        assert_int_equal(rk_test_run_ranks(4, rank_asked_to_stop, run, 30), 0);
        run_destroy(run);
    }
}

/* --- configuration --- */

struct endpoint_case {
    const char *label, *backend, *listen_host;
    rk_code_t code;
    const char *text;
};

static void test_comm_endpoint_open_with_bad_config_fails(void **state)
{
    static const struct endpoint_case cases[] = {
        {"no backend", NULL, "unix", RK_INVALID_ARGUMENT, "name of the collective backend"},
        {"unknown backend", "smoke", "unix", RK_NOT_FOUND, "collectives 'smoke'"},
        {"no host", "cpu", NULL, RK_INVALID_ARGUMENT, "listen_host is missing"},
        {"all addresses", "cpu", "0.0.0.0", RK_INVALID_ARGUMENT, "that peers can connect to"},
        {"all IPv6 addresses", "cpu", "::", RK_INVALID_ARGUMENT, "that peers can connect to"},
        {"not this host", "cpu", "192.0.2.1", RK_UNAVAILABLE, "listening on '192.0.2.1'"},
    };
    struct rk_comm_endpoint *endpoint;

    (void)state;
    for (size_t c = 0; c < RK_ARRAY_LEN(cases); c++) {
        struct rk_comm_endpoint_config config = {
            .struct_size = sizeof(config), .backend = cases[c].backend, .listen_host = cases[c].listen_host};

        print_message("%s\n", cases[c].label);
        assert_fails(rk_comm_endpoint_open(&endpoint, &config), cases[c].code, cases[c].text);
        assert_null(endpoint);
    }
}

static void test_comm_endpoint_open_makes_ids_that_differ(void **state)
{
    struct rk_comm_endpoint_config config = {
        .struct_size = sizeof(config), .backend = "cpu", .listen_host = "unix", .make_id = true};
    struct rk_comm_endpoint *a, *b;

    (void)state;
    assert_ok(rk_comm_endpoint_open(&a, &config));
    assert_ok(rk_comm_endpoint_open(&b, &config));
    assert_memory_not_equal(rk_comm_endpoint_id(a), rk_comm_endpoint_id(b), RK_COMM_ID_BYTES);
    assert_string_not_equal(rk_comm_endpoint_address(a), rk_comm_endpoint_address(b));
    rk_comm_endpoint_close(a);
    rk_comm_endpoint_close(b);
    config.make_id = false;
    assert_ok(rk_comm_endpoint_open(&a, &config));
    assert_null(rk_comm_endpoint_id(a));
    rk_comm_endpoint_close(a);
    rk_comm_endpoint_close(NULL);
    rk_comm_world_destroy(NULL);
    rk_comm_group_destroy(NULL);
}

struct world_case {
    const char *label;
    int32_t rank, world_size;
    bool has_no_id;
    int64_t timeout_ms;
    const char *address;
    const char *text;
};

#define LONG_NAME \
    "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"

static void test_comm_world_create_with_bad_config_fails(void **state)
{
    static const struct world_case cases[] = {
        {"no ranks", 0, 0, false, 0, "unix:@x", "world_size=0, expected 1 to 4096"},
        {"too many ranks", 0, 4097, false, 0, "unix:@x", "world_size=4097"},
        {"negative rank", -1, 2, false, 0, "unix:@x", "rank=-1, expected 0 to 1"},
        {"rank too large", 2, 2, false, 0, "unix:@x", "rank=2, expected 0 to 1"},
        {"no id", 0, 1, true, 0, "unix:@x", "the id of the world is missing"},
        {"negative timeout", 0, 1, false, -1, "unix:@x", "connect_timeout_ms=-1"},
        {"no address", 1, 2, false, 0, NULL, "the mesh address of rank 0 is missing"},
        {"empty address", 1, 2, false, 0, "", "expected HOST:PORT"},
        {"no port", 1, 2, false, 0, "127.0.0.1", "expected HOST:PORT"},
        {"empty port", 1, 2, false, 0, "127.0.0.1:", "expected HOST:PORT"},
        {"no host", 1, 2, false, 0, ":80", "expected HOST:PORT"},
        {"brackets only", 1, 2, false, 0, "[]:80", "expected HOST:PORT"},
        {"port out of range", 1, 2, false, 0, "127.0.0.1:99999x", "address '127.0.0.1'"},
        {"no name", 1, 2, false, 0, "unix:@", "expected a name of 1 to 107 bytes"},
        {"name too long", 1, 2, false, 0, "unix:@" LONG_NAME "01234567", "expected a name of 1 to 107 bytes"},
        {"host too long", 1, 2, false, 0, LONG_NAME LONG_NAME ":80", "expected HOST:PORT"},
    };
    const struct rk_comm_endpoint_config endpoint_config = {
        .struct_size = sizeof(endpoint_config), .backend = "cpu", .listen_host = "unix"};
    static const uint8_t id[RK_COMM_ID_BYTES] = {1};
    int num_fds = rk_test_num_fds();

    (void)state;
    for (size_t c = 0; c < RK_ARRAY_LEN(cases); c++) {
        const char *addresses[] = {cases[c].address, cases[c].address};
        struct rk_comm_world_config config = {.struct_size = sizeof(config),
                                              .rank = cases[c].rank,
                                              .world_size = cases[c].world_size,
                                              .addresses = addresses,
                                              .id = cases[c].has_no_id ? NULL : id,
                                              .connect_timeout_ms = cases[c].timeout_ms};
        struct rk_comm_endpoint *endpoint;
        struct rk_comm_world *world;

        print_message("%s\n", cases[c].label);
        assert_ok(rk_comm_endpoint_open(&endpoint, &endpoint_config));
        assert_fails(rk_comm_world_create(&world, endpoint, &config), RK_INVALID_ARGUMENT, cases[c].text);
        assert_null(world);
    }
    assert_int_equal(rk_test_num_fds(), num_fds); /* ownership of the endpoint is taken on failure too */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_world_hundred_times_keeps_nothing),
        cmocka_unit_test(test_comm_world_of_one_rank_works),
        cmocka_unit_test(test_comm_world_create_refuses_strangers_and_comes_up),
        cmocka_unit_test(test_comm_world_create_with_noise_at_the_listeners_comes_up),
        cmocka_unit_test(test_comm_world_create_names_missing_ranks),
        cmocka_unit_test(test_comm_world_create_ends_when_a_peer_gives_up),
        cmocka_unit_test(test_comm_world_create_ends_when_asked_to_stop),
        cmocka_unit_test(test_comm_endpoint_open_with_bad_config_fails),
        cmocka_unit_test(test_comm_endpoint_open_makes_ids_that_differ),
        cmocka_unit_test(test_comm_world_create_with_bad_config_fails),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
