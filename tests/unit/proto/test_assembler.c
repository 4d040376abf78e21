/* The bookkeeping of chunks: all valid orders are accepted, everything else is refused by name. */
#include "tests/support/test.h"

#include "base/rk_compiler.h"
#include "proto/limits.h"
#include "proto/rk_stream.h"

#include <string.h>

static const int64_t shape_a[] = {2, 5}, shape_b[] = {8}, shape_empty[] = {0, 7};
/* 40, 32, 0 and 4 bytes; the last is a scalar. */
static struct rk_tensor_spec tensors[] = {
    {.name = "a", .dtype = RK_DTYPE_F32, .rank = 2, .shape = shape_a, .byte_size = 40},
    {.name = "b", .dtype = RK_DTYPE_F32, .rank = 1, .shape = shape_b, .byte_size = 32},
    {.name = "empty", .dtype = RK_DTYPE_I64, .rank = 2, .shape = shape_empty, .byte_size = 0},
    {.name = "scalar", .dtype = RK_DTYPE_F32, .byte_size = 4},
};
static const struct rk_batch_spec spec = {.num_tensors = 4, .tensors = tensors};

struct step {
    uint32_t tensor;
    uint64_t offset;
    size_t bytes;
};

#define MAX_STEPS 6

static const struct {
    const char *label;
    int num_steps;
    struct step steps[MAX_STEPS];
    const char *step_error;     /* error of the last step; NULL: all are accepted */
    const char *complete_error; /* error of the check for completeness if all are accepted; NULL: complete */
} cases[] = {
    {"one chunk a tensor", 3, {{0, 0, 40}, {1, 0, 32}, {3, 0, 4}}, NULL, NULL},
    {"tensors in another order", 3, {{3, 0, 4}, {1, 0, 32}, {0, 0, 40}}, NULL, NULL},
    {"interleaved", 5, {{0, 0, 16}, {1, 0, 8}, {0, 16, 24}, {1, 8, 24}, {3, 0, 4}}, NULL, NULL},
    {"chunks that cut elements", 4, {{0, 0, 1}, {0, 1, 39}, {1, 0, 32}, {3, 0, 4}}, NULL, NULL},
    {"nothing came", 0, {{0}}, NULL, "tensor 'a' is incomplete: 0 of 40"},
    {"the end of a is missing",
     3,
     {{0, 0, 39}, {1, 0, 32}, {3, 0, 4}},
     NULL,
     "tensor 'a' is incomplete: 39 of 40"},
    {"the scalar is missing", 2, {{0, 0, 40}, {1, 0, 32}}, NULL, "tensor 'scalar' is incomplete: 0 of 4"},
    {"hole", 2, {{0, 0, 16}, {0, 17, 23}}, "tensor 'a': chunk at offset 17, expected 16", NULL},
    {"overlap", 2, {{0, 0, 16}, {0, 15, 25}}, "tensor 'a': chunk at offset 15, expected 16", NULL},
    {"out of order", 1, {{0, 20, 20}}, "tensor 'a': chunk at offset 20, expected 0", NULL},
    {"the same chunk twice", 2, {{1, 0, 16}, {1, 0, 16}}, "tensor 'b': chunk at offset 0, expected 16", NULL},
    {"one byte too many",
     1,
     {{0, 0, 41}},
     "tensor 'a': chunk of 41 bytes at offset 0 ends behind its 40",
     NULL},
    {"too many after a part", 2, {{1, 0, 31}, {1, 31, 2}}, "tensor 'b': chunk of 2 bytes at offset 31", NULL},
    {"chunk of a complete tensor",
     2,
     {{3, 0, 4}, {3, 4, 1}},
     "tensor 'scalar': chunk of 1 bytes at offset 4",
     NULL},
    {"chunk of an empty tensor", 1, {{2, 0, 1}}, "tensor 'empty': chunk of 1 bytes", NULL},
    {"empty chunk", 1, {{0, 0, 0}}, "tensor 'a': empty chunk at offset 0", NULL},
    {"offset near the end of 64 bits",
     1,
     {{0, UINT64_MAX, 2}},
     "tensor 'a': chunk at offset 18446744073709551615",
     NULL},
    {"no such tensor", 1, {{4, 0, 4}}, "chunk of tensor 4, but there are 4", NULL},
    {"far index", 1, {{UINT32_MAX, 0, 4}}, "chunk of tensor 4294967295", NULL},
};

static void run_case(size_t i)
{
    struct rk_assembler *assembler;

    print_message("%s\n", cases[i].label);
    assert_ok(rk_assembler_create(&assembler, &spec, 0));
    for (int k = 0; k < cases[i].num_steps; k++) {
        const struct step *step = &cases[i].steps[k];
        struct rk_tensor_chunk chunk = {.tensor = step->tensor, .offset = step->offset};

        if (cases[i].step_error && k == cases[i].num_steps - 1)
            assert_fails(rk_assembler_accept(assembler, &chunk, step->bytes), RK_INVALID_ARGUMENT,
                         cases[i].step_error);
        else
            assert_ok(rk_assembler_accept(assembler, &chunk, step->bytes));
    }
    if (cases[i].complete_error)
        assert_fails(rk_assembler_check_complete(assembler), RK_INVALID_ARGUMENT, cases[i].complete_error);
    else if (!cases[i].step_error)
        assert_ok(rk_assembler_check_complete(assembler));
    rk_assembler_destroy(assembler);
}

static void test_accept_sequences_of_chunks(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++)
        run_case(i);
}

