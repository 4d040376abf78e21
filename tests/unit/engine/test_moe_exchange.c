/* Expert parallelism: memory does not depend on the routing, a step overwrites the gradients of the one
 * before, and meshes that do not fit are refused. That ep does not change the result is tested by the gate
 * (tests/equivalence).
 *
 * A router whose weights are 0 gives equal scores, and equal scores are taken by ascending expert: all tokens
 * of all ranks then go to the first experts, which one rank of ep has. A wrapper around rk_swiglu_bwd
 * (-Wl,--wrap) counts the rows of the backward pass. */
#include "tests/support/test.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "engine/model/model.h"
#include "engine/optim/trainer.h"
#include "engine/rk_rollout.h"
#include "engine/rk_train.h"
#include "kernels/rk_kernels.h"
#include "tests/support/models.h"
#include "tests/support/ranks.h"

#define CONFIG(num_experts) CONFIG_OF(num_experts, 24)
#define ODD                 CONFIG_OF(8, 25)
#define CONFIG_OF(num_experts, width)                                                                        \
    "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 32, \"num_hidden_layers\": 2,"                         \
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 8,"                              \
    " \"moe_intermediate_size\": " #width ", \"num_experts\": " #num_experts ", \"num_experts_per_tok\": 2," \
    " \"intermediate_size\": 24, \"vocab_size\": 67, \"max_position_embeddings\": 64,"                       \
    " \"initializer_range\": 0.15}"
#define NUM_RANKS     4
#define NUM_TOKENS    24
#define RUN_TIMEOUT_S 60

static struct rk_status *train(struct rk_model *model, size_t *peak_bytes)
{
    int32_t tokens[NUM_TOKENS], positions[NUM_TOKENS], cu_seqlens[] = {0, NUM_TOKENS};
    struct rk_packed packed = {1, NUM_TOKENS, NUM_TOKENS, tokens, positions, cu_seqlens, tokens, NULL};

    for (int32_t t = 0; t < NUM_TOKENS; t++) {
        tokens[t] = (t * 29 + 7) % 67;
        positions[t] = t;
    }
    RK_TRY(rk_test_train_pass(model, &packed));
    *peak_bytes = rk_step_arena_stats(model->arena).tensors.peak_bytes;
    return NULL;
}

/* All weights of all routers. */
static struct rk_status *zero_routers(struct rk_model *model)
{
    struct rk_model_core *core = model->core;

    for (int64_t i = 0; i < rk_model_num_params(model); i++) {
        const struct rk_placement *placement = rk_model_placement_at(model, i);
        size_t bytes = rk_dtype_bytes(core->dtype);

        if (strstr(rk_model_param_at(model, i)->name, "mlp.gate.weight"))
            RK_TRY(rk_stream_zero(core->stream, (char *)core->values + (size_t)placement->offset * bytes,
                                  (size_t)rk_placement_num_elements(placement) * bytes));
    }
    return rk_stream_sync(core->stream);
}

/* A size of the buffer, 0: the default, and whether its rows are kept. */
struct buffer_case {
    const char *label;
    int32_t dispatch_tokens;
    bool is_kept;
};

static int compares_routings(struct rk_comm_world *world, void *user)
{
    const struct buffer_case *row = user;
    const struct rk_optim_config optim = rk_test_adamw(1e-2, 0, 0);
    struct rk_test_model_spec spec = {.config = CONFIG(8),
                                      .seed = 5,
                                      .dtype = RK_DTYPE_F32,
                                      .dp = NUM_RANKS,
                                      .ep = NUM_RANKS,
                                      .moe_dispatch_tokens = row->dispatch_tokens,
                                      .moe_keep_dispatched = row->is_kept,
                                      .world = world};
    struct rk_test_model test;
    size_t spread = 0, gathered = 0;

    RK_RANK_OK(rk_test_model_open(&test, &spec));
    RK_RANK_OK(rk_test_enable_training(test.model, &optim));
    RK_RANK_OK(train(test.model, &spread));
    RK_RANK_OK(zero_routers(test.model));
    RK_RANK_OK(train(test.model, &gathered));
    RK_RANK_CHECK(spread > 0, "no memory is counted");
    RK_RANK_CHECK(gathered == spread, "%zu bytes with all tokens on two experts, %zu otherwise", gathered,
                  spread);
    rk_test_model_close(&test);
    return 0;
}

