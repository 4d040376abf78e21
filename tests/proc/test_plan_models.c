/* The jobs of examples/plans: what rankctl plan says of published shapes, against figures by hand. With the
 * environment variable RK_TEST_LARGE also on 64 to 1,024 ranks. */
#include <string.h>

#include "base/rk_alloc.h"
#include "base/config/rk_config.h"
#include "base/rk_env.h"
#include "base/rk_str.h"
#include "tests/proc/cli_fixture.h"

#define PLANS      RK_TEST_SOURCE_DIR "/examples/plans/"
#define DISPATCH   "actor_rollout_ref.actor.megatron.override_transformer_config."
#define EP         "actor_rollout_ref.actor.megatron.expert_model_parallel_size="
#define TIMEOUT_MS 1500000

/* A stage of the actor, in elements of its parameters. */
struct stage {
    int64_t index;
    int64_t whole, split; /* on every rank of the stage; divided by tp */
    int64_t experts;
    int64_t untrained; /* the part of `whole` that is not trained: biases of routers */
};

/* A published model; operations of a token in an update, at 4,096 tokens; and its rollout. */
struct shape {
    const char *job;
    struct stage stages[3]; /* those that are checked */
    int32_t num_stages;
    int64_t rope_bytes; /* of the table of sines and cosines, in f32 */
    int64_t tp, pp;     /* of the actor */
    double operations;
    /* Elements of a rank of the rollout; 0: there is none. */
    int64_t rollout_elements;
    int64_t block_bytes; /* of the cache for 16 tokens */
};

/* 30,532,122,624 parameters. Experts: 48 x 128 x 3 x 2048 x 768. Operations: 3 x (48 x (2 x 56,885,248 + 4 x
 * 4096 x 2048) + 2 x 2048 x 151936). Rope: 40,960 positions of 64 angles.
 * Rollout, tp = 4: whole are 48 x (router 128 x 2048, norms 2 x 2048 and 2 x 128) and a norm of 2048; of the
 * vocabulary 38,016 rows, since 151,936 is padded to a multiple of 4 x 128; divided are the experts and 48 x
 * (q and o 2 x 4096 x 2048, k and v 2 x 512 x 2048). Cache: k and v of one head of 128 in 48 layers. */
static const struct shape qwen = {
    .job = "qwen3-30b-a3b.json",
    .stages = {{.whole = 30532122624 - 28991029248, .experts = 28991029248}},
    .num_stages = 1,
    .rope_bytes = 40960LL * 64 * 2 * 4,
    .tp = 1,
    .pp = 1,
    .operations = 23081779200.0,
    .rollout_elements = 48LL * (128 * 2048 + 2 * 2048 + 2 * 128) + 2048 + 2LL * 38016 * 2048 +
                        (28991029248 + 48LL * (2 * 4096 + 2 * 512) * 2048) / 4,
    .block_bytes = 16LL * 48 * 2 * 128 * 2,
};

/* 15,960,110,208 parameters and two more parts of 26 biases of 64. Experts: 26 x 64 x 3 x 2048 x 1408.
 * Operations: 3 x (a dense layer 2 x 82,968,576 and 26 of 2 x 83,099,648, each with 2 x 16 x 320 x 2048, and
 * 2 x 2048 x 163840). Rope: 8,192 positions of 32 angles.
 * Rollout, tp = 4: whole are 27 x (kv_a 576 x 2048, norms 2 x 2048 and 512), 26 x (router 64 x 2048, three
 * parts of a bias of 64) and a norm of 2048. Cache: 576 values in 27 layers. */
static const struct shape moonlight = {
    .job = "moonlight.json",
    .stages = {{.whole = 15960113536 - 14394851328, .experts = 14394851328, .untrained = 26LL * 3 * 64}},
    .num_stages = 1,
    .rope_bytes = 8192LL * 32 * 2 * 4,
    .tp = 1,
    .pp = 1,
    .operations = 17173315584.0,
    .rollout_elements = 35389824 + (15960113536 - 35389824) / 4,
    .block_bytes = 16LL * 27 * 576 * 2,
};

