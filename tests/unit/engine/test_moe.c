/* Layers of experts: configurations of families, forms of files, activations kept by a pass, and independence
 * of tokens. Values against Hugging Face: tests/golden. */
#include "tests/support/test.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/rk_alloc.h"
#include "base/rk_rng.h"
#include "base/format/rk_safetensors.h"
#include "base/rk_str.h"
#include "engine/model/model.h"
#include "engine/nn/moe_internal.h"
#include "engine/rk_memory.h"
#include "tests/support/answers.h"

enum { NUM_TOKENS = RK_TEST_PACKED_TOKENS };

/* --- config.json --- */

static struct rk_status *parse(struct rk_model_config *out, const char *type, const char *members)
{
    char *text = rk_format("{\"model_type\": \"%s\"%s%s}", type, *members ? ", " : "", members);
    struct rk_json *json;
    struct rk_status *st;

    assert_ok(rk_json_parse(&json, text, strlen(text), "config.json", 0));
    st = rk_model_config_parse(out, json);
    rk_json_free(json);
    rk_free(text);
    return st;
}

struct read_case {
    const char *label, *type, *members;
    int64_t num_experts, top_k, intermediate_size, shared_intermediate_size;
    bool norm_topk_prob;
    const char *layers; /* d: dense, s: sparse; of the first ones */
};

static const struct read_case read_cases[] = {
    {"defaults", "qwen3_moe", "", 128, 8, 768, 0, false, "ssss"},
    {"defaults", "qwen2_moe", "", 60, 4, 1408, 5632, false, "ssss"},
    {"defaults", "mixtral", "", 8, 2, 14336, 0, true, NULL},
    {"as Qwen3-30B-A3B", "qwen3_moe",
     "\"num_experts\": 128, \"num_experts_per_tok\": 8, \"norm_topk_prob\": true, \"mlp_only_layers\": [], "
     "\"decoder_sparse_step\": 1",
     128, 8, 768, 0, true, "ssss"},
    {"another name of the number", "qwen3_moe", "\"num_local_experts\": 16, \"num_experts_per_tok\": 3", 16,
     3, 768, 0, false, "ssss"},
    {"two names that agree", "mixtral", "\"num_local_experts\": 4, \"num_experts\": 4", 4, 2, 14336, 0, true,
     NULL},
    {"every third layer", "qwen2_moe", "\"decoder_sparse_step\": 3, \"mlp_only_layers\": null", 60, 4, 1408,
     5632, false, "ddsdds"},
    {"dense layers", "qwen2_moe", "\"mlp_only_layers\": [0, 3], \"shared_expert_intermediate_size\": 40", 60,
     4, 1408, 40, false, "dssds"},
    {"dense layers of every second", "qwen3_moe", "\"decoder_sparse_step\": 2, \"mlp_only_layers\": [1, 2]",
     128, 8, 768, 0, false, "dddsds"},
    {"a width of its own", "mixtral", "\"intermediate_size\": 96, \"norm_topk_prob\": false", 8, 2, 96, 0,
     true, NULL},
};

static void test_parse_reads_experts_and_kinds_of_layers(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(read_cases); i++) {
        const struct read_case *c = &read_cases[i];
        struct rk_model_config config;

        print_message("  %s: %s\n", c->type, c->label);
        assert_ok(parse(&config, c->type, c->members));
        assert_int_equal(config.moe.num_experts, c->num_experts);
        assert_int_equal(config.moe.num_experts_per_tok, c->top_k);
        assert_int_equal(config.moe.intermediate_size, c->intermediate_size);
        assert_int_equal(config.moe.shared_intermediate_size, c->shared_intermediate_size);
        assert_int_equal(config.moe.norm_topk_prob, c->norm_topk_prob);
        for (size_t layer = 0; c->layers && c->layers[layer]; layer++)
            assert_int_equal(config.layer_kinds[layer],
                             c->layers[layer] == 's' ? RK_LAYER_SPARSE : RK_LAYER_DENSE);
    }
}

struct bad_case {
    const char *type, *members;
    rk_code_t code;
    const char *text;
};

