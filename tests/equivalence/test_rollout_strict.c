/* Goal: in strict numerics the log-prob of every generated token is bit-identical to the one that the
 * training forward pass computes, so that the first ratio of PPO is exactly 1 and need not be computed; and
 * so are the captured experts of all tokens; on one rank, and with tensor parallelism, where sums are over
 * ranks; for a dense model, for one with 16 experts, where other tokens determine how many rows an expert
 * has, and for one with latent attention; with the width of experts divided over tp, and with whole experts
 * on each rank.
 *
 * Method: generate with continuous batching (more requests than run together, prompts of all lengths in
 * chunks, some responses ended early), then recompute all of it in packed batches. On GPUs the model has the
 * shape of Qwen2.5-1.5B and 100,000 tokens are generated; on the CPU it is small, and as many tokens are
 * generated if RK_TEST_REQUESTS is 4000. Every rank is a separate process. */
#include "tests/support/test.h"

#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/config/rk_config.h"
#include "base/rk_env.h"
#include "base/rk_rng.h"
#include "base/rk_time.h"
#include "engine/rk_rollout.h"
#include "tests/support/device.h"
#include "tests/support/models.h"
#include "tests/support/ranks.h"

#define RUN_TIMEOUT_S 900

struct scale {
    const char *config;
    int32_t num_requests, max_num_seqs, max_prompt_len, max_tokens;
    int64_t max_num_batched_tokens, pass_tokens;
    int64_t min_tokens; /* generated */
};

#define CONFIG(hidden, intermediate, layers, heads, kv_heads, vocab, positions)                              \
    "{\"model_type\": \"qwen2\", \"architectures\": [\"Qwen2ForCausalLM\"], \"hidden_size\": " #hidden       \
    ", \"intermediate_size\": " #intermediate ", \"num_hidden_layers\": " #layers                            \
    ", \"num_attention_heads\": " #heads ", \"num_key_value_heads\": " #kv_heads ", \"vocab_size\": " #vocab \
    ", \"max_position_embeddings\": " #positions ", \"rms_norm_eps\": 1e-6, \"rope_theta\": 1000000.0,"      \
    " \"hidden_act\": \"silu\", \"initializer_range\": 0.02, \"tie_word_embeddings\": true}"

/* A Qwen3-MoE with 16 experts, of which each token uses 4. */
#define SPARSE(hidden, intermediate, layers, heads, kv_heads, vocab, positions)                             \
    "{\"model_type\": \"qwen3_moe\", \"architectures\": [\"Qwen3MoeForCausalLM\"], "                        \
    "\"hidden_size\": " #hidden ", \"moe_intermediate_size\": " #intermediate                               \
    ", \"num_hidden_layers\": " #layers ", \"num_attention_heads\": " #heads                                \
    ", \"num_key_value_heads\": " #kv_heads ", \"vocab_size\": " #vocab                                     \
    ", \"max_position_embeddings\": " #positions ", \"rms_norm_eps\": 1e-6, \"rope_theta\": 1000000.0,"     \
    " \"num_experts\": 16, \"num_experts_per_tok\": 4, \"norm_topk_prob\": true, \"mlp_only_layers\": [1]," \
    " \"intermediate_size\": " #intermediate ", \"hidden_act\": \"silu\", \"initializer_range\": 0.02,"     \
    " \"tie_word_embeddings\": true}"

