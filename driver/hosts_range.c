/* Ranges of host names: "node[01-04,7]". */
#include "driver/hosts_internal.h"
#include "driver/rk_driver.h"

#include <ctype.h>
#include <inttypes.h>
#include <string.h>

#include "base/rk_array.h"
#include "base/rk_str.h"

#define MAX_BRACKETS 8
#define MAX_DIGITS   18

struct range {
    int64_t first, last;
    int width; /* of the first number as written */
};

struct bracket {
    const char *before; /* text between the bracket before and this one */
    size_t before_bytes;
    RK_ARRAY(struct range) ranges;
    int64_t count; /* of numbers */
};

struct pattern {
    const char *text;
    struct bracket brackets[MAX_BRACKETS];
    int num_brackets;
    const char *tail; /* text after the last bracket */
};

size_t rk_hosts_term_bytes(const char *text)
{
    size_t bytes = 0;

    for (bool is_inside = false; text[bytes] && (is_inside || text[bytes] != ','); bytes++)
        is_inside = text[bytes] == '[' || (is_inside && text[bytes] != ']');
    return bytes;
}

static struct rk_status *bad_character(const struct pattern *pattern, const char *at, const char *what)
{
    return RK_FAIL(RK_INVALID_ARGUMENT, "host list '%s', character %zu: %s", pattern->text,
                   (size_t)(at - pattern->text) + 1, what);
}

static struct rk_status *read_number(const struct pattern *pattern, const char **at, int64_t *out)
{
    const char *begin = *at;

    *out = 0;
    while (isdigit((unsigned char)**at) && *at - begin < MAX_DIGITS)
        *out = *out * 10 + (*(*at)++ - '0');
    if (*at == begin)
        return bad_character(pattern, begin, **at == '[' ? "'[' inside brackets" : "expected a number");
    if (isdigit((unsigned char)**at))
        return bad_character(pattern, begin, "the number has more than 18 digits");
    return NULL;
}

static struct rk_status *read_range(const struct pattern *pattern, struct bracket *bracket, const char **at,
                                    int64_t max)
{
    const char *begin = *at;
    struct range range;

    RK_TRY(read_number(pattern, at, &range.first));
    range.width = (int)(*at - begin);
    range.last = range.first;
    if (**at == '-') {
        (*at)++;
        RK_TRY(read_number(pattern, at, &range.last));
    }
    if (range.last < range.first)
        return bad_character(pattern, begin, "the range ends below its first number");
    if (range.last - range.first >= max - bracket->count)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED,
                       "host list '%s', character %zu: the range has more than %" PRId64 " hosts",
                       pattern->text, (size_t)(begin - pattern->text) + 1, max);
    bracket->count += range.last - range.first + 1;
    rk_array_append(&bracket->ranges, range);
    return NULL;
}

/* Parses from after "[" to after "]". */
static struct rk_status *read_bracket(const struct pattern *pattern, struct bracket *bracket, const char **at,
                                      int64_t max)
{
    const char *open = *at - 1;

    for (;;) {
        RK_TRY(read_range(pattern, bracket, at, max));
        if (**at == '\0')
            return bad_character(pattern, open, "'[' has no ']'");
        if (**at != ',' && **at != ']')
            return bad_character(pattern, *at, "expected '-', ',' or ']'");
        if (*(*at)++ == ']')
            return NULL;
    }
}

static struct rk_status *read_pattern(struct pattern *pattern, int64_t max)
{
    const char *at = pattern->text, *literal = at;

    while (*at) {
        const char *here = at++;

        if (*here == ']')
            return bad_character(pattern, here, "']' has no '['");
        if (*here != '[')
            continue;
        if (pattern->num_brackets == MAX_BRACKETS)
            return bad_character(pattern, here, "more than 8 brackets");
        pattern->brackets[pattern->num_brackets] =
            (struct bracket){.before = literal, .before_bytes = (size_t)(here - literal)};
        RK_TRY(read_bracket(pattern, &pattern->brackets[pattern->num_brackets++], &at, max));
        literal = at;
    }
    pattern->tail = literal;
    return NULL;
}

static void append_number(struct rk_str *out, const struct bracket *bracket, int64_t index)
{
    for (const struct range *range = bracket->ranges.items;; range++) {
        int64_t count = range->last - range->first + 1;

        if (index < count) {
            rk_str_appendf(out, "%0*" PRId64, range->width, range->first + index);
            return;
        }
        index -= count;
    }
}

/* Name number `index`: the last bracket counts fastest, then the first, the second and so on. */
static void format_name(const struct pattern *pattern, int64_t index, struct rk_str *out)
{
    int64_t indices[MAX_BRACKETS] = {0};
    int last = pattern->num_brackets - 1;

    for (int i = -1; i < last; i++) {
        int which = i < 0 ? last : i;

        indices[which] = index % pattern->brackets[which].count;
        index /= pattern->brackets[which].count;
    }
    rk_str_clear(out);
    for (int i = 0; i <= last; i++) {
        rk_str_append_bytes(out, pattern->brackets[i].before, pattern->brackets[i].before_bytes);
        append_number(out, &pattern->brackets[i], indices[i]);
    }
    rk_str_append(out, pattern->tail);
}

static struct rk_status *expand(const struct pattern *pattern, int64_t max, rk_host_fn each, void *user)
{
    struct rk_status *st = NULL;
    struct rk_str name = {0};
    int64_t total = 1;

    for (int i = 0; i < pattern->num_brackets; i++) {
        if (pattern->brackets[i].count > max / total)
            return RK_FAIL(RK_RESOURCE_EXHAUSTED, "host list '%s' names more than %" PRId64 " hosts",
                           pattern->text, max);
        total *= pattern->brackets[i].count;
    }
    for (int64_t i = 0; !st && i < total; i++) {
        format_name(pattern, i, &name);
        st = each(user, rk_str_text(&name));
    }
    rk_str_fini(&name);
    return st;
}

struct rk_status *rk_host_ranges_expand(const char *term, int64_t max, rk_host_fn each, void *user)
{
    struct pattern pattern = {.text = term};
    struct rk_status *st = read_pattern(&pattern, max);

    if (!st)
        st = expand(&pattern, max, each, user);
    for (int i = 0; i < pattern.num_brackets; i++)
        rk_array_fini(&pattern.brackets[i].ranges);
    return st;
}
