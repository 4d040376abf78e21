/* Reading safetensors. The header is untrusted until every check below has passed: length first, then JSON,
 * then each tensor by itself, then that the tensors cover the data exactly. */
#include "base/format/rk_safetensors.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_assert.h"
#include "base/rk_file.h"
#include "base/rk_file_io.h"
#include "base/rk_file_kind.h"
#include "base/rk_map.h"

#define MAX_HEADER_BYTES 100000000u /* the reference reader's limit */
#define LENGTH_BYTES     8
/* Tensors of one file. The largest published model has 92 thousand in 163 files; each costs some 15 us and 1
 * KiB while the header is parsed. */
#define MAX_TENSORS 131072
/* Commas and colons outside strings: an entry has 8 with one dimension, 15 with eight. */
#define MAX_SEPARATORS (16 * MAX_TENSORS)

struct rk_st_file {
    char *path;
    int fd; /* -1: parsed from memory */
    uint64_t file_bytes;
    uint64_t data_begin;
    struct rk_json *header; /* owns the names and the metadata */
    const struct rk_json *metadata;
    RK_ARRAY(struct rk_st_tensor) tensors; /* by offset */
    struct rk_map *by_name;                /* name -> struct rk_st_tensor * */
};

/* Names come from the file and may contain any bytes; a message shows the printable ones. */
static const char *printable(const char *name, char buf[80])
{
    size_t i;

    for (i = 0; name[i] && i < 79; i++)
        buf[i] = name[i] >= 0x20 && name[i] < 0x7f ? name[i] : '?';
    buf[i] = '\0';
    return buf;
}

static struct rk_status *bad_tensor(const struct rk_st_file *file, const char *name, rk_code_t code,
                                    const char *problem)
{
    char buf[80];

    return RK_FAIL(code, "safetensors '%s': tensor '%s': %s", file->path, printable(name, buf), problem);
}

/* A non-negative JSON integer; 4.0 is not accepted here. */
static bool read_u64(const struct rk_json *json, uint64_t *out)
{
    int64_t value = rk_json_as_int(json, -1);

    if (rk_json_type(json) != RK_JSON_INT || value < 0)
        return false;
    *out = (uint64_t)value;
    return true;
}

static struct rk_status *read_dtype(struct rk_st_file *file, struct rk_st_tensor *tensor,
                                    const struct rk_json *json)
{
    /* Types of the format for which rankd has no element type. */
    static const char *const foreign[] = {"U16", "U32", "U64", "C64", "F8_E8M0", "F4", "F6_E2M3", "F6_E3M2"};
    const char *text = rk_json_as_string(json, NULL);

    if (!text)
        return bad_tensor(file, tensor->name, RK_DATA_LOSS, "dtype is missing or not a string");
    if (rk_dtype_parse_safetensors(text, &tensor->dtype))
        return NULL;
    for (size_t i = 0; i < RK_ARRAY_LEN(foreign); i++) {
        if (strcmp(text, foreign[i]) == 0)
            return bad_tensor(file, tensor->name, RK_UNIMPLEMENTED, "its dtype is not supported");
    }
    return bad_tensor(file, tensor->name, RK_DATA_LOSS, "unknown dtype");
}

/* Shape, and the size in bytes that follows from it. */
static struct rk_status *read_shape(struct rk_st_file *file, struct rk_st_tensor *tensor,
                                    const struct rk_json *json)
{
    int64_t rank = rk_json_count(json);
    uint64_t bytes = 1;

    if (rk_json_type(json) != RK_JSON_ARRAY)
        return bad_tensor(file, tensor->name, RK_DATA_LOSS, "shape is missing or not an array");
    if (rank > RK_ST_MAX_RANK)
        return bad_tensor(file, tensor->name, RK_UNIMPLEMENTED, "it has more than 8 dimensions");
    tensor->rank = (int32_t)rank;
    for (int64_t i = 0; i < rank; i++) {
        uint64_t extent;

        if (!read_u64(rk_json_at(json, i), &extent))
            return bad_tensor(file, tensor->name, RK_DATA_LOSS, "shape has an element that is not a size");
        if (__builtin_mul_overflow(bytes, extent, &bytes))
            return bad_tensor(file, tensor->name, RK_DATA_LOSS, "shape overflows");
        tensor->shape[i] = (int64_t)extent;
    }
    if (__builtin_mul_overflow(bytes, (uint64_t)rk_dtype_bytes(tensor->dtype), &tensor->bytes))
        return bad_tensor(file, tensor->name, RK_DATA_LOSS, "shape overflows");
    return NULL;
}

