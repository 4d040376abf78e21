/* Compares the gradients and parameters of two layouts after one step, tensor by tensor, a block of rows at a
 * time. */
#include "cmd/verify/verify.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/format/rk_ckpt_shard.h"
#include "base/rk_str.h"

#define BLOCK_ELEMENTS ((int64_t)1 << 20)

/* A parameter in both checkpoints. */
struct pair {
    const char *name;
    int64_t order; /* of its layer in the model */
    const struct rk_gathered_tensor *gradients[2],
        *values[2];       /* actual, expected; no gradients: not trained */
    int64_t row_index[2]; /* in the report: gradient (-1: none), value */
};

struct comparison {
    const struct rk_gathered *sides[2];
    const struct rk_verify_step *step;
    double *numbers[2][2]; /* [gradient, value][actual, expected] of a block */
    int32_t *owners[2][2]; /* the same: their shards */
    RK_ARRAY(struct pair) pairs;
};

/* --- order --- */

/* The embedding, the layers by number, the tensors after them. */
static int64_t order_of(const char *name)
{
    const char *layer = strstr(name, "layers.");

    if (layer)
        return 1 + strtoll(layer + strlen("layers."), NULL, 10);
    return strstr(name, "embed") ? 0 : INT64_MAX;
}

static int compare_order(const void *a, const void *b)
{
    const struct pair *left = a, *right = b;

    if (left->order != right->order)
        return left->order < right->order ? -1 : 1;
    return strcmp(left->name, right->name);
}

static bool is_alike(const struct rk_gathered_tensor *a, const struct rk_gathered_tensor *b)
{
    return a->rows == b->rows && a->cols == b->cols;
}

static struct rk_status *add_pair(struct comparison *c, const struct rk_gathered_tensor *value)
{
    struct pair pair = {.name = value->name, .order = order_of(value->name)};
    char *gradient = rk_format(RK_CKPT_GRADIENT_PREFIX "%s", value->name);

    for (int side = 0; side < 2; side++) {
        pair.gradients[side] = rk_gathered_find(c->sides[side], gradient);
        pair.values[side] = rk_gathered_find(c->sides[side], value->name);
    }
    rk_free(gradient);
    for (int side = 0; side < 2; side++) {
        if (!pair.values[side] || (!pair.gradients[side] && pair.gradients[1 - side]))
            return RK_FAIL(RK_INTERNAL, "'%s': the %s layout wrote no %s", pair.name,
                           side == 0 ? "job's" : "reference's", pair.values[side] ? "gradient" : "value");
        if (!is_alike(pair.values[side], value) ||
            (pair.gradients[side] && !is_alike(pair.gradients[side], value)))
            return RK_FAIL(RK_INTERNAL, "'%s': its shapes differ between the layouts", pair.name);
    }
    rk_array_append(&c->pairs, pair);
    return NULL;
}

static struct rk_status *list_pairs(struct comparison *c)
{
    for (int64_t i = 0; i < rk_gathered_count(c->sides[1]); i++) {
        const struct rk_gathered_tensor *tensor = rk_gathered_at(c->sides[1], i);

        if (!rk_str_has_prefix(tensor->name, RK_CKPT_GRADIENT_PREFIX))
            RK_TRY(add_pair(c, tensor));
    }
    qsort(c->pairs.items, (size_t)c->pairs.count, sizeof(*c->pairs.items), compare_order);
    return NULL;
}

/* --- blocks --- */

/* The change of a parameter by the step, in units of lr. */
static double move_of(double gradient, double scale, double eps)
{
    double scaled = gradient * scale;

    return scaled == 0 ? 0 : scaled / (fabs(scaled) + eps);
}

/* Corrects the parameters of one side to what the other side's gradients would have given. */
static void take_off_moves(struct comparison *c, int64_t count)
{
    const struct rk_verify_step *step = c->step;

    for (int64_t i = 0; i < count; i++) {
        double actual = move_of(c->numbers[0][0][i], step->actual_scale, step->eps);
        double expected = move_of(c->numbers[0][1][i], step->expected_scale, step->eps);

        if (isfinite(actual) && isfinite(expected)) /* else the gradient's row reports it */
            c->numbers[1][0][i] += step->lr * (actual - expected);
    }
}

static void note_shard_errors(struct rk_verify_row *row, const int32_t *owners, const double *actual,
                              const double *expected, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        double error = fabs(actual[i] - expected[i]), *largest = &row->shard_errors[owners[i]];

        *largest = isfinite(error) ? fmax(*largest, error) : INFINITY;
    }
}

