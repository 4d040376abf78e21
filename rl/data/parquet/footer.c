/* Parquet's FileMetaData. Sizes and counts are checked against the file before they are used. */
#include "rl/data/parquet/footer_internal.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_json.h"
#include "base/rk_str.h"
#include "rl/data/parquet/thrift_internal.h"

#define FOOTER_BYTES_MAX (16 << 20)
#define NODES_MAX        4096
#define DEPTH_MAX        24 /* below the limit of JSON's nesting */
#define TAIL_BYTES       8  /* length of the footer, and "PAR1" */

struct rk_status *rk_parquet_pread(int fd, void *dst, int64_t bytes, int64_t offset)
{
    char *to = dst;

    while (bytes > 0) {
        ssize_t got = pread(fd, to, (size_t)bytes, (off_t)offset);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return RK_FAIL(RK_INTERNAL, "reading: %s", strerror(errno));
        if (got == 0)
            return RK_FAIL(RK_DATA_LOSS, "the file ends early: it is cut or damaged");
        to += got;
        offset += got;
        bytes -= got;
    }
    return NULL;
}

void rk_parquet_footer_fini(struct rk_parquet_footer *footer)
{
    for (int64_t i = 0; i < footer->nodes.count; i++)
        rk_free(footer->nodes.items[i].name);
    rk_array_fini(&footer->nodes);
    rk_array_fini(&footer->leaves);
    rk_array_fini(&footer->chunks);
    rk_array_fini(&footer->groups);
}

/* False for the groups inside of a list, which only the format needs. */
static bool is_name_shown(const struct rk_parquet_footer *footer, int64_t index)
{
    const struct rk_parquet_node *node = &footer->nodes.items[index];
    const struct rk_parquet_node *parent = &footer->nodes.items[node->parent];
    bool is_list = parent->kind == RK_PARQUET_LIST || parent->kind == RK_PARQUET_MAP;

    if (is_list || node->parent == 0 || parent->parent < 0)
        return !is_list;
    return footer->nodes.items[parent->parent].kind != RK_PARQUET_LIST;
}

char *rk_parquet_path(const struct rk_parquet_footer *footer, int64_t node)
{
    char *path = rk_strdup("");

    for (int64_t at = node; at > 0; at = footer->nodes.items[at].parent) {
        char *longer;

        if (!is_name_shown(footer, at))
            continue;
        longer = rk_format("%s%s%s", footer->nodes.items[at].name, *path ? "." : "", path);
        rk_free(path);
        path = longer;
    }
    return path;
}

/* --- columns --- */

static void read_unit(struct rk_thrift *in, struct rk_parquet_node *node)
{
    struct rk_thrift_field field = {0};

    while (rk_thrift_next(in, &field)) {
        node->per_second = field.id == 1 ? 1000 : field.id == 2 ? 1000000 : 1000000000;
        rk_thrift_skip(in, field.type);
    }
}

/* The parameters of TIME and TIMESTAMP (1: UTC, 2: unit), DECIMAL (1: scale) and INTEGER (2: signed). */
static void read_parameters(struct rk_thrift *in, struct rk_parquet_node *node)
{
    struct rk_thrift_field field = {0};
    bool is_time = node->kind == RK_PARQUET_TIME || node->kind == RK_PARQUET_TIMESTAMP;

    while (rk_thrift_next(in, &field)) {
        if (is_time && field.id == 1)
            node->is_utc = rk_thrift_int(in, &field) != 0;
        else if (is_time && field.id == 2 && rk_thrift_is_struct(in, &field))
            read_unit(in, node);
        else if (node->kind == RK_PARQUET_DECIMAL && field.id == 1)
            node->scale = (int)rk_thrift_int(in, &field);
        else if (node->kind == RK_PARQUET_UNSIGNED && field.id == 2)
            node->kind = rk_thrift_int(in, &field) ? RK_PARQUET_PLAIN : RK_PARQUET_UNSIGNED;
        else
            rk_thrift_skip(in, field.type);
    }
}

