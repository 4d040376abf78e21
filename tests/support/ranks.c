#include "tests/support/ranks.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/rk_assert.h"
#include "base/config/rk_config.h"
#include "base/rk_env.h"
#include "base/rk_time.h"
#include "tests/support/certs.h"
#include "tests/support/device.h"
#include "tests/support/test.h"

#define NS_PER_S 1000000000LL
#define POLL_MS  1
#define MEET_S   20 /* ranks that did not fail arrive within a second or two */

struct rank_process {
    struct rk_test_rank_result result;
    FILE *output;
    bool is_done;
};

void *rk_test_shared_alloc(size_t bytes)
{
    void *area = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    RK_ASSERT(area != MAP_FAILED);
    return area;
}

void rk_test_shared_free(void *area, size_t bytes)
{
    RK_ASSERT(munmap(area, bytes) == 0);
}

int rk_test_num_fds(void)
{
    return rk_test_count_entries("/proc/self/fd") - 1; /* without the descriptor of the directory itself */
}

/* --- processes --- */

static void start(struct rank_process *process, int32_t rank, int32_t num_ranks, rk_test_rank_fn_t fn,
                  void *user)
{
    process->output = tmpfile();
    RK_ASSERT(process->output);
    process->result.pid = fork();
    RK_ASSERT(process->result.pid >= 0);
    if (process->result.pid > 0)
        return;
    RK_ASSERT(dup2(fileno(process->output), STDOUT_FILENO) >= 0);
    RK_ASSERT(dup2(fileno(process->output), STDERR_FILENO) >= 0);
    fclose(process->output);
    exit(fn(rank, num_ranks, user));
}

static bool reap(struct rank_process *process)
{
    int status;
    pid_t pid = waitpid(process->result.pid, &status, WNOHANG);

    RK_ASSERT(pid >= 0);
    if (pid == 0)
        return false;
    process->result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    process->result.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    process->is_done = true;
    return true;
}

static void wait_all(struct rank_process *processes, int32_t num_ranks, int timeout_s)
{
    int64_t deadline_ns = rk_time_now_ns() + timeout_s * NS_PER_S;
    int32_t num_left = num_ranks;

    while (num_left > 0) {
        bool is_over = rk_time_now_ns() >= deadline_ns;

        for (int32_t r = 0; r < num_ranks; r++) {
            if (processes[r].is_done)
                continue;
            if (reap(&processes[r])) {
                num_left--;
            } else if (is_over && !processes[r].result.timed_out) {
                processes[r].result.timed_out = true;
                kill(processes[r].result.pid, SIGKILL);
            }
        }
        if (num_left > 0)
            rk_time_sleep_ms(POLL_MS);
    }
}

static void print_output(const struct rank_process *process, int32_t rank)
{
    const struct rk_test_rank_result *result = &process->result;
    char buf[4096];
    size_t got;

    fprintf(stderr, "--- rank %d: exit code %d, signal %d%s\n", rank, result->exit_code, result->signal,
            result->timed_out ? ", timed out" : "");
    rewind(process->output);
    while ((got = fread(buf, 1, sizeof(buf), process->output)) > 0)
        fwrite(buf, 1, got, stderr);
}

/* With RK_TEST_TLS=1 worlds over TCP use TLS. Created before the first rank, for all. */
static struct rk_tls *rank_tls;

static void prepare_tls(void)
{
    struct rk_tls_files files;

    if (rank_tls || !rk_env("RK_TEST_TLS"))
        return;
    rk_test_make_certs();
    files = rk_test_tls_files("host", "ca");
    assert_ok(rk_tls_create(&rank_tls, &files));
}

int rk_test_run_ranks_results(int32_t num_ranks, rk_test_rank_fn_t fn, void *user, int timeout_s,
                              struct rk_test_rank_result *results)
{
    struct rank_process processes[RK_TEST_MAX_RANKS] = {0};
    int num_failed = 0;

