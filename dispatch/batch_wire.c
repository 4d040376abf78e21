/* Batches and their description on the wire. The bytes of tensors are not handled here: proto/rk_stream.h
 * moves them to and from the memory of the columns. */
#include "dispatch/batch_internal.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_map.h"
#include "proto/limits.h"

#include <inttypes.h>
#include <string.h>

/* --- batch -> description --- */

/* The columns to describe, in the order of the batch or of `want`. */
static struct rk_status *list_columns(struct rk_batch_column **out, int64_t *count, struct rk_arena *arena,
                                      const struct rk_batch *batch, const char *const *want)
{
    int64_t num_want = 0;

    while (want && want[num_want])
        num_want++;
    *count = want ? num_want : batch->columns.count;
    if (*count > RK_LIMIT_TENSORS)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "%" PRId64 " columns in one batch, at most %d are allowed",
                       *count, RK_LIMIT_TENSORS);
    *out = rk_arena_calloc(arena, (size_t)*count, sizeof(**out));
    if (!*out)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "no memory to describe a batch");
    for (int64_t i = 0; i < *count; i++) {
        int64_t k = want ? rk_batch_find_index(batch, want[i]) : i;

        if (k < 0)
            return RK_FAIL(RK_NOT_FOUND, "the batch has no column '%s'", want[i]);
        (*out)[i] = batch->columns.items[k];
    }
    return NULL;
}

static void describe_tensor(struct rk_tensor_spec *spec, const struct rk_batch_column *source)
{
    const struct rk_column *column = source->column;

    *spec = (struct rk_tensor_spec){.name = source->name,
                                    .dtype = column->info.dtype,
                                    .rank = column->info.rank,
                                    .shape = column->info.shape,
                                    .byte_size = column->bytes};
    if (column->info.kind == RK_COLUMN_PACKED) {
        spec->num_cu_seqlens = column->info.num_rows + 1;
        spec->cu_seqlens = column->cu_seqlens;
    }
}

struct rk_status *rk_batch_describe(struct rk_batch_spec *out, const struct rk_column ***columns,
                                    struct rk_arena *arena, const struct rk_batch *batch,
                                    const char *const *want)
{
    struct rk_batch_spec spec = {.batch_size = batch->num_rows};
    struct rk_batch_column *list;
    const struct rk_column **tensor_columns;
    int64_t count, num_strings = 0;

    *out = (struct rk_batch_spec){0};
    RK_TRY(list_columns(&list, &count, arena, batch, want));
    spec.tensors = rk_arena_calloc(arena, (size_t)count, sizeof(*spec.tensors));
    spec.columns = rk_arena_calloc(arena, (size_t)count, sizeof(*spec.columns));
    tensor_columns = rk_arena_calloc(arena, (size_t)count, sizeof(*tensor_columns));
    if (!spec.tensors || !spec.columns || !tensor_columns)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "no memory to describe a batch");
    for (int64_t i = 0; i < count; i++) {
        const struct rk_column *column = list[i].column;

        if (column->info.kind != RK_COLUMN_STRINGS) {
            tensor_columns[spec.num_tensors] = column;
            describe_tensor(&spec.tensors[spec.num_tensors++], &list[i]);
            continue;
        }
        spec.columns[spec.num_columns++] = (struct rk_string_column){.name = list[i].name,
                                                                     .num_values = column->info.num_rows,
                                                                     .values = column->texts,
                                                                     .is_json = column->info.is_json};
        num_strings += column->info.num_rows;
    }
    if (num_strings > RK_LIMIT_STRINGS)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "%" PRId64 " strings in one batch, at most %d are allowed",
                       num_strings, RK_LIMIT_STRINGS);
    if (rk_json_count(rk_batch_meta(batch)) > RK_LIMIT_META_ENTRIES)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "%" PRId64 " meta entries in one batch, at most %d are allowed",
                       rk_json_count(rk_batch_meta(batch)), RK_LIMIT_META_ENTRIES);
    spec.meta = rk_meta_from_json(arena, rk_batch_meta(batch));
    *out = spec;
    if (columns)
        *columns = tensor_columns;
    return NULL;
}

/* --- description -> batch --- */

static struct rk_status *put_distinct(struct rk_batch *batch, const char *name, struct rk_column *column)
{
    if (rk_batch_find(batch, name)) {
        rk_column_release(column);
        return RK_FAIL(RK_INVALID_ARGUMENT, "it occurs twice");
    }
    return rk_batch_put_new(batch, name, column);
}

static struct rk_status *add_tensors(struct rk_batch *batch, void **data, const struct rk_batch_spec *spec)
{
    for (int64_t i = 0; i < spec->num_tensors; i++) {
        struct rk_column *column;
        struct rk_status *st = rk_column_from_spec(&column, &spec->tensors[i]);

        if (!st)
            st = put_distinct(batch, spec->tensors[i].name, column);
        if (st)
            return RK_WRAP(st, "column '%s'", spec->tensors[i].name);
        RK_ASSERT(rk_column_bytes(column) == spec->tensors[i].byte_size);
        data[i] = rk_column_data(column);
    }
    return NULL;
}

static struct rk_status *add_strings(struct rk_batch *batch, const struct rk_batch_spec *spec)
{
    for (int64_t i = 0; i < spec->num_columns; i++) {
        const struct rk_string_column *source = &spec->columns[i];
        struct rk_column *column;
        struct rk_status *st =
            rk_column_create_strings(&column, source->num_values, source->values, source->is_json);

        if (!st)
            st = put_distinct(batch, source->name, column);
        if (st)
            return RK_WRAP(st, "column '%s'", source->name);
    }
    return NULL;
}

