/* Generation on one rank: the samples do not depend on the other requests of a batch, and their log-probs
 * equal the model's. */
#include "tests/support/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_rng.h"
#include "engine/rollout/rollout.h"
#include "tests/support/device.h"
#include "tests/support/graph_device.h"
#include "tests/support/models.h"

#define VOCAB_SIZE   61
#define NUM_REQUESTS 9
#define MAX_LEN      64

static const char config_json[] =
    "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 32,"
    " \"intermediate_size\": 48, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 2,"
    " \"vocab_size\": 61, \"max_position_embeddings\": 96, \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0,"
    " \"hidden_act\": \"silu\", \"initializer_range\": 0.4, \"tie_word_embeddings\": false}";

/* Biases, and a window that is shorter than the responses. */
static const char qwen2_json[] =
    "{\"model_type\": \"qwen2\", \"hidden_size\": 32, \"intermediate_size\": 48, \"num_hidden_layers\": 2,"
    " \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"vocab_size\": 61,"
    " \"max_position_embeddings\": 96, \"rms_norm_eps\": 1e-5, \"initializer_range\": 0.4,"
    " \"use_sliding_window\": true, \"sliding_window\": 9, \"max_window_layers\": 1}";

/* Norms of queries and keys, whose total head width exceeds hidden_size. */
static const char qwen3_json[] =
    "{\"model_type\": \"qwen3\", \"hidden_size\": 32, \"intermediate_size\": 48, \"num_hidden_layers\": 2,"
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 16, \"vocab_size\": 61,"
    " \"max_position_embeddings\": 96, \"rms_norm_eps\": 1e-5, \"initializer_range\": 0.4}";

/* A window in every layer. */
static const char mistral_json[] =
    "{\"model_type\": \"mistral\", \"hidden_size\": 32, \"intermediate_size\": 48, \"num_hidden_layers\": 2,"
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 61,"
    " \"max_position_embeddings\": 96, \"rms_norm_eps\": 1e-5, \"initializer_range\": 0.4,"
    " \"sliding_window\": 9}";

/* Prompts of several lengths, across block boundaries, and memory for the responses. */
struct batch {
    struct rk_rollout_request requests[NUM_REQUESTS];
    struct rk_rollout_result results[NUM_REQUESTS];
    int32_t prompts[NUM_REQUESTS][MAX_LEN], tokens[NUM_REQUESTS][MAX_LEN];
    float log_probs[NUM_REQUESTS][MAX_LEN];
};

static void batch_init(struct batch *b, float temperature)
{
    static const int32_t prompt_lens[NUM_REQUESTS] = {1, 5, 15, 16, 17, 31, 33, 40, 3};
    struct rk_rng rng;

    memset(b, 0, sizeof(*b));
    rk_rng_init(&rng, rk_test_seed(), 2);
    for (int i = 0; i < NUM_REQUESTS; i++) {
        for (int32_t t = 0; t < prompt_lens[i]; t++)
            b->prompts[i][t] = (int32_t)rk_rng_next_below(&rng, VOCAB_SIZE);
        b->requests[i] = (struct rk_rollout_request){
            .prompt = b->prompts[i],
            .prompt_len = prompt_lens[i],
            .max_tokens = 8 + 2 * i,
            .temperature = temperature,
            .top_p = 1.0F,
            .seed = 11,
            .stream = (uint64_t)(100 + i),
        };
        b->results[i] = (struct rk_rollout_result){.tokens = b->tokens[i], .log_probs = b->log_probs[i]};
    }
}

static struct rk_test_model open_config(const char *config, rk_dtype_t dtype, rk_numerics_t numerics)
{
    const struct rk_test_model_spec spec = {
        .config = config,
        .seed = 5,
        .dtype = dtype,
        .numerics = numerics,
    };
    struct rk_test_model test;

    assert_ok(rk_test_model_open(&test, &spec));
    return test;
}

static struct rk_test_model open_model(rk_dtype_t dtype, rk_numerics_t numerics)
{
    return open_config(config_json, dtype, numerics);
}

