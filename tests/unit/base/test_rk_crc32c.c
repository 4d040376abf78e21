#include "base/rk_crc32c.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_rng.h"
#include "tests/support/test.h"

/* Vectors: RFC 3720, B.4, and the check value of the CRC catalogues. */
static void test_crc32c_known_answers(void **state)
{
    uint8_t zeros[32] = {0}, ones[32], up[32], down[32];

    (void)state;
    memset(ones, 0xff, sizeof(ones));
    for (int i = 0; i < 32; i++) {
        up[i] = (uint8_t)i;
        down[i] = (uint8_t)(31 - i);
    }
    const struct {
        const void *data;
        size_t bytes;
        uint32_t expected;
    } cases[] = {{zeros, 32, 0x8a9136aa},
                 {ones, 32, 0x62a8ab43},
                 {up, 32, 0x46dd794e},
                 {down, 32, 0x113fdb5c},
                 {"", 0, 0},
                 {"123456789", 9, 0xe3069283}};
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        assert_int_equal(rk_crc32c(0, cases[i].data, cases[i].bytes), cases[i].expected);
        assert_int_equal(rk_crc32c_portable(0, cases[i].data, cases[i].bytes), cases[i].expected);
    }
}

/* Goal: the processor's instruction, the portable code, pieces and joined parts agree for every length. */
static void test_crc32c_pieces_and_joins_equal_whole(void **state)
{
    uint8_t data[300];
    struct rk_rng rng;

    (void)state;
    rk_rng_init(&rng, rk_test_seed(), 1);
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)rk_rng_next_u32(&rng);
    for (size_t bytes = 0; bytes <= sizeof(data); bytes++) {
        size_t cut = (size_t)rk_rng_next_below(&rng, (int64_t)bytes + 1);
        uint32_t whole = rk_crc32c(0, data, bytes);
        uint32_t left = rk_crc32c(0, data, cut), right = rk_crc32c(0, data + cut, bytes - cut);

        assert_int_equal(rk_crc32c_portable(0, data, bytes), whole);
        assert_int_equal(rk_crc32c(left, data + cut, bytes - cut), whole);
        assert_int_equal(rk_crc32c_portable(left, data + cut, bytes - cut), whole);
        assert_int_equal(rk_crc32c_join(left, right, bytes - cut), whole);
    }
}

static void test_crc32c_of_file_equals_memory(void **state)
{
    size_t bytes = ((size_t)1 << 20) + 4097;
    char *path = rk_test_temp_path("file"), *data = rk_calloc(1, bytes);
    uint64_t size;
    uint32_t crc;

    (void)state;
    for (size_t i = 0; i < bytes; i++)
        data[i] = (char)(i * i >> 7);
    rk_test_write_file(path, data, bytes);
    assert_ok(rk_crc32c_of_file(&crc, &size, path));
    assert_int_equal(size, bytes);
    assert_int_equal(crc, rk_crc32c(0, data, bytes));
    assert_ok(rk_crc32c_of_range(&crc, path, 5, bytes - 7));
    assert_int_equal(crc, rk_crc32c(0, data + 5, bytes - 7));
    assert_code(rk_crc32c_of_range(&crc, path, 5, bytes - 4), RK_DATA_LOSS);
    rk_free(path);
    path = rk_test_temp_path("absent");
    assert_code(rk_crc32c_of_range(&crc, path, 0, 1), RK_NOT_FOUND);
    assert_code(rk_crc32c_of_file(&crc, &size, path), RK_NOT_FOUND);
    rk_free(path);
    rk_free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crc32c_known_answers),
        cmocka_unit_test(test_crc32c_pieces_and_joins_equal_whole),
        cmocka_unit_test(test_crc32c_of_file_equals_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
