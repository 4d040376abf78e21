/* Router replay on one rank: given experts are taken, and what cannot be an expert is refused. That all
 * layouts compute the same with given experts is tested by the gate (tests/equivalence, model
 * qwen2_moe_replay).
 *
 * A router whose weights are 0 gives equal scores, which are taken by ascending expert: experts 0 and 1. */
#include "tests/support/test.h"

#include <string.h>

#include "engine/model/model.h"
#include "tests/support/models.h"

#define SIZES                                                                     \
    "\"hidden_size\": 32, \"num_hidden_layers\": 3, \"num_attention_heads\": 4,"  \
    " \"num_key_value_heads\": 2, \"intermediate_size\": 24, \"vocab_size\": 67," \
    " \"max_position_embeddings\": 64, \"initializer_range\": 0.15"
#define SPARSE                                                                           \
    "{\"model_type\": \"qwen3_moe\", \"moe_intermediate_size\": 24, \"num_experts\": 6," \
    " \"num_experts_per_tok\": 2, \"mlp_only_layers\": [1], " SIZES "}"
#define DENSE       "{\"model_type\": \"qwen3\", " SIZES "}"
#define NUM_TOKENS  9
#define NUM_ROUTES  2
#define TOP_K       2
#define NUM_EXPERTS 6

struct fixture {
    struct rk_test_model test;
    int32_t tokens[NUM_TOKENS], positions[NUM_TOKENS], cu_seqlens[2];
    uint16_t routed_experts[NUM_TOKENS * NUM_ROUTES * TOP_K];
    struct rk_packed packed;
};

static void setup(struct fixture *f, const char *config)
{
    *f = (struct fixture){.cu_seqlens = {0, NUM_TOKENS}};
    assert_ok(rk_test_model_open(
        &f->test, &(struct rk_test_model_spec){.config = config, .seed = 5, .dtype = RK_DTYPE_F32}));
    for (int32_t t = 0; t < NUM_TOKENS; t++) {
        f->tokens[t] = (t * 29 + 7) % 67;
        f->positions[t] = t;
    }
    f->packed = (struct rk_packed){.num_seqs = 1,
                                   .num_tokens = NUM_TOKENS,
                                   .max_seqlen = NUM_TOKENS,
                                   .tokens = f->tokens,
                                   .positions = f->positions,
                                   .cu_seqlens = f->cu_seqlens,
                                   .labels = f->tokens};
}

static void give(struct fixture *f, uint16_t first, uint16_t second)
{
    for (int64_t i = 0; i < NUM_TOKENS * NUM_ROUTES; i++) {
        f->routed_experts[i * TOP_K] = first;
        f->routed_experts[i * TOP_K + 1] = second;
    }
    f->packed.routed_experts = f->routed_experts;
}

static struct rk_status *log_probs(struct fixture *f, double *out)
{
    return rk_model_forward(f->test.model, &f->packed, 1, NULL,
                            &(struct rk_head_arrays){.of = {[RK_HEAD_LOG_PROBS] = out}});
}

static void zero_routers(struct rk_model *model)
{
    struct rk_model_core *core = model->core;

    for (int64_t i = 0; i < rk_model_num_params(model); i++) {
        const struct rk_placement *placement = rk_model_placement_at(model, i);

        if (strstr(rk_model_param_at(model, i)->name, "mlp.gate.weight"))
            assert_ok(rk_stream_zero(core->stream, (float *)core->values + placement->offset,
                                     (size_t)rk_placement_num_elements(placement) * sizeof(float)));
    }
    assert_ok(rk_stream_sync(core->stream));
}

/* Goal: the experts that the router would choose give the same bits, in either order, and others do not. */
static void test_given_experts_are_taken(void **state)
{
    double chosen[NUM_TOKENS], same[NUM_TOKENS], swapped[NUM_TOKENS], other[NUM_TOKENS];
    struct rk_model_routes routes;
    struct fixture f;

    (void)state;
    setup(&f, SPARSE);
    routes = rk_model_get_routes(f.test.model);
    assert_int_equal(routes.num_layers, NUM_ROUTES);
    assert_int_equal(routes.num_experts_per_tok, TOP_K);
    zero_routers(f.test.model);
    assert_ok(log_probs(&f, chosen));
    give(&f, 0, 1);
    assert_ok(log_probs(&f, same));
    give(&f, 1, 0);
    assert_ok(log_probs(&f, swapped));
    give(&f, 2, 5);
    assert_ok(log_probs(&f, other));
    assert_memory_equal(same, chosen, sizeof(chosen));
    assert_memory_equal(swapped, chosen, sizeof(chosen));
    for (int t = 0; t < NUM_TOKENS; t++)
        assert_true(other[t] != chosen[t]);
    rk_test_model_close(&f.test);
}

