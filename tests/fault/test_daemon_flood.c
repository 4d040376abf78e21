/* Peers that flood a daemon with frames of HTTP/2 or with TLS handshakes, without a token. For every flood
 * the daemon's memory is bounded, a normal client is answered at once, and a training run continues. The
 * daemon is in a control group of 512 MiB if the test may create one; otherwise the test prints that.
 *
 * RK_TEST_SECONDS: how long each flood takes (default: 0.4 s). RK_TEST_FLOOD: only the one of that name.
 * RK_TEST_ATTACKER_NICE: see flood.h. Latency depends on free cores: on a busy machine run it with `nice -n
 * -10` (root). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/config/rk_config.h"
#include "base/rk_env.h"
#include "base/rk_time.h"
#include "tests/fault/flood.h"
#include "tests/fault/under_attack.h"
#include "tests/proc/cli_fixture.h"
#include "tests/proc/daemon_fixture.h"
#include "tests/support/certs.h"
#include "tests/support/control_group.h"

#define GROUP_BYTES  (512LL << 20)
#define RSS_MAX_KIB  (256 << 10)
#define RSS_BACK_KIB (32 << 10) /* above the value before the flood */
#define RSS_BACK_MS  10000
#define GROWTH_KIB   (8 << 10) /* a round of floods: a leak of 1 MiB a flood, or less */
#define ROUNDS_MAX   6
#define P99_MAX_MS   250.0
#define FLOOD_MS     400
#define P99_MS       10000 /* shorter floods do not measure the tail */
#define SAMPLES_MAX  100000
#define MS           1000000LL
#define NUM_CLIENTS  64
#define NUM_CALLERS  8 /* threads */
#define NUM_CALLS    10000
#define NEW_CLIENTS  5

typedef enum transport { PLAIN, TLS, MUTUAL_TLS } transport_t;

struct bench {
    struct fixture fixture;
    struct rk_test_group *group; /* NULL: could not be created */
    transport_t transport;
    struct attack_run run;
    char *token_path;
    int64_t flood_ms;
};

/* 0: not given. */
static int64_t given_seconds(void)
{
    const char *text = rk_env("RK_TEST_SECONDS");
    int64_t seconds = 0;

    assert_true(!text || rk_parse_i64(text, &seconds));
    return seconds;
}

/* --- the daemon, the normal client and the run --- */

static struct rk_client *new_client(const struct bench *bench)
{
    const char *address = rk_proc_address(bench->fixture.proc);
    struct rk_tls_files files;

    if (bench->transport == PLAIN)
        return rk_client_create(address, ATTACK_TOKEN);
    files = rk_test_tls_files(bench->transport == MUTUAL_TLS ? "client" : NULL, "ca");
    return rk_client_create_tls(address, ATTACK_TOKEN, &files);
}

static void start_daemon_in_group(struct bench *bench, const char *const *args)
{
    char *why;

    bench->group = rk_test_group_create(&why, GROUP_BYTES);
    if (why)
        print_message(
            "NO CONTROL GROUP of %lld MiB (%s): the daemon's resident memory is checked all the same\n",
            GROUP_BYTES >> 20, why);
    rk_free(why);
    /* Keeps AddressSanitizer, if used, from retaining freed memory. */
    setenv("ASAN_OPTIONS", "quarantine_size_mb=1:thread_local_quarantine_size_kb=64", 1);
    if (bench->group)
        rk_test_group_enter(bench->group);
    fixture_start(&bench->fixture, args);
    if (bench->group)
        rk_test_group_leave(bench->group);
    unsetenv("ASAN_OPTIONS");
}

