/* regex: the last match of a pattern in the response against the ground truth.
 *
 * Keys: pattern, a PCRE2 regular expression whose first group (without groups: the whole match) is the
 * answer; score (1) when the answer is the ground truth, white space at the ends apart; format_score (0) when
 * it is another one; without a match 0. */
#include "rl/rewards/rewards.h"
#include "rl/rewards/span_internal.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/rk_alloc.h"

#define MATCH_LIMIT 1000000 /* steps of one match; beyond it the item fails */

struct regex {
    pcre2_code *code;
    pcre2_match_data *match;
    pcre2_match_context *context;
    uint32_t group; /* the answer's */
    struct rk_reward_points points;
};

static void destroy(void *state)
{
    struct regex *regex = state;

    if (!regex)
        return;
    pcre2_match_context_free(regex->context);
    pcre2_match_data_free(regex->match);
    pcre2_code_free(regex->code);
    rk_free(regex);
}

static struct rk_status *compile(struct regex *regex, const char *pattern)
{
    PCRE2_UCHAR text[256];
    PCRE2_SIZE offset;
    uint32_t num_groups = 0;
    int error;

    regex->code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &error,
                                &offset, NULL);
    if (!regex->code) {
        pcre2_get_error_message(error, text, sizeof(text));
        return RK_FAIL(RK_INVALID_ARGUMENT, "reward.pattern: %s at byte %zu of '%s'", (const char *)text,
                       offset, pattern);
    }
    (void)pcre2_pattern_info(regex->code, PCRE2_INFO_CAPTURECOUNT, &num_groups);
    regex->group = num_groups > 0 ? 1 : 0;
    regex->match = pcre2_match_data_create_from_pattern(regex->code, NULL);
    regex->context = pcre2_match_context_create(NULL);
    if (!regex->match || !regex->context)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "reward.pattern: no memory");
    pcre2_set_match_limit(regex->context, MATCH_LIMIT);
    return NULL;
}

static struct rk_status *create(void **state, const struct rk_json *config, const char *dir)
{
    struct regex *regex = rk_calloc(1, sizeof(*regex));
    const char *pattern = NULL;
    struct rk_status *st;

    (void)dir;
    RK_TRY_GOTO(st, rk_json_get_string(config, "reward", "pattern", &pattern), out);
    RK_TRY_GOTO(st, rk_reward_read_points(&regex->points, config), out);
    RK_TRY_GOTO(st, compile(regex, pattern), out);
out:
    if (st) {
        destroy(regex);
        regex = NULL;
    }
    *state = regex;
    return st;
}

/* The answer of the last match; data NULL without one. Returns PCRE2's error, or 0. */
static int find_last(struct regex *regex, struct rk_span text, struct rk_span *answer)
{
    PCRE2_SIZE *ends = pcre2_get_ovector_pointer(regex->match);
    PCRE2_SIZE at = 0;
    int rc;

    *answer = (struct rk_span){0};
    while (at <= text.bytes) {
        rc = pcre2_match(regex->code, (PCRE2_SPTR)text.data, text.bytes, at, 0, regex->match, regex->context);
        if (rc < 0)
            return rc == PCRE2_ERROR_NOMATCH ? 0 : rc;
        if (ends[2 * regex->group] != PCRE2_UNSET && ends[2 * regex->group] <= ends[2 * regex->group + 1])
            *answer = rk_span_slice(text, ends[2 * regex->group], ends[2 * regex->group + 1]);
        if (ends[1] > at)
            at = ends[1];
        else /* an empty match: continue after the next character */
            at = at < text.bytes ? at + rk_span_char_bytes(text, at) : at + 1;
    }
    return 0;
}

static void score_item(void *state, const struct rk_reward_item *item, struct rk_reward_result *result)
{
    struct regex *regex = state;
    struct rk_span answer;
    int rc = find_last(regex, (struct rk_span){item->solution_str, item->solution_bytes}, &answer);

    if (rc != 0) {
        PCRE2_UCHAR text[256];

        pcre2_get_error_message(rc, text, sizeof(text));
        rk_reward_fail(result, RK_REWARD_ERROR, "reward.pattern: %s", (const char *)text);
        return;
    }
    if (!answer.data)
        return;
    result->score = rk_span_equal(rk_span_strip(answer), rk_span_strip(rk_span_of(item->ground_truth)))
                        ? regex->points.score
                        : regex->points.format_score;
}

static const char *const keys[] = {"pattern", "score", "format_score", NULL};

const struct rk_reward_ops rk_reward_regex = {
    .name = "regex",
    .keys = keys,
    .create = create,
    .destroy = destroy,
    .check = rk_reward_need_truth,
    .score_item = score_item,
};
