/* Data files: JSON Lines, JSON arrays and Parquet. One row is in memory at a time, of Parquet a page per
 * column. */
#include "rl/data/rows_internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_log.h"
#include "base/rk_str.h"
#include "rl/data/parquet_internal.h"
#include "base/rk_file.h"
#include "base/rk_small_file.h"

struct reader {
    FILE *file;
    const char *path;
    struct rk_row_place place; /* of the current row */
    rk_row_fn_t on_row;
    void *user;
    bool is_enough;
    int64_t num_mended; /* rows with NaN or integers beyond 64 bits */
    char *first_mended; /* the first of them, and what it holds */
};

static struct rk_status *too_long(void)
{
    return RK_FAIL(RK_RESOURCE_EXHAUSTED, "the row has more than %d bytes", RK_ROW_BYTES_MAX);
}

/* A read error is not the end of the file. */
static struct rk_status *check_read(const struct reader *reader)
{
    return ferror(reader->file) ? rk_file_errno("cannot read the data file", reader->path) : NULL;
}

/* What Python's json.dumps writes beyond JSON is read as the nearest value that JSON has, and counted. */
static struct rk_status *parse_row(struct rk_json **out, struct reader *reader, const char *text,
                                   size_t bytes)
{
    struct rk_status *st = rk_json_parse(out, text, bytes, NULL, RK_JSON_ALLOW_NUL);
    struct rk_status *still = NULL;

    if (!st)
        return NULL;
    still = rk_json_parse(out, text, bytes, NULL,
                          RK_JSON_ALLOW_NUL | RK_JSON_BIG_INT_AS_REAL | RK_JSON_NAN_AS_NULL);
    if (!still) {
        if (reader->num_mended++ == 0)
            reader->first_mended = rk_format("%s:%lld: %s", reader->path, (long long)reader->place.number,
                                             rk_status_message(st));
    }
    rk_status_free(st);
    return still;
}

static struct rk_status *take_row(struct reader *reader, const char *text, size_t bytes)
{
    struct rk_json *row;

    RK_TRY(parse_row(&row, reader, text, bytes));
    if (rk_json_type(row) == RK_JSON_OBJECT)
        return reader->on_row(reader->user, row, &reader->place, &reader->is_enough);
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

/* Reads up to the end of the line; *is_end at the end of the file. */
static struct rk_status *read_line(struct reader *reader, struct rk_str *line, bool *is_end)
{
    int c;

    rk_str_clear(line);
    while ((c = getc_unlocked(reader->file)) != EOF && c != '\n') {
        char byte = (char)c;

        if (line->bytes >= RK_ROW_BYTES_MAX)
            return too_long();
        if (byte == '\0')
            return RK_FAIL(RK_INVALID_ARGUMENT, "a NUL byte: the file is not JSON Lines or a JSON array, "
                                                "or it is damaged");
        rk_str_append_bytes(line, &byte, 1);
    }
    *is_end = c == EOF;
    return NULL;
}

static struct rk_status *read_lines(struct reader *reader)
{
    struct rk_str line = {0};
    struct rk_status *st = NULL;
    bool is_end = false;

    for (reader->place.number = 1; !st && !is_end && !reader->is_enough; reader->place.number += !st) {
        st = read_line(reader, &line, &is_end);
        if (!st && !is_blank(rk_str_text(&line), line.bytes))
            st = take_row(reader, rk_str_text(&line), line.bytes);
    }
    rk_str_fini(&line);
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
        if (item->bytes >= RK_ROW_BYTES_MAX)
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
        reader->place.number = line;
        rk_str_clear(&item);
        st = read_item(reader, c, &item, &line, &end);
        if (!st)
            st = take_row(reader, rk_str_text(&item), item.bytes);
        if (!st && end == ',')
            c = next_char(reader, &line);
    }
    reader->place.number = st ? reader->place.number : line;
    if (!st && !reader->is_enough && next_char(reader, &reader->place.number) != EOF)
        st = RK_FAIL(RK_INVALID_ARGUMENT, "unexpected text after the end of the array");
    rk_str_fini(&item);
    return st;
}

/* --- the kind of a file --- */

static struct rk_status *read_parquet(struct reader *reader)
{
    int fd = fcntl(fileno(reader->file), F_DUPFD_CLOEXEC, 0);
    struct rk_parquet *file;
    struct rk_json *row = NULL;
    struct rk_status *st;
    const char *mended;

    if (fd < 0)
        return rk_file_errno("cannot read the data file", reader->path);
    reader->place = (struct rk_row_place){reader->path, -1, true};
    RK_TRY(rk_parquet_open(&file, fd));
    do {
        st = rk_parquet_next(file, &row);
        reader->place.number = rk_parquet_row(file);
        if (!st && row)
            st = reader->on_row(reader->user, row, &reader->place, &reader->is_enough);
    } while (!st && row && !reader->is_enough);
    mended = rk_parquet_mended(file, &reader->num_mended);
    if (mended)
        reader->first_mended = rk_format("%s:%s", reader->path, mended);
    rk_parquet_close(file);
    return st;
}

static struct rk_status *read_any(struct reader *reader)
{
    char magic[4] = {0};
    int64_t line = 1;
    int first;

    if (fread(magic, 1, sizeof(magic), reader->file) == sizeof(magic) && memcmp(magic, "PAR1", 4) == 0)
        return read_parquet(reader);
    rewind(reader->file);
    first = next_char(reader, &line);
    rewind(reader->file);
    return first == '[' ? read_array(reader) : read_lines(reader);
}

static void warn_of_mended(const struct reader *reader)
{
    if (reader->num_mended > 0)
        RK_WARN(
            "%lld rows of '%s' hold NaN, which is read as null, or integers beyond 64 bits, which are read "
            "as floating-point numbers; the first: %s",
            (long long)reader->num_mended, reader->path, reader->first_mended);
}

char *rk_row_place_text(const struct rk_row_place *place)
{
    if (place->number < 0)
        return rk_strdup(place->path);
    return rk_format("%s:%s%lld", place->path, place->is_row ? "row " : "", (long long)place->number);
}

struct rk_status *rk_rows_read(const char *path, rk_row_fn_t on_row, void *user)
{
    struct reader reader = {.place = {path, 1, false}, .path = path, .on_row = on_row, .user = user};
    struct rk_status *st = rk_open_input(&reader.file, path);
    char *place;

    if (st)
        return RK_WRAP(st, "cannot open the data file");
    st = read_any(&reader);
    place = rk_row_place_text(&reader.place);
    if (st)
        st = RK_WRAP(st, "%s", place);
    else
        st = check_read(&reader);
    if (!st)
        warn_of_mended(&reader);
    rk_free(place);
    rk_free(reader.first_mended);
    fclose(reader.file);
    return st;
}