static const struct bad_case bad_cases[] = {
    {"qwen3_moe", "\"num_experts\": 4, \"num_experts_per_tok\": 5", RK_INVALID_ARGUMENT,
     "num_experts_per_tok=5: expected at most the 4"},
    {"mixtral", "\"num_local_experts\": 1", RK_INVALID_ARGUMENT,
     "num_experts_per_tok=2: expected at most the 1"},
    {"qwen3_moe", "\"num_experts\": 0", RK_INVALID_ARGUMENT, "num_experts"},
    {"qwen3_moe", "\"num_experts\": 1025", RK_INVALID_ARGUMENT, "num_experts"},
    {"qwen3_moe", "\"num_experts\": 8, \"n_routed_experts\": 9", RK_INVALID_ARGUMENT,
     "n_routed_experts=9: expected what num_experts says, 8"},
    {"qwen3_moe", "\"num_experts_per_tok\": 33", RK_INVALID_ARGUMENT, "num_experts_per_tok"},
    {"qwen3_moe", "\"num_experts_per_tok\": 0", RK_INVALID_ARGUMENT, "num_experts_per_tok"},
    {"qwen3_moe", "\"moe_intermediate_size\": 0", RK_INVALID_ARGUMENT, "moe_intermediate_size"},
    {"qwen3_moe", "\"norm_topk_prob\": 1", RK_INVALID_ARGUMENT, "norm_topk_prob"},
    {"qwen3_moe", "\"decoder_sparse_step\": 0", RK_INVALID_ARGUMENT, "decoder_sparse_step"},
    {"qwen3_moe", "\"mlp_only_layers\": 3", RK_INVALID_ARGUMENT, "mlp_only_layers: expected a list"},
    {"qwen3_moe", "\"num_hidden_layers\": 4, \"mlp_only_layers\": [0, 4]", RK_INVALID_ARGUMENT,
     "mlp_only_layers[1]: expected a layer from 0 to 3"},
    {"qwen3_moe", "\"mlp_only_layers\": [\"a\"]", RK_INVALID_ARGUMENT, "mlp_only_layers[0]"},
    {"qwen3_moe", "\"attention_bias\": true", RK_UNIMPLEMENTED, "attention_bias=true"},
    {"qwen2_moe", "\"shared_expert_intermediate_size\": 0", RK_INVALID_ARGUMENT,
     "shared_expert_intermediate_size"},
    {"qwen2_moe", "\"use_sliding_window\": true", RK_UNIMPLEMENTED, "use_sliding_window=true"},
    {"mixtral", "\"router_jitter_noise\": 0.1", RK_UNIMPLEMENTED, "router_jitter_noise=0.1"},
};

static void test_parse_of_bad_experts_names_key_and_expectation(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(bad_cases); i++) {
        struct rk_model_config config;

        assert_fails(parse(&config, bad_cases[i].type, bad_cases[i].members), bad_cases[i].code,
                     bad_cases[i].text);
    }
}

/* Goal: groups of experts, for families with sigmoid scores, are checked. */
static void test_check_of_groups_names_what_does_not_fit(void **state)
{
    const struct rk_moe_config good = {.num_experts = 16,
                                       .num_experts_per_tok = 4,
                                       .num_groups = 4,
                                       .topk_groups = 2,
                                       .routed_scaling_factor = 2.5};
    struct rk_moe_config bad = good;

    (void)state;
    assert_ok(rk_config_check_moe(&good));
    bad.num_groups = 5;
    assert_fails(rk_config_check_moe(&bad), RK_INVALID_ARGUMENT, "n_group=5: expected a divisor of the 16");
    bad = good;
    bad.topk_groups = 5;
    assert_fails(rk_config_check_moe(&bad), RK_INVALID_ARGUMENT, "topk_group=5: expected 1 to n_group=4");
    bad = good;
    bad.topk_groups = 1;
    bad.num_experts_per_tok = 5;
    assert_fails(rk_config_check_moe(&bad), RK_INVALID_ARGUMENT,
                 "num_experts_per_tok=5: expected at most the 4 experts of topk_group=1 groups");
    bad = good;
    bad.routed_scaling_factor = 0;
    assert_fails(rk_config_check_moe(&bad), RK_INVALID_ARGUMENT, "routed_scaling_factor");
}

/* --- models --- */

#define CONFIG(type, more)                                                               \
    "{\"model_type\": \"" type "\", \"hidden_size\": 32, \"intermediate_size\": 24, "    \
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, " \
    "\"head_dim\": 8, \"vocab_size\": 61, \"max_position_embeddings\": 96, "             \
    "\"initializer_range\": 0.3, \"num_experts\": 4, \"num_experts_per_tok\": 2, "       \
    "\"moe_intermediate_size\": 12, \"shared_expert_intermediate_size\": 20" more "}"