static struct rk_status *read_offsets(struct rk_st_file *file, struct rk_st_tensor *tensor,
                                      const struct rk_json *json)
{
    uint64_t begin, end;

    if (rk_json_type(json) != RK_JSON_ARRAY || rk_json_count(json) != 2 ||
        !read_u64(rk_json_at(json, 0), &begin) || !read_u64(rk_json_at(json, 1), &end))
        return bad_tensor(file, tensor->name, RK_DATA_LOSS, "data_offsets are not two sizes");
    if (begin > end)
        return bad_tensor(file, tensor->name, RK_DATA_LOSS, "data_offsets: begin is larger than end");
    if (end - begin != tensor->bytes)
        return bad_tensor(file, tensor->name, RK_DATA_LOSS,
                          "data_offsets do not match the size of dtype and shape");
    if (end > file->file_bytes - file->data_begin)
        return bad_tensor(file, tensor->name, RK_DATA_LOSS, "data_offsets reach past the end of the file");
    tensor->offset = file->data_begin + begin;
    return NULL;
}

static struct rk_status *read_metadata(struct rk_st_file *file, const struct rk_json *json)
{
    if (rk_json_type(json) != RK_JSON_OBJECT)
        return RK_FAIL(RK_DATA_LOSS, "safetensors '%s': __metadata__ is not an object", file->path);
    for (void *it = rk_json_iter(json); it; it = rk_json_iter_next(json, it)) {
        char buf[80];

        if (rk_json_type(rk_json_iter_value(it)) != RK_JSON_STRING)
            return RK_FAIL(RK_DATA_LOSS, "safetensors '%s': __metadata__ member '%s' is not a string",
                           file->path, printable(rk_json_iter_key(it), buf));
    }
    file->metadata = json;
    return NULL;
}

static struct rk_status *read_tensors(struct rk_st_file *file)
{
    for (void *it = rk_json_iter(file->header); it; it = rk_json_iter_next(file->header, it)) {
        const struct rk_json *value = rk_json_iter_value(it);
        struct rk_st_tensor tensor = {.name = rk_json_iter_key(it)};

        if (strcmp(tensor.name, "__metadata__") == 0) {
            RK_TRY(read_metadata(file, value));
            continue;
        }
        if (rk_json_type(value) != RK_JSON_OBJECT)
            return bad_tensor(file, tensor.name, RK_DATA_LOSS, "its entry is not an object");
        RK_TRY(read_dtype(file, &tensor, rk_json_find(value, "dtype")));
        RK_TRY(read_shape(file, &tensor, rk_json_find(value, "shape")));
        RK_TRY(read_offsets(file, &tensor, rk_json_find(value, "data_offsets")));
        rk_array_append(&file->tensors, tensor);
    }
    return NULL;
}

static int compare_offsets(const void *a, const void *b)
{
    const struct rk_st_tensor *x = a, *y = b;

    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1; /* empty tensors before the one that begins there */
    return strcmp(x->name, y->name);
}

static struct rk_status *check_cover(struct rk_st_file *file)
{
    uint64_t next = file->data_begin;

    if (file->tensors.count > 0)
        qsort(file->tensors.items, (size_t)file->tensors.count, sizeof(*file->tensors.items),
              compare_offsets);
    for (int64_t i = 0; i < file->tensors.count; i++) {
        const struct rk_st_tensor *tensor = &file->tensors.items[i];

        if (tensor->offset > next)
            return bad_tensor(file, tensor->name, RK_DATA_LOSS, "there is a gap before its data");
        if (tensor->offset < next)
            return bad_tensor(file, tensor->name, RK_DATA_LOSS, "its data overlap another tensor's");
        next += tensor->bytes;
    }
    if (next != file->file_bytes)
        return RK_FAIL(RK_DATA_LOSS, "safetensors '%s': %llu bytes after the last tensor, expected none",
                       file->path, (unsigned long long)(file->file_bytes - next));
    return NULL;
}