static struct rk_rollout *open_rollout(struct rk_test_model *test, int32_t max_num_seqs,
                                       int64_t max_num_batched_tokens)
{
    const struct rk_rollout_config config = {
        .max_num_seqs = max_num_seqs,
        .max_num_batched_tokens = max_num_batched_tokens,
    };
    struct rk_rollout *rollout;

    assert_ok(rk_rollout_create(&rollout, test->model, &config));
    return rollout;
}

static void check_equal(const char *label, const struct batch *actual, const struct batch *expected,
                        bool is_strict)
{
    for (int i = 0; i < NUM_REQUESTS; i++) {
        size_t n = (size_t)expected->results[i].num_tokens;

        if (actual->results[i].num_tokens != (int32_t)n ||
            memcmp(actual->tokens[i], expected->tokens[i], n * sizeof(int32_t)) != 0)
            fail_msg("%s: request %d has other tokens", label, i);
        if (is_strict)
            assert_memory_equal(actual->log_probs[i], expected->log_probs[i], n * sizeof(float));
        assert_below(label,
                     rk_test_max_rel_error_f32(actual->log_probs[i], expected->log_probs[i], (int64_t)n, 1.0),
                     RK_TOL_F32_SUM);
    }
}

/* Goal: every request has the same result alone, in a batch, and under any limits: the same tokens, and
 * log-probs that are bit-identical in strict numerics. */
static void test_generate_does_not_depend_on_batch(void **state)
{
    static const struct {
        const char *label;
        int32_t max_num_seqs;
        int64_t max_num_batched_tokens;
    } limits[] = {
        {"one at a time", 1, 512},    {"three at a time", 3, 512}, {"chunks of 16 tokens", 9, 16},
        {"chunks of 9 tokens", 9, 9}, {"one token a step", 1, 1},
    };

    (void)state;
    for (int numerics = 0; numerics < RK_NUMERICS_COUNT; numerics++) {
        struct rk_test_model test = open_model(RK_DTYPE_F32, (rk_numerics_t)numerics);
        bool is_strict = numerics == RK_NUMERICS_STRICT;
        struct rk_rollout *rollout = open_rollout(&test, NUM_REQUESTS, 512);
        struct batch expected, actual;

        batch_init(&expected, 1.0F);
        assert_ok(rk_rollout_generate(rollout, expected.requests, NUM_REQUESTS, expected.results, NULL));
        batch_init(&actual, 1.0F);
        for (int i = 0; i < NUM_REQUESTS; i++)
            assert_ok(rk_rollout_generate(rollout, &actual.requests[i], 1, &actual.results[i], NULL));
        check_equal("alone", &actual, &expected, is_strict);
        rk_rollout_destroy(rollout);

        for (size_t k = 0; k < RK_ARRAY_LEN(limits); k++) {
            rollout = open_rollout(&test, limits[k].max_num_seqs, limits[k].max_num_batched_tokens);
            batch_init(&actual, 1.0F);
            assert_ok(rk_rollout_generate(rollout, actual.requests, NUM_REQUESTS, actual.results, NULL));
            check_equal(limits[k].label, &actual, &expected, is_strict);
            rk_rollout_destroy(rollout);
        }
        rk_test_model_close(&test);
    }
}

