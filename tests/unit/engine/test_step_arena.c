/* The step arena: marks, overflow and consolidation. */
#include "tests/support/test.h"

#include <string.h>

#include "engine/tensor/step_arena.h"

struct fixture {
    struct rk_device *device;
    struct rk_step_arena *arena;
};

static struct fixture make(size_t memory_limit_bytes)
{
    struct rk_device_config config = {.struct_size = sizeof(config),
                                      .name = "cpu",
                                      .num_threads = 1,
                                      .memory_limit_bytes = memory_limit_bytes};
    struct fixture f = {0};

    assert_ok(rk_device_open(&f.device, &config));
    f.arena = rk_step_arena_create(f.device);
    return f;
}

static void unmake(struct fixture *f)
{
    rk_step_arena_destroy(f->arena);
    rk_device_close(f->device);
}

static void *take(struct fixture *f, int64_t count)
{
    rk_tensor_t t;

    assert_ok(rk_step_1d(f->arena, &t, RK_DTYPE_F64, count));
    assert_int_equal(t.shape[0], count);
    assert_true((uintptr_t)t.data % 256 == 0);
    return t.data;
}

/* Goal: after warm-up nothing is allocated and addresses repeat. Method: three equal steps, of which the
 * first one exceeds its memory. */
static void test_reset_after_overflow_leaves_one_block_that_is_enough(void **state)
{
    struct fixture f = make(0);
    void *addresses[3][3];
    uint64_t allocations = 0;

    (void)state;
    for (int step = 0; step < 3; step++) {
        for (int i = 0; i < 3; i++)
            addresses[step][i] = take(&f, 1000 << (2 * i));
        if (step == 1)
            allocations = rk_device_get_stats(f.device).num_allocations;
        rk_step_arena_reset(f.arena);
    }
    assert_int_equal(rk_step_arena_stats(f.arena).tensors.overflows, 2);
    assert_int_equal(rk_device_get_stats(f.device).num_allocations, allocations);
    assert_memory_equal(addresses[1], addresses[2], sizeof(addresses[1]));
    assert_int_equal(rk_step_arena_stats(f.arena).tensors.peak_bytes,
                     rk_step_arena_stats(f.arena).tensors.capacity_bytes);
    unmake(&f);
}

/* Goal: memory allocated since a mark is released, also across blocks. */
static void test_release_after_overflow_takes_the_same_memory_again(void **state)
{
    struct fixture f = make(0);
    void *kept = take(&f, 100), *first, *second;
    struct rk_step_mark mark = rk_step_arena_mark(f.arena);
    size_t peak;

    (void)state;
    first = take(&f, 5000);
    second = take(&f, 50000);
    peak = rk_step_arena_stats(f.arena).tensors.peak_bytes;
    rk_step_arena_release(f.arena, mark);
    assert_ptr_equal(take(&f, 5000), first);
    assert_ptr_equal(take(&f, 50000), second);
    assert_ptr_not_equal(first, kept);
    assert_int_equal(rk_step_arena_stats(f.arena).tensors.peak_bytes, peak);
    unmake(&f);
}

/* Goal: tensors without rows are usable: distinct memory, distinct column views. */
static void test_take_empty_tensor_has_a_row_of_memory(void **state)
{
    struct fixture f = make(0);
    rk_tensor_t a, b;

    (void)state;
    assert_ok(rk_step_2d(f.arena, &a, RK_DTYPE_F32, 0, 256));
    assert_ok(rk_step_2d(f.arena, &b, RK_DTYPE_F32, 0, 256));
    assert_non_null(a.data);
    assert_true((char *)rk_tensor_cols(a, 128, 128).data < (char *)b.data);
    unmake(&f);
}

/* Goal: exhausted device memory fails the call and has no other effect. Method: a limit that has room for the
 * tensor but not for growth by half, then one tensor that is too large. */
static void test_take_beyond_device_memory_is_resource_exhausted(void **state)
{
    struct fixture f = make(100000);
    rk_tensor_t t;

    (void)state;
    take(&f, 8000);
    take(&f, 3000); /* half of the first block would exceed the limit: exactly the requested size is
                     * allocated */
    assert_fails(rk_step_1d(f.arena, &t, RK_DTYPE_F64, 5000), RK_RESOURCE_EXHAUSTED, "activations of a step");
    rk_step_arena_reset(f.arena);
    take(&f, 9000);
    unmake(&f);
}

/* Goal: reserved memory suffices without another allocation, keeps its address, and is not allocated
 * twice. */
