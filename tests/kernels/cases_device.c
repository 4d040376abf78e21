/* Goal: memory, copies, streams and events of the backend under test behave as rk_device.h documents. (The
 * wrapper around them is tested with the CPU in tests/unit/kernels.) */
#include "tests/kernels/kernel_test.h"

#include "base/rk_alloc.h"
#include "base/rk_time.h"

#include <string.h>

#define COUNT (1 << 20)

static void test_device_info_describes_device(void **state)
{
    struct kt *kt = *state;
    struct rk_device_info info = rk_device_get_info(kt->device);

    assert_true(strlen(info.name) >= 3);
    assert_true(strlen(info.uuid) >= 1);
    assert_true(info.memory_total_bytes > 1 << 20);
    assert_ok(rk_device_check(kt->device));
}

/* Goal: memory that was used before is zeroed when it is allocated again. */
static void test_device_alloc_is_zeroed_and_aligned(void **state)
{
    struct kt *kt = *state;
    uint8_t *bytes = kt_read_bytes(kt, kt_zeros_1d(kt, RK_DTYPE_U8, COUNT));

    for (int round = 0; round < 2; round++) {
        void *ptr;

        memset(bytes, 0, COUNT);
        assert_ok(rk_device_alloc(kt->device, &ptr, COUNT, "test"));
        assert_int_equal((uintptr_t)ptr % 256, 0);
        assert_ok(rk_stream_copy(kt->stream, bytes, ptr, COUNT, RK_COPY_D2H));
        assert_ok(rk_stream_sync(kt->stream));
        for (int i = 0; i < COUNT; i++)
            assert_int_equal(bytes[i], 0);
        memset(bytes, 0xab, COUNT);
        assert_ok(rk_stream_copy(kt->stream, ptr, bytes, COUNT, RK_COPY_H2D));
        assert_ok(rk_stream_sync(kt->stream));
        rk_device_free(kt->device, ptr);
    }
}

/* Goal: an allocation that does not fit reports the free memory, and the device remains usable. The host may
 * overcommit. */
static void test_device_alloc_too_much_is_device_oom(void **state)
{
    struct kt *kt = *state;
    struct rk_status *st;
    void *ptr;

    if (kt_is_cpu(kt))
        rk_test_skip("the CPU's memory may be overcommitted");
    st = rk_device_alloc(kt->device, &ptr, rk_device_get_info(kt->device).memory_total_bytes, "everything");
    assert_null(ptr);
    assert_string_equal(rk_status_reason(st), "DEVICE_OOM");
    assert_fails(st, RK_RESOURCE_EXHAUSTED, "bytes free of");
    assert_ok(rk_device_check(kt->device));
    assert_ok(rk_device_alloc(kt->device, &ptr, 4096, "a little"));
    rk_device_free(kt->device, ptr);
}

static void fill(struct kt *kt, void *ptr, int value)
{
    uint8_t *bytes = rk_malloc(COUNT);

    memset(bytes, value, COUNT);
    assert_ok(rk_stream_copy(kt->stream, ptr, bytes, COUNT, RK_COPY_H2D));
    assert_ok(rk_stream_sync(kt->stream));
    rk_free(bytes);
}

static void assert_filled(struct kt *kt, const void *ptr, int value)
{
    uint8_t *bytes = rk_malloc(COUNT);

    assert_ok(rk_stream_copy(kt->stream, bytes, ptr, COUNT, RK_COPY_D2H));
    assert_ok(rk_stream_sync(kt->stream));
    assert_int_equal(bytes[0], value);
    assert_memory_equal(bytes, bytes + 1, COUNT - 1);
    rk_free(bytes);
}

/* Goal: memory of a range can be committed, zeroed, and released repeatedly; in between it is free on the
 * device. */
static void test_range_gives_its_memory_back_and_takes_it_again(void **state)
{
    enum { CYCLES = 1000 };
    struct kt *kt = *state;
    uint64_t allocated = rk_device_get_stats(kt->device).allocated_bytes, free_bytes = 0, num_allocations;
    void *range;

    assert_ok(rk_device_reserve(kt->device, &range, COUNT, "range"));
    assert_int_equal((uintptr_t)range % RK_RANGE_GRANULE, 0);
    assert_int_equal(rk_device_get_stats(kt->device).allocated_bytes, allocated);
    num_allocations = rk_device_get_stats(kt->device).num_allocations;
    for (int i = 0; i < CYCLES; i++) {
        assert_ok(rk_device_commit(kt->device, range));
        assert_int_equal(rk_device_get_stats(kt->device).allocated_bytes, allocated + RK_RANGE_GRANULE);
        if (i % 100 == 0) {
            assert_filled(kt, range, 0);
            fill(kt, range, 0xab);
            assert_filled(kt, range, 0xab);
        }
        assert_ok(rk_device_release(kt->device, range));
        assert_int_equal(rk_device_get_stats(kt->device).allocated_bytes, allocated);
        if (i == 0)
            free_bytes = rk_device_free_bytes(kt->device);
    }
    assert_int_equal(rk_device_get_stats(kt->device).num_allocations, num_allocations);
    if (!kt_is_cpu(kt)) /* other processes of the host allocate too */
        assert_int_equal(rk_device_free_bytes(kt->device), free_bytes);
    rk_device_free(kt->device, range);
}

