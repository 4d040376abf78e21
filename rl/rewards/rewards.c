/* The table of rewards, the checked entry points, and the treatment of items without a score. */
#include "rl/rewards/rewards.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_log.h"
#include "base/rk_str.h"
#include "rl/rewards/wire_internal.h"

#define MAX_FAILED_RATIO   0.1 /* default of reward.max_failed_ratio */
#define DURATION_MS_MAX    (24 * 3600 * 1000)
#define ITEMS_BEFORE_WATCH 64 /* scored between two checks for an interrupt */

static const struct rk_reward_ops *const rows[] = {
#define X(name) &rk_reward_##name,
    RK_REWARD_TABLE(X)
#undef X
};

/* reward.on_error: treatment of an item that failed. */
static const char *const on_error_names[] = {"drop", "zero", "fail", NULL};

struct rk_reward {
    const struct rk_reward_ops *ops;
    void *state; /* the row's */
    const char *on_error;
    double max_failed_ratio;
    bool has_warned; /* about members of answers that are ignored */
};

/* --- configuration --- */

static struct rk_status *unknown_row(const char *name)
{
    struct rk_str names = {0};
    struct rk_status *st;

    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++)
        rk_str_appendf(&names, "%s%s", i ? ", " : "", rows[i]->name);
    st = RK_FAIL(RK_NOT_FOUND, "reward.name: unknown reward '%s' (known: %s)", name, rk_str_text(&names));
    rk_str_fini(&names);
    return st;
}

bool rk_reward_is_given(const struct rk_json *value)
{
    if (rk_json_is_null(value))
        return false;
    if (rk_json_type(value) != RK_JSON_OBJECT)
        return true;
    for (void *it = rk_json_iter(value); it; it = rk_json_iter_next(value, it)) {
        if (rk_reward_is_given(rk_json_iter_value(it)))
            return true;
    }
    return false;
}

static bool is_among(const char *const *names, const char *name)
{
    for (; *names; names++) {
        if (strcmp(*names, name) == 0)
            return true;
    }
    return false;
}

static void append_names(struct rk_str *out, const char *const *names)
{
    for (size_t i = 0; names[i]; i++)
        rk_str_appendf(out, "%s%s", out->bytes ? ", " : "", names[i]);
}

static struct rk_status *check_keys(const struct rk_reward_ops *ops, const struct rk_json *config)
{
    /* num_workers is in verl's default configuration; rewards without workers need none. */
    static const char *const common[] = {"name", "on_error", "max_failed_ratio", "num_workers", NULL};
    struct rk_str known = {0};
    struct rk_status *st = NULL;

    append_names(&known, common);
    append_names(&known, ops->keys);
    for (void *it = rk_json_iter(config); it && !st; it = rk_json_iter_next(config, it)) {
        const char *key = rk_json_iter_key(it);

        if (rk_reward_is_given(rk_json_iter_value(it)) && !is_among(common, key) && !is_among(ops->keys, key))
            st = RK_FAIL(RK_INVALID_ARGUMENT, "reward.%s: not a key of the reward '%s'; its keys are %s", key,
                         ops->name, rk_str_text(&known));
    }
    rk_str_fini(&known);
    return st;
}

struct rk_status *rk_reward_opt_duration(const struct rk_json *config, const char *key, int64_t *out_ms)
{
    const char *text = NULL;
    int64_t value;

    RK_TRY(rk_json_opt_string(config, "reward", key, &text));
    if (!text)
        return NULL;
    if (!rk_parse_duration_ms(text, &value) || value <= 0 || value > DURATION_MS_MAX)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "reward.%s: expected a duration such as \"30s\", at most 24h, got \"%s\"", key, text);
    *out_ms = value;
    return NULL;
}

struct rk_status *rk_reward_opt_choice(const struct rk_json *config, const char *key,
                                       const char *const *choices, const char **out)
{
    const char *text = NULL;
    struct rk_str names = {0};
    struct rk_status *st = NULL;

    RK_TRY(rk_json_opt_string(config, "reward", key, &text));
    if (!text)
        return NULL;
    for (; *choices && strcmp(*choices, text) != 0; choices++)
        append_names(&names, (const char *const[]){*choices, NULL});
    if (*choices)
        *out = *choices;
    else
        st = RK_FAIL(RK_INVALID_ARGUMENT, "reward.%s: expected one of %s, got \"%s\"", key,
                     rk_str_text(&names), text);
    rk_str_fini(&names);
    return st;
}

