/* The layer table of a pipeline. The options of struct rk_pipeline_spec only say how many layers each
 * (stage, chunk) has; the offsets follow by walking the positions in the order in which a micro-batch passes
 * them, so tables neither overlap nor miss a layer. */
#include "base/layout/rk_pipeline.h"

#include <stdlib.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

struct rk_pipeline {
    int32_t num_layers, pp, vpp;
    struct rk_pipeline_chunk *chunks;   /* [pp * vpp], chunk c of stage s at [s * vpp + c] */
    struct rk_pipeline_place *of_layer; /* [num_layers] */
};

/* Layers of each chunk, by the kind of its stage. */
struct split {
    int32_t first, middle, last;
};

static int32_t at_least_one(int32_t size)
{
    return size > 1 ? size : 1;
}

static struct rk_status *check_range(const char *name, int32_t value, int32_t min, int32_t max)
{
    if (value < min || value > max)
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s=%d is not in %d..%d", name, value, min, max);
    return NULL;
}

static struct rk_status *check_sizes(int32_t num_layers, int32_t pp, int32_t vpp)
{
    RK_TRY(check_range("num_layers", num_layers, 1, RK_PIPELINE_MAX_LAYERS));
    RK_TRY(check_range("pp", pp, 0, RK_PIPELINE_MAX_STAGES));
    return check_range("vpp", vpp, 0, RK_PIPELINE_MAX_CHUNKS);
}

/* Unequal ends: `first` and `last` layers are given, the stages between share the rest. */
static bool split_ends(const struct rk_pipeline_spec *spec, struct split *split)
{
    int32_t pp = at_least_one(spec->pp), vpp = at_least_one(spec->vpp);
    int32_t first = spec->num_layers_in_first_pipeline_stage, last = spec->num_layers_in_last_pipeline_stage;
    int32_t num_middle = pp - (first > 0) - (last > 0);
    int64_t rest = (int64_t)spec->num_layers - first - last;

    if (pp == 1 || rest < 0 || first % vpp || last % vpp)
        return false;
    if (num_middle == 0 ? rest != 0 : rest == 0 || rest % ((int64_t)num_middle * vpp))
        return false;
    split->middle = num_middle ? (int32_t)(rest / num_middle / vpp) : 0;
    split->first = first ? first / vpp : split->middle;
    split->last = last ? last / vpp : split->middle;
    return true;
}

/* An even split, of the layers and of what counts as one. */
static bool split_even(const struct rk_pipeline_spec *spec, struct split *split)
{
    int64_t positions = (int64_t)at_least_one(spec->pp) * at_least_one(spec->vpp);
    int64_t counted = (int64_t)spec->num_layers + spec->account_for_embedding_in_pipeline_split +
                      spec->account_for_loss_in_pipeline_split;

    if (counted % positions)
        return false;
    split->first = split->middle = split->last = (int32_t)(counted / positions);
    return true;
}

static bool has_ends(const struct rk_pipeline_spec *spec)
{
    return spec->num_layers_in_first_pipeline_stage || spec->num_layers_in_last_pipeline_stage;
}

static bool has_accounts(const struct rk_pipeline_spec *spec)
{
    return spec->account_for_embedding_in_pipeline_split || spec->account_for_loss_in_pipeline_split;
}

/* Layers per chunk; false when the sizes do not divide. */
static bool split_layers(const struct rk_pipeline_spec *spec, struct split *split)
{
    if (at_least_one(spec->vpp) > 1 && at_least_one(spec->pp) == 1)
        return false;
    if (has_ends(spec))
        return !has_accounts(spec) && split_ends(spec, split);
    return split_even(spec, split);
}

/* The even split or else the last stage's layer count, nearest to even and rather below, that fits pp and
 * vpp as they are. */
static bool fit_last_stage(struct rk_pipeline_spec *fit)
{
    struct split split;
    int64_t best = INT64_MAX;
    int32_t best_last = 0;

    if (split_layers(fit, &split))
        return true;
    for (int32_t last = fit->vpp; last < fit->num_layers; last += fit->vpp) {
        int64_t distance = llabs((int64_t)last * fit->pp - fit->num_layers);

        fit->num_layers_in_last_pipeline_stage = last;
        if (distance < best && split_layers(fit, &split)) {
            best = distance;
            best_last = last;
        }
    }
    fit->num_layers_in_last_pipeline_stage = best_last;
    return best_last > 0;
}

bool rk_pipeline_nearest(const struct rk_pipeline_spec *spec, struct rk_pipeline_spec *nearest)
{
    int32_t pp = at_least_one(spec->pp);

    *nearest = *spec;
    if (spec->num_layers < 1)
        return false;
    pp = pp < spec->num_layers ? pp : spec->num_layers;
    for (int32_t vpp = pp > 1 ? at_least_one(spec->vpp) : 1; vpp >= 1; vpp--) {
        *nearest = (struct rk_pipeline_spec){.num_layers = spec->num_layers, .pp = pp, .vpp = vpp};
        if (fit_last_stage(nearest))
            return true;
    }
    return false;
}