/* Goal: a pass with given experts reports what its routers choose: without given experts the choices that
 * give the same bits; with others the same choice in the first layer, whose input they do not change. */
static void test_choices_are_reported(void **state)
{
    uint16_t chosen[NUM_TOKENS * NUM_ROUTES * TOP_K] = {0}, again[NUM_TOKENS * NUM_ROUTES * TOP_K] = {0};
    double expected[NUM_TOKENS], replayed[NUM_TOKENS], other[NUM_TOKENS];
    struct rk_head_arrays arrays = {.of = {[RK_HEAD_LOG_PROBS] = expected}};
    int num_different = 0;
    struct fixture f;

    (void)state;
    setup(&f, SPARSE);
    assert_ok(rk_test_choose(f.test.model, &f.packed, &arrays, chosen));
    memcpy(f.routed_experts, chosen, sizeof(chosen));
    f.packed.routed_experts = f.routed_experts;
    assert_ok(log_probs(&f, replayed));
    assert_memory_equal(replayed, expected, sizeof(expected));
    give(&f, 2, 5);
    arrays.of[RK_HEAD_LOG_PROBS] = other;
    assert_ok(rk_test_choose(f.test.model, &f.packed, &arrays, again));
    for (int t = 0; t < NUM_TOKENS; t++) {
        const uint16_t *a = chosen + t * NUM_ROUTES * TOP_K, *b = again + t * NUM_ROUTES * TOP_K;

        assert_true(other[t] != expected[t]);
        assert_memory_equal(a, b, TOP_K * sizeof(*a));
        num_different += memcmp(a + TOP_K, b + TOP_K, TOP_K * sizeof(*a)) != 0;
    }
    assert_true(num_different > 0);
    rk_test_model_close(&f.test);
}

/* Goal: after an update of the routers a pass with the old choices takes these experts, weighted by the new
 * scores. Method: a router with weights 0 has equal scores, so that both experts of a token count half; the
 * same result comes from the routers' own choice where that is experts 0 and 1. */
static void test_probabilities_are_those_of_current_scores(void **state)
{
    double before[NUM_TOKENS], after[NUM_TOKENS], half[NUM_TOKENS];
    uint16_t chosen[NUM_TOKENS * NUM_ROUTES * TOP_K] = {0};
    struct rk_head_arrays arrays = {.of = {[RK_HEAD_LOG_PROBS] = before}};
    struct fixture f;

    (void)state;
    setup(&f, SPARSE);
    assert_ok(rk_test_choose(f.test.model, &f.packed, &arrays, chosen));
    give(&f, 0, 1);
    assert_ok(log_probs(&f, before));
    zero_routers(f.test.model);
    assert_ok(log_probs(&f, after));
    f.packed.routed_experts = NULL;
    assert_ok(log_probs(&f, half));
    assert_memory_equal(after, half, sizeof(half));
    for (int t = 0; t < NUM_TOKENS; t++)
        assert_true(before[t] != after[t]);
    memcpy(f.routed_experts, chosen, sizeof(chosen));
    f.packed.routed_experts = f.routed_experts;
    assert_ok(log_probs(&f, after));
    assert_memory_not_equal(after, half, sizeof(half)); /* other experts than 0 and 1 */
    rk_test_model_close(&f.test);
}

/* Goal: an id beyond the experts, and one twice, are named with token and layer; the model can go on. */
static void test_bad_experts_are_refused(void **state)
{
    double out[NUM_TOKENS];
    struct fixture f;

    (void)state;
    setup(&f, SPARSE);
    give(&f, 0, 1);
    f.routed_experts[(4 * NUM_ROUTES + 1) * TOP_K + 1] = NUM_EXPERTS;
    assert_fails(log_probs(&f, out), RK_OUT_OF_RANGE, "token 4, layer 1");
    f.routed_experts[(4 * NUM_ROUTES + 1) * TOP_K + 1] = 0;
    assert_fails(log_probs(&f, out), RK_OUT_OF_RANGE, "token 4, layer 1");
    give(&f, 0, 1);
    assert_ok(log_probs(&f, out));
    rk_test_model_close(&f.test);
}

static void test_dense_model_takes_no_experts(void **state)
{
    double out[NUM_TOKENS];
    struct fixture f;

    (void)state;
    setup(&f, DENSE);
    assert_int_equal(rk_model_get_routes(f.test.model).num_layers, 0);
    give(&f, 0, 1);
    assert_fails(log_probs(&f, out), RK_FAILED_PRECONDITION, "routed_experts");
    rk_test_model_close(&f.test);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_given_experts_are_taken),
        cmocka_unit_test(test_choices_are_reported),
        cmocka_unit_test(test_probabilities_are_those_of_current_scores),
        cmocka_unit_test(test_bad_experts_are_refused),
        cmocka_unit_test(test_dense_model_takes_no_experts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
