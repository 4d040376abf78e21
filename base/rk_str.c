#include "base/rk_str.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

#define SUGGEST_DISTANCE  2
#define MAX_COMPARE_BYTES 128 /* longer names get no suggestion; keeps the row on the stack */

void rk_str_fini(struct rk_str *str)
{
    rk_free(str->text);
    *str = (struct rk_str){0};
}

void rk_str_clear(struct rk_str *str)
{
    str->bytes = 0;
    if (str->text)
        str->text[0] = '\0';
}

/* Makes room for `bytes` more and the terminator. */
static void reserve(struct rk_str *str, size_t bytes)
{
    size_t needed, doubled;

    RK_ASSERT(rk_add_size(str->bytes, bytes, &needed));
    RK_ASSERT(rk_add_size(needed, 1, &needed));
    if (needed <= str->capacity)
        return;
    if (!rk_mul_size(str->capacity, 2, &doubled))
        doubled = needed;
    str->capacity = RK_MAX(RK_MAX(needed, doubled), 64);
    str->text = rk_realloc(str->text, str->capacity);
}

void rk_str_append(struct rk_str *str, const char *text)
{
    rk_str_append_bytes(str, text, strlen(text));
}

void rk_str_append_bytes(struct rk_str *str, const char *data, size_t bytes)
{
    reserve(str, bytes);
    if (bytes > 0)
        memcpy(str->text + str->bytes, data, bytes);
    str->bytes += bytes;
    str->text[str->bytes] = '\0';
}

void rk_str_appendf(struct rk_str *str, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    rk_str_vappendf(str, fmt, args);
    va_end(args);
}

void rk_str_vappendf(struct rk_str *str, const char *fmt, va_list args)
{
    va_list again;
    int bytes;

    va_copy(again, args);
    bytes = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    RK_ASSERT(bytes >= 0);
    reserve(str, (size_t)bytes);
    vsnprintf(str->text + str->bytes, (size_t)bytes + 1, fmt, args);
    str->bytes += (size_t)bytes;
}

const char *rk_str_text(const struct rk_str *str)
{
    return str->text ? str->text : "";
}

char *rk_str_take(struct rk_str *str)
{
    char *text = str->text ? str->text : rk_strdup("");

    *str = (struct rk_str){0};
    return text;
}

char *rk_format(const char *fmt, ...)
{
    struct rk_str str = {0};
    va_list args;

    va_start(args, fmt);
    rk_str_vappendf(&str, fmt, args);
    va_end(args);
    return rk_str_take(&str);
}

char *rk_path_join(const char *dir, const char *name)
{
    size_t dir_bytes = strlen(dir);

    while (dir_bytes > 0 && dir[dir_bytes - 1] == '/')
        dir_bytes--;
    while (*name == '/')
        name++;
    return rk_format("%.*s%s%s", (int)dir_bytes, dir, *dir ? "/" : "", name);
}

char *rk_path_dir(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? rk_strndup(path, (size_t)RK_MAX(slash - path, 1)) : rk_strdup(".");
}

