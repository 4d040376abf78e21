/* Rows from columns. The levels of the values say where lists begin and end, and where something is null: a
 * value with repetition level r continues the list of depth r, and one with definition level d has what is
 * there on the way to it up to depth d. */
#include "rl/data/parquet_internal.h"

#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "rl/data/parquet/values_internal.h"
#include "rl/data/rows_internal.h"

#define VALUE_BYTES 16 /* of a value in the limit of a row, besides its text */

struct rk_parquet {
    int fd;
    struct rk_parquet_footer footer;
    struct rk_parquet_column *columns; /* one per leaf */
    int64_t group;                     /* the next one */
    int64_t rows_left;                 /* of the current one */
    int64_t row;                       /* the next one */
    int64_t row_bytes;                 /* of the row that is read */
    int64_t num_mended;                /* rows */
    int64_t last_mended;               /* the last mended row; 0: none */
    char *first_mended;
};

static struct rk_status *at_column(struct rk_status *st, const struct rk_parquet *file, int64_t node)
{
    char *path;

    if (!st)
        return NULL;
    path = rk_parquet_path(&file->footer, node);
    st = RK_WRAP(st, "%s", path);
    rk_free(path);
    return st;
}

struct rk_status *rk_parquet_open(struct rk_parquet **out, int fd)
{
    struct rk_parquet *file = rk_calloc(1, sizeof(*file));
    struct rk_status *st;

    *out = NULL;
    file->fd = fd;
    st = rk_parquet_footer_read(&file->footer, fd);
    if (st) {
        rk_parquet_close(file);
        return st;
    }
    file->columns = rk_calloc((size_t)file->footer.leaves.count, sizeof(*file->columns));
    *out = file;
    return NULL;
}

void rk_parquet_close(struct rk_parquet *file)
{
    if (!file)
        return;
    for (int64_t i = 0; file->columns && i < file->footer.leaves.count; i++)
        rk_parquet_column_fini(&file->columns[i]);
    rk_free(file->columns);
    rk_parquet_footer_fini(&file->footer);
    rk_free(file->first_mended);
    close(file->fd);
    rk_free(file);
}

int64_t rk_parquet_row(const struct rk_parquet *file)
{
    return file->row > 0 ? file->row - 1 : 0;
}

const char *rk_parquet_mended(const struct rk_parquet *file, int64_t *count)
{
    *count = file->num_mended;
    return file->first_mended;
}

/* --- values --- */

static void count_mended(struct rk_parquet *file, int64_t node, bool is_null)
{
    if (file->last_mended == file->row)
        return;
    file->last_mended = file->row;
    if (file->num_mended++ == 0) {
        char *path = rk_parquet_path(&file->footer, node);

        file->first_mended = rk_format("row %lld: %s: %s", (long long)(file->row - 1), path,
                                       is_null ? "NaN" : "beyond 64 bits");
        rk_free(path);
    }
}

/* The current value of the leaf; NULL for null. */
static struct rk_status *read_leaf(struct rk_json **out, struct rk_parquet *file, int64_t node)
{
    const struct rk_parquet_node *leaf = &file->footer.nodes.items[node];
    struct rk_parquet_column *column = &file->columns[leaf->leaf];
    struct rk_parquet_cell cell;
    struct rk_json **shared;
    bool is_mended = false;
    struct rk_status *st;

    *out = NULL;
    RK_TRY(rk_parquet_column_value(column, &cell, &shared));
    if (shared && *shared)
        *out = rk_json_retain(*shared);
    else
        RK_TRY(rk_parquet_to_json(out, leaf, &cell, &is_mended));
    if (is_mended)
        count_mended(file, node, !*out);
    if (shared && !*shared && *out && !is_mended)
        *shared = rk_json_retain(*out);
    file->row_bytes += VALUE_BYTES + (int64_t)cell.bytes;
    if (file->row_bytes > RK_ROW_BYTES_MAX)
        st = RK_FAIL(RK_RESOURCE_EXHAUSTED, "the row has more than %d bytes", RK_ROW_BYTES_MAX);
    else
        st = rk_parquet_column_advance(column);
    if (st) {
        rk_json_free(*out);
        *out = NULL;
    }
    return st;
}

/* --- groups --- */

static struct rk_status *read_field(struct rk_json **out, struct rk_parquet *file, int64_t node);
static struct rk_status *read_value(struct rk_json **out, struct rk_parquet *file, int64_t node);

/* Members that are null are left out: Arrow gives every row the members of all rows. */
static struct rk_status *read_members(struct rk_json **out, struct rk_parquet *file, int64_t node)
{
    const struct rk_parquet_node *nodes = file->footer.nodes.items;
    struct rk_json *object = rk_json_new_object(), *value;
    struct rk_status *st = NULL;

    for (int64_t child = node + 1; !st && child < nodes[node].end; child = nodes[child].end) {
        st = read_field(&value, file, child);
        if (!st && value)
            rk_json_set(object, nodes[child].name, value);
    }
    if (st) {
        rk_json_free(object);
        object = NULL;
    }
    *out = object;
    return st;
}

/* [key, value] of a map's group. */
static struct rk_status *read_pair(struct rk_json **out, struct rk_parquet *file, int64_t node)
{
    const struct rk_parquet_node *nodes = file->footer.nodes.items;
    struct rk_json *pair = rk_json_new_array(), *value;
    struct rk_status *st = NULL;