/* A DeepSeek-V3 whose first layer has an MLP, and whose other layers have a shared expert. */
#define LATENT(hidden, intermediate, layers, heads, rank, nope, rope, v, vocab, positions)              \
    "{\"model_type\": \"deepseek_v3\", \"architectures\": [\"DeepseekV3ForCausalLM\"], "                \
    "\"hidden_size\": " #hidden ", \"moe_intermediate_size\": " #intermediate                           \
    ", \"num_hidden_layers\": " #layers ", \"num_attention_heads\": " #heads ", \"q_lora_rank\": null," \
    " \"kv_lora_rank\": " #rank ", \"qk_nope_head_dim\": " #nope ", \"qk_rope_head_dim\": " #rope ","   \
    " \"v_head_dim\": " #v ", \"vocab_size\": " #vocab ", \"max_position_embeddings\": " #positions     \
    ", \"rms_norm_eps\": 1e-6, \"rope_theta\": 50000.0, \"n_routed_experts\": 16,"                      \
    " \"num_experts_per_tok\": 4, \"n_group\": 4, \"topk_group\": 2, \"first_k_dense_replace\": 1,"     \
    " \"n_shared_experts\": 1,"                                                                         \
    " \"intermediate_size\": " #intermediate ", \"hidden_act\": \"silu\", \"initializer_range\": 0.02," \
    " \"tie_word_embeddings\": true}"

static const struct scale on_gpu = {
    .config = CONFIG(1536, 8960, 28, 12, 2, 151936, 4096),
    .num_requests = 288,
    .max_num_seqs = 96,
    .max_prompt_len = 700,
    .max_tokens = 512,
    .max_num_batched_tokens = 2048,
    .pass_tokens = 16384,
    .min_tokens = 100000,
};

static const struct scale sparse_on_gpu = {
    .config = SPARSE(1024, 512, 8, 16, 4, 151936, 4096),
    .num_requests = 288,
    .max_num_seqs = 96,
    .max_prompt_len = 700,
    .max_tokens = 512,
    .max_num_batched_tokens = 2048,
    .pass_tokens = 16384,
    .min_tokens = 100000,
};

static const struct scale latent_on_gpu = {
    .config = LATENT(1024, 512, 4, 16, 512, 128, 64, 128, 151936, 2048),
    .num_requests = 288,
    .max_num_seqs = 96,
    .max_prompt_len = 700,
    .max_tokens = 512,
    .max_num_batched_tokens = 2048,
    .pass_tokens = 16384,
    .min_tokens = 100000,
};

static const struct scale on_cpu = {
    .config = CONFIG(64, 96, 2, 4, 2, 211, 256),
    .num_requests = 12,
    .max_num_seqs = 5,
    .max_prompt_len = 70,
    .max_tokens = 40,
    .max_num_batched_tokens = 48,
    .pass_tokens = 200,
    .min_tokens = 100,
};

static const struct scale sparse_on_cpu = {
    .config = SPARSE(64, 24, 3, 4, 2, 211, 256),
    .num_requests = 12,
    .max_num_seqs = 5,
    .max_prompt_len = 70,
    .max_tokens = 40,
    .max_num_batched_tokens = 48,
    .pass_tokens = 200,
    .min_tokens = 100,
};

static const struct scale latent_on_cpu = {
    .config = LATENT(64, 24, 2, 4, 24, 12, 6, 10, 211, 256),
    .num_requests = 12,
    .max_num_seqs = 5,
    .max_prompt_len = 70,
    .max_tokens = 40,
    .max_num_batched_tokens = 48,
    .pass_tokens = 200,
    .min_tokens = 100,
};

/* Requests with their responses. */
struct batch {
    const struct scale *scale;
    int64_t routes_per_token; /* 0: the model has no experts */
    struct rk_rollout_request *requests;
    struct rk_rollout_result *results;
    int64_t num_tokens; /* generated */
};

static void batch_init(struct batch *b, const struct scale *scale, const struct rk_model *model)
{
    int64_t vocab_size = rk_model_get_config(model)->vocab_size;
    struct rk_model_routes routes = rk_model_get_routes(model);
    static const int64_t eos[] = {17, 18, 19, 20};
    struct rk_rng rng;

    rk_rng_init(&rng, rk_test_seed(), 1);
    *b = (struct batch){.scale = scale, .routes_per_token = routes.num_layers * routes.num_experts_per_tok};
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
        if (b->routes_per_token > 0)
            b->results[i].routed_experts =
                rk_calloc((size_t)((prompt_len + scale->max_tokens) * b->routes_per_token), sizeof(uint16_t));
    }
}

