/* Padded columns to packed micro-batches and back. */
#include "tests/support/test.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "worker/worker_internal.h"

#define PROMPT   4
#define RESPONSE 4
#define SEQ      (PROMPT + RESPONSE)
#define ROWS     3

static const struct rk_model_config config = {.vocab_size = 100, .max_position_embeddings = 32};

/* Row 0 is the example of the batch's documentation: prompt 11 12, response 21 22 2. Row 1 fills all columns.
 * Row 2 has one prompt token and a response whose second token is masked out of the loss. */
static const int64_t input_ids[ROWS][SEQ] = {
    {0, 0, 11, 12, 21, 22, 2, 0},
    {31, 32, 33, 34, 41, 42, 43, 44},
    {0, 0, 0, 51, 61, 62, 63, 0},
};
static const int64_t attention_mask[ROWS][SEQ] = {
    {0, 0, 1, 1, 1, 1, 1, 0},
    {1, 1, 1, 1, 1, 1, 1, 1},
    {0, 0, 0, 1, 1, 1, 1, 0},
};
static const int64_t position_ids[ROWS][SEQ] = {
    {0, 0, 0, 1, 2, 3, 4, 4},
    {0, 1, 2, 3, 4, 5, 6, 7},
    {0, 0, 0, 0, 1, 2, 3, 3},
};
static const int64_t response_mask[ROWS][RESPONSE] = {{1, 1, 1, 0}, {1, 1, 1, 1}, {1, 0, 1, 0}};

struct fixture {
    struct rk_job *job;
    struct rk_method_call call;
    int64_t *input_ids, *attention_mask, *position_ids, *responses,
        *response_mask; /* writable columns of the batch */
    struct rk_rows rows;
};

static int64_t *add(struct rk_batch *batch, const char *name, const void *values, int64_t num_columns)
{
    const int64_t shape[] = {ROWS, num_columns};
    void *data;

    assert_ok(rk_batch_add_dense(batch, name, RK_DTYPE_I64, 2, shape, &data));
    memcpy(data, values, (size_t)(ROWS * num_columns) * sizeof(int64_t));
    return data;
}

static void fixture_init(struct fixture *f)
{
    struct rk_batch *batch;

    memset(f, 0, sizeof(*f));
    f->job = rk_job_create(RK_JOB_METHOD);
    f->job->call.method = rk_method_get(RK_METHOD_UPDATE_ACTOR);
    assert_ok(rk_batch_create(&f->job->call.input, ROWS));
    batch = f->job->call.input;
    f->input_ids = add(batch, "input_ids", input_ids, SEQ);
    f->attention_mask = add(batch, "attention_mask", attention_mask, SEQ);
    f->position_ids = add(batch, "position_ids", position_ids, SEQ);
    f->response_mask = add(batch, "response_mask", response_mask, RESPONSE);
    f->responses = add(batch, "responses", response_mask, RESPONSE);
    for (int64_t row = 0; row < ROWS; row++)
        memcpy(f->responses + row * RESPONSE, input_ids[row] + PROMPT, RESPONSE * sizeof(int64_t));
    f->call.job = &f->job->call;
    f->call.arena = rk_arena_create(4096, 0);
}

static void fixture_fini(struct fixture *f)
{
    rk_arena_destroy(f->call.arena);
    rk_job_destroy(f->job);
}

static void check_i32(const int32_t *actual, const int32_t *expected, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        assert_int_equal(actual[i], expected[i]);
}

/* Goal: padding is removed, positions are kept, and the label of a token is the response token after it. */
static void test_pack_padding_example_follows_shift_rule(void **state)
{
    static const int32_t tokens[] = {11, 12, 21, 22, 2, 51, 61, 62, 63};
    static const int32_t positions[] = {0, 1, 2, 3, 4, 0, 1, 2, 3};
    static const int32_t labels[] = {-1, 21, 22, 2, -1, 61, 62, 63, -1};
    static const uint32_t picked[] = {0, 2};
    const struct rk_micro_batch micro = {.num_rows = 2, .rows = picked};
    struct fixture f;

    (void)state;
    fixture_init(&f);
    assert_ok(rk_rows_open(&f.rows, &f.call, &config, NULL));
    assert_int_equal(f.rows.num_tokens, 5 + 8 + 4);
    rk_rows_pack(&f.rows, &micro);
    assert_int_equal(f.rows.packed.num_tokens, 9);
    assert_int_equal(f.rows.packed.num_seqs, 2);
    assert_int_equal(f.rows.packed.max_seqlen, 5);
    check_i32(f.rows.packed.cu_seqlens, (const int32_t[]){0, 5, 9}, 3);
    check_i32(f.rows.packed.tokens, tokens, 9);
    check_i32(f.rows.packed.positions, positions, 9);
    check_i32(f.rows.packed.labels, labels, 9);
    fixture_fini(&f);
}

