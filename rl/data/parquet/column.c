#include "rl/data/parquet/column_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "rl/data/parquet/thrift_internal.h"

#define HEADER_BYTES     1024
#define HEADER_BYTES_MAX (16 << 20) /* its statistics may hold values */
#define DICTIONARY_MAX   (4 << 20)  /* values */
#define PAGE_VALUES_MAX  (1 << 26)

enum page_type { PAGE_DATA = 0, PAGE_INDEX = 1, PAGE_DICTIONARY = 2, PAGE_DATA_V2 = 3 };

struct page_header {
    int64_t type, bytes, stored_bytes; /* bytes when expanded, and in the file */
    int64_t num_values, encoding;
    int64_t def_encoding, rep_encoding; /* of DATA */
    int64_t def_bytes, rep_bytes;       /* of DATA_V2 */
    bool is_compressed;
    bool has_crc;
    uint32_t crc;
};

static struct rk_status *damaged_page(void)
{
    return RK_FAIL(RK_DATA_LOSS, "a page is damaged");
}

static uint8_t *reserve(struct rk_parquet_buffer *buffer, size_t bytes)
{
    if (buffer->capacity < bytes || !buffer->data) {
        rk_free(buffer->data);
        buffer->data = rk_malloc(RK_MAX(bytes, (size_t)1));
        buffer->capacity = bytes;
    }
    return buffer->data;
}

/* --- headers --- */

/* The fields of a page of values: of DataPageHeader, DictionaryPageHeader, or DataPageHeaderV2. */
static void read_part(struct rk_thrift *in, struct page_header *header, bool is_v2)
{
    struct rk_thrift_field field = {0};

    while (rk_thrift_next(in, &field)) {
        if (field.id == 1)
            header->num_values = rk_thrift_int(in, &field);
        else if (field.id == (is_v2 ? 4 : 2))
            header->encoding = rk_thrift_int(in, &field);
        else if (!is_v2 && field.id == 3 && field.type == RK_THRIFT_I32)
            header->def_encoding = rk_thrift_int(in, &field);
        else if (!is_v2 && field.id == 4 && field.type == RK_THRIFT_I32)
            header->rep_encoding = rk_thrift_int(in, &field);
        else if (is_v2 && field.id == 5)
            header->def_bytes = rk_thrift_int(in, &field);
        else if (is_v2 && field.id == 6)
            header->rep_bytes = rk_thrift_int(in, &field);
        else if (is_v2 && field.id == 7)
            header->is_compressed = rk_thrift_int(in, &field) != 0;
        else
            rk_thrift_skip(in, field.type);
    }
}

static void parse_header(struct rk_thrift *in, struct page_header *header)
{
    struct rk_thrift_field field = {0};

    *header = (struct page_header){.is_compressed = true,
                                   .def_encoding = RK_PARQUET_ENCODING_RLE,
                                   .rep_encoding = RK_PARQUET_ENCODING_RLE};
    while (rk_thrift_next(in, &field)) {
        if (field.id == 1) {
            header->type = rk_thrift_int(in, &field);
        } else if (field.id == 2) {
            header->bytes = rk_thrift_int(in, &field);
        } else if (field.id == 3) {
            header->stored_bytes = rk_thrift_int(in, &field);
        } else if (field.id == 4) {
            header->crc = (uint32_t)rk_thrift_int(in, &field);
            header->has_crc = true;
        } else if ((field.id == 5 || field.id == 7 || field.id == 8) && rk_thrift_is_struct(in, &field)) {
            read_part(in, header, field.id == 8);
        } else {
            rk_thrift_skip(in, field.type);
        }
    }
}

/* The length of a header is known after it was parsed: a longer part is tried when the first one is too
 * short. */
