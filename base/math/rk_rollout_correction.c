#include "base/math/rk_rollout_correction.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_assert.h"
#include "base/rk_str.h"

typedef enum scope { SCOPE_TOKEN, SCOPE_SUM, SCOPE_MEAN, SCOPE_MAX } scope_t;

static const struct {
    const char *name;
    scope_t scope;
    int k;
} options[RK_ROLLOUT_RS_COUNT] = {
    [RK_ROLLOUT_RS_TOKEN_K1] = {"token_k1", SCOPE_TOKEN, 1},
    [RK_ROLLOUT_RS_TOKEN_K2] = {"token_k2", SCOPE_TOKEN, 2},
    [RK_ROLLOUT_RS_TOKEN_K3] = {"token_k3", SCOPE_TOKEN, 3},
    [RK_ROLLOUT_RS_SEQ_SUM_K1] = {"seq_sum_k1", SCOPE_SUM, 1},
    [RK_ROLLOUT_RS_SEQ_SUM_K2] = {"seq_sum_k2", SCOPE_SUM, 2},
    [RK_ROLLOUT_RS_SEQ_SUM_K3] = {"seq_sum_k3", SCOPE_SUM, 3},
    [RK_ROLLOUT_RS_SEQ_MEAN_K1] = {"seq_mean_k1", SCOPE_MEAN, 1},
    [RK_ROLLOUT_RS_SEQ_MEAN_K2] = {"seq_mean_k2", SCOPE_MEAN, 2},
    [RK_ROLLOUT_RS_SEQ_MEAN_K3] = {"seq_mean_k3", SCOPE_MEAN, 3},
    [RK_ROLLOUT_RS_SEQ_MAX_K2] = {"seq_max_k2", SCOPE_MAX, 2},
    [RK_ROLLOUT_RS_SEQ_MAX_K3] = {"seq_max_k3", SCOPE_MAX, 3},
};

const char *rk_rollout_rs_name(rk_rollout_rs_t option)
{
    return options[option].name;
}

bool rk_rollout_rs_is_token(rk_rollout_rs_t option)
{
    return options[option].scope == SCOPE_TOKEN;
}

bool rk_rollout_rs_is_k1(rk_rollout_rs_t option)
{
    return options[option].k == 1;
}

/* --- keys --- */

#define KEY "rollout_correction."

struct texts {
    RK_ARRAY(char *) items;
};

static void texts_fini(struct texts *texts)
{
    for (int64_t i = 0; i < texts->items.count; i++)
        rk_free(texts->items.items[i]);
    rk_array_fini(&texts->items);
}

/* The parts between commas, without spaces around them; empty ones are left out. */
static void split(struct texts *out, const char *text)
{
    while (*text) {
        size_t bytes = strcspn(text, ","), begin = strspn(text, " "), end = bytes;

        while (end > begin && text[end - 1] == ' ')
            end--;
        if (end > begin)
            rk_array_append(&out->items, rk_format("%.*s", (int)(end - begin), text + begin));
        text += bytes;
        text += *text == ',';
    }
}

/* "LOWER_UPPER". */
static bool parse_pair(const char *text, double *lower, double *upper)
{
    const char *bar = strchr(text, '_');
    char *first = bar ? rk_format("%.*s", (int)(bar - text), text) : NULL;
    bool is_pair = bar && rk_parse_f64(first, lower) && rk_parse_f64(bar + 1, upper);

    rk_free(first);
    return is_pair && *lower > 0.0 && *lower <= *upper;
}

static struct rk_status *parse_is(struct rk_rollout_correction *out,
                                  const struct rk_rollout_correction_keys *keys)
{
    const char *threshold = keys->rollout_is_threshold ? keys->rollout_is_threshold : "2.0";

    if (!keys->rollout_is)
        return NULL;
    if (strcmp(keys->rollout_is, "token") == 0)
        out->rollout_is = RK_ROLLOUT_IS_TOKEN;
    else if (strcmp(keys->rollout_is, "sequence") == 0)
        out->rollout_is = RK_ROLLOUT_IS_SEQUENCE;
    else
        return RK_FAIL(RK_INVALID_ARGUMENT, KEY "rollout_is: expected token or sequence, got \"%s\"",
                       keys->rollout_is);
    if (rk_parse_f64(threshold, &out->is_upper) && out->is_upper > 0.0)
        return NULL;
    if (parse_pair(threshold, &out->is_lower, &out->is_upper))
        return NULL;
    return RK_FAIL(RK_INVALID_ARGUMENT,
                   KEY
                   "rollout_is_threshold: expected a number above 0, or LOWER_UPPER with 0 < LOWER <= UPPER, "
                   "got \"%s\"",
                   threshold);
}