/* Log-probs of the sampled tokens, from the packed forward pass over all samples. */
static void recompute(struct rk_test_model *test, const struct batch *b, double temperature, float *out)
{
    int32_t tokens[NUM_REQUESTS * 2 * MAX_LEN], positions[NUM_REQUESTS * 2 * MAX_LEN],
        labels[NUM_REQUESTS * 2 * MAX_LEN];
    double log_probs[NUM_REQUESTS * 2 * MAX_LEN];
    int32_t cu_seqlens[NUM_REQUESTS + 1] = {0}, num_tokens = 0, max_seqlen = 0;
    int64_t k = 0;

    for (int i = 0; i < NUM_REQUESTS; i++) {
        int32_t prompt_len = b->requests[i].prompt_len, length = prompt_len + b->results[i].num_tokens;

        for (int32_t p = 0; p < length; p++, num_tokens++) {
            tokens[num_tokens] = p < prompt_len ? b->prompts[i][p] : b->tokens[i][p - prompt_len];
            positions[num_tokens] = p;
            labels[num_tokens] =
                p + 1 >= prompt_len && p + 1 < length ? b->tokens[i][p + 1 - prompt_len] : RK_LABEL_NONE;
        }
        cu_seqlens[i + 1] = num_tokens;
        max_seqlen = RK_MAX(max_seqlen, length);
    }
    assert_ok(rk_model_forward(test->model,
                               &(struct rk_packed){.num_seqs = NUM_REQUESTS,
                                                   .num_tokens = num_tokens,
                                                   .max_seqlen = max_seqlen,
                                                   .tokens = tokens,
                                                   .positions = positions,
                                                   .cu_seqlens = cu_seqlens,
                                                   .labels = labels},
                               temperature, NULL, &(struct rk_head_arrays){.of = {log_probs}}));
    for (int32_t t = 0; t < num_tokens; t++)
        if (labels[t] != RK_LABEL_NONE)
            out[k++] = (float)log_probs[t];
}

/* Goal: the log-probs of samples equal those of the training forward pass; bit for bit in strict numerics, so
 * that the first ratio of PPO is exactly 1. */
static void test_generate_log_probs_equal_model(void **state)
{
    static const struct {
        const char *label, *config;
        rk_dtype_t dtype;
        rk_numerics_t numerics;
        double tolerance;
    } cases[] = {
        {"f32", config_json, RK_DTYPE_F32, RK_NUMERICS_FAST, RK_TOL_F32_SUM},
        {"f32 strict", config_json, RK_DTYPE_F32, RK_NUMERICS_STRICT, 0},
        {"qwen2 f32 strict", qwen2_json, RK_DTYPE_F32, RK_NUMERICS_STRICT, 0},
        {"qwen2 bf16", qwen2_json, RK_DTYPE_BF16, RK_NUMERICS_FAST, RK_TOL_BF16_MODEL},
        {"qwen2 bf16 strict", qwen2_json, RK_DTYPE_BF16, RK_NUMERICS_STRICT, 0},
        {"qwen3 f32", qwen3_json, RK_DTYPE_F32, RK_NUMERICS_FAST, RK_TOL_F32_SUM},
        {"qwen3 bf16 strict", qwen3_json, RK_DTYPE_BF16, RK_NUMERICS_STRICT, 0},
        {"mistral bf16 strict", mistral_json, RK_DTYPE_BF16, RK_NUMERICS_STRICT, 0},
    };
    static const float temperatures[] = {1.0F, 0.7F};

    (void)state;
    for (size_t c = 0; c < RK_ARRAY_LEN(cases); c++) {
        for (size_t k = 0; k < RK_ARRAY_LEN(temperatures); k++) {
            struct rk_test_model test = open_config(cases[c].config, cases[c].dtype, cases[c].numerics);
            struct rk_rollout *rollout = open_rollout(&test, 4, 24);
            float recomputed[NUM_REQUESTS * MAX_LEN], sampled[NUM_REQUESTS * MAX_LEN];
            struct batch b;
            size_t n = 0;

            batch_init(&b, temperatures[k]);
            assert_ok(rk_rollout_generate(rollout, b.requests, NUM_REQUESTS, b.results, NULL));
            for (int i = 0; i < NUM_REQUESTS; i++) {
                memcpy(sampled + n, b.log_probs[i], (size_t)b.results[i].num_tokens * sizeof(float));
                n += (size_t)b.results[i].num_tokens;
            }
            recompute(&test, &b, (double)temperatures[k], recomputed);
            if (cases[c].numerics == RK_NUMERICS_STRICT)
                assert_memory_equal(sampled, recomputed, n * sizeof(float));
            else
                assert_below(cases[c].label, rk_test_max_rel_error_f32(sampled, recomputed, (int64_t)n, 1.0),
                             cases[c].tolerance);
            rk_rollout_destroy(rollout);
            rk_test_model_close(&test);
        }
    }
}