static struct rk_status *read_header(struct rk_parquet_column *column, struct page_header *header)
{
    for (int64_t want = HEADER_BYTES;; want *= 16) {
        int64_t bytes = RK_MIN(RK_MIN(want, HEADER_BYTES_MAX), column->end - column->at);
        uint8_t *text = reserve(&column->stored, (size_t)bytes);
        struct rk_thrift in = {.at = text, .end = text + bytes};

        RK_TRY(rk_parquet_pread(column->fd, text, bytes, column->at));
        parse_header(&in, header);
        if (!in.is_bad) {
            column->at += in.at - text;
            break;
        }
        if (bytes < want)
            return RK_FAIL(RK_DATA_LOSS, "the header of a page is damaged");
    }
    if (header->bytes < 0 || header->stored_bytes < 0 || header->stored_bytes > column->end - column->at ||
        header->num_values < 0 || header->num_values > PAGE_VALUES_MAX)
        return RK_FAIL(RK_DATA_LOSS, "the header of a page is damaged");
    if (header->bytes > RK_PARQUET_PAGE_BYTES_MAX || header->stored_bytes > RK_PARQUET_PAGE_BYTES_MAX)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED,
                       "a page has %lld bytes, the limit is %d; write the file with smaller pages",
                       (long long)RK_MAX(header->bytes, header->stored_bytes), RK_PARQUET_PAGE_BYTES_MAX);
    return NULL;
}

/* --- pages --- */

/* Expands the page into `out`; the first `plain` bytes are stored as they are. */
static struct rk_status *read_body(struct rk_parquet_column *column, const struct page_header *header,
                                   int64_t plain, struct rk_parquet_buffer *out)
{
    uint8_t *stored = reserve(&column->stored, (size_t)header->stored_bytes);
    uint8_t *page;

    RK_TRY(rk_parquet_pread(column->fd, stored, header->stored_bytes, column->at));
    column->at += header->stored_bytes;
    if (header->has_crc && rk_parquet_crc(stored, (size_t)header->stored_bytes) != header->crc)
        return RK_FAIL(RK_DATA_LOSS, "a page is damaged: its checksum differs");
    if (plain < 0 || plain > header->bytes || plain > header->stored_bytes)
        return damaged_page();
    page = reserve(out, (size_t)header->bytes);
    memcpy(page, stored, (size_t)plain);
    if (header->stored_bytes == plain) /* levels only: all values are null */
        return header->bytes == plain ? NULL : damaged_page();
    return rk_parquet_expand(header->is_compressed ? column->codec : 0, stored + plain,
                             (size_t)(header->stored_bytes - plain), page + plain,
                             (size_t)(header->bytes - plain));
}

static struct rk_status *read_dictionary(struct rk_parquet_column *column, const struct page_header *header)
{
    struct rk_parquet_values values = {0};
    struct rk_parquet_cell cell;
    struct rk_status *st;
    const uint8_t *page;

    if (column->dictionary.count > 0 || header->num_values > DICTIONARY_MAX)
        return damaged_page();
    RK_TRY(read_body(column, header, 0, &column->dictionary_page));
    page = column->dictionary_page.data;
    st = rk_parquet_values_init(&values, column->leaf, RK_PARQUET_ENCODING_PLAIN,
                                (struct rk_parquet_span){page, page + header->bytes});
    for (int64_t i = 0; i < header->num_values && !st; i++) {
        if (rk_parquet_values_next(&values, &cell))
            rk_array_append(&column->dictionary, cell);
        else
            st = damaged_page();
    }
    rk_parquet_values_fini(&values);
    if (!st && header->num_values > 0)
        column->shared = rk_calloc((size_t)header->num_values, sizeof(struct rk_json *));
    return st;
}

static int width_of_level(int max)
{
    int width = 0;

    for (; max > 0; max >>= 1)
        width++;
    return width;
}

/* Takes `bytes` of the page for levels; of a v1 page their number comes first. */
static bool take_levels(struct rk_parquet_runs *runs, struct rk_parquet_span *in, int max, int64_t bytes)
{
    if (bytes < 0) {
        if (in->end - in->at < 4)
            return false;
        bytes = (int64_t)rk_parquet_little(in->at, 4);
        in->at += 4;
    }
    if (bytes > in->end - in->at)
        return false;
    rk_parquet_runs_init(runs, (struct rk_parquet_span){in->at, in->at + bytes}, width_of_level(max));
    in->at += bytes;
    return true;
}

static struct rk_status *begin_page(struct rk_parquet_column *column, const struct page_header *header)
{
    const struct rk_parquet_node *leaf = column->leaf;
    bool is_v2 = header->type == PAGE_DATA_V2;
    struct rk_parquet_span in;