static struct rk_status *find_option(const char *name, rk_rollout_rs_t *option)
{
    struct rk_str known = {0};
    struct rk_status *st;

    for (int i = 0; i < RK_ROLLOUT_RS_COUNT; i++) {
        if (strcmp(options[i].name, name) == 0) {
            *option = (rk_rollout_rs_t)i;
            return NULL;
        }
    }
    for (int i = 0; i < RK_ROLLOUT_RS_COUNT; i++)
        rk_str_appendf(&known, "%s%s", i ? ", " : "", options[i].name);
    st = RK_FAIL(RK_INVALID_ARGUMENT, KEY "rollout_rs: expected some of %s, got \"%s\"", rk_str_text(&known),
                 name);
    rk_str_fini(&known);
    return st;
}

static struct rk_status *parse_bounds(struct rk_rollout_rs_rule *rule, const char *text)
{
    const char *name = options[rule->option].name;

    if (rk_rollout_rs_is_k1(rule->option)) {
        double lower, upper;

        if (rk_parse_f64(text, &upper) && upper > 0.0)
            lower = 1.0 / upper;
        else if (!parse_pair(text, &lower, &upper))
            lower = INFINITY;
        rule->lower = log(lower);
        rule->upper = log(upper);
        if (lower <= upper)
            return NULL;
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       KEY
                       "rollout_rs_threshold: %s: expected LOWER_UPPER with 0 < LOWER <= UPPER, or an upper "
                       "bound of at least 1 with its inverse as the lower one, got \"%s\"",
                       name, text);
    }
    rule->lower = -INFINITY;
    if (rk_parse_f64(text, &rule->upper) && rule->upper > 0.0)
        return NULL;
    return RK_FAIL(RK_INVALID_ARGUMENT,
                   KEY "rollout_rs_threshold: %s: expected one upper bound above 0, got \"%s\"", name, text);
}

static struct rk_status *parse_rules(struct rk_rollout_correction *out, const struct texts *names,
                                     const struct texts *bounds,
                                     const struct rk_rollout_correction_keys *keys)
{
    for (int64_t i = 0; i < names->items.count; i++) {
        struct rk_rollout_rs_rule rule = {.option = RK_ROLLOUT_RS_COUNT};
        bool is_known = false;

        RK_TRY(find_option(names->items.items[i], &rule.option));
        for (int32_t j = 0; j < out->num_rules; j++)
            is_known = is_known || out->rules[j].option == rule.option;
        if (!is_known)
            out->rules[out->num_rules++] = rule;
    }
    if (out->num_rules == 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, KEY "rollout_rs: expected names of statistics, got \"%s\"",
                       keys->rollout_rs);
    if (bounds->items.count != 1 && bounds->items.count != out->num_rules)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       KEY
                       "rollout_rs_threshold: expected one threshold, or one for each of the %d statistics "
                       "of rollout_rs, got %s%s%s",
                       out->num_rules, keys->rollout_rs_threshold ? "\"" : "",
                       keys->rollout_rs_threshold ? keys->rollout_rs_threshold : "null",
                       keys->rollout_rs_threshold ? "\"" : "");
    for (int32_t i = 0; i < out->num_rules; i++)
        RK_TRY(parse_bounds(&out->rules[i], bounds->items.items[bounds->items.count == 1 ? 0 : i]));
    return NULL;
}

static struct rk_status *parse_rs(struct rk_rollout_correction *out,
                                  const struct rk_rollout_correction_keys *keys)
{
    struct texts names = {0}, bounds = {0};
    struct rk_status *st;

    if (!keys->rollout_rs)
        return NULL;
    split(&names, keys->rollout_rs);
    split(&bounds, keys->rollout_rs_threshold ? keys->rollout_rs_threshold : "");
    st = parse_rules(out, &names, &bounds, keys);
    texts_fini(&names);
    texts_fini(&bounds);
    return st;
}

static struct rk_status *parse_loss_type(struct rk_rollout_correction *out, const char *text)
{
    if (text && strcmp(text, "reinforce") == 0)
        out->loss_type = RK_BYPASS_REINFORCE;
    else if (text && strcmp(text, "ppo_clip") != 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, KEY "loss_type: expected ppo_clip or reinforce, got \"%s\"",
                       text);
    return NULL;
}

