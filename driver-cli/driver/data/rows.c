/* Data files: JSON Lines and JSON arrays. Either way one row is in memory at a time, and each has a line. */
#include "driver-cli/driver/data/rows_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "driver-cli/driver/files_internal.h"

#define ROW_BYTES_MAX (16 << 20)

struct reader {
    FILE *file;
    const char *path;
    int64_t line; /* of the current row */
    rk_row_fn_t on_row;
    void *user;
    bool is_enough;
};

static struct rk_status *too_long(void)
{
    return RK_FAIL(RK_RESOURCE_EXHAUSTED, "the row has more than %d bytes", ROW_BYTES_MAX);
}

/* A read error, for example of a directory, is not the end of the file. */
static struct rk_status *check_read(const struct reader *reader)
{
    return ferror(reader->file) ? rk_errno_status("cannot read the data file", reader->path) : NULL;
}

static struct rk_status *take_row(struct reader *reader, const char *text, size_t bytes)
{
    struct rk_json *row;

    RK_TRY(rk_json_parse(&row, text, bytes, "row", 0));
    if (rk_json_type(row) == RK_JSON_OBJECT)
        return reader->on_row(reader->user, row, &reader->is_enough);
    rk_json_free(row);
    return RK_FAIL(RK_INVALID_ARGUMENT, "expected a JSON object");
}

static bool is_blank(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (!memchr(" \t\r\n", text[i], 4))
            return false;
    }
    return true;
}

static struct rk_status *read_lines(struct reader *reader)
{
    struct rk_status *st = NULL;
    char *line = NULL;
    size_t capacity = 0;

    for (reader->line = 1; !st && !reader->is_enough; reader->line += !st) {
        ssize_t bytes = getline(&line, &capacity, reader->file);

        if (bytes < 0)
            break;
        if (bytes > ROW_BYTES_MAX)
            st = too_long();
        else if (!is_blank(line, (size_t)bytes))
            st = take_row(reader, line, (size_t)bytes);
    }
    rk_free(line);
    return st;
}

/* --- arrays --- */

/* The next non-white-space character; EOF at the end. Counts lines. */
static int next_char(struct reader *reader, int64_t *line)
{
    int c;

    do {
        c = getc_unlocked(reader->file);
        *line += c == '\n';
    } while (c == ' ' || c == '\t' || c == '\r' || c == '\n');
    return c;
}

/* Reads an item from its first character on up to the "," or "]" after it, which *end receives. The parser
 * checks the text between; only strings and brackets are recognised here. */
static struct rk_status *read_item(struct reader *reader, int c, struct rk_str *item, int64_t *line, int *end)
{
    bool is_string = false, is_escaped = false;
    int64_t depth = 0;

    for (; c != EOF; c = getc_unlocked(reader->file)) {
        char byte = (char)c;

        if (!is_string && depth == 0 && (c == ',' || c == ']'))
            break;
        if (item->bytes >= ROW_BYTES_MAX)
            return too_long();
        rk_str_append_bytes(item, &byte, 1);
        *line += c == '\n';
        if (c == '"' && !is_escaped)
            is_string = !is_string;
        is_escaped = is_string && c == '\\' && !is_escaped;
        if (!is_string)
            depth += (c == '{' || c == '[') - (c == '}' || c == ']');
    }
    *end = c;
    return c == EOF ? RK_FAIL(RK_INVALID_ARGUMENT, "the file ends inside of a row: the array has no ']'")
                    : NULL;
}

static struct rk_status *read_array(struct reader *reader)
{
    struct rk_str item = {0};
    struct rk_status *st = NULL;
    int64_t line = 1;
    int c = next_char(reader, &line), end = '[';

    c = next_char(reader, &line);
    if (c == ']')
        end = c;
    while (!st && end != ']' && !reader->is_enough) {
        reader->line = line;
        rk_str_clear(&item);
        st = read_item(reader, c, &item, &line, &end);
        if (!st)
            st = take_row(reader, rk_str_text(&item), item.bytes);
        if (!st && end == ',')
            c = next_char(reader, &line);
    }
    reader->line = st ? reader->line : line;
    if (!st && !reader->is_enough && next_char(reader, &reader->line) != EOF)
        st = RK_FAIL(RK_INVALID_ARGUMENT, "unexpected text after the end of the array");
    rk_str_fini(&item);
    return st;
}

/* --- the kind of a file --- */

static struct rk_status *refuse_parquet(void)
{
    return RK_FAIL(RK_INVALID_ARGUMENT,
                   "a Parquet file; convert it with the script that comes with rankd: python3 "
                   "share/rankd/python/rankd_parquet_to_jsonl.py IN.parquet OUT.jsonl");
}

static struct rk_status *read_any(struct reader *reader)
{
    char magic[4] = {0};
    int64_t line = 1;
    int first;

    reader->line = 1;
    if (fread(magic, 1, sizeof(magic), reader->file) == sizeof(magic) && memcmp(magic, "PAR1", 4) == 0)
        return refuse_parquet();
    rewind(reader->file);
    first = next_char(reader, &line);
    rewind(reader->file);
    return first == '[' ? read_array(reader) : read_lines(reader);
}

struct rk_status *rk_rows_read(const char *path, rk_row_fn_t on_row, void *user)
{
    struct reader reader = {.path = path, .on_row = on_row, .user = user};
    struct rk_status *st;

    reader.file = fopen(path, "re");
    if (!reader.file)
        return rk_errno_status("cannot open the data file", path);
    st = read_any(&reader);
    if (st)
        st = RK_WRAP(st, "%s:%lld", path, (long long)reader.line);
    else
        st = check_read(&reader);
    fclose(reader.file);
    return st;
}