#define QWEN2_MOE      CONFIG("qwen2_moe", ", \"mlp_only_layers\": [0]")
#define QWEN2_MOE_TIED CONFIG("qwen2_moe", ", \"mlp_only_layers\": [0], \"tie_word_embeddings\": true")
#define QWEN3_MOE      CONFIG("qwen3_moe", "")
#define MIXTRAL        CONFIG("mixtral", ", \"num_local_experts\": 4")
#define DEEPSEEK                                                                                 \
    "{\"model_type\": \"deepseek_v3\", \"hidden_size\": 32, \"intermediate_size\": 24,"          \
    " \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 4,"         \
    " \"vocab_size\": 61, \"max_position_embeddings\": 96, \"initializer_range\": 0.3,"          \
    " \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 12, \"n_routed_experts\": 4,"       \
    " \"n_shared_experts\": 1, \"n_group\": 1, \"topk_group\": 1, \"first_k_dense_replace\": 1," \
    " \"kv_lora_rank\": 12, \"q_lora_rank\": null, \"qk_nope_head_dim\": 6,"                     \
    " \"qk_rope_head_dim\": 4, \"v_head_dim\": 8}"

static struct rk_test_model open_model(const char *config, rk_dtype_t dtype, rk_numerics_t numerics)
{
    const struct rk_test_model_spec spec = {
        .config = config, .seed = 5, .dtype = dtype, .numerics = numerics};
    struct rk_test_model test;

    assert_ok(rk_test_model_open(&test, &spec));
    return test;
}

/* --- files --- */

/* A weight file of a model; with `stacks` the experts are stacked tensors, and routers have the name that
 * files with stacks give them. */
struct file_spec {
    bool stacks;
    const char *drop;    /* a tensor to leave out */
    const char *reshape; /* a tensor to give one more row */
};

struct file {
    struct rk_st_entry entries[64];
    int64_t count;
};

static void add_entry(struct file *file, const struct file_spec *spec, const struct rk_st_entry *entry)
{
    for (int64_t i = 0; i < file->count; i++) {
        if (strcmp(file->entries[i].name, entry->name) == 0)
            return; /* the stack already exists */
    }
    if (spec->drop && strcmp(spec->drop, entry->name) == 0)
        return;
    assert_true(file->count < (int64_t)RK_ARRAY_LEN(file->entries));
    file->entries[file->count] = *entry;
    if (spec->reshape && strcmp(spec->reshape, entry->name) == 0)
        file->entries[file->count].shape[entry->rank > 2 ? 1 : 0]++;
    file->count++;
}

static void list_tensors(struct file *file, const struct rk_model *model, const struct file_spec *spec)
{
    file->count = 0;
    for (int64_t i = 0; i < rk_model_num_params(model); i++) {
        const struct rk_param *param = rk_model_param_at(model, i);
        struct rk_st_entry entry = {.name = param->name,
                                    .dtype = RK_DTYPE_F64,
                                    .rank = param->rank,
                                    .shape = {param->shape[0], param->shape[1]}};

        if (param->flags & RK_PARAM_WIDE)
            entry.shape[0] = rk_param_num_values(param);
        if (spec->stacks && strstr(param->name, "block_sparse_moe.gate.weight"))
            entry.name = param->name[strlen("model.layers.")] == '0' ? "model.layers.0.mlp.gate.weight"
                                                                     : "model.layers.1.mlp.gate.weight";
        if (spec->stacks && *param->stack.name)
            entry = (struct rk_st_entry){.name = param->stack.name,
                                         .dtype = RK_DTYPE_F64,
                                         .rank = 3,
                                         .shape = {param->stack.count, param->stack.rows, param->shape[1]}};
        add_entry(file, spec, &entry);
    }
}

static int64_t elements_of(const struct rk_st_entry *entry)
{
    int64_t count = 1;

    for (int32_t i = 0; i < entry->rank; i++)
        count *= entry->shape[i];
    return count;
}

static int64_t layer_of(const char *name)
{
    const char *layer = strstr(name, "layers.");

    return layer ? strtol(layer + strlen("layers."), NULL, 10) : -1;
}

