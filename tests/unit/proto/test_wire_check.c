/* Malicious and foreign bytes: invalid messages are refused by name before memory is allocated, and valid
 * messages of other encoders are accepted. Limits are tested at N and N + 1. */
#include "tests/support/test.h"

#include "base/rk_compiler.h"
#include "base/rk_rng.h"
#include "proto/limits.h"
#include "proto/rk_messages.h"
#include "tests/unit/proto/wire.h"

#include <stdio.h>
#include <string.h>

static struct rk_arena *arena;

static int setup(void **state)
{
    (void)state;
    arena = rk_arena_create(1 << 16, 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    rk_arena_destroy(arena);
    return 0;
}

static struct rk_status *unpack_request(struct rk_execute_request *out, struct rk_str *bytes)
{
    struct rk_status *st;

    rk_arena_reset(arena);
    st = rk_unpack_execute_request(out, arena, rk_str_text(bytes), bytes->bytes);
    rk_str_clear(bytes);
    return st;
}

/* `inner` as the header of an ExecuteRequest; empties it. */
static struct rk_status *unpack_header(struct rk_str *inner)
{
    struct rk_execute_request request;
    struct rk_str outer = {0};
    struct rk_status *st;

    put_message(&outer, 1, inner);
    rk_str_clear(inner);
    st = unpack_request(&request, &outer);
    rk_str_fini(&outer);
    return st;
}

/* --- text and numbers --- */

static const struct {
    const char *label;
    const char *data;
    size_t bytes;
    bool is_good;
} texts[] = {
    {"plain", "actor", 5, true},
    {"empty", "", 0, true},
    {"two, three and four bytes", "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", 9, true},
    {"NUL inside", "ac\0tor", 6, false},
    {"NUL at the end", "actor\0", 6, false},
    {"lone continuation", "a\x80", 2, false},
    {"cut character", "a\xe2\x82", 3, false},
    {"overlong slash", "\xc0\xaf", 2, false},
    {"surrogate", "\xed\xa0\x80", 3, false},
    {"beyond Unicode", "\xf4\x90\x80\x80", 4, false},
};

static void test_unpack_text_must_be_utf8_without_nul(void **state)
{
    struct rk_str header = {0};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(texts); i++) {
        print_message("%s\n", texts[i].label);
        put_bytes(&header, 5, texts[i].data, texts[i].bytes);
        if (texts[i].is_good)
            assert_ok(unpack_header(&header));
        else
            assert_fails(unpack_header(&header), RK_INVALID_ARGUMENT, "header.role: not valid UTF-8");
    }
    rk_str_fini(&header);
}

static void test_unpack_nested_text_error_names_the_path(void **state)
{
    struct rk_str tensor = {0}, batch = {0}, header = {0};

    (void)state;
    put_bytes(&tensor, 1, "\xff", 1);
    put_message(&batch, 2, &tensor);
    put_message(&header, 7, &batch);
    assert_fails(unpack_header(&header), RK_INVALID_ARGUMENT, "header.input.tensor.name: not valid UTF-8");
    rk_str_fini(&tensor);
    rk_str_fini(&batch);
    rk_str_fini(&header);
}

static void test_unpack_enum_must_be_known(void **state)
{
    static const struct {
        uint64_t dtype;
        const char *error;
    } cases[] = {
        {9, NULL},
        {12, NULL},
        {13, "header.input.tensor.dtype: unknown value 13"},
        {UINT64_MAX, "header.input.tensor.dtype: unknown value -1"},
        {0, "tensor 'x': no dtype"},
    };
    struct rk_str tensor = {0}, batch = {0}, header = {0};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        put_bytes(&tensor, 1, "x", 1);
        put_number(&tensor, 2, cases[i].dtype);
        put_message(&batch, 2, &tensor);
        put_message(&header, 7, &batch);
        if (cases[i].error)
            assert_fails(unpack_header(&header), RK_INVALID_ARGUMENT, cases[i].error);
        else
            assert_ok(unpack_header(&header));
        rk_str_clear(&tensor);
        rk_str_clear(&batch);
    }
    rk_str_fini(&tensor);
    rk_str_fini(&batch);
    rk_str_fini(&header);
}