static void append_spec(struct rk_str *text, const struct rk_pipeline_spec *spec)
{
    rk_str_appendf(text, "pp=%d", at_least_one(spec->pp));
    if (at_least_one(spec->vpp) > 1)
        rk_str_appendf(text, " vpp=%d", spec->vpp);
    if (spec->num_layers_in_first_pipeline_stage)
        rk_str_appendf(text, " num_layers_in_first_pipeline_stage=%d",
                       spec->num_layers_in_first_pipeline_stage);
    if (spec->num_layers_in_last_pipeline_stage)
        rk_str_appendf(text, " num_layers_in_last_pipeline_stage=%d",
                       spec->num_layers_in_last_pipeline_stage);
    if (spec->account_for_embedding_in_pipeline_split)
        rk_str_append(text, " account_for_embedding_in_pipeline_split");
    if (spec->account_for_loss_in_pipeline_split)
        rk_str_append(text, " account_for_loss_in_pipeline_split");
}

static const char *reason_of(const struct rk_pipeline_spec *spec)
{
    if (at_least_one(spec->vpp) > 1 && at_least_one(spec->pp) == 1)
        return "chunks (vpp > 1) need pp > 1";
    if (has_ends(spec) && has_accounts(spec))
        return "layer counts of the first or last stage exclude the account_for_* options";
    if (has_ends(spec) && at_least_one(spec->pp) == 1)
        return "layer counts of the first or last stage need pp > 1";
    if (has_ends(spec))
        return "the first and the last stage's layers must be divisible by vpp, and the other layers by the "
               "number of the other stages times vpp";
    if (has_accounts(spec))
        return "the layers, the embedding or the loss counted as one each, must be divisible by pp times vpp";
    return "the layers must be divisible by pp times vpp";
}

static struct rk_status *refuse(const struct rk_pipeline_spec *spec, const char *reason)
{
    struct rk_pipeline_spec nearest;
    struct rk_str asked = {0}, advice = {0};
    struct rk_status *st;

    append_spec(&asked, spec);
    if (rk_pipeline_nearest(spec, &nearest))
        append_spec(&advice, &nearest);
    st = RK_FAIL(RK_INVALID_ARGUMENT, "%d layers do not fit a pipeline of %s: %s; nearest layout: %s",
                 spec->num_layers, rk_str_text(&asked), reason, rk_str_text(&advice));
    rk_str_fini(&asked);
    rk_str_fini(&advice);
    return st;
}

static struct rk_pipeline *new_pipeline(int32_t num_layers, int32_t pp, int32_t vpp)
{
    struct rk_pipeline *pipeline = rk_calloc(1, sizeof(*pipeline));

    pipeline->num_layers = num_layers;
    pipeline->pp = pp;
    pipeline->vpp = vpp;
    pipeline->chunks = rk_calloc((size_t)pp * (size_t)vpp, sizeof(*pipeline->chunks));
    pipeline->of_layer = rk_calloc((size_t)num_layers, sizeof(*pipeline->of_layer));
    return pipeline;
}

static struct rk_pipeline_chunk *chunk_at(const struct rk_pipeline *pipeline, int32_t stage, int32_t chunk)
{
    RK_ASSERT(stage >= 0 && stage < pipeline->pp);
    RK_ASSERT(chunk >= 0 && chunk < pipeline->vpp);
    return &pipeline->chunks[(int64_t)stage * pipeline->vpp + chunk];
}

/* Checks that the chunks are consecutive in the order of positions, and derives the other fields. */
static struct rk_status *index_layers(struct rk_pipeline *pipeline)
{
    int32_t next = 0;

    for (int32_t position = 0; position < pipeline->pp * pipeline->vpp; position++) {
        struct rk_pipeline_place place = {position % pipeline->pp, position / pipeline->pp};
        struct rk_pipeline_chunk *chunk = chunk_at(pipeline, place.stage, place.chunk);

        if (chunk->layer_begin != next || chunk->layer_end < next || chunk->layer_end > pipeline->num_layers)
            return RK_FAIL(RK_INVALID_ARGUMENT,
                           "pipeline layout: chunk %d of stage %d has layers [%d, %d), expected [%d, n) with "
                           "n <= %d layers",
                           place.chunk, place.stage, chunk->layer_begin, chunk->layer_end, next,
                           pipeline->num_layers);
        for (; next < chunk->layer_end; next++)
            pipeline->of_layer[next] = place;
        chunk->has_embed = position == 0;
        chunk->has_head = position == pipeline->pp * pipeline->vpp - 1;
    }
    if (next != pipeline->num_layers)
        return RK_FAIL(RK_INVALID_ARGUMENT, "pipeline layout ends at layer %d of %d", next,
                       pipeline->num_layers);
    return NULL;
}

