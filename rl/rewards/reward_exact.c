/* exact: whether the answer is the ground truth.
 *
 *   strict   the whole response, without white space at its ends, is the ground truth
 *   qa_em    verl's rule for question answering (searchR1): the last <answer>...</answer> of the response is
 * one of the targets once both are in lower case, without ASCII punctuation, without the words a, an and the,
 * and with single blanks; a right answer in a response with more than ten opening or closing tags scores a
 * quarter. The ground truth is {"target": text or list of texts}, or the text itself.
 *
 * Keys: method (strict), score (1) when equal, format_score (0) when another answer was found. */
#include "rl/rewards/rewards.h"
#include "rl/rewards/span_internal.h"

#include <string.h>

#include <utf8proc.h>

#include "base/rk_alloc.h"

#define OPENING  "<answer>"
#define CLOSING  "</answer>"
#define MAX_TAGS 10 /* more indicate an attempt to guess with many answers */

struct exact {
    bool is_qa;
    struct rk_reward_points points;
};

static void destroy(void *state)
{
    rk_free(state);
}

static struct rk_status *create(void **state, const struct rk_json *config, const char *dir)
{
    static const char *const methods[] = {"strict", "qa_em", NULL};
    struct exact *exact = rk_calloc(1, sizeof(*exact));
    const char *method = methods[0];
    struct rk_status *st;

    (void)dir;
    RK_TRY_GOTO(st, rk_reward_opt_choice(config, "method", methods, &method), out);
    RK_TRY_GOTO(st, rk_reward_read_points(&exact->points, config), out);
    exact->is_qa = method == methods[1];
out:
    if (st) {
        destroy(exact);
        exact = NULL;
    }
    *state = exact;
    return st;
}

/* --- normal form of qa_em --- */

static bool is_word(utf8proc_int32_t c)
{
    utf8proc_category_t category = utf8proc_category(c);

    return c == '_' || (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO) ||
           (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO);
}

static bool is_punctuation(utf8proc_int32_t c)
{
    return c > 0 && c < 0x80 && strchr("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", (int)c);
}

static void append_char(struct rk_str *out, utf8proc_int32_t c)
{
    utf8proc_uint8_t bytes[4];

    rk_str_append_bytes(out, (const char *)bytes, (size_t)utf8proc_encode_char(c, bytes));
}

/* Lower case, without punctuation. */
static void simplify(struct rk_str *out, struct rk_span text)
{
    for (size_t at = 0; at < text.bytes;) {
        utf8proc_int32_t c;

        at += (size_t)RK_MAX(utf8proc_iterate((const utf8proc_uint8_t *)text.data + at,
                                              (utf8proc_ssize_t)(text.bytes - at), &c),
                             1);
        if (c == 0x130) /* a dotted capital I becomes an i and a dot in Python */
            rk_str_append(out, "i\u0307");
        else if (c >= 0 && !is_punctuation(c))
            append_char(out, utf8proc_tolower(c));
    }
}

static bool is_article(struct rk_span word)
{
    static const char *const articles[] = {"a", "an", "the"};

    for (size_t i = 0; i < RK_ARRAY_LEN(articles); i++) {
        if (rk_span_equal(word, rk_span_of(articles[i])))
            return true;
    }
    return false;
}

/* Bytes of the word that begins at the offset, 0 when none does. */
static size_t word_bytes(struct rk_span text, size_t begin)
{
    size_t at = begin;

    while (at < text.bytes) {
        utf8proc_int32_t c;
        utf8proc_ssize_t bytes = utf8proc_iterate((const utf8proc_uint8_t *)text.data + at,
                                                  (utf8proc_ssize_t)(text.bytes - at), &c);

        if (bytes <= 0 || !is_word(c))
            break;
        at += (size_t)bytes;
    }
    return at - begin;
}

/* Without articles, words between single blanks. */
static void append_words(struct rk_str *out, struct rk_span text)
{
    bool needs_blank = false;

    for (size_t at = 0; at < text.bytes;) {
        size_t bytes = word_bytes(text, at), space = rk_span_space_bytes(text, at);
        bool is_blank = space > 0 || is_article(rk_span_slice(text, at, at + bytes));

        if (!is_blank) {
            if (needs_blank && out->bytes > 0)
                rk_str_append(out, " ");
            bytes = bytes ? bytes : rk_span_char_bytes(text, at);
            rk_str_append_bytes(out, text.data + at, bytes);
        }
        needs_blank = is_blank;
        at += space ? space : bytes;
    }
}

static char *normalise(struct rk_span text, size_t *bytes)
{
    struct rk_str simple = {0}, words = {0};

    simplify(&simple, text);
    append_words(&words, rk_span_of_str(&simple));
    rk_str_fini(&simple);
    *bytes = words.bytes;
    rk_str_append(&words, "");
    return rk_str_take(&words);
}