/* A daemon with a token. */
static void start(struct bench *bench, transport_t transport)
{
    struct rk_tls_files files = {.prefix = ""};
    char *tokens = write_secret("tokens", "admin:" ATTACK_TOKEN "\n", 0600), *flags[5];
    const char *args[8] = {"--cpu.num_threads=1", "--health.listen=127.0.0.1:0"};
    int num_flags = 0;

    *bench = (struct bench){.transport = transport,
                            .flood_ms = given_seconds() ? given_seconds() * 1000 : FLOOD_MS};
    bench->token_path = write_secret("token", ATTACK_TOKEN "\n", 0600);
    flags[num_flags++] = rk_format("--rpc.token_file=%s", tokens);
    flags[num_flags++] = rk_format("--ckpt.roots=[\"%s\"]", rk_test_temp_dir());
    if (transport != PLAIN) {
        rk_test_make_certs();
        files = rk_test_tls_files("host", "ca");
        flags[num_flags++] = rk_format("--rpc.tls_cert=%s", files.cert);
        flags[num_flags++] = rk_format("--rpc.tls_key=%s", files.key);
    }
    if (transport == MUTUAL_TLS)
        flags[num_flags++] = rk_format("--rpc.tls_ca=%s", files.ca);
    for (int i = 0; i < num_flags; i++)
        args[2 + i] = flags[i];
    start_daemon_in_group(bench, args);
    rk_client_destroy(bench->fixture.client);
    bench->fixture.client = new_client(bench);
    for (int i = 0; i < num_flags; i++)
        rk_free(flags[i]);
    rk_free(tokens);
}

static void stop(struct bench *bench)
{
    fixture_stop(&bench->fixture);
    if (bench->group) {
        print_message("control group: %lld of %lld MiB at most, the kernel's included\n",
                      (long long)rk_test_group_peak_bytes(bench->group) >> 20, GROUP_BYTES >> 20);
        assert_int_equal(rk_test_group_num_killed(bench->group), 0);
    }
    rk_test_group_destroy(bench->group);
    rk_free(bench->token_path);
}

/* Starts an endless training run and waits for its first step. */
static void start_run(struct bench *bench)
{
    const char *more[9] = {"actor_rollout_ref.actor.megatron.tensor_model_parallel_size=1",
                           "actor_rollout_ref.rollout.tensor_model_parallel_size=1"};

    if (bench->transport != PLAIN) {
        more[2] = "--tls-ca";
        more[3] = rk_test_cert_path("ca", "crt");
    }
    if (bench->transport == MUTUAL_TLS) {
        more[4] = "--tls-cert";
        more[5] = rk_test_cert_path("client", "crt");
        more[6] = "--tls-key";
        more[7] = rk_test_cert_path("client", "key");
    }
    attack_run_start(&bench->run, rk_proc_address(bench->fixture.proc), bench->token_path, more);
}

/* --- one flood --- */

struct seen {
    int64_t peak_kib;
    int num_samples;
    double *samples; /* milliseconds of GetStatus */
};

/* Calls GetStatus repeatedly during the attack, which goes on until every attacker has connected. */
static void watch_attack(struct seen *seen, struct bench *bench, const struct attack *attack)
{
    int64_t end_ns = rk_time_now_ns() + bench->flood_ms * MS;
    struct rk_worker_status status;

    while ((rk_time_now_ns() < end_ns || attack->num_connections < FLOOD_ATTACKERS) &&
           seen->num_samples < SAMPLES_MAX) {
        int64_t begin_ns = rk_time_now_ns();

        assert_true(rk_proc_is_running(bench->fixture.proc));
        assert_ok(rk_client_get_status(bench->fixture.client, &status));
        seen->samples[seen->num_samples++] = (double)(rk_time_now_ns() - begin_ns) / 1e6;
        seen->peak_kib = RK_MAX(seen->peak_kib, rk_proc_rss_kib(bench->fixture.proc));
        rk_time_sleep_ms(ATTACK_SAMPLE_MS);
    }
}

