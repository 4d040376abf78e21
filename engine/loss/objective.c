/* Objectives: the sum of the rows of the loss table that options ask for.
 *
 *   policy   L = sum_t weight[t] * (policy[t] + kl_loss_coef * KL[t] - entropy_coeff * H[t])
 *
 * weight carries the global denominators, so L is a plain sum over tokens, micro-batches and replicas. */
#include "engine/loss/loss_internal.h"

#include "base/rk_assert.h"

struct mode_config {
    RK_LOSS_MODE_KNOBS(RK_KNOB_FIELD, , , )
};

struct agg_config {
    RK_LOSS_AGG_KNOBS(RK_KNOB_FIELD, , , )
};

struct kind {
    const struct rk_knob *mode_knob; /* key that names the loss; NULL: there is only one */
    bool has_agg;                    /* has loss_agg_mode and loss_scale_factor; otherwise uses agg_mode */
    rk_loss_agg_mode_t agg_mode;
};

static const struct rk_knob mode_knobs[] = {RK_LOSS_MODE_KNOBS(RK_KNOB_ROW, struct mode_config, , )};
static const struct rk_knob loss_fn_knobs[] = {RK_LOSS_FN_KNOBS(RK_KNOB_ROW, struct mode_config, , )};
static const struct rk_knob agg_knobs[] = {RK_LOSS_AGG_KNOBS(RK_KNOB_ROW, struct agg_config, , )};

static const struct kind kinds[RK_OBJECTIVE_COUNT] = {
    [RK_OBJECTIVE_POLICY] = {.mode_knob = mode_knobs, .has_agg = true},
    [RK_OBJECTIVE_VALUE] = {.has_agg = true},
    [RK_OBJECTIVE_SFT] = {.agg_mode = RK_AGG_TOKEN_MEAN},
    [RK_OBJECTIVE_DPO] = {.agg_mode = RK_AGG_TOKEN_MEAN}, /* the row divides by the number of pairs */
    [RK_OBJECTIVE_SUM] = {.mode_knob = loss_fn_knobs, .agg_mode = RK_AGG_TOKEN_SUM},
};

static struct rk_status *find_loss(const struct rk_loss **out, rk_objective_kind_t kind,
                                   const struct rk_json *options)
{
    const struct rk_knob *knob = kinds[kind].mode_knob;
    struct mode_config mode;

    if (!knob) {
        *out = rk_loss_next(kind, NULL);
        return NULL;
    }
    RK_TRY(rk_knobs_read(&mode, knob, 1, options));
    *out = rk_loss_find(kind, mode.loss_mode);
    RK_ASSERT(*out); /* the choices of the key are the rows of the table */
    return NULL;
}

static struct rk_status *read_agg(struct rk_objective *out, const struct rk_json *options)
{
    struct agg_config agg;

    if (!kinds[out->kind].has_agg)
        return NULL;
    RK_TRY(rk_knobs_read(&agg, agg_knobs, RK_ARRAY_LEN(agg_knobs), options));
    out->loss_scale_factor = isnan(agg.loss_scale_factor) ? 0.0 : agg.loss_scale_factor;
    return rk_loss_agg_mode_parse("loss_agg_mode", agg.loss_agg_mode, &out->agg_mode);
}

/* Adds the inputs that the update must provide for a term. */
static void add_needs(struct rk_objective *objective, const struct rk_loss_term *term)
{
    const struct rk_loss_ops *ops = term->loss->ops;

    objective->outputs |= ops->outputs;
    objective->differentiated |= ops->outputs & ~(ops->measures ? ops->measures(term->config) : 0);
    objective->columns |= term->loss->columns;
    objective->optional_columns |= term->loss->optional_columns;
    if (!ops->num_ids)
        return;
    RK_ASSERT(objective->num_ids == 0); /* at most one set of ids per position */
    objective->num_ids = ops->num_ids(term->config);
}

static bool is_added(const struct rk_loss_term *term, const struct rk_json *options)
{
    const struct rk_loss *loss = term->loss;

    if (loss->option && !rk_json_as_bool(rk_json_find(options, loss->option), false))
        return false;
    return !loss->ops->is_enabled || loss->ops->is_enabled(term->config);
}