static struct rk_status *compare_block(struct comparison *c, const struct pair *pair, int64_t begin,
                                       int64_t count, struct rk_verify_row *const rows[2])
{
    int64_t elements = count * pair->values[0]->cols;

    for (int side = 0; side < 2; side++) {
        if (rows[0])
            RK_TRY(rk_gathered_read(c->sides[side], pair->gradients[side], begin, count, c->numbers[0][side],
                                    c->owners[0][side]));
        RK_TRY(rk_gathered_read(c->sides[side], pair->values[side], begin, count, c->numbers[1][side],
                                c->owners[1][side]));
    }
    if (rows[0])
        take_off_moves(c, elements);
    for (int kind = rows[0] ? 0 : 1; kind < 2; kind++) {
        rk_difference_add(&rows[kind]->difference, c->numbers[kind][0], c->numbers[kind][1], elements);
        note_shard_errors(rows[kind], c->owners[kind][0], c->numbers[kind][0], c->numbers[kind][1], elements);
    }
    return NULL;
}

static struct rk_status *compare_pair(struct comparison *c, const struct pair *pair,
                                      struct rk_verify_row *const rows[2])
{
    const struct rk_gathered_tensor *tensor = pair->values[0];
    int64_t step = RK_MAX(BLOCK_ELEMENTS / tensor->cols, 1);

    for (int64_t begin = 0; begin < tensor->rows; begin += step)
        RK_TRY(compare_block(c, pair, begin, RK_MIN(step, tensor->rows - begin), rows));
    return NULL;
}

static int64_t largest_block(const struct comparison *c)
{
    int64_t largest = BLOCK_ELEMENTS;

    for (int64_t i = 0; i < c->pairs.count; i++)
        largest = RK_MAX(largest, c->pairs.items[i].values[0]->cols);
    return largest;
}

static void allocate(struct comparison *c)
{
    size_t count = (size_t)largest_block(c);

    for (int kind = 0; kind < 2; kind++) {
        for (int side = 0; side < 2; side++) {
            c->numbers[kind][side] = rk_calloc(count, sizeof(double));
            c->owners[kind][side] = rk_calloc(count, sizeof(int32_t));
        }
    }
}

static void comparison_fini(struct comparison *c)
{
    for (int kind = 0; kind < 2; kind++) {
        for (int side = 0; side < 2; side++) {
            rk_free(c->numbers[kind][side]);
            rk_free(c->owners[kind][side]);
        }
    }
    rk_array_fini(&c->pairs);
}

/* All gradients, then all parameters: in the order in which a step computes them. Returns how many gradients
 * there are. */
static int64_t add_rows(struct comparison *c, struct rk_verify_rows *rows, const char *role)
{
    static const rk_verify_kind_t kinds[2] = {RK_VERIFY_GRADIENT, RK_VERIFY_PARAMETER};
    int64_t num_gradients = 0;

    for (int kind = 0; kind < 2; kind++) {
        for (int64_t i = 0; i < c->pairs.count; i++) {
            struct pair *pair = &c->pairs.items[i];
            struct rk_verify_row *row;

            pair->row_index[kind] = -1;
            if (kind == 0 && !pair->gradients[0])
                continue;
            num_gradients += kind == 0;
            pair->row_index[kind] = rows->items.count;
            row = rk_verify_rows_add(rows, kinds[kind], role, pair->name);
            row->is_vector = pair->values[0]->is_vector;
            row->shard_errors = rk_calloc((size_t)rows->num_shards + 1, sizeof(*row->shard_errors));
        }
    }
    return num_gradients;
}

static struct rk_status *check_not_zero(const struct rk_verify_row *gradients, int64_t count,
                                        const char *role)
{
    for (int64_t i = 0; i < count; i++) {
        if (gradients[i].difference.expected_max > 0 || gradients[i].difference.has_nan)
            return NULL;
    }
    return RK_FAIL(RK_FAILED_PRECONDITION,
                   "role %s: all gradients of the reference are 0; expected gradients to compare", role);
}

static struct rk_status *compare_all(struct comparison *c, struct rk_verify_rows *rows, const char *role)
{
    int64_t first = rows->items.count, num_gradients;

    RK_TRY(list_pairs(c));
    allocate(c);
    num_gradients = add_rows(c, rows, role);
    for (int64_t i = 0; i < c->pairs.count; i++) {
        const struct pair *pair = &c->pairs.items[i];
        struct rk_verify_row *const of_pair[2] = {
            pair->row_index[0] >= 0 ? &rows->items.items[pair->row_index[0]] : NULL,
            &rows->items.items[pair->row_index[1]]};

        RK_TRY(compare_pair(c, pair, of_pair));
    }
    return check_not_zero(&rows->items.items[first], num_gradients, role);
}

struct rk_status *rk_verify_compare(struct rk_verify_rows *rows, const char *role,
                                    const struct rk_gathered *actual, const struct rk_gathered *expected,
                                    const struct rk_verify_step *step)
{
    struct comparison c = {.sides = {actual, expected}, .step = step};
    struct rk_status *st;

    rows->num_shards = RK_MAX(rows->num_shards, rk_gathered_num_shards(actual));
    st = compare_all(&c, rows, role);
    comparison_fini(&c);
    return st;
}
