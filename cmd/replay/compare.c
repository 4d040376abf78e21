#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_dtype.h"
#include "cmd/replay/replay.h"

const char *rk_difference_kind_name(rk_difference_kind_t kind)
{
    static const char *const names[RK_DIFFERENCE_COUNT] = {
        [RK_DIFFERENCE_TENSOR] = "tensor", [RK_DIFFERENCE_SHAPE] = "shape",   [RK_DIFFERENCE_TEXT] = "text",
        [RK_DIFFERENCE_METRIC] = "metric", [RK_DIFFERENCE_STATUS] = "status",
    };

    RK_ASSERT(kind < RK_DIFFERENCE_COUNT);
    return names[kind];
}

bool rk_replay_is_measured(const char *metric)
{
    return rk_str_has_prefix(metric, "perf/") || rk_str_has_prefix(metric, "profile/") ||
           rk_str_has_prefix(metric, "timing") || rk_str_has_suffix(metric, "_seconds") ||
           rk_str_has_suffix(metric, "_per_second") || strstr(metric, "memory") != NULL;
}

/* --- numbers --- */

static struct rk_replay_difference new_difference(rk_difference_kind_t kind, int32_t rank, const char *name)
{
    struct rk_replay_difference difference = {.kind = kind, .rank = rank};

    snprintf(difference.name, sizeof(difference.name), "%s", name);
    return difference;
}

static void add_number(struct rk_replay_difference *difference, double recorded, double replayed,
                       const struct rk_replay_tolerance *tolerance)
{
    double error = fabs(replayed - recorded), scale = fmax(fabs(recorded), fabs(replayed));

    difference->num_values++;
    if (recorded == replayed || (isnan(recorded) && isnan(replayed)))
        return;
    if (!isfinite(error))
        error = INFINITY;
    if (error <= tolerance->abs + tolerance->rel * fabs(recorded))
        return;
    if (difference->num_different++ == 0 || error > difference->max_abs) {
        difference->max_abs = error;
        difference->recorded = recorded;
        difference->replayed = replayed;
    }
    if (isfinite(error))
        difference->max_rel = fmax(difference->max_rel, error / scale);
}

/* One element of a column whose type is not a 16-bit or 8-bit float. */
static double integer_at(const void *values, rk_dtype_t dtype, int64_t i)
{
    switch (dtype) {
    case RK_DTYPE_I8:
        return ((const int8_t *)values)[i];
    case RK_DTYPE_I16:
        return ((const int16_t *)values)[i];
    case RK_DTYPE_I32:
        return ((const int32_t *)values)[i];
    case RK_DTYPE_I64:
        return (double)((const int64_t *)values)[i];
    default: /* BOOL, U8; of the types of eight bits that no column of a method has, the bits */
        return ((const uint8_t *)values)[i];
    }
}

static bool loads_as_f64(rk_dtype_t dtype)
{
    return dtype == RK_DTYPE_F16 || dtype == RK_DTYPE_BF16 || dtype == RK_DTYPE_F32 || dtype == RK_DTYPE_F64;
}

static void compare_values(struct rk_replay_difference *difference, const struct rk_column *recorded,
                           const struct rk_column *replayed, const struct rk_replay_tolerance *tolerance)
{
    rk_dtype_t dtype = rk_column_get_info(recorded).dtype;
    const void *values[2] = {rk_column_values(recorded), rk_column_values(replayed)};
    size_t element_bytes = rk_dtype_bytes(dtype);
    int64_t count = (int64_t)(rk_column_bytes(recorded) / element_bytes);

    for (int64_t i = 0; i < count; i++) {
        double numbers[2];

        for (int side = 0; side < 2; side++) {
            if (loads_as_f64(dtype))
                rk_load_f64(&numbers[side], (const char *)values[side] + (size_t)i * element_bytes, dtype, 1);
            else
                numbers[side] = integer_at(values[side], dtype, i);
        }
        add_number(difference, numbers[0], numbers[1], tolerance);
    }
}

/* --- columns --- */

static bool has_same_shape(const struct rk_column *a, const struct rk_column *b)
{
    struct rk_column_info left = rk_column_get_info(a), right = rk_column_get_info(b);

    if (left.kind != right.kind || left.num_rows != right.num_rows)
        return false;
    if (left.kind == RK_COLUMN_STRINGS)
        return true;
    if (left.dtype != right.dtype || left.rank != right.rank ||
        memcmp(left.shape, right.shape, (size_t)left.rank * sizeof(left.shape[0])) != 0)
        return false;
    return left.kind != RK_COLUMN_PACKED || memcmp(rk_column_cu_seqlens(a), rk_column_cu_seqlens(b),
                                                   ((size_t)left.num_rows + 1) * sizeof(int64_t)) == 0;
}