static void batch_fini(struct batch *b)
{
    for (int32_t i = 0; i < b->scale->num_requests; i++) {
        rk_free((void *)b->requests[i].prompt);
        rk_free(b->results[i].tokens);
        rk_free(b->results[i].log_probs);
        rk_free(b->results[i].routed_experts);
    }
    rk_free(b->requests);
    rk_free(b->results);
}

static struct rk_status *generate(struct rk_test_model *test, struct batch *b)
{
    const struct rk_rollout_config config = {.max_num_seqs = b->scale->max_num_seqs,
                                             .max_num_batched_tokens = b->scale->max_num_batched_tokens,
                                             .max_model_len = b->scale->max_prompt_len + b->scale->max_tokens,
                                             .captures_routes = b->routes_per_token > 0};
    struct rk_rollout *rollout;

    RK_TRY(rk_rollout_create(&rollout, test->model, &config));
    RK_TRY(rk_rollout_generate(rollout, b->requests, b->scale->num_requests, b->results, NULL));
    rk_rollout_destroy(rollout);
    for (int32_t i = 0; i < b->scale->num_requests; i++)
        b->num_tokens += b->results[i].num_tokens;
    return NULL;
}

/* Sequences of the batch from `first` on, as many as fit into a pass. */
struct pass {
    struct rk_packed packed;
    int32_t *tokens, *positions, *labels, *cu_seqlens;
    double *log_probs;
    uint16_t *chosen; /* [pass_tokens, routes_per_token] */
};

static void pass_init(struct pass *pass, const struct batch *b)
{
    const struct scale *scale = b->scale;
    size_t n = (size_t)scale->pass_tokens;

    pass->tokens = rk_calloc(n, sizeof(int32_t));
    pass->positions = rk_calloc(n, sizeof(int32_t));
    pass->labels = rk_calloc(n, sizeof(int32_t));
    pass->cu_seqlens = rk_calloc((size_t)scale->num_requests + 1, sizeof(int32_t));
    pass->log_probs = rk_calloc(n, sizeof(double));
    pass->chosen = rk_calloc(n * (size_t)b->routes_per_token, sizeof(uint16_t));
}

static void pass_fini(struct pass *pass)
{
    rk_free(pass->tokens);
    rk_free(pass->positions);
    rk_free(pass->labels);
    rk_free(pass->cu_seqlens);
    rk_free(pass->log_probs);
    rk_free(pass->chosen);
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

/* Fills the pass and returns the first sequence that did not fit; `first` itself if none fits. */
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
    return i;
}

/* Number of log-probs of sequences first.. of the pass that differ in any bit. */
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

/* Number of tokens of the pass whose experts differ; those of the last token of a sequence are not captured.
 */
static int64_t count_other_routes(const struct pass *pass, const struct batch *b, int32_t first)
{
    int64_t num_different = 0, width = b->routes_per_token;

    for (int32_t s = 0; width > 0 && s < pass->packed.num_seqs; s++) {
        const uint16_t *captured = b->results[first + s].routed_experts;

        for (int32_t t = pass->cu_seqlens[s]; t < pass->cu_seqlens[s + 1] - 1; t++, captured += width)
            num_different +=
                memcmp(captured, pass->chosen + t * width, (size_t)width * sizeof(*captured)) != 0;
    }
    return num_different;
}

/* Runs the pass, with capture for a model that has experts. */
static struct rk_status *run_pass(struct rk_model *model, const struct pass *pass, const struct batch *b)
{
    const struct rk_head_arrays arrays = {.of = {pass->log_probs}};

    if (b->routes_per_token == 0)
        return rk_model_forward(model, &pass->packed, 1.0, NULL, &arrays);
    memset(pass->chosen, 0, (size_t)(pass->packed.num_tokens * b->routes_per_token) * sizeof(uint16_t));
    return rk_test_choose(model, &pass->packed, &arrays, pass->chosen);
}