struct rk_status *rk_reward_read_points(struct rk_reward_points *out, const struct rk_json *config)
{
    *out = (struct rk_reward_points){.score = 1.0};
    RK_TRY(rk_json_opt_f64(config, "reward", "score", &out->score));
    return rk_json_opt_f64(config, "reward", "format_score", &out->format_score);
}

static struct rk_status *read_common(struct rk_reward *reward, const struct rk_json *config)
{
    RK_TRY(check_keys(reward->ops, config));
    RK_TRY(rk_reward_opt_choice(config, "on_error", on_error_names, &reward->on_error));
    RK_TRY(rk_json_opt_f64(config, "reward", "max_failed_ratio", &reward->max_failed_ratio));
    if (!(reward->max_failed_ratio >= 0.0 && reward->max_failed_ratio <= 1.0))
        return RK_FAIL(RK_INVALID_ARGUMENT, "reward.max_failed_ratio: expected 0 to 1, got %g",
                       reward->max_failed_ratio);
    return NULL;
}

struct rk_status *rk_reward_create(struct rk_reward **out, const struct rk_json *config, const char *dir)
{
    const char *name = NULL;
    struct rk_reward *reward = NULL;
    struct rk_status *st;

    *out = NULL;
    RK_TRY(rk_json_get_string(config, "reward", "name", &name));
    reward = rk_calloc(1, sizeof(*reward));
    reward->on_error = on_error_names[0];
    reward->max_failed_ratio = MAX_FAILED_RATIO;
    for (size_t i = 0; i < RK_ARRAY_LEN(rows) && !reward->ops; i++) {
        if (strcmp(rows[i]->name, name) == 0)
            reward->ops = rows[i];
    }
    st = reward->ops ? read_common(reward, config) : unknown_row(name);
    if (!st)
        st = reward->ops->create(&reward->state, config, dir);
    if (st) {
        rk_free(reward);
        return st;
    }
    *out = reward;
    return NULL;
}

void rk_reward_destroy(struct rk_reward *reward)
{
    if (!reward)
        return;
    if (reward->ops->destroy)
        reward->ops->destroy(reward->state);
    rk_free(reward);
}

/* --- scoring --- */

const char *rk_reward_outcome_name(rk_reward_outcome_t outcome)
{
    static const char *const names[RK_REWARD_OUTCOME_COUNT] = {
        [RK_REWARD_SCORED] = "scored",   [RK_REWARD_SKIPPED] = "skipped", [RK_REWARD_ERROR] = "error",
        [RK_REWARD_TIMEOUT] = "timeout", [RK_REWARD_CRASH] = "crash",
    };

    RK_ASSERT(outcome < RK_REWARD_OUTCOME_COUNT);
    return names[outcome];
}

void rk_reward_fail(struct rk_reward_result *result, rk_reward_outcome_t outcome, const char *fmt, ...)
{
    struct rk_str message = {0};
    va_list args;

    RK_ASSERT(outcome != RK_REWARD_SCORED);
    va_start(args, fmt);
    rk_str_vappendf(&message, fmt, args);
    va_end(args);
    rk_json_free(result->extra);
    rk_free(result->message);
    rk_free(result->ignored);
    *result = (struct rk_reward_result){.outcome = outcome, .message = rk_str_take(&message)};
}

bool rk_reward_is_cancelled(const struct rk_reward_watch *watch)
{
    return watch->is_cancelled && watch->is_cancelled(watch->user);
}

struct rk_status *rk_reward_need_truth(const void *state, const struct rk_reward_item *item)
{
    (void)state;
    if (!*item->ground_truth)
        return RK_FAIL(RK_INVALID_ARGUMENT, "reward_model.ground_truth is missing");
    return NULL;
}

struct rk_status *rk_reward_check(const struct rk_reward *reward, const struct rk_reward_item *item)
{
    return reward->ops->check ? reward->ops->check(reward->state, item) : NULL;
}

