/* Generation over tensor parallelism: all ranks of a group agree, and the samples of other tp sizes differ by
 * rounding ties only. */
#include "tests/support/test.h"

#include <math.h>
#include <stdio.h>

#include "engine/rk_rollout.h"
#include "tests/support/device.h"
#include "tests/support/models.h"
#include "tests/support/ranks.h"

#define NUM_REQUESTS 16
#define MAX_TOKENS   24
#define MAX_RANKS    4

static const char config_json[] =
    "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 64,"
    " \"intermediate_size\": 96, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 2,"
    " \"vocab_size\": 131, \"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0,"
    " \"hidden_act\": \"silu\", \"initializer_range\": 0.2, \"tie_word_embeddings\": false}";

struct samples {
    int32_t tokens[NUM_REQUESTS][MAX_TOKENS];
    float log_probs[NUM_REQUESTS][MAX_TOKENS];
};

/* What the ranks write for the parent. */
struct shared {
    struct samples of_rank[MAX_RANKS];
    int cancel_rank; /* this rank asks to stop; -1: none */
};

static bool asks_to_stop(void *user)
{
    return *(bool *)user;
}

static int generate(struct rk_comm_world *world, void *user)
{
    struct shared *shared = user;
    int32_t rank = rk_comm_world_rank(world);
    const struct rk_test_model_spec spec = {
        .config = config_json,
        .seed = 3,
        .dtype = RK_DTYPE_F32,
        .tp = rk_comm_world_size(world),
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

/* Goal: the samples of tp 1, 2 and 4 (key-value heads replicated) agree up to rounding ties, and on all ranks
 * of a group they are the same bytes. */
static void test_generate_tp_sizes_agree(void **state)
{
    struct shared *shared = rk_test_shared_alloc(sizeof(*shared));
    struct samples single;

    (void)state;
    shared->cancel_rank = -1;
    assert_int_equal(rk_test_run_world(1, "unix", generate, shared, 60), 0);
    single = shared->of_rank[0];
    for (int32_t tp = 2; tp <= RK_MIN(MAX_RANKS, rk_test_device_max_ranks()); tp *= 2) {
        double worst = 0.0;
        int num_differing;

        assert_int_equal(rk_test_run_world(tp, "unix", generate, shared, 60), 0);
        for (int32_t rank = 1; rank < tp; rank++)
            assert_memory_equal(&shared->of_rank[rank], &shared->of_rank[0], sizeof(struct samples));
        num_differing = count_differing_requests(&shared->of_rank[0], &single, &worst);
        print_message("tp=%d: %d of %d responses of %d tokens differ from tp=1, log-probs by at most %g\n",
                      tp, num_differing, NUM_REQUESTS, MAX_TOKENS, worst);
        assert_below("log-probs", worst, RK_TOL_F32_SUM);
        assert_true(num_differing <= 1); /* a tie within rounding is rare: 384 tokens are sampled */
    }
    rk_test_shared_free(shared, sizeof(*shared));
}

/* Goal: when one rank is asked to stop, all ranks stop at the same step. */
static void test_generate_cancel_is_agreed(void **state)
{
    struct shared *shared = rk_test_shared_alloc(sizeof(*shared));

    (void)state;
    for (int rank = 0; rank < 2; rank++) {
        shared->cancel_rank = rank;
        assert_int_equal(rk_test_run_world(2, "unix", generate, shared, 60), 0);
    }
    rk_test_shared_free(shared, sizeof(*shared));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generate_tp_sizes_agree),
        cmocka_unit_test(test_generate_cancel_is_agreed),
    };

    rk_test_device_need_ranks(2);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
