/* Goal: the device wrapper accounts for memory, refuses invalid calls, and finds leaks; the table of backends
 * accepts complete backends only. */
#include "tests/support/test.h"

#include "base/rk_alloc.h"
#include "base/rk_log.h"
#include "base/rk_str.h"
#include "kernels/rk_kernels.h"

#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct rk_device_config config_of(const char *name)
{
    return (struct rk_device_config){
        .struct_size = sizeof(struct rk_device_config), .name = name, .num_threads = 1};
}

static struct rk_device *open_with_limit(size_t limit_bytes)
{
    struct rk_device_config config = config_of("cpu");
    struct rk_device *device;

    config.memory_limit_bytes = limit_bytes;
    assert_ok(rk_device_open(&device, &config));
    return device;
}

static void test_device_open_bad_name_fails(void **state)
{
    static const struct {
        const char *name;
        rk_code_t code;
        const char *text;
    } bad[] = {
        {"tpu", RK_NOT_FOUND, "device 'tpu': no such backend"},
        {"", RK_NOT_FOUND, "no such backend"},
        {"cp", RK_NOT_FOUND, "no such backend"},
        {"cpu2", RK_NOT_FOUND, "no such backend"},
        {"cpu:", RK_INVALID_ARGUMENT, "expected NAME or NAME:INDEX"},
        {"cpu:x", RK_INVALID_ARGUMENT, "expected NAME or NAME:INDEX"},
        {"cpu:-1", RK_INVALID_ARGUMENT, "expected NAME or NAME:INDEX"},
        {"cpu:99999999999", RK_INVALID_ARGUMENT, "expected NAME or NAME:INDEX"},
        {"cpu:1", RK_NOT_FOUND, "cpu:1 does not exist"},
        {NULL, RK_INVALID_ARGUMENT, "device name is missing"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(bad); i++) {
        struct rk_device_config config = config_of(bad[i].name);
        struct rk_device *device = (struct rk_device *)&config;

        assert_fails(rk_device_open(&device, &config), bad[i].code, bad[i].text);
        assert_null(device);
    }
}

static void test_device_open_negative_threads_fails(void **state)
{
    struct rk_device_config config = config_of("cpu");
    struct rk_device *device;

    (void)state;
    config.num_threads = -2;
    assert_fails(rk_device_open(&device, &config), RK_INVALID_ARGUMENT, "num_threads=-2, expected 0");
}

static void test_device_info_describes_host(void **state)
{
    struct rk_device *device = open_with_limit(0);
    struct rk_device_info info = rk_device_get_info(device);

    (void)state;
    assert_string_equal(info.name, "cpu");
    assert_true(strlen(info.uuid) > 0);
    assert_true(info.memory_total_bytes > 0);
    assert_ok(rk_device_check(device));
    rk_device_close(device);
    rk_device_close(NULL);
}

static void test_device_alloc_is_zeroed_and_aligned(void **state)
{
    static const size_t sizes[] = {0, 1, 255, 256, 100000};
    struct rk_device *device = open_with_limit(0);

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(sizes); i++) {
        unsigned char *bytes;
        void *ptr;

        assert_ok(rk_device_alloc(device, &ptr, sizes[i], "block"));
        assert_non_null(ptr);
        assert_int_equal((uintptr_t)ptr % 256, 0);
        bytes = ptr;
        for (size_t b = 0; b < sizes[i]; b++)
            assert_int_equal(bytes[b], 0);
        memset(ptr, 0xff, sizes[i]);
        rk_device_free(device, ptr);
    }
    rk_device_free(device, NULL);
    rk_device_close(device);
}

