/* Calls rk_fault_hit, which is always compiled; the macro RK_FAULT depends on the build. */
#include "base/rk_fault.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/rk_time.h"
#include "tests/support/test.h"

static void test_fault_unset_does_nothing(void **state)
{
    (void)state;
    unsetenv("RANKD_FAULTS");
    assert_false(rk_fault_hit("ckpt.rename"));
    setenv("RANKD_FAULTS", "", 1);
    assert_false(rk_fault_hit("ckpt.rename"));
}

static void test_fault_fail_fires_once_at_its_count(void **state)
{
    (void)state;
    setenv("RANKD_FAULTS", "a=fail,b=fail@3", 1);
    assert_false(rk_fault_hit("other"));
    assert_true(rk_fault_hit("a"));
    assert_false(rk_fault_hit("a"));
    assert_false(rk_fault_hit("b"));
    assert_false(rk_fault_hit("b"));
    assert_true(rk_fault_hit("b"));
    assert_false(rk_fault_hit("b"));
}

/* Goal: a new value of the variable resets the fault points, in the same process. */
static void test_fault_changed_variable_is_read_again(void **state)
{
    (void)state;
    setenv("RANKD_FAULTS", "a=fail", 1);
    assert_true(rk_fault_hit("a"));
    setenv("RANKD_FAULTS", "c=fail", 1);
    assert_false(rk_fault_hit("a"));
    assert_true(rk_fault_hit("c"));
}

static void test_fault_sleep_acts_from_its_count_on(void **state)
{
    int64_t begin;

    (void)state;
    setenv("RANKD_FAULTS", "slow=sleep:30ms@2", 1);
    begin = rk_time_now_ns();
    assert_false(rk_fault_hit("slow"));
    assert_true(rk_time_now_ns() - begin < 30 * 1000000);
    begin = rk_time_now_ns();
    assert_false(rk_fault_hit("slow"));
    assert_false(rk_fault_hit("slow"));
    assert_true(rk_time_now_ns() - begin >= 60 * 1000000);
}

/* Runs rk_fault_hit("x") in a child and returns the signal that ended it, 0 when it returned. */
static int signal_of_child(const char *faults)
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        setenv("RANKD_FAULTS", faults, 1);
        close(STDERR_FILENO);
        (void)rk_fault_hit("x");
        _exit(0);
    }
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void test_fault_kill_kills(void **state)
{
    (void)state;
    assert_int_equal(signal_of_child("x=kill"), SIGKILL);
    assert_int_equal(signal_of_child("x=kill@2"), 0);
}

/* Goal: the process stops at its fault point, continues after SIGCONT, and does not stop there again. */
static void test_fault_stop_stops_once_until_continued(void **state)
{
    int status;
    pid_t pid = fork();

    (void)state;
    if (pid == 0) {
        setenv("RANKD_FAULTS", "x=stop@2", 1);
        close(STDERR_FILENO);
        for (int i = 0; i < 4; i++) {
            if (rk_fault_hit("x"))
                _exit(1);
        }
        _exit(0);
    }
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    assert_true(WIFSTOPPED(status));
    assert_int_equal(kill(pid, SIGCONT), 0);
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* Goal: a malformed variable aborts. */
static void test_fault_malformed_variable_aborts(void **state)
{
    static const char *const cases[] = {"x",        "=fail",   "x=fial",    "x=sleep",  "x=sleep:2",
                                        "x=fail@0", "x=fail@", "x=fail@-1", "y=fail,x", "x=kill:3"};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        if (signal_of_child(cases[i]) != SIGABRT)
            fail_msg("%s", cases[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fault_unset_does_nothing),
        cmocka_unit_test(test_fault_fail_fires_once_at_its_count),
        cmocka_unit_test(test_fault_changed_variable_is_read_again),
        cmocka_unit_test(test_fault_sleep_acts_from_its_count_on),
        cmocka_unit_test(test_fault_kill_kills),
        cmocka_unit_test(test_fault_stop_stops_once_until_continued),
        cmocka_unit_test(test_fault_malformed_variable_aborts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
