/* Texts of decimals, dates and times, as Python's str and isoformat write them. */
#include "rl/data/parquet/values_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"

#define DECIMAL_BYTES_MAX  32
#define DECIMAL_DIGITS_MAX 80
#define SCALE_MAX          1000
#define DAY_S              86400
#define JULIAN_EPOCH       2440588 /* the day of 1970-01-01 */
#define YEAR_MIN           1
#define YEAR_MAX           9999

/* --- decimals --- */

/* The digits of a big-endian number in two's complement. */
static void write_digits(char digits[DECIMAL_DIGITS_MAX + 1], const uint8_t *bytes, size_t count,
                         bool *is_negative)
{
    uint8_t value[DECIMAL_BYTES_MAX];
    char reversed[DECIMAL_DIGITS_MAX + 1];
    int num_digits = 0, carry = 1;
    bool is_zero;

    *is_negative = count > 0 && (bytes[0] & 0x80);
    memcpy(value, bytes, count);
    for (size_t i = count; *is_negative && i-- > 0;) {
        int byte = (uint8_t)~value[i] + carry;

        value[i] = (uint8_t)byte;
        carry = byte >> 8;
    }
    do {
        int rest = 0;

        is_zero = true;
        for (size_t i = 0; i < count; i++) {
            int part = rest * 256 + value[i];

            value[i] = (uint8_t)(part / 10);
            rest = part % 10;
            is_zero = is_zero && value[i] == 0;
        }
        reversed[num_digits++] = (char)('0' + rest);
    } while (!is_zero && num_digits < DECIMAL_DIGITS_MAX);
    for (int i = 0; i < num_digits; i++)
        digits[i] = reversed[num_digits - 1 - i];
    digits[num_digits] = '\0';
}

/* As Python's decimal: exponents below -6 and above 0 are written with an E. */
static struct rk_json *decimal_text(const char *digits, bool is_negative, int scale)
{
    int count = (int)strlen(digits), exponent = count - 1 - scale; /* of the first digit */
    struct rk_str text = {0};
    struct rk_json *json;

    rk_str_append(&text, is_negative ? "-" : "");
    if (scale < 0 || exponent < -6) {
        rk_str_appendf(&text, "%c%s%sE%+d", digits[0], count > 1 ? "." : "", digits + 1, exponent);
    } else if (scale == 0) {
        rk_str_append(&text, digits);
    } else if (count > scale) {
        rk_str_appendf(&text, "%.*s.%s", count - scale, digits, digits + count - scale);
    } else {
        rk_str_append(&text, "0.");
        for (int i = count; i < scale; i++)
            rk_str_append(&text, "0");
        rk_str_append(&text, digits);
    }
    json = rk_json_new_string(rk_str_text(&text));
    rk_str_fini(&text);
    return json;
}

static struct rk_status *read_decimal(struct rk_json **out, const struct rk_parquet_node *leaf,
                                      const struct rk_parquet_cell *cell)
{
    char digits[DECIMAL_DIGITS_MAX + 1];
    uint8_t bytes[sizeof(int64_t)];
    bool is_negative;

    if (leaf->scale < -SCALE_MAX || leaf->scale > SCALE_MAX)
        return RK_FAIL(RK_INVALID_ARGUMENT, "a decimal of scale %d, expected %d to %d", leaf->scale,
                       -SCALE_MAX, SCALE_MAX);
    if (leaf->type == RK_PARQUET_BYTE_ARRAY || leaf->type == RK_PARQUET_FIXED) {
        if (cell->bytes == 0 || cell->bytes > DECIMAL_BYTES_MAX)
            return RK_FAIL(RK_INVALID_ARGUMENT, "a decimal of %zu bytes, the limit is %d", cell->bytes,
                           DECIMAL_BYTES_MAX);
        write_digits(digits, cell->at, cell->bytes, &is_negative);
    } else {
        for (size_t i = 0; i < sizeof(bytes); i++)
            bytes[i] = (uint8_t)((uint64_t)cell->integer >> (8 * (sizeof(bytes) - 1 - i)));
        write_digits(digits, bytes, sizeof(bytes), &is_negative);
    }
    *out = decimal_text(digits, is_negative, leaf->scale);
    return NULL;
}

/* --- dates and times --- */

/* The Gregorian date of a day after 1970-01-01; false outside of Python's years. */
static bool append_date(struct rk_str *text, int64_t day)
{
    int64_t era, day_of_era, year, day_of_year, month;

    if (day < -719162 || day > 2932896)
        return false;
    day += 719468; /* since 0000-03-01 */
    era = day / 146097;
    day_of_era = day % 146097;
    year = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
    day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    month = (5 * day_of_year + 2) / 153; /* from March */
    rk_str_appendf(text, "%04" PRId64 "-%02" PRId64 "-%02" PRId64, year + era * 400 + (month >= 10),
                   month < 10 ? month + 3 : month - 9, day_of_year - (153 * month + 2) / 5 + 1);
    return true;
}

/* Microseconds and nanoseconds are written only where they are not 0, as isoformat does. */
static void append_time(struct rk_str *text, int64_t second, int64_t nanos)
{
    rk_str_appendf(text, "%02" PRId64 ":%02" PRId64 ":%02" PRId64, second / 3600, second / 60 % 60,
                   second % 60);
    if (nanos % 1000 != 0)
        rk_str_appendf(text, ".%09" PRId64, nanos);
    else if (nanos != 0)
        rk_str_appendf(text, ".%06" PRId64, nanos / 1000);
}