/* Whether a stack has the matrix of an expert; else whether the tensor is the parameter. */
static bool has_param(const struct rk_st_entry *entry, const struct rk_param *param, bool is_down)
{
    if (entry->rank < 3)
        return strcmp(param->name, entry->name) == 0 ||
               (strstr(param->name, ".gate.weight") && strstr(entry->name, "mlp.gate.weight") &&
                layer_of(param->name) == layer_of(entry->name));
    return strstr(param->name, ".experts.") && layer_of(param->name) == layer_of(entry->name) &&
           strstr(entry->name, is_down ? "down_proj" : "gate_up_proj");
}

/* The values of the model; those of stacks by explicit indices: gate rows first, then up, for each expert.
 * Mixtral's w1, w2 and w3 are gate, down and up. */
static void fill(double *values, const struct rk_st_entry *entry, struct rk_model *model)
{
    for (int64_t i = 0; i < rk_model_num_params(model); i++) {
        const struct rk_param *param = rk_model_param_at(model, i);
        const char *expert = strstr(param->name, ".experts.");
        bool is_down = strstr(param->name, "down_proj") || strstr(param->name, ".w2.");
        bool is_up = strstr(param->name, "up_proj") || strstr(param->name, ".w3.");
        int64_t offset = 0;

        if (!has_param(entry, param, is_down))
            continue;
        if (param->flags & RK_PARAM_WIDE)
            continue; /* zeros, as the model's */
        if (entry->rank == 3)
            offset = strtol(expert + strlen(".experts."), NULL, 10) * entry->shape[1] * entry->shape[2];
        if (entry->rank == 3 && is_up)
            offset += entry->shape[1] / 2 * entry->shape[2];
        assert_ok(rk_model_gather_param(model, i, values + offset));
    }
}

static char *write_model(const char *name, struct rk_model *model, const struct file_spec *spec)
{
    char *dir = rk_test_temp_path(name), *path = rk_path_join(dir, "model.safetensors");
    struct rk_st_writer *writer;
    struct file file;

    assert_int_equal(mkdir(dir, 0777), 0);
    list_tensors(&file, model, spec);
    assert_ok(rk_st_writer_create(&writer, path, file.entries, file.count, NULL));
    for (int64_t i = 0; i < file.count; i++) {
        size_t count = (size_t)elements_of(&file.entries[i]);
        double *values = rk_calloc(count, sizeof(*values));

        fill(values, &file.entries[i], model);
        assert_ok(rk_st_writer_write(writer, i, 0, values, count * sizeof(*values)));
        rk_free(values);
    }
    assert_ok(rk_st_writer_commit(writer));
    rk_st_writer_destroy(writer);
    rk_free(path);
    return dir;
}

static void assert_same_values(struct rk_model *a, struct rk_model *b)
{
    for (int64_t i = 0; i < rk_model_num_params(a); i++) {
        size_t count = (size_t)rk_param_num_elements(rk_model_param_at(a, i));
        double *left = rk_calloc(count, sizeof(double)), *right = rk_calloc(count, sizeof(double));

        assert_ok(rk_model_gather_param(a, i, left));
        assert_ok(rk_model_gather_param(b, i, right));
        assert_memory_equal(left, right, count * sizeof(double));
        rk_free(left);
        rk_free(right);
    }
}

/* Goal: a file whose experts are stacks gives the same values as one with separate tensors. */
static void test_load_of_stacks_gives_each_expert_its_rows(void **state)
{
    static const char *const configs[] = {QWEN2_MOE, QWEN3_MOE, MIXTRAL, DEEPSEEK};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(configs); i++) {
        struct rk_test_model test = open_model(configs[i], RK_DTYPE_F64, RK_NUMERICS_FAST);
        struct rk_test_model other = open_model(configs[i], RK_DTYPE_F64, RK_NUMERICS_FAST);
        char *name = rk_format("stacks-%zu", i);
        char *dir = write_model(name, test.model, &(struct file_spec){.stacks = true});

        assert_ok(rk_model_init_random(other.model, 77, NULL));
        assert_ok(rk_model_load_hf(other.model, dir, NULL));
        assert_same_values(test.model, other.model);
        rk_test_model_close(&test);
        rk_test_model_close(&other);
        rk_free(dir);
        rk_free(name);
    }
}

struct defect {
    struct file_spec spec;
    rk_code_t code;
    const char *text;
};