static void test_unpack_rank_beyond_31_bits_is_refused(void **state)
{
    struct rk_configure_request request;
    struct rk_str mesh = {0}, role_mesh = {0}, bytes = {0};

    (void)state;
    put_number(&mesh, 1, 1ull << 31);
    put_message(&role_mesh, 2, &mesh);
    put_message(&bytes, 3, &role_mesh);
    assert_fails(rk_unpack_configure_request(&request, arena, bytes.text, bytes.bytes), RK_INVALID_ARGUMENT,
                 "mesh.mesh.tp: 2147483648 is out of range");
    rk_str_fini(&mesh);
    rk_str_fini(&role_mesh);
    rk_str_fini(&bytes);
}

static void test_unpack_negative_batch_size_is_refused(void **state)
{
    struct rk_str batch = {0}, header = {0};

    (void)state;
    put_number(&batch, 1, (uint64_t)-1);
    put_message(&header, 7, &batch);
    assert_fails(unpack_header(&header), RK_INVALID_ARGUMENT, "batch_size=-1 is negative");
    rk_str_fini(&batch);
    rk_str_fini(&header);
}

/* --- the wire format --- */

static const struct {
    const char *label;
    const char *data;
    size_t bytes;
} broken[] = {
    {"key alone", "\x0a", 1},
    {"length beyond the end",
     "\x0a\x05"
     "ab",
     4},
    {"length of 2^63", "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", 10},
    {"varint without end", "\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 12},
    {"varint cut off", "\x10\x80", 2},
    {"field number 0", "\x02\x00", 2},
    {"group begin", "\x0b", 1},
    {"group end", "\x0c", 1},
    {"wire type 6", "\x0e", 1},
    {"wire type 7", "\x0f", 1},
    {"fixed32 cut off", "\x2d\x01\x02\x03", 4},
    {"fixed64 cut off", "\x29\x01\x02\x03\x04\x05\x06\x07", 8},
    {"key of six bytes", "\x8a\x80\x80\x80\x80\x00", 6},
    {"length of six bytes", "\x0a\x80\x80\x80\x80\x80\x00", 7},
    {"nested message cut off", "\x0a\x02\x0a\x05", 4},
};

static void test_unpack_broken_bytes_are_refused(void **state)
{
    struct rk_cancel_request request;

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(broken); i++) {
        print_message("%s\n", broken[i].label);
        assert_fails(rk_unpack_cancel_request(&request, arena, broken[i].data, broken[i].bytes),
                     RK_INVALID_ARGUMENT, "not a protobuf message");
        assert_null(request.reason);
    }
}

static void test_unpack_wrong_wire_type_is_refused(void **state)
{
    struct rk_str header = {0};

    (void)state;
    put_number(&header, 5, 1); /* role as a number */
    assert_fails(unpack_header(&header), RK_INVALID_ARGUMENT, "header.role: wrong wire type");
    put_bytes(&header, 3, "x", 1); /* seq as bytes */
    assert_fails(unpack_header(&header), RK_INVALID_ARGUMENT, "header.seq: wrong wire type");
    rk_str_fini(&header);
}