/* Goal: a recorded graph works with memory that a range has committed again. */
static void test_graph_survives_a_range_that_was_released(void **state)
{
    struct kt *kt = *state;
    rk_tensor_t ones = kt_zeros_1d(kt, RK_DTYPE_F32, 1000), view = ones;
    double *values = kt_scratch(kt, 1000);
    struct rk_graph *graph;
    void *range;

    if (!rk_device_has_graphs(kt->device))
        rk_test_skip("this device has no graphs");
    for (int i = 0; i < 1000; i++)
        values[i] = 1.0;
    kt_write(kt, ones, values);
    assert_ok(rk_device_reserve(kt->device, &range, rk_tensor_bytes(view), "range"));
    assert_ok(rk_device_commit(kt->device, range));
    view.data = range;
    assert_ok(rk_axpby(kt->stream, &(struct rk_axpby_args){.y = view, .x = ones, .alpha = 1, .beta = 1}));
    assert_ok(rk_graph_begin(kt->stream));
    assert_ok(rk_axpby(kt->stream, &(struct rk_axpby_args){.y = view, .x = ones, .alpha = 3, .beta = 1}));
    assert_ok(rk_graph_end(&graph, kt->stream));
    for (int round = 0; round < 3; round++) {
        assert_ok(rk_graph_launch(graph));
        values = kt_read(kt, view);
        for (int i = 0; i < 1000; i++)
            assert_true(values[i] == (round == 0 ? 4.0 : 3.0));
        assert_ok(rk_device_release(kt->device, range));
        assert_ok(rk_device_commit(kt->device, range));
    }
    rk_graph_destroy(graph);
    rk_device_free(kt->device, range);
}

static void test_stream_copies_keep_order(void **state)
{
    struct kt *kt = *state;
    int32_t *host;
    void *memory;
    rk_tensor_t a = kt_zeros_1d(kt, RK_DTYPE_I32, COUNT), b = kt_zeros_1d(kt, RK_DTYPE_I32, COUNT);

    assert_ok(rk_device_host_alloc(kt->device, &memory, COUNT * sizeof(*host), "staging"));
    host = memory;
    for (int32_t i = 0; i < COUNT; i++) {
        assert_int_equal(host[i], 0);
        host[i] = i;
    }
    assert_ok(rk_stream_copy(kt->stream, a.data, host, rk_tensor_bytes(a), RK_COPY_H2D));
    assert_ok(rk_stream_copy(kt->stream, b.data, a.data, rk_tensor_bytes(a), RK_COPY_D2D));
    assert_ok(rk_stream_zero(kt->stream, b.data, COUNT / 2 * sizeof(*host)));
    assert_ok(rk_stream_copy(kt->stream, host, b.data, rk_tensor_bytes(b), RK_COPY_D2H));
    assert_ok(rk_stream_sync(kt->stream));
    for (int32_t i = 0; i < COUNT; i++)
        assert_int_equal(host[i], i < COUNT / 2 ? 0 : i);
    rk_device_host_free(kt->device, memory);
}

/* Goal: a stream that waits for an event sees the results of work enqueued before it. Method: one stream adds
 * many times, the other copies the sum. */
static void test_event_orders_two_streams(void **state)
{
    enum { ROUNDS = 200 };
    struct kt *kt = *state;
    struct rk_axpby_args add = {.y = kt_zeros_1d(kt, RK_DTYPE_F32, COUNT),
                                .x = kt_zeros_1d(kt, RK_DTYPE_F32, COUNT),
                                .alpha = 1.0f,
                                .beta = 1.0f};
    rk_tensor_t sum = kt_zeros_1d(kt, RK_DTYPE_F32, COUNT);
    double *values = kt_scratch(kt, COUNT);
    struct rk_stream *other;
    struct rk_event *event;

    for (int i = 0; i < COUNT; i++)
        values[i] = 1.0;
    kt_write(kt, add.x, values);
    assert_ok(rk_stream_create(&other, kt->device, "other"));
    assert_ok(rk_event_create(&event, kt->device));
    for (int i = 0; i < ROUNDS; i++)
        assert_ok(rk_axpby(kt->stream, &add));
    assert_ok(rk_event_record(event, kt->stream));
    assert_ok(rk_stream_wait(other, event));
    assert_ok(rk_stream_copy(other, sum.data, add.y.data, rk_tensor_bytes(sum), RK_COPY_D2D));
    assert_ok(rk_stream_sync(other));
    values = kt_read(kt, sum);
    for (int i = 0; i < COUNT; i++)
        assert_true(values[i] == ROUNDS);
    rk_event_destroy(event);
    rk_stream_destroy(other);
}