/* tp = 8. Whole, of a layer: q_a 1536 x 7168, kv_a 576 x 7168, norms 1536, 512, 7168, 7168; with experts also
 * router 256 x 7168, three parts of a bias of 256. Split: q_b 24576 x 1536, kv_b 32768 x 512, o 7168 x 16384,
 * and an MLP of 3 x 7168 x 18432 or a shared expert of 3 x 7168 x 2048. Experts: 256 of these. The first
 * stage has the embedding and three dense layers, middle stages have four layers with experts, the last one
 * has two, a norm of 7168 and the head; 129,280 rows of the vocabulary are padded to a multiple of 8 x 128.
 * Operations: 3 x (3 x 2 x 583,467,008, 58 x 2 x 585,302,016, each with 2 x 128 x 320 x 2048, and 2 x 7168 x
 * 129280). Rope: 163,840 positions of 32 angles. */
#define DEEPSEEK_VOCAB (130048LL * 7168)
static const struct shape deepseek = {
    .job = "deepseek-v3.json",
    .stages = {{.index = 0, .whole = 3LL * 15155200, .split = 3LL * 568328192 + DEEPSEEK_VOCAB},
               {.index = 1,
                .whole = 4LL * 16990976,
                .split = 4LL * 216006656,
                .experts = 4LL * 11274289152,
                .untrained = 4LL * 3 * 256},
               {.index = 15,
                .whole = 2LL * 16990976 + 7168,
                .split = 2LL * 216006656 + DEEPSEEK_VOCAB,
                .experts = 2LL * 11274289152,
                .untrained = 2LL * 3 * 256}},
    .num_stages = 3,
    .rope_bytes = 163840LL * 32 * 2 * 4,
    .tp = 8,
    .pp = 16,
    .operations = 250449887232.0,
};

struct expectation {
    const struct shape *shape;
    int64_t world, ep;
    bool is_large; /* only with RK_TEST_LARGE */
};

static const struct expectation cases[] = {
    {&qwen, 8, 8, false},       {&qwen, 64, 8, true},        {&qwen, 256, 32, true},
    {&qwen, 1024, 8, true},     {&moonlight, 8, 8, false},   {&moonlight, 64, 8, true},
    {&moonlight, 256, 8, true}, {&moonlight, 1024, 8, true}, {&deepseek, 128, 8, true},
    {&deepseek, 256, 16, true}, {&deepseek, 512, 32, true},  {&deepseek, 1024, 64, true},
};

static int64_t int_at(const struct rk_json *json, const char *path)
{
    return rk_json_as_int(rk_json_find_path(json, path), -1);
}

static const struct rk_json *role_at(const struct rk_json *plan, int64_t rank, int64_t role)
{
    const struct rk_json *ranks = rk_json_find_path(plan, "memory.ranks");

    assert_int_equal(int_at(rk_json_at(ranks, rank), "rank"), rank);
    return rk_json_at(rk_json_find(rk_json_at(ranks, rank), "roles"), role);
}

/* Groups of parameters are padded to a multiple of lcm(128, replicas): at most 1,024 here, two groups. */
static void assert_elements(int64_t bytes, int64_t elements, int64_t elem_bytes)
{
    assert_in_range(bytes, elements * elem_bytes, (elements + 2 * 1024) * elem_bytes);
}

/* Weights in bf16, gradients in fp32; masters and two moments in fp32, divided over the replicas: dense
 * parameters have one on every rank of a stage beside tp, experts one for every ep ranks. */
static void check_actor(const struct expectation *row, const struct stage *stage, const struct rk_json *actor)
{
    const struct shape *shape = row->shape;
    int64_t num_ranks = row->world / shape->pp;
    int64_t dense = stage->whole + stage->split / shape->tp, experts = stage->experts / row->ep;
    int64_t trained = dense - stage->untrained;
    int64_t sharded = trained / (num_ranks / shape->tp) + experts / (num_ranks / row->ep);

    assert_elements(int_at(actor, "planned.parameters") - shape->rope_bytes, dense + experts, 2);
    assert_elements(int_at(actor, "planned.gradients"), trained + experts, 4);
    assert_elements(int_at(actor, "planned.masters"), sharded, 4);
    assert_elements(int_at(actor, "planned.optimizer"), sharded, 8);
}

static void check_rollout(const struct shape *shape, const struct rk_json *rollout)
{
    int64_t blocks = int_at(rollout, "num_kv_blocks");

    assert_elements(int_at(rollout, "planned.parameters") - shape->rope_bytes, shape->rollout_elements, 2);
    assert_true(blocks > 0);
    assert_int_equal(int_at(rollout, "planned.kv_cache"), blocks * shape->block_bytes);
}

