#include "engine/params/params.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "engine/rk_train.h"

/* Alignment of allocations in elements, so that kernels may use vector loads. */
#define PARAM_ALIGN_ELEMENTS 64
/* A dp shard is a multiple of 128 / gcd(dp, 128) elements, and the total a multiple of 128. */
#define SHARD_ALIGN_ELEMENTS 128

struct rk_status *rk_params_init(struct rk_param_table *table, const struct rk_mesh *mesh,
                                 const struct rk_mesh_coords *coords)
{
    *table = (struct rk_param_table){.coords = *coords};
    return rk_mesh_clone(&table->mesh, mesh);
}

static void grow(struct rk_param_table *table)
{
    if (table->count < table->capacity)
        return;
    table->capacity = RK_MAX(64, 2 * table->capacity);
    table->params = rk_realloc(table->params, (size_t)table->capacity * sizeof(*table->params));
    table->placements = rk_realloc(table->placements, (size_t)table->capacity * sizeof(*table->placements));
}

static struct rk_param_split make_split(const struct rk_param_table *table, const struct rk_param_spec *spec)
{
    struct rk_param_split split = {
        .axis = spec->is_expert ? RK_AXIS_ETP : RK_AXIS_TP, .dim = spec->split_dim, .num_parts = 1};
    int32_t axis_size = rk_mesh_axis_size(table->mesh, split.axis);

    if (spec->split_dim < 0)
        return split;
    split.num_parts = spec->num_parts ? spec->num_parts : axis_size;
    split.size_padded = spec->split_dim == 1 ? spec->cols
                        : spec->rows_padded  ? spec->rows_padded
                                             : spec->rows;
    RK_ASSERT(axis_size % split.num_parts == 0);
    RK_ASSERT(split.size_padded % split.num_parts == 0);
    return split;
}

static uint32_t make_flags(const struct rk_param_table *table, const struct rk_param_spec *spec)
{
    return spec->flags | (spec->cols ? 0 : RK_PARAM_NO_DECAY) |
           (spec->sees_rows && table->splits_rows ? RK_PARAM_PARTIAL_GRAD : 0);
}

int64_t rk_params_add(struct rk_param_table *table, const struct rk_param_spec *spec, const char *name_fmt,
                      ...)
{
    struct rk_param *param;
    va_list args;

    grow(table);
    param = &table->params[table->count];
    *param = (struct rk_param){
        .rank = spec->cols ? 2 : 1,
        .shape = {spec->rows, spec->cols ? spec->cols : 1},
        .flags = make_flags(table, spec),
        .stage = table->stage,
        .shared_stage = -1,
        .ep_rank = spec->is_expert ? spec->ep_rank : -1,
        .split = make_split(table, spec),
        .grad_group = rk_grad_groups[spec->is_expert ? RK_GRAD_EXPERT : RK_GRAD_DENSE].ranks,
    };
    va_start(args, name_fmt);
    vsnprintf(param->name, sizeof(param->name), name_fmt, args);
    va_end(args);
    snprintf(param->alias, sizeof(param->alias), "%s", spec->alias ? spec->alias : "");
    if (spec->stack.name) {
        param->stack = (struct rk_param_stack){
            .count = spec->stack.count, .rows = spec->stack.rows, .first_row = spec->stack.first_row};
        snprintf(param->stack.name, sizeof(param->stack.name), "%s", spec->stack.name);
    }
    rk_param_place(&table->placements[table->count], param, table->mesh, &table->coords);
    return table->count++;
}

void rk_params_share(struct rk_param_table *table, int64_t i, int32_t stage)
{
    RK_ASSERT(table->num_elements == 0);
    if (stage == table->params[i].stage)
        return;
    table->params[i].shared_stage = stage;
    rk_param_place(&table->placements[i], &table->params[i], table->mesh, &table->coords);
}

struct rk_placement rk_params_owner_placement(const struct rk_param_table *table, int64_t i)
{
    struct rk_mesh_coords coords = table->coords;
    struct rk_placement placement;

    rk_param_owner_coords(&coords, &table->params[i]);
    rk_param_place(&placement, &table->params[i], table->mesh, &coords);
    return placement;
}

static int64_t gcd(int64_t a, int64_t b)
{
    return b == 0 ? a : gcd(b, a % b);
}

/* Rounds *value up to a multiple; false on overflow. */
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
        struct rk_placement *placement = &table->placements[i];
        int64_t elements;

        if (!placement->is_held)
            continue;
        placement->offset = *position;
        if (!rk_mul_i64(placement->local_shape[0], placement->local_shape[1], &elements) ||
            !rk_add_i64(*position, elements, position))
            return false;
    }
    return true;
}

int64_t rk_params_align(int32_t num_shards)
{
    return num_shards / gcd(num_shards, SHARD_ALIGN_ELEMENTS) * SHARD_ALIGN_ELEMENTS;
}

/* The first row of the fused rows that end before `end`. */
static int64_t find_fused(const struct rk_param_table *table, int64_t end)
{
    int64_t begin = end - 1;

    while (table->params[begin].flags & RK_PARAM_FUSED)
        begin--;
    return begin;
}

/* A GEMM computes the gradients of fused rows together: they are trained if one of them is. */
static void mark_untrained(struct rk_param_table *table)
{
    for (int64_t end = table->count, begin; end > 0; end = begin) {
        uint32_t common = RK_PARAM_FROZEN;

        begin = find_fused(table, end);
        for (int64_t i = begin; i < end; i++)
            common &= table->params[i].flags;
        for (int64_t i = begin; common && i < end; i++)
            table->params[i].flags |= RK_PARAM_UNTRAINED;
    }
}

