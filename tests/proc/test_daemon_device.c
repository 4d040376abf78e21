/* Devices that a daemon cannot open, or loses, simulated by a plug-in. */
#include <signal.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "tests/proc/daemon_fixture.h"
#include "tests/unit/engine/fake_plugin.h"

#define STOP_MS     20000
#define FAKE_PLUGIN "--plugin=" RK_TEST_BINARY_DIR "/tests/librankd_fake.so"

/* Runs a daemon that is expected to exit; returns its exit code. */
static int run_to_end(const char *device, const char *plugin, char **errors)
{
    char *flag = rk_format("--device=%s", device);
    const char *args[] = {flag, plugin, NULL};
    struct rk_proc *proc = rk_proc_start_rankd(args);
    int code = rk_proc_wait(proc, STOP_MS);

    *errors = rk_proc_stderr(proc);
    rk_proc_destroy(proc);
    rk_free(flag);
    return code;
}

static void assert_start_fails(const char *device, const char *plugin, int expected_code, const char *text)
{
    char *errors;
    int code = run_to_end(device, plugin, &errors);

    if (code != expected_code || !strstr(errors, text))
        fail_msg("%s: exit code %d, expected %d; expected '%s' in: %s", device, code, expected_code, text,
                 errors);
    rk_free(errors);
}

/* Goal: every failure to open a device is reported, and the exit code tells a service manager whether to
 * retry. */
static void test_device_that_cannot_be_opened_ends_the_start(void **state)
{
    static const struct {
        int index, code;
        const char *text;
    } cases[] = {
        {FAKE_NO_DRIVER, 2, "no driver for fakes"}, {FAKE_NO_DEVICE, 2, "no such fake"},
        {FAKE_TOO_OLD, 2, "a fake of another age"}, {FAKE_NOT_READY, 1, "a fake that is not up yet"},
        {FAKE_FULL, 1, "a fake without room"},      {FAKE_BUSY, 4, "somebody else's fake"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char *device = rk_format("fake:%d", cases[i].index), *text;

        text = rk_format("rankd: opening device '%s': %s", device, cases[i].text);
        assert_start_fails(device, FAKE_PLUGIN, cases[i].code, text);
        rk_free(text);
        rk_free(device);
    }
}

static void test_device_without_its_plugin_ends_the_start(void **state)
{
    (void)state;
    assert_start_fails("quantum:0", "--slot=0", 2, "the plug-in of device 'quantum' is not installed");
    assert_start_fails("fake:0", "--plugin=/nowhere/fake.so", 2, "plug-in /nowhere/fake.so: ");
    assert_start_fails("fake:0", "--plugin=" RK_TEST_BINARY_DIR "/tests/librankd_newer.so", 2,
                       "it is of another build");
    assert_start_fails("fake:x", FAKE_PLUGIN, 2, "device: expected NAME or NAME:INDEX, got");
}

/* Goal: one daemon per device, and an attempt of a second one does not affect the first. */
static void test_device_of_another_daemon_exits_with_4(void **state)
{
    const char *args[] = {"--device=fake:3", FAKE_PLUGIN, NULL};
    const char *others[] = {"--device=fake:4", FAKE_PLUGIN, NULL};
    struct fixture fixture, other;
    struct rk_worker_status status;

    (void)state;
    fixture_start(&fixture, args);
    assert_start_fails("fake:3", FAKE_PLUGIN, 4, "FAKE-");
    fixture_start(&other, others);
    assert_ok(rk_client_get_status(fixture.client, &status));
    assert_string_equal(status.rank.device, "fake:3");
    fixture_stop(&other);
    rk_proc_signal(fixture.proc, SIGKILL);
    fixture_end(&fixture, -SIGKILL);
    fixture_start(&fixture, args); /* a killed daemon leaves no lock */
    fixture_stop(&fixture);
}

/* Goal: a lost device fails the call that detects it and later ones, is visible in state and health, and ends
 * the process with 1. */
static void test_device_lost_turns_the_daemon_failed(void **state)
{
    char *flag = rk_format("--device=fake:%d", FAKE_LOST);
    const char *args[] = {flag, FAKE_PLUGIN, NULL};
    struct fixture fixture;
    struct rk_execute_header header;

    (void)state;
    fixture_start(&fixture, args);
    fixture_lead(&fixture);
    header = fixture_header(&fixture, "actor", "init_model");
    fixture_set_options(&fixture, &header, FIXTURE_MODEL_OPTIONS);
    assert_fails(fixture_execute(&fixture, &header, NULL, NULL), RK_INTERNAL, "the fake does not answer");
    fixture_wait_state(&fixture, "FAILED");
    header = fixture_header(&fixture, "actor", "init_model");
    fixture_set_options(&fixture, &header, FIXTURE_MODEL_OPTIONS);
    assert_refused(fixture_execute(&fixture, &header, NULL, NULL), RK_INTERNAL, "DEVICE_LOST");
    rk_proc_signal(fixture.proc, SIGTERM);
    fixture_end(&fixture, 1);
    rk_free(flag);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device_that_cannot_be_opened_ends_the_start),
        cmocka_unit_test(test_device_without_its_plugin_ends_the_start),
        cmocka_unit_test(test_device_of_another_daemon_exits_with_4),
        cmocka_unit_test(test_device_lost_turns_the_daemon_failed),
    };

    return cmocka_run_group_tests_name("proc/daemon_device", tests, NULL, NULL);
}
