/* Generation over tensor parallelism, and with the experts divided over tp: all ranks of a group agree, and
 * the samples of other tp sizes differ by rounding ties only. RK_TEST_COMM=nccl with
 * RK_TEST_DEVICE=graphs or cuda: decode steps run as graphs with the collectives in them. */
#include "tests/support/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "engine/rollout/rollout.h"
#include "tests/support/device.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/graph_device.h"
#include "tests/support/models.h"
#include "tests/support/ranks.h"

#define RUN_TIMEOUT_S 180 /* for four ranks on a busy core */
#define NUM_REQUESTS  16
#define MAX_TOKENS    24
#define MAX_RANKS     4
#define GROWN_BYTES   ((size_t)8 << 20) /* more than the steps of the test need */

static const char config_json[] =
    "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 64,"
    " \"intermediate_size\": 96, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 2,"
    " \"vocab_size\": 131, \"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0,"
    " \"hidden_act\": \"silu\", \"initializer_range\": 0.2, \"tie_word_embeddings\": false}";

static const char experts_json[] =
    "{\"model_type\": \"qwen2_moe\", \"architectures\": [\"Qwen2MoeForCausalLM\"], \"hidden_size\": 64,"
    " \"intermediate_size\": 96, \"num_hidden_layers\": 3, \"mlp_only_layers\": [1],"
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"moe_intermediate_size\": 24,"
    " \"shared_expert_intermediate_size\": 40, \"num_experts\": 8, \"num_experts_per_tok\": 3,"
    " \"vocab_size\": 131, \"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0,"
    " \"hidden_act\": \"silu\", \"initializer_range\": 0.2, \"tie_word_embeddings\": false}";

struct samples {
    int32_t tokens[NUM_REQUESTS][MAX_TOKENS];
    float log_probs[NUM_REQUESTS][MAX_TOKENS];
};

/* What the ranks write for the parent. */
struct shared {
    struct samples of_rank[MAX_RANKS];
    int cancel_rank; /* this rank requests a stop; -1: none */
    int grown_rank;  /* this rank's memory grows between two generations; -1: none */
    int full_rank;   /* this rank has memory for one graph only; -1: none */
    /* Graphs launched by the first generation, by the second, and once there has been memory again. */
    int64_t num_launches[MAX_RANKS], num_more[MAX_RANKS], num_last[MAX_RANKS];
    bool has_graphs;
    bool has_experts; /* whole ones, divided over tp */
    rk_numerics_t numerics;
};

static bool asks_to_stop(void *user)
{
    return *(bool *)user;
}

/* Generates again and expects the same result; *num_launches receives the number of steps that ran as
 * graphs. */
static int generate_same(struct rk_rollout *rollout, const struct rk_rollout_request *requests,
                         const struct samples *expected, int64_t *num_launches)
{
    const struct rk_engine_hooks hooks = {0};
    struct rk_rollout_result results[NUM_REQUESTS];
    struct samples *again = rk_calloc(1, sizeof(*again));
    int64_t before = rk_rollout_num_graph_launches(rollout);
    bool is_same;

    for (int i = 0; i < NUM_REQUESTS; i++)
        results[i] = (struct rk_rollout_result){.tokens = again->tokens[i], .log_probs = again->log_probs[i]};
    RK_RANK_OK(rk_rollout_generate(rollout, requests, NUM_REQUESTS, results, &hooks));
    is_same = memcmp(again, expected, sizeof(*again)) == 0;
    RK_RANK_CHECK(is_same, "another generation gave other samples");
    rk_free(again);
    *num_launches = rk_rollout_num_graph_launches(rollout) - before;
    return 0;
}

static int generate_again(struct rk_rollout *rollout, struct rk_test_model *test, struct shared *shared,
                          const struct rk_rollout_request *requests, int32_t rank)
{
    const struct samples *expected = &shared->of_rank[rank];

    if (shared->grown_rank == rank)
        RK_RANK_OK(rk_step_arena_reserve(test->model->arena, GROWN_BYTES, 0));
    if (generate_same(rollout, requests, expected, &shared->num_more[rank]))
        return 1;
    rk_test_graphs_limit(-1);
    return generate_same(rollout, requests, expected, &shared->num_last[rank]) ||
           generate_same(rollout, requests, expected, &shared->num_last[rank]);
}