static void test_device_stats_follow_allocations(void **state)
{
    struct rk_device *device = open_with_limit(0);
    void *a, *b, *host;

    (void)state;
    assert_ok(rk_device_alloc(device, &a, 1000, "a"));
    assert_ok(rk_device_alloc(device, &b, 500, "b"));
    rk_device_free(device, a);
    assert_ok(rk_device_host_alloc(device, &host, 4096, "staging"));
    assert_int_equal(rk_device_get_stats(device).allocated_bytes, 500);
    assert_int_equal(rk_device_get_stats(device).peak_bytes, 1500);
    assert_int_equal(rk_device_get_stats(device).num_allocations, 3);
    rk_device_reset_peak(device);
    assert_int_equal(rk_device_get_stats(device).peak_bytes, 500);
    rk_device_host_free(device, host);
    rk_device_host_free(device, NULL);
    rk_device_free(device, b);
    assert_int_equal(rk_device_get_stats(device).allocated_bytes, 0);
    rk_device_close(device);
}

static void test_device_alloc_beyond_limit_is_device_oom(void **state)
{
    static const size_t too_large[] = {501, 1001, SIZE_MAX};
    struct rk_device *device = open_with_limit(1000);
    void *first, *second;

    (void)state;
    assert_ok(rk_device_alloc(device, &first, 500, "first"));
    for (size_t i = 0; i < RK_ARRAY_LEN(too_large); i++) {
        struct rk_status *st = rk_device_alloc(device, &second, too_large[i], "key cache");

        assert_null(second);
        assert_string_equal(rk_status_reason(st), "DEVICE_OOM");
        assert_fails(st, RK_RESOURCE_EXHAUSTED, "on device 'cpu', 500 free of 1000");
    }
    assert_message_contains(rk_device_alloc(device, &second, 600, "key cache"), "key cache: 600 bytes");
    assert_ok(rk_device_alloc(device, &second, 500, "second"));
    rk_device_free(device, first);
    rk_device_free(device, second);
    rk_device_close(device);
}

/* Goal: a range counts while it is committed, and only once; the limit applies to it as to an allocation. */
static void test_device_range_counts_while_it_is_committed(void **state)
{
    struct rk_device *device = open_with_limit(3 * RK_RANGE_GRANULE);
    void *first, *second, *block;

    (void)state;
    assert_ok(rk_device_reserve(device, &first, RK_RANGE_GRANULE + 1, "optimizer state"));
    assert_ok(rk_device_reserve(device, &second, 2 * RK_RANGE_GRANULE, "key cache"));
    assert_ok(rk_device_release(device, first));
    for (int i = 0; i < 2; i++)
        assert_ok(rk_device_commit(device, first));
    assert_int_equal(rk_device_get_stats(device).allocated_bytes, 2 * RK_RANGE_GRANULE);
    assert_fails(rk_device_commit(device, second), RK_RESOURCE_EXHAUSTED, "key cache: 4194304 bytes");
    assert_fails(rk_device_alloc(device, &block, RK_RANGE_GRANULE + 1, "block"), RK_RESOURCE_EXHAUSTED,
                 "block");
    for (int i = 0; i < 2; i++)
        assert_ok(rk_device_release(device, first));
    assert_ok(rk_device_commit(device, second));
    rk_device_free(device, first);
    rk_device_free(device, second);
    assert_int_equal(rk_device_get_stats(device).allocated_bytes, 0);
    assert_int_equal(rk_device_get_stats(device).peak_bytes, 2 * RK_RANGE_GRANULE);
    assert_fails(rk_device_reserve(device, &first, SIZE_MAX, "all"), RK_RESOURCE_EXHAUSTED, "address space");
    rk_device_close(device);
}

/* Goal: a dry run counts ranges as the device does. */
static void test_dry_device_counts_ranges(void **state)
{
    struct rk_device *dry;
    void *range;

    (void)state;
    assert_ok(rk_device_open_dry(&dry, NULL));
    assert_ok(rk_device_reserve(dry, &range, 1, "range"));
    assert_int_equal((uintptr_t)range % RK_RANGE_GRANULE, 0);
    assert_int_equal(rk_device_get_stats(dry).allocated_bytes, 0);
    assert_ok(rk_device_commit(dry, range));
    assert_int_equal(rk_device_get_stats(dry).allocated_bytes, RK_RANGE_GRANULE);
    assert_ok(rk_device_release(dry, range));
    assert_int_equal(rk_device_get_stats(dry).allocated_bytes, 0);
    rk_device_free(dry, range);
    rk_device_close(dry);
}