/* In the plan of all ranks. A round takes twice the rows of even routing. */
static void check_plan(const struct expectation *row, const struct rk_json *plan)
{
    const struct shape *shape = row->shape;

    assert_int_equal(rk_json_count(rk_json_find_path(plan, "memory.ranks")), row->world);
    assert_true(rk_json_as_bool(rk_json_find_path(plan, "memory.fits"), false));
    assert_true(rk_json_as_real(rk_json_find_path(plan, "rates.update_flops_per_token"), 0) ==
                shape->operations);
    assert_true(rk_json_as_real(rk_json_find_path(plan, "experts.imbalance"), 0) == 2);
    assert_int_equal(int_at(plan, "experts.experts_per_rank"), int_at(plan, "experts.num_experts") / row->ep);
    for (int32_t i = 0; i < shape->num_stages; i++) {
        const struct stage *stage = &shape->stages[i];

        check_actor(row, stage, role_at(plan, stage->index * (row->world / shape->pp), 0));
    }
    if (shape->rollout_elements > 0)
        check_rollout(shape, role_at(plan, 0, 1));
}

static void check_case(const struct expectation *row)
{
    char *job = rk_format(PLANS "%s", row->shape->job);
    char *ep = rk_format(EP "%lld", (long long)row->ep);
    char *world = rk_format("--world=%lld", (long long)row->world);
    const char *args[] = {"plan", job, ep, world, "--device-memory=141GiB", "--output=json", NULL};
    struct outcome outcome;
    struct rk_json *plan;

    print_message("%s %s ep=%lld\n", row->shape->job, world, (long long)row->ep);
    outcome = finish_rankctl(start_rankctl(args), TIMEOUT_MS);
    assert_exit(&outcome, 0);
    plan = parse_json(outcome.out);
    check_plan(row, plan);
    rk_json_free(plan);
    outcome_fini(&outcome);
    rk_free(world);
    rk_free(ep);
    rk_free(job);
}

/* Goal: weights, gradients, optimizer state, cache and operations of the three shapes. */
static void test_plans_have_the_figures_by_hand(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        if (!cases[i].is_large || rk_env("RK_TEST_LARGE"))
            check_case(&cases[i]);
    }
}

/* Activations of the actor of Qwen3-30B-A3B on 8 ranks. */
static int64_t activations(const char *dispatch_tokens, const char *keeps)
{
    char *tokens = rk_format(DISPATCH "moe_dispatch_tokens=%s", dispatch_tokens);
    char *keep = rk_format(DISPATCH "moe_keep_dispatched=%s", keeps);
    const char *args[] = {"plan",      PLANS "qwen3-30b-a3b.json", tokens,          keep,
                          "--world=8", "--device-memory=1000GiB",  "--output=json", NULL};
    struct outcome outcome = finish_rankctl(start_rankctl(args), TIMEOUT_MS);
    struct rk_json *plan;
    int64_t bytes;

    assert_exit(&outcome, 0);
    plan = parse_json(outcome.out);
    assert_int_equal(rk_json_as_bool(rk_json_find_path(plan, "experts.keeps_rows"), false),
                     strcmp(keeps, "true") == 0);
    bytes = int_at(role_at(plan, 0, 0), "planned.activations");
    rk_json_free(plan);
    outcome_fini(&outcome);
    rk_free(keep);
    rk_free(tokens);
    return bytes;
}

/* Goal: kept rows are planned: for each token of the buffer eight rows in 48 layers, of 2,048 values of x and
 * 1,536 of gate and up in bf16, and a probability and two indices. Method: the difference between two sizes,
 * which includes at most 4 x 2,048 + 768 values, and three of 4 bytes, of a row in temporary buffers. */
static void test_kept_rows_are_planned(void **state)
{
    int64_t rows = 1024 * 8, kept, again;

    (void)state;
    kept = activations("17408", "true") - activations("16384", "true");
    again = activations("17408", "false") - activations("16384", "false");
    assert_in_range(kept, rows * 48 * ((2048 + 1536) * 2 + 12),
                    rows * (48 * ((2048 + 1536) * 2 + 12) + (4 * 2048 + 768) * 2 + 12));
    assert_in_range(again, 0, rows * ((4 * 2048 + 768 + 1536) * 2 + 24));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plans_have_the_figures_by_hand),
        cmocka_unit_test(test_kept_rows_are_planned),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
