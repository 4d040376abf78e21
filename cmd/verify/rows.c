/* The compared rows, and the verdict on each.
 *
 * An error is relative to the tensor's largest number. Values near 0 have no significant digits: a
 * metric below METRIC_FLOOR is compared relative to METRIC_FLOOR, a gradient below GRADIENT_FLOOR of the
 * role's largest one relative to that share of it. */
#include "cmd/verify/verify.h"

#include <math.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

#define METRIC_FLOOR   1e-3
#define GRADIENT_FLOOR 1e-4

const char *rk_verify_kind_name(rk_verify_kind_t kind)
{
    static const char *const names[RK_VERIFY_KIND_COUNT] = {"output", "metric", "gradient", "parameter"};

    RK_ASSERT(kind < RK_VERIFY_KIND_COUNT);
    return names[kind];
}

void rk_verify_rows_fini(struct rk_verify_rows *rows)
{
    for (int64_t i = 0; i < rows->items.count; i++) {
        rk_free(rows->items.items[i].name);
        rk_free(rows->items.items[i].shard_errors);
    }
    rk_array_fini(&rows->items);
}

struct rk_verify_row *rk_verify_rows_add(struct rk_verify_rows *rows, rk_verify_kind_t kind, const char *role,
                                         const char *name)
{
    rk_array_append(&rows->items,
                    (struct rk_verify_row){.kind = kind, .role = role, .name = rk_strdup(name)});
    return &rows->items.items[rows->items.count - 1];
}

static double mean(double sum, int64_t count)
{
    return count > 0 ? sum / (double)count : 0;
}

/* The smallest number and mean square that errors of the row are relative to. */
static void find_floors(const struct rk_verify_rows *rows, const struct rk_verify_row *row, double *largest,
                        double *square)
{
    *largest = row->kind == RK_VERIFY_METRIC ? METRIC_FLOOR : 0;
    *square = *largest * *largest;
    for (int64_t i = 0; row->kind == RK_VERIFY_GRADIENT && i < rows->items.count; i++) {
        const struct rk_verify_row *other = &rows->items.items[i];

        if (other->kind != RK_VERIFY_GRADIENT || other->role != row->role)
            continue;
        *largest = fmax(*largest, GRADIENT_FLOOR * other->difference.expected_max);
        *square = fmax(*square, GRADIENT_FLOOR * GRADIENT_FLOOR *
                                    mean(other->difference.expected_squares, other->difference.count));
    }
}

/* 0 / 0 is no error. */
static double quotient(double error, double scale)
{
    if (error == 0)
        return 0;
    return scale > 0 ? error / scale : INFINITY;
}

double rk_verify_error(const struct rk_verify_row *row, const struct rk_verify_measure *measure)
{
    return measure->by_mean_square ? row->mean_square : row->relative;
}

void rk_verify_judge(struct rk_verify_rows *rows, const struct rk_verify_measure *measure)
{
    for (int64_t i = 0; i < rows->items.count; i++) {
        struct rk_verify_row *row = &rows->items.items[i];
        const struct rk_difference *difference = &row->difference;
        double largest, square;

        find_floors(rows, row, &largest, &square);
        row->scale = fmax(difference->expected_max, largest);
        row->relative = difference->has_nan ? INFINITY : quotient(difference->error_max, row->scale);
        row->mean_square =
            difference->has_nan
                ? INFINITY
                : quotient(mean(difference->error_squares, difference->count),
                           fmax(mean(difference->expected_squares, difference->count), square));
        row->agrees = rk_verify_error(row, measure) <= measure->tolerance;
    }
}

const struct rk_verify_row *rk_verify_first(const struct rk_verify_rows *rows)
{
    const struct rk_verify_row *metric = NULL;

    for (int64_t i = 0; i < rows->items.count; i++) {
        const struct rk_verify_row *row = &rows->items.items[i];

        if (!row->agrees && row->kind != RK_VERIFY_METRIC)
            return row;
        if (!row->agrees && !metric)
            metric = row;
    }
    return metric;
}

const struct rk_verify_row *rk_verify_worst(const struct rk_verify_rows *rows,
                                            const struct rk_verify_measure *measure)
{
    const struct rk_verify_row *worst = NULL;

    for (int64_t i = 0; i < rows->items.count; i++) {
        const struct rk_verify_row *row = &rows->items.items[i];

        if (!row->agrees && (!worst || rk_verify_error(row, measure) > rk_verify_error(worst, measure)))
            worst = row;
    }
    return worst;
}
