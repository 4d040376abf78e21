/* Experts that a rollout returns: those that the training pass over the same tokens chooses, for any limits
 * of steps, with and without graphs and pipelining. test_rollout_strict has the same on several ranks and for
 * larger models. */
#include "tests/support/test.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_rng.h"
#include "engine/rollout/rollout.h"
#include "tests/support/models.h"

#define VOCAB_SIZE   61
#define NUM_REQUESTS 8
#define MAX_LEN      64
#define NUM_ROUTES   2
#define TOP_K        2
#define WIDTH        (NUM_ROUTES * TOP_K)
#define UNWRITTEN    0xffff

#define SIZES                                                                     \
    "\"hidden_size\": 32, \"num_hidden_layers\": 3, \"num_attention_heads\": 4,"  \
    " \"num_key_value_heads\": 2, \"intermediate_size\": 24, \"vocab_size\": 61," \
    " \"max_position_embeddings\": 96, \"initializer_range\": 0.4"
#define SPARSE                                                                           \
    "{\"model_type\": \"qwen3_moe\", \"moe_intermediate_size\": 24, \"num_experts\": 6," \
    " \"num_experts_per_tok\": 2, \"mlp_only_layers\": [1], " SIZES "}"
#define DENSE "{\"model_type\": \"qwen3\", " SIZES "}"

/* Prompts of several lengths, of which the last four are samples of one prompt. */
struct batch {
    struct rk_rollout_request requests[NUM_REQUESTS];
    struct rk_rollout_result results[NUM_REQUESTS];
    int32_t prompts[NUM_REQUESTS][MAX_LEN], tokens[NUM_REQUESTS][MAX_LEN];
    float log_probs[NUM_REQUESTS][MAX_LEN];
    uint16_t routes[NUM_REQUESTS][MAX_LEN * WIDTH];
};

static void batch_init(struct batch *b, bool captures)
{
    static const int32_t prompt_lens[NUM_REQUESTS] = {1, 16, 17, 33, 7, 7, 7, 7};
    static const int64_t eos[] = {3, 9, 27, 41, 55};
    struct rk_rng rng;

    memset(b, 0, sizeof(*b));
    memset(b->routes, 0xff, sizeof(b->routes));
    rk_rng_init(&rng, rk_test_seed(), 2);
    for (int i = 0; i < NUM_REQUESTS; i++) {
        for (int32_t t = 0; t < prompt_lens[i]; t++)
            b->prompts[i][t] = i > 4 ? b->prompts[4][t] : (int32_t)rk_rng_next_below(&rng, VOCAB_SIZE);
        b->requests[i] = (struct rk_rollout_request){
            .prompt = b->prompts[i],
            .prompt_len = prompt_lens[i],
            .max_tokens = 12 + 2 * i,
            .temperature = 1.0F,
            .top_p = 1.0F,
            .seed = 11,
            .stream = (uint64_t)(100 + i),
            .eos_token_ids = eos,
            .num_eos_token_ids = i % 2 ? 5 : 0,
        };
        b->results[i] = (struct rk_rollout_result){.tokens = b->tokens[i],
                                                   .log_probs = b->log_probs[i],
                                                   .routed_experts = captures ? b->routes[i] : NULL};
    }
}

static struct rk_test_model open_model(const char *config)
{
    struct rk_test_model test;

    assert_ok(rk_test_model_open(
        &test, &(struct rk_test_model_spec){
                   .config = config, .seed = 5, .dtype = RK_DTYPE_F32, .numerics = RK_NUMERICS_STRICT}));
    return test;
}

static void generate(struct rk_test_model *test, struct batch *b, const struct rk_rollout_config *config,
                     bool is_pipelined)
{
    struct rk_rollout *rollout;

    assert_ok(rk_rollout_create(&rollout, test->model, config));
    rk_rollout_set_pipelined(rollout, is_pipelined);
    assert_ok(rk_rollout_generate(rollout, b->requests, NUM_REQUESTS, b->results, NULL));
    rk_rollout_destroy(rollout);
}

/* What the routers choose for all tokens of a request in one pass. */
static void choose(struct rk_test_model *test, const struct batch *b, int i, uint16_t *out)
{
    int32_t tokens[MAX_LEN], positions[MAX_LEN], prompt_len = b->requests[i].prompt_len;
    int32_t length = prompt_len + b->results[i].num_tokens, cu_seqlens[] = {0, length};
    double log_probs[MAX_LEN];
    const struct rk_packed packed = {.num_seqs = 1,
                                     .num_tokens = length,
                                     .max_seqlen = length,
                                     .tokens = tokens,
                                     .positions = positions,
                                     .cu_seqlens = cu_seqlens,
                                     .labels = tokens};
    const struct rk_head_arrays arrays = {.of = {[RK_HEAD_LOG_PROBS] = log_probs}};

    for (int32_t p = 0; p < length; p++) {
        tokens[p] = p < prompt_len ? b->prompts[i][p] : b->tokens[i][p - prompt_len];
        positions[p] = p;
    }
    memset(out, 0, (size_t)length * WIDTH * sizeof(*out));
    assert_ok(rk_test_choose(test->model, &packed, &arrays, out));
}

/* Every token but the last sampled one has its experts; the rows behind are unwritten. */
static void check_routes(const char *label, struct rk_test_model *test, const struct batch *b)
{
    uint16_t expected[MAX_LEN * WIDTH];

    for (int i = 0; i < NUM_REQUESTS; i++) {
        int32_t computed = (b->requests[i].prompt_len + b->results[i].num_tokens - 1) * WIDTH;

        choose(test, b, i, expected);
        if (memcmp(b->routes[i], expected, (size_t)computed * sizeof(*expected)) != 0)
            fail_msg("%s: request %d has other experts", label, i);
        for (int32_t k = computed; k < MAX_LEN * WIDTH; k++)
            assert_int_equal(b->routes[i][k], UNWRITTEN);
    }
}