/* Goal: greedy sampling, top-k 1 at any temperature, and a tiny top-p all select the largest logit. */
static void test_generate_greedy_forms_agree(void **state)
{
    struct rk_test_model test = open_model(rk_test_device_dtype(), RK_NUMERICS_FAST);
    struct rk_rollout *rollout = open_rollout(&test, NUM_REQUESTS, 512);
    struct batch greedy, top_k, top_p;

    (void)state;
    batch_init(&greedy, 0.0F);
    batch_init(&top_k, 1.3F);
    batch_init(&top_p, 1.3F);
    for (int i = 0; i < NUM_REQUESTS; i++) {
        top_k.requests[i].top_k = 1;
        top_p.requests[i].top_p = 1e-6F;
    }
    assert_ok(rk_rollout_generate(rollout, greedy.requests, NUM_REQUESTS, greedy.results, NULL));
    assert_ok(rk_rollout_generate(rollout, top_k.requests, NUM_REQUESTS, top_k.results, NULL));
    assert_ok(rk_rollout_generate(rollout, top_p.requests, NUM_REQUESTS, top_p.results, NULL));
    assert_memory_equal(greedy.tokens, top_k.tokens, sizeof(greedy.tokens));
    assert_memory_equal(greedy.tokens, top_p.tokens, sizeof(greedy.tokens));
    for (int32_t t = 0; t < top_k.results[0].num_tokens; t++) {
        assert_true(top_k.log_probs[0][t] == 0.0F); /* log-prob in the filtered distribution: one token
                                                     * remains */
        assert_true(greedy.log_probs[0][t] < 0.0F); /* log-prob in the unfiltered distribution */
    }
    rk_rollout_destroy(rollout);
    rk_test_model_close(&test);
}

/* Goal: another seed or stream gives other samples; the same gives the same. */
static void test_generate_seed_and_stream_name_the_noise(void **state)
{
    struct rk_test_model test = open_model(RK_DTYPE_F32, RK_NUMERICS_FAST);
    struct rk_rollout *rollout = open_rollout(&test, NUM_REQUESTS, 512);
    struct batch first, again, other_seed, other_stream;

    (void)state;
    batch_init(&first, 1.0F);
    batch_init(&again, 1.0F);
    batch_init(&other_seed, 1.0F);
    batch_init(&other_stream, 1.0F);
    for (int i = 0; i < NUM_REQUESTS; i++) {
        other_seed.requests[i].seed = 12;
        other_stream.requests[i].stream += 1000;
    }
    assert_ok(rk_rollout_generate(rollout, first.requests, NUM_REQUESTS, first.results, NULL));
    assert_ok(rk_rollout_generate(rollout, again.requests, NUM_REQUESTS, again.results, NULL));
    assert_ok(rk_rollout_generate(rollout, other_seed.requests, NUM_REQUESTS, other_seed.results, NULL));
    assert_ok(rk_rollout_generate(rollout, other_stream.requests, NUM_REQUESTS, other_stream.results, NULL));
    assert_memory_equal(first.tokens, again.tokens, sizeof(first.tokens));
    assert_memory_equal(first.log_probs, again.log_probs, sizeof(first.log_probs));
    assert_memory_not_equal(first.tokens[8], other_seed.tokens[8], sizeof(first.tokens[8]));
    assert_memory_not_equal(first.tokens[8], other_stream.tokens[8], sizeof(first.tokens[8]));
    rk_rollout_destroy(rollout);
    rk_test_model_close(&test);
}

