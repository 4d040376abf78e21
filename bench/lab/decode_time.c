/* Steady-state decode: tokens per second of a model with random weights in the shape of Qwen2.5 1.5B or 7B,
 * with and without graphs, in fast and strict numerics.
 *
 *   decode_time [1.5b|7b] [SEQUENCES] [CONTEXT] [LAYERS]      1.5b, 64 sequences from 1024 tokens on, 28
 * layers
 *
 * The rate is that of the last NEW/2 steps: the time of a call with NEW new tokens minus that of a call with
 * half as many. */
#include "bench/lab/lab.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_json.h"
#include "base/rk_rng.h"
#include "base/rk_time.h"
#include "engine/rk_plugin.h"
#include "engine/rk_rollout.h"

#define NEW_TOKENS 128

static struct rk_json *config_of(const char *name, int layers)
{
    bool is_large = strcmp(name, "7b") == 0;
    struct rk_json *json;
    char text[1024];

    snprintf(text, sizeof(text),
             "{\"model_type\": \"qwen2\", \"architectures\": [\"Qwen2ForCausalLM\"], \"hidden_size\": %d,"
             " \"intermediate_size\": %d, \"num_hidden_layers\": %d, \"num_attention_heads\": %d,"
             " \"num_key_value_heads\": %d, \"vocab_size\": %d, \"max_position_embeddings\": 4096,"
             " \"rms_norm_eps\": 1e-6, \"rope_theta\": 1000000.0, \"hidden_act\": \"silu\","
             " \"initializer_range\": 0.02, \"tie_word_embeddings\": %s}",
             is_large ? 3584 : 1536, is_large ? 18944 : 8960, layers, is_large ? 28 : 12, is_large ? 4 : 2,
             is_large ? 152064 : 151936, is_large ? "false" : "true");
    check(rk_json_parse(&json, text, strlen(text), "config.json", 0));
    return json;
}

struct bench {
    struct rk_model *model;
    int num_seqs, context;
    struct rk_rollout_request *requests;
    struct rk_rollout_result *results;
};

static double seconds_of(struct rk_rollout *rollout, struct bench *b, int num_new)
{
    uint64_t begin = rk_time_now_ns();

    for (int i = 0; i < b->num_seqs; i++)
        b->requests[i].max_tokens = num_new;
    check(rk_rollout_generate(rollout, b->requests, b->num_seqs, b->results, NULL));
    return (double)(rk_time_now_ns() - begin) * 1e-9;
}

static void measure(struct bench *b, const char *label, bool enforce_eager)
{
    const struct rk_rollout_config config = {.max_num_seqs = b->num_seqs,
                                             .max_num_batched_tokens = 8192,
                                             .max_model_len = b->context + NEW_TOKENS,
                                             .enforce_eager = enforce_eager};
    struct rk_rollout *rollout;
    double best = 1e9, whole = 0;

    check(rk_rollout_create(&rollout, b->model, &config));
    seconds_of(rollout, b, 8);
    seconds_of(rollout, b, 8);
    for (int i = 0; i < 3; i++) {
        double longer = seconds_of(rollout, b, NEW_TOKENS), shorter = seconds_of(rollout, b, NEW_TOKENS / 2);

        best = longer - shorter < best ? longer - shorter : best;
        whole = longer;
    }
    printf("%-16s %4d sequences, context %d: %.3f ms a step, %.0f tok/s (whole call %.3f s)\n", label,
           b->num_seqs, b->context, best * 1e3 / (NEW_TOKENS / 2), b->num_seqs * (NEW_TOKENS / 2) / best,
           whole);
    fflush(stdout);
    rk_rollout_destroy(rollout);
}

static void fill_requests(struct bench *b)
{
    struct rk_rng rng;

    rk_rng_init(&rng, 3, 1);
    b->requests = rk_calloc((size_t)b->num_seqs, sizeof(*b->requests));
    b->results = rk_calloc((size_t)b->num_seqs, sizeof(*b->results));
    for (int i = 0; i < b->num_seqs; i++) {
        int32_t *prompt = rk_calloc((size_t)b->context, sizeof(*prompt));

        for (int t = 0; t < b->context; t++)
            prompt[t] = (int32_t)rk_rng_next_below(&rng, 150000);
        b->requests[i] = (struct rk_rollout_request){.prompt = prompt,
                                                     .prompt_len = b->context,
                                                     .temperature = 1.0F,
                                                     .top_p = 1.0F,
                                                     .stream = (uint64_t)i};
        b->results[i].tokens = rk_calloc(NEW_TOKENS, sizeof(int32_t));
        b->results[i].log_probs = rk_calloc(NEW_TOKENS, sizeof(float));
    }
}

int main(int argc, char **argv)
{
    const struct rk_device_config device_config = {.struct_size = sizeof(device_config), .name = "cuda:0"};
    struct bench b = {.num_seqs = argc > 2 ? (int)number(argv[2]) : 64,
                      .context = argc > 3 ? (int)number(argv[3]) : 1024};
    const char *name = argc > 1 ? argv[1] : "1.5b";
    struct rk_json *json = config_of(name, argc > 4 ? (int)number(argv[4]) : 28);
    struct rk_mesh_comms *comms;
    struct rk_device *device;
    struct rk_stream *stream;

    check(rk_plugin_load("cuda:0", NULL));
    check(rk_device_open(&device, &device_config));
    check(rk_stream_create(&stream, device, "bench"));
    check(rk_mesh_comms_create_single(&comms));
    fill_requests(&b);
    for (int numerics = 0; numerics < RK_NUMERICS_COUNT; numerics++) {
        const struct rk_model_desc desc = {.struct_size = sizeof(desc),
                                           .hf_config = json,
                                           .stream = stream,
                                           .mesh = comms,
                                           .dtype = RK_DTYPE_BF16,
                                           .numerics = (rk_numerics_t)numerics};
        bool is_strict = numerics == RK_NUMERICS_STRICT;

        check(rk_model_create(&b.model, &desc));
        check(rk_model_init_random(b.model, 1, NULL));
        measure(&b, is_strict ? "strict, graphs" : "fast, graphs", false);
        measure(&b, is_strict ? "strict, eager" : "fast, eager", true);
        rk_model_destroy(b.model);
    }
    return 0;
}
