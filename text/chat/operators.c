/* Arithmetic, as in Python; text % values (printf) is not supported. */
#include "text/chat/render_internal.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"

static struct rk_status *bad_operands(int32_t op, rk_value_t a, rk_value_t b)
{
    char text[3] = {(char)(op & 0xff), (char)(op >> 8), '\0'};

    if (a.kind == RK_VALUE_UNDEFINED || b.kind == RK_VALUE_UNDEFINED)
        return rk_undefined_error(a.kind == RK_VALUE_UNDEFINED ? a : b);
    return RK_TEMPLATE_ERROR("cannot compute %s %s %s", rk_value_type_name(a), text, rk_value_type_name(b));
}

static struct rk_status *int_overflow(void)
{
    return RK_FAIL(RK_UNIMPLEMENTED, "integers beyond 64 bits are not supported");
}

/* --- numbers --- */

static int64_t floor_div(int64_t a, int64_t b)
{
    int64_t quotient = a / b;

    return quotient - (a % b != 0 && (a % b < 0) != (b < 0));
}

static double floor_mod(double a, double b)
{
    double rest = fmod(a, b);

    if (rest != 0.0 && (rest < 0) != (b < 0))
        return rest + b;
    return rest != 0.0 ? rest : copysign(0.0, b);
}

static struct rk_status *int_power(int64_t base, int64_t exponent, rk_value_t *out)
{
    int64_t result = 1;

    if (exponent < 0) {
        if (base == 0)
            return RK_TEMPLATE_ERROR("0 has no negative power");
        *out = rk_value_real(pow((double)base, (double)exponent));
        return NULL;
    }
    if (base == 0 || base == 1 || base == -1) {
        *out = rk_value_int(exponent == 0 ? 1 : base == -1 ? (exponent % 2 ? -1 : 1) : base);
        return NULL;
    }
    for (int64_t i = 0; i < exponent; i++) { /* ends after 63 rounds at most */
        if (!rk_mul_i64(result, base, &result))
            return int_overflow();
    }
    *out = rk_value_int(result);
    return NULL;
}

static struct rk_status *int_division(int32_t op, int64_t a, int64_t b, rk_value_t *out)
{
    if (b == 0)
        return RK_TEMPLATE_ERROR("division by zero");
    if (op == '/') {
        *out = rk_value_real((double)a / (double)b);
        return NULL;
    }
    if (a == INT64_MIN && b == -1)
        return int_overflow();
    *out = rk_value_int(op == '%' ? a - floor_div(a, b) * b : floor_div(a, b));
    return NULL;
}

static struct rk_status *int_binary(int32_t op, int64_t a, int64_t b, rk_value_t *out)
{
    int64_t result = 0;
    bool is_right = true;

    switch (op) {
    case '+':
        is_right = rk_add_i64(a, b, &result);
        break;
    case '-':
        is_right = !__builtin_sub_overflow(a, b, &result);
        break;
    case '*':
        is_right = rk_mul_i64(a, b, &result);
        break;
    case RK_OP2('*', '*'):
        return int_power(a, b, out);
    default:
        return int_division(op, a, b, out);
    }
    *out = rk_value_int(result);
    return is_right ? NULL : int_overflow();
}

static struct rk_status *real_power(double a, double b, rk_value_t *out)
{
    double result = pow(a, b);

    if (a == 0.0 && b < 0.0)
        return RK_TEMPLATE_ERROR("0 has no negative power");
    if (isnan(result) && !isnan(a) && !isnan(b))
        return RK_FAIL(RK_UNIMPLEMENTED, "complex numbers are not supported");
    if (isinf(result) && isfinite(a) && isfinite(b))
        return RK_TEMPLATE_ERROR("the result of ** is too large");
    *out = rk_value_real(result);
    return NULL;
}

static struct rk_status *real_binary(int32_t op, double a, double b, rk_value_t *out)
{
    bool is_division = op == '/' || op == RK_OP2('/', '/') || op == '%';

    if (is_division && b == 0.0)
        return RK_TEMPLATE_ERROR("division by zero");
    switch (op) {
    case '+':
        *out = rk_value_real(a + b);
        return NULL;
    case '-':
        *out = rk_value_real(a - b);
        return NULL;
    case '*':
        *out = rk_value_real(a * b);
        return NULL;
    case '/':
        *out = rk_value_real(a / b);
        return NULL;
    case '%':
        *out = rk_value_real(floor_mod(a, b));
        return NULL;
    case RK_OP2('/', '/'):
        *out = rk_value_real(floor((a - floor_mod(a, b)) / b + 0.5));
        return NULL;
    default:
        return real_power(a, b, out);
    }
}

/* --- texts and lists --- */

static struct rk_status *append_escaped(struct rk_render *r, rk_value_t value, struct rk_str *out)
{
    struct rk_str text = {0};
    struct rk_status *st = rk_value_format(r, value, &text);

    if (!st)
        rk_text_escape(rk_str_text(&text), (int64_t)text.bytes, out);
    rk_str_fini(&text);
    return st;
}

/* Markup escapes the text added to it. */
static struct rk_status *add_markup(struct rk_render *r, rk_value_t a, rk_value_t b, rk_value_t *out)
{
    struct rk_str text = {0};
    struct rk_status *st;