/* Goal: exhaustion in the backend gives the same error, and nothing remains allocated. */
static void test_device_alloc_heap_exhausted_is_device_oom(void **state)
{
    struct rk_device *device = open_with_limit(0);
    struct rk_status *st;
    void *ptr;

    (void)state;
    rk_alloc_fail_after(1);
    st = rk_device_alloc(device, &ptr, 64, "weights");
    assert_null(ptr);
    assert_string_equal(rk_status_reason(st), "DEVICE_OOM");
    assert_fails(st, RK_RESOURCE_EXHAUSTED, "weights: 64 bytes");
    rk_alloc_fail_after(1);
    assert_fails(rk_device_host_alloc(device, &ptr, 64, "staging"), RK_RESOURCE_EXHAUSTED, "staging");
    assert_null(ptr);
    assert_int_equal(rk_device_get_stats(device).allocated_bytes, 0);
    rk_device_close(device);
}

/* Goal: an operator that cannot allocate its workspace fails and succeeds the next time. */
static void test_kernel_scratch_exhausted_fails_once(void **state)
{
    struct rk_device *device = open_with_limit(0);
    struct rk_stream *stream;
    float x[4] = {3.0f, 4.0f, 0.0f, 0.0f};
    double sums[2] = {0.0, 0.0};
    struct rk_sum_squares_args args = {.out = rk_tensor_1d(sums, RK_DTYPE_F64, 2),
                                       .x = rk_tensor_1d(x, RK_DTYPE_F32, 4)};

    (void)state;
    assert_ok(rk_stream_create(&stream, device, "test"));
    rk_alloc_fail_after(1);
    assert_code(rk_sum_squares(stream, &args), RK_RESOURCE_EXHAUSTED);
    assert_ok(rk_sum_squares(stream, &args));
    assert_true(sums[0] == 25.0);
    rk_stream_destroy(stream);
    rk_device_close(device);
}

static void test_stream_copy_and_zero_move_bytes(void **state)
{
    struct rk_device *device = open_with_limit(0);
    struct rk_stream *stream;
    char in[16] = "fifteen letters", out[16] = "";
    void *memory;

    (void)state;
    assert_ok(rk_stream_create(&stream, device, "copies"));
    assert_ptr_equal(rk_stream_device(stream), device);
    assert_ok(rk_device_alloc(device, &memory, 16, "block"));
    assert_ok(rk_stream_copy(stream, memory, in, 16, RK_COPY_H2D));
    assert_ok(rk_stream_zero(stream, memory, 4));
    assert_ok(rk_stream_copy(stream, out, memory, 16, RK_COPY_D2H));
    assert_ok(rk_stream_copy(stream, NULL, NULL, 0, RK_COPY_D2D));
    assert_ok(rk_stream_zero(stream, NULL, 0));
    assert_ok(rk_stream_sync(stream));
    assert_memory_equal(out, "\0\0\0\0een letters", 16);
    rk_device_free(device, memory);
    rk_stream_destroy(stream);
    rk_stream_destroy(NULL);
    rk_device_close(device);
}

static struct rk_status *watch(void *user)
{
    return *(const bool *)user ? RK_FAIL(RK_ABORTED, "a peer is gone") : NULL;
}

/* Goal: work that ended because of an error outside the device is not reported as done. Method: a watch
 * function that first reports nothing, then an error, then is removed. */