/* Goal: with a mask only the marked response tokens get a label. */
static void test_pack_with_mask_labels_marked_tokens(void **state)
{
    static const int32_t labels[] = {61, -1, 63, -1, -1, -1, -1, 41, 42, 43, 44, -1};
    static const uint32_t picked[] = {2, 1};
    const struct rk_micro_batch micro = {.num_rows = 2, .rows = picked};
    struct fixture f;

    (void)state;
    fixture_init(&f);
    assert_ok(rk_rows_open(&f.rows, &f.call, &config, "response_mask"));
    rk_rows_pack(&f.rows, &micro);
    assert_int_equal(f.rows.packed.num_tokens, 12);
    check_i32(f.rows.packed.labels, labels, 12);
    fixture_fini(&f);
}

static void test_pack_empty_micro_batch_has_no_tokens(void **state)
{
    const struct rk_micro_batch micro = {0};
    struct fixture f;

    (void)state;
    fixture_init(&f);
    assert_ok(rk_rows_open(&f.rows, &f.call, &config, NULL));
    rk_rows_pack(&f.rows, &micro);
    assert_int_equal(f.rows.packed.num_seqs, 0);
    assert_int_equal(f.rows.packed.num_tokens, 0);
    assert_int_equal(f.rows.packed.cu_seqlens[0], 0);
    fixture_fini(&f);
}

/* Goal: gather returns the values that scatter wrote over all micro-batches; unlabelled cells are
 * unchanged. */
static void test_scatter_then_gather_round_trip(void **state)
{
    static const uint32_t order[] = {1, 2, 0};
    static const float expected[ROWS][RESPONSE] = {{21, 22, 2, -7}, {41, 42, 43, 44}, {61, 62, 63, -7}};
    float column[ROWS][RESPONSE];
    struct fixture f;

    (void)state;
    fixture_init(&f);
    assert_ok(rk_rows_open(&f.rows, &f.call, &config, NULL));
    for (int64_t row = 0; row < ROWS; row++)
        for (int64_t j = 0; j < RESPONSE; j++)
            column[row][j] = -7.0F;
    for (int64_t i = 0; i < ROWS; i++) {
        const struct rk_micro_batch micro = {.num_rows = 1, .rows = &order[i]};
        double packed[SEQ], gathered[SEQ];

        rk_rows_pack(&f.rows, &micro);
        for (int64_t t = 0; t < f.rows.packed.num_tokens; t++)
            packed[t] = f.rows.packed.labels[t];
        rk_rows_scatter(&f.rows, 1, packed, column[0]);
        rk_rows_gather(&f.rows, 1, column[0], gathered);
        for (int64_t t = 0; t < f.rows.packed.num_tokens; t++)
            assert_true(gathered[t] == (packed[t] < 0.0 ? 0.0 : packed[t]));
    }
    assert_memory_equal(column, expected, sizeof(column));
    fixture_fini(&f);
}

static void test_find_column_checks_shape_and_presence(void **state)
{
    const int64_t good[] = {ROWS, RESPONSE}, narrow[] = {ROWS, RESPONSE - 1};
    const float *column;
    struct fixture f;
    void *data;

    (void)state;
    fixture_init(&f);
    assert_ok(rk_rows_open(&f.rows, &f.call, &config, NULL));
    assert_ok(rk_rows_find(&f.rows, &f.call, "advantages", false, &column));
    assert_null(column);
    assert_fails(rk_rows_find(&f.rows, &f.call, "advantages", true, &column), RK_INVALID_ARGUMENT,
                 "advantages");
    assert_ok(rk_batch_add_dense(f.job->call.input, "advantages", RK_DTYPE_F32, 2, narrow, &data));
    assert_fails(rk_rows_find(&f.rows, &f.call, "advantages", false, &column), RK_INVALID_ARGUMENT,
                 "advantages");
    assert_ok(rk_batch_add_dense(f.job->call.input, "advantages", RK_DTYPE_F32, 2, good, &data));
    assert_ok(rk_rows_find(&f.rows, &f.call, "advantages", true, &column));
    assert_ptr_equal(column, data);
    fixture_fini(&f);
}