static void read_logical_type(struct rk_thrift *in, struct rk_parquet_node *node)
{
    static const rk_parquet_kind_t kinds[] = {
        [1] = RK_PARQUET_TEXT,  [2] = RK_PARQUET_MAP,       [3] = RK_PARQUET_LIST,
        [4] = RK_PARQUET_TEXT,  [5] = RK_PARQUET_DECIMAL,   [6] = RK_PARQUET_DATE,
        [7] = RK_PARQUET_TIME,  [8] = RK_PARQUET_TIMESTAMP, [10] = RK_PARQUET_UNSIGNED,
        [12] = RK_PARQUET_TEXT, [15] = RK_PARQUET_HALF,
    };
    struct rk_thrift_field field = {0};

    while (rk_thrift_next(in, &field)) {
        if (!rk_thrift_is_struct(in, &field))
            return;
        node->kind =
            field.id >= 0 && field.id < (int)RK_ARRAY_LEN(kinds) ? kinds[field.id] : RK_PARQUET_PLAIN;
        read_parameters(in, node);
    }
}

static void set_converted_type(struct rk_parquet_node *node, int64_t type)
{
    static const struct {
        rk_parquet_kind_t kind;
        int64_t per_second;
    } kinds[] = {
        {RK_PARQUET_TEXT, 0},
        {RK_PARQUET_MAP, 0},
        {RK_PARQUET_MAP, 0},
        {RK_PARQUET_LIST, 0},
        {RK_PARQUET_TEXT, 0},
        {RK_PARQUET_DECIMAL, 0},
        {RK_PARQUET_DATE, 0},
        {RK_PARQUET_TIME, 1000},
        {RK_PARQUET_TIME, 1000000},
        {RK_PARQUET_TIMESTAMP, 1000},
        {RK_PARQUET_TIMESTAMP, 1000000},
        {RK_PARQUET_UNSIGNED, 0},
        {RK_PARQUET_UNSIGNED, 0},
        {RK_PARQUET_UNSIGNED, 0},
        {RK_PARQUET_UNSIGNED, 0},
        {RK_PARQUET_PLAIN, 0},
        {RK_PARQUET_PLAIN, 0},
        {RK_PARQUET_PLAIN, 0},
        {RK_PARQUET_PLAIN, 0},
        {RK_PARQUET_TEXT, 0},
    };

    if (type < 0 || type >= (int64_t)RK_ARRAY_LEN(kinds))
        return;
    node->kind = kinds[type].kind;
    node->per_second = kinds[type].per_second;
    node->is_utc = true; /* both older kinds of times are in UTC */
}

static void read_node(struct rk_thrift *in, struct rk_parquet_node *node)
{
    struct rk_thrift_field field = {0};
    bool has_logical_type = false;
    int64_t converted = -1;
    const uint8_t *name;
    size_t bytes;

    *node = (struct rk_parquet_node){.type = RK_PARQUET_TYPE_COUNT};
    while (rk_thrift_next(in, &field)) {
        if (field.id == 1) {
            uint64_t type = (uint64_t)rk_thrift_int(in, &field);

            node->type = (rk_parquet_type_t)RK_MIN(type, (uint64_t)RK_PARQUET_TYPE_COUNT);
        } else if (field.id == 2) {
            node->type_bytes = rk_thrift_int(in, &field);
        } else if (field.id == 3) {
            node->repetition = (rk_parquet_repetition_t)(rk_thrift_int(in, &field) & 3);
        } else if (field.id == 4 && !node->name) {
            name = rk_thrift_binary(in, &field, &bytes);
            node->name = rk_strndup((const char *)name, bytes);
        } else if (field.id == 5) {
            node->num_children = rk_thrift_int(in, &field);
        } else if (field.id == 6) {
            converted = rk_thrift_int(in, &field);
        } else if (field.id == 7) {
            node->scale = (int)rk_thrift_int(in, &field);
        } else if (field.id == 10 && rk_thrift_is_struct(in, &field)) {
            read_logical_type(in, node);
            has_logical_type = true;
        } else {
            rk_thrift_skip(in, field.type);
        }
    }
    if (!has_logical_type)
        set_converted_type(node, converted);
}

static struct rk_status *damaged(const char *what)
{
    return RK_FAIL(RK_DATA_LOSS, "the footer is damaged: %s", what);
}

static struct rk_status *check_node(const struct rk_parquet_node *node, int depth)
{
    if (!node->name || !rk_utf8_is_valid(node->name, strlen(node->name)))
        return damaged("a column without a name");
    if (depth > DEPTH_MAX)
        return RK_FAIL(RK_INVALID_ARGUMENT, "columns nest deeper than %d", DEPTH_MAX);
    if (node->is_leaf && (node->type == RK_PARQUET_TYPE_COUNT || node->repetition > RK_PARQUET_REPEATED))
        return damaged("a column without a type");
    if (node->is_leaf && node->type == RK_PARQUET_FIXED &&
        (node->type_bytes <= 0 || node->type_bytes > 1 << 20))
        return damaged("the width of a column");
    if (node->num_children < 0 || node->num_children > NODES_MAX)
        return damaged("the number of columns");
    return NULL;
}