/* Results that a rank sends to the parent. */
struct outcome {
    int64_t num_tokens, num_different, num_other_routes;
    double generate_s, recompute_s;
};

struct layout {
    bool sequence_parallel; /* of passes; generation does not use it */
    int32_t etp, ep;        /* 0: tp, 1 */
};

struct shared {
    struct scale scale;
    struct layout generating, training;
    struct outcome of_rank[4];
};

static double seconds_since(int64_t begin_ns)
{
    return (double)(rk_time_now_ns() - begin_ns) * 1e-9;
}

/* Recomputes everything and counts what differs. */
static struct rk_status *recompute(struct rk_test_model *test, const struct batch *b, struct outcome *outcome)
{
    struct rk_status *st = NULL;
    struct pass pass;

    pass_init(&pass, b);
    for (int32_t first = 0, next; !st && first < b->scale->num_requests; first = next) {
        next = fill_pass(&pass, b, first);
        if (next == first)
            st = RK_FAIL(RK_INTERNAL, "sequence %d is longer than a pass", first);
        else
            st = run_pass(test->model, &pass, b);
        if (st)
            break;
        outcome->num_different += count_different(&pass, b, first);
        outcome->num_other_routes += count_other_routes(&pass, b, first);
    }
    pass_fini(&pass);
    return st;
}

/* world: NULL for one rank. */
static struct rk_status *open_model(struct rk_test_model *out, const struct shared *shared,
                                    const struct layout *layout, struct rk_comm_world *world)
{
    return rk_test_model_open(out,
                              &(struct rk_test_model_spec){
                                  .config = shared->scale.config,
                                  .seed = 9,
                                  .dtype = RK_DTYPE_BF16,
                                  .numerics = RK_NUMERICS_STRICT,
                                  .tp = world ? rk_comm_world_size(world) : 1,
                                  .etp = layout->etp,
                                  .ep = layout->ep,
                                  .sequence_parallel = layout->sequence_parallel,
                                  .world = world,
                                  .stream = world ? rk_test_rank_stream(rk_comm_world_rank(world)) : NULL});
}

static bool is_same_layout(const struct layout *a, const struct layout *b)
{
    return a->sequence_parallel == b->sequence_parallel && a->etp == b->etp && a->ep == b->ep;
}

/* One model does both if the layouts are equal. */
static int run_rank(struct rk_comm_world *world, void *user)
{
    struct shared *shared = user;
    int32_t rank = world ? rk_comm_world_rank(world) : 0;
    struct outcome *outcome = &shared->of_rank[rank];
    struct rk_test_model test;
    struct batch b;
    int64_t begin_ns;

    RK_RANK_OK(open_model(&test, shared, &shared->generating, world));
    batch_init(&b, &shared->scale, test.model);
    begin_ns = rk_time_now_ns();
    RK_RANK_OK(generate(&test, &b));
    outcome->num_tokens = b.num_tokens;
    outcome->generate_s = seconds_since(begin_ns);
    if (!is_same_layout(&shared->generating, &shared->training)) {
        rk_test_model_close(&test);
        RK_RANK_OK(open_model(&test, shared, &shared->training, world));
    }
    begin_ns = rk_time_now_ns();
    RK_RANK_OK(recompute(&test, &b, outcome));
    outcome->recompute_s = seconds_since(begin_ns);
    batch_fini(&b);
    rk_test_model_close(&test);
    return 0;
}

static bool is_cpu(void)
{
    return rk_test_device_dtype() == RK_DTYPE_F64;
}

static void check_outcomes(const struct shared *shared, int32_t tp)
{
    for (int32_t rank = 0; rank < tp; rank++) {
        const struct outcome *outcome = &shared->of_rank[rank];

        print_message(
            "tp=%d, rank %d: %lld tokens in %.2f s, recomputed in %.2f s, %lld with other bits, %lld "
            "with other experts\n",
            tp, rank, (long long)outcome->num_tokens, outcome->generate_s, outcome->recompute_s,
            (long long)outcome->num_different, (long long)outcome->num_other_routes);
        assert_int_equal(outcome->num_different, 0);
        assert_int_equal(outcome->num_other_routes, 0);
        assert_true(outcome->num_tokens >= shared->scale.min_tokens);
    }
}