static void test_reserve_is_one_block_for_all_steps(void **state)
{
    struct fixture f = make(0);
    struct rk_step_arena_stats stats;
    uint64_t allocations;
    void *first;

    (void)state;
    assert_ok(rk_step_arena_reserve(f.arena, 20480, 512));
    allocations = rk_device_get_stats(f.device).num_allocations;
    assert_int_equal(allocations, 2);
    assert_int_equal(rk_device_get_stats(f.device).host_bytes, 512);
    first = take(&f, 512);
    for (int step = 0; step < 3; step++) {
        rk_step_arena_reset(f.arena);
        assert_ptr_equal(take(&f, 512), first);
        take(&f, 2048);
        assert_ok(rk_step_arena_reserve(f.arena, 4096 * (size_t)step, 0));
    }
    stats = rk_step_arena_stats(f.arena);
    assert_int_equal(rk_device_get_stats(f.device).num_allocations, allocations);
    assert_int_equal(stats.tensors.capacity_bytes, 20480);
    assert_int_equal(stats.tensors.peak_bytes, 20480);
    assert_int_equal(stats.tensors.overflows + stats.staging.overflows, 0);
    assert_ok(rk_step_arena_reserve(f.arena, 40960, 512));
    assert_int_equal(rk_step_arena_stats(f.arena).tensors.capacity_bytes, 40960);
    assert_int_equal(rk_device_get_stats(f.device).num_allocations, allocations + 1);
    unmake(&f);
}

/* Goal: a step that needs more than the reserved memory, and more than one block can hold, leaves the
 * reserved memory to the next steps. Method: the first step overflows; before the second, most of the
 * remaining device memory is allocated.
 */
static void test_reserve_is_kept_when_the_peak_no_longer_fits(void **state)
{
    struct fixture f = make(200000);
    struct rk_step_arena_stats stats;
    uint64_t allocations;
    void *other;

    (void)state;
    assert_ok(rk_step_arena_reserve(f.arena, 40960, 0));
    take(&f, 4096);
    take(&f, 8192);
    rk_step_arena_reset(f.arena);
    assert_ok(rk_device_alloc(f.device, &other, 120000, "others"));
    take(&f, 512);
    stats = rk_step_arena_stats(f.arena);
    assert_int_equal(stats.tensors.capacity_bytes, 40960);
    allocations = rk_device_get_stats(f.device).num_allocations;
    for (int step = 0; step < 3; step++) {
        rk_step_arena_reset(f.arena);
        take(&f, 512);
        take(&f, 4096);
    }
    assert_int_equal(rk_device_get_stats(f.device).num_allocations, allocations);
    assert_int_equal(rk_step_arena_stats(f.arena).tensors.overflows, stats.tensors.overflows);
    rk_device_free(f.device, other);
    unmake(&f);
}

/* Goal: uploaded data is downloaded unchanged, and the caller's memory is not needed after the call. */
static void test_upload_and_download_go_through_staging(void **state)
{
    struct fixture f = make(0);
    struct rk_stream *stream;
    int32_t values[300];
    void *back[2];
    rk_tensor_t t[2];

    (void)state;
    assert_ok(rk_stream_create(&stream, f.device, "test"));
    for (int i = 0; i < 2; i++) {
        for (int32_t k = 0; k < 300; k++)
            values[k] = 1000 * i + k;
        assert_ok(rk_step_upload(f.arena, stream, &t[i], RK_DTYPE_I32, values, 300));
    }
    memset(values, 0, sizeof(values));
    for (int i = 0; i < 2; i++)
        assert_ok(rk_step_download(f.arena, stream, t[i], &back[i]));
    assert_ok(rk_stream_sync(stream));
    for (int i = 0; i < 2; i++)
        assert_int_equal(((const int32_t *)back[i])[299], 1000 * i + 299);
    assert_int_equal(rk_step_arena_stats(f.arena).staging.peak_bytes, 4 * 1280);
    assert_ok(rk_step_upload(f.arena, stream, &t[0], RK_DTYPE_I32, NULL, 0));
    assert_ok(rk_step_download(f.arena, stream, t[0], &back[0]));
    rk_stream_destroy(stream);
    unmake(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reset_after_overflow_leaves_one_block_that_is_enough),
        cmocka_unit_test(test_release_after_overflow_takes_the_same_memory_again),
        cmocka_unit_test(test_take_empty_tensor_has_a_row_of_memory),
        cmocka_unit_test(test_reserve_is_one_block_for_all_steps),
        cmocka_unit_test(test_reserve_is_kept_when_the_peak_no_longer_fits),
        cmocka_unit_test(test_upload_and_download_go_through_staging),
        cmocka_unit_test(test_take_beyond_device_memory_is_resource_exhausted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
