/* A plug-in for tests without an accelerator: a device "fake" whose every operator fails, which shows that
 * the plug-in creates its errors with the functions of the program. The macros FAKE_* select defects. The
 * device index selects the behaviour: fake_plugin.h. */
#include "tests/unit/engine/fake_plugin.h"

#include "engine/rk_plugin.h"
#include "generated/rk_interface.h"
#include "kernels/rk_kernels.h"

#include "base/rk_alloc.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifndef FAKE_ABI
#define FAKE_ABI RK_PLUGIN_ABI
#endif
#ifndef FAKE_INTERFACE
#define FAKE_INTERFACE RK_INTERFACE
#endif
#ifndef FAKE_DEVICE_ABI
#define FAKE_DEVICE_ABI RK_DEVICE_ABI
#endif
#ifndef FAKE_DEVICE
#define FAKE_DEVICE "fake"
#endif

static int opened_index;
static bool is_lost;

static struct rk_status *fake_open(void **out, int index, const struct rk_device_config *config)
{
    static char device;

    (void)config;
    opened_index = index;
    switch (index) {
    case FAKE_NO_DRIVER:
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "NO_DRIVER", "no driver for fakes");
    case FAKE_NO_DEVICE:
        return RK_FAIL_REASON(RK_NOT_FOUND, "NO_DEVICE", "no such fake");
    case FAKE_TOO_OLD:
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "COMPUTE_CAPABILITY", "a fake of another age");
    case FAKE_NOT_READY:
        return RK_FAIL_REASON(RK_UNAVAILABLE, "DRIVER_NOT_READY", "a fake that is not up yet");
    case FAKE_FULL:
        return RK_FAIL_REASON(RK_RESOURCE_EXHAUSTED, "DEVICE_OOM", "a fake without room");
    case FAKE_BUSY:
        return RK_FAIL_REASON(RK_UNAVAILABLE, "DEVICE_BUSY", "somebody else's fake");
    default:
        *out = &device;
        return NULL;
    }
}

static struct rk_status *fake_get_uuid(int index, char uuid[RK_DEVICE_UUID_BYTES])
{
    snprintf(uuid, RK_DEVICE_UUID_BYTES, "FAKE-%d-%d", (int)getuid(), index);
    return NULL;
}

static struct rk_status *fake_check(void *dev)
{
    (void)dev;
    return is_lost ? RK_FAIL_REASON(RK_INTERNAL, "DEVICE_LOST", "the fake fell off the bus") : NULL;
}

static void fake_close(void *dev)
{
    (void)dev;
}

static struct rk_status *fake_get_info(void *dev, struct rk_device_info *out)
{
    (void)dev;
    *out = (struct rk_device_info){.name = "fake:0", .memory_total_bytes = 1 << 24};
    return NULL;
}

static struct rk_status *fake_alloc(void *dev, void **out, size_t bytes)
{
    (void)dev;
    return rk_try_alloc(out, bytes, "fake memory");
}

static void fake_free(void *dev, void *ptr)
{
    (void)dev;
    rk_free(ptr);
}

static struct rk_status *fake_stream_create(void *dev, void **out, const char *name)
{
    (void)name;
    *out = dev;
    return NULL;
}

static void fake_stream_destroy(void *dev, void *stream)
{
    (void)dev, (void)stream;
}

static struct rk_status *fake_copy(void *dev, void *stream, void *dst, const void *src, size_t bytes,
                                   rk_copy_kind_t kind)
{
    (void)dev, (void)stream, (void)kind;
    if (opened_index == FAKE_LOST) {
        is_lost = true;
        return RK_FAIL(RK_INTERNAL, "copy: the fake does not answer");
    }
    memcpy(dst, src, bytes);
    return NULL;
}

static struct rk_status *fake_zero(void *dev, void *stream, void *dst, size_t bytes)
{
    (void)dev, (void)stream;
    memset(dst, 0, bytes);
    return NULL;
}

static struct rk_status *fake_stream_sync(void *dev, void *stream)
{
    (void)dev, (void)stream;
    return NULL;
}

#define X(op, args_type)                                                                      \
    static struct rk_status *fake_##op(void *dev, void *stream, const struct args_type *args) \
    {                                                                                         \
        (void)dev, (void)stream, (void)args;                                                  \
        return RK_FAIL(RK_UNIMPLEMENTED, #op ": not in the fake backend");                    \
    }
RK_KERNEL_TABLE(X)
#undef X

static const struct rk_kernel_ops kernels = {.name = FAKE_DEVICE,
                                             .abi = RK_KERNEL_ABI,
#define X(op, args_type) .op = fake_##op,
                                             RK_KERNEL_TABLE(X)
#undef X
};

const struct rk_plugin *rk_plugin_get(void)
{
    static const struct rk_device_ops device = {
        .name = FAKE_DEVICE,
        .abi = FAKE_DEVICE_ABI,
        .collectives = "cpu",
        .kernels = &kernels,
        .open = fake_open,
        .close = fake_close,
        .get_info = fake_get_info,
        .alloc = fake_alloc,
        .free = fake_free,
        .host_alloc = fake_alloc,
        .host_free = fake_free,
        .stream_create = fake_stream_create,
        .stream_destroy = fake_stream_destroy,
        .copy = fake_copy,
        .zero = fake_zero,
        .stream_sync = fake_stream_sync,
        .check = fake_check,
        .get_uuid = fake_get_uuid,
    };
    static const struct rk_plugin plugin = {.abi = FAKE_ABI, .interface = FAKE_INTERFACE, .device = &device};

    return &plugin;
}
