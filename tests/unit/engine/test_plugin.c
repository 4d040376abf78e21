/* Goal: a plug-in is found, checked and registered once, shares the program's functions, and every defect is
 * reported. The plug-ins are built from fake_plugin.c and are in this program's directory. */
#include "tests/support/test.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "engine/rk_plugin.h"
#include "kernels/rk_kernels.h"

static void assert_plugin_fails(const char *device, const char *path, const char *reason, const char *text)
{
    struct rk_status *st = rk_plugin_load(device, path);

    assert_string_equal(rk_status_reason(st), reason);
    assert_fails(st, RK_FAILED_PRECONDITION, text);
}

static void test_plugin_load_cpu_needs_none(void **state)
{
    (void)state;
    assert_ok(rk_plugin_load("cpu", NULL));
    assert_ok(rk_plugin_load("cpu:0", "/nowhere/librankd_cpu.so"));
}

static void test_plugin_load_bad_name_fails(void **state)
{
    static const char *const bad[] = {
        "", ":0", "CUDA:0", "../cuda:0", "a/b", "cu da:0", "a_name_that_is_as_long_as_no_backend_has:0"};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(bad); i++)
        assert_fails(rk_plugin_load(bad[i], NULL), RK_INVALID_ARGUMENT, "expected NAME or NAME:INDEX");
}

static void test_plugin_load_missing_names_the_searched_paths(void **state)
{
    (void)state;
    assert_plugin_fails("absent:1", NULL, "PLUGIN_MISSING", "/tests/../lib/librankd_absent.so");
    assert_plugin_fails("absent:1", "", "PLUGIN_MISSING", "/tests/librankd_absent.so exists");
}

static void test_plugin_load_broken_returns_the_reason(void **state)
{
    static const struct {
        const char *file, *text;
    } bad[] = {
        {"librankd_nowhere.so", "cannot open shared object file"},
        {"librankd_noentry.so", "it has no rk_plugin_get()"},
        {"librankd_newer.so", "librankd_newer.so: it is of another build: it has abi=99, this program 2"},
        {"librankd_stranger.so",
         "it is of another build: it has the interface 0.0.0-of-others, this program 0."},
        {"librankd_uneven.so", "librankd_uneven.so: device backend 'fake' has abi=99, expected"},
        {"librankd_other.so", "it is for device 'other', not 'fake'"},
    };
    char *text_file = rk_test_temp_path("librankd_text.so");

    (void)state;
    rk_test_write_file(text_file, "not a library", 13);
    assert_plugin_fails("fake:0", text_file, "PLUGIN_BROKEN", "librankd_text.so: ");
    rk_free(text_file);
    for (size_t i = 0; i < RK_ARRAY_LEN(bad); i++) {
        char *path = rk_format("%s/tests/%s", RK_TEST_BINARY_DIR, bad[i].file);

        assert_plugin_fails("fake:0", path, "PLUGIN_BROKEN", bad[i].text);
        rk_free(path);
    }
}

/* Goal: a partially copied library is refused, wherever it is truncated, and does not crash the process. */
static void test_plugin_load_truncated_is_refused(void **state)
{
    static const double parts[] = {0.05, 0.3, 0.6, 0.9, 0.9999};
    char *whole = rk_format("%s/tests/librankd_fake.so", RK_TEST_BINARY_DIR);
    char *cut = rk_test_temp_path("librankd_cut.so");
    size_t bytes;
    char *content = rk_test_read_file(whole, &bytes);

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(parts); i++) {
        rk_test_write_file(cut, content, (size_t)(parts[i] * (double)bytes));
        assert_plugin_fails("fake:0", cut, "PLUGIN_BROKEN", "librankd_cut.so: the file is truncated");
    }
    rk_test_write_file(cut, content, 20); /* shorter than a header */
    assert_plugin_fails("fake:0", cut, "PLUGIN_BROKEN", "librankd_cut.so: ");
    rk_free(content);
    rk_free(whole);
    rk_free(cut);
}

/* Runs after the refusals above, none of which may have an effect on it. */
static void test_plugin_load_good_one_works(void **state)
{
    struct rk_device_config config = {.struct_size = sizeof(config), .name = "fake:0"};
    float values[2] = {1.0f, 2.0f};
    struct rk_axpby_args args = {.y = rk_tensor_1d(&values[0], RK_DTYPE_F32, 1),
                                 .x = rk_tensor_1d(&values[1], RK_DTYPE_F32, 1)};
    struct rk_device *device;
    struct rk_stream *stream;

    (void)state;
    assert_fails(rk_device_open(&device, &config), RK_NOT_FOUND, "device 'fake:0': no such backend");
    assert_ok(rk_plugin_load("fake:0", NULL));
    assert_ok(rk_plugin_load("fake:3", "/nowhere/librankd_fake.so")); /* loaded already */
    assert_ok(rk_device_open(&device, &config));
    assert_ok(rk_stream_create(&stream, device, "test"));
    assert_fails(rk_axpby(stream, &args), RK_UNIMPLEMENTED, "axpby: not in the fake backend");
    rk_stream_destroy(stream);
    rk_device_close(device);
}

/* Goal: a device that is opened exclusively is reserved while it is open; other devices are not. The plug-in
 * is loaded by the previous test. */
static void test_plugin_exclusive_device_opens_once(void **state)
{
    struct rk_device_config config = {.struct_size = sizeof(config), .name = "fake:7", .is_exclusive = true};
    struct rk_device *first, *second;
    struct rk_status *st;

    (void)state;
    assert_ok(rk_device_open(&first, &config));
    st = rk_device_open(&second, &config);
    assert_string_equal(rk_status_reason(st), "DEVICE_BUSY");
    assert_fails(st, RK_UNAVAILABLE, "opening device 'fake:7': another rankd process holds FAKE-");
    assert_null(second);
    config.name = "fake:8";
    assert_ok(rk_device_open(&second, &config));
    rk_device_close(second);
    config = (struct rk_device_config){.struct_size = sizeof(config), .name = "fake:7"};
    assert_ok(rk_device_open(&second, &config)); /* opening without the exclusive option succeeds */
    rk_device_close(second);
    rk_device_close(first);
    config.is_exclusive = true;
    assert_ok(rk_device_open(&first, &config));
    rk_device_close(first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plugin_load_cpu_needs_none),
        cmocka_unit_test(test_plugin_load_bad_name_fails),
        cmocka_unit_test(test_plugin_load_missing_names_the_searched_paths),
        cmocka_unit_test(test_plugin_load_broken_returns_the_reason),
        cmocka_unit_test(test_plugin_load_truncated_is_refused),
        cmocka_unit_test(test_plugin_load_good_one_works),
        cmocka_unit_test(test_plugin_exclusive_device_opens_once),
    };

    return cmocka_run_group_tests_name("unit/engine/plugin", tests, NULL, NULL);
}
