/* Filters that return numbers. */
#include "text/chat/filters_internal.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"

/* Digits of the text without blanks around and single underscores between; NULL for other texts (rk_free). */
static char *clean_number(const struct rk_text *text)
{
    const char *from;
    int64_t offset, bytes;
    char *copy;
    size_t out = 0;

    rk_text_strip(text, NULL, RK_STRIP_BOTH, &offset, &bytes);
    from = text->data + offset;
    copy = rk_malloc((size_t)bytes + 1);
    for (int64_t i = 0; i < bytes; i++) {
        bool is_between = i > 0 && i + 1 < bytes && from[i - 1] != '_' && from[i + 1] != '_';

        if (from[i] != '_' || !is_between)
            copy[out++] = from[i];
    }
    copy[out] = '\0';
    if (out > 0 && strlen(copy) == out &&
        strchr("+-.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", copy[0]))
        return copy;
    rk_free(copy);
    return NULL;
}

/* int(text, base); false if it is not an integer of 64 bits. */
static bool parse_int(const struct rk_text *text, int base, int64_t *out)
{
    char *digits = clean_number(text), *end = NULL;
    const char *first = digits;
    bool is_right = false;

    if (digits) {
        first += *first == '+' || *first == '-';
        if (base == 2 && first[0] == '0' && (first[1] | 32) == 'b')
            memmove(digits + (first - digits), first + 2, strlen(first + 2) + 1);
        else if (base == 8 && first[0] == '0' && (first[1] | 32) == 'o')
            memmove(digits + (first - digits), first + 2, strlen(first + 2) + 1);
        errno = 0;
        *out = strtoll(digits, &end, base);
        is_right = *end == '\0' && end > first && errno == 0 && *first != '+' && *first != '-';
    }
    rk_free(digits);
    return is_right;
}

/* float(text). */
static bool parse_real(const struct rk_text *text, double *out)
{
    char *digits = clean_number(text), *end = NULL;
    bool is_right = false;

    if (digits) {
        const char *first = digits + (*digits == '+' || *digits == '-');

        double value = strtod(digits, &end);

        is_right = *end == '\0' && end > first && !strpbrk(digits, "xXpP(") && *first != '+' && *first != '-';
        if (is_right)
            *out = value;
    }
    rk_free(digits);
    return is_right;
}

static bool truncate_real(double value, int64_t *out)
{
    if (!(fabs(value) < 9e18))
        return false;
    *out = (int64_t)value;
    return true;
}

RK_FILTER(run_int)
{
    int64_t base, result;
    double real = NAN;

    (void)r;
    RK_TRY(rk_arg_int(call->args[1], "int", 10, &base));
    if (call->self.kind == RK_VALUE_UNDEFINED)
        return rk_undefined_error(call->self);
    if (base != 2 && base != 8 && base != 10 && base != 16)
        return RK_FAIL(RK_UNIMPLEMENTED, "int: base %lld is not supported", (long long)base);
    if (rk_value_as_int(call->self, &result) ||
        (call->self.kind == RK_VALUE_STRING && parse_int(call->self.string, (int)base, &result))) {
        *out = rk_value_int(result);
        return NULL;
    }
    if (call->self.kind == RK_VALUE_REAL)
        real = call->self.real;
    if (isinf(real))
        return RK_TEMPLATE_ERROR("int: infinity is no integer");
    if (call->self.kind == RK_VALUE_STRING)
        (void)parse_real(call->self.string, &real);
    if (fabs(real) >= 9e18 && !isinf(real))
        return RK_FAIL(RK_UNIMPLEMENTED, "int: integers beyond 64 bits are not supported");
    if (truncate_real(real, &result))
        *out = rk_value_int(result);
    else
        *out = call->args[0].kind == RK_VALUE_UNSET ? rk_value_int(0) : call->args[0];
    return NULL;
}

RK_FILTER(run_float)
{
    double real;

    (void)r;
    if (call->self.kind == RK_VALUE_UNDEFINED)
        return rk_undefined_error(call->self);
    if (rk_value_is_number(call->self))
        *out = rk_value_real(rk_value_as_real(call->self));
    else if (call->self.kind == RK_VALUE_STRING && parse_real(call->self.string, &real))
        *out = rk_value_real(real);
    else
        *out = call->args[0].kind == RK_VALUE_UNSET ? rk_value_real(0.0) : call->args[0];
    return NULL;
}

RK_FILTER(run_abs)
{
    int64_t integer;

    if (rk_value_as_int(call->self, &integer))
        return integer < 0 ? rk_negate(r, call->self, out)
                           : rk_binary(r, '+', call->self, rk_value_int(0), out);
    if (call->self.kind != RK_VALUE_REAL)
        return call->self.kind == RK_VALUE_UNDEFINED
                   ? rk_undefined_error(call->self)
                   : RK_TEMPLATE_ERROR("abs: expected a number, got %s", rk_value_type_name(call->self));
    *out = rk_value_real(fabs(call->self.real));
    return NULL;
}

/* Python's round() of a float: the nearest decimal number with the given number of digits. */
static rk_value_t round_common(rk_value_t value, int precision)
{
    char text[400];

    if (value.kind != RK_VALUE_REAL || !isfinite(value.real))
        return value.kind == RK_VALUE_BOOL ? rk_value_int(value.boolean) : value;
    snprintf(text, sizeof(text), "%.*f", precision, value.real);
    return rk_value_real(strtod(text, NULL));
}

RK_FILTER(run_round)
{
    struct rk_text *method;
    int64_t precision;
    double scaled;

    (void)r;
    RK_TRY(rk_arg_int(call->args[0], "round", 0, &precision));
    RK_TRY(rk_arg_text(call->args[1], "round", &method));
    if (!rk_value_is_number(call->self))
        return call->self.kind == RK_VALUE_UNDEFINED
                   ? rk_undefined_error(call->self)
                   : RK_TEMPLATE_ERROR("round: expected a number, got %s", rk_value_type_name(call->self));
    if (precision < 0 || precision > 20)
        return RK_FAIL(RK_UNIMPLEMENTED, "round: precision %lld is not supported (0 to 20 is)",
                       (long long)precision);
    if (!method || (method->bytes == 6 && memcmp(method->data, "common", 6) == 0)) {
        *out = round_common(call->self, (int)precision);
        return NULL;
    }
    scaled = rk_value_as_real(call->self) * pow(10.0, (double)precision);
    if (method->bytes == 4 && memcmp(method->data, "ceil", 4) == 0)
        *out = rk_value_real(ceil(scaled) / pow(10.0, (double)precision));
    else if (method->bytes == 5 && memcmp(method->data, "floor", 5) == 0)
        *out = rk_value_real(floor(scaled) / pow(10.0, (double)precision));
    else
        return RK_TEMPLATE_ERROR("round: method: expected common, ceil or floor");
    return NULL;
}

const struct rk_callable rk_filters_number[] = {
    {"abs", run_abs, "", 0},
    {"float", run_float, "default", 0},
    {"int", run_int, "default base", 0},
    {"round", run_round, "precision method", 0},
    {NULL, NULL, NULL, 0},
};
