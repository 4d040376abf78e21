/* gsm8k: the number that a response ends with, by the rules of verl's gsm8k score. Only the last 300
 * characters count.
 *
 *   strict    the last "#### " followed by a number; commas are removed
 *   flexible  the last number anywhere, commas included
 *
 * A number is an optional minus and a run of digits, dots and commas. It is compared as text: "12.0" is not
 * "12". Keys: method (strict), score (1) when equal, format_score (0) when another number was found; none
 * scores 0. */
#include "rl/rewards/rewards.h"
#include "rl/rewards/span_internal.h"

#include <string.h>

#include "base/rk_alloc.h"

#define MARK       "#### "
#define CHARS_READ 300

struct gsm8k {
    bool is_flexible;
    struct rk_reward_points points;
};

static void destroy(void *state)
{
    rk_free(state);
}

static struct rk_status *create(void **state, const struct rk_json *config, const char *dir)
{
    static const char *const methods[] = {"strict", "flexible", NULL};
    struct gsm8k *gsm8k = rk_calloc(1, sizeof(*gsm8k));
    const char *method = methods[0];
    struct rk_status *st;

    (void)dir;
    RK_TRY_GOTO(st, rk_reward_opt_choice(config, "method", methods, &method), out);
    RK_TRY_GOTO(st, rk_reward_read_points(&gsm8k->points, config), out);
    gsm8k->is_flexible = method == methods[1];
out:
    if (st) {
        destroy(gsm8k);
        gsm8k = NULL;
    }
    *state = gsm8k;
    return st;
}

static bool is_numeric(char c)
{
    return (c >= '0' && c <= '9') || c == '.' || c == ',';
}

/* The number that begins at the offset; bytes 0 when none does. */
static struct rk_span number_at(struct rk_span text, size_t at)
{
    size_t begin = at, end;

    if (at < text.bytes && text.data[at] == '-')
        at++;
    for (end = at; end < text.bytes && is_numeric(text.data[end]);)
        end++;
    return end > at ? rk_span_slice(text, begin, end) : (struct rk_span){text.data, 0};
}

static struct rk_span find_strict(struct rk_span text)
{
    struct rk_span found = {0};

    for (size_t at = rk_span_find(text, 0, MARK); at != RK_SPAN_NONE; at = rk_span_find(text, at + 1, MARK)) {
        struct rk_span number = number_at(text, at + strlen(MARK));

        if (number.bytes > 0)
            found = number;
    }
    return found;
}

/* A lone dot is an answer only when there is no other. */
static struct rk_span find_flexible(struct rk_span text)
{
    struct rk_span found = {0}, dot = {0};

    for (size_t at = 0; at < text.bytes;) {
        struct rk_span number = number_at(text, at);

        at += number.bytes ? number.bytes : 1;
        if (number.bytes == 1 && number.data[0] == '.')
            dot = number;
        else if (number.bytes > 0)
            found = number;
    }
    return found.bytes > 0 ? found : dot;
}

static void score_item(void *state, const struct rk_reward_item *item, struct rk_reward_result *result)
{
    const struct gsm8k *gsm8k = state;
    struct rk_span response = {item->solution_str, item->solution_bytes}, found;
    struct rk_str answer = {0};

    response = rk_span_last_chars(response, CHARS_READ);
    found = gsm8k->is_flexible ? find_flexible(response) : find_strict(response);
    if (found.bytes == 0)
        return;
    rk_span_assign(&answer, found);
    if (!gsm8k->is_flexible)
        rk_span_replace(&answer, ",", "");
    result->score = rk_span_equal(rk_span_of_str(&answer), rk_span_of(item->ground_truth))
                        ? gsm8k->points.score
                        : gsm8k->points.format_score;
    rk_str_fini(&answer);
}

static const char *const keys[] = {"method", "score", "format_score", NULL};

const struct rk_reward_ops rk_reward_gsm8k = {
    .name = "gsm8k",
    .keys = keys,
    .create = create,
    .destroy = destroy,
    .check = rk_reward_need_truth,
    .score_item = score_item,
};