static int generate(struct rk_comm_world *world, void *user)
{
    struct shared *shared = user;
    int32_t rank = rk_comm_world_rank(world);
    const struct rk_test_model_spec spec = {
        .config = shared->has_experts ? experts_json : config_json,
        .seed = 3,
        .dtype = RK_DTYPE_F32,
        .numerics = shared->numerics,
        .tp = rk_comm_world_size(world),
        .etp = shared->has_experts ? 1 : 0,
        .ep = shared->has_experts ? rk_comm_world_size(world) : 1,
        .world = world,
        .stream = rk_test_rank_stream(rank),
    };
    const struct rk_rollout_config config = {.max_num_seqs = 6, .max_num_batched_tokens = 40};
    struct rk_rollout_request requests[NUM_REQUESTS];
    struct rk_rollout_result results[NUM_REQUESTS];
    int32_t prompt[] = {7, 100, 3, 57, 22};
    bool stops = shared->cancel_rank == rank;
    const struct rk_engine_hooks hooks = {.user = &stops, .is_cancelled = asks_to_stop};
    struct rk_test_model test;
    struct rk_rollout *rollout;
    struct rk_status *st;
    rk_code_t code;

    rk_test_graphs_limit(shared->full_rank == rank ? 1 : -1);
    RK_RANK_OK(rk_test_model_open(&test, &spec));
    RK_RANK_OK(rk_rollout_create(&rollout, test.model, &config));
    for (int i = 0; i < NUM_REQUESTS; i++) {
        requests[i] = (struct rk_rollout_request){
            .prompt = prompt,
            .prompt_len = 1 + i % 5,
            .max_tokens = MAX_TOKENS,
            .temperature = 1.0F,
            .top_p = 1.0F,
            .seed = 1,
            .stream = (uint64_t)i,
        };
        results[i] = (struct rk_rollout_result){
            .tokens = shared->of_rank[rank].tokens[i],
            .log_probs = shared->of_rank[rank].log_probs[i],
        };
    }
    st = rk_rollout_generate(rollout, requests, NUM_REQUESTS, results, &hooks);
    code = rk_status_code(st);
    rk_status_free(st);
    RK_RANK_CHECK(code == (shared->cancel_rank >= 0 ? RK_CANCELLED : RK_OK), "code %s", rk_code_name(code));
    shared->num_launches[rank] = rk_rollout_num_graph_launches(rollout);
    shared->has_graphs =
        rk_comm_has_graphs(rk_mesh_comms_group(test.comms, RK_GROUP_TP), rk_stream_device(spec.stream));
    if (shared->cancel_rank < 0 && generate_again(rollout, &test, shared, requests, rank))
        return 1;
    rk_rollout_destroy(rollout);
    rk_test_model_close(&test);
    return 0;
}

/* Tokens up to the first difference of each request are comparable; after it the contexts differ. */
static int count_differing_requests(const struct samples *a, const struct samples *b, double *worst)
{
    int num_differing = 0;

    for (int i = 0; i < NUM_REQUESTS; i++) {
        for (int t = 0; t < MAX_TOKENS; t++) {
            if (a->tokens[i][t] != b->tokens[i][t]) {
                num_differing++;
                break;
            }
            *worst = fmax(*worst, fabs((double)(a->log_probs[i][t] - b->log_probs[i][t])));
        }
    }
    return num_differing;
}

/* The samples of tp 1, 2 and 4 (key-value heads replicated) agree up to rounding ties, and on all ranks of a
 * group they are the same bytes. */
static void expect_sizes_to_agree(bool has_experts, rk_numerics_t numerics)
{
    struct shared *shared = rk_test_shared_alloc(sizeof(*shared));
    struct samples single;

    shared->has_experts = has_experts;
    shared->numerics = numerics;
    shared->cancel_rank = shared->grown_rank = shared->full_rank = -1;
    assert_int_equal(rk_test_run_world(1, "unix", generate, shared, 60), 0);
    single = shared->of_rank[0];
    for (int32_t tp = 2; tp <= RK_MIN(MAX_RANKS, rk_test_device_max_ranks()); tp *= 2) {
        double worst = 0.0;
        int num_differing;

        assert_int_equal(rk_test_run_world(tp, "unix", generate, shared, RUN_TIMEOUT_S), 0);
        for (int32_t rank = 1; rank < tp; rank++)
            assert_memory_equal(&shared->of_rank[rank], &shared->of_rank[0], sizeof(struct samples));
        assert_true((shared->num_launches[0] > 0) == shared->has_graphs);
        num_differing = count_differing_requests(&shared->of_rank[0], &single, &worst);
        print_message("tp=%d: %d of %d responses of %d tokens differ from tp=1, log-probs by at most %g\n",
                      tp, num_differing, NUM_REQUESTS, MAX_TOKENS, worst);
        assert_below("log-probs", worst, RK_TOL_F32_SUM);
        assert_true(num_differing <= 1); /* a tie within rounding is rare: 384 tokens are sampled */
    }
    rk_test_shared_free(shared, sizeof(*shared));
}

static void test_generate_tp_sizes_agree(void **state)
{
    (void)state;
    expect_sizes_to_agree(false, RK_NUMERICS_FAST);
}

/* Goal: ranks with experts of their own generate what one rank with all experts generates. */
static void test_generate_ep_sizes_agree(void **state)
{
    (void)state;
    expect_sizes_to_agree(true, RK_NUMERICS_FAST);
    expect_sizes_to_agree(true, RK_NUMERICS_STRICT);
}

struct refused {
    int32_t ep, etp, dp;
    const char *expected;
};