static int64_t floor_div(int64_t value, int64_t by)
{
    return value / by - (value % by < 0);
}

static struct rk_status *read_time(struct rk_json **out, const struct rk_parquet_node *leaf,
                                   const struct rk_parquet_cell *cell)
{
    int64_t per_second = leaf->per_second > 0 ? leaf->per_second : 1000000000;
    int64_t seconds = floor_div(cell->integer, per_second);
    int64_t nanos = (cell->integer - seconds * per_second) * (1000000000 / per_second);
    int64_t day = floor_div(seconds, DAY_S);
    struct rk_str text = {0};
    bool is_ok = true;

    if (leaf->type == RK_PARQUET_INT96) {
        day = (int32_t)(uint32_t)rk_parquet_little(cell->at + 8, 4) - (int64_t)JULIAN_EPOCH;
        seconds = day * DAY_S + (int64_t)(rk_parquet_little(cell->at, 8) / 1000000000 % DAY_S);
        nanos = (int64_t)(rk_parquet_little(cell->at, 8) % 1000000000);
    }
    if (leaf->kind == RK_PARQUET_DATE)
        is_ok = append_date(&text, cell->integer);
    if (leaf->kind == RK_PARQUET_TIMESTAMP || leaf->type == RK_PARQUET_INT96) {
        is_ok = append_date(&text, day);
        rk_str_append(&text, "T");
    }
    if (leaf->kind != RK_PARQUET_DATE)
        append_time(&text, seconds - day * DAY_S, nanos);
    if (leaf->kind == RK_PARQUET_TIMESTAMP && leaf->is_utc)
        rk_str_append(&text, "+00:00");
    if (is_ok)
        *out = rk_json_new_string(rk_str_text(&text));
    rk_str_fini(&text);
    return is_ok ? NULL
                 : RK_FAIL(RK_INVALID_ARGUMENT, "a date outside of the years %d to %d", YEAR_MIN, YEAR_MAX);
}

/* --- numbers and text --- */

static double half_to_real(uint16_t half)
{
    int exponent = (half >> 10) & 31, fraction = half & 1023;
    double value = exponent == 0    ? ldexp(fraction, -24)
                   : exponent == 31 ? (fraction ? (double)NAN : (double)INFINITY)
                                    : ldexp(1024 + fraction, exponent - 25);

    return half & 0x8000 ? -value : value;
}

static struct rk_status *read_real(struct rk_json **out, double value, bool *is_mended)
{
    *out = NULL;
    if (isinf(value))
        return RK_FAIL(RK_INVALID_ARGUMENT, "JSON has no infinity; write null, or a string");
    *is_mended = isnan(value);
    if (!isnan(value))
        *out = rk_json_new_real(value);
    return NULL;
}

static struct rk_status *read_integer(struct rk_json **out, const struct rk_parquet_node *leaf, int64_t value,
                                      bool *is_mended)
{
    bool is_unsigned = leaf->kind == RK_PARQUET_UNSIGNED;

    if (is_unsigned && leaf->type == RK_PARQUET_INT32)
        value = (int64_t)(uint32_t)value;
    *is_mended = is_unsigned && value < 0;
    *out = *is_mended ? rk_json_new_real((double)(uint64_t)value) : rk_json_new_int(value);
    return NULL;
}

static struct rk_status *read_bytes(struct rk_json **out, const struct rk_parquet_node *leaf,
                                    const struct rk_parquet_cell *cell)
{
    if (leaf->kind != RK_PARQUET_TEXT)
        return RK_FAIL(RK_INVALID_ARGUMENT, "bytes have no JSON form; write text, or drop the column");
    *out = rk_json_new_string_bytes((const char *)cell->at, cell->bytes);
    if (!rk_json_is_null(*out))
        return NULL;
    rk_json_free(*out);
    *out = NULL;
    return RK_FAIL(RK_INVALID_ARGUMENT, "the text is not valid UTF-8");
}

struct rk_status *rk_parquet_to_json(struct rk_json **out, const struct rk_parquet_node *leaf,
                                     const struct rk_parquet_cell *cell, bool *is_mended)
{
    bool is_integer = leaf->type == RK_PARQUET_INT32 || leaf->type == RK_PARQUET_INT64;

    *out = NULL;
    *is_mended = false;
    if (leaf->type == RK_PARQUET_BOOLEAN) {
        *out = rk_json_new_bool(cell->integer != 0);
        return NULL;
    }
    if (leaf->type == RK_PARQUET_FLOAT || leaf->type == RK_PARQUET_DOUBLE)
        return read_real(out, cell->real, is_mended);
    if (leaf->kind == RK_PARQUET_HALF && leaf->type == RK_PARQUET_FIXED && leaf->type_bytes == 2)
        return read_real(out, half_to_real((uint16_t)rk_parquet_little(cell->at, 2)), is_mended);
    if (leaf->kind == RK_PARQUET_DECIMAL)
        return read_decimal(out, leaf, cell);
    if (leaf->type == RK_PARQUET_INT96 ||
        (is_integer && (leaf->kind == RK_PARQUET_DATE || leaf->kind == RK_PARQUET_TIME ||
                        leaf->kind == RK_PARQUET_TIMESTAMP)))
        return read_time(out, leaf, cell);
    return is_integer ? read_integer(out, leaf, cell->integer, is_mended) : read_bytes(out, leaf, cell);
}