/* Goal: with an end token the response is the prefix up to and with its first occurrence. */
static void test_generate_eos_cuts_the_response(void **state)
{
    struct rk_test_model test = open_model(RK_DTYPE_F32, RK_NUMERICS_STRICT);
    struct rk_rollout *rollout = open_rollout(&test, 3, 64);
    struct batch full, cut;
    int64_t eos[2];
    int num_stopped = 0;

    (void)state;
    batch_init(&full, 1.0F);
    assert_ok(rk_rollout_generate(rollout, full.requests, NUM_REQUESTS, full.results, NULL));
    eos[0] = full.tokens[7][4];
    eos[1] = full.tokens[2][2];
    batch_init(&cut, 1.0F);
    for (int i = 0; i < NUM_REQUESTS; i++) {
        cut.requests[i].eos_token_ids = eos;
        cut.requests[i].num_eos_token_ids = 2;
    }
    assert_ok(rk_rollout_generate(rollout, cut.requests, NUM_REQUESTS, cut.results, NULL));
    for (int i = 0; i < NUM_REQUESTS; i++) {
        int32_t n = 0;

        while (n < full.results[i].num_tokens && full.tokens[i][n] != eos[0] && full.tokens[i][n] != eos[1])
            n++;
        num_stopped += n < full.results[i].num_tokens;
        assert_int_equal(cut.results[i].finish_reason,
                         n < full.results[i].num_tokens ? RK_FINISH_STOP : RK_FINISH_LENGTH);
        n = RK_MIN(n + 1, full.results[i].num_tokens);
        assert_int_equal(cut.results[i].num_tokens, n);
        assert_memory_equal(cut.tokens[i], full.tokens[i], (size_t)n * sizeof(int32_t));
        assert_memory_equal(cut.log_probs[i], full.log_probs[i], (size_t)n * sizeof(float));
    }
    assert_true(num_stopped >= 2);
    rk_rollout_destroy(rollout);
    rk_test_model_close(&test);
}

/* Goal: a step enqueued before the tokens of the previous step are read gives the same tokens and log-probs,
 * for all ways in which responses end, also when new requests take their slots; so do steps that run as
 * graphs, on a device with graphs. */
static void test_generate_pipelined_and_graphs_are_the_same(void **state)
{
    static const struct {
        const char *label;
        int32_t max_num_seqs;
        int64_t max_num_batched_tokens;
    } limits[] = {{"all together", NUM_REQUESTS, 512}, {"three at a time", 3, 512}, {"chunks", 5, 9}};
    struct rk_test_model test = open_model(RK_DTYPE_F32, RK_NUMERICS_STRICT);
    struct batch full, expected, actual;
    struct rk_rollout *rollout = open_rollout(&test, NUM_REQUESTS, 512);
    int64_t eos[3];

    (void)state;
    batch_init(&full, 1.0F);
    assert_ok(rk_rollout_generate(rollout, full.requests, NUM_REQUESTS, full.results, NULL));
    rk_rollout_destroy(rollout);
    eos[0] = full.tokens[7][4];
    eos[1] = full.tokens[3][0];
    eos[2] = full.tokens[8][full.results[8].num_tokens - 1];
    for (size_t k = 0; k < 2 * RK_ARRAY_LEN(limits); k++) {
        bool has_eos = k % 2 == 1;
        const struct rk_rollout_config config = {
            .max_num_seqs = limits[k / 2].max_num_seqs,
            .max_num_batched_tokens = limits[k / 2].max_num_batched_tokens,
        };

        for (int mode = 0; mode < 4; mode++) { /* eager or not, pipelined or not */
            struct rk_rollout_config with = config;
            struct batch *b = mode == 0 ? &expected : &actual;

            with.enforce_eager = mode < 2;
            assert_ok(rk_rollout_create(&rollout, test.model, &with));
            rk_rollout_set_pipelined(rollout, mode % 2 == 1);
            batch_init(b, 1.0F);
            for (int i = 0; has_eos && i < NUM_REQUESTS; i++) {
                b->requests[i].eos_token_ids = eos;
                b->requests[i].num_eos_token_ids = 1 + i % 3;
            }
            assert_ok(rk_rollout_generate(rollout, b->requests, NUM_REQUESTS, b->results, NULL));
            check_equal(limits[k / 2].label, b, &expected, true);
            for (int i = 0; i < NUM_REQUESTS; i++)
                assert_int_equal(b->results[i].finish_reason, expected.results[i].finish_reason);
            assert_true((rk_rollout_num_graph_launches(rollout) > 0) ==
                        (mode >= 2 && rk_device_has_graphs(test.device)));
            rk_rollout_destroy(rollout);
        }
    }
    rk_test_model_close(&test);
}

