/* The jobs of examples/plans: what rankctl plan says of published shapes, against figures by hand. With the
 * environment variable RK_TEST_LARGE also DeepSeek-V3 on 1,024 ranks. */
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_config.h"
#include "base/rk_str.h"
#include "tests/proc/cli_fixture.h"

#define PLANS      RK_TEST_SOURCE_DIR "/examples/plans/"
#define TIMEOUT_MS 1500000

/* Elements that a rank has of the model's parameters, with padding of the largest group of replicas; bytes of
 * the cache that a block of 16 tokens takes on a rank; operations of a token in an update, at 4,096 tokens.
 */
struct expectation {
    const char *job;
    const char *world;
    bool is_large;
    int64_t rank;
    int64_t whole, split, parts; /* on every rank of tp; divided by tp */
    int64_t block_bytes;         /* 0: no rollout */
    double operations;
};

static const struct expectation cases[] = {
    /* Qwen3-30B-A3B, 30,532,122,624 parameters, tp = 4. Whole: 48 x (router 128 x 2048, two norms of 2048,
     * two of 128), norm 2048. Embedding and head have 152,064 rows, a multiple of 512. Operations: 3 x (48 x
     * (2 x 56,885,248 + 4 x 4096 x 2048) + 2 x 2048 x 151936). Cache: k and v of one head of 128 in 48
     * layers. */
    {"qwen3-30b-a3b.json", "--world=8", false, 0, 12793856, 30519328768 + 524288, 4, 16LL * 48 * 2 * 128 * 2,
     23081779200.0},
    {"qwen3-30b-a3b.json", "--world=1024", false, 0, 12793856, 30519328768 + 524288, 4,
     16LL * 48 * 2 * 128 * 2, 23081779200.0},
    /* Moonlight, 15,960,110,208 parameters, tp = 4. Whole: 27 x (kv_a 576 x 2048, norms 512, 2048, 2048),
     * norm 2048, 26 x (router 64 x 2048, three parts of a bias of 64). Operations: 3 x (a dense layer 2 x
     * 82,968,576 and 26 of 2 x 83,099,648, each with 2 x 16 x 320 x 2048, and 2 x 2048 x 163840). Cache: 576
     * values in 27 layers. */
    {"moonlight.json", "--world=8", false, 0, 35389824, 15924723712, 4, 16LL * 27 * 576 * 2, 17173315584.0},
    {"moonlight.json", "--world=64", false, 0, 35389824, 15924723712, 4, 16LL * 27 * 576 * 2, 17173315584.0},
    {"moonlight.json", "--world=1024", false, 0, 35389824, 15924723712, 4, 16LL * 27 * 576 * 2,
     17173315584.0},
    /* DeepSeek-V3, tp = 8: a stage of four layers with experts. Whole, of a layer: q_a 1536 x 7168, kv_a 576
     * x 7168, norms 1536, 512, 7168, 7168, router 256 x 7168, three parts of a bias of 256. Split: q_b 24576
     * x 1536, kv_b 32768 x 512, o 7168 x 16384, 257 experts of 3 x 7168 x 2048. Operations: 3 x (3 x 2 x
     * 583,467,008, 58 x 2 x 585,302,016, each with 2 x 128 x 320 x 2048, and 2 x 7168 x 129280). */
    {"deepseek-v3.json", "--world=1024", true, 64, 4LL * 16990976, 4LL * 11490295808, 8, 0, 250449887232.0},
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
    int64_t elements = row->whole + row->split / row->parts, grads, blocks;
    const struct rk_json *actor = role_at(plan, row->rank, 0);

    /* Groups of parameters are padded to a multiple of lcm(128, replicas): at most 256 here, two groups. */
    grads = int_at(actor, "planned.gradients") / 4;
    assert_true(grads >= elements);
    assert_true(grads < elements + 2 * 256);
    assert_true(rk_json_as_bool(rk_json_find_path(plan, "memory.fits"), false));
    assert_true(rk_json_as_real(rk_json_find_path(plan, "rates.update_flops_per_token"), 0) ==
                row->operations);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plans_have_the_figures_by_hand),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