    st = a.string->is_markup ? rk_value_format(r, a, &text) : append_escaped(r, a, &text);
    if (!st)
        st = b.string->is_markup ? rk_value_format(r, b, &text) : append_escaped(r, b, &text);
    if (!st)
        st = rk_value_new_string(r, out, rk_str_text(&text), text.bytes);
    if (!st)
        out->string->is_markup = true;
    rk_str_fini(&text);
    return st;
}

static struct rk_status *add_texts(struct rk_render *r, rk_value_t a, rk_value_t b, rk_value_t *out)
{
    size_t bytes = (size_t)(a.string->bytes + b.string->bytes);
    void *memory;
    char *text;

    if (a.string->is_markup || b.string->is_markup)
        return add_markup(r, a, b, out);
    RK_TRY(rk_render_step(r, (int64_t)(bytes / 64)));
    RK_TRY(rk_render_alloc(r, &memory, bytes + sizeof(struct rk_text) + 1));
    *out = (rk_value_t){.kind = RK_VALUE_STRING, .string = memory};
    text = (char *)memory + sizeof(struct rk_text);
    memcpy(text, a.string->data, (size_t)a.string->bytes);
    memcpy(text + a.string->bytes, b.string->data, (size_t)b.string->bytes);
    *out->string = (struct rk_text){.data = text, .bytes = (int64_t)bytes, .chars = -1};
    return NULL;
}

static struct rk_status *add_lists(struct rk_render *r, rk_value_t a, rk_value_t b, rk_value_t *out)
{
    RK_TRY(rk_value_new_list(r, out, a.kind, a.list->count + b.list->count));
    for (int64_t i = 0; i < a.list->count; i++)
        RK_TRY(rk_list_append(r, out->list, a.list->items[i]));
    for (int64_t i = 0; i < b.list->count; i++)
        RK_TRY(rk_list_append(r, out->list, b.list->items[i]));
    return NULL;
}

static bool is_list(rk_value_t value)
{
    return value.kind == RK_VALUE_LIST || value.kind == RK_VALUE_TUPLE;
}

static struct rk_status *repeat_text(struct rk_render *r, const struct rk_text *text, int64_t times,
                                     rk_value_t *out)
{
    struct rk_str repeated = {0};
    struct rk_status *st = NULL;

    if (times > 0 && text->bytes > RK_JINJA_OUTPUT_BYTES_MAX / times)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "a text of more than %d bytes", RK_JINJA_OUTPUT_BYTES_MAX);
    for (int64_t i = 0; i < times && text->bytes > 0; i++)
        rk_str_append_bytes(&repeated, text->data, (size_t)text->bytes);
    st = rk_value_take_string(r, out, &repeated);
    if (!st)
        out->string->is_markup = text->is_markup;
    return st;
}

static struct rk_status *repeat(struct rk_render *r, rk_value_t value, int64_t times, rk_value_t *out)
{
    if (value.kind == RK_VALUE_STRING)
        return repeat_text(r, value.string, times, out);
    RK_TRY(rk_value_new_list(r, out, value.kind, 1));
    for (int64_t i = 0; i < times && value.list->count > 0; i++) {
        for (int64_t k = 0; k < value.list->count; k++)
            RK_TRY(rk_list_append(r, out->list, value.list->items[k]));
    }
    return NULL;
}

struct rk_status *rk_binary(struct rk_render *r, int32_t op, rk_value_t a, rk_value_t b, rk_value_t *out)
{
    int64_t x, y;

    if (rk_value_as_int(a, &x) && rk_value_as_int(b, &y))
        return int_binary(op, x, y, out);
    if (rk_value_is_number(a) && rk_value_is_number(b))
        return real_binary(op, rk_value_as_real(a), rk_value_as_real(b), out);
    if (op == '+' && a.kind == RK_VALUE_STRING && b.kind == RK_VALUE_STRING)
        return add_texts(r, a, b, out);
    if (op == '+' && is_list(a) && a.kind == b.kind)
        return add_lists(r, a, b, out);
    if (op == '*' && (a.kind == RK_VALUE_STRING || is_list(a)) && rk_value_as_int(b, &y))
        return repeat(r, a, y, out);
    if (op == '*' && (b.kind == RK_VALUE_STRING || is_list(b)) && rk_value_as_int(a, &x))
        return repeat(r, b, x, out);
    if (op == '%' && a.kind == RK_VALUE_STRING)
        return RK_FAIL(RK_UNIMPLEMENTED, "the operator %% on a string (printf) is not supported");
    return bad_operands(op, a, b);
}

struct rk_status *rk_negate(struct rk_render *r, rk_value_t a, rk_value_t *out)
{
    (void)r;
    if (a.kind == RK_VALUE_REAL) {
        *out = rk_value_real(-a.real);
        return NULL;
    }
    if (!rk_value_is_number(a))
        return a.kind == RK_VALUE_UNDEFINED
                   ? rk_undefined_error(a)
                   : RK_TEMPLATE_ERROR("unary - of a value of type %s", rk_value_type_name(a));
    return int_binary('-', 0, a.kind == RK_VALUE_BOOL ? a.boolean : a.integer, out);
}
