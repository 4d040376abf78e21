#include "base/rk_dtype.h"

#include <math.h>
#include <string.h>

#include "base/rk_rng.h"
#include "tests/support/test.h"

static void test_dtype_table_is_complete_and_consistent(void **state)
{
    (void)state;
    for (int i = RK_DTYPE_UNSPECIFIED + 1; i < RK_DTYPE_COUNT; i++) {
        rk_dtype_t dtype = (rk_dtype_t)i, parsed = RK_DTYPE_UNSPECIFIED;
        size_t bytes = rk_dtype_bytes(dtype);

        assert_true(rk_dtype_is_valid(i));
        assert_true(bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8);
        assert_true(rk_dtype_parse_safetensors(rk_dtype_safetensors_name(dtype), &parsed));
        assert_int_equal(parsed, dtype);
    }
    assert_false(rk_dtype_is_valid(RK_DTYPE_UNSPECIFIED));
    assert_false(rk_dtype_is_valid(RK_DTYPE_COUNT));
    assert_false(rk_dtype_is_valid(-1));
    assert_true(rk_dtype_is_float(RK_DTYPE_F8E4M3));
    assert_false(rk_dtype_is_float(RK_DTYPE_I64));
    assert_string_equal(rk_dtype_name(RK_DTYPE_BF16), "bf16");
}

static void test_dtype_parse_names_table(void **state)
{
    static const struct {
        const char *text;
        rk_dtype_t hf, safetensors; /* UNSPECIFIED: refused */
    } cases[] = {
        {"bfloat16", RK_DTYPE_BF16, RK_DTYPE_UNSPECIFIED},
        {"torch.float16", RK_DTYPE_F16, RK_DTYPE_UNSPECIFIED},
        {"float32", RK_DTYPE_F32, RK_DTYPE_UNSPECIFIED},
        {"F8_E4M3", RK_DTYPE_UNSPECIFIED, RK_DTYPE_F8E4M3},
        {"BF16", RK_DTYPE_UNSPECIFIED, RK_DTYPE_BF16},
        {"bf16", RK_DTYPE_UNSPECIFIED, RK_DTYPE_UNSPECIFIED},
        {"U16", RK_DTYPE_UNSPECIFIED, RK_DTYPE_UNSPECIFIED},
        {"torch.", RK_DTYPE_UNSPECIFIED, RK_DTYPE_UNSPECIFIED},
        {"auto", RK_DTYPE_UNSPECIFIED, RK_DTYPE_UNSPECIFIED},
        {"", RK_DTYPE_UNSPECIFIED, RK_DTYPE_UNSPECIFIED},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        rk_dtype_t hf = RK_DTYPE_UNSPECIFIED, safetensors = RK_DTYPE_UNSPECIFIED;

        assert_int_equal(rk_dtype_parse_hf(cases[i].text, &hf), cases[i].hf != RK_DTYPE_UNSPECIFIED);
        assert_int_equal(rk_dtype_parse_safetensors(cases[i].text, &safetensors),
                         cases[i].safetensors != RK_DTYPE_UNSPECIFIED);
        assert_int_equal(hf, cases[i].hf);
        assert_int_equal(safetensors, cases[i].safetensors);
    }
}

/* Goal: all 65,536 patterns are unchanged by conversion to f32 and f64 and back; a NaN becomes a quiet
 * NaN. */
static void test_narrow_formats_round_trip_exhaustively(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits <= UINT16_MAX; bits++) {
        uint16_t pattern = (uint16_t)bits, back;
        float from_bf16 = rk_bf16_to_f32(pattern), from_f16 = rk_f16_to_f32(pattern);
        double wide;

        if (isnan(from_bf16)) {
            assert_true(isnan(rk_bf16_to_f32(rk_f32_to_bf16(from_bf16))));
            assert_int_equal(rk_f32_to_bf16(from_bf16), pattern | 0x40);
        } else {
            assert_int_equal(rk_f32_to_bf16(from_bf16), pattern);
            wide = (double)from_bf16;
            rk_store_f64(&back, RK_DTYPE_BF16, &wide, 1);
            assert_int_equal(back, pattern);
        }
        if (isnan(from_f16)) {
            assert_int_equal(rk_f32_to_f16(from_f16), pattern | 0x200);
        } else {
            assert_int_equal(rk_f32_to_f16(from_f16), pattern);
            wide = (double)from_f16;
            rk_store_f64(&back, RK_DTYPE_F16, &wide, 1);
            assert_int_equal(back, pattern);
        }
    }
}