/* Lists and maps are the groups of the specification's form; other groups with such a mark are read as they
 * are. */
static void check_kind(struct rk_parquet_footer *footer, int64_t index)
{
    struct rk_parquet_node *node = &footer->nodes.items[index], *child = node + 1;
    bool has_list = node->num_children == 1 && child->repetition == RK_PARQUET_REPEATED;

    if (node->is_leaf)
        return;
    if (node->kind == RK_PARQUET_MAP && has_list && child->num_children == 2)
        child->kind = RK_PARQUET_PLAIN; /* marked as a map by older writers */
    else if (node->kind != RK_PARQUET_LIST || !has_list)
        node->kind = RK_PARQUET_PLAIN;
}

static struct rk_status *check_names(const struct rk_parquet_footer *footer, int64_t index)
{
    const struct rk_parquet_node *nodes = footer->nodes.items;

    for (int64_t a = index + 1; a < nodes[index].end; a = nodes[a].end) {
        for (int64_t b = nodes[a].end; b < nodes[index].end; b = nodes[b].end) {
            if (strcmp(nodes[a].name, nodes[b].name) == 0)
                return RK_FAIL(RK_INVALID_ARGUMENT, "two columns have the name '%s'; rename one of them",
                               nodes[a].name);
        }
    }
    return NULL;
}

/* Reads a node and the nodes below it; `left` is the number of elements of the list. */
static struct rk_status *read_tree(struct rk_parquet_footer *footer, struct rk_thrift *in, int64_t parent,
                                   int depth, int64_t *left)
{
    int64_t index = footer->nodes.count;
    struct rk_parquet_node node;

    if (--*left < 0)
        return damaged("the tree of columns");
    read_node(in, &node);
    node.parent = parent;
    node.is_leaf = node.num_children == 0 && parent >= 0;
    node.leaf = footer->leaves.count;
    if (parent >= 0) {
        node.max_def = footer->nodes.items[parent].max_def + (node.repetition != RK_PARQUET_REQUIRED);
        node.max_rep = footer->nodes.items[parent].max_rep + (node.repetition == RK_PARQUET_REPEATED);
    }
    rk_array_append(&footer->nodes, node);
    RK_TRY(check_node(&node, depth));
    if (node.is_leaf)
        rk_array_append(&footer->leaves, index);
    for (int64_t i = 0; i < node.num_children; i++)
        RK_TRY(read_tree(footer, in, index, depth + 1, left));
    footer->nodes.items[index].end = footer->nodes.count;
    if (parent >= 0)
        check_kind(footer, index);
    return check_names(footer, index);
}

/* --- row groups --- */

static void read_chunk_data(struct rk_thrift *in, struct rk_parquet_chunk *chunk)
{
    struct rk_thrift_field field = {0};
    int64_t data = 0, dictionary = 0;

    while (rk_thrift_next(in, &field)) {
        if (field.id == 4)
            chunk->codec = (int)rk_thrift_int(in, &field);
        else if (field.id == 5)
            chunk->num_values = rk_thrift_int(in, &field);
        else if (field.id == 7)
            chunk->bytes = rk_thrift_int(in, &field);
        else if (field.id == 9)
            data = rk_thrift_int(in, &field);
        else if (field.id == 11)
            dictionary = rk_thrift_int(in, &field);
        else
            rk_thrift_skip(in, field.type);
    }
    chunk->offset = dictionary > 0 && dictionary < data ? dictionary : data;
}

static struct rk_status *read_chunk(struct rk_parquet_footer *footer, struct rk_thrift *in,
                                    int64_t file_bytes)
{
    struct rk_parquet_chunk chunk = {.num_values = -1};
    struct rk_thrift_field field = {0};

    while (rk_thrift_next(in, &field)) {
        if (field.id == 1)
            return RK_FAIL(RK_UNIMPLEMENTED, "its columns are in other files, which is not supported");
        if (field.id == 8)
            return RK_FAIL(RK_UNIMPLEMENTED, "it is encrypted, which is not supported");
        if (field.id == 3 && rk_thrift_is_struct(in, &field))
            read_chunk_data(in, &chunk);
        else
            rk_thrift_skip(in, field.type);
    }
    if (chunk.num_values < 0 || (chunk.num_values > 0 && chunk.offset < 4) || chunk.offset < 0 ||
        chunk.bytes < 0 || chunk.offset > file_bytes || chunk.bytes > file_bytes - chunk.offset)
        return damaged("the place of a column's values");
    rk_array_append(&footer->chunks, chunk);
    return NULL;
}

