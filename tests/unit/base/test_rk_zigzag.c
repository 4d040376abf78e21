/* The zig-zag split of context parallelism. */
#include "base/layout/rk_zigzag.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_rng.h"
#include "tests/support/test.h"

#define MAX_SEQS 9
#define MAX_ROWS 4096

static void test_zigzag_padded_length_is_smallest_multiple(void **state)
{
    (void)state;
    assert_int_equal(rk_zigzag_padded_length(0, 4, 2), 0);
    assert_int_equal(rk_zigzag_padded_length(1, 4, 2), 16);
    assert_int_equal(rk_zigzag_padded_length(16, 4, 2), 16);
    assert_int_equal(rk_zigzag_padded_length(37, 2, 1), 40);
    assert_int_equal(rk_zigzag_padded_length(37, 1, 1), 38);
    assert_int_equal(rk_zigzag_padded_length((int64_t)1 << 40, 8, 8), (int64_t)1 << 40);
}

static void test_zigzag_check_uneven_length_fails(void **state)
{
    static const int32_t cu_seqlens[] = {0, 8, 20}, descending[] = {0, 8, 4};

    (void)state;
    assert_ok(rk_zigzag_check(&(struct rk_zigzag){2, 2, cu_seqlens}));
    assert_fails(rk_zigzag_check(&(struct rk_zigzag){4, 2, cu_seqlens}), RK_INVALID_ARGUMENT,
                 "sequence 1 has 12 tokens, expected a multiple of 2 * cp_size=8");
    assert_fails(rk_zigzag_check(&(struct rk_zigzag){2, 2, descending}), RK_INVALID_ARGUMENT,
                 "sequence 1 has -4 tokens");
}

/* Goal: the published split of 16 tokens, after a sequence of 8, row by row. */
static void test_zigzag_rows_worked_example(void **state)
{
    static const int32_t cu_seqlens[] = {0, 8, 8, 24};
    static const int32_t two[2][12] = {{0, 1, 6, 7, 8, 9, 10, 11, 20, 21, 22, 23},
                                       {2, 3, 4, 5, 12, 13, 14, 15, 16, 17, 18, 19}};
    static const int32_t four[4][6] = {
        {0, 7, 8, 9, 22, 23}, {1, 6, 10, 11, 20, 21}, {2, 5, 12, 13, 18, 19}, {3, 4, 14, 15, 16, 17}};
    int32_t rows[12];

    (void)state;
    for (int32_t r = 0; r < 2; r++) {
        rk_zigzag_rows(&(struct rk_zigzag){2, 3, cu_seqlens}, r, rows);
        assert_memory_equal(rows, two[r], sizeof(two[r]));
    }
    for (int32_t r = 0; r < 4; r++) {
        rk_zigzag_rows(&(struct rk_zigzag){4, 3, cu_seqlens}, r, rows);
        assert_memory_equal(rows, four[r], sizeof(four[r]));
    }
}

static void test_zigzag_segments_worked_example(void **state)
{
    static const int32_t cu_seqlens[] = {0, 8, 24};
    static const int32_t own[] = {0, 1, 2, 4, 6}, begins[] = {0, 0, 8, 8};
    static const int32_t both[] = {2, 7, 4, 14}, early[] = {2, 0, 4, 0}, late[] = {0, 7, 0, 14};
    const struct rk_zigzag cut = {4, 2, cu_seqlens};
    int32_t cu[5], k_begin[4], k_lens[4];
    struct rk_zigzag_segments segments = {cu, k_begin, k_lens};

    (void)state;
    rk_zigzag_list_segments(&cut, 1, RK_ZIGZAG_BOTH, &segments);
    assert_memory_equal(cu, own, sizeof(own));
    assert_memory_equal(k_begin, begins, sizeof(begins));
    assert_memory_equal(k_lens, both, sizeof(both));
    rk_zigzag_list_segments(&cut, 1, RK_ZIGZAG_EARLY, &segments);
    assert_memory_equal(k_lens, early, sizeof(early));
    rk_zigzag_list_segments(&cut, 1, RK_ZIGZAG_LATE, &segments);
    assert_memory_equal(k_lens, late, sizeof(late));
    assert_memory_equal(cu, own, sizeof(own));
}