/* Appends the row unless it is a disabled term. */
static struct rk_status *add_term(struct rk_objective *objective, const struct rk_loss *loss,
                                  const struct rk_json *options)
{
    struct rk_loss_term *term = &objective->terms[objective->num_terms];
    const struct rk_loss_ops *ops = loss->ops;

    RK_ASSERT(objective->num_terms < RK_OBJECTIVE_TERMS_MAX);
    *term = (struct rk_loss_term){.loss = loss};
    RK_TRY(rk_knobs_read(term->config, ops->knobs, ops->num_knobs, options));
    if (ops->check)
        RK_TRY(ops->check(term->config));
    if (!is_added(term, options))
        return NULL;
    for (int32_t i = 0; i < ops->num_metrics; i++)
        term->metrics[i] = rk_loss_reduce_start(ops->metrics[i].reduce);
    objective->num_terms++;
    add_needs(objective, term);
    return NULL;
}

/* A term with is_alone set removes the others. */
static void keep_alone(struct rk_objective *objective)
{
    for (int32_t i = 0; i < objective->num_terms; i++) {
        const struct rk_loss_ops *ops = objective->terms[i].loss->ops;

        if (!ops->is_alone || !ops->is_alone(objective->terms[i].config))
            continue;
        objective->terms[0] = objective->terms[i];
        objective->num_terms = 1;
        objective->outputs = objective->differentiated = objective->columns = 0;
        objective->optional_columns = 0;
        objective->num_ids = 0;
        add_needs(objective, &objective->terms[0]);
    }
}

struct rk_status *rk_objective_read(struct rk_objective *out, rk_objective_kind_t kind,
                                    const struct rk_json *options)
{
    const struct rk_loss *term = NULL, *loss;

    *out = (struct rk_objective){.kind = kind, .agg_mode = kinds[kind].agg_mode};
    RK_TRY(find_loss(&loss, kind, options));
    RK_TRY(read_agg(out, options));
    RK_TRY(add_term(out, loss, options));
    while ((term = rk_loss_next(kind, term))) {
        if (term->is_term)
            RK_TRY(add_term(out, term, options));
    }
    keep_alone(out);
    return NULL;
}

void rk_objective_run(struct rk_objective *objective, const struct rk_loss_in *in,
                      const struct rk_head_arrays *grads)
{
    for (int32_t i = 0; i < objective->num_terms; i++) {
        struct rk_loss_term *term = &objective->terms[i];
        struct rk_loss_out out = {.metrics = term->metrics};

        for (int k = 0; k < RK_LOSS_COLUMN_COUNT; k++)
            RK_ASSERT(!(term->loss->columns & RK_LOSS_BIT(k)) || in->num_tokens == 0 || in->columns[k]);
        for (int k = 0; k < RK_HEAD_OUTPUT_COUNT; k++) {
            if (!(term->loss->ops->outputs & RK_HEAD_BIT(k)))
                continue;
            RK_ASSERT(in->num_tokens == 0 || (in->outputs[k] && grads->of[k]));
            out.grads[k] = grads->of[k];
        }
        if (term->loss->ops->num_ids) {
            RK_ASSERT(in->ids.num_ids == objective->num_ids);
            RK_ASSERT(grads->ids.num_ids == objective->num_ids);
            out.id_grads = grads->ids.log_probs;
        }
        term->loss->ops->forward_backward(&out, in, term->config);
    }
}

static double *find_count(struct rk_loss_term *term)
{
    for (int32_t i = 0; i < term->loss->ops->num_metrics; i++) {
        if (term->loss->ops->metrics[i].reduce == RK_LOSS_COUNT)
            return &term->metrics[i];
    }
    return NULL;
}

double *rk_objective_count(struct rk_objective *objective)
{
    double *count = NULL;

    for (int32_t i = 0; !count && i < objective->num_terms; i++)
        count = find_count(&objective->terms[i]);
    return count;
}

void rk_objective_end_mini_batch(struct rk_objective *objective, double num_tokens)
{
    for (int32_t i = 0; i < objective->num_terms; i++) {
        struct rk_loss_term *term = &objective->terms[i];
        double *count = find_count(term);

        if (!count)
            continue;
        for (int32_t k = 0; k < term->loss->ops->num_metrics; k++) {
            if (term->loss->ops->metrics[k].reduce != RK_LOSS_KEPT)
                continue;
            term->kept[k] += *count > 0.0 ? term->metrics[k] * (num_tokens / *count) : 0.0;
            term->metrics[k] = 0.0;
        }
        *count = 0.0;
    }
}

double rk_objective_loss(const struct rk_objective *objective)
{
    double loss = 0.0;

    for (int32_t i = 0; i < objective->num_terms; i++) {
        const struct rk_loss_term *term = &objective->terms[i];

        RK_ASSERT(term->loss->ops->metrics[0].reduce == RK_LOSS_SUM);
        loss += term->metrics[0] *
                (term->loss->ops->coefficient ? term->loss->ops->coefficient(term->config) : 1.0);
    }
    return loss;
}