/* Steps of one generation that ran as graphs; its samples are `expected`. */
static int64_t count_launches(struct rk_rollout *rollout, const struct batch *expected)
{
    int64_t before = rk_rollout_num_graph_launches(rollout);
    struct batch actual;

    batch_init(&actual, 1.0F);
    assert_ok(rk_rollout_generate(rollout, actual.requests, NUM_REQUESTS, actual.results, NULL));
    check_equal("few graphs", &actual, expected, true);
    return rk_rollout_num_graph_launches(rollout) - before;
}

/* Goal: recorded graphs remain valid after an offload of the weights: they are launched again and give the
 * same samples. */
static void test_generate_after_weights_were_away_is_the_same(void **state)
{
    const struct rk_test_model_spec spec = {.config = config_json,
                                            .seed = 5,
                                            .dtype = RK_DTYPE_F32,
                                            .numerics = RK_NUMERICS_STRICT,
                                            .offload = RK_PART_PARAMETERS};
    struct rk_rollout *rollout;
    struct rk_test_model test;
    struct batch expected;
    int64_t num_launches;

    (void)state;
    assert_ok(rk_test_model_open(&test, &spec));
    rollout = open_rollout(&test, NUM_REQUESTS, 512);
    batch_init(&expected, 1.0F);
    assert_ok(rk_rollout_generate(rollout, expected.requests, NUM_REQUESTS, expected.results, NULL));
    num_launches = rk_rollout_num_graph_launches(rollout);
    for (int i = 0; i < 3; i++) {
        assert_ok(rk_model_offload(test.model, RK_PARTS_ALL, false));
        assert_int_equal(rk_model_offloaded(test.model), RK_PART_PARAMETERS);
        assert_ok(rk_model_onload(test.model, RK_PARTS_ALL, false));
        assert_true(count_launches(rollout, &expected) >= num_launches);
    }
    rk_rollout_destroy(rollout);
    rk_test_model_close(&test);
}

/* Goal: without device memory for another graph the generation continues without graphs, until there is
 * memory again. */
static void test_generate_goes_on_without_memory_for_graphs(void **state)
{
    const struct rk_rollout_config eager = {
        .max_num_seqs = 8, .max_num_batched_tokens = 512, .enforce_eager = true};
    struct rk_test_model test = open_model(RK_DTYPE_F32, RK_NUMERICS_STRICT);
    struct batch expected;
    struct rk_rollout *rollout;
    int64_t num_warm, num_few;

    (void)state;
    assert_ok(rk_rollout_create(&rollout, test.model, &eager));
    batch_init(&expected, 1.0F);
    assert_ok(rk_rollout_generate(rollout, expected.requests, NUM_REQUESTS, expected.results, NULL));
    rk_rollout_destroy(rollout);
    rollout = open_rollout(&test, 8, 512);
    (void)count_launches(rollout, &expected);
    num_warm = count_launches(rollout, &expected);
    rk_rollout_destroy(rollout);
    for (int64_t max_graphs = 0; max_graphs < 3; max_graphs++) {
        rollout = open_rollout(&test, 8, 512);
        rk_test_graphs_limit(max_graphs);
        (void)count_launches(rollout, &expected);
        num_few = count_launches(rollout, &expected);
        if (strncmp(rk_device_get_info(test.device).name, "graphs", strlen("graphs")) == 0) {
            assert_true((num_few > 0) == (max_graphs > 0));
            assert_true(num_few < num_warm);
        }
        rk_test_graphs_limit(-1);
        (void)count_launches(rollout, &expected); /* records the missing graphs */
        assert_int_equal(count_launches(rollout, &expected), num_warm);
        rk_rollout_destroy(rollout);
    }
    rk_test_model_close(&test);
}