/* The value of an f16 pattern from the definition of the format, without bit operations. */
static double f16_by_definition(uint16_t bits)
{
    int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    double magnitude = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);

    return bits & 0x8000 ? -magnitude : magnitude;
}

static void test_f16_to_f32_matches_the_definition(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits <= UINT16_MAX; bits++) {
        float value = rk_f16_to_f32((uint16_t)bits);

        if ((bits & 0x7c00) != 0x7c00)
            assert_true((double)value == f16_by_definition((uint16_t)bits));
        else
            assert_true(bits & 0x3ff ? isnan(value) : isinf(value));
        assert_int_equal(signbit(value) != 0, bits >> 15);
    }
}

/* Goal: between each two adjacent values, values below the midpoint round down, above it up, and a tie to the
 * even pattern. Covers subnormals and the step to infinity. */
static void test_narrowing_rounds_to_nearest_even_everywhere(void **state)
{
    static const struct {
        rk_dtype_t dtype;
        uint16_t infinity;
        double after_max; /* what would follow the largest finite number */
    } formats[] = {{RK_DTYPE_F16, 0x7c00, 65536.0}, {RK_DTYPE_BF16, 0x7f80, 0x1p128}};

    (void)state;
    for (size_t f = 0; f < RK_ARRAY_LEN(formats); f++) {
        for (uint32_t bits = 0; bits < formats[f].infinity; bits++) {
            uint16_t pair[2] = {(uint16_t)bits, (uint16_t)(bits + 1)}, got[3];
            double value[2], probe[3];

            rk_load_f64(value, pair, formats[f].dtype, 2);
            if (pair[1] == formats[f].infinity)
                value[1] = formats[f].after_max;
            probe[1] = value[0] + (value[1] - value[0]) / 2;
            probe[0] = nextafter(probe[1], -INFINITY);
            probe[2] = nextafter(probe[1], INFINITY);
            rk_store_f64(got, formats[f].dtype, probe, 3);
            assert_int_equal(got[0], pair[0]);
            assert_int_equal(got[1], bits & 1 ? pair[1] : pair[0]);
            assert_int_equal(got[2], pair[1]);
        }
    }
}

/* Goal: an f64 value above a tie by less than f32 resolves rounds up. Converted to f32 first it would become
 * the tie and round down to even. */
static void test_store_f64_rounds_once(void **state)
{
    const double bf16_case = 1.0 + 0x1p-8 + 0x1p-40, f16_case = 1.0 + 0x1p-11 + 0x1p-40;
    uint16_t got;

    (void)state;
    rk_store_f64(&got, RK_DTYPE_BF16, &bf16_case, 1);
    assert_int_equal(got, 0x3f81);
    assert_int_equal(rk_f32_to_bf16((float)bf16_case), 0x3f80);
    rk_store_f64(&got, RK_DTYPE_F16, &f16_case, 1);
    assert_int_equal(got, 0x3c01);
    assert_int_equal(rk_f32_to_f16((float)f16_case), 0x3c00);
}

static void test_narrowing_extremes_table(void **state)
{
    static const struct {
        const char *label;
        double value;
        uint16_t f16, bf16;
    } cases[] = {
        {"zero", 0.0, 0x0000, 0x0000},
        {"minus zero", -0.0, 0x8000, 0x8000},
        {"infinity", INFINITY, 0x7c00, 0x7f80},
        {"minus infinity", -INFINITY, 0xfc00, 0xff80},
        {"largest f16", 65504.0, 0x7bff, 0x4780},
        {"f16 tie with infinity", 65520.0, 0x7c00, 0x4780},
        {"just below that tie", 65519.99, 0x7bff, 0x4780},
        {"overflows both", 1e300, 0x7c00, 0x7f80},
        {"underflows both", -1e-300, 0x8000, 0x8000},
        {"f64 subnormal", 5e-324, 0x0000, 0x0000},
        {"smallest f16 subnormal", 0x1p-24, 0x0001, 0x3380},
        {"half of it ties to zero", 0x1p-25, 0x0000, 0x3300},
        {"just over half of it", 0x1.0001p-25, 0x0001, 0x3300},
        {"smallest bf16 subnormal", 0x1p-133, 0x0000, 0x0001},
        {"half of that", 0x1p-134, 0x0000, 0x0000},
        {"one", 1.0, 0x3c00, 0x3f80},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        uint16_t f16, bf16;

        rk_store_f64(&f16, RK_DTYPE_F16, &cases[i].value, 1);
        rk_store_f64(&bf16, RK_DTYPE_BF16, &cases[i].value, 1);
        if (f16 != cases[i].f16 || bf16 != cases[i].bf16)
            fail_msg("%s: f16 %04x, bf16 %04x", cases[i].label, f16, bf16);
    }
}

