/* The probable cause of a difference between two layouts. Each kind of parallelism has its own sums, and
 * determines which rows differ: rules from the most specific to the least. */
#include "cmd/verify/verify.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

/* The rows of a role that disagree, counted. */
struct finding {
    const struct rk_verify_rows *rows;
    const char *role;
    const struct rk_verify_layout *layout;
    const struct rk_verify_measure *measure;
    int64_t num_bad[RK_VERIFY_KIND_COUNT], num_good[RK_VERIFY_KIND_COUNT];
    int64_t num_norms, num_embeddings, num_kv; /* bad gradients of these */
    bool is_rollout_bad;                       /* its log-probs */
    double ratio_min, ratio_max;               /* of bad gradients to the expected ones */
};

static bool is_norm(const struct rk_verify_row *row)
{
    return row->is_vector &&
           (strstr(row->name, "norm") || strstr(row->name, "o_proj") || strstr(row->name, "down_proj"));
}

static bool is_embedding(const struct rk_verify_row *row)
{
    return strstr(row->name, "embed_tokens") || strstr(row->name, "lm_head");
}

static bool is_kv(const struct rk_verify_row *row)
{
    return strstr(row->name, "k_proj") || strstr(row->name, "v_proj");
}

static void count_gradient(struct finding *f, const struct rk_verify_row *row)
{
    double ratio = row->difference.product / row->difference.expected_squares;

    f->num_norms += is_norm(row);
    f->num_embeddings += is_embedding(row);
    f->num_kv += is_kv(row);
    f->ratio_min = fmin(f->ratio_min, isfinite(ratio) ? ratio : -INFINITY);
    f->ratio_max = fmax(f->ratio_max, isfinite(ratio) ? ratio : INFINITY);
}

static void count_rows(struct finding *f)
{
    f->ratio_min = INFINITY;
    f->ratio_max = -INFINITY;
    for (int64_t i = 0; i < f->rows->items.count; i++) {
        const struct rk_verify_row *row = &f->rows->items.items[i];
        bool is_rollout = strcmp(row->role, "rollout") == 0;

        f->is_rollout_bad = f->is_rollout_bad || (is_rollout && !row->agrees);
        if (strcmp(row->role, f->role) != 0)
            continue;
        if (row->agrees)
            f->num_good[row->kind]++;
        else
            f->num_bad[row->kind]++;
        if (row->kind == RK_VERIFY_GRADIENT && !row->agrees)
            count_gradient(f, row);
    }
}

static int32_t size_of(const struct finding *f, rk_axis_t axis)
{
    return rk_mesh_axis_size(f->layout->mesh, axis);
}

static const struct parallelism {
    rk_axis_t axis;
    const char *name, *what;
} parallelisms[] = {
    {RK_AXIS_TP, "tensor_parallel", "tensor parallelism (tp)"},
    {RK_AXIS_CP, "context_parallel", "context parallelism (cp)"},
    {RK_AXIS_PP, "pipeline_parallel", "the pipeline (pp)"},
    {RK_AXIS_DP, "data_parallel", "data parallelism (dp)"},
    {RK_AXIS_EP, "expert_parallel", "expert parallelism (ep)"},
};

/* The only axis of these that the layout has; NULL: none, or several. */
static const struct parallelism *find_only(const struct finding *f, uint32_t axes)
{
    const struct parallelism *only = NULL;

    for (size_t i = 0; i < RK_ARRAY_LEN(parallelisms); i++) {
        if (!(axes & RK_AXIS_BIT(parallelisms[i].axis)) || size_of(f, parallelisms[i].axis) == 1)
            continue;
        if (only)
            return NULL;
        only = &parallelisms[i];
    }
    return only;
}

/* --- where --- */

/* Whether the shard has a part in the row's error. */
static bool is_odd_shard(const struct finding *f, const struct rk_verify_row *row, int32_t shard)
{
    double error = row->shard_errors[shard];

    if (f->measure->by_mean_square)
        return error > 0.5 * row->difference.error_max || isinf(error);
    return error > f->measure->tolerance * row->scale;
}

/* The coordinates that all shards with errors in gradients have in common: axis[a] is -1 where they differ.
 */