/* Goal: a pass takes the same memory when all tokens of all ranks go to two experts of one rank. */
static void test_memory_does_not_depend_on_the_routing(void **state)
{
    /* 35 tokens: one round with a usual routing, several with the other one. */
    static const struct buffer_case rows[] = {
        {"default", 0, false},
        {"1 token", 1, false},
        {"7 tokens", 7, false},
        {"1000 tokens", 1000, false},
        {"1 token, kept", 1, true},
        {"35 tokens, kept", 35, true},
        {"1000 tokens, kept", 1000, true},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++)
        rk_test_run_case(rows[i].label, NUM_RANKS, compares_routings, &rows[i], RUN_TIMEOUT_S);
}

/* --- kept rows --- */

static uint64_t batch_bytes(const struct rk_comm_world *world)
{
    struct rk_comm_stats stats;

    rk_comm_world_stats(world, &stats);
    for (int i = 0; i < RK_COMM_STATS_ROWS; i++) {
        if (strcmp(stats.rows[i].name, "batch") == 0)
            return stats.rows[i].bytes;
    }
    return 0;
}

/* Bytes that a micro-batch sends to and receives from the ranks of experts. */
static struct rk_status *measure(struct rk_comm_world *world, const struct buffer_case *row, uint64_t *bytes)
{
    const struct rk_optim_config optim = rk_test_adamw(1e-2, 0, 0);
    struct rk_test_model_spec spec = {.config = CONFIG(8),
                                      .seed = 5,
                                      .dtype = RK_DTYPE_F32,
                                      .dp = NUM_RANKS,
                                      .ep = NUM_RANKS,
                                      .moe_dispatch_tokens = row->dispatch_tokens,
                                      .moe_keep_dispatched = row->is_kept,
                                      .world = world};
    struct rk_test_model test;
    size_t peak_bytes;

    RK_TRY(rk_test_model_open(&test, &spec));
    RK_TRY(rk_test_enable_training(test.model, &optim));
    *bytes = batch_bytes(world);
    RK_TRY(train(test.model, &peak_bytes));
    *bytes = batch_bytes(world) - *bytes;
    rk_test_model_close(&test);
    return NULL;
}

/* A row has 32 values of x and a probability, and its expert. Forward: x, probability, expert and the result
 * travel. Backward: dy, dx and the gradient of the probability do, and unless rows are kept, x, probability
 * and expert again. */
static int compares_bytes(struct rk_comm_world *world, void *user)
{
    static const struct buffer_case rows[] = {
        {"again", 96, false}, {"kept", 96, true}, {"again, in rounds", 3, false}, {"rounds", 3, true}};
    uint64_t bytes[4], num_rows;

    (void)user;
    for (int i = 0; i < 4; i++)
        RK_RANK_OK(measure(world, &rows[i], &bytes[i]));
    num_rows = bytes[1] / (4 * (34 + 32 + 64 + 1));
    RK_RANK_CHECK(num_rows > 0, "no rows travel");
    RK_RANK_CHECK(bytes[1] == num_rows * 4 * (34 + 32 + 64 + 1), "%llu bytes with kept rows",
                  (unsigned long long)bytes[1]);
    RK_RANK_CHECK(bytes[0] == bytes[1] + num_rows * 4 * 34, "%llu bytes, %llu with kept rows",
                  (unsigned long long)bytes[0], (unsigned long long)bytes[1]);
    RK_RANK_CHECK(bytes[2] == bytes[0] && bytes[3] == bytes[0], "%llu and %llu bytes in rounds",
                  (unsigned long long)bytes[2], (unsigned long long)bytes[3]);
    return 0;
}

/* Goal: kept rows do not travel again; if they need several rounds, they do. */
static void test_kept_rows_are_not_sent_again(void **state)
{
    (void)state;
    rk_test_run_case("bytes", NUM_RANKS, compares_bytes, NULL, RUN_TIMEOUT_S);
}

/* --- rows that a rank does not use --- */

/* Rows with probabilities that swiglu_bwd was called for, and those of them that it was to compute. */
static int64_t rows_given, rows_used;

struct rk_status *__real_rk_swiglu_bwd(struct rk_stream *stream, const struct rk_swiglu_bwd_args *args);
struct rk_status *__wrap_rk_swiglu_bwd(struct rk_stream *stream, const struct rk_swiglu_bwd_args *args);

struct rk_status *__wrap_rk_swiglu_bwd(struct rk_stream *stream, const struct rk_swiglu_bwd_args *args)
{
    if (args->probs.data) {
        rows_given += args->gate.shape[0];
        rows_used += args->count.data ? *(const int32_t *)args->count.data : args->gate.shape[0];
    }
    return __real_rk_swiglu_bwd(stream, args);
}

