/* math: the last \boxed{...} of a response against the ground truth, both normalised, by the rules of verl's
 * score for the MATH data sets (from Hendrycks et al., "Measuring Mathematical Problem Solving With the MATH
 * Dataset", arXiv:2103.03874). 1 when equal, else 0. */
#include "rl/rewards/rewards.h"
#include "rl/rewards/span_internal.h"

#include <string.h>

#define BOXED          "\\boxed{"
#define BOXED_SPACE    "\\boxed "
#define INT_DIGITS_MAX 4300 /* Python's limit on digits of an integer */

static struct rk_status *create(void **state, const struct rk_json *config, const char *dir)
{
    (void)config;
    (void)dir;
    *state = NULL;
    return NULL;
}

/* --- the box --- */

/* Content of the last box; data NULL when there is none. */
static struct rk_span find_answer(struct rk_span text)
{
    const struct rk_span none = {0};
    size_t at = rk_span_find_last(text, BOXED_SPACE), dollar;
    struct rk_span box;

    if (at != RK_SPAN_NONE) {
        text = rk_span_slice(text, at + strlen(BOXED_SPACE), text.bytes);
        dollar = rk_span_find(text, 0, "$");
        return rk_span_slice(text, 0, dollar == RK_SPAN_NONE ? text.bytes : dollar);
    }
    at = rk_span_find_last(text, "\\boxed");
    if (at == RK_SPAN_NONE)
        return none; /* an \fbox is found by verl and then refused */
    box = rk_span_matching_braces(text, at);
    if (box.bytes == 0 || !rk_span_begins_with(box, BOXED))
        return none;
    return rk_span_slice(box, strlen(BOXED), box.bytes - 1);
}

/* --- normal form. A function returns false where verl raises an exception. --- */

static bool remove_right_units(struct rk_str *str)
{
    static const char unit[] = "\\text{ ";
    struct rk_span text = rk_span_of_str(str);
    int64_t count = rk_span_count(text, unit);

    if (count == 1)
        rk_span_assign(str, rk_span_slice(text, 0, rk_span_find(text, 0, unit)));
    return count <= 1;
}

/* "k = 3" becomes " 3". */
static void remove_short_left_side(struct rk_str *str)
{
    struct rk_span text = rk_span_of_str(str);
    size_t at = rk_span_find(text, 0, "=");

    if (rk_span_count(text, "=") == 1 && rk_span_num_chars(rk_span_slice(text, 0, at)) <= 2)
        rk_span_assign(str, rk_span_slice(text, at + 1, text.bytes));
}

/* The text between one occurrence of `word`, which ends at `begin`, and the next. */
static struct rk_span part_after(struct rk_span text, size_t begin, const char *word)
{
    size_t end = rk_span_find(text, begin, word);

    return rk_span_slice(text, begin, end == RK_SPAN_NONE ? text.bytes : end);
}

static void append_braced(struct rk_str *out, struct rk_span text)
{
    rk_str_append(out, "{");
    rk_str_append_bytes(out, text.data, text.bytes);
    rk_str_append(out, "}");
}

/* \sqrt3 becomes \sqrt{3}. */
static bool fix_sqrt(struct rk_str *str)
{
    static const char word[] = "\\sqrt";
    struct rk_span text = rk_span_of_str(str);
    size_t at = rk_span_find(text, 0, word);
    struct rk_str out = {0};
    bool is_ok = true;

    if (at == RK_SPAN_NONE)
        return true;
    rk_str_append_bytes(&out, text.data, at);
    while (at != RK_SPAN_NONE && is_ok) {
        struct rk_span part = part_after(text, at + strlen(word), word);
        size_t first;

        is_ok = part.bytes > 0;
        if (!is_ok)
            break;
        rk_str_append(&out, word);
        first = part.data[0] == '{' ? 0 : rk_span_char_bytes(part, 0);
        if (first > 0)
            append_braced(&out, rk_span_slice(part, 0, first));
        rk_str_append_bytes(&out, part.data + first, part.bytes - first);
        at = rk_span_find(text, at + strlen(word), word);
    }
    rk_span_assign(str, rk_span_of_str(&out));
    rk_str_fini(&out);
    return is_ok;
}

/* Appends what follows \frac; false when it is too short to be arguments. */
static bool append_fraction(struct rk_str *out, struct rk_span part)
{
    size_t first = rk_span_char_bytes(part, 0), second;

    rk_str_append(out, "\\frac");
    if (part.data[0] == '{') {
        rk_str_append_bytes(out, part.data, part.bytes);
        return true;
    }
    if (part.bytes == first)
        return false;
    append_braced(out, rk_span_slice(part, 0, first));
    second = part.data[first] == '{' ? 0 : rk_span_char_bytes(part, first);
    if (second > 0)
        append_braced(out, rk_span_slice(part, first, first + second));
    rk_str_append_bytes(out, part.data + first + second, part.bytes - first - second);
    return true;
}

