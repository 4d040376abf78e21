/* What many calls and leases leave behind, in a daemon and in its driver: nothing. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_time.h"
#include "driver/rk_driver.h"
#include "tests/proc/cli_fixture.h"

#define NUM_CALLS   10000
#define NUM_LEASES  500
#define NUM_ROUNDS  5
#define WARM_CALLS  2000
#define WARM_LEASES 50
/* Fragments of malloc's arenas; a leak of 500 bytes a call would be as much. */
#define GROWTH_KIB 5120
#define SETTLE_MS  10000

struct footprint {
    int64_t num_files, resident_kib;
};

static struct footprint footprint_of(pid_t pid)
{
    char *files = rk_format("/proc/%d/fd", (int)pid), *path = rk_format("/proc/%d/status", (int)pid);
    char *text = rk_test_read_file(path, NULL);
    const char *line = strstr(text, "VmRSS:");
    struct footprint footprint = {.num_files = rk_test_count_entries(files)};

    assert_non_null(line);
    footprint.resident_kib = strtoll(line + strlen("VmRSS:"), NULL, 10);
    rk_free(text);
    rk_free(path);
    rk_free(files);
    return footprint;
}

static void call(struct rk_driver *driver, int count)
{
    for (int i = 0; i < count; i++) {
        struct rk_arena *arena = rk_arena_create(4096, 0);
        struct rk_driver_worker worker;

        rk_driver_get_status(driver, arena, &worker);
        assert_ok(worker.error);
        rk_arena_destroy(arena);
    }
}

static void take_leases(struct rk_driver *driver, int count)
{
    for (int i = 0; i < count; i++) {
        assert_ok(rk_driver_claim(driver));
        rk_driver_release(driver);
    }
}

/* A closed connection is noticed a moment later, so the number of files may still fall. */
static void check_flat(const char *label, pid_t pid, const struct footprint *before)
{
    int64_t end_ns = rk_time_now_ns() + rk_proc_timeout_ms(SETTLE_MS) * 1000000;
    struct footprint after = footprint_of(pid);

    while (after.num_files > before->num_files && rk_time_now_ns() < end_ns) {
        rk_time_sleep_ms(20);
        after = footprint_of(pid);
    }
    assert_below(label, (double)after.num_files, (double)before->num_files);
#ifndef __SANITIZE_ADDRESS__ /* it keeps freed memory */
    assert_below(label, (double)(after.resident_kib - before->resident_kib), GROWTH_KIB);
#endif
}

/* Goal: 10,000 calls and 500 leases change neither the memory nor the descriptors of daemon and driver.
 * Method: both after a warm-up, before and after. */
static void test_calls_and_leases_leave_nothing(void **state)
{
    struct rk_proc *daemon = start_daemon(NULL);
    const char *address = rk_proc_address(daemon);
    struct rk_driver_config config = {
        .struct_size = sizeof(config), .addresses = &address, .num_addresses = 1};
    struct footprint of_daemon, of_driver;
    struct rk_driver *driver;

    (void)state;
    assert_ok(rk_driver_open(&driver, &config));
    call(driver, WARM_CALLS);
    take_leases(driver, WARM_LEASES);
    of_daemon = footprint_of(rk_proc_pid(daemon));
    of_driver = footprint_of(getpid());
    for (int round = 0; round < NUM_ROUNDS; round++) {
        call(driver, NUM_CALLS / NUM_ROUNDS);
        take_leases(driver, NUM_LEASES / NUM_ROUNDS);
    }
    check_flat("daemon", rk_proc_pid(daemon), &of_daemon);
    check_flat("driver", getpid(), &of_driver);
    rk_driver_close(driver);
    rk_proc_destroy(daemon);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_calls_and_leases_leave_nothing)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
