/* Batches on disk: a safetensors file that the stock library of any language reads. Tensors are columns;
 * values without tensor form are JSON text in __metadata__:
 *
 *   rankd.columns   object of column name -> array of strings, or of any values for a JSON column
 *   rankd.json      array of the names of JSON columns; a column with a value that is not a string is also
 * one rankd.meta      the meta object
 *
 * A packed column NAME is two tensors, NAME.values and NAME.cu_seqlens (i64). */
#include "dispatch/batch_internal.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/format/rk_safetensors.h"
#include "base/rk_str.h"

#include <inttypes.h>
#include <string.h>

#define VALUES_SUFFIX     ".values"
#define CU_SEQLENS_SUFFIX ".cu_seqlens"
#define COLUMNS_KEY       "rankd.columns"
#define JSON_KEY          "rankd.json"
#define META_KEY          "rankd.meta"

/* --- writing --- */

static struct rk_json *json_of_text(const char *text, bool is_json)
{
    struct rk_json *value = NULL;

    if (!is_json)
        return rk_json_new_string(text);
    /* Checked when the column was made. */
    RK_ASSERT(rk_json_parse(&value, text, strlen(text), "value", RK_JSON_ALLOW_NUL) == NULL);
    return value;
}

static void set_text(struct rk_json *metadata, const char *key, struct rk_json *value)
{
    char *text = rk_json_dump(value, 0, false);

    rk_json_set(metadata, key, rk_json_new_string(text));
    rk_free(text);
    rk_json_free(value);
}

/* The object of strings for __metadata__. */
static struct rk_json *make_metadata(const struct rk_batch *batch)
{
    struct rk_json *metadata = rk_json_new_object();
    struct rk_json *columns = rk_json_new_object();
    struct rk_json *json_names = rk_json_new_array();

    for (int64_t i = 0; i < batch->columns.count; i++) {
        const struct rk_column *column = batch->columns.items[i].column;
        struct rk_json *values;

        if (column->info.kind != RK_COLUMN_STRINGS)
            continue;
        values = rk_json_new_array();
        for (int64_t row = 0; row < column->info.num_rows; row++)
            rk_json_append(values, json_of_text(column->texts[row], column->info.is_json));
        rk_json_set(columns, batch->columns.items[i].name, values);
        if (column->info.is_json)
            rk_json_append(json_names, rk_json_new_string(batch->columns.items[i].name));
    }
    set_text(metadata, COLUMNS_KEY, columns);
    set_text(metadata, JSON_KEY, json_names);
    set_text(metadata, META_KEY, rk_json_clone(rk_batch_meta(batch)));
    return metadata;
}

/* The content of one tensor of the file. */
struct tensor {
    char *name;
    const void *data;
    size_t bytes;
};

struct tensor_list {
    int64_t count;
    struct rk_st_entry *entries;
    struct tensor *tensors;
};

static void add_tensor(struct tensor_list *list, char *name, const struct rk_st_entry *form, const void *data,
                       size_t bytes)
{
    list->tensors[list->count] = (struct tensor){.name = name, .data = data, .bytes = bytes};
    list->entries[list->count] = *form;
    list->entries[list->count].name = name;
    list->count++;
}

static void add_column(struct tensor_list *list, const char *name, const struct rk_column *column)
{
    struct rk_st_entry form = {.dtype = column->info.dtype, .rank = column->info.rank};
    struct rk_st_entry cu_seqlens = {.dtype = RK_DTYPE_I64, .rank = 1, .shape = {column->info.num_rows + 1}};
    bool is_packed = column->info.kind == RK_COLUMN_PACKED;

    memcpy(form.shape, column->info.shape, (size_t)form.rank * sizeof(int64_t));
    add_tensor(list, rk_format("%s%s", name, is_packed ? VALUES_SUFFIX : ""), &form, rk_column_values(column),
               column->bytes);
    if (is_packed)
        add_tensor(list, rk_format("%s%s", name, CU_SEQLENS_SUFFIX), &cu_seqlens, column->cu_seqlens,
                   ((size_t)column->info.num_rows + 1) * sizeof(int64_t));
}

static void list_tensors(struct tensor_list *list, const struct rk_batch *batch)
{
    list->entries = rk_calloc(2 * (size_t)batch->columns.count, sizeof(*list->entries));
    list->tensors = rk_calloc(2 * (size_t)batch->columns.count, sizeof(*list->tensors));
    for (int64_t i = 0; i < batch->columns.count; i++) {
        if (batch->columns.items[i].column->info.kind != RK_COLUMN_STRINGS)
            add_column(list, batch->columns.items[i].name, batch->columns.items[i].column);
    }
}

static void list_fini(struct tensor_list *list)
{
    for (int64_t i = 0; i < list->count; i++)
        rk_free(list->tensors[i].name);
    rk_free(list->tensors);
    rk_free(list->entries);
}

struct rk_status *rk_batch_write_file(const struct rk_batch *batch, const char *path)
{
    struct rk_json *metadata = make_metadata(batch);
    struct rk_st_writer *writer = NULL;
    struct tensor_list list = {0};
    struct rk_status *st = NULL;