static void test_device_watch_fails_synchronisation(void **state)
{
    struct rk_device *device = open_with_limit(0);
    struct rk_stream *stream;
    struct rk_event *event;
    bool is_lost = false;

    (void)state;
    assert_ok(rk_stream_create(&stream, device, "watched"));
    assert_ok(rk_event_create(&event, device));
    rk_device_set_watch(device, watch, &is_lost);
    assert_ok(rk_stream_sync(stream));
    is_lost = true;
    assert_fails(rk_stream_sync(stream), RK_ABORTED, "a peer is gone");
    rk_device_set_watch(device, NULL, NULL);
    assert_ok(rk_stream_sync(stream));
    assert_ok(rk_event_record(event, stream));
    assert_true(rk_event_query(event));
    assert_false(rk_stream_is_recording(stream));
    assert_null(rk_stream_native(stream));
    assert_string_equal(rk_device_collectives(device), "cpu");
    rk_event_destroy(event);
    rk_stream_destroy(stream);
    rk_device_close(device);
}

static void test_event_without_backend_support_is_in_order(void **state)
{
    struct rk_device *device = open_with_limit(0);
    struct rk_stream *stream;
    struct rk_event *event;

    (void)state;
    assert_ok(rk_stream_create(&stream, device, "test"));
    assert_ok(rk_event_create(&event, device));
    assert_ok(rk_event_record(event, stream));
    assert_ok(rk_stream_wait(stream, event));
    rk_event_destroy(event);
    rk_event_destroy(NULL);
    rk_stream_destroy(stream);
    rk_device_close(device);
}

static void count_leaks(rk_log_level_t level, const char *line, void *user)
{
    if (level == RK_LOG_ERROR && strstr(line, "leaked") && strstr(line, "lost weights"))
        ++*(int *)user;
}

/* Goal: a leak is logged with its name; debug builds abort. Method: in a child process, since it may
 * abort. */
static void test_device_close_with_leak_is_logged(void **state)
{
    int wait_status;
    pid_t child = fork();

    (void)state;
    assert_true(child >= 0);
    if (child == 0) {
        struct rk_device *device = open_with_limit(0);
        int num_leaks = 0;
        void *ptr;

        rk_log_set_sink(count_leaks, &num_leaks);
        rk_status_ignore(rk_device_alloc(device, &ptr, 64, "lost weights"), "the leak is the test");
        rk_device_close(device);
        _exit(num_leaks == 1 ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &wait_status, 0), child);
#ifdef RK_DEBUG
    assert_true(WIFSIGNALED(wait_status));
    assert_int_equal(WTERMSIG(wait_status), SIGABRT);
#else
    assert_true(WIFEXITED(wait_status));
    assert_int_equal(WEXITSTATUS(wait_status), 0);
#endif
}

/* --- a test backend that records its calls --- */

static int opened_index;

static struct rk_status *fake_open(void **out, int index, const struct rk_device_config *config)
{
    if (config->memory_limit_bytes == 1)
        return RK_FAIL(RK_UNAVAILABLE, "no driver");
    opened_index = index;
    *out = &opened_index;
    return NULL;
}

static void fake_close(void *dev)
{
    (void)dev;
    opened_index = -1;
}

static struct rk_status *fake_get_info(void *dev, struct rk_device_info *out)
{
    (void)dev;
    *out = (struct rk_device_info){.name = "fake", .memory_total_bytes = 1 << 20};
    return NULL;
}

static struct rk_status *fake_alloc(void *dev, void **out, size_t bytes)
{
    (void)dev;
    (void)out;
    return RK_FAIL(RK_INTERNAL, "%zu bytes: device lost", bytes);
}

static void fake_free(void *dev, void *ptr)
{
    (void)dev;
    (void)ptr;
}

static struct rk_status *fake_stream_create(void *dev, void **out, const char *name)
{
    (void)dev;
    (void)out;
    return RK_FAIL(RK_INTERNAL, "no stream '%s'", name);
}

static struct rk_status *fake_copy(void *dev, void *stream, void *dst, const void *src, size_t bytes,
                                   rk_copy_kind_t kind)
{
    (void)dev, (void)stream, (void)dst, (void)src, (void)bytes, (void)kind;
    return NULL;
}