/* Goal: the time between two events is positive and at most the host's waiting time. */
static void test_event_elapsed_is_within_host_time(void **state)
{
    struct kt *kt = *state;
    struct rk_axpby_args add = {.y = kt_zeros_1d(kt, RK_DTYPE_F32, COUNT),
                                .x = kt_zeros_1d(kt, RK_DTYPE_F32, COUNT),
                                .alpha = 1,
                                .beta = 1};
    int64_t host_ns, work_ns, all_ns;
    struct rk_event *events[3];

    for (int i = 0; i < 3; i++)
        assert_ok(rk_event_create_timed(&events[i], kt->device));
    assert_ok(rk_axpby(kt->stream, &add)); /* excludes the cost of a first call */
    assert_ok(rk_stream_sync(kt->stream));
    host_ns = rk_time_now_ns();
    for (int i = 0; i < 3; i++) {
        assert_ok(rk_event_record(events[i], kt->stream));
        assert_ok(rk_axpby(kt->stream, &add));
    }
    assert_ok(rk_stream_sync(kt->stream));
    host_ns = rk_time_now_ns() - host_ns;
    assert_ok(rk_event_elapsed_ns(&work_ns, events[0], events[1]));
    assert_ok(rk_event_elapsed_ns(&all_ns, events[0], events[2]));
    assert_in_range(work_ns, 1, all_ns - 1);
    assert_in_range(all_ns, work_ns + 1, host_ns);
    for (int i = 0; i < 3; i++)
        rk_event_destroy(events[i]);
}

/* Goal: a graph repeats the recorded operations on the current contents of the recorded addresses; recording
 * executes nothing, and a dropped recording does not change the stream. Method: y <- 2 x + y a known number
 * of times.
 */
static void test_graph_repeats_the_recording(void **state)
{
    enum { LAUNCHES = 3 };
    struct kt *kt = *state;
    struct rk_axpby_args add = {.y = kt_zeros_1d(kt, RK_DTYPE_F32, 1000),
                                .x = kt_zeros_1d(kt, RK_DTYPE_F32, 1000),
                                .alpha = 2.0f,
                                .beta = 1.0f};
    double *values = kt_scratch(kt, 1000);
    struct rk_graph *graph;

    if (!rk_device_has_graphs(kt->device)) {
        assert_fails(rk_graph_begin(kt->stream), RK_UNIMPLEMENTED, "has no graphs");
        return;
    }
    assert_ok(rk_graph_begin(kt->stream));
    assert_ok(rk_axpby(kt->stream, &add));
    assert_ok(rk_graph_end(NULL, kt->stream));
    assert_ok(rk_graph_begin(kt->stream));
    assert_ok(rk_axpby(kt->stream, &add));
    assert_ok(rk_axpby(kt->stream, &add));
    assert_ok(rk_graph_end(&graph, kt->stream));
    assert_true(rk_graph_is_current(graph));
    for (int i = 0; i < 1000; i++)
        values[i] = i;
    kt_write(kt, add.x, values);
    for (int i = 0; i < LAUNCHES; i++)
        assert_ok(rk_graph_launch(graph));
    values = kt_read(kt, add.y);
    for (int i = 0; i < 1000; i++)
        assert_true(values[i] == 4.0 * LAUNCHES * i);
    rk_graph_destroy(graph);
}

/* Goal: operations that cannot be recorded fail, and ending such a recording makes the stream usable again; a
 * graph whose scratch was reallocated is not current. Method: the backward pass of rmsnorm needs scratch by
 * its width. */