    for (int64_t child = node + 1; !st && child < nodes[node].end; child = nodes[child].end) {
        st = read_field(&value, file, child);
        if (!st)
            rk_json_append(pair, value ? value : rk_json_new_null());
    }
    if (st) {
        rk_json_free(pair);
        pair = NULL;
    }
    *out = pair;
    return st;
}

/* An element of the repeated group below a LIST: its only member, or the group itself in files of old
 * writers. */
static struct rk_status *read_element(struct rk_json **out, struct rk_parquet *file, int64_t node)
{
    const struct rk_parquet_node *group = &file->footer.nodes.items[node];
    const struct rk_parquet_node *parent = &file->footer.nodes.items[group->parent];
    bool is_old = group->is_leaf || group->num_children != 1 || strcmp(group->name, "array") == 0 ||
                  rk_str_has_suffix(group->name, "_tuple");

    if (parent->kind == RK_PARQUET_MAP)
        return read_pair(out, file, node);
    return parent->kind == RK_PARQUET_LIST && !is_old ? read_field(out, file, node + 1)
                                                      : read_value(out, file, node);
}

/* The value of a node that is not null. */
static struct rk_status *read_value(struct rk_json **out, struct rk_parquet *file, int64_t node)
{
    const struct rk_parquet_node *at = &file->footer.nodes.items[node];

    if (at->is_leaf)
        return at_column(read_leaf(out, file, node), file, node);
    if (at->kind == RK_PARQUET_LIST || at->kind == RK_PARQUET_MAP)
        return read_field(out, file, node + 1);
    return read_members(out, file, node);
}

/* Skips a node that is null, or below a group that is null: each of its columns has one entry for it. */
static struct rk_status *skip_null(struct rk_parquet *file, int64_t node)
{
    const struct rk_parquet_node *nodes = file->footer.nodes.items;

    for (int64_t i = node; i < nodes[node].end; i++) {
        if (nodes[i].is_leaf)
            RK_TRY(at_column(rk_parquet_column_advance(&file->columns[nodes[i].leaf]), file, i));
    }
    return NULL;
}

static struct rk_status *read_list(struct rk_json **out, struct rk_parquet *file, int64_t node)
{
    const struct rk_parquet_node *at = &file->footer.nodes.items[node];
    const struct rk_parquet_column *first = &file->columns[at->leaf];
    struct rk_json *list = rk_json_new_array(), *element;
    struct rk_status *st;

    do {
        st = read_element(&element, file, node);
        if (!st)
            rk_json_append(list, element ? element : rk_json_new_null());
        file->row_bytes += VALUE_BYTES;
        if (!st && file->row_bytes > RK_ROW_BYTES_MAX)
            st = RK_FAIL(RK_RESOURCE_EXHAUSTED, "the row has more than %d bytes", RK_ROW_BYTES_MAX);
    } while (!st && !first->is_end && first->rep == at->max_rep);
    if (st) {
        rk_json_free(list);
        list = NULL;
    }
    *out = list;
    return st;
}

/* The value of a node that may be null (*out is NULL) or repeated. */
static struct rk_status *read_field(struct rk_json **out, struct rk_parquet *file, int64_t node)
{
    const struct rk_parquet_node *at = &file->footer.nodes.items[node];
    const struct rk_parquet_column *first = &file->columns[at->leaf];

    *out = NULL;
    if (first->is_end)
        return at_column(RK_FAIL(RK_DATA_LOSS, "its values end early"), file, node);
    if (first->def < at->max_def) {
        RK_TRY(skip_null(file, node));
        if (at->repetition == RK_PARQUET_REPEATED)
            *out = rk_json_new_array();
        return NULL;
    }
    return at->repetition == RK_PARQUET_REPEATED ? read_list(out, file, node) : read_value(out, file, node);
}

/* --- rows --- */

static struct rk_status *begin_group(struct rk_parquet *file)
{
    const struct rk_parquet_footer *footer = &file->footer;
    const struct rk_parquet_group *group = &footer->groups.items[file->group++];

    file->rows_left = group->num_rows;
    for (int64_t i = 0; file->rows_left > 0 && i < footer->leaves.count; i++) {
        int64_t node = footer->leaves.items[i];

        RK_TRY(at_column(rk_parquet_column_begin(&file->columns[i], file->fd, &footer->nodes.items[node],
                                                 &footer->chunks.items[group->first_chunk + i]),
                         file, node));
    }
    return NULL;
}

/* All columns are at the beginning of a row, or the levels of a damaged file disagree. */
static struct rk_status *check_row(const struct rk_parquet *file)
{
    for (int64_t i = 0; i < file->footer.leaves.count; i++) {
        const struct rk_parquet_column *column = &file->columns[i];

        if (column->rep != 0 || column->is_end != (file->rows_left == 0))
            return at_column(
                RK_FAIL(RK_DATA_LOSS, "it has another number of values than the columns beside it"), file,
                file->footer.leaves.items[i]);
    }
    return NULL;
}

struct rk_status *rk_parquet_next(struct rk_parquet *file, struct rk_json **out)
{
    struct rk_status *st;

    *out = NULL;
    while (file->rows_left == 0) {
        if (file->group == file->footer.groups.count)
            return NULL;
        RK_TRY(begin_group(file));
    }
    file->row++;
    file->rows_left--;
    file->row_bytes = 0;
    st = read_members(out, file, 0);
    if (!st)
        st = check_row(file);
    if (st) {
        rk_json_free(*out);
        *out = NULL;
    }
    return st;
}