static struct rk_status *read_group(struct rk_parquet_footer *footer, struct rk_thrift *in,
                                    int64_t file_bytes)
{
    struct rk_parquet_group group = {.num_rows = -1, .first_chunk = footer->chunks.count};
    struct rk_thrift_field field = {0};

    while (rk_thrift_next(in, &field)) {
        if (field.id == 1) {
            for (int64_t left = rk_thrift_list(in, &field, RK_THRIFT_STRUCT); left > 0; left--)
                RK_TRY(read_chunk(footer, in, file_bytes));
        } else if (field.id == 3) {
            group.num_rows = rk_thrift_int(in, &field);
        } else {
            rk_thrift_skip(in, field.type);
        }
    }
    if (footer->chunks.count - group.first_chunk != footer->leaves.count || group.num_rows < 0)
        return damaged("a row group without all columns");
    rk_array_append(&footer->groups, group);
    return NULL;
}

/* --- all of it --- */

static struct rk_status *read_metadata(struct rk_parquet_footer *footer, struct rk_thrift *in,
                                       int64_t file_bytes)
{
    struct rk_thrift_field field = {0};

    while (rk_thrift_next(in, &field)) {
        if (field.id == 2 && footer->nodes.count == 0) {
            int64_t left = rk_thrift_list(in, &field, RK_THRIFT_STRUCT);

            if (left > NODES_MAX)
                return RK_FAIL(RK_INVALID_ARGUMENT, "it has more than %d columns", NODES_MAX);
            RK_TRY(read_tree(footer, in, -1, 0, &left));
            if (left > 0)
                return damaged("the tree of columns");
        } else if (field.id == 4) {
            if (footer->leaves.count == 0) /* a group without chunks would pass */
                return damaged("row groups before the columns");
            for (int64_t left = rk_thrift_list(in, &field, RK_THRIFT_STRUCT); left > 0; left--)
                RK_TRY(read_group(footer, in, file_bytes));
        } else {
            rk_thrift_skip(in, field.type);
        }
    }
    return in->is_bad || footer->leaves.count == 0 ? damaged("it is not complete") : NULL;
}

struct rk_status *rk_parquet_footer_read(struct rk_parquet_footer *footer, int fd)
{
    struct rk_status *st = NULL;
    uint8_t tail[TAIL_BYTES];
    struct rk_thrift in = {0};
    struct stat info;
    uint32_t bytes;
    uint8_t *text;

    if (fstat(fd, &info) != 0)
        return RK_FAIL(RK_INTERNAL, "reading its size: %s", strerror(errno));
    if (info.st_size < 4 + TAIL_BYTES)
        return RK_FAIL(RK_DATA_LOSS, "the file is cut: %lld bytes", (long long)info.st_size);
    RK_TRY(rk_parquet_pread(fd, tail, TAIL_BYTES, info.st_size - TAIL_BYTES));
    if (memcmp(tail + 4, "PARE", 4) == 0)
        return RK_FAIL(RK_UNIMPLEMENTED, "it is encrypted, which is not supported");
    if (memcmp(tail + 4, "PAR1", 4) != 0)
        return RK_FAIL(RK_DATA_LOSS, "the file does not end with PAR1: it is cut or damaged");
    bytes = (uint32_t)tail[0] | (uint32_t)tail[1] << 8 | (uint32_t)tail[2] << 16 | (uint32_t)tail[3] << 24;
    if (bytes > FOOTER_BYTES_MAX || bytes > (uint64_t)info.st_size - 4 - TAIL_BYTES)
        return damaged("its size");
    text = rk_malloc(RK_MAX(bytes, 1u));
    st = rk_parquet_pread(fd, text, bytes, info.st_size - TAIL_BYTES - bytes);
    in.at = text;
    in.end = text + bytes;
    if (!st)
        st = read_metadata(footer, &in, info.st_size);
    rk_free(text);
    return st;
}