static void test_generate_bad_request_is_refused(void **state)
{
    static int32_t too_large[] = {1, VOCAB_SIZE, 2}, negative[] = {-1}, good[] = {1, 2, 3};
    static const struct {
        const char *text;
        struct rk_rollout_request request;
    } cases[] = {
        {"the prompt is empty", {good, 0, 4, 1.0F, 0, 1.0F, 0, 0, NULL, 0}},
        {"leaves no room", {good, 96, 4, 1.0F, 0, 1.0F, 0, 0, NULL, 0}},
        {"max_tokens=0", {good, 3, 0, 1.0F, 0, 1.0F, 0, 0, NULL, 0}},
        {"exceed rollout.max_model_len=96", {good, 3, 94, 1.0F, 0, 1.0F, 0, 0, NULL, 0}},
        {"temperature", {good, 3, 4, -1.0F, 0, 1.0F, 0, 0, NULL, 0}},
        {"temperature", {good, 3, 4, 9e-6F, 0, 1.0F, 0, 0, NULL, 0}},
        {"temperature", {good, 3, 4, 2e6F, 0, 1.0F, 0, 0, NULL, 0}},
        {"temperature", {good, 3, 4, NAN, 0, 1.0F, 0, 0, NULL, 0}},
        {"top_p", {good, 3, 4, 1.0F, 0, 1.5F, 0, 0, NULL, 0}},
        {"top_p", {good, 3, 4, 1.0F, 0, 0.0F, 0, 0, NULL, 0}},
        {"token 1 of the prompt is 61", {too_large, 3, 4, 1.0F, 0, 1.0F, 0, 0, NULL, 0}},
        {"token 0 of the prompt is -1", {negative, 1, 4, 1.0F, 0, 1.0F, 0, 0, NULL, 0}},
    };
    struct rk_test_model test = open_model(RK_DTYPE_F32, RK_NUMERICS_FAST);
    struct rk_rollout *rollout = open_rollout(&test, 2, 64);
    struct batch b;

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        batch_init(&b, 1.0F);
        b.requests[1] = cases[i].request;
        assert_fails(rk_rollout_generate(rollout, b.requests, 2, b.results, NULL), RK_INVALID_ARGUMENT,
                     cases[i].text);
    }
    batch_init(&b, 1.0F);
    assert_ok(rk_rollout_generate(rollout, b.requests, 2, b.results, NULL));
    assert_ok(rk_rollout_generate(rollout, NULL, 0, NULL, NULL));
    rk_rollout_destroy(rollout);
    rk_test_model_close(&test);
}

static void test_create_bad_limits_are_refused(void **state)
{
    static const struct {
        const char *text;
        rk_code_t code;
        struct rk_rollout_config config;
    } cases[] = {
        {"rollout.max_num_seqs=0", RK_INVALID_ARGUMENT, {0, 64, 0, 0, false, false, 0}},
        {"rollout.max_num_seqs=65537", RK_INVALID_ARGUMENT, {65537, 70000, 0, 0, false, false, 0}},
        {"rollout.max_num_batched_tokens=7", RK_INVALID_ARGUMENT, {8, 7, 0, 0, false, false, 0}},
        {"rollout.max_model_len=97", RK_INVALID_ARGUMENT, {8, 64, 97, 0, false, false, 0}},
        {"rollout.max_model_len=1", RK_INVALID_ARGUMENT, {8, 64, 1, 0, false, false, 0}},
        {"a KV cache of 6 blocks", RK_RESOURCE_EXHAUSTED, {8, 64, 96, 0, false, false, 6}},
    };
    struct rk_test_model test = open_model(RK_DTYPE_F32, RK_NUMERICS_FAST);

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_rollout *rollout;

        assert_fails(rk_rollout_create(&rollout, test.model, &cases[i].config), cases[i].code, cases[i].text);
        assert_null(rollout);
    }
    rk_test_model_close(&test);
}

struct hook_state {
    int num_polls, cancel_at;
    uint64_t last_done, total;
};