static void test_graph_notices_scratch(void **state)
{
    struct kt *kt = *state;
    struct rk_graph *graph;

    if (!rk_device_has_graphs(kt->device))
        rk_test_skip("this device has no graphs");
    for (int64_t width = 64; width <= 128; width *= 2) {
        struct rk_rmsnorm_bwd_args args = {.dx = kt_zeros_2d(kt, RK_DTYPE_F32, 8, width),
                                           .dweight = kt_zeros_1d(kt, RK_DTYPE_F32, width),
                                           .dy = kt_zeros_2d(kt, RK_DTYPE_F32, 8, width),
                                           .x = kt_zeros_2d(kt, RK_DTYPE_F32, 8, width),
                                           .weight = kt_zeros_1d(kt, RK_DTYPE_F32, width),
                                           .rstd = kt_zeros_1d(kt, RK_DTYPE_F32, 8)};

        assert_ok(rk_graph_begin(kt->stream));
        assert_fails(rk_rmsnorm_bwd(kt->stream, &args), RK_FAILED_PRECONDITION, "graph is recorded");
        assert_ok(rk_graph_end(NULL, kt->stream));
        if (width == 128)
            assert_true(rk_graph_is_current(graph));
        assert_ok(rk_rmsnorm_bwd(kt->stream, &args));
        if (width == 128) {
            assert_false(rk_graph_is_current(graph));
            rk_graph_destroy(graph);
            continue;
        }
        assert_ok(rk_graph_begin(kt->stream));
        assert_ok(rk_rmsnorm_bwd(kt->stream, &args));
        assert_ok(rk_graph_end(&graph, kt->stream));
        assert_true(rk_graph_is_current(graph));
    }
    assert_ok(rk_stream_sync(kt->stream));
}

/* Goal: the host waits for an event until the stream has completed it. */
static void test_event_sync_waits_for_the_stream(void **state)
{
    struct kt *kt = *state;
    rk_tensor_t t = kt_zeros_1d(kt, RK_DTYPE_I32, COUNT);
    struct rk_event *event;
    int32_t *host;
    void *memory;

    assert_ok(rk_device_host_alloc(kt->device, &memory, COUNT * sizeof(*host), "staging"));
    host = memory;
    memset(host, 1, COUNT * sizeof(*host));
    assert_ok(rk_event_create(&event, kt->device));
    assert_ok(rk_stream_copy(kt->stream, host, t.data, COUNT * sizeof(*host), RK_COPY_D2H));
    assert_ok(rk_event_record(event, kt->stream));
    assert_ok(rk_event_sync(event));
    for (int32_t i = 0; i < COUNT; i++)
        assert_int_equal(host[i], 0);
    rk_event_destroy(event);
    rk_device_host_free(kt->device, memory);
}

/* Goal: a stream allocates workspace when a GEMM runs on it, not before, and no more than a dry run
 * reported. */
static void test_product_takes_the_workspace_of_a_dry_run(void **state)
{
    struct kt *kt = *state;
    struct rk_gemm_args args = {.c = kt_zeros_2d(kt, RK_DTYPE_BF16, 16, 16),
                                .a = kt_zeros_2d(kt, RK_DTYPE_BF16, 16, 32),
                                .b = kt_zeros_2d(kt, RK_DTYPE_BF16, 32, 16),
                                .alpha = 1};
    struct rk_stream *other, *dry_stream;
    struct rk_workspace workspace;
    struct rk_device_stats stats;
    struct rk_device *dry;

    if (kt_is_cpu(kt))
        rk_test_skip("the CPU's scratch memory is on the heap");
    stats = rk_device_get_stats(kt->device);
    assert_ok(rk_stream_create(&other, kt->device, "other"));
    assert_int_equal(rk_device_get_stats(kt->device).own_bytes, stats.own_bytes);
    assert_ok(rk_device_open_dry(&dry, kt->device));
    assert_ok(rk_stream_create(&dry_stream, dry, "dry"));
    assert_ok(rk_gemm(dry_stream, &args));
    workspace = rk_device_dry_workspace(dry);
    rk_stream_destroy(dry_stream);
    rk_device_close(dry);
    assert_true(workspace.scratch_bytes > 0);
    assert_ok(rk_stream_reserve(other, &workspace));
    stats = rk_device_get_stats(kt->device);
    assert_ok(rk_gemm(other, &args));
    assert_ok(rk_stream_sync(other));
    assert_int_equal(rk_device_get_stats(kt->device).num_allocations, stats.num_allocations);
    rk_stream_destroy(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        kt_test(test_device_info_describes_device),
        kt_test(test_device_alloc_is_zeroed_and_aligned),
        kt_test(test_device_alloc_too_much_is_device_oom),
        kt_test(test_range_gives_its_memory_back_and_takes_it_again),
        kt_test(test_graph_survives_a_range_that_was_released),
        kt_test(test_stream_copies_keep_order),
        kt_test(test_event_orders_two_streams),
        kt_test(test_event_elapsed_is_within_host_time),
        kt_test(test_event_sync_waits_for_the_stream),
        kt_test(test_graph_repeats_the_recording),
        kt_test(test_graph_notices_scratch),
        kt_test(test_product_takes_the_workspace_of_a_dry_run),
    };

    return cmocka_run_group_tests_name("kernels/device", tests, NULL, NULL);
}
