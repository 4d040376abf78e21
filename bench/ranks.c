/* One process per rank: each opens its device (cuda:N: rank r uses cuda:N+r), joins the world if there is
 * one, and runs the cases of the group in the order of the table. Forked before any device is used. */
#include "bench/bench.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_log.h"
#include "base/rk_str.h"
#include "base/rk_time.h"
#include "engine/rk_plugin.h"

#define EXIT_NO_DEVICE 77 /* exit code of ranks other than the first */
#define EXIT_STOP      78 /* exit code: no further group can run */
#define POLL_MS        1
#define ADDRESS_BYTES  256

/* Rendezvous of the ranks of one group. */
struct rendezvous {
    char address[BENCH_MAX_RANKS][ADDRESS_BYTES];
    uint8_t id[RK_COMM_ID_BYTES];
    atomic_int num_come, is_first_open;
};

struct group {
    struct bench_shared *shared;
    const struct bench_options *options;
    const struct rk_json *baseline;
    struct rendezvous *rendezvous;
    int32_t num_ranks;
};

static int32_t ranks_of(const struct bench_case *bench)
{
    return RK_MAX(bench->num_ranks, 1);
}

bool bench_is_selected(const struct bench_options *options, const struct bench_case *bench)
{
    bool is_in_group = strcmp(options->group, "all") == 0 || strcmp(options->group, bench->group) == 0;

    return is_in_group && (!options->filter || strstr(bench->name, options->filter));
}

/* --- one rank --- */

/* "cuda:2" for rank 2; a device without an index is shared by all ranks. */
static char *device_of_rank(const char *device, int32_t rank)
{
    const char *colon = strchr(device, ':');
    int64_t first = 0;

    if (strcmp(device, "cpu") == 0 || device[0] == '\0')
        return rk_strdup(device);
    if (colon && !rk_parse_i64(colon + 1, &first))
        return rk_strdup(device); /* opening it reports the error */
    return rk_format("%.*s:%lld", (int)(colon ? colon - device : (long)strlen(device)), device,
                     (long long)(first + rank));
}

static struct rk_status *open_device(struct bench_ctx *ctx)
{
    char *name = device_of_rank(ctx->options->device, ctx->rank);
    struct rk_device_config config = {
        .struct_size = sizeof(config), .name = name, .num_threads = ctx->options->is_tiny ? 1 : 0};
    struct rk_status *st;

    st = rk_plugin_load(name, ctx->options->plugin);
    if (!st && ctx->options->profiles) {
        st = bench_profile_register(&config);
        config.name = "profile";
    }
    if (!st)
        st = rk_device_open(&ctx->device, &config);
    if (!st)
        st = rk_stream_create(&ctx->stream, ctx->device, "bench");
    rk_free(name);
    return st;
}

static void meet(struct rendezvous *rendezvous, int32_t num_ranks)
{
    atomic_fetch_add(&rendezvous->num_come, 1);
    while (atomic_load(&rendezvous->num_come) < num_ranks)
        rk_time_sleep_ms(POLL_MS);
}

static struct rk_status *join_world(struct bench_ctx *ctx, struct rendezvous *rendezvous)
{
    struct rk_comm_endpoint_config endpoint_config = {.struct_size = sizeof(endpoint_config),
                                                      .backend = rk_device_collectives(ctx->device),
                                                      .listen_host = "unix",
                                                      .make_id = ctx->rank == 0};
    struct rk_comm_world_config config = {.struct_size = sizeof(config),
                                          .rank = ctx->rank,
                                          .world_size = ctx->num_ranks,
                                          .device = ctx->device};
    const char *addresses[BENCH_MAX_RANKS];
    struct rk_comm_endpoint *endpoint;

