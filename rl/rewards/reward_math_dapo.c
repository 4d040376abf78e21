/* math_dapo: the text after the last "Answer:" of a response against the ground truth, both normalised, by
 * the rules of verl's DAPO score (normalisation from Lewkowycz et al., "Solving Quantitative Reasoning
 * Problems with Language Models", arXiv:2206.14858). Only the last 300 characters count. Without "Answer:"
 * the last \boxed{...} of the last 100 characters must equal the ground truth exactly; with
 * strict_box_verify only that counts. 1 when right, else -1; extra: acc (1 or 0) and pred, the extracted
 * answer. */
#include "rl/rewards/rewards.h"
#include "rl/rewards/span_internal.h"

#include <string.h>

#include "base/rk_alloc.h"

#define CHARS_READ     300
#define BOX_CHARS_READ 100
#define BOXED          "\\boxed{"
#define INVALID        "[INVALID]"

struct dapo {
    bool strict_box_verify;
};

static void destroy(void *state)
{
    rk_free(state);
}

static struct rk_status *create(void **state, const struct rk_json *config, const char *dir)
{
    struct dapo *dapo = rk_calloc(1, sizeof(*dapo));
    struct rk_status *st = rk_json_opt_bool(config, "reward", "strict_box_verify", &dapo->strict_box_verify);

    (void)dir;
    if (st) {
        destroy(dapo);
        dapo = NULL;
    }
    *state = dapo;
    return st;
}

/* --- finding the answer --- */

static size_t skip_space(struct rk_span text, size_t at)
{
    size_t space;

    while ((space = rk_span_space_bytes(text, at)) > 0)
        at += space;
    return at;
}

/* Bytes of "answer" in any case at the offset, 0 when it is not there. U+017F is an s to a regular expression
 * that ignores case. */
static size_t match_word(struct rk_span text, size_t at)
{
    static const char word[] = "answer", long_s[] = "\u017f";
    size_t begin = at;

    for (size_t i = 0; i < sizeof(word) - 1; i++) {
        struct rk_span rest = rk_span_slice(text, at, text.bytes);

        if (word[i] == 's' && rk_span_begins_with(rest, long_s))
            at += sizeof(long_s) - 1;
        else if (rest.bytes > 0 && (rest.data[0] | 0x20) == word[i])
            at++;
        else
            return 0;
    }
    return at - begin;
}

/* The begin of the answer whose colon ends at `begin`: after the white space, or, if only white space
 * follows, at its last character that is not a newline; RK_SPAN_NONE if there is none. */
static size_t answer_begin(struct rk_span text, size_t begin)
{
    size_t at = skip_space(text, begin), last = RK_SPAN_NONE;

    if (at < text.bytes)
        return at;
    for (at = begin; at < text.bytes; at += rk_span_space_bytes(text, at)) {
        if (text.data[at] != '\n')
            last = at;
    }
    return last;
}

/* The answer of the match that begins at the offset; bytes 0 when there is none. */
static struct rk_span match_answer(struct rk_span text, size_t at)
{
    const struct rk_span none = {0};
    size_t word = match_word(text, at), begin, end;

    if (word == 0)
        return none;
    at = skip_space(text, at + word);
    if (at >= text.bytes || text.data[at] != ':')
        return none;
    begin = answer_begin(text, at + 1);
    if (begin == RK_SPAN_NONE)
        return none;
    end = rk_span_find(text, begin, "\n");
    return rk_span_slice(text, begin, end == RK_SPAN_NONE ? text.bytes : end);
}

static struct rk_span find_answer(struct rk_span text)
{
    struct rk_span found = {0};

    for (size_t at = 0; at < text.bytes;) {
        struct rk_span answer = match_answer(text, at);

        at++;
        if (answer.bytes > 0) {
            found = answer;
            at = (size_t)(answer.data - text.data) + answer.bytes;
        }
    }
    return found;
}

/* Content of the last box; data NULL when there is none. */
static struct rk_span find_box(struct rk_span text)
{
    const struct rk_span none = {0};
    struct rk_span box;
    size_t at;