/* Returns the resident memory once it is below the limit, or after 10 s. */
static int64_t wait_back(struct bench *bench, int64_t limit_kib)
{
    int64_t begin_ns = rk_time_now_ns();

    while (rk_proc_rss_kib(bench->fixture.proc) > limit_kib &&
           rk_time_now_ns() - begin_ns < rk_proc_timeout_ms(RSS_BACK_MS) * 1000000)
        rk_time_sleep_ms(ATTACK_SAMPLE_MS);
    return rk_proc_rss_kib(bench->fixture.proc);
}

static void check_latency(const char *label, const struct seen *seen, int64_t flood_ms)
{
#ifdef __SANITIZE_ADDRESS__ /* which makes everything ten times slower */
    (void)label;
    (void)seen;
    (void)flood_ms;
#else
    if (flood_ms >= P99_MS)
        assert_below(label, seen->samples[seen->num_samples * 99 / 100], P99_MAX_MS);
#endif
}

static void run_attack(struct bench *bench, struct attack *attack)
{
    const char *label = attack->only_handshake ? "TLS handshakes" : attack->flood->label;
    struct seen seen = {.samples = rk_calloc(SAMPLES_MAX, sizeof(double))};
    int64_t before_kib = rk_proc_rss_kib(bench->fixture.proc), after_kib,
            steps = bench->run.proc ? attack_run_num_steps(&bench->run) : 0;

    flood_begin(attack);
    watch_attack(&seen, bench, attack);
    if (bench->run.proc) {
        attack_run_wait_step(&bench->run, steps); /* before the attack ends */
        steps = attack_run_num_steps(&bench->run) - steps;
    }
    flood_end(attack);
    after_kib = wait_back(bench, before_kib + RSS_BACK_KIB);
    attack_sort_samples(seen.samples, seen.num_samples);
    print_message(
        "%s%s: %.1f MB sent over %d connections; resident %lld, at most %lld, then %lld MiB; GetStatus "
        "p50 %.2f ms, p99 %.2f ms, at most %.2f ms, %d times; %lld steps of the run\n",
        label, attack->tls && !attack->only_handshake ? " over TLS" : "", (double)attack->sent_bytes / 1e6,
        (int)attack->num_connections, (long long)before_kib >> 10, (long long)seen.peak_kib >> 10,
        (long long)after_kib >> 10, seen.samples[seen.num_samples / 2],
        seen.samples[seen.num_samples * 99 / 100], seen.samples[seen.num_samples - 1], seen.num_samples,
        (long long)steps);
    assert_true(attack->num_connections >= FLOOD_ATTACKERS);
    assert_true(seen.peak_kib <= RSS_MAX_KIB);
    assert_true(after_kib <= before_kib + RSS_BACK_KIB);
    check_latency(label, &seen, bench->flood_ms);
    rk_free(seen.samples);
}

static void run_flood(struct bench *bench, const char *address, flood_kind_t kind, struct rk_tls *tls)
{
    const char *only = rk_env("RK_TEST_FLOOD");
    struct attack attack = {.address = address, .flood = &floods[kind], .tls = tls};

    if (!only || strcmp(only, floods[kind].label) == 0)
        run_attack(bench, &attack);
}

/* --- tests --- */

static void run_all_floods(struct bench *bench)
{
    for (flood_kind_t kind = 0; kind < FLOOD_COUNT; kind++)
        run_flood(bench, rk_proc_address(bench->fixture.proc), kind, NULL);
}

/* Goal: during every flood the daemon stays below 256 MiB, and 10 s later it is back at its earlier memory; a
 * normal client is answered within 250 ms, and a training run continues. Memory retained after a flood does
 * not accumulate. Method: 8 threads send as fast as they can and reconnect when closed, while another client
 * samples GetStatus. After the floods beside the run there are rounds of all floods without it. The first
 * rounds may grow the allocator's arenas and gRPC's memory, which later ones reuse; a leak grows every round.
 */