/* Assigns the layers of every chunk; false when one that must not be empty is empty. */
static bool fill_chunks(struct rk_pipeline *pipeline, const struct rk_pipeline_spec *spec,
                        const struct split *split)
{
    int32_t next = 0, num_positions = pipeline->pp * pipeline->vpp;

    for (int32_t position = 0; position < num_positions; position++) {
        int32_t stage = position % pipeline->pp;
        struct rk_pipeline_chunk *chunk = chunk_at(pipeline, stage, position / pipeline->pp);
        int32_t others = (position == 0 && spec->account_for_embedding_in_pipeline_split) +
                         (position == num_positions - 1 && spec->account_for_loss_in_pipeline_split);
        int32_t count = stage == 0 ? split->first : stage == pipeline->pp - 1 ? split->last : split->middle;

        count -= others;
        if (count < 0 || (count == 0 && others == 0))
            return false;
        chunk->layer_begin = next;
        chunk->layer_end = next += count;
    }
    return true;
}

struct rk_status *rk_pipeline_create(struct rk_pipeline **out, const struct rk_pipeline_spec *spec)
{
    struct rk_pipeline *pipeline;
    struct rk_status *st = NULL;
    struct split split = {0};

    *out = NULL;
    RK_TRY(check_sizes(spec->num_layers, spec->pp, spec->vpp));
    RK_TRY(check_range("num_layers_in_first_pipeline_stage", spec->num_layers_in_first_pipeline_stage, 0,
                       spec->num_layers));
    RK_TRY(check_range("num_layers_in_last_pipeline_stage", spec->num_layers_in_last_pipeline_stage, 0,
                       spec->num_layers));
    if (!split_layers(spec, &split))
        return refuse(spec, reason_of(spec));
    pipeline = new_pipeline(spec->num_layers, at_least_one(spec->pp), at_least_one(spec->vpp));
    if (fill_chunks(pipeline, spec, &split))
        st = index_layers(pipeline);
    else
        st = refuse(spec, "every chunk of every stage needs at least one layer");
    if (st)
        rk_pipeline_destroy(pipeline);
    else
        *out = pipeline;
    return st;
}

struct rk_status *rk_pipeline_create_explicit(struct rk_pipeline **out, int32_t num_layers, int32_t pp,
                                              int32_t vpp, const struct rk_pipeline_chunk *chunks)
{
    struct rk_pipeline *pipeline;
    struct rk_status *st;

    *out = NULL;
    RK_TRY(check_sizes(num_layers, pp, vpp));
    pipeline = new_pipeline(num_layers, at_least_one(pp), at_least_one(vpp));
    for (int64_t i = 0; i < (int64_t)pipeline->pp * pipeline->vpp; i++)
        pipeline->chunks[i] = chunks[i];
    st = index_layers(pipeline);
    if (st)
        rk_pipeline_destroy(pipeline);
    else
        *out = pipeline;
    return st;
}

void rk_pipeline_destroy(struct rk_pipeline *pipeline)
{
    if (!pipeline)
        return;
    rk_free(pipeline->chunks);
    rk_free(pipeline->of_layer);
    rk_free(pipeline);
}

int32_t rk_pipeline_num_layers(const struct rk_pipeline *pipeline)
{
    return pipeline->num_layers;
}

int32_t rk_pipeline_num_stages(const struct rk_pipeline *pipeline)
{
    return pipeline->pp;
}

int32_t rk_pipeline_num_chunks(const struct rk_pipeline *pipeline)
{
    return pipeline->vpp;
}

struct rk_pipeline_chunk rk_pipeline_get_chunk(const struct rk_pipeline *pipeline, int32_t stage,
                                               int32_t chunk)
{
    return *chunk_at(pipeline, stage, chunk);
}

int32_t rk_pipeline_num_stage_layers(const struct rk_pipeline *pipeline, int32_t stage)
{
    int32_t sum = 0;

    for (int32_t chunk = 0; chunk < pipeline->vpp; chunk++) {
        const struct rk_pipeline_chunk *at = chunk_at(pipeline, stage, chunk);

        sum += at->layer_end - at->layer_begin;
    }
    return sum;
}

struct rk_pipeline_place rk_pipeline_find_layer(const struct rk_pipeline *pipeline, int32_t layer)
{
    RK_ASSERT(layer >= 0);
    RK_ASSERT(layer < pipeline->num_layers);
    return pipeline->of_layer[layer];
}
