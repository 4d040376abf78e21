#include "engine/model/params_internal.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

/* Every allocation starts at a multiple of this, so that kernels may load whole vectors. */
#define PARAM_ALIGN_ELEMENTS 64
/* A dp shard is a multiple of 128 / gcd(dp, 128) elements, and the total is one of this. */
#define SHARD_ALIGN_ELEMENTS 128

static void set_local_shape(struct rk_param *param, const struct rk_param_table *table)
{
    param->part = (int32_t)((int64_t)table->tp_rank * param->num_parts / table->tp_size);
    param->is_counted = table->tp_rank == rk_param_first_rank(param, param->part, table->tp_size);
    for (int32_t dim = 0; dim < 2; dim++)
        param->local_shape[dim] =
            dim == param->split_dim ? param->split_size_padded / param->num_parts : param->shape[dim];
}

int64_t rk_params_add(struct rk_param_table *table, const struct rk_param_spec *spec, const char *name_fmt,
                      ...)
{
    struct rk_param_row row = {.is_fused = spec->is_fused};
    struct rk_param *param = &row.param;
    va_list args;

    va_start(args, name_fmt);
    vsnprintf(param->name, sizeof(param->name), name_fmt, args);
    va_end(args);
    param->rank = spec->cols ? 2 : 1;
    param->shape[0] = spec->rows;
    param->shape[1] = spec->cols ? spec->cols : 1;
    param->split_dim = spec->split_dim;
    param->num_parts = spec->split_dim < 0 ? 1 : spec->num_parts ? spec->num_parts : table->tp_size;
    if (spec->split_dim >= 0)
        param->split_size_padded = spec->rows_padded ? spec->rows_padded : param->shape[spec->split_dim];
    param->flags = spec->flags | (spec->cols ? 0 : RK_PARAM_NO_DECAY);
    RK_ASSERT(table->tp_size % param->num_parts == 0);
    RK_ASSERT(param->split_size_padded % param->num_parts == 0);
    set_local_shape(param, table);

    if (table->count == table->capacity) {
        table->capacity = RK_MAX(64, 2 * table->capacity);
        table->rows = rk_realloc(table->rows, (size_t)table->capacity * sizeof(*table->rows));
    }
    table->rows[table->count] = row;
    return table->count++;
}

static int64_t gcd(int64_t a, int64_t b)
{
    return b == 0 ? a : gcd(b, a % b);
}

/* *value = the next multiple; false on overflow. */
static bool round_up(int64_t *value, int64_t multiple)
{
    if (!rk_add_i64(*value, multiple - 1, value))
        return false;
    *value -= *value % multiple;
    return true;
}

/* Places rows [begin, end), one allocation, at *position. */
static bool place(struct rk_param_table *table, int64_t begin, int64_t end, int64_t *position)
{
    if (!round_up(position, PARAM_ALIGN_ELEMENTS))
        return false;
    for (int64_t i = begin; i < end; i++) {
        struct rk_param *param = &table->rows[i].param;
        int64_t elements;

        param->offset = *position;
        if (!rk_mul_i64(param->local_shape[0], param->local_shape[1], &elements) ||
            !rk_add_i64(*position, elements, position))
            return false;
    }
    return true;
}

int64_t rk_params_align(int32_t num_shards)
{
    return num_shards / gcd(num_shards, SHARD_ALIGN_ELEMENTS) * SHARD_ALIGN_ELEMENTS;
}

struct rk_status *rk_params_lay_out(struct rk_param_table *table, int32_t num_shards)
{
    int64_t align = rk_params_align(num_shards);
    int64_t position = 0;
    bool fits = true;

    RK_ASSERT(num_shards >= 1);
    for (int32_t rank = 2; rank >= 1; rank--) {
        for (int64_t end = table->count; fits && end > 0;) {
            int64_t begin = end - 1;

            while (table->rows[begin].is_fused)
                begin--;
            if (table->rows[begin].param.rank == rank)
                fits = place(table, begin, end, &position);
            end = begin;
        }
    }
    if (!fits || !round_up(&position, align))
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "the parameters of the model exceed 2^63 elements");
    table->num_elements = position;
    return NULL;
}

void rk_params_fini(struct rk_param_table *table)
{
    rk_free(table->rows);
    *table = (struct rk_param_table){0};
}

struct rk_status *rk_params_check_divides(const struct rk_param_table *table, const char *what, int64_t size)
{
    if (size % table->tp_size == 0)
        return NULL;
    return RK_FAIL(RK_INVALID_ARGUMENT, "%s=%lld is not divisible by tp=%d", what, (long long)size,
                   table->tp_size);
}
