/* Goal: in strict numerics the log-prob that comes with every generated token has the bits of the one that
 * the training forward pass computes for it, so that the first ratio of PPO is exactly 1 and need not be
 * computed.
 *
 * Method: generate with sequences coming and going (more requests than run together, prompts of all lengths
 * in chunks, some answers ended early), then recompute all of it in packed batches. On a GPU the model has
 * the shape of Qwen2.5-1.5B and 100,000 tokens are generated; on the CPU it is small. */
#include "tests/support/test.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_rng.h"
#include "base/rk_time.h"
#include "engine/rk_rollout.h"
#include "tests/support/device.h"
#include "tests/support/models.h"

struct scale {
    const char *config;
    int32_t num_requests, max_num_seqs, max_prompt_len, max_tokens;
    int64_t max_num_batched_tokens, pass_tokens;
};

#define CONFIG(hidden, intermediate, layers, heads, kv_heads, vocab, positions)                              \
    "{\"model_type\": \"qwen2\", \"architectures\": [\"Qwen2ForCausalLM\"], \"hidden_size\": " #hidden       \
    ", \"intermediate_size\": " #intermediate ", \"num_hidden_layers\": " #layers                            \
    ", \"num_attention_heads\": " #heads ", \"num_key_value_heads\": " #kv_heads ", \"vocab_size\": " #vocab \
    ", \"max_position_embeddings\": " #positions ", \"rms_norm_eps\": 1e-6, \"rope_theta\": 1000000.0,"      \
    " \"hidden_act\": \"silu\", \"initializer_range\": 0.02, \"tie_word_embeddings\": true}"

static const struct scale on_gpu = {
    .config = CONFIG(1536, 8960, 28, 12, 2, 151936, 4096),
    .num_requests = 288,
    .max_num_seqs = 96,
    .max_prompt_len = 700,
    .max_tokens = 512,
    .max_num_batched_tokens = 2048,
    .pass_tokens = 16384,
};

static const struct scale on_cpu = {
    .config = CONFIG(64, 96, 2, 4, 2, 211, 256),
    .num_requests = 12,
    .max_num_seqs = 5,
    .max_prompt_len = 70,
    .max_tokens = 40,
    .max_num_batched_tokens = 48,
    .pass_tokens = 200,
};

/* Requests with their answers. */
struct batch {
    const struct scale *scale;
    struct rk_rollout_request *requests;
    struct rk_rollout_result *results;
    int64_t num_tokens; /* generated */
};

static void batch_init(struct batch *b, const struct scale *scale, int64_t vocab_size)
{
    static const int64_t eos[] = {17, 18, 19, 20};
    struct rk_rng rng;

    rk_rng_init(&rng, rk_test_seed(), 1);
    *b = (struct batch){.scale = scale};
    b->requests = rk_calloc((size_t)scale->num_requests, sizeof(*b->requests));
    b->results = rk_calloc((size_t)scale->num_requests, sizeof(*b->results));
    for (int32_t i = 0; i < scale->num_requests; i++) {
        int32_t prompt_len = 1 + (int32_t)rk_rng_next_below(&rng, (uint32_t)scale->max_prompt_len);
        int32_t *prompt = rk_calloc((size_t)prompt_len, sizeof(*prompt));

        for (int32_t t = 0; t < prompt_len; t++)
            prompt[t] = (int32_t)rk_rng_next_below(&rng, (uint32_t)vocab_size);
        b->requests[i] = (struct rk_rollout_request){
            .prompt = prompt,
            .prompt_len = prompt_len,
            .max_tokens =
                scale->max_tokens / 2 + (int32_t)rk_rng_next_below(&rng, (uint32_t)scale->max_tokens / 2),
            .temperature = 1.0F,
            .top_p = 1.0F,
            .seed = 5,
            .stream = (uint64_t)i,
            .eos_token_ids = eos,
            .num_eos_token_ids = i % 3 == 0 ? 4 : 0,
        };
        b->results[i].tokens = rk_calloc((size_t)scale->max_tokens, sizeof(int32_t));
        b->results[i].log_probs = rk_calloc((size_t)scale->max_tokens, sizeof(float));
    }
}

static void batch_fini(struct batch *b)
{
    for (int32_t i = 0; i < b->scale->num_requests; i++) {
        rk_free((void *)b->requests[i].prompt);
        rk_free(b->results[i].tokens);
        rk_free(b->results[i].log_probs);
    }
    rk_free(b->requests);
    rk_free(b->results);
}

static double generate(struct rk_test_model *test, struct batch *b)
{
    const struct rk_rollout_config config = {.max_num_seqs = b->scale->max_num_seqs,
                                             .max_num_batched_tokens = b->scale->max_num_batched_tokens,
                                             .max_model_len =
                                                 b->scale->max_prompt_len + b->scale->max_tokens};
    struct rk_rollout *rollout;
    int64_t begin;

    assert_ok(rk_rollout_create(&rollout, test->model, &config));
    begin = rk_time_now_ns();
    assert_ok(rk_rollout_generate(rollout, b->requests, b->scale->num_requests, b->results, NULL));
    begin = rk_time_now_ns() - begin;
    rk_rollout_destroy(rollout);
    for (int32_t i = 0; i < b->scale->num_requests; i++)
        b->num_tokens += b->results[i].num_tokens;
    return (double)begin * 1e-9;
}

