/* Writing safetensors: all sizes are declared first, so the header and every offset are known before the
 * first byte of data, and pieces may come in any order. */
#include "base/format/rk_safetensors.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_file_io.h"
#include "base/rk_map.h"
#include "base/rk_str.h"

#define LENGTH_BYTES     8
#define HEADER_ALIGNMENT 8 /* so that every tensor is aligned to its element */

struct slot {
    char *name;
    uint64_t offset; /* from the start of the file */
    uint64_t bytes;
    uint64_t written;
};

struct rk_st_writer {
    struct rk_pending_file file;
    struct slot *slots; /* [num_slots] in the order of the caller's entries */
    int64_t num_slots;
    uint64_t file_bytes;
};

struct ordered_entry {
    const struct rk_st_entry *entry;
    struct slot *slot;
};

/* Place of a dtype in the reference implementation's enum, whose descending order the files have. */
static int reference_place(rk_dtype_t dtype)
{
    static const rk_dtype_t ascending[] = {RK_DTYPE_BOOL,   RK_DTYPE_U8,  RK_DTYPE_I8,  RK_DTYPE_F8E5M2,
                                           RK_DTYPE_F8E4M3, RK_DTYPE_I16, RK_DTYPE_F16, RK_DTYPE_BF16,
                                           RK_DTYPE_I32,    RK_DTYPE_F32, RK_DTYPE_F64, RK_DTYPE_I64};
    int place = 0;

    _Static_assert(RK_ARRAY_LEN(ascending) == RK_DTYPE_COUNT - 1, "every element type has a place");
    while (ascending[place] != dtype)
        place++;
    return place;
}

int rk_st_compare(rk_dtype_t dtype, const char *name, rk_dtype_t other_dtype, const char *other_name)
{
    if (dtype != other_dtype)
        return reference_place(other_dtype) - reference_place(dtype);
    return strcmp(name, other_name);
}

static int compare_entries(const void *a, const void *b)
{
    const struct rk_st_entry *x = ((const struct ordered_entry *)a)->entry;
    const struct rk_st_entry *y = ((const struct ordered_entry *)b)->entry;

    return rk_st_compare(x->dtype, x->name, y->dtype, y->name);
}

static struct rk_status *check_entry(const struct rk_st_entry *entry, uint64_t *bytes)
{
    if (!rk_utf8_is_valid(entry->name, strlen(entry->name)))
        return RK_FAIL(RK_INVALID_ARGUMENT, "a tensor's name is not valid UTF-8");
    if (strcmp(entry->name, "__metadata__") == 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "'__metadata__' cannot be the name of a tensor");
    if (!rk_dtype_is_valid((int)entry->dtype) || entry->rank < 0 || entry->rank > RK_ST_MAX_RANK)
        return RK_FAIL(RK_INVALID_ARGUMENT, "tensor '%s': dtype %d with %d dimensions cannot be written",
                       entry->name, (int)entry->dtype, entry->rank);
    *bytes = rk_dtype_bytes(entry->dtype);
    for (int32_t i = 0; i < entry->rank; i++) {
        if (entry->shape[i] < 0 || __builtin_mul_overflow(*bytes, (uint64_t)entry->shape[i], bytes) ||
            *bytes > INT64_MAX)
            return RK_FAIL(RK_INVALID_ARGUMENT, "tensor '%s': dimension %d of %lld is negative or too large",
                           entry->name, i, (long long)entry->shape[i]);
    }
    return NULL;
}

static struct rk_json *make_entry_json(const struct rk_st_entry *entry, uint64_t begin, uint64_t end)
{
    struct rk_json *json = rk_json_new_object();
    struct rk_json *shape = rk_json_new_array();
    struct rk_json *offsets = rk_json_new_array();

    for (int32_t i = 0; i < entry->rank; i++)
        rk_json_append(shape, rk_json_new_int(entry->shape[i]));
    rk_json_append(offsets, rk_json_new_int((int64_t)begin));
    rk_json_append(offsets, rk_json_new_int((int64_t)end));
    rk_json_set(json, "dtype", rk_json_new_string(rk_dtype_safetensors_name(entry->dtype)));
    rk_json_set(json, "shape", shape);
    rk_json_set(json, "data_offsets", offsets);
    return json;
}

static struct rk_status *make_metadata_json(struct rk_json **out, const struct rk_json *metadata)
{
    *out = NULL;
    for (void *it = rk_json_iter(metadata); it; it = rk_json_iter_next(metadata, it)) {
        if (rk_json_type(rk_json_iter_value(it)) != RK_JSON_STRING)
            return RK_FAIL(RK_INVALID_ARGUMENT, "safetensors metadata '%s' is not a string",
                           rk_json_iter_key(it));
    }
    *out = metadata ? rk_json_clone(metadata) : rk_json_new_object();
    if (!rk_json_find(*out, "format"))
        rk_json_set(*out, "format", rk_json_new_string("pt")); /* transformers refuses files without it */
    return NULL;
}

/* Sets every slot's offset, counted from the start of the data, and adds the entries to `header`. */
static struct rk_status *lay_out(struct rk_st_writer *writer, struct rk_json *header,
                                 struct ordered_entry *ordered, uint64_t *data_bytes)
{
    uint64_t next = 0;