    list_tensors(&list, batch);
    RK_TRY_GOTO(st, rk_st_writer_create(&writer, path, list.entries, list.count, metadata), out);
    for (int64_t i = 0; i < list.count; i++)
        RK_TRY_GOTO(st, rk_st_writer_write(writer, i, 0, list.tensors[i].data, list.tensors[i].bytes), out);
    RK_TRY_GOTO(st, rk_st_writer_commit(writer), out);
out:
    rk_st_writer_destroy(writer);
    list_fini(&list);
    rk_json_free(metadata);
    return st ? RK_WRAP(st, "writing the batch '%s'", path) : NULL;
}

/* --- reading --- */

/* JSON text of one metadata entry; *out stays NULL when it is absent. */
static struct rk_status *parse_entry(struct rk_json **out, const struct rk_json *metadata, const char *key,
                                     rk_json_type_t type)
{
    const char *text = rk_json_as_string(rk_json_find(metadata, key), NULL);
    struct rk_status *st = NULL;

    *out = NULL;
    if (!text)
        return NULL;
    st = rk_json_parse(out, text, strlen(text), key, RK_JSON_ALLOW_NUL);
    if (!st && rk_json_type(*out) != type)
        st = RK_FAIL(RK_INVALID_ARGUMENT, "__metadata__ '%s' is %s, expected %s", key,
                     rk_json_type_name(rk_json_type(*out)), rk_json_type_name(type));
    if (st) {
        rk_json_free(*out);
        *out = NULL;
    }
    return st;
}

static bool is_json_column(const struct rk_json *json_names, const char *name, const struct rk_json *values)
{
    for (int64_t i = 0; i < rk_json_count(json_names); i++) {
        if (strcmp(rk_json_as_string(rk_json_at(json_names, i), ""), name) == 0)
            return true;
    }
    for (int64_t i = 0; i < rk_json_count(values); i++) {
        if (rk_json_type(rk_json_at(values, i)) != RK_JSON_STRING)
            return true;
    }
    return false;
}

static struct rk_status *read_strings(struct rk_column **out, const struct rk_json *values, bool is_json)
{
    int64_t count = rk_json_count(values);
    struct rk_status *st = NULL;
    void *memory = NULL, *dumped_memory = NULL;
    const char **texts;
    char **dumped = NULL; /* JSON text that is owned here */

    RK_TRY_GOTO(st, rk_try_alloc(&memory, (size_t)count * sizeof(*texts), "column"), out);
    RK_TRY_GOTO(st, rk_try_alloc(&dumped_memory, (size_t)count * sizeof(*dumped), "column"), out);
    texts = memory;
    dumped = dumped_memory;
    for (int64_t i = 0; i < count; i++) {
        const struct rk_json *value = rk_json_at(values, i);

        dumped[i] = is_json ? rk_json_dump(value, 0, false) : NULL;
        texts[i] = is_json ? dumped[i] : rk_json_as_string(value, "");
        if (!is_json && strlen(texts[i]) != rk_json_string_bytes(value))
            RK_TRY_GOTO(st, RK_FAIL(RK_INVALID_ARGUMENT, "row %" PRId64 " holds a NUL", i), out);
    }
    RK_TRY_GOTO(st, rk_column_create_strings(out, count, texts, is_json), out);
out:
    for (int64_t i = 0; dumped && i < count; i++)
        rk_free(dumped[i]);
    rk_free(dumped);
    rk_free(memory);
    return st;
}

static struct rk_status *put_column(struct rk_batch **batch, const char *name, struct rk_column *column)
{
    int64_t num_rows = rk_column_get_info(column).num_rows;

    /* The first column determines the number of rows. */
    if (!*batch)
        RK_ASSERT(rk_batch_create(batch, num_rows) == NULL);
    if (rk_batch_find(*batch, name)) {
        rk_column_release(column);
        return RK_FAIL(RK_INVALID_ARGUMENT, "column '%s' is listed twice", name);
    }
    return rk_batch_put_new(*batch, name, column);
}

static struct rk_status *add_string_columns(struct rk_batch **batch, const struct rk_json *columns,
                                            const struct rk_json *json_names)
{
    for (void *it = rk_json_iter(columns); it; it = rk_json_iter_next(columns, it)) {
        const char *name = rk_json_iter_key(it);
        const struct rk_json *values = rk_json_iter_value(it);
        struct rk_column *column;
        struct rk_status *st;

        if (rk_json_type(values) != RK_JSON_ARRAY)
            return RK_FAIL(RK_INVALID_ARGUMENT, "column '%s' of '%s' is %s, expected an array", name,
                           COLUMNS_KEY, rk_json_type_name(rk_json_type(values)));
        st = read_strings(&column, values, is_json_column(json_names, name, values));
        if (st)
            return RK_WRAP(st, "column '%s'", name);
        RK_TRY(put_column(batch, name, column));
    }
    return NULL;
}

/* The other half of a packed column: `name` with `from` replaced by `to` at its end; NULL when there is none.
 */