static void test_floods_are_survived(void **state)
{
    int64_t grown_kib = INT64_MAX;
    struct bench bench;

    (void)state;
    start(&bench, PLAIN);
    start_run(&bench);
    run_all_floods(&bench);
    attack_run_stop(&bench.run);
    bench.flood_ms = RK_MIN(bench.flood_ms, 1000);
    for (int round = 1; round <= ROUNDS_MAX && (round <= 2 || grown_kib > GROWTH_KIB); round++) {
        int64_t before_kib = rk_proc_rss_kib(bench.fixture.proc);

        run_all_floods(&bench);
        grown_kib = rk_proc_rss_kib(bench.fixture.proc) - before_kib;
        print_message("round %d: grown by %lld KiB\n", round, (long long)grown_kib);
    }
    assert_true(grown_kib <= GROWTH_KIB);
    stop(&bench);
}

/* Goal: the listener for probes, which needs no token, is equally protected. */
static void test_floods_of_health_listen_are_survived(void **state)
{
    static const char line[] = "rankd: health.listen is ";
    static const flood_kind_t some[] = {FLOOD_RESETS, FLOOD_CONTINUATIONS, FLOOD_OPEN_CALLS};
    struct bench bench;
    char *out, *address;

    (void)state;
    start(&bench, PLAIN);
    rk_proc_wait_output(bench.fixture.proc, line, rk_proc_timeout_ms(RSS_BACK_MS));
    out = rk_proc_stdout(bench.fixture.proc);
    address = strstr(out, line) + strlen(line);
    address[strcspn(address, "\n")] = '\0';
    for (size_t i = 0; i < RK_ARRAY_LEN(some); i++)
        run_flood(&bench, address, some[i], NULL);
    rk_free(out);
    stop(&bench);
}

/* A client with a valid handshake can connect while others only make handshakes. */
static void connect_during_handshakes(struct bench *bench, struct attack *attack)
{
    struct rk_worker_status status;

    attack->is_over = false;
    flood_begin(attack);
    for (int i = 0; i < NEW_CLIENTS; i++) {
        struct rk_client *client = new_client(bench);
        int64_t begin_ns = rk_time_now_ns();

        assert_ok(rk_client_get_status(client, &status));
        print_message("new connection: %lld ms\n", (long long)(rk_time_now_ns() - begin_ns) / 1000000);
        rk_client_destroy(client);
    }
    flood_end(attack);
}

/* Goal: the same holds with TLS, for floods after a handshake, before it, or of handshakes only; and a client
 * with a valid handshake can connect meanwhile. */
static void check_tls(transport_t transport, const struct rk_tls_files *attackers)
{
    static const flood_kind_t some[] = {FLOOD_RESETS, FLOOD_CONTINUATIONS, FLOOD_PINGS};
    struct attack handshakes = {.flood = &floods[FLOOD_RESETS], .only_handshake = true};
    struct rk_tls_files none = {.prefix = ""};
    struct rk_tls *tls, *stranger;
    struct bench bench;
    const char *address;

    start(&bench, transport);
    address = rk_proc_address(bench.fixture.proc);
    assert_ok(rk_tls_create(&tls, attackers));
    assert_ok(rk_tls_create(&stranger, &none));
    start_run(&bench);
    run_flood(&bench, address, FLOOD_RESETS, NULL); /* without TLS where TLS is expected */
    if (transport == MUTUAL_TLS)
        run_flood(&bench, address, FLOOD_RESETS, stranger);
    for (size_t i = 0; i < RK_ARRAY_LEN(some); i++)
        run_flood(&bench, address, some[i], tls);
    handshakes.address = address;
    handshakes.tls = stranger;
    run_attack(&bench, &handshakes);
    attack_run_stop(&bench.run);
    connect_during_handshakes(&bench, &handshakes);
    rk_tls_destroy(stranger);
    rk_tls_destroy(tls);
    stop(&bench);
}

static void test_floods_over_tls_are_survived(void **state)
{
    (void)state;
    check_tls(TLS, &(const struct rk_tls_files){.prefix = ""});
}