static int refused_rank(struct rk_comm_world *world, void *user)
{
    const struct refused *row = user;
    const struct rk_test_model_spec spec = {.config = experts_json,
                                            .seed = 3,
                                            .dtype = RK_DTYPE_F32,
                                            .tp = rk_comm_world_size(world) / row->dp,
                                            .dp = row->dp,
                                            .ep = row->ep,
                                            .etp = row->etp,
                                            .sequence_parallel = true,
                                            .world = world,
                                            .stream = rk_test_rank_stream(rk_comm_world_rank(world))};
    const struct rk_rollout_config config = {.max_num_seqs = 6, .max_num_batched_tokens = 40};
    struct rk_test_model test;
    struct rk_rollout *rollout;

    RK_RANK_OK(rk_test_model_open(&test, &spec));
    if (rk_test_rank_check_error(rk_rollout_create(&rollout, test.model, &config), RK_UNIMPLEMENTED, "",
                                 row->expected))
        return 1;
    rk_test_model_close(&test);
    return 0;
}

/* Goal: a rollout whose experts are on other replicas is refused. */
static void test_rollout_with_experts_on_other_replicas_is_refused(void **state)
{
    static const struct refused rows[] = {
        {.ep = 2, .dp = 2, .expected = "on mesh ep=2"},
        {.ep = 4, .etp = 1, .dp = 2, .expected = "expected ep=1"},
        {.ep = 2, .etp = 2, .dp = 2, .expected = "expected ep=1"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        if (rk_test_device_max_ranks() >= 4)
            assert_int_equal(
                rk_test_run_world(rows[i].etp ? 4 : 2, "unix", refused_rank, (void *)&rows[i], 60), 0);
    }
}

/* Goal: when one rank requests a stop, all ranks stop at the same step. */
static void test_generate_cancel_is_agreed(void **state)
{
    struct shared *shared = rk_test_shared_alloc(sizeof(*shared));

    (void)state;
    shared->grown_rank = shared->full_rank = -1;
    for (int rank = 0; rank < 2; rank++) {
        shared->cancel_rank = rank;
        assert_int_equal(rk_test_run_world(2, "unix", generate, shared, 60), 0);
    }
    rk_test_shared_free(shared, sizeof(*shared));
}

/* Goal: steps run as graphs on all ranks or on none, also when those of one rank have become invalid: then
 * all ranks record again, and fewer steps of a second generation are launched. */
static void test_generate_ranks_launch_the_same_graphs(void **state)
{
    struct shared *shared = rk_test_shared_alloc(sizeof(*shared));
    int64_t num_all = 0;

    (void)state;
    shared->cancel_rank = shared->full_rank = -1;
    for (shared->grown_rank = -1; shared->grown_rank < 2; shared->grown_rank += 2) {
        assert_int_equal(rk_test_run_world(2, "unix", generate, shared, 60), 0);
        assert_true((shared->num_launches[0] > 0) == shared->has_graphs);
        print_message("rank that grew: %d, launches: %lld, then %lld\n", shared->grown_rank,
                      (long long)shared->num_launches[0], (long long)shared->num_more[0]);
        assert_int_equal(shared->num_launches[1], shared->num_launches[0]);
        assert_int_equal(shared->num_more[1], shared->num_more[0]);
        if (shared->grown_rank < 0)
            num_all = shared->num_more[0];
        else
            assert_true(shared->num_more[0] < num_all || !shared->has_graphs);
    }
    rk_test_shared_free(shared, sizeof(*shared));
}

/* Goal: a graph for which one rank has no memory is launched by no rank from the next generation on, until
 * there is memory again. */
static void test_generate_rank_without_memory_for_graphs_counts_for_all(void **state)
{
    struct shared *shared = rk_test_shared_alloc(sizeof(*shared));

    (void)state;
    if (!rk_fake_nccl_faults())
        rk_test_skip("only the tests' device with graphs can be without memory");
    shared->cancel_rank = shared->grown_rank = -1;
    shared->full_rank = 1;
    assert_int_equal(rk_test_run_world(2, "unix", generate, shared, 60), 0);
    print_message("launches: %lld and %lld, then %lld and %lld\n", (long long)shared->num_launches[0],
                  (long long)shared->num_launches[1], (long long)shared->num_more[0],
                  (long long)shared->num_more[1]);
    assert_true(shared->num_launches[1] < shared->num_launches[0]);
    assert_true(shared->num_more[1] > 0);
    assert_int_equal(shared->num_more[1], shared->num_more[0]);
    assert_true(shared->num_last[1] > shared->num_more[1]);
    assert_int_equal(shared->num_last[1], shared->num_last[0]);
    rk_test_shared_free(shared, sizeof(*shared));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generate_tp_sizes_agree),
        cmocka_unit_test(test_generate_ep_sizes_agree),
        cmocka_unit_test(test_rollout_with_experts_on_other_replicas_is_refused),
        cmocka_unit_test(test_generate_cancel_is_agreed),
        cmocka_unit_test(test_generate_ranks_launch_the_same_graphs),
        cmocka_unit_test(test_generate_rank_without_memory_for_graphs_counts_for_all),
    };

    rk_test_device_need_ranks(2);
    rk_fake_nccl_setup();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
