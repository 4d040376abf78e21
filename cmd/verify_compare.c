/* The rows of a comparison: the results of both layouts, and the contents of their checkpoints. */
#include "cmd/verify_run_internal.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/format/rk_ckpt_dir.h"
#include "base/config/rk_knobs.h"
#include "rl/rk_job.h"
#include "proto/rk_methods.h"

/* --- outputs --- */

static void add_output(struct rk_verify_rows *rows, const char *role, const char *name,
                       const struct rk_column *actual, const struct rk_column *expected)
{
    struct rk_verify_row *row = rk_verify_rows_add(rows, RK_VERIFY_OUTPUT, role, name);
    int64_t count = (int64_t)(rk_column_bytes(expected) / sizeof(float));
    const float *left = rk_column_values(actual), *right = rk_column_values(expected);

    if (rk_column_bytes(actual) != rk_column_bytes(expected)) {
        row->difference.has_nan = true;
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        double a = left[i], b = right[i];

        rk_difference_add(&row->difference, &a, &b, 1);
    }
}

void rk_verification_compare_outputs(struct rk_verification *v)
{
    const struct rk_batch *actual = v->layout.flow.batch, *expected = v->reference.flow.batch;

    for (const struct rk_flow_output *output = rk_flow_outputs; output->name; output++) {
        const struct rk_column *left = rk_batch_find(actual, output->name);
        const struct rk_column *right = rk_batch_find(expected, output->name);

        if (left && right && output->role)
            add_output(&v->report.rows, output->role, output->name, left, right);
    }
    if (rk_batch_find(actual, "rollout_log_probs"))
        add_output(&v->report.rows, "rollout", "rollout_log_probs",
                   rk_batch_find(actual, "rollout_log_probs"), rk_batch_find(expected, "old_log_probs"));
}

/* --- metrics, gradients, parameters --- */

static double metric_of(const struct rk_verify_side *side, const char *name)
{
    return rk_json_as_real(rk_json_find(side->flow.metrics, name), NAN);
}

/* Metrics that are sums over the batch and the model; others measure time, memory, or noise. */
static bool is_compared(const char *name)
{
    return strchr(name, '/') && (rk_str_has_suffix(name, "loss") || rk_str_has_suffix(name, "/grad_norm"));
}

static const char *role_of(const char *metric)
{
    return rk_str_has_prefix(metric, "critic/") ? "critic" : "actor";
}

static void compare_metrics(struct rk_verification *v)
{
    const struct rk_json *metrics = v->reference.flow.metrics;

    for (void *it = rk_json_iter(metrics); it; it = rk_json_iter_next(metrics, it)) {
        const char *name = rk_json_iter_key(it);
        double actual = metric_of(&v->layout, name), expected = metric_of(&v->reference, name);
        struct rk_verify_row *row;

        if (!is_compared(name))
            continue;
        row = rk_verify_rows_add(&v->report.rows, RK_VERIFY_METRIC, role_of(name), name);
        rk_difference_add(&row->difference, &actual, &expected, 1);
    }
}

/* The factor by which the side clipped gradients. */
static double clip_scale(const struct rk_verify_side *side, const char *section, const char *role)
{
    char *key = rk_format("%soptim.clip_grad", section), *name = rk_format("%s/grad_norm", role);
    double clip = rk_config_real(side->job, key), norm = metric_of(side, name);

    if (isnan(norm)) /* of flows that do not generate */
        norm = metric_of(side, "train/grad_norm");
    rk_free(key);
    rk_free(name);
    return clip > 0 && norm > 0 ? fmin(1, clip / (norm + 1e-6)) : 1;
}

static double optim_of(const struct rk_verify_side *side, const char *section, const char *name)
{
    char *key = rk_format("%soptim.%s", section, name);
    double value = rk_config_real(side->job, key);

    rk_free(key);
    return value;
}

static struct rk_status *compare_parts(struct rk_verification *v, const struct rk_job_role *role,
                                       struct rk_gathered *parts[2])
{
    const struct rk_verify_side *sides[2] = {&v->layout, &v->reference};
    const struct rk_verify_step step = {
        .lr = optim_of(&v->layout, role->section, "lr"),
        .eps = optim_of(&v->layout, role->section, "eps"),
        .actual_scale = clip_scale(&v->layout, role->section, role->name),
        .expected_scale = clip_scale(&v->reference, role->section, role->name),
    };

    for (int i = 0; i < 2; i++) {
        char *part = rk_format("%s/global_step_1/%s", sides[i]->dir, role->name);
        struct rk_status *st = rk_gathered_open(&parts[i], part);

        rk_free(part);
        if (st)
            return st;
    }
    return rk_verify_compare(&v->report.rows, role->name, parts[0], parts[1], &step);
}

static struct rk_status *compare_roles(struct rk_verification *v)
{
    int64_t num_roles;
    const struct rk_job_role *roles = rk_job_roles(&num_roles);
    struct rk_status *st = NULL;

    for (int64_t i = 0; i < num_roles && !st; i++) {
        struct rk_gathered *parts[2] = {NULL, NULL};

        if (!roles[i].trains || !rk_job_role_needed(v->layout.job, roles[i].bit))
            continue;
        st = compare_parts(v, &roles[i], parts);
        rk_gathered_close(parts[0]);
        rk_gathered_close(parts[1]);
    }
    return st;
}

/* The columns of all teachers are compared as the first one's. */
static uint32_t role_bit(const struct rk_verification *v, const char *role)
{
    uint32_t bit = rk_role_parse(role);

    return bit & RK_ROLE_TEACHERS ? rk_job_teachers(v->layout.job).items[0]->bit : bit;
}

static void find_cause(struct rk_verification *v)
{
    const struct rk_verify_row *first = rk_verify_first(&v->report.rows);
    const char *role = first && strcmp(first->role, "rollout") != 0 ? first->role : "actor";
    const struct rk_json *config = v->inputs.hf_config;
    uint32_t bit = role_bit(v, role);
    char *own = rk_format("%s" RK_KNOB_SEQUENCE_PARALLEL, rk_job_role(bit)->section);
    const struct rk_verify_layout layout = {
        .mesh = rk_job_meshes_find(&v->layout.flow.meshes, bit),
        .sequence_parallel = rk_job_bool_or(
            v->layout.job, own, rk_config_bool(v->layout.job, RK_JOB_ACTOR RK_KNOB_SEQUENCE_PARALLEL)),
        .is_tied = rk_json_as_bool(rk_json_find(config, "tie_word_embeddings"), false),
        .num_kv_heads = rk_json_as_int(rk_json_find(config, "num_key_value_heads"), 0),
    };

    rk_free(own);
    if (first)
        v->report.cause =
            rk_verify_find_cause(&v->report.advice, &v->report.rows, role, &layout, &v->report.measure);
}

struct rk_status *rk_verification_compare(struct rk_verification *v)
{
    compare_metrics(v);
    RK_TRY(compare_roles(v));
    rk_verify_judge(&v->report.rows, &v->report.measure);
    find_cause(v);
    return NULL;
}
