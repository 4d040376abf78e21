#include "base/config/rk_knobs.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/config/rk_config_internal.h"

static struct rk_status *read_text(char *out, size_t bytes, const char *key, const char *text)
{
    if (strlen(text) >= bytes)
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s: expected at most %zu bytes, got %zu", key, bytes - 1,
                       strlen(text));
    snprintf(out, bytes, "%s", text);
    return NULL;
}

static struct rk_status *read_pair(double *out, const char *key, const struct rk_json *value)
{
    for (int64_t i = 0; i < 2; i++)
        out[i] = rk_json_as_real(rk_json_at(value, i), NAN);
    if (rk_json_is_null(value))
        return NULL;
    if (rk_json_count(value) == 2 && isfinite(out[0]) && isfinite(out[1]))
        return NULL;
    return RK_FAIL(RK_INVALID_ARGUMENT, "%s: expected two numbers", key);
}

/* A value that the row allows, null included. */
static struct rk_status *read_value(void *out, const struct rk_knob *knob, const struct rk_json *value)
{
    void *field = (char *)out + knob->offset;

    switch (knob->type) {
    case RK_KNOB_BOOL:
        *(bool *)field = rk_json_as_bool(value, false);
        return NULL;
    case RK_KNOB_INT:
        *(int64_t *)field = rk_json_as_int(value, 0);
        return NULL;
    case RK_KNOB_INT32:
        *(int32_t *)field = (int32_t)rk_json_as_int(value, 0);
        return NULL;
    case RK_KNOB_REAL:
        *(double *)field = rk_json_as_real(value, NAN);
        return NULL;
    case RK_KNOB_STRING:
        return read_text(field, RK_KNOB_TEXT_BYTES, knob->key.path, rk_json_as_string(value, ""));
    case RK_KNOB_TEXT:
        return read_text(field, RK_KNOB_LONG_TEXT_BYTES, knob->key.path, rk_json_as_string(value, ""));
    case RK_KNOB_PAIR:
        return read_pair(field, knob->key.path, value);
    }
    RK_ASSERT(!"knob type out of range");
    return NULL;
}

static struct rk_status *read_knob(void *out, const struct rk_knob *knob, const struct rk_json *options)
{
    const struct rk_json *value = rk_json_find(options, knob->key.path);
    char *problem;
    struct rk_status *st;

    if (knob->type == RK_KNOB_INT32) { /* the range keeps it in the field */
        RK_ASSERT(knob->key.min >= INT32_MIN);
        RK_ASSERT(knob->key.max <= INT32_MAX && knob->key.max > knob->key.min);
    }
    problem = rk_config_find_problem(&knob->key, value);
    if (!problem)
        return read_value(out, knob, value);
    st = RK_FAIL(RK_INVALID_ARGUMENT, "%s: %s", knob->key.path, problem);
    rk_free(problem);
    return st;
}

struct rk_status *rk_knobs_read(void *out, const struct rk_knob *knobs, int64_t num_knobs,
                                const struct rk_json *options)
{
    for (int64_t i = 0; i < num_knobs; i++)
        RK_TRY(read_knob(out, &knobs[i], options));
    return NULL;
}