#define LAYER "model.layers.1.mlp."
static const struct defect defects[] = {
    {{.drop = LAYER "experts.2.up_proj.weight"}, RK_NOT_FOUND, "'" LAYER "experts.2.up_proj.weight'"},
    {{.stacks = true, .drop = LAYER "experts.down_proj"},
     RK_NOT_FOUND,
     "'" LAYER "experts.0.down_proj.weight'"},
    {{.stacks = true, .drop = LAYER "experts.down_proj"}, RK_NOT_FOUND, "'" LAYER "experts.down_proj'"},
    {{.stacks = true, .drop = LAYER "experts.gate_up_proj"}, RK_NOT_FOUND, "'" LAYER "experts.gate_up_proj'"},
    {{.drop = LAYER "gate.weight"}, RK_NOT_FOUND, "'" LAYER "gate.weight'"},
    {{.reshape = LAYER "gate.weight"}, RK_INVALID_ARGUMENT, "shape [5, 32], expected [4, 32]"},
    {{.reshape = LAYER "shared_expert_gate.weight"}, RK_INVALID_ARGUMENT, "shape [2, 32], expected [1, 32]"},
    {{.reshape = LAYER "experts.3.gate_proj.weight"},
     RK_INVALID_ARGUMENT,
     "shape [13, 32], expected [12, 32]"},
    {{.stacks = true, .reshape = LAYER "experts.gate_up_proj"},
     RK_INVALID_ARGUMENT,
     "shape [4, 25, 32], expected [4, 24, 32]"},
};

static void test_load_of_defect_names_tensor_and_expectation(void **state)
{
    struct rk_test_model test = open_model(QWEN2_MOE, RK_DTYPE_F64, RK_NUMERICS_FAST);

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(defects); i++) {
        char *name = rk_format("defect-%zu", i), *dir = write_model(name, test.model, &defects[i].spec);

        assert_fails(rk_model_load_hf(test.model, dir, NULL), defects[i].code, defects[i].text);
        rk_free(dir);
        rk_free(name);
    }
    rk_test_model_close(&test);
}

/* Goal: the experts' matrices of one kind are one allocation, as grouped products require. */
static void test_experts_are_one_allocation(void **state)
{
    struct rk_test_model test = open_model(QWEN3_MOE, RK_DTYPE_BF16, RK_NUMERICS_FAST);
    int64_t first = rk_model_find_param(test.model, LAYER "experts.0.gate_proj.weight");
    int64_t down = rk_model_find_param(test.model, LAYER "experts.0.down_proj.weight");

    (void)state;
    for (int64_t e = 0; e < 4; e++) {
        for (int64_t i = 0; i < 2; i++)
            assert_int_equal(rk_model_placement_at(test.model, first + 2 * e + i)->offset,
                             rk_model_placement_at(test.model, first)->offset + (2 * e + i) * 12 * 32);
        assert_int_equal(rk_model_placement_at(test.model, down + e)->offset,
                         rk_model_placement_at(test.model, down)->offset + e * 32 * 12);
    }
    rk_test_model_close(&test);
}

/* --- activations --- */

/* Goal: a pass keeps exactly the declared activations, to the byte. Method: sizes computed by hand. */
static void test_kept_activations_are_those_declared(void **state)
{
    struct rk_test_model test = open_model(QWEN2_MOE, RK_DTYPE_BF16, RK_NUMERICS_FAST);
    const struct rk_model_core *core = test.model->core;
    struct rk_pass_memory memory = {.arena = rk_step_arena_create(test.device),
                                    .host = rk_arena_create(RK_PASS_HOST_BLOCK_BYTES, 0)};
    int32_t ids[3 * NUM_TOKENS];
    int64_t attention = 2 * (4 + 2 * 2 + 4) * 8 + 4 * 4, dense = 2 * 2 * 24;
    /* logits; ids, places and tokens; probabilities; [gate; up] of both experts; of the shared one: score,
     * sigmoid, [gate; up] */
    int64_t sparse = 4 * 4 + 4 * 3 * 2 + 4 * 2 + 2 * 2 * 2 * 12 + 4 * 2 + 2 * 2 * 20;
    int64_t residual = 2 * 32 + 4, offsets = 256; /* 5 numbers, aligned by the arena */
    struct rk_trunk_saved saved;
    struct rk_packed packed;
    struct rk_pass pass;
    rk_tensor_t out;
    size_t before;

    (void)state;
    rk_test_fill_packed(&packed, ids);
    assert_ok(rk_model_begin_packed(test.model, &memory, &pass, &packed));
    before = rk_step_arena_mark(memory.arena).live_bytes;
    assert_ok(rk_trunk_fwd(core, &core->chunks[0], &pass, (rk_tensor_t){0}, &out, &saved));
    assert_int_equal(
        rk_block_activation_bytes(&core->blocks[3], RK_ACTIVATION_SAVED, RK_DTYPE_BF16, RK_DTYPE_F32),
        sparse);
    assert_int_equal(rk_step_arena_mark(memory.arena).live_bytes - before,
                     NUM_TOKENS * (2 * attention + dense + sparse + 5 * residual) + offsets);
    rk_step_arena_destroy(memory.arena);
    rk_arena_destroy(memory.host);
    rk_test_model_close(&test);
}