    if (writer->num_slots > 0)
        qsort(ordered, (size_t)writer->num_slots, sizeof(*ordered), compare_entries);
    for (int64_t i = 0; i < writer->num_slots; i++) {
        struct slot *slot = ordered[i].slot;
        uint64_t end;

        if (rk_json_find(header, slot->name))
            return RK_FAIL(RK_INVALID_ARGUMENT, "tensor '%s' is declared twice", slot->name);
        if (__builtin_add_overflow(next, slot->bytes, &end) || end > INT64_MAX)
            return RK_FAIL(RK_INVALID_ARGUMENT, "tensor '%s': the file would be too large", slot->name);
        rk_json_set(header, slot->name, make_entry_json(ordered[i].entry, next, end));
        slot->offset = next;
        next = end;
    }
    *data_bytes = next;
    return NULL;
}

/* The file's full size is set at once, so that an exceeded quota or file-size limit is an error before any
 * data is written. */
static struct rk_status *write_header(struct rk_st_writer *writer, const struct rk_json *header,
                                      uint64_t data_bytes)
{
    char *text = rk_json_dump(header, 0, false);
    uint64_t header_bytes = rk_round_up(strlen(text), HEADER_ALIGNMENT);
    struct rk_str prefix = {0};
    struct rk_status *st;

    for (int i = 0; i < LENGTH_BYTES; i++)
        rk_str_append_bytes(&prefix, &(const char){(char)(header_bytes >> (8 * i))}, 1);
    rk_str_appendf(&prefix, "%-*s", (int)header_bytes, text);
    for (int64_t i = 0; i < writer->num_slots; i++)
        writer->slots[i].offset += prefix.bytes;
    writer->file_bytes = prefix.bytes + data_bytes;
    st = rk_pending_file_truncate(&writer->file, writer->file_bytes);
    writer->file.sums = true;
    if (!st)
        st = rk_pending_file_pwrite(&writer->file, prefix.text, prefix.bytes, 0);
    writer->file.sums = false; /* of the data only on request */
    rk_str_fini(&prefix);
    rk_free(text);
    return st;
}

static struct rk_status *prepare(struct rk_st_writer *writer, const struct rk_st_entry *entries,
                                 const struct rk_json *metadata)
{
    struct ordered_entry *ordered = rk_calloc((size_t)writer->num_slots, sizeof(*ordered));
    struct rk_json *header = rk_json_new_object();
    struct rk_json *metadata_json;
    struct rk_status *st;
    uint64_t data_bytes;

    RK_TRY_GOTO(st, make_metadata_json(&metadata_json, metadata), out);
    rk_json_set(header, "__metadata__", metadata_json);
    for (int64_t i = 0; i < writer->num_slots; i++) {
        RK_TRY_GOTO(st, check_entry(&entries[i], &writer->slots[i].bytes), out);
        writer->slots[i].name = rk_strdup(entries[i].name);
        ordered[i] = (struct ordered_entry){.entry = &entries[i], .slot = &writer->slots[i]};
    }
    RK_TRY_GOTO(st, lay_out(writer, header, ordered, &data_bytes), out);
    RK_TRY_GOTO(st, write_header(writer, header, data_bytes), out);

out:
    rk_json_free(header);
    rk_free(ordered);
    return st;
}

struct rk_status *rk_st_writer_create(struct rk_st_writer **out, const char *path,
                                      const struct rk_st_entry *entries, int64_t num_entries,
                                      const struct rk_json *metadata)
{
    struct rk_st_writer *writer = rk_calloc(1, sizeof(*writer));
    struct rk_status *st;

    *out = NULL;
    RK_ASSERT(num_entries >= 0);
    writer->num_slots = num_entries;
    writer->slots = rk_calloc((size_t)num_entries, sizeof(*writer->slots));
    RK_TRY_GOTO(st, rk_pending_file_open(&writer->file, path), out);
    RK_TRY_GOTO(st, prepare(writer, entries, metadata), out);
    *out = writer;
    writer = NULL;

out:
    rk_st_writer_destroy(writer);
    return st ? RK_WRAP(st, "safetensors '%s'", path) : NULL;
}

struct rk_status *rk_st_writer_write(struct rk_st_writer *writer, int64_t i, uint64_t begin, const void *data,
                                     size_t bytes)
{
    struct slot *slot;

    RK_ASSERT(i >= 0);
    RK_ASSERT(i < writer->num_slots);
    slot = &writer->slots[i];
    RK_ASSERT(begin <= slot->bytes);
    RK_ASSERT(bytes <= slot->bytes - begin);
    RK_TRY(rk_pending_file_pwrite(&writer->file, data, bytes, slot->offset + begin));
    slot->written += bytes;
    return NULL;
}

struct rk_status *rk_st_writer_commit(struct rk_st_writer *writer)
{
    for (int64_t i = 0; i < writer->num_slots; i++) {
        const struct slot *slot = &writer->slots[i];

        if (slot->written != slot->bytes)
            return RK_FAIL(RK_FAILED_PRECONDITION,
                           "safetensors '%s': %llu of %llu bytes of tensor '%s' were written",
                           writer->file.path, (unsigned long long)slot->written,
                           (unsigned long long)slot->bytes, slot->name);
    }
    return rk_pending_file_commit(&writer->file);
}

void rk_st_writer_sum(struct rk_st_writer *writer)
{
    writer->file.sums = true;
}

bool rk_st_writer_get_sum(const struct rk_st_writer *writer, uint64_t *file_bytes, uint32_t *crc32c)
{
    *file_bytes = writer->file_bytes;
    *crc32c = writer->file.crc32c;
    return writer->file.summed_bytes == writer->file_bytes;
}

void rk_st_writer_destroy(struct rk_st_writer *writer)
{
    if (!writer)
        return;
    rk_pending_file_discard(&writer->file);
    for (int64_t i = 0; i < writer->num_slots; i++)
        rk_free(writer->slots[i].name);
    rk_free(writer->slots);
    rk_free(writer);
}
