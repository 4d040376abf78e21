/* Driver and daemons over many seeds (sim.h): no mutation is lost or applied twice, for any faults of the
 * network and the processes, and every seed ends with the result of an undisturbed run. RK_TEST_SEEDS sets
 * how many seeds run, RK_TEST_SEED replays one (or begins with it), RK_TEST_DEFECT enables a defect
 * (defects.h). */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <grpc/grpc.h>

#include "base/config/rk_config.h"
#include "base/rk_env.h"
#include "base/rk_log.h"
#include "base/rk_str.h"
#include "tests/support/test.h"
#include "tests/unit/sim/sim.h"

#define NUM_SEEDS    200
#define DEFECT_SEEDS 600 /* in which each defect must show */

void __real_grpc_init(void);
void __real_grpc_shutdown_blocking(void);

static int set_up(void **state)
{
    (void)state;
    __real_grpc_init(); /* for slices and buffers: nothing is connected */
    rk_log_set_level(RK_LOG_ERROR);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    __real_grpc_shutdown_blocking();
    return 0;
}

struct totals {
    int64_t applied, done, failed, cuts, copies, crashes, stops, claims;
};

static void add(struct totals *totals)
{
    totals->applied += sim->num_applied;
    totals->done += sim->num_done;
    totals->failed += sim->num_failed;
    totals->cuts += sim->num_cuts;
    totals->copies += sim->num_copies;
    totals->crashes += sim->num_crashes;
    totals->stops += sim->num_stops;
    totals->claims += sim->num_claims;
}

/* Goal: over all seeds every mutation that a driver reports as done was applied once on each of its ranks,
 * none that was refused was applied, none was applied twice, all in the order of their sequence numbers and
 * under the lease of their driver; no call hangs; and when the faults are over a program ends with the states
 * of an undisturbed run. */
static void test_sim_keeps_all_promises(void **state)
{
    int64_t first = sim_number("RK_TEST_SEED", 1);
    int64_t count = sim_number("RK_TEST_SEEDS", rk_env("RK_TEST_SEED") ? 1 : NUM_SEEDS);
    sim_defect_t defect = (sim_defect_t)sim_number("RK_TEST_DEFECT", SIM_DEFECT_NONE);
    struct totals totals = {0};

    (void)state;
    for (int64_t seed = first; seed < first + count; seed++) {
        bool is_kept = sim_run((uint64_t)seed, defect);

        if (!is_kept)
            print_error("seed %" PRId64 ": %s\nreplay: RK_TEST_SEED=%" PRId64 " %s/tests/test_sim\n", seed,
                        sim->world.failure, seed, RK_TEST_BINARY_DIR);
        add(&totals);
        sim_end();
        assert_true(is_kept);
    }
    print_message("%" PRId64 " seeds: %" PRId64 " mutations on a rank, %" PRId64 " calls done, %" PRId64
                  " failed, %" PRId64 " claims, %" PRId64 " connections cut, %" PRId64
                  " streams repeated, %" PRId64 " crashes, %" PRId64 " processes stopped\n",
                  count, totals.applied, totals.done, totals.failed, totals.claims, totals.cuts,
                  totals.copies, totals.crashes, totals.stops);
    /* The seeds must exercise the intended events. */
    if (count >= NUM_SEEDS) {
        assert_true(totals.done > 20 * count);
        assert_true(totals.failed > count);
        assert_true(totals.cuts > count);
        assert_true(totals.copies > count);
        assert_true(totals.crashes > count / 2);
        assert_true(totals.stops > count / 4);
    }
}

/* Goal: the same seed gives the same run. */
static void test_sim_seed_replays(void **state)
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

/* The result of the process that searches for a defect. */
struct search {
    uint64_t seed; /* that runs */
    bool is_over;  /* no seed has found it */
    char failure[512];
};

/* In a separate process, since assertions of the product may detect the defect first. */
static void search(struct search *search, sim_defect_t defect)
{
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

    dup2(null, STDERR_FILENO); /* hides the message of an assertion */
    for (search->seed = 1; search->seed <= DEFECT_SEEDS; search->seed++) {
        if (!sim_run(search->seed, defect)) {
            snprintf(search->failure, sizeof(search->failure), "%s", sim->world.failure);
            _exit(1);
        }
        sim_end();
    }
    search->is_over = true;
    _exit(0);
}

/* Goal: the simulation is able to fail: each known defect is found within the first seeds. */
static void test_sim_defects_are_found(void **state)
{
    static const char *const names[SIM_DEFECT_COUNT] = {
        [SIM_DEFECT_NO_DEDUPE] = "daemon: no deduplication of requests and numbers",
        [SIM_DEFECT_NO_FENCE] = "daemon: no fencing",
        [SIM_DEFECT_NO_CANCEL] = "daemon: a new lease does not end what runs",
        [SIM_DEFECT_TWO_HOLDERS] = "daemon: a lease that lives is granted again",
        [SIM_DEFECT_FRESH_RETRY] = "driver: a committed call is made again as a new one",
        [SIM_DEFECT_SEQ_LOST] = "driver: a number is used again",
        [SIM_DEFECT_NO_TURNS] = "driver: calls on the same ranks are offered in any order",
        [SIM_DEFECT_DONE_TOO_SOON] = "driver: a call counts as done though a rank was lost",
    };
    struct search *found =
        mmap(NULL, sizeof(*found), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    (void)state;
    assert_ptr_not_equal(found, MAP_FAILED);
    for (int defect = SIM_DEFECT_NONE + 1; defect < SIM_DEFECT_COUNT; defect++) {
        pid_t pid = fork();
        int status;

        assert_true(pid >= 0);
        if (pid == 0)
            search(found, (sim_defect_t)defect);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (found->is_over)
            fail_msg("%s: not found in %d seeds", names[defect], DEFECT_SEEDS);
        print_message("%s: found by seed %" PRIu64 ": %s\n", names[defect], found->seed,
                      *found->failure ? found->failure : "an assertion of the product");
        *found = (struct search){0};
    }
    munmap(found, sizeof(*found));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sim_keeps_all_promises),
        cmocka_unit_test(test_sim_seed_replays),
        cmocka_unit_test(test_sim_defects_are_found),
    };
    const struct CMUnitTest replay[] = {cmocka_unit_test(test_sim_keeps_all_promises)};

    if (rk_env("RK_TEST_SEED"))
        return cmocka_run_group_tests(replay, set_up, tear_down);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
