/* Peers without a token that connect, make a few small calls, most of them malformed, and close, as fast as
 * they can: two processes of the daemon's own priority beside a training run. The daemon's memory and
 * descriptors are bounded, it is answered by old and new connections, and the run goes on.
 *
 * RK_TEST_SECONDS: how long the attack takes (default 3). From 30 s on latency and speed are checked, too. */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/config/rk_config.h"
#include "base/rk_env.h"
#include "base/rk_time.h"
#include "tests/fault/under_attack.h"
#include "tests/proc/cli_fixture.h"
#include "tests/support/client.h"
#include "tests/support/h2_raw.h"

#define NUM_DAEMONS     2
#define NUM_ATTACKERS   2
#define NUM_CALLS       8 /* of a connection */
#define MESSAGE_BYTES   24
#define SECOND_NS       1000000000LL
#define SAMPLES_MAX     100000
#define NEW_CLIENT      20 /* every so many samples come from a new connection */
#define BACK_MS         20000
#define RSS_MAX_KIB     (200 << 10)
#define CONNECTIONS_MAX 512
#define FILES_MORE      64 /* descriptors above the limit of connections */
#define FILES_BACK      16 /* above the number before the attack */
#define P99_MAX_MS      1000.0
#define LONG_SECONDS    30 /* shorter attacks do not measure speed or the tail of latency */

/* --- the attackers: this program, with "attack ADDRESS SECONDS" --- */

/* Seven of ten calls announce more bytes than they send; half of them never end. */
static void append_calls(struct rk_str *out, unsigned *seed)
{
    static const char *const paths[] = {"/rankd.v1.Worker/GetStatus", "/grpc.health.v1.Health/Check",
                                        "/rankd.v1.Worker/Execute"};

    for (uint32_t stream = 1; stream < 2 * NUM_CALLS; stream += 2) {
        char message[MESSAGE_BYTES] = {0};
        uint32_t more = rand_r(seed) % 10 < 7 ? 1 + (uint32_t)rand_r(seed) % 100000 : 0;
        uint32_t length = MESSAGE_BYTES - 5 + more;

        for (int i = 0; i < 4; i++)
            message[1 + i] = (char)(length >> (24 - 8 * i));
        h2_open_call(out, stream, paths[(size_t)rand_r(seed) % RK_ARRAY_LEN(paths)], NULL);
        h2_frame(out, H2_DATA, rand_r(seed) % 2 ? H2_END_STREAM : 0, stream, message, sizeof(message));
    }
}

static int attack(const char *address, const char *seconds)
{
    int64_t end_ns = rk_time_now_ns() + strtoll(seconds, NULL, 10) * SECOND_NS;
    unsigned seed = (unsigned)getpid();
    int count = 0;

    while (rk_time_now_ns() < end_ns) {
        int fd = h2_connect(address);
        struct rk_str bytes = {0};

        h2_greeting(&bytes);
        append_calls(&bytes, &seed);
        if (fd >= 0) {
            count += h2_send(fd, &bytes, ATTACK_SAMPLE_MS);
            close(fd);
        }
        rk_str_fini(&bytes);
    }
    printf("%d\n", count);
    return 0;
}

static struct rk_proc *start_attacker(const char *address, int64_t seconds)
{
    char *text = rk_format("%lld", (long long)seconds);
    struct rk_proc *proc =
        rk_proc_start((const char *const[]){"/proc/self/exe", "attack", address, text, NULL});

    rk_free(text);
    return proc;
}

/* --- the daemons and the run --- */

struct bench {
    struct rk_proc *daemons[NUM_DAEMONS];
    struct rk_client *client; /* of the last daemon, which is attacked */
    struct attack_run run;
    char *token_path;
    int64_t seconds;
};

static struct rk_proc *target(const struct bench *bench)
{
    return bench->daemons[NUM_DAEMONS - 1];
}

