/* Expert parallelism: memory does not depend on the routing, and meshes that do not fit are refused. That ep
 * does not change the result is tested by the gate (tests/equivalence).
 *
 * A router whose weights are 0 gives equal scores, and equal scores are taken by ascending expert: all tokens
 * of all ranks then go to the first experts, which one rank of ep has. */
#include "tests/support/test.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "engine/model/model_internal.h"
#include "engine/rk_rollout.h"
#include "engine/rk_train.h"
#include "tests/support/models.h"
#include "tests/support/ranks.h"

#define CONFIG(num_experts)                                                                          \
    "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 32, \"num_hidden_layers\": 2,"                 \
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 8,"                      \
    " \"moe_intermediate_size\": 24, \"num_experts\": " #num_experts ", \"num_experts_per_tok\": 2," \
    " \"intermediate_size\": 24, \"vocab_size\": 67, \"max_position_embeddings\": 64,"               \
    " \"initializer_range\": 0.15}"
#define NUM_RANKS     4
#define NUM_TOKENS    24
#define RUN_TIMEOUT_S 60

static struct rk_status *loss_fn(void *user, const struct rk_head_arrays *outputs,
                                 const struct rk_head_arrays *grads)
{
    (void)user;
    (void)outputs;
    for (int64_t t = 0; t < NUM_TOKENS; t++)
        grads->of[RK_HEAD_LOG_PROBS][t] = 1.0 / (double)(t + 3);
    return NULL;
}

static struct rk_status *train(struct rk_model *model, size_t *peak_bytes)
{
    int32_t tokens[NUM_TOKENS], positions[NUM_TOKENS], cu_seqlens[] = {0, NUM_TOKENS};
    struct rk_packed packed = {1, NUM_TOKENS, NUM_TOKENS, tokens, positions, cu_seqlens, tokens, NULL};
    const struct rk_train_micro micro = {
        .packed = &packed, .temperature = 1, .outputs = RK_HEAD_BIT(RK_HEAD_LOG_PROBS), .loss_fn = loss_fn};

    for (int32_t t = 0; t < NUM_TOKENS; t++) {
        tokens[t] = (t * 29 + 7) % 67;
        positions[t] = t;
    }
    RK_TRY(rk_train_begin(model));
    RK_TRY(rk_train_micro_batch(model, &micro));
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

static int compares_routings(struct rk_comm_world *world, void *user)
{
    const struct rk_optim_config optim = rk_test_adamw(1e-2, 0, 0);
    struct rk_test_model_spec spec = {.config = CONFIG(8),
                                      .seed = 5,
                                      .dtype = RK_DTYPE_F32,
                                      .dp = NUM_RANKS,
                                      .ep = NUM_RANKS,
                                      .moe_dispatch_tokens = *(const int32_t *)user,
                                      .world = world};
    struct rk_test_model test;
    size_t spread = 0, gathered = 0;

    RK_RANK_OK(rk_test_model_open(&test, &spec));
    RK_RANK_OK(rk_train_enable(test.model, &optim));
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
    static const int32_t dispatch_tokens[] = {0, 1, 7, 1000};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(dispatch_tokens); i++) {
        char *label = rk_format("moe_dispatch_tokens=%d", dispatch_tokens[i]);

        rk_test_run_case(label, NUM_RANKS, compares_routings, &dispatch_tokens[i], RUN_TIMEOUT_S);
        rk_free(label);
    }
}

/* --- refusals --- */

struct refusal {
    const char *label, *config;
    int32_t tp, dp, ep, etp;
    bool sequence_parallel;
    rk_code_t code;
    const char *names; /* in the message */
};

static const struct refusal refusals[] = {
    {"experts that ep does not divide", CONFIG(7), 1, 4, 2, 0, false, RK_INVALID_ARGUMENT, "num_experts=7"},
    {"etp=1 without sequence parallelism", CONFIG(8), 2, 2, 1, 1, false, RK_UNIMPLEMENTED, "etp=1"},
    {"etp that is neither 1 nor tp", CONFIG(8), 1, 4, 1, 2, true, RK_UNIMPLEMENTED, "etp=2"},
    {"ep and etp that the ranks do not fill", CONFIG(8), 1, 4, 3, 0, false, RK_INVALID_ARGUMENT, "ep=3"},
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
        cmocka_unit_test(test_mesh_that_does_not_fit_is_refused),
        cmocka_unit_test(test_rollout_with_ep_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