static struct rk_status *fake_zero(void *dev, void *stream, void *dst, size_t bytes)
{
    (void)dev, (void)stream, (void)dst, (void)bytes;
    return NULL;
}

static struct rk_status *fake_check(void *dev)
{
    (void)dev;
    return RK_FAIL(RK_INTERNAL, "fell off the bus");
}

static struct rk_status *fake_stream_sync(void *dev, void *stream)
{
    (void)stream;
    return fake_check(dev);
}

/* Complete, with the CPU's kernels. */
static struct rk_device_ops make_fake(const struct rk_kernel_ops *kernels)
{
    return (struct rk_device_ops){
        .name = "fake",
        .abi = RK_DEVICE_ABI,
        .collectives = "cpu",
        .kernels = kernels,
        .open = fake_open,
        .close = fake_close,
        .get_info = fake_get_info,
        .alloc = fake_alloc,
        .free = fake_free,
        .host_alloc = fake_alloc,
        .host_free = fake_free,
        .stream_create = fake_stream_create,
        .stream_destroy = fake_free,
        .copy = fake_copy,
        .zero = fake_zero,
        .stream_sync = fake_stream_sync,
        .check = fake_check,
    };
}

static struct rk_kernel_ops cpu_kernels(void)
{
    struct rk_device *device = open_with_limit(0);
    struct rk_stream *stream;
    struct rk_kernel_ops kernels;

    assert_ok(rk_stream_create(&stream, device, "test"));
    kernels = *rk_stream_kernels(stream);
    rk_stream_destroy(stream);
    rk_device_close(device);
    return kernels;
}

static void test_device_register_incomplete_backend_fails(void **state)
{
    struct rk_kernel_ops kernels = cpu_kernels(), bad_kernels = kernels;
    struct rk_device_ops bad = make_fake(&kernels);
    char *text;

    (void)state;
    bad.abi = RK_DEVICE_ABI + 1;
    text = rk_format("'fake' has abi=%d, expected %d", RK_DEVICE_ABI + 1, RK_DEVICE_ABI);
    assert_fails(rk_device_register(&bad), RK_FAILED_PRECONDITION, text);
    rk_free(text);

    bad = make_fake(&bad_kernels);
    bad_kernels.abi = 0;
    assert_fails(rk_device_register(&bad), RK_FAILED_PRECONDITION,
                 "kernels of device backend 'fake' have abi=0");
    bad_kernels = kernels;
    bad_kernels.adamw = NULL;
    assert_fails(rk_device_register(&bad), RK_FAILED_PRECONDITION, "lacks the required entry 'adamw'");

    bad = make_fake(&kernels);
    bad.stream_sync = NULL;
    assert_fails(rk_device_register(&bad), RK_FAILED_PRECONDITION, "lacks the required entry 'stream_sync'");
    bad = make_fake(&kernels);
    bad.collectives = NULL;
    assert_fails(rk_device_register(&bad), RK_FAILED_PRECONDITION, "lacks the required entry 'collectives'");
    bad = make_fake(NULL);
    assert_fails(rk_device_register(&bad), RK_FAILED_PRECONDITION, "lacks the required entry 'kernels'");

    bad = make_fake(&kernels);
    bad.name = "cpu";
    assert_fails(rk_device_register(&bad), RK_ALREADY_EXISTS, "'cpu' is registered already");
}

