#include "tests/support/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_config.h"
#include "engine/rk_plugin.h"

/* A machine without the device is no failure of what is tested on it. */
static void skip_without_device(const struct rk_status *st)
{
    const char *reason = rk_status_reason(st);

    if (strcmp(reason, "NO_DRIVER") != 0 && strcmp(reason, "NO_DEVICE") != 0)
        return;
    printf("skipped: %s\n", rk_status_message(st));
    exit(RK_TEST_EXIT_SKIPPED);
}

static const char *device_name(void)
{
    const char *name = rk_env("RK_TEST_DEVICE");

    return name ? name : "cpu";
}

struct rk_status *rk_test_device_open(struct rk_device **out, int num_threads)
{
    struct rk_device_config config = {
        .struct_size = sizeof(config),
        .name = device_name(),
        .num_threads = num_threads,
    };
    struct rk_status *st;

    RK_TRY(rk_plugin_load(config.name, rk_env("RK_TEST_PLUGIN")));
    st = rk_device_open(out, &config);
    skip_without_device(st);
    return st;
}

rk_dtype_t rk_test_device_dtype(void)
{
    return strcmp(device_name(), "cpu") == 0 ? RK_DTYPE_F64 : RK_DTYPE_F32;
}

bool rk_test_device_is_cpu(const struct rk_device *device)
{
    return strcmp(rk_device_get_info(device).name, "cpu") == 0;
}