    text = rk_span_last_chars(text, BOX_CHARS_READ);
    at = rk_span_find_last(text, BOXED);
    if (at == RK_SPAN_NONE)
        return none;
    box = rk_span_matching_braces(text, at);
    return box.bytes > 0 ? rk_span_slice(box, strlen(BOXED), box.bytes - 1) : none;
}

/* --- normal form --- */

static size_t end_of_line(struct rk_span text, size_t at)
{
    size_t end = rk_span_find(text, at, "\n");

    return end == RK_SPAN_NONE ? text.bytes : end;
}

/* Reduces every line with a pair of dollars to that part: "is $7$ or $8$" becomes "$7$". */
static void keep_dollars(struct rk_str *str)
{
    struct rk_span text = rk_span_of_str(str);
    struct rk_str out = {0};

    for (size_t at = 0; at < text.bytes;) {
        size_t end = end_of_line(text, at);
        struct rk_span line = rk_span_slice(text, at, end);
        size_t first = rk_span_find(line, 0, "$");
        size_t second = first == RK_SPAN_NONE ? first : rk_span_find(line, first + 1, "$");

        if (second != RK_SPAN_NONE)
            line = rk_span_slice(line, first, second + 1);
        rk_str_append_bytes(&out, line.data, line.bytes);
        if (end < text.bytes)
            rk_str_append(&out, "\n");
        at = end + 1;
    }
    rk_span_assign(str, rk_span_of_str(&out));
    rk_str_fini(&out);
}

/* \text{X} becomes X, where the brace closes on the same line: at its first closing brace, or its last one.
 */
static void unwrap(struct rk_str *str, const char *opening, bool to_last)
{
    struct rk_span text = rk_span_of_str(str);
    struct rk_str out = {0};

    for (size_t at = 0; at < text.bytes;) {
        struct rk_span rest = rk_span_slice(text, at, end_of_line(text, at));
        size_t close = RK_SPAN_NONE, begin = strlen(opening);

        if (rk_span_begins_with(rest, opening))
            close = to_last ? rk_span_find_last(rest, "}") : rk_span_find(rest, begin, "}");
        if (close != RK_SPAN_NONE && close >= begin) {
            rk_str_append_bytes(&out, rest.data + begin, close - begin);
            at += close + 1;
        } else {
            rk_str_append_bytes(&out, text.data + at, 1);
            at++;
        }
    }
    rk_span_assign(str, rk_span_of_str(&out));
    rk_str_fini(&out);
}

/* Puts each of the `count` characters after the word in braces, unless the first is a brace. */
static void brace_arguments(struct rk_str *str, const char *word, int count)
{
    struct rk_span text = rk_span_of_str(str);
    struct rk_str out = {0};

    for (size_t at = 0; at < text.bytes;) {
        size_t next = at + strlen(word), bytes[2] = {0};
        bool is_match = rk_span_begins_with(rk_span_slice(text, at, text.bytes), word);

        for (int i = 0; i < count && is_match; i++) {
            is_match = next < text.bytes && text.data[next] != (i == 0 ? '{' : '\n');
            bytes[i] = is_match ? rk_span_char_bytes(text, next) : 0;
            next += bytes[i];
        }
        if (!is_match) {
            rk_str_append_bytes(&out, text.data + at++, 1);
            continue;
        }
        rk_str_append(&out, word);
        at += strlen(word);
        for (int i = 0; i < count; at += bytes[i++])
            rk_str_appendf(&out, "{%.*s}", (int)bytes[i], text.data + at);
    }
    rk_span_assign(str, rk_span_of_str(&out));
    rk_str_fini(&out);
}

/* "1,000" becomes "1000"; "1,000 m" keeps its comma. */
static void join_digits(struct rk_str *str)
{
    bool has_digit = false;

    for (size_t i = 0; i < str->bytes; i++) {
        if (str->text[i] != ',' && (str->text[i] < '0' || str->text[i] > '9'))
            return;
        has_digit |= str->text[i] != ',';
    }
    if (has_digit)
        rk_span_replace(str, ",", "");
}