    RK_TRY(rk_comm_endpoint_open(&endpoint, &endpoint_config));
    snprintf(rendezvous->address[ctx->rank], ADDRESS_BYTES, "%s", rk_comm_endpoint_address(endpoint));
    if (ctx->rank == 0)
        memcpy(rendezvous->id, rk_comm_endpoint_id(endpoint), RK_COMM_ID_BYTES);
    meet(rendezvous, ctx->num_ranks);
    for (int32_t r = 0; r < ctx->num_ranks; r++)
        addresses[r] = rendezvous->address[r];
    config.addresses = addresses;
    config.id = rendezvous->id;
    return rk_comm_world_create(&ctx->world, endpoint, &config);
}

static void fail(struct bench_result *result, struct rk_status *st)
{
    result->state = BENCH_FAILED;
    snprintf(result->note, sizeof(result->note), "%s", rk_status_message(st));
    rk_status_free(st);
}

static bool save_results(const struct group *group)
{
    struct rk_status *st = NULL;

    if (group->options->json)
        st = bench_json_write(group->options->json, group->shared, group->baseline);
    if (!st)
        return true;
    fprintf(stderr, "rankd-bench: %s\n", rk_status_message(st));
    rk_status_free(st);
    return false;
}

/* Returns 0 to continue, or the exit code: a rank that fails in a group of several exits, because its peers
 * would wait for it. */
static int run_case(struct bench_ctx *ctx, const struct group *group, int i)
{
    const struct bench_case *bench = &bench_cases[i];
    struct bench_result result = {0};
    struct rk_status *st = bench->run(ctx, bench, &result);
    int code = st && ctx->num_ranks > 1 ? 1 : 0;

    if (!st && ctx->options->profiles)
        bench_profile_clear(); /* of records that the benchmark has not printed */
    bench_machine_sample(&result, ctx);
    if (st)
        fail(&result, st);
    else
        result.state = BENCH_DONE;
    if (ctx->rank == 0 || result.state == BENCH_FAILED)
        group->shared->results[i] = result;
    if (ctx->rank == 0) {
        if (!save_results(group))
            code = EXIT_STOP;
        bench_print_row(bench, &result, group->baseline);
    }
    return code;
}

static struct rk_status *open_rest(struct bench_ctx *ctx, const struct group *group)
{
    if (ctx->num_ranks > 1)
        RK_TRY(join_world(ctx, group->rendezvous));
    if (group->shared->ceilings.flops == 0) { /* the first group measures for all */
        bench_machine_describe(&group->shared->machine, ctx);
        RK_TRY(bench_ceilings_find(&ctx->ceilings, ctx));
        if (ctx->rank == 0) {
            group->shared->ceilings = ctx->ceilings;
            bench_print_header(group->shared);
        }
    }
    ctx->ceilings = group->shared->ceilings;
    return NULL;
}

static bool is_missing_device(const struct rk_status *st)
{
    const char *reason = rk_status_reason(st);

    return strcmp(reason, "NO_DRIVER") == 0 || strcmp(reason, "NO_DEVICE") == 0;
}

/* Returns 0 or the exit code. */
static int open_all(struct bench_ctx *ctx, const struct group *group)
{
    bool is_cpu = strcmp(ctx->options->device, "cpu") == 0;
    const char *hint = "";
    struct rk_status *st;
    int code = 1;

    while (ctx->rank > 0 && !atomic_load(&group->rendezvous->is_first_open))
        rk_time_sleep_ms(POLL_MS); /* an error that prevents all ranks from opening a device is printed
                                    * once */
    st = open_device(ctx);
    if (st && ctx->rank == 0) {
        code = EXIT_STOP;
        hint = is_cpu ? "" : "; use --device cpu to run the benchmarks on the CPU";
    } else if (st && is_missing_device(st)) {
        code = EXIT_NO_DEVICE;
    } else if (!st) {
        atomic_store(&group->rendezvous->is_first_open, 1);
        st = open_rest(ctx, group);
    }
    if (!st)
        return 0;
    if (code != EXIT_NO_DEVICE)
        fprintf(stderr, "rankd-bench: %s%s\n", rk_status_message(st), hint);
    rk_status_free(st);
    return code;
}