static void break_attention_bit(struct fixture *f)
{
    f->attention_mask[3] = 2;
}
static void break_token(struct fixture *f)
{
    f->input_ids[SEQ + 1] = 100;
}
static void break_negative_token(struct fixture *f)
{
    f->input_ids[SEQ] = -1;
}
static void break_position(struct fixture *f)
{
    f->position_ids[2 * SEQ + 6] = 32;
}
static void break_response(struct fixture *f)
{
    f->responses[RESPONSE] = 40;
}
static void break_mask_bit(struct fixture *f)
{
    f->response_mask[1] = -1;
}
static void break_mask_on_padding(struct fixture *f)
{
    f->response_mask[3] = 1;
}
static void break_empty_prompt(struct fixture *f)
{
    f->attention_mask[2 * SEQ + 3] = 0;
}
static void break_missing(struct fixture *f)
{
    rk_batch_remove(f->job->call.input, "position_ids");
}
static void break_dtype(struct fixture *f)
{
    const int64_t shape[] = {ROWS, SEQ};
    void *data;

    assert_ok(rk_batch_add_dense(f->job->call.input, "attention_mask", RK_DTYPE_I32, 2, shape, &data));
}
static void break_width(struct fixture *f)
{
    const int64_t shape[] = {ROWS, SEQ - 1};
    void *data;

    assert_ok(rk_batch_add_dense(f->job->call.input, "position_ids", RK_DTYPE_I64, 2, shape, &data));
}
static void break_batch(struct fixture *f)
{
    rk_batch_destroy(f->job->call.input);
    f->job->call.input = NULL;
}

/* Goal: every input that could make packing or the model fail is refused at the start, with name and
 * position. */
