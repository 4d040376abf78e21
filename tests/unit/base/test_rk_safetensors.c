#include "base/format/rk_safetensors.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_crc32c.h"
#include "base/rk_file.h"
#include "base/rk_str.h"
#include "tests/support/test.h"

/* A file: length field, header, data. */
struct image {
    uint64_t length_field; /* 0: the header's length */
    const char *header;
    size_t data_bytes;
};

static void put_image(struct rk_str *out, const struct image *image)
{
    uint64_t length = image->length_field ? image->length_field : strlen(image->header);

    for (int i = 0; i < 8; i++)
        rk_str_append_bytes(out, &(const char){(char)(length >> (8 * i))}, 1);
    rk_str_append(out, image->header);
    for (size_t i = 0; i < image->data_bytes; i++)
        rk_str_append_bytes(out, &(const char){(char)i}, 1);
}

#define F32_PAIR(begin, end) "{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[" #begin "," #end "]}"

static const struct {
    const char *label;
    rk_code_t code;
    struct image image;
} malformed[] = {
    {"length 2^64-1", RK_DATA_LOSS, {UINT64_MAX, "{}", 0}},
    {"length over the limit", RK_DATA_LOSS, {100000001, "{}", 0}},
    {"length at the limit, small file", RK_DATA_LOSS, {100000000, "{}", 0}},
    {"length one too long", RK_DATA_LOSS, {3, "{}", 0}},
    {"header is an array", RK_DATA_LOSS, {0, "[]", 0}},
    {"header without brace", RK_DATA_LOSS, {0, "{\"a\":" F32_PAIR(0, 8), 8}},
    {"byte order mark", RK_DATA_LOSS, {0, "\xef\xbb\xbf{}", 0}},
    {"leading space", RK_DATA_LOSS, {0, " {}", 0}},
    {"broken UTF-8", RK_DATA_LOSS, {0, "{\"\xff\":" F32_PAIR(0, 8) "}", 8}},
    {"shared bytes", RK_DATA_LOSS, {0, "{\"a\":" F32_PAIR(0, 8) ",\"b\":" F32_PAIR(4, 12) "}", 12}},
    {"same bytes", RK_DATA_LOSS, {0, "{\"a\":" F32_PAIR(0, 8) ",\"b\":" F32_PAIR(0, 8) "}", 8}},
    {"hole", RK_DATA_LOSS, {0, "{\"a\":" F32_PAIR(0, 8) ",\"b\":" F32_PAIR(12, 20) "}", 20}},
    {"hole at the start", RK_DATA_LOSS, {0, "{\"a\":" F32_PAIR(4, 12) "}", 12}},
    {"begin behind end", RK_DATA_LOSS, {0, "{\"a\":" F32_PAIR(8, 0) "}", 8}},
    {"end past the file", RK_DATA_LOSS, {0, "{\"a\":" F32_PAIR(0, 8) "}", 7}},
    {"far past the file",
     RK_DATA_LOSS,
     {0, "{\"a\":" F32_PAIR(9223372036854775799, 9223372036854775807) "}", 8}},
    {"span is not the size", RK_DATA_LOSS, {0, "{\"a\":" F32_PAIR(0, 12) "}", 12}},
    {"product overflows to 0",
     RK_DATA_LOSS,
     {0, "{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0}},
    {"times 8 overflows",
     RK_DATA_LOSS,
     {0, "{\"a\":{\"dtype\":\"F64\",\"shape\":[2305843009213693952],\"data_offsets\":[0,0]}}", 0}},
    {"overflow before a zero",
     RK_DATA_LOSS,
     {0, "{\"a\":{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296,0],\"data_offsets\":[0,0]}}", 0}},
    {"real offset", RK_DATA_LOSS, {0, "{\"a\":" F32_PAIR(0, 1.5) "}", 8}},
    {"integral real offset", RK_DATA_LOSS, {0, "{\"a\":" F32_PAIR(0, 8.0) "}", 8}},
    {"negative offset", RK_DATA_LOSS, {0, "{\"a\":" F32_PAIR(-1, 4) "}", 8}},
    {"text offsets", RK_DATA_LOSS, {0, "{\"a\":" F32_PAIR("0", "8") "}", 8}},
    {"offset over 64 bits", RK_DATA_LOSS, {0, "{\"a\":" F32_PAIR(0, 99999999999999999999) "}", 8}},
    {"three offsets",
     RK_DATA_LOSS,
     {0, "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,1]}}", 1}},
    {"no offsets", RK_DATA_LOSS, {0, "{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1}},
    {"no shape", RK_DATA_LOSS, {0, "{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1}},
    {"no dtype", RK_DATA_LOSS, {0, "{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1}},
    {"unknown dtype",
     RK_DATA_LOSS,
     {0, "{\"a\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1}},
    {"dtype of the format, not ours",
     RK_UNIMPLEMENTED,
     {0, "{\"a\":{\"dtype\":\"U16\",\"shape\":[1],\"data_offsets\":[0,2]}}", 2}},
    {"negative extent",
     RK_DATA_LOSS,
     {0, "{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,0]}}", 0}},
    {"real extent",
     RK_DATA_LOSS,
     {0, "{\"a\":{\"dtype\":\"U8\",\"shape\":[1.0],\"data_offsets\":[0,1]}}", 1}},
    {"nine dimensions",
     RK_UNIMPLEMENTED,
     {0, "{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1}},
    {"entry is no object", RK_DATA_LOSS, {0, "{\"a\":3}", 0}},
    {"duplicate name", RK_DATA_LOSS, {0, "{\"a\":" F32_PAIR(0, 8) ",\"a\":" F32_PAIR(8, 16) "}", 16}},
    {"metadata with a number", RK_DATA_LOSS, {0, "{\"__metadata__\":{\"format\":1}}", 0}},
    {"metadata is no object", RK_DATA_LOSS, {0, "{\"__metadata__\":\"pt\"}", 0}},
    {"trailing byte", RK_DATA_LOSS, {0, "{\"a\":" F32_PAIR(0, 8) "}", 9}},
    {"data without tensors", RK_DATA_LOSS, {0, "{}", 1}},
    {"padding with zeros", RK_DATA_LOSS, {3, "{}", 1}},
    {"text behind the header", RK_DATA_LOSS, {0, "{}x", 0}},
    {"empty header", RK_DATA_LOSS, {0, "", 0}},
};

static void test_st_parse_rejects_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(malformed); i++) {
        struct rk_st_file *file = (struct rk_st_file *)&state;
        struct rk_str bytes = {0};

        print_message("%s\n", malformed[i].label);
        put_image(&bytes, &malformed[i].image);
        assert_fails(rk_st_parse(&file, bytes.text, bytes.bytes, bytes.bytes, "evil.safetensors"),
                     malformed[i].code, "evil.safetensors");
        assert_null(file);
        rk_str_fini(&bytes);
    }
}

static void test_st_parse_accepts_table(void **state)
{
    static const struct {
        const char *label;
        struct image image;
        int64_t count;
    } cases[] = {
        {"empty with padding", {0, "{}      ", 0}, 0},
        {"one tensor", {0, "{\"a\":" F32_PAIR(0, 8) "}", 8}, 1},
        {"unaligned header", {0, "{\"ab\":" F32_PAIR(0, 8) "} ", 8}, 1},
        {"members out of order",
         {0, "{\"b\":" F32_PAIR(8, 16) ",\"a\":{\"data_offsets\":[0,8],\"shape\":[2],\"dtype\":\"F32\"}}",
          16},
         2},
        {"empty tensor at the end",
         {0, "{\"a\":" F32_PAIR(0, 8) ",\"z\":{\"dtype\":\"F32\",\"shape\":[0,5],\"data_offsets\":[8,8]}}",
          8},
         2},
        {"empty tensor in the middle",
         {0, "{\"a\":{\"dtype\":\"I64\",\"shape\":[0],\"data_offsets\":[0,0]},\"b\":" F32_PAIR(0, 8) "}", 8},
         2},
        {"scalar", {0, "{\"a\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[0,2]}}", 2}, 1},
        {"only metadata", {0, "{\"__metadata__\":{\"format\":\"pt\"}}", 0}, 0},
        {"members of a later version",
         {0, "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"new\":[]}}", 1},
         1},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_st_file *file;
        struct rk_str bytes = {0};

        print_message("%s\n", cases[i].label);
        put_image(&bytes, &cases[i].image);
        assert_ok(rk_st_parse(&file, bytes.text, bytes.bytes, bytes.bytes, "good"));
        assert_int_equal(rk_st_count(file), cases[i].count);
        for (int64_t t = 1; t < cases[i].count; t++)
            assert_true(rk_st_at(file, t)->offset >= rk_st_at(file, t - 1)->offset);
        rk_st_close(file);
        rk_str_fini(&bytes);
    }
}

/* Goal: a file truncated anywhere is rejected, and so is one that has lost a byte of data. */
/* A header of `count` numbers, each between `left` and `right`, parsed as a file without data. */
static struct rk_status *parse_many(const char *head, const char *left, const char *right, int64_t count,
                                    const char *tail)
{
    struct rk_str bytes = {0}, header = {0};
    struct rk_st_file *file;
    struct rk_status *st;

    rk_str_append(&header, head);
    for (int64_t i = 0; i < count; i++)
        rk_str_appendf(&header, "%s%s%lld%s", i > 0 ? "," : "", left, (long long)i, right);
    rk_str_append(&header, tail);
    put_image(&bytes, &(struct image){.header = header.text});
    st = rk_st_parse(&file, bytes.text, bytes.bytes, bytes.bytes, "many");
    if (!st)
        rk_st_close(file);
    rk_str_fini(&header);
    rk_str_fini(&bytes);
    return st;
}

#define EMPTY_TENSOR "{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}"

/* Goal: the cost of parsing a header is bounded by its number of values, which is checked before parsing;
 * characters in strings do not count. */
static void test_st_parse_of_too_many_values_is_exhausted(void **state)
{
    char *many = rk_calloc(3000001, 1), *name;

    (void)state;
    assert_fails(parse_many("{", "\"", "\":{}", 131074, "}"), RK_RESOURCE_EXHAUSTED, "131072");
    assert_fails(parse_many("{\"a\":[", "", "", 2097153, "]}"), RK_RESOURCE_EXHAUSTED, "2097152");
    assert_ok(parse_many("{", "\"", "\":" EMPTY_TENSOR, 2000, "}"));
    memset(many, ',', 3000000);
    memcpy(many, "\\\"{{", 4);
    name = rk_format("{\"%s\":" EMPTY_TENSOR "}", many);
    assert_ok(parse_many(name, "", "", 0, ""));
    rk_free(name);
    rk_free(many);
}

static void test_st_open_every_truncation_is_refused(void **state)
{
    static const struct image image = {0, "{\"__metadata__\":{\"a\":\"b\"},\"x\":" F32_PAIR(0, 8) "}", 8};
    char *path = rk_test_temp_path("cut.safetensors");
    struct rk_st_file *file;
    struct rk_str bytes = {0};

    (void)state;
    put_image(&bytes, &image);
    for (size_t cut = 0; cut < bytes.bytes; cut++) {
        rk_test_write_file(path, bytes.text, cut);
        assert_code(rk_st_open(&file, path), RK_DATA_LOSS);
    }
    rk_test_write_file(path, bytes.text, bytes.bytes);
    assert_ok(rk_st_open(&file, path));
    assert_string_equal(rk_st_path(file), path);
    assert_string_equal(rk_json_as_string(rk_json_find(rk_st_metadata(file), "a"), ""), "b");
    rk_st_close(file);
    rk_str_fini(&bytes);
    rk_free(path);
}

static void test_st_open_wrong_paths(void **state)
{
    struct rk_st_file *file;
    char *path = rk_test_temp_path("absent.safetensors");

    (void)state;
    assert_fails(rk_st_open(&file, path), RK_NOT_FOUND, "absent.safetensors");
    assert_fails(rk_st_open(&file, rk_test_temp_dir()), RK_INVALID_ARGUMENT,
                 "is a directory, expected a file");
    assert_int_equal(mkfifo(path, 0600), 0); /* no process writes to it: opening must not block */
    assert_fails(rk_st_open(&file, path), RK_INVALID_ARGUMENT, "is a pipe, expected a file");
    unlink(path);
    rk_st_close(NULL);
    rk_free(path);
}

/* Goal: messages are printable for every name of a tensor. */
static void test_st_parse_message_escapes_the_name(void **state)
{
    static const struct image image = {0, "{\"\\u001b[31m\\n\xc3\xa9\":3}", 0};
    struct rk_st_file *file;
    struct rk_str bytes = {0};

    (void)state;
    put_image(&bytes, &image);
    assert_fails(rk_st_parse(&file, bytes.text, bytes.bytes, bytes.bytes, "f"), RK_DATA_LOSS,
                 "tensor '?[31m?"
                 "?"
                 "?'");
    rk_str_fini(&bytes);
}

static void test_st_read_ranges_and_limits(void **state)
{
    static const struct image image = {0, "{\"a\":" F32_PAIR(0, 8) ",\"b\":" F32_PAIR(8, 16) "}", 16};
    char *path = rk_test_temp_path("read.safetensors");
    struct rk_st_file *file;
    struct rk_str bytes = {0};
    unsigned char got[8];

    (void)state;
    put_image(&bytes, &image);
    rk_test_write_file(path, bytes.text, bytes.bytes);
    assert_ok(rk_st_open(&file, path));
    assert_null(rk_st_find(file, "c"));
    assert_ok(rk_st_read(file, rk_st_find(file, "b"), 0, 8, got));
    assert_memory_equal(got, "\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f", 8);
    assert_ok(rk_st_read(file, rk_st_find(file, "a"), 6, 2, got));
    assert_memory_equal(got, "\x06\x07", 2);
    assert_ok(rk_st_read(file, rk_st_find(file, "a"), 8, 0, got));
    assert_int_equal(truncate(path, (off_t)bytes.bytes - 1), 0);
    assert_fails(rk_st_read(file, rk_st_find(file, "b"), 0, 8, got), RK_DATA_LOSS,
                 "truncated: 1 bytes missing");
    rk_st_close(file);
    assert_ok(rk_st_parse(&file, bytes.text, bytes.bytes, bytes.bytes, "memory"));
    assert_fails(rk_st_read(file, rk_st_find(file, "b"), 0, 8, got), RK_FAILED_PRECONDITION, "memory");
    rk_st_close(file);
    rk_str_fini(&bytes);
    rk_free(path);
}

/* --- writing --- */

static int64_t num_files(void)
{
    DIR *dir = opendir(rk_test_temp_dir());
    struct dirent *entry;
    int64_t count = 0;

    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL)
        count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

static void assert_file(const char *path, const char *header, const void *data, size_t data_bytes)
{
    size_t bytes, header_bytes = strlen(header);
    char *text = rk_test_read_file(path, &bytes);
    uint64_t length = 0;

    for (int i = 7; i >= 0; i--)
        length = length << 8 | (unsigned char)text[i];
    assert_int_equal(length, header_bytes);
    assert_int_equal(bytes, 8 + header_bytes + data_bytes);
    assert_memory_equal(text + 8, header, header_bytes);
    assert_memory_equal(text + 8 + header_bytes, data, data_bytes);
    rk_free(text);
}

/* Goal: byte for byte the output of the reference writer for this tensor (with the metadata that is always
 * added). */
static void test_st_writer_known_good_vector(void **state)
{
    static const float values[6] = {0, 1, 2, 3, 4, 5};
    const struct rk_st_entry entry = {
        .name = "attn0", .dtype = RK_DTYPE_F32, .rank = 4, .shape = {1, 1, 2, 3}};
    char *path = rk_test_temp_path("vector.safetensors");
    struct rk_st_writer *writer;

    (void)state;
    assert_ok(rk_st_writer_create(&writer, path, &entry, 1, NULL));
    assert_ok(rk_st_writer_write(writer, 0, 0, values, sizeof(values)));
    assert_ok(rk_st_writer_commit(writer));
    rk_st_writer_destroy(writer);
    assert_file(path,
                "{\"__metadata__\":{\"format\":\"pt\"},"
                "\"attn0\":{\"dtype\":\"F32\",\"shape\":[1,1,2,3],\"data_offsets\":[0,24]}}",
                values, sizeof(values));
    rk_free(path);
}

/* Goal: a file with every element type, an empty tensor, scalars and a name that needs an escape equals the
 * reference writer's (0.8.0) for the same zeros. */
static void test_st_writer_all_dtypes_match_the_reference_bytes(void **state)
{
    static const struct rk_st_entry entries[] = {
        {.name = "z", .dtype = RK_DTYPE_BF16, .rank = 1, .shape = {3}},
        {.name = "b", .dtype = RK_DTYPE_F32, .rank = 2, .shape = {1, 2}},
        {.name = "a", .dtype = RK_DTYPE_F16, .rank = 1, .shape = {1}},
        {.name = "c", .dtype = RK_DTYPE_I64},
        {.name = "a2\xc3\xa9\"", .dtype = RK_DTYPE_F32},
        {.name = "u", .dtype = RK_DTYPE_U8, .rank = 1, .shape = {5}},
        {.name = "i", .dtype = RK_DTYPE_I32},
        {.name = "e", .dtype = RK_DTYPE_F64, .rank = 2, .shape = {0, 7}},
        {.name = "t", .dtype = RK_DTYPE_BOOL, .rank = 1, .shape = {3}},
        {.name = "s8", .dtype = RK_DTYPE_I8, .rank = 1, .shape = {2}},
        {.name = "s16", .dtype = RK_DTYPE_I16, .rank = 1, .shape = {2}},
        {.name = "q4", .dtype = RK_DTYPE_F8E4M3, .rank = 1, .shape = {2}},
        {.name = "q5", .dtype = RK_DTYPE_F8E5M2, .rank = 1, .shape = {2}},
    };
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"c\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
        "\"e\":{\"dtype\":\"F64\",\"shape\":[0,7],\"data_offsets\":[8,8]},"
        "\"a2\xc3\xa9\\\"\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[8,12]},"
        "\"b\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[12,20]},"
        "\"i\":{\"dtype\":\"I32\",\"shape\":[],\"data_offsets\":[20,24]},"
        "\"z\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[24,30]},"
        "\"a\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[30,32]},"
        "\"s16\":{\"dtype\":\"I16\",\"shape\":[2],\"data_offsets\":[32,36]},"
        "\"q4\":{\"dtype\":\"F8_E4M3\",\"shape\":[2],\"data_offsets\":[36,38]},"
        "\"q5\":{\"dtype\":\"F8_E5M2\",\"shape\":[2],\"data_offsets\":[38,40]},"
        "\"s8\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[40,42]},"
        "\"u\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[42,47]},"
        "\"t\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[47,50]}}       ";
    static const char zeros[50];
    char *path = rk_test_temp_path("dtypes.safetensors");
    struct rk_st_writer *writer;

    (void)state;
    assert_ok(rk_st_writer_create(&writer, path, entries, RK_ARRAY_LEN(entries), NULL));
    for (size_t i = 0; i < RK_ARRAY_LEN(entries); i++) {
        size_t bytes = rk_dtype_bytes(entries[i].dtype);

        for (int32_t d = 0; d < entries[i].rank; d++)
            bytes *= (size_t)entries[i].shape[d];
        assert_ok(rk_st_writer_write(writer, (int64_t)i, 0, zeros, bytes));
    }
    assert_ok(rk_st_writer_commit(writer));
    rk_st_writer_destroy(writer);
    assert_file(path, header, zeros, sizeof(zeros));
    rk_free(path);
}

/* Goal: data written out of order and in pieces can be read at the offsets in the header, with the
 * metadata. */
static void test_st_writer_pieces_read_back(void **state)
{
    static const struct rk_st_entry entries[] = {
        {.name = "z", .dtype = RK_DTYPE_U8, .rank = 1, .shape = {7}},
        {.name = "b", .dtype = RK_DTYPE_F32, .rank = 1, .shape = {3}},
        {.name = "a", .dtype = RK_DTYPE_F32, .rank = 0},
    };
    static const size_t sizes[] = {7, 12, 4};
    char *path = rk_test_temp_path("pieces.safetensors");
    struct rk_json *metadata = rk_json_new_object();
    struct rk_st_writer *writer;
    struct rk_st_file *file;

    (void)state;
    rk_json_set(metadata, "format", rk_json_new_string("np"));
    rk_json_set(metadata, "step", rk_json_new_string("7"));
    assert_ok(rk_st_writer_create(&writer, path, entries, RK_ARRAY_LEN(entries), metadata));
    for (int64_t i = 0; i < (int64_t)RK_ARRAY_LEN(entries); i++) {
        unsigned char data[16];

        memset(data, (int)i + 1, sizeof(data));
        assert_ok(rk_st_writer_write(writer, i, 3, data, sizes[i] - 3));
        assert_ok(rk_st_writer_write(writer, i, 0, data, 3));
    }
    assert_ok(rk_st_writer_commit(writer));
    rk_st_writer_destroy(writer);
    rk_json_free(metadata);
    assert_ok(rk_st_open(&file, path));
    assert_int_equal(rk_json_count(rk_st_metadata(file)), 2);
    assert_string_equal(rk_json_as_string(rk_json_find(rk_st_metadata(file), "format"), ""), "np");
    for (size_t i = 0; i < RK_ARRAY_LEN(entries); i++) {
        const struct rk_st_tensor *tensor = rk_st_find(file, entries[i].name);
        unsigned char data[16];

        assert_int_equal(tensor->bytes, sizes[i]);
        assert_ok(rk_st_read(file, tensor, 0, sizes[i], data));
        for (size_t k = 0; k < sizes[i]; k++)
            assert_int_equal(data[k], i + 1);
    }
    rk_st_close(file);
    rk_free(path);
}

static void test_st_writer_create_rejects_table(void **state)
{
    static const struct {
        const char *message;
        struct rk_st_entry entries[2];
    } cases[] = {
        {"'a' is declared twice", {{.name = "a", .dtype = RK_DTYPE_U8}, {.name = "a", .dtype = RK_DTYPE_U8}}},
        {"'__metadata__' cannot be",
         {{.name = "__metadata__", .dtype = RK_DTYPE_U8}, {.name = "a", .dtype = RK_DTYPE_U8}}},
        {"not valid UTF-8", {{.name = "\xff", .dtype = RK_DTYPE_U8}, {.name = "a", .dtype = RK_DTYPE_U8}}},
        {"dtype 0", {{.name = "a"}, {.name = "b", .dtype = RK_DTYPE_U8}}},
        {"9 dimensions",
         {{.name = "a", .dtype = RK_DTYPE_U8, .rank = 9}, {.name = "b", .dtype = RK_DTYPE_U8}}},
        {"negative or too large",
         {{.name = "a", .dtype = RK_DTYPE_U8, .rank = 1, .shape = {-1}},
          {.name = "b", .dtype = RK_DTYPE_U8}}},
        {"negative or too large",
         {{.name = "a", .dtype = RK_DTYPE_F64, .rank = 2, .shape = {1ll << 40, 1ll << 40}},
          {.name = "b", .dtype = RK_DTYPE_U8}}},
        {"would be too large",
         {{.name = "a", .dtype = RK_DTYPE_U8, .rank = 1, .shape = {INT64_MAX}},
          {.name = "b", .dtype = RK_DTYPE_U8}}},
    };
    char *path = rk_test_temp_path("never.safetensors");
    struct rk_st_writer *writer;
    int64_t before = num_files();

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++)
        assert_fails(rk_st_writer_create(&writer, path, cases[i].entries, 2, NULL), RK_INVALID_ARGUMENT,
                     cases[i].message);
    assert_int_equal(num_files(), before); /* no temporary file is left */
    rk_free(path);
}

static void test_st_writer_bad_metadata_and_folder(void **state)
{
    const struct rk_st_entry entry = {.name = "a", .dtype = RK_DTYPE_U8};
    char *path = rk_test_temp_path("never.safetensors"),
         *deep = rk_test_temp_path("no/such/folder.safetensors");
    struct rk_json *metadata = rk_json_new_object();
    struct rk_st_writer *writer;

    (void)state;
    rk_json_set(metadata, "step", rk_json_new_int(7));
    assert_fails(rk_st_writer_create(&writer, path, &entry, 1, metadata), RK_INVALID_ARGUMENT, "'step'");
    assert_fails(rk_st_writer_create(&writer, deep, &entry, 1, NULL), RK_NOT_FOUND, "folder.safetensors");
    assert_null(writer);
    rk_json_free(metadata);
    rk_free(deep);
    rk_free(path);
}

/* Goal: the name refers to the old file until commit, and an aborted writer leaves nothing. */
static void test_st_writer_commit_is_atomic(void **state)
{
    const struct rk_st_entry entry = {.name = "a", .dtype = RK_DTYPE_U8, .rank = 1, .shape = {4}};
    char *path = rk_test_temp_path("atomic.safetensors");
    struct rk_st_writer *writer;
    struct rk_st_file *file;
    int64_t before;

    (void)state;
    rk_test_write_file(path, "old", 3);
    before = num_files();
    assert_ok(rk_st_writer_create(&writer, path, &entry, 1, NULL));
    assert_ok(rk_st_writer_write(writer, 0, 0, "ab", 2));
    assert_fails(rk_st_writer_commit(writer), RK_FAILED_PRECONDITION, "2 of 4 bytes of tensor 'a'");
    assert_int_equal(num_files(), before + 1);
    assert_code(rk_st_open(&file, path), RK_DATA_LOSS);
    assert_ok(rk_st_writer_write(writer, 0, 2, "cd", 2));
    assert_ok(rk_st_writer_commit(writer));
    rk_st_writer_destroy(writer);
    assert_int_equal(num_files(), before);
    assert_ok(rk_st_open(&file, path));
    rk_st_close(file);

    assert_ok(rk_st_writer_create(&writer, path, &entry, 1, NULL));
    rk_st_writer_destroy(writer);
    rk_st_writer_destroy(NULL);
    assert_int_equal(num_files(), before);
    assert_ok(rk_st_open(&file, path));
    rk_st_close(file);
    rk_free(path);
}

/* Goal: a full disk gives RESOURCE_EXHAUSTED with its reason, and leaves no temporary file.
 * Method: the file-size limit gives EFBIG, which is reported in the same way as ENOSPC. */
static void test_st_writer_disk_full_is_exhausted(void **state)
{
    const struct rk_st_entry entry = {.name = "a", .dtype = RK_DTYPE_U8, .rank = 1, .shape = {1 << 20}};
    struct rlimit saved, small = {.rlim_cur = 4096};
    char *path = rk_test_temp_path("full.safetensors");
    void (*old_handler)(int) = signal(SIGXFSZ, SIG_IGN);
    int64_t before = num_files();
    struct rk_st_writer *writer;
    struct rk_status *st;

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &saved), 0);
    small.rlim_max = saved.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    st = rk_st_writer_create(&writer, path, &entry, 1, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &saved), 0);
    signal(SIGXFSZ, old_handler);
    assert_string_equal(rk_status_reason(st), "DISK_FULL");
    assert_fails(st, RK_RESOURCE_EXHAUSTED, "full.safetensors");
    assert_int_equal(num_files(), before);
    rk_free(path);
}

#ifdef RK_FAULTS
/* Goal: when the sync or the rename fails, the old file is kept and no temporary file is left. */
static void test_write_file_atomic_faults_keep_the_old_file(void **state)
{
    static const struct {
        const char *faults;
        rk_code_t code;
    } cases[] = {{"file.sync=fail", RK_RESOURCE_EXHAUSTED}, {"file.rename=fail", RK_INTERNAL}};
    char *path = rk_test_temp_path("kept.txt");
    int64_t before;

    (void)state;
    assert_ok(rk_write_file_atomic(path, "old", 3));
    before = num_files();
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char *text;

        setenv("RANKD_FAULTS", cases[i].faults, 1);
        assert_code(rk_write_file_atomic(path, "new", 3), cases[i].code);
        unsetenv("RANKD_FAULTS");
        text = rk_test_read_file(path, NULL);
        assert_string_equal(text, "old");
        assert_int_equal(num_files(), before);
        rk_free(text);
    }
    rk_free(path);
}

/* Goal: the sync of a large file is spread over its writes, so that little is left for commit, which cannot
 * report progress. */
static void test_st_writer_syncs_on_the_way(void **state)
{
    enum { PIECE_BYTES = 4 << 20, NUM_PIECES = 20 };
    const struct rk_st_entry entry = {
        .name = "a", .dtype = RK_DTYPE_U8, .rank = 2, .shape = {NUM_PIECES, PIECE_BYTES}};
    char *path = rk_test_temp_path("large.safetensors"), *piece = rk_calloc(1, PIECE_BYTES);
    struct rk_st_writer *writer;
    struct rk_status *st = NULL;
    uint64_t written = 0;

    (void)state;
    assert_ok(rk_st_writer_create(&writer, path, &entry, 1, NULL));
    setenv("RANKD_FAULTS", "file.sync=fail", 1);
    for (; !st && written < (uint64_t)NUM_PIECES * PIECE_BYTES; written += PIECE_BYTES)
        st = rk_st_writer_write(writer, 0, written, piece, PIECE_BYTES);
    unsetenv("RANKD_FAULTS");
    assert_fails(st, RK_RESOURCE_EXHAUSTED, "syncing");
    assert_int_equal(written, 64 << 20);
    rk_st_writer_destroy(writer);
    rk_free(piece);
    rk_free(path);
}

/* Goal: a process that is killed before the rename leaves the old file intact. */
static void test_write_file_atomic_killed_keeps_the_old_file(void **state)
{
    char *path = rk_test_temp_path("killed.txt"), *text;
    int status;
    pid_t pid;

    (void)state;
    assert_ok(rk_write_file_atomic(path, "old", 3));
    pid = fork();
    if (pid == 0) {
        setenv("RANKD_FAULTS", "file.rename=kill", 1);
        _exit(rk_write_file_atomic(path, "new", 3) != NULL);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    text = rk_test_read_file(path, NULL);
    assert_string_equal(text, "old");
    rk_free(text);
    rk_free(path);
}
#endif

static void test_write_file_atomic_replaces(void **state)
{
    char *path = rk_test_temp_path("note.txt"), *text;
    size_t bytes;

    (void)state;
    assert_ok(rk_write_file_atomic(path, "one", 3));
    assert_ok(rk_write_file_atomic(path, "", 0));
    text = rk_test_read_file(path, &bytes);
    assert_int_equal(bytes, 0);
    rk_free(text);
    assert_fails(rk_write_file_atomic(rk_test_temp_dir(), "x", 1), RK_INVALID_ARGUMENT, "directory");
    rk_free(path);
}

/* Goal: the checksum of a file written in order is computed during the writes; otherwise, or if not
 * requested, it is not. */
static void test_writer_sums_what_is_written_in_order(void **state)
{
    static const struct rk_st_entry entries[] = {{"a", RK_DTYPE_F32, 1, {3}}, {"b", RK_DTYPE_F32, 1, {2}}};
    static const float data[5] = {1, 2, 3, 4, 5};
    char *path = rk_test_temp_path("summed.safetensors");

    (void)state;
    for (int order = 0; order < 3; order++) {
        struct rk_st_writer *writer;
        uint64_t bytes, file_bytes;
        uint32_t crc, file_crc;

        assert_ok(rk_st_writer_create(&writer, path, entries, 2, NULL));
        if (order < 2)
            rk_st_writer_sum(writer);
        for (int i = 0; i < 2; i++) {
            int entry = order == 1 ? 1 - i : i;

            assert_ok(rk_st_writer_write(writer, entry, 0, data + 3 * entry, entry == 0 ? 12 : 8));
        }
        assert_ok(rk_st_writer_commit(writer));
        assert_true(rk_st_writer_get_sum(writer, &bytes, &crc) == (order == 0));
        rk_st_writer_destroy(writer);
        assert_ok(rk_crc32c_of_file(&file_crc, &file_bytes, path));
        assert_int_equal(bytes, file_bytes);
        if (order == 0)
            assert_int_equal(crc, file_crc);
    }
    rk_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_writer_sums_what_is_written_in_order),
        cmocka_unit_test(test_st_parse_rejects_table),
        cmocka_unit_test(test_st_parse_accepts_table),
        cmocka_unit_test(test_st_parse_of_too_many_values_is_exhausted),
        cmocka_unit_test(test_st_open_every_truncation_is_refused),
        cmocka_unit_test(test_st_open_wrong_paths),
        cmocka_unit_test(test_st_parse_message_escapes_the_name),
        cmocka_unit_test(test_st_read_ranges_and_limits),
        cmocka_unit_test(test_st_writer_known_good_vector),
        cmocka_unit_test(test_st_writer_all_dtypes_match_the_reference_bytes),
        cmocka_unit_test(test_st_writer_pieces_read_back),
        cmocka_unit_test(test_st_writer_create_rejects_table),
        cmocka_unit_test(test_st_writer_bad_metadata_and_folder),
        cmocka_unit_test(test_st_writer_commit_is_atomic),
        cmocka_unit_test(test_st_writer_disk_full_is_exhausted),
#ifdef RK_FAULTS
        cmocka_unit_test(test_write_file_atomic_faults_keep_the_old_file),
        cmocka_unit_test(test_st_writer_syncs_on_the_way),
        cmocka_unit_test(test_write_file_atomic_killed_keeps_the_old_file),
#endif
        cmocka_unit_test(test_write_file_atomic_replaces),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