static struct rk_status *score_all(struct rk_reward *reward, const struct rk_reward_call *call)
{
    for (int64_t i = 0; i < call->num_items; i++) {
        struct rk_status *st = rk_reward_check(reward, &call->items[i]);

        if (st)
            return RK_WRAP(st, "reward '%s': item %lld", reward->ops->name, (long long)i);
    }
    if (reward->ops->score_items)
        return reward->ops->score_items(reward->state, call);
    for (int64_t i = 0; i < call->num_items; i++) {
        if (i % ITEMS_BEFORE_WATCH == 0 && rk_reward_is_cancelled(call->watch))
            return RK_FAIL(RK_CANCELLED, "interrupted");
        reward->ops->score_item(reward->state, &call->items[i], &call->results[i]);
    }
    return NULL;
}

bool rk_reward_is_in_range(double score)
{
    return fabs(score) <= (double)FLT_MAX; /* false for NaN */
}

/* Once a run: the answers that follow most likely have the same members. */
static void warn_of_ignored(struct rk_reward *reward, const struct rk_reward_call *call)
{
    for (int64_t i = 0; i < call->num_items && !reward->has_warned; i++) {
        if (!call->results[i].ignored)
            continue;
        RK_WARN(
            "reward '%s': members of the answers that are neither reported nor dumped: %s; expected at most "
            "%d numbers, true, false or texts with names of up to %d letters, digits and _-./@",
            reward->ops->name, call->results[i].ignored, RK_REWARD_EXTRAS_MAX, RK_REWARD_NAME_BYTES);
        reward->has_warned = true;
    }
}

/* Applies on_error to one result; true when it is a failure. */
static bool apply_on_error(const struct rk_reward *reward, struct rk_reward_result *result)
{
    if (result->outcome == RK_REWARD_SCORED && !rk_reward_is_in_range(result->score))
        rk_reward_fail(result, RK_REWARD_ERROR, "the score is %g, expected a number from -%g to %g",
                       result->score, (double)FLT_MAX, (double)FLT_MAX);
    if (result->outcome == RK_REWARD_SCORED)
        return false;
    result->is_dropped = result->outcome == RK_REWARD_SKIPPED || strcmp(reward->on_error, "zero") != 0;
    return result->outcome != RK_REWARD_SKIPPED;
}

static struct rk_status *apply_policy(const struct rk_reward *reward, const struct rk_reward_call *call)
{
    int64_t num_failed = 0, first = -1;
    const struct rk_reward_result *result;

    for (int64_t i = 0; i < call->num_items; i++) {
        if (!apply_on_error(reward, &call->results[i]))
            continue;
        num_failed++;
        first = first < 0 ? i : first;
    }
    if (num_failed <= call->max_failed)
        return NULL;
    result = &call->results[first];
    if (strcmp(reward->on_error, "fail") == 0)
        return RK_FAIL(RK_ABORTED, "reward '%s': item %lld: %s: %s", reward->ops->name, (long long)first,
                       rk_reward_outcome_name(result->outcome), result->message);
    return RK_FAIL(RK_ABORTED,
                   "reward '%s': %lld of %lld items have no score, more than reward.max_failed_ratio=%g; "
                   "item %lld: %s: %s",
                   reward->ops->name, (long long)num_failed, (long long)call->num_items,
                   reward->max_failed_ratio, (long long)first, rk_reward_outcome_name(result->outcome),
                   result->message);
}

struct rk_status *rk_reward_score(struct rk_reward *reward, const struct rk_reward_item *items,
                                  int64_t num_items, struct rk_reward_result *results,
                                  const struct rk_reward_watch *watch)
{
    static const struct rk_reward_watch none = {0};
    bool may_fail = strcmp(reward->on_error, "fail") != 0;
    struct rk_reward_call call = {
        .items = items,
        .num_items = num_items,
        .results = results,
        .max_failed = may_fail ? (int64_t)floor(reward->max_failed_ratio * (double)num_items) : 0,
        .watch = watch ? watch : &none,
    };

    memset(results, 0, (size_t)num_items * sizeof(*results));
    RK_TRY(score_all(reward, &call));
    warn_of_ignored(reward, &call);
    return apply_policy(reward, &call);
}

struct rk_json *rk_reward_truth(const struct rk_reward_item *item)
{
    if (item->ground_truth_json)
        return rk_json_retain(item->ground_truth_json);
    return *item->ground_truth ? rk_json_new_string(item->ground_truth) : rk_json_new_null();
}

void rk_reward_results_fini(struct rk_reward_result *results, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        rk_json_free(results[i].extra);
        rk_free(results[i].message);
        rk_free(results[i].ignored);
        results[i].ignored = NULL;
        results[i].extra = NULL;
        results[i].message = NULL;
    }
}