struct rk_status *rk_rollout_correction_parse(struct rk_rollout_correction *out,
                                              const struct rk_rollout_correction_keys *keys)
{
    *out = (struct rk_rollout_correction){
        .is_batch_normalize = keys->rollout_is_batch_normalize,
        .bypass_mode = keys->bypass_mode,
    };
    RK_TRY(parse_is(out, keys));
    RK_TRY(parse_rs(out, keys));
    RK_TRY(parse_loss_type(out, keys->loss_type));
    if (out->bypass_mode && out->is_batch_normalize && out->rollout_is != RK_ROLLOUT_IS_NONE &&
        out->loss_type == RK_BYPASS_REINFORCE)
        return RK_FAIL(RK_INVALID_ARGUMENT, KEY
                       "rollout_is_batch_normalize: expected false with bypass_mode and loss_type=reinforce, "
                       "whose weights are computed in each micro-batch, got true");
    return NULL;
}

/* --- arithmetic --- */

/* NaN stays NaN. */
static double clamp(double log_ratio)
{
    if (log_ratio > RK_ROLLOUT_LOG_RATIO_MAX)
        return RK_ROLLOUT_LOG_RATIO_MAX;
    return log_ratio < -RK_ROLLOUT_LOG_RATIO_MAX ? -RK_ROLLOUT_LOG_RATIO_MAX : log_ratio;
}

void rk_rollout_is_raw(double *raw, const struct rk_rollout_correction *config, const double *log_ratio,
                       int64_t n)
{
    double sum = 0.0;

    RK_ASSERT(config->rollout_is != RK_ROLLOUT_IS_NONE);
    for (int64_t t = 0; t < n; t++)
        sum += log_ratio[t];
    for (int64_t t = 0; t < n; t++)
        raw[t] = exp(clamp(config->rollout_is == RK_ROLLOUT_IS_TOKEN ? log_ratio[t] : sum));
}

double rk_rollout_is_weight(const struct rk_rollout_correction *config, double raw)
{
    if (config->is_lower > 0.0)
        return raw < config->is_lower || raw > config->is_upper ? 0.0 : raw;
    return raw > config->is_upper ? config->is_upper : raw;
}

static double token_value(int k, double log_ratio)
{
    double l = clamp(log_ratio);

    if (k == 1)
        return -l;
    return k == 2 ? 0.5 * l * l : exp(l) - 1.0 - l;
}

void rk_rollout_rs_token_values(double *values, rk_rollout_rs_t option, const double *log_ratio, int64_t n)
{
    RK_ASSERT(options[option].scope == SCOPE_TOKEN);
    for (int64_t t = 0; t < n; t++)
        values[t] = token_value(options[option].k, log_ratio[t]);
}

double rk_rollout_rs_row_value(rk_rollout_rs_t option, const double *log_ratio, int64_t n)
{
    double sum = 0.0, max = n > 0 ? -INFINITY : 0.0;

    RK_ASSERT(options[option].scope != SCOPE_TOKEN);
    for (int64_t t = 0; t < n; t++) {
        double value = token_value(options[option].k, log_ratio[t]);

        sum += value;
        max = value > max || isnan(value) ? value : max;
    }
    if (options[option].scope == SCOPE_MAX)
        return max;
    return options[option].scope == SCOPE_SUM ? sum : rk_masked_mean(sum, (double)n);
}

bool rk_rollout_rs_keeps(const struct rk_rollout_rs_rule *rule, double value)
{
    return value >= rule->lower && value <= rule->upper;
}

void rk_rollout_rs_keep(uint8_t *keep, const struct rk_rollout_correction *config, const double *log_ratio,
                        int64_t n)
{
    memset(keep, 1, (size_t)n);
    for (int32_t i = 0; i < config->num_rules; i++) {
        const struct rk_rollout_rs_rule *rule = &config->rules[i];
        bool is_token = rk_rollout_rs_is_token(rule->option);
        bool keeps_row =
            is_token || rk_rollout_rs_keeps(rule, rk_rollout_rs_row_value(rule->option, log_ratio, n));

        for (int64_t t = 0; t < n; t++) {
            bool keeps = is_token
                             ? rk_rollout_rs_keeps(rule, token_value(options[rule->option].k, log_ratio[t]))
                             : keeps_row;

            keep[t] = keep[t] && keeps;
        }
    }
}