/* Sequences of the batch from `first` on, as many as fit into a pass. */
struct pass {
    struct rk_packed packed;
    int32_t *tokens, *positions, *labels, *cu_seqlens;
    double *log_probs;
};

static void pass_init(struct pass *pass, const struct scale *scale)
{
    size_t n = (size_t)scale->pass_tokens;

    pass->tokens = rk_calloc(n, sizeof(int32_t));
    pass->positions = rk_calloc(n, sizeof(int32_t));
    pass->labels = rk_calloc(n, sizeof(int32_t));
    pass->cu_seqlens = rk_calloc((size_t)scale->num_requests + 1, sizeof(int32_t));
    pass->log_probs = rk_calloc(n, sizeof(double));
}

static void pass_fini(struct pass *pass)
{
    rk_free(pass->tokens);
    rk_free(pass->positions);
    rk_free(pass->labels);
    rk_free(pass->cu_seqlens);
    rk_free(pass->log_probs);
}

static void add_sequence(struct pass *pass, const struct rk_rollout_request *request,
                         const struct rk_rollout_result *result)
{
    struct rk_packed *packed = &pass->packed;
    int32_t length = request->prompt_len + result->num_tokens;

    for (int32_t p = 0; p < length; p++) {
        int64_t t = packed->num_tokens + p;
        int32_t next = p + 1 - request->prompt_len; /* of the response */

        pass->tokens[t] =
            p < request->prompt_len ? request->prompt[p] : result->tokens[p - request->prompt_len];
        pass->positions[t] = p;
        pass->labels[t] = next >= 0 && next < result->num_tokens ? result->tokens[next] : RK_LABEL_NONE;
    }
    packed->num_tokens += length;
    packed->max_seqlen = RK_MAX(packed->max_seqlen, length);
    pass->cu_seqlens[++packed->num_seqs] = (int32_t)packed->num_tokens;
}

/* Fills the pass and returns the first sequence that did not fit. */
static int32_t fill_pass(struct pass *pass, const struct batch *b, int32_t first)
{
    int32_t i = first;

    pass->packed = (struct rk_packed){.tokens = pass->tokens,
                                      .positions = pass->positions,
                                      .labels = pass->labels,
                                      .cu_seqlens = pass->cu_seqlens};
    for (; i < b->scale->num_requests; i++) {
        if (pass->packed.num_tokens + b->requests[i].prompt_len + b->results[i].num_tokens >
            b->scale->pass_tokens)
            break;
        add_sequence(pass, &b->requests[i], &b->results[i]);
    }
    assert_true(i > first);
    return i;
}

/* How many log-probs of sequences first.. of the pass differ, in any bit. */
static int64_t count_different(const struct pass *pass, const struct batch *b, int32_t first)
{
    int64_t num_different = 0;

    for (int32_t s = 0; s < pass->packed.num_seqs; s++) {
        const struct rk_rollout_result *result = &b->results[first + s];
        int64_t t = pass->cu_seqlens[s] + b->requests[first + s].prompt_len - 1;

        for (int32_t i = 0; i < result->num_tokens; i++) {
            float recomputed = (float)pass->log_probs[t + i];

            num_different += memcmp(&recomputed, &result->log_probs[i], sizeof(recomputed)) != 0;
        }
    }
    return num_different;
}

static void test_generate_strict_log_probs_have_bits_of_model(void **state)
{
    struct rk_test_model_spec spec = {.seed = 9, .dtype = RK_DTYPE_BF16, .numerics = RK_NUMERICS_STRICT};
    const struct scale *scale = rk_test_device_dtype() == RK_DTYPE_F64 ? &on_cpu : &on_gpu;
    int64_t num_different = 0;
    struct rk_test_model test;
    struct pass pass;
    struct batch b;
    double seconds;

    (void)state;
    spec.config = scale->config;
    assert_ok(rk_test_model_open(&test, &spec));
    batch_init(&b, scale, rk_model_get_config(test.model)->vocab_size);
    seconds = generate(&test, &b);
    pass_init(&pass, scale);
    for (int32_t first = 0, next; first < scale->num_requests; first = next) {
        next = fill_pass(&pass, &b, first);
        assert_ok(rk_model_log_probs(test.model, &pass.packed, 1.0, pass.log_probs, NULL));
        num_different += count_different(&pass, &b, first);
    }
    printf("%lld tokens in %.2f s, %lld with other bits\n", (long long)b.num_tokens, seconds,
           (long long)num_different);
    assert_int_equal(num_different, 0);
    assert_true(scale == &on_cpu || b.num_tokens >= 100000);
    pass_fini(&pass);
    batch_fini(&b);
    rk_test_model_close(&test);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generate_strict_log_probs_have_bits_of_model),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