static void normalise(struct rk_str *str)
{
    static const char *const replaced[][2] = {
        {"an ", ""}, {"a ", ""},       {".$", "$"},           {"\\$", ""},          {"\\ ", ""},
        {" ", ""},   {"mbox", "text"}, {",\\text{and}", ","}, {"\\text{and}", ","}, {"\\text{m}", "\\text{}"},
    };
    static const char *const removed[] = {
        "square",     "ways",       "integers",  "dollars",      "mph",
        "inches",     "hours",      "km",        "units",        "\\ldots",
        "sue",        "points",     "feet",      "minutes",      "digits",
        "cents",      "degrees",    "cm",        "gm",           "pounds",
        "meters",     "meals",      "edges",     "students",     "childrentickets",
        "multiples",  "\\text{s}",  "\\text{.}", "\\text{\ns}",  "\\text{}^2",
        "\\text{}^3", "\\text{\n}", "\\text{}",  "\\mathrm{th}", "^\\circ",
        "^{\\circ}",  "\\;",        ",\\!",      "{,}",          "\"",
        "\\dots",
    };
    struct rk_span text = rk_span_of_str(str);
    size_t equals = rk_span_find_last(text, "=");

    if (equals != RK_SPAN_NONE)
        rk_span_assign(str, rk_span_slice(text, equals + 1, text.bytes));
    for (size_t i = 0; i < RK_ARRAY_LEN(replaced); i++)
        rk_span_replace(str, replaced[i][0], replaced[i][1]);
    for (size_t i = 0; i < RK_ARRAY_LEN(removed); i++)
        rk_span_replace(str, removed[i], "");
    keep_dollars(str);
    unwrap(str, "\\text{", false);
    unwrap(str, "\\textbf{", false);
    unwrap(str, "\\overline{", false);
    unwrap(str, BOXED, true);
    brace_arguments(str, "frac", 2);
    brace_arguments(str, "sqrt", 1);
    rk_span_replace(str, "$", "");
    join_digits(str);
    rk_span_assign(str, rk_span_strip(rk_span_of_str(str)));
}

/* --- the score --- */

static void set_result(struct rk_reward_result *result, bool is_right, struct rk_span pred)
{
    result->score = is_right ? 1.0 : -1.0;
    result->extra = rk_json_new_object();
    rk_json_set(result->extra, "acc", rk_json_new_real(is_right ? 1.0 : 0.0));
    if (pred.data)
        rk_json_set(result->extra, "pred", rk_json_new_string_bytes(pred.data, pred.bytes));
}

static void score_box(struct rk_span text, const struct rk_reward_item *item, bool is_strict,
                      struct rk_reward_result *result)
{
    struct rk_span box = find_box(text), pred = box;
    bool is_right = box.data && rk_span_equal(box, rk_span_of(item->ground_truth));

    if (!box.data && !is_strict)
        pred = rk_span_of(INVALID);
    set_result(result, is_right, pred);
}

static void score_item(void *state, const struct rk_reward_item *item, struct rk_reward_result *result)
{
    const struct dapo *dapo = state;
    struct rk_span text = {item->solution_str, item->solution_bytes}, answer;
    struct rk_str pred = {0}, truth = {0};

    text = rk_span_last_chars(text, CHARS_READ);
    answer = dapo->strict_box_verify ? (struct rk_span){0} : find_answer(text);
    if (!answer.data) {
        score_box(text, item, dapo->strict_box_verify, result);
        return;
    }
    rk_span_assign(&pred, answer);
    rk_span_assign(&truth, rk_span_of(item->ground_truth));
    normalise(&pred);
    normalise(&truth);
    set_result(result, rk_span_equal(rk_span_of_str(&pred), rk_span_of_str(&truth)), rk_span_of_str(&pred));
    rk_str_fini(&truth);
    rk_str_fini(&pred);
}

static const char *const keys[] = {"strict_box_verify", NULL};

const struct rk_reward_ops rk_reward_math_dapo = {
    .name = "math_dapo",
    .keys = keys,
    .create = create,
    .destroy = destroy,
    .check = rk_reward_need_truth,
    .score_item = score_item,
};