static bool is_same_answer(struct rk_span a, struct rk_span b)
{
    size_t a_bytes, b_bytes;
    char *left = normalise(a, &a_bytes), *right = normalise(b, &b_bytes);
    bool is_equal = rk_span_equal((struct rk_span){left, a_bytes}, (struct rk_span){right, b_bytes});

    rk_free(left);
    rk_free(right);
    return is_equal;
}

/* --- the ground truth of qa_em --- */

static struct rk_span text_of_json(const struct rk_json *json)
{
    return (struct rk_span){rk_json_as_string(json, ""), rk_json_string_bytes(json)};
}

/* {"target": ...}; NULL when the ground truth is plain text. */
static struct rk_json *parse_truth(const char *truth)
{
    struct rk_json *json = NULL;
    struct rk_status *st = rk_json_parse(&json, truth, strlen(truth), "ground_truth", RK_JSON_ALLOW_NUL);

    RK_IGNORE(st, "a ground truth that is no JSON is the text itself");
    if (rk_json_type(json) == RK_JSON_OBJECT)
        return json;
    rk_json_free(json);
    return NULL;
}

static bool is_among_targets(struct rk_span answer, const struct rk_json *target)
{
    if (rk_json_type(target) == RK_JSON_STRING)
        return is_same_answer(answer, text_of_json(target));
    for (int64_t i = 0; i < rk_json_count(target); i++) {
        if (is_same_answer(answer, text_of_json(rk_json_at(target, i))))
            return true;
    }
    return false;
}

static bool is_right(struct rk_span answer, const char *ground_truth)
{
    struct rk_json *truth = parse_truth(ground_truth);
    bool result = truth ? is_among_targets(answer, rk_json_find(truth, "target"))
                        : is_same_answer(answer, rk_span_of(ground_truth));

    rk_json_free(truth);
    return result;
}

static struct rk_status *check_target(const struct rk_json *target)
{
    bool is_ok = rk_json_type(target) == RK_JSON_STRING || rk_json_count(target) > 0;

    for (int64_t i = 0; rk_json_type(target) != RK_JSON_STRING && i < rk_json_count(target); i++)
        is_ok = is_ok && rk_json_at(target, i) && rk_json_type(rk_json_at(target, i)) == RK_JSON_STRING;
    if (!is_ok)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "reward_model.ground_truth.target: expected a text or a list of texts");
    return NULL;
}

static struct rk_status *check(const void *state, const struct rk_reward_item *item)
{
    const struct exact *exact = state;
    struct rk_status *st = rk_reward_need_truth(state, item);
    struct rk_json *truth = NULL;

    if (st || !exact->is_qa)
        return st;
    truth = parse_truth(item->ground_truth);
    if (truth)
        st = check_target(rk_json_find(truth, "target"));
    rk_json_free(truth);
    return st;
}

/* --- the score --- */

/* Text of the last pair of tags; data NULL when there is none. */
static struct rk_span find_tagged(struct rk_span text)
{
    struct rk_span found = {0};
    size_t at = rk_span_find(text, 0, OPENING);

    while (at != RK_SPAN_NONE) {
        size_t end = rk_span_find(text, at + strlen(OPENING), CLOSING);

        if (end == RK_SPAN_NONE)
            break;
        found = rk_span_strip(rk_span_slice(text, at + strlen(OPENING), end));
        at = rk_span_find(text, end + strlen(CLOSING), OPENING);
    }
    return found;
}

static double score_qa(const struct exact *exact, struct rk_span text, const char *ground_truth)
{
    struct rk_span answer = find_tagged(text);

    if (!answer.data)
        return 0.0;
    if (!is_right(answer, ground_truth))
        return exact->points.format_score;
    if (rk_span_count(text, OPENING) > MAX_TAGS || rk_span_count(text, CLOSING) > MAX_TAGS)
        return exact->points.score / 4.0;
    return exact->points.score;
}

static void score_item(void *state, const struct rk_reward_item *item, struct rk_reward_result *result)
{
    const struct exact *exact = state;
    struct rk_span text = {item->solution_str, item->solution_bytes};

    if (exact->is_qa)
        result->score = score_qa(exact, text, item->ground_truth);
    else if (rk_span_equal(rk_span_strip(text), rk_span_strip(rk_span_of(item->ground_truth))))
        result->score = exact->points.score;
    else
        result->score = exact->points.format_score;
}

static const char *const keys[] = {"method", "score", "format_score", NULL};

const struct rk_reward_ops rk_reward_exact = {
    .name = "exact",
    .keys = keys,
    .create = create,
    .destroy = destroy,
    .check = check,
    .score_item = score_item,
};