/* A NaN whose payload is only in the bits that are dropped must not become an infinity. */
static void test_narrowing_nan_with_low_payload_stays_nan(void **state)
{
    uint32_t bits = 0x7f800001u;
    uint64_t wide_bits = 0xfff0000000000001u;
    float value;
    double wide;
    uint16_t got;

    (void)state;
    memcpy(&value, &bits, sizeof(value));
    memcpy(&wide, &wide_bits, sizeof(wide));
    assert_int_equal(rk_f32_to_bf16(value), 0x7fc0);
    rk_store_f64(&got, RK_DTYPE_BF16, &wide, 1);
    assert_int_equal(got, 0xffc0);
    rk_store_f64(&got, RK_DTYPE_F16, &wide, 1);
    assert_int_equal(got, 0xfe00);
}

/* Goal: the fast f32 path equals the general one on random bit patterns. */
static void test_f32_to_bf16_equals_f64_path(void **state)
{
    struct rk_rng rng;

    (void)state;
    rk_rng_init(&rng, rk_test_seed(), 2);
    for (int i = 0; i < 200000; i++) {
        uint32_t bits = rk_rng_next_u32(&rng);
        uint16_t through_f64;
        double wide;
        float value;

        memcpy(&value, &bits, sizeof(value));
        if (isnan(value))
            continue;
        wide = (double)value;
        rk_store_f64(&through_f64, RK_DTYPE_BF16, &wide, 1);
        assert_int_equal(rk_f32_to_bf16(value), through_f64);
    }
}

/* Goal: every pair of float dtypes agrees with a load to f64 and a store, over more than one internal chunk.
 */
static void test_convert_all_pairs_match_load_and_store(void **state)
{
    static const rk_dtype_t dtypes[] = {RK_DTYPE_F16, RK_DTYPE_BF16, RK_DTYPE_F32, RK_DTYPE_F64};
    enum { COUNT = 600 };
    double values[COUNT], wide[COUNT], src[COUNT], got[COUNT], expected[COUNT];
    struct rk_rng rng;

    (void)state;
    rk_rng_init(&rng, rk_test_seed(), 3);
    for (int i = 0; i < COUNT; i++)
        values[i] = rk_rng_next_normal(&rng) * pow(2.0, (double)rk_rng_next_below(&rng, 40) - 30);
    for (size_t a = 0; a < RK_ARRAY_LEN(dtypes); a++) {
        for (size_t b = 0; b < RK_ARRAY_LEN(dtypes); b++) {
            size_t bytes = COUNT * rk_dtype_bytes(dtypes[b]);

            rk_store_f64(src, dtypes[a], values, COUNT);
            rk_load_f64(wide, src, dtypes[a], COUNT);
            rk_store_f64(expected, dtypes[b], wide, COUNT);
            rk_convert(got, dtypes[b], src, dtypes[a], COUNT);
            assert_memory_equal(got, expected, bytes);
            rk_convert(got, dtypes[b], src, dtypes[a], 0);
            assert_memory_equal(got, expected, bytes);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dtype_table_is_complete_and_consistent),
        cmocka_unit_test(test_dtype_parse_names_table),
        cmocka_unit_test(test_narrow_formats_round_trip_exhaustively),
        cmocka_unit_test(test_f16_to_f32_matches_the_definition),
        cmocka_unit_test(test_narrowing_rounds_to_nearest_even_everywhere),
        cmocka_unit_test(test_store_f64_rounds_once),
        cmocka_unit_test(test_narrowing_extremes_table),
        cmocka_unit_test(test_narrowing_nan_with_low_payload_stays_nan),
        cmocka_unit_test(test_f32_to_bf16_equals_f64_path),
        cmocka_unit_test(test_convert_all_pairs_match_load_and_store),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