/* All tokens go to the first two experts, which rank 0 of ep has. */
static int counts_rows(struct rk_comm_world *world, void *user)
{
    const struct rk_optim_config optim = rk_test_adamw(1e-2, 0, 0);
    struct rk_test_model_spec spec = {
        .config = CONFIG(8), .seed = 5, .dtype = RK_DTYPE_F32, .tp = 2, .ep = 2, .etp = 1, .world = world};
    int64_t num_rows = 2LL * 2 * NUM_TOKENS; /* two layers, two experts per token */
    int64_t expected = rk_comm_world_rank(world) == 0 ? num_rows : 0;
    struct rk_test_model test;
    size_t peak_bytes;

    (void)user;
    RK_RANK_OK(rk_test_model_open(&test, &spec));
    RK_RANK_OK(rk_test_enable_training(test.model, &optim));
    RK_RANK_OK(zero_routers(test.model));
    rows_given = rows_used = 0;
    RK_RANK_OK(train(test.model, &peak_bytes));
    RK_RANK_CHECK(rows_given == num_rows, "buffers of %lld rows", (long long)rows_given);
    RK_RANK_CHECK(rows_used == expected, "%lld rows, expected %lld", (long long)rows_used,
                  (long long)expected);
    rk_test_model_close(&test);
    return 0;
}

/* Goal: the backward pass computes only the rows of the rank's own experts where all tp ranks have all
 * tokens, and buffers have room for the rows of all experts. */
static void test_rows_of_other_ranks_are_not_computed(void **state)
{
    (void)state;
    rk_test_run_case("rows", 2, counts_rows, NULL, RUN_TIMEOUT_S);
}

/* --- gradients that a step overwrites --- */

/* Gradients of the rank's experts. */
static float *expert_grads(const struct rk_model *model, int64_t *count)
{
    const struct rk_param_range *range = &model->core->params.groups[RK_GRAD_EXPERT];

    *count = range->num_elements;
    return (float *)model->trainer->grads + range->begin;
}

/* The gradients of one pass, over old ones that are no numbers. */
static struct rk_status *train_over_nan(struct rk_model *model)
{
    size_t peak_bytes;
    int64_t count;
    float *grads = expert_grads(model, &count);

    memset(grads, 0xff, (size_t)count * sizeof(float));
    return train(model, &peak_bytes);
}

static int64_t count_nonzero(const float *values, int64_t count)
{
    int64_t nonzero = 0;

    for (int64_t i = 0; i < count; i++)
        nonzero += values[i] != 0; /* NaN counts */
    return nonzero;
}

static int overwrites(struct rk_comm_world *world, void *user)
{
    const struct rk_optim_config optim = rk_test_adamw(1e-2, 0, 0);
    struct rk_test_model_spec spec = *(const struct rk_test_model_spec *)user;
    bool has_rows = rk_comm_world_rank(world) == 0;
    struct rk_test_model test;
    float *grads, *expected;
    size_t peak_bytes;
    int64_t count;

    spec.world = world;
    RK_RANK_OK(rk_test_model_open(&test, &spec));
    RK_RANK_OK(rk_test_enable_training(test.model, &optim));
    grads = expert_grads(test.model, &count);
    RK_RANK_OK(train(test.model, &peak_bytes)); /* over zeros */
    expected = rk_malloc((size_t)count * sizeof(float));
    memcpy(expected, grads, (size_t)count * sizeof(float));
    RK_RANK_CHECK(count_nonzero(expected, count) > 0, "no gradients");
    RK_RANK_OK(train_over_nan(test.model));
    RK_RANK_CHECK(memcmp(grads, expected, (size_t)count * sizeof(float)) == 0, "other gradients over NaN");
    RK_RANK_OK(zero_routers(test.model));
    RK_RANK_OK(train_over_nan(test.model));
    RK_RANK_CHECK((count_nonzero(grads, count) > 0) == has_rows, "%lld gradients are not zero",
                  (long long)count_nonzero(grads, count));
    rk_free(expected);
    rk_test_model_close(&test);
    return 0;
}

/* Goal: the first pass of a step overwrites the gradients of experts, also of those without a row, on ranks
 * without a row, and with several rounds. Method: old gradients are NaN; then all tokens go to the first two
 * experts, which rank 0 has. */
