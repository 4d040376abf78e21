/* The driver's protocol over many seeds (sim.h): no mutation is lost or applied twice, for all faults of
 * network and processes. RK_TEST_SEEDS sets the number of seeds, RK_TEST_SEED replays one. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <grpc/grpc.h>

#include "base/config/rk_config.h"
#include "base/rk_env.h"
#include "base/rk_log.h"
#include "base/rk_str.h"
#include "tests/support/test.h"
#include "tests/unit/daemon/sim.h"

#define NUM_SEEDS    200
#define DEFECT_SEEDS 400 /* within which each defect must be detected */

/* A defect of the request table: no request is known. Replaces the product's function at link time. */
struct rk_status *__real_rk_requests_lookup(struct rk_request **out, const struct rk_requests *table,
                                            const void *id, const uint8_t digest[RK_SHA256_BYTES]);
struct rk_status *__wrap_rk_requests_lookup(struct rk_request **out, const struct rk_requests *table,
                                            const void *id, const uint8_t digest[RK_SHA256_BYTES]);
struct rk_status *__real_rk_lease_check_seq(const struct rk_lease *lease, uint64_t seq);
struct rk_status *__wrap_rk_lease_check_seq(const struct rk_lease *lease, uint64_t seq);

struct rk_status *__wrap_rk_requests_lookup(struct rk_request **out, const struct rk_requests *table,
                                            const void *id, const uint8_t digest[RK_SHA256_BYTES])
{
    if (sim->defect != SIM_DEFECT_NO_DEDUPE)
        return __real_rk_requests_lookup(out, table, id, digest);
    *out = NULL;
    return NULL;
}

struct rk_status *__wrap_rk_lease_check_seq(const struct rk_lease *lease, uint64_t seq)
{
    return sim->defect == SIM_DEFECT_NO_DEDUPE ? NULL : __real_rk_lease_check_seq(lease, seq);
}

static int set_up(void **state)
{
    (void)state;
    grpc_init(); /* for its buffers: no connection is made */
    rk_log_set_level(RK_LOG_ERROR);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    grpc_shutdown_blocking();
    return 0;
}

/* Goal: over all seeds every mutation is applied exactly once if its driver got a result, at most once
 * otherwise, in the order of sequence numbers, under the lease of its driver; and after the faults a driver
 * can claim and work. */
static void test_protocol_keeps_its_promises(void **state)
{
    int64_t first = sim_number("RK_TEST_SEED", 1);
    int64_t count = rk_env("RK_TEST_SEED") ? 1 : sim_number("RK_TEST_SEEDS", NUM_SEEDS);
    int64_t applied = 0, succeeded = 0, retried = 0, repeated = 0, cut = 0, crashes = 0;

    (void)state;
    for (int64_t seed = first; seed < first + count; seed++) {
        if (!sim_run((uint64_t)seed, SIM_DEFECT_NONE))
            fail_msg("seed %" PRId64 " (RK_TEST_SEED replays): %s", seed, sim->world.failure);
        applied += sim->num_applied;
        succeeded += sim->num_succeeded;
        retried += sim->num_retried;
        repeated += sim->num_repeated;
        cut += sim->num_cut;
        crashes += sim->num_crashes;
        sim_end();
    }
    print_message("%" PRId64 " seeds: %" PRId64 " mutations on a rank, %" PRId64 " calls answered, %" PRId64
                  " links cut, %" PRId64 " streams repeated by the network, %" PRId64 " by drivers, %" PRId64
                  " crashes\n",
                  count, applied, succeeded, cut, repeated, retried, crashes);
    /* The seeds cover all kinds of events. */
    if (count >= NUM_SEEDS) {
        assert_true(succeeded > count);
        assert_true(cut > count);
        assert_true(repeated > count / 2);
        assert_true(retried > count / 2);
        assert_true(crashes > count / 4);
    }
}

/* Goal: a seed is reproducible. */
static void test_protocol_seed_replays(void **state)
{
    int64_t orders[2], ends[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_true(sim_run(7, SIM_DEFECT_NONE));
        orders[i] = (int64_t)sim->world.agenda.next_order;
        ends[i] = sim->world.now_ns;
        sim_end();
    }
    assert_int_equal(orders[0], orders[1]);
    assert_int_equal(ends[0], ends[1]);
}

/* Runs the seed with the defect in a separate process, because assertions of the product may detect it first.
 */
static bool finds_defect(uint64_t seed, sim_defect_t defect)
{
    int status = 0;
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

        dup2(null, STDERR_FILENO); /* output of assertions */
        _exit(sim_run(seed, defect) ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

/* Goal: the simulation can detect defects: each known one is found within the first seeds. */
static void test_protocol_defects_are_found(void **state)
{
    static const char *const names[SIM_DEFECT_COUNT] = {
        [SIM_DEFECT_NO_DEDUPE] = "no deduplication of requests",
        [SIM_DEFECT_NO_FENCE] = "no fencing",
        [SIM_DEFECT_NO_CANCEL] = "a new lease does not end what runs",
        [SIM_DEFECT_FRESH_RETRY] = "a committed call is made again as a new one",
    };

    (void)state;
    for (int defect = SIM_DEFECT_NONE + 1; defect < SIM_DEFECT_COUNT; defect++) {
        uint64_t seed = 1;

        while (seed <= DEFECT_SEEDS && !finds_defect(seed, (sim_defect_t)defect))
            seed++;
        if (seed > DEFECT_SEEDS)
            fail_msg("%s: not found in %d seeds", names[defect], DEFECT_SEEDS);
        print_message("%s: found by seed %" PRIu64 "\n", names[defect], seed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_protocol_keeps_its_promises),
        cmocka_unit_test(test_protocol_seed_replays),
        cmocka_unit_test(test_protocol_defects_are_found),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