/* Counts that bound the parser's memory: objects, and separators of members and elements. */
static void count_values(const char *text, size_t bytes, size_t *objects, size_t *separators)
{
    bool is_string = false;

    *objects = *separators = 0;
    for (size_t i = 0; i < bytes; i++) {
        char c = text[i];

        if (c == '"')
            is_string = !is_string;
        else if (is_string)
            i += c == '\\'; /* and the escaped character */
        else if (c == '{')
            (*objects)++;
        else if (c == ',' || c == ':')
            (*separators)++;
    }
}

/* Before anything is allocated: a header within its byte limit can list millions of values. */
static struct rk_status *check_cost(const struct rk_st_file *file, const char *text, size_t bytes)
{
    size_t objects, separators;

    count_values(text, bytes, &objects, &separators);
    if (objects > MAX_TENSORS + 2) /* the header itself and __metadata__ */
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "safetensors '%s': header of %zu tensors, the limit is %d",
                       file->path, objects - 1, MAX_TENSORS);
    if (separators > MAX_SEPARATORS)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "safetensors '%s': header of %zu values, the limit is %d",
                       file->path, separators, MAX_SEPARATORS);
    return NULL;
}

/* `text` is the header, of `bytes`; everything else of `file` is set. */
static struct rk_status *parse_header(struct rk_st_file *file, const char *text, size_t bytes)
{
    struct rk_status *st;

    /* The reference reader refuses leading white space and byte order marks, which a JSON parser may accept.
     */
    if (bytes == 0 || text[0] != '{')
        return RK_FAIL(RK_DATA_LOSS, "safetensors '%s': the header does not begin with '{'", file->path);
    RK_TRY(check_cost(file, text, bytes));
    st = rk_json_parse(&file->header, text, bytes, "header", 0);
    if (st) {
        struct rk_status *lost =
            RK_FAIL(rk_status_code(st) == RK_RESOURCE_EXHAUSTED ? RK_RESOURCE_EXHAUSTED : RK_DATA_LOSS,
                    "safetensors '%s': %s", file->path, rk_status_message(st));

        rk_status_free(st);
        return lost;
    }
    RK_TRY(read_tensors(file));
    RK_TRY(check_cover(file));
    file->by_name = rk_map_create();
    for (int64_t i = 0; i < file->tensors.count; i++)
        rk_map_put(file->by_name, file->tensors.items[i].name, &file->tensors.items[i]);
    return NULL;
}

/* The header's length from the first bytes of the file, checked against the file's. */
static struct rk_status *parse_length(struct rk_st_file *file, const unsigned char first[LENGTH_BYTES],
                                      size_t *header_bytes)
{
    uint64_t bytes = 0;

    for (int i = LENGTH_BYTES - 1; i >= 0; i--)
        bytes = bytes << 8 | first[i];
    if (bytes > MAX_HEADER_BYTES)
        return RK_FAIL(RK_DATA_LOSS,
                       "'%s' is no safetensors file: its header would have %llu bytes, the limit is %u",
                       file->path, (unsigned long long)bytes, MAX_HEADER_BYTES);
    if (bytes > file->file_bytes - LENGTH_BYTES)
        return RK_FAIL(RK_DATA_LOSS, "safetensors '%s': header of %llu bytes in a file of %llu", file->path,
                       (unsigned long long)bytes, (unsigned long long)file->file_bytes);
    file->data_begin = LENGTH_BYTES + bytes;
    *header_bytes = (size_t)bytes;
    return NULL;
}

static struct rk_status *too_short(const struct rk_st_file *file)
{
    return RK_FAIL(RK_DATA_LOSS, "safetensors '%s': a file of %llu bytes is too short for a header length",
                   file->path, (unsigned long long)file->file_bytes);
}

static struct rk_status *open_file(struct rk_st_file *file)
{
    unsigned char first[LENGTH_BYTES];
    struct rk_status *st;
    size_t header_bytes;
    struct stat info;
    void *text;