/* Every prefix of a message with all fields is either refused or a valid message; none may crash or leak. */
static void test_unpack_every_prefix_and_every_flipped_byte_is_survived(void **state)
{
    static const int64_t shape[] = {2, 300};
    static const char *const values[] = {"a", "b"};
    struct rk_tensor_spec tensor = {
        .name = "t", .dtype = RK_DTYPE_F32, .rank = 2, .shape = shape, .byte_size = 2400};
    struct rk_string_column column = {.name = "uid", .num_values = 2, .values = values};
    struct rk_meta_entry option = {.key = "k", .value = {.kind = RK_SCALAR_JSON, .json = "{\"a\": 1}"}};
    struct rk_execute_request request = {.kind = RK_EXECUTE_HEADER,
                                         .header = {.role = "actor",
                                                    .method = "m",
                                                    .seq = 300,
                                                    .input = {.batch_size = 2,
                                                              .num_tensors = 1,
                                                              .tensors = &tensor,
                                                              .num_columns = 1,
                                                              .columns = &column},
                                                    .options = {1, &option}}};
    struct rk_str packed = {0};
    int num_ok = 0, num_refused = 0;

    (void)state;
    rk_pack_execute_request(&packed, &request);
    for (size_t i = 0; i < packed.bytes * 9; i++) {
        struct rk_execute_request got;
        struct rk_str copy = {0};
        struct rk_status *st;

        /* 9 variants of each position: the prefix that ends there, and each bit flipped. */
        rk_str_append_bytes(&copy, packed.text, i % 9 ? packed.bytes : i / 9);
        if (i % 9)
            copy.text[i / 9] = (char)(copy.text[i / 9] ^ 1 << (i % 9 - 1));
        st = unpack_request(&got, &copy);
        st ? num_refused++ : num_ok++;
        rk_status_free(st);
        rk_str_fini(&copy);
    }
    assert_true(num_ok > 0);
    assert_true(num_refused > (int)packed.bytes);
    rk_str_fini(&packed);
}

static void test_unpack_random_bytes_are_survived(void **state)
{
    struct rk_rng rng;

    (void)state;
    rk_rng_init(&rng, rk_test_seed(), 1);
    for (int i = 0; i < 20000; i++) {
        struct rk_execute_request got;
        struct rk_str bytes = {0};
        int64_t count = rk_rng_next_below(&rng, 40);

        for (int64_t k = 0; k < count; k++) {
            char byte = (char)rk_rng_next_below(&rng, k % 2 ? 256 : 32);

            rk_str_append_bytes(&bytes, &byte, 1);
        }
        rk_status_free(unpack_request(&got, &bytes));
        rk_str_fini(&bytes);
    }
}

/* --- valid bytes that rankd's encoder does not write --- */

static void test_unpack_foreign_encodings_are_accepted(void **state)
{
    struct rk_execute_request request;
    struct rk_str micro = {0}, mini = {0}, plan = {0}, header = {0}, bytes = {0}, packed = {0};

    (void)state;
    /* rows packed, then one by one; fields in descending order; an unknown field of each wire type */
    put_number(&micro, 2, 50);
    put_varint(&packed, 4);
    put_varint(&packed, 300);
    put_message(&micro, 1, &packed);
    put_number(&micro, 1, 7);
    put_message(&mini, 2, &micro);
    put_message(&plan, 1, &mini);
    put_number(&header, 90, 1);
    put_bytes(&header, 91, "unknown", 7);
    put_key(&header, 92, WIRE_FIXED32);
    rk_str_append_bytes(&header, "abcd", 4);
    put_key(&header, 93, WIRE_FIXED64);
    rk_str_append_bytes(&header, "abcdefgh", 8);
    put_message(&header, 9, &plan);
    put_bytes(&header, 6, "update_actor", 12);
    put_bytes(&header, 5, "actor", 5);
    put_number(&header, 3, 8);
    put_number(&header, 3, 9); /* the last one counts */
    put_message(&bytes, 1, &header);
    assert_ok(unpack_request(&request, &bytes));
    assert_int_equal(request.header.seq, 9);
    assert_string_equal(request.header.role, "actor");
    assert_string_equal(request.header.method, "update_actor");
    assert_int_equal(request.header.plan.mini[0].micro[0].num_rows, 3);
    assert_int_equal(request.header.plan.mini[0].micro[0].rows[1], 300);
    assert_int_equal(request.header.plan.mini[0].micro[0].rows[2], 7);
    assert_int_equal(request.header.plan.mini[0].micro[0].num_tokens, 50);
    rk_str_fini(&micro);
    rk_str_fini(&mini);
    rk_str_fini(&plan);
    rk_str_fini(&header);
    rk_str_fini(&bytes);
    rk_str_fini(&packed);
}