static void test_open_bad_batch_is_refused(void **state)
{
    static const struct {
        void (*damage)(struct fixture *f);
        const char *text;
    } cases[] = {
        {break_attention_bit, "attention_mask[0, 3]=2"},
        {break_token, "input_ids[1, 1]=100: expected 0 to 99"},
        {break_negative_token, "input_ids[1, 0]=-1"},
        {break_position, "position_ids[2, 6]=32: expected 0 to 31"},
        {break_response, "responses: row 1"},
        {break_mask_bit, "response_mask[0, 1]=-1"},
        {break_mask_on_padding, "row 0: the token at column 7"},
        {break_empty_prompt, "row 2: "},
        {break_missing, "position_ids"},
        {break_dtype, "attention_mask"},
        {break_width, "position_ids"},
        {break_batch, "no batch"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct fixture f;

        fixture_init(&f);
        cases[i].damage(&f);
        assert_fails(rk_rows_open(&f.rows, &f.call, &config, "response_mask"), RK_INVALID_ARGUMENT,
                     cases[i].text);
        fixture_fini(&f);
    }
}

static void test_open_batch_wider_than_the_model_is_refused(void **state)
{
    struct rk_model_config narrow = config;
    struct fixture f;
    char *text =
        rk_format("'input_ids' has %d columns, max_position_embeddings of the model is %d", SEQ, SEQ - 1);

    (void)state;
    narrow.max_position_embeddings = SEQ - 1;
    fixture_init(&f);
    assert_fails(rk_rows_open(&f.rows, &f.call, &narrow, "response_mask"), RK_INVALID_ARGUMENT, text);
    fixture_fini(&f);
    rk_free(text);
}

/* --- plans --- */

/* Goal: a plan is checked against the tokens for which init_model reserved memory, over all cp ranks, and
 * against the schedule of the role's pipeline, whose stages would wait without end otherwise. */
static void test_check_plan_holds_sizes_against_mesh_and_layout(void **state)
{
    static const uint32_t all[] = {0, 1, 2}; /* 5, 8 and 4 tokens */
    static const struct {
        const char *label;
        struct rk_mesh_spec mesh;
        int32_t world_size, num_micro;
        int64_t tokens; /* limit in the options, over all cp ranks */
        int32_t vpp;
        bool trains;
        const char *error; /* NULL: fine */
    } cases[] = {
        {"one rank", {.tp = 1}, 1, 1, 17, 0, true, NULL},
        {"one rank, too many tokens",
         {.tp = 1},
         1,
         1,
         16,
         0,
         true,
         "mini-batch 0, micro-batch 0: 17 tokens are more than ppo_max_token_len_per_gpu=16 of init_model"},
        {"cp ranks share them", {.cp = 2}, 2, 1, 18, 0, true, NULL},
        {"cp ranks share them, still too many",
         {.cp = 2},
         2,
         1,
         16,
         0,
         false,
         "17 tokens are more than log_prob_max_token_len_per_gpu=8 x cp=2 of init_model"},
        {"any number of micro-batches", {.pp = 4}, 4, 3, 0, 0, true, NULL},
        {"interleaved", {.pp = 2}, 2, 4, 0, 2, true, NULL},
        {"interleaved, one too few",
         {.pp = 2},
         2,
         3,
         0,
         2,
         true,
         "mini-batch 0: interleaved pipeline schedule: 3 micro-batches with pp=2"},
        {"interleaved, no backward pass", {.pp = 2}, 2, 3, 0, 2, false, NULL},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_micro_batch micro[4] = {{.num_rows = ROWS, .rows = all}};
        struct rk_mini_batch mini = {.num_micro = cases[i].num_micro,
                                     .num_entries = cases[i].num_micro,
                                     .micro = micro,
                                     .num_tokens = 1,
                                     .num_sequences = 1};
        struct rk_worker *worker = rk_calloc(1, sizeof(*worker));
        struct rk_role role = {.limits = {cases[i].tokens, cases[i].tokens, 0}};
        struct fixture f;

        print_message("%s\n", cases[i].label);
        fixture_init(&f);
        assert_ok(rk_mesh_create(&role.mesh, &cases[i].mesh, cases[i].world_size));
        role.layout.vpp = cases[i].vpp;
        f.call.role = &role;
        f.call.worker = worker;
        f.job->call.plan = (struct rk_plan){.num_mini = 1, .mini = &mini};
        assert_ok(rk_rows_open(&f.rows, &f.call, &config, NULL));
        if (cases[i].error)
            assert_fails(rk_method_call_check_plan(&f.call, &f.rows, cases[i].trains), RK_INVALID_ARGUMENT,
                         cases[i].error);
        else
            assert_ok(rk_method_call_check_plan(&f.call, &f.rows, cases[i].trains));
        f.job->call.plan = (struct rk_plan){0};
        rk_mesh_destroy(role.mesh);
        rk_free(worker);
        fixture_fini(&f);
    }
}

/* Goal: a token without experts, the last one of a row that a rollout returned, gets those of the token
 * before it in the row, or the first ones; rows are packed in the order of the micro-batch. */
static void test_pack_routes_completes_the_last_token(void **state)
{
    static const int64_t mask[] = {0, 1, 1, 1, 0, 0, 1, 0, 1, 1, 1, 1};
    static const uint16_t column[] = {9, 9, 4, 1, 2, 5, 0, 0, 9, 9, 9, 9, 0, 0, 9, 9, 3, 0, 1, 2, 2, 4, 5, 3};
    static const uint16_t expected[] = {3, 0, 1, 2, 2, 4, 5, 3, 4, 1, 2, 5, 2, 5, 0, 1};
    uint32_t order[] = {2, 0, 1};
    const struct rk_micro_batch micro = {.num_rows = 3, .rows = order};
    uint16_t packed[RK_ARRAY_LEN(expected)] = {0};
    struct rk_rows rows = {
        .num_rows = 3,
        .seq_columns = 4,
        .attention_mask = mask,
        .routes = {.column = column, .per_token = 2, .num_experts_per_tok = 2, .packed = packed},
    };

    (void)state;
    rk_rows_pack_routes(&rows, &micro);
    assert_memory_equal(packed, expected, sizeof(expected));
    assert_ptr_equal(rows.packed.routed_experts, packed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pack_routes_completes_the_last_token),
        cmocka_unit_test(test_open_batch_wider_than_the_model_is_refused),
        cmocka_unit_test(test_pack_padding_example_follows_shift_rule),
        cmocka_unit_test(test_pack_with_mask_labels_marked_tokens),
        cmocka_unit_test(test_pack_empty_micro_batch_has_no_tokens),
        cmocka_unit_test(test_scatter_then_gather_round_trip),
        cmocka_unit_test(test_find_column_checks_shape_and_presence),
        cmocka_unit_test(test_open_bad_batch_is_refused),
        cmocka_unit_test(test_check_plan_holds_sizes_against_mesh_and_layout),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