static int run_rank(const struct group *group, int32_t rank)
{
    struct bench_ctx ctx = {.options = group->options, .rank = rank, .num_ranks = group->num_ranks};
    int code = open_all(&ctx, group);

    for (int i = 0; i < bench_num_cases && code == 0; i++) {
        if (bench_is_selected(group->options, &bench_cases[i]) &&
            ranks_of(&bench_cases[i]) == group->num_ranks)
            code = run_case(&ctx, group, i);
    }
    if (code != 0)
        return code; /* remaining objects are freed with the process */
    rk_comm_world_destroy(ctx.world);
    rk_stream_destroy(ctx.stream);
    rk_device_close(ctx.device);
    return bench_stdout_is_good() ? 0 : EXIT_STOP;
}

/* --- the parent --- */

/* Waits for all ranks; kills the others once one has failed. Returns the worst exit code. */
static int wait_for(pid_t *pids, int32_t num_ranks)
{
    int worst = 0;

    for (int32_t left = num_ranks; left > 0; left--) {
        int status, code;
        pid_t pid = waitpid(-1, &status, 0);

        RK_ASSERT(pid > 0);
        code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        for (int32_t r = 0; r < num_ranks; r++) {
            if (pids[r] == pid)
                pids[r] = 0;
        }
        if (code == 0)
            continue;
        if (worst == 0) {
            worst = code;
            for (int32_t r = 0; r < num_ranks; r++) {
                if (pids[r] > 0)
                    kill(pids[r], SIGKILL);
            }
        }
    }
    return worst;
}

/* Sets the reason of the cases that did not run. */
static bench_outcome_t mark_rest(const struct group *group, int code)
{
    bool is_skip = code == EXIT_NO_DEVICE;

    if (code == EXIT_STOP)
        return BENCH_STOP;
    for (int i = 0; i < bench_num_cases; i++) {
        struct bench_result *result = &group->shared->results[i];

        if (!bench_is_selected(group->options, &bench_cases[i]) ||
            ranks_of(&bench_cases[i]) != group->num_ranks || result->state != BENCH_NOT_RUN)
            continue;
        result->state = is_skip ? BENCH_SKIPPED : BENCH_FAILED;
        if (is_skip)
            snprintf(result->note, sizeof(result->note), "needs %d devices", group->num_ranks);
        else
            snprintf(result->note, sizeof(result->note), "a rank exited with code %d", code);
        bench_print_row(&bench_cases[i], result, group->baseline);
    }
    return is_skip || code == 0 ? BENCH_GOOD : BENCH_BAD;
}

bench_outcome_t bench_run_group(struct bench_shared *shared, const struct bench_options *options,
                                int32_t num_ranks, const struct rk_json *baseline)
{
    struct group group = {.shared = shared, .options = options, .baseline = baseline, .num_ranks = num_ranks};
    pid_t pids[BENCH_MAX_RANKS], parent = getpid();
    bench_outcome_t outcome;

    RK_ASSERT(num_ranks <= BENCH_MAX_RANKS);
    group.rendezvous =
        mmap(NULL, sizeof(*group.rendezvous), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    RK_ASSERT(group.rendezvous != MAP_FAILED);
    fflush(NULL); /* otherwise every child would write the buffered output again */
    for (int32_t r = 0; r < num_ranks; r++) {
        pids[r] = fork();
        RK_ASSERT(pids[r] >= 0);
        if (pids[r] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL); /* kills the ranks with the parent, also after a crash */
            if (getppid() != parent)
                _exit(1);
            exit(run_rank(&group, r));
        }
    }
    outcome = mark_rest(&group, wait_for(pids, num_ranks));
    munmap(group.rendezvous, sizeof(*group.rendezvous));
    return outcome;
}