    RK_ASSERT(num_ranks >= 1);
    RK_ASSERT(num_ranks <= RK_TEST_MAX_RANKS);
    prepare_tls();
    fflush(NULL); /* otherwise every child would write the buffered output again */
    for (int32_t r = 0; r < num_ranks; r++)
        start(&processes[r], r, num_ranks, fn, user);
    wait_all(processes, num_ranks, timeout_s);
    for (int32_t r = 0; r < num_ranks; r++) {
        const struct rk_test_rank_result *result = &processes[r].result;

        if (result->exit_code != 0)
            num_failed++;
        if (result->timed_out || (result->exit_code != 0 && !(results && result->signal)))
            print_output(&processes[r], r);
        fclose(processes[r].output);
        if (results)
            results[r] = *result;
    }
    return num_failed;
}

int rk_test_run_ranks(int32_t num_ranks, rk_test_rank_fn_t fn, void *user, int timeout_s)
{
    return rk_test_run_ranks_results(num_ranks, fn, user, timeout_s, NULL);
}

/* --- worlds --- */

struct rk_test_rendezvous {
    char address[RK_TEST_MAX_RANKS][256];
    uint8_t id[RK_COMM_ID_BYTES];
    atomic_int num_come; /* grows by num_ranks at every meeting */
};

struct rk_test_rendezvous *rk_test_rendezvous_create(void)
{
    return rk_test_shared_alloc(sizeof(struct rk_test_rendezvous));
}

void rk_test_rendezvous_destroy(struct rk_test_rendezvous *rendezvous)
{
    rk_test_shared_free(rendezvous, sizeof(*rendezvous));
}

void rk_test_meet(struct rk_test_rendezvous *rendezvous, int32_t num_ranks)
{
    int64_t deadline_ns = rk_time_now_ns() + MEET_S * NS_PER_S;
    int number = atomic_fetch_add(&rendezvous->num_come, 1);
    int all = (number / num_ranks + 1) * num_ranks;

    while (atomic_load(&rendezvous->num_come) < all) {
        rk_time_sleep_ms(POLL_MS);
        if (rk_time_now_ns() < deadline_ns)
            continue;
        fprintf(stderr, "%d of %d ranks did not come to the meeting within %d s\n",
                all - atomic_load(&rendezvous->num_come), num_ranks, MEET_S);
        exit(1); /* other ranks have failed; their output is printed when all have ended */
    }
}

static struct rk_device *rank_device;
static struct rk_stream *rank_stream;

static void close_rank_device(void)
{
    if (rk_device_get_stats(rank_device).allocated_bytes > 0)
        return; /* the rank failed and exited without cleanup */
    rk_stream_destroy(rank_stream);
    rk_device_close(rank_device);
}

struct rk_stream *rk_test_rank_stream(int32_t rank)
{
    struct rk_status *st;

    if (rank_stream)
        return rank_stream;
    st = rk_test_device_open_rank(&rank_device, 1, rank);
    if (!st)
        st = rk_stream_create(&rank_stream, rank_device, "test");
    if (!rk_test_rank_ok(st, "opening the device of the rank", __FILE__, __LINE__))
        exit(1);
    atexit(close_rank_device);
    return rank_stream;
}

struct rk_device *rk_test_rank_device(int32_t rank)
{
    return rk_stream_device(rk_test_rank_stream(rank));
}