    if (header->rep_bytes < 0 || header->rep_bytes > header->bytes || header->def_bytes < 0 ||
        header->def_bytes > header->bytes)
        return damaged_page();
    if (header->def_encoding != RK_PARQUET_ENCODING_RLE || header->rep_encoding != RK_PARQUET_ENCODING_RLE)
        return RK_FAIL(RK_UNIMPLEMENTED, "levels in the encoding BIT_PACKED are not supported");
    RK_TRY(read_body(column, header, is_v2 ? header->rep_bytes + header->def_bytes : 0, &column->page));
    in = (struct rk_parquet_span){column->page.data, column->page.data + header->bytes};
    if (leaf->max_rep > 0 || is_v2) {
        if (!take_levels(&column->reps, &in, leaf->max_rep, is_v2 ? header->rep_bytes : -1))
            return damaged_page();
    }
    if (leaf->max_def > 0 || is_v2) {
        if (!take_levels(&column->defs, &in, leaf->max_def, is_v2 ? header->def_bytes : -1))
            return damaged_page();
    }
    if (header->num_values > column->chunk_left)
        return damaged_page();
    column->chunk_left -= header->num_values;
    column->page_left = header->num_values;
    return rk_parquet_values_init(&column->values, leaf, (int)header->encoding, in);
}

/* Reads pages up to the next one that has values. */
static struct rk_status *next_page(struct rk_parquet_column *column)
{
    while (column->page_left == 0) {
        struct page_header header;

        if (column->at >= column->end)
            return RK_FAIL(RK_DATA_LOSS, "its values end early");
        RK_TRY(read_header(column, &header));
        if (header.type == PAGE_DICTIONARY)
            RK_TRY(read_dictionary(column, &header));
        else if (header.type == PAGE_DATA || header.type == PAGE_DATA_V2)
            RK_TRY(begin_page(column, &header));
        else
            column->at += header.stored_bytes;
    }
    return NULL;
}

struct rk_status *rk_parquet_column_advance(struct rk_parquet_column *column)
{
    const struct rk_parquet_node *leaf = column->leaf;
    uint32_t rep = 0, def = 0;

    column->is_end = column->page_left == 0 && column->chunk_left == 0;
    column->rep = column->def = 0;
    if (column->is_end)
        return NULL;
    RK_TRY(next_page(column));
    column->page_left--;
    if ((leaf->max_rep > 0 && !rk_parquet_runs_next(&column->reps, &rep)) ||
        (leaf->max_def > 0 && !rk_parquet_runs_next(&column->defs, &def)) || rep > (uint32_t)leaf->max_rep ||
        def > (uint32_t)leaf->max_def)
        return RK_FAIL(RK_DATA_LOSS, "a page is damaged: its levels");
    column->rep = (int)rep;
    column->def = (int)def;
    return NULL;
}

struct rk_status *rk_parquet_column_value(struct rk_parquet_column *column, struct rk_parquet_cell *cell,
                                          struct rk_json ***shared)
{
    int64_t index;

    *shared = NULL;
    if (!rk_parquet_values_next(&column->values, cell))
        return RK_FAIL(RK_DATA_LOSS, "a page is damaged: its values");
    if (!rk_parquet_is_dictionary(column->values.encoding))
        return NULL;
    index = cell->integer;
    if (index >= column->dictionary.count)
        return RK_FAIL(RK_DATA_LOSS, "a page is damaged: value %lld of a dictionary of %lld",
                       (long long)index, (long long)column->dictionary.count);
    *cell = column->dictionary.items[index];
    *shared = &column->shared[index];
    return NULL;
}

static void drop_dictionary(struct rk_parquet_column *column)
{
    for (int64_t i = 0; column->shared && i < column->dictionary.count; i++)
        rk_json_free(column->shared[i]);
    rk_free(column->shared);
    column->shared = NULL;
    column->dictionary.count = 0;
}

struct rk_status *rk_parquet_column_begin(struct rk_parquet_column *column, int fd,
                                          const struct rk_parquet_node *leaf,
                                          const struct rk_parquet_chunk *chunk)
{
    drop_dictionary(column);
    column->fd = fd;
    column->leaf = leaf;
    column->codec = chunk->codec;
    column->at = chunk->offset;
    column->end = chunk->offset + chunk->bytes;
    column->chunk_left = chunk->num_values;
    column->page_left = 0;
    return rk_parquet_column_advance(column);
}

void rk_parquet_column_fini(struct rk_parquet_column *column)
{
    drop_dictionary(column);
    rk_array_fini(&column->dictionary);
    rk_free(column->stored.data);
    rk_free(column->page.data);
    rk_free(column->dictionary_page.data);
    rk_parquet_values_fini(&column->values);
}