/* The trained or untrained rows of a group from *position on. */
static bool place_group(struct rk_param_table *table, rk_grad_group_t group, bool is_trained,
                        int64_t *position)
{
    bool fits = true;

    for (int32_t rank = 2; rank >= 1; rank--) {
        for (int64_t end = table->count, begin; fits && end > 0; end = begin) {
            const struct rk_param *param;

            begin = find_fused(table, end);
            param = &table->params[begin];
            if (param->rank == rank && rk_param_grad_group(param) == group &&
                rk_params_is_trained(table, begin) == is_trained)
                fits = place(table, begin, end, position);
        }
    }
    return fits;
}

static bool has_group(const struct rk_param_table *table, rk_grad_group_t group, bool is_trained)
{
    for (int64_t i = 0; i < table->count; i++) {
        if (rk_param_grad_group(&table->params[i]) == group && table->placements[i].is_held &&
            rk_params_is_trained(table, i) == is_trained)
            return true;
    }
    return false;
}

/* Places the rows of all groups from *position on, a range for each; false on overflow. */
static bool place_groups(struct rk_param_table *table, bool is_trained, struct rk_param_range *ranges,
                         int64_t *position)
{
    for (int g = 0; g < RK_GRAD_GROUPS; g++) {
        rk_grad_group_t group = (rk_grad_group_t)g;
        int64_t align = rk_params_align(rk_grad_group_size(group, table->mesh)), begin = *position, count;

        if (has_group(table, group, is_trained) && !place_group(table, group, is_trained, position))
            return false;
        count = *position - begin;
        if (!round_up(&count, align) || !rk_add_i64(begin, count, position))
            return false;
        ranges[g] = (struct rk_param_range){.begin = begin, .num_elements = count};
    }
    return true;
}

struct rk_status *rk_params_lay_out(struct rk_param_table *table)
{
    int64_t position = 0;
    bool fits;

    mark_untrained(table);
    fits = place_groups(table, true, table->groups, &position);
    table->num_trained = position;
    if (!fits || !place_groups(table, false, table->untrained, &position))
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "the parameters of the model exceed 2^63 elements");
    table->num_elements = position;
    return NULL;
}

struct rk_shard_places rk_shard_places_of(const struct rk_mesh_comms *mesh)
{
    struct rk_shard_places places;

    for (int g = 0; g < RK_GRAD_GROUPS; g++) {
        const struct rk_comm_group *group = rk_mesh_comms_group(mesh, rk_grad_groups[g].ranks);

        places.size[g] = rk_comm_group_size(group);
        places.rank[g] = rk_comm_group_rank(group);
    }
    return places;
}

static struct rk_shard_maps cut(const struct rk_param_range *ranges, const struct rk_shard_places *places,
                                int64_t bucket_elements)
{
    struct rk_shard_maps maps;
    int64_t shard = 0;

    for (int g = 0; g < RK_GRAD_GROUPS; g++) {
        const struct rk_param_range *range = &ranges[g];
        /* A single rank has no communication to overlap: fewer buckets mean fewer optimizer calls. */
        int64_t unset = places->size[g] > 1 ? RK_BUCKET_ELEMENTS : RK_MAX(range->num_elements, 1);
        int64_t wanted = bucket_elements ? bucket_elements : unset, align = rk_params_align(places->size[g]);

        RK_ASSERT(range->num_elements % align == 0);
        maps.of[g] = (struct rk_shard_map){
            .begin = range->begin,
            .shard_begin = shard,
            .num_elements = range->num_elements,
            .bucket_elements = (wanted + align - 1) / align * align,
            .num_shards = places->size[g],
            .index = places->rank[g],
        };
        shard += range->num_elements / places->size[g];
    }
    return maps;
}

struct rk_shard_maps rk_params_cut(const struct rk_param_table *table, const struct rk_shard_places *places,
                                   int64_t bucket_elements)
{
    return cut(table->groups, places, bucket_elements);
}

struct rk_shard_maps rk_params_cut_untrained(const struct rk_param_table *table,
                                             const struct rk_shard_places *places)
{
    return cut(table->untrained, places, RK_MAX(table->num_elements, 1));
}

int64_t rk_params_shard_count(const struct rk_shard_maps *maps)
{
    int64_t count = 0;

    for (int g = 0; g < RK_GRAD_GROUPS; g++)
        count += maps->of[g].num_elements / maps->of[g].num_shards;
    return count;
}

void rk_params_fini(struct rk_param_table *table)
{
    rk_free(table->params);
    rk_free(table->placements);
    rk_mesh_destroy(table->mesh);
    *table = (struct rk_param_table){0};
}

int64_t rk_params_find(const struct rk_param_table *table, const char *name)
{
    for (int64_t i = 0; i < table->count; i++) {
        if (strcmp(table->params[i].name, name) == 0)
            return i;
    }
    return -1;
}

struct rk_status *rk_params_check_divides(const struct rk_param_table *table, rk_axis_t axis,
                                          const char *what, int64_t size)
{
    int32_t num_ranks = rk_mesh_axis_size(table->mesh, axis), nearest = num_ranks;

    if (size % num_ranks == 0)
        return NULL;
    while (size % nearest != 0)
        nearest--;
    return RK_FAIL(RK_INVALID_ARGUMENT, "%s=%lld is not divisible by %s=%d; the nearest divisor is %s=%d",
                   what, (long long)size, rk_axis_name(axis), num_ranks, rk_axis_name(axis), nearest);
}