static void test_accept_refused_chunk_changes_no_state(void **state)
{
    struct rk_assembler *assembler;

    (void)state;
    assert_ok(rk_assembler_create(&assembler, &spec, 0));
    assert_ok(rk_assembler_accept(assembler, &(struct rk_tensor_chunk){.tensor = 0}, 16));
    assert_code(rk_assembler_accept(assembler, &(struct rk_tensor_chunk){.tensor = 0, .offset = 16}, 25),
                RK_INVALID_ARGUMENT);
    assert_ok(rk_assembler_accept(assembler, &(struct rk_tensor_chunk){.tensor = 0, .offset = 16}, 24));
    rk_assembler_destroy(assembler);
}

static void test_accept_chunk_over_the_limit_is_resource_exhausted(void **state)
{
    static const int64_t shape[] = {2 * RK_LIMIT_CHUNK_BYTES_MAX};
    struct rk_tensor_spec tensor = {.name = "big",
                                    .dtype = RK_DTYPE_U8,
                                    .rank = 1,
                                    .shape = shape,
                                    .byte_size = 2 * RK_LIMIT_CHUNK_BYTES_MAX};
    struct rk_assembler *assembler;

    (void)state;
    assert_ok(
        rk_assembler_create(&assembler, &(struct rk_batch_spec){.num_tensors = 1, .tensors = &tensor}, 0));
    assert_fails(rk_assembler_accept(assembler, &(struct rk_tensor_chunk){0}, RK_LIMIT_CHUNK_BYTES_MAX + 1),
                 RK_RESOURCE_EXHAUSTED, "4194305 bytes");
    assert_ok(rk_assembler_accept(assembler, &(struct rk_tensor_chunk){0}, RK_LIMIT_CHUNK_BYTES_MAX));
    rk_assembler_destroy(assembler);
}

static const int64_t shape_huge[] = {INT64_MAX, 4}, shape_half[] = {INT64_MAX}, shape_negative[] = {4, -1};

static const struct {
    const char *label;
    struct rk_tensor_spec tensors[3];
    int64_t num_tensors;
    rk_code_t code;
    const char *error;
} bad_specs[] = {
    {"size one too small",
     {{.name = "x", .dtype = RK_DTYPE_F32, .rank = 2, .shape = shape_a, .byte_size = 39}},
     1,
     RK_INVALID_ARGUMENT,
     "tensor 'x': byte_size=39, but shape and dtype f32 make 40"},
    {"size of another dtype",
     {{.name = "x", .dtype = RK_DTYPE_BF16, .rank = 2, .shape = shape_a, .byte_size = 40}},
     1,
     RK_INVALID_ARGUMENT,
     "make 20"},
    {"product overflows",
     {{.name = "x", .dtype = RK_DTYPE_F32, .rank = 2, .shape = shape_huge, .byte_size = 0}},
     1,
     RK_INVALID_ARGUMENT,
     "the shape overflows"},
    {"negative dimension",
     {{.name = "x", .dtype = RK_DTYPE_F32, .rank = 2, .shape = shape_negative, .byte_size = 0}},
     1,
     RK_INVALID_ARGUMENT,
     "shape[1]=-1 is negative"},
    {"dtype missing", {{.name = "x", .byte_size = 0}}, 1, RK_INVALID_ARGUMENT, "dtype 0 is unknown"},
    {"dtype beyond the known ones",
     {{.name = "x", .dtype = RK_DTYPE_COUNT}},
     1,
     RK_INVALID_ARGUMENT,
     "is unknown"},
    {"sum overflows",
     {{.name = "x", .dtype = RK_DTYPE_U8, .rank = 1, .shape = shape_half, .byte_size = INT64_MAX},
      {.name = "y", .dtype = RK_DTYPE_U8, .rank = 1, .shape = shape_half, .byte_size = INT64_MAX},
      {.name = "z", .dtype = RK_DTYPE_U8, .rank = 1, .shape = shape_half, .byte_size = INT64_MAX}},
     3,
     RK_INVALID_ARGUMENT,
     "the sizes of the tensors overflow"},
};

static void test_create_bad_spec_names_tensor_and_expectation(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(bad_specs); i++) {
        struct rk_tensor_spec copy[3];
        struct rk_assembler *assembler;

        print_message("%s\n", bad_specs[i].label);
        memcpy(copy, bad_specs[i].tensors, sizeof(copy));
        assert_fails(rk_assembler_create(
                         &assembler,
                         &(struct rk_batch_spec){.num_tensors = bad_specs[i].num_tensors, .tensors = copy},
                         0),
                     bad_specs[i].code, bad_specs[i].error);
        assert_null(assembler);
    }
}

static void test_create_total_at_the_limit_passes_and_one_more_does_not(void **state)
{
    struct rk_assembler *assembler;

    (void)state;
    assert_ok(rk_assembler_create(&assembler, &spec, 76));
    assert_int_equal(rk_assembler_total_bytes(assembler), 76);
    rk_assembler_destroy(assembler);
    assert_fails(rk_assembler_create(&assembler, &spec, 75), RK_RESOURCE_EXHAUSTED, "the batch has 76 bytes");
    assert_null(assembler);
}

static void test_check_complete_batch_without_tensors_is_complete(void **state)
{
    struct rk_assembler *assembler;

    (void)state;
    assert_ok(rk_assembler_create(&assembler, &(struct rk_batch_spec){0}, 0));
    assert_ok(rk_assembler_check_complete(assembler));
    rk_assembler_destroy(assembler);
    rk_assembler_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accept_sequences_of_chunks),
        cmocka_unit_test(test_accept_refused_chunk_changes_no_state),
        cmocka_unit_test(test_accept_chunk_over_the_limit_is_resource_exhausted),
        cmocka_unit_test(test_create_bad_spec_names_tensor_and_expectation),
        cmocka_unit_test(test_create_total_at_the_limit_passes_and_one_more_does_not),
        cmocka_unit_test(test_check_complete_batch_without_tensors_is_complete),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