typedef enum kind { DENSE, EXPERTS, LATENTS } kind_t;

static struct shared *make_shared(kind_t kind)
{
    static const struct scale *const cpu[] = {
        [DENSE] = &on_cpu, [EXPERTS] = &sparse_on_cpu, [LATENTS] = &latent_on_cpu};
    static const struct scale *const gpu[] = {
        [DENSE] = &on_gpu, [EXPERTS] = &sparse_on_gpu, [LATENTS] = &latent_on_gpu};
    const char *requests = rk_env("RK_TEST_REQUESTS");
    struct shared *shared = rk_test_shared_alloc(sizeof(*shared));

    shared->scale = is_cpu() ? *cpu[kind] : *gpu[kind];
    if (requests) {
        shared->scale.num_requests = (int32_t)strtol(requests, NULL, 10);
        shared->scale.max_num_seqs = 32;
        shared->scale.max_num_batched_tokens = 300;
        shared->scale.pass_tokens = 2000;
        shared->scale.min_tokens = 25 * (int64_t)shared->scale.num_requests; /* the mean is 27 */
    }
    return shared;
}

static int run_alone(int32_t rank, int32_t num_ranks, void *user)
{
    (void)rank;
    (void)num_ranks;
    return run_rank(NULL, user);
}

static void run_one(kind_t kind)
{
    struct rk_test_rank_result result;
    struct shared *shared;
    int num_failed;

    if (rk_test_device_is_per_rank())
        rk_test_skip("done by the run on one device");
    shared = make_shared(kind);
    num_failed = rk_test_run_ranks_results(1, run_alone, shared, RUN_TIMEOUT_S, &result);
    if (result.exit_code == RK_TEST_EXIT_SKIPPED)
        exit(RK_TEST_EXIT_SKIPPED);
    assert_int_equal(num_failed, 0);
    check_outcomes(shared, 1);
    rk_test_shared_free(shared, sizeof(*shared));
}

static void test_generate_strict_log_probs_have_bits_of_model(void **state)
{
    (void)state;
    run_one(DENSE);
}

static void test_generate_strict_log_probs_have_bits_of_model_with_experts(void **state)
{
    (void)state;
    run_one(EXPERTS);
}

static void run_layouts_of(int32_t tp, kind_t kind, struct layout generating, struct layout training)
{
    struct shared *shared;

    if (rk_test_device_max_ranks() < tp)
        rk_test_skip("needs %d devices", tp);
    shared = make_shared(kind);
    shared->generating = generating;
    shared->training = training;
    assert_int_equal(rk_test_run_world(tp, "unix", run_rank, shared, RUN_TIMEOUT_S), 0);
    check_outcomes(shared, tp);
    rk_test_shared_free(shared, sizeof(*shared));
}

static void run_layouts(kind_t kind, struct layout generating, struct layout training)
{
    run_layouts_of(2, kind, generating, training);
}

static void run_tp(kind_t kind, bool sequence_parallel)
{
    const struct layout layout = {.sequence_parallel = sequence_parallel};

    run_layouts(kind, layout, layout);
}

static void test_generate_strict_tp_log_probs_have_bits_of_model(void **state)
{
    (void)state;
    run_tp(DENSE, false);
}

/* Sums over tp use reduce-scatter, and rows are padded: they must be bit-identical to the sums in generation.
 */
static void test_generate_strict_log_probs_have_bits_of_sequence_parallel_model(void **state)
{
    (void)state;
    run_tp(DENSE, true);
}

static void test_generate_strict_tp_log_probs_have_bits_of_model_with_experts(void **state)
{
    (void)state;
    run_tp(EXPERTS, false);
}

static void test_generate_strict_log_probs_have_bits_of_sequence_parallel_model_with_experts(void **state)
{
    (void)state;
    run_tp(EXPERTS, true);
}

