#include "tests/support/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/rk_assert.h"
#include "base/config/rk_config.h"
#include "base/rk_env.h"
#include "engine/rk_plugin.h"
#include "tests/support/graph_device.h"
#include "tests/support/test.h"

/* A missing device skips the test. */
static void skip_without_device(const struct rk_status *st)
{
    const char *reason = rk_status_reason(st);

    if (strcmp(reason, "NO_DRIVER") != 0 && strcmp(reason, "NO_DEVICE") != 0)
        return;
    rk_test_skip_program("%s", rk_status_message(st));
}

static const char *device_name(void)
{
    const char *name = rk_env("RK_TEST_DEVICE");

    return name ? name : "cpu";
}

static struct rk_status *open_named(struct rk_device **out, const char *name, int num_threads)
{
    struct rk_device_config config = {
        .struct_size = sizeof(config), .name = name, .num_threads = num_threads};

    if (strncmp(name, "graphs", strlen("graphs")) == 0)
        RK_TRY(rk_test_graphs_register());
    else
        RK_TRY(rk_plugin_load(name, rk_env("RK_TEST_PLUGIN")));
    return rk_device_open(out, &config);
}

struct rk_status *rk_test_device_open(struct rk_device **out, int num_threads)
{
    struct rk_status *st = open_named(out, device_name(), num_threads);

    skip_without_device(st);
    return st;
}

bool rk_test_device_is_per_rank(void)
{
    return strcmp(device_name(), "cpu") != 0 && !strchr(device_name(), ':');
}

struct rk_status *rk_test_device_open_rank(struct rk_device **out, int num_threads, int32_t rank)
{
    char name[64];

    if (!rk_test_device_is_per_rank())
        return open_named(out, device_name(), num_threads);
    snprintf(name, sizeof(name), "%s:%d", device_name(), rank);
    return open_named(out, name, num_threads);
}

/* In a separate process, because a process that has opened a GPU cannot fork others that open one. */
static int count_devices(void)
{
    struct rk_device *device;
    struct rk_status *st = NULL;
    int count = 0;

    while (count < RK_TEST_EXIT_SKIPPED) {
        st = rk_test_device_open_rank(&device, 1, count);
        if (st)
            break;
        rk_device_close(device);
        count++;
    }
    printf("%d devices: %s\n", count, st ? rk_status_message(st) : "and more");
    rk_status_free(st);
    fflush(NULL);
    return count;
}

int32_t rk_test_device_max_ranks(void)
{
    static int32_t count = -1;
    int status;
    pid_t pid;

    if (!rk_test_device_is_per_rank())
        return strcmp(device_name(), "cpu") == 0 ? INT32_MAX : 1;
    if (strcmp(device_name(), "graphs") == 0)
        return INT32_MAX;
    if (count >= 0)
        return count;
    fflush(NULL);
    pid = fork();
    if (pid == 0)
        _exit(count_devices());
    RK_ASSERT(waitpid(pid, &status, 0) == pid);
    count = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    return count;
}

void rk_test_device_need_ranks(int32_t num_ranks)
{
    if (rk_test_device_max_ranks() >= num_ranks)
        return;
    rk_test_skip_program("%d devices, %d needed", rk_test_device_max_ranks(), num_ranks);
}

rk_dtype_t rk_test_device_dtype(void)
{
    return strcmp(device_name(), "cpu") == 0 ? RK_DTYPE_F64 : RK_DTYPE_F32;
}

bool rk_test_device_is_cpu(const struct rk_device *device)
{
    return strcmp(rk_device_get_info(device).name, "cpu") == 0;
}