/* --- tokens --- */

static void log_probs_of(struct rk_test_model *test, const int32_t *ids, int32_t first, int32_t count,
                         double *out)
{
    int32_t positions[NUM_TOKENS];
    const int32_t cu_seqlens[2] = {0, count};

    for (int32_t t = 0; t < count; t++)
        positions[t] = t;
    assert_ok(rk_model_forward(test->model,
                               &(struct rk_packed){1, count, count, ids + first, positions, cu_seqlens,
                                                   ids + 2 * NUM_TOKENS + first, NULL},
                               1, NULL, &(struct rk_head_arrays){.of = {out}}));
}

/* Goal: with strict numerics a sequence has the same bits alone and in a batch, whatever the routing of the
 * other sequences. */
static void test_strict_token_depends_on_no_other(void **state)
{
    static const rk_dtype_t dtypes[] = {RK_DTYPE_F32, RK_DTYPE_BF16};

    (void)state;
    for (size_t d = 0; d < RK_ARRAY_LEN(dtypes); d++) {
        struct rk_test_model test = open_model(QWEN2_MOE, dtypes[d], RK_NUMERICS_STRICT);
        double together[NUM_TOKENS], alone[NUM_TOKENS];
        int32_t ids[3 * NUM_TOKENS];
        struct rk_packed packed;

        rk_test_fill_packed(&packed, ids);
        assert_ok(rk_model_forward(test.model, &packed, 1, NULL, &(struct rk_head_arrays){.of = {together}}));
        log_probs_of(&test, ids, 0, 24, alone);
        log_probs_of(&test, ids, 24, NUM_TOKENS - 24, alone + 24);
        assert_memory_equal(together, alone, sizeof(alone));
        rk_test_model_close(&test);
    }
}

/* --- training --- */

static void run_backward(struct rk_model *model)
{
    int32_t ids[3 * NUM_TOKENS];
    struct rk_packed packed;
    double loss;

    rk_test_fill_packed(&packed, ids);
    assert_ok(rk_test_mean_pass(&loss, model, &packed));
}

/* A step; *grad_norm is that of what trains. */
static void train_once(struct rk_test_model *test, const char *config, bool freezes_router, double *grad_norm)
{
    const struct rk_test_model_spec spec = {
        .config = config, .seed = 5, .dtype = RK_DTYPE_F64, .moe = {.freezes_router = freezes_router}};
    struct rk_optim_config optim = rk_test_adamw(1e-2, 0.1, 0);
    struct rk_step_stats stats;

    assert_ok(rk_test_model_open(test, &spec));
    assert_ok(rk_test_enable_training(test->model, &optim));
    run_backward(test->model);
    assert_ok(rk_trainer_step(rk_model_trainer(test->model), &stats));
    *grad_norm = stats.grad_norm;
}

static bool is_router(const char *name)
{
    return strstr(name, "mlp.gate.weight") || strstr(name, "shared_expert_gate.weight");
}

/* Whether two models have the same values of parameter i. */
static bool is_same(struct rk_test_model *a, struct rk_test_model *b, int64_t i)
{
    size_t count = (size_t)rk_param_num_elements(rk_model_param_at(a->model, i));
    double *left = rk_calloc(count, sizeof(double)), *right = rk_calloc(count, sizeof(double));
    bool same;

    assert_ok(rk_model_gather_param(a->model, i, left));
    assert_ok(rk_model_gather_param(b->model, i, right));
    same = memcmp(left, right, count * sizeof(double)) == 0;
    rk_free(left);
    rk_free(right);
    return same;
}