static void put_tensor(struct rk_str *header, const char *name)
{
    struct rk_str batch = {0}, tensor = {0};

    put_bytes(&tensor, 1, name, strlen(name));
    put_number(&tensor, 2, RK_DTYPE_U8);
    put_message(&batch, 2, &tensor);
    put_message(header, 7, &batch);
    rk_str_fini(&batch);
    rk_str_fini(&tensor);
}

/* Goal: a message in two pieces is their merge, as the protobuf documentation defines it: lists are joined,
 * of numbers and texts the last one counts, messages are merged in turn. */
static void test_unpack_message_in_pieces_is_merged(void **state)
{
    struct rk_execute_request request;
    struct rk_str header = {0}, fence = {0}, bytes = {0};

    (void)state;
    put_number(&fence, 1, 5); /* epoch */
    put_bytes(&fence, 2, "old", 3);
    put_message(&header, 1, &fence);
    put_bytes(&header, 5, "actor", 5);
    put_tensor(&header, "first");
    put_message(&bytes, 1, &header);
    rk_str_clear(&fence);
    rk_str_clear(&header);
    put_bytes(&fence, 2, "new", 3);
    put_message(&header, 1, &fence);
    put_tensor(&header, "second");
    put_message(&bytes, 1, &header);
    assert_ok(unpack_request(&request, &bytes));
    assert_int_equal(request.header.fence.epoch, 5);
    assert_int_equal(request.header.fence.lease_id.bytes, 3);
    assert_memory_equal(request.header.fence.lease_id.data, "new", 3);
    assert_string_equal(request.header.role, "actor");
    assert_string_equal(request.header.method, "");
    assert_int_equal(request.header.input.num_tensors, 2);
    assert_string_equal(request.header.input.tensors[0].name, "first");
    assert_string_equal(request.header.input.tensors[1].name, "second");
    put_message(&bytes, 1, &header);
    put_bytes(&bytes, 2, "", 0); /* of a oneof the last member counts */
    assert_ok(unpack_request(&request, &bytes));
    assert_int_equal(request.kind, RK_EXECUTE_COMMIT);
    rk_str_fini(&fence);
    rk_str_fini(&header);
    rk_str_fini(&bytes);
}

/* --- limits --- */

typedef void fill_fn(struct rk_str *header, int64_t count);

static void fill_unknown(struct rk_str *header, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        put_number(header, 100, 1);
}

static void fill_nested_unknown(struct rk_str *header, int64_t count)
{
    struct rk_str fence = {0};

    fill_unknown(&fence, count - 1);
    put_message(header, 1, &fence);
    put_number(header, 100, 1);
    rk_str_fini(&fence);
}

static void fill_repeated_seq(struct rk_str *header, int64_t count)
{
    for (int64_t i = 0; i <= count; i++) /* the first one is not a repetition */
        put_number(header, 3, (uint64_t)i);
}

static void fill_tensors(struct rk_str *header, int64_t count)
{
    struct rk_str batch = {0}, tensor = {0};

    put_number(&tensor, 2, RK_DTYPE_U8);
    for (int64_t i = 0; i < count; i++)
        put_message(&batch, 2, &tensor);
    put_message(header, 7, &batch);
    rk_str_fini(&batch);
    rk_str_fini(&tensor);
}

static void fill_strings(struct rk_str *header, int64_t count)
{
    struct rk_str batch = {0}, column = {0};

    /* In two columns: the limit is on the batch. */
    for (int64_t i = 0; i < count / 2; i++)
        put_bytes(&column, 2, "", 0);
    put_message(&batch, 3, &column);
    if (count % 2)
        put_bytes(&column, 2, "", 0);
    put_message(&batch, 3, &column);
    put_message(header, 7, &batch);
    rk_str_fini(&batch);
    rk_str_fini(&column);
}