static void on_progress(void *user, const char *phase, uint64_t done, uint64_t total)
{
    struct hook_state *state = user;

    assert_string_equal(phase, "generate");
    assert_true(done >= state->last_done);
    state->last_done = done;
    state->total = total;
}

static bool is_cancelled(void *user)
{
    struct hook_state *state = user;

    return ++state->num_polls > state->cancel_at;
}

/* Goal: a cancelled call ends between steps and releases its blocks, and the next call is not affected. */
static void test_generate_cancelled_leaves_rollout_usable(void **state)
{
    struct rk_test_model test = open_model(RK_DTYPE_F32, RK_NUMERICS_STRICT);
    struct rk_rollout *rollout = open_rollout(&test, 2, 16);
    struct hook_state hook_state = {.cancel_at = 1};
    const struct rk_engine_hooks hooks = {
        .user = &hook_state,
        .on_progress = on_progress,
        .is_cancelled = is_cancelled,
    };
    struct batch expected, actual;

    (void)state;
    batch_init(&expected, 1.0F);
    assert_ok(rk_rollout_generate(rollout, expected.requests, NUM_REQUESTS, expected.results, NULL));
    batch_init(&actual, 1.0F);
    assert_code(rk_rollout_generate(rollout, actual.requests, NUM_REQUESTS, actual.results, &hooks),
                RK_CANCELLED);
    assert_int_equal(hook_state.num_polls, 2);
    assert_true(hook_state.last_done < NUM_REQUESTS);

    hook_state = (struct hook_state){.cancel_at = 1000};
    batch_init(&actual, 1.0F);
    assert_ok(rk_rollout_generate(rollout, actual.requests, NUM_REQUESTS, actual.results, &hooks));
    assert_int_equal(hook_state.last_done, NUM_REQUESTS);
    assert_int_equal(hook_state.total, NUM_REQUESTS);
    check_equal("after a cancelled call", &actual, &expected, true);
    rk_rollout_destroy(rollout);
    rk_test_model_close(&test);
}

/* Goal: after one call nothing more is allocated on the device, and the reported cache size is right. */
static void test_generate_allocates_nothing_when_warm(void **state)
{
    struct rk_test_model test = open_model(RK_DTYPE_F32, RK_NUMERICS_FAST);
    struct rk_rollout *rollout = open_rollout(&test, 4, 32);
    struct batch b;
    uint64_t before = 0;

    (void)state;
    for (int round = 0; round < 4; round++) {
        if (round == 2)
            before = rk_device_get_stats(test.device).num_allocations;
        batch_init(&b, 1.0F);
        assert_ok(rk_rollout_generate(rollout, b.requests, NUM_REQUESTS, b.results, NULL));
    }
    assert_int_equal(rk_device_get_stats(test.device).num_allocations, before);
    /* keys and values, 2 layers, 1 + 4 * 6 blocks of 16 tokens, 2 heads of 8, 4 bytes */
    assert_int_equal(rk_model_get_memory(test.model).kv_cache_bytes, 2 * 2 * 25 * 16 * 2 * 8 * 4);
    rk_rollout_destroy(rollout);
    assert_int_equal(rk_model_get_memory(test.model).kv_cache_bytes, 0);
    rk_test_model_close(&test);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generate_does_not_depend_on_batch),
        cmocka_unit_test(test_generate_log_probs_equal_model),
        cmocka_unit_test(test_generate_greedy_forms_agree),
        cmocka_unit_test(test_generate_seed_and_stream_name_the_noise),
        cmocka_unit_test(test_generate_eos_cuts_the_response),
        cmocka_unit_test(test_generate_pipelined_and_graphs_are_the_same),
        cmocka_unit_test(test_generate_after_weights_were_away_is_the_same),
        cmocka_unit_test(test_generate_goes_on_without_memory_for_graphs),
        cmocka_unit_test(test_generate_bad_request_is_refused),
        cmocka_unit_test(test_create_bad_limits_are_refused),
        cmocka_unit_test(test_generate_cancelled_leaves_rollout_usable),
        cmocka_unit_test(test_generate_allocates_nothing_when_warm),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
