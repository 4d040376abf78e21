/* Goal: a permanently lost GPU is detected. Method: a kernel accesses an invalid address, which causes a
 * sticky error of the context. A separate program, because no other test works on the device afterwards. */
#include "tests/support/device.h"
#include "tests/support/test.h"

#include <string.h>

#include "kernels/rk_kernels.h"

static void test_lost_device_is_known(void **state)
{
    struct rk_axpby_args args = {.alpha = 1.0f};
    struct rk_device *device;
    struct rk_stream *stream;
    struct rk_status *st;
    void *memory, *more;

    (void)state;
    assert_ok(rk_test_device_open(&device, 1));
    assert_false(rk_test_device_is_cpu(device)); /* on a CPU the access would crash the process */
    assert_ok(rk_stream_create(&stream, device, "test"));
    assert_ok(rk_device_alloc(device, &memory, 4096, "x"));
    assert_ok(rk_device_check(device));

    args.x = rk_tensor_1d(memory, RK_DTYPE_F32, 1024);
    args.y = rk_tensor_1d((void *)(uintptr_t)4096, RK_DTYPE_F32, 1024);
    assert_ok(rk_axpby(stream, &args)); /* enqueued; the error occurs when the stream executes it */
    st = rk_stream_sync(stream);
    assert_int_equal(rk_status_code(st), RK_INTERNAL);
    print_message("%s\n", rk_status_message(st));
    rk_status_free(st);
    st = rk_device_check(device);
    assert_string_equal(rk_status_reason(st), "DEVICE_LOST");
    print_message("%s\n", rk_status_message(st));
    rk_status_free(st);
    assert_fails(rk_device_alloc(device, &more, 4096, "more"), RK_INTERNAL, "more: allocating 4096 bytes");

    rk_device_free(device, memory); /* these calls must return and not hang */
    rk_stream_destroy(stream);
    rk_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lost_device_is_known),
    };

    return cmocka_run_group_tests_name("kernels/lost", tests, NULL, NULL);
}