static void start(struct bench *bench)
{
    const char *seconds = rk_env("RK_TEST_SECONDS");
    char *tokens = write_secret("tokens", "admin:" ATTACK_TOKEN "\n", 0600), *flags[2], *hosts;

    *bench = (struct bench){.seconds = 3};
    assert_true(!seconds || rk_parse_i64(seconds, &bench->seconds));
    bench->token_path = write_secret("token", ATTACK_TOKEN "\n", 0600);
    flags[0] = rk_format("--rpc.token_file=%s", tokens);
    flags[1] = rk_format("--ckpt.roots=[\"%s\"]", rk_test_temp_dir());
    for (int i = 0; i < NUM_DAEMONS; i++)
        bench->daemons[i] = rk_proc_start_rankd((const char *const[]){
            "--rpc.listen=127.0.0.1:0", "--cpu.num_threads=1", flags[0], flags[1], NULL});
    hosts = rk_format("%s,%s", rk_proc_address(bench->daemons[0]), rk_proc_address(bench->daemons[1]));
    bench->client = rk_client_create(rk_proc_address(target(bench)), ATTACK_TOKEN);
    attack_run_start(&bench->run, hosts, bench->token_path, NULL);
    rk_free(hosts);
    rk_free(flags[0]);
    rk_free(flags[1]);
    rk_free(tokens);
}

static void stop(struct bench *bench)
{
    attack_run_stop(&bench->run);
    rk_client_destroy(bench->client);
    for (int i = 0; i < NUM_DAEMONS; i++) {
        rk_proc_signal(bench->daemons[i], SIGTERM);
        assert_int_equal(rk_proc_wait(bench->daemons[i], rk_proc_timeout_ms(ATTACK_STEP_MS)), 0);
        rk_proc_destroy(bench->daemons[i]);
    }
    rk_free(bench->token_path);
}

/* --- what is measured --- */

static int num_files(const struct bench *bench)
{
    char *path = rk_format("/proc/%d/fd", (int)rk_proc_pid(target(bench)));
    DIR *dir = opendir(path);
    int count = 0;

    assert_non_null(dir);
    while (readdir(dir))
        count++;
    closedir(dir);
    rk_free(path);
    return count - 2; /* "." and ".." */
}

static double get_status_ms(const struct bench *bench)
{
    int64_t begin_ns = rk_time_now_ns();
    struct rk_worker_status status;

    assert_ok(rk_client_get_status(bench->client, &status));
    return (double)(rk_time_now_ns() - begin_ns) / 1e6;
}

struct seen {
    double steps_per_s;
    double samples[SAMPLES_MAX]; /* milliseconds of GetStatus over one connection */
    int num_samples;
    double worst_new; /* milliseconds of rankctl status, a new process and connection each */
    int num_new, num_failed;
    int num_files;
    int64_t rss_kib;
};

static void connect_newly(struct seen *seen, const struct bench *bench)
{
    int64_t begin_ns = rk_time_now_ns();
    struct outcome outcome = run_rankctl((const char *const[]){
        "status", "--hosts", rk_proc_address(target(bench)), "--token-file", bench->token_path, NULL});

    seen->num_new++;
    seen->num_failed += outcome.code != 0;
    if (outcome.code != 0)
        print_message("%s", outcome.err);
    seen->worst_new = RK_MAX(seen->worst_new, (double)(rk_time_now_ns() - begin_ns) / 1e6);
    outcome_fini(&outcome);
}

static void watch(struct seen *seen, const struct bench *bench, int64_t seconds)
{
    int64_t begin_ns = rk_time_now_ns(), steps = attack_run_num_steps(&bench->run);

    *seen = (struct seen){0};
    while (rk_time_now_ns() < begin_ns + seconds * SECOND_NS && seen->num_samples < SAMPLES_MAX) {
        assert_true(rk_proc_is_running(target(bench)));
        seen->samples[seen->num_samples++] = get_status_ms(bench);
        if (seen->num_samples % NEW_CLIENT == 0)
            connect_newly(seen, bench);
        seen->rss_kib = RK_MAX(seen->rss_kib, rk_proc_rss_kib(target(bench)));
        seen->num_files = RK_MAX(seen->num_files, num_files(bench));
        rk_time_sleep_ms(ATTACK_SAMPLE_MS);
    }
    seen->steps_per_s = (double)(attack_run_num_steps(&bench->run) - steps) /
                        ((double)(rk_time_now_ns() - begin_ns) / (double)SECOND_NS);
    attack_sort_samples(seen->samples, seen->num_samples);
}

