/* Figures of a GPU, from the fake NVML (tests/support/fake_nvml.c). */
#include "tests/support/test.h"

#include <string.h>

#include "base/rk_time.h"
#include "daemon/metrics/gpu.h"

#define LIBRARY RK_TEST_BINARY_DIR "/tests/librk_fake_nvml.so"
#define WAIT_MS 10000

static struct rk_gpu_sample wait_sample(struct rk_gpu *gpu)
{
    struct rk_gpu_sample sample;

    for (int64_t waited_ms = 0;; waited_ms++) {
        rk_gpu_get_sample(gpu, &sample);
        if (sample.is_fresh)
            return sample;
        assert_true(waited_ms < WAIT_MS);
        rk_time_sleep_ms(1);
    }
}

static void test_rk_gpu_figures_have_base_units(void **state)
{
    struct rk_gpu_sample sample;
    struct rk_gpu *gpu;

    (void)state;
    assert_ok(rk_gpu_create(&gpu, LIBRARY, "GPU-whole"));
    sample = wait_sample(gpu);
    assert_true(sample.has_utilization && sample.has_memory && sample.has_temperature && sample.has_power);
    assert_true(sample.has_clocks && sample.has_ecc && sample.has_throttle);
    assert_true(sample.utilization == 0.97);
    assert_true(sample.memory_utilization == 0.5);
    assert_int_equal(sample.memory_used_bytes, 20LL << 30);
    assert_int_equal(sample.memory_total_bytes, 80LL << 30);
    assert_true(sample.temperature_celsius == 71.0);
    assert_true(sample.power_watts == 650.5);
    assert_true(sample.sm_clock_hertz == 1.98e9);
    assert_true(sample.memory_clock_hertz == 2.619e9);
    assert_int_equal(sample.ecc_uncorrected, 2);
    assert_false(sample.is_throttled_power);
    assert_true(sample.is_throttled_thermal);
    assert_int_equal(sample.num_xids, RK_GPU_XIDS + 1);
    assert_int_equal(sample.xids[0].xid, 79);
    assert_int_equal(sample.xids[0].count, 2);
    assert_int_equal(sample.xids[1].xid, 1);
    assert_int_equal(sample.xids[1].count, 1);
    assert_int_equal(sample.xids[RK_GPU_XIDS].xid, 0); /* the others of 1 to 20 */
    assert_int_equal(sample.xids[RK_GPU_XIDS].count, 5);
    rk_gpu_destroy(gpu);
}

static void test_rk_gpu_missing_values_are_omitted(void **state)
{
    struct rk_gpu_sample sample;
    struct rk_gpu *gpu;

    (void)state;
    assert_ok(rk_gpu_create(&gpu, LIBRARY, "GPU-partial"));
    sample = wait_sample(gpu);
    assert_false(sample.has_power);
    assert_false(sample.has_clocks);
    assert_true(sample.has_temperature);
    assert_int_equal(sample.num_xids, 0);
    rk_gpu_destroy(gpu);
}

/* Goal: queries do not wait for a slow driver; until it responds no figure is current. */
static void test_rk_gpu_slow_driver_does_not_block(void **state)
{
    struct rk_gpu_sample sample;
    struct rk_gpu *gpu;
    int64_t begin_ns;

    (void)state;
    assert_ok(rk_gpu_create(&gpu, LIBRARY, "GPU-slow"));
    begin_ns = rk_time_now_ns();
    rk_gpu_get_sample(gpu, &sample);
    assert_false(sample.is_fresh);
    assert_true(rk_time_now_ns() - begin_ns < 1000000000);
    wait_sample(gpu);
    rk_gpu_destroy(gpu);
}

static void test_rk_gpu_create_without_nvml_is_refused(void **state)
{
    struct rk_gpu *gpu;

    (void)state;
    assert_fails(rk_gpu_create(&gpu, "libno-such-nvml.so.1", "GPU-whole"), RK_NOT_FOUND, "libno-such-nvml");
    assert_null(gpu);
    assert_fails(rk_gpu_create(&gpu, "libm.so.6", "GPU-whole"), RK_NOT_FOUND, "libm.so.6");
    assert_fails(rk_gpu_create(&gpu, LIBRARY, "GPU-other"), RK_NOT_FOUND, "GPU-other");
    assert_null(gpu);
    rk_gpu_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rk_gpu_figures_have_base_units),
        cmocka_unit_test(test_rk_gpu_missing_values_are_omitted),
        cmocka_unit_test(test_rk_gpu_slow_driver_does_not_block),
        cmocka_unit_test(test_rk_gpu_create_without_nvml_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
