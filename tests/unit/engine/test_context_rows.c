/* The part of a packed micro-batch on each cp rank, against tables made by hand; and gathering the rows of
 * all ranks, with its adjoint. */
#include "tests/support/test.h"

#include <math.h>
#include <string.h>

#include "base/rk_rng.h"
#include "engine/model/model.h"
#include "tests/support/models.h"
#include "tests/support/ranks.h"

#define CONFIG                                                                                              \
    "{\"model_type\": \"llama\", \"hidden_size\": 16, \"intermediate_size\": 16, \"num_hidden_layers\": 1," \
    " \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"vocab_size\": 67,"                          \
    " \"max_position_embeddings\": 8}"
#define RUN_TIMEOUT_S 60
#define CP            2
#define COLUMNS       5
#define NUM_TOKENS    13
#define NUM_KEYS      20 /* 8 + 4 + 8 */

/* Sequences of 5, 1 and 7 tokens: ids 1, 2, ...; odd ids have the label id + 1. */
static const int32_t cu_seqlens[] = {0, 5, 6, 13};
static const int32_t positions[NUM_TOKENS] = {0, 1, 2, 3, 4, 0, 0, 1, 2, 3, 4, 5, 6};

/* The chunks have C = 2, 1 and 2 tokens. */
static const struct {
    int32_t tokens[NUM_KEYS / CP], positions[NUM_KEYS / CP], num_labels, labelled_rows[4];
} expected[CP] = {
    {{1, 2, 0, 0, 6, 0, 7, 8, 13, 0}, {0, 1, 6, 7, 0, 3, 0, 1, 6, 7}, 3, {0, 6, 8}},
    {{3, 4, 5, 0, 0, 0, 9, 10, 11, 12}, {2, 3, 4, 5, 1, 2, 2, 3, 4, 5}, 4, {0, 2, 6, 8}},
};

struct batch {
    struct rk_packed packed;
    int32_t tokens[NUM_TOKENS], labels[NUM_TOKENS];
};

static void make_batch(struct batch *batch)
{
    for (int32_t t = 0; t < NUM_TOKENS; t++) {
        batch->tokens[t] = t + 1;
        batch->labels[t] = t % 2 == 0 ? t + 2 : RK_LABEL_NONE;
    }
    batch->packed = (struct rk_packed){.num_seqs = 3,
                                       .num_tokens = NUM_TOKENS,
                                       .max_seqlen = 7,
                                       .tokens = batch->tokens,
                                       .positions = positions,
                                       .cu_seqlens = cu_seqlens,
                                       .labels = batch->labels};
}

/* Tensors of the CPU device are host memory. */
static int check_ints(const char *what, rk_tensor_t t, const int32_t *values, int64_t count)
{
    RK_RANK_CHECK(rk_tensor_num_elements(t) == count, "%s: %lld elements", what,
                  (long long)rk_tensor_num_elements(t));
    for (int64_t i = 0; i < count; i++)
        RK_RANK_CHECK(((const int32_t *)t.data)[i] == values[i], "%s %lld is %d, expected %d", what,
                      (long long)i, ((const int32_t *)t.data)[i], values[i]);
    return 0;
}

static int check_rows(const struct rk_pass *pass, const struct batch *batch, int32_t rank)
{
    static const int32_t segments[] = {0, 2, 4, 5, 6, 8, 10}, k_begin[] = {0, 0, 8, 8, 12, 12};
    static const int32_t k_lens[CP][6] = {{2, 8, 1, 4, 2, 8}, {4, 6, 2, 3, 4, 6}};
    struct rk_labels labels;

    RK_RANK_CHECK(pass->num_tokens == NUM_KEYS / CP, "%lld tokens", (long long)pass->num_tokens);
    RK_RANK_CHECK(pass->num_rows == NUM_KEYS / CP, "%lld rows", (long long)pass->num_rows);
    RK_RANK_CHECK(pass->max_seqlen == 2, "max_seqlen %d", pass->max_seqlen);
    if (check_ints("token", pass->tokens, expected[rank].tokens, NUM_KEYS / CP) ||
        check_ints("position", pass->positions, expected[rank].positions, NUM_KEYS / CP) ||
        check_ints("segment", pass->cu_seqlens, segments, 7) ||
        check_ints("k_begin", pass->context->k_begin, k_begin, 6) ||
        check_ints("k_lens", pass->context->k_lens[RK_ZIGZAG_BOTH], k_lens[rank], 6))
        return 1;
    RK_RANK_OK(rk_labels_select(&labels, pass, &batch->packed));
    RK_RANK_CHECK(labels.count_max == 4, "%lld labels on a rank", (long long)labels.count_max);
    if (check_ints("labelled row", labels.index, expected[rank].labelled_rows, expected[rank].num_labels))
        return 1;
    for (int64_t i = 0; i < labels.count; i++) {
        int32_t token = expected[rank].tokens[expected[rank].labelled_rows[i]];

        RK_RANK_CHECK(labels.positions[i] == token - 1, "position %d", labels.positions[i]);
        RK_RANK_CHECK(((const int32_t *)labels.labels.data)[i] == token + 1, "label of token %d", token);
    }
    return 0;
}