static void fill_options(struct rk_str *header, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        struct rk_str entry = {0}, value = {0};
        char key[32];

        put_number(&value, 4, 1);
        put_bytes(&entry, 1, key, (size_t)snprintf(key, sizeof(key), "k%lld", (long long)i));
        put_message(&entry, 2, &value);
        put_message(header, 8, &entry);
        rk_str_fini(&entry);
        rk_str_fini(&value);
    }
}

static void fill_micro(struct rk_str *header, int64_t count)
{
    struct rk_str plan = {0}, mini = {0};

    for (int64_t i = 0; i < count - 1; i++) /* the mini-batch counts too */
        put_bytes(&mini, 2, "", 0);
    put_message(&plan, 1, &mini);
    put_message(header, 9, &plan);
    rk_str_fini(&plan);
    rk_str_fini(&mini);
}

static void fill_name(struct rk_str *header, int64_t count)
{
    char name[2 * RK_LIMIT_NAME_BYTES];

    memset(name, 'a', sizeof(name));
    put_bytes(header, 5, name, (size_t)count);
}

static void fill_rank(struct rk_str *header, int64_t count)
{
    struct rk_str batch = {0}, tensor = {0};

    put_number(&tensor, 2, RK_DTYPE_U8);
    for (int64_t i = 0; i < count; i++)
        put_number(&tensor, 3, 1);
    put_message(&batch, 2, &tensor);
    put_message(header, 7, &batch);
    rk_str_fini(&batch);
    rk_str_fini(&tensor);
}

static void fill_request_id(struct rk_str *header, int64_t count)
{
    put_bytes(header, 2, "0123456789abcdef0123456789abcdef", (size_t)count);
}

/* Integers that should be packed, one by one. */
static void fill_loose_rows(struct rk_str *header, int64_t count)
{
    struct rk_str plan = {0}, mini = {0}, micro = {0};

    for (int64_t i = 0; i < count; i++)
        put_number(&micro, 1, 1);
    put_message(&mini, 2, &micro);
    put_message(&plan, 1, &mini);
    put_message(header, 9, &plan);
    rk_str_fini(&plan);
    rk_str_fini(&mini);
    rk_str_fini(&micro);
}

static const struct {
    const char *label;
    fill_fn *fill;
    int64_t limit;
    const char *error;
} limits[] = {
    {"unknown fields", fill_unknown, RK_LIMIT_UNKNOWN_FIELDS,
     "more than 16 unknown or repeated single fields"},
    {"nested unknown fields", fill_nested_unknown, RK_LIMIT_UNKNOWN_FIELDS, "more than 16 unknown"},
    {"a single field again and again", fill_repeated_seq, RK_LIMIT_UNKNOWN_FIELDS,
     "more than 16 unknown or repeated"},
    {"tensors", fill_tensors, RK_LIMIT_TENSORS, "header.input.tensor: more than 256 tensors or columns"},
    {"strings", fill_strings, RK_LIMIT_STRINGS, "header.input.column.value: more than 65536 strings"},
    {"options", fill_options, RK_LIMIT_META_ENTRIES, "header.option: more than 1024 options"},
    {"micro-batches", fill_micro, RK_LIMIT_MICRO_BATCHES, "header.plan.mini.micro: more than 65536"},
    {"bytes of a name", fill_name, RK_LIMIT_NAME_BYTES, "header.role: 129 bytes, at most 128 are allowed"},
    {"dimensions", fill_rank, RK_LIMIT_TENSOR_RANK, "header.input.tensor.shape: more than 8 entries"},
    {"bytes of a request id", fill_request_id, 16, "header.request_id: 17 bytes"},
    {"integers that are not packed", fill_loose_rows, RK_LIMIT_LIST,
     "header.plan.mini.micro.row: more than 4096"},
};