/* Every row has one owner, and the index in the gathered rows is right. */
static void expect_bijective(const struct rk_zigzag *cut)
{
    int32_t num_local = rk_zigzag_num_rows(cut), num_rows = cut->cu_seqlens[cut->num_seqs];
    int32_t *rows = rk_calloc(MAX_ROWS, sizeof(*rows)), *gathered = rk_calloc(MAX_ROWS, sizeof(*gathered));
    bool *is_owned = rk_calloc(MAX_ROWS, sizeof(*is_owned));

    assert_int_equal(num_local * cut->cp_size, num_rows);
    for (int32_t r = 0; r < cut->cp_size; r++)
        rk_zigzag_rows(cut, r, rows + r * num_local);
    rk_zigzag_gathered_rows(cut, gathered);
    for (int32_t i = 0; i < num_rows; i++) {
        assert_in_range(rows[i], 0, num_rows - 1);
        assert_false(is_owned[rows[i]]);
        is_owned[rows[i]] = true;
        assert_int_equal(rows[gathered[i]], i);
    }
    rk_free(rows);
    rk_free(gathered);
    rk_free(is_owned);
}

/* Positions, prefix sums and segments of a rank agree, and its number of attended pairs is its share. */
static void expect_consistent(const struct rk_zigzag *cut, int32_t rank)
{
    int32_t cu[MAX_SEQS + 1], parts_cu[2 * MAX_SEQS + 1], k_begin[2 * MAX_SEQS], k_lens[2 * MAX_SEQS];
    int32_t *rows = rk_calloc(MAX_ROWS, sizeof(*rows)), *positions = rk_calloc(MAX_ROWS, sizeof(*positions));
    struct rk_zigzag_segments segments = {parts_cu, k_begin, k_lens};

    rk_zigzag_rows(cut, rank, rows);
    rk_zigzag_positions(cut, rank, positions);
    rk_zigzag_cu_seqlens(cut, cu);
    rk_zigzag_list_segments(cut, rank, RK_ZIGZAG_BOTH, &segments);
    assert_int_equal(cu[cut->num_seqs], rk_zigzag_num_rows(cut));
    for (int32_t s = 0; s < cut->num_seqs; s++) {
        int64_t length = cut->cu_seqlens[s + 1] - cut->cu_seqlens[s], pairs = 0;

        assert_int_equal(parts_cu[2 * s], cu[s]);
        assert_int_equal(parts_cu[2 * s + 2], cu[s + 1]);
        for (int32_t i = cu[s]; i < cu[s + 1]; i++) {
            int32_t part = 2 * s + (i >= parts_cu[2 * s + 1]);

            pairs += positions[i] + 1;
            assert_int_equal(rows[i], cut->cu_seqlens[s] + positions[i]);
            assert_int_equal(k_begin[part], cut->cu_seqlens[s]);
            assert_int_equal(positions[i], k_lens[part] - parts_cu[part + 1] + i);
        }
        assert_int_equal(pairs * 2 * cut->cp_size, length * (length + 1));
    }
    rk_free(rows);
    rk_free(positions);
}

static void test_zigzag_random_lengths_are_cut_bijectively(void **state)
{
    struct rk_rng rng;

    (void)state;
    rk_rng_init(&rng, 11, 0);
    for (int round = 0; round < 200; round++) {
        int32_t cu_seqlens[MAX_SEQS + 1] = {0};
        struct rk_zigzag cut = {1 + (int32_t)rk_rng_next_below(&rng, 8),
                                (int32_t)rk_rng_next_below(&rng, MAX_SEQS + 1), cu_seqlens};

        for (int32_t s = 0; s < cut.num_seqs; s++)
            cu_seqlens[s + 1] = cu_seqlens[s] + (int32_t)rk_zigzag_padded_length(
                                                    (int64_t)rk_rng_next_below(&rng, 400), cut.cp_size, 1);
        assert_ok(rk_zigzag_check(&cut));
        expect_bijective(&cut);
        for (int32_t r = 0; r < cut.cp_size; r++)
            expect_consistent(&cut, r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_zigzag_padded_length_is_smallest_multiple),
        cmocka_unit_test(test_zigzag_check_uneven_length_fails),
        cmocka_unit_test(test_zigzag_rows_worked_example),
        cmocka_unit_test(test_zigzag_segments_worked_example),
        cmocka_unit_test(test_zigzag_random_lengths_are_cut_bijectively),
    };

    return cmocka_run_group_tests_name("unit/base/zigzag", tests, NULL, NULL);
}