struct rk_status *rk_test_world_create(struct rk_comm_world **out, struct rk_test_rendezvous *rendezvous,
                                       int32_t rank, int32_t num_ranks, const char *listen_host,
                                       const struct rk_comm_world_config *config)
{
    struct rk_device *device = config && config->device ? config->device : rk_test_rank_device(rank);
    const char *comm = rk_env("RK_TEST_COMM");
    struct rk_comm_endpoint_config endpoint_config = {.struct_size = sizeof(endpoint_config),
                                                      .backend = comm ? comm : rk_device_collectives(device),
                                                      .listen_host = listen_host,
                                                      .make_id = rank == 0};
    struct rk_comm_world_config world_config = config ? *config : (struct rk_comm_world_config){0};
    const char *addresses[RK_TEST_MAX_RANKS];
    uint8_t id[RK_COMM_ID_BYTES];
    struct rk_comm_endpoint *endpoint;

    *out = NULL;
    endpoint_config.tls = rank_tls;
    RK_TRY(rk_comm_endpoint_open(&endpoint, &endpoint_config));
    snprintf(rendezvous->address[rank], sizeof(rendezvous->address[rank]), "%s",
             rk_comm_endpoint_address(endpoint));
    if (rank == 0)
        memcpy(rendezvous->id, rk_comm_endpoint_id(endpoint), RK_COMM_ID_BYTES);
    rk_test_meet(rendezvous, num_ranks);
    for (int32_t r = 0; r < num_ranks; r++)
        addresses[r] = rendezvous->address[r];
    memcpy(id, rendezvous->id,
           sizeof(id)); /* rank 0 may be at the next world before this rank has connected to all */
    world_config.struct_size = sizeof(world_config);
    world_config.device = device;
    world_config.rank = rank;
    world_config.world_size = num_ranks;
    world_config.addresses = addresses;
    world_config.id = id;
    return rk_comm_world_create(out, endpoint, &world_config);
}

struct world_run {
    struct rk_test_rendezvous *rendezvous;
    const char *listen_host;
    rk_test_world_fn_t fn;
    void *user;
};

static int run_in_world(int32_t rank, int32_t num_ranks, void *user)
{
    struct world_run *run = user;
    struct rk_comm_world *world;
    int failed;

    RK_RANK_OK(rk_test_world_create(&world, run->rendezvous, rank, num_ranks, run->listen_host, NULL));
    failed = run->fn(world, run->user);
    /* A failed rank must not block the others. It still has groups, so the world cannot be destroyed. */
    if (failed)
        rk_comm_world_abort(world, "the test failed");
    else
        rk_comm_world_destroy(world);
    return failed;
}

int rk_test_run_world(int32_t num_ranks, const char *listen_host, rk_test_world_fn_t fn, void *user,
                      int timeout_s)
{
    struct world_run run = {
        .rendezvous = rk_test_rendezvous_create(), .listen_host = listen_host, .fn = fn, .user = user};
    int num_failed = rk_test_run_ranks(num_ranks, run_in_world, &run, timeout_s);

    rk_test_rendezvous_destroy(run.rendezvous);
    return num_failed;
}

void rk_test_run_case(const char *label, int32_t num_ranks, rk_test_world_fn_t fn, const void *row,
                      int timeout_s)
{
    if (num_ranks > rk_test_device_max_ranks()) {
        rk_test_skip_part("%s: needs %d devices", label, num_ranks);
        return;
    }
    print_message("%s\n", label);
    if (rk_test_run_world(num_ranks, "unix", fn, (void *)row, timeout_s) != 0) /* as for all of them */
        fail_msg("%s", label);
}

int rk_test_rank_check_error(struct rk_status *st, rk_code_t code, const char *reason, const char *text)
{
    RK_RANK_CHECK(st, "no error, expected '%s'", text);
    RK_RANK_CHECK(rk_status_code(st) == code, "%s: %s", rk_code_name(rk_status_code(st)),
                  rk_status_message(st));
    RK_RANK_CHECK(strcmp(rk_status_reason(st), reason) == 0, "%s: %s", rk_status_reason(st),
                  rk_status_message(st));
    RK_RANK_CHECK(strstr(rk_status_message(st), text), "'%s' lacks '%s'", rk_status_message(st), text);
    rk_status_free(st);
    return 0;
}

bool rk_test_rank_ok(struct rk_status *st, const char *expr, const char *file, int line)
{
    char frames[4096];

    if (!st)
        return true;
    rk_status_format_frames(st, frames, sizeof(frames));
    fprintf(stderr, "%s:%d: %s\n  %s %s: %s\n%s\n", file, line, expr, rk_code_name(rk_status_code(st)),
            rk_status_reason(st), rk_status_message(st), frames);
    rk_status_free(st);
    return false;
}