/* The same where clients need a certificate: attackers without one, and some with one but without a token. */
static void test_floods_over_mutual_tls_are_survived(void **state)
{
    struct rk_tls_files files;

    (void)state;
    rk_test_make_certs();
    files = rk_test_tls_files("client", NULL);
    check_tls(MUTUAL_TLS, &files);
}

/* --- a normal client --- */

struct caller {
    struct bench *bench;
    pthread_t thread;
    int num_failed;
    char *error; /* of the first failed call */
};

static void count_end(struct caller *caller, struct rk_status *st, rk_code_t expected)
{
    if (rk_status_code(st) != expected) {
        caller->num_failed++;
        if (!caller->error)
            caller->error = rk_strdup(st ? rk_status_message(st) : "a call that was cancelled ended well");
    }
    rk_status_free(st);
}

/* Fewer over TLS, unless RK_TEST_SECONDS is given: the limits count calls and resets, not bytes. */
static int num_calls(const struct bench *bench)
{
    return bench->transport == PLAIN || given_seconds() > 0 ? NUM_CALLS : NUM_CALLS / 4;
}

/* Short calls over some of the connections, some of them cancelled early. */
static void *make_short_calls(void *arg)
{
    struct caller *caller = arg;
    struct rk_client *clients[NUM_CLIENTS / NUM_CALLERS];
    struct rk_worker_status status;

    for (size_t i = 0; i < RK_ARRAY_LEN(clients); i++)
        clients[i] = new_client(caller->bench);
    for (int i = 0; i < num_calls(caller->bench) / NUM_CALLERS; i++) {
        struct rk_client *client = clients[(size_t)i % RK_ARRAY_LEN(clients)];

        count_end(caller, rk_client_get_status(client, &status), RK_OK);
        if (i % 10 == 0) {
            struct rk_client_stream *stream = rk_client_open(client, RK_RPC_ID_KEEP_ALIVE);

            rk_client_cancel(stream);
            count_end(caller, rk_client_finish(stream), RK_CANCELLED);
        }
    }
    for (size_t i = 0; i < RK_ARRAY_LEN(clients); i++)
        rk_client_destroy(clients[i]);
    return NULL;
}

/* Goal: the protection never affects a normal client: 64 connections with thousands of short calls, 8 at a
 * time, on every transport. */
static void test_short_calls_are_never_cut(void **state)
{
    (void)state;
    for (transport_t transport = PLAIN; transport <= MUTUAL_TLS; transport++) {
        struct caller callers[NUM_CALLERS];
        struct bench bench;
        int64_t begin_ns;
        char *errors;

        start(&bench, transport);
        begin_ns = rk_time_now_ns();
        for (int i = 0; i < NUM_CALLERS; i++) {
            callers[i] = (struct caller){.bench = &bench};
            assert_int_equal(pthread_create(&callers[i].thread, NULL, make_short_calls, &callers[i]), 0);
        }
        for (int i = 0; i < NUM_CALLERS; i++) {
            pthread_join(callers[i].thread, NULL);
            if (callers[i].num_failed > 0)
                fail_msg("%d calls failed, the first with: %s", callers[i].num_failed, callers[i].error);
        }
        print_message("%d calls in %lld ms\n", num_calls(&bench),
                      (long long)(rk_time_now_ns() - begin_ns) / 1000000);
        errors = rk_proc_stderr(bench.fixture.proc);
        assert_null(strstr(errors, "cut peer="));
        assert_null(strstr(errors, "dropped peer="));
        assert_null(strstr(errors, "refused peer="));
        rk_free(errors);
        stop(&bench);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_floods_are_survived),
        cmocka_unit_test(test_floods_of_health_listen_are_survived),
        cmocka_unit_test(test_floods_over_tls_are_survived),
        cmocka_unit_test(test_floods_over_mutual_tls_are_survived),
        cmocka_unit_test(test_short_calls_are_never_cut),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