static void fill(rk_tensor_t t, uint64_t stream)
{
    for (int64_t i = 0; i < rk_tensor_num_elements(t); i++)
        ((double *)t.data)[i] = rk_rng_normal(3, stream, (uint64_t)i);
}

static double dot(rk_tensor_t a, rk_tensor_t b)
{
    double sum = 0;

    for (int64_t i = 0; i < rk_tensor_num_elements(a); i++)
        sum += ((const double *)a.data)[i] * ((const double *)b.data)[i];
    return sum;
}

/* Sum over ranks of <gather x, y> and of <x, reduce y>, where each rank has its own x and y. */
static int check_adjoint(const struct rk_pass *pass, int32_t rank)
{
    rk_tensor_t x[2], reduced[2], whole, y, sums;
    double *values;

    for (int i = 0; i < 2; i++) {
        RK_RANK_OK(rk_step_2d(pass->arena, &x[i], RK_DTYPE_F64, pass->num_tokens, COLUMNS + i));
        RK_RANK_OK(rk_step_2d(pass->arena, &reduced[i], RK_DTYPE_F64, pass->num_tokens, COLUMNS + i));
        fill(x[i], (uint64_t)(10 * rank + i));
    }
    RK_RANK_OK(rk_step_2d(pass->arena, &whole, RK_DTYPE_F64, NUM_KEYS, 2 * COLUMNS + 1));
    RK_RANK_OK(rk_step_2d(pass->arena, &y, RK_DTYPE_F64, NUM_KEYS, 2 * COLUMNS + 1));
    RK_RANK_OK(rk_step_1d(pass->arena, &sums, RK_DTYPE_F64, 2));
    fill(y, 100 + (uint64_t)rank);
    RK_RANK_OK(rk_context_gather(pass, x, 2, whole));
    RK_RANK_OK(rk_context_reduce(pass, y, reduced, 2));
    values = sums.data;
    values[0] = dot(whole, y);
    values[1] = dot(x[0], reduced[0]) + dot(x[1], reduced[1]);
    RK_RANK_OK(rk_comm_all_reduce(pass->context->group, pass->stream, sums, RK_REDUCE_SUM));
    RK_RANK_CHECK(fabs(values[0]) > 0.1, "%g", values[0]);
    RK_RANK_CHECK(fabs(values[0] - values[1]) < 1e-10, "<Ax, y> = %.17g, <x, A'y> = %.17g", values[0],
                  values[1]);
    return 0;
}

/* The row of every token holds its id: the gathered rows must be in the caller's order, without padding. */
static int check_order(const struct rk_pass *pass)
{
    rk_tensor_t x, all;

    RK_RANK_OK(rk_step_2d(pass->arena, &x, RK_DTYPE_F64, pass->num_tokens, 1));
    for (int64_t i = 0; i < pass->num_tokens; i++)
        ((double *)x.data)[i] = ((const int32_t *)pass->tokens.data)[i];
    RK_RANK_OK(rk_model_gather_packed(pass, x, NUM_TOKENS, &all));
    for (int64_t t = 0; t < NUM_TOKENS; t++)
        RK_RANK_CHECK(((const double *)all.data)[t] == (double)t + 1, "token %lld is %g", (long long)t,
                      ((const double *)all.data)[t]);
    return 0;
}

static int run_rank(struct rk_comm_world *world, void *user)
{
    int32_t rank = rk_comm_world_rank(world);
    struct rk_test_model test;
    struct rk_status *st;
    struct batch batch;
    struct rk_pass pass;

    (void)user;
    RK_RANK_OK(rk_test_model_open(
        &test,
        &(struct rk_test_model_spec){.config = CONFIG, .dtype = RK_DTYPE_F64, .cp = CP, .world = world}));
    make_batch(&batch);
    RK_RANK_OK(rk_model_begin_packed(test.model, NULL, &pass, &batch.packed));
    if (check_rows(&pass, &batch, rank) || check_adjoint(&pass, rank) || check_order(&pass))
        return 1;
    /* All ranks must report a label outside the vocabulary, including ranks that do not have its token. */
    batch.labels[0] = 67;
    st = rk_model_forward(test.model, &batch.packed, 1, NULL, &(struct rk_head_arrays){.ids = {0}});
    RK_RANK_CHECK(rk_status_code(st) == RK_OUT_OF_RANGE, "rank %d", rank);
    rk_status_free(st);
    rk_test_model_close(&test);
    return 0;
}

static void test_context_rows_are_those_of_the_table(void **state)
{
    (void)state;
    assert_int_equal(rk_test_run_world(CP, "unix", run_rank, NULL, RUN_TIMEOUT_S), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_context_rows_are_those_of_the_table)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