static void compare_strings(struct rk_replay_difference *difference, const struct rk_column *recorded,
                            const struct rk_column *replayed)
{
    difference->kind = RK_DIFFERENCE_TEXT;
    difference->num_values = rk_column_get_info(recorded).num_rows;
    for (int64_t row = 0; row < difference->num_values; row++)
        difference->num_different +=
            strcmp(rk_column_string(recorded, row), rk_column_string(replayed, row)) != 0;
}

static void compare_column(struct rk_replay_differences *out, int32_t rank, const char *name,
                           const struct rk_column *recorded, const struct rk_column *replayed,
                           const struct rk_replay_tolerance *tolerance)
{
    struct rk_replay_difference difference = new_difference(RK_DIFFERENCE_TENSOR, rank, name);

    if (replayed && rk_column_equal(recorded, replayed))
        return;
    if (!replayed || !has_same_shape(recorded, replayed)) {
        difference.kind = RK_DIFFERENCE_SHAPE;
        difference.num_different = difference.num_values = 1;
    } else if (rk_column_get_info(recorded).kind == RK_COLUMN_STRINGS) {
        compare_strings(&difference, recorded, replayed);
    } else {
        compare_values(&difference, recorded, replayed, tolerance);
    }
    if (difference.num_different > 0)
        rk_array_append(&out->items, difference);
}

static void compare_batches(struct rk_replay_differences *out, int32_t rank, const struct rk_batch *recorded,
                            const struct rk_batch *replayed, const struct rk_replay_tolerance *tolerance)
{
    for (int64_t i = 0; i < rk_batch_num_columns(recorded); i++) {
        const char *name = rk_batch_name_at(recorded, i);

        if (strcmp(name, "trace") == 0)
            continue; /* of stop_profile: times */
        compare_column(out, rank, name, rk_batch_column_at(recorded, i),
                       replayed ? rk_batch_find(replayed, name) : NULL, tolerance);
    }
}

/* --- metrics --- */

static const struct rk_metric *find_metric(const struct rk_execute_result *result, const char *name)
{
    for (int64_t i = 0; i < result->num_metrics; i++) {
        if (strcmp(result->metrics[i].name, name) == 0)
            return &result->metrics[i];
    }
    return NULL;
}

static void compare_metrics(struct rk_replay_differences *out, int32_t rank,
                            const struct rk_execute_result *recorded,
                            const struct rk_execute_result *replayed,
                            const struct rk_replay_tolerance *tolerance)
{
    for (int64_t i = 0; i < recorded->num_metrics; i++) {
        const struct rk_metric *metric = &recorded->metrics[i], *now = find_metric(replayed, metric->name);
        struct rk_replay_difference difference = new_difference(RK_DIFFERENCE_METRIC, rank, metric->name);

        if (rk_replay_is_measured(metric->name))
            continue;
        add_number(&difference, metric->value, now ? now->value : NAN, tolerance);
        if (difference.num_different > 0)
            rk_array_append(&out->items, difference);
    }
}

struct rk_status *rk_replay_compare(struct rk_replay_differences *out, int32_t rank,
                                    const struct rk_recording *recording,
                                    const struct rk_recording_item *recorded,
                                    const struct rk_execute_result *result, const struct rk_batch *output,
                                    const struct rk_replay_tolerance *tolerance)
{
    struct rk_arena *arena = rk_arena_create(16384, 0);
    struct rk_execute_response response;
    struct rk_batch *batch = NULL;
    struct rk_status *st;

    RK_TRY_GOTO(st, rk_unpack_execute_response(&response, arena, recorded->message, recorded->message_bytes),
                out);
    if (response.result.output.num_tensors > 0 || response.result.output.num_columns > 0) {
        RK_TRY_GOTO(st, rk_recording_read_batch(&batch, recording, recorded, &response.result.output), out);
        compare_batches(out, rank, batch, output, tolerance);
    }
    compare_metrics(out, rank, &response.result, result, tolerance);
out:
    rk_batch_destroy(batch);
    rk_arena_destroy(arena);
    return st ? RK_WRAP(st, "'%s'", rk_recording_dir(recording)) : NULL;
}
