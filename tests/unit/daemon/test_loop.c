/* The loop of a process that ends. */
#include "daemon/loop_internal.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/test.h"

#define EXIT_CODE 7

static void on_tick(void *user)
{
    (void)user;
}

static void on_signal(void *user, int signum)
{
    (void)user;
    (void)signum;
}

static void run_child(int signum)
{
    const struct rk_loop_handlers handlers = {.on_tick = on_tick, .on_signal = on_signal};
    struct rk_loop *loop;

    if (rk_loop_create(&loop, &handlers))
        _exit(1);
    rk_loop_destroy(loop);
    (void)raise(signum);
    _exit(EXIT_CODE);
}

/* Goal: a signal that arrives while the process ends, after the loop, does not change its exit code. */
static void test_signals_after_the_loop_have_no_effect(void **state)
{
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(signals); i++) {
        pid_t child = fork();
        int status;

        if (child == 0)
            run_child(signals[i]);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), EXIT_CODE);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_signals_after_the_loop_have_no_effect),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
