#include "daemon/state_internal.h"

#include "base/rk_compiler.h"
#include "tests/support/test.h"

/* Goal: the state for each combination of facts, by precedence: lost, draining, running, configured,
 * model. */
static void test_rk_daemon_state_of_facts_have_ranks(void **state)
{
    static const struct {
        const char *label;
        struct rk_state_facts facts;
        rk_daemon_state_t expected;
    } cases[] = {
        {"nothing", {0}, RK_DAEMON_UNCONFIGURED},
        {"models kept without peers", {.has_model = true}, RK_DAEMON_UNCONFIGURED},
        {"configured", {.is_configured = true}, RK_DAEMON_CONFIGURED},
        {"model", {.is_configured = true, .has_model = true}, RK_DAEMON_READY},
        {"running", {.is_configured = true, .has_model = true, .is_running = true}, RK_DAEMON_BUSY},
        {"running, peers lost", {.is_running = true}, RK_DAEMON_BUSY},
        {"draining while running", {.is_running = true, .is_draining = true}, RK_DAEMON_DRAINING},
        {"lost",
         {.has_failed = true, .is_draining = true, .is_running = true, .is_configured = true},
         RK_DAEMON_FAILED},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        print_message("%s\n", cases[i].label);
        assert_int_equal(rk_daemon_state_of(&cases[i].facts), cases[i].expected);
    }
}

/* Goal: FAILED and STOPPED only lead to the end, and STARTING is only left by a start.
 */
static void test_rk_daemon_state_can_move_ends_are_final(void **state)
{
    (void)state;
    for (int to = 0; to < RK_DAEMON_STATE_COUNT; to++) {
        assert_false(rk_daemon_state_can_move(RK_DAEMON_STOPPED, (rk_daemon_state_t)to));
        assert_int_equal(rk_daemon_state_can_move(RK_DAEMON_FAILED, (rk_daemon_state_t)to),
                         to == RK_DAEMON_STOPPED);
        assert_false(rk_daemon_state_can_move((rk_daemon_state_t)to, RK_DAEMON_STARTING));
        assert_false(rk_daemon_state_can_move((rk_daemon_state_t)to, (rk_daemon_state_t)to));
    }
    assert_false(rk_daemon_state_can_move(RK_DAEMON_STARTING, RK_DAEMON_READY));
    assert_false(rk_daemon_state_can_move(RK_DAEMON_READY, RK_DAEMON_STOPPED));
}

/* Goal: rk_daemon_update may follow the facts from one state to any other without an invalid transition:
 * between the states that facts give, all transitions are valid except those out of FAILED. UNCONFIGURED to
 * BUSY is one of them: the communicators may be lost between the acceptance of a call and its Commit. */
static void test_rk_daemon_state_can_move_facts_are_followed(void **state)
{
    static const rk_daemon_state_t reachable[] = {RK_DAEMON_UNCONFIGURED, RK_DAEMON_CONFIGURED,
                                                  RK_DAEMON_READY,        RK_DAEMON_BUSY,
                                                  RK_DAEMON_DRAINING,     RK_DAEMON_FAILED};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(reachable); i++) {
        for (size_t j = 0; j < RK_ARRAY_LEN(reachable); j++) {
            bool is_exception = i == j || reachable[i] == RK_DAEMON_FAILED;

            print_message("%s -> %s\n", rk_daemon_state_name(reachable[i]),
                          rk_daemon_state_name(reachable[j]));
            assert_int_equal(rk_daemon_state_can_move(reachable[i], reachable[j]), !is_exception);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rk_daemon_state_of_facts_have_ranks),
        cmocka_unit_test(test_rk_daemon_state_can_move_ends_are_final),
        cmocka_unit_test(test_rk_daemon_state_can_move_facts_are_followed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
