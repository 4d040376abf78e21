#include "base/rk_rng.h"

#include <math.h>

#include "tests/support/test.h"

/* Vectors: Random123's known answers for philox4x32-10. */
static void test_philox_known_answers(void **state)
{
    static const struct {
        uint32_t counter[4], key[2], expected[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        rk_philox_block_t block = rk_philox4x32(cases[i].counter, cases[i].key);

        assert_memory_equal(block.word, cases[i].expected, sizeof(block.word));
    }
}

/* Samples by the sampler's definition: argmax of z / T + -log E over the ids. */
static int pick(uint64_t seed, uint64_t stream, uint32_t position, double temperature)
{
    static const double logits[8] = {0, 1, 2, 3, -1, .5, 2.5, 1.5};
    double best = -INFINITY;
    int chosen = -1;

    for (uint32_t v = 0; v < 8; v++) {
        double noise = rk_rng_exponential(rk_rng_token_word(seed, stream, position, v));
        double score = logits[v] / temperature - log(noise);

        if (score > best) {
            best = score;
            chosen = (int)v;
        }
    }
    return chosen;
}

static void test_token_word_known_answers(void **state)
{
    static const struct {
        uint32_t position, words[8];
        int pick_t1, pick_t05;
    } cases[] = {
        {17,
         {0xa6852eae, 0xecec4828, 0xcc882152, 0x3070bcc4, 0x7a6adca8, 0xcd5d8d7e, 0x69493c59, 0xdfdebc23},
         3,
         3},
        {18,
         {0x65a0e29e, 0x0ff014f3, 0xd08dc6fd, 0x7e6f3a8c, 0xe0484652, 0x1ac41c22, 0xe4bb1d48, 0x15e50278},
         7,
         3},
        {19,
         {0x75299187, 0x7e2dc17c, 0x381c3b5d, 0x1650b4b7, 0x2a1e6d46, 0x0dd1dc5e, 0x01980954, 0xaa9693c7},
         6,
         6},
        {20,
         {0x481002e4, 0x1e75e7f3, 0x39d02dcc, 0x0be1f96b, 0x64dd2545, 0xfd2701c7, 0x09598192, 0x207c4bdb},
         3,
         3},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        for (uint32_t v = 0; v < 8; v++)
            assert_int_equal(rk_rng_token_word(1234567890123u, 42, cases[i].position, v), cases[i].words[v]);
        assert_int_equal(pick(1234567890123u, 42, cases[i].position, 1.0), cases[i].pick_t1);
        assert_int_equal(pick(1234567890123u, 42, cases[i].position, 0.5), cases[i].pick_t05);
    }
    assert_below("E of position 17, id 3", fabs(rk_rng_exponential(0x3070bcc4) - 0.209759), 5e-7);
}

/* Goal: samples follow the softmax; the published frequencies of 20,000 positions to four digits. */
static void test_token_word_pick_frequencies(void **state)
{
    static const double expected[8] = {.0186, .0505, .1469, .4080, .0073, .0330, .2457, .0901};
    int counts[8] = {0};

    (void)state;
    for (uint32_t position = 0; position < 20000; position++)
        counts[pick(1234567890123u, 42, position, 1.0)]++;
    for (int v = 0; v < 8; v++)
        assert_below("frequency", fabs(counts[v] / 20000.0 - expected[v]), 5.01e-5);
}

static void test_uniform_and_exponential_stay_inside(void **state)
{
    (void)state;
    assert_true(rk_rng_uniform(0) > 0.0);
    assert_true(rk_rng_uniform(UINT32_MAX) < 1.0);
    assert_true(rk_rng_uniform(0x80000000u) == 0.5 + 0x1p-33);
    assert_true(rk_rng_exponential(0) > 1.16e-10);
    assert_true(rk_rng_exponential(0) < 1.17e-10);
    assert_true(isfinite(rk_rng_exponential(UINT32_MAX)));
}

/* Goal: mean 0, variance 1, fourth moment 3, and neighbours (the two halves of a pair) uncorrelated. Bounds
 * are five standard errors of n samples. */
static void test_normal_moments(void **state)
{
    const int n = 200000;
    double sum = 0.0, square = 0.0, fourth = 0.0, product = 0.0, previous = 0.0;

    (void)state;
    for (int i = 0; i < n; i++) {
        double x = rk_rng_normal(rk_test_seed(), 9, (uint64_t)i);

        sum += x;
        square += x * x;
        fourth += x * x * x * x;
        product += x * previous;
        previous = x;
    }
    assert_below("mean", fabs(sum / n), 5 / sqrt(n));
    assert_below("variance", fabs(square / n - 1.0), 5 * sqrt(2.0 / n));
    assert_below("fourth moment", fabs(fourth / n - 3.0), 5 * sqrt(96.0 / n));
    assert_below("correlation", fabs(product / n), 5 / sqrt(n));
}

/* Goal: number i does not depend on earlier draws, and streams and seeds give different sequences. */
static void test_normal_is_a_pure_function(void **state)
{
    double a = rk_rng_normal(1, 2, 1000001);

    (void)state;
    (void)rk_rng_normal(1, 2, 5);
    assert_true(rk_rng_normal(1, 2, 1000001) == a);
    assert_true(rk_rng_normal(1, 3, 1000001) != a);
    assert_true(rk_rng_normal(2, 2, 1000001) != a);
    assert_true(rk_rng_normal(1, 2, 1000001 + (1ull << 33)) != a);
}

static void test_stream_of_name_known_answers(void **state)
{
    (void)state;
    assert_true(rk_rng_stream_of_name("") == 0xcbf29ce484222325u);
    assert_true(rk_rng_stream_of_name("a") == 0xaf63dc4c8601ec8cu);
    assert_true(rk_rng_stream_of_name("foobar") == 0x85944171f73967e8u);
}

static void test_permutation_holds_every_index_once(void **state)
{
    static const int64_t sizes[] = {0, 1, 2, 7, 1000};
    int64_t out[1000], again[1000];

    (void)state;
    for (size_t k = 0; k < RK_ARRAY_LEN(sizes); k++) {
        int64_t n = sizes[k];
        int seen[1000] = {0};

        rk_rng_permutation(rk_test_seed(), 3, n, out);
        rk_rng_permutation(rk_test_seed(), 3, n, again);
        for (int64_t i = 0; i < n; i++) {
            assert_in_range(out[i], 0, n - 1);
            assert_int_equal(seen[out[i]]++, 0);
            assert_int_equal(out[i], again[i]);
        }
    }
}

/* Goal: all 24 orders of four items are equally frequent; chi-square with 23 degrees of freedom, 0.1% level.
 */
static void test_permutation_is_unbiased(void **state)
{
    enum { ROUNDS = 24000 };
    int counts[256] = {0};
    double chi_square = 0.0;
    int kinds = 0;

    (void)state;
    for (uint64_t i = 0; i < ROUNDS; i++) {
        int64_t p[4];

        rk_rng_permutation(rk_test_seed(), i, 4, p);
        counts[p[0] << 6 | p[1] << 4 | p[2] << 2 | p[3]]++;
    }
    for (int i = 0; i < 256; i++) {
        if (counts[i] == 0)
            continue;
        chi_square += (counts[i] - 1000.0) * (counts[i] - 1000.0) / 1000.0;
        kinds++;
    }
    assert_int_equal(kinds, 24);
    assert_below("chi-square", chi_square, 49.7);
}

static void test_next_below_stays_below_and_reaches_all(void **state)
{
    struct rk_rng rng;
    int seen[5] = {0};

    (void)state;
    rk_rng_init(&rng, rk_test_seed(), 4);
    for (int i = 0; i < 1000; i++)
        seen[rk_rng_next_below(&rng, 5)]++;
    for (int i = 0; i < 5; i++)
        assert_in_range(seen[i], 120, 280);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(rk_rng_next_below(&rng, 1), 0);
        assert_true(rk_rng_next_below(&rng, INT64_MAX) >= 0);
    }
}

static void test_next_normal_and_uniform_advance(void **state)
{
    struct rk_rng rng, same;

    (void)state;
    rk_rng_init(&rng, 5, 6);
    rk_rng_init(&same, 5, 6);
    for (int i = 0; i < 100; i++) {
        double u = rk_rng_next_uniform(&rng);

        assert_true(u > 0.0);
        assert_true(u < 1.0);
        assert_true(u == rk_rng_next_uniform(&same));
        assert_true(rk_rng_next_normal(&rng) == rk_rng_next_normal(&same));
    }
    assert_int_equal(rng.next, 100 * 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox_known_answers),
        cmocka_unit_test(test_token_word_known_answers),
        cmocka_unit_test(test_token_word_pick_frequencies),
        cmocka_unit_test(test_uniform_and_exponential_stay_inside),
        cmocka_unit_test(test_normal_moments),
        cmocka_unit_test(test_normal_is_a_pure_function),
        cmocka_unit_test(test_stream_of_name_known_answers),
        cmocka_unit_test(test_permutation_holds_every_index_once),
        cmocka_unit_test(test_permutation_is_unbiased),
        cmocka_unit_test(test_next_below_stays_below_and_reaches_all),
        cmocka_unit_test(test_next_normal_and_uniform_advance),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
