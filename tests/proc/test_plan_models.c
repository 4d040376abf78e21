/* The jobs of examples/plans: what rankctl plan says of published shapes, against figures by hand. With the
 * environment variable RK_TEST_LARGE also on 64 and 1,024 ranks. */
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_config.h"
#include "base/rk_str.h"
#include "tests/proc/cli_fixture.h"

#define PLANS      RK_TEST_SOURCE_DIR "/examples/plans/"
#define DISPATCH   "actor_rollout_ref.actor.megatron.override_transformer_config."
#define TIMEOUT_MS 1500000

/* Elements that a rank has of the model's parameters, with padding of the largest group of replicas; bytes of
 * the cache that a block of 16 tokens takes on a rank; operations of a token in an update, at 4,096 tokens;
 * the rows that a rank's experts take in a round.
 */
struct expectation {
    const char *job;
    const char *world;
    bool is_large; /* only with RK_TEST_LARGE */
    int64_t rank;
    int64_t whole, split, tp; /* on every rank; divided by tp */
    int64_t experts, ep;      /* divided by ep */
    int64_t block_bytes;      /* 0: no rollout */
    double operations, imbalance;
};

/* Qwen3-30B-A3B, 30,532,122,624 parameters, ep = 8. Experts: 48 x 128 x 3 x 2048 x 768. Operations: 3 x (48 x
 * (2 x 56,885,248 + 4 x 4096 x 2048) + 2 x 2048 x 151936). Cache of tp = 4: k and v of one head of 128 in 48
 * layers. Rounds take 16,384 tokens; micro-batches have 8,192. */
#define QWEN(world_, is_large_)                                                       \
    {                                                                                 \
        "qwen3-30b-a3b.json", world_, is_large_, 0, 1541093376, 0, 1, 28991029248, 8, \
            16LL * 48 * 2 * 128 * 2, 23081779200.0, 2                                 \
    }
/* Moonlight, 15,960,110,208 parameters and two more parts of 26 biases of 64, ep = 8. Experts: 26 x 64 x 3 x
 * 2048 x 1408. Operations: 3 x (a dense layer 2 x 82,968,576 and 26 of 2 x 83,099,648, each with 2 x 16 x 320
 * x 2048, and 2 x 2048 x 163840). Cache: 576 values in 27 layers. */
#define MOONLIGHT(world_, is_large_)                                                                   \
    {                                                                                                  \
        "moonlight.json", world_, is_large_, 0, 1565262208, 0, 1, 14394851328, 8, 16LL * 27 * 576 * 2, \
            17173315584.0, 2                                                                           \
    }

static const struct expectation cases[] = {
    QWEN("--world=8", false),
    QWEN("--world=1024", true),
    MOONLIGHT("--world=8", false),
    MOONLIGHT("--world=64", true),
    /* DeepSeek-V3, tp = 8, ep = 64: a stage of four layers with experts. Whole, of a layer: q_a 1536 x 7168,
     * kv_a 576 x 7168, norms 1536, 512, 7168, 7168, router 256 x 7168, three parts of a bias of 256. Split:
     * q_b 24576 x 1536, kv_b 32768 x 512, o 7168 x 16384, a shared expert of 3 x 7168 x 2048. Experts: 256 of
     * these. Operations: 3 x (3 x 2 x 583,467,008, 58 x 2 x 585,302,016, each with 2 x 128 x 320 x 2048, and
     * 2 x 7168 x 129280). A rank of tp routes 1,024 of the 8,192 tokens, and takes 2,048. */
    {"deepseek-v3.json", "--world=1024", true, 64, 4LL * 16990976, 4LL * 216006656, 8, 4LL * 11274289152, 64,
     0, 250449887232.0, 2},
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

static void check_plan(const struct expectation *row, const struct rk_json *plan)
{
    int64_t elements = row->whole + row->split / row->tp + row->experts / row->ep, grads, blocks;
    const struct rk_json *actor = role_at(plan, row->rank, 0);

    /* Groups of parameters are padded to a multiple of lcm(128, replicas): at most 256 here, two groups. */
    grads = int_at(actor, "planned.gradients") / 4;
    assert_true(grads >= elements);
    assert_true(grads < elements + 2 * 256);
    assert_true(rk_json_as_bool(rk_json_find_path(plan, "memory.fits"), false));
    assert_true(rk_json_as_real(rk_json_find_path(plan, "rates.update_flops_per_token"), 0) ==
                row->operations);
    assert_true(rk_json_as_real(rk_json_find_path(plan, "experts.imbalance"), 0) == row->imbalance);
    assert_int_equal(int_at(plan, "experts.experts_per_rank"), int_at(plan, "experts.num_experts") / row->ep);
    if (row->block_bytes == 0)
        return;
    blocks = int_at(role_at(plan, row->rank, 1), "num_kv_blocks");
    assert_true(blocks > 0);
    assert_int_equal(int_at(role_at(plan, row->rank, 1), "planned.kv_cache"), blocks * row->block_bytes);
}

/* Goal: parameters, cache and operations of the three shapes. */
static void test_plans_have_the_figures_by_hand(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char *job = rk_format(PLANS "%s", cases[i].job);
        const char *args[] = {"plan", job, cases[i].world, "--device-memory=141GiB", "--output=json", NULL};
        struct outcome outcome;
        struct rk_json *plan;

        if (!cases[i].is_large || rk_env("RK_TEST_LARGE")) {
            print_message("%s %s\n", cases[i].job, cases[i].world);
            outcome = finish_rankctl(start_rankctl(args), TIMEOUT_MS);
            assert_exit(&outcome, 0);
            plan = parse_json(outcome.out);
            check_plan(&cases[i], plan);
            rk_json_free(plan);
            outcome_fini(&outcome);
        }
        rk_free(job);
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