static bool find_place(const struct finding *f, struct rk_mesh_coords *place)
{
    struct rk_mesh_spec spec = rk_mesh_get_spec(f->layout->mesh);
    bool has_any = false;

    for (int64_t i = 0; i < f->rows->items.count; i++) {
        const struct rk_verify_row *row = &f->rows->items.items[i];

        if (row->agrees || row->kind != RK_VERIFY_GRADIENT || strcmp(row->role, f->role) != 0)
            continue;
        for (int32_t shard = 0; shard < spec.num_ranks; shard++) {
            struct rk_mesh_coords coords;

            if (!is_odd_shard(f, row, shard))
                continue;
            (void)rk_mesh_find_coords(f->layout->mesh, spec.ranks[shard], &coords);
            for (int a = 0; has_any && a < RK_AXIS_COUNT; a++)
                coords.axis[a] = coords.axis[a] == place->axis[a] ? coords.axis[a] : -1;
            *place = coords;
            has_any = true;
        }
    }
    return has_any;
}

/* The errors are on ranks with one coordinate of an axis of several ranks. Copies are written by the first tp
 * rank alone, so tp gives no information about vectors. */
static const char *tell_place(struct rk_str *out, const struct finding *f)
{
    static const rk_axis_t axes[] = {RK_AXIS_PP, RK_AXIS_TP, RK_AXIS_CP, RK_AXIS_DP};
    bool has_matrix = f->num_bad[RK_VERIFY_GRADIENT] > f->num_norms;
    struct rk_mesh_coords place;
    int num_known = 0, num_axes = 0;

    if (!find_place(f, &place))
        return NULL;
    for (size_t i = 0; i < RK_ARRAY_LEN(axes); i++) {
        bool counts = size_of(f, axes[i]) > 1 && (axes[i] != RK_AXIS_TP || has_matrix);

        num_axes += counts;
        if (!counts || place.axis[axes[i]] < 0)
            continue;
        rk_str_appendf(out, "%s%s %d", num_known ? ", " : "All differences are in the part of ",
                       rk_axis_name(axes[i]), place.axis[axes[i]]);
        num_known++;
    }
    if (num_known == 0)
        return NULL;
    rk_str_append(out,
                  num_known == num_axes ? ": one rank, whose device, memory or link may be broken. " : ". ");
    return num_known == num_axes ? "rank" : NULL;
}

/* --- what --- */

static const char *tell_forward(struct rk_str *out, const struct finding *f)
{
    const uint32_t axes = RK_AXIS_BIT(RK_AXIS_TP) | RK_AXIS_BIT(RK_AXIS_CP) | RK_AXIS_BIT(RK_AXIS_PP);
    const struct parallelism *only = find_only(f, axes);

    rk_str_append(out, "The forward pass already differs, before any gradient. ");
    if (size_of(f, RK_AXIS_TP) * size_of(f, RK_AXIS_CP) * size_of(f, RK_AXIS_PP) == 1) {
        rk_str_append(out, "The layout has no tp, cp or pp: check how rows are packed into micro-batches. ");
        return "micro_batches";
    }
    if (only) {
        rk_str_appendf(out, "The layout divides it only by %s. ", only->what);
        return only->name;
    }
    rk_str_append(out, "Verify layouts with only tp, cp or pp to find which one. ");
    return NULL;
}

static bool is_near(double a, double b)
{
    return fabs(a - b) <= 1e-2 * fabs(b);
}

/* All gradients are the expected ones times the same factor, the size of a group or its inverse. */
static const char *tell_factor(struct rk_str *out, const struct finding *f)
{
    if (f->num_good[RK_VERIFY_GRADIENT] > 0 || !is_near(f->ratio_min, f->ratio_max) ||
        is_near(f->ratio_max, 1))
        return NULL;
    for (size_t i = 0; i < RK_ARRAY_LEN(parallelisms); i++) {
        double size = size_of(f, parallelisms[i].axis);

        if (size == 1 || (!is_near(f->ratio_max, size) && !is_near(f->ratio_max, 1 / size)))
            continue;
        rk_str_appendf(out, "Every gradient is %.4g times the expected one, as from a sum or mean over %s. ",
                       f->ratio_max, parallelisms[i].what);
        return parallelisms[i].name;
    }
    return NULL;
}