static void check_frozen_router(const char *config)
{
    struct rk_test_model before = open_model(config, RK_DTYPE_F64, RK_NUMERICS_FAST), frozen, free;
    double norm_frozen, norm_free;
    int num_routers = 0;

    train_once(&frozen, config, true, &norm_frozen);
    train_once(&free, config, false, &norm_free);
    for (int64_t i = 0; i < rk_model_num_params(before.model); i++) {
        bool routes = is_router(rk_model_param_at(before.model, i)->name);

        num_routers += routes;
        assert_int_equal(is_same(&frozen, &before, i), routes);
        assert_int_equal(is_same(&frozen, &free, i), !routes);
        assert_false(is_same(&free, &before, i));
    }
    assert_int_equal(num_routers, 2);
    assert_true(norm_frozen < norm_free);
    rk_test_model_close(&before);
    rk_test_model_close(&frozen);
    rk_test_model_close(&free);
}

/* Goal: freezes_router leaves router and gate of the shared expert unchanged and out of the norm; parameters
 * before them still receive the gradient through them, among them an embedding that is the head, too. Method:
 * a step with it and one without. */
static void test_frozen_router_stays_and_the_rest_trains_as_before(void **state)
{
    (void)state;
    check_frozen_router(QWEN2_MOE);
    check_frozen_router(QWEN2_MOE_TIED);
}

/* --- the correction bias --- */

static struct rk_status *biased_parse_config(struct rk_model_config *out, const struct rk_json *hf_config)
{
    RK_TRY(rk_family_qwen3_moe.parse_config(out, hf_config));
    out->moe.has_correction_bias = true;
    out->moe.is_sigmoid = true;
    out->moe.num_experts_per_tok = 1;
    return NULL;
}

/* A made-up family with sigmoid scores, a correction bias, and one expert a token. */
static const struct rk_model_family biased_family = {
    .name = "biased",
    .parse_config = biased_parse_config,
    .layer_kinds = rk_sparse_layers,
};

#define BIASED CONFIG("biased", "")
#define BIAS   "model.layers.1.mlp.gate.e_score_correction_bias"

/* Differences that bf16 does not hold; fp32 does. */
static const float biases[4] = {10.40625F, 10.406251F, -3.1415927F, 1e-6F};

/* A file with these biases and routers of zeros in both layers, and the values of `model` otherwise. */
static char *write_biased(const char *name, struct rk_model *model)
{
    char *dir = rk_test_temp_path(name), *path = rk_path_join(dir, "model.safetensors");
    const struct file_spec spec = {0};
    struct rk_st_writer *writer;
    struct file file;

    assert_int_equal(mkdir(dir, 0777), 0);
    list_tensors(&file, model, &spec);
    for (int64_t i = 0; i < file.count; i++) {
        if (strstr(file.entries[i].name, "correction_bias")) {
            file.entries[i].dtype = RK_DTYPE_F32;
            file.entries[i].shape[0] = 4;
        }
    }
    assert_ok(rk_st_writer_create(&writer, path, file.entries, file.count, NULL));
    for (int64_t i = 0; i < file.count; i++) {
        size_t count = (size_t)elements_of(&file.entries[i]);
        double *values = rk_calloc(3 * count, sizeof(*values));
        bool is_bias = file.entries[i].dtype == RK_DTYPE_F32;

        if (!is_bias && !strstr(file.entries[i].name, "mlp.gate.weight"))
            fill(values, &file.entries[i], model);
        assert_ok(rk_st_writer_write(writer, i, 0, is_bias ? (const void *)biases : values,
                                     count * (is_bias ? sizeof(float) : sizeof(double))));
        rk_free(values);
    }
    assert_ok(rk_st_writer_commit(writer));
    rk_st_writer_destroy(writer);
    rk_free(path);
    return dir;
}

static void assert_biases_of_file(const char *dir)
{
    char *path = rk_path_join(dir, "model.safetensors");
    const struct rk_st_tensor *tensor;
    struct rk_st_file *file;
    float read[4];

    assert_ok(rk_st_open(&file, path));
    tensor = rk_st_find(file, BIAS);
    assert_non_null(tensor);
    assert_int_equal(tensor->dtype, RK_DTYPE_F32);
    assert_int_equal(tensor->shape[0], 4);
    assert_ok(rk_st_read(file, tensor, 0, sizeof(read), read));
    assert_memory_equal(read, biases, sizeof(biases));
    rk_st_close(file);
    rk_free(path);
}