/* Goal: the experts are those of the training pass, for any limits, and capture does not change samples. */
static void test_captured_routes_equal_training(void **state)
{
    static const struct {
        const char *label;
        struct rk_rollout_config config;
    } rows[] = {
        {"together", {.max_num_seqs = NUM_REQUESTS, .max_num_batched_tokens = 512}},
        {"three at a time", {.max_num_seqs = 3, .max_num_batched_tokens = 512}},
        {"chunks of 9 tokens", {.max_num_seqs = NUM_REQUESTS, .max_num_batched_tokens = 9}},
        {"one token a step", {.max_num_seqs = 1, .max_num_batched_tokens = 1}},
        {"eager", {.max_num_seqs = 5, .max_num_batched_tokens = 20, .enforce_eager = true}},
    };
    struct rk_test_model test = open_model(SPARSE);
    struct batch *without = rk_malloc(sizeof(*without)), *b = rk_malloc(sizeof(*b));

    (void)state;
    batch_init(without, false);
    generate(&test, without, &rows[0].config, true);
    for (size_t r = 0; r < RK_ARRAY_LEN(rows); r++) {
        struct rk_rollout_config config = rows[r].config;

        config.captures_routes = true;
        for (int is_pipelined = 0; is_pipelined < 2; is_pipelined++) {
            batch_init(b, true);
            generate(&test, b, &config, is_pipelined);
            assert_memory_equal(b->tokens, without->tokens, sizeof(b->tokens));
            assert_memory_equal(b->log_probs, without->log_probs, sizeof(b->log_probs));
            check_routes(rows[r].label, &test, b);
        }
    }
    rk_free(without);
    rk_free(b);
    rk_test_model_close(&test);
}

/* Goal: the second generation, whose decode steps run as graphs where there are any, and one in which only
 * some requests want their experts. */
static void test_captured_routes_are_those_of_the_call(void **state)
{
    const struct rk_rollout_config config = {
        .max_num_seqs = 4, .max_num_batched_tokens = 64, .captures_routes = true};
    struct rk_test_model test = open_model(SPARSE);
    struct batch *first = rk_malloc(sizeof(*first)), *some = rk_malloc(sizeof(*some));
    struct rk_rollout *rollout;

    (void)state;
    assert_ok(rk_rollout_create(&rollout, test.model, &config));
    for (int i = 0; i < 3; i++) {
        batch_init(first, true);
        assert_ok(rk_rollout_generate(rollout, first->requests, NUM_REQUESTS, first->results, NULL));
        check_routes("again", &test, first);
    }
    batch_init(some, true);
    for (int i = 0; i < NUM_REQUESTS; i += 3)
        some->results[i].routed_experts = NULL;
    assert_ok(rk_rollout_generate(rollout, some->requests, NUM_REQUESTS, some->results, NULL));
    for (int i = 0; i < NUM_REQUESTS; i++) {
        if (some->results[i].routed_experts)
            assert_memory_equal(some->routes[i], first->routes[i], sizeof(first->routes[i]));
        else
            assert_int_equal(some->routes[i][0], UNWRITTEN);
    }
    rk_rollout_destroy(rollout);
    rk_free(first);
    rk_free(some);
    rk_test_model_close(&test);
}

/* Goal: capture costs the memory of one step's experts on the device and of two on the host, and none when it
 * is off. */
static void test_capture_memory_is_counted(void **state)
{
    struct rk_rollout_config config = {.max_num_seqs = 4, .max_num_batched_tokens = 100};
    const uint64_t bytes = 100 * WIDTH * sizeof(uint16_t);
    struct rk_test_model test = open_model(SPARSE);
    struct rk_model_memory none, off, on, after;
    struct rk_rollout *rollout;

    (void)state;
    none = rk_model_get_memory(test.model);
    assert_ok(rk_rollout_create(&rollout, test.model, &config));
    off = rk_model_get_memory(test.model);
    rk_rollout_destroy(rollout);
    config.captures_routes = true;
    assert_ok(rk_rollout_create(&rollout, test.model, &config));
    on = rk_model_get_memory(test.model);
    rk_rollout_destroy(rollout);
    after = rk_model_get_memory(test.model);
    assert_int_equal(on.staging_bytes - off.staging_bytes, bytes);
    assert_int_equal(on.rollout_host_bytes - off.rollout_host_bytes, 2 * bytes);
    assert_int_equal(after.staging_bytes, none.staging_bytes);
    assert_int_equal(after.rollout_host_bytes, none.rollout_host_bytes);
    rk_test_model_close(&test);
}

static void test_capture_of_dense_model_is_refused(void **state)
{
    const struct rk_rollout_config config = {
        .max_num_seqs = 4, .max_num_batched_tokens = 64, .captures_routes = true};
    struct rk_test_model test = open_model(DENSE);
    struct rk_rollout *rollout;

    (void)state;
    assert_fails(rk_rollout_create(&rollout, test.model, &config), RK_FAILED_PRECONDITION,
                 RK_KNOB_CAPTURES_ROUTES "=true");
    assert_null(rollout);
    rk_test_model_close(&test);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_captured_routes_equal_training),
        cmocka_unit_test(test_captured_routes_are_those_of_the_call),
        cmocka_unit_test(test_capture_memory_is_counted),
        cmocka_unit_test(test_capture_of_dense_model_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