bool rk_str_has_prefix(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

bool rk_str_has_suffix(const char *text, const char *suffix)
{
    size_t text_bytes = strlen(text), suffix_bytes = strlen(suffix);

    return text_bytes >= suffix_bytes && strcmp(text + text_bytes - suffix_bytes, suffix) == 0;
}

size_t rk_utf8_part(const char *data, size_t bytes, bool *is_valid)
{
    const unsigned char *p = (const unsigned char *)data;
    unsigned char low = 0x80, high = 0xbf;
    size_t wanted, have = 1;

    *is_valid = p[0] < 0x80;
    if (p[0] < 0xc2 || p[0] > 0xf4)
        return 1;
    wanted = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    if (p[0] == 0xe0)
        low = 0xa0; /* below: overlong */
    if (p[0] == 0xed)
        high = 0x9f; /* above: surrogates */
    if (p[0] == 0xf0)
        low = 0x90; /* below: overlong */
    if (p[0] == 0xf4)
        high = 0x8f; /* above: beyond U+10FFFF */
    while (have < wanted && have < bytes && p[have] >= low && p[have] <= high) {
        low = 0x80;
        high = 0xbf;
        have++;
    }
    *is_valid = have == wanted;
    return have;
}

bool rk_utf8_is_valid(const char *data, size_t bytes)
{
    bool is_valid = true;
    size_t step;

    for (size_t at = 0; at < bytes && is_valid; at += step) {
        step = 1;
        if (data[at] == '\0')
            return false;
        if ((unsigned char)data[at] >= 0x80)
            step = rk_utf8_part(data + at, bytes - at, &is_valid);
    }
    return is_valid;
}

void rk_str_append_utf8(struct rk_str *str, const char *data, size_t bytes)
{
    size_t done = 0, step;
    bool is_valid;

    for (size_t at = 0; at < bytes; at += step) {
        step = rk_utf8_part(data + at, bytes - at, &is_valid);
        if (is_valid)
            continue;
        rk_str_append_bytes(str, data + done, at - done);
        rk_str_append(str, "\xef\xbf\xbd");
        done = at + step;
    }
    rk_str_append_bytes(str, data + done, bytes - done);
}

void rk_utf8_append(struct rk_str *str, int32_t code)
{
    static const uint8_t leads[] = {0, 0, 0xc0, 0xe0, 0xf0};
    int bytes = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    char encoded[4];

    RK_ASSERT(code >= 0);
    RK_ASSERT(code <= 0x10ffff);
    for (int i = bytes - 1; i > 0; i--, code >>= 6)
        encoded[i] = (char)(0x80 | (code & 0x3f));
    encoded[0] = (char)(leads[bytes] | code);
    rk_str_append_bytes(str, encoded, (size_t)bytes);
}

int rk_utf8_control_bytes(const char *text)
{
    unsigned char first = (unsigned char)text[0], second = first ? (unsigned char)text[1] : 0;

    if (first == 0xc2 && second >= 0x80 && second < 0xa0)
        return 2;
    return (first > 0 && first < ' ') || first == 0x7f ? 1 : 0;
}

int rk_str_distance(const char *a, const char *b, int cap)
{
    size_t a_bytes = strlen(a), b_bytes = strlen(b);
    int row[MAX_COMPARE_BYTES + 1];

    if (a_bytes > MAX_COMPARE_BYTES || b_bytes > MAX_COMPARE_BYTES)
        return strcmp(a, b) == 0 ? 0 : cap;
    for (size_t j = 0; j <= b_bytes; j++)
        row[j] = (int)j;
    for (size_t i = 1; i <= a_bytes; i++) {
        int diagonal = row[0];

        row[0] = (int)i;
        for (size_t j = 1; j <= b_bytes; j++) {
            int substituted = diagonal + (a[i - 1] != b[j - 1]);
            int shifted = RK_MIN(row[j], row[j - 1]) + 1;

            diagonal = row[j];
            row[j] = RK_MIN(substituted, shifted);
        }
    }
    return RK_MIN(row[b_bytes], cap);
}

const char *rk_str_suggest(const char *text, const char *const *candidates, int64_t num_candidates)
{
    /* A suggestion must share a letter with the text: "a" must not propose "lr". */
    int best = RK_MIN(SUGGEST_DISTANCE + 1, (int)RK_MIN(strlen(text), (size_t)MAX_COMPARE_BYTES));
    const char *found = NULL;

    for (int64_t i = 0; i < num_candidates; i++) {
        int distance = rk_str_distance(text, candidates[i], SUGGEST_DISTANCE + 1);

        if (distance < best) {
            best = distance;
            found = candidates[i];
        }
    }
    return found;
}

/* Unsigned decimal digits at *text; moves it past them. False when there are none or they overflow. */
static bool scan_digits(const char **text, uint64_t *out)
{
    const char *p = *text;
    uint64_t value = 0;

    for (; isdigit((unsigned char)*p); p++) {
        if (__builtin_mul_overflow(value, 10u, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*p - '0'), &value))
            return false;
    }
    if (p == *text)
        return false;
    *text = p;
    *out = value;
    return true;
}

bool rk_parse_i64(const char *text, int64_t *out)
{
    bool is_negative = *text == '-';
    uint64_t magnitude;

    text += is_negative;
    if (!scan_digits(&text, &magnitude) || *text)
        return false;
    if (magnitude > (uint64_t)INT64_MAX + is_negative)
        return false;
    *out = is_negative ? (int64_t)(0 - magnitude) : (int64_t)magnitude;
    return true;
}

bool rk_parse_f64(const char *text, double *out)
{
    double value;
    char *end;

    /* strtod also takes spaces, hexadecimal, "inf" and "nan"; a number in a configuration is none of these.
     */
    if (!*text || text[strspn(text, "+-.0123456789eE")])
        return false;
    errno = 0;
    value = strtod(text, &end);
    if (*end || !isfinite(value))
        return false;
    *out = value;
    return true;
}

struct unit {
    const char *name;
    int64_t factor;
};

static bool parse_with_unit(const char *text, const struct unit *units, size_t num_units, int64_t *out)
{
    uint64_t value;

    if (!scan_digits(&text, &value) || value > INT64_MAX)
        return false;
    if (!*text && value == 0) {
        *out = 0;
        return true;
    }
    for (size_t i = 0; i < num_units; i++) {
        if (strcmp(text, units[i].name) == 0)
            return rk_mul_i64((int64_t)value, units[i].factor, out);
    }
    return false;
}

bool rk_parse_bytes(const char *text, int64_t *out)
{
    static const struct unit units[] = {
        {"B", 1},     {"KiB", 1ll << 10}, {"MiB", 1ll << 20},   {"GiB", 1ll << 30},      {"TiB", 1ll << 40},
        {"KB", 1000}, {"MB", 1000000},    {"GB", 1000000000ll}, {"TB", 1000000000000ll},
    };

    return parse_with_unit(text, units, RK_ARRAY_LEN(units), out);
}

bool rk_parse_duration_ms(const char *text, int64_t *out)
{
    static const struct unit units[] = {{"ms", 1}, {"s", 1000}, {"min", 60000}, {"h", 3600000}};

    return parse_with_unit(text, units, RK_ARRAY_LEN(units), out);
}

char *rk_str_printable(const char *text, const char *kept)
{
    struct rk_str out = {0};

    rk_str_append(&out, "");
    for (const char *c = text; *c; c++) {
        int control_bytes = strchr(kept, *c) ? 0 : rk_utf8_control_bytes(c);

        if (control_bytes == 0) {
            rk_str_append_bytes(&out, c, 1);
            continue;
        }
        c += control_bytes - 1; /* the last byte tells which one it is */
        rk_str_appendf(&out, "\\x%02x", (unsigned char)*c);
    }
    return rk_str_take(&out);
}
