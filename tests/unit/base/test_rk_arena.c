#include "base/rk_arena.h"

#include <string.h>

#include "tests/support/test.h"

static void test_arena_alloc_many_blocks_zeroed_and_aligned(void **state)
{
    struct rk_arena *arena = rk_arena_create(256, 0);

    (void)state;
    for (size_t bytes = 0; bytes < 600; bytes += 7) {
        unsigned char *p = rk_arena_alloc(arena, bytes);

        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 16, 0);
        for (size_t i = 0; i < bytes; i++)
            assert_int_equal(p[i], 0);
        memset(p, 0xff, bytes);
    }
    rk_arena_destroy(arena);
}

/* Goal: memory allocated after a reset is zeroed, and the used count restarts. */
static void test_arena_reset_reuses_first_block_zeroed(void **state)
{
    struct rk_arena *arena = rk_arena_create(128, 0);
    unsigned char *first = rk_arena_alloc(arena, 64), *again;

    (void)state;
    memset(first, 0xff, 64);
    assert_non_null(rk_arena_alloc(arena, 1000));
    rk_arena_reset(arena);
    assert_int_equal(rk_arena_used_bytes(arena), 0);
    again = rk_arena_alloc(arena, 64);
    assert_ptr_equal(again, first);
    for (int i = 0; i < 64; i++)
        assert_int_equal(again[i], 0);
    rk_arena_destroy(arena);
}

static void test_arena_alloc_over_limit_gives_null(void **state)
{
    struct rk_arena *arena = rk_arena_create(64, 100);

    (void)state;
    assert_non_null(rk_arena_alloc(arena, 64));
    assert_null(rk_arena_alloc(arena, 64));
    assert_non_null(rk_arena_alloc(arena, 32)); /* an allocation that still fits succeeds */
    assert_int_equal(rk_arena_used_bytes(arena), 96);
    assert_null(rk_arena_alloc(arena, 16));
    rk_arena_reset(arena);
    assert_non_null(rk_arena_alloc(arena, 96));
    rk_arena_destroy(arena);
}

static void test_arena_calloc_overflow_gives_null(void **state)
{
    struct rk_arena *arena = rk_arena_create(64, 0);

    (void)state;
    assert_null(rk_arena_calloc(arena, SIZE_MAX / 2, 3));
    assert_null(rk_arena_alloc(arena, SIZE_MAX));
    assert_null(rk_arena_alloc(arena, PTRDIFF_MAX));
    assert_non_null(rk_arena_calloc(arena, 3, 5));
    rk_arena_destroy(arena);
    rk_arena_destroy(NULL);
}

static void test_arena_strdup_copies_and_cuts(void **state)
{
    struct rk_arena *arena = rk_arena_create(64, 64);
    char text[] = "context";

    (void)state;
    assert_string_equal(rk_arena_strdup(arena, text), "context");
    assert_string_equal(rk_arena_strndup(arena, text, 3), "con");
    assert_null(rk_arena_strdup(arena, "this text is longer than what the limit of the arena leaves"));
    rk_arena_destroy(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arena_alloc_many_blocks_zeroed_and_aligned),
        cmocka_unit_test(test_arena_reset_reuses_first_block_zeroed),
        cmocka_unit_test(test_arena_alloc_over_limit_gives_null),
        cmocka_unit_test(test_arena_calloc_overflow_gives_null),
        cmocka_unit_test(test_arena_strdup_copies_and_cuts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