/* Goal: a correction bias keeps its fp32 bits in a model of any dtype, from file to file, through training,
 * and it is random initialisation's 0. */
static void test_correction_bias_keeps_fp32_in_every_dtype(void **state)
{
    static const rk_dtype_t dtypes[] = {RK_DTYPE_F64, RK_DTYPE_F32, RK_DTYPE_BF16};
    struct rk_optim_config optim = rk_test_adamw(1e-2, 0.1, 0);

    (void)state;
    rk_family_set_extra(&biased_family);
    for (size_t d = 0; d < RK_ARRAY_LEN(dtypes); d++) {
        struct rk_test_model test = open_model(BIASED, dtypes[d], RK_NUMERICS_FAST);
        char *name = rk_format("biased-%zu", d), *out = rk_format("biased-%zu-out", d);
        char *dir = write_biased(name, test.model), *out_dir = rk_test_temp_path(out);
        int64_t param = rk_model_find_param(test.model, BIAS);
        double parts[12];

        assert_ok(rk_model_gather_param(test.model, param, parts));
        for (int i = 0; i < 12; i++)
            assert_true(parts[i] == 0);
        assert_ok(rk_test_enable_training(test.model, &optim));
        assert_ok(rk_model_load_hf(test.model, dir, NULL));
        assert_ok(rk_model_gather_param(test.model, param, parts));
        for (int i = 0; i < 4; i++)
            assert_true((float)(parts[i] + parts[4 + i] + parts[8 + i]) == biases[i]);
        assert_ok(rk_model_export_hf(test.model, out_dir, 0, NULL));
        assert_biases_of_file(out_dir);
        rk_test_model_close(&test);
        rk_free(name);
        rk_free(out);
        rk_free(dir);
        rk_free(out_dir);
    }
    rk_family_set_extra(NULL);
}

/* Goal: the router adds the whole bias. Method: scores are equal, and of the two largest biases, which are
 * one in bf16, the second is larger: all tokens go to expert 1, and no other has a gradient. */
static void test_correction_bias_decides_by_fp32(void **state)
{
    struct rk_optim_config optim = rk_test_adamw(1e-2, 0.1, 0);
    struct rk_test_model test;
    char *dir;

    (void)state;
    rk_family_set_extra(&biased_family);
    test = open_model(BIASED, RK_DTYPE_BF16, RK_NUMERICS_FAST);
    dir = write_biased("biased-decides", test.model);
    assert_ok(rk_model_load_hf(test.model, dir, NULL));
    assert_ok(rk_test_enable_training(test.model, &optim));
    run_backward(test.model);
    for (int64_t e = 0; e < 4; e++) {
        char *name = rk_format("model.layers.1.mlp.experts.%lld.down_proj.weight", (long long)e);
        double gradient[32 * 12], sum = 0;

        assert_ok(rk_trainer_gather_grad(rk_model_trainer(test.model), rk_model_find_param(test.model, name),
                                         gradient));
        for (size_t i = 0; i < RK_ARRAY_LEN(gradient); i++)
            sum += gradient[i] * gradient[i];
        assert_int_equal(sum > 0, e == 1);
        rk_free(name);
    }
    rk_test_model_close(&test);
    rk_free(dir);
    rk_family_set_extra(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse_reads_experts_and_kinds_of_layers),
        cmocka_unit_test(test_parse_of_bad_experts_names_key_and_expectation),
        cmocka_unit_test(test_check_of_groups_names_what_does_not_fit),
        cmocka_unit_test(test_load_of_stacks_gives_each_expert_its_rows),
        cmocka_unit_test(test_load_of_defect_names_tensor_and_expectation),
        cmocka_unit_test(test_experts_are_one_allocation),
        cmocka_unit_test(test_kept_activations_are_those_declared),
        cmocka_unit_test(test_strict_token_depends_on_no_other),
        cmocka_unit_test(test_frozen_router_stays_and_the_rest_trains_as_before),
        cmocka_unit_test(test_correction_bias_keeps_fp32_in_every_dtype),
        cmocka_unit_test(test_correction_bias_decides_by_fp32),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