static void test_first_pass_overwrites_gradients(void **state)
{
    static const struct {
        const char *label;
        int32_t tp, dp, ep, dispatch_tokens;
        bool is_kept;
    } rows[] = {
        {"one rank", 1, 1, 1, 0, false},
        {"ep 4", 1, 4, 4, 0, false},
        {"ep 4, rounds", 1, 4, 4, 1, false},
        {"ep 4, kept", 1, 4, 4, 1000, true},
        {"tp 2, whole experts", 2, 1, 2, 0, false},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        struct rk_test_model_spec spec = {.config = CONFIG(8),
                                          .seed = 5,
                                          .dtype = RK_DTYPE_F32,
                                          .tp = rows[i].tp,
                                          .dp = rows[i].dp,
                                          .ep = rows[i].ep,
                                          .etp = 1,
                                          .moe_dispatch_tokens = rows[i].dispatch_tokens,
                                          .moe_keep_dispatched = rows[i].is_kept};

        rk_test_run_case(rows[i].label, rows[i].tp * rows[i].dp, overwrites, &spec, RUN_TIMEOUT_S);
    }
}

/* --- refusals --- */

struct refusal {
    const char *label, *config;
    int32_t tp, dp, ep, etp;
    bool sequence_parallel, is_kept;
    rk_code_t code;
    const char *names; /* in the message */
};

static const struct refusal refusals[] = {
    {"experts that ep does not divide", CONFIG(7), 1, 4, 2, 0, false, false, RK_INVALID_ARGUMENT,
     "ep=2 (expert_model_parallel_size): expected a divisor of the 7 experts"},
    {"etp=1 without sequence parallelism", CONFIG(8), 2, 2, 1, 1, false, false, RK_UNIMPLEMENTED, "etp=1"},
    {"etp=2 of tp=4 without sequence parallelism", CONFIG(8), 4, 1, 1, 2, false, false, RK_UNIMPLEMENTED,
     "etp=2 (expert_tensor_parallel_size) with tp=4"},
    {"etp that does not divide tp", CONFIG(8), 1, 4, 1, 2, true, false, RK_INVALID_ARGUMENT,
     "etp=2: expected a divisor of tp=1"},
    {"experts that etp does not divide", ODD, 4, 1, 1, 2, true, false, RK_INVALID_ARGUMENT,
     "moe_intermediate_size=25 is not divisible by etp=2; the nearest divisor is etp=1"},
    {"ep and etp that the ranks do not fill", CONFIG(8), 1, 4, 3, 0, false, false, RK_INVALID_ARGUMENT,
     "ep=3"},
    {"kept rows without a size", CONFIG(8), 1, 4, 2, 0, false, true, RK_INVALID_ARGUMENT,
     "moe_dispatch_tokens"},
};

static int is_refused(struct rk_comm_world *world, void *user)
{
    const struct refusal *row = user;
    struct rk_test_model_spec spec = {.config = row->config,
                                      .dtype = RK_DTYPE_F32,
                                      .tp = row->tp,
                                      .dp = row->dp,
                                      .ep = row->ep,
                                      .etp = row->etp,
                                      .sequence_parallel = row->sequence_parallel,
                                      .moe_keep_dispatched = row->is_kept,
                                      .world = world};
    struct rk_test_model test;
    struct rk_status *st = rk_test_model_open(&test, &spec);
    int failed = rk_test_rank_check_error(st, row->code, "", row->names);

    rk_test_model_close(&test);
    return failed;
}

static void test_mesh_that_does_not_fit_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(refusals); i++)
        rk_test_run_case(refusals[i].label, NUM_RANKS, is_refused, &refusals[i], RUN_TIMEOUT_S);
}

static int rollout_is_refused(struct rk_comm_world *world, void *user)
{
    const struct rk_rollout_config config = {.max_num_seqs = 4};
    struct rk_test_model_spec spec = {
        .config = CONFIG(8), .dtype = RK_DTYPE_F32, .dp = NUM_RANKS, .ep = 2, .world = world};
    struct rk_rollout *rollout;
    struct rk_test_model test;
    int failed;

    (void)user;
    RK_RANK_OK(rk_test_model_open(&test, &spec));
    failed = rk_test_rank_check_error(rk_rollout_create(&rollout, test.model, &config), RK_UNIMPLEMENTED, "",
                                      "ep=2");
    rk_test_model_close(&test);
    return failed;
}

static void test_rollout_with_ep_is_refused(void **state)
{
    (void)state;
    rk_test_run_case("rollout", NUM_RANKS, rollout_is_refused, NULL, RUN_TIMEOUT_S);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_does_not_depend_on_the_routing),
        cmocka_unit_test(test_kept_rows_are_not_sent_again),
        cmocka_unit_test(test_rows_of_other_ranks_are_not_computed),
        cmocka_unit_test(test_first_pass_overwrites_gradients),
        cmocka_unit_test(test_mesh_that_does_not_fit_is_refused),
        cmocka_unit_test(test_rollout_with_ep_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