/* Only some kinds of tensors differ. */
static const char *tell_kind(struct rk_str *out, const struct finding *f)
{
    int64_t num_bad = f->num_bad[RK_VERIFY_GRADIENT];
    int32_t tp = size_of(f, RK_AXIS_TP), pp = size_of(f, RK_AXIS_PP);

    if (num_bad == f->num_norms && tp > 1) {
        rk_str_appendf(out,
                       "Only norms and biases that every tp rank holds differ: their gradients are sums "
                       "over tp%s. ",
                       f->layout->sequence_parallel ? ", since each rank sees some of the tokens" : "");
        return f->layout->sequence_parallel ? "sequence_parallel" : "tensor_parallel";
    }
    if (num_bad == f->num_embeddings && f->layout->is_tied && pp > 1) {
        rk_str_append(out,
                      "Only the embedding differs, which the first and the last stage share: its gradient "
                      "is the sum of both. ");
        return "pipeline_parallel";
    }
    if (num_bad == f->num_embeddings && tp > 1) {
        rk_str_append(out, "Only the embedding or the head differs, which tp divides by the vocabulary. ");
        return "tensor_parallel";
    }
    if (num_bad == f->num_kv && f->layout->num_kv_heads > 0 && tp > f->layout->num_kv_heads) {
        rk_str_append(out,
                      "Only keys and values differ: tp ranks that hold the same key-value head have to add "
                      "up its gradient. ");
        return "tensor_parallel";
    }
    return NULL;
}

static const char *tell_gradients(struct rk_str *out, const struct finding *f)
{
    const uint32_t all =
        RK_AXIS_BIT(RK_AXIS_TP) | RK_AXIS_BIT(RK_AXIS_CP) | RK_AXIS_BIT(RK_AXIS_PP) | RK_AXIS_BIT(RK_AXIS_DP);
    const struct parallelism *only = find_only(f, all);
    const char *cause = tell_kind(out, f);
    const char *rank;

    if (!cause)
        cause = tell_factor(out, f);
    rank = tell_place(out, f);
    if (!cause && rank)
        return rank;
    if (!cause && only) {
        rk_str_appendf(out, "The layout has only %s. ", only->what);
        return only->name;
    }
    return cause;
}

static const char *tell_parameters(struct rk_str *out, const struct finding *f)
{
    int32_t replicas = size_of(f, RK_AXIS_DP) * size_of(f, RK_AXIS_CP);

    rk_str_append(out, "Gradients agree, but the parameters after the optimizer step do not");
    if (replicas == 1) {
        rk_str_append(out, ". ");
        return "optimizer";
    }
    rk_str_append(out, ": its state is divided over dp and cp, and the new parameters are gathered there. ");
    return "data_parallel";
}

static const char *tell(struct rk_str *out, const struct finding *f)
{
    if (f->num_bad[RK_VERIFY_OUTPUT] > 0)
        return tell_forward(out, f);
    if (f->num_bad[RK_VERIFY_GRADIENT] > 0)
        return tell_gradients(out, f);
    if (f->num_bad[RK_VERIFY_PARAMETER] > 0)
        return tell_parameters(out, f);
    if (f->num_bad[RK_VERIFY_METRIC] > 0) {
        rk_str_append(
            out, "All tensors agree, but a metric that is a sum over them does not: check values that count "
                 "more than once, or not at all. ");
        return NULL;
    }
    if (f->is_rollout_bad) {
        rk_str_append(out,
                      "Only the log-probs of generation differ: the rollout's weights, cache or layout. ");
        return "rollout";
    }
    return NULL;
}

const char *rk_verify_find_cause(struct rk_str *out, const struct rk_verify_rows *rows, const char *role,
                                 const struct rk_verify_layout *layout,
                                 const struct rk_verify_measure *measure)
{
    struct finding f = {.rows = rows, .role = role, .layout = layout, .measure = measure};

    count_rows(&f);
    return tell(out, &f);
}