    RK_TRY(rk_file_open_read(&file->fd, file->path));
    if (fstat(file->fd, &info) != 0)
        return rk_file_errno("reading the size of", file->path);
    file->file_bytes = (uint64_t)info.st_size;
    if (file->file_bytes < LENGTH_BYTES)
        return too_short(file);
    RK_TRY(rk_file_pread(file->fd, file->path, first, LENGTH_BYTES, 0));
    RK_TRY(parse_length(file, first, &header_bytes));
    RK_TRY(rk_try_alloc(&text, header_bytes, "safetensors header"));
    st = rk_file_pread(file->fd, file->path, text, header_bytes, LENGTH_BYTES);
    if (!st)
        st = parse_header(file, text, header_bytes);
    rk_free(text);
    return st;
}

static struct rk_st_file *make_file(const char *path)
{
    struct rk_st_file *file = rk_calloc(1, sizeof(*file));

    file->path = rk_strdup(path);
    file->fd = -1;
    return file;
}

struct rk_status *rk_st_open(struct rk_st_file **out, const char *path)
{
    struct rk_st_file *file = make_file(path);
    struct rk_status *st = open_file(file);
    const char *kind = st ? rk_file_kind(path) : NULL;

    *out = st ? NULL : file;
    if (st)
        rk_st_close(file);
    if (!kind)
        return st;
    rk_status_free(st);
    return RK_FAIL(RK_DATA_LOSS, "'%s' %s", path, kind);
}

static struct rk_status *parse_bytes(struct rk_st_file *file, const unsigned char *data, size_t data_bytes)
{
    size_t header_bytes;

    if (file->file_bytes < LENGTH_BYTES || data_bytes < LENGTH_BYTES)
        return too_short(file);
    RK_TRY(parse_length(file, data, &header_bytes));
    if (header_bytes > data_bytes - LENGTH_BYTES)
        return RK_FAIL(RK_DATA_LOSS, "safetensors '%s': truncated header: %zu bytes expected, got %zu",
                       file->path, header_bytes, data_bytes - LENGTH_BYTES);
    return parse_header(file, (const char *)data + LENGTH_BYTES, header_bytes);
}

struct rk_status *rk_st_parse(struct rk_st_file **out, const void *data, size_t data_bytes,
                              uint64_t file_bytes, const char *source)
{
    struct rk_st_file *file = make_file(source);
    struct rk_status *st;

    file->file_bytes = file_bytes;
    st = parse_bytes(file, data, data_bytes);
    *out = st ? NULL : file;
    if (st)
        rk_st_close(file);
    return st;
}

void rk_st_close(struct rk_st_file *file)
{
    if (!file)
        return;
    if (file->fd >= 0)
        close(file->fd);
    rk_map_destroy(file->by_name);
    rk_array_fini(&file->tensors);
    rk_json_free(file->header);
    rk_free(file->path);
    rk_free(file);
}

const char *rk_st_path(const struct rk_st_file *file)
{
    return file->path;
}

int64_t rk_st_count(const struct rk_st_file *file)
{
    return file->tensors.count;
}

const struct rk_st_tensor *rk_st_at(const struct rk_st_file *file, int64_t i)
{
    RK_ASSERT(i >= 0);
    RK_ASSERT(i < file->tensors.count);
    return &file->tensors.items[i];
}

const struct rk_st_tensor *rk_st_find(const struct rk_st_file *file, const char *name)
{
    return rk_map_find(file->by_name, name);
}

const struct rk_json *rk_st_metadata(const struct rk_st_file *file)
{
    return file->metadata;
}

struct rk_status *rk_st_read(const struct rk_st_file *file, const struct rk_st_tensor *tensor, uint64_t begin,
                             size_t bytes, void *dst)
{
    RK_ASSERT(begin <= tensor->bytes);
    RK_ASSERT(bytes <= tensor->bytes - begin);
    if (file->fd < 0)
        return RK_FAIL(RK_FAILED_PRECONDITION, "safetensors '%s' was parsed from memory and cannot be read",
                       file->path);
    return rk_file_pread(file->fd, file->path, dst, bytes, tensor->offset + begin);
}