struct rk_status *rk_batch_from_spec(struct rk_batch **out, void ***data, struct rk_arena *arena,
                                     const struct rk_batch_spec *spec)
{
    struct rk_batch *batch = NULL;
    struct rk_status *st = NULL;
    void **places;

    *out = NULL;
    *data = NULL;
    RK_TRY(rk_batch_create(&batch, spec->batch_size));
    places = rk_arena_calloc(arena, (size_t)spec->num_tensors, sizeof(*places));
    if (!places)
        RK_TRY_GOTO(
            st, RK_FAIL(RK_RESOURCE_EXHAUSTED, "no memory for %" PRId64 " columns", spec->num_tensors), out);
    RK_TRY_GOTO(st, add_tensors(batch, places, spec), out);
    RK_TRY_GOTO(st, add_strings(batch, spec), out);
    rk_batch_take_meta(batch, rk_meta_to_json(&spec->meta));
    *out = batch;
    *data = places;
    batch = NULL;
out:
    rk_batch_destroy(batch);
    return st;
}

/* --- description against a method --- */

/* Values of a schema's letters in one call; -1: not seen yet. */
struct dims {
    int64_t size['Z' + 1];
};

static struct rk_status *bind_dims(struct dims *dims, const struct rk_tensor_spec *spec,
                                   const struct rk_column_schema *schema)
{
    int32_t rank = 0;

    for (const char *letter = schema->dims; *letter; letter += letter[1] ? 2 : 1) {
        int64_t *size = &dims->size[(unsigned char)*letter];

        RK_ASSERT(*letter >= 'A');
        RK_ASSERT(*letter <= 'Z');
        if (rank == spec->rank)
            break;
        if (*size >= 0 && *size != spec->shape[rank])
            return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD",
                                  "column '%s' [%s]: dimension %d is %" PRId64 ", but %c is %" PRId64
                                  " in this call",
                                  spec->name, schema->dims, rank, spec->shape[rank], *letter, *size);
        *size = spec->shape[rank++];
    }
    if (rank != spec->rank || (size_t)rank != (strlen(schema->dims) + 1) / 2)
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD",
                              "column '%s' has %d dimensions, expected [%s]", spec->name, (int)spec->rank,
                              schema->dims);
    return NULL;
}

static struct rk_status *check_column(struct dims *dims, const struct rk_batch_spec *spec,
                                      const struct rk_column_schema *schema, const struct rk_method *method)
{
    const struct rk_tensor_spec *found = NULL;

    for (int64_t i = 0; i < spec->num_tensors && !found; i++) {
        if (strcmp(spec->tensors[i].name, schema->name) == 0)
            found = &spec->tensors[i];
    }
    if (!found && schema->is_required)
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "%s needs the column '%s' (%s [%s], %s)",
                              method->name, schema->name, rk_dtype_name(schema->dtype), schema->dims,
                              schema->doc);
    if (!found)
        return NULL;
    if (found->num_cu_seqlens)
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "column '%s' is packed, %s expects it dense",
                              schema->name, method->name);
    if (found->dtype != schema->dtype)
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "column '%s' has dtype %s, expected %s",
                              schema->name, rk_dtype_name(found->dtype), rk_dtype_name(schema->dtype));
    return bind_dims(dims, found, schema);
}

static struct rk_status *check_known(const struct rk_method *method, const char *name)
{
    for (int64_t i = 0; i < method->num_in; i++) {
        if (strcmp(method->in[i].name, name) == 0)
            return NULL;
    }
    return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "%s does not take a column '%s'", method->name,
                          name);
}

static struct rk_status *check_names(const struct rk_batch_spec *spec, const struct rk_method *method)
{
    struct rk_map *seen = rk_map_create();
    struct rk_status *st = NULL;

    for (int64_t i = 0; i < spec->num_tensors && !st; i++) {
        const char *name = spec->tensors[i].name;

        st = check_known(method, name);
        if (!st && rk_map_put(seen, name, (void *)name))
            st = RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "column '%s' occurs twice", name);
    }
    rk_map_destroy(seen);
    return st;
}

struct rk_status *rk_batch_spec_check(const struct rk_batch_spec *spec, const struct rk_method *method)
{
    struct dims dims;
    int64_t prompt, response, sequence;

    memset(&dims, -1, sizeof(dims));
    dims.size['B'] = spec->batch_size;
    RK_TRY(check_names(spec, method));
    if (spec->num_columns)
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD",
                              "%s does not take a column of strings such as '%s'", method->name,
                              spec->columns[0].name);
    for (int64_t i = 0; i < method->num_in; i++)
        RK_TRY(check_column(&dims, spec, &method->in[i], method));
    prompt = dims.size['P'];
    response = dims.size['R'];
    sequence = dims.size['S'];
    /* S = P + R. A sequence without a prompt has no position that predicts its first token. */
    if (response >= 0 && sequence >= 0 &&
        (prompt >= 0 ? sequence - response != prompt : sequence <= response))
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD",
                              "sequences of S=%" PRId64 " positions do not hold a prompt and R=%" PRId64
                              " responses",
                              sequence, response);
    return NULL;
}