static const struct rk_st_tensor *find_partner(const struct rk_st_file *file, const char *name,
                                               const char *from, const char *to)
{
    const struct rk_st_tensor *partner;
    char *other;

    if (!rk_str_has_suffix(name, from))
        return NULL;
    other = rk_format("%.*s%s", (int)(strlen(name) - strlen(from)), name, to);
    partner = rk_st_find(file, other);
    rk_free(other);
    return partner;
}

static struct rk_status *check_cu_seqlens_form(const struct rk_st_tensor *tensor)
{
    if (tensor->dtype != RK_DTYPE_I64 || tensor->rank != 1 || tensor->shape[0] < 1)
        return RK_FAIL(RK_INVALID_ARGUMENT, "tensor '%s' must be i64 [rows + 1]", tensor->name);
    return NULL;
}

static struct rk_status *read_packed(struct rk_column **out, const struct rk_st_file *file,
                                     const struct rk_st_tensor *values, const struct rk_st_tensor *cu_seqlens)
{
    struct rk_status *st = NULL;
    void *prefix = NULL;

    *out = NULL;
    RK_TRY(check_cu_seqlens_form(cu_seqlens));
    RK_TRY(rk_try_alloc(&prefix, (size_t)cu_seqlens->bytes, "cu_seqlens"));
    RK_TRY_GOTO(st, rk_st_read(file, cu_seqlens, 0, (size_t)cu_seqlens->bytes, prefix), out);
    RK_TRY_GOTO(st,
                rk_column_create_packed(out, values->dtype, cu_seqlens->shape[0] - 1, prefix, values->rank,
                                        values->shape),
                out);
out:
    rk_free(prefix);
    return st;
}

static struct rk_status *add_tensor_column(struct rk_batch **batch, const struct rk_st_file *file,
                                           const struct rk_st_tensor *tensor)
{
    const struct rk_st_tensor *cu_seqlens =
        find_partner(file, tensor->name, VALUES_SUFFIX, CU_SEQLENS_SUFFIX);
    char *name = rk_strdup(tensor->name);
    struct rk_column *column = NULL;
    struct rk_status *st = NULL;

    if (cu_seqlens) {
        name[strlen(name) - strlen(VALUES_SUFFIX)] = '\0';
        RK_TRY_GOTO(st, read_packed(&column, file, tensor, cu_seqlens), out);
    } else {
        RK_TRY_GOTO(st, rk_column_create_dense(&column, tensor->dtype, tensor->rank, tensor->shape), out);
    }
    RK_ASSERT(rk_column_bytes(column) == tensor->bytes);
    RK_TRY_GOTO(st, rk_st_read(file, tensor, 0, (size_t)tensor->bytes, rk_column_data(column)), out);
    RK_TRY_GOTO(st, put_column(batch, name, rk_column_retain(column)), out);
out:
    rk_column_release(column);
    rk_free(name);
    return st ? RK_WRAP(st, "tensor '%s'", tensor->name) : NULL;
}

static struct rk_status *read_columns(struct rk_batch **batch, const struct rk_st_file *file)
{
    const struct rk_json *metadata = rk_st_metadata(file);
    struct rk_json *columns = NULL, *json_names = NULL, *meta = NULL;
    struct rk_status *st = NULL;

    for (int64_t i = 0; i < rk_st_count(file); i++) {
        const struct rk_st_tensor *tensor = rk_st_at(file, i);

        if (!find_partner(file, tensor->name, CU_SEQLENS_SUFFIX, VALUES_SUFFIX))
            RK_TRY_GOTO(st, add_tensor_column(batch, file, tensor), out);
    }
    RK_TRY_GOTO(st, parse_entry(&columns, metadata, COLUMNS_KEY, RK_JSON_OBJECT), out);
    RK_TRY_GOTO(st, parse_entry(&json_names, metadata, JSON_KEY, RK_JSON_ARRAY), out);
    RK_TRY_GOTO(st, parse_entry(&meta, metadata, META_KEY, RK_JSON_OBJECT), out);
    RK_TRY_GOTO(st, add_string_columns(batch, columns, json_names), out);
    if (!*batch)
        RK_TRY_GOTO(st, rk_batch_create(batch, 0), out);
    if (meta) {
        rk_batch_take_meta(*batch, meta);
        meta = NULL;
    }
out:
    rk_json_free(columns);
    rk_json_free(json_names);
    rk_json_free(meta);
    return st;
}

struct rk_status *rk_batch_read_file(struct rk_batch **out, const char *path)
{
    struct rk_st_file *file = NULL;
    struct rk_batch *batch = NULL;
    struct rk_status *st = NULL;

    *out = NULL;
    RK_TRY_GOTO(st, rk_st_open(&file, path), out);
    RK_TRY_GOTO(st, read_columns(&batch, file), out);
    *out = batch;
    batch = NULL;
out:
    rk_batch_destroy(batch);
    rk_st_close(file);
    return st ? RK_WRAP(st, "reading the batch '%s'", path) : NULL;
}