/* \frac12 becomes \frac{1}{2}, \frac1{72} becomes \frac{1}{72}. The text is unchanged if an argument is
 * missing. */
static bool fix_fractions(struct rk_str *str)
{
    static const char word[] = "\\frac";
    struct rk_span text = rk_span_of_str(str);
    size_t at = rk_span_find(text, 0, word);
    struct rk_str out = {0};
    bool is_ok = true, is_whole = true;

    if (at == RK_SPAN_NONE)
        return true;
    rk_str_append_bytes(&out, text.data, at);
    while (at != RK_SPAN_NONE && is_ok && is_whole) {
        struct rk_span part = part_after(text, at + strlen(word), word);

        is_ok = part.bytes > 0;
        if (is_ok)
            is_whole = append_fraction(&out, part);
        at = rk_span_find(text, at + strlen(word), word);
    }
    if (is_whole)
        rk_span_assign(str, rk_span_of_str(&out));
    rk_str_fini(&out);
    return is_ok;
}

/* As Python would write it: no plus sign, no leading zeros. */
static bool is_plain_integer(struct rk_span text)
{
    size_t digits = text.bytes;

    if (digits > 0 && text.data[0] == '-') {
        text = rk_span_slice(text, 1, text.bytes);
        digits = text.bytes;
        if (digits > 0 && text.data[0] == '0')
            return false;
    }
    if (digits == 0 || digits > INT_DIGITS_MAX || (digits > 1 && text.data[0] == '0'))
        return false;
    for (size_t i = 0; i < digits; i++) {
        if (text.data[i] < '0' || text.data[i] > '9')
            return false;
    }
    return true;
}

/* 3/4 becomes \frac{3}{4}. */
static void fix_a_slash_b(struct rk_str *str)
{
    struct rk_span text = rk_span_of_str(str), left, right;
    struct rk_str out = {0};
    size_t at = rk_span_find(text, 0, "/");

    if (rk_span_count(text, "/") != 1)
        return;
    left = rk_span_slice(text, 0, at);
    right = rk_span_slice(text, at + 1, text.bytes);
    if (!is_plain_integer(left) || !is_plain_integer(right))
        return;
    rk_str_append(&out, "\\frac");
    append_braced(&out, left);
    append_braced(&out, right);
    rk_span_assign(str, rk_span_of_str(&out));
    rk_str_fini(&out);
}

static void replace_all(struct rk_str *str, const char *const (*pairs)[2], size_t num_pairs)
{
    for (size_t i = 0; i < num_pairs; i++)
        rk_span_replace(str, pairs[i][0], pairs[i][1]);
}

static bool normalise(struct rk_str *str)
{
    static const char *const before_units[][2] = {
        {"\n", ""},     {"\\!", ""},     {"\\\\", "\\"},    {"tfrac", "frac"}, {"dfrac", "frac"},
        {"\\left", ""}, {"\\right", ""}, {"^{\\circ}", ""}, {"^\\circ", ""},   {"\\$", ""},
    };
    static const char *const after_units[][2] = {{"\\\\%", ""}, {"\\%", ""}, {" .", " 0."}, {"{.", "{0."}};

    replace_all(str, before_units, RK_ARRAY_LEN(before_units));
    if (!remove_right_units(str))
        return false;
    replace_all(str, after_units, RK_ARRAY_LEN(after_units));
    if (str->bytes == 0)
        return true;
    if (str->text[0] == '.') {
        struct rk_str out = {0};

        rk_str_append(&out, "0");
        rk_str_append_bytes(&out, str->text, str->bytes);
        rk_str_fini(str);
        *str = out;
    }
    remove_short_left_side(str);
    if (!fix_sqrt(str))
        return false;
    rk_span_replace(str, " ", "");
    if (!fix_fractions(str))
        return false;
    if (rk_span_equal(rk_span_of_str(str), rk_span_of("0.5")))
        rk_span_assign(str, rk_span_of("\\frac{1}{2}"));
    fix_a_slash_b(str);
    return true;
}

static bool is_equivalent(struct rk_span a, struct rk_span b)
{
    struct rk_str left = {0}, right = {0};
    bool is_equal;

    rk_span_assign(&left, a);
    rk_span_assign(&right, b);
    if (normalise(&left) && normalise(&right))
        is_equal = rk_span_equal(rk_span_of_str(&left), rk_span_of_str(&right));
    else
        is_equal = rk_span_equal(a, b);
    rk_str_fini(&left);
    rk_str_fini(&right);
    return is_equal;
}

static void score_item(void *state, const struct rk_reward_item *item, struct rk_reward_result *result)
{
    struct rk_span answer = find_answer((struct rk_span){item->solution_str, item->solution_bytes});

    (void)state;
    if (answer.data && is_equivalent(answer, rk_span_of(item->ground_truth)))
        result->score = 1.0;
}

static const char *const keys[] = {NULL};

const struct rk_reward_ops rk_reward_math = {
    .name = "math",
    .keys = keys,
    .create = create,
    .check = rk_reward_need_truth,
    .score_item = score_item,
};