/* Keys and values of a step are made from the cache as a packed pass makes them. */
static void test_generate_strict_log_probs_have_bits_of_model_with_latents(void **state)
{
    (void)state;
    run_one(LATENTS);
}

static void test_generate_strict_tp_log_probs_have_bits_of_model_with_latents(void **state)
{
    (void)state;
    run_tp(LATENTS, false);
}

static void test_generate_strict_log_probs_have_bits_of_sequence_parallel_model_with_latents(void **state)
{
    (void)state;
    run_tp(LATENTS, true);
}

static const struct layout whole_experts = {.etp = 1, .ep = 2},
                           exchange = {.sequence_parallel = true, .etp = 1, .ep = 2},
                           copies = {.sequence_parallel = true, .etp = 1};

/* Goal: ranks that generate with whole experts of their own have the bits of passes that exchange tokens,
 * with the same weights in both. */
static void test_generate_strict_ep_log_probs_have_bits_of_model_with_exchange(void **state)
{
    (void)state;
    run_layouts(EXPERTS, exchange, exchange);
}

static void test_generate_strict_ep_log_probs_have_bits_of_model_without_sequence_parallelism(void **state)
{
    (void)state;
    run_layouts(EXPERTS, whole_experts, whole_experts);
}

/* ep changes no bit: every rank of the training mesh has all experts. */
static void test_generate_strict_ep_log_probs_have_bits_of_model_with_all_experts(void **state)
{
    (void)state;
    run_layouts(EXPERTS, whole_experts, copies);
}

static void test_generate_strict_all_experts_log_probs_have_bits_of_model_with_exchange(void **state)
{
    (void)state;
    run_layouts(EXPERTS, copies, exchange);
}

static void test_generate_strict_ep_log_probs_have_bits_of_model_with_latents_and_exchange(void **state)
{
    (void)state;
    run_layouts(LATENTS, whole_experts, exchange);
}

/* Goal: the same where an expert is split over two of four tp ranks. */
static void test_generate_strict_log_probs_have_bits_of_model_with_halves_of_experts(void **state)
{
    const struct layout halves = {.sequence_parallel = true, .etp = 2};

    (void)state;
    run_layouts_of(4, EXPERTS, halves, halves);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generate_strict_log_probs_have_bits_of_model),
        cmocka_unit_test(test_generate_strict_tp_log_probs_have_bits_of_model),
        cmocka_unit_test(test_generate_strict_log_probs_have_bits_of_sequence_parallel_model),
        cmocka_unit_test(test_generate_strict_log_probs_have_bits_of_model_with_experts),
        cmocka_unit_test(test_generate_strict_tp_log_probs_have_bits_of_model_with_experts),
        cmocka_unit_test(test_generate_strict_log_probs_have_bits_of_sequence_parallel_model_with_experts),
        cmocka_unit_test(test_generate_strict_log_probs_have_bits_of_model_with_latents),
        cmocka_unit_test(test_generate_strict_tp_log_probs_have_bits_of_model_with_latents),
        cmocka_unit_test(test_generate_strict_log_probs_have_bits_of_sequence_parallel_model_with_latents),
        cmocka_unit_test(test_generate_strict_ep_log_probs_have_bits_of_model_with_exchange),
        cmocka_unit_test(test_generate_strict_ep_log_probs_have_bits_of_model_without_sequence_parallelism),
        cmocka_unit_test(test_generate_strict_ep_log_probs_have_bits_of_model_with_all_experts),
        cmocka_unit_test(test_generate_strict_all_experts_log_probs_have_bits_of_model_with_exchange),
        cmocka_unit_test(test_generate_strict_ep_log_probs_have_bits_of_model_with_latents_and_exchange),
        cmocka_unit_test(test_generate_strict_log_probs_have_bits_of_model_with_halves_of_experts),
    };

    if (rk_test_device_is_per_rank())
        rk_test_device_need_ranks(2);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