static void test_device_register_new_backend_opens_by_index(void **state)
{
    static struct rk_kernel_ops kernels;
    static struct rk_device_ops fake; /* the table outlives the test */
    struct rk_device_config config = config_of("fake:3");
    struct rk_device *device;
    struct rk_stream *stream;
    void *ptr;

    (void)state;
    kernels = cpu_kernels();
    fake = make_fake(&kernels);
    assert_ok(rk_device_register(&fake));
    assert_fails(rk_device_register(&fake), RK_ALREADY_EXISTS, "'fake'");

    assert_ok(rk_device_open(&device, &config));
    assert_int_equal(opened_index, 3);
    assert_ptr_equal(rk_device_handle(device), &opened_index);
    assert_fails(rk_device_alloc(device, &ptr, 8, "weights"), RK_INTERNAL, "weights: allocating 8 bytes");
    assert_fails(rk_stream_create(&stream, device, "main"), RK_INTERNAL, "creating stream 'main'");
    assert_null(stream);
    assert_fails(rk_device_check(device), RK_INTERNAL, "fell off the bus");
    rk_device_close(device);
    assert_int_equal(opened_index, -1);

    config.memory_limit_bytes = 1;
    assert_fails(rk_device_open(&device, &config), RK_UNAVAILABLE, "opening device 'fake:3': no driver");
    config.name = "other";
    assert_fails(rk_device_open(&device, &config), RK_NOT_FOUND, "cpu, fake");
}

/* --- dry runs --- */

