#include "base/math/rk_kl.h"

#include <math.h>
#include <string.h>

#include "base/rk_assert.h"

#define EXPONENT_MAX 20.0
#define K3_MAX       10.0

static const struct {
    const char *name;
    rk_kl_type_t type;
} names[] = {
#define ROW(id, name) {name, RK_KL_##id},
    RK_KL_NAME_TABLE(ROW)
#undef ROW
};

struct rk_status *rk_kl_type_parse(const char *key, const char *text, rk_kl_type_t *type,
                                   bool *straight_through)
{
    size_t bytes = strlen(text);
    bool has_plus = bytes > 0 && text[bytes - 1] == '+';

    if (has_plus)
        bytes--;
    for (size_t i = 0; i < RK_ARRAY_LEN(names); i++) {
        if (strlen(names[i].name) == bytes && memcmp(names[i].name, text, bytes) == 0) {
            *type = names[i].type;
            *straight_through = has_plus;
            return NULL;
        }
    }
    return RK_FAIL(RK_INVALID_ARGUMENT, "%s: expected one of %s, got \"%s\"", key, RK_KL_CHOICES, text);
}

bool rk_topk_divergence_parse(const char *text, rk_topk_divergence_t *divergence)
{
    static const char *const texts[RK_TOPK_DIVERGENCE_COUNT] = {
#define NAME(id, name) [RK_TOPK_##id] = name,
        RK_TOPK_TABLE(NAME)
#undef NAME
    };

    for (int i = 0; i < RK_TOPK_DIVERGENCE_COUNT; i++) {
        if (strcmp(texts[i], text) != 0)
            continue;
        *divergence = (rk_topk_divergence_t)i;
        return true;
    }
    return false;
}

/* NaN stays NaN. */
static double clamp(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x;
}

static void estimate_k3(double x, double *value, double *grad)
{
    double y = clamp(-x, -EXPONENT_MAX, EXPONENT_MAX);
    double raw = exp(y) - y - 1.0;
    bool is_clamped = fabs(x) > EXPONENT_MAX || raw > K3_MAX;

    *value = clamp(raw, -K3_MAX, K3_MAX);
    *grad = is_clamped ? 0.0 : 1.0 - exp(-x);
}

void rk_kl_estimate(rk_kl_type_t type, bool straight_through, double log_prob, double ref, double *value,
                    double *grad)
{
    double x = log_prob - ref;

    switch (type) {
    case RK_KL_K1:
        *value = x;
        *grad = 1.0;
        break;
    case RK_KL_ABS:
        *value = fabs(x);
        *grad = (double)((x > 0.0) - (x < 0.0));
        break;
    case RK_KL_K2:
        *value = 0.5 * x * x;
        *grad = x;
        break;
    case RK_KL_K3:
        estimate_k3(x, value, grad);
        break;
    case RK_KL_COUNT:
        RK_ASSERT(!"not an estimator");
    }
    if (straight_through)
        *grad = x;
}