static void test_unpack_at_the_limit_passes_and_one_more_is_resource_exhausted(void **state)
{
    struct rk_str header = {0};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(limits); i++) {
        print_message("%s\n", limits[i].label);
        limits[i].fill(&header, limits[i].limit);
        assert_ok(unpack_header(&header));
        limits[i].fill(&header, limits[i].limit + 1);
        assert_fails(unpack_header(&header), RK_RESOURCE_EXHAUSTED, limits[i].error);
    }
    rk_str_fini(&header);
}

static void test_unpack_message_size_limit(void **state)
{
    struct rk_execute_request request;
    struct rk_str bytes = {0};
    static char zeros[4096];

    (void)state;
    /* The limit on the length of the whole message: an unknown field fills the message to the exact byte. */
    for (int extra = 0; extra < 2; extra++) {
        size_t payload = RK_LIMIT_MESSAGE_BYTES - 6 + (size_t)extra;

        put_key(&bytes, 100, WIRE_LENGTH);
        put_varint(&bytes, payload);
        while (payload) {
            size_t part = RK_MIN(payload, sizeof(zeros));

            rk_str_append_bytes(&bytes, zeros, part);
            payload -= part;
        }
        assert_int_equal(bytes.bytes, RK_LIMIT_MESSAGE_BYTES + extra);
        if (extra)
            assert_fails(unpack_request(&request, &bytes), RK_RESOURCE_EXHAUSTED,
                         "at most 4259840 are allowed");
        else
            assert_ok(unpack_request(&request, &bytes));
    }
    rk_str_fini(&bytes);
}

static void test_unpack_into_full_arena_is_resource_exhausted(void **state)
{
    struct rk_arena *small = rk_arena_create(256, 64);
    struct rk_cancel_request request = {
        .reason = "a reason that is longer than the whole arena, which has room for 64 bytes"};
    struct rk_cancel_request got;
    struct rk_str packed = {0};

    (void)state;
    rk_pack_cancel_request(&packed, &request);
    assert_fails(rk_unpack_cancel_request(&got, small, packed.text, packed.bytes), RK_RESOURCE_EXHAUSTED,
                 "no memory");
    assert_null(got.reason);
    rk_str_fini(&packed);
    rk_arena_destroy(small);
}

/* The result is compact: the largest valid number of entries needs tens of bytes per entry in the arena, not
 * hundreds as in protobuf-c. */
static void test_unpack_legal_flood_stays_small_in_the_arena(void **state)
{
    struct rk_str header = {0};

    (void)state;
    fill_strings(&header, RK_LIMIT_STRINGS);
    assert_ok(unpack_header(&header));
    assert_true(rk_arena_used_bytes(arena) <= RK_LIMIT_STRINGS * (sizeof(char *) + 16) + 4096);
    rk_str_fini(&header);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unpack_text_must_be_utf8_without_nul),
        cmocka_unit_test(test_unpack_nested_text_error_names_the_path),
        cmocka_unit_test(test_unpack_enum_must_be_known),
        cmocka_unit_test(test_unpack_rank_beyond_31_bits_is_refused),
        cmocka_unit_test(test_unpack_negative_batch_size_is_refused),
        cmocka_unit_test(test_unpack_broken_bytes_are_refused),
        cmocka_unit_test(test_unpack_wrong_wire_type_is_refused),
        cmocka_unit_test(test_unpack_every_prefix_and_every_flipped_byte_is_survived),
        cmocka_unit_test(test_unpack_random_bytes_are_survived),
        cmocka_unit_test(test_unpack_foreign_encodings_are_accepted),
        cmocka_unit_test(test_unpack_message_in_pieces_is_merged),
        cmocka_unit_test(test_unpack_at_the_limit_passes_and_one_more_is_resource_exhausted),
        cmocka_unit_test(test_unpack_message_size_limit),
        cmocka_unit_test(test_unpack_into_full_arena_is_resource_exhausted),
        cmocka_unit_test(test_unpack_legal_flood_stays_small_in_the_arena),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