/* The number of open file descriptors among the first ones. */
static int count_fds(void)
{
    int count = 0;

    for (int fd = 0; fd < 64; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static struct rk_workspace sum_squares_workspace(const void *dev, const struct rk_sum_squares_args *args)
{
    assert_ptr_equal(dev, &opened_index); /* the handle of the device that the dry one is like */
    return (struct rk_workspace){.scratch_bytes = 8 * (size_t)args->x.shape[0], .kept_bytes = 100};
}

static struct rk_status *sum_squares_limit(const void *dev, const struct rk_sum_squares_args *args)
{
    (void)dev;
    if (args->x.shape[0] > 1000)
        return RK_FAIL(RK_UNIMPLEMENTED, "sum_squares: x has %lld elements", (long long)args->x.shape[0]);
    return NULL;
}

/* Goal: code that runs on a dry device allocates nothing, its need is recorded, and operators that the
 * backend lacks are refused. */
static void test_dry_device_counts_memory_and_workspace(void **state)
{
    static const struct rk_workspace_ops workspace = {.sum_squares = sum_squares_workspace};
    static const struct rk_limit_ops limits = {.sum_squares = sum_squares_limit};
    static struct rk_kernel_ops kernels;
    static struct rk_device_ops fake;
    struct rk_device_config config = config_of("fake2");
    struct rk_device *like, *dry;
    struct rk_stream *stream;
    double back[2] = {1, 2};
    void *x, *out, *host;
    int num_fds = count_fds();

    (void)state;
    kernels = cpu_kernels();
    kernels.workspace = &workspace;
    kernels.limits = &limits;
    fake = make_fake(&kernels);
    fake.name = "fake2";
    assert_ok(rk_device_register(&fake));
    assert_ok(rk_device_open(&like, &config));
    assert_ok(rk_device_open_dry(&dry, like));
    assert_ok(rk_stream_create(&stream, dry, "dry"));
    assert_ok(rk_device_alloc(dry, &x, (size_t)1 << 50, "a petabyte"));
    assert_ok(rk_device_alloc(dry, &out, 16, "sums"));
    assert_true((char *)out >= (char *)x + ((size_t)1 << 50));
    assert_ok(rk_device_host_alloc(dry, &host, 100, "host"));
    memset(host, 1, 100);
    assert_ok(rk_stream_copy(stream, x, host, 100, RK_COPY_H2D));
    assert_ok(rk_stream_zero(stream, x, (size_t)1 << 50));
    for (int64_t count = 1; count <= 1000; count += 333)
        assert_ok(
            rk_sum_squares(stream, &(struct rk_sum_squares_args){.out = rk_tensor_1d(out, RK_DTYPE_F64, 2),
                                                                 .x = rk_tensor_1d(x, RK_DTYPE_F32, count)}));
    assert_fails(
        rk_sum_squares(stream, &(struct rk_sum_squares_args){.out = rk_tensor_1d(out, RK_DTYPE_F64, 3),
                                                             .x = rk_tensor_1d(x, RK_DTYPE_F32, 8)}),
        RK_INVALID_ARGUMENT, "sum_squares");
    assert_fails(
        rk_sum_squares(stream, &(struct rk_sum_squares_args){.out = rk_tensor_1d(out, RK_DTYPE_F64, 2),
                                                             .x = rk_tensor_1d(x, RK_DTYPE_F32, 1001)}),
        RK_UNIMPLEMENTED, "sum_squares: x has 1001 elements");
    assert_ok(rk_stream_copy(stream, back, out, sizeof(back), RK_COPY_D2H));
    assert_ok(rk_stream_sync(stream));
    assert_true(back[0] == 0.0 && back[1] == 0.0);
    assert_int_equal(rk_device_dry_workspace(dry).scratch_bytes, 8 * 1000);
    assert_int_equal(rk_device_dry_workspace(dry).kept_bytes, 100);
    assert_int_equal(rk_device_get_stats(dry).peak_bytes, ((uint64_t)1 << 50) + 16);
    assert_int_equal(rk_device_get_stats(dry).host_bytes, 100);
    assert_int_equal(rk_device_get_stats(dry).num_allocations, 3);
    rk_device_host_free(dry, host);
    rk_device_free(dry, x);
    rk_device_free(dry, out);
    rk_stream_destroy(stream);
    rk_device_close(dry);
    rk_device_close(like);
    assert_int_equal(count_fds(), num_fds);
}

/* Goal: the free memory is the rest of the limit, or the backend's value if that is smaller. */
static struct rk_status *little_free(void *dev, uint64_t *out_bytes)
{
    (void)dev;
    *out_bytes = 77;
    return NULL;
}

static void test_device_free_bytes_is_the_smaller_bound(void **state)
{
    struct rk_device *device = open_with_limit(1000);
    static struct rk_kernel_ops kernels;
    static struct rk_device_ops fake;
    struct rk_device_config config = config_of("fake3");
    void *ptr;

    (void)state;
    assert_ok(rk_device_alloc(device, &ptr, 400, "block"));
    assert_int_equal(rk_device_free_bytes(device), 600);
    assert_true(rk_device_shared_free_bytes(device) > 1000); /* the limit applies to this process only */
    rk_device_free(device, ptr);
    rk_device_close(device);

    kernels = cpu_kernels();
    fake = make_fake(&kernels);
    fake.name = "fake3";
    fake.get_free = little_free;
    assert_ok(rk_device_register(&fake));
    assert_ok(rk_device_open(&device, &config));
    assert_int_equal(rk_device_free_bytes(device), 77);
    assert_int_equal(rk_device_shared_free_bytes(device), 77);
    rk_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device_open_bad_name_fails),
        cmocka_unit_test(test_device_open_negative_threads_fails),
        cmocka_unit_test(test_device_info_describes_host),
        cmocka_unit_test(test_device_alloc_is_zeroed_and_aligned),
        cmocka_unit_test(test_device_stats_follow_allocations),
        cmocka_unit_test(test_device_alloc_beyond_limit_is_device_oom),
        cmocka_unit_test(test_device_range_counts_while_it_is_committed),
        cmocka_unit_test(test_dry_device_counts_ranges),
        cmocka_unit_test(test_device_alloc_heap_exhausted_is_device_oom),
        cmocka_unit_test(test_kernel_scratch_exhausted_fails_once),
        cmocka_unit_test(test_stream_copy_and_zero_move_bytes),
        cmocka_unit_test(test_event_without_backend_support_is_in_order),
        cmocka_unit_test(test_device_watch_fails_synchronisation),
        cmocka_unit_test(test_device_close_with_leak_is_logged),
        cmocka_unit_test(test_device_register_incomplete_backend_fails),
        cmocka_unit_test(test_device_register_new_backend_opens_by_index),
        cmocka_unit_test(test_dry_device_counts_memory_and_workspace),
        cmocka_unit_test(test_device_free_bytes_is_the_smaller_bound),
    };

    return cmocka_run_group_tests_name("unit/kernels/device", tests, NULL, NULL);
}