static double p99(const struct seen *seen)
{
    return seen->samples[seen->num_samples * 99 / 100];
}

static void print_seen(const char *label, const struct seen *seen)
{
    print_message(
        "%s: %.2f steps/s; resident %lld MiB and %d descriptors at most; GetStatus p50 %.2f ms, p99 "
        "%.2f ms, %d times; rankctl status at most %.0f ms, %d of %d failed\n",
        label, seen->steps_per_s, (long long)seen->rss_kib >> 10, seen->num_files,
        seen->samples[seen->num_samples / 2], p99(seen), seen->num_samples, seen->worst_new, seen->num_failed,
        seen->num_new);
}

/* The number of connections that it made. */
static int64_t end_attacker(struct rk_proc *proc, int64_t seconds)
{
    char *text;
    int64_t count;

    assert_int_equal(rk_proc_wait(proc, rk_proc_timeout_ms(ATTACK_STEP_MS) + seconds * 1000), 0);
    text = rk_proc_stdout(proc);
    count = strtoll(text, NULL, 10);
    rk_free(text);
    rk_proc_destroy(proc);
    return count;
}

/* Goal: see the top of the file. Method: the run's speed before and after the attack is compared with that
 * during it, since other programs may use the cores, too. */
static void test_short_connections_end_no_run(void **state)
{
    struct seen *before = rk_calloc(3, sizeof(*before)), *during = before + 1, *after = before + 2;
    struct rk_proc *attackers[NUM_ATTACKERS];
    struct bench bench;
    int64_t count = 0, rest_ns;

    (void)state;
    start(&bench);
    watch(before, &bench, RK_MAX(bench.seconds / 3, 1));
    for (int i = 0; i < NUM_ATTACKERS; i++)
        attackers[i] = start_attacker(rk_proc_address(target(&bench)), bench.seconds);
    watch(during, &bench, bench.seconds);
    for (int i = 0; i < NUM_ATTACKERS; i++)
        count += end_attacker(attackers[i], bench.seconds);
    rest_ns = rk_time_now_ns() + rk_proc_timeout_ms(BACK_MS) * 1000000;
    while (num_files(&bench) > before->num_files + FILES_BACK && rk_time_now_ns() < rest_ns)
        rk_time_sleep_ms(ATTACK_SAMPLE_MS);
    watch(after, &bench, RK_MAX(bench.seconds / 3, 1));
    attack_run_wait_step(&bench.run, attack_run_num_steps(&bench.run));
    print_seen("before", before);
    print_seen("during the attack", during);
    print_seen("after", after);
    print_message("%lld connections\n", (long long)count);

    assert_true(count >= 20 * bench.seconds);
    assert_true(during->num_new > 0);
    assert_true(during->num_failed * 20 <= during->num_new);
    assert_true(during->num_files <= CONNECTIONS_MAX + FILES_MORE);
    assert_true(after->num_files <= before->num_files + FILES_BACK);
#ifdef __SANITIZE_ADDRESS__ /* whose own memory counts, and which makes everything slower */
    assert_true(during->rss_kib <= before->rss_kib + RSS_MAX_KIB);
#else
    assert_true(during->rss_kib <= RSS_MAX_KIB);
    if (bench.seconds >= LONG_SECONDS) {
        assert_below("p99 of GetStatus", p99(during), P99_MAX_MS);
        assert_true(during->steps_per_s >= (before->steps_per_s + after->steps_per_s) / 4);
    }
#endif
    stop(&bench);
    rk_free(before);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_short_connections_end_no_run)};

    if (argc == 4 && strcmp(argv[1], "attack") == 0)
        return attack(argv[2], argv[3]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
